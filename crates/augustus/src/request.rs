//! What a shard is asked in its order, and what it answers.

use crypto::{Claim, Rejection, SignatureClaims, SignatureCompression, Statement, leaf};
use types::codec::{Decode, DecodeError, Encode, Reader, encode_sequence};
use types::{ClientId, Cluster, ClusterId, Digest, ReplicaId, TransactionId};

use crate::certificate::{Certificate, EndedStatement, SettledStatement, Signers, Vote, VoteStatement, compress_all, decompress_all};
use crate::limits::{OPERATIONS_MAX, RESULTS_KEPT_BYTES_MAX};
use crate::operation::Found;
use crate::transaction::{Name, Transaction};

/// Format version of a request, its first byte.
const FORMAT: u8 = 1;

/// What is ordered. Whoever sends it is proven by their channel.
#[derive(Clone, Debug, PartialEq)]
pub enum Request {
    /// Execute a transaction and vote on it (§3.3, second step). Its author sends it.
    Run(Transaction),
    /// The same, of a transaction that another has left unfinished (§3.4): sign the shard's vote, and execute the transaction first
    /// if that was not done. That it is its author's is shown by another shard's votes to commit it.
    Finish(Transaction, Option<Signers>),
    /// End a pending transaction (fourth step), as its certificate proves. Anybody may send it.
    Decide(Name, Certificate),
    /// Release the locks of a read-only transaction (§3.5.2). Its author needs no certificate.
    Release(Name, TransactionId),
    /// State that no transaction of one of the sender's sessions below a number is pending here, or will be. Those not seen yet are
    /// aborted.
    Settle {
        /// The session.
        session: u64,
        /// The number.
        below: u64,
    },
    /// Forget the outcomes of a session's transactions below a number, as other shards have stated that they need them no more.
    Forget(SettledStatement, Vec<Signers>),
    /// State which of these transactions, of anybody's session, are known here and not pending.
    CheckEnded(EndedStatement),
    /// Forget the outcomes of these transactions, as other shards have stated that they need them no more.
    ForgetEnded(EndedStatement, Vec<Signers>),
}

/// One request in the shard's order, as every replica has read it: who sent it, and what, if it was well-formed and its signatures good.
#[derive(Debug)]
pub struct Ordered {
    /// Who sent it.
    pub client: ClientId,
    /// What it is.
    pub request: Result<crypto::Verified<Request>, Unreadable>,
}

/// The bytes are no request, or a signature in them is bad. Every replica finds the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unreadable;

/// What came of one request at one shard. All correct replicas give the same.
#[derive(Clone, Debug, PartialEq)]
pub struct Reply {
    /// What the client is told.
    pub answer: Answer,
    /// What the replica is to sign for it.
    pub statement: Option<Signed>,
}

/// What a replica signs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signed {
    /// Its shard's vote.
    Vote(VoteStatement),
    /// That a session is settled.
    Settled(SettledStatement),
    /// That transactions are not pending any more.
    Gone(EndedStatement),
}

impl Signed {
    /// What stands for it and its signer.
    #[must_use]
    pub fn leaf(&self, cluster: ClusterId, signer: ReplicaId) -> Digest {
        match self {
            Self::Vote(statement) => leaf(cluster, signer, statement),
            Self::Settled(statement) => leaf(cluster, signer, statement),
            Self::Gone(statement) => leaf(cluster, signer, statement),
        }
    }
}

/// What the client is told.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// How the shard votes on the transaction, or how it ended there.
    Voted(TransactionId, Verdict),
    /// How the transaction has ended.
    Ended(TransactionId, Vote),
    /// The session is settled so far: as far as was asked, or up to what is pending.
    Settled(SettledStatement),
    /// These are known and not pending, of those that were asked for; or they are forgotten.
    Gone(EndedStatement),
    /// Nothing was done.
    Refused(Refusal),
}

