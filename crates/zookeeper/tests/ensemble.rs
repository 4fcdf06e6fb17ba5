//! Three servers as processes of their own, on loopback, with `kill -9`, deleted folders and drills.
//!
//! The processes are this very file: started with [`FILE`] in its environment, the first test serves the `zoo.cfg` that it names.

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use jute::{Acl, Answer, ConnectRequest, ConnectResponse, Create, CreateMode, ErrorCode, Numbered, Reply, Request};
use rustix::process::{Pid, Signal, kill_process};
use zookeeper::{Config, Evidence, Running, Stage, audit_offline, evidence, order_drill};

/// Names the file that a process is to serve.
const FILE: &str = "BEZANT_TEST_ZOO_CFG";
/// How long anything may take that is waited for. It decides only when a test that fails does so.
const PATIENCE: Duration = Duration::from_secs(120);

/// Not a test where nobody asked for a server.
#[test]
fn serves_as_a_process() {
    let Ok(file) = std::env::var(FILE) else { return };
    // Shown where a test fails.
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let config = Config::parse(&std::fs::read_to_string(&file).expect("it was written")).expect("it is a good file");
    // The last one does everything on one thread, as where servers share a host that has fewer cores.
    let runtime = match file.ends_with("zoo-2.cfg") {
        true => tokio::runtime::Builder::new_current_thread().enable_all().build(),
        false => tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build(),
    };
    let runtime = runtime.expect("threads");
    runtime.block_on(async {
        let told = runtime::shutdown::signal();
        let mut running = Running::start(config).await.expect("it starts");
        tokio::select! {
            failure = running.failed() => return eprintln!("stopped: {failure}"),
            told = told => eprintln!("{}", told.expect("signals are heard")),
        }
        running.stop().await.expect("it stops in good order");
    });
}

fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

struct Ensemble {
    folder: tempfile::TempDir,
    addresses: Vec<SocketAddr>,
    processes: Vec<Option<Child>>,
}

impl Ensemble {
    /// Three servers, the numbers of which are 1 to 3, and which repair themselves so often an hour.
    fn new(repairs_an_hour: usize) -> Self {
        Self::with(repairs_an_hour, 3_000)
    }

