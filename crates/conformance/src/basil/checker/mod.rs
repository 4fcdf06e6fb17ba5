//! Those who watch. They see every message, every signed statement of an honest replica, and what honest clients were told;
//! no machine knows of them.
//!
//! | checker | what it holds everyone to |
//! |---|---|
//! | votes | an honest replica says one thing of a transaction, and logs one decision a view, over all its lives |
//! | decisions | no two certificates disagree, and what a client was told stays true |
//! | independence | behind each abort and each read of an honest client stands an honest replica; nobody commits in its name |
//! | validated | an honest replica that told a reader that nothing newer comes votes for nothing that does, in no later life |
//! | forgery | whatever passes the check of signatures, its signer has signed ([`forgery`]) |
//! | views | honest replicas go from view to view as the argument for elections has them ([`views`]) |
//! | lies | what commits, of whomever, is possible on its face |
//! | [`rights`] | what commits is within its author's rights; no honest replica votes for anything else, or shows a client what it may not read |
//! | [`serial`] | all that committed, replayed in the order of timestamps, gives each honest read, and at each time what was read of that past |
//! | order | who begins after another's acknowledgement comes after it in that order, so that it sees it and is not hidden under it |
//! | [`strict`] | the same without looking at a timestamp: what honest clients saw and were told has an order that explains it and keeps to real time |
//! | aborted, invented, ranges | the same: nobody sees what its client was told never took place, or what no client wrote; ranges hold what lies in them |
//! | sums | the accounts add up in each honest client's eyes, and the ring stays one ring |
//! | progress | once the faults are over, every honest transaction ends, work gets done, and honest replicas come to hold the same versions |

mod forgery;
mod rights;
mod serial;
mod strict;
mod views;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use basil::Refusal;
use basil::certificate::{Proof, ShardProof};
use basil::message::{Conflict, PendingWrite, ReadResult, Subject, Unsigned};
use basil::{Certificate, Decision, Message, ReadFound, Transaction, Vote};
use crypto::Verified;
use simulator::{Outcomes, Violations};
use types::{ClientId, Cluster, Direction, Key, KeyRange, Party, ReplicaId, Timestamp, TransactionId, Value};

use super::plan::{self, Plan};
use super::{Basil, Counts};

/// What an honest client was told of one of its transactions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    /// Nothing yet, or that nobody knows.
    Nothing,
    /// How it ended.
    Ended(Decision),
    /// That it never happens.
    Never,
}

/// One transaction of an honest client, as the client saw it.
#[derive(Clone, Debug)]
pub(crate) struct History {
    pub plan: Plan,
    /// When it began, in true time, unless its machine was paused.
    pub began: Option<u64>,
    pub seen: Seen,
    pub transaction: Transaction,
    pub told: Told,
    /// When its client was told that it committed, in true time.
    pub ended: Option<u64>,
}

impl History {
    /// A transaction whose client has been told nothing yet.
    pub fn new(plan: Plan, began: Option<u64>, seen: Seen, transaction: Transaction) -> Self {
        Self { plan, began, seen, transaction, told: Told::Nothing, ended: None }
    }
}

/// What a transaction was shown.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    /// Each key with the version and the value, those that ranges hold too.
    pub reads: Vec<(Key, Timestamp, Option<Value>)>,
    pub scans: Vec<Scan>,
}

impl Seen {
    /// It is shown a key. What shows another value than before was another state.
    pub fn read(&mut self, key: &Key, version: Timestamp, value: Option<&Value>) {
        if !self.reads.iter().any(|(read, _, known)| read == key && known.as_ref() == value) {
            self.reads.push((key.clone(), version, value.cloned()));
        }
    }
}

/// The keys of a range that have values and come first in a direction.
#[derive(Clone, Debug)]
pub(crate) struct Scan {
    pub range: KeyRange,
    pub direction: Direction,
    /// How many were asked for at most.
    pub limit: usize,
    /// Those that were found.
    pub keys: Vec<Key>,
}

/// What an honest client has read of the past.
#[derive(Debug)]
struct Past {
    client: ClientId,
    /// As of when it read.
    at: Timestamp,
    /// When it had read it, in true time.
    ended: u64,
    seen: Seen,
}

/// What a read or a scan asks.
#[derive(Clone, Debug, PartialEq)]
enum Question {
    Keys(Vec<Key>),
    Range(KeyRange, Direction),
}

