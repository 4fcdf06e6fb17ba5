//! Tombstones: what a replica keeps of a transaction that it has forgotten otherwise.
//!
//! Below the watermark a replica remembers nothing of what has ended, and must say nothing that could differ from what it once said. Of
//! what it never knew it said nothing. So it keeps of each transaction that it forgets eight bytes of its id, for as long as there is
//! room, and a time from which on this is all there was; beside the short id, how it ended, for those who missed that
//! ([`crate::orphan_resolution`]). What is in the journal comes back from there; before a part of the journal is let
//! go, the short ids of what it held are logged again.
//!
//! The eight bytes are hashed with a number that nobody else knows, so that nobody can make two transactions for which they are the same.
//! The number is logged with the short ids, and stays the same for as long as the data does.
//!
//! What this replica neither voted on nor logged, and was only shown to have aborted, is not kept: it has said nothing that it could
//! contradict, and anybody can make up any number of transactions along with the proof that they aborted.

use std::collections::VecDeque;

use crate::transaction::Transaction;
use sha2::{Digest as _, Sha256};
use store::Index;
use types::TransactionId;
use types::codec::{Decode, DecodeError, Encode, Reader};

use crate::certificate::Decision;

/// The most transactions kept in mind.
const KEPT_MAX: usize = 1 << 20;

/// The most that are logged again when a segment of the journal is released.
const LOGGED_MAX: usize = 1 << 17;

/// How a transaction ended that was forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RememberedOutcome {
    pub decision: Decision,
    /// The first view in which this replica may state that it has logged that, without contradicting itself or going back.
    pub view: Option<u32>,
}

/// What is kept of a transaction that was forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tombstone {
    /// Eight bytes made of its id.
    short_id: u64,
    /// Its time, in nanoseconds.
    time: u64,
    /// The outcome, unless it was released and nobody knew it.
    end: Option<RememberedOutcome>,
}

impl Encode for Tombstone {
    fn encode(&self, out: &mut Vec<u8>) {
        self.short_id.encode(out);
        self.time.encode(out);
        self.end.map(|end| end.decision).encode(out);
        self.end.and_then(|end| end.view).encode(out);
    }
}

impl Decode for Tombstone {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        let (short_id, time) = (u64::decode(reader)?, u64::decode(reader)?);
        let (decision, view) = (Option::decode(reader)?, Option::decode(reader)?);
        Ok(Self { short_id, time, end: decision.map(|decision| RememberedOutcome { decision, view }) })
    }
}

/// So many bits of a place are kept, which tell all that are there from one another.
const PLACE_MASK: u32 = u32::MAX >> 1;

fn place(counted: u64) -> u32 {
    counted as u32 & PLACE_MASK
}

/// A short id is a hash already.
fn hash(short_id: u64) -> u32 {
    (short_id >> 32) as u32
}

/// The tombstones of one replica.
#[derive(Debug)]
pub(crate) struct Tombstones {
    /// What the ids are hashed with.
    salt: u64,
    /// All of them, in the order in which they were first forgotten: those that are logged again lie together, and nothing needs to be looked up
    /// for it while transactions wait. Should two ever have the same short id, one stands for both, with the later time, and an end only where
    /// they agree.
    kept: VecDeque<Tombstone>,
    /// The position of each short id, counted from the first that was ever kept, and so many bits of it.
    places: Index,
    /// How many were let go before the first of these.
    dropped: u64,
    /// Whatever was forgotten with a time from here on is kept, in nanoseconds.
    complete_from: u64,
    /// The same of those alone that are logged again, if that is later.
    logged_from: u64,
    kept_max: usize,
    logged_max: usize,
}

impl Tombstones {
    pub fn new(salt: u64) -> Self {
        Self {
            salt,
            kept: VecDeque::new(),
            places: Index::default(),
            dropped: 0,
            complete_from: 0,
            logged_from: 0,
            kept_max: KEPT_MAX,
            logged_max: LOGGED_MAX,
        }
    }

    /// What the ids are hashed with.
    pub fn salt(&self) -> u64 {
        self.salt
    }

