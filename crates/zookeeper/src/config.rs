//! What is understood of a `zoo.cfg`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use sentinel::Profile;

use crate::limits::{CONNECTIONS_MAX, EVIDENCE_MAX, FRAME_BYTES_MAX_MAX, REPAIRS_AN_HOUR, SERVERS_MAX};
use crate::member::my_id;
use crate::tls::{ClientAuth, TlsConfig};

/// How a server is set up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Where clients connect; nothing where all come over TLS.
    pub listen: Option<SocketAddr>,
    /// Where clients connect over TLS, and how.
    pub secure: Option<(SocketAddr, TlsConfig)>,
    /// Where operators ask over HTTP.
    pub admin: Option<AdminConfig>,
    /// Where snapshots are kept.
    pub data: PathBuf,
    /// Where the log is kept.
    pub log: PathBuf,
    /// The shortest timeout of a session.
    pub timeout_ms_min: i32,
    /// The longest.
    pub timeout_ms_max: i32,
    /// How many connections one address may have; 0 for any number.
    pub connections_an_address_max: usize,
    /// How many there may be in all.
    pub connections_max: usize,
    /// The longest request.
    pub frame_bytes_max: usize,
    /// After so many transactions a snapshot is taken.
    pub snapshot_every: u64,
    /// How many snapshots are kept.
    pub snapshots_kept: usize,
    /// How often containers and nodes past their time are deleted.
    pub reap_every_ms: i64,
    /// Which commands of four letters are answered; `None` is all.
    pub words: Option<BTreeSet<String>>,
    /// `user:hash` of who may do everything.
    pub superuser: Option<String>,
    /// The subject of the certificate of who may do everything.
    pub superuser_certificate: Option<String>,
    /// Whether writes fail that a hard quota forbids.
    pub enforces_quotas: bool,
    /// Whether drills may damage this server.
    pub allows_drills: bool,
    /// Whether digests are compared with every transaction, or only when somebody asks for those of the past.
    pub is_realtime: bool,
    /// How digests are computed.
    pub profile: Profile,
    /// The servers beside which this one serves, if there are others.
    pub ensemble: Option<EnsembleConfig>,
    /// What to tell the operator: keys that are unknown, or have no effect here.
    pub warnings: Vec<String>,
}

/// Where operators ask over HTTP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdminConfig {
    /// Where.
    pub listen: SocketAddr,
    /// What paths begin with.
    pub path: String,
    /// Names by which browsers may call this server, besides addresses and `localhost`.
    pub names: Vec<String>,
}

/// How a server is one of several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnsembleConfig {
    /// All of them, by their numbers.
    pub servers: Vec<ServerConfig>,
    /// This server's private key.
    pub key: PathBuf,
    /// After so long without a word, in milliseconds, another leader is looked for.
    pub timeout_ms: u64,
    /// How often a server that was found wrong may repair itself within an hour; 0 is never.
    pub repairs_an_hour_max: usize,
    /// Whether this server listens for the others on every address of its machine, and not only on its own.
    pub listens_everywhere: bool,
}

/// One of several servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerConfig {
    /// The number that its `myid` says.
    pub id: u8,
    /// Where it is.
    pub host: String,
    /// Where it listens for the others.
    pub port: u16,
    /// Whether it has no voice.
    pub observes: bool,
    /// The public key that it has to show.
    pub public_key: [u8; 32],
    /// Where its clients connect, if its line says so.
    pub client: Option<(Option<IpAddr>, u16)>,
}

/// Why a `zoo.cfg` is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}{what}", place(*line))]
pub struct ConfigError {
    /// Where, counted from 1; 0 where something is missing.
    pub line: usize,
    /// What is wrong, and what to do.
    pub what: String,
}

/// The line of what is wrong, where it has one.
fn place(line: usize) -> String {
    if line == 0 { String::new() } else { format!("line {line}: ") }
}

