//! How the coordinator reads ranges (beyond the paper): page after page, from one end of the range towards the other, from each shard that
//! may hold keys of it.
//!
//! A page goes as far as `f + 1` replies are complete: one of those replicas is correct and leaves nothing out. Of each key that any reply
//! names there, what the replies amount to is decided as for a read of that key, where a reply that is complete and does not name a key
//! says that there is nothing ([`crate::reading`]). A replica that stops early, or says that it has not, is one of `f`.

use std::collections::{BTreeMap, BTreeSet};

use engine::ReadMode;
use machine::{Time, Voters};
use mutants::{Mutant, broken};
use types::limits::{SCAN_ROWS_MAX, TRANSACTION_READS_MAX};
use types::{Direction, Key, KeyRange, Party, ReplicaId, ShardId, Timestamp, TransactionId};

use super::{Coordinator, Event, Failure, Out, Timer};
use crate::commit_relay::RecentCommits;
use crate::lost_reads::Finishes;
use crate::message::{KEEPS, Message, PendingWrite, ReadResult, Refusal, ScanRow};
use crate::quorum::Quorums;
use crate::reading::{Choice, KeyReplies, RangeFound, ReadFound};
use crate::round_trip::RequestKind;
use crate::transaction::{RANGE_DELETED_MAX, Transaction};
use crate::transaction_table::untold_by;

/// Who reads the past page by page says so again after this time, in milliseconds.
const READS_ON_MS: u64 = 5_000;
/// So many moments of the past are known to have been read.
const PAST_READS_MAX: usize = 4;

/// A range that is read.
#[derive(Debug)]
pub(super) struct ScanOperation {
    timestamp: Timestamp,
    range: KeyRange,
    direction: Direction,
    /// How many keys with values are wanted.
    limit: usize,
    mode: ReadMode,
    /// Whether it is settled ([`crate::lost_reads`]).
    settles: bool,
    parts: Vec<ScanPart>,
    /// Keys that have values, or may have had them taken by what is only prepared.
    found: BTreeMap<Key, ReadFound>,
    /// Others, which are known to have been deleted.
    deleted: BTreeSet<Key>,
    /// Every page so far was validated.
    is_validated: bool,
    started: Time,
}

impl ScanOperation {
    /// Takes in what a page amounts to.
    fn take_in(&mut self, choices: Vec<Choice>) {
        for choice in choices {
            let (Choice::Newest(found) | Choice::WeakQuorum(found)) = choice else { continue };
            if found.value.is_some() || found.dependency.is_some() {
                self.found.insert(found.key.clone(), found);
            } else if found.version > Timestamp::ZERO && !self.mode.is_as_of() {
                // What is read of the past is final, and no transaction carries it.
                self.deleted.insert(found.key);
            }
        }
        // Each shard is asked for as many keys as are wanted of all. What other pages hold can only bring the end nearer.
        let live = self.found.iter().filter(|(_, found)| found.value.is_some());
        let last = self.limit.checked_sub(1).and_then(|before| self.direction.of(live).nth(before)).map(|(key, _)| key);
        if let Some(end) = last.and_then(|last| self.direction.behind(last)) {
            self.cut(&end);
        }
    }

    /// Leaves out what lies from `end` on.
    fn cut(&mut self, end: &Key) {
        let direction = self.direction;
        self.found.retain(|key, _| direction.has_passed(key, end));
        self.deleted.retain(|key| direction.has_passed(key, end));
    }

    /// How far all shards have been read: to where the part begins that is least far.
    fn covered(&self) -> &Key {
        let left = self.parts.iter().filter_map(|part| part.left.as_ref());
        let covered = left.map(|left| self.direction.begin(left)).min_by(|one, other| self.direction.order(*one, *other));
        covered.unwrap_or(self.direction.end(&self.range))
    }

    /// The last key that is wanted, if all are found that come before it.
    fn last(&self) -> Option<&Key> {
        let covered = self.covered();
        let live = self.found.iter().filter(|(key, found)| found.value.is_some() && self.direction.has_passed(key, covered));
        self.limit.checked_sub(1).and_then(|before| self.direction.of(live).nth(before)).map(|(key, _)| key)
    }

