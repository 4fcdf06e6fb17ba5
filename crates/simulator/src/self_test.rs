//! Rules of the world broken on purpose, for tests that want to see the checkers notice.

/// A rule of the world that is broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BrokenRule<L> {
    /// Honest replicas come back from an empty disk.
    ForgetOnCrash,
    /// What a turn said leaves although its write failed.
    SendBeforeWriting,
    /// One replica more than each shard survives lies in this way.
    OneLiarTooMany(L),
    /// Bits flip on disks anywhere, whoever may be at fault.
    DamageAnyDisk,
}
