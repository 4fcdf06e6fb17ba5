//! The bank's records and what they add up to. Pure: no store, no files.

use types::Value;

/// How a bank's head begins: its name and the version of everything under `bank/`.
const FORMAT: &str = "bezant-bank 1";
/// The most runs a bank remembers; after so many it must be loaded anew.
const RUNS_MAX: usize = 1_000;
/// The most loop clients a run may have.
const LOOP_CLIENTS_MAX: u32 = 99_999;

/// What a bank was founded with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Meta {
    pub(super) accounts: u64,
    pub(super) initial: u64,
}

/// One run of transfers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) name: u64,
    pub(super) loop_clients: u32,
}

/// All runs since the bank was founded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Runs(pub(super) Vec<Run>);

/// A transfer, as its record says: how much went from where to where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Transfer {
    pub(super) from: u64,
    pub(super) to: u64,
    pub(super) moved: u64,
}

/// The balances that records lead to.
#[derive(Clone, Debug)]
pub(super) struct Ledger {
    balances: Vec<i128>,
    transfers: u64,
}

impl Meta {
    pub(super) fn to_value(self) -> Value {
        Value::from(format!("{FORMAT} {} {}", self.accounts, self.initial).as_str())
    }

    pub(super) fn parse(value: &Value) -> Result<Self, String> {
        let wrong = || format!("bank/meta is '{value}', which this version does not know");
        let rest = text(value).and_then(|text| text.strip_prefix(FORMAT)).ok_or_else(wrong)?;
        let [accounts, initial] = numbers(rest).ok_or_else(wrong)?;
        if !(super::ACCOUNTS_MIN..=super::ACCOUNTS_MAX).contains(&accounts) {
            return Err(wrong());
        }
        Ok(Self { accounts, initial })
    }
}

impl Runs {
    pub(super) fn add(&mut self, run: Run) -> Result<(), String> {
        // The same run once more is its own enrolment, tried again because its acknowledgement was lost.
        if self.0.contains(&run) {
            return Ok(());
        }
        if self.0.len() >= RUNS_MAX {
            return Err(format!("the store's bank has seen {RUNS_MAX} runs"));
        }
        self.0.push(run);
        Ok(())
    }

    pub(super) fn to_value(&self) -> Value {
        let lines: Vec<String> = self.0.iter().map(|run| format!("{:016x} {}", run.name, run.loop_clients)).collect();
        Value::from(lines.join("\n").as_str())
    }

    pub(super) fn parse(value: &Value) -> Result<Self, String> {
        let wrong = || "bank/runs is not a list of runs".to_owned();
        let mut runs = Vec::new();
        for line in text(value).ok_or_else(wrong)?.lines().take(RUNS_MAX) {
            let (name, loop_clients) = line.split_once(' ').ok_or_else(wrong)?;
            let name = u64::from_str_radix(name, 16).map_err(|_| wrong())?;
            let loop_clients = loop_clients.parse().ok().filter(|loop_clients| *loop_clients <= LOOP_CLIENTS_MAX).ok_or_else(wrong)?;
            runs.push(Run { name, loop_clients });
        }
        Ok(Self(runs))
    }
}

impl Transfer {
    pub(super) fn to_value(self) -> Value {
        Value::from(format!("{} {} {}", self.from, self.to, self.moved).as_str())
    }

    pub(super) fn parse(value: &Value) -> Option<Self> {
        let [from, to, moved] = numbers(text(value)?)?;
        Some(Self { from, to, moved })
    }
}

impl Ledger {
    pub(super) fn new(meta: Meta) -> Self {
        Self { balances: vec![i128::from(meta.initial); meta.accounts as usize], transfers: 0 }
    }

    /// How many transfers were applied.
    pub(super) fn transfers(&self) -> u64 {
        self.transfers
    }

    /// Applies a record. The order of records does not matter, as sums do not care.
    pub(super) fn apply(&mut self, record: &Value) -> Result<(), String> {
        let transfer = Transfer::parse(record).ok_or_else(|| format!("'{record}' is no transfer"))?;
        let (Ok(from), Ok(to)) = (usize::try_from(transfer.from), usize::try_from(transfer.to)) else {
            return Err(format!("'{record}' names an account that is not there"));
        };
        if from >= self.balances.len() || to >= self.balances.len() || from == to {
            return Err(format!("'{record}' names an account that is not there"));
        }
        self.balances[from] -= i128::from(transfer.moved);
        self.balances[to] += i128::from(transfer.moved);
        self.transfers += 1;
        Ok(())
    }

    /// What does not agree between the replayed balances and the stored ones, in words.
    pub(super) fn compare(&self, stored: &[Option<u64>]) -> Vec<String> {
        let different = |(account, (replayed, stored)): (usize, (&i128, &Option<u64>))| match stored {
            Some(stored) if i128::from(*stored) == *replayed => None,
            Some(stored) => Some(format!("account {account} holds {stored}, but its transfers lead to {replayed}")),
            None => Some(format!("account {account} holds no balance")),
        };
        self.balances.iter().zip(stored).enumerate().filter_map(different).collect()
    }
}

