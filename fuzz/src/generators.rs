//! Generates messages and certificates from the fixture's statements: valid ones, and damaged ones.
//!
//! Every function reads [`Choices`]; when these are used up, it makes something valid.

use std::sync::Arc;

use basil::certificate::{Certificate, LoggedSet, LoggedStatement, Proof, ShardProof, SignedLogged, SignedVote, VoteSet, VoteStatement};
use basil::message::{Conflict, Justified, KeyVersion, OldVersion, PageQuery, PageVersion, PendingWrite, ReadResult, ScanRow, Subject};
use basil::recovery::{DecideStatement, ElectStatement, Elector, SignedDecide, SignedElect};
use basil::{ClientLimit, Decision, Message, Refusal, Transaction, Vote};
use crypto::{BatchSignature, SignedRoot};
use types::{ClusterId, Direction, Key, KeyRange, ReplicaId, ShardId, Timestamp, TransactionId, Value};

use crate::choices::Choices;
use crate::fixture::{CLUSTER, MILLISECOND, NOW, REPLICAS, SHARDS, Said, VIEWS, fixture, replica};
use crate::reference::{logging_shard, shards_of};

/// The keys that anybody speaks of.
pub const KEYS: [&str; 8] = ["a1", "a2", "a3", "i1", "i2", "q1", "", "zz"];

/// The number of one of the fixture's transactions.
pub fn number(choices: &mut Choices<'_>) -> usize {
    choices.below(fixture().transactions.len())
}

fn transaction(choices: &mut Choices<'_>) -> Transaction {
    fixture().transactions[number(choices)].clone()
}

fn vote(choices: &mut Choices<'_>) -> Vote {
    choices.one_of(&[Vote::Commit, Vote::Abort])
}

fn decision(choices: &mut Choices<'_>) -> Decision {
    choices.one_of(&[Decision::Commit, Decision::Abort])
}

fn view(choices: &mut Choices<'_>) -> u32 {
    u32::try_from(choices.below(VIEWS as usize)).expect("there are few views")
}

/// A replica, of the transaction's first shard where nothing else is chosen.
fn any_replica(choices: &mut Choices<'_>) -> ReplicaId {
    let index = choices.below(usize::from(REPLICAS));
    let shard = choices.below(usize::from(SHARDS));
    replica(u16::try_from(shard).expect("there are few shards"), u16::try_from(index).expect("there are six"))
}

fn signed_vote(number: usize, replica: ReplicaId, vote: Vote) -> SignedVote {
    let statement = VoteStatement { id: fixture().transactions[number].id(), vote };
    SignedVote { replica, statement, signature: fixture().signature(replica, number, &Said::Vote(statement)) }
}

fn signed_logged(number: usize, replica: ReplicaId, decision: Decision, view_decision: u32, view_current: u32) -> SignedLogged {
    let statement = LoggedStatement { id: fixture().transactions[number].id(), decision, view_decision, view_current };
    SignedLogged { replica, statement, signature: fixture().signature(replica, number, &Said::Logged(statement)) }
}

fn signed_elect(number: usize, replica: ReplicaId, decision: Decision, view: u32) -> SignedElect {
    let statement = ElectStatement { id: fixture().transactions[number].id(), decision, view };
    SignedElect { replica, statement, signature: fixture().signature(replica, number, &Said::Elect(statement)) }
}

/// The votes of the first `count` replicas of a shard.
fn votes(number: usize, shard: ShardId, vote: Vote, count: u16) -> VoteSet {
    let voters = (0..count).map(|index| (index, signed_vote(number, ReplicaId { shard, index }, vote).signature));
    VoteSet { shard, vote, voters: voters.collect() }
}

/// The shards of transaction `number`; shard 0 where it touches none.
fn shards(number: usize) -> Vec<ShardId> {
    let shards = shards_of(&fixture().cluster, &fixture().transactions[number]);
    if shards.is_empty() { vec![ShardId(0)] } else { shards }
}

fn logs(number: usize) -> ShardId {
    logging_shard(&shards(number), fixture().transactions[number].id()).expect("there is a shard")
}