    /// The same, which look for another leader after so long without a word.
    fn with(repairs_an_hour: usize, timeout_ms: u64) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let free: Vec<TcpListener> = (0..6).map(|_| TcpListener::bind("127.0.0.1:0").expect("a free port")).collect();
        let ports: Vec<u16> = free.iter().map(|listener| listener.local_addr().expect("it is bound").port()).collect();
        let mut servers = String::new();
        for (at, port) in ports[..3].iter().enumerate() {
            let secret = crypto::SecretKey::generate();
            runtime::tls::write_private_key(&folder.path().join(format!("key-{at}.pem")), &secret).expect("it is new");
            let public = hex::encode(secret.public());
            let id = at + 1;
            servers += &format!("server.{id}=127.0.0.1:{port}:{port}\nbezant.server.{id}={public}\n");
        }
        for at in 0..3 {
            let text = format!(
                "tickTime=1000\nclientPort={}\nclientPortAddress=127.0.0.1\ndataDir={}\nsnapCount=300\nmaxSessionTimeout=600000\n4lw.commands.whitelist=*\n\
                 bezant.key={}\nbezant.drills=true\nbezant.timeoutMs={timeout_ms}\nbezant.repairsPerHour={repairs_an_hour}\n{servers}",
                ports[3 + at],
                folder.path().join(format!("data-{at}")).display(),
                folder.path().join(format!("key-{at}.pem")).display(),
            );
            std::fs::write(folder.path().join(format!("zoo-{at}.cfg")), text).expect("it can be written");
        }
        let addresses = ports[3..].iter().map(|port| SocketAddr::from(([127, 0, 0, 1], *port))).collect();
        let mut ensemble = Self { folder, addresses, processes: (0..3).map(|_| None).collect() };
        (0..3).for_each(|at| ensemble.empty(at));
        drop(free);
        (0..3).for_each(|at| ensemble.start(at));
        ensemble
    }

    fn data(&self, at: usize) -> PathBuf {
        self.folder.path().join(format!("data-{at}"))
    }

    /// Deletes what a server has kept.
    fn empty(&self, at: usize) {
        let _ = std::fs::remove_dir_all(self.data(at));
        std::fs::create_dir_all(self.data(at)).expect("a folder");
        std::fs::write(self.data(at).join("myid"), format!("{}\n", at + 1)).expect("it can be written");
    }

    fn start(&mut self, at: usize) {
        let log = std::fs::File::options().create(true).append(true).open(self.folder.path().join(format!("log-{at}"))).expect("a file");
        let child = Command::new(std::env::current_exe().expect("this file"))
            .args(["--exact", "ensemble::serves_as_a_process", "--nocapture"])
            .env(FILE, self.folder.path().join(format!("zoo-{at}.cfg")))
            .stdout(Stdio::null())
            .stderr(log)
            .spawn();
        self.processes[at] = Some(child.expect("it starts"));
    }

    /// `kill -9`.
    fn kill(&mut self, at: usize) {
        let mut child = self.processes[at].take().expect("it runs");
        child.kill().expect("it may be killed");
        child.wait().expect("it ends");
    }

    /// `kill`: it stops in good order.
    fn stop(&mut self, at: usize) {
        let mut child = self.processes[at].take().expect("it runs");
        kill_process(Pid::from_child(&child), Signal::TERM).expect("it may be told to stop");
        assert!(child.wait().expect("it ends").success());
    }

    fn word(&self, at: usize, word: &str) -> String {
        let mut said = String::new();
        let asked = TcpStream::connect(self.addresses[at]).and_then(|mut stream| {
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.write_all(word.as_bytes())?;
            stream.read_to_string(&mut said)
        });
        asked.map(|_| said).unwrap_or_default()
    }

    fn mode(&self, at: usize) -> Option<String> {
        self.word(at, "srvr").lines().find_map(|line| line.strip_prefix("Mode: ").map(str::to_owned))
    }

    fn leader(&self) -> Option<usize> {
        (0..3).find(|at| self.mode(*at).as_deref() == Some("leader"))
    }

    fn wait_for_leader(&self) -> usize {
        let mut leader = None;
        eventually("somebody leads", || {
            leader = self.leader();
            leader.is_some()
        });
        leader.expect("somebody leads")
    }

    fn wait_for_all(&self) -> usize {
        eventually("all serve", || (0..3).all(|at| self.mode(at).is_some()));
        self.wait_for_leader()
    }
}

impl Drop for Ensemble {
    fn drop(&mut self) {
        for child in self.processes.iter_mut().flatten() {
            let _ = child.kill();
            let _ = child.wait();
        }
        if std::thread::panicking() {
            for at in 0..3 {
                let log = std::fs::read_to_string(self.folder.path().join(format!("log-{at}"))).unwrap_or_default();
                eprintln!("--- server {at}\n{log}");
            }
        }
    }
}

/// A client that finds another server when its own is gone, and keeps its session.
struct Client {
    addresses: Vec<SocketAddr>,
    at: usize,
    stream: Option<TcpStream>,
    session: i64,
    password: Vec<u8>,
    zxid: i64,
    xid: i32,
    timeout_ms: i32,
}

fn exchange(stream: &mut TcpStream, body: &[u8]) -> Option<Vec<u8>> {
    let length = u32::try_from(body.len()).expect("frames are short");
    stream.write_all(&[&length.to_be_bytes(), body].concat()).ok()?;
    let mut length = [0; 4];
    stream.read_exact(&mut length).ok()?;
    let mut answer = vec![0; u32::from_be_bytes(length) as usize];
    stream.read_exact(&mut answer).ok()?;
    Some(answer)
}

impl Client {
    fn of(ensemble: &Ensemble, at: usize, timeout_ms: i32) -> Self {
        let addresses = ensemble.addresses.clone();
        Self { addresses, at, stream: None, session: 0, password: vec![0; 16], zxid: 0, xid: 0, timeout_ms }
    }

    /// One attempt at the next server.
    fn connect(&mut self) -> Option<()> {
        let address = self.addresses[self.at % self.addresses.len()];
        let mut stream = TcpStream::connect(address).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
        let mut body = Vec::new();
        ConnectRequest {
            timeout_ms: self.timeout_ms,
            last_zxid_seen: self.zxid,
            session: self.session,
            password: self.password.clone(),
            ..Default::default()
        }
        .encode(&mut body);
        let answer = ConnectResponse::decode(&exchange(&mut stream, &body)?).ok()?;
        assert!(answer.session != 0, "the session is gone");
        (self.session, self.password) = (answer.session, answer.password.to_vec());
        self.stream = Some(stream);
        Some(())
    }

