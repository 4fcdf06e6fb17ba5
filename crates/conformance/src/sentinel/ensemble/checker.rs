//! Who watches whole servers.
//!
//! | checker | what it holds everyone to |
//! |---|---|
//! | agreement | servers deliver the same entry at each place, after the same entries, in all their lives |
//! | leaders | an epoch has one leader, and in it one entry at each place |
//! | tree | each transaction follows from those before it; a session's come in the order in which it asked, and its ephemeral nodes live as long as it |
//! | reads | what a client is shown is what the tree was after the transaction that its answer names |
//! | writes, durability | an answer to a write names a transaction that was delivered, is its own, and came to that |
//! | linearizable writes | a write that begins after another was acknowledged comes after it |
//! | sync | who has synced sees all that was acknowledged to anybody before |
//! | sessions | answers come in the order of requests, and never go back, wherever a session moves; no session ends before its time |
//! | passwords | nobody comes into a session with a wrong password |
//! | watches | each watch is told the first change that it waits for, once, before anything newer is shown |
//! | corruption | no server that nobody damaged finds itself wrong |

use std::collections::{BTreeMap, BTreeSet};

use ::sentinel::ensemble::{self, ordered_transaction};
use ::sentinel::order::{self, Body, Entry, Zxid};
use jute::Request;
use simulator::{Checker, Outcomes, Violations};
use types::{ClientId, Party, ReplicaId};

use super::client::Answered;
use super::message::{Message, Report};
use super::model::Model;
use super::{Ensemble, EnsembleCounts, Nothing};

/// Who watches whole servers.
#[derive(Debug)]
pub struct EnsembleChecker {
    violations: Violations,
    /// Each entry, and the one before it.
    entries: BTreeMap<Zxid, (Zxid, Entry)>,
    leaders: BTreeMap<u32, u16>,
    /// All places of what was delivered, and the last.
    line: BTreeSet<Zxid>,
    delivered: Zxid,
    pub model: Model,
    acknowledged: i64,
    asked: u64,
    answered: u64,
    /// The session of each client's process.
    alive: BTreeMap<ClientId, i64>,
    /// Sessions of whose end clients were told.
    ended: BTreeSet<i64>,
    counts: EnsembleCounts,
}

impl EnsembleChecker {
    pub fn new() -> Self {
        Self {
            violations: Violations::default(),
            entries: BTreeMap::new(),
            leaders: BTreeMap::new(),
            line: BTreeSet::from([Zxid::default()]),
            delivered: Zxid::default(),
            model: Model::new(),
            acknowledged: 0,
            asked: 0,
            answered: 0,
            alive: BTreeMap::new(),
            ended: BTreeSet::new(),
            counts: EnsembleCounts::default(),
        }
    }

    /// A promise is broken.
    pub fn broken(&mut self, checker: &'static str, what: String) {
        self.violations.add(checker, what);
    }

    /// The newest transaction that anybody was told of.
    pub fn acknowledged(&self) -> i64 {
        self.acknowledged
    }

    /// Writes are asked for.
    pub fn asked(&mut self, requests: &[Request]) {
        self.asked += requests.iter().filter(|request| is_write(request)).count() as u64;
    }

    /// Somebody was answered.
    pub fn acknowledge(&mut self, answered: &Answered) {
        self.acknowledged = self.acknowledged.max(answered.zxid);
        if is_write(&answered.request) {
            self.answered += 1;
        } else {
            self.counts.reads += 1;
        }
    }

    /// A client's session begins.
    pub fn began(&mut self, client: ClientId, session: i64) {
        self.alive.insert(client, session);
    }

    /// A client's session has ended, as it was told.
    pub fn ended(&mut self, client: ClientId, session: i64, is_doubtful: bool) {
        self.counts.sessions_ended += 1;
        self.alive.remove(&client);
        if !is_doubtful {
            self.ended.insert(session);
        }
    }

    /// A client's process has no session that it knows of.
    pub fn has_none(&mut self, client: ClientId) {
        self.alive.remove(&client);
    }

    pub fn count_moved(&mut self) {
        self.counts.moved += 1;
    }

    pub fn count_event(&mut self) {
        self.counts.events += 1;
    }

    /// The session of another client.
    pub fn session_of_other(&self, client: ClientId) -> Option<i64> {
        self.alive.iter().find(|(other, _)| **other != client).map(|(_, session)| *session)
    }

    /// Sessions that no client's process has any more, and that own nodes all the same.
    pub fn orphans(&self) -> Vec<i64> {
        let alive: BTreeSet<i64> = self.alive.values().copied().collect();
        self.model.owners().filter(|session| !alive.contains(session)).collect()
    }

