//! Catching up: how a replica finds out what it lacks, and takes it over from the others of its shard while it serves (beyond the paper).
//!
//! It compares what it has with what they have, in two ways.
//!
//! **What committed of late.** Within the window, in which transactions are still judged, whole transactions are compared: a replica
//! must know what they read, too. Every replica sums up the ids of what it knows to have committed in each stretch of time. One after the
//! other is shown these sums, and answers with the ids of the stretches where it has others. What `f + 1` say to have
//! committed has, for one of them is correct. It is asked for if need be, and concluded like any other.
//!
//! ```text
//!   CommitsQuery(sums) ───────▶ one replica after the other
//!                      ◀─────── CommitsReply(ids)              what f+1 state
//!   TransactionsQuery(ids) ───▶ one that states them
//!                      ◀─────── TransactionsReply(transactions)
//! ```
//!
//! **All versions.** Below the window nothing is judged, so a version is all there is to a commit. Page after page, in the order of keys, a
//! replica shows all others a hash of the newest versions that it has up to its watermark. Whoever has others there
//! shows them. Which `f + 1` show in the same way is committed, and is written to the journal and taken over if it is newer than what the
//! replica has.
//!
//! ```text
//!   VersionsQuery(page, hash) ▶ every other of the shard
//!                      ◀─────── VersionsReply(versions)        what f+1 show, and is newer
//! ```
//!
//! A version that this replica has with another value than `f + 1` show is wrong: a bit has flipped where it stood, and nobody has read it
//! yet. Theirs takes its place, and the replica names it ([`engine::Divergence`]).
//!
//! Nothing is ever removed, and nothing here needs to be remembered: after a crash, comparing shows what is still missing.
//! `docs/protocols/basil.md` argues why this is safe and why it ends.

use std::collections::{BTreeMap, BTreeSet};

use engine::Divergences;
use machine::Time;
use mutants::{Mutant, broken};
use sha2::{Digest as _, Sha256};
use store::{PageEnd, PageLimits, StorageBackend, StoreError, Version, VersionRef};
use types::codec::{Encode as _, encode_count};
use types::{ClientId, Direction, Key, Party, ReplicaId, Timestamp, TransactionId, Value};

use super::admission::author;
use super::{Out, Replica, ReplicaOptions};
use crate::certificate::Decision;
use crate::message::{
    COMMIT_SLOTS_MAX, COMMITTED_IDS_MAX, CommitDigest, KeyVersion, Message, PAGE_KEYS_MAX, PageQuery, PageVersion, TRANSACTIONS_MAX,
    value_bytes,
};
use crate::quorum::Quorums;
use crate::record::Record;
use crate::transaction::Transaction;
use crate::transaction_state::Quota;
use crate::transaction_table::TransactionTable;

/// How old commits are when they are compared, in milliseconds, or a quarter of the window: most are known everywhere by then.
const SETTLED_MS: u64 = 2_000;
/// While something is missing, another replica is asked so soon, in milliseconds.
const NEXT_PEER_MS: u64 = 50;
/// Ids of further stretches of time are left out of an answer that has so many.
const COMMITTED_IDS_ENOUGH: usize = 4_096;
/// How much of a page is looked at: its values and keys may take so many bytes before they are more than enough.
const PAGE: PageLimits = PageLimits { keys: PAGE_KEYS_MAX, bytes: 1 << 20 };
/// Who is asked looks at more: what lies elsewhere in its store, or is newer than what is compared, counts as well.
const COMPARED_PAGE: PageLimits = PageLimits { keys: 4 * PAGE_KEYS_MAX, bytes: 4 << 20 };
/// Keys and versions are hashed in pieces of about so many bytes.
const HASHED_TOGETHER: usize = 4_096;
/// The transactions in one answer may take so many bytes before they are more than enough.
const TRANSACTIONS_BYTES_ENOUGH: usize = 1 << 20;
/// The most bytes of one replica's versions that are kept until the others have answered.
const PAGE_BYTES_MAX: usize = 4 << 20;
/// How long the others get to answer about a page, in milliseconds.
const PAGE_ANSWER_MS: u64 = 1_000;
/// While something is missing, pages follow one another so soon, in milliseconds, and bring so many bytes a second.
const NEXT_PAGE_MS: u64 = 40;
/// A page in which nothing was missing puts the next one off by so many milliseconds for each thousand transactions a second that this replica
/// meets: all of the shard look at each page, and what clients want goes first.
const BUSY_PAGE_MS: u64 = 80;
/// So many keys that clients read are as much work as a transaction.
const READS_A_TRANSACTION: u64 = 4;
const PAGE_BYTES_PER_SECOND: u64 = 16 << 20;
/// Who has not heard from `4f` others for three quarters of the window was cut off: nearly as long as commits are compared. So many times
/// [`ReplicaOptions::catch_up_ms`] at least and at most, but for half of a long window.
const CUT_OFF_TURNS: (u64, u64) = (7, 15);
/// How often one replica is served, in milliseconds: it asks more rarely.
const COMMITS_EVERY_MS: u64 = 100;
const TRANSACTIONS_EVERY_MS: u64 = 20;
const PAGE_EVERY_MS: u64 = 30;
const UNDECIDED_EVERY_MS: u64 = 100;

/// What one replica compares, and what others have said.
#[derive(Debug)]
pub(super) struct CatchUp {
    /// When somebody is asked for commits next, and who was last.
    commits_at: Time,
    last_peer: u16,
    is_asked: bool,
    /// So many are asked soon.
    soon: usize,
    /// What each other says to have committed, of what is not known here to have.
    stated: BTreeMap<u16, BTreeSet<TransactionId>>,
    /// When each other last answered.
    heard: BTreeMap<u16, Time>,
    was_cut_off: bool,
    pass: Pass,
    /// This process has had all versions up to here, in nanoseconds: what it lacks of them, it has lost.
    whole_up_to: u64,
    /// When each other may be served again.
    served: BTreeMap<(u16, Service), Time>,
}

/// What others are served with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Service {
    Commits,
    Transactions,
    Page,
    Undecided,
}