    /// One attempt: nothing when nobody knows what became of it.
    fn ask(&mut self, request: Request) -> Option<Result<Answer, ErrorCode>> {
        if self.stream.is_none() && self.connect().is_none() {
            self.at += 1;
            std::thread::sleep(Duration::from_millis(20));
            return None;
        }
        let opcode = request.opcode();
        self.xid += 1;
        let mut body = Vec::new();
        Numbered { xid: self.xid, request }.encode(&mut body);
        let stream = self.stream.as_mut().expect("it is connected");
        let Some(answer) = exchange(stream, &body) else {
            self.stream = None;
            self.at += 1;
            return None;
        };
        let reply = Reply::decode(&answer, opcode).expect("a server answers so");
        assert_eq!(reply.xid, self.xid, "answers come in order");
        self.zxid = self.zxid.max(reply.zxid);
        Some(reply.answer)
    }

    /// Until it is answered.
    fn insist(&mut self, request: &Request) -> Result<Answer, ErrorCode> {
        let mut answer = None;
        eventually("an answer", || {
            answer = self.ask(request.clone());
            answer.is_some()
        });
        answer.expect("it was answered")
    }

    fn exists(&mut self, path: &str) -> bool {
        self.insist(&Request::Exists { path: path.to_owned(), watch: false }).is_ok()
    }

    fn sync(&mut self) {
        self.insist(&Request::Sync { path: "/".to_owned() }).expect("it is there");
    }
}

fn create(path: &str, mode: CreateMode) -> Request {
    let data = Some(vec![7; 100].into());
    Request::Create(Create { path: path.to_owned(), data, acl: vec![Acl::open()], mode, sequential: false, wants_stat: false })
}

/// Clients that write as fast as they are answered.
struct Load {
    stop: Arc<AtomicBool>,
    acknowledged: Arc<AtomicUsize>,
    paths: Arc<Mutex<Vec<String>>>,
    writers: Vec<std::thread::JoinHandle<()>>,
}

impl Load {
    fn start(ensemble: &Ensemble, name: &str) -> Self {
        let (stop, acknowledged, paths) = <(Arc<AtomicBool>, Arc<AtomicUsize>, Arc<Mutex<Vec<String>>>)>::default();
        let writers = (0..3).map(|writer| {
            let mut client = Client::of(ensemble, writer, 600_000);
            let (stop, acknowledged, paths, name) = (stop.clone(), acknowledged.clone(), paths.clone(), name.to_owned());
            std::thread::spawn(move || {
                for number in 0.. {
                    let path = format!("/{name}-{writer}-{number}");
                    let mut answer = None;
                    while answer.is_none() && !stop.load(Ordering::Relaxed) {
                        answer = client.ask(create(&path, CreateMode::Persistent));
                    }
                    match answer {
                        // It may have been done by the attempt before, of which nobody heard.
                        Some(Ok(_) | Err(ErrorCode::NodeExists)) => {
                            paths.lock().expect("nobody panics").push(path);
                            acknowledged.fetch_add(1, Ordering::Relaxed);
                        }
                        Some(Err(code)) => panic!("{path}: {code}"),
                        None => return,
                    }
                }
            })
        });
        let writers = writers.collect();
        Self { stop, acknowledged, paths, writers }
    }

    fn go_on(&self, more: usize) {
        let before = self.acknowledged.load(Ordering::Relaxed);
        eventually("writes go on", || self.acknowledged.load(Ordering::Relaxed) >= before + more);
    }

    fn stop(self) -> Vec<String> {
        self.stop.store(true, Ordering::Relaxed);
        self.writers.into_iter().for_each(|writer| writer.join().expect("it ends"));
        self.paths.lock().expect("nobody panics").clone()
    }
}

fn check_all(ensemble: &Ensemble, expected: &[String]) {
    for at in 0..3 {
        let mut client = Client::of(ensemble, at, 600_000);
        client.sync();
        let Ok(Answer::Names(names)) = client.insist(&Request::GetChildren { path: "/".to_owned(), watch: false }) else {
            panic!("the root is there")
        };
        let names: BTreeSet<String> = names.into_iter().map(|name| format!("/{name}")).collect();
        let lost: Vec<&String> = expected.iter().filter(|path| !names.contains(*path)).collect();
        assert!(lost.is_empty(), "{} of {} were acknowledged, and are lost at server {at}: {:?}", lost.len(), expected.len(), lost.first());
    }
}