/// Keys of ZooKeeper's that change nothing here, and those for several servers where there is one.
const WITHOUT_EFFECT: [&str; 22] = [
    "bezant.key",
    "quorumListenOnAllIPs",
    "bezant.timeoutMs",
    "bezant.repairsPerHour",
    "initLimit",
    "syncLimit",
    "autopurge.purgeInterval",
    "preAllocSize",
    "forceSync",
    "standaloneEnabled",
    "reconfigEnabled",
    "extendedTypesEnabled",
    "globalOutstandingLimit",
    "admin.idleTimeout",
    "skipACL",
    "serverCnxnFactory",
    "client.portUnification",
    "ssl.keyStore.password",
    "ssl.keyStore.type",
    "ssl.trustStore.password",
    "ssl.trustStore.type",
    "ssl.authProvider",
];

/// A key that is as near to a known one was mistyped, as far as anybody can tell.
const SUGGESTION_EDITS_MAX: usize = 3;

/// The keys and values of a file, each with its line.
struct Lines {
    values: BTreeMap<String, (usize, String)>,
    /// The keys that were asked for, whether they are there or not.
    known: BTreeSet<String>,
    /// Of which lines another one with the same key makes nothing.
    repeated: Vec<String>,
}

impl Lines {
    fn read(text: &str) -> Result<Self, ConfigError> {
        let (mut values, mut repeated) = (BTreeMap::<String, (usize, String)>::new(), Vec::new());
        for (at, line) in (1..).zip(text.lines()) {
            let line = line.trim();
            if line.is_empty() || line.starts_with(['#', '!']) {
                continue;
            }
            let Some((key, value)) = line.split_once(['=', ':']) else {
                return Err(ConfigError { line: at, what: format!("{line:?} is no key=value") });
            };
            let key = key.trim();
            if let Some((earlier, _)) = values.insert(key.to_owned(), (at, value.trim().to_owned())) {
                repeated.push(format!("line {earlier}: {key} is said again in line {at}, which counts"));
            }
        }
        Ok(Self { values, known: BTreeSet::new(), repeated })
    }

    fn text(&mut self, key: &str) -> Option<(usize, String)> {
        self.known.insert(key.to_owned());
        self.values.remove(key)
    }

    /// Says which lines do nothing: those that others with the same key replace, and those that nobody has asked for.
    fn warnings(self) -> impl Iterator<Item = String> {
        let Self { values, known, repeated } = self;
        let unasked = values.into_iter().map(move |(key, (line, _))| {
            if WITHOUT_EFFECT.contains(&key.as_str()) {
                return format!("line {line}: {key} has no effect here");
            }
            let by_edits = known.iter().map(|name| (strsim::levenshtein(&key, name), name));
            match by_edits.min().filter(|(edits, _)| *edits <= SUGGESTION_EDITS_MAX) {
                Some((_, name)) => format!("line {line}: {key} is not known here; did you mean {name}?"),
                None => format!("line {line}: {key} is not known here"),
            }
        });
        repeated.into_iter().chain(unasked)
    }

    /// A switch of which ZooKeeper takes anything that is not true for false.
    fn is_true(&mut self, key: &str) -> bool {
        self.text(key).is_some_and(|(_, value)| value.eq_ignore_ascii_case("true"))
    }

    /// A switch that is off unless the file says otherwise, and takes nothing but true and false.
    fn switch(&mut self, key: &str) -> Result<bool, ConfigError> {
        match self.text(key) {
            None => Ok(false),
            Some((line, value)) => {
                let wrong = |_| ConfigError { line, what: format!("{key}={value}: it is true or false") };
                value.to_ascii_lowercase().parse().map_err(wrong)
            }
        }
    }

    /// An address, which is `otherwise` unless the file says another one.
    fn address(&mut self, key: &str, otherwise: IpAddr) -> Result<IpAddr, ConfigError> {
        let Some((line, value)) = self.text(key) else { return Ok(otherwise) };
        value.parse().map_err(|error| ConfigError { line, what: format!("{key}={value}: {error}") })
    }

    fn number<T: FromStr<Err: Display> + PartialOrd + Display>(
        &mut self,
        key: &str,
        otherwise: T,
        least: T,
        most: T,
    ) -> Result<T, ConfigError> {
        let Some((line, value)) = self.text(key) else { return Ok(otherwise) };
        let wrong = |why: &dyn Display| ConfigError { line, what: format!("{key}={value}: {why}") };
        let number: T = value.parse().map_err(|error| wrong(&error))?;
        if number < least || number > most {
            return Err(wrong(&format_args!("it lies between {least} and {most}")));
        }
        Ok(number)
    }
}

