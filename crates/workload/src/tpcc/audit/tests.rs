//! Tables in order have nothing wrong; each condition notices the row that breaks it.

use std::collections::BTreeMap;

use types::{Key, Value};

use super::*;
use crate::findings::TOLD_MAX;
use crate::tpcc::populate::Populate;
use crate::tpcc::tables::{stock_key, warehouse_key};

const SIZE: Size = Size { warehouses: 2, items: 100, customers: 30 };
const AT: DistrictName = DistrictName { warehouse: 2, district: 3 };

/// The tables, as a load leaves them.
fn tables() -> BTreeMap<Key, Value> {
    Populate::new(SIZE, 1).parts().iter().flat_map(|part| part.all().collect::<Vec<_>>()).collect()
}

fn audit(tables: &BTreeMap<Key, Value>) -> Vec<String> {
    let mut audit = Audit::new(SIZE);
    for stage in Stage::ALL {
        let questions = audit.questions(stage);
        for index in 0..questions.count() {
            audit.take(&questions, index, tables.get(&questions.key(index)).cloned());
        }
    }
    audit.findings()
}

fn change<R: Row>(tables: &mut BTreeMap<Key, Value>, key: Key, change: impl FnOnce(&mut R)) {
    let mut row = R::parse(&tables[&key]).expect("a row");
    change(&mut row);
    tables.insert(key, row.to_value());
}

/// What the audit says of tables broken by `damage`.
#[track_caller]
fn broken(damage: impl FnOnce(&mut BTreeMap<Key, Value>), expected: &[&str]) {
    let mut tables = tables();
    damage(&mut tables);
    let findings = audit(&tables);
    for part in expected {
        assert!(findings.iter().any(|finding| finding.contains(part)), "`{part}` is missing in {findings:#?}");
    }
    assert_eq!(findings.len(), expected.len(), "{findings:#?}");
}

#[test]
fn tables_just_loaded_are_in_order() {
    assert_eq!(audit(&tables()), Vec::<String>::new());
}

#[test]
fn a_payment_that_a_warehouse_forgot_breaks_conditions_1_and_8() {
    let forget = |warehouse: &mut Warehouse| warehouse.paid.0 -= 100;
    broken(
        |tables| change(tables, warehouse_key(2), forget),
        &[
            "condition 1: warehouse 2 was paid 2999.00, its districts together 3000.00",
            "condition 8: warehouse 2 was paid 2999.00, the payments there are 3000.00",
        ],
    );
}

#[test]
fn a_payment_that_a_district_forgot_breaks_conditions_1_and_9() {
    broken(|tables| change(tables, AT.key(), |district: &mut District| district.paid.0 -= 100), &["condition 1", "condition 9"]);
}

#[test]
fn a_lost_order_number_breaks_condition_2() {
    for wrong in [30, 1, 0, u32::MAX] {
        let mut tables = tables();
        change(&mut tables, AT.key(), |district: &mut District| district.next_order = wrong);
        assert_eq!(audit(&tables)[0], format!("condition 2: district 2/3 will have order {wrong} next, and began with 31"));
    }
    // An order placed with a number that the district did not count.
    broken(
        |tables| {
            let order = tables[&AT.order_key(30)].clone();
            tables.insert(AT.order_key(31), order);
        },
        &["condition 2: tpcc/order 2/3/31 is there"],
    );
    broken(
        |tables| {
            let new = tables[&AT.new_order_key(30)].clone();
            tables.insert(AT.new_order_key(31), new);
        },
        &["condition 2: tpcc/new-order 2/3/31 is there"],
    );
}

#[test]
fn a_lost_new_order_breaks_conditions_3_5_and_11() {
    broken(
        |tables| {
            tables.remove(&AT.new_order_key(25));
        },
        &[
            "condition 3: district 2/3 has new orders: 8, from oldest to last 9",
            "condition 5: order 2/3/25 has no carrier and no new order",
            "condition 11: district 2/3 has orders that are not new: 22, delivered 21",
        ],
    );
    broken(
        |tables| {
            tables.remove(&AT.new_order_key(30));
        },
        &["condition 2: district 2/3's last new order is 29, its last order 30", "condition 5", "condition 11"],
    );
}

