//! Reads in one step: what only reads, and reads one shard alone, is first asked of that shard's replicas as they are. `2f+1` equal answers count, and no
//! fewer: `f+1` equal ones would do for what was ordered, but might all be old here. Where so many do not agree, or do not answer soon, it is ordered.
//!
//! Why that is strictly serializable is in `multicast/queries.rs` and in the book.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use machine::{Outbox, Time};
use mutants::{Mutant, broken};
use types::codec::Decode as _;
use types::{Cluster, Party, ReplicaId, ShardId, TransactionId};

use crate::limits::UNDER_WAY_MAX;
use crate::multicast::message::{Message, QUESTION_BYTES_MAX};
use crate::multicast::quorum::Quorum;
use crate::operation::Found;
use crate::request::{Answer, Verdict};
use crate::transaction::Transaction;

/// How long to wait for answers before what is read is ordered, in milliseconds.
const WAIT_MS: u64 = 100;
/// For how long everything is ordered at a shard that did not answer in time, in milliseconds. When it does not answer after that either, it is twice
/// as long each time, so that a shard with one replica that is down and one that is slow costs its readers less and less.
const PAUSE_MS: u64 = 1_000;
/// The longest such time.
const PAUSE_MS_MAX: u64 = 32_000;

/// The questions of one process that are under way, each with what its caller keeps of it.
#[derive(Debug)]
pub(crate) struct Queries<T> {
    cluster: Arc<Cluster>,
    quorum: Quorum,
    last_number: u64,
    under_way: BTreeMap<u64, UnderWay<T>>,
    deadlines: VecDeque<(Time, u64)>,
    /// The shards that did not answer in time when they were asked last.
    paused: BTreeMap<ShardId, Pause>,
}

/// A time in which nothing is asked in one step.
#[derive(Debug)]
struct Pause {
    until: Time,
    length_ms: u64,
}

#[derive(Debug)]
struct UnderWay<T> {
    shard: ShardId,
    id: TransactionId,
    caller: T,
    answers: BTreeMap<u16, Option<Bytes>>,
}

/// What came of a question.
#[derive(Debug, PartialEq)]
pub(crate) enum Came<T> {
    /// `2f+1` have found this.
    Found(T, TransactionId, Vec<Found>),
    /// It has to be ordered.
    Order(T),
}

impl<T> Queries<T> {
    pub fn new(cluster: Arc<Cluster>, quorum: Quorum) -> Self {
        Self { cluster, quorum, last_number: 0, under_way: BTreeMap::new(), deadlines: VecDeque::new(), paused: BTreeMap::new() }
    }

    /// Whether a shard is to be asked now.
    pub fn may_ask(&self, now: Time, shard: ShardId) -> bool {
        self.under_way.len() < UNDER_WAY_MAX && self.paused.get(&shard).is_none_or(|pause| pause.until <= now)
    }

    /// Asks the replicas of `shard`; gives back what its caller keeps when the question is too long.
    pub fn ask<U, E>(
        &mut self,
        now: Time,
        (shard, transaction): (ShardId, &Transaction),
        caller: T,
        outbox: &mut Outbox<Message, U, E>,
    ) -> Result<(), T> {
        let question = transaction.encoded().clone();
        if question.len() > QUESTION_BYTES_MAX {
            return Err(caller);
        }
        self.last_number += 1;
        let number = self.last_number;
        for replica in self.cluster.replicas_of(shard) {
            outbox.send(Party::Replica(replica), Message::Query { number, question: question.clone() });
        }
        self.under_way.insert(number, UnderWay { shard, id: transaction.id(), caller, answers: BTreeMap::new() });
        self.deadlines.push_back((now.after_ms(WAIT_MS), number));
        Ok(())
    }

    /// A replica has answered. What came of the question, if that is known now.
    pub fn on_answer(&mut self, from: ReplicaId, number: u64, answer: Option<Bytes>) -> Option<Came<T>> {
        let query = self.under_way.get_mut(&number).filter(|query| query.shard == from.shard)?;
        query.answers.entry(from.index).or_insert(answer);
        let count = |answer: &Bytes| query.answers.values().flatten().filter(|other| *other == answer).count();
        let most = query.answers.values().flatten().map(|answer| (count(answer), answer)).max_by_key(|(count, _)| *count);
        let needed = if broken(Mutant::QueryQuorum) { self.quorum.weak() } else { self.quorum.strong() };
        let missing = self.quorum.all() - query.answers.len();
        let agreed = most.filter(|(count, _)| *count >= needed).map(|(_, answer)| answer.clone());
        if agreed.is_none() && most.map_or(0, |(count, _)| count) + missing >= needed {
            return None;
        }
        let UnderWay { id, caller, shard, .. } = self.under_way.remove(&number)?;
        if agreed.is_some() {
            self.paused.remove(&shard);
        }
        while self.deadlines.front().is_some_and(|(_, number)| !self.under_way.contains_key(number)) {
            self.deadlines.pop_front();
        }
        match agreed.map(|answer| Answer::from_bytes(answer, self.cluster.id())) {
            Some(Ok(Answer::Voted(of, Verdict::Commit(Some(found))))) if of == id => Some(Came::Found(caller, id, found)),
            _ => Some(Came::Order(caller)),
        }
    }

    /// What was not answered in time has to be ordered.
    pub fn on_tick(&mut self, now: Time) -> Vec<T> {
        let mut late = Vec::new();
        while self.deadlines.front().is_some_and(|(at, _)| *at <= now)
            && let Some((_, number)) = self.deadlines.pop_front()
        {
            if let Some(UnderWay { shard, caller, .. }) = self.under_way.remove(&number) {
                self.pause(now, shard);
                late.push(caller);
            }
        }
        late
    }

