//! Who alone names newer versions is asked last (beyond the paper).
//!
//! A replica that answers a read with a committed version that is newer than any other, and made up, has the reader ask all others before it takes the
//! older one (§4.1): two round trips instead of one, and twice the answers, each time that it is asked. So a coordinator remembers who did so. For a while
//! it asks that replica for reads and pages only when it asks all, or when too few others are left.
//!
//! **What counts** is what no lag can explain. The reader was told, of a key, that a version has committed, and `3f + 1` other replicas have validated an
//! older one: they know nothing newer below the reader's timestamp, and vote for nothing there any more. Had the newer version committed, `2f + 1` correct
//! replicas would have voted for it; one of these is among those `3f + 1`, and would have shown it, prepared or committed. So whoever names it lies, or is
//! broken, as long as no more than `f` of the shard do: once is enough, and nobody has to be compared with others ([`KeyReplies::refuted`](crate::reading::KeyReplies::refuted)).
//! What is only prepared does not count: a client may leave that at one correct replica alone. Nor does what is shown of ranges, where a replica that
//! missed a deletion shows more than others and is right.
//!
//! **What a liar may do.** It cannot have a correct replica asked last, with whatever client: that would take `f + 1` liars. It may lie seldom. Each time,
//! those reads cost more that are under way until the first of them has ended; then it is asked last for ten seconds, and for twice as long each time that it
//! lies again before it was asked like the others for as long. So it gets one round trip of reads every twenty seconds at most. It may also name what is
//! only prepared, or nothing, or be slow, which this does not see.
//!
//! **Invariant.** Nothing here decides anything: all are asked where all are needed, and every answer counts as ever. Two numbers are kept for each replica.

use machine::{Time, Voters};
use types::{ReplicaId, ShardId};

/// For so long a replica is asked last the first time, in milliseconds.
const FIRST_MS: u64 = 10_000;
/// That is doubled so many times at most.
const DOUBLED_MAX: u32 = 5;

/// What is held against one replica.
#[derive(Clone, Copy, Debug, Default)]
struct Doubt {
    /// It is asked last before this.
    until: Time,
    /// How often the time was doubled.
    doubled: u32,
}

impl Doubt {
    fn length_ms(self) -> u64 {
        FIRST_MS << self.doubled
    }
}

/// Which replicas are asked last.
#[derive(Debug)]
pub(crate) struct Doubts {
    shards: Vec<Vec<Doubt>>,
}

impl Doubts {
    pub fn new(shards: usize, replicas: usize) -> Self {
        Self { shards: vec![vec![Doubt::default(); replicas]; shards] }
    }

    /// Whether `replica` is asked last.
    pub fn has(&self, replica: ReplicaId, now: Time) -> bool {
        let shard = self.shards.get(usize::from(replica.shard.0));
        shard.and_then(|shard| shard.get(usize::from(replica.index))).is_some_and(|doubt| now < doubt.until)
    }

    /// Those of `shard` have named what has not committed.
    pub fn note(&mut self, shard: ShardId, liars: Voters, now: Time) {
        for (index, doubt) in (0..).zip(self.shards.get_mut(usize::from(shard.0)).into_iter().flatten()) {
            // What was asked before it was found out, or with all others, is held against it no further.
            if !liars.contains(index) || now < doubt.until {
                continue;
            }
            let is_soon = doubt.until > Time(0) && now < doubt.until.after_ms(doubt.length_ms());
            doubt.doubled = if is_soon { DOUBLED_MAX.min(doubt.doubled + 1) } else { 0 };
            doubt.until = now.after_ms(doubt.length_ms());
        }
    }

