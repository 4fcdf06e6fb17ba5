//! Whole clusters in one thread: the replicas of two shards over their multicast, janitors beside them, and the sessions of clients.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

use augustus::limits::SESSIONS_MAX;
use augustus::multicast::{Message, Options};
use augustus::{MomentAnswer, Server, Session, Settings, Shard, Structural};
use bytes::Bytes;
use crypto::{BatchSigner, SecretKey, Signatures, Verifier};
use engine::{Ask, CommitRequest, Evidence, Found, Operation, ReadMode, Refusal, Request, Response, Tell};
use machine::turn::{Bounds, NoSigner, Turns};
use machine::{Input, Time};
use store::{Crash, Memory, Store};
use types::codec::{Decode as _, Encode as _};
use types::{ClientId, Cluster, ClusterId, Direction, Key, Party, Permission, Placement, ReplicaId, ShardId, Timestamp, Value};

const CLUSTER: ClusterId = ClusterId::new([7; 16]);
const OPTIONS: Options = Options { checkpoint_interval: 8, timeout_ms: 500, pipeline: 4, journal_bytes_max: 1 << 20 };
const ALICE: Party = Party::Client(ClientId(1), types::Session(5));
const BOB: Party = Party::Client(ClientId(2), types::Session(5));
/// Without rights to read what Alice writes.
const CAROL: Party = Party::Client(ClientId(3), types::Session(5));
const TIMEOUT_MS: u64 = 5_000;

type Outcome = Result<Response, Refusal>;
type Loses = Box<dyn FnMut(Party, Party, &Message) -> bool>;

fn secret(number: usize) -> SecretKey {
    SecretKey::from_bytes([u8::try_from(number).expect("few"); 32])
}

fn replicas() -> impl Iterator<Item = ReplicaId> {
    (0..2).flat_map(|shard| (0..4).map(move |index| ReplicaId { shard: ShardId(shard), index }))
}

fn number_of(replica: ReplicaId) -> usize {
    usize::from(replica.shard.0) * 4 + usize::from(replica.index) + 1
}

struct World {
    cluster: Arc<Cluster>,
    now: Time,
    verifier: Arc<Verifier>,
    nodes: BTreeMap<ReplicaId, Turns<Server<Memory>>>,
    disks: BTreeMap<ReplicaId, Memory>,
    sessions: BTreeMap<Party, Turns<Session>>,
    queue: VecDeque<(Party, Party, Bytes)>,
    answers: BTreeMap<(Party, u64), Outcome>,
    last_operation: u64,
    /// Whether a message is lost.
    loses: Loses,
    /// Who lies about moments.
    liar: Option<ReplicaId>,
    /// How many answers of replicas were signed.
    signed: usize,
    /// How many requests were sent to be ordered.
    requests: usize,
    /// How many messages made a replica do what is due to all.
    for_all: usize,
}

impl World {
    fn new(placement: Placement) -> Self {
        let keys = (0..2).map(|shard| (0..4).map(|index| secret(shard * 4 + index + 1).public()).collect()).collect();
        let client = |id: u64, prefix: &str| {
            let public_key = secret(100 + usize::try_from(id).expect("few")).public();
            let prefixes = vec![Key::from(prefix)];
            (
                ClientId(id),
                Permission {
                    public_key,
                    read_prefixes: prefixes.clone(),
                    write_prefixes: prefixes,
                    limits: types::ClientLimits::default(),
                },
            )
        };
        let clients = vec![client(1, ""), client(2, ""), client(3, "z")];
        let cluster = Arc::new(Cluster::new(CLUSTER, 1, placement, keys, clients).expect("its parts fit"));
        let verifier = Arc::new(Verifier::new(cluster.clone(), Signatures::Ed25519, 1_024).expect("good keys"));
        let mut world = Self {
            now: Time(1_000_000_000),
            verifier,
            nodes: BTreeMap::new(),
            disks: replicas().map(|replica| (replica, Memory::new(&replica.to_string()))).collect(),
            sessions: BTreeMap::new(),
            queue: VecDeque::new(),
            answers: BTreeMap::new(),
            last_operation: 0,
            loses: Box::new(|_, _, _| false),
            liar: None,
            signed: 0,
            requests: 0,
            for_all: 0,
            cluster,
        };
        replicas().for_each(|replica| world.start(replica));
        [ALICE, BOB, CAROL].into_iter().for_each(|party| world.connect(party));
        world
    }

    /// Keys below `m` on the first shard, all others on the second.
    fn by_ranges() -> Self {
        Self::new(Placement::Ranges(vec![Key::from("m")]))
    }

    fn start(&mut self, replica: ReplicaId) {
        let store = Store::open(self.disks[&replica].clone(), store::Options::default()).expect("the disk is whole");
        let settings = Settings { cluster: self.cluster.clone(), shard: replica.shard, structural: Structural::default() };
        let shard = Shard::new(settings, replica.index, self.verifier.clone());
        let server = Server::open(self.cluster.clone(), replica, OPTIONS, shard, store, self.now).expect("its own journal");
        self.nodes.insert(replica, Turns::new(server, Party::Replica(replica), Bounds::default()));
    }

