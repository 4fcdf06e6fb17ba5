//! Which rows an audit asks for, as one long list for each stage.

use types::Key;

use super::Size;
use crate::tpcc::tables::{stock_key, warehouse_key};

/// What is read in one go. The order matters: what a stage asks for stands in rows of the stages before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::tpcc) enum Stage {
    Warehouses,
    Districts,
    OldestNewOrders,
    Customers,
    LatestOrders,
    /// Of each customer as many as they say they made, and one more.
    Payments,
    /// Of each district as many as it says it has, and one more.
    Orders,
    /// The same, though most are not new any more.
    NewOrders,
    /// Of each order as many as it says it has, and one more.
    Lines,
    Stocks,
}

impl Stage {
    /// All of them, in their order.
    pub(in crate::tpcc) const ALL: [Self; 10] = [
        Self::Warehouses,
        Self::Districts,
        Self::OldestNewOrders,
        Self::Customers,
        Self::LatestOrders,
        Self::Payments,
        Self::Orders,
        Self::NewOrders,
        Self::Lines,
        Self::Stocks,
    ];
}

/// The questions of a stage: groups, each with so many numbered rows and one beyond, or one row each.
#[derive(Clone, Debug)]
pub(in crate::tpcc) struct Questions {
    stage: Stage,
    size: Size,
    shape: Shape,
    /// For lines: where each district's orders end in the list of all orders.
    order_ends: Vec<u64>,
}

#[derive(Clone, Debug)]
enum Shape {
    /// So many groups of one row.
    Plain(u64),
    /// Where each group's questions end in the list.
    Counted(Vec<u64>),
}

/// What a question is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Question {
    pub(super) group: usize,
    /// From 1.
    pub(super) number: u64,
    /// Whether the row should not be there.
    pub(super) beyond: bool,
}

impl Questions {
    pub(super) fn plain(stage: Stage, size: Size) -> Self {
        let customers = size.districts() * u64::from(size.customers);
        let count = match stage {
            Stage::Warehouses => u64::from(size.warehouses),
            Stage::Districts | Stage::OldestNewOrders => size.districts(),
            Stage::Customers | Stage::LatestOrders => customers,
            Stage::Stocks => u64::from(size.warehouses) * u64::from(size.items),
            Stage::Payments | Stage::Orders | Stage::NewOrders | Stage::Lines => 0,
        };
        Self { stage, size, shape: Shape::Plain(count), order_ends: Vec::new() }
    }

    /// Groups of so many rows each; of a group of none nothing is asked.
    pub(super) fn counted(stage: Stage, size: Size, counts: impl Iterator<Item = u64>) -> Self {
        let and_beyond = counts.map(|count| if count == 0 { 0 } else { count + 1 });
        Self { stage, size, shape: Shape::Counted(ends(and_beyond)), order_ends: Vec::new() }
    }

    /// The same, with what is needed to find an order's district.
    pub(super) fn with_orders(self, orders: impl Iterator<Item = u64>) -> Self {
        Self { order_ends: ends(orders), ..self }
    }

    pub(super) fn stage(&self) -> Stage {
        self.stage
    }

    /// How many questions there are.
    pub(in crate::tpcc) fn count(&self) -> u64 {
        match &self.shape {
            Shape::Plain(count) => *count,
            Shape::Counted(ends) => ends.last().copied().unwrap_or(0),
        }
    }

    /// The row that question `index` asks for.
    pub(in crate::tpcc) fn key(&self, index: u64) -> Key {
        let Question { group, number, .. } = self.question(index);
        let within = |groups: u32| (group as u64 / u64::from(groups), (group as u64 % u64::from(groups)) as u32 + 1);
        // Rows are numbered far below 2^32; one that is not would be another row that is not there.
        let row = u32::try_from(number).unwrap_or(u32::MAX);
        match self.stage {
            Stage::Warehouses => warehouse_key(group as u32 + 1),
            Stage::Districts => self.size.district(group as u64).key(),
            Stage::OldestNewOrders => self.size.district(group as u64).oldest_new_order_key(),
            Stage::Customers | Stage::LatestOrders | Stage::Payments => {
                let (district, customer) = within(self.size.customers);
                let at = self.size.district(district);
                match self.stage {
                    Stage::Customers => at.customer_key(customer),
                    Stage::LatestOrders => at.latest_order_key(customer),
                    _ => at.history_key(customer, row),
                }
            }
            Stage::Orders => self.size.district(group as u64).order_key(row),
            Stage::NewOrders => self.size.district(group as u64).new_order_key(row),
            Stage::Lines => {
                let (district, order) = self.order_of(group);
                let line = u8::try_from(number).unwrap_or(u8::MAX);
                self.size.district(district as u64).line_key(order as u32 + 1, line)
            }
            Stage::Stocks => {
                let (warehouse, item) = within(self.size.items);
                stock_key(warehouse as u32 + 1, item)
            }
        }
    }

    /// What question `index` is about.
    pub(super) fn question(&self, index: u64) -> Question {
        match &self.shape {
            Shape::Plain(_) => Question { group: index as usize, number: 1, beyond: false },
            Shape::Counted(ends) => {
                let (group, from) = find(ends, index);
                Question { group, number: index - from + 1, beyond: index + 1 == ends[group] }
            }
        }
    }

    /// The district of an order in the list of all orders, and where it stands there.
    pub(super) fn order_of(&self, order: usize) -> (usize, usize) {
        let (district, from) = find(&self.order_ends, order as u64);
        (district, order - from as usize)
    }
}

/// Running sums.
fn ends(counts: impl Iterator<Item = u64>) -> Vec<u64> {
    counts
        .scan(0, |end, count| {
            *end += count;
            Some(*end)
        })
        .collect()
}

/// The group that `index` falls into, and where that begins.
fn find(ends: &[u64], index: u64) -> (usize, u64) {
    let group = ends.partition_point(|end| *end <= index);
    (group, if group == 0 { 0 } else { ends[group - 1] })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: Size = Size { warehouses: 1, items: 100, customers: 30 };

    #[test]
    fn each_group_is_asked_for_its_rows_and_one_beyond() {
        let questions = Questions::counted(Stage::Orders, SIZE, [2, 0, 1].into_iter());
        let asked: Vec<(usize, u64, bool)> =
            (0..questions.count()).map(|index| questions.question(index)).map(|one| (one.group, one.number, one.beyond)).collect();
        assert_eq!(asked, [(0, 1, false), (0, 2, false), (0, 3, true), (2, 1, false), (2, 2, true)]);
        assert_eq!(questions.key(3), Key::from("tpcc/order/1/3/1"));
    }

    #[test]
    fn lines_know_their_orders() {
        let lines = [5, 6, 7].into_iter();
        let questions = Questions::counted(Stage::Lines, SIZE, lines).with_orders([2, 0, 1].into_iter());
        assert_eq!([0, 1, 2].map(|order| questions.order_of(order)), [(0, 0), (0, 1), (2, 0)]);
        assert_eq!(questions.key(5), Key::from("tpcc/order-line/1/1/1/6"));
        assert_eq!(questions.key(6), Key::from("tpcc/order-line/1/1/2/1"));
        assert_eq!(questions.key(13), Key::from("tpcc/order-line/1/3/1/1"));
    }
}
