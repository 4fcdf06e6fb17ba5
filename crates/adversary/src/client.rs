//! Clients that cheat. Each runs an honest client's machine for what it does not cheat about, and stands between it and the
//! network.

use std::collections::BTreeMap;
use std::sync::Arc;

use basil::certificate::{SignedVote, VoteSet};
use basil::{Decision, Message, Quorums, Vote};
use machine::Time;
use types::{ClientId, Cluster, Party, Read, ReplicaId, ShardId, Timestamp, Transaction, TransactionId, Value, Write};

use crate::random::Random;

/// A way for a client to cheat.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ClientStrategy {
    /// Asks for votes and leaves.
    StallEarly,
    /// Decides and tells nobody.
    StallLate,
    /// Asks some replicas only for their votes.
    PartialPrepare,
    /// Gets votes for both ends, and logs both.
    EquivocateLog,
    /// Sends two transactions under one timestamp.
    ReuseTimestamps,
    /// Sends two transactions under one timestamp, each to one half of the replicas.
    SplitContents,
    /// Lives in the future, as far as it is let.
    FarFuture,
    /// Speaks in another client's name.
    Spoof,
    /// Claims to have read from transactions that do not exist, or from its own future.
    InventDependencies,
    /// Reads, and leaves its timestamp on the keys.
    ReadAndLeave,
}

const STRATEGIES: [ClientStrategy; 10] = [
    ClientStrategy::StallEarly,
    ClientStrategy::StallLate,
    ClientStrategy::PartialPrepare,
    ClientStrategy::EquivocateLog,
    ClientStrategy::ReuseTimestamps,
    ClientStrategy::SplitContents,
    ClientStrategy::FarFuture,
    ClientStrategy::Spoof,
    ClientStrategy::InventDependencies,
    ClientStrategy::ReadAndLeave,
];

impl ClientStrategy {
    /// One to four ways, of which each transaction takes one.
    #[must_use]
    pub fn draw(random: &mut Random) -> Vec<Self> {
        (0..random.between(1, 4)).map(|_| random.pick(&STRATEGIES)).collect()
    }
}

/// Votes by who says what: liars have two.
type Votes = BTreeMap<(ReplicaId, Vote), SignedVote>;

/// The cheating part of a client.
#[derive(Debug)]
pub struct Rogue {
    cluster: Arc<Cluster>,
    strategies: Vec<ClientStrategy>,
    current: ClientStrategy,
    random: Random,
    victims: Vec<ClientId>,
    /// The transaction whose votes it collects, to show them both ways.
    collecting: Option<(Transaction, Votes)>,
    /// How many contents it has made, for their tags.
    made: u64,
}

/// How far ahead a client of the future lives, in milliseconds: just inside of what replicas grant, or well outside.
const FUTURE_MS: [u64; 3] = [250, 480, 5_000];

impl Rogue {
    /// A cheat that goes about it in these ways (at least one), and knows the names of these honest clients.
    #[must_use]
    pub fn new(cluster: Arc<Cluster>, strategies: Vec<ClientStrategy>, random: Random, victims: Vec<ClientId>) -> Self {
        let current = strategies[0];
        Self { cluster, strategies, current, random, victims, collecting: None, made: 0 }
    }

    /// A new transaction begins: how it cheats this time.
    pub fn begin(&mut self) -> ClientStrategy {
        self.current = self.strategies[self.random.index(self.strategies.len())];
        self.collecting = None;
        self.current
    }

    /// The timestamp of a transaction that an honest client would begin at `honest`.
    pub fn timestamp(&mut self, honest: Timestamp) -> Timestamp {
        match self.current {
            ClientStrategy::FarFuture | ClientStrategy::ReadAndLeave => {
                Timestamp::new(Time(honest.time).after_ms(self.random.pick(&FUTURE_MS)).0, honest.client)
            }
            _ => honest,
        }
    }

    /// What is said in place of an ordinary commit; nothing when the machine shall go on as if it were honest.
    pub fn commit(&mut self, transaction: &Transaction) -> Option<Vec<(Party, Message)>> {
        match self.current {
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
            ClientStrategy::EquivocateLog => Some(self.divide(transaction)),
            ClientStrategy::Spoof => Some(self.spoof(transaction)),
            ClientStrategy::InventDependencies => {
                let invented = self.invent(transaction)?;
                Some(self.prepares(&invented))
            }
            ClientStrategy::ReadAndLeave => Some(Vec::new()),
            _ => None,
        }
    }

