//! The coordinator: drives reads and commits for one process, as many at once as it is given (Basil §4, §5).
//!
//! A client runs one for its own transactions. A replica runs one beside itself, to finish those that others abandoned.
//!
//! This file has a commit's whole way on the client's side: which message goes where, the votes (ST1, §4.2), the logged decision
//! (ST2), and the writeback (§4.3). What votes amount to is in [`crate::tally`]. The folder has the rest: `reads` (§4.1), and the
//! commit of what has only read; `scans`, which read ranges; `recovery` (§5); `reconfiguration`, when the operators change a key; `slow_replicas` and `connections`, whose votes are
//! waited for; and `interface`, what a coordinator is asked and tells.

mod connections;
mod interface;
mod reads;
mod reconfiguration;
mod recovery;
mod scans;
mod slow_replicas;

use std::collections::BTreeMap;
use std::sync::Arc;

use crypto::Verified;
use engine::ClusterClock;
use foldhash::{HashMap, HashMapExt as _};
use machine::{Durable, Input, InputOf, Machine, OutboxOf, Time, Timers, Voters};
use mutants::{Mutant, broken};
use smallvec::SmallVec;
use types::{Cluster, Party, ReplicaId, ShardId, Timestamp, TransactionId};

use self::connections::Connections;
use self::reads::{ReadOperation, ReadRequest};
use self::reconfiguration::CheckedBy;
use self::scans::{ScanOperation, ScanRequest};
use self::slow_replicas::SlowReplicas;
use crate::adaptive_timeout::{AdaptiveTimeout, MedianDuration, WAIT_US_MIN, wait_us};
use crate::certificate::{Certificate, Decision, Proof, ShardProof, SignedLogged, SignedVote, Vote, VoteSet, VoteStatement, logging_shard};
use crate::check;
use crate::commit_relay::{Contention, RELAYED_KEYS_MAX, RecentCommits, Relays};
use crate::doubts::Doubts;
use crate::lost_reads::LostReads;
use crate::message::{Conflict, Message, Refusal, Subject};
use crate::quorum::Quorums;
use crate::read_only::ReadValidation;
use crate::recovery::LoggedReplies;
use crate::replica_clocks::ReplicaClocks;
use crate::round_trip::{RequestKind, RoundTrips};
use crate::tally::{Outcome, Tally};
use crate::transaction::Transaction;

pub(crate) use self::recovery::FINISHES_MAX;

pub use self::interface::{Command, CoordinatorCounts, CoordinatorOptions, Event, Failure, FastPath, Path, ReadOnly};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    Clocks,
    /// Another clock has been told.
    ClockTold,
    ReadEscalation(u64),
    ScanEscalation(u64),
    ReadValidation(u64),
    FastPathWait(TransactionId),
    Evidence(TransactionId),
    Dependencies(TransactionId),
    Retry(TransactionId),
}

/// Who sets out to finish a transaction, and can show whose it is, waits so long at least for those who answer without that, in microseconds.
const EVIDENCE_US_MIN: u64 = 5_000;
/// A commit's wait is doubled so many times at most.
const RETRIES_DOUBLED_MAX: u32 = 4;
/// The most stalled transactions that the votes on one transaction may name.
const STALLED_MAX: usize = 8;

/// Drives transactions for one process.
#[derive(Debug)]
pub struct Coordinator {
    cluster: Arc<Cluster>,
    quorums: Quorums,
    options: CoordinatorOptions,
    operations: HashMap<u64, ReadOperation>,
    requests: BTreeMap<u64, ReadRequest>,
    scans: BTreeMap<u64, ScanOperation>,
    scan_requests: BTreeMap<u64, ScanRequest>,
    /// Of both kinds, which share their numbers.
    requests_made: u64,
    /// Read-only transactions that ask for what their reads lack, by the number of the request.
    read_validations: BTreeMap<u64, ReadValidation>,
    attempts: HashMap<TransactionId, CommitAttempt>,
    /// How many of them are finished for others.
    finishing: usize,
    timers: Timers<Timer>,
    adaptive_timeout: Vec<AdaptiveTimeout>,
    slow_replicas: SlowReplicas,
    connections: Connections,
    round_trips: RoundTrips,
    doubts: Doubts,
    /// How long this process's own transactions take from ST1 to their end, when they wait for nobody else's.
    usual_commit: MedianDuration,
    /// How long they take from their timestamps to their end.
    usual_lifetime: MedianDuration,
    /// What has just committed, and not all replicas have heard of.
    recent_commits: RecentCommits,
    /// Which moments of the past ranges were read at of late, and when all replicas were told that this goes on.
    past_reads: Vec<(Timestamp, Option<Time>)>,
    contention: Contention,
    lost_reads: LostReads,
    suspects: Vec<Voters>,
    /// A client's, which begins transactions.
    clocks: Option<ReplicaClocks>,
    checked_by: CheckedBy,
    counts: CoordinatorCounts,
}

type Out = OutboxOf<Coordinator>;

