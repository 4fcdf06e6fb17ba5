//! What the tables of TPC-C hold at first (clause 4.3.3), row by row, each a function of its name and the seed.

use std::sync::Arc;

use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use types::{Key, Value};

use super::Size;
use super::numbers::{Law, digits, last_name, last_names, letters, original_data};
use super::tables::{
    Address, Customer, DISTRICTS, District, DistrictName, History, Item, LINES_MAX, LINES_MIN, LatestOrder, Namesakes, NewOrder, Numbers,
    OldestNewOrder, Order, OrderLine, STOCK_INFO_BYTES, Stock, Warehouse, item_key, stock_key, warehouse_key,
};
use crate::load::Part;
use crate::mix;
use crate::row::{Cents, Row, Text};

/// When everything that is there at first was made: a moment before all others, the same in every load.
const LOADED_MS: u64 = 1_262_304_000_000;
/// What a customer has paid at first, in one payment.
const FIRST_PAYMENT: Cents = Cents(1_000);

/// What a random stream is for: no two draw from the same.
#[derive(Clone, Copy, Debug)]
enum Stream {
    Item,
    Warehouse,
    Stock,
    District,
    Customer,
    Name,
    Order,
    Permutation,
}

/// The tables' first content.
#[derive(Clone, Debug)]
pub(super) struct Populate {
    size: Size,
    seed: u64,
    names: Law,
    /// By district and order: whose the order is. Each customer has one (clause 4.3.3.1, O_C_ID).
    customers_of_orders: Arc<Vec<Vec<u32>>>,
}

impl Populate {
    pub(super) fn new(size: Size, seed: u64) -> Self {
        let mut populate = Self { size, seed, names: last_names(size), customers_of_orders: Arc::default() };
        let shuffled = |district: DistrictName| {
            let mut customers: Vec<u32> = (1..=size.customers).collect();
            customers.shuffle(&mut populate.rng(Stream::Permutation, district, 0));
            customers
        };
        populate.customers_of_orders = Arc::new((0..size.districts()).map(|index| shuffled(size.district(index))).collect());
        populate
    }

    /// All rows.
    pub(super) fn parts(&self) -> Vec<Part> {
        let size = self.size;
        let (items, districts, customers) = (u64::from(size.items), size.districts(), u64::from(size.customers));
        let part = |count, rows, row_bytes, make: fn(&Self, u64) -> Vec<(Key, Value)>| {
            let populate = self.clone();
            Part::groups(count, rows, row_bytes, move |index| make(&populate, index))
        };
        vec![
            part(items, 1, 110, |all, index| vec![all.item(number(index))]),
            part(u64::from(size.warehouses), 1, 150, |all, index| vec![all.warehouse(number(index))]),
            part(u64::from(size.warehouses) * items, 1, 340, |all, index| {
                let items = u64::from(all.size.items);
                vec![all.stock(number(index / items), number(index % items))]
            }),
            part(districts, 2, 120, |all, index| all.district(all.size.district(index))),
            part(districts * customers, 2, 400, |all, index| {
                let (at, customer) = all.place(index);
                all.customer(at, customer)
            }),
            part(districts, u64::from(size.names()), 40, |all, index| all.namesakes(all.size.district(index))),
            part(districts * customers, 13, 80, |all, index| {
                let (at, order) = all.place(index);
                all.order(at, order)
            }),
        ]
    }

    /// The district and the number there of what is `index`th of all customers, or of all orders.
    fn place(&self, index: u64) -> (DistrictName, u32) {
        let customers = u64::from(self.size.customers);
        (self.size.district(index / customers), number(index % customers))
    }

    fn item(&self, item: u32) -> (Key, Value) {
        let rng = &mut self.rng(Stream::Item, NOWHERE, item);
        let image = rng.random_range(1..=10_000);
        let row = Item { image, name: letters(14, 24, rng), price: Cents(rng.random_range(100..=10_000)), data: original_data(rng) };
        (item_key(item), row.to_value())
    }

    fn warehouse(&self, warehouse: u32) -> (Key, Value) {
        let rng = &mut self.rng(Stream::Warehouse, NOWHERE, warehouse);
        let name = letters(6, 10, rng);
        let paid = Cents(FIRST_PAYMENT.0 * i64::from(DISTRICTS) * i64::from(self.size.customers));
        let row = Warehouse { name, address: address(rng), tax: rng.random_range(0..=2_000), paid };
        (warehouse_key(warehouse), row.to_value())
    }

