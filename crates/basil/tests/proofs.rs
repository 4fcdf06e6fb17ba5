//! What travels: each message has one form and no other bytes pass for it, and no certificate survives tampering.

use std::collections::BTreeSet;
use std::sync::Arc;

use basil::certificate::{LoggedSet, LoggedStatement, Proof, ShardProof, SignedLogged, SignedVote, VoteSet, VoteStatement};
use basil::message::{
    Conflict, JournalEnd, Justified, KeyVersion, OldVersion, PageQuery, PageVersion, PendingWrite, Place, ReadResult, ScanRow, Subject,
};
use basil::recovery::{DecideStatement, ElectStatement, Elector, SignedDecide, SignedElect, leader_of, majority};
use basil::{Certificate, Decision, Message, Read, Refusal, Transaction, Vote, Write};
use crypto::{BatchSignature, Rejection, Verifier, leaf};
use types::codec::{Decode, DecodeError, Encode};
use types::limits::{SHARDS_MAX, TRANSACTION_RANGES_MAX};
use types::{ClientId, Direction, Key, KeyRange, ReplicaId, ShardId, Timestamp, TransactionId, Value};

use crate::harness::members::{Members, members};

/// Transactions and proofs in a cluster of two shards: `a` is a key of shard 0 and `z` one of shard 1.
struct Desk {
    members: Members,
    verifier: Verifier,
}

impl Desk {
    fn new() -> Self {
        let members = members(2);
        let verifier = members.stranger();
        Self { members, verifier }
    }

    fn transaction(&self, time: u64, reads: &[&str], writes: &[&str]) -> Transaction {
        let dependency = Some(TransactionId([3; 32]));
        let version = Timestamp::new(50, ClientId(2));
        let reads = reads.iter().map(|key| Read { key: Key::from(*key), version, dependency });
        let writes = writes.iter().map(|key| Write { key: Key::from(*key), value: Some(Value::from("1")) });
        let timestamp = Timestamp::new(time, ClientId(1));
        Transaction::new(self.members.cluster.id(), timestamp, reads.collect(), writes.collect()).expect("small enough")
    }

    /// A vote's signature, from a batch of three statements of which it is the second.
    fn vote_signature(&self, replica: ReplicaId, id: TransactionId, vote: Vote) -> BatchSignature {
        let leaf_of = |id| leaf(self.members.cluster.id(), replica, &VoteStatement { id, vote });
        let leaves = [leaf_of(TransactionId([1; 32])), leaf_of(id), leaf_of(TransactionId([2; 32]))];
        self.members.batch_signers[&replica].sign(&leaves).remove(1)
    }

    fn votes(&self, shard: u16, id: TransactionId, vote: Vote, indices: std::ops::Range<u16>) -> VoteSet {
        let shard = ShardId(shard);
        let voters = indices.map(|index| (index, self.vote_signature(ReplicaId { shard, index }, id, vote))).collect();
        VoteSet { shard, vote, voters }
    }

    fn logged(&self, shard: u16, id: TransactionId, decision: Decision, indices: std::ops::Range<u16>) -> LoggedSet {
        let shard = ShardId(shard);
        let voters = indices.map(|index| {
            let statement = LoggedStatement { id, decision, view_decision: 0, view_current: 0 };
            let replica = ReplicaId { shard, index };
            let leaf = leaf(self.members.cluster.id(), replica, &statement);
            (index, 0, self.members.batch_signers[&replica].sign(&[leaf]).remove(0))
        });
        LoggedSet { shard, view_decision: 0, voters: voters.collect() }
    }

    fn fast_commit(&self, transaction: &Transaction) -> Certificate {
        let id = transaction.id();
        let shards = transaction.participants(&self.members.cluster);
        let proofs = shards.iter().map(|shard| ShardProof::Votes(self.votes(shard.0, id, Vote::Commit, 0..6)));
        Certificate { id, decision: Decision::Commit, proof: Proof::Fast(proofs.collect()) }
    }

    fn fast_abort(&self, transaction: &Transaction) -> Certificate {
        let id = transaction.id();
        let votes = self.votes(1, id, Vote::Abort, 2..6);
        Certificate { id, decision: Decision::Abort, proof: Proof::Fast(vec![ShardProof::Votes(votes)]) }
    }

    fn slow(&self, transaction: &Transaction, decision: Decision) -> Certificate {
        let id = transaction.id();
        let participants = transaction.participants(&self.members.cluster);
        let shard = basil::certificate::logging_shard(&participants, id).expect("it touches a shard");
        Certificate { id, decision, proof: Proof::Logged(self.logged(shard.0, id, decision, 1..6)) }
    }

