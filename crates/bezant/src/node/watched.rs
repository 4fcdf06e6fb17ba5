//! Looking at a running replica: after each turn its counts are copied to a board, where `/status` and `/metrics` read
//! them without ever waiting for the replica.

use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use basil::check::AbortReason;
use basil::replica::ReplicaCounts;
use basil::{Message, NodeEvent};
use machine::{Durable, InputOf, Machine, OutboxOf, Time};
use monitoring::server::{Page, Pages, StatusCode};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use runtime::{Metrics, NodeHandle, PeerState};
use serde_json::json;
use store::{Disk, Statistics, StoreError};
use types::Party;

use config::NodeConfig;

type Inner = basil::Node<Disk>;

/// The state of a replica that does all it is for. Before, it is `starting` (coming back from disk) or `warming`
/// (answers reads, but does not vote for writes yet).
const SERVING: &str = "serving";

/// What a replica looked like after its last turn.
#[derive(Clone, Copy, Debug, Default)]
struct Look {
    counts: ReplicaCounts,
    known: usize,
    undecided: usize,
    finishes: u64,
    watermark: u64,
    store: Statistics,
}

/// A replica that is looked at after each turn.
pub struct Watched {
    inner: Inner,
    board: Arc<Board>,
}

impl Watched {
    /// Shows `inner` on `board`.
    pub fn new(inner: Inner, board: Arc<Board>) -> Self {
        board.post(&inner);
        Self { inner, board }
    }
}

impl Watched {
    /// Stops it gracefully.
    pub fn close(&mut self) -> Result<(), StoreError> {
        self.inner.close()
    }
}

impl Machine for Watched {
    type Command = Infallible;
    type Received = <Inner as Machine>::Received;
    type Message = Message;
    type Draft = <Inner as Machine>::Draft;
    type Event = NodeEvent;

    fn step(&mut self, now: Time, input: InputOf<Self>, outbox: &mut OutboxOf<Self>) {
        self.inner.step(now, input, outbox);
    }

    fn deadline(&self) -> Option<Time> {
        self.inner.deadline()
    }
}

impl Durable for Watched {
    type Failure = StoreError;

    fn persist(&mut self) -> Result<(), StoreError> {
        self.inner.persist()?;
        self.board.post(&self.inner);
        Ok(())
    }
}

/// What is known of one replica, for whoever asks.
pub struct Board {
    me: Party,
    replica: String,
    cluster: String,
    listen: String,
    /// The map of injected latency, and where this replica is on it.
    regions: Option<(String, String)>,
    /// The rule that this process breaks on purpose.
    broken_rule: Option<&'static str>,
    started: Instant,
    look: Mutex<Look>,
    misbehaviors: AtomicU64,
    /// Set once the replica serves.
    handle: OnceLock<(NodeHandle<Infallible, Message>, Instant)>,
}

impl Board {
    /// An empty board.
    pub fn new(config: &NodeConfig, broken_rule: Option<&'static str>) -> Arc<Self> {
        Arc::new(Self {
            me: Party::Replica(config.replica),
            replica: config.replica.to_string(),
            cluster: config.topology.cluster.id().to_string(),
            listen: config.listen.to_string(),
            regions: config.regions.as_ref().map(|regions| {
                let region = regions.region_of(Party::Replica(config.replica));
                (regions.name().to_owned(), region.to_owned())
            }),
            broken_rule,
            started: Instant::now(),
            look: Mutex::default(),
            misbehaviors: AtomicU64::new(0),
            handle: OnceLock::new(),
        })
    }

    /// From now on the replica answers reads, and from `ready_at` on it votes for writes too.
    pub fn serve(&self, handle: NodeHandle<Infallible, Message>, ready_at: Instant) {
        assert!(self.handle.set((handle, ready_at)).is_ok(), "a replica begins to serve once");
    }

    /// One more lie was proved.
    pub fn count_misbehavior(&self) {
        self.misbehaviors.fetch_add(1, Ordering::Relaxed);
    }