impl Coordinator {
    /// A coordinator for `cluster`, with nothing to do yet.
    #[must_use]
    pub fn new(cluster: Arc<Cluster>, options: CoordinatorOptions) -> Self {
        let shards = cluster.shards().count();
        let quorums = Quorums::new(cluster.faults());
        Self {
            round_trips: RoundTrips::new(quorums, shards),
            doubts: Doubts::new(shards, quorums.replicas()),
            slow_replicas: SlowReplicas::new(shards, quorums.replicas()),
            connections: Connections::new(shards, quorums.replicas()),
            checked_by: CheckedBy::new(&cluster),
            quorums,
            cluster,
            options,
            operations: HashMap::new(),
            requests: BTreeMap::new(),
            scans: BTreeMap::new(),
            scan_requests: BTreeMap::new(),
            requests_made: 0,
            read_validations: BTreeMap::new(),
            attempts: HashMap::new(),
            finishing: 0,
            timers: Timers::default(),
            adaptive_timeout: vec![AdaptiveTimeout::default(); shards],
            usual_commit: MedianDuration::default(),
            usual_lifetime: MedianDuration::default(),
            recent_commits: RecentCommits::default(),
            past_reads: Vec::new(),
            contention: Contention::default(),
            lost_reads: LostReads::default(),
            suspects: vec![Voters::default(); shards],
            clocks: None,
            counts: CoordinatorCounts::default(),
        }
    }

    /// The same for a client, which begins transactions and so follows the replicas' clocks.
    #[must_use]
    pub fn for_client(cluster: Arc<Cluster>, options: CoordinatorOptions) -> Self {
        let mut coordinator = Self::new(cluster, options);
        coordinator.clocks = Some(ReplicaClocks::new(coordinator.quorums, coordinator.suspects.len(), options.clock_good_ms));
        coordinator.timers.set(Timer::Clocks, Time(0));
        coordinator
    }

    /// The clock from which a client's timestamps come, as soon as it is known.
    #[must_use]
    pub fn clock(&self) -> Option<ClusterClock> {
        self.clocks.as_ref()?.clock()
    }

    /// What has been done since the start.
    #[must_use]
    pub fn counts(&self) -> CoordinatorCounts {
        self.counts
    }

    /// How many transactions are being finished for others.
    pub(crate) fn finishing(&self) -> usize {
        self.finishing
    }

    /// How many reads and how many transactions are under way.
    #[must_use]
    pub fn load(&self) -> (usize, usize) {
        (self.operations.len() + self.scans.len(), self.attempts.len())
    }
}

/// Time: a client's timestamps come from the replicas' clocks (`replica_clocks.rs`).
impl Coordinator {
    fn ask_clocks(&mut self, now: Time, out: &mut Out) {
        let Some(clocks) = &mut self.clocks else { return };
        clocks.asked(now);
        self.timers.set(Timer::Clocks, clocks.due());
        for replica in self.cluster.replicas() {
            out.send(Party::Replica(replica), Message::ClockQuery { asked_at: now.0, journal: None });
        }
    }

    /// The clock of `from` showed `clock` after it was asked something at `asked_at`.
    fn take_clock(&mut self, now: Time, from: ReplicaId, asked_at: Time, clock: u64) {
        let Some(clocks) = &mut self.clocks else { return };
        if clocks.note(now, from, asked_at, clock) {
            self.timers.set(Timer::Clocks, clocks.due());
        }
    }

    /// Whether a transaction at `timestamp` may lie below what was acknowledged before it began.
    fn is_too_low(&self, timestamp: Timestamp) -> bool {
        self.clocks.as_ref().is_some_and(|clocks| clocks.is_too_low(timestamp.time))
    }

    /// How long ago `transaction` began, in nanoseconds: a replica's own clock says what time it is, a client's does not.
    fn age_ns(&self, now: Time, transaction: &Transaction) -> u64 {
        self.clock().map_or(now.0, |clock| clock.read(now)).saturating_sub(transaction.timestamp().time)
    }
}

/// Committing: ST1, ST2 and writeback (Basil §4.2, §4.3).
impl Coordinator {
    /// Sets a transaction on its way, for whoever asks for it or, where nobody does, for its own sake.
    fn on_commit_command(
        &mut self,
        now: Time,
        operation: Option<u64>,
        transaction: Transaction,
        dependencies: Vec<Transaction>,
        out: &mut Out,
    ) {
        let id = transaction.id();
        if let Some(operation) = operation.filter(|_| self.is_too_low(transaction.timestamp())) {
            out.emit(Event::Ended { operation, result: Err(Failure::TooLow) });
            return;
        }
        if let Some(due) = dependencies.iter().map(|dependency| self.time_for(now, dependency)).min() {
            self.timers.set(Timer::Dependencies(id), due);
        }
        if let Some(attempt) = self.attempts.get_mut(&id) {
            // It is being finished already: from now on for this asker too, with all the time it may take.
            attempt.operations.extend(operation);
            attempt.dependencies.extend(dependencies);
            attempt.started = now;
            return;
        }
        if let Some(operation) = operation {
            self.lost_reads.begins(operation, &transaction);
        }
        let participants = transaction.participants(&self.cluster);
        let attempt = CommitAttempt {
            operations: operation.into_iter().collect(),
            tallies: participants.iter().map(|shard| Tally::new(*shard)).collect(),
            participants,
            transaction,
            dependencies,
            logged: LoggedReplies::default(),
            elections: 0,
            logging: None,
            refused: BTreeMap::new(),
            too_old: BTreeMap::new(),
            stalled: Vec::new(),
            was_finish: operation.is_none(),
            fast_path_wait: FastPathWait::NotBegun,
            started: now,
            asked_at: now,
            retries: 0,
            commit_quorum_at: None,
            last_waited_for: now,
            waits_since: now,
        };
        self.attempts.insert(id, attempt);
        self.ask_votes(id, out);
        self.set_retry(now, id, 0);
    }

