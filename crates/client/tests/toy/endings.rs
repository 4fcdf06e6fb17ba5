//! A session that ends before it has answered: whoever waits is told.

use client::{Pool, Transaction};
use engine::{PoolCounts, PoolMaker, PoolOutput, PoolRequest, Work};
use tokio::runtime::Runtime;
use tokio::sync::mpsc;

use super::*;

/// The session of an engine that answers nothing, and tells the test of each request. A request for this key has it panic.
struct Silent {
    heard: mpsc::Sender<&'static str>,
}

const FATAL: &str = "fatal";
/// More requests than any test makes.
const HEARD_MAX: usize = 256;
/// More than may be under way at first.
const MANY: usize = 200;

static POOLED: Profile = Profile { capabilities: Capabilities { pool: true, ..OPTIMIST.capabilities }, ..OPTIMIST };

impl Answers for Silent {
    fn profile() -> &'static Profile {
        &POOLED
    }

    fn answer(&mut self, request: Request) -> Option<Result<Response, Refusal>> {
        let name = match request {
            Request::Read { keys, .. } if keys.contains(&Key::from(FATAL)) => panic!("it was asked to"),
            Request::Commit(CommitRequest { writes, .. }) if writes.iter().any(|(key, _)| *key == Key::from(FATAL)) => {
                panic!("it was asked to")
            }
            Request::Read { .. } => "read",
            Request::Commit(_) => "commit",
            Request::Private(_) => "batch",
            Request::Scan { .. } | Request::Submit { .. } => "other",
        };
        self.heard.try_send(name).expect("a test asks few");
        None
    }
}

/// A pool whose batches have one transaction each, and of which one is under way at a time.
#[derive(Default)]
struct OneByOne {
    waiting: Vec<u64>,
    under_way: Option<u64>,
    counts: PoolCounts,
}

impl engine::Pool for OneByOne {
    fn submit(&mut self, _: Time, ticket: u64, _: Work) -> Result<(), engine::NotTaken> {
        self.waiting.push(ticket);
        Ok(())
    }

    fn withdraw(&mut self, ticket: u64) -> bool {
        let before = self.waiting.len();
        self.waiting.retain(|other| *other != ticket);
        self.waiting.len() < before
    }

    fn advance(&mut self, _: Time, _: &mut dyn FnMut() -> Timestamp, out: &mut PoolOutput) {
        if self.can_advance(Time(0)) {
            let ticket = self.waiting.remove(0);
            self.under_way = Some(ticket);
            out.requests.push(PoolRequest { batch: ticket, commits: true, request: Request::Private(Private::new(())) });
        }
    }

    fn on_outcome(&mut self, _: Time, batch: u64, outcome: Result<Response, Refusal>, out: &mut PoolOutput) {
        self.under_way = None;
        out.outcomes.push((
            batch,
            outcome.map(|response| match response {
                Response::Committed(commit) => engine::Committed { values: Vec::new(), commit, attempts: 1 },
                other => panic!("it was to commit: {other:?}"),
            }),
        ));
    }

    fn can_advance(&self, _: Time) -> bool {
        self.under_way.is_none() && !self.waiting.is_empty()
    }

    fn deadline(&self) -> Option<Time> {
        None
    }

    fn waiting(&self) -> usize {
        self.waiting.len()
    }

    fn under_way(&self) -> usize {
        usize::from(self.under_way.is_some())
    }

    fn batch_limit(&self) -> usize {
        1
    }

    fn has_full_batch(&self) -> bool {
        !self.waiting.is_empty()
    }

    fn counts(&self) -> &PoolCounts {
        &self.counts
    }
}

