//! Rules that can be broken on purpose, one at a time, to see that somebody notices.
//!
//! Where a rule is kept, the code asks [`broken`]. In every ordinary build the answer is a constant `false`, and nothing of
//! this is left. In builds with the feature `mutants`, which only the simulator turns on and only in its tests of itself, a
//! thread may break one rule (`breaking`) for as long as a run takes. `docs/testing.md` lists what catches each.

/// Lists the mutants: the rule each one breaks, and what it does instead.
macro_rules! mutants {
    ($($mutant:ident: $rule:literal, $broken:literal;)*) => {
        /// A rule that can be broken.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Mutant {
            $(#[doc = concat!($rule, ": ", $broken, ".")] $mutant,)*
        }

        impl Mutant {
            /// All of them, in the order of the protocol.
            pub const ALL: &[Self] = &[$(Self::$mutant,)*];

            /// Its name.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Self::$mutant => stringify!($mutant),)* }
            }

            /// The rule it breaks: where it stands in the paper or in the book.
            #[must_use]
            pub fn rule(self) -> &'static str {
                match self { $(Self::$mutant => $rule,)* }
            }

            /// What happens instead.
            #[must_use]
            pub fn broken(self) -> &'static str {
                match self { $(Self::$mutant => $broken,)* }
            }
        }
    };
}

mutants! {
    DependencyUnknown: "Alg. 1 L3-4", "a dependency that nobody here knows counts as committed";
    PreparedWriteMissed: "Alg. 1 L7", "prepared writes between what was read and the reader are overlooked";
    CommittedWriteMissed: "Alg. 1 L7", "committed writes between what was read and the reader are overlooked";
    ReaderMissed: "Alg. 1 L10", "readers past what is written are overlooked";
    CommittedReaderMissed: "Alg. 1 L10", "readers count only until they have committed";
    PreparedUnseen: "Alg. 1 L14", "what is prepared counts in no other transaction's check";
    DependencyNotAwaited: "Alg. 1 L15", "a vote does not wait for what the transaction read from";
    DependencyAbortForgiven: "Alg. 1 L16-18", "who read from what aborted is voted for all the same";
    TimestampShared: "one timestamp, one transaction", "two transactions under one timestamp are both voted for";
    AuthorUnasked: "authorship", "whoever brings a transaction may have it voted on";
    StrangerKept: "authorship", "what nobody authored is never voted down";
    VoteReconsidered: "votes are final", "who asks again gets a new judgement";
    VoteUnwritten: "votes are final", "a vote is not written to the journal";
    LoggedUnwritten: "§4.2 (6)", "a logged decision is not written to the journal";
    ReadOfOne: "§4.1", "a version counts when one replica shows it";
    CommitSlowQuorum: "§4.2 (1)", "one vote fewer than 3f+1 commits slowly";
    AbortSlowQuorum: "§4.2 (2)", "one vote fewer than f+1 aborts slowly";
    CommitFastQuorum: "§4.2 (3)", "one vote fewer than 5f+1 commits fast";
    AbortFastQuorum: "§4.2 (4)", "one vote fewer than 3f+1 aborts fast";
    VoterCountedTwice: "§4.2", "a replica that votes twice counts twice";
    JanitorAsleep: "§5", "replicas finish nothing of their own accord";
    SyncSkipped: "the store", "what is written is not synced";
    ReplaySkipped: "the store", "a replica that comes back reads no journal";
}

/// Whether this thread is to break the rule.
#[cfg(not(feature = "mutants"))]
#[inline]
#[must_use]
pub const fn broken(_rule: Mutant) -> bool {
    false
}

/// Whether this thread is to break the rule.
#[cfg(feature = "mutants")]
#[must_use]
pub fn broken(rule: Mutant) -> bool {
    switch::is(rule)
}

#[cfg(feature = "mutants")]
pub use switch::breaking;

#[cfg(feature = "mutants")]
mod switch {
    use std::cell::Cell;

    use super::Mutant;

    thread_local! {
        static BROKEN: Cell<Option<Mutant>> = const { Cell::new(None) };
    }

    pub(super) fn is(rule: Mutant) -> bool {
        BROKEN.get() == Some(rule)
    }

    /// Whole again when it goes, also when what ran has panicked.
    struct Broken;

    impl Drop for Broken {
        fn drop(&mut self) {
            BROKEN.set(None);
        }
    }

    /// Does `run` with one rule broken, on this thread and no other.
    pub fn breaking<T>(rule: Mutant, run: impl FnOnce() -> T) -> T {
        let _broken = Broken;
        BROKEN.set(Some(rule));
        run()
    }

    #[cfg(test)]
    mod tests {
        use super::super::broken;
        use super::*;

        #[test]
        fn one_rule_is_broken_for_as_long_as_the_run_takes() {
            assert!(Mutant::ALL.iter().all(|mutant| !broken(*mutant)));
            let inside = breaking(Mutant::VoteUnwritten, || Mutant::ALL.iter().filter(|mutant| broken(**mutant)).count());
            assert_eq!(inside, 1);
            let panicked = std::panic::catch_unwind(|| breaking(Mutant::VoteUnwritten, || panic!("as a run may")));
            assert!(panicked.is_err() && !broken(Mutant::VoteUnwritten));
        }
    }
}