    /// ST1, or RP for a transaction of somebody else, to every replica not heard yet.
    fn ask_votes(&mut self, id: TransactionId, out: &mut Out) {
        let Some(attempt) = self.attempts.get(&id) else { return };
        for tally in &attempt.tallies {
            for replica in self.cluster.replicas_of(tally.shard()).filter(|replica| !tally.heard(replica.index)) {
                let transaction = attempt.transaction.clone();
                let message = if attempt.operations.is_empty() {
                    Message::Recover { transaction, evidence: attempt.evidence(self.quorums) }
                } else {
                    Message::Prepare { transaction }
                };
                out.send(Party::Replica(replica), message);
            }
        }
    }

    /// Asks those once more who may wait to be shown whose it is, unless what the others say is enough.
    fn show_evidence(&mut self, id: TransactionId, out: &mut Out) {
        let Some(attempt) = self.attempts.get(&id) else { return };
        if attempt.logging.is_none() && attempt.slow_decision(self.quorums).is_none() {
            self.ask_votes(id, out);
        }
    }

    /// ST1R (§4.2 (4)), or the same for RP.
    fn on_voted(&mut self, now: Time, from: ReplicaId, vote: SignedVote, conflict: Option<Conflict>, out: &mut Out) {
        let SignedVote { replica, statement: VoteStatement { id, vote }, signature } = vote;
        let Some(attempt) = self.attempts.get_mut(&id) else { return };
        let Some(tally) = attempt.tallies.iter_mut().find(|tally| tally.shard() == replica.shard) else { return };
        if from != replica || !tally.count(replica.index, vote, signature) {
            return;
        }
        attempt.refused.remove(&replica);
        self.round_trips.note(replica, RequestKind::Vote, now.since(attempt.asked_at));
        if attempt.operations.is_empty() && vote == Vote::Commit && tally.votes_to(Vote::Commit) == self.quorums.weak() {
            // From here on it can be shown whose it is.
            let round_us = self.round_trips.round_us(replica.shard);
            self.timers.set(Timer::Evidence(id), now.after_us(EVIDENCE_US_MIN.max(2 * round_us)));
        }
        let mut stalled = None;
        let in_the_way = |other: &Transaction| {
            let conflicts = check::conflict_at(&self.cluster, replica.shard, &attempt.transaction, other);
            vote == Vote::Abort && (conflicts || broken(Mutant::ConflictBelieved))
        };
        let may_be_in_the_way =
            |other: &Transaction| vote == Vote::Abort && check::may_conflict_at(&self.cluster, replica.shard, &attempt.transaction, other);
        match conflict {
            Some(Conflict::Committed { transaction, certificate }) if in_the_way(&transaction) => {
                tally.conflicts_with(transaction, certificate);
            }
            Some(Conflict::Stalled { transaction }) if in_the_way(&transaction) || may_be_in_the_way(&transaction) => {
                let known = attempt.stalled.iter_mut().find(|(known, _)| known.id() == transaction.id());
                if let Some((_, voters)) = known {
                    voters.insert(replica.index);
                    // One replica's word is not enough to be sent after a transaction that may not exist.
                    stalled = (voters.count() == self.quorums.weak()).then_some(transaction);
                } else if attempt.stalled.len() < STALLED_MAX {
                    attempt.stalled.push((transaction, Voters::of(replica.index)));
                }
            }
            _ => {}
        }
        self.note_promptness(now, id, replica);
        self.evaluate(now, id, out);
        if let Some(transaction) = stalled {
            self.on_finish_command(now, transaction, out); // Whoever is stopped by a stalled transaction finishes it (§5).
        }
    }

    /// The vote of `replica` has come: in time, or later than was worth waiting for. Who was late when the wait was over has been counted then.
    fn note_promptness(&mut self, now: Time, id: TransactionId, replica: ReplicaId) {
        let Some(attempt) = self.attempts.get_mut(&id) else { return };
        let since = attempt.commit_quorum_at.unwrap_or(now);
        let lag_us = now.since(since) / 1_000;
        let is_expected = self.connections.has_had(replica.shard, replica.index, attempt.asked_at);
        if lag_us <= WAIT_US_MIN || lag_us <= attempt.worth_us(&self.round_trips) {
            self.slow_replicas.prompt(replica);
        } else if is_expected && attempt.fast_path_wait != FastPathWait::Over {
            self.slow_replicas.late(replica, now, since);
        }
        if is_expected && self.slow_replicas.is_waited_for(replica.shard, replica.index, now) {
            attempt.last_waited_for = now;
        }
    }