#[test]
fn nothing_acknowledged_is_lost_to_kill_9_restarts_and_a_deleted_folder() {
    let mut ensemble = Ensemble::new(3);
    let leader = ensemble.wait_for_all();
    let mut holder = Client::of(&ensemble, leader, 600_000);
    holder.insist(&create("/held", CreateMode::Ephemeral)).expect("it is new");
    let mut leaving = Client::of(&ensemble, (leader + 1) % 3, 600_000);
    leaving.insist(&create("/left", CreateMode::Ephemeral)).expect("it is new");
    let load = Load::start(&ensemble, "a");
    load.go_on(200);
    ensemble.kill(leader);
    load.go_on(200);
    assert!(holder.exists("/held"), "the session is at another server now, and its node is there");
    leaving.insist(&Request::CloseSession).expect("it is there");
    assert!(!holder.exists("/left"));
    ensemble.start(leader);
    ensemble.wait_for_all();
    // One after the other, the last of them with an empty folder.
    for at in 0..3 {
        ensemble.kill(at);
        load.go_on(50);
        if at == 2 {
            ensemble.empty(at);
        }
        ensemble.start(at);
        ensemble.wait_for_all();
        load.go_on(400);
    }
    assert!(holder.exists("/held"));
    let expected = load.stop();
    check_all(&ensemble, &expected);
    (0..3).for_each(|at| ensemble.kill(at));
    let folders: Vec<PathBuf> = (0..3).map(|at| ensemble.data(at)).collect();
    let audit = audit_offline(&folders);
    assert!(audit.is_clean() && audit.has_majority, "{audit:?}");
}

/// They would wait for it for a minute if it did not say that it stops.
#[test]
fn a_leader_that_is_stopped_hands_over() {
    const SILENCE: Duration = Duration::from_secs(60);
    let mut ensemble = Ensemble::with(0, SILENCE.as_secs() * 1_000);
    let mut leader = ensemble.wait_for_all();
    let mut holder = Client::of(&ensemble, leader, 600_000);
    holder.insist(&create("/held", CreateMode::Ephemeral)).expect("it is new");
    let load = Load::start(&ensemble, "a");
    for _ in 0..2 {
        load.go_on(200);
        let before = Instant::now();
        ensemble.stop(leader);
        load.go_on(200);
        assert!(before.elapsed() < SILENCE, "they found out by its silence");
        ensemble.start(leader);
        leader = ensemble.wait_for_all();
    }
    assert!(holder.exists("/held"));
    let expected = load.stop();
    check_all(&ensemble, &expected);
}

fn drill(ensemble: &Ensemble, at: usize, what: &str, path: &str) -> String {
    let answer = try_drill(ensemble, at, what, path);
    assert!(answer.starts_with("damaged"), "{answer:?}");
    answer
}

/// What the server says to it, which is nothing where it has just found itself wrong.
fn try_drill(ensemble: &Ensemble, at: usize, what: &str, path: &str) -> String {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a thread");
    runtime.block_on(order_drill(&ensemble.addresses[at].to_string(), what, path)).unwrap_or_default()
}

/// Damages the disk of a server, which is then down: a bit of its log or of a snapshot, or its log is missing, or a part of it. A snapshot that is not the newest any more by then is passed over, and another one damaged.
fn damage_disk(ensemble: &mut Ensemble, at: usize, what: &str) {
    let log = ensemble.data(at).join("sentinel-log");
    if let "missing" | "gone" = what {
        ensemble.kill(at);
        let removed = if what == "gone" { std::fs::remove_dir_all(log) } else { std::fs::remove_file(log.join("identity.toml")) };
        removed.expect("it was there");
        return;
    }
    let began = Instant::now();
    loop {
        assert!(began.elapsed() < PATIENCE, "no damage stays: {what}");
        let answer = drill(ensemble, at, what, "/");
        ensemble.kill(at);
        let snapshots = std::fs::read_dir(ensemble.data(at).join("sentinel-snapshots")).expect("it is there");
        let names = snapshots.filter_map(|file| file.ok()?.file_name().into_string().ok()).filter(|name| name.starts_with('0'));
        if what != "snapshot" || answer.ends_with(&names.max().expect("one is there")) {
            return;
        }
        ensemble.start(at);
        ensemble.wait_for_all();
    }
}

