//! What clients may read and write, by the configurations that replicas go by.
//!
//! Replicas take over a configuration at different times, and each judges by its own. A replica that votes to commit has judged the transaction at some time
//! since it was first shown to anybody; what it answers and shows, it shows by the configuration that it goes by then. In the turn in which it takes one
//! over, that may still be the one before: what was due comes first in a turn.

use std::collections::BTreeMap;
use std::sync::Arc;

use basil::Transaction;
use types::{ClientId, Cluster, Permission, ReplicaId, TransactionId};

use super::Question;

/// The configurations that each replica has gone by, and when.
#[derive(Debug)]
pub(super) struct Rights {
    first: Arc<Cluster>,
    /// Of each replica: how many transactions had been shown when it began to go by each.
    gone_by: BTreeMap<ReplicaId, Vec<(usize, Arc<Cluster>)>>,
    /// Those before the current one by which a replica may still answer.
    left: BTreeMap<ReplicaId, Vec<Arc<Cluster>>>,
    /// How many transactions had been shown before each.
    shown: BTreeMap<TransactionId, usize>,
}

impl Rights {
    /// Everybody goes by the rights in `first`.
    pub fn new(first: Arc<Cluster>) -> Self {
        Self { first, gone_by: BTreeMap::new(), left: BTreeMap::new(), shown: BTreeMap::new() }
    }

    /// A replica goes by the rights in `cluster` from now on.
    pub fn goes_by(&mut self, by: ReplicaId, cluster: &Arc<Cluster>) {
        let current = self.current(by);
        if current.clients() != cluster.clients() {
            let before = Arc::clone(current);
            self.left.entry(by).or_default().push(before);
            self.gone_by.entry(by).or_default().push((self.shown.len(), Arc::clone(cluster)));
        }
    }

    /// From now on a replica answers by the last configuration alone.
    pub fn has_taken_over(&mut self, by: ReplicaId) {
        self.left.remove(&by);
    }

    /// Somebody shows a transaction.
    pub fn shown(&mut self, id: TransactionId) {
        let before = self.shown.len();
        self.shown.entry(id).or_insert(before);
    }

    fn current(&self, by: ReplicaId) -> &Arc<Cluster> {
        self.gone_by.get(&by).and_then(|all| all.last()).map_or(&self.first, |(_, cluster)| cluster)
    }

    /// Whether a replica that answers a client now goes by a configuration under which that has the right to it.
    fn permits(&self, by: ReplicaId, client: ClientId, what: impl Fn(&Permission) -> bool) -> bool {
        let mut all = self.left.get(&by).into_iter().flatten().chain([self.current(by)]);
        all.any(|cluster| cluster.permission(client).is_some_and(&what))
    }

    /// Those by which a replica has gone since a transaction was first shown.
    fn since(&self, by: ReplicaId, id: TransactionId) -> impl Iterator<Item = &Cluster> {
        let all = self.gone_by.get(&by).map_or(&[][..], Vec::as_slice);
        let shown = self.shown.get(&id).copied().unwrap_or(0);
        let later = all.iter().position(|(at, _)| *at > shown).unwrap_or(all.len());
        let then = later.checked_sub(1).map_or(&*self.first, |last| &*all[last].1);
        std::iter::once(then).chain(all[later..].iter().map(|(_, cluster)| &**cluster))
    }

    /// What the author of a transaction has no right to, as a sentence, if there is something under each configuration by which `by` has gone since the transaction
    /// was first shown.
    pub fn exceeded_at(&self, by: ReplicaId, transaction: &Transaction) -> Option<String> {
        let mut all = self.since(by, transaction.id()).map(|cluster| exceeded(cluster, transaction));
        let last = all.next().flatten()?;
        all.try_fold(last, |_, exceeded| exceeded)
    }

    /// The same, where there is something at each of these replicas.
    pub fn exceeded_at_all(&self, mut replicas: impl Iterator<Item = ReplicaId>, transaction: &Transaction) -> Option<String> {
        let first = self.exceeded_at(replicas.next()?, transaction)?;
        replicas.try_fold(first, |_, by| self.exceeded_at(by, transaction))
    }

    /// Whether a client may ask a replica that.
    pub fn may_ask(&self, by: ReplicaId, client: ClientId, question: &Question) -> bool {
        self.permits(by, client, |permission| match question {
            Question::Keys(keys) => keys.iter().all(|key| permission.may_read(key)),
            Question::Range(range, _) => permission.may_read_range(range),
        })
    }

    /// Whether a replica may show a client the whole of a transaction.
    pub fn may_see(&self, by: ReplicaId, client: ClientId, transaction: &Transaction) -> bool {
        let may_read_all = |permission: &Permission| {
            let reads = transaction.reads().iter().map(|read| &read.key);
            let mut keys = reads.chain(transaction.writes().iter().map(|write| &write.key));
            keys.all(|key| permission.may_read(key)) && transaction.ranges().iter().all(|range| permission.may_read_range(range))
        };
        client == transaction.timestamp().client || self.permits(by, client, may_read_all)
    }
}

