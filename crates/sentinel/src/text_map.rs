//! A map from texts in order, as small as can be.
//!
//! The entries lie in pieces of some hundreds, each one array with little room to spare: a B-tree that is filled in order leaves nearly half of
//! its room empty. Whoever inserts moves a part of one piece, whatever texts others choose. Each piece is shared with copies of the map until it
//! is changed.

use std::sync::Arc;

/// The most entries of a piece.
const PIECE_MAX: usize = 512;
/// A full piece gets room for one more entry in so many.
const ROOM_PARTS: usize = 8;

type Piece<V> = Vec<(Box<str>, V)>;

/// Values by text, in pieces of `MOST` entries at most.
#[derive(Clone, Debug)]
pub(crate) struct TextMap<V, const MOST: usize = PIECE_MAX> {
    /// None is empty, and all texts of one come before those of the next.
    pieces: Vec<Arc<Piece<V>>>,
    count: usize,
}

impl<V, const MOST: usize> Default for TextMap<V, MOST> {
    fn default() -> Self {
        Self { pieces: Vec::new(), count: 0 }
    }
}

fn place<V>(piece: &[(Box<str>, V)], text: &str) -> Result<usize, usize> {
    piece.binary_search_by(|(known, _)| (**known).cmp(text))
}

impl<V: Clone, const MOST: usize> TextMap<V, MOST> {
    pub(crate) fn len(&self) -> usize {
        self.count
    }

    /// The number of the piece in which `text` is, if it is anywhere: 0 where there is no piece.
    fn piece_of(&self, text: &str) -> usize {
        self.pieces.partition_point(|piece| *piece[0].0 <= *text).saturating_sub(1)
    }

    fn find(&self, text: &str) -> Option<(usize, usize)> {
        let number = self.piece_of(text);
        Some((number, place(self.pieces.get(number)?, text).ok()?))
    }

    pub(crate) fn contains(&self, text: &str) -> bool {
        self.find(text).is_some()
    }

    pub(crate) fn get(&self, text: &str) -> Option<&V> {
        self.find(text).map(|(piece, at)| &self.pieces[piece][at].1)
    }

    pub(crate) fn get_mut(&mut self, text: &str) -> Option<&mut V> {
        self.find(text).map(|(piece, at)| &mut Arc::make_mut(&mut self.pieces[piece])[at].1)
    }

    /// Puts a value there. Gives the one that was there.
    pub(crate) fn insert(&mut self, text: Box<str>, value: V) -> Option<V> {
        let mut number = self.piece_of(&text);
        let at = match self.pieces.get(number).map(|piece| place(piece, &text)) {
            Some(Ok(at)) => return Some(std::mem::replace(&mut Arc::make_mut(&mut self.pieces[number])[at].1, value)),
            Some(Err(at)) => at,
            None => {
                self.pieces.push(Arc::default());
                0
            }
        };
        self.count += 1;
        if self.pieces[number].len() >= MOST {
            // What comes in order leaves full pieces behind.
            let kept = if at == MOST { MOST } else { MOST / 2 };
            let behind = Arc::make_mut(&mut self.pieces[number]).split_off(kept);
            Arc::make_mut(&mut self.pieces[number]).shrink_to_fit();
            self.pieces.insert(number + 1, Arc::new(behind));
            if at >= kept {
                number += 1;
                insert_at(&mut self.pieces[number], at - kept, (text, value));
                return None;
            }
        }
        insert_at(&mut self.pieces[number], at, (text, value));
        None
    }

    pub(crate) fn remove(&mut self, text: &str) -> Option<V> {
        let (number, at) = self.find(text)?;
        let piece = Arc::make_mut(&mut self.pieces[number]);
        let (_, value) = piece.remove(at);
        self.count -= 1;
        if piece.is_empty() {
            self.pieces.remove(number);
        } else if self.pieces.get(number + 1).is_some_and(|next| self.pieces[number].len() + next.len() <= MOST / 2) {
            let next = Arc::unwrap_or_clone(self.pieces.remove(number + 1));
            Arc::make_mut(&mut self.pieces[number]).extend(next);
        } else if self.pieces[number].len() < self.pieces[number].capacity() / 2 {
            Arc::make_mut(&mut self.pieces[number]).shrink_to_fit();
        }
        Some(value)
    }

