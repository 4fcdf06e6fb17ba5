//! `bezant up` and `bezant down`: the replicas of a cluster's folder, as processes of this computer.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use clap::Args;
use config::Regions;
use futures_util::future::try_join_all;
use monitoring::http_client;
use serde_json::{Value, json};
use types::{ClusterId, ReplicaId};

use crate::dev;
use crate::failure::{Attempt as _, Done, Failure};
use crate::init;
use crate::key;
use crate::out;
use crate::output::tame;
use crate::process::Process;
use crate::regions::{self, NodeRegions};
use crate::status::{self, WORDS_LETTERS_MAX};
use crate::tell;
use config::{NodeConfig, replica_from_name};

/// How often a starting or stopping node is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Where others start the rest of a cluster, a replica that has waited for them for so many seconds may wait for long.
const WAITING_SECONDS_MIN: u64 = 3;
/// The first descriptor after standard input, output and error.
const FIRST_OWN_DESCRIPTOR: i32 = 3;
/// How much of what a node logged is shown when it ended at its start.
const LOG_BYTES_SHOWN: u64 = 2_000;

/// The folder of the cluster to start or stop. Other commands call it `--cluster`, and so may whoever is used to that.
#[derive(Args, Debug)]
struct ClusterFolder {
    /// The cluster's folder
    #[arg(value_name = "DIR", default_value = "./bezant-data")]
    folder: PathBuf,
    #[arg(long, value_name = "DIR", hide = true, conflicts_with = "folder")]
    cluster: Option<PathBuf>,
}

impl ClusterFolder {
    fn path(&self) -> &Path {
        self.cluster.as_deref().unwrap_or(&self.folder)
    }
}

