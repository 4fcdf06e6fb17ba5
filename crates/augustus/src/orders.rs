//! How a coordinator's orders get to the shards and their answers back. Each order becomes a request of its shard's multicast, with a number
//! that counts this process's requests there. It is said to all replicas of the shard, again and again, until enough have answered alike.
//!
//! Replicas take no request that lies far from its process's last ones, and remember the last [`REPLIES_MAX`] transactions of a process.
//! So what is under way at a shard stays within a span of numbers ([`Orders::has_room`]), and what is answered late is still remembered.
//!
//! Where a shard answers nothing for long, orders are given up and others come, each with a number that is spent. Before the numbers lead further than
//! replicas take them, orders wait without one, and the process asks for something that changes nothing, under the last number, until that is answered.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use machine::{Outbox, Time};
use mutants::{Mutant, broken};
use types::codec::{Decode as _, Encode as _};
use types::{ClientId, Cluster, Party, ReplicaId, Session, ShardId};

use crate::coordinator::{Answered, Order};
use crate::limits::REPLIES_MAX;
use crate::multicast::message::{Message, ReplySignature};
use crate::multicast::request::{Request, RequestKey};
use crate::multicast::windows::WINDOW;
use crate::request::{Answer, Request as Asked};

/// How long to wait before an order is said again, in milliseconds, and how often that doubles: where it takes long because there is much to do,
/// what is said again is more to do.
const RETRY_MS: u64 = 500;
const RETRY_DOUBLINGS: u32 = 2;
/// How far the numbers of what is under way at a shard may lie apart before another transaction begins there: fewer than are remembered.
const SPAN_MAX: u64 = REPLIES_MAX as u64 - 16;

/// The orders of one process that are under way.
#[derive(Debug)]
pub(crate) struct Orders {
    cluster: Arc<Cluster>,
    client: ClientId,
    session: Session,
    /// For how long an order is said again, in milliseconds.
    timeout_ms: u64,
    shards: Vec<Numbers>,
    under_way: BTreeMap<u64, UnderWay>,
    /// When each is to be said again.
    retries: BTreeSet<(Time, u64)>,
    /// How often one was said again.
    pub retried: u64,
}

/// The requests to one shard.
#[derive(Debug, Default)]
struct Numbers {
    last: u64,
    /// Which order each is that is under way.
    orders: BTreeMap<u64, u64>,
    /// The highest number that each replica has answered.
    heard: BTreeMap<u16, u64>,
    /// How many orders wait for a number.
    waiting: usize,
    /// The number under which it asks whether the shard answers again, and when it may be said again.
    probe: Option<(u64, Time)>,
}

impl Numbers {
    /// A number that the shard has delivered: `f+1` replicas have answered it or a later one.
    fn delivered(&self, faults: usize) -> u64 {
        let mut heard: Vec<u64> = self.heard.values().copied().collect();
        heard.sort_unstable_by(|one, other| other.cmp(one));
        heard.get(faults).copied().unwrap_or(0)
    }

    /// The next number, if the replicas take it. One is left for the probe.
    fn next(&mut self, faults: usize) -> Option<u64> {
        if self.last + 1 >= self.delivered(faults) + WINDOW && !broken(Mutant::NumbersSpent) {
            return None;
        }
        (self.last, self.probe) = (self.last + 1, None);
        Some(self.last)
    }

    /// The number of the probe, once in a while.
    fn probe(&mut self, now: Time) -> Option<u64> {
        let (number, again_at) = self.probe.unwrap_or_else(|| {
            self.last += 1;
            (self.last, now)
        });
        let is_due = again_at <= now;
        self.probe = Some((number, if is_due { now.after_ms(RETRY_MS) } else { again_at }));
        is_due.then_some(number)
    }
}

#[derive(Debug)]
struct UnderWay {
    shard: ShardId,
    /// None while there is none that the replicas would take.
    number: Option<u64>,
    payload: Bytes,
    gives_up_at: Time,
    /// How often it was said, and when it is to be said again.
    said: u32,
    again_at: Time,
}

impl Orders {
    pub fn new(cluster: Arc<Cluster>, client: ClientId, session: Session, timeout_ms: u64) -> Self {
        let shards = cluster.shards().map(|_| Numbers::default()).collect();
        Self { cluster, client, session, timeout_ms, shards, under_way: BTreeMap::new(), retries: BTreeSet::new(), retried: 0 }
    }

    /// Whether another transaction may begin at a shard. What ends one that has begun always may.
    pub fn has_room(&self, shard: ShardId) -> bool {
        let Numbers { last, orders, waiting, .. } = &self.shards[usize::from(shard.0)];
        *waiting == 0 && orders.first_key_value().is_none_or(|(oldest, _)| last - oldest < SPAN_MAX)
    }

