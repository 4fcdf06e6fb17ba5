//! Every bound that a client could reach.

/// The most bytes of paths of one session's ephemeral nodes, four more for each: the transaction that ends the session names them all.
pub const EPHEMERAL_BYTES_MAX: usize = 8 << 20;
/// What one of these takes beside its path: the path's length.
pub const EPHEMERAL_PATH_BYTES: usize = 4;
/// The most ephemeral nodes of one session. They go with it in one step, for which everybody waits: that must take far less than a leader may be
/// silent.
pub const EPHEMERALS_MAX: usize = 20_000;
/// The most bytes of a transaction. A request that comes to more fails. The order takes twice as much ([`crate::order::message::PAYLOAD_BYTES_MAX`]).
pub const TRANSACTION_BYTES_MAX: usize = 16 << 20;
/// The most lines of an ACL.
pub const ACL_LINES_MAX: usize = 1_024;
/// With so many lines of ACLs looked at a request fails, as some ten thousand nodes in one may each have the most: some tens of milliseconds.
pub const CHECKED_LINES_MAX: usize = 1 << 19;
/// The most that a client may show of who it is.
pub const CREDENTIALS_BYTES_MAX: usize = 256;
/// As how many one connection may authenticate.
pub const IDENTITIES_MAX: usize = 8;
/// The most paths that one connection may watch.
pub const WATCHES_MAX: usize = 1 << 18;
/// How many bytes these paths may have.
pub const WATCHED_BYTES_MAX: usize = 32 << 20;
/// How many bytes the paths of all connections of a server may have, with [`WATCH_BYTES`] more for each.
pub const WATCHED_BYTES_OF_ALL_MAX: usize = 1 << 30;
/// What a watched path takes beside its bytes.
pub const WATCH_BYTES: usize = 128;
/// The most bytes of names that one answer lists. Whoever asks for more is refused.
pub const NAMES_BYTES_MAX: usize = 32 << 20;
/// The most nodes below one that are counted for a client, as they are looked at one by one: some tenths of a second. Whoever asks for more is
/// refused. Those below the root are known without that.
pub const DESCENDANTS_MAX: usize = 1 << 17;
/// With so many bytes of answers a turn takes no more of what clients ask: the rest waits for the next.
pub const TURN_ANSWER_BYTES_MAX: usize = 8 << 20;
/// And when it has looked at so many nodes and names, or changed them.
pub const TURN_NODES_MAX: usize = 1 << 16;
/// What a follower's client asked behind a request that writes is answered when that comes back, and cannot wait for the next turn. When a turn has
/// looked at so many nodes, or has [`HELD_BYTES_MAX`] of answers, a connection that has more of that is closed instead.
pub const TURN_QUEUED_NODES_MAX: usize = 1 << 22;
/// The most bytes that a multi-read answers.
pub const MULTI_READ_BYTES_MAX: usize = 16 << 20;
/// How many entries the log of digests has.
pub const DIGEST_LOG_MAX: usize = 1_024;
/// An entry of the log of digests is written at each multiple of this.
pub const DIGEST_EVERY_ZXIDS: i64 = 128;
/// The most containers and nodes past their time that are deleted in one round.
pub const REAPED_MAX: usize = 1_000;
/// Where a round has found as many, the next one comes after such a part of the time between rounds.
pub const REAP_PARTS: i64 = 10;
/// How many sessions are hashed anew with each shard of nodes.
pub const SESSIONS_SCRUBBED: usize = 64;
/// The most sessions that end in one step because they were unheard of.
pub const EXPIRED_AT_ONCE_MAX: usize = 1_000;
/// A follower with so many requests at its leader takes no more of its clients.
pub const FORWARDED_MAX: usize = 2_048;
/// And with so many bytes of them.
pub const FORWARDED_BYTES_MAX: usize = 16 << 20;
/// A leader takes so many requests of one follower that it has not proposed yet, and refuses more.
pub const FORWARDS_WAITING_MAX: usize = 4 * FORWARDED_MAX;
/// How many sessions one message says were heard of.
pub const HEARD_SESSIONS_MAX: usize = 1 << 20;
/// A server whose answers of so many bytes wait for a majority takes no more requests of its clients.
pub const HELD_BYTES_MAX: usize = 64 << 20;
/// The longest record of a snapshot: a node's data and its ACL come in two transactions.
pub const SNAPSHOT_RECORD_BYTES_MAX: usize = 33 << 20;
/// What such a record has beside the node's path, data and ACL is far less.
const SNAPSHOT_RECORD_BYTES_BESIDE: usize = 1 << 10;
const _: () = assert!(2 * TRANSACTION_BYTES_MAX + SNAPSHOT_RECORD_BYTES_BESIDE <= SNAPSHOT_RECORD_BYTES_MAX);
/// How many connections, sessions or paths a command lists.
pub const LISTED_MAX: usize = 100_000;
/// The longest record of a quota that is read: clients may write anything there, and it is read at every write below.
pub const QUOTA_RECORD_BYTES_MAX: usize = 1_024;
/// The most bytes of keys and values that one answer to a client of the engine carries.
pub const ANSWER_BYTES_MAX: usize = 4 << 20;
/// The most bytes of paths and values that a commit of the engine writes: with what the order says beside it, it fits into a frame.
pub const COMMIT_BYTES_MAX: usize = 12 << 20;
/// For how long a session of a client of the engine may be unheard of.
pub const ENGINE_SESSION_MS: i32 = 30_000;
/// How many slots a session of an engine's client has: so many of its commits may be under way.
pub const ENGINE_SLOTS_MAX: u16 = 1_024;
