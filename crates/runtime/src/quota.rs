//! How much of what was received may wait for the node loop: of one member, and of all together.
//!
//! A frame is read and decoded under a [`Permit`] for what it is expected to take. What its messages do take is known only afterwards, and
//! may be several times as much: it is counted then, without waiting, and what exceeds the quota is a debt that the member pays with
//! what it gets back, before it may send anything more.
//!
//! While all members together have more than they may have, each may have no more than an equal part. So nobody waits for one that
//! takes its time.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use prometheus_client::metrics::gauge::Gauge;
use tokio::sync::Notify;

use crate::priority::Usage;

/// However many members there are, each may have so much waiting.
const PART_BYTES_MIN: usize = 64 << 10;
/// So much may whoever is served at low priority have waiting. It is little, so that the node loop, whose priority is not low, does no
/// more for it than the thread that serves it brings.
const LOW_PRIORITY_BYTES_MAX: usize = 64 << 10;

/// What all members of a node may have waiting.
#[derive(Debug)]
pub(crate) struct Total {
    max: usize,
    /// What each may have while all have more than that.
    part: usize,
    bytes: AtomicUsize,
    gauge: Gauge,
    /// Told when bytes are given back.
    freed: Notify,
}

/// What one member may have waiting.
#[derive(Debug)]
pub(crate) struct Quota {
    max: usize,
    /// How much it has, which is more than `max` when messages were larger than expected.
    bytes: Mutex<usize>,
    total: Arc<Total>,
    usage: Arc<Usage>,
    /// Its member has another key by now, or is one no more.
    is_revoked: AtomicBool,
    freed: Notify,
}

/// A permit for received bytes, out of one member's quota; dropping it gives them back.
#[derive(Debug)]
pub(crate) struct Permit {
    quota: Arc<Quota>,
    bytes: usize,
}

impl Total {
    pub fn new(max: usize, members: usize, gauge: Gauge) -> Self {
        Self { max, part: (max / members.max(1)).max(PART_BYTES_MIN), bytes: AtomicUsize::new(0), gauge, freed: Notify::new() }
    }

    fn add(&self, bytes: usize) {
        self.bytes.fetch_add(bytes, Ordering::SeqCst);
        self.gauge.inc_by(signed(bytes));
    }

    fn remove(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes, Ordering::SeqCst);
        self.gauge.dec_by(signed(bytes));
        self.freed.notify_waiters();
    }
}

impl Quota {
    pub fn new(max: usize, total: Arc<Total>, usage: Arc<Usage>) -> Self {
        Self { max, bytes: Mutex::new(0), total, usage, is_revoked: AtomicBool::new(false), freed: Notify::new() }
    }

    /// What was received under it and waits is to be dropped.
    pub fn revoke(&self) {
        self.is_revoked.store(true, Ordering::SeqCst);
    }

    /// Takes a permit for `bytes`, if they are free now.
    pub fn try_take(self: &Arc<Self>, bytes: usize) -> Option<Permit> {
        let mut own = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        let all = self.total.bytes.load(Ordering::SeqCst);
        let is_crowded = all > 0 && all + bytes > self.total.max;
        let max = if self.usage.is_low() { self.max.min(LOW_PRIORITY_BYTES_MAX) } else { self.max };
        // A frame that is larger than the quota passes alone.
        if (is_crowded && *own + bytes > self.total.part) || (*own > 0 && *own + bytes > max) {
            return None;
        }
        *own += bytes;
        drop(own);
        self.total.add(bytes);
        Some(Permit { quota: Arc::clone(self), bytes })
    }

    /// Takes a permit for `bytes` as soon as they are free.
    pub async fn take(self: &Arc<Self>, bytes: usize) -> Permit {
        loop {
            // Registered before looking, so that no notice is missed in between.
            let (mut freed, mut all_freed) = (std::pin::pin!(self.freed.notified()), std::pin::pin!(self.total.freed.notified()));
            freed.as_mut().enable();
            all_freed.as_mut().enable();
            if let Some(permit) = self.try_take(bytes) {
                return permit;
            }
            tokio::select! {
                () = freed => {}
                () = all_freed => {}
            }
        }
    }
}

