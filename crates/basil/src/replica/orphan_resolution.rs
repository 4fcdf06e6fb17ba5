//! Resolution of orphans: what a replica holds undecided below its watermark when the others have forgotten it.
//!
//! A replica that was down or cut off for longer than the window comes back with transactions on which it voted and whose outcome it
//! missed. Replicas that never saw them vote them down (`tombstones.rs`). Replicas that may have forgotten them refuse to vote, and a
//! refusal proves nothing. So recovery (§5) finds no quorum. (The paper forgets nothing, and so has no such case.)
//!
//! The replica asks the others ([`Message::StatusQuery`]). Each that will not vote for the transaction any more promises so on its disk
//! and answers with the versions it has of the keys, and with the outcome if it remembers that ([`Message::StatusReply`]). From the
//! answers follows one of three things: the transaction never commits, or whether it did does not matter here any more (then the orphan is
//! *released*: it stands in nobody's way any more), or it ended as `f + 1` replicas of one shard remember. `docs/protocols/basil.md`
//! has the cases, the argument for each, and what remains unresolved.
//!
//! A released transaction may still be undecided on another shard, or have committed without anybody's knowing. So what this replica
//! said of it is kept, and said again to whoever comes to finish it: its vote, the decision it logged, its view.

use std::collections::BTreeMap;

use crate::transaction::Transaction;
use machine::Time;
use mutants::{Mutant, broken};
use store::{StorageBackend, StoreError, VersionRef};
use types::codec::Encode as _;
use types::{Cluster, Key, Party, ReplicaId, ShardId, Timestamp, TransactionId};

use super::reads::READ_REPLY_BYTES_MAX;
use super::{Out, Replica};
use crate::certificate::{Decision, Vote};
use crate::check::AbortReason;
use crate::message::{KeyVersion, Message, OldVersion};
use crate::quorum::Quorums;
use crate::record::Record;
use crate::transaction_state::TransactionState;
use crate::transaction_table::TransactionTable;

/// The most transactions asked about at once; the others wait for their turn.
const QUERIES_MAX: usize = 256;
/// An inquiry without result makes room for another after so long, in milliseconds.
const QUERY_MS: u64 = 20_000;
/// The most inquiries without result that are kept in mind.
const FRUITLESS_MAX: usize = 1 << 14;
/// So many bytes of rows, and one row more, are read from the base table for one question of another.
const QUERY_READ_BYTES_MAX: u64 = 64 << 20;
/// And so many a second for all questions of one other,
const QUERY_READ_BYTES_PER_SECOND: u64 = 16 << 20;
/// of which so many milliseconds' worth may come at once.
const QUERY_READ_BURST_MS: u64 = 1_000;
/// The first wait before everybody is asked again, in milliseconds; doubled each time.
const ASK_AGAIN_MS: u64 = 1_000;

/// What others have said of one transaction and its keys.
#[derive(Debug)]
struct OrphanQuery {
    transaction: Transaction,
    since: Time,
    ask_again: Time,
    times_asked: u32,
    answers: Vec<(ReplicaId, Answer)>,
}

/// What one replica says that holds it no more.
#[derive(Debug, PartialEq)]
pub(super) struct Answer {
    /// How it ended, if that is remembered.
    pub(super) end: Option<Decision>,
    /// Which versions it has of the keys written, in their order.
    pub(super) versions: Vec<OldVersion>,
}

/// What the replica that asks could say itself.
#[derive(Debug)]
struct OwnWord {
    /// Of each key of its shard that the transaction writes, in order: whether it has a version not older than the transaction.
    is_newer: Vec<bool>,
    /// It has not voted to commit the transaction, and never will.
    never_votes_for: bool,
}

/// What the answers allow.
#[derive(Debug, PartialEq)]
enum Resolution {
    /// To wait for more.
    NotYet,
    /// To release the transaction, having taken over these versions; or to conclude it, if it is said as well how it ended.
    Release(Vec<(Key, KeyVersion)>, Option<Decision>),
    /// It ended like this, or never commits.
    Ended(Decision),
}