impl Answer {
    /// What whoever signs this answer has stated; nothing where it is none that is signed.
    #[must_use]
    pub fn statement(&self) -> Option<Signed> {
        match self {
            Self::Voted(id, verdict) => Some(Signed::Vote(VoteStatement { id: *id, vote: verdict.vote() })),
            Self::Settled(statement) => Some(Signed::Settled(*statement)),
            Self::Gone(statement) => Some(Signed::Gone(*statement)),
            Self::Ended(..) | Self::Refused(_) => None,
        }
    }
}

/// What the execution of a transaction came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// To commit, with what its queries found here, in order; nothing where that was not kept, or is not the asker's.
    Commit(Option<Vec<Found>>),
    /// To abort.
    Abort(AbortReason),
}

impl Verdict {
    /// The vote.
    #[must_use]
    pub fn vote(&self) -> Vote {
        match self {
            Self::Commit(_) => Vote::Commit,
            Self::Abort(_) => Vote::Abort,
        }
    }

    /// As it is kept for those who ask again: without much that was found, and without the transaction that was in the way.
    pub(crate) fn kept(&self) -> Self {
        match self {
            Self::Commit(Some(found)) if found.iter().map(Found::bytes).sum::<usize>() > RESULTS_KEPT_BYTES_MAX => Self::Commit(None),
            Self::Abort(AbortReason::Conflict(name, id, _)) => Self::Abort(AbortReason::Conflict(*name, *id, None)),
            other => other.clone(),
        }
    }

    /// As others than the author are told it.
    pub(crate) fn without_results(self) -> Self {
        match self {
            Self::Commit(_) => Self::Commit(None),
            Self::Abort(AbortReason::Conflict(name, id, _)) => Self::Abort(AbortReason::Conflict(name, id, None)),
            other => other,
        }
    }

    /// The same in buffers of its own.
    pub(crate) fn detached(self) -> Self {
        match self {
            Self::Commit(Some(found)) => Self::Commit(Some(found.iter().map(Found::detached).collect())),
            other => other,
        }
    }
}

/// Why a shard votes to abort.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AbortReason {
    /// A pending transaction holds a lock. It is shown whole to those who may read all it touches, so that they can finish it.
    Conflict(Name, TransactionId, Option<Box<Transaction>>),
    /// This comparison failed, or this update found its key otherwise than it must be: its place, from 0.
    Mismatch(u32),
    /// The author has no right to a key.
    NotPermitted,
    /// What its queries find is too large for an answer.
    AnswerTooLarge,
    /// The author has too much pending here.
    TooMuchPending,
    /// The author has to settle its sessions first.
    Unsettled,
    /// Another shard has voted it down, and this one has heard so.
    VotedDown,
    /// The author has used the number for something else.
    NumberReused,
    /// The number is too old. If the transaction is of this shard alone, it may have taken place.
    Forgotten,
    /// It has new keys, and the shard has no room for more.
    Full,
}

/// Why a request was not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// It is no request, or a signature in it is bad.
    #[error("it is no request, or a signature in it is bad")]
    Unreadable,
    /// The transaction is another client's, and nothing shows that they want it.
    #[error("the transaction is another client's, and nothing shows that they want it")]
    NotTheAuthor,
    /// The transaction has nothing to do here.
    #[error("the transaction has nothing to do on this shard")]
    WrongShard,
    /// The cluster does not know the client.
    #[error("the cluster does not know the client")]
    UnknownClient,
    /// No such transaction is known here.
    #[error("no such transaction is known here")]
    Unknown,
    /// The certificate does not prove how this transaction ends.
    #[error("the certificate does not prove how this transaction ends")]
    Unproven,
    /// It has not been ordered and will not be: its number is too old, or its sender's process is.
    #[error("its number is too old to be ordered, or its sender's process is")]
    TooOld,
}

