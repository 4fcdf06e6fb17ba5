//! Rebuilding: how a replica that lost its disk comes back (beyond the paper).
//!
//! Whatever it said before is forgotten, which is a fault. It stops being one when nothing that the replica says can contradict that. So it
//! begins with an empty store that bears the mark of the loss ([`mark`]), and is silent at first:
//!
//! 1. **The bound.** A replica speaks of nothing beyond its clock and the time bound. So as soon as its clock is set, that and some more is the
//!    time up to which it may have spoken. It is on disk before anything is said. Up to there it never votes, logs, elects or answers reads any more.
//! 2. **What it may have voted for.** It asks the others of its shard what they hold undecided up to the bound ([`Message::UndecidedQuery`]). They answer once
//!    they judge nothing there any more, and never will. What any of `4f` holds, this replica holds from then on as if it had voted to commit it.
//! 3. **What has committed.** Then it compares all versions with those who answered ([`crate::catch_up`]). A page counts once `4f` of them have shown all of
//!    it, and no more than `f` of them show something newer of any key.
//!
//! ```text
//!   UndecidedQuery(bound, place) ▶ every other of the shard
//!                        ◀─────── UndecidedReply(transactions)   what any of 4f holds
//! ```
//!
//! Then, once what it holds up to the bound has ended, it reads and votes again, above every version that anybody may have by then. `docs/protocols/basil.md` argues why this is safe, and why nothing
//! stays undecided when another replica loses its disk later on. After a crash it goes on with the same bound, and asks again.
//!
//! One that could not read some rows, and gave them up, does the same with what it still has (`note_lost_rows`).

use std::collections::{BTreeMap, BTreeSet};

use machine::Time;
use mutants::{Mutant, broken};
use store::{StorageBackend, Store, StoreError};
use types::codec::Encode as _;
use types::{Party, ReplicaId, Timestamp, TransactionId};

use super::catch_up::Service;
use super::{Out, Replica};
use crate::certificate::{Decision, Vote};
use crate::message::{KeyVersion, Message, Place, Refusal, Subject, TRANSACTIONS_MAX};
use crate::record::Record;
use crate::transaction::Transaction;
use crate::transaction_state::{Quota, QuotaOwner};
use crate::transaction_table::TransactionTable;

/// By so many time bounds clocks of correct replicas may have been apart, and ahead, when the disk was lost: ten times what they should be.
pub(super) const BOUNDS_APART: u64 = 10;
/// For so many windows at most a replica waits until what it holds has ended.
const WAIT_WINDOWS_MAX: u64 = 10;
/// How often a replica asks those who have not answered, in milliseconds.
const ASK_MS: u64 = 500;
/// What one other replica has shown may be undecided here, in transactions and in bytes. Who shows more is asked again when some of it has ended.
const SHOWN_MAX: usize = 1 << 14;
const SHOWN_BYTES_MAX: usize = 64 << 20;
/// The transactions in one answer may take so many bytes before they are more than enough.
const ANSWER_BYTES_ENOUGH: usize = 1 << 20;

/// Writes into an empty store that what this replica said before is lost. Whoever opens it then rebuilds itself.
///
/// # Errors
/// When the store fails, or is not empty.
pub fn mark<M: StorageBackend>(store: &mut Store<M>) -> Result<(), StoreError> {
    if store.replay()?.is_some() || store.watermark().time > 0 {
        return Err(StoreError::Closed("it is not empty".to_owned()));
    }
    let record = Record::DiskLost { up_to: 0, is_rebuilding: true };
    store.append_with(|bytes| record.encode(bytes));
    store.close()
}

/// What could not be read of the base table was given up. Who lacks versions may contradict what it said as much as who forgot its votes, and makes up for it in the
/// same way: it keeps what it has, is silent, and takes over what it lacks. The store says so until that is done.
pub(super) fn note_lost_rows<M: StorageBackend>(table: &mut TransactionTable<M>) {
    // One that is being rebuilt compares all versions from the beginning in any case.
    let is_rebuilding = matches!(table.disk_lost(), Some((_, true)));
    if table.store.has_lost_rows() && !is_rebuilding && !broken(Mutant::LostRowsIgnored) {
        table.set_disk_lost(0, true);
    }
}

