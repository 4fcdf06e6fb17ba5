//! What people type: scripts of statements, keys, values, names of replicas.

use std::time::SystemTime;

use config::{key_from_text, replica_from_name, value_from_text};

use client::AsOf;

use crate::Target;
use crate::script::{Scan, Statement, statements};

pub(super) const TARGET: Target = Target {
    name: "statements",
    what: "reads a script as `bezant txn` does; written out again it means the same",
    bytes_max: 1_024,
    runs: 40_000,
    run,
    seeds,
};

fn run(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(key) = key_from_text(text) {
        assert_eq!(key_from_text(&key.to_string()), Ok(key), "a key reads as it is shown");
    }
    if let Ok(value) = value_from_text(text) {
        assert_eq!(value_from_text(&value.to_string()), Ok(value), "a value reads as it is shown");
    }
    if let Ok(replica) = replica_from_name(text) {
        assert_eq!(replica.to_string(), text);
    }
    // An unquoted @ names a file, and what lies on this computer is nobody's business.
    if text.contains('@') {
        return;
    }
    match statements(text) {
        Ok(found) => {
            let script: Vec<String> = found.iter().map(write).collect();
            assert_eq!(statements(&script.join(";")).expect("what was read can be written"), found);
        }
        Err(failure) => assert!(failure.to_string().starts_with("error: ")),
    }
}

/// The statement with its words in hexadecimal, which can say everything.
fn write(statement: &Statement) -> String {
    let hex = |bytes: &[u8]| format!("0x{}", hex::encode(bytes));
    match statement {
        Statement::Get(key) => format!("get {}", hex(key.as_bytes())),
        Statement::Scan(Scan { low, high, limit, reverse }) => {
            let from_end = if *reverse { " reverse" } else { "" };
            format!("scan {} {} limit {limit}{from_end}", hex(low.as_bytes()), hex(high.as_bytes()))
        }
        Statement::Put(key, value) => format!("put {} {}", hex(key.as_bytes()), hex(value.as_bytes())),
        Statement::Delete(key) => format!("delete {}", hex(key.as_bytes())),
        Statement::Begin(None) => "begin".to_owned(),
        Statement::Begin(Some(AsOf::Ago(ago))) => format!("begin as of {}ms ago", ago.as_millis()),
        Statement::Begin(Some(AsOf::Time(time))) => format!("begin as of {}", rfc_3339(*time)),
        Statement::Commit => "commit".to_owned(),
        Statement::Abort => "abort".to_owned(),
    }
}

/// The time as in RFC 3339: its year is found by counting.
fn rfc_3339(time: SystemTime) -> String {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).expect("no time before 1970 is read");
    let (mut days, seconds) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    let (mut year, mut month) = (1970_u64, 1);
    let is_leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    while days >= 365 + u64::from(is_leap(year)) {
        days -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    for length in [31, 28 + u64::from(is_leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    let (hour, minute, second) = (seconds / 3_600, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{:02}T{hour:02}:{minute:02}:{second:02}.{:09}Z", days + 1, since.subsec_nanos())
}

fn seeds() -> Vec<Vec<u8>> {
    [
        "get a; put b 2; delete c",
        "put 'two words' \"a\\n\\t\\\\\\\"b\"\ndel 0x00ff",
        "BEGIN; get a\ncommit;;abort",
        "put a ''",
        "begin as of 5s ago; get a; commit",
        "begin as of 2026-11-23T19:05:00.25+01:00",
        "scan a b; scan 'a' 0x62 LIMIT 7",
        "scan a b reverse; scan a b reverse limit 7",
        "0x6162",
        "s0-r3",
        "put a 'not closed",
    ]
    .map(|text| text.as_bytes().to_vec())
    .to_vec()
}
