//! Three servers for ZooKeeper's clients on this machine, each started from a `zoo.cfg` as its users do: ours, or ZooKeeper's own.

use std::collections::hash_map::RandomState;
use std::fs::{self, File};
use std::hash::{BuildHasher as _, Hasher as _};
use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::{RunError, Runner, end_of};
use crate::machine::file_system;
use crate::page::ZOO_CFG;
use crate::plan::{Program, SERVERS, Servers};

/// Where free ports are looked for. Below those that a cluster finds (20000 and up), and what systems hand out to outgoing connections
/// (32768 and up): a port from there could be taken between its being found free and its server's start.
const PORTS: std::ops::Range<u16> = 15_000..20_000;
/// The most memory that a server of ZooKeeper's takes for its objects.
const JAVA_HEAP: &str = "-Xmx1g";
/// The class that starts one of several servers of ZooKeeper's.
const JAVA_CLASS: &str = "org.apache.zookeeper.server.quorum.QuorumPeerMain";
/// How long servers may take until they serve.
const START_MAX: Duration = Duration::from_secs(60);
/// How often it is looked whether they do.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How long one may take to say so.
const ANSWER_MAX: Duration = Duration::from_secs(2);
/// The most of what it then says that is read.
const ANSWER_BYTES_MAX: u64 = 4_096;

/// An installation of ZooKeeper.
#[derive(Debug)]
pub(super) struct ZooKeeper {
    /// The folder with its jars.
    jars: PathBuf,
    version: String,
}

impl ZooKeeper {
    /// Looks for it in `folder`, or in `lib` there, where its releases have it; and for `java`.
    pub fn find(folder: &Path) -> Result<Self, RunError> {
        let version = |jars: &Path| -> Option<String> {
            let names = fs::read_dir(jars).ok()?.flatten().filter_map(|entry| entry.file_name().into_string().ok());
            let versions = names.filter_map(|name| Some(name.strip_prefix("zookeeper-")?.strip_suffix(".jar")?.to_owned()));
            versions.filter(|version| version.starts_with(|first: char| first.is_ascii_digit())).max()
        };
        let found = [folder.join("lib"), folder.to_owned()].into_iter().find_map(|jars| Some((version(&jars)?, jars)));
        let (version, jars) = found.ok_or_else(|| RunError::NoZooKeeper { folder: folder.display().to_string() })?;
        let java = Command::new("java").arg("-version").stdin(Stdio::null()).output();
        java.map_err(|source| RunError::System { what: "run `java`, which ZooKeeper needs".to_owned(), source })?;
        Ok(Self { jars, version })
    }
}

/// Servers that run; they are ended when this goes, and their folder too.
pub(super) struct Ensemble {
    children: Vec<Child>,
    addresses: Vec<SocketAddr>,
    folder: TempDir,
}

impl Drop for Ensemble {
    fn drop(&mut self) {
        // Nobody needs their data any more, so that there is nothing to end in order.
        for child in &mut self.children {
            let ended = child.kill().and_then(|()| child.wait());
            if let Err(error) = ended {
                eprintln!("server {} could not be ended: {error}", child.id());
            }
        }
    }
}

