//! What clients and replicas say to one another. Each variant tells who says it to whom, when, and what it proves.
//!
//! The variants stand by conversation: reading, clocks, deciding, recovery, orphans, catching up, rebuilding, answers. The parts that they
//! hold are in `message/`. It is one enum, since a message has one encoding and one `claims`, which must cover every variant: no message can
//! be added without saying what of it is to be verified.

mod catching_up;
mod deciding;
mod orphans;
mod reading;

use std::sync::Arc;

use crypto::{Claim, Compress, Rejection, SignatureClaims, SignatureCompression, encode_as_first};
use types::codec::{Decode, DecodeError, Encode, Reader, encode_sequence};
use types::limits::{READ_KEYS_MAX, SCAN_ROWS_MAX, SHARDS_MAX, TRANSACTION_WRITES_MAX};
use types::{Cluster, Direction, Key, KeyRange, Timestamp, TransactionId};

pub(crate) use self::catching_up::{COMMIT_SLOTS_MAX, COMMITTED_IDS_MAX, PAGE_KEYS_MAX, TRANSACTIONS_MAX, are_in_order, value_bytes};
use self::deciding::justification_claims;
use crate::certificate::{
    Certificate, Decision, SignedLogged, SignedVote, VOTERS_MAX, Vote, VoteSet, VoteStatement, distinct, logging_shard,
};
use crate::recovery::{Elector, SignedDecide, SignedElect, decision_claims, decode_electors, encode_electors};
use crate::transaction::Transaction;

pub use self::catching_up::{CommitDigest, JournalEnd, PageQuery, PageVersion, Place};
pub use self::deciding::{ClientLimit, Conflict, Justified, Refusal, Subject, Unsigned};
pub use self::orphans::{KeyVersion, OldVersion};
pub use self::reading::{PendingWrite, ReadResult, ScanRow};

/// The most votes that may be shown as evidence of authorship: one shard's.
const EVIDENCE_MAX: usize = VOTERS_MAX;

/// A client that asks for a page of so many rows wants none, and no answer: it will read on as of that moment.
pub const KEEPS: u32 = 0;

/// Everything said in this protocol.
#[derive(Clone, Debug, PartialEq)]
pub enum Message {
    // Reading (§4.1).
    /// Client to replica, while a transaction runs: the newest versions below `timestamp` of these keys (§4.1).
    Read {
        /// The client's number for the request; the reply repeats it.
        request: u64,
        /// The reader's timestamp.
        timestamp: Timestamp,
        /// The keys, all of the replica's shard, in strict order, so that no key is asked for twice.
        keys: Vec<Key>,
    },
    /// Replica to client: what it has of the keys asked for, in their order. Not signed: nobody but the reader
    /// needs it, and the channel proves who says so.
    ReadReply {
        /// The request answered.
        request: u64,
        /// What the replica's clock showed when it was asked, in nanoseconds.
        clock: u64,
        /// One for each key.
        results: Vec<ReadResult>,
        /// The prepared transactions that the results name, each once. All of each is shown, so that its name can be
        /// checked and whoever comes to depend on it can finish it.
        prepared: Vec<Transaction>,
        /// Whether the replica votes for no write from now on that would come between what it shows and the reader's timestamp. Else the answer
        /// is true as it is said, and validates nothing (`held_off.rs`).
        is_promised: bool,
    },

    /// Client to replica, while a transaction runs: what lies in `range` below `timestamp`?
    Scan {
        /// The client's number for the request; the reply repeats it.
        request: u64,
        /// The reader's timestamp.
        timestamp: Timestamp,
        /// The keys. The replica answers for those of its shard.
        range: KeyRange,
        /// From which end.
        direction: Direction,
        /// How many keys with values are enough; or [`KEEPS`].
        limit: u32,
    },
    /// Replica to client: a page. Not signed, like the answer to a read.
    ScanReply {
        /// The request answered.
        request: u64,
        /// What the replica's clock showed when it was asked, in nanoseconds.
        clock: u64,
        /// From which end of the range it is, as asked.
        direction: Direction,
        /// Each key, in strict order in that direction, of which it has a version or something prepared.
        rows: Vec<ScanRow>,
        /// Up to where, in that direction, these are all.
        end: Key,
        /// The prepared transactions that the rows name, each once.
        prepared: Vec<Transaction>,
        /// The same of a page.
        is_promised: bool,
    },