/// What a party has asked a replica under one number. One that lies may use a number again, before it is answered.
#[derive(Debug, Default)]
struct Asked {
    reads: Vec<(Timestamp, Question)>,
    /// How many of the questions were not answered or refused yet.
    open: usize,
}

impl Asked {
    fn add(&mut self, timestamp: Timestamp, question: Question) {
        if self.open == 0 {
            self.reads.clear();
        }
        self.open += 1;
        if !self.reads.contains(&(timestamp, question.clone())) {
            self.reads.push((timestamp, question));
        }
    }

    /// What an answer, or a refusal, is about, if that can be told.
    fn answered(&mut self) -> Option<(Timestamp, Question)> {
        self.open = self.open.saturating_sub(1);
        if let [read] = &self.reads[..] { Some(read.clone()) } else { None }
    }
}

/// As what a replica speaks in an election, and in which view.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Role {
    Elector(u32),
    Leader(u32),
}

/// How the elections on one transaction went, as far as honest replicas took part.
#[derive(Clone, Copy, Debug, Default)]
struct Elections {
    view_max: u32,
    is_led: bool,
}

/// After so many ends all that has committed is replayed. What is wrong by then stays wrong, and need not wait for the last.
const REPLAY_EVERY: usize = 64;

/// How many of its last votes each honest replica is asked about when it comes back.
const RECENT_MAX: usize = 24;

/// What has been seen so far.
#[derive(Debug)]
pub struct Checker {
    cluster: Arc<Cluster>,
    violations: Violations,
    honest_clients: BTreeSet<ClientId>,
    /// Whether there are other clients.
    has_cheats: bool,
    /// Every transaction anybody ever showed.
    transactions: BTreeMap<TransactionId, Transaction>,
    /// How they ended, as certificates prove.
    decisions: BTreeMap<TransactionId, Decision>,
    /// What honest clients made.
    histories: BTreeMap<TransactionId, History>,
    /// What honest clients have read of the past.
    past: Vec<Past>,
    signed: forgery::Signed,
    rights: rights::Rights,
    /// What each replica was asked to read: it may answer later.
    asked: BTreeMap<(ReplicaId, Party, u64), Asked>,
    views: views::Views,
    votes: BTreeMap<(TransactionId, ReplicaId), Vote>,
    /// Of each key: which version honest replicas called settled, for a reader at which time.
    validated: BTreeMap<Key, BTreeMap<(Timestamp, Timestamp), BTreeSet<ReplicaId>>>,
    logged: BTreeMap<(TransactionId, ReplicaId, u32), Decision>,
    campaigns: BTreeMap<(TransactionId, ReplicaId, Role), Decision>,
    elections: BTreeMap<TransactionId, Elections>,
    honest_aborts: BTreeSet<TransactionId>,
    /// What each honest replica voted on last.
    recent: BTreeMap<ReplicaId, VecDeque<TransactionId>>,
    /// Of each time at which an honest client was told of a commit: the highest timestamp acknowledged by then.
    acknowledged: BTreeMap<u64, Timestamp>,
    /// What honest replicas refused each client's running transaction.
    refusals: BTreeMap<ClientId, BTreeSet<Refusal>>,
    /// What honest replicas told each client's running transaction.
    vouched: BTreeMap<ClientId, BTreeSet<(Key, Timestamp, Option<Value>)>>,
}

impl Checker {
    /// Nothing has been seen yet.
    pub(super) fn new(cluster: Arc<Cluster>, honest_clients: BTreeSet<ClientId>, has_cheats: bool) -> Self {
        Self {
            rights: rights::Rights::new(Arc::clone(&cluster)),
            cluster,
            violations: Violations::default(),
            honest_clients,
            has_cheats,
            transactions: BTreeMap::new(),
            decisions: BTreeMap::new(),
            histories: BTreeMap::new(),
            past: Vec::new(),
            signed: forgery::Signed::default(),
            asked: BTreeMap::new(),
            views: views::Views::default(),
            votes: BTreeMap::new(),
            validated: BTreeMap::new(),
            logged: BTreeMap::new(),
            campaigns: BTreeMap::new(),
            elections: BTreeMap::new(),
            honest_aborts: BTreeSet::new(),
            recent: BTreeMap::new(),
            acknowledged: BTreeMap::new(),
            refusals: BTreeMap::new(),
            vouched: BTreeMap::new(),
        }
    }

    fn violation(&mut self, checker: &'static str, what: String) {
        self.violations.add(checker, what);
    }

