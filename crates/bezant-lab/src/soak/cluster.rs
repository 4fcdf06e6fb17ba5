//! The cluster that lives: its processes, what is done with them by commands of this program, and what they say of themselves.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value as Json;
use types::ReplicaId;

use bezant::failure::{Attempt as _, Failure};

/// How often something that is waited for is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(100);
const LOOKS_A_SECOND: u64 = 10;
/// How long a replica may take to answer how it is.
const ANSWER_MAX: Duration = Duration::from_secs(3);
/// The most of an answer that is read.
const ANSWER_BYTES_MAX: u64 = 4 << 20;
/// How many seconds `bezant up` waits for a replica that starts.
const START_SECONDS: &str = "180";
/// How many operators there are, of whom most sign every change.
const OPERATORS: [&str; 2] = ["operator", "operator-2"];

/// What a command said, and how it ended.
#[derive(Clone, Debug)]
pub struct Said {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Said {
    /// Its last word, for who reports that it failed.
    pub fn why(&self) -> String {
        let lines: Vec<&str> = self.err.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        let from = lines.iter().rposition(|line| line.starts_with("error:")).unwrap_or(lines.len().saturating_sub(1));
        lines[from..].join("; ")
    }
}

/// A cluster of six replicas in the folder `cluster` of what the run was given.
pub struct Cluster {
    program: PathBuf,
    folder: PathBuf,
    /// What every replica's folder is made with.
    settings: Vec<String>,
    stop: std::sync::Arc<AtomicBool>,
}

impl Cluster {
    /// Makes and starts it.
    pub fn start(program: &Path, folder: &Path, settings: Vec<String>, stop: std::sync::Arc<AtomicBool>) -> Result<Self, Failure> {
        fs::create_dir_all(folder).attempt("make the folder", folder.display())?;
        let cluster = Self { program: program.to_owned(), folder: folder.to_owned(), settings, stop };
        let made = cluster.path("cluster");
        let mut words = vec!["init", &made, "--clients", "3", "--operators", "3", "--base-port", "auto"];
        words.extend(cluster.settings.iter().map(String::as_str));
        cluster.must(&words)?;
        cluster.up()?;
        Ok(cluster)
    }

    /// A place in the run's folder.
    pub fn path(&self, name: &str) -> String {
        self.folder.join(name).display().to_string()
    }

    /// The folder of a member.
    pub fn member(&self, name: &str) -> PathBuf {
        self.folder.join("cluster").join(name)
    }

    /// What every replica's folder is made with.
    pub fn settings(&self) -> impl Iterator<Item = &str> {
        self.settings.iter().map(String::as_str)
    }

    /// A command of this program.
    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(words).stdin(Stdio::null());
        command
    }

    /// Runs a command of this program to its end.
    pub fn run(&self, words: &[&str]) -> Result<Said, Failure> {
        let output = self.command(words).output().attempt("run", format!("bezant-lab {}", words.join(" ")))?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ok(Said { code: output.status.code(), out: text(&output.stdout), err: text(&output.stderr) })
    }

    /// The same of one that must succeed.
    pub fn must(&self, words: &[&str]) -> Result<Said, Failure> {
        let said = self.run(words)?;
        match said.code {
            Some(0) => Ok(said),
            _ => Err(Failure::failed(said.why()).at(format!("bezant-lab {}", words.join(" ")))),
        }
    }

    /// Starts every replica that does not run.
    pub fn up(&self) -> Result<(), Failure> {
        self.must(&["up", &self.path("cluster"), "--seconds", START_SECONDS]).map(drop)
    }

    /// Stops all replicas.
    pub fn down(&self) -> Result<(), Failure> {
        self.must(&["down", &self.path("cluster")]).map(drop)
    }

    /// The replicas, and where each answers how it is.
    pub fn replicas(&self) -> Result<BTreeMap<ReplicaId, String>, Failure> {
        let topology = bezant_client::load(self.folder.join("cluster"))?.topology;
        Ok(topology.endpoints.iter().map(|(replica, endpoint)| (*replica, endpoint.http.clone())).collect())
    }

    /// The process of a replica, as `up` noted it.
    pub fn pid(&self, replica: ReplicaId) -> Option<Pid> {
        let note = self.folder.join("cluster").join("run").join(format!("{replica}.pid"));
        fs::read_to_string(note).ok()?.trim().parse().ok().and_then(Pid::from_raw)
    }

    /// Sends a replica's process a signal, and waits for its end.
    pub fn end(&self, replica: ReplicaId, signal: Signal) -> Result<(), Failure> {
        let pid = self.pid(replica).ok_or_else(|| Failure::failed("no process is noted").at(replica))?;
        kill_process(pid, signal).attempt("stop the process of", replica)?;
        self.has_ended(replica)
    }

    /// Waits for the end of a replica's process.
    pub fn has_ended(&self, replica: ReplicaId) -> Result<(), Failure> {
        let pid = self.pid(replica);
        self.wait("its process has ended", replica, 60, || pid.is_none_or(|pid| !runs(pid)))
    }

    /// Waits until `is_so`, for so many seconds in which this process ran: where everything is paused for a while, that does not count.
    pub fn wait(&self, what: &str, of: ReplicaId, seconds: u64, mut is_so: impl FnMut() -> bool) -> Result<(), Failure> {
        for _ in 0..seconds * LOOKS_A_SECOND {
            if is_so() {
                return Ok(());
            }
            self.check_stop()?;
            sleep(LOOK_EVERY);
        }
        Err(Failure::failed(format!("not within {seconds} s: {what}")).at(of))
    }

    /// Lets so much time pass.
    pub fn pause(&self, milliseconds: u64) -> Result<(), Failure> {
        for _ in 0..milliseconds.div_ceil(LOOK_EVERY.as_millis() as u64) {
            self.check_stop()?;
            sleep(LOOK_EVERY);
        }
        Ok(())
    }

