//! Reading configuration files, and saying what is wrong with them.

use std::fmt;
use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use crypto::SecretKey;
use runtime::IdentityError;
use serde::de::DeserializeOwned;

/// The longest configuration file that is read, in bytes.
const FILE_BYTES_MAX: u64 = 4 << 20;
/// How different, in edits, a known key may be from an unknown one to be suggested for it.
const SUGGESTION_EDITS_MAX: usize = 3;
/// How much of a wrong value is shown, in letters.
const VALUE_LETTERS_MAX: usize = 60;
/// What to do about a file that is missing or not what it should be.
const COPY_WHOLE: &str = "copy the whole folder that `bezant init` made";
/// What to do about a key that is missing.
const BRING_KEY: &str =
    "copy the whole folder that `bezant init` made; where members drew their keys themselves: bezant key use KEY-FOLDER FOLDER";

/// What is wrong with a configuration, where, and what to do. Trying again without a change is of no use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// What is wrong.
    pub what: String,
    /// In which file.
    pub file: PathBuf,
    /// On which line, counted from 1, where there is one.
    pub line: Option<usize>,
    /// What to do about it.
    pub help: String,
}

impl ConfigError {
    /// The file, and the line where there is one: `DIR/node.toml:12`.
    #[must_use]
    pub fn place(&self) -> String {
        match self.line {
            Some(line) => format!("{}:{line}", self.file.display()),
            None => self.file.display().to_string(),
        }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {} ({})", self.place(), self.what, self.help)
    }
}

impl std::error::Error for ConfigError {}

/// Whether there is a file.
///
/// # Errors
/// [`ConfigError`] when nobody can tell, as in a folder that this user may not read.
pub fn exists(path: &Path) -> Result<bool, ConfigError> {
    match path.try_exists() {
        // A file where its folder would be.
        Err(error) if error.kind() == std::io::ErrorKind::NotADirectory => Ok(false),
        found => found.map_err(|error| ConfigError {
            what: format!("the file cannot be looked for: {error}"),
            file: path.to_path_buf(),
            line: None,
            help: "see who may read it, and what is in its place".to_owned(),
        }),
    }
}

/// Reads a text file.
///
/// # Errors
/// [`ConfigError`] when it cannot be read, is not text, or is far longer than any configuration.
pub fn read_text(path: &Path) -> Result<String, ConfigError> {
    let refuse = |what: String, help: &str| ConfigError { what, file: path.to_path_buf(), line: None, help: help.to_owned() };
    let unreadable = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::NotFound => refuse("the file is missing".to_owned(), COPY_WHOLE),
        std::io::ErrorKind::InvalidData => refuse("the file is not text".to_owned(), COPY_WHOLE),
        _ => refuse(format!("the file cannot be read: {error}"), "see who may read it"),
    };
    let mut text = String::new();
    fs::File::open(path).map_err(unreadable)?.take(FILE_BYTES_MAX + 1).read_to_string(&mut text).map_err(unreadable)?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(refuse(format!("the file is longer than {FILE_BYTES_MAX} bytes"), "name the right file"));
    }
    Ok(text)
}

/// Reads a TOML file.
///
/// # Errors
/// [`ConfigError`] with the line that is wrong; an unknown key is named, with the known one most like it.
pub fn read_toml<T: DeserializeOwned>(path: &Path) -> Result<T, ConfigError> {
    read_toml_text(&read_text(path)?, path)
}

/// Reads TOML that stands in `path`.
pub(crate) fn read_toml_text<T: DeserializeOwned>(text: &str, path: &Path) -> Result<T, ConfigError> {
    toml::from_str(text).map_err(|error| {
        let line = error.span().map(|span| line_of(text, span.start));
        let (what, help) = explain(error.message(), setting(&error, text).as_ref());
        ConfigError { what, file: path.to_path_buf(), line, help }
    })
}

/// Reads a secret key in PEM, as `bezant init` wrote it.
///
/// # Errors
/// [`ConfigError`] when the file cannot be read, is not a key, or may be read by others than its owner.
pub fn read_secret_key(path: &Path) -> Result<SecretKey, ConfigError> {
    runtime::tls::read_private_key(path).map_err(|error| refused(path, &error))
}

/// Reads a certificate in PEM, as `bezant init` wrote it; gives it in DER.
///
/// # Errors
/// [`ConfigError`] when the file cannot be read or is not a certificate.
pub fn read_certificate(path: &Path) -> Result<Vec<u8>, ConfigError> {
    runtime::tls::read_certificate(path).map_err(|error| refused(path, &error))
}