/// How far a replica is that rebuilds itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RebuildProgress {
    /// How many seconds it will certainly be silent, until the others judge nothing any more that it may have voted on.
    pub seconds_left: u64,
    /// How many others have shown all that they hold undecided.
    pub shown: usize,
    /// How many have to.
    pub needed: usize,
    /// For how many transactions' end it waits, once all versions have been compared.
    pub undecided: usize,
}

/// What others have shown since this process began.
#[derive(Debug, Default)]
pub(super) struct Rebuild {
    /// When this replica last did anything.
    now: Time,
    ask_at: Time,
    /// When enough had shown all.
    complete_at: Option<Time>,
    /// All versions have been compared since.
    has_compared: bool,
    shown: BTreeMap<u16, Shown>,
    /// By how many others each transaction was shown whose end is not known here.
    shown_by: BTreeMap<TransactionId, usize>,
    /// For the end of how many it waits, since all versions were compared.
    undecided: usize,
}

/// What one other replica has shown.
#[derive(Clone, Copy, Debug, Default)]
struct Shown {
    /// Up to here.
    up_to: Option<Place>,
    /// It has shown all when so many pages of versions had been asked for.
    all_at_page: Option<u64>,
}

impl Rebuild {
    /// Those who have shown all before that page was asked for.
    pub(super) fn has_shown_before(&self, peer: u16, page: u64) -> bool {
        broken(Mutant::UndecidedUnasked) || self.shown.get(&peer).and_then(|shown| shown.all_at_page).is_some_and(|at| at < page)
    }

    /// Asks all others anew.
    pub(super) fn begin_again(&mut self) {
        *self = Self { now: self.now, ..Self::default() };
    }

    fn complete(&self) -> usize {
        self.shown.values().filter(|shown| shown.all_at_page.is_some()).count()
    }
}

impl<M: StorageBackend> Replica<M> {
    /// Whether this replica lost its disk, and is silent until it cannot contradict what it said before.
    #[must_use]
    pub fn is_rebuilding(&self) -> bool {
        self.table.disk_lost().is_some_and(|(_, is_rebuilding)| is_rebuilding) && !broken(Mutant::RebuildSkipped)
    }

    /// How far that is.
    #[must_use]
    pub fn rebuild_progress(&self) -> Option<RebuildProgress> {
        let (up_to, _) = self.table.disk_lost().filter(|_| self.is_rebuilding())?;
        let seconds_left =
            (up_to.saturating_add(self.options.window_ms * 1_000_000)).saturating_sub(self.rebuild.now.0).div_ceil(1_000_000_000);
        let Rebuild { undecided, .. } = self.rebuild;
        Some(RebuildProgress { seconds_left, shown: self.rebuild.complete(), needed: self.quorums.compared(), undecided })
    }

    /// As soon as its clock is known, a replica that lost its disk notes up to when it may have said anything.
    pub(super) fn begin_rebuilding(&mut self, now: Time) {
        self.rebuild.now = now;
        if self.table.disk_lost() != Some((0, true)) || broken(Mutant::LostBoundUnset) {
            return;
        }
        // Never below an earlier one.
        let bounds = if broken(Mutant::LostBoundShort) { 0 } else { BOUNDS_APART };
        let up_to = now.after_ms(bounds * self.options.time_bound_ms).0.max(1).max(self.table.low_watermark());
        if broken(Mutant::LostBoundUnlogged) {
            self.table.restore_disk_lost(up_to, true);
            self.table.restore_low_watermark(up_to.saturating_add(1));
        } else {
            self.table.set_disk_lost(up_to, true);
            self.table.raise_low_watermark(up_to.saturating_add(1));
        }
    }

    /// While it rebuilds itself, a replica only learns. Who wants to read is told to ask others.
    pub(super) fn hear_while_rebuilding(&mut self, from: Party, message: Message, out: &mut Out<M>) -> Option<Message> {
        if !self.is_rebuilding() {
            return Some(message);
        }
        match message {
            Message::Writeback { relay: _, transaction, certificate } => {
                Some(Message::Writeback { relay: false, transaction, certificate })
            }
            Message::CommitNotice { .. }
            | Message::StatusReply { .. }
            | Message::CommitsReply { .. }
            | Message::TransactionsReply { .. }
            | Message::VersionsReply { .. }
            | Message::UndecidedReply { .. } => Some(message),
            Message::Read { request, .. } | Message::Scan { request, .. } => {
                self.refuse(from, Subject::Request(request), Refusal::NO_ROOM, out);
                None
            }
            _ => None,
        }
    }