    /// After each vote: can the transaction end now, should its decision be logged, or are better votes worth waiting for?
    fn evaluate(&mut self, now: Time, id: TransactionId, out: &mut Out) {
        let quorums = self.quorums;
        let Some(attempt) = self.attempts.get_mut(&id) else { return };
        if self.options.fast_path == FastPath::On
            && let Some((decision, proofs)) = attempt.fast_decision(quorums)
        {
            if decision == Decision::Commit {
                // Those who are not waited for say nothing of how long to wait.
                let lag = attempt.commit_quorum_at.map_or(0, |at| attempt.last_waited_for.since(at));
                for shard in &attempt.participants {
                    self.adaptive_timeout[usize::from(shard.0)].unanimous(lag);
                }
            }
            self.end_attempt(now, Arc::new(Certificate { id, decision, proof: Proof::Fast(proofs) }), Path::Fast, out);
            return;
        }
        if attempt.logging.is_some() {
            return;
        }
        let Some(decision) = attempt.slow_decision(quorums) else { return };
        if attempt.commit_quorum_at.is_none() && decision == Decision::Commit {
            attempt.commit_quorum_at = Some(now);
        }
        let asked_at = attempt.asked_at;
        let waited_for =
            |shard, index| self.connections.has_had(shard, index, asked_at) && self.slow_replicas.is_waited_for(shard, index, now);
        let hopeful = self.options.fast_path == FastPath::On && attempt.may_end_fast(decision, quorums, waited_for);
        match attempt.fast_path_wait {
            _ if !hopeful => self.log(now, id, decision, out),
            FastPathWait::Over => self.log(now, id, decision, out),
            FastPathWait::Running => {}
            FastPathWait::NotBegun => {
                let wait_us = attempt.wait_us(&self.round_trips, &self.adaptive_timeout);
                (attempt.fast_path_wait, attempt.waits_since) = (FastPathWait::Running, now);
                self.timers.set(Timer::FastPathWait(id), now.after_us(wait_us));
            }
        }
    }

    fn on_fast_path_wait_over(&mut self, now: Time, id: TransactionId, out: &mut Out) {
        let Some(attempt) = self.attempts.get_mut(&id) else { return };
        attempt.fast_path_wait = FastPathWait::Over;
        // A shard that has no quorum yet is further away, and nobody there has been waited for.
        for tally in attempt.tallies.iter().filter(|tally| tally.is_slow(self.quorums)) {
            let was_waited_for = |replica: &ReplicaId| {
                !tally.heard(replica.index) && self.connections.has_had(replica.shard, replica.index, attempt.asked_at)
            };
            for replica in self.cluster.replicas_of(tally.shard()).filter(was_waited_for) {
                self.slow_replicas.late(replica, now, attempt.waits_since);
            }
        }
        self.evaluate(now, id, out);
    }

    /// ST2 (§4.2 (5)): asks the logging shard to write the decision down.
    fn log(&mut self, now: Time, id: TransactionId, decision: Decision, out: &mut Out) {
        let quorums = self.quorums;
        let Some(attempt) = self.attempts.get_mut(&id) else { return };
        let is_first = attempt.logging.replace(decision).is_none();
        self.timers.cancel(&Timer::FastPathWait(id));
        let Some(shard) = logging_shard(&attempt.participants, id) else { return };
        let tallies = attempt.justification(decision, quorums);
        for replica in self.cluster.replicas_of(shard).filter(|replica| !attempt.logged.heard(replica.index)) {
            let (transaction, tallies) = (attempt.transaction.clone(), tallies.clone());
            out.send(Party::Replica(replica), Message::Log { transaction, decision, tallies });
        }
        if is_first {
            self.set_retry(now, id, 0); // This is another request than the first, and gets as long.
        }
    }

    /// ST2R (§4.2 (7)).
    fn on_logged(&mut self, now: Time, from: ReplicaId, logged: SignedLogged, out: &mut Out) {
        let (id, replica) = (logged.statement.id, logged.replica);
        let Some(attempt) = self.attempts.get_mut(&id) else { return };
        let is_own = from == replica && logging_shard(&attempt.participants, id) == Some(replica.shard);
        if !is_own || !attempt.logged.note(logged) {
            return;
        }
        if let Some((decision, set)) = attempt.logged.agreed(self.quorums) {
            // §4.2 (7), §5 (5)
            self.end_attempt(now, Arc::new(Certificate { id, decision, proof: Proof::Logged(set) }), Path::Slow, out);
        } else if attempt.elections == 0 && attempt.logged.count() >= self.quorums.elected() && attempt.logged.are_split(self.quorums) {
            self.invoke_fallback(now, id, out); // Not while too few to elect anybody are known to have logged anything.
        } else {
            self.evaluate(now, id, out);
        }
    }