/// Starts every replica whose folder is in DIR, each as a process of its own that outlives this command.
#[derive(Args, Debug)]
pub struct UpArgs {
    #[command(flatten)]
    folder: ClusterFolder,
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
    #[command(flatten)]
    folder: ClusterFolder,
    /// How long to wait before a replica that does not stop is killed
    #[arg(long, value_name = "S", default_value_t = 20)]
    seconds: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Carries out `bezant up`.
pub async fn up(args: &UpArgs) -> Result<Done, Failure> {
    let place = args.folder.path();
    replica_folders(place)?;
    init::refuse_unfinished(place)?;
    dev::refuse_running(place)?;
    take_waiting_keys(place)?;
    let (nodes, unusable) = nodes(place)?;
    unusable.iter().for_each(|why| tell!("{why}"));
    let other_copies = warn_of_other_copies(place);
    let is_apart = regions(args)?.is_some();
    // Whoever calls may hold locks by open files, which must not last as long as the nodes do.
    close_fds::set_fds_cloexec_threadsafe(FIRST_OWN_DESCRIPTOR, &[]);
    let run = place.join("run");
    fs::create_dir_all(&run).attempt("make the folder", run.display())?;
    let start = |folder: &Path, note: &Path| {
        let process = spawn(folder, is_apart.then(|| Regions::file_of_cluster(place)))?;
        process.note(note)?;
        Ok::<_, Failure>(process)
    };
    let mut started = Vec::with_capacity(nodes.len());
    for (folder, config) in &nodes {
        let note = note_of(place, config.replica);
        // What the log holds already is not about this start.
        let logged = fs::metadata(log_of(folder)).map_or(0, |log| log.len());
        let running = Process::noted(&note)?.filter(Process::is_running);
        let (was_running, process) = (running.is_some(), running.map_or_else(|| start(folder, &note), Ok)?);
        started.push(Started { folder, config, process, was_running, logged });
    }
    let deadline = Instant::now() + Duration::from_secs(args.seconds);
    let all = nodes.first().map_or(0, |(_, config)| config.topology.cluster.replicas().count());
    let count = started.len();
    // Side by side: none may serve before enough others run, and some may have to be started again.
    try_join_all(started.iter_mut().map(|node| {
        // Where others have to start the rest, nobody here can do more than wait for them; nor where the rest refuses a replica.
        let may_wait = count < all || other_copies.iter().any(|own| own == node.folder);
        let enough: &[&str] =
            if may_wait { &[status::SERVING, status::REBUILDING, status::WAITING] } else { &[status::SERVING, status::REBUILDING] };
        async move {
            let mut serves = node.serves(deadline, enough).await?;
            if !serves && node.was_running {
                // It was about to end, as one that was killed is for a moment.
                node.process = start(node.folder, &note_of(place, node.config.replica))?;
                serves = node.serves(deadline, enough).await?;
            }
            if serves { Ok(()) } else { Err(node.ended()) }
        }
    }))
    .await?;
    let mut list = Vec::with_capacity(started.len());
    for node in &started {
        let status = node.status().await;
        node.tell_of(&status);
        list.push(node.to_json(&status));
    }
    if args.json {
        out!("{}", json!({ "nodes": list }));
    } else {
        for Started { config, process, .. } in &started {
            out!("{}  pid {}  {}  http://{}", config.replica, process.pid, config.listen, config.http_listen);
        }
    }
    match unusable.first() {
        None => Ok(Done::Well),
        Some(first) => Err(first.clone().summed_up(format!("{} of the replicas here cannot be started; the others run", unusable.len()))),
    }
}

/// A replica that did not run while the cluster was changed may have lost its place, or got it under another key, and nobody tells it so who has the change. And
/// one that stopped when its key changed may have the new one waiting in its folder.
pub fn take_waiting_keys(folder: &Path) -> Result<(), Failure> {
    let running: Vec<ReplicaId> =
        noted(folder)?.iter().filter(|(_, process, _)| process.is_running()).map(|(replica, ..)| *replica).collect();
    for own in replica_folders(folder)? {
        let name = own.file_name().and_then(|name| replica_from_name(name.to_str()?).ok());
        // One that runs takes it by itself.
        if name.is_some_and(|name| running.contains(&name)) {
            continue;
        }
        if let Err(failure) = key::brought_forward(&own, None) {
            tell!("warning: {} is not told of later configurations: {failure}", own.display());
        }
        if let Err(failure) = key::take_waiting_key(&own) {
            tell!("warning: the key that waits in {} is left there: {failure}", own.display());
        }
    }
    Ok(())
}

/// The map of injected latency under which the cluster runs, or is to run: all of it under the same.
fn regions(args: &UpArgs) -> Result<Option<Regions>, Failure> {
    let place = args.folder.path();
    let (current, wanted) = (Regions::of_cluster(place)?, args.regions.load()?);
    let is_running = noted(place)?.iter().any(|(_, process, _)| process.is_running());
    let regions = match (is_running, wanted) {
        (true, Some(wanted)) if current.as_ref() != Some(&wanted) => {
            return Err(Failure::wrong("some replicas run already, with other injected latency")
                .at(place.display())
                .help(format!("stop them first: bezant down {}", place.display())));
        }
        (true, _) => current,
        (false, wanted) => wanted,
    };
    regions::leave(place, regions.as_ref())?;
    Ok(regions)
}

/// Carries out `bezant down`.
pub async fn down(args: &DownArgs) -> Result<Done, Failure> {
    let place = args.folder.path();
    dev::refuse_running(place)?;
    let noted = noted(place)?;
    if noted.is_empty() {
        replica_folders(place)?;
    }
    let (running, gone): (Vec<_>, Vec<_>) = noted.into_iter().partition(|(_, process, _)| process.is_running());
    running.iter().for_each(|(_, process, _)| process.ask_to_stop());
    let deadline = Instant::now() + Duration::from_secs(args.seconds);
    let mut killed = Vec::new();
    for (replica, process, _) in &running {
        while process.is_running() && Instant::now() < deadline {
            tokio::time::sleep(LOOK_EVERY).await;
        }
        if process.is_running() {
            process.kill();
            killed.push(replica.to_string());
            tell!(
                "{replica} (pid {}) did not stop within {} s and was killed; nothing it had acknowledged is lost",
                process.pid,
                args.seconds
            );
        }
    }
    for (_, _, note) in running.iter().chain(&gone) {
        Process::forget(note)?;
    }
    regions::leave(place, None)?;
    if args.json {
        let down: Vec<String> = running.iter().map(|(replica, ..)| replica.to_string()).collect();
        out!("{}", json!({ "down": down, "killed": killed }));
        return Ok(Done::Well);
    }
    match running.len() {
        0 => tell!("nothing ran that `bezant up` had started"),
        count => tell!("{count} replicas are down"),
    }
    Ok(Done::Well)
}

/// The processes that `up` noted: whose each is, and its note. Nothing else is read, so that they can be stopped when their folders
/// have been damaged.
fn noted(folder: &Path) -> Result<Vec<(ReplicaId, Process, PathBuf)>, Failure> {
    let run = folder.join("run");
    let entries = match fs::read_dir(&run) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.attempt("read the folder", run.display())?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let note = entry.attempt("read the folder", run.display())?.path();
        let name = note.file_name().and_then(|name| name.to_str()?.strip_suffix(".pid"));
        if let Some(replica) = name.and_then(|name| replica_from_name(name).ok())
            && let Some(process) = Process::noted(&note)?
        {
            found.push((replica, process, note));
        }
    }
    found.sort_by_key(|(replica, ..)| *replica);
    Ok(found)
}

