//! A range of keys.

use std::fmt;

use crate::Key;
use crate::codec::{Decode, DecodeError, Encode, Reader};
use crate::limits::KEY_BYTES_MAX;

/// The keys from one (included) to another (excluded). No range is empty.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyRange {
    low: Key,
    high: Key,
}

impl KeyRange {
    /// The keys from `low` to `high`, or `None` when there are none.
    #[must_use]
    pub fn new(low: Key, high: Key) -> Option<Self> {
        (low < high).then_some(Self { low, high })
    }

    /// The first key of the range.
    #[must_use]
    pub fn low(&self) -> &Key {
        &self.low
    }

    /// The first key after the range.
    #[must_use]
    pub fn high(&self) -> &Key {
        &self.high
    }

    /// Whether `key` lies in it.
    #[must_use]
    pub fn contains(&self, key: &Key) -> bool {
        self.low <= *key && *key < self.high
    }

    /// The keys of all `ranges`, with each key once: those that overlap or touch are one.
    #[must_use]
    pub fn union(mut ranges: Vec<Self>) -> Vec<Self> {
        ranges.sort_unstable();
        ranges.dedup_by(|next, last| {
            let meet = next.low <= last.high;
            if meet && last.high < next.high {
                last.high = std::mem::take(&mut next.high);
            }
            meet
        });
        ranges
    }

    /// Whether `ranges` are in order, and no two of them overlap or touch, as [`KeyRange::union`] gives them.
    #[must_use]
    pub fn are_apart(ranges: &[Self]) -> bool {
        ranges.is_sorted_by(|one, next| one.high < next.low)
    }

    /// The same range in buffers of its own, so that keeping it does not keep a whole frame.
    #[must_use]
    pub fn detached(&self) -> Self {
        Self { low: self.low.detached(), high: self.high.detached() }
    }

    /// How many bytes its two keys have.
    #[must_use]
    pub fn key_bytes(&self) -> usize {
        self.low.as_bytes().len() + self.high.as_bytes().len()
    }
}

impl Key {
    /// The next key: no other lies between. Nothing after the last of all.
    #[must_use]
    pub fn successor(&self) -> Option<Self> {
        let mut bytes = self.as_bytes().to_vec();
        if bytes.len() < KEY_BYTES_MAX {
            bytes.push(0);
            return Self::new(bytes);
        }
        self.after_prefixed()
    }

    /// The first key after all that begin with this one. Nothing where they are the last of all.
    #[must_use]
    pub fn after_prefixed(&self) -> Option<Self> {
        let mut bytes = self.as_bytes().to_vec();
        while bytes.last() == Some(&u8::MAX) {
            bytes.pop();
        }
        *bytes.last_mut()? += 1;
        Self::new(bytes)
    }
}

impl fmt::Debug for KeyRange {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

impl fmt::Display for KeyRange {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}..{}", self.low, self.high)
    }
}

impl Encode for KeyRange {
    fn encode(&self, out: &mut Vec<u8>) {
        self.low.encode(out);
        self.high.encode(out);
    }
}

impl Decode for KeyRange {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        let (low, high) = (Key::decode(reader)?, Key::decode(reader)?);
        Self::new(low, high).ok_or(DecodeError::NotCanonical("a range of keys"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ClusterId;

    fn range(low: &str, high: &str) -> KeyRange {
        KeyRange::new(Key::from(low), Key::from(high)).expect("it has keys")
    }

    #[test]
    fn a_range_without_keys_is_none_and_does_not_decode() {
        let cluster = ClusterId::new([0; 16]);
        let decoded = |low: &str, high: &str| {
            let mut bytes = Key::from(low).to_bytes();
            Key::from(high).encode(&mut bytes);
            KeyRange::from_bytes(bytes.into(), cluster)
        };
        assert_eq!(decoded("a", "b"), Ok(range("a", "b")));
        for (low, high) in [("a", "a"), ("b", "a"), ("", "")] {
            assert!(KeyRange::new(Key::from(low), Key::from(high)).is_none());
            assert_eq!(decoded(low, high), Err(DecodeError::NotCanonical("a range of keys")));
        }
    }

    #[test]
    fn a_union_has_the_keys_of_all() {
        let union =
            KeyRange::union(vec![range("x", "z"), range("c", "d"), range("a", "b"), range("b", "c"), range("f", "p"), range("g", "h")]);
        assert_eq!(union, [range("a", "d"), range("f", "p"), range("x", "z")]);
        assert!(KeyRange::are_apart(&union));
        assert!(!KeyRange::are_apart(&[range("a", "b"), range("b", "c")]) && !KeyRange::are_apart(&[range("b", "c"), range("a", "b")]));
    }

    #[test]
    fn no_key_lies_before_the_successor() {
        assert_eq!(Key::from("a").successor(), Key::new(&b"a\0"[..]));
        let longest = |last: u8| {
            let mut bytes = vec![b'a'; KEY_BYTES_MAX];
            bytes[KEY_BYTES_MAX - 1] = last;
            Key::new(bytes).expect("it is just short enough")
        };
        assert_eq!(longest(7).successor(), Some(longest(8)));
        assert_eq!(longest(255).successor().expect("there is one").as_bytes().len(), KEY_BYTES_MAX - 1);
        assert_eq!(Key::new(vec![255; KEY_BYTES_MAX]).expect("likewise").successor(), None);
        assert_eq!((Key::from("app/").after_prefixed(), Key::from("").after_prefixed()), (Some(Key::from("app0")), None));
    }
}
