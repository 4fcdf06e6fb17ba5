//! `bezant backup`: takes, checks and restores copies of the whole database.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Instant;

use backup::chain::Chain;
use backup::{Error, Progress, Summary};
use bench::Meter;
use clap::{Args, Subcommand};
use client::{Client, Error as ClientError, Refusal};
use serde_json::json;
use types::{ClientId, Key};

use crate::as_of::written;
use crate::failure::{Done, Failure};
use crate::out;
use crate::statements::{Reach, connect_as};

/// So many prefixes are shown of what a client may read.
const PREFIXES_SHOWN_MAX: usize = 8;

/// Copies of the whole database.
#[derive(Debug, Subcommand)]
pub enum BackupCommand {
    /// Writes all rows of a running cluster, as they are now, to a file
    #[command(after_help = "Examples:\n\
        \x20 bezant backup take monday.backup --cluster bezant-data\n\
        \x20 bezant backup take tuesday.backup --since monday.backup\n\
        \x20 bezant backup take wednesday.backup --since monday.backup --since tuesday.backup\n\n\
        All rows are of one moment, and each is what enough replicas agree on; transactions go on meanwhile. The replicas keep what was there until it\n\
        is read, which takes room on their disks or in their memory. The file holds everything that the database held: keep it as you keep that.")]
    Take(TakeArgs),
    /// Checks that a backup is whole; with those of what has changed, that they follow one another. It asks nobody
    #[command(after_help = "Example:\n\
        \x20 bezant backup verify monday.backup tuesday.backup\n\n\
        Ends with exit code 2 when something is damaged, and says where.")]
    Verify(VerifyArgs),
    /// Writes what a backup holds into a running cluster that holds nothing, of whatever shape and engine, and reads it again
    #[command(after_help = "Example:\n\
        \x20 bezant init new --shards 2 && bezant up new\n\
        \x20 bezant backup restore monday.backup tuesday.backup --cluster new\n\n\
        Let nobody else write meanwhile. One that was cut short goes on with --over.")]
    Restore(RestoreArgs),
}

/// What to take.
#[derive(Args, Debug)]
pub struct TakeArgs {
    /// The file to write, which must not exist
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Write only what has changed since this backup; one that itself holds only changes needs those before it, too, the oldest first
    #[arg(long, value_name = "FILE")]
    since: Vec<PathBuf>,
    #[command(flatten)]
    reach: Reach,
}