/// The inquiries of one replica.
#[derive(Debug, Default)]
pub(super) struct StatusQueries {
    open: BTreeMap<TransactionId, OrphanQuery>,
    /// Transactions whose inquiry had its time without result, and until when others come first.
    fruitless: BTreeMap<TransactionId, Time>,
    /// What the questions of each other replica had read from disk, as the time up to which that takes at its rate.
    read_until: BTreeMap<ReplicaId, Time>,
}

impl StatusQueries {
    /// What was said under the keys that these replicas had counts no more.
    pub(super) fn forget_words_of(&mut self, replicas: &[ReplicaId]) {
        self.open.values_mut().for_each(|query| query.answers.retain(|(from, _)| !replicas.contains(from)));
    }

    /// Whether a question of `asker` may have more read from disk.
    fn may_have_read(&self, now: Time, asker: ReplicaId) -> bool {
        self.read_until.get(&asker).is_none_or(|until| *until <= now.after_ms(QUERY_READ_BURST_MS))
    }

    fn note_read(&mut self, now: Time, asker: ReplicaId, bytes: u64) {
        let until = self.read_until.entry(asker).or_default();
        *until = now.max(*until).after_us(bytes.saturating_mul(1_000_000) / QUERY_READ_BYTES_PER_SECOND);
    }

    /// Ends those whose transaction has ended, and those that have had their time.
    pub(super) fn prune<M: StorageBackend>(&mut self, now: Time, table: &TransactionTable<M>) {
        let is_open = |id: &TransactionId| table.get(*id).is_some_and(TransactionState::is_open);
        let fruitless = &mut self.fruitless;
        self.open.retain(|id, query| {
            let is_kept = is_open(id) && query.since.after_ms(QUERY_MS) > now;
            if !is_kept && is_open(id) && fruitless.len() < FRUITLESS_MAX && !broken(Mutant::QueriesHogged) {
                fruitless.insert(*id, now.after_ms(QUERY_MS));
            }
            is_kept
        });
        fruitless.retain(|_, until| *until > now);
    }

    /// Whether an inquiry about `id` may go on, or begin: not while there is no room, nor so soon after one without result that it
    /// would keep out others.
    fn admits(&self, id: TransactionId) -> bool {
        self.open.contains_key(&id)
            || (self.open.len() < QUERIES_MAX && (self.fruitless.len() < QUERIES_MAX || !self.fruitless.contains_key(&id)))
    }
}

/// The keys of `shard` that `transaction` writes, in order.
fn written<'a>(cluster: &'a Cluster, shard: ShardId, transaction: &'a Transaction) -> impl Iterator<Item = &'a Key> {
    transaction.writes().iter().map(|write| &write.key).filter(move |key| cluster.shard_of(key) == shard)
}

impl OrphanQuery {
    /// Keeps what counts of an answer; says whether it is news.
    fn note(&mut self, cluster: &Cluster, from: ReplicaId, mut answer: Answer) -> bool {
        let versions = &mut answer.versions;
        let fits = self.transaction.participants(cluster).contains(&from.shard)
            && versions.len() == written(cluster, from.shard, &self.transaction).count()
            && versions.iter().filter_map(|one| one.value.as_ref()?.as_ref()).map(|value| value.as_bytes().len()).sum::<usize>()
                <= READ_REPLY_BYTES_MAX;
        if !fits {
            return false;
        }
        for one in versions {
            let counts = one.version >= self.transaction.timestamp();
            // Of its own, or it would keep the frame it came in.
            one.value = one.value.take().filter(|_| counts).map(|value| value.map(|value| value.detached()));
        }
        match self.answers.iter_mut().find(|(replica, _)| *replica == from) {
            Some((_, known)) if *known == answer => false,
            Some((_, known)) => {
                *known = answer;
                true
            }
            None => {
                self.answers.push((from, answer));
                true
            }
        }
    }

