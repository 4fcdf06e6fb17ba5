//! The closed-loop clients of one client process: each runs one transaction after another.

use std::sync::Arc;

use engine::{Ask, ClusterClock, CommitRequest, Evidence, ReadMode, Refusal, Request, Response, Tell};
use machine::Time;
use random::Random;
use types::{ClientId, Cluster, Key, ShardId, Timestamp, Value};

use crate::ClusterSpec;

/// The first and the longest wait before a transaction is begun again, in nanoseconds, as in the real client.
const BACKOFF_NS: (u64, u64) = (500_000, 100_000_000);

/// The next step of a closed-loop client.
pub(crate) enum Next {
    /// It asks its session.
    Ask(Ask),
    /// Its attempt is over.
    Over(Outcome),
}

/// The outcome of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It committed; its transaction took so many nanoseconds from the first attempt.
    Committed(u64),
    /// It met another, and is begun again.
    Aborted,
    /// It failed, or its outcome is unknown.
    Failed,
}

/// All closed-loop clients of a process.
pub(crate) struct ClosedLoopClients {
    me: ClientId,
    cluster: Arc<Cluster>,
    closed_loop_clients: Vec<LoopClient>,
    last_time: u64,
    clock: Option<ClusterClock>,
    random: Random,
    value: Value,
    spec: ClusterSpec,
}

#[derive(Default)]
struct LoopClient {
    /// The keys of its transaction; none when the last one is over.
    keys: Vec<Key>,
    /// The time of its attempt, by which it is known.
    time: u64,
    /// When the first attempt began.
    began: u64,
    attempts: u32,
    heard: Option<Result<Response, Refusal>>,
}

impl ClosedLoopClients {
    pub fn new(me: ClientId, cluster: Arc<Cluster>, spec: &ClusterSpec, seed: u64) -> Self {
        assert!(spec.reads + spec.writes > 0, "a transaction reads or writes something");
        assert!(spec.spread > 0, "a transaction's keys come from somewhere");
        assert!(spec.keys >= 20 * (spec.shards * (spec.reads + spec.writes)) as u64, "each shard has more keys than a transaction");
        let random = Random::stream(seed, &format!("lanes of {me}"));
        let value = Value::from("v".repeat(spec.value_bytes).as_str());
        let closed_loop_clients = (0..spec.closed_loop_clients).map(|_| LoopClient::default()).collect();
        Self { me, cluster, closed_loop_clients, last_time: 0, clock: None, random, value, spec: spec.clone() }
    }

    /// The session says something; if it is an answer, the loop client has yet to find the time to look at it. Says whose it is.
    pub fn hear(&mut self, told: Tell) -> Option<usize> {
        if let Tell::Clock(clock) = told {
            self.clock = Some(clock);
            return None;
        }
        let Tell::Response { operation, outcome } = told else { return None };
        let loop_client = usize::try_from(operation).expect("a loop client's number is its operation's");
        self.closed_loop_clients[loop_client].heard = Some(outcome);
        Some(loop_client)
    }

    /// A loop client looks at what it has heard.
    pub fn look(&mut self, loop_client: usize, now: u64) -> Next {
        let state = &mut self.closed_loop_clients[loop_client];
        let outcome = match state.heard.take().expect("a loop client has heard what it looks at") {
            Ok(Response::Found(found)) => return Next::Ask(self.commit(loop_client, vec![found.evidence])),
            Ok(_) => Outcome::Committed(now - state.began),
            Err(Refusal::Conflict) => Outcome::Aborted,
            Err(_) => Outcome::Failed,
        };
        if outcome != Outcome::Aborted {
            state.keys.clear();
        }
        Next::Over(outcome)
    }

    /// For how many nanoseconds a loop client waits whose attempt was in vain.
    pub fn backoff(&mut self, loop_client: usize) -> u64 {
        let attempts = self.closed_loop_clients[loop_client].attempts.min(16);
        let longest = (BACKOFF_NS.0 << attempts).min(BACKOFF_NS.1);
        self.random.between(longest / 2, longest)
    }

    /// Begins an attempt.
    pub fn begin(&mut self, loop_client: usize, now: u64) -> Ask {
        self.last_time = self.clock.map_or(now, |clock| clock.read(Time(now))).max(self.last_time + 1);
        let state = &mut self.closed_loop_clients[loop_client];
        state.time = self.last_time;
        if state.keys.is_empty() {
            state.keys = draw_keys(&self.spec, &self.cluster, &mut self.random);
            (state.began, state.attempts) = (now, 0);
        }
        state.attempts += 1;
        if self.spec.reads == 0 {
            return self.commit(loop_client, Vec::new());
        }
        let keys = state.keys[..self.spec.reads].to_vec();
        let timestamp = Timestamp::new(state.time, self.me);
        let request =
            Request::Read { timestamp, keys, mode: if self.spec.writes == 0 { ReadMode::ReadOnly } else { ReadMode::Interactive } };
        Ask { operation: loop_client as u64, request }
    }

    fn commit(&self, loop_client: usize, reads: Vec<Evidence>) -> Ask {
        let state = &self.closed_loop_clients[loop_client];
        let writes = state.keys[self.spec.reads..].iter().map(|key| (key.clone(), Some(self.value.clone()))).collect();
        let timestamp = Timestamp::new(state.time, self.me);
        let request = Request::Commit(CommitRequest { timestamp, reads, writes });
        Ask { operation: loop_client as u64, request }
    }
}

/// The keys of a transaction, all different: first those to read, then those to write, each part in order.
fn draw_keys(spec: &ClusterSpec, cluster: &Cluster, random: &mut Random) -> Vec<Key> {
    let mut shards: Vec<ShardId> = cluster.shards().collect();
    if spec.spread < shards.len() {
        random.shuffle(&mut shards);
        shards.truncate(spec.spread);
    }
    let mut drawn: Vec<Key> = Vec::with_capacity(spec.reads + spec.writes);
    while drawn.len() < spec.reads + spec.writes {
        let key = Key::from(format!("key{:013}", random.below(spec.keys)).as_str());
        if shards.contains(&cluster.shard_of(&key)) && !drawn.contains(&key) {
            drawn.push(key);
        }
    }
    drawn[..spec.reads].sort_unstable();
    drawn[spec.reads..].sort_unstable();
    drawn
}
