//! How far away each replica is, as far as a coordinator has noticed, and so how long to wait for it.
//!
//! Nobody tells a coordinator whether its replicas are in one room or on five continents, so it watches how long they take to
//! answer. Two questions have two answers:
//!
//! - *When is an answer late?* When it takes longer than answers of late by more than they differ: the mean and four
//!   times the mean deviation, both smoothed, as TCP has it (RFC 6298). This follows load as well as distance. Reads and
//!   votes are counted apart, since a vote may wait for other transactions.
//! - *How far away is it?* As long as its quickest answer of late took. This does not follow load, nor waiting.
//!
//! What is said of a whole shard goes by the `n - f` that do best: so many answers can be had without any liar's, so
//! that no liar makes anybody wait longer than the slowest correct replica would. An answer is timed from when the replica
//! was asked first. Should that have been lost, it is thought to be further away than it is, and the next answers mend it.

use types::{ReplicaId, ShardId};

use crate::quorum::Quorums;

/// When an answer to a read is late as long as nobody has answered anything, in microseconds: more than most round trips on
/// Earth, since a read that goes on too early asks many for nothing.
const UNKNOWN_READ_US: u64 = 250_000;
/// After so many answers the quickest one before them is forgotten.
const QUICKEST_OF: u32 = 64;
/// A longer wait says nothing about distance, in microseconds.
const ANSWER_US_MAX: u64 = 10_000_000;
/// Replicas are equally near when the further one takes longer by a quarter at most, and so many microseconds.
const EQUALLY_NEAR_US: u64 = 5_000;

/// What was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestKind {
    /// To read: answered at once.
    Read,
    /// To vote: answered when the transactions before it have ended.
    Vote,
}

/// How long the answers to one kind of question take.
#[derive(Clone, Copy, Debug, Default)]
struct Answers {
    smoothed_us: u64,
    deviation_us: u64,
    is_known: bool,
}

impl Answers {
    /// RFC 6298 (2.2), (2.3).
    fn note(&mut self, took_us: u64) {
        if self.is_known {
            self.deviation_us = self.deviation_us - self.deviation_us / 4 + self.smoothed_us.abs_diff(took_us) / 4;
            self.smoothed_us = self.smoothed_us - self.smoothed_us / 8 + took_us / 8;
        } else {
            *self = Self { smoothed_us: took_us, deviation_us: took_us / 2, is_known: true };
        }
    }

    fn late_us(&self) -> Option<u64> {
        self.is_known.then_some(self.smoothed_us + 4 * self.deviation_us)
    }
}

/// What is known of one replica.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    reads: Answers,
    votes: Answers,
    /// The quickest answer of this run of [`QUICKEST_OF`], and of the one before.
    quickest_us: [Option<u64>; 2],
    answers: u32,
}

impl Known {
    fn note(&mut self, asked: RequestKind, took_us: u64) {
        match asked {
            RequestKind::Read => self.reads.note(took_us),
            RequestKind::Vote => self.votes.note(took_us),
        }
        if self.answers == QUICKEST_OF {
            self.quickest_us = [None, self.quickest_us[0]];
            self.answers = 0;
        }
        self.answers += 1;
        self.quickest_us[0] = Some(self.quickest_us[0].map_or(took_us, |quickest| quickest.min(took_us)));
    }

    fn quickest_us_ever(&self) -> Option<u64> {
        self.quickest_us.into_iter().flatten().min()
    }

    fn late_us(&self, asked: RequestKind) -> Option<u64> {
        let (reads, votes) = (self.reads.late_us(), self.votes.late_us());
        match asked {
            RequestKind::Read => reads.or(votes),
            RequestKind::Vote => votes.or(reads),
        }
    }
}

/// What is known of all replicas of a cluster.
#[derive(Debug)]
pub(crate) struct RoundTrips {
    quorums: Quorums,
    shards: Vec<Vec<Known>>,
}

impl RoundTrips {
    pub fn new(quorums: Quorums, shards: usize) -> Self {
        Self { quorums, shards: vec![vec![Known::default(); quorums.replicas()]; shards] }
    }

    /// `replica` answered `took_ns` after it was first asked.
    pub fn note(&mut self, replica: ReplicaId, asked: RequestKind, took_ns: u64) {
        let known = self.shards.get_mut(usize::from(replica.shard.0)).and_then(|shard| shard.get_mut(usize::from(replica.index)));
        if let Some(known) = known {
            known.note(asked, (took_ns / 1_000).min(ANSWER_US_MAX));
        }
    }

    /// After how long something is wrong when not enough of `shard` have answered, in microseconds. While nothing is known, a
    /// vote may be late at any time: asking for it once more costs little.
    pub fn late_us(&self, shard: ShardId, asked: RequestKind) -> u64 {
        let unknown_us = if asked == RequestKind::Read { UNKNOWN_READ_US } else { 0 };
        self.of_most(shard, |known| known.late_us(asked)).unwrap_or(unknown_us)
    }

    /// How long it takes to hear `n - f` of `shard`, if nobody is busy, in microseconds; 0 while nobody has answered.
    pub fn round_us(&self, shard: ShardId) -> u64 {
        self.of_most(shard, Known::quickest_us_ever).unwrap_or(0)
    }

