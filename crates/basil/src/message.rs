//! What clients and replicas say to one another. Each variant tells who says it to whom, when, and what it proves.

use std::sync::Arc;

use crate::transaction::Transaction;
use crypto::{BatchSignature, Claim, Compress, Rejection, Signable, SignatureClaims, SignatureCompression, leaf};
use mutants::{Mutant, broken};
use types::codec::{Decode, DecodeError, Encode, Reader, encode_sequence};
use types::limits::{READ_KEYS_MAX, SHARDS_MAX, TRANSACTION_WRITES_MAX};
use types::{Cluster, ClusterId, Digest, Key, ReplicaId, Timestamp, TransactionId, Value};

use crate::certificate::{
    Certificate, Decision, LoggedStatement, SignedLogged, SignedVote, VOTERS_MAX, Vote, VoteSet, VoteStatement, alone, distinct,
    logging_shard,
};
use crate::quorum::Quorums;
use crate::recovery::{
    DecideStatement, ElectStatement, Elector, SignedDecide, SignedElect, decision_claims, decode_electors, encode_electors,
};

/// The most votes that may be shown as evidence of authorship: one shard's.
const EVIDENCE_MAX: usize = VOTERS_MAX;

/// Everything said in this protocol.
#[derive(Clone, Debug, PartialEq)]
pub enum Message {
    /// Client to replica, while a transaction runs: the newest versions below `timestamp` of these keys (§4.1).
    Read {
        /// The client's number for the request; the reply repeats it.
        request: u64,
        /// The reader's timestamp.
        timestamp: Timestamp,
        /// The keys, all of the replica's shard.
        keys: Vec<Key>,
    },
    /// Client to every replica of every shard it touched: ST1, asking for a vote (§4.2 (1)). The channel proves the author.
    Prepare {
        /// The whole transaction.
        transaction: Transaction,
    },
    /// Anyone to every replica of a stalled transaction's shards: RP, asking how far it came and for a vote (§5).
    Recover {
        /// The whole transaction.
        transaction: Transaction,
        /// `f + 1` votes to commit of one shard show that a correct replica had it from its author; empty while there
        /// are none yet. Votes to abort show nothing: that is what a replica says of what no author brought.
        evidence: Vec<SignedVote>,
    },
    /// Client to the replicas of the logging shard: ST2, write down this decision (§4.2 (5)).
    Log {
        /// The whole transaction: a replica of the logging shard may have missed it.
        transaction: Transaction,
        /// How it is to end.
        decision: Decision,
        /// Why: at least `3f + 1` votes to commit from every shard, or at least `f + 1` to abort from one.
        tallies: Vec<VoteSet>,
    },
    /// Anyone to the replicas of the logging shard, when what they have written down cannot come together: InvokeFB, elect a
    /// leader for this transaction (§5 (1)).
    InvokeFallback {
        /// The whole transaction.
        transaction: Transaction,
        /// A decision with the votes that justify it, for a replica that has none written down; without one it stays away.
        justified: Option<Justified>,
        /// In which views replicas of the logging shard signed to be, by index in strict order.
        views: Vec<SignedLogged>,
    },
    /// Replica of the logging shard to the leader of its view: ElectFB (§5 (2)).
    ElectFallback {
        /// The sender's view, and what it has written down.
        elect: SignedElect,
    },
    /// Leader to the replicas of the logging shard: DecFB, write down this decision (§5 (3)).
    DecideFallback {
        /// The decision and the view.
        decide: SignedDecide,
        /// The `4f + 1` that elected it, by index in strict order; most of them say what it decides.
        electors: Vec<Elector>,
    },
    /// Anyone to every replica of the transaction's shards: how it ended, and the proof (§4.3).
    Writeback {
        /// The transaction, for replicas that may have missed it.
        transaction: Option<Transaction>,
        /// The proof.
        certificate: Arc<Certificate>,
        /// Whether its author asks the receiver to tell the others, who are not sent the proof.
        relay: bool,
    },
    /// Replica to every other of a transaction's shards, at its author's wish: it committed. Not signed, and without the proof: who hears it
    /// from `f + 1` of those who are to tell has it from one that is correct.
    CommitNotice {
        /// The transaction.
        id: TransactionId,
    },
    /// Replica to every other of a transaction's shards, long after: it still holds this one undecided ([`crate::orphan_resolution`]).
    StatusQuery {
        /// The transaction.
        id: TransactionId,
        /// When it means to take place.
        timestamp: Timestamp,
        /// The keys it writes on the shard asked, in their order.
        keys: Vec<Key>,
    },
    /// Replica to the one that inquired: it holds the transaction no more, and will not vote for it.
    StatusReply {
        /// The transaction.
        id: TransactionId,
        /// How that ended, if it remembers: it has seen a proof of it, or heard it from `f + 1` who had.
        end: Option<Decision>,
        /// What it has of the keys asked for, in their order.
        versions: Vec<OldVersion>,
    },
    /// Replica to client: what it has of the keys asked for, in their order. Not signed: nobody but the reader
    /// needs it, and the channel proves who says so.
    ReadReply {
        /// The request answered.
        request: u64,
        /// One for each key.
        results: Vec<ReadResult>,
        /// The prepared transactions that the results name, each once. All of each is shown, so that its name can be
        /// checked and whoever comes to depend on it can finish it.
        prepared: Vec<Transaction>,
    },
    /// Replica to whoever asked for its vote: ST1R (§4.2 (3)).
    Voted {
        /// The vote.
        vote: SignedVote,
        /// With a vote to abort: the transaction in the way, when telling helps.
        conflict: Option<Conflict>,
    },
    /// Replica of the logging shard to whoever asked it to log or to recover: ST2R (§4.2 (6)).
    Logged {
        /// What it has logged.
        logged: SignedLogged,
    },
    /// Replica to whoever asks about a transaction that has ended: RPR (iii) (§5).
    Decided {
        /// How, and the proof.
        certificate: Arc<Certificate>,
    },
    /// Replica to whoever asked for something it will not do. It proves nothing, and a client that hears it from
    /// fewer than `f + 1` replicas believes none of it.
    Refused {
        /// What is refused.
        subject: Subject,
        /// Why.
        refusal: Refusal,
    },
}

