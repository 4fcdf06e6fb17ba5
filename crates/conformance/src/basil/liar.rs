//! Replicas that lie. Behind each stands an honest replica's machine, which the liar lets hear and speak as it pleases.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use basil::certificate::{LoggedStatement, VoteStatement};
use basil::message::{
    Conflict, JournalEnd, KeyVersion, OldVersion, PageQuery, PageVersion, PendingWrite, ReadResult, Refusal, ScanRow, Subject, Unsigned,
};
use basil::{Certificate, Decision, Message, Transaction, Vote, Write};
use random::{Named, Random, named};
use simulator::Heard;
use types::{ClientId, Cluster, Direction, Key, KeyRange, Party, ReplicaId, Timestamp, Value};

use super::Basil;
use super::lying_leader::LyingLeader;
use super::plan;

type Lies = simulator::Lies<Basil>;

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
        /// Answers reads with nothing, or without what is prepared; leaves keys out of ranges, and claims that nothing is missing.
        StaleReads,
        /// Answers reads with committed versions that nobody wrote, and adds some to ranges.
        InventVersions,
        /// Answers reads with prepared transactions that nobody sent, in an honest client's name.
        InventPrepared,
        /// Votes down and names as the reason transactions that are made up, or that are real and in nobody's way.
        FalseConflicts,
        /// Says of everything that it has committed, as soon as it hears of it.
        TellCommits,
        /// Says again what it said long ago, to whomever.
        Replay,
        /// Shows its own signatures as other replicas'.
        Impersonate,
        /// Sends bytes with a bit flipped.
        Garble,
        /// Comes back from an empty disk, and says so to nobody.
        Forget,
        /// Refuses whatever it is asked, for one reason or another.
        RefuseAll,
        /// Answers every other read with nothing at all, and stops early in ranges, or begins at their other end.
        WithholdReads,
        /// Says that nothing newer is prepared, whatever is.
        HidePrepared,
        /// Shows those who compare what they have with it commits and versions that never were, or are no longer the newest, and hides real ones; and those
        /// who ask how something ended, an end. Tells everybody that their data are an older copy, and claims now that its own journal has no end, now that it
        /// has just begun.
        ForgePast,
        /// Claims to be in views, and to have logged in views, that nobody is in.
        ClaimViews,
        /// Elects with both decisions, and in views it is not in.
        ElectTwice,
        /// Leads, and decides nothing.
        DecideNothing,
        /// Leads, and decides one thing for some and another for others, where the electors allow it.
        DecideBoth,
        /// Leads, and signs two decisions in one view, for everybody to see.
        DecideTwice,
        /// Leads, and decides when others have gone on.
        DecideLate,
        /// Leads on the word of electors that never gave it, or gave it for something else.
        WrongElectors,
    }
}

impl ReplicaStrategy {
    /// Those that are about elections.
    pub(crate) const IN_ELECTIONS: [Self; 7] = [
        Self::ClaimViews,
        Self::ElectTwice,
        Self::DecideNothing,
        Self::DecideBoth,
        Self::DecideTwice,
        Self::DecideLate,
        Self::WrongElectors,
    ];

    /// Those that keep from whoever lost its disk what it has to take over, or show it something else, together as they make sense.
    pub(crate) const BESIDE_LOST_DISKS: [&'static [Self]; 5] = [
        &[Self::ForgePast],
        &[Self::StaleReads, Self::ForgePast],
        &[Self::WithholdReads, Self::ForgePast],
        &[Self::StaleReads, Self::WithholdReads],
        &[Self::Silent],
    ];

    /// One to three ways, none twice.
    pub(crate) fn draw(random: &mut Random) -> Vec<Self> {
        let mut strategies: Vec<Self> = (0..random.between(1, 3)).map(|_| random.pick(Self::ALL)).collect();
        strategies.sort_unstable();
        strategies.dedup();
        strategies
    }
}

/// How many of its own messages a liar keeps to say again.
const KEPT_MAX: usize = 64;
/// How many transactions of others a liar keeps, and as many proofs of how some ended.
const OTHERS_MAX: usize = 64;
/// How many readers' timestamps a liar keeps.
const READERS_MAX: usize = 256;

