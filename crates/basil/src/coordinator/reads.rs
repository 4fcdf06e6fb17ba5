//! How the coordinator reads (Basil §4.1), whom it asks and when it asks more of them; and how it commits what has only read.
//! What the replies for one key amount to is in [`crate::reading`].
//!
//! Whoever reads the past ([`ReadMode::is_as_of`]) has nothing to commit: it is told of a key once enough replicas validate what they show
//! (`docs/protocols/basil.md`, "Reading the past"). Until then it finishes the writers in its way, and asks again.

use std::collections::BTreeMap;

use engine::ReadMode;
use foldhash::{HashMap, HashMapExt as _};
use machine::{Time, Voters};
use mutants::{Mutant, broken};
use types::limits::READ_KEYS_MAX;
use types::{Key, Party, ReplicaId, ShardId, Timestamp};

use super::{Coordinator, Event, Failure, Out, Timer};
use crate::adaptive_timeout::wait_us;
use crate::certificate::Decision;
use crate::commit_relay::RecentCommits;
use crate::lost_reads::Finishes;
use crate::message::{Message, ReadResult, Refusal};
use crate::quorum::Quorums;
use crate::read_only::{ReadValidation, Verdict};
use crate::reading::{Choice, KeyReplies, ReadFound, last_version};
use crate::round_trip::RequestKind;
use crate::transaction::Transaction;

/// A read's wait is doubled so many times at most.
const READ_ROUNDS_DOUBLED_MAX: u32 = 6;
/// For how long a read is settled at most that need not be, in milliseconds: what no author brought is voted down in less, even where it comes to light late.
const SETTLE_MS_MAX: u64 = 5_000;
/// In so many rounds of asking a read is settled by `4f + 1` replicas, and then by fewer.
const SETTLE_ROUNDS: u32 = 3;

/// A read, of keys in one or more shards.
#[derive(Debug)]
pub(super) struct ReadOperation {
    timestamp: Timestamp,
    keys: Vec<Key>,
    mode: ReadMode,
    /// Whether it is settled ([`crate::lost_reads`]).
    settles: bool,
    found: HashMap<Key, ReadFound>,
    requests_open: usize,
    started: Time,
}

/// The part of a read that one shard answers.
#[derive(Debug)]
pub(super) struct ReadRequest {
    operation: u64,
    shard: ShardId,
    keys: Vec<KeyReplies>,
    asked: Voters,
    replied: Voters,
    /// Who was asked at first, and has not answered since.
    timed: (Time, Voters),
    /// What this round's refusals were.
    refusals: Vec<Refusal>,
    rounds: u32,
    finishes: Finishes,
}

impl ReadRequest {
    /// What the answers so far amount to. Nobody depends on what this process has itself seen commit, though not all have heard of it.
    fn choices(&self, needed: usize, quorums: Quorums, fresh: &RecentCommits) -> Vec<Choice> {
        let has_committed = |transaction: &Transaction| fresh.contains(transaction.id());
        self.keys.iter().map(|replies| replies.choose(needed, quorums, has_committed)).collect()
    }

    /// The undecided writers of its keys that a correct replica has named.
    fn in_the_way(&self, quorums: Quorums) -> Vec<Transaction> {
        let named = self.keys.iter().flat_map(KeyReplies::prepared).filter(|(_, voters)| voters.count() >= quorums.weak());
        let mut named: Vec<Transaction> = named.map(|(transaction, _)| transaction.clone()).collect();
        named.sort_unstable_by_key(Transaction::id);
        named.dedup_by_key(|transaction| transaction.id());
        named
    }

    /// True if all keys have their answer and more replies could still validate those reads that are not: the replicas that contradict
    /// them are too few to include a correct one.
    fn may_settle(&self, choices: &[Choice], quorums: Quorums) -> bool {
        let lacking = |(replies, choice): (&KeyReplies, &Choice)| match choice {
            Choice::Newest(found) if found.dependency.is_some() => Some(false),
            Choice::Newest(found) if found.validated.count() >= quorums.validation() => None,
            Choice::Newest(found) => Some(replies.contradicted(found) < quorums.weak()),
            Choice::WeakQuorum(_) | Choice::Nothing => Some(false),
        };
        let mut lacking = self.keys.iter().zip(choices).filter_map(lacking).peekable();
        lacking.peek().is_some() && lacking.all(|hope| hope)
    }
}

