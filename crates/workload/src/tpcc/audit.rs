//! The consistency conditions of TPC-C (clause 3.3.2), checked against every row after a run.
//!
//! | condition | what must be equal |
//! |---|---|
//! | 1 | what a warehouse was paid, and what its districts were paid together |
//! | 2 | a district's next order less one, its last order, its last new order |
//! | 3 | a district's new orders, and the numbers from the oldest to the last |
//! | 4 | what a district's orders say they have of lines, and the lines there are |
//! | 5 | orders without a carrier, and those with a new order |
//! | 6 | what each order says it has of lines, and the lines there are |
//! | 7 | lines that are delivered, and lines of orders that have a carrier |
//! | 8 | what a warehouse was paid, and the payments made there |
//! | 9 | what a district was paid, and the payments made there |
//! | 10 | a customer's balance, and their delivered lines less their payments |
//! | 11 | orders less new orders, and what was delivered at first and since |
//! | 12 | a customer's balance and what they paid, and their delivered lines |
//!
//! and beyond the specification, for tables that it has no condition on:
//!
//! | latest order | a customer's latest order, and the last of all orders that is theirs |
//! | oldest new order | a district's oldest new order, and the first of its orders that has no carrier |
//! | stock | what a stock says was ordered of it, and the lines that ordered it |
//!
//! Nothing here knows how rows are read: an [`Audit`] asks [`Questions`] and is told the answers, in stages, because which
//! rows there should be stands in other rows. No row is looked for by searching: order numbers have no gaps, a customer's
//! payments are numbered, and where rows should end one more is asked for, which must not be there.

mod questions;

use std::fmt::Display;

use types::Value;

use super::Size;
use super::tables::{Customer, District, DistrictName, History, LatestOrder, NewOrder, OldestNewOrder, Order, OrderLine, Stock, Warehouse};
use crate::findings::Findings;
use crate::row::{Cents, Row, row};
pub(super) use questions::{Questions, Stage};

/// The most orders of a district, and payments of a customer, that are believed: no run comes near, and nothing is asked
/// for and kept without an end because one row says so.
const NUMBERS_MAX: u32 = 10_000_000;

/// What was read so far.
#[derive(Debug)]
pub(super) struct Audit {
    size: Size,
    warehouses: Vec<WarehouseSeen>,
    districts: Vec<DistrictSeen>,
    /// By district and number.
    customers: Vec<CustomerSeen>,
    /// By warehouse and item.
    stocks: Vec<StockSeen>,
    findings: Findings,
}

#[derive(Clone, Copy, Debug, Default)]
struct WarehouseSeen {
    paid: Cents,
    payments: Cents,
}

#[derive(Clone, Debug, Default)]
struct DistrictSeen {
    paid: Cents,
    next_order: u32,
    oldest: u32,
    payments: Cents,
    /// By number.
    orders: Vec<OrderSeen>,
}

#[derive(Clone, Copy, Debug, Default)]
struct OrderSeen {
    customer: u32,
    delivered: bool,
    lines: u8,
    is_new: bool,
    /// Lines that are there, and how many of them are delivered.
    lines_there: u8,
    lines_delivered: u8,
}

#[derive(Clone, Copy, Debug, Default)]
struct CustomerSeen {
    balance: Cents,
    paid: Cents,
    payments: u32,
    deliveries: u32,
    latest_order: u32,
    payments_made: Cents,
    delivered_lines: Cents,
}

#[derive(Clone, Copy, Debug, Default)]
struct StockSeen {
    ordered: u32,
    orders: u32,
    remote_orders: u32,
    lines: u32,
    remote_lines: u32,
    quantities: u32,
}

impl Audit {
    pub(super) fn new(size: Size) -> Self {
        let districts = size.districts() as usize;
        Self {
            size,
            warehouses: vec![WarehouseSeen::default(); size.warehouses as usize],
            districts: vec![DistrictSeen::default(); districts],
            customers: vec![CustomerSeen::default(); districts * size.customers as usize],
            stocks: vec![StockSeen::default(); size.warehouses as usize * size.items as usize],
            findings: Findings::default(),
        }
    }