    /// Writeback (§4.3): tells whoever asked for it how it ends, and every replica, or those who tell the others.
    fn end_attempt(&mut self, now: Time, certificate: Arc<Certificate>, path: Path, out: &mut Out) {
        let id = certificate.id;
        let Some(attempt) = self.take(id) else { return };
        if !attempt.was_finish && attempt.dependencies.is_empty() && path != Path::Recovered {
            self.usual_commit.took(now.since(attempt.started));
            self.usual_lifetime.took(self.age_ns(now, &attempt.transaction));
        }
        if let Some(operation) = attempt.operations.first() {
            self.lost_reads.note(*operation, &attempt.transaction, certificate.decision);
        }
        match path {
            Path::Fast => self.counts.fast += 1,
            Path::Slow => self.counts.slow += 1,
            Path::Recovered => self.counts.recovered += 1,
        }
        if !attempt.was_finish {
            self.contention.note(certificate.decision == Decision::Abort || !attempt.dependencies.is_empty());
        }
        // All have voted then. What others left has been left long enough.
        let is_relayed = path == Path::Fast && certificate.decision == Decision::Commit && !attempt.was_finish;
        let is_for_relays = attempt.tallies.len() > 1 || self.relays_of_one_shard(&attempt.transaction);
        let relays = Relays::of(&self.cluster, &attempt.transaction).filter(|_| is_relayed && is_for_relays);
        if relays.is_some() {
            self.recent_commits.note(now, &certificate);
        }
        for tally in &attempt.tallies {
            let replicas = self.cluster.replicas_of(tally.shard());
            for replica in replicas.filter(|replica| relays.is_none_or(|relays| relays.contains(*replica))) {
                // Whoever voted has the transaction.
                let transaction = (!tally.heard(replica.index)).then(|| attempt.transaction.clone());
                let (certificate, relay) = (certificate.clone(), relays.is_some());
                out.send(Party::Replica(replica), Message::Writeback { transaction, certificate, relay });
            }
        }
        for operation in attempt.operations {
            out.emit(Event::Ended { operation, result: Ok((certificate.clone(), path)) });
        }
    }

    /// Whether the proof of a commit on one shard goes to relays alone: not under contention, where somebody waits for the hop; nor where replicas
    /// count how many of this client's are under way; nor where its author would owe much if somebody else ended it meanwhile.
    fn relays_of_one_shard(&self, transaction: &Transaction) -> bool {
        let is_counted = |client| self.cluster.permission(client).is_some_and(|permission| permission.limits.transactions.is_some());
        self.options.relay_one_shard
            && !self.contention.is_high()
            && transaction.count_keys() <= RELAYED_KEYS_MAX
            && !is_counted(transaction.timestamp().client)
    }

    fn on_refused(&mut self, from: ReplicaId, id: TransactionId, refusal: Refusal, out: &mut Out) {
        let Some(attempt) = self.attempts.get_mut(&id) else { return };
        attempt.refused.insert(from, refusal);
        if let Refusal::AbandonLimit { .. } = refusal {
            self.counts.abandon_limited += 1;
            if self.counts.abandon_limited.is_power_of_two() {
                tracing::warn!(replica = %from, "takes no new transactions for a while: this client left too many for others to end");
            }
        }
        if let Refusal::ClientLimit { limit, .. } = refusal {
            self.counts.client_limited += 1;
            if self.counts.client_limited.is_power_of_two() {
                tracing::warn!(replica = %from, ?limit, "takes no more of this client: it is over a limit that the operators set for it");
            }
        }
        // Asked again, a replica also refuses what it voted on long ago and has forgotten: only the first answer
        // says that it never voted.
        let is_late = attempt.retries > 0 && !broken(Mutant::LateRefusalBelieved);
        // Over a limit that its client has for now, it may be let in the next time, or voted on when somebody else brings it.
        let is_final = refusal == Refusal::TooOld || (matches!(refusal, Refusal::ClientLimit { .. }) && broken(Mutant::ClientLimitFinal));
        if !is_final || is_late || !attempt.participants.contains(&from.shard) {
            return;
        }
        let voters = attempt.too_old.entry(from.shard).or_default();
        voters.insert(from.index);
        // A correct replica that refuses so never votes to commit: of 3f + 1 at least 2f + 1 are correct, and the
        // 3f others are too few. So it never happens, and may be begun again.
        if voters.count() >= if broken(Mutant::TooOldOfOne) { 1 } else { self.quorums.abort_fast() } {
            self.give_up(id, Failure::Refused(refusal), out);
        }
    }

    /// Has a transaction's request sent again when it has gone unanswered for too long: twice as long as votes take, since
    /// it is then perhaps worth waiting for the last of them.
    fn set_retry(&mut self, now: Time, id: TransactionId, times: u32) {
        let Some(attempt) = self.attempts.get(&id) else { return };
        let late_us = attempt.participants.iter().map(|shard| 2 * self.round_trips.late_us(*shard, RequestKind::Vote)).max();
        let wait_us = wait_us(late_us.unwrap_or(0), self.options.retry_ms * 1_000, times, RETRIES_DOUBLED_MAX);
        self.timers.set(Timer::Retry(id), now.after_us(wait_us));
    }

    fn on_retry(&mut self, now: Time, id: TransactionId, out: &mut Out) {
        let Some(attempt) = self.attempts.get_mut(&id) else { return };
        if now.since(attempt.started) >= self.options.timeout_ms * 1_000_000 {
            let why = attempt.why_refused(self.quorums);
            self.give_up(id, Failure::TimedOut(why), out);
            return;
        }
        self.counts.retries += 1;
        attempt.retries += 1;
        let (logging, retries) = (attempt.logging, attempt.retries);
        // So many answers would make a certificate if they were equal: the others may never come.
        let is_split = attempt.elections > 0 || attempt.logged.count() >= self.quorums.logged();
        // The votes may be forgotten where the decision is not: a replica that has logged nothing goes by those who have.
        let needs_more = logging.is_none() && retries > 1 && attempt.may_log_by_others(self.quorums);
        self.set_retry(now, id, retries);
        match logging {
            None => self.ask_votes(id, out),
            Some(_) if is_split => {}
            Some(decision) => self.log(now, id, decision, out),
        }
        if is_split || needs_more {
            self.invoke_fallback(now, id, out); // §5 (5), not validated: (1) again, with the views heard since.
        }
        self.finish_dependencies(now, id, out);
    }

