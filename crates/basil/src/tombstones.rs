//! Tombstones: what a replica keeps of a transaction that it has forgotten otherwise.
//!
//! Below the watermark a replica remembers nothing of what has ended, and must say nothing that could differ from what it once said. Of
//! what it never knew it said nothing. So it keeps of each transaction that it forgets eight bytes of its name, for as long as there is
//! room, and a time from which on this is all there was; beside the name, how it ended, for those who missed that
//! ([`crate::orphan_resolution`]). What is in the journal comes back from there; before a part of the journal is let
//! go, the names of what it held are logged again.
//!
//! The eight bytes are hashed with a number that nobody else knows, so that nobody can make two transactions for which they are the same.
//! The number is logged with the names, and stays the same for as long as the data does.
//!
//! What this replica neither voted on nor logged, and was only shown to have aborted, is not kept: it has said nothing that it could
//! contradict, and anybody can make up any number of transactions along with the proof that they aborted.

use std::collections::VecDeque;

use crate::transaction::Transaction;
use foldhash::{HashMap, HashMapExt as _};
use sha2::{Digest as _, Sha256};
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
    /// The view in which this replica has logged that, or may say so without contradicting itself.
    pub view: Option<u32>,
}

/// What is kept of a transaction that was forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tombstone {
    /// Eight bytes made of its name.
    name: u64,
    /// Its time, in nanoseconds.
    time: u64,
    /// The outcome, unless it was released and nobody knew it.
    end: Option<RememberedOutcome>,
}

impl Encode for Tombstone {
    fn encode(&self, out: &mut Vec<u8>) {
        self.name.encode(out);
        self.time.encode(out);
        self.end.map(|end| end.decision).encode(out);
        self.end.and_then(|end| end.view).encode(out);
    }
}

impl Decode for Tombstone {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        let (name, time) = (u64::decode(reader)?, u64::decode(reader)?);
        let (decision, view) = (Option::decode(reader)?, Option::decode(reader)?);
        Ok(Self { name, time, end: decision.map(|decision| RememberedOutcome { decision, view }) })
    }
}

/// The tombstones of one replica.
#[derive(Debug)]
pub(crate) struct Tombstones {
    /// What the names are hashed with.
    salt: u64,
    /// Of each name its time, and its end: should two ever be the same, the latest time of both, and an end only where they agree.
    names: HashMap<u64, (u64, Option<RememberedOutcome>)>,
    /// The same in the order in which they were first forgotten.
    order: VecDeque<u64>,
    /// Whatever was forgotten with a time from here on is among the names, in nanoseconds.
    complete_from: u64,
    names_max: usize,
}

impl Tombstones {
    pub fn new(salt: u64) -> Self {
        Self { salt, names: HashMap::new(), order: VecDeque::new(), complete_from: 0, names_max: KEPT_MAX }
    }

    /// What the names are hashed with.
    pub fn salt(&self) -> u64 {
        self.salt
    }

    /// Earlier incarnations may have forgotten anything up to `time`.
    pub fn anything_up_to(&mut self, time: u64) {
        self.complete_from = self.complete_from.max(time.saturating_add(1));
    }

    /// `transaction` is forgotten, having ended, or having been released.
    pub fn note(&mut self, transaction: &Transaction, end: Option<RememberedOutcome>) {
        self.keep(Tombstone { name: self.name(transaction.id()), time: transaction.timestamp().time, end });
    }

    fn keep(&mut self, trace: Tombstone) {
        match self.names.get_mut(&trace.name) {
            Some((latest, end)) => {
                *latest = trace.time.max(*latest);
                // A released orphan may be concluded later, by others.
                *end = match (*end, trace.end) {
                    (Some(one), Some(other)) if one.decision == other.decision => {
                        Some(RememberedOutcome { view: one.view.filter(|view| other.view == Some(*view)), ..one })
                    }
                    (Some(_), Some(_)) => None,
                    (one, other) => one.or(other),
                };
            }
            None => {
                self.names.insert(trace.name, (trace.time, trace.end));
                self.order.push_back(trace.name);
            }
        }
        while self.order.len() > self.names_max {
            let Some((latest, _)) = self.order.pop_front().and_then(|name| self.names.remove(&name)) else { break };
            self.anything_up_to(latest);
        }
    }

    /// The tombstones to log, and the time from which on they are complete.
    pub fn latest(&self) -> (u64, Vec<Tombstone>) {
        let trace = |name: &u64| {
            let (time, end) = self.names.get(name).copied().unwrap_or_default();
            Tombstone { name: *name, time, end }
        };
        let left_out = self.order.len().saturating_sub(LOGGED_MAX);
        let before = self.order.iter().take(left_out).map(|name| trace(name).time.saturating_add(1)).max().unwrap_or(0);
        (self.complete_from.max(before), self.order.iter().skip(left_out).map(trace).collect())
    }

