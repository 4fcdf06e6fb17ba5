//! A cluster with known secret keys: three shards of six replicas, a few clients, and a handful of transactions that depend on
//! one another, conflict, lie too far back or ahead, or exceed their client's rights.
//!
//! Every replica has signed every possible statement about each transaction: both votes, both decisions in several views, and so
//! on. So the targets can build any message from validly signed statements, as any number of Byzantine replicas could.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use basil::certificate::{LoggedStatement, VoteStatement};
use basil::recovery::{DecideStatement, ElectStatement};
use basil::{Decision, Read, Transaction, Vote, Write};
use crypto::{BatchSignature, BatchSigner, SecretKey, Signatures, Verifier, leaf};
use types::{
    ClientId, Cluster, ClusterId, Digest, Key, KeyRange, Permission, Placement, ReplicaId, ShardId, Timestamp, TransactionId, Value,
};

/// The cluster's name.
pub const CLUSTER: ClusterId = ClusterId::new([0xb7; 16]);
/// How many shards there are.
pub const SHARDS: u16 = 3;
/// How many replicas each has.
pub const REPLICAS: u16 = 6;
/// When everything happens, in nanoseconds.
pub const NOW: u64 = 1_800_000_000_000_000_000;
/// How long a millisecond is.
pub const MILLISECOND: u64 = 1_000_000;
/// The highest view that anybody has spoken in.
pub const VIEWS: u32 = 3;

/// Something that a replica has signed. The names of kinds are not taken from `basil`, where they are part of what is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said {
    /// A vote.
    Vote(VoteStatement),
    /// A decision written down.
    Logged(LoggedStatement),
    /// An election message.
    Elect(ElectStatement),
    /// A leader's decision.
    Decide(DecideStatement),
}

impl Said {
    /// The leaf that stands for it when `signer` says it.
    #[must_use]
    pub fn leaf(&self, cluster: ClusterId, signer: ReplicaId) -> Digest {
        match self {
            Self::Vote(statement) => leaf(cluster, signer, statement),
            Self::Logged(statement) => leaf(cluster, signer, statement),
            Self::Elect(statement) => leaf(cluster, signer, statement),
            Self::Decide(statement) => leaf(cluster, signer, statement),
        }
    }
}

/// The cluster, its secrets, and what was said in it.
pub struct Fixture {
    /// The cluster, as everybody knows it.
    pub cluster: Arc<Cluster>,
    /// The transactions everybody has spoken of.
    pub transactions: Vec<Transaction>,
    secrets: BTreeMap<ReplicaId, SecretKey>,
    signatures: BTreeMap<(ReplicaId, usize), Vec<BatchSignature>>,
}

static FIXTURE: LazyLock<Fixture> = LazyLock::new(Fixture::build);
static VERIFIER: LazyLock<Verifier> = LazyLock::new(|| fixture().stranger(65_536));

/// The one fixture.
#[must_use]
pub fn fixture() -> &'static Fixture {
    &FIXTURE
}

/// A verifier that remembers everything it has seen in this process.
#[must_use]
pub fn verifier() -> &'static Verifier {
    &VERIFIER
}

/// A replica's name.
#[must_use]
pub const fn replica(shard: u16, index: u16) -> ReplicaId {
    ReplicaId { shard: ShardId(shard), index }
}

/// The clients of the cluster, and one that it does not know.
pub const CLIENTS: [ClientId; 5] = [ClientId(1), ClientId(2), ClientId(3), ClientId(4), ClientId(5)];
/// The client that may read and write only keys that begin with `a`.
const ONLY_A: ClientId = ClientId(4);
/// The client that the cluster does not know.
const UNKNOWN: ClientId = ClientId(5);

impl Fixture {
    fn build() -> Self {
        let mut secrets = BTreeMap::new();
        for (shard, index) in (0..SHARDS).flat_map(|shard| (0..REPLICAS).map(move |index| (shard, index))) {
            secrets.insert(replica(shard, index), secret(shard, index));
        }
        let keys = (0..SHARDS).map(|shard| (0..REPLICAS).map(|index| secrets[&replica(shard, index)].public()).collect());
        let clients = CLIENTS.into_iter().filter(|client| *client != UNKNOWN).map(|client| {
            let prefix = Key::from(if client == ONLY_A { "a" } else { "" });
            let number = u16::try_from(client.0).expect("there are few clients");
            (
                client,
                Permission {
                    public_key: secret(100, number).public(),
                    read_prefixes: vec![prefix.clone()],
                    write_prefixes: vec![prefix],
                    limits: types::ClientLimits::default(),
                },
            )
        });
        let placement = Placement::Ranges(vec![Key::from("i"), Key::from("q")]);
        let cluster = Arc::new(Cluster::new(CLUSTER, 1, placement, keys.collect(), clients.collect()).expect("the parts fit"));
        let transactions = transactions();
        let signatures = say_everything(&secrets, &transactions);
        Self { cluster, transactions, secrets, signatures }
    }

