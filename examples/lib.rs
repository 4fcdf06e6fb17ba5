//! Three programs that use Bezant. Start a cluster with `bezant dev`, then run one in another terminal:
//!
//! ```sh
//! cargo run -p examples --bin bank-transfer     # many transfers at once, with retries
//! cargo run -p examples --bin queue             # producers and consumers; each job is taken once
//! cargo run -p examples --bin report            # reads all accounts as of one moment
//! ```
//!
//! Each takes the cluster's folder as its argument (`./bezant-data` when there is none). The programs shown in the README and in
//! `docs/applications.md` are compiled here too.

use std::error::Error;
use std::path::PathBuf;

use bezant_client::{Client, Key, Value};

/// How many accounts the bank has.
pub const ACCOUNTS: u64 = 10;
/// What each account begins with.
pub const OPENING_BALANCE: u64 = 100;

/// Connects to the cluster whose folder is the program's first argument.
///
/// # Errors
/// What is wrong with the folder, or why too few replicas can be reached.
pub async fn connect() -> Result<Client, Box<dyn Error>> {
    let folder = std::env::args_os().nth(1).map_or_else(|| PathBuf::from("bezant-data"), PathBuf::from);
    Ok(bezant_client::connect(bezant_client::load(folder)?).await?)
}

/// The key of an account.
#[must_use]
pub fn account(number: u64) -> Key {
    Key::from(format!("examples/account/{number:02}").as_str())
}

/// Reads a number that [`number`] wrote.
///
/// # Errors
/// The value is not such a number.
pub fn parse(value: &Value) -> Result<u64, bezant_client::Error> {
    let text = std::str::from_utf8(value.as_bytes()).map_err(bezant_client::Error::application)?;
    text.parse().map_err(bezant_client::Error::application)
}

/// A number as text, which `bezant get` shows.
#[must_use]
pub fn number(number: u64) -> Value {
    Value::from(number.to_string().as_str())
}

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

#[cfg(doctest)]
#[doc = include_str!("../docs/applications.md")]
struct Applications;