    /// When to ask the others next.
    pub(super) fn rebuild_deadline(&self) -> Option<Time> {
        self.is_rebuilding().then_some(self.rebuild.ask_at)
    }

    /// Asks those who have not shown all that they hold undecided, and ends the rebuilding when there is nothing left to wait for.
    pub(super) fn step_rebuild(&mut self, now: Time, out: &mut Out<M>) -> Result<(), StoreError> {
        let Some((up_to, _)) = self.table.disk_lost().filter(|_| self.is_rebuilding() && self.rebuild.ask_at <= now) else { return Ok(()) };
        // Nobody answers before.
        let until = Time(up_to).after_ms(if broken(Mutant::UndecidedShownEarly) { 0 } else { self.options.window_ms });
        if now < until {
            self.rebuild.ask_at = until;
            return Ok(());
        }
        self.rebuild.ask_at = now.after_ms(ASK_MS);
        for replica in self.cluster.replicas_of(self.me.shard).filter(|replica| *replica != self.me) {
            let shown = self.rebuild.shown.entry(replica.index).or_default();
            if shown.all_at_page.is_none() {
                out.send(Party::Replica(replica), Message::UndecidedQuery { up_to, after: shown.up_to });
            }
        }
        // Of what has ended nothing is kept, however much a liar makes up.
        let table = &self.table;
        self.rebuild.shown_by.retain(|id, _| table.get(*id).is_some_and(|state| state.decision().is_none()));
        self.end_rebuilding_if_due(now)
    }

    /// Another of the shard lost its disk, and asks what is undecided up to `up_to`. It is told once nothing new is judged there any
    /// more, which this replica promises on its disk: so nothing comes to what it shows prepared.
    pub(super) fn on_undecided_query(&mut self, now: Time, from: Party, up_to: u64, after: Option<Place>, out: &mut Out<M>) {
        let is_early = up_to >= self.watermark(now) && !broken(Mutant::UndecidedShownEarly);
        if is_early || self.served_peer(now, from, Service::Undecided).is_none() {
            return;
        }
        if !broken(Mutant::UndecidedShownEarly) {
            self.table.raise_low_watermark(up_to.saturating_add(1));
        }
        let places = self.shown_up_to(up_to, after);
        let (mut transactions, mut bytes) = (Vec::new(), 0);
        for state in places.iter().filter_map(|place| self.table.get(place.id)) {
            if bytes >= ANSWER_BYTES_ENOUGH || transactions.len() >= TRANSACTIONS_MAX {
                break;
            }
            bytes += state.transaction.encoded_bytes();
            transactions.push(state.transaction.clone());
        }
        let is_last = transactions.len() == places.len();
        out.send_large(from, Message::UndecidedReply { up_to, after, transactions, is_last }, bytes);
    }

