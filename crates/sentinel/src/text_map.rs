//! A map from texts in order, as small as can be.
//!
//! All entries lie in one piece of memory with little room to spare: a sixteenth is free on average, where a B-tree that is filled in
//! order leaves nearly half. Whoever inserts moves what is behind, so it is for some thousands of entries; what comes last moves nothing.

/// How much room there is for more, as a part of what there is.
const ROOM_PARTS: usize = 8;

/// Values by text.
#[derive(Clone, Debug)]
pub(crate) struct TextMap<V>(Vec<(Box<str>, V)>);

impl<V> Default for TextMap<V> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<V> TextMap<V> {
    fn find(&self, text: &str) -> Result<usize, usize> {
        self.0.binary_search_by(|(known, _)| (**known).cmp(text))
    }

    pub(crate) fn contains(&self, text: &str) -> bool {
        self.find(text).is_ok()
    }

    pub(crate) fn get(&self, text: &str) -> Option<&V> {
        self.find(text).ok().map(|at| &self.0[at].1)
    }

    pub(crate) fn get_mut(&mut self, text: &str) -> Option<&mut V> {
        self.find(text).ok().map(|at| &mut self.0[at].1)
    }

    /// Puts a value there. Gives the one that was there.
    pub(crate) fn insert(&mut self, text: Box<str>, value: V) -> Option<V> {
        // Many texts come in order.
        let is_last = self.0.last().is_none_or(|(last, _)| **last < *text);
        match if is_last { Err(self.0.len()) } else { self.find(&text) } {
            Ok(at) => Some(std::mem::replace(&mut self.0[at].1, value)),
            Err(at) => {
                if self.0.len() == self.0.capacity() {
                    self.0.reserve_exact(self.0.len() / ROOM_PARTS + 1);
                }
                self.0.insert(at, (text, value));
                None
            }
        }
    }

    pub(crate) fn remove(&mut self, text: &str) -> Option<V> {
        let at = self.find(text).ok()?;
        let (_, value) = self.0.remove(at);
        if self.0.len() < self.0.capacity() / 2 {
            self.0.shrink_to_fit();
        }
        Some(value)
    }

    /// All of them, in order.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = (&str, &V)> {
        self.0.iter().map(|(text, value)| (&**text, value))
    }

    /// The texts from `low` (included) to `high` (excluded), in order.
    pub(crate) fn between<'a>(&'a self, low: &str, high: &str) -> impl DoubleEndedIterator<Item = &'a str> + use<'a, V> {
        let [from, to] = [low, high].map(|bound| self.0.partition_point(|(text, _)| **text < *bound));
        self.0[from..to.max(from)].iter().map(|(text, _)| &**text)
    }
}

impl<V> IntoIterator for TextMap<V> {
    type Item = (Box<str>, V);
    type IntoIter = std::vec::IntoIter<Self::Item>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_as_a_b_tree_would_be(steps in proptest::collection::vec(("[abc]{0,4}", 0..3_u8, any::<u8>()), 0..200)) {
            let (mut map, mut model) = (TextMap::default(), BTreeMap::new());
            for (text, what, value) in steps {
                match what {
                    0 => prop_assert_eq!(map.remove(&text), model.remove(&*text)),
                    _ => prop_assert_eq!(map.insert(text.clone().into(), value), model.insert(text.clone(), value)),
                }
                prop_assert_eq!(map.get(&text), model.get(&text));
                prop_assert_eq!(map.contains(&text), model.contains_key(&text));
                prop_assert!(map.0.capacity() <= 2 * map.0.len() + 1, "{} for {}", map.0.capacity(), map.0.len());
            }
            prop_assert!(map.iter().eq(model.iter().map(|(text, value)| (&**text, value))));
            let within = model.range("ab".to_owned().."bc".to_owned()).map(|(text, _)| &**text);
            prop_assert!(map.between("ab", "bc").eq(within));
            prop_assert_eq!(map.between("bc", "ab").count(), 0);
        }
    }
}
