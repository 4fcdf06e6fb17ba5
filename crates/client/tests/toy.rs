//! Another engine behind the same client: the toy, over the real runtime and mutual TLS on loopback.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use client::{AsOf, Client, ConnectError, Error, Heard, Operation, PoolOptions, Refusal};
use config::{Config, Endpoint, EngineOptions, Timeouts, Topology};
use crypto::{BatchSigner, SecretKey, Signatures, Verified, Verifier};
use engine::{
    Advice, Ask, Capabilities, Capability, Commit, CommitPath, CommitRequest, Evidence, Found, Private, Profile, ReadMode, Request,
    Response, Statistics, Tell,
};
use machine::{Durable, Input, InputOf, Machine, OutboxOf, Time};
use runtime::{Identity, Limits, Metrics, Node, NodeOptions, RunOn, make_certificate};
use tokio::time::timeout;
use toy::fixture::{CLUSTER, client_secret, replica, replica_secret};
use toy::{Doubler, MILESTONE_ANSWERS, Message, PROFILE, Session};
use types::{ClientId, Cluster, Key, Party, Permission, Placement, ReplicaId, Timestamp, TransactionId, Value};

#[path = "toy/endings.rs"]
mod endings;

/// How long anything may take before a test fails: far longer than anything takes.
const PATIENCE: Duration = Duration::from_secs(30);

fn cluster() -> Arc<Cluster> {
    let replicas = (0..6).map(|index| replica_secret(index).public()).collect();
    let everything = vec![Key::from("")];
    let permission = Permission {
        public_key: client_secret(1).public(),
        read_prefixes: everything.clone(),
        write_prefixes: everything,
        limits: types::ClientLimits::default(),
    };
    Arc::new(Cluster::new(CLUSTER, 1, Placement::Hash, vec![replicas], vec![(ClientId(1), permission)]).expect("it is well-formed"))
}

fn certificate(party: &str, secret: &SecretKey) -> Vec<u8> {
    make_certificate(secret, party, CLUSTER).expect("a certificate can be made")
}

async fn serve(me: ReplicaId, cluster: &Arc<Cluster>) -> Node<Doubler, Message> {
    let secret = replica_secret(me.index);
    let verifier = Arc::new(Verifier::new(cluster.clone(), Signatures::Ed25519, 1_024).expect("the keys are good"));
    let party = Party::Replica(me);
    let options = NodeOptions {
        identity: Identity::new(party, &secret, certificate(&party.to_string(), &secret)).expect("it is its own"),
        cluster: cluster.clone(),
        verifier: verifier.clone(),
        listener: Some(runtime::listen("127.0.0.1:0".parse().expect("an address")).await.expect("a port is free")),
        replicas: BTreeMap::new(),
        limits: Limits::default(),
        run_on: RunOn::Thread,
        metrics: Metrics::default(),
        clock: None,
        delays: None,
        changes: None,
    };
    let signer = BatchSigner::new(secret, CLUSTER, me, Signatures::Ed25519).known_to(verifier);
    runtime::start(options, Doubler::new(me), signer, |_| {}, |_| None).expect("it starts")
}

/// A cluster of six toys.
async fn six() -> Vec<Node<Doubler, Message>> {
    let cluster = cluster();
    let mut nodes = Vec::new();
    for index in 0..6 {
        nodes.push(serve(replica(index), &cluster).await);
    }
    nodes
}

/// A cluster of six toys, and a client of it.
async fn connect() -> (Client, Vec<Node<Doubler, Message>>) {
    let nodes = six().await;
    (connect_to(&addresses(&nodes), Session::new(cluster())).await.expect("all six serve"), nodes)
}

fn addresses(nodes: &[Node<Doubler, Message>]) -> Vec<String> {
    nodes.iter().map(|node| node.local_address().expect("a server listens").to_string()).collect()
}

/// A client that expects the replicas at `addresses`, in their order.
async fn connect_to<S>(addresses: &[String], session: S) -> Result<Client, ConnectError>
where
    S: engine::Session<Received = Verified<Message>, Message = Message> + Send + 'static,
{
    // Nobody waits for what is known.
    connect_within(Timeouts { connect_ms: 600_000, ..Timeouts::default() }, addresses, session).await
}