    /// Another of the shard shows what it holds undecided. This replica may have voted for any of it, and the others may need all of themselves to end it. What is
    /// made up ends like whatever nobody else knows.
    pub(super) fn on_undecided_reply(
        &mut self,
        now: Time,
        from: Party,
        (shown_up_to, after): (u64, Option<Place>),
        transactions: &[Transaction],
        is_last: bool,
        out: &mut Out<M>,
    ) -> Result<(), StoreError> {
        let (Some(peer), Some((up_to, true))) = (self.shard_peer(from), self.table.disk_lost()) else { return Ok(()) };
        let Some(shown) = self.rebuild.shown.get_mut(&peer.index) else { return Ok(()) };
        if shown_up_to != up_to || after != shown.up_to || shown.all_at_page.is_some() || (transactions.is_empty() && !is_last) {
            return Ok(());
        }
        let quota = Quota::prepare(QuotaOwner::Replica(peer));
        let held = self.table.undecided_of(quota);
        let fits = |transaction: &Transaction| transaction.timestamp().time <= up_to && transaction.is_whole();
        if held.transactions > SHOWN_MAX || held.bytes > SHOWN_BYTES_MAX || !transactions.iter().all(fits) {
            return Ok(());
        }
        shown.up_to = transactions.last().map(Place::of).or(shown.up_to);
        let next = shown.up_to;
        for transaction in transactions {
            self.hold(now, quota, transaction)?;
            let id = transaction.id();
            if self.table.get(id).is_some_and(|state| state.decision().is_none()) {
                *self.rebuild.shown_by.entry(id).or_default() += 1;
            }
        }
        if !is_last {
            out.send(Party::Replica(peer), Message::UndecidedQuery { up_to, after: next });
            return Ok(());
        }
        let page = self.catch_up.last_page();
        if let Some(shown) = self.rebuild.shown.get_mut(&peer.index) {
            shown.all_at_page = Some(page);
        }
        let needed = if broken(Mutant::UndecidedOfOne) { 1 } else { self.quorums.compared() };
        if self.rebuild.complete() == needed {
            self.rebuild.complete_at = Some(now);
            self.catch_up.begin_again(now);
        }
        Ok(())
    }

    /// What this replica knew of `transaction` may rest on rows that it gave up. If it committed, what it wrote is put back, since others may not know yet; if it was
    /// released, as newer versions were known, it is held anew.
    fn make_up_for(&mut self, transaction: &Transaction) -> Result<(), StoreError> {
        let (id, timestamp) = (transaction.id(), transaction.timestamp());
        let has_committed = self.table.remembered_outcome(id).is_some_and(|remembered| remembered.decision == Decision::Commit);
        for write in transaction.writes().iter().filter(|_| has_committed) {
            // Below the watermark it is known no better than there, and hidden by whatever is newer there.
            let known_from = timestamp.time.max(self.table.store.watermark().time);
            let above = Timestamp::above_all_before(known_from.saturating_add(1));
            if self.table.holds(&write.key)
                && self.table.store.latest_timestamp_before(&write.key, above)?.is_none_or(|own| own < timestamp)
            {
                self.take_over_version(&write.key, &KeyVersion { version: timestamp, value: write.value.clone() });
            }
        }
        if self.table.get(id).is_some_and(|state| state.is_released() && state.vote() == Some(Vote::Commit)) {
            self.table.forget(id);
        }
        Ok(())
    }

    /// From now on `transaction` counts as one that this replica has voted to commit, until it is known how it ends. Nobody is told so.
    fn hold(&mut self, now: Time, quota: Quota, transaction: &Transaction) -> Result<(), StoreError> {
        if self.table.store.has_lost_rows() && !broken(Mutant::GivenUpUnmended) {
            self.make_up_for(transaction)?;
        }
        let id = transaction.id();
        if self.table.get(id).is_some_and(|state| state.vote().is_some() || state.decision().is_some()) {
            return Ok(());
        }
        let outcome = self.table.remembered_outcome(id).map(|remembered| remembered.decision);
        if outcome.is_some() || !transaction.touches(&self.cluster, self.me.shard) {
            return Ok(());
        }
        let record = Record::Voted { transaction: transaction.clone(), vote: Vote::Commit };
        self.table.store.append_with(|bytes| record.encode(bytes));
        self.table.enter(transaction, now, quota);
        self.table.restore_vote(id, Vote::Commit);
        self.stall_timers.met(now, id);
        Ok(())
    }

    /// Whether what `peer` shows of a page counts for a replica that rebuilds itself: it has shown before what it holds undecided.
    pub(super) fn has_shown_undecided(&self, peer: u16, page: u64) -> bool {
        self.rebuild.has_shown_before(peer, page)
    }

    /// Whether enough have shown what they hold undecided, so that versions are compared for the last time.
    pub(super) fn compares_last(&self) -> bool {
        let needed = if broken(Mutant::UndecidedOfOne) { 1 } else { self.quorums.compared() };
        self.is_rebuilding() && (self.rebuild.complete() >= needed || broken(Mutant::UndecidedUnasked))
    }