// Certificates.

/// A certificate of transaction `number` that proves its end, in one of the four ways there are.
pub fn certificate(choices: &mut Choices<'_>, number: usize) -> Certificate {
    let id = fixture().transactions[number].id();
    match choices.below(5) {
        0 => Certificate { id, decision: Decision::Commit, proof: Proof::Fast(unanimous(number)) },
        1 => {
            let shard = choices.one_of(&shards(number));
            let count = 4 + u16::from(choices.byte() % 3);
            Certificate {
                id,
                decision: Decision::Abort,
                proof: Proof::Fast(vec![ShardProof::Votes(votes(number, shard, Vote::Abort, count))]),
            }
        }
        2 => {
            let (decision, view_decision, extra) = (decision(choices), view(choices), choices.byte() % 2);
            let voters = (0..5 + u16::from(extra)).map(|index| {
                let view_current = view_decision.max(view(choices));
                let logged = signed_logged(number, ReplicaId { shard: logs(number), index }, decision, view_decision, view_current);
                (index, view_current, logged.signature)
            });
            let set = LoggedSet { shard: logs(number), view_decision, voters: voters.collect() };
            Certificate { id, decision, proof: Proof::Logged(set) }
        }
        _ => {
            let (other, shard) = (self::number(choices), choices.one_of(&shards(number)));
            Certificate { id, decision: Decision::Abort, proof: Proof::Fast(vec![conflict_proof(choices, other, shard)]) }
        }
    }
}

fn unanimous(number: usize) -> Vec<ShardProof> {
    shards(number).into_iter().map(|shard| ShardProof::Votes(votes(number, shard, Vote::Commit, REPLICAS))).collect()
}

fn conflict_proof(choices: &mut Choices<'_>, other: usize, shard: ShardId) -> ShardProof {
    let transaction = fixture().transactions[other].clone();
    // One in three is of another transaction, or does not commit.
    let certificate = match choices.below(3) {
        0 | 1 => Certificate { id: transaction.id(), decision: Decision::Commit, proof: Proof::Fast(unanimous(other)) },
        _ => {
            let number = number(choices);
            flat_certificate(choices, number)
        }
    };
    ShardProof::Conflict { shard, transaction, certificate: Arc::new(certificate) }
}

/// A certificate without another in it.
fn flat_certificate(choices: &mut Choices<'_>, number: usize) -> Certificate {
    let mut bytes = [choices.byte() % 3, choices.byte(), choices.byte(), choices.byte()];
    bytes[3] %= 2;
    certificate(&mut Choices::new(&bytes), number)
}

/// Damages a certificate once.
pub fn damage(choices: &mut Choices<'_>, certificate: &mut Certificate) {
    match choices.below(8) {
        0 => certificate.id = transaction(choices).id(),
        1 => certificate.decision = decision(choices),
        _ => match &mut certificate.proof {
            Proof::Fast(proofs) => damage_proofs(choices, certificate.id, proofs),
            Proof::Logged(set) => damage_logged(choices, set),
        },
    }
}

fn damage_proofs(choices: &mut Choices<'_>, id: TransactionId, proofs: &mut Vec<ShardProof>) {
    let at = choices.below(proofs.len());
    match choices.below(8) {
        0 if !proofs.is_empty() => drop(proofs.remove(at)),
        1 if !proofs.is_empty() => proofs.push(proofs[at].clone()),
        2 if proofs.len() > 1 => proofs.swap(0, at),
        3 => {
            let (number, shard) = (fixture().place_of(id).unwrap_or(0), any_replica(choices).shard);
            proofs.insert(at, ShardProof::Votes(votes(number, shard, vote(choices), 1 + u16::from(choices.byte() % 6))));
        }
        _ => match proofs.get_mut(at) {
            Some(ShardProof::Votes(set)) => damage_votes(choices, set),
            Some(ShardProof::Conflict { shard, transaction, certificate }) => match choices.below(4) {
                0 => *shard = any_replica(choices).shard,
                1 => *transaction = self::transaction(choices),
                _ => damage(choices, Arc::make_mut(certificate)),
            },
            None => {}
        },
    }
}