/// The same, with other time limits.
async fn connect_within<S>(timeouts: Timeouts, addresses: &[String], session: S) -> Result<Client, ConnectError>
where
    S: engine::Session<Received = Verified<Message>, Message = Message> + Send + 'static,
{
    Client::start(config(timeouts, addresses), |_party| session, None).await
}

fn config(timeouts: Timeouts, addresses: &[String]) -> Config {
    let cluster = cluster();
    let endpoint = |address: &String| Endpoint { address: address.clone(), http: String::new() };
    let endpoints = (0..6).map(replica).zip(addresses.iter().map(endpoint)).collect();
    let topology = Topology::new(cluster, &PROFILE, Signatures::Ed25519, endpoints, crypto::Operators::default());
    let secret = client_secret(1);
    Config {
        folder: PathBuf::new(),
        topology: Arc::new(topology),
        chain_file: PathBuf::new(),
        client: ClientId(1),
        certificate: certificate("c1", &secret),
        secret,
        options: EngineOptions::default(),
        timeouts,
        regions: None,
    }
}

fn value(number: u64) -> Option<Value> {
    Some(Value::from(number.to_string().as_str()))
}

#[tokio::test]
async fn transactions_of_another_engine_run_through_the_same_client() {
    let (client, mut nodes) = connect().await;
    let done = client.transact(|txn| async move { Ok((txn.get("21").await?, txn.get("4").await?)) }).await.expect("it reads");
    assert_eq!(done.value, (value(42), value(8)));
    // In one step, the values compared first.
    let compared = Operation::Compare(Key::from("3"), value(6));
    let done = client.submit(vec![compared, Operation::Get(Key::from("5"))]).await.expect("it is so");
    assert_eq!(done.value, [value(10)]);
    assert_eq!(client.run(vec![Operation::Get(Key::from("7"))]).await.expect("it runs in one step").value, [value(14)]);
    assert_eq!(client.statistics().get("answered"), 4);
    // One of six may fail.
    drop(nodes.pop().expect("there are six").stop().await);
    assert_eq!(client.begin().get("9").await.expect("five answer"), value(18));
    client.close().await;
    assert!(matches!(client.begin().get("1").await, Err(Error::Closed)));
}

#[tokio::test]
async fn a_transaction_takes_its_timestamp_with_its_first_read() {
    let (client, _nodes) = connect().await;
    let (one, other) = (client.begin(), client.begin());
    assert_eq!((one.timestamp(), other.timestamp()), (None, None));
    for transaction in [&other, &one, &other] {
        timeout(PATIENCE, transaction.get("4")).await.expect("it is answered").expect("it is read");
    }
    assert!(other.timestamp() < one.timestamp() && other.timestamp().is_some(), "the one that began first read last");
}

#[tokio::test]
async fn nobody_waits_for_replicas_that_are_known_to_be_away() {
    let mut nodes = six().await;
    let at = addresses(&nodes);
    drop(nodes.pop().expect("there are six").stop().await);
    let mut fastest = PATIENCE;
    for _ in 0..5 {
        let began = Instant::now();
        connect_to(&at, Session::new(cluster())).await.expect("five are enough").close().await;
        fastest = fastest.min(began.elapsed());
    }
    assert!(fastest < Duration::from_millis(400), "one that is down costs {fastest:?}");
    for node in nodes.drain(2..) {
        drop(node.stop().await);
    }
    let few = timeout(PATIENCE, connect_to(&at, Session::new(cluster()))).await.expect("it is known at once").expect_err("two are too few");
    assert!(matches!(few, ConnectError::TooFew { connected: 2, needed: 3, .. }) && few.to_string().contains("refused"), "{few}");
}

#[tokio::test]
async fn replicas_are_dialled_by_name_and_one_without_an_address_is_named() {
    let nodes = six().await;
    let port = |address: &String| address.rsplit_once(':').expect("it has a port").1.to_owned();
    let mut at: Vec<String> = addresses(&nodes).iter().map(|address| format!("localhost:{}", port(address))).collect();
    // What is no host and port is looked up without asking anybody.
    at[5] = "nowhere".to_owned();
    let client = timeout(PATIENCE, connect_to(&at, Session::new(cluster()))).await.expect("it is known at once").expect("five are enough");
    assert_eq!(client.begin().get("9").await.expect("they answer"), value(18));
    client.close().await;
    at[1..5].fill("nowhere".to_owned());
    let few = timeout(PATIENCE, connect_to(&at, Session::new(cluster()))).await.expect("it is known at once").expect_err("one is too few");
    assert!(matches!(few, ConnectError::TooFew { connected: 1, needed: 3, .. }), "{few}");
    for index in 1..6 {
        assert!(few.to_string().contains(&format!("\n  s0-r{index}: nowhere: ")), "{few}");
    }
}

