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
//!
//! A replica's clock may be set forward, as when its process starts anew. Bounds from before do not hold for what it shows then. So a
//! bound is *good* for a while from the question ([`CoordinatorOptions::clock_good_ms`](crate::CoordinatorOptions::clock_good_ms)), and a replica whose clock was set neither answers nor votes for as long
//! ([`crate::peer_clocks`]). A timestamp that was taken when too few bounds were good may be too low.
//!
//! What passed while this process stood still is in no bound from before, unless its own clock has counted it. It shows when `f + 1` clocks are
//! far beyond their bounds. But the answers that show it may have been given in the middle of the pause, and then the bounds that follow from
//! them are too low as well; so are those of older answers that were under way and come only now. So nothing counts any more that was asked for
//! before it showed, and all are asked anew.
//!
//! Whoever takes timestamps goes by a clock until the next one is told, at the end of a turn. What is taken from the old one meanwhile is too low
//! as well, though it may lie above what the new one showed when it was found.

use engine::{ClusterClock, stretched};
use machine::{Time, Voters};
use mutants::{Mutant, broken};
use types::ReplicaId;

use crate::quorum::Quorums;

/// How long the first question for clocks waits for its answers, and how long at most, in milliseconds, until enough are known.
const FIRST_MS: (u64, u64) = (4, 128);
/// The time for which bounds are good is looked at in so many parts.
const PARTS: u64 = 8;
/// After how many clocks are asked for again, while transactions run, and while none do.
const AGAIN_PARTS: (u64, u64) = (1, 3);
/// A bound counts while it is good for so many more; where enough others are, it must be for more. Before these are over there is time to ask again.
const PARTS_LEFT: (u64, u64) = (2, 4);
/// A bound is the lowest of those of so many parts at least; earlier ones count while they are good for so many more.
const LOWEST_OF_PARTS: u64 = 2;
const EARLIER_PARTS_LEFT: u64 = 4;
/// A cluster's clock that is lower by less is not told anew, in nanoseconds.
const LOWER_NS: u64 = 20_000;
/// A clock that is beyond its bound by more was set forward, or this process has stood still, in nanoseconds. By less, it is one that is being
/// set right.
const STEP_NS: u64 = 5_000_000;

/// What a replica's clock shows at most.
#[derive(Clone, Copy, Debug)]
struct Bound {
    /// The lowest answer's of some time. All of them were asked for at `since` or later.
    lowest: ClusterClock,
    since: Time,
    /// The same of the time before that.
    earlier: Option<(ClusterClock, Time)>,
}

impl Bound {
    fn first(answer: ClusterClock, sent: Time) -> Self {
        Self { lowest: answer, since: sent, earlier: None }
    }

    /// What it is, and until when that is good.
    fn read(&self, now: Time, good_ms: u64) -> (u64, Time) {
        let good_until = |since: Time| if broken(Mutant::ClockKnownForEver) { Time(u64::MAX) } else { since.after_ms(good_ms) };
        let earlier = self.earlier.filter(|(_, since)| good_until(*since) >= now.after_ms(good_ms * EARLIER_PARTS_LEFT / PARTS));
        match earlier {
            Some((earlier, since)) if earlier.read(now) < self.lowest.read(now) => (earlier.read(now), good_until(since)),
            _ => (self.lowest.read(now), good_until(self.since)),
        }
    }

    /// Another answer, which agrees with it. Whether it is another one now.
    fn renew(&mut self, now: Time, answer: ClusterClock, sent: Time, good_ms: u64) -> bool {
        let is_over = sent > self.since.after_ms(good_ms * LOWEST_OF_PARTS / PARTS);
        if is_over {
            self.earlier = Some((self.lowest, self.since));
        } else if answer.read(now) >= self.lowest.read(now) {
            return false;
        }
        self.lowest = answer;
        self.since = if is_over { sent } else { self.since.min(sent) };
        true
    }
}

/// The clocks of all replicas, as one client knows them.
#[derive(Debug)]
pub(crate) struct ReplicaClocks {
    quorums: Quorums,
    /// For how long a bound is good, in milliseconds.
    good_ms: u64,
    /// By shard and index: what the clock shows at most.
    bounds: Vec<Vec<Option<Bound>>>,
    clock: Option<ClusterClock>,
    /// Until when timestamps may be taken from `clock`.
    good_until: Time,
    /// By shard: who was found far beyond its bound since clocks were last asked for.
    beyond: Vec<Voters>,
    /// Timestamps up to here, in nanoseconds, were given while clocks were taken to be earlier than they were.
    too_low: u64,
    /// The clock that was told at the end of the last turn: timestamps are taken from it until the end of this one.
    told: Option<ClusterClock>,
    /// One that was told and showed too little; and whether another has been told since.
    outdated: Option<(ClusterClock, bool)>,
    /// When it last showed that this process stood still. Answers to what was asked before say nothing.
    stood_still: Time,
    ask_at: Time,
    wait_ms: u64,
    /// Whether a transaction has run since clocks were last asked for.
    is_used: bool,
}