    /// What to ask in `stage`, all answers of the stages before being there.
    pub(super) fn questions(&self, stage: Stage) -> Questions {
        let size = self.size;
        // Nobody has none of these, so none means that nobody could say how many.
        let payments = self.customers.iter().map(|customer| u64::from(customer.payments));
        let orders = self.districts.iter().map(|district| district.orders.len() as u64);
        let lines = self.districts.iter().flat_map(|district| district.orders.iter().map(|order| u64::from(order.lines)));
        match stage {
            Stage::Payments => Questions::counted(stage, size, payments),
            Stage::Orders | Stage::NewOrders => Questions::counted(stage, size, orders),
            Stage::Lines => Questions::counted(stage, size, lines).with_orders(orders),
            _ => Questions::plain(stage, size),
        }
    }

    /// The answer to question `index`.
    pub(super) fn take(&mut self, questions: &Questions, index: u64, value: Option<Value>) {
        let question = questions.question(index);
        let taken = match questions.stage() {
            Stage::Warehouses => self.warehouse(question.group, value),
            Stage::Districts => self.district(question.group, value),
            Stage::OldestNewOrders => self.oldest(question.group, value),
            Stage::Customers => self.customer(question.group, value),
            Stage::LatestOrders => self.latest(question.group, value),
            Stage::Payments => self.payment(question.group, question.number, question.beyond, value),
            Stage::Orders => self.order(question.group, question.number, question.beyond, value),
            Stage::NewOrders => self.new_order(question.group, question.number, question.beyond, value),
            Stage::Lines => {
                let (district, order) = questions.order_of(question.group);
                self.line(district, order, question.number, question.beyond, value)
            }
            Stage::Stocks => self.stock(question.group, value),
        };
        self.findings.note(taken);
    }

    fn warehouse(&mut self, index: usize, value: Option<Value>) -> Result<(), String> {
        let row: Warehouse = row(value.as_ref(), index + 1)?;
        self.warehouses[index].paid = row.paid;
        Ok(())
    }

    fn district(&mut self, index: usize, value: Option<Value>) -> Result<(), String> {
        let name = shown(self.size.district(index as u64));
        let row: District = row(value.as_ref(), &name)?;
        let seen = &mut self.districts[index];
        (seen.paid, seen.next_order) = (row.paid, row.next_order);
        if row.next_order <= self.size.customers || row.next_order > NUMBERS_MAX {
            let began = self.size.customers + 1;
            return Err(format!("condition 2: district {name} will have order {} next, and began with {began}", row.next_order));
        }
        seen.orders = vec![OrderSeen::default(); row.next_order as usize - 1];
        Ok(())
    }

    fn oldest(&mut self, index: usize, value: Option<Value>) -> Result<(), String> {
        let row: OldestNewOrder = row(value.as_ref(), shown(self.size.district(index as u64)))?;
        self.districts[index].oldest = row.order;
        Ok(())
    }

    fn customer(&mut self, index: usize, value: Option<Value>) -> Result<(), String> {
        let row: Customer = row(value.as_ref(), self.customer_name(index))?;
        let seen = &mut self.customers[index];
        (seen.balance, seen.paid) = (row.balance, row.paid);
        seen.deliveries = row.deliveries;
        if row.payments == 0 || row.payments > NUMBERS_MAX {
            return Err(format!("customer {} made {} payments, and began with 1", self.customer_name(index), row.payments));
        }
        seen.payments = row.payments;
        Ok(())
    }

    fn latest(&mut self, index: usize, value: Option<Value>) -> Result<(), String> {
        let row: LatestOrder = row(value.as_ref(), self.customer_name(index))?;
        self.customers[index].latest_order = row.order;
        Ok(())
    }

    fn payment(&mut self, customer: usize, number: u64, beyond: bool, value: Option<Value>) -> Result<(), String> {
        let name = format!("{}/{number}", self.customer_name(customer));
        if beyond {
            return absent::<History>(value, name);
        }
        let row: History = row(value.as_ref(), &name)?;
        let at = DistrictName { warehouse: row.warehouse, district: row.district };
        let there = (1..=self.size.warehouses).contains(&at.warehouse) && (1..=super::DISTRICTS).contains(&at.district);
        if !there {
            return Err(format!("payment {name} was made at {}, which is no district", shown(at)));
        }
        let district = self.size.district_index(at);
        for payments in [
            &mut self.customers[customer].payments_made,
            &mut self.districts[district].payments,
            &mut self.warehouses[at.warehouse as usize - 1].payments,
        ] {
            *payments = Cents(payments.0.saturating_add(row.amount.0));
        }
        Ok(())
    }