    /// How many transactions are undecided up to its bound that this replica holds open, or that so many others have shown that one of them is correct. It never
    /// speaks of these. While it is silent, no second one loses its disk, and the others can end them all.
    fn awaited_ends(&self, up_to: u64) -> usize {
        let open = self.table.undecided_up_to(up_to, None, u64::MAX).into_iter().map(|place| place.id);
        let is_undecided = |id: &TransactionId| self.table.get(*id).is_some_and(|state| state.decision().is_none());
        let shown =
            self.rebuild.shown_by.iter().filter(|(id, count)| **count >= self.quorums.weak() && is_undecided(id)).map(|(id, _)| *id);
        open.chain(shown).collect::<BTreeSet<_>>().len()
    }

    /// What this replica shows of what it holds undecided up to `up_to`, behind that place. What was released counts for as long as others may wait for its end: it may
    /// be undecided on another shard.
    fn shown_up_to(&self, up_to: u64, after: Option<Place>) -> Vec<Place> {
        let released_from = up_to.saturating_sub(WAIT_WINDOWS_MAX * self.options.window_ms * 1_000_000);
        self.table.undecided_up_to(up_to, after, released_from)
    }

    /// Whether so many others have shown `id` that one of them is correct. Until it has ended a replica that lost its disk does not release it.
    pub(super) fn awaits_end_of(&self, id: TransactionId) -> bool {
        let shown = self.rebuild.shown_by.get(&id).copied().unwrap_or_default();
        self.is_rebuilding() && shown >= self.quorums.weak() && !broken(Mutant::HeldReleased)
    }

    /// All versions were compared with enough of those who had shown what they hold undecided.
    pub(super) fn note_compared(&mut self, now: Time) -> Result<(), StoreError> {
        self.rebuild.has_compared = true;
        self.end_rebuilding_if_due(now)
    }

    /// Ends the rebuilding when nothing is left to wait for. Nobody keeps this replica silent for ever by showing what does not end.
    fn end_rebuilding_if_due(&mut self, now: Time) -> Result<(), StoreError> {
        let Some((up_to, true)) = self.table.disk_lost().filter(|_| self.rebuild.has_compared) else { return Ok(()) };
        self.rebuild.undecided = if broken(Mutant::EndsUnawaited) { 0 } else { self.awaited_ends(up_to) };
        let may_wait = self.rebuild.complete_at.is_some_and(|at| now < at.after_ms(WAIT_WINDOWS_MAX * self.options.window_ms));
        if self.rebuild.undecided > 0 && may_wait { Ok(()) } else { self.end_rebuilding(now) }
    }

    /// This replica speaks again.
    fn end_rebuilding(&mut self, now: Time) -> Result<(), StoreError> {
        let Some((up_to, true)) = self.table.disk_lost() else { return Ok(()) };
        // Others may have released what this replica voted for and now lacks, for a version that is newer than what the pages showed. Correct clocks had reached that
        // version, so it lies below this. Nothing here is judged between the two, whatever clocks say.
        let above_all = now.after_ms(self.options.time_bound_ms).0.saturating_add(1);
        let judged_from = if broken(Mutant::RebuiltJudgesAtOnce) { 0 } else { above_all };
        self.table.raise_low_watermark(self.watermark(now).max(judged_from));
        self.table.set_disk_lost(up_to, false);
        self.rebuild = Rebuild::default();
        self.counts.rebuilt += 1;
        if self.table.store.has_lost_rows() { self.table.store.forget_lost_rows() } else { Ok(()) }
    }

