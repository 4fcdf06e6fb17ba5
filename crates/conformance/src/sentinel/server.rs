//! A server: the order above a store, and a history that clients add to and read.

use std::convert::Infallible;
use std::sync::Arc;

use ::sentinel::order::{Application, Node, Options, Status, Zxid};
use bytes::Bytes;
use crypto::Verified;
use machine::{Durable, Input, InputOf, Machine, OutboxOf, Time};
use store::{Memory, Store, StoreError};
use types::codec::{Reader, encode_sequence};
use types::{ClientId, Cluster, ClusterId, Digest, Party, ReplicaId, Session};

use super::message::{Key, Link, Message, Nothing};

/// All that was delivered, and a digest over it.
#[derive(Debug, Default)]
pub(super) struct History {
    links: Vec<Link>,
    /// How many of them clients were told of; those of a snapshot they are not.
    told: usize,
}

impl History {
    fn last(&self) -> (Zxid, Digest) {
        self.links.last().map_or_else(Default::default, |link| (link.zxid, link.digest))
    }
}

impl Application for History {
    fn deliver(&mut self, zxid: Zxid, payload: &Bytes) {
        let (previous, digest) = self.last();
        let key = Key::of(payload);
        let digest = crypto::digest("a link", ClusterId::new([0; 16]), &[&digest, &zxid.0.to_le_bytes(), payload]);
        self.links.push(Link { zxid, previous, key, digest });
    }

    fn snapshot(&self) -> Bytes {
        let mut out = Vec::new();
        encode_sequence(&self.links, &mut out);
        out.into()
    }

    fn install(&mut self, _zxid: Zxid, snapshot: &Bytes) {
        let mut reader = Reader::new(snapshot.clone(), ClusterId::new([0; 16]));
        self.links = reader.sequence("links", usize::MAX).expect("a snapshot is a sequence of links");
        self.told = self.links.len();
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
        let (servers, history) = ((me.index, count), History::default());
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
        let is_ready = replica.status() != Status::Looking && replica.delivered() == replica.last();
        if is_ready {
            return Vec::new();
        }
        vec![format!("{:?}, delivered {} of {}", replica.status(), replica.delivered(), replica.last())]
    }

    fn on_message(&mut self, now: Time, from: Party, message: Message, sends: &mut Vec<(u16, ::sentinel::order::Message)>, outbox: &mut OutboxOf<Self>) {
        match (from, message) {
            (Party::Replica(from), Message::Order(message)) => self.node.hear(now, from.index, message, sends),
            (_, Message::Write(key) | Message::Forward(key)) => match self.node.replica().status() {
                // Who is refused is not answered, and asks again.
                Status::Leading { .. } => drop(self.node.propose(now, key.payload(), sends)),
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
    type Unsigned = Nothing;
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
