//! Keys and values: bytes with a limit.

use std::fmt;

use bytes::Bytes;

use crate::codec::{Decode, DecodeError, Encode, Reader, encode_count};
use crate::limits::{KEY_BYTES_MAX, VALUE_BYTES_MAX};

macro_rules! bytes_like {
    ($(#[$doc:meta])* $name:ident, $max:ident, $what:literal) => {
        $(#[$doc])*
        #[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Bytes);

        impl $name {
            /// Wraps `bytes`, or gives `None` when they are over the limit.
            #[must_use]
            pub fn new(bytes: impl Into<Bytes>) -> Option<Self> {
                let bytes = bytes.into();
                (bytes.len() <= $max).then_some(Self(bytes))
            }

            /// The bytes.
            #[must_use]
            pub fn as_bytes(&self) -> &[u8] {
                &self.0
            }

            /// The bytes, shared.
            #[must_use]
            pub fn to_shared(&self) -> Bytes {
                self.0.clone()
            }

            /// The same bytes in a buffer of their own, so that keeping them does not keep a whole frame.
            #[must_use]
            pub fn detached(&self) -> Self {
                Self(Bytes::copy_from_slice(&self.0))
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
                match std::str::from_utf8(&self.0) {
                    Ok(text) if !text.chars().any(char::is_control) && !text.starts_with("0x") => formatter.write_str(text),
                    _ => write!(formatter, "0x{}", hex::encode(&self.0)),
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
                encode_count(self.0.len(), out);
                out.extend_from_slice(&self.0);
            }
        }

        impl Decode for $name {
            fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
                let length = reader.count($what, $max)?;
                Ok(Self(reader.take(length)?))
            }
        }
    };
}

bytes_like!(
    /// What a row is found by: up to [`KEY_BYTES_MAX`] bytes, ordered as bytes.
    Key, KEY_BYTES_MAX, "key"
);
bytes_like!(
    /// What a key holds: up to [`VALUE_BYTES_MAX`] bytes.
    Value, VALUE_BYTES_MAX, "value"
);