/// A runtime of its own, with a client of such a session, and what that hears.
async fn elsewhere(nodes: &[Node<Doubler, Message>]) -> (Runtime, Client, mpsc::Receiver<&'static str>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    let (heard, told) = mpsc::channel(HEARD_MAX);
    let (at, timeouts) = (addresses(nodes), Timeouts { connect_ms: 600_000, ..Timeouts::default() });
    let connecting = runtime.spawn(async move {
        let pools: PoolMaker = Box::new(|_| Box::<OneByOne>::default());
        Client::start(config(timeouts, &at), |_| Alone(Silent { heard }), Some(pools)).await
    });
    let client = timeout(PATIENCE, connecting).await.expect("it connects").expect("it does not panic").expect("all six serve");
    (runtime, client, told)
}

async fn hears(told: &mut mpsc::Receiver<&'static str>, name: &str) {
    let heard = timeout(PATIENCE, told.recv()).await.expect("it is asked").expect("it runs");
    assert_eq!(heard, name);
}

fn put(client: &Client, key: &str) -> impl Future<Output = Result<(), Error>> + Send + 'static {
    let txn = client.begin();
    txn.put(key, "1");
    async move { txn.commit().await.map(drop) }
}

fn get(client: &Client, key: &'static str) -> impl Future<Output = Result<(), Error>> + Send + 'static {
    let txn = client.begin();
    async move { txn.get(key).await.map(drop) }
}

fn run(pool: &Pool) -> impl Future<Output = Result<(), Error>> + Send + 'static {
    let pool = pool.clone();
    async move { pool.run(vec![Operation::Put(Key::from("k"), Value::from("1"))]).await.map(drop) }
}

async fn ended(call: impl Future<Output = Result<(), Error>>) -> Error {
    timeout(PATIENCE, call).await.expect("it is told").expect_err("nobody answers")
}

async fn joined(call: tokio::task::JoinHandle<Result<(), Error>>) -> Error {
    ended(async { call.await.expect("it does not panic") }).await
}

#[tokio::test]
async fn calls_end_with_the_runtime_that_the_client_was_connected_on() {
    let nodes = six().await;
    let (runtime, client, mut told) = elsewhere(&nodes).await;
    let pool = client.pool(PoolOptions::default()).expect("it has one");
    let read = tokio::spawn(get(&client, "k"));
    hears(&mut told, "read").await;
    let commit = tokio::spawn(put(&client, "k"));
    hears(&mut told, "commit").await;
    let batch = tokio::spawn(run(&pool));
    hears(&mut told, "batch").await;
    let waits = tokio::spawn(run(&pool));
    while !format!("{pool:?}").contains("waiting: 1") {
        tokio::task::yield_now().await;
    }
    let mut notices = client.notices();
    runtime.shutdown_background();
    assert!(matches!(joined(read).await, Error::Closed));
    assert!(matches!(joined(commit).await, Error::OutcomeUnknown { .. }));
    assert!(matches!(joined(batch).await, Error::OutcomeUnknown { .. }));
    assert!(matches!(joined(waits).await, Error::Closed), "it was never asked");
    assert!(timeout(PATIENCE, notices.next()).await.expect("they end").is_none());
    // Nor does anything begin any more.
    assert!(matches!(ended(get(&client, "k")).await, Error::Closed));
    assert!(matches!(ended(put(&client, "k")).await, Error::Closed));
    assert!(matches!(ended(run(&pool)).await, Error::Closed));
    let another = client.pool(PoolOptions::default()).expect("it has one");
    assert!(matches!(ended(run(&another)).await, Error::Closed));
    timeout(PATIENCE, client.close()).await.expect("nothing is left to close");
}

/// Asks, and does not wait for the answer.
async fn ask_and_leave<T>(call: impl Future<Output = Result<T, Error>>) {
    tokio::select! {
        biased;
        _ = call => {}
        () = std::future::ready(()) => {}
    }
}

