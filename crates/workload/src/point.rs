//! Workloads of point reads and writes over one table: the paper's RW-U and RW-Z, and YCSB's A, B and C.
//!
//! **`rw-u`, `rw-z`** (basil.txt §6.2: "identical transactions over ten million keys", "two reads and two writes",
//! uniform or Zipfian with coefficient 0.9). The paper does not say whether a transaction writes the keys it
//! read. Here, unless told otherwise, it reads two keys and writes two others, all four different: that is what
//! the words say, and what costs most, since four keys are stored, checked and locked where else there were two.
//! [`WriteKeys::AsRead`] writes the keys that were read, which is what the paper's published benchmark does
//! (read one key, write it, read another, write it); use it, with [`Reading::OneByOne`], to compare like with like.
//! Under Zipf's law the two differ in kind: blind writes to hot keys conflict less than read-modify-write.
//!
//! **`ycsb-a`, `ycsb-b`, `ycsb-c`** (cataphract.txt, evaluation): each operation reads with probability 0.5, 0.95
//! or 1, else writes blindly, on a key of its own; ten operations a transaction, uniform, a million keys, as there,
//! so that numbers can stand beside that paper's. YCSB itself knows no transactions: `--ops 1` is nearest to it.

use std::collections::BTreeMap;
use std::sync::Arc;

use client::Client;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value as Json, json};
use types::{Key, Value};

use crate::load::load;
use crate::{
    Distribution, Done, Error, KEYS_A_REQUEST_MAX, Lane, Progress, Readiness, Table, VALUE_BYTES_MAX, Work, Workload, mix, persist,
    random_value,
};

/// The most operations in one transaction.
pub const OPERATIONS_MAX: usize = 1_000;
/// How many keys, spread over the table, are looked at to tell whether it is loaded.
const SAMPLES: u64 = 16;

/// Which keys a transaction of the `rw` workloads writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteKeys {
    /// Others than it reads.
    Others,
    /// Those it reads, as far as they go; then others.
    AsRead,
}

/// How a transaction reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// All keys in one request: the application knows them beforehand.
    Together,
    /// One after another, each waiting for the one before: the application decides by what it saw.
    OneByOne,
}

/// What a transaction is made of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mix {
    /// So many reads and so many writes, always.
    Fixed {
        /// How many keys are read.
        reads: usize,
        /// How many keys are written.
        writes: usize,
        /// Which these are.
        write_keys: WriteKeys,
    },
    /// So many operations, each a read with this probability, else a write.
    Drawn {
        /// How many operations.
        operations: usize,
        /// How likely each is a read.
        read_share: f64,
    },
}

/// A workload of point reads and writes.
#[derive(Clone, Debug)]
pub struct Point {
    name: &'static str,
    table: Table,
    distribution: Distribution,
    mix: Mix,
    reading: Reading,
    value_bytes: usize,
    seed: u64,
}

/// What one transaction will read and write, drawn before its first attempt, so that every attempt does the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The keys to read, in order.
    pub reads: Vec<Key>,
    /// What to write.
    pub writes: Vec<(Key, Value)>,
}

impl Point {
    /// A workload called `name`.
    ///
    /// # Errors
    /// [`Error::Settings`] when a transaction would be empty or too large, or wants more distinct keys than there are.
    pub fn new(
        name: &'static str,
        table: Table,
        distribution: Distribution,
        mix: Mix,
        reading: Reading,
        value_bytes: usize,
        seed: u64,
    ) -> Result<Self, Error> {
        let operations = match mix {
            Mix::Fixed { reads, writes, .. } => reads.saturating_add(writes),
            Mix::Drawn { operations, .. } => operations,
        };
        if operations == 0 || operations > OPERATIONS_MAX {
            return Err(Error::Settings(format!("a transaction needs from 1 to {OPERATIONS_MAX} operations, not {operations}")));
        }
        if operations as u64 > table.count() {
            return Err(Error::Settings(format!("{operations} different keys a transaction cannot come from {} keys", table.count())));
        }
        if value_bytes > VALUE_BYTES_MAX || operations * value_bytes > 2 << 20 {
            return Err(Error::Settings(format!(
                "values of {value_bytes} bytes are too large: at most {VALUE_BYTES_MAX}, and at most 2 MiB a transaction"
            )));
        }
        Ok(Self { name, table, distribution, mix, reading, value_bytes, seed })
    }