/// Whether nothing that ever commits can change what `choices` say: each is committed, and validated by `needed`.
fn are_final(choices: &[Choice], needed: usize) -> bool {
    let needed = if broken(Mutant::AsOfUnvalidated) { 0 } else { needed };
    choices.iter().all(|choice| match choice {
        Choice::Newest(found) | Choice::WeakQuorum(found) => found.dependency.is_none() && found.validated.count() >= needed,
        Choice::Nothing => false,
    })
}

/// Whether too many replicas promise nothing for now: what they say cannot be settled.
fn are_withheld(choices: &[Choice]) -> bool {
    choices.iter().any(|choice| match choice {
        Choice::Newest(found) | Choice::WeakQuorum(found) => found.is_withheld,
        Choice::Nothing => false,
    })
}

impl Coordinator {
    pub(super) fn on_read_command(
        &mut self,
        now: Time,
        operation: u64,
        timestamp: Timestamp,
        keys: Vec<Key>,
        mode: ReadMode,
        out: &mut Out,
    ) {
        let mut by_shard: BTreeMap<ShardId, Vec<Key>> = BTreeMap::new();
        for key in &keys {
            by_shard.entry(self.cluster.shard_of(key)).or_default().push(key.clone());
        }
        let mut requests: Vec<(ShardId, Vec<Key>)> = Vec::new();
        for (shard, mut keys) in by_shard {
            keys.sort_unstable();
            keys.dedup();
            requests.extend(keys.chunks(READ_KEYS_MAX).map(|part| (shard, part.to_vec())));
        }
        if requests.is_empty() {
            out.emit(Event::Read { operation, result: Ok(Vec::new()) });
            return;
        }
        // What is read of the past is final in any case.
        let settles = !mode.is_as_of() && self.lost_reads.are_lost(&keys);
        self.counts.settled_reads += u64::from(settles);
        let found = HashMap::with_capacity(keys.len());
        let read = ReadOperation { timestamp, keys, mode, settles, found, requests_open: requests.len(), started: now };
        self.operations.insert(operation, read);
        for (shard, keys) in requests {
            self.request(now, operation, shard, keys.into_iter().map(KeyReplies::new).collect(), out);
        }
    }

    fn request(&mut self, now: Time, operation: u64, shard: ShardId, keys: Vec<KeyReplies>, out: &mut Out) {
        self.requests_made += 1;
        let number = self.requests_made;
        let (asked, replied) = (Voters::default(), Voters::default());
        let timed = (now, Voters::default());
        let (refusals, finishes) = (Vec::new(), Finishes::default());
        self.requests.insert(number, ReadRequest { operation, shard, keys, asked, replied, timed, refusals, rounds: 0, finishes });
        let least = match self.operations.get(&operation) {
            Some(operation) if operation.settles => self.quorums.replicas(),
            Some(operation) if operation.mode.is_read_only() => self.quorums.validation(),
            _ => 0,
        };
        self.ask(now, number, self.options.read_quorum.asked(self.cluster.faults()).max(least), out);
        if let Some(request) = self.requests.get_mut(&number) {
            request.timed.1 = request.asked;
        }
    }

