//! Clients of ZooKeeper that run on a JVM, unchanged: Curator's recipes, ZooKeeper's own command line, and a Kafka broker of the last line that
//! keeps its metadata so.
//!
//! `BEZANT_ZOOKEEPER_JARS` names a folder with the jars of `org.apache.zookeeper:zookeeper`, `org.apache.curator:curator-recipes` and what they
//! need, `BEZANT_KAFKA_JARS` one with those of `org.apache.kafka:kafka_2.13` (`docs/testing.md` says how Maven brings them there); where one or Java
//! is missing, nothing is tried, and the test says so.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use zookeeper::{Config, Running};

/// The folder of jars that `variable` names, if there is one, and Java.
fn jars(variable: &str) -> Option<PathBuf> {
    let folder = std::env::var(variable).ok().map(PathBuf::from).filter(|folder| folder.is_dir());
    let has_java = Command::new("java").arg("-version").output().is_ok_and(|output| output.status.success());
    if folder.is_none() || !has_java {
        eprintln!("skipped: {variable} names no folder with jars, or there is no Java");
    }
    folder.filter(|_| has_java)
}

struct Server {
    runtime: tokio::runtime::Runtime,
    running: Running,
    _folder: tempfile::TempDir,
}

fn start() -> Server {
    let folder = tempfile::tempdir().expect("a folder");
    let text = format!(
        "clientPort=0\nclientPortAddress=127.0.0.1\ntickTime=1000\n4lw.commands.whitelist=*\nextendedTypesEnabled=true\ndataDir={}\n",
        folder.path().display()
    );
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("threads");
    let running = runtime.block_on(Running::start(Config::parse(&text).expect("it is a good file"))).expect("it starts");
    Server { runtime, running, _folder: folder }
}

fn java(jars: &Path) -> Command {
    let mut command = Command::new("java");
    command.args(["-Xmx400m", "-cp"]).arg(format!("{}/*", jars.display()));
    command
}

#[test]
fn curators_recipes_work() {
    let Some(jars) = jars("BEZANT_ZOOKEEPER_JARS") else { return };
    let server = start();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/CuratorRecipes.java");
    let output = java(&jars).arg(source).arg(server.running.address().to_string()).output().expect("Java starts");
    let (said, failed) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && said.contains(" checks: "), "{said}\n{failed}");
    eprintln!("{said}");
    server.runtime.block_on(server.running.stop()).expect("it stops");
}

#[test]
fn a_kafka_broker_starts_and_serves() {
    let Some(jars) = jars("BEZANT_KAFKA_JARS") else { return };
    let (server, log) = (start(), tempfile::tempdir().expect("a folder"));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/KafkaRoundTrip.java");
    let port = std::net::TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a free port").port();
    let output = java(&jars)
        .arg(source)
        .args([server.running.address().to_string(), log.path().display().to_string(), port.to_string()])
        .output()
        .expect("Java starts");
    let (said, failed) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && said.contains("100 records"), "{said}\n{failed}");
    eprintln!("{said}");
    server.runtime.block_on(server.running.stop()).expect("it stops");
}

/// What is typed, and what the command line must say somewhere after it.
const TYPED: [(&str, &str); 22] = [
    ("create /a one", "Created /a"),
    ("create -s /a/s- x", "Created /a/s-0000000000"),
    ("create -e /mine", "Created /mine"),
    ("create -c /box", "Created /box"),
    ("create -t 60000 /short", "Created /short"),
    ("ls -R /a", "/a/s-0000000000"),
    ("get -s /a", "dataVersion = 0"),
    ("set -v 0 /a two", ""),
    ("get /a", "two"),
    ("set -v 7 /a three", "version No is not valid"),
    ("stat /a", "numChildren = 1"),
    ("getAllChildrenNumber /", "8"),
    ("getEphemerals /", "/mine"),
    ("addauth digest ann:pw", ""),
    ("setAcl /box auth:ann:pw:cdrwa", ""),
    ("getAcl /box", "'digest,'ann:"),
    ("setquota -n 5 /a", ""),
    ("listquota /a", "Output stat for /a count=2"),
    ("delquota /a", ""),
    ("whoami", "digest: ann"),
    ("sync /a", "Sync is OK"),
    ("deleteall /a", ""),
];

#[test]
fn zookeepers_command_line_works() {
    let Some(jars) = jars("BEZANT_ZOOKEEPER_JARS") else { return };
    let server = start();
    let mut child = java(&jars)
        .args(["org.apache.zookeeper.ZooKeeperMain", "-server", &server.running.address().to_string()])
        .args(["-waitforconnection"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("Java starts");
    let typed: String = TYPED.iter().map(|(typed, _)| format!("{typed}\n")).collect();
    child.stdin.take().expect("it was asked for").write_all(format!("{typed}quit\n").as_bytes()).expect("it reads");
    let output = child.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    for (typed, expected) in TYPED {
        assert!(said.contains(expected), "{typed}: nothing says {expected:?} in\n{said}");
    }
    server.runtime.block_on(server.running.stop()).expect("it stops");
}
