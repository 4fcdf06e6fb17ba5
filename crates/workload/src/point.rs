//! Workloads of reads, scans and writes over one table: the papers' YCSB-T and YCSB.
//!
//! **`rw-u`, `rw-z`** (Basil §6.2: "identical transactions over ten million keys", "two reads and two writes",
//! uniform or Zipfian with coefficient 0.9). The paper does not say whether a transaction writes the keys it
//! read. Here, unless told otherwise, it reads two keys and writes two others, all four different: that is what
//! the words say, and what costs most, since four keys are stored, checked and locked where else there were two.
//! [`WriteKeys::AsRead`] writes the keys that were read, which is what the paper's published benchmark does
//! (read one key, write it, read another, write it); use it, with [`Reading::OneByOne`], to compare like with like.
//! Under Zipf's law the two differ in kind: blind writes to hot keys conflict less than read-modify-write.
//!
//! **`ro-u`**: the same table, only read, all keys in one request.
//!
//! **`ycsb-a` to `ycsb-d`, `ycsb-f`**, and Cataphract's **`write-only`**, **`write-heavy`**, **`read-heavy`** and
//! **`read-modify-write`** (Cataphract §4.1 and §4.3.1): each operation is on a key of its own, ten operations a
//! transaction, uniform, a million keys, as there, so that numbers can stand beside that paper's. YCSB itself
//! knows no transactions: `--ops 1` is nearest to it. D reads the latest keys by Zipf's law and inserts new ones
//! at the end, F reads and, in half of its operations, writes what it read.
//!
//! **`augustus-a` to `augustus-d`** (Augustus §4.3, table 3): reads and writes of random keys of four bytes, all different, sent as one; a chosen part of
//! them on two shards and the others on one.
//!
//! **`ycsb-e`**: one operation a transaction, as YCSB has it: a scan of 1 to 100 rows from a key on, or, one time in twenty, an insert at the
//! end. **`scan-heavy`**: each transaction scans 100 rows and writes the first of them, so that it commits only if nobody else has
//! written or inserted among these. **`scan-only`**: a scan and nothing else, of so many rows each time.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use client::{AsOf, Client, CommitPath, Operation};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value as Json, json};
use types::limits::READ_KEYS_MAX;
use types::{Key, Value};

use crate::growth::Growth;
use crate::keys::{TABLE_END, choose_latest};
use crate::load::{Part, load};
use crate::marker::{Marker, Sizes, number, sizes};
use crate::shards::OverShards;
use crate::{
    Distribution, Done, Error, LoopClient, Progress, Readiness, Table, VALUE_BYTES_MAX, Work, Workload, Zipf, mix, persist, random_value,
};

/// The most operations in one transaction.
pub const OPERATIONS_MAX: usize = 1_000;
/// The most rows of a scan by itself.
pub const SCAN_ROWS_MAX: usize = 100_000;
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

impl Reading {
    /// As reports have it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Together => "together",
            Self::OneByOne => "one by one",
        }
    }
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
    /// So many reads, each followed by a write of the same key with this probability.
    Modify {
        /// How many keys are read.
        operations: usize,
        /// How likely each is written too.
        write_share: f64,
    },
    /// So many operations, each a read of one of the latest keys with this probability, else an insert of a new one.
    Latest {
        /// How many operations.
        operations: usize,
        /// How likely each is a read.
        read_share: f64,
        /// How far from the end of the table is read.
        law: Zipf,
    },
    /// One scan, with this probability, else an insert of a new key.
    Scan {
        /// How likely it is a scan.
        scan_share: f64,
        /// The fewest rows that are scanned.
        rows_min: usize,
        /// The most.
        rows_max: usize,
        /// Whether the first key of them is written.
        writes_first: bool,
    },
    /// One scan of so many rows, and nothing else: more than 1,024 come in pages as of one moment, up to the end of a page.
    ScanOnly {
        /// How many.
        rows: usize,
    },
}

