//! What the terminals of TPC-C ask for (clauses 2.4.1 to 2.8.1), drawn before a transaction's first attempt.

use rand::Rng;
use rand::rngs::SmallRng;

use super::numbers::{Laws, last_name};
use super::tables::{DISTRICTS, DistrictName, LINES_MAX, LINES_MIN};
use super::{Size, now_ms};
use crate::LoopClient;
use crate::keys::draw_weighted;
use crate::row::Cents;

/// The kinds of transactions, in the order of [`Plan`].
pub(super) const KINDS: [&str; 5] = ["new-order", "payment", "order-status", "delivery", "stock-level"];
/// Where the one stands whose commits a minute are the result.
pub(super) const NEW_ORDER: usize = 0;
/// How often each kind comes, of a hundred (clause 5.2.3).
pub(super) const WEIGHTS: [u32; 5] = [45, 43, 4, 4, 4];

/// A terminal: where it stands, and what it draws by.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terminal {
    pub(super) size: Size,
    pub(super) laws: Laws,
    /// Its warehouse, and the district whose stock it asks about.
    pub(super) home: DistrictName,
}

/// What a transaction is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Plan {
    NewOrder(NewOrderPlan),
    Payment(PaymentPlan),
    OrderStatus { at: DistrictName, customer: Who },
    Delivery { warehouse: u32, carrier: u8, date: u64 },
    StockLevel { at: DistrictName, threshold: u32 },
}

impl Plan {
    pub fn only_reads(&self) -> bool {
        matches!(self, Self::OrderStatus { .. } | Self::StockLevel { .. })
    }
}

/// An order to place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NewOrderPlan {
    pub(super) at: DistrictName,
    pub(super) customer: u32,
    pub(super) date: u64,
    pub(super) lines: Vec<LinePlan>,
}

/// A line of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LinePlan {
    /// In one of a hundred orders the last item is none that there is: the order is to be rolled back.
    pub(super) item: u32,
    pub(super) supplier: u32,
    pub(super) quantity: u8,
}

/// A payment to take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PaymentPlan {
    /// Where it is made.
    pub(super) at: DistrictName,
    /// Where the customer belongs.
    pub(super) of: DistrictName,
    pub(super) customer: Who,
    pub(super) amount: Cents,
    pub(super) date: u64,
}

/// How a customer is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Who {
    Number(u32),
    LastName(String),
}

impl Terminal {
    /// The terminal of loop client `index`: loop clients are spread evenly over warehouses, and over their districts.
    pub(super) fn new(size: Size, laws: Laws, index: u32) -> Self {
        let home = DistrictName { warehouse: index % size.warehouses + 1, district: index / size.warehouses % DISTRICTS + 1 };
        Self { size, laws, home }
    }

    /// Draws the next transaction.
    pub(super) fn plan(&self, loop_client: &mut LoopClient) -> Plan {
        loop_client.kind = draw_weighted(&WEIGHTS, &mut loop_client.rng);
        let rng = &mut loop_client.rng;
        match loop_client.kind {
            NEW_ORDER => Plan::NewOrder(self.new_order(rng)),
            1 => Plan::Payment(self.payment(rng)),
            2 => Plan::OrderStatus { at: self.some_district(self.home.warehouse, rng), customer: self.who(rng) },
            3 => Plan::Delivery { warehouse: self.home.warehouse, carrier: rng.random_range(1..=10), date: now_ms() },
            _ => Plan::StockLevel { at: self.home, threshold: rng.random_range(10..=20) },
        }
    }

    fn new_order(&self, rng: &mut SmallRng) -> NewOrderPlan {
        let at = self.some_district(self.home.warehouse, rng);
        let customer = self.laws.customers.draw(rng);
        let count = rng.random_range(LINES_MIN..=LINES_MAX);
        let mut lines: Vec<LinePlan> = (0..count).map(|_| self.line(rng)).collect();
        if rng.random_ratio(1, 100) {
            lines.last_mut().expect("an order has lines").item = self.size.items + 1;
        }
        NewOrderPlan { at, customer, date: now_ms(), lines }
    }

    fn line(&self, rng: &mut SmallRng) -> LinePlan {
        let home = self.home.warehouse;
        let supplier = if rng.random_ratio(1, 100) { self.other_warehouse(rng) } else { home };
        LinePlan { item: self.laws.items.draw(rng), supplier, quantity: rng.random_range(1..=10) }
    }

    fn payment(&self, rng: &mut SmallRng) -> PaymentPlan {
        let at = self.some_district(self.home.warehouse, rng);
        let of = if rng.random_ratio(85, 100) { at } else { self.some_district(self.other_warehouse(rng), rng) };
        let amount = Cents(rng.random_range(100..=500_000));
        PaymentPlan { at, of, customer: self.who(rng), amount, date: now_ms() }
    }

    fn who(&self, rng: &mut SmallRng) -> Who {
        if rng.random_ratio(60, 100) {
            Who::LastName(last_name(self.laws.names.draw(rng)))
        } else {
            Who::Number(self.laws.customers.draw(rng))
        }
    }

