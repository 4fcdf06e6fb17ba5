//! The coordinator: drives reads and decisions for one process, as many at once as it is given (basil.txt §4, §5).
//!
//! A client runs one for its own transactions. A replica runs one beside itself, to finish those that others left.

use std::collections::BTreeMap;
use std::sync::Arc;

use crypto::Verified;
use foldhash::{HashMap, HashMapExt as _};
use machine::{Durable, Input, Machine, Outbox, Time, Timers, Voters};
use smallvec::SmallVec;
use types::mutant::{Mutant, broken};
use types::{Cluster, Key, Party, ReplicaId, ShardId, Timestamp, Transaction, TransactionId};

use crate::certificate::{Certificate, Decision, Proof, SignedLogged, SignedVote, Vote, VoteSet, VoteStatement, logging_shard};
use crate::check;
use crate::distance::{Asked, Distances};
use crate::message::{Conflict, Justified, Message, Newer, ReadResult, Refusal, Subject};
use crate::patience::{Patience, UsualTime};
use crate::quorum::Quorums;
use crate::read_only::{Confirmation, Verdict};
use crate::reading::{Choice, KeyReplies, ReadFound, ReadQuorum};
use crate::recovery::LoggedReplies;
use crate::tally::{Outcome, Tally};

/// How a coordinator is set. Every duration is in milliseconds.
#[derive(Clone, Copy, Debug)]
pub struct CoordinatorOptions {
    /// How many replicas a read asks at first.
    pub read_quorum: ReadQuorum,
    /// Whether unanimous votes end a transaction without logging; off only to measure what that saves (figure 6a).
    pub fast_path: FastPath,
    /// After how long at least a read asks the replicas it has not asked yet: later where they are known to be farther away.
    pub read_escalation_ms: u64,
    /// After how long at least an unanswered request is sent again, likewise; doubled each time.
    pub retry_ms: u64,
    /// After how long an operation is given up. The outcome of a commit is then unknown to this process.
    pub timeout_ms: u64,
}

impl Default for CoordinatorOptions {
    fn default() -> Self {
        Self { read_quorum: ReadQuorum::default(), fast_path: FastPath::On, read_escalation_ms: 20, retry_ms: 100, timeout_ms: 10_000 }
    }
}

/// Whether unanimous votes are enough.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FastPath {
    /// They are (§4.2).
    #[default]
    On,
    /// Every decision is logged.
    Off,
}

/// What its own side asks of a coordinator.
#[derive(Clone, Debug)]
pub enum Command {
    /// Read keys at a timestamp. Ends in [`Event::Read`].
    Read {
        /// The asker's number for it.
        operation: u64,
        /// The reader's timestamp.
        timestamp: Timestamp,
        /// The keys, each once.
        keys: Vec<Key>,
        /// Whether the transaction is known to write nothing: so many replicas are asked at once that it may then
        /// commit by this alone ([`crate::read_only`]).
        read_only: bool,
    },
    /// Bring a transaction to its end. Ends in [`Event::Ended`].
    Commit {
        /// The asker's number for it.
        operation: u64,
        /// The transaction.
        transaction: Transaction,
        /// The undecided transactions it read from, to be finished if nobody else does.
        dependencies: Vec<Transaction>,
    },
    /// Commit a transaction that has only read. Ends in [`Event::Settled`], or, when it had to be prepared, in [`Event::Ended`].
    CommitReads {
        /// The asker's number for it.
        operation: u64,
        /// The transaction.
        transaction: Transaction,
        /// For whom its reads are settled ([`crate::Buffer::settled`]).
        settled: Vec<Voters>,
    },
    /// Finish a transaction that somebody else left (§5). Nobody is told.
    Finish {
        /// The transaction.
        transaction: Transaction,
    },
}

/// How a transaction came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Path {
    /// The votes alone were durable: one round trip.
    Fast,
    /// The decision was logged: two round trips.
    Slow,
    /// Somebody else had finished it.
    Recovered,
}

/// Why an operation did not end as asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// So many replicas refuse it that it can never happen.
    Refused(Refusal),
    /// Too few replicas answered in time. A commit may still take place.
    TimedOut,
}

/// What a coordinator tells its own side.
#[derive(Clone, Debug)]
pub enum Event {
    /// A read is done.
    Read {
        /// The asker's number for it.
        operation: u64,
        /// What was found, in the order of the keys asked for.
        result: Result<Vec<ReadFound>, Failure>,
    },
    /// A transaction has ended.
    Ended {
        /// The asker's number for it.
        operation: u64,
        /// How, with the proof and the way there.
        result: Result<(Arc<Certificate>, Path), Failure>,
    },
    /// A transaction that only read has committed, without being prepared.
    Settled {
        /// The asker's number for it.
        operation: u64,
    },
}

/// What a coordinator has done since it started, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CoordinatorCounts {
    /// Transactions that only read and were not prepared.
    pub settled: u64,
    /// Transactions that only read and had to ask once more at commit, however that went.
    pub confirmed: u64,
    /// Transactions ended over the fast path.
    pub fast: u64,
    /// Transactions ended over the slow path.
    pub slow: u64,
    /// Transactions that somebody else had ended.
    pub recovered: u64,
    /// Transactions of others it set out to finish.
    pub finishes: u64,
    /// Transactions whose logged decisions did not come together, so that a leader had to be elected.
    pub fallbacks: u64,
    /// Requests sent again.
    pub retries: u64,
    /// Reads that had to ask more replicas.
    pub read_escalations: u64,
}

