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

/// Takes away whoever nothing comes before, again and again: what is left holds a cycle.
fn cycle(edges: &[BTreeSet<usize>]) -> Option<Vec<usize>> {
    let mut before = vec![0_usize; edges.len()];
    for to in edges.iter().flatten() {
        before[*to] += 1;
    }
    let mut free: Vec<usize> = (0..edges.len()).filter(|at| before[*at] == 0).collect();
    let mut gone = vec![false; edges.len()];
    while let Some(at) = free.pop() {
        gone[at] = true;
        for to in &edges[at] {
            before[*to] -= 1;
            if before[*to] == 0 {
                free.push(*to);
            }
        }
    }
    // Everyone left has someone left before it: walking backwards must come round.
    let mut previous: BTreeMap<usize, usize> = BTreeMap::new();
    for from in (0..edges.len()).filter(|at| !gone[*at]) {
        for to in edges[from].iter().filter(|to| !gone[**to]) {
            previous.insert(*to, from);
        }
    }
    let mut at = *previous.keys().next()?;
    let mut path = Vec::new();
    while !path.contains(&at) {
        path.push(at);
        at = *previous.get(&at)?;
    }
    let start = path.iter().position(|other| *other == at)?;
    let mut cycle = path.split_off(start);
    cycle.reverse();
    Some(cycle)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(edges: &[(usize, usize)], nodes: usize) -> Vec<BTreeSet<usize>> {
        let mut graph = vec![BTreeSet::new(); nodes];
        for (from, to) in edges {
            graph[*from].insert(*to);
        }
        graph
    }

    #[test]
    fn what_can_be_put_in_a_row_has_no_cycle() {
        assert_eq!(cycle(&graph(&[(0, 1), (1, 2), (0, 2), (3, 2)], 4)), None);
    }

    #[test]
    fn a_cycle_is_found_among_much_that_is_none() {
        let found = cycle(&graph(&[(0, 1), (1, 2), (2, 3), (3, 1), (3, 4)], 5)).expect("1, 2 and 3 go round");
        assert_eq!(found.len(), 3);
        assert!([1, 2, 3].iter().all(|at| found.contains(at)));
    }
}