    /// An abort because `transaction` missed a write of `other`, which committed.
    fn conflict(&self, transaction: &Transaction, other: &Transaction) -> Certificate {
        let certificate = Arc::new(self.fast_commit(other));
        let proof = ShardProof::Conflict { shard: ShardId(0), transaction: other.clone(), certificate };
        Certificate { id: transaction.id(), decision: Decision::Abort, proof: Proof::Fast(vec![proof]) }
    }

    /// Whether somebody with the public keys believes that this is how `transaction` ended.
    fn convinces(&self, certificate: Certificate, transaction: &Transaction) -> bool {
        let verified = self.verifier.verify(certificate);
        verified.is_ok_and(|certificate| certificate.fits(&self.members.cluster, transaction).is_ok())
    }

    /// The same of bytes that were received.
    fn bytes_convince(&self, bytes: Vec<u8>, transaction: &Transaction) -> bool {
        let decoded = Certificate::from_bytes(bytes.into(), self.members.cluster.id());
        decoded.is_ok_and(|certificate| self.convinces(certificate, transaction))
    }

    fn logging_shard(&self, transaction: &Transaction) -> ShardId {
        let participants = transaction.participants(&self.members.cluster);
        basil::certificate::logging_shard(&participants, transaction.id()).expect("it touches a shard")
    }

    /// What replica `index` of the logging shard says to have written down, being in `view`.
    fn view(&self, transaction: &Transaction, index: u16, view: u32) -> SignedLogged {
        let replica = ReplicaId { shard: self.logging_shard(transaction), index };
        let statement = LoggedStatement { id: transaction.id(), decision: Decision::Commit, view_decision: 0, view_current: view };
        let signature = self.members.batch_signers[&replica].sign(&[leaf(self.members.cluster.id(), replica, &statement)]).remove(0);
        SignedLogged { replica, statement, signature }
    }

    fn elect(&self, transaction: &Transaction, index: u16, decision: Decision, view: u32) -> SignedElect {
        let replica = ReplicaId { shard: self.logging_shard(transaction), index };
        let statement = ElectStatement { id: transaction.id(), decision, view };
        let signature = self.members.batch_signers[&replica].sign(&[leaf(self.members.cluster.id(), replica, &statement)]).remove(0);
        SignedElect { replica, statement, signature }
    }

    /// Five electors of `view`, by index; the first `commits` of them have logged commit.
    fn electors(&self, transaction: &Transaction, commits: u16, view: u32) -> Vec<Elector> {
        let decision = |index| if index < commits { Decision::Commit } else { Decision::Abort };
        (0..5).map(|index| (index, decision(index), self.elect(transaction, index, decision(index), view).signature)).collect()
    }

    /// What `leader` decides in `view`.
    fn decide(&self, transaction: &Transaction, leader: u16, decision: Decision, view: u32) -> SignedDecide {
        let leader = ReplicaId { shard: self.logging_shard(transaction), index: leader };
        let statement = DecideStatement { id: transaction.id(), decision, view };
        let signature = self.members.batch_signers[&leader].sign(&[leaf(self.members.cluster.id(), leader, &statement)]).remove(0);
        SignedDecide { leader, statement, signature }
    }

