//! Who of a shard has spoken: each replica counts once.

/// A set of replica indices, each counted once however often it speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Voters(u64);

impl Voters {
    /// The set of one replica alone.
    #[must_use]
    pub fn of(index: u16) -> Self {
        let mut voters = Self::default();
        voters.insert(index);
        voters
    }

    /// Adds the replica at `index`; `true` when it had not been counted. An index past 63 is never counted:
    /// no shard is that large (`types::limits::FAULTS_MAX`).
    pub fn insert(&mut self, index: u16) -> bool {
        if index > 63 || self.contains(index) {
            return false;
        }
        self.0 |= 1 << index;
        true
    }

    /// Forgets the replica at `index`.
    pub fn remove(&mut self, index: u16) {
        if index <= 63 {
            self.0 &= !(1 << index);
        }
    }

    /// Whether the replica at `index` was counted.
    #[must_use]
    pub fn contains(&self, index: u16) -> bool {
        index <= 63 && self.0 & (1 << index) != 0
    }

    /// Those who are in both sets.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Those who are in either set.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// How many were counted.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.count_ones() as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replica_counts_once() {
        let mut voters = Voters::default();
        assert!(voters.insert(3));
        assert!(!voters.insert(3));
        assert!(!voters.insert(64));
        assert!(voters.insert(63));
        assert_eq!(voters.count(), 2);
    }
}
