//! Smallbank: customers with a savings and a checking account each, and six small transactions between them.
//!
//! After Alomari, Cahill, Fekete and Röhm, "The cost of serializability on platforms that use snapshot isolation" (ICDE
//! 2008), with a million customers of whom a thousand are in nine of ten transactions, as in Basil §6.1. There are three
//! tables: `smallbank/account/<name>` holds a customer's number, `smallbank/savings/<number>` and
//! `smallbank/checking/<number>` a balance in cents. A transaction is given names, so that it reads in two steps: the
//! accounts, then all balances it needs, each step in one request.
//!
//! The mix is OLTPBench's (15 of a hundred each, 25 of them payments), or that of the paper's published
//! benchmark (60 balances, 10 each of the others, no payments).
//!
//! Every transaction changes the money in the bank by what its customer brings or takes, and the run adds this up as
//! transactions are acknowledged. At the end all accounts are read: they must hold what they held at the start and what was
//! brought since, to the cent. A transaction whose fate nobody knows may count or not. See [`books`].

mod books;

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use client::{Client, Transaction};
use rand::Rng;
use rand::rngs::SmallRng;
use serde_json::{Value as Json, json};
use types::{Key, Value};

use crate::attempt::{Stop, read, run, sum};
use crate::keys::draw_weighted;
use crate::load::{Part, load};
use crate::marker::{Marker, Sizes, sizes};
use crate::row::{Cents, Row, Text, row, rows};
use crate::sweep::sweep;
use crate::{Done, Error, LoopClient, Progress, Readiness, Reading, Verdict, Work, Workload, mix, persist, persist_put};
use books::{Books, Change};

/// The most customers.
pub const CUSTOMERS_MAX: u64 = 100_000_000;
/// What each account holds at least at first, in cents.
const BALANCE_MIN: i64 = 1_000_000;
/// And at most.
const BALANCE_MAX: i64 = 5_000_000;
/// The most a customer brings, takes or sends, in cents.
const AMOUNT_MAX: i64 = 50;
/// What it costs to write a check that is not covered, in cents.
const PENALTY: i64 = 1;
/// What says how the tables were loaded.
const MARKER: Marker = Marker("smallbank");
/// The kinds of transactions, in the order of [`Kind`].
const KINDS: [&str; 6] = ["amalgamate", "balance", "deposit-checking", "send-payment", "transact-savings", "write-check"];

/// How often each kind of transaction comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SmallbankMix {
    /// As OLTPBench has it: all six, payments more often.
    OltpBench,
    /// As the benchmark has it that was published with the paper: mostly balances, and no payments.
    Artifact,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Amalgamate,
    Balance,
    DepositChecking,
    SendPayment,
    TransactSavings,
    WriteCheck,
}

/// The Smallbank workload.
#[derive(Debug)]
pub struct Smallbank {
    customers: Customers,
    mix: SmallbankMix,
    reading: Reading,
    seed: u64,
    /// This run's name, drawn by the caller: no two runs may share it.
    run: u64,
    books: Books,
    /// What all accounts held together when the run began.
    before: OnceLock<Cents>,
}

/// How customers are chosen.
#[derive(Clone, Copy, Debug)]
struct Customers {
    count: u64,
    hot: u64,
    hot_share: f64,
}

/// What a transaction is to do, drawn before its first attempt, so that every attempt does the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Plan {
    kind: Kind,
    customer: u64,
    /// The other one, where there are two.
    other: u64,
    amount: i64,
}

rows! {
    /// Whose account a name is.
    Account of "smallbank/account" {
        /// The customer's number.
        customer: u64,
        /// The name, as a person would have it.
        name: Text,
    }

    /// What an account holds.
    Balance of "smallbank balance" {
        /// That much.
        balance: Cents,
    }

    /// What all accounts held together when somebody last looked, and who may have changed it since.
    Total of "smallbank/total" {
        /// That much.
        total: Cents,
        /// The run that last began, or 0.
        run: u64,
        /// Whether that run has ended and checked.
        checked: bool,
    }
}

