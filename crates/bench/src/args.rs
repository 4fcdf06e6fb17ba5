//! The command line of `bezant bench`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::pool::PoolArgs;
use crate::{BenchError, CheatArgs};

/// The most clients of one run.
const CLIENTS_MAX: u64 = 10_000;
/// The most connections of one run: no client may have more.
const CONNECTIONS_MAX: u64 = 64;
/// The longest warm-up, window or cool-down: a day.
const SECONDS_MAX: f64 = 86_400.0;
/// The lowest and the highest rate that may be asked for, in transactions a second.
const RATES: std::ops::RangeInclusive<f64> = 0.1..=1_000_000.0;
/// The smallest and the largest scale: whoever wants more says how many keys.
const SCALES: std::ops::RangeInclusive<f64> = 0.000_001..=100.0;

/// What to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum WorkloadName {
    /// Two reads and two writes of random keys, all keys alike
    RwU,
    /// The same with hot keys (Zipf 0.9)
    RwZ,
    /// YCSB A: half reads, half writes
    YcsbA,
    /// YCSB B: 95 reads of a hundred operations
    YcsbB,
    /// YCSB C: only reads
    YcsbC,
    /// YCSB D: 95 reads of the latest keys of a hundred operations, else inserts
    YcsbD,
    /// YCSB E: 95 scans of a hundred transactions, of 1 to 100 rows, else inserts
    YcsbE,
    /// YCSB F: only reads, half of which are followed by a write of the same key
    YcsbF,
    /// Four reads and four writes of random keys; keys and values of 4 bytes
    AugustusA,
    /// Two reads and two writes; values of 1 KiB
    AugustusB,
    /// Eight reads; values of 4 bytes
    AugustusC,
    /// Four reads; values of 1 KiB
    AugustusD,
    /// Deletes of a key that is not there: ordered, and nothing to do
    NoOp,
    /// Only reads, all keys alike, asked for together
    RoU,
    /// Scans of 100 rows, each with a write of the first of them
    ScanHeavy,
    /// Scans of 100 rows, or of --rows, and nothing else
    ScanOnly,
    /// Only writes
    WriteOnly,
    /// Half writes, half reads
    WriteHeavy,
    /// 95 reads of a hundred operations
    ReadHeavy,
    /// Reads, each followed by a write of the same key
    ReadModifyWrite,
    /// Smallbank: six small transactions on customers' accounts, few customers in most of them; no money may be lost
    Smallbank,
    /// Retwis: a small social network, few users in most transactions; no post and no follower may be lost
    Retwis,
    /// Buzzer, a social network: 850 timelines of a thousand, 75 posts, 75 follows; both sides must agree, and no post be missing
    Buzzer,
    /// The same, only posts
    BuzzerPost,
    /// The same, only follows
    BuzzerFollow,
    /// The same, only timelines
    BuzzerTimeline,
    /// TPC-C: a wholesaler's orders, payments and deliveries; all consistency conditions must hold
    Tpcc,
    /// Transfers between accounts; no money may be lost, nor an acknowledged transfer
    Bank,
    /// Swaps in a ring of keys; it must stay one ring
    Ring,
}

/// Which keys the `rw` workloads write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum WriteKeysArg {
    /// Others than they read
    Others,
    /// Those they read, as the paper's published benchmark does
    AsRead,
}

/// How often each kind of transaction comes in Smallbank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum MixArg {
    /// As OLTPBench has it: all six kinds, 15 of a hundred each, but 25 payments
    Oltpbench,
    /// As the benchmark published with Basil's paper has it: 60 balances, 10 each of the others, no payments
    Artifact,
}

