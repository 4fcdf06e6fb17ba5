//! Connections whose owner is not known yet.
//!
//! Anybody can open one and say nothing. So there are only so many of them, and when there are more, one makes way: the oldest of those
//! from the address that has the most. Who shakes hands takes milliseconds and is through before its turn comes; who holds many
//! connections open loses its own. So strangers cannot keep a member out by waiting.
//!
//! Nor by shaking hands without end: what a handshake costs, this node's signature above all, is paid by one connection at a time, and the
//! turns go round the addresses that wait. After a burst there are only so many a second, so that members keep the node's cores. Of one
//! address the last that came is the first: the others are about to make way.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use prometheus_client::metrics::gauge::Gauge;
use tokio::sync::oneshot;

/// So many handshakes may follow one another without a pause, as when this node was away and its clients come back.
const HANDSHAKES_AT_ONCE_MAX: u32 = 512;
/// How often one more may begin: a hundred a second take a twentieth of a core, and members reconnect far less often.
const HANDSHAKE_INTERVAL: Duration = Duration::from_millis(10);

/// The connections of a node whose owner is not known yet.
#[derive(Debug)]
pub struct HalfOpen {
    max: usize,
    state: Mutex<State>,
    turns: Mutex<Turns>,
    gauge: Gauge,
}

/// Whose turn it is to shake hands.
#[derive(Debug, Default)]
struct Turns {
    is_taken: bool,
    /// Whose turn it is or was last.
    last: Option<Network>,
    pace: Pace,
    /// Those who wait, in the order in which they came. Each has a place, or has just lost it.
    waiting: BTreeMap<Network, VecDeque<oneshot::Sender<Permit>>>,
}

/// How fast turns follow one another.
#[derive(Debug, Default)]
struct Pace {
    /// When all turns so far are paid for.
    paid_at: Option<Instant>,
}

impl Pace {
    /// Takes a turn at `now`.
    ///
    /// # Errors
    /// How long to wait, when too many were taken.
    fn take(&mut self, now: Instant) -> Result<(), Duration> {
        let paid_at = self.paid_at.map_or(now, |paid_at| paid_at.max(now));
        let wait = paid_at.saturating_duration_since(now).saturating_sub(HANDSHAKE_INTERVAL * HANDSHAKES_AT_ONCE_MAX);
        if wait.is_zero() {
            self.paid_at = Some(paid_at + HANDSHAKE_INTERVAL);
            Ok(())
        } else {
            Err(wait)
        }
    }
}

/// One connection's turn to shake hands; dropping it gives the next one its turn.
#[derive(Debug)]
pub(crate) struct Permit(Option<Arc<HalfOpen>>);

#[derive(Debug, Default)]
struct State {
    entered: u64,
    /// In the order in which they came. A dropped sender tells the connection to make way.
    places: BTreeMap<u64, (Network, oneshot::Sender<()>)>,
}

/// Who is taken for one: an IPv4 address, or the upper half of an IPv6 address, of which anybody has all the lower ones.
pub type Network = (bool, u64);

/// Of whom an address is.
#[must_use]
pub fn network(address: IpAddr) -> Network {
    match address.to_canonical() {
        IpAddr::V4(address) => (false, u64::from(address.to_bits())),
        IpAddr::V6(address) => (true, (address.to_bits() >> 64) as u64),
    }
}

/// One connection's place; dropping it gives it back.
#[derive(Debug)]
pub struct Place {
    all: Arc<HalfOpen>,
    number: u64,
    taken: oneshot::Receiver<()>,
}

impl HalfOpen {
    /// No connections, and so many at most, beside one in any case. The gauge shows how many there are.
    pub(crate) fn new(max: usize, gauge: Gauge) -> Self {
        Self { max: max.max(1), state: Mutex::default(), turns: Mutex::default(), gauge }
    }

    /// The same, which nobody is shown.
    #[must_use]
    pub fn unseen(max: usize) -> Self {
        Self::new(max, Gauge::default())
    }

    /// Gives a new connection from `address` a place, at the cost of another where there are too many.
    pub fn enter(self: &Arc<Self>, address: IpAddr) -> Place {
        let (keep, taken) = oneshot::channel();
        let mut state = self.lock();
        state.entered += 1;
        let number = state.entered;
        state.places.insert(number, (network(address), keep));
        if state.places.len() > self.max
            && let Some(last) = state.first_of_the_most()
        {
            state.places.remove(&last);
        }
        self.count(&state);
        drop(state);
        Place { all: Arc::clone(self), number, taken }
    }

    /// Waits for a turn to shake hands.
    pub(crate) async fn turn(self: &Arc<Self>, address: IpAddr) -> Permit {
        let network = network(address);
        let waiting = {
            let mut turns = self.lock_turns();
            if turns.is_taken {
                let (give, waiting) = oneshot::channel();
                let queue = turns.waiting.entry(network).or_default();
                // Those who made way are gone, and their turns will not come.
                if queue.len() >= 2 * self.max {
                    queue.retain(|waiting| !waiting.is_closed());
                }
                queue.push_back(give);
                Some(waiting)
            } else {
                (turns.is_taken, turns.last) = (true, Some(network));
                None
            }
        };
        let turn = match waiting {
            None => Permit(Some(Arc::clone(self))),
            Some(waiting) => waiting.await.expect("whoever waits is given a turn, and leaves the queue by that alone"),
        };
        loop {
            let taken = self.lock_turns().pace.take(Instant::now());
            match taken {
                Ok(()) => return turn,
                Err(wait) => tokio::time::sleep(wait).await,
            }
        }
    }

