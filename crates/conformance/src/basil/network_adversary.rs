//! A network that does the worst it may. It reads what is under way, whose it is and what it is for, and decides which of it
//! comes late: by attacks that have names, each aimed at one rule.
//!
//! It loses nothing, and nothing that it delays arrives after the faults are over, so that progress can be demanded then.
//! A message that several attacks are about waits for the last of them.

use std::collections::{BTreeMap, BTreeSet};

use basil::{Decision, Message, Transaction, Vote};
use random::{Random, named};
use types::{Cluster, Party, ReplicaId, ShardId, TransactionId};

named! {
    /// A way for the network to be late where it hurts.
    pub enum DelayAttack {
        /// The vote, or the logged decision, that would complete a quorum, and all after it.
        StarveQuorums,
        /// Votes to commit for some and votes to abort for others, so that each at first counts another end; and what is to be
        /// logged for this end comes first to one half of the replicas, and what is for that end to the other half.
        DivideVotes,
        /// How a transaction ended comes to `f` replicas of each shard just before or after half of its window is over, or all of it.
        EndsAtHalf,
        /// A transaction comes to some replicas at once, and to others just before or after half of its window is over.
        BeginsAtHalf,
        /// What asks for a leader, what elects it and what it decides come when its turn is about over.
        LeadersLast,
        /// What comes to be voted on comes to every other replica in the opposite order.
        CrossPrepares,
        /// What is for the replica of a shard that is next to take a turn.
        SlowNext,
    }
}

impl DelayAttack {
    /// Mostly one to three, now and then all.
    pub fn draw(random: &mut Random) -> BTreeSet<Self> {
        use random::Named as _;
        if random.chance(125) {
            return Self::ALL.iter().copied().collect();
        }
        (0..random.between(1, 3)).map(|_| random.pick(Self::ALL)).collect()
    }
}

const MS: u64 = 1_000_000;
/// For how long a quorum is starved, in milliseconds.
const STARVED_MS: [u64; 5] = [20, 150, 700, 2_500, 5_000];
/// For how long somebody is left with one side of the votes, in milliseconds.
const DIVIDED_MS: [u64; 3] = [300, 1_500, 4_000];
/// How far from half of the window, before or after, what is to come about then comes at most: about as far as clocks are off.
const EDGE_NS: u64 = 120 * MS;
/// How many transactions of a thousand have their ends held back.
const ENDS_PER_MILLE: u64 = 500;
/// How many of a thousand begin at half of their window.
const BEGINS_PER_MILLE: u64 = 150;
/// How long the first view lasts at least, in nanoseconds; each lasts twice as long as the one before it, for a while.
const VIEW_NS: u64 = 50 * MS;
/// How often views become longer.
const VIEWS_DOUBLED: u32 = 5;
/// What is put in another order is held at least so long: longer than most messages take of themselves.
const CROSSED_NS: u64 = 15 * MS;

/// What is counted towards a quorum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Voice {
    Commit,
    Abort,
    /// One such vote is enough.
    Conflict,
    Logged(bool, u32),
}

/// A quorum that is not to come together for somebody.
#[derive(Debug)]
struct Starvation {
    let_through: usize,
    heard: BTreeSet<u16>,
    until: u64,
}

/// The network's adversary.
#[derive(Debug)]
pub struct NetworkAdversary {
    random: Random,
    delay_attacks: BTreeSet<DelayAttack>,
    faults: usize,
    half_ns: u64,
    /// When everything has arrived that it held back.
    ends_at: u64,
    /// Within what time what comes to be voted on is put in another order.
    slot_ns: u64,
    /// The replicas that hear late how transactions ended.
    chosen: BTreeSet<ReplicaId>,
    /// The timestamps of transactions that were under way.
    timestamps: BTreeMap<TransactionId, u64>,
    starvations: BTreeMap<(Party, TransactionId, ShardId, Voice), Starvation>,
    /// Who hears first of what is to commit a transaction, or else of what is to abort it; and until when only of that.
    sides: BTreeMap<(Party, TransactionId), (bool, u64)>,
    /// Until when a replica does not hear of how a transaction ended.
    ends: BTreeMap<TransactionId, Option<u64>>,
    /// Whether a transaction begins late at some replicas,
    late: BTreeMap<TransactionId, bool>,
    /// and when at which.
    begins: BTreeMap<(Party, TransactionId), u64>,
}

