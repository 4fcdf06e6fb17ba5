//! A client that cheats: it sends transactions of its own, well-formed and not, in ways that no honest session would.

use std::sync::Arc;

use ::augustus::multicast::{Message, Request, RequestKey};
use ::augustus::{Name, Operation, Transaction};
use bytes::Bytes;
use machine::{OutboxOf, Time};
use random::Random;
use types::codec::Encode as _;
use types::{ClientId, Cluster, Party, ReplicaId, Session, Value};

use super::client::AugustusClient;
use super::plan;
use crate::augustus::ClientStrategy;

/// How often it speaks while it is at something, in milliseconds.
const PAUSE_MS: u64 = 20;
/// How many requests it sends at once to have more under way than there is room for.
const FLOOD: u64 = 40;

/// A client that cheats.
pub(super) struct Cheat {
    cluster: Arc<Cluster>,
    id: ClientId,
    strategies: Vec<ClientStrategy>,
    random: Random,
    session: Session,
    number: u64,
    speaks_at: Option<Time>,
}

impl Cheat {
    pub fn new(cluster: Arc<Cluster>, id: ClientId, strategies: Vec<ClientStrategy>, random: Random) -> Self {
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
        let shards: Vec<_> = self.cluster.shards().collect();
        let shard = self.random.pick(&shards);
        self.number += 1;
        let number = self.number;
        let request = self.request(number, None);
        for replica in self.cluster.clone().replicas_of(shard) {
            let mut say = |replica: ReplicaId, request: Request| outbox.send(Party::Replica(replica), Message::Request(request));
            match strategy {
                ClientStrategy::TellSome if self.random.chance(500) => say(replica, request.clone()),
                ClientStrategy::TellSome => {}
                ClientStrategy::TwoFaced if self.random.chance(500) => say(replica, request.clone()),
                ClientStrategy::TwoFaced => say(replica, self.request(number, None)),
                ClientStrategy::Jump => {
                    let number = self.random.pick(&[0, 1, number, number + 900, 1_025, 2_000, u64::MAX]);
                    say(replica, self.request(number, None));
                    say(replica, request.clone());
                }
                ClientStrategy::Impersonate => {
                    let other = ClientId(1 + self.random.below(4));
                    let channel = RequestKey { client: other, ..request.key };
                    say(replica, Request { key: channel, ..request.clone() });
                    say(replica, self.request(number, Some(other)));
                }
                ClientStrategy::Flood => {
                    for place in 0..FLOOD {
                        say(replica, self.request(number * FLOOD + place, None));
                    }
                }
            }
        }
    }

    /// A request under a number, mostly a transaction that writes what nobody else does. `other` is whose the transaction says it is.
    fn request(&mut self, number: u64, other: Option<ClientId>) -> Request {
        let key = RequestKey { client: self.id, session: self.session, number };
        let value = Value::from(format!("0#cheat-{:016x}", self.random.next()).as_str());
        let place = plan::any_open(&mut self.random);
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
