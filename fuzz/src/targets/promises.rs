//! A replica's promises: everything that it must not contradict, across restarts.

use std::collections::{BTreeMap, BTreeSet};

use basil::certificate::{LoggedStatement, VoteStatement};
use basil::message::{OldVersion, PendingWrite, ReadResult, Unsigned};
use basil::{Decision, Message, Transaction, Vote};
use types::{Cluster, Key, Party, ReplicaId, Timestamp, TransactionId};

use crate::reference;

/// What one replica has sent, and what it therefore must not send any more.
pub(super) struct Promises {
    of: ReplicaId,
    said: Said,
    /// What the current turn wants to send. Nobody has received it yet, and a crash undoes it.
    turn: Said,
    logged: BTreeMap<(TransactionId, u32), Decision>,
    /// The last it said of each transaction: the view it decided in, and the one it was in.
    last: BTreeMap<TransactionId, LoggedStatement>,
    elects: BTreeMap<(TransactionId, u32), Decision>,
    decides: BTreeMap<(TransactionId, u32), Decision>,
    /// Every transaction it has been shown.
    shown: BTreeMap<TransactionId, Transaction>,
    /// The ends that were proven to it, true or not: votes after that change nothing.
    ends: BTreeMap<TransactionId, BTreeSet<Decision>>,
    /// Who has told it of which commits: two of one shard are believed.
    told: BTreeSet<(TransactionId, ReplicaId)>,
    /// What it voted to commit in a turn that a crash undid. The vote may be on the disk all the same, and then counts.
    unsure: BTreeSet<TransactionId>,
    /// Transactions that others have let go, so that it may, too.
    gone: BTreeSet<TransactionId>,
}

/// Votes, and what it promised without a signature.
#[derive(Default)]
struct Said {
    votes: BTreeMap<TransactionId, Vote>,
    /// What it let be read as settled: key, version, reader. No version will come between the two.
    validated: BTreeSet<(Key, Timestamp, Timestamp)>,
    /// What it said that it will not vote for.
    rested: BTreeSet<TransactionId>,
}

impl Promises {
    /// Nothing yet.
    pub(super) fn new(of: ReplicaId) -> Self {
        Self {
            of,
            said: Said::default(),
            turn: Said::default(),
            logged: BTreeMap::new(),
            last: BTreeMap::new(),
            elects: BTreeMap::new(),
            decides: BTreeMap::new(),
            shown: BTreeMap::new(),
            ends: BTreeMap::new(),
            told: BTreeSet::new(),
            unsure: BTreeSet::new(),
            gone: BTreeSet::new(),
        }
    }

    /// It hears a message.
    pub(super) fn hears(&mut self, from: Party, message: &Message) {
        match message {
            Message::Prepare { transaction }
            | Message::Recover { transaction, .. }
            | Message::Log { transaction, .. }
            | Message::InvokeFallback { transaction, .. } => drop(self.shown.insert(transaction.id(), transaction.clone())),
            Message::Writeback { transaction, certificate, relay: _ } => {
                self.shown.extend(transaction.iter().map(|transaction| (transaction.id(), transaction.clone())));
                self.ends.entry(certificate.id).or_default().insert(certificate.decision);
            }
            Message::StatusReply { id, .. } => drop(self.gone.insert(*id)),
            Message::CommitNotice { id } => self.is_told(from, *id),
            Message::CommitsReply { ids } => ids.iter().for_each(|id| self.is_told(from, *id)),
            _ => {}
        }
    }

    /// Another says that `id` committed, which is so when two of a shard do.
    fn is_told(&mut self, from: Party, id: TransactionId) {
        let Party::Replica(teller) = from else { return };
        self.told.insert((id, teller));
        if self.told.iter().filter(|(told, other)| *told == id && other.shard == teller.shard).count() >= 2 {
            self.ends.entry(id).or_default().insert(Decision::Commit);
        }
    }

    /// It answers a read at `reader`.
    pub(super) fn lets_read(&mut self, reader: Timestamp, keys: &[Key], results: &[ReadResult], prepared: &[Transaction]) {
        for (key, result) in keys.iter().zip(results) {
            let last = match result.pending {
                PendingWrite::None => result.version,
                PendingWrite::Prepared(place) => prepared[usize::from(place)].timestamp(),
                PendingWrite::Hidden => continue,
            };
            self.turn.validated.insert((key.clone(), last, reader));
        }
    }

    /// It tells another, who holds a transaction of that time, which versions it has of its keys: that it never voted to commit, and never will,
    /// unless all are as new. Of what it released it says the same again.
    pub(super) fn lets_go(&mut self, id: TransactionId, timestamp: Timestamp, versions: &[OldVersion]) {
        let vote = self.said.votes.get(&id).or_else(|| self.turn.votes.get(&id));
        let is_older = versions.iter().any(|one| one.version < timestamp);
        if vote != Some(&Vote::Commit) || is_older {
            let has_ended = self.ends.contains_key(&id) || self.gone.contains(&id);
            assert!(vote != Some(&Vote::Commit) || has_ended, "it says that it never voted for what it has voted for");
            self.turn.rested.insert(id);
        }
    }