impl NetworkAdversary {
    pub fn new(seed: u64, delay_attacks: BTreeSet<DelayAttack>, cluster: &Cluster, window_ms: u64, ends_at: u64) -> Self {
        let mut random = Random::stream(seed, "foe");
        let mut chosen = BTreeSet::new();
        for shard in cluster.shards() {
            let mut replicas: Vec<ReplicaId> = cluster.replicas_of(shard).collect();
            random.shuffle(&mut replicas);
            chosen.extend(&replicas[..cluster.faults()]);
        }
        Self {
            delay_attacks,
            faults: cluster.faults(),
            half_ns: window_ms * MS / 2,
            ends_at,
            slot_ns: random.pick(&[2 * MS, 10 * MS, 40 * MS]),
            chosen,
            timestamps: BTreeMap::new(),
            starvations: BTreeMap::new(),
            sides: BTreeMap::new(),
            ends: BTreeMap::new(),
            late: BTreeMap::new(),
            begins: BTreeMap::new(),
            random,
        }
    }

    fn starve(&mut self, now: u64, to: Party, message: &Message) -> u64 {
        let (id, replica, voice) = match message {
            Message::Voted { vote, conflict: Some(_) } => (vote.statement.id, vote.replica, Voice::Conflict),
            Message::Voted { vote, conflict: None } => {
                (vote.statement.id, vote.replica, if vote.statement.vote == Vote::Commit { Voice::Commit } else { Voice::Abort })
            }
            Message::Logged { logged } => {
                let voice = Voice::Logged(logged.statement.decision == Decision::Commit, logged.statement.view_decision);
                (logged.statement.id, logged.replica, voice)
            }
            _ => return 0,
        };
        let (random, faults) = (&mut self.random, self.faults);
        // One less than is enough: to end slowly or, now and then, at once.
        let starvation = self.starvations.entry((to, id, replica.shard, voice)).or_insert_with(|| Starvation {
            let_through: match voice {
                Voice::Commit => random.pick(&[3 * faults, 3 * faults, 5 * faults]),
                Voice::Abort => random.pick(&[faults, faults, 3 * faults]),
                Voice::Conflict => 0,
                Voice::Logged(..) => 4 * faults,
            },
            heard: BTreeSet::new(),
            until: now + random.pick(&STARVED_MS) * MS,
        });
        if starvation.heard.len() < starvation.let_through {
            starvation.heard.insert(replica.index);
        }
        if starvation.heard.contains(&replica.index) { 0 } else { starvation.until }
    }

    fn divide(&mut self, now: u64, to: Party, message: &Message) -> u64 {
        let (id, is_to_commit, half) = match (message, to) {
            (Message::Voted { vote, .. }, _) => (vote.statement.id, vote.statement.vote == Vote::Commit, None),
            (Message::Log { transaction, decision, .. }, Party::Replica(replica)) => {
                (transaction.id(), *decision == Decision::Commit, Some(replica.index % 2 == 0))
            }
            _ => return 0,
        };
        let random = &mut self.random;
        let (commits_first, until) =
            *self.sides.entry((to, id)).or_insert_with(|| (half.unwrap_or(random.chance(500)), now + random.pick(&DIVIDED_MS) * MS));
        if is_to_commit == half.unwrap_or(commits_first) { 0 } else { until }
    }