    fn order(&mut self, district: usize, number: u64, beyond: bool, value: Option<Value>) -> Result<(), String> {
        let name = format!("{}/{number}", shown(self.size.district(district as u64)));
        if beyond {
            return absent::<Order>(value, name).map_err(|what| format!("condition 2: {what}"));
        }
        let row: Order = row(value.as_ref(), &name)?;
        if !(1..=self.size.customers).contains(&row.customer) {
            return Err(format!("order {name} is of customer {}, who is not there", row.customer));
        }
        let seen = &mut self.districts[district].orders[number as usize - 1];
        *seen = OrderSeen { customer: row.customer, delivered: row.carrier.is_some(), lines: row.lines, ..*seen };
        Ok(())
    }

    fn new_order(&mut self, district: usize, number: u64, beyond: bool, value: Option<Value>) -> Result<(), String> {
        let name = format!("{}/{number}", shown(self.size.district(district as u64)));
        if beyond {
            return absent::<NewOrder>(value, name).map_err(|what| format!("condition 2: {what}"));
        }
        if let Some(value) = value {
            row::<NewOrder>(Some(&value), &name)?;
            self.districts[district].orders[number as usize - 1].is_new = true;
        }
        Ok(())
    }

    fn line(&mut self, district: usize, order: usize, number: u64, beyond: bool, value: Option<Value>) -> Result<(), String> {
        let at = self.size.district(district as u64);
        let name = format!("{}/{}/{number}", shown(at), order + 1);
        if beyond {
            return absent::<OrderLine>(value, name).map_err(|what| format!("condition 6: {what}"));
        }
        // A missing line shows in the counts.
        let Some(value) = value else { return Ok(()) };
        let row: OrderLine = row(Some(&value), &name)?;
        let seen = &mut self.districts[district].orders[order];
        seen.lines_there += 1;
        if row.delivered.is_some() {
            seen.lines_delivered += 1;
            let customer = district * self.size.customers as usize + seen.customer.saturating_sub(1) as usize;
            let delivered = &mut self.customers[customer].delivered_lines;
            *delivered = Cents(delivered.0.saturating_add(row.amount.0));
        }
        // What was ordered before the tables were filled was never taken from a stock.
        if order as u32 >= self.size.customers {
            if !(1..=self.size.warehouses).contains(&row.supplier) || !(1..=self.size.items).contains(&row.item) {
                return Err(format!("order line {name} is of item {} of warehouse {}, which is not there", row.item, row.supplier));
            }
            let stock = &mut self.stocks[(row.supplier - 1) as usize * self.size.items as usize + row.item as usize - 1];
            stock.lines += 1;
            stock.remote_lines += u32::from(row.supplier != at.warehouse);
            stock.quantities += u32::from(row.quantity);
        }
        Ok(())
    }

    fn stock(&mut self, index: usize, value: Option<Value>) -> Result<(), String> {
        let row: Stock = row(value.as_ref(), self.stock_name(index))?;
        let seen = &mut self.stocks[index];
        (seen.ordered, seen.orders, seen.remote_orders) = (row.ordered, row.orders, row.remote_orders);
        Ok(())
    }

    /// What is wrong, once all is read.
    pub(super) fn findings(mut self) -> Vec<String> {
        self.check_warehouses();
        self.check_districts();
        self.check_customers();
        self.check_stocks();
        self.findings.told()
    }

    fn check_warehouses(&mut self) {
        for index in 0..self.warehouses.len() {
            let WarehouseSeen { paid, payments } = self.warehouses[index];
            let districts = super::DISTRICTS as usize;
            let of_districts: i64 = self.districts[index * districts..(index + 1) * districts].iter().map(|district| district.paid.0).sum();
            let name = index + 1;
            self.equal(1, format_args!("warehouse {name} was paid"), paid, "its districts together", Cents(of_districts));
            self.equal(8, format_args!("warehouse {name} was paid"), paid, "the payments there are", payments);
        }
    }