/// Transactions of others being finished at once; more wait until somebody meets them again.
const FINISHES_MAX: usize = 1_024;
/// What a transaction read from is given so many times as long to end as this process's own transactions usually take,
const DEPENDENCY_TIMES: u64 = 2;
/// but not less than this, in microseconds.
const DEPENDENCY_US_MIN: u64 = 2_000;
/// A commit's wait is doubled so many times at most.
const RETRIES_DOUBLED_MAX: u32 = 4;
/// A read's wait is doubled so many times at most.
const READ_ROUNDS_DOUBLED_MAX: u32 = 6;
/// The most stalled transactions that the votes on one transaction may name.
const STALLED_MAX: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    ReadEscalation(u64),
    Confirmation(u64),
    Grace(TransactionId),
    Dependencies(TransactionId),
    Retry(TransactionId),
}

/// A read, of keys in one or more shards.
#[derive(Debug)]
struct ReadOperation {
    timestamp: Timestamp,
    keys: Vec<Key>,
    read_only: bool,
    found: HashMap<Key, ReadFound>,
    requests_open: usize,
    started: Time,
}

/// The part of a read that one shard answers.
#[derive(Debug)]
struct ReadRequest {
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
}

impl ReadRequest {
    /// Whether, all keys having their answer, more replies could still settle those that are not: those who gainsay may all be liars.
    fn may_settle(&self, choices: &[Choice], quorums: Quorums) -> bool {
        let lacking = |(replies, choice): (&KeyReplies, &Choice)| match choice {
            Choice::Newest(found) if found.settled.count() >= quorums.settled() => None,
            Choice::Newest(found) => Some(replies.gainsaid(found) < quorums.vouched()),
            Choice::Vouched(_) | Choice::Nothing => Some(false),
        };
        let mut lacking = self.keys.iter().zip(choices).filter_map(lacking).peekable();
        lacking.peek().is_some() && lacking.all(|hope| hope)
    }
}

/// A transaction on its way to its end.
#[derive(Debug)]
struct Ending {
    /// Whom to tell; nobody when it is finished for its own sake.
    operations: SmallVec<[u64; 1]>,
    transaction: Transaction,
    dependencies: Vec<Transaction>,
    participants: Vec<ShardId>,
    tallies: Vec<Tally>,
    /// ST2 replies.
    logged: LoggedReplies,
    /// How often a fallback leader was called for.
    elections: u32,
    /// What this process asks to be logged, once it does.
    logging: Option<Decision>,
    /// Who refuses to judge it for being too old, by shard.
    too_old: BTreeMap<ShardId, Voters>,
    /// Transactions said to stand in its way and to be stalled, and by whom.
    stalled: Vec<(Transaction, Voters)>,
    /// Whether it was begun to finish what somebody else left.
    was_finish: bool,
    grace: Grace,
    started: Time,
    /// When everybody was first asked to vote.
    asked_at: Time,
    retries: u32,
    commit_quorum_at: Option<Time>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Grace {
    NotBegun,
    Running,
    Over,
}

/// Drives transactions for one process.
#[derive(Debug)]
pub struct Coordinator {
    cluster: Arc<Cluster>,
    quorums: Quorums,
    options: CoordinatorOptions,
    operations: HashMap<u64, ReadOperation>,
    requests: BTreeMap<u64, ReadRequest>,
    requests_made: u64,
    /// Read-only transactions that ask for what their reads lack, by the number of the request.
    confirmations: BTreeMap<u64, Confirmation>,
    endings: HashMap<TransactionId, Ending>,
    /// How many of them are finished for others.
    finishing: usize,
    timers: Timers<Timer>,
    patience: Vec<Patience>,
    distances: Distances,
    /// How long this process's own transactions take from ST1 to their end, when they wait for nobody else's,
    usual_end: UsualTime,
    /// and from their timestamps.
    usual_life: UsualTime,
    suspects: Vec<Voters>,
    counts: CoordinatorCounts,
}

type Out = Outbox<Coordinator>;

impl Coordinator {
    /// A coordinator for `cluster`, with nothing to do yet.
    #[must_use]
    pub fn new(cluster: Arc<Cluster>, options: CoordinatorOptions) -> Self {
        let shards = cluster.shards().count();
        let quorums = Quorums::new(cluster.faults());
        Self {
            distances: Distances::new(quorums, shards),
            quorums,
            cluster,
            options,
            operations: HashMap::new(),
            requests: BTreeMap::new(),
            requests_made: 0,
            confirmations: BTreeMap::new(),
            endings: HashMap::new(),
            finishing: 0,
            timers: Timers::default(),
            patience: vec![Patience::default(); shards],
            usual_end: UsualTime::default(),
            usual_life: UsualTime::default(),
            suspects: vec![Voters::default(); shards],
            counts: CoordinatorCounts::default(),
        }
    }

    /// What has been done since the start.
    #[must_use]
    pub fn counts(&self) -> CoordinatorCounts {
        self.counts
    }

    /// How many reads and how many transactions are under way.
    #[must_use]
    pub fn load(&self) -> (usize, usize) {
        (self.operations.len(), self.endings.len())
    }

    // Execution phase (§4.1).

