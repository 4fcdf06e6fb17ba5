//! A replica's clock, held near those of its shard's other replicas (beyond the paper).
//!
//! The shell's clock goes evenly, and starts with what the machine's wall clock showed when the process started. That may have been anything.
//! And a machine that was paused is behind. So a replica asks the others of its shard what time it is, and goes by the median of the answers and
//! its own time, within what a round trip leaves open. With `f` liars among them, the median lies between two correct clocks.
//!
//! - **When it starts**, it neither answers nor votes before it has heard enough others. It goes by those whose clocks are set, if these are
//!   enough; else all tell one another what they would show by themselves. Then its clock shows the lower median. But never less than what
//!   an earlier process of this replica has voted for, which is in the journal: others rely on that ([`crate::replica_clocks`]).
//! - **Ahead** of the median by more than a little, its clock goes at half speed: it never goes back.
//! - **Behind**, its clock is set forward. A clock that is set forward counts as faulty until clients have heard of its new time. So
//!   the replicas of a shard take turns, two seconds each.

use engine::ClockReport;
use machine::Time;
use mutants::{Mutant, broken};
use types::ReplicaId;

use crate::quorum::Quorums;

/// How often the others are asked, how often while this clock is off, and how often before it is set, in milliseconds.
const ASK_MS: u64 = 2_000;
const ASK_OFF_MS: u64 = 500;
const ASK_FIRST_MS: u64 = 50;
/// For how long a replica that starts waits for all others, if enough have answered, in milliseconds.
const START_MS: u64 = 1_000;
/// For how long each replica's turn to set its clock forward is, in nanoseconds.
const TURN_NS: u64 = 2_000_000_000;
/// An answer that takes longer says too little.
const ROUND_TRIP_MS_MAX: u64 = 2_000;
/// An answer counts for so long, in milliseconds.
const FRESH_MS: u64 = 3 * ASK_MS;
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
    /// By index.
    samples: Vec<Option<Sample>>,
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
    /// By how much it is ahead of the others', in nanoseconds, once that is known.
    error: Option<i128>,
}

impl PeerClocks {
    /// The clock of `me`, whose shell's clock shows `now`. An earlier process of it may have voted up to `floor`.
    pub fn new(me: ReplicaId, quorums: Quorums, now: Time, floor: u64) -> Self {
        Self {
            me,
            quorums,
            samples: vec![None; quorums.replicas()],
            began: now,
            ask_at: now,
            shows: now.0.max(floor),
            at: now,
            floor,
            ahead: 0,
            is_set: broken(Mutant::StartsAlone),
            error: None,
        }
    }

