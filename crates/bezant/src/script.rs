//! Keys, values and statements as people type them.
//!
//! A word is itself; `0x…` is bytes in hexadecimal; `@FILE` is what the file holds. In a script (`txn`, `shell`,
//! `dev --exec`) statements end with `;` or a line's end, and a word in quotes is taken as it stands: within '…'
//! nothing is special, within "…" the backslash sequences \n, \t, \\ and \" are. What begins with `#` where a statement
//! might begin is a comment up to its line's end.

use std::fs::File;
use std::io::Read as _;

use client::AsOf;
use config::{key_from_text, value_from_text};
use types::limits::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use types::{Key, Value};

use crate::as_of::as_of;
use crate::failure::Failure;

/// The most statements that one script may hold.
const STATEMENTS_MAX: usize = 8_192;

/// `key` as a message shows it: one of no bytes would not be seen.
pub fn shown(key: &Key) -> String {
    if key.as_bytes().is_empty() { "''".to_owned() } else { key.to_string() }
}

/// What is wrong with a range that has no keys.
pub fn no_key_between(low: &Key, high: &Key) -> String {
    format!("no key lies from {} to {}: the first has to come before the second", shown(low), shown(high))
}

/// What is wrong with a limit of none.
pub const NO_LIMIT: &str = "a limit is 1 or more";

/// How many keys a scan gives where nobody says.
pub const SCAN_LIMIT: usize = 100;

/// One step of a script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Statement {
    /// Read a key.
    Get(Key),
    /// Read a range.
    Scan(Scan),
    /// Write a key.
    Put(Key, Value),
    /// Delete a key.
    Delete(Key),
    /// Begin a transaction of several lines (`shell` only), which may read the past.
    Begin(Option<AsOf>),
    /// Commit it.
    Commit,
    /// Throw it away.
    Abort,
}

/// A range to read: the keys from `low` (included) to `high` (excluded) that have values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scan {
    /// The first key of the range.
    pub low: Key,
    /// The first key after it.
    pub high: Key,
    /// How many of them at most.
    pub limit: usize,
    /// From the end: the highest key first.
    pub reverse: bool,
}

impl Scan {
    /// What `txn` finds.
    ///
    /// # Errors
    /// As [`client::Transaction::scan`].
    pub async fn run(&self, txn: &client::Transaction) -> Result<Vec<(Key, Value)>, client::Error> {
        let (low, high) = (self.low.clone(), self.high.clone());
        if self.reverse { txn.scan_last(low, high, self.limit).await } else { txn.scan(low, high, self.limit).await }
    }
}

/// A key on the command line.
pub fn key(text: &str) -> Result<Key, Failure> {
    Word { text: text.to_owned(), quoted: false }.key().map_err(Failure::wrong)
}

/// A value on the command line.
pub fn value(text: &str) -> Result<Value, Failure> {
    Word { text: text.to_owned(), quoted: false }.value().map_err(Failure::wrong)
}

/// The statements of `script`, in order.
pub fn statements(script: &str) -> Result<Vec<Statement>, Failure> {
    let parts = split(script).map_err(|what| Failure::wrong(what).at(format!("`{}`", script.trim())))?;
    if parts.len() > STATEMENTS_MAX {
        return Err(Failure::wrong(format!("a script holds at most {STATEMENTS_MAX} statements, not {}", parts.len())).help("split it"));
    }
    let count = parts.len();
    parts
        .into_iter()
        .enumerate()
        .map(|(at, words)| {
            statement(&words).map_err(|what| {
                let text: Vec<&str> = words.iter().map(|word| if word.text.is_empty() { "''" } else { &word.text }).collect();
                let failure = Failure::wrong(what).at(format!("statement {} of {count}: `{}`", at + 1, text.join(" ")));
                match text.as_slice() {
                    [file] if count == 1 && std::path::Path::new(file).is_file() => {
                        failure.help(format!("to have the statements of the file {file} carried out, write @{file}"))
                    }
                    _ => failure.help("a statement is: get KEY | scan LOW HIGH [limit N] [reverse] | put KEY VALUE | delete KEY"),
                }
            })
        })
        .collect()
}

/// Whether a transaction is open after `script`, as whoever wrote it sees it, although it cannot be read: its last `begin` has no end.
pub fn leaves_open(script: &str) -> bool {
    let mut verbs = script.rsplit(';').filter_map(|statement| statement.split_whitespace().next());
    let last = verbs.find(|verb| ["begin", "commit", "abort"].iter().any(|word| verb.eq_ignore_ascii_case(word)));
    last.is_some_and(|verb| verb.eq_ignore_ascii_case("begin"))
}

/// `text` in the quotes in which a script takes it.
pub fn quoted_text(text: &str) -> String {
    let mut out = String::from("\"");
    for letter in text.chars() {
        match letter {
            '\n' => out += "\\n",
            '\t' => out += "\\t",
            '"' | '\\' => out.extend(['\\', letter]),
            other => out.push(other),
        }
    }
    out + "\""
}

