//! Size limits. Every bound that a peer could reach has its name here.

/// The longest key, in bytes.
pub const KEY_BYTES_MAX: usize = 1 << 10;
/// The longest value, in bytes.
pub const VALUE_BYTES_MAX: usize = 1 << 20;
/// The most reads one transaction may carry.
pub const TRANSACTION_READS_MAX: usize = 4_096;
/// The most writes one transaction may carry.
pub const TRANSACTION_WRITES_MAX: usize = 4_096;
/// The most ranges one transaction may have read.
pub const TRANSACTION_RANGES_MAX: usize = 64;
/// The longest encoding of one transaction, in bytes.
pub const TRANSACTION_BYTES_MAX: usize = 4 << 20;
/// The most keys one read request may ask for.
pub const READ_KEYS_MAX: usize = 1_024;
/// The most keys one page of a range holds.
pub const SCAN_ROWS_MAX: usize = 1_024;
/// The longest frame on a connection, in bytes, its header not counted.
pub const FRAME_BYTES_MAX: usize = 16 << 20;
/// The most messages one frame may carry.
pub const FRAME_MESSAGES_MAX: usize = 4_096;
/// The most shards a cluster may have.
pub const SHARDS_MAX: usize = 256;
/// The most faults a shard may be built to tolerate.
pub const FAULTS_MAX: usize = 10;
/// The most replicas of one shard, whatever its engine.
pub const SHARD_REPLICAS_MAX: usize = 51;
/// The most statements under one signed root, and so the deepest path is [`MERKLE_PATH_MAX`].
pub const BATCH_STATEMENTS_MAX: usize = 256;
/// The longest path from a statement to its signed root: log2 of [`BATCH_STATEMENTS_MAX`].
pub const MERKLE_PATH_MAX: usize = 8;
