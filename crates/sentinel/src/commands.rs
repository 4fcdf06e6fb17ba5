//! What operators and monitoring ask a server, as values with names: the commands of ZooKeeper's admin server. The commands of four
//! letters say the same as text ([`crate::words`]).

use crate::limits::LISTED_MAX;
use crate::server::{Connection, Now, Role, Server};
use crate::statistics::{Latency, Statistics};

/// Which version's protocol this is, as those want to know who choose by it what they may ask.
pub(crate) const VERSION: &str = concat!("3.9.5-bezant-", env!("CARGO_PKG_VERSION"));

/// A value of an answer.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "each says what it is")]
pub enum Value {
    Nothing,
    Text(String),
    Integer(i64),
    Decimal(f64),
    Flag(bool),
    List(Vec<Value>),
    Map(Fields),
}

/// Values with their names, in the order in which they are shown.
pub type Fields = Vec<(String, Value)>;

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<i64> for Value {
    fn from(number: i64) -> Self {
        Self::Integer(number)
    }
}

impl From<i32> for Value {
    fn from(number: i32) -> Self {
        Self::Integer(number.into())
    }
}

impl From<u64> for Value {
    fn from(number: u64) -> Self {
        Self::Integer(i64::try_from(number).unwrap_or(i64::MAX))
    }
}

impl From<usize> for Value {
    fn from(number: usize) -> Self {
        Self::Integer(i64::try_from(number).unwrap_or(i64::MAX))
    }
}

impl From<bool> for Value {
    fn from(flag: bool) -> Self {
        Self::Flag(flag)
    }
}

impl From<f64> for Value {
    fn from(number: f64) -> Self {
        Self::Decimal(number)
    }
}

impl std::fmt::Display for Value {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Text(text) => formatter.write_str(text),
            Self::Integer(number) => write!(formatter, "{number}"),
            Self::Decimal(number) => write!(formatter, "{number:.4}"),
            Self::Flag(flag) => write!(formatter, "{flag}"),
            Self::Nothing | Self::List(_) | Self::Map(_) => Ok(()),
        }
    }
}

fn field(name: &str, value: impl Into<Value>) -> (String, Value) {
    (name.to_owned(), value.into())
}

/// The commands' names, each with the other names that it has.
const COMMANDS: [&[&str]; 20] = [
    &["configuration", "conf", "config"],
    &["connection_stat_reset", "crst"],
    &["connections", "cons"],
    &["dirs"],
    &["dump"],
    &["environment", "env", "envi"],
    &["hash"],
    &["is_read_only", "isro"],
    &["leader", "lead"],
    &["monitor", "mntr"],
    &["observers", "obsr"],
    &["ruok"],
    &["server_stats", "srvr"],
    &["stat_reset", "srst"],
    &["stats", "stat"],
    &["voting_view"],
    &["watch_summary", "wchs"],
    &["watches", "wchc"],
    &["watches_by_path", "wchp"],
    &["zabstate"],
];

