//! The reference implementation of what may be accepted, in the plainest form: no cache, no batches, no shared hashing. It is
//! written from `docs/protocols/basil.md` and the crates' pages, and uses nothing of those crates but their types.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use basil::certificate::{Certificate, Proof, ShardProof, SignedLogged, SignedVote, VoteSet};
use basil::message::{Conflict, Justified};
use basil::recovery::{Elector, SignedDecide, SignedElect};
use basil::{Decision, Message, Transaction, Vote};
use crypto::BatchSignature;
use ed25519_zebra::{Signature, VerificationKey};
use sha2::{Digest as _, Sha256};
use types::{Cluster, Digest, Direction, Key, Placement, ReplicaId, ShardId, TransactionId};

/// Whether `message` is to be accepted: every rule, to the letter.
#[must_use]
pub fn accepts(cluster: &Cluster, message: &Message) -> bool {
    match message {
        Message::Read { keys, .. } | Message::StatusQuery { keys, .. } => ascend(keys.iter()),
        Message::ScanReply { direction: Direction::Ascending, rows, end, .. } => {
            ascend(rows.iter().map(|row| &row.key)) && rows.iter().all(|row| row.key < *end)
        }
        Message::ScanReply { direction: Direction::Descending, rows, end, .. } => {
            ascend(rows.iter().rev().map(|row| &row.key)) && rows.iter().all(|row| row.key >= *end)
        }
        Message::Prepare { .. }
        | Message::Scan { .. }
        | Message::ReadReply { .. }
        | Message::ClockQuery { .. }
        | Message::ClockReply { .. }
        | Message::ClockProposal { .. }
        | Message::JournalKnown { .. }
        | Message::Refused { .. }
        | Message::StatusReply { .. }
        | Message::CommitsQuery { .. }
        | Message::CommitsReply { .. }
        | Message::TransactionsQuery { .. }
        | Message::TransactionsReply { .. }
        | Message::VersionsQuery { .. }
        | Message::UndecidedQuery { .. }
        | Message::CommitNotice { .. } => true,
        Message::UndecidedReply { after, transactions, .. } => {
            let place = |transaction: &Transaction| (transaction.timestamp(), transaction.id());
            let after = after.map(|place| (place.timestamp, place.id));
            ascend(after.into_iter().chain(transactions.iter().map(place)))
        }
        Message::VersionsReply { versions, .. } => ascend(versions.iter().map(|version| version.key.clone())),
        Message::Recover { transaction, evidence } => {
            let rightly = |vote: &SignedVote| vote.statement.id == transaction.id() && vote.statement.vote == Vote::Commit;
            ascend(evidence.iter().map(|vote| vote.replica)) && evidence.iter().all(|vote| rightly(vote) && is_vote(cluster, vote))
        }
        Message::Log { transaction, decision, tallies } => is_justified(cluster, transaction, *decision, tallies),
        Message::InvokeFallback { transaction, justified, views } => {
            let fits = |Justified { decision, tallies }: &Justified| is_justified(cluster, transaction, *decision, tallies);
            justified.as_ref().is_none_or(fits) && are_views(cluster, transaction, views)
        }
        Message::ElectFallback { elect } => is_elect(cluster, elect),
        Message::DecideFallback { decide, electors } => is_decide(cluster, decide, electors),
        Message::Writeback { transaction, certificate, relay: _ } => {
            transaction.as_ref().is_none_or(|transaction| fits(cluster, certificate, transaction)) && holds(cluster, certificate)
        }
        Message::Voted { vote, conflict } => {
            let shown = match conflict {
                Some(Conflict::Committed { transaction, certificate }) => {
                    certificate.decision == Decision::Commit && fits(cluster, certificate, transaction) && holds(cluster, certificate)
                }
                Some(Conflict::Stalled { .. }) | None => true,
            };
            shown && is_vote(cluster, vote)
        }
        Message::Logged { logged } => is_logged(cluster, logged),
        Message::Decided { certificate } => holds(cluster, certificate),
    }
}

