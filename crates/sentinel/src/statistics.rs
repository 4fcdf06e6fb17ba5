//! What a server counts.

/// Counters since the server started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Requests received.
    pub received: u64,
    /// Replies and events sent.
    pub sent: u64,
    /// Transactions applied.
    pub transactions: u64,
    /// Requests that could not be read.
    pub malformed: u64,
    /// Sessions that ended because their clients were not heard of.
    pub expired: u64,
    /// Shards of the tree whose nodes were hashed anew and found right.
    pub shards_scrubbed: u64,
}
