//! TPC-C: a wholesaler's orders, payments and deliveries, after the specification's revision 5.11.
//!
//! All nine tables, all five transactions in the standard mix, the specification's random numbers, one order of a hundred
//! rolled back, one line of a hundred from another warehouse, fifteen payments of a hundred for another's customer. Twenty
//! warehouses, as in Basil §6.1. What differs from the specification, as in the papers:
//!
//! * There are no terminals with people at them: a loop client begins its next transaction when its last one is done, so that
//!   `tpmC` is no figure to compare with published results of the TPC.
//! * Three tables stand in for indexes; see [`tables`].
//! * A delivery is one transaction for all ten districts, done while its loop client waits, not queued.
//!
//! A scale below 1 makes warehouses smaller, not fewer: so many items, customers and orders. How hot the rows of
//! warehouses and districts are, which is what limits this workload, does not change with it.
//!
//! At the end the specification's twelve consistency conditions (clause 3.3.2) are checked against all rows, and what the
//! three tables and the stocks should say as well; see [`audit`].

mod audit;
mod numbers;
mod plan;
mod populate;
mod tables;
mod transactions;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use client::Client;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use serde_json::{Value as Json, json};

use crate::attempt::run;
use crate::load::load;
use crate::marker::{Marker, Sizes, text};
use crate::sweep::sweep;
use crate::{Done, Error, LoopClient, Progress, Readiness, Reading, Verdict, Work, Workload, mix};
use audit::{Audit, Stage};
use numbers::Laws;
use plan::{KINDS, NEW_ORDER, Terminal};
use populate::Populate;
use tables::{DISTRICTS, DistrictName};
use transactions::Tx;

/// The most warehouses.
pub const WAREHOUSES_MAX: u32 = 1_000;
/// The smallest scale, and the largest: a warehouse of the specification.
pub const TPCC_SCALES: std::ops::RangeInclusive<f64> = 0.001..=1.0;
/// Items and stocks of a warehouse, as the specification has it.
const ITEMS: f64 = 100_000.0;
/// Customers of a district, as the specification has it.
const CUSTOMERS: f64 = 3_000.0;
/// What says how the tables were loaded.
const MARKER: Marker = Marker("tpcc");
/// What says that they are being loaded, and how.
const UNFINISHED: Marker = Marker("tpcc/unfinished");

/// The TPC-C workload.
#[derive(Debug)]
pub struct Tpcc {
    size: Size,
    scale: f64,
    reading: Reading,
    seed: u64,
    laws: Laws,
}

/// How large the tables are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Size {
    warehouses: u32,
    items: u32,
    /// In a district; as many orders are there at first.
    customers: u32,
}

impl Size {
    /// How many last names customers have.
    fn names(self) -> u32 {
        (self.customers / 3).clamp(1, 1_000)
    }

    /// How many orders of a district were delivered at first, the oldest: seven of ten.
    fn delivered(self) -> u32 {
        self.customers - self.customers * 3 / 10
    }

    /// How many districts there are in all.
    fn districts(self) -> u64 {
        u64::from(self.warehouses) * u64::from(DISTRICTS)
    }

    /// The district at `index` of all of them.
    fn district(self, index: u64) -> DistrictName {
        let number = |index: u64| u32::try_from(index).expect("there are fewer than 2^32 districts") + 1;
        DistrictName { warehouse: number(index / u64::from(DISTRICTS)), district: number(index % u64::from(DISTRICTS)) }
    }

    /// Where a district stands among all of them.
    fn district_index(self, at: DistrictName) -> usize {
        ((at.warehouse - 1) * DISTRICTS + at.district - 1) as usize
    }
}

impl Tpcc {
    /// So many warehouses, each smaller than the specification's by `scale`.
    ///
    /// # Errors
    /// [`Error::Settings`] when there are none or too many, or the scale is out of [`TPCC_SCALES`].
    pub fn new(warehouses: u32, scale: f64, reading: Reading, seed: u64) -> Result<Self, Error> {
        if !(1..=WAREHOUSES_MAX).contains(&warehouses) {
            return Err(Error::Settings(format!("TPC-C has from 1 to {WAREHOUSES_MAX} warehouses, not {warehouses}")));
        }
        if !TPCC_SCALES.contains(&scale) {
            let (least, most) = (TPCC_SCALES.start(), TPCC_SCALES.end());
            return Err(Error::Settings(format!("the scale of a warehouse is from {least} to {most}, not {scale}")));
        }
        let (items, customers) = ((ITEMS * scale).round().max(100.0) as u32, (CUSTOMERS * scale).round().max(30.0) as u32);
        let size = Size { warehouses, items, customers };
        let laws = Laws::draw(size, &mut SmallRng::seed_from_u64(mix(&[seed, u64::MAX])));
        Ok(Self { size, scale, reading, seed, laws })
    }

    fn sizes(&self) -> Sizes {
        let sizes = [("warehouses", self.size.warehouses.to_string()), ("scale", self.scale.to_string())];
        sizes.into_iter().map(|(name, size)| (name.to_owned(), size)).collect()
    }

