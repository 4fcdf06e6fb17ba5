//! The command line of `bezant bench`, and the workloads it names.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Args, ValueEnum};
use workload::{Bank, Distribution, Mix, Point, Reading, Ring, Table, Workload, WriteKeys, Zipf};

use crate::BenchError;

/// The most clients of one run.
const CLIENTS_MAX: u64 = 10_000;
/// The most connections of one run.
const CONNECTIONS_MAX: u64 = 256;
/// The longest warm-up, window or cool-down: a day.
const SECONDS_MAX: f64 = 86_400.0;
/// Keys of the `rw` workloads, as in the paper (basil.txt §6.2).
const KEYS_RW: u64 = 10_000_000;
/// Keys of the YCSB workloads, as in Cataphract's evaluation.
const KEYS_YCSB: u64 = 1_000_000;
/// Accounts of the bank and nodes of the ring: few enough to be read in one transaction and to be fought over.
const KEYS_INVARIANT: u64 = 1_000;
/// The Zipf exponent of RW-Z (basil.txt §6.2).
const ZIPF_RW: f64 = 0.9;

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
    /// How long to run before measuring
    #[arg(long, default_value_t = 2.0, value_parser = seconds, value_name = "S")]
    pub warmup: f64,
    /// How long to keep running after measuring
    #[arg(long, default_value_t = 1.0, value_parser = seconds, value_name = "S")]
    pub cooldown: f64,
    /// Keys in the table (accounts, nodes); by default 10,000,000 for rw-*, 1,000,000 for ycsb-*, 1,000 for bank and ring
    #[arg(long)]
    pub keys: Option<u64>,
    /// Fill the table first
    #[arg(long)]
    pub load: bool,
    /// Bytes of a value (rw-*, ycsb-*)
    #[arg(long, default_value_t = 100)]
    pub value_bytes: usize,
    /// Reads a transaction (rw-*)
    #[arg(long, default_value_t = 2)]
    pub reads: usize,
    /// Writes a transaction (rw-*)
    #[arg(long, default_value_t = 2)]
    pub writes: usize,
    /// Which keys are written (rw-*)
    #[arg(long, value_enum, default_value_t = WriteKeysArg::Others)]
    pub write_keys: WriteKeysArg,
    /// Operations a transaction (ycsb-*)
    #[arg(long, default_value_t = 10)]
    pub ops: usize,
    /// Draw keys by Zipf's law with this exponent; by default 0.9 for rw-z, all keys alike for the others
    #[arg(long, value_name = "EXPONENT")]
    pub zipf: Option<f64>,
    /// Read one key after another, as an application that decides by what it saw, instead of all at once
    #[arg(long)]
    pub interactive_reads: bool,
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
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

impl BenchArgs {
    /// The workload these arguments describe.
    pub(crate) fn workload(&self, cluster_dir: &Path) -> Result<Arc<dyn Workload>, BenchError> {
        if self.seconds == 0.0 && !self.load && self.verify_journal.is_none() {
            return Err(BenchError::Settings("--seconds 0 measures nothing; it goes with --load".to_owned()));
        }
        if self.verify_journal.is_some() && self.workload != WorkloadName::Bank {
            return Err(BenchError::Settings("only the workload bank keeps a journal: bezant bench bank --verify-journal FILE".to_owned()));
        }
        Ok(match self.workload {
            WorkloadName::RwU => Arc::new(self.point("rw-u", self.read_write())?),
            WorkloadName::RwZ => Arc::new(self.point("rw-z", self.read_write())?),
            WorkloadName::YcsbA => Arc::new(self.point("ycsb-a", self.drawn(0.5))?),
            WorkloadName::YcsbB => Arc::new(self.point("ycsb-b", self.drawn(0.95))?),
            WorkloadName::YcsbC => Arc::new(self.point("ycsb-c", self.drawn(1.0))?),
            WorkloadName::Bank => {
                // Not from the seed: records of two runs must never share a name.
                let run = rand::random();
                let journal = self.journal.clone().unwrap_or_else(|| cluster_dir.join(format!("bank-{run:016x}.journal")));
                Arc::new(Bank::new(self.keys.unwrap_or(KEYS_INVARIANT), run, journal)?)
            }
            WorkloadName::Ring => Arc::new(Ring::new(self.keys.unwrap_or(KEYS_INVARIANT))?),
        })
    }

    fn read_write(&self) -> Mix {
        let write_keys = match self.write_keys {
            WriteKeysArg::Others => WriteKeys::Others,
            WriteKeysArg::AsRead => WriteKeys::AsRead,
        };
        Mix::Fixed { reads: self.reads, writes: self.writes, write_keys }
    }

    fn drawn(&self, read_share: f64) -> Mix {
        Mix::Drawn { operations: self.ops, read_share }
    }