    /// One message of each kind, and of each shape it can have.
    fn messages(&self) -> Vec<Message> {
        let transaction = self.transaction(100, &["a"], &["a", "z"]);
        let other = self.transaction(80, &[], &["a"]);
        let id = transaction.id();
        let replica = ReplicaId { shard: ShardId(1), index: 3 };
        let vote = |vote| SignedVote { replica, statement: VoteStatement { id, vote }, signature: self.vote_signature(replica, id, vote) };
        let statement = LoggedStatement { id, decision: Decision::Abort, view_decision: 0, view_current: 2 };
        let signature = self.members.batch_signers[&replica].sign(&[leaf(self.members.cluster.id(), replica, &statement)]).remove(0);
        let committed = Conflict::Committed { transaction: other.clone(), certificate: Arc::new(self.fast_commit(&other)) };
        let tallies = vec![self.votes(0, id, Vote::Commit, 0..4), self.votes(1, id, Vote::Commit, 0..5)];
        let versions = vec![
            OldVersion { version: Timestamp::ZERO, value: None },
            OldVersion { version: Timestamp::new(7, ClientId(2)), value: Some(Some(Value::from("v"))) },
        ];
        let results = vec![
            ReadResult { version: Timestamp::ZERO, value: None, pending: PendingWrite::Hidden },
            ReadResult { version: Timestamp::ZERO, value: None, pending: PendingWrite::None },
            ReadResult { version: Timestamp::new(7, ClientId(2)), value: Some(Value::from("v")), pending: PendingWrite::Prepared(0) },
        ];
        let certificates = [
            self.fast_commit(&transaction),
            self.fast_abort(&transaction),
            self.slow(&transaction, Decision::Commit),
            self.conflict(&transaction, &other),
        ];
        let page = [("a", None), ("b", Some("1"))].map(|(key, value)| PageVersion {
            key: Key::from(key),
            version: KeyVersion { version: transaction.timestamp(), value: value.map(Value::from) },
        });
        let page = page.to_vec();
        let rows = ["", "a", "aa"].into_iter().zip(results.iter().cloned());
        let rows: Vec<ScanRow> = rows.map(|(key, result)| ScanRow { key: Key::from(key), result }).collect();
        let scan_page = |direction, rows, end: &str| {
            let (end, prepared) = (Key::from(end), vec![other.clone()]);
            Message::ScanReply { request: 5, clock: 6, direction, rows, end, prepared, is_promised: true }
        };
        let range = |low: &str, high: &str| KeyRange::new(Key::from(low), Key::from(high)).expect("it has keys");
        let ranges = vec![range("a", "b"), range("d", "z")];
        let (reads, writes) = (transaction.reads().to_vec(), transaction.writes().to_vec());
        let scanner = Transaction::with_ranges(self.members.cluster.id(), transaction.timestamp(), reads, ranges, writes);
        let scanner = scanner.expect("it is small");
        let mut messages = vec![
            Message::Read { request: 5, timestamp: transaction.timestamp(), keys: vec![Key::from(""), Key::from("a")] },
            Message::Prepare { transaction: transaction.clone() },
            Message::StatusQuery { id, timestamp: transaction.timestamp(), keys: vec![Key::from("a")] },
            Message::StatusReply { id, end: Some(Decision::Abort), versions },
            Message::Recover { transaction: transaction.clone(), evidence: vec![vote(Vote::Commit)] },
            Message::Log { transaction: transaction.clone(), decision: Decision::Commit, tallies },
            Message::Writeback {
                transaction: Some(transaction.clone()),
                certificate: Arc::new(self.fast_commit(&transaction)),
                relay: true,
            },
            Message::CommitNotice { id: transaction.id() },
            Message::CommitsQuery { first: 7, digests: vec![[1; 16], [2; 16]] },
            Message::CommitsReply { ids: vec![id] },
            Message::TransactionsQuery { ids: vec![id] },
            Message::TransactionsReply { transactions: vec![transaction.clone()] },
            Message::VersionsQuery {
                query: PageQuery {
                    page: 3,
                    from: Key::from(""),
                    to: Some(Key::from("b")),
                    up_to: transaction.timestamp(),
                    digest: [9; 32],
                },
            },
            Message::VersionsReply { page: 3, versions: page, next: Some(Key::from("b")) },
            Message::UndecidedQuery { up_to: 9, after: Some(Place { timestamp: transaction.timestamp(), id }) },
            Message::UndecidedReply { up_to: 9, after: None, transactions: vec![transaction.clone()], is_last: true },
            Message::Scan {
                request: 5,
                timestamp: transaction.timestamp(),
                range: range("", "b"),
                direction: Direction::Descending,
                limit: 3,
            },
            scan_page(Direction::Ascending, rows.clone(), "b"),
            scan_page(Direction::Descending, rows.into_iter().rev().collect(), ""),
            Message::Prepare { transaction: scanner },
            Message::ClockQuery { asked_at: 7, journal: None },
            Message::ClockQuery { asked_at: 7, journal: Some(JournalEnd { lost_up_to: 8, batches: 9 }) },
            Message::JournalKnown { known: JournalEnd { lost_up_to: 1, batches: u64::MAX } },
            Message::ClockReply { asked_at: 7, clock: 8 },
            Message::ClockProposal { asked_at: 7, clock: 8 },
            Message::ReadReply { request: 5, clock: 6, results, prepared: vec![other.clone()], is_promised: true },
            Message::Voted { vote: vote(Vote::Commit), conflict: None },
            Message::Voted { vote: vote(Vote::Abort), conflict: Some(committed) },
            Message::Voted { vote: vote(Vote::Abort), conflict: Some(Conflict::Stalled { transaction: other }) },
            Message::Logged { logged: SignedLogged { replica, statement, signature } },
        ];
        let justified = Justified { decision: Decision::Abort, tallies: vec![self.votes(1, id, Vote::Abort, 0..2)] };
        let views = vec![self.view(&transaction, 0, 0), self.view(&transaction, 3, 2)];
        messages.extend([None, Some(justified)].map(|justified| {
            let (transaction, views) = (transaction.clone(), views.clone());
            Message::InvokeFallback { transaction, justified, views }
        }));
        messages.push(Message::ElectFallback { elect: self.elect(&transaction, 4, Decision::Abort, 1) });
        let decide = self.decide(&transaction, leader_of(id, 7, 6), Decision::Abort, 7);
        messages.push(Message::DecideFallback { decide, electors: self.electors(&transaction, 2, 7) });
        messages.extend(certificates.map(|certificate| Message::Decided { certificate: Arc::new(certificate) }));
        let refusals = [
            Refusal::TooOld,
            Refusal::TooNew,
            Refusal::NotPermitted,
            Refusal::WrongShard,
            Refusal::Overloaded { after_ms: 7 },
            Refusal::AbandonLimit { after_ms: 7 },
            Refusal::ClientLimit { limit: basil::ClientLimit::Keys, after_ms: 0 },
            Refusal::ClientLimit { limit: basil::ClientLimit::ReadsPerSecond, after_ms: 7 },
            Refusal::Liar,
            Refusal::Unknown,
            Refusal::TooLarge,
            Refusal::NotKept { kept_ms: 30_000 },
        ];
        messages.extend(refusals.map(|refusal| Message::Refused { subject: Subject::Transaction(id), refusal }));
        messages.push(Message::Refused { subject: Subject::Request(9), refusal: Refusal::TooOld });
        messages
    }

