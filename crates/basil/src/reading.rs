//! What the replies to one read amount to (Basil §4.1, client step 3).

use crate::transaction::Transaction;
use machine::Voters;
use mutants::{Mutant, broken};
use smallvec::SmallVec;
use types::{Key, KeyRange, Timestamp, Value};

use crate::message::{PendingWrite, ReadResult};
use crate::quorum::Quorums;

/// What a read found.
#[derive(Clone, Debug, PartialEq)]
pub struct ReadFound {
    /// The key.
    pub key: Key,
    /// The version; [`Timestamp::ZERO`] when there is nothing.
    pub version: Timestamp,
    /// Its value; `None` when the key is deleted or was never written.
    pub value: Option<Value>,
    /// The transaction that wrote it, when it is prepared and not yet known to have committed.
    pub dependency: Option<Transaction>,
    /// The replicas that validate the read, once the version is committed: they have no newer version below the reader's timestamp, committed
    /// or prepared, and will vote for none.
    pub validated: Voters,
    /// Too many replicas promise nothing for now: the read has to be voted on.
    pub is_withheld: bool,
}

/// What a scan found.
#[derive(Clone, Debug, PartialEq)]
pub struct RangeFound {
    /// The keys that it read.
    pub range: KeyRange,
    /// Of those, in the direction of the scan, all that have values; and those whose values were taken by what is prepared and not yet known to have committed.
    pub found: Vec<ReadFound>,
    /// How many others are known to have been deleted; not counted in reads of the past.
    pub deleted: usize,
    /// Enough replicas validate it: at the reader's timestamp, the keys have just the committed versions that were found, and will have.
    pub is_validated: bool,
}

/// The replies heard so far for one key. Mostly all name the same version, which takes no memory of its own.
#[derive(Clone, Debug)]
pub(crate) struct KeyReplies {
    key: Key,
    committed: SmallVec<[(Timestamp, Option<Value>, Voters); 1]>,
    prepared: Vec<(Transaction, Voters)>,
    /// Which version each names as the last below the reader's timestamp, committed or prepared.
    last: SmallVec<[(Timestamp, Voters); 1]>,
    /// Whoever has answered at all.
    heard: Voters,
    /// Whoever promises nothing.
    unpromised: Voters,
}

/// What the replies for one key amount to.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Choice {
    /// The newest version anybody named is vouched for: no other reply could be needed.
    Newest(ReadFound),
    /// This one is vouched for, and a newer one is named by too few.
    WeakQuorum(ReadFound),
    /// Nothing is vouched for.
    Nothing,
}

impl KeyReplies {
    pub fn new(key: Key) -> Self {
        let (heard, unpromised) = (Voters::default(), Voters::default());
        Self { key, committed: SmallVec::new(), prepared: Vec::new(), last: SmallVec::new(), heard, unpromised }
    }

    pub fn key(&self) -> &Key {
        &self.key
    }

    /// Takes in what replica `index` has of the key, below `before`, and whether it promises that nothing comes between; what it said
    /// earlier counts no more. A reply that cannot be true is left out.
    pub fn add(&mut self, index: u16, (result, is_promised): (ReadResult, bool), prepared: Option<&Transaction>, before: Timestamp) {
        self.committed.iter_mut().for_each(|(_, _, voters)| voters.remove(index));
        self.prepared.iter_mut().for_each(|(_, voters)| voters.remove(index));
        self.heard.insert(index);
        self.unpromised.remove(index);
        if !is_promised {
            self.unpromised.insert(index);
        }
        self.last.iter_mut().for_each(|(_, voters)| voters.remove(index));
        let prepared = prepared.filter(|one| one.timestamp() < before && one.write_of(&self.key).is_some());
        if let Some(last) = last_version(&result, prepared).filter(|_| is_promised) {
            match self.last.iter_mut().find(|(version, _)| *version == last) {
                Some((_, voters)) => drop(voters.insert(index)),
                None => self.last.push((last, Voters::of(index))),
            }
        }
        if result.version < before {
            let same = |(version, value, _): &&mut (Timestamp, Option<Value>, Voters)| *version == result.version && *value == result.value;
            let at = self.committed.iter_mut().find(same);
            if let Some((_, _, voters)) = at {
                voters.insert(index);
            } else {
                self.committed.push((result.version, result.value, Voters::of(index)));
            }
        }
        self.committed.retain(|(_, _, voters)| voters.count() > 0);
        self.prepared.retain(|(_, voters)| voters.count() > 0);
        self.last.retain(|(_, voters)| voters.count() > 0);
        let Some(transaction) = prepared else { return };
        if let Some((_, voters)) = self.prepared.iter_mut().find(|(known, _)| known.id() == transaction.id()) {
            voters.insert(index);
        } else {
            self.prepared.push((transaction.clone(), Voters::of(index)));
        }
    }

    /// The undecided writers that replicas show, and who does.
    pub fn prepared(&self) -> impl Iterator<Item = (&Transaction, Voters)> {
        self.prepared.iter().map(|(transaction, voters)| (transaction, *voters))
    }

    /// How many replicas' answers contradict `found`: they do not validate it.
    pub fn contradicted(&self, found: &ReadFound) -> usize {
        self.heard.count() - self.heard.and(found.validated).count()
    }

