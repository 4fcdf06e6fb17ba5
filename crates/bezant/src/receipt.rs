//! `bezant receipt`: keeps the proof of a commit in a file, and checks one.

use std::fs::File;
use std::io::{ErrorKind, Read as _, Write as _};
use std::path::{Path, PathBuf};

use bezant_client::{ProvenCommit, load_topology, verify_receipt};
use clap::{Args, Subcommand};
use client::{Client, Commit};
use config::Topology;
use serde_json::{Value as Json, json};
use types::limits::FRAME_BYTES_MAX;
use types::{Key, Timestamp, Value};

use crate::failure::{Attempt as _, Done, Failure};
use crate::statements::json_text;
use crate::tell;
use crate::{out, script};

/// Where to keep the receipt of what is committed.
#[derive(Args, Debug)]
pub struct Keep {
    /// Keep the proof of the commit in this file, which must not exist: anyone with cluster.toml can check it
    #[arg(long, value_name = "FILE")]
    receipt: Option<PathBuf>,
}

impl Keep {
    /// Makes the file before anything is committed.
    pub fn make_file(&self) -> Result<KeptFile, Failure> {
        let Some(path) = &self.receipt else { return Ok(KeptFile(None)) };
        let file = File::create_new(path).map_err(|error| match error.kind() {
            ErrorKind::AlreadyExists => occupied(path),
            ErrorKind::NotFound | ErrorKind::NotADirectory | ErrorKind::PermissionDenied => {
                Failure::wrong(format!("the receipt's file cannot be made: {error}; nothing was done")).at(path.display())
            }
            _ => Failure::failed(format!("the receipt's file cannot be made: {error}; nothing was done")).at(path.display()),
        })?;
        Ok(KeptFile(Some((path.clone(), file))))
    }

    /// Refuses, before anything is committed, an engine whose commits leave no receipts.
    pub fn check_engine(&self, client: &Client) -> Result<(), Failure> {
        if self.receipt.is_none() || client.capabilities().receipts {
            return Ok(());
        }
        Err(Failure::wrong("commits of this cluster's engine leave no receipts: nothing was done").help("leave out --receipt"))
    }
}

/// The file that a receipt is to be kept in, where one is. It is removed unless one is kept there.
#[derive(Debug)]
pub struct KeptFile(Option<(PathBuf, File)>);

impl KeptFile {
    /// Writes the receipt of `commit`, durably.
    pub fn keep(mut self, commit: &Commit) -> Result<(), Failure> {
        let Some((path, file)) = &mut self.0 else { return Ok(()) };
        let Some(receipt) = &commit.receipt else {
            tell!("warning: {} is not written: nobody votes on a transaction that only read, so that it leaves no receipt", path.display());
            return Ok(());
        };
        file.write_all(&receipt.to_bytes()).and_then(|()| file.sync_all()).map_err(|error| {
            let id = hex::encode(commit.id.0);
            Failure::to_be_looked_at(format!("the transaction {id} is committed, but its receipt cannot be written: {error}"))
                .at(path.display())
        })?;
        self.0 = None;
        Ok(())
    }
}

impl Drop for KeptFile {
    fn drop(&mut self) {
        if let Some((path, _)) = &self.0 {
            // Nobody can do more about it, and no whole receipt is in it.
            _ = std::fs::remove_file(path);
        }
    }
}

fn occupied(path: &Path) -> Failure {
    if path.metadata().is_ok_and(|file| file.len() == 0) {
        return Failure::wrong(
            "this file exists already, and is empty: another command is about to write a receipt there, or was stopped before it did",
        )
        .at(path.display())
        .help("look whether its transaction took place, then remove the file or name another");
    }
    Failure::wrong("this file exists already, and may be another receipt").at(path.display()).help("name another file")
}

/// Checks receipts.
#[derive(Debug, Subcommand)]
pub enum ReceiptCommand {
    /// Checks that a receipt proves a commit, with nothing but the cluster's public keys: it asks nobody
    #[command(after_help = "Example:\n\
        \x20 bezant put account/1 100 --receipt paid.receipt\n\
        \x20 bezant receipt verify paid.receipt --cluster bezant-data/cluster.toml\n\n\
        It shows the keys and ranges that the transaction read, which version of each key, and what it wrote. Ends with exit code 2 when\n\
        the receipt proves nothing, and says why.")]
    Verify(VerifyArgs),
}