    /// Another has its place now, or the same with another key.
    pub fn forget(&mut self, replica: ReplicaId) {
        let shard = self.shards.get_mut(usize::from(replica.shard.0));
        if let Some(doubt) = shard.and_then(|shard| shard.get_mut(usize::from(replica.index))) {
            *doubt = Doubt::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use types::{ClientId, Key, Timestamp, Value};

    use super::*;
    use crate::message::{PendingWrite, ReadResult};
    use crate::quorum::Quorums;
    use crate::reading::{Choice, KeyReplies};
    use crate::testing::one_shard;
    use crate::transaction::{Transaction, Write};

    const LIAR: ReplicaId = ReplicaId { shard: ShardId(0), index: 2 };
    const SECOND: u64 = 1_000_000_000;

    fn at(time: u64) -> Timestamp {
        Timestamp::new(time, ClientId(1))
    }

    fn write(time: u64) -> Transaction {
        let write = Write { key: Key::from("a"), value: Some(Value::from("1")) };
        Transaction::new(one_shard().id(), at(time), vec![], vec![write]).expect("it is small")
    }

    /// What one replica shows: a committed version, what is prepared, and whether it promises that nothing comes between.
    type Shown = (u64, Option<u64>, bool);

    /// Who is refuted once the first, the second, ... replica has shown this to a reader at 100.
    fn refuted(shown: &[Shown]) -> Vec<u16> {
        let mut replies = KeyReplies::new(Key::from("a"));
        for (index, (version, prepared, is_promised)) in (0..).zip(shown) {
            let (pending, writer) = (prepared.map_or(PendingWrite::None, |_| PendingWrite::Prepared(0)), prepared.map(write));
            let result = ReadResult { version: at(*version), value: Some(Value::from("1")), pending };
            replies.add(index, (result, *is_promised), writer.as_ref(), at(100));
        }
        let quorums = Quorums::new(1);
        let (Choice::Newest(found) | Choice::WeakQuorum(found)) = replies.choose(quorums.weak(), quorums, |_| false) else { return vec![] };
        let refuted = replies.refuted(&found, quorums);
        (0..6).filter(|index| refuted.contains(*index)).collect()
    }

    #[test]
    fn who_alone_names_a_committed_version_where_enough_validate_an_older_one_is_refuted() {
        let (old, lie) = ((50, None, true), (99, None, true));
        assert_eq!(refuted(&[old, old, lie, old, old]), [2]);
        assert_eq!(refuted(&[old, old, lie, old, lie, old]), [2, 4], "whoever lies beside it");
        assert_eq!(refuted(&[old, old, lie, old]), [0; 0], "the others may not have heard of it");
        assert_eq!(refuted(&[old; 6]), [0; 0]);
    }

    #[test]
    fn lag_refutes_nobody() {
        let (old, newer) = ((50, None, true), (60, None, true));
        // A commit that one replica alone has heard of. All who voted for it show it prepared; so many correct ones did.
        let prepared = (50, Some(60), true);
        assert_eq!(refuted(&[old, old, newer, prepared, prepared, old]), [0; 0]);
        // Three that missed the prepare, too, are no 3f + 1.
        assert_eq!(refuted(&[old, old, newer, prepared, old]), [0; 0]);
        // One that lags behind names less than all others.
        assert_eq!(refuted(&[newer, newer, old, newer, newer, newer]), [0; 0]);
        // What has just been prepared at one alone is no claim that it has committed.
        assert_eq!(refuted(&[old, old, prepared, old, old, old]), [0; 0]);
        // Those who promise nothing may have voted for it after they answered.
        let unpromised = (50, None, false);
        assert_eq!(refuted(&[unpromised, unpromised, newer, unpromised, unpromised, unpromised]), [0; 0]);
    }

    /// When it is asked last, from `from` on to `to`, in seconds.
    fn seconds_asked_last(doubts: &Doubts, from: u64, to: u64) -> usize {
        (from..to).filter(|second| doubts.has(LIAR, Time(second * SECOND))).count()
    }

    #[test]
    fn who_lies_again_soon_is_asked_last_for_longer() {
        let mut doubts = Doubts::new(1, 6);
        assert_eq!(seconds_asked_last(&doubts, 0, 1_000), 0);
        let mut second = 1_000;
        for length in [10, 20, 40, 80, 160, 320, 320] {
            // As many reads as are under way are one lie.
            (0..100).for_each(|late| doubts.note(LIAR.shard, Voters::of(LIAR.index), Time(second * SECOND + late)));
            assert_eq!(seconds_asked_last(&doubts, second, second + 1_000), length);
            second += length as u64;
        }
        assert!((0..6).filter(|index| *index != LIAR.index).all(|index| !doubts.has(ReplicaId { index, ..LIAR }, Time(1_000 * SECOND))));
    }

    #[test]
    fn what_was_named_long_ago_is_forgiven() {
        let mut doubts = Doubts::new(1, 6);
        let mut note = |second: u64| {
            doubts.note(LIAR.shard, Voters::of(LIAR.index), Time(second * SECOND));
            seconds_asked_last(&doubts, second, second + 1_000)
        };
        assert_eq!((note(1_000), note(1_010), note(1_049), note(1_050)), (10, 20, 40, 39));
        // Then it was asked like the others for as long as it had been asked last.
        assert_eq!(note(1_129), 10);
        doubts.forget(LIAR);
        assert_eq!(seconds_asked_last(&doubts, 0, 2_000), 0);
    }

    #[test]
    fn nobody_is_known_beyond_the_cluster() {
        let mut doubts = Doubts::new(1, 6);
        let other = ReplicaId { shard: ShardId(9), index: 9 };
        doubts.note(other.shard, Voters::of(other.index), Time(5));
        doubts.note(ShardId(0), Voters::of(9), Time(5));
        doubts.forget(other);
        assert!(!doubts.has(other, Time(5)));
    }
}
