//! One canonical encoding: every value has exactly one byte string, and a decoder refuses every other.
//!
//! Integers are fixed-width little-endian, sequences carry a `u32` count, options one byte that is 0 or 1,
//! and nothing may trail. That is what makes it safe to hash and sign *received* bytes: no second encoding
//! of the same value can exist. Records and frames begin with a format version, written by their owners.
//!
//! Decoding copies only short keys and values, which are kept in place: all others are slices of the received buffer.
//!
//! ```
//! use types::codec::{Decode, Encode, Reader};
//! let mut out = Vec::new();
//! 7u32.encode(&mut out);
//! let cluster = types::ClusterId::new([0; 16]);
//! let mut reader = Reader::new(out.into(), cluster);
//! assert_eq!(u32::decode(&mut reader)?, 7);
//! reader.finish()?;
//! # Ok::<(), types::codec::DecodeError>(())
//! ```

use bytes::{Buf, Bytes};

use crate::ClusterId;

/// For how many values of a sequence memory is reserved before the first of them is read.
pub const SEQUENCE_AT_ONCE_MAX: usize = 1_024;

/// Why bytes were refused. That is ordinary: the sender may be Byzantine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The input ended inside a value.
    #[error("the input ends inside a value")]
    Truncated,
    /// Bytes are left over after the last value.
    #[error("bytes trail the last value")]
    Trailing,
    /// A tag, flag or format version has no meaning.
    #[error("{0} has no such tag")]
    UnknownTag(&'static str),
    /// A count or a length is over its limit.
    #[error("{0} is over its limit")]
    OverLimit(&'static str),
    /// The bytes are a value's, but not its canonical encoding.
    #[error("{0} is not in canonical form")]
    NotCanonical(&'static str),
}

/// A value with one byte string.
pub trait Encode {
    /// Appends the value's bytes to `out`.
    fn encode(&self, out: &mut Vec<u8>);

    /// The value's bytes, in a buffer of their own.
    fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(128);
        self.encode(&mut out);
        out
    }
}

/// A value that can be read back from its one byte string.
pub trait Decode: Sized {
    /// Takes the value's bytes from the front of `reader`.
    ///
    /// # Errors
    /// Any [`DecodeError`]; what was consumed is then unspecified.
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError>;

    /// Reads a value that must fill `bytes` exactly.
    ///
    /// # Errors
    /// Any [`DecodeError`], [`DecodeError::Trailing`] among them.
    fn from_bytes(bytes: Bytes, cluster: ClusterId) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes, cluster);
        let value = Self::decode(&mut reader)?;
        reader.finish()?;
        Ok(value)
    }
}

/// Reads received bytes. It has the cluster's name, because identifiers are hashes that include it.
#[derive(Debug)]
pub struct Reader {
    bytes: Bytes,
    cluster: ClusterId,
    sequences_bytes: usize,
}

impl Reader {
    /// Reads `bytes` as said in `cluster`.
    #[must_use]
    pub fn new(bytes: Bytes, cluster: ClusterId) -> Self {
        Self { bytes, cluster, sequences_bytes: 0 }
    }

    /// The cluster whose statements these are.
    #[must_use]
    pub fn cluster(&self) -> ClusterId {
        self.cluster
    }

    /// What is left.
    #[must_use]
    pub fn remaining(&self) -> usize {
        self.bytes.len()
    }

    /// How much memory the sequences take that were read so far, which may be several times what they take on the wire.
    #[must_use]
    pub fn sequences_bytes(&self) -> usize {
        self.sequences_bytes
    }

    /// Counts a sequence of `count` values that is read by other means than [`Reader::sequence`].
    pub fn note_sequence<T>(&mut self, count: usize) {
        self.sequences_bytes = self.sequences_bytes.saturating_add(count.saturating_mul(size_of::<T>()));
    }

    /// The rest of the input, not consumed: pair with [`Reader::remaining`] to keep a value's own bytes.
    #[must_use]
    pub fn rest(&self) -> Bytes {
        self.bytes.clone()
    }

    /// Ends reading.
    ///
    /// # Errors
    /// [`DecodeError::Trailing`] when anything is left.
    pub fn finish(&self) -> Result<(), DecodeError> {
        if self.bytes.is_empty() { Ok(()) } else { Err(DecodeError::Trailing) }
    }

