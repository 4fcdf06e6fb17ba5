//! Which replicas are worth waiting for, once all others have voted.
//!
//! The fast path needs every replica's vote. One that is late again and again, since it is busy, stopped or lies, would make each transaction wait
//! in vain. So such a replica is not waited for for a while, which doubles each time that it turns out to be late still. All are asked for their votes
//! anyway: one whose votes come in time again is waited for again at once, after a number of them that doubles likewise, so that nobody can be
//! late and prompt in turns and have most transactions wait.
//!
//! A vote is late when it comes later, after all that is needed without it, than logging the decision would take: it was not worth waiting for then,
//! even if it made the fast path. So a replica that lags again and again cannot have itself waited for by the lag that it is known for. Several
//! transactions that wait at once for one replica that is held up for a moment are one lateness.
//!
//! **Invariant.** Nothing here decides anything: a vote that comes counts, whoever it is from, and whether to wait for one changes only when a decision that
//! the votes justify already is logged. So a mistake costs latency, and nothing else.

use machine::Time;
use types::{ReplicaId, ShardId};

/// So often a replica is late, with too few votes in time in between, before it is not waited for.
const LATE_MAX: u32 = 4;
/// For so long it is not waited for the first time, in milliseconds.
const PAUSE_MS: u64 = 200;
/// So many votes in a row have to be in time, the first time, for what was late to be forgotten, and for it to be waited for again before that.
const PROMPT_MIN: u32 = 16;
/// Both are doubled so many times at most.
const DOUBLED_MAX: u32 = 7;
/// So many times as many votes in time undo one doubling.
const FORGIVEN: u32 = 64;

/// How prompt one replica's votes are.
#[derive(Clone, Copy, Debug, Default)]
struct Promptness {
    /// How often it was late while it was waited for.
    late: u32,
    /// When it was counted as late last.
    late_at: Time,
    /// How many votes in a row were in time.
    prompt: u32,
    /// How often it was found to be late still.
    doubled: u32,
    /// It is not waited for before this.
    not_before: Time,
}

/// How prompt the replicas are, as far as a coordinator has noticed.
#[derive(Debug)]
pub(super) struct SlowReplicas {
    shards: Vec<Vec<Promptness>>,
}

impl SlowReplicas {
    pub fn new(shards: usize, replicas: usize) -> Self {
        Self { shards: vec![vec![Promptness::default(); replicas]; shards] }
    }

    /// Whether the vote of `replica` is worth waiting for.
    pub fn is_waited_for(&self, shard: ShardId, index: u16, now: Time) -> bool {
        self.shards.get(usize::from(shard.0)).and_then(|shard| shard.get(usize::from(index))).is_none_or(|known| known.not_before <= now)
    }

    /// Its vote came in time.
    pub fn prompt(&mut self, replica: ReplicaId) {
        let Some(known) = self.of(replica) else { return };
        known.prompt = known.prompt.saturating_add(1);
        let needed = PROMPT_MIN << known.doubled;
        if known.prompt >= needed {
            (known.late, known.not_before) = (0, Time(0));
        }
        if known.prompt >= needed * FORGIVEN {
            (known.prompt, known.doubled) = (needed, known.doubled.saturating_sub(1));
        }
    }

    /// Its vote has not come in time, for a transaction that has waited `since` then.
    pub fn late(&mut self, replica: ReplicaId, now: Time, since: Time) {
        let Some(known) = self.of(replica) else { return };
        known.prompt = 0;
        if known.not_before > now {
            return; // Those who began to wait before.
        }
        if known.late > 0 && since < known.late_at {
            return; // Both waited at once: it is one lateness.
        }
        known.late += 1;
        known.late_at = now;
        if known.late >= LATE_MAX {
            known.not_before = now.after_ms(PAUSE_MS << known.doubled);
            known.doubled = (known.doubled + 1).min(DOUBLED_MAX);
            // When it is waited for again, once is enough.
            known.late = LATE_MAX - 1;
        }
    }

