//! `bezant up` and `bezant down`: the replicas of a cluster's folder, as processes of this computer.

use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use clap::Args;
use config::Regions;
use monitoring::http_client;
use serde_json::json;
use types::ReplicaId;

use crate::dev;
use crate::failure::{Attempt as _, Done, Failure};
use crate::init;
use crate::out;
use crate::process::Process;
use crate::regions::{self, NodeRegions};
use config::NodeConfig;

/// How often a starting or stopping node is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// The first descriptor after standard input, output and error.
const FIRST_OWN_DESCRIPTOR: i32 = 3;
/// How much of a log is shown when its node ended at its start.
const LOG_BYTES_SHOWN: usize = 2_000;

/// Starts every replica whose folder is in DIR, each as a process of its own that outlives this command.
#[derive(Args, Debug)]
pub struct UpArgs {
    /// The cluster's folder
    #[arg(value_name = "DIR", default_value = "./bezant-data")]
    folder: PathBuf,
    /// How long to wait until all serve
    #[arg(long, value_name = "S", default_value_t = 60)]
    seconds: u64,
    #[command(flatten)]
    regions: NodeRegions,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Stops what `up` started.
#[derive(Args, Debug)]
pub struct DownArgs {
    /// The cluster's folder
    #[arg(value_name = "DIR", default_value = "./bezant-data")]
    folder: PathBuf,
    /// How long to wait before a replica that does not stop is killed
    #[arg(long, value_name = "S", default_value_t = 20)]
    seconds: u64,
}

/// Carries out `bezant up`.
pub async fn up(args: &UpArgs) -> Result<Done, Failure> {
    let nodes = nodes(&args.folder)?;
    init::refuse_unfinished(&args.folder)?;
    dev::refuse_running(&args.folder)?;
    let is_apart = regions(args, &nodes)?.is_some();
    // Whoever calls may hold locks by open files, which must not last as long as the nodes do.
    close_fds::set_fds_cloexec_threadsafe(FIRST_OWN_DESCRIPTOR, &[]);
    let run = args.folder.join("run");
    fs::create_dir_all(&run).attempt("make the folder", run.display())?;
    let mut running = Vec::with_capacity(nodes.len());
    for (folder, config) in &nodes {
        let note = note_of(&args.folder, config.replica);
        if let Some(process) = Process::noted(&note)?
            && process.is_running()
        {
            running.push(process);
            continue;
        }
        let process = spawn(folder, is_apart.then(|| Regions::file_of_cluster(&args.folder)))?;
        process.note(&note)?;
        running.push(process);
    }
    let deadline = Instant::now() + Duration::from_secs(args.seconds);
    for ((folder, config), process) in nodes.iter().zip(&running) {
        serving(folder, config, process, deadline).await?;
    }
    if args.json {
        let list: Vec<_> = nodes
            .iter()
            .zip(&running)
            .map(|((_, config), process)| {
                json!({"replica": config.replica.to_string(), "pid": process.pid,
                       "listen": config.listen.to_string(), "http": config.http_listen.to_string()})
            })
            .collect();
        out!("{}", json!({ "nodes": list }));
    } else {
        for ((_, config), process) in nodes.iter().zip(&running) {
            out!("{}  pid {}  {}  http://{}", config.replica, process.pid, config.listen, config.http_listen);
        }
    }
    Ok(Done::Well)
}

/// The map of injected latency under which the cluster runs, or is to run: all of it under the same.
fn regions(args: &UpArgs, nodes: &[(PathBuf, NodeConfig)]) -> Result<Option<Regions>, Failure> {
    let (current, wanted) = (Regions::of_cluster(&args.folder)?, args.regions.load()?);
    let mut is_running = false;
    for (_, config) in nodes {
        is_running |= Process::noted(&note_of(&args.folder, config.replica))?.is_some_and(|process| process.is_running());
    }
    let regions = match (is_running, wanted) {
        (true, Some(wanted)) if current.as_ref() != Some(&wanted) => {
            return Err(Failure::wrong("some replicas run already, with other injected latency")
                .at(args.folder.display())
                .help(format!("stop them first: bezant down {}", args.folder.display())));
        }
        (true, _) => current,
        (false, wanted) => wanted,
    };
    regions::leave(&args.folder, regions.as_ref())?;
    Ok(regions)
}

/// Carries out `bezant down`.
pub async fn down(args: &DownArgs) -> Result<Done, Failure> {
    let nodes = nodes(&args.folder)?;
    dev::refuse_running(&args.folder)?;
    let mut stopping = Vec::new();
    for (_, config) in nodes {
        let note = note_of(&args.folder, config.replica);
        if let Some(process) = Process::noted(&note)? {
            process.ask_to_stop();
            stopping.push((config.replica, process, note));
        }
    }
    let deadline = Instant::now() + Duration::from_secs(args.seconds);
    for (replica, process, note) in &stopping {
        while process.is_running() && Instant::now() < deadline {
            tokio::time::sleep(LOOK_EVERY).await;
        }
        if process.is_running() {
            process.kill();
            eprintln!(
                "{replica} (pid {}) did not stop within {} s and was killed; nothing it had acknowledged is lost",
                process.pid, args.seconds
            );
        }
        Process::forget(note)?;
    }
    regions::leave(&args.folder, None)?;
    match stopping.len() {
        0 => eprintln!("nothing ran that `bezant up` had started"),
        count => eprintln!("{count} replicas are down"),
    }
    Ok(Done::Well)
}

/// The replicas whose folders are here, in order.
pub fn nodes(folder: &Path) -> Result<Vec<(PathBuf, NodeConfig)>, Failure> {
    let entries = fs::read_dir(folder).map_err(|error| {
        Failure::wrong(format!("there is no cluster here: {error}")).at(folder.display()).help("make one with `bezant init`")
    })?;
    let mut found = Vec::new();
    for entry in entries {
        let path = entry.attempt("read the folder", folder.display())?.path();
        if path.join("node.toml").exists() {
            found.push((path.clone(), NodeConfig::load(&path, bezant_client::ENGINES)?));
        }
    }
    if found.is_empty() {
        return Err(Failure::wrong("no replica's folder is here").at(folder.display()).help("make a cluster with `bezant init`"));
    }
    found.sort_by_key(|(_, config)| config.replica);
    Ok(found)
}

fn note_of(folder: &Path, replica: ReplicaId) -> PathBuf {
    folder.join("run").join(format!("{replica}.pid"))
}

fn log_of(folder: &Path) -> PathBuf {
    folder.join("node.log")
}

/// Tells the allocator to keep what a node has freed: under load it needs it again at once, and memory that the system takes
/// back and gives anew, cleared, costs an eighth of a node's CPU time.
const KEEP_FREED_MEMORY: (&str, &str) = ("MIMALLOC_PURGE_DELAY", "-1");

/// Starts `bezant node FOLDER` in a process group of its own, so that Ctrl-C here does not reach it.
fn spawn(folder: &Path, regions: Option<PathBuf>) -> Result<Process, Failure> {
    let program = std::env::current_exe().attempt("find this program", folder.display())?;
    let log = log_of(folder);
    let output = OpenOptions::new().create(true).append(true).open(&log).attempt("open the log", log.display())?;
    let errors = output.try_clone().attempt("open the log", log.display())?;
    let mut command = Command::new(program);
    command.arg("node").arg(folder);
    if let Some(regions) = regions {
        command.arg("--regions").arg(regions);
    }
    let (name, value) = KEEP_FREED_MEMORY;
    if std::env::var_os(name).is_none() {
        command.env(name, value);
    }
    command.stdin(Stdio::null()).stdout(output).stderr(errors);
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    let child = command.spawn().attempt("start a replica", folder.display())?;
    let pid = child.id();
    // Kept by nobody: it outlives this command. Ended already, it is not running, and `serving` says so.
    Ok(Process::running(pid).unwrap_or_else(|| Process::ended(pid)))
}

/// Waits until the node answers that it serves.
async fn serving(folder: &Path, config: &NodeConfig, process: &Process, deadline: Instant) -> Result<(), Failure> {
    let log = log_of(folder);
    loop {
        let answer = http_client::get(&config.http_listen.to_string(), "/health").await;
        // Looked at after the answer: on a port that another program has, it is not this node that answers.
        if !process.is_running() {
            return Err(Failure::failed(format!("{} ended at its start; the end of its log:\n{}", config.replica, tail(&log)))
                .at(log.display())
                .help("mend that, then run `bezant up` again; what has started keeps running until `bezant down`"));
        }
        match answer {
            Ok(_) => return Ok(()),
            Err(error) if Instant::now() > deadline => {
                return Err(Failure::failed(format!("{} does not serve yet: {error}", config.replica))
                    .at(log.display())
                    .help("see its log; `bezant down` stops all"));
            }
            Err(_) => tokio::time::sleep(LOOK_EVERY).await,
        }
    }
}

fn tail(log: &Path) -> String {
    let text = fs::read(log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
    let mut from = text.len().saturating_sub(LOG_BYTES_SHOWN);
    while !text.is_char_boundary(from) {
        from += 1;
    }
    text[from..].trim_end().to_owned()
}