/// What the author of a transaction has no right to, if there is anything.
fn exceeded(cluster: &Cluster, transaction: &Transaction) -> Option<String> {
    let author = transaction.timestamp().client;
    let Some(permission) = cluster.permission(author) else { return Some(format!("{author} is no client")) };
    let read = transaction.reads().iter().find(|read| !permission.may_read(&read.key));
    let range = transaction.ranges().iter().find(|range| !permission.may_read_range(range));
    let write = transaction.writes().iter().find(|write| !permission.may_write(&write.key));
    let what = read.map(|read| format!("read {}", read.key)).or_else(|| range.map(|range| format!("read {range}")));
    what.or_else(|| write.map(|write| format!("write {}", write.key))).map(|what| format!("{author} may not {what}"))
}

#[cfg(test)]
mod tests {
    use basil::Write;
    use types::{ClusterId, Direction, Key, KeyRange, Placement, ShardId, Timestamp};

    use super::*;

    const AUTHOR: ClientId = ClientId(1);
    const OTHER: ClientId = ClientId(2);

    /// One shard of six, in which each of two clients may read and write what begins so.
    fn cluster(author: &str, other: &str) -> Arc<Cluster> {
        let may = |at: u8, prefix: &str| Permission {
            public_key: [100 + at; 32],
            read_prefixes: vec![Key::from(prefix)],
            write_prefixes: vec![Key::from(prefix)],
            ..Permission::default()
        };
        let replicas = vec![(0..6).map(|at| [at; 32]).collect()];
        let clients = vec![(AUTHOR, may(1, author)), (OTHER, may(2, other))];
        Arc::new(Cluster::new(ClusterId::new([7; 16]), 1, Placement::Hash, replicas, clients).expect("such a cluster can be"))
    }

    fn replica(index: u16) -> ReplicaId {
        ReplicaId { shard: ShardId(0), index }
    }

    fn writes(key: &str, time: u64) -> Transaction {
        let write = Write { key: Key::from(key), value: None };
        Transaction::new(ClusterId::new([7; 16]), Timestamp::new(time, AUTHOR), Vec::new(), vec![write]).expect("it is small")
    }

    #[test]
    fn each_replica_is_held_to_what_it_has_gone_by_since_a_transaction_was_shown() {
        let mut rights = Rights::new(cluster("a", "a"));
        let (before, after) = (writes("b1", 1), writes("b2", 2));
        rights.shown(before.id());
        assert!(rights.exceeded_at(replica(0), &before).is_some_and(|what| what.contains("may not write b1")));
        rights.goes_by(replica(0), &cluster("b", "a"));
        assert_eq!(rights.exceeded_at(replica(0), &before), None, "it may have been judged since");
        assert!(rights.exceeded_at(replica(1), &before).is_some(), "another has not heard of that yet");
        assert_eq!(rights.exceeded_at_all([replica(1), replica(0)].into_iter(), &before), None, "one is enough");
        rights.goes_by(replica(0), &cluster("a", "a"));
        assert_eq!(rights.exceeded_at(replica(0), &before), None, "it may have been judged meanwhile");
        rights.shown(after.id());
        assert!(rights.exceeded_at(replica(0), &after).is_some(), "what comes later may not");
        assert!(rights.exceeded_at_all([replica(1), replica(0)].into_iter(), &after).is_some());
    }

    #[test]
    fn what_is_answered_and_shown_is_held_to_what_the_replica_goes_by_now() {
        let mut rights = Rights::new(cluster("a", "a"));
        let question = Question::Keys(vec![Key::from("a1"), Key::from("b1")]);
        let range = Question::Range(KeyRange::new(Key::from("b"), Key::from("c")).expect("it has keys"), Direction::Ascending);
        let transaction = writes("b1", 1);
        assert!(!rights.may_ask(replica(0), OTHER, &question) && !rights.may_ask(replica(0), OTHER, &range));
        assert!(!rights.may_see(replica(0), OTHER, &transaction) && rights.may_see(replica(0), AUTHOR, &transaction));
        rights.goes_by(replica(0), &cluster("a", ""));
        rights.has_taken_over(replica(0));
        assert!(rights.may_ask(replica(0), OTHER, &question) && rights.may_ask(replica(0), OTHER, &range));
        assert!(rights.may_see(replica(0), OTHER, &transaction) && !rights.may_see(replica(1), OTHER, &transaction));
        rights.goes_by(replica(0), &cluster("", "b"));
        assert!(rights.may_ask(replica(0), OTHER, &question), "its machine may not have been told yet");
        rights.has_taken_over(replica(0));
        assert!(!rights.may_ask(replica(0), OTHER, &question) && rights.may_ask(replica(0), OTHER, &range));
    }
}