    fn check_districts(&mut self) {
        for index in 0..self.districts.len() {
            let seen = std::mem::take(&mut self.districts[index]);
            let at = shown(self.size.district(index as u64));
            self.equal(9, format_args!("district {at} was paid"), seen.paid, "the payments there are", seen.payments);
            let new = seen.orders.iter().filter(|order| order.is_new).count();
            let last_new = seen.orders.iter().rposition(|order| order.is_new);
            let first_new = seen.orders.iter().position(|order| order.is_new);
            if let (Some(first), Some(last)) = (first_new, last_new) {
                // Orders are delivered from the oldest on, so that the last new order is the last order, or there is none.
                self.equal(2, format_args!("district {at}'s last new order is"), last + 1, "its last order", seen.orders.len());
                self.equal(3, format_args!("district {at} has new orders:"), new, "from oldest to last", last + 1 - first);
            }
            let oldest = seen.orders.iter().position(|order| !order.delivered).map_or(seen.next_order, |order| order as u32 + 1);
            self.equal("oldest new order", format_args!("district {at} says"), seen.oldest, "the first without a carrier is", oldest);
            let (mut said, mut there) = (0_u64, 0_u64);
            for (number, order) in (1..).zip(&seen.orders) {
                said += u64::from(order.lines);
                there += u64::from(order.lines_there);
                self.check_order(&at, number, order);
            }
            self.equal(4, format_args!("orders of district {at} have lines:"), said, "there are", there);
            let customers = self.size.customers as usize;
            let deliveries: u64 =
                self.customers[index * customers..(index + 1) * customers].iter().map(|customer| u64::from(customer.deliveries)).sum();
            let delivered = u64::from(self.size.delivered()) + deliveries;
            self.equal(
                11,
                format_args!("district {at} has orders that are not new:"),
                seen.orders.len() - new,
                "delivered",
                delivered as usize,
            );
            self.districts[index] = seen;
        }
    }

    fn check_order(&mut self, at: &str, number: u32, order: &OrderSeen) {
        let OrderSeen { delivered, lines, is_new, lines_there, lines_delivered, .. } = *order;
        if delivered == is_new {
            let (carrier, new) = if delivered { ("a carrier", "a") } else { ("no carrier", "no") };
            self.findings.add(format!("condition 5: order {at}/{number} has {carrier} and {new} new order"));
        }
        self.equal(6, format_args!("order {at}/{number} has lines:"), lines, "there are", lines_there);
        let wanted = if delivered { lines_there } else { 0 };
        self.equal(7, format_args!("order {at}/{number} has delivered lines:"), lines_delivered, "by its carrier", wanted);
    }

    fn check_customers(&mut self) {
        let customers = self.size.customers as usize;
        let mut latest = vec![0_u32; self.customers.len()];
        for (district, seen) in self.districts.iter().enumerate() {
            for (number, order) in (1..).zip(&seen.orders) {
                if order.customer > 0 {
                    latest[district * customers + order.customer as usize - 1] = number;
                }
            }
        }
        for (index, last) in latest.into_iter().enumerate() {
            let seen = self.customers[index];
            let name = self.customer_name(index);
            let owed = Cents(seen.delivered_lines.0.saturating_sub(seen.payments_made.0));
            self.equal(10, format_args!("customer {name} has a balance of"), seen.balance, "deliveries less payments are", owed);
            let together = Cents(seen.balance.0.saturating_add(seen.paid.0));
            self.equal(12, format_args!("balance and payments of customer {name} are"), together, "deliveries", seen.delivered_lines);
            self.equal("latest order", format_args!("customer {name}'s is"), seen.latest_order, "of all theirs the last is", last);
        }
    }

    fn check_stocks(&mut self) {
        for index in 0..self.stocks.len() {
            let StockSeen { ordered, orders, remote_orders, lines, remote_lines, quantities } = self.stocks[index];
            let name = self.stock_name(index);
            self.equal("stock", format_args!("{name} was ordered"), ordered, "lines ordered", quantities);
            self.equal("stock", format_args!("{name} has orders:"), orders, "lines are", lines);
            self.equal("stock", format_args!("{name} has remote orders:"), remote_orders, "remote lines are", remote_lines);
        }
    }

    fn equal<T: PartialEq + Display>(&mut self, condition: impl Display, what: impl Display, is: T, other: &str, should_be: T) {
        if is != should_be {
            self.findings.add(format!("condition {condition}: {what} {is}, {other} {should_be}"));
        }
    }

    fn customer_name(&self, index: usize) -> String {
        let customers = self.size.customers as usize;
        format!("{}/{}", shown(self.size.district((index / customers) as u64)), index % customers + 1)
    }

    fn stock_name(&self, index: usize) -> String {
        let items = self.size.items as usize;
        format!("{}/{}", index / items + 1, index % items + 1)
    }
}

/// A row that must not be there.
fn absent<R: Row>(value: Option<Value>, name: impl Display) -> Result<(), String> {
    if value.is_none() { Ok(()) } else { Err(format!("{} {name} is there, though the one before should be the last", R::TABLE)) }
}

/// A district as its key has it.
fn shown(at: DistrictName) -> String {
    format!("{}/{}", at.warehouse, at.district)
}

#[cfg(test)]
mod tests;
