//! How replicas' processes end, what their disks keep of it, and what becomes of that by itself.

use std::collections::BTreeSet;

use bytes::Bytes;
use store::{Crash, Memory, Options, SegmentNumber, StorageBackend as _, Store, StoreError};

use random::Random;

/// Where a process dies: in one of the gaps between the phases of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PendingCrash {
    /// At any time between two turns.
    Between,
    /// After so many silent turns, none of which is durable yet: all that they wrote is lost.
    Silent(u64),
    /// Before its durable write: nothing of this turn is there, nor of silent ones before it.
    Stepped,
    /// In the middle of its durable write: some of it may be there.
    Writing,
    /// After its durable write: everything is there, and nothing of it was signed.
    Written,
    /// After it signed: nobody heard of it, but the signatures are in the world.
    Signed,
    /// While it sends: some heard.
    Sending,
}

impl PendingCrash {
    pub fn draw(random: &mut Random) -> Self {
        let turns = random.between(2, 5);
        let places =
            [Self::Between, Self::Silent(turns), Self::Stepped, Self::Writing, Self::Writing, Self::Written, Self::Signed, Self::Sending];
        random.pick(&places)
    }
}

/// Cuts the power of a medium whose store is gone: what was not durable is lost, but for a piece of chance length.
pub(crate) fn cut_power(medium: &Memory, random: &mut Random) {
    let journal_bytes_kept = match random.below(4) {
        0 => 0,
        1 => usize::MAX / 2,
        _ => random.index(2_048),
    };
    let checkpoint_rows_kept = random.index(8);
    medium.crash(Crash { journal_bytes_kept, checkpoint_rows_kept });
}

/// What became of a disk on which bits flipped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Rot {
    /// Nothing that anybody will ever read.
    Nothing,
    /// Whoever opens it, or reads that row, is told where it is damaged.
    Noticed(String),
    /// Its last batch is gone, or more where more than one bit flipped, and looks as if it had been torn in a crash: nobody
    /// can tell the two apart. A promise may be forgotten, so that this replica is as good as one that lies.
    TailLost,
    /// Worse than that: what must not be.
    Unnoticed(String),
}

/// How far apart several flipped bits lie, in bytes.
const SPREAD_BYTES_MAX: usize = 64;

/// Flips a bit or a few of what a medium holds whose store is gone. Says what was flipped, and what came of it: a copy of the
/// disk from before and one from after are read to their ends and compared, by the store's own code and nothing of ours.
pub(crate) fn flip_bits(medium: &mut Memory, options: Options, random: &mut Random) -> (String, Rot) {
    let rows = medium.rows();
    if !rows.is_empty() && random.chance(400) {
        let (key, length) = &rows[random.index(rows.len())];
        let (offset, bit) = (random.index(*length), bit(random));
        medium.flip_row_bit(key, offset, bit);
        let found = match medium.get(key) {
            Err(error) if error.to_string().contains(&key.to_string()) => Rot::Noticed(error.to_string()),
            other => Rot::Unnoticed(format!("reading the row gives {other:?}")),
        };
        return (format!("bit {bit} of byte {offset} of the row of {key} flips"), found);
    }
    let before = match replayed(medium, options) {
        Ok(before) => before,
        Err(error) => return ("nothing more can flip".to_owned(), Rot::Noticed(error.to_string())),
    };
    let (segment, used) = before.segments[random.index(before.segments.len())];
    // Mostly what is in use; now and then what lies behind it.
    let length = medium.segment_bytes(segment).map_or(0, |bytes| bytes.len());
    if length == 0 {
        return ("there is nothing to flip".to_owned(), Rot::Nothing);
    }
    let used = usize::try_from(used).map_or(length, |used| used.min(length));
    let reaches = if random.chance(100) { length } else { used };
    let first = random.index(reaches);
    let count = if random.chance(700) { 1 } else { random.between(2, 8) };
    let mut flipped = BTreeSet::new();
    for nth in 0..count {
        let offset = if nth == 0 { first } else { first + random.index(SPREAD_BYTES_MAX.min(length - first)) };
        flipped.insert((offset, bit(random)));
    }
    for (offset, bit) in &flipped {
        medium.flip_bit(segment, *offset, *bit);
    }
    let lost_max = if flipped.len() == 1 { 1 } else { before.batches.len() };
    let found = match replayed(medium, options) {
        Err(error) if error.to_string().contains(&segment.to_string()) => Rot::Noticed(error.to_string()),
        Err(error) => Rot::Unnoticed(format!("what it says of it does not name the place: {error}")),
        Ok(after) if after.batches == before.batches => Rot::Nothing,
        Ok(after) if before.batches.starts_with(&after.batches) && after.batches.len() + lost_max >= before.batches.len() => Rot::TailLost,
        Ok(after) => Rot::Unnoticed(format!("of {} batches it reads {}, and other ones", before.batches.len(), after.batches.len())),
    };
    (format!("{} bits flip from byte {first} of segment {segment} on", flipped.len()), found)
}

fn bit(random: &mut Random) -> u8 {
    u8::try_from(random.below(8)).expect("below 8")
}

/// What a journal holds.
struct Replayed {
    batches: Vec<Vec<Bytes>>,
    segments: Vec<(SegmentNumber, u64)>,
}

/// All that a store would read of a medium when it opens it. It is read from a copy, since opening writes.
fn replayed(medium: &Memory, options: Options) -> Result<Replayed, StoreError> {
    let mut store = Store::open(medium.copied(), options)?;
    let mut batches = Vec::new();
    while let Some(batch) = store.replay()? {
        batches.push(batch.records);
    }
    Ok(Replayed { batches, segments: store.segments().collect() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_bit_flips_is_noticed_or_costs_no_more_than_the_last_batch() {
        let options = Options { segment_bytes_max: 4 << 10, ..Options::default() };
        let whole = Memory::new("a disk");
        let mut store = Store::open(whole.clone(), options).expect("it is empty");
        while store.replay().expect("it is empty").is_some() {}
        for number in 0..40_u64 {
            store.append(&number.to_le_bytes().repeat(25));
            store.sync().expect("memory does not fail");
        }
        let torn = whole.copied();
        store.close().expect("memory does not fail");
        let mut random = Random::stream(1, "rot");
        for (disk, may_lose_tail) in [(torn, true), (whole, false)] {
            let (mut noticed, mut lost) = (0, 0);
            for _ in 0..400 {
                let (what, found) = flip_bits(&mut disk.copied(), options, &mut random);
                assert!(!matches!(found, Rot::Unnoticed(_)), "{what}: {found:?}");
                noticed += u64::from(matches!(found, Rot::Noticed(_)));
                lost += u64::from(found == Rot::TailLost);
            }
            assert!(noticed > 300, "{noticed} of 400 were noticed");
            assert_eq!(lost > 0, may_lose_tail, "{lost} of 400 looked like a torn batch, which there is none of after a graceful stop");
        }
    }
}