fn statement(words: &[Word]) -> Result<Statement, String> {
    let (verb, rest) = words.split_first().expect("split keeps no empty statement");
    match (verb.text.to_ascii_lowercase().as_str(), rest) {
        ("get", [key]) => Ok(Statement::Get(key.key()?)),
        ("scan", [low, high, options @ ..]) => scan(low, high, options),
        ("put", [key, value]) => Ok(Statement::Put(key.key()?, value.value()?)),
        ("delete" | "del", [key]) => Ok(Statement::Delete(key.key()?)),
        ("begin", []) => Ok(Statement::Begin(None)),
        ("begin", [first, second, time @ ..]) if first.text.eq_ignore_ascii_case("as") && second.text.eq_ignore_ascii_case("of") => {
            let time: Vec<&str> = time.iter().map(|word| word.text.as_str()).collect();
            Ok(Statement::Begin(Some(as_of(&time.join(" "))?)))
        }
        ("commit", []) => Ok(Statement::Commit),
        ("abort", []) => Ok(Statement::Abort),
        ("scan", [] | [_]) => Err("scan needs the first key, and the first one after the range".to_owned()),
        ("put", [_]) => Err("put needs a value too".to_owned()),
        ("get" | "put" | "delete" | "del", []) => Err(format!("{} needs a key", verb.text)),
        ("get" | "put" | "delete" | "del" | "begin" | "commit" | "abort", _) => Err(too_many_words(&verb.text)),
        _ => Err(format!("there is no statement `{}`", verb.text)),
    }
}

fn too_many_words(verb: &str) -> String {
    format!("{verb} got more words than it takes: a word with spaces needs quotes; a comment begins a line, or follows `;`")
}

fn scan(low: &Word, high: &Word, mut options: &[Word]) -> Result<Statement, String> {
    let mut scan = Scan { low: low.key()?, high: high.key()?, limit: SCAN_LIMIT, reverse: false };
    if scan.low >= scan.high {
        return Err(no_key_between(&scan.low, &scan.high));
    }
    // As on the command line, or without the dashes.
    let is = |word: &Word, option: &str| !word.quoted && word.text.strip_prefix("--").unwrap_or(&word.text).eq_ignore_ascii_case(option);
    loop {
        options = match options {
            [] => return Ok(Statement::Scan(scan)),
            [word, limit, rest @ ..] if is(word, "limit") => {
                scan.limit = limit.text.parse().map_err(|_| format!("a limit is a number, not `{}`", limit.text))?;
                if scan.limit == 0 {
                    return Err(NO_LIMIT.to_owned());
                }
                rest
            }
            [word] if is(word, "limit") => return Err("limit needs a number".to_owned()),
            [word, rest @ ..] if is(word, "reverse") => {
                scan.reverse = true;
                rest
            }
            [word, ..] => {
                return Err(format!(
                    "after the two keys scan takes `limit N` and `reverse`, not `{}`; a key with spaces goes in quotes",
                    word.text
                ));
            }
        };
    }
}

#[derive(Clone, Debug, Default)]
struct Word {
    text: String,
    /// Quoted words are taken as they stand.
    quoted: bool,
}

impl Word {
    fn key(&self) -> Result<Key, String> {
        match self.literal(KEY_BYTES_MAX)? {
            Some(bytes) => Key::new(bytes).ok_or_else(|| format!("a key is at most {KEY_BYTES_MAX} bytes long")),
            None => key_from_text(&self.text),
        }
    }

    fn value(&self) -> Result<Value, String> {
        match self.literal(VALUE_BYTES_MAX)? {
            Some(bytes) => Value::new(bytes).ok_or_else(|| format!("a value is at most {VALUE_BYTES_MAX} bytes long")),
            None => value_from_text(&self.text),
        }
    }

    /// The bytes of a quoted word or a file; nothing for a plain word. At most one byte over `bytes_max` is read.
    fn literal(&self, bytes_max: usize) -> Result<Option<Vec<u8>>, String> {
        if self.quoted {
            return Ok(Some(self.text.as_bytes().to_vec()));
        }
        let Some(path) = self.text.strip_prefix('@') else {
            return Ok(None);
        };
        let mut bytes = Vec::new();
        File::open(path).and_then(|file| file.take(bytes_max as u64 + 1).read_to_end(&mut bytes)).map_err(|error| {
            format!("the file {path:?} cannot be read: {error}; text that begins with @ goes in quotes, as in: bezant txn 'put KEY \"@…\"'")
        })?;
        Ok(Some(bytes))
    }
}