impl ReplicaClocks {
    pub fn new(quorums: Quorums, shards: usize, good_ms: u64) -> Self {
        let bounds = vec![vec![None; quorums.replicas()]; shards];
        let beyond = vec![Voters::default(); shards];
        Self {
            quorums,
            good_ms,
            bounds,
            clock: None,
            good_until: Time(0),
            beyond,
            too_low: 0,
            told: None,
            outdated: None,
            stood_still: Time(0),
            ask_at: Time(0),
            wait_ms: FIRST_MS.0,
            is_used: false,
        }
    }

    /// The cluster's clock, once it is known.
    pub fn clock(&self) -> Option<ClusterClock> {
        self.clock
    }

    /// Whether a timestamp may lie below what was acknowledged before it was given.
    pub fn is_too_low(&self, time: u64) -> bool {
        let is_before_step = time <= self.too_low && !broken(Mutant::StepUnnoticed);
        is_before_step || self.clock.is_some_and(|clock| time > clock.read(self.good_until))
    }

    /// A step begins. By now, timestamps may have been taken from a clock that showed too little.
    pub fn step(&mut self, now: Time) {
        let Some((clock, is_over)) = self.outdated else { return };
        self.too_low = self.too_low.max(clock.read(now));
        if is_over {
            self.outdated = None;
        }
    }

    /// A turn ends, and the clock is told. Whether a step is wanted as soon as that has been done.
    pub fn end_turn(&mut self) -> bool {
        self.told = self.clock;
        if let Some((_, is_over)) = &mut self.outdated {
            *is_over = true;
        }
        self.outdated.is_some()
    }

    /// A transaction runs: clocks are to be known well. Whether they are now to be asked for sooner.
    pub fn used(&mut self, now: Time) -> bool {
        let soon = now.after_ms(self.good_ms * AGAIN_PARTS.0 / PARTS);
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
        let is_good = self.clock.is_some() && now <= self.good_until;
        let is_used = std::mem::take(&mut self.is_used);
        self.wait_ms = match is_good {
            true if is_used => self.good_ms * AGAIN_PARTS.0 / PARTS,
            true => self.good_ms * AGAIN_PARTS.1 / PARTS,
            false => (2 * self.wait_ms).clamp(FIRST_MS.0, FIRST_MS.1),
        };
        self.ask_at = now.after_ms(self.wait_ms);
        self.beyond.fill(Voters::default());
    }

    /// The clock of `replica` showed `reading` after it was asked something at `sent`. Whether clocks are to be asked for sooner than they were.
    pub fn note(&mut self, now: Time, replica: ReplicaId, sent: Time, reading: u64) -> bool {
        let is_sound = sent <= now && sent >= self.stood_still;
        let of_shard = self.bounds.get_mut(usize::from(replica.shard.0)).filter(|_| is_sound);
        let Some(kept) = of_shard.and_then(|shard| shard.get_mut(usize::from(replica.index))) else { return false };
        let answer = ClusterClock::new(now, reading.saturating_add(stretched(now.since(sent))));
        match kept {
            Some(bound) if reading <= bound.read(now, self.good_ms).0 => {
                if bound.renew(now, answer, sent, self.good_ms) {
                    self.update(now);
                }
            }
            _ => {
                let known = kept.replace(Bound::first(answer, sent)).map(|known| known.read(now, self.good_ms).0);
                let has_stepped = known.is_some_and(|known| known.saturating_add(STEP_NS) < reading) && self.found_beyond(replica);
                self.update(now);
                if has_stepped {
                    self.began_too_low(now);
                    return self.begin_anew(now);
                }
            }
        }
        false
    }