    /// Whether no transaction could carry what was found as far as all shards have been read, and no replica would look at it. What lies
    /// further may still turn out not to be wanted; it is a page a shard at most.
    fn is_too_large(&self) -> bool {
        let covered = self.covered();
        let found = self.found.keys().filter(|key| self.direction.has_passed(key, covered)).count();
        let deleted = self.deleted.iter().filter(|key| self.direction.has_passed(key, covered)).count();
        found > TRANSACTION_READS_MAX || deleted > RANGE_DELETED_MAX
    }
}

/// The part of a range that one shard may hold.
#[derive(Debug)]
struct ScanPart {
    shard: ShardId,
    /// What of it has not been read yet.
    left: Option<KeyRange>,
}

/// A page that one shard is asked for.
#[derive(Debug)]
pub(super) struct ScanRequest {
    operation: u64,
    shard: ShardId,
    range: KeyRange,
    direction: Direction,
    limit: u32,
    answers: Vec<ScanAnswer>,
    asked: Voters,
    replied: Voters,
    /// Who was asked at first, and has not answered since.
    timed: (Time, Voters),
    refusals: Vec<Refusal>,
    rounds: u32,
    finishes: Finishes,
}

/// What one replica has of a page.
#[derive(Debug)]
struct ScanAnswer {
    from: u16,
    rows: BTreeMap<Key, ReadResult>,
    prepared: Vec<Transaction>,
    end: Key,
    is_promised: bool,
}

/// What the answers to a page amount to.
struct PageFound {
    /// Up to where it is read.
    end: Key,
    choices: Vec<Choice>,
    /// Who has exactly this, up to there, and lets nobody change it.
    validated: Voters,
}

impl ScanRequest {
    /// What the answers say up to where `complete` of them are complete.
    fn page(&self, complete: usize, needed: usize, timestamp: Timestamp, quorums: Quorums, fresh: &RecentCommits) -> Option<PageFound> {
        let direction = self.direction;
        let mut ends: Vec<&Key> = self.answers.iter().map(|answer| &answer.end).collect();
        ends.sort_unstable_by(|one, other| direction.order(*other, *one));
        let complete = if broken(Mutant::RangeOfOne) { 1 } else { complete };
        let end = (*ends.get(complete.checked_sub(1)?)?).clone();
        let untold_by = untold_by(timestamp);
        let mut validated = Voters::default();
        for answer in self.answers.iter().filter(|answer| answer.is_promised && direction.order(&answer.end, &end).is_ge()) {
            validated.insert(answer.from);
        }
        let rows = self.answers.iter().flat_map(|answer| answer.rows.keys());
        let keys: BTreeSet<&Key> = rows.filter(|key| direction.has_passed(key, &end)).collect();
        let mut choices = Vec::with_capacity(keys.len());
        for key in keys {
            let mut replies = KeyReplies::new(key.clone());
            let mut is_told_by_all = true;
            for answer in self.answers.iter().filter(|answer| direction.has_passed(key, &answer.end)) {
                let nothing = ReadResult { version: Timestamp::ZERO, value: None, pending: PendingWrite::None };
                // A deletion of which nobody has to tell is no reason to differ.
                let is_told =
                    |result: &&ReadResult| result.value.is_some() || result.pending != PendingWrite::None || result.version > untold_by;
                let told = answer.rows.get(key).filter(is_told).cloned();
                is_told_by_all &= told.is_some();
                let result = told.unwrap_or(nothing);
                let writer = result.pending.writer(&answer.prepared);
                replies.add(answer.from, (result, answer.is_promised), writer, timestamp);
            }
            let may_be_deleted = |found: &ReadFound| {
                let is_old = found.value.is_some() && found.version <= untold_by && found.validated.count() < quorums.validation();
                is_old && !is_told_by_all && !broken(Mutant::UntoldBelieved)
            };
            let choice = match replies.choose(needed, quorums, |transaction| fresh.contains(transaction.id())) {
                // Who does not tell of the key may have deleted it since.
                Choice::Newest(found) if may_be_deleted(&found) => Choice::WeakQuorum(found),
                choice => choice,
            };
            validated = match &choice {
                Choice::Newest(found) | Choice::WeakQuorum(found) if found.dependency.is_none() => validated.and(found.validated),
                Choice::Newest(_) | Choice::WeakQuorum(_) | Choice::Nothing => Voters::default(),
            };
            choices.push(choice);
        }
        Some(PageFound { end, choices, validated })
    }