/// A comparison of all versions.
#[derive(Debug)]
struct Pass {
    /// When the next page is begun, or the one under way is ended without those who have not answered.
    at: Time,
    /// Where the next page begins.
    from: Key,
    /// Up to where its first page was compared, in nanoseconds.
    began_up_to: u64,
    /// The number of the last page.
    number: u64,
    page: Option<OpenPage>,
    /// When the last page was ended, and how much this replica had done for clients by then, in transactions.
    ended: Option<(Time, u64)>,
    /// How many keys it has compared, and how many the pass before did.
    keys: u64,
    keys_before: Option<u64>,
    /// How many nanoseconds the last pages took for each key.
    pace: Option<u64>,
    /// Pages follow one another soon: this replica was away, or something was missing in the last pass or this.
    is_expedited: bool,
    /// Something was missing in it.
    lacked_some: bool,
}

/// A page about which others are asked.
#[derive(Debug)]
struct OpenPage {
    query: PageQuery,
    /// How many keys this replica has in it.
    keys: u64,
    answers: BTreeMap<u16, Answer>,
    bytes: usize,
}

/// What one replica shows of a page.
#[derive(Debug)]
struct Answer {
    versions: Vec<PageVersion>,
    next: Option<Key>,
}

impl CatchUp {
    /// What a process begins with: it does not know how long it was away.
    pub(super) fn new(me: ReplicaId, options: &ReplicaOptions, now: Time) -> Self {
        let pass = Pass {
            at: now.after_ms(options.catch_up_ms),
            from: Key::default(),
            began_up_to: 0,
            number: 0,
            page: None,
            ended: None,
            keys: 0,
            keys_before: None,
            pace: None,
            is_expedited: true,
            lacked_some: false,
        };
        Self {
            commits_at: now.after_ms(options.catch_up_ms),
            last_peer: me.index,
            is_asked: false,
            soon: 0,
            stated: BTreeMap::new(),
            heard: BTreeMap::new(),
            was_cut_off: true,
            pass,
            whole_up_to: 0,
            served: BTreeMap::new(),
        }
    }

    /// The same in a process that has asked for that page before: an answer to one of those, which may still come, is not taken for one to a new page.
    pub(super) fn after_page(mut self, number: u64) -> Self {
        self.pass.number = number;
        self
    }

    /// When to look next.
    pub(super) fn deadline(&self, options: &ReplicaOptions) -> Option<Time> {
        (options.catch_up_ms > 0).then(|| self.commits_at.min(self.pass.at))
    }

    /// Whether something was missing when all versions were last compared, or that is not known yet.
    pub(super) fn is_behind(&self) -> bool {
        self.pass.is_expedited
    }

    /// The number of the page that was asked for last.
    pub(super) fn last_page(&self) -> u64 {
        self.pass.number
    }

    /// All versions are compared from the first key on, soon.
    pub(super) fn begin_again(&mut self, now: Time) {
        (self.pass.from, self.pass.page, self.pass.keys) = (Key::default(), None, 0);
        self.pass.speed_up(now);
        self.pass.at = now;
    }

    /// How far this pass is; `rows` says about how many keys the base table has, for the first pass of a process.
    fn progress(&self, rows: u64) -> PassProgress {
        let Pass { keys: compared, keys_before, pace, .. } = self.pass;
        let keys = keys_before.or(Some(rows).filter(|rows| *rows > 0));
        let left = |(keys, pace): (u64, u64)| keys.saturating_sub(compared).saturating_mul(pace).div_ceil(1_000_000_000);
        PassProgress { compared, keys, seconds_left: keys.zip(pace).map(left) }
    }

    /// Whether `from` may be served: it asks more rarely by itself.
    fn may_serve(&mut self, now: Time, from: ReplicaId, service: Service) -> bool {
        let every_ms = match service {
            Service::Commits => COMMITS_EVERY_MS,
            Service::Transactions => TRANSACTIONS_EVERY_MS,
            Service::Page => PAGE_EVERY_MS,
            Service::Undecided => UNDECIDED_EVERY_MS,
        };
        let again_at = self.served.entry((from.index, service)).or_default();
        let may = *again_at <= now || again_at.since(now) > every_ms * 1_000_000;
        if may {
            *again_at = now.after_ms(every_ms);
        }
        may || broken(Mutant::CatchUpUnlimited)
    }

    /// Whether `f + 1` others say that `id` committed.
    fn has_weak_quorum(&self, id: TransactionId, quorums: Quorums) -> bool {
        let needed = if broken(Mutant::CommitTakenFromOne) { 1 } else { quorums.weak() };
        self.stated.values().filter(|ids| ids.contains(&id)).count() >= needed
    }

    /// What was said under the key that this replica of the shard had counts no more.
    pub(super) fn forget_words_of(&mut self, index: u16) {
        self.stated.remove(&index);
        if let Some(page) = &mut self.pass.page {
            page.answers.remove(&index);
        }
    }

    /// It is known here now.
    fn learned(&mut self, id: TransactionId) {
        self.stated.values_mut().for_each(|ids| _ = ids.remove(&id));
    }
}

/// How far a comparison of all versions is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PassProgress {
    /// How many keys have been compared since the first.
    pub compared: u64,
    /// About how many there are: as many as were compared the last time, else as the store says. Nothing where neither is known.
    pub keys: Option<u64>,
    /// About how many seconds the rest takes, if it goes on as the last pages did.
    pub seconds_left: Option<u64>,
}

impl Pass {
    /// A page of so many keys is compared, so many nanoseconds after the page before. Each counts for a quarter.
    fn note_pace(&mut self, keys: u64, took: u64) {
        if let Some(now) = took.checked_div(keys) {
            self.pace = Some(self.pace.map_or(now, |pace| pace - pace / 4 + now / 4));
        }
    }

    /// From now on pages follow one another soon, until all were compared.
    fn speed_up(&mut self, now: Time) {
        self.is_expedited = true;
        self.lacked_some = true;
        if self.page.is_none() {
            self.at = self.at.min(now.after_ms(NEXT_PAGE_MS));
        }
    }
}

