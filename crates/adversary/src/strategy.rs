//! The strategies of Byzantine clients, by name.

use random::{Named, Random};

/// A strategy of a Byzantine client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ClientStrategy {
    /// Requests votes and abandons the transaction: *stall-early* of Basil §6.4.
    StallEarly,
    /// Decides and informs no replica: *stall-late*.
    StallLate,
    /// Requests votes from some replicas only, and abandons the transaction.
    PartialPrepare,
    /// Collects all votes, logs both decisions if they happen to justify both, and abandons the transaction; otherwise behaves correctly:
    /// *equiv-real*.
    EquivocateReal,
    /// Collects the votes, logs both decisions in any case, and abandons the transaction: *equiv-forced*. Correct replicas refuse that, so it
    /// has an effect only on replicas that are broken on purpose.
    EquivocateForced,
    /// Sees to it that the votes justify both ends, logs both, and leaves.
    EquivocateSplit,
    /// Sends two transactions under one timestamp.
    ReuseTimestamps,
    /// Sends two transactions under one timestamp, each to one half of the replicas.
    SplitContents,
    /// Uses timestamps in the future, as far as replicas accept them.
    FarFuture,
    /// Sends transactions in another client's name.
    Spoof,
    /// Claims to have read from transactions that do not exist, or from its own future.
    InventDependencies,
    /// Reads, and abandons the transaction, so that its read timestamps remain.
    ReadAndLeave,
    /// Sees to it that the votes justify both ends, logs both, calls for leaders, and proves whichever end it can.
    DecideTwice,
    /// Ends its transaction as an honest client does, and shows proofs of the other end that are not good.
    ForgeProofs,
    /// Has logged what no vote allows, and proves whichever end it can.
    LogFreely,
    /// Has both ends logged, and calls for the next leader as soon as there is one.
    HurryLeaders,
    /// Speaks in another client's name, and shows the votes of whoever votes for that.
    VouchForLies,
    /// Writes, or claims to have read, keys that others have a right to, whether it has or not, and asks for what they hold.
    Overstep,
}

/// Those that honest replicas hear as they are.
const STRATEGIES: [ClientStrategy; 11] = [
    ClientStrategy::StallEarly,
    ClientStrategy::StallLate,
    ClientStrategy::PartialPrepare,
    ClientStrategy::EquivocateReal,
    ClientStrategy::EquivocateSplit,
    ClientStrategy::ReuseTimestamps,
    ClientStrategy::SplitContents,
    ClientStrategy::FarFuture,
    ClientStrategy::Spoof,
    ClientStrategy::InventDependencies,
    ClientStrategy::ReadAndLeave,
];

impl ClientStrategy {
    /// One to four ways, of which each transaction takes one.
    #[must_use]
    pub fn draw(random: &mut Random) -> Vec<Self> {
        (0..random.between(1, 4)).map(|_| random.pick(&STRATEGIES)).collect()
    }

    /// A short name that does not change.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::StallEarly => "stall-early",
            Self::StallLate => "stall-late",
            Self::PartialPrepare => "partial-prepare",
            Self::EquivocateReal => "equiv-real",
            Self::EquivocateForced => "equiv-forced",
            Self::EquivocateSplit => "equiv-split",
            Self::ReuseTimestamps => "reuse-timestamps",
            Self::SplitContents => "split-contents",
            Self::FarFuture => "far-future",
            Self::Spoof => "spoof",
            Self::InventDependencies => "invent-dependencies",
            Self::ReadAndLeave => "read-and-leave",
            Self::DecideTwice => "decide-twice",
            Self::ForgeProofs => "forge-proofs",
            Self::LogFreely => "log-freely",
            Self::HurryLeaders => "hurry-leaders",
            Self::VouchForLies => "vouch-for-lies",
            Self::Overstep => "overstep",
        }
    }
}

impl Named for ClientStrategy {
    const ALL: &'static [Self] = &[
        Self::StallEarly,
        Self::StallLate,
        Self::PartialPrepare,
        Self::EquivocateReal,
        Self::EquivocateForced,
        Self::EquivocateSplit,
        Self::ReuseTimestamps,
        Self::SplitContents,
        Self::FarFuture,
        Self::Spoof,
        Self::InventDependencies,
        Self::ReadAndLeave,
        Self::DecideTwice,
        Self::ForgeProofs,
        Self::LogFreely,
        Self::HurryLeaders,
        Self::VouchForLies,
        Self::Overstep,
    ];

    fn name(self) -> String {
        Self::name(self).to_owned()
    }
}