    fn crash(&mut self, replica: ReplicaId) {
        self.nodes.remove(&replica);
        self.disks[&replica].crash(Crash::default());
    }

    fn connect(&mut self, party: Party) {
        let session = Session::new(self.cluster.clone(), party, TIMEOUT_MS).expect("a client of a cluster of this engine");
        self.sessions.insert(party, Turns::new(session, party, Bounds::default()));
    }

    fn take(&mut self, from: Party, sends: Vec<(Party, Message)>) {
        for (to, mut message) in sends {
            if let (Some(liar), Message::QueryReply { answer: Some(answer), .. }) = (self.liar, &mut message)
                && from == Party::Replica(liar)
                && let Ok(MomentAnswer::Page(mut page)) = MomentAnswer::from_bytes(answer.clone(), CLUSTER)
            {
                page.rows.iter_mut().for_each(|(_, value)| *value = Value::from("1000"));
                *answer = MomentAnswer::Page(page).to_bytes().into();
            }
            if matches!(message, Message::Reply { signed: Some(_), .. }) {
                self.signed += 1;
            }
            self.requests += usize::from(matches!(message, Message::Request(_)));
            if !(self.loses)(from, to, &message) {
                self.queue.push_back((from, to, message.to_bytes().into()));
            }
        }
    }

    fn turn(&mut self, party: Party, input: Option<(Party, Bytes)>, command: Option<Ask>) {
        let message = input.and_then(|(from, bytes)| {
            let message = Message::from_bytes(bytes, CLUSTER).expect("what is said can be read");
            Some((from, self.verifier.verify(message).ok()?))
        });
        let mut sends = Vec::new();
        match party {
            Party::Replica(replica) => {
                let signer = BatchSigner::new(secret(number_of(replica)), CLUSTER, replica, Signatures::Ed25519);
                let Some(turns) = self.nodes.get_mut(&replica) else { return };
                let mut turn = turns.begin(self.now);
                if let Some((from, message)) = message {
                    turn.step(self.now, Input::Message { from, message });
                    self.for_all += usize::from(turn.was_for_all());
                }
                let mut signer = signer;
                let said = turn.stepped(self.now).persist().expect("the disk is whole").sign(&mut signer);
                sends.extend(said.own.drain(..).map(|message| (party, message)));
                sends.append(said.sends);
            }
            Party::Client(..) => {
                let Some(turns) = self.sessions.get_mut(&party) else { return };
                let mut turn = turns.begin(self.now);
                message.into_iter().for_each(|(from, message)| turn.step(self.now, Input::Message { from, message }));
                command.into_iter().for_each(|ask| turn.step(self.now, Input::Command(ask)));
                let said = turn.stepped(self.now).persist().expect("it writes nothing").sign(&mut NoSigner);
                sends.append(said.sends);
                for tell in said.events.drain(..) {
                    let Tell::Response { operation, outcome } = tell else { continue };
                    assert!(self.answers.insert((party, operation), outcome).is_none(), "each ask is answered once");
                }
            }
        }
        self.take(party, sends);
    }

    /// Lets time pass, and all that happens meanwhile.
    fn run_ms(&mut self, milliseconds: u64) {
        let end = self.now.after_ms(milliseconds);
        loop {
            while let Some((from, to, bytes)) = self.queue.pop_front() {
                self.turn(to, Some((from, bytes)), None);
            }
            let nodes = self.nodes.iter().map(|(replica, turns)| (Party::Replica(*replica), turns.wakes_at()));
            let sessions = self.sessions.iter().map(|(party, turns)| (*party, turns.wakes_at()));
            let wakes: Vec<(Party, Time)> = nodes.chain(sessions).filter_map(|(party, at)| Some((party, at?))).collect();
            if self.now >= end {
                return;
            }
            let next = wakes.iter().map(|(_, at)| *at).min().unwrap_or(end);
            self.now = next.clamp(self.now.after_us(100), end);
            for (party, at) in wakes {
                if at <= self.now {
                    self.turn(party, None, None);
                }
            }
        }
    }

    fn begin(&mut self, party: Party, request: Request) -> u64 {
        self.last_operation += 1;
        self.turn(party, None, Some(Ask { operation: self.last_operation, request }));
        self.last_operation
    }

    fn ask(&mut self, party: Party, request: Request) -> Outcome {
        let operation = self.begin(party, request);
        for _ in 0..TIMEOUT_MS / 10 + 1 {
            self.run_ms(10);
            if let Some(outcome) = self.answers.remove(&(party, operation)) {
                return outcome;
            }
        }
        panic!("it is not answered in time");
    }

