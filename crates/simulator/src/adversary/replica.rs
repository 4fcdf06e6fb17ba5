//! Replicas that lie. Behind each stands an honest replica's machine, which the liar lets hear and speak as it pleases.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ::adversary::{Named, named};
use basil::certificate::{LoggedStatement, VoteStatement};
use basil::message::{Conflict, Draft, Newer, ReadResult};
use basil::{Message, Vote};
use types::{ClientId, Cluster, Key, Party, ReplicaId, Timestamp, Transaction, Value, Write};

use crate::random::Random;

named! {
    /// A way for a replica to lie.
    pub enum ReplicaStrategy {
        /// Says nothing at all.
        Silent,
        /// Votes every transaction down.
        AbortAlways,
        /// Votes to commit everything, without looking.
        CommitAlways,
        /// Votes one way to some and the other way to others; to liars both ways.
        EquivocateVotes,
        /// Claims to have logged whatever decision it is asked to log.
        EquivocateLogs,
        /// Answers reads with nothing, or without what is prepared.
        StaleReads,
        /// Answers reads with committed versions that nobody wrote.
        InventVersions,
        /// Answers reads with prepared transactions that nobody sent, in an honest client's name.
        InventPrepared,
        /// Votes down and names made-up transactions as the reason.
        FalseConflicts,
        /// Says again what it said long ago, to whomever.
        Replay,
        /// Shows its own seals as other replicas'.
        Impersonate,
        /// Sends bytes with a bit flipped.
        Garble,
        /// Comes back from an empty disk, and says so to nobody.
        Forget,
    }
}

impl ReplicaStrategy {
    /// One to three ways, none twice.
    pub(crate) fn draw(random: &mut Random) -> Vec<Self> {
        let mut strategies: Vec<Self> = (0..random.between(1, 3)).map(|_| random.pick(Self::ALL)).collect();
        strategies.sort_unstable();
        strategies.dedup();
        strategies
    }
}

/// Whether the honest machine behind a liar hears a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    Pass,
    Swallow,
}

/// How many of its own messages a liar keeps to say again.
const KEPT_MAX: usize = 64;
/// How many readers' timestamps a liar keeps.
const READERS_MAX: usize = 256;

/// What a liar does with its mouth and its ears.
#[derive(Debug)]
pub(crate) struct Liar {
    me: ReplicaId,
    cluster: Arc<Cluster>,
    strategies: Vec<ReplicaStrategy>,
    random: Random,
    /// Clients that lie too.
    friends: BTreeSet<ClientId>,
    /// Honest clients, in whose names to lie.
    victims: Vec<ClientId>,
    kept: Vec<(Party, Message)>,
    readers: BTreeMap<(Party, u64), (Timestamp, Vec<Key>)>,
}

impl Liar {
    pub fn new(
        me: ReplicaId,
        cluster: Arc<Cluster>,
        strategies: Vec<ReplicaStrategy>,
        random: Random,
        friends: BTreeSet<ClientId>,
        victims: Vec<ClientId>,
    ) -> Self {
        Self { me, cluster, strategies, random, friends, victims, kept: Vec::new(), readers: BTreeMap::new() }
    }

    pub fn does(&self, strategy: ReplicaStrategy) -> bool {
        self.strategies.contains(&strategy)
    }

    /// Before the machine hears a message: what to say at once, and whether it hears it.
    pub fn hear(&mut self, from: Party, message: &Message, drafts: &mut Vec<(Party, Draft)>) -> Heard {
        match message {
            Message::Read { request, timestamp, keys } => {
                if self.readers.len() >= READERS_MAX {
                    self.readers.pop_first();
                }
                self.readers.insert((from, *request), (*timestamp, keys.clone()));
            }
            Message::Prepare { transaction } | Message::Recover { transaction, .. } => {
                let replica = self.me;
                let id = transaction.id();
                let mut say = |vote| {
                    let statement = VoteStatement { id, vote };
                    drafts.push((from, Draft::Vote { replica, statement, conflict: None }));
                };
                if self.strategies.contains(&ReplicaStrategy::EquivocateVotes) && self.is_friend(from) {
                    say(Vote::Commit);
                    say(Vote::Abort);
                } else if self.strategies.contains(&ReplicaStrategy::AbortAlways) {
                    say(Vote::Abort);
                } else if self.strategies.contains(&ReplicaStrategy::CommitAlways) {
                    say(Vote::Commit);
                }
            }
            Message::Log { transaction, decision, .. } if self.does(ReplicaStrategy::EquivocateLogs) => {
                let statement = LoggedStatement { id: transaction.id(), decision: *decision, view_decision: 0, view_current: 0 };
                drafts.push((from, Draft::Logged { replica: self.me, statement }));
                return Heard::Swallow;
            }
            _ => {}
        }
        Heard::Pass
    }

    fn is_friend(&self, party: Party) -> bool {
        matches!(party, Party::Client(client, _) if self.friends.contains(&client))
    }