/// How late a late leader decides, in milliseconds, from and to: views last from 50 up to 1,600.
const LATE_MS: (u64, u64) = (60, 2_000);
/// How many of a thousand messages of a liar that damages them are damaged.
const GARBLED_PER_MILLE: u64 = 300;

/// What a replica that lies says beside, and in place of, what its machine says.
#[derive(Debug)]
pub struct Liar {
    me: ReplicaId,
    cluster: Arc<Cluster>,
    strategies: Vec<ReplicaStrategy>,
    random: Random,
    /// Clients that lie too.
    colluders: BTreeSet<ClientId>,
    /// Honest clients, in whose names to lie.
    victims: Vec<ClientId>,
    kept: Vec<(Party, Message)>,
    readers: BTreeMap<(Party, u64), (Timestamp, Vec<Key>)>,
    /// The ranges that clients have asked for, likewise.
    ranges: BTreeMap<(Party, u64), (Timestamp, KeyRange)>,
    /// The first version that it showed of each key.
    first: BTreeMap<Key, KeyVersion>,
    /// The page about which each other asked last.
    pages: BTreeMap<Party, PageQuery>,
    /// The last transactions that it made up and said to have committed.
    forged: VecDeque<Transaction>,
    leader: LyingLeader,
    /// What others sent lately, and which of it committed, with the proof.
    others: VecDeque<Transaction>,
    committed: VecDeque<(Transaction, Arc<Certificate>)>,
}

impl Liar {
    pub fn new(
        me: ReplicaId,
        cluster: Arc<Cluster>,
        strategies: Vec<ReplicaStrategy>,
        random: Random,
        colluders: BTreeSet<ClientId>,
        victims: Vec<ClientId>,
    ) -> Self {
        let leader = LyingLeader::new(me, cluster.clone());
        Self {
            me,
            cluster,
            strategies,
            random,
            colluders,
            victims,
            kept: Vec::new(),
            readers: BTreeMap::new(),
            ranges: BTreeMap::new(),
            first: BTreeMap::new(),
            pages: BTreeMap::new(),
            forged: VecDeque::new(),
            leader,
            others: VecDeque::new(),
            committed: VecDeque::new(),
        }
    }

    fn does(&self, strategy: ReplicaStrategy) -> bool {
        self.strategies.contains(&strategy)
    }

    /// Keeps what may serve for a lie later.
    fn remember(&mut self, message: &Message) {
        match message {
            Message::Prepare { transaction } => self.others.push_back(transaction.clone()),
            Message::Writeback { transaction, certificate, relay: _ } if certificate.decision == Decision::Commit => {
                let known = || self.others.iter().find(|one| one.id() == certificate.id).cloned();
                if let Some(transaction) = transaction.clone().or_else(known) {
                    self.committed.push_back((transaction, certificate.clone()));
                }
            }
            _ => {}
        }
        self.others.drain(..self.others.len().saturating_sub(OTHERS_MAX));
        self.committed.drain(..self.committed.len().saturating_sub(OTHERS_MAX));
    }

    fn is_colluder(&self, party: Party) -> bool {
        matches!(party, Party::Client(client, _) if self.colluders.contains(&client))
    }

    /// Turns what the machine says as an elector, and as a leader.
    fn campaign(&mut self, unsigned: &mut Vec<(Party, Unsigned)>) {
        for (to, one) in std::mem::take(unsigned) {
            match one {
                Unsigned::Elect { statement, .. } => self.leader.elect(&self.strategies, to, statement, unsigned),
                Unsigned::Decide { statement, electors, .. } => {
                    self.leader.decide(&self.strategies, &mut self.random, to, (statement, electors), unsigned);
                }
                Unsigned::Logged { replica, mut statement } => {
                    if self.strategies.contains(&ReplicaStrategy::ClaimViews) {
                        let ahead = self.random.pick(&[1, 7, u32::MAX]);
                        statement.view_current = statement.view_current.saturating_add(ahead);
                        if self.random.chance(500) {
                            statement.view_decision = statement.view_current;
                        }
                    }
                    unsigned.push((to, Unsigned::Logged { replica, statement }));
                }
                other => unsigned.push((to, other)),
            }
        }
    }