    fn submit(&mut self, party: Party, operations: Vec<Operation>) -> Result<Vec<Option<Value>>, Refusal> {
        match self.ask(party, Request::Submit { timestamp: timestamp(), operations })? {
            Response::Done { values, .. } => Ok(values),
            other => panic!("{other:?}"),
        }
    }

    fn scan(&mut self, party: Party, low: &str, high: &str, limit: usize) -> Result<Found, Refusal> {
        self.scan_in(party, Direction::Ascending, (low, high), limit)
    }

    fn scan_in(&mut self, party: Party, direction: Direction, (low, high): (&str, &str), limit: usize) -> Result<Found, Refusal> {
        let (low, high, mode) = (Key::from(low), Key::from(high), ReadMode::Interactive);
        match self.ask(party, Request::Scan { timestamp: timestamp(), low, high, direction, limit, mode })? {
            Response::Found(found) => Ok(found),
            other => panic!("{other:?}"),
        }
    }

    fn commit(&mut self, party: Party, reads: Vec<Evidence>, writes: &[(&str, &str)]) -> Result<(), Refusal> {
        let writes = writes.iter().map(|(key, value)| (Key::from(*key), Some(Value::from(*value)))).collect();
        self.ask(party, Request::Commit(CommitRequest { timestamp: timestamp(), reads, writes })).map(drop)
    }

    fn pending(&self) -> usize {
        self.nodes.values().map(|turns| turns.machine().node().replica().application().executor().pending().len()).sum()
    }
}

fn timestamp() -> Timestamp {
    Timestamp::new(1, ClientId(1))
}

fn put(key: &str, value: &str) -> Operation {
    Operation::Put(Key::from(key), Value::from(value))
}

fn get(key: &str) -> Operation {
    Operation::Get(Key::from(key))
}

fn compare(key: &str, value: &str) -> Operation {
    Operation::Compare(Key::from(key), Some(Value::from(value)))
}

fn text(found: &Found) -> Vec<String> {
    found.found.iter().map(|(key, value)| format!("{key}={}", value.as_ref().expect("a scan gives values"))).collect()
}

fn values(found: Vec<Option<Value>>) -> Vec<Option<String>> {
    found.into_iter().map(|value| value.map(|value| value.to_string())).collect()
}

#[test]
fn a_transaction_over_two_shards_takes_place_at_both_or_at_none_and_leaves_no_lock() {
    let mut world = World::by_ranges();
    assert_eq!(world.submit(ALICE, vec![put("a", "1"), put("z", "2")]).map(values), Ok(vec![]));
    assert_eq!(
        world.submit(ALICE, vec![compare("a", "1"), compare("z", "3"), put("a", "5")]),
        Err(Refusal::CompareFailed { operation: 1 })
    );
    assert_eq!(world.submit(BOB, vec![get("z"), get("a")]).map(values), Ok(vec![Some("2".into()), Some("1".into())]));
    world.run_ms(1_000);
    assert_eq!(world.pending(), 0, "its own process ends each");
}

#[test]
fn what_is_within_one_shard_or_only_reads_needs_no_signature() {
    let mut world = World::by_ranges();
    assert!(world.submit(ALICE, vec![put("a", "1"), put("b", "2")]).is_ok());
    assert!(world.submit(ALICE, vec![get("a"), get("z")]).is_ok());
    assert_eq!(world.signed, 0);
    assert!(world.submit(ALICE, vec![put("a", "1"), put("z", "2")]).is_ok());
    assert!(world.signed >= 2 * 2, "f+1 replicas of each shard sign");
}

#[test]
fn a_scan_goes_over_all_shards_in_the_order_of_keys() {
    for placement in [Placement::Hash, Placement::Ranges(vec![Key::from("m")])] {
        let mut world = World::new(placement);
        let keys = ["b", "d", "f", "n", "p", "r"];
        assert!(world.submit(ALICE, keys.iter().map(|key| put(key, "1")).collect()).is_ok());
        let whole = world.scan(ALICE, "a", "z", 100).expect("nobody is in the way");
        assert_eq!(text(&whole), keys.map(|key| format!("{key}=1")));
        let some = world.scan(ALICE, "c", "q", 3).expect("nobody is in the way");
        assert_eq!(text(&some), ["d=1", "f=1", "n=1"]);
    }
}

