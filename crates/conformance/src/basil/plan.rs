//! What honest clients do: small interactive transactions whose results must add up whatever the liars do.
//!
//! Every value written carries a tag that no other transaction writes, so that a reader's history tells whose write it saw
//! without looking at a timestamp.

use std::collections::{BTreeMap, BTreeSet};

use random::{Named as _, Random};
use types::{Direction, Key, KeyRange, Value};

/// How many accounts there are, and what is in each at first.
pub(crate) const ACCOUNTS: u64 = 8;
pub(crate) const BALANCE: i64 = 100;
/// How many counters everybody wants at once.
const COUNTERS: u64 = 3;
/// How many keys are written without being read.
const BLOBS: u64 = 6;
/// How many slots there are, and how many of them may be taken at once.
const SLOTS: u64 = 12;
pub(crate) const TAKEN_MAX: usize = 3;
/// How many places the ring has.
pub(crate) const RING: u64 = 6;
/// How far back the past is read, in milliseconds: further than some windows reach.
const PAST_MS_MAX: u64 = 5_000;
/// How often a plan is drawn anew until it is of a kind that is allowed.
const DRAWS_MAX: usize = 256;

/// What keys begin with. Whoever may read and write those of the first kind gets something done, whatever else it may do.
pub(crate) const KINDS_OF_KEYS: [&str; 5] = ["counter/", "account/", "blob/", "ring/", "slot/"];

/// What one transaction means to do. It can be begun again from the start, with another timestamp.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Plan {
    /// Moves money between two accounts: the sum of all stays.
    Transfer { from: u64, to: u64, amount: i64 },
    /// Adds one to a counter.
    Increment { counter: u64 },
    /// Writes keys without reading them, or deletes one.
    Blind { first: u64, second: u64, deletes: bool },
    /// Reads all accounts at once.
    Audit,
    /// Reads a counter that everybody wants, then an account: two round trips, and nothing written.
    Look { counter: u64, account: u64 },
    /// Swaps two neighbours in the ring, found by walking: three reads, each of which needs the one before.
    Rotate { start: u64 },
    /// Sees which slots are taken, and takes one while they are few, or else leaves the first: two who take at once exclude one another,
    /// though neither knows the other's slot.
    Take { slot: u64 },
    /// Sees the last slots that are taken, and leaves the lowest of those for another.
    Move { limit: u64, slot: u64 },
    /// Reads the first keys of a range, or the last, and writes nothing.
    Sweep { first: u64, limit: u64 },
    /// Reads all accounts as they were so long ago, and then all slots.
    Past { ago_ms: u64 },
    /// Reads one of the keys that are written without being read.
    Peek { blob: u64 },
    /// Reads all there is: the last transaction of a run.
    Everything,
}

random::named! {
    /// A kind of plan.
    pub(crate) enum PlanKind {
        /// See [`Plan::Transfer`].
        Transfer,
        /// See [`Plan::Increment`].
        Increment,
        /// See [`Plan::Blind`].
        Blind,
        /// See [`Plan::Audit`].
        Audit,
        /// See [`Plan::Look`].
        Look,
        /// See [`Plan::Rotate`].
        Rotate,
        /// See [`Plan::Take`].
        Take,
        /// See [`Plan::Move`].
        Move,
        /// See [`Plan::Sweep`].
        Sweep,
        /// See [`Plan::Past`].
        Past,
        /// See [`Plan::Peek`].
        Peek,
        /// See [`Plan::Everything`].
        Everything,
    }
}

impl PlanKind {
    /// Whether it reads ranges.
    pub fn scans(self) -> bool {
        matches!(self, Self::Take | Self::Move | Self::Sweep)
    }
}

/// What a transaction wants next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// To know these keys.
    Read(Vec<Key>),
    /// To know the keys of a range that have values, from one of its ends, so many at most.
    Scan(KeyRange, Direction, usize),
    /// To commit these writes, each key once, in key order; `None` deletes.
    Commit(Vec<(Key, Option<Value>)>),
}

/// What a transaction has been told so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct Known {
    keys: BTreeMap<Key, Option<Value>>,
    has_scanned: bool,
}

impl Known {
    /// It is told what keys hold. What it was told of a key first counts.
    pub fn read(&mut self, found: Vec<(Key, Option<Value>)>) {
        for (key, value) in found {
            self.keys.entry(key).or_insert(value);
        }
    }

    /// The same of a range.
    pub fn scanned(&mut self, found: Vec<(Key, Option<Value>)>) {
        self.has_scanned = true;
        self.read(found);
    }

    fn value(&self, key: &Key) -> Option<&Value> {
        self.keys.get(key)?.as_ref()
    }
}

pub(crate) fn account(number: u64) -> Key {
    Key::from(format!("account/{number}").as_str())
}

fn counter(number: u64) -> Key {
    Key::from(format!("counter/{number}").as_str())
}

fn blob(number: u64) -> Key {
    Key::from(format!("blob/{number}").as_str())
}

pub(crate) fn ring(number: u64) -> Key {
    Key::from(format!("ring/{number}").as_str())
}

