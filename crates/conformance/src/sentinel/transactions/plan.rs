//! What clients do: small transactions, as applications write them against the interface of all engines. They read, think, and commit.
//!
//! What one such transaction asks for next follows from what it has found so far, so that it is the same again when it begins again.

use std::collections::BTreeMap;

use random::Random;
use types::{Direction, Key, KeyRange, Value};

use crate::application::history::Scan;
use crate::application::keys::{
    ACCOUNTS, BALANCE, COUNTERS, OPEN, SEATS, TAKEN_MAX, account, accounts, counter, fixed_keys, log, log_entry, number, open, seat, seats,
    tagged,
};

/// How many commits a burst has at most.
const BURST_MAX: u64 = 24;

/// What one transaction means to do.
#[derive(Clone, Debug)]
pub(super) enum Plan {
    /// Reads two accounts, at once or one after the other, and moves money between them.
    Transfer { from: u64, to: u64, amount: i64, is_apart: bool },
    /// Reads a counter and adds one.
    Increment { counter: u64 },
    /// Reads all counters, one after the other, and adds one to one of them.
    Weigh { counter: u64 },
    /// Reads and writes two open places at once.
    Swap { first: u64, second: u64 },
    /// Reads an open place, and deletes what it finds there, or writes it.
    Toggle { open: u64 },
    /// Writes an open place without reading it, and another or deletes it.
    Blind { first: u64, second: u64, deletes: bool },
    /// Adds one to a counter, by what an earlier transaction has read of it.
    Late { counter: u64 },
    /// Adds entries to the log, each a transaction of its own, all under way at once.
    Burst { entries: u64 },
    /// Reads the first entries of a part of the log, or the last.
    Scan { from: u64, direction: Direction, limit: usize },
    /// The same, and adds one to the log.
    Append { from: u64, direction: Direction, limit: usize },
    /// Takes a seat where there are any left, and else leaves one.
    Sit { seat: u64 },
    /// Reads all accounts, at once or one after the other.
    Audit { is_apart: bool },
    /// Reads a counter, then an account, and commits what it saw.
    Look { counter: u64, account: u64 },
    /// Reads all there is but the log: the last task of a run, before it reads the log.
    Everything,
}

/// How a transaction goes on.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// It wants to know these keys.
    Read(Vec<Key>),
    /// It wants to know the keys of a range that have values, from one of its ends.
    Scan(KeyRange, Direction, usize),
    /// It keeps what it has read for a later one.
    Keep,
    /// It commits what it read, and these writes.
    Commit(Vec<(Key, Option<Value>)>),
    /// It is several, which read nothing and are all under way at once.
    Burst(Vec<Vec<(Key, Option<Value>)>>),
}

/// What a transaction has found so far.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub knows: BTreeMap<Key, Option<Value>>,
    pub scans: Vec<Scan>,
    /// Whether what it has was read by an earlier one.
    pub is_kept: bool,
}

impl Found {
    fn missing(&self, keys: &[Key]) -> Option<Step> {
        keys.iter().any(|key| !self.knows.contains_key(key)).then(|| Step::Read(keys.to_vec()))
    }

    fn first_missing(&self, keys: &[Key]) -> Option<Step> {
        let missing = keys.iter().find(|key| !self.knows.contains_key(*key));
        missing.map(|key| Step::Read(vec![key.clone()]))
    }

    /// What is missing of these, at once or one after the other.
    fn wanted(&self, keys: &[Key], is_apart: bool) -> Option<Step> {
        if is_apart { self.first_missing(keys) } else { self.missing(keys) }
    }

    fn number(&self, key: &Key, at_first: i64) -> i64 {
        number(self.knows.get(key).and_then(Option::as_ref)).unwrap_or(at_first)
    }
}

impl Plan {
    pub fn draw(random: &mut Random) -> Self {
        let counter = |random: &mut Random| random.below(COUNTERS);
        let direction = |random: &mut Random| random.pick(&[Direction::Ascending, Direction::Descending]);
        match random.below(100) {
            0..22 => Self::draw_contended(random),
            22..30 => Self::Weigh { counter: counter(random) },
            30..38 => Self::Swap { first: random.below(OPEN), second: random.below(OPEN) },
            38..44 => Self::Toggle { open: random.below(OPEN) },
            44..52 => Self::Blind { first: random.below(OPEN), second: random.below(OPEN), deletes: random.chance(400) },
            52..57 => Self::Late { counter: counter(random) },
            57..61 => Self::Burst { entries: random.between(1, BURST_MAX) },
            61..66 => Self::Scan { from: random.below(1_000), direction: direction(random), limit: random.pick(&[1, 3, 1_000]) },
            66..74 => Self::Append { from: random.between(900, 999), direction: direction(random), limit: random.pick(&[1, 3, 1_000]) },
            74..82 => Self::Sit { seat: random.below(SEATS) },
            82..91 => Self::Audit { is_apart: random.chance(400) },
            _ => Self::Look { counter: counter(random), account: random.below(ACCOUNTS) },
        }
    }