#[tokio::test]
async fn requests_whose_callers_went_away_count_until_they_are_answered() {
    let nodes = six().await;
    // Nothing is answered: what cannot begin within a moment cannot begin at all.
    let (heard, mut told) = mpsc::channel(HEARD_MAX);
    let timeouts = Timeouts { connect_ms: 600_000, operation_ms: 1, ..Timeouts::default() };
    let client = connect_within(timeouts, &addresses(&nodes), Alone(Silent { heard })).await.expect("all six serve");
    for _ in 0..MANY {
        ask_and_leave(get(&client, "k")).await;
    }
    assert!(matches!(ended(get(&client, "k")).await, Error::Unavailable { .. }));
    client.close().await;
    drop(client);
    let mut asked = 0;
    while timeout(PATIENCE, told.recv()).await.expect("the session has ended").is_some() {
        asked += 1;
    }
    assert!(asked > 0 && asked < MANY, "{asked} are under way");
    // And no longer than that.
    let client = connect_to(&addresses(&nodes), Session::new(cluster())).await.expect("all six serve");
    for _ in 0..MANY {
        ask_and_leave(get(&client, "1")).await;
    }
    timeout(PATIENCE, get(&client, "1")).await.expect("there is room again").expect("they answer");
}

#[tokio::test]
async fn what_only_reads_has_no_unknown_outcome() {
    let nodes = six().await;
    for closes in [false, true] {
        let (runtime, client, mut told) = elsewhere(&nodes).await;
        let (txn, commit) = (client.begin(), |txn: Transaction| async move { txn.commit().await.map(drop) });
        let reads = tokio::spawn(commit(txn));
        hears(&mut told, "commit").await;
        if closes {
            client.close().await;
        }
        runtime.shutdown_background();
        assert!(matches!(joined(reads).await, Error::Closed));
    }
    let doubtful = Alone(Doubtful(0));
    let client = connect_to(&addresses(&nodes), doubtful).await.expect("all six serve");
    for _ in 0..2 {
        assert!(matches!(ended(async { client.begin().commit().await.map(drop) }).await, Error::Unavailable { .. }));
        assert!(matches!(ended(put(&client, "k")).await, Error::OutcomeUnknown { .. }));
    }
}

/// A session that never knows how a commit has ended, in the one way and the other.
struct Doubtful(u32);

impl Answers for Doubtful {
    fn answer(&mut self, _: Request) -> Option<Result<Response, Refusal>> {
        self.0 += 1;
        Some(Err(if self.0 < 3 { Refusal::OutcomeUnknown } else { Refusal::Unjudged("it is a test".to_owned()) }))
    }
}

/// A client of such a session on the test's own runtime, with such a pool.
async fn pooled(nodes: &[Node<Doubler, Message>], timeouts: Timeouts, session: impl Answers) -> Client {
    let pools: PoolMaker = Box::new(|_| Box::<OneByOne>::default());
    let timeouts = Timeouts { connect_ms: 600_000, ..timeouts };
    Client::start(config(timeouts, &addresses(nodes)), |_| Alone(session), Some(pools)).await.expect("all six serve")
}

#[tokio::test]
async fn who_finds_no_place_in_a_pool_is_told() {
    let nodes = six().await;
    let (heard, mut told) = mpsc::channel(HEARD_MAX);
    let client = pooled(&nodes, Timeouts { retry_ms: 1, ..Timeouts::default() }, Silent { heard }).await;
    let pool = client.pool(PoolOptions { members_max: 1, ..PoolOptions::default() }).expect("it has one");
    let first = tokio::spawn(run(&pool));
    hears(&mut told, "batch").await;
    assert!(matches!(ended(run(&pool)).await, Error::Unavailable { .. }));
    client.close().await;
    assert!(matches!(joined(first).await, Error::OutcomeUnknown { .. }));
}

/// A session that has no time at first.
struct Busy(u32);

impl Answers for Busy {
    fn profile() -> &'static Profile {
        &POOLED
    }

    fn answer(&mut self, _: Request) -> Option<Result<Response, Refusal>> {
        self.0 += 1;
        let commit = Commit { id: TransactionId([0; 32]), timestamp: Timestamp::ZERO, place: 0, path: CommitPath::Fast, receipt: None };
        Some(if self.0 < 3 { Err(Refusal::Overloaded { after_ms: 1 }) } else { Ok(Response::Committed(commit)) })
    }
}

