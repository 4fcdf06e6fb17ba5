//! Deciding (Basil §4.2): what goes along with votes and logged decisions, what replicas sign, and what they refuse.

use std::sync::Arc;

use crypto::{BatchSignature, Claim, Compress, Rejection, Signable, SignatureCompression, encode_as_first, leaf};
use mutants::{Mutant, broken};
use types::codec::{Decode, DecodeError, Encode, Reader};
use types::limits::SHARDS_MAX;
use types::{Cluster, ClusterId, Digest, ReplicaId, TransactionId};

use super::Message;
use crate::certificate::{Certificate, Decision, LoggedStatement, SignedLogged, SignedVote, Vote, VoteSet, VoteStatement};
use crate::quorum::Quorums;
use crate::recovery::{DecideStatement, ElectStatement, Elector, SignedDecide, SignedElect};
use crate::transaction::Transaction;

/// The transaction in the way of one that a replica votes to abort (Alg. 1 L8, L11).
#[derive(Clone, Debug, PartialEq)]
pub enum Conflict {
    /// It committed: with the proof, this one vote aborts the other for good (§4.2 (5)).
    Committed {
        /// The committed transaction.
        transaction: Transaction,
        /// The proof.
        certificate: Arc<Certificate>,
    },
    /// It has been prepared for long and nobody finishes it.
    Stalled {
        /// The stalled transaction; whoever is stopped by it may finish it.
        transaction: Transaction,
    },
}

impl Conflict {
    /// The transaction in the way.
    #[must_use]
    pub fn transaction(&self) -> &Transaction {
        match self {
            Self::Committed { transaction, .. } | Self::Stalled { transaction } => transaction,
        }
    }
}

/// A decision, and the votes that allow it to be logged.
#[derive(Clone, Debug, PartialEq)]
pub struct Justified {
    /// How the transaction is to end.
    pub decision: Decision,
    /// At least `3f + 1` votes to commit from every shard, or at least `f + 1` to abort from one.
    pub tallies: Vec<VoteSet>,
}

/// What a refusal is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// A read.
    Request(u64),
    /// A transaction.
    Transaction(TransactionId),
}

/// Why a replica does not do what it was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Refusal {
    /// The timestamp is below what the replica still remembers; begin again with a new one.
    TooOld,
    /// The timestamp of a read is below what the replica still keeps.
    NotKept {
        /// How far back it keeps versions, in milliseconds.
        kept_ms: u64,
    },
    /// The timestamp is further ahead of the replica's clock than it allows.
    TooNew,
    /// The client has no right to a key it named.
    NotPermitted,
    /// A key belongs to another shard: the asker's configuration differs from the replica's.
    WrongShard,
    /// The replica has more to do than it has time for, or more undecided work than it will hold.
    Overloaded {
        /// When to come again, in milliseconds from now.
        after_ms: u32,
    },
    /// The client has left too many of its transactions for others to end.
    AbandonLimit {
        /// When it may come back, in milliseconds from now.
        after_ms: u32,
    },
    /// The client is over a limit that the cluster's configuration sets for it.
    ClientLimit {
        /// Which limit.
        limit: ClientLimit,
        /// When it may come back, in milliseconds from now; 0 where that is no matter of time.
        after_ms: u32,
    },
    /// The replica has seen the client lie, and takes nothing new of it until the operators give it another key.
    Liar,
    /// The answer would be longer than a message may be; ask for fewer keys at once.
    TooLarge,
    /// The replica was told how a transaction ended but has never seen the transaction.
    Unknown,
}

/// A limit that the cluster's configuration may set for one client ([`types::ClientLimits`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ClientLimit {
    /// Transactions under way.
    Transactions,
    /// Keys of one transaction.
    Keys,
    /// Bytes of one transaction.
    Bytes,
    /// Keys and ranges read a second.
    ReadsPerSecond,
}

impl ClientLimit {
    /// All of them, in the order of their tags.
    const ALL: [Self; 4] = [Self::Transactions, Self::Keys, Self::Bytes, Self::ReadsPerSecond];
}

impl Refusal {
    /// There is no room for undecided work, which passes as soon as some of it ends.
    pub(crate) const NO_ROOM: Self = Self::Overloaded { after_ms: 100 };

    /// When to come again, where it says so.
    fn after_ms(&mut self) -> Option<&mut u32> {
        match self {
            Self::Overloaded { after_ms } | Self::AbandonLimit { after_ms } | Self::ClientLimit { after_ms, .. } => Some(after_ms),
            _ => None,
        }
    }

    /// The same without the time.
    fn kind(mut self) -> Self {
        if let Some(after_ms) = self.after_ms() {
            *after_ms = 0;
        }
        self
    }

