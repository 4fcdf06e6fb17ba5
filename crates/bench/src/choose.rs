//! The workload that a command line describes.

use std::path::Path;
use std::sync::Arc;

use workload::{
    Bank, Buzzer, BuzzerMix, Distribution, Mix, NoOp, Point, Reading, Retwis, Ring, Smallbank, SmallbankMix, Table, Tpcc, Workload,
    WriteKeys, Zipf,
};

use crate::BenchError;
use crate::args::{BenchArgs, MixArg, WorkloadName, WriteKeysArg};

/// Keys of the `rw` workloads, as in the paper (Basil §6.2).
const KEYS_RW: u64 = 10_000_000;
/// Keys of the YCSB workloads, as in Cataphract's evaluation (Cataphract §4.1).
const KEYS_YCSB: u64 = 1_000_000;
/// Keys of Augustus' workloads, with small values and with large ones (Augustus, table 3).
const KEYS_AUGUSTUS_SMALL: u64 = 3_000_000;
const KEYS_AUGUSTUS_LARGE: u64 = 1_000_000;
/// Bytes of a value, where the paper of a workload does not say.
const VALUE_BYTES: usize = 100;
/// Customers of Smallbank, of whom one thousand are hot (Basil §6.1): one of so many.
const CUSTOMERS_SMALLBANK: u64 = 1_000_000;
const CUSTOMERS_A_HOT_ONE: u64 = 1_000;
/// Users of Retwis, and the Zipf exponent by which they are drawn (Basil §6.1).
const USERS_RETWIS: u64 = 1_000_000;
const ZIPF_RETWIS: f64 = 0.75;
/// Users of Buzzer (Augustus §4.4).
const USERS_BUZZER: u64 = 100_000;
/// Accounts of the bank and nodes of the ring: few enough to be read in one transaction and to be fought over.
const KEYS_INVARIANT: u64 = 1_000;
/// The Zipf exponent of RW-Z (Basil §6.2).
const ZIPF_RW: f64 = 0.9;
/// The Zipf exponent of YCSB, where it is skewed.
const ZIPF_YCSB: f64 = 0.99;

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
            WorkloadName::RwU => self.point("rw-u", self.read_write(), KEYS_RW)?,
            WorkloadName::RwZ => self.point("rw-z", self.read_write(), KEYS_RW)?,
            WorkloadName::RoU => self.point("ro-u", Mix::Fixed { reads: self.ops, writes: 0, write_keys: WriteKeys::Others }, KEYS_RW)?,
            WorkloadName::AugustusA => self.augustus("augustus-a", 4, 4, 4, KEYS_AUGUSTUS_SMALL)?,
            WorkloadName::AugustusB => self.augustus("augustus-b", 2, 2, 1_024, KEYS_AUGUSTUS_LARGE)?,
            WorkloadName::AugustusC => self.augustus("augustus-c", 8, 0, 4, KEYS_AUGUSTUS_SMALL)?,
            WorkloadName::AugustusD => self.augustus("augustus-d", 4, 0, 1_024, KEYS_AUGUSTUS_LARGE)?,
            WorkloadName::NoOp => Arc::new(NoOp),
            WorkloadName::YcsbA => self.point("ycsb-a", self.drawn(0.5), KEYS_YCSB)?,
            WorkloadName::YcsbB => self.point("ycsb-b", self.drawn(0.95), KEYS_YCSB)?,
            WorkloadName::YcsbC => self.point("ycsb-c", self.drawn(1.0), KEYS_YCSB)?,
            WorkloadName::YcsbD => {
                let keys = self.keys_or(KEYS_YCSB);
                let law = zipf(self.recent.unwrap_or(keys).clamp(1, keys.max(1)), self.zipf.unwrap_or(ZIPF_YCSB))?;
                let mix = Mix::Latest { operations: self.ops, read_share: self.read_share.unwrap_or(0.95), law };
                self.point("ycsb-d", mix, KEYS_YCSB)?
            }
            WorkloadName::YcsbE => self.point("ycsb-e", self.scanning(self.read_share.unwrap_or(0.95), 1, false), KEYS_YCSB)?,
            WorkloadName::ScanHeavy => self.point("scan-heavy", self.scanning(1.0, self.rows, true), KEYS_YCSB)?,
            WorkloadName::ScanOnly => self.point("scan-only", Mix::ScanOnly { rows: self.rows }, KEYS_YCSB)?,
            WorkloadName::YcsbF => self.point("ycsb-f", Mix::Modify { operations: self.ops, write_share: 0.5 }, KEYS_YCSB)?,
            WorkloadName::WriteOnly => self.point("write-only", self.drawn(0.0), KEYS_YCSB)?,
            WorkloadName::WriteHeavy => self.point("write-heavy", self.drawn(0.5), KEYS_YCSB)?,
            WorkloadName::ReadHeavy => self.point("read-heavy", self.drawn(0.95), KEYS_YCSB)?,
            WorkloadName::ReadModifyWrite => {
                self.point("read-modify-write", Mix::Modify { operations: self.ops, write_share: 1.0 }, KEYS_YCSB)?
            }
            WorkloadName::Smallbank => {
                let mix = match self.mix {
                    MixArg::Oltpbench => SmallbankMix::OltpBench,
                    MixArg::Artifact => SmallbankMix::Artifact,
                };
                let customers = self.keys_or(CUSTOMERS_SMALLBANK);
                let hot = self.hot.unwrap_or((customers / CUSTOMERS_A_HOT_ONE).max(2));
                Arc::new(Smallbank::new(customers, hot, self.hot_share, mix, self.reading(), self.seed, rand::random())?)
            }
            WorkloadName::Retwis => Arc::new(Retwis::new(
                self.keys_or(USERS_RETWIS),
                self.zipf.unwrap_or(ZIPF_RETWIS),
                self.reading(),
                self.seed,
                rand::random(),
            )?),
            WorkloadName::Buzzer => self.buzzer(BuzzerMix::Mix)?,
            WorkloadName::BuzzerPost => self.buzzer(BuzzerMix::Post)?,
            WorkloadName::BuzzerFollow => self.buzzer(BuzzerMix::Follow)?,
            WorkloadName::BuzzerTimeline => self.buzzer(BuzzerMix::Timeline)?,
            WorkloadName::Tpcc => Arc::new(Tpcc::new(self.warehouses, self.scale, self.reading(), self.seed)?),
            WorkloadName::Bank => {
                // Not from the seed: records of two runs must never share a name.
                let run = rand::random();
                let journal = self.journal.clone().unwrap_or_else(|| cluster_dir.join(format!("bank-{run:016x}.journal")));
                Arc::new(Bank::new(self.keys.unwrap_or(KEYS_INVARIANT), run, journal)?)
            }
            WorkloadName::Ring => Arc::new(Ring::new(self.keys.unwrap_or(KEYS_INVARIANT))?),
        })
    }

    fn buzzer(&self, mix: BuzzerMix) -> Result<Arc<dyn Workload>, BenchError> {
        #[cfg(feature = "lab")]
        if self.on_redis {
            return Ok(Arc::new(crate::retwis_on_redis::RetwisOnRedis::new(mix, self.keys_or(USERS_BUZZER), self.seed, self.clients)?));
        }
        Ok(Arc::new(Buzzer::new(mix, self.keys_or(USERS_BUZZER), self.seed)?))
    }

    fn read_write(&self) -> Mix {
        let write_keys = match self.write_keys {
            WriteKeysArg::Others => WriteKeys::Others,
            WriteKeysArg::AsRead => WriteKeys::AsRead,
        };
        Mix::Fixed { reads: self.reads, writes: self.writes, write_keys }
    }

    fn drawn(&self, read_share: f64) -> Mix {
        Mix::Drawn { operations: self.ops, read_share: self.read_share.unwrap_or(read_share) }
    }

    fn scanning(&self, scan_share: f64, rows_min: usize, writes_first: bool) -> Mix {
        Mix::Scan { scan_share, rows_min: rows_min.min(self.rows), rows_max: self.rows, writes_first }
    }

    /// As many keys as were asked for, or as many as usual, scaled.
    fn keys_or(&self, usual: u64) -> u64 {
        self.keys.unwrap_or_else(|| scaled(usual, self.scale))
    }

    fn point(&self, name: &'static str, mix: Mix, usual_keys: u64) -> Result<Arc<dyn Workload>, BenchError> {
        let table = Table::new(self.keys_or(usual_keys));
        self.point_of(name, table, mix, usual_keys, VALUE_BYTES, self.multi_shard)
    }

    fn augustus(
        &self,
        name: &'static str,
        reads: usize,
        writes: usize,
        value_bytes: usize,
        usual_keys: u64,
    ) -> Result<Arc<dyn Workload>, BenchError> {
        let table = Table::binary(self.keys_or(usual_keys));
        let mix = Mix::Fixed { reads, writes, write_keys: WriteKeys::Others };
        self.point_of(name, table, mix, usual_keys, value_bytes, Some(self.multi_shard.unwrap_or(0.0)))
    }

    fn point_of(
        &self,
        name: &'static str,
        table: Option<Table>,
        mix: Mix,
        usual_keys: u64,
        usual_bytes: usize,
        multi_shard: Option<f64>,
    ) -> Result<Arc<dyn Workload>, BenchError> {
        let keys = self.keys_or(usual_keys);
        let table = table.ok_or_else(|| BenchError::Settings(format!("--keys is from 1 to {}, not {keys}", workload::KEYS_MAX)))?;
        let exponent = self.zipf.or((self.workload == WorkloadName::RwZ).then_some(ZIPF_RW));
        let distribution = match exponent {
            None => Distribution::Uniform,
            Some(exponent) => Distribution::Zipf(zipf(keys, exponent)?),
        };
        let value_bytes = self.value_bytes.unwrap_or(usual_bytes);
        let point = Point::new(name, table, distribution, mix, self.reading(), value_bytes, self.seed)?;
        Ok(Arc::new(match multi_shard {
            Some(share) => point.multi_shard(share)?,
            None => point,
        }))
    }

    fn reading(&self) -> Reading {
        if self.interactive_reads { Reading::OneByOne } else { Reading::Together }
    }
}