/// Refuses what only whoever runs the cluster may do, while replicas run that `up` started.
pub fn refuse_running(folder: &Path) -> Result<(), Failure> {
    if noted(folder)?.iter().any(|(_, process, _)| process.is_running()) {
        let stop = format!("stop it with: bezant down {}", folder.display());
        return Err(Failure::failed("`bezant up` runs this cluster").at(folder.display()).help(stop));
    }
    Ok(())
}

/// Replicas, each with its folder.
type Nodes = Vec<(PathBuf, NodeConfig)>;

/// The replicas whose folders are here, in order; and why folders cannot be used.
pub fn nodes(folder: &Path) -> Result<(Nodes, Vec<Failure>), Failure> {
    let (mut found, mut unusable) = (Vec::new(), Vec::new());
    for own in replica_folders(folder)? {
        match config_of(&own) {
            Ok(Some(config)) => found.push((own, config)),
            Ok(None) => tell!(
                "warning: {} is left alone, since its place has another key by now; where only the key was changed: bezant key use --rotate",
                own.display()
            ),
            Err(why) => unusable.push(why),
        }
    }
    unusable.extend(folders_without_settings(folder)?);
    found.sort_by_key(|(_, config)| config.replica);
    if let Some(why) = unusable.first().filter(|_| found.is_empty()) {
        return Err(why.clone());
    }
    if found.is_empty() {
        return Err(Failure::wrong("no replica whose folder is here has a place any more").at(folder.display()));
    }
    Ok((found, unusable))
}

/// Folders that are named as replicas' are, are not empty, and have no `node.toml` to run by.
fn folders_without_settings(folder: &Path) -> Result<Vec<Failure>, Failure> {
    let mut lacking = Vec::new();
    for entry in fs::read_dir(folder).attempt("read the folder", folder.display())? {
        let path = entry.attempt("read the folder", folder.display())?.path();
        let is_replicas =
            path.is_dir() && path.file_name().and_then(|name| name.to_str()).is_some_and(|name| replica_from_name(name).is_ok());
        let is_used = || fs::read_dir(&path).is_ok_and(|mut files| files.next().is_some());
        if is_replicas && is_used() && !config::exists(&path.join("node.toml"))? {
            let failure = Failure::wrong("this replica's folder has no node.toml").at(path.display());
            lacking.push(failure.help("put it back as it was; or move the folder away, if it is no replica's any more"));
        }
    }
    lacking.sort_by_key(Failure::to_string);
    Ok(lacking)
}

/// How the replica in this folder is to run; nothing when its place has another key.
fn config_of(folder: &Path) -> Result<Option<NodeConfig>, Failure> {
    if NodeConfig::is_replaced(folder, bezant_client::ENGINES)? {
        return Ok(None);
    }
    Ok(Some(NodeConfig::load(folder, bezant_client::ENGINES)?))
}

