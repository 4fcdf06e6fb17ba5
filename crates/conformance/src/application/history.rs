//! Strict serializability as a black box: nothing of the engine is looked at, only what honest clients did, what they were told, and when.
//!
//! Every value names its writer. So edges follow, from who comes before to who comes after:
//!
//! * the writer of what is read, to the reader;
//! * who reads a value, to whoever reads that value and overwrites it;
//! * who finds a key without a value, to all who write it; where it is deleted, to those who began after all had ended whose deletion that
//!   may be;
//! * who reads a value, to whoever writes the key and began after that value's writer had ended;
//! * whoever wrote the key and had ended before the reader began, to the writer of what is read;
//! * who has ended, to whoever begins afterwards. For these there is a moment for each end, and the moments come one after the other.
//!
//! A cycle among them is an anomaly, whatever the engine thinks. So what was acknowledged before a transaction began is seen by it, and not
//! hidden under what it writes.

use std::collections::{BTreeMap, BTreeSet};

use simulator::Outcomes;
use types::{Direction, Key, KeyRange, Value};

use super::keys;
use crate::cycle::cycle;

/// What a checker here says: its name, and what is wrong, as a sentence.
pub(crate) type Wrong = (&'static str, String);

/// What a client was told of a transaction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Told {
    /// Nothing, or that nobody knows.
    #[default]
    Nothing,
    /// It took place.
    Committed,
    /// It did not.
    Aborted,
}

/// A range that was read, from one of its ends: what was found, and how many keys were wanted at most.
#[derive(Clone, Debug)]
pub(crate) struct Scan {
    pub range: KeyRange,
    pub direction: Direction,
    pub limit: usize,
    pub rows: Vec<(Key, Value)>,
}

impl Scan {
    /// Whether it would have found a key that has a value.
    fn covers(&self, key: &Key) -> bool {
        let is_full = self.rows.len() >= self.limit;
        self.range.contains(key) && self.rows.last().is_none_or(|(last, _)| !is_full || self.direction.order(key, last).is_le())
    }
}

/// One transaction of an honest client.
#[derive(Clone, Debug, Default)]
pub(crate) struct Record {
    pub who: String,
    /// True time.
    pub began: u64,
    pub ended: Option<u64>,
    pub told: Told,
    pub reads: Vec<(Key, Option<Value>)>,
    pub scans: Vec<Scan>,
    pub writes: Vec<(Key, Option<Value>)>,
}

impl Record {
    /// What it found, key by key, of the ranges it read, too.
    fn found(&self) -> impl Iterator<Item = (&Key, Option<&Value>)> {
        let rows = self.scans.iter().flat_map(|scan| &scan.rows).map(|(key, value)| (key, Some(value)));
        self.reads.iter().map(|(key, value)| (key, value.as_ref())).chain(rows)
    }

    /// Whether real time alone puts it before the other.
    fn is_before(&self, other: &Self) -> bool {
        self.ended.is_some_and(|ended| ended < other.began)
    }

    fn writes(&self, key: &Key) -> bool {
        self.writes.iter().any(|(written, _)| written == key)
    }
}

/// What honest clients did, in the order in which they began.
#[derive(Debug, Default)]
pub(crate) struct Records(Vec<Record>);

impl Records {
    /// A client begins a transaction. Gives the number under which it is known here.
    pub fn begins(&mut self, record: Record) -> usize {
        self.0.push(record);
        self.0.len() - 1
    }

    /// It is told what came of it, and what was found.
    pub fn ends(&mut self, number: usize, now: u64, told: Told, found: Vec<(Key, Option<Value>)>) {
        let record = &mut self.0[number];
        record.told = told;
        record.ended = (told == Told::Committed).then_some(now);
        record.reads.extend(found);
    }

    /// Whether the transaction of this number writes nothing.
    pub fn reads_alone(&self, number: usize) -> bool {
        self.0[number].writes.is_empty()
    }

    /// What is wrong, as [`check`] says, and whether what is seen adds up.
    pub fn check(&self) -> Vec<Wrong> {
        let sums =
            |record: &Record| sum(record).into_iter().chain(record.scans.iter().filter_map(|scan| overtaken(record, scan))).collect();
        check(&self.0, &World { is_open: &keys::is_open, is_foreign: &|key, _| keys::is_open(key) }, sums)
    }

