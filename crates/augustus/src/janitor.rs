//! Ends what clients left: beside each replica, a coordinator that finishes transactions that have been pending on its shard for long, and lets
//! the shard forget outcomes that have been kept for others for long.
//!
//! It asks as clients do, under a name that no client has ([`name_of`]), and has no more rights than any client that meets the transaction
//! (§3.4, a.2): it brings the transaction to its other shards with the votes of this one, and ends it with the votes of all. So it needs no
//! trust: a replica that lies here can do what any client can. Unlike a client it sees every transaction that is pending on its shard.
//!
//! One replica of each shard would do. They take turns in the order of their indices, each [`WAIT_MS`] after the one before, so that mostly the
//! first does it, and the others when that one is gone or lies.

use std::collections::BTreeMap;
use std::sync::Arc;

use machine::{Outbox, Time};
use mutants::{Mutant, broken};
use types::{ClientId, Cluster, ReplicaId, Session, TransactionId};

use crate::coordinator::{Coordinator, Output};
use crate::executor::Executor;
use crate::multicast::message::Message;
use crate::multicast::request::name_of;
use crate::orders::Orders;

/// How long a transaction is left to its own process and to those who meet it, in milliseconds; and how long after one replica the next begins.
const WAIT_MS: u64 = 3_000;
/// How many times as long outcomes are left to their client to settle: it does so once it has many.
const UNSETTLED_WAITS: u64 = 2;
/// How often a janitor looks, in milliseconds.
const LOOK_MS: u64 = 1_000;
/// How long it waits for the answers to what it asks, in milliseconds.
const ANSWER_TIMEOUT_MS: u64 = 10_000;
/// How many transactions it finishes at a time.
const FINISHING_MAX: usize = 16;

#[derive(Debug)]
pub(crate) struct Janitor {
    me: ReplicaId,
    coordinator: Coordinator,
    orders: Orders,
    /// The pending transactions.
    seen: BTreeMap<TransactionId, Seen>,
    /// The first numbers of sessions that are not settled.
    unsettled: BTreeMap<(ClientId, u64, u64), Seen>,
    looks_at: Time,
    /// How many it has begun to finish.
    pub begun: u64,
}

/// What was left: since when it has been seen, and how often it was begun to end it.
#[derive(Clone, Copy, Debug)]
struct Seen {
    since: Time,
    tried: u32,
}

impl Janitor {
    /// `now` is later than the beginning of every earlier process of this replica.
    pub fn new(cluster: Arc<Cluster>, me: ReplicaId, now: Time) -> Self {
        let (name, session) = (name_of(me), Session(now.0));
        Self {
            me,
            coordinator: Coordinator::new(cluster.clone(), name, session.0),
            orders: Orders::new(cluster, name, session, ANSWER_TIMEOUT_MS),
            seen: BTreeMap::new(),
            unsettled: BTreeMap::new(),
            looks_at: now,
            begun: 0,
        }
    }

    /// A replica has answered what this one asked.
    pub fn on_reply<U, E>(&mut self, now: Time, from: ReplicaId, message: Message, outbox: &mut Outbox<Message, U, E>) {
        let Message::Reply { number, answer, signed } = message else { return };
        let Some(answered) = self.orders.answer(from, number, answer, signed) else { return };
        let mut out = Vec::new();
        self.coordinator.on_checked(answered, &mut out);
        self.take(now, out, outbox);
    }

    pub fn on_tick<U, E>(&mut self, now: Time, executor: &Executor, outbox: &mut Outbox<Message, U, E>) {
        let mut out = Vec::new();
        for order in self.orders.on_tick(now, outbox) {
            self.coordinator.give_up(order, &mut out);
        }
        if self.looks_at <= now {
            self.looks_at = now.after_ms(LOOK_MS);
            self.look(now, executor, &mut out);
        }
        self.take(now, out, outbox);
    }

    fn look(&mut self, now: Time, executor: &Executor, out: &mut Vec<Output>) {
        let wait_ms = WAIT_MS * (1 + u64::from(self.me.index));
        let mut seen = BTreeMap::new();
        let mut late = Vec::new();
        for (transaction, _) in executor.pending() {
            let Seen { since, tried } = self.seen.get(&transaction.id()).copied().unwrap_or(Seen { since: now, tried: 0 });
            seen.insert(transaction.id(), Seen { since, tried });
            if since.after_ms(wait_ms) <= now && !broken(Mutant::JanitorIdle) {
                late.push((if broken(Mutant::FirstLeftAgain) { 0 } else { tried }, transaction));
            }
        }
        // What could not be finished, as another shard does not answer, comes after what has not been tried as often.
        late.sort_by_key(|(tried, _)| *tried);
        for (_, transaction) in late {
            if self.coordinator.under_way() >= FINISHING_MAX || !self.orders.has_room(self.me.shard) {
                break;
            }
            if self.coordinator.finish(transaction.clone(), self.me.shard, out) {
                self.begun += 1;
                seen.entry(transaction.id()).and_modify(|seen| seen.tried += 1);
            }
        }
        self.seen = seen;
        let mut unsettled = BTreeMap::new();
        let mut late = Vec::new();
        for (statement, others) in executor.unsettled() {
            let key = (statement.client, statement.session, statement.first);
            let Seen { since, tried } = self.unsettled.get(&key).copied().unwrap_or(Seen { since: now, tried: 0 });
            unsettled.insert(key, Seen { since, tried });
            if since.after_ms(wait_ms * UNSETTLED_WAITS) <= now && !broken(Mutant::JanitorIdle) {
                late.push((tried, key, statement, others));
            }
        }
        late.sort_by_key(|(tried, key, ..)| (*tried, *key));
        for (_, key, statement, others) in late {
            if self.coordinator.settle_for(statement, self.me.shard, others, out) {
                unsettled.entry(key).and_modify(|seen| seen.tried += 1);
            }
        }
        self.unsettled = unsettled;
    }

    fn take<U, E>(&mut self, now: Time, out: Vec<Output>, outbox: &mut Outbox<Message, U, E>) {
        for output in out {
            match output {
                Output::Order(order) => self.orders.send(now, order, outbox),
                Output::Answered(number) => self.orders.end(number),
                // It runs no transactions of its own, so that nobody is in its way.
                Output::Met(..) | Output::Ended(..) => {}
            }
        }
    }

    pub fn deadline(&self) -> Time {
        self.orders.deadline().map_or(self.looks_at, |at| at.min(self.looks_at))
    }
}
