//! Laying old transactions to rest: what a replica holds undecided below its watermark, when the others know it no more.
//!
//! A replica that was down or cut off for longer than the window comes back with transactions it has voted on and whose end it
//! missed. The others either forgot them when they had ended, or never saw them and are not going to vote on them now; a refusal
//! from them says neither which. So recovery (§5) finds no quorum, and without more the keys would stay in the way for ever. (The paper
//! forgets nothing, and so has no such case.)
//!
//! The replica asks ([`Message::Inquire`]) and is told by each that will not vote for the transaction any more, in a promise that
//! outlasts a crash, which versions that one has of the keys written ([`Message::Rested`]). These answers are between replicas, unsigned. From
//! them follows, for transaction `t` and its keys:
//!
//! - **It never commits** if `3f + 1` replicas of one shard have of one of its keys a version older than `t`. Of these `2f + 1` are
//!   correct, and have not learned that `t` committed; they have not voted to commit it, or learned that it aborted; and now never will vote. That
//!   leaves `3f` votes to commit, one too few, now and later.
//! - **It does not matter whether it did** if of each of its keys on this shard `f + 1` replicas have one and the same version that is not
//!   older than `t`: it is committed, one of them being correct. This replica takes these versions over, and from then on nobody reads here
//!   below them. Where `t` itself is such a version, it comes in like this.
//! - Where it only reads on this shard, its place matters only to writers below it, who come too late anyway: it may go once `3f + 1`
//!   have let it go.
//!
//! Then it is forgotten as if it had ended, and below the watermark nothing is said of it again. If it does commit by others' hands, it comes as any late
//! writeback does. Who waited for it is voted down: always safe, and rarely does anybody that old still wait.
//!
//! One case is left: `2f + 1` or more replicas hold a transaction and `f + 1` others were cut off for longer than the window. They need a
//! log of `4f + 1` and cannot get it.

use std::collections::BTreeMap;

use machine::Time;
use store::{Medium, StoreError};
use types::codec::Encode as _;
use types::{ClientId, Cluster, Key, Party, ReplicaId, ShardId, Timestamp, Transaction, TransactionId};

use crate::certificate::{Decision, Vote};
use crate::message::{KeyVersion, Message};
use crate::quorum::Quorums;
use crate::record::Record;
use crate::replica::{Out, READ_REPLY_BYTES_MAX, Replica};

/// The most transactions asked about at once; the others wait for their turn.
const INQUIRIES_MAX: usize = 256;

/// What others have said of one transaction and its keys.
#[derive(Debug)]
pub(crate) struct Inquiry {
    transaction: Transaction,
    answers: Vec<(ReplicaId, Vec<KeyVersion>)>,
}

/// What the answers allow.
#[derive(Debug, PartialEq)]
enum Rest {
    /// To wait for more.
    NotYet,
    /// To forget the transaction, having taken over these versions.
    Now(Vec<(Key, KeyVersion)>),
}

/// The inquiries of one replica.
#[derive(Debug, Default)]
pub(crate) struct Inquiries(BTreeMap<TransactionId, Inquiry>);

/// The keys of `shard` that `transaction` writes, in order.
fn written<'a>(cluster: &'a Cluster, shard: ShardId, transaction: &'a Transaction) -> impl Iterator<Item = &'a Key> {
    transaction.writes().iter().map(|write| &write.key).filter(move |key| cluster.shard_of(key) == shard)
}

impl Inquiry {
    fn note(&mut self, cluster: &Cluster, from: ReplicaId, versions: Vec<KeyVersion>) {
        if versions.len() == written(cluster, from.shard, &self.transaction).count() {
            self.answers.retain(|(replica, _)| *replica != from);
            self.answers.push((from, versions));
        }
    }

    fn judge(&self, cluster: &Cluster, quorums: Quorums, own: ShardId) -> Rest {
        let timestamp = self.transaction.timestamp();
        let answers = |shard: ShardId| self.answers.iter().filter(move |(replica, _)| replica.shard == shard);
        for shard in cluster.participants(&self.transaction) {
            for place in 0..written(cluster, shard, &self.transaction).count() {
                let older = answers(shard).filter(|(_, versions)| versions[place].version < timestamp).count();
                if older >= quorums.commit_slow() {
                    return Rest::Now(Vec::new());
                }
            }
        }
        let mut taken = Vec::new();
        for (place, key) in written(cluster, own, &self.transaction).enumerate() {
            let newer = answers(own).map(|(_, versions)| &versions[place]).filter(|one| one.version >= timestamp);
            let vouched = newer.filter(|one| answers(own).filter(|(_, other)| other[place] == **one).count() >= quorums.vouched());
            let Some(newest) = vouched.max_by_key(|one| one.version) else { return Rest::NotYet };
            taken.push((key.clone(), newest.clone()));
        }
        if taken.is_empty() && answers(own).count() < quorums.commit_slow() {
            return Rest::NotYet;
        }
        Rest::Now(taken)
    }
}