    /// Whoever names a newer committed version than `found`, though so many validate that one that no newer one can have committed
    /// ([`crate::doubts`]).
    pub fn refuted(&self, found: &ReadFound, quorums: Quorums) -> Voters {
        if found.dependency.is_some() || found.validated.count() < quorums.validation() {
            return Voters::default();
        }
        let newer = self.committed.iter().filter(|(version, _, _)| *version > found.version);
        newer.fold(Voters::default(), |refuted, (_, _, voters)| refuted.or(*voters))
    }

    /// The highest version that at least `f + 1` replicas vouch for: one of those is correct. A committed version
    /// counts by those who have it committed, a prepared one by those who have that very transaction prepared; the
    /// two are not added up, or liars could pass off a transaction of theirs for the one that wrote a version.
    ///
    /// What `3f + 1` validate needs no other reply: a newer version that somebody names never commits ([`crate::read_only`]).
    ///
    /// Nobody depends on a transaction that `has_committed`, as the reader's process has seen itself, though not all have heard of it.
    pub fn choose(&self, needed: usize, quorums: Quorums, has_committed: impl Fn(&Transaction) -> bool) -> Choice {
        let validated = |version: Timestamp| {
            let last = self.last.iter().find(|(last, _)| *last == version);
            last.map_or_else(Voters::default, |(_, voters)| *voters)
        };
        let mut vouched_committed = self.committed.iter().filter(|(_, _, voters)| voters.count() >= needed);
        let newest = vouched_committed.clone().max_by_key(|(version, _, _)| *version);
        // In a range, whoever has deleted the key some time ago says nothing of it, and is right.
        let settled = vouched_committed.find(|(version, _, _)| validated(*version).count() >= quorums.validation());
        let committed = settled.filter(|_| !broken(Mutant::ValidatedUnpreferred)).or(newest);
        let added = |transaction: &Transaction| {
            let same = self.committed.iter().filter(|(version, _, _)| *version == transaction.timestamp());
            if broken(Mutant::VotersAdded) { same.map(|(_, _, voters)| voters.count()).sum() } else { 0 }
        };
        let vouched_prepared = self.prepared.iter().filter(|(transaction, voters)| voters.count() + added(transaction) >= needed);
        let prepared = vouched_prepared.max_by_key(|(transaction, _)| transaction.timestamp());
        // A correct replica withholds its promise, and so do most: whoever was held off was so by what a quorum had promised.
        let is_withheld = self.unpromised.count() >= quorums.weak() && !broken(Mutant::UnpromisedAskedAgain);
        let committed = committed.map(|(version, value, _)| ReadFound {
            key: self.key.clone(),
            version: *version,
            value: value.clone(),
            dependency: None,
            validated: validated(*version),
            is_withheld: is_withheld && validated(*version).count() < quorums.validation(),
        });
        let found = match (committed, prepared) {
            (Some(found), _) if found.validated.count() >= quorums.validation() => return Choice::Newest(found),
            (committed, Some((transaction, _))) if committed.as_ref().is_none_or(|found| found.version < transaction.timestamp()) => {
                ReadFound {
                    key: self.key.clone(),
                    version: transaction.timestamp(),
                    value: transaction.write_of(&self.key).and_then(|write| write.value.clone()),
                    dependency: (!has_committed(transaction)).then(|| transaction.clone()),
                    validated: validated(transaction.timestamp()),
                    is_withheld: is_withheld && validated(transaction.timestamp()).count() < quorums.validation(),
                }
            }
            (Some(found), _) => found,
            (None, _) => return Choice::Nothing,
        };
        if found.dependency.is_none() && found.validated.count() >= quorums.validation() {
            return Choice::Newest(found);
        }
        let named = self.committed.iter().map(|(version, _, _)| *version);
        let named = named.chain(self.prepared.iter().map(|(transaction, _)| transaction.timestamp()));
        if named.max().is_some_and(|newest| newest <= found.version) { Choice::Newest(found) } else { Choice::WeakQuorum(found) }
    }
}

/// The last version below the reader's timestamp that whoever answers so has, committed or prepared: none comes after it. Nothing where it has
/// one that it does not show. `prepared` is what it names, if that can be true.
pub(crate) fn last_version(result: &ReadResult, prepared: Option<&Transaction>) -> Option<Timestamp> {
    match result.pending {
        PendingWrite::None => Some(result.version),
        _ if broken(Mutant::PreparedValidated) => Some(result.version),
        PendingWrite::Prepared(_) => prepared.map(Transaction::timestamp),
        PendingWrite::Hidden => None,
    }
}

/// How many replicas of a shard a read asks at first (figure 5b's parameter).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReadQuorum {
    /// One, which is believed: only for measuring what belief in one replica would save. Gives up Byzantine independence.
    #[cfg(feature = "lab")]
    One,
    /// `f + 1`.
    WeakQuorum,
    /// `2f + 1`: one correct, up-to-date majority among those who answer. The default.
    #[default]
    Majority,
    /// `3f + 1`.
    Commit,
}

impl ReadQuorum {
    /// How many replicas are asked at first.
    pub(crate) fn asked(self, faults: usize) -> usize {
        match self {
            #[cfg(feature = "lab")]
            Self::One => 1,
            Self::WeakQuorum => faults + 1,
            Self::Majority => 2 * faults + 1,
            Self::Commit => 3 * faults + 1,
        }
    }

    /// How many must agree on a version before it is believed.
    pub(crate) fn needed(self, quorums: Quorums) -> usize {
        match self {
            #[cfg(feature = "lab")]
            Self::One => 1,
            _ if broken(Mutant::ReadOfOne) => 1,
            _ => quorums.weak(),
        }
    }
}