impl Config {
    /// How many of the servers that it names are on this server's host, this one among them.
    #[must_use]
    pub fn servers_on_this_host(&self) -> usize {
        let Some(ensemble) = &self.ensemble else { return 1 };
        let me = my_id(&self.data).ok().and_then(|id| ensemble.servers.iter().find(|server| server.id == id));
        me.map_or(1, |me| ensemble.servers.iter().filter(|server| server.host == me.host).count())
    }

    /// The same with so many connections at most, where the system has no room for as many as the file allows.
    #[must_use]
    pub fn with_connections_within(mut self, most: usize) -> Self {
        self.connections_max = self.connections_max.min(most);
        self
    }

    /// Reads a `zoo.cfg`.
    ///
    /// # Errors
    /// When a value makes no sense, something is missing, or asks for what is not there yet.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        let mut lines = Lines::read(text)?;
        refuse_what_is_not_there(&lines)?;
        let (ensemble, mut ensemble_warnings) = ensemble(&mut lines)?;
        let mut warnings = Vec::new();
        let missing = |key: &str| ConfigError { line: 0, what: format!("{key} is missing") };
        let data = lines.text("dataDir").ok_or_else(|| missing("dataDir"))?.1.into();
        let log = lines.text("dataLogDir").map_or_else(|| PathBuf::clone(&data), |(_, path)| path.into());
        let address = lines.address("clientPortAddress", IpAddr::V4(Ipv4Addr::UNSPECIFIED))?;
        let listen = match lines.values.contains_key("clientPort") {
            true => Some(SocketAddr::new(address, lines.number("clientPort", 0, 0, u16::MAX)?)),
            false => None,
        };
        let secure = secure(&mut lines, address)?;
        let is_said_of_servers = ensemble.as_ref().is_some_and(|ensemble| ensemble.servers.iter().all(|server| server.client.is_some()));
        if listen.is_none() && secure.is_none() && !is_said_of_servers {
            return Err(missing("clientPort"));
        }
        let tick_ms = lines.number("tickTime", 3_000, 1, 1_000_000)?;
        let (timeout_ms_min, timeout_ms_max) = timeouts(&mut lines, tick_ms)?;
        let words = match lines.text("4lw.commands.whitelist") {
            None => Some(BTreeSet::from(["srvr".to_owned()])),
            Some((_, value)) if value.trim() == "*" => None,
            Some((_, value)) => Some(value.split(',').map(|word| word.trim().to_owned()).collect()),
        };
        let (profile, is_realtime) = detection(&mut lines)?;
        let connections_max = match lines.number("maxCnxns", 0, 0, CONNECTIONS_MAX)? {
            0 => CONNECTIONS_MAX,
            most => most,
        };
        let config = Self {
            listen,
            secure,
            admin: admin(&mut lines)?,
            data,
            log,
            timeout_ms_min,
            timeout_ms_max,
            connections_an_address_max: lines.number("maxClientCnxns", 60, 0, CONNECTIONS_MAX)?,
            connections_max,
            frame_bytes_max: lines.number("jute.maxbuffer", 0xf_ffff, 1_024, FRAME_BYTES_MAX_MAX)?,
            snapshot_every: lines.number("snapCount", 100_000, 2, u64::MAX)?,
            snapshots_kept: lines.number("autopurge.snapRetainCount", 3, 2, 1_000)?,
            reap_every_ms: lines.number("znode.container.checkIntervalMs", 60_000, 1, i64::MAX / 4)?,
            words,
            superuser: lines.text("DigestAuthenticationProvider.superDigest").map(|(_, value)| value),
            superuser_certificate: lines.text("X509AuthenticationProvider.superUser").map(|(_, value)| value),
            enforces_quotas: lines.is_true("enforceQuota"),
            allows_drills: lines.switch("bezant.drills")?,
            is_realtime,
            profile,
            ensemble,
            warnings: Vec::new(),
        };
        warnings.append(&mut ensemble_warnings);
        warnings.extend(lines.warnings());
        Ok(Self { warnings, ..config })
    }
}