#[test]
fn who_scans_and_then_writes_commits_only_if_the_range_is_as_it_was() {
    for placement in [Placement::Hash, Placement::Ranges(vec![Key::from("m")])] {
        let mut world = World::new(placement);
        assert!(world.submit(ALICE, vec![put("b", "1"), put("n", "1"), put("p", "1")]).is_ok());
        let (one, other) = (world.scan(ALICE, "a", "k", 10), world.scan(ALICE, "l", "z", 10));
        let evidence = vec![one.expect("free").evidence, other.expect("free").evidence];
        assert_eq!(world.commit(ALICE, evidence, &[("sum", "3")]), Ok(()));
        // A phantom, in what was seen of the range.
        for (phantom, is_seen) in [("c", true), ("o", true), ("q", false)] {
            let seen = world.scan(ALICE, "a", "z", 3).expect("nobody is in the way");
            assert_eq!(text(&seen), ["b=1", "n=1", "p=1"]);
            assert!(world.submit(BOB, vec![put(phantom, "1")]).is_ok());
            let expected = if is_seen { Err(Refusal::Conflict) } else { Ok(()) };
            assert_eq!(world.commit(ALICE, vec![seen.evidence], &[("y", "2")]), expected, "{phantom}");
            assert!(world.submit(BOB, vec![Operation::Delete(Key::from(phantom))]).is_ok());
        }
    }
}

#[test]
fn who_scans_from_the_end_commits_only_if_what_it_saw_is_as_it_was() {
    for placement in [Placement::Hash, Placement::Ranges(vec![Key::from("m")])] {
        let mut world = World::new(placement);
        assert!(world.submit(ALICE, vec![put("b", "1"), put("n", "1"), put("p", "1")]).is_ok());
        for (phantom, is_seen) in [("c", false), ("o", true), ("q", true)] {
            let seen = world.scan_in(ALICE, Direction::Descending, ("a", "z"), 2).expect("nobody is in the way");
            assert_eq!(text(&seen), ["p=1", "n=1"]);
            assert!(world.submit(BOB, vec![put(phantom, "1")]).is_ok());
            let expected = if is_seen { Err(Refusal::Conflict) } else { Ok(()) };
            assert_eq!(world.commit(ALICE, vec![seen.evidence], &[("zz", "2")]), expected, "{phantom}");
            assert!(world.submit(BOB, vec![Operation::Delete(Key::from(phantom))]).is_ok());
        }
        let whole = world.scan_in(ALICE, Direction::Descending, ("a", "z"), 9).expect("nobody is in the way");
        assert_eq!(text(&whole), ["p=1", "n=1", "b=1"]);
        assert_eq!(world.commit(ALICE, vec![whole.evidence], &[("zz", "3")]), Ok(()));
    }
}

#[test]
fn what_only_reads_one_shard_is_not_ordered_where_enough_replicas_agree() {
    let mut world = World::by_ranges();
    assert!(world.submit(ALICE, vec![put("a", "1"), put("b", "2"), put("z", "3")]).is_ok());
    world.run_ms(1_000);
    let before = world.requests;
    for (key, expected) in [("a", Some("1")), ("z", Some("3")), ("c", None)] {
        assert_eq!(world.submit(BOB, vec![get(key)]).map(values), Ok(vec![expected.map(str::to_owned)]));
    }
    assert_eq!(world.submit(BOB, vec![compare("a", "1"), get("b")]).map(values), Ok(vec![Some("2".into())]));
    let scanned = world.scan(BOB, "a", "k", 10).expect("nobody is in the way");
    assert_eq!(text(&scanned), ["a=1", "b=2"]);
    assert_eq!(world.requests, before);
    // What would abort, and what a client has no right to, is left to the order.
    assert_eq!(world.submit(BOB, vec![compare("a", "2"), get("b")]), Err(Refusal::CompareFailed { operation: 0 }));
    assert_eq!(world.submit(CAROL, vec![get("a")]), Err(Refusal::NotPermitted));
    assert!(world.requests > before);
    // One may be gone, and then another may say nothing: what is read is ordered, if that is possible.
    world.crash(ReplicaId { shard: ShardId(0), index: 3 });
    let before = world.requests;
    assert_eq!(world.submit(BOB, vec![get("a")]).map(values), Ok(vec![Some("1".into())]));
    assert_eq!(world.requests, before);
    let deaf = Party::Replica(ReplicaId { shard: ShardId(0), index: 2 });
    world.loses = Box::new(move |from, _, message| from == deaf && matches!(message, Message::QueryReply { .. }));
    assert_eq!(world.submit(BOB, vec![get("a")]).map(values), Ok(vec![Some("1".into())]));
    assert!(world.requests > before);
}

#[test]
fn what_a_pending_transaction_will_change_is_not_read_in_one_step() {
    let mut world = World::by_ranges();
    assert!(world.submit(ALICE, vec![put("a", "1"), put("z", "1")]).is_ok());
    world.begin(ALICE, Request::Submit { timestamp: timestamp(), operations: vec![put("a", "2"), put("z", "2")] });
    world.sessions.remove(&ALICE);
    world.run_ms(500);
    assert!(world.pending() >= 2 * 3, "it may have committed, as far as its author knows");
    assert_eq!(world.submit(BOB, vec![get("a")]), Err(Refusal::Conflict));
    assert!(world.scan(BOB, "a", "c", 10).is_err());
    assert_eq!(world.submit(BOB, vec![get("b")]).map(values), Ok(vec![None]));
}

