//! What a running replica last said of itself: after each write its counts are copied to where `/status` and `/metrics` read
//! them without ever waiting for the replica.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use config::NodeConfig;
use crypto::Signatures;
use engine::{ClockReport, Divergences, Histogram, Instruction, Replica, Statistic, StatisticKind, Statistics};
use monitoring::DiskRoom;
use monitoring::server::{Page, Pages, StatusCode};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use runtime::{Configuration, Metrics, Newest, NodeHandle, PeerState};
use serde_json::json;
use tokio::sync::watch;
use types::{Key, Party, ReplicaId};

use crate::evidence::divergences::Kept;
use crate::evidence::now_ms;
use crate::status::{DIVERGED, REBUILDING, SERVING, WAITING, rebuilding_words};

type Peers = BTreeMap<ReplicaId, PeerState>;
/// Gives an instruction to the replica; whether it took it.
type Instruct = Box<dyn Fn(Instruction) -> bool + Send + Sync>;

/// Where a drill asks for a bit to be flipped; the key follows.
pub const FLIP_PATH: &str = "/drill/flip/";

/// The state of a replica whose clock is far from the others'. Before it is `serving`, it is `starting` (coming back from disk), `waiting`
/// (for others: what their clocks show, or a leader) or `warming` (not doing all yet).
const CLOCK_OFF: &str = "clock off";
/// A clock that is off by so much is spoken of, in nanoseconds.
const CLOCK_OFF_NS: u128 = 500_000_000;

/// A disk with less room than this is spoken of, or than this part of it where it is small.
const ROOM_MIN_BYTES: u64 = 1 << 30;
const ROOM_MIN_PART: u64 = 20;

/// What to tell people of the room that the disk with `folder` has, if anything: a replica whose disk is full stops.
fn room_words(folder: &Path, room: DiskRoom) -> Option<String> {
    let mib = |bytes: u64| bytes >> 20;
    let is_little = room.free < ROOM_MIN_BYTES.min(room.size / ROOM_MIN_PART);
    is_little.then(|| {
        let (free, size, folder) = (mib(room.free), mib(room.size), folder.display());
        format!("disk nearly full, {free} MiB of {size} MiB left: when it is full this replica stops, so make room where {folder} is")
    })
}

/// How it stood with the clock when the replica last said so.
#[derive(Clone, Copy, Debug)]
struct ClockState {
    report: ClockReport,
    /// By how much the machine's clock was ahead of the replica's.
    machine_ahead_ns: i128,
}

impl ClockState {
    /// Whether the replica's clock is far from the others', so that it cannot take part.
    fn is_off(&self) -> bool {
        self.report.ahead_ns.is_some_and(|ahead| u128::from(ahead.unsigned_abs()) >= CLOCK_OFF_NS)
    }

    /// What to tell people, if anything.
    fn words(&self) -> Option<String> {
        let seconds = |ahead_ns: i128| {
            let tenths = (ahead_ns.unsigned_abs() + 50_000_000) / 100_000_000;
            format!("{}.{} s", tenths / 10, tenths % 10)
        };
        let ClockReport { is_set, ahead_ns, .. } = self.report;
        if !is_set {
            return Some("waits until enough of the other replicas have said what time it is".to_owned());
        }
        match ahead_ns.map(i128::from).filter(|_| self.is_off()) {
            Some(ahead) if ahead > 0 => {
                let by = seconds(ahead);
                return Some(format!(
                    "clock ahead by {by}: this replica's shows more than most others', and goes at half speed until it is right"
                ));
            }
            Some(ahead) => {
                let by = seconds(ahead);
                return Some(format!(
                    "clock behind by {by}: this replica's shows less than most others', and is set forward within seconds"
                ));
            }
            None => {}
        }
        let side = if self.machine_ahead_ns > 0 { "ahead" } else { "behind" };
        let is_off = self.machine_ahead_ns.unsigned_abs() >= CLOCK_OFF_NS;
        let by = seconds(self.machine_ahead_ns);
        is_off.then(|| format!("machine's clock {side} by {by}: the replica goes by the other replicas' clocks instead, but set it right"))
    }

    fn to_json(self) -> serde_json::Value {
        let ms = |nanoseconds: i128| i64::try_from(nanoseconds / 1_000_000).unwrap_or(i64::MAX);
        json!({
            "is_set": self.report.is_set,
            "error_ms": self.report.ahead_ns.map(|ahead| ms(ahead.into())),
            "machine_error_ms": ms(self.machine_ahead_ns),
            "words": self.words(),
        })
    }
}

/// What the replica has found of its own state to be wrong since its process began.
#[derive(Debug, Default)]
struct DivergenceState {
    noticed: u64,
    mended: u64,
    last: Option<Kept>,
}