    fn decode(&self, bytes: &[u8]) -> Result<Message, DecodeError> {
        Message::from_bytes(bytes.to_vec().into(), self.members.cluster.id())
    }
}

#[test]
fn a_message_comes_back_from_its_bytes() {
    let desk = Desk::new();
    for message in desk.messages() {
        assert_eq!(desk.decode(&message.to_bytes()), Ok(message));
    }
}

#[test]
fn our_own_messages_are_believed() {
    let desk = Desk::new();
    for message in desk.messages() {
        let verified = desk.verifier.verify(message.clone());
        assert!(verified.is_ok(), "{message:?} was refused: {:?}", verified.err());
    }
}

#[test]
fn a_message_cut_short_anywhere_is_refused() {
    let desk = Desk::new();
    for message in desk.messages() {
        let bytes = message.to_bytes();
        for length in 0..bytes.len() {
            assert!(desk.decode(&bytes[..length]).is_err(), "{length} of {} bytes passed for a message", bytes.len());
        }
    }
}

#[test]
fn a_message_with_a_byte_too_many_is_refused() {
    let desk = Desk::new();
    for message in desk.messages() {
        for extra in [0, 1, 255] {
            let mut bytes = message.to_bytes();
            bytes.push(extra);
            assert_eq!(desk.decode(&bytes), Err(DecodeError::Trailing));
        }
    }
}

#[test]
fn a_message_of_an_unknown_kind_is_refused() {
    let desk = Desk::new();
    let known: BTreeSet<u8> = desk.messages().iter().map(|message| message.to_bytes()[0]).collect();
    for kind in (0..=u8::MAX).filter(|kind| !known.contains(kind)) {
        for message in desk.messages() {
            let mut bytes = message.to_bytes();
            bytes[0] = kind;
            assert_eq!(desk.decode(&bytes), Err(DecodeError::UnknownTag("a message")), "kind {kind} has no sample here");
        }
    }
}

/// Whatever passes for a message has that one form: else two participants could see different things in the same bytes,
/// or the same in different ones.
#[test]
fn bytes_that_pass_for_a_message_are_its_only_form() {
    let desk = Desk::new();
    for message in desk.messages() {
        let bytes = message.to_bytes();
        for at in 0..bytes.len() {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1 << (at % 8);
            if let Ok(other) = desk.decode(&flipped) {
                assert_eq!(other.to_bytes(), flipped, "byte {at} can be written in two ways");
            }
        }
    }
}

/// Length fields that promise more than there is are refused before anything is allocated for them.
#[test]
fn huge_counts_are_refused() {
    let desk = Desk::new();
    let mut bytes = vec![1];
    bytes.extend([0; 24]);
    bytes.extend(u32::MAX.to_le_bytes());
    assert_eq!(desk.decode(&bytes), Err(DecodeError::OverLimit("a read's keys")));
}

#[test]
fn good_certificates_convince() {
    let desk = Desk::new();
    let transaction = desk.transaction(100, &["a"], &["a", "z"]);
    let other = desk.transaction(80, &[], &["a"]);
    assert!(desk.convinces(desk.fast_commit(&transaction), &transaction));
    assert!(desk.convinces(desk.fast_abort(&transaction), &transaction));
    assert!(desk.convinces(desk.slow(&transaction, Decision::Commit), &transaction));
    assert!(desk.convinces(desk.slow(&transaction, Decision::Abort), &transaction));
    assert!(desk.convinces(desk.conflict(&transaction, &other), &transaction));
}

