//! How the coordinator brings a transaction to its end: ST1, ST2 and writeback (basil.txt §4.2, §4.3).

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::transaction::Transaction;
use machine::{Time, Voters};
use mutants::{Mutant, broken};
use types::{Party, ReplicaId, TransactionId};

use super::attempt::{CommitAttempt, FastPathWait};
use super::{Coordinator, Event, Failure, FastPath, Out, Path, Timer};
use crate::adaptive_timeout::wait_us;
use crate::certificate::{Certificate, Decision, Proof, SignedLogged, SignedVote, Vote, VoteStatement, logging_shard};
use crate::check;
use crate::commit_relay::Relays;
use crate::message::{Conflict, Message, Refusal};
use crate::recovery::LoggedReplies;
use crate::round_trip::RequestKind;
use crate::tally::Tally;

/// A commit's wait is doubled so many times at most.
const RETRIES_DOUBLED_MAX: u32 = 4;
/// The most stalled transactions that the votes on one transaction may name.
const STALLED_MAX: usize = 8;

impl Coordinator {
    /// Sets a transaction on its way, for whoever asks for it or, where nobody does, for its own sake.
    pub(super) fn on_commit_command(
        &mut self,
        now: Time,
        operation: Option<u64>,
        transaction: Transaction,
        dependencies: Vec<Transaction>,
        out: &mut Out,
    ) {
        let id = transaction.id();
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
            too_old: BTreeMap::new(),
            stalled: Vec::new(),
            was_finish: operation.is_none(),
            fast_path_wait: FastPathWait::NotBegun,
            started: now,
            asked_at: now,
            retries: 0,
            commit_quorum_at: None,
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

    /// ST1R (§4.2 (4)), or the same for RP.
    pub(super) fn on_voted(&mut self, now: Time, from: ReplicaId, vote: SignedVote, conflict: Option<Conflict>, out: &mut Out) {
        let SignedVote { replica, statement: VoteStatement { id, vote }, signature } = vote;
        let Some(attempt) = self.attempts.get_mut(&id) else { return };
        let Some(tally) = attempt.tallies.iter_mut().find(|tally| tally.shard() == replica.shard) else { return };
        if from != replica || !tally.count(replica.index, vote, signature) {
            return;
        }
        self.round_trips.note(replica, RequestKind::Vote, now.since(attempt.asked_at));
        let mut stalled = None;
        let in_the_way = |other: &Transaction| {
            let conflicts = check::conflict_at(&self.cluster, replica.shard, &attempt.transaction, other);
            vote == Vote::Abort && (conflicts || broken(Mutant::ConflictBelieved))
        };
        match conflict {
            Some(Conflict::Committed { transaction, certificate }) if in_the_way(&transaction) => {
                tally.conflicts_with(transaction, certificate);
            }
            Some(Conflict::Stalled { transaction }) if in_the_way(&transaction) => {
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
        self.evaluate(now, id, out);
        if let Some(transaction) = stalled {
            self.on_finish_command(now, transaction, out); // Whoever is stopped by a stalled transaction finishes it (§5).
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
                let lag = attempt.commit_quorum_at.map_or(0, |at| now.since(at));
                for shard in &attempt.participants {
                    self.adaptive_timeout[usize::from(shard.0)].unanimous(lag);
                }
            }
            self.conclude(now, Arc::new(Certificate { id, decision, proof: Proof::Fast(proofs) }), Path::Fast, out);
            return;
        }
        if attempt.logging.is_some() {
            return;
        }
        let Some(decision) = attempt.slow_decision(quorums) else { return };
        if attempt.commit_quorum_at.is_none() && decision == Decision::Commit {
            attempt.commit_quorum_at = Some(now);
        }
        let hopeful = self.options.fast_path == FastPath::On && attempt.may_end_fast(decision, quorums);
        match attempt.fast_path_wait {
            _ if !hopeful => self.log(now, id, decision, out),
            FastPathWait::Over => self.log(now, id, decision, out),
            FastPathWait::Running => {}
            FastPathWait::NotBegun => {
                // Waiting for the last votes is worth as long as logging would take.
                let logging_us = logging_shard(&attempt.participants, id).map_or(0, |shard| self.round_trips.round_us(shard));
                let adaptive_timeout =
                    attempt.participants.iter().map(|shard| self.adaptive_timeout[usize::from(shard.0)].begin(logging_us)).max();
                let wait_us = adaptive_timeout.unwrap_or(0);
                if wait_us == 0 {
                    attempt.fast_path_wait = FastPathWait::Over;
                    self.log(now, id, decision, out);
                } else {
                    attempt.fast_path_wait = FastPathWait::Running;
                    self.timers.set(Timer::FastPathWait(id), now.after_us(wait_us));
                }
            }
        }
    }

    pub(super) fn on_fast_path_wait_over(&mut self, now: Time, id: TransactionId, out: &mut Out) {
        let Some(attempt) = self.attempts.get_mut(&id) else { return };
        attempt.fast_path_wait = FastPathWait::Over;
        for tally in &attempt.tallies {
            if tally.count_heard() < self.quorums.replicas() {
                self.adaptive_timeout[usize::from(tally.shard().0)].missed();
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
    pub(super) fn on_logged(&mut self, now: Time, from: ReplicaId, logged: SignedLogged, out: &mut Out) {
        let (id, replica) = (logged.statement.id, logged.replica);
        let Some(attempt) = self.attempts.get_mut(&id) else { return };
        let is_own = from == replica && logging_shard(&attempt.participants, id) == Some(replica.shard);
        if !is_own || !attempt.logged.note(logged) {
            return;
        }
        if let Some((decision, set)) = attempt.logged.agreed(self.quorums) {
            // §4.2 (7), §5 (5)
            self.conclude(now, Arc::new(Certificate { id, decision, proof: Proof::Logged(set) }), Path::Slow, out);
        } else if attempt.elections == 0 && attempt.logged.count() >= self.quorums.elected() && attempt.logged.are_split(self.quorums) {
            self.invoke_fallback(now, id, out); // Not while too few to elect anybody are known to have logged anything.
        } else {
            self.evaluate(now, id, out);
        }
    }

    /// Writeback (§4.3): tells whoever asked for it how it ends, and every replica, or those who tell the others.
    pub(super) fn conclude(&mut self, now: Time, certificate: Arc<Certificate>, path: Path, out: &mut Out) {
        let id = certificate.id;
        let Some(attempt) = self.take(id) else { return };
        if !attempt.was_finish && attempt.dependencies.is_empty() && path != Path::Recovered {
            self.usual_commit.took(now.since(attempt.started));
            self.usual_lifetime.took(now.0.saturating_sub(attempt.transaction.timestamp().time));
        }
        match path {
            Path::Fast => self.counts.fast += 1,
            Path::Slow => self.counts.slow += 1,
            Path::Recovered => self.counts.recovered += 1,
        }
        // All have voted then. A proof of one shard is short, and what others left has been left long enough.
        let is_relayed = path == Path::Fast && certificate.decision == Decision::Commit && !attempt.was_finish;
        let relays = Relays::of(&self.cluster, &attempt.transaction).filter(|_| is_relayed);
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

    pub(super) fn on_refused(&mut self, from: ReplicaId, id: TransactionId, refusal: Refusal, out: &mut Out) {
        let Some(attempt) = self.attempts.get_mut(&id) else { return };
        if refusal == Refusal::AbandonLimit {
            self.counts.abandon_limited += 1;
            if self.counts.abandon_limited.is_power_of_two() {
                tracing::warn!(replica = %from, "takes no new transactions for a while: this client left too many for others to end");
            }
        }
        // Asked again, a replica also refuses what it voted on long ago and has forgotten: only the first answer
        // says that it never voted.
        let is_late = attempt.retries > 0 && !broken(Mutant::LateRefusalBelieved);
        if refusal != Refusal::TooOld || is_late || !attempt.participants.contains(&from.shard) {
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
    pub(super) fn set_retry(&mut self, now: Time, id: TransactionId, times: u32) {
        let Some(attempt) = self.attempts.get(&id) else { return };
        let late_us = attempt.participants.iter().map(|shard| 2 * self.round_trips.late_us(*shard, RequestKind::Vote)).max();
        let wait_us = wait_us(late_us.unwrap_or(0), self.options.retry_ms * 1_000, times, RETRIES_DOUBLED_MAX);
        self.timers.set(Timer::Retry(id), now.after_us(wait_us));
    }

    pub(super) fn on_retry(&mut self, now: Time, id: TransactionId, out: &mut Out) {
        let Some(attempt) = self.attempts.get_mut(&id) else { return };
        if now.since(attempt.started) >= self.options.timeout_ms * 1_000_000 {
            self.give_up(id, Failure::TimedOut, out);
            return;
        }
        self.counts.retries += 1;
        attempt.retries += 1;
        let (logging, retries) = (attempt.logging, attempt.retries);
        // So many answers would make a certificate if they were equal: the others may never come.
        let is_split = attempt.elections > 0 || attempt.logged.count() >= self.quorums.logged();
        self.set_retry(now, id, retries);
        match logging {
            None => self.ask_votes(id, out),
            Some(_) if is_split => {}
            Some(decision) => self.log(now, id, decision, out),
        }
        if is_split {
            self.invoke_fallback(now, id, out); // §5 (5), not settled: (1) again, with the views heard since.
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
        for timer in [Timer::FastPathWait(id), Timer::Dependencies(id), Timer::Retry(id)] {
            self.timers.cancel(&timer);
        }
        if attempt.was_finish {
            self.finishing -= 1;
        }
        Some(attempt)
    }
}