    fn judge(&self, cluster: &Cluster, quorums: Quorums, shard: ShardId, own: &OwnWord) -> Resolution {
        if self.never_commits(cluster, quorums, shard, own) {
            return Resolution::Ended(Decision::Abort);
        }
        let taken = self.newer_versions(cluster, quorums, shard, &own.is_newer);
        let needed = if broken(Mutant::OutcomeTakenFromOne) { 1 } else { quorums.weak() };
        let said = |shard: ShardId, decision: Decision| {
            self.answers.iter().filter(|(replica, answer)| replica.shard == shard && answer.end == Some(decision)).count()
        };
        let participants = self.transaction.participants(cluster);
        let ended = |decision: &Decision| participants.iter().any(|shard| said(*shard, *decision) >= needed);
        let end = [Decision::Commit, Decision::Abort].into_iter().find(ended);
        match (taken, end) {
            (Some(taken), end) => Resolution::Release(taken, end),
            (None, Some(end)) => Resolution::Ended(end),
            (None, None) => Resolution::NotYet,
        }
    }

    fn versions_of(&self, shard: ShardId) -> impl Iterator<Item = &Vec<OldVersion>> {
        self.answers.iter().filter(move |(replica, _)| replica.shard == shard).map(|(_, answer)| &answer.versions)
    }

    /// So many of a shard have only older versions of one of its keys, and vote for it no more, that it never commits. This replica, of shard
    /// `mine`, is one of them if that is so of it.
    fn never_commits(&self, cluster: &Cluster, quorums: Quorums, mine: ShardId, own: &OwnWord) -> bool {
        let timestamp = self.transaction.timestamp();
        self.transaction.participants(cluster).into_iter().any(|shard| {
            (0..written(cluster, shard, &self.transaction).count()).any(|place| {
                let others = self.versions_of(shard).filter(|versions| versions[place].version < timestamp).count();
                let counts_itself = shard == mine && own.never_votes_for && own.is_newer.get(place) == Some(&false);
                others + usize::from(counts_itself) >= quorums.release()
            })
        })
    }

    /// Which versions to take over for it to be released, ended or not.
    fn newer_versions(&self, cluster: &Cluster, quorums: Quorums, shard: ShardId, own: &[bool]) -> Option<Vec<(Key, KeyVersion)>> {
        let timestamp = self.transaction.timestamp();
        let mut taken = Vec::new();
        for (place, key) in written(cluster, shard, &self.transaction).enumerate() {
            if own.get(place) == Some(&true) {
                continue;
            }
            let shown =
                self.versions_of(shard).map(|versions| &versions[place]).filter(|one| one.version >= timestamp && one.value.is_some());
            let needed = if broken(Mutant::VersionTakenFromOne) { 1 } else { quorums.weak() };
            let by_weak_quorum = shown.filter(|one| self.versions_of(shard).filter(|versions| versions[place] == **one).count() >= needed);
            let Some(OldVersion { version, value: Some(value) }) = by_weak_quorum.max_by_key(|one| one.version) else { return None };
            taken.push((key.clone(), KeyVersion { version: *version, value: value.clone() }));
        }
        if own.is_empty() && self.versions_of(shard).count() < quorums.release() {
            return None;
        }
        Some(taken)
    }
}

