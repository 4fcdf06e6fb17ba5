//! How things are called in scripts: `t1` a transaction, `r0` to `r5` the replicas of the first shard, `q0` to `q5`
//! those of the second, `@150` the version written by the transaction of client 1 at 150 ms, `@150.c2` client 2's.

use std::collections::BTreeMap;

use machine::Time;
use types::{ClientId, Direction, Key, ReplicaId, ShardId, Timestamp, TransactionId, Value};

/// When scripts begin; their times are relative to it, in milliseconds.
pub const BEGINNING: Time = Time(1_700_000_000_000_000_000);

/// The instant a script calls `ms`.
pub fn instant(ms: i64) -> u64 {
    BEGINNING.0.checked_add_signed(ms * 1_000_000).expect("scripts name times near their beginning")
}

/// `@150`, `@150.c2`, or `@0` for the version that nobody wrote.
pub fn version(timestamp: Timestamp) -> String {
    if timestamp == Timestamp::ZERO {
        return "@0".to_owned();
    }
    let ms = (i128::from(timestamp.time) - i128::from(BEGINNING.0)) / 1_000_000;
    if timestamp.client == ClientId(1) { format!("@{ms}") } else { format!("@{ms}.{}", timestamp.client) }
}

/// The inverse of [`version`].
pub fn parse_version(text: &str) -> Timestamp {
    let text = text.strip_prefix('@').expect("a version begins with @");
    if text == "0" {
        return Timestamp::ZERO;
    }
    let (ms, client) = text.split_once('.').unwrap_or((text, "c1"));
    Timestamp::new(instant(ms.parse().expect("a version is a number of milliseconds")), parse_client(client))
}

pub fn parse_client(text: &str) -> ClientId {
    let number = text.strip_prefix('c').and_then(|number| number.parse().ok());
    ClientId(number.unwrap_or_else(|| panic!("`{text}` is no client, such as c2")))
}

pub fn value(value: Option<&Value>) -> String {
    value.map_or_else(|| "nothing".to_owned(), Value::to_string)
}

pub fn shard(shard: ShardId) -> &'static str {
    if shard.0 == 0 { "the r shard" } else { "the q shard" }
}

pub fn replica(replica: ReplicaId) -> String {
    format!("{}{}", letter(replica.shard), replica.index)
}

fn letter(shard: ShardId) -> char {
    if shard.0 == 0 { 'r' } else { 'q' }
}

/// `r0`, or `r0-r3` for a run of them.
pub fn parse_replicas(words: &[&str]) -> Vec<ReplicaId> {
    let mut replicas = Vec::new();
    for word in words {
        let (first, last) = word.split_once('-').unwrap_or((word, word));
        let (first, last) = (parse_replica(first), parse_replica(last));
        replicas.extend((first.index..=last.index).map(|index| ReplicaId { shard: first.shard, index }));
    }
    replicas
}

fn parse_replica(text: &str) -> ReplicaId {
    let shard = match text.chars().next() {
        Some('r') => ShardId(0),
        Some('q') => ShardId(1),
        _ => panic!("`{text}` is no replica, such as r0 or q5"),
    };
    ReplicaId { shard, index: text[1..].parse().unwrap_or_else(|_| panic!("`{text}` is no replica, such as r0")) }
}

/// Replicas in order, runs of three and more drawn together: `r0-r3 r5`.
fn replicas(replicas: &[ReplicaId]) -> String {
    let mut sorted = replicas.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    let mut words = Vec::new();
    let mut rest = sorted.as_slice();
    while let Some(first) = rest.first() {
        let next = |at: usize| (rest[at].shard, usize::from(rest[at].index)) == (first.shard, usize::from(first.index) + at);
        let length = (1..rest.len()).take_while(|at| next(*at)).count() + 1;
        if length >= 3 {
            words.push(format!("{}-{}", replica(*first), replica(rest[length - 1])));
        } else {
            words.extend(rest[..length].iter().map(|one| replica(*one)));
        }
        rest = &rest[length..];
    }
    words.join(" ")
}

/// What happened during one command. Replicas that do the same share a line.
#[derive(Default)]
pub struct Notes {
    lines: Vec<(Vec<ReplicaId>, String)>,
}

impl Notes {
    /// A line of its own.
    pub fn note(&mut self, line: String) {
        self.lines.push((Vec::new(), line));
    }

    /// `replica` does something; in `what`, `{s}` is the verb's ending.
    pub fn does(&mut self, replica: ReplicaId, what: String) {
        match self.lines.iter_mut().find(|(who, line)| !who.is_empty() && *line == what) {
            Some((who, _)) => who.push(replica),
            None => self.lines.push((vec![replica], what)),
        }
    }

    /// Takes the lines out.
    pub fn take(&mut self) -> Vec<String> {
        let lines = std::mem::take(&mut self.lines).into_iter().map(|(mut who, line)| {
            if who.is_empty() {
                return line;
            }
            who.sort_unstable();
            who.dedup();
            let ending = if who.len() == 1 { "s" } else { "" };
            format!("{} {}", replicas(&who), line.replace("{s}", ending))
        });
        lines.collect()
    }
}

/// The scripts' names of transactions.
#[derive(Default)]
pub struct Names(BTreeMap<TransactionId, String>);

impl Names {
    pub fn give(&mut self, id: TransactionId, name: &str) {
        self.0.insert(id, name.to_owned());
    }

    pub fn of(&self, id: TransactionId) -> String {
        self.0.get(&id).cloned().unwrap_or_else(|| "an unnamed transaction".to_owned())
    }
}

/// How far a page of a range has come.
pub fn all_up_to(direction: Direction, end: &Key) -> String {
    match direction {
        Direction::Ascending => format!("that is all before {end}"),
        Direction::Descending => format!("that is all from {end} on"),
    }
}

/// What an answer without a promise says at its end.
pub fn unpromised(is_promised: bool) -> &'static str {
    if is_promised { "" } else { ", and promise nothing" }
}
