//! Byz-serializability by the rule that Basil claims: all that committed, replayed in the order of timestamps, gives each
//! honest client what it read.

use std::collections::BTreeMap;

use basil::{Decision, Transaction};
use types::{Key, Timestamp, Value};

use super::{Checker, Past, Seen};

/// Replays everything; a sentence for each read that does not fit.
pub(crate) fn check(checker: &Checker) -> Vec<String> {
    let decided = checker.decisions.iter().filter(|(_, decision)| **decision == Decision::Commit);
    let mut committed: Vec<&Transaction> = decided.filter_map(|(id, _)| checker.transactions.get(id)).collect();
    committed.sort_by_key(|transaction| (transaction.timestamp(), transaction.id()));
    let mut found = Vec::new();
    for pair in committed.windows(2) {
        if pair[0].timestamp() == pair[1].timestamp() {
            found.push(format!("{:?} and {:?} both committed at {:?}", pair[0].id(), pair[1].id(), pair[0].timestamp()));
        }
    }
    let mut past: Vec<&Past> = checker.past.iter().collect();
    past.sort_by_key(|past| past.at);
    let mut past = past.into_iter().peekable();
    let mut state = State::new();
    for transaction in committed {
        while let Some(Past { client, at, seen, .. }) = past.next_if(|past| past.at <= transaction.timestamp()) {
            found.extend(compare(&state, &format!("{client}, of the past"), *at, seen));
        }
        if let Some(history) = checker.histories.get(&transaction.id()) {
            found.extend(compare(&state, &format!("{:?}", transaction.id()), transaction.timestamp(), &history.seen));
        }
        // Whoever has committed, liar or not, has named all that had a value in its ranges.
        for range in transaction.ranges() {
            let mut live = state.range::<&Key, _>(range.low()..range.high()).filter(|(_, (_, value))| value.is_some()).map(|(key, _)| *key);
            if let Some(key) = live.find(|key| transaction.read_of(key).is_none()) {
                found.push(format!("{:?} at {:?} read {range}, and missed {key}", transaction.id(), transaction.timestamp()));
            }
        }
        for write in transaction.writes() {
            state.insert(&write.key, (transaction.timestamp(), write.value.as_ref()));
        }
    }
    for Past { client, at, seen, .. } in past {
        found.extend(compare(&state, &format!("{client}, of the past"), *at, seen));
    }
    found
}

/// What there is at some time: each key with its version and its value.
type State<'a> = BTreeMap<&'a Key, (Timestamp, Option<&'a Value>)>;

/// What does not fit of what `who` was shown of `state`.
fn compare(state: &State<'_>, who: &str, at: Timestamp, seen: &Seen) -> Vec<String> {
    let mut found = Vec::new();
    for (key, version, value) in &seen.reads {
        let (newest, there) = state.get(key).copied().unwrap_or((Timestamp::ZERO, None));
        if newest != *version || there != value.as_ref() {
            found.push(format!("{who} at {at:?} read {key} at {version:?} as {value:?}; it was {there:?} since {newest:?}"));
        }
    }
    for scan in &seen.scans {
        let live = state.range::<&Key, _>(scan.range.low()..scan.range.high()).filter(|(_, (_, value))| value.is_some());
        let first: Vec<&Key> = scan.direction.of(live).map(|(key, _)| *key).take(scan.limit).collect();
        if !first.iter().copied().eq(&scan.keys) {
            found.push(format!(
                "{who} at {at:?} found {:?} in {}, {:?}, up to {}; there was {first:?}",
                scan.keys, scan.range, scan.direction, scan.limit
            ));
        }
    }
    found
}