/// A workload of point reads and writes.
#[derive(Debug)]
pub struct Point {
    name: &'static str,
    table: Table,
    distribution: Distribution,
    mix: Mix,
    reading: Reading,
    value_bytes: usize,
    seed: u64,
    growth: Growth,
    /// Which part of all transactions is to be on two shards, where the others are to be on one.
    multi_shard: Option<f64>,
    over_shards: OnceLock<OverShards>,
}

/// What one transaction will read and write, drawn before its first attempt, so that every attempt does the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The keys to read, in order.
    pub reads: Vec<Key>,
    /// Where to scan: from which key on, and how many rows.
    pub scans: Vec<(Key, usize)>,
    /// What to write.
    pub writes: Vec<(Key, Value)>,
    /// Which of these are new, by index: they may be read once this is over.
    pub inserts: Vec<u64>,
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
        let (keys, operations) = mix.sizes();
        if operations == 0 || operations > OPERATIONS_MAX {
            return Err(Error::Settings(format!("a transaction needs from 1 to {OPERATIONS_MAX} operations, not {operations}")));
        }
        let drawn_from = if let Mix::Latest { law, .. } = &mix { law.ranks().min(table.count()) } else { table.count() };
        if keys as u64 > drawn_from {
            return Err(Error::Settings(format!("{keys} different keys a transaction cannot come from {drawn_from} keys")));
        }
        if let Some(share) = mix.share()
            && !(0.0..=1.0).contains(&share)
        {
            return Err(Error::Settings(format!("a share is from 0 to 1, not {share}")));
        }
        if value_bytes > VALUE_BYTES_MAX || operations * value_bytes > 2 << 20 {
            return Err(Error::Settings(format!(
                "values of {value_bytes} bytes are too large: at most {VALUE_BYTES_MAX}, and at most 2 MiB a transaction"
            )));
        }
        if let Mix::ScanOnly { rows } = mix
            && !(1..=SCAN_ROWS_MAX).contains(&rows)
        {
            return Err(Error::Settings(format!("a scan needs from 1 to {SCAN_ROWS_MAX} rows, not {rows}")));
        }
        let (growth, over_shards) = (Growth::new(table.count()), OnceLock::new());
        Ok(Self { name, table, distribution, mix, reading, value_bytes, seed, growth, multi_shard: None, over_shards })
    }

    /// The same, with this part of all transactions on two shards, from 0 to 1, and the others on one.
    ///
    /// # Errors
    /// [`Error::Settings`] when that is no share, or the transactions are not of a [fixed](Mix::Fixed) size.
    pub fn multi_shard(self, share: f64) -> Result<Self, Error> {
        if !(0.0..=1.0).contains(&share) {
            return Err(Error::Settings(format!("a share is from 0 to 1, not {share}")));
        }
        if !matches!(self.mix, Mix::Fixed { .. }) {
            return Err(Error::Settings("only transactions of a fixed size are spread over shards".to_owned()));
        }
        Ok(Self { multi_shard: Some(share), ..self })
    }

    /// Draws the next transaction.
    pub fn plan(&self, LoopClient { rng, is_cheat, .. }: &mut LoopClient) -> Plan {
        let always_on_two = *is_cheat;
        let mut plan = Plan { reads: Vec::new(), scans: Vec::new(), writes: Vec::new(), inserts: Vec::new() };
        let choose = |wanted, rng: &mut SmallRng| match self.over_shards.get() {
            Some(over_shards) => over_shards.choose(&self.table, &self.distribution, wanted, always_on_two, rng),
            None => self.distribution.choose_distinct(&self.table, wanted, rng),
        };
        match self.mix {
            Mix::Fixed { reads, writes, write_keys } => {
                let shared = if write_keys == WriteKeys::AsRead { reads.min(writes) } else { 0 };
                let chosen = choose(reads + writes - shared, rng);
                chosen[..reads].iter().for_each(|index| self.read(&mut plan, *index));
                chosen[..shared].iter().chain(&chosen[reads..]).for_each(|index| self.write(&mut plan, *index, rng));
            }
            Mix::Drawn { operations, read_share } => {
                for index in choose(operations, rng) {
                    if rng.random_bool(read_share) { self.read(&mut plan, index) } else { self.write(&mut plan, index, rng) }
                }
            }
            Mix::Modify { operations, write_share } => {
                for index in choose(operations, rng) {
                    self.read(&mut plan, index);
                    if rng.random_bool(write_share) {
                        self.write(&mut plan, index, rng);
                    }
                }
            }
            Mix::Latest { operations, read_share, law } => {
                let reads = (0..operations).filter(|_| rng.random_bool(read_share)).count();
                choose_latest(&law, self.growth.end(), reads, rng).iter().for_each(|index| self.read(&mut plan, *index));
                for _ in reads..operations {
                    let index = self.growth.next();
                    self.write(&mut plan, index, rng);
                    plan.inserts.push(index);
                }
            }
            Mix::Scan { scan_share, rows_min, rows_max, writes_first } if rng.random_bool(scan_share) => {
                let first = self.distribution.choose(&self.table, rng);
                plan.scans.push((self.table.key(first), rng.random_range(rows_min..=rows_max)));
                if writes_first {
                    self.write(&mut plan, first, rng);
                }
            }
            Mix::Scan { .. } => {
                let index = self.growth.next();
                self.write(&mut plan, index, rng);
                plan.inserts.push(index);
            }
            Mix::ScanOnly { rows } => {
                // So that as many follow.
                let firsts = self.table.count() - rows as u64 + 1;
                plan.scans.push((self.table.key(self.distribution.choose(&self.table, rng) % firsts), rows));
            }
        }
        plan
    }

    fn read(&self, plan: &mut Plan, index: u64) {
        plan.reads.push(self.table.key(index));
    }

    fn write(&self, plan: &mut Plan, index: u64, rng: &mut SmallRng) {
        plan.writes.push((self.table.key(index), random_value(self.value_bytes, rng)));
    }

    /// What says how the table was loaded.
    fn marker(&self) -> Marker {
        Marker(self.table.name())
    }

    fn sizes(&self) -> Sizes {
        sizes([("keys", self.table.count()), ("value-bytes", self.value_bytes as u64)])
    }

    /// Whether the table is there, by its marker; by samples where it has none, as one that was put there otherwise.
    async fn look(&self, client: &Client) -> Result<Readiness, Error> {
        let asked = self.sizes();
        match self.marker().read(client).await? {
            // Part of a larger table is a table too.
            Some(loaded)
                if number(&loaded, "keys") >= Some(self.table.count()) && loaded.get("value-bytes") == asked.get("value-bytes") =>
            {
                Ok(Readiness::Filled)
            }
            Some(loaded) => Err(self.marker().otherwise(&loaded, &asked)),
            None => {
                let samples = SAMPLES.min(self.table.count());
                let key = |sample| self.table.key((sample + 1) * self.table.count() / samples - 1);
                let keys: Arc<[Key]> = (0..samples).map(key).collect();
                let read = |txn: client::Transaction| {
                    let keys = Arc::clone(&keys);
                    async move { txn.get_many(&keys).await }
                };
                let found = persist(client, read).await?;
                match found.iter().filter(|value| value.is_none()).count() {
                    0 => Ok(Readiness::Filled),
                    _ if self.mix.only_writes() => Ok(Readiness::NotFilled),
                    missing => Err(Error::NotLoaded(format!(
                        "the store does not hold the {} keys that {} reads: of {samples} looked at, {missing} are missing",
                        self.table.count(),
                        self.name
                    ))),
                }
            }
        }
    }
}

