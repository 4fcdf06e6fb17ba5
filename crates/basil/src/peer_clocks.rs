//! A replica's clock, held near those of the other replicas (beyond the paper).
//!
//! The shell's clock goes evenly, and starts with what the machine's wall clock showed when the process started. That may have been anything.
//! And a machine that was paused is behind. So a replica asks the others of its shard what time it is, and goes by the median of the answers and
//! its own time, within what a round trip leaves open. With `f` liars among them, the median lies between two correct clocks. Clients take
//! their timestamps from the shard whose clocks show most. So it asks those of other shards as well, and what it goes by is the greatest median.
//!
//! - **When it starts**, it neither answers nor votes before it has heard enough others. It goes by those whose clocks are set, if these are
//!   enough; else all tell one another what they would show by themselves. Then its clock shows the lower median. But never less than what
//!   an earlier process of this replica has voted for, which is in the journal: others rely on that ([`crate::replica_clocks`]).
//! - **Ahead** of the median by more than a little, its clock goes at half speed: it never goes back.
//! - **Behind**, its clock is set forward.
//!
//! Clients rely for a while on what they have heard of a replica's clock ([`crate::replica_clocks`]). So whenever it was set, by a new process or
//! forward, the replica answers no read and casts no vote until nobody does so any more: what comes waits ([`crate::replica`]).

use engine::{ClockReport, stretched};
use machine::Time;
use mutants::{Mutant, broken};
use types::{ReplicaId, ShardId};

use crate::quorum::Quorums;

/// How often the others are asked, how often while this clock is off, and how often before it is set, in milliseconds.
const ASK_MS: u64 = 2_000;
const ASK_OFF_MS: u64 = 500;
const ASK_FIRST_MS: u64 = 50;
/// For how long a replica that starts waits for all others, if enough have answered, in milliseconds.
const START_MS: u64 = 1_000;
/// An answer that takes longer says too little.
const ROUND_TRIP_MS_MAX: u64 = 2_000;
/// An answer counts for so long, in milliseconds.
const FRESH_MS: u64 = 3 * ASK_MS;
/// No clock shows more, in nanoseconds: this is in the twenty-third century.
const READING_MAX: u64 = u64::MAX / 2;
/// A clock is left alone while it is off by less, in nanoseconds: so much may a wall clock be that is kept right.
const OFF_NS: i128 = 50_000_000;

/// Whether a replica goes by what it said of its clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It does.
    Set,
    /// It has just started, and would if nobody else were heard.
    Proposed,
}

/// What another's clock showed, less what the shell's here did.
#[derive(Clone, Copy, Debug)]
struct Sample {
    standing: Standing,
    heard_at: Time,
    least: i128,
    most: i128,
}

impl Sample {
    fn middle(&self) -> i128 {
        i128::midpoint(self.least, self.most)
    }
}

/// The clock of one replica.
#[derive(Debug)]
pub(crate) struct PeerClocks {
    me: ReplicaId,
    quorums: Quorums,
    /// By shard and index.
    samples: Vec<Vec<Option<Sample>>>,
    began: Time,
    ask_at: Time,
    /// It showed this when the shell's clock showed that.
    shows: u64,
    at: Time,
    /// An earlier process of this replica has voted up to here.
    floor: u64,
    /// By how much it is still to fall back, in nanoseconds, at half speed.
    ahead: u64,
    is_set: bool,
    /// For how long clients rely on what it shows, in milliseconds.
    good_ms: u64,
    /// Until then clients may rely on what it showed before it was set.
    relied_on_until: Time,
    /// Whether it was set, and that has not been told yet.
    is_newly_set: bool,
    /// By how much it is ahead of the others', in nanoseconds, once that is known.
    error: Option<i128>,
}

impl PeerClocks {
    /// The clock of `me`, whose shell's clock shows `now`. Clients rely on it for `good_ms`. What an earlier process of this replica voted
    /// for lies up to `floor`, if there was one.
    pub fn new(me: ReplicaId, quorums: Quorums, shards: usize, now: Time, good_ms: u64, floor: Option<u64>) -> Self {
        let relied_on_until = if floor.is_some() { relied_on_until(now, good_ms) } else { now };
        let floor = floor.unwrap_or(0);
        Self {
            me,
            quorums,
            samples: vec![vec![None; quorums.replicas()]; shards],
            began: now,
            ask_at: now,
            shows: now.0.max(floor),
            at: now,
            floor,
            ahead: 0,
            is_set: broken(Mutant::StartsAlone),
            good_ms,
            relied_on_until,
            is_newly_set: broken(Mutant::StartsAlone),
            error: None,
        }
    }

