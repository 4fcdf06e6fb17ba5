//! A server: the order above a store, and a history that clients add to and read.

use std::convert::Infallible;
use std::sync::Arc;

use ::sentinel::order::{Application, Node, Options, Status, Zxid};
use ::sentinel::{Origin, Profile, Proposal, Replicated, State};
use bytes::Bytes;
use crypto::Verified;
use jute::{Acl, Create, CreateMode, Id, Operation};
use machine::{Durable, Input, InputOf, Machine, OutboxOf, Time};
use store::{Memory, Store, StoreError};
use types::codec::{Encode as _, Reader, encode_sequence};
use types::{ClientId, Cluster, ClusterId, Digest, Party, ReplicaId, Session};

use super::message::{KEY_BYTES, Key, Link, Message, Nothing};

/// All that was delivered, with a digest over it, and the tree that it makes.
pub(super) struct History {
    links: Vec<Link>,
    /// How many of them clients were told of; those of a snapshot they are not.
    told: usize,
    tree: Replicated,
    corruption: Option<String>,
}

impl History {
    fn new() -> Self {
        Self { links: Vec::new(), told: 0, tree: Replicated::new(State::new(Profile::Sha256Wide, 0)), corruption: None }
    }

    fn last(&self) -> (Zxid, Digest) {
        self.links.last().map_or_else(Default::default, |link| (link.zxid, link.digest))
    }

    /// What a client's write is ordered as: its name, and the transaction that the leader makes of it.
    fn prepare(&mut self, next: Zxid, key: Key, time_ms: i64) -> Bytes {
        let session = i64::from_le_bytes((key.client << 32 | key.session).to_le_bytes());
        let identities = [Id::new("ip", "127.0.0.1")];
        let origin = Origin { session, xid: 0, identities: &identities, time_ms };
        let proposal =
            if self.tree.has_session(session) { operation(key) } else { Proposal::CreateSession { timeout_ms: 1_000, password: [7; 16] } };
        let mut payload = key.to_bytes();
        self.tree.prepare(next, proposal, origin).encode(&mut payload);
        payload.into()
    }
}

/// Something of every kind: much of it meets what others do, and some of it fails.
fn operation(key: Key) -> Proposal {
    let path = format!("/n{}", key.number / 8 % 3);
    let create = |mode, sequential| {
        let path = if sequential { "/s".to_owned() } else { path.clone() };
        Operation::Create(Create { path, data: None, acl: vec![Acl::open()], mode, sequential, wants_stat: false })
    };
    let data = Some(Bytes::from(key.to_bytes()));
    let set = Operation::SetData { path: path.clone(), data, version: -1 };
    let delete = Operation::Delete { path: path.clone(), version: -1 };
    match key.number % 8 {
        1 => Proposal::One(create(CreateMode::Persistent, false)),
        2 | 3 => Proposal::One(set),
        4 => Proposal::One(create(CreateMode::Ephemeral, true)),
        5 => Proposal::Multi(vec![set.clone(), create(CreateMode::Ephemeral, true), set]),
        6 => Proposal::Multi(vec![delete.clone(), create(CreateMode::Persistent, false), delete]),
        7 => Proposal::CloseSession,
        _ => Proposal::One(delete),
    }
}

impl Application for History {
    fn deliver(&mut self, zxid: Zxid, payload: &Bytes) {
        let (previous, digest) = self.last();
        let (name, transaction) = payload.split_at(KEY_BYTES);
        if self.corruption.is_some() {
            return;
        }
        if let Err(corruption) = self.tree.deliver(zxid, transaction) {
            self.corruption = Some(corruption.to_string());
            return;
        }
        let key = Key::of(&Bytes::copy_from_slice(name));
        // With the digest of the tree: whoever delivers the same comes to the same.
        let parts: [&[u8]; 4] = [&digest, &zxid.0.to_le_bytes(), payload, &self.tree.state().recomputed_checksum().0];
        let digest = crypto::digest("a link", ClusterId::new([0; 16]), &parts);
        self.links.push(Link { zxid, previous, key, digest });
    }

    fn snapshot(&self) -> Bytes {
        let mut out = Vec::new();
        encode_sequence(&self.links, &mut out);
        out.extend_from_slice(&self.tree.snapshot().expect("memory is not damaged here"));
        out.into()
    }

    fn install(&mut self, _zxid: Zxid, snapshot: &Bytes) {
        let mut reader = Reader::new(snapshot.clone(), ClusterId::new([0; 16]));
        self.links = reader.sequence("links", usize::MAX).expect("a snapshot begins with its links");
        self.told = self.links.len();
        if let Err(error) = self.tree.install(&reader.rest(), 0) {
            self.corruption = Some(error.to_string());
        }
    }
}