    /// All of them, in order.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = (&str, &V)> {
        self.pieces.iter().flat_map(|piece| piece.iter()).map(|(text, value)| (&**text, value))
    }

    /// The texts from `low` (included) to `high` (excluded), in order.
    pub(crate) fn between(&self, low: &str, high: &str) -> impl DoubleEndedIterator<Item = &str> + use<'_, V, MOST> {
        let until = if low < high { self.pieces.partition_point(|piece| *piece[0].0 < *high) } else { 0 };
        let pieces = &self.pieces[self.piece_of(low).min(until)..until];
        // Only the first and the last have texts that are not within.
        let skipped = pieces.first().map_or(0, |piece| piece.partition_point(|(text, _)| **text < *low));
        let left_out = pieces.last().map_or(0, |piece| piece.len() - piece.partition_point(|(text, _)| **text < *high));
        let last = pieces.len().saturating_sub(1);
        pieces.iter().enumerate().flat_map(move |(number, piece)| {
            let from = if number == 0 { skipped } else { 0 };
            let to = piece.len() - if number == last { left_out } else { 0 };
            piece[from.min(to)..to].iter().map(|(text, _)| &**text)
        })
    }
}

fn insert_at<V: Clone>(piece: &mut Arc<Piece<V>>, at: usize, entry: (Box<str>, V)) {
    let piece = Arc::make_mut(piece);
    if piece.len() == piece.capacity() {
        piece.reserve_exact(piece.len() / ROOM_PARTS + 1);
    }
    piece.insert(at, entry);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_as_a_b_tree_would_be(steps in proptest::collection::vec(("[abc]{0,4}", 0..5_u8, any::<u8>()), 0..300), low in "[abc]{0,3}", high in "[abc]{0,3}") {
            let (mut map, mut model) = (TextMap::<_, 6>::default(), BTreeMap::new());
            let mut copies = Vec::new();
            for (text, what, value) in steps {
                match what {
                    0 | 1 => prop_assert_eq!(map.remove(&text), model.remove(&*text)),
                    2 => prop_assert_eq!(map.get_mut(&text).map(|known| *known = value), model.get_mut(&*text).map(|known| *known = value)),
                    _ => prop_assert_eq!(map.insert(text.clone().into(), value), model.insert(text.clone(), value)),
                }
                prop_assert_eq!((map.get(&text), map.contains(&text)), (model.get(&text), model.contains_key(&text)));
                prop_assert_eq!(map.len(), model.len());
                prop_assert!(map.pieces.iter().all(|piece| (1..=6).contains(&piece.len())));
                if value < 16 {
                    copies.push((map.clone(), model.clone()));
                }
            }
            // What was copied is as it was then.
            copies.push((map, model));
            for (map, model) in &copies {
                prop_assert!(map.iter().eq(model.iter().map(|(text, value)| (&**text, value))));
                let within: Vec<&str> = model.keys().map(|text| &**text).filter(|text| *text >= &*low && *text < &*high).collect();
                prop_assert!(map.between(&low, &high).eq(within.iter().copied()), "{:?} of {:?}", within, map);
                prop_assert!(map.between(&low, &high).rev().eq(within.iter().rev().copied()));
            }
        }
    }

    #[test]
    fn what_comes_in_order_leaves_hardly_any_room_and_what_is_removed_none() {
        let mut map = TextMap::<u32>::default();
        for number in 0..10_000_u32 {
            map.insert(format!("{number:05}").into(), number);
        }
        let room = |map: &TextMap<u32>| map.pieces.iter().map(|piece| piece.capacity()).sum::<usize>();
        assert!(room(&map) <= 10_000 * 9 / 8, "{}", room(&map));
        for number in (0..10_000_u32).filter(|number| number % 100 > 0) {
            assert_eq!(map.remove(&format!("{number:05}")), Some(number));
        }
        assert!(map.len() == 100 && room(&map) <= 400, "{}", room(&map));
    }
}