    /// Whether it is known well enough to go by it.
    pub fn is_set(&self) -> bool {
        self.is_set
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

    /// `replica` said that its clock showed `reading` when it was asked at `asked_at`. Whether this clock is now set for the first time.
    pub fn note(&mut self, now: Time, replica: ReplicaId, asked_at: Time, reading: u64, standing: Standing) -> bool {
        let is_peer = replica.shard == self.me.shard && replica != self.me;
        // Others may have been asked again meanwhile. Whoever says that it was asked at another time lies, as it may about its clock.
        let is_in_time = asked_at <= now && now <= asked_at.after_ms(ROUND_TRIP_MS_MAX);
        let place = self.samples.get_mut(usize::from(replica.index)).filter(|_| is_peer && is_in_time);
        let Some(place) = place else { return false };
        let least = i128::from(reading) - i128::from(now.0);
        *place = Some(Sample { standing, heard_at: now, least, most: least + i128::from(now.since(asked_at)) });
        self.adjust(now)
    }

    /// Whether this clock is now set for the first time.
    pub fn adjust(&mut self, now: Time) -> bool {
        let own = i128::from(self.read(now).0) - i128::from(now.0);
        let fresh = |sample: &&Sample| sample.heard_at.after_ms(FRESH_MS) > now;
        let (set, proposed): (Vec<Sample>, Vec<Sample>) =
            self.samples.iter().flatten().filter(fresh).partition(|sample| sample.standing == Standing::Set);
        if self.is_set {
            self.follow(own, &set);
            return false;
        }
        let heard = set.len() + proposed.len();
        let median = if set.len() >= self.quorums.clocks_set() {
            lower_median(offsets(&set, None, Sample::middle))
        } else if heard + 1 == self.quorums.replicas() || (heard >= self.quorums.timekeepers() && now >= self.began.after_ms(START_MS)) {
            lower_median(offsets(&[set, proposed].concat(), Some(own), Sample::middle))
        } else {
            return false;
        };
        self.shows = clamped(i128::from(now.0) + median).max(self.floor);
        self.error = Some(i128::from(self.shows) - i128::from(now.0) - median);
        self.is_set = true;
        true
    }

    /// Goes by those whose clocks are set. This one is ahead of the shell's by `own`.
    fn follow(&mut self, own: i128, set: &[Sample]) {
        self.error = None;
        if set.len() < self.quorums.timekeepers() {
            return;
        }
        self.error = Some(own - upper_median(offsets(set, Some(own), Sample::middle)));
        let behind = upper_median(offsets(set, Some(own), |sample| sample.least)) - own;
        let ahead = own - upper_median(offsets(set, Some(own), |sample| sample.most));
        if behind > OFF_NS && self.is_in_turn(behind) {
            self.ahead = 0;
            self.shows = clamped(i128::from(self.shows) + behind);
            self.error = Some(0);
        } else if ahead > OFF_NS {
            self.ahead = clamped(ahead);
        }
    }

    /// Whether it is this replica's turn to set its clock forward, by the time that the others show.
    fn is_in_turn(&self, behind: i128) -> bool {
        let turn = clamped(i128::from(self.shows) + behind) / TURN_NS % self.quorums.replicas() as u64;
        turn == u64::from(self.me.index) || broken(Mutant::SetForwardAtOnce)
    }

    /// How it stands with it.
    pub fn report(&self) -> ClockReport {
        let nanoseconds = |error: i128| i64::try_from(error).unwrap_or(if error < 0 { i64::MIN } else { i64::MAX });
        ClockReport { is_set: self.is_set, shows: Time(self.shows), ahead_ns: self.error.map(nanoseconds) }
    }
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
    use types::ShardId;

    use super::*;

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
            let clock = |at: u16| PeerClocks::new(replica(at), Quorums::new(1), shell(at.into()), 0);
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
                        let is_first = self.clocks[at].note(Time(asked_at.0 + 1), replica(other), asked_at, said, standing);
                        assert!(is_first || self.said(at) >= before, "it never goes back");
                    }
                }
            }
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
            let mut clock = PeerClocks::new(replica(0), Quorums::new(1), Time(TRUE), 0);
            clock.asked(Time(TRUE));
            clock
        };
        let mut alone = clock();
        let elsewhere = ReplicaId { shard: ShardId(1), index: 2 };
        for who in [replica(1), replica(1), replica(2), replica(0), elsewhere, replica(9)] {
            assert!(!alone.note(Time(TRUE), who, Time(TRUE), 5, Standing::Set));
        }
        assert!(!alone.note(Time(TRUE), replica(3), Time(TRUE + 1), 5, Standing::Set), "nobody has asked then");
        let late = Time(TRUE).after_ms(ROUND_TRIP_MS_MAX + 1);
        assert!(!clock().note(late, replica(3), Time(TRUE), 5, Standing::Set), "too late");
        assert!(!alone.note(Time(TRUE), replica(4), Time(TRUE), 7, Standing::Proposed), "the others may still answer");
        assert!(!alone.adjust(Time(TRUE).after_ms(START_MS - 1)) && alone.adjust(Time(TRUE).after_ms(START_MS)) && alone.is_set());
        assert_eq!(alone.read(Time(TRUE).after_ms(START_MS)).0, 5 + START_MS * 1_000_000, "of 5, 5, 7 and its own");
        // Of those who know what time it is, 2f + 1 are enough at once.
        let mut clock = clock();
        assert!(!clock.note(Time(TRUE), replica(1), Time(TRUE), 0, Standing::Set));
        assert!(!clock.note(Time(TRUE), replica(2), Time(TRUE), 8, Standing::Set));
        assert!(!clock.note(Time(TRUE), replica(3), Time(TRUE), 1, Standing::Proposed));
        assert!(clock.note(Time(TRUE), replica(4), Time(TRUE), 9, Standing::Set));
        assert_eq!(clock.read(Time(TRUE)).0, 8);
    }

    #[test]
    fn answers_from_afar_count() {
        let mut clock = PeerClocks::new(replica(0), Quorums::new(1), Time(TRUE), 0);
        let arrives = Time(TRUE).after_ms(300);
        while clock.due() <= arrives {
            clock.asked(clock.due());
        }
        for index in 1..=2 {
            assert!(!clock.note(arrives, replica(index), Time(TRUE), TRUE, Standing::Set));
        }
        assert!(clock.note(arrives, replica(3), Time(TRUE), TRUE, Standing::Set) && clock.is_set(), "though it asked again");
        assert_eq!(clock.read(arrives).0, TRUE + 150_000_000);
    }

    #[test]
    fn whoever_runs_does_not_follow_those_who_start() {
        let mut shard = Shard::new([0, 0, 0, 0, 0, 0]);
        shard.run(3);
        for at in [0, 1, 2_u16] {
            shard.off[usize::from(at)] = 600 * SECOND;
            shard.clocks[usize::from(at)] = PeerClocks::new(replica(at), Quorums::new(1), shard.shell(at.into()), 0);
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
    fn those_who_stood_still_are_set_forward_one_after_the_other() {
        let mut shard = Shard::new([0, 0, 0, 0, 0, 0]);
        shard.run(3);
        for at in [1, 2, 4] {
            shard.off[at] -= 7 * SECOND;
            // The shell's clock stood still; it never goes back.
            shard.clocks[at].at = shard.shell(at);
            shard.clocks[at].shows -= 7_000_000_000;
            shard.clocks[at].ask_at = shard.shell(at);
        }
        let mut right = Vec::new();
        for second in 0..30 {
            shard.run(1);
            let now_right = shard.ahead_ms().iter().filter(|ahead| ahead.abs() <= 10).count();
            if right.last().is_none_or(|(_, count)| *count != now_right) {
                right.push((second, now_right));
            }
        }
        let counts: Vec<usize> = right.iter().map(|(_, count)| *count).collect();
        assert_eq!(counts, [4, 5, 6], "one at a time: {right:?}");
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
            shard.clocks[usize::from(at)] = PeerClocks::new(replica(at), Quorums::new(1), shard.shell(at.into()), voted);
        }
        shard.run(5);
        assert!(shard.ahead_ms().iter().all(|ahead| (-2..=2).contains(ahead)), "{:?}", shard.ahead_ms());
    }
}