impl Message {
    /// Whether it answers a coordinator's request, and so is for one to hear.
    #[must_use]
    pub fn is_reply(&self) -> bool {
        match self {
            Self::Read { .. }
            | Self::Prepare { .. }
            | Self::Recover { .. }
            | Self::Log { .. }
            | Self::InvokeFallback { .. }
            | Self::ElectFallback { .. }
            | Self::DecideFallback { .. }
            | Self::StatusQuery { .. }
            | Self::StatusReply { .. }
            | Self::Writeback { .. }
            | Self::CommitNotice { .. } => false,
            Self::ReadReply { .. } | Self::Voted { .. } | Self::Logged { .. } | Self::Decided { .. } | Self::Refused { .. } => true,
        }
    }

    /// The transaction that a request wants to hear about.
    pub(crate) fn asked_about(&self) -> Option<&Transaction> {
        match self {
            Self::Prepare { transaction }
            | Self::Recover { transaction, .. }
            | Self::Log { transaction, .. }
            | Self::InvokeFallback { transaction, .. } => Some(transaction),
            _ => None,
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

/// The newest version of a key below a replica's watermark.
#[derive(Clone, Debug, PartialEq)]
pub struct OldVersion {
    /// Which; [`Timestamp::ZERO`] when there is none.
    pub version: Timestamp,
    /// Its value, `Some(None)` when the key is deleted: shown where it is not older than the transaction, to replicas of the same shard,
    /// as far as one answer holds.
    pub value: Option<Option<Value>>,
}

/// A committed version of some key.
#[derive(Clone, Debug, PartialEq)]
pub struct KeyVersion {
    /// Which; [`Timestamp::ZERO`] when there is none.
    pub version: Timestamp,
    /// Its value; `None` when the key is deleted or was never written.
    pub value: Option<Value>,
}

/// What a replica has of one key, below the reader's timestamp.
#[derive(Clone, Debug, PartialEq)]
pub struct ReadResult {
    /// The newest committed version; [`Timestamp::ZERO`] when there is none.
    pub version: Timestamp,
    /// Its value; `None` when the key is deleted or was never written.
    pub value: Option<Value>,
    /// Whether a newer version, still below the reader's timestamp, is prepared.
    pub pending: PendingWrite,
}

/// Whether a prepared, undecided transaction writes a version of a key between the newest committed one and the reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PendingWrite {
    /// None does: the committed version is settled, as far as this replica is concerned. Having raised the key's read
    /// timestamp it votes for none that would come between from now on.
    None,
    /// One does, by its place in [`Message::ReadReply`]'s list.
    Prepared(u16),
    /// One does, and touches keys that the reader may not read, so it is not shown.
    Hidden,
}

impl PendingWrite {
    /// Whose version it is, of the transactions that came with it.
    pub(crate) fn writer(self, prepared: &[Transaction]) -> Option<&Transaction> {
        match self {
            Self::Prepared(place) => prepared.get(usize::from(place)),
            Self::None | Self::Hidden => None,
        }
    }
}

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
    /// The timestamp is further ahead of the replica's clock than it allows.
    TooNew,
    /// The client has no right to a key it named.
    NotPermitted,
    /// A key belongs to another shard: the asker's configuration differs from the replica's.
    WrongShard,
    /// The replica has more undecided work than it will hold; come back later.
    Overloaded,
    /// The client has left too many of its transactions for others to end; come back later.
    AbandonLimit,
    /// The answer would be longer than a message may be; ask for fewer keys at once.
    TooLarge,
    /// The replica was told how a transaction ended but has never seen the transaction.
    Unknown,
}

/// A statement on its way to being signed.
#[derive(Clone, Debug, PartialEq)]
pub enum Draft {
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

impl Signable for Draft {
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

impl SignatureClaims for Message {
    fn claims<'a>(&'a self, cluster: &Cluster, out: &mut Vec<Claim<'a>>) -> Result<(), Rejection> {
        match self {
            Self::Read { .. }
            | Self::Prepare { .. }
            | Self::ReadReply { .. }
            | Self::Refused { .. }
            | Self::StatusQuery { .. }
            | Self::StatusReply { .. }
            | Self::CommitNotice { .. } => Ok(()),
            Self::Recover { transaction, evidence } => {
                for vote in evidence {
                    if vote.statement != (VoteStatement { id: transaction.id(), vote: Vote::Commit }) {
                        return Err(Rejection::Structure("evidence is not a vote to commit this transaction"));
                    }
                    vote.claims(cluster, out)?;
                }
                Ok(())
            }
            Self::Log { transaction, decision, tallies } => justification_claims(cluster, transaction, *decision, tallies, out),
            Self::InvokeFallback { transaction, justified, views } => {
                if let Some(Justified { decision, tallies }) = justified {
                    justification_claims(cluster, transaction, *decision, tallies, out)?;
                }
                view_claims(cluster, transaction, views, out)
            }
            Self::ElectFallback { elect } => elect.claims(cluster, out),
            Self::DecideFallback { decide, electors } => decision_claims(cluster, decide, electors, out),
            Self::Writeback { transaction, certificate, relay: _ } => {
                if let Some(transaction) = transaction {
                    certificate.fits(cluster, transaction)?;
                }
                certificate.claims(cluster, out)
            }
            Self::Voted { vote, conflict } => {
                vote.claims(cluster, out)?;
                if let Some(Conflict::Committed { transaction, certificate }) = conflict {
                    if certificate.decision != Decision::Commit {
                        return Err(Rejection::Structure("a conflict's certificate does not commit"));
                    }
                    certificate.fits(cluster, transaction)?;
                    certificate.claims(cluster, out)?;
                }
                Ok(())
            }
            Self::Logged { logged } => logged.claims(cluster, out),
            Self::Decided { certificate } => certificate.claims(cluster, out),
        }
    }
}

/// Collects the claims of votes that justify a decision on `transaction`, if there are enough from the right shards.
fn justification_claims<'a>(
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

/// Collects the claims of replicas that say in which views of `transaction` they are, if they are distinct and of its
/// logging shard.
fn view_claims<'a>(
    cluster: &Cluster,
    transaction: &Transaction,
    views: &'a [SignedLogged],
    out: &mut Vec<Claim<'a>>,
) -> Result<(), Rejection> {
    let id = transaction.id();
    let shard = logging_shard(&transaction.participants(cluster), id).ok_or(Rejection::Structure("a transaction touches no shard"))?;
    if views.iter().any(|logged| logged.statement.id != id || logged.replica.shard != shard) {
        return Err(Rejection::Structure("a view is another transaction's or from another shard"));
    }
    distinct(shard, views.iter().map(|logged| logged.replica.index), 0)?;
    views.iter().try_for_each(|logged| logged.claims(cluster, out))
}

impl Compress for Message {
    fn compress(&self, compression: &mut SignatureCompression, out: &mut Vec<u8>) {
        match self {
            Self::Read { request, timestamp, keys } => {
                out.push(1);
                request.encode(out);
                timestamp.encode(out);
                encode_sequence(keys, out);
            }
            Self::Prepare { transaction } => {
                out.push(2);
                transaction.encode(out);
            }
            Self::Recover { transaction, evidence } => {
                out.push(3);
                transaction.encode(out);
                compression.compress_sequence(evidence, out);
            }
            Self::Log { transaction, decision, tallies } => {
                out.push(4);
                transaction.encode(out);
                decision.encode(out);
                compression.compress_sequence(tallies, out);
            }
            Self::Writeback { transaction, certificate, relay } => {
                out.push(5);
                transaction.encode(out);
                certificate.compress(compression, out);
                relay.encode(out);
            }
            Self::ReadReply { request, results, prepared } => {
                out.push(6);
                request.encode(out);
                encode_sequence(results, out);
                encode_sequence(prepared, out);
            }
            Self::Voted { vote, conflict } => {
                out.push(7);
                vote.compress(compression, out);
                compression.compress_option(conflict.as_ref(), out);
            }
            Self::Logged { logged } => {
                out.push(8);
                logged.encode(out);
            }
            Self::Decided { certificate } => {
                out.push(9);
                certificate.compress(compression, out);
            }
            Self::Refused { subject, refusal } => {
                out.push(10);
                subject.encode(out);
                refusal.encode(out);
            }
            Self::InvokeFallback { transaction, justified, views } => {
                out.push(11);
                transaction.encode(out);
                compression.compress_option(justified.as_ref(), out);
                encode_sequence(views, out);
            }
            Self::ElectFallback { elect } => {
                out.push(12);
                elect.encode(out);
            }
            Self::DecideFallback { decide, electors } => {
                out.push(13);
                decide.encode(out);
                encode_electors(electors, out);
            }
            Self::StatusQuery { id, timestamp, keys } => {
                out.push(14);
                id.encode(out);
                timestamp.encode(out);
                encode_sequence(keys, out);
            }
            Self::StatusReply { id, end, versions } => {
                out.push(15);
                id.encode(out);
                end.encode(out);
                encode_sequence(versions, out);
            }
            Self::CommitNotice { id } => {
                out.push(16);
                id.encode(out);
            }
        }
    }

