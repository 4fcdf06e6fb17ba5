//! Keys and values: bytes with a limit.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};

use bytes::Bytes;

use crate::codec::{Decode, DecodeError, Encode, Reader, encode_count};
use crate::limits::{KEY_BYTES_MAX, VALUE_BYTES_MAX};

/// The number of bytes that fit inline: the size of a [`Bytes`], less one byte for the length.
const IN_PLACE_MAX: usize = 23;

/// Immutable bytes. Short ones are stored inline, without allocation and reference count, so that comparing them reads no
/// other memory. Longer ones are shared.
#[derive(Clone)]
enum Octets {
    InPlace { length: u8, bytes: [u8; IN_PLACE_MAX] },
    Shared(Bytes),
}

impl Octets {
    /// `bytes` inline, when they are short.
    fn in_place(bytes: &[u8]) -> Option<Self> {
        let mut place = [0; IN_PLACE_MAX];
        place.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(Self::InPlace { length: bytes.len() as u8, bytes: place })
    }

    fn new(bytes: Bytes) -> Self {
        Self::in_place(&bytes).unwrap_or(Self::Shared(bytes))
    }

    fn copy(bytes: &[u8]) -> Self {
        Self::in_place(bytes).unwrap_or_else(|| Self::Shared(Bytes::copy_from_slice(bytes)))
    }

    fn as_slice(&self) -> &[u8] {
        match self {
            Self::InPlace { length, bytes } => &bytes[..usize::from(*length)],
            Self::Shared(bytes) => bytes,
        }
    }

    /// The same where it stands in `copy`, which has the same bytes as `whole`, if this is a part of that.
    fn in_copy(&self, whole: &Bytes, copy: &Bytes) -> Self {
        match self {
            Self::InPlace { .. } => self.clone(),
            Self::Shared(bytes) => {
                let from = (bytes.as_ptr() as usize).wrapping_sub(whole.as_ptr() as usize);
                let is_part = from <= whole.len() && bytes.len() <= whole.len() - from && whole.len() == copy.len();
                let part = is_part.then(|| copy.slice(from..from + bytes.len()));
                Self::Shared(part.filter(|part| part == bytes).unwrap_or_else(|| Bytes::copy_from_slice(bytes)))
            }
        }
    }

    fn to_shared(&self) -> Bytes {
        match self {
            Self::InPlace { .. } => Bytes::copy_from_slice(self.as_slice()),
            Self::Shared(bytes) => bytes.clone(),
        }
    }
}

impl Default for Octets {
    fn default() -> Self {
        Self::InPlace { length: 0, bytes: [0; IN_PLACE_MAX] }
    }
}

impl PartialEq for Octets {
    fn eq(&self, other: &Self) -> bool {
        self.as_slice() == other.as_slice()
    }
}

impl Eq for Octets {}

impl PartialOrd for Octets {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Octets {
    fn cmp(&self, other: &Self) -> Ordering {
        self.as_slice().cmp(other.as_slice())
    }
}

impl Hash for Octets {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_slice().hash(state);
    }
}

macro_rules! bytes_like {
    ($(#[$doc:meta])* $name:ident, $max:ident, $what:literal) => {
        $(#[$doc])*
        #[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Octets);

        impl $name {
            /// Wraps `bytes`, or gives `None` when they are over the limit.
            #[must_use]
            pub fn new(bytes: impl Into<Bytes>) -> Option<Self> {
                let bytes = bytes.into();
                (bytes.len() <= $max).then(|| Self(Octets::new(bytes)))
            }

            /// A copy of `bytes`, or `None` when they are over the limit.
            #[must_use]
            pub fn copied(bytes: &[u8]) -> Option<Self> {
                (bytes.len() <= $max).then(|| Self(Octets::copy(bytes)))
            }

            /// The bytes.
            #[must_use]
            pub fn as_bytes(&self) -> &[u8] {
                self.0.as_slice()
            }

            /// The bytes, shared when they are long.
            #[must_use]
            pub fn to_shared(&self) -> Bytes {
                self.0.to_shared()
            }

            /// The same bytes in a buffer of their own, so that keeping them does not keep a whole frame.
            #[must_use]
            pub fn detached(&self) -> Self {
                Self(Octets::copy(self.as_bytes()))
            }

            /// The same bytes as a part of `copy`, where this is a part of `whole` and `copy` is a copy of that; otherwise in a buffer of their own.
            #[must_use]
            pub fn in_copy(&self, whole: &Bytes, copy: &Bytes) -> Self {
                Self(self.0.in_copy(whole, copy))
            }
        }

        /// For text known to be short, as in tests and examples.
        ///
        /// # Panics
        /// When the text is over the limit.
        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self::new(Bytes::copy_from_slice(text.as_bytes())).expect("text over the limit")
            }
        }

        /// Text as text, anything else as `0x…`.
        impl fmt::Display for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                match std::str::from_utf8(self.as_bytes()) {
                    Ok(text) if !text.chars().any(char::is_control) && !text.starts_with("0x") => formatter.write_str(text),
                    _ => write!(formatter, "0x{}", hex::encode(self.as_bytes())),
                }
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(formatter, concat!($what, "({})"), self)
            }
        }

        impl Encode for $name {
            fn encode(&self, out: &mut Vec<u8>) {
                encode_count(self.as_bytes().len(), out);
                out.extend_from_slice(self.as_bytes());
            }
        }

        impl Decode for $name {
            fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
                let length = reader.count($what, $max)?;
                if length <= IN_PLACE_MAX {
                    let mut bytes = [0; IN_PLACE_MAX];
                    reader.fill(&mut bytes[..length])?;
                    return Ok(Self(Octets::InPlace { length: length as u8, bytes }));
                }
                Ok(Self(Octets::Shared(reader.take(length)?)))
            }
        }
    };
}