    /// It casts a vote.
    pub(super) fn votes(&mut self, cluster: &Cluster, unsigned: &Unsigned) {
        let Unsigned::Vote { replica, statement: VoteStatement { id, vote }, .. } = unsigned else { return };
        assert_eq!(*replica, self.of);
        let rested = self.said.rested.contains(id) || self.turn.rested.contains(id);
        assert!(*vote == Vote::Abort || !rested, "it said that it would not vote for this any more");
        if let Some(earlier) = self.said.votes.get(id).or_else(|| self.turn.votes.get(id)) {
            assert_eq!(earlier, vote, "it voted otherwise before");
            return;
        }
        self.turn.votes.insert(*id, *vote);
        if *vote == Vote::Commit && !self.ends.contains_key(id) {
            self.check_first_vote(cluster, &self.shown[id]);
        }
    }

    /// Of its own accord it votes to commit nothing that does not go with what it let be read, or with what it voted to commit
    /// before and does not know to have aborted.
    fn check_first_vote(&self, cluster: &Cluster, transaction: &Transaction) {
        for (key, version, reader) in self.said.validated.iter().chain(&self.turn.validated) {
            let between = *version < transaction.timestamp() && transaction.timestamp() < *reader;
            let writes = transaction.write_of(key).is_some();
            assert!(!(between && writes), "it let {reader} read {key} at {version}, and votes for {transaction:?}");
        }
        for (id, other) in self.shown.iter().filter(|(id, _)| **id != transaction.id()) {
            let vote = self.said.votes.get(id).or_else(|| self.turn.votes.get(id));
            let aborted = self.ends.get(id).is_some_and(|ends| ends.contains(&Decision::Abort));
            // A vote that has outlived its turn may be older than the proof that the other one has ended.
            let is_older = self.unsure.contains(&transaction.id()) && self.ends.contains_key(id);
            if vote != Some(&Vote::Commit) || aborted || is_older || self.gone.contains(id) {
                continue;
            }
            assert_ne!(transaction.timestamp(), other.timestamp(), "it voted for another of this timestamp");
            let conflict = reference::conflict(cluster, self.of.shard, transaction, other);
            assert!(!conflict, "it voted for {other:?}, and votes for {transaction:?}");
        }
    }

    /// A statement is about to be signed.
    pub(super) fn signs(&mut self, unsigned: &Unsigned) {
        match unsigned {
            Unsigned::Vote { .. } => {}
            Unsigned::Logged { replica, statement } => {
                assert_eq!(*replica, self.of);
                self.logs(*statement);
            }
            Unsigned::Elect { replica, statement } => {
                assert_eq!(*replica, self.of);
                let decision = *self.elects.entry((statement.id, statement.view)).or_insert(statement.decision);
                assert_eq!(decision, statement.decision, "it elected with another decision before");
                if let Some(last) = self.last.get(&statement.id) {
                    assert!(statement.view >= last.view_current, "it is back in a view that it had left");
                }
            }
            Unsigned::Decide { leader, statement, .. } => {
                assert_eq!(*leader, self.of);
                let decision = *self.decides.entry((statement.id, statement.view)).or_insert(statement.decision);
                assert_eq!(decision, statement.decision, "it led to another decision before");
            }
        }
    }

    fn logs(&mut self, statement: LoggedStatement) {
        let LoggedStatement { id, decision, view_decision, view_current } = statement;
        assert!(view_decision <= view_current);
        let earlier = *self.logged.entry((id, view_decision)).or_insert(decision);
        assert_eq!(earlier, decision, "it wrote another decision down in this view");
        if let Some(last) = self.last.insert(id, statement) {
            assert!(view_current >= last.view_current, "it is back in a view that it had left");
            assert!(view_decision == last.view_decision || view_decision >= last.view_current, "it adopted from a view that it had left");
        }
        // Whoever elects in a view adopts nothing from a lower one any more.
        for ((_, view), elected) in self.elects.range((id, view_decision.saturating_add(1))..=(id, u32::MAX)) {
            assert_eq!(*elected, decision, "it elected with something else in view {view}");
        }
    }

    /// The turn ends: what was said is durable, and heard.
    pub(super) fn is_out(&mut self) {
        self.said.votes.append(&mut self.turn.votes);
        self.said.validated.append(&mut self.turn.validated);
        self.said.rested.append(&mut self.turn.rested);
    }

    /// The process dies before its turn ends.
    pub(super) fn is_lost(&mut self) {
        let turn = std::mem::take(&mut self.turn);
        self.unsure.extend(turn.votes.into_iter().filter(|(_, vote)| *vote == Vote::Commit).map(|(id, _)| id));
    }
}
