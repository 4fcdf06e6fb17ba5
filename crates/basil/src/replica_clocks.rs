//! What the replicas' clocks show at most, and so which timestamp lies above all that was acknowledged before.
//!
//! A replica answers no read and casts no vote before its own clock has reached the timestamp ([`crate::replica`]). So when a
//! transaction is acknowledged, `2f + 1` correct replicas of each of its shards have clocks at or above its timestamp. A client
//! that wants to be above it, too, need not trust its own clock, nor that the replicas' agree. It keeps an *upper bound* on each
//! replica's clock: the clock's reading in an answer, and as much as has passed since the question was sent, was certainly not
//! exceeded when the answer came. Of all such bounds the lowest is kept; each goes on a little faster than any clock does.
//!
//! If bounds on `k` of the `5f + 1` clocks are known, at least `k − 3f` of them are on clocks of those `2f + 1`. So the
//! `k − 3f`-th highest is at or above every timestamp acknowledged before, whatever `f` liars say; and as it is not among the
//! `f` highest, no liars push it further than a correct replica's clock and one message's way. `k` is to be `4f + 1` at least.

use engine::{ClusterClock, stretched};
use machine::{Time, Voters};
use mutants::{Mutant, broken};
use types::ReplicaId;

use crate::quorum::Quorums;

/// How long the first question for clocks waits for its answers, and how long at most, in milliseconds, until enough are known.
const FIRST_MS: (u64, u64) = (4, 128);
/// After how long clocks are asked for again while transactions run, and at most while none do, in milliseconds.
const AGAIN_MS: (u64, u64) = (250, 8_000);
/// A cluster's clock that is lower by less is not told anew, in nanoseconds.
const LOWER_NS: u64 = 20_000;
/// A clock that is beyond its bound by more was set forward, or this process has stood still, in nanoseconds. By less, it is one that is being
/// set right.
const STEP_NS: u64 = 5_000_000;

/// The clocks of all replicas, as one client knows them.
#[derive(Debug)]
pub(crate) struct ReplicaClocks {
    quorums: Quorums,
    /// By shard and index: what the clock shows at most.
    bounds: Vec<Vec<Option<ClusterClock>>>,
    clock: Option<ClusterClock>,
    /// By shard: who was found far beyond its bound since clocks were last asked for.
    beyond: Vec<Voters>,
    /// Timestamps up to here, in nanoseconds, were given while clocks were taken to be earlier than they were.
    too_low: u64,
    ask_at: Time,
    wait_ms: u64,
    /// Whether a transaction has run since clocks were last asked for.
    is_used: bool,
}

impl ReplicaClocks {
    pub fn new(quorums: Quorums, shards: usize) -> Self {
        let bounds = vec![vec![None; quorums.replicas()]; shards];
        let beyond = vec![Voters::default(); shards];
        Self { quorums, bounds, clock: None, beyond, too_low: 0, ask_at: Time(0), wait_ms: FIRST_MS.0, is_used: false }
    }

    /// The cluster's clock, once it is known.
    pub fn clock(&self) -> Option<ClusterClock> {
        self.clock
    }

    /// Whether a timestamp may lie below what was acknowledged before it was given.
    pub fn is_too_low(&self, time: u64) -> bool {
        time <= self.too_low && !broken(Mutant::StepUnnoticed)
    }

    /// A transaction runs: clocks are to be known well. Whether they are now to be asked for sooner.
    pub fn used(&mut self, now: Time) -> bool {
        let soon = now.after_ms(AGAIN_MS.0);
        let is_sooner = !std::mem::replace(&mut self.is_used, true) && soon < self.ask_at;
        self.ask_at = self.ask_at.min(soon);
        is_sooner
    }

    /// When to ask all replicas what time it is.
    pub fn due(&self) -> Time {
        self.ask_at
    }

    /// They are asked now.
    pub fn asked(&mut self, now: Time) {
        let (least_ms, most_ms) = if self.clock.is_some() { AGAIN_MS } else { FIRST_MS };
        self.wait_ms = if std::mem::take(&mut self.is_used) { least_ms } else { (2 * self.wait_ms).clamp(least_ms, most_ms) };
        self.ask_at = now.after_ms(self.wait_ms);
        self.beyond.fill(Voters::default());
    }

    /// The clock of `replica` showed `reading` after it was asked something at `sent`.
    pub fn note(&mut self, now: Time, replica: ReplicaId, sent: Time, reading: u64) {
        let of_shard = self.bounds.get_mut(usize::from(replica.shard.0));
        let Some(kept) = of_shard.and_then(|shard| shard.get_mut(usize::from(replica.index))).filter(|_| sent <= now) else { return };
        let bound = ClusterClock::new(now, reading.saturating_add(stretched(now.since(sent))));
        let known = kept.map_or(u64::MAX, |kept| kept.read(now));
        if bound.read(now) < known || known < reading {
            *kept = Some(bound);
            if known.saturating_add(STEP_NS) < reading {
                self.found_beyond(now, replica);
            }
            self.update(now);
        }
    }

    /// One clock may have been set forward, and a liar's is anywhere. If `f + 1` are beyond their bounds, this process has stood still, or
    /// correct clocks were set: what it began before may lie too low.
    fn found_beyond(&mut self, now: Time, replica: ReplicaId) {
        let Some(beyond) = self.beyond.get_mut(usize::from(replica.shard.0)) else { return };
        beyond.insert(replica.index);
        if beyond.count() >= self.quorums.weak() {
            *beyond = Voters::default();
            self.too_low = self.clock.map_or(0, |clock| clock.read(now)).max(self.too_low);
        }
    }

    fn update(&mut self, now: Time) {
        let Some(time) = self.highest_acknowledged(now) else { return };
        let known = self.clock.map(|clock| clock.read(now));
        if known.is_none_or(|known| time > known || known - time > LOWER_NS) {
            self.clock = Some(ClusterClock::new(now, time));
        }
    }