/// What to check.
#[derive(Args, Debug)]
pub struct VerifyArgs {
    /// The receipt
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The cluster's cluster.toml, or a folder with it
    #[arg(long, value_name = "PATH", default_value = "./bezant-data")]
    cluster: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Carries out `bezant receipt`.
pub fn run(command: &ReceiptCommand) -> Result<Done, Failure> {
    let ReceiptCommand::Verify(args) = command;
    let topology = public_topology(&args.cluster)?;
    let (proven, configuration) = verify_receipt(&read(&args.file)?.into(), &topology)
        .map_err(|why| Failure::wrong(why).at(args.file.display()).help("a receipt is checked with the cluster.toml of its own cluster"))?;
    if args.json {
        out!("{}", to_json(&proven, configuration));
        return Ok(Done::Well);
    }
    out!("committed {} at {} by {}", hex::encode(proven.id.0), proven.timestamp, proven.summary);
    if topology.chain.version() > 0 {
        out!("by the keys of configuration {configuration}, of {} that are known here", topology.chain.version());
    }
    for (key, version) in &proven.reads {
        let key = script::shown(key);
        match written(*version) {
            Some(version) => out!("read {key}, version {version}"),
            None => out!("read {key}, which nobody had written"),
        }
    }
    for range in &proven.ranges {
        out!("read the range from {} to {}", script::shown(range.low()), script::shown(range.high()));
    }
    for (key, value) in &proven.writes {
        let key = script::shown(key);
        match value {
            Some(value) => out!("put {key} = {value}"),
            None => out!("delete {key}"),
        }
    }
    Ok(Done::Well)
}

/// The version, if there was one.
fn written(version: Timestamp) -> Option<String> {
    (version != Timestamp::ZERO).then(|| version.to_string())
}

/// What a receipt proves, for programs.
fn to_json(proven: &ProvenCommit, configuration: u64) -> Json {
    let text = |key: &Key| json_text(key.as_bytes());
    let reads: Vec<Json> = proven.reads.iter().map(|(key, version)| json!({"key": text(key), "version": written(*version)})).collect();
    let ranges: Vec<Json> = proven.ranges.iter().map(|range| json!({"low": text(range.low()), "high": text(range.high())})).collect();
    let value = |value: &Option<Value>| value.as_ref().map(|value| json_text(value.as_bytes()));
    let writes: Vec<Json> = proven.writes.iter().map(|(key, new)| json!({"key": text(key), "value": value(new)})).collect();
    json!({
        "id": hex::encode(proven.id.0),
        "timestamp": proven.timestamp.to_string(),
        "by": proven.summary,
        "configuration": configuration,
        "reads": reads,
        "ranges": ranges,
        "writes": writes,
    })
}

/// What is public of a cluster, for whoever may have no member's folder of it.
pub fn public_topology(cluster: &Path) -> Result<Topology, Failure> {
    let file = if cluster.is_dir() { cluster.join("cluster.toml") } else { cluster.to_path_buf() };
    if !config::exists(&file)? {
        return Err(Failure::wrong("there is no cluster.toml here").at(file.display()).help(
            "name the cluster's cluster.toml, or a folder with it: --cluster PATH. It is all that is needed, and nothing in it is secret",
        ));
    }
    Ok(load_topology(&file)?)
}

fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    let file = File::open(path).map_err(|error| Failure::wrong(format!("the receipt cannot be read: {error}")).at(path.display()))?;
    let mut bytes = Vec::new();
    file.take(FRAME_BYTES_MAX as u64 + 1).read_to_end(&mut bytes).attempt("read the receipt", path.display())?;
    if bytes.len() > FRAME_BYTES_MAX {
        return Err(Failure::wrong("no receipt is so long").at(path.display()));
    }
    Ok(bytes)
}
