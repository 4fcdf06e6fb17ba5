//! What is understood of a `zoo.cfg`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use sentinel::Profile;

use crate::limits::{CONNECTIONS_MAX, FRAME_BYTES_MAX_MAX};
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

/// Why a `zoo.cfg` is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct ConfigError {
    /// Where, counted from 1; 0 where something is missing.
    pub line: usize,
    /// What is wrong, and what to do.
    pub what: String,
}

/// Keys of ZooKeeper's that change nothing here.
const WITHOUT_EFFECT: [&str; 18] = [
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

/// The keys and values of a file, each with its line.
struct Lines {
    values: BTreeMap<String, (usize, String)>,
}

impl Lines {
    fn read(text: &str) -> Result<Self, ConfigError> {
        let mut values = BTreeMap::new();
        for (at, line) in (1..).zip(text.lines()) {
            let line = line.trim();
            if line.is_empty() || line.starts_with(['#', '!']) {
                continue;
            }
            let Some((key, value)) = line.split_once(['=', ':']) else {
                return Err(ConfigError { line: at, what: format!("{line:?} is no key=value") });
            };
            values.insert(key.trim().to_owned(), (at, value.trim().to_owned()));
        }
        Ok(Self { values })
    }

    fn text(&mut self, key: &str) -> Option<(usize, String)> {
        self.values.remove(key)
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
    /// Reads a `zoo.cfg`.
    ///
    /// # Errors
    /// When a value makes no sense, something is missing, or asks for what is not there yet.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        let mut lines = Lines::read(text)?;
        refuse_what_is_not_there(&lines)?;
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
        if listen.is_none() && secure.is_none() {
            return Err(missing("clientPort"));
        }
        let tick_ms = lines.number("tickTime", 3_000, 1, 1_000_000)?;
        let timeout_ms_min = lines.number("minSessionTimeout", 2 * tick_ms, 1, i32::MAX)?;
        let timeout_ms_max = lines.number("maxSessionTimeout", 20 * tick_ms, timeout_ms_min, i32::MAX)?;
        let words = match lines.text("4lw.commands.whitelist") {
            None => Some(BTreeSet::from(["srvr".to_owned()])),
            Some((_, value)) if value.trim() == "*" => None,
            Some((_, value)) => Some(value.split(',').map(|word| word.trim().to_owned()).collect()),
        };
        let mut profile = Profile::default();
        if let Some((line, value)) = lines.text("bezant.digest") {
            let names = Profile::ALL.map(Profile::name).join(", ");
            profile = Profile::from_name(&value)
                .ok_or_else(|| ConfigError { line, what: format!("bezant.digest={value}: it is one of {names}") })?;
        }
        if lines.text("digest.enabled").is_some_and(|(_, value)| value == "false") {
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
            enforces_quotas: lines.text("enforceQuota").is_some_and(|(_, value)| value == "true"),
            allows_drills: lines.text("bezant.drills").is_some_and(|(_, value)| value == "true"),
            is_realtime,
            profile,
            warnings: Vec::new(),
        };
        for (key, (line, _)) in lines.values {
            let what = if WITHOUT_EFFECT.contains(&key.as_str()) { "has no effect here" } else { "is not known here" };
            warnings.push(format!("line {line}: {key} {what}"));
        }
        Ok(Self { warnings, ..config })
    }
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
    let enabled = lines.text("admin.enableServer").map(|(_, value)| value == "true");
    let is_asked_for = enabled.unwrap_or_else(|| lines.values.contains_key("admin.serverPort"));
    let address = lines.address("admin.serverAddress", IpAddr::V4(Ipv4Addr::UNSPECIFIED))?;
    let port = lines.number("admin.serverPort", 8_080, 0, u16::MAX)?;
    let path = lines.text("admin.commandURL").map_or_else(|| "/commands".to_owned(), |(_, path)| path);
    let names =
        lines.text("bezant.admin.names").map_or_else(Vec::new, |(_, names)| names.split(',').map(|name| name.trim().to_owned()).collect());
    Ok(is_asked_for.then(|| AdminConfig { listen: SocketAddr::new(address, port), path, names }))
}

/// What a server would have to do that it cannot yet: better not to start than to start as something else.
fn refuse_what_is_not_there(lines: &Lines) -> Result<(), ConfigError> {
    for (key, (line, _)) in &lines.values {
        let what = match key.as_str() {
            "dynamicConfigFile" => "servers are not changed while they run",
            key if key.starts_with("server.") => "several servers that replicate are not there yet: only a server by itself is",
            _ => continue,
        };
        return Err(ConfigError { line: *line, what: format!("{key}: {what}; take the line out") });
    }
    Ok(())
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
    fn what_is_wrong_is_named_with_its_line() {
        let wrong = |text: &str| Config::parse(text).expect_err("it is wrong").to_string();
        assert_eq!(wrong("clientPort=2181"), "line 0: dataDir is missing");
        assert_eq!(wrong("dataDir=x"), "line 0: clientPort is missing");
        assert_eq!(wrong("dataDir=x\nclientPort=99999"), "line 2: clientPort=99999: number too large to fit in target type");
        assert_eq!(wrong("dataDir=x\nclientPort=1\ntickTime=0"), "line 3: tickTime=0: it lies between 1 and 1000000");
        assert_eq!(wrong("hello"), "line 1: \"hello\" is no key=value");
        assert!(wrong("dataDir=x\nclientPort=1\nserver.1=a:1:2").starts_with("line 3: server.1: several servers"));
        assert!(wrong("dataDir=x\nsecureClientPort=3").starts_with("line 2: secureClientPort needs ssl.keyStore.location"));
        assert!(wrong("dataDir=x\nsecureClientPort=3\nssl.keyStore.location=k").contains("ssl.trustStore.location"));
        assert!(
            wrong("dataDir=x\nsecureClientPort=3\nssl.keyStore.location=k\nssl.clientAuth=maybe").starts_with("line 4: ssl.clientAuth")
        );
        assert!(wrong("dataDir=x\nclientPort=1\nbezant.digest=sha3").contains("it is one of off, crc32"));
    }
}