/// How soon the next page follows a page in which nothing was missing, when so much was done for clients, in transactions, since the page before.
fn busy_pause_ms(met: u64, since_ns: u64) -> u64 {
    let met_a_second = u128::from(met) * 1_000_000_000 / u128::from(since_ns.max(1_000_000));
    NEXT_PAGE_MS.saturating_add(u64::try_from(met_a_second).unwrap_or(u64::MAX).saturating_mul(BUSY_PAGE_MS) / 1_000)
}

/// A hash of what a page holds.
#[derive(Default)]
struct PageDigest {
    hash: Sha256,
    /// What is hashed next.
    bytes: Vec<u8>,
    keys: u64,
}

impl PageDigest {
    /// Adds the next key with its version.
    fn add(&mut self, key: &Key, version: VersionRef<'_>) {
        if self.bytes.len() >= HASHED_TOGETHER {
            self.hash.update(&self.bytes);
            self.bytes.clear();
        }
        self.keys += 1;
        key.encode(&mut self.bytes);
        version.timestamp.encode(&mut self.bytes);
        version.value.is_some().encode(&mut self.bytes);
        if let Some(value) = version.value {
            encode_count(value.len(), &mut self.bytes);
            self.bytes.extend_from_slice(value);
        }
    }

    fn finish(mut self) -> [u8; 32] {
        self.hash.update(&self.bytes);
        self.hash.finalize().into()
    }
}

/// The same of versions at hand.
fn digest(versions: &[(Key, Version)]) -> [u8; 32] {
    let mut digest = PageDigest::default();
    versions.iter().for_each(|(key, version)| digest.add(key, version.as_ref()));
    digest.finish()
}

/// The versions that `needed` of the others show in the same way, of each key the newest, in the order of keys.
fn agreed(answers: &BTreeMap<u16, Answer>, needed: usize) -> Vec<(&Key, &KeyVersion)> {
    let mut shown: BTreeMap<&Key, Vec<(&KeyVersion, usize)>> = BTreeMap::new();
    for PageVersion { key, version } in answers.values().flat_map(|answer| &answer.versions) {
        let versions = shown.entry(key).or_default();
        match versions.iter_mut().find(|(known, _)| *known == version) {
            Some((_, count)) => *count += 1,
            None => versions.push((version, 1)),
        }
    }
    let newest = |(key, versions): (_, Vec<(_, usize)>)| {
        let agreed = versions.into_iter().filter(|(_, count)| *count >= needed).map(|(version, _)| version);
        Some((key, agreed.max_by_key(|version: &&KeyVersion| version.version)?))
    };
    shown.into_iter().filter_map(newest).collect()
}

/// Up to where all but `may_stop` of the others have shown what they have: so many may have stopped before that, and say so in vain.
fn shown_to(answers: &BTreeMap<u16, Answer>, may_stop: usize, end: Option<&Key>) -> Option<Key> {
    let stops = answers.values().filter_map(|answer| answer.next.as_ref());
    let mut stops: Vec<&Key> = stops.filter(|next| end.is_none_or(|end| *next < end)).collect();
    stops.sort_unstable();
    stops.get(may_stop).copied().or(end).cloned()
}

impl<M: StorageBackend> Replica<M> {
    /// Whether something was missing when all versions were last compared with the others', or that is not known yet.
    #[must_use]
    pub fn is_behind(&self) -> bool {
        self.catch_up.is_behind()
    }

    /// How far the comparison of all versions is.
    #[must_use]
    pub fn pass_progress(&self) -> PassProgress {
        self.catch_up.progress(self.table.store.rows_about())
    }

    /// The newest versions of all keys at or below `up_to`, a deletion too; for whoever compares replicas.
    ///
    /// # Errors
    /// When the store fails, or has forgotten what was there at `up_to`.
    pub fn versions(&self, up_to: Timestamp) -> Result<Vec<(Key, Version)>, StoreError> {
        let (mut versions, mut next) = (Vec::new(), Some(Key::default()));
        while let Some(from) = next {
            let page = self.table.store.page((&from, None), Direction::Ascending, up_to, PAGE)?;
            versions.extend(page.versions);
            next = page.next;
        }
        Ok(versions)
    }

    /// What it found of its own versions to be wrong when it compared them.
    #[must_use]
    pub fn divergences(&self) -> &Divergences {
        &self.divergences
    }

    /// Flips a bit in the newest value of `key`, in memory and in what will be written of it to the base table, and notes that nowhere: for tests and
    /// drills. Gives whether there is a value with a bit to flip.
    ///
    /// # Errors
    /// When the store fails.
    pub fn flip_bit_at_rest(&mut self, key: &Key, bit: usize) -> Result<bool, StoreError> {
        let newest = self.table.store.latest_before(key, Timestamp::new(u64::MAX, ClientId(u64::MAX)))?;
        let Some(Version { timestamp, value: Some(value) }) = newest else { return Ok(false) };
        let mut bytes = value.as_bytes().to_vec();
        let bits = bytes.len() * 8;
        let Some(bit) = bit.checked_rem(bits) else { return Ok(false) };
        bytes[bit / 8] ^= 1 << (bit % 8);
        self.table.store.replace(key, &Version { timestamp, value: Value::new(bytes) })
    }

    /// The same, asked for by its operators.
    pub(crate) fn drill(&mut self, key: &Key, bit: usize) {
        if let Err(failure) = self.flip_bit_at_rest(key, bit) {
            self.failure.get_or_insert(failure);
        }
    }

    /// Asks what is to be asked by now.
    pub(super) fn step_catch_up(&mut self, now: Time, out: &mut Out<M>) -> Result<(), StoreError> {
        if self.options.catch_up_ms == 0 {
            return Ok(());
        }
        if self.catch_up.commits_at <= now {
            self.ask_for_commits(now, out);
        }
        if self.catch_up.pass.at <= now {
            match self.catch_up.pass.page {
                Some(_) => self.finish_page(now)?,
                None => self.ask_for_page(now, out)?,
            }
        }
        Ok(())
    }

    /// Another of this shard, if it is served now.
    pub(super) fn served_peer(&mut self, now: Time, from: Party, service: Service) -> Option<ReplicaId> {
        let peer = self.shard_peer(from).filter(|peer| self.catch_up.may_serve(now, *peer, service));
        self.counts.refused += u64::from(peer.is_none());
        peer
    }