#[test]
fn what_a_client_leaves_is_finished_by_who_meets_it() {
    let mut world = World::by_ranges();
    assert!(world.submit(ALICE, vec![put("a", "1"), put("z", "1")]).is_ok());
    // Alice asks both shards, and is gone.
    world.begin(ALICE, Request::Submit { timestamp: timestamp(), operations: vec![put("a", "2"), put("z", "2")] });
    world.sessions.remove(&ALICE);
    world.run_ms(500);
    assert!(world.pending() >= 2 * 3, "it holds its locks");
    assert_eq!(world.submit(BOB, vec![put("a", "3")]), Err(Refusal::Conflict));
    world.run_ms(100);
    let mut tries = 0;
    while world.submit(BOB, vec![get("a"), get("z")]).map(values) != Ok(vec![Some("2".into()), Some("2".into())]) {
        tries += 1;
        assert!(tries < 5, "something stays in the way");
    }
}

#[test]
fn what_nobody_may_see_is_finished_by_replicas() {
    for (lost_shard, lost_janitor) in [(None, None), (Some(ShardId(1)), None), (None, Some(0))] {
        let mut world = World::by_ranges();
        if let Some(index) = lost_janitor {
            [0, 1].into_iter().for_each(|shard| world.crash(ReplicaId { shard: ShardId(shard), index }));
        }
        // What she sends to one of the shards is lost, or nothing is.
        world.loses = Box::new(move |from, to, _| from == ALICE && matches!(to, Party::Replica(to) if Some(to.shard) == lost_shard));
        world.begin(ALICE, Request::Submit { timestamp: timestamp(), operations: vec![put("a", "2"), put("zz", "2")] });
        world.sessions.remove(&ALICE);
        world.run_ms(1_000);
        assert!(world.pending() >= 3);
        if lost_shard.is_none() {
            assert_eq!(world.submit(CAROL, vec![put("zz", "3")]), Err(Refusal::Conflict), "she may not see it");
        }
        world.run_ms(12_000);
        assert_eq!(world.pending(), 0, "a lock stays for ever");
        assert_eq!(world.submit(BOB, vec![get("a"), get("zz")]).map(values), Ok(vec![Some("2".into()), Some("2".into())]));
    }
}

/// More than are finished at a time need a shard that is gone.
#[test]
fn what_cannot_be_finished_keeps_nothing_else_from_it() {
    let mut world = World::by_ranges();
    replicas().filter(|replica| replica.shard == ShardId(1)).for_each(|replica| world.crash(replica));
    for number in 0..20 {
        let operations = vec![put(&format!("a{number}"), "1"), put(&format!("z{number}"), "1")];
        world.begin(ALICE, Request::Submit { timestamp: timestamp(), operations });
    }
    world.run_ms(100);
    world.sessions.remove(&ALICE);
    assert_eq!(world.pending(), 4 * 20);
    let tried = Rc::new(RefCell::new(BTreeSet::new()));
    let noted = Rc::clone(&tried);
    world.loses = Box::new(move |_, to, message| {
        if let (Party::Replica(to), Message::Request(request)) = (to, message)
            && to.shard == ShardId(1)
            && let Ok(augustus::Request::Finish(transaction, _)) = augustus::Request::from_bytes(request.payload.clone(), CLUSTER)
        {
            noted.borrow_mut().insert(transaction.id());
        }
        false
    });
    world.run_ms(30_000);
    assert_eq!(tried.borrow().len(), 20);
}

#[test]
fn what_processes_have_committed_that_are_gone_is_settled_by_replicas() {
    let mut world = World::by_ranges();
    let process = |number: usize| Party::Client(ClientId(1), types::Session(10 + u64::try_from(number).expect("few")));
    for number in 0..=SESSIONS_MAX {
        world.connect(process(number));
        let done = world.submit(process(number), vec![put("a", "1"), put("z", "1")]);
        assert_eq!(
            done.err(),
            (number == SESSIONS_MAX).then_some(Refusal::Overloaded { after_ms: 100 }),
            "{number}: as many as are remembered are unsettled"
        );
        world.run_ms(20);
        world.sessions.remove(&process(number));
    }
    world.run_ms(8_000);
    world.connect(process(1_000));
    assert!(world.submit(process(1_000), vec![put("a", "2"), put("z", "2")]).is_ok());
}

#[test]
fn who_has_only_read_for_long_is_not_forgotten_for_others() {
    let mut world = World::by_ranges();
    let process = |number: usize| Party::Client(ClientId(1), types::Session(10 + u64::try_from(number).expect("few")));
    assert!(world.submit(ALICE, vec![get("a")]).is_ok());
    // More later processes of her client than shards know, but fewer in a minute.
    for number in 0..=SESSIONS_MAX {
        world.connect(process(number));
        assert!(world.submit(process(number), vec![put("a", "1")]).is_ok());
        world.sessions.remove(&process(number));
        world.run_ms(2_000);
        assert!(world.submit(ALICE, vec![get("a")]).is_ok());
    }
    let before = world.requests;
    assert!(world.submit(ALICE, vec![get("a")]).is_ok());
    assert_eq!(world.requests, before, "mostly it is not ordered");
    assert_eq!(world.submit(ALICE, vec![put("a", "2")]).map(values), Ok(vec![]));
}