    /// This process stood still, or correct clocks were set: what was asked for before now bounds nothing any more. Until enough have answered
    /// what they are asked from now on, every timestamp is too low.
    fn begin_anew(&mut self, now: Time) -> bool {
        if broken(Mutant::PauseOutlived) {
            return false;
        }
        self.bounds.iter_mut().for_each(|shard| shard.fill(None));
        (self.stood_still, self.good_until) = (now, Time(now.0.saturating_sub(1)));
        (self.wait_ms, self.ask_at) = (FIRST_MS.0, now);
        true
    }

    /// One clock may have been set forward, and a liar's is anywhere. If `f + 1` are beyond their bounds, this process has stood still, or
    /// correct clocks were set: what it began before may lie too low.
    fn found_beyond(&mut self, replica: ReplicaId) -> bool {
        let Some(beyond) = self.beyond.get_mut(usize::from(replica.shard.0)) else { return false };
        beyond.insert(replica.index);
        let has_stepped = beyond.count() >= self.quorums.weak();
        if has_stepped {
            *beyond = Voters::default();
        }
        has_stepped
    }

    /// What has a timestamp below what the clock shows now may have been begun by one that showed too little. So may whatever begins before the
    /// new one has been told.
    fn began_too_low(&mut self, now: Time) {
        let shows = self.clock.map_or(0, |clock| clock.read(now));
        self.too_low = self.too_low.max(shows.saturating_sub(1));
        if !broken(Mutant::OldClockOutlived) {
            self.outdated = self.told.filter(|told| told.read(now) < shows).map(|told| (told, false));
        }
    }

    fn update(&mut self, now: Time) {
        let Some((time, good_until)) = self.highest_acknowledged(now) else { return };
        let (known, was_good_until) = (self.clock, self.good_until);
        let known_now = known.map(|clock| clock.read(now));
        let is_lower = known_now.is_some_and(|known| known.saturating_sub(time) > LOWER_NS);
        if is_lower || known_now.is_none_or(|known| time > known) {
            self.clock = Some(ClusterClock::new(now, time));
        }
        // A clock that shows more than what is found now is good for as long.
        self.good_until = if is_lower { good_until } else { was_good_until.max(good_until) };
        if known.is_some_and(|known| now > was_good_until || known.read(was_good_until) < time) {
            self.began_too_low(now);
        }
    }

    /// No correct client's transaction has been acknowledged above this; and until when that can be said of what a clock shows that
    /// goes on from there.
    fn highest_acknowledged(&self, now: Time) -> Option<(u64, Time)> {
        let of_shard = |shard: &Vec<Option<Bound>>| {
            let of = |parts_left: u64| -> Vec<(u64, Time)> {
                let least = now.after_ms(self.good_ms * parts_left / PARTS);
                let bounds = shard.iter().flatten().map(|bound| bound.read(now, self.good_ms));
                bounds.filter(|(_, good_until)| *good_until >= least).collect()
            };
            // A liar's answer may be as old as it likes.
            let fresh = of(PARTS_LEFT.1);
            let mut known = if fresh.len() >= self.quorums.logged() { fresh } else { of(PARTS_LEFT.0) };
            known.sort_unstable_by(|one, other| other.cmp(one));
            let place = if broken(Mutant::LowestClock) { known.len() } else { self.quorums.bounded_clock(known.len()) };
            let good_until = known.iter().map(|(_, good_until)| *good_until).min()?;
            (known.len() >= self.quorums.logged()).then(|| (known[place.max(1) - 1].0, good_until))
        };
        if broken(Mutant::OwnClock) {
            return Some((now.0, now.after_ms(self.good_ms)));
        }
        let each: Option<Vec<(u64, Time)>> = self.bounds.iter().map(of_shard).collect();
        let each = each?;
        Some((each.iter().map(|(time, _)| *time).max()?, each.iter().map(|(_, good_until)| *good_until).min()?))
    }
}

#[cfg(test)]
mod tests {
    use types::ShardId;

    use super::*;

    const SECOND: u64 = 1_000_000_000;
    const GOOD_MS: u64 = 2_000;
    /// What correct replicas' clocks show when the client's shows nothing.
    const TRUE: u64 = 1_000 * SECOND;

    fn replica(index: u16) -> ReplicaId {
        ReplicaId { shard: ShardId(0), index }
    }

    fn clocks() -> ReplicaClocks {
        ReplicaClocks::new(Quorums::new(1), 1, GOOD_MS)
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
    }