    /// Sends a read to up to `count` replicas that were not asked yet, in the order of [`Coordinator::by_choice`].
    fn ask(&mut self, now: Time, number: u64, count: usize, out: &mut Out) {
        let Some(shard) = self.requests.get(&number).map(|request| request.shard) else { return };
        let by_choice = self.by_choice(now, shard, number, count);
        let Some(request) = self.requests.get_mut(&number) else { return };
        let Some(operation) = self.operations.get(&request.operation) else { return };
        let mut left = count;
        for replica in by_choice {
            if left == 0 {
                break;
            }
            if request.asked.insert(replica.index) {
                left -= 1;
                let keys = request.keys.iter().map(|replies| replies.key().clone()).collect();
                out.send(Party::Replica(replica), Message::Read { request: number, timestamp: operation.timestamp, keys });
            }
        }
        // What was in the way of one that is settled hides what lies below it.
        let rounds = if operation.settles { request.finishes.idle_rounds } else { request.rounds };
        self.timers.set(Timer::ReadEscalation(number), now.after_us(self.read_wait_us(shard, rounds)));
    }

    /// The replicas of `shard` as they are asked when `count` are wanted: those thought to be up first, and of them the nearest; and last those
    /// that have named what never committed.
    pub(super) fn by_choice(&self, now: Time, shard: ShardId, number: u64, count: usize) -> Vec<ReplicaId> {
        let mut replicas: Vec<ReplicaId> = self.cluster.replicas_of(shard).collect();
        let suspects = self.suspects[usize::from(shard.0)];
        let first = usize::try_from(number % replicas.len() as u64).unwrap_or(0);
        replicas.rotate_left(first);
        let near_us = self.round_trips.near_us(shard, count);
        // Stable: those who are as good as one another take turns.
        let may_be_silent = |replica: &ReplicaId| suspects.contains(replica.index) || !self.connections.has(*replica);
        replicas
            .sort_by_key(|replica| (self.doubts.has(*replica, now), may_be_silent(replica), !self.round_trips.is_near(*replica, near_us)));
        replicas
    }

    /// How long a read waits for its answers.
    pub(super) fn read_wait_us(&self, shard: ShardId, rounds: u32) -> u64 {
        let least_us = self.options.read_escalation_ms * 1_000;
        wait_us(self.round_trips.late_us(shard, RequestKind::Read), least_us, rounds, READ_ROUNDS_DOUBLED_MAX)
    }

    /// A reply to a read also says what time it is.
    pub(super) fn note_clock(&mut self, now: Time, from: ReplicaId, number: u64, clock: u64) {
        let asked = self.requests.get(&number).map(|request| (request.shard, request.timed));
        let Some((shard, (asked_at, timed))) = asked.or_else(|| self.page_asked(number)) else { return };
        if from.shard == shard && timed.contains(from.index) {
            self.take_clock(now, from, asked_at, clock);
        }
    }

    pub(super) fn on_read_reply(
        &mut self,
        now: Time,
        from: ReplicaId,
        number: u64,
        (results, prepared, is_promised): (Vec<ReadResult>, &[Transaction], bool),
        out: &mut Out,
    ) {
        let Some(request) = self.requests.get_mut(&number) else {
            self.on_confirmed(now, from, number, is_promised.then_some((&results, prepared)), out);
            return;
        };
        let Some(operation) = self.operations.get(&request.operation) else { return };
        let fits = from.shard == request.shard && request.asked.contains(from.index) && results.len() == request.keys.len();
        if !fits || !request.replied.insert(from.index) {
            return;
        }
        let (asked_at, timed) = &mut request.timed;
        if timed.contains(from.index) {
            timed.remove(from.index);
            self.round_trips.note(from, RequestKind::Read, now.since(*asked_at));
        }
        for (replies, result) in request.keys.iter_mut().zip(results) {
            let writer = result.pending.writer(prepared);
            replies.add(from.index, (result, is_promised), writer, operation.timestamp);
        }
        // It is up, and answers reads in time.
        if let Some(suspects) = self.suspects.get_mut(usize::from(from.shard.0)) {
            suspects.remove(from.index);
        }
        self.evaluate_read(now, number, out);
    }