/// `usual` times `scale`, but at least one.
fn scaled(usual: u64, scale: f64) -> u64 {
    ((usual as f64 * scale).round() as u64).max(1)
}

fn zipf(ranks: u64, exponent: f64) -> Result<Zipf, BenchError> {
    let wrong = || BenchError::Settings(format!("--zipf is from 0 to {}, not {exponent}", Zipf::EXPONENT_MAX));
    Zipf::new(ranks, exponent).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use client::{BatchSize, ConflictRule, Order, PoolOptions};
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
        for (name, reads, writes, bytes, keys) in
            [("a", 4, 4, 4, 3_000_000), ("b", 2, 2, 1_024, 1_000_000), ("c", 8, 0, 4, 3_000_000), ("d", 4, 0, 1_024, 1_000_000)]
        {
            let found = settings(&format!("augustus-{name}"));
            assert_eq!((&found["reads"], &found["writes"], &found["value_bytes"]), (&json!(reads), &json!(writes), &json!(bytes)));
            assert_eq!((&found["keys"], &found["multi_shard"]), (&json!(keys), &json!(0.0)));
        }
        for (name, share) in [("ycsb-a", 0.5), ("ycsb-b", 0.95), ("ycsb-c", 1.0), ("ycsb-d", 0.95)] {
            let ycsb = settings(name);
            assert_eq!((&ycsb["keys"], &ycsb["operations"], &ycsb["read_share"]), (&json!(1_000_000), &json!(10), &json!(share)));
        }
        for (name, share) in [("write-only", 0.0), ("write-heavy", 0.5), ("read-heavy", 0.95)] {
            assert_eq!(settings(name)["read_share"], json!(share));
        }
        assert_eq!(
            [settings("ycsb-f"), settings("read-modify-write")].map(|mut one| one.remove("write_share")),
            [json!(0.5), json!(1.0)].map(Some)
        );
        assert_eq!(settings("ycsb-d")["distribution"], json!("latest, zipf 0.99"));
        let scans = settings("ycsb-e");
        assert_eq!((&scans["keys"], &scans["scan_share"], &scans["rows"]), (&json!(1_000_000), &json!(0.95), &json!("1 to 100")));
        assert_eq!(settings("scan-heavy")["rows"], json!("100"));
        let reads = settings("ro-u");
        assert_eq!((&reads["keys"], &reads["reads"], &reads["writes"]), (&json!(10_000_000), &json!(10), &json!(0)));
        let smallbank = settings("smallbank");
        assert_eq!((&smallbank["keys"], &smallbank["hot"], &smallbank["hot_share"]), (&json!(1_000_000), &json!(1_000), &json!(0.9)));
        assert_eq!(smallbank["mix"], json!("oltpbench"));
        let retwis = settings("retwis");
        assert_eq!((&retwis["keys"], &retwis["distribution"]), (&json!(1_000_000), &json!("zipf 0.75")));
        for name in ["buzzer", "buzzer-post", "buzzer-follow", "buzzer-timeline"] {
            assert_eq!(settings(name)["keys"], json!(100_000));
        }
        let tpcc = settings("tpcc");
        assert_eq!((&tpcc["warehouses"], &tpcc["items"], &tpcc["customers_per_district"]), (&json!(20), &json!(100_000), &json!(3_000)));
        assert!(settings("no-op").is_empty());
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
        assert_eq!(self::settings("augustus-a --multi-shard 0.4")["multi_shard"], json!(0.4));
        assert_eq!(self::settings("ro-u --ops 24")["reads"], json!(24));
        assert_eq!(self::settings("ycsb-b --read-share 0.3")["read_share"], json!(0.3));
        let recent = self::settings("ycsb-d --keys 5000 --recent 1000");
        assert_eq!((&recent["keys"], &recent["recent"]), (&json!(5_000), &json!(1_000)));
        assert_eq!(self::settings("ycsb-d --keys 5000")["recent"], json!(5_000));
        assert_eq!(self::settings("rw-u --scale 0.01")["keys"], json!(100_000));
        let smallbank = self::settings("smallbank --scale 0.01 --mix artifact");
        assert_eq!((&smallbank["keys"], &smallbank["hot"], &smallbank["mix"]), (&json!(10_000), &json!(10), &json!("artifact")));
        assert_eq!(self::settings("ycsb-a --scale 0.01 --keys 77")["keys"], json!(77));
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for line in [
            "rw-x",
            "rw-u --clients 0",
            "rw-u --clients 10001",
            "rw-u --connections 0",
            "rw-u --seconds -1",
            "rw-u --seconds nan",
            "rw-u --scale 0",
            "rw-u --scale nan",
        ] {
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
            "ycsb-a --read-share 1.1",
            "ycsb-d --zipf 11",
            "ycsb-e --rows 0",
            "scan-heavy --rows 1001",
            "scan-only --rows 0",
            "scan-only --rows 100001",
            "augustus-a --multi-shard 2",
            "read-modify-write --ops 501",
            "smallbank --keys 3",
            "smallbank --keys 100 --hot 99",
            "smallbank --hot-share 2",
            "retwis --keys 9",
            "buzzer --keys 31",
            "tpcc --warehouses 0",
            "tpcc --scale 1.5",
            "ring --keys 2",
            "bank --keys 4001",
            "ring --verify-journal a",
        ] {
            assert!(parse(line).expect(line).workload(Path::new("somewhere")).is_err(), "{line}");
        }
        parse("rw-u --seconds 0 --load").expect("arguments").workload(Path::new("somewhere")).expect("loading alone");
    }

    #[test]
    fn an_option_that_the_workload_does_not_take_is_refused_by_name() {
        let refused = |line: &str, option: &str| parse(line).expect("arguments").refuse_foreign(&[option.to_owned()]);
        let said = refused("rw-u --read-share 0.2", "--read-share").expect_err("rw-u has so many reads, always").to_string();
        assert!(said.starts_with("rw-u does not take --read-share, which is for: ycsb-a, ycsb-b"), "{said}");
        for (workload, option) in [
            ("ycsb-a", "--reads"),
            ("ycsb-f", "--read-share"),
            ("ycsb-e", "--ops"),
            ("scan-heavy", "--read-share"),
            ("scan-only", "--read-share"),
            ("scan-only", "--ops"),
            ("ycsb-a", "--rows"),
            ("ycsb-a", "--multi-shard"),
            ("augustus-a", "--reads"),
            ("no-op", "--keys"),
            ("tpcc", "--keys"),
            ("tpcc", "--zipf"),
            ("retwis", "--ops"),
            ("buzzer", "--zipf"),
            ("buzzer", "--interactive-reads"),
            ("rw-z", "--hot"),
            ("bank", "--scale"),
            ("ring", "--journal"),
            ("smallbank", "--check-interval"),
        ] {
            refused(workload, option).expect_err(option);
        }
        for (workload, option) in
            [("rw-u", "--reads"), ("ycsb-a", "--read-share"), ("tpcc", "--scale"), ("retwis", "--zipf"), ("bank", "--json")]
        {
            refused(workload, option).expect(option);
        }
    }

    #[test]
    fn a_pool_is_set_as_asked_and_only_then() {
        let options = |line: &str| parse(line).expect("arguments").pool.options();
        assert_eq!(options("rw-u"), None);
        assert_eq!(options("rw-u --pool"), Some(PoolOptions::default()));
        let set = options("ycsb-a --pool --batch 12 --order write-after-read --chain paper --in-flight 1").expect("a pool");
        assert_eq!((set.size, set.order, set.in_flight), (BatchSize::Fixed(12), Order::WriteAfterRead, 1));
        assert_eq!(set.conflicts, ConflictRule::EndBatch);
        assert_eq!(options("ycsb-a --pool --chain off").map(|set| set.conflicts), Some(ConflictRule::LeaveOut));
        for line in ["rw-u --batch 4", "rw-u --pool --batch 0", "rw-u --pool --batch 4097", "rw-u --pool --in-flight 0", "rw-u --chain off"]
        {
            assert!(parse(line).is_err(), "{line}");
        }
        let settings = parse("rw-u --pool --batch 4").expect("arguments").pool.settings();
        assert!(settings.contains(&("pool_batch", json!(4))) && settings.contains(&("pool_order", json!("read-after-write"))));
        assert!(parse("rw-u").expect("arguments").pool.settings().is_empty());
    }
}