impl DivergenceState {
    /// Whether something is still wrong.
    fn is_open(&self) -> bool {
        self.noticed > self.mended
    }

    /// What to tell people, if anything.
    fn words(&self) -> Option<String> {
        let Self { noticed, mended, last } = self;
        let last = last.as_ref()?;
        let seconds = now_ms().saturating_sub(last.time_ms) / 1_000;
        // Whoever asks may have no right to read what was wrong.
        Some(format!(
            "own state wrong {noticed} times, {mended} mended; last {seconds} s ago: its log says what it was, and `bezant evidence`"
        ))
    }
}

/// What one replica last said of itself, for whoever asks.
pub struct Latest {
    me: Party,
    replica: String,
    cluster: String,
    listen: String,
    /// The settings by which all replicas must go alike.
    shared_settings: serde_json::Value,
    /// Where its data are.
    data: PathBuf,
    /// How this replica knows the cluster, to be compared.
    newest: watch::Receiver<Newest>,
    signatures: Signatures,
    /// The map of injected latency, and where this replica is on it.
    regions: Option<(String, String)>,
    /// The rule that this process breaks on purpose.
    broken_rule: Option<&'static str>,
    started: Instant,
    statistics: Mutex<Arc<Statistics>>,
    misbehaviors: AtomicU64,
    clock: Mutex<Option<ClockState>>,
    /// How far it is while it rebuilds itself.
    rebuilding: Mutex<Option<String>>,
    /// What it waits for before it can serve.
    waits: Mutex<Option<&'static str>>,
    divergences: Mutex<DivergenceState>,
    /// Set once the replica serves: how it stands with its peers, and when it is ready.
    serving: OnceLock<(Box<dyn Fn() -> Peers + Send + Sync>, Instant)>,
    /// What a drill is told to, where drills are allowed.
    drill: Option<OnceLock<Instruct>>,
}

impl Latest {
    /// Nothing yet.
    pub fn new(config: &NodeConfig, newest: watch::Receiver<Newest>, broken_rule: Option<&'static str>) -> Arc<Self> {
        Arc::new(Self {
            me: Party::Replica(config.replica),
            replica: config.replica.to_string(),
            cluster: config.topology.cluster.id().to_string(),
            listen: config.listen.to_string(),
            shared_settings: json!({"window_ms": config.settings.window_ms, "time_bound_ms": config.settings.time_bound_ms}),
            data: config.data.clone(),
            newest,
            signatures: config.topology.signatures,
            regions: config.regions.as_ref().map(|regions| {
                let region = regions.region_of(Party::Replica(config.replica));
                (regions.name().to_owned(), region.to_owned())
            }),
            broken_rule,
            started: Instant::now(),
            statistics: Mutex::default(),
            misbehaviors: AtomicU64::new(0),
            clock: Mutex::default(),
            rebuilding: Mutex::default(),
            waits: Mutex::default(),
            divergences: Mutex::default(),
            serving: OnceLock::new(),
            drill: config.settings.drills.then(OnceLock::new),
        })
    }

