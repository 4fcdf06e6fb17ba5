//! What a run found.

use std::fmt;

use crate::checker::Violation;

/// What a run found, and how much of everything there was in it.
#[derive(Clone, Debug)]
pub struct Report {
    /// The scenario's name.
    pub scenario: &'static str,
    /// The seed.
    pub seed: u64,
    /// What of the scenario was set by hand.
    pub words: Vec<String>,
    /// Every promise seen broken. None is what everybody hopes for.
    pub violations: Vec<Violation>,
    /// How much there was.
    pub counts: Counts,
    /// The run in a number: two runs of a seed have the same.
    pub fingerprint: u64,
    /// What happened, line by line, if it was asked for.
    pub trace: Option<String>,
}

/// How much of everything there was in a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Virtual time, in milliseconds.
    pub virtual_ms: u64,
    /// Events.
    pub events: u64,
    /// Messages that arrived.
    pub messages: u64,
    /// Transactions of honest clients that committed.
    pub committed: u64,
    /// Transactions of honest clients that aborted.
    pub aborted: u64,
    /// Transactions of honest clients whose clients were never told how they ended.
    pub unknown: u64,
    /// Of the commits that honest clients were told of, those that took one round trip.
    pub fast: u64,
    /// Transactions of honest clients that only read, and committed without a vote.
    pub validated: u64,
    /// Transactions on which honest replicas logged different decisions, so that an election had to settle them.
    pub divided: u64,
    /// Transactions for which honest replicas elected a leader.
    pub elections: u64,
    /// Those of them that an honest leader decided.
    pub led: u64,
    /// The views these elections reached, all together.
    pub views: u64,
    /// The highest of them; of many runs, the highest in any.
    pub view_max: u64,
    /// Transactions of rogue clients that ended.
    pub rogue_ended: u64,
    /// Crashes of replicas and clients.
    pub crashes: u64,
    /// Cuts, slow links, storms and clock jumps.
    pub network_faults: u64,
    /// Replicas stopped in good order and started again as another version.
    pub upgraded: u64,
    /// Messages that an adversary of the network held back.
    pub held: u64,
    /// Bits flipped on disks, counted by the time and not by the bit.
    pub bit_flips: u64,
    /// Replicas that noticed damage on their disks and stayed away.
    pub away: u64,
    /// The most replicas of any shard that were at fault; of many runs, the most in any.
    pub faulty: u64,
    /// Messages refused because they did not decode or their signatures were bad.
    pub refused: u64,
}

impl Counts {
    /// Adds another run's.
    pub fn add(&mut self, other: &Self) {
        self.virtual_ms += other.virtual_ms;
        self.events += other.events;
        self.messages += other.messages;
        self.committed += other.committed;
        self.aborted += other.aborted;
        self.unknown += other.unknown;
        self.fast += other.fast;
        self.validated += other.validated;
        self.divided += other.divided;
        self.elections += other.elections;
        self.led += other.led;
        self.views += other.views;
        self.view_max = self.view_max.max(other.view_max);
        self.rogue_ended += other.rogue_ended;
        self.crashes += other.crashes;
        self.network_faults += other.network_faults;
        self.upgraded += other.upgraded;
        self.held += other.held;
        self.bit_flips += other.bit_flips;
        self.away += other.away;
        self.faulty = self.faulty.max(other.faulty);
        self.refused += other.refused;
    }
}

impl Report {
    /// Whether every promise was kept.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.violations.is_empty()
    }
}

impl fmt::Display for Report {
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