impl<M: StorageBackend> Replica<M> {
    /// Asks everybody else about an undecided transaction below the watermark, ever more rarely.
    pub(super) fn query_status(&mut self, now: Time, id: TransactionId, out: &mut Out<M>) {
        let Some(state) = self.table.get(id) else { return };
        let timestamp = state.transaction.timestamp();
        if timestamp.time >= self.watermark(now) || !self.status_queries.admits(id) {
            return;
        }
        let begin =
            || OrphanQuery { transaction: state.transaction.clone(), since: now, ask_again: now, times_asked: 0, answers: Vec::new() };
        let query = self.status_queries.open.entry(id).or_insert_with(begin);
        if query.ask_again > now {
            return;
        }
        query.ask_again = now.after_ms(ASK_AGAIN_MS << query.times_asked.min(8));
        query.times_asked += 1;
        for shard in query.transaction.participants(&self.cluster) {
            let keys: Vec<Key> = written(&self.cluster, shard, &query.transaction).cloned().collect();
            for replica in self.cluster.replicas_of(shard).filter(|replica| *replica != self.me) {
                out.send(Party::Replica(replica), Message::StatusQuery { id, timestamp, keys: keys.clone() });
            }
        }
    }

    /// Somebody else holds a transaction undecided. If this replica will not vote to commit it any more, it says so, and what it has of
    /// its keys. The promise is logged before it leaves: below the low watermark nothing new is judged. (Who asks for other keys
    /// than the transaction's fools itself alone.)
    pub(super) fn on_status_query(
        &mut self,
        now: Time,
        from: Party,
        id: TransactionId,
        timestamp: Timestamp,
        keys: &[Key],
        out: &mut Out<M>,
    ) -> Result<(), StoreError> {
        let watermark = self.watermark(now);
        let Party::Replica(requester) = from else { return Ok(()) };
        if timestamp.time >= watermark || !keys.iter().all(|key| self.table.holds(key)) {
            return Ok(());
        }
        let mut may_commit = self.table.lost_what_was_said_at(timestamp.time) && self.table.remembered_outcome(id).is_none();
        if let Some(state) = self.table.get(id) {
            if let Some(certificate) = self.table.proof_of(state) {
                out.send(from, Message::Writeback { transaction: None, certificate: certificate.clone(), relay: false });
                return Ok(());
            }
            may_commit = state.decision().is_none() && may_have_voted_for(&self.table, state);
            if may_commit && !state.is_released() {
                return Ok(());
            }
        }
        if !self.status_queries.may_have_read(now, requester) && !broken(Mutant::QueryReadsUncharged) {
            return Ok(()); // It will ask again.
        }
        let (mut versions, is_of_shard) = (Vec::with_capacity(keys.len()), requester.shard == self.me.shard);
        let (mut bytes, read_before) = (0, self.table.store.base_table_read_bytes());
        for key in keys {
            let read = self.table.store.base_table_read_bytes() - read_before;
            if read > QUERY_READ_BYTES_MAX && !broken(Mutant::QueryReadsAll) {
                self.status_queries.note_read(now, requester, read);
                return Ok(()); // It will ask again, and find in memory what was read for it.
            }
            let room = READ_REPLY_BYTES_MAX - bytes;
            // Values are large, and most are not shown.
            let show = |found: VersionRef<'_>| {
                let is_shown = found.timestamp >= timestamp && is_of_shard && found.value.map_or(0, <[u8]>::len) <= room;
                OldVersion { version: found.timestamp, value: is_shown.then(|| found.to_version().value) }
            };
            let found = self.table.store.with_latest_before(key, Timestamp::above_all_before(watermark), |found, _| found.map(show))?;
            let shown = found.unwrap_or(OldVersion { version: Timestamp::ZERO, value: None });
            bytes += shown.value.as_ref().and_then(Option::as_ref).map_or(0, |value| value.as_bytes().len());
            versions.push(shown);
        }
        self.status_queries.note_read(now, requester, self.table.store.base_table_read_bytes() - read_before);
        if may_commit && versions.iter().any(|one| one.version < timestamp) {
            return Ok(()); // It would count as one that never voted to commit.
        }
        self.table.raise_low_watermark(timestamp.time.saturating_add(1));
        let end = self.table.remembered_outcome(id).map(|end| end.decision);
        out.send_large(from, Message::StatusReply { id, end, versions }, bytes);
        Ok(())
    }

    /// What another has to say of a transaction asked about.
    pub(super) fn on_status_reply(
        &mut self,
        now: Time,
        from: Party,
        id: TransactionId,
        answer: Answer,
        out: &mut Out<M>,
    ) -> Result<(), StoreError> {
        let Party::Replica(from) = from else { return Ok(()) };
        let watermark = self.watermark(now);
        let Some(query) = self.status_queries.open.get_mut(&id) else { return Ok(()) };
        if !query.note(&self.cluster, from, answer) {
            return Ok(());
        }
        let timestamp = query.transaction.timestamp();
        let (mut is_newer, mut newest) = (Vec::new(), 0);
        for key in written(&self.cluster, self.me.shard, &query.transaction) {
            let version = self.table.store.latest_timestamp_before(key, Timestamp::above_all_before(watermark))?;
            newest = newest.max(version.map_or(0, |version| version.time));
            is_newer.push(version.is_some_and(|version| version >= timestamp));
        }
        let never_votes_for =
            self.table.get(id).is_some_and(|state| !may_have_voted_for(&self.table, state)) || broken(Mutant::OwnVoteForgotten);
        let own = OwnWord { is_newer, never_votes_for };
        let resolution = query.judge(&self.cluster, self.quorums, self.me.shard, &own);
        // It may be undecided elsewhere, and end there only while no second replica has lost what it said.
        let is_kept = matches!(resolution, Resolution::Release(_, None)) && self.awaits_end_of(id);
        if resolution == Resolution::NotYet || is_kept {
            return Ok(());
        }
        let Some(OrphanQuery { transaction, .. }) = self.status_queries.open.remove(&id) else { return Ok(()) };
        if self.table.get(id).is_none_or(|state| !state.is_open()) || timestamp.time >= watermark {
            return Ok(());
        }
        match resolution {
            Resolution::NotYet => {}
            Resolution::Release(taken, end) => {
                let newest = taken.iter().map(|(_, one)| one.version.time).fold(newest.max(timestamp.time), u64::max);
                self.table.raise_low_watermark(newest.saturating_add(1));
                self.forget_moments_below(newest);
                self.release_orphan(now, transaction, end, taken, out);
            }
            Resolution::Ended(decision) => {
                // As those promise who answered.
                self.table.raise_low_watermark(timestamp.time.saturating_add(1));
                self.conclude(now, transaction, decision, None, out);
            }
        }
        Ok(())
    }

    /// Takes over the newer versions of an orphan's keys. If nobody says how it ended, it is released, and what waited for it is voted down.
    fn release_orphan(
        &mut self,
        now: Time,
        transaction: Transaction,
        end: Option<Decision>,
        taken: Vec<(Key, KeyVersion)>,
        out: &mut Out<M>,
    ) {
        let id = transaction.id();
        if end.is_none() {
            // Whatever it waits for, it is too old to be voted for.
            self.cast(id, Vote::Abort, Some(AbortReason::TooOld), None, out);
        }
        let record = Record::OrphanReleased { id, end, versions: taken.clone() };
        self.table.store.append_with(|bytes| record.encode(bytes));
        self.table.release_orphan(id, end, taken);
        self.counts.orphans_released += 1;
        if let Some(decision) = end {
            self.conclude(now, transaction, decision, None, out);
            return;
        }
        let dependents = self.table.get_mut(id).map(TransactionState::take_dependents).unwrap_or_default();
        for dependent in dependents {
            self.dependency_ended(now, dependent, Decision::Abort, out);
        }
    }
}