    /// Whether too many replicas promise nothing for now: what they say cannot be settled.
    fn is_withheld(&self, quorums: Quorums) -> bool {
        self.answers.iter().filter(|answer| !answer.is_promised).count() >= quorums.weak()
    }

    /// The undecided writers that answers name, and whose answers do.
    fn named(&self) -> impl Iterator<Item = (&Transaction, Voters)> {
        let mut named: BTreeMap<TransactionId, (&Transaction, Voters)> = BTreeMap::new();
        for answer in &self.answers {
            for transaction in &answer.prepared {
                named.entry(transaction.id()).or_insert((transaction, Voters::default())).1.insert(answer.from);
            }
        }
        named.into_values()
    }

    /// What they amount to by now. Who only reads needs `3f + 1` of them.
    fn found(
        &self,
        operation: &ScanOperation,
        (needed, settled_by): (usize, Option<usize>),
        quorums: Quorums,
        fresh: &RecentCommits,
    ) -> Option<PageFound> {
        let may_settle = operation.mode.is_read_only() && self.answers.len() >= quorums.validation();
        let complete = match settled_by.filter(|_| !broken(Mutant::AsOfUnvalidated)) {
            // All of one that lies could stop at once.
            Some(settled_by) => settled_by.min(quorums.logged()),
            None if may_settle => quorums.validation(),
            None => needed,
        };
        self.page(complete, needed, operation.timestamp, quorums, fresh)
            .filter(|page| self.direction.read(&self.range, &page.end).is_some())
    }
}

impl PageFound {
    fn is_newest(&self) -> bool {
        self.choices.iter().all(|choice| matches!(choice, Choice::Newest(_)))
    }

    fn has_weak_quorum(&self) -> bool {
        self.choices.iter().all(|choice| !matches!(choice, Choice::Nothing))
    }

    fn is_validated(&self, quorums: Quorums) -> bool {
        let needed = if broken(Mutant::RangeValidatedByFew) { quorums.validation() - 1 } else { quorums.validation() };
        self.validated.count() >= needed
    }

    /// Whether nothing that ever commits can change it, as `needed` replicas validate it.
    fn is_final(&self, needed: usize, quorums: Quorums) -> bool {
        let is_validated = self.is_validated(quorums) && (needed <= quorums.validation() || self.validated.count() >= needed);
        self.has_weak_quorum() && (is_validated || broken(Mutant::AsOfUnvalidated))
    }

    /// Whether more answers could validate it: the replicas that contradict it are too few to include a correct one.
    fn may_settle(&self, answers: usize, quorums: Quorums) -> bool {
        !self.is_validated(quorums) && answers - self.validated.count() < quorums.weak()
    }
}

impl Coordinator {
    pub(super) fn on_scan_command(
        &mut self,
        now: Time,
        operation: u64,
        (timestamp, range): (Timestamp, KeyRange),
        (direction, limit): (Direction, usize),
        mode: ReadMode,
        out: &mut Out,
    ) {
        let part = |shard: ShardId| Some(ScanPart { shard, left: Some(self.cluster.part_of(shard, &range)?) });
        let parts = self.cluster.shards().filter_map(part).collect();
        let (found, deleted, is_validated) = (BTreeMap::new(), BTreeSet::new(), true);
        let settles = !mode.is_as_of() && self.lost_reads.are_ranges_lost();
        self.counts.settled_reads += u64::from(settles);
        let scan = ScanOperation { timestamp, range, direction, limit, mode, settles, parts, found, deleted, is_validated, started: now };
        if mode.is_as_of() {
            self.tell_who_reads_on(now, &scan, out);
        }
        self.scans.insert(operation, scan);
        self.advance_scan(now, operation, out);
    }

