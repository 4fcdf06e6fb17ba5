//! The messages that a Byzantine client makes up.

use std::collections::BTreeMap;
use std::sync::Arc;

use basil::certificate::{SignedVote, VoteSet, logging_shard};
use basil::{Decision, Message, Quorums, Read, Transaction, Vote, Write};
use machine::Time;
use random::Random;
use types::{ClientId, Cluster, Direction, Key, KeyRange, Party, ReplicaId, ShardId, Timestamp, TransactionId, Value};

use crate::strategy::ClientStrategy;

/// How many keys of a range are asked for where its client may have no right to them.
const OVERSTEP_KEYS_MAX: u32 = 16;

/// What is said, and to whom.
pub(crate) type Sends = Vec<(Party, Message)>;

/// How far ahead timestamps of the strategy `far-future` lie, in milliseconds: just within what replicas accept, or far beyond.
const FUTURE_MS: [u64; 4] = [250, 480, 5_000, 3_600_000];

/// The votes received on one transaction, by replica and vote: Byzantine replicas have two.
#[derive(Debug, Default)]
pub(crate) struct Heard(BTreeMap<(ReplicaId, Vote), SignedVote>);

impl Heard {
    /// Returns whether it is new.
    pub fn note(&mut self, vote: &SignedVote) -> bool {
        self.0.insert((vote.replica, vote.statement.vote), vote.clone()).is_none()
    }

    /// How many replicas have voted.
    pub fn voters(&self) -> usize {
        let mut voters: Vec<ReplicaId> = self.0.keys().map(|(replica, _)| *replica).collect();
        voters.dedup();
        voters.len()
    }

    /// Those of a shard that say `vote`.
    pub fn set(&self, shard: ShardId, vote: Vote) -> VoteSet {
        let of_shard = self.0.iter().filter(|((replica, side), _)| replica.shard == shard && *side == vote);
        VoteSet { shard, vote, voters: of_shard.map(|((replica, _), signed)| (replica.index, signed.signature.clone())).collect() }
    }

    /// The same, each as it came.
    pub fn signed(&self, shard: ShardId, vote: Vote) -> Vec<SignedVote> {
        let of_shard = self.0.iter().filter(|((replica, side), _)| replica.shard == shard && *side == vote);
        of_shard.map(|(_, signed)| signed.clone()).collect()
    }
}

/// Makes up the messages of a Byzantine client.
#[derive(Debug)]
pub(crate) struct AttackPrimitives {
    cluster: Arc<Cluster>,
    pub random: Random,
    victims: Vec<ClientId>,
    /// How many contents it has made, for their tags.
    made: u64,
}

impl AttackPrimitives {
    pub fn new(cluster: Arc<Cluster>, random: Random, victims: Vec<ClientId>) -> Self {
        Self { cluster, random, victims, made: 0 }
    }

    /// The timestamp of a transaction that an honest client would begin at `honest`.
    pub fn timestamp(&mut self, strategy: ClientStrategy, honest: Timestamp) -> Timestamp {
        match strategy {
            ClientStrategy::FarFuture | ClientStrategy::ReadAndLeave => {
                Timestamp::new(Time(honest.time).after_ms(self.random.pick(&FUTURE_MS)).0, honest.client)
            }
            _ => honest,
        }
    }

    /// The messages sent instead of a commit before the client abandons the transaction; `None` when the strategy has none here.
    pub fn lies(&mut self, strategy: ClientStrategy, transaction: &Transaction) -> Option<Sends> {
        match strategy {
            ClientStrategy::StallEarly => Some(self.prepares(transaction)),
            ClientStrategy::PartialPrepare => {
                let mut sends = self.prepares(transaction);
                sends.retain(|_| self.random.chance(500));
                Some(sends)
            }
            ClientStrategy::ReuseTimestamps => {
                let twin = self.twin(transaction, transaction.timestamp())?;
                let mut sends = self.prepares(transaction);
                sends.extend(self.prepares(&twin));
                self.random.shuffle(&mut sends);
                Some(sends)
            }
            ClientStrategy::SplitContents => {
                let twin = self.twin(transaction, transaction.timestamp())?;
                let is_first = |party: &Party| matches!(party, Party::Replica(replica) if replica.index % 2 == 0);
                let mut sends = self.prepares(transaction);
                sends.retain(|(to, _)| is_first(to));
                sends.extend(self.prepares(&twin).into_iter().filter(|(to, _)| !is_first(to)));
                Some(sends)
            }
            ClientStrategy::Spoof => self.spoof(transaction).map(|(_, sends)| sends),
            ClientStrategy::InventDependencies => {
                let invented = self.invent(transaction)?;
                Some(self.prepares(&invented))
            }
            ClientStrategy::ReadAndLeave => Some(Vec::new()),
            ClientStrategy::Overstep => self.overstep(transaction),
            _ => None,
        }
    }