impl Mix {
    /// How many different keys of the table, and how many operations, a transaction has at most.
    fn sizes(&self) -> (usize, usize) {
        match *self {
            Self::Fixed { reads, writes, write_keys: WriteKeys::Others } => (reads.saturating_add(writes), reads.saturating_add(writes)),
            Self::Fixed { reads, writes, write_keys: WriteKeys::AsRead } => (reads.max(writes), reads.saturating_add(writes)),
            Self::Drawn { operations, .. } | Self::Latest { operations, .. } => (operations, operations),
            Self::Modify { operations, .. } => (operations, operations.saturating_mul(2)),
            Self::Scan { rows_max, .. } => (1, rows_max),
            Self::ScanOnly { rows } => (rows, 1),
        }
    }

    /// Whether it never reads.
    fn only_writes(&self) -> bool {
        matches!(*self, Self::Fixed { reads: 0, .. }) || matches!(*self, Self::Drawn { read_share, .. } if read_share == 0.0)
    }

    /// The probability in it, if there is one.
    fn share(&self) -> Option<f64> {
        match *self {
            Self::Fixed { .. } | Self::ScanOnly { .. } => None,
            Self::Drawn { read_share: share, .. }
            | Self::Latest { read_share: share, .. }
            | Self::Modify { write_share: share, .. }
            | Self::Scan { scan_share: share, .. } => Some(share),
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
            ("reading", json!(self.reading.name())),
        ]);
        if let Some(share) = self.multi_shard {
            settings.insert("multi_shard", json!(share));
        }
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
            Mix::Modify { operations, write_share } => {
                settings.insert("operations", json!(operations));
                settings.insert("write_share", json!(write_share));
            }
            Mix::Latest { operations, read_share, law } => {
                settings.insert("operations", json!(operations));
                settings.insert("read_share", json!(read_share));
                settings.insert("distribution", json!(format!("latest, zipf {}", law.exponent())));
                settings.insert("recent", json!(law.ranks()));
            }
            Mix::Scan { scan_share, rows_min, rows_max, .. } => {
                settings.insert("scan_share", json!(scan_share));
                settings
                    .insert("rows", json!(if rows_min == rows_max { rows_max.to_string() } else { format!("{rows_min} to {rows_max}") }));
            }
            Mix::ScanOnly { rows } => {
                settings.insert("rows", json!(rows));
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
        let part = Part::rows(table.count(), bytes + table.key(0).as_bytes().len(), item);
        Box::pin(async move {
            self.marker().take_away(client).await?;
            let loaded = load(client, vec![part], progress).await?;
            self.marker().put(client, &self.sizes()).await?;
            Ok(loaded)
        })
    }