#[tokio::test]
async fn another_cluster_at_its_addresses_is_told_from_one_that_is_down() {
    let nodes = six().await;
    let mut at = addresses(&nodes);
    at.rotate_left(1);
    let wrong = timeout(PATIENCE, connect_to(&at, Session::new(cluster())))
        .await
        .expect("it is known at once")
        .expect_err("none is who it should be");
    assert!(matches!(wrong, ConnectError::NotTheCluster { .. }) && wrong.to_string().contains("s0-r5: "), "{wrong}");
}

/// The session of an engine whose reads may show what a prepared transaction wrote. It aborts, and then who read that conflicts. Until then its
/// clock is wrong, too.
struct Optimist {
    value: u64,
    prepared: Option<u64>,
    commits: u64,
    /// With which replicas it was last told that it is connected.
    connected: Vec<ReplicaId>,
    /// Its clock stays wrong.
    is_timeless: bool,
}

static OPTIMIST: Profile = Profile {
    capabilities: Capabilities { interactive: true, one_shot: false, ranges: false, as_of: true, pool: false, receipts: false },
    ..PROFILE
};

/// A session that answers by itself, without replicas.
struct Alone<A>(A);

/// What it answers.
trait Answers: Send + 'static {
    fn profile() -> &'static Profile {
        &OPTIMIST
    }

    /// Nothing where nobody asked.
    fn answer(&mut self, request: Request) -> Option<Result<Response, Refusal>>;

    fn connected(_: Vec<ReplicaId>) -> Option<Request> {
        None
    }

    fn statistics(&self, _: &mut Statistics) {}
}

impl<A: Answers> Machine for Alone<A> {
    type Command = Ask;
    type Received = Verified<Message>;
    type Message = Message;
    type Unsigned = Infallible;
    type Event = Tell;

    fn step(&mut self, _: Time, input: InputOf<Self>, outbox: &mut OutboxOf<Self>) {
        let Input::Command(Ask { operation, request }) = input else { return };
        if let Some(outcome) = self.0.answer(request) {
            outbox.emit(Tell::Response { operation, outcome });
        }
    }

    fn deadline(&self) -> Option<Time> {
        None
    }
}

impl<A: Answers> Durable for Alone<A> {
    type Failure = Infallible;

    fn persist(&mut self) -> Result<(), Infallible> {
        Ok(())
    }
}

impl<A: Answers> engine::Session for Alone<A> {
    fn profile(&self) -> &'static Profile {
        A::profile()
    }

    fn connected(replicas: Vec<ReplicaId>) -> Option<Request> {
        A::connected(replicas)
    }

    fn statistics(&self, out: &mut Statistics) {
        self.0.statistics(out);
    }
}

impl Answers for Optimist {
    fn answer(&mut self, request: Request) -> Option<Result<Response, Refusal>> {
        Some(match request {
            Request::Private(told) => {
                self.connected = told.take().expect("nobody else tells it anything");
                return None;
            }
            Request::Read { mode: ReadMode::Ago { .. }, .. } if self.is_timeless || self.prepared.take().is_some() => Err(Refusal::TooOld),
            Request::Read { keys, .. } => {
                let seen = value(self.prepared.unwrap_or(self.value));
                let found = keys.into_iter().map(|key| (key, seen.clone())).collect();
                Ok(Response::Found(Found { found, evidence: Evidence::new(()) }))
            }
            Request::Commit(_) if self.prepared.take().is_some() => Err(Refusal::Conflict),
            Request::Commit(CommitRequest { timestamp, .. }) => {
                self.commits += 1;
                let id = TransactionId([0; 32]);
                Ok(Response::Committed(Commit { id, timestamp, place: 0, path: CommitPath::Slow, receipt: None }))
            }
            other => Err(Refusal::Unsupported(other.capability())),
        })
    }