/// Checks that all accounts are there and hold together what they held at first.
pub(super) fn check_sum(meta: Meta, balances: &[Option<u64>]) -> Result<(), String> {
    let mut sum = 0_u128;
    for (account, balance) in balances.iter().enumerate() {
        sum += u128::from(balance.ok_or_else(|| format!("account {account} holds no balance"))?);
    }
    let expected = u128::from(meta.accounts) * u128::from(meta.initial);
    if sum == expected { Ok(()) } else { Err(format!("all accounts together hold {sum} instead of {expected}")) }
}

pub(super) fn parse_balance(value: &Value) -> Option<u64> {
    let [balance] = numbers(text(value)?)?;
    Some(balance)
}

fn text(value: &Value) -> Option<&str> {
    std::str::from_utf8(value.as_bytes()).ok()
}

fn numbers<const N: usize>(text: &str) -> Option<[u64; N]> {
    let mut words = text.split_ascii_whitespace();
    let mut numbers = [0; N];
    for number in &mut numbers {
        *number = words.next()?.parse().ok()?;
    }
    words.next().is_none().then_some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    const META: Meta = Meta { accounts: 3, initial: 100 };

    fn ledger(transfers: &[(u64, u64, u64)]) -> Ledger {
        let mut ledger = Ledger::new(META);
        for (from, to, moved) in transfers {
            ledger.apply(&Transfer { from: *from, to: *to, moved: *moved }.to_value()).expect("a transfer");
        }
        ledger
    }

    #[test]
    fn records_add_up_to_balances_in_any_order() {
        let stored = [Some(70), Some(120), Some(110)];
        assert!(ledger(&[(0, 1, 30), (1, 2, 10)]).compare(&stored).is_empty());
        assert!(ledger(&[(1, 2, 10), (0, 1, 30)]).compare(&stored).is_empty());
        check_sum(META, &stored).expect("300 in all");
    }

    #[test]
    fn a_lost_or_doubled_transfer_shows() {
        let stored = [Some(70), Some(130), Some(100)];
        assert_eq!(ledger(&[]).compare(&stored).len(), 2);
        assert_eq!(
            ledger(&[(0, 1, 30), (0, 1, 30)]).compare(&stored),
            ["account 0 holds 70, but its transfers lead to 40", "account 1 holds 130, but its transfers lead to 160"]
        );
    }

    #[test]
    fn half_a_transfer_shows_in_the_sum() {
        let found = check_sum(META, &[Some(70), Some(100), Some(100)]).expect_err("30 are gone");
        assert_eq!(found, "all accounts together hold 270 instead of 300");
        assert_eq!(check_sum(META, &[Some(100), None, Some(100)]).expect_err("one is gone"), "account 1 holds no balance");
    }

    #[test]
    fn what_is_no_transfer_is_told() {
        for wrong in ["", "1 2", "0 1 2 3", "0 0 5", "0 3 5", "0 1 -5", "0 1 x", "18446744073709551615 0 1"] {
            Ledger::new(META).apply(&Value::from(wrong)).expect_err(wrong);
        }
        Ledger::new(META).apply(&Value::new(vec![0xff]).expect("a byte")).expect_err("not even text");
    }

    #[test]
    fn heads_are_read_as_they_were_written() {
        assert_eq!(Meta::parse(&META.to_value()), Ok(META));
        let mut runs = Runs::default();
        assert_eq!(Runs::parse(&runs.to_value()), Ok(runs.clone()));
        runs.add(Run { name: u64::MAX, loop_clients: 32 }).expect("room");
        runs.add(Run { name: 1, loop_clients: 1 }).expect("room");
        runs.add(Run { name: 1, loop_clients: 1 }).expect("the same again");
        assert_eq!(runs.0.len(), 2);
        assert_eq!(Runs::parse(&runs.to_value()), Ok(runs));
        for wrong in ["bezant-bank 2 10 10", "bezant-bank 1 10", "bezant-bank 1 1 10", "bezant-bank 1 99999999 10"] {
            Meta::parse(&Value::from(wrong)).expect_err(wrong);
        }
        for wrong in ["x 1", "1", "1 100000", "1 -1"] {
            Runs::parse(&Value::from(wrong)).expect_err(wrong);
        }
    }

    #[test]
    fn a_bank_remembers_so_many_runs_and_no_more() {
        let mut runs = Runs::default();
        for name in 0..RUNS_MAX as u64 {
            runs.add(Run { name, loop_clients: 1 }).expect("room");
        }
        runs.add(Run { name: u64::MAX, loop_clients: 1 }).expect_err("no room");
    }
}