    /// A client was told of transaction `zxid`: it must be delivered.
    pub fn told(&mut self, zxid: i64) {
        let zxid = Zxid(zxid.unsigned_abs());
        if zxid > self.delivered {
            self.deliver(zxid, "who answers a client");
        }
        if !self.line.contains(&zxid) {
            self.broken("durability", format!("a client was told of {zxid}, and it is not among what is delivered"));
        }
    }

    /// `by` has delivered entry `zxid` and all before it.
    fn deliver(&mut self, zxid: Zxid, by: &str) {
        if zxid <= self.delivered {
            if !self.line.contains(&zxid) {
                self.broken("agreement", format!("{by} delivers {zxid}, beside what others have delivered"));
            }
            return;
        }
        let (mut at, mut path) = (zxid, Vec::new());
        while at > self.delivered {
            let Some((previous, _)) = self.entries.get(&at) else {
                self.broken("agreement", format!("{by} delivers {zxid}, after {at}, of which nobody was told"));
                return;
            };
            path.push(at);
            at = *previous;
        }
        if at != self.delivered {
            let what = format!("{by} delivers {zxid}, which builds upon {at}, and {} was delivered", self.delivered);
            self.broken("agreement", what);
            return;
        }
        for zxid in path.into_iter().rev() {
            self.line.insert(zxid);
            self.delivered = zxid;
            if let Body::Payload(payload) = &self.entries[&zxid].1.body {
                match ordered_transaction(zxid, payload) {
                    Ok(transaction) => transaction.iter().for_each(|transaction| self.model.apply(transaction)),
                    Err(why) => self.broken("agreement", why.to_string()),
                }
            }
        }
        for what in std::mem::take(&mut self.model.wrong) {
            self.broken("tree", what);
        }
    }

    fn on_entries(&mut self, previous: Zxid, entries: &[Entry]) {
        let mut previous = previous;
        for entry in entries {
            let here = (previous, entry.clone());
            let there = self.entries.entry(entry.zxid).or_insert_with(|| here.clone());
            if *there != here {
                let what = format!("there are two entries at {}: {there:?} and {here:?}", entry.zxid);
                self.broken("leaders", what);
            }
            previous = entry.zxid;
        }
    }
}

fn is_write(request: &Request) -> bool {
    matches!(request, Request::Create(_) | Request::SetData { .. } | Request::Delete { .. } | Request::SetAcl { .. } | Request::Multi(_))
}

impl Checker<Ensemble> for EnsembleChecker {
    fn violations(&mut self) -> &mut Violations {
        &mut self.violations
    }

    fn signs(&mut self, _by: ReplicaId, unsigned: &Nothing, _is_honest: bool) {
        unsigned.never()
    }

    fn says(&mut self, by: ReplicaId, _to: Party, message: &Message) {
        match message {
            Message::Report(Report::Delivered(zxid)) => self.deliver(*zxid, &by.to_string()),
            Message::Report(Report::Stopped(what)) => self.broken("corruption", format!("{by}, which nobody has damaged: {what}")),
            Message::Peer { message: ensemble::Message::Order(order::Message::Entries { leadership, previous, entries, .. }), .. } => {
                self.on_entries(*previous, entries);
                let leader = *self.leaders.entry(leadership.epoch).or_insert(by.index);
                if leader != by.index {
                    self.broken("leaders", format!("{leader} and {} lead epoch {}", by.index, leadership.epoch));
                }
            }
            _ => {}
        }
    }

    fn believed(&mut self, message: &Message) {
        match message {
            Message::Report(Report::Delivered(zxid)) => self.deliver(*zxid, "a server"),
            Message::Report(Report::Broken(what)) => self.broken("sessions", what.clone()),
            Message::Report(Report::Damaged(_)) => self.counts.damaged += 1,
            Message::Report(Report::Stopped(_)) => self.counts.stopped += 1,
            Message::Report(Report::Reopens(_)) => self.counts.reopened += 1,
            Message::Peer { message: ensemble::Message::Order(order::Message::Entries { previous, entries, .. }), .. } => {
                self.on_entries(*previous, entries);
            }
            _ => {}
        }
    }

    fn finish(&mut self) {
        for session in self.ended.clone() {
            if self.model.is_alive(session) {
                self.broken("sessions", format!("a client was told that session {session:#x} is no more, and it is"));
            }
        }
    }

    fn outcomes(&self) -> Outcomes {
        Outcomes { committed: self.answered, aborted: 0, unknown: self.asked.saturating_sub(self.answered) }
    }

    fn count(&self, counts: &mut EnsembleCounts) {
        *counts = self.counts;
    }
}