    /// The stretches of time that may be compared: above the watermark, below which commits are forgotten, and not so near that they still
    /// come in.
    fn comparable_slots(&self, now: Time) -> (u64, u64) {
        let window_ms = self.options.window_ms;
        let settled_ms = SETTLED_MS.min(window_ms / 4);
        let last = TransactionTable::<M>::commit_slot(now.0.saturating_sub(settled_ms * 1_000_000));
        // Others forget a little earlier or later.
        let kept = now.0.saturating_sub((window_ms - window_ms / 8) * 1_000_000).max(self.watermark(now));
        let first = TransactionTable::<M>::commit_slot(kept) + 1;
        (first.max(last.saturating_sub(COMMIT_SLOTS_MAX as u64)), last)
    }

    fn ask_for_commits(&mut self, now: Time, out: &mut Out<M>) {
        let replicas = self.quorums.replicas() as u64;
        // Each is asked as often, however many there are.
        let turn_ms = (self.options.catch_up_ms * 5 / (replicas - 1)).max(1);
        let is_soon = self.catch_up.soon > 0;
        self.catch_up.soon = self.catch_up.soon.saturating_sub(1);
        self.catch_up.commits_at = now.after_ms(if is_soon { NEXT_PEER_MS.min(turn_ms) } else { turn_ms });
        self.note_cut_off(now);
        let (first, last) = self.comparable_slots(now);
        if first >= last {
            return;
        }
        let mut peer = ReplicaId { index: self.catch_up.last_peer, ..self.me };
        for _ in 0..2 {
            peer.index = if u64::from(peer.index) + 1 < replicas { peer.index + 1 } else { 0 };
            if peer != self.me {
                break;
            }
        }
        (self.catch_up.last_peer, self.catch_up.is_asked) = (peer.index, true);
        let digests: Vec<CommitDigest> = (first..last).map(|slot| self.table.commit_digest(slot)).collect();
        out.send(Party::Replica(peer), Message::CommitsQuery { first, digests });
    }

    /// Whoever was cut off for long compares all versions, as soon as others are there again.
    fn note_cut_off(&mut self, now: Time) {
        let ReplicaOptions { window_ms, catch_up_ms, .. } = self.options;
        let long_ms = (window_ms * 3 / 4).clamp(CUT_OFF_TURNS.0 * catch_up_ms, CUT_OFF_TURNS.1 * catch_up_ms).max(window_ms / 2);
        let heard = self.catch_up.heard.values().filter(|at| at.after_ms(long_ms) > now).count();
        if heard < self.quorums.compared() {
            self.catch_up.was_cut_off = true;
        } else if std::mem::take(&mut self.catch_up.was_cut_off) {
            self.catch_up.pass.speed_up(now);
        }
    }

    /// Another of the shard shows what it knows to have committed.
    pub(super) fn on_commits_query(&mut self, now: Time, from: Party, first: u64, digests: &[CommitDigest], out: &mut Out<M>) {
        if self.served_peer(now, from, Service::Commits).is_none() {
            return;
        }
        let kept_from = TransactionTable::<M>::commit_slot(self.watermark(now)) + 1;
        let mut ids = Vec::new();
        for (slot, digest) in (first..=u64::MAX).zip(digests) {
            if ids.len() >= COMMITTED_IDS_ENOUGH {
                break;
            }
            if slot >= kept_from && self.table.commit_digest(slot) != *digest {
                ids.extend(self.table.committed_in(slot).take(COMMITTED_IDS_MAX - ids.len()));
            }
        }
        let bytes = ids.len() * size_of::<TransactionId>();
        out.send_large(from, Message::CommitsReply { ids }, bytes);
    }

    /// Another of the shard names commits where it knows others. What `f + 1` name is concluded, or asked for first.
    pub(super) fn on_commits_reply(&mut self, now: Time, from: Party, ids: &[TransactionId], out: &mut Out<M>) {
        let Some(peer) = self.shard_peer(from) else { return };
        if peer.index != self.catch_up.last_peer || !std::mem::take(&mut self.catch_up.is_asked) {
            return;
        }
        self.catch_up.heard.insert(peer.index, now);
        let is_news = |id: &TransactionId| self.table.get(*id).is_none_or(|state| state.decision().is_none());
        let lacking: BTreeSet<TransactionId> = ids.iter().copied().filter(is_news).collect();
        if lacking.is_empty() {
            self.catch_up.stated.remove(&peer.index);
            return;
        }
        self.catch_up.soon = self.catch_up.soon.max(self.quorums.replicas() - 1);
        self.catch_up.stated.insert(peer.index, lacking.clone());
        let mut wanted = Vec::new();
        for id in lacking.into_iter().filter(|id| self.catch_up.has_weak_quorum(*id, self.quorums)).collect::<Vec<_>>() {
            match self.table.get(id).map(|state| state.transaction.clone()) {
                Some(transaction) => self.take_over_commit(now, &transaction, out),
                None => wanted.push(id),
            }
        }
        wanted.truncate(TRANSACTIONS_MAX);
        if !wanted.is_empty() && !broken(Mutant::MissedCommitLeft) {
            out.send(from, Message::TransactionsQuery { ids: wanted });
        }
    }

    /// Another of the shard lacks transactions that committed.
    pub(super) fn on_transactions_query(&mut self, now: Time, from: Party, ids: &[TransactionId], out: &mut Out<M>) {
        if self.served_peer(now, from, Service::Transactions).is_none() {
            return;
        }
        let (mut transactions, mut bytes) = (Vec::new(), 0);
        for state in ids.iter().filter_map(|id| self.table.get(*id)) {
            if bytes >= TRANSACTIONS_BYTES_ENOUGH {
                break;
            }
            if state.decision() == Some(Decision::Commit) {
                let whole = self.table.whole(state);
                bytes += whole.as_ref().unwrap_or(&state.transaction).encoded_bytes();
                transactions.extend(whole);
            }
        }
        out.send_large(from, Message::TransactionsReply { transactions }, bytes);
    }

