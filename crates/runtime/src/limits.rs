//! How much of anything a node takes on. What a peer could push against has its bound here, or in `types::limits`.

/// The bounds and waits of a node's shell. The defaults suit a node in use; tests make some smaller.
#[derive(Clone, Debug)]
pub struct Limits {
    /// The most statements signed under one signed root; from 1 to 64.
    pub batch_max: usize,
    /// The most inputs one turn of the node loop steps through before it makes them durable and answers.
    pub turn_inputs_max: usize,
    /// The most commands that wait for the loop; whoever brings more waits.
    pub commands_max: usize,
    /// The most received bytes of one member, over all its connections, that are not stepped through yet; a member
    /// that sends more is not read from, and nobody else is slowed.
    pub incoming_bytes_max: usize,
    /// The most bytes that wait to be written to one connection; a peer with more than that does not read, and is dropped.
    pub outgoing_bytes_max: usize,
    /// The most bytes that wait to be written to all connections together; past it, who has more than a fair share
    /// waiting ([`FAIR_SHARE_BYTES`]) is dropped.
    pub outgoing_total_bytes_max: usize,
    /// The most connections of one client at a time; the oldest makes way.
    pub client_connections_max: usize,
    /// The most connections at a time whose owner is not known yet; further ones are closed at once.
    pub unauthenticated_max: usize,
    /// How many messages with a bad signature or structure a connection may bring before it is closed.
    pub rejections_max: u32,
    /// How long connecting, the TLS handshake and the greeting may take, each.
    pub greeting_timeout_ms: u64,
    /// How long a peer may let one write wait.
    pub write_timeout_ms: u64,
    /// After how long without anything to say an empty frame says that the connection lives.
    pub heartbeat_ms: u64,
    /// After how long without hearing anything a connection is given up; several heartbeats.
    pub silence_timeout_ms: u64,
    /// The first wait before a lost peer is dialled again; doubled each time.
    pub redial_ms: u64,
    /// The longest wait before a lost peer is dialled again.
    pub redial_max_ms: u64,
    /// How long a graceful stop waits for what is queued to be written.
    pub flush_timeout_ms: u64,
}

/// `Limits::batch_max` may not be larger than this: a reply batch deeper than this pays in bytes more than it saves.
pub const BATCH_MAX: usize = 64;

/// What may wait to be written to one connection however much waits for the others.
pub const FAIR_SHARE_BYTES: usize = 1 << 20;

impl Default for Limits {
    fn default() -> Self {
        Self {
            batch_max: BATCH_MAX,
            turn_inputs_max: 1_024,
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