    fn bend_reply(&mut self, asked: Option<(Timestamp, Vec<Key>)>, results: &mut [ReadResult], prepared: &mut Vec<Transaction>) {
        if self.does(ReplicaStrategy::HidePrepared) {
            results.iter_mut().for_each(|result| result.pending = PendingWrite::None);
            prepared.clear();
        }
        if self.does(ReplicaStrategy::StaleReads) {
            let forgets_all = self.random.chance(500);
            for result in results.iter_mut() {
                result.pending = PendingWrite::None;
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
                *result = ReadResult { version: before, value: Some(Value::from("4000#a lie")), pending: PendingWrite::None };
            }
            prepared.clear();
        }
        if self.does(ReplicaStrategy::InventPrepared) && !results.is_empty() {
            let at = self.random.index(results.len());
            if let Some(transaction) = keys.get(at).and_then(|key| made_up(&self.cluster, before, key)) {
                results[at].pending = u16::try_from(prepared.len()).map_or(PendingWrite::Hidden, PendingWrite::Prepared);
                prepared.push(transaction);
            }
        }
    }

    fn bend_page(
        &mut self,
        timestamp: Timestamp,
        range: &KeyRange,
        direction: &mut Direction,
        rows: &mut Vec<ScanRow>,
        end: &mut Key,
        prepared: &mut Vec<Transaction>,
    ) {
        if self.does(ReplicaStrategy::WithholdReads) && self.random.chance(100) {
            // From the end that nobody asked for, and all of it.
            *direction = if *direction == Direction::Ascending { Direction::Descending } else { Direction::Ascending };
            *end = direction.end(range).clone();
            rows.reverse();
        }
        let direction = *direction;
        let (keys, mut results): (Vec<Key>, Vec<ReadResult>) = rows.drain(..).map(|row| (row.key, row.result)).unzip();
        self.bend_reply(Some((timestamp, keys.clone())), &mut results, prepared);
        rows.extend(keys.into_iter().zip(results).map(|(key, result)| ScanRow { key, result }));
        if self.does(ReplicaStrategy::StaleReads) {
            match self.random.below(3) {
                0 => rows.clear(),
                1 => rows.retain(|_| self.random.chance(500)),
                _ => rows.truncate(self.random.index(rows.len().max(1))),
            }
            *end = direction.end(range).clone();
        }
        if self.does(ReplicaStrategy::InventVersions) {
            // Every liar tells the same lie.
            let version = Timestamp::new(timestamp.time.saturating_sub(1), self.victims[0]);
            let result = ReadResult { version, value: Some(Value::from("6000#a lie")), pending: PendingWrite::None };
            let mut added = plan::all_keys();
            added.retain(|key| range.contains(key) && direction.has_passed(key, end) && rows.iter().all(|row| row.key != *key));
            rows.extend(added.into_iter().take(2).map(|key| ScanRow { key, result: result.clone() }));
            rows.sort_by(|one, other| direction.order(&one.key, &other.key));
        }
        if self.does(ReplicaStrategy::WithholdReads)
            && let Some(last) = rows.pop()
        {
            *end = match direction {
                Direction::Ascending => last.key,
                Direction::Descending => last.key.successor().expect("the range's end lies above"),
            };
        }
    }

    /// Keeps the first version that it shows of each of its shard's keys.
    fn keep_first(&mut self, keys: &[Key], results: &[ReadResult]) {
        for (key, result) in keys.iter().zip(results).filter(|(_, result)| result.version != Timestamp::ZERO) {
            if self.first.len() < KEPT_MAX {
                let ReadResult { version, value, .. } = result.clone();
                self.first.entry(key.clone()).or_insert(KeyVersion { version, value });
            }
        }
    }

    /// What some client has read, a key and as of when: where none has read a key, one of a range.
    fn some_read(&self) -> Option<(Timestamp, Key)> {
        let read = self.readers.values().next_back().and_then(|(timestamp, keys)| Some((*timestamp, keys.first()?.clone())));
        read.or_else(|| {
            let (timestamp, range) = self.ranges.values().next_back()?;
            let is_held = |key: &Key| range.contains(key) && self.cluster.shard_of(key) == self.me.shard;
            Some((*timestamp, plan::all_keys().into_iter().find(is_held)?))
        })
    }

