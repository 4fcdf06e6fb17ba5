//! Transactions that only read, committed without being prepared: no vote, no signature, nothing on any disk.
//!
//! **The rule** (beyond the paper). A transaction at `ts` that writes nothing has committed when each version it read is
//! committed, and *settled* for `3f + 1` replicas of its key's shard: each of them says that this is the last version below `ts` that is
//! committed or prepared there, having first raised the key's read timestamp to `ts`.
//!
//! **Why it is serializable.** Let `v` be the version read of some key, and suppose a transaction `w` that writes the key with
//! `v < w < ts` commits, ever. The first certificate that says so rests on `3f + 1` votes to commit of the same shard, so a correct
//! replica (`crate::quorum`) both settled the read and, judging it, voted for `w`. Either it voted first: then, when it answered,
//! it had `w` prepared, or knew it committed, and would have said so. Or it answered first: then the read timestamp made
//! it vote against `w` (Alg. 1 L12). Either way it did not do both. And `v` itself is committed, since `f + 1` replicas say so, or the
//! reader's process has seen its writer commit; whether it is so already at those for whom it is settled does not matter.
//! So at `ts` each key has just the version that was read, whatever happens later, and the reader's place in the order is `ts`.
//!
//! The rule rests on read timestamps, which live in memory. So before a replica lets anybody read, it has written down a
//! ceiling above the timestamp, and when it comes back votes against all writes below (`TransactionTable::raise_read_ceiling`); no clock is believed
//! for this. It also rests on *nothing prepared* being said of what the reader may not see: [`crate::message::PendingWrite::Hidden`].
//!
//! **In one round trip**, when the reads say beforehand that nothing will be written ([`crate::Command::Read`]): then `3f + 1`
//! replicas are asked at once. Else at commit those are asked who have not settled the reads yet: also one round trip, as for
//! preparing, but without votes. Where that fails, since a writer is under way or replicas lag, the transaction is prepared like any other.

use crate::transaction::Transaction;
use machine::Voters;
use mutants::{Mutant, broken};
use types::limits::READ_KEYS_MAX;
use types::{Cluster, Key, ReplicaId, ShardId, Timestamp};

use crate::quorum::Quorums;

/// A read-only transaction that asks for what its reads still lack.
#[derive(Debug)]
pub(crate) struct ReadValidation {
    pub operation: u64,
    pub transaction: Transaction,
    /// Of each read, for whom it is settled.
    validated: Vec<Voters>,
    questions: Vec<Question>,
}

/// What one shard is asked.
#[derive(Debug)]
struct Question {
    shard: ShardId,
    /// Which reads.
    places: Vec<usize>,
    /// Who has been asked and has not answered.
    awaited: Voters,
}

/// What the answers amount to so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It has committed.
    Validated,
    /// Answers to come may settle it.
    Open,
    /// It has to be prepared.
    NotValidated,
}

impl ReadValidation {
    /// For `transaction`, whose reads are settled for `validated`, in the order of the reads.
    pub fn new(cluster: &Cluster, quorums: Quorums, operation: u64, transaction: Transaction, validated: Vec<Voters>) -> Self {
        let mut read_validation = Self { operation, transaction, validated, questions: Vec::new() };
        read_validation.validated.resize(read_validation.transaction.reads().len(), Voters::default());
        for shard in read_validation.transaction.participants(cluster) {
            let reads = read_validation.transaction.reads().iter().zip(&read_validation.validated).enumerate();
            let lacking =
                reads.filter(|(_, (read, validated))| cluster.shard_of(&read.key) == shard && validated.count() < quorums.validation());
            let places: Vec<usize> = lacking.map(|(place, _)| place).collect();
            if places.is_empty() {
                continue;
            }
            let mut awaited = Voters::default();
            let lacks = |index: &u16| places.iter().any(|place| !read_validation.validated[*place].contains(*index));
            cluster.replicas_of(shard).map(|replica| replica.index).filter(lacks).for_each(|index| {
                awaited.insert(index);
            });
            read_validation.questions.push(Question { shard, places, awaited });
        }
        read_validation
    }

