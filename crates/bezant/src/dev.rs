//! `bezant dev`: a whole cluster in one process, with real TLS on loopback and a real disk.

use std::fs;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::task::Poll;

use clap::Args;
use config::{LogFormat, LogLevel};
use futures_util::future::join_all;

use crate::failure::{Attempt as _, Done, Failure};
use crate::given::Given;
use crate::init::{self, Shape};
use crate::logs;
use crate::node::Running;
use crate::out;
use crate::process::Process;
use crate::regions::{ClientRegions, NodeRegions};
use crate::script::Statement;
use crate::tell;
use crate::{confine, mutant, regions, statements, up};

/// Runs a whole cluster in this process, made on the first start.
#[derive(Args, Debug)]
pub struct DevArgs {
    /// Where it lives. A cluster that is there already is used as it is, and options that contradict it are refused
    #[arg(value_name = "DIR", default_value = "./bezant-data")]
    folder: PathBuf,
    /// Start, run these statements as one transaction, print what came of it, and stop
    #[arg(long, value_name = "STATEMENTS")]
    exec: Option<String>,
    /// With --exec: print JSON
    #[arg(long, requires = "exec")]
    json: bool,
    /// Log what the replicas do, not only what goes wrong
    #[arg(long, short)]
    verbose: bool,
    #[command(flatten)]
    regions: NodeRegions,
    #[command(flatten)]
    shape: Given<Shape>,
}

/// Carries out `bezant dev`.
pub async fn run(args: &DevArgs) -> Result<Done, Failure> {
    let script = args.exec.as_deref().map(statements::plain_statements).transpose()?;
    // Six replicas that start and stop together lose and find one another all the time; that is no news here.
    let level: LogLevel = if args.verbose { "info" } else { "warn,runtime::transport=error" }.parse().expect("both are levels");
    logs::start(&level, LogFormat::Text)?;
    confine::prepare_for_replicas()?;
    if config::exists(&args.folder.join("cluster.toml"))? {
        up::refuse_running(&args.folder)?;
        init::compare(&args.folder, &args.shape)?;
    } else {
        init::create(&args.folder, &args.shape.value).await?;
        tell!("made a cluster in {}", args.folder.display());
    }
    let note = note(&args.folder)?;
    let ended = serve(args, script).await;
    Process::forget(&note)?;
    ended
}

/// Runs the cluster, until the statements are done or somebody stops it.
async fn serve(args: &DevArgs, script: Option<Vec<Statement>>) -> Result<Done, Failure> {
    let broken_rule = mutant::from_environment()?;
    let stop = runtime::shutdown::signal();
    let mut stop = pin!(stop);
    let mut nodes = Vec::new();
    let mut places = Vec::new();
    let map = args.regions.load()?;
    regions::leave(&args.folder, map.as_ref())?;
    up::take_waiting_keys(&args.folder)?;
    let (configs, unusable) = up::nodes(&args.folder)?;
    if let Some(why) = unusable.into_iter().next() {
        return Err(why);
    }
    let replicas = configs.len();
    for (_, mut config) in configs {
        config.regions.clone_from(&map);
        places.push(format!("{}  {}  http://{}", config.replica, config.listen, config.http_listen));
        nodes.push(Running::start(config, broken_rule, replicas).await?);
    }
    for node in &nodes {
        node.ready().await;
    }
    let only_reads = script.as_ref().is_some_and(|script| script.iter().all(statements::reads));
    let interrupted =
        if only_reads { Failure::failed("interrupted") } else { Failure::to_be_looked_at("interrupted: it may have taken place") };
    let ended = match script {
        Some(script) => tokio::select! {
            done = execute(args, script) => done,
            _ = &mut stop => Err(interrupted),
        },
        None => {
            places.iter().for_each(|place| out!("{place}"));
            let reach =
                if args.folder == Path::new("./bezant-data") { String::new() } else { format!(" --cluster {}", args.folder.display()) };
            tell!("all {} replicas serve. In another terminal: bezant put a 1{reach}. Ctrl-C stops.", nodes.len());
            tokio::select! {
                cause = &mut stop => cause.map(|_| Done::Well).attempt("listen for signals", "this process"),
                failure = any_failed(&mut nodes) => Err(failure),
            }
        }
    };
    // Together: who stops after others would wait for them.
    let stopped = join_all(nodes.into_iter().map(Running::stop)).await;
    regions::leave(&args.folder, None)?;
    let done = ended?;
    stopped.into_iter().collect::<Result<Vec<()>, Failure>>()?;
    Ok(done)
}

/// The file in which a cluster's folder says which `dev` runs it.
fn note_of(folder: &Path) -> PathBuf {
    folder.join("run").join("dev.pid")
}

/// Notes that this process runs the cluster, so that other commands can say so.
fn note(folder: &Path) -> Result<PathBuf, Failure> {
    refuse_running(folder)?;
    let note = note_of(folder);
    let run = folder.join("run");
    fs::create_dir_all(&run).attempt("make the folder", run.display())?;
    let this = std::process::id();
    Process::running(this).unwrap_or_else(|| Process::ended(this)).note(&note)?;
    Ok(note)
}

/// Refuses what only whoever runs the cluster may do, while a `dev` runs it.
pub fn refuse_running(folder: &Path) -> Result<(), Failure> {
    match Process::noted(&note_of(folder))? {
        Some(process) if process.is_running() => {
            Err(Failure::failed(format!("`bezant dev` runs this cluster, in the process {}", process.pid))
                .at(folder.display())
                .help(format!("stop it with Ctrl-C in its terminal, or with: kill {}", process.pid)))
        }
        _ => Ok(()),
    }
}

async fn execute(args: &DevArgs, script: Vec<Statement>) -> Result<Done, Failure> {
    let client = bezant_client::connect(ClientRegions::default().config(&args.folder)?).await?;
    let outcome = statements::execute(&client, None, script).await;
    client.close().await;
    let outcome = outcome?;
    if args.json {
        out!("{}", outcome.to_json());
    } else {
        outcome.print_all();
        out!("{}", outcome.summary());
    }
    Ok(Done::Well)
}

/// Waits until one of them ends that nobody asked to, and takes it out.
async fn any_failed(nodes: &mut Vec<Running>) -> Failure {
    let (at, failure) = std::future::poll_fn(|context| {
        for (at, node) in nodes.iter_mut().enumerate() {
            if let Poll::Ready(failure) = pin!(node.failed()).poll(context) {
                return Poll::Ready((at, failure));
            }
        }
        Poll::Pending
    })
    .await;
    drop(nodes.remove(at));
    failure
}