/// Whether `certificate` proves how `transaction` ended: what it means, whatever its form. It counts distinct replicas whose
/// signatures are good one by one, over exactly the right statement.
#[must_use]
pub fn proves(cluster: &Cluster, certificate: &Certificate, transaction: &Transaction) -> bool {
    let (id, faults) = (transaction.id(), cluster.faults());
    let shards = shards_of(cluster, transaction);
    let votes = |shard: ShardId, vote: Vote, proofs: &[ShardProof]| {
        let sets = proofs.iter().filter_map(|proof| match proof {
            ShardProof::Votes(set) if set.shard == shard && set.vote == vote => Some(set),
            _ => None,
        });
        let voters = sets.flat_map(|set| &set.voters);
        let good = voters.filter(|(index, signature)| said(cluster, ReplicaId { shard, index: *index }, signature, &vote_body(id, vote)));
        good.map(|(index, _)| *index).collect::<BTreeSet<u16>>().len()
    };
    certificate.id == id
        && match (&certificate.proof, certificate.decision) {
            (Proof::Fast(proofs), Decision::Commit) => shards.iter().all(|shard| votes(*shard, Vote::Commit, proofs) == 5 * faults + 1),
            (Proof::Fast(proofs), Decision::Abort) => {
                let down = shards.iter().any(|shard| votes(*shard, Vote::Abort, proofs) > 3 * faults);
                down || proofs.iter().any(|proof| match proof {
                    ShardProof::Votes(_) => false,
                    ShardProof::Conflict { shard, transaction: other, certificate } => {
                        certificate.decision == Decision::Commit
                            && shards.contains(shard)
                            && proves(cluster, certificate, other)
                            && conflict(cluster, *shard, transaction, other)
                    }
                })
            }
            (Proof::Logged(set), decision) => {
                let good = set.voters.iter().filter(|(index, view_current, signature)| {
                    let replica = ReplicaId { shard: set.shard, index: *index };
                    said(cluster, replica, signature, &logged_body(id, decision, set.view_decision, *view_current))
                });
                let distinct: BTreeSet<u16> = good.map(|(index, _, _)| *index).collect();
                logging_shard(&shards, id) == Some(set.shard) && distinct.len() > 4 * faults
            }
        }
}

/// The shards that hold a key the transaction reads or writes, or may hold one of a range that it reads, in order.
#[must_use]
pub fn shards_of(cluster: &Cluster, transaction: &Transaction) -> Vec<ShardId> {
    let read = transaction.reads().iter().map(|read| &read.key);
    let keys: BTreeSet<&Key> = read.chain(transaction.writes().iter().map(|write| &write.key)).collect();
    let mut shards: BTreeSet<ShardId> = keys.into_iter().map(|key| cluster.shard_of(key)).collect();
    // The fixture's clusters place keys by ranges: a shard takes part if some key of a range is its.
    let bounds: Vec<Key> = match cluster.placement() {
        Placement::Ranges(bounds) => bounds.clone(),
        Placement::Hash => Vec::new(),
    };
    for range in transaction.ranges() {
        shards.insert(cluster.shard_of(range.low()));
        shards.extend(bounds.iter().filter(|bound| range.contains(bound)).map(|bound| cluster.shard_of(bound)));
        if bounds.is_empty() {
            shards.extend(cluster.shards());
        }
    }
    shards.into_iter().collect()
}

/// The shard that writes the decision down: the id's first eight bytes choose it.
#[must_use]
pub fn logging_shard(shards: &[ShardId], id: TransactionId) -> Option<ShardId> {
    let first = id.0[..8].iter().rev().fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
    let count = shards.len() as u64;
    shards.get(usize::try_from(first.checked_rem(count)?).ok()?).copied()
}

/// Whether the two cannot both be, because of a key of `shard`: one of them read it, and did not see what the other wrote
/// between the version it saw and itself.
#[must_use]
pub fn conflict(cluster: &Cluster, shard: ShardId, one: &Transaction, other: &Transaction) -> bool {
    let missed = |reader: &Transaction, writer: &Transaction| {
        reader.reads().iter().any(|read| {
            let wrote = writer.writes().iter().any(|write| write.key == read.key);
            let between = read.version < writer.timestamp() && writer.timestamp() < reader.timestamp();
            wrote && between && cluster.shard_of(&read.key) == shard
        })
    };
    one.id() != other.id() && (missed(one, other) || missed(other, one))
}

// Messages and their parts, to the letter.

fn is_vote(cluster: &Cluster, vote: &SignedVote) -> bool {
    said(cluster, vote.replica, &vote.signature, &vote_body(vote.statement.id, vote.statement.vote))
}

fn is_logged(cluster: &Cluster, logged: &SignedLogged) -> bool {
    let statement = logged.statement;
    let body = logged_body(statement.id, statement.decision, statement.view_decision, statement.view_current);
    said(cluster, logged.replica, &logged.signature, &body)
}

fn is_elect(cluster: &Cluster, elect: &SignedElect) -> bool {
    let statement = elect.statement;
    let body = view_body("basil/elect/1", statement.id, statement.decision, statement.view);
    statement.view > 0 && said(cluster, elect.replica, &elect.signature, &body)
}