    // What honest replicas say.

    /// An honest replica signs a statement: it must not contradict any it signed before, in this life or an earlier one.
    fn signed(&mut self, by: ReplicaId, unsigned: &Unsigned) {
        let id = match unsigned {
            Unsigned::Vote { statement, .. } => statement.id,
            Unsigned::Logged { statement, .. } => statement.id,
            Unsigned::Elect { statement, .. } => statement.id,
            Unsigned::Decide { statement, .. } => statement.id,
        };
        let outcome = self.decisions.get(&id).copied();
        for what in self.views.signed(self.cluster.faults(), outcome, by, unsigned) {
            self.violation("views", what);
        }
        if let Unsigned::Vote { statement, .. } = unsigned {
            let is_first = !self.votes.contains_key(&(statement.id, by));
            let before = *self.votes.entry((statement.id, by)).or_insert(statement.vote);
            if before != statement.vote {
                self.violation("votes", format!("{by} voted {before:?} on {:?} and now votes {:?}", statement.id, statement.vote));
            }
            match statement.vote {
                Vote::Abort => {
                    self.honest_aborts.insert(statement.id);
                }
                Vote::Commit if is_first => {
                    self.keeps_its_word(by, statement.id);
                    self.keeps_to_rights(by, statement.id);
                }
                Vote::Commit => {}
            }
            let recent = self.recent.entry(by).or_default();
            if recent.back() != Some(&statement.id) {
                recent.push_back(statement.id);
            }
            if recent.len() > RECENT_MAX {
                recent.pop_front();
            }
        }
        if let Unsigned::Elect { statement, .. } = unsigned {
            let elections = self.elections.entry(statement.id).or_default();
            elections.view_max = elections.view_max.max(statement.view);
            self.once(by, statement.id, Role::Elector(statement.view), statement.decision);
        }
        if let Unsigned::Decide { statement, .. } = unsigned {
            self.elections.entry(statement.id).or_default().is_led = true;
            self.once(by, statement.id, Role::Leader(statement.view), statement.decision);
        }
        if let Unsigned::Logged { statement, .. } = unsigned {
            let place = (statement.id, by, statement.view_decision);
            let before = *self.logged.entry(place).or_insert(statement.decision);
            if before != statement.decision {
                let (id, view, decision) = (statement.id, statement.view_decision, statement.decision);
                self.violation("votes", format!("{by} logged {before:?} of {id:?} in view {view} and now says {decision:?}"));
            }
        }
    }

    /// An honest replica votes to commit: the author has a right to all of it. One that has learned how it ended may say so in a vote.
    fn keeps_to_rights(&mut self, by: ReplicaId, id: TransactionId) {
        let Some(transaction) = self.transactions.get(&id).filter(|_| !self.decisions.contains_key(&id)) else { return };
        if let Some(what) = self.rights.exceeded_at(by, transaction) {
            self.violation("rights", format!("{by} votes for {id:?}, and {what}"));
        }
    }

