//! What a bank should hold: what it held, and what its customers brought and took since.
//!
//! Deposits and checks change the money in the bank, so that its sum alone tells nothing. Each loop client notes what a transaction
//! would change before it begins, and what it did change when its end is known. What is left over at the end, and what
//! ended with nobody knowing how, may or may not have taken place: each set of such changes that explains the
//! difference will do.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::Balance;
use crate::findings::Findings;
use crate::row::Cents;

/// How many changes in doubt are tried in all combinations; of more only the least and the most they make together is known.
const DOUBTS_TRIED_MAX: usize = 200;

/// What one transaction changes, if it takes place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Change([i64; 2]);

/// What was acknowledged, and what is in doubt.
#[derive(Debug, Default)]
pub(super) struct Books(Mutex<Pages>);

#[derive(Debug, Default)]
struct Pages {
    /// What all acknowledged transactions changed together.
    settled: i64,
    /// What each loop client's transaction in flight would change.
    under_way: BTreeMap<u32, Change>,
    /// Transactions whose end nobody knows.
    lost: Vec<Change>,
}

/// How well the end is explained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Certainty {
    /// All ends are known.
    Exact,
    /// Some are not, and one way they may have ended explains it.
    InDoubt,
}

impl Change {
    /// Exactly one of these.
    pub(super) fn one_of(changes: [i64; 2]) -> Self {
        Self(changes)
    }
}

impl Books {
    /// A loop client's transaction begins.
    pub(super) fn begin(&self, loop_client: u32, change: Change) {
        self.pages().under_way.insert(loop_client, change);
    }

    /// A loop client's transaction ended, and changed this much.
    pub(super) fn settle(&self, loop_client: u32, change: i64) {
        let mut pages = self.pages();
        pages.under_way.remove(&loop_client);
        pages.settled += change;
    }

    /// Nobody knows how a loop client's transaction ended.
    pub(super) fn lose(&self, loop_client: u32) {
        let mut pages = self.pages();
        let lost = pages.under_way.remove(&loop_client);
        pages.lost.extend(lost);
    }

    /// Whether the bank can hold `after`, having held `before` at first; if not, says so.
    pub(super) fn explain(&self, before: Cents, after: Cents) -> Result<Certainty, String> {
        let pages = self.pages();
        let expected = before.0 + pages.settled;
        let doubts: Vec<Change> =
            pages.lost.iter().chain(pages.under_way.values()).filter(|change| **change != Change::default()).copied().collect();
        if !can_make(after.0 - expected, &doubts) {
            let doubt =
                if doubts.is_empty() { String::new() } else { format!(", and {} transactions in doubt do not explain it", doubts.len()) };
            return Err(format!("all accounts together hold {after} instead of {}{doubt}", Cents(expected)));
        }
        // A transaction that moves money inside the bank changes nothing, but may still be on its way.
        let in_doubt = !pages.lost.is_empty() || !pages.under_way.is_empty();
        Ok(if in_doubt { Certainty::InDoubt } else { Certainty::Exact })
    }

    fn pages(&self) -> MutexGuard<'_, Pages> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether some of `doubts`, and the others not, make `difference`.
fn can_make(difference: i64, doubts: &[Change]) -> bool {
    if doubts.len() > DOUBTS_TRIED_MAX {
        let least: i64 = doubts.iter().map(|change| change.0[0].min(change.0[1]).min(0)).sum();
        let most: i64 = doubts.iter().map(|change| change.0[0].max(change.0[1]).max(0)).sum();
        return (least..=most).contains(&difference);
    }
    let mut made = BTreeSet::from([0]);
    for Change([one, other]) in doubts {
        made = made.iter().flat_map(|sum| [*sum, sum + one, sum + other]).collect();
    }
    made.contains(&difference)
}

/// Adds accounts up, and notes what is wrong with single ones.
#[derive(Debug, Default)]
pub(super) struct Count {
    total: i128,
    findings: Findings,
}

impl Count {
    /// A savings account, which is never overdrawn.
    pub(super) fn savings(&mut self, customer: u64, read: Result<Balance, String>) {
        if let Ok(Balance { balance }) = &read
            && *balance < Cents(0)
        {
            self.findings.add(format!("savings {customer} are overdrawn: {balance}"));
        }
        self.checking(read);
    }

