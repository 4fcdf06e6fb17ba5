//! Strict serializability as a black box: no timestamp is looked at, so that a wrong rule about timestamps cannot fool both the machines and
//! their checker. What honest clients did, what they were told, and when, goes to the judge of all engines' histories.

use basil::Decision;
use types::{Key, Value};

use super::{Checker, History, Seen, Told};
use crate::application::history::{self, Record, World, Wrong};
use crate::basil::plan;

/// What is wrong with what honest clients saw.
pub(crate) fn check(checker: &Checker) -> Vec<Wrong> {
    let mut records: Vec<Record> = checker.histories.values().map(|history| record(checker, history)).collect();
    // What is tried again writes the same values. Of those attempts one may have taken place, and the others did not.
    records.sort_by_key(|record| record.told != history::Told::Aborted);
    records.extend(checker.past.iter().map(|past| {
        // It may have been long ago, and so lies after nothing; but what begins when it has been read comes after it.
        let who = format!("{}, of the past", past.client);
        let none = Record { who, began: 0, ended: Some(past.ended), told: history::Told::Committed, ..Record::default() };
        Record { reads: reads(&past.seen), scans: scans(&past.seen), ..none }
    }));
    let honest: Vec<String> = checker.honest_clients.iter().map(|client| format!("{client}.")).collect();
    let is_foreign = |_: &Key, value: &Value| plan::tag(Some(value)).is_none_or(|tag| !honest.iter().any(|client| tag.starts_with(client)));
    let is_open = |key: &Key| checker.has_cheats && plan::is_deletable(key);
    history::check(&records, &World { is_open: &is_open, is_foreign: &is_foreign }, |_| Vec::new())
}

fn record(checker: &Checker, history: &History) -> Record {
    let id = history.transaction.id();
    let told = match (checker.decisions.get(&id), history.told) {
        (Some(Decision::Commit), _) | (_, Told::Ended(Decision::Commit)) => history::Told::Committed,
        (Some(Decision::Abort), _) | (_, Told::Ended(Decision::Abort) | Told::Never) => history::Told::Aborted,
        (None, Told::Nothing) => history::Told::Nothing,
    };
    let writes = history.transaction.writes().iter().map(|write| (write.key.clone(), write.value.clone()));
    Record {
        who: format!("{id:?} ({})", history.plan.name()),
        // Of a client that was paused, and cannot see that, nothing says when it began.
        began: history.began.unwrap_or(0),
        ended: history.ended,
        told,
        reads: reads(&history.seen),
        scans: scans(&history.seen),
        writes: writes.collect(),
    }
}

fn reads(seen: &Seen) -> Vec<(Key, Option<Value>)> {
    seen.reads.iter().map(|(key, _, value)| (key.clone(), value.clone())).collect()
}

fn scans(seen: &Seen) -> Vec<history::Scan> {
    let value_of = |key: &Key| seen.reads.iter().rev().find(|(read, _, _)| read == key).and_then(|(_, _, value)| value.clone());
    let scan = |scan: &super::Scan| history::Scan {
        range: scan.range.clone(),
        direction: scan.direction,
        limit: scan.limit,
        rows: scan.keys.iter().filter_map(|key| Some((key.clone(), value_of(key)?))).collect(),
    };
    seen.scans.iter().map(scan).collect()
}
