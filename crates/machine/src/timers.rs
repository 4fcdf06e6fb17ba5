//! A table of timers: at most one a name.

use std::collections::{BTreeMap, BTreeSet};

use crate::Time;

/// Timers by name. Setting one again moves it; ties fire in the order of the names.
#[derive(Debug)]
pub struct Timers<K: Ord + Clone> {
    by_time: BTreeSet<(Time, K)>,
    by_name: BTreeMap<K, Time>,
}

impl<K: Ord + Clone> Default for Timers<K> {
    fn default() -> Self {
        Self { by_time: BTreeSet::new(), by_name: BTreeMap::new() }
    }
}

impl<K: Ord + Clone> Timers<K> {
    /// Sets the timer `name` to fire at `at`.
    pub fn set(&mut self, name: K, at: Time) {
        if let Some(before) = self.by_name.insert(name.clone(), at) {
            self.by_time.remove(&(before, name.clone()));
        }
        self.by_time.insert((at, name));
    }

    /// Forgets the timer `name`, if it is set.
    pub fn cancel(&mut self, name: &K) {
        if let Some(at) = self.by_name.remove(name) {
            self.by_time.remove(&(at, name.clone()));
        }
    }

    /// When the next timer fires.
    #[must_use]
    pub fn next(&self) -> Option<Time> {
        self.by_time.first().map(|(at, _)| *at)
    }

    /// Takes one timer that is due at `now`.
    pub fn expire(&mut self, now: Time) -> Option<K> {
        if self.next()? > now {
            return None;
        }
        let (_, name) = self.by_time.pop_first()?;
        self.by_name.remove(&name);
        Some(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timer_set_again_fires_once_at_its_new_time() {
        let mut timers = Timers::default();
        timers.set("a", Time(5));
        timers.set("b", Time(7));
        timers.set("a", Time(9));
        assert_eq!(timers.expire(Time(6)), None);
        assert_eq!(timers.expire(Time(9)), Some("b"));
        assert_eq!(timers.expire(Time(9)), Some("a"));
        assert_eq!(timers.expire(Time(9)), None);
        timers.set("c", Time(1));
        timers.cancel(&"c");
        assert_eq!(timers.next(), None);
    }
}