    fn stock(&self, warehouse: u32, item: u32) -> (Key, Value) {
        let rng = &mut self.rng(Stream::Stock, DistrictName { warehouse, district: 0 }, item);
        let quantity = rng.random_range(10..=100);
        let info = letters(STOCK_INFO_BYTES, STOCK_INFO_BYTES, rng);
        let row = Stock { quantity, info, ordered: 0, orders: 0, remote_orders: 0, data: original_data(rng) };
        (stock_key(warehouse, item), row.to_value())
    }

    fn district(&self, at: DistrictName) -> Vec<(Key, Value)> {
        let rng = &mut self.rng(Stream::District, at, 0);
        let name = letters(6, 10, rng);
        let paid = Cents(FIRST_PAYMENT.0 * i64::from(self.size.customers));
        let next_order = self.size.customers + 1;
        let district = District { name, address: address(rng), tax: rng.random_range(0..=2_000), paid, next_order };
        let oldest = OldestNewOrder { order: self.size.delivered() + 1 };
        vec![(at.key(), district.to_value()), (at.oldest_new_order_key(), oldest.to_value())]
    }

    fn customer(&self, at: DistrictName, customer: u32) -> Vec<(Key, Value)> {
        let (last, first) = self.name(at, customer);
        let rng = &mut self.rng(Stream::Customer, at, customer);
        let row = Customer {
            first,
            middle: Text::from("OE"),
            last: Text::new(last_name(last)),
            address: address(rng),
            phone: digits(16, rng),
            since: LOADED_MS,
            bad_credit: rng.random_ratio(1, 10),
            credit_limit: Cents(5_000_000),
            discount: rng.random_range(0..=5_000),
            balance: Cents(-FIRST_PAYMENT.0),
            paid: FIRST_PAYMENT,
            payments: 1,
            deliveries: 0,
            data: letters(300, 500, rng),
        };
        let DistrictName { warehouse, district } = at;
        let payment = History { warehouse, district, date: LOADED_MS, amount: FIRST_PAYMENT, data: letters(12, 24, rng) };
        vec![(at.customer_key(customer), row.to_value()), (at.history_key(customer, 1), payment.to_value())]
    }

    /// The number of a customer's last name, and their first name. The first customers have one last name after another, so
    /// that each is there.
    fn name(&self, at: DistrictName, customer: u32) -> (u32, Text) {
        let rng = &mut self.rng(Stream::Name, at, customer);
        let last = if customer <= self.size.names() { customer - 1 } else { self.names.draw(rng) };
        (last, letters(8, 16, rng))
    }

    fn namesakes(&self, at: DistrictName) -> Vec<(Key, Value)> {
        let mut by_name = vec![Vec::new(); self.size.names() as usize];
        for customer in 1..=self.size.customers {
            let (last, first) = self.name(at, customer);
            by_name[last as usize].push((first, customer));
        }
        let row = |(last, mut sharing): (u32, Vec<(Text, u32)>)| {
            sharing.sort_unstable();
            let customers = Numbers(sharing.into_iter().map(|(_, customer)| customer).collect());
            (at.namesakes_key(&last_name(last)), Namesakes { customers }.to_value())
        };
        (0..).zip(by_name).map(row).collect()
    }

    /// An order, its lines, and that it is its customer's latest.
    fn order(&self, at: DistrictName, order: u32) -> Vec<(Key, Value)> {
        let rng = &mut self.rng(Stream::Order, at, order);
        let customer = self.customers_of_orders[self.size.district_index(at)][order as usize - 1];
        let delivered = order <= self.size.delivered();
        let carrier = rng.random_range(1..=10);
        let lines = rng.random_range(LINES_MIN..=LINES_MAX);
        let row = Order { customer, entered: LOADED_MS, carrier: delivered.then_some(carrier), lines, all_local: true };
        let mut rows =
            vec![(at.order_key(order), row.to_value()), (at.latest_order_key(customer), LatestOrder { order, lines }.to_value())];
        if !delivered {
            rows.push((at.new_order_key(order), NewOrder { entered: LOADED_MS }.to_value()));
        }
        for line in 1..=lines {
            let item = rng.random_range(1..=self.size.items);
            let amount = if delivered { Cents(0) } else { Cents(rng.random_range(1..=999_999)) };
            let info = letters(24, 24, rng);
            let row = OrderLine { item, supplier: at.warehouse, delivered: delivered.then_some(LOADED_MS), quantity: 5, amount, info };
            rows.push((at.line_key(order, line), row.to_value()));
        }
        rows
    }