    /// Transactions that were asked for. Their ids say that these are they, and `f + 1` replicas that they committed.
    pub(super) fn on_transactions_reply(&mut self, now: Time, from: Party, transactions: &[Transaction], out: &mut Out<M>) {
        if self.shard_peer(from).is_none() {
            return;
        }
        for transaction in transactions {
            let is_wanted = self.catch_up.has_weak_quorum(transaction.id(), self.quorums);
            if is_wanted && self.table.get(transaction.id()).is_none_or(|state| state.decision().is_none()) {
                self.take_over_commit(now, transaction, out);
            }
        }
    }

    /// `f + 1` of the shard say that `transaction` committed.
    fn take_over_commit(&mut self, now: Time, transaction: &Transaction, out: &mut Out<M>) {
        let quota = Quota::prepare(author(transaction));
        self.catch_up.learned(transaction.id());
        if self.table.get(transaction.id()).is_none() {
            // Below the watermark, versions are compared.
            let is_old = transaction.timestamp().time < self.watermark(now);
            if is_old || self.may_enter_concluded(now, quota, transaction, Decision::Commit).is_err() {
                return;
            }
            self.table.enter(transaction, now, quota);
        }
        self.counts.commits_taken_over += 1;
        self.conclude(now, transaction.clone(), Decision::Commit, None, out);
    }

    // All versions.

    /// Shows all others of the shard what this replica has of the next page.
    fn ask_for_page(&mut self, now: Time, out: &mut Out<M>) -> Result<(), StoreError> {
        let up_to = Timestamp::new(self.watermark(now).saturating_sub(1), ClientId(u64::MAX));
        let mut held = PageDigest::default();
        let PageEnd { next, .. } =
            self.table.store.visit_page(&self.catch_up.pass.from, None, up_to, PAGE, |key, version| held.add(key, version))?;
        let keys = held.keys;
        let pass = &mut self.catch_up.pass;
        pass.number += 1;
        let query = PageQuery { page: pass.number, from: pass.from.clone(), to: next, up_to, digest: held.finish() };
        for replica in self.cluster.replicas_of(self.me.shard).filter(|replica| *replica != self.me) {
            out.send(Party::Replica(replica), Message::VersionsQuery { query: query.clone() });
        }
        pass.page = Some(OpenPage { query, keys, answers: BTreeMap::new(), bytes: 0 });
        pass.at = now.after_ms(PAGE_ANSWER_MS);
        Ok(())
    }

    /// Another of the shard shows what it has of a page. One that it asks about as of a time at which this replica does not know any more
    /// what it had is not answered.
    pub(super) fn on_versions_query(&mut self, now: Time, from: Party, query: &PageQuery, out: &mut Out<M>) -> Result<(), StoreError> {
        if self.served_peer(now, from, Service::Page).is_none() || query.up_to < self.table.store.watermark() {
            return Ok(());
        }
        let (from_key, to, mut held) = (&query.from, query.to.as_ref(), PageDigest::default());
        let end = self.table.store.visit_page(from_key, to, query.up_to, COMPARED_PAGE, |key, version| held.add(key, version))?;
        let (mut versions, mut bytes, mut next) = (Vec::new(), 0, end.next);
        if next.is_some() || held.finish() != query.digest {
            let page = self.table.store.page((from_key, to), Direction::Ascending, query.up_to, COMPARED_PAGE)?;
            for (key, Version { timestamp, value }) in page.versions {
                if versions.len() >= PAGE.keys || bytes >= PAGE.bytes {
                    next = Some(key);
                    break;
                }
                bytes += key.as_bytes().len() + value_bytes(value.as_ref());
                versions.push(PageVersion { key, version: KeyVersion { version: timestamp, value } });
            }
        }
        out.send_large(from, Message::VersionsReply { page: query.page, versions, next }, bytes);
        Ok(())
    }

    /// Another of the shard shows what it has of the page about which all were asked.
    pub(super) fn on_versions_reply(
        &mut self,
        now: Time,
        from: Party,
        page: u64,
        versions: Vec<PageVersion>,
        next: Option<Key>,
    ) -> Result<(), StoreError> {
        let peer = self.shard_peer(from);
        let (Some(peer), Some(open)) = (peer, &mut self.catch_up.pass.page) else { return Ok(()) };
        let bytes = versions.iter().map(|one| one.key.as_bytes().len() + value_bytes(one.version.value.as_ref())).sum::<usize>();
        let fits = open.query.page == page
            && bytes <= PAGE_BYTES_MAX
            && versions.iter().all(|one| open.query.has(&one.key, one.version.version))
            && next.as_ref().is_none_or(|next| *next > open.query.from);
        if !fits || open.answers.contains_key(&peer.index) {
            return Ok(());
        }
        open.answers.insert(peer.index, Answer { versions, next });
        open.bytes += bytes;
        if open.answers.len() + 1 < self.quorums.replicas() {
            return Ok(());
        }
        self.finish_page(now)
    }