/// The folders of replicas that are here.
pub fn replica_folders(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let entries = fs::read_dir(folder).map_err(|error| {
        Failure::wrong(format!("there is no cluster here: {error}")).at(folder.display()).help("make one with `bezant init`")
    })?;
    let mut found = Vec::new();
    for entry in entries {
        let path = entry.attempt("read the folder", folder.display())?.path();
        if config::exists(&path.join("node.toml"))? {
            found.push(path);
        }
    }
    if found.is_empty() {
        if let Some(lacking) = folders_without_settings(folder)?.into_iter().next() {
            return Err(lacking);
        }
        let help = if config::exists(&folder.join("node.toml"))? {
            "this is a replica's own folder: name the cluster's folder that it is in (`bezant node` runs one replica alone)"
        } else {
            "make a cluster with `bezant init`"
        };
        return Err(Failure::wrong("no replica's folder is here").at(folder.display()).help(help));
    }
    found.sort();
    Ok(found)
}

/// Warns of folders whose `cluster.toml` is not that of the cluster's own folder: each reads only its own. Gives these folders.
pub fn warn_of_other_copies(folder: &Path) -> Vec<PathBuf> {
    let Ok(first) = fs::read(folder.join("cluster.toml")) else { return Vec::new() };
    let mut others = replica_folders(folder).unwrap_or_default();
    others.push(folder.join("client"));
    others.retain(|own| fs::read(own.join("cluster.toml")).is_ok_and(|copy| copy != first));
    if !others.is_empty() {
        let names: Vec<_> = others.iter().filter_map(|own| own.file_name()?.to_str()).collect();
        tell!(
            "warning: {}/cluster.toml is not that of {}, of which each reads its own: copy the right one into every folder",
            folder.display(),
            names.join(", ")
        );
    }
    others
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

/// A replica that is to serve.
struct Started<'a> {
    folder: &'a Path,
    config: &'a NodeConfig,
    process: Process,
    /// It ran before.
    was_running: bool,
    /// How long its log was before.
    logged: u64,
}

impl Started<'_> {
    /// Waits until it answers that it is in one of these states; `false` when it has ended.
    async fn serves(&self, deadline: Instant, enough: &[&str]) -> Result<bool, Failure> {
        let Self { config, process, .. } = self;
        loop {
            let answer = http_client::get(&config.http_listen.to_string(), "/status").await;
            // Looked at after the answer: on a port that another program has, it is not this node that answers.
            if !process.is_running() {
                return Ok(false);
            }
            match why_not(answer, config.topology.cluster.id(), config.replica, process.pid, enough) {
                None => return Ok(true),
                Some(why) if Instant::now() > deadline => {
                    return Err(Failure::failed(format!("{} does not serve yet: {why}", config.replica))
                        .at(log_of(self.folder).display())
                        .help("see its log; `bezant down` stops all"));
                }
                Some(_) => tokio::time::sleep(LOOK_EVERY).await,
            }
        }
    }

    /// How it is, in its own words; nothing where it does not say so.
    async fn status(&self) -> Value {
        let answer = http_client::get(&self.config.http_listen.to_string(), "/status").await;
        let status: Option<Value> = answer.ok().and_then(|body| serde_json::from_str(&body).ok());
        let cluster = self.config.topology.cluster.id();
        status.filter(|status| status::is_from(status, cluster, self.config.replica)).unwrap_or_default()
    }

    /// Says why it does not serve yet, if so.
    fn tell_of(&self, status: &Value) {
        let state = status["state"].as_str().unwrap_or_default();
        if state == status::REBUILDING {
            tell!(
                "{} runs, and rebuilds itself from the others: it does not serve before that is done. bezant status shows how far it is",
                self.config.replica
            );
        } else if let Some(words) = status["waits"].as_str().filter(|_| state == status::WAITING) {
            tell!("{} {}", self.config.replica, tame(words, WORDS_LETTERS_MAX));
        }
    }

    /// Why it ended at its start, in its own words.
    fn ended(&self) -> Failure {
        let log = log_of(self.folder);
        let said = format!("\n{}", said_since(&log, self.logged).unwrap_or_else(|error| format!("its log cannot be read: {error}")));
        let why = said.rsplit_once("\nerror: ").map_or(said.as_str(), |(_, failure)| failure);
        Failure::failed(format!("{} ended at its start: {}", self.config.replica, why.trim().replace('\n', "\n  ")))
            .at(log.display())
            .help("mend that, then run `bezant up` again; what has started keeps running until `bezant down`")
    }

    fn to_json(&self, status: &Value) -> Value {
        let state = status["state"].as_str().map(|state| tame(state, WORDS_LETTERS_MAX));
        json!({"replica": self.config.replica.to_string(), "pid": self.process.pid, "state": state,
               "listen": self.config.listen.to_string(), "http": self.config.http_listen.to_string()})
    }
}

