//! Who watches the order.
//!
//! | checker | what it holds everyone to |
//! |---|---|
//! | agreement | servers deliver the same entry at each place, after the same entries, in all their lives |
//! | leaders | an epoch has one leader, and in it one entry at each place |
//! | durability | what a client was told to be delivered, or to be known, is among what is delivered at the end |
//! | linearizable writes | a write that begins after another was acknowledged comes after it |
//! | sessions | what a client reads never goes back behind what it has seen |

use std::collections::{BTreeMap, BTreeSet};

use ::sentinel::order::{self, Entry, Zxid};
use simulator::{Checker, Outcomes, Violations};
use types::{Digest, Party, ReplicaId};

use super::Zab;
use super::message::{Link, Message, Nothing};

/// Who watches the order.
#[derive(Debug, Default)]
pub struct ZabChecker {
    violations: Violations,
    /// What anybody delivered, by place.
    links: BTreeMap<Zxid, Link>,
    /// What clients were told.
    promised: BTreeSet<Zxid>,
    acknowledged: Zxid,
    asked: u64,
    told: u64,
    leaders: BTreeMap<u32, u16>,
    entries: BTreeMap<Zxid, Entry>,
}

impl ZabChecker {
    pub(super) fn acknowledged(&self) -> Zxid {
        self.acknowledged
    }

    pub(super) fn asked(&mut self) {
        self.asked += 1;
    }

    pub(super) fn told_delivered(&mut self, link: &Link, acknowledged: Zxid) {
        self.told += 1;
        if link.zxid <= acknowledged {
            let what = format!("{:?} is at {}, and began after {acknowledged} was acknowledged", link.key, link.zxid);
            self.violations.add("linearizable writes", what);
        }
        self.acknowledged = self.acknowledged.max(link.zxid);
        self.promised.insert(link.zxid);
    }

    pub(super) fn told_known(&mut self, zxid: Zxid, digest: Digest, seen: Zxid) {
        if zxid < seen {
            self.violations.add("sessions", format!("a client that has seen {seen} reads {zxid}"));
        }
        if zxid == Zxid::default() {
            return;
        }
        if self.links.get(&zxid).is_none_or(|link| link.digest != digest) {
            self.violations.add("agreement", format!("a client reads something else at {zxid} than was delivered"));
        }
        self.promised.insert(zxid);
    }

    fn delivered(&mut self, by: ReplicaId, link: &Link) {
        let there = *self.links.entry(link.zxid).or_insert(*link);
        if there != *link {
            let what = format!(
                "at {} {by} delivers {:?} after {}, another {:?} after {}",
                link.zxid, link.key, link.previous, there.key, there.previous
            );
            self.violations.add("agreement", what);
        }
    }
}

impl Checker<Zab> for ZabChecker {
    fn violations(&mut self) -> &mut Violations {
        &mut self.violations
    }

    fn signs(&mut self, _by: ReplicaId, unsigned: &Nothing<Message>, _is_honest: bool) {
        unsigned.never();
    }

    fn says(&mut self, by: ReplicaId, _to: Party, message: &Message) {
        match message {
            Message::Delivered(link) => self.delivered(by, link),
            Message::Order(order::Message::Entries { leadership, entries, .. }) => {
                let leader = *self.leaders.entry(leadership.epoch).or_insert(by.index);
                if leader != by.index {
                    self.violations.add("leaders", format!("{leader} and {} lead epoch {}", by.index, leadership.epoch));
                }
                for entry in entries {
                    let there = self.entries.entry(entry.zxid).or_insert_with(|| entry.clone());
                    if there != entry {
                        self.violations.add("leaders", format!("{by} has {entry:?}, and somebody {there:?}"));
                    }
                }
            }
            _ => {}
        }
    }

    fn believed(&mut self, _message: &Message) {}

    /// One line of entries, from the last that was delivered to the first, has all that anybody was told.
    fn finish(&mut self) {
        let mut line = BTreeSet::new();
        let mut at = self.links.last_key_value().map(|(zxid, _)| *zxid).unwrap_or_default();
        while let Some(link) = self.links.get(&at) {
            line.insert(at);
            at = link.previous;
        }
        // Of what a snapshot brought nobody tells, so that the line may have begun before what was seen: only what is beside it is lost.
        let begins = line.first().copied().unwrap_or_default();
        for lost in self.promised.range(begins..).filter(|zxid| !line.contains(zxid)) {
            self.violations.add("durability", format!("a client was told of {lost}, and it is not among what is delivered at the end"));
        }
        if let Some(beside) = self.links.range(begins..).map(|(zxid, _)| zxid).find(|zxid| !line.contains(zxid)) {
            self.violations.add("agreement", format!("{beside} was delivered, and not by those who went on"));
        }
    }

    fn outcomes(&self) -> Outcomes {
        Outcomes { committed: self.told, aborted: 0, unknown: self.asked.saturating_sub(self.told) }
    }
}