    fn start<'a>(&'a self, client: &'a Client, _loop_clients: u32) -> Work<'a, Readiness> {
        Box::pin(async move {
            if let Some(share) = self.multi_shard {
                let over_shards = OverShards::new(client.cluster(), share, &self.table, self.mix.sizes().0)?;
                self.over_shards.get_or_init(|| over_shards);
            }
            self.look(client).await
        })
    }

    fn transact<'a>(&'a self, client: &'a Client, loop_client: &'a mut LoopClient) -> Work<'a, Done> {
        let plan = self.plan(loop_client);
        let reading = self.reading;
        Box::pin(async move {
            let inserts = plan.inserts.clone();
            let ended = match reading {
                _ if !plan.scans.is_empty() => scan(client, plan).await,
                Reading::Together => client.run(operations(plan)).await.map(|committed| Done::committed(&committed)),
                Reading::OneByOne => one_by_one(client, plan).await,
            };
            inserts.iter().for_each(|index| self.growth.settle(*index));
            Ok(ended?)
        })
    }
}

/// All that the plan does, for a transaction that knows it beforehand.
fn operations(plan: Plan) -> Vec<Operation> {
    let reads = plan.reads.into_iter().map(Operation::Get);
    reads.chain(plan.writes.into_iter().map(|(key, value)| Operation::Put(key, value))).collect()
}

