//! What an engine offers: its numbers, its capabilities, its two machines.

use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;

use machine::{Durable, Machine};
use types::{ClientId, Cluster, Key, ReplicaId};

use crate::clock::ClockReport;
use crate::divergence::Divergences;
use crate::outcome::Tell;
use crate::request::{Ask, Request};

/// What there is to know of an engine before it runs.
#[derive(Clone, Copy, Debug)]
pub struct Profile {
    /// As it is written in `cluster.toml`.
    pub name: &'static str,
    /// A shard's size as a formula for people: `5f+1`.
    pub shape: &'static str,
    /// How many replicas a shard needs to survive so many faults.
    pub shard_size: fn(usize) -> usize,
    /// How many replicas of each shard a client has to reach before transactions can commit.
    pub quorum: fn(usize) -> usize,
    /// What users notice while some of a shard's replicas are gone and it still commits, for people.
    pub while_incomplete: &'static str,
    /// The most shards that a cluster may have.
    pub shards_max: usize,
    /// What it can do.
    pub capabilities: Capabilities,
    /// Whether its session tells the cluster's time ([`Tell::Clock`]), without which no transaction may begin.
    pub tells_time: bool,
    /// Which settings of replicas and clients it goes by, beside those of every engine, by their names in `node.toml` and `client.toml`.
    pub settings: &'static [&'static str],
    /// For how many pending transactions on a shard a client has room; nothing where an engine does not count them so.
    pub pending_room: Option<PendingRoom>,
}

/// For how many pending transactions on a shard a client has room.
#[derive(Clone, Copy, Debug)]
pub struct PendingRoom {
    /// As long as it ends them itself.
    pub most: u32,
    /// However many others had to end for it, in new clusters.
    pub least: u32,
    /// The least that may be set.
    pub least_min: u32,
}

impl PartialEq for Profile {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Profile {}

/// What an engine can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Transactions that read, think and commit.
    pub interactive: bool,
    /// Transactions whose operations are all known, in one step.
    pub one_shot: bool,
    /// Reads of ranges.
    pub ranges: bool,
    /// Reads of the past ([`ReadMode::is_as_of`](crate::ReadMode::is_as_of)): of the present as a moment that may be read on, and of such moments. Of other
    /// times where an engine keeps all of the past for a while.
    pub as_of: bool,
    /// A [`Pool`](crate::Pool) that joins transactions.
    pub pool: bool,
    /// Commits leave [receipts](crate::Receipt).
    pub receipts: bool,
}

impl Capabilities {
    /// Whether this is among them.
    #[must_use]
    pub fn include(&self, capability: Capability) -> bool {
        match capability {
            Capability::Interactive => self.interactive,
            Capability::OneShot => self.one_shot,
            Capability::Ranges => self.ranges,
            Capability::AsOf => self.as_of,
            Capability::Pool => self.pool,
            Capability::Receipts => self.receipts,
        }
    }
}

/// One thing that an engine may be able to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capability {
    /// [`Capabilities::interactive`].
    Interactive,
    /// [`Capabilities::one_shot`].
    OneShot,
    /// [`Capabilities::ranges`].
    Ranges,
    /// [`Capabilities::as_of`].
    AsOf,
    /// [`Capabilities::pool`].
    Pool,
    /// [`Capabilities::receipts`].
    Receipts,
}

impl fmt::Display for Capability {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Interactive => "interactive transactions",
            Self::OneShot => "one-shot transactions",
            Self::Ranges => "reads of ranges",
            Self::AsOf => "reads of the past",
            Self::Pool => "pools",
            Self::Receipts => "receipts of commits",
        })
    }
}

/// A client's side of an engine: it takes requests, and drives each to its end.
///
/// It answers every [`Ask`] once, within its time limit, whatever the replicas do. It keeps nothing for a transaction beyond
/// the requests of it that are under way.
pub trait Session: Durable + Machine<Command = Ask, Event = Tell, Unsigned = Infallible> {
    /// Which engine it belongs to.
    fn profile(&self) -> &'static Profile;

    /// What tells a session that the operators have changed the cluster, whose shape stays; nothing where an engine does not mind. It is not answered.
    fn reconfigured(_cluster: Arc<Cluster>) -> Option<Request> {
        None
    }

    /// What tells a session with which replicas its process is connected now; nothing where an engine does not mind. It is not answered. Whoever
    /// runs a session that minds may begin without some replicas: it is told of them before it is asked anything, and waits for none of these. Who is told
    /// nothing takes it that all are connected.
    fn connected(_replicas: Vec<ReplicaId>) -> Option<Request> {
        None
    }