    /// What was said under the key that `other` had counts no more.
    pub fn forget(&mut self, other: ReplicaId) {
        if let Some(sample) = self.samples.get_mut(usize::from(other.shard.0)).and_then(|shard| shard.get_mut(usize::from(other.index))) {
            *sample = None;
        }
    }

    /// Whether it is known well enough to go by it.
    pub fn is_set(&self) -> bool {
        self.is_set
    }

    /// If it was set, and that was not told before: for how long clients may rely on what it showed earlier, in nanoseconds.
    pub fn newly_set(&mut self, now: Time) -> Option<u64> {
        std::mem::take(&mut self.is_newly_set).then(|| self.relied_on_until.since(now))
    }

    /// What it shows when the shell's clock shows `now`. Before it is set, what it would show if nobody else were heard.
    pub fn read(&mut self, now: Time) -> Time {
        let elapsed = now.since(self.at);
        let lost = (elapsed / 2).min(self.ahead);
        self.ahead -= lost;
        self.shows = self.shows.saturating_add(elapsed - lost);
        self.at = self.at.max(now);
        Time(self.shows)
    }

    /// What the shell's clock shows when this one shows `time`.
    pub fn when(&self, time: Time) -> Time {
        let needed = time.0.saturating_sub(self.shows);
        Time(self.at.0.saturating_add(needed).saturating_add(needed.min(self.ahead)))
    }

    /// When to ask the others.
    pub fn due(&self) -> Time {
        self.ask_at
    }

    /// They are asked now.
    pub fn asked(&mut self, now: Time) {
        let is_off = self.error.is_some_and(|error| error.abs() > OFF_NS);
        self.ask_at = now.after_ms(match self.is_set {
            true if is_off => ASK_OFF_MS,
            true => ASK_MS,
            false => ASK_FIRST_MS,
        });
    }

    /// `replica` said that its clock showed `reading` when it was asked at `asked_at`.
    pub fn note(&mut self, now: Time, replica: ReplicaId, asked_at: Time, reading: u64, standing: Standing) {
        // Others may have been asked again meanwhile. Whoever says that it was asked at another time lies, as it may about its clock.
        let is_in_time = asked_at <= now && now <= asked_at.after_ms(ROUND_TRIP_MS_MAX);
        let is_good = is_in_time && replica != self.me && reading <= READING_MAX;
        let of_shard = self.samples.get_mut(usize::from(replica.shard.0)).filter(|_| is_good);
        let place = of_shard.and_then(|shard| shard.get_mut(usize::from(replica.index)));
        let Some(place) = place else { return };
        let least = i128::from(reading) - i128::from(now.0);
        *place = Some(Sample { standing, heard_at: now, least, most: least + i128::from(now.since(asked_at)) });
        self.adjust(now);
    }

    /// Sets it, if enough is known.
    pub fn adjust(&mut self, now: Time) {
        let own = i128::from(self.read(now).0) - i128::from(now.0);
        let (set, proposed) = self.fresh(now, self.me.shard);
        if self.is_set {
            self.follow(now, own, &set);
            return;
        }
        let heard = set.len() + proposed.len();
        let median = if set.len() >= self.quorums.clocks_set() {
            lower_median(offsets(&set, None, Sample::middle))
        } else if heard + 1 == self.quorums.replicas() || (heard >= self.quorums.timekeepers() && now >= self.began.after_ms(START_MS)) {
            lower_median(offsets(&[set, proposed].concat(), Some(own), Sample::middle))
        } else {
            return;
        };
        let time = self.elsewhere(now, Sample::middle).map_or(median, |elsewhere| elsewhere.max(median));
        self.shows = clamped(i128::from(now.0) + time).max(self.floor);
        self.error = Some(i128::from(self.shows) - i128::from(now.0) - time);
        (self.is_set, self.is_newly_set) = (true, true);
    }

