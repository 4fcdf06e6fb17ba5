//! The closed-loop clients of one client process: each runs one transaction after another.

use std::sync::Arc;

use basil::{Buffer, Command, Decision, Event};
use random::Random;
use types::{ClientId, Cluster, Key, ShardId, Timestamp, Value};

use crate::ClusterSpec;
use crate::process::EPOCH;

/// The first and the longest wait before a transaction is begun again, in nanoseconds, as in the real client.
const BACKOFF_NS: (u64, u64) = (500_000, 100_000_000);

/// The next step of a closed-loop client.
pub(crate) enum Next {
    /// It asks its coordinator.
    Ask(Command),
    /// It begins again after so many nanoseconds.
    Wait(u64),
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
    closed_loop_clients: Vec<Lane>,
    last_time: u64,
    random: Random,
    value: Value,
    draw: Draw,
}

#[derive(Clone, Copy)]
struct Draw {
    reads: usize,
    writes: usize,
    keys: u64,
    spread: usize,
}

#[derive(Default)]
struct Lane {
    /// The keys of its transaction; none when the last one is over.
    keys: Vec<Key>,
    buffer: Option<Buffer>,
    /// When the first attempt began.
    began: u64,
    attempts: u32,
    heard: Option<Event>,
}

impl ClosedLoopClients {
    pub fn new(me: ClientId, cluster: Arc<Cluster>, spec: &ClusterSpec, seed: u64) -> Self {
        let draw = Draw { reads: spec.reads, writes: spec.writes, keys: spec.keys, spread: spec.spread };
        assert!(draw.reads + draw.writes > 0, "a transaction reads or writes something");
        assert!(draw.spread > 0, "a transaction's keys come from somewhere");
        assert!(draw.keys >= 20 * (spec.shards * (draw.reads + draw.writes)) as u64, "each shard has more keys than a transaction");
        let random = Random::stream(seed, &format!("lanes of {me}"));
        let value = Value::from("v".repeat(spec.value_bytes).as_str());
        Self {
            me,
            cluster,
            closed_loop_clients: (0..spec.closed_loop_clients).map(|_| Lane::default()).collect(),
            last_time: 0,
            random,
            value,
            draw,
        }
    }

    /// An answer is there; the lane has yet to find the time to look at it. Says whose it is.
    pub fn hear(&mut self, event: Event) -> usize {
        let (Event::Read { operation, .. } | Event::Ended { operation, .. } | Event::Validated { operation }) = &event;
        let loop_client = usize::try_from(*operation).expect("a lane's number is its operation's");
        self.closed_loop_clients[loop_client].heard = Some(event);
        loop_client
    }

    /// Looks at what a lane has heard. Gives what became of its attempt, if that is over.
    pub fn look(&mut self, loop_client: usize, now: u64) -> Option<Outcome> {
        let Lane { keys, buffer, began, heard, .. } = &mut self.closed_loop_clients[loop_client];
        let outcome = match heard.take()? {
            Event::Read { result: Ok(found), .. } => {
                let buffer = buffer.as_mut().expect("who has read is not at its end");
                found.into_iter().for_each(|found| buffer.found(found));
                return None;
            }
            Event::Validated { .. } => Outcome::Committed(now - *began),
            Event::Ended { result: Ok((certificate, _)), .. } if certificate.decision == Decision::Commit => {
                Outcome::Committed(now - *began)
            }
            Event::Ended { result: Ok(_), .. } => Outcome::Aborted,
            Event::Read { result: Err(_), .. } | Event::Ended { result: Err(_), .. } => Outcome::Failed,
        };
        *buffer = None;
        if outcome != Outcome::Aborted {
            keys.clear();
        }
        Some(outcome)
    }

    /// What a lane does next, when it has looked; `None` at first.
    pub fn advance(&mut self, loop_client: usize, now: u64, last: Option<Outcome>) -> Next {
        if matches!(last, Some(Outcome::Aborted | Outcome::Failed)) {
            let attempts = self.closed_loop_clients[loop_client].attempts.min(16);
            let longest = (BACKOFF_NS.0 << attempts).min(BACKOFF_NS.1);
            return Next::Wait(self.random.between(longest / 2, longest));
        }
        if self.closed_loop_clients[loop_client].buffer.is_none() {
            return Next::Ask(self.begin(loop_client, now));
        }
        Next::Ask(self.commit(loop_client))
    }

    /// Begins an attempt.
    pub fn begin(&mut self, loop_client: usize, now: u64) -> Command {
        self.last_time = (EPOCH.0 + now).max(self.last_time + 1);
        let timestamp = Timestamp::new(self.last_time, self.me);
        let at = &mut self.closed_loop_clients[loop_client];
        if at.keys.is_empty() {
            at.keys = self.draw.keys(&self.cluster, &mut self.random);
            (at.began, at.attempts) = (now, 0);
        }
        at.attempts += 1;
        at.buffer = Some(Buffer::new(timestamp));
        if self.draw.reads == 0 {
            return self.commit(loop_client);
        }
        let keys = self.closed_loop_clients[loop_client].keys[..self.draw.reads].to_vec();
        Command::Read { operation: loop_client as u64, timestamp, keys, read_only: self.draw.writes == 0 }
    }

    fn commit(&mut self, loop_client: usize) -> Command {
        let at = &mut self.closed_loop_clients[loop_client];
        let mut buffer = at.buffer.take().expect("who commits has begun");
        at.keys[self.draw.reads..].iter().for_each(|key| buffer.write(key.clone(), Some(self.value.clone())));
        let validated = buffer.validated();
        let (transaction, dependencies) = buffer.finish(self.cluster.id()).expect("a transaction of a few keys is below all limits");
        let operation = loop_client as u64;
        match validated {
            Some(validated) => Command::CommitReads { operation, transaction, validated },
            None => Command::Commit { operation, transaction, dependencies },
        }
    }
}

impl Draw {
    /// The keys of a transaction, all different: first those to read, in order, then those to write.
    fn keys(self, cluster: &Cluster, random: &mut Random) -> Vec<Key> {
        let mut shards: Vec<ShardId> = cluster.shards().collect();
        if self.spread < shards.len() {
            random.shuffle(&mut shards);
            shards.truncate(self.spread);
        }
        let mut drawn: Vec<Key> = Vec::with_capacity(self.reads + self.writes);
        while drawn.len() < self.reads + self.writes {
            let key = Key::from(format!("key{:013}", random.below(self.keys)).as_str());
            if shards.contains(&cluster.shard_of(&key)) && !drawn.contains(&key) {
                drawn.push(key);
            }
        }
        drawn[..self.reads].sort_unstable();
        drawn
    }
}