    fn connected(replicas: Vec<ReplicaId>) -> Option<Request> {
        Some(Request::Private(Private::new(replicas)))
    }

    fn statistics(&self, out: &mut Statistics) {
        out.counter("commits", "Transactions committed", self.commits);
        // A digit for each, so that six are told apart.
        out.gauge("connected", "With whom it is connected", self.connected.iter().map(|replica| 10_u64.pow(replica.index.into())).sum());
    }
}

fn optimist(prepared: Option<u64>, is_timeless: bool) -> Alone<Optimist> {
    Alone(Optimist { value: 1, prepared, commits: 0, connected: Vec::new(), is_timeless })
}

/// The session of an engine that keeps versions and orders by timestamps, on its own: a write is refused once a later transaction has read past it.
/// It panics at evidence of another timestamp than the commit's, unless nobody may read at that one any more.
#[derive(Default)]
struct Ledger {
    versions: BTreeMap<Key, BTreeMap<Timestamp, Option<Value>>>,
    /// The latest timestamp at which each key was read.
    read: BTreeMap<Key, Timestamp>,
    /// Nobody may read before the last write of [`LONG_AGO`], if there was one.
    kept_from: Option<Timestamp>,
}

/// Once it is written, what came before is no longer kept.
const LONG_AGO: &str = "long ago";

/// The timestamp of a read, and whose version it found of each key.
struct Seen(Timestamp, BTreeMap<Key, Timestamp>);

impl Ledger {
    fn newest(&self, key: &Key, before: Timestamp) -> (Timestamp, Option<Value>) {
        let newest = self.versions.get(key).and_then(|versions| versions.range(..before).next_back());
        newest.map_or((Timestamp::ZERO, None), |(timestamp, value)| (*timestamp, value.clone()))
    }

    fn commit(&mut self, CommitRequest { timestamp, reads, writes }: CommitRequest) -> Result<Response, Refusal> {
        for evidence in reads {
            let Seen(as_of, seen) = evidence.take::<Seen>().expect("this session made it");
            assert!(as_of == timestamp || Some(as_of) < self.kept_from, "what was read as of one timestamp is committed at another");
            if seen.iter().any(|(key, version)| self.newest(key, timestamp).0 != *version) {
                return Err(Refusal::Conflict);
            }
        }
        if writes.iter().any(|(key, _)| self.read.get(key).is_some_and(|read| *read > timestamp)) {
            return Err(Refusal::Conflict);
        }
        for (key, value) in writes {
            if key == Key::from(LONG_AGO) {
                self.kept_from = Some(timestamp);
            }
            self.versions.entry(key).or_default().insert(timestamp, value);
        }
        let id = TransactionId([0; 32]);
        Ok(Response::Committed(Commit { id, timestamp, place: 0, path: CommitPath::Fast, receipt: None }))
    }
}

impl Answers for Ledger {
    fn answer(&mut self, request: Request) -> Option<Result<Response, Refusal>> {
        Some(match request {
            Request::Read { timestamp, .. } if Some(timestamp) < self.kept_from => Err(Refusal::TooOld),
            Request::Read { timestamp, keys, .. } => {
                let (mut found, mut seen) = (Vec::new(), BTreeMap::new());
                for key in keys {
                    let (version, value) = self.newest(&key, timestamp);
                    let read = self.read.entry(key.clone()).or_insert(timestamp);
                    *read = timestamp.max(*read);
                    seen.insert(key.clone(), version);
                    found.push((key, value));
                }
                Ok(Response::Found(Found { found, evidence: Evidence::new(Seen(timestamp, seen)) }))
            }
            Request::Commit(request) => self.commit(request),
            other => Err(Refusal::Unsupported(other.capability())),
        })
    }
}

/// A client at whose keys `hot` and `warm` others have met that wrote them.
async fn with_a_hot_key() -> (Client, Vec<Node<Doubler, Message>>) {
    let nodes = six().await;
    let client = connect_to(&addresses(&nodes), Alone(Ledger::default())).await.expect("all six serve");
    let both = [client.begin(), client.begin()];
    for txn in &both {
        txn.get_many(&["hot", "warm"].map(Key::from)).await.expect("it is answered");
        ["hot", "warm"].into_iter().for_each(|key| txn.put(key, "0"));
    }
    let [first, second] = &both;
    assert!(first.commit().await.is_err_and(|error| matches!(error, Error::Conflict)), "the second has read past it");
    second.commit().await.expect("nobody has read past it");
    (client, nodes)
}

