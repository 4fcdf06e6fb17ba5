//! The contract between a protocol participant and the world around it.
//!
//! A participant is a [`Machine`]: state and timers, with no I/O, no clock, no threads and no randomness of its
//! own. Whoever runs it (the node loop in `runtime`, the world in the simulator) hands it one input at a time
//! and carries away what it said. Given the same inputs at the same times, it says the same things.
//!
//! **The law: nothing a step says leaves the node before everything written up to then is durable.** A machine
//! writes to its store while it steps. [`turn`] steps it through all that has arrived, makes one durable write, signs
//! all [`Outbox::unsigned`], and only then gives out what was said. It is the one place where the law is kept, and every
//! driver uses it. What nobody hears of may become durable a little later.
//!
//! ```
//! use machine::{Input, InputOf, Machine, OutboxOf, Time};
//!
//! /// Answers every number with its double.
//! struct Doubler;
//! impl Machine for Doubler {
//!     type Command = ();
//!     type Received = u32;
//!     type Message = u32;
//!     type Unsigned = std::convert::Infallible;
//!     type Event = ();
//!     fn step(&mut self, _now: Time, input: InputOf<Self>, outbox: &mut OutboxOf<Self>) {
//!         if let Input::Message { from, message } = input {
//!             outbox.send(from, message * 2);
//!         }
//!     }
//!     fn deadline(&self) -> Option<Time> {
//!         None
//!     }
//! }
//! ```

mod even_clock;
mod timers;
pub mod turn;
mod voters;

pub use even_clock::EvenClock;
pub use timers::Timers;
use types::Party;
pub use voters::Voters;

/// An instant: nanoseconds since the Unix epoch by the node's own clock. The shell keeps it from running backwards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub u64);

impl Time {
    /// The instant `milliseconds` later.
    #[must_use]
    pub const fn after_ms(self, milliseconds: u64) -> Self {
        Self(self.0.saturating_add(milliseconds.saturating_mul(1_000_000)))
    }

    /// The instant `microseconds` later.
    #[must_use]
    pub const fn after_us(self, microseconds: u64) -> Self {
        Self(self.0.saturating_add(microseconds.saturating_mul(1_000)))
    }

    /// How many nanoseconds `earlier` lies before this instant; 0 when it does not.
    #[must_use]
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// A protocol participant. See the crate's page for what it may not do.
pub trait Machine: Sized {
    /// What its own side asks of it.
    type Command;
    /// What it hears from others: a message whose every signature has been checked.
    type Received;
    /// What it says to others.
    type Message;
    /// What it says under its signature: a statement not signed yet, which the shell signs to make a message of it.
    type Unsigned;
    /// What it tells its own side.
    type Event;

    /// Takes one input; writes to its store, and says things into `outbox`.
    fn step(&mut self, now: Time, input: InputOf<Self>, outbox: &mut OutboxOf<Self>);

    /// These messages of `from` are likely to come next, in this order: reads the memory that taking them in will need, for all of them together, so that
    /// the CPU waits for much of it at a time, and may have the disk read. It has no other effect, and a driver need not call it. Most machines need little
    /// memory.
    fn prefetch(&self, _now: Time, _from: Party, _next: &[Self::Received]) {}

    /// A turn has taken all its inputs: writes and says what is better done once for all of them. Most have nothing to add.
    fn end_turn(&mut self, now: Time, outbox: &mut OutboxOf<Self>) {
        let _ = (now, outbox);
    }

    /// This turn is its last, as it stops in good order: says what others would otherwise have to find out. Most have nothing to say. Who says something to
    /// itself then, as by signing, has one more turn for that, and leaves again.
    fn leave(&mut self, now: Time, outbox: &mut OutboxOf<Self>) {
        let _ = (now, outbox);
    }

    /// When it next wants an [`Input::Tick`], if nothing else happens.
    fn deadline(&self) -> Option<Time>;

    /// What it answers to a message of `from` instead of taking it in, where for some time there has been more to do than time: come again
    /// after so long. Nothing for what has to be taken in, such as what goes on with what has begun.
    fn refuse(&mut self, _from: Party, _message: &Self::Received, _after_ms: u32) -> Option<Self::Message> {
        None
    }

    /// Takes out one request that came before its time, was kept, and is due now: gives who sent it. Whoever runs the machine then calls
    /// [`Machine::serve_kept`] for that party once, now or later; until it does, [`Machine::deadline`] does not count the request any more.
    fn take_due(&mut self, _now: Time) -> Option<Party> {
        None
    }