    fn end_at_half(&mut self, to: Party, message: &Message) -> u64 {
        let (Message::Writeback { certificate, .. } | Message::Decided { certificate }) = message else { return 0 };
        let Party::Replica(replica) = to else { return 0 };
        let Some(timestamp) = self.timestamps.get(&certificate.id).filter(|_| self.chosen.contains(&replica)) else { return 0 };
        let (random, half_ns) = (&mut self.random, self.half_ns);
        let held = || random.chance(ENDS_PER_MILLE).then(|| timestamp + half_ns * random.pick(&[1, 1, 2]));
        let until = *self.ends.entry(certificate.id).or_insert_with(held);
        until.map_or(0, |until| around(until, &mut self.random))
    }

    fn begin_at_half(&mut self, now: u64, to: Party, message: &Message) -> u64 {
        let Some(transaction) = to_be_voted_on(message) else { return 0 };
        let (random, id) = (&mut self.random, transaction.id());
        if !*self.late.entry(id).or_insert_with(|| random.chance(BEGINS_PER_MILLE)) {
            return 0;
        }
        let half = transaction.timestamp().time + self.half_ns;
        *self.begins.entry((to, id)).or_insert_with(|| if random.chance(400) { now } else { around(half, random) })
    }

    fn be_late_for_leaders(&mut self, now: u64, message: &Message) -> u64 {
        let view_ns = |view: u32| VIEW_NS << view.saturating_sub(1).min(VIEWS_DOUBLED);
        match message {
            Message::Recover { .. } => now + self.random.pick(&[0, 100, 1_000]) * MS,
            Message::InvokeFallback { .. } => now + self.random.pick(&[0, 30, 200, 800]) * MS,
            Message::ElectFallback { elect } => now + view_ns(elect.statement.view) * self.random.between(60, 120) / 100,
            // Some hear it in time.
            Message::DecideFallback { decide, .. } if self.random.chance(600) => {
                now + view_ns(decide.statement.view) * self.random.between(60, 250) / 100
            }
            _ => 0,
        }
    }

    fn cross(&mut self, now: u64, to: Party, message: &Message) -> u64 {
        let (Some(transaction), Party::Replica(replica)) = (to_be_voted_on(message), to) else { return 0 };
        let slot = (now + CROSSED_NS) / self.slot_ns + 1;
        // Any order will do, as long as every other replica has the opposite one.
        let place = transaction.id().prefix() % MS;
        slot * self.slot_ns + if replica.index % 2 == 0 { place } else { MS - place }
    }
}

impl simulator::NetworkAdversary<Message> for NetworkAdversary {
    fn watches_turns(&self) -> bool {
        self.delay_attacks.contains(&DelayAttack::SlowNext)
    }

    fn not_before(&mut self, now: u64, from: Party, to: Party, message: &Message, is_next: bool) -> u64 {
        if self.delay_attacks.is_empty() || now >= self.ends_at || from == to {
            return 0;
        }
        if let Message::Prepare { transaction } | Message::Recover { transaction, .. } | Message::Log { transaction, .. } = message {
            self.timestamps.insert(transaction.id(), transaction.timestamp().time);
        }
        let delay_attacks = self.delay_attacks.clone();
        let times = delay_attacks.into_iter().map(|attack| match attack {
            DelayAttack::StarveQuorums => self.starve(now, to, message),
            DelayAttack::DivideVotes => self.divide(now, to, message),
            DelayAttack::EndsAtHalf => self.end_at_half(to, message),
            DelayAttack::BeginsAtHalf => self.begin_at_half(now, to, message),
            DelayAttack::LeadersLast => self.be_late_for_leaders(now, message),
            DelayAttack::CrossPrepares => self.cross(now, to, message),
            DelayAttack::SlowNext if is_next => now + self.random.between(5, 60) * MS,
            DelayAttack::SlowNext => 0,
        });
        times.max().unwrap_or(0).min(self.ends_at)
    }
}

fn around(time: u64, random: &mut Random) -> u64 {
    time - EDGE_NS + random.below(2 * EDGE_NS)
}