impl Server {
    /// The names of all commands.
    pub fn commands() -> impl Iterator<Item = &'static str> {
        COMMANDS.iter().map(|names| names[0])
    }

    /// Answers a command of an operator; nothing when there is none of this name.
    pub fn command(&mut self, now: Now, name: &str) -> Option<Fields> {
        let name = COMMANDS.iter().find(|names| names.contains(&name))?[0];
        let is_about_damage = matches!(name, "monitor" | "configuration" | "hash" | "environment");
        let error =
            self.corruption.as_ref().filter(|_| !is_about_damage).map(|corruption| format!("this server serves nobody: {corruption}"));
        let is_looking = self.role == Role::Looking && !is_about_damage && name != "ruok";
        let error = error.or_else(|| is_looking.then(|| "this server has no leader, and serves nobody".to_owned()));
        let mut fields = if error.is_some() { Fields::new() } else { self.answer_command(now, name) };
        fields.push(field("command", name));
        fields.push(("error".to_owned(), error.map_or(Value::Nothing, Value::Text)));
        Some(fields)
    }

    fn answer_command(&mut self, now: Now, name: &str) -> Fields {
        match name {
            "configuration" => self.settings.configuration.iter().map(|(name, value)| (snake(name), typed(value))).collect(),
            "connection_stat_reset" => {
                self.reset_connections();
                Fields::new()
            }
            "stat_reset" => {
                self.reset();
                Fields::new()
            }
            "connections" => self.listed_connections(),
            "dirs" => ["datadir_size", "logdir_size"].iter().map(|name| field(name, self.measured(name).unwrap_or(0))).collect(),
            "dump" => self.dumped(),
            "environment" => self.environment().into_iter().map(|(name, value)| field(name, value)).collect(),
            "hash" => self.digests(),
            "is_read_only" => vec![field("read_only", false)],
            "leader" => vec![field("is_leader", self.prepares())],
            "monitor" => self.monitored(now),
            "observers" => vec![field("synced_observers", 0), ("observers".to_owned(), Value::List(Vec::new()))],
            "server_stats" => self.server_stats(now),
            "stats" => self.server_stats(now).into_iter().chain(self.listed_connections()).collect(),
            "voting_view" => vec![("current_config".to_owned(), Value::Map(Fields::new()))],
            "watch_summary" => {
                let (connections, paths, watches) = self.watches.counts();
                vec![field("num_connections", connections), field("num_paths", paths), field("num_total_watches", watches)]
            }
            "watches" => vec![("session_id_to_watched_paths".to_owned(), Value::Map(self.watched_paths()))],
            "watches_by_path" => vec![("path_to_session_ids".to_owned(), Value::Map(self.watching_sessions()))],
            "zabstate" => vec![field("voting", false), field("zabstate", "")],
            _ => Fields::new(),
        }
    }

    /// What this server is among others.
    pub(crate) fn role(&self) -> &'static str {
        match self.role {
            Role::Alone => "standalone",
            Role::Looking => "looking",
            Role::Following { observes: false } => "follower",
            Role::Following { observes: true } => "observer",
            Role::Leading => "leader",
        }
    }

    pub(crate) fn reset(&mut self) {
        self.statistics =
            Statistics { expired: self.statistics.expired, shards_scrubbed: self.statistics.shards_scrubbed, ..Statistics::new() };
    }

    pub(crate) fn reset_connections(&mut self) {
        for connection in self.connections.values_mut() {
            (connection.received, connection.sent) = (0, 0);
        }
    }

    pub(crate) fn environment(&self) -> Vec<(&'static str, &'static str)> {
        vec![
            ("zookeeper.version", VERSION),
            ("bezant.version", env!("CARGO_PKG_VERSION")),
            ("os.name", std::env::consts::OS),
            ("os.arch", std::env::consts::ARCH),
        ]
    }

    /// A figure that the shell has measured.
    fn measured(&self, name: &str) -> Option<i64> {
        self.measured
            .iter()
            .find(|(known, _)| known == name)
            .and_then(|(_, value)| if let Value::Integer(value) = value { Some(*value) } else { None })
    }

    fn digests(&self) -> Fields {
        let entry = |(zxid, checksum): (i64, crate::Checksum)| Value::Map(vec![field("zxid", zxid), field("digest", checksum.to_string())]);
        vec![
            field("profile", self.state.profile().name()),
            field("last_zxid", self.state.zxid),
            field("digest", self.state.checksum().to_string()),
            ("digests".to_owned(), Value::List(self.state.digest_log().map(entry).collect())),
        ]
    }

    fn server_stats(&self, now: Now) -> Fields {
        let (statistics, latency) = (&self.statistics, &self.statistics.latency);
        let stats = vec![
            field("packets_sent", statistics.sent),
            field("packets_received", statistics.received),
            field("data_dir_size", self.measured("datadir_size").unwrap_or(0)),
            field("log_dir_size", self.measured("logdir_size").unwrap_or(0)),
            field("last_processed_zxid", self.state.zxid),
            field("outstanding_requests", self.preparer.outstanding() + self.forwarded.len()),
            field("server_state", self.role()),
            field("avg_latency", latency.mean_ms()),
            field("max_latency", latency.most_ms),
            field("min_latency", latency.least_ms),
            field("num_alive_client_connections", self.connections.len()),
            field("uptime", now.steady_ms),
            field("auth_failed_count", statistics.auth_failed),
            ("client_response_stats".to_owned(), Value::Map(self.response_sizes())),
        ];
        vec![
            field("version", VERSION),
            field("read_only", false),
            ("server_stats".to_owned(), Value::Map(stats)),
            ("client_response".to_owned(), Value::Map(self.response_sizes())),
            field("node_count", self.state.node_count()),
        ]
    }

    fn response_sizes(&self) -> Fields {
        let names = ["last_buffer_size", "min_buffer_size", "max_buffer_size"];
        names.iter().zip(self.statistics.reply_bytes).map(|(name, bytes)| field(name, bytes)).collect()
    }

    fn listed_connections(&self) -> Fields {
        let (secure, plain): (Vec<_>, Vec<_>) =
            self.connections.values().take(LISTED_MAX).partition(|known| known.peer.certificate.is_some());
        let list =
            |known: Vec<&Connection>| Value::List(known.into_iter().map(|known| Value::Map(self.listed_connection(known))).collect());
        vec![("connections".to_owned(), list(plain)), ("secure_connections".to_owned(), list(secure))]
    }

    fn listed_connection(&self, known: &Connection) -> Fields {
        let mut fields = vec![
            field("remote_socket_address", format!("{}:{}", known.peer.address, known.peer.port)),
            field("packets_received", known.received),
            field("packets_sent", known.sent),
        ];
        if let Some(session) = known.session {
            let timeout = self.state.sessions.get(&session).map_or(0, |session| session.timeout_ms);
            fields.extend([field("session_id", session), field("session_timeout", timeout)]);
        }
        fields.extend(known.peer.certificate.as_ref().map(|subject| field("certificate", subject.clone())));
        fields
    }

    fn dumped(&self) -> Fields {
        let expiries = self.expiry.ends().take(LISTED_MAX).map(|(session, in_ms)| (format!("{session:#x}"), Value::Integer(in_ms)));
        let ephemerals = self.state.ephemerals.iter().take(LISTED_MAX).map(|(session, ephemerals)| {
            let paths = ephemerals.paths.iter().take(LISTED_MAX).map(|path| Value::from(&**path));
            (format!("{session:#x}"), Value::List(paths.collect()))
        });
        vec![
            ("session_id_to_expiry_time".to_owned(), Value::Map(expiries.collect())),
            ("session_id_to_ephemeral_paths".to_owned(), Value::Map(ephemerals.collect())),
        ]
    }

    fn watched_paths(&self) -> Fields {
        let watched = self.watches.by_connection().filter_map(|(connection, paths)| {
            let session = self.connections.get(&connection)?.session?;
            let paths = paths.into_iter().take(LISTED_MAX).map(Value::from).collect();
            Some((format!("{session:#x}"), Value::List(paths)))
        });
        watched.take(LISTED_MAX).collect()
    }

    fn watching_sessions(&self) -> Fields {
        let session = |connection| self.connections.get(&connection)?.session;
        let watching = self.watches.by_path().into_iter().map(|(path, connections)| {
            let sessions = connections.into_iter().filter_map(session).map(|session| Value::from(format!("{session:#x}")));
            (path.to_owned(), Value::List(sessions.collect()))
        });
        watching.take(LISTED_MAX).collect()
    }

    /// Sessions' paths, or paths' sessions, as `wchc` and `wchp` say them.
    pub(crate) fn watches_as_text(&self, by_path: bool) -> String {
        let lists = if by_path { self.watching_sessions() } else { self.watched_paths() };
        let lines = lists.into_iter().map(|(name, list)| match list {
            Value::List(list) => format!("{name}\n{}", list.iter().map(|value| format!("\t{value}\n")).collect::<String>()),
            _ => String::new(),
        });
        lines.collect()
    }

    /// What monitoring reads: ZooKeeper's names wherever the thing is the same.
    pub(crate) fn monitored(&self, now: Now) -> Fields {
        let (_, _, watches) = self.watches.counts();
        let ephemerals: usize = self.state.ephemerals.values().map(|ephemerals| ephemerals.paths.len()).sum();
        let statistics = &self.statistics;
        let mut fields = vec![
            field("version", VERSION),
            field("server_state", self.role()),
            field("uptime", now.steady_ms),
            field("avg_latency", statistics.latency.mean_ms()),
            field("min_latency", statistics.latency.least_ms),
            field("max_latency", statistics.latency.most_ms),
            field("packets_received", statistics.received),
            field("packets_sent", statistics.sent),
            field("response_bytes", statistics.sent_bytes),
            field("last_client_response_size", statistics.reply_bytes[0]),
            field("min_client_response_size", statistics.reply_bytes[1]),
            field("max_client_response_size", statistics.reply_bytes[2]),
            field("num_alive_connections", self.connections.len()),
            field("connection_request_count", statistics.connected),
            field("auth_failed_count", statistics.auth_failed),
            field("outstanding_requests", self.preparer.outstanding() + self.forwarded.len()),
            field("znode_count", self.state.node_count()),
            field("watch_count", watches),
            field("ephemerals_count", ephemerals),
            field("global_sessions", self.state.sessions.len()),
            field("local_sessions", 0),
            field("approximate_data_size", self.state.data_bytes),
            field("stale_sessions_expired", statistics.expired),
            field("quotas", self.state.limited.len()),
            field("digest_profile", self.state.profile().name()),
            field("digest", self.state.checksum().to_string()),
            field("digest_zxid", self.state.zxid),
            field("digest_mismatches_count", usize::from(self.corruption.is_some())),
            field("shards_scrubbed", statistics.shards_scrubbed),
        ];
        fields.extend(self.corruption.as_ref().map(|corruption| field("damage", corruption.to_string())));
        fields.extend(self.others.iter().cloned());
        fields.extend(latency_fields("readlatency", &statistics.reads));
        fields.extend(latency_fields("updatelatency", &statistics.updates));
        fields.extend(self.measured.iter().cloned());
        fields
    }
}

/// A latency as monitoring reads it.
pub fn latency_fields(name: &str, latency: &Latency) -> Fields {
    let parts: [(&str, Value); 5] = [
        ("avg", latency.mean_ms().into()),
        ("min", latency.least_ms.into()),
        ("max", latency.most_ms.into()),
        ("cnt", latency.count.into()),
        ("sum", latency.total_ms.into()),
    ];
    parts.into_iter().map(|(part, value)| (format!("{part}_{name}"), value)).collect()
}

/// `maxClientCnxns` as the admin commands have it: `max_client_cnxns`.
fn snake(name: &str) -> String {
    let lower = |letter: char| match letter {
        '.' => "_".to_owned(),
        letter if letter.is_ascii_uppercase() => format!("_{}", letter.to_ascii_lowercase()),
        letter => letter.to_string(),
    };
    name.chars().map(lower).collect()
}

fn typed(value: &str) -> Value {
    value.parse().map_or_else(|_| Value::from(value), Value::Integer)
}
