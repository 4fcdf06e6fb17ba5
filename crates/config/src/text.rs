//! Bytes and names as people write them.

use std::fmt::{self, Display};
use std::marker::PhantomData;
use std::str::FromStr;

use serde::Deserializer;
use serde::de::{DeserializeOwned, Error, IntoDeserializer, Unexpected, Visitor};
use types::limits::{KEY_BYTES_MAX, SHARD_REPLICAS_MAX, SHARDS_MAX, VALUE_BYTES_MAX};
use types::{ClientId, Key, ReplicaId, ShardId, Value};

/// The bytes that `text` means: `0x…` is hexadecimal, anything else is itself.
///
/// # Errors
/// What is wrong, when what follows `0x` is not pairs of hexadecimal digits.
///
/// ```
/// assert_eq!(config::bytes_from_text("0x6162").unwrap(), b"ab");
/// assert_eq!(config::bytes_from_text("ab").unwrap(), b"ab");
/// ```
pub fn bytes_from_text(text: &str) -> Result<Vec<u8>, String> {
    match text.strip_prefix("0x") {
        Some(digits) => hex::decode(digits).map_err(|_| format!("after 0x come pairs of hexadecimal digits, not {digits:?}")),
        None => Ok(text.as_bytes().to_vec()),
    }
}

/// The key that `text` means.
///
/// # Errors
/// What is wrong: bad hexadecimal, or too long.
pub fn key_from_text(text: &str) -> Result<Key, String> {
    let bytes = bytes_from_text(text)?;
    let length = bytes.len();
    Key::new(bytes).ok_or_else(|| format!("a key is at most {KEY_BYTES_MAX} bytes long, not {length}"))
}

/// The value that `text` means.
///
/// # Errors
/// What is wrong: bad hexadecimal, or too long.
pub fn value_from_text(text: &str) -> Result<Value, String> {
    let bytes = bytes_from_text(text)?;
    let length = bytes.len();
    Value::new(bytes).ok_or_else(|| format!("a value is at most {VALUE_BYTES_MAX} bytes long, not {length}"))
}

/// The replica called `name`, as in `s0-r3`.
///
/// # Errors
/// What is wrong with the name.
pub fn replica_from_name(name: &str) -> Result<ReplicaId, String> {
    let parsed = name.strip_prefix('s').and_then(|rest| rest.split_once("-r")).and_then(|(shard, index)| {
        let replica = ReplicaId { shard: ShardId(shard.parse().ok()?), index: index.parse().ok()? };
        // Only the one spelling that Display gives: s0-r3, not s00-r3 or s+0-r3.
        (replica.to_string() == name).then_some(replica)
    });
    let replica = parsed.ok_or_else(|| format!("a replica is called like s0-r3 (shard 0, replica 3), not {name:?}"))?;
    if usize::from(replica.shard.0) >= SHARDS_MAX || usize::from(replica.index) >= SHARD_REPLICAS_MAX {
        return Err(format!("{name} is past the largest cluster: {SHARDS_MAX} shards of {SHARD_REPLICAS_MAX} replicas"));
    }
    Ok(replica)
}

/// Reads a string and parses it: for `deserialize_with`.
pub fn from_str<'de, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: FromStr,
    T::Err: Display,
    D: Deserializer<'de>,
{
    parsed(deserializer, |text| text.parse().map_err(|error: T::Err| error.to_string()))
}

/// Reads one of the names that `T` has: for `deserialize_with`.
pub(crate) fn choice<'de, T: DeserializeOwned, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    parsed(deserializer, |text| T::deserialize(text.into_deserializer()).map_err(|error: serde::de::value::Error| error.to_string()))
}

/// Reads a string and hands it to `parse`. A number, or another word without quotes, is refused in the words that `parse` has for it.
pub(crate) fn parsed<'de, T, D: Deserializer<'de>>(deserializer: D, parse: impl Fn(&str) -> Result<T, String>) -> Result<T, D::Error> {
    deserializer.deserialize_str(Text { parse, of: PhantomData })
}

/// Reads a number from `min` to `max`; `what` says of what, as in "a number of milliseconds".
pub(crate) fn number<'de, D: Deserializer<'de>>(deserializer: D, what: &'static str, min: u64, max: u64) -> Result<u64, D::Error> {
    deserializer.deserialize_u64(Number { what, min, max })
}

/// Reads the number of a client: for `deserialize_with`.
pub(crate) fn client_number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ClientId, D::Error> {
    number(deserializer, "a client's number,", ClientId::MIN.0, ClientId::MAX.0).map(ClientId)
}

struct Text<P, T> {
    parse: P,
    of: PhantomData<T>,
}

impl<P: Fn(&str) -> Result<T, String>, T> Text<P, T> {
    fn refuse<E: Error>(&self, found: Unexpected<'_>, shown: &str) -> Result<T, E> {
        Err((self.parse)(shown).err().map_or_else(|| E::invalid_type(found, self), E::custom))
    }
}

impl<P: Fn(&str) -> Result<T, String>, T> Visitor<'_> for Text<P, T> {
    type Value = T;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("text, in quotes")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        (self.parse)(text).map_err(E::custom)
    }

    fn visit_bool<E: Error>(self, found: bool) -> Result<T, E> {
        self.refuse(Unexpected::Bool(found), &found.to_string())
    }

    fn visit_i64<E: Error>(self, found: i64) -> Result<T, E> {
        self.refuse(Unexpected::Signed(found), &found.to_string())
    }

    fn visit_f64<E: Error>(self, found: f64) -> Result<T, E> {
        self.refuse(Unexpected::Float(found), &found.to_string())
    }
}

struct Number {
    what: &'static str,
    min: u64,
    max: u64,
}

impl Visitor<'_> for Number {
    type Value = u64;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} from {} to {}", self.what, self.min, self.max)
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<u64, E> {
        let fits = (self.min..=self.max).contains(&number);
        if fits { Ok(number) } else { Err(E::invalid_value(Unexpected::Unsigned(number), &self)) }
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<u64, E> {
        match u64::try_from(number) {
            Ok(number) => self.visit_u64(number),
            Err(_) => Err(E::invalid_value(Unexpected::Signed(number), &self)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hexadecimal_is_bytes_and_anything_else_is_itself() {
        assert_eq!(bytes_from_text("0x00ff"), Ok(vec![0, 255]));
        assert_eq!(bytes_from_text("0x"), Ok(vec![]));
        assert_eq!(bytes_from_text("x00"), Ok(b"x00".to_vec()));
        assert!(bytes_from_text("0x0").is_err());
        assert!(bytes_from_text("0xzz").is_err());
        assert!(key_from_text(&"k".repeat(KEY_BYTES_MAX + 1)).is_err());
    }

    #[test]
    fn a_replica_has_one_spelling() {
        assert_eq!(replica_from_name("s1-r5"), Ok(ReplicaId { shard: ShardId(1), index: 5 }));
        for wrong in ["", "s1", "s1-r", "s01-r5", "s+1-r5", "r5-s1", "s1-r5 ", "s1-r99999", "s1-r51", "s256-r0"] {
            assert!(replica_from_name(wrong).is_err(), "{wrong:?} was taken");
        }
    }
}
