//! `bezant bench`: hands over to the crate `bench`, and prints what it found.

use std::path::PathBuf;

use bench::{BenchArgs, BenchError};
use clap::Args;

use crate::failure::{Done, Failure};

/// Measures a workload against a running cluster.
#[derive(Args, Debug)]
pub struct BenchCommand {
    /// The cluster's folder
    #[arg(long, value_name = "DIR", default_value = "./bezant-data")]
    cluster: PathBuf,
    #[command(flatten)]
    bench: BenchArgs,
}

/// Carries out `bezant bench`.
pub async fn run(args: &BenchCommand) -> Result<Done, Failure> {
    let report = bench::run(&args.bench, &args.cluster).await?;
    if args.bench.json {
        println!("{}", serde_json::to_string(&report).map_err(|error| Failure::failed(format!("the report cannot be written: {error}")))?);
    } else {
        println!("{report}");
    }
    match report.failure() {
        None => Ok(Done::Well),
        Some(what) => Err(Failure::failed(what)),
    }
}

impl From<BenchError> for Failure {
    fn from(error: BenchError) -> Self {
        match error {
            BenchError::Settings(what) => Self::wrong(what),
            BenchError::Config(error) => error.into(),
            BenchError::Connect(error) => error.into(),
            BenchError::Workload(error) => Self::failed(error.to_string()),
        }
    }
}
