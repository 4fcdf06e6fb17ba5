//! A ring of keys, each naming the next, that transactions rewire without breaking it.
//!
//! After FoundationDB's Cycle workload. A transaction walks three steps from a node it picks,
//! `a -> b -> c -> d`, and swaps the middle two: `a -> c -> b -> d`. Run one after another, such transactions keep
//! one ring of all nodes for ever. Two that overlap and are not serialised tear it into several rings, or leave
//! nodes that nobody names: what a lost update, a dirty read or a skewed write does to data is here for all to see.

use std::collections::BTreeMap;
use std::sync::Arc;

use client::{Client, Transaction};
use rand::Rng;
use serde_json::{Value as Json, json};
use types::{Key, Value};

use crate::load::{Part, load};
use crate::{Done, Error, KEYS_A_REQUEST_MAX, LoopClient, Progress, READS_A_TRANSACTION_MAX, Readiness, Verdict, Work, Workload, persist};

/// The fewest nodes: with three, the fourth node of a walk is the first.
pub const NODES_MIN: u64 = 3;
/// The most nodes a ring may have.
pub const NODES_MAX: u64 = 1_000_000;
/// The longest value read as a node's number.
const NUMBER_BYTES_MAX: usize = 10;

/// The ring workload.
#[derive(Clone, Copy, Debug)]
pub struct Ring {
    nodes: u64,
}

/// What a transaction committed to having seen.
enum Step {
    Swapped,
    Broken(String),
}

impl Ring {
    /// A ring of `nodes` nodes.
    ///
    /// # Errors
    /// [`Error::Settings`] when that is under [`NODES_MIN`] or over [`NODES_MAX`].
    pub fn new(nodes: u64) -> Result<Self, Error> {
        if !(NODES_MIN..=NODES_MAX).contains(&nodes) {
            return Err(Error::Settings(format!("a ring has from {NODES_MIN} to {NODES_MAX} nodes, not {nodes}")));
        }
        Ok(Self { nodes })
    }

    async fn check(self, client: &Client, progress: Progress<'_>) -> Result<Verdict, Error> {
        let mut next = Vec::new();
        let mut from = 0;
        // A ring small enough is read in one transaction and so at one moment. A larger one takes several, which
        // is right only once nobody writes any more.
        while from < self.nodes {
            let to = (from + READS_A_TRANSACTION_MAX).min(self.nodes);
            let read = persist(client, |txn| read_nodes(txn, from, to)).await?;
            next.extend(read.iter().map(|value| value.as_ref().and_then(parse)));
            progress(to, self.nodes);
            from = to;
        }
        Ok(Verdict::of(check_cycle(&next).err().into_iter().collect()))
    }
}

/// Checks that `next`, where node `i` names node `next[i]`, is one ring of all its nodes.
///
/// # Errors
/// In words, what is wrong with it.
pub fn check_cycle(next: &[Option<u64>]) -> Result<(), String> {
    let mut named_by = vec![None; next.len()];
    for (node, target) in next.iter().enumerate() {
        let Some(target) = target else { return Err(format!("node {node} is missing or names no node")) };
        let Some(slot) = usize::try_from(*target).ok().and_then(|target| named_by.get_mut(target)) else {
            return Err(format!("node {node} names node {target}, which the ring does not have"));
        };
        if let Some(other) = slot.replace(node) {
            return Err(format!("nodes {other} and {node} both name node {target}"));
        }
    }
    // Every node names one and is named by one, so this is one ring or several.
    let (mut node, mut steps) = (0, 0);
    while let Some(Some(target)) = next.get(node) {
        node = *target as usize;
        steps += 1;
        if node == 0 {
            break;
        }
    }
    if steps == next.len() { Ok(()) } else { Err(format!("the ring through node 0 has {steps} nodes instead of {}", next.len())) }
}

impl Workload for Ring {
    fn name(&self) -> &'static str {
        "ring"
    }

    fn settings(&self) -> BTreeMap<&'static str, Json> {
        BTreeMap::from([("keys", json!(self.nodes))])
    }

    fn load<'a>(&'a self, client: &'a Arc<Client>, progress: Progress<'a>) -> Work<'a, u64> {
        let nodes = self.nodes;
        let item = move |node| (key(node), value((node + 1) % nodes));
        Box::pin(load(client, vec![Part::rows(nodes, NUMBER_BYTES_MAX, item)], progress))
    }

    fn start<'a>(&'a self, client: &'a Client, _loop_clients: u32) -> Work<'a, Readiness> {
        let nodes = self.nodes;
        Box::pin(async move {
            // The node past the end must not be there: a larger ring, loaded before, is another ring.
            let read = move |txn: Transaction| async move { txn.get_many(&[key(0), key(nodes - 1), key(nodes)]).await };
            let ends = persist(client, read).await?;
            match ends.as_slice() {
                [Some(_), Some(_), None] => Ok(Readiness::Filled),
                [None, None, None] => Err(Error::NotLoaded("the store holds no ring".to_owned())),
                _ => Err(Error::NotLoaded(format!("the store's ring has not {nodes} nodes"))),
            }
        })
    }

    fn transact<'a>(&'a self, client: &'a Client, loop_client: &'a mut LoopClient) -> Work<'a, Done> {
        let first = loop_client.rng.random_range(0..self.nodes);
        Box::pin(async move {
            let committed = client.transact(|txn| swap(txn, first)).await?;
            let done = Done::committed(&committed);
            Ok(match committed.value {
                Step::Swapped => done,
                Step::Broken(what) => Done { broken: Some(what), ..done },
            })
        })
    }

    fn check_running<'a>(&'a self, client: &'a Client) -> Option<Work<'a, Verdict>> {
        (self.nodes <= READS_A_TRANSACTION_MAX).then(|| -> Work<'a, Verdict> { Box::pin(self.check(client, &|_, _| ())) })
    }

    fn check_end<'a>(&'a self, client: &'a Client, progress: Progress<'a>) -> Option<Work<'a, Verdict>> {
        Some(Box::pin(self.check(client, progress)))
    }
}