    /// The next `length` bytes, shared with the input.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`] when there are fewer.
    pub fn take(&mut self, length: usize) -> Result<Bytes, DecodeError> {
        if self.bytes.len() < length {
            return Err(DecodeError::Truncated);
        }
        Ok(self.bytes.split_to(length))
    }

    /// The next `N` bytes, copied.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`] when there are fewer.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let mut array = [0; N];
        self.fill(&mut array)?;
        Ok(array)
    }

    /// The next bytes, copied, as many as `place` has.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`] when there are fewer.
    pub fn fill(&mut self, place: &mut [u8]) -> Result<(), DecodeError> {
        if self.bytes.len() < place.len() {
            return Err(DecodeError::Truncated);
        }
        self.bytes.copy_to_slice(place);
        Ok(())
    }

    /// A `u32` count of things, each at least one byte long, at most `max`.
    ///
    /// # Errors
    /// [`DecodeError::OverLimit`] past `max`, [`DecodeError::Truncated`] when the rest could not hold as many:
    /// a huge count is refused before anything is allocated for it.
    pub fn count(&mut self, what: &'static str, max: usize) -> Result<usize, DecodeError> {
        let count = u32::decode(self)? as usize;
        if count > max {
            return Err(DecodeError::OverLimit(what));
        }
        if count > self.bytes.len() {
            return Err(DecodeError::Truncated);
        }
        Ok(count)
    }

    /// A counted sequence of at most `max` values.
    ///
    /// # Errors
    /// As [`Reader::count`] and as the values' own decoders.
    pub fn sequence<T: Decode>(&mut self, what: &'static str, max: usize) -> Result<Vec<T>, DecodeError> {
        let count = self.count(what, max)?;
        self.note_sequence::<T>(count);
        let mut values = Vec::with_capacity(count.min(SEQUENCE_AT_ONCE_MAX));
        for _ in 0..count {
            values.push(T::decode(self)?);
        }
        Ok(values)
    }
}

/// Appends a counted sequence.
///
/// # Panics
/// When `values` has more than `u32::MAX` items, which every named limit excludes.
pub fn encode_sequence<T: Encode>(values: &[T], out: &mut Vec<u8>) {
    encode_count(values.len(), out);
    for value in values {
        value.encode(out);
    }
}

/// Appends a count.
///
/// # Panics
/// When `count` is over `u32::MAX`, which every named limit excludes.
pub fn encode_count(count: usize, out: &mut Vec<u8>) {
    u32::try_from(count).expect("limits keep counts below u32::MAX").encode(out);
}

macro_rules! integer {
    ($($type:ty),*) => {$(
        impl Encode for $type {
            fn encode(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }
        }
        impl Decode for $type {
            fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
                Ok(Self::from_le_bytes(reader.array()?))
            }
        }
    )*};
}

integer!(u8, u16, u32, u64);

impl Encode for bool {
    fn encode(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }
}

impl Decode for bool {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        match u8::decode(reader)? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(DecodeError::NotCanonical("a flag")),
        }
    }
}

impl<T: Encode> Encode for Option<T> {
    fn encode(&self, out: &mut Vec<u8>) {
        self.is_some().encode(out);
        if let Some(value) = self {
            value.encode(out);
        }
    }
}

impl<T: Decode> Decode for Option<T> {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        if bool::decode(reader)? { Ok(Some(T::decode(reader)?)) } else { Ok(None) }
    }
}

impl<const N: usize> Encode for [u8; N] {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self);
    }
}

impl<const N: usize> Decode for [u8; N] {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        reader.array()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_knows_how_much_memory_its_sequences_take() {
        let mut out = Vec::new();
        encode_sequence(&[None::<u64>; 100], &mut out);
        encode_sequence(&[7u8; 3], &mut out);
        let mut reader = Reader::new(out.into(), ClusterId::new([0; 16]));
        let options: Vec<Option<u64>> = reader.sequence("options", 100).expect("as encoded");
        // One byte each on the wire.
        assert_eq!((options.len(), reader.sequences_bytes()), (100, 1_600));
        let bytes: Vec<u8> = reader.sequence("bytes", 3).expect("as encoded");
        assert_eq!((bytes.len(), reader.sequences_bytes()), (3, 1_603));
    }
}