fn noticed(data: &Path) -> Vec<Evidence> {
    evidence(data).unwrap_or_default()
}

impl Ensemble {
    /// Waits until a server has finished so many repairs, and serves, as all do.
    fn wait_for_repairs(&self, at: usize, count: usize) -> usize {
        let repaired = |found: &Evidence| found.stage == Some(Stage::Repaired);
        eventually("it repairs itself", || noticed(&self.data(at)).iter().filter(|found| repaired(found)).count() >= count);
        self.wait_for_all()
    }
}

#[test]
fn a_server_that_is_wrong_repairs_itself_while_writes_go_on() {
    let mut ensemble = Ensemble::new(20);
    let mut repairs = [0; 3];
    let leader = ensemble.wait_for_all();
    let load = Load::start(&ensemble, "a");
    load.go_on(400);
    // A follower's memory: it lost a transaction, and does not acknowledge the next.
    let follower = (leader + 1) % 3;
    drill(&ensemble, follower, "drop", "/");
    repairs[follower] += 1;
    let leader = ensemble.wait_for_repairs(follower, repairs[follower]);
    load.go_on(100);
    // The leader's memory: it steps down before it proposes what is wrong.
    drill(&ensemble, leader, "stat", "/");
    repairs[leader] += 1;
    let found = ensemble.wait_for_repairs(leader, repairs[leader]);
    let record = noticed(&ensemble.data(leader)).pop().expect("it was noticed");
    assert_eq!(record.path.as_deref(), Some("/"));
    assert!(record.digests.is_some() && record.steps.len() >= 4, "{record:?}");
    let differing: Vec<&str> =
        record.fields.iter().filter(|field| field.reread.as_ref() != Some(&field.found)).map(|field| field.name.as_str()).collect();
    assert!(differing.contains(&"ctime"), "{record:?}");
    load.go_on(100);
    // What a leader proposes: a majority refuses it, and it takes that back.
    drill(&ensemble, found, "proposal", "/");
    repairs[found] += 1;
    let leader = ensemble.wait_for_repairs(found, repairs[found]);
    assert!(noticed(&ensemble.data(found)).iter().any(|record| record.what.contains("a majority of the servers")));
    load.go_on(100);
    // The log, of a follower and then of a leader; and a snapshot: noticed at the next start. So is a log that is not there.
    let log = [((leader + 1) % 3, "log"), (leader, "log"), ((leader + 1) % 3, "missing"), ((leader + 2) % 3, "gone")];
    for (at, what) in log.into_iter().chain([((leader + 2) % 3, "snapshot")]) {
        damage_disk(&mut ensemble, at, what);
        load.go_on(100);
        ensemble.start(at);
        repairs[at] += 1;
        ensemble.wait_for_repairs(at, repairs[at]);
        let record = noticed(&ensemble.data(at)).pop().expect("it was noticed");
        assert!(what != "gone" || record.what.ends_with("sentinel-log is missing"), "{record:?}");
        let aside = record.aside.expect("damaged files are put aside");
        assert!(ensemble.data(at).join("sentinel-damaged").join(aside).exists());
        load.go_on(100);
    }
    let mntr = ensemble.word(leader, "mntr");
    assert!(mntr.contains("zk_repair_stage\tnone") && mntr.contains("zk_repairs_finished\t"), "{mntr}");
    let expected = load.stop();
    check_all(&ensemble, &expected);
    let repaired = |at: usize| noticed(&ensemble.data(at)).iter().all(|found| matches!(found.stage, Some(Stage::Repaired | Stage::Failed)));
    assert!((0..3).all(repaired), "nothing is left to be repaired");
    (0..3).for_each(|at| ensemble.kill(at));
    let folders: Vec<PathBuf> = (0..3).map(|at| ensemble.data(at)).collect();
    let audit = audit_offline(&folders);
    assert!(audit.is_clean() && audit.has_majority, "{audit:?}");
}

