//! How replicas' processes end, and what their disks keep of it.

use store::{Crash, Memory};

use crate::random::Random;

/// When in its turn a process dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Doom {
    /// Between two turns: everything it did is durable and said.
    Between,
    /// In the middle of its durable write: it said nothing of this turn, and some of the write may be there.
    Writing,
    /// After its durable write: everything is there, and nobody heard of it.
    BeforeSending,
    /// While it sends: some heard.
    Sending,
}

impl Doom {
    pub fn draw(random: &mut Random) -> Self {
        random.pick(&[Self::Between, Self::Writing, Self::Writing, Self::BeforeSending, Self::Sending])
    }
}

/// Cuts the power of a medium whose store is gone: what was not durable is lost, but for a piece of chance length.
pub(crate) fn cut_power(medium: &Memory, random: &mut Random) {
    let journal_bytes_kept = match random.below(4) {
        0 => 0,
        1 => usize::MAX / 2,
        _ => random.index(2_048),
    };
    let fold_rows_kept = random.index(8);
    medium.crash(Crash { journal_bytes_kept, fold_rows_kept });
}