    #[test]
    fn what_was_heard_is_good_for_a_while() {
        let mut clocks = clocks();
        hear(&mut clocks, 0, &[0; 6]);
        let at = |clocks: &ReplicaClocks, now: u64| time(clocks, now).expect("all are known");
        // Four answers are too few to go on.
        hear(&mut clocks, SECOND, &[0; 4]);
        let good_until = GOOD_MS * 1_000_000;
        assert!(!clocks.is_too_low(at(&clocks, good_until)));
        let taken = at(&clocks, good_until + 1_000);
        assert!(clocks.is_too_low(taken));
        // It stays so, and what is taken now is not.
        hear(&mut clocks, 3 * SECOND, &[0; 6]);
        assert!(clocks.is_too_low(taken) && !clocks.is_too_low(at(&clocks, 3 * SECOND + 2_000_000)));
    }

    #[test]
    fn an_old_answer_counts_no_more_though_it_was_lower() {
        let mut clocks = clocks();
        hear(&mut clocks, 0, &[0; 6]);
        // All are set forward by less than would show: answers now take long.
        for ask in 1..=20 {
            let sent = ask * SECOND / 4;
            for index in 0..6 {
                clocks.note(Time(sent + 9_000_000), replica(index), Time(sent), TRUE + sent + 4_000_000);
            }
        }
        let now = 5 * SECOND + 9_000_000;
        assert!(time(&clocks, now).is_some_and(|time| time >= TRUE + now + 4_000_000));
    }

    #[test]
    fn a_client_that_stood_still_notices() {
        let mut clocks = clocks();
        hear(&mut clocks, 0, &[0; 6]);
        let before = time(&clocks, 2_000_000).expect("all are known");
        // It was paused for a second, and its own clock did not go on. Answers of f + 1 are enough to see it.
        hear(&mut clocks, 2_000_000, &[1_000_000_000, 1_000_000_000]);
        assert!(clocks.is_too_low(before) && clocks.due() == Time(3_000_000));
        hear(&mut clocks, 3_000_000, &[1_000_000_000; 6]);
        assert!(time(&clocks, 4_000_000).is_some_and(|time| time > TRUE + SECOND && !clocks.is_too_low(time)));
    }

    #[test]
    fn what_was_under_way_while_a_client_stood_still_bounds_nothing() {
        let mut clocks = clocks();
        hear(&mut clocks, 0, &[0; 6]);
        // It asks, and stands still for a second before the answers come, and its own clock does not go on. Those who answer do so in the middle
        // of that, after 60 ms: that shows that it stood still, and not for how long.
        let now = SECOND + 1_000_000;
        for index in 0..4 {
            clocks.note(Time(now), replica(index), Time(SECOND), TRUE + SECOND + 60_000_000);
        }
        let is_too_low = |clocks: &ReplicaClocks, at: u64| time(clocks, at).is_none_or(|time| clocks.is_too_low(time));
        assert!(is_too_low(&clocks, now + 1) && clocks.due() == Time(now), "a second ago");
        // The others had answered before, and that comes only now.
        for index in 4..6 {
            clocks.note(Time(now), replica(index), Time(SECOND), TRUE + SECOND);
        }
        assert!(is_too_low(&clocks, now + 1));
        let (again, ahead) = (now + 1_000, SECOND as i64);
        clocks.asked(Time(again));
        hear(&mut clocks, again, &[ahead; 4]);
        assert!(is_too_low(&clocks, again + 1_000_000), "four are too few");
        hear(&mut clocks, again, &[ahead; 6]);
        let is_right = |clocks: &ReplicaClocks, at: u64| time(clocks, at).is_some_and(|time| time >= TRUE + SECOND + at);
        assert!(is_right(&clocks, again + 1_000_000) && !is_too_low(&clocks, again + 1_000_000));
        for index in 0..6 {
            clocks.note(Time(again + 1_000_001), replica(index), Time(SECOND + 500_000), TRUE + SECOND + 1_000_000);
        }
        assert!(is_right(&clocks, again + 2_000_000), "what comes late lowers no bound");
    }

    #[test]
    fn what_begins_before_the_new_time_is_told_is_too_low() {
        let mut clocks = clocks();
        hear(&mut clocks, 0, &[0; 6]);
        // It heard nothing for long, and all were set forward meanwhile. Whoever has not been told goes on by the old clock.
        let old = clocks.clock().expect("all are known");
        let now = 10 * SECOND;
        hear(&mut clocks, now - 1_000_000, &[SECOND as i64; 6]);
        hear(&mut clocks, now, &[SECOND as i64; 6]);
        let told = time(&clocks, now + 2_000_000).expect("all are known");
        assert!(clocks.is_too_low(old.read(Time(now + 100_000_000))) && !clocks.is_too_low(told));
    }

