//! A client's process in the world.

use std::collections::VecDeque;

use machine::turn::{Bounds, NoSigner, Turns};
use machine::{InputOf, Machine};
use random::Random;
use types::{ClientId, Party, Session};

use crate::clock::Clock;
use crate::system::{Client as _, System};

/// A client.
pub(crate) struct ClientActor<S: System> {
    pub id: ClientId,
    pub clock: Clock,
    pub turns: Turns<S::Client>,
    /// What it has not taken in yet.
    pub inbox: VecDeque<InputOf<S::Client>>,
    /// When its next turn is.
    pub turn_at: Option<u64>,
    pub random: Random,
    /// How many processes it has been.
    pub lives: u64,
    pub armed: Option<u64>,
    /// Until then its clock stands still, or did, as that of a machine that was paused, and nothing that this process could see shows that.
    pub paused_until: u64,
    /// The task it is at.
    pub task: Option<Task>,
    tasks: u64,
    /// Tasks that went well since the faults ended.
    pub done_since_heal: u64,
}

/// The task a client is at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Task {
    /// What no other task of this client has.
    pub number: u64,
    /// The true time at which it began.
    pub began: u64,
}

impl<S: System> ClientActor<S> {
    pub fn new(id: ClientId, machine: S::Client, clock: Clock, random: Random) -> Self {
        let turns = Turns::new(machine, Party::Client(id, Session(1)), Bounds::default());
        Self {
            id,
            clock,
            turns,
            inbox: VecDeque::new(),
            turn_at: None,
            random,
            lives: 1,
            armed: None,
            paused_until: 0,
            task: None,
            tasks: 0,
            done_since_heal: 0,
        }
    }

    /// Whether it follows the protocol.
    pub fn is_honest(&self) -> bool {
        self.turns.machine().is_honest()
    }

    pub fn party(&self) -> Party {
        Party::Client(self.id, Session(self.lives))
    }

    /// One turn: what it sends, and what it hears from its own machine.
    #[expect(clippy::type_complexity, reason = "the parts of an outbox")]
    pub fn turn(&mut self, now: u64) -> (Vec<(Party, S::Message)>, Vec<<S::Client as Machine>::Event>) {
        self.turn_at = None;
        let local = self.clock.read(now);
        let mut turn = self.turns.begin(local);
        while turn.room() > 0
            && let Some(input) = self.inbox.pop_front()
        {
            turn.step(local, input);
        }
        let Ok(written) = turn.stepped(local).persist();
        let said = written.sign(&mut NoSigner);
        assert!(said.own.is_empty(), "a client says nothing to itself");
        (said.sends.drain(..).collect(), said.events.drain(..).collect())
    }

    /// Begins a task: gives its number.
    pub fn begin(&mut self, now: u64) -> u64 {
        self.tasks += 1;
        self.task = Some(Task { number: self.tasks, began: now });
        self.tasks
    }

    /// The process ends and another takes its place, which knows nothing.
    pub fn restart(&mut self) {
        self.lives += 1;
        self.clock.forget();
        self.paused_until = 0;
        self.forget();
    }

    /// Its machine is paused for a while.
    pub fn pause(&mut self, now: u64, random: &mut Random) {
        self.paused_until = self.paused_until.max(now) + self.clock.stand_still(random);
    }

    /// Leaves what it is at.
    pub fn forget(&mut self) {
        self.turns.machine_mut().forget();
        self.inbox.clear();
        (self.armed, self.turn_at) = (None, None);
        self.task = None;
    }
}
