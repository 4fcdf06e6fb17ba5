//! What goes from one to another, and the turns in which replicas hear it.

use bytes::Bytes;
use crypto::Verified;
use machine::Input;
use types::Party;
use types::codec::{Decode, Encode};

use super::{Actor, Event, World};
use crate::system::{Checker as _, Liar as _, NetworkAdversary as _, System};

/// How long a turn takes that does not wait for the disk, in microseconds.
const SILENT_US: u64 = 5;

impl<S: System> World<S> {
    fn actor_of(&self, party: Party) -> Option<Actor> {
        match party {
            Party::Replica(id) => self.replicas.iter().position(|replica| replica.id == id).map(Actor::Replica),
            Party::Client(id, _) => self.clients.iter().position(|client| client.id == id).map(Actor::Client),
        }
    }

    fn is_honest(&self, actor: Actor) -> bool {
        match actor {
            Actor::Replica(at) => self.replicas[at].is_honest(),
            Actor::Client(at) => self.clients[at].is_honest(),
        }
    }

    /// Hands a message to the network, at the true time `departs`.
    pub fn send(&mut self, from: Actor, from_party: Party, departs: u64, to_party: Party, message: &S::Message) {
        let Some(to) = self.actor_of(to_party) else { return };
        if self.is_honest(from) {
            self.checker.departs(message);
        }
        let mut bytes = message.to_bytes();
        if let Actor::Replica(at) = from
            && let Some(liar) = &mut self.replicas[at].liar
        {
            liar.garble(&mut bytes);
        }
        let bytes = Bytes::from(bytes);
        let is_next = self.network_adversary.watches_turns() && self.is_next(to);
        let not_before = self.network_adversary.not_before(departs, from_party, to_party, message, is_next);
        for delay in self.network.fate(from, to) {
            let arrives = (departs + delay).max(not_before);
            if arrives > departs + delay {
                self.counts.delayed += 1;
                self.trace.line(self.now, || {
                    let us = (arrives - departs - delay) / 1_000;
                    format!("for {us} us the network delays what {from_party} tells {to_party}: {}", S::describe(message))
                });
            }
            self.at(arrives, Event::Arrive { from, from_party, to, to_party, bytes: bytes.clone() });
        }
    }

    /// Whether somebody is the first of their shard to take a turn, of those who are about to.
    fn is_next(&self, actor: Actor) -> bool {
        let Actor::Replica(at) = actor else { return false };
        let shard = self.replicas[at].id.shard;
        let turns = self.replicas.iter().enumerate().filter(|(_, replica)| replica.id.shard == shard);
        turns.filter_map(|(at, replica)| Some((replica.turn_at?, at))).min().is_some_and(|(_, next)| next == at)
    }

    pub fn arrive(&mut self, from: Actor, from_party: Party, to: Actor, to_party: Party, bytes: Bytes) {
        let is_there = match to {
            Actor::Replica(at) => self.replicas[at].node.is_some(),
            Actor::Client(at) => self.clients[at].party() == to_party,
        };
        self.trace.mark(self.now, (bytes.len() as u64) << 8 | u64::from(is_there));
        if !is_there || !self.are_connected(from, to) {
            return;
        }
        let Some(message) = self.believe(from, from_party, to, to_party, bytes) else { return };
        self.counts.messages += 1;
        self.check_belief(to, &message);
        self.checker.believed(&message);
        self.trace.line(self.now, || format!("{to_party} hears {from_party}: {}", S::describe(&message)));
        match to {
            Actor::Replica(at) => {
                self.replicas[at].inbox.push_back((from_party, message));
                self.want_turn(at);
            }
            Actor::Client(at) => self.give(at, Input::Message { from: from_party, message }),
        }
    }

    /// Decodes and verifies what arrived, as the real shell does. What honest participants say always passes.
    fn believe(&mut self, from: Actor, from_party: Party, to: Actor, to_party: Party, bytes: Bytes) -> Option<Verified<S::Message>> {
        let verifier = match to {
            Actor::Replica(at) => &self.verifiers[at],
            Actor::Client(at) => &self.verifiers[self.replicas.len() + at],
        };
        let why = match S::Message::from_bytes(bytes, self.cluster.id()) {
            Ok(message) => match verifier.verify(message) {
                Ok(message) => return Some(message),
                Err(rejection) if self.may_differ(from, to, &rejection) => {
                    self.trace.line(self.now, || format!("{to_party} goes by other keys than {from_party}: {rejection}"));
                    return None;
                }
                Err(rejection) => rejection.to_string(),
            },
            Err(error) => error.to_string(),
        };
        self.counts.refused += 1;
        self.trace.line(self.now, || format!("{to_party} refuses what {from_party} says: {why}"));
        if self.is_honest(from) {
            self.violation("messages", format!("{to_party} refused what {from_party}, which is honest, said: {why}"));
        }
        None
    }

