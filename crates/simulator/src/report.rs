//! What a run found.

use std::fmt;

use crate::system::EngineCounts;

/// A promise that was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which checker says so.
    pub checker: &'static str,
    /// What was seen.
    pub what: String,
}

/// The most violations written down: after the first, the rest mostly follow from it.
const VIOLATIONS_MAX: usize = 8;

/// Every promise seen broken in a run, the first of them first.
#[derive(Clone, Debug, Default)]
pub struct Violations {
    all: Vec<Violation>,
    /// The only checker that is listened to, if not all are.
    only: Option<&'static str>,
}

impl Violations {
    /// Writes down what `checker` saw.
    pub fn add(&mut self, checker: &'static str, what: String) {
        if self.all.len() < VIOLATIONS_MAX && self.only.is_none_or(|only| only == checker) {
            self.all.push(Violation { checker, what });
        }
    }

    /// All that were written down.
    #[must_use]
    pub fn all(&self) -> &[Violation] {
        &self.all
    }

    /// From now on what any other checker sees is not written down.
    pub(crate) fn listen_only_to(&mut self, checker: &'static str) {
        self.only = Some(checker);
    }
}

/// What a run found, and how much of everything there was in it.
#[derive(Clone, Debug)]
pub struct Report<C> {
    /// The scenario's name.
    pub scenario: &'static str,
    /// The seed.
    pub seed: u64,
    /// What of the scenario was set by hand.
    pub words: Vec<String>,
    /// Every promise seen broken. None is what everybody hopes for.
    pub violations: Vec<Violation>,
    /// How much there was of what there is in any engine,
    pub counts: Counts,
    /// and in this one.
    pub engine: C,
    /// The run in a number: two runs of a seed have the same.
    pub fingerprint: u64,
    /// What happened, line by line, if it was asked for.
    pub trace: Option<String>,
}

/// Counts, each with its name.
macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident: $how:ident,)*) => {
        /// How much of everything there was in a run.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counts { $($(#[$doc])* pub $name: u64,)* }

        impl EngineCounts for Counts {
            fn add(&mut self, other: &Self) {
                $(self.$name = $how(self.$name, other.$name);)*
            }

            fn named(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name),)*]
            }
        }
    };
}

fn sum(one: u64, other: u64) -> u64 {
    one + other
}

fn most(one: u64, other: u64) -> u64 {
    one.max(other)
}

counts! {
    /// Virtual time, in milliseconds.
    virtual_ms: sum,
    /// Events.
    events: sum,
    /// Messages that arrived.
    messages: sum,
    /// Transactions of honest clients that committed.
    committed: sum,
    /// Transactions of honest clients that aborted.
    aborted: sum,
    /// Transactions of honest clients whose clients were never told how they ended.
    unknown: sum,
    /// Transactions of Byzantine clients that ended.
    byzantine_ended: sum,
    /// Crashes of replicas and clients.
    crashes: sum,
    /// Cuts, slow links, times of heavy loss, and clock jumps.
    network_faults: sum,
    /// Disks that were lost.
    disks_lost: sum,
    /// Replicas stopped in good order and started again as another version.
    upgraded: sum,
    /// Configurations that operators made.
    configurations: sum,
    /// Messages that the network's adversary delayed.
    delayed: sum,
    /// Bits flipped on disks, counted by the time and not by the bit.
    bit_flips: sum,
    /// Bits flipped in what replicas held, behind their backs.
    silent_flips: sum,
    /// Replicas that noticed damage on their disks and stayed away.
    away: sum,
    /// The most replicas of any shard that were at fault; of many runs, the most in any.
    faulty: most,
    /// Messages refused because they did not decode or their signatures were bad.
    refused: sum,
}

impl<C> Report<C> {
    /// Whether every promise was kept.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.violations.is_empty()
    }
}

impl<C> fmt::Display for Report<C> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Counts { virtual_ms, committed, aborted, unknown, messages, crashes, .. } = self.counts;
        write!(
            formatter,
            "{} seed {}: {}.{:03} s, {committed} committed, {aborted} aborted, {unknown} unknown, {messages} messages, {crashes} crashes, fingerprint {:016x}",
            self.scenario,
            self.seed,
            virtual_ms / 1_000,
            virtual_ms % 1_000,
            self.fingerprint
        )?;
        for violation in &self.violations {
            write!(formatter, "\n  {}: {}", violation.checker, violation.what)?;
        }
        Ok(())
    }
}