    /// ST1 to every replica of every shard touched.
    pub fn prepares(&self, transaction: &Transaction) -> Sends {
        self.replicas_of(transaction)
            .map(|replica| (Party::Replica(replica), Message::Prepare { transaction: transaction.clone() }))
            .collect()
    }

    /// Every replica of every shard touched.
    pub fn replicas_of(&self, transaction: &Transaction) -> impl Iterator<Item = ReplicaId> {
        transaction.participants(&self.cluster).into_iter().flat_map(|shard| self.cluster.replicas_of(shard))
    }

    /// Has `f + 1` replicas of a shard prepare a twin just above, which read past what the transaction writes: they vote against
    /// it and the others for it. (A twin just below would be voted down: the transaction's own reads have raised read timestamps.)
    /// First come the ones, and what is second shall follow when they have arrived.
    pub fn divide(&mut self, transaction: &Transaction) -> (Sends, Sends) {
        let timestamp = transaction.timestamp();
        let above = Timestamp::new(timestamp.time + 1, timestamp.client);
        let mut sends = Vec::new();
        if let Some(twin) = self.twin(transaction, above) {
            let few = u16::try_from(self.cluster.faults() + 1).expect("shards are small");
            let first = |party: &Party| matches!(party, Party::Replica(replica) if replica.index < few);
            sends = self.prepares(&twin);
            sends.retain(|(to, _)| first(to));
        }
        (sends, self.prepares(transaction))
    }

    /// ST2 for both decisions, if the votes justify both.
    pub fn equivocate(&mut self, transaction: &Transaction, heard: &Heard) -> Option<Sends> {
        let quorums = Quorums::new(self.cluster.faults());
        let participants = transaction.participants(&self.cluster);
        let commits: Vec<VoteSet> = participants.iter().map(|shard| heard.set(*shard, Vote::Commit)).collect();
        let mut aborts = participants.iter().map(|shard| heard.set(*shard, Vote::Abort));
        let abort = aborts.find(|set| set.voters.len() >= quorums.abort_slow())?;
        let commits_justified = commits.iter().all(|set| set.voters.len() >= quorums.commit_slow());
        commits_justified.then(|| self.log_both(transaction, commits, vec![abort]))
    }

    /// ST2 for both decisions, with whatever votes there are.
    pub fn equivocate_anyway(&mut self, transaction: &Transaction, heard: &Heard) -> Sends {
        let participants = transaction.participants(&self.cluster);
        let sets = |vote: Vote| participants.iter().map(|shard| heard.set(*shard, vote)).collect::<Vec<_>>();
        let (commits, mut aborts) = (sets(Vote::Commit), sets(Vote::Abort));
        aborts.truncate(1);
        self.log_both(transaction, commits, aborts)
    }

    /// Asks some replicas of the logging shard to log one decision and some the other, so that neither gets `4f + 1`.
    fn log_both(&mut self, transaction: &Transaction, commits: Vec<VoteSet>, aborts: Vec<VoteSet>) -> Sends {
        let participants = transaction.participants(&self.cluster);
        let Some(shard) = logging_shard(&participants, transaction.id()) else { return Vec::new() };
        let mut replicas: Vec<ReplicaId> = self.cluster.replicas_of(shard).collect();
        self.random.shuffle(&mut replicas);
        let faults = self.cluster.faults();
        let committed = faults + 1 + self.random.index(3 * faults);
        let log = |(at, replica): (usize, ReplicaId)| {
            let (decision, tallies) = if at < committed { (Decision::Commit, &commits) } else { (Decision::Abort, &aborts) };
            (Party::Replica(replica), Message::Log { transaction: transaction.clone(), decision, tallies: tallies.clone() })
        };
        replicas.into_iter().enumerate().map(log).collect()
    }

    /// Another transaction, which does the same under another name.
    fn twin(&mut self, transaction: &Transaction, timestamp: Timestamp) -> Option<Transaction> {
        if transaction.writes().is_empty() {
            return None;
        }
        self.made += 1;
        let tag = format!("twin {} of {}", self.made, transaction.id());
        let renamed = |value: &Value| renamed(value, &tag);
        let writes =
            transaction.writes().iter().map(|write| Write { key: write.key.clone(), value: write.value.as_ref().map(renamed) }).collect();
        // With its ranges: else it would write blindly what it writes, and whatever rests on what was found in them would be its author's to break.
        let (reads, ranges) = (transaction.reads().to_vec(), transaction.ranges().to_vec());
        Transaction::with_ranges(self.cluster.id(), timestamp, reads, ranges, writes).ok()
    }