/// The shortest and the longest timeout of a session.
fn timeouts(lines: &mut Lines, tick_ms: i32) -> Result<(i32, i32), ConfigError> {
    let line = lines.values.get("minSessionTimeout").map_or(0, |(line, _)| *line);
    let least = lines.number("minSessionTimeout", 2 * tick_ms, 1, i32::MAX)?;
    let most = lines.number("maxSessionTimeout", 20 * tick_ms, least, i32::MAX)?;
    if most < least {
        let what = format!(
            "minSessionTimeout={least}: it is above the longest timeout, which is {most}, 20 times tickTime, unless maxSessionTimeout says more"
        );
        return Err(ConfigError { line, what });
    }
    Ok((least, most))
}

/// How digests are computed, and whether they are compared with every transaction.
fn detection(lines: &mut Lines) -> Result<(Profile, bool), ConfigError> {
    let mut profile = Profile::default();
    if let Some((line, value)) = lines.text("bezant.digest") {
        let names = Profile::ALL.map(Profile::name).join(", ");
        profile =
            Profile::from_name(&value).ok_or_else(|| ConfigError { line, what: format!("bezant.digest={value}: it is one of {names}") })?;
    }
    if lines.text("digest.enabled").is_some_and(|(_, value)| value.eq_ignore_ascii_case("false")) {
        profile = Profile::Off;
    }
    let is_realtime = match lines.text("bezant.detection") {
        None => true,
        Some((_, value)) if value == "realtime" => true,
        Some((_, value)) if value == "online" => false,
        Some((line, value)) => {
            return Err(ConfigError {
                line,
                what: format!("bezant.detection={value}: it is realtime or online; bezant.digest=off is none"),
            });
        }
    };
    Ok((profile, is_realtime))
}

/// How clients are served over TLS, if they are.
fn secure(lines: &mut Lines, otherwise: IpAddr) -> Result<Option<(SocketAddr, TlsConfig)>, ConfigError> {
    let Some((line, _)) = lines.values.get("secureClientPort") else { return Ok(None) };
    let line = *line;
    let port = lines.number("secureClientPort", 0, 0, u16::MAX)?;
    let address = lines.address("secureClientPortAddress", otherwise)?;
    let needs = |what: &str| ConfigError { line, what: format!("secureClientPort needs {what}") };
    let key_store = lines
        .text("ssl.keyStore.location")
        .ok_or_else(|| needs("ssl.keyStore.location, a file of PEM with the private key and its certificates"))?;
    let client_auth = match lines.text("ssl.clientAuth") {
        None => ClientAuth::default(),
        Some((line, value)) => ClientAuth::from_name(&value)
            .ok_or_else(|| ConfigError { line, what: format!("ssl.clientAuth={value}: it is none, want or need") })?,
    };
    let trust_store = lines.text("ssl.trustStore.location").map(|(_, path)| path.into());
    if trust_store.is_none() && client_auth != ClientAuth::None {
        return Err(needs("ssl.trustStore.location, a file of PEM with the authorities of clients' certificates, or ssl.clientAuth=none"));
    }
    Ok(Some((SocketAddr::new(address, port), TlsConfig { key_store: key_store.1.into(), trust_store, client_auth })))
}

/// Where operators ask over HTTP. ZooKeeper opens port 8080 to everybody unless it is told not to; here the file has to ask for it.
fn admin(lines: &mut Lines) -> Result<Option<AdminConfig>, ConfigError> {
    let enabled = lines.values.contains_key("admin.enableServer").then(|| lines.is_true("admin.enableServer"));
    let is_asked_for = enabled.unwrap_or_else(|| lines.values.contains_key("admin.serverPort"));
    let address = lines.address("admin.serverAddress", IpAddr::V4(Ipv4Addr::UNSPECIFIED))?;
    let port = lines.number("admin.serverPort", 8_080, 0, u16::MAX)?;
    let path = lines.text("admin.commandURL").map_or_else(|| "/commands".to_owned(), |(_, path)| path);
    let names =
        lines.text("bezant.admin.names").map_or_else(Vec::new, |(_, names)| names.split(',').map(|name| name.trim().to_owned()).collect());
    Ok(is_asked_for.then(|| AdminConfig { listen: SocketAddr::new(address, port), path, names }))
}

