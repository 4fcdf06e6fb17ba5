//! How much of what was received may wait for the node loop: of one member, of all clients together, and of all replicas together.
//!
//! A frame is read and decoded under a [`Permit`] for what it is expected to take. What its messages do take is known only afterwards, and
//! may be several times as much: it is counted then, without waiting, and what exceeds the quota is a debt that the member pays with
//! what it gets back, before it may send anything more.
//!
//! While all members together have as much as they may have, each that has something waiting may have no more than an equal part of that. One that has
//! nothing waiting may have one frame, however large, up to [so much](ALONE_TOTALS_MAX). So nobody waits for one that takes its time.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prometheus_client::metrics::gauge::Gauge;
use tokio::sync::Notify;

use crate::limits::Limits;
use crate::member::Member;
use crate::priority::Usage;

/// However many members there are, each may have so much waiting.
const PART_BYTES_MIN: usize = 64 << 10;
/// So much may whoever is served at low priority have waiting. It is little, so that the node loop, whose priority is not low, does no
/// more for it than the thread that serves it brings.
const LOW_PRIORITY_BYTES_MAX: usize = 64 << 10;
/// Until all together have so many times what they may have, a member that has nothing waiting may have one frame that is larger than its part:
/// an honest one may have to send such a frame, and others may hold what they have for minutes. Without a limit, many keys could fill the memory.
const ALONE_TOTALS_MAX: usize = 2;

/// What all members of one kind may have waiting.
#[derive(Debug)]
pub(crate) struct Total {
    max: usize,
    bytes: AtomicUsize,
    /// How many members have something waiting.
    holders: AtomicUsize,
    gauge: Gauge,
    /// Told when what all have falls below one of the bounds that make a member wait.
    eased: Notify,
}

/// Clients and replicas have a total each: however many clients there are, they take no room from replicas.
#[derive(Debug)]
pub(crate) struct Totals {
    replicas: Arc<Total>,
    clients: Arc<Total>,
}

/// What one member may have waiting.
#[derive(Debug)]
pub(crate) struct Quota {
    max: usize,
    own: Mutex<Own>,
    total: Arc<Total>,
    usage: Arc<Usage>,
    /// Its member has another key by now, or is one no more.
    is_revoked: AtomicBool,
    /// Held by the one of its member's connections that waits first: the others wait for that one, so that few are woken.
    turn: tokio::sync::Mutex<()>,
    /// Told when what the first one waits for is free.
    freed: Notify,
}

/// What one member has.
#[derive(Debug, Default)]
struct Own {
    /// How much: more than the quota's `max` when messages were larger than expected.
    bytes: usize,
    /// What the first of its connections waits for, or one that has ended meanwhile waited for.
    wanted: Option<usize>,
}

/// A permit for received bytes, out of one member's quota; dropping it gives them back.
#[derive(Debug)]
pub(crate) struct Permit {
    quota: Arc<Quota>,
    bytes: usize,
}

impl Total {
    pub fn new(max: usize, gauge: Gauge) -> Self {
        Self { max, bytes: AtomicUsize::new(0), holders: AtomicUsize::new(0), gauge, eased: Notify::new() }
    }

    fn bytes(&self) -> usize {
        self.bytes.load(Ordering::SeqCst)
    }

    /// From this on only whoever has nothing waiting may have more than its part.
    fn is_crowded(&self, bytes: usize) -> bool {
        bytes >= self.max
    }

    /// From this on nobody may.
    fn is_full(&self, bytes: usize) -> bool {
        bytes >= self.max.saturating_mul(ALONE_TOTALS_MAX)
    }

    /// What each of those may have that have something waiting; a member that has nothing yet will be one of them.
    fn part(&self, own: usize) -> usize {
        let holders = self.holders.load(Ordering::SeqCst) + usize::from(own == 0);
        (self.max / holders.max(1)).max(PART_BYTES_MIN)
    }

    /// Whether a member that has `own` may have so much more.
    fn admits(&self, own: usize, more: usize) -> bool {
        let bytes = self.bytes();
        !self.is_crowded(bytes) || (own == 0 && !self.is_full(bytes)) || own + more <= self.part(own)
    }

    fn add(&self, bytes: usize) {
        self.bytes.fetch_add(bytes, Ordering::SeqCst);
        self.gauge.inc_by(signed(bytes));
    }

