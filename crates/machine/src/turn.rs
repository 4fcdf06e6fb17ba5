//! One turn of a machine, and the only place where the law is kept: **nothing that a step says leaves the node before
//! everything written up to then is durable.**
//!
//! ```text
//!   Turns::begin ──► Turn ──► Stepped ──► Written ──► Said
//!   a tick, if due   step,     persist     sign        send
//!                    step, …   (one write) (one root)
//!                    end_turn
//! ```
//!
//! A driver (the node loop in `runtime`, the servers for ZooKeeper's clients, the simulator, the capacity model, a test) gives a turn its
//! inputs and carries away what was said. Each phase is a type, and the messages can be had from [`Said`] only, so that a driver cannot send before
//! [`Stepped::persist`] has succeeded. A driver may stop between any two phases, as a crash does, and nothing was heard that
//! is not durable.
//!
//! Every driver has the same policy:
//!
//! * A turn begins with a tick, if the machine's deadline has passed, and takes at most [`Bounds::inputs_max`] inputs, and no more once
//!   their answers carry [`ANSWER_BYTES_MAX`] ([`Turn::room`]). Who never brings so many asserts that instead, where its limits stand.
//! * What the machine kept until its time is served along with the tick ([`Turns::begin`]). The node loop, where every member has a queue, puts it
//!   into the queue of whoever sent it instead ([`Turns::begin_unserved`]), so that nobody has work done beyond its share by asking ahead of time.
//! * All inputs of a turn share one durable write, and up to [`Bounds::batch_max`] of its statements share one signature.
//! * A turn that says nothing is *silent*. What it wrote may wait for the write of a later turn, for [`SYNC_WAIT_MS`] at most. A
//!   power cut may therefore lose the writes of several silent turns at once; nobody has heard of any of them.
//! * After a write that failed there are no more turns: nobody can say what of it is durable.
//! * What a machine says to itself ([`Said::own`]) is heard in a later turn, when it is durable. The driver of a machine that says nothing to
//!   itself asserts that.
//!
//! ```
//! # use std::convert::Infallible;
//! # use machine::{Durable, Input, InputOf, Machine, OutboxOf, Time};
//! # struct Doubler;
//! # impl Machine for Doubler {
//! #     type Command = ();
//! #     type Received = u32;
//! #     type Message = u32;
//! #     type Unsigned = Infallible;
//! #     type Event = ();
//! #     fn step(&mut self, _now: Time, input: InputOf<Self>, outbox: &mut OutboxOf<Self>) {
//! #         if let Input::Message { from, message } = input {
//! #             outbox.send(from, message * 2);
//! #         }
//! #     }
//! #     fn deadline(&self) -> Option<Time> {
//! #         None
//! #     }
//! # }
//! # impl Durable for Doubler {
//! #     type Failure = Infallible;
//! #     fn persist(&mut self) -> Result<(), Infallible> {
//! #         Ok(())
//! #     }
//! # }
//! # fn main() -> Result<(), Infallible> {
//! use machine::turn::{Bounds, NoSigner, Turns};
//! use types::{ClientId, Party, Session};
//!
//! let me = Party::Client(ClientId(1), Session(1));
//! let mut turns = Turns::new(Doubler, me, Bounds::default());
//! let mut turn = turns.begin(Time(0));
//! turn.step(Time(0), Input::Message { from: me, message: 21 });
//! let said = turn.stepped(Time(0)).persist()?.sign(&mut NoSigner);
//! assert_eq!(*said.own, [42]);
//! # Ok(())
//! # }
//! ```

use std::convert::Infallible;

use mutants::{Mutant, broken};
use types::Party;

use crate::{Durable, Input, InputOf, Machine, OutboxOf, Time};

/// How long what a silent turn wrote may wait to be made durable, in milliseconds by the node's own clock: in true time up to twice as
/// long while that clock is slewed, since it then runs at half its speed at worst.
pub const SYNC_WAIT_MS: u64 = 20;
/// The most inputs that one turn takes when nobody sets another bound.
pub const INPUTS_MAX: usize = 1_024;
/// The most statements under one signature: a deeper tree costs more bytes than it saves signatures.
pub const BATCH_MAX: usize = 64;
/// A turn whose answers carry so many bytes of values takes no more inputs. Requests are far smaller than their answers can be, so that
/// a turn of a thousand could otherwise fill the memory.
pub const ANSWER_BYTES_MAX: usize = 8 << 20;
/// The most kept requests that are served along with one tick; what else is due is served in the next turn.
pub const KEPT_SERVED_MAX: usize = 512;
/// Memory for so many messages is kept from one turn to the next.
const KEPT_MAX: usize = 4_096;