    /// Earlier incarnations may have forgotten anything up to `time`.
    pub fn anything_up_to(&mut self, time: u64) {
        self.complete_from = self.complete_from.max(time.saturating_add(1));
    }

    /// `transaction` is forgotten, having ended, or having been released. Unless it was forgotten before and its end is known from then, `end`
    /// says how it ended, told whether this is the first time.
    pub fn note(&mut self, transaction: &Transaction, end: impl FnOnce(bool) -> Option<RememberedOutcome>) {
        let (short_id, time) = (self.short_id(transaction.id()), transaction.timestamp().time);
        let before = self.find(short_id);
        let is_first = before.is_none() && time >= self.complete_from;
        let end = before.and_then(|tombstone| tombstone.end).or_else(|| end(is_first));
        self.keep(Tombstone { short_id, time, end });
    }

    fn keep(&mut self, trace: Tombstone) {
        match self.index_of(trace.short_id) {
            Some(index) => {
                let not_logged = self.kept.len().saturating_sub(self.logged_max);
                let Tombstone { time, end, .. } = &mut self.kept[index];
                *time = trace.time.max(*time);
                // A released orphan may be concluded later, by others.
                *end = match (*end, trace.end) {
                    (Some(one), Some(other)) if one.decision == other.decision => {
                        Some(RememberedOutcome { view: one.view.zip(other.view).map(|(one, other)| one.max(other)), ..one })
                    }
                    (Some(_), Some(_)) => None,
                    (one, other) => one.or(other),
                };
                if index < not_logged {
                    self.logged_from = self.logged_from.max(time.saturating_add(1));
                }
            }
            None => {
                // Before it comes: room for one more would be room for twice as many.
                while self.kept.len() >= self.kept_max.max(1) {
                    let Some(oldest) = self.kept.pop_front() else { break };
                    self.places.remove(hash(oldest.short_id), place(self.dropped));
                    self.dropped += 1;
                    self.anything_up_to(oldest.time);
                }
                let not_logged = self.kept.len().saturating_sub(self.logged_max);
                self.places.insert(hash(trace.short_id), place(self.dropped + self.kept.len() as u64));
                self.kept.push_back(trace);
                if self.kept.len() > self.logged_max {
                    self.logged_from = self.logged_from.max(self.kept[not_logged].time.saturating_add(1));
                }
            }
        }
    }

    /// The transaction `id`, of which only this is kept, comes to `view`.
    pub fn raise(&mut self, id: TransactionId, view: u32) -> Option<Tombstone> {
        let index = self.index_of(self.short_id(id))?;
        let tombstone = &mut self.kept[index];
        let reached = tombstone.end.as_mut()?.view.as_mut()?;
        *reached = view.max(*reached);
        Some(*tombstone)
    }

    /// Where in [`Tombstones::kept`] a short id is.
    fn index_of(&self, short_id: u64) -> Option<usize> {
        let index = |number: u32| (number.wrapping_sub(place(self.dropped)) & PLACE_MASK) as usize;
        self.places.find(hash(short_id), |number| self.kept[index(number)].short_id == short_id).map(index)
    }

    fn find(&self, short_id: u64) -> Option<&Tombstone> {
        self.index_of(short_id).map(|index| &self.kept[index])
    }

    /// The time from which on the tombstones that are logged again are complete.
    pub fn logged_from(&self) -> u64 {
        self.complete_from.max(self.logged_from)
    }

    /// These tombstones.
    pub fn logged(&self) -> impl ExactSizeIterator<Item = Tombstone> {
        self.kept.range(self.kept.len().saturating_sub(self.logged_max)..).copied()
    }

    /// Takes back what an earlier incarnation has logged.
    pub fn restore(&mut self, salt: u64, complete_from: u64, tombstones: Vec<Tombstone>) {
        if salt != self.salt {
            // The first of such records comes before nearly any short id. Should there be some, it is not known any more whose they are.
            let latest = self.kept.iter().map(|tombstone| tombstone.time).max();
            latest.into_iter().for_each(|time| self.anything_up_to(time));
            self.places = Index::default();
            self.kept.clear();
            self.salt = salt;
        }
        self.complete_from = self.complete_from.max(complete_from);
        tombstones.into_iter().for_each(|trace| self.keep(trace));
    }