#[test]
fn a_server_that_may_not_repair_itself_stays_quarantined_until_it_is_started_again() {
    let mut ensemble = Ensemble::new(0);
    let leader = ensemble.wait_for_all();
    let [one, other] = [(leader + 1) % 3, (leader + 2) % 3];
    let load = Load::start(&ensemble, "a");
    load.go_on(100);
    drill(&ensemble, one, "drop", "/");
    eventually("it is noticed", || noticed(&ensemble.data(one)).iter().any(|record| record.stage == Some(Stage::Refused)));
    load.go_on(200);
    assert!(ensemble.mode(one).is_none());
    let mntr = ensemble.word(one, "mntr");
    assert!(mntr.contains("zk_digest_mismatches_count\t1") && mntr.contains("zk_repair_stage\trefused"), "{mntr}");
    assert!(ensemble.word(one, "srvr").contains("bezant.repairsPerHour is 0"));
    eventually("the leader knows who disagrees", || ensemble.word(leader, "mntr").contains("zk_disagreeing_followers\t1"));
    assert!(noticed(&ensemble.data(leader)).is_empty() && noticed(&ensemble.data(other)).is_empty());
    // One whose disk makes no sense answers operators too.
    ensemble.kill(one);
    ensemble.start(one);
    ensemble.wait_for_all();
    damage_disk(&mut ensemble, one, "log");
    ensemble.start(one);
    eventually("it answers operators", || ensemble.word(one, "mntr").contains("zk_repair_stage\trefused"));
    load.go_on(100);
    // With an empty folder it takes over what the others have.
    ensemble.kill(one);
    ensemble.empty(one);
    ensemble.start(one);
    ensemble.wait_for_all();
    let expected = load.stop();
    check_all(&ensemble, &expected);
}

/// What is damaged in memory, by its name in drills.
const IN_MEMORY: [&str; 4] = ["data", "stat", "acl", "children"];

/// Makes a node with a child, which nobody writes from then on.
fn create_quiet(client: &mut Client, path: &str) {
    client.insist(&create(path, CreateMode::Persistent)).expect("it is new");
    client.insist(&create(&format!("{path}/child"), CreateMode::Persistent)).expect("it is new");
}

/// All that can be asked of a node.
fn questions(path: &str) -> [Request; 4] {
    let path = path.to_owned();
    [
        Request::GetData { path: path.clone(), watch: false },
        Request::GetAcl { path: path.clone() },
        Request::GetChildren2 { path: path.clone(), watch: false },
        Request::Exists { path, watch: false },
    ]
}

/// Clients that ask for nodes that nobody writes, one at each server, and hold what they are told against what was so at first.
struct Readers {
    stop: Arc<AtomicBool>,
    answered: Arc<[AtomicUsize; 3]>,
    readers: Vec<std::thread::JoinHandle<()>>,
}

impl Readers {
    fn start(ensemble: &Ensemble, paths: &[String]) -> Self {
        let (stop, answered) = <(Arc<AtomicBool>, Arc<[AtomicUsize; 3]>)>::default();
        let questions: Vec<Request> = paths.iter().flat_map(|path| questions(path)).collect();
        let mut first = Client::of(ensemble, 0, 600_000);
        let right: Vec<_> = questions.iter().map(|question| first.insist(question).expect("it is there")).collect();
        let readers = (0..3).map(|at| {
            let mut client = Client::of(ensemble, 0, 600_000);
            client.addresses = vec![ensemble.addresses[at]];
            let (stop, answered, questions, right) = (stop.clone(), answered.clone(), questions.clone(), right.clone());
            std::thread::spawn(move || {
                client.sync();
                for (question, right) in questions.iter().zip(&right).cycle() {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    if let Some(answer) = client.ask(question.clone()) {
                        assert_eq!(answer.as_ref(), Ok(right), "server {at} said something wrong to {question:?}");
                        answered[at].fetch_add(1, Ordering::Relaxed);
                    }
                }
            })
        });
        let readers = readers.collect();
        Self { stop, answered, readers }
    }

    /// Waits until each server has answered as much as there is to ask, and more.
    fn go_on(&self, more: usize) {
        let count = |at: usize| self.answered[at].load(Ordering::Relaxed);
        let before: Vec<usize> = (0..3).map(count).collect();
        eventually("all are answered", || (0..3).all(|at| count(at) >= before[at] + more));
    }