    fn give_up(&mut self, id: TransactionId, failure: Failure, out: &mut Out) {
        let Some(attempt) = self.take(id) else { return };
        for operation in attempt.operations {
            out.emit(Event::Ended { operation, result: Err(failure) });
        }
    }

    /// Takes `id` out of what is under way: nothing more is to be done about it.
    fn take(&mut self, id: TransactionId) -> Option<CommitAttempt> {
        let attempt = self.attempts.remove(&id)?;
        for timer in [Timer::FastPathWait(id), Timer::Evidence(id), Timer::Dependencies(id), Timer::Retry(id)] {
            self.timers.cancel(&timer);
        }
        if attempt.was_finish {
            self.finishing -= 1;
        }
        Some(attempt)
    }
}

/// A transaction on its way to its end.
#[derive(Debug)]
struct CommitAttempt {
    /// Whom to tell; nobody when it is finished for its own sake.
    pub operations: SmallVec<[u64; 1]>,
    pub transaction: Transaction,
    pub dependencies: Vec<Transaction>,
    pub participants: Vec<ShardId>,
    pub tallies: Vec<Tally>,
    /// ST2 replies.
    pub logged: LoggedReplies,
    /// How often a fallback leader was called for.
    pub elections: u32,
    /// What this process asks to be logged, once it does.
    pub logging: Option<Decision>,
    /// Who last refused to judge it, and why.
    pub refused: BTreeMap<ReplicaId, Refusal>,
    /// Who refuses to judge it for being too old, by shard.
    pub too_old: BTreeMap<ShardId, Voters>,
    /// Transactions said to stand in its way and to be stalled, and by whom.
    pub stalled: Vec<(Transaction, Voters)>,
    /// Whether it was begun to finish what somebody else left.
    pub was_finish: bool,
    pub fast_path_wait: FastPathWait,
    pub started: Time,
    /// When everybody was first asked to vote.
    pub asked_at: Time,
    pub retries: u32,
    pub commit_quorum_at: Option<Time>,
    /// When the last vote came of a replica that is waited for.
    pub last_waited_for: Time,
    /// When it began to wait for the last votes.
    pub waits_since: Time,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FastPathWait {
    NotBegun,
    Running,
    Over,
}

impl CommitAttempt {
    /// What enough replicas of a shard refuse to vote on it for; nothing once it is being logged.
    fn why_refused(&self, quorums: Quorums) -> Option<Refusal> {
        let of = |shard: ShardId| self.refused.iter().filter(move |(by, _)| by.shard == shard).map(|(_, refusal)| *refusal);
        let believed = |refusals: Vec<Refusal>| refusals.iter().find_map(|refusal| Refusal::believed(&refusals, *refusal, quorums));
        self.participants.iter().find_map(|shard| believed(of(*shard).collect())).filter(|_| self.logging.is_none())
    }

    /// Votes to commit of `f + 1` replicas of one shard, if there are as many: they show that the transaction is its author's.
    pub fn evidence(&self, quorums: Quorums) -> Vec<SignedVote> {
        let id = self.transaction.id();
        for tally in &self.tallies {
            if tally.votes_to(Vote::Commit) >= quorums.weak() {
                let set = tally.votes(Vote::Commit);
                let signed = |(index, signature)| {
                    let replica = ReplicaId { shard: set.shard, index };
                    SignedVote { replica, statement: VoteStatement { id, vote: Vote::Commit }, signature }
                };
                return set.voters.into_iter().take(quorums.weak()).map(signed).collect();
            }
        }
        Vec::new()
    }

    /// How long to wait for the last votes, in microseconds: as they usually come, within what such a wait may take at most.
    fn wait_us(&self, round_trips: &RoundTrips, adaptive_timeout: &[AdaptiveTimeout]) -> u64 {
        let logging_us = logging_shard(&self.participants, self.transaction.id()).map_or(0, |shard| round_trips.round_us(shard));
        self.participants.iter().map(|shard| adaptive_timeout[usize::from(shard.0)].wait_us(logging_us)).max().unwrap_or(0)
    }

    /// How long the last votes are worth waiting for, in microseconds: as long as logging takes while the replicas are as busy as they are.
    fn worth_us(&self, round_trips: &RoundTrips) -> u64 {
        let shard = logging_shard(&self.participants, self.transaction.id());
        shard.map_or(0, |shard| round_trips.round_us(shard).max(round_trips.usual_vote_us(shard)))
    }

    /// A decision that needs no logging, with its proofs: (3) everywhere, or (4) or (5) anywhere.
    pub fn fast_decision(&self, quorums: Quorums) -> Option<(Decision, Vec<ShardProof>)> {
        let outcomes = self.tallies.iter().map(|tally| tally.outcome(quorums));
        if let Some(at) = outcomes.clone().position(|outcome| matches!(outcome, Outcome::AbortFast | Outcome::AbortByConflict)) {
            return Some((Decision::Abort, vec![self.tallies[at].proof(quorums)?]));
        }
        if outcomes.clone().all(|outcome| outcome == Outcome::CommitFast) {
            let proofs = self.tallies.iter().filter_map(|tally| tally.proof(quorums)).collect();
            return Some((Decision::Commit, proofs));
        }
        None
    }