    /// An honest replica shows a client transactions: it may read all that they touch.
    fn shows<'a>(&mut self, by: ReplicaId, client: ClientId, mut transactions: impl Iterator<Item = &'a Transaction>) {
        if let Some(hidden) = transactions.find(|transaction| !self.rights.may_see(by, client, transaction)) {
            self.violation("rights", format!("{by} shows {client} {:?}, of which it may not read everything", hidden.id()));
        }
    }

    /// An honest replica votes to commit: it has not told anybody that nothing comes where this writes, in no life. One that has
    /// learned how it ended may say so in a vote; that changes nothing.
    fn keeps_its_word(&mut self, by: ReplicaId, id: TransactionId) {
        let Some(transaction) = self.transactions.get(&id).filter(|_| !self.decisions.contains_key(&id)) else { return };
        let at = transaction.timestamp();
        let broken = transaction.writes().iter().find_map(|write| {
            let validated = self.validated.get(&write.key)?;
            let broken = validated.iter().find(|((version, reader), by_whom)| *version < at && at < *reader && by_whom.contains(&by));
            broken.map(|((version, reader), _)| (write.key.clone(), *version, *reader))
        });
        if let Some((key, version, reader)) = broken {
            let what = format!(
                "{by} votes for {id:?}, which writes {key} at {at:?}; it has told a reader at {reader:?} that {version:?} is settled"
            );
            self.violation("validated", what);
        }
    }

    /// An honest replica elects, and leads, with one decision a view.
    fn once(&mut self, by: ReplicaId, id: TransactionId, role: Role, decision: Decision) {
        let before = *self.campaigns.entry((id, by, role)).or_insert(decision);
        if before != decision {
            self.violation("votes", format!("{by}, {role:?} of {id:?}, said {before:?} and now says {decision:?}"));
        }
    }

    /// How many transactions honest replicas elected a leader for, how many of these an honest one led, and the views reached,
    /// together and at most.
    fn elections(&self) -> (u64, u64, u64, u64) {
        let views = || self.elections.values().map(|elections| u64::from(elections.view_max));
        let led = self.elections.values().filter(|elections| elections.is_led).count() as u64;
        (self.elections.len() as u64, led, views().sum(), views().max().unwrap_or(0))
    }

    /// What an honest replica voted on last, for somebody to ask it again.
    fn recent(&self, replica: ReplicaId) -> Vec<Transaction> {
        let ids = self.recent.get(&replica).into_iter().flatten();
        ids.filter_map(|id| self.transactions.get(id)).cloned().collect()
    }

    /// An honest replica answers a client's read.
    fn answered(&mut self, by: ReplicaId, client: ClientId, timestamp: Timestamp, question: &Question, message: &Message) {
        if !self.rights.may_ask(by, client, question) {
            self.violation("rights", format!("{by} answers {client} what it may not read: {question:?}"));
        }
        match (question, message) {
            (Question::Keys(keys), Message::ReadReply { results, prepared, is_promised, .. }) => {
                self.told_of(by, (client, timestamp), keys.iter().zip(results.iter().cloned()), prepared, *is_promised);
            }
            (Question::Range(_, asked), Message::ScanReply { direction, .. }) if direction != asked => {
                self.violation("ranges", format!("{by} reads a range for {client} from the other end: {message:?}"));
            }
            (Question::Range(range, _), Message::ScanReply { direction, rows, end, prepared, is_promised, .. }) => {
                // It also says that there is nothing of whatever else lies before its end.
                let mut keys = plan::all_keys();
                keys.retain(|key| range.contains(key) && direction.has_passed(key, end) && self.cluster.shard_of(key) == by.shard);
                // Cheats delete others, where nothing ever was.
                let others: Vec<Key> = rows.iter().map(|row| row.key.clone()).filter(|key| !keys.contains(key)).collect();
                keys.extend(others);
                let result = |key: &Key| {
                    let row = rows.iter().find(|row| row.key == *key).map(|row| row.result.clone());
                    row.unwrap_or(ReadResult { version: Timestamp::ZERO, value: None, pending: PendingWrite::None })
                };
                self.told_of(by, (client, timestamp), keys.iter().map(|key| (key, result(key))), prepared, *is_promised);
            }
            _ => {}
        }
    }

    /// An honest replica tells a client what it has of keys, and perhaps that nothing comes between.
    fn told_of<'a>(
        &mut self,
        by: ReplicaId,
        (client, timestamp): (ClientId, Timestamp),
        results: impl Iterator<Item = (&'a Key, ReadResult)>,
        prepared: &[Transaction],
        is_promised: bool,
    ) {
        let vouched = self.vouched.entry(client).or_default();
        for (key, result) in results {
            vouched.insert((key.clone(), result.version, result.value.clone()));
            if result.pending == PendingWrite::None && is_promised {
                let validated = self.validated.entry(key.clone()).or_default();
                validated.entry((result.version, timestamp)).or_default().insert(by);
            }
            // Who names a prepared version as the newest lets nothing come after that either.
            let writer = match result.pending {
                PendingWrite::Prepared(place) => prepared.get(usize::from(place)),
                PendingWrite::None | PendingWrite::Hidden => None,
            };
            if let Some((writer, write)) = writer.and_then(|writer| Some((writer, writer.write_of(key)?))) {
                vouched.insert((key.clone(), writer.timestamp(), write.value.clone()));
                if is_promised {
                    let validated = self.validated.entry(key.clone()).or_default();
                    validated.entry((writer.timestamp(), timestamp)).or_default().insert(by);
                }
            }
        }
    }

    /// An honest replica tells others that a transaction committed.
    fn relayed(&mut self, by: ReplicaId, id: TransactionId) {
        if self.decisions.get(&id) != Some(&Decision::Commit) {
            self.violation("decisions", format!("{by} says that {id:?} committed, and there is no proof of it"));
        }
    }

    // What anybody says.

    /// Takes note of transactions and proofs in a message whose signatures are good, whoever sends it.
    fn seen(&mut self, message: &Message) {
        match message {
            Message::Prepare { transaction } | Message::Recover { transaction, .. } | Message::Log { transaction, .. } => {
                self.shown(transaction);
            }
            Message::ReadReply { prepared, .. } | Message::ScanReply { prepared, .. } => {
                prepared.iter().for_each(|transaction| self.shown(transaction))
            }
            Message::Writeback { transaction, certificate, relay: _ } => {
                if let Some(transaction) = transaction {
                    self.shown(transaction);
                }
                self.proven(certificate);
            }
            Message::Decided { certificate } => self.proven(certificate),
            Message::Voted { conflict: Some(conflict), .. } => {
                self.shown(conflict.transaction());
                if let Conflict::Committed { certificate, .. } = conflict {
                    self.proven(certificate);
                }
            }
            _ => {}
        }
    }

    fn shown(&mut self, transaction: &Transaction) {
        self.rights.shown(transaction.id());
        self.transactions.entry(transaction.id()).or_insert_with(|| transaction.clone());
    }

    /// A certificate whose signatures are good: it must fit its transaction to mean anything, and then it means it for ever.
    fn proven(&mut self, certificate: &Certificate) {
        let cluster = Arc::clone(&self.cluster);
        let cluster = &*cluster;
        let id = certificate.id;
        if self.decisions.get(&id) == Some(&certificate.decision) {
            return;
        }
        let Some(transaction) = self.transactions.get(&id).cloned() else { return };
        if certificate.fits(cluster, &transaction).is_err() {
            return;
        }
        let before = *self.decisions.entry(id).or_insert(certificate.decision);
        if before != certificate.decision {
            self.violation("decisions", format!("{id:?} is proven to end in {before:?} and in {:?}", certificate.decision));
            return;
        }
        if self.decisions.len().is_multiple_of(REPLAY_EVERY) {
            self.replay();
        }
        let author = transaction.timestamp().client;
        let history = self.histories.get(&id);
        let (told, is_honest) = (history.map(|history| history.told), history.is_some());
        match certificate.decision {
            Decision::Commit => {
                for what in impossible(&transaction, &self.transactions) {
                    self.violation("lies", what);
                }
                if let Some(what) = self.rights.exceeded_at_all(cluster.replicas(), &transaction) {
                    self.violation("rights", format!("{id:?} committed, and {what}"));
                }
                if !is_honest && self.honest_clients.contains(&author) {
                    self.violation("independence", format!("{id:?} committed in the name of {author}, who never made it"));
                }
                if told == Some(Told::Never) || told == Some(Told::Ended(Decision::Abort)) {
                    self.violation("decisions", format!("{id:?} committed, and {author} was told {told:?}"));
                }
                self.follows(id);
            }
            Decision::Abort => {
                if told == Some(Told::Ended(Decision::Commit)) {
                    self.violation("decisions", format!("{id:?} aborted, and {author} was told that it committed"));
                }
                let by_conflict = matches!(&certificate.proof, Proof::Fast(proofs) if matches!(&proofs[..], [proof] if is_in_the_way(cluster, &transaction, proof)));
                if is_honest && !by_conflict && !self.honest_aborts.contains(&id) {
                    self.violation("independence", format!("{id:?} of {author} aborted, and no honest replica voted against it"));
                }
            }
        }
    }

    // What honest clients see.

    /// An honest replica refuses a client something.
    fn refused(&mut self, client: ClientId, refusal: Refusal) {
        self.refusals.entry(client).or_default().insert(refusal);
    }

    /// An honest client is told that what it asks is refused.
    pub(super) fn told_refused(&mut self, client: ClientId, refusal: Refusal) {
        if !self.refusals.get(&client).is_some_and(|refusals| refusals.contains(&refusal)) {
            self.violation("independence", format!("{client} is told {refusal:?}, and no honest replica said so"));
        }
    }

    /// An honest client begins a transaction: what it was told for the last one counts no more.
    pub(super) fn began(&mut self, client: ClientId) {
        self.vouched.remove(&client);
        self.refusals.remove(&client);
    }

    /// A read of an honest client is done. One that is made up is told of once, however many keys it is of.
    pub(super) fn read(&mut self, client: ClientId, found: &[ReadFound]) {
        let vouched = self.vouched.get(&client);
        let is_vouched = |one: &ReadFound| {
            let fact = (one.key.clone(), one.version, one.value.clone());
            vouched.is_some_and(|vouched| vouched.contains(&fact))
        };
        if let Some(one) = found.iter().find(|one| !is_vouched(one)) {
            let what = format!("{client} read {} at {:?} as {:?}, which no honest replica told it", one.key, one.version, one.value);
            self.violation("independence", what);
        }
    }

    /// An honest client has read what there was at `at`.
    pub(super) fn has_read_past(&mut self, now: u64, client: ClientId, at: Timestamp, seen: Seen) {
        self.past.push(Past { client, at, ended: now, seen });
    }

    /// An honest client has read what there was so long before the cluster's clock showed `shown` to it: whatever was acknowledged before it began
    /// lies below that.
    pub(super) fn has_counted_from(&mut self, client: ClientId, began: u64, shown: u64) {
        if let Some((_, before)) = self.acknowledged.range(..began).next_back().filter(|(_, before)| before.time > shown) {
            let what = format!("{client} counted from {shown} how long ago it was, and {before:?} was acknowledged before it began");
            self.violation("order", what);
        }
    }

    /// An honest client sets out to commit.
    pub(super) fn issued(&mut self, history: History) {
        self.shown(&history.transaction);
        self.histories.insert(history.transaction.id(), history);
    }

    /// An honest client is told how its transaction ended.
    pub(super) fn told(&mut self, now: u64, id: TransactionId, certificate: &Certificate) {
        if let Some(history) = self.histories.get_mut(&id) {
            history.told = Told::Ended(certificate.decision);
        }
        if certificate.decision == Decision::Commit {
            self.acknowledged(now, id);
        }
        self.proven(certificate);
        if self.decisions.get(&id) != Some(&certificate.decision) {
            self.violation("decisions", format!("a client was told {:?} of {id:?} with a proof that does not hold", certificate.decision));
        }
    }

    /// An honest client is told now that its transaction committed.
    fn acknowledged(&mut self, now: u64, id: TransactionId) {
        let Some(history) = self.histories.get_mut(&id) else { return };
        history.ended = Some(now);
        // Of what only read, the others must come after what it saw. (That nobody writes underneath, other checkers see.)
        let seen = history.transaction.reads().iter().map(|read| read.version).max();
        let at = history.transaction.timestamp();
        let to_follow = if history.transaction.writes().is_empty() { seen.unwrap_or(Timestamp::ZERO) } else { at };
        let highest = self.acknowledged.range(..=now).next_back().map_or(to_follow, |(_, highest)| to_follow.max(*highest));
        self.acknowledged.insert(now, highest);
    }

    /// An honest client's transaction has committed, whether its client knows or not: it lies above all that was acknowledged before it began.
    fn follows(&mut self, id: TransactionId) {
        let Some((history, began)) = self.histories.get(&id).and_then(|history| Some((history, history.began?))) else { return };
        let at = history.transaction.timestamp();
        if let Some((_, before)) = self.acknowledged.range(..began).next_back().filter(|(_, before)| **before >= at) {
            let what = format!("{id:?} at {at:?} committed, and {before:?} was acknowledged before it began");
            self.violation("order", what);
        }
    }

    /// An honest client is told that its transaction, which only read, has committed: no certificate says so, and the checkers
    /// of the whole run judge whether it may.
    pub(super) fn validated(&mut self, now: u64, id: TransactionId) {
        if let Some(history) = self.histories.get_mut(&id) {
            history.told = Told::Ended(Decision::Commit);
        }
        self.acknowledged(now, id);
        self.follows(id);
        let Some(history) = self.histories.get(&id) else { return };
        let enough = 2 * self.cluster.faults() + 1;
        let lacking = history.transaction.reads().iter().find(|read| {
            let validated = self.validated.get(&read.key).and_then(|of_key| of_key.get(&(read.version, history.transaction.timestamp())));
            validated.map_or(0, BTreeSet::len) < enough
        });
        let lacking = lacking.map(|read| read.key.clone()).or_else(|| {
            plan::all_keys().into_iter().filter(|key| history.transaction.found_absent(key)).find(|key| {
                let told = self.validated.get(key).into_iter().flatten();
                let mut told = told.filter(|((_, reader), _)| *reader == history.transaction.timestamp());
                !told.any(|(_, by)| by.len() >= enough)
            })
        });
        if let Some(key) = lacking {
            let what = format!("{id:?} committed without a vote, and too few honest replicas settled its read of {key}");
            self.violation("validated", what);
        }
        if self.decisions.insert(id, Decision::Commit) == Some(Decision::Abort) {
            self.violation("decisions", format!("{id:?} aborted, and its client is told that it committed without a vote"));
        }
    }

    /// An honest client is told that its transaction never happens.
    pub(super) fn told_never(&mut self, id: TransactionId) {
        if let Some(history) = self.histories.get_mut(&id) {
            history.told = Told::Never;
        }
        if self.decisions.get(&id) == Some(&Decision::Commit) {
            self.violation("decisions", format!("{id:?} committed, and its client is told that it never will"));
        }
    }

    /// An honest client is told that a transaction committed which is not the last that was asked for in its name, or of which there is no proof.
    pub(super) fn told_of_another(&mut self, client: ClientId, id: TransactionId) {
        self.violation("decisions", format!("{client} is told that {id:?} committed, and its session asked for another, or has no proof"));
    }

    // At the end.

    fn replay(&mut self) {
        for what in serial::check(self) {
            self.violation("serial", what);
        }
    }

    /// On how many transactions honest replicas logged different decisions: what elections are for.
    fn divided(&self) -> usize {
        let mut sides: BTreeMap<TransactionId, BTreeSet<Decision>> = BTreeMap::new();
        for ((id, _, _), decision) in &self.logged {
            sides.entry(*id).or_default().insert(*decision);
        }
        sides.values().filter(|sides| sides.len() > 1).count()
    }

    /// How many transactions of honest clients committed and aborted.
    fn ends(&self) -> (usize, usize) {
        let ended = |decision| self.histories.keys().filter(|id| self.decisions.get(id) == Some(&decision)).count();
        (ended(Decision::Commit), ended(Decision::Abort))
    }

    /// The honest clients' transactions that committed, whether their clients know or not.
    fn committed(&self) -> impl Iterator<Item = (&TransactionId, &History)> {
        self.histories.iter().filter(|(id, _)| self.decisions.get(id) == Some(&Decision::Commit))
    }
}