/// Every field is covered: a flipped bit in any byte of a certificate, and nobody believes it.
#[test]
fn no_byte_of_a_certificate_can_be_changed() {
    let desk = Desk::new();
    let transaction = desk.transaction(100, &["a"], &["a", "z"]);
    let other = desk.transaction(80, &[], &["a"]);
    let certificates = [
        desk.fast_commit(&transaction),
        desk.fast_abort(&transaction),
        desk.slow(&transaction, Decision::Commit),
        desk.conflict(&transaction, &other),
    ];
    for certificate in certificates {
        let bytes = certificate.to_bytes();
        assert!(desk.bytes_convince(bytes.clone(), &transaction));
        for at in 0..bytes.len() {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1 << (at % 8);
            assert!(!desk.bytes_convince(flipped, &transaction), "byte {at} of {} does not matter", bytes.len());
        }
    }
}

/// What replicas have really voted, shown as a proof of the opposite.
#[test]
fn votes_of_one_side_do_not_prove_the_other() {
    let desk = Desk::new();
    let transaction = desk.transaction(100, &["a"], &["a", "z"]);
    let id = transaction.id();
    let aborts = [0, 1].map(|shard| ShardProof::Votes(desk.votes(shard, id, Vote::Abort, 0..6)));
    let committed = Certificate { id, decision: Decision::Commit, proof: Proof::Fast(aborts.to_vec()) };
    assert!(!desk.convinces(committed, &transaction), "all have voted to abort it");
    let commits = ShardProof::Votes(desk.votes(0, id, Vote::Commit, 0..6));
    let aborted = Certificate { id, decision: Decision::Abort, proof: Proof::Fast(vec![commits]) };
    assert!(!desk.convinces(aborted, &transaction), "all have voted to commit it");
}

#[test]
fn a_certificate_is_about_one_transaction_and_one_decision() {
    let desk = Desk::new();
    let transaction = desk.transaction(100, &["a"], &["a", "z"]);
    let twin = desk.transaction(101, &["a"], &["a", "z"]);
    let certificates = [desk.fast_commit(&transaction), desk.fast_abort(&transaction), desk.slow(&transaction, Decision::Commit)];
    for certificate in certificates {
        assert!(!desk.convinces(certificate.clone(), &twin), "it is about another one");
        assert!(!desk.convinces(Certificate { id: twin.id(), ..certificate.clone() }, &twin), "the votes name another one");
        let decision = if certificate.decision == Decision::Commit { Decision::Abort } else { Decision::Commit };
        assert!(!desk.convinces(Certificate { decision, ..certificate }, &transaction), "the votes say the contrary");
    }
}

#[test]
fn one_voter_too_few_or_counted_twice_convinces_nobody() {
    let desk = Desk::new();
    let transaction = desk.transaction(100, &["a"], &["a"]);
    let id = transaction.id();
    let commit = |votes| Certificate { id, decision: Decision::Commit, proof: Proof::Fast(vec![ShardProof::Votes(votes)]) };
    let abort = |votes| Certificate { id, decision: Decision::Abort, proof: Proof::Fast(vec![ShardProof::Votes(votes)]) };
    let slow = |set| Certificate { id, decision: Decision::Commit, proof: Proof::Logged(set) };

    assert!(desk.convinces(commit(desk.votes(0, id, Vote::Commit, 0..6)), &transaction));
    assert!(!desk.convinces(commit(desk.votes(0, id, Vote::Commit, 0..5)), &transaction));
    assert!(desk.convinces(abort(desk.votes(0, id, Vote::Abort, 0..4)), &transaction));
    assert!(!desk.convinces(abort(desk.votes(0, id, Vote::Abort, 0..3)), &transaction));
    assert!(desk.convinces(slow(desk.logged(0, id, Decision::Commit, 0..5)), &transaction));
    assert!(!desk.convinces(slow(desk.logged(0, id, Decision::Commit, 0..4)), &transaction));

    let mut twice = desk.votes(0, id, Vote::Commit, 0..5);
    twice.voters.push(twice.voters[4].clone());
    assert!(!desk.convinces(commit(twice), &transaction));
    let mut disordered = desk.votes(0, id, Vote::Commit, 0..6);
    disordered.voters.swap(0, 1);
    assert!(!desk.convinces(commit(disordered), &transaction));
    let mut twice = desk.logged(0, id, Decision::Commit, 0..4);
    twice.voters.push(twice.voters[3].clone());
    assert!(!desk.convinces(slow(twice), &transaction));
    let mut stranger = desk.votes(0, id, Vote::Commit, 0..6);
    stranger.voters[5].0 = 6;
    assert!(!desk.convinces(commit(stranger), &transaction), "there is no seventh replica");
}

