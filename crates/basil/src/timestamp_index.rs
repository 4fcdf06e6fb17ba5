//! Who reads or means to write one key, in the order of timestamps.

use std::collections::VecDeque;

use types::Timestamp;

/// When a transaction is, and which of them it is here: two may claim one timestamp.
pub(crate) type OrderKey = (Timestamp, u64);

/// Transactions in the order of timestamps. Most keys have none, and spend one word on that. Of many, new ones mostly come
/// last and old ones leave first, so both ends are cheap. The newest is at hand: mostly it alone is asked about.
#[derive(Debug)]
pub(crate) struct TimestampIndex<T>(Option<Box<Present<T>>>);

/// What there is, where there is any.
#[derive(Debug)]
struct Present<T> {
    newest: (OrderKey, T),
    #[expect(clippy::box_collection, reason = "most have no others, and should spend one word on that instead of four")]
    others: Option<Box<VecDeque<(OrderKey, T)>>>,
}

impl<T> Present<T> {
    /// Takes out all below `bound` but for the newest. Gives whether that is below it, too.
    fn is_all_below(&mut self, bound: Timestamp) -> bool {
        if let Some(others) = &mut self.others {
            let below = others.partition_point(|((timestamp, _), _)| *timestamp < bound);
            others.drain(..below);
            if others.is_empty() {
                self.others = None;
            }
        }
        self.newest.0.0 < bound
    }
}

impl<T> Default for TimestampIndex<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T: Copy> TimestampIndex<T> {
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Adds one, which must not be there.
    pub fn add(&mut self, at: OrderKey, what: T) {
        let Some(Present { newest, others }) = self.0.as_deref_mut() else {
            self.0 = Some(Box::new(Present { newest: (at, what), others: None }));
            return;
        };
        let older = if at > newest.0 { std::mem::replace(newest, (at, what)) } else { (at, what) };
        let others = others.get_or_insert_with(|| Box::new(VecDeque::with_capacity(1)));
        if others.back().is_none_or(|(last, _)| *last < older.0) {
            others.push_back(older);
            return;
        }
        let place = others.partition_point(|(other, _)| *other < older.0);
        others.insert(place, older);
    }

    /// Takes one out, if it is there.
    pub fn remove(&mut self, at: OrderKey) {
        let Some(Present { newest, others: older }) = self.0.as_deref_mut() else { return };
        let Some(others) = older else {
            if newest.0 == at {
                self.0 = None;
            }
            return;
        };
        if newest.0 == at {
            *newest = others.pop_back().expect("where there are others there is one");
        } else if others.front().is_some_and(|(oldest, _)| *oldest == at) {
            others.pop_front();
        } else if let Ok(place) = others.binary_search_by_key(&at, |(other, _)| *other) {
            others.remove(place);
        }
        if others.is_empty() {
            *older = None;
        }
    }

    /// Takes out all below `bound`.
    pub fn remove_below(&mut self, bound: Timestamp) {
        if self.0.as_deref_mut().is_some_and(|present| present.is_all_below(bound)) {
            self.0 = None;
        }
    }

    /// Adds one, which must not be there, and takes out all below `bound`.
    pub fn add_and_remove_below(&mut self, at: OrderKey, what: T, bound: Timestamp) {
        if let Some(present) = self.0.as_deref_mut()
            && present.is_all_below(bound)
        {
            present.newest = (at, what); // In its place.
        } else {
            self.add(at, what);
        }
    }

    /// The oldest.
    pub fn oldest(&self) -> Option<OrderKey> {
        let Present { newest, others } = self.0.as_deref()?;
        let oldest = others.as_deref().and_then(VecDeque::front).unwrap_or(newest);
        Some(oldest.0)
    }

    /// The newest below `before`.
    pub fn newest_below(&self, before: Timestamp) -> Option<OrderKey> {
        let Present { newest: (newest, _), others } = self.0.as_deref()?;
        if newest.0 < before {
            return Some(*newest);
        }
        let others = others.as_deref()?;
        let below = others.partition_point(|((timestamp, _), _)| *timestamp < before);
        others.get(below.checked_sub(1)?).map(|(at, _)| *at)
    }

    /// Those above `after`, oldest first.
    pub fn above(&self, after: Timestamp) -> impl Iterator<Item = &(OrderKey, T)> {
        let present = self.0.as_deref().filter(move |present| present.newest.0.0 > after);
        let others = present.and_then(|present| present.others.as_deref()).into_iter().flat_map(move |others| {
            let above = others.partition_point(|((timestamp, _), _)| *timestamp <= after);
            others.range(above..)
        });
        others.chain(present.map(|present| &present.newest))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use types::ClientId;

    use super::*;

    #[test]
    fn is_as_a_sorted_map_is() {
        // Every way to add and remove of so many, by the digits of a number.
        let time = |number: u64| Timestamp::new(number / 2, ClientId(1));
        for way in 0..6_u64.pow(7) {
            let (mut queue, mut model) = (TimestampIndex::default(), BTreeMap::new());
            for step in 0..7 {
                let number = way / 6_u64.pow(step) % 6;
                let at = (time(number), number);
                if model.remove(&at).is_some() {
                    queue.remove(at);
                } else {
                    model.insert(at, step);
                    queue.add(at, step);
                }
                assert_eq!(queue.is_empty(), model.is_empty(), "way {way}");
                assert_eq!(queue.oldest().as_ref(), model.keys().next(), "way {way}");
            }
            queue.remove((time(9), 9));
            for bound in 0..=3 {
                let bound = Timestamp::new(bound, ClientId(1));
                let below = model.keys().rev().find(|(timestamp, _)| *timestamp < bound);
                assert_eq!(queue.newest_below(bound).as_ref(), below, "way {way}");
                let above = model.iter().filter(|((timestamp, _), _)| *timestamp > bound).map(|(at, what)| (*at, *what));
                assert!(queue.above(bound).copied().eq(above), "way {way}");
            }
            for bound in 0..=3 {
                let bound = Timestamp::new(bound, ClientId(1));
                model.retain(|(timestamp, _), _| *timestamp >= bound);
                if way % 2 == 0 {
                    queue.remove_below(bound);
                } else {
                    let at = (bound, 99);
                    queue.add_and_remove_below(at, 9, bound);
                    model.insert(at, 9);
                }
                assert!(queue.above(Timestamp::ZERO).map(|(at, _)| at).eq(model.keys().filter(|at| at.0 > Timestamp::ZERO)), "way {way}");
                assert_eq!((queue.is_empty(), queue.oldest().as_ref()), (model.is_empty(), model.keys().next()), "way {way}");
            }
        }
    }
}