/// How large a turn may be. No bound is below 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// The most inputs of one turn; what else has arrived waits for the next.
    pub inputs_max: usize,
    /// The most statements under one signature, up to [`BATCH_MAX`].
    pub batch_max: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { inputs_max: INPUTS_MAX, batch_max: BATCH_MAX }
    }
}

/// What signs a machine's statements, many with one signature.
pub trait Signer<Unsigned, Message> {
    /// What goes with each statement of a batch.
    type Signature;

    /// Signs `batch` at once. Gives what goes with each statement, in their order.
    fn sign_batch(&mut self, batch: &[(Party, Unsigned)]) -> Vec<Self::Signature>;

    /// The message that `unsigned` becomes with its signature.
    fn with_signature(&mut self, unsigned: Unsigned, signature: Self::Signature) -> Message;
}

/// For a machine that signs nothing, such as a client's.
#[derive(Clone, Copy, Debug)]
pub struct NoSigner;

impl<Message> Signer<Infallible, Message> for NoSigner {
    type Signature = Infallible;

    fn sign_batch(&mut self, _batch: &[(Party, Infallible)]) -> Vec<Infallible> {
        Vec::new()
    }

    fn with_signature(&mut self, unsigned: Infallible, _signature: Infallible) -> Message {
        match unsigned {}
    }
}

/// A machine and its turns.
pub struct Turns<M: Machine> {
    machine: M,
    me: Party,
    bounds: Bounds,
    /// Its memory is used again in each turn.
    outbox: OutboxOf<M>,
    own: Vec<M::Message>,
    /// Since when something may have been written that is not durable yet.
    unsynced_since: Option<Time>,
    /// Whether a write has begun and has not succeeded.
    has_failed: bool,
}

impl<M: Machine> Turns<M> {
    /// Has `machine`, which others know as `me`, take its turns.
    #[must_use]
    pub fn new(machine: M, me: Party, bounds: Bounds) -> Self {
        let bounds = Bounds { inputs_max: bounds.inputs_max.max(1), batch_max: bounds.batch_max.clamp(1, BATCH_MAX) };
        Self { machine, me, bounds, outbox: OutboxOf::<M>::default(), own: Vec::new(), unsynced_since: None, has_failed: false }
    }

    /// The machine, to look at.
    #[must_use]
    pub fn machine(&self) -> &M {
        &self.machine
    }

    /// The machine between two turns, for whoever damages it on purpose. What that makes it say it says in its next turn.
    pub fn machine_mut(&mut self) -> &mut M {
        &mut self.machine
    }

    /// The machine, when there are no more turns.
    #[must_use]
    pub fn into_machine(self) -> M {
        self.machine
    }

    /// When it wants a turn, if nothing else happens: for a tick, or to make durable what silent turns wrote.
    #[must_use]
    pub fn wakes_at(&self) -> Option<Time> {
        let sync = self.unsynced_since.map(|since| since.after_ms(SYNC_WAIT_MS));
        [self.machine.deadline(), sync].into_iter().flatten().min()
    }

    /// Begins a turn: with a tick, if one is due. First what the machine kept and is due is served, up to [`KEPT_SERVED_MAX`] requests, and
    /// no more once the answers carry [`ANSWER_BYTES_MAX`]. All of it counts as one input with the tick.
    ///
    /// # Panics
    /// After a [`Stepped::persist`] that failed: a driver that goes on then has a bug.
    pub fn begin(&mut self, now: Time) -> Turn<'_, M> {
        let mut turn = self.begin_empty();
        if turn.is_tick_due(now) {
            for _ in 0..KEPT_SERVED_MAX {
                if turn.answer_bytes() >= ANSWER_BYTES_MAX {
                    break;
                }
                let Some(from) = turn.take_due(now) else { break };
                turn.serve_kept(now, from);
            }
            turn.inputs = 0;
            turn.step(now, Input::Tick);
        }
        turn
    }

    /// The same, but what the machine kept is not served. The driver takes out what is due ([`Turn::take_due`]), and has it served when it is the turn of
    /// whoever sent it ([`Turn::serve_kept`]).
    ///
    /// # Panics
    /// As [`Turns::begin`].
    pub fn begin_unserved(&mut self, now: Time) -> Turn<'_, M> {
        let mut turn = self.begin_empty();
        if turn.is_tick_due(now) {
            turn.step(now, Input::Tick);
        }
        turn
    }

    /// A turn that has taken nothing, not even a tick.
    fn begin_empty(&mut self) -> Turn<'_, M> {
        assert!(!self.has_failed, "after a write that failed there are no more turns");
        Turn { turns: self, inputs: 0 }
    }
}