bytes_like!(
    /// The key of a row: up to [`KEY_BYTES_MAX`] bytes, ordered as bytes.
    Key, KEY_BYTES_MAX, "key"
);
bytes_like!(
    /// The value of a key: up to [`VALUE_BYTES_MAX`] bytes.
    Value, VALUE_BYTES_MAX, "value"
);

#[cfg(test)]
mod tests {
    use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};

    use super::*;
    use crate::ClusterId;

    #[test]
    fn a_part_of_a_copy_has_the_same_bytes_and_keeps_that_copy_alone() {
        let whole = Bytes::from((0..200).collect::<Vec<u8>>());
        let copy = Bytes::copy_from_slice(&whole);
        let at = |bytes: &[u8]| bytes.as_ptr() as usize;
        for (from, to) in [(0, 200), (0, 0), (200, 200), (150, 200), (7, 40), (7, 7 + IN_PLACE_MAX)] {
            let part = Value::new(whole.slice(from..to)).expect("below the limit");
            let moved = part.in_copy(&whole, &copy);
            assert_eq!(moved, part);
            assert_eq!(at(moved.as_bytes()) == at(&copy) + from, to - from > IN_PLACE_MAX);
        }
        // What is no part of the whole, or of another length than the copy, or not the same there, is copied by itself.
        let other = Value::new(Bytes::from(vec![9; 50])).expect("below the limit");
        let part = Value::new(whole.slice(10..60)).expect("below the limit");
        for (value, copy) in [(&other, copy.clone()), (&part, copy.slice(1..)), (&part, Bytes::from(vec![7; 200]))] {
            let moved = value.in_copy(&whole, &copy);
            assert_eq!(&moved, value);
            assert!(!copy.as_ptr_range().contains(&moved.as_bytes().as_ptr()) && at(moved.as_bytes()) != at(value.as_bytes()));
        }
    }

    #[test]
    fn inline_and_heap_bytes_compare_equal() {
        assert_eq!(size_of::<Key>(), size_of::<Bytes>(), "what is in place takes the room that was there");
        let hasher = BuildHasherDefault::<DefaultHasher>::default();
        for length in [0, 1, IN_PLACE_MAX - 1, IN_PLACE_MAX, IN_PLACE_MAX + 1, KEY_BYTES_MAX] {
            let bytes: Vec<u8> = (0..length).map(|at| at as u8).collect();
            let key = Key::new(bytes.clone()).expect("at most the limit");
            assert_eq!(key.as_bytes(), bytes);
            assert_eq!(key.to_shared(), bytes);
            assert_eq!(hasher.hash_one(&key), hasher.hash_one(Bytes::from(bytes.clone())));
            for same in
                [key.clone(), key.detached(), Key::from_bytes(key.to_bytes().into(), ClusterId::new([0; 16])).expect("its own bytes")]
            {
                assert_eq!((same.cmp(&key), &same), (Ordering::Equal, &key));
            }
            let mut longer = bytes.clone();
            longer.push(0);
            if let Some(longer) = Key::new(longer) {
                assert!(key < longer && key != longer, "as bytes are ordered");
            }
        }
        assert_eq!(Key::new(vec![0; KEY_BYTES_MAX + 1]), None);
    }

    #[test]
    fn a_key_that_ends_too_early_is_refused() {
        for length in [3, IN_PLACE_MAX, IN_PLACE_MAX + 1] {
            let mut bytes = Key::new(vec![7; length]).expect("short").to_bytes();
            bytes.pop();
            assert_eq!(Key::from_bytes(bytes.into(), ClusterId::new([0; 16])), Err(DecodeError::Truncated));
        }
    }
}
