//! How many replicas of a shard must say something before it counts, as functions of `f`.
//!
//! A shard has `n = 5f + 1` replicas, of which `f` may lie; any two groups of `a` and `b` replicas share at
//! least `a + b - n` members.

use mutants::{Mutant, broken};

/// The quorums of a shard that survives `f` faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quorums {
    faults: usize,
}

impl Quorums {
    /// The quorums of a shard that survives `faults` faults.
    #[must_use]
    pub const fn new(faults: usize) -> Self {
        Self { faults }
    }

    /// `n = 5f + 1`: every replica of the shard.
    #[must_use]
    pub const fn replicas(self) -> usize {
        5 * self.faults + 1
    }

    /// `f + 1`: at least one of them is correct, so what they all say is not made up.
    #[must_use]
    pub const fn weak(self) -> usize {
        self.faults + 1
    }

    /// `2f + 1` are sent the proof that a transaction committed, and tell the others: `f` of them may be silent, and
    /// those who are left are enough to be believed.
    #[must_use]
    pub const fn relays(self) -> usize {
        2 * self.faults + 1
    }

    /// `3f + 1` votes to commit: two such quorums share `f + 1` replicas, one of them correct, and a correct
    /// replica does not vote to commit two transactions that conflict (Basil §4.2 (1)).
    #[must_use]
    pub fn commit_slow(self) -> usize {
        3 * self.faults + 1 - one_less(Mutant::CommitSlowQuorum)
    }

    /// `3f + 1` replicas for which what was read is validated: whoever writes underneath needs `3f + 1` votes to commit, so a
    /// correct one of these would have to give one, which it does not (beyond the paper: see [`crate::read_only`]).
    #[must_use]
    pub fn validation(self) -> usize {
        3 * self.faults + 1 - one_less(Mutant::ValidationQuorum)
    }

    /// `3f + 1` replicas that hold an old transaction no more, have not learned that it committed, and will not vote for it: at least
    /// `2f + 1` of them are correct, which leaves `3f` votes to commit, one too few ([`crate::orphan_resolution`]).
    #[must_use]
    pub fn release(self) -> usize {
        3 * self.faults + 1 - one_less(Mutant::OrphanReleasedByFew)
    }

    /// `f + 1` votes to abort: one of them comes from a correct replica, so liars alone abort nobody (§4.2 (2)).
    #[must_use]
    pub fn abort_slow(self) -> usize {
        self.faults + 1 - one_less(Mutant::AbortSlowQuorum)
    }

    /// `5f + 1` votes to commit: whoever asks again hears from at least `4f + 1`, of which at most `f` lie, and
    /// so sees at least `3f + 1` votes to commit: the outcome is durable without being logged (§4.2 (3)).
    #[must_use]
    pub fn commit_fast(self) -> usize {
        5 * self.faults + 1 - one_less(Mutant::CommitFastQuorum)
    }

    /// `3f + 1` votes to abort: at least `2f + 1` of them are correct and never change, so at most `3f` votes to
    /// commit can ever be shown, one fewer than it takes (§4.2 (4)).
    #[must_use]
    pub fn abort_fast(self) -> usize {
        3 * self.faults + 1 - one_less(Mutant::AbortFastQuorum)
    }

    /// `4f + 1 = n - f` matching logged decisions: among any `4f + 1` later answers at least `2f + 1` correct
    /// ones repeat the decision, a majority (§4.2 (7), §5 (3)).
    #[must_use]
    pub fn logged(self) -> usize {
        4 * self.faults + 1 - one_less(Mutant::LoggedQuorum)
    }

    /// If a clock bound is known for each of `known` replicas, `4f + 1` or more, the bound in this place from the top lies above every
    /// timestamp acknowledged before: `2f + 1` correct replicas had reached it, and at least `k - 3f` of them are among the `k`
    /// that are known. As `k - 3f > f`, a correct replica's bound lies at or above it, whatever liars say (`replica_clocks.rs`).
    #[must_use]
    pub const fn bounded_clock(self, known: usize) -> usize {
        known.saturating_sub(3 * self.faults)
    }