    /// Whoever reads as of one moment for the second time may go on for longer than the window. All replicas of all shards of the range hear of it, so that they
    /// keep that moment: also those that are asked only when the others have been read, and those that answer when others fail.
    fn tell_who_reads_on(&mut self, now: Time, scan: &ScanOperation, out: &mut Out) {
        let Some((_, told)) = self.past_reads.iter_mut().find(|(moment, _)| *moment == scan.timestamp) else {
            self.past_reads.truncate(PAST_READS_MAX - 1);
            self.past_reads.insert(0, (scan.timestamp, None));
            return;
        };
        if told.is_none_or(|told| told.after_ms(READS_ON_MS) <= now) {
            *told = Some(now);
            self.requests_made += 1;
            for part in &scan.parts {
                let Some(range) = &part.left else { continue };
                for replica in self.cluster.replicas_of(part.shard) {
                    let (request, timestamp, range, direction) = (self.requests_made, scan.timestamp, range.clone(), scan.direction);
                    out.send(Party::Replica(replica), Message::Scan { request, timestamp, range, direction, limit: KEEPS });
                }
            }
        }
    }

    /// Ends a scan that has found enough, or asks for the next pages: those of the parts that are least far.
    fn advance_scan(&mut self, now: Time, operation: u64, out: &mut Out) {
        let Some(scan) = self.scans.get(&operation) else { return };
        let direction = scan.direction;
        if scan.is_too_large() {
            self.scan_failed(operation, Failure::Refused(Refusal::TooLarge), out);
            return;
        }
        let (covered, last) = (scan.covered(), scan.last());
        if last.is_some() || covered == direction.end(&scan.range) {
            // What was found lies in the range, whatever replies say: they were checked as they came. No range has the last of all keys, the only
            // one behind which there is none.
            let last =
                last.filter(|_| !broken(Mutant::RangeUncut)).map(|last| direction.behind(last).expect("the range's end lies behind it"));
            let end = last.unwrap_or_else(|| direction.end(&scan.range).clone());
            self.scan_done(operation, &end, out);
            return;
        }
        let live = scan.found.iter().filter(|(key, found)| found.value.is_some() && direction.has_passed(key, covered));
        let limit = u32::try_from((scan.limit - live.count()).min(SCAN_ROWS_MAX)).unwrap_or(u32::MAX);
        let open = scan.parts.iter().filter_map(|part| Some((part.shard, part.left.as_ref()?)));
        let next = open.filter(|(_, left)| direction.begin(left) == covered);
        let next: Vec<(ShardId, KeyRange)> = next.map(|(shard, left)| (shard, left.clone())).collect();
        for (shard, range) in next {
            // The answers of others may still be under way.
            if !self.scan_requests.values().any(|request| request.operation == operation && request.shard == shard) {
                self.request_page(now, operation, shard, range, limit, out);
            }
        }
    }

    fn request_page(&mut self, now: Time, operation: u64, shard: ShardId, range: KeyRange, limit: u32, out: &mut Out) {
        let Some(scan) = self.scans.get(&operation) else { return };
        self.requests_made += 1;
        let number = self.requests_made;
        let least = match scan.mode {
            _ if scan.settles => self.quorums.replicas(),
            ReadMode::Interactive => 0,
            ReadMode::ReadOnly | ReadMode::AsOf | ReadMode::Ago { .. } => self.quorums.validation(),
        };
        let (asked, replied, timed) = (Voters::default(), Voters::default(), (now, Voters::default()));
        let (answers, refusals, rounds, finishes) = (Vec::new(), Vec::new(), 0, Finishes::default());
        let request = ScanRequest {
            operation,
            shard,
            range,
            direction: scan.direction,
            limit,
            answers,
            asked,
            replied,
            timed,
            refusals,
            rounds,
            finishes,
        };
        self.scan_requests.insert(number, request);
        self.ask_page(now, number, self.options.read_quorum.asked(self.cluster.faults()).max(least), out);
        if let Some(request) = self.scan_requests.get_mut(&number) {
            request.timed.1 = request.asked;
        }
    }