/// What a server would have to do that it cannot: better not to start than to start as something else.
fn refuse_what_is_not_there(lines: &Lines) -> Result<(), ConfigError> {
    if let Some((line, _)) = lines.values.get("dynamicConfigFile") {
        let what = "dynamicConfigFile: servers are not changed while they run; name them here with server.N lines".to_owned();
        return Err(ConfigError { line: *line, what });
    }
    // A server that began with a warning would serve those whom the file keeps out.
    for (key, (line, value)) in &lines.values {
        if let Some(why) = kept_out(key.strip_prefix("zookeeper.").unwrap_or(key), value) {
            return Err(ConfigError { line: *line, what: format!("{key}={value}: {why}") });
        }
    }
    Ok(())
}

/// What ZooKeeper knows clients by that is known here as well.
const AUTH_PROVIDERS: [&str; 3] = [
    "org.apache.zookeeper.server.auth.DigestAuthenticationProvider",
    "org.apache.zookeeper.server.auth.IPAuthenticationProvider",
    "org.apache.zookeeper.server.auth.X509AuthenticationProvider",
];

/// Whether a line has ZooKeeper turn clients away whom this server would serve, and what to do instead.
fn kept_out(key: &str, value: &str) -> Option<&'static str> {
    let is_true = value.eq_ignore_ascii_case("true");
    match key {
        "enforce.auth.enabled" | "sessionRequireClientSASLAuth" if is_true => {}
        "requireClientAuthScheme" if !matches!(value, "" | "none") => {}
        "ssl.authProvider" if !matches!(value, "" | "x509") => {}
        key if key.starts_with("authProvider.") && !AUTH_PROVIDERS.contains(&value) => {}
        "ssl.crl" | "ssl.ocsp" if is_true => {
            return Some(
                "whether a certificate was revoked is not looked up here, so that clients would be served whom ZooKeeper turns away; take the line \
                 out only if you trust every certificate of ssl.trustStore.location until it ends",
            );
        }
        _ => return None,
    }
    Some(
        "no client has to authenticate here but with a certificate, so that clients would be served whom ZooKeeper turns away; take the line out, and \
         keep strangers out with secureClientPort, ssl.clientAuth=need and no clientPort, or with rules of the network",
    )
}

/// The servers of `server.N` lines, with their keys; and what to tell the operator.
fn ensemble(lines: &mut Lines) -> Result<(Option<EnsembleConfig>, Vec<String>), ConfigError> {
    let named = |lines: &Lines, prefix: &str| -> Vec<String> {
        lines.values.keys().filter(|key| key.strip_prefix(prefix).is_some_and(|number| number.parse::<u64>().is_ok())).cloned().collect()
    };
    let keys = named(lines, "server.");
    let Some(first) = keys.first() else { return Ok((None, Vec::new())) };
    let first = lines.values.get(first).map_or(0, |(line, _)| *line);
    let key = lines.text("bezant.key").ok_or_else(|| ConfigError {
        line: first,
        what: "server.N lines need bezant.key, the file of this server's private key; make one with `bezant zookeeper --make-key FILE`"
            .to_owned(),
    })?;
    let mut servers = Vec::new();
    for name in keys {
        let number = name.strip_prefix("server.").unwrap_or_default().to_owned();
        let Some((line, value)) = lines.text(&name) else { continue };
        let wrong = |what: String| ConfigError { line, what: format!("{name}={value}: {what}") };
        let id: u8 = number.parse().map_err(|_| wrong("servers are numbered from 0 to 255".to_owned()))?;
        let pin = format!("bezant.server.{number}");
        let (pin_line, pin_text) = lines.text(&pin).ok_or_else(|| {
            wrong(format!("{pin} is missing: the public key that `bezant zookeeper --make-key FILE` printed for that server"))
        })?;
        let public_key = public_key(&pin_text)
            .ok_or_else(|| ConfigError { line: pin_line, what: format!("{pin}={pin_text}: a public key has 64 hexadecimal digits") })?;
        servers.push(server(id, &value, public_key).map_err(wrong)?);
    }
    servers.sort_by_key(|server| server.id);
    let mut warnings = Vec::new();
    let voters = servers.iter().filter(|server| !server.observes).count();
    if voters == 0 || servers.len() > SERVERS_MAX {
        return Err(ConfigError { line: first, what: format!("there are 1 to {SERVERS_MAX} servers, and not all of them observe") });
    }
    if voters % 2 == 0 {
        warnings.push(format!("{voters} servers that decide are no safer than {}: a majority of them is as many", voters - 1));
    }
    let timeout_ms = lines.number("bezant.timeoutMs", 1_000, 100, 600_000)?;
    let repairs_an_hour_max = lines.number("bezant.repairsPerHour", REPAIRS_AN_HOUR, 0, EVIDENCE_MAX / 2)?;
    let listens_everywhere = lines.switch("quorumListenOnAllIPs")?;
    Ok((Some(EnsembleConfig { servers, key: key.1.into(), timeout_ms, repairs_an_hour_max, listens_everywhere }), warnings))
}