#[tokio::test]
async fn what_there_is_no_time_for_comes_back_in_a_pool_too() {
    let nodes = six().await;
    let client = pooled(&nodes, Timeouts::default(), Busy(0)).await;
    let pool = client.pool(PoolOptions::default()).expect("it has one");
    let done = timeout(PATIENCE, pool.run(vec![Operation::Put(Key::from("k"), Value::from("1"))])).await.expect("it ends");
    assert_eq!(done.expect("there is time in the end").attempts, 3);
}

#[tokio::test]
async fn a_pool_refuses_what_its_client_may_not_do() {
    let nodes = six().await;
    let mut config = config(Timeouts { connect_ms: 600_000, ..Timeouts::default() }, &addresses(&nodes));
    let permission = Permission {
        limits: types::ClientLimits { keys: Some(2), bytes: Some(100), ..types::ClientLimits::default() },
        ..cluster().permission(ClientId(1)).expect("it is a client").clone()
    };
    let replicas = (0..6).map(|index| replica_secret(index).public()).collect();
    let limited = Cluster::new(CLUSTER, 1, Placement::Hash, vec![replicas], vec![(ClientId(1), permission)]).expect("it is well-formed");
    let endpoints = config.topology.endpoints.clone();
    config.topology = Arc::new(Topology::new(Arc::new(limited), &PROFILE, Signatures::Ed25519, endpoints, crypto::Operators::default()));
    let bounds = Arc::new(std::sync::Mutex::new(Vec::new()));
    let made = Arc::clone(&bounds);
    let pools: PoolMaker = Box::new(move |options| {
        made.lock().expect("nobody panics").push((options.batch_keys_max, options.batch_bytes_max));
        Box::<OneByOne>::default()
    });
    let client = Client::start(config, |_| Alone(Busy(2)), Some(pools)).await.expect("all six serve");
    let pool = client.pool(PoolOptions::default()).expect("it has one");
    client.pool(PoolOptions { batch_keys_max: 1, batch_bytes_max: 10, ..PoolOptions::default() }).expect("it has one");
    assert_eq!(*bounds.lock().expect("nobody panics"), [(2, 100), (1, 10)]);
    let put = |key: &str, bytes: usize| Operation::Put(Key::from(key), Value::from("x".repeat(bytes).as_str()));
    // It reads what it has written itself, and writes one key twice.
    pool.run(vec![put("a", 99), Operation::Get(Key::from("a")), put("a", 9), put("b", 80)]).await.expect("two keys and 91 bytes");
    for (work, limit) in [(vec![put("a", 1), put("b", 1), Operation::Get(Key::from("c"))], "keys_max"), (vec![put("a", 100)], "bytes_max")]
    {
        let error = pool.run(work).await.expect_err("it is over the limit");
        assert!(matches!(error, Error::Refused(Refusal::ClientLimit { name, after_ms: 0 }) if name == limit), "{error}");
    }
}

#[tokio::test]
async fn calls_end_with_a_session_that_panics() {
    let nodes = six().await;
    for commits in [false, true] {
        let (runtime, client, mut told) = elsewhere(&nodes).await;
        let read = tokio::spawn(get(&client, "k"));
        hears(&mut told, "read").await;
        let commit = tokio::spawn(put(&client, "k"));
        hears(&mut told, "commit").await;
        let last = if commits { ended(put(&client, FATAL)).await } else { ended(get(&client, FATAL)).await };
        assert_eq!(matches!(last, Error::OutcomeUnknown { .. }), commits, "{last}");
        assert_eq!(matches!(last, Error::Closed), !commits, "{last}");
        assert!(matches!(joined(read).await, Error::Closed));
        assert!(matches!(joined(commit).await, Error::OutcomeUnknown { .. }));
        assert!(matches!(ended(get(&client, "k")).await, Error::Closed));
        runtime.shutdown_background();
    }
}