    fn pass_turn(self: &Arc<Self>) {
        loop {
            let Some(next) = self.lock_turns().next() else { return };
            match next.send(Permit(Some(Arc::clone(self)))) {
                Ok(()) => return,
                // It does not wait any more, and whoever comes after it has its turn: not by this one's end.
                Err(mut turn) => turn.0 = None,
            }
        }
    }

    fn lock_turns(&self) -> MutexGuard<'_, Turns> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self, state: &State) {
        self.gauge.set(i64::try_from(state.places.len()).unwrap_or(i64::MAX));
    }

    /// Nothing panics while it is held.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Turns {
    /// The one that came last from the network after the last one's.
    fn next(&mut self) -> Option<oneshot::Sender<Permit>> {
        let after = self.last.map_or(Bound::Unbounded, Bound::Excluded);
        let later = self.waiting.range((after, Bound::Unbounded)).next();
        let Some(network) = later.or_else(|| self.waiting.iter().next()).map(|(network, _)| *network) else {
            self.is_taken = false;
            return None;
        };
        self.last = Some(network);
        let queue = self.waiting.get_mut(&network)?;
        let next = queue.pop_back();
        if queue.is_empty() {
            self.waiting.remove(&network);
        }
        next
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if let Some(all) = self.0.take() {
            all.pass_turn();
        }
    }
}

impl State {
    /// The oldest connection of the network that has the most.
    fn first_of_the_most(&self) -> Option<u64> {
        let mut counts: BTreeMap<Network, usize> = BTreeMap::new();
        for (network, _) in self.places.values() {
            *counts.entry(*network).or_default() += 1;
        }
        let most = counts.values().max()?;
        self.places.iter().find(|(_, (network, _))| counts.get(network) == Some(most)).map(|(number, _)| *number)
    }
}

impl Place {
    /// Waits until another connection has taken the place.
    pub async fn taken(&mut self) {
        // Nothing is ever sent: the sender goes with the place.
        let _ = (&mut self.taken).await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.all.lock();
        state.places.remove(&self.number);
        self.all.count(&state);
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Poll, Waker};

    use super::*;

    #[test]
    fn the_oldest_of_the_network_that_has_the_most_makes_way() {
        let gauge = Gauge::default();
        let all = Arc::new(HalfOpen::new(4, gauge.clone()));
        let enter = |address: &str| all.enter(address.parse().expect("an address"));
        let is_taken = |place: &mut Place| place.taken.try_recv() == Err(oneshot::error::TryRecvError::Closed);
        let mut honest = enter("192.0.2.1");
        let mut greedy = ["2001:db8::1", "2001:db8::2", "2001:db8::3"].map(enter);
        let mut late = enter("192.0.2.2");
        assert_eq!(greedy.each_mut().map(is_taken), [true, false, false]);
        // The place that was taken is not given back a second time.
        drop(greedy);
        assert_eq!(gauge.get(), 2);
        let mut others = ["192.0.2.3", "::ffff:192.0.2.3", "192.0.2.4"].map(enter);
        assert_eq!(others.each_mut().map(is_taken), [true, false, false]);
        let mut last = enter("192.0.2.5");
        assert!(is_taken(&mut honest), "among equals it is the oldest");
        assert!(!is_taken(&mut late) && !is_taken(&mut last));
    }

    #[test]
    fn turns_to_shake_hands_go_round_the_addresses() {
        let all = Arc::new(HalfOpen::new(4, Gauge::default()));
        let [greedy, honest] = ["192.0.2.1", "192.0.2.2"].map(|address| address.parse().expect("an address"));
        let mut context = Context::from_waker(Waker::noop());
        let mut many: Vec<_> = (0..100).map(|_| Box::pin(all.turn(greedy))).collect();
        let mut one = Box::pin(all.turn(honest));
        let Poll::Ready(first) = many[0].as_mut().poll(&mut context) else { panic!("nobody else has it") };
        assert!(many[1..].iter_mut().all(|turn| turn.as_mut().poll(&mut context).is_pending()));
        assert!(one.as_mut().poll(&mut context).is_pending());
        drop(first);
        let Poll::Ready(second) = one.as_mut().poll(&mut context) else { panic!("it is the turn of the other address") };
        drop(second);
        // Those who went while they waited, before or after their turn came, hold nobody up.
        many.truncate(50);
        let Poll::Ready(third) = many[49].as_mut().poll(&mut context) else { panic!("the last that still waits") };
        drop((third, many));
        let mut last = Box::pin(all.turn(greedy));
        assert!(last.as_mut().poll(&mut context).is_ready());
    }

    #[test]
    fn after_a_burst_there_are_so_many_handshakes_a_second() {
        let (mut pace, start) = (Pace::default(), Instant::now());
        let mut taken = |at: Instant| (0..1_000).filter(|_| pace.take(at).is_ok()).count();
        let burst = HANDSHAKES_AT_ONCE_MAX as usize + 1;
        assert_eq!(taken(start), burst);
        assert_eq!(taken(start + HANDSHAKE_INTERVAL / 2), 0);
        assert_eq!(taken(start + HANDSHAKE_INTERVAL * 10), 10);
        assert_eq!(taken(start + Duration::from_secs(60)), burst);
        assert_eq!(pace.take(start + Duration::from_secs(60)), Err(HANDSHAKE_INTERVAL));
    }
}