/// A plan that scans, which no pool takes.
async fn scan(client: &Client, plan: Plan) -> Result<Done, client::Error> {
    let only_reads = plan.writes.is_empty();
    if let [(low, rows)] = plan.scans.as_slice()
        && only_reads
        && *rows > READ_KEYS_MAX
    {
        return scan_pages(client, low.clone(), *rows).await;
    }
    let plan = Arc::new(plan);
    let work = |txn: client::Transaction| {
        let plan = Arc::clone(&plan);
        async move {
            for (low, rows) in &plan.scans {
                txn.scan(low.clone(), TABLE_END, *rows).await?;
            }
            for (key, value) in &plan.writes {
                txn.put(key.clone(), value.clone());
            }
            Ok(())
        }
    };
    let committed = if only_reads { client.read(work).await } else { client.transact(work).await };
    committed.map(|committed| Done::committed(&committed))
}

/// At least so many rows, as of now, in pages.
async fn scan_pages(client: &Client, low: Key, rows: usize) -> Result<Done, client::Error> {
    let (mut pages, mut found) = (client.pages(low, TABLE_END, AsOf::Ago(Duration::ZERO)), 0);
    while found < rows
        && let Some(page) = pages.next().await?
    {
        found += page.len();
    }
    Ok(Done { path: Some(CommitPath::ReadOnly), attempts: 1, broken: None })
}