fn damage_votes(choices: &mut Choices<'_>, set: &mut VoteSet) {
    let at = choices.below(set.voters.len());
    match choices.below(8) {
        0 => set.shard = any_replica(choices).shard,
        1 => set.vote = vote(choices),
        2 if !set.voters.is_empty() => drop(set.voters.remove(at)),
        3 if !set.voters.is_empty() => set.voters.insert(at, set.voters[at].clone()),
        4 if !set.voters.is_empty() => set.voters.swap(0, at),
        5 => {
            let signature = any_signature(choices, set.shard);
            set.voters.push((index(choices), signature));
        }
        6 if !set.voters.is_empty() => set.voters[at].0 = index(choices),
        _ => {
            if let Some((_, signature)) = set.voters.get_mut(at) {
                damage_signature(choices, set.shard, signature);
            }
        }
    }
}

fn damage_logged(choices: &mut Choices<'_>, set: &mut LoggedSet) {
    let at = choices.below(set.voters.len());
    match choices.below(9) {
        0 => set.shard = any_replica(choices).shard,
        1 => set.view_decision = view(choices),
        2 if !set.voters.is_empty() => drop(set.voters.remove(at)),
        3 if !set.voters.is_empty() => set.voters.insert(at, set.voters[at].clone()),
        4 if !set.voters.is_empty() => set.voters.swap(0, at),
        5 => {
            let signature = any_signature(choices, set.shard);
            set.voters.push((index(choices), view(choices), signature));
        }
        6 if !set.voters.is_empty() => set.voters[at].0 = index(choices),
        7 if !set.voters.is_empty() => set.voters[at].1 = view(choices),
        _ => {
            if let Some((_, _, signature)) = set.voters.get_mut(at) {
                damage_signature(choices, set.shard, signature);
            }
        }
    }
}

/// An index, now and then one that no shard has.
fn index(choices: &mut Choices<'_>) -> u16 {
    choices.one_of(&[0, 1, 2, 3, 4, 5, 6, 63, 64, u16::MAX])
}

/// A batch signature that somebody made for something.
fn any_signature(choices: &mut Choices<'_>, shard: ShardId) -> BatchSignature {
    let (number, mut replica) = (number(choices), any_replica(choices));
    if !choices.rarely(4) {
        replica.shard = shard;
    }
    let id = fixture().transactions[number].id();
    match choices.below(5) {
        0 | 1 => signed_vote(number, replica, vote(choices)).signature,
        2 => signed_logged(number, replica, decision(choices), 0, view(choices)).signature,
        3 => signed_elect(number, replica, decision(choices), 1 + view(choices)).signature,
        _ => {
            // Signed by somebody else, or in another cluster.
            let holder = any_replica(choices);
            let cluster = if choices.rarely(2) { ClusterId::new([1; 16]) } else { CLUSTER };
            let said = Said::Vote(VoteStatement { id, vote: vote(choices) });
            fixture().signer_as(holder, replica, cluster).sign(&[said.leaf(CLUSTER, replica)]).remove(0)
        }
    }
}

/// Damages a batch signature once.
pub fn damage_signature(choices: &mut Choices<'_>, shard: ShardId, signature: &mut BatchSignature) {
    let signed = SignedRoot::clone(&signature.signed);
    let flip = |bytes: &mut [u8], bit: u8| bytes[usize::from(bit) / 8 % bytes.len()] ^= 1 << (bit % 8);
    match choices.below(9) {
        0 => *signature = any_signature(choices, shard),
        1 => signature.index = u16::from(choices.byte()),
        2 => {
            let mut path = signature.path.to_vec();
            let at = choices.below(path.len());
            match choices.below(4) {
                0 => path.push(signed.root),
                1 => drop(path.pop()),
                2 if !path.is_empty() => path.swap(0, at),
                _ => {
                    if let Some(sibling) = path.get_mut(at) {
                        flip(sibling, choices.byte());
                    }
                }
            }
            signature.path = path.into();
        }
        3 => signature.path = any_signature(choices, shard).path,
        4 => signature.signed = any_signature(choices, shard).signed,
        5 => signature.signed = Arc::new(SignedRoot { count: u16::from(choices.byte()) + u16::from(choices.byte()), ..signed }),
        6 => {
            let mut root = signed.root;
            flip(&mut root, choices.byte());
            signature.signed = Arc::new(SignedRoot { root, ..signed });
        }
        7 => {
            let mut bytes = signed.signature;
            bytes[choices.below(64)] ^= 1 << choices.below(8);
            signature.signed = Arc::new(SignedRoot { signature: bytes, ..signed });
        }
        _ => signature.signed = Arc::new(SignedRoot { signature: any_signature(choices, shard).signed.signature, ..signed }),
    }
}

