//! `bezant rebuild`: a replica that lost its disk, or whose disk is damaged, begins anew and takes its data over from the others.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use config::NodeConfig;
use monitoring::http_client;
use serde_json::Value;
use store::{Disk, StoreError};

use crate::failure::{Attempt as _, Done, Failure};
use crate::init;
use crate::node;
use crate::status;
use crate::tell;

/// How often a replica that starts asks whether enough others serve, and how long it waits in between.
const ASKED_AT_START: usize = 10;
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// What data are called that a replica had before it began anew: the first of them with the number 1.
const LOST: &str = "lost-";

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
            Ok(()) | Err(StoreError::Io { .. } | StoreError::RowsDamaged { .. } | StoreError::Closed(_)) if is_forced => {}
            found => refuse_sound(&config, found)?,
        }
        begin_anew(&config)
    });
    let kept = begun.await.attempt("rebuild", data.display())??;
    tell!("{replica} begins with an empty store in {}", data.display());
    if let Some(kept) = kept {
        tell!("what was there is kept in {}: remove it when {replica} serves", kept.display());
    }
    tell!("start it as ever, with `bezant up` or `bezant node`; `bezant status` shows how far it is");
    Ok(Done::Well)
}

/// No more than `f` of a shard may be rebuilt at a time. Who cannot be asked is only warned of: it may be there for all others.
async fn refuse_too_many(config: &NodeConfig) -> Result<(), Failure> {
    let faults = config.topology.cluster.faults();
    let Others { rebuilding, down } = Others::ask(config).await;
    if rebuilding.len() >= faults {
        return Err(Failure::wrong(format!(
            "{} is being rebuilt, and no more than {faults} of a shard may be at a time",
            rebuilding.join(", ")
        ))
        .at(config.replica)
        .help("wait until `bezant status` shows that it serves"));
    }
    if rebuilding.len() + down.len() >= faults && !down.is_empty() {
        tell!(
            "warning: {} cannot be asked, or does not serve; no more than {faults} of a shard may be rebuilt, or have lost their data, at a time, and {} must answer",
            down.join(", "),
            (config.topology.engine.quorum)(faults) - 1
        );
    }
    Ok(())
}

/// Who of the others of the shard does not serve.
struct Others {
    rebuilding: Vec<String>,
    down: Vec<String>,
}

impl Others {
    async fn ask(config: &NodeConfig) -> Self {
        let mut asked = Self { rebuilding: Vec::new(), down: Vec::new() };
        let others = config.topology.endpoints.iter().filter(|(other, _)| other.shard == config.replica.shard && **other != config.replica);
        let ask = |(other, http): (_, String)| (other, tokio::spawn(async move { http_client::get(&http, "/status").await }));
        let answers: Vec<_> = others.map(|(other, endpoint)| (other, endpoint.http.clone())).map(ask).collect();
        for (other, answer) in answers {
            let body = answer.await.ok().and_then(Result::ok);
            let status: Value = body.and_then(|body| serde_json::from_str(&body).ok()).unwrap_or_default();
            let is_there = status::is_from(&status, config.topology.cluster.id(), *other);
            if is_there && status::is_rebuilding(&status) {
                asked.rebuilding.push(other.to_string());
            } else if !is_there || !status::serves(&status) {
                // One that is just starting may find that it has lost something, too.
                asked.down.push(other.to_string());
            }
        }
        asked
    }
}

/// Whether the others of the shard serve, so that they make up for what a replica that starts has lost. It is silent meanwhile, and so are others that do the
/// same: all of them together are to be no more than `f` of the shard.
///
/// # Errors
/// Who does not serve, when that is `f` others or more.
async fn others_serve(config: &NodeConfig) -> Result<(), String> {
    let mut absent = Vec::new();
    // Others may have been started along with it.
    for _ in 0..ASKED_AT_START {
        let Others { rebuilding, down } = Others::ask(config).await;
        absent = [rebuilding, down].concat();
        if absent.len() < config.topology.cluster.faults() {
            return Ok(());
        }
        tokio::time::sleep(ASK_AGAIN).await;
    }
    Err(absent.join(", "))
}

/// Whether a replica that could not read some of its rows may give them up, and take them over from the others.
pub async fn may_give_up_rows(config: &NodeConfig) -> bool {
    let served = others_serve(config).await;
    match &served {
        Ok(()) => tracing::info!("an earlier process could not read some rows: all are looked at, and what cannot be read is given up"),
        Err(absent) => tracing::warn!(
            absent,
            "an earlier process could not read some rows, and too many others do not serve to make up for them: start it again once they do"
        ),
    }
    served.is_ok()
}

/// Lets a replica whose journal is damaged begin anew, if the others make up for what is lost: `false` where it is not damaged, or they do not. It does so once: where
/// earlier data are kept beside it, somebody has to look at the disk first.
pub async fn begin_anew_if_damaged(config: &NodeConfig) -> Result<bool, Failure> {
    let config = NodeConfig::load(&config.folder, bezant_client::ENGINES)?;
    let replica = config.replica;
    let (config, checked) = tokio::task::spawn_blocking(move || {
        let checked = node::check_data(&config);
        (config, checked)
    })
    .await
    .attempt("read", "the data")?;
    let Err(damage @ StoreError::Corrupt { .. }) = checked else { return Ok(false) };
    let kept = beside(&config.data, &format!("{LOST}1"));
    if kept.exists() {
        let kept = kept.display();
        tracing::error!(%replica, %kept, "its data are damaged, and were before: see to the disk, remove what was kept, and start it again");
        return Ok(false);
    }
    if let Err(absent) = others_serve(&config).await {
        tracing::error!(%replica, absent, "its data are damaged, and too many others do not serve to make up for them: start it again once they do");
        return Ok(false);
    }
    tracing::error!(%replica, %damage, "its data are damaged: it begins with an empty store, is silent until it has taken over what the others hold, and keeps what was there");
    tokio::task::spawn_blocking(move || begin_anew(&config)).await.attempt("begin anew with", "an empty store")??;
    Ok(true)
}

/// Data that can be read are not thrown away by a slip.
fn refuse_sound(config: &NodeConfig, found: Result<(), StoreError>) -> Result<(), Failure> {
    let place = config.data.display();
    let makes_up_for_rows = node::makes_up_for_rows(config.topology.engine);
    match found {
        Err(StoreError::Missing { .. } | StoreError::Corrupt { .. } | StoreError::Unused { .. }) => Ok(()),
        // Its journal is read here, and no rows; whoever ran has noted what it came to.
        Err(StoreError::RowsDamaged { .. }) if !makes_up_for_rows => Ok(()),
        Ok(()) if !makes_up_for_rows && Disk::has_damaged_rows(&config.data).unwrap_or(false) => Ok(()),
        Err(error @ StoreError::RowsDamaged { .. }) => Err(Failure::wrong(error.to_string())
            .at(place)
            .help("start it as ever: it gives up what cannot be read, and nothing else; --force gives all up, its votes too")),
        Ok(()) => Err(Failure::wrong(format!("the data of {} can be read: there is nothing to rebuild", config.replica))
            .at(place)
            .help("start it as ever; --force gives up all of them all the same, as where they are an older copy")),
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
    node::carry_over(data, &new).attempt("write", new.display())?;
    let is_empty = fs::read_dir(data).map_or(true, |mut entries| entries.next().is_none());
    let kept =
        (!is_empty).then(|| (1..u32::MAX).map(|number| beside(data, &format!("{LOST}{number}"))).find(|place| !place.exists())).flatten();
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
