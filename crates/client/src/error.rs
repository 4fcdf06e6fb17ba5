//! What can go wrong, told apart by what the caller should do about it.

use engine::{Advice, Refusal};

/// Why a transaction did not commit.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// It met another transaction and was aborted. Nothing of it took place.
    #[error("{}", Refusal::Conflict)]
    Conflict,
    /// It took longer than the cluster remembers timestamps, or clocks were set meanwhile. Nothing of it took place.
    #[error("{}", Refusal::TooOld)]
    TooOld,
    /// Too few replicas answered in time, or could be reached all the while. Nothing of the transaction takes place, or it writes nothing.
    #[error("too few replicas answered within {waited_ms} ms{detail}; check `bezant status`")]
    Unavailable {
        /// How long it waited, in milliseconds.
        waited_ms: u64,
        /// What is known of those that did not answer.
        detail: String,
    },
    /// Too few replicas answered a commit that writes in time, or the client was closed while it was under way: it may or may not take place.
    #[error(
        "too few replicas answered the commit within {waited_ms} ms, or the client was closed meanwhile: it may or may not take place; read \
         back what it wrote to find out{detail}"
    )]
    OutcomeUnknown {
        /// How long it waited, in milliseconds.
        waited_ms: u64,
        /// What the replicas said why they would not judge it, if enough did.
        detail: String,
    },
    /// The cluster refuses; what the refusal advises says whether anything can be done.
    #[error("the cluster refuses: {0}")]
    Refused(Refusal),
    /// The cluster would refuse, because this client has no right to a key.
    #[error("the cluster refuses: {0}")]
    NotPermitted(String),
    /// The request itself is wrong.
    #[error("{0}")]
    Invalid(String),
    /// The client was closed, or its session has ended otherwise: with the runtime on which it was connected, or by a bug.
    #[error("the client has been closed, or the runtime on which it was connected has ended")]
    Closed,
    /// The application's own error, which ended the transaction. Nothing of it took place.
    #[error("{0}")]
    Application(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl Error {
    /// Wraps an application's own error, to leave a [`transact`](crate::Client::transact) closure with it.
    pub fn application(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Application(error.into())
    }

    /// What to do about it.
    #[must_use]
    pub fn advice(&self) -> Advice {
        match self {
            Self::Conflict | Self::TooOld => Advice::Retry,
            Self::Invalid(_) => Advice::FixInput,
            Self::Refused(refusal) => refusal.advice(),
            Self::Unavailable { .. } | Self::OutcomeUnknown { .. } | Self::NotPermitted(_) | Self::Closed | Self::Application(_) => {
                Advice::GiveUp
            }
        }
    }

    /// A short name that does not change, for counting.
    #[must_use]
    pub fn label(&self) -> &'static str {
        match self {
            Self::Conflict => "conflict",
            Self::TooOld => "too_old",
            Self::Unavailable { .. } => "unavailable",
            Self::OutcomeUnknown { .. } => "outcome_unknown",
            Self::Refused(_) | Self::NotPermitted(_) => "refused",
            Self::Invalid(_) => "invalid",
            Self::Closed => "closed",
            Self::Application(_) => "application",
        }
    }
}

/// Why a client could not connect.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The client's own key or certificate cannot be used.
    #[error(transparent)]
    Identity(#[from] runtime::IdentityError),
    /// A replica's key in the cluster's configuration cannot be used.
    #[error("the cluster's configuration cannot be used: {0}")]
    Member(#[from] crypto::BadMember),
    /// This program does not know the engine that the cluster runs.
    #[error("this program does not know the engine {0:?}; use one as new as the cluster")]
    UnknownEngine(String),
    /// So many replicas of some shard hold other keys than `cluster.toml` lists that too few are left.
    #[error("what answers at the addresses of this cluster's replicas are not its replicas{detail}")]
    NotTheCluster {
        /// What each of them showed, a line each.
        detail: String,
    },
    /// Too few replicas of some shard could be reached.
    #[error("only {connected} of the {needed} replicas needed in every shard could be reached, tried for {waited_ms} ms{detail}")]
    TooFew {
        /// How many of the worst shard are connected.
        connected: usize,
        /// How many must be.
        needed: usize,
        /// How long it tried, in milliseconds: no longer than there was hope.
        waited_ms: u64,
        /// What each of the others said, a line each.
        detail: String,
    },
    /// The machine refuses what a client needs.
    #[error(transparent)]
    Start(#[from] runtime::StartError),
}