    fn decompress(reader: &mut Reader, compression: &mut SignatureCompression) -> Result<Self, DecodeError> {
        Ok(match u8::decode(reader)? {
            1 => Self::Read {
                request: u64::decode(reader)?,
                timestamp: Timestamp::decode(reader)?,
                keys: reader.sequence("a read's keys", READ_KEYS_MAX)?,
            },
            2 => Self::Prepare { transaction: Transaction::decode(reader)? },
            3 => Self::Recover {
                transaction: Transaction::decode(reader)?,
                evidence: compression.decompress_sequence(reader, "evidence", EVIDENCE_MAX)?,
            },
            4 => Self::Log {
                transaction: Transaction::decode(reader)?,
                decision: Decision::decode(reader)?,
                tallies: compression.decompress_sequence(reader, "tallies", SHARDS_MAX)?,
            },
            5 => Self::Writeback {
                transaction: Option::decode(reader)?,
                certificate: Arc::new(Certificate::decompress(reader, compression)?),
                relay: bool::decode(reader)?,
            },
            6 => Self::ReadReply {
                request: u64::decode(reader)?,
                results: reader.sequence("read results", READ_KEYS_MAX)?,
                prepared: reader.sequence("prepared transactions", READ_KEYS_MAX)?,
            },
            7 => Self::Voted { vote: SignedVote::decompress(reader, compression)?, conflict: compression.decompress_option(reader)? },
            8 => Self::Logged { logged: SignedLogged::decode(reader)? },
            9 => Self::Decided { certificate: Arc::new(Certificate::decompress(reader, compression)?) },
            10 => Self::Refused { subject: Subject::decode(reader)?, refusal: Refusal::decode(reader)? },
            11 => Self::InvokeFallback {
                transaction: Transaction::decode(reader)?,
                justified: compression.decompress_option(reader)?,
                views: reader.sequence("views", VOTERS_MAX)?,
            },
            12 => Self::ElectFallback { elect: SignedElect::decode(reader)? },
            13 => Self::DecideFallback { decide: SignedDecide::decode(reader)?, electors: decode_electors(reader)? },
            14 => Self::StatusQuery {
                id: TransactionId::decode(reader)?,
                timestamp: Timestamp::decode(reader)?,
                keys: reader.sequence("keys", TRANSACTION_WRITES_MAX)?,
            },
            15 => Self::StatusReply {
                id: TransactionId::decode(reader)?,
                end: Option::decode(reader)?,
                versions: reader.sequence("versions", TRANSACTION_WRITES_MAX)?,
            },
            16 => Self::CommitNotice { id: TransactionId::decode(reader)? },
            _ => return Err(DecodeError::UnknownTag("a message")),
        })
    }
}
alone!(Message);

impl Compress for Justified {
    fn compress(&self, compression: &mut SignatureCompression, out: &mut Vec<u8>) {
        self.decision.encode(out);
        compression.compress_sequence(&self.tallies, out);
    }