#[test]
fn a_certificate_covers_the_right_shards() {
    let desk = Desk::new();
    let both = desk.transaction(100, &["a"], &["z"]);
    let id = both.id();
    let votes = |shard| ShardProof::Votes(desk.votes(shard, id, Vote::Commit, 0..6));
    let commit = |proofs| Certificate { id, decision: Decision::Commit, proof: Proof::Fast(proofs) };
    assert!(desk.convinces(commit(vec![votes(0), votes(1)]), &both));
    assert!(!desk.convinces(commit(vec![votes(0)]), &both), "a shard is missing");
    assert!(!desk.convinces(commit(vec![votes(1), votes(0)]), &both), "in another order it would be another certificate");
    assert!(!desk.convinces(commit(vec![votes(0), votes(0)]), &both), "one shard twice");
    assert!(!desk.convinces(commit(vec![]), &both), "it proves nothing");

    let single = desk.transaction(100, &["a"], &["a"]);
    let elsewhere = desk.votes(1, single.id(), Vote::Abort, 0..4);
    let abort = Certificate { id: single.id(), decision: Decision::Abort, proof: Proof::Fast(vec![ShardProof::Votes(elsewhere)]) };
    assert!(!desk.convinces(abort, &single), "a shard that is not touched has no say");

    let participants = both.participants(&desk.members.cluster);
    let logging = basil::certificate::logging_shard(&participants, id).expect("it touches two");
    let wrong = 1 - logging.0;
    let proof = Proof::Logged(desk.logged(wrong, id, Decision::Commit, 0..5));
    assert!(!desk.convinces(Certificate { id, decision: Decision::Commit, proof }, &both), "logged on the wrong shard");
}

#[test]
fn only_a_committed_conflict_is_one() {
    let desk = Desk::new();
    let transaction = desk.transaction(100, &["a"], &["a", "z"]);
    let harmless = desk.transaction(40, &[], &["a"]);
    assert!(!desk.convinces(desk.conflict(&transaction, &harmless), &transaction), "it read something newer");
    let other = desk.transaction(80, &[], &["a"]);
    let mut aborted = desk.conflict(&transaction, &other);
    let votes = ShardProof::Votes(desk.votes(0, other.id(), Vote::Abort, 0..4));
    let certificate = Arc::new(Certificate { id: other.id(), decision: Decision::Abort, proof: Proof::Fast(vec![votes]) });
    aborted.proof = Proof::Fast(vec![ShardProof::Conflict { shard: ShardId(0), transaction: other, certificate }]);
    assert!(!desk.convinces(aborted, &transaction), "the other has not committed");
}

/// §4.2 (6): a decision is logged only on votes that justify it.
#[test]
fn a_decision_without_its_votes_is_not_logged() {
    let desk = Desk::new();
    let transaction = desk.transaction(100, &["a"], &["a", "z"]);
    let id = transaction.id();
    let believed = |decision, tallies| desk.verifier.verify(Message::Log { transaction: transaction.clone(), decision, tallies }).is_ok();
    let commits = |shard, count| desk.votes(shard, id, Vote::Commit, 0..count);
    let aborts = |shard, count| desk.votes(shard, id, Vote::Abort, 0..count);
    assert!(believed(Decision::Commit, vec![commits(0, 4), commits(1, 4)]));
    assert!(!believed(Decision::Commit, vec![commits(0, 4), commits(1, 3)]), "one vote short of 3f+1");
    assert!(!believed(Decision::Commit, vec![commits(0, 4)]), "a shard is missing");
    assert!(!believed(Decision::Commit, vec![commits(0, 4), aborts(1, 4)]), "a shard says the contrary");
    assert!(!believed(Decision::Commit, vec![]));
    assert!(believed(Decision::Abort, vec![aborts(1, 2)]));
    assert!(!believed(Decision::Abort, vec![aborts(1, 1)]), "one vote short of f+1");
    assert!(!believed(Decision::Abort, vec![commits(1, 4)]));
    assert!(!believed(Decision::Abort, vec![]));
}

/// §5 (1): views count once a replica, of the logging shard, on this transaction.
#[test]
fn views_of_others_call_for_no_leader() {
    let desk = Desk::new();
    let transaction = desk.transaction(100, &["a"], &["a", "z"]);
    let other = desk.transaction(101, &["a"], &["a", "z"]);
    let with = |justified, views| {
        let transaction = transaction.clone();
        desk.verifier.verify(Message::InvokeFallback { transaction, justified, views }).is_ok()
    };
    let believed = |views| with(None, views);
    let view = |index, view| desk.view(&transaction, index, view);
    assert!(believed(vec![]));
    assert!(believed(vec![view(0, 0), view(1, 5)]));
    assert!(!believed(vec![view(1, 0), view(1, 5)]), "one replica twice");
    assert!(!believed(vec![view(1, 0), view(0, 5)]), "in another order it would be another message");
    assert!(!believed(vec![desk.view(&other, 0, 5)]), "another transaction's");
    let mut higher = view(0, 0);
    higher.statement.view_current = 1;
    assert!(!believed(vec![higher]), "not what was signed");
    let mut elsewhere = view(0, 0);
    elsewhere.replica.shard = ShardId(1 - elsewhere.replica.shard.0);
    assert!(!believed(vec![elsewhere]), "the other shard has no views");
    let id = transaction.id();
    let justified = |count| Some(Justified { decision: Decision::Abort, tallies: vec![desk.votes(1, id, Vote::Abort, 0..count)] });
    assert!(with(justified(2), vec![]));
    assert!(!with(justified(1), vec![]), "one vote short of f+1");
}