#[tokio::test]
async fn a_later_read_of_a_contended_key_waits_for_who_came_before_and_sees_what_it_wrote() {
    let (client, _nodes) = with_a_hot_key().await;
    let (late, early) = (client.begin(), client.begin());
    assert_eq!(late.get("cold").await.expect("it is answered"), None);
    let begun = late.timestamp();
    early.get("hot").await.expect("it is answered");
    early.put("hot", "1");
    let (seen, committed) =
        timeout(PATIENCE, async { tokio::join!(late.get("hot"), early.commit()) }).await.expect("nobody waits for long");
    committed.expect("nobody has read past it");
    assert_eq!(seen.expect("it is answered"), value(1));
    assert!(late.timestamp() > begun, "it comes after what it has seen");
    late.put("hot", "2");
    late.put("cold", "2");
    late.commit().await.expect("all that it has read is as of its timestamp");
}

#[tokio::test]
async fn what_has_changed_before_a_later_read_of_a_contended_key_conflicts() {
    let (client, _nodes) = with_a_hot_key().await;
    let (late, early) = (client.begin(), client.begin());
    assert_eq!(late.get("cold").await.expect("it is answered"), None);
    let begun = late.timestamp();
    early.get("hot").await.expect("it is answered");
    early.put("hot", "1");
    early.put("cold", "1");
    let (seen, committed) =
        timeout(PATIENCE, async { tokio::join!(late.get("hot"), early.commit()) }).await.expect("nobody waits for long");
    committed.expect("nobody has read past it");
    assert_eq!((seen.expect("it is answered"), late.get("cold").await.expect("it is known")), (value(0), None));
    assert_eq!(late.timestamp(), begun, "it goes on where it was");
    late.put("hot", "2");
    assert!(late.commit().await.is_err_and(|error| matches!(error, Error::Conflict)));
}

#[tokio::test]
async fn reads_at_the_same_time_are_of_one_timestamp_and_all_are_checked() {
    let (client, _nodes) = with_a_hot_key().await;
    let number =
        |value: Option<Value>| String::from_utf8_lossy(value.expect("it was written").as_bytes()).parse::<u64>().expect("a number");
    let mut commits = 0;
    for round in 0..200_u32 {
        let (late, early) = (client.begin(), client.begin());
        late.get("cold").await.expect("it is answered");
        let mut seen = early.get_many(&["hot", "warm"].map(Key::from)).await.expect("it is answered").into_iter();
        early.put("hot", (number(seen.next().flatten()) + 1).to_string().as_str());
        early.put("warm", round.to_string().as_str());
        // Asked while the first waits, or while it reads again, or after that.
        let second = async {
            for _ in 0..round / 2 {
                tokio::task::yield_now().await;
            }
            late.get(if round % 2 == 0 { "warm" } else { "other" }).await
        };
        let all = async { tokio::join!(late.get("hot"), second, early.commit()) };
        let (first, second, committed) = timeout(PATIENCE, all).await.expect("nobody waits for long");
        committed.expect("nobody has read past it");
        second.expect("it is answered");
        late.put("hot", (number(first.expect("it is answered")) + 1).to_string().as_str());
        // It conflicts if it has read as of its first timestamp. The session looks at the evidence.
        commits += 1 + u64::from(timeout(PATIENCE, late.commit()).await.expect("the session runs").is_ok());
    }
    assert_eq!(number(client.begin().get("hot").await.expect("it is answered")), commits, "none was lost");
    assert!(commits > 200, "some have read again");
}

/// Commits a write of each of these keys.
async fn write(client: &Client, keys: &[&str], number: &str) {
    let txn = client.begin();
    keys.iter().for_each(|key| txn.put(*key, number));
    txn.commit().await.expect("nobody has read past it");
}

