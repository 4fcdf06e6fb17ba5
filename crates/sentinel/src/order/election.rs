//! Fast leader election: everybody votes for whoever has the newest history that they have heard of.
//!
//! It only finds somebody who is likely to succeed, and fast. Nothing rests on it: an epoch rests on promises.

use std::collections::BTreeMap;

use machine::Time;

use super::message::History;

/// Who is voted for: the newest history wins, and of two the same the higher number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Candidate {
    pub history: History,
    pub server: u16,
}

/// What a vote came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Heard {
    /// It belongs to an earlier round: its sender should know ours.
    Late,
    /// We now vote for somebody else, or in another round.
    Changed,
    /// It is counted.
    Counted,
}

/// A server looks for a leader.
#[derive(Debug)]
pub(super) struct Looking {
    pub round: u64,
    own: Candidate,
    pub candidate: Candidate,
    votes: BTreeMap<u16, Candidate>,
    /// When a majority will do though not all agree.
    settles_at: Option<Time>,
}

impl Looking {
    pub fn new(round: u64, own: Candidate) -> Self {
        Self { round, own, candidate: own, votes: BTreeMap::from([(own.server, own)]), settles_at: None }
    }

    pub fn hear(&mut self, from: u16, round: u64, candidate: Candidate) -> Heard {
        if round < self.round {
            return Heard::Late;
        }
        let is_new_round = round > self.round;
        if is_new_round {
            *self = Self::new(round, self.own);
        }
        self.votes.insert(from, candidate);
        let is_better = candidate > self.candidate;
        if is_better {
            self.candidate = candidate;
            self.votes.insert(self.own.server, candidate);
            self.settles_at = None;
        }
        if is_better || is_new_round { Heard::Changed } else { Heard::Counted }
    }

    /// Somebody follows us already.
    pub fn followed_by(&mut self, from: u16) {
        self.votes.insert(from, self.own);
    }

    /// Who is elected of `count` servers, if anybody is. A majority waits for `settle_ms`, in case somebody better is heard of.
    pub fn elected(&mut self, now: Time, count: u16, settle_ms: u64) -> Option<u16> {
        let agreeing = self.votes.values().filter(|vote| vote.server == self.candidate.server).count();
        let count = usize::from(count);
        if agreeing <= count / 2 {
            self.settles_at = None;
            return None;
        }
        let settles_at = *self.settles_at.get_or_insert(now.after_ms(settle_ms));
        (agreeing == count || settles_at <= now).then_some(self.candidate.server)
    }

    pub fn deadline(&self) -> Option<Time> {
        self.settles_at
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::order::message::Zxid;

    fn candidate(server: u16, accepted: u32, counter: u32) -> Candidate {
        Candidate { history: History { accepted, last: Zxid::new(1, counter) }, server }
    }

    #[test]
    fn the_newest_history_wins_and_a_majority_waits_for_a_better_one() {
        let mut looking = Looking::new(1, candidate(0, 2, 5));
        assert_eq!(looking.hear(1, 1, candidate(1, 2, 4)), Heard::Counted);
        assert_eq!(looking.hear(1, 1, candidate(0, 2, 5)), Heard::Counted);
        assert_eq!(looking.elected(Time(0), 3, 50), None);
        assert_eq!(looking.hear(2, 1, candidate(2, 3, 1)), Heard::Changed);
        assert_eq!(looking.elected(Time(0).after_ms(60), 3, 50), None, "a majority of two is for another now");
        assert_eq!(looking.hear(1, 1, candidate(2, 3, 1)), Heard::Counted);
        assert_eq!(looking.elected(Time(0).after_ms(60), 3, 50), Some(2), "all agree");
    }

    #[test]
    fn a_later_round_begins_anew_and_an_earlier_one_is_told() {
        let mut looking = Looking::new(3, candidate(0, 2, 5));
        assert_eq!(looking.hear(1, 2, candidate(1, 9, 9)), Heard::Late);
        assert_eq!(looking.hear(1, 4, candidate(1, 1, 1)), Heard::Changed);
        assert_eq!((looking.round, looking.candidate.server), (4, 0));
        assert_eq!(looking.elected(Time(0), 3, 50), None);
    }
}
