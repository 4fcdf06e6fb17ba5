//! The five transactions of TPC-C (clauses 2.4.2 to 2.8.2), each as few round trips as its reads allow.
//!
//! | transaction | reads, in steps that each are one request | steps |
//! |---|---|---|
//! | new-order | warehouse, district, customer, all items, all stocks | 1 |
//! | payment | (who has the last name;) warehouse, district, customer | 1 or 2 |
//! | order-status | (who has the last name;) customer, latest order; the order and its lines | 2 or 3 |
//! | delivery | each district's oldest new order; these and their orders; lines and customers | 3 |
//! | stock-level | district; its last 20 orders; their lines; their stocks | 4 |
//!
//! Read one by one ([`Reading::OneByOne`]), as the benchmark published with the paper does, each row is a step of its own.
//! To look a last name up in a transaction of its own before, so that a payment has no timestamp yet while it looks, was
//! tried and changed nothing that could be measured.
//!
//! A transaction that finds what cannot be says so before it writes anything.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;

use client::Transaction;
use types::{Key, Value};

use super::Size;
use super::plan::{LinePlan, NewOrderPlan, PaymentPlan, Plan, Who};
use super::tables::{
    Customer, DISTRICTS, District, DistrictName, History, Item, LatestOrder, Namesakes, NewOrder, OldestNewOrder, Order, OrderLine, Stock,
    Warehouse, item_key, stock_key, warehouse_key,
};
use crate::Reading;
use crate::attempt::{Stop, one_more, read, sum};
use crate::row::{Cents, Row, Text, row};

/// How many orders back a stock level looks.
const STOCK_LEVEL_ORDERS: u32 = 20;
/// The longest that is said of a customer.
const CUSTOMER_DATA_BYTES_MAX: usize = 500;

/// One attempt of `plan`.
pub(super) async fn attempt(plan: &Plan, size: Size, txn: Tx) -> Result<(), Stop> {
    match plan {
        Plan::NewOrder(plan) => new_order(&txn, plan, size).await.map(drop),
        Plan::Payment(plan) => payment(&txn, plan).await,
        Plan::OrderStatus { at, customer } => order_status(&txn, *at, customer).await.map(drop),
        Plan::Delivery { warehouse, carrier, date } => delivery(&txn, *warehouse, *carrier, *date).await.map(drop),
        Plan::StockLevel { at, threshold } => stock_level(&txn, *at, *threshold).await.map(drop),
    }
}

/// A transaction, and how it reads.
#[derive(Debug)]
pub(super) struct Tx {
    pub(super) txn: Transaction,
    pub(super) reading: Reading,
}

impl Tx {
    async fn read(&self, keys: Vec<Key>) -> Result<Answers, Stop> {
        let values = read(&self.txn, &keys, self.reading).await?;
        Ok(Answers { keys: keys.into_iter(), values: values.into_iter() })
    }

    fn put<R: Row>(&self, key: Key, row: &R) {
        self.txn.put(key, row.to_value());
    }
}

/// Rows that are read together, taken back in the order in which they were asked for.
struct Answers {
    keys: std::vec::IntoIter<Key>,
    values: std::vec::IntoIter<Option<Value>>,
}

impl Answers {
    /// The next row, which must be there.
    fn next<R: Row>(&mut self) -> Result<R, Stop> {
        let (key, value) = self.pair();
        row(value.as_ref(), Named(key)).map_err(Stop::Broken)
    }

    /// The next row, which may be missing.
    fn next_if_any<R: Row>(&mut self) -> Result<Option<R>, Stop> {
        let (key, value) = self.pair();
        value.map(|value| row(Some(&value), Named(key)).map_err(Stop::Broken)).transpose()
    }

    fn pair(&mut self) -> (Option<Key>, Option<Value>) {
        (self.keys.next(), self.values.next().flatten())
    }
}

/// A row's key in a finding.
struct Named(Option<Key>);

impl Display for Named {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.0 {
            Some(key) => write!(formatter, "({key})"),
            None => formatter.write_str("(one more than was asked for)"),
        }
    }
}