    /// A decision that the votes justify, though it would have to be logged. One that the logging shard has begun to
    /// log for somebody else is preferred, if these votes justify it too.
    pub fn slow_decision(&self, quorums: Quorums) -> Option<Decision> {
        let commit = self.tallies.iter().all(|tally| matches!(tally.outcome(quorums), Outcome::CommitFast | Outcome::CommitSlow));
        let abort = self.tallies.iter().any(|tally| tally.votes_to(Vote::Abort) >= quorums.abort_slow());
        let begun = |decision: Decision| self.logged.count_of(decision) >= quorums.weak();
        match (commit, abort) {
            (true, true) if begun(Decision::Abort) => Some(Decision::Abort),
            (true, _) => Some(Decision::Commit),
            (false, true) => Some(Decision::Abort),
            (false, false) => None,
        }
    }

    /// The votes that allow `decision` to be logged: of every shard to commit, of one to abort.
    pub fn justification(&self, decision: Decision, quorums: Quorums) -> Vec<VoteSet> {
        match decision {
            Decision::Commit => self.tallies.iter().map(|tally| tally.votes(Vote::Commit)).collect(),
            Decision::Abort => {
                let sets = self.tallies.iter().map(|tally| tally.votes(Vote::Abort));
                sets.filter(|set| set.voters.len() >= quorums.abort_slow()).take(1).collect()
            }
        }
    }

    /// Whether enough of the logging shard have answered to elect a leader, and some of them have logged something.
    pub fn may_log_by_others(&self, quorums: Quorums) -> bool {
        let Some(shard) = logging_shard(&self.participants, self.transaction.id()) else { return false };
        let has_voted = |index| self.tallies.iter().any(|tally| tally.shard() == shard && tally.heard(index));
        let heard = (0..).take(quorums.replicas()).filter(|index| has_voted(*index) || self.logged.heard(*index)).count();
        self.logged.count() >= quorums.weak() && heard >= quorums.logged()
    }

    /// Whether votes still to come, of those who are `waited_for`, could make `decision` end fast.
    pub fn may_end_fast(&self, decision: Decision, quorums: Quorums, waited_for: impl Fn(ShardId, u16) -> bool) -> bool {
        let may_improve = |tally: &Tally| tally.may_improve(quorums, |index| waited_for(tally.shard(), index));
        match decision {
            Decision::Commit => self.tallies.iter().all(|tally| tally.outcome(quorums) == Outcome::CommitFast || may_improve(tally)),
            Decision::Abort => self.tallies.iter().any(may_improve),
        }
    }
}

impl Machine for Coordinator {
    type Command = Command;
    type Received = Verified<Message>;
    type Message = Message;
    type Unsigned = std::convert::Infallible;
    type Event = Event;