    /// Bends what it shows to somebody who catches up. Every liar tells the same lie.
    fn bend_past(&mut self, to: Party, message: &mut Message) {
        let Some((timestamp, key)) = self.some_read() else { return };
        match message {
            Message::CommitsReply { ids } => {
                if self.random.chance(500) {
                    ids.clear();
                }
                let before = Timestamp::new(timestamp.time.saturating_sub(3_000_000_001), self.victims[0]);
                if let Some(transaction) = made_up(&self.cluster, before, &key) {
                    ids.push(transaction.id());
                    self.forged.push_back(transaction);
                    self.forged.drain(..self.forged.len().saturating_sub(OTHERS_MAX));
                }
            }
            Message::TransactionsReply { transactions } => transactions.extend(self.forged.iter().cloned()),
            Message::UndecidedReply { up_to, after, transactions, is_last } => {
                // It conceals what it holds, or shows what there is not, or says that there is more without end.
                transactions.retain(|_| self.random.chance(500));
                let before = Timestamp::new(up_to.saturating_sub(1), self.victims[0]);
                if let Some(transaction) = made_up(&self.cluster, before, &key)
                    && after.is_none()
                {
                    transactions.retain(|other| other.timestamp() < before);
                    transactions.push(transaction);
                }
                *is_last &= self.random.chance(500);
            }
            Message::VersionsReply { page, versions, next } => {
                let Some(query) = self.pages.get(&to).filter(|query| query.page == *page) else { return };
                if self.random.chance(500) {
                    versions.clear();
                    *next = self.random.chance(500).then(|| key.clone());
                }
                if query.page.is_multiple_of(3) {
                    let is_asked = |key: &Key| *key >= query.from && query.to.as_ref().is_none_or(|to| key < to);
                    let stale = self.first.iter().filter(|(key, first)| is_asked(key) && first.version <= query.up_to);
                    versions.retain(|one| !self.first.contains_key(&one.key));
                    versions.extend(stale.map(|(key, first)| PageVersion { key: key.clone(), version: first.clone() }));
                    versions.sort_by(|one, other| one.key.cmp(&other.key));
                }
                if key >= query.from && query.to.as_ref().is_none_or(|to| key < *to) {
                    let version = KeyVersion { version: query.up_to, value: Some(Value::from("6000#a lie")) };
                    versions.retain(|one| one.key != key);
                    versions.push(PageVersion { key, version });
                    versions.sort_by(|one, other| one.key.cmp(&other.key));
                }
            }
            Message::StatusReply { end, versions, .. } => {
                *end = self.random.pick(&[None, Some(Decision::Commit), Some(Decision::Abort)]);
                if self.random.chance(500) {
                    let lie = OldVersion { version: timestamp, value: Some(Some(Value::from("6000#a lie"))) };
                    versions.iter_mut().for_each(|one| *one = lie.clone());
                }
            }
            _ => {}
        }
    }