    fn stop(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.readers.into_iter().for_each(|reader| reader.join().expect("nothing wrong was said"));
    }
}

/// Waits until a server has noticed damage at one of these nodes, by itself alone, and serves again. Gives its record.
fn check_noticed(ensemble: &Ensemble, at: usize, records: &mut [usize; 3], paths: &[String]) -> Evidence {
    ensemble.wait_for_repairs(at, records[at] + 1);
    let record = noticed(&ensemble.data(at)).swap_remove(records[at]);
    assert!(record.path.as_ref().is_some_and(|path| paths.contains(path)), "{paths:?}: {record:?}");
    assert!(record.noticed_by == "serving" && record.digests.is_some(), "{record:?}");
    let changed = record.fields.iter().any(|field| field.reread.as_ref().is_some_and(|reread| *reread != field.found));
    assert!(changed, "it says what was wrong: {record:?}");
    let counts = [0, 1, 2].map(|at| noticed(&ensemble.data(at)).len());
    assert!((0..3).all(|other| other == at || counts[other] == records[other]), "who is right is not blamed: {records:?}, {counts:?}");
    records[at] = counts[at];
    record
}

/// Cells of the table in *Sentinel as built*, with processes in place of virtual time: who notices what, that nobody is told anything wrong, and that the
/// server comes back by itself.
#[test]
fn damage_in_memory_is_noticed_by_the_server_that_has_it_before_it_says_anything_wrong() {
    let mut ensemble = Ensemble::new(50);
    let mut records = [0; 3];
    ensemble.wait_for_all();
    let mut client = Client::of(&ensemble, 0, 600_000);
    let read: Vec<String> = IN_MEMORY.iter().map(|what| format!("/read-{what}")).collect();
    let unread: Vec<String> = (0..24).map(|number| format!("/unread-{number}")).collect();
    read.iter().chain(&unread).for_each(|path| create_quiet(&mut client, path));
    // While there are readers and writers: whoever reads the node first has it noticed, unless a snapshot came first.
    let (load, readers) = (Load::start(&ensemble, "a"), Readers::start(&ensemble, &read));
    readers.go_on(4 * read.len());
    for (what, path) in IN_MEMORY.iter().zip(&read) {
        for leads in [false, true] {
            let at = (ensemble.wait_for_all() + usize::from(!leads)) % 3;
            drill(&ensemble, at, what, path);
            check_noticed(&ensemble, at, &mut records, std::slice::from_ref(path));
            readers.go_on(4 * read.len());
            load.go_on(20);
        }
    }
    readers.stop();
    let expected = load.stop();
    // While there is nobody: the scrubber, which passes one of so many nodes soon.
    for (leads, what) in [false, true, false, true].into_iter().zip(IN_MEMORY) {
        let at = (ensemble.wait_for_all() + usize::from(!leads)) % 3;
        drill(&ensemble, at, what, &unread[0]);
        for path in &unread[1..] {
            // It may have noticed one of those before.
            if !try_drill(&ensemble, at, what, path).starts_with("damaged") {
                eventually("it has noticed", || noticed(&ensemble.data(at)).len() > records[at]);
                break;
            }
        }
        let is_early = noticed(&ensemble.data(at)).len() > records[at];
        let record = check_noticed(&ensemble, at, &mut records, &unread);
        assert!(record.what.starts_with("a node does not hash to its leaf any more"), "{record:?}");
        if is_early {
            // The last drills may have damaged the memory that it has since.
            ensemble.kill(at);
            ensemble.start(at);
            ensemble.wait_for_all();
            records[at] = noticed(&ensemble.data(at)).len();
        }
    }
    // The newest snapshot of a leader: noticed at its next start.
    let leader = ensemble.wait_for_all();
    damage_disk(&mut ensemble, leader, "snapshot");
    ensemble.start(leader);
    eventually("it is noticed", || noticed(&ensemble.data(leader)).last().is_some_and(|record| record.noticed_by == "start"));
    ensemble.wait_for_repairs(leader, noticed(&ensemble.data(leader)).len());
    check_all(&ensemble, &expected);
    (0..3).for_each(|at| ensemble.kill(at));
    let folders: Vec<PathBuf> = (0..3).map(|at| ensemble.data(at)).collect();
    let audit = audit_offline(&folders);
    assert!(audit.is_clean() && audit.has_majority, "{audit:?}");
}
