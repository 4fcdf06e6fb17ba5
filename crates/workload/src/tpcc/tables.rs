//! The nine tables of TPC-C (clause 1.3), three that stand in for indexes, and the names of their rows.
//!
//! Basil has no secondary indexes, so the paper keeps tables of its own for what the specification looks up otherwise
//! (Basil §6.1): customers by last name, and a customer's latest order. Its published benchmark has a third,
//! for the oldest order of a district that is not delivered. These three come last here.

use types::Key;
use types::codec::{Decode, DecodeError, Encode, Reader, encode_sequence};

use crate::row::{Cents, Text, rows};

/// Districts of a warehouse.
pub(super) const DISTRICTS: u32 = 10;
/// The fewest lines of an order.
pub(super) const LINES_MIN: u8 = 5;
/// The most lines of an order.
pub(super) const LINES_MAX: u8 = 15;
/// Letters of the text that a stock has for each district.
const DISTRICT_INFO_BYTES: usize = 24;
/// The most customers of one last name in a district.
const NAMESAKES_MAX: usize = 3_000;

rows! {
    /// Where something is.
    Address of "address" {
        /// First line.
        street_1: Text,
        /// Second line.
        street_2: Text,
        /// City.
        city: Text,
        /// State.
        state: Text,
        /// Postal code.
        zip: Text,
    }

    /// A warehouse.
    Warehouse of "tpcc/warehouse" {
        /// Its name.
        name: Text,
        /// Where it is.
        address: Address,
        /// Sales tax, in ten-thousandths.
        tax: u32,
        /// What was paid, ever.
        paid: Cents,
    }

    /// A district of a warehouse.
    District of "tpcc/district" {
        /// Its name.
        name: Text,
        /// Where it is.
        address: Address,
        /// Sales tax, in ten-thousandths.
        tax: u32,
        /// What was paid, ever.
        paid: Cents,
        /// The number that its next order will have.
        next_order: u32,
    }

    /// A customer of a district.
    Customer of "tpcc/customer" {
        /// First name.
        first: Text,
        /// Middle name.
        middle: Text,
        /// Last name.
        last: Text,
        /// Where they live.
        address: Address,
        /// Their telephone.
        phone: Text,
        /// Since when they are one, in milliseconds since 1970.
        since: u64,
        /// Whether their credit is bad.
        bad_credit: bool,
        /// How much credit they have.
        credit_limit: Cents,
        /// Their discount, in ten-thousandths.
        discount: u32,
        /// What they owe.
        balance: Cents,
        /// What they paid, ever.
        paid: Cents,
        /// How often they paid.
        payments: u32,
        /// How many of their orders were delivered since the tables were filled.
        deliveries: u32,
        /// What there is to say of them.
        data: Text,
    }

    /// A payment.
    History of "tpcc/history" {
        /// The warehouse it was made at.
        warehouse: u32,
        /// The district it was made at.
        district: u32,
        /// When, in milliseconds since 1970.
        date: u64,
        /// How much.
        amount: Cents,
        /// What there is to say of it.
        data: Text,
    }

    /// An order that is not delivered.
    NewOrder of "tpcc/new-order" {
        /// When it came in, in milliseconds since 1970.
        entered: u64,
    }

    /// An order.
    Order of "tpcc/order" {
        /// Whose.
        customer: u32,
        /// When it came in, in milliseconds since 1970.
        entered: u64,
        /// Who delivered it, if it is.
        carrier: Option<u8>,
        /// How many lines it has.
        lines: u8,
        /// Whether all of it comes from the warehouse it was placed at.
        all_local: bool,
    }

    /// A line of an order.
    OrderLine of "tpcc/order-line" {
        /// What.
        item: u32,
        /// The warehouse it comes from.
        supplier: u32,
        /// When it was delivered, if it is, in milliseconds since 1970.
        delivered: Option<u64>,
        /// How many.
        quantity: u8,
        /// What they cost together.
        amount: Cents,
        /// What the stock has to say for the district.
        info: Text,
    }

    /// Something that is sold.
    Item of "tpcc/item" {
        /// Its picture.
        image: u32,
        /// Its name.
        name: Text,
        /// What one costs.
        price: Cents,
        /// What there is to say of it.
        data: Text,
    }

    /// How much of an item a warehouse has.
    Stock of "tpcc/stock" {
        /// So many.
        quantity: u32,
        /// A text for each district, one after another.
        info: Text,
        /// How many were ordered, ever.
        ordered: u32,
        /// In how many lines of orders.
        orders: u32,
        /// How many of these lines came from other warehouses.
        remote_orders: u32,
        /// What there is to say of it.
        data: Text,
    }

    /// Who has this last name in a district: their numbers, in the order of their first names.
    Namesakes of "tpcc/customer-by-name" {
        /// All of them.
        customers: Numbers,
    }

    /// A customer's latest order.
    LatestOrder of "tpcc/latest-order" {
        /// Its number.
        order: u32,
        /// How many lines it has, so that they can be read together with it.
        lines: u8,
    }

    /// The oldest order of a district that is not delivered.
    OldestNewOrder of "tpcc/oldest-new-order" {
        /// Its number; that of the next order when all are delivered.
        order: u32,
    }
}

/// A bounded list of numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Numbers(pub(crate) Vec<u32>);

impl Encode for Numbers {
    fn encode(&self, out: &mut Vec<u8>) {
        encode_sequence(&self.0, out);
    }
}

