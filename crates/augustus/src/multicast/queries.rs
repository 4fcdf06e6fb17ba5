//! Questions that are answered from the state as it is, without being ordered.
//!
//! **The rule.** A replica answers only when it has delivered every list that it had prepared, or knew to be decided, when the question came. What any honest
//! replica has delivered before that, `f+1` honest ones have prepared; so one of any `f+1` honest ones that answer has delivered it, too.
//! Who believes `2f+1` equal answers, and no fewer, believes one that is as new as all that anybody was told before. The whole
//! argument is in the book, in *Augustus as built*.

use std::collections::BTreeMap;

use bytes::Bytes;
use machine::OutboxOf;
use machine::turn::ANSWER_BYTES_MAX;
use mutants::{Mutant, broken};
use types::{ClientId, Party};

use super::application::Application;
use super::message::{Message, QUESTION_BYTES_MAX};
use super::replica::Replica;

/// How many questions of one client wait for lists to be delivered.
const CLIENT_QUESTIONS_MAX: usize = 256;
/// How many questions wait in all.
const QUESTIONS_MAX: usize = 4_096;
/// How many of those that waited are answered in one turn; the next ones in the next. What is delivered meanwhile makes their answers newer.
const ANSWERED_A_TURN_MAX: usize = 256;

/// Questions that wait.
#[derive(Debug, Default)]
pub(super) struct Queries {
    /// By the list that has to be delivered first, and then in their order.
    waiting: BTreeMap<(u64, u64), Query>,
    by_client: BTreeMap<ClientId, usize>,
    last_ticket: u64,
    /// How many that waited were answered in this turn.
    answered: usize,
}

/// A question.
#[derive(Debug)]
struct Query {
    from: Party,
    client: ClientId,
    number: u64,
    question: Bytes,
}

impl Queries {
    /// Keeps a question until the list `sequence` is delivered; gives it back when there is no room.
    fn hold(&mut self, sequence: u64, query: Query) -> Result<(), Query> {
        let of_client = self.by_client.entry(query.client).or_default();
        if *of_client >= CLIENT_QUESTIONS_MAX || self.waiting.len() >= QUESTIONS_MAX {
            return Err(query);
        }
        *of_client += 1;
        self.last_ticket += 1;
        // As it came it is a part of its frame, and would keep all of that.
        let question = Bytes::copy_from_slice(&query.question);
        self.waiting.insert((sequence, self.last_ticket), Query { question, ..query });
        Ok(())
    }

    /// Another turn begins.
    pub(super) fn end_turn(&mut self) {
        self.answered = 0;
    }

    /// Whether a question waits for nothing but its turn.
    pub(super) fn is_ready(&self, delivered: u64) -> bool {
        self.waiting.first_key_value().is_some_and(|((sequence, _), _)| *sequence <= delivered)
    }

    /// The next question that waits for nothing that is not delivered.
    fn next(&mut self, delivered: u64) -> Option<Query> {
        let first = self.waiting.first_entry().filter(|entry| entry.key().0 <= delivered)?;
        let query = first.remove();
        let of_client = self.by_client.get_mut(&query.client).expect("each that waits is counted");
        *of_client -= 1;
        if *of_client == 0 {
            self.by_client.remove(&query.client);
        }
        Some(query)
    }
}

impl<A: Application> Replica<A> {
    /// A client asks something that need not be ordered.
    pub(super) fn on_query(&mut self, from: Party, number: u64, question: Bytes, outbox: &mut OutboxOf<Self>) {
        let Party::Client(client, _) = from else { return };
        if self.cluster.permission(client).is_none() || question.len() > QUESTION_BYTES_MAX {
            return;
        }
        let query = Query { from, client, number, question };
        let needed = self.prepared_to();
        if needed <= self.delivered {
            self.answer_query(&query, outbox);
        } else if let Err(query) = self.queries.hold(needed, query) {
            outbox.send(query.from, Message::QueryReply { number, answer: None });
        }
    }

    /// The last list that this replica has prepared or knows to be decided, or whose state it has heard of.
    fn prepared_to(&self) -> u64 {
        if broken(Mutant::QueryUnprepared) {
            return 0;
        }
        let mut above = self.slots.range(self.delivered + 1..).rev();
        let last = above.find(|(_, slot)| slot.prepared.is_some() || slot.is_committed).map_or(0, |(sequence, _)| *sequence);
        last.max(self.stable_sequence())
    }

    /// Answers what waited for lists that are delivered now, as far as one turn has room for work and for answers.
    pub(super) fn answer_queries(&mut self, outbox: &mut OutboxOf<Self>) {
        while (self.queries.answered < ANSWERED_A_TURN_MAX && outbox.bytes < ANSWER_BYTES_MAX || broken(Mutant::AnswersUnlimited))
            && let Some(query) = self.queries.next(self.delivered)
        {
            self.queries.answered += 1;
            self.answer_query(&query, outbox);
        }
    }

    /// One that has lost its disk does not know what it has prepared, and one whose state is wrong knows nothing.
    fn answer_query(&mut self, query: &Query, outbox: &mut OutboxOf<Self>) {
        let is_able = (!self.is_rebuilding() || broken(Mutant::LostAnswers)) && !self.has_diverged;
        let answer = if is_able { self.application.query(query.client, &query.question) } else { None };
        let bytes = answer.as_ref().map_or(0, Bytes::len);
        outbox.send_large(query.from, Message::QueryReply { number: query.number, answer }, bytes);
    }
}

#[cfg(test)]
mod tests {
    use types::Session;

    use super::*;

    #[test]
    fn a_client_has_room_for_its_own_questions_and_waits_for_its_own_lists() {
        let query = |client: u64, number: u64| Query {
            from: Party::Client(ClientId(client), Session(1)),
            client: ClientId(client),
            number,
            question: Bytes::new(),
        };
        let mut queries = Queries::default();
        for number in 0..CLIENT_QUESTIONS_MAX as u64 {
            assert!(queries.hold(7, query(1, number)).is_ok());
        }
        assert!(queries.hold(7, query(1, 1_000)).is_err());
        assert!(queries.hold(5, query(2, 1)).is_ok(), "what others ask takes nobody's room");
        assert!(queries.next(4).is_none());
        assert_eq!(queries.next(5).map(|query| query.client), Some(ClientId(2)));
        assert!(queries.next(6).is_none());
        let numbers: Vec<u64> = std::iter::from_fn(|| queries.next(7)).map(|query| query.number).collect();
        assert_eq!(numbers, (0..CLIENT_QUESTIONS_MAX as u64).collect::<Vec<_>>());
        assert!(queries.waiting.is_empty() && queries.by_client.is_empty());
    }
}
