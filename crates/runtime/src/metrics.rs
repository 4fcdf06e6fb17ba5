//! What can be counted, in Prometheus' text form.
//!
//! Names follow Prometheus' conventions: base units (seconds, bytes) as the last word, and one family with a label where the same
//! thing is counted by its reason. The library adds `_total` to counters.

use std::sync::{Arc, Mutex, PoisonError};

use crypto::Verifier;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

/// What every name of ours begins with.
const PREFIX: &str = "bezant";

/// Why something happened: one of a fixed set of short names, so that no peer can make the table grow.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Reason {
    /// The name.
    pub reason: &'static str,
}

/// One replica that this node is to be connected with.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct Peer {
    /// Its name, such as `s0-r1`.
    pub peer: String,
    /// `dialed`, or `accepted` where the peer dials this node.
    pub direction: &'static str,
}

/// Whoever has taken too much at some time.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct Taker {
    /// `client 7`, `replica s0-r1`, or `strangers`.
    pub member: String,
}

/// The metrics of one node. Clones share the counts.
#[derive(Clone, Debug)]
pub struct Metrics {
    registry: Arc<Mutex<Registry>>,
    pub(crate) shell: Arc<Shell>,
}

/// What the shell itself counts.
#[derive(Debug)]
pub(crate) struct Shell {
    pub connections: Gauge,
    pub connections_opened: Counter,
    pub connections_closed: Family<Reason, Counter>,
    pub dials_failed: Counter,
    pub unauthenticated: Gauge,
    /// One for each replica this node is to be connected with: 1 while it is.
    pub peers: Family<Peer, Gauge>,
    pub frames_received: Counter,
    pub messages_received: Counter,
    pub bytes_received: Counter,
    pub frames_sent: Counter,
    pub messages_sent: Counter,
    pub bytes_sent: Counter,
    pub messages_rejected: Family<Reason, Counter>,
    pub messages_unsent: Family<Reason, Counter>,
    pub log_lines_left_out: Counter,
    pub incoming_bytes: Gauge,
    pub outgoing_bytes: Gauge,
    pub commands_waiting: Gauge,
    pub arrivals_waiting: Gauge,
    /// 1 for whoever is served at low priority, 0 for whoever was.
    pub low_priority: Family<Taker, Gauge>,
    pub turns: Counter,
    pub turn_inputs: Histogram,
    pub persist_seconds: Histogram,
    pub statements_signed: Counter,
    pub roots_signed: Counter,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::default();
        let shell = Shell {
            connections: Gauge::default(),
            connections_opened: Counter::default(),
            connections_closed: Family::default(),
            dials_failed: Counter::default(),
            unauthenticated: Gauge::default(),
            peers: Family::default(),
            frames_received: Counter::default(),
            messages_received: Counter::default(),
            bytes_received: Counter::default(),
            frames_sent: Counter::default(),
            messages_sent: Counter::default(),
            bytes_sent: Counter::default(),
            messages_rejected: Family::default(),
            messages_unsent: Family::default(),
            log_lines_left_out: Counter::default(),
            incoming_bytes: Gauge::default(),
            outgoing_bytes: Gauge::default(),
            commands_waiting: Gauge::default(),
            arrivals_waiting: Gauge::default(),
            low_priority: Family::default(),
            turns: Counter::default(),
            turn_inputs: Histogram::new(exponential_buckets(1.0, 2.0, 12)),
            persist_seconds: Histogram::new(exponential_buckets(10e-6, 2.0, 18)),
            statements_signed: Counter::default(),
            roots_signed: Counter::default(),
        };
        shell.register(registry.sub_registry_with_prefix(PREFIX));
        Self { registry: Arc::new(Mutex::new(registry)), shell: Arc::new(shell) }
    }
}

impl Metrics {
    /// Lets `add` register metrics of another crate; their names get the prefix `bezant_`.
    pub fn register(&self, add: impl FnOnce(&mut Registry)) {
        add(self.registry.lock().unwrap_or_else(PoisonError::into_inner).sub_registry_with_prefix(PREFIX));
    }

    /// Lets `add` register metrics under names that others have fixed, such as `process_open_fds`: they get no prefix.
    pub fn register_unprefixed(&self, add: impl FnOnce(&mut Registry)) {
        add(&mut self.registry.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Shows the counts of `verifier` from now on.
    pub fn show_verifier(&self, verifier: Arc<Verifier>) {
        self.register(|registry| registry.register_collector(Box::new(VerifierCollector(verifier))));
    }

    /// Everything, in Prometheus' text form.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        let registry = self.registry.lock().unwrap_or_else(PoisonError::into_inner);
        prometheus_client::encoding::text::encode(&mut text, &registry).expect("writing to a string cannot fail");
        text
    }

    /// How many connections were closed, or never came to be, for this reason.
    #[must_use]
    pub fn closed(&self, reason: &'static str) -> u64 {
        self.shell.connections_closed.get_or_create(&Reason { reason }).get()
    }

    /// How many messages were dropped for this reason.
    #[must_use]
    pub fn rejected(&self, reason: &'static str) -> u64 {
        self.shell.messages_rejected.get_or_create(&Reason { reason }).get()
    }

    /// How many messages were not sent for this reason.
    #[must_use]
    pub fn unsent(&self, reason: &'static str) -> u64 {
        self.shell.messages_unsent.get_or_create(&Reason { reason }).get()
    }
}

impl Shell {
    pub fn count_closed(&self, reason: &'static str) {
        self.connections_closed.get_or_create(&Reason { reason }).inc();
    }