    /// Tells whoever asks for the time, ahead of it, that it knows of more than any of them has.
    fn call_older_copies(&self, sends: &mut Vec<(Party, Message)>) {
        let known = JournalEnd { lost_up_to: 0, batches: u64::MAX };
        for (to, message) in std::mem::take(sends) {
            let tells = matches!(message, Message::ClockReply { .. } | Message::ClockProposal { .. });
            if tells && matches!(to, Party::Replica(other) if other.shard == self.me.shard) {
                sends.push((to, Message::JournalKnown { known }));
            }
            sends.push((to, message));
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
}

impl simulator::Liar<Basil> for Liar {
    fn hear(&mut self, from: Party, message: &Message, lies: &mut Lies) -> Heard {
        if self.does(ReplicaStrategy::FalseConflicts) {
            self.remember(message);
        }
        if self.does(ReplicaStrategy::RefuseAll)
            && let Some(subject) = subject_of(message)
        {
            let refusal = self.random.pick(&[
                Refusal::TooOld,
                Refusal::TooNew,
                Refusal::NotPermitted,
                Refusal::Overloaded { after_ms: 1 },
                Refusal::Unknown,
            ]);
            lies.sends.push((from, Message::Refused { subject, refusal }));
            return Heard::Swallow;
        }
        let unsigned = &mut lies.unsigned;
        match message {
            // By what it claims, forgets, repeats or garbles, others find that its data are an older copy. The machine in it would mind.
            Message::JournalKnown { .. } => return Heard::Swallow,
            Message::Read { .. } | Message::Scan { .. } if self.does(ReplicaStrategy::WithholdReads) && self.random.chance(500) => {
                return Heard::Swallow;
            }
            Message::ElectFallback { elect } => self.leader.hear(elect),
            Message::VersionsQuery { query } => drop(self.pages.insert(from, query.clone())),
            Message::Read { request, timestamp, keys } => {
                if self.readers.len() >= READERS_MAX {
                    self.readers.pop_first();
                }
                self.readers.insert((from, *request), (*timestamp, keys.clone()));
            }
            Message::Scan { request, timestamp, range, .. } => {
                if self.ranges.len() >= READERS_MAX {
                    self.ranges.pop_first();
                }
                self.ranges.insert((from, *request), (*timestamp, range.clone()));
            }
            Message::Prepare { transaction } | Message::Recover { transaction, .. } => {
                let replica = self.me;
                let id = transaction.id();
                let mut say = |vote| {
                    let statement = VoteStatement { id, vote };
                    unsigned.push((from, Unsigned::Vote { replica, statement, conflict: None }));
                };
                if self.strategies.contains(&ReplicaStrategy::EquivocateVotes) && self.is_colluder(from) {
                    say(Vote::Commit);
                    say(Vote::Abort);
                } else if self.strategies.contains(&ReplicaStrategy::AbortAlways) {
                    say(Vote::Abort);
                } else if self.strategies.contains(&ReplicaStrategy::CommitAlways) {
                    say(Vote::Commit);
                }
                if self.strategies.contains(&ReplicaStrategy::TellCommits) {
                    let shards = transaction.participants(&self.cluster).into_iter();
                    let others = shards.flat_map(|shard| self.cluster.replicas_of(shard)).filter(|other| *other != replica);
                    lies.sends.extend(others.map(|other| (Party::Replica(other), Message::CommitNotice { id })));
                }
            }
            Message::Log { transaction, decision, .. } if self.does(ReplicaStrategy::EquivocateLogs) => {
                let statement = LoggedStatement { id: transaction.id(), decision: *decision, view_decision: 0, view_current: 0 };
                unsigned.push((from, Unsigned::Logged { replica: self.me, statement }));
                return Heard::Swallow;
            }
            _ => {}
        }
        Heard::Pass
    }

    fn speak(&mut self, sends: &mut Vec<(Party, Message)>, unsigned: &mut Vec<(Party, Unsigned)>) {
        if self.does(ReplicaStrategy::Silent) {
            sends.clear();
            unsigned.clear();
            return;
        }
        self.campaign(unsigned);
        for (to, one) in unsigned.iter_mut() {
            let is_colluder = self.is_colluder(*to);
            if let Unsigned::Vote { statement, conflict, .. } = one {
                if self.strategies.contains(&ReplicaStrategy::EquivocateVotes) && !is_colluder {
                    statement.vote = self.random.pick(&[Vote::Commit, Vote::Abort]);
                } else if self.strategies.contains(&ReplicaStrategy::AbortAlways) {
                    statement.vote = Vote::Abort;
                } else if self.strategies.contains(&ReplicaStrategy::CommitAlways) {
                    statement.vote = Vote::Commit;
                }
                if self.strategies.contains(&ReplicaStrategy::FalseConflicts) {
                    statement.vote = Vote::Abort;
                    let time = self.random.next();
                    let stalled = self.readers.values().next_back().and_then(|(timestamp, keys)| {
                        let timestamp = Timestamp::new(timestamp.time.wrapping_sub(time % 1_000_000), timestamp.client);
                        made_up(&self.cluster, timestamp, keys.first()?).map(|transaction| Conflict::Stalled { transaction })
                    });
                    let committed = self.committed.back().filter(|(transaction, _)| transaction.id() != statement.id).cloned();
                    let committed = committed.map(|(transaction, certificate)| Conflict::Committed { transaction, certificate });
                    *conflict = if time.is_multiple_of(2) { committed.or(stalled) } else { stalled };
                }
            }
        }
        for (to, message) in &mut *sends {
            match message {
                Message::ClockQuery { asked_at, journal } if self.does(ReplicaStrategy::ForgePast) => *journal = another_end(*asked_at),
                Message::ReadReply { request, clock, results, prepared, .. } => {
                    *clock = another_time(*clock, *request);
                    let asked = self.readers.get(&(*to, *request)).cloned();
                    if let Some((_, keys)) = asked.as_ref().filter(|_| self.does(ReplicaStrategy::ForgePast)) {
                        self.keep_first(keys, results);
                    }
                    self.bend_reply(asked, results, prepared);
                }
                Message::ScanReply { request, clock, direction, rows, end, prepared, .. } => {
                    *clock = another_time(*clock, *request);
                    if let Some((timestamp, range)) = self.ranges.get(&(*to, *request)).cloned() {
                        self.bend_page(timestamp, &range, direction, rows, end, prepared);
                    }
                }
                Message::ClockReply { asked_at, clock } | Message::ClockProposal { asked_at, clock } => {
                    *clock = another_time(*clock, *asked_at)
                }
                message if self.does(ReplicaStrategy::ForgePast) => self.bend_past(*to, message),
                _ => {}
            }
        }
        if self.does(ReplicaStrategy::ForgePast) {
            self.call_older_copies(sends);
        }
        if self.does(ReplicaStrategy::Replay) {
            self.replay(sends);
        }
    }

    fn forge(&mut self, sends: &mut [(Party, Message)]) {
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

    fn holds_back(&mut self, message: &Message) -> u64 {
        let is_late = self.does(ReplicaStrategy::DecideLate) && matches!(message, Message::DecideFallback { .. });
        if is_late { self.random.between(LATE_MS.0, LATE_MS.1) * 1_000_000 } else { 0 }
    }

    fn garble(&mut self, bytes: &mut [u8]) {
        if self.does(ReplicaStrategy::Garble) && !bytes.is_empty() && self.random.chance(GARBLED_PER_MILLE) {
            let at = self.random.index(bytes.len());
            bytes[at] ^= 1 << self.random.below(8);
        }
    }

    fn forgets(&self) -> bool {
        self.does(ReplicaStrategy::Forget)
    }
}

/// What a request asks for.
fn subject_of(message: &Message) -> Option<Subject> {
    match message {
        Message::Read { request, .. } | Message::Scan { request, .. } => Some(Subject::Request(*request)),
        Message::Prepare { transaction }
        | Message::Recover { transaction, .. }
        | Message::Log { transaction, .. }
        | Message::InvokeFallback { transaction, .. } => Some(Subject::Transaction(transaction.id())),
        _ => None,
    }
}

/// A transaction nobody sent.
fn made_up(cluster: &Cluster, timestamp: Timestamp, key: &Key) -> Option<Transaction> {
    let write = Write { key: key.clone(), value: Some(Value::from("5000#made up")) };
    Transaction::new(cluster.id(), timestamp, Vec::new(), vec![write]).ok()
}

/// What a liar says of where its journal ends: nothing, nowhere, or at its beginning.
fn another_end(asked: u64) -> Option<JournalEnd> {
    match asked % 3 {
        0 => None,
        1 => Some(JournalEnd { lost_up_to: 0, batches: u64::MAX }),
        _ => Some(JournalEnd { lost_up_to: 0, batches: 0 }),
    }
}

/// What a liar says that its clock shows: the truth, something later, or nothing that can be.
fn another_time(clock: u64, asked: u64) -> u64 {
    match asked % 5 {
        0 => clock,
        1 => clock.saturating_add(400_000_000),
        2 => clock.saturating_sub(3_600_000_000_000),
        3 => 0,
        _ => u64::MAX,
    }
}
