//! A limit for clients that leave their transactions for others to end (beyond the paper, whose §6.4 expects that such clients can be
//! removed).
//!
//! What a client leaves costs those who meet it, and the replicas that finish it, more than an ordinary transaction. So each client may leave so
//! many at once, and so many a second; one of many keys, which stands in the way of many, counts as several ([`KEYS_OF_ONE`]). Once it has left more, nothing new that it brings is judged until the time for the others has
//! passed; what it has left already is finished as ever.
//!
//! A transaction that its author's channel brought, or that is shown to be its author's, counts as soon as somebody else's writeback ends it. When
//! its author's own comes, it does not count any more: who is only slow, or whose transactions others are quick to finish, owes nothing.
//! (Who comes back late on purpose owes nothing either, but has done its part of the work.) Where the proof is relayed
//! ([`crate::commit_relay`]), that the author came is heard from `f + 1` of its relays. So nobody can run up what another client owes.

use std::collections::BTreeMap;

use machine::Time;
use mutants::{Mutant, broken};
use types::ClientId;

use crate::transaction::Transaction;

/// A transaction counts once more for each so many keys that it reads and writes.
const KEYS_OF_ONE: usize = 8;

/// What each client has left, as the time until which it owes: that of one transaction for each that it has left.
#[derive(Debug)]
pub(super) struct AbandonmentLimiter {
    owing: BTreeMap<ClientId, Time>,
    /// The time of one transaction, in nanoseconds.
    each_ns: u64,
    /// The time that a client may owe, in nanoseconds.
    most_ns: u64,
}

impl AbandonmentLimiter {
    /// Each client may leave `per_second`, and so many seconds' worth at once.
    pub fn new(per_second: u32, seconds: u32) -> Self {
        let each_ns = 1_000_000_000 / u64::from(per_second.max(1));
        Self { owing: BTreeMap::new(), each_ns, most_ns: u64::from(seconds) * 1_000_000_000 }
    }

    /// Somebody else ended what its author brought. Says until when the author owes for it.
    pub fn abandoned(&mut self, now: Time, transaction: &Transaction) -> Time {
        let owed_ns = self.owed_ns(transaction);
        let until = self.owing.entry(transaction.timestamp().client).or_default();
        *until = Time(now.0.max(until.0).saturating_add(owed_ns));
        *until
    }

    /// The author has come to end what it owed for until `until`. What time has paid for already is not given back.
    pub fn forgive(&mut self, now: Time, transaction: &Transaction, until: Time) {
        let (client, owed_ns) = (transaction.timestamp().client, self.owed_ns(transaction));
        if until > now
            && let Some(owing) = self.owing.get_mut(&client)
        {
            owing.0 = owing.0.saturating_sub(owed_ns);
            if *owing <= now {
                self.owing.remove(&client);
            }
        }
    }

    fn owed_ns(&self, transaction: &Transaction) -> u64 {
        let keys = transaction.examine(|parts| parts.reads.len() + parts.writes.len());
        let times = 1 + keys / KEYS_OF_ONE;
        self.each_ns.saturating_mul(times as u64)
    }

    /// For how many milliseconds `client` has left more than it may, if it has.
    pub fn over_limit(&self, now: Time, client: ClientId) -> Option<u32> {
        let until = self.owing.get(&client).copied().unwrap_or_default();
        let over_ns = until.0.saturating_sub(now.0.saturating_add(self.most_ns));
        (over_ns > 0 && !broken(Mutant::AbandonmentUnlimited)).then(|| whole_ms(over_ns))
    }
}

/// So many nanoseconds in milliseconds, and no less.
pub(super) fn whole_ms(ns: u64) -> u32 {
    u32::try_from(ns.div_ceil(1_000_000)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use types::{ClusterId, Key, Timestamp};

    use super::*;
    use crate::transaction::Write;

    const C1: ClientId = ClientId(1);
    const C2: ClientId = ClientId(2);

    fn at(ms: u64) -> Time {
        Time(1_000_000_000_000 + ms * 1_000_000)
    }

    /// One of C1's that writes so many keys.
    fn of(keys: u16) -> Transaction {
        let writes = (0..keys).map(|key| Write { key: Key::from(format!("{key:05}").as_str()), value: None }).collect();
        Transaction::new(ClusterId::new([7; 16]), Timestamp::new(1, C1), vec![], writes).expect("small enough")
    }

    fn leave(abandonment_limiter: &mut AbandonmentLimiter, count: usize, now: Time) {
        for _ in 0..count {
            abandonment_limiter.abandoned(now, &of(1));
        }
    }

    #[test]
    fn one_of_many_keys_counts_as_several() {
        let mut abandonment_limiter = AbandonmentLimiter::new(10, 0);
        let large = of(4_096);
        let until = abandonment_limiter.abandoned(at(0), &large);
        assert_eq!(until, at(51_300));
        abandonment_limiter.forgive(at(1), &large, until);
        assert_eq!(abandonment_limiter.over_limit(at(1), C1), None);
        assert_eq!(abandonment_limiter.abandoned(at(0), &of(7)), at(100));
    }

    #[test]
    fn so_many_may_be_left_at_once_and_so_many_a_second() {
        let mut abandonment_limiter = AbandonmentLimiter::new(10, 2);
        leave(&mut abandonment_limiter, 20, at(0));
        assert_eq!(abandonment_limiter.over_limit(at(0), C1), None);
        abandonment_limiter.abandoned(at(0), &of(1));
        let over = |abandonment_limiter: &AbandonmentLimiter, ms: u64| abandonment_limiter.over_limit(at(ms), C1);
        assert_eq!([0, 99, 100].map(|ms| over(&abandonment_limiter, ms)), [Some(100), Some(1), None]);
        assert_eq!(abandonment_limiter.over_limit(at(0), C2), None, "each has a limit of its own");
        leave(&mut abandonment_limiter, 5, at(100));
        assert_eq!([599, 600].map(|ms| over(&abandonment_limiter, ms)), [Some(1), None]);
        leave(&mut abandonment_limiter, 20, at(60_000));
        assert_eq!(over(&abandonment_limiter, 60_000), None, "what was left long ago is forgiven");
    }

    #[test]
    fn who_comes_back_owes_nothing() {
        let mut abandonment_limiter = AbandonmentLimiter::new(10, 0);
        let left: Vec<Time> = (0..3).map(|_| abandonment_limiter.abandoned(at(0), &of(1))).collect();
        abandonment_limiter.forgive(at(1), &of(1), left[0]);
        abandonment_limiter.forgive(at(1), &of(1), left[1]);
        assert_eq!(abandonment_limiter.over_limit(at(1), C1), Some(99));
        abandonment_limiter.forgive(at(1), &of(1), left[2]);
        assert!(abandonment_limiter.over_limit(at(1), C1).is_none() && abandonment_limiter.owing.is_empty());
    }

    #[test]
    fn what_time_has_paid_for_is_not_given_back() {
        let mut abandonment_limiter = AbandonmentLimiter::new(10, 0);
        let paid = abandonment_limiter.abandoned(at(0), &of(1));
        abandonment_limiter.abandoned(at(200), &of(1));
        abandonment_limiter.forgive(at(201), &of(1), paid);
        assert!(abandonment_limiter.over_limit(at(201), C1).is_some());
    }
}