impl Decode for Numbers {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        reader.sequence("a list of namesakes", NAMESAKES_MAX).map(Self)
    }
}

impl Stock {
    /// The text for a district of the ordering warehouse.
    pub(super) fn district_info(&self, district: u32) -> Text {
        let text = self.info.as_str();
        let from = (district as usize).saturating_sub(1) * DISTRICT_INFO_BYTES;
        text.get(from..from + DISTRICT_INFO_BYTES).map_or_else(Text::default, Text::from)
    }
}

/// How many letters the text of a stock for all districts has.
pub(super) const STOCK_INFO_BYTES: usize = DISTRICT_INFO_BYTES * DISTRICTS as usize;

/// The name of a district: its warehouse and its number there, both counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct DistrictName {
    pub(super) warehouse: u32,
    pub(super) district: u32,
}

impl DistrictName {
    pub(super) fn key(self) -> Key {
        self.named("district")
    }

    pub(super) fn oldest_new_order_key(self) -> Key {
        self.named("oldest-new-order")
    }

    pub(super) fn customer_key(self, customer: u32) -> Key {
        self.within("customer", customer)
    }

    pub(super) fn history_key(self, customer: u32, payment: u32) -> Key {
        text(format!("tpcc/history/{}/{}/{customer}/{payment}", self.warehouse, self.district))
    }

    pub(super) fn order_key(self, order: u32) -> Key {
        self.within("order", order)
    }

    pub(super) fn new_order_key(self, order: u32) -> Key {
        self.within("new-order", order)
    }

    pub(super) fn line_key(self, order: u32, line: u8) -> Key {
        text(format!("tpcc/order-line/{}/{}/{order}/{line}", self.warehouse, self.district))
    }

    pub(super) fn namesakes_key(self, last_name: &str) -> Key {
        text(format!("tpcc/customer-by-name/{}/{}/{last_name}", self.warehouse, self.district))
    }

    pub(super) fn latest_order_key(self, customer: u32) -> Key {
        self.within("latest-order", customer)
    }

    fn named(self, table: &str) -> Key {
        text(format!("tpcc/{table}/{}/{}", self.warehouse, self.district))
    }

    fn within(self, table: &str, number: u32) -> Key {
        text(format!("tpcc/{table}/{}/{}/{number}", self.warehouse, self.district))
    }
}

pub(super) fn warehouse_key(warehouse: u32) -> Key {
    text(format!("tpcc/warehouse/{warehouse}"))
}

pub(super) fn item_key(item: u32) -> Key {
    text(format!("tpcc/item/{item}"))
}

pub(super) fn stock_key(warehouse: u32, item: u32) -> Key {
    text(format!("tpcc/stock/{warehouse}/{item}"))
}

fn text(text: String) -> Key {
    Key::new(text.into_bytes()).expect("names of rows are short")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::Row;

    #[test]
    fn keys_can_be_read() {
        let district = DistrictName { warehouse: 3, district: 7 };
        let keys = [
            (warehouse_key(3), "tpcc/warehouse/3"),
            (district.key(), "tpcc/district/3/7"),
            (district.customer_key(42), "tpcc/customer/3/7/42"),
            (district.history_key(42, 1), "tpcc/history/3/7/42/1"),
            (district.order_key(3_001), "tpcc/order/3/7/3001"),
            (district.new_order_key(3_001), "tpcc/new-order/3/7/3001"),
            (district.line_key(3_001, 15), "tpcc/order-line/3/7/3001/15"),
            (item_key(9), "tpcc/item/9"),
            (stock_key(3, 9), "tpcc/stock/3/9"),
            (district.namesakes_key("BARBARBAR"), "tpcc/customer-by-name/3/7/BARBARBAR"),
            (district.latest_order_key(42), "tpcc/latest-order/3/7/42"),
            (district.oldest_new_order_key(), "tpcc/oldest-new-order/3/7"),
        ];
        for (key, text) in keys {
            assert_eq!(key, Key::from(text));
        }
    }

    #[test]
    fn a_stock_has_a_text_for_each_district() {
        let info: String = ('a'..='j').flat_map(|letter| std::iter::repeat_n(letter, DISTRICT_INFO_BYTES)).collect();
        let stock = Stock { quantity: 1, info: Text::from(info.as_str()), ordered: 0, orders: 0, remote_orders: 0, data: Text::default() };
        assert_eq!(info.len(), STOCK_INFO_BYTES);
        assert_eq!(stock.district_info(1).as_str(), "a".repeat(DISTRICT_INFO_BYTES));
        assert_eq!(stock.district_info(10).as_str(), "j".repeat(DISTRICT_INFO_BYTES));
        assert_eq!(stock.district_info(11), Text::default());
        assert_eq!(Stock::parse(&stock.to_value()), Ok(stock));
    }

    #[test]
    fn a_list_of_namesakes_is_bounded() {
        let long = Namesakes { customers: Numbers(vec![1; NAMESAKES_MAX + 1]) };
        assert_eq!(Namesakes::parse(&long.to_value()), Err(DecodeError::OverLimit("a list of namesakes")));
        let whole = Namesakes { customers: Numbers((1..=NAMESAKES_MAX as u32).collect()) };
        assert_eq!(Namesakes::parse(&whole.to_value()), Ok(whole));
    }
}