impl simulator::Checker<Basil> for Checker {
    fn violations(&mut self) -> &mut Violations {
        &mut self.violations
    }

    fn hears(&mut self, by: ReplicaId, inbox: &[(Party, Verified<Message>)]) {
        for (from, message) in inbox {
            if let Message::Read { request, keys, timestamp } = &**message {
                self.asked.entry((by, *from, *request)).or_default().add(*timestamp, Question::Keys(keys.clone()));
            }
            if let Message::Scan { request, range, direction, timestamp, .. } = &**message {
                self.asked.entry((by, *from, *request)).or_default().add(*timestamp, Question::Range(range.clone(), *direction));
            }
        }
    }

    fn signs(&mut self, by: ReplicaId, unsigned: &Unsigned, is_honest: bool) {
        self.signed.note(by, unsigned);
        if is_honest {
            self.signed(by, unsigned);
        }
    }

    fn says(&mut self, by: ReplicaId, to: Party, message: &Message) {
        match (message, to) {
            (Message::ReadReply { request, .. } | Message::ScanReply { request, .. }, Party::Client(client, _)) => {
                if let Some((timestamp, question)) = self.asked.get_mut(&(by, to, *request)).and_then(Asked::answered) {
                    self.answered(by, client, timestamp, &question, message);
                }
            }
            (Message::Refused { subject, refusal }, Party::Client(client, _)) => {
                if let Subject::Request(request) = subject {
                    self.asked.get_mut(&(by, to, *request)).and_then(Asked::answered);
                }
                self.refused(client, *refusal);
            }
            (Message::CommitNotice { id }, _) => self.relayed(by, *id),
            _ => {}
        }
        let Party::Client(client, _) = to else { return };
        match message {
            Message::ReadReply { prepared, .. } | Message::ScanReply { prepared, .. } => self.shows(by, client, prepared.iter()),
            Message::Voted { conflict: Some(conflict), .. } => self.shows(by, client, std::iter::once(conflict.transaction())),
            Message::Decided { certificate } => self.shows(by, client, certificate.shows().into_iter()),
            _ => {}
        }
    }

