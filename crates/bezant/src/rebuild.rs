//! `bezant rebuild`: a replica that lost its disk, or whose disk is damaged, begins anew and takes its data over from the others.

use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;
use config::NodeConfig;
use monitoring::http_client;
use serde_json::Value;
use store::StoreError;

use crate::failure::{Attempt as _, Done, Failure};
use crate::init;
use crate::node;
use crate::status;

/// Lets a replica whose data are lost or damaged begin anew
///
/// Puts an empty store in the place of the data, marked as that of a replica to be rebuilt. Once it is started, the replica takes over what the others
/// hold, and is silent until it cannot contradict what it said before. What is left of the old data is kept beside the new.
#[derive(Args, Debug)]
pub struct RebuildArgs {
    /// The replica's folder, with its identity and its keys
    #[arg(value_name = "DIR/sN-rM")]
    folder: PathBuf,
    /// Also where the data can be read: the replica then forgets its votes and what only it may have, and counts as faulty until it is rebuilt
    #[arg(long)]
    force: bool,
}

/// Carries out `bezant rebuild`.
pub async fn run(args: &RebuildArgs) -> Result<Done, Failure> {
    let config = NodeConfig::load(&args.folder, bezant_client::ENGINES)?;
    let (replica, data) = (config.replica, config.data.clone());
    refuse_too_many(&config).await?;
    let is_forced = args.force;
    let begun = tokio::task::spawn_blocking(move || {
        match node::check_data(&config) {
            Ok(()) | Err(StoreError::Io { .. } | StoreError::Closed(_)) if is_forced => {}
            found => refuse_sound(&config, found)?,
        }
        begin_anew(&config)
    });
    let kept = begun.await.attempt("rebuild", data.display())??;
    eprintln!("{replica} begins with an empty store in {}", data.display());
    if let Some(kept) = kept {
        eprintln!("what was there is kept in {}: remove it when {replica} serves", kept.display());
    }
    eprintln!("start it as ever, with `bezant up` or `bezant node`; `bezant status` shows how far it is");
    Ok(Done::Well)
}

/// No more than `f` of a shard may be rebuilt at a time. Who cannot be asked is only warned of: it may be there for all others.
async fn refuse_too_many(config: &NodeConfig) -> Result<(), Failure> {
    let faults = config.topology.cluster.faults();
    let (mut rebuilding, mut down) = (Vec::new(), Vec::new());
    let others = config.topology.endpoints.iter().filter(|(other, _)| other.shard == config.replica.shard && **other != config.replica);
    for (other, endpoint) in others {
        let answer = http_client::get(&endpoint.http, "/status").await;
        let status: Value = answer.ok().and_then(|body| serde_json::from_str(&body).ok()).unwrap_or_default();
        if !status::is_from(&status, config.topology.cluster.id(), *other) {
            down.push(other.to_string());
        } else if status::is_rebuilding(&status) {
            rebuilding.push(other.to_string());
        }
    }
    if rebuilding.len() >= faults {
        return Err(Failure::wrong(format!(
            "{} is being rebuilt, and no more than {faults} of a shard may be at a time",
            rebuilding.join(", ")
        ))
        .at(config.replica)
        .help("wait until `bezant status` shows that it serves"));
    }
    if rebuilding.len() + down.len() >= faults && !down.is_empty() {
        eprintln!(
            "warning: {} cannot be asked; no more than {faults} of a shard may be rebuilt, or have lost their data, at a time, and {} must answer",
            down.join(", "),
            (config.topology.engine.quorum)(faults) - 1
        );
    }
    Ok(())
}

/// Data that can be read are not thrown away by a slip.
fn refuse_sound(config: &NodeConfig, found: Result<(), StoreError>) -> Result<(), Failure> {
    let place = config.data.display();
    match found {
        Err(StoreError::Missing { .. } | StoreError::Corrupt { .. } | StoreError::Unused { .. }) => Ok(()),
        Ok(()) => Err(Failure::wrong(format!("the data of {} can be read: there is nothing to rebuild", config.replica))
            .at(place)
            .help("start it as ever; where a row turns out to be damaged while it runs, --force gives the data up")),
        Err(error @ StoreError::Io { .. }) => {
            Err(Failure::failed(error.to_string()).at(place).help("mend the disk; --force gives the data up"))
        }
        // Another owner's, another program's, or in use: nothing that rebuilding would mend.
        Err(error) => Err(Failure::failed(error.to_string()).at(place)),
    }
}

/// Moves aside what is left of the data, and puts an empty store with the mark in its place. A crash in between leaves no data, or the marked ones: never an empty
/// store without the mark.
fn begin_anew(config: &NodeConfig) -> Result<Option<PathBuf>, Failure> {
    let data = &config.data;
    let new = beside(data, "rebuilding");
    if new.exists() {
        fs::remove_dir_all(&new).attempt("remove what an earlier attempt left", new.display())?;
    }
    node::create_marked_data(config, &new).attempt("make the store", new.display())?;
    let is_empty = fs::read_dir(data).map_or(true, |mut entries| entries.next().is_none());
    let kept =
        (!is_empty).then(|| (1..u32::MAX).map(|number| beside(data, &format!("lost-{number}"))).find(|place| !place.exists())).flatten();
    if let Some(kept) = &kept {
        fs::rename(data, kept).attempt("move the old data aside", data.display())?;
    }
    fs::rename(&new, data).attempt("put the new store in its place", data.display())?;
    if let Some(folder) = data.parent() {
        init::sync(folder)?;
    }
    Ok(kept)
}

/// A place in the same folder, whose name tells what it is.
fn beside(data: &Path, what: &str) -> PathBuf {
    let mut name = data.file_name().unwrap_or_default().to_os_string();
    name.push(".");
    name.push(what);
    data.with_file_name(name)
}
