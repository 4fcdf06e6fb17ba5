//! The keys that clients use, and what stands in them.
//!
//! Every value written carries a tag that no other transaction writes, so that a reader's history tells whose write it saw. Most keys are
//! read by whoever writes them, so that it also tells whose write came next.

use random::Random;
use types::{Key, KeyRange, Value};

/// How many accounts there are, and what is in each at first.
pub(crate) const ACCOUNTS: u64 = 6;
pub(crate) const BALANCE: i64 = 100;
/// How many counters everybody wants at once.
pub(crate) const COUNTERS: u64 = 2;
/// How many places are written without being read, by clients that cheat, too.
pub(crate) const OPEN: u64 = 4;
/// How many seats there are, and how many of them may be taken at once.
pub(crate) const SEATS: u64 = 12;
pub(crate) const TAKEN_MAX: usize = 3;

pub(crate) fn account(number: u64) -> Key {
    Key::from(format!("account/{number}").as_str())
}

pub(crate) fn counter(number: u64) -> Key {
    Key::from(format!("counter/{number}").as_str())
}

pub(crate) fn open(number: u64) -> Key {
    Key::from(format!("open/{number}").as_str())
}

pub(crate) fn seat(number: u64) -> Key {
    Key::from(format!("seat/{number:02}").as_str())
}

/// All seats: who takes one has looked at all of them.
pub(crate) fn seats() -> KeyRange {
    KeyRange::new(Key::from("seat/"), Key::from("seat0")).expect("it has keys")
}

/// The first key of the log that comes after so many thousandths of it.
fn log_from(thousandth: u64) -> Key {
    Key::from(format!("log/{thousandth:03}").as_str())
}

/// The part of the log from there on.
pub(crate) fn log(from: u64) -> KeyRange {
    KeyRange::new(log_from(from), Key::from("log0")).expect("it has keys")
}

/// An entry of the log of the transaction with this tag: spread over it, so that parts of it grow in their middles, too.
pub(crate) fn log_entry(tag: &str, number: u64) -> Key {
    let place = tag.bytes().fold(number * 389, |sum, byte| sum * 31 + u64::from(byte)) % 1_000;
    Key::from(format!("log/{place:03}/{tag}-{number}").as_str())
}

/// Whether clients that cheat write it, or others delete it, so that nothing found there need not mean that nothing ever was.
pub(crate) fn is_open(key: &Key) -> bool {
    key.as_bytes().starts_with(b"open/") || key.as_bytes().starts_with(b"seat/")
}

/// The number in a value, before its tag.
pub(crate) fn number(value: Option<&Value>) -> Option<i64> {
    std::str::from_utf8(value?.as_bytes()).ok()?.split_once('#')?.0.parse().ok()
}

pub(crate) fn tagged(number: i64, tag: &str) -> Value {
    Value::from(format!("{number}#{tag}").as_str())
}

/// All accounts.
pub(crate) fn accounts() -> Vec<Key> {
    (0..ACCOUNTS).map(account).collect()
}

/// Every key but those of the log, and seats.
pub(crate) fn fixed_keys() -> Vec<Key> {
    accounts().into_iter().chain((0..COUNTERS).map(counter)).chain((0..OPEN).map(open)).collect()
}

/// An open place.
pub(crate) fn any_open(random: &mut Random) -> Key {
    open(random.below(OPEN))
}