    // Replicas.

    pub fn want_turn(&mut self, at: usize) {
        let replica = &mut self.replicas[at];
        if replica.turn_at.is_none() && replica.node.is_some() {
            let turn_at = self.now.max(replica.busy_until);
            replica.turn_at = Some(turn_at);
            self.at(turn_at, Event::Turn(Actor::Replica(at)));
        }
    }

    pub fn turn(&mut self, at: usize) {
        if self.replicas[at].turn_at != Some(self.now) {
            return; // Of a process that is no more.
        }
        let replica = &mut self.replicas[at];
        let id = replica.id;
        replica.turn_at = None;
        let was_told = !replica.commands.is_empty();
        let turn = replica.turn(self.now, &mut self.disk, |inbox| self.checker.hears(id, inbox));
        // A sync takes its time, and now and then a long one; what arrives meanwhile waits for the next turn.
        let sync_us = if self.disk.chance(3) { 20_000 } else { self.disk.between(20, 300) };
        let departs = self.now + if turn.writes { sync_us * 1_000 } else { SILENT_US * 1_000 };
        replica.busy_until = departs;
        let honest = replica.is_honest();
        for unsigned in &turn.signed {
            self.checker.signs(id, unsigned, honest);
        }
        for (to, message) in turn.sends {
            if honest {
                self.checker.says(id, to, &message);
            }
            let late = self.replicas[at].liar.as_mut().map_or(0, |liar| liar.holds_back(&message));
            self.send(Actor::Replica(at), Party::Replica(id), departs + late, to, &message);
        }
        if was_told && self.replicas[at].commands.is_empty() {
            self.checker.has_taken_over(id);
        }
        match turn.failure {
            Some(error) if self.replicas[at].is_rotten() => self.stay_away(at, error),
            Some(error) => self.violation("disk", format!("the disk of {id}, which is whole, fails: {error}")),
            None if turn.died => self.crash(at),
            None if !self.replicas[at].inbox.is_empty() => self.want_turn(at),
            None => match self.replicas[at].leaving {
                Some(leaving) => self.leave(at, leaving),
                None => self.arm(Actor::Replica(at)),
            },
        }
    }

    /// A replica whose disk is damaged has noticed it. It must not come back from that.
    fn stay_away(&mut self, at: usize, why: String) {
        let id = self.replicas[at].id;
        self.trace.mark(self.now, 0xaaaa ^ at as u64);
        self.trace.line(self.now, || format!("{id} stays away: {why}"));
        self.counts.away += 1;
        self.replicas[at].stay_away(why);
    }

    /// Starts a replica's process, if it is down.
    pub fn restart(&mut self, at: usize) {
        if self.replicas[at].node.is_some() || self.replicas[at].away.is_some() {
            return;
        }
        let id = self.replicas[at].id;
        if !self.comes_back(at) {
            self.trace.line(self.now, || format!("{id} does not start: another key has its place"));
            return;
        }
        match self.replicas[at].start(self.now) {
            Ok(()) => {
                self.trace.mark(self.now, 0xa11e ^ at as u64);
                self.trace.line(self.now, || format!("{id} starts"));
                self.arm(Actor::Replica(at));
                self.ask_again(at);
            }
            Err(error) if self.replicas[at].is_rotten() => self.stay_away(at, error),
            Err(error) => self.violation("durability", format!("{id} cannot come back from its disk: {error}")),
        }
    }

    /// Somebody curious asks a replica that came back about what it said before: it must say the same.
    fn ask_again(&mut self, at: usize) {
        let auditor = self.clients[self.auditor()].party();
        for message in self.checker.questions(self.replicas[at].id) {
            let asked = self.verifiers[at].verify(message).expect("a message without a signature claims nothing");
            self.replicas[at].inbox.push_back((auditor, asked));
        }
        if !self.replicas[at].inbox.is_empty() {
            self.want_turn(at);
        }
    }
}