#[test]
fn replicas_that_come_back_answer_what_is_asked_again() {
    let mut world = World::by_ranges();
    // No answer arrives until all replicas have lost their power.
    world.loses = Box::new(|_, to, _| to == ALICE);
    let asked = world.begin(ALICE, Request::Submit { timestamp: timestamp(), operations: vec![put("a", "1"), put("z", "1")] });
    let alone = world.begin(ALICE, Request::Submit { timestamp: timestamp(), operations: vec![put("b", "1"), get("b")] });
    world.run_ms(300);
    replicas().for_each(|replica| world.crash(replica));
    world.loses = Box::new(|_, _, _| false);
    replicas().for_each(|replica| world.start(replica));
    world.run_ms(2_000);
    assert!(matches!(world.answers.remove(&(ALICE, asked)), Some(Ok(Response::Done { .. }))));
    let Some(Ok(Response::Done { values: found, .. })) = world.answers.remove(&(ALICE, alone)) else { panic!("it was executed") };
    assert_eq!(values(found), [Some("1".to_owned())]);
    assert_eq!(world.pending(), 0);
}

#[test]
fn executing_a_list_is_due_to_all_and_accepting_a_small_one_is_not() {
    let mut world = World::by_ranges();
    assert!(world.submit(ALICE, vec![put("a", "1")]).is_ok());
    world.run_ms(1_000);
    assert_eq!(world.for_all, 4, "each replica of the shard has executed one list");
}

#[test]
fn a_shard_that_is_gone_stops_nobody_at_the_other() {
    let mut world = World::by_ranges();
    replicas().filter(|replica| replica.shard == ShardId(1)).for_each(|replica| world.crash(replica));
    let over_both: Vec<u64> =
        (0..200).map(|_| world.begin(ALICE, Request::Submit { timestamp: timestamp(), operations: vec![get("b"), get("z")] })).collect();
    for _ in 0..200 {
        assert!(world.submit(ALICE, vec![put("a", "1")]).is_ok());
    }
    world.run_ms(TIMEOUT_MS + 100);
    assert!(over_both.iter().all(|asked| world.answers.remove(&(ALICE, *asked)).is_some_and(|outcome| outcome.is_err())));
    // Enough of what was left is forgotten that the shard can be used when it is back.
    replicas().filter(|replica| replica.shard == ShardId(1)).for_each(|replica| world.start(replica));
    world.run_ms(12_000);
    assert!(world.submit(ALICE, vec![put("b", "1"), put("z", "1")]).is_ok());
}

/// The replica in whose state bits flip.
const WRONG: ReplicaId = ReplicaId { shard: ShardId(0), index: 1 };

impl World {
    fn held(&self, replica: ReplicaId, key: &str) -> Option<String> {
        let executor = self.nodes[&replica].machine().node().replica().application().executor();
        executor.value(&Key::from(key)).map(|value| value.to_string())
    }

    fn flip(&mut self, key: &str) {
        let turns = self.nodes.get_mut(&WRONG).expect("it is up");
        assert!(turns.machine_mut().flip_bit_at_rest(&Key::from(key), 0), "it has a value");
    }

    /// How often each replica of the first shard has found its own state to be wrong, and how often it was mended.
    fn found_wrong(&self) -> Vec<(u64, u64)> {
        let found = |turns: &Turns<Server<Memory>>| {
            let found = turns.machine().node().replica().divergences();
            (found.noticed(), found.mended())
        };
        self.nodes.iter().filter(|(replica, _)| replica.shard == ShardId(0)).map(|(_, turns)| found(turns)).collect()
    }

    fn named(&self) -> Vec<String> {
        let found = self.nodes[&WRONG].machine().node().replica().divergences();
        assert!(found.recent().all(|one| one.own != one.agreed));
        found.recent().map(|one| one.place.clone()).collect()
    }

    /// So many lists, each with a transaction on the key.
    fn lists(&mut self, count: usize, key: &str) {
        for _ in 0..count {
            assert!(self.submit(ALICE, vec![put(key, "2")]).is_ok());
        }
    }
}