#[tokio::test]
async fn a_transaction_may_stay_open_for_as_long_as_what_it_has_read_is_the_newest() {
    let nodes = six().await;
    let client = connect_to(&addresses(&nodes), Alone(Ledger::default())).await.expect("all six serve");
    write(&client, &["a", "b"], "1").await;
    for changes in [false, true] {
        let txn = client.begin();
        assert_eq!(txn.get("a").await.expect("it is answered"), value(1));
        let begun = txn.timestamp();
        write(&client, &[LONG_AGO, if changes { "a" } else { "c" }], "2").await;
        // At once, so that both are refused.
        let (one, other) = tokio::join!(txn.get("b"), txn.get("d"));
        assert_eq!((one.expect("it is read later"), other.expect("it is read later")), (value(1), None));
        assert_eq!(txn.get("a").await.expect("it is known"), value(1));
        assert!(txn.timestamp() > begun, "where it may be read");
        txn.put("e", "1");
        let ended = txn.commit().await;
        assert_eq!(ended.is_ok(), !changes);
        assert!(ended.is_ok() || matches!(ended, Err(Error::Conflict)), "{ended:?}");
    }
}

#[tokio::test]
async fn the_past_is_read_at_its_time_or_not_at_all() {
    let nodes = six().await;
    let client = connect_to(&addresses(&nodes), Alone(Ledger::default())).await.expect("all six serve");
    let txn = client.begin_as_of(AsOf::Ago(Duration::ZERO)).expect("it can");
    let place = txn.timestamp();
    assert_eq!(txn.get("a").await.expect("it is answered"), None);
    write(&client, &[LONG_AGO], "1").await;
    assert!(matches!(txn.get("b").await, Err(Error::TooOld)));
    assert_eq!(txn.timestamp(), place);
}

#[tokio::test]
async fn a_comparison_fails_by_what_committed_alone() {
    let nodes = six().await;
    let client = connect_to(&addresses(&nodes), optimist(Some(2), false)).await.expect("all six serve");
    let put = Operation::Put(Key::from("k"), Value::from("3"));
    // It sees 2 first, which nobody ever wrote.
    let done = client.run(vec![Operation::Compare(Key::from("k"), value(1)), put.clone()]).await.expect("it has that value");
    assert_eq!(done.attempts, 2);
    let failed = client.run(vec![put, Operation::Compare(Key::from("k"), value(2))]).await.expect_err("it has another value");
    assert!(matches!(failed, Error::Refused(Refusal::CompareFailed { operation: 1 })), "{failed}");
    assert_eq!(client.statistics().get("commits"), 2, "also that it failed is agreed upon");
}

#[tokio::test]
async fn what_was_so_long_ago_is_asked_for_again_when_the_clock_was_wrong() {
    let nodes = six().await;
    let client = connect_to(&addresses(&nodes), optimist(Some(2), false)).await.expect("all six serve");
    let began = client.begin_as_of(AsOf::Ago(Duration::ZERO)).expect("it can");
    let place = began.timestamp().expect("it has one");
    let found = client.read_as_of(AsOf::Ago(Duration::ZERO), |txn| async move { txn.get("k").await }).await.expect("it is asked again");
    assert_eq!((found.value, found.attempts), (value(1), 2));
    assert!(found.commit.timestamp > place, "of another time");
}

#[tokio::test]
async fn who_cannot_tell_the_time_for_want_of_replicas_is_told_which_are_away() {
    let mut nodes = six().await;
    let timeless = optimist(Some(2), true);
    // As long as enough may be back it is tried again.
    let timeouts = Timeouts { connect_ms: 600_000, retry_ms: 1, ..Timeouts::default() };
    let client = connect_within(timeouts, &addresses(&nodes), timeless).await.expect("all six serve");
    let read = || client.read_as_of(AsOf::Ago(Duration::ZERO), |txn| async move { txn.get("k").await });
    let error = read().await.expect_err("its clock is wrong");
    assert!(matches!(error, Error::TooOld), "{error}");
    for node in nodes.drain(2..) {
        drop(node.stop().await);
    }
    let is_told = async {
        while client.statistics().get("connected") != 11 {
            client.begin().get("k").await.expect("it answers by itself");
        }
    };
    timeout(PATIENCE, is_told).await.expect("two are left");
    let error = read().await.expect_err("its clock is wrong");
    assert!(matches!(error, Error::Unavailable { .. }) && error.to_string().contains("\n  s0-r5: "), "{error}");
}