    pub fn send<U, E>(&mut self, now: Time, Order { number: order, shard, request }: Order, outbox: &mut Outbox<Message, U, E>) {
        let (payload, gives_up_at) = (request.to_bytes().into(), now.after_ms(self.timeout_ms));
        self.under_way.insert(order, UnderWay { shard, number: None, payload, gives_up_at, said: 0, again_at: now });
        self.shards[usize::from(shard.0)].waiting += 1;
        self.say(now, order, outbox);
    }

    fn say<U, E>(&mut self, now: Time, order: u64, outbox: &mut Outbox<Message, U, E>) {
        let Some(UnderWay { shard, number, payload, said, again_at, .. }) = self.under_way.get_mut(&order) else { return };
        let numbers = &mut self.shards[usize::from(shard.0)];
        if number.is_none() {
            *number = numbers.next(self.cluster.faults());
            numbers.waiting -= usize::from(number.is_some());
            numbers.orders.extend(number.map(|number| (number, order)));
        }
        let request = match *number {
            Some(number) => Some((number, payload.clone())),
            None => numbers.probe(now).map(|number| (number, Asked::Settle { session: self.session.0, below: 0 }.to_bytes().into())),
        };
        if let Some((number, payload)) = request {
            let message = Message::Request(Request { key: RequestKey { client: self.client, session: self.session, number }, payload });
            self.cluster.replicas_of(*shard).for_each(|replica| outbox.send(Party::Replica(replica), message.clone()));
        }
        *again_at = now.after_ms(RETRY_MS << (*said).min(RETRY_DOUBLINGS));
        *said += 1;
        self.retries.insert((*again_at, order));
    }

    /// What a replica has said, if that can be the answer to an order that is under way. The signature has been checked, but not what it
    /// is of.
    pub fn answer(&mut self, replica: ReplicaId, number: u64, answer: Bytes, signed: Option<ReplySignature>) -> Option<Answered> {
        let numbers = self.shards.get_mut(usize::from(replica.shard.0))?;
        if number <= numbers.last {
            let heard = numbers.heard.entry(replica.index).or_default();
            *heard = number.max(*heard);
        }
        let number = *numbers.orders.get(&number)?;
        let answer = Answer::from_bytes(answer, self.cluster.id()).ok()?;
        let signature = match signed {
            None => None,
            Some(ReplySignature { signer, leaf, signature }) => {
                let is_its = signer == replica && answer.statement()?.leaf(self.cluster.id(), replica) == leaf;
                Some((is_its || broken(Mutant::SignatureOfOther)).then_some(signature)?)
            }
        };
        Some(Answered { replica, number, answer, signature })
    }

    /// Enough have answered this order, or nobody waits for it any more.
    pub fn end(&mut self, order: u64) {
        if let Some(UnderWay { shard, number, again_at, .. }) = self.under_way.remove(&order) {
            let numbers = &mut self.shards[usize::from(shard.0)];
            match number {
                Some(number) => drop(numbers.orders.remove(&number)),
                None => numbers.waiting -= 1,
            }
            self.retries.remove(&(again_at, order));
        }
    }

    /// Says again what was not answered. Gives the orders for which it is too late: these have ended.
    pub fn on_tick<U, E>(&mut self, now: Time, outbox: &mut Outbox<Message, U, E>) -> Vec<u64> {
        let mut late = Vec::new();
        while let Some((_, order)) = self.retries.first().copied().filter(|(at, _)| *at <= now) {
            self.retries.pop_first();
            if self.under_way.get(&order).is_some_and(|under_way| under_way.gives_up_at <= now) {
                self.end(order);
                late.push(order);
            } else {
                self.retried += 1;
                self.say(now, order, outbox);
            }
        }
        late
    }

    pub fn deadline(&self) -> Option<Time> {
        self.retries.first().map(|(at, _)| *at)
    }
}

#[cfg(test)]
mod tests {
    use crypto::{BatchSigner, SecretKey, Signatures};
    use types::{ClusterId, Permission, Placement, TransactionId};

    use super::*;
    use crate::request::{AbortReason, Request as Asked, Verdict};

    const CLUSTER: ClusterId = ClusterId::new([7; 16]);

    fn orders() -> Orders {
        let keys = (0..2).map(|shard| (0..4).map(|index| SecretKey::from_bytes([shard * 4 + index + 1; 32]).public()).collect());
        let client = (ClientId(1), Permission { public_key: SecretKey::from_bytes([99; 32]).public(), ..Permission::default() });
        let cluster = Cluster::new(CLUSTER, 1, Placement::Hash, keys.collect(), vec![client]).expect("its parts fit");
        Orders::new(Arc::new(cluster), ClientId(1), Session(1), 10_000)
    }

    fn send(orders: &mut Orders, now: Time, number: u64, shard: u16) -> usize {
        let mut outbox = Outbox::<Message, (), ()>::default();
        let request = Asked::Settle { session: 1, below: 0 };
        orders.send(now, Order { number, shard: ShardId(shard), request }, &mut outbox);
        outbox.sends.len()
    }