fn slot(number: u64) -> Key {
    Key::from(format!("slot/{number:02}").as_str())
}

/// All slots.
pub(crate) fn slots() -> KeyRange {
    KeyRange::new(Key::from("slot/"), Key::from("slot0")).expect("it has keys")
}

/// Whether a key may be deleted, so that nothing found there need not mean that nothing ever was.
pub(crate) fn is_deletable(key: &Key) -> bool {
    key.as_bytes().starts_with(b"blob/") || slots().contains(key)
}

/// The number in a value, before its tag.
pub(crate) fn number(value: Option<&Value>) -> Option<i64> {
    let text = std::str::from_utf8(value?.as_bytes()).ok()?;
    text.split_once('#')?.0.parse().ok()
}

/// What tells a value's writer, behind its number.
pub(crate) fn tag(value: Option<&Value>) -> Option<&str> {
    std::str::from_utf8(value?.as_bytes()).ok()?.split_once('#').map(|(_, tag)| tag)
}

fn tagged(number: i64, tag: &str) -> Option<Value> {
    Some(Value::from(format!("{number}#{tag}").as_str()))
}

/// Where the ring goes on from `at`: nothing there means that it is as it was at first.
pub(crate) fn next_in_ring(at: u64, value: Option<&Value>) -> u64 {
    number(value).and_then(|next| u64::try_from(next).ok()).filter(|next| *next < RING).unwrap_or((at + 1) % RING)
}

/// Every key there is.
pub(crate) fn all_keys() -> Vec<Key> {
    let accounts = (0..ACCOUNTS).map(account);
    accounts.chain((0..COUNTERS).map(counter)).chain((0..BLOBS).map(blob)).chain((0..RING).map(ring)).chain((0..SLOTS).map(slot)).collect()
}

impl Plan {
    /// One of `allowed` kinds; none of them need be.
    pub fn draw_of(random: &mut Random, allowed: &BTreeSet<PlanKind>) -> Self {
        // Where nobody reads the past, runs are what they were before anybody could.
        if allowed.contains(&PlanKind::Past) && (random.chance(100) || allowed.len() == 1) {
            return Self::Past { ago_ms: random.below(PAST_MS_MAX) };
        }
        if allowed.contains(&PlanKind::Peek) && (random.chance(250) || allowed.len() == 1) {
            return Self::Peek { blob: random.below(BLOBS) };
        }
        // Where no ranges are read, runs are what they were before there were any.
        let ranges: Vec<PlanKind> = allowed.iter().copied().filter(|kind| kind.scans()).collect();
        if !ranges.is_empty() && (random.chance(150) || allowed.len() == ranges.len()) {
            return match random.pick(&ranges) {
                PlanKind::Move => Self::Move { limit: random.between(1, 2), slot: random.below(SLOTS) },
                PlanKind::Sweep => Self::Sweep { first: random.below(SLOTS), limit: random.between(1, 4) },
                _ => Self::Take { slot: random.below(SLOTS) },
            };
        }
        for _ in 0..DRAWS_MAX {
            let plan = Self::draw(random);
            if allowed.contains(&plan.kind()) {
                return plan;
            }
        }
        Self::Increment { counter: 0 }
    }

    fn draw(random: &mut Random) -> Self {
        match random.below(100) {
            0..30 => {
                let from = random.below(ACCOUNTS);
                let to = (from + 1 + random.below(ACCOUNTS - 1)) % ACCOUNTS;
                Self::Transfer { from, to, amount: i64::try_from(random.between(1, 9)).expect("small") }
            }
            30..60 => Self::Increment { counter: random.below(COUNTERS) },
            60..75 => Self::Blind { first: random.below(BLOBS), second: random.below(BLOBS), deletes: random.chance(200) },
            75..80 => Self::Audit,
            80..88 => Self::Look { counter: random.below(COUNTERS), account: random.below(ACCOUNTS) },
            _ => Self::Rotate { start: random.below(RING) },
        }
    }

    /// One that reads and writes what others want too: what progress is measured by.
    pub fn draw_contended(random: &mut Random, allowed: &BTreeSet<PlanKind>) -> Self {
        match Self::draw_of(random, allowed) {
            plan @ (Self::Transfer { .. } | Self::Rotate { .. }) => plan,
            _ => Self::Increment { counter: random.below(COUNTERS) },
        }
    }

    pub fn only_reads(&self) -> bool {
        matches!(self, Self::Audit | Self::Look { .. } | Self::Sweep { .. } | Self::Past { .. } | Self::Peek { .. } | Self::Everything)
    }

    pub fn kind(&self) -> PlanKind {
        match self {
            Self::Transfer { .. } => PlanKind::Transfer,
            Self::Increment { .. } => PlanKind::Increment,
            Self::Blind { .. } => PlanKind::Blind,
            Self::Audit => PlanKind::Audit,
            Self::Look { .. } => PlanKind::Look,
            Self::Rotate { .. } => PlanKind::Rotate,
            Self::Take { .. } => PlanKind::Take,
            Self::Move { .. } => PlanKind::Move,
            Self::Sweep { .. } => PlanKind::Sweep,
            Self::Past { .. } => PlanKind::Past,
            Self::Peek { .. } => PlanKind::Peek,
            Self::Everything => PlanKind::Everything,
        }
    }

