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
    /// The most received bytes of one member, over all its connections, that the machine has not processed yet. While a
    /// member is at its limit, the node does not read from it; other members are not affected.
    pub incoming_bytes_max: usize,
    /// The most bytes that wait to be written to one connection; a connection with more is closed, since its peer does not read.
    pub outgoing_bytes_max: usize,
    /// The most bytes that wait to be written to all connections together. Beyond it, connections with more than
    /// [`FAIR_SHARE_BYTES`] waiting are closed.
    pub outgoing_total_bytes_max: usize,
    /// The most connections of one client at a time; a new one replaces the oldest.
    pub client_connections_max: usize,
    /// The most connections at a time that are not authenticated yet; further ones are closed at once.
    pub unauthenticated_max: usize,
    /// How many messages with a bad signature or structure close a connection.
    pub rejections_max: u32,
    /// How long connecting, the TLS handshake and the greeting may take, each.
    pub greeting_timeout_ms: u64,
    /// How long one write may take.
    pub write_timeout_ms: u64,
    /// An idle connection sends an empty frame as a heartbeat after this time.
    pub heartbeat_ms: u64,
    /// A connection is closed after this time without input; several heartbeats.
    pub silence_timeout_ms: u64,
    /// The first wait before a lost peer is dialled again; it doubles each time.
    pub redial_ms: u64,
    /// The longest wait before a lost peer is dialled again.
    pub redial_max_ms: u64,
    /// How long a graceful stop waits for what is queued to be written.
    pub flush_timeout_ms: u64,
}

/// The bytes that may always wait to be written to one connection, however many wait for others.
pub const FAIR_SHARE_BYTES: usize = 1 << 20;

impl Default for Limits {
    fn default() -> Self {
        Self {
            batch_max: BATCH_MAX,
            turn_inputs_max: INPUTS_MAX,
            commands_max: 4_096,
            incoming_bytes_max: 64 << 20,
            outgoing_bytes_max: 64 << 20,
            outgoing_total_bytes_max: 512 << 20,
            client_connections_max: 64,
            unauthenticated_max: 256,
            rejections_max: 16,
            greeting_timeout_ms: 5_000,
            write_timeout_ms: 10_000,
            heartbeat_ms: 5_000,
            silence_timeout_ms: 20_000,
            redial_ms: 50,
            redial_max_ms: 5_000,
            flush_timeout_ms: 3_000,
        }
    }
}
