//! What a replica holds of moments ([`moment`](crate::moment)): of each key that was changed since, what it was before. The rows of the moment are
//! the present rows with these over them, so that a moment costs as much as is changed after it, and never a copy of the state.
//!
//! It is no part of the replicated state: replicas may hold different moments, since each forgets by its own clock, and one that took over
//! the state of others holds none. `f+1` that hold one are enough.

use std::collections::BTreeMap;

use machine::Time;
use mutants::{Mutant, broken};
use types::{ClientId, Key, TransactionId, Value};

use crate::limits::{MOMENT_BYTES_MAX, MOMENT_KEY_OVERHEAD_BYTES, MOMENT_UNREAD_MS, MOMENTS_MAX};

/// So many keys of a moment that was dropped are freed at a tick: millions at once would hold up everything else.
const FREED_A_TICK_MAX: usize = 50_000;

/// What each changed key was before.
pub(crate) type Before = BTreeMap<Key, Option<Value>>;

/// The moments that a replica holds.
#[derive(Debug)]
pub(crate) struct HeldMoments {
    /// The oldest first.
    moments: Vec<Moment>,
    bytes_max: usize,
    /// What is not held any more, and not freed yet.
    dropped: Vec<Before>,
}

#[derive(Debug)]
struct Moment {
    id: TransactionId,
    author: ClientId,
    before: Before,
    bytes: usize,
    /// When it was read last, or came to be held; nothing until the next tick.
    read_at: Option<Time>,
}

impl HeldMoments {
    /// None, with room for so many bytes.
    pub fn new(bytes_max: usize) -> Self {
        Self { moments: Vec::new(), bytes_max, dropped: Vec::new() }
    }

    pub fn len(&self) -> usize {
        self.moments.len()
    }

    /// Holds the present as the moment `id` from now on, in place of another one of its author; where there are too many, in place of the one that was
    /// not read for the longest time.
    pub fn begin(&mut self, id: TransactionId, author: ClientId) {
        self.drop_where(|moment| moment.author == author);
        if self.moments.len() >= MOMENTS_MAX {
            // Without a time it was read, or began, since the last tick.
            let longest = self.moments.iter().map(|moment| moment.read_at.unwrap_or(Time(u64::MAX))).enumerate().min_by_key(|(_, at)| *at);
            if let Some((at, _)) = longest {
                self.dropped.push(self.moments.remove(at).before);
            }
        }
        self.moments.push(Moment { id, author, before: Before::new(), bytes: 0, read_at: None });
    }

    /// `key` is about to be changed, or may be: it has been `value` until now.
    pub fn note(&mut self, key: &Key, value: Option<&[u8]>) {
        for moment in &mut self.moments {
            if moment.before.contains_key(key) && !broken(Mutant::MomentMoves) {
                continue;
            }
            moment.bytes += MOMENT_KEY_OVERHEAD_BYTES + key.as_bytes().len() + value.map_or(0, <[u8]>::len);
            let value = value.map(|bytes| Value::copied(bytes).expect("only values are kept"));
            moment.before.insert(key.detached(), value);
        }
        while self.moments.iter().map(|moment| moment.bytes).sum::<usize>() > self.bytes_max && !broken(Mutant::MomentsUnlimited) {
            let largest = self.moments.iter().enumerate().max_by_key(|(_, moment)| moment.bytes);
            let (at, _) = largest.expect("their bytes add up to more than nothing, so there is one");
            self.dropped.push(self.moments.remove(at).before);
        }
    }

    /// What was changed since a moment of `author`, who reads it now.
    pub fn read(&mut self, id: TransactionId, author: ClientId) -> Option<&Before> {
        let is_its = |moment: &&mut Moment| moment.id == id && (moment.author == author || broken(Mutant::MomentOfAnyone));
        let moment = self.moments.iter_mut().find(is_its)?;
        moment.read_at = None;
        Some(&moment.before)
    }

    /// Holds a moment no longer, as its author wants, or as it was none.
    pub fn drop_of(&mut self, id: TransactionId, author: ClientId) {
        self.drop_where(|moment| moment.id == id && moment.author == author);
    }

    /// Time has passed.
    pub fn on_tick(&mut self, now: Time) {
        for moment in &mut self.moments {
            moment.read_at.get_or_insert(now);
        }
        self.drop_where(|moment| moment.read_at.is_some_and(|at| at.after_ms(MOMENT_UNREAD_MS) <= now));
        let mut left = FREED_A_TICK_MAX;
        while left > 0
            && let Some(last) = self.dropped.last_mut()
        {
            if last.pop_first().is_none() {
                self.dropped.pop();
            }
            left -= 1;
        }
    }

    fn drop_where(&mut self, is_dropped: impl Fn(&Moment) -> bool) {
        self.dropped.extend(self.moments.extract_if(.., |moment| is_dropped(moment)).map(|moment| moment.before));
    }
}

impl Default for HeldMoments {
    fn default() -> Self {
        Self::new(MOMENT_BYTES_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALICE: ClientId = ClientId(1);
    const BOB: ClientId = ClientId(2);
    const CAROL: ClientId = ClientId(3);

    fn id(number: u8) -> TransactionId {
        TransactionId([number; 32])
    }

    fn are_held(held: &HeldMoments) -> Vec<TransactionId> {
        held.moments.iter().map(|moment| moment.id).collect()
    }

    #[test]
    fn a_client_has_one_moment_and_the_least_read_gives_way() {
        let mut held = HeldMoments::default();
        held.begin(id(1), ALICE);
        held.begin(id(2), ALICE);
        assert_eq!(are_held(&held), [id(2)]);
        held.begin(id(3), BOB);
        held.on_tick(Time(0).after_ms(10));
        assert!(held.read(id(2), ALICE).is_some());
        held.begin(id(4), CAROL);
        assert_eq!(are_held(&held), [id(2), id(4)]);
        // As when a journal is executed again, where no time passes.
        held.begin(id(5), BOB);
        assert_eq!(are_held(&held), [id(4), id(5)]);
        assert!(held.read(id(5), ALICE).is_none(), "it is another's");
        held.drop_of(id(5), ALICE);
        held.drop_of(id(4), CAROL);
        assert_eq!(are_held(&held), [id(5)]);
    }

    #[test]
    fn what_is_not_read_for_long_is_not_held() {
        let mut held = HeldMoments::default();
        held.begin(id(1), ALICE);
        held.begin(id(2), BOB);
        let mut now = Time(5_000_000_000);
        for _ in 0..3 {
            held.on_tick(now);
            now = now.after_ms(MOMENT_UNREAD_MS - 1);
            held.read(id(1), ALICE);
            held.on_tick(now);
            now = now.after_ms(1);
        }
        assert_eq!(are_held(&held), [id(1)]);
        held.on_tick(now.after_ms(MOMENT_UNREAD_MS));
        assert!(are_held(&held).is_empty() && held.dropped.is_empty());
    }

    #[test]
    fn the_largest_gives_way_where_too_much_is_changed() {
        let mut held = HeldMoments::new(10 * MOMENT_KEY_OVERHEAD_BYTES);
        held.begin(id(1), ALICE);
        (0..4).for_each(|number: u8| held.note(&Key::from(format!("{number}").as_str()), Some(&[7; 100])));
        held.begin(id(2), BOB);
        held.note(&Key::from("4"), None);
        assert_eq!(held.len(), 2);
        held.note(&Key::from("0"), None);
        assert_eq!(are_held(&held), [id(2)]);
        (5..9).for_each(|number: u8| held.note(&Key::from(format!("{number}").as_str()), Some(&[7; 200])));
        assert_eq!(held.len(), 0);
    }
}
