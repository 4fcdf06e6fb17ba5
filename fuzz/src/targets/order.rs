//! A replica of a shard that orders (Augustus), to whom anybody may say anything: requests, and what replicas say to one another.
//!
//! No signature is checked here, so that whatever can be written down is heard as if it were signed well. Nothing is asked of what the replica comes to
//! believe, as far more than `f` may lie; only that it never panics, that it can read what it says, and that it starts from what it has written.

use std::collections::VecDeque;
use std::sync::{Arc, LazyLock};

use augustus::multicast::{Message, Node, Options};
use augustus::{Operation, Request, Settings, Shard, Structural, Transaction};
use bytes::Bytes;
use crypto::{BatchSigner, SecretKey, Signatures, Verifier};
use machine::turn::{Bounds, Turns};
use machine::{Input, Time};
use store::{Memory, Store};
use types::codec::{Decode as _, Encode as _};
use types::{ClientId, Cluster, Direction, Key, KeyRange, Party, Permission, Placement, ReplicaId, Session, ShardId, Value};

use super::codec;
use crate::Target;
use crate::fixture::{CLUSTER, MILLISECOND, NOW};

pub(super) const MESSAGE: Target = Target {
    name: "order-message",
    what: "decodes one of the messages of Augustus' replicas, and a request that it may carry",
    bytes_max: 4_096,
    runs: 40_000,
    run: run_message,
    seeds: || heard(12, 8).into_iter().map(|(_, message)| message.to_vec()).take(2_000).collect(),
};

pub(super) const REPLICA: Target = Target {
    name: "order-replica",
    what: "says anything to a replica of Augustus that also starts anew: it goes on, and its journal brings it back",
    bytes_max: 16_384,
    runs: 500,
    run: run_replica,
    seeds: || [(5, 5), (2, 1), (3, 0)].map(|(requests, led)| inputs(&heard(requests, led))).into(),
};

/// Whose messages are recorded, and to whom they are said again.
const ME: u16 = 1;
const REPLICAS: u16 = 4;
/// Small, so that checkpoints and new journals come soon.
const OPTIONS: Options = Options { checkpoint_interval: 4, timeout_ms: 500, pipeline: 4, journal_bytes_max: 1 << 16 };
/// What a byte means that is no party: time passes, or the process starts anew.
const WAIT: u8 = 250;
const RESTART: u8 = 251;

type TestNode = Node<Shard, Memory>;

fn run_message(bytes: &[u8]) {
    codec::check::<Message>(bytes);
    codec::check::<Request>(bytes);
    if let Ok(Message::Request(request)) = Message::from_bytes(Bytes::copy_from_slice(bytes), CLUSTER) {
        codec::check::<Request>(&request.payload);
    }
}

/// Parts of a byte that says who speaks, two for a length, and so many: a message, or how many milliseconds pass.
fn run_replica(mut bytes: &[u8]) {
    let medium = Memory::new("fuzz");
    let (mut turns, mut now) = (Some(start(ME, &medium)), NOW);
    while let Some(([who, low, high], rest)) = bytes.split_first_chunk() {
        let length = usize::from(u16::from_le_bytes([*low, *high]));
        match *who {
            WAIT => {
                now += length as u64 * MILLISECOND;
                bytes = rest;
                turn(turns.as_mut().expect("it runs"), ME, now, None);
            }
            RESTART => {
                bytes = rest;
                turns = None;
                medium.crash(store::Crash::default());
                turns = turns.or_else(|| Some(start(ME, &medium)));
            }
            _ => {
                let (part, rest) = rest.split_at(length.min(rest.len()));
                bytes = rest;
                let Ok(message) = Message::from_bytes(Bytes::copy_from_slice(part), CLUSTER) else { continue };
                let Ok(message) = VERIFIER.verify(message) else { continue };
                let mut own = VecDeque::from([(party(*who), message)]);
                while let Some((from, message)) = own.pop_front() {
                    for (to, message) in turn(turns.as_mut().expect("it runs"), ME, now, Some(Input::Message { from, message })) {
                        let message = Message::from_bytes(message.to_bytes().into(), CLUSTER).expect("it can read what it says");
                        if to == party(ME as u8) {
                            own.extend(VERIFIER.verify(message).ok().map(|message| (to, message)));
                        }
                    }
                }
            }
        }
    }
}

fn party(who: u8) -> Party {
    match u16::from(who) {
        index if index < REPLICAS => Party::Replica(replica(index)),
        other => Party::Client(ClientId(u64::from(other % 3) + 1), Session(1)),
    }
}

fn replica(index: u16) -> ReplicaId {
    ReplicaId { shard: ShardId(0), index }
}

static SHARD: LazyLock<Arc<Cluster>> = LazyLock::new(|| {
    let key = |number: u8| SecretKey::from_bytes([number; 32]).public();
    let replicas = (1..=4).map(key).collect();
    let client = |number: u8| {
        let all = vec![Key::default()];
        (
            ClientId(number.into()),
            Permission {
                public_key: key(100 + number),
                read_prefixes: all.clone(),
                write_prefixes: all,
                limits: types::ClientLimits::default(),
            },
        )
    };
    Arc::new(Cluster::new(CLUSTER, 1, Placement::Hash, vec![replicas], (1..=3).map(client).collect()).expect("the parts fit"))
});