impl Ensemble {
    /// Starts them, and waits until all serve.
    pub fn start(runner: &Runner<'_>, servers: &Servers) -> Result<Self, RunError> {
        let failed = |what: &str| {
            let what = what.to_owned();
            move |source| RunError::System { what, source }
        };
        let folder = TempDir::with_prefix_in("servers-", runner.folder.path()).map_err(failed("make a folder for the servers"))?;
        let ports = free_ports(3 * SERVERS).map_err(failed("find free ports"))?;
        let addresses = ports[..SERVERS].iter().map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, *port))).collect();
        let mut ensemble = Self { children: Vec::new(), addresses, folder };
        let mut common: String = servers.lines.iter().map(|line| format!("{line}\n")).collect();
        for (number, ports) in (1..).zip(ports[SERVERS..].chunks(2)) {
            common += &format!("server.{number}=127.0.0.1:{}:{}\n", ports[0], ports[1]);
            if servers.program == Program::Bezant {
                let key = ensemble.path(&format!("key-{number}.pem"));
                let made = runner.say(&["zookeeper", "--make-key", &key.display().to_string()].map(str::to_owned))?;
                let public = made.said.trim().to_owned();
                made.well()?;
                common += &format!("bezant.server.{number}={public}\n");
            }
        }
        for number in 1..=SERVERS {
            let (config, data) = (ensemble.path(&format!("{number}.cfg")), ensemble.path(&number.to_string()));
            let text = ensemble.config(servers.program, number) + &common;
            let written = fs::create_dir(&data).and_then(|()| fs::write(data.join("myid"), format!("{number}\n")));
            written.and_then(|()| fs::write(&config, text)).map_err(failed("write a server's files"))?;
            let mut command = command_of(runner, servers, &config)?;
            let log = File::create(ensemble.log(number)).and_then(|log| Ok((log.try_clone()?, log))).map_err(failed("make a log"))?;
            let child = command.stdin(Stdio::null()).stdout(log.0).stderr(log.1).spawn();
            ensemble.children.push(child.map_err(failed("start a server"))?);
        }
        ensemble.wait(runner)?;
        Ok(ensemble)
    }

    /// The flags with which `bezant bench-zookeeper` measures them.
    pub fn flags(&self) -> Vec<String> {
        let servers = self.addresses.iter().flat_map(|address| ["--server".to_owned(), address.to_string()]);
        servers.chain(self.children.iter().flat_map(|child| ["--pid".to_owned(), child.id().to_string()])).collect()
    }

    /// Their folder, as it stands in messages.
    pub fn place(&self) -> String {
        self.folder.path().display().to_string()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn log(&self, number: usize) -> PathBuf {
        self.path(&format!("{number}.log"))
    }

    /// What a server's `zoo.cfg` says of itself.
    fn config(&self, program: Program, number: usize) -> String {
        let mut text = format!(
            "tickTime=2000\nmaxClientCnxns=0\nadmin.enableServer=false\ndataDir={}\nclientPort={}\nclientPortAddress=127.0.0.1\n",
            self.path(&number.to_string()).display(),
            self.addresses[number - 1].port()
        );
        text += &match program {
            Program::Bezant => format!("bezant.key={}\n", self.path(&format!("key-{number}.pem")).display()),
            Program::ZooKeeper => "initLimit=20\nsyncLimit=10\n".to_owned(),
        };
        text
    }

    /// Waits until each says that it serves as one of several.
    fn wait(&mut self, runner: &Runner<'_>) -> Result<(), RunError> {
        let begun = Instant::now();
        while !self.addresses.iter().all(|address| serves(*address)) {
            runner.check_stop()?;
            for at in 0..self.children.len() {
                let has_ended = !matches!(self.children[at].try_wait(), Ok(None));
                if has_ended || begun.elapsed() > START_MAX {
                    let what = if has_ended { "ended" } else { "does not serve" };
                    let log = fs::read_to_string(self.log(at + 1)).unwrap_or_default();
                    return Err(RunError::Command {
                        command: format!("{}.cfg", at + 1),
                        said: format!("the server {what}\n{}", end_of(&log)),
                    });
                }
            }
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(())
    }
}

/// The command that starts a server.
fn command_of(runner: &Runner<'_>, servers: &Servers, config: &Path) -> Result<Command, RunError> {
    let mut command = match servers.program {
        Program::Bezant => Command::new(runner.program),
        Program::ZooKeeper => Command::new("java"),
    };
    match servers.program {
        Program::Bezant => command.args(["zookeeper", "--log-level", "warn", "--config"]),
        Program::ZooKeeper => {
            let jars = runner.zookeeper.as_ref().map(|zookeeper| zookeeper.jars.join("*")).ok_or_else(RunError::without_zookeeper)?;
            // Some of its settings are read before the file is.
            let settings = servers.lines.iter().map(|line| format!("-Dzookeeper.{line}"));
            command.arg(JAVA_HEAP).args(settings).arg("-cp").arg(jars).arg(JAVA_CLASS)
        }
    };
    command.arg(config);
    Ok(command)
}

/// How such servers are started, in words.
pub(super) fn commands_of(runner: &Runner<'_>, servers: &Servers) -> Vec<String> {
    let kind = file_system(runner.folder.path()).map(|kind| format!("{ZOO_CFG}dataDir on {kind}"));
    let lines = servers.lines.iter().map(|line| format!("{ZOO_CFG}{line}")).chain(kind);
    match servers.program {
        Program::Bezant => {
            let (key, start) = ("bezant zookeeper --make-key key-N.pem", "bezant zookeeper --config zoo.cfg");
            std::iter::once(key.to_owned()).chain(lines).chain([start.to_owned()]).collect()
        }
        Program::ZooKeeper => {
            let version = runner.zookeeper.as_ref().map_or("", |zookeeper| &zookeeper.version);
            lines.chain([format!("java {JAVA_HEAP} {JAVA_CLASS} zoo.cfg, of ZooKeeper {version}")]).collect()
        }
    }
}

/// Whether a server says that it leads or follows.
fn serves(address: SocketAddr) -> bool {
    let asked = || -> io::Result<String> {
        let mut stream = TcpStream::connect_timeout(&address, ANSWER_MAX)?;
        stream.set_read_timeout(Some(ANSWER_MAX))?;
        stream.write_all(b"srvr")?;
        let mut said = String::new();
        stream.take(ANSWER_BYTES_MAX).read_to_string(&mut said)?;
        Ok(said)
    };
    asked().is_ok_and(|said| said.contains("Mode: leader") || said.contains("Mode: follower"))
}

/// Free ports of this machine, held all at once until each is found.
fn free_ports(count: usize) -> io::Result<Vec<u16>> {
    let width = PORTS.end - PORTS.start;
    // Somewhere else each time, so that others who look meanwhile find others.
    let begin = u16::try_from(RandomState::new().build_hasher().finish() % u64::from(width)).unwrap_or(0);
    let all = (0..width).map(|step| PORTS.start + u16::try_from((u32::from(begin) + u32::from(step)) % u32::from(width)).unwrap_or(0));
    let held: Vec<TcpListener> = all.filter_map(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok()).take(count).collect();
    if held.len() < count {
        return Err(io::Error::other(format!("fewer than {count} are free")));
    }
    held.iter().map(|listener| Ok(listener.local_addr()?.port())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_differ() {
        let mut ports = free_ports(24).expect("there are some");
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), 24);
        assert!(ports.iter().all(|port| PORTS.contains(port)), "{ports:?}");
    }

    #[test]
    fn a_folder_without_zookeeper_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join("zookeeper-jute-3.9.5.jar"), "").expect("written");
        let said = ZooKeeper::find(folder.path()).expect_err("it is none").to_string();
        assert!(said.contains("zookeeper-N.jar"), "{said}");
    }

    #[test]
    fn nobody_serves_where_nobody_listens() {
        let port = free_ports(1).expect("there is one")[0];
        assert!(!serves(SocketAddr::from((Ipv4Addr::LOCALHOST, port))));
    }
}
