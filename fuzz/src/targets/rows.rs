//! Rows of workloads, as they come back from a store that others write to as well.

use types::Value;

use crate::Target;
use crate::bank;
use crate::row::{Cents, Row, Text};
use crate::tpcc::tables::{
    Address, Customer, District, History, Item, LatestOrder, Namesakes, NewOrder, Numbers, OldestNewOrder, Order, OrderLine, Stock,
    Warehouse,
};

pub(super) const TARGET: Target = Target {
    name: "rows",
    what: "reads a row of any table of the workloads; what is one, has that one form",
    bytes_max: 1_024,
    runs: 40_000,
    run,
    seeds,
};

fn run(bytes: &[u8]) {
    let Some((which, bytes)) = bytes.split_first() else { return };
    let Some(value) = Value::new(bytes.to_vec()) else { return };
    let checks: [fn(&Value); 13] = [
        bank::check,
        check::<Warehouse>,
        check::<District>,
        check::<Customer>,
        check::<History>,
        check::<NewOrder>,
        check::<Order>,
        check::<OrderLine>,
        check::<Item>,
        check::<Stock>,
        check::<Namesakes>,
        check::<LatestOrder>,
        check::<OldestNewOrder>,
    ];
    checks[usize::from(*which) % checks.len()](&value);
}

fn check<R: Row>(value: &Value) {
    if let Ok(row) = R::parse(value) {
        assert_eq!(row.to_value(), *value, "a row of {} has one form", R::TABLE);
    }
}

fn seeds() -> Vec<Vec<u8>> {
    let row = |which: u8, value: Value| [&[which][..], value.as_bytes()].concat();
    let text = |text: &str| Text::from(text);
    let address = Address { street_1: text("a"), street_2: text("b"), city: text("c"), state: text("DE"), zip: text("123411111") };
    vec![
        row(0, Value::from("bezant-bank 1 100 1000")),
        row(0, Value::from("00000000000000ab 8\n00000000000000ac 2")),
        row(0, Value::from("1 2 30")),
        row(1, Warehouse { name: text("w"), address, tax: 1_500, paid: Cents(-1) }.to_value()),
        row(10, Namesakes { customers: Numbers(vec![1, 2, 3]) }.to_value()),
        row(11, LatestOrder { order: 7, lines: 5 }.to_value()),
    ]
}