impl Smallbank {
    /// A bank of `customers`, of whom `hot` are in the part `hot_share` of all transactions; `run` names this run.
    ///
    /// # Errors
    /// [`Error::Settings`] when there are too few or too many customers or hot ones, or the share is none.
    pub fn new(customers: u64, hot: u64, hot_share: f64, mix: SmallbankMix, reading: Reading, seed: u64, run: u64) -> Result<Self, Error> {
        if !(4..=CUSTOMERS_MAX).contains(&customers) {
            return Err(Error::Settings(format!("smallbank has from 4 to {CUSTOMERS_MAX} customers, not {customers}")));
        }
        if hot < 2 || hot > customers - 2 {
            return Err(Error::Settings(format!("of {customers} customers from 2 to {} are hot, not {hot}", customers - 2)));
        }
        if !(0.0..=1.0).contains(&hot_share) {
            return Err(Error::Settings(format!("a share is from 0 to 1, not {hot_share}")));
        }
        let customers = Customers { count: customers, hot, hot_share };
        Ok(Self { customers, mix, reading, seed, run, books: Books::default(), before: OnceLock::new() })
    }

    fn plan(&self, rng: &mut SmallRng) -> Plan {
        let kind = self.mix.draw(rng);
        let (customer, other) = self.customers.choose_two(rng);
        let amount = match kind {
            Kind::TransactSavings => rng.random_range(-AMOUNT_MAX..=AMOUNT_MAX),
            _ => rng.random_range(1..=AMOUNT_MAX),
        };
        Plan { kind, customer, other, amount }
    }

    fn sizes(&self) -> Sizes {
        sizes([("keys", self.customers.count)])
    }

    /// Looks what the bank holds, and writes down that a run begins.
    async fn open(&self, client: &Client) -> Result<Readiness, Error> {
        MARKER.expect(client, &self.sizes()).await?;
        let last = last_total(client).await?;
        // A run that did not get to its check has left a total that nobody knows.
        let total = if last.checked { last.total } else { self.count_money(client, &|_, _| ()).await?.0 };
        persist_put(client, total_key(), &Total { total, run: self.run, checked: false }.to_value()).await?;
        assert!(self.before.set(total).is_ok(), "a run is started once");
        Ok(Readiness::Filled)
    }

    /// Adds up all accounts; gives the sum, and what is wrong with single ones.
    async fn count_money(&self, client: &Client, progress: Progress<'_>) -> Result<(Cents, Vec<String>), Error> {
        let count = self.customers.count;
        let key = |index: u64| if index < count { savings_key(index) } else { checking_key(index - count) };
        let mut counted = books::Count::default();
        let take = |index, value: Option<Value>| {
            if index < count {
                counted.savings(index, row(value.as_ref(), format_args!("of savings {index}")));
            } else {
                counted.checking(row(value.as_ref(), format_args!("of checking {}", index - count)));
            }
        };
        sweep(client, 2 * count, key, progress, take).await?;
        Ok(counted.end())
    }

    async fn check(&self, client: &Client, progress: Progress<'_>) -> Result<Verdict, Error> {
        let before = *self.before.get().expect("a run is started before it is checked");
        let (total, mut findings) = self.count_money(client, progress).await?;
        let last = last_total(client).await?;
        if last.run != self.run {
            findings.push("another run began on these accounts meanwhile, so that nobody can tell what they should hold".to_owned());
            return Ok(Verdict::Broken(findings));
        }
        let settled = self.books.explain(before, total);
        // What nobody knows the fate of may still take place, so only a run without it leaves a total to rely on.
        if settled == Ok(books::Certainty::Exact) {
            persist_put(client, total_key(), &Total { total, run: self.run, checked: true }.to_value()).await?;
        }
        findings.extend(settled.err());
        Ok(Verdict::of(findings))
    }
}

/// What all accounts held when somebody last looked.
async fn last_total(client: &Client) -> Result<Total, Error> {
    let found = persist(client, |txn| async move { txn.get(total_key()).await }).await?;
    row(found.as_ref(), "row").map_err(Error::NotLoaded)
}

impl SmallbankMix {
    /// How often each kind comes, of a hundred, in the order of [`Kind`].
    fn weights(self) -> [u32; 6] {
        match self {
            Self::OltpBench => [15, 15, 15, 25, 15, 15],
            Self::Artifact => [10, 60, 10, 0, 10, 10],
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::OltpBench => "oltpbench",
            Self::Artifact => "artifact",
        }
    }