async fn one_by_one(client: &Client, plan: Plan) -> Result<Done, client::Error> {
    let plan = Arc::new(plan);
    let work = |txn: client::Transaction| {
        let plan = Arc::clone(&plan);
        async move {
            for key in &plan.reads {
                txn.get(key.clone()).await?;
            }
            for (key, value) in &plan.writes {
                txn.put(key.clone(), value.clone());
            }
            Ok(())
        }
    };
    client.transact(work).await.map(|committed| Done::committed(&committed))
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
        let mut rng = LoopClient::new(1, 0);
        for _ in 0..1_000 {
            let plan = point.plan(&mut rng);
            assert_eq!((plan.reads.len(), plan.writes.len(), distinct(&plan)), (2, 2, 4));
            assert!(plan.writes.iter().all(|(_, value)| value.as_bytes().len() == 100));
        }
    }

    #[test]
    fn writing_what_was_read_touches_two() {
        let point = point(Mix::Fixed { reads: 2, writes: 2, write_keys: WriteKeys::AsRead }, 50).expect("a workload");
        let plan = point.plan(&mut LoopClient::new(1, 0));
        let written: Vec<Key> = plan.writes.iter().map(|(key, _)| key.clone()).collect();
        assert_eq!(plan.reads, written);
    }

    #[test]
    fn more_writes_than_reads_go_on_to_other_keys() {
        let point = point(Mix::Fixed { reads: 1, writes: 3, write_keys: WriteKeys::AsRead }, 50).expect("a workload");
        let plan = point.plan(&mut LoopClient::new(1, 0));
        assert_eq!((plan.reads.len(), plan.writes.len(), distinct(&plan)), (1, 3, 3));
        assert_eq!(plan.reads[0], plan.writes[0].0);
    }

    #[test]
    fn the_share_of_reads_is_kept() {
        for share in [0.5, 0.95, 1.0] {
            let point = point(Mix::Drawn { operations: 10, read_share: share }, 1_000).expect("a workload");
            let mut rng = LoopClient::new(1, 0);
            let reads: usize = (0..5_000).map(|_| point.plan(&mut rng).reads.len()).sum();
            assert!((reads as f64 / 50_000.0 - share).abs() < 0.01, "{reads} of 50000, wanted {share}");
        }
    }

    #[test]
    fn what_is_modified_was_read() {
        for (share, least, most) in [(1.0, 10_000, 10_000), (0.5, 4_800, 5_200)] {
            let point = point(Mix::Modify { operations: 10, write_share: share }, 1_000).expect("a workload");
            let mut rng = LoopClient::new(1, 0);
            let mut writes = 0;
            for _ in 0..1_000 {
                let plan = point.plan(&mut rng);
                assert_eq!(plan.reads.len(), 10);
                assert!(plan.writes.iter().all(|(key, _)| plan.reads.contains(key)));
                writes += plan.writes.len();
            }
            assert!((least..=most).contains(&writes), "{writes}");
        }
    }

    #[test]
    fn what_is_inserted_is_new_and_read_only_when_it_is_settled() {
        let law = Zipf::new(100, 0.99).expect("a law");
        let point = point(Mix::Latest { operations: 10, read_share: 0.5, law }, 100).expect("a workload");
        let mut rng = LoopClient::new(1, 0);
        let first = point.plan(&mut rng);
        assert_eq!(first.writes[0].0, Key::from("user00000100"));
        assert_eq!((first.reads.len() + first.writes.len(), distinct(&first)), (10, 10));
        let read = |plan: &Plan| plan.reads.iter().any(|key| *key >= Key::from("user00000100"));
        assert!((0..100).all(|_| !read(&point.plan(&mut rng))), "nothing is settled yet");
        first.inserts.iter().for_each(|index| point.growth.settle(*index));
        assert!((0..100).any(|_| read(&point.plan(&mut rng))), "the latest keys are read most");
    }

    #[test]
    fn a_scan_has_as_many_rows_as_were_asked_for_and_else_something_new_is_inserted() {
        let mix = |writes_first| Mix::Scan { scan_share: 0.9, rows_min: 3, rows_max: 7, writes_first };
        for writes_first in [false, true] {
            let (point, mut rng) = (point(mix(writes_first), 100).expect("a workload"), LoopClient::new(1, 0));
            let plans: Vec<Plan> = (0..1_000).map(|_| point.plan(&mut rng)).collect();
            let (scans, inserts): (Vec<&Plan>, Vec<&Plan>) = plans.iter().partition(|plan| plan.inserts.is_empty());
            assert!((850..950).contains(&scans.len()), "{}", scans.len());
            let rows: BTreeSet<usize> = scans.iter().map(|plan| plan.scans[0].1).collect();
            assert_eq!(rows, (3..=7).collect());
            assert!(scans.iter().all(|plan| plan.writes.len() == usize::from(writes_first)));
            assert!(!writes_first || scans.iter().all(|plan| plan.writes[0].0 == plan.scans[0].0));
            assert!(inserts.iter().all(|plan| plan.scans.is_empty() && plan.writes.len() == 1));
            assert!(plans.iter().flat_map(|plan| &plan.writes).all(|(key, _)| *key < Key::from(TABLE_END)));
        }
    }

    #[test]
    fn a_loop_client_repeats_itself_and_no_other() {
        let point = point(Mix::Drawn { operations: 4, read_share: 0.5 }, 1_000).expect("a workload");
        let plan = |seed, loop_client| point.plan(&mut LoopClient::new(seed, loop_client));
        assert_eq!(plan(1, 0), plan(1, 0));
        assert_ne!(plan(1, 0), plan(1, 1));
        assert_ne!(plan(1, 0), plan(2, 0));
    }

    #[test]
    fn impossible_transactions_are_refused_in_words() {
        let refused = |mix, keys| point(mix, keys).expect_err("no workload").to_string();
        assert!(refused(Mix::Drawn { operations: 0, read_share: 1.0 }, 10).contains("from 1 to"));
        assert!(refused(Mix::Drawn { operations: 11, read_share: 1.0 }, 10).contains("11 different keys"));
        let latest = Mix::Latest { operations: 10, read_share: 0.5, law: Zipf::new(9, 0.99).expect("a law") };
        assert!(refused(latest, 1_000).contains("10 different keys a transaction cannot come from 9"));
        assert!(refused(Mix::Drawn { operations: 2, read_share: 1.5 }, 10).contains("from 0 to 1"));
        assert!(refused(Mix::Modify { operations: 501, write_share: 1.0 }, 1_000).contains("from 1 to"));
        assert!(refused(Mix::Fixed { reads: usize::MAX, writes: 2, write_keys: WriteKeys::Others }, 10).contains("from 1 to"));
    }
}