    fn decompress(reader: &mut Reader, compression: &mut SignatureCompression) -> Result<Self, DecodeError> {
        Ok(Self { decision: Decision::decode(reader)?, tallies: compression.decompress_sequence(reader, "tallies", SHARDS_MAX)? })
    }
}
alone!(Justified);

impl Encode for ReadResult {
    fn encode(&self, out: &mut Vec<u8>) {
        self.version.encode(out);
        self.value.encode(out);
        self.pending.encode(out);
    }
}

impl Decode for ReadResult {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Self { version: Timestamp::decode(reader)?, value: Option::decode(reader)?, pending: PendingWrite::decode(reader)? })
    }
}

impl Encode for OldVersion {
    fn encode(&self, out: &mut Vec<u8>) {
        self.version.encode(out);
        self.value.encode(out);
    }
}

impl Decode for OldVersion {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Self { version: Timestamp::decode(reader)?, value: Option::decode(reader)? })
    }
}

impl Encode for KeyVersion {
    fn encode(&self, out: &mut Vec<u8>) {
        self.version.encode(out);
        self.value.encode(out);
    }
}

impl Decode for KeyVersion {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Self { version: Timestamp::decode(reader)?, value: Option::decode(reader)? })
    }
}

impl Encode for PendingWrite {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::None => out.push(0),
            Self::Prepared(place) => {
                out.push(1);
                place.encode(out);
            }
            Self::Hidden => out.push(2),
        }
    }
}

impl Decode for PendingWrite {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        match u8::decode(reader)? {
            0 => Ok(Self::None),
            1 => Ok(Self::Prepared(u16::decode(reader)?)),
            2 => Ok(Self::Hidden),
            _ => Err(DecodeError::UnknownTag("whether a newer version is prepared")),
        }
    }
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
alone!(Conflict);

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
            Self::Overloaded => 5,
            Self::Unknown => 6,
            Self::TooLarge => 7,
            Self::AbandonLimit => 8,
        });
    }
}

impl Decode for Refusal {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(match u8::decode(reader)? {
            1 => Self::TooOld,
            2 => Self::TooNew,
            3 => Self::NotPermitted,
            4 => Self::WrongShard,
            5 => Self::Overloaded,
            6 => Self::Unknown,
            7 => Self::TooLarge,
            8 => Self::AbandonLimit,
            _ => return Err(DecodeError::UnknownTag("a refusal")),
        })
    }
}