    /// Draws the next transaction.
    pub fn plan(&self, rng: &mut SmallRng) -> Plan {
        match self.mix {
            Mix::Fixed { reads, writes, write_keys } => {
                let shared = if write_keys == WriteKeys::AsRead { reads.min(writes) } else { 0 };
                let chosen = self.distribution.choose_distinct(&self.table, reads + writes - shared, rng);
                let write = |index: &u64, rng: &mut SmallRng| (self.table.key(*index), random_value(self.value_bytes, rng));
                let written = chosen[..shared].iter().chain(&chosen[reads..]);
                Plan {
                    reads: chosen[..reads].iter().map(|index| self.table.key(*index)).collect(),
                    writes: written.map(|index| write(index, rng)).collect(),
                }
            }
            Mix::Drawn { operations, read_share } => {
                let mut plan = Plan { reads: Vec::with_capacity(operations), writes: Vec::new() };
                for index in self.distribution.choose_distinct(&self.table, operations, rng) {
                    let key = self.table.key(index);
                    if rng.random_bool(read_share) {
                        plan.reads.push(key);
                    } else {
                        plan.writes.push((key, random_value(self.value_bytes, rng)));
                    }
                }
                plan
            }
        }
    }
}

impl Workload for Point {
    fn name(&self) -> &'static str {
        self.name
    }

    fn settings(&self) -> BTreeMap<&'static str, Json> {
        let mut settings = BTreeMap::from([
            ("keys", json!(self.table.count())),
            ("value_bytes", json!(self.value_bytes)),
            ("seed", json!(self.seed)),
            (
                "reading",
                json!(match self.reading {
                    Reading::Together => "together",
                    Reading::OneByOne => "one by one",
                }),
            ),
        ]);
        match self.distribution {
            Distribution::Uniform => settings.insert("distribution", json!("uniform")),
            Distribution::Zipf(zipf) => settings.insert("distribution", json!(format!("zipf {}", zipf.exponent()))),
        };
        match self.mix {
            Mix::Fixed { reads, writes, write_keys } => {
                settings.insert("reads", json!(reads));
                settings.insert("writes", json!(writes));
                let which = if write_keys == WriteKeys::AsRead { "as read" } else { "others" };
                settings.insert("write_keys", json!(which));
            }
            Mix::Drawn { operations, read_share } => {
                settings.insert("operations", json!(operations));
                settings.insert("read_share", json!(read_share));
            }
        }
        settings
    }

    fn load<'a>(&'a self, client: &'a Arc<Client>, progress: Progress<'a>) -> Work<'a, u64> {
        let (table, bytes, seed) = (self.table, self.value_bytes, self.seed);
        let item = move |index| {
            let mut rng = SmallRng::seed_from_u64(mix(&[seed, u64::MAX, index]));
            (table.key(index), random_value(bytes, &mut rng))
        };
        Box::pin(load(client, table.count(), bytes + table.key(0).as_bytes().len(), Arc::new(item), progress))
    }

    fn start<'a>(&'a self, client: &'a Client, _lanes: u32) -> Work<'a, Readiness> {
        let samples = SAMPLES.min(self.table.count());
        let keys: Arc<[Key]> = (0..samples).map(|sample| self.table.key((sample + 1) * self.table.count() / samples - 1)).collect();
        Box::pin(async move {
            let read = |txn: client::Transaction| {
                let keys = Arc::clone(&keys);
                async move { txn.get_many(&keys).await }
            };
            let found = persist(client, read).await?;
            Ok(if found.iter().all(Option::is_some) { Readiness::Filled } else { Readiness::NotFilled })
        })
    }

    fn transact<'a>(&'a self, client: &'a Client, lane: &'a mut Lane) -> Work<'a, Done> {
        let plan = Arc::new(self.plan(&mut lane.rng));
        let reading = self.reading;
        Box::pin(async move {
            let committed = client.transact(|txn| execute(txn, Arc::clone(&plan), reading)).await?;
            Ok(Done { path: committed.commit.path, attempts: committed.attempts, broken: None })
        })
    }
}

