//! Transactions that only read, committed without being prepared: no vote, no signature, nothing on any disk.
//!
//! **The rule** (beyond the paper). A transaction at `ts` that writes nothing has committed when each version it read is
//! committed, and `3f + 1` replicas of its key's shard have *validated* the read: each says that no other version below `ts` is
//! newer, committed or prepared there, and has raised the key's read timestamp to `ts` before it said so.
//! `docs/protocols/basil.md` argues why that is serializable.
//!
//! The rule depends on read timestamps, which are in memory. So before a replica lets anybody read, it has logged a read ceiling
//! above the timestamp, and after a restart it votes against all writes below (`TransactionTable::raise_read_ceiling`). It also
//! depends on nothing prepared being concealed: a write that the reader may not see is [`crate::message::PendingWrite::Hidden`].

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
    /// Of each read, the replicas that validate it.
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
    /// Answers to come may validate it.
    Open,
    /// It has to be prepared.
    NotValidated,
}

impl ReadValidation {
    /// For `transaction`, whose reads the replicas in `validated` validate, in the order of the reads.
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
    use types::{ClientId, TransactionId, Value};

    use super::*;
    use crate::testing::one_shard;
    use crate::{Buffer, ReadFound};

    fn validated_by(count: u16) -> Voters {
        (0..count).fold(Voters::default(), |mut voters, index| {
            voters.insert(index);
            voters
        })
    }

    #[test]
    fn what_is_only_prepared_is_not_settled() {
        let cluster = one_shard();
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
            buffer.found(ReadFound {
                key: Key::from("a"),
                version: at,
                value: None,
                dependency,
                validated: validated_by(6),
                is_withheld: false,
            });
            buffer.validated()
        };
        assert!(validated(None).is_some() && validated(Some(writer)).is_none());
    }
}
