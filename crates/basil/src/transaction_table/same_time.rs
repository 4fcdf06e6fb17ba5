//! Timestamps that several transactions claim: those of a client that lies, or that two processes of one client happened to draw.
//!
//! Of all other timestamps, the table itself tells whose they are. Of these it would have to look at each transaction there, and a liar makes
//! many.

use foldhash::HashMap;
use types::Timestamp;

use crate::timestamp_index::OrderKey;

/// The timestamps, while more than one claims them, or did.
#[derive(Debug, Default)]
pub(super) struct SameTime(HashMap<Timestamp, Claimed>);

/// One of them.
#[derive(Debug)]
struct Claimed {
    /// How many transactions that are known claim it.
    claims: usize,
    /// The prepared or committed one, by its number.
    holder: Option<u64>,
}

impl SameTime {
    /// One more claims `timestamp`, which `other` claims already, and holds or not.
    pub fn claim(&mut self, timestamp: Timestamp, other: u64, is_held: bool) {
        let new = || Claimed { claims: 1, holder: is_held.then_some(other) };
        self.0.entry(timestamp).or_insert_with(new).claims += 1;
    }

    /// One is prepared, and holds its timestamp unless another does.
    pub fn prepared(&mut self, at: OrderKey) {
        if let Some(claimed) = self.0.get_mut(&at.0) {
            claimed.holder.get_or_insert(at.1);
        }
    }

    /// One has committed: the timestamp is its own.
    pub fn committed(&mut self, at: OrderKey) {
        if let Some(claimed) = self.0.get_mut(&at.0) {
            claimed.holder = Some(at.1);
        }
    }

    /// One is neither prepared nor committed any more.
    pub fn let_go(&mut self, at: OrderKey) {
        if let Some(claimed) = self.0.get_mut(&at.0).filter(|claimed| claimed.holder == Some(at.1)) {
            claimed.holder = None;
        }
    }

    /// One is forgotten.
    pub fn forget(&mut self, timestamp: Timestamp) {
        if let Some(claimed) = self.0.get_mut(&timestamp) {
            claimed.claims -= 1;
            if claimed.claims == 0 {
                self.0.remove(&timestamp);
            }
        }
    }

    /// Who holds `timestamp`, if anybody does; none if it is not one of these.
    pub fn holder(&self, timestamp: Timestamp) -> Option<Option<u64>> {
        self.0.get(&timestamp).map(|claimed| claimed.holder)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use machine::Time;
    use store::{Memory, Options, Store};
    use types::{ClientId, Key, ShardId};

    use super::super::TransactionTable;
    use super::*;
    use crate::certificate::{Decision, Vote};
    use crate::testing::one_shard;
    use crate::transaction::{Transaction, Write};
    use crate::transaction_state::{Quota, QuotaOwner};

    /// Whatever becomes of five transactions, of which a liar has given three one timestamp and two another, in whatever order.
    #[test]
    fn a_timestamp_is_held_by_whoever_committed_there_or_was_prepared_first() {
        let (cluster, client) = (one_shard(), ClientId(1));
        let write = |number: u8| Write { key: Key::from(number.to_string().as_str()), value: None };
        let at = |number: u8| Timestamp::new(1 + u64::from(number / 3), client);
        let transaction = |number| Transaction::new(cluster.id(), at(number), vec![], vec![write(number)]).expect("it is small");
        let transactions: Vec<Transaction> = (0..5).map(transaction).collect();
        for seed in 0..3_000_u64 {
            let store = Store::open(Memory::new("liar"), Options::default()).expect("a new store opens");
            let mut table = TransactionTable::new(cluster.clone(), ShardId(0), store, 7, 16);
            assert!(table.store.replay().expect("it is new").is_none());
            let mut holders: BTreeMap<Timestamp, usize> = BTreeMap::new();
            let mut random = seed;
            for _ in 0..24 {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let (number, what) = ((random >> 33) as usize % 5, (random >> 40) % 6);
                let (transaction, id) = (&transactions[number], transactions[number].id());
                let (timestamp, was_prepared) = (transaction.timestamp(), table.get(id).is_some_and(|state| state.is_prepared()));
                let is_decided = table.get(id).is_some_and(|state| state.decision().is_some());
                let is_holder = was_prepared && holders.get(&timestamp) == Some(&number);
                match what {
                    0 | 1 => {
                        table.enter(transaction, Time(0), Quota::prepare(QuotaOwner::Client(client)));
                    }
                    2 if table.get(id).is_some_and(|state| state.vote().is_none() && !is_decided) => {
                        table.restore_vote(id, Vote::Commit);
                        holders.entry(timestamp).or_insert(number);
                    }
                    3 if table.get(id).is_some() && !is_decided => {
                        table.conclude(id, Decision::Commit, None);
                        holders.insert(timestamp, number);
                    }
                    4 if table.get(id).is_some() && !is_decided => {
                        table.conclude(id, Decision::Abort, None);
                        is_holder.then(|| holders.remove(&timestamp));
                    }
                    5 if table.get(id).is_some() => {
                        table.forget(id);
                        is_holder.then(|| holders.remove(&timestamp));
                    }
                    _ => {}
                }
                for number in [0, 3] {
                    let held = holders.get(&at(number)).map(|number| transactions[*number].id());
                    assert_eq!(table.holder_of(at(number)), held, "seed {seed}");
                }
            }
            transactions.iter().for_each(|transaction| table.forget(transaction.id()));
            assert!(table.same_time.0.is_empty(), "seed {seed}: nothing is left of what is forgotten");
        }
    }
}
