//! The commands of four letters, with which operators and monitoring ask a server how it is.

use std::fmt::Write as _;

use crate::server::{ConnectionId, Outbox, Server};

/// Which version's protocol this is, as those want to know who choose by it what they may ask.
const VERSION: &str = concat!("3.9.5-bezant-", env!("CARGO_PKG_VERSION"));
/// The commands.
const WORDS: [&str; 11] = ["ruok", "srvr", "stat", "mntr", "cons", "conf", "envi", "isro", "wchs", "hash", "dump"];

impl Server {
    /// Whether these four bytes, where a frame's length should be, are a command.
    #[must_use]
    pub fn is_word(bytes: [u8; 4]) -> bool {
        WORDS.iter().any(|word| word.as_bytes() == bytes)
    }

    /// Answers a command, and closes the connection.
    pub(crate) fn word(&mut self, connection: ConnectionId, word: [u8; 4], outbox: &mut Outbox) {
        let name = String::from_utf8_lossy(&word).into_owned();
        let is_allowed = self.settings.words.as_ref().is_none_or(|words| words.contains(&name));
        let text = match (&self.corruption, name.as_str()) {
            _ if !is_allowed => format!("{name} is not executed because it is not in the whitelist.\n"),
            (Some(_), "mntr" | "conf" | "hash" | "envi") | (None, _) => self.answer_word(&name),
            (Some(corruption), _) => format!("This ZooKeeper instance is not currently serving requests: {corruption}\n"),
        };
        outbox.bytes.entry(connection).or_default().extend_from_slice(text.as_bytes());
        outbox.close.insert(connection);
    }

    fn answer_word(&self, name: &str) -> String {
        match name {
            "ruok" => "imok".to_owned(),
            "isro" => "rw".to_owned(),
            "srvr" => self.summary(),
            "stat" => format!("Clients:\n{}\n{}", self.clients(), self.summary()),
            "cons" => self.clients(),
            "mntr" => self.monitored(),
            "conf" => self.settings.configuration.iter().map(|(key, value)| format!("{key}={value}\n")).collect(),
            "envi" => format!("Environment:\nzookeeper.version={VERSION}\n"),
            "wchs" => {
                let (connections, paths, watches) = self.watches.counts();
                format!("{connections} connections watching {paths} paths\nTotal watches:{watches}\n")
            }
            "hash" => self.state.digest_log().map(|(zxid, checksum)| format!("{zxid:#x}: {checksum}\n")).collect(),
            "dump" => self.sessions(),
            _ => String::new(),
        }
    }

    fn summary(&self) -> String {
        format!(
            "Zookeeper version: {VERSION}\nReceived: {}\nSent: {}\nConnections: {}\nOutstanding: {}\nZxid: {:#x}\nMode: standalone\nNode count: {}\n",
            self.statistics.received,
            self.statistics.sent,
            self.connections.len(),
            self.preparer.outstanding(),
            self.state.zxid,
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
        let mut out = format!("Sessions with Ephemerals ({}):\n", self.state.ephemerals.len());
        for (session, ephemerals) in &self.state.ephemerals {
            let _ = writeln!(out, "{session:#x}:");
            for path in &ephemerals.paths {
                let _ = writeln!(out, "\t{path}");
            }
        }
        out
    }

    fn monitored(&self) -> String {
        let (_, _, watches) = self.watches.counts();
        let ephemerals: usize = self.state.ephemerals.values().map(|ephemerals| ephemerals.paths.len()).sum();
        let statistics = &self.statistics;
        let lines: [(&str, String); 15] = [
            ("version", VERSION.to_owned()),
            ("server_state", "standalone".to_owned()),
            ("packets_received", statistics.received.to_string()),
            ("packets_sent", statistics.sent.to_string()),
            ("num_alive_connections", self.connections.len().to_string()),
            ("znode_count", self.state.node_count().to_string()),
            ("watch_count", watches.to_string()),
            ("ephemerals_count", ephemerals.to_string()),
            ("global_sessions", self.state.sessions.len().to_string()),
            ("approximate_data_size", self.state.data_bytes.to_string()),
            ("stale_sessions_expired", statistics.expired.to_string()),
            ("digest_profile", self.state.profile().name().to_owned()),
            ("digest", self.state.checksum().to_string()),
            ("digest_mismatches_count", usize::from(self.corruption.is_some()).to_string()),
            ("shards_scrubbed", statistics.shards_scrubbed.to_string()),
        ];
        lines.iter().map(|(name, value)| format!("zk_{name}\t{value}\n")).collect()
    }
}