// Messages.

/// A message of any kind: in order, or damaged.
pub fn message(choices: &mut Choices<'_>) -> Message {
    match choices.below(2) {
        0 => request(choices),
        _ => reply(choices),
    }
}

/// What is said to a replica.
pub fn request(choices: &mut Choices<'_>) -> Message {
    let kind = choices.below(19);
    let number = number(choices);
    let transaction = fixture().transactions[number].clone();
    match kind {
        0 | 1 => Message::Prepare { transaction },
        2 => {
            let count = choices.below(9);
            let mut keys: Vec<Key> = (0..count).map(|_| Key::from(choices.one_of(&KEYS))).collect();
            if choices.below(8) > 0 {
                keys.sort_unstable();
                keys.dedup();
            }
            Message::Read { request: u64::from(choices.byte()), timestamp: timestamp(choices), keys }
        }
        3 => {
            let (mut shard, count) = (choices.one_of(&shards(number)), choices.byte() % 7);
            if choices.rarely(8) {
                shard = any_replica(choices).shard;
            }
            let side = if choices.rarely(8) { Vote::Abort } else { Vote::Commit };
            let evidence = (0..u16::from(count)).map(|index| signed_vote(number, ReplicaId { shard, index }, side)).collect();
            Message::Recover { transaction, evidence }
        }
        4 => {
            let Justified { decision, tallies } = justified(choices, number);
            Message::Log { transaction, decision, tallies }
        }
        5 => {
            let justified = choices.rarely(4).then(|| justified(choices, number));
            Message::InvokeFallback { transaction, justified, views: views(choices, number) }
        }
        6 => {
            let replica = ReplicaId { shard: logs(number), index: u16::from(choices.byte() % 6) };
            Message::ElectFallback { elect: signed_elect(number, replica, decision(choices), 1 + view(choices)) }
        }
        7 => decide(choices, number),
        17 => {
            let range = range(choices).unwrap_or_else(|| KeyRange::new(Key::from("a"), Key::from("b")).expect("it has keys"));
            let (request, timestamp) = (u64::from(choices.byte()), timestamp(choices));
            Message::Scan { request, timestamp, range, direction: direction(choices), limit: u32::from(choices.byte()) }
        }
        12 => Message::CommitNotice { id: transaction.id() },
        13 => {
            let digests = (0..choices.below(4)).map(|_| [choices.byte(); 16]).collect();
            Message::CommitsQuery { first: (NOW >> 27).saturating_sub(u64::from(choices.byte())), digests }
        }
        14 => {
            let ids = vec![transaction.id(); choices.below(3)];
            if choices.rarely(3) { Message::TransactionsQuery { ids } } else { Message::CommitsReply { ids } }
        }
        18 => {
            let (up_to, after) = (timestamp(choices).time, None);
            if choices.rarely(2) {
                return Message::UndecidedQuery { up_to, after };
            }
            Message::UndecidedReply { up_to, after, transactions: vec![transaction; choices.below(3)], is_last: choices.rarely(2) }
        }
        15 => Message::TransactionsReply { transactions: vec![transaction; choices.below(3)] },
        16 => {
            let (page, from, up_to) = (1 + choices.below(4) as u64, Key::from(choices.one_of(&KEYS)), timestamp(choices));
            if choices.rarely(2) {
                let to = choices.rarely(2).then(|| Key::from(choices.one_of(&KEYS)));
                return Message::VersionsQuery { query: PageQuery { page, from, to, up_to, digest: [choices.byte(); 32] } };
            }
            let version = KeyVersion { version: up_to, value: choices.rarely(2).then(|| Value::from("shown")) };
            let versions = vec![PageVersion { key: from.clone(), version }; choices.below(3)];
            Message::VersionsReply { page, versions, next: choices.rarely(2).then_some(from) }
        }
        10 => {
            let here = transaction.writes().iter().map(|write| &write.key).filter(|key| fixture().cluster.shard_of(key) == ShardId(0));
            Message::StatusQuery { id: transaction.id(), timestamp: transaction.timestamp(), keys: here.cloned().collect() }
        }
        11 => {
            let written = transaction.writes().iter().filter(|write| fixture().cluster.shard_of(&write.key) == ShardId(0)).count();
            let count = if choices.rarely(8) { choices.below(4) } else { written };
            let versions = (0..count).map(|_| {
                let version = choices.one_of(&[Timestamp::ZERO, transaction.timestamp(), Timestamp::new(NOW, types::ClientId(1))]);
                let value = choices.rarely(2).then(|| choices.rarely(2).then(|| Value::from("rested")));
                OldVersion { version, value }
            });
            let versions = versions.collect();
            let end = choices.rarely(2).then(|| decision(choices));
            Message::StatusReply { id: transaction.id(), end, versions }
        }
        _ => {
            let mut certificate = certificate(choices, number);
            for _ in 0..choices.byte() / 128 {
                damage(choices, &mut certificate);
            }
            let relay = choices.rarely(2);
            Message::Writeback { transaction: (!choices.rarely(3)).then_some(transaction), certificate: Arc::new(certificate), relay }
        }
    }
}