    /// What a replica says of itself; nothing where it does not answer, or somebody else does.
    pub fn status(&self, replica: ReplicaId, http: &str) -> Option<Json> {
        let status: Json = serde_json::from_str(&ask(http, "/status").ok()?).ok()?;
        let is_it = status["replica"] == replica.to_string()
            && status["pid"].as_i64() == self.pid(replica).map(|pid| pid.as_raw_nonzero().get().into());
        is_it.then_some(status)
    }

    /// Whether a replica does all that it is for, and lacks nothing that the others have.
    pub fn is_whole(&self, replica: ReplicaId, http: &str) -> bool {
        self.status(replica, http).is_some_and(|status| status["state"] == "serving" && status["catch_up"]["behind"] == 0)
    }

    /// Changes the cluster's configuration: `edit` makes of what `config show` prints what is to be. Most operators sign.
    pub fn change(&self, edit: impl FnOnce(&str) -> Result<String, Failure>) -> Result<(), Failure> {
        let place = self.path("cluster");
        let (next, proposal) = (self.path("next.toml"), self.path("next.proposal"));
        let shown = self.must(&["config", "show", "--cluster", &place])?.out;
        fs::write(&next, edit(&shown)?).attempt("write the file", &next)?;
        // The last one, if there was one: it is applied.
        let _ = fs::remove_file(&proposal);
        self.must(&["config", "propose", &next, "--out", &proposal, "--cluster", &place])?;
        for operator in OPERATORS {
            let key = self.member(operator).display().to_string();
            self.must(&["config", "sign", &proposal, "--key", &key, "--cluster", &place])?;
        }
        self.apply(&proposal)
    }

    /// What is signed has to be applied: an operator's key signs no other of that version.
    fn apply(&self, proposal: &str) -> Result<(), Failure> {
        const TRIES_MAX: usize = 60;
        let mut last = None;
        for _ in 0..TRIES_MAX {
            let said = self.run(&["config", "apply", proposal, "--cluster", &self.path("cluster")])?;
            if said.code == Some(0) {
                return Ok(());
            }
            last = Some(said.why());
            self.pause(1_000)?;
        }
        Err(Failure::failed(last.unwrap_or_default()).at("bezant-lab config apply"))
    }

    /// Draws a key; gives its folder and its public half.
    pub fn draw_key(&self, name: &str, owner: &[&str]) -> Result<(String, String), Failure> {
        let folder = self.path(&format!("keys/{name}"));
        let card = self.must(&[&["key", "new", &folder], owner].concat())?.out;
        let public = card.split_whitespace().last().unwrap_or_default().to_owned();
        Ok((folder, public))
    }

    fn check_stop(&self) -> Result<(), Failure> {
        if self.stop.load(Ordering::Relaxed) { Err(Failure::failed("stopped")) } else { Ok(()) }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if let Err(failure) = self.down() {
            eprintln!("{failure}");
        }
    }
}

/// What answers at an address to `GET path`.
fn ask(http: &str, path: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(http)?;
    stream.set_read_timeout(Some(ANSWER_MAX))?;
    stream.set_write_timeout(Some(ANSWER_MAX))?;
    stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n").as_bytes())?;
    let mut answer = String::new();
    stream.take(ANSWER_BYTES_MAX).read_to_string(&mut answer)?;
    answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).ok_or_else(|| std::io::ErrorKind::InvalidData.into())
}

/// Whether this process runs: one that has ended may wait for its parent to notice.
fn runs(pid: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, fields)| !fields.trim_start().starts_with(['Z', 'X']))
}

/// The text of a configuration in which the entry that has the line `of` has this `value`, instead of what it had or anew.
pub fn with_field(text: &str, of: &str, field: &str, value: &str) -> Result<String, Failure> {
    let begin = format!("{field} = ");
    let mut blocks: Vec<Vec<&str>> = vec![Vec::new()];
    for line in text.lines() {
        if line.starts_with("[[") {
            blocks.push(Vec::new());
        }
        blocks.last_mut().expect("there is one").push(line);
    }
    let block = blocks.iter_mut().find(|block| block.contains(&of)).ok_or_else(|| Failure::failed(format!("no entry has {of}")))?;
    let new = format!("{begin}{value}");
    match block.iter_mut().find(|line| line.starts_with(&begin)) {
        Some(line) => *line = &new,
        None => {
            let at = block.iter().position(|line| *line == of).map_or(0, |at| at + 1);
            block.insert(at, &new);
        }
    }
    Ok(blocks.concat().join("\n") + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_field_of_one_entry_is_changed() {
        let text = "a = 1\n\n[[replica]]\nname = \"s0-r0\"\nkey = \"x\"\n\n[[replica]]\nname = \"s0-r1\"\nkey = \"y\"\n";
        let changed = with_field(text, "name = \"s0-r1\"", "key", "\"z\"").expect("it is there");
        assert_eq!(changed, text.replace("\"y\"", "\"z\""));
        let added = with_field(text, "name = \"s0-r0\"", "more", "2").expect("it is there");
        assert_eq!(added, text.replace("\"s0-r0\"\n", "\"s0-r0\"\nmore = 2\n"));
        assert!(with_field(text, "name = \"s0-r9\"", "key", "1").is_err());
    }

    #[test]
    fn the_last_error_is_what_a_command_is_said_to_have_failed_for() {
        let said = Said { code: Some(3), out: String::new(), err: "a warning\nerror: it cannot\n  at: a place\n".to_owned() };
        assert_eq!(said.why(), "error: it cannot; at: a place");
        assert_eq!(Said { err: String::new(), ..said }.why(), "");
    }
}