    /// Goes by those whose clocks are set. This one is ahead of the shell's by `own`.
    fn follow(&mut self, now: Time, own: i128, set: &[Sample]) {
        self.error = None;
        if set.len() < self.quorums.timekeepers() {
            return;
        }
        let time = |of: fn(&Sample) -> i128| {
            let median = upper_median(offsets(set, Some(own), of));
            self.elsewhere(now, of).map_or(median, |elsewhere| elsewhere.max(median))
        };
        let (error, behind, ahead) = (own - time(Sample::middle), time(|sample| sample.least) - own, own - time(|sample| sample.most));
        self.error = Some(error);
        if behind > OFF_NS {
            self.ahead = 0;
            self.shows = clamped(i128::from(self.shows) + behind);
            self.error = Some(0);
            self.relied_on_until = relied_on_until(now, self.good_ms);
            self.is_newly_set = true;
        } else if ahead > OFF_NS {
            self.ahead = clamped(ahead);
        }
    }

    /// What was heard of late from `shard`: of clocks that are set, and of others.
    fn fresh(&self, now: Time, shard: ShardId) -> (Vec<Sample>, Vec<Sample>) {
        let fresh = |sample: &&Sample| sample.heard_at.after_ms(FRESH_MS) > now;
        let samples = self.samples.get(usize::from(shard.0)).into_iter().flatten().flatten().filter(fresh);
        samples.partition(|sample| sample.standing == Standing::Set)
    }

    /// The greatest of other shards' medians, of those of which enough is known.
    fn elsewhere(&self, now: Time, of: fn(&Sample) -> i128) -> Option<i128> {
        let others = (0..).map(ShardId).take(self.samples.len()).filter(|shard| *shard != self.me.shard);
        let set = others.map(|shard| self.fresh(now, shard).0).filter(|set| set.len() >= self.quorums.clocks_set());
        set.map(|set| lower_median(offsets(&set, None, of))).max()
    }

    /// How it stands with it.
    pub fn report(&self) -> ClockReport {
        let nanoseconds = |error: i128| i64::try_from(error).unwrap_or(if error < 0 { i64::MIN } else { i64::MAX });
        ClockReport { is_set: self.is_set, shows: Time(self.shows), ahead_ns: self.error.map(nanoseconds) }
    }
}

/// Until when clients may rely on what a clock showed that was set at `now`: none whose own goes evenly does so for longer.
fn relied_on_until(now: Time, good_ms: u64) -> Time {
    if broken(Mutant::ServesAtOnce) { now } else { Time(now.0.saturating_add(stretched(good_ms.saturating_mul(1_000_000)))) }
}

/// What `of` gives for each, and `own`, in order.
fn offsets(samples: &[Sample], own: Option<i128>, of: fn(&Sample) -> i128) -> Vec<i128> {
    let mut offsets: Vec<i128> = samples.iter().map(of).chain(own).collect();
    offsets.sort_unstable();
    offsets
}

fn lower_median(sorted: Vec<i128>) -> i128 {
    sorted.get(sorted.len().saturating_sub(1) / 2).copied().unwrap_or(0)
}

fn upper_median(sorted: Vec<i128>) -> i128 {
    sorted.get(sorted.len() / 2).copied().unwrap_or(0)
}

