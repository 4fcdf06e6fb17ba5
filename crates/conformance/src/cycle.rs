//! Cycles among what must come before what.

use std::collections::{BTreeMap, BTreeSet};

/// A cycle among these edges, from each to those that come after it. Takes away whoever nothing comes before, again and again: what is left holds a cycle.
pub(crate) fn cycle(edges: &[BTreeSet<usize>]) -> Option<Vec<usize>> {
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