    /// Ends a read, asks more replicas, or goes on waiting, as the answers so far allow.
    fn evaluate_read(&mut self, now: Time, number: u64, out: &mut Out) {
        let Some(request) = self.requests.get(&number) else { return };
        let Some(operation) = self.operations.get(&request.operation) else { return };
        let needed = self.options.read_quorum.needed(self.quorums);
        if request.replied.count() < needed {
            return;
        }
        let choices = request.choices(needed, self.quorums, &self.recent_commits);
        let newest = choices.iter().all(|choice| matches!(choice, Choice::Newest(_)));
        let has_weak_quorum = choices.iter().all(|choice| !matches!(choice, Choice::Nothing));
        let all_replied = self.connections.have_all_replied(request.shard, request.asked, request.replied);
        let everyone = self.quorums.replicas();
        let settles = operation.settles && !are_withheld(&choices);
        if let Some(needed) =
            self.settled_by(now, (operation.mode, settles), operation.started, request.rounds > 0 || all_replied, request.rounds)
        {
            if are_final(&choices, needed) {
                self.request_done(now, number, choices, out);
            } else if all_replied && request.asked.count() < everyone {
                self.ask(now, number, everyone, out);
            }
        } else if newest && operation.mode.is_read_only() && request.may_settle(&choices, self.quorums) {
            // Another reply may save the transaction from being prepared.
            if all_replied && request.asked.count() < everyone {
                self.ask(now, number, everyone, out);
            }
        } else if newest || (has_weak_quorum && all_replied && request.asked.count() >= everyone) {
            self.request_done(now, number, choices, out);
        } else if all_replied && request.asked.count() < everyone {
            // Somebody names a newer version than is vouched for. Of a committed one at least 2f + 1 correct replicas
            // know, so that all together can vouch for it.
            self.counts.read_escalations += 1;
            self.ask(now, number, everyone, out);
        }
        // Else writes are on their way, or somebody is silent: the timer goes on.
    }

    fn request_done(&mut self, now: Time, number: u64, choices: Vec<Choice>, out: &mut Out) {
        let Some(request) = self.requests.remove(&number) else { return };
        self.timers.cancel(&Timer::ReadEscalation(number));
        let Some(operation) = self.operations.get_mut(&request.operation) else { return };
        let mut refuted = Voters::default();
        for (replies, choice) in request.keys.iter().zip(choices) {
            if let Choice::Newest(found) | Choice::WeakQuorum(found) = choice {
                refuted = refuted.or(replies.refuted(&found, self.quorums));
                operation.found.insert(found.key.clone(), found);
            }
        }
        self.doubts.note(request.shard, refuted, now);
        operation.requests_open -= 1;
        if operation.requests_open > 0 {
            return;
        }
        let (timestamp, mode) = (operation.timestamp, operation.mode);
        if self.begins_too_low(mode, timestamp) {
            self.read_failed(request.operation, Failure::TooLow, out);
            return;
        }
        let Some(mut operation) = self.operations.remove(&request.operation) else { return };
        let found = operation.keys.iter().filter_map(|key| operation.found.remove(key)).collect();
        out.emit(Event::Read { operation: request.operation, result: Ok(found) });
    }

    pub(super) fn on_read_escalation(&mut self, now: Time, number: u64, out: &mut Out) {
        let Some(request) = self.requests.get(&number) else { return };
        let Some(operation) = self.operations.get(&request.operation) else { return };
        if now.since(operation.started) >= self.options.timeout_ms * 1_000_000 {
            let operation = request.operation;
            self.read_failed(operation, Failure::TimedOut(None), out);
            return;
        }
        let needed = self.options.read_quorum.needed(self.quorums);
        let choices = request.choices(needed, self.quorums, &self.recent_commits);
        let (mode, settles) = (operation.mode, operation.settles && !are_withheld(&choices));
        let may_wait = mode.is_read_only() && request.rounds == 0 && request.asked.count() < self.quorums.replicas();
        let settled_by = self.settled_by(now, (mode, settles), operation.started, true, request.rounds);
        let is_enough = match settled_by {
            Some(needed) => are_final(&choices, needed),
            None => !choices.contains(&Choice::Nothing) && !may_wait,
        };
        if is_enough {
            self.request_done(now, number, choices, out);
            return;
        }
        let Some(request) = self.requests.get_mut(&number) else { return };
        let in_the_way = match settled_by {
            Some(_) if mode.is_as_of() => request.in_the_way(self.quorums),
            Some(_) => request.finishes.take(request.keys.iter().flat_map(KeyReplies::prepared), self.quorums.weak()),
            None => {
                request.finishes.idle_rounds = request.rounds;
                Vec::new()
            }
        };
        let shard = usize::from(request.shard.0);
        for replica in self.cluster.replicas_of(request.shard) {
            if request.asked.contains(replica.index) && !request.replied.contains(replica.index) {
                self.suspects[shard].insert(replica.index);
            }
        }
        request.rounds += 1;
        if request.asked.count() >= self.quorums.replicas() {
            // All were asked: ask all again, since what they have may have moved on. What they said stands until then.
            request.asked = Voters::default();
            request.replied = Voters::default();
            request.refusals.clear();
            self.counts.retries += 1;
        } else {
            self.counts.read_escalations += 1;
        }
        let everyone = self.quorums.replicas();
        self.ask(now, number, everyone, out);
        self.finish_in_the_way(now, in_the_way, out);
    }

