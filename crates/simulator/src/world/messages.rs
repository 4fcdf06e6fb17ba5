//! What goes from one to another, and the turns in which replicas hear it.

use basil::Message;
use bytes::Bytes;
use crypto::Verified;
use types::Party;
use types::codec::{Decode, Encode};

use super::{Actor, Happening, World};
use crate::client::Heard;

impl World {
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
    pub fn send(&mut self, from: Actor, from_party: Party, departs: u64, to_party: Party, message: &Message) {
        let Some(to) = self.actor_of(to_party) else { return };
        if self.is_honest(from) {
            self.checker.seen(&self.cluster, message);
        }
        let mut bytes = message.to_bytes();
        if let Actor::Replica(at) = from
            && let Some(liar) = &mut self.replicas[at].liar
        {
            liar.garble(&mut bytes);
        }
        let bytes = Bytes::from(bytes);
        let is_next = self.foe.watches_turns() && self.is_next(to);
        let not_before = self.foe.not_before(departs, from_party, to_party, message, is_next);
        for delay in self.network.fate(from, to) {
            let arrives = (departs + delay).max(not_before);
            if arrives > departs + delay {
                self.counts.held += 1;
                self.trace.line(self.now, || {
                    let us = (arrives - departs - delay) / 1_000;
                    format!("for {us} us the network holds back what {from_party} tells {to_party}: {}", describe(message))
                });
            }
            self.at(arrives, Happening::Arrive { from, from_party, to, to_party, bytes: bytes.clone() });
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
        if !is_there {
            return;
        }
        let Some(message) = self.believe(from, from_party, to, to_party, bytes) else { return };
        self.counts.messages += 1;
        self.checker.believed(&message);
        self.checker.seen(&self.cluster, &message);
        self.trace.line(self.now, || format!("{to_party} hears {from_party}: {}", describe(&message)));
        match to {
            Actor::Replica(at) => {
                self.replicas[at].inbox.push((from_party, message));
                self.want_turn(at);
            }
            Actor::Client(at) => self.step_client(at, Heard::Message { from: from_party, message }),
        }
    }

    /// Decodes and verifies what arrived, as the real shell does. What honest participants say always passes.
    fn believe(&mut self, from: Actor, from_party: Party, to: Actor, to_party: Party, bytes: Bytes) -> Option<Verified<Message>> {
        let verifier = match to {
            Actor::Replica(at) => &self.verifiers[at],
            Actor::Client(at) => &self.verifiers[self.replicas.len() + at],
        };
        let why = match Message::from_bytes(bytes, self.cluster.id()) {
            Ok(message) => match verifier.verify(message) {
                Ok(message) => return Some(message),
                Err(rejection) => rejection.to_string(),
            },
            Err(error) => error.to_string(),
        };
        self.counts.refused += 1;
        self.trace.line(self.now, || format!("{to_party} refuses what {from_party} says: {why}"));
        if self.is_honest(from) {
            self.checker.violation("messages", format!("{to_party} refused what {from_party}, which is honest, said: {why}"));
        }
        None
    }

    // Replicas.

    pub fn want_turn(&mut self, at: usize) {
        let replica = &mut self.replicas[at];
        if replica.turn_at.is_none() && replica.node.is_some() {
            let turn_at = self.now.max(replica.busy_until);
            replica.turn_at = Some(turn_at);
            self.at(turn_at, Happening::Turn(at));
        }
    }

    pub fn turn(&mut self, at: usize) {
        if self.replicas[at].turn_at != Some(self.now) {
            return; // Of a process that is no more.
        }
        let replica = &mut self.replicas[at];
        replica.turn_at = None;
        let turn = replica.turn(self.now, &mut self.disk);
        // A sync takes its time, and now and then a long one; what arrives meanwhile waits for the next turn.
        let sync_us = if self.disk.chance(3) { 20_000 } else { self.disk.between(20, 300) };
        let departs = self.now + sync_us * 1_000;
        replica.busy_until = departs;
        let (id, honest) = (replica.id, replica.is_honest());
        for draft in &turn.said {
            self.checker.said(id, draft);
        }
        for draft in turn.sealed.iter().filter(|_| honest) {
            self.checker.sealed(&self.cluster, id, draft);
        }
        for (to, message) in turn.sends {
            if let (true, Party::Client(client, _), Message::ReadReply { request, .. }) = (honest, to, &message)
                && let Some((timestamp, keys)) = turn.reads.get(&(to, *request))
            {
                self.checker.answered(id, client, *timestamp, keys, &message);
            }
            if let (true, Party::Client(client, _), Message::Refused { refusal, .. }) = (honest, to, &message) {
                self.checker.refused(client, *refusal);
            }
            if let (true, Message::CommitNotice { id: transaction }) = (honest, &message) {
                self.checker.passed_on(id, *transaction);
            }
            let late = self.replicas[at].liar.as_mut().map_or(0, |liar| liar.holds_back(&message));
            self.send(Actor::Replica(at), Party::Replica(id), departs + late, to, &message);
        }
        match turn.failure {
            Some(error) if self.replicas[at].is_rotten() => self.stay_away(at, error.to_string()),
            Some(error) => self.checker.violation("disk", format!("the disk of {id}, which is whole, fails: {error}")),
            None if turn.died => self.crash(at),
            None => match self.replicas[at].leaving {
                Some(leaving) => self.leave(at, leaving),
                None => self.arm(Actor::Replica(at)),
            },
        }
    }

    /// A replica whose disk is damaged has noticed it. Nothing can rebuild it yet, so that it must not come back.
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
        match self.replicas[at].start(self.now) {
            Ok(()) => {
                self.trace.mark(self.now, 0xa11e ^ at as u64);
                self.trace.line(self.now, || format!("{id} starts"));
                self.arm(Actor::Replica(at));
                self.ask_again(at);
            }
            Err(error) if self.replicas[at].is_rotten() => self.stay_away(at, error.to_string()),
            Err(error) => self.checker.violation("durability", format!("{id} cannot come back from its disk: {error}")),
        }
    }