fn is_decide(cluster: &Cluster, decide: &SignedDecide, electors: &[Elector]) -> bool {
    let (statement, shard, faults) = (decide.statement, decide.leader.shard, cluster.faults());
    let commits = electors.iter().filter(|(_, decision, _)| *decision == Decision::Commit).count();
    let majority = if 2 * commits > electors.len() { Decision::Commit } else { Decision::Abort };
    let first = statement.id.0[..8].iter().rev().fold(0_u128, |number, byte| number << 8 | u128::from(*byte));
    let leader = (first + u128::from(statement.view)) % (5 * faults as u128 + 1);
    let electing = |(index, decision, signature): &Elector| {
        let body = view_body("basil/elect/1", statement.id, *decision, statement.view);
        said(cluster, ReplicaId { shard, index: *index }, signature, &body)
    };
    electors.len() == 4 * faults + 1
        && ascend(electors.iter().map(|(index, _, _)| *index))
        && statement.view > 0
        && u128::from(decide.leader.index) == leader
        && statement.decision == majority
        && electors.iter().all(electing)
        && said(cluster, decide.leader, &decide.signature, &view_body("basil/decide/1", statement.id, statement.decision, statement.view))
}

fn is_justified(cluster: &Cluster, transaction: &Transaction, decision: Decision, tallies: &[VoteSet]) -> bool {
    let (id, shards, faults) = (transaction.id(), shards_of(cluster, transaction), cluster.faults());
    match decision {
        Decision::Commit => {
            let same = tallies.iter().map(|set| set.shard).eq(shards);
            same && tallies.iter().all(|set| set.vote == Vote::Commit && is_set(cluster, set, id, 3 * faults + 1))
        }
        Decision::Abort => {
            let [set] = tallies else { return false };
            set.vote == Vote::Abort && shards.contains(&set.shard) && is_set(cluster, set, id, faults + 1)
        }
    }
}

fn are_views(cluster: &Cluster, transaction: &Transaction, views: &[SignedLogged]) -> bool {
    let Some(shard) = logging_shard(&shards_of(cluster, transaction), transaction.id()) else { return false };
    let rightly = |logged: &SignedLogged| logged.statement.id == transaction.id() && logged.replica.shard == shard;
    ascend(views.iter().map(|logged| logged.replica.index)) && views.iter().all(|logged| rightly(logged) && is_logged(cluster, logged))
}

/// A certificate's signatures and quorums, whatever transaction it is of.
fn holds(cluster: &Cluster, certificate: &Certificate) -> bool {
    let (id, faults) = (certificate.id, cluster.faults());
    match (&certificate.proof, certificate.decision) {
        (Proof::Fast(proofs), Decision::Commit) => {
            let unanimous = |proof: &ShardProof| match proof {
                ShardProof::Votes(set) => set.vote == Vote::Commit && is_set(cluster, set, id, 5 * faults + 1),
                ShardProof::Conflict { .. } => false,
            };
            !proofs.is_empty() && ascend(proofs.iter().map(ShardProof::shard)) && proofs.iter().all(unanimous)
        }
        (Proof::Fast(proofs), Decision::Abort) => match proofs.as_slice() {
            [ShardProof::Votes(set)] => set.vote == Vote::Abort && is_set(cluster, set, id, 3 * faults + 1),
            [ShardProof::Conflict { certificate, .. }] => certificate.decision == Decision::Commit && holds(cluster, certificate),
            _ => false,
        },
        (Proof::Logged(set), decision) => {
            let logged = |(index, view_current, signature): &(u16, u32, BatchSignature)| {
                let replica = ReplicaId { shard: set.shard, index: *index };
                said(cluster, replica, signature, &logged_body(id, decision, set.view_decision, *view_current))
            };
            set.voters.len() > 4 * faults && ascend(set.voters.iter().map(|(index, _, _)| *index)) && set.voters.iter().all(logged)
        }
    }
}

/// Whether a certificate is about all of `transaction`.
#[must_use]
pub fn fits(cluster: &Cluster, certificate: &Certificate, transaction: &Transaction) -> bool {
    let shards = shards_of(cluster, transaction);
    let shard_of = |proof: &ShardProof| match proof {
        ShardProof::Votes(set) => set.shard,
        ShardProof::Conflict { shard, .. } => *shard,
    };
    certificate.id == transaction.id()
        && match (&certificate.proof, certificate.decision) {
            (Proof::Fast(proofs), Decision::Commit) => proofs.iter().map(shard_of).eq(shards),
            (Proof::Fast(proofs), Decision::Abort) => match proofs.as_slice() {
                [ShardProof::Votes(set)] => shards.contains(&set.shard),
                [ShardProof::Conflict { shard, transaction: other, certificate }] => {
                    shards.contains(shard) && fits(cluster, certificate, other) && conflict(cluster, *shard, transaction, other)
                }
                _ => false,
            },
            (Proof::Logged(set), _) => logging_shard(&shards, certificate.id) == Some(set.shard),
        }
}