    /// The pages `/health` and `/status`.
    pub fn pages(self: Arc<Self>) -> Pages {
        Box::new(move |path| match path {
            "/health" => {
                let state = self.state();
                let status = if state == SERVING { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
                Some(Page::text(status, format!("{state}\n")))
            }
            "/status" => Some(Page::json(self.status().to_string())),
            _ => None,
        })
    }

    /// Shows what is on the board among `metrics`.
    pub fn show_in(self: Arc<Self>, metrics: &Metrics) {
        metrics.register(|registry| registry.register_collector(Box::new(Shown(self))));
    }

    fn post(&self, inner: &Inner) {
        let replica = inner.replica();
        let (known, undecided) = replica.load();
        let look = Look {
            counts: replica.counts(),
            known,
            undecided,
            finishes: inner.janitor_counts().finishes,
            watermark: replica.store().watermark().time,
            store: replica.store().statistics(),
        };
        *self.look.lock().unwrap_or_else(PoisonError::into_inner) = look;
    }

    fn look(&self) -> Look {
        *self.look.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn state(&self) -> &'static str {
        match self.handle.get() {
            None => "starting",
            Some((_, ready_at)) if Instant::now() < *ready_at => "warming",
            Some(_) => SERVING,
        }
    }

    fn status(&self) -> serde_json::Value {
        let Look { counts, known, undecided, finishes, watermark, store } = self.look();
        let peers: serde_json::Map<String, serde_json::Value> = self
            .handle
            .get()
            .map(|(handle, _)| handle.peers())
            .unwrap_or_default()
            .into_iter()
            .map(|(peer, state)| {
                let direction = if runtime::dials(self.me, peer) { "dialed" } else { "accepted" };
                (peer.to_string(), json!({"direction": direction, "state": peer_words(&state)}))
            })
            .collect();
        let causes: serde_json::Map<String, serde_json::Value> =
            AbortReason::LABELS.iter().zip(counts.votes_abort_by).map(|(cause, count)| ((*cause).to_owned(), json!(count))).collect();
        let mut status = json!({
            "replica": self.replica,
            "cluster": self.cluster,
            "version": env!("CARGO_PKG_VERSION"),
            "state": self.state(),
            "listen": self.listen,
            "regions": self.regions.as_ref().map(|(name, region)| json!({"name": name, "region": region})),
            "pid": std::process::id(),
            "uptime_seconds": self.started.elapsed().as_secs(),
            "watermark": watermark,
            "transactions": {
                "committed": counts.committed, "aborted": counts.aborted, "undecided": undecided, "known": known,
                "votes_commit": counts.votes_commit, "votes_abort": counts.votes_abort, "votes_abort_by": causes, "votes_repeated": counts.votes_repeated,
                "logged": counts.logged, "elected": counts.elected, "refused": counts.refused, "abandoned": counts.abandoned, "stalled": counts.stalled, "finished_for_others": finishes,
            },
            "keys_read": counts.keys_read,
            "misbehaviors": self.misbehaviors.load(Ordering::Relaxed),
            "store": {
                "journal_bytes": store.journal_bytes, "memtable_versions": store.memtable_versions, "memtable_bytes": store.memtable_bytes,
                "cache_bytes": store.cache_bytes, "batches": store.batches, "checkpoints": store.checkpoints,
            },
            "peers": peers,
        });
        if let Some(rule) = self.broken_rule {
            status["broken_rule"] = json!(rule);
        }
        status
    }
}

fn peer_words(state: &PeerState) -> String {
    match state {
        PeerState::Connecting => "connecting".to_owned(),
        PeerState::Awaited => "awaited".to_owned(),
        PeerState::Connected => "connected".to_owned(),
        PeerState::Refused(why) => format!("refuses: {why}"),
        PeerState::Unreachable(why) => format!("unreachable: {why}"),
    }
}

/// The board among the metrics.
struct Shown(Arc<Board>);

impl std::fmt::Debug for Shown {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "what {} does", self.0.replica)
    }
}

impl Collector for Shown {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let Look { counts, known, undecided, finishes, store, .. } = self.0.look();
        let counters = [
            ("keys_read", "Keys read for clients", counts.keys_read),
            ("votes_commit", "Votes to commit", counts.votes_commit),
            ("votes_repeated", "Votes repeated for who asked again", counts.votes_repeated),
            ("decisions_logged", "Decisions written down on the slow path", counts.logged),
            ("elected", "Transactions it was elected to reconcile", counts.elected),
            ("transactions_committed", "Transactions learned to have committed", counts.committed),
            ("transactions_aborted", "Transactions learned to have aborted", counts.aborted),
            ("requests_refused", "Requests refused", counts.refused),
            ("transactions_abandoned", "Transactions that somebody other than their author ended here", counts.abandoned),
            ("transactions_stalled", "Transactions left unfinished by their clients", counts.stalled),
            ("transactions_finished_for_others", "Transactions the janitor set out to finish", finishes),
            ("misbehaviors", "Lies of clients that were proved", self.0.misbehaviors.load(Ordering::Relaxed)),
            ("store_batches", "Durable writes", store.batches),
            ("store_records", "Records in durable writes", store.records),
            ("store_journal_written_bytes", "Bytes written to the journal", store.journal_bytes_written),
            ("store_checkpoints", "Checkpoints of old versions to the base table", store.checkpoints),
            ("store_cache_hits", "Reads answered by the row cache", store.cache_hits),
            ("store_base_table_reads", "Reads that went to the base table on disk", store.base_table_reads),
        ];
        for (name, help, value) in counters {
            let counter = ConstCounter::new(value);
            counter.encode(encoder.encode_descriptor(name, help, None, counter.metric_type())?)?;
        }
        let mut votes_abort = encoder.encode_descriptor("votes_abort", "Votes to abort, by reason", None, MetricType::Counter)?;
        for (reason, count) in AbortReason::LABELS.iter().zip(counts.votes_abort_by) {
            votes_abort.encode_family(&[("reason", *reason)])?.encode_counter::<NoLabelSet, _, u64>(&count, None)?;
        }
        let gauges = [
            ("transactions_known", "Transactions remembered", known as u64),
            ("transactions_undecided", "Transactions without an end yet", undecided as u64),
            ("store_memtable_versions", "Versions that are not in the base table yet", store.memtable_versions as u64),
            ("store_memtable_bytes", "Memory of the versions that are not in the base table yet", store.memtable_bytes as u64),
            ("store_cache_bytes", "Memory of the row cache", store.cache_bytes),
            ("store_journal_bytes", "Size of the journal", store.journal_bytes),
        ];
        for (name, help, value) in gauges {
            let gauge = ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
            gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)?;
        }
        Ok(())
    }
}