/// What a replica is to vote on when it hears `message`, if it has not before.
fn to_be_voted_on(message: &Message) -> Option<&Transaction> {
    match message {
        Message::Prepare { transaction } | Message::Recover { transaction, .. } => Some(transaction),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use basil::Write;
    use simulator::NetworkAdversary as _;
    use types::{ClientId, ClusterId, Key, Permission, Placement, Session, Timestamp, Value};

    use super::*;

    const CLUSTER: ClusterId = ClusterId::new([7; 16]);
    const CLIENT: Party = Party::Client(ClientId(1), Session(1));

    fn adversary(attack: DelayAttack, ends_at: u64) -> NetworkAdversary {
        let key = |number: u8| crypto::SecretKey::from_bytes([number; 32]).public();
        let permission = Permission {
            public_key: key(9),
            read_prefixes: Vec::new(),
            write_prefixes: Vec::new(),
            limits: types::ClientLimits::default(),
        };
        let shard = (0..6).map(key).collect();
        let cluster = Cluster::new(CLUSTER, 1, Placement::Hash, vec![shard], [(ClientId(1), permission)].into_iter().collect());
        NetworkAdversary::new(1, BTreeSet::from([attack]), &cluster.expect("such a cluster can be"), 4_000, ends_at)
    }

    fn prepare(time: u64) -> Message {
        let write = Write { key: Key::from("k"), value: Some(Value::from("v")) };
        let transaction = Transaction::new(CLUSTER, Timestamp::new(time, ClientId(1)), Vec::new(), vec![write]);
        Message::Prepare { transaction: transaction.expect("it is small") }
    }

    fn replica(index: u16) -> Party {
        Party::Replica(ReplicaId { shard: ShardId(0), index })
    }

    #[test]
    fn what_comes_first_to_one_replica_comes_last_to_the_next() {
        let mut adversary = adversary(DelayAttack::CrossPrepares, u64::MAX);
        let (first, second) = (prepare(1), prepare(2));
        let mut order = |index| {
            let arrives = [&first, &second].map(|message| adversary.not_before(1_000 * MS, CLIENT, replica(index), message, false));
            assert!(arrives.iter().all(|at| *at > 1_000 * MS), "{arrives:?}");
            arrives[0] < arrives[1]
        };
        assert_eq!([order(0), order(2)], [order(4); 2]);
        assert_eq!([order(1), order(3)], [!order(0); 2]);
    }

    #[test]
    fn nothing_is_held_back_for_longer_than_the_faults_last() {
        let ends_at = 1_010 * MS;
        let mut adversary = adversary(DelayAttack::SlowNext, ends_at);
        let held: Vec<u64> = (0..50).map(|_| adversary.not_before(1_000 * MS, CLIENT, replica(1), &prepare(1), true)).collect();
        assert!(held.contains(&ends_at) && held.iter().all(|at| (1_005 * MS..=ends_at).contains(at)), "{held:?}");
        assert_eq!(adversary.not_before(1_000 * MS, CLIENT, replica(1), &prepare(1), false), 0, "it is not its turn");
        assert_eq!(adversary.not_before(ends_at, CLIENT, replica(1), &prepare(1), true), 0, "the faults are over");
    }

    #[test]
    fn some_hear_of_a_transaction_when_half_of_its_window_is_over() {
        let mut adversary = adversary(DelayAttack::BeginsAtHalf, u64::MAX);
        let (begun, half) = (10_000 * MS, 12_000 * MS);
        let (mut before, mut after, mut at_once) = (0, 0, 0);
        for number in 0..200 {
            for index in 0..6 {
                let message = prepare(begun + number);
                let arrives = adversary.not_before(begun + number, CLIENT, replica(index), &message, false);
                assert_eq!(
                    arrives,
                    adversary.not_before(begun + number, CLIENT, replica(index), &message, false),
                    "it is sent again in vain"
                );
                match arrives {
                    at if at <= begun + number => at_once += 1,
                    at if at.abs_diff(half) > EDGE_NS + MS => panic!("{at} is not about {half}"),
                    at if at < half => before += 1,
                    _ => after += 1,
                }
            }
        }
        assert!(before > 20 && after > 20 && at_once > 900, "{before} before, {after} after, {at_once} at once");
    }
}