    fn draw(self, rng: &mut SmallRng) -> Kind {
        use Kind::*;
        let kinds = [Amalgamate, Balance, DepositChecking, SendPayment, TransactSavings, WriteCheck];
        kinds[draw_weighted(&self.weights(), rng)]
    }
}

impl Customers {
    /// Two that differ, both hot or both not, as OLTPBench has it.
    fn choose_two(&self, rng: &mut SmallRng) -> (u64, u64) {
        if rng.random_bool(self.hot_share) {
            let (one, other) = two_of(self.hot, rng);
            (self.hot(one), self.hot(other))
        } else {
            let (one, other) = two_of(self.count - self.hot, rng);
            (self.cold(one), self.cold(other))
        }
    }

    /// How far hot customers lie apart: they are spread over the table, and thus over shards.
    fn stride(&self) -> u64 {
        self.count / self.hot
    }

    fn hot(&self, rank: u64) -> u64 {
        rank * self.stride()
    }

    fn cold(&self, rank: u64) -> u64 {
        let between = self.stride() - 1;
        if rank < self.hot * between { rank / between * self.stride() + rank % between + 1 } else { rank + self.hot }
    }
}

/// Two different numbers below `count`, which is at least 2.
fn two_of(count: u64, rng: &mut SmallRng) -> (u64, u64) {
    let one = rng.random_range(0..count);
    let other = rng.random_range(0..count - 1);
    (one, if other < one { other } else { other + 1 })
}

impl Plan {
    fn only_reads(&self) -> bool {
        matches!(self.kind, Kind::Balance)
    }

    /// What the bank holds more or less when this has committed, as far as the plan tells.
    fn change(&self) -> Change {
        match self.kind {
            Kind::Balance | Kind::Amalgamate | Kind::SendPayment => Change::default(),
            Kind::DepositChecking | Kind::TransactSavings => Change::one_of([self.amount, self.amount]),
            Kind::WriteCheck => Change::one_of([-self.amount, -self.amount - PENALTY]),
        }
    }

    /// One attempt; gives what the bank holds more or less by it.
    async fn attempt(self, txn: Transaction, reading: Reading) -> Result<i64, Stop> {
        let both = matches!(self.kind, Kind::Amalgamate | Kind::SendPayment);
        let names: &[u64] = if both { &[self.customer, self.other] } else { &[self.customer] };
        let keys: Vec<Key> = names.iter().map(|name| account_key(*name)).collect();
        let mut numbers = [0; 2];
        for ((number, name), value) in numbers.iter_mut().zip(names).zip(read(&txn, &keys, reading).await?) {
            let account: Account = row(value.as_ref(), format_args!("of {}", name_of(*name))).map_err(Stop::Broken)?;
            *number = account.customer;
        }
        let [one, other] = numbers;
        match self.kind {
            Kind::Balance => {
                let [savings, checking] = balances(&txn, reading, [savings_key(one), checking_key(one)]).await?;
                sum(savings, checking)?;
                Ok(0)
            }
            Kind::DepositChecking => {
                let [checking] = balances(&txn, reading, [checking_key(one)]).await?;
                put(&txn, checking_key(one), sum(checking, Cents(self.amount))?);
                Ok(self.amount)
            }
            Kind::TransactSavings => {
                let [savings] = balances(&txn, reading, [savings_key(one)]).await?;
                let after = sum(savings, Cents(self.amount))?;
                if after < Cents(0) {
                    return Err(Stop::RollBack);
                }
                put(&txn, savings_key(one), after);
                Ok(self.amount)
            }
            Kind::WriteCheck => {
                let [savings, checking] = balances(&txn, reading, [savings_key(one), checking_key(one)]).await?;
                let covered = sum(savings, checking)? >= Cents(self.amount);
                let change = if covered { -self.amount } else { -self.amount - PENALTY };
                put(&txn, checking_key(one), sum(checking, Cents(change))?);
                Ok(change)
            }
            Kind::Amalgamate => {
                let keys = [savings_key(one), checking_key(one), checking_key(other)];
                let [savings, checking, others] = balances(&txn, reading, keys).await?;
                let after = sum(sum(savings, checking)?, others)?;
                put(&txn, savings_key(one), Cents(0));
                put(&txn, checking_key(one), Cents(0));
                put(&txn, checking_key(other), after);
                Ok(0)
            }
            Kind::SendPayment => {
                let [from, to] = balances(&txn, reading, [checking_key(one), checking_key(other)]).await?;
                if from < Cents(self.amount) {
                    return Err(Stop::RollBack);
                }
                let (from, to) = (sum(from, Cents(-self.amount))?, sum(to, Cents(self.amount))?);
                put(&txn, checking_key(one), from);
                put(&txn, checking_key(other), to);
                Ok(0)
            }
        }
    }
}