    /// Whether `transaction` may have been forgotten.
    pub fn may_have(&self, transaction: &Transaction) -> bool {
        transaction.timestamp().time < self.complete_from || self.index_of(self.short_id(transaction.id())).is_some()
    }

    /// How `id` ended, if that is remembered.
    pub fn remembered_outcome(&self, id: TransactionId) -> Option<RememberedOutcome> {
        self.find(self.short_id(id)).and_then(|tombstone| tombstone.end)
    }

    fn short_id(&self, id: TransactionId) -> u64 {
        let digest = Sha256::new().chain_update(self.salt.to_le_bytes()).chain_update(id.0).finalize();
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&digest[..8]);
        u64::from_le_bytes(bytes)
    }
}

#[cfg(test)]
mod tests {
    use types::{ClientId, ClusterId, Timestamp};

    use super::*;

    const COMMIT: RememberedOutcome = RememberedOutcome { decision: Decision::Commit, view: Some(0) };
    const ABORT: RememberedOutcome = RememberedOutcome { decision: Decision::Abort, view: None };

    fn transaction(time: u64) -> Transaction {
        let timestamp = Timestamp::new(time, ClientId(1));
        Transaction::new(ClusterId::new([1; 16]), timestamp, Vec::new(), Vec::new()).expect("it is small")
    }

    #[test]
    fn what_was_never_known_is_told_from_what_was_forgotten() {
        let mut tombstones = Tombstones::new(7);
        tombstones.note(&transaction(5), |_| Some(COMMIT));
        assert!(tombstones.may_have(&transaction(5)));
        assert!(!tombstones.may_have(&transaction(4)) && !tombstones.may_have(&transaction(6)));
        tombstones.anything_up_to(4);
        assert!(tombstones.may_have(&transaction(4)) && !tombstones.may_have(&transaction(6)));
    }

    #[test]
    fn where_there_is_no_room_anything_may_have_been_forgotten() {
        let mut tombstones = Tombstones { kept_max: 3, ..Tombstones::new(7) };
        for time in [10, 30, 20, 40, 50] {
            tombstones.note(&transaction(time), |_| None);
            tombstones.note(&transaction(time), |_| None);
        }
        for (time, may_be) in [(9, true), (10, true), (25, true), (30, true), (31, false), (40, true), (45, false), (50, true)] {
            assert_eq!(tombstones.may_have(&transaction(time)), may_be, "{time}");
        }
        assert_eq!((tombstones.places.len(), tombstones.kept.len()), (3, 3));
    }

    #[test]
    fn what_is_written_down_and_read_back_is_remembered_as_well() {
        let mut tombstones = Tombstones::new(7);
        tombstones.anything_up_to(4);
        tombstones.note(&transaction(5), |_| Some(COMMIT));
        let mut again = Tombstones::new(8);
        again.restore(7, tombstones.logged_from(), tombstones.logged().collect());
        assert_eq!(again.remembered_outcome(transaction(5).id()), Some(COMMIT));
        for (time, may_be) in [(4, true), (5, true), (6, false)] {
            assert_eq!(again.may_have(&transaction(time)), may_be, "{time}");
        }
    }

    #[test]
    fn it_never_goes_back_to_an_earlier_view() {
        let mut tombstones = Tombstones::new(7);
        tombstones.note(&transaction(5), |_| Some(COMMIT));
        let raised = [2, 3, 1].map(|view| tombstones.raise(transaction(5).id(), view).expect("its outcome is remembered"));
        assert_eq!(raised.map(|tombstone| tombstone.end.and_then(|end| end.view)), [Some(2), Some(3), Some(3)]);
        let mut again = Tombstones::new(7);
        again.note(&transaction(5), |_| Some(COMMIT));
        again.restore(7, 0, vec![raised[2], raised[0]]);
        assert_eq!(again.remembered_outcome(transaction(5).id()), Some(RememberedOutcome { view: Some(3), ..COMMIT }));
        assert_eq!(again.raise(transaction(6).id(), 1), None, "nothing is known of it");
    }

