//! A cluster of executors whose order is given by the test: two replicas of each shard, which must always agree.

#![allow(dead_code, reason = "each test program uses a part of it")]

use std::sync::Arc;

use augustus::certificate::{Certificate, SettledStatement, Signers, Vote, VoteStatement};
use augustus::limits::PENDING_MIN;
use augustus::{
    AbortReason, Answer, Checkpoint, Executor, Found, Name, Operation, Ordered, Reply, Request, Settings, Signed, Structural, Transaction,
    Unreadable, Verdict,
};
use bytes::Bytes;
use crypto::{BatchSigner, SecretKey, Signatures, Statement, Verifier, leaf};
use types::codec::{Decode as _, Encode as _};
use types::{ClientId, Cluster, ClusterId, Direction, Key, KeyRange, Permission, Placement, ReplicaId, ShardId, Value};

pub const ALICE: ClientId = ClientId(1);
pub const BOB: ClientId = ClientId(2);
/// May read and write what begins with `a` only.
pub const CAROL: ClientId = ClientId(3);

pub struct Harness {
    pub cluster: Arc<Cluster>,
    pub structural: Structural,
    secrets: Vec<Vec<SecretKey>>,
    verifier: Verifier,
    pub executors: Vec<[Executor; 2]>,
}

pub fn key(text: &str) -> Key {
    Key::from(text)
}

pub fn value(text: &str) -> Value {
    Value::from(text)
}

pub fn range(low: &str, high: &str) -> KeyRange {
    KeyRange::new(key(low), key(high)).expect("it has keys")
}

pub fn read(text: &str) -> Operation {
    Operation::Read(key(text))
}

pub fn put(text: &str, new: &str) -> Operation {
    Operation::Put(key(text), value(new))
}

pub fn read_range(low: &str, high: &str) -> Operation {
    Operation::ReadRange(range(low, high), Direction::Ascending, 100)
}

/// Keys below `m` are on shard 0, others on shard 1, from `t` on shard 2.
const BOUNDS: [&str; 2] = ["m", "t"];

impl Harness {
    /// A cluster of up to three shards.
    pub fn new(shards: usize, structural: Structural, signatures: Signatures) -> Self {
        let secret = |shard: usize, index: usize| SecretKey::from_bytes([(shard * 4 + index + 1) as u8; 32]);
        let secrets: Vec<Vec<SecretKey>> = (0..shards).map(|shard| (0..4).map(|index| secret(shard, index)).collect()).collect();
        let keys = secrets.iter().map(|shard| shard.iter().map(SecretKey::public).collect()).collect();
        let may = |client: u64, prefix: &str| {
            let public_key = SecretKey::from_bytes([100 + client as u8; 32]).public();
            (
                ClientId(client),
                Permission {
                    public_key,
                    read_prefixes: vec![key(prefix)],
                    write_prefixes: vec![key(prefix)],
                    limits: types::ClientLimits::default(),
                },
            )
        };
        let clients = vec![may(1, ""), may(2, ""), may(3, "a"), may(4, ""), may(5, "")];
        let bounds = BOUNDS.iter().take(shards - 1).map(|bound| key(bound)).collect();
        let cluster = Cluster::new(ClusterId::new([9; 16]), 1, Placement::Ranges(bounds), keys, clients).expect("its parts fit");
        let cluster = Arc::new(cluster.with_pending_min(Some(PENDING_MIN as u32)));
        let verifier = Verifier::new(Arc::clone(&cluster), signatures, 1_024).expect("good keys");
        let executor = |shard| Executor::new(Settings { cluster: Arc::clone(&cluster), shard, structural });
        let executors = cluster.shards().map(|shard| [executor(shard), executor(shard)]).collect();
        Self { cluster, structural, secrets, verifier, executors }
    }

    pub fn settings(&self, shard: u16) -> Settings {
        Settings { cluster: Arc::clone(&self.cluster), shard: ShardId(shard), structural: self.structural }
    }

    pub fn transaction(&self, client: ClientId, session: u64, number: u64, operations: Vec<Operation>) -> Transaction {
        Transaction::new(self.cluster.id(), Name { client, session, number }, operations).expect("within limits")
    }

    /// As every replica reads a request.
    pub fn read_request(&self, bytes: Vec<u8>) -> Result<crypto::Verified<Request>, Unreadable> {
        let request = Request::from_bytes(bytes.into(), self.cluster.id()).map_err(|_| Unreadable)?;
        self.verifier.verify(request).map_err(|_| Unreadable)
    }

    /// As the client's side checks what it hears.
    pub fn verify<T: crypto::SignatureClaims>(&self, message: T) -> crypto::Verified<T> {
        self.verifier.verify(message).expect("good signatures")
    }