    /// The clocks of `3f` others, and its own, tell a replica what time it is: the median of these lies between two correct ones. With fewer the
    /// shard can commit nothing (`peer_clocks.rs`).
    #[must_use]
    pub const fn timekeepers(self) -> usize {
        3 * self.faults
    }

    /// `2f + 1` others that know what time it is tell a replica that starts: the median lies between two correct ones.
    #[must_use]
    pub const fn clocks_set(self) -> usize {
        2 * self.faults + 1
    }

    /// `4f` others, as many as are sure to answer, show what they have before a replica takes it that it lacks nothing there: what committed is
    /// known to `2f + 1` correct ones, and `f + 1` of these are among them (`replica/catch_up.rs`).
    #[must_use]
    pub const fn compared(self) -> usize {
        4 * self.faults
    }

    /// `3f + 1` replicas in a view or past it: at least `2f + 1` of them are correct, so that any `4f + 1` answers hold
    /// `f + 1` of these, and whoever hears that many can follow (§5 (2)).
    #[must_use]
    pub fn view_passed(self) -> usize {
        3 * self.faults + 1 - one_less(Mutant::ViewPassedQuorum)
    }

    /// `4f + 1 = n - f` elect a leader: as many as are sure to answer, and among them a logged decision has its majority.
    /// An odd number, so that there always is one (§5 (3)).
    #[must_use]
    pub fn elected(self) -> usize {
        4 * self.faults + 1 - one_less(Mutant::ElectedQuorum)
    }
}

/// What a mutant takes off its quorum.
fn one_less(mutant: Mutant) -> usize {
    usize::from(broken(mutant))
}

#[cfg(test)]
mod tests {
    use super::Quorums;

    #[test]
    fn intersections_hold_for_every_number_of_faults() {
        for faults in 1..=10 {
            let quorums = Quorums::new(faults);
            let n = quorums.replicas();
            // Two commit quorums share a correct replica.
            assert!(2 * quorums.commit_slow() - n > faults);
            // Of the replicas that validate a read, a correct one is in every commit quorum.
            assert!(quorums.validation() + quorums.commit_slow() - n > faults);
            // A transaction that so many have released can gather no commit quorum.
            assert!(n - (quorums.release() - faults) < quorums.commit_slow());
            // After a fast commit, n - f answers with f liars among them still show a commit quorum.
            assert!(n - faults - faults >= quorums.commit_slow());
            // After a fast abort, no commit quorum can be shown: honest aborters never vote commit.
            let honest_aborts = quorums.abort_fast() - faults;
            assert!(n - honest_aborts < quorums.commit_slow());
            // A logged decision is the majority of any 4f + 1 answers.
            let honest_logged = quorums.logged() - faults;
            let in_any_answer = honest_logged + quorums.logged() - n;
            assert!(2 * in_any_answer > quorums.logged());
            // Of those who bring a view to its end, f + 1 correct ones are in any 4f + 1 answers.
            assert!(quorums.view_passed() - faults + quorums.logged() - n >= quorums.weak());
            assert!(quorums.elected() % 2 == 1 && quorums.elected() <= n - faults);
            // Of the correct replicas that had reached a timestamp, so many are among any whose clocks are known.
            let honest_past = quorums.commit_slow() - faults;
            for known in quorums.logged()..=n {
                assert_eq!(quorums.bounded_clock(known), honest_past + known - n);
                assert!(quorums.bounded_clock(known) > faults);
            }
            // Of those who are to tell, enough are left when f are silent.
            assert!(quorums.relays() - faults >= quorums.weak());
            // Progress: with f replicas silent, a commit or an abort quorum can always be seen.
            assert!(n - faults >= quorums.commit_slow() + quorums.abort_slow() - 1);
        }
    }
}
