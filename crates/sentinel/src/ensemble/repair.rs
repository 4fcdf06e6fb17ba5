//! How a server that was found wrong gets a right state, and shows that it has one.
//!
//! ```text
//!   found wrong ──▶ quarantined ──▶ reread: its own disk, as after a crash ───────────────────────────────┐
//!                      │                                                                                  ▼
//!                      └─ its log is not to be trusted: WhoLeads ──▶ all; LeadsWithout ◀── leader         compared ──▶ serves
//!                                                            └──▶ takeover: an empty disk, a snapshot ────┘   │
//!                                                                                                              └─▶ wrong again: takeover
//! ```
//!
//! The machine says what to do ([`TurnOutput::repair`](super::TurnOutput)) and when it is done ([`TurnOutput::repaired`](super::TurnOutput)); the shell does it, and counts
//! how often. Why this forgets nothing that anybody relies on is in the book, in *Sentinel as built*.

use std::collections::BTreeMap;

use machine::Time;
use mutants::{Mutant, broken};

use super::Member;
use super::member::HEARD_EVERY_MS;
use super::message::Message;
use crate::digest::Checksum;
use crate::order::{Options, ReplayError, Replica, Status, Zxid};
use crate::server::{Now, Outbox, Server};
use crate::state::{Corruption, State};

/// Where a server that was found wrong has its state from again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// Its own disk, as after a crash: its memory was wrong, and nothing says that its log is.
    Reread,
    /// The others, as after the loss of its disk: under another incarnation, with nothing of what it had.
    Takeover,
}

/// A repair is finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repaired {
    /// The entry at which states were compared.
    pub zxid: Zxid,
    /// The digest that a majority has there.
    pub digest: Checksum,
    /// How many other servers have it.
    pub agreeing: usize,
}

/// A server that was repaired is compared with the others.
#[derive(Debug)]
pub(super) struct Comparison {
    pub(super) remedy: Remedy,
    asked_at: Option<Time>,
    /// Its own digest at the last comparison, and those of others at theirs.
    own: Option<(Zxid, Checksum)>,
    found: BTreeMap<u16, (Zxid, Checksum)>,
}

/// What a comparison came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Same { agreeing: usize },
    Other(Checksum),
    Unknown,
}

impl Comparison {
    pub(super) fn new(remedy: Remedy) -> Self {
        Self { remedy, asked_at: None, own: None, found: BTreeMap::new() }
    }

    /// What is known of it, where `majority` servers are to have the same digest, and this one has a voice if `decides` says so.
    fn outcome(&self, (zxid, own): (Zxid, Checksum), majority: usize, decides: bool) -> Outcome {
        let mut counts: BTreeMap<[u8; 32], usize> = BTreeMap::new();
        for (_, digest) in self.found.values().filter(|(at, _)| *at == zxid) {
            *counts.entry(digest.0).or_default() += 1;
        }
        let agreeing = counts.get(&own.0).copied().unwrap_or(0);
        // What was taken over from the others is no second opinion.
        let is_own = self.remedy == Remedy::Reread || broken(Mutant::TakerCountsItself);
        if agreeing + usize::from(is_own && decides) >= majority {
            return Outcome::Same { agreeing };
        }
        let other = counts.iter().find(|(digest, count)| **digest != own.0 && **count >= majority);
        other.map_or(Outcome::Unknown, |(digest, _)| Outcome::Other(Checksum(*digest)))
    }
}

impl Member {
    /// A server whose disk makes no sense: it answers operators, and the order knows nothing of it.
    ///
    /// # Errors
    /// When there cannot be such a server.
    pub fn quarantined(
        options: super::MemberOptions,
        voters: u16,
        server: Server,
        corruption: Corruption,
        now: Now,
    ) -> Result<Self, ReplayError> {
        let replica = Replica::new(options.me, voters, Options::default(), Zxid::default())?;
        let mut member = Self::with(options, replica, server, Zxid::default(), now);
        let mut outbox = Outbox::default();
        member.server.play(crate::server::Role::Looking, &mut outbox);
        member.is_log_wrong = true;
        member.stop(now, corruption);
        Ok(member)
    }

