//! Who reads or means to write one key, in the order of timestamps.

use std::collections::VecDeque;

use types::Timestamp;

/// When a transaction is, and which of them it is here: two may claim one timestamp.
pub(crate) type At = (Timestamp, u64);

/// Transactions in the order of timestamps. Most keys have one at a time, which stands in place; of many, new ones mostly come
/// last and old ones leave first, so both ends are cheap.
#[derive(Debug)]
pub(crate) struct InOrder<T> {
    oldest: Option<(At, T)>,
    #[expect(clippy::box_collection, reason = "most keys have none, and should spend one word on that instead of four")]
    others: Option<Box<VecDeque<(At, T)>>>,
}

impl<T> Default for InOrder<T> {
    fn default() -> Self {
        Self { oldest: None, others: None }
    }
}

impl<T: Copy> InOrder<T> {
    pub fn is_empty(&self) -> bool {
        self.oldest.is_none()
    }

    /// Adds one, which must not be there.
    pub fn add(&mut self, at: At, what: T) {
        let Some(oldest) = &mut self.oldest else {
            self.oldest = Some((at, what));
            return;
        };
        let newer = if at < oldest.0 { std::mem::replace(oldest, (at, what)) } else { (at, what) };
        let others = self.others.get_or_insert_default();
        let place = others.partition_point(|(other, _)| *other < newer.0);
        others.insert(place, newer);
    }

    /// Takes one out, if it is there.
    pub fn remove(&mut self, at: At) {
        let Some(others) = &mut self.others else {
            self.oldest.take_if(|(oldest, _)| *oldest == at);
            return;
        };
        if self.oldest.is_some_and(|(oldest, _)| oldest == at) {
            self.oldest = others.pop_front();
        } else if let Ok(place) = others.binary_search_by_key(&at, |(other, _)| *other) {
            others.remove(place);
        }
        if others.is_empty() {
            self.others = None;
        }
    }

    /// The newest below `before`.
    pub fn newest_below(&self, before: Timestamp) -> Option<At> {
        let others = self.others.as_deref().and_then(|others| {
            let below = others.partition_point(|((timestamp, _), _)| *timestamp < before);
            others.get(below.checked_sub(1)?)
        });
        others.or(self.oldest.as_ref().filter(|((timestamp, _), _)| *timestamp < before)).map(|(at, _)| *at)
    }

    /// Those above `after`, oldest first.
    pub fn above(&self, after: Timestamp) -> impl Iterator<Item = &(At, T)> {
        let oldest = self.oldest.iter().filter(move |((timestamp, _), _)| *timestamp > after);
        let others = self.others.as_deref().into_iter().flat_map(move |others| {
            let above = others.partition_point(|((timestamp, _), _)| *timestamp <= after);
            others.range(above..)
        });
        oldest.chain(others)
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
            let (mut queue, mut model) = (InOrder::default(), BTreeMap::new());
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
            }
            queue.remove((time(9), 9));
            for bound in 0..=3 {
                let bound = Timestamp::new(bound, ClientId(1));
                let below = model.keys().rev().find(|(timestamp, _)| *timestamp < bound);
                assert_eq!(queue.newest_below(bound).as_ref(), below, "way {way}");
                let above = model.iter().filter(|((timestamp, _), _)| *timestamp > bound).map(|(at, what)| (*at, *what));
                assert!(queue.above(bound).copied().eq(above), "way {way}");
            }
        }
    }
}