/// What to check.
#[derive(Args, Debug)]
pub struct VerifyArgs {
    /// The backup; and those of what has changed since, in their order
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What to restore, and where.
#[derive(Args, Debug)]
pub struct RestoreArgs {
    /// The backup; and those of what has changed since, in their order
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Also into a cluster that holds part of the backup already
    #[arg(long)]
    over: bool,
    #[command(flatten)]
    reach: Reach,
}

/// Carries out `bezant backup`.
pub async fn run(command: &BackupCommand) -> Result<Done, Failure> {
    let begun = Instant::now();
    let meter = Meter::line();
    let progress: Progress<'_> = &|rows| meter.say(format!("{rows} rows"));
    let (done, summary, json) = match command {
        BackupCommand::Take(TakeArgs { file, since, reach }) => {
            if file.exists() {
                return Err(occupied(file));
            }
            let (client, who) = connect(reach).await?;
            let taken = match reads_the_past(&client).and_then(|()| reads_every_key(&client, who, "a backup")) {
                Ok(()) => backup::take(&client, file, since, progress).await.map_err(Failure::from),
                Err(failure) => Err(failure),
            };
            client.close().await;
            ("taken", taken?, reach.json)
        }
        BackupCommand::Verify(VerifyArgs { files, json }) => ("whole", Chain::open(files)?.finish()?, *json),
        BackupCommand::Restore(RestoreArgs { files, over, reach }) => {
            let (client, who) = connect(reach).await?;
            let restored = match reads_every_key(&client, who, "restoring") {
                Ok(()) => backup::restore(&client, files, *over, progress).await.map_err(Failure::from),
                Err(failure) => Err(failure),
            };
            client.close().await;
            ("restored", restored?.backup, reach.json)
        }
    };
    meter.finish();
    let Summary { as_of, rows, rows_written, content } = summary;
    if json {
        out!("{}", json!({"done": done, "as_of_ns": as_of, "rows": rows, "rows_in_file": rows_written, "content": content}));
    } else {
        let seconds = begun.elapsed().as_secs_f64();
        out!("{done}: {rows} rows as of {} ({rows_written} in the last file), content {content}, in {seconds:.1} s", written(as_of));
    }
    Ok(Done::Well)
}

/// Connects; gives who it is, too.
async fn connect(reach: &Reach) -> Result<(Client, ClientId), Failure> {
    let config = reach.regions.config(&reach.cluster)?;
    let who = config.client;
    Ok((connect_as(config).await?, who))
}

/// Whether the engine keeps what backups are taken from.
fn reads_the_past(client: &Client) -> Result<(), Failure> {
    if client.capabilities().as_of {
        return Ok(());
    }
    Err(Failure::wrong("this cluster's engine does not keep the past, from which backups are taken").help(
        "to copy what it holds, stop writing and read it, range by range, with `bezant scan LOW HIGH --limit N`; a cluster whose engine reads the past can be backed up while it runs",
    ))
}

/// Whether `who` may read all that there may be, by the newest configuration that is known; if not, says what it may.
fn reads_every_key(client: &Client, who: ClientId, what: &str) -> Result<(), Failure> {
    let cluster = client.cluster();
    // Only the empty prefix has the key of no bytes.
    if cluster.permission(who).is_some_and(|permission| permission.may_read(&Key::default())) {
        return Ok(());
    }
    let prefixes = cluster.permission(who).map(|permission| permission.read_prefixes.as_slice()).unwrap_or_default();
    let shown: Vec<String> = prefixes.iter().take(PREFIXES_SHOWN_MAX).map(ToString::to_string).collect();
    let more = if prefixes.len() > PREFIXES_SHOWN_MAX { ", …" } else { "" };
    let rule = if shown.is_empty() { "nothing".to_owned() } else { format!("keys that begin with {}{more}", shown.join(", ")) };
    Err(Failure::wrong(format!("{what} needs a client that may read every key; {who} may read {rule}"))
        .help("use another client's folder (--cluster), or have operators give it the right"))
}

fn occupied(file: &Path) -> Failure {
    Failure::wrong("this file exists already, and may be another backup")
        .at(file.display())
        .help("name another file, or remove this one if nobody needs it")
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let said = error.to_string();
        match error {
            Error::Client(ClientError::Refused(Refusal::NotKept { .. })) => Self::wrong(said)
                .help("too few replicas still have what was there when it began, as after some were started again: take it again"),
            Error::Client(ClientError::Refused(Refusal::NotHeld)) => Self::wrong(said)
                .help("take one backup at a time, and while less is written: replicas hold the moment until what was changed after it takes too much memory"),
            Error::Client(ClientError::Conflict) => Self::failed(said)
                .help("transactions over several shards were in the way all the time: take it while there are fewer of them"),
            Error::Client(error) => error.into(),
            Error::File { path, error } if error.kind() == ErrorKind::AlreadyExists => occupied(&path),
            Error::File { error, .. } if error.kind() == ErrorKind::NotFound => Self::wrong(said),
            Error::File { .. } => Self::failed(said),
            Error::Damaged { .. } | Error::Chain(_) => Self::wrong(said),
            Error::NotEmpty(_) => {
                Self::wrong(said).help("restore into a new cluster; or say --over, and rows that the backup has not stay")
            }
            Error::Differs { .. } => Self::failed(said).help("somebody else wrote, or the cluster held rows before"),
        }
    }
}