    /// Serves the first request of `from` that was taken out as due and is not served yet. There may be none, as where it was dropped
    /// meanwhile.
    fn serve_kept(&mut self, _now: Time, _from: Party, _outbox: &mut OutboxOf<Self>) {}
}

/// A machine that can make durable what it wrote: the law rests on it.
pub trait Durable: Machine {
    /// Why it could not.
    type Failure: std::error::Error + Send + Sync + 'static;

    /// Makes everything written up to now durable. Called before anything a turn said is sent, also when the turn wrote
    /// nothing: that should cost nothing. A machine without a store returns `Ok` at once.
    ///
    /// # Errors
    /// When it cannot be said whether everything is durable. That is the end of the node.
    fn persist(&mut self) -> Result<(), Self::Failure>;
}

/// What a machine takes in.
pub type InputOf<M> = Input<<M as Machine>::Command, <M as Machine>::Received>;

/// One thing that happened.
#[derive(Debug)]
pub enum Input<Command, Received> {
    /// Its own side asks for something.
    Command(Command),
    /// Another participant said something; the channel proved who.
    Message {
        /// Who said it.
        from: Party,
        /// What they said.
        message: Received,
    },
    /// [`Machine::deadline`] has passed. What was kept and is due is served apart from this, by [`Machine::serve_kept`].
    Tick,
}

/// What a machine says.
pub type OutboxOf<M> = Outbox<<M as Machine>::Message, <M as Machine>::Unsigned, <M as Machine>::Event>;

/// What was said in one or more steps, and is not sent yet.
#[derive(Debug)]
pub struct Outbox<Message, Unsigned, Event> {
    /// Messages that need no signature: the channel proves who says them.
    pub sends: Vec<(Party, Message)>,
    /// Statements to be signed together, then sent.
    pub unsigned: Vec<(Party, Unsigned)>,
    /// For the machine's own side.
    pub events: Vec<Event>,
    /// How many of these say nothing that has to be durable first.
    silent_events: usize,
    /// How many messages of `sends` were said before each of `unsigned`.
    sent_before: Vec<usize>,
    /// How many bytes of values the answers among `sends` carry: [`turn`] takes no more inputs when they are many.
    pub bytes: usize,
    /// Whether what the step did is due to all, as executing what was ordered is: nobody is charged for it, whoever sent the message on which it
    /// was done.
    pub is_for_all: bool,
}

impl<Message, Unsigned, Event> Default for Outbox<Message, Unsigned, Event> {
    fn default() -> Self {
        let (sends, unsigned, events, sent_before) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Self { sends, unsigned, events, silent_events: 0, sent_before, bytes: 0, is_for_all: false }
    }
}

impl<Message, Unsigned, Event> Outbox<Message, Unsigned, Event> {
    /// Whether nothing was said, but for what [may be said early](Outbox::emit_silently).
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.sends.is_empty() && self.unsigned.is_empty() && self.events.len() == self.silent_events
    }

    /// Says `message` to `to`.
    pub fn send(&mut self, to: Party, message: Message) {
        self.sends.push((to, message));
    }

    /// Says `message` to `to`. It carries about so many `bytes`, and whoever asked for it sent far fewer.
    pub fn send_large(&mut self, to: Party, message: Message, bytes: usize) {
        self.bytes = self.bytes.saturating_add(bytes);
        self.send(to, message);
    }

    /// Says `statement` to `to`, under a signature.
    pub fn sign(&mut self, to: Party, statement: Unsigned) {
        self.unsigned.push((to, statement));
        self.sent_before.push(self.sends.len());
    }

    /// Tells the machine's own side.
    pub fn emit(&mut self, event: Event) {
        self.events.push(event);
    }

    /// Tells the machine's own side something that it may hear before what the turn wrote is durable, and even if that is lost: a turn that
    /// says nothing else is silent.
    pub fn emit_silently(&mut self, event: Event) {
        self.events.push(event);
        self.silent_events += 1;
    }

    /// Lends this outbox to a machine inside the one that speaks here. What the inner machine sends is sent; its events,
    /// which are of another type, are given back. Nothing is copied.
    pub fn lend<Inner>(&mut self, speak: impl FnOnce(&mut Outbox<Message, Unsigned, Inner>)) -> Vec<Inner> {
        let Self { sends, unsigned, events, silent_events, sent_before, bytes, is_for_all } = std::mem::take(self);
        let mut lent = Outbox { sends, unsigned, events: Vec::new(), silent_events: 0, sent_before, bytes, is_for_all };
        speak(&mut lent);
        let Outbox { sends, unsigned, events: given_back, sent_before, bytes, is_for_all, .. } = lent;
        *self = Self { sends, unsigned, events, silent_events, sent_before, bytes, is_for_all };
        given_back
    }
}