    /// How many clients were told what.
    pub fn outcomes(&self) -> Outcomes {
        let count = |told| self.0.iter().filter(|record| record.told == told).count() as u64;
        Outcomes { committed: count(Told::Committed), aborted: count(Told::Aborted), unknown: count(Told::Nothing) }
    }
}

/// What is known of keys, whoever writes them.
pub(crate) struct World<'a> {
    /// Whether a key may be deleted by somebody whose transactions are not among the records, so that nothing found there says nothing.
    pub is_open: &'a dyn Fn(&Key) -> bool,
    /// Whether a value there may be of somebody whose transactions are not among the records.
    pub is_foreign: &'a dyn Fn(&Key, &Value) -> bool,
}

/// What is wrong with what honest clients saw; `more` says what else is wrong with what one of them did. Where several records write the same
/// value, as what is tried again does, the last of them is taken for its writer.
pub(crate) fn check(records: &[Record], world: &World<'_>, more: impl Fn(&Record) -> Vec<Wrong>) -> Vec<Wrong> {
    let mut wrong = Vec::new();
    let mut writers: BTreeMap<(&Key, &Value), usize> = BTreeMap::new();
    for (at, record) in records.iter().enumerate() {
        writers.extend(record.writes.iter().filter_map(|(key, value)| Some(((key, value.as_ref()?), at))));
    }
    let mut seen: BTreeSet<usize> = BTreeSet::new();
    for record in records.iter().filter(|record| record.told == Told::Committed) {
        for (key, value) in record.found() {
            let writer = value.and_then(|value| writers.get(&(key, value)));
            match (writer.map(|writer| &records[*writer]), value) {
                (Some(writer), _) if writer.told == Told::Aborted => {
                    wrong.push(("aborted", format!("{} saw {key} as {}, who was told that it did not take place", record.who, writer.who)));
                }
                (None, Some(value)) if !(world.is_foreign)(key, value) => {
                    wrong.push(("invented", format!("{} saw {value:?} in {key}, which nobody wrote", record.who)));
                }
                _ => seen.extend(writer),
            }
        }
        wrong.extend(record.scans.iter().filter_map(|scan| misread(record, scan)));
        wrong.extend(more(record));
    }
    // Of what nobody was told, what somebody saw took place.
    let took_place = |at: usize| records[at].told == Told::Committed || seen.contains(&at);
    let graph = Graph::of(records, &writers, world, &took_place);
    if let Some(cycle) = cycle(&graph.edges) {
        let names: Vec<&str> = cycle.iter().filter_map(|at| Some(records.get(*at)?.who.as_str())).collect();
        wrong.push(("strict", format!("each of these comes before the next, and the last before the first: {}", names.join(", "))));
    }
    wrong
}

/// A range has its keys in order, and no more than were wanted.
fn misread(record: &Record, scan: &Scan) -> Option<Wrong> {
    let in_order = scan.rows.is_sorted_by(|(one, _), (next, _)| scan.direction.order(one, next).is_lt());
    let is_right = in_order && scan.rows.len() <= scan.limit && scan.rows.iter().all(|(key, _)| scan.range.contains(key));
    (!is_right).then(|| ("ranges", format!("{} read {} and found {:?}", record.who, scan.range, scan.rows)))
}

/// Who sees all accounts sees all the money.
fn sum(record: &Record) -> Option<Wrong> {
    let balance = |key: &Key| {
        let (_, value) = record.reads.iter().find(|(read, _)| read == key)?;
        Some(keys::number(value.as_ref()).unwrap_or(keys::BALANCE))
    };
    let balances: Option<Vec<i64>> = keys::accounts().iter().map(balance).collect();
    let balances = balances?;
    let (sum, should) = (balances.iter().sum::<i64>(), keys::BALANCE * i64::try_from(balances.len()).expect("few accounts"));
    (sum != should).then(|| ("sums", format!("{} saw {sum} in all accounts together, not {should}", record.who)))
}

/// Who looks at all seats sees no more of them taken than may be.
fn overtaken(record: &Record, scan: &Scan) -> Option<Wrong> {
    let is_over = scan.range == keys::seats() && scan.rows.len() > keys::TAKEN_MAX;
    is_over.then(|| ("seats", format!("{} saw {} seats taken: {:?}", record.who, scan.rows.len(), scan.rows)))
}