#[tokio::test]
async fn a_session_is_told_with_whom_it_is_connected_before_anybody_asks_it_anything() {
    let mut nodes = six().await;
    let mut at = addresses(&nodes);
    drop(nodes.remove(2).stop().await);
    // Its host takes connections, and nobody there says a word.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
    drop(nodes.remove(3).stop().await);
    at[4] = silent.local_addr().expect("it has one").to_string();
    let session = || optimist(None, false);
    // Of four that serve, three are enough for this engine: on a busy machine it may begin without the fourth, and is told of it later.
    let client = connect_to(&at, session()).await.expect("four are enough");
    let told = || async {
        client.begin().get("k").await.expect("it answers");
        client.statistics().get("connected")
    };
    let first = told().await;
    assert!([101_011, 1_011, 100_011, 101_001, 101_010].contains(&first), "{first}");
    let until = |wanted: u64| timeout(PATIENCE, async move { while told().await != wanted {} });
    until(101_011).await.expect("it is connected with four");
    drop(nodes.remove(0).stop().await);
    until(101_010).await.expect("it is told that one is lost");
}

#[tokio::test]
async fn a_session_that_minds_does_not_wait_for_who_hangs() {
    let nodes = six().await;
    let (mut at, silent) = (addresses(&nodes), std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free"));
    at[5] = silent.local_addr().expect("it has one").to_string();
    let mut fastest = PATIENCE;
    for _ in 0..5 {
        let (began, optimist) = (Instant::now(), optimist(None, false));
        connect_to(&at, optimist).await.expect("five are enough").close().await;
        fastest = fastest.min(began.elapsed());
    }
    assert!(fastest < Duration::from_millis(400), "one that hangs costs {fastest:?}");
}

#[tokio::test]
async fn what_an_engine_cannot_do_is_refused_by_type_with_advice() {
    let (client, _nodes) = connect().await;
    let refusal = |error: Error| match error {
        Error::Refused(refusal) => refusal,
        other => panic!("refused otherwise: {other}"),
    };
    let scan = client.begin().scan("1", "9", 10).await.expect_err("the toy has no ranges");
    assert_eq!(scan.advice(), Advice::FixInput);
    assert_eq!(refusal(scan), Refusal::Unsupported(Capability::Ranges));
    let pool = client.pool(PoolOptions::default()).map(|_| ()).expect_err("the toy has no pool");
    assert_eq!(refusal(pool), Refusal::Unsupported(Capability::Pool));
    let other = Operation::Compare(Key::from("3"), value(7));
    let compared = client.submit(vec![Operation::Get(Key::from("1")), other]).await.expect_err("it is another value");
    assert_eq!((compared.advice(), refusal(compared)), (Advice::GiveUp, Refusal::CompareFailed { operation: 1 }));
    let put = client.run(vec![Operation::Put(Key::from("1"), Value::from("2"))]).await.expect_err("the toy stores nothing");
    assert!(matches!(&put, Error::Invalid(_)) && put.advice() == Advice::FixInput, "{put}");
    let txn = client.begin();
    txn.put("1", "2");
    assert!(matches!(txn.commit().await, Err(Error::Invalid(_))));
}

#[tokio::test]
async fn what_a_server_says_unasked_reaches_whoever_listens() {
    let (client, _nodes) = connect().await;
    let (mut first, mut second) = (client.notices(), client.notices());
    let gets = (0..MILESTONE_ANSWERS).map(|number| Operation::Get(Key::from(number.to_string().as_str())));
    let done = client.submit(gets.collect()).await.expect("they answer");
    assert_eq!(done.value.len(), usize::try_from(MILESTONE_ANSWERS).expect("few"));
    for notices in [&mut first, &mut second] {
        let heard = timeout(PATIENCE, notices.next()).await.expect("it takes far less time").expect("the client is open");
        let Heard::Notice(notice) = heard else { panic!("few notices come, and none is missed: {heard:?}") };
        assert_eq!((notice.kind, notice.detail.to_vec()), ("milestone", MILESTONE_ANSWERS.to_le_bytes().to_vec()));
    }
    client.close().await;
    while let Some(heard) = timeout(PATIENCE, first.next()).await.expect("it ends") {
        assert!(matches!(heard, Heard::Notice(_)));
    }
}
