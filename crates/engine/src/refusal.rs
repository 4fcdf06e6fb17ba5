//! Why something was not done, told apart by what the caller should do about it.

use crate::offer::Capability;

/// What to do about a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// Begin the transaction again: nothing of it took place.
    Retry,
    /// Begin the transaction again, but not before so long: nothing of it took place.
    RetryAfter {
        /// How long, in milliseconds.
        ms: u32,
    },
    /// It cannot succeed as things stand; somebody has to change something, or find out what happened.
    GiveUp,
    /// What was asked cannot be asked; ask something else.
    FixInput,
}

/// After so long a client that runs transactions has asked all replicas again what time it is, in milliseconds.
const CLOCKS_AGAIN_MS: u32 = 250;

/// Why a request was not served. Unless it says otherwise, nothing of the transaction took place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The transaction met another one and was aborted.
    #[error("the transaction was aborted because it conflicts with another one; begin it again")]
    Conflict,
    /// The transaction's timestamp is older than the replicas remember, or it was taken when too little was known of what time it is there.
    #[error(
        "the transaction's timestamp is too old: too few replicas said of late what time it is, or this machine was paused, or it took longer than \
         they remember; begin it again"
    )]
    TooOld,
    /// The transaction's timestamp lies too far in the replicas' future.
    #[error(
        "the transaction's timestamp is too far ahead of the replicas' clocks: these differ too much from one another, or were set back, or this \
         machine had too much else to do to learn what time it is there; begin it again"
    )]
    TooNew,
    /// The past that was asked for is no longer kept.
    #[error(
        "the time asked for is older than what the replicas keep: {}; ask for a later one, or raise `window_ms` at every replica",
        seconds(*kept_ms)
    )]
    NotKept {
        /// How far back they keep it, in milliseconds.
        kept_ms: u64,
    },
    /// The moment that was being read is no longer held.
    #[error(
        "the replicas hold the moment that was read no longer: nobody read it for a while, too much was changed after it, or another one of this client or of \
         others took its place; begin again"
    )]
    NotHeld,
    /// The past that was asked for has not come yet, by the replicas' clocks.
    #[error("the time asked for lies in the future, by the replicas' clocks; ask for a time that has passed")]
    NotPast,
    /// Too few replicas answered in time, and nothing was sent to be committed, or nothing but reads.
    #[error("too few replicas answered in time")]
    Unavailable,
    /// Too few replicas answered a commit in time: it may or may not take place.
    #[error("too few replicas answered the commit in time: it may or may not take place")]
    OutcomeUnknown,
    /// The replicas refused to judge a commit, for this reason, until its time was over: it may or may not take place.
    #[error("the commit may or may not take place: the replicas refused to judge it, as {0}")]
    Unjudged(String),
    /// The replicas have more to do than they can, or this client asks for more at once than they can do.
    #[error("the cluster is overloaded; come again after {after_ms} ms")]
    Overloaded {
        /// How long what is there already takes, in milliseconds.
        after_ms: u32,
    },
    /// This client left too many of its transactions for others to end.
    #[error(
        "this client left too many of its transactions for others to end, as one does that is killed again and again; come again after {after_ms} ms"
    )]
    AbandonLimit {
        /// How long until nothing more is held against it, in milliseconds.
        after_ms: u32,
    },
    /// The client is over a limit that the operators set for it.
    #[error("this client is over its limit {name}, which the operators set for it; {}", come_again(*after_ms))]
    ClientLimit {
        /// Which one, as in the configuration.
        name: &'static str,
        /// How long until it is not, in milliseconds; 0 where waiting changes nothing.
        after_ms: u32,
    },
    /// The replicas have seen the client lie.
    #[error(
        "the replicas have seen this client lie, and take nothing new of it; its operators give it another key, or lift that (`bezant evidence`)"
    )]
    Liar,
    /// The client has no right to a key.
    #[error("this client has no right to a key it named; `bezant config show` tells its rights")]
    NotPermitted,
    /// The replicas do not hold a key that they were asked for.
    #[error("a replica does not hold a key it was asked for; this client's cluster.toml differs from the replicas'")]
    WrongShard,
    /// The replicas do not know the transaction.
    #[error("the replicas do not know the transaction")]
    Unknown,
    /// A comparison of a one-shot transaction failed.
    #[error("operation {operation} compares with a value that the key does not have")]
    CompareFailed {
        /// Which operation, counted from 0.
        operation: usize,
    },
    /// It reads more than a transaction may, or more bytes than a message may have.
    #[error("this reads too much at once: too many keys, too many keys deleted just now in its ranges, or too many bytes")]
    AnswerTooLarge,
    /// The request is over a limit or contradicts itself, as the text says.
    #[error("{0}")]
    Invalid(String),
    /// The engine cannot do this.
    #[error("this cluster's engine does not support {0} yet")]
    Unsupported(Capability),
}

impl Refusal {
    /// What it means of a transaction that writes nothing: without its answer, nothing is left that could take place.
    #[must_use]
    pub fn of_only_reads(self) -> Self {
        match self {
            Self::OutcomeUnknown | Self::Unjudged(_) => Self::Unavailable,
            other => other,
        }
    }

    /// What to do about it.
    #[must_use]
    pub fn advice(&self) -> Advice {
        match self {
            Self::Conflict | Self::TooOld => Advice::Retry,
            // By then the client has asked again what time it is, and what it is told now is nearer.
            Self::TooNew => Advice::RetryAfter { ms: CLOCKS_AGAIN_MS },
            Self::ClientLimit { after_ms: 0, .. } => Advice::GiveUp,
            Self::Overloaded { after_ms } | Self::AbandonLimit { after_ms } | Self::ClientLimit { after_ms, .. } => {
                Advice::RetryAfter { ms: *after_ms }
            }
            Self::AnswerTooLarge | Self::NotKept { .. } | Self::NotHeld | Self::NotPast | Self::Invalid(_) | Self::Unsupported(_) => {
                Advice::FixInput
            }
            Self::Unavailable
            | Self::OutcomeUnknown
            | Self::Unjudged(_)
            | Self::Liar
            | Self::NotPermitted
            | Self::WrongShard
            | Self::Unknown
            | Self::CompareFailed { .. } => Advice::GiveUp,
        }
    }
}

fn come_again(after_ms: u32) -> String {
    if after_ms == 0 { "ask for less".to_owned() } else { format!("come again after {after_ms} ms") }
}

/// `30 s`, or `1.5 s`.
fn seconds(ms: u64) -> String {
    let (whole, rest) = (ms / 1_000, ms % 1_000);
    let text = format!("{whole}.{rest:03}");
    format!("{} s", text.trim_end_matches('0').trim_end_matches('.'))
}