    /// Fills the tables of a store that holds none. A load over tables that were used would leave orders behind that the
    /// new tables do not know.
    async fn fill(&self, client: &Arc<Client>, progress: Progress<'_>) -> Result<u64, Error> {
        if let Some(loaded) = MARKER.read(client).await? {
            return Err(Error::LoadedAlready { table: "tpcc", loaded: text(&loaded) });
        }
        let mut asked = self.sizes();
        asked.insert("seed".to_owned(), self.seed.to_string());
        match UNFINISHED.read(client).await? {
            Some(begun) if begun != asked => return Err(Error::LoadedInPart { table: "tpcc", begun: text(&begun) }),
            _ => UNFINISHED.put(client, &asked).await?,
        }
        let loaded = load(client, Populate::new(self.size, self.seed).parts(), progress).await?;
        MARKER.put(client, &self.sizes()).await?;
        UNFINISHED.take_away(client).await?;
        Ok(loaded)
    }

    async fn look(&self, client: &Client) -> Result<Readiness, Error> {
        match MARKER.read(client).await? {
            Some(loaded) if loaded == self.sizes() => Ok(Readiness::Filled),
            Some(loaded) => Err(Error::LoadedAlready { table: "tpcc", loaded: text(&loaded) }),
            None => Err(Error::NotLoaded("the store holds no tables of TPC-C, or not all of them".to_owned())),
        }
    }

    async fn check(&self, client: &Client, progress: Progress<'_>) -> Result<Verdict, Error> {
        let mut audit = Audit::new(self.size);
        for stage in Stage::ALL {
            let questions = audit.questions(stage);
            let take = |index, value| audit.take(&questions, index, value);
            sweep(client, questions.count(), |index| questions.key(index), progress, take).await?;
        }
        Ok(Verdict::of(audit.findings()))
    }
}

impl Workload for Tpcc {
    fn name(&self) -> &'static str {
        "tpcc"
    }

    fn settings(&self) -> BTreeMap<&'static str, Json> {
        BTreeMap::from([
            ("warehouses", json!(self.size.warehouses)),
            ("scale", json!(self.scale)),
            ("items", json!(self.size.items)),
            ("customers_per_district", json!(self.size.customers)),
            ("reading", json!(self.reading.name())),
            ("seed", json!(self.seed)),
        ])
    }

    fn kinds(&self) -> &'static [&'static str] {
        &KINDS
    }

    fn per_minute(&self) -> Option<(&'static str, usize)> {
        Some(("tpmC", NEW_ORDER))
    }

    fn load<'a>(&'a self, client: &'a Arc<Client>, progress: Progress<'a>) -> Work<'a, u64> {
        Box::pin(self.fill(client, progress))
    }

    fn start<'a>(&'a self, client: &'a Client, _loop_clients: u32) -> Work<'a, Readiness> {
        Box::pin(self.look(client))
    }

    fn transact<'a>(&'a self, client: &'a Client, loop_client: &'a mut LoopClient) -> Work<'a, Done> {
        let terminal = Terminal::new(self.size, self.laws, loop_client.index);
        let plan = terminal.plan(loop_client);
        Box::pin(async move {
            let attempt = |txn| transactions::attempt(&plan, self.size, Tx { txn, reading: self.reading });
            Ok(run(client, plan.only_reads(), attempt).await?.1)
        })
    }

    fn check_end<'a>(&'a self, client: &'a Client, progress: Progress<'a>) -> Option<Work<'a, Verdict>> {
        Some(Box::pin(self.check(client, progress)))
    }
}

/// Now, in milliseconds since 1970.
fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_warehouse_is_the_specifications() {
        let tpcc = Tpcc::new(20, 1.0, Reading::Together, 1).expect("a workload");
        assert_eq!(tpcc.size, Size { warehouses: 20, items: 100_000, customers: 3_000 });
        assert_eq!((tpcc.size.names(), tpcc.size.delivered(), tpcc.size.districts()), (1_000, 2_100, 200));
    }

    #[test]
    fn a_scale_makes_warehouses_smaller_but_never_too_small() {
        assert_eq!(
            Tpcc::new(20, 0.1, Reading::Together, 1).expect("a workload").size,
            Size { warehouses: 20, items: 10_000, customers: 300 }
        );
        let least = Tpcc::new(1, 0.001, Reading::Together, 1).expect("a workload").size;
        assert_eq!((least, least.names(), least.delivered()), (Size { warehouses: 1, items: 100, customers: 30 }, 10, 21));
    }

    #[test]
    fn districts_are_counted_both_ways() {
        let size = Tpcc::new(3, 0.01, Reading::Together, 1).expect("a workload").size;
        for index in 0..size.districts() {
            assert_eq!(size.district_index(size.district(index)) as u64, index);
        }
        assert_eq!(size.district(29), DistrictName { warehouse: 3, district: 10 });
    }

    #[test]
    fn impossible_sizes_are_refused_in_words() {
        let refused = |warehouses, scale| Tpcc::new(warehouses, scale, Reading::Together, 1).expect_err("no workload").to_string();
        assert!(refused(0, 1.0).contains("from 1 to 1000 warehouses"));
        assert!(refused(1_001, 1.0).contains("from 1 to 1000 warehouses"));
        for scale in [0.0, 1.1, f64::NAN] {
            assert!(refused(1, scale).contains("from 0.001 to 1"), "{scale}");
        }
    }
}
