//! A small world for scripts: replicas over disks in memory, a network that a script can cut and bend, a clock that it moves.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use crypto::{BatchSigner, SecretKey, Signatures, Verifier};
use machine::turn::{Bounds, Turns};
use machine::{Input, Time};
use store::{Crash, Memory, Store};
use types::codec::{Decode as _, Encode as _};
use types::{ClientId, Cluster, ClusterId, Party, Permission, Placement, ReplicaId, Session, ShardId};

use super::super::history::{Entry, History};
use super::super::message::Unsigned;
use super::super::record::Record;
use super::super::{Message, Node, Options, Request, RequestKey};

pub type TestNode = Node<History, Memory>;
/// What becomes of a message on its way: nothing, or those that arrive instead.
pub type Bend = Box<dyn FnMut(Party, Party, Message) -> Vec<Message>>;

pub const CLUSTER: ClusterId = ClusterId::new([7; 16]);
pub const FAST: Options = Options { checkpoint_interval: 4, timeout_ms: 500, pipeline: 4, journal_bytes_max: 1 << 20 };

pub fn replica(index: u16) -> ReplicaId {
    ReplicaId { shard: ShardId(0), index }
}

pub fn party(index: u16) -> Party {
    Party::Replica(replica(index))
}

pub fn key(client: u64, number: u64) -> RequestKey {
    RequestKey { client: ClientId(client), session: Session(1), number }
}

pub fn request(client: u64, number: u64, payload: &str) -> Request {
    Request { key: key(client, number), payload: Bytes::copy_from_slice(payload.as_bytes()) }
}

fn secret(number: u8) -> SecretKey {
    SecretKey::from_bytes([number; 32])
}

pub fn cluster(faults: usize) -> Arc<Cluster> {
    let replicas = (0..3 * faults + 1).map(|index| secret(u8::try_from(index).expect("few") + 1).public()).collect();
    let client = |id: u64| {
        let permission = Permission { public_key: secret(100 + u8::try_from(id).expect("few")).public(), ..Permission::default() };
        (ClientId(id), permission)
    };
    Arc::new(Cluster::new(CLUSTER, faults, Placement::Hash, vec![replicas], (1..=4).map(client).collect()).expect("well-formed"))
}

pub struct World {
    pub cluster: Arc<Cluster>,
    pub now: Time,
    pub options: Options,
    pub bend: Bend,
    /// What each replica answered to each request.
    pub answers: BTreeMap<RequestKey, BTreeMap<u16, Bytes>>,
    /// What each replica answered to each question.
    pub found: BTreeMap<u64, BTreeMap<u16, Option<Bytes>>>,
    nodes: Vec<Option<Turns<TestNode>>>,
    disks: Vec<Memory>,
    signers: Vec<BatchSigner>,
    verifier: Verifier,
    queue: VecDeque<(Party, Party, Bytes)>,
}

impl World {
    pub fn new() -> Self {
        Self::with(FAST)
    }

    pub fn with(options: Options) -> Self {
        let cluster = cluster(1);
        let count = u16::try_from(cluster.replicas_per_shard()).expect("few");
        let signer =
            |index: u16| BatchSigner::new(secret(u8::try_from(index).expect("few") + 1), CLUSTER, replica(index), Signatures::Ed25519);
        let mut world = Self {
            now: Time(1_000_000_000),
            options,
            bend: Box::new(|_, _, message| vec![message]),
            answers: BTreeMap::new(),
            found: BTreeMap::new(),
            nodes: (0..count).map(|_| None).collect(),
            disks: (0..count).map(|index| Memory::new(&replica(index).to_string())).collect(),
            signers: (0..count).map(signer).collect(),
            verifier: Verifier::new(cluster.clone(), Signatures::Ed25519, 1_000).expect("good keys"),
            queue: VecDeque::new(),
            cluster,
        };
        (0..count).for_each(|index| world.start(index));
        world
    }