    /// A verifier with an empty cache.
    #[must_use]
    pub fn stranger(&self, cache_capacity: usize) -> Verifier {
        Verifier::new(self.cluster.clone(), Signatures::Ed25519, cache_capacity).expect("keys from seeds are good keys")
    }

    /// What `replica` signs with, as a replica of this cluster.
    #[must_use]
    pub fn batch_signer(&self, replica: ReplicaId) -> BatchSigner {
        self.signer_as(replica, replica, CLUSTER)
    }

    /// What `holder` would sign with if it passed for `signer`, in `cluster`.
    #[must_use]
    pub fn signer_as(&self, holder: ReplicaId, signer: ReplicaId, cluster: ClusterId) -> BatchSigner {
        BatchSigner::new(self.secrets[&holder].clone(), cluster, signer, Signatures::Ed25519)
    }

    /// The signature of `replica` on `said`, which is about transaction number `transaction`. It is made now if it does not exist
    /// yet.
    #[must_use]
    pub fn signature(&self, replica: ReplicaId, transaction: usize, said: &Said) -> BatchSignature {
        let id = self.transactions[transaction].id();
        let place = everything(id).into_iter().position(|other| other == *said);
        match (place, self.signatures.get(&(replica, transaction))) {
            (Some(place), Some(signatures)) => signatures[place].clone(),
            _ => self.batch_signer(replica).sign(&[said.leaf(CLUSTER, replica)]).remove(0),
        }
    }

    /// The place of the transaction called `id`.
    #[must_use]
    pub fn place_of(&self, id: TransactionId) -> Option<usize> {
        self.transactions.iter().position(|transaction| transaction.id() == id)
    }
}

fn secret(group: u16, index: u16) -> SecretKey {
    let mut seed = [29; 32];
    seed[..2].copy_from_slice(&group.to_le_bytes());
    seed[2..4].copy_from_slice(&index.to_le_bytes());
    SecretKey::from_bytes(seed)
}

/// How many statements are signed together, in turn: one, a few, as many as in a busy node, and the maximum.
const BATCHES: [usize; 8] = [1, 2, 3, 7, 26, 64, 256, 33];

/// Everything that can be said of one transaction.
fn everything(id: TransactionId) -> Vec<Said> {
    let votes = [Vote::Commit, Vote::Abort].map(|vote| Said::Vote(VoteStatement { id, vote }));
    let mut all = votes.to_vec();
    for decision in [Decision::Commit, Decision::Abort] {
        for view_decision in 0..VIEWS {
            let logged = |view_current| Said::Logged(LoggedStatement { id, decision, view_decision, view_current });
            all.extend((view_decision..VIEWS).map(logged));
        }
        all.extend((1..=VIEWS).map(|view| Said::Elect(ElectStatement { id, decision, view })));
        all.extend((1..=VIEWS).map(|view| Said::Decide(DecideStatement { id, decision, view })));
    }
    all
}

/// Lets every replica sign every statement about every transaction, in batches of many sizes.
fn say_everything(
    secrets: &BTreeMap<ReplicaId, SecretKey>,
    transactions: &[Transaction],
) -> BTreeMap<(ReplicaId, usize), Vec<BatchSignature>> {
    let mut sizes = BATCHES.into_iter().cycle();
    let mut all = BTreeMap::new();
    for (replica, secret) in secrets {
        let batch_signer = BatchSigner::new(secret.clone(), CLUSTER, *replica, Signatures::Ed25519);
        let leaves = transactions.iter().flat_map(|transaction| everything(transaction.id()));
        let leaves: Vec<Digest> = leaves.map(|said| said.leaf(CLUSTER, *replica)).collect();
        let mut signatures = Vec::with_capacity(leaves.len());
        while signatures.len() < leaves.len() {
            let size = sizes.next().expect("a cycle has no end").min(leaves.len() - signatures.len());
            signatures.extend(batch_signer.sign(&leaves[signatures.len()..signatures.len() + size]));
        }
        for (number, signatures) in signatures.chunks(leaves.len() / transactions.len()).enumerate() {
            all.insert((*replica, number), signatures.to_vec());
        }
    }
    all
}