/// Places an order; gives what it costs.
async fn new_order(txn: &Tx, plan: &NewOrderPlan, size: Size) -> Result<Cents, Stop> {
    let at = plan.at;
    let items: BTreeSet<u32> = plan.lines.iter().map(|line| line.item).collect();
    let stocks: BTreeSet<(u32, u32)> =
        plan.lines.iter().filter(|line| line.item <= size.items).map(|line| (line.supplier, line.item)).collect();
    let mut keys = vec![warehouse_key(at.warehouse), at.key(), at.customer_key(plan.customer)];
    keys.extend(items.iter().map(|item| item_key(*item)));
    keys.extend(stocks.iter().map(|(supplier, item)| stock_key(*supplier, *item)));
    let mut answers = txn.read(keys).await?;
    let (warehouse, mut district, customer): (Warehouse, District, Customer) = (answers.next()?, answers.next()?, answers.next()?);
    let mut goods = BTreeMap::new();
    for item in items {
        match answers.next_if_any::<Item>()? {
            Some(found) => goods.insert(item, found),
            None if item > size.items => return Err(Stop::RollBack),
            None => return Err(Stop::Broken(format!("tpcc/item {item} is missing"))),
        };
    }
    let mut stock: BTreeMap<(u32, u32), Stock> = BTreeMap::new();
    for name in stocks {
        stock.insert(name, answers.next()?);
    }

    let order = district.next_order;
    district.next_order = one_more(order)?;
    let mut lines = Vec::with_capacity(plan.lines.len());
    let mut total = Cents(0);
    for line in &plan.lines {
        let (Some(item), Some(stock)) = (goods.get(&line.item), stock.get_mut(&(line.supplier, line.item))) else {
            return Err(Stop::Broken(format!("tpcc/item {} is there, though it should not be", line.item)));
        };
        let line = take_from_stock(stock, item, line, at)?;
        total = sum(total, line.amount)?;
        lines.push(line);
    }

    let count = u8::try_from(lines.len()).map_err(|_| Stop::Broken("an order has more than 255 lines".to_owned()))?;
    let all_local = plan.lines.iter().all(|line| line.supplier == at.warehouse);
    txn.put(at.key(), &district);
    txn.put(at.order_key(order), &Order { customer: plan.customer, entered: plan.date, carrier: None, lines: count, all_local });
    txn.put(at.new_order_key(order), &NewOrder { entered: plan.date });
    txn.put(at.latest_order_key(plan.customer), &LatestOrder { order, lines: count });
    for (number, line) in (1..).zip(&lines) {
        txn.put(at.line_key(order, number), line);
    }
    for ((supplier, item), stock) in &stock {
        txn.put(stock_key(*supplier, *item), stock);
    }
    Ok(price(total, customer.discount, warehouse.tax, district.tax))
}

/// Takes what a line of an order wants from a stock; gives the line.
fn take_from_stock(stock: &mut Stock, item: &Item, line: &LinePlan, at: DistrictName) -> Result<OrderLine, Stop> {
    let wanted = u32::from(line.quantity);
    stock.quantity = if stock.quantity >= wanted + 10 { stock.quantity - wanted } else { (stock.quantity + 91).saturating_sub(wanted) };
    stock.ordered = stock.ordered.checked_add(wanted).ok_or_else(|| Stop::Broken("a stock's count is at its end".to_owned()))?;
    stock.orders = one_more(stock.orders)?;
    if line.supplier != at.warehouse {
        stock.remote_orders = one_more(stock.remote_orders)?;
    }
    let amount = Cents(item.price.0.saturating_mul(i64::from(line.quantity)));
    let info = stock.district_info(at.district);
    Ok(OrderLine { item: line.item, supplier: line.supplier, delivered: None, quantity: line.quantity, amount, info })
}

/// What goods of `total` cost with discount and taxes, all in ten-thousandths; rounded down to a cent.
fn price(total: Cents, discount: u32, warehouse_tax: u32, district_tax: u32) -> Cents {
    let discounted = i128::from(total.0) * (10_000 - i128::from(discount));
    let taxed = discounted * (10_000 + i128::from(warehouse_tax) + i128::from(district_tax));
    Cents(i64::try_from(taxed / 100_000_000).unwrap_or(i64::MAX))
}