/// What a replica answers.
pub fn reply(choices: &mut Choices<'_>) -> Message {
    let kind = choices.below(8);
    let number = number(choices);
    match kind {
        0..3 => {
            let replica = ReplicaId { shard: choices.one_of(&shards(number)), index: u16::from(choices.byte() % 6) };
            let vote = signed_vote(number, replica, vote(choices));
            Message::Voted { vote, conflict: conflict(choices) }
        }
        3 => {
            let replica = ReplicaId { shard: logs(number), index: u16::from(choices.byte() % 6) };
            let (decision, view_decision) = (decision(choices), view(choices));
            let view_current = view_decision.max(view(choices));
            Message::Logged { logged: signed_logged(number, replica, decision, view_decision, view_current) }
        }
        4 => {
            let mut certificate = certificate(choices, number);
            for _ in 0..choices.byte() / 128 {
                damage(choices, &mut certificate);
            }
            Message::Decided { certificate: Arc::new(certificate) }
        }
        5 => {
            let id = fixture().transactions[number].id();
            let subject = if choices.rarely(3) { Subject::Request(u64::from(choices.byte())) } else { Subject::Transaction(id) };
            let refusals = [
                Refusal::TooOld,
                Refusal::TooNew,
                Refusal::NotPermitted,
                Refusal::WrongShard,
                Refusal::Overloaded { after_ms: 100 },
                Refusal::AbandonLimit { after_ms: u32::MAX },
                Refusal::ClientLimit { limit: ClientLimit::Transactions, after_ms: 0 },
                Refusal::TooLarge,
                Refusal::Unknown,
            ];
            Message::Refused { subject, refusal: choices.one_of(&refusals) }
        }
        _ if choices.rarely(3) => scan_reply(choices),
        _ => read_reply(choices),
    }
}

/// A range between two of the keys, if they are in order.
pub fn range(choices: &mut Choices<'_>) -> Option<KeyRange> {
    let (low, high) = (Key::from(choices.one_of(&KEYS)), Key::from(choices.one_of(&KEYS)));
    KeyRange::new(low, high)
}