    /// A shard has not answered. Several questions that it was asked at once are one failure.
    fn pause(&mut self, now: Time, shard: ShardId) {
        let before = self.paused.get(&shard);
        if before.is_some_and(|pause| now < pause.until.after_ms(WAIT_MS)) {
            return;
        }
        let length_ms = before.map_or(PAUSE_MS, |pause| (2 * pause.length_ms).min(PAUSE_MS_MAX));
        self.paused.insert(shard, Pause { until: now.after_ms(length_ms), length_ms });
    }

    pub fn deadline(&self) -> Option<Time> {
        self.deadlines.front().map(|(at, _)| *at)
    }
}

#[cfg(test)]
mod tests {
    use crypto::SecretKey;
    use types::codec::Encode as _;
    use types::{ClientId, ClusterId, Key, Permission, Placement};

    use super::*;
    use crate::operation::Operation;
    use crate::transaction::Name;

    const CLUSTER: ClusterId = ClusterId::new([7; 16]);

    fn transaction() -> Transaction {
        let name = Name { client: ClientId(1), session: 1, number: 1 };
        Transaction::new(CLUSTER, name, vec![Operation::Read(Key::from("a"))]).expect("it is small")
    }

    fn ask(queries: &mut Queries<&'static str>, now: Time) {
        let mut outbox = Outbox::<Message, (), ()>::default();
        queries.ask(now, (ShardId(0), &transaction()), "caller", &mut outbox).expect("it is small");
        assert_eq!(outbox.sends.len(), 4);
    }

    fn asked() -> (Queries<&'static str>, TransactionId) {
        let keys = vec![(0..4).map(|index| SecretKey::from_bytes([index + 1; 32]).public()).collect()];
        let client = (ClientId(1), Permission { public_key: SecretKey::from_bytes([99; 32]).public(), ..Permission::default() });
        let cluster = Arc::new(Cluster::new(CLUSTER, 1, Placement::Hash, keys, vec![client]).expect("its parts fit"));
        let mut queries = Queries::new(cluster.clone(), Quorum::of(&cluster).expect("it has 3f+1 replicas"));
        assert!(queries.may_ask(Time(0), ShardId(0)));
        ask(&mut queries, Time(0));
        (queries, transaction().id())
    }

    fn found(id: TransactionId) -> Option<Bytes> {
        Some(Answer::Voted(id, Verdict::Commit(Some(vec![Found::Value(None)]))).to_bytes().into())
    }

    fn replica(shard: u16, index: u16) -> ReplicaId {
        ReplicaId { shard: ShardId(shard), index }
    }

    #[test]
    fn f_plus_1_equal_answers_are_not_enough_and_nobody_answers_twice() {
        let (mut queries, id) = asked();
        for (shard, index) in [(0, 0), (0, 0), (1, 2), (0, 1), (0, 1)] {
            assert_eq!(queries.on_answer(replica(shard, index), 1, found(id)), None);
        }
        assert_eq!(queries.on_answer(replica(0, 3), 1, found(id)), Some(Came::Found("caller", id, vec![Found::Value(None)])));
        assert_eq!(queries.on_answer(replica(0, 2), 1, found(id)), None);
        assert!(queries.deadline().is_none() && queries.under_way.is_empty());
    }

    #[test]
    fn what_too_few_say_alike_is_ordered_at_once_and_what_nobody_says_in_time() {
        let (mut queries, id) = asked();
        assert_eq!(queries.on_answer(replica(0, 0), 1, found(id)), None);
        assert_eq!(queries.on_answer(replica(0, 1), 1, None), None);
        assert_eq!(queries.on_answer(replica(0, 2), 1, Some(Bytes::from_static(b"other"))), Some(Came::Order("caller")));
        let (mut queries, id) = asked();
        assert_eq!(queries.on_answer(replica(0, 0), 1, found(id)), None);
        assert_eq!(queries.on_tick(Time(0).after_ms(WAIT_MS)), ["caller"]);
        assert!(!queries.may_ask(Time(0).after_ms(WAIT_MS), ShardId(0)) && queries.may_ask(Time(0).after_ms(2_000), ShardId(0)));
    }

    #[test]
    fn a_shard_that_never_answers_is_asked_less_and_less_until_it_does() {
        let (mut queries, id) = asked();
        ask(&mut queries, Time(0));
        let mut now = Time(0);
        for (number, length_ms) in [(1, 1_000), (2, 2_000), (3, 4_000), (4, 8_000), (5, 16_000), (6, 32_000), (7, 32_000)] {
            let late = now.after_ms(WAIT_MS);
            assert_eq!(queries.on_tick(late).len(), if number == 1 { 2 } else { 1 }, "two at once are one failure");
            let next = late.after_ms(length_ms);
            assert!(!queries.may_ask(late.after_ms(length_ms - 1), ShardId(0)) && queries.may_ask(next, ShardId(0)), "{length_ms}");
            ask(&mut queries, next);
            now = next;
        }
        for index in 0..3 {
            queries.on_answer(replica(0, index), queries.last_number, found(id));
        }
        ask(&mut queries, now);
        assert_eq!(queries.on_tick(now.after_ms(WAIT_MS)).len(), 1);
        assert!(queries.may_ask(now.after_ms(WAIT_MS + PAUSE_MS), ShardId(0)), "it has answered meanwhile");
    }
}