/// Whether a replica voted to commit an undecided transaction, or is about to, or may have and has lost what it said.
fn may_have_voted_for<M: StorageBackend>(table: &TransactionTable<M>, state: &TransactionState) -> bool {
    let is_lost = table.lost_what_was_said_at(state.transaction.timestamp().time);
    is_lost || state.is_prepared() || state.vote() == Some(Vote::Commit)
}

#[cfg(test)]
mod tests {
    use machine::Outbox;
    use store::{Memory, Options, Store};
    use types::ClientId;

    use super::*;
    use crate::replica::ReplicaOptions;
    use crate::testing::one_shard;
    use crate::transaction::Write;
    use crate::transaction_state::{Purpose, Quota, QuotaOwner};

    /// Three of six have only older versions and vote for it no more. A fourth makes it certain that it never commits, and the one that asks
    /// may be that.
    #[test]
    fn who_asks_counts_itself_unless_it_has_voted_to_commit() {
        let cluster = one_shard();
        let replica = |index| ReplicaId { shard: ShardId(0), index };
        for (vote, decision) in [(Vote::Abort, Some(Decision::Abort)), (Vote::Commit, None)] {
            let store = Store::open(Memory::new("orphan"), Options::default()).expect("a new store opens");
            let (options, begun) = (ReplicaOptions::default(), Time(0).after_ms(1_000_000));
            let mut asking = Replica::open(cluster.clone(), replica(0), options, store, begun).expect("it is new");
            let write = Write { key: Key::from("a"), value: None };
            let orphan = Transaction::new(cluster.id(), Timestamp::new(begun.0, ClientId(1)), vec![], vec![write]).expect("it is small");
            let (id, mut out) = (orphan.id(), Outbox::default());
            asking.enter(begun, Party::Replica(replica(1)), Purpose::Finish, orphan.clone());
            asking.cast(id, vote, None, None, &mut out);
            let now = begun.after_ms(options.window_ms + 1);
            asking.query_status(now, id, &mut out);
            for index in 1..=3 {
                assert_eq!(asking.table.get(id).and_then(TransactionState::decision), None, "{index}");
                let versions = vec![OldVersion { version: Timestamp::ZERO, value: None }];
                let answered = asking.on_status_reply(now, Party::Replica(replica(index)), id, Answer { end: None, versions }, &mut out);
                answered.expect("memory does not fail");
            }
            assert_eq!(asking.table.get(id).and_then(TransactionState::decision), decision, "{vote:?}");
        }
    }