/// From which end a range is read.
pub fn direction(choices: &mut Choices<'_>) -> Direction {
    choices.one_of(&[Direction::Ascending, Direction::Descending])
}

/// Rows of a page, in this direction, and the transactions that they name.
pub fn scan_rows(direction: Direction, choices: &mut Choices<'_>) -> (Vec<ScanRow>, Vec<Transaction>) {
    let Message::ReadReply { results, prepared, .. } = read_reply(choices) else { return (Vec::new(), Vec::new()) };
    let mut rows: Vec<ScanRow> = results.into_iter().map(|result| ScanRow { key: Key::from(choices.one_of(&KEYS)), result }).collect();
    rows.sort_by(|one, other| direction.order(&one.key, &other.key));
    rows.dedup_by(|one, other| one.key == other.key);
    (rows, prepared)
}

/// A page of a range, now and then damaged.
fn scan_reply(choices: &mut Choices<'_>) -> Message {
    let direction = direction(choices);
    let (mut rows, prepared) = scan_rows(direction, choices);
    let end = Key::from(choices.one_of(&["zz", "b", "", "j"]));
    if choices.rarely(8) {
        rows.reverse();
    } else {
        rows.retain(|row| direction.has_passed(&row.key, &end));
    }
    let request = u64::from(choices.byte());
    Message::ScanReply { request, clock: NOW, direction, rows, end, prepared, is_promised: request % 4 < 3 }
}

/// An answer to a read, whichever.
pub fn read_reply(choices: &mut Choices<'_>) -> Message {
    let request = u64::from(choices.byte());
    let prepared: Vec<Transaction> = (0..choices.below(3)).map(|_| transaction(choices)).collect();
    let results = (0..choices.below(4)).map(|_| {
        let version = if choices.rarely(2) { transaction(choices).timestamp() } else { Timestamp::ZERO };
        let value = choices.rarely(2).then(|| Value::from(choices.one_of(&["", "1", "2"])));
        let pending = choices.one_of(&[
            PendingWrite::None,
            PendingWrite::Prepared(0),
            PendingWrite::Prepared(1),
            PendingWrite::Prepared(9),
            PendingWrite::Hidden,
        ]);
        ReadResult { version, value, pending }
    });
    let (clock, results) = ([NOW, 0, u64::MAX][prepared.len() % 3], results.collect());
    Message::ReadReply { request, clock, results, prepared, is_promised: request % 4 < 3 }
}

fn timestamp(choices: &mut Choices<'_>) -> Timestamp {
    let client = types::ClientId(u64::from(choices.byte() % 6));
    match choices.below(3) {
        0 => Timestamp::new(NOW, client),
        1 => transaction(choices).timestamp(),
        _ => Timestamp::new(NOW.saturating_sub(u64::from(choices.byte()) * 100 * MILLISECOND), client),
    }
}

fn conflict(choices: &mut Choices<'_>) -> Option<Conflict> {
    match choices.below(4) {
        0 | 1 => None,
        2 => Some(Conflict::Stalled { transaction: transaction(choices) }),
        _ => {
            let number = number(choices);
            let certificate = flat_certificate(choices, number);
            Some(Conflict::Committed { transaction: fixture().transactions[number].clone(), certificate: Arc::new(certificate) })
        }
    }
}

fn justified(choices: &mut Choices<'_>, number: usize) -> Justified {
    let decision = decision(choices);
    let mut tallies: Vec<VoteSet> = match decision {
        Decision::Commit => {
            shards(number).into_iter().map(|shard| votes(number, shard, Vote::Commit, 4 + u16::from(choices.byte() % 3))).collect()
        }
        Decision::Abort => vec![votes(number, choices.one_of(&shards(number)), Vote::Abort, 2 + u16::from(choices.byte() % 5))],
    };
    if choices.rarely(8) {
        let at = choices.below(tallies.len());
        damage_votes(choices, &mut tallies[at]);
    }
    Justified { decision, tallies }
}