    /// What it has done so far. Called after each write: it should be cheap.
    fn statistics(&self, out: &mut Statistics);
}

/// What a replica is told by its own side.
#[derive(Clone, Debug)]
pub enum Instruction {
    /// The cluster, as its operators have changed it. Its shape is as it was, but clients, their rights
    /// and their limits may differ. An engine whose replicas must all change at the same place in their order makes nothing of it.
    Reconfigure(Arc<Cluster>),
    /// A drill: flip this bit of the newest value of a key where it is kept, and note that nowhere. Where the key has no value, nothing is done.
    FlipBit {
        /// The key.
        key: Key,
        /// The bit's number, counted around where the value has fewer.
        bit: usize,
    },
}

/// A server's side of an engine: one replica of one shard, with all that runs beside it.
pub trait Replica: Durable + Machine<Command = Instruction> {
    /// What it has done and holds. Called after each write: it should be cheap.
    fn statistics(&self, out: &mut Statistics);

    /// What lie an event proves, if it does.
    fn misbehavior(event: &Self::Event) -> Option<Misbehavior>;

    /// What proves it to everybody who has the cluster's public keys, where it is signed.
    fn signed_proof(_event: &Self::Event) -> Option<bytes::Bytes> {
        None
    }

    /// Which client has brought a transaction of its own to its end here, a commit, if an event says so.
    fn committed_by(_event: &Self::Event) -> Option<ClientId> {
        None
    }

    /// How it stands with its clock, where it holds that near the other replicas'.
    fn clock(&self) -> Option<ClockReport> {
        None
    }

    /// What an event says of that, if it does.
    fn clock_of(_event: &Self::Event) -> Option<ClockReport> {
        None
    }

    /// What it found of its own state to differ from the others', where it compares that. Looked at after each write.
    fn divergences(&self) -> Option<&Divergences> {
        None
    }

    /// How far it is, in words, while it lost its disk, or found its state to be wrong, and rebuilds itself: until then it does not serve.
    fn rebuilding(&self) -> Option<String> {
        None
    }

    /// What it waits for before it can serve, in words, where it cannot serve yet for want of others.
    fn waits(&self) -> Option<&'static str> {
        None
    }

    /// Stops it gracefully. It takes no step after this.
    ///
    /// # Errors
    /// When what it wrote cannot be made durable.
    fn close(&mut self) -> Result<(), Self::Failure>;
}

/// Whose key signed a lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Liar {
    /// A client, whichever process of it.
    Client(ClientId),
    /// A replica.
    Replica(ReplicaId),
}

impl fmt::Display for Liar {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Client(client) => client.fmt(formatter),
            Self::Replica(replica) => replica.fmt(formatter),
        }
    }
}

/// A lie that was proved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Misbehavior {
    /// Who lied.
    pub who: Liar,
    /// The key that a client had then.
    pub public_key: Option<[u8; 32]>,
    /// What it did, for people.
    pub what: &'static str,
    /// What proves it, such as a transaction's id.
    pub evidence: String,
}

/// Numbers under names, for metrics and reports.
#[derive(Clone, Debug, Default)]
pub struct Statistics {
    numbers: Vec<Statistic>,
    histograms: Vec<Histogram>,
}

/// One number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Statistic {
    /// Its name, in words joined by underscores. Those of one group begin alike.
    pub name: &'static str,
    /// What tells it apart from others of the same name, as a label and its value: `("reason", "conflict")`.
    pub label: Option<(&'static str, &'static str)>,
    /// What it counts, for people.
    pub help: &'static str,
    /// Whether it can fall.
    pub kind: StatisticKind,
    /// The number; of [`StatisticKind::Duration`] in microseconds.
    pub value: u64,
    /// Where it stands in a replica's status, such as `transactions.committed`; a labelled one stands there under its label's
    /// value. Empty when it is not shown there.
    pub status: &'static str,
}

impl Statistic {
    /// Shows it in a replica's status as well.
    pub fn in_status(&mut self, place: &'static str) {
        self.status = place;
    }

    /// The number in seconds, of [`StatisticKind::Duration`].
    #[must_use]
    pub fn seconds(&self) -> f64 {
        self.value as f64 / 1e6
    }
}

/// How long something took, each time that it happened.
#[derive(Clone, Copy, Debug)]
pub struct Histogram {
    /// Its name, in words joined by underscores, of which the last is `seconds`.
    pub name: &'static str,
    /// What tells it apart from others of the same name, as labels and their values.
    pub labels: [(&'static str, &'static str); 2],
    /// What took so long, for people.
    pub help: &'static str,
    /// How often it took how long.
    pub durations: Durations,
}

