//! The limits of a node's resources. Everything that a peer could exhaust is bounded here or in `types::limits`.

use machine::turn::{BATCH_MAX, INPUTS_MAX};

/// The limits and timeouts of a node's shell. The defaults suit production; tests make some smaller.
#[derive(Clone, Debug)]
pub struct Limits {
    /// The most statements under one signature, from 1 to [`BATCH_MAX`].
    pub batch_max: usize,
    /// The most inputs of one turn.
    pub turn_inputs_max: usize,
    /// The most commands that wait for the loop; further callers wait.
    pub commands_max: usize,
    /// The most memory for what one member sent, over all its connections, and the machine has not processed yet. While a
    /// member is at its limit, the node does not read from it; other members are not affected.
    pub incoming_bytes_max: usize,
    /// The same for all clients together, and for all replicas together. While they are at it, each that has something waiting may have an equal part, and
    /// what is more than that waits.
    pub incoming_total_bytes_max: usize,
    /// While so many bytes wait to be written to one connection of a client, those included that are being written, nothing more of it is
    /// read or answered. One that reads answers as they come never has so many.
    pub unread_bytes_max: usize,
    /// The most bytes that wait to be written to one connection, those included that are being written; a connection with more is
    /// closed, since its peer does not read.
    pub outgoing_bytes_max: usize,
    /// The most bytes that wait to be written to all connections together. Beyond it, connections of the member for whom the most waits
    /// are closed.
    pub outgoing_total_bytes_max: usize,
    /// The most connections of one client at a time; a further one is refused.
    pub client_connections_max: usize,
    /// The most connections of all clients together. A client that has fewer than another takes one of that one's places; any other is
    /// refused. Replicas have their places beside these.
    pub clients_connections_max: usize,
    /// The most connections at a time whose owner is not known yet. One more takes the place of another: of those from the address that
    /// has the most, the oldest.
    pub unauthenticated_max: usize,
    /// How many messages of a member that contradict themselves or name nobody have it refused; of these one is forgotten every ten seconds. Of those
    /// with a bad signature, one does.
    pub rejections_max: u32,
    /// How long a member is refused that sent a frame that cannot be read, a bad signature, or too many bad messages: no correct one does.
    pub expelled_ms: u64,
    /// How long connecting may take, and how long the TLS handshake and the greeting may take together.
    pub greeting_timeout_ms: u64,
    /// How long a peer may take to read a megabyte of what waits for it, or to send one of a frame that it has begun.
    pub write_timeout_ms: u64,
    /// An idle connection sends an empty frame as a heartbeat after this time.
    pub heartbeat_ms: u64,
    /// A connection is closed after this time without input; several heartbeats.
    pub silence_timeout_ms: u64,
    /// The first wait before a lost peer is dialled again; it doubles each time.
    pub redial_ms: u64,
    /// The longest wait before a lost peer is dialled again.
    pub redial_max_ms: u64,
    /// How long a graceful stop waits for what is queued to be written, and for clients to have read it.
    pub flush_timeout_ms: u64,
    /// How much of a core the node has, in percent: less than all of one where more replicas share a machine than that has cores. A small part
    /// of this is for everybody, however much they take.
    pub core_percent: u8,
}

/// At low priority, so many bytes a second are written to a member, over all its connections.
pub(crate) const LOW_PRIORITY_BYTES_PER_SECOND: u64 = 16 << 20;
/// What one member's messages may cost in one round of a turn, in bytes, before the next one's come: some hundred ordinary ones.
pub(crate) const QUANTUM_BYTES: i64 = 64 << 10;
/// A client's message that takes the loop so long costs as much as if it had so many bytes: a quantum is 2 ms then.
pub(crate) const BYTES_FOR_A_MICROSECOND: u64 = 32;
/// A replica's message that takes the loop longer, in microseconds, costs what it takes beyond this, as a client's does. Most of what correct
/// replicas send takes less, and clients wait for it, so such a message costs its bytes alone.
pub(crate) const REPLICA_STEP_US: u64 = 250;
/// What the inputs of one turn may cost together, in bytes; each of them costs at least the time that it takes, also where it waits for the disk: an eighth of a
/// second in all. What arrives meanwhile waits for its end, and nothing of it is durable or answered before, so it must not be long.
pub(crate) const TURN_BYTES_MAX: i64 = 4 << 20;
/// What waits for longer before it is taken in, in milliseconds, has come later than there was time for.
pub(crate) const OVERDUE_MS: u64 = 250;
/// Where all that a member sent has been overdue for so long, in milliseconds, what it begins anew is refused: it asks for more than there
/// is time for. A disk that stood still for a moment is no reason.
pub(crate) const OVERLOADED_AFTER_MS: u64 = 500;
/// Who is refused is told to come again after as long as it has waited, and no more than this, in milliseconds.
pub(crate) const COME_AGAIN_MS_MAX: u64 = 5_000;
/// How many commands of its own side a node takes in one round of a turn.
pub(crate) const COMMANDS_A_ROUND_MAX: usize = 64;
/// So many connections may be about to be closed because their places were taken, or not have one yet: beyond the places of those whose
/// owner is not known, accepting waits.
pub(crate) const LEAVING_MAX: usize = 32;
/// After so many signature checks, a few milliseconds at worst, a connection lets others go first.
pub(crate) const CHECKED_ROOTS_MAX: usize = 128;
/// How many lines a minute go to the log about what one member does: lies are counted in metrics, and must not fill the disk.
pub(crate) const LOGGED_A_MINUTE_MAX: u32 = 8;
/// The same about all members together, and whatever else others can cause.
pub(crate) const LOGGED_OF_ALL_A_MINUTE_MAX: u32 = 120;

impl Default for Limits {
    fn default() -> Self {
        Self {
            batch_max: BATCH_MAX,
            turn_inputs_max: INPUTS_MAX,
            commands_max: 4_096,
            incoming_bytes_max: 16 << 20,
            incoming_total_bytes_max: 256 << 20,
            unread_bytes_max: 16 << 20,
            outgoing_bytes_max: 64 << 20,
            outgoing_total_bytes_max: 256 << 20,
            client_connections_max: 64,
            clients_connections_max: 16_384,
            unauthenticated_max: 256,
            rejections_max: 16,
            expelled_ms: 10_000,
            greeting_timeout_ms: 5_000,
            write_timeout_ms: 10_000,
            heartbeat_ms: 5_000,
            silence_timeout_ms: 20_000,
            redial_ms: 50,
            redial_max_ms: 5_000,
            flush_timeout_ms: 3_000,
            core_percent: 100,
        }
    }
}
