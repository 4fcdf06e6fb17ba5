//! The digest of all rows of a database.

use sha2::{Digest as _, Sha256};
use types::{Key, Value};

/// Adds up rows, in the order of their keys.
#[derive(Clone, Debug)]
pub struct Content {
    hash: Sha256,
    rows: u64,
}

impl Default for Content {
    fn default() -> Self {
        Self { hash: Sha256::new_with_prefix(b"bezant content 1"), rows: 0 }
    }
}

impl Content {
    /// The next row. Lengths stand before both parts, so that no two lists of rows are the same bytes.
    pub fn add(&mut self, key: &Key, value: &Value) {
        for part in [key.as_bytes(), value.as_bytes()] {
            self.hash.update((part.len() as u64).to_le_bytes());
            self.hash.update(part);
        }
        self.rows += 1;
    }

    /// How many rows there were.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// The digest, in hexadecimal.
    #[must_use]
    pub fn digest(self) -> String {
        hex::encode(self.hash.finalize())
    }
}