/// How often something took how long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Durations {
    /// How often at most 100 microseconds, then twice that, and so on. The last takes what is longer than all others.
    counts: [u64; 20],
    sum_us: u64,
}

impl Durations {
    /// It took so many microseconds once more.
    pub fn add(&mut self, us: u64) {
        let place = us.div_ceil(100).next_power_of_two().trailing_zeros() as usize;
        self.counts[place.min(self.counts.len() - 1)] += 1;
        self.sum_us = self.sum_us.saturating_add(us);
    }

    /// All of them together, in seconds.
    #[must_use]
    pub fn sum_seconds(&self) -> f64 {
        self.sum_us as f64 / 1e6
    }

    /// Each upper bound, in seconds, and how often it took at most so long and longer than the bound before.
    pub fn buckets(&self) -> impl Iterator<Item = (f64, u64)> {
        let last = self.counts.len() - 1;
        self.counts.iter().enumerate().map(move |(place, count)| {
            let bound = if place == last { f64::INFINITY } else { 100e-6 * f64::from(1 << place) };
            (bound, *count)
        })
    }
}

/// Whether a number can fall.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatisticKind {
    /// It only rises while the process runs.
    Counter,
    /// It only rises, as a counter does, and is how long something took in all. Shown in seconds.
    Duration,
    /// It rises and falls.
    Gauge,
    /// It is a replica's state, and no metric.
    State,
}

impl Statistics {
    /// Adds a number that only rises.
    pub fn counter(&mut self, name: &'static str, help: &'static str, value: u64) -> &mut Statistic {
        self.add(Statistic { name, label: None, help, kind: StatisticKind::Counter, value, status: "" })
    }

    /// Adds one of several numbers that only rise and share a name.
    pub fn labelled(&mut self, name: &'static str, label: (&'static str, &'static str), help: &'static str, value: u64) -> &mut Statistic {
        self.add(Statistic { name, label: Some(label), help, kind: StatisticKind::Counter, value, status: "" })
    }

    /// Adds how many microseconds something took together. Shown in seconds, so that its name ends in `seconds`.
    pub fn duration(&mut self, name: &'static str, help: &'static str, us: u64) -> &mut Statistic {
        self.add(Statistic { name, label: None, help, kind: StatisticKind::Duration, value: us, status: "" })
    }

    /// Adds a number that rises and falls.
    pub fn gauge(&mut self, name: &'static str, help: &'static str, value: u64) -> &mut Statistic {
        self.add(Statistic { name, label: None, help, kind: StatisticKind::Gauge, value, status: "" })
    }

    /// Adds a number that a replica's status alone shows.
    pub fn state(&mut self, place: &'static str, help: &'static str, value: u64) {
        self.add(Statistic { name: place, label: None, help, kind: StatisticKind::State, value, status: place });
    }

    /// Adds one of several histograms that share a name.
    pub fn histogram(&mut self, histogram: Histogram) {
        self.histograms.push(histogram);
    }

    fn add(&mut self, statistic: Statistic) -> &mut Statistic {
        self.numbers.push(statistic);
        self.numbers.last_mut().expect("one was just added")
    }

    /// Takes all out, and keeps the memory.
    pub fn clear(&mut self) {
        self.numbers.clear();
        self.histograms.clear();
    }

    /// Every number, in the order in which they were added: those that share a name stand together.
    #[must_use]
    pub fn all(&self) -> &[Statistic] {
        &self.numbers
    }

    /// Every histogram, likewise.
    #[must_use]
    pub fn histograms(&self) -> &[Histogram] {
        &self.histograms
    }

    /// The number of that name; of several, their sum; 0 when there is none.
    #[must_use]
    pub fn get(&self, name: &str) -> u64 {
        self.numbers.iter().filter(|statistic| statistic.name == name).map(|statistic| statistic.value).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_duration_counts_below_the_next_bound() {
        let mut durations = Durations::default();
        [0, 100, 101, 200, 201, 26_214_400, 26_214_401, u64::MAX].into_iter().for_each(|us| durations.add(us));
        let counted: Vec<(f64, u64)> = durations.buckets().filter(|(_, count)| *count > 0).collect();
        assert_eq!(counted, [(100e-6, 2), (200e-6, 2), (400e-6, 1), (26.2144, 1), (f64::INFINITY, 2)]);
    }
}