    /// From now on the replica serves, and from `ready_at` on it does all that it is for.
    pub fn serve<W: Send + 'static>(&self, handle: NodeHandle<Instruction, W>, ready_at: Instant) {
        if let Some(drill) = &self.drill {
            let handle = handle.clone();
            let _first = drill.set(Box::new(move |instruction| handle.try_command(instruction).is_ok()));
        }
        assert!(self.serving.set((Box::new(move || handle.peers()), ready_at)).is_ok(), "a replica begins to serve once");
    }

    /// One more lie was proved.
    pub fn count_misbehavior(&self) {
        self.misbehaviors.fetch_add(1, Ordering::Relaxed);
    }

    /// The replica says how it stands with its clock.
    pub fn note_clock(&self, report: ClockReport) {
        let machine_ahead_ns = i128::from(runtime::clock::wall()) - i128::from(report.shows.0);
        let state = ClockState { report, machine_ahead_ns };
        let before = self.clock_state().replace(state);
        let words = state.words();
        if report.is_set && words.is_some() != before.is_some_and(|before| before.words().is_some()) {
            match words {
                Some(words) => tracing::warn!(replica = self.replica, "{words}"),
                None => tracing::info!(replica = self.replica, "the clock is right"),
            }
        }
    }

    fn clock_state(&self) -> MutexGuard<'_, Option<ClockState>> {
        self.clock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The pages `/health` and `/status`.
    pub fn pages(self: Arc<Self>) -> Pages {
        Box::new(move |path| match path {
            "/health" => {
                let state = self.state();
                let status = if state == SERVING { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
                let clock = self.clock_state().and_then(|clock| clock.words());
                let waits = self.waits().map(str::to_owned);
                let words = clock.into_iter().chain(waits).chain(rebuilding_words(&self.status()));
                let words = words.chain(self.divergences().words()).chain(self.room_words());
                let words = words.map(|words| format!("{words}\n"));
                Some(Page::text(status, format!("{state}\n{}", words.collect::<String>())))
            }
            "/status" => Some(Page::json(self.status().to_string())),
            _ => path.strip_prefix(FLIP_PATH).map(|what| self.flip(what)),
        })
    }

    /// A drill: flips a bit of a value. Its key is in hexadecimal digits, after the cluster's id: a page of another site, which may have a
    /// browser ask here but sees no answer, does not know that.
    fn flip(&self, what: &str) -> Page {
        let Some(drill) = &self.drill else {
            let why = "refused: this replica's node.toml does not say drills = true (bezant init --drills)\n";
            return Page::text(StatusCode::FORBIDDEN, why);
        };
        let key = what.split_once('/').filter(|(cluster, _)| *cluster == self.cluster).map(|(_, key)| key);
        let Some(key) = key.and_then(|key| hex::decode(key).ok()).and_then(Key::new) else {
            return Page::text(StatusCode::BAD_REQUEST, "refused: this is not the cluster's id and a key in hexadecimal digits\n");
        };
        let words = format!("a bit of the value of {key} flips, where it has one");
        if !drill.get().is_some_and(|instruct| instruct(Instruction::FlipBit { key, bit: 0 })) {
            return Page::text(StatusCode::SERVICE_UNAVAILABLE, "refused: the replica takes nothing now; try again\n");
        }
        tracing::warn!(replica = self.replica, "DRILL: {words}");
        Page::text(StatusCode::OK, format!("{words}\n"))
    }

    /// Shows it among `metrics`.
    pub fn show_in(self: Arc<Self>, metrics: &Metrics) {
        metrics.register(|registry| registry.register_collector(Box::new(Shown(self))));
    }

    /// Copies what `replica` counts. Gives what was found of its own state to be wrong, or was mended, since the last time: for the disk.
    pub fn post(&self, replica: &impl Replica) -> Vec<Kept> {
        let mut statistics = Statistics::default();
        replica.statistics(&mut statistics);
        let statistics = Arc::new(statistics);
        let _before = std::mem::replace(&mut *self.shown(), statistics);
        *self.waits() = replica.waits();
        let rebuilding = replica.rebuilding();
        let is_rebuilding = rebuilding.is_some();
        let was_rebuilding = std::mem::replace(&mut *self.rebuilding(), rebuilding).is_some();
        match (was_rebuilding, is_rebuilding) {
            (false, true) => tracing::warn!(
                replica = self.replica,
                "it lost its disk, or found its state to be wrong: it does not serve until it is rebuilt"
            ),
            (true, false) => tracing::info!(replica = self.replica, "rebuilt: it serves again"),
            _ => {}
        }
        replica.divergences().map(|found| self.note_divergences(found)).unwrap_or_default()
    }

    /// What is new of what was found of the replica's own state to be wrong.
    fn note_divergences(&self, found: &Divergences) -> Vec<Kept> {
        let mut state = self.divergences();
        let (noticed, mended) = (state.noticed, state.mended);
        if (noticed, mended) == (found.noticed(), found.mended()) {
            return Vec::new();
        }
        let news = found.recent().filter(|one| one.number > noticed || (one.mended.is_some() && one.number > mended));
        let news: Vec<Kept> = news.map(Kept::of).collect();
        for one in &news {
            tracing::error!(
                replica = self.replica,
                own = one.own,
                agreed = one.agreed,
                "this replica's own state was wrong: {}",
                one.words()
            );
        }
        *state = DivergenceState { noticed: found.noticed(), mended: found.mended(), last: found.recent().next_back().map(Kept::of) };
        news
    }

    fn divergences(&self) -> MutexGuard<'_, DivergenceState> {
        self.divergences.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The same, before the replica runs.
    pub fn post_first(&self, replica: &impl Replica) -> Vec<Kept> {
        let found = self.post(replica);
        if let Some(report) = replica.clock() {
            self.note_clock(report);
        }
        found
    }

    /// What the replica last copied.
    fn statistics(&self) -> Arc<Statistics> {
        Arc::clone(&self.shown())
    }

    /// Held for no longer than it takes to copy a pointer: whoever shows it lets others go first, and the replica must not wait for that.
    fn shown(&self) -> MutexGuard<'_, Arc<Statistics>> {
        self.statistics.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn state(&self) -> &'static str {
        match self.serving.get() {
            None => "starting",
            Some(_) if self.clock_state().is_some_and(|clock| !clock.report.is_set) => WAITING,
            Some(_) if self.clock_state().is_some_and(|clock| clock.is_off()) => CLOCK_OFF,
            Some(_) if self.rebuilding().is_some() => REBUILDING,
            Some(_) if self.waits().is_some() => WAITING,
            Some(_) if self.divergences().is_open() => DIVERGED,
            Some((_, ready_at)) if Instant::now() < *ready_at => "warming",
            Some(_) => SERVING,
        }
    }

    fn room_words(&self) -> Option<String> {
        DiskRoom::of(&self.data).and_then(|room| room_words(&self.data, room))
    }

    fn rebuilding(&self) -> MutexGuard<'_, Option<String>> {
        self.rebuilding.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn waits(&self) -> MutexGuard<'_, Option<&'static str>> {
        self.waits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn status(&self) -> serde_json::Value {
        let newest = self.newest.borrow().clone();
        let version = newest.chain.version();
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
            "configuration": Configuration::of(&newest.cluster, self.signatures, version).to_text(),
            "configuration_version": version,
            "settings": self.shared_settings,
            "regions": self.regions.as_ref().map(|(name, region)| json!({"name": name, "region": region})),
            "pid": std::process::id(),
            "uptime_seconds": self.started.elapsed().as_secs(),
            "misbehaviors": self.misbehaviors.load(Ordering::Relaxed),
            "peers": peers,
            "waits": *self.waits(),
            "clock": self.clock_state().map(ClockState::to_json),
            "disk": DiskRoom::of(&self.data)
                .map(|room| json!({"free_bytes": room.free, "size_bytes": room.size, "words": room_words(&self.data, room)})),
        });
        let statistics = self.statistics();
        for statistic in statistics.all().iter().filter(|statistic| !statistic.status.is_empty()) {
            let mut place = &mut status;
            for name in statistic.status.split('.').chain(statistic.label.map(|(_, value)| value)) {
                place = &mut place[name];
            }
            *place = if statistic.kind == StatisticKind::Duration { json!(statistic.seconds()) } else { json!(statistic.value) };
        }
        status["rebuilding"] =
            self.rebuilding().as_ref().map_or_else(|| json!({"under_way": 0}), |words| json!({"under_way": 1, "words": words}));
        if let Some(words) = self.divergences().words() {
            status["divergences"]["words"] = json!(words);
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

/// It among the metrics.
struct Shown(Arc<Latest>);

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
        let clock = *self.0.clock_state();
        if let Some(ClockState { report, machine_ahead_ns }) = clock {
            let errors = [
                (
                    "clock_error_seconds",
                    "By how much the replica's clock is ahead of most others' of its shard",
                    report.ahead_ns.map(i128::from),
                ),
                ("machine_clock_error_seconds", "By how much the machine's clock is ahead of the replica's", Some(machine_ahead_ns)),
            ];
            for (name, help, nanoseconds) in errors {
                let Some(nanoseconds) = nanoseconds else { continue };
                let gauge = ConstGauge::new(nanoseconds as f64 / 1e9);
                gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)?;
            }
        }
        let statistics = self.0.statistics();
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
        (StatisticKind::Duration, _) => {
            let counter = ConstCounter::new(family[0].seconds());
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

#[cfg(test)]
mod tests {
    use prometheus_client::registry::Registry;

    use super::*;

    #[test]
    fn how_long_something_took_is_shown_in_parts_of_a_second() {
        let mut statistics = Statistics::default();
        statistics.duration("store_paced_seconds", "How long syncs have waited", 1_250_000);
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Numbers(statistics)));
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).expect("a string takes all");
        assert!(text.contains("\nstore_paced_seconds_total 1.25\n"), "{text}");
    }

    #[derive(Debug)]
    struct Numbers(Statistics);

    impl Collector for Numbers {
        fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
            super::encode(self.0.all(), &mut encoder)
        }
    }

    #[test]
    fn a_disk_is_spoken_of_before_it_is_full() {
        let words = |free_mib: u64, size_mib: u64| room_words(Path::new("/data"), DiskRoom { free: free_mib << 20, size: size_mib << 20 });
        assert_eq!(words(1_024, 100_000), None);
        let said = words(1_023, 100_000).expect("there is little room");
        assert!(said.contains("1023 MiB of 100000 MiB left") && said.contains("make room where /data is"), "{said}");
        assert_eq!(words(50, 1_000), None, "a small disk has less");
        assert!(words(49, 1_000).is_some() && words(0, 1_000).is_some());
        assert_eq!(words(0, 0), None, "a disk that does not say how large it is");
    }
}