#[test]
fn a_lost_or_added_line_breaks_conditions_4_and_6() {
    broken(
        |tables| {
            tables.remove(&AT.line_key(30, 2));
        },
        &["condition 4", "condition 6: order 2/3/30 has lines:"],
    );
    broken(
        |tables| {
            let lines = Order::parse(&tables[&AT.order_key(30)]).expect("an order").lines;
            let line = tables[&AT.line_key(30, lines)].clone();
            tables.insert(AT.line_key(30, lines + 1), line);
        },
        &["condition 6: tpcc/order-line 2/3/30/"],
    );
}

#[test]
fn a_line_that_was_not_delivered_with_its_order_breaks_condition_7() {
    broken(
        |tables| change(tables, AT.line_key(1, 1), |line: &mut OrderLine| line.delivered = None),
        &["condition 7: order 2/3/1 has delivered lines:"],
    );
}

#[test]
fn a_lost_payment_breaks_conditions_8_9_and_10() {
    broken(
        |tables| change(tables, AT.history_key(7, 1), |history: &mut History| history.amount.0 -= 1),
        &["condition 8", "condition 9", "condition 10: customer 2/3/7 has a balance of -10.00, deliveries less payments are -9.99"],
    );
    broken(
        |tables| {
            let payment = tables[&AT.history_key(7, 1)].clone();
            tables.insert(AT.history_key(7, 2), payment);
        },
        &["tpcc/history 2/3/7/2 is there"],
    );
}

#[test]
fn a_wrong_balance_breaks_conditions_10_and_12() {
    broken(
        |tables| change(tables, AT.customer_key(7), |customer: &mut Customer| customer.balance.0 += 5),
        &["condition 10", "condition 12: balance and payments of customer 2/3/7 are 0.05, deliveries 0.00"],
    );
    broken(|tables| change(tables, AT.customer_key(7), |customer: &mut Customer| customer.paid.0 += 5), &["condition 12"]);
}

#[test]
fn a_forgotten_delivery_breaks_condition_11() {
    broken(
        |tables| change(tables, AT.customer_key(7), |customer: &mut Customer| customer.deliveries += 1),
        &["condition 11: district 2/3 has orders that are not new: 21, delivered 22"],
    );
}

#[test]
fn a_count_that_cannot_be_is_not_believed() {
    for wrong in [0, u32::MAX] {
        broken(
            |tables| change(tables, AT.customer_key(7), |customer: &mut Customer| customer.payments = wrong),
            &[&format!("customer 2/3/7 made {wrong} payments"), "condition 8", "condition 9", "condition 10"],
        );
    }
}

#[test]
fn tables_that_stand_in_for_indexes_are_checked_too() {
    broken(
        |tables| change(tables, AT.latest_order_key(7), |latest: &mut LatestOrder| latest.order += 1),
        &["condition latest order: customer 2/3/7's is"],
    );
    broken(
        |tables| change(tables, AT.oldest_new_order_key(), |oldest: &mut OldestNewOrder| oldest.order += 1),
        &["condition oldest new order: district 2/3 says 23, the first without a carrier is 22"],
    );
}

#[test]
fn a_stock_that_forgot_an_order_is_noticed() {
    broken(
        |tables| {
            change(tables, stock_key(2, 9), |stock: &mut Stock| {
                stock.ordered = 5;
                stock.orders = 1;
                stock.remote_orders = 1;
            });
        },
        &["condition stock: 2/9 was ordered 5, lines ordered 0", "2/9 has orders: 1", "2/9 has remote orders: 1"],
    );
}

#[test]
fn what_is_missing_or_no_row_is_told() {
    broken(
        |tables| {
            tables.insert(AT.history_key(7, 1), Value::from("x"));
        },
        &["condition 8", "condition 9", "condition 10", "tpcc/history 2/3/7/1 is not what was stored"],
    );
    let findings = audit(&BTreeMap::new());
    assert_eq!(findings.len(), TOLD_MAX + 1);
    assert!(findings[0].contains("tpcc/warehouse 1 is missing") && findings[TOLD_MAX].contains("more things are wrong"));
}