    /// Tells whoever waits only when that may help: this is called by the node loop, which has others to serve.
    fn remove(&self, bytes: usize) {
        let before = self.bytes.fetch_sub(bytes, Ordering::SeqCst);
        self.gauge.dec_by(signed(bytes));
        let after = before - bytes;
        let is_eased = self.is_crowded(before) != self.is_crowded(after) || self.is_full(before) != self.is_full(after);
        if is_eased {
            self.eased.notify_waiters();
        }
    }
}

impl Totals {
    pub fn new(limits: &Limits, gauge: &Gauge) -> Self {
        let total = || Arc::new(Total::new(limits.incoming_total_bytes_max, gauge.clone()));
        Self { replicas: total(), clients: total() }
    }

    /// That of which `member` has a part.
    pub fn of(&self, member: Member) -> &Arc<Total> {
        match member {
            Member::Replica(_) => &self.replicas,
            Member::Client(_) => &self.clients,
        }
    }
}

impl Quota {
    pub fn new(max: usize, total: Arc<Total>, usage: Arc<Usage>) -> Self {
        let (own, is_revoked, turn, freed) = (Mutex::default(), AtomicBool::new(false), tokio::sync::Mutex::default(), Notify::new());
        Self { max, own, total, usage, is_revoked, turn, freed }
    }

    /// What was received under it and waits is to be dropped.
    pub fn revoke(&self) {
        self.is_revoked.store(true, Ordering::SeqCst);
    }

    /// Takes a permit for `bytes`, if they are free now.
    pub fn try_take(self: &Arc<Self>, bytes: usize) -> Option<Permit> {
        self.take_out_of(&mut self.own(), bytes)
    }

    /// Takes a permit for `bytes` as soon as they are free.
    pub async fn take(self: &Arc<Self>, bytes: usize) -> Permit {
        let _turn = self.turn.lock().await;
        loop {
            // Registered before looking, so that no notice is missed in between.
            let (mut freed, mut eased) = (std::pin::pin!(self.freed.notified()), std::pin::pin!(self.total.eased.notified()));
            freed.as_mut().enable();
            eased.as_mut().enable();
            if let Some(permit) = self.take_or_want(bytes) {
                return permit;
            }
            tokio::select! {
                () = freed => {}
                () = eased => {}
            }
        }
    }

    /// Takes a permit for `bytes`; where they are not free, says that they are wanted.
    fn take_or_want(self: &Arc<Self>, bytes: usize) -> Option<Permit> {
        let mut own = self.own();
        let permit = self.take_out_of(&mut own, bytes);
        own.wanted = permit.is_none().then_some(bytes);
        permit
    }

    fn take_out_of(self: &Arc<Self>, own: &mut Own, bytes: usize) -> Option<Permit> {
        self.admits(own.bytes, bytes).then(|| {
            self.add(own, bytes);
            Permit { quota: Arc::clone(self), bytes }
        })
    }

    /// Whether a member that has `own` may have so much more.
    fn admits(&self, own: usize, more: usize) -> bool {
        let max = if self.usage.is_low() { self.max.min(LOW_PRIORITY_BYTES_MAX) } else { self.max };
        // A frame that is larger than the quota passes alone.
        (own == 0 || own + more <= max) && self.total.admits(own, more)
    }

    fn add(&self, own: &mut Own, bytes: usize) {
        if own.bytes == 0 && bytes > 0 {
            self.total.holders.fetch_add(1, Ordering::SeqCst);
        }
        own.bytes += bytes;
        self.total.add(bytes);
    }

    fn give_back(&self, bytes: usize) {
        let mut own = self.own();
        own.bytes -= bytes;
        if own.bytes == 0 && bytes > 0 {
            self.total.holders.fetch_sub(1, Ordering::SeqCst);
        }
        self.total.remove(bytes);
        let is_free = own.wanted.is_some_and(|wanted| self.admits(own.bytes, wanted));
        drop(own);
        if is_free {
            self.freed.notify_waiters();
        }
    }