/// Cuts a script into statements of words; empty statements are dropped.
fn split(script: &str) -> Result<Vec<Vec<Word>>, String> {
    let mut statements = vec![Vec::new()];
    let mut word: Option<Word> = None;
    let mut letters = script.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '\'' | '"' => {
                let word = word.get_or_insert_default();
                word.quoted = true;
                quoted(letter, &mut letters, &mut word.text)?;
            }
            ';' | '\n' => {
                let last = statements.last_mut().expect("there is always a statement being filled");
                last.extend(word.take());
                statements.push(Vec::new());
            }
            '#' if word.is_none() && statements.last().is_some_and(Vec::is_empty) => {
                // The line's end goes with it: nothing stands before it that it could end.
                letters.by_ref().find(|letter| *letter == '\n');
            }
            space if space.is_whitespace() => {
                statements.last_mut().expect("there is always a statement being filled").extend(word.take());
            }
            other => word.get_or_insert_default().text.push(other),
        }
    }
    statements.last_mut().expect("there is always a statement being filled").extend(word);
    statements.retain(|words| !words.is_empty());
    Ok(statements)
}

/// Reads up to the closing `mark`.
fn quoted(mark: char, letters: &mut std::str::Chars<'_>, text: &mut String) -> Result<(), String> {
    while let Some(letter) = letters.next() {
        match letter {
            closing if closing == mark => return Ok(()),
            '\\' if mark == '"' => text.push(match letters.next() {
                Some('n') => '\n',
                Some('t') => '\t',
                Some(plain @ ('\\' | '"')) => plain,
                other => {
                    let found = other.map_or_else(|| "by nothing".to_owned(), |letter| format!("by {letter:?}"));
                    return Err(format!("within \"…\" a backslash is followed by n, t, \\ or \", not {found}"));
                }
            }),
            other => text.push(other),
        }
    }
    Err(format!("a quote {mark} is not closed"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(key: &str, value: &str) -> Statement {
        Statement::Put(Key::from(key), Value::from(value))
    }

    #[test]
    fn a_script_is_statements_in_order() {
        let expected = vec![Statement::Get(Key::from("a")), put("b", "2"), Statement::Delete(Key::from("c"))];
        assert_eq!(statements("get a; put b 2;delete c").unwrap(), expected);
        let scan = |limit, reverse| Statement::Scan(Scan { low: Key::from("a"), high: Key::from("b"), limit, reverse });
        let scans = vec![scan(SCAN_LIMIT, false), scan(7, false), scan(SCAN_LIMIT, true), scan(7, true), scan(7, true), scan(7, true)];
        let script = "scan a b; scan a b limit 7; scan a b REVERSE; scan a b limit 7 reverse; scan a b reverse limit 7; \
             scan a b --limit 7 --reverse";
        assert_eq!(statements(script).unwrap(), scans);
        assert_eq!(statements(" ;\nGET a\n\nput b 2 ; ; delete c;\n").unwrap(), expected);
        let ago = AsOf::Ago(std::time::Duration::from_secs(5));
        assert_eq!(statements("begin; BEGIN as of 5s ago").unwrap(), vec![Statement::Begin(None), Statement::Begin(Some(ago))]);
        assert_eq!(statements("  ").unwrap(), vec![]);
        assert_eq!(statements("# first\n  # second; get x\nput a '#'; # third\nput b c#d").unwrap(), vec![put("a", "#"), put("b", "c#d")]);
    }

    #[test]
    fn quotes_take_a_word_as_it_stands() {
        assert_eq!(statements("put 'a b' 'x;y'").unwrap(), vec![put("a b", "x;y")]);
        assert_eq!(statements(r#"put a "x\n\"y\"""#).unwrap(), vec![put("a", "x\n\"y\"")]);
        assert_eq!(statements(r"put a 'x\n'").unwrap(), vec![put("a", r"x\n")]);
        assert_eq!(statements("put a ''").unwrap(), vec![put("a", "")]);
        assert_eq!(statements("put a '@b'; put c '0x41'; put d 0x41").unwrap(), vec![put("a", "@b"), put("c", "0x41"), put("d", "A")]);
    }

    #[test]
    fn a_wrong_script_is_refused_with_its_place() {
        for (script, what) in [
            ("gte a", "no statement `gte`"),
            ("put a", "needs a value"),
            ("get", "needs a key"),
            ("scan a", "needs the first key, and"),
            ("scan b a", "has to come before"),
            ("begin as of noon", "is no time"),
            ("scan a b limit x", "a limit is a number"),
            ("scan a b c", "not `c`"),
            ("scan a b limit", "limit needs a number"),
            ("scan a b limit 0", "1 or more"),
            ("scan a b limit 7 backwards", "and `reverse`, not `backwards`"),
            ("scan b ''", "from b to ''"),
            ("get a b", "more words"),
            ("put a 'b", "not closed"),
            ("put a \"\\q\"", "not by 'q'"),
            ("get 0xf", "hexadecimal"),
            ("get @/no/such/file", "cannot be read"),
        ] {
            let said = statements(script).expect_err(script).to_string();
            assert!(said.contains(what) && said.contains(script.split('@').next().unwrap_or(script).trim()), "{script}: {said}");
        }
    }
}