    /// What of the machine's messages goes out.
    pub fn lets_out(&mut self, message: &Message) -> bool {
        match (self.current, message) {
            (_, Message::Read { .. }) => true,
            (ClientStrategy::StallEarly, message) => matches!(message, Message::Prepare { .. }),
            (ClientStrategy::StallLate, message) => !matches!(message, Message::Writeback { .. }),
            (ClientStrategy::PartialPrepare, message) => matches!(message, Message::Prepare { .. }) && self.random.chance(500),
            _ => true,
        }
    }

    /// Hears a vote, and shows what it has once it justifies both ends.
    pub fn hear(&mut self, message: &Message) -> Vec<(Party, Message)> {
        let Message::Voted { vote, .. } = message else { return Vec::new() };
        let Some((transaction, votes)) = &mut self.collecting else { return Vec::new() };
        if vote.statement.id != transaction.id() {
            return Vec::new();
        }
        votes.insert((vote.replica, vote.statement.vote), vote.clone());
        let quorums = Quorums::new(self.cluster.faults());
        let set = |shard: ShardId, side: Vote| {
            let of_shard = votes.iter().filter(|((replica, vote), _)| replica.shard == shard && *vote == side);
            VoteSet { shard, vote: side, voters: of_shard.map(|((replica, _), signed)| (replica.index, signed.seal.clone())).collect() }
        };
        let participants = self.cluster.participants(transaction);
        let commits: Vec<VoteSet> = participants.iter().map(|shard| set(*shard, Vote::Commit)).collect();
        let abort = participants.iter().map(|shard| set(*shard, Vote::Abort)).find(|set| set.voters.len() >= quorums.abort_slow());
        let (true, Some(abort)) = (commits.iter().all(|set| set.voters.len() >= quorums.commit_slow()), abort) else { return Vec::new() };
        let transaction = transaction.clone();
        let Some(shard) = basil::certificate::logging_shard(&participants, transaction.id()) else { return Vec::new() };
        self.collecting = None;
        let both = self.cluster.replicas_of(shard).map(|replica| {
            let (decision, tallies) =
                if self.random.chance(500) { (Decision::Commit, commits.clone()) } else { (Decision::Abort, vec![abort.clone()]) };
            (Party::Replica(replica), Message::Log { transaction: transaction.clone(), decision, tallies })
        });
        both.collect()
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
        Transaction::new(self.cluster.id(), timestamp, transaction.reads().to_vec(), writes).ok()
    }

    /// ST1 to every replica of every shard touched.
    fn prepares(&self, transaction: &Transaction) -> Vec<(Party, Message)> {
        let shards = self.cluster.participants(transaction);
        let replicas = shards.into_iter().flat_map(|shard| self.cluster.replicas_of(shard));
        replicas.map(|replica| (Party::Replica(replica), Message::Prepare { transaction: transaction.clone() })).collect()
    }

    /// Has `f + 1` replicas of a shard prepare a twin just above, which read past what the transaction writes: they vote against
    /// it and the others for it. (A twin just below would be voted down: the transaction's own reads have raised read timestamps.)
    fn divide(&mut self, transaction: &Transaction) -> Vec<(Party, Message)> {
        let timestamp = transaction.timestamp();
        let above = Timestamp::new(timestamp.time + 1, timestamp.client);
        let mut sends = Vec::new();
        if let Some(twin) = self.twin(transaction, above) {
            let few = u16::try_from(self.cluster.faults() + 1).expect("shards are small");
            let first = |party: &Party| matches!(party, Party::Replica(replica) if replica.index < few);
            sends = self.prepares(&twin);
            sends.retain(|(to, _)| first(to));
        }
        sends.extend(self.prepares(transaction));
        self.collecting = Some((transaction.clone(), BTreeMap::new()));
        sends
    }

    /// Sends a transaction of an honest client that it never made, as if to finish it.
    fn spoof(&mut self, transaction: &Transaction) -> Vec<(Party, Message)> {
        let victim = self.random.pick(&self.victims);
        let timestamp = Timestamp::new(transaction.timestamp().time, victim);
        let Some(spoofed) = self.twin(transaction, timestamp) else { return Vec::new() };
        let mut sends = self.prepares(&spoofed);
        for (to, _) in self.prepares(&spoofed) {
            sends.push((to, Message::Recover { transaction: spoofed.clone(), evidence: Vec::new() }));
        }
        sends
    }

    fn invent(&mut self, transaction: &Transaction) -> Option<Transaction> {
        let timestamp = transaction.timestamp();
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
}

/// The same value, with `tag` behind its first `#` in the place of what told its writer.
fn renamed(value: &Value, tag: &str) -> Value {
    let text = std::str::from_utf8(value.as_bytes()).unwrap_or_default();
    let number = text.split_once('#').map_or(text, |(number, _)| number);
    Value::new(format!("{number}#{tag}")).unwrap_or_else(|| value.clone())
}