    pub fn start(&mut self, index: u16) {
        let store = Store::open(self.disks[usize::from(index)].clone(), store::Options::default()).expect("the disk is whole");
        let node = Node::open(self.cluster.clone(), replica(index), self.options, History::new(CLUSTER), store).expect("its own journal");
        self.nodes[usize::from(index)] = Some(Turns::new(node, party(index), Bounds::default()));
    }

    /// The process ends and the power fails: what is not durable is gone.
    pub fn crash(&mut self, index: u16) {
        self.nodes[usize::from(index)] = None;
        self.disks[usize::from(index)].crash(Crash::default());
        self.queue.retain(|(_, to, _)| *to != party(index));
    }

    /// Its disk is replaced by an empty one that says so, and it is started again.
    pub fn lose_disk(&mut self, index: u16) {
        self.crash(index);
        let disk = Memory::new(&replica(index).to_string());
        let mut store = Store::open(disk.clone(), store::Options::default()).expect("it is empty");
        super::super::rebuild::mark(&mut store).expect("the disk is whole");
        self.disks[usize::from(index)] = disk;
        self.start(index);
    }

    /// The process ends after a part of a snapshot, which is durable, and is started again.
    pub fn cut_snapshot(&mut self, index: u16) {
        self.crash(index);
        let mut store = Store::open(self.disks[usize::from(index)].clone(), store::Options::default()).expect("the disk is whole");
        while store.replay().expect("the disk is whole").is_some() {}
        store.append(&Record::SnapshotBegin.to_bytes());
        store.close().expect("the disk is whole");
        self.start(index);
    }

    pub fn crash_all(&mut self) {
        (0..4).for_each(|index| self.crash(index));
        (0..4).for_each(|index| self.start(index));
    }

    pub fn node(&self, index: u16) -> &TestNode {
        self.nodes[usize::from(index)].as_ref().expect("it runs").machine()
    }

    pub fn delivered(&self, index: u16) -> Vec<Entry> {
        self.node(index).replica().application().delivered().to_vec()
    }

    /// A client says `request` to these replicas.
    pub fn ask(&mut self, request: &Request, to: &[u16]) {
        let bytes: Bytes = Message::Request(request.clone()).to_bytes().into();
        to.iter().for_each(|index| self.queue.push_back((request.key.origin(), party(*index), bytes.clone())));
    }

    pub fn ask_all(&mut self, request: &Request) {
        self.ask(request, &[0, 1, 2, 3]);
    }

    /// Puts a message on its way as if `from` had said it.
    pub fn inject(&mut self, from: Party, to: u16, message: &Message) {
        self.queue.push_back((from, party(to), message.to_bytes().into()));
    }

    /// The message that a statement of `index` becomes.
    pub fn signed(&self, index: u16, statement: Unsigned) -> Message {
        use crypto::Signable as _;
        let signature = self.signers[usize::from(index)].sign(&[statement.leaf(CLUSTER, replica(index))]).remove(0);
        statement.with_signature(signature)
    }

    /// Delivers what is under way, and what follows from it, without letting time pass.
    pub fn settle(&mut self) {
        assert!(self.settle_some(200_000) < 200_000, "they never stop talking");
    }

    /// The same for so many messages at most; gives how many there were.
    pub fn settle_some(&mut self, messages: usize) -> usize {
        for count in 0..messages {
            let Some((from, to, bytes)) = self.queue.pop_front() else { return count };
            let message = Message::from_bytes(bytes, CLUSTER).expect("what is said can be read");
            match to {
                Party::Replica(replica) => {
                    if let Ok(message) = self.verifier.verify(message) {
                        self.turn(replica.index, vec![Input::Message { from, message }]);
                    }
                }
                Party::Client(client, session) => match (message, from) {
                    (Message::Reply { number, answer, .. }, Party::Replica(replica)) => {
                        let key = RequestKey { client, session, number };
                        self.answers.entry(key).or_default().insert(replica.index, answer);
                    }
                    (Message::QueryReply { number, answer }, Party::Replica(replica)) => {
                        self.found.entry(number).or_default().insert(replica.index, answer);
                    }
                    _ => {}
                },
            }
        }
        messages
    }