    /// Sends a transaction of an honest client that it never made, as if to finish it.
    pub fn spoof(&mut self, transaction: &Transaction) -> Option<(Transaction, Sends)> {
        if self.victims.is_empty() {
            return None;
        }
        let victim = self.random.pick(&self.victims);
        let timestamp = Timestamp::new(transaction.timestamp().time, victim);
        let spoofed = self.twin(transaction, timestamp)?;
        let mut sends = self.prepares(&spoofed);
        for (to, _) in self.prepares(&spoofed) {
            sends.push((to, Message::Recover { transaction: spoofed.clone(), evidence: Vec::new() }));
        }
        Some((spoofed, sends))
    }

    /// One of those in whose names it may lie.
    pub fn victim(&mut self) -> Option<ClientId> {
        (!self.victims.is_empty()).then(|| self.random.pick(&self.victims))
    }

    fn invent(&mut self, transaction: &Transaction) -> Option<Transaction> {
        if self.victims.is_empty() {
            return None;
        }
        let timestamp = transaction.timestamp();
        if !transaction.ranges().is_empty() {
            // It has found nothing else, as it says, wherever there is anything.
            let everything = KeyRange::new(Key::from(""), Key::from("\u{7f}")).expect("it has keys");
            let writes = transaction.writes().to_vec();
            return Transaction::with_ranges(self.cluster.id(), timestamp, transaction.reads().to_vec(), vec![everything], writes).ok();
        }
        let from_future = self.random.chance(300);
        let version = if from_future { timestamp.time + 1 } else { timestamp.time - 1 };
        let mut digest = [0; 32];
        digest[..8].copy_from_slice(&self.random.next().to_le_bytes());
        let reads = transaction.reads().iter().map(|read| Read {
            key: read.key.clone(),
            version: Timestamp::new(version, self.random.pick(&self.victims)),
            dependency: (!from_future).then_some(TransactionId(digest)),
        });
        Transaction::new(self.cluster.id(), timestamp, reads.collect(), transaction.writes().to_vec()).ok()
    }

    /// The transaction with one thing more, in a place where some client has rights: a key deleted that never was there, one read, or a range. With it come
    /// the questions that such a transaction asks. If it has a right to that, nothing anybody relies on is changed.
    fn overstep(&mut self, transaction: &Transaction) -> Option<Sends> {
        let prefixes = self.cluster.clients().iter().flat_map(|(_, may)| may.read_prefixes.iter().chain(&may.write_prefixes));
        let prefixes: Vec<Key> = prefixes.filter(|prefix| !prefix.as_bytes().is_empty()).cloned().collect();
        let prefix = (!prefixes.is_empty()).then(|| prefixes[self.random.index(prefixes.len())].clone())?;
        let range = KeyRange::new(prefix.clone(), prefix.after_prefixed()?)?;
        let key = Key::new([prefix.as_bytes(), b"~"].concat())?;
        let (mut reads, mut ranges) = (transaction.reads().to_vec(), transaction.ranges().to_vec());
        let mut writes = transaction.writes().to_vec();
        match self.random.below(3) {
            0 => writes.push(Write { key: key.clone(), value: None }),
            1 => reads.push(Read { key: key.clone(), version: Timestamp::ZERO, dependency: None }),
            _ => ranges.push(range.clone()),
        }
        let timestamp = transaction.timestamp();
        let overstepped = Transaction::with_ranges(self.cluster.id(), timestamp, reads, ranges, writes).ok()?;
        let mut sends = Vec::new();
        self.made += 2;
        // Numbers that its coordinator does not come to.
        let request = u64::MAX - self.made;
        for shard in self.cluster.shards() {
            let is_of_key = shard == self.cluster.shard_of(&key);
            for replica in self.cluster.replicas_of(shard) {
                if is_of_key {
                    sends.push((Party::Replica(replica), Message::Read { request, timestamp, keys: vec![key.clone()] }));
                }
                let (request, range) = (request + 1, range.clone());
                sends.push((
                    Party::Replica(replica),
                    Message::Scan { request, timestamp, range, direction: Direction::Ascending, limit: OVERSTEP_KEYS_MAX },
                ));
            }
        }
        sends.extend(self.prepares(&overstepped));
        Some(sends)
    }
}

/// The same value, with `tag` behind its first `#` in the place of what told its writer. A value that tells no writer stays as it is:
/// a twin may commit, and then it has to do the same.
fn renamed(value: &Value, tag: &str) -> Value {
    let text = std::str::from_utf8(value.as_bytes()).unwrap_or_default();
    let renamed = text.split_once('#').and_then(|(number, _)| Value::new(format!("{number}#{tag}")));
    renamed.unwrap_or_else(|| value.clone())
}