/// Of each key those who may have deleted it.
struct Deletions<'a>(BTreeMap<&'a Key, Vec<Deletion>>);

/// Whose it is, by its place, and when that began and ended.
struct Deletion {
    by: usize,
    began: u64,
    ended: Option<u64>,
}

impl<'a> Deletions<'a> {
    fn of(records: &'a [Record]) -> Self {
        let mut all: BTreeMap<&Key, Vec<Deletion>> = BTreeMap::new();
        for (by, record) in records.iter().enumerate().filter(|(_, record)| record.told != Told::Aborted) {
            for (key, _) in record.writes.iter().filter(|(_, value)| value.is_none()) {
                all.entry(key).or_default().push(Deletion { by, began: record.began, ended: record.ended });
            }
        }
        Self(all)
    }

    /// Whose writes certainly come after the reader at that place, who found no value in `key`: the deletion that it saw, if it saw one, was
    /// over before they began.
    fn none_before(&self, reader: usize, record: &'a Record, key: &Key) -> impl Fn(&Record) -> bool {
        let all = self.0.get(key).into_iter().flatten();
        let seen = all.filter(|deletion| deletion.by != reader && record.ended.is_none_or(|ended| deletion.began <= ended));
        let over: Option<u64> = seen.map(|deletion| deletion.ended.unwrap_or(u64::MAX)).max();
        move |writer| over.is_none_or(|over| over < writer.began) && !record.is_before(writer)
    }
}

/// Who comes before whom: transactions by their places, and behind them moments.
struct Graph {
    edges: Vec<BTreeSet<usize>>,
}

impl Graph {
    fn of(records: &[Record], writers: &BTreeMap<(&Key, &Value), usize>, world: &World<'_>, took_place: &impl Fn(usize) -> bool) -> Self {
        let mut graph = Self { edges: vec![BTreeSet::new(); records.len()] };
        let placed: Vec<(usize, &Record)> = records.iter().enumerate().filter(|(at, _)| took_place(*at)).collect();
        let mut writers_of: BTreeMap<&Key, Vec<usize>> = BTreeMap::new();
        let mut next: BTreeMap<(&Key, Option<&Value>), Vec<usize>> = BTreeMap::new();
        let deletions = Deletions::of(records);
        for (at, record) in &placed {
            record.writes.iter().for_each(|(key, _)| writers_of.entry(key).or_default().push(*at));
            for (key, value) in record.found().filter(|(key, _)| record.writes(key)) {
                next.entry((key, value)).or_default().push(*at);
            }
        }
        let none = Vec::new();
        for (reader, record) in &placed {
            for (key, value) in record.found() {
                let all = writers_of.get(key).unwrap_or(&none);
                let Some(value) = value else {
                    let is_later = deletions.none_before(*reader, record, key);
                    let later = all.iter().filter(|writer| !(world.is_open)(key) && is_later(&records[**writer]));
                    later.for_each(|writer| graph.edge(*reader, *writer));
                    continue;
                };
                next.get(&(key, Some(value))).unwrap_or(&none).iter().for_each(|overwriter| graph.edge(*reader, *overwriter));
                if let Some(writer) = writers.get(&(key, value)) {
                    graph.edge(*writer, *reader);
                    let written = &records[*writer];
                    // What the moments say needs no edge.
                    let is_later = |other: &Record| written.is_before(other) && !record.is_before(other);
                    all.iter().filter(|other| is_later(&records[**other])).for_each(|later| graph.edge(*reader, *later));
                    let is_earlier = |other: &Record| other.is_before(record) && !other.is_before(written);
                    all.iter().filter(|other| is_earlier(&records[**other])).for_each(|earlier| graph.edge(*earlier, *writer));
                }
            }
            for scan in &record.scans {
                let missed = writers_of.range::<Key, _>(scan.range.low()..).take_while(|(key, _)| **key < scan.range.high());
                let missed = missed
                    .filter(|(key, _)| !(world.is_open)(key) && scan.covers(key) && !scan.rows.iter().any(|(found, _)| found == **key));
                for (key, writers) in missed {
                    let is_later = deletions.none_before(*reader, record, key);
                    writers.iter().filter(|writer| is_later(&records[**writer])).for_each(|writer| graph.edge(*reader, *writer));
                }
            }
        }
        graph.moments(&placed);
        graph
    }