    fn on_read_command(&mut self, now: Time, operation: u64, timestamp: Timestamp, keys: Vec<Key>, read_only: bool, out: &mut Out) {
        let mut by_shard: BTreeMap<ShardId, Vec<Key>> = BTreeMap::new();
        for key in &keys {
            by_shard.entry(self.cluster.shard_of(key)).or_default().push(key.clone());
        }
        let requests: Vec<(ShardId, Vec<Key>)> = by_shard
            .into_iter()
            .flat_map(|(shard, keys)| keys.chunks(types::limits::READ_KEYS_MAX).map(|part| (shard, part.to_vec())).collect::<Vec<_>>())
            .collect();
        if requests.is_empty() {
            out.emit(Event::Read { operation, result: Ok(Vec::new()) });
            return;
        }
        let read = ReadOperation { timestamp, keys, read_only, found: HashMap::new(), requests_open: requests.len(), started: now };
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
        self.requests.insert(number, ReadRequest { operation, shard, keys, asked, replied, timed, refusals: Vec::new(), rounds: 0 });
        let read_only = self.operations.get(&operation).is_some_and(|operation| operation.read_only);
        let least = if read_only { self.quorums.settled() } else { 0 };
        self.ask(now, number, self.options.read_quorum.asked(self.cluster.faults()).max(least), out);
        if let Some(request) = self.requests.get_mut(&number) {
            request.timed.1 = request.asked;
        }
    }

    /// Sends a read to up to `count` replicas that were not asked yet, those thought to be up first, and of them the nearest.
    fn ask(&mut self, now: Time, number: u64, count: usize, out: &mut Out) {
        let Some(request) = self.requests.get_mut(&number) else { return };
        let Some(operation) = self.operations.get(&request.operation) else { return };
        let replicas: Vec<ReplicaId> = self.cluster.replicas_of(request.shard).collect();
        let suspects = self.suspects[usize::from(request.shard.0)];
        let first = usize::try_from(number % replicas.len() as u64).unwrap_or(0);
        let (before, from) = replicas.split_at(first);
        let mut by_choice: Vec<&ReplicaId> = from.iter().chain(before).collect();
        let near_us = self.distances.near_us(request.shard, count);
        // Stable: those who are as good as one another take turns.
        by_choice.sort_by_key(|replica| (suspects.contains(replica.index), !self.distances.is_near(**replica, near_us)));
        let mut left = count;
        for replica in by_choice {
            if left == 0 {
                break;
            }
            if request.asked.insert(replica.index) {
                left -= 1;
                let keys = request.keys.iter().map(|replies| replies.key().clone()).collect();
                out.send(Party::Replica(*replica), Message::Read { request: number, timestamp: operation.timestamp, keys });
            }
        }
        let (shard, rounds) = (request.shard, request.rounds);
        self.timers.set(Timer::ReadEscalation(number), now.after_us(self.read_wait_us(shard, rounds)));
    }

    /// How long a read waits for its answers.
    fn read_wait_us(&self, shard: ShardId, rounds: u32) -> u64 {
        let least_us = self.options.read_escalation_ms * 1_000;
        wait_us(self.distances.late_us(shard, Asked::Read), least_us, rounds, READ_ROUNDS_DOUBLED_MAX)
    }

    fn on_read_reply(
        &mut self,
        now: Time,
        from: ReplicaId,
        number: u64,
        results: Vec<ReadResult>,
        prepared: &[Transaction],
        out: &mut Out,
    ) {
        let Some(request) = self.requests.get_mut(&number) else {
            self.on_confirmed(now, from, number, Some(&results), out);
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
            self.distances.note(from, Asked::Read, now.since(*asked_at));
        }
        for (replies, result) in request.keys.iter_mut().zip(results) {
            let writer = match result.newer {
                Newer::Prepared(place) => prepared.get(usize::from(place)),
                Newer::Nothing | Newer::Hidden => None,
            };
            replies.add(from.index, result, writer, operation.timestamp);
        }
        // It is up, and answers reads in time.
        if let Some(suspects) = self.suspects.get_mut(usize::from(from.shard.0)) {
            suspects.remove(from.index);
        }
        self.weigh_read(now, number, out);
    }

    /// Ends a read, asks more replicas, or goes on waiting, as the answers so far allow.
    fn weigh_read(&mut self, now: Time, number: u64, out: &mut Out) {
        let Some(request) = self.requests.get_mut(&number) else { return };
        let Some(operation) = self.operations.get(&request.operation) else { return };
        let needed = self.options.read_quorum.needed(self.quorums);
        if request.replied.count() < needed {
            return;
        }
        let choices: Vec<Choice> = request.keys.iter().map(|replies| replies.choose(needed, self.quorums)).collect();
        let newest = choices.iter().all(|choice| matches!(choice, Choice::Newest(_)));
        let vouched = choices.iter().all(|choice| !matches!(choice, Choice::Nothing));
        let all_replied = request.replied.count() >= request.asked.count();
        let everyone = self.quorums.replicas();
        if newest && operation.read_only && request.may_settle(&choices, self.quorums) {
            // Another reply may save the transaction from being prepared.
            if all_replied && request.asked.count() < everyone {
                self.ask(now, number, everyone, out);
            }
        } else if newest || (vouched && all_replied && request.asked.count() >= everyone) {
            self.request_done(number, choices, out);
        } else if all_replied && request.asked.count() < everyone {
            // Somebody names a newer version than is vouched for. Of a committed one at least 2f + 1 correct replicas
            // know, so that all together can vouch for it.
            self.counts.read_escalations += 1;
            self.ask(now, number, everyone, out);
        }
        // Else writes are on their way, or somebody is silent: the timer goes on.
    }