/// `a -> b -> c -> d` becomes `a -> c -> b -> d`.
async fn swap(txn: Transaction, a: u64) -> Result<Step, client::Error> {
    let mut walk = [a; 4];
    for step in 1..walk.len() {
        let from = walk[step - 1];
        let Some(to) = txn.get(key(from)).await?.as_ref().and_then(parse) else {
            return Ok(Step::Broken(format!("node {from} is missing or names no node")));
        };
        walk[step] = to;
    }
    let [a, b, c, d] = walk;
    // Only a torn ring has these. An attempt may well see one, by reading at an unlucky moment, but then it cannot
    // commit; what is reported has been committed.
    if a == b || b == c || a == c {
        return Ok(Step::Broken(format!("a walk from node {a} comes to {b} and then {c}: the ring is torn")));
    }
    txn.put(key(a), value(c));
    txn.put(key(b), value(d));
    txn.put(key(c), value(b));
    Ok(Step::Swapped)
}

async fn read_nodes(txn: Transaction, from: u64, to: u64) -> Result<Vec<Option<Value>>, client::Error> {
    let keys: Vec<Key> = (from..to).map(key).collect();
    let mut values = Vec::with_capacity(keys.len());
    for keys in keys.chunks(KEYS_A_REQUEST_MAX) {
        values.extend(txn.get_many(keys).await?);
    }
    Ok(values)
}

fn key(node: u64) -> Key {
    Key::from(format!("ring/{node:07}").as_str())
}

fn value(node: u64) -> Value {
    Value::from(node.to_string().as_str())
}

fn parse(value: &Value) -> Option<u64> {
    let bytes = value.as_bytes();
    if bytes.len() > NUMBER_BYTES_MAX {
        return None;
    }
    std::str::from_utf8(bytes).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use rand::rngs::SmallRng;

    fn check(next: &[u64]) -> Result<(), String> {
        check_cycle(&next.iter().copied().map(Some).collect::<Vec<_>>())
    }

    #[test]
    fn one_ring_is_one_ring() {
        check(&[1, 2, 3, 0]).expect("a ring in order");
        check(&[2, 3, 1, 0]).expect("a ring out of order");
        check(&[0]).expect("the smallest ring");
    }

    #[test]
    fn a_torn_ring_is_told() {
        let broken = |next: &[u64], expected: &str| {
            let found = check(next).expect_err("a torn ring");
            assert!(found.contains(expected), "{found}");
        };
        broken(&[1, 0, 3, 2], "has 2 nodes instead of 4");
        broken(&[0, 2, 3, 1], "has 1 nodes instead of 4");
        broken(&[1, 2, 0, 3], "has 3 nodes instead of 4");
        broken(&[1, 2, 1, 0], "nodes 0 and 2 both name node 1");
        broken(&[1, 2, 9, 0], "which the ring does not have");
        broken(&[1, 2, u64::MAX, 0], "which the ring does not have");
        assert!(check_cycle(&[Some(1), None]).expect_err("a hole").contains("node 1 is missing"));
    }

    #[test]
    fn swaps_one_after_another_keep_the_ring_and_two_at_once_tear_it() {
        let mut next: Vec<u64> = (1..8).chain([0]).collect();
        let mut rng = SmallRng::seed_from_u64(5);
        for _ in 0..1_000 {
            let a = rng.random_range(0..8_usize);
            let b = next[a] as usize;
            let c = next[b] as usize;
            let d = next[c];
            (next[a], next[b], next[c]) = (c as u64, d, b as u64);
            check(&next).expect("still a ring");
        }
        // Two swaps from neighbours that both read the ring before either wrote.
        let before = [1, 2, 3, 4, 5, 0];
        let mut after = before;
        for a in [0_usize, 1] {
            let b = before[a] as usize;
            let c = before[b] as usize;
            (after[a], after[b], after[c]) = (c as u64, before[c], b as u64);
        }
        check(&after).expect_err("two swaps at once");
    }

    #[test]
    fn a_value_that_is_no_number_names_no_node() {
        assert_eq!(parse(&Value::from("12")), Some(12));
        assert_eq!(parse(&Value::from("twelve")), None);
        assert_eq!(parse(&Value::from("12345678901")), None);
    }
}