    fn of(&mut self, replica: ReplicaId) -> Option<&mut Promptness> {
        self.shards.get_mut(usize::from(replica.shard.0))?.get_mut(usize::from(replica.index))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOW: ReplicaId = ReplicaId { shard: ShardId(0), index: 3 };

    fn is_waited_for(slow: &SlowReplicas, at_ms: u64) -> bool {
        slow.is_waited_for(SLOW.shard, SLOW.index, Time(0).after_ms(at_ms))
    }

    const WAIT_MS: u64 = 2;

    fn late(slow: &mut SlowReplicas, at_ms: u64) {
        slow.late(SLOW, Time(0).after_ms(at_ms), Time(0).after_ms(at_ms - WAIT_MS));
    }

    /// It is late `times` times, the last time at `at_ms`.
    fn late_often(slow: &mut SlowReplicas, times: u32, at_ms: u64) {
        (0..u64::from(times)).rev().for_each(|before| late(slow, at_ms - before * WAIT_MS));
    }

    #[test]
    fn who_is_late_again_and_again_is_not_waited_for_for_a_time_that_doubles() {
        let (mut slow, mut at_ms) = (SlowReplicas::new(1, 6), 1_000);
        for _ in 1..LATE_MAX {
            // As many as waited with it are one.
            (0..10).for_each(|_| late(&mut slow, at_ms));
            late(&mut slow, at_ms + WAIT_MS - 1);
            assert!(is_waited_for(&slow, at_ms));
            at_ms += WAIT_MS;
        }
        for doubled in [0, 1, 2, 3, 4, 5, 6, 7, 7, 7] {
            late(&mut slow, at_ms);
            (0..500).for_each(|_| late(&mut slow, at_ms));
            let pause_ms = PAUSE_MS << doubled;
            assert!(!is_waited_for(&slow, at_ms + pause_ms - 1) && is_waited_for(&slow, at_ms + pause_ms));
            assert!(slow.is_waited_for(SLOW.shard, 2, Time(0).after_ms(at_ms)), "the others are");
            at_ms += pause_ms;
        }
    }

    #[test]
    fn who_is_prompt_again_is_waited_for_at_once() {
        let mut slow = SlowReplicas::new(1, 6);
        late_often(&mut slow, LATE_MAX, 1_000);
        for number in 1..=2 * PROMPT_MIN {
            assert!(!is_waited_for(&slow, 1_000), "after {number}");
            slow.prompt(SLOW);
        }
        assert!(is_waited_for(&slow, 1_000));
        late_often(&mut slow, LATE_MAX - 1, 1_100);
        assert!(is_waited_for(&slow, 1_100), "it has been prompt since");
    }

    #[test]
    fn who_is_prompt_now_and_then_is_still_late() {
        let mut slow = SlowReplicas::new(1, 6);
        for round in 0..LATE_MAX {
            assert!(is_waited_for(&slow, 1_000), "after {round}");
            late(&mut slow, 1_000 + u64::from(round) * WAIT_MS);
            (1..PROMPT_MIN).for_each(|_| slow.prompt(SLOW));
        }
        assert!(!is_waited_for(&slow, 1_000 + u64::from(LATE_MAX) * WAIT_MS));
    }

    #[test]
    fn who_is_late_and_prompt_in_turns_is_waited_for_seldom() {
        let (mut slow, mut waited_for) = (SlowReplicas::new(1, 6), 0);
        // Ten thousand transactions a second, for a minute.
        for number in 0..600_000_u64 {
            let now = Time(number * 100_000);
            if slow.is_waited_for(SLOW.shard, SLOW.index, now)
                && slow.of(SLOW).is_some_and(|known| known.not_before == Time(0) || known.late > 0)
            {
                slow.late(SLOW, now, now);
                waited_for += 1;
            } else {
                slow.prompt(SLOW);
            }
        }
        assert!(waited_for < 600_000 / 100, "{waited_for} times");
    }

    #[test]
    fn what_was_slow_once_is_forgiven() {
        let mut slow = SlowReplicas::new(1, 6);
        (1..=20).for_each(|number| late(&mut slow, 1_000_000 * number));
        (0..2 * FORGIVEN * (PROMPT_MIN << DOUBLED_MAX)).for_each(|_| slow.prompt(SLOW));
        assert_eq!(slow.of(SLOW).map(|known| known.doubled), Some(0));
    }

    #[test]
    fn nobody_is_known_beyond_the_cluster() {
        let mut slow = SlowReplicas::new(1, 6);
        let other = ReplicaId { shard: ShardId(9), index: 9 };
        slow.late(other, Time(0), Time(0));
        slow.prompt(other);
        assert!(slow.is_waited_for(other.shard, other.index, Time(0)));
    }
}