    /// The range that it reads, from which end, and how much of it.
    fn scan(&self) -> Step {
        let size = |limit: u64| usize::try_from(limit).expect("it is small");
        match *self {
            Self::Sweep { first, limit } => {
                let low = if first.is_multiple_of(2) { slot(first) } else { Key::from("") };
                let range = KeyRange::new(low, slots().high().clone()).expect("it has keys");
                let is_up = (first / 2 + limit).is_multiple_of(2);
                Step::Scan(range, if is_up { Direction::Ascending } else { Direction::Descending }, size(limit))
            }
            Self::Move { limit, .. } => Step::Scan(slots(), Direction::Descending, size(limit)),
            _ => Step::Scan(slots(), Direction::Ascending, all_keys().len()),
        }
    }

    pub fn name(&self) -> String {
        self.kind().name()
    }

    /// Goes on with what it knows; writes under `tag` once it knows enough.
    pub fn advance(&self, known: &Known, tag: &str) -> Step {
        match *self {
            Self::Transfer { from, to, amount } => {
                let changes = [(account(from), -amount), (account(to), amount)];
                let write = |(key, change): (Key, i64)| {
                    let before = number(known.value(&key)).unwrap_or(BALANCE);
                    (key, tagged(before + change, tag))
                };
                missing(vec![account(from), account(to)], known).unwrap_or_else(|| commit(changes.map(write)))
            }
            Self::Increment { counter: which } => missing(vec![counter(which)], known).unwrap_or_else(|| {
                let before = number(known.value(&counter(which))).unwrap_or(0);
                commit([(counter(which), tagged(before + 1, tag))])
            }),
            Self::Blind { first, second, deletes } => {
                commit([(blob(first), tagged(0, tag)), (blob(second), if deletes { None } else { tagged(0, tag) })])
            }
            Self::Look { counter: which, account: of } => {
                let first = missing(vec![counter(which)], known);
                first.or_else(|| missing(vec![account(of)], known)).unwrap_or_else(|| commit([]))
            }
            Self::Peek { blob: which } => missing(vec![blob(which)], known).unwrap_or_else(|| commit([])),
            Self::Audit => missing((0..ACCOUNTS).map(account).collect(), known).unwrap_or_else(|| commit([])),
            Self::Rotate { start } => rotate(start, known, tag),
            Self::Take { .. } | Self::Move { .. } | Self::Sweep { .. } if !known.has_scanned => self.scan(),
            Self::Move { slot: which, .. } => {
                let lowest = known.keys.iter().find(|(_, value)| value.is_some()).map(|(key, _)| (key.clone(), None));
                Step::Commit(lowest.into_iter().flat_map(|left| BTreeMap::from([left, (slot(which), tagged(0, tag))])).collect())
            }
            Self::Take { slot: which } => {
                let taken: Vec<&Key> = known.keys.iter().filter(|(_, value)| value.is_some()).map(|(key, _)| key).collect();
                match taken.first().filter(|_| taken.len() >= TAKEN_MAX) {
                    None => commit([(slot(which), tagged(0, tag))]),
                    Some(first) => commit([((*first).clone(), None)]),
                }
            }
            Self::Sweep { .. } => commit([]),
            Self::Past { .. } => match missing((0..ACCOUNTS).map(account).collect(), known) {
                Some(step) => step,
                None if known.has_scanned => commit([]),
                None => self.scan(),
            },
            // What ranges hold is read as ranges and once more key by key.
            Self::Everything if !known.has_scanned => self.scan(),
            Self::Everything => missing(all_keys(), known).unwrap_or_else(|| commit([])),
        }
    }
}

/// Commits these writes, each key once.
fn commit<const COUNT: usize>(writes: [(Key, Option<Value>); COUNT]) -> Step {
    Step::Commit(BTreeMap::from(writes).into_iter().collect())
}

/// Asks for those of `keys` that are not known.
fn missing(keys: Vec<Key>, known: &Known) -> Option<Step> {
    let missing: Vec<Key> = keys.into_iter().filter(|key| !known.keys.contains_key(key)).collect();
    (!missing.is_empty()).then_some(Step::Read(missing))
}

/// Follows the ring from `start`, and makes of a → b → c → d, once all is known, a → c → b → d.
fn rotate(start: u64, known: &Known, tag: &str) -> Step {
    let mut at = start;
    let mut places = [0; 3];
    for place in &mut places {
        if let Some(step) = missing(vec![ring(at)], known) {
            return step;
        }
        *place = at;
        at = next_in_ring(at, known.value(&ring(at)));
    }
    let [a, b, c] = places;
    commit([(a, c), (c, b), (b, at)].map(|(place, next)| (ring(place), tagged(i64::try_from(next).expect("a ring has few places"), tag))))
}