/// A server's line: `host:port:electionPort[:participant|observer][;[address:]clientPort]`.
fn server(id: u8, value: &str, public_key: [u8; 32]) -> Result<ServerConfig, String> {
    let form = || "it has the form host:port:electionPort[:observer][;clientPort]".to_owned();
    let (place, client) = value.split_once(';').map_or((value, None), |(place, client)| (place, Some(client)));
    if place.contains('|') {
        return Err("a server has one address here".to_owned());
    }
    let (host, rest) = match place.strip_prefix('[') {
        Some(bracketed) => bracketed.split_once(']').and_then(|(host, rest)| Some((host, rest.strip_prefix(':')?))),
        None => place.split_once(':'),
    }
    .ok_or_else(form)?;
    let mut parts = rest.split(':');
    let port: u16 = parts.next().and_then(|port| port.parse().ok()).ok_or_else(form)?;
    let _election: u16 = parts.next().and_then(|port| port.parse().ok()).ok_or_else(form)?;
    let observes = match parts.next() {
        None | Some("participant") => false,
        Some("observer") => true,
        Some(_) => return Err(form()),
    };
    let client = match client {
        None => None,
        Some(client) => {
            let (address, port) = client.rsplit_once(':').map_or((None, client), |(address, port)| (Some(address), port));
            let address = address.map(|address| address.trim_matches(['[', ']']).parse().map_err(|_| form())).transpose()?;
            Some((address, port.parse().map_err(|_| form())?))
        }
    };
    Ok(ServerConfig { id, host: host.to_owned(), port, observes, public_key, client })
}

