//! What is understood of a `zoo.cfg`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use sentinel::Profile;

use crate::limits::{CONNECTIONS_MAX, FRAME_BYTES_MAX_MAX};

/// How a server is set up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Where clients connect.
    pub listen: SocketAddr,
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
    /// How digests are computed.
    pub profile: Profile,
    /// What to tell the operator: keys that are unknown, or have no effect here.
    pub warnings: Vec<String>,
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
const WITHOUT_EFFECT: [&str; 12] = [
    "initLimit",
    "syncLimit",
    "autopurge.purgeInterval",
    "preAllocSize",
    "forceSync",
    "standaloneEnabled",
    "reconfigEnabled",
    "extendedTypesEnabled",
    "globalOutstandingLimit",
    "admin.enableServer",
    "admin.serverPort",
    "skipACL",
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
        if !lines.values.contains_key("clientPort") {
            return Err(missing("clientPort"));
        }
        let port = lines.number("clientPort", 0, 0, u16::MAX)?;
        let address = match lines.text("clientPortAddress") {
            None => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            Some((line, value)) => {
                value.parse().map_err(|error| ConfigError { line, what: format!("clientPortAddress={value}: {error}") })?
            }
        };
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
        let connections_max = match lines.number("maxCnxns", 0, 0, CONNECTIONS_MAX)? {
            0 => CONNECTIONS_MAX,
            most => most,
        };
        let config = Self {
            listen: SocketAddr::new(address, port),
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

/// What a server would have to do that it cannot yet: better not to start than to start as something else.
fn refuse_what_is_not_there(lines: &Lines) -> Result<(), ConfigError> {
    for (key, (line, _)) in &lines.values {
        let what = match key.as_str() {
            "secureClientPort" | "secureClientPortAddress" => "clients are not served over TLS yet",
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
        assert_eq!(config.listen, "0.0.0.0:2181".parse().expect("an address"));
        assert_eq!((config.data.as_path(), &config.log), ("/var/zk".as_ref(), &config.data));
        assert_eq!((config.timeout_ms_min, config.timeout_ms_max), (4_000, 40_000));
        assert_eq!(config.words, Some(BTreeSet::from(["ruok".to_owned(), "mntr".to_owned()])));
        assert_eq!(config.profile, Profile::Sha256Wide);
        assert_eq!(config.warnings, ["line 7: foo is not known here", "line 3: initLimit has no effect here"]);
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
        assert!(wrong("dataDir=x\nclientPort=1\nsecureClientPort=3").contains("TLS"));
        assert!(wrong("dataDir=x\nclientPort=1\nbezant.digest=sha3").contains("it is one of off, crc32"));
    }
}