    fn own(&self) -> MutexGuard<'_, Own> {
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
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
            self.quota.add(&mut self.quota.own(), bytes - before);
        } else {
            self.quota.give_back(before - bytes);
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.quota.give_back(self.bytes);
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
        let total = Arc::new(Total::new(total, gauge.clone()));
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

    #[test]
    fn where_all_have_too_much_nobody_has_more_than_its_part() {
        let part = PART_BYTES_MIN;
        let (gauge, [greedy, modest]) = quotas(2 * part, 4 * part);
        let much = greedy.try_take(2 * part).expect("nobody else wants it");
        assert!(greedy.try_take(1).is_none(), "it has more than its part");
        let own = modest.try_take(part - 1).expect("this is less than its part");
        assert!(modest.try_take(2).is_none(), "this would be more");
        let rest = modest.try_take(1).expect("this is its part");
        assert_eq!(gauge.get(), signed(3 * part));
        drop(much);
        assert!(modest.try_take(2 * part).is_some(), "there is room again");
        drop((own, rest));
        assert_eq!((gauge.get(), modest.total.holders.load(Ordering::SeqCst)), (0, 0));
    }

    #[test]
    fn who_has_nothing_waiting_may_have_one_large_frame_however_much_others_hold() {
        let part = PART_BYTES_MIN;
        let total = Arc::new(Total::new(16 * part, Gauge::default()));
        let quota = || Arc::new(Quota::new(16 * part, Arc::clone(&total), Arc::default()));
        let (hoarder, honest) = (quota(), quota());
        let _all = hoarder.try_take(16 * part).expect("nobody else wants it");
        let large = honest.try_take(9 * part).expect("it is larger than a part, and alone");
        assert!(honest.try_take(1).is_none(), "one at a time");
        drop(large);
        let large = honest.try_take(16 * part).expect("as large as may be");
        // Now all that there may be is taken.
        assert!(quota().try_take(9 * part).is_none(), "ever more of these would fill the memory");
        assert!(quota().try_take(5 * part).is_some(), "a third of what all may have is a part of three");
        drop(large);
        assert!(quota().try_take(9 * part).is_some());
    }

    /// Counts how often it is woken.
    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl std::task::Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// One that waits for a permit.
    struct Waiting<F> {
        take: std::pin::Pin<Box<F>>,
        woken: Arc<Woken>,
    }

    impl<F: Future<Output = Permit>> Waiting<F> {
        fn new(take: F) -> Self {
            let mut waiting = Self { take: Box::pin(take), woken: Arc::default() };
            assert!(waiting.get().is_none(), "it has to wait");
            waiting
        }

        fn get(&mut self) -> Option<Permit> {
            let waker = Arc::clone(&self.woken).into();
            match self.take.as_mut().poll(&mut std::task::Context::from_waker(&waker)) {
                std::task::Poll::Ready(permit) => Some(permit),
                std::task::Poll::Pending => None,
            }
        }

        fn times(&self) -> usize {
            self.woken.0.load(Ordering::SeqCst)
        }
    }

    #[test]
    fn who_waits_is_woken_when_that_helps_and_one_connection_of_a_member_at_a_time() {
        let part = PART_BYTES_MIN;
        let (_, [hoarder, modest]) = quotas(2 * part, 4 * part);
        let mut hoarded: Vec<Permit> = (0..4).map(|_| hoarder.try_take(part / 2).expect("nobody else wants it")).collect();
        let mut own = vec![modest.try_take(part / 4).expect("it is less than its part"), modest.try_take(1).expect("so is this")];
        let [mut first, mut second] = [part, 1].map(|bytes| {
            Waiting::new({
                let modest = Arc::clone(&modest);
                async move { modest.take(bytes).await }
            })
        });
        hoarded.pop();
        assert_eq!((first.times(), second.times()), (1, 0), "all together have less than they may have");
        let permit = first.get().expect("there is room");
        assert!(second.times() == 1 && second.get().is_none(), "it was its turn, and all have too much again");
        hoarded.pop();
        own.pop();
        assert_eq!(second.times(), 1, "all still have too much, and its member more than its part");
        drop(permit);
        assert!(second.times() > 1 && second.get().is_some());
    }

    #[test]
    fn who_waits_for_its_own_is_woken_when_that_is_enough() {
        let (_, [other, quota]) = quotas(64 << 20, 10);
        let (theirs, mut own) =
            (other.try_take(9), vec![quota.try_take(4).expect("there is room"), quota.try_take(5).expect("there is room")]);
        let mut waiting = Waiting::new(quota.take(6));
        drop(theirs);
        assert_eq!(waiting.times(), 0, "what others give back does not help");
        own[1].resize(3);
        assert_eq!(waiting.times(), 0, "that is not enough");
        own.remove(0);
        assert_eq!(waiting.times(), 1);
        assert!(waiting.get().is_some());
    }
}
