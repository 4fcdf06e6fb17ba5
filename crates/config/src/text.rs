//! Bytes and names as people write them.

use std::fmt::Display;
use std::str::FromStr;

use serde::{Deserialize, Deserializer};
use types::limits::{KEY_BYTES_MAX, SHARD_REPLICAS_MAX, SHARDS_MAX, VALUE_BYTES_MAX};
use types::{Key, ReplicaId, ShardId, Value};

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
    String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
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