    /// What a client takes refusals by different replicas of one shard to mean, if enough are like the `last`: `f + 1`, one of which is correct. Where they say
    /// when to come again, `2f + 1`: then the time believed lies between those of two correct ones.
    pub(crate) fn believed(refusals: &[Self], mut last: Self, quorums: Quorums) -> Option<Self> {
        let kind = last.kind();
        let mut alike: Vec<Self> = refusals.iter().copied().filter(|refusal| refusal.kind() == kind).collect();
        let Some(after_ms) = last.after_ms() else {
            let believed = if broken(Mutant::RefusalOfOne) { 1 } else { quorums.weak() };
            return (alike.len() >= believed).then_some(last);
        };
        let mut hints: Vec<u32> = alike.iter_mut().filter_map(Self::after_ms).map(|after_ms| *after_ms).collect();
        let believed = if broken(Mutant::OverloadOfOne) { 1 } else { 2 * quorums.weak() - 1 };
        hints.sort_unstable();
        *after_ms = *hints.get((believed - 1) / 2).filter(|_| hints.len() >= believed)?;
        Some(last)
    }
}

/// A statement on its way to being signed.
#[derive(Clone, Debug, PartialEq)]
pub enum Unsigned {
    /// Becomes [`Message::Voted`].
    Vote {
        /// Who votes.
        replica: ReplicaId,
        /// On what, and how.
        statement: VoteStatement,
        /// Goes along unsigned.
        conflict: Option<Conflict>,
    },
    /// Becomes [`Message::Logged`].
    Logged {
        /// Who logged.
        replica: ReplicaId,
        /// What.
        statement: LoggedStatement,
    },
    /// Becomes [`Message::ElectFallback`].
    Elect {
        /// Who elects.
        replica: ReplicaId,
        /// In which view, and with what.
        statement: ElectStatement,
    },
    /// Becomes [`Message::DecideFallback`].
    Decide {
        /// Who leads.
        leader: ReplicaId,
        /// What it decides.
        statement: DecideStatement,
        /// Who elected it; they have signed already.
        electors: Vec<Elector>,
    },
}

impl Signable for Unsigned {
    type Message = Message;

    fn leaf(&self, cluster: ClusterId, signer: ReplicaId) -> Digest {
        match self {
            Self::Vote { statement, .. } => leaf(cluster, signer, statement),
            Self::Logged { statement, .. } => leaf(cluster, signer, statement),
            Self::Elect { statement, .. } => leaf(cluster, signer, statement),
            Self::Decide { statement, .. } => leaf(cluster, signer, statement),
        }
    }

    fn with_signature(self, signature: BatchSignature) -> Message {
        match self {
            Self::Vote { replica, statement, conflict } => Message::Voted { vote: SignedVote { replica, statement, signature }, conflict },
            Self::Logged { replica, statement } => Message::Logged { logged: SignedLogged { replica, statement, signature } },
            Self::Elect { replica, statement } => Message::ElectFallback { elect: SignedElect { replica, statement, signature } },
            Self::Decide { leader, statement, electors } => {
                Message::DecideFallback { decide: SignedDecide { leader, statement, signature }, electors }
            }
        }
    }
}

/// Collects the claims of votes that justify a decision on `transaction`, if there are enough from the right shards.
pub(super) fn justification_claims<'a>(
    cluster: &Cluster,
    transaction: &Transaction,
    decision: Decision,
    tallies: &'a [VoteSet],
    out: &mut Vec<Claim<'a>>,
) -> Result<(), Rejection> {
    if broken(Mutant::DecisionUnjustified) {
        return Ok(());
    }
    let quorums = Quorums::new(cluster.faults());
    let (vote, quorum) = match decision {
        Decision::Commit => (Vote::Commit, quorums.commit_slow()),
        Decision::Abort => (Vote::Abort, quorums.abort_slow()),
    };
    let participants = transaction.participants(cluster);
    let covers = match decision {
        Decision::Commit => tallies.iter().map(|set| set.shard).eq(participants.iter().copied()),
        Decision::Abort => matches!(tallies, [set] if participants.contains(&set.shard)),
    };
    if !covers || tallies.iter().any(|set| set.vote != vote) {
        return Err(Rejection::Structure("tallies do not justify the decision"));
    }
    tallies.iter().try_for_each(|set| set.claims(cluster, transaction.id(), quorum, out))
}

impl Compress for Conflict {
    fn compress(&self, compression: &mut SignatureCompression, out: &mut Vec<u8>) {
        match self {
            Self::Committed { transaction, certificate } => {
                out.push(1);
                transaction.encode(out);
                certificate.compress(compression, out);
            }
            Self::Stalled { transaction } => {
                out.push(2);
                transaction.encode(out);
            }
        }
    }