    /// Asks up to `count` replicas for a page that were not asked yet.
    fn ask_page(&mut self, now: Time, number: u64, count: usize, out: &mut Out) {
        let Some(shard) = self.scan_requests.get(&number).map(|request| request.shard) else { return };
        let by_choice = self.by_choice(now, shard, number, count);
        let Some(request) = self.scan_requests.get_mut(&number) else { return };
        let Some(scan) = self.scans.get(&request.operation) else { return };
        let mut left = count;
        for replica in by_choice {
            if left > 0 && request.asked.insert(replica.index) {
                left -= 1;
                let (timestamp, range, direction, limit) = (scan.timestamp, request.range.clone(), request.direction, request.limit);
                out.send(Party::Replica(replica), Message::Scan { request: number, timestamp, range, direction, limit });
            }
        }
        let rounds = if scan.settles { request.finishes.idle_rounds } else { request.rounds };
        self.timers.set(Timer::ScanEscalation(number), now.after_us(self.read_wait_us(shard, rounds)));
    }

    pub(super) fn on_scan_reply(
        &mut self,
        now: Time,
        from: ReplicaId,
        number: u64,
        (direction, rows, end): (Direction, Vec<ScanRow>, Key),
        (prepared, is_promised): (Vec<Transaction>, bool),
        out: &mut Out,
    ) {
        let Some(request) = self.scan_requests.get_mut(&number) else { return };
        let fits = from.shard == request.shard && request.asked.contains(from.index);
        // What was not asked for is not taken in, and that it is asked again is all that it costs.
        let range = &request.range;
        let is_within = direction.order(&end, direction.end(range)).is_le();
        let is_sound = direction == request.direction && is_within && rows.first().is_none_or(|row| range.contains(&row.key));
        if !fits || !is_sound || !request.replied.insert(from.index) {
            return;
        }
        let (asked_at, timed) = &mut request.timed;
        if timed.contains(from.index) {
            timed.remove(from.index);
            self.round_trips.note(from, RequestKind::Read, now.since(*asked_at));
        }
        request.answers.retain(|answer| answer.from != from.index);
        let rows = rows.into_iter().map(|row| (row.key, row.result)).collect();
        request.answers.push(ScanAnswer { from: from.index, rows, prepared, end, is_promised });
        if let Some(suspects) = self.suspects.get_mut(usize::from(from.shard.0)) {
            suspects.remove(from.index);
        }
        self.evaluate_page(now, number, out);
    }

    /// Ends a page, asks more replicas, or goes on waiting, as the answers so far allow.
    fn evaluate_page(&mut self, now: Time, number: u64, out: &mut Out) {
        let Some(request) = self.scan_requests.get(&number) else { return };
        let Some(scan) = self.scans.get(&request.operation) else { return };
        let needed = self.options.read_quorum.needed(self.quorums);
        let all_replied = self.connections.have_all_replied(request.shard, request.asked, request.replied);
        let all_asked = request.asked.count() >= self.quorums.replicas();
        let is_widest = |page: &PageFound| request.answers.iter().all(|answer| request.direction.order(&answer.end, &page.end).is_le());
        let settles = scan.settles && !request.is_withheld(self.quorums);
        let settled_by = self.settled_by(now, (scan.mode, settles), scan.started, request.rounds > 0 || all_replied, request.rounds);
        let page = request.found(scan, (needed, settled_by), self.quorums, &self.recent_commits);
        // Another reply may save the transaction from being prepared.
        let may_settle = |page: &PageFound| scan.mode.is_read_only() && page.may_settle(request.answers.len(), self.quorums);
        let is_done = |page: &PageFound| {
            let is_last = all_replied && all_asked;
            if let Some(needed) = settled_by {
                return page.is_final(needed, self.quorums) && (is_widest(page) || is_last);
            }
            page.is_newest() && !may_settle(page) && is_widest(page) || page.has_weak_quorum() && is_last
        };
        match page {
            Some(page) if is_done(&page) => self.page_done(now, number, page, out),
            _ if all_replied && !all_asked => {
                self.counts.read_escalations += 1;
                self.ask_page(now, number, self.quorums.replicas(), out);
            }
            // Writes are on their way, or somebody is silent: the timer goes on.
            _ => {}
        }
    }