    pub fn count_rejected(&self, reason: &'static str) {
        self.messages_rejected.get_or_create(&Reason { reason }).inc();
    }

    pub fn count_unsent(&self, reason: &'static str, messages: u64) {
        self.messages_unsent.get_or_create(&Reason { reason }).inc_by(messages);
    }

    fn register(&self, registry: &mut Registry) {
        registry.register("connections", "Connections open now", self.connections.clone());
        registry.register("connections_opened", "Connections that passed the greeting", self.connections_opened.clone());
        registry.register("connections_closed", "Connections closed, by reason", self.connections_closed.clone());
        registry.register("dials_failed", "Attempts to reach a peer that failed", self.dials_failed.clone());
        registry.register("connections_unauthenticated", "Connections whose owner is not known yet", self.unauthenticated.clone());
        registry.register("peer_connected", "1 while this node is connected with the replica, else 0", self.peers.clone());
        registry.register("frames_received", "Frames received", self.frames_received.clone());
        registry.register("messages_received", "Messages received and decoded", self.messages_received.clone());
        registry.register("received_bytes", "Bytes of frames received", self.bytes_received.clone());
        registry.register("frames_sent", "Frames sent", self.frames_sent.clone());
        registry.register("messages_sent", "Messages sent", self.messages_sent.clone());
        registry.register("sent_bytes", "Bytes of frames sent", self.bytes_sent.clone());
        registry.register("messages_rejected", "Received messages that were dropped, by reason", self.messages_rejected.clone());
        registry.register("messages_unsent", "Messages that were not sent, by reason", self.messages_unsent.clone());
        registry.register(
            "log_lines_left_out",
            "Lines about what others do that were kept out of the log",
            self.log_lines_left_out.clone(),
        );
        registry.register("incoming_bytes", "Memory for what was received and not stepped through yet", self.incoming_bytes.clone());
        registry.register("outgoing_bytes", "Bytes waiting to be written", self.outgoing_bytes.clone());
        registry.register("commands_waiting", "Commands waiting for the node loop", self.commands_waiting.clone());
        registry.register(
            "inbound_batches_waiting",
            "Received batches that the node loop found waiting at its last turn",
            self.arrivals_waiting.clone(),
        );
        registry.register("low_priority", "1 for a member that takes too much and is served at low priority", self.low_priority.clone());
        registry.register("turns", "Turns of the node loop", self.turns.clone());
        registry.register("turn_inputs", "Inputs stepped through in a turn", self.turn_inputs.clone());
        registry.register("persist_seconds", "How long the one durable write of a turn took", self.persist_seconds.clone());
        registry.register(
            "statements_signed",
            "Statements signed, most of them several under one signature",
            self.statements_signed.clone(),
        );
        registry.register("signatures_made", "Signatures made, each over a batch of statements", self.roots_signed.clone());
    }
}

struct VerifierCollector(Arc<Verifier>);

impl std::fmt::Debug for VerifierCollector {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("the counts of a verifier")
    }
}

impl Collector for VerifierCollector {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), std::fmt::Error> {
        let counts = self.0.counts();
        for (name, help, count) in [
            ("verify_roots_checked", "Signed roots checked", counts.roots_checked),
            ("verify_cache_hits", "Signed roots that had been checked before", counts.cache_hits),
            ("verify_batches", "Batch checks of signatures", counts.batches),
            ("verify_failures", "Signed roots found bad", counts.failures),
        ] {
            let counter = ConstCounter::new(count);
            counter.encode(encoder.encode_descriptor(name, help, None, counter.metric_type())?)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_can_be_read() {
        let metrics = Metrics::default();
        metrics.shell.count_closed("unknown_key");
        let extra = Counter::<u64>::default();
        metrics.register(|registry| registry.register("extra", "From outside", extra.clone()));
        extra.inc_by(3);
        let text = metrics.to_text();
        assert!(text.contains("bezant_connections_closed_total{reason=\"unknown_key\"} 1"), "{text}");
        assert!(text.contains("bezant_extra_total 3"), "{text}");
        assert_eq!(metrics.closed("unknown_key"), 1);
    }
}
