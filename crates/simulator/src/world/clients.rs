//! What clients do, and what they are told.

use machine::{Input, InputOf};

use super::{Actor, Event, World};
use crate::client::Task;
use crate::faults::{COMMITS_AFTER_HEAL, Phase};
use crate::system::{Client, Goal, Next, Scene, System};

type Command<S> = <<S as System>::Client as machine::Machine>::Command;

/// How long a client rests before its next task, in nanoseconds from and to: after one that went well, after one that did not,
/// after one that failed, and after one that it left.
const REST_DONE_NS: (u64, u64) = (10_000, 5_000_000);
const REST_NOT_DONE_NS: (u64, u64) = (10_000, 40_000_000);
const REST_FAILED_NS: (u64, u64) = (1_000_000, 40_000_000);
const REST_ABANDONED_NS: (u64, u64) = (10_000, 20_000_000);
/// After how long a Byzantine client leaves what it is at, in milliseconds.
const ABANDON_MS: (u64, u64) = (60, 500);
/// How many turns of a thousand come later than at once, and by how much at most, in nanoseconds: other things keep a client's process busy.
const LATE_PER_MILLE: u64 = 250;
const LATE_NS: u64 = 2_000_000;

impl<S: System> World<S> {
    /// Has a client begin its next task after a while. A process that is new may have something to do before.
    pub fn begin_after(&mut self, client: usize, least_ns: u64, most_ns: u64) {
        let wait = self.clients[client].random.between(least_ns, most_ns);
        let life = self.clients[client].lives;
        self.arm(Actor::Client(client));
        self.after(wait, Event::Begin { client, life });
    }

    pub fn begin(&mut self, at: usize) {
        let Some(goal) = self.next_goal(at) else { return };
        let next = self.with_client(at, |client, scene| client.begin(goal, scene));
        let client = &mut self.clients[at];
        let task = client.begin(self.now);
        if !client.is_honest() {
            let patience = client.random.between(ABANDON_MS.0, ABANDON_MS.1) * 1_000_000;
            self.after(patience, Event::Abandon { client: at, task });
        }
        self.go_on(at, next);
    }

    /// Has a client do something in the world that it sees.
    fn with_client<T>(&mut self, at: usize, act: impl FnOnce(&mut S::Client, &mut Scene<'_, S>) -> T) -> T {
        let client = &mut self.clients[at];
        let mut scene = Scene {
            id: client.id,
            party: client.party(),
            local: client.clock.read(self.now),
            paused_until: client.paused_until,
            random: &mut client.random,
            setting: &self.setting,
            checker: &mut self.checker,
            trace: &mut self.trace,
            now: self.now,
            counts: &mut self.counts,
            engine_counts: &mut self.engine_counts,
        };
        act(client.turns.machine_mut(), &mut scene)
    }

    /// Gives a client something to take in.
    pub fn give(&mut self, at: usize, input: InputOf<S::Client>) {
        self.clients[at].inbox.push_back(input);
        self.want_turn_of_client(at);
    }

    pub fn want_turn_of_client(&mut self, at: usize) {
        let client = &mut self.clients[at];
        if client.turn_at.is_none() {
            let late = if client.random.chance(LATE_PER_MILLE) { client.random.between(0, LATE_NS) } else { 0 };
            client.turn_at = Some(self.now + late);
            self.after(late, Event::Turn(Actor::Client(at)));
        }
    }

    pub fn turn_of_client(&mut self, at: usize) {
        if self.clients[at].turn_at != Some(self.now) {
            return; // Of a process that is no more.
        }
        let party = self.clients[at].party();
        let (sends, events) = self.clients[at].turn(self.now);
        for (to, message) in sends {
            self.send(Actor::Client(at), party, self.now, to, &message);
        }
        for event in events {
            if self.clients[at].task.is_some() {
                let next = self.with_client(at, |client, scene| client.told(event, scene));
                self.go_on(at, next);
            }
        }
        if self.clients[at].inbox.is_empty() {
            self.arm(Actor::Client(at));
        } else {
            self.want_turn_of_client(at);
        }
    }

    fn go_on(&mut self, at: usize, next: Next<Command<S>>) {
        let rest_ns = match next {
            Next::Command(command) => return self.give(at, Input::Command(command)),
            Next::Wait => return,
            Next::Done => {
                self.clients[at].done_since_heal += u64::from(self.phase != Phase::Faults);
                REST_DONE_NS
            }
            Next::NotDone => REST_NOT_DONE_NS,
            Next::Failed => REST_FAILED_NS,
            Next::TimedOut(what) => {
                self.was_kept_waiting(at, &what);
                REST_FAILED_NS
            }
        };
        self.clients[at].task = None;
        self.begin_after(at, rest_ns.0, rest_ns.1);
    }

    /// A client was not answered in time: an honest one may only be kept waiting while something is wrong.
    fn was_kept_waiting(&mut self, at: usize, what: &str) {
        let client = &self.clients[at];
        let Some(Task { began, .. }) = client.task.filter(|_| client.is_honest()) else { return };
        let is_healed = self.phase.healed_before(began);
        if is_healed || (self.setting.is_steady() && began >= self.too_few_until) {
            let when = if is_healed { "after the faults were over" } else { "while there was no reason to wait" };
            self.violation("progress", format!("{} began {what} {when}, and it timed out", self.clients[at].id));
        }
    }

    /// A Byzantine client leaves its task, if it still is at it. It goes on as another process, as one that crashed does: what is
    /// still on its way to the one that left does not reach the one that goes on, which numbers its requests from 1 again.
    pub fn abandon(&mut self, at: usize, task: u64) {
        if self.clients[at].task.is_some_and(|running| running.number == task) {
            self.clients[at].restart();
            self.begin_after(at, REST_ABANDONED_NS.0, REST_ABANDONED_NS.1);
        }
    }

    /// What a client is to do next; nothing when it is to rest.
    fn next_goal(&self, at: usize) -> Option<Goal> {
        let is_auditor = at == self.auditor();
        let client = &self.clients[at];
        match self.phase {
            Phase::Faults => Some(Goal::Anything),
            Phase::Healed { .. } if client.is_honest() && !is_auditor => {
                (client.done_since_heal < COMMITS_AFTER_HEAL).then_some(Goal::Contended)
            }
            Phase::Audit { .. } if is_auditor => (client.done_since_heal == 0).then_some(Goal::Audit),
            _ => None,
        }
    }
}