#[test]
fn a_row_that_flipped_at_rest_is_named_and_mended_though_nobody_reads_or_writes_anything() {
    let mut world = World::by_ranges();
    world.lists(1, "a");
    // To the end of an interval: what was changed since is compared at the end of the next.
    world.lists(2 * 8 - 1, "b");
    world.run_ms(2_000);
    world.flip("a");
    assert_eq!(world.held(WRONG, "a").as_deref(), Some("3"));
    world.run_ms(5_000);
    assert_eq!(world.held(WRONG, "a").as_deref(), Some("2"));
    assert_eq!(world.found_wrong(), [(0, 0), (1, 1), (0, 0), (0, 0)]);
    let named = world.named();
    assert!(named[0].contains(", the rows from "), "{named:?}");
    // It goes on with the others, and comes back as they are.
    world.lists(2 * 8, "a");
    world.crash(WRONG);
    world.start(WRONG);
    world.run_ms(2_000);
    let states: Vec<_> =
        (0..4).map(|index| world.nodes[&ReplicaId { index, ..WRONG }].machine().node().replica().last_checkpoint()).collect();
    assert!(states.iter().all(|state| state.is_some() && *state == states[0]), "{states:?}");
}

#[test]
fn a_state_that_differs_from_what_2f_plus_1_have_is_named_with_the_pages_that_are_wrong() {
    let mut world = World::by_ranges();
    world.lists(1, "a");
    world.lists(2 * 8, "b");
    // Its page is changed, and so is hashed at the next checkpoint only.
    world.lists(1, "b");
    world.flip("a");
    world.lists(8, "b");
    world.run_ms(3_000);
    assert_eq!(world.held(WRONG, "a").as_deref(), Some("2"));
    let (found, named) = (world.found_wrong(), world.named());
    assert!(found[1].0 >= 2 && found[1].0 == found[1].1 && [found[0], found[2], found[3]] == [(0, 0); 3], "{found:?}");
    assert!(named[0].starts_with("the state after list ") && named[1].contains(", the rows from "), "{named:?}");
}

#[test]
fn a_replica_that_crashes_before_its_wrong_state_is_mended_comes_back() {
    let mut world = World::by_ranges();
    world.lists(1, "a");
    world.lists(2 * 8, "b");
    world.lists(1, "b");
    world.flip("a");
    let mut lists = 0;
    while world.found_wrong()[1].0 == 0 {
        world.lists(1, "b");
        lists += 1;
        assert!(lists < 20, "it is noticed at the next checkpoint");
    }
    // What it heard is durable soon, though nothing is said of it.
    world.run_ms(30);
    assert_eq!(world.found_wrong()[1].1, 0, "it is not mended yet");
    world.crash(WRONG);
    world.start(WRONG);
    world.lists(8, "b");
    world.run_ms(3_000);
    assert_eq!(world.held(WRONG, "a").as_deref(), Some("2"));
}

/// One account of each shard: `a` and `z` with the same number.
const PAIRS: usize = 6;

impl World {
    /// Begins a transfer between the accounts of each pair, over both shards: each pair has 100 in all, whatever comes of it.
    fn transfer(&mut self, amount: usize) {
        for pair in 0..PAIRS {
            let operations = vec![put(&format!("a{pair}"), &amount.to_string()), put(&format!("z{pair}"), &(100 - amount).to_string())];
            self.begin(BOB, Request::Submit { timestamp: timestamp(), operations });
        }
    }

    /// Reads rows of a moment.
    fn scan_moment(&mut self, moment: (Timestamp, ReadMode), direction: Direction, limit: usize) -> Result<Vec<(Key, String)>, Refusal> {
        self.scan_moment_of(ALICE, moment, (direction, limit), ("", "~"))
    }

    fn scan_moment_of(
        &mut self,
        party: Party,
        (timestamp, mode): (Timestamp, ReadMode),
        (direction, limit): (Direction, usize),
        (low, high): (&str, &str),
    ) -> Result<Vec<(Key, String)>, Refusal> {
        let (low, high) = (Key::from(low), Key::from(high));
        match self.ask(party, Request::Scan { timestamp, low, high, direction, limit, mode })? {
            Response::Found(Found { found, .. }) => {
                Ok(found.into_iter().map(|(key, value)| (key, value.expect("a scan gives values").to_string())).collect())
            }
            other => panic!("{other:?}"),
        }
    }

    /// The present, as a moment.
    fn present(&self) -> (Timestamp, ReadMode) {
        (Timestamp::above_all_before(self.now.0 + 1), ReadMode::Ago { now: self.now.0 })
    }

    fn moments(&self, replica: ReplicaId) -> usize {
        self.nodes[&replica].machine().node().replica().application().executor().moments()
    }
}

