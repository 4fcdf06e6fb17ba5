//! Drills: damage on purpose, so that operators see it noticed before it happens by itself. A server allows them where its file says
//! `bezant.drills=true`, and nowhere else.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use runtime::LogLimit;
use sentinel::Server;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::connection::DRILL;
use crate::limits::DRILL_BYTES_MAX;
use crate::storage::{LOG, Name, SNAPSHOTS};

/// What a server answers that allows no drills.
pub(crate) const NOT_ALLOWED: &str = "refused: this server allows no drills; its file would have to say bezant.drills=true";
/// How long a server may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// The log is damaged here at the latest: far into a file there may be what it held before it was used again.
const LOG_PLACE_MAX: usize = 16 << 10;

/// Carries out an order: what to damage, and the node, where it is a node's.
pub(crate) fn carry_out(server: &mut Server, [data, log]: &[PathBuf; 2], order: &str) -> Result<String, String> {
    let (what, path) = order.split_once(' ').unwrap_or((order, "/"));
    match what {
        "snapshot" => flip_snapshot(&data.join(SNAPSHOTS)),
        "log" => {
            let folder = log.join(LOG).join("journal");
            let mut names = files(&folder, |name| name.ends_with(".log"))?;
            // The newest part may be a file that was used before, and end anywhere in it.
            names.truncate(names.len().saturating_sub(1).max(1));
            flip(&folder, names, |used| (used / 4).min(LOG_PLACE_MAX))
        }
        "proposal" => Err("only the leader of several servers proposes".to_owned()),
        _ => {
            let damage = what.parse()?;
            server.damage(damage, path)?;
            Ok(format!("damaged: {what} at {path}"))
        }
    }
}

/// What is said to whoever ordered it.
pub(crate) fn answer(done: Result<String, String>) -> Vec<u8> {
    done.unwrap_or_else(|why| format!("refused: {why}")).into_bytes()
}

/// Notes in the log that there was a drill: of its text only what was to be damaged, and where that makes sense.
pub(crate) fn log(limit: &LogLimit, order: &str, done: &Result<String, String>) {
    let Some(left_out) = limit.admit(Instant::now()) else { return };
    let left_out = left_out.noted();
    match done {
        Ok(_) => tracing::warn!(what = order.split(' ').next(), left_out, "a drill damaged this server"),
        Err(_) => tracing::warn!(left_out, "a drill was refused"),
    }
}

/// Flips a bit in the newest snapshot; one that is not finished is never read.
fn flip_snapshot(folder: &Path) -> Result<String, String> {
    flip(folder, files(folder, |name| Name::parse(name).is_some())?, |used| used / 4 * 3)
}

/// The names of the files that are meant, in order.
fn files(folder: &Path, is_meant: impl Fn(&str) -> bool) -> Result<Vec<String>, String> {
    let failed = |error: io::Error| format!("{}: {error}", folder.display());
    let mut names: Vec<String> = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        names.extend(entry.map_err(failed)?.file_name().into_string().ok().filter(|name| is_meant(name)));
    }
    names.sort();
    Ok(names)
}

/// Flips a bit in the last of these files that has anything in it, at a `place` before the zeros that its end may be filled with.
fn flip(folder: &Path, names: Vec<String>, place: impl Fn(usize) -> usize) -> Result<String, String> {
    let failed = |error: io::Error| format!("{}: {error}", folder.display());
    for name in names.into_iter().rev() {
        let path = folder.join(name);
        let mut bytes = fs::read(&path).map_err(failed)?;
        let used = bytes.iter().rposition(|byte| *byte != 0).unwrap_or(0);
        if used > 64 {
            let place = place(used);
            bytes[place] ^= 1;
            fs::write(&path, bytes).map_err(failed)?;
            return Ok(format!("damaged: a bit of byte {place} of {}", path.display()));
        }
    }
    Err(format!("{} has no file with anything in it", folder.display()))
}

/// Asks the server at `address` (`host:port` of its client port) to damage itself, and gives its answer.
///
/// # Errors
/// When it cannot be asked.
pub async fn order_drill(address: &str, what: &str, path: &str) -> io::Result<String> {
    let order = format!("{what} {path}");
    if order.len() > DRILL_BYTES_MAX {
        return Err(io::Error::other("the path is too long"));
    }
    let exchange = async {
        let mut stream = TcpStream::connect(address).await?;
        let length = u32::try_from(order.len()).map_err(io::Error::other)?.to_be_bytes();
        stream.write_all(&[&DRILL[..], &length, order.as_bytes()].concat()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok(answer)
    };
    timeout(ANSWER_TIMEOUT, exchange).await.map_err(|_| io::Error::other("it does not answer in time"))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_snapshot_that_is_finished_is_damaged() {
        let folder = tempfile::tempdir().expect("room");
        for name in ["0000000000000001-00000001", "0000000100000009-00000002", "partial", "partial-taken", "record-partial"] {
            fs::write(folder.path().join(name), [7; 200]).expect("room");
        }
        let said = flip_snapshot(folder.path()).expect("there is one");
        assert!(said.ends_with("0000000100000009-00000002"), "{said}");
        assert_eq!(fs::read(folder.path().join("partial")).expect("it is there"), [7; 200]);
    }
}