    fn page_done(&mut self, now: Time, number: u64, page: PageFound, out: &mut Out) {
        let Some(request) = self.scan_requests.remove(&number) else { return };
        self.timers.cancel(&Timer::ScanEscalation(number));
        let operation = request.operation;
        let Some(scan) = self.scans.get_mut(&operation) else { return };
        scan.is_validated &= page.is_validated(self.quorums);
        scan.take_in(page.choices);
        if let Some(part) = scan.parts.iter_mut().find(|part| part.shard == request.shard) {
            part.left = part.left.take().and_then(|left| scan.direction.left(&left, &page.end));
        }
        self.advance_scan(now, operation, out);
    }

    fn scan_done(&mut self, operation: u64, end: &Key, out: &mut Out) {
        let Some(scan) = self.scans.get(&operation) else { return };
        if self.begins_too_low(scan.mode, scan.timestamp) {
            self.scan_failed(operation, Failure::TooLow, out);
            return;
        }
        let Some(mut scan) = self.drop_scan(operation) else { return };
        let direction = scan.direction;
        scan.cut(end);
        // The end is the whole range's, or lies behind a key that was found in it.
        let read = if broken(Mutant::RangeCutAtWrongEnd) { Direction::Ascending } else { direction }.read(&scan.range, end);
        let (range, deleted) = (read.unwrap_or(scan.range), scan.deleted.len());
        let found = direction.of(scan.found.into_values()).collect();
        let result = Ok(RangeFound { range, found, deleted, is_validated: scan.is_validated });
        out.emit(Event::Scanned { operation, result });
    }

    pub(super) fn on_scan_escalation(&mut self, now: Time, number: u64, out: &mut Out) {
        let Some(request) = self.scan_requests.get(&number) else { return };
        let Some(scan) = self.scans.get(&request.operation) else { return };
        if now.since(scan.started) >= self.options.timeout_ms * 1_000_000 {
            let operation = request.operation;
            self.scan_failed(operation, Failure::TimedOut(None), out);
            return;
        }
        let needed = self.options.read_quorum.needed(self.quorums);
        let may_wait = scan.mode.is_read_only() && request.rounds == 0 && request.asked.count() < self.quorums.replicas();
        let settles = scan.settles && !request.is_withheld(self.quorums);
        let settled_by = self.settled_by(now, (scan.mode, settles), scan.started, true, request.rounds);
        let page = request.found(scan, (needed, settled_by), self.quorums, &self.recent_commits);
        let is_enough = |page: &PageFound| match settled_by {
            Some(needed) => page.is_final(needed, self.quorums),
            None => page.has_weak_quorum() && !may_wait,
        };
        if let Some(page) = page.filter(is_enough) {
            self.page_done(now, number, page, out);
            return;
        }
        let (weak, is_as_of, timestamp) = (self.quorums.weak(), scan.mode.is_as_of(), scan.timestamp);
        let named = request.named().filter(|(_, voters)| !is_as_of || voters.count() >= weak);
        let is_there = |transaction: &Transaction| {
            transaction.timestamp() < timestamp && transaction.writes().iter().any(|write| request.range.contains(&write.key))
        };
        let named: Vec<(Transaction, Voters)> =
            named.filter(|(one, _)| settled_by.is_some() && is_there(one)).map(|(one, voters)| (one.clone(), voters)).collect();
        let Some(request) = self.scan_requests.get_mut(&number) else { return };
        let in_the_way = if is_as_of {
            named.into_iter().map(|(one, _)| one).collect()
        } else {
            request.finishes.take(named.iter().map(|(one, voters)| (one, *voters)), weak)
        };
        let shard = usize::from(request.shard.0);
        for replica in self.cluster.replicas_of(request.shard) {
            if request.asked.contains(replica.index) && !request.replied.contains(replica.index) {
                self.suspects[shard].insert(replica.index);
            }
        }
        request.rounds += 1;
        if request.asked.count() >= self.quorums.replicas() {
            // What they have may have moved on. What they said stands until they say otherwise.
            request.asked = Voters::default();
            request.replied = Voters::default();
            request.refusals.clear();
            self.counts.retries += 1;
        } else {
            self.counts.read_escalations += 1;
        }
        self.ask_page(now, number, self.quorums.replicas(), out);
        self.finish_in_the_way(now, in_the_way, out);
    }