    /// One whose place others want, leave, and take again.
    pub fn draw_crowded(random: &mut Random) -> Self {
        if random.chance(600) { Self::Sit { seat: random.below(SEATS) } } else { Self::Toggle { open: random.below(OPEN) } }
    }

    /// One that reads and writes what others want too: what progress is measured by.
    pub fn draw_contended(random: &mut Random) -> Self {
        if random.chance(500) {
            return Self::Increment { counter: random.below(COUNTERS) };
        }
        let from = random.below(ACCOUNTS);
        let to = (from + 1 + random.below(ACCOUNTS - 1)) % ACCOUNTS;
        let amount = i64::try_from(random.between(1, 9)).expect("small");
        Self::Transfer { from, to, amount, is_apart: random.chance(300) }
    }

    /// Whether it writes nothing, whatever it finds.
    pub fn only_reads(&self) -> bool {
        matches!(self, Self::Scan { .. } | Self::Audit { .. } | Self::Look { .. } | Self::Everything)
    }

    /// Which key is read for later.
    pub fn keeps(&self) -> Option<Key> {
        if let Self::Late { counter: which } = self { Some(counter(*which)) } else { None }
    }

    /// Goes on with what it has `found`. Writes under `tag`.
    pub fn advance(&self, found: &Found, tag: &str) -> Step {
        let put = |key: Key, place: u64| (key, Some(tagged(0, &format!("{tag}-{place}"))));
        let add = |key: Key| vec![(key.clone(), Some(tagged(found.number(&key, 0) + 1, tag)))];
        match *self {
            Self::Transfer { from, to, amount, is_apart } => {
                let places = [(account(from), -amount), (account(to), amount)];
                let write = |(key, change): &(Key, i64)| (key.clone(), Some(tagged(found.number(key, BALANCE) + change, tag)));
                let commit = || Step::Commit(places.iter().map(write).collect());
                found.wanted(&[account(from), account(to)], is_apart).unwrap_or_else(commit)
            }
            Self::Increment { counter: which } => found.missing(&[counter(which)]).unwrap_or_else(|| Step::Commit(add(counter(which)))),
            Self::Weigh { counter: which } => {
                let all: Vec<Key> = (0..COUNTERS).map(counter).collect();
                found.first_missing(&all).unwrap_or_else(|| Step::Commit(add(counter(which))))
            }
            Self::Swap { first, second } => {
                let keys = if first == second { vec![open(first)] } else { vec![open(first), open(second)] };
                found
                    .missing(&keys)
                    .unwrap_or_else(|| Step::Commit(keys.into_iter().zip(0..).map(|(key, place)| put(key, place)).collect()))
            }
            Self::Toggle { open: which } => {
                let is_there = found.knows.get(&open(which)).is_some_and(Option::is_some);
                let write = if is_there { (open(which), None) } else { put(open(which), 0) };
                found.missing(&[open(which)]).unwrap_or_else(|| Step::Commit(vec![write]))
            }
            Self::Blind { first, second, deletes } => {
                let mut writes = vec![put(open(first), 0)];
                if second != first {
                    writes.push(if deletes { (open(second), None) } else { put(open(second), 1) });
                }
                Step::Commit(writes)
            }
            Self::Late { counter: which } if found.is_kept => Step::Commit(add(counter(which))),
            Self::Late { counter: which } => found.missing(&[counter(which)]).unwrap_or(Step::Keep),
            Self::Burst { entries } => Step::Burst((0..entries).map(|one| vec![put(log_entry(tag, one), one)]).collect()),
            Self::Scan { from, direction, limit } | Self::Append { from, direction, limit } if found.scans.is_empty() => {
                Step::Scan(log(from), direction, limit)
            }
            Self::Scan { .. } => Step::Commit(Vec::new()),
            Self::Append { .. } => Step::Commit(vec![put(log_entry(tag, 0), 0)]),
            Self::Sit { seat: which } => found.scans.first().map_or_else(
                || Step::Scan(seats(), Direction::Ascending, usize::try_from(SEATS).expect("few seats")),
                |scan| {
                    let taken = scan.rows.iter().map(|(key, _)| key);
                    let leaves = (scan.rows.len() >= TAKEN_MAX).then(|| taken.cycle().nth(usize::try_from(which).unwrap_or_default()));
                    let leaves = leaves.flatten().map(|key| (key.clone(), None));
                    Step::Commit(vec![leaves.unwrap_or_else(|| put(seat(which), 0))])
                },
            ),
            Self::Audit { is_apart } => found.wanted(&accounts(), is_apart).unwrap_or(Step::Commit(Vec::new())),
            Self::Look { counter: which, account: of } => {
                found.first_missing(&[counter(which), account(of)]).unwrap_or(Step::Commit(Vec::new()))
            }
            Self::Everything if found.scans.is_empty() => {
                Step::Scan(seats(), Direction::Ascending, usize::try_from(SEATS).expect("few seats"))
            }
            Self::Everything => found.missing(&fixed_keys()).unwrap_or(Step::Commit(Vec::new())),
        }
    }
}