    /// Says that its state was repaired so: it is compared with the others before it serves anybody.
    #[must_use]
    pub fn to_be_compared(mut self, remedy: Remedy) -> Self {
        self.comparison = Some(Comparison::new(remedy));
        self.server.is_uncompared = true;
        self
    }

    /// How this server is to be repaired, once it was found wrong.
    #[must_use]
    pub fn remedy(&self) -> Remedy {
        let is_again = self.comparison.is_some() && !broken(Mutant::RereadAgain);
        if self.is_log_wrong || is_again { Remedy::Takeover } else { Remedy::Reread }
    }

    /// Has a server that was found wrong repair itself. [`TurnOutput::repair`](super::TurnOutput) says when the shell is to do its part: for a takeover not
    /// before somebody leads a majority without this server, whose log might still be needed.
    pub fn repair(&mut self, now: Now) {
        if self.server.corruption().is_none() {
            return;
        }
        match self.remedy() {
            Remedy::Reread => self.turn.repair = Some(Remedy::Reread),
            Remedy::Takeover if broken(Mutant::NeededLogGivenUp) => self.turn.repair = Some(Remedy::Takeover),
            Remedy::Takeover => {
                self.seeks_leader = true;
                self.heard_at_ms = now.steady_ms - HEARD_EVERY_MS;
            }
        }
    }

    /// What operators are told of its repair.
    pub fn show_repair(&mut self, repair: Option<String>) {
        self.server.repair = repair;
    }

    /// Time has passed for a server that is quarantined.
    pub(super) fn tick_quarantined(&mut self, now: Now) {
        if self.seeks_leader && now.steady_ms >= self.heard_at_ms + HEARD_EVERY_MS {
            self.heard_at_ms = now.steady_ms;
            let me = self.options.me;
            self.turn.sends.extend((0..self.replica.voters()).filter(|other| *other != me).map(|other| (other, Message::WhoLeads)));
        }
    }

    /// A server that is quarantined hears something.
    pub(super) fn hear_quarantined(&mut self, from: u16, message: &Message) {
        if self.seeks_leader && from < self.replica.voters() && *message == Message::LeadsWithout {
            self.seeks_leader = false;
            let leader = self.name(from);
            self.turn.notes.push(format!("{leader} leads a majority without this one, whose log is not needed"));
            self.turn.repair = Some(Remedy::Takeover);
        }
    }

    pub(super) fn on_who_leads(&mut self, now: Now, from: u16) {
        // Another that asks soon after must not be told that this one is there.
        if !broken(Mutant::AskerCounted) {
            self.replica.note_quarantined(from);
        }
        if self.replica.leads_without(super::time(now), from) {
            self.turn.sends.push((from, Message::LeadsWithout));
        }
    }

    // Comparing.

    /// Asks for a comparison, and again where nothing came of it.
    pub(super) fn ask_to_compare(&mut self, now: Now) {
        let (time, timeout_ms, me) = (super::time(now), self.options.timeout_ms, self.options.me);
        let Some(comparison) = &mut self.comparison else { return };
        if self.status == Status::Looking || comparison.asked_at.is_some_and(|at| at.after_ms(timeout_ms) > time) {
            return;
        }
        comparison.asked_at = Some(time);
        match self.status {
            Status::Following { leader, .. } => self.turn.sends.push((leader, Message::Compare)),
            Status::Leading { .. } => self.on_compare(now, me),
            Status::Looking => {}
        }
    }