    /// Another of this shard.
    pub(super) fn shard_peer(&self, from: Party) -> Option<ReplicaId> {
        match from {
            Party::Replica(peer) if peer.shard == self.me.shard && peer != self.me => Some(peer),
            Party::Replica(_) | Party::Client(..) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use machine::Outbox;
    use store::{Memory, Options};
    use types::{ClientId, Key, ShardId, Value};

    use super::*;
    use crate::replica::ReplicaOptions;
    use crate::testing::one_shard;
    use crate::transaction::Write;

    #[test]
    fn what_was_logged_or_released_is_shown_until_it_has_ended() {
        let (cluster, now) = (one_shard(), Time(0).after_ms(1_000_000));
        let transaction = |key: &str, number: u64| {
            let write = Write { key: Key::from(key), value: None };
            Transaction::new(cluster.id(), Timestamp::new(now.0, ClientId(number)), vec![], vec![write]).expect("it is small")
        };
        let (logged, voted_down, ended, released) = (transaction("a", 1), transaction("b", 2), transaction("c", 3), transaction("d", 4));
        let (medium, me) = (Memory::new("shown"), ReplicaId { shard: ShardId(0), index: 0 });
        let options = ReplicaOptions { window_ms: 2_000, ..ReplicaOptions::default() };
        let open = || {
            let store = Store::open(medium.clone(), Options::default()).expect("it opens");
            Replica::open(cluster.clone(), me, options, store, now).expect("it comes back")
        };
        let mut replica = open();
        let log =
            |transaction: &Transaction| Record::Logged { transaction: None, id: transaction.id(), decision: Decision::Abort, view: 0 };
        let voted = [&logged, &voted_down, &ended].map(|one| Record::Voted { transaction: one.clone(), vote: Vote::Abort });
        let end = Record::Decided { transaction: None, id: ended.id(), decision: Decision::Abort };
        let prepared = Record::Voted { transaction: released.clone(), vote: Vote::Commit };
        let release = Record::OrphanReleased { id: released.id(), end: None, versions: Vec::new() };
        for record in voted.into_iter().chain([log(&logged), log(&ended), end, prepared, release]) {
            replica.table.store.append_with(|bytes| record.encode(bytes));
        }
        replica.table.store.sync().expect("memory does not fail");
        drop(replica);
        let (mut replica, mut out) = (open(), Outbox::default());
        let asks = Party::Replica(ReplicaId { index: 3, ..me });
        replica.on_undecided_query(now.after_ms(3_000), asks, now.0 + 5, None, &mut out);
        let [(_, Message::UndecidedReply { transactions, is_last: true, .. })] = &out.sends[..] else { panic!("{:?}", out.sends) };
        assert_eq!(
            *transactions,
            [logged, released],
            "others may need what is said of them; of what has only a vote against it no more is to be said"
        );
        let later = now.0 + (WAIT_WINDOWS_MAX + 1) * options.window_ms * 1_000_000;
        assert!(replica.shown_up_to(later, None).len() == 1, "what was released long ago has been waited for long enough");
    }

    #[test]
    fn what_was_released_is_held_anew_once_rows_were_given_up() {
        let (cluster, medium, now) = (one_shard(), Memory::new("released"), Time(0).after_ms(1_000_000));
        let open = || {
            let store = Store::open(medium.clone(), Options::default()).expect("it opens");
            let me = ReplicaId { shard: ShardId(0), index: 0 };
            Replica::open(cluster.clone(), me, ReplicaOptions::default(), store, now).expect("it comes back")
        };
        let write = Write { key: Key::from("a"), value: Some(Value::from("1")) };
        let transaction = Transaction::new(cluster.id(), Timestamp::new(now.0, ClientId(1)), vec![], vec![write]).expect("it is small");
        let (id, quota) = (transaction.id(), Quota::prepare(QuotaOwner::Client(ClientId(1))));
        let mut replica = open();
        for record in [
            Record::Voted { transaction: transaction.clone(), vote: Vote::Commit },
            Record::OrphanReleased { id, end: None, versions: Vec::new() },
        ] {
            replica.table.store.append_with(|bytes| record.encode(bytes));
        }
        replica.table.store.sync().expect("memory does not fail");
        for loses_rows in [false, true] {
            if loses_rows {
                medium.lose_row(&Key::from("a"));
            }
            replica = open();
            assert!(replica.table.get(id).is_some_and(|state| state.is_released()));
            replica.begin_rebuilding(now);
            replica.hold(now, quota, &transaction).expect("memory does not fail");
            assert_eq!(replica.table.get(id).is_some_and(|state| state.is_prepared()), loses_rows);
        }
        // Nor is it forgotten after a crash.
        replica.table.store.sync().expect("memory does not fail");
        drop(replica);
        assert!(open().table.get(id).is_some_and(|state| state.is_prepared()));
    }
}