impl<M: Medium> Replica<M> {
    /// Asks everybody else about an undecided transaction below the watermark.
    pub(crate) fn inquire(&mut self, now: Time, id: TransactionId, out: &mut Out<M>) {
        let Some(entry) = self.ledger.entry(id) else { return };
        let transaction = entry.transaction.clone();
        if transaction.timestamp().time >= self.watermark(now) {
            return;
        }
        if !self.inquiries.0.contains_key(&id) {
            let ledger = &self.ledger;
            self.inquiries.0.retain(|id, _| ledger.entry(*id).is_some_and(|entry| entry.decision.is_none()));
            if self.inquiries.0.len() >= INQUIRIES_MAX {
                return;
            }
            self.inquiries.0.insert(id, Inquiry { transaction: transaction.clone(), answers: Vec::new() });
        }
        for shard in self.cluster.participants(&transaction) {
            for replica in self.cluster.replicas_of(shard).filter(|replica| *replica != self.me) {
                out.send(Party::Replica(replica), Message::Inquire { transaction: transaction.clone() });
            }
        }
    }

    /// Somebody else holds `transaction` undecided. If it will not be voted for here any more, says so, and what there is of
    /// its keys. The promise is written down before it leaves: below the horizon nothing new is judged.
    pub(crate) fn on_inquire(&mut self, now: Time, from: Party, transaction: &Transaction, out: &mut Out<M>) -> Result<(), StoreError> {
        let id = transaction.id();
        let watermark = self.watermark(now);
        let Party::Replica(_) = from else { return Ok(()) };
        if transaction.timestamp().time >= watermark || !transaction.keys().any(|key| self.ledger.holds(key)) {
            return Ok(());
        }
        if let Some(entry) = self.ledger.entry(id) {
            if let Some(certificate) = &entry.certificate {
                out.send(from, Message::Decided { certificate: certificate.clone() });
                return Ok(());
            }
            if entry.decision.is_none() && entry.vote != Some(Vote::Abort) {
                return Ok(());
            }
        }
        let mut versions = Vec::new();
        let mut bytes = 0;
        for key in written(&self.cluster, self.me.shard, transaction) {
            let version = self.ledger.store.latest_before(key, Timestamp::new(watermark, ClientId(0)))?;
            let (version, value) = version.map_or((Timestamp::ZERO, None), |version| (version.timestamp, version.value));
            bytes += value.as_ref().map_or(0, |value| value.as_bytes().len());
            if bytes > READ_REPLY_BYTES_MAX {
                return Ok(());
            }
            versions.push(KeyVersion { version, value });
        }
        self.ledger.raise_horizon(transaction.timestamp().time.saturating_add(1));
        out.send(from, Message::Rested { id, versions });
        Ok(())
    }

    /// What another has to say of a transaction asked about.
    pub(crate) fn on_rested(&mut self, now: Time, from: Party, id: TransactionId, versions: Vec<KeyVersion>, out: &mut Out<M>) {
        let Party::Replica(from) = from else { return };
        let Some(inquiry) = self.inquiries.0.get_mut(&id) else { return };
        inquiry.note(&self.cluster, from, versions);
        let Rest::Now(versions) = inquiry.judge(&self.cluster, self.quorums, self.me.shard) else { return };
        self.inquiries.0.remove(&id);
        let is_open = |entry: &crate::ledger::Entry| entry.decision.is_none() && entry.transaction.timestamp().time < self.watermark(now);
        if self.ledger.entry(id).is_some_and(is_open) {
            self.lay_to_rest(id, versions, out);
        }
    }

    fn lay_to_rest(&mut self, id: TransactionId, versions: Vec<(Key, KeyVersion)>, out: &mut Out<M>) {
        let Some(entry) = self.ledger.entry_mut(id) else { return };
        let dependents = std::mem::take(&mut entry.dependents);
        let own = entry.transaction.timestamp().time;
        let newest = versions.iter().map(|(_, taken)| taken.version.time).max().unwrap_or(0).max(own);
        self.ledger.raise_horizon(newest.saturating_add(1));
        let record = Record::Rested { id, versions: versions.clone() };
        self.ledger.store.append_with(|bytes| record.encode(bytes));
        self.ledger.rest(id, versions);
        self.ballots.forget(id);
        self.counts.rested += 1;
        for dependent in dependents {
            self.dependency_ended(dependent, Decision::Abort, out);
        }
    }
}