    /// Who is to be asked for what.
    pub fn questions<'a>(&'a self, cluster: &'a Cluster) -> impl Iterator<Item = (ReplicaId, Vec<Key>)> + 'a {
        self.questions.iter().flat_map(move |question| {
            let asked = cluster.replicas_of(question.shard).filter(|replica| question.awaited.contains(replica.index));
            let keys: Vec<Key> = question.places.iter().map(|place| self.transaction.reads()[*place].key.clone()).collect();
            asked.map(move |replica| (replica, keys.clone()))
        })
    }

    /// Takes in which version of each key asked for is the last for `from`, if it says ([`crate::reading::last_version`]); nothing at all when
    /// it refuses. Each answer counts once, and only of whom was asked.
    pub fn answer(&mut self, from: ReplicaId, versions: Option<&[Option<Timestamp>]>) {
        let Some(question) = self.questions.iter_mut().find(|question| question.shard == from.shard) else { return };
        if !question.awaited.contains(from.index) {
            return;
        }
        question.awaited.remove(from.index);
        let Some(versions) = versions.filter(|versions| versions.len() == question.places.len()) else { return };
        for (place, version) in question.places.iter().zip(versions) {
            if *version == Some(self.transaction.reads()[*place].version) {
                self.validated[*place].insert(from.index);
            }
        }
    }

    /// What is known by now.
    pub fn verdict(&self, quorums: Quorums) -> Verdict {
        let depends = self.transaction.reads().iter().any(|read| read.dependency.is_some()) && !broken(Mutant::DependencyValidated);
        if depends || !self.transaction.writes().is_empty() {
            return Verdict::NotValidated;
        }
        if self.validated.iter().all(|validated| validated.count() >= quorums.validation()) {
            return Verdict::Validated;
        }
        let hopeless = self.questions.iter().any(|question| {
            let too_few = |place: &usize| self.validated[*place].or(question.awaited).count() < quorums.validation();
            question.places.len() > READ_KEYS_MAX || question.places.iter().any(too_few)
        });
        if hopeless { Verdict::NotValidated } else { Verdict::Open }
    }
}

#[cfg(test)]
mod tests {
    use crate::transaction::{Read, Write};
    use types::{ClientId, ClusterId, Placement, TransactionId, Value};

    use super::*;
    use crate::{Buffer, ReadFound};

    fn validated_by(count: u16) -> Voters {
        (0..count).fold(Voters::default(), |mut voters, index| {
            voters.insert(index);
            voters
        })
    }

    #[test]
    fn what_is_only_prepared_is_not_settled() {
        let keys = (0..6).map(|index| [index; 32]).collect();
        let cluster = Cluster::new(ClusterId::new([1; 16]), 1, Placement::Hash, vec![keys], vec![]).expect("the parts fit");
        let (at, reader) = (Timestamp::new(5, ClientId(1)), Timestamp::new(9, ClientId(2)));
        let write = Write { key: Key::from("a"), value: Some(Value::from("1")) };
        let writer = Transaction::new(cluster.id(), at, vec![], vec![write]).expect("it is small");
        let verdict = |dependency: Option<TransactionId>, validated: u16| {
            let read = Read { key: Key::from("a"), version: at, dependency };
            let transaction = Transaction::new(cluster.id(), reader, vec![read], vec![]).expect("it is small");
            let quorums = Quorums::new(1);
            ReadValidation::new(&cluster, quorums, 1, transaction, vec![validated_by(validated)]).verdict(quorums)
        };
        assert_eq!((verdict(None, 4), verdict(None, 3)), (Verdict::Validated, Verdict::Open));
        assert_eq!(verdict(Some(writer.id()), 6), Verdict::NotValidated);
        let validated = |dependency: Option<Transaction>| {
            let mut buffer = Buffer::new(reader);
            buffer.found(ReadFound { key: Key::from("a"), version: at, value: None, dependency, validated: validated_by(6) });
            buffer.validated()
        };
        assert!(validated(None).is_some() && validated(Some(writer)).is_none());
    }
}