    fn goes_by(&mut self, by: ReplicaId, cluster: &Arc<Cluster>) {
        self.rights.goes_by(by, cluster);
    }

    fn has_taken_over(&mut self, by: ReplicaId) {
        self.rights.has_taken_over(by);
    }

    fn departs(&mut self, message: &Message) {
        self.seen(message);
    }

    fn believed(&mut self, message: &Message) {
        for what in self.signed.made_up(message) {
            self.violation("forgery", what);
        }
        self.seen(message);
    }

    /// What it voted on last: it must say the same.
    fn questions(&self, replica: ReplicaId) -> Vec<Message> {
        let recent = self.recent(replica).into_iter();
        recent.map(|transaction| Message::Recover { transaction, evidence: Vec::new() }).collect()
    }

    fn finish(&mut self) {
        self.replay();
        for (by, what) in strict::check(self) {
            self.violation(by, what);
        }
        for what in sums(self) {
            self.violation("sums", what);
        }
    }

    fn outcomes(&self) -> Outcomes {
        let (committed, aborted) = self.ends();
        let unknown = self.histories.values().filter(|history| history.told == Told::Nothing).count();
        Outcomes { committed: committed as u64, aborted: aborted as u64, unknown: unknown as u64 }
    }

    fn count(&self, counts: &mut Counts) {
        counts.divided = self.divided() as u64;
        (counts.elections, counts.led, counts.views, counts.view_max) = self.elections();
    }
}

