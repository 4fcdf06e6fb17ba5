//! The replica.

use crypto::Verified;
use machine::{Durable, Input, InputOf, Machine, OutboxOf, Time};
use store::{Memory, Options, Store, StoreError};
use types::{Party, ReplicaId};

use crate::message::{Doubled, Message};

/// The most bytes a replica sends to whoever asks for bytes.
const FILL_BYTES_MAX: u32 = 1 << 20;

/// After so many answers a replica says unasked how many it has given.
pub const MILESTONE_ANSWERS: u64 = 1_000;

/// What is wrong with a replica, for tests of those who should notice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Flaw {
    /// Nothing.
    #[default]
    None,
    /// It writes an answer's number down one answer late, so that it says what is not durable.
    WritesLate,
    /// It does not read what an earlier process wrote.
    Forgets,
    /// It never answers numbers that three divides.
    IgnoresSome,
}

/// Answers numbers with their doubles. Every answer has a number of its own, which is durable before anybody hears it.
pub struct Doubler {
    me: ReplicaId,
    store: Store<Memory>,
    answered: u64,
    flaw: Flaw,
}

/// What a doubler's own side asks of it: to ask another replica for a double.
#[derive(Debug)]
pub struct AskPeer(pub ReplicaId, pub u64);

impl Doubler {
    /// A replica on an empty medium.
    ///
    /// # Panics
    /// Never: an empty medium in memory can be opened.
    #[must_use]
    pub fn new(me: ReplicaId) -> Self {
        Self::open(me, &Memory::new(&me.to_string()), Options::default(), Flaw::None).expect("an empty medium can be opened")
    }

    /// A replica that goes on from what `medium` holds.
    ///
    /// # Errors
    /// When the medium is damaged.
    pub fn open(me: ReplicaId, medium: &Memory, options: Options, flaw: Flaw) -> Result<Self, StoreError> {
        let mut store = Store::open(medium.clone(), options)?;
        let mut answered = 0;
        while let Some(batch) = store.replay()? {
            for record in batch.records.iter().filter(|_| flaw != Flaw::Forgets) {
                let number = record[..].try_into().map(u64::from_le_bytes);
                answered = answered.max(number.expect("the store returns the records that were appended"));
            }
        }
        Ok(Self { me, store, answered, flaw })
    }

    /// Which replica it is.
    #[must_use]
    pub fn id(&self) -> ReplicaId {
        self.me
    }

    /// How many answers it has given, in all its processes.
    #[must_use]
    pub fn answered(&self) -> u64 {
        self.answered
    }

    /// Whether something it wrote is not durable yet.
    #[must_use]
    pub fn is_pending(&self) -> bool {
        self.store.is_pending()
    }

    /// Stops it in good order.
    ///
    /// # Errors
    /// When what it wrote cannot be made durable.
    pub fn close(&mut self) -> Result<(), StoreError> {
        self.store.close()
    }

    fn on_ask(&mut self, from: Party, number: u64, outbox: &mut OutboxOf<Self>) {
        if self.flaw == Flaw::IgnoresSome && number.is_multiple_of(3) {
            return;
        }
        let written = if self.flaw == Flaw::WritesLate { self.answered } else { self.answered + 1 };
        self.answered += 1;
        self.store.append(&written.to_le_bytes());
        if self.answered.is_multiple_of(MILESTONE_ANSWERS) {
            outbox.send(from, Message::Milestone(self.answered));
        }
        outbox.sign(from, Doubled { signer: self.me, number, double: number.wrapping_mul(2), count: self.answered });
    }
}

impl Machine for Doubler {
    type Command = AskPeer;
    type Received = Verified<Message>;
    type Message = Message;
    type Unsigned = Doubled;
    type Event = Doubled;

    fn step(&mut self, _now: Time, input: InputOf<Self>, outbox: &mut OutboxOf<Self>) {
        match input {
            Input::Command(AskPeer(peer, number)) => outbox.send(Party::Replica(peer), Message::Ask(number)),
            Input::Message { from, message } => match message.into_inner() {
                Message::Ask(number) => self.on_ask(from, number, outbox),
                Message::Fill(bytes) => {
                    let bytes = bytes.min(FILL_BYTES_MAX) as usize;
                    outbox.send_large(from, Message::Filling(vec![0; bytes]), bytes);
                }
                Message::Answer(doubled, _) => outbox.emit(doubled),
                Message::Filling(_) | Message::Milestone(_) => {}
            },
            Input::Tick => {}
        }
    }

    fn deadline(&self) -> Option<Time> {
        None
    }
}

impl Durable for Doubler {
    type Failure = StoreError;

    fn persist(&mut self) -> Result<(), StoreError> {
        self.store.sync()
    }
}
