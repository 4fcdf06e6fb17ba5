//! Connections whose owner is not known yet.
//!
//! Anybody can open one and say nothing. So there are only so many of them, and when there are more, one makes way: the oldest of those
//! from the address that has the most. Who shakes hands takes milliseconds and is through before its turn comes; who holds many
//! connections open loses its own. So strangers cannot keep a member out by waiting.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prometheus_client::metrics::gauge::Gauge;
use tokio::sync::oneshot;

/// The connections of a node whose owner is not known yet.
#[derive(Debug)]
pub(crate) struct HalfOpen {
    max: usize,
    state: Mutex<State>,
    gauge: Gauge,
}

#[derive(Debug, Default)]
struct State {
    entered: u64,
    /// In the order in which they came. A dropped sender tells the connection to make way.
    places: BTreeMap<u64, (Network, oneshot::Sender<()>)>,
}

/// Who is taken for one: an IPv4 address, or the upper half of an IPv6 address, of which anybody has all the lower ones.
type Network = (bool, u64);

fn network(address: IpAddr) -> Network {
    match address.to_canonical() {
        IpAddr::V4(address) => (false, u64::from(address.to_bits())),
        IpAddr::V6(address) => (true, (address.to_bits() >> 64) as u64),
    }
}

/// One connection's place; dropping it gives it back.
#[derive(Debug)]
pub(crate) struct Place {
    all: Arc<HalfOpen>,
    number: u64,
    taken: oneshot::Receiver<()>,
}

impl HalfOpen {
    pub fn new(max: usize, gauge: Gauge) -> Self {
        Self { max: max.max(1), state: Mutex::default(), gauge }
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

    fn count(&self, state: &State) {
        self.gauge.set(i64::try_from(state.places.len()).unwrap_or(i64::MAX));
    }

    /// Nothing panics while it is held.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
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
}