async fn balances<const N: usize>(txn: &Transaction, reading: Reading, keys: [Key; N]) -> Result<[Cents; N], Stop> {
    let mut balances = [Cents(0); N];
    for ((balance, key), value) in balances.iter_mut().zip(&keys).zip(read(txn, &keys, reading).await?) {
        *balance = row::<Balance>(value.as_ref(), format_args!("at {key}")).map_err(Stop::Broken)?.balance;
    }
    Ok(balances)
}

fn put(txn: &Transaction, key: Key, balance: Cents) {
    txn.put(key, Balance { balance }.to_value());
}

impl Workload for Smallbank {
    fn name(&self) -> &'static str {
        "smallbank"
    }

    fn settings(&self) -> BTreeMap<&'static str, Json> {
        BTreeMap::from([
            ("keys", json!(self.customers.count)),
            ("hot", json!(self.customers.hot)),
            ("hot_share", json!(self.customers.hot_share)),
            ("mix", json!(self.mix.name())),
            ("reading", json!(self.reading.name())),
            ("seed", json!(self.seed)),
        ])
    }

    fn kinds(&self) -> &'static [&'static str] {
        &KINDS
    }

    fn load<'a>(&'a self, client: &'a Arc<Client>, progress: Progress<'a>) -> Work<'a, u64> {
        let (count, seed) = (self.customers.count, self.seed);
        let account = |index| (account_key(index), account(index).to_value());
        let savings = move |index| (savings_key(index), Balance { balance: initial(seed, index, 0) }.to_value());
        let checking = move |index| (checking_key(index), Balance { balance: initial(seed, index, 1) }.to_value());
        let parts = vec![Part::rows(count, 80, account), Part::rows(count, 40, savings), Part::rows(count, 40, checking)];
        Box::pin(async move {
            MARKER.take_away(client).await?;
            let loaded = load(client, parts, progress).await?;
            let total = (0..count).map(|index| initial(seed, index, 0).0 + initial(seed, index, 1).0).sum();
            persist_put(client, total_key(), &Total { total: Cents(total), run: 0, checked: true }.to_value()).await?;
            MARKER.put(client, &self.sizes()).await?;
            Ok(loaded)
        })
    }

    fn start<'a>(&'a self, client: &'a Client, _loop_clients: u32) -> Work<'a, Readiness> {
        Box::pin(self.open(client))
    }

    fn transact<'a>(&'a self, client: &'a Client, loop_client: &'a mut LoopClient) -> Work<'a, Done> {
        let plan = self.plan(&mut loop_client.rng);
        loop_client.kind = plan.kind as usize;
        Box::pin(async move {
            self.books.begin(loop_client.index, plan.change());
            let ended = run(client, plan.only_reads(), |txn| plan.attempt(txn, self.reading)).await;
            match &ended {
                Ok((change, _)) => self.books.settle(loop_client.index, change.unwrap_or(0)),
                Err(Error::Client(client::Error::OutcomeUnknown { .. })) => self.books.lose(loop_client.index),
                Err(_) => self.books.settle(loop_client.index, 0),
            }
            Ok(ended?.1)
        })
    }

    fn check_end<'a>(&'a self, client: &'a Client, progress: Progress<'a>) -> Option<Work<'a, Verdict>> {
        Some(Box::pin(self.check(client, progress)))
    }
}

fn account(index: u64) -> Account {
    Account { customer: index, name: Text::new(name_of(index)) }
}

/// What an account of `customer` holds at first.
fn initial(seed: u64, customer: u64, which: u64) -> Cents {
    let span = (BALANCE_MAX - BALANCE_MIN).cast_unsigned() + 1;
    Cents(BALANCE_MIN + (mix(&[seed, customer, which]) % span).cast_signed())
}

