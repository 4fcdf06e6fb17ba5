//! What `client.toml` says that only some engines look at.

#[cfg(not(feature = "lab"))]
use crate::laboratory_only;

/// The settings of a client that only some engines look at; what is left out is as in [`EngineOptions::default`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineOptions {
    /// How many replicas a read asks.
    pub read_quorum: ReadQuorum,
    /// Whether decisions may take one round trip.
    pub fast_path: FastPath,
    /// How a transaction that writes nothing commits.
    pub read_only: ReadOnly,
}

/// How many replicas of a shard a read asks (Basil §4.1, figure 5b). It is content with `f+1` of their replies,
/// or with one where only one is asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReadQuorum {
    /// One replica, whose word is then taken: for measurement.
    #[cfg(feature = "lab")]
    One,
    /// `f+1`: at least one of them is correct; one that stays silent costs another round.
    FaultsPlusOne,
    /// `2f+1`: `f+1` answer even when `f` stay silent.
    #[default]
    TwoFaultsPlusOne,
    /// `3f+1`: as many as a transaction asks that says beforehand that it only reads.
    ThreeFaultsPlusOne,
}

impl ReadQuorum {
    /// How many replicas that is when a shard tolerates `faults` faults.
    #[must_use]
    pub const fn count(self, faults: usize) -> usize {
        match self {
            #[cfg(feature = "lab")]
            Self::One => 1,
            Self::FaultsPlusOne => faults + 1,
            Self::TwoFaultsPlusOne => 2 * faults + 1,
            Self::ThreeFaultsPlusOne => 3 * faults + 1,
        }
    }

    /// As it is written in `client.toml`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            #[cfg(feature = "lab")]
            Self::One => "1",
            Self::FaultsPlusOne => "f+1",
            Self::TwoFaultsPlusOne => "2f+1",
            Self::ThreeFaultsPlusOne => "3f+1",
        }
    }
}

impl std::str::FromStr for ReadQuorum {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            #[cfg(feature = "lab")]
            "1" => Ok(Self::One),
            #[cfg(not(feature = "lab"))]
            "1" => Err(laboratory_only("read_quorum = \"1\"")),
            "f+1" => Ok(Self::FaultsPlusOne),
            "2f+1" => Ok(Self::TwoFaultsPlusOne),
            "3f+1" => Ok(Self::ThreeFaultsPlusOne),
            _ => Err(format!("a read quorum is one of \"f+1\", \"2f+1\" and \"3f+1\", not {name:?}")),
        }
    }
}

/// Whether a client decides by unanimous votes in one round trip, where it can.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FastPath {
    /// It does.
    #[default]
    On,
    /// Every decision is logged first: for measurement, and to exercise the slow path.
    #[cfg(feature = "lab")]
    Off,
}

impl std::str::FromStr for FastPath {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "on" => Ok(Self::On),
            #[cfg(feature = "lab")]
            "off" => Ok(Self::Off),
            #[cfg(not(feature = "lab"))]
            "off" => Err(laboratory_only("fast_path = \"off\"")),
            _ => Err(format!("the fast path is \"on\", not {name:?}")),
        }
    }
}

/// How a transaction that writes nothing commits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReadOnly {
    /// When enough replicas say that nothing newer is under way: without a vote or a signature.
    #[default]
    Validated,
    /// By the replicas' votes, like any other: for measurement.
    #[cfg(feature = "lab")]
    Voted,
}

impl std::str::FromStr for ReadOnly {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "validated" => Ok(Self::Validated),
            #[cfg(feature = "lab")]
            "voted" => Ok(Self::Voted),
            #[cfg(not(feature = "lab"))]
            "voted" => Err(laboratory_only("read_only = \"voted\"")),
            _ => Err(format!("what only reads commits \"validated\", not {name:?}")),
        }
    }
}