    // Clocks.
    /// Client or replica to replica, now and then: what time is it?
    ClockQuery {
        /// What the asker's own clock shows; the reply repeats it.
        asked_at: u64,
        /// How far the journal of a replica has come that asks another of its shard (`older_copy.rs`).
        journal: Option<JournalEnd>,
    },
    /// Replica to another of its shard that told of less: how far the other's journal had come before.
    JournalKnown {
        /// The furthest that it was told of.
        known: JournalEnd,
    },
    /// Replica to client. Not signed: nobody else needs it (`replica_clocks.rs`).
    ClockReply {
        /// The question's.
        asked_at: u64,
        /// What the replica's clock shows, in nanoseconds.
        clock: u64,
    },
    /// Replica to another of its shard that asks the same while this one's clock is not set yet (`peer_clocks.rs`).
    ClockProposal {
        /// The question's.
        asked_at: u64,
        /// What its clock would show if nobody else were heard.
        clock: u64,
    },

    // Deciding (§4.2, §4.3).
    /// Client to every replica of every shard it touched: ST1, asking for a vote (§4.2 (1)). The channel proves the author.
    Prepare {
        /// The whole transaction.
        transaction: Transaction,
    },
    /// Replica to whoever asked for its vote: ST1R (§4.2 (3)).
    Voted {
        /// The vote.
        vote: SignedVote,
        /// With a vote to abort: the transaction in the way, when telling helps.
        conflict: Option<Conflict>,
    },
    /// Client to the replicas of the logging shard: ST2, log this decision (§4.2 (5)).
    Log {
        /// The whole transaction: a replica of the logging shard may have missed it.
        transaction: Transaction,
        /// How it is to end.
        decision: Decision,
        /// Why: at least `3f + 1` votes to commit from every shard, or at least `f + 1` to abort from one.
        tallies: Vec<VoteSet>,
    },
    /// Replica of the logging shard to whoever asked it to log or to recover: ST2R (§4.2 (6)).
    Logged {
        /// What it has logged.
        logged: SignedLogged,
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

    // Recovery (§5).
    /// Anyone to every replica of a stalled transaction's shards: RP, asking how far it came and for a vote (§5).
    Recover {
        /// The whole transaction.
        transaction: Transaction,
        /// `f + 1` votes to commit of one shard show that a correct replica had it from its author; empty while there
        /// are none yet. Votes to abort show nothing: that is what a replica says of what no author brought.
        evidence: Vec<SignedVote>,
    },
    /// Replica to whoever asks about a transaction that has ended: RPR (iii) (§5).
    Decided {
        /// How, and the proof.
        certificate: Arc<Certificate>,
    },
    /// Anyone to the replicas of the logging shard, when what they have logged cannot come together: InvokeFB, elect a
    /// leader for this transaction (§5 (1)).
    InvokeFallback {
        /// The whole transaction.
        transaction: Transaction,
        /// A decision with the votes that justify it, for a replica that has none logged; without one it stays away.
        justified: Option<Justified>,
        /// In which views replicas of the logging shard signed to be, by index in strict order.
        views: Vec<SignedLogged>,
    },
    /// Replica of the logging shard to the leader of its view: ElectFB (§5 (2)).
    ElectFallback {
        /// The sender's view, and what it has logged.
        elect: SignedElect,
    },
    /// Leader to the replicas of the logging shard: DecFB, log this decision (§5 (3)).
    DecideFallback {
        /// The decision and the view.
        decide: SignedDecide,
        /// The `4f + 1` that elected it, by index in strict order; most of them say what it decides.
        electors: Vec<Elector>,
    },

    // Resolution of orphans.
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

    // Catching up.
    /// Replica to another of its shard, in turn: which of these stretches of time do you know other commits in ([`crate::catch_up`])?
    CommitsQuery {
        /// The number of the first.
        first: u64,
        /// What the asker knows of each, one after the other.
        digests: Vec<CommitDigest>,
    },
    /// Replica to the one that asked: what it knows to have committed in the first of those where it knows other commits.
    CommitsReply {
        /// The transactions.
        ids: Vec<TransactionId>,
    },
    /// Replica to another of its shard that says so: which transactions are these?
    TransactionsQuery {
        /// Their ids.
        ids: Vec<TransactionId>,
    },
    /// Replica to the one that asked. It says nothing but what their ids say: that these are they.
    TransactionsReply {
        /// The transactions, as many as fit.
        transactions: Vec<Transaction>,
    },
    /// Replica to every other of its shard, page after page: do you hold the same versions here?
    VersionsQuery {
        /// The page.
        query: PageQuery,
    },
    /// Replica to the one that asked: what it holds there if that is not the same, and nothing if it is.
    VersionsReply {
        /// The question's.
        page: u64,
        /// What it holds, by key in strict order.
        versions: Vec<PageVersion>,
        /// Where it stopped, if not all fits.
        next: Option<Key>,
    },

    // Rebuilding.
    /// Replica that lost its disk to another of its shard: what do you hold undecided up to this time ([`crate::rebuild`])?
    UndecidedQuery {
        /// The time, in nanoseconds.
        up_to: u64,
        /// Where the answer before stopped.
        after: Option<Place>,
    },
    /// Replica to the one that asked, once it judges nothing any more up to that time: what it holds undecided.
    UndecidedReply {
        /// The question's.
        up_to: u64,
        /// The question's.
        after: Option<Place>,
        /// The transactions, by timestamp and id in strict order, as many as fit.
        transactions: Vec<Transaction>,
        /// Whether these are all.
        is_last: bool,
    },

    // To any request.
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
            | Self::Scan { .. }
            | Self::ClockQuery { .. }
            | Self::ClockProposal { .. }
            | Self::JournalKnown { .. }
            | Self::Prepare { .. }
            | Self::Recover { .. }
            | Self::Log { .. }
            | Self::InvokeFallback { .. }
            | Self::ElectFallback { .. }
            | Self::DecideFallback { .. }
            | Self::StatusQuery { .. }
            | Self::StatusReply { .. }
            | Self::CommitsQuery { .. }
            | Self::CommitsReply { .. }
            | Self::TransactionsQuery { .. }
            | Self::TransactionsReply { .. }
            | Self::VersionsQuery { .. }
            | Self::VersionsReply { .. }
            | Self::UndecidedQuery { .. }
            | Self::UndecidedReply { .. }
            | Self::Writeback { .. }
            | Self::CommitNotice { .. } => false,
            Self::ReadReply { .. }
            | Self::ScanReply { .. }
            | Self::ClockReply { .. }
            | Self::Voted { .. }
            | Self::Logged { .. }
            | Self::Decided { .. }
            | Self::Refused { .. } => true,
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

impl SignatureClaims for Message {
    fn claims<'a>(&'a self, cluster: &Cluster, out: &mut Vec<Claim<'a>>) -> Result<(), Rejection> {
        match self {
            Self::Read { keys, .. } | Self::StatusQuery { keys, .. } if !keys.is_sorted_by(|key, next| key < next) => {
                Err(Rejection::Structure("the keys asked for are not in strict order"))
            }
            Self::ScanReply { direction, rows, end, .. }
                if !rows.is_sorted_by(|row, next| direction.order(&row.key, &next.key).is_lt())
                    || rows.last().is_some_and(|last| !direction.has_passed(&last.key, end)) =>
            {
                Err(Rejection::Structure("the keys of a range are not in strict order"))
            }
            Self::VersionsReply { versions, .. } if !versions.is_sorted_by(|one, next| one.key < next.key) => {
                Err(Rejection::Structure("the keys of a page are not in strict order"))
            }
            Self::UndecidedReply { after, transactions, .. } if !are_in_order(*after, transactions) => {
                Err(Rejection::Structure("undecided transactions are not in strict order"))
            }
            Self::Read { .. }
            | Self::Scan { .. }
            | Self::ScanReply { .. }
            | Self::CommitsQuery { .. }
            | Self::CommitsReply { .. }
            | Self::TransactionsQuery { .. }
            | Self::TransactionsReply { .. }
            | Self::VersionsQuery { .. }
            | Self::VersionsReply { .. }
            | Self::UndecidedQuery { .. }
            | Self::UndecidedReply { .. }
            | Self::ClockQuery { .. }
            | Self::ClockReply { .. }
            | Self::ClockProposal { .. }
            | Self::JournalKnown { .. }
            | Self::Prepare { .. }
            | Self::ReadReply { .. }
            | Self::Refused { .. }
            | Self::StatusQuery { .. }
            | Self::StatusReply { .. }
            | Self::CommitNotice { .. } => Ok(()),
            Self::Recover { transaction, evidence } => {
                if !evidence.is_sorted_by(|vote, next| vote.replica < next.replica) {
                    return Err(Rejection::Structure("evidence names a replica twice, or not in order"));
                }
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
            Self::ReadReply { request, clock, results, prepared, is_promised } => {
                // Growing step by step to the size of a large answer costs more than filling it.
                out.reserve(results.iter().map(ReadResult::bytes_about).sum());
                out.push(6);
                request.encode(out);
                clock.encode(out);
                encode_sequence(results, out);
                encode_sequence(prepared, out);
                is_promised.encode(out);
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
            Self::ClockQuery { asked_at, journal } => {
                out.push(17);
                asked_at.encode(out);
                journal.encode(out);
            }
            Self::ClockReply { asked_at, clock } => {
                out.push(18);
                asked_at.encode(out);
                clock.encode(out);
            }
            Self::ClockProposal { asked_at, clock } => {
                out.push(19);
                asked_at.encode(out);
                clock.encode(out);
            }
            Self::JournalKnown { known } => {
                out.push(32);
                known.encode(out);
            }
            Self::CommitsQuery { first, digests } => {
                out.push(20);
                first.encode(out);
                encode_sequence(digests, out);
            }
            Self::CommitsReply { ids } => {
                out.push(21);
                encode_sequence(ids, out);
            }
            Self::TransactionsQuery { ids } => {
                out.push(22);
                encode_sequence(ids, out);
            }
            Self::TransactionsReply { transactions } => {
                out.push(23);
                encode_sequence(transactions, out);
            }
            Self::VersionsQuery { query } => {
                out.push(24);
                query.encode(out);
            }
            Self::VersionsReply { page, versions, next } => {
                out.push(25);
                page.encode(out);
                encode_sequence(versions, out);
                next.encode(out);
            }
            Self::Scan { request, timestamp, range, direction, limit } => {
                out.push(26);
                request.encode(out);
                timestamp.encode(out);
                range.encode(out);
                direction.encode(out);
                limit.encode(out);
            }
            Self::ScanReply { request, clock, direction, rows, end, prepared, is_promised } => {
                out.reserve(rows.iter().map(ScanRow::bytes_about).sum());
                out.push(27);
                request.encode(out);
                clock.encode(out);
                direction.encode(out);
                encode_sequence(rows, out);
                end.encode(out);
                encode_sequence(prepared, out);
                is_promised.encode(out);
            }
            Self::UndecidedQuery { up_to, after } => {
                out.push(30);
                up_to.encode(out);
                after.encode(out);
            }
            Self::UndecidedReply { up_to, after, transactions, is_last } => {
                out.push(31);
                up_to.encode(out);
                after.encode(out);
                encode_sequence(transactions, out);
                is_last.encode(out);
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
                clock: u64::decode(reader)?,
                results: reader.sequence("read results", READ_KEYS_MAX)?,
                prepared: reader.sequence("prepared transactions", READ_KEYS_MAX)?,
                is_promised: bool::decode(reader)?,
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
            17 => Self::ClockQuery { asked_at: u64::decode(reader)?, journal: Option::decode(reader)? },
            18 => Self::ClockReply { asked_at: u64::decode(reader)?, clock: u64::decode(reader)? },
            19 => Self::ClockProposal { asked_at: u64::decode(reader)?, clock: u64::decode(reader)? },
            20 => Self::CommitsQuery { first: u64::decode(reader)?, digests: reader.sequence("stretches of time", COMMIT_SLOTS_MAX)? },
            21 => Self::CommitsReply { ids: reader.sequence("committed transactions", COMMITTED_IDS_MAX)? },
            22 => Self::TransactionsQuery { ids: reader.sequence("transactions asked for", TRANSACTIONS_MAX)? },
            23 => Self::TransactionsReply { transactions: reader.sequence("transactions", TRANSACTIONS_MAX)? },
            24 => Self::VersionsQuery { query: PageQuery::decode(reader)? },
            25 => Self::VersionsReply {
                page: u64::decode(reader)?,
                versions: reader.sequence("a page's versions", PAGE_KEYS_MAX)?,
                next: Option::decode(reader)?,
            },
            26 => Self::Scan {
                request: u64::decode(reader)?,
                timestamp: Timestamp::decode(reader)?,
                range: KeyRange::decode(reader)?,
                direction: Direction::decode(reader)?,
                limit: u32::decode(reader)?,
            },
            27 => Self::ScanReply {
                request: u64::decode(reader)?,
                clock: u64::decode(reader)?,
                direction: Direction::decode(reader)?,
                rows: reader.sequence("a range's keys", SCAN_ROWS_MAX)?,
                end: Key::decode(reader)?,
                prepared: reader.sequence("prepared transactions", SCAN_ROWS_MAX)?,
                is_promised: bool::decode(reader)?,
            },
            30 => Self::UndecidedQuery { up_to: u64::decode(reader)?, after: Option::decode(reader)? },
            31 => Self::UndecidedReply {
                up_to: u64::decode(reader)?,
                after: Option::decode(reader)?,
                transactions: reader.sequence("undecided transactions", TRANSACTIONS_MAX)?,
                is_last: bool::decode(reader)?,
            },
            32 => Self::JournalKnown { known: JournalEnd::decode(reader)? },
            _ => return Err(DecodeError::UnknownTag("a message")),
        })
    }
}
encode_as_first!(Message);