    #[test]
    fn what_is_logged_again_is_complete_from_where_it_says() {
        let mut tombstones = Tombstones { kept_max: 5, logged_max: 3, ..Tombstones::new(7) };
        let mut noted = Vec::new();
        for time in [10, 30, 20, 25, 40, 50, 28, 60, 70, 70, 45, 80] {
            tombstones.note(&transaction(time), |_| None);
            noted.push(time);
            let mut again = Tombstones::new(7);
            again.restore(7, tombstones.logged_from(), tombstones.logged().collect());
            assert!(tombstones.logged().len() <= 3 && tombstones.kept.len() <= 5);
            for time in &noted {
                assert!(again.may_have(&transaction(*time)), "{time} of {noted:?}");
            }
            // It says no more than it must.
            assert!(!again.may_have(&transaction(81)) && tombstones.logged_from() <= 61);
        }
        assert_eq!((tombstones.logged_from(), tombstones.complete_from), (61, 51));
    }

    #[test]
    fn who_was_forgotten_before_and_has_come_back_is_not_noted_as_the_first_time() {
        let mut tombstones = Tombstones { kept_max: 1, ..Tombstones::new(7) };
        let is_first = |tombstones: &mut Tombstones, time| {
            let mut told = None;
            tombstones.note(&transaction(time), |is_first| {
                told = Some(is_first);
                None
            });
            told.expect("its end was not known")
        };
        assert!(is_first(&mut tombstones, 5));
        assert!(!is_first(&mut tombstones, 5), "it is kept");
        assert!(is_first(&mut tombstones, 6));
        assert!(!is_first(&mut tombstones, 5), "it was let go");
        tombstones.note(&transaction(7), |_| Some(COMMIT));
        tombstones.note(&transaction(7), |_| panic!("its end is known"));
        assert_eq!(tombstones.remembered_outcome(transaction(7).id()), Some(COMMIT));
    }

    #[test]
    fn short_ids_that_are_the_same_count_with_the_later_time_and_the_end_they_share() {
        let mut tombstones = Tombstones { kept_max: 3, ..Tombstones::new(7) };
        let (older, later) = (transaction(10), transaction(30));
        tombstones.note(&older, |_| Some(COMMIT));
        let short_id = tombstones.short_id(older.id());
        tombstones.keep(Tombstone { short_id, time: later.timestamp().time, end: Some(ABORT) });
        assert_eq!(tombstones.remembered_outcome(older.id()), None, "either may be meant");
        for time in [11, 12, 13] {
            tombstones.note(&transaction(time), |_| None);
        }
        assert!(tombstones.index_of(short_id).is_none());
        assert!(tombstones.may_have(&transaction(30)));
    }

    #[test]
    fn who_was_laid_to_rest_may_end_later() {
        let mut tombstones = Tombstones::new(7);
        for end in [None, Some(COMMIT), None] {
            tombstones.note(&transaction(5), |_| end);
            tombstones.note(&transaction(6), |_| Some(ABORT));
        }
        assert_eq!(tombstones.remembered_outcome(transaction(5).id()), Some(COMMIT));
        assert_eq!(tombstones.remembered_outcome(transaction(6).id()), Some(ABORT));
        assert_eq!(tombstones.remembered_outcome(transaction(7).id()), None);
    }

    #[test]
    fn a_name_is_always_made_in_the_same_way() {
        // SHA-256 of eight bytes 7, 0, … and thirty-two bytes 9: what is on disk must be found again by later versions.
        assert_eq!(Tombstones::new(7).short_id(TransactionId([9; 32])), 0x2272_9584_14f9_5bc4);
    }

    #[test]
    fn short_ids_under_another_number_say_nothing() {
        let mut tombstones = Tombstones::new(7);
        tombstones.note(&transaction(5), |_| Some(COMMIT));
        tombstones.restore(8, 0, Vec::new());
        assert_eq!(tombstones.remembered_outcome(transaction(5).id()), None);
        assert!(tombstones.may_have(&transaction(5)) && !tombstones.may_have(&transaction(6)));
    }
}