fn public_key(text: &str) -> Option<[u8; 32]> {
    let mut key = [0; 32];
    if text.len() != 64 || !text.is_ascii() {
        return None;
    }
    for (byte, digits) in key.iter_mut().zip(text.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    }
    Some(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ordinary_file_is_understood() {
        let text =
            "# standalone\ntickTime=2000\ninitLimit=10\n dataDir = /var/zk \nclientPort=2181\n4lw.commands.whitelist=ruok, mntr\nfoo=1\n";
        let config = Config::parse(text).expect("it is an ordinary file");
        assert_eq!(config.listen, Some("0.0.0.0:2181".parse().expect("an address")));
        assert_eq!((&config.secure, &config.admin), (&None, &None));
        assert_eq!((config.data.as_path(), &config.log), ("/var/zk".as_ref(), &config.data));
        assert_eq!((config.timeout_ms_min, config.timeout_ms_max), (4_000, 40_000));
        assert_eq!(config.words, Some(BTreeSet::from(["ruok".to_owned(), "mntr".to_owned()])));
        assert_eq!(config.profile, Profile::Sha256Wide);
        assert_eq!(config.warnings, ["line 7: foo is not known here", "line 3: initLimit has no effect here"]);
    }

    #[test]
    fn a_server_may_serve_over_tls_alone_and_answer_operators_over_http() {
        let text = "dataDir=x\nsecureClientPort=3\nssl.keyStore.location=k\nssl.trustStore.location=t\nadmin.serverPort=9\n";
        let config = Config::parse(text).expect("it is whole");
        let tls = TlsConfig { key_store: "k".into(), trust_store: Some("t".into()), client_auth: ClientAuth::Need };
        assert_eq!((config.listen, config.secure), (None, Some(("0.0.0.0:3".parse().expect("an address"), tls))));
        assert_eq!(config.admin.map(|admin| (admin.listen.port(), admin.path)), Some((9, "/commands".to_owned())));
        assert_eq!(
            Config::parse("dataDir=x\nclientPort=1\nadmin.enableServer=false\nadmin.serverPort=9").expect("it is whole").admin,
            None
        );
    }

    #[test]
    fn several_servers_are_named_with_their_keys() {
        let keys: String = (1..4).map(|id| format!("bezant.server.{id}={}\n", format!("0{id}").repeat(32))).collect();
        let servers =
            "server.1=a:2888:3888;2181\nserver.2=[::1]:2888:3888:participant;127.0.0.1:2182\nserver.3=c:2888:3888:observer;2183\n";
        let config = Config::parse(&format!("dataDir=x\nbezant.key=k\n{keys}{servers}")).expect("it is whole");
        let ensemble = config.ensemble.expect("there are several");
        let seen: Vec<_> = ensemble.servers.iter().map(|server| (server.id, &*server.host, server.port, server.observes)).collect();
        assert_eq!(seen, [(1, "a", 2888, false), (2, "::1", 2888, false), (3, "c", 2888, true)]);
        assert_eq!(ensemble.servers[1].client, Some(("127.0.0.1".parse().ok(), 2182)));
        assert_eq!((ensemble.servers[2].public_key, ensemble.timeout_ms), ([3; 32], 1_000));
        assert_eq!(ensemble.repairs_an_hour_max, REPAIRS_AN_HOUR);
        assert_eq!(config.warnings, ["2 servers that decide are no safer than 1: a majority of them is as many"]);
    }

    #[test]
    fn servers_on_one_host_are_counted() {
        let folder = tempfile::tempdir().expect("a folder");
        let data = folder.path().display();
        let keys: String = (1..4).map(|id| format!("bezant.server.{id}={}\n", format!("0{id}").repeat(32))).collect();
        let servers = "server.1=a:2888:3888;2181\nserver.2=a:2889:3889;2182\nserver.3=c:2888:3888;2183\n";
        let several = Config::parse(&format!("dataDir={data}\nbezant.key=k\n{keys}{servers}")).expect("it is whole");
        assert_eq!(several.servers_on_this_host(), 1, "it does not know which it is");
        for (id, count) in [("1", 2), ("2", 2), ("3", 1), ("9", 1)] {
            std::fs::write(folder.path().join("myid"), id).expect("it can be written");
            assert_eq!(several.servers_on_this_host(), count, "server {id}");
        }
        let alone = Config::parse(&format!("dataDir={data}\nclientPort=1\n")).expect("it is whole");
        assert_eq!(alone.servers_on_this_host(), 1);
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        let wrong = |text: &str| Config::parse(text).expect_err("it is wrong").to_string();
        assert_eq!(wrong("clientPort=2181"), "dataDir is missing");
        assert_eq!(wrong("dataDir=x"), "clientPort is missing");
        assert_eq!(wrong("dataDir=x\nclientPort=99999"), "line 2: clientPort=99999: number too large to fit in target type");
        assert_eq!(wrong("dataDir=x\nclientPort=1\ntickTime=0"), "line 3: tickTime=0: it lies between 1 and 1000000");
        assert_eq!(wrong("hello"), "line 1: \"hello\" is no key=value");
        assert!(wrong("dataDir=x\nclientPort=1\nserver.1=a:1:2").starts_with("line 3: server.N lines need bezant.key"));
        assert!(wrong("dataDir=x\nclientPort=1\nbezant.key=k\nserver.1=a:1:2").contains("bezant.server.1 is missing"));
        let keys = format!("dataDir=x\nclientPort=1\nbezant.key=k\nbezant.server.1={}\n", "ab".repeat(32));
        assert!(wrong(&format!("{keys}server.1=a:1")).contains("it has the form host:port"));
        assert!(wrong(&format!("{keys}server.300=a:1:2")).contains("numbered from 0 to 255"));
        assert!(wrong(&format!("{keys}server.1=a:1:2:observer")).contains("not all of them observe"));
        assert!(wrong("dataDir=x\nsecureClientPort=3").starts_with("line 2: secureClientPort needs ssl.keyStore.location"));
        assert!(wrong("dataDir=x\nsecureClientPort=3\nssl.keyStore.location=k").contains("ssl.trustStore.location"));
        assert!(
            wrong("dataDir=x\nsecureClientPort=3\nssl.keyStore.location=k\nssl.clientAuth=maybe").starts_with("line 4: ssl.clientAuth")
        );
        assert!(wrong("dataDir=x\nclientPort=1\nbezant.digest=sha3").contains("it is one of off, crc32"));
    }

    #[test]
    fn the_shortest_timeout_is_not_above_the_longest_whether_that_is_said_or_not() {
        let read = |more: &str| Config::parse(&format!("dataDir=x\nclientPort=1\ntickTime=100\n{more}")).map_err(|error| error.to_string());
        let why = read("minSessionTimeout=2001").expect_err("the longest is 2,000");
        assert!(why.starts_with("line 4: minSessionTimeout=2001: it is above the longest timeout, which is 2000"), "{why}");
        assert!(read("minSessionTimeout=2000").is_ok() && read("minSessionTimeout=2001\nmaxSessionTimeout=2001").is_ok());
        assert!(read("maxSessionTimeout=100").is_err(), "the shortest is 200");
    }

    #[test]
    fn a_file_that_keeps_strangers_out_is_refused_where_this_server_would_let_them_in() {
        let read = |line: &str| Config::parse(&format!("dataDir=x\nclientPort=1\n{line}"));
        for line in [
            "enforce.auth.enabled=true",
            "zookeeper.enforce.auth.enabled=true",
            "sessionRequireClientSASLAuth=true",
            "requireClientAuthScheme=sasl",
            "authProvider.1=org.apache.zookeeper.server.auth.SASLAuthenticationProvider",
            "authProvider.x=com.example.Tokens",
            "ssl.authProvider=com.example.Names",
            "ssl.crl=true",
            "ssl.ocsp=TRUE",
        ] {
            let why = read(line).expect_err(line).to_string();
            assert!(why.starts_with(&format!("line 3: {line}: ")) && why.contains("take the line"), "{why}");
        }
        for line in [
            "enforce.auth.enabled=false",
            "enforce.auth.schemes=sasl",
            "sessionRequireClientSASLAuth=false",
            "authProvider.1=org.apache.zookeeper.server.auth.DigestAuthenticationProvider",
            "ssl.authProvider=x509",
            "ssl.crl=false",
        ] {
            assert_eq!(read(line).expect("it keeps nobody out").warnings.len(), 1, "{line}");
        }
    }

    #[test]
    fn switches_are_taken_as_they_are_meant_or_refused() {
        let with = |line: &str| Config::parse(&format!("dataDir=/d\nclientPort=1\n{line}\n"));
        assert_eq!(with("bezant.drills=true").map(|config| config.allows_drills), Ok(true));
        assert_eq!(with("bezant.drills=false").map(|config| config.allows_drills), Ok(false));
        let refused = with("bezant.drills=yes").expect_err("nobody knows which that is");
        assert_eq!((refused.line, refused.what.as_str()), (3, "bezant.drills=yes: it is true or false"));
        assert_eq!(
            ["TRUE", "yes"].map(|value| with(&format!("enforceQuota={value}")).map(|config| config.enforces_quotas)),
            [Ok(true), Ok(false)]
        );
        assert!(with("admin.enableServer=TRUE").is_ok_and(|config| config.admin.is_some()));
        let alone = with("bezant.repairsPerHour=2").expect("one server repairs nothing");
        assert_eq!(alone.warnings, ["line 3: bezant.repairsPerHour has no effect here"]);
    }

    #[test]
    fn a_mistyped_key_is_told_of_with_the_one_that_was_meant() {
        let warnings = |line: &str| Config::parse(&format!("dataDir=/d\nclientPort=1\n{line}\n")).expect("it is whole").warnings;
        assert_eq!(warnings("ticktime=2000"), ["line 3: ticktime is not known here; did you mean tickTime?"]);
        assert_eq!(warnings("bezant.drill=true"), ["line 3: bezant.drill is not known here; did you mean bezant.drills?"]);
        assert_eq!(warnings("something.else=1"), ["line 3: something.else is not known here"]);
        assert_eq!(warnings("clientPort=2"), ["line 2: clientPort is said again in line 3, which counts"]);
    }

    #[test]
    fn there_are_no_more_connections_than_the_system_has_room_for() {
        let config = Config::parse("dataDir=x\nclientPort=1\nmaxCnxns=500").expect("it is whole");
        assert_eq!(config.clone().with_connections_within(1_000).connections_max, 500);
        assert_eq!(config.with_connections_within(64).connections_max, 64);
    }
}