    /// Takes over what enough of the others have shown, and goes on to the next page if enough of them have answered.
    fn finish_page(&mut self, now: Time) -> Result<(), StoreError> {
        let Some(OpenPage { query, keys, mut answers, bytes }) = self.catch_up.pass.page.take() else { return Ok(()) };
        let watermark = Timestamp::above_all_before(self.watermark(now));
        let needed = if broken(Mutant::PageTakenFromOne) { 1 } else { self.quorums.weak() };
        let whole_up_to = if self.is_rebuilding() { 0 } else { self.catch_up.whole_up_to };
        if query.from == Key::default() {
            // Where nothing is judged up to now, commits of the last window still come in.
            self.catch_up.pass.began_up_to = query.up_to.time.min(now.0.saturating_sub(self.options.window_ms * 1_000_000));
        }
        // Some may be wrong and some may lie. Where `f + 1` hold just what this replica holds, what others show proves nothing.
        let same = answers.values().filter(|answer| answer.versions.is_empty() && answer.next.is_none()).count();
        let is_held_by_others = same >= self.quorums.weak();
        let (mut taken, mut lacked) = (0, Vec::new());
        for (key, version) in agreed(&answers, needed).into_iter().filter(|(_, version)| version.version < watermark) {
            let own = self.table.store.latest_before(key, watermark)?;
            match own {
                Some(own) if own.timestamp == version.version && is_held_by_others => {}
                Some(own) if own.timestamp == version.version => taken += self.mend_version(now, key, &own, version)?,
                Some(own) if own.timestamp > version.version => {}
                _ if broken(Mutant::MissedVersionLeft) => {}
                own => {
                    self.take_over_version(key, version);
                    (taken, self.counts.versions_taken_over) = (taken + 1, self.counts.versions_taken_over + 1);
                    if version.version.time < whole_up_to {
                        lacked.push((key, own, version));
                    }
                }
            }
        }
        if !broken(Mutant::LostWriteUnnamed) {
            self.note_lacking(now, &lacked);
        }
        self.counts.pages_compared += 1;
        // A replica that rebuilds itself counts those alone who have shown before what they hold undecided, and leaves nothing open.
        let compares_last = self.compares_last();
        if compares_last {
            answers.retain(|peer, _| self.has_shown_undecided(*peer, query.page));
        }
        let is_settled = !compares_last || self.is_settled(&answers, watermark)?;
        let counts = if broken(Mutant::UndecidedOfOne) && compares_last { 1 } else { self.quorums.compared() };
        let met = self.table.entered() + self.counts.keys_read / READS_A_TRANSACTION;
        let pass = &mut self.catch_up.pass;
        if taken > 0 {
            (pass.is_expedited, pass.lacked_some) = (true, true);
        }
        let calm_ms = 2 * self.options.catch_up_ms;
        let before = pass.ended.replace((now, met));
        let busy_ms = before.map_or(NEXT_PAGE_MS, |(ended, met_before)| busy_pause_ms(met - met_before, now.since(ended)).min(calm_ms));
        if answers.len() < counts || !is_settled {
            // Too few to know that nothing is missing, or they differ.
            pass.at = now.after_ms(if is_settled { calm_ms } else { NEXT_PEER_MS });
            return Ok(());
        }
        let may_stop = if compares_last { answers.len() - counts } else { self.quorums.weak() - 1 };
        pass.keys += keys;
        if let Some((ended, _)) = before {
            pass.note_pace(keys, now.since(ended));
        }
        match shown_to(&answers, may_stop, query.to.as_ref()) {
            Some(next) => pass.from = next,
            None => {
                (pass.keys, pass.keys_before) = (0, Some(pass.keys));
                pass.from = Key::default();
                pass.is_expedited = std::mem::take(&mut pass.lacked_some);
                // Within a window before, commits may still have been on their way to all.
                self.catch_up.whole_up_to = pass.began_up_to.saturating_sub(self.options.window_ms * 1_000_000);
                self.counts.passes += 1;
            }
        }
        let throttled_ms = bytes as u64 * 1_000 / PAGE_BYTES_PER_SECOND;
        let pause_ms = match (pass.is_expedited, taken > 0 || compares_last) {
            (false, _) => calm_ms,
            (true, false) => busy_ms,
            (true, true) => NEXT_PAGE_MS,
        };
        pass.at = now.after_ms(throttled_ms.max(pause_ms));
        if compares_last && self.catch_up.pass.from == Key::default() {
            self.note_compared(now)?;
        }
        Ok(())
    }

    /// Whether no more than `f` show something newer of any key than this replica has by now.
    fn is_settled(&mut self, answers: &BTreeMap<u16, Answer>, watermark: Timestamp) -> Result<bool, StoreError> {
        let mut newer: BTreeMap<&Key, usize> = BTreeMap::new();
        for PageVersion { key, version } in answers.values().flat_map(|answer| &answer.versions) {
            let own = self.table.store.latest_timestamp_before(key, watermark)?;
            *newer.entry(key).or_default() += usize::from(own.is_none_or(|own| own < version.version));
        }
        Ok(newer.values().all(|count| *count < self.quorums.weak()) || broken(Mutant::PageUnsettled))
    }

    /// `f + 1` of the shard show another value of a version that this replica has: its own is wrong. What they show takes its place, on the
    /// disk first. Gives how many were put right.
    fn mend_version(&mut self, now: Time, key: &Key, own: &Version, version: &KeyVersion) -> Result<u64, StoreError> {
        if own.value == version.value || broken(Mutant::WrongValueKept) {
            return Ok(0);
        }
        let right = Version { timestamp: version.version, value: version.value.clone() };
        let digests = [own, &right].map(|version| digest(&[(key.clone(), version.clone())]));
        if !broken(Mutant::WrongValueUnnamed) {
            let place = format!("the value of {key} of {}", version.version);
            self.divergences.note(now, &place, digests[0], digests[1], self.quorums.weak());
        }
        let record = Record::VersionMended { key: key.clone(), version: version.clone() };
        if !broken(Mutant::MendedUnlogged) {
            self.table.store.append_with(|bytes| record.encode(bytes));
        }
        let is_mended = self.table.mend(key, version)?;
        self.divergences.mend_all(now);
        self.counts.versions_mended += u64::from(is_mended);
        Ok(u64::from(is_mended))
    }

    /// Names what was lacking of a page at a replica that had all of it when it compared all versions before.
    fn note_lacking(&mut self, now: Time, lacked: &[(&Key, Option<Version>, &KeyVersion)]) {
        let (Some((first, ..)), Some((last, ..))) = (lacked.first(), lacked.last()) else { return };
        let own: Vec<(Key, Version)> = lacked.iter().filter_map(|(key, own, _)| Some(((*key).clone(), own.clone()?))).collect();
        let version = |version: &KeyVersion| Version { timestamp: version.version, value: version.value.clone() };
        let agreed: Vec<(Key, Version)> = lacked.iter().map(|(key, _, agreed)| ((*key).clone(), version(agreed))).collect();
        let place = match lacked.len() {
            1 => format!("the newest write of {first}, which it lacked"),
            count => format!("{count} writes from {first} to {last}, which it lacked"),
        };
        self.divergences.note(now, &place, digest(&own), digest(&agreed), self.quorums.weak());
        self.divergences.mend_all(now);
    }

