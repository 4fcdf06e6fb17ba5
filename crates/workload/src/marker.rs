//! What a table was loaded with, kept beside its rows, so that it can be measured again without loading.
//!
//! The value is the command line's own options, as text: `--keys 1000 --value-bytes 100`. It is taken away before a
//! load and put back after, so that half a table is not taken for a whole one.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use client::{Client, Transaction};
use types::{Key, Value};

use crate::{Error, persist, persist_put};

/// The longest value that is read as a marker.
const MARKER_BYTES_MAX: usize = 1 << 10;

/// The sizes of a table, under the names of the options that choose them, and as these are written.
pub(crate) type Sizes = BTreeMap<String, String>;

/// A table's marker.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Marker(pub(crate) &'static str);

impl Marker {
    /// What the table was loaded with; `None` when it was not, or not to the end.
    pub(crate) async fn read(self, client: &Client) -> Result<Option<Sizes>, Error> {
        let found = persist(client, |txn: Transaction| async move { txn.get(self.key()).await }).await?;
        match found {
            None => Ok(None),
            Some(value) => {
                parse(&value).map(Some).ok_or_else(|| Error::NotLoaded(format!("{} is not what a load leaves there", self.key())))
            }
        }
    }

    /// Says that the table is not whole: before a load.
    pub(crate) async fn take_away(self, client: &Client) -> Result<(), Error> {
        let take_away = |txn: Transaction| async move {
            txn.delete(self.key());
            Ok(())
        };
        persist(client, take_away).await
    }

    /// Says what the table was loaded with: after a load.
    pub(crate) async fn put(self, client: &Client, sizes: &Sizes) -> Result<(), Error> {
        persist_put(client, self.key(), &Value::from(text(sizes).as_str())).await
    }

    /// Makes sure that the table was loaded with the sizes that are asked for.
    pub(crate) async fn expect(self, client: &Client, asked: &Sizes) -> Result<(), Error> {
        match self.read(client).await? {
            Some(loaded) if loaded == *asked => Ok(()),
            Some(loaded) => Err(self.otherwise(&loaded, asked)),
            None => Err(Error::NotLoaded(format!("the store holds no {}, or not all of it", self.0))),
        }
    }

    /// The error for a table that was loaded with other sizes than are asked for.
    pub(crate) fn otherwise(self, loaded: &Sizes, asked: &Sizes) -> Error {
        Error::LoadedOtherwise { table: self.0, loaded: text(loaded), asked: text(asked) }
    }

    fn key(self) -> Key {
        Key::from(format!("{}/loaded", self.0).as_str())
    }
}

/// Sizes by the names of their options.
pub(crate) fn sizes<const N: usize>(sizes: [(&str, u64); N]) -> Sizes {
    sizes.into_iter().map(|(name, size)| (name.to_owned(), size.to_string())).collect()
}

/// One of them, where it is a number.
pub(crate) fn number(sizes: &Sizes, name: &str) -> Option<u64> {
    sizes.get(name)?.parse().ok()
}

/// Sizes as they stand on a command line.
pub(crate) fn text(sizes: &Sizes) -> String {
    let mut text = String::new();
    for (name, size) in sizes {
        let space = if text.is_empty() { "" } else { " " };
        write!(text, "{space}--{name} {size}").expect("writing to a string succeeds");
    }
    text
}

fn parse(value: &Value) -> Option<Sizes> {
    if value.as_bytes().len() > MARKER_BYTES_MAX {
        return None;
    }
    let mut words = std::str::from_utf8(value.as_bytes()).ok()?.split(' ');
    let mut sizes = Sizes::new();
    while let Some(name) = words.next() {
        let name = name.strip_prefix("--")?;
        sizes.insert(name.to_owned(), words.next()?.to_owned());
    }
    Some(sizes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_marker_is_read_as_it_was_written() {
        let sizes = sizes([("keys", 1_000), ("value-bytes", 100)]);
        assert_eq!(text(&sizes), "--keys 1000 --value-bytes 100");
        assert_eq!((number(&sizes, "keys"), number(&sizes, "scale")), (Some(1_000), None));
        assert_eq!(parse(&Value::from(text(&sizes).as_str())), Some(sizes));
    }

    #[test]
    fn what_is_no_marker_is_none() {
        for wrong in ["", "keys 1", "--keys", "--keys 1  --more 2", &"--k 1 ".repeat(400)] {
            assert_eq!(parse(&Value::from(wrong)), None, "{wrong}");
        }
        assert_eq!(parse(&Value::new(vec![0xff]).expect("a byte")), None);
    }

    #[test]
    fn a_mismatch_says_what_to_do() {
        let error = Marker("user").otherwise(&sizes([("keys", 10)]), &sizes([("keys", 20)]));
        assert_eq!(
            error.to_string(),
            "the table user was loaded with --keys 10, and this run asks for --keys 20: say --keys 10, or --load to make it anew"
        );
    }
}