async fn execute(txn: client::Transaction, plan: Arc<Plan>, reading: Reading) -> Result<(), client::Error> {
    match reading {
        Reading::Together => {
            for keys in plan.reads.chunks(KEYS_A_REQUEST_MAX) {
                txn.get_many(keys).await?;
            }
        }
        Reading::OneByOne => {
            for key in &plan.reads {
                txn.get(key.clone()).await?;
            }
        }
    }
    for (key, value) in &plan.writes {
        txn.put(key.clone(), value.clone());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Zipf;
    use std::collections::BTreeSet;

    fn point(mix: Mix, keys: u64) -> Result<Point, Error> {
        let table = Table::new(keys).expect("a table");
        let law = Distribution::Zipf(Zipf::new(keys, 0.9).expect("a law"));
        Point::new("test", table, law, mix, Reading::Together, 100, 1)
    }

    fn distinct(plan: &Plan) -> usize {
        plan.reads.iter().chain(plan.writes.iter().map(|(key, _)| key)).collect::<BTreeSet<_>>().len()
    }

    #[test]
    fn two_reads_and_two_writes_touch_four_keys() {
        let point = point(Mix::Fixed { reads: 2, writes: 2, write_keys: WriteKeys::Others }, 50).expect("a workload");
        let mut rng = SmallRng::seed_from_u64(1);
        for _ in 0..1_000 {
            let plan = point.plan(&mut rng);
            assert_eq!((plan.reads.len(), plan.writes.len(), distinct(&plan)), (2, 2, 4));
            assert!(plan.writes.iter().all(|(_, value)| value.as_bytes().len() == 100));
        }
    }

    #[test]
    fn writing_what_was_read_touches_two() {
        let point = point(Mix::Fixed { reads: 2, writes: 2, write_keys: WriteKeys::AsRead }, 50).expect("a workload");
        let plan = point.plan(&mut SmallRng::seed_from_u64(1));
        let written: Vec<Key> = plan.writes.iter().map(|(key, _)| key.clone()).collect();
        assert_eq!(plan.reads, written);
    }

    #[test]
    fn more_writes_than_reads_go_on_to_other_keys() {
        let point = point(Mix::Fixed { reads: 1, writes: 3, write_keys: WriteKeys::AsRead }, 50).expect("a workload");
        let plan = point.plan(&mut SmallRng::seed_from_u64(1));
        assert_eq!((plan.reads.len(), plan.writes.len(), distinct(&plan)), (1, 3, 3));
        assert_eq!(plan.reads[0], plan.writes[0].0);
    }

    #[test]
    fn the_share_of_reads_is_kept() {
        for share in [0.5, 0.95, 1.0] {
            let point = point(Mix::Drawn { operations: 10, read_share: share }, 1_000).expect("a workload");
            let mut rng = SmallRng::seed_from_u64(1);
            let reads: usize = (0..5_000).map(|_| point.plan(&mut rng).reads.len()).sum();
            assert!((reads as f64 / 50_000.0 - share).abs() < 0.01, "{reads} of 50000, wanted {share}");
        }
    }

    #[test]
    fn a_lane_repeats_itself_and_no_other() {
        let point = point(Mix::Drawn { operations: 4, read_share: 0.5 }, 1_000).expect("a workload");
        let plan = |seed, lane| point.plan(&mut Lane::new(seed, lane).rng);
        assert_eq!(plan(1, 0), plan(1, 0));
        assert_ne!(plan(1, 0), plan(1, 1));
        assert_ne!(plan(1, 0), plan(2, 0));
    }

    #[test]
    fn impossible_transactions_are_refused_in_words() {
        let refused = |mix, keys| point(mix, keys).expect_err("no workload").to_string();
        assert!(refused(Mix::Drawn { operations: 0, read_share: 1.0 }, 10).contains("from 1 to"));
        assert!(refused(Mix::Drawn { operations: 11, read_share: 1.0 }, 10).contains("11 different keys"));
        assert!(refused(Mix::Fixed { reads: usize::MAX, writes: 2, write_keys: WriteKeys::Others }, 10).contains("from 1 to"));
    }
}