/// §5 (3): a leader is who was elected, by enough, in its own view, and says what most of them say.
#[test]
fn a_leaders_decision_is_its_electors() {
    let desk = Desk::new();
    let transaction = desk.transaction(100, &["a"], &["a", "z"]);
    let other = desk.transaction(101, &["a"], &["a", "z"]);
    let leader = |view| leader_of(transaction.id(), view, 6);
    let believed = |decide, electors| desk.verifier.verify(Message::DecideFallback { decide, electors }).is_ok();
    let decide = |decision, view| desk.decide(&transaction, leader(view), decision, view);
    let electors = |commits, view| desk.electors(&transaction, commits, view);
    assert!(believed(decide(Decision::Commit, 1), electors(3, 1)));
    assert!(believed(decide(Decision::Abort, 2), electors(2, 2)));
    assert!(!believed(decide(Decision::Commit, 1), electors(2, 1)), "most say the contrary");
    assert!(!believed(decide(Decision::Commit, 1), electors(3, 2)), "they elected in another view");
    assert!(!believed(decide(Decision::Commit, 0), electors(3, 0)), "view 0 has no leader");
    assert!(!believed(desk.decide(&transaction, leader(2), Decision::Commit, 1), electors(3, 1)), "another view's leader");
    assert!(!believed(decide(Decision::Commit, 1), desk.electors(&other, 3, 1)), "they elected for another transaction");
    assert!(!believed(decide(Decision::Commit, 1), electors(3, 1)[..4].to_vec()), "one elector short of 4f+1");
    let mut six = electors(5, 1);
    six.push((5, Decision::Commit, desk.elect(&transaction, 5, Decision::Commit, 1).signature));
    assert!(!believed(decide(Decision::Commit, 1), six), "an even number may be of two minds");
    let mut twice = electors(3, 1);
    twice[4] = twice[3].clone();
    assert!(!believed(decide(Decision::Abort, 1), twice), "one elector counted twice");
    let mut turned = electors(2, 1);
    turned[2].1 = Decision::Commit;
    let most = majority(turned.iter().map(|(_, decision, _)| *decision));
    assert!(!believed(decide(most, 1), turned), "not what the third elector signed");
    let mut lent = decide(Decision::Commit, 1);
    lent.signature = desk.decide(&transaction, leader(2), Decision::Commit, 1).signature;
    assert!(!believed(lent, electors(3, 1)), "somebody else's signature");
}

#[test]
fn evidence_of_an_author_is_votes_to_commit_this_transaction() {
    let desk = Desk::new();
    let transaction = desk.transaction(100, &[], &["a"]);
    let believed = |id, vote| {
        let replica = ReplicaId { shard: ShardId(0), index: 0 };
        let vote = SignedVote { replica, statement: VoteStatement { id, vote }, signature: desk.vote_signature(replica, id, vote) };
        desk.verifier.verify(Message::Recover { transaction: transaction.clone(), evidence: vec![vote] }).is_ok()
    };
    assert!(believed(transaction.id(), Vote::Commit));
    assert!(!believed(transaction.id(), Vote::Abort));
    assert!(!believed(desk.transaction(101, &[], &["a"]).id(), Vote::Commit));
}