fn is_set(cluster: &Cluster, set: &VoteSet, id: TransactionId, quorum: usize) -> bool {
    let voted = |(index, signature): &(u16, BatchSignature)| {
        said(cluster, ReplicaId { shard: set.shard, index: *index }, signature, &vote_body(id, set.vote))
    };
    set.voters.len() >= quorum && ascend(set.voters.iter().map(|(index, _)| *index)) && set.voters.iter().all(voted)
}

fn ascend<T: PartialOrd>(items: impl Iterator<Item = T>) -> bool {
    let items: Vec<T> = items.collect();
    items.windows(2).all(|pair| pair[0] < pair[1])
}

// What is hashed and signed.

/// A statement: its kind, and its body.
struct Body(&'static str, Vec<u8>);

fn vote_body(id: TransactionId, vote: Vote) -> Body {
    Body("basil/vote/1", [&id.0[..], &[if vote == Vote::Commit { 1 } else { 2 }]].concat())
}

fn logged_body(id: TransactionId, decision: Decision, view_decision: u32, view_current: u32) -> Body {
    let end = [&view_decision.to_le_bytes()[..], &view_current.to_le_bytes()].concat();
    Body("basil/logged/1", [&id.0[..], &[side(decision)], &end].concat())
}

fn view_body(kind: &'static str, id: TransactionId, decision: Decision, view: u32) -> Body {
    Body(kind, [&id.0[..], &[side(decision)], &view.to_le_bytes()].concat())
}

fn side(decision: Decision) -> u8 {
    if decision == Decision::Commit { 1 } else { 2 }
}

/// Whether `replica` said it: it is of the cluster, the statement is at the signature's index under the root, and the root is
/// signed, by ZIP 215 and on its own.
fn said(cluster: &Cluster, replica: ReplicaId, signature: &BatchSignature, Body(kind, body): &Body) -> bool {
    is_said(cluster, replica, signature, kind, body)
}

/// Whether `replica` has signed the statement of this kind with this body: see [`said`].
#[must_use]
pub fn is_said(cluster: &Cluster, replica: ReplicaId, signature: &BatchSignature, kind: &str, body: &[u8]) -> bool {
    let Some(key) = cluster.replica_key(replica) else { return false };
    let name = [&replica.shard.0.to_le_bytes()[..], &replica.index.to_le_bytes()].concat();
    let kind_bytes = u8::try_from(kind.len()).expect("kinds are short");
    let leaf = hash(&[&[0, kind_bytes], kind.as_bytes(), cluster.id().as_bytes(), &name, body]);
    if climb(leaf, signature) != Some(signature.signed.root) {
        return false;
    }
    let signed =
        [b"bezant root v1", &cluster.id().as_bytes()[..], &name, &signature.signed.count.to_le_bytes(), &signature.signed.root].concat();
    is_signed(key, &signed, &signature.signed.signature)
}

/// The root that a leaf leads to, if the path has exactly the length for its index in a tree of that size.
#[must_use]
pub fn climb(leaf: Digest, signature: &BatchSignature) -> Option<Digest> {
    let (mut hash_so_far, mut at, mut width) = (leaf, usize::from(signature.index), usize::from(signature.signed.count));
    if at >= width || width > 256 {
        return None;
    }
    let mut path = signature.path.iter();
    while width > 1 {
        let is_alone = at == width - 1 && width % 2 == 1;
        if !is_alone {
            let sibling = path.next()?;
            hash_so_far = if at % 2 == 0 { hash(&[&[1], &hash_so_far, sibling]) } else { hash(&[&[1], sibling, &hash_so_far]) };
        }
        at /= 2;
        width = width / 2 + width % 2;
    }
    path.next().is_none().then_some(hash_so_far)
}

fn hash(parts: &[&[u8]]) -> Digest {
    Sha256::digest(parts.concat()).into()
}

/// The most answers about signatures that are kept: a check takes as long as a hundred of anything else here.
const ANSWERS_MAX: usize = 100_000;

/// A key, what is signed, and the signature: all that an answer depends on.
type Question = ([u8; 32], Vec<u8>, [u8; 64]);

thread_local! {
    static ANSWERS: RefCell<BTreeMap<Question, bool>> = const { RefCell::new(BTreeMap::new()) };
}

fn is_signed(key: &[u8; 32], message: &[u8], signature: &[u8; 64]) -> bool {
    ANSWERS.with_borrow_mut(|answers| {
        if answers.len() > ANSWERS_MAX {
            answers.clear();
        }
        *answers.entry((*key, message.to_vec(), *signature)).or_insert_with(|| {
            VerificationKey::try_from(*key).is_ok_and(|key| key.verify(&Signature::from_bytes(signature), message).is_ok())
        })
    })
}