    /// Somebody curious asks a replica that came back what it thinks of what it voted on before: it must think the same.
    fn ask_again(&mut self, at: usize) {
        let auditor = self.clients[self.auditor()].party();
        for transaction in self.checker.recent(self.replicas[at].id) {
            let message = Message::Recover { transaction, evidence: Vec::new() };
            let asked = self.verifiers[at].verify(message).expect("a message without a seal claims nothing");
            self.replicas[at].inbox.push((auditor, asked));
        }
        if !self.replicas[at].inbox.is_empty() {
            self.want_turn(at);
        }
    }
}

/// A message in a line.
fn describe(message: &Message) -> String {
    match message {
        Message::Read { request, timestamp, keys } => format!("Read {request} at {timestamp} of {} keys", keys.len()),
        Message::Prepare { transaction } => format!("Prepare {:?}", transaction.id()),
        Message::Recover { transaction, evidence } => format!("Recover {:?} with {} votes", transaction.id(), evidence.len()),
        Message::Log { transaction, decision, .. } => format!("Log {decision:?} of {:?}", transaction.id()),
        Message::Writeback { certificate, .. } => format!("Writeback {:?} of {:?}", certificate.decision, certificate.id),
        Message::CommitNotice { id } => format!("CommitNotice {id:?}"),
        Message::ReadReply { request, results, prepared } => {
            format!("ReadReply {request} of {} keys, {} prepared", results.len(), prepared.len())
        }
        Message::Voted { vote, conflict } => {
            let why = if conflict.is_some() { ", with a conflict" } else { "" };
            format!("Voted {:?} on {:?}{why}", vote.statement.vote, vote.statement.id)
        }
        Message::Logged { logged } => format!("Logged {:?}", logged.statement),
        Message::Decided { certificate } => format!("Decided {:?} of {:?}", certificate.decision, certificate.id),
        other => format!("{other:?}").chars().take(160).collect(),
    }
}