    /// Before anything is sealed: turns what the machine says into what the liar says.
    pub fn speak(&mut self, sends: &mut Vec<(Party, Message)>, drafts: &mut Vec<(Party, Draft)>) {
        if self.does(ReplicaStrategy::Silent) {
            sends.clear();
            drafts.clear();
            return;
        }
        for (to, draft) in drafts.iter_mut() {
            let is_friend = self.is_friend(*to);
            if let Draft::Vote { statement, conflict, .. } = draft {
                if self.strategies.contains(&ReplicaStrategy::EquivocateVotes) && !is_friend {
                    statement.vote = self.random.pick(&[Vote::Commit, Vote::Abort]);
                } else if self.strategies.contains(&ReplicaStrategy::AbortAlways) {
                    statement.vote = Vote::Abort;
                } else if self.strategies.contains(&ReplicaStrategy::CommitAlways) {
                    statement.vote = Vote::Commit;
                }
                if self.strategies.contains(&ReplicaStrategy::FalseConflicts) {
                    statement.vote = Vote::Abort;
                    let time = self.random.next();
                    *conflict = self.readers.values().next_back().and_then(|(timestamp, keys)| {
                        let timestamp = Timestamp::new(timestamp.time.wrapping_sub(time % 1_000_000), timestamp.client);
                        made_up(&self.cluster, timestamp, keys.first()?).map(|transaction| Conflict::Stalled { transaction })
                    });
                }
            }
        }
        for (to, message) in sends.iter_mut() {
            if let Message::ReadReply { request, results, prepared } = message {
                let asked = self.readers.get(&(*to, *request)).cloned();
                self.bend_reply(asked, results, prepared);
            }
        }
        if self.does(ReplicaStrategy::Replay) {
            self.replay(sends);
        }
    }

    fn bend_reply(&mut self, asked: Option<(Timestamp, Vec<Key>)>, results: &mut [ReadResult], prepared: &mut Vec<Transaction>) {
        if self.does(ReplicaStrategy::StaleReads) {
            let forgets_all = self.random.chance(500);
            for result in results.iter_mut() {
                result.newer = Newer::Nothing;
                if forgets_all {
                    (result.version, result.value) = (Timestamp::ZERO, None);
                }
            }
            prepared.clear();
        }
        let Some((timestamp, keys)) = asked else { return };
        // Every liar tells the same lie: together they are worth more.
        let before = Timestamp::new(timestamp.time.saturating_sub(1), self.victims[0]);
        if self.does(ReplicaStrategy::InventVersions) {
            for result in results.iter_mut() {
                *result = ReadResult { version: before, value: Some(Value::from("4000#a lie")), newer: Newer::Nothing };
            }
            prepared.clear();
        }
        if self.does(ReplicaStrategy::InventPrepared) && !results.is_empty() {
            let at = self.random.index(results.len());
            if let Some(transaction) = keys.get(at).and_then(|key| made_up(&self.cluster, before, key)) {
                results[at].newer = u16::try_from(prepared.len()).map_or(Newer::Hidden, Newer::Prepared);
                prepared.push(transaction);
            }
        }
    }

    fn replay(&mut self, sends: &mut Vec<(Party, Message)>) {
        for said in sends.iter() {
            if self.kept.len() < KEPT_MAX {
                self.kept.push(said.clone());
            } else if self.random.chance(50) {
                let at = self.random.index(KEPT_MAX);
                self.kept[at] = said.clone();
            }
        }
        if !self.kept.is_empty() && self.random.chance(300) {
            let (to, _) = self.kept[self.random.index(self.kept.len())];
            let (_, message) = self.kept[self.random.index(self.kept.len())].clone();
            sends.push((to, message));
        }
    }

    /// After everything is sealed: shows a seal as another replica's.
    pub fn forge(&mut self, sends: &mut [(Party, Message)]) {
        if !self.does(ReplicaStrategy::Impersonate) {
            return;
        }
        let count = u64::try_from(self.cluster.replicas_per_shard()).expect("shards are small");
        for (_, message) in sends {
            let other = u16::try_from(self.random.below(count)).expect("shards are small");
            match message {
                Message::Voted { vote, .. } if self.random.chance(300) => vote.replica.index = other,
                Message::Logged { logged } if self.random.chance(300) => logged.replica.index = other,
                _ => {}
            }
        }
    }

    /// On the way out: damages bytes.
    pub fn garble(&mut self, bytes: &mut [u8]) {
        if self.does(ReplicaStrategy::Garble) && !bytes.is_empty() && self.random.chance(30) {
            let at = self.random.index(bytes.len());
            bytes[at] ^= 1 << self.random.below(8);
        }
    }
}

/// A transaction nobody sent.
fn made_up(cluster: &Cluster, timestamp: Timestamp, key: &Key) -> Option<Transaction> {
    let write = Write { key: key.clone(), value: Some(Value::from("5000#made up")) };
    Transaction::new(cluster.id(), timestamp, Vec::new(), vec![write]).ok()
}
