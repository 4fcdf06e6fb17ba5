//! What honest clients do: small transactions, some in one request and some in several.

use std::collections::BTreeMap;

use engine::Operation;
use random::Random;
use types::{Direction, Key, KeyRange, Value};

use crate::application::keys::{
    ACCOUNTS, BALANCE, COUNTERS, OPEN, account, accounts, counter, fixed_keys, log, log_entry, number, open, tagged,
};

/// How many entries a burst has at most: more than may be under way at once are none.
const BURST_MAX: u64 = 12;

/// What one task means to do.
#[derive(Clone, Debug)]
pub(super) enum Plan {
    /// Reads two accounts and moves money between them.
    Transfer { from: u64, to: u64, amount: i64 },
    /// Reads a counter and adds one.
    Increment { counter: u64 },
    /// Reads and writes two open places at once.
    Swap { first: u64, second: u64 },
    /// Writes an open place without reading it, and another or deletes it.
    Blind { first: u64, second: u64, deletes: bool },
    /// Writes a counter if it is still what this client saw last.
    Replace { counter: u64 },
    /// Adds entries to the log, each a transaction of its own, all under way at once.
    Burst { entries: u64 },
    /// Reads the first entries of a part of the log, or the last.
    Scan { from: u64, direction: Direction, limit: usize },
    /// Reads all accounts at once.
    Audit,
    /// Reads a counter, then an account, and commits what it saw.
    Look { counter: u64, account: u64 },
    /// Reads all there is but the log at once: the last task of a run, before it reads the log.
    Everything,
}

/// How a task goes on.
#[derive(Debug)]
pub(super) enum Step {
    /// It wants to know these keys.
    Read(Vec<Key>),
    /// It wants to know the keys of a range that have values, from one of its ends.
    Scan(KeyRange, Direction, usize),
    /// It has all operations of these transactions.
    Submit(Vec<Vec<Operation>>),
    /// It commits what it read, and these writes.
    Commit(Vec<(Key, Option<Value>)>),
}

impl Plan {
    pub fn draw(random: &mut Random) -> Self {
        match random.below(100) {
            0..20 => Self::draw_contended(random),
            20..40 => Self::Swap { first: random.below(OPEN), second: random.below(OPEN) },
            40..50 => Self::Blind { first: random.below(OPEN), second: random.below(OPEN), deletes: random.chance(300) },
            50..60 => Self::Replace { counter: random.below(COUNTERS) },
            60..70 => Self::Burst { entries: random.between(1, BURST_MAX) },
            70..80 => Self::Scan {
                from: random.below(1_000),
                direction: random.pick(&[Direction::Ascending, Direction::Descending]),
                limit: random.pick(&[1, 3, 1_000]),
            },
            80..90 => Self::Audit,
            _ => Self::Look { counter: random.below(COUNTERS), account: random.below(ACCOUNTS) },
        }
    }

    /// One that reads and writes what others want too: what progress is measured by.
    pub fn draw_contended(random: &mut Random) -> Self {
        if random.chance(500) {
            return Self::Increment { counter: random.below(COUNTERS) };
        }
        let from = random.below(ACCOUNTS);
        let to = (from + 1 + random.below(ACCOUNTS - 1)) % ACCOUNTS;
        Self::Transfer { from, to, amount: i64::try_from(random.between(1, 9)).expect("small") }
    }

    /// Goes on with what it `knows`, and what its client `saw` last in earlier tasks. Writes under `tag`.
    pub fn advance(&self, knows: &BTreeMap<Key, Option<Value>>, saw: &BTreeMap<Key, Option<Value>>, tag: &str) -> Step {
        let get = |key: Key| Operation::Get(key);
        let put = |key: Key, place: usize| Operation::Put(key, tagged(0, &format!("{tag}-{place}")));
        let number_of = |key: &Key, at_first: i64| number(knows.get(key).and_then(Option::as_ref)).unwrap_or(at_first);
        let missing = |keys: &[Key]| keys.iter().any(|key| !knows.contains_key(key)).then(|| Step::Read(keys.to_vec()));
        match *self {
            Self::Transfer { from, to, amount } => {
                let places = [(account(from), -amount), (account(to), amount)];
                let write = |(key, change): &(Key, i64)| (key.clone(), Some(tagged(number_of(key, BALANCE) + change, tag)));
                missing(&[account(from), account(to)]).unwrap_or_else(|| Step::Commit(places.iter().map(write).collect()))
            }
            Self::Increment { counter: which } => {
                let key = counter(which);
                let next = tagged(number_of(&key, 0) + 1, tag);
                missing(std::slice::from_ref(&key)).unwrap_or_else(|| Step::Commit(vec![(key, Some(next))]))
            }
            Self::Swap { first, second } if first == second => Step::Submit(vec![vec![get(open(first)), put(open(first), 0)]]),
            Self::Swap { first, second } => {
                Step::Submit(vec![vec![get(open(first)), get(open(second)), put(open(first), 0), put(open(second), 1)]])
            }
            Self::Blind { first, second, deletes } => {
                let mut operations = vec![put(open(first), 0)];
                if second != first {
                    operations.push(if deletes { Operation::Delete(open(second)) } else { put(open(second), 1) });
                }
                Step::Submit(vec![operations])
            }
            Self::Replace { counter: which } => {
                let key = counter(which);
                let last = saw.get(&key).cloned().unwrap_or_default();
                let next = tagged(number(last.as_ref()).unwrap_or(0) + 1, tag);
                Step::Submit(vec![vec![Operation::Compare(key.clone(), last), Operation::Put(key, next)]])
            }
            Self::Burst { entries } => {
                let put = |one: u64| Operation::Put(log_entry(tag, one), tagged(0, &format!("{tag}-{one}")));
                Step::Submit((0..entries).map(|one| vec![put(one)]).collect())
            }
            Self::Scan { from, direction, limit } => Step::Scan(log(from), direction, limit),
            Self::Audit => missing(&accounts()).unwrap_or(Step::Commit(Vec::new())),
            Self::Look { counter: which, account: of } => {
                let first = missing(&[counter(which)]);
                first.or_else(|| missing(&[account(of)])).unwrap_or(Step::Commit(Vec::new()))
            }
            Self::Everything => Step::Submit(vec![fixed_keys().into_iter().map(get).collect()]),
        }
    }
}
