//! Which node is whose: any bytes are the name of a node, and names are in the order of keys.
//!
//! Of the bytes that ASCII has in a row, `0` to `}`, each stands for itself. Those below are `%` and two digits, those above `~` and two
//! digits. As `%` comes before all of them and `~` after, and no byte's letters begin another's, names are in the order of their keys. The empty
//! key is `%` alone. No name is `.` or `..`, or has a letter that a path may not have.

use std::fmt::Write as _;

use types::{ClientId, Key};

/// Below this node is all that the engine keeps.
pub(crate) const ROOT: &str = "/bezant";
/// Below this one are the keys.
pub(crate) const KEYS: &str = "/bezant/keys";
/// Below this one are the commits of processes that run.
pub(crate) const COMMITS: &str = "/bezant/commits";

const LOWEST: u8 = b'0';
const HIGHEST: u8 = b'}';

/// The name of a key's node.
pub(crate) fn name_of(key: &Key) -> String {
    let bytes = key.as_bytes();
    if bytes.is_empty() {
        return "%".to_owned();
    }
    let mut name = String::with_capacity(bytes.len() + 8);
    for byte in bytes {
        let written = match *byte {
            LOWEST..=HIGHEST => {
                name.push(char::from(*byte));
                Ok(())
            }
            0..LOWEST => write!(name, "%{byte:02X}"),
            _ => write!(name, "~{byte:02X}"),
        };
        written.expect("a string takes all");
    }
    name
}

/// The path of a key's node.
#[must_use]
pub fn path_of(key: &Key) -> String {
    format!("{KEYS}/{}", name_of(key))
}

/// The key whose node has this name; nothing where no key's has, as where a client of the tree made it.
#[must_use]
pub fn key_of(name: &str) -> Option<Key> {
    let mut bytes = Vec::with_capacity(name.len());
    let mut rest = if name == "%" { &[] } else { name.as_bytes() };
    while let [first, others @ ..] = rest {
        rest = match *first {
            LOWEST..=HIGHEST => {
                bytes.push(*first);
                others
            }
            _ => {
                let [high, low, others @ ..] = others else { return None };
                let digits = [*high, *low];
                bytes.push(u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?);
                others
            }
        };
    }
    // One name a key: digits in the other case, or a byte that stands for itself in digits, are nobody's.
    Key::new(bytes).filter(|key| name_of(key) == name)
}

/// The path of a slot of a client's session.
pub(crate) fn slot_path(client: ClientId, session: i64, slot: u16) -> String {
    format!("{COMMITS}/{}-{session:016x}-{slot}", client.0)
}

/// Whether a node is a slot.
pub(crate) fn is_slot(path: &str) -> bool {
    path.strip_prefix(COMMITS).is_some_and(|rest| rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use types::limits::KEY_BYTES_MAX;

    use super::*;
    use crate::path::is_valid;

    fn key(bytes: &[u8]) -> Key {
        Key::copied(bytes).expect("it is short")
    }

    #[test]
    fn names_can_be_read() {
        let name = |text: &str| name_of(&Key::from(text));
        assert_eq!((name("account"), name("bank/7"), name("")), ("account".to_owned(), "bank%2F7".to_owned(), "%".to_owned()));
        assert_eq!((name("."), name("ü~\0")), ("%2E".to_owned(), "~C3~BC~7E%00".to_owned()));
        for nobodys in ["", "a b", "%2f", "%61", "~61", "%2", "ä", "%%", "~"] {
            assert_eq!(key_of(nobodys), None, "{nobodys:?}");
        }
        assert!(is_valid(&path_of(&key(&[255; KEY_BYTES_MAX]))));
    }

    proptest! {
        #[test]
        fn names_are_in_the_order_of_keys(one: Vec<u8>, other: Vec<u8>) {
            let (one, other) = (key(&one), key(&other));
            prop_assert_eq!(name_of(&one).cmp(&name_of(&other)), one.cmp(&other));
            prop_assert_eq!(key_of(&name_of(&one)), Some(one.clone()));
            prop_assert!(is_valid(&path_of(&one)));
        }

        #[test]
        fn whatever_has_a_key_is_its_name(name in "[%~0-9A-Fa-f!.]{0,8}") {
            if let Some(key) = key_of(&name) {
                prop_assert_eq!(name_of(&key), name);
            }
        }
    }
}