fn clamped(nanoseconds: i128) -> u64 {
    u64::try_from(nanoseconds.max(0)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD_MS: u64 = 2_000;
    const MS: i128 = 1_000_000;
    const SECOND: i128 = 1_000 * MS;
    const TRUE: u64 = 1_800_000_000_000_000_000;

    fn replica(index: u16) -> ReplicaId {
        ReplicaId { shard: ShardId(0), index }
    }

    /// A shard of six, each with a shell's clock that is off by so much, and what liars say.
    struct Shard {
        clocks: Vec<PeerClocks>,
        off: Vec<i128>,
        liars: Vec<(usize, u64)>,
        passed_ms: u64,
    }

    impl Shard {
        fn new(off_s: [i128; 6]) -> Self {
            let off: Vec<i128> = off_s.iter().map(|off| off * SECOND).collect();
            let shell = |at: usize| Time(clamped(i128::from(TRUE) + off[at]));
            let clock = |at: u16| PeerClocks::new(replica(at), Quorums::new(1), 1, shell(at.into()), GOOD_MS, None);
            Self { clocks: (0..6).map(clock).collect(), off, liars: Vec::new(), passed_ms: 0 }
        }

        fn shell(&self, at: usize) -> Time {
            Time(clamped(i128::from(TRUE) + i128::from(self.passed_ms) * MS + self.off[at]))
        }

        fn said(&mut self, at: usize) -> u64 {
            let shell = self.shell(at);
            let lie = self.liars.iter().find(|(liar, _)| *liar == at).map(|(_, lie)| *lie);
            lie.unwrap_or_else(|| self.clocks[at].read(shell).0)
        }

        /// Everybody who wants to asks everybody else; an answer takes two milliseconds, and shows what the clock showed in the middle.
        fn run(&mut self, seconds: u64) {
            for _ in 0..seconds * 1_000 {
                self.passed_ms += 1;
                let asking: Vec<usize> = (0..6).filter(|at| self.clocks[*at].due() <= self.shell(*at)).collect();
                for at in asking {
                    let asked_at = self.shell(at);
                    self.clocks[at].asked(asked_at);
                    let said: Vec<(u16, u64)> =
                        (0..6).filter(|other| usize::from(*other) != at).map(|other| (other, self.said(other.into()))).collect();
                    for (other, said) in said {
                        let before = self.said(at);
                        let standing = if self.clocks[usize::from(other)].is_set() { Standing::Set } else { Standing::Proposed };
                        let was_set = self.clocks[at].is_set();
                        self.clocks[at].note(Time(asked_at.0 + 1), replica(other), asked_at, said, standing);
                        assert!(!was_set || self.said(at) >= before, "it never goes back");
                    }
                }
            }
        }

        fn newly_set(&mut self) -> Vec<Option<u64>> {
            let shells: Vec<Time> = (0..6).map(|at| self.shell(at)).collect();
            self.clocks.iter_mut().zip(shells).map(|(clock, shell)| clock.newly_set(shell)).collect()
        }

        /// By how much each is ahead of true time, in milliseconds.
        fn ahead_ms(&mut self) -> Vec<i128> {
            let ahead = |said: u64, passed_ms| (i128::from(said) - i128::from(TRUE)).div_euclid(MS) - i128::from(passed_ms);
            (0..6).map(|at| ahead(self.said(at), self.passed_ms)).collect()
        }
    }

    #[test]
    fn whoever_starts_with_a_wrong_wall_clock_takes_the_others_time() {
        for off_s in [[600, 600, 600, 0, 0, 0], [0, 40, 0, 0, 0, 0], [0, 0, -3_600, 0, 0, 0], [0, 0, 0, 0, -1, 99_999]] {
            let mut shard = Shard::new(off_s);
            assert!(shard.clocks.iter().all(|clock| !clock.is_set()));
            shard.run(2);
            assert!(shard.clocks.iter().all(PeerClocks::is_set));
            assert!(shard.ahead_ms().iter().all(|ahead| ahead.abs() <= 2), "{:?}", shard.ahead_ms());
        }
    }

    #[test]
    fn nobody_starts_by_the_word_of_few() {
        let clock = || {
            let mut clock = PeerClocks::new(replica(0), Quorums::new(1), 1, Time(TRUE), GOOD_MS, None);
            clock.asked(Time(TRUE));
            clock
        };
        let said_by =
            |clock: &mut PeerClocks, index, reading, standing| clock.note(Time(TRUE), replica(index), Time(TRUE), reading, standing);
        let mut alone = clock();
        let elsewhere = ReplicaId { shard: ShardId(1), index: 2 };
        for who in [replica(1), replica(1), replica(2), replica(0), elsewhere, replica(9)] {
            alone.note(Time(TRUE), who, Time(TRUE), 5, Standing::Set);
        }
        // Nobody has asked then; and this comes too late.
        alone.note(Time(TRUE), replica(3), Time(TRUE + 1), 5, Standing::Set);
        alone.note(Time(TRUE).after_ms(ROUND_TRIP_MS_MAX + 1), replica(3), Time(TRUE), 5, Standing::Set);
        said_by(&mut alone, 4, 7, Standing::Proposed);
        assert!(!alone.is_set(), "the others may still answer");
        alone.adjust(Time(TRUE).after_ms(START_MS - 1));
        assert!(!alone.is_set());
        alone.adjust(Time(TRUE).after_ms(START_MS));
        assert!(alone.is_set());
        assert_eq!(alone.read(Time(TRUE).after_ms(START_MS)).0, 5 + START_MS * 1_000_000, "of 5, 5, 7 and its own");
        // Of those who know what time it is, 2f + 1 are enough at once.
        let mut clock = clock();
        said_by(&mut clock, 1, 0, Standing::Set);
        said_by(&mut clock, 2, 8, Standing::Set);
        said_by(&mut clock, 3, 1, Standing::Proposed);
        assert!(!clock.is_set());
        said_by(&mut clock, 4, 9, Standing::Set);
        assert_eq!((clock.is_set(), clock.read(Time(TRUE)).0), (true, 8));
    }

    #[test]
    fn answers_from_afar_count() {
        let mut clock = PeerClocks::new(replica(0), Quorums::new(1), 1, Time(TRUE), GOOD_MS, None);
        let arrives = Time(TRUE).after_ms(300);
        while clock.due() <= arrives {
            clock.asked(clock.due());
        }
        for index in 1..=3 {
            assert!(!clock.is_set());
            clock.note(arrives, replica(index), Time(TRUE), TRUE, Standing::Set);
        }
        assert!(clock.is_set(), "though it asked again");
        assert_eq!(clock.read(arrives).0, TRUE + 150_000_000);
    }

    #[test]
    fn whoever_runs_does_not_follow_those_who_start() {
        let mut shard = Shard::new([0, 0, 0, 0, 0, 0]);
        shard.run(3);
        for at in [0, 1, 2_u16] {
            shard.off[usize::from(at)] = 600 * SECOND;
            shard.clocks[usize::from(at)] = PeerClocks::new(replica(at), Quorums::new(1), 1, shard.shell(at.into()), GOOD_MS, Some(0));
        }
        for _ in 0..60 {
            shard.run(1);
            assert!(shard.ahead_ms().iter().all(|ahead| ahead.abs() <= 2), "{:?}", shard.ahead_ms());
        }
    }

    #[test]
    fn no_liar_pushes_a_clock_or_holds_it() {
        for lie in [0, TRUE - 9_000_000_000, TRUE + 9_000_000_000, u64::MAX] {
            let mut shard = Shard::new([0, 0, 0, 0, 0, 0]);
            shard.liars = vec![(2, lie)];
            shard.run(30);
            let (ahead_ms, honest) = (shard.ahead_ms(), [0, 1, 3, 4, 5]);
            assert!(honest.iter().all(|at| ahead_ms[*at].abs() <= 2), "{ahead_ms:?}");
        }
    }

    #[test]
    fn whoever_stood_still_is_set_forward_and_tells_for_how_long_clients_rely_on_its_earlier_time() {
        let mut shard = Shard::new([0, 0, 0, 0, 0, 0]);
        shard.run(3);
        assert_eq!(shard.newly_set(), vec![Some(0); 6], "nobody relies on anything yet");
        for at in [1, 2, 4] {
            shard.off[at] -= 7 * SECOND;
            // The shell's clock stood still; it never goes back.
            shard.clocks[at].at = shard.shell(at);
            shard.clocks[at].shows -= 7_000_000_000;
            shard.clocks[at].ask_at = shard.shell(at);
        }
        shard.run(1);
        assert!(shard.ahead_ms().iter().all(|ahead| ahead.abs() <= 10), "{:?}", shard.ahead_ms());
        let told = shard.newly_set();
        assert!([0, 3, 5].iter().all(|at| told[*at].is_none()), "{told:?}");
        let good_ns = GOOD_MS * 1_000_000;
        assert!([1, 2, 4].iter().all(|at| told[*at].is_some_and(|for_ns| for_ns > good_ns - 1_000_000_000)), "{told:?}");
        shard.run(10);
        assert_eq!(shard.newly_set(), vec![None; 6]);
    }

    #[test]
    fn the_shard_whose_clocks_show_most_is_followed_and_no_liar_of_it() {
        let told = |clock: &mut PeerClocks, shard: u16, index: u16, ahead_s: u64| {
            let reading = TRUE + ahead_s * 1_000_000_000;
            clock.note(Time(TRUE), ReplicaId { shard: ShardId(shard), index }, Time(TRUE), reading, Standing::Set);
        };
        let mut clock = PeerClocks::new(replica(0), Quorums::new(1), 3, Time(TRUE), GOOD_MS, None);
        for index in 1..6 {
            told(&mut clock, 0, index, 0);
        }
        assert_eq!((clock.newly_set(Time(TRUE)), clock.read(Time(TRUE))), (Some(0), Time(TRUE)));
        told(&mut clock, 1, 2, 10);
        told(&mut clock, 1, 4, 99_999);
        assert_eq!(clock.newly_set(Time(TRUE)), None, "two may be one too few");
        told(&mut clock, 1, 5, 10);
        assert_eq!(clock.read(Time(TRUE)), Time(TRUE + 10_000_000_000));
        assert!(clock.newly_set(Time(TRUE)).is_some_and(|relied_on_ns| relied_on_ns > GOOD_MS * 1_000_000));
        // One that shows less changes nothing, and nobody goes back to those of the own shard.
        (0..6).for_each(|index| told(&mut clock, 2, index, 5));
        clock.adjust(Time(TRUE).after_ms(100));
        assert_eq!(clock.read(Time(TRUE).after_ms(100)), Time(TRUE + 10_100_000_000));
        // Whoever starts now begins with that.
        let mut clock = PeerClocks::new(replica(0), Quorums::new(1), 3, Time(TRUE), GOOD_MS, None);
        (1..=3).for_each(|index| told(&mut clock, 1, index, 10));
        (1..=3).for_each(|index| told(&mut clock, 0, index, 0));
        assert_eq!((clock.is_set(), clock.read(Time(TRUE))), (true, Time(TRUE + 10_000_000_000)));
    }

    #[test]
    fn clients_rely_on_an_earlier_process_for_a_while() {
        let mut clock = PeerClocks::new(replica(0), Quorums::new(1), 1, Time(TRUE), GOOD_MS, Some(7));
        assert_eq!(clock.newly_set(Time(TRUE)), None);
        let set_at = Time(TRUE).after_ms(500);
        clock.asked(set_at);
        for index in 1..=3 {
            clock.note(set_at, replica(index), set_at, TRUE, Standing::Set);
        }
        // Their clocks may be slower than this one.
        assert!(clock.newly_set(set_at).is_some_and(|for_ns| set_at.0 + for_ns > Time(TRUE).after_ms(GOOD_MS).0));
        assert_eq!(clock.newly_set(set_at), None);
    }

    #[test]
    fn a_clock_that_is_ahead_goes_at_half_speed_until_it_is_right() {
        let mut shard = Shard::new([0, 0, 0, 0, 0, 0]);
        shard.run(3);
        shard.clocks[3].shows += 2_000_000_000;
        shard.run(7);
        assert!(shard.ahead_ms().iter().all(|ahead| ahead.abs() <= 60), "{:?}", shard.ahead_ms());
        assert!(shard.clocks[3].report().ahead_ns.is_some_and(|ahead| ahead < 60_000_000));
        let clock = &mut shard.clocks[3];
        (clock.shows, clock.at, clock.ahead) = (1_000, Time(1_000), 100);
        for (shows, at) in [(1_050, 1_100), (1_100, 1_200), (1_150, 1_250)] {
            assert_eq!((clock.when(Time(shows)), clock.read(Time(at))), (Time(at), Time(shows)));
        }
    }

    #[test]
    fn an_earlier_process_has_not_voted_in_the_future_of_this_one() {
        // All were started again with clocks an hour early: time goes on where it was.
        let voted = TRUE + 5;
        let mut shard = Shard::new([-3_600; 6]);
        for at in 0..6_u16 {
            shard.clocks[usize::from(at)] = PeerClocks::new(replica(at), Quorums::new(1), 1, shard.shell(at.into()), GOOD_MS, Some(voted));
        }
        shard.run(5);
        assert!(shard.ahead_ms().iter().all(|ahead| (-2..=2).contains(ahead)), "{:?}", shard.ahead_ms());
    }
}
