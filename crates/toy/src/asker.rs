//! The client.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;

use crypto::Verified;
use machine::{Durable, Input, InputOf, Machine, OutboxOf, Time};
use types::{Cluster, Party, ReplicaId, ShardId};

use crate::message::{Doubled, Message};

/// How long a client waits for enough answers before it asks again those that have not answered, in milliseconds.
pub const RETRY_MS: u64 = 100;

/// Asks the replicas of one shard for a double, one number at a time, and believes what `f + 1` of them say.
#[derive(Debug)]
pub struct Asker {
    cluster: Arc<Cluster>,
    shard: ShardId,
    asked: Option<Asked>,
}

/// The number a client waits for.
#[derive(Debug)]
struct Asked {
    number: u64,
    /// The first answer of each replica.
    answers: BTreeMap<ReplicaId, u64>,
    retry_at: Time,
}

/// What a client tells its own side: `f + 1` replicas say that this is the number's double.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answered {
    /// What was asked.
    pub number: u64,
    /// Its double.
    pub double: u64,
}

impl Asker {
    /// A client of one shard of `cluster`.
    #[must_use]
    pub fn new(cluster: Arc<Cluster>, shard: ShardId) -> Self {
        Self { cluster, shard, asked: None }
    }

    fn ask(&mut self, now: Time, outbox: &mut OutboxOf<Self>) {
        let Some(asked) = &mut self.asked else { return };
        asked.retry_at = now.after_ms(RETRY_MS);
        for replica in self.cluster.replicas_of(self.shard).filter(|replica| !asked.answers.contains_key(replica)) {
            outbox.send(Party::Replica(replica), Message::Ask(asked.number));
        }
    }

    fn on_answer(&mut self, from: Party, doubled: Doubled, outbox: &mut OutboxOf<Self>) {
        let Doubled { signer, number, double, .. } = doubled;
        let Some(asked) = self.asked.as_mut().filter(|asked| asked.number == number) else { return };
        if signer.shard != self.shard || from != Party::Replica(signer) {
            return;
        }
        asked.answers.entry(signer).or_insert(double);
        let agreeing = asked.answers.values().filter(|other| **other == double).count();
        if agreeing > self.cluster.faults() {
            self.asked = None;
            outbox.emit(Answered { number, double });
        }
    }
}

impl Machine for Asker {
    /// The number to double. It takes the place of the one before.
    type Command = u64;
    type Received = Verified<Message>;
    type Message = Message;
    type Unsigned = Infallible;
    type Event = Answered;

    fn step(&mut self, now: Time, input: InputOf<Self>, outbox: &mut OutboxOf<Self>) {
        match input {
            Input::Command(number) => {
                self.asked = Some(Asked { number, answers: BTreeMap::new(), retry_at: now });
                self.ask(now, outbox);
            }
            Input::Message { from, message } => {
                if let Message::Answer(doubled, _) = &*message {
                    self.on_answer(from, *doubled, outbox);
                }
            }
            Input::Tick if self.deadline().is_some_and(|deadline| deadline <= now) => self.ask(now, outbox),
            Input::Tick => {}
        }
    }

    fn deadline(&self) -> Option<Time> {
        self.asked.as_ref().map(|asked| asked.retry_at)
    }
}

impl Durable for Asker {
    type Failure = Infallible;

    fn persist(&mut self) -> Result<(), Infallible> {
        Ok(())
    }
}