#[test]
fn each_moment_is_one_state_of_all_shards_though_a_replica_lies_and_one_restarts() {
    for placement in [Placement::Hash, Placement::Ranges(vec![Key::from("m")])] {
        let mut world = World::new(placement);
        // The first to answer.
        world.liar = Some(ReplicaId { shard: ShardId(1), index: 0 });
        let restarts = ReplicaId { shard: ShardId(0), index: 3 };
        world.transfer(50);
        world.run_ms(100);
        for round in 1..6 {
            let direction = if round % 2 == 0 { Direction::Descending } else { Direction::Ascending };
            // Some are under way when the moment is made, and more come while it is read.
            world.transfer(10 * round);
            let moment = world.present();
            let whole = world.scan_moment(moment, direction, 1_000).expect("what is in the way ends");
            assert_eq!(whole.len(), 2 * PAIRS + usize::from(round > 1));
            let sum = |key: &str| whole.iter().find(|(found, _)| *found == Key::from(key)).expect("it is there").1.parse::<usize>();
            for pair in 0..PAIRS {
                assert_eq!(sum(&format!("a{pair}")).and_then(|one| Ok(one + sum(&format!("z{pair}"))?)), Ok(100), "{whole:?}");
            }
            world.transfer(10 * round + 1);
            world.run_ms(20);
            world.crash(restarts);
            world.start(restarts);
            assert!(world.moments(restarts) <= 1);
            assert!(
                world
                    .submit(BOB, vec![put(&format!("new{round}"), "1"), Operation::Delete(Key::from(format!("new{}", round - 1).as_str()))])
                    .is_ok()
            );
            // Page by page, and key by key.
            let again = (moment.0, ReadMode::AsOf);
            let mut pages: Vec<(Key, String)> = Vec::new();
            let (mut low, mut high) = (String::new(), "~".to_owned());
            loop {
                let page = world.scan_moment_of(ALICE, again, (direction, 5), (&low, &high)).expect("it is held");
                match direction {
                    Direction::Ascending => low = page.last().map_or(high.clone(), |(last, _)| format!("{last}\0")),
                    Direction::Descending => high = page.last().map_or(low.clone(), |(last, _)| last.to_string()),
                }
                let is_last = page.len() < 5;
                pages.extend(page);
                if is_last {
                    break;
                }
            }
            assert_eq!(pages, whole);
            let keys = [format!("new{round}"), format!("new{}", round - 1), "a0".to_owned(), "z0".to_owned()];
            let keys = keys.iter().map(|key| Key::from(key.as_str())).collect();
            let read = Request::Read { timestamp: again.0, keys, mode: ReadMode::AsOf };
            let Ok(Response::Found(Found { found, evidence })) = world.ask(ALICE, read) else { panic!("it is held") };
            assert_eq!(found.iter().filter(|(_, value)| value.is_some()).count(), 2 + usize::from(round > 1));
            assert_eq!(world.commit(ALICE, vec![evidence], &[]), Ok(()));
            world.run_ms(200);
        }
        assert_eq!(world.pending(), 0);
    }
}

#[test]
fn who_reads_the_past_otherwise_is_refused() {
    let mut world = World::by_ranges();
    assert!(world.submit(ALICE, vec![put("a", "1"), put("z", "1")]).is_ok());
    let before = (Timestamp::above_all_before(world.now.0 - 1_000), ReadMode::Ago { now: world.now.0 });
    let unknown = (Timestamp::above_all_before(5), ReadMode::AsOf);
    for moment in [before, unknown] {
        assert!(matches!(world.scan_moment(moment, Direction::Ascending, 9), Err(Refusal::Invalid(_))));
    }
    let present = world.present();
    let refused = world.scan_moment_of(CAROL, present, (Direction::Ascending, 9), ("z", "zz"));
    assert_eq!(refused, Err(Refusal::NotPermitted), "she may not read everything");
}

#[test]
fn a_moment_that_nobody_reads_for_long_is_held_no_longer() {
    let mut world = World::by_ranges();
    assert!(world.submit(ALICE, vec![put("a", "1"), put("z", "1")]).is_ok());
    let (timestamp, mode) = world.present();
    assert_eq!(world.scan_moment((timestamp, mode), Direction::Ascending, 9).map(|rows| rows.len()), Ok(2));
    for _ in 0..3 {
        world.run_ms(50_000);
        assert_eq!(world.scan_moment((timestamp, ReadMode::AsOf), Direction::Ascending, 9).map(|rows| rows.len()), Ok(2));
    }
    world.run_ms(62_000);
    assert!(replicas().all(|replica| world.moments(replica) == 0));
    assert_eq!(world.scan_moment((timestamp, ReadMode::AsOf), Direction::Ascending, 9), Err(Refusal::NotHeld));
}

#[test]
fn a_moment_is_made_though_a_client_left_a_change_pending() {
    let mut world = World::by_ranges();
    assert!(world.submit(ALICE, vec![put("a", "1"), put("z", "1")]).is_ok());
    world.begin(BOB, Request::Submit { timestamp: timestamp(), operations: vec![put("a", "2"), put("z", "2")] });
    world.sessions.remove(&BOB);
    world.run_ms(500);
    assert!(world.pending() >= 2 * 3);
    let present = world.present();
    let rows = world.scan_moment(present, Direction::Ascending, 9).expect("what is in the way is finished");
    assert_eq!(rows, [(Key::from("a"), "2".to_owned()), (Key::from("z"), "2".to_owned())]);
}