    /// Takes back what an earlier incarnation has logged.
    pub fn restore(&mut self, salt: u64, complete_from: u64, tombstones: Vec<Tombstone>) {
        if salt != self.salt {
            // The first of such records comes before nearly any name. Should there be some, it is not known any more whose they are.
            let latest = self.order.iter().filter_map(|name| self.names.get(name)).map(|(time, _)| *time).max();
            latest.into_iter().for_each(|time| self.anything_up_to(time));
            self.names.clear();
            self.order.clear();
            self.salt = salt;
        }
        self.complete_from = self.complete_from.max(complete_from);
        tombstones.into_iter().for_each(|trace| self.keep(trace));
    }

    /// Whether `transaction` may have been forgotten.
    pub fn may_have(&self, transaction: &Transaction) -> bool {
        transaction.timestamp().time < self.complete_from || self.names.contains_key(&self.name(transaction.id()))
    }

    /// How `id` ended, if that is remembered.
    pub fn remembered_outcome(&self, id: TransactionId) -> Option<RememberedOutcome> {
        self.names.get(&self.name(id)).and_then(|(_, end)| *end)
    }

    fn name(&self, id: TransactionId) -> u64 {
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
        tombstones.note(&transaction(5), Some(COMMIT));
        assert!(tombstones.may_have(&transaction(5)));
        assert!(!tombstones.may_have(&transaction(4)) && !tombstones.may_have(&transaction(6)));
        tombstones.anything_up_to(4);
        assert!(tombstones.may_have(&transaction(4)) && !tombstones.may_have(&transaction(6)));
    }

    #[test]
    fn where_there_is_no_room_anything_may_have_been_forgotten() {
        let mut tombstones = Tombstones { names_max: 3, ..Tombstones::new(7) };
        for time in [10, 30, 20, 40, 50] {
            tombstones.note(&transaction(time), None);
            tombstones.note(&transaction(time), None);
        }
        for (time, may_be) in [(9, true), (10, true), (25, true), (30, true), (31, false), (40, true), (45, false), (50, true)] {
            assert_eq!(tombstones.may_have(&transaction(time)), may_be, "{time}");
        }
        assert_eq!((tombstones.names.len(), tombstones.order.len()), (3, 3));
    }

    #[test]
    fn what_is_written_down_and_read_back_is_remembered_as_well() {
        let mut tombstones = Tombstones::new(7);
        tombstones.anything_up_to(4);
        tombstones.note(&transaction(5), Some(COMMIT));
        let (complete_from, tombstones) = tombstones.latest();
        let mut again = Tombstones::new(8);
        again.restore(7, complete_from, tombstones);
        assert_eq!(again.remembered_outcome(transaction(5).id()), Some(COMMIT));
        for (time, may_be) in [(4, true), (5, true), (6, false)] {
            assert_eq!(again.may_have(&transaction(time)), may_be, "{time}");
        }
    }

    #[test]
    fn names_that_are_the_same_count_with_the_later_time_and_the_end_they_share() {
        let mut tombstones = Tombstones { names_max: 3, ..Tombstones::new(7) };
        let (older, later) = (transaction(10), transaction(30));
        tombstones.note(&older, Some(COMMIT));
        let name = tombstones.name(older.id());
        tombstones.keep(Tombstone { name, time: later.timestamp().time, end: Some(ABORT) });
        assert_eq!(tombstones.remembered_outcome(older.id()), None, "either may be meant");
        for time in [11, 12, 13] {
            tombstones.note(&transaction(time), None);
        }
        assert!(!tombstones.names.contains_key(&name));
        assert!(tombstones.may_have(&transaction(30)));
    }

    #[test]
    fn who_was_laid_to_rest_may_end_later() {
        let mut tombstones = Tombstones::new(7);
        for end in [None, Some(COMMIT), None] {
            tombstones.note(&transaction(5), end);
            tombstones.note(&transaction(6), Some(ABORT));
        }
        assert_eq!(tombstones.remembered_outcome(transaction(5).id()), Some(COMMIT));
        assert_eq!(tombstones.remembered_outcome(transaction(6).id()), Some(ABORT));
        assert_eq!(tombstones.remembered_outcome(transaction(7).id()), None);
    }

    #[test]
    fn a_name_is_always_made_in_the_same_way() {
        // SHA-256 of eight bytes 7, 0, … and thirty-two bytes 9: what is on disk must be found again by later versions.
        assert_eq!(Tombstones::new(7).name(TransactionId([9; 32])), 0x2272_9584_14f9_5bc4);
    }

    #[test]
    fn names_under_another_number_say_nothing() {
        let mut tombstones = Tombstones::new(7);
        tombstones.note(&transaction(5), Some(COMMIT));
        tombstones.restore(8, 0, Vec::new());
        assert_eq!(tombstones.remembered_outcome(transaction(5).id()), None);
        assert!(tombstones.may_have(&transaction(5)) && !tombstones.may_have(&transaction(6)));
    }
}