impl SignatureClaims for Request {
    fn claims<'a>(&'a self, cluster: &Cluster, out: &mut Vec<Claim<'a>>) -> Result<(), Rejection> {
        match self {
            Self::Run(_) | Self::Release(..) | Self::Settle { .. } | Self::CheckEnded(_) | Self::Finish(_, None) => Ok(()),
            Self::Finish(transaction, Some(signers)) => {
                signers.claims(cluster, &VoteStatement { id: transaction.id(), vote: Vote::Commit }, out)
            }
            Self::Decide(_, certificate) => certificate.claims(cluster, out),
            Self::Forget(statement, all) => settlement(all, cluster, statement, out),
            Self::ForgetEnded(statement, all) => settlement(all, cluster, statement, out),
        }
    }
}

/// The same statement of several shards.
fn settlement<'a>(all: &'a [Signers], cluster: &Cluster, statement: &impl Statement, out: &mut Vec<Claim<'a>>) -> Result<(), Rejection> {
    if !all.is_sorted_by(|one, next| one.shard < next.shard) {
        return Err(Rejection::Structure("the shards of a settlement are not in strict order"));
    }
    all.iter().try_for_each(|signers| signers.claims(cluster, statement, out))
}

impl Encode for Request {
    fn encode(&self, out: &mut Vec<u8>) {
        use crypto::Compress as _;
        let mut compression = SignatureCompression::default();
        out.push(FORMAT);
        match self {
            Self::Run(transaction) => {
                out.push(1);
                transaction.encode(out);
            }
            Self::Finish(transaction, evidence) => {
                out.push(2);
                transaction.encode(out);
                evidence.encode(out);
            }
            Self::Decide(name, certificate) => {
                out.push(3);
                name.encode(out);
                certificate.compress(&mut compression, out);
            }
            Self::Release(name, id) => {
                out.push(4);
                name.encode(out);
                id.encode(out);
            }
            Self::Settle { session, below } => {
                out.push(5);
                session.encode(out);
                below.encode(out);
            }
            Self::Forget(statement, all) => {
                out.push(6);
                statement.encode(out);
                compress_all(all, &mut compression, out);
            }
            Self::CheckEnded(statement) => {
                out.push(7);
                statement.encode(out);
            }
            Self::ForgetEnded(statement, all) => {
                out.push(8);
                statement.encode(out);
                compress_all(all, &mut compression, out);
            }
        }
    }
}

impl Decode for Request {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        use crypto::Compress as _;
        let mut compression = SignatureCompression::default();
        if u8::decode(reader)? != FORMAT {
            return Err(DecodeError::UnknownTag("a request's format"));
        }
        match u8::decode(reader)? {
            1 => Ok(Self::Run(Transaction::decode(reader)?)),
            2 => Ok(Self::Finish(Transaction::decode(reader)?, Option::decode(reader)?)),
            3 => Ok(Self::Decide(Name::decode(reader)?, Certificate::decompress(reader, &mut compression)?)),
            4 => Ok(Self::Release(Name::decode(reader)?, TransactionId::decode(reader)?)),
            5 => Ok(Self::Settle { session: u64::decode(reader)?, below: u64::decode(reader)? }),
            6 => Ok(Self::Forget(SettledStatement::decode(reader)?, decompress_all(reader, &mut compression)?)),
            7 => Ok(Self::CheckEnded(EndedStatement::decode(reader)?)),
            8 => Ok(Self::ForgetEnded(EndedStatement::decode(reader)?, decompress_all(reader, &mut compression)?)),
            _ => Err(DecodeError::UnknownTag("a request")),
        }
    }
}

impl Encode for SettledStatement {
    fn encode(&self, out: &mut Vec<u8>) {
        Name { client: self.client, session: self.session, number: self.below }.encode(out);
    }
}

impl Decode for SettledStatement {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        let Name { client, session, number: below } = Name::decode(reader)?;
        Ok(Self { client, session, below })
    }
}