    #[test]
    fn what_is_taken_from_the_old_clock_until_the_new_one_is_told_is_too_low() {
        let mut clocks = clocks();
        hear(&mut clocks, 0, &[0; 6]);
        assert!(!clocks.end_turn());
        // It was paused for 10 ms, and its own clock did not go on.
        let (old, ahead) = (clocks.clock().expect("all are known"), 10_000_000);
        hear(&mut clocks, SECOND, &[ahead; 6]);
        hear(&mut clocks, SECOND + 1_000_000, &[ahead; 6]);
        let is_too_low = |clocks: &mut ReplicaClocks, taken: u64, now: u64| {
            clocks.step(Time(now));
            clocks.is_too_low(old.read(Time(taken)))
        };
        // The turn takes long: in it, and until the clock is told, others go by the old one.
        assert!(is_too_low(&mut clocks, SECOND + 50_000_000, SECOND + 60_000_000));
        assert!(clocks.end_turn());
        assert!(is_too_low(&mut clocks, SECOND + 80_000_000, SECOND + 90_000_000));
        let new = clocks.clock().expect("all are known");
        assert!(!clocks.is_too_low(new.read(Time(SECOND + 90_000_000))) && !clocks.end_turn());
        clocks.step(Time(SECOND + 200_000_000));
        assert!(!clocks.is_too_low(new.read(Time(SECOND + 90_000_000))), "nobody goes by the old one any more");
    }

    #[test]
    fn a_clock_that_showed_too_much_makes_nothing_too_low() {
        let mut clocks = clocks();
        hear(&mut clocks, 0, &[SECOND as i64; 6]);
        clocks.end_turn();
        // It went by a clock that was ahead, and heard nothing for long.
        let now = 10 * SECOND;
        hear(&mut clocks, now, &[0; 6]);
        hear(&mut clocks, now + 2_000_000, &[0; 6]);
        assert!(!clocks.end_turn());
    }

    #[test]
    fn a_client_that_stood_still_notices_though_its_last_answers_took_long() {
        let mut clocks = clocks();
        hear(&mut clocks, 0, &[0; 6]);
        let answered = |clocks: &mut ReplicaClocks, sent: u64, took: u64, ahead: u64| {
            for index in 0..6 {
                clocks.note(Time(sent + took), replica(index), Time(sent), TRUE + sent + ahead);
            }
        };
        answered(&mut clocks, SECOND * 6 / 10, 100_000_000, 0);
        let before = time(&clocks, SECOND * 3 / 4).expect("all are known");
        // It was paused, for less than those answers took.
        answered(&mut clocks, SECOND * 4 / 5, 1_000_000, 60_000_000);
        assert!(clocks.is_too_low(before));
        answered(&mut clocks, SECOND * 17 / 20, 1_000_000, 60_000_000);
        assert!(time(&clocks, SECOND * 9 / 10).is_some_and(|time| time >= TRUE + SECOND * 9 / 10 + 60_000_000));
    }

    #[test]
    fn the_first_time_that_is_known_is_not_too_low_when_better_answers_come() {
        let mut clocks = clocks();
        for index in 0..5 {
            clocks.note(Time(50_000_000), replica(index), Time(0), TRUE + 1_000_000);
        }
        hear(&mut clocks, 60_000_000, &[0; 6]);
        assert!(time(&clocks, 62_000_000).is_some_and(|time| time < TRUE + 63_000_000 && !clocks.is_too_low(time)));
    }

    #[test]
    fn an_old_answer_of_a_liar_ends_no_time() {
        let mut clocks = clocks();
        hear(&mut clocks, SECOND * 14 / 10, &[0; 5]);
        clocks.note(Time(SECOND * 14 / 10 + 1_000_000), replica(5), Time(0), TRUE + SECOND);
        let now = SECOND * 14 / 10 + (GOOD_MS - 10) * 1_000_000;
        assert!(time(&clocks, now).is_some_and(|time| !clocks.is_too_low(time)));
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
        for second in 1..60 {
            hear(&mut clocks, second * SECOND, &[0; 6]);
            assert!(ask_until(&mut clocks, (second + 1) * SECOND) <= 2 || second == 1, "nobody uses it");
        }
        let now = Time(clocks.due().0 - SECOND / 2);
        assert!(clocks.used(now) && !clocks.used(now));
        assert!(clocks.due() <= now.after_ms(GOOD_MS * AGAIN_PARTS.0 / PARTS));
    }
}
