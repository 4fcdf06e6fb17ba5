//! A client that cheats: it sends transactions of its own, well-formed and not, in ways that no honest session would.

use std::sync::Arc;

use ::augustus::multicast::{Message, Request, RequestKey};
use ::augustus::{Name, Operation, Transaction};
use bytes::Bytes;
use machine::{OutboxOf, Time};
use random::{Named as _, Random, named};
use types::codec::Encode as _;
use types::{ClientId, Cluster, Key, Party, ReplicaId, Session, Value};

use super::client::AugustusClient;
use crate::application::keys;

/// How often it speaks while it is at something, in milliseconds.
const PAUSE_MS: u64 = 20;
/// How many requests it sends at once to have more under way than there is room for.
const FLOOD: u64 = 40;

/// How many transactions it brings at once to have many pending, and how many places each of them locks.
const HOARD: u64 = 20;
const HOARDED: u64 = 12;
/// On how many places of its own these are, which nobody reads.
const OWN_PLACES: u64 = 1_000;

named! {
    /// A way for a client to cheat.
    pub enum CheatStrategy {
        /// Tells some replicas only.
        TellSome,
        /// Tells each replica something else under one number.
        TwoFaced,
        /// Gives numbers far ahead, and old ones again with something else.
        Jump,
        /// Speaks in the names of others.
        Impersonate,
        /// Says more than anybody has room for.
        Flood,
        /// Brings each shard another transaction under one name (attack a.1 of §3.4).
        Disagree,
        /// Brings its transactions to all their shards, and ends none of them (attack a.2).
        Leave,
        /// The same with as many as it can, each of which locks much (attack b).
        Hoard,
    }
}

impl CheatStrategy {
    /// One way.
    pub(super) fn draw(random: &mut Random) -> Vec<Self> {
        vec![random.pick(Self::ALL)]
    }
}

/// A client that cheats.
pub(super) struct Cheat {
    cluster: Arc<Cluster>,
    id: ClientId,
    strategies: Vec<CheatStrategy>,
    random: Random,
    session: Session,
    number: u64,
    speaks_at: Option<Time>,
}

impl Cheat {
    pub fn new(cluster: Arc<Cluster>, id: ClientId, strategies: Vec<CheatStrategy>, random: Random) -> Self {
        Self { cluster, id, strategies, random, session: Session(0), number: 0, speaks_at: None }
    }

    /// Begins to cheat as this process. Each time that it leaves what it is at it goes on as another one, so that there are many.
    pub fn begin(&mut self, party: Party) {
        if let Party::Client(_, session) = party
            && session != self.session
        {
            (self.session, self.number) = (session, 0);
        }
    }

    pub fn deadline(&self) -> Option<Time> {
        self.speaks_at
    }

    pub fn speak(&mut self, now: Time, outbox: &mut OutboxOf<AugustusClient>) {
        self.speaks_at = Some(now.after_ms(PAUSE_MS));
        let strategy = self.random.pick(&self.strategies);
        match strategy {
            CheatStrategy::Disagree | CheatStrategy::Leave if self.random.chance(200) => return self.leave(2, strategy, outbox),
            CheatStrategy::Hoard if self.random.chance(200) => {
                return (0..HOARD).for_each(|_| self.leave(HOARDED, strategy, outbox));
            }
            _ => {}
        }
        let shards: Vec<_> = self.cluster.shards().collect();
        let shard = self.random.pick(&shards);
        self.number += 1;
        let number = self.number;
        let request = self.request(number, None);
        for replica in self.cluster.clone().replicas_of(shard) {
            let mut say = |replica: ReplicaId, request: Request| outbox.send(Party::Replica(replica), Message::Request(request));
            match strategy {
                CheatStrategy::TellSome if self.random.chance(500) => say(replica, request.clone()),
                CheatStrategy::TellSome => {}
                CheatStrategy::TwoFaced if self.random.chance(500) => say(replica, request.clone()),
                CheatStrategy::TwoFaced => say(replica, self.request(number, None)),
                CheatStrategy::Jump => {
                    let number = self.random.pick(&[0, 1, number, number + 900, 1_025, 2_000, u64::MAX]);
                    say(replica, self.request(number, None));
                    say(replica, request.clone());
                }
                CheatStrategy::Impersonate => {
                    let other = ClientId(1 + self.random.below(4));
                    let channel = RequestKey { client: other, ..request.key };
                    say(replica, Request { key: channel, ..request.clone() });
                    say(replica, self.request(number, Some(other)));
                }
                CheatStrategy::Flood => {
                    for place in 0..FLOOD {
                        say(replica, self.request(number * FLOOD + place, None));
                    }
                }
                CheatStrategy::Disagree | CheatStrategy::Leave | CheatStrategy::Hoard => say(replica, request.clone()),
            }
        }
    }

    /// Brings a transaction that writes so many places to its shards, or each of them another one, and does not come back to it.
    fn leave(&mut self, places: u64, strategy: CheatStrategy, outbox: &mut OutboxOf<AugustusClient>) {
        self.number += 1;
        let name = Name { client: self.id, session: self.session.0, number: self.number };
        let keys: Vec<Key> = (0..places).map(|_| self.place(strategy)).collect();
        let mut transaction = self.transaction(name, &keys);
        for shard in transaction.participants(&self.cluster) {
            if strategy == CheatStrategy::Disagree {
                transaction = self.transaction(name, &keys);
            }
            let payload: Bytes = ::augustus::Request::Run(transaction.clone()).to_bytes().into();
            for replica in self.cluster.clone().replicas_of(shard) {
                let key = RequestKey { client: self.id, session: self.session, number: self.number };
                outbox.send(Party::Replica(replica), Message::Request(Request { key, payload: payload.clone() }));
            }
        }
    }

    /// A place that others write, too, or one of many that nobody else does.
    fn place(&mut self, strategy: CheatStrategy) -> Key {
        match strategy {
            CheatStrategy::Hoard => Key::from(format!("cheat/{:03}", self.random.below(OWN_PLACES)).as_str()),
            _ => keys::any_open(&mut self.random),
        }
    }

    /// What writes something new everywhere.
    fn transaction(&mut self, name: Name, keys: &[Key]) -> Transaction {
        let puts = keys.iter().map(|key| Operation::Put(key.clone(), self.value())).collect();
        Transaction::new(self.cluster.id(), name, puts).expect("it is a small transaction")
    }

    fn value(&mut self) -> Value {
        Value::from(format!("0#cheat-{:016x}", self.random.next()).as_str())
    }

    /// A request under a number, mostly a transaction that writes what nobody else does. `other` is whose the transaction says it is.
    fn request(&mut self, number: u64, other: Option<ClientId>) -> Request {
        let key = RequestKey { client: self.id, session: self.session, number };
        let value = self.value();
        let place = keys::any_open(&mut self.random);
        let name = match self.random.below(10) {
            0 => Name { client: self.id, session: self.session.0, number: self.random.below(8) },
            _ => Name { client: other.unwrap_or(self.id), session: self.session.0, number },
        };
        let transaction = Transaction::new(self.cluster.id(), name, vec![Operation::Put(place, value)]).expect("it is a small transaction");
        let asked = match self.random.below(20) {
            0 => return Request { key, payload: Bytes::from_static(b"no request") },
            1 => ::augustus::Request::Settle { session: self.random.below(3), below: self.random.pick(&[0, 5, u64::MAX]) },
            2 => ::augustus::Request::Release(name, transaction.id()),
            3 => ::augustus::Request::Finish(transaction, None),
            _ => ::augustus::Request::Run(transaction),
        };
        Request { key, payload: asked.to_bytes().into() }
    }
}