/// `milliseconds` before now, of client `client`.
fn ago(milliseconds: u64, client: u64) -> Timestamp {
    Timestamp::new(NOW - milliseconds * MILLISECOND, ClientId(client))
}

/// `milliseconds` from now, of client `client`.
fn ahead(milliseconds: u64, client: u64) -> Timestamp {
    Timestamp::new(NOW + milliseconds * MILLISECOND, ClientId(client))
}

fn make(timestamp: Timestamp, reads: &[(&str, Option<&Transaction>, bool)], writes: &[&str]) -> Transaction {
    let read = |(key, seen, pending): &(&str, Option<&Transaction>, bool)| Read {
        key: Key::from(*key),
        version: seen.map_or(Timestamp::ZERO, Transaction::timestamp),
        dependency: seen.filter(|_| *pending).map(Transaction::id),
    };
    let write = |key: &&str| Write { key: Key::from(*key), value: Some(Value::from(format!("{key} at {timestamp}").as_str())) };
    let (reads, writes) = (reads.iter().map(read).collect(), writes.iter().map(write).collect());
    Transaction::new(CLUSTER, timestamp, reads, writes).expect("small transactions are within every limit")
}

/// The transactions: keys before `i` are shard 0's, those from `q` on shard 2's.
fn transactions() -> Vec<Transaction> {
    let first = make(ago(900, 1), &[], &["a1"]);
    let second = make(ago(800, 2), &[("a1", None, false)], &["a1"]); // Missed what the first wrote.
    let third = make(ago(700, 3), &[("a1", Some(&first), true)], &["i1"]); // Depends on the first, over two shards.
    let fourth = make(ago(600, 1), &[("i1", None, false)], &["q1"]);
    let fifth = make(ago(500, 2), &[("a1", Some(&second), false)], &["a1", "i1", "q1"]);
    let reader = make(ago(400, 3), &[("a1", Some(&first), false), ("a2", None, false)], &[]);
    let twin = make(ago(900, 1), &[], &["a2"]); // The first one's timestamp once more.
    let intruder = make(ago(300, 4), &[], &["i1"]); // Not this client's to write.
    let own = make(ago(200, 4), &[("a2", None, false)], &["a2"]);
    let liar = make(ago(850, 2), &[("a1", Some(&second), false)], &["a2"]); // Read from its own future.
    let stranger = make(ago(250, 5), &[], &["a3"]); // Of a client that nobody knows.
    let middle = make(ago(6_000, 1), &[], &["a1", "a3"]); // Old enough to need more than its author's word.
    let old = make(ago(20_000, 1), &[], &["a1"]);
    let soon = make(ahead(300, 1), &[("a1", None, false)], &["a1"]);
    let never = make(ahead(60_000, 1), &[], &["a1"]);
    let deep = make(ago(150, 3), &[("i1", Some(&third), true)], &["a2"]);
    let deeper = make(ago(100, 2), &[("a2", Some(&deep), true)], &["q1"]);
    let nothing = make(ago(100, 1), &[], &[]); // Touches no shard.
    let eraser = {
        let erased = Write { key: Key::from("a1"), value: None };
        Transaction::new(CLUSTER, ago(50, 1), vec![], vec![erased]).expect("small transactions are within every limit")
    };
    let range = |low: &str, high: &str| KeyRange::new(Key::from(low), Key::from(high)).expect("it has keys");
    let with_ranges = |timestamp, reads, ranges, writes| {
        Transaction::with_ranges(CLUSTER, timestamp, reads, ranges, writes).expect("small transactions are within every limit")
    };
    let found = Read { key: Key::from("a1"), version: first.timestamp(), dependency: None };
    let into = Write { key: Key::from("i2"), value: Some(Value::from("9")) };
    let ranger = with_ranges(ago(350, 3), vec![found], vec![range("a1", "a3")], vec![into]); // Knows of one key in its range.
    let sweeper = with_ranges(ago(100, 2), vec![], vec![range("", "a1"), range("a2", "j")], vec![]); // Has found nothing on two shards.
    vec![
        first, second, third, fourth, fifth, reader, twin, intruder, own, liar, stranger, middle, old, soon, never, deep, deeper, nothing,
        eraser, ranger, sweeper,
    ]
}