    /// Lets time pass.
    pub fn run_ms(&mut self, milliseconds: u64) {
        let end = self.now.after_ms(milliseconds);
        self.settle();
        while self.now < end {
            let wakes = self.nodes.iter().flatten().filter_map(Turns::wakes_at).min().unwrap_or(end);
            self.now = wakes.clamp(self.now.after_us(100), end);
            for index in 0..4 {
                let is_due = |turns: &Turns<TestNode>| turns.wakes_at().is_some_and(|wakes| wakes <= self.now);
                if self.nodes[usize::from(index)].as_ref().is_some_and(is_due) {
                    self.turn(index, Vec::new());
                }
            }
            self.settle();
        }
    }

    /// The process ends in good order.
    pub fn stop(&mut self, index: u16) {
        self.turn_of(index, Vec::new(), true);
        self.crash(index);
    }

    fn turn(&mut self, index: u16, inputs: Vec<Input<std::convert::Infallible, crypto::Verified<Message>>>) {
        self.turn_of(index, inputs, false);
    }

    fn turn_of(&mut self, index: u16, inputs: Vec<Input<std::convert::Infallible, crypto::Verified<Message>>>, is_last: bool) {
        let Some(turns) = self.nodes[usize::from(index)].as_mut() else { return };
        let mut turn = turns.begin(self.now);
        inputs.into_iter().for_each(|input| turn.step(self.now, input));
        let stepped = if is_last { turn.stepped_last(self.now) } else { turn.stepped(self.now) };
        let said = stepped.persist().expect("the disk is whole").sign(&mut self.signers[usize::from(index)]);
        let own: Vec<Message> = said.own.drain(..).collect();
        let sends: Vec<(Party, Message)> = said.sends.drain(..).collect();
        drop(said);
        for message in own {
            self.queue.push_back((party(index), party(index), message.to_bytes().into()));
        }
        for (to, message) in sends {
            for message in (self.bend)(party(index), to, message) {
                self.queue.push_back((party(index), to, message.to_bytes().into()));
            }
        }
    }

    /// The answer that `f+1` replicas gave.
    pub fn answer(&self, key: &RequestKey) -> Option<Bytes> {
        let answers = self.answers.get(key)?;
        answers.values().find(|answer| answers.values().filter(|other| other == answer).count() >= 2).cloned()
    }

    /// What these replicas delivered is the same, as far as each has come.
    pub fn assert_agreement(&self, replicas: &[u16]) {
        for pair in replicas.windows(2) {
            let (one, other) = (self.delivered(pair[0]), self.delivered(pair[1]));
            let length = one.len().min(other.len());
            assert_eq!(one[..length], other[..length], "{} and {} disagree", pair[0], pair[1]);
        }
    }

    /// Each of these replicas has delivered exactly these requests, in any order.
    pub fn assert_delivered(&self, replicas: &[u16], mut keys: Vec<RequestKey>) {
        keys.sort_unstable();
        for index in replicas {
            let mut delivered: Vec<_> = self.delivered(*index).iter().map(|entry| entry.key).collect();
            delivered.sort_unstable();
            assert_eq!(delivered, keys, "at {index}: {:?}", self.node(*index).replica().status());
        }
        self.assert_agreement(replicas);
    }
}

/// A network without these links, both ways.
pub fn without(cut: &'static [u16]) -> Bend {
    let is_cut = move |party: Party| matches!(party, Party::Replica(replica) if cut.contains(&replica.index));
    Box::new(move |from, to, message| if is_cut(from) || is_cut(to) { Vec::new() } else { vec![message] })
}

pub fn whole() -> Bend {
    Box::new(|_, _, message| vec![message])
}