    fn request_done(&mut self, number: u64, choices: Vec<Choice>, out: &mut Out) {
        let Some(request) = self.requests.remove(&number) else { return };
        self.timers.cancel(&Timer::ReadEscalation(number));
        let Some(operation) = self.operations.get_mut(&request.operation) else { return };
        for choice in choices {
            if let Choice::Newest(found) | Choice::Vouched(found) = choice {
                operation.found.insert(found.key.clone(), found);
            }
        }
        operation.requests_open -= 1;
        if operation.requests_open > 0 {
            return;
        }
        let Some(mut operation) = self.operations.remove(&request.operation) else { return };
        let found = operation.keys.iter().filter_map(|key| operation.found.remove(key)).collect();
        out.emit(Event::Read { operation: request.operation, result: Ok(found) });
    }

    fn on_read_escalation(&mut self, now: Time, number: u64, out: &mut Out) {
        let Some(request) = self.requests.get_mut(&number) else { return };
        let Some(operation) = self.operations.get(&request.operation) else { return };
        if now.since(operation.started) >= self.options.timeout_ms * 1_000_000 {
            let operation = request.operation;
            self.read_failed(operation, Failure::TimedOut, out);
            return;
        }
        let needed = self.options.read_quorum.needed(self.quorums);
        let choices: Vec<Choice> = request.keys.iter().map(|replies| replies.choose(needed, self.quorums)).collect();
        let may_wait = operation.read_only && request.rounds == 0 && request.asked.count() < self.quorums.replicas();
        if choices.iter().all(|choice| !matches!(choice, Choice::Nothing)) && !may_wait {
            self.request_done(number, choices, out);
            return;
        }
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

    // Read-only transactions (beyond the paper).

    fn on_commit_reads_command(&mut self, now: Time, operation: u64, transaction: Transaction, settled: Vec<Voters>, out: &mut Out) {
        let confirmation = Confirmation::new(&self.cluster, self.quorums, operation, transaction, settled);
        match confirmation.verdict(self.quorums) {
            Verdict::Settled => self.settled(operation, out),
            Verdict::Unsettled => self.on_commit_command(now, Some(operation), confirmation.transaction, Vec::new(), out),
            Verdict::Open => {
                self.counts.confirmed += 1;
                self.requests_made += 1;
                let (request, timestamp) = (self.requests_made, confirmation.transaction.timestamp());
                let mut longest_us = 0;
                for (replica, keys) in confirmation.questions(&self.cluster) {
                    longest_us = longest_us.max(self.read_wait_us(replica.shard, 0));
                    out.send(Party::Replica(replica), Message::Read { request, timestamp, keys });
                }
                self.confirmations.insert(request, confirmation);
                let wait_us = longest_us.max(self.options.retry_ms * 1_000);
                self.timers.set(Timer::Confirmation(request), now.after_us(wait_us));
            }
        }
    }

    fn on_confirmed(&mut self, now: Time, from: ReplicaId, number: u64, results: Option<&[ReadResult]>, out: &mut Out) {
        let Some(confirmation) = self.confirmations.get_mut(&number) else { return };
        confirmation.answer(from, results);
        match confirmation.verdict(self.quorums) {
            Verdict::Open => {}
            Verdict::Unsettled => self.on_confirmation_over(now, number, out),
            Verdict::Settled => {
                let operation = confirmation.operation;
                self.confirmations.remove(&number);
                self.timers.cancel(&Timer::Confirmation(number));
                self.settled(operation, out);
            }
        }
    }

    /// It cannot be settled, or not soon: it is prepared like any other.
    fn on_confirmation_over(&mut self, now: Time, number: u64, out: &mut Out) {
        let Some(confirmation) = self.confirmations.remove(&number) else { return };
        self.timers.cancel(&Timer::Confirmation(number));
        self.on_commit_command(now, Some(confirmation.operation), confirmation.transaction, Vec::new(), out);
    }

    fn settled(&mut self, operation: u64, out: &mut Out) {
        self.counts.settled += 1;
        out.emit(Event::Settled { operation });
    }

    // Prepare phase (§4.2) and recovery's common case (§5).

    fn on_commit_command(
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
        if let Some(ending) = self.endings.get_mut(&id) {
            // It is being finished already: from now on for this asker too, with all the time it may take.
            ending.operations.extend(operation);
            ending.dependencies.extend(dependencies);
            ending.started = now;
            return;
        }
        let participants = self.cluster.participants(&transaction);
        let ending = Ending {
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
            grace: Grace::NotBegun,
            started: now,
            asked_at: now,
            retries: 0,
            commit_quorum_at: None,
        };
        self.endings.insert(id, ending);
        self.ask_votes(id, out);
        self.set_retry(now, id, 0);
    }

    /// §5: votes wait for what a transaction read from, and whoever meets what another left finishes it, one round trip more. Until
    /// when the writer of `dependency` has time to end it itself: for as long as that usually takes here, and as it takes
    /// to ask and tell all who are asked; but what began long ago has had its time. A timestamp may lie about that, to nobody's
    /// harm, for finishing what is about to end by itself is only work for nothing.
    fn time_for(&self, now: Time, dependency: &Transaction) -> Time {
        let shards = self.cluster.participants(dependency);
        let round_us = shards.into_iter().map(|shard| self.distances.round_us(shard)).max().unwrap_or(0);
        let least_us = DEPENDENCY_US_MIN.max(DEPENDENCY_TIMES * round_us);
        let old = Time(dependency.timestamp().time).after_us(self.usual_life.times_us(DEPENDENCY_TIMES, 2 * least_us));
        now.after_us(self.usual_end.times_us(DEPENDENCY_TIMES, least_us)).min(old)
    }

    /// Has a transaction's request sent again when it has gone unanswered for too long: twice as long as votes take, since
    /// it is then perhaps worth waiting for the last of them.
    fn set_retry(&mut self, now: Time, id: TransactionId, times: u32) {
        let Some(ending) = self.endings.get(&id) else { return };
        let late_us = ending.participants.iter().map(|shard| 2 * self.distances.late_us(*shard, Asked::Vote)).max();
        let wait_us = wait_us(late_us.unwrap_or(0), self.options.retry_ms * 1_000, times, RETRIES_DOUBLED_MAX);
        self.timers.set(Timer::Retry(id), now.after_us(wait_us));
    }

    /// ST1, or RP for a transaction of somebody else, to every replica not heard yet.
    fn ask_votes(&mut self, id: TransactionId, out: &mut Out) {
        let Some(ending) = self.endings.get(&id) else { return };
        for tally in &ending.tallies {
            for replica in self.cluster.replicas_of(tally.shard()).filter(|replica| !tally.heard(replica.index)) {
                let transaction = ending.transaction.clone();
                let message = if ending.operations.is_empty() {
                    Message::Recover { transaction, evidence: evidence(ending, self.quorums) }
                } else {
                    Message::Prepare { transaction }
                };
                out.send(Party::Replica(replica), message);
            }
        }
    }

    fn on_finish_command(&mut self, now: Time, transaction: Transaction, out: &mut Out) {
        if self.endings.contains_key(&transaction.id()) || self.finishing >= FINISHES_MAX {
            return;
        }
        self.finishing += 1;
        self.counts.finishes += 1;
        self.on_commit_command(now, None, transaction, Vec::new(), out);
    }

    /// Votes on `id` may be waiting for what it read from: finishes that (§5).
    fn finish_dependencies(&mut self, now: Time, id: TransactionId, out: &mut Out) {
        let Some(ending) = self.endings.get(&id) else { return };
        if ending.logging.is_some() || slow_decision(ending, self.quorums).is_some() {
            return; // Nobody whose vote counts is waiting.
        }
        for dependency in ending.dependencies.clone() {
            self.on_finish_command(now, dependency, out);
        }
    }

    fn on_voted(&mut self, now: Time, from: ReplicaId, vote: SignedVote, conflict: Option<Conflict>, out: &mut Out) {
        let SignedVote { replica, statement: VoteStatement { id, vote }, seal } = vote;
        let Some(ending) = self.endings.get_mut(&id) else { return };
        let Some(tally) = ending.tallies.iter_mut().find(|tally| tally.shard() == replica.shard) else { return };
        if from != replica || !tally.count(replica.index, vote, seal) {
            return;
        }
        self.distances.note(replica, Asked::Vote, now.since(ending.asked_at));
        let mut stalled = None;
        let in_the_way = |other: &Transaction| {
            let conflicts = check::conflict_at(&self.cluster, replica.shard, &ending.transaction, other);
            vote == Vote::Abort && (conflicts || broken(Mutant::ConflictBelieved))
        };
        match conflict {
            Some(Conflict::Committed { transaction, certificate }) if in_the_way(&transaction) => {
                tally.conflicts_with(transaction, certificate);
            }
            Some(Conflict::Stalled { transaction }) if in_the_way(&transaction) => {
                let known = ending.stalled.iter_mut().find(|(known, _)| known.id() == transaction.id());
                if let Some((_, voters)) = known {
                    voters.insert(replica.index);
                    // One replica's word is not enough to be sent after a transaction that may not exist.
                    stalled = (voters.count() == self.quorums.vouched()).then_some(transaction);
                } else if ending.stalled.len() < STALLED_MAX {
                    ending.stalled.push((transaction, Voters::of(replica.index)));
                }
            }
            _ => {}
        }
        self.weigh(now, id, out);
        if let Some(transaction) = stalled {
            self.on_finish_command(now, transaction, out); // Whoever is stopped by a stalled transaction finishes it (§5).
        }
    }

    /// After each vote: can the transaction end now, should its decision be logged, or are better votes worth waiting for?
    fn weigh(&mut self, now: Time, id: TransactionId, out: &mut Out) {
        let quorums = self.quorums;
        let Some(ending) = self.endings.get_mut(&id) else { return };
        if self.options.fast_path == FastPath::On
            && let Some((decision, proofs)) = fast_decision(ending, quorums)
        {
            if decision == Decision::Commit {
                let lag = ending.commit_quorum_at.map_or(0, |at| now.since(at));
                for shard in &ending.participants {
                    self.patience[usize::from(shard.0)].unanimous(lag);
                }
            }
            self.conclude(now, id, Certificate { id, decision, proof: Proof::Fast(proofs) }, Path::Fast, out);
            return;
        }
        if ending.logging.is_some() {
            return;
        }
        let Some(decision) = slow_decision(ending, quorums) else { return };
        if ending.commit_quorum_at.is_none() && decision == Decision::Commit {
            ending.commit_quorum_at = Some(now);
        }
        let hopeful = self.options.fast_path == FastPath::On && may_end_fast(ending, decision, quorums);
        match ending.grace {
            _ if !hopeful => self.log(now, id, decision, out),
            Grace::Over => self.log(now, id, decision, out),
            Grace::Running => {}
            Grace::NotBegun => {
                // Waiting for the last votes is worth as long as logging would take.
                let logging_us = logging_shard(&ending.participants, id).map_or(0, |shard| self.distances.round_us(shard));
                let patience = ending.participants.iter().map(|shard| self.patience[usize::from(shard.0)].begin(logging_us)).max();
                let wait_us = patience.unwrap_or(0);
                if wait_us == 0 {
                    ending.grace = Grace::Over;
                    self.log(now, id, decision, out);
                } else {
                    ending.grace = Grace::Running;
                    self.timers.set(Timer::Grace(id), now.after_us(wait_us));
                }
            }
        }
    }

    fn on_grace_over(&mut self, now: Time, id: TransactionId, out: &mut Out) {
        let Some(ending) = self.endings.get_mut(&id) else { return };
        ending.grace = Grace::Over;
        for tally in &ending.tallies {
            if tally.count_heard() < self.quorums.replicas() {
                self.patience[usize::from(tally.shard().0)].missed();
            }
        }
        self.weigh(now, id, out);
    }

    /// ST2 (§4.2 (5)): asks the logging shard to write the decision down.
    fn log(&mut self, now: Time, id: TransactionId, decision: Decision, out: &mut Out) {
        let quorums = self.quorums;
        let Some(ending) = self.endings.get_mut(&id) else { return };
        let is_first = ending.logging.replace(decision).is_none();
        self.timers.cancel(&Timer::Grace(id));
        let Some(shard) = logging_shard(&ending.participants, id) else { return };
        let tallies = justification(ending, decision, quorums);
        for replica in self.cluster.replicas_of(shard).filter(|replica| !ending.logged.heard(replica.index)) {
            let (transaction, tallies) = (ending.transaction.clone(), tallies.clone());
            out.send(Party::Replica(replica), Message::Log { transaction, decision, tallies });
        }
        if is_first {
            self.set_retry(now, id, 0); // This is another request than the first, and gets as long.
        }
    }

    fn on_logged(&mut self, now: Time, from: ReplicaId, logged: SignedLogged, out: &mut Out) {
        let (id, replica) = (logged.statement.id, logged.replica);
        let Some(ending) = self.endings.get_mut(&id) else { return };
        let is_own = from == replica && logging_shard(&ending.participants, id) == Some(replica.shard);
        if !is_own || !ending.logged.note(logged) {
            return;
        }
        if let Some((decision, set)) = ending.logged.agreed(self.quorums) {
            // §4.2 (7), §5 (5)
            self.conclude(now, id, Certificate { id, decision, proof: Proof::Logged(set) }, Path::Slow, out);
        } else if ending.elections == 0 && ending.logged.count() >= self.quorums.elected() && ending.logged.are_split(self.quorums) {
            self.invoke_fallback(now, id, out); // Not while too few to elect anybody are known to have logged anything.
        } else {
            self.weigh(now, id, out);
        }
    }

    /// §5 (1): what the logging shard has written down does not come together, so one of it is to be elected to reconcile it.
    /// The views that were heard last say whose turn it is; each time it takes longer, there is more patience.
    fn invoke_fallback(&mut self, now: Time, id: TransactionId, out: &mut Out) {
        let quorums = self.quorums;
        let Some(ending) = self.endings.get_mut(&id) else { return };
        let Some(shard) = logging_shard(&ending.participants, id).filter(|_| !broken(Mutant::LeaderUncalled)) else { return };
        if ending.elections == 0 {
            self.counts.fallbacks += 1;
        }
        let times = ending.elections;
        ending.elections += 1;
        let decision = ending.logging.or_else(|| slow_decision(ending, quorums));
        let justified = decision.map(|decision| Justified { decision, tallies: justification(ending, decision, quorums) });
        let views = ending.logged.all();
        for replica in self.cluster.replicas_of(shard) {
            let (transaction, justified, views) = (ending.transaction.clone(), justified.clone(), views.clone());
            out.send(Party::Replica(replica), Message::InvokeFallback { transaction, justified, views });
        }
        self.set_retry(now, id, times);
    }

    fn on_decided(&mut self, now: Time, certificate: Arc<Certificate>, out: &mut Out) {
        let Some(ending) = self.endings.get(&certificate.id) else { return };
        if certificate.fits(&self.cluster, &ending.transaction).is_ok() {
            self.conclude_with(now, certificate.id, certificate, Path::Recovered, out);
        }
    }

    // Writeback (§4.3).

    fn conclude(&mut self, now: Time, id: TransactionId, certificate: Certificate, path: Path, out: &mut Out) {
        self.conclude_with(now, id, Arc::new(certificate), path, out);
    }

    fn conclude_with(&mut self, now: Time, id: TransactionId, certificate: Arc<Certificate>, path: Path, out: &mut Out) {
        let Some(ending) = self.endings.remove(&id) else { return };
        self.silence(id);
        if !ending.was_finish && ending.dependencies.is_empty() && path != Path::Recovered {
            self.usual_end.took(now.since(ending.started));
            self.usual_life.took(now.0.saturating_sub(ending.transaction.timestamp().time));
        }
        match path {
            Path::Fast => self.counts.fast += 1,
            Path::Slow => self.counts.slow += 1,
            Path::Recovered => self.counts.recovered += 1,
        }
        for tally in &ending.tallies {
            for replica in self.cluster.replicas_of(tally.shard()) {
                // Whoever voted has the transaction.
                let transaction = (!tally.heard(replica.index)).then(|| ending.transaction.clone());
                out.send(Party::Replica(replica), Message::Writeback { transaction, certificate: certificate.clone() });
            }
        }
        self.finished(&ending);
        for operation in ending.operations {
            out.emit(Event::Ended { operation, result: Ok((certificate.clone(), path)) });
        }
    }

    // Refusals and silence.

    fn on_refused(&mut self, now: Time, from: ReplicaId, subject: Subject, refusal: Refusal, out: &mut Out) {
        match subject {
            Subject::Request(number) => self.on_read_refused(now, from, number, refusal, out),
            Subject::Transaction(id) => {
                let Some(ending) = self.endings.get_mut(&id) else { return };
                // Asked again, a replica also refuses what it voted on long ago and has forgotten: only the first answer
                // says that it never voted.
                let is_late = ending.retries > 0 && !broken(Mutant::LateRefusalBelieved);
                if refusal != Refusal::TooOld || is_late || !ending.participants.contains(&from.shard) {
                    return;
                }
                let voters = ending.too_old.entry(from.shard).or_default();
                voters.insert(from.index);
                // A correct replica that refuses so never votes to commit: of 3f + 1 at least 2f + 1 are correct, and the
                // 3f others are too few. So it never happens, and may be begun again.
                if voters.count() >= if broken(Mutant::TooOldOfOne) { 1 } else { self.quorums.abort_fast() } {
                    self.give_up(id, Failure::Refused(refusal), out);
                }
            }
        }
    }

    fn on_read_refused(&mut self, now: Time, from: ReplicaId, number: u64, refusal: Refusal, out: &mut Out) {
        let Some(request) = self.requests.get_mut(&number) else {
            self.on_confirmed(now, from, number, None, out);
            return;
        };
        if from.shard != request.shard || !request.asked.contains(from.index) || !request.replied.insert(from.index) {
            return;
        }
        request.refusals.push(refusal);
        let same = request.refusals.iter().filter(|other| **other == refusal).count();
        // Overload passes: the timer asks again. Anything else is believed from f + 1, one of which is correct.
        let believed = if broken(Mutant::RefusalOfOne) { 1 } else { self.quorums.vouched() };
        if same < believed || refusal == Refusal::Overloaded {
            self.weigh_read(now, number, out);
            return;
        }
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

    fn give_up(&mut self, id: TransactionId, failure: Failure, out: &mut Out) {
        let Some(ending) = self.endings.remove(&id) else { return };
        self.silence(id);
        self.finished(&ending);
        for operation in ending.operations {
            out.emit(Event::Ended { operation, result: Err(failure) });
        }
    }

    /// Nothing more is to be done about `id`.
    fn silence(&mut self, id: TransactionId) {
        for timer in [Timer::Grace(id), Timer::Dependencies(id), Timer::Retry(id)] {
            self.timers.cancel(&timer);
        }
    }

    fn finished(&mut self, ending: &Ending) {
        if ending.was_finish {
            self.finishing -= 1;
        }
    }

    fn on_retry(&mut self, now: Time, id: TransactionId, out: &mut Out) {
        let Some(ending) = self.endings.get_mut(&id) else { return };
        if now.since(ending.started) >= self.options.timeout_ms * 1_000_000 {
            self.give_up(id, Failure::TimedOut, out);
            return;
        }
        self.counts.retries += 1;
        ending.retries += 1;
        let (logging, retries) = (ending.logging, ending.retries);
        // So many answers would make a certificate if they were equal: the others may never come.
        let is_split = ending.elections > 0 || ending.logged.count() >= self.quorums.logged();
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
}

/// How long to wait the time after `times` others: at first until answers are late, then twice as long each time. It is never
/// shorter than the least that is set, nor longer than that doubled as often as it may be, whatever was heard of a
/// network that loses much.
fn wait_us(late_us: u64, least_us: u64, times: u32, doubled_max: u32) -> u64 {
    let most_us = least_us << doubled_max;
    (late_us.clamp(least_us, most_us) << times.min(doubled_max)).min(most_us)
}

/// Votes to commit of `f + 1` replicas of one shard, if there are as many: they show that the transaction is its author's.
fn evidence(ending: &Ending, quorums: Quorums) -> Vec<SignedVote> {
    let id = ending.transaction.id();
    for tally in &ending.tallies {
        if tally.votes_to(Vote::Commit) >= quorums.vouched() {
            let set = tally.votes(Vote::Commit);
            let signed = |(index, seal)| {
                let replica = ReplicaId { shard: set.shard, index };
                SignedVote { replica, statement: VoteStatement { id, vote: Vote::Commit }, seal }
            };
            return set.voters.into_iter().take(quorums.vouched()).map(signed).collect();
        }
    }
    Vec::new()
}

/// A decision that needs no logging, with its proofs: (3) everywhere, or (4) or (5) anywhere.
fn fast_decision(ending: &Ending, quorums: Quorums) -> Option<(Decision, Vec<crate::certificate::ShardProof>)> {
    let outcomes = ending.tallies.iter().map(|tally| tally.outcome(quorums));
    if let Some(at) = outcomes.clone().position(|outcome| matches!(outcome, Outcome::AbortFast | Outcome::AbortByConflict)) {
        return Some((Decision::Abort, vec![ending.tallies[at].proof(quorums)?]));
    }
    if outcomes.clone().all(|outcome| outcome == Outcome::CommitFast) {
        let proofs = ending.tallies.iter().filter_map(|tally| tally.proof(quorums)).collect();
        return Some((Decision::Commit, proofs));
    }
    None
}

/// A decision that the votes justify, though it would have to be logged. One that the logging shard has begun to
/// write down for somebody else is preferred, if these votes justify it too.
fn slow_decision(ending: &Ending, quorums: Quorums) -> Option<Decision> {
    let commit = ending.tallies.iter().all(|tally| matches!(tally.outcome(quorums), Outcome::CommitFast | Outcome::CommitSlow));
    let abort = ending.tallies.iter().any(|tally| tally.votes_to(Vote::Abort) >= quorums.abort_slow());
    let begun = |decision: Decision| ending.logged.count_of(decision) >= quorums.vouched();
    match (commit, abort) {
        (true, true) if begun(Decision::Abort) => Some(Decision::Abort),
        (true, _) => Some(Decision::Commit),
        (false, true) => Some(Decision::Abort),
        (false, false) => None,
    }
}

/// The votes that allow `decision` to be logged: of every shard to commit, of one to abort.
fn justification(ending: &Ending, decision: Decision, quorums: Quorums) -> Vec<VoteSet> {
    match decision {
        Decision::Commit => ending.tallies.iter().map(|tally| tally.votes(Vote::Commit)).collect(),
        Decision::Abort => {
            let sets = ending.tallies.iter().map(|tally| tally.votes(Vote::Abort));
            sets.filter(|set| set.voters.len() >= quorums.abort_slow()).take(1).collect()
        }
    }
}

/// Whether votes still to come could make `decision` end fast.
fn may_end_fast(ending: &Ending, decision: Decision, quorums: Quorums) -> bool {
    match decision {
        Decision::Commit => ending.tallies.iter().all(|tally| tally.outcome(quorums) == Outcome::CommitFast || tally.may_improve(quorums)),
        Decision::Abort => ending.tallies.iter().any(|tally| tally.may_improve(quorums)),
    }
}

impl Machine for Coordinator {
    type Command = Command;
    type Received = Verified<Message>;
    type Message = Message;
    type Draft = std::convert::Infallible;
    type Event = Event;

    fn step(&mut self, now: Time, input: Input<Self>, outbox: &mut Outbox<Self>) {
        match input {
            Input::Command(Command::Read { operation, timestamp, keys, read_only }) => {
                self.on_read_command(now, operation, timestamp, keys, read_only, outbox);
            }
            Input::Command(Command::CommitReads { operation, transaction, settled }) => {
                self.on_commit_reads_command(now, operation, transaction, settled, outbox);
            }
            Input::Command(Command::Commit { operation, transaction, dependencies }) => {
                self.on_commit_command(now, Some(operation), transaction, dependencies, outbox);
            }
            Input::Command(Command::Finish { transaction }) => self.on_finish_command(now, transaction, outbox),
            Input::Message { from: Party::Replica(from), message } => {
                match message.into_inner() {
                    Message::ReadReply { request, results, prepared } => {
                        self.on_read_reply(now, from, request, results, &prepared, outbox);
                    }
                    Message::Voted { vote, conflict } => self.on_voted(now, from, vote, conflict, outbox),
                    Message::Logged { logged } => self.on_logged(now, from, logged, outbox),
                    Message::Decided { certificate } => self.on_decided(now, certificate, outbox),
                    Message::Refused { subject, refusal } => self.on_refused(now, from, subject, refusal, outbox),
                    // Requests; the replica beside this machine hears those.
                    Message::Read { .. }
                    | Message::Prepare { .. }
                    | Message::Recover { .. }
                    | Message::Log { .. }
                    | Message::InvokeFallback { .. }
                    | Message::ElectFallback { .. }
                    | Message::DecideFallback { .. }
                    | Message::Inquire { .. }
                    | Message::Rested { .. }
                    | Message::Writeback { .. } => {}
                }
            }
            Input::Message { from: Party::Client(..), .. } => {}
            Input::Tick => {
                while let Some(timer) = self.timers.expire(now) {
                    match timer {
                        Timer::ReadEscalation(number) => self.on_read_escalation(now, number, outbox),
                        Timer::Confirmation(number) => self.on_confirmation_over(now, number, outbox),
                        Timer::Grace(id) => self.on_grace_over(now, id, outbox),
                        Timer::Dependencies(id) => self.finish_dependencies(now, id, outbox),
                        Timer::Retry(id) => self.on_retry(now, id, outbox),
                    }
                }
            }
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