    /// How many replicas are to validate a read before it is told, if that matters, after so many rounds of asking: all, until those who can
    /// have answered. What is settled then needs as many as make the votes on it certain, whatever `f` of them say; but some may be silent.
    pub(super) fn settled_by(
        &self,
        now: Time,
        (mode, settles): (ReadMode, bool),
        started: Time,
        have_answered: bool,
        rounds: u32,
    ) -> Option<usize> {
        if mode.is_as_of() {
            return Some(self.quorums.validation());
        }
        let by = match rounds {
            _ if !have_answered => self.quorums.replicas(),
            _ if rounds < SETTLE_ROUNDS => self.quorums.replicas() - self.cluster.faults(),
            _ => self.quorums.validation(),
        };
        (settles && now.since(started) < SETTLE_MS_MAX * 1_000_000).then_some(by)
    }

    /// Finishes what keeps a read from being final.
    pub(super) fn finish_in_the_way(&mut self, now: Time, writers: Vec<Transaction>, out: &mut Out) {
        for writer in writers.into_iter().filter(|_| !broken(Mutant::AsOfWriterLeft)) {
            self.on_finish_command(now, writer, out);
        }
    }

    /// Whether a transaction that has read at `timestamp` has to begin again, as it may lie below what was acknowledged before it began. A
    /// reader of the past lies there by choice; but if it chose by what the cluster's clock showed, that was not to be too little.
    pub(super) fn begins_too_low(&self, mode: ReadMode, timestamp: Timestamp) -> bool {
        match mode {
            ReadMode::AsOf => broken(Mutant::AsOfBegunAgain) && self.is_too_low(timestamp),
            ReadMode::Ago { now } => !broken(Mutant::AgoUnchecked) && self.is_too_low(Timestamp { time: now, ..timestamp }),
            ReadMode::Interactive | ReadMode::ReadOnly => self.is_too_low(timestamp),
        }
    }

    pub(super) fn on_read_refused(&mut self, now: Time, from: ReplicaId, number: u64, refusal: Refusal, out: &mut Out) {
        if self.on_scan_refused(now, from, number, refusal, out) {
            return;
        }
        let Some(request) = self.requests.get_mut(&number) else {
            self.on_confirmed(now, from, number, None, out);
            return;
        };
        if from.shard != request.shard || !request.asked.contains(from.index) || !request.replied.insert(from.index) {
            return;
        }
        request.refusals.push(refusal);
        let Some(refusal) = Refusal::believed(&request.refusals, refusal, self.quorums) else {
            self.evaluate_read(now, number, out);
            return;
        };
        let (operation, shard) = (request.operation, request.shard);
        if refusal != Refusal::TooLarge || request.keys.len() < 2 {
            self.read_failed(operation, Failure::Refused(refusal), out);
            return;
        }
        // Too much for one reply: ask for each half on its own.
        let Some(mut request) = self.requests.remove(&number) else { return };
        self.timers.cancel(&Timer::ReadEscalation(number));
        let second = request.keys.split_off(request.keys.len() / 2);
        if let Some(operation) = self.operations.get_mut(&operation) {
            operation.requests_open += 1;
        }
        self.request(now, operation, shard, request.keys, out);
        self.request(now, operation, shard, second, out);
    }