    /// As the leader: `server` wants to be compared.
    pub(super) fn on_compare(&mut self, now: Now, server: u16) {
        let time = super::time(now);
        let is_soon = |at: &Time| at.after_ms(self.options.timeout_ms / 2) > time;
        let leads = matches!(self.status, Status::Leading { .. }) && self.replica.may_propose().is_ok();
        if !leads || self.compared_at.get(&server).is_some_and(is_soon) {
            return;
        }
        self.compared_at.insert(server, time);
        let mut outbox = Outbox::default();
        self.prepare_next();
        self.server.order_comparison(server, &mut outbox);
        self.carry_out(now, outbox);
    }

    /// The state is the one at a comparison: whoever asked for it is told the digest.
    pub(super) fn compare_at(&mut self, zxid: Zxid, server: u16) {
        let found = self.server.state().checksum();
        if server != self.options.me {
            self.turn.sends.push((server, Message::Digest { zxid, found }));
        } else if let Some(comparison) = &mut self.comparison {
            comparison.own = Some((zxid, found));
        }
    }

    pub(super) fn on_digest(&mut self, from: u16, zxid: Zxid, found: Checksum) {
        let voters = self.replica.voters();
        if let Some(comparison) = self.comparison.as_mut().filter(|_| from < voters) {
            comparison.found.insert(from, (zxid, found));
        }
    }

    /// Serves once a majority has the same state and its own word counts, and is wrong where a majority has another.
    pub(super) fn conclude_comparison(&mut self, now: Now) {
        let Some(comparison) = &self.comparison else { return };
        let Some((zxid, digest)) = comparison.own.filter(|(zxid, _)| *zxid <= self.replica.delivered()) else { return };
        let decides = self.options.me < self.replica.voters();
        if decides && !self.replica.is_member() {
            // It is not repaired before its word counts: until then no other server may be missing.
            return;
        }
        match comparison.outcome((zxid, digest), self.replica.majority(), decides) {
            Outcome::Unknown => {}
            Outcome::Same { agreeing } => {
                self.comparison = None;
                self.server.is_uncompared = false;
                self.turn.repaired = Some(Repaired { zxid, digest, agreeing });
            }
            Outcome::Other(expected) => {
                let what = "a majority of the servers has another state than this one has after its repair".to_owned();
                let digests = Some(Box::new((expected, digest)));
                self.stop(now, Corruption { zxid: zxid.0.cast_signed(), path: None, what, digests });
            }
        }
    }
}

/// What a node holds, field by field, for a record of what was wrong with it.
#[must_use]
pub fn describe_node(state: &State, path: &str) -> Vec<(&'static str, String)> {
    let Some(node) = state.nodes.get(path) else { return vec![("exists", "no".to_owned())] };
    let stat = &node.stat;
    let mut fields = vec![
        ("data", node.data.as_ref().map_or_else(|| "none".to_owned(), |data| format!("{} bytes, {:?}", data.len(), shown(data)))),
        ("acl", format!("{:?}", node.acl)),
        ("children", format!("{} of them, {:?}", node.children.len(), node.children)),
        ("leaf", Checksum(node.leaf.0).to_string()),
    ];
    let numbers = [
        ("czxid", stat.czxid),
        ("mzxid", stat.mzxid),
        ("pzxid", stat.pzxid),
        ("ctime", stat.ctime),
        ("mtime", stat.mtime),
        ("ephemeralOwner", stat.owner),
        ("version", stat.version.into()),
        ("cversion", stat.cversion.into()),
        ("aversion", stat.aversion.into()),
    ];
    fields.extend(numbers.map(|(name, number)| (name, number.to_string())));
    for (_, text) in &mut fields {
        let end = (0..=FIELD_BYTES_MAX.min(text.len())).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        text.truncate(end);
    }
    fields
}

/// The longest field of a node that is described.
const FIELD_BYTES_MAX: usize = 1_024;

/// The beginning of a node's data.
fn shown(data: &[u8]) -> bytes::Bytes {
    bytes::Bytes::copy_from_slice(&data[..data.len().min(FIELD_BYTES_MAX / 4)])
}