/// Whether a proof that `transaction` aborts names a committed transaction that is really in its way: judged here once more,
/// without the machines' own rule.
fn is_in_the_way(cluster: &Cluster, transaction: &Transaction, proof: &ShardProof) -> bool {
    let ShardProof::Conflict { shard, transaction: other, certificate } = proof else { return false };
    let passes = |reader: &Transaction, writer: &Transaction| {
        let mut reads = reader.reads().iter().filter(|read| cluster.shard_of(&read.key) == *shard);
        let between = |version: Timestamp| version < writer.timestamp() && writer.timestamp() < reader.timestamp();
        reads.any(|read| between(read.version) && writer.writes().iter().any(|write| write.key == read.key))
    };
    let is_committed = certificate.id == other.id() && certificate.decision == Decision::Commit;
    is_committed && (passes(transaction, other) || passes(other, transaction))
}

/// What `transaction`, which has committed, could not have read, as sentences.
fn impossible(transaction: &Transaction, known: &BTreeMap<TransactionId, Transaction>) -> Vec<String> {
    let (id, timestamp) = (transaction.id(), transaction.timestamp());
    let mut found = Vec::new();
    for read in transaction.reads() {
        if read.version >= timestamp {
            found.push(format!("{id:?} committed, and claims to have read {} from its own future", read.key));
        }
        let is_writer = |writer: &Transaction| writer.timestamp() == read.version && writer.write_of(&read.key).is_some();
        if let Some(dependency) = read.dependency
            && !known.get(&dependency).is_some_and(is_writer)
        {
            found.push(format!("{id:?} committed, and {dependency:?}, from which it claims to have read {}, did not write that", read.key));
        }
    }
    found
}

