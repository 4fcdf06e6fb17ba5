//! The commands of four letters, with which operators and monitoring ask a server how it is.

use std::fmt::Write as _;

use crate::commands::VERSION;
use crate::server::{ConnectionId, Now, Outbox, Role, Server};

/// The commands.
const WORDS: [&str; 16] =
    ["ruok", "srvr", "stat", "mntr", "cons", "conf", "envi", "isro", "wchs", "wchc", "wchp", "hash", "dump", "dirs", "crst", "srst"];

impl Server {
    /// Whether these four bytes, where a frame's length should be, are a command.
    #[must_use]
    pub fn is_word(bytes: [u8; 4]) -> bool {
        WORDS.iter().any(|word| word.as_bytes() == bytes)
    }

    /// Whether the answer to this command shows what the shell has measured: only then it has to be measured.
    #[must_use]
    pub fn shows_measured(&self, word: [u8; 4]) -> bool {
        matches!(&word, b"mntr" | b"dirs") && self.allows(&String::from_utf8_lossy(&word))
    }

    fn allows(&self, word: &str) -> bool {
        self.settings.words.as_ref().is_none_or(|words| words.contains(word))
    }

    /// Answers a command, and closes the connection.
    pub(crate) fn word(&mut self, now: Now, connection: ConnectionId, word: [u8; 4], outbox: &mut Outbox) {
        let name = String::from_utf8_lossy(&word).into_owned();
        let is_allowed = self.allows(&name);
        let text = match (&self.corruption, name.as_str()) {
            _ if !is_allowed => format!("{name} is not executed because it is not in the whitelist.\n"),
            (None, _) if self.serves_nobody() && !matches!(&*name, "ruok" | "mntr" | "conf" | "hash" | "envi") => {
                let why = if self.role == Role::Looking { "it has no leader" } else { "its state was repaired, and is being compared" };
                format!("This ZooKeeper instance is not currently serving requests: {why}{}\n", self.repair_as_text())
            }
            (Some(_), "mntr" | "conf" | "hash" | "envi") | (None, _) => self.answer_word(now, &name),
            (Some(corruption), _) => {
                format!("This ZooKeeper instance is not currently serving requests: {corruption}{}\n", self.repair_as_text())
            }
        };
        outbox.bytes.entry(connection).or_default().extend_from_slice(text.as_bytes());
        outbox.close.insert(connection);
    }

    fn repair_as_text(&self) -> String {
        self.repair.as_ref().map_or_else(String::new, |repair| format!("; repair: {repair}"))
    }

    fn answer_word(&mut self, now: Now, name: &str) -> String {
        match name {
            "ruok" => "imok".to_owned(),
            "isro" => "rw".to_owned(),
            "srvr" => format!("Zookeeper version: {VERSION}\n{}", self.summary()),
            "stat" => format!("Zookeeper version: {VERSION}\nClients:\n{}\n{}", self.clients(), self.summary()),
            "cons" => self.clients(),
            "mntr" => self.monitored(now).iter().map(|(name, value)| format!("zk_{name}\t{value}\n")).collect(),
            "conf" => self.settings.configuration.iter().map(|(name, value)| format!("{name}={value}\n")).collect(),
            "envi" => {
                let lines = self.environment().into_iter().map(|(name, value)| format!("{name}={value}\n"));
                format!("Environment:\n{}", lines.collect::<String>())
            }
            "wchs" => {
                let (connections, paths, watches) = self.watches.counts();
                format!("{connections} connections watching {paths} paths\nTotal watches:{watches}\n")
            }
            "wchc" => self.watches_as_text(false),
            "wchp" => self.watches_as_text(true),
            "hash" => self.state.digest_log().map(|(zxid, checksum)| format!("{zxid:#x}: {checksum}\n")).collect(),
            "dump" => self.sessions(),
            "dirs" => {
                let sizes = self.command(now, "dirs").unwrap_or_default();
                sizes.iter().filter(|(name, _)| name.ends_with("_size")).map(|(name, value)| format!("{name}: {value}\n")).collect()
            }
            "crst" => {
                self.reset_connections();
                "Connection stats reset.\n".to_owned()
            }
            "srst" => {
                self.reset();
                "Server stats reset.\n".to_owned()
            }
            _ => String::new(),
        }
    }

    fn summary(&self) -> String {
        let latency = &self.statistics.latency;
        format!(
            "Latency min/avg/max: {}/{:.4}/{}\nReceived: {}\nSent: {}\nConnections: {}\nOutstanding: {}\nZxid: {:#x}\nMode: {}\nNode count: {}\n",
            latency.least_ms,
            latency.mean_ms(),
            latency.most_ms,
            self.statistics.received,
            self.statistics.sent,
            self.connections.len(),
            self.preparer.outstanding(),
            self.state.zxid,
            self.role(),
            self.state.node_count(),
        )
    }

    fn clients(&self) -> String {
        let line = |connection: &crate::server::Connection| {
            let session = connection.session.map_or_else(String::new, |session| format!(",sid={session:#x}"));
            let peer = &connection.peer;
            format!(" /{}:{}[1](queued=0,recved={},sent={}{session})\n", peer.address, peer.port, connection.received, connection.sent)
        };
        self.connections.values().map(line).collect()
    }

    fn sessions(&self) -> String {
        let mut out = format!("SessionTracker dump:\nSessions ({}):\n", self.state.sessions.len());
        for (session, in_ms) in self.expiry.ends() {
            let _ = writeln!(out, "\t{session:#x} is looked at after {in_ms} ms of uptime");
        }
        let _ = writeln!(out, "ephemeral nodes dump:\nSessions with Ephemerals ({}):", self.state.ephemerals.len());
        for (session, ephemerals) in &self.state.ephemerals {
            let _ = writeln!(out, "{session:#x}:");
            for path in &ephemerals.paths {
                let _ = writeln!(out, "\t{path}");
            }
        }
        out
    }
}
