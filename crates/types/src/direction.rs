//! From which end a range of keys is read.

use std::cmp::Ordering;

use crate::codec::{Decode, DecodeError, Encode, Reader};
use crate::{Key, KeyRange};

/// From which end a range of keys is read.
///
/// Who stops before the other end has read up to some key: of `low..high`, [`Ascending`](Self::Ascending), `low..end`, and
/// [`Descending`](Self::Descending) `end..high`.
///
/// ```
/// use types::{Direction, Key, KeyRange};
///
/// let range = KeyRange::new(Key::from("a"), Key::from("z")).expect("it has keys");
/// let read = |direction: Direction| direction.read(&range, &Key::from("m")).map(|read| read.to_string());
/// assert_eq!((read(Direction::Ascending).as_deref(), read(Direction::Descending).as_deref()), (Some("a..m"), Some("m..z")));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From the beginning: the lowest key first.
    #[default]
    Ascending,
    /// From the end: the highest key first.
    Descending,
}

impl Direction {
    /// In which order two keys are met.
    #[must_use]
    pub fn order<K: Ord + ?Sized>(self, one: &K, other: &K) -> Ordering {
        match self {
            Self::Ascending => one.cmp(other),
            Self::Descending => other.cmp(one),
        }
    }

    /// Where reading `range` begins.
    #[must_use]
    pub fn begin(self, range: &KeyRange) -> &Key {
        match self {
            Self::Ascending => range.low(),
            Self::Descending => range.high(),
        }
    }

    /// Where it ends.
    #[must_use]
    pub fn end(self, range: &KeyRange) -> &Key {
        match self {
            Self::Ascending => range.high(),
            Self::Descending => range.low(),
        }
    }

    /// How far one has read who has read `key` and no further. Nothing where no key lies behind it.
    #[must_use]
    pub fn behind(self, key: &Key) -> Option<Key> {
        match self {
            Self::Ascending => key.successor(),
            Self::Descending => Some(key.clone()),
        }
    }

    /// Whether `key`, of the range that is read, has been passed by who has read up to `end`.
    #[must_use]
    pub fn has_passed(self, key: &Key, end: &Key) -> bool {
        match self {
            Self::Ascending => key < end,
            Self::Descending => key >= end,
        }
    }

    /// What of `range` is read by who has read up to `end`, which lies in it or at one of its ends. Nothing where that is where it begins.
    #[must_use]
    pub fn read(self, range: &KeyRange, end: &Key) -> Option<KeyRange> {
        match self {
            Self::Ascending => KeyRange::new(range.low().clone(), end.clone()),
            Self::Descending => KeyRange::new(end.clone(), range.high().clone()),
        }
    }

    /// What of it is left.
    #[must_use]
    pub fn left(self, range: &KeyRange, end: &Key) -> Option<KeyRange> {
        match self {
            Self::Ascending => KeyRange::new(end.clone(), range.high().clone()),
            Self::Descending => KeyRange::new(range.low().clone(), end.clone()),
        }
    }

    /// What is in ascending order, in this one.
    pub fn of<I: DoubleEndedIterator>(self, ascending: I) -> impl Iterator<Item = I::Item> {
        let mut ascending = ascending;
        std::iter::from_fn(move || match self {
            Self::Ascending => ascending.next(),
            Self::Descending => ascending.next_back(),
        })
    }
}

impl Encode for Direction {
    fn encode(&self, out: &mut Vec<u8>) {
        (*self == Self::Descending).encode(out);
    }
}

impl Decode for Direction {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(if bool::decode(reader)? { Self::Descending } else { Self::Ascending })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: [Direction; 2] = [Direction::Ascending, Direction::Descending];

    #[test]
    fn what_is_read_and_what_is_left_are_the_whole() {
        let range = KeyRange::new(Key::from("b"), Key::from("f")).expect("it has keys");
        let texts = |at: &str| {
            let at = Key::from(at);
            BOTH.map(|direction| {
                let text = |part: Option<KeyRange>| part.map_or_else(String::new, |part| part.to_string());
                format!("{} {}", text(direction.read(&range, &at)), text(direction.left(&range, &at)))
            })
        };
        assert_eq!(texts("d"), ["b..d d..f", "d..f b..d"]);
        assert_eq!(texts("b"), [" b..f", "b..f "]);
        assert_eq!(texts("f"), ["b..f ", " b..f"]);
        for direction in BOTH {
            assert_eq!(direction.read(&range, direction.end(&range)), Some(range.clone()));
            assert_eq!(direction.left(&range, direction.begin(&range)), Some(range.clone()));
        }
    }

    #[test]
    fn who_has_read_a_key_has_passed_it_and_no_key_behind_it() {
        let keys = ["b", "c", "d"].map(Key::from);
        for direction in BOTH {
            let end = direction.behind(&keys[1]).expect("keys lie on both sides");
            let passed: Vec<&Key> = direction.of(keys.iter()).filter(|key| direction.has_passed(key, &end)).collect();
            assert_eq!(passed.len(), 2);
            assert_eq!(passed[1], &keys[1]);
            assert!(passed.is_sorted_by(|one, next| direction.order(*one, *next).is_lt()));
        }
    }
}