/// Takes a payment.
async fn payment(txn: &Tx, plan: &PaymentPlan) -> Result<(), Stop> {
    let (at, of) = (plan.at, plan.of);
    let number = find(txn, of, &plan.customer).await?;
    let mut answers = txn.read(vec![of.customer_key(number), warehouse_key(at.warehouse), at.key()]).await?;
    let (mut customer, mut warehouse, mut district): (Customer, Warehouse, District) = (answers.next()?, answers.next()?, answers.next()?);
    warehouse.paid = sum(warehouse.paid, plan.amount)?;
    district.paid = sum(district.paid, plan.amount)?;
    customer.balance = sum(customer.balance, Cents(-plan.amount.0))?;
    customer.paid = sum(customer.paid, plan.amount)?;
    customer.payments = one_more(customer.payments)?;
    if customer.bad_credit {
        customer.data = told_of(number, plan, &customer.data);
    }
    let data = Text::new(format!("{}    {}", warehouse.name, district.name));
    let history = History { warehouse: at.warehouse, district: at.district, date: plan.date, amount: plan.amount, data };
    txn.put(warehouse_key(at.warehouse), &warehouse);
    txn.put(at.key(), &district);
    txn.put(of.history_key(number, customer.payments), &history);
    txn.put(of.customer_key(number), &customer);
    Ok(())
}

/// What is said of a customer with bad credit who pays: this payment, before all that was said before.
fn told_of(customer: u32, plan: &PaymentPlan, data: &Text) -> Text {
    let PaymentPlan { at, of, amount, .. } = plan;
    let mut told = format!("{customer} {} {} {} {} {amount}|{data}", of.district, of.warehouse, at.district, at.warehouse);
    let end = (0..=CUSTOMER_DATA_BYTES_MAX).rev().find(|end| told.is_char_boundary(*end)).unwrap_or(0);
    told.truncate(end);
    Text::new(told)
}

/// The number of a customer: of all who share the last name the middle one, by first name.
async fn find(txn: &Tx, of: DistrictName, customer: &Who) -> Result<u32, Stop> {
    match customer {
        Who::Number(number) => Ok(*number),
        Who::LastName(name) => {
            let namesakes: Namesakes = txn.read(vec![of.namesakes_key(name)]).await?.next()?;
            let customers = namesakes.customers.0;
            let middle = customers.len().div_ceil(2).saturating_sub(1);
            customers.get(middle).copied().ok_or_else(|| Stop::Broken(format!("nobody is called {name} in {of:?}")))
        }
    }
}

/// Looks at a customer's latest order; gives how many of its lines are delivered.
async fn order_status(txn: &Tx, at: DistrictName, customer: &Who) -> Result<usize, Stop> {
    let number = find(txn, at, customer).await?;
    let mut answers = txn.read(vec![at.customer_key(number), at.latest_order_key(number)]).await?;
    let (_, latest): (Customer, LatestOrder) = (answers.next()?, answers.next()?);
    let mut keys = vec![at.order_key(latest.order)];
    keys.extend((1..=latest.lines).map(|line| at.line_key(latest.order, line)));
    let mut answers = txn.read(keys).await?;
    let order: Order = answers.next()?;
    if order.customer != number || order.lines != latest.lines {
        return Err(Stop::Broken(format!("order {} of {at:?} is not customer {number}'s latest, or of another length", latest.order)));
    }
    let mut delivered = 0;
    for _ in 0..latest.lines {
        delivered += usize::from(answers.next::<OrderLine>()?.delivered.is_some());
    }
    Ok(delivered)
}

/// Delivers the oldest order of each district of a warehouse; gives how many there were.
async fn delivery(txn: &Tx, warehouse: u32, carrier: u8, date: u64) -> Result<usize, Stop> {
    let districts: Vec<DistrictName> = (1..=DISTRICTS).map(|district| DistrictName { warehouse, district }).collect();
    let mut answers = txn.read(districts.iter().map(|at| at.oldest_new_order_key()).collect()).await?;
    let mut oldest = Vec::with_capacity(districts.len());
    for at in &districts {
        oldest.push((*at, answers.next::<OldestNewOrder>()?.order));
    }
    let keys = oldest.iter().flat_map(|(at, order)| [at.new_order_key(*order), at.order_key(*order)]).collect();
    let mut answers = txn.read(keys).await?;
    let mut waiting = Vec::with_capacity(oldest.len());
    for (at, number) in oldest {
        let (new, order): (Option<NewOrder>, Option<Order>) = (answers.next_if_any()?, answers.next_if_any()?);
        match (new, order) {
            (Some(_), Some(order)) => waiting.push((at, number, order)),
            // All its orders are delivered.
            (None, None) => {}
            (new, _) => {
                let (one, other) = if new.is_some() { ("new order", "order") } else { ("order", "new order") };
                return Err(Stop::Broken(format!("{one} {number} of {at:?} has no {other}")));
            }
        }
    }
    let keys = waiting.iter().flat_map(|(at, number, order)| {
        std::iter::once(at.customer_key(order.customer)).chain((1..=order.lines).map(|line| at.line_key(*number, line)))
    });
    let mut answers = txn.read(keys.collect()).await?;
    let mut delivered = Vec::with_capacity(waiting.len());
    for (at, number, order) in waiting {
        let mut customer: Customer = answers.next()?;
        let mut lines = Vec::with_capacity(usize::from(order.lines));
        for _ in 0..order.lines {
            let line: OrderLine = answers.next()?;
            customer.balance = sum(customer.balance, line.amount)?;
            lines.push(OrderLine { delivered: Some(date), ..line });
        }
        customer.deliveries = one_more(customer.deliveries)?;
        delivered.push((at, number, Order { carrier: Some(carrier), ..order }, customer, lines, one_more(number)?));
    }
    for (at, number, order, customer, lines, next) in &delivered {
        txn.txn.delete(at.new_order_key(*number));
        txn.put(at.oldest_new_order_key(), &OldestNewOrder { order: *next });
        txn.put(at.order_key(*number), order);
        txn.put(at.customer_key(order.customer), customer);
        for (line, row) in (1..).zip(lines) {
            txn.put(at.line_key(*number, line), row);
        }
    }
    Ok(delivered.len())
}