    /// `f + 1` of the shard show this version. It is on disk before it counts.
    pub(super) fn take_over_version(&mut self, key: &Key, version: &KeyVersion) {
        let record = Record::VersionTakenOver { key: key.clone(), version: version.clone() };
        if !broken(Mutant::TakenOverUnlogged) {
            self.table.store.append_with(|bytes| record.encode(bytes));
        }
        self.table.take_over(key, version.clone());
    }
}

#[cfg(test)]
mod tests {
    use store::Memory;
    use types::ShardId;

    use super::*;

    /// One fault, six replicas: two vouch.
    const ONE: Quorums = Quorums::new(1);

    fn shown(key: &str, time: u64, value: Option<&str>) -> PageVersion {
        let version = KeyVersion { version: Timestamp::new(time, ClientId(1)), value: value.map(Value::from) };
        PageVersion { key: Key::from(key), version }
    }

    fn answers(all: &[&[PageVersion]]) -> BTreeMap<u16, Answer> {
        let answer = |versions: &&[PageVersion]| Answer { versions: versions.to_vec(), next: None };
        (0..).zip(all.iter().map(answer)).collect()
    }

    #[test]
    fn a_version_counts_that_two_of_six_show_in_the_same_way() {
        let all = answers(&[
            &[shown("a", 5, Some("1")), shown("b", 7, None), shown("c", 9, Some("lie"))],
            &[shown("a", 5, Some("2")), shown("b", 7, None), shown("d", 3, Some("old"))],
            &[shown("a", 6, Some("1")), shown("c", 8, Some("1")), shown("d", 4, Some("new"))],
            &[shown("c", 8, Some("1")), shown("d", 4, Some("new"))],
            &[shown("d", 3, Some("old"))],
        ]);
        let agreed: Vec<PageVersion> =
            agreed(&all, ONE.weak()).into_iter().map(|(key, version)| PageVersion { key: key.clone(), version: version.clone() }).collect();
        assert_eq!(agreed, [shown("b", 7, None), shown("c", 8, Some("1")), shown("d", 4, Some("new"))]);
    }

    #[test]
    fn a_liar_that_stops_early_stops_nobody() {
        fn key(text: &str) -> Key {
            Key::from(text)
        }
        let to = |stops: &[Option<&str>], end: Option<&str>| {
            let answer = |next: &Option<&str>| Answer { versions: Vec::new(), next: next.map(key) };
            let answers: BTreeMap<u16, Answer> = (0..).zip(stops.iter().map(answer)).collect();
            shown_to(&answers, 1, end.map(key).as_ref())
        };
        assert_eq!(to(&[None, None, None, None], None), None);
        assert_eq!(to(&[None, None, None, None], Some("m")), Some(key("m")));
        assert_eq!(to(&[Some("a"), None, None, None], Some("m")), Some(key("m")), "one may lie");
        assert_eq!(to(&[Some("a"), Some("c"), Some("c"), Some("c")], Some("m")), Some(key("c")));
        assert_eq!(to(&[Some("z"), Some("c"), Some("c"), Some("c")], None), Some(key("c")));
        assert_eq!(to(&[Some("z"), Some("y"), Some("x"), Some("w")], Some("m")), Some(key("m")), "nobody was asked about more");
    }

    #[test]
    fn whoever_asks_too_often_is_not_served() {
        let me = ReplicaId { shard: ShardId(0), index: 0 };
        let mut catch_up = CatchUp::new(me, &ReplicaOptions::default(), Time(0));
        let at = |ms| Time(0).after_ms(ms);
        let [eager, other] = [1, 2].map(|index| ReplicaId { index, ..me });
        let served = (0..1_000).filter(|ms| catch_up.may_serve(at(*ms), eager, Service::Page)).count();
        assert_eq!(served, 34);
        assert!(catch_up.may_serve(at(999), other, Service::Page) && catch_up.may_serve(at(999), eager, Service::Commits));
        assert!(catch_up.may_serve(at(100), eager, Service::Page), "also when the clock was set back");
    }

    #[test]
    fn how_long_a_pass_takes_is_told_by_what_the_store_has_and_the_last_pages() {
        let me = ReplicaId { shard: ShardId(0), index: 0 };
        let mut catch_up = CatchUp::new(me, &ReplicaOptions::default(), Time(0));
        let none = PassProgress { compared: 0, keys: None, seconds_left: None };
        assert_eq!(catch_up.progress(0), none, "nothing is known of a store without rows");
        assert_eq!(catch_up.progress(5_000), PassProgress { keys: Some(5_000), ..none });
        catch_up.pass.keys = 1_000;
        catch_up.pass.note_pace(1_000, 2_000_000_000);
        assert_eq!(catch_up.progress(5_000), PassProgress { compared: 1_000, keys: Some(5_000), seconds_left: Some(8) });
        assert_eq!(catch_up.progress(500).seconds_left, Some(0), "there are more than the store knew");
        catch_up.pass.note_pace(0, 1);
        (0..40).for_each(|_| catch_up.pass.note_pace(1_000, 1_000_000_000));
        assert_eq!(catch_up.progress(5_000).seconds_left, Some(5), "a little more than four");
        catch_up.pass.keys_before = Some(3_000);
        assert_eq!(catch_up.progress(5_000).keys, Some(3_000));
    }

    #[test]
    fn where_nothing_is_missing_pages_wait_for_transactions() {
        const SECOND: u64 = 1_000_000_000;
        assert_eq!(busy_pause_ms(0, SECOND), NEXT_PAGE_MS);
        assert_eq!(busy_pause_ms(1_000, SECOND), NEXT_PAGE_MS + BUSY_PAGE_MS);
        assert_eq!(busy_pause_ms(400, SECOND / 20), busy_pause_ms(8_000, SECOND));
        assert!(busy_pause_ms(u64::MAX, 0) > 1_000_000, "also when the clock was set");
    }

    #[test]
    fn whatever_differs_in_a_page_differs_in_its_hash() {
        let page = |key: &str, time, value: Option<&str>| {
            digest(&[(Key::from(key), Version { timestamp: Timestamp::new(time, ClientId(1)), value: value.map(Value::from) })])
        };
        let all =
            [page("a", 1, None), page("b", 1, None), page("a", 2, None), page("a", 1, Some("")), page("a", 1, Some("a")), digest(&[])];
        assert_eq!(BTreeSet::from(all).len(), all.len());
    }