    #[test]
    fn a_signature_counts_for_its_own_answer_alone() {
        let mut orders = orders();
        send(&mut orders, Time(0), 7, 1);
        let [voter, other] = [0, 1].map(|index| ReplicaId { shard: ShardId(1), index });
        let answer = |verdict| Answer::Voted(TransactionId([1; 32]), verdict);
        let (commit, abort) = (answer(Verdict::Commit(None)), answer(Verdict::Abort(AbortReason::VotedDown)));
        let signed = |signer: ReplicaId, answer: &Answer| {
            let leaf = answer.statement().expect("a vote").leaf(CLUSTER, signer);
            let secret = SecretKey::from_bytes([5 + u8::try_from(signer.index).expect("few"); 32]);
            let signature = BatchSigner::new(secret, CLUSTER, signer, Signatures::Ed25519).sign(&[leaf]).remove(0);
            Some(ReplySignature { signer, leaf, signature })
        };
        let mut take = |answer: &Answer, signed| orders.answer(voter, 1, answer.to_bytes().into(), signed);
        assert!(take(&commit, signed(voter, &abort)).is_none(), "it has signed something else");
        assert!(take(&commit, signed(other, &commit)).is_none(), "somebody else has signed it");
        let answered = take(&commit, signed(voter, &commit)).expect("its own");
        assert_eq!((answered.number, answered.replica, answered.signature.is_some()), (7, voter, true));
    }

    #[test]
    fn an_order_is_said_again_until_it_is_answered_or_too_late_and_holds_up_its_own_shard_alone() {
        let (mut orders, mut outbox) = (orders(), Outbox::<Message, (), ()>::default());
        assert_eq!(send(&mut orders, Time(0), 1, 0), 4, "to all replicas of its shard");
        let mut number = 1;
        while orders.has_room(ShardId(0)) {
            number += 1;
            send(&mut orders, Time(0), number, 0);
            orders.end(number);
        }
        assert_eq!((number, orders.has_room(ShardId(1))), (SPAN_MAX + 1, true));
        let again = Time(0).after_ms(RETRY_MS);
        assert_eq!(orders.deadline(), Some(again));
        assert_eq!((orders.on_tick(again, &mut outbox), outbox.sends.len()), (vec![], 4));
        let mut gaps = Vec::new();
        for _ in 0..3 {
            let next = orders.deadline().expect("it is not answered");
            gaps.push((next.0 - again.0) / 1_000_000);
            assert_eq!(orders.on_tick(next, &mut outbox), []);
        }
        assert_eq!(gaps, [1_000, 3_000, 5_000], "later each time, and then every two seconds");
        assert_eq!(orders.on_tick(Time(0).after_ms(10_000), &mut outbox), [1]);
        assert!(orders.has_room(ShardId(0)) && orders.deadline().is_none());
    }

    #[test]
    fn a_shard_that_answers_nothing_for_long_takes_what_is_asked_when_it_answers_again() {
        let (mut orders, mut outbox) = (orders(), Outbox::<Message, (), ()>::default());
        let said = |outbox: &mut Outbox<Message, (), ()>| -> Vec<u64> {
            let number = |(_, message)| if let Message::Request(request) = message { request.key.number } else { panic!("{message:?}") };
            std::mem::take(&mut outbox.sends).into_iter().step_by(4).map(number).collect()
        };
        let order = |number| Order { number, shard: ShardId(0), request: Asked::Settle { session: 1, below: 0 } };
        let (mut now, mut highest) = (Time(0), 0);
        // Longer than the numbers would last.
        for round in 0..40 {
            (0..40).for_each(|at| orders.send(now, order(40 * round + at), &mut outbox));
            now = now.after_ms(10_000);
            while orders.deadline().is_some_and(|at| at <= now) {
                orders.on_tick(now, &mut outbox);
            }
            highest = said(&mut outbox).into_iter().max().unwrap_or(highest);
            assert!(highest <= WINDOW, "no replica takes {highest}");
        }
        assert_eq!(highest, WINDOW);
        assert!(orders.has_room(ShardId(0)), "nothing is under way");
        orders.send(now, order(1_600), &mut outbox);
        assert!(!orders.has_room(ShardId(0)), "one waits for a number");
        // One that lies says that it has delivered that.
        let answer: Bytes = Answer::Refused(crate::request::Refusal::Unknown).to_bytes().into();
        let hear = |orders: &mut Orders, index| {
            assert!(orders.answer(ReplicaId { shard: ShardId(0), index }, WINDOW, answer.clone(), None).is_none(), "it answers the probe");
        };
        hear(&mut orders, 0);
        now = now.after_ms(RETRY_MS);
        orders.on_tick(now, &mut outbox);
        assert!(said(&mut outbox).into_iter().all(|number| number <= WINDOW));
        hear(&mut orders, 1);
        now = now.after_ms(2_000);
        orders.on_tick(now, &mut outbox);
        assert_eq!(said(&mut outbox), [WINDOW + 1], "it has a number now");
        assert!(orders.has_room(ShardId(0)));
    }
}