/// Counts the items of a district's last orders of which its warehouse has fewer than `threshold`.
async fn stock_level(txn: &Tx, at: DistrictName, threshold: u32) -> Result<usize, Stop> {
    let district: District = txn.read(vec![at.key()]).await?.next()?;
    let orders: Vec<u32> = (district.next_order.saturating_sub(STOCK_LEVEL_ORDERS).max(1)..district.next_order).collect();
    let mut answers = txn.read(orders.iter().map(|order| at.order_key(*order)).collect()).await?;
    let mut keys = Vec::new();
    for number in orders {
        let order: Order = answers.next()?;
        keys.extend((1..=order.lines).map(|line| at.line_key(number, line)));
    }
    let lines = keys.len();
    let mut answers = txn.read(keys).await?;
    let mut items = BTreeSet::new();
    for _ in 0..lines {
        items.insert(answers.next::<OrderLine>()?.item);
    }
    let mut answers = txn.read(items.iter().map(|item| stock_key(at.warehouse, *item)).collect()).await?;
    let mut low = 0;
    for _ in &items {
        low += usize::from(answers.next::<Stock>()?.quantity < threshold);
    }
    Ok(low)
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: DistrictName = DistrictName { warehouse: 1, district: 2 };

    fn stock(quantity: u32) -> Stock {
        Stock { quantity, info: Text::new("x".repeat(240)), ordered: 7, orders: 1, remote_orders: 0, data: Text::default() }
    }

    #[test]
    fn a_stock_is_filled_up_when_it_runs_low() {
        let item = Item { image: 1, name: Text::default(), price: Cents(250), data: Text::default() };
        for (before, wanted, after) in [(50, 10, 40), (20, 10, 10), (19, 10, 100), (10, 1, 100), (11, 1, 10)] {
            let mut stock = stock(before);
            let line = LinePlan { item: 9, supplier: 1, quantity: wanted };
            let line = take_from_stock(&mut stock, &item, &line, AT).expect("a line");
            assert_eq!((stock.quantity, stock.ordered, stock.orders, stock.remote_orders), (after, 7 + u32::from(wanted), 2, 0));
            assert_eq!((line.amount, line.delivered, line.info.as_str().len()), (Cents(250 * i64::from(wanted)), None, 24));
        }
        let mut stock = stock(50);
        take_from_stock(&mut stock, &item, &LinePlan { item: 9, supplier: 2, quantity: 1 }, AT).expect("a line");
        assert_eq!(stock.remote_orders, 1);
    }

    #[test]
    fn goods_cost_more_with_tax_and_less_with_discount() {
        assert_eq!(price(Cents(10_000), 0, 0, 0), Cents(10_000));
        assert_eq!(price(Cents(10_000), 5_000, 1_000, 1_000), Cents(6_000));
    }

    #[test]
    fn what_is_said_of_a_customer_has_an_end() {
        let plan = PaymentPlan {
            at: AT,
            of: DistrictName { warehouse: 3, district: 4 },
            customer: Who::Number(9),
            amount: Cents(12_345),
            date: 0,
        };
        let told = told_of(9, &plan, &Text::new("y".repeat(500)));
        assert!(told.as_str().starts_with("9 4 3 2 1 123.45|yyy"), "{told}");
        assert_eq!(told.as_str().len(), CUSTOMER_DATA_BYTES_MAX);
    }
}
