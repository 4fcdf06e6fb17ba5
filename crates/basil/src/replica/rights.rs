//! Who may write what, and who may be told of it, by the rights that the cluster gives its clients (beyond the paper).

use crate::transaction::Transaction;
use mutants::{Mutant, broken};
use store::StorageBackend;
use types::Party;

use super::Replica;
use crate::certificate::Certificate;

impl<M: StorageBackend> Replica<M> {
    /// Whether the author may read and write what `transaction` does.
    pub(super) fn permitted(&self, transaction: &Transaction) -> bool {
        self.cluster.permission(transaction.timestamp().client).is_some_and(|permission| {
            transaction.reads().iter().all(|read| permission.may_read(&read.key))
                && transaction.writes().iter().all(|write| permission.may_write(&write.key))
        })
    }

    /// Whether `party` may be shown the whole of `transaction`: it may read all that the transaction touches.
    pub(super) fn may_see(&self, party: Party, transaction: &Transaction) -> bool {
        match party {
            Party::Replica(_) => true,
            Party::Client(client, _) => {
                let permission = self.cluster.permission(client);
                permission.is_some_and(|permission| transaction.keys().all(|key| permission.may_read(key))) || broken(Mutant::SecretShown)
            }
        }
    }

    /// Whether `party` may hear of `transaction` at all. Else whoever may not read its keys could guess at it until an answer
    /// tells that the guess was right.
    pub(super) fn may_ask(&self, party: Party, transaction: &Transaction) -> bool {
        is_author(party, transaction) || self.may_see(party, transaction) || broken(Mutant::GuessAnswered)
    }

    /// Whether `party` may be shown a proof: that of a conflict shows the other transaction, too. Who may not comes to the same
    /// end by votes and logged decisions, as whoever comes when the proof is no longer at hand.
    pub(super) fn may_see_proof(&self, party: Party, certificate: &Certificate) -> bool {
        certificate.shows().is_none_or(|transaction| self.may_see(party, transaction)) || broken(Mutant::ProofShown)
    }
}

pub(super) fn is_author(party: Party, transaction: &Transaction) -> bool {
    matches!(party, Party::Client(client, _) if client == transaction.timestamp().client)
}