    /// A checking account, which may be.
    pub(super) fn checking(&mut self, read: Result<Balance, String>) {
        match read {
            Ok(Balance { balance }) => self.total += i128::from(balance.0),
            Err(what) => self.findings.add(what),
        }
    }

    /// What they hold together, and what is wrong.
    pub(super) fn end(mut self) -> (Cents, Vec<String>) {
        let total = i64::try_from(self.total).unwrap_or_else(|_| {
            self.findings.add(format!("all accounts together hold {} cents, more than any bank can", self.total));
            i64::MAX
        });
        (Cents(total), self.findings.told())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: Cents = Cents(1_000);

    #[test]
    fn what_was_acknowledged_is_expected_to_the_cent() {
        let books = Books::default();
        books.begin(0, Change::one_of([30, 30]));
        books.begin(1, Change::one_of([-5, -6]));
        books.settle(0, 30);
        books.settle(1, -6);
        assert_eq!(books.explain(BEFORE, Cents(1_024)), Ok(Certainty::Exact));
        assert_eq!(books.explain(BEFORE, Cents(1_025)), Err("all accounts together hold 10.25 instead of 10.24".to_owned()));
        books.explain(BEFORE, Cents(994)).expect_err("the deposit is lost");
        books.explain(BEFORE, Cents(1_054)).expect_err("the deposit came twice");
    }

    #[test]
    fn what_is_in_doubt_may_count_or_not_and_nothing_else_may() {
        let books = Books::default();
        for (loop_client, change) in [(0, [40, 40]), (1, [-5, -6]), (2, [7, 7])] {
            books.begin(loop_client, Change::one_of(change));
        }
        books.lose(0);
        books.lose(1);
        books.settle(2, 0);
        for total in [1_000, 1_040, 995, 994, 1_035, 1_034] {
            assert_eq!(books.explain(BEFORE, Cents(total)), Ok(Certainty::InDoubt));
        }
        for total in [1_007, 1_039, 989, 1_080, 1_001] {
            books.explain(BEFORE, Cents(total)).expect_err("no way to come to this");
        }
    }

    #[test]
    fn many_doubts_are_bounded() {
        let doubts = vec![Change::one_of([10, 10]); DOUBTS_TRIED_MAX + 1];
        assert!(can_make(2_005, &doubts) && can_make(0, &doubts) && !can_make(-1, &doubts) && !can_make(2_011, &doubts));
        let fewer = vec![Change::one_of([10, 10]); DOUBTS_TRIED_MAX];
        assert!(can_make(2_000, &fewer) && !can_make(2_001, &fewer) && !can_make(1_995, &fewer));
    }

    #[test]
    fn a_transfer_under_way_leaves_no_total_to_rely_on() {
        let books = Books::default();
        books.begin(0, Change::default());
        assert_eq!(books.explain(BEFORE, BEFORE), Ok(Certainty::InDoubt));
        books.settle(0, 0);
        assert_eq!(books.explain(BEFORE, BEFORE), Ok(Certainty::Exact));
    }

    #[test]
    fn a_broken_account_is_noticed() {
        let balance = |cents| Ok(Balance { balance: Cents(cents) });
        let mut count = Count::default();
        count.savings(0, balance(500));
        count.checking(balance(-20));
        assert_eq!(count.total, 480);
        count.savings(1, balance(-1));
        count.checking(Err("smallbank balance of checking 1 is missing".to_owned()));
        let (total, findings) = count.end();
        assert_eq!(total, Cents(479));
        assert_eq!(findings, ["savings 1 are overdrawn: -0.01", "smallbank balance of checking 1 is missing"]);
    }
}