/// A turn that takes inputs.
#[must_use = "what a turn wrote is to be made durable"]
pub struct Turn<'a, M: Machine> {
    turns: &'a mut Turns<M>,
    inputs: usize,
}

impl<'a, M: Machine> Turn<'a, M> {
    /// How many more inputs this turn takes.
    #[must_use]
    pub fn room(&self) -> usize {
        if self.turns.outbox.bytes >= ANSWER_BYTES_MAX { 0 } else { self.turns.bounds.inputs_max.saturating_sub(self.inputs) }
    }

    /// How many inputs it has taken, its tick among them.
    #[must_use]
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// How many messages and statements it has said so far.
    #[must_use]
    pub fn said(&self) -> usize {
        self.turns.outbox.sends.len() + self.turns.outbox.unsigned.len()
    }

    /// How many bytes of values its answers carry so far.
    #[must_use]
    pub fn answer_bytes(&self) -> usize {
        self.turns.outbox.bytes
    }

    /// Whether the last input made it do what is [due to all](crate::Outbox::is_for_all).
    #[must_use]
    pub fn was_for_all(&self) -> bool {
        self.turns.outbox.is_for_all
    }

    /// The machine, to look at between two steps.
    #[must_use]
    pub fn machine(&self) -> &M {
        &self.turns.machine
    }

    /// Takes one input.
    pub fn step(&mut self, now: Time, input: InputOf<M>) {
        self.note_input(now);
        self.turns.machine.step(now, input, &mut self.turns.outbox);
    }

    /// Takes out one request that the machine kept and is due now, and gives who sent it ([`Machine::take_due`]).
    pub fn take_due(&mut self, now: Time) -> Option<Party> {
        self.turns.machine.take_due(now)
    }

    /// Serves one that was taken out as due ([`Machine::serve_kept`]); it counts as an input.
    pub fn serve_kept(&mut self, now: Time, from: Party) {
        self.note_input(now);
        self.turns.machine.serve_kept(now, from, &mut self.turns.outbox);
    }

    fn is_tick_due(&self, now: Time) -> bool {
        self.turns.machine.deadline().is_some_and(|deadline| deadline <= now)
    }

    fn note_input(&mut self, now: Time) {
        self.inputs += 1;
        self.turns.outbox.is_for_all = false;
        // Here, so that what a turn wrote that never ends is not forgotten.
        self.turns.unsynced_since.get_or_insert(now);
    }

    /// Takes in a message, or refuses it if the machine can: there has been more to do than time.
    pub fn refuse_or_step(&mut self, now: Time, from: Party, message: M::Received, after_ms: u32) {
        match self.turns.machine.refuse(from, &message, after_ms) {
            Some(refusal) => {
                self.inputs += 1;
                self.turns.outbox.is_for_all = false;
                self.turns.outbox.send(from, refusal);
            }
            None => self.step(now, Input::Message { from, message }),
        }
    }

    /// Takes no more inputs.
    pub fn stepped(self, now: Time) -> Stepped<'a, M> {
        let mut stepped = self.ended(now);
        let turns = &stepped.turns;
        let is_overdue = turns.unsynced_since.is_some_and(|since| since.after_ms(SYNC_WAIT_MS) <= now);
        let speaks = !turns.outbox.is_empty() && !broken(Mutant::SaidBeforeDurable);
        stepped.writes = speaks || is_overdue;
        stepped
    }

    /// Takes no more inputs, and no turn will follow but for what the machine says to itself: nothing can wait for one, and it [leaves](Machine::leave).
    pub fn stepped_last(self, now: Time) -> Stepped<'a, M> {
        let mut stepped = self.ended(now);
        let Turns { machine, outbox, .. } = &mut *stepped.turns;
        machine.leave(now, outbox);
        stepped.writes = true;
        stepped
    }

    /// Lets the machine say what it says once for all inputs, if there were any.
    fn ended(self, now: Time) -> Stepped<'a, M> {
        let Self { turns, inputs } = self;
        if inputs > 0 {
            turns.machine.end_turn(now, &mut turns.outbox);
        }
        Stepped { turns, inputs, writes: false }
    }
}

/// A turn that has taken its inputs. Nothing of it is durable yet, and nobody may hear of it.
#[must_use = "what a turn wrote is to be made durable"]
pub struct Stepped<'a, M: Machine> {
    turns: &'a mut Turns<M>,
    inputs: usize,
    writes: bool,
}

impl<'a, M: Durable> Stepped<'a, M> {
    /// Whether [`Stepped::persist`] writes. Otherwise the turn was silent, and what it wrote waits for a later one.
    #[must_use]
    pub fn writes(&self) -> bool {
        self.writes
    }