    fn rng(&self, stream: Stream, at: DistrictName, number: u32) -> SmallRng {
        let name = [stream as u32, at.warehouse, at.district, number].map(u64::from);
        SmallRng::seed_from_u64(mix(&[self.seed, name[0], name[1], name[2], name[3]]))
    }
}

/// For rows that belong to no district.
const NOWHERE: DistrictName = DistrictName { warehouse: 0, district: 0 };

/// Names are counted from 1, places in a part from 0.
fn number(index: u64) -> u32 {
    u32::try_from(index + 1).expect("a size keeps all numbers below 2^32")
}

fn address(rng: &mut SmallRng) -> Address {
    Address {
        street_1: letters(10, 20, rng),
        street_2: letters(10, 20, rng),
        city: letters(10, 20, rng),
        state: letters(2, 2, rng),
        zip: Text::new(format!("{}11111", digits(4, rng))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{BTreeMap, BTreeSet};

    const SIZE: Size = Size { warehouses: 2, items: 100, customers: 30 };

    fn rows(seed: u64) -> BTreeMap<Key, Value> {
        let all: Vec<(Key, Value)> = Populate::new(SIZE, seed).parts().iter().flat_map(|part| part.all().collect::<Vec<_>>()).collect();
        let rows: BTreeMap<Key, Value> = all.iter().cloned().collect();
        assert_eq!(rows.len(), all.len(), "no row is written twice");
        rows
    }

    #[test]
    fn there_are_as_many_rows_as_the_specification_says() {
        let rows = rows(1);
        let count = |table: &str| rows.keys().filter(|key| key.to_string().starts_with(&format!("tpcc/{table}/"))).count();
        let expected = [
            ("item", 100),
            ("warehouse", 2),
            ("stock", 200),
            ("district", 20),
            ("customer", 600),
            ("history", 600),
            ("order", 600),
            ("new-order", 180),
            ("customer-by-name", 200),
            ("latest-order", 600),
            ("oldest-new-order", 20),
        ];
        for (table, expected) in expected {
            assert_eq!(count(table), expected, "{table}");
        }
        assert!((5_500..6_500).contains(&count("order-line")), "{}", count("order-line"));
        assert_eq!(expected.iter().map(|(_, count)| count).sum::<usize>() + count("order-line"), rows.len());
    }

    #[test]
    fn a_load_can_be_repeated() {
        assert_eq!(rows(1), rows(1));
        assert_ne!(rows(1), rows(2));
    }

    #[test]
    fn everybody_is_found_by_their_last_name_in_the_order_of_first_names() {
        let rows = rows(1);
        let at = DistrictName { warehouse: 2, district: 10 };
        let mut found = BTreeSet::new();
        for last in 0..SIZE.names() {
            let value = &rows[&at.namesakes_key(&last_name(last))];
            let customers = Namesakes::parse(value).expect("a row").customers.0;
            let read = |customer: &u32| Customer::parse(&rows[&at.customer_key(*customer)]).expect("a customer");
            let firsts: Vec<Text> = customers.iter().map(|customer| read(customer).first).collect();
            assert!(!customers.is_empty() && firsts.is_sorted(), "{firsts:?}");
            assert!(customers.iter().all(|customer| read(customer).last.as_str() == last_name(last)));
            found.extend(customers);
        }
        assert_eq!(found, (1..=30).collect());
    }

    #[test]
    fn everybody_has_one_order() {
        let rows = rows(1);
        let at = DistrictName { warehouse: 1, district: 1 };
        let orders: Vec<Order> = (1..=30).map(|order| Order::parse(&rows[&at.order_key(order)]).expect("an order")).collect();
        assert_eq!(orders.iter().map(|order| order.customer).collect::<BTreeSet<_>>(), (1..=30).collect());
        assert!(orders.windows(2).any(|pair| pair[0].customer > pair[1].customer), "in no order");
        assert_eq!(orders.iter().filter(|order| order.carrier.is_none()).count(), 9);
    }
}