/// A server.
pub struct Server {
    me: ReplicaId,
    node: Node<History, Memory>,
    /// What it said when it was opened.
    first: Vec<(u16, ::sentinel::order::Message)>,
}

impl Server {
    pub(super) fn open(
        cluster: &Arc<Cluster>,
        me: ReplicaId,
        options: Options,
        journal_bytes_max: u64,
        store: Store<Memory>,
        now: Time,
    ) -> Result<Self, String> {
        let count = u16::try_from(cluster.replicas_per_shard()).expect("there are few");
        let mut first = Vec::new();
        let (servers, history) = ((me.index, count), History::new());
        let node = Node::open(servers, options, history, store, journal_bytes_max, now.0, now, &mut first);
        Ok(Self { me, node: node.map_err(|error| error.to_string())?, first })
    }

    pub(super) fn close(&mut self) -> Result<(), String> {
        self.node.close().map_err(|error| error.to_string())
    }

    pub(super) fn is_pending(&self) -> bool {
        self.node.is_pending()
    }

    pub(super) fn is_member(&self) -> bool {
        self.node.replica().is_member()
    }

    pub(super) fn history(&self) -> &[Link] {
        &self.node.application().links
    }

    /// Why it is not done with what it does.
    pub(super) fn unready(&self) -> Vec<String> {
        let replica = self.node.replica();
        if let Some(corruption) = &self.node.application().corruption {
            return vec![corruption.clone()];
        }
        let is_ready = replica.status() != Status::Looking && replica.delivered() == replica.last();
        if is_ready {
            return Vec::new();
        }
        vec![format!("{:?}, delivered {} of {}", replica.status(), replica.delivered(), replica.last())]
    }

    fn on_message(
        &mut self,
        now: Time,
        from: Party,
        message: Message,
        sends: &mut Vec<(u16, ::sentinel::order::Message)>,
        outbox: &mut OutboxOf<Self>,
    ) {
        match (from, message) {
            (Party::Replica(from), Message::Order(message)) => self.node.hear(now, from.index, message, sends),
            (_, Message::Write(key) | Message::Forward(key)) => match self.node.replica().status() {
                // Who is refused is not answered, and asks again.
                Status::Leading { .. } => {
                    let replica = self.node.replica();
                    if replica.may_propose().is_ok() {
                        let (next, time_ms) = (replica.next(), i64::try_from(now.0 / 1_000_000).unwrap_or(i64::MAX));
                        let payload = self.node.application_mut().prepare(next, key, time_ms);
                        let _ = self.node.propose(now, payload, sends);
                    }
                }
                Status::Following { leader, .. } if matches!(from, Party::Client(..)) => {
                    outbox.send(Party::Replica(ReplicaId { index: leader, ..self.me }), Message::Forward(key));
                }
                Status::Following { .. } | Status::Looking => {}
            },
            (Party::Client(..), Message::Read { number, seen }) => {
                let (zxid, digest) = self.node.application().last();
                if self.node.replica().status() != Status::Looking && zxid >= seen {
                    outbox.send(from, Message::Known { number, zxid, digest });
                }
            }
            _ => {}
        }
    }
}

impl Machine for Server {
    type Command = Infallible;
    type Received = Verified<Message>;
    type Message = Message;
    type Unsigned = Nothing<Message>;
    type Event = Infallible;

    fn step(&mut self, now: Time, input: InputOf<Self>, outbox: &mut OutboxOf<Self>) {
        let mut sends = std::mem::take(&mut self.first);
        match input {
            Input::Command(never) => match never {},
            Input::Message { from, message } => self.on_message(now, from, message.into_inner(), &mut sends, outbox),
            Input::Tick => self.node.tick(now, &mut sends),
        }
        for (to, message) in sends {
            outbox.send(Party::Replica(ReplicaId { index: to, ..self.me }), Message::Order(message));
        }
        let history = self.node.application_mut();
        // Each server tells the client, so that whoever watches sees what each delivers.
        for link in &history.links[history.told..] {
            outbox.send(Party::Client(ClientId(link.key.client), Session(link.key.session)), Message::Delivered(*link));
        }
        history.told = history.links.len();
    }

    fn leave(&mut self, now: Time, outbox: &mut OutboxOf<Self>) {
        let mut sends = Vec::new();
        self.node.leave(now, &mut sends);
        for (to, message) in sends {
            outbox.send(Party::Replica(ReplicaId { index: to, ..self.me }), Message::Order(message));
        }
    }

    fn deadline(&self) -> Option<Time> {
        Some(self.node.replica().deadline())
    }
}

impl Durable for Server {
    type Failure = StoreError;

    fn persist(&mut self) -> Result<(), StoreError> {
        self.node.persist()
    }
}