    /// The machine, to look at.
    #[must_use]
    pub fn machine(&self) -> &M {
        &self.turns.machine
    }

    /// Makes durable what this turn and silent ones before it wrote, unless this turn is silent too and it can wait.
    ///
    /// # Errors
    /// When it cannot be said whether everything is durable. What the turn said is never heard, and no turn can follow; the process
    /// must end.
    pub fn persist(self) -> Result<Written<'a, M>, M::Failure> {
        let Self { turns, inputs, writes } = self;
        if writes {
            turns.has_failed = true;
            turns.machine.persist()?;
            turns.has_failed = false;
            turns.unsynced_since = None;
        }
        Ok(Written { turns, inputs })
    }
}

/// A turn after its write: all that it said may be heard.
#[must_use = "what a turn said is to be signed and sent"]
pub struct Written<'a, M: Machine> {
    turns: &'a mut Turns<M>,
    inputs: usize,
}

impl<'a, M: Machine> Written<'a, M> {
    /// The machine, to look at.
    #[must_use]
    pub fn machine(&self) -> &M {
        &self.turns.machine
    }

    /// What it said and has not signed. A participant that lies changes it here.
    pub fn outbox(&mut self) -> &mut OutboxOf<M> {
        &mut self.turns.outbox
    }

    /// Signs all statements, so that they become messages.
    ///
    /// # Panics
    /// When `signer` does not give one signature for each statement: that is a bug of the signer.
    pub fn sign<S: Signer<M::Unsigned, M::Message>>(self, signer: &mut S) -> Said<'a, M> {
        let Self { turns: Turns { me, bounds, outbox, own, .. }, inputs } = self;
        let OutboxOf::<M> { sends, unsigned, events, silent_events, sent_before, bytes, .. } = outbox;
        (*silent_events, *bytes) = (0, 0);
        let statements = unsigned.len();
        // What was not said through the outbox, as a liar's statements, comes last.
        let sent_before = sent_before.drain(..).chain(std::iter::repeat(sends.len()));
        let mut places: Vec<(Party, usize)> = unsigned.iter().map(|(to, _)| *to).zip(sent_before).collect();
        places.sort_unstable();
        // Statements to one party side by side fall under one signature, and one check at the receiver serves them all.
        unsigned.sort_by_key(|(to, _)| *to);
        let mut signatures = Vec::with_capacity(statements);
        let mut batches = 0;
        for batch in unsigned.chunks(bounds.batch_max) {
            signatures.append(&mut signer.sign_batch(batch));
            batches += 1;
        }
        assert_eq!(signatures.len(), statements, "a signer gives one signature for each statement");
        // Both sorts are stable: what is said to one party stays in the order in which it was said, signed and plain alike.
        if statements == 0 {
            sends.sort_by_key(|(to, _)| *to);
        } else {
            let messages = unsigned.drain(..).zip(signatures).map(|((_, one), signature)| signer.with_signature(one, signature));
            let plain = sends.drain(..).enumerate().map(|(place, (to, message))| ((to, place), message));
            let mut said: Vec<_> = places.into_iter().zip(messages).chain(plain).collect();
            said.sort_by_key(|(place, _)| *place);
            sends.extend(said.into_iter().map(|((to, _), message)| (to, message)));
            unsigned.shrink_to(KEPT_MAX);
        }
        let begin = sends.partition_point(|(to, _)| to < me);
        let end = sends.partition_point(|(to, _)| to <= me);
        own.extend(sends.drain(begin..end).map(|(_, message)| message));
        Said { me: *me, sends, own, events, inputs, statements, signatures: batches }
    }
}

/// What a turn said, to be sent now. What is left here when this is dropped is lost, as on any network.
pub struct Said<'a, M: Machine> {
    /// Who says it.
    pub me: Party,
    /// What goes to others: all for one party side by side, in the order in which it was said.
    pub sends: &'a mut Vec<(Party, M::Message)>,
    /// What the machine said to itself. It is to be checked like anything else and given to a later turn.
    pub own: &'a mut Vec<M::Message>,
    /// For the machine's own side.
    pub events: &'a mut Vec<M::Event>,
    /// How many inputs the turn took.
    pub inputs: usize,
    /// How many statements were signed.
    pub statements: usize,
    /// How many signatures they share.
    pub signatures: usize,
}

impl<M: Machine> Drop for Said<'_, M> {
    fn drop(&mut self) {
        self.sends.clear();
        self.sends.shrink_to(KEPT_MAX);
        self.own.clear();
        self.events.clear();
    }
}

#[cfg(test)]
mod tests;