fn name_of(customer: u64) -> String {
    format!("customer-{customer:08}")
}

fn account_key(customer: u64) -> Key {
    Key::from(format!("smallbank/account/{}", name_of(customer)).as_str())
}

fn savings_key(customer: u64) -> Key {
    Key::from(format!("smallbank/savings/{customer:08}").as_str())
}

fn checking_key(customer: u64) -> Key {
    Key::from(format!("smallbank/checking/{customer:08}").as_str())
}

fn total_key() -> Key {
    Key::from("smallbank/total")
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use std::collections::BTreeSet;

    fn bank(customers: u64, hot: u64, mix: SmallbankMix) -> Smallbank {
        Smallbank::new(customers, hot, 0.9, mix, Reading::Together, 1, 7).expect("a bank")
    }

    #[test]
    fn each_kind_comes_as_often_as_the_mix_says() {
        for mix in [SmallbankMix::OltpBench, SmallbankMix::Artifact] {
            let bank = bank(10_000, 100, mix);
            let mut rng = SmallRng::seed_from_u64(3);
            let mut counts = [0_u32; 6];
            (0..100_000).for_each(|_| counts[bank.plan(&mut rng).kind as usize] += 1);
            assert_eq!(mix.weights().iter().sum::<u32>(), 100);
            for (count, weight) in counts.iter().zip(mix.weights()) {
                assert!(count.abs_diff(weight * 1_000) <= 500, "{counts:?}");
                assert_eq!(*count == 0, weight == 0);
            }
        }
    }

    #[test]
    fn hot_customers_are_in_nine_of_ten_transactions() {
        let bank = bank(1_000_000, 1_000, SmallbankMix::OltpBench);
        let hot: BTreeSet<u64> = (0..1_000).map(|rank| bank.customers.hot(rank)).collect();
        assert_eq!((hot.len(), hot.last()), (1_000, Some(&999_000)));
        let mut rng = SmallRng::seed_from_u64(3);
        let mut met = 0_u32;
        for _ in 0..20_000 {
            let plan = bank.plan(&mut rng);
            assert!(plan.customer != plan.other && plan.customer.max(plan.other) < 1_000_000);
            assert_eq!(hot.contains(&plan.customer), hot.contains(&plan.other));
            met += u32::from(hot.contains(&plan.customer));
        }
        assert!(met.abs_diff(18_000) < 200, "{met}");
    }

    #[test]
    fn everybody_is_hot_or_cold_and_nobody_both() {
        for (count, hot) in [(4, 2), (10, 3), (10, 7), (100, 10), (101, 10)] {
            let customers = bank(count, hot, SmallbankMix::OltpBench).customers;
            let all: BTreeSet<u64> =
                (0..hot).map(|rank| customers.hot(rank)).chain((0..count - hot).map(|rank| customers.cold(rank))).collect();
            assert_eq!(all, (0..count).collect(), "{count} {hot}");
        }
    }

    #[test]
    fn impossible_banks_are_refused_in_words() {
        let refused = |customers, hot, share| {
            Smallbank::new(customers, hot, share, SmallbankMix::OltpBench, Reading::Together, 1, 1).expect_err("no bank").to_string()
        };
        assert!(refused(3, 2, 0.9).contains("from 4 to"));
        assert!(refused(10, 9, 0.9).contains("from 2 to 8"));
        assert!(refused(10, 1, 0.9).contains("from 2 to 8"));
        assert!(refused(10, 5, f64::NAN).contains("from 0 to 1"));
    }

    #[test]
    fn a_bank_begins_with_so_much_and_its_keys_can_be_read() {
        assert!((0..1_000).all(|customer| (BALANCE_MIN..=BALANCE_MAX).contains(&initial(1, customer, 0).0)));
        assert_ne!(initial(1, 0, 0), initial(1, 0, 1));
        assert_ne!(initial(1, 0, 0), initial(2, 0, 0));
        assert_eq!(account_key(17), Key::from("smallbank/account/customer-00000017"));
        assert_eq!(Account::parse(&account(17).to_value()), Ok(Account { customer: 17, name: Text::from("customer-00000017") }));
    }
}