    /// A replica that had all versions when it last compared them, and what the others answer about all of them now.
    fn finished_with(held: &[(&str, u64, &str)], answer: &[PageVersion], was_whole: bool) -> (Replica<Memory>, Time) {
        finished_with_answers(held, |_| answer.to_vec(), was_whole)
    }

    fn finished_with_answers(
        held: &[(&str, u64, &str)],
        answer: impl Fn(u16) -> Vec<PageVersion>,
        was_whole: bool,
    ) -> (Replica<Memory>, Time) {
        let keys = (0..6).map(|index| [index; 32]).collect();
        let cluster = types::Cluster::new(types::ClusterId::new([1; 16]), 1, types::Placement::Hash, vec![keys], vec![]);
        let store = store::Store::open(Memory::new("compared"), store::Options::default()).expect("a new store opens");
        let (me, now) = (ReplicaId { shard: ShardId(0), index: 5 }, Time(1 << 40));
        let options = ReplicaOptions::default();
        let mut replica = Replica::open(std::sync::Arc::new(cluster.expect("the parts fit")), me, options, store, now).expect("it is new");
        for (key, time, value) in held {
            replica
                .table
                .take_over(&Key::from(*key), KeyVersion { version: Timestamp::new(*time, ClientId(1)), value: Some(Value::from(*value)) });
        }
        replica.catch_up.was_cut_off = false;
        replica.catch_up.whole_up_to = if was_whole { 1 << 30 } else { 0 };
        let up_to = Timestamp::above_all_before(1 << 30);
        let query = PageQuery { page: 1, from: Key::default(), to: None, up_to, digest: [0; 32] };
        let answers = (0..5).map(|index| (index, Answer { versions: answer(index), next: None })).collect();
        replica.catch_up.pass.page = Some(OpenPage { query, keys: 1, answers, bytes: 0 });
        replica.finish_page(now).expect("memory does not fail");
        (replica, now)
    }

    #[test]
    fn an_answer_from_before_the_clock_was_set_is_not_taken_for_one_to_a_new_page() {
        let ((mut replica, now), mut out) = (finished_with(&[], &[], false), machine::Outbox::default());
        replica.ask_for_page(now, &mut out).expect("memory does not fail");
        let asked = replica.catch_up.last_page();
        replica.set_clock(now, 0);
        replica.ask_for_page(now, &mut out).expect("memory does not fail");
        let mut answered = |page| {
            let other = Party::Replica(ReplicaId { shard: ShardId(0), index: 1 });
            replica.on_versions_reply(now, other, page, Vec::new(), None).expect("memory does not fail");
            replica.catch_up.pass.page.as_ref().is_some_and(|page| page.answers.len() == 1)
        };
        assert!(!answered(asked) && answered(asked + 1));
    }

    #[test]
    fn of_the_last_window_nothing_is_lost_though_nothing_there_is_judged_any_more() {
        let ((mut replica, now), mut out) = (finished_with(&[], &[], true), machine::Outbox::default());
        replica.table.raise_low_watermark(now.0);
        replica.ask_for_page(now, &mut out).expect("memory does not fail");
        for index in 0..5 {
            let other = Party::Replica(ReplicaId { shard: ShardId(0), index });
            replica.on_versions_reply(now, other, replica.catch_up.last_page(), Vec::new(), None).expect("memory does not fail");
        }
        assert_eq!(replica.catch_up.whole_up_to, now.0 - 2 * replica.options.window_ms * 1_000_000);
    }

    #[test]
    fn what_is_wrong_is_named_with_its_place_and_both_digests() {
        let right = [shown("a", 5, Some("1")), shown("b", 5, Some("1"))];
        let (mut replica, now) = finished_with(&[("a", 5, "1"), ("b", 5, "0")], &right, true);
        let named = replica.divergences().recent().next().expect("it was named").clone();
        assert_eq!((replica.divergences().noticed(), named.mended, named.agreed_by), (1, Some(now), ONE.weak()));
        assert!(named.place.starts_with("the value of b of 5@"), "{}", named.place);
        let of =
            |value| digest(&[(Key::from("b"), Version { timestamp: Timestamp::new(5, ClientId(1)), value: Some(Value::from(value)) })]);
        assert_eq!((named.own, named.agreed), (of("0"), of("1")));
        let newest = replica.table.store.latest_before(&Key::from("b"), Timestamp::above_all_before(9)).expect("memory does not fail");
        assert_eq!(newest.and_then(|version| version.value), Some(Value::from("1")));
        assert_eq!((replica.counts.versions_mended, replica.counts.versions_taken_over), (1, 0));
    }

    #[test]
    fn what_f_plus_1_others_hold_too_is_not_replaced() {
        let wrong = [shown("a", 5, Some("0"))];
        for (differing, mended) in [(2, 0), (3, 0), (4, 1), (5, 1)] {
            let answer = |index: u16| if index < differing { wrong.to_vec() } else { Vec::new() };
            let (replica, _) = finished_with_answers(&[("a", 5, "1")], answer, true);
            assert_eq!(
                (replica.counts.versions_mended, replica.divergences().noticed()),
                (mended, mended),
                "{differing} show another value"
            );
        }
    }

    #[test]
    fn a_write_that_is_lacking_is_named_where_nothing_lacked_before() {
        let right = [shown("a", 5, Some("1")), shown("b", 5, Some("1"))];
        let (replica, _) = finished_with(&[("a", 5, "1")], &right, true);
        let named = replica.divergences().recent().next().expect("it was named");
        assert_eq!(named.place, "the newest write of b, which it lacked");
        assert_eq!((replica.counts.versions_mended, replica.counts.versions_taken_over), (0, 1));
        let (replica, _) = finished_with(&[("a", 5, "1")], &right, false);
        assert_eq!(
            (replica.divergences().noticed(), replica.counts.versions_taken_over),
            (0, 1),
            "it may have missed it while it was away"
        );
        let (replica, _) = finished_with(&[("a", 5, "1"), ("b", 6, "2")], &right, true);
        assert_eq!((replica.divergences().noticed(), replica.counts.versions_taken_over), (0, 0), "what is newer is not wrong");
    }
}