    fn some_district(&self, warehouse: u32, rng: &mut SmallRng) -> DistrictName {
        DistrictName { warehouse, district: rng.random_range(1..=DISTRICTS) }
    }

    /// A warehouse that is not home; home where there is only one.
    fn other_warehouse(&self, rng: &mut SmallRng) -> u32 {
        let home = self.home.warehouse;
        if self.size.warehouses == 1 {
            return home;
        }
        let other = rng.random_range(1..self.size.warehouses);
        if other < home { other } else { other + 1 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    fn terminal(warehouses: u32, index: u32) -> Terminal {
        let size = Size { warehouses, items: 100_000, customers: 3_000 };
        Terminal::new(size, Laws::draw(size, &mut SmallRng::seed_from_u64(1)), index)
    }

    fn near(count: usize, of: usize, percent: f64) -> bool {
        (count as f64 / of as f64 - percent / 100.0).abs() < 0.006
    }

    #[test]
    fn each_kind_comes_as_often_as_the_specification_says() {
        let (terminal, mut loop_client) = (terminal(20, 0), LoopClient::new(1, 0));
        let mut counts = [0; 5];
        for _ in 0..40_000 {
            let plan = terminal.plan(&mut loop_client);
            counts[loop_client.kind] += 1;
            let kind = match plan {
                Plan::NewOrder(_) => 0,
                Plan::Payment(_) => 1,
                Plan::OrderStatus { .. } => 2,
                Plan::Delivery { .. } => 3,
                Plan::StockLevel { .. } => 4,
            };
            assert_eq!(loop_client.kind, kind);
        }
        assert!(counts.iter().zip(WEIGHTS).all(|(count, weight)| near(*count, 40_000, f64::from(weight))), "{counts:?}");
    }

    #[test]
    fn orders_are_as_clause_2_4_1_says() {
        let (terminal, mut rng) = (terminal(20, 2), SmallRng::seed_from_u64(1));
        let orders: Vec<NewOrderPlan> = (0..20_000).map(|_| terminal.new_order(&mut rng)).collect();
        let lines: Vec<LinePlan> = orders.iter().flat_map(|order| order.lines.clone()).collect();
        assert!(orders.iter().all(|order| order.at.warehouse == 3 && (1..=10).contains(&order.at.district)));
        assert!(orders.iter().all(|order| (1..=3_000).contains(&order.customer) && (5..=15).contains(&order.lines.len())));
        assert!(near(lines.len(), 10 * orders.len(), 100.0));
        let wrong = |order: &&NewOrderPlan| order.lines.iter().any(|line| line.item == 100_001);
        assert!(near(orders.iter().filter(wrong).count(), orders.len(), 1.0));
        assert!(orders.iter().all(|order| order.lines[..order.lines.len() - 1].iter().all(|line| line.item <= 100_000)));
        assert!(near(lines.iter().filter(|line| line.supplier != 3).count(), lines.len(), 1.0));
        assert!(lines.iter().all(|line| (1..=20).contains(&line.supplier) && (1..=10).contains(&line.quantity) && line.item >= 1));
    }

    #[test]
    fn payments_are_as_clause_2_5_1_says() {
        let (terminal, mut rng) = (terminal(20, 2), SmallRng::seed_from_u64(1));
        let payments: Vec<PaymentPlan> = (0..20_000).map(|_| terminal.payment(&mut rng)).collect();
        assert!(near(payments.iter().filter(|payment| payment.of.warehouse != 3).count(), payments.len(), 15.0));
        assert!(payments.iter().all(|payment| payment.of.warehouse != 3 || payment.of == payment.at));
        assert!(near(payments.iter().filter(|payment| matches!(payment.customer, Who::LastName(_))).count(), payments.len(), 60.0));
        assert!(payments.iter().all(|payment| (100..=500_000).contains(&payment.amount.0) && payment.at.warehouse == 3));
    }

    #[test]
    fn one_warehouse_has_no_other() {
        let (terminal, mut rng) = (terminal(1, 5), SmallRng::seed_from_u64(1));
        assert!((0..1_000).all(|_| terminal.payment(&mut rng).of.warehouse == 1 && terminal.line(&mut rng).supplier == 1));
    }

    #[test]
    fn terminals_are_spread_over_all_districts() {
        let homes: std::collections::BTreeSet<DistrictName> = (0..200).map(|index| terminal(20, index).home).collect();
        assert_eq!(homes.len(), 200);
        assert_eq!(terminal(20, 200).home, terminal(20, 0).home);
    }

    #[test]
    fn a_loop_client_repeats_itself() {
        let plans = |seed| {
            let (terminal, mut loop_client) = (terminal(20, 0), LoopClient::new(seed, 0));
            (0..50).map(|_| std::mem::discriminant(&terminal.plan(&mut loop_client))).collect::<Vec<_>>()
        };
        assert_eq!(plans(1), plans(1));
        assert_ne!(plans(1), plans(2));
    }
}