    /// More orphans than are asked about at once, none of which can be resolved: the others come next.
    #[test]
    fn inquiries_without_result_make_room_for_others() {
        let cluster = one_shard();
        let store = Store::open(Memory::new("orphans"), Options::default()).expect("a new store opens");
        let mut table = TransactionTable::new(cluster.clone(), ShardId(0), store, 7, 16);
        assert!(table.store.replay().expect("it is new").is_none());
        let orphans: Vec<Transaction> = (0..2 * QUERIES_MAX as u64)
            .map(|time| {
                let write = Write { key: Key::from("a"), value: None };
                Transaction::new(cluster.id(), Timestamp::new(time, ClientId(1)), vec![], vec![write]).expect("it is small")
            })
            .collect();
        for orphan in &orphans {
            table.enter(orphan, Time(0), Quota::prepare(QuotaOwner::Client(ClientId(1))));
            table.restore_vote(orphan.id(), Vote::Commit);
        }
        let mut queries = StatusQueries::default();
        let mut asked_about = std::collections::BTreeSet::new();
        for round in 0..2 {
            let now = Time(0).after_ms(round * QUERY_MS);
            queries.prune(now, &table);
            for transaction in &orphans {
                if queries.admits(transaction.id()) {
                    let query =
                        OrphanQuery { transaction: transaction.clone(), since: now, ask_again: now, times_asked: 0, answers: vec![] };
                    queries.open.entry(transaction.id()).or_insert(query);
                    asked_about.insert(transaction.id());
                }
            }
            assert_eq!(queries.open.len(), QUERIES_MAX);
        }
        assert_eq!(asked_about.len(), orphans.len());
    }
}