impl Encode for Verdict {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Commit(None) => out.push(1),
            Self::Commit(Some(found)) => {
                out.push(2);
                encode_sequence(found, out);
            }
            Self::Abort(reason) => {
                out.push(3);
                reason.encode(out);
            }
        }
    }
}

impl Decode for Verdict {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        match u8::decode(reader)? {
            1 => Ok(Self::Commit(None)),
            2 => Ok(Self::Commit(Some(reader.sequence("results", OPERATIONS_MAX)?))),
            3 => Ok(Self::Abort(AbortReason::decode(reader)?)),
            _ => Err(DecodeError::UnknownTag("a verdict")),
        }
    }
}

impl Encode for AbortReason {
    fn encode(&self, out: &mut Vec<u8>) {
        out.push(match self {
            Self::Conflict(..) => 1,
            Self::Mismatch(_) => 2,
            Self::NotPermitted => 3,
            Self::AnswerTooLarge => 4,
            Self::TooMuchPending => 5,
            Self::Unsettled => 6,
            Self::NumberReused => 7,
            Self::Forgotten => 8,
            Self::VotedDown => 9,
            Self::Full => 10,
        });
        match self {
            Self::Conflict(name, id, transaction) => {
                name.encode(out);
                id.encode(out);
                transaction.is_some().encode(out);
                if let Some(transaction) = transaction {
                    transaction.encode(out);
                }
            }
            Self::Mismatch(place) => place.encode(out),
            _ => {}
        }
    }
}

impl Decode for AbortReason {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(match u8::decode(reader)? {
            1 => {
                let (name, id) = (Name::decode(reader)?, TransactionId::decode(reader)?);
                Self::Conflict(name, id, Option::<Transaction>::decode(reader)?.map(Box::new))
            }
            2 => Self::Mismatch(u32::decode(reader)?),
            3 => Self::NotPermitted,
            4 => Self::AnswerTooLarge,
            5 => Self::TooMuchPending,
            6 => Self::Unsettled,
            7 => Self::NumberReused,
            8 => Self::Forgotten,
            9 => Self::VotedDown,
            10 => Self::Full,
            _ => return Err(DecodeError::UnknownTag("a reason to abort")),
        })
    }
}

impl Encode for Answer {
    fn encode(&self, out: &mut Vec<u8>) {
        out.push(FORMAT);
        match self {
            Self::Voted(id, verdict) => {
                out.push(1);
                id.encode(out);
                verdict.encode(out);
            }
            Self::Ended(id, decision) => {
                out.push(2);
                id.encode(out);
                decision.encode(out);
            }
            Self::Settled(statement) => {
                out.push(3);
                statement.encode(out);
            }
            Self::Refused(refusal) => {
                out.push(4);
                out.push(*refusal as u8);
            }
            Self::Gone(statement) => {
                out.push(5);
                statement.encode(out);
            }
        }
    }
}

impl Decode for Answer {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        if u8::decode(reader)? != FORMAT {
            return Err(DecodeError::UnknownTag("an answer's format"));
        }
        match u8::decode(reader)? {
            1 => Ok(Self::Voted(TransactionId::decode(reader)?, Verdict::decode(reader)?)),
            2 => Ok(Self::Ended(TransactionId::decode(reader)?, Vote::decode(reader)?)),
            3 => Ok(Self::Settled(SettledStatement::decode(reader)?)),
            5 => Ok(Self::Gone(EndedStatement::decode(reader)?)),
            4 => Refusal::ALL.get(usize::from(u8::decode(reader)?)).copied().map(Self::Refused).ok_or(DecodeError::UnknownTag("a refusal")),
            _ => Err(DecodeError::UnknownTag("an answer")),
        }
    }
}

impl Refusal {
    /// All of them, in the order of their numbers.
    const ALL: [Self; 7] =
        [Self::Unreadable, Self::NotTheAuthor, Self::WrongShard, Self::UnknownClient, Self::Unknown, Self::Unproven, Self::TooOld];
}
