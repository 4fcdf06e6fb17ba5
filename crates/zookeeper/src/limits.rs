//! Every bound of the shell around Sentinel.

use std::time::Duration;

use machine::turn::INPUTS_MAX;

/// The largest request that may be allowed: a node of a snapshot came in one.
pub const FRAME_BYTES_MAX_MAX: usize = 8 << 20;
/// How many bytes the requests take that wait for the core, of all connections: short ones, and as many long ones.
pub const WAITING_BYTES_MAX: usize = 64 << 20;
/// What an element of a request's lists takes in memory beside its bytes.
pub const ELEMENT_BYTES: usize = 128;
/// A request of more bytes is long: it is not read before there is room for all of it.
pub const LONG_BYTES: usize = 64 << 10;
/// How many bytes long requests have that arrive, or wait for the core, of all connections.
pub const LONG_BYTES_OF_ALL_MAX: usize = 64 << 20;
/// And of those that come from one network: others have room, whatever one does.
pub const LONG_BYTES_OF_NETWORK_MAX: usize = 16 << 20;
const _: () = assert!(FRAME_BYTES_MAX_MAX <= LONG_BYTES_OF_NETWORK_MAX && LONG_BYTES_OF_NETWORK_MAX <= LONG_BYTES_OF_ALL_MAX);
/// How long the rest of a long request may take to arrive: others may wait for its room.
pub const LONG_FRAME_TIMEOUT: Duration = Duration::from_secs(10);
/// How many requests of one connection go to the core together.
pub const BATCH_MAX: usize = 32;
/// How many bytes are read from a connection at once.
pub const READ_BYTES: usize = 32 << 10;
/// How many such batches of one connection wait for the core: what a client asks beyond that waits in its socket.
pub const BATCHES_MAX: usize = 4;
/// How many events of connections are on their way to the core.
pub const WAITING_MAX: usize = 1_024;
/// How many of them wait at the core until it is their connection's turn: far more than there are where each connection has as many as it may.
pub const WAITING_AT_CORE_MAX: usize = 1 << 17;
/// How many events one turn of the core takes: one sync for all.
pub const TURN_MAX: usize = 128;
/// A connection with so many bytes unsent is not read from.
pub const UNSENT_BYTES_SOFT_MAX: usize = 1 << 20;
/// A connection with so many bytes unsent, to which more are to be sent, is closed: its client does not read.
pub const UNSENT_BYTES_MAX: usize = 32 << 20;
/// When so many bytes are unsent to all clients together, those that have read least are closed until there are no more than that.
pub const UNSENT_BYTES_OF_ALL_MAX: usize = 512 << 20;
/// How long a client may take to begin, and for each frame once it has begun.
pub const FRAME_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a client may take to read the last bytes of a connection.
pub const GOODBYE_TIMEOUT: Duration = Duration::from_secs(5);
/// For how long a server that stops waits for others to take what it has told them.
pub const LAST_WORDS_TIMEOUT: Duration = Duration::from_secs(1);
/// A snapshot is taken when the log has grown by so much.
pub const LOG_BYTES_MAX: u64 = 1 << 30;
/// The nodes of one of the tree's 4,096 shards are hashed anew so often: all of them in about a minute and a half.
pub const SCRUB_EVERY: Duration = Duration::from_millis(20);
/// How large the folders are and how many files are open is found out so often at most, whoever asks.
pub const MEASURE_EVERY: Duration = Duration::from_secs(1);
/// For so long a connection that asks one question waits for its answer.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// The longest order for a drill.
pub const DRILL_BYTES_MAX: usize = 4 << 10;
/// How many lines a minute go to the log about what strangers do, of each kind.
pub const STRANGERS_LOGGED_A_MINUTE_MAX: u32 = 8;
/// How many records of damage are kept.
pub const EVIDENCE_MAX: usize = 100;
/// How many steps of a repair a record of damage names, beside the last.
pub const REPAIR_STEPS_MAX: usize = 32;
/// How often one of several servers repairs itself within an hour, unless its file says otherwise.
pub const REPAIRS_AN_HOUR: usize = 3;
/// The damaged files of so many takeovers are kept once a later repair is finished.
pub const DAMAGED_KEPT: usize = 2;
/// With those of so many, no server gives up what it has on its disk.
pub const DAMAGED_MAX: usize = 4;
/// How long an operator's command waits for the core.
pub const COMMAND_TIMEOUT: Duration = Duration::from_secs(4);
/// How long a TLS handshake may take.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// How many connections there may be.
pub const CONNECTIONS_MAX: usize = 10_000;
/// One part of so many of all connections may be of clients that have not said yet who they are. When there are more, the oldest of the network that
/// has most makes way: clients say it with their first frame, and many come back at once when a server was away.
pub const STRANGERS_PARTS: usize = 2;
/// The longest first frame of a client: its password takes most of it.
pub const CONNECT_BYTES_MAX: usize = 256;
/// How many servers there may be.
pub const SERVERS_MAX: usize = 63;
/// The longest message between servers: an entry of the log holds a client's request at most.
pub const PEER_FRAME_BYTES_MAX: usize = 40 << 20;
/// The longest greeting between servers, and the longest answer to it.
pub const GREETING_BYTES_MAX: usize = 32 << 10;
/// With so many bytes unsent to another server what is to be sent to it is dropped: it is asked for again.
pub const PEER_UNSENT_BYTES_MAX: usize = 64 << 20;
/// How many messages of other servers wait for the core.
pub const PEER_WAITING_MAX: usize = 64;
// A turn has room for all that it is brought: a tick, what the log offers, what the other servers said, and what clients ask.
const _: () = assert!(2 + PEER_WAITING_MAX + TURN_MAX <= INPUTS_MAX);
/// How many connections of other servers have not shown yet who they are. When there are more, the oldest of the network that has most makes way.
pub const PEER_STRANGERS_MAX: usize = 64;
/// How long connecting to another server may take, and greeting it.
pub const PEER_GREETING_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a write to another server may take.
pub const PEER_WRITE_TIMEOUT: Duration = Duration::from_secs(10);
/// A connection on which nothing comes for so long is closed.
pub const PEER_SILENCE: Duration = Duration::from_secs(15);
/// How long after a connection failed another server is dialled again.
pub const REDIAL_EVERY: Duration = Duration::from_millis(150);
/// A member's snapshot is taken when its log has grown by so much: all of it is in memory after a start.
pub const MEMBER_LOG_BYTES_MAX: u64 = 256 << 20;
/// How many questions of clients of the engine wait at a replica while too much is under way: more are turned away.
pub const ENGINE_WAITING_MAX: usize = 16_384;
/// And how many bytes they may have.
pub const ENGINE_WAITING_BYTES_MAX: usize = 64 << 20;
/// When so many nodes were looked at in a turn for what clients of the engine asked, the rest waits for the next turn: other servers' messages and
/// the disk wait for the end of each.
pub const ENGINE_TURN_NODES_MAX: usize = 16_384;