    /// `false` when `number` is no page's.
    pub(super) fn on_scan_refused(&mut self, now: Time, from: ReplicaId, number: u64, refusal: Refusal, out: &mut Out) -> bool {
        let Some(request) = self.scan_requests.get_mut(&number) else { return false };
        if from.shard != request.shard || !request.asked.contains(from.index) || !request.replied.insert(from.index) {
            return true;
        }
        request.refusals.push(refusal);
        // Who has started meanwhile keeps nothing. As long as enough may that have not refused, these are waited for.
        let may_answer = |replica: &ReplicaId| {
            let has_answered = request.answers.iter().any(|answer| answer.from == replica.index);
            has_answered || !request.replied.contains(replica.index) && self.connections.has(*replica)
        };
        let left = self.cluster.replicas_of(from.shard).filter(may_answer).count();
        let may_be_kept = matches!(refusal, Refusal::NotKept { .. }) && left >= self.quorums.validation();
        match Refusal::believed(&request.refusals, refusal, self.quorums).filter(|_| !may_be_kept) {
            Some(refusal) => {
                let operation = request.operation;
                self.scan_failed(operation, Failure::Refused(refusal), out);
            }
            None => self.evaluate_page(now, number, out),
        }
        true
    }

    fn scan_failed(&mut self, operation: u64, failure: Failure, out: &mut Out) {
        if self.drop_scan(operation).is_some() {
            out.emit(Event::Scanned { operation, result: Err(failure) });
        }
    }

    /// Takes a scan out of what is under way, with the pages that it waits for.
    fn drop_scan(&mut self, operation: u64) -> Option<ScanOperation> {
        let timers = &mut self.timers;
        self.scan_requests.retain(|number, request| {
            let keep = request.operation != operation;
            if !keep {
                timers.cancel(&Timer::ScanEscalation(*number));
            }
            keep
        });
        self.scans.remove(&operation)
    }