    /// How long it usually takes to hear the votes of `n - f` of `shard` as busy as they are, in microseconds; 0 while nobody has voted.
    pub fn usual_vote_us(&self, shard: ShardId) -> u64 {
        self.of_most(shard, |known| known.votes.is_known.then_some(known.votes.smoothed_us)).unwrap_or(0)
    }

    /// The most that a replica may be away to be as good as the `count` nearest of `shard`, in microseconds. Those who
    /// have not been heard may be as near as any.
    pub fn near_us(&self, shard: ShardId, count: usize) -> u64 {
        let mut all: Vec<u64> = self.shards[usize::from(shard.0)].iter().map(|known| known.quickest_us_ever().unwrap_or(0)).collect();
        all.sort_unstable();
        let last = all.get(count.saturating_sub(1)).or(all.last()).copied().unwrap_or(0);
        last + last / 4 + EQUALLY_NEAR_US
    }

    /// Whether `replica` is at most `near_us` away, as far as is known.
    pub fn is_near(&self, replica: ReplicaId, near_us: u64) -> bool {
        self.shards[usize::from(replica.shard.0)][usize::from(replica.index)].quickest_us_ever().is_none_or(|us| us <= near_us)
    }

    /// The greatest of what is known of the `n - f` replicas of `shard` that do best.
    fn of_most(&self, shard: ShardId, what: impl Fn(&Known) -> Option<u64>) -> Option<u64> {
        let mut all: Vec<u64> = self.shards[usize::from(shard.0)].iter().filter_map(what).collect();
        all.sort_unstable();
        let most = all.len().min(self.quorums.logged());
        most.checked_sub(1).map(|last| all[last])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHARD: ShardId = ShardId(0);

    fn replica(index: u16) -> ReplicaId {
        ReplicaId { shard: SHARD, index }
    }

    /// One shard with `f = 1`, whose replicas have answered `times` times, each after its number of milliseconds.
    fn answered(asked: RequestKind, times: u32, after_ms: &[u64]) -> RoundTrips {
        let mut round_trips = RoundTrips::new(Quorums::new(1), 1);
        for _ in 0..times {
            for (index, ms) in (0..).zip(after_ms) {
                round_trips.note(replica(index), asked, ms * 1_000_000);
            }
        }
        round_trips
    }

    #[test]
    fn what_has_not_answered_yet_may_be_anywhere() {
        let round_trips = answered(RequestKind::Read, 0, &[]);
        assert_eq!((round_trips.late_us(SHARD, RequestKind::Read), round_trips.late_us(SHARD, RequestKind::Vote)), (UNKNOWN_READ_US, 0));
        assert_eq!(round_trips.round_us(SHARD), 0);
        assert!(round_trips.is_near(replica(3), round_trips.near_us(SHARD, 3)));
    }

    #[test]
    fn steady_answers_are_late_soon_after_their_time() {
        let once = answered(RequestKind::Read, 1, &[100; 6]);
        assert_eq!(once.late_us(SHARD, RequestKind::Read), 300_000);
        let often = answered(RequestKind::Read, 40, &[100; 6]);
        let late_us = often.late_us(SHARD, RequestKind::Read);
        assert!((100_000..102_000).contains(&late_us), "{late_us}");
        // Nothing is known of votes but that they come from as far.
        assert_eq!(often.late_us(SHARD, RequestKind::Vote), late_us);
    }

    #[test]
    fn votes_that_wait_for_others_do_not_put_off_reads() {
        let mut round_trips = answered(RequestKind::Read, 40, &[1; 6]);
        for index in 0..6 {
            round_trips.note(replica(index), RequestKind::Vote, 900_000_000);
        }
        assert!(round_trips.late_us(SHARD, RequestKind::Read) < 2_000);
        assert_eq!(round_trips.late_us(SHARD, RequestKind::Vote), 2_700_000);
        assert_eq!(round_trips.round_us(SHARD), 1_000);
    }

    #[test]
    fn no_liar_makes_a_shard_look_slower_than_its_slowest_correct_replica() {
        let round_trips = answered(RequestKind::Read, 40, &[1, 1, 9_000, 1, 1, 20]);
        assert!((20_000..21_000).contains(&round_trips.late_us(SHARD, RequestKind::Read)));
        assert_eq!(round_trips.round_us(SHARD), 20_000);
    }

    #[test]
    fn the_nearest_are_those_that_take_little_longer_than_as_many_as_are_needed() {
        let planet = answered(RequestKind::Read, 1, &[0, 153, 99, 231, 106, 273]);
        let near_us = planet.near_us(SHARD, 3);
        let near: Vec<u16> = (0..6).filter(|index| planet.is_near(replica(*index), near_us)).collect();
        assert_eq!(near, [0, 2, 4]);
        // In one room all are alike, however busy some are.
        let room = answered(RequestKind::Read, 1, &[1, 3, 2, 4, 1, 5]);
        assert!((0..6).all(|index| room.is_near(replica(index), room.near_us(SHARD, 3))));
    }

    #[test]
    fn the_quickest_answer_is_forgotten_in_time() {
        let mut round_trips = answered(RequestKind::Read, 1, &[1; 6]);
        for _ in 0..2 * QUICKEST_OF {
            for index in 0..6 {
                round_trips.note(replica(index), RequestKind::Read, 80_000_000);
            }
        }
        assert_eq!(round_trips.round_us(SHARD), 80_000);
    }
}
