//! How values are written: a version, a blank, and then text, which `bezant get` shows as it is.

use types::{Key, Value};

/// Every value begins with the version of its format.
const VERSION: &str = "1 ";

/// What is stored under a key is not what Buzzer puts there.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key} does not hold {what}: somebody else has written there")]
pub struct Broken {
    /// The key.
    pub key: String,
    /// What should be there.
    pub what: &'static str,
}

/// A browser in which somebody is signed in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Session {
    /// Until when, in seconds since 1970.
    pub expires: u64,
}

pub(crate) fn text(text: &str) -> Value {
    Value::from(format!("{VERSION}{text}").as_str())
}

/// A value's text, or what is wrong.
pub(crate) fn read_text(key: &Key, value: &Value, what: &'static str) -> Result<String, client::Error> {
    let text = std::str::from_utf8(value.as_bytes()).ok().and_then(|text| text.strip_prefix(VERSION));
    text.map(str::to_owned).ok_or_else(|| broken(key, what))
}

/// The same of a number.
pub(crate) fn read_number(key: &Key, value: &Value, what: &'static str) -> Result<u64, client::Error> {
    read_text(key, value, what)?.parse().map_err(|_| broken(key, what))
}

pub(crate) fn broken(key: &Key, what: &'static str) -> client::Error {
    client::Error::application(Broken { key: key.to_string(), what })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_is_what_was_written_or_refused() {
        let key = Key::from("buzzer/ann/count");
        assert_eq!(read_text(&key, &text("a b\nc"), "a text").expect("it is one"), "a b\nc");
        assert_eq!(read_number(&key, &text("12"), "a count").expect("it is one"), 12);
        for wrong in ["12", "2 12", "1 -1", "1 x", "1 "] {
            let error = read_number(&key, &Value::from(wrong), "a count").expect_err(wrong);
            assert!(error.to_string().contains("does not hold a count"), "{error}");
        }
        read_text(&key, &Value::new(vec![b'1', b' ', 0xff]).expect("short"), "a text").expect_err("no text");
    }
}