fn refused(path: &Path, error: &IdentityError) -> ConfigError {
    let (what, help) = match error {
        IdentityError::File { source, .. } if source.kind() == std::io::ErrorKind::NotFound => {
            ("the file is missing".to_owned(), BRING_KEY.to_owned())
        }
        IdentityError::File { source, .. } => (format!("the file cannot be read: {source}"), COPY_WHOLE.to_owned()),
        IdentityError::Exposed { mode, .. } => {
            (format!("others than its owner may read this secret key (mode {mode:03o})"), format!("run: chmod 600 {}", path.display()))
        }
        IdentityError::Content { what, .. } => ((*what).to_owned(), COPY_WHOLE.to_owned()),
        other => (other.to_string(), COPY_WHOLE.to_owned()),
    };
    ConfigError { what, file: path.to_path_buf(), line: None, help }
}

fn line_of(text: &str, offset: usize) -> usize {
    1 + text.as_bytes().iter().take(offset).filter(|byte| **byte == b'\n').count()
}

/// A key whose value is refused, and that value as it stands in the file.
#[derive(Debug)]
struct Setting {
    /// With the tables it is in, as in `settings.batch_max`.
    key: String,
    value: String,
}

/// Whose value an error is about; nothing where the file is no TOML.
fn setting(error: &toml::de::Error, text: &str) -> Option<Setting> {
    // An error without its input says in which key it is, and nothing more.
    let mut bare = error.clone();
    bare.set_input(None);
    let shown = bare.to_string();
    let key = shown.strip_prefix(error.message())?.trim().strip_prefix("in `")?.strip_suffix('`')?.to_owned();
    let mut letters = text.get(error.span()?)?.chars();
    let value: String = letters.by_ref().take_while(|letter| *letter != '\n').take(VALUE_LETTERS_MAX).collect();
    let value = value.trim_end().replace(char::is_control, "\u{fffd}");
    Some(Setting { key, value: if letters.next().is_some() { value + "…" } else { value } })
}

/// What a parser's message means, and what to do. Serde names unknown keys, and the known ones, in backquotes.
fn explain(message: &str, setting: Option<&Setting>) -> (String, String) {
    let quoted: Vec<&str> = message.split('`').skip(1).step_by(2).collect();
    if message.starts_with("unknown field")
        && let Some((unknown, known)) = quoted.split_first()
    {
        let list = known.join(", ");
        let help = match closest(unknown, known) {
            Some(name) => format!("did you mean `{name}`? Known here: {list}"),
            None => format!("take it out. Known here: {list}"),
        };
        return (format!("unknown key `{unknown}`"), help);
    }
    if message.starts_with("missing field")
        && let Some(name) = quoted.first()
    {
        return (format!("the key `{name}` is missing"), "add it, as in the file that `bezant init` made".to_owned());
    }
    let is_of_wrong_kind = message.starts_with("invalid type: ");
    let is_wrong = is_of_wrong_kind || ["invalid value: ", "unknown variant "].iter().any(|beginning| message.starts_with(beginning));
    let what = match message.rsplit_once(", expected ") {
        Some((_, expected)) if is_wrong => format!("it takes {}", in_words(expected)),
        _ => message.trim_end().replace('\n', " "),
    };
    let what = match setting {
        Some(Setting { key, value }) => format!("`{key}` cannot be {value}: {what}"),
        None => what,
    };
    let help = if is_of_wrong_kind {
        "mend this line; text goes in quotes, and a number does not"
    } else {
        "mend this line; the comments that `bezant init` wrote say what each key takes"
    };
    (what, help.to_owned())
}

/// What serde expects, in words. It names Rust's types, and variants in backquotes.
fn in_words(expected: &str) -> String {
    match expected.trim_end() {
        "a string" | "path string" => "text, in quotes".to_owned(),
        "a boolean" => "true or false, without quotes".to_owned(),
        "a sequence" => "a list, in brackets".to_owned(),
        "a map" => "a table".to_owned(),
        "f64" => "a number".to_owned(),
        "u16" => format!("a number from 0 to {}", u16::MAX),
        "u32" => format!("a number from 0 to {}", u32::MAX),
        "u64" | "usize" => "a number from 0".to_owned(),
        structure if structure.starts_with("struct ") => "a table".to_owned(),
        other => other.replace('`', "\""),
    }
}

/// The one of `known` that takes the fewest edits to become `word`, if they are few.
fn closest<'a>(word: &str, known: &[&'a str]) -> Option<&'a str> {
    let by_edits = known.iter().map(|name| (strsim::levenshtein(word, name), *name));
    by_edits.min().filter(|(edits, _)| *edits <= SUGGESTION_EDITS_MAX).map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_key_is_named_with_the_known_one_most_like_it() {
        let (what, help) = explain("unknown field `fastpath`, expected one of `client`, `fast_path`", None);
        assert_eq!(what, "unknown key `fastpath`");
        assert_eq!(help, "did you mean `fast_path`? Known here: client, fast_path");
        let (_, help) = explain("unknown field `entirely_else`, expected `client`", None);
        assert_eq!(help, "take it out. Known here: client");
    }
}