    /// No correct client's transaction has been acknowledged above this.
    fn highest_acknowledged(&self, now: Time) -> Option<u64> {
        let of_shard = |shard: &Vec<Option<ClusterClock>>| {
            let mut known: Vec<u64> = shard.iter().flatten().map(|bound| bound.read(now)).collect();
            known.sort_unstable_by(|one, other| other.cmp(one));
            let place = if broken(Mutant::LowestClock) { known.len() } else { self.quorums.bounded_clock(known.len()) };
            (known.len() >= self.quorums.logged()).then(|| known[place.max(1) - 1])
        };
        if broken(Mutant::OwnClock) {
            return Some(now.0);
        }
        let each: Option<Vec<u64>> = self.bounds.iter().map(of_shard).collect();
        each?.into_iter().max()
    }
}

#[cfg(test)]
mod tests {
    use types::ShardId;

    use super::*;

    const SECOND: u64 = 1_000_000_000;
    /// What correct replicas' clocks show when the client's shows nothing.
    const TRUE: u64 = 1_000 * SECOND;

    fn replica(index: u16) -> ReplicaId {
        ReplicaId { shard: ShardId(0), index }
    }

    fn clocks() -> ReplicaClocks {
        ReplicaClocks::new(Quorums::new(1), 1)
    }

    /// Each replica is asked at `sent`, answers in the middle, and is heard a millisecond later.
    fn hear(clocks: &mut ReplicaClocks, sent: u64, ahead_ns: &[i64]) {
        for (index, ahead) in (0..).zip(ahead_ns) {
            let reading = (TRUE + sent + 500_000).saturating_add_signed(*ahead);
            clocks.note(Time(sent + 1_000_000), replica(index), Time(sent), reading);
        }
    }

    fn time(clocks: &ReplicaClocks, now: u64) -> Option<u64> {
        clocks.clock().map(|clock| clock.read(Time(now)))
    }

    #[test]
    fn clocks_of_4f_plus_1_are_needed() {
        let mut clocks = clocks();
        hear(&mut clocks, 0, &[0, 0, 0, 0]);
        assert_eq!(clocks.clock(), None);
        hear(&mut clocks, 0, &[0, 0, 0, 0, 0]);
        assert!(time(&clocks, 1_000_000).is_some_and(|time| (TRUE + 1_000_000..TRUE + 1_501_000).contains(&time)));
    }

    #[test]
    fn no_liar_pushes_the_time_or_holds_it_back() {
        for liar in [i64::MAX, -(1 << 50)] {
            let mut clocks = clocks();
            hear(&mut clocks, 0, &[liar, 0, 1_000, 2_000, 3_000, 4_000]);
            // Two correct replicas voted late and one lied: the three others had reached this.
            let time = time(&clocks, 1_000_000).expect("all are known");
            assert!((TRUE + 1_000_000 + 2_000..TRUE + 1_505_000).contains(&time), "{}", time - TRUE);
        }
    }

    #[test]
    fn the_time_stays_above_the_replicas_and_near_them() {
        let mut clocks = clocks();
        hear(&mut clocks, 0, &[0; 6]);
        for second in 1..100 {
            let now = second * SECOND;
            let ahead = time(&clocks, now).expect("all are known") - (TRUE + now);
            assert!(ahead < 1_100_000, "{ahead}");
            hear(&mut clocks, now, &[0; 6]);
        }
        // A bound that is not renewed grows, as the clock may run faster than the client's.
        let now = 200 * SECOND;
        assert!(time(&clocks, now).is_some_and(|time| time - (TRUE + now) > 50_000_000));
    }

    #[test]
    fn a_client_that_stood_still_notices() {
        let mut clocks = clocks();
        hear(&mut clocks, 0, &[0; 6]);
        let before = time(&clocks, 2_000_000).expect("all are known");
        // It was paused for a second, and its own clock did not go on. Answers of 2f + 1 are enough to see it.
        hear(&mut clocks, 2_000_000, &[1_000_000_000, 1_000_000_000, 1_000_000_000]);
        assert!(clocks.is_too_low(before));
        assert!(time(&clocks, 3_000_000).is_some_and(|time| time > TRUE + SECOND && !clocks.is_too_low(time)));
    }

    #[test]
    fn one_replica_beyond_its_bound_disturbs_nobody() {
        let mut clocks = clocks();
        hear(&mut clocks, 0, &[0; 6]);
        let before = time(&clocks, 2_000_000).expect("all are known");
        for sent in 2..100 {
            let ahead = if sent % 2 == 0 { 1_000_000_000 } else { -1_000_000_000 };
            hear(&mut clocks, sent * 1_000_000, &[ahead, 0, 0, 0, 0, 0]);
        }
        assert!(!clocks.is_too_low(before));
    }

    #[test]
    fn clocks_are_asked_for_often_while_there_is_work_and_seldom_else() {
        let mut clocks = clocks();
        let mut asked = 0;
        let mut ask_until = |clocks: &mut ReplicaClocks, until: u64| {
            let before = asked;
            while clocks.due().0 <= until {
                let now = clocks.due();
                clocks.asked(now);
                asked += 1;
            }
            asked - before
        };
        assert!((5..20).contains(&ask_until(&mut clocks, SECOND)), "nobody answers");
        hear(&mut clocks, SECOND, &[0; 6]);
        assert!(ask_until(&mut clocks, 60 * SECOND) < 20);
        assert!(clocks.used(Time(60 * SECOND)) && !clocks.used(Time(60 * SECOND)));
        assert!(clocks.due() <= Time(60 * SECOND).after_ms(AGAIN_MS.0));
    }
}