    fn step(&mut self, now: Time, input: InputOf<Self>, outbox: &mut OutboxOf<Self>) {
        if let Some(clocks) = &mut self.clocks {
            clocks.step(now);
            if matches!(input, Input::Command(_)) && clocks.used(now) {
                self.timers.set(Timer::Clocks, clocks.due());
            }
        }
        match input {
            Input::Command(Command::Read { operation, timestamp, keys, mode }) => {
                self.on_read_command(now, operation, timestamp, keys, self.options.mode(mode), outbox);
            }
            Input::Command(Command::Scan { operation, timestamp, range, direction, limit, mode }) => {
                self.on_scan_command(now, operation, (timestamp, range), (direction, limit), self.options.mode(mode), outbox);
            }
            Input::Command(Command::CommitReads { operation, transaction, .. }) if self.options.read_only != ReadOnly::Validated => {
                self.on_commit_command(now, Some(operation), transaction, Vec::new(), outbox);
            }
            Input::Command(Command::CommitReads { operation, transaction, validated }) => {
                self.on_commit_reads_command(now, operation, transaction, validated, outbox);
            }
            Input::Command(Command::Commit { operation, transaction, dependencies }) => {
                self.on_commit_command(now, Some(operation), transaction, dependencies, outbox);
            }
            Input::Command(Command::Finish { transaction }) => self.on_finish_command(now, transaction, outbox),
            Input::Command(Command::Reconfigure { cluster }) => self.on_reconfigure_command(cluster, outbox),
            Input::Command(Command::Connected { replicas }) => self.on_connected_command(now, &replicas, outbox),
            Input::Message { from: Party::Replica(from), message } if self.is_checked_alike(&message, outbox) => {
                match message.into_inner() {
                    Message::ReadReply { request, clock, results, prepared, is_promised } => {
                        self.note_clock(now, from, request, clock);
                        let is_promised = is_promised || broken(Mutant::UnpromisedCounted);
                        self.on_read_reply(now, from, request, (results, &prepared, is_promised), outbox);
                    }
                    Message::ScanReply { request, clock, direction, rows, end, prepared, is_promised } => {
                        self.note_clock(now, from, request, clock);
                        let is_promised = is_promised || broken(Mutant::UnpromisedCounted);
                        self.on_scan_reply(now, from, request, (direction, rows, end), (prepared, is_promised), outbox);
                    }
                    Message::ClockReply { asked_at, clock } => {
                        self.take_clock(now, from, Time(asked_at), clock);
                    }
                    Message::Voted { vote, conflict } => self.on_voted(now, from, vote, conflict, outbox),
                    Message::Logged { logged } => self.on_logged(now, from, logged, outbox),
                    Message::Decided { certificate } => self.on_decided(now, certificate, outbox),
                    Message::Refused { subject: Subject::Request(number), refusal } => {
                        self.on_read_refused(now, from, number, refusal, outbox);
                    }
                    Message::Refused { subject: Subject::Transaction(id), refusal } => self.on_refused(from, id, refusal, outbox),
                    // Requests; the replica beside this machine hears those.
                    Message::Read { .. }
                    | Message::Scan { .. }
                    | Message::ClockProposal { .. }
                    | Message::ClockQuery { .. }
                    | Message::JournalKnown { .. }
                    | Message::Prepare { .. }
                    | Message::Recover { .. }
                    | Message::Log { .. }
                    | Message::InvokeFallback { .. }
                    | Message::ElectFallback { .. }
                    | Message::DecideFallback { .. }
                    | Message::StatusQuery { .. }
                    | Message::StatusReply { .. }
                    | Message::CommitsQuery { .. }
                    | Message::CommitsReply { .. }
                    | Message::TransactionsQuery { .. }
                    | Message::TransactionsReply { .. }
                    | Message::VersionsQuery { .. }
                    | Message::VersionsReply { .. }
                    | Message::UndecidedQuery { .. }
                    | Message::UndecidedReply { .. }
                    | Message::Writeback { .. }
                    | Message::CommitNotice { .. } => {}
                }
            }
            Input::Message { .. } => {}
            Input::Tick => {
                while let Some(timer) = self.timers.expire(now) {
                    match timer {
                        Timer::Clocks => self.ask_clocks(now, outbox),
                        // The step is what was wanted.
                        Timer::ClockTold => {}
                        Timer::ReadEscalation(number) => self.on_read_escalation(now, number, outbox),
                        Timer::ScanEscalation(number) => self.on_scan_escalation(now, number, outbox),
                        Timer::ReadValidation(number) => self.on_validation_over(now, number, outbox),
                        Timer::FastPathWait(id) => self.on_fast_path_wait_over(now, id, outbox),
                        Timer::Evidence(id) => self.show_evidence(id, outbox),
                        Timer::Dependencies(id) => self.finish_dependencies(now, id, outbox),
                        Timer::Retry(id) => self.on_retry(now, id, outbox),
                    }
                }
            }
        }
    }

    fn end_turn(&mut self, now: Time, _outbox: &mut OutboxOf<Self>) {
        if self.clocks.as_mut().is_some_and(ReplicaClocks::end_turn) {
            self.timers.set(Timer::ClockTold, now);
        }
    }

    fn deadline(&self) -> Option<Time> {
        self.timers.next()
    }
}

impl Durable for Coordinator {
    type Failure = std::convert::Infallible;

    /// A coordinator keeps nothing: whatever it leaves, the replicas can finish.
    fn persist(&mut self) -> Result<(), Self::Failure> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::transaction::Write;
    use types::{ClientId, ClientLimits, ClusterId, Key, Permission, Placement, Timestamp};

    use super::*;

    /// A client's coordinator; replicas hold it to these limits.
    fn coordinator(limits: ClientLimits, options: CoordinatorOptions) -> Coordinator {
        let permission =
            Permission { public_key: [9; 32], read_prefixes: vec![Key::default()], write_prefixes: vec![Key::default()], limits };
        let keys = (0..6).map(|index| [index; 32]).collect();
        let clients = vec![(ClientId(1), permission)];
        let cluster = Cluster::new(ClusterId::new([1; 16]), 1, Placement::Hash, vec![keys], clients).expect("the parts fit");
        Coordinator::new(Arc::new(cluster), options)
    }

    fn writing(coordinator: &Coordinator, keys: usize) -> Transaction {
        let writes = (0..keys).map(|key| Write { key: Key::from(format!("{key:03}").as_str()), value: None }).collect();
        Transaction::new(coordinator.cluster.id(), Timestamp::new(1, ClientId(1)), vec![], writes).expect("it is small")
    }

    #[test]
    fn commits_of_one_shard_are_relayed_where_nobody_waits_or_owes_for_it() {
        let relays = |limits, options, keys| {
            let coordinator = coordinator(limits, options);
            coordinator.relays_of_one_shard(&writing(&coordinator, keys))
        };
        let (free, on) = (ClientLimits::default(), CoordinatorOptions::default());
        assert!(relays(free, on, 1) && relays(free, on, RELAYED_KEYS_MAX));
        assert!(!relays(free, on, RELAYED_KEYS_MAX + 1));
        assert!(!relays(ClientLimits { transactions: Some(100), ..free }, on, 1));
        assert!(relays(ClientLimits { keys: Some(100), ..free }, on, 1));
        assert!(!relays(free, CoordinatorOptions { relay_one_shard: false, ..on }, 1));
        let mut contended = coordinator(free, on);
        (0..20).for_each(|_| contended.contention.note(true));
        assert!(!contended.relays_of_one_shard(&writing(&contended, 1)));
    }
}
