//! Prices.

use basil::{Command, Message};

/// A kind of step of a machine, by what it hears. What replicas hear comes from clients, and the other way round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// A client's side asks to read.
    AskRead,
    /// A client's side asks to commit.
    AskCommit,
    /// A replica is asked for versions.
    Read,
    /// A client hears versions.
    ReadReply,
    /// A replica is asked for its vote.
    Prepare,
    /// A client hears a vote.
    Voted,
    /// A replica is asked to log a decision.
    Log,
    /// A client hears that a decision is logged.
    Logged,
    /// A replica hears how a transaction ended.
    Writeback,
    /// A replica is told by another that a transaction committed.
    Committed,
    /// Anything else: timers, recovery, refusals. It is rare, and has no price.
    Other,
}

impl Step {
    /// All of them, in the order of [`Costs::steps`].
    pub const ALL: [Self; 11] = [
        Self::AskRead,
        Self::AskCommit,
        Self::Read,
        Self::ReadReply,
        Self::Prepare,
        Self::Voted,
        Self::Log,
        Self::Logged,
        Self::Writeback,
        Self::Committed,
        Self::Other,
    ];

    /// Its name in files.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::AskRead => "ask_read",
            Self::AskCommit => "ask_commit",
            Self::Read => "read",
            Self::ReadReply => "read_reply",
            Self::Prepare => "prepare",
            Self::Voted => "voted",
            Self::Log => "log",
            Self::Logged => "logged",
            Self::Writeback => "writeback",
            Self::Committed => "committed",
            Self::Other => "other",
        }
    }

    pub(crate) fn of_message(message: &Message) -> Self {
        match message {
            Message::Read { .. } => Self::Read,
            Message::ReadReply { .. } => Self::ReadReply,
            Message::Prepare { .. } => Self::Prepare,
            Message::Voted { .. } => Self::Voted,
            Message::Log { .. } => Self::Log,
            Message::Logged { .. } => Self::Logged,
            Message::Writeback { .. } => Self::Writeback,
            Message::CommitNotice { .. } => Self::Committed,
            _ => Self::Other,
        }
    }

    pub(crate) fn of_command(command: &Command) -> Self {
        match command {
            Command::Read { .. } => Self::AskRead,
            Command::Commit { .. } | Command::CommitReads { .. } => Self::AskCommit,
            Command::Finish { .. } => Self::Other,
        }
    }
}

/// What things cost, in nanoseconds of one core, but for `sync_ns` and `slice_ns`. `bezant-lab predict --measure` measures
/// them, but for those that say that they are set by hand. The default is about what it measured on the two-core machine of the page on
/// capacity, before a fit to real runs: what comes of it is too good.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// Waking a thread.
    pub wake_ns: f64,
    /// For how long a thread keeps a core that others want: not a price, but a habit of the system, set by hand. Linux gives 0.7 ms
    /// times one and log2 of the cores (of eight at most).
    pub slice_ns: f64,
    /// One turn of a loop, beside its steps: set by hand.
    pub turn_ns: f64,
    /// One signature.
    pub sign_ns: f64,
    /// One statement more under a signature: its leaf, and its part of the tree.
    pub leaf_ns: f64,
    /// Checking new roots together, however many,
    pub check_batch_ns: f64,
    /// and each of them.
    pub check_root_ns: f64,
    /// Reading and checking one claim under a root that is known.
    pub claim_ns: f64,
    /// Encoding one message.
    pub encode_ns: f64,
    /// Decoding one message.
    pub decode_ns: f64,
    /// One write to a connection: the system call, and the system's part in delivering it.
    pub write_ns: f64,
    /// One read from a connection.
    pub read_ns: f64,
    /// One byte, at each end, encrypted and copied: set by hand.
    pub byte_ns: f64,
    /// What a sync takes of a core,
    pub sync_cpu_ns: f64,
    /// and for how long it waits for the disk beside.
    pub sync_ns: f64,
    /// What an application's lane does between two answers: set by hand.
    pub lane_ns: f64,
    /// One step of each kind, in the order of [`Step::ALL`].
    pub steps: [f64; 11],
}

impl Default for Costs {
    fn default() -> Self {
        Self {
            wake_ns: 3_200.0,
            slice_ns: 1_400_000.0,
            turn_ns: 2_000.0,
            sign_ns: 13_000.0,
            leaf_ns: 250.0,
            check_batch_ns: 20_000.0,
            check_root_ns: 9_500.0,
            claim_ns: 340.0,
            encode_ns: 5.0,
            decode_ns: 340.0,
            write_ns: 3_200.0,
            read_ns: 3_000.0,
            byte_ns: 0.8,
            sync_cpu_ns: 60_000.0,
            sync_ns: 60_000.0,
            lane_ns: 2_000.0,
            steps: [1_500.0, 850.0, 2_500.0, 600.0, 5_200.0, 500.0, 850.0, 700.0, 3_300.0, 850.0, 0.0],
        }
    }
}