impl Permit {
    /// Both permits as one.
    pub fn join(mut self, mut other: Self) -> Self {
        self.bytes += std::mem::take(&mut other.bytes);
        self
    }

    /// What its member takes of this node's time.
    pub fn usage(&self) -> Arc<Usage> {
        Arc::clone(&self.quota.usage)
    }

    /// Whether it is for what came under a key that is no member's any more.
    pub fn is_revoked(&self) -> bool {
        self.quota.is_revoked.load(Ordering::SeqCst)
    }

    /// How many bytes it is for.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Makes it a permit for `bytes`, whether or not there is room.
    pub fn resize(&mut self, bytes: usize) {
        let before = std::mem::replace(&mut self.bytes, bytes);
        if bytes >= before {
            *self.quota.bytes.lock().unwrap_or_else(PoisonError::into_inner) += bytes - before;
            self.quota.total.add(bytes - before);
        } else {
            self.give_back(before - bytes);
        }
    }

    fn give_back(&self, bytes: usize) {
        *self.quota.bytes.lock().unwrap_or_else(PoisonError::into_inner) -= bytes;
        self.quota.total.remove(bytes);
        self.quota.freed.notify_waiters();
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.give_back(self.bytes);
        }
    }
}

fn signed(bytes: usize) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quotas(total: usize, each: usize) -> (Gauge, [Arc<Quota>; 2]) {
        let gauge = Gauge::default();
        let total = Arc::new(Total::new(total, 2, gauge.clone()));
        (gauge, [(); 2].map(|()| Arc::new(Quota::new(each, Arc::clone(&total), Arc::default()))))
    }

    #[test]
    fn joined_permits_are_returned_whole() {
        let (gauge, [quota, _]) = quotas(1 << 20, 10);
        let one = quota.try_take(3).expect("there is room");
        let two = quota.try_take(4).expect("there is room");
        let both = one.join(two);
        assert_eq!((both.bytes(), gauge.get()), (7, 7));
        assert!(quota.try_take(4).is_none());
        drop(both);
        assert_eq!(gauge.get(), 0);
        assert!(quota.try_take(10).is_some());
    }

    #[test]
    fn what_takes_more_than_expected_is_counted_and_paid_first() {
        let (gauge, [quota, _]) = quotas(1 << 20, 10);
        let (mut one, two) = (quota.try_take(3).expect("there is room"), quota.try_take(2).expect("there is room"));
        one.resize(25);
        assert_eq!(gauge.get(), 27);
        drop(two);
        assert!(quota.try_take(1).is_none(), "it still has 25");
        one.resize(9);
        assert!(quota.try_take(1).is_some());
        drop(one);
        assert_eq!(gauge.get(), 0);
        assert!(quota.try_take(50).is_some(), "it passes alone");
    }

    #[test]
    fn who_is_served_at_low_priority_may_have_little() {
        let (_, [quota, _]) = quotas(64 << 20, 16 << 20);
        let one = quota.try_take(LOW_PRIORITY_BYTES_MAX).expect("there is room");
        quota.usage.set_low(Some(0));
        assert!(quota.try_take(1).is_none());
        drop(one);
        let _large = quota.try_take(1 << 20).expect("a large frame passes alone");
        assert!(quota.try_take(1).is_none());
        quota.usage.set_low(None);
        assert!(quota.try_take(1).is_some());
    }

    #[tokio::test]
    async fn where_all_have_too_much_nobody_has_more_than_its_part() {
        let part = PART_BYTES_MIN;
        let (gauge, [greedy, modest]) = quotas(2 * part, 4 * part);
        let mut much = greedy.try_take(part + 1).expect("nobody else wants it");
        assert!(modest.try_take(part + 1).is_none(), "a large frame waits");
        assert!(greedy.try_take(part).is_none(), "it has more than its part");
        let own = modest.try_take(part).expect("this is its part");
        assert_eq!(gauge.get(), signed(2 * part + 1));
        much.resize(1);
        drop(own);
        let waiting = tokio::spawn(async move { modest.take(2 * part).await.bytes() });
        tokio::task::yield_now().await;
        drop(much);
        assert_eq!(waiting.await.expect("it does not panic"), 2 * part);
    }
}
