//! `bezant bench`: hands over to the crate `bench`, and prints what it found.

use std::path::PathBuf;

use bench::zookeeper::ZookeeperArgs;
use bench::{BenchArgs, BenchError};
use clap::Args;
use client::Advice;
use tokio::sync::watch;

use crate::failure::{Done, Failure};
use crate::given::Given;
use crate::out;
use crate::regions::ClientRegions;
use crate::tell;

/// The exit code of a program that an interrupt ended.
const INTERRUPTED: i32 = 130;

/// Measures a workload against a running cluster.
#[derive(Args, Debug)]
pub struct BenchCommand {
    /// The cluster's folder
    #[arg(long, value_name = "DIR", default_value = "./bezant-data")]
    cluster: PathBuf,
    #[command(flatten)]
    bench: Given<BenchArgs>,
}

/// Carries out `bezant bench`.
pub async fn run(args: &BenchCommand) -> Result<Done, Failure> {
    let Given { value: asked, names } = &args.bench;
    asked.refuse_foreign(names)?;
    // Told here what is wrong with it, and that distances are on.
    #[cfg(feature = "lab")]
    let regions = ClientRegions { regions: asked.regions.clone() };
    #[cfg(not(feature = "lab"))]
    let regions = ClientRegions::default();
    regions.config(&args.cluster)?;
    let (stop, stopped) = watch::channel(false);
    tokio::spawn(listen(stop));
    let report = bench::run(asked, &args.cluster, stopped).await?;
    if asked.json {
        out!("{}", serde_json::to_string(&report).map_err(|error| Failure::failed(format!("the report cannot be written: {error}")))?);
    } else {
        out!("{report}");
    }
    if let Some(broken) = report.broken() {
        tell!("{broken}");
        return Ok(Done::Negative);
    }
    match report.failure() {
        None => Ok(Done::Well),
        Some(what) => Err(Failure::failed(what)),
    }
}

/// Carries out `bezant bench-zookeeper`.
pub async fn zookeeper(args: &ZookeeperArgs) -> Result<Done, Failure> {
    let report = bench::zookeeper::run(args).await.map_err(|error| Failure::failed(format!("a server failed: {error}")))?;
    if args.json {
        out!("{}", serde_json::to_string(&report).map_err(|error| Failure::failed(format!("the report cannot be written: {error}")))?);
    } else {
        out!("{report}");
    }
    Ok(Done::Well)
}

/// The first signal ends the run and lets it report; the second ends the program.
async fn listen(stop: watch::Sender<bool>) {
    if runtime::shutdown::signal().await.is_ok() {
        tell!("stopping, to report what there is; once more ends at once");
        stop.send_replace(true);
        if runtime::shutdown::signal().await.is_ok() {
            std::process::exit(INTERRUPTED);
        }
    }
}

impl From<BenchError> for Failure {
    fn from(error: BenchError) -> Self {
        match error {
            BenchError::Settings(what) => Self::wrong(what),
            BenchError::Config(error) => error.into(),
            BenchError::Connect(error) => error.into(),
            BenchError::Interrupted(_) => Self::failed(error.to_string()),
            BenchError::Client(error) => error.into(),
            BenchError::Workload(error) => match error.advice() {
                Advice::FixInput => Self::wrong(error.to_string()),
                _ => Self::failed(error.to_string()),
            },
        }
    }
}
