//! A client that cheats in a coordinator's place, so that a client's session can run around it.

use std::convert::Infallible;

use basil::session::Driver as Drives;
use basil::{Command, Coordinator, Event, Failure, Message};
use crypto::Verified;
use engine::Statistics;
use machine::{InputOf, Machine, OutboxOf, Time};

use crate::{ByzantineClient, ByzantineEvent, MisbehaviorCounts};

/// A client that cheats, and says what a coordinator would say.
#[derive(Debug)]
pub struct Driver(pub ByzantineClient);

impl Machine for Driver {
    type Command = Command;
    type Received = Verified<Message>;
    type Message = Message;
    type Unsigned = Infallible;
    type Event = Event;

    fn step(&mut self, now: Time, input: InputOf<Self>, outbox: &mut OutboxOf<Self>) {
        let events = outbox.lend(|outbox| self.0.step(now, input, outbox));
        outbox.events.extend(events.into_iter().map(|event| match event {
            ByzantineEvent::Honest(event) => event,
            // What a client knows of what it left: nothing.
            ByzantineEvent::Abandoned { operation, .. } => Event::Ended { operation, result: Err(Failure::TimedOut(None)) },
        }));
    }

    fn deadline(&self) -> Option<Time> {
        self.0.deadline()
    }
}

impl Drives for Driver {
    fn coordinator(&self) -> &Coordinator {
        self.0.coordinator()
    }

    fn more_statistics(&self, out: &mut Statistics) {
        let counts = self.0.counts();
        for (name, help, count) in FIELDS {
            out.counter(name, help, *count(&mut counts.clone()));
        }
    }
}

type Field = (&'static str, &'static str, fn(&mut MisbehaviorCounts) -> &mut u64);

/// What is counted, under its name among a session's statistics.
const FIELDS: [Field; 6] = [
    ("cheat_honest", "Transactions it ended as an honest client does", |counts| &mut counts.honest),
    ("cheat_stalled", "Transactions it left with votes asked for", |counts| &mut counts.stalled),
    ("cheat_untold_commits", "Transactions it left decided to commit, without telling", |counts| &mut counts.hidden_commits),
    ("cheat_untold_aborts", "Transactions it left decided to abort, without telling", |counts| &mut counts.hidden_aborts),
    ("cheat_equivocated", "Transactions it logged both ends of", |counts| &mut counts.equivocated),
    ("cheat_spared", "Transactions it would have equivocated about, had the votes let it", |counts| &mut counts.spared),
];

impl MisbehaviorCounts {
    /// What a session around a [`Driver`] has counted.
    #[must_use]
    pub fn from_statistics(statistics: &Statistics) -> Self {
        let mut counts = Self::default();
        for (name, _, count) in FIELDS {
            *count(&mut counts) = statistics.get(name);
        }
        counts
    }
}
