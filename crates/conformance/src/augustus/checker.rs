//! Who watches the order.
//!
//! | checker | what it holds everyone to |
//! |---|---|
//! | order | honest replicas of a shard deliver the same request at each place, in all their lives |
//! | once | a request is delivered at one place only |
//! | invented | what is delivered in an honest client's name is what that client asked |
//! | acknowledged | what `f+1` replicas told an honest client stays so |
//! | new | what `2f+1` replicas answer without ordering it is as new as all that any honest one had said before it was asked |
//! | votes | an honest replica accepts one list for a number in a view, and prepares only that one, in all its lives |
//! | states | honest replicas of a shard have the same state at each checkpoint |

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ::augustus::multicast::{Message, Request, RequestKey, Unsigned};
use bytes::Bytes;
use simulator::{Checker, Outcomes, Violations};
use types::{ClientId, Cluster, ClusterId, Digest, Party, ReplicaId, ShardId};

use super::Order;
use super::statements::Statements;

/// Who watches the order.
#[derive(Debug)]
pub struct OrderChecker {
    violations: Violations,
    cluster: ClusterId,
    honest: BTreeSet<ClientId>,
    /// What honest clients asked.
    asked: BTreeMap<(ShardId, RequestKey), Digest>,
    told: u64,
    /// What honest replicas delivered: at each place, and where each request.
    places: BTreeMap<(ShardId, u64), (RequestKey, Digest)>,
    requests: BTreeMap<(ShardId, RequestKey), u64>,
    statements: Statements,
}

impl OrderChecker {
    pub(super) fn new(cluster: &Arc<Cluster>, honest: BTreeSet<ClientId>) -> Self {
        Self {
            violations: Violations::default(),
            cluster: cluster.id(),
            honest,
            asked: BTreeMap::new(),
            told: 0,
            places: BTreeMap::new(),
            requests: BTreeMap::new(),
            statements: Statements::default(),
        }
    }

    pub(super) fn asked(&mut self, shard: ShardId, request: &Request) {
        self.asked.insert((shard, request.key), request.id(self.cluster).digest);
    }

    pub(super) fn told(&mut self, shard: ShardId, key: RequestKey, answer: &Bytes) {
        self.told += 1;
        self.delivered(shard, key, answer, "acknowledged");
    }

    /// How much honest replicas of a shard have shown that they have delivered.
    pub(super) fn places_of(&self, shard: ShardId) -> u64 {
        let last = self.places.range((shard, 0)..=(shard, u64::MAX)).next_back();
        last.map_or(0, |((_, place), _)| place + 1)
    }

    /// An honest client is told how much a shard has delivered. It was `at_least` so much when the client asked.
    pub(super) fn told_how_much(&mut self, shard: ShardId, at_least: u64, answer: &Bytes) {
        let told = answer.first_chunk::<8>().map_or(0, |count| u64::from_le_bytes(*count));
        if told < at_least {
            self.violations.add("new", format!("{shard} had delivered {at_least}, and somebody who asks after that is told {told}"));
        }
    }

    fn delivered(&mut self, shard: ShardId, key: RequestKey, answer: &Bytes, checker: &'static str) {
        let Some((place, digest)) = answer.split_first_chunk::<8>() else {
            self.violations.add(checker, format!("{key:?} is answered with {answer:02x?}"));
            return;
        };
        let (place, digest) = (u64::from_le_bytes(*place), Digest::try_from(digest).unwrap_or_default());
        let there = *self.places.entry((shard, place)).or_insert((key, digest));
        if there != (key, digest) {
            self.violations.add(checker, format!("at place {place} of {shard} are {:?} and {key:?}", there.0));
        }
        let before = *self.requests.entry((shard, key)).or_insert(place);
        if before != place {
            self.violations.add("once", format!("{key:?} is delivered by {shard} at {before} and at {place}"));
        }
        if self.honest.contains(&key.client) && self.asked.get(&(shard, key)) != Some(&digest) {
            self.violations.add("invented", format!("{key:?} of {shard} is not what its client asked"));
        }
    }
}

impl Checker<Order> for OrderChecker {
    fn violations(&mut self) -> &mut Violations {
        &mut self.violations
    }

    fn signs(&mut self, by: ReplicaId, unsigned: &Unsigned, is_honest: bool) {
        if is_honest {
            self.statements.signs(by, unsigned, &mut self.violations);
        }
    }

    fn says(&mut self, by: ReplicaId, to: Party, message: &Message) {
        self.statements.says(self.cluster, by, message, &mut self.violations);
        if let (Message::Reply { number, answer, .. }, Party::Client(client, session)) = (message, to) {
            self.delivered(by.shard, RequestKey { client, session, number: *number }, answer, "order");
        }
    }

    fn believed(&mut self, _message: &Message) {}

    fn outcomes(&self) -> Outcomes {
        Outcomes { committed: self.told, aborted: 0, unknown: self.asked.len() as u64 - self.told }
    }
}