/// Measure a cluster under a workload, or try whether it keeps its promises.
///
/// Example: `bezant bench rw-u --load --keys 1000000 --clients 64 --seconds 30 --json`
#[derive(Clone, Debug, Args)]
pub struct BenchArgs {
    /// What to run
    #[arg(value_enum)]
    pub workload: WorkloadName,
    /// How many clients run at once, each starting a transaction when its last is done
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=CLIENTS_MAX as i64))]
    pub clients: u32,
    /// How many connections to the cluster the clients share
    #[arg(long, default_value_t = 1, value_parser = connections)]
    pub connections: usize,
    /// How long to measure; 0 with --load only loads
    #[arg(long, default_value_t = 10.0, value_parser = seconds, value_name = "S")]
    pub seconds: f64,
    /// End after so many transactions of honest clients, however long they take; without a warm-up and a cool-down all are
    /// counted
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub transactions: Option<u64>,
    /// Begin no more transactions a second than this, all clients together; by default each begins one when its last is done
    #[arg(long, value_name = "N", value_parser = rate)]
    pub rate: Option<f64>,
    /// How long to run before measuring
    #[arg(long, default_value_t = 2.0, value_parser = seconds, value_name = "S")]
    pub warmup: f64,
    /// How long to keep running after measuring
    #[arg(long, default_value_t = 1.0, value_parser = seconds, value_name = "S")]
    pub cooldown: f64,
    /// Keys in the table (customers, users, accounts, nodes); by default 10,000,000 for rw-* and ro-u, 1,000 for bank and ring, 100,000 for buzzer*, 1,000,000 for others
    #[arg(long)]
    pub keys: Option<u64>,
    /// For small machines: what the default number of keys is multiplied by, and how large TPC-C's warehouses are, with so
    /// many items, customers and orders (not bank and ring)
    #[arg(long, default_value_t = 1.0, value_parser = scale)]
    pub scale: f64,
    /// How many warehouses (tpcc)
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub warehouses: u32,
    /// Fill the table first, which the first run of a workload on a cluster needs (not bank and ring)
    #[arg(long)]
    pub load: bool,
    /// Bytes of a value (workloads of keys and values: rw-*, ro-u, ycsb-*, write-*, read-*; by default 100; augustus-*: 4 or 1,024)
    #[arg(long, value_name = "N")]
    pub value_bytes: Option<usize>,
    /// Which part of the transactions is on two shards, from 0 to 1, where the others are on one (augustus-*, rw-*, ro-u); by default 0
    /// for augustus-*, and wherever the keys are for the others
    #[arg(long, value_name = "SHARE")]
    pub multi_shard: Option<f64>,
    /// Reads a transaction (rw-*)
    #[arg(long, default_value_t = 2)]
    pub reads: usize,
    /// Writes a transaction (rw-*)
    #[arg(long, default_value_t = 2)]
    pub writes: usize,
    /// Which keys are written (rw-*)
    #[arg(long, value_enum, default_value_t = WriteKeysArg::Others)]
    pub write_keys: WriteKeysArg,
    /// Operations a transaction (ycsb-*, ro-u, write-*, read-*)
    #[arg(long, default_value_t = 10)]
    pub ops: usize,
    /// The most rows of a scan (ycsb-e, scan-heavy), or how many (scan-only)
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub rows: usize,
    /// Which part of the operations are reads, from 0 to 1 (ycsb-a to e, write-*, read-heavy); by default as the workload says
    #[arg(long, value_name = "SHARE")]
    pub read_share: Option<f64>,
    /// How many of the latest keys may be read, so that tables of other sizes are read alike (ycsb-d); by default all
    #[arg(long, value_name = "N")]
    pub recent: Option<u64>,
    /// How often each kind of transaction comes (smallbank)
    #[arg(long, value_enum, default_value_t = MixArg::Oltpbench)]
    pub mix: MixArg,
    /// How many customers are hot (smallbank); by default one of a thousand
    #[arg(long, value_name = "N")]
    pub hot: Option<u64>,
    /// Which part of transactions is on hot customers, from 0 to 1 (smallbank)
    #[arg(long, value_name = "SHARE", default_value_t = 0.9)]
    pub hot_share: f64,
    /// Draw keys by Zipf's law with this exponent; by default 0.9 for rw-z, 0.99 for ycsb-d, 0.75 for
    /// retwis, all keys alike for the others
    #[arg(long, value_name = "EXPONENT")]
    pub zipf: Option<f64>,
    /// Read one key after another, as an application that decides by what it saw, instead of all at once
    #[arg(long)]
    pub interactive_reads: bool,
    /// Whether transactions are joined, and how
    #[command(flatten)]
    pub pool: PoolArgs,
    /// What all choices are drawn from; the same seed asks the same of the store
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// How often the invariant is checked while running (bank, ring)
    #[arg(long, default_value_t = 1.0, value_parser = interval, value_name = "S")]
    pub check_interval: f64,
    /// Where the bank writes what was acknowledged; by default a new file in the cluster's folder
    #[arg(long, value_name = "FILE")]
    pub journal: Option<PathBuf>,
    /// Run nothing: check that every transfer acknowledged in this journal is in the store (bank)
    #[arg(long, value_name = "FILE", conflicts_with_all = ["load", "journal"])]
    pub verify_journal: Option<PathBuf>,
    /// Where a cluster runs under injected latency: its map. Found by itself where `bezant-lab up --regions` left it
    #[cfg(feature = "lab")]
    #[arg(long, value_name = "MAP")]
    pub regions: Option<String>,
    /// Measure the Retwis design on a Redis server of its own, beside which the cluster is idle (buzzer*)
    #[cfg(feature = "lab")]
    #[arg(long)]
    pub on_redis: bool,
    /// Write a line of JSON for each second measured: throughput, latencies, and what the replicas on this machine use
    #[arg(long, value_name = "FILE")]
    pub timeline: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    /// Whether some clients cheat
    #[command(flatten)]
    pub cheats: CheatArgs,
}