    fn decompress(reader: &mut Reader, compression: &mut SignatureCompression) -> Result<Self, DecodeError> {
        match u8::decode(reader)? {
            1 => Ok(Self::Committed {
                transaction: Transaction::decode(reader)?,
                certificate: Arc::new(Certificate::decompress(reader, compression)?),
            }),
            2 => Ok(Self::Stalled { transaction: Transaction::decode(reader)? }),
            _ => Err(DecodeError::UnknownTag("a conflict")),
        }
    }
}
encode_as_first!(Conflict);

impl Compress for Justified {
    fn compress(&self, compression: &mut SignatureCompression, out: &mut Vec<u8>) {
        self.decision.encode(out);
        compression.compress_sequence(&self.tallies, out);
    }

    fn decompress(reader: &mut Reader, compression: &mut SignatureCompression) -> Result<Self, DecodeError> {
        Ok(Self { decision: Decision::decode(reader)?, tallies: compression.decompress_sequence(reader, "tallies", SHARDS_MAX)? })
    }
}
encode_as_first!(Justified);

impl Encode for Subject {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Request(request) => {
                out.push(1);
                request.encode(out);
            }
            Self::Transaction(id) => {
                out.push(2);
                id.encode(out);
            }
        }
    }
}

impl Decode for Subject {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        match u8::decode(reader)? {
            1 => Ok(Self::Request(u64::decode(reader)?)),
            2 => Ok(Self::Transaction(TransactionId::decode(reader)?)),
            _ => Err(DecodeError::UnknownTag("a refusal's subject")),
        }
    }
}

impl Encode for Refusal {
    fn encode(&self, out: &mut Vec<u8>) {
        out.push(match self {
            Self::TooOld => 1,
            Self::TooNew => 2,
            Self::NotPermitted => 3,
            Self::WrongShard => 4,
            Self::Overloaded { .. } => 5,
            Self::Unknown => 6,
            Self::TooLarge => 7,
            Self::AbandonLimit { .. } => 8,
            Self::NotKept { .. } => 9,
            Self::ClientLimit { .. } => 10,
            Self::Liar => 11,
        });
        match self {
            Self::NotKept { kept_ms } => kept_ms.encode(out),
            Self::Overloaded { after_ms } | Self::AbandonLimit { after_ms } => after_ms.encode(out),
            Self::ClientLimit { limit, after_ms } => {
                out.push(*limit as u8);
                after_ms.encode(out);
            }
            _ => {}
        }
    }
}

impl Decode for Refusal {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(match u8::decode(reader)? {
            1 => Self::TooOld,
            2 => Self::TooNew,
            3 => Self::NotPermitted,
            4 => Self::WrongShard,
            5 => Self::Overloaded { after_ms: u32::decode(reader)? },
            6 => Self::Unknown,
            7 => Self::TooLarge,
            8 => Self::AbandonLimit { after_ms: u32::decode(reader)? },
            9 => Self::NotKept { kept_ms: u64::decode(reader)? },
            10 => {
                let tag = usize::from(u8::decode(reader)?);
                let limit = *ClientLimit::ALL.get(tag).ok_or(DecodeError::UnknownTag("a client's limit"))?;
                Self::ClientLimit { limit, after_ms: u32::decode(reader)? }
            }
            11 => Self::Liar,
            _ => return Err(DecodeError::UnknownTag("a refusal")),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_much_to_do_is_believed_from_2f_plus_1_and_the_time_is_between_that_of_two_correct_ones() {
        let overload = |hints: &[u32]| {
            let mut refusals: Vec<Refusal> = hints.iter().map(|after_ms| Refusal::Overloaded { after_ms: *after_ms }).collect();
            refusals.insert(0, Refusal::TooNew);
            refusals.insert(0, Refusal::AbandonLimit { after_ms: 1 });
            Refusal::believed(&refusals, Refusal::Overloaded { after_ms: 0 }, Quorums::new(1))
        };
        assert_eq!(overload(&[]), None);
        assert_eq!(overload(&[300]), None);
        assert_eq!(overload(&[300, 500]), None, "one of them may lie, and only one more has too much to do");
        let believed = |after_ms| Some(Refusal::Overloaded { after_ms });
        assert_eq!(overload(&[300, u32::MAX, 500]), believed(500));
        assert_eq!(overload(&[0, 500, 300]), believed(300));
    }

    #[test]
    fn what_says_no_time_is_believed_from_f_plus_1() {
        let believed = |refusals: &[Refusal]| Refusal::believed(refusals, Refusal::TooNew, Quorums::new(1));
        assert_eq!(believed(&[Refusal::TooNew, Refusal::TooOld]), None);
        assert_eq!(believed(&[Refusal::TooNew, Refusal::TooOld, Refusal::TooNew]), Some(Refusal::TooNew));
    }
}