/// Why this is not the answer of that process in one of the states that are enough; nothing when it is.
fn why_not(answer: Result<String, String>, cluster: ClusterId, replica: ReplicaId, pid: u32, enough: &[&str]) -> Option<String> {
    let status: Value = match answer {
        Ok(body) => serde_json::from_str(&body).unwrap_or_default(),
        Err(error) => return Some(error),
    };
    if !status::is_from(&status, cluster, replica) || status["pid"] != json!(pid) {
        return Some("somebody else answers at its HTTP port".to_owned());
    }
    let state = status["state"].as_str().filter(|state| enough.contains(state));
    // One that waits a moment for others that are there is about to do more than that.
    let is_ready = state.is_some_and(|state| state != status::WAITING || status["uptime_seconds"].as_u64() >= Some(WAITING_SECONDS_MIN));
    let words = status["waits"].as_str().or(status["clock"]["words"].as_str());
    let because = words.map(|words| format!(": {}", tame(words, WORDS_LETTERS_MAX)));
    (!is_ready).then(|| format!("it is not ready{}", because.unwrap_or_default()))
}

/// The end of what a log holds beyond so many bytes.
fn said_since(log: &Path, logged: u64) -> std::io::Result<String> {
    let mut log = File::open(log)?;
    let from = log.metadata()?.len().saturating_sub(LOG_BYTES_SHOWN).max(logged);
    log.seek(SeekFrom::Start(from))?;
    let mut said = Vec::new();
    log.read_to_end(&mut said)?;
    Ok(String::from_utf8_lossy(&said).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_its_own_process_says_that_a_replica_serves() {
        let (cluster, replica) = (ClusterId::new([7; 16]), replica_from_name("s0-r3").expect("a name"));
        let status = json!({"cluster": cluster.to_string(), "replica": "s0-r3", "pid": 12, "state": "serving"});
        let why = |name: &str, value: Value| {
            let mut status = status.clone();
            status[name] = value;
            why_not(Ok(status.to_string()), cluster, replica, 12, &["serving", "waiting"])
        };
        assert_eq!(why("state", json!("serving")), None);
        let waiting_for = |seconds: u64| {
            let status =
                json!({"cluster": cluster.to_string(), "replica": "s0-r3", "pid": 12, "state": "waiting", "uptime_seconds": seconds});
            why_not(Ok(status.to_string()), cluster, replica, 12, &[status::SERVING, status::WAITING])
        };
        assert!(waiting_for(WAITING_SECONDS_MIN - 1).is_some_and(|why| why.contains("not ready")));
        assert_eq!(waiting_for(WAITING_SECONDS_MIN), None);
        assert_eq!(why("clock", json!({"words": "a word"})), None);
        let mut waiting = status.clone();
        (waiting["state"], waiting["waits"]) = (json!("waiting"), json!("waits for a leader"));
        let why_it_waits = why_not(Ok(waiting.to_string()), cluster, replica, 12, &["serving"]);
        assert_eq!(why_it_waits.as_deref(), Some("it is not ready: waits for a leader"));
        assert!(why("state", json!("warming")).is_some_and(|why| why.contains("not ready")));
        for (name, value) in [("cluster", json!("08".repeat(16))), ("replica", json!("s0-r4")), ("pid", json!(13)), ("pid", Value::Null)] {
            assert!(why(name, value).is_some_and(|why| why.contains("somebody else")), "{name}");
        }
        assert!(why_not(Ok("serving".to_owned()), cluster, replica, 12, &["serving"]).is_some());
        assert_eq!(why_not(Err("refused".to_owned()), cluster, replica, 12, &["serving"]), Some("refused".to_owned()));
    }
}