    /// Who was asked for page `number` and when, while the answer still tells what time it is.
    pub(super) fn page_asked(&self, number: u64) -> Option<(ShardId, (Time, Voters))> {
        self.scan_requests.get(&number).map(|request| (request.shard, request.timed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: usize) -> Key {
        Key::from(format!("{number:05}").as_str())
    }

    fn scan(direction: Direction, limit: usize) -> ScanOperation {
        let range = KeyRange::new(Key::from("0"), Key::from("a")).expect("it has keys");
        let (timestamp, started) = (Timestamp::new(100, types::ClientId(1)), Time(0));
        let (mode, parts) = (ReadMode::Interactive, Vec::new());
        let (found, deleted) = (BTreeMap::new(), BTreeSet::new());
        ScanOperation { timestamp, range, direction, limit, mode, settles: false, parts, found, deleted, is_validated: true, started }
    }

    fn choice(number: usize, has_value: bool) -> Choice {
        let value = has_value.then(|| types::Value::from("1"));
        let (key, version) = (key(number), Timestamp::new(1, types::ClientId(1)));
        Choice::Newest(ReadFound { key, version, value, dependency: None, validated: Voters::default(), is_withheld: false })
    }

    fn choices(numbers: std::ops::Range<usize>, have_values: bool) -> Vec<Choice> {
        numbers.map(|number| choice(number, have_values)).collect()
    }

    /// A page of a shard that holds each third key. Every second of them is deleted.
    fn page(shard: usize, count: usize) -> Vec<Choice> {
        (0..count).map(|number| choice(number * 3 + shard, number.is_multiple_of(2))).collect()
    }

    #[test]
    fn what_shards_give_beyond_what_is_wanted_does_not_count() {
        for direction in [Direction::Ascending, Direction::Descending] {
            let mut wide = scan(direction, 4_096);
            let mut narrow = scan(direction, 10);
            for shard in 0..3 {
                for scan in [&mut wide, &mut narrow] {
                    scan.take_in(page(shard, 2_999));
                    assert!(!scan.is_too_large());
                }
            }
            assert_eq!((wide.found.len(), wide.deleted.len()), (4_096, 4_095));
            assert_eq!(narrow.found.len(), 10);
            let mut all_at_once = scan(direction, 10);
            all_at_once.take_in((0..3).flat_map(|shard| page(shard, 2_999)).collect());
            assert_eq!(narrow.found, all_at_once.found, "it matters not in which order pages come");
            let mut more = scan(direction, 4_097);
            (0..3).for_each(|shard| more.take_in(page(shard, 2_999)));
            assert!(more.is_too_large());
        }
    }

    #[test]
    fn what_lies_further_than_all_shards_have_been_read_does_not_count() {
        let mut scan = scan(Direction::Ascending, 10);
        scan.parts = vec![ScanPart { shard: ShardId(0), left: KeyRange::new(key(5_000), Key::from("a")) }];
        scan.take_in(choices(0..RANGE_DELETED_MAX, false));
        scan.take_in(choices(6_000..7_000, false));
        assert!(!scan.is_too_large());
        // Nine of ten are found, behind all of these.
        scan.take_in(choices(7_000..7_009, true));
        scan.parts[0].left = KeyRange::new(key(8_000), Key::from("a"));
        assert!(scan.is_too_large() && scan.last().is_none());
        // The tenth lies before some of them.
        scan.take_in(choices(5_000..5_001, true));
        assert!(scan.is_too_large() && scan.last() == Some(&key(7_008)));
        scan.take_in(choices(5_001..5_010, true));
        assert!(!scan.is_too_large() && scan.last() == Some(&key(5_009)));
    }

    /// What answers amount to that tell of key 1, read late: in each, its version and whether that has a value, if it tells of it at all.
    fn amounts_to(answers: &[Option<(u64, bool)>]) -> Choice {
        let range = KeyRange::new(key(0), key(9)).expect("it has keys");
        let told = |(index, told): (usize, &Option<(u64, bool)>)| {
            let result = |(time, has_value): (u64, bool)| {
                let version = Timestamp::new(time, types::ClientId(1));
                ReadResult { version, value: has_value.then(|| types::Value::from("1")), pending: PendingWrite::None }
            };
            let rows = told.iter().map(|told| (key(1), result(*told))).collect();
            ScanAnswer { from: index as u16, rows, prepared: Vec::new(), end: key(9), is_promised: true }
        };
        let answers = answers.iter().enumerate().map(told).collect();
        let (asked, replied, timed) = (Voters::default(), Voters::default(), (Time(0), Voters::default()));
        let (refusals, rounds, finishes) = (Vec::new(), 0, Finishes::default());
        let (operation, shard, direction, limit) = (1, ShardId(0), Direction::Ascending, 9);
        let request = ScanRequest { operation, shard, range, direction, limit, answers, asked, replied, timed, refusals, rounds, finishes };
        let late = Timestamp::new(1 << 40, types::ClientId(1));
        let page = request.page(2, 2, late, Quorums::new(1), &RecentCommits::default()).expect("there are two");
        page.choices.into_iter().next().expect("the key is told of")
    }

    #[test]
    fn an_old_value_of_which_some_tell_nothing_may_have_been_deleted() {
        let old = Some((5, true));
        let recent = Some(((1 << 40) - 9, true));
        assert!(matches!(amounts_to(&[old, old, old]), Choice::Newest(found) if found.value.is_some()));
        assert!(matches!(amounts_to(&[old, old, None]), Choice::WeakQuorum(found) if found.value.is_some()), "all are asked");
        assert!(
            matches!(amounts_to(&[recent, recent, None]), Choice::Newest(found) if found.value.is_some()),
            "a deletion of it would be told of"
        );
        assert!(matches!(amounts_to(&[old, old, old, old, None]), Choice::Newest(found) if found.value.is_some()), "enough validate it");
        assert!(
            matches!(amounts_to(&[old, old, None, None, None, None]), Choice::Newest(found) if found.value.is_none()),
            "enough have deleted it"
        );
    }

    #[test]
    fn who_tells_of_an_old_deletion_and_who_does_not_say_the_same() {
        let found = |answers: &[Option<(u64, bool)>]| match amounts_to(answers) {
            Choice::Newest(found) => (found.version, found.value, found.validated.count()),
            other => panic!("{other:?}"),
        };
        assert_eq!(found(&[Some((7, false)), None, None, Some((6, false))]), (Timestamp::ZERO, None, 4));
        let recent = (1 << 40) - 9;
        assert_eq!(found(&[Some((recent, false)); 4]), (Timestamp::new(recent, types::ClientId(1)), None, 4));
    }
}