    fn edge(&mut self, from: usize, to: usize) {
        if from != to {
            self.edges[from].insert(to);
        }
    }

    /// What has ended comes before what begins afterwards.
    fn moments(&mut self, placed: &[(usize, &Record)]) {
        let mut ends: Vec<(u64, usize)> = placed.iter().filter_map(|(at, record)| Some((record.ended?, *at))).collect();
        ends.sort_unstable();
        let first = self.edges.len();
        self.edges.resize(first + ends.len(), BTreeSet::new());
        for (place, (_, at)) in ends.iter().enumerate() {
            self.edge(*at, first + place);
            if place > 0 {
                self.edge(first + place - 1, first + place);
            }
        }
        for (at, record) in placed {
            let before = ends.partition_point(|(ended, _)| *ended < record.began);
            if before > 0 {
                self.edge(first + before - 1, *at);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A transaction from one time to another that read and wrote these; a value is a tag, and `-` is none.
    fn record(times: (u64, u64), reads: &[(&str, &str)], writes: &[(&str, &str)]) -> Record {
        let value = |text: &str| (text != "-").then(|| keys::tagged(0, text));
        let all = |all: &[(&str, &str)]| all.iter().map(|(key, text)| (Key::from(*key), value(text))).collect();
        let (began, ended) = (times.0, Some(times.1));
        Record { who: format!("{times:?}"), began, ended, told: Told::Committed, reads: all(reads), scans: Vec::new(), writes: all(writes) }
    }

    fn checkers(records: &[Record]) -> Vec<&'static str> {
        Records(records.to_vec()).check().into_iter().map(|(checker, _)| checker).collect()
    }

    #[test]
    fn one_after_the_other_is_fine() {
        let records = [
            record((1, 2), &[("counter/0", "-")], &[("counter/0", "a")]),
            record((3, 4), &[("counter/0", "a")], &[("counter/0", "b")]),
            record((5, 6), &[("counter/0", "b")], &[]),
        ];
        assert_eq!(checkers(&records), [""; 0]);
    }

    #[test]
    fn a_lost_update_is_noticed() {
        let one = record((1, 9), &[("counter/0", "-")], &[("counter/0", "a")]);
        let other = record((1, 9), &[("counter/0", "-")], &[("counter/0", "b")]);
        assert_eq!(checkers(&[one, other]), ["strict"]);
    }

    #[test]
    fn a_read_of_what_was_overwritten_before_it_began_is_noticed() {
        let (first, second) = (record((1, 2), &[], &[("open/0", "a")]), record((3, 4), &[], &[("open/0", "b")]));
        let late = record((5, 6), &[("open/0", "a")], &[]);
        assert_eq!(checkers(&[first.clone(), second.clone(), late]), ["strict"]);
        let meanwhile = record((3, 6), &[("open/0", "a")], &[]);
        assert_eq!(checkers(&[first, second, meanwhile]), [""; 0]);
    }

    /// A client whose clock was ahead writes first; what another writes later is hidden under that.
    #[test]
    fn a_write_that_is_hidden_under_an_earlier_one_is_noticed() {
        let (first, second) = (record((1, 2), &[], &[("open/0", "a")]), record((3, 4), &[], &[("open/0", "b")]));
        let sees_second = record((5, 6), &[("open/0", "b")], &[]);
        let sees_first = record((8, 9), &[("open/0", "a")], &[]);
        assert_eq!(checkers(&[first.clone(), second.clone(), sees_second.clone()]), [""; 0]);
        assert_eq!(checkers(&[first, second, sees_second, sees_first]), ["strict"]);
    }

    #[test]
    fn a_value_that_was_written_before_what_the_reader_must_see_is_noticed() {
        // The third follows the first, by a fourth in between, and the reader follows the third.
        let first = record((1, 4), &[], &[("open/0", "a"), ("open/1", "a")]);
        let third = record((3, 8), &[("open/2", "d")], &[("open/0", "c")]);
        let fourth = record((5, 6), &[("open/1", "a")], &[("open/2", "d")]);
        let (sees_third, sees_first) = (record((9, 10), &[("open/0", "c")], &[]), record((9, 10), &[("open/0", "a")], &[]));
        let all = [first, third, fourth];
        assert_eq!(checkers(&[&all[..], &[sees_third]].concat()), [""; 0]);
        assert_eq!(checkers(&[&all[..], &[sees_first]].concat()), ["strict"]);
    }

    /// Nobody who saw a transaction tells when it ended; what it wrote still comes after what was acknowledged before it began.
    #[test]
    fn what_nobody_was_told_hides_under_nothing_that_was_acknowledged_before_it_began() {
        let first = record((1, 2), &[], &[("open/0", "a"), ("open/1", "a")]);
        let mut unknown = record((3, 4), &[], &[("open/0", "b"), ("open/2", "b")]);
        (unknown.told, unknown.ended) = (Told::Nothing, None);
        let late = record((5, 6), &[("open/0", "a"), ("open/2", "b")], &[]);
        assert_eq!(checkers(&[first, unknown, late]), ["strict"]);
    }

    #[test]
    fn what_was_acknowledged_and_is_gone_is_noticed() {
        let write = record((1, 2), &[("counter/0", "-")], &[("counter/0", "a")]);
        assert_eq!(checkers(&[write.clone(), record((3, 4), &[("counter/0", "-")], &[])]), ["strict"]);
        let mut scan = record((3, 4), &[], &[]);
        scan.scans.push(Scan { range: keys::log(0), direction: Direction::Ascending, limit: 9, rows: Vec::new() });
        let entry = record((1, 2), &[], &[("log/5", "a")]);
        assert_eq!(checkers(&[entry.clone(), scan.clone()]), ["strict"], "a range may miss nothing");
        scan.scans[0].rows = vec![(Key::from("log/5"), keys::tagged(0, "a"))];
        assert_eq!(checkers(&[entry, scan]), [""; 0]);
    }

    #[test]
    fn nothing_found_where_somebody_deleted_says_who_wrote_later() {
        let (write, delete) = (record((1, 2), &[], &[("counter/0", "a")]), record((3, 4), &[], &[("counter/0", "-")]));
        let again = record((5, 6), &[], &[("counter/0", "b")]);
        let nothing = |times| record(times, &[("counter/0", "-")], &[]);
        assert_eq!(checkers(&[write.clone(), delete.clone(), again.clone(), nothing((3, 6))]), [""; 0]);
        assert_eq!(checkers(&[write.clone(), delete.clone(), again.clone(), nothing((7, 8))]), ["strict"]);
        let other = record((5, 9), &[], &[("counter/0", "-")]);
        assert_eq!(checkers(&[write, delete, again, nothing((7, 8)), other]), [""; 0], "that may be what it saw");
    }

    #[test]
    fn writes_skew_is_noticed() {
        let one = record((1, 9), &[("counter/0", "-"), ("counter/1", "-")], &[("counter/0", "a")]);
        let other = record((1, 9), &[("counter/0", "-"), ("counter/1", "-")], &[("counter/1", "b")]);
        assert_eq!(checkers(&[one, other]), ["strict"]);
    }

    #[test]
    fn what_was_aborted_or_never_written_is_not_seen() {
        let mut aborted = record((1, 2), &[], &[("counter/0", "a")]);
        aborted.told = Told::Aborted;
        assert_eq!(checkers(&[aborted, record((3, 4), &[("counter/0", "a")], &[])]), ["aborted"]);
        assert_eq!(checkers(&[record((3, 4), &[("counter/0", "a")], &[])]), ["invented"]);
    }

    #[test]
    fn what_nobody_was_told_took_place_if_it_was_seen() {
        let mut unknown = record((1, 2), &[("counter/0", "-")], &[("counter/0", "a")]);
        (unknown.told, unknown.ended) = (Told::Nothing, None);
        assert_eq!(checkers(&[unknown.clone(), record((3, 4), &[("counter/0", "-")], &[])]), [""; 0]);
        let (seen, not_seen) = (record((3, 4), &[("counter/0", "a")], &[]), record((5, 6), &[("counter/0", "-")], &[]));
        assert_eq!(checkers(&[unknown, seen, not_seen]), ["strict"]);
    }
}
