//! Looking at a running replica: after each write its counts are copied to a board, where `/status` and `/metrics` read
//! them without ever waiting for the replica.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use config::NodeConfig;
use engine::{Histogram, Replica, Statistic, StatisticKind, Statistics};
use monitoring::server::{Page, Pages, StatusCode};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use runtime::{Configuration, Metrics, NodeHandle, PeerState};
use serde_json::json;
use types::{Party, ReplicaId};

type Peers = BTreeMap<ReplicaId, PeerState>;

/// The state of a replica that does all it is for. Before, it is `starting` (coming back from disk) or `warming` (not doing all yet).
const SERVING: &str = "serving";

/// What is known of one replica, for whoever asks.
pub struct Board {
    me: Party,
    replica: String,
    cluster: String,
    listen: String,
    /// How this replica knows the cluster, to be compared.
    configuration: String,
    /// The map of injected latency, and where this replica is on it.
    regions: Option<(String, String)>,
    /// The rule that this process breaks on purpose.
    broken_rule: Option<&'static str>,
    started: Instant,
    statistics: Mutex<Statistics>,
    misbehaviors: AtomicU64,
    /// Set once the replica serves: how it stands with its peers, and when it is ready.
    serving: OnceLock<(Box<dyn Fn() -> Peers + Send + Sync>, Instant)>,
}

impl Board {
    /// An empty board.
    pub fn new(config: &NodeConfig, broken_rule: Option<&'static str>) -> Arc<Self> {
        Arc::new(Self {
            me: Party::Replica(config.replica),
            replica: config.replica.to_string(),
            cluster: config.topology.cluster.id().to_string(),
            listen: config.listen.to_string(),
            configuration: Configuration::of(&config.topology.cluster, config.topology.signatures).to_text(),
            regions: config.regions.as_ref().map(|regions| {
                let region = regions.region_of(Party::Replica(config.replica));
                (regions.name().to_owned(), region.to_owned())
            }),
            broken_rule,
            started: Instant::now(),
            statistics: Mutex::default(),
            misbehaviors: AtomicU64::new(0),
            serving: OnceLock::new(),
        })
    }

    /// From now on the replica serves, and from `ready_at` on it does all that it is for.
    pub fn serve<W: Send + 'static>(&self, handle: NodeHandle<Infallible, W>, ready_at: Instant) {
        assert!(self.serving.set((Box::new(move || handle.peers()), ready_at)).is_ok(), "a replica begins to serve once");
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

    /// Copies what `replica` counts.
    pub fn post(&self, replica: &impl Replica) {
        let mut statistics = self.statistics();
        statistics.clear();
        replica.statistics(&mut statistics);
    }

    fn statistics(&self) -> MutexGuard<'_, Statistics> {
        self.statistics.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn state(&self) -> &'static str {
        match self.serving.get() {
            None => "starting",
            Some((_, ready_at)) if Instant::now() < *ready_at => "warming",
            Some(_) => SERVING,
        }
    }

    fn status(&self) -> serde_json::Value {
        let peers: serde_json::Map<String, serde_json::Value> = self
            .serving
            .get()
            .map(|(peers, _)| peers())
            .unwrap_or_default()
            .into_iter()
            .map(|(peer, state)| {
                let direction = if runtime::dials(self.me, peer) { "dialed" } else { "accepted" };
                (peer.to_string(), json!({"direction": direction, "state": peer_words(&state)}))
            })
            .collect();
        let mut status = json!({
            "replica": self.replica,
            "cluster": self.cluster,
            "version": env!("CARGO_PKG_VERSION"),
            "state": self.state(),
            "listen": self.listen,
            "configuration": self.configuration,
            "regions": self.regions.as_ref().map(|(name, region)| json!({"name": name, "region": region})),
            "pid": std::process::id(),
            "uptime_seconds": self.started.elapsed().as_secs(),
            "misbehaviors": self.misbehaviors.load(Ordering::Relaxed),
            "peers": peers,
        });
        for statistic in self.statistics().all().iter().filter(|statistic| !statistic.status.is_empty()) {
            let mut place = &mut status;
            for name in statistic.status.split('.').chain(statistic.label.map(|(_, value)| value)) {
                place = &mut place[name];
            }
            *place = json!(statistic.value);
        }
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
        PeerState::Down(why) | PeerState::WrongKey(why) | PeerState::Unreachable(why) => format!("unreachable: {why}"),
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
        let misbehaviors = ConstCounter::new(self.0.misbehaviors.load(Ordering::Relaxed));
        let described = encoder.encode_descriptor("misbehaviors", "Lies that were proved", None, misbehaviors.metric_type())?;
        misbehaviors.encode(described)?;
        let statistics = self.0.statistics().clone();
        for family in statistics.all().chunk_by(|one, next| one.name == next.name) {
            encode(family, &mut encoder)?;
        }
        for family in statistics.histograms().chunk_by(|one, next| one.name == next.name) {
            encode_histograms(family, &mut encoder)?;
        }
        Ok(())
    }
}

/// Shows numbers that share a name.
fn encode(family: &[Statistic], encoder: &mut DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
    let Some(Statistic { name, help, kind, value, label, .. }) = family.first().copied() else { return Ok(()) };
    match (kind, label) {
        (StatisticKind::State, _) => Ok(()),
        (StatisticKind::Counter, None) => {
            let counter = ConstCounter::new(value);
            counter.encode(encoder.encode_descriptor(name, help, None, counter.metric_type())?)
        }
        (StatisticKind::Gauge, _) => {
            let gauge = ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
            gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)
        }
        (StatisticKind::Counter, Some(_)) => {
            let mut labelled = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for statistic in family {
                let label = statistic.label.unwrap_or_default();
                labelled.encode_family(&[label])?.encode_counter::<NoLabelSet, _, u64>(&statistic.value, None)?;
            }
            Ok(())
        }
    }
}

/// Shows histograms that share a name.
fn encode_histograms(family: &[Histogram], encoder: &mut DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
    let Some(Histogram { name, help, .. }) = family.first() else { return Ok(()) };
    let mut labelled = encoder.encode_descriptor(name, help, None, MetricType::Histogram)?;
    for Histogram { labels, durations, .. } in family {
        let buckets: Vec<(f64, u64)> = durations.buckets().collect();
        let count = buckets.iter().map(|(_, count)| count).sum();
        labelled.encode_family(labels)?.encode_histogram::<NoLabelSet>(durations.sum_seconds(), count, &buckets, None)?;
    }
    Ok(())
}