fn views(choices: &mut Choices<'_>, number: usize) -> Vec<SignedLogged> {
    let shard = logs(number);
    let mut views = Vec::new();
    for index in 0..REPLICAS {
        let byte = choices.byte();
        if byte % 4 == 3 {
            continue;
        }
        let (view_decision, view_current) = (u32::from(byte / 4 % 3), u32::from(byte / 16 % 3));
        let decision = if byte & 64 == 0 { Decision::Commit } else { Decision::Abort };
        views.push(signed_logged(number, ReplicaId { shard, index }, decision, view_decision, view_decision.max(view_current)));
    }
    if choices.rarely(8) && !views.is_empty() {
        let at = choices.below(views.len());
        damage_signature(choices, shard, &mut views[at].signature);
    }
    views
}

fn decide(choices: &mut Choices<'_>, number: usize) -> Message {
    let (shard, view, left_out) = (logs(number), 1 + view(choices), u16::from(choices.byte() % 6));
    let sides = choices.byte();
    let mut electors: Vec<Elector> = (0..REPLICAS)
        .filter(|index| *index != left_out)
        .map(|index| {
            let decision = if sides >> index & 1 == 0 { Decision::Commit } else { Decision::Abort };
            (index, decision, signed_elect(number, ReplicaId { shard, index }, decision, view).signature)
        })
        .collect();
    let aborts = electors.iter().filter(|(_, decision, _)| *decision == Decision::Abort).count();
    let mut decision = if 2 * aborts > electors.len() { Decision::Abort } else { Decision::Commit };
    let id = fixture().transactions[number].id();
    let mut leader = ReplicaId { shard, index: basil::recovery::leader_of(id, view, usize::from(REPLICAS)) };
    match choices.below(16) {
        12 => decision = self::decision(choices),
        13 => leader = any_replica(choices),
        14 => electors.swap(0, 1),
        15 => damage_signature(choices, shard, &mut electors[0].2),
        _ => {}
    }
    let statement = DecideStatement { id, decision, view };
    let signature = fixture().signature(leader, number, &Said::Decide(statement));
    Message::DecideFallback { decide: SignedDecide { leader, statement, signature }, electors }
}

// Forms.

/// Whether all signatures of a message have a form in which they can be written at all; others exist in no bytes.
#[must_use]
pub fn is_writable(message: &Message) -> bool {
    let set = |set: &VoteSet| set.voters.iter().all(|(_, signature)| signature.is_well_formed());
    match message {
        Message::Recover { evidence, .. } => evidence.iter().all(|vote| vote.signature.is_well_formed()),
        Message::Log { tallies, .. } => tallies.iter().all(set),
        Message::InvokeFallback { justified, views, .. } => {
            justified.iter().flat_map(|justified| &justified.tallies).all(set)
                && views.iter().all(|logged| logged.signature.is_well_formed())
        }
        Message::ElectFallback { elect } => elect.signature.is_well_formed(),
        Message::DecideFallback { decide, electors } => {
            decide.signature.is_well_formed() && electors.iter().all(|(_, _, signature)| signature.is_well_formed())
        }
        Message::Writeback { certificate, .. } | Message::Decided { certificate } => is_certificate_writable(certificate, 1),
        Message::Voted { vote, conflict } => {
            let shown = match conflict {
                Some(Conflict::Committed { certificate, .. }) => is_certificate_writable(certificate, 1),
                _ => true,
            };
            shown && vote.signature.is_well_formed()
        }
        Message::Logged { logged } => logged.signature.is_well_formed(),
        // Nobody's signature is in these.
        _ => true,
    }
}

/// A certificate can be written in another, and no deeper.
fn is_certificate_writable(certificate: &Certificate, deeper: u8) -> bool {
    match &certificate.proof {
        Proof::Fast(proofs) => proofs.iter().all(|proof| match proof {
            ShardProof::Votes(set) => set.voters.iter().all(|(_, signature)| signature.is_well_formed()),
            ShardProof::Conflict { certificate, .. } => deeper > 0 && is_certificate_writable(certificate, deeper - 1),
        }),
        Proof::Logged(set) => set.voters.iter().all(|(_, _, signature)| signature.is_well_formed()),
    }
}
