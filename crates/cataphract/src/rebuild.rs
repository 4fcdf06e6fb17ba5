//! One transaction from many, and the results of each (Cataphract, Algorithm 3).
//!
//! The paper turns two flags on for a whole batch: whether some transaction reads what it wrote, and whether some
//! writes what it read; by them it orders all reads and all writes. A batch that holds both kinds would give one of
//! them wrong results. Here every read is resolved by itself: if a write of the same key stands before it, in its own
//! transaction or in an earlier member, it gets the buffered value; otherwise it reads from the store.

use std::collections::BTreeSet;

use basil::{Buffer, ReadFound, Transaction, TransactionError};
use engine::Operation;
use foldhash::{HashMap, HashMapExt as _, HashSet, HashSetExt as _};
use machine::Voters;
use types::{ClusterId, Key, Timestamp, Value};

use crate::work::{Member, Work};

/// Whether what members found on their own is looked at again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Recheck {
    /// It is: their batch was aborted once, perhaps because of it.
    Yes,
    /// It is not; the replicas will.
    No,
}

/// The keys that a batch has to read from the store, in order.
pub(crate) fn outside(members: &[Member], recheck: Recheck) -> Vec<Key> {
    let mut written: HashSet<&Key> = HashSet::new();
    let mut outside: BTreeSet<&Key> = BTreeSet::new();
    for member in members {
        match &member.work {
            Work::Declared(operations) => {
                for operation in operations {
                    match operation {
                        Operation::Get(key) if written.contains(key) => {}
                        Operation::Get(key) => {
                            outside.insert(key);
                        }
                        Operation::Put(key, _) | Operation::Delete(key) => {
                            written.insert(key);
                        }
                        // No member compares: `Pool::submit` takes none.
                        Operation::Compare(..) => {}
                    }
                }
            }
            Work::Interactive(buffer) => {
                if recheck == Recheck::Yes {
                    outside.extend(buffer.read_set().map(|found| &found.key));
                }
                written.extend(buffer.write_set().map(|(key, _)| key));
            }
        }
    }
    outside.into_iter().cloned().collect()
}

/// How the reads of a batch were resolved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Resolved {
    /// Keys read from the store.
    pub outside: u64,
    /// Reads of a write of the same transaction.
    pub own: u64,
    /// Reads of a write of an earlier member.
    pub chained: u64,
}

/// A batch put together.
#[derive(Debug)]
pub(crate) struct Rebuilt {
    pub transaction: Transaction,
    /// If it only reads, and only what is committed: for whom each read is settled.
    pub validated: Option<Vec<Voters>>,
    /// The undecided transactions it read from.
    pub dependencies: Vec<Transaction>,
    /// What each member's reads found, in the members' order.
    pub values: Vec<Vec<Option<Value>>>,
    pub resolved: Resolved,
}

/// Why a batch cannot be put together.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Unready {
    /// These keys have to be read first.
    Missing(Vec<Key>),
    /// It is over a limit.
    TooLarge(TransactionError),
}

/// Takes out of `members` those whose own reads `found` shows to be overtaken.
///
/// Who lies can make two transactions with one timestamp, of which only one commits: then what a member read under that version may
/// never have been, and what is there now would vouch for it. So the values count too.
pub(crate) fn take_stale(members: &mut Vec<Member>, found: &HashMap<Key, ReadFound>) -> Vec<Member> {
    let is_stale = |member: &mut Member| match &member.work {
        Work::Declared(_) => false,
        Work::Interactive(buffer) => {
            buffer.read_set().any(|read| found.get(&read.key).is_some_and(|now| now.version != read.version || now.value != read.value))
        }
    };
    members.extract_if(.., is_stale).collect()
}

/// Builds one transaction of `members`, in their order, at `timestamp`.
pub(crate) fn rebuild(
    members: &[Member],
    found: &HashMap<Key, ReadFound>,
    timestamp: Timestamp,
    cluster: ClusterId,
) -> Result<Rebuilt, Unready> {
    let mut resolved = Resolved::default();
    let mut missing: BTreeSet<&Key> = BTreeSet::new();
    let mut buffer = Buffer::new(timestamp);
    // Who wrote a key last, and what.
    let mut written: HashMap<&Key, (usize, Option<&Value>)> = HashMap::new();
    let mut values = Vec::with_capacity(members.len());
    for (place, member) in members.iter().enumerate() {
        let mut seen = Vec::new();
        match &member.work {
            Work::Declared(operations) => {
                for operation in operations {
                    if let Some((key, value)) = operation.write() {
                        written.insert(key, (place, value));
                        continue;
                    }
                    let key = operation.key();
                    if let Some((writer, value)) = written.get(key) {
                        *(if *writer == place { &mut resolved.own } else { &mut resolved.chained }) += 1;
                        seen.push(value.cloned());
                    } else if let Some(read) = found.get(key) {
                        seen.push(read.value.clone());
                        buffer.found(read.clone());
                    } else {
                        missing.insert(key);
                    }
                }
            }
            Work::Interactive(own) => {
                for read in own.read_set() {
                    assert!(!written.contains_key(&read.key), "who read a key stands before who writes it");
                    // What was found just now is the same, and may be known to have committed meanwhile. What
                    // was settled when it ran was settled at its timestamp of then, which is not the batch's.
                    let now = found.get(&read.key).cloned();
                    buffer.found(now.unwrap_or_else(|| ReadFound { validated: Voters::default(), ..read.clone() }));
                }
                written.extend(own.write_set().map(|(key, value)| (key, (place, value.as_ref()))));
            }
        }
        values.push(seen);
    }
    if !missing.is_empty() {
        return Err(Unready::Missing(missing.into_iter().cloned().collect()));
    }
    for member in members {
        match &member.work {
            Work::Declared(operations) => {
                for (key, value) in operations.iter().filter_map(Operation::write) {
                    buffer.write(key.clone(), value.cloned());
                }
            }
            Work::Interactive(own) => own.write_set().for_each(|(key, value)| buffer.write(key.clone(), value.clone())),
        }
    }
    resolved.outside = buffer.read_set().len() as u64;
    let validated = buffer.validated();
    let (transaction, dependencies) = buffer.finish(cluster).map_err(Unready::TooLarge)?;
    Ok(Rebuilt { transaction, validated, dependencies, values, resolved })
}