static VERIFIER: LazyLock<Arc<Verifier>> =
    LazyLock::new(|| Arc::new(Verifier::new(SHARD.clone(), Signatures::Off, 1_000).expect("keys from seeds are good keys")));

fn start(index: u16, medium: &Memory) -> Turns<TestNode> {
    let store = Store::open(medium.clone(), store::Options::default()).expect("the disk is whole");
    let settings = Settings { cluster: SHARD.clone(), shard: ShardId(0), structural: Structural::default() };
    let shard = Shard::new(settings, index, VERIFIER.clone());
    let node = Node::open(SHARD.clone(), replica(index), OPTIONS, shard, store).expect("it starts from what it has written");
    Turns::new(node, Party::Replica(replica(index)), Bounds::default())
}

/// One turn; gives what was said, to itself, too.
fn turn(
    turns: &mut Turns<TestNode>,
    index: u16,
    now: u64,
    input: Option<Input<std::convert::Infallible, crypto::Verified<Message>>>,
) -> Vec<(Party, Message)> {
    let mut signer = BatchSigner::new(SecretKey::from_bytes([index as u8 + 1; 32]), CLUSTER, replica(index), Signatures::Off);
    let mut turn = turns.begin(Time(now));
    input.into_iter().for_each(|input| turn.step(Time(now), input));
    let said = turn.stepped(Time(now)).persist().expect("the disk is whole").sign(&mut signer);
    let own: Vec<Message> = said.own.drain(..).collect();
    said.sends.drain(..).chain(own.into_iter().map(|message| (Party::Replica(replica(index)), message))).collect()
}

/// As much of what was heard as one input holds, and a start at its end.
fn inputs(heard: &[(Party, Bytes)]) -> Vec<u8> {
    let mut input = Vec::new();
    for part in heard.iter().map(|(from, message)| said(*from, message)) {
        if input.len() + part.len() + 3 > REPLICA.bytes_max {
            break;
        }
        input.extend(part);
    }
    input.extend([RESTART, 0, 0]);
    input
}

/// A part of the input.
fn said(from: Party, message: &[u8]) -> Vec<u8> {
    let who = match from {
        Party::Replica(replica) => replica.index as u8,
        Party::Client(client, _) => [5, 6, 4][(client.0 as usize - 1) % 3],
    };
    let length = u16::try_from(message.len()).unwrap_or(u16::MAX).to_le_bytes();
    [&[who, length[0], length[1]][..], message].concat()
}

/// What a replica hears while clients have requests run, and its leader says nothing after so many.
fn heard(requests: u64, led: u64) -> Vec<(Party, Bytes)> {
    let disks: Vec<Memory> = (0..REPLICAS).map(|index| Memory::new(&replica(index).to_string())).collect();
    let mut shard: Vec<Turns<TestNode>> = (0..REPLICAS).map(|index| start(index, &disks[usize::from(index)])).collect();
    let (mut heard, mut queue, mut now) = (Vec::new(), VecDeque::new(), NOW);
    for number in 1..=requests {
        let client = ClientId(number % 3 + 1);
        let key = Key::from(format!("k{number}").as_str());
        let range = KeyRange::new(Key::default(), Key::from("z")).expect("it holds keys");
        let operations = vec![
            Operation::Compare(key.clone(), None),
            Operation::Put(key.clone(), Value::from("v")),
            Operation::ReadRange(range, if number % 2 == 0 { Direction::Ascending } else { Direction::Descending }, 3),
            Operation::Read(key),
        ];
        let name = augustus::Name { client, session: 1, number };
        let payload = Request::Run(Transaction::new(CLUSTER, name, operations).expect("it is small")).to_bytes().into();
        let origin = Party::Client(client, Session(1));
        let request =
            augustus::multicast::Request { key: augustus::multicast::RequestKey { client, session: Session(1), number }, payload };
        (0..REPLICAS).for_each(|index| queue.push_back((origin, Party::Replica(replica(index)), Message::Request(request.clone()))));
        let is_silent = |party: Party| number > led && party == Party::Replica(replica(0));
        for _ in 0..200 {
            while let Some((from, to, message)) = queue.pop_front() {
                let Party::Replica(to) = to else { continue };
                if to.index == ME {
                    heard.push((from, Bytes::from(message.to_bytes())));
                }
                let Ok(message) = VERIFIER.verify(message) else { continue };
                let me = Party::Replica(to);
                let said = turn(&mut shard[usize::from(to.index)], to.index, now, Some(Input::Message { from, message }));
                queue.extend(said.into_iter().filter(|_| !is_silent(me)).map(|(other, message)| (me, other, message)));
            }
            now += 10 * MILLISECOND;
            for index in 0..REPLICAS {
                let me = Party::Replica(replica(index));
                let said = turn(&mut shard[usize::from(index)], index, now, None);
                queue.extend(said.into_iter().filter(|_| !is_silent(me)).map(|(other, message)| (me, other, message)));
            }
        }
    }
    heard
}