    /// Delivers one batch to all replicas of a shard.
    pub fn deliver(&mut self, shard: u16, requests: &[(ClientId, Request)]) -> Vec<Reply> {
        let batch: Vec<Ordered> =
            requests.iter().map(|(client, request)| Ordered { client: *client, request: self.read_request(request.to_bytes()) }).collect();
        let [one, other] = &mut self.executors[usize::from(shard)];
        let replies = one.deliver(one.sequence() + 1, &batch);
        assert_eq!(replies, other.deliver(other.sequence() + 1, &batch), "the replicas of a shard agree");
        for reply in &replies {
            let bytes = reply.answer.to_bytes();
            assert_eq!(Answer::from_bytes(bytes.into(), self.cluster.id()).as_ref(), Ok(&reply.answer));
        }
        replies
    }

    /// Has the second replica of a shard go on from the first one's state. `all` are the pages of the last checkpoint, or none.
    pub fn reinstall(&mut self, shard: u16, all: &mut Vec<Bytes>) {
        let settings = self.settings(shard);
        let [one, other] = &mut self.executors[usize::from(shard)];
        let Checkpoint { head, pages, .. } = one.checkpoint();
        all.resize(head.pages as usize, Bytes::new());
        pages.into_iter().for_each(|(number, bytes)| all[number.0 as usize] = bytes);
        *other = Executor::install(settings, &head, all).expect("a checkpoint");
    }

    pub fn one(&mut self, shard: u16, client: ClientId, request: Request) -> Reply {
        self.deliver(shard, &[(client, request)]).remove(0)
    }

    /// The shard's verdict on a transaction that its author sends.
    #[track_caller]
    pub fn run(&mut self, shard: u16, transaction: &Transaction) -> Verdict {
        let reply = self.one(shard, transaction.name().client, Request::Run(transaction.clone()));
        let Answer::Voted(id, verdict) = reply.answer else { panic!("no verdict: {:?}", reply.answer) };
        assert_eq!(id, transaction.id());
        verdict
    }

    /// What these replicas of a shard sign.
    pub fn signers<S: Statement>(&self, shard: u16, indices: &[u16], statement: &S) -> Signers {
        let sign = |index: &u16| {
            let signer = ReplicaId { shard: ShardId(shard), index: *index };
            let secret = self.secrets[usize::from(shard)][usize::from(*index)].clone();
            let signer_of = BatchSigner::new(secret, self.cluster.id(), signer, self.verifier.signatures());
            (*index, signer_of.sign(&[leaf(self.cluster.id(), signer, statement)]).remove(0))
        };
        Signers { shard: ShardId(shard), signatures: indices.iter().map(sign).collect() }
    }

    pub fn votes(&self, shard: u16, transaction: &Transaction, vote: Vote) -> Signers {
        self.signers(shard, &[0, 2], &VoteStatement { id: transaction.id(), vote })
    }

    pub fn settled(&self, shard: u16, statement: SettledStatement) -> Signers {
        self.signers(shard, &[1, 3], &statement)
    }

    /// The certificate of all these shards' votes.
    pub fn certificate(&self, transaction: &Transaction, decision: Vote, shards: &[u16]) -> Certificate {
        let votes = shards.iter().map(|shard| self.votes(*shard, transaction, decision)).collect();
        Certificate { id: transaction.id(), decision, votes }
    }

    pub fn decide(&mut self, shard: u16, transaction: &Transaction, certificate: Certificate) -> Answer {
        self.one(shard, BOB, Request::Decide(transaction.name(), certificate)).answer
    }

    /// Sets keys to values.
    pub fn fill(&mut self, shard: u16, session: u64, rows: &[(&str, &str)]) {
        let operations = rows.iter().map(|(row, new)| put(row, new)).collect();
        let transaction = self.transaction(BOB, session, 1, operations);
        assert_eq!(self.run(shard, &transaction).vote(), Vote::Commit);
    }

    pub fn value(&self, shard: u16, text: &str) -> Option<String> {
        self.executors[usize::from(shard)][0].value(&key(text)).map(|value| value.to_string())
    }
}

pub fn found(verdict: &Verdict) -> Vec<Option<String>> {
    let Verdict::Commit(Some(found)) = verdict else { panic!("nothing was found: {verdict:?}") };
    let text = |found: &Found| match found {
        Found::Value(value) => value.as_ref().map(ToString::to_string),
        Found::Rows(rows) => Some(rows.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(" ")),
    };
    found.iter().map(text).collect()
}

pub fn is_conflict_with(verdict: &Verdict, transaction: &Transaction) -> bool {
    matches!(verdict, Verdict::Abort(AbortReason::Conflict(name, id, _)) if *name == transaction.name() && *id == transaction.id())
}

pub fn signed_vote(reply: &Reply) -> Option<Vote> {
    match reply.statement {
        Some(Signed::Vote(statement)) => Some(statement.vote),
        _ => None,
    }
}

/// Random numbers from a seed (SplitMix64).
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % bound as u64) as usize
    }

    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for at in (1..items.len()).rev() {
            items.swap(at, self.below(at + 1));
        }
    }
}