/// What a message may contain is bounded by what can be true, before any signature is checked and any key is looked up.
#[test]
fn what_is_said_twice_is_refused_before_its_signatures_are_checked() {
    let desk = Desk::new();
    let transaction = desk.transaction(100, &["a"], &["z"]);
    let id = transaction.id();
    let replica = ReplicaId { shard: ShardId(0), index: 3 };
    let vote = || SignedVote {
        replica,
        statement: VoteStatement { id, vote: Vote::Commit },
        signature: desk.vote_signature(replica, id, Vote::Commit),
    };
    let proofs = (0..SHARDS_MAX).map(|_| ShardProof::Votes(desk.votes(0, id, Vote::Commit, 0..6))).collect();
    let certificate = Arc::new(Certificate { id, decision: Decision::Commit, proof: Proof::Fast(proofs) });
    let result = ReadResult { version: Timestamp::ZERO, value: None, pending: PendingWrite::None };
    let row = |key: &&str| ScanRow { key: Key::from(*key), result: result.clone() };
    let page = |direction, keys: &[&str], end: &str| {
        let (rows, end) = (keys.iter().map(row).collect(), Key::from(end));
        Message::ScanReply { request: 1, clock: 1, direction, rows, end, prepared: vec![], is_promised: true }
    };
    for message in [
        Message::Read { request: 1, timestamp: transaction.timestamp(), keys: vec![Key::from("a"); 2] },
        page(Direction::Ascending, &["a", "a"], "b"),
        page(Direction::Ascending, &["b", "a"], "c"),
        page(Direction::Ascending, &["b"], "b"),
        page(Direction::Descending, &["b", "b"], "a"),
        page(Direction::Descending, &["a", "b"], ""),
        page(Direction::Descending, &["b", "a"], "aa"),
        Message::Recover { transaction: transaction.clone(), evidence: vec![vote(), vote()] },
        Message::Writeback { transaction: None, certificate: certificate.clone(), relay: false },
        Message::Decided { certificate },
    ] {
        let refused = desk.verifier.verify(message);
        assert!(matches!(refused, Err(Rejection::Structure(_))), "{refused:?}");
    }
    assert_eq!(desk.verifier.counts().roots_checked, 0);
}

/// What has read no range is written as it ever was; and ranges are written in one way only.
#[test]
fn the_ranges_of_a_transaction_have_one_encoding() {
    let cluster = members(1).cluster.id();
    let range = |low: &str, high: &str| KeyRange::new(Key::from(low), Key::from(high)).expect("it has keys");
    let timestamp = Timestamp::new(5, ClientId(1));
    let make = |ranges| Transaction::with_ranges(cluster, timestamp, vec![], ranges, vec![]);
    let plain = make(vec![]).expect("it is small");
    assert_eq!(plain.to_bytes(), Transaction::new(cluster, timestamp, vec![], vec![]).expect("it is small").to_bytes());
    let joined = make(vec![range("c", "d"), range("a", "b"), range("b", "c")]).expect("it is small");
    assert_eq!((joined.ranges(), joined.id()), (&[range("a", "d")][..], make(vec![range("a", "d")]).expect("it is small").id()));
    // The same bytes with other ranges.
    let written = |ranges: &[(&str, &str)]| {
        let mut bytes = plain.to_bytes();
        bytes[0] = 2;
        u32::try_from(ranges.len()).expect("they are few").encode(&mut bytes);
        for (low, high) in ranges {
            Key::from(*low).encode(&mut bytes);
            Key::from(*high).encode(&mut bytes);
        }
        Transaction::from_bytes(bytes.into(), cluster)
    };
    assert_eq!(written(&[("a", "d")]), Ok(joined));
    for bad in [&[][..], &[("a", "a")], &[("b", "a")], &[("c", "d"), ("a", "b")], &[("a", "c"), ("b", "d")], &[("a", "b"), ("b", "c")]] {
        assert!(matches!(written(bad), Err(DecodeError::NotCanonical(_))), "{bad:?}");
    }
    let names: Vec<String> = (0..=TRANSACTION_RANGES_MAX).map(|number| format!("{number:03}")).collect();
    let ends: Vec<String> = names.iter().map(|name| format!("{name}x")).collect();
    let many: Vec<(&str, &str)> = names.iter().map(String::as_str).zip(ends.iter().map(String::as_str)).collect();
    assert!(written(&many[1..]).is_ok() && written(&many) == Err(DecodeError::OverLimit("a transaction's ranges")));
    assert_eq!(make(many.iter().map(|(low, high)| range(low, high)).collect()), Err(basil::TransactionError::TooManyRanges));
}

/// A vote said in one cluster means nothing in another, nor does another's replica's.
#[test]
fn a_vote_is_its_signers_alone() {
    let desk = Desk::new();
    let id = desk.transaction(100, &[], &["a"]).id();
    let replica = ReplicaId { shard: ShardId(0), index: 0 };
    let signature = desk.vote_signature(replica, id, Vote::Commit);
    let believed = |replica, vote| {
        let vote = SignedVote { replica, statement: VoteStatement { id, vote }, signature: signature.clone() };
        desk.verifier.verify(Message::Voted { vote, conflict: None }).is_ok()
    };
    assert!(believed(replica, Vote::Commit));
    assert!(!believed(replica, Vote::Abort));
    assert!(!believed(ReplicaId { shard: ShardId(0), index: 1 }, Vote::Commit));
    assert!(!believed(ReplicaId { shard: ShardId(1), index: 0 }, Vote::Commit));
}
