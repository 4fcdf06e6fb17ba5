//! What a replica found of its own state to be wrong: it differs from what the others of its shard agree on, though nobody has told it anything else.

use std::collections::VecDeque;

use machine::Time;
use types::Digest;

/// So many are remembered one by one; of more, the oldest are forgotten.
pub const DIVERGENCES_KEPT_MAX: usize = 16;
/// The most letters of what names a place.
const PLACE_LETTERS_MAX: usize = 160;

/// A part of a replica's state that came to differ from the others'.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Divergence {
    /// Counted from 1 since the process began.
    pub number: u64,
    /// When it was noticed, by the replica's clock.
    pub noticed: Time,
    /// Which part of the state it is, for people: a key, a range, a page.
    pub place: String,
    /// The digest of what this replica had.
    pub own: Digest,
    /// The digest of what the others have.
    pub agreed: Digest,
    /// How many others have said so; 0 where the replica compared with what they had agreed on before.
    pub agreed_by: usize,
    /// When this replica had what they have.
    pub mended: Option<Time>,
}

/// What a process has found of its own state to be wrong.
#[derive(Clone, Debug, Default)]
pub struct Divergences {
    noticed: u64,
    mended: u64,
    recent: VecDeque<Divergence>,
}

impl Divergences {
    /// Notes one, and gives its number.
    pub fn note(&mut self, noticed: Time, place: &str, own: Digest, agreed: Digest, agreed_by: usize) -> u64 {
        self.noticed += 1;
        let mut letters = place.chars();
        let mut place: String = letters.by_ref().take(PLACE_LETTERS_MAX).collect();
        if letters.next().is_some() {
            place.push('…');
        }
        if self.recent.len() == DIVERGENCES_KEPT_MAX {
            self.recent.pop_front();
        }
        self.recent.push_back(Divergence { number: self.noticed, noticed, place, own, agreed, agreed_by, mended: None });
        self.noticed
    }

    /// All that were noticed are mended.
    pub fn mend_all(&mut self, now: Time) {
        self.mended = self.noticed;
        self.recent.iter_mut().for_each(|one| _ = one.mended.get_or_insert(now));
    }

    /// How many were noticed.
    #[must_use]
    pub fn noticed(&self) -> u64 {
        self.noticed
    }

    /// How many of them are mended.
    #[must_use]
    pub fn mended(&self) -> u64 {
        self.mended
    }

    /// The last of them, the oldest first.
    pub fn recent(&self) -> impl DoubleEndedIterator<Item = &Divergence> + ExactSizeIterator {
        self.recent.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_ones_are_remembered_one_by_one_and_all_are_counted() {
        let mut found = Divergences::default();
        for number in 1..=DIVERGENCES_KEPT_MAX as u64 + 3 {
            assert_eq!(found.note(Time(number), &"k".repeat(1_000), [1; 32], [2; 32], 2), number);
        }
        assert_eq!((found.noticed(), found.mended(), found.recent().len()), (19, 0, DIVERGENCES_KEPT_MAX));
        assert!(found.recent().all(|one| one.place.chars().count() == PLACE_LETTERS_MAX + 1 && one.mended.is_none()));
        found.mend_all(Time(50));
        found.note(Time(60), "b", [1; 32], [2; 32], 2);
        assert_eq!((found.noticed(), found.mended()), (20, 19));
        assert!(found.recent().all(|one| one.mended.is_some() == (one.number < 20)));
    }
}
