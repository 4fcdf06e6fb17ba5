//! What users are called.

use std::fmt;
use std::str::FromStr;

/// The longest name, in characters.
pub const NAME_CHARS_MAX: usize = 20;

/// A user's name: lower-case letters, digits and underscores, and nothing that would end a part of a key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(String);

/// What is wrong with a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a name has 1 to {NAME_CHARS_MAX} characters: letters from a to z, digits, and _")]
pub struct WrongName;

impl Name {
    /// As it is written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Name {
    type Err = WrongName;

    /// Capitals mean the small letters, and an `@` before it means nothing, as people write both.
    fn from_str(text: &str) -> Result<Self, WrongName> {
        let text = text.trim();
        let name = text.strip_prefix('@').unwrap_or(text).to_ascii_lowercase();
        let is_fit = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
        if (1..=NAME_CHARS_MAX).contains(&name.len()) && name.bytes().all(is_fit) { Ok(Self(name)) } else { Err(WrongName) }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_people_write_them() {
        for (written, read) in [("ann", "ann"), (" @Ann ", "ann"), ("a_1", "a_1"), ("ABCDEFGHIJ0123456789", "abcdefghij0123456789")] {
            assert_eq!(written.parse::<Name>().map(|name| name.to_string()), Ok(read.to_owned()));
        }
        for wrong in ["", "@", "a b", "a/b", "ä", "a\u{202e}b", "<b>", "abcdefghij0123456789x", "a\0"] {
            assert_eq!(wrong.parse::<Name>(), Err(WrongName), "{wrong:?}");
        }
    }
}