/// What each client must see however things went: it needs no other checker to be right.
fn sums(checker: &Checker) -> Vec<String> {
    let mut found = Vec::new();
    for (id, history) in checker.committed() {
        let value_of = |key: &Key| history.seen.reads.iter().find(|(read, _, _)| read == key).and_then(|(_, _, value)| value.as_ref());
        if matches!(history.plan, Plan::Audit | Plan::Everything) {
            let balance = |account| plan::number(value_of(&plan::account(account))).unwrap_or(plan::BALANCE);
            let sum: i64 = (0..plan::ACCOUNTS).map(balance).sum();
            let should = plan::BALANCE * i64::try_from(plan::ACCOUNTS).expect("few accounts");
            if sum != should {
                found.push(format!("{id:?} saw {sum} in all accounts together, not {should}"));
            }
        }
        if matches!(history.plan, Plan::Take { .. } | Plan::Everything) {
            let taken = history.seen.reads.iter().filter(|(key, _, value)| value.is_some() && plan::slots().contains(key)).count();
            if taken > plan::TAKEN_MAX {
                found.push(format!("{id:?} saw {taken} slots taken, of which only {} may be", plan::TAKEN_MAX));
            }
        }
        if history.plan == Plan::Everything {
            let mut at = 0;
            let mut places = BTreeSet::new();
            while places.insert(at) {
                at = plan::next_in_ring(at, value_of(&plan::ring(at)));
            }
            if at != 0 || places.len() as u64 != plan::RING {
                found.push(format!("{id:?} saw a ring of {} places that comes back to {at}", places.len()));
            }
        }
    }
    found
}
