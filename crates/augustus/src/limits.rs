//! Size limits of the executor. Every bound that a client could reach has its name here or in [`types::limits`].

/// The most operations one transaction may have.
pub const OPERATIONS_MAX: usize = 4_096;
/// The longest encoding of a transaction. What finishes it, with another shard's votes, is a request too.
pub const TRANSACTION_BYTES_MAX: usize = crate::multicast::request::PAYLOAD_BYTES_MAX - (64 << 10);
/// The most ranges one transaction may read or compare.
pub const RANGES_MAX: usize = 64;
/// The most rows one range may give.
pub const RANGE_ROWS_MAX: usize = 4_096;
/// The most bytes that the queries of one transaction may give on one shard.
pub const RESULT_BYTES_MAX: usize = 4 << 20;
/// The most bytes that the queries of all transactions of one client may give in one batch on one shard: all answers of a batch are there at once.
pub const BATCH_RESULT_BYTES_MAX: usize = 8 * RESULT_BYTES_MAX;
/// The most bytes of transactions in the way that one client is shown of a batch: it ends them one after the other.
pub const BATCH_CONFLICT_BYTES_MAX: usize = 4 << 20;
/// What each result counts beside its bytes: an answer of many empty values is large, too.
pub const RESULT_OVERHEAD_BYTES: usize = 16;
/// Results up to this size are kept with the reply, so that a repeated request finds them again.
pub const RESULTS_KEPT_BYTES_MAX: usize = 1 << 10;
/// How many ended transactions of one session are remembered.
pub const REPLIES_MAX: usize = 256;
/// How many sessions of one client are remembered.
pub const SESSIONS_MAX: usize = 64;
/// The most pending transactions one client may have on a shard, as long as it ends them itself.
pub const PENDING_MAX: usize = 1_024;
/// A client's room for pending transactions shrinks by one part in so many with each that others had to end, and grows by one with each that it
/// ended itself.
pub const PENDING_PARTS: usize = 8;
/// The `pending_min` of new clusters: room that a client always has. Where `cluster.toml` has none, room never shrinks.
pub const PENDING_MIN: usize = 16;
/// The most locks that the pending transactions of one client may hold on a shard.
pub const LOCKS_MAX: usize = 32_768;
/// The most bytes that the pending transactions of one client may have on a shard.
pub const PENDING_BYTES_MAX: usize = 32 << 20;
/// The most ranges that all pending transactions together may hold locked on a shard.
pub const RANGES_LOCKED_MAX: usize = 4_096;
/// How many committed transactions over several shards a client may leave unsettled on a shard.
pub const UNSETTLED_MAX: usize = 8_192;
/// The most voters a certificate may name for one shard.
pub const VOTERS_MAX: usize = 3 * types::limits::FAULTS_MAX + 1;
/// A page of rows with more rows is split.
pub const PAGE_ROWS_MAX: usize = 16;
/// A page of several rows with more bytes is split.
pub const PAGE_BYTES_MAX: usize = 4 << 10;
/// A shard whose state has so many pages takes no new keys: the head of a checkpoint names them all, and has to be short enough to be read.
pub const STATE_PAGES_MAX: usize = 7 << 20;
/// The longest encoding of any page: that of a pending transaction, or of a session.
pub const ENCODED_PAGE_BYTES_MAX: usize = 8 << 20;
/// How many transactions one process of a client has under way.
pub const UNDER_WAY_MAX: usize = 1_024;
/// How many of others' transactions one process of a client finishes at a time.
pub const FINISHING_MAX: usize = 64;
/// For how many sessions one process asks at a time whether outcomes may be forgotten.
pub const ENDED_CHECKS_MAX: usize = 16;
/// After so many transactions over several shards a process asks the shards to settle.
pub const SETTLE_EVERY: usize = 1_024;
/// After so many it asks again, though some shard has not answered yet.
pub const SETTLE_WITHOUT: usize = UNSETTLED_MAX / 2;
/// How many moments of the whole database a replica holds, of each client at most one.
pub const MOMENTS_MAX: usize = 2;
/// The most bytes that a replica keeps of what was changed since the moments that it holds.
pub const MOMENT_BYTES_MAX: usize = 256 << 20;
/// What each changed key counts beside its bytes: of short keys and values their place in memory is most.
pub const MOMENT_KEY_OVERHEAD_BYTES: usize = 128;
/// A moment that was not read for so long, in milliseconds, is not held any more.
pub const MOMENT_UNREAD_MS: u64 = 60_000;
/// A page of a moment has no more rows once these take so many bytes.
pub const MOMENT_PAGE_BYTES: usize = 256 << 10;
/// So many keys are looked at for a page of a moment, those among them that have come to be since.
pub const MOMENT_LOOKED_AT_MAX: usize = 4_096;