impl BenchArgs {
    /// Refuses an option, of those that were `given`, which the workload does not take: it would change nothing.
    ///
    /// # Errors
    /// [`BenchError::Settings`], which names the option, and the workloads that take it.
    pub fn refuse_foreign(&self, given: &[String]) -> Result<(), BenchError> {
        let Some(option) = given.iter().find(|option| !self.workload.takes(option)) else { return Ok(()) };
        let takers = WorkloadName::value_variants().iter().filter(|workload| workload.takes(option));
        let takers: Vec<String> = takers.map(|workload| workload.name()).collect();
        Err(BenchError::Settings(format!("{} does not take {option}, which is for: {}", self.workload.name(), takers.join(", "))))
    }
}

impl WorkloadName {
    /// As it is written on the command line.
    fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// Whether `option` changes anything about it.
    fn takes(self, option: &str) -> bool {
        let is_read_write = matches!(self, Self::RwU | Self::RwZ);
        let is_augustus = matches!(self, Self::AugustusA | Self::AugustusB | Self::AugustusC | Self::AugustusD);
        let is_buzzer = matches!(self, Self::Buzzer | Self::BuzzerPost | Self::BuzzerFollow | Self::BuzzerTimeline);
        let is_application = is_buzzer || matches!(self, Self::Smallbank | Self::Retwis | Self::Tpcc);
        let is_invariant = matches!(self, Self::Bank | Self::Ring);
        let is_point = !is_application && !is_invariant && self != Self::NoOp;
        let is_scanning = matches!(self, Self::YcsbE | Self::ScanHeavy | Self::ScanOnly);
        match option {
            "--keys" => !matches!(self, Self::Tpcc | Self::NoOp),
            "--scale" => !is_invariant && self != Self::NoOp,
            "--interactive-reads" => self != Self::NoOp && !is_invariant && !is_scanning && !is_buzzer,
            "--warehouses" => self == Self::Tpcc,
            "--value-bytes" => is_point,
            "--reads" | "--writes" | "--write-keys" => is_read_write,
            "--rows" => is_scanning,
            "--multi-shard" => is_augustus || is_read_write || self == Self::RoU,
            "--ops" => is_point && !is_read_write && !is_augustus && !is_scanning,
            "--read-share" => {
                is_point
                    && !is_read_write
                    && !is_augustus
                    && !matches!(self, Self::ScanHeavy | Self::ScanOnly | Self::RoU | Self::YcsbF | Self::ReadModifyWrite)
            }
            "--on-redis" => is_buzzer,
            "--mix" | "--hot" | "--hot-share" => self == Self::Smallbank,
            "--zipf" => is_point || self == Self::Retwis,
            "--check-interval" => is_invariant,
            "--journal" => self == Self::Bank,
            _ => true,
        }
    }
}

fn connections(text: &str) -> Result<usize, String> {
    let wrong = || format!("a number from 1 to {CONNECTIONS_MAX} was expected");
    text.parse().ok().filter(|number| (1..=CONNECTIONS_MAX as usize).contains(number)).ok_or_else(wrong)
}

pub(crate) fn seconds(text: &str) -> Result<f64, String> {
    let wrong = || format!("seconds from 0 to {SECONDS_MAX} were expected");
    text.parse().ok().filter(|number| (0.0..=SECONDS_MAX).contains(number)).ok_or_else(wrong)
}

fn rate(text: &str) -> Result<f64, String> {
    let wrong = || format!("transactions a second from {} to {} were expected", RATES.start(), RATES.end());
    text.parse().ok().filter(|number| RATES.contains(number)).ok_or_else(wrong)
}

fn scale(text: &str) -> Result<f64, String> {
    let wrong = || format!("a number from {} to {} was expected", SCALES.start(), SCALES.end());
    text.parse().ok().filter(|number| SCALES.contains(number)).ok_or_else(wrong)
}

pub(crate) fn interval(text: &str) -> Result<f64, String> {
    seconds(text).ok().filter(|number| *number >= 0.01).ok_or_else(|| format!("seconds from 0.01 to {SECONDS_MAX} were expected"))
}