    fn point(&self, name: &'static str, mix: Mix) -> Result<Point, BenchError> {
        let default_keys = if matches!(mix, Mix::Fixed { .. }) { KEYS_RW } else { KEYS_YCSB };
        let keys = self.keys.unwrap_or(default_keys);
        let table =
            Table::new(keys).ok_or_else(|| BenchError::Settings(format!("--keys is from 1 to {}, not {keys}", workload::KEYS_MAX)))?;
        let exponent = self.zipf.or((self.workload == WorkloadName::RwZ).then_some(ZIPF_RW));
        let distribution = match exponent {
            None => Distribution::Uniform,
            Some(exponent) => {
                let wrong = || BenchError::Settings(format!("--zipf is from 0 to {}, not {exponent}", Zipf::EXPONENT_MAX));
                Distribution::Zipf(Zipf::new(keys, exponent).ok_or_else(wrong)?)
            }
        };
        let reading = if self.interactive_reads { Reading::OneByOne } else { Reading::Together };
        Ok(Point::new(name, table, distribution, mix, reading, self.value_bytes, self.seed)?)
    }
}

fn connections(text: &str) -> Result<usize, String> {
    let wrong = || format!("a number from 1 to {CONNECTIONS_MAX} was expected");
    text.parse().ok().filter(|number| (1..=CONNECTIONS_MAX as usize).contains(number)).ok_or_else(wrong)
}

fn seconds(text: &str) -> Result<f64, String> {
    let wrong = || format!("seconds from 0 to {SECONDS_MAX} were expected");
    text.parse().ok().filter(|number| (0.0..=SECONDS_MAX).contains(number)).ok_or_else(wrong)
}

fn interval(text: &str) -> Result<f64, String> {
    seconds(text).ok().filter(|number| *number >= 0.01).ok_or_else(|| format!("seconds from 0.01 to {SECONDS_MAX} were expected"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use serde_json::json;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        bench: BenchArgs,
    }

    fn parse(line: &str) -> Result<BenchArgs, clap::Error> {
        Program::try_parse_from(std::iter::once("bench").chain(line.split_whitespace())).map(|program| program.bench)
    }

    fn settings(line: &str) -> std::collections::BTreeMap<&'static str, serde_json::Value> {
        let workload = parse(line).expect("arguments").workload(Path::new("somewhere")).expect("a workload");
        assert_eq!(workload.name(), line.split(' ').next().expect("a word"));
        workload.settings()
    }

    #[test]
    fn the_papers_workloads_are_the_defaults() {
        let uniform = settings("rw-u");
        assert_eq!((&uniform["keys"], &uniform["reads"], &uniform["writes"]), (&json!(10_000_000), &json!(2), &json!(2)));
        assert_eq!((&uniform["distribution"], &uniform["write_keys"]), (&json!("uniform"), &json!("others")));
        assert_eq!(settings("rw-z")["distribution"], json!("zipf 0.9"));
        let ycsb = settings("ycsb-b");
        assert_eq!((&ycsb["keys"], &ycsb["operations"], &ycsb["read_share"]), (&json!(1_000_000), &json!(10), &json!(0.95)));
        assert_eq!(settings("ring")["keys"], json!(1_000));
        assert!(settings("bank")["journal"].as_str().expect("a path").starts_with("somewhere/bank-"));
    }

    #[test]
    fn switches_do_what_they_say() {
        let settings = settings("rw-u --keys 500 --reads 1 --writes 3 --write-keys as-read --zipf 1.1 --interactive-reads --value-bytes 7");
        assert_eq!(settings["write_keys"], json!("as read"));
        assert_eq!(settings["distribution"], json!("zipf 1.1"));
        assert_eq!(settings["reading"], json!("one by one"));
        assert_eq!((&settings["keys"], &settings["value_bytes"]), (&json!(500), &json!(7)));
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for line in ["rw-x", "rw-u --clients 0", "rw-u --clients 10001", "rw-u --connections 0", "rw-u --seconds -1", "rw-u --seconds nan"]
        {
            assert!(parse(line).is_err(), "{line}");
        }
        assert!(parse("bank --verify-journal a --load").is_err());
        for line in [
            "rw-u --keys 0",
            "rw-u --keys 100000001",
            "rw-u --keys 3",
            "rw-u --zipf 11",
            "rw-u --seconds 0",
            "ycsb-a --ops 0",
            "ring --keys 2",
            "bank --keys 4001",
            "ring --verify-journal a",
        ] {
            assert!(parse(line).expect(line).workload(Path::new("somewhere")).is_err(), "{line}");
        }
        parse("rw-u --seconds 0 --load").expect("arguments").workload(Path::new("somewhere")).expect("loading alone");
    }
}