    fn read_failed(&mut self, operation: u64, failure: Failure, out: &mut Out) {
        if self.operations.remove(&operation).is_none() {
            return;
        }
        let mut left: Vec<u64> = Vec::new();
        self.requests.retain(|number, request| {
            let keep = request.operation != operation;
            if !keep {
                left.push(*number);
            }
            keep
        });
        for number in left {
            self.timers.cancel(&Timer::ReadEscalation(number));
        }
        out.emit(Event::Read { operation, result: Err(failure) });
    }
}

/// Committing a transaction that has only read. The rule, which is beyond the paper, is in [`crate::read_only`].
impl Coordinator {
    pub(super) fn on_commit_reads_command(
        &mut self,
        now: Time,
        operation: u64,
        transaction: Transaction,
        validated: Vec<Voters>,
        out: &mut Out,
    ) {
        let read_validation = ReadValidation::new(&self.cluster, self.quorums, operation, transaction, validated);
        match read_validation.verdict(self.quorums) {
            Verdict::Validated => self.validated(operation, &read_validation.transaction, out),
            Verdict::NotValidated => self.on_commit_command(now, Some(operation), read_validation.transaction, Vec::new(), out),
            Verdict::Open => {
                self.counts.validation_rounds += 1;
                self.requests_made += 1;
                let (request, timestamp) = (self.requests_made, read_validation.transaction.timestamp());
                let mut longest_us = 0;
                for (replica, keys) in read_validation.questions(&self.cluster) {
                    longest_us = longest_us.max(self.read_wait_us(replica.shard, 0));
                    out.send(Party::Replica(replica), Message::Read { request, timestamp, keys });
                }
                self.read_validations.insert(request, read_validation);
                let wait_us = longest_us.max(self.options.retry_ms * 1_000);
                self.timers.set(Timer::ReadValidation(request), now.after_us(wait_us));
            }
        }
    }

    /// An answer, and the prepared transactions that it names; nothing when it is refused.
    pub(super) fn on_confirmed(
        &mut self,
        now: Time,
        from: ReplicaId,
        number: u64,
        answer: Option<(&[ReadResult], &[Transaction])>,
        out: &mut Out,
    ) {
        let Some(read_validation) = self.read_validations.get_mut(&number) else { return };
        let last_versions = |(results, prepared): (&[ReadResult], &[Transaction])| -> Vec<Option<Timestamp>> {
            results.iter().map(|result| last_version(result, result.pending.writer(prepared))).collect()
        };
        read_validation.answer(from, answer.map(last_versions).as_deref());
        match read_validation.verdict(self.quorums) {
            Verdict::Open => {}
            Verdict::NotValidated => self.on_validation_over(now, number, out),
            Verdict::Validated => {
                let Some(read_validation) = self.read_validations.remove(&number) else { return };
                self.timers.cancel(&Timer::ReadValidation(number));
                self.validated(read_validation.operation, &read_validation.transaction, out);
            }
        }
    }

    /// It cannot be validated, or not soon: it is prepared like any other.
    pub(super) fn on_validation_over(&mut self, now: Time, number: u64, out: &mut Out) {
        let Some(read_validation) = self.read_validations.remove(&number) else { return };
        self.timers.cancel(&Timer::ReadValidation(number));
        self.on_commit_command(now, Some(read_validation.operation), read_validation.transaction, Vec::new(), out);
    }

    fn validated(&mut self, operation: u64, transaction: &Transaction, out: &mut Out) {
        if self.is_too_low(transaction.timestamp()) {
            out.emit(Event::Ended { operation, result: Err(Failure::TooLow) });
            return;
        }
        self.counts.validated += 1;
        self.lost_reads.note(operation, transaction, Decision::Commit);
        out.emit(Event::Validated { operation });
    }
}
