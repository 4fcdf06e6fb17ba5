//! Serializability as a black box: no timestamp is looked at, so that a wrong rule about timestamps cannot fool both the
//! machines and their checker.
//!
//! Every value names its writer. From what honest clients read follow edges: the writer of what is read comes before the
//! reader; who reads a value and overwrites it comes next after its writer; who reads a value comes before whoever
//! overwrites it, as far as reads tell who does. A cycle among them is an anomaly, whatever the engine thinks.

use std::collections::{BTreeMap, BTreeSet};

use types::{Key, TransactionId};

use super::{Checker, History};
use crate::basil::plan;
use crate::cycle::cycle;

/// A value is named by its key and its tag; the one that was there at first has none.
type Named<'a> = (&'a Key, Option<&'a str>);

/// Looks for a cycle; a sentence if there is one.
pub(crate) fn check(checker: &Checker) -> Vec<String> {
    let histories: Vec<(&TransactionId, &History)> = checker.committed().collect();
    let edges = edges(&histories);
    match cycle(&edges) {
        None => Vec::new(),
        Some(cycle) => {
            let names: Vec<String> = cycle.iter().map(|at| format!("{:?} ({})", histories[*at].0, histories[*at].1.plan.name())).collect();
            vec![format!("each of these comes before the next, and the last before the first: {}", names.join(", "))]
        }
    }
}

fn edges(histories: &[(&TransactionId, &History)]) -> Vec<BTreeSet<usize>> {
    let mut writers: BTreeMap<Named<'_>, usize> = BTreeMap::new();
    let mut writers_of: BTreeMap<&Key, Vec<usize>> = BTreeMap::new();
    let mut readers: BTreeMap<Named<'_>, Vec<usize>> = BTreeMap::new();
    let mut next: BTreeMap<Named<'_>, Vec<usize>> = BTreeMap::new();
    for (at, (_, history)) in histories.iter().enumerate() {
        for write in history.transaction.writes() {
            writers_of.entry(&write.key).or_default().push(at);
            if let Some(tag) = plan::tag(write.value.as_ref()) {
                writers.insert((&write.key, Some(tag)), at);
            }
        }
        for (key, _, value) in &history.seen.reads {
            let named = (key, plan::tag(value.as_ref()));
            if named.1.is_none() && plan::is_deletable(key) {
                continue; // Deleted by somebody, or never written: it does not say.
            }
            readers.entry(named).or_default().push(at);
            if history.transaction.write_of(key).is_some() {
                next.entry(named).or_default().push(at);
            }
        }
    }
    let mut edges = vec![BTreeSet::new(); histories.len()];
    let mut edge = |from: usize, to: usize| {
        if from != to {
            edges[from].insert(to);
        }
    };
    for (named, readers) in &readers {
        let overwriters = match named.1 {
            None => writers_of.get(named.0), // Whoever writes at all comes after what was there at first.
            Some(_) => next.get(named),
        };
        for reader in readers {
            if let Some(writer) = writers.get(named) {
                edge(*writer, *reader);
            }
            for overwriter in overwriters.into_iter().flatten() {
                edge(*reader, *overwriter);
            }
        }
    }
    edges
}
