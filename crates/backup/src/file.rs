//! One file: a header, blocks of rows, an end.
//!
//! ```text
//!   "bezant backup 1\n"
//!   part 0          the header, as JSON
//!   part 1, 2, …    rows: the length of the key, the key, 1 and the length of the value and the value, or 0 where the key was deleted
//!   last part       the end, as JSON
//! ```
//!
//! A part is a byte that says what it is, its length, a digest, and its bytes. The digest covers what the part is, its number, the digest of the
//! part before, and its bytes: so a part that is changed, moved, left out or from another file is found out.

use std::fmt::{self, Display};
use std::fs::File;
use std::io::{BufRead as _, BufReader, BufWriter, ErrorKind, Read as _, Write as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use types::limits::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use types::{Key, Value};

use crate::Error;

const MAGIC: &[u8] = b"bezant backup 1\n";
/// A block is written when it has grown to this.
const BLOCK_BYTES: usize = 1 << 20;
/// No part is longer: a block may be about to be written when the largest row is added.
const PART_BYTES_MAX: usize = BLOCK_BYTES + KEY_BYTES_MAX + VALUE_BYTES_MAX + 16;

/// A row of a backup: a key, and its value, or nothing where it was deleted since the backup before.
pub type Row = (Key, Option<Value>);

/// What stands at the beginning.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// Which cluster it was taken of, in hexadecimal.
    pub cluster: String,
    /// Which time it is of, in nanoseconds since 1970.
    pub as_of: u64,
    /// The content digest of the backup before, if it only holds what has changed since.
    pub since: Option<String>,
}

impl Header {
    /// Whether `next` may go on from a file with this header; `what` says in words that it does.
    pub(crate) fn check_next(&self, next: &Self, what: &str) -> Result<(), Error> {
        if next.cluster != self.cluster {
            return Err(Error::Chain(format!("{what}, and is of another cluster")));
        }
        if next.as_of <= self.as_of {
            return Err(Error::Chain(format!("{what}, and is not of a later time")));
        }
        Ok(())
    }
}

/// What stands at the end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    /// How many rows the file holds.
    pub rows: u64,
    /// How many rows the database held.
    pub rows_of_all: u64,
    /// The digest of all rows that the database held.
    pub content: String,
}

/// What is wrong with a file, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Damage {
    what: String,
    /// Where the part begins.
    at: u64,
    /// Which part.
    part: u64,
    /// The last row before it.
    after: Option<Key>,
}

impl Display for Damage {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} (part {}, which begins at byte {}", self.what, self.part, self.at)?;
        if let Some(key) = &self.after {
            write!(formatter, ", after the key {key}")?;
        }
        write!(formatter, ")")
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Header = 1,
    Rows = 2,
    End = 3,
}

/// The digest of a part, which those after it depend on.
fn digest_of(kind: Kind, number: u64, before: &[u8; 32], bytes: &[u8]) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update([kind as u8]);
    hash.update(number.to_le_bytes());
    hash.update(before);
    hash.update(bytes);
    hash.finalize().into()
}

/// Writes a file, which is there under its name when it is whole.
#[derive(Debug)]
pub struct Writer {
    path: PathBuf,
    unfinished: PathBuf,
    file: BufWriter<File>,
    number: u64,
    before: [u8; 32],
    block: Vec<u8>,
    rows: u64,
}

impl Writer {
    /// Begins the file at `path`, which must not exist.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn new(path: &Path, header: &Header) -> Result<Self, Error> {
        let wrong = |error| Error::File { path: path.to_owned(), error };
        if path.exists() {
            return Err(wrong(ErrorKind::AlreadyExists.into()));
        }
        let mut unfinished = path.as_os_str().to_owned();
        unfinished.push(".unfinished");
        let file = BufWriter::new(File::create(&unfinished).map_err(wrong)?);
        let (path, unfinished) = (path.to_owned(), unfinished.into());
        let mut writer = Self { path, unfinished, file, number: 0, before: [0; 32], block: Vec::new(), rows: 0 };
        let begun = writer.file.write_all(MAGIC);
        begun.and_then(|()| writer.part(Kind::Header, &json(header))).map_err(|error| writer.wrong(error))?;
        Ok(writer)
    }

    /// Adds a row: keys come in order.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn add(&mut self, key: &Key, value: Option<&Value>) -> Result<(), Error> {
        put_bytes(key.as_bytes(), &mut self.block);
        self.block.push(value.is_some().into());
        if let Some(value) = value {
            put_bytes(value.as_bytes(), &mut self.block);
        }
        self.rows += 1;
        if self.block.len() >= BLOCK_BYTES { self.flush() } else { Ok(()) }
    }

    /// Ends the file, and gives it its name when it is durable.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn end(mut self, rows_of_all: u64, content: String) -> Result<End, Error> {
        if !self.block.is_empty() {
            self.flush()?;
        }
        let end = End { rows: self.rows, rows_of_all, content };
        let ended = self.part(Kind::End, &json(&end));
        let durable = ended.and_then(|()| self.file.flush()).and_then(|()| self.file.get_ref().sync_all());
        let named = durable.and_then(|()| std::fs::rename(&self.unfinished, &self.path)).and_then(|()| {
            let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
            File::open(folder)?.sync_all()
        });
        named.map_err(|error| self.wrong(error))?;
        Ok(end)
    }

    fn flush(&mut self) -> Result<(), Error> {
        let block = std::mem::take(&mut self.block);
        self.part(Kind::Rows, &block).map_err(|error| self.wrong(error))
    }

    fn part(&mut self, kind: Kind, bytes: &[u8]) -> std::io::Result<()> {
        self.before = digest_of(kind, self.number, &self.before, bytes);
        self.number += 1;
        self.file.write_all(&[kind as u8])?;
        self.file.write_all(&u32::try_from(bytes.len()).expect("parts are short").to_le_bytes())?;
        self.file.write_all(&self.before)?;
        self.file.write_all(bytes)
    }

    fn wrong(&self, error: std::io::Error) -> Error {
        Error::File { path: self.path.clone(), error }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // It is not there any more once it has its name.
        let _ = std::fs::remove_file(&self.unfinished);
    }
}

fn json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("words and numbers are JSON")
}

fn put_bytes(bytes: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(&u32::try_from(bytes.len()).expect("keys and values are short").to_le_bytes());
    out.extend_from_slice(bytes);
}

/// Reads a file from its beginning, and checks all of it on the way.
#[derive(Debug)]
pub struct FileReader {
    path: PathBuf,
    file: BufReader<File>,
    header: Header,
    at: u64,
    number: u64,
    before: [u8; 32],
    block: std::vec::IntoIter<Row>,
    rows: u64,
    last: Option<Key>,
    end: Option<End>,
}

impl FileReader {
    /// Opens the file at `path`, and reads its header.
    ///
    /// # Errors
    /// [`Error::File`]; [`Error::Damaged`] where it is no backup.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let wrong = |error| Error::File { path: path.to_owned(), error };
        let file = BufReader::new(File::open(path).map_err(wrong)?);
        let header = Header { cluster: String::new(), as_of: 0, since: None };
        let (path, block) = (path.to_owned(), Vec::new().into_iter());
        let mut reader = Self { path, file, header, at: 0, number: 0, before: [0; 32], block, rows: 0, last: None, end: None };
        let mut magic = [0; MAGIC.len()];
        reader.read(&mut magic)?;
        if magic != MAGIC {
            return Err(reader.damaged("this is no backup"));
        }
        reader.at = MAGIC.len() as u64;
        let (Kind::Header, bytes) = reader.part()? else { return Err(reader.damaged("it begins without a header")) };
        reader.header = serde_json::from_slice(&bytes).map_err(|_| reader.damaged("its header cannot be read"))?;
        Ok(reader)
    }

    /// What stands at its beginning.
    #[must_use]
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// What stands at its end, once all rows are read.
    #[must_use]
    pub fn end(&self) -> Option<&End> {
        self.end.as_ref()
    }

    /// The next row; nothing after the last.
    ///
    /// # Errors
    /// [`Error::File`], [`Error::Damaged`].
    pub fn next_row(&mut self) -> Result<Option<Row>, Error> {
        loop {
            if let Some(row) = self.block.next() {
                if self.last.as_ref().is_some_and(|last| *last >= row.0) {
                    return Err(self.damaged("its keys are not in order"));
                }
                self.rows += 1;
                self.last = Some(row.0.clone());
                return Ok(Some(row));
            }
            if self.end.is_some() {
                return Ok(None);
            }
            match self.part()? {
                (Kind::Rows, bytes) => {
                    self.block = rows_of(&bytes).ok_or_else(|| self.damaged("its rows cannot be read"))?.into_iter();
                }
                (Kind::End, bytes) => {
                    let end: End = serde_json::from_slice(&bytes).map_err(|_| self.damaged("its end cannot be read"))?;
                    if end.rows != self.rows {
                        return Err(self.damaged("rows are missing"));
                    }
                    let rest = self.file.fill_buf().map_err(|error| Error::File { path: self.path.clone(), error })?;
                    if !rest.is_empty() {
                        return Err(self.damaged("something follows its end"));
                    }
                    self.end = Some(end);
                }
                (Kind::Header, _) => return Err(self.damaged("it has a second header")),
            }
        }
    }

    fn part(&mut self) -> Result<(Kind, Vec<u8>), Error> {
        let mut head = [0; 1 + 4 + 32];
        self.read(&mut head)?;
        let kind = match head[0] {
            1 => Kind::Header,
            2 => Kind::Rows,
            3 => Kind::End,
            _ => return Err(self.damaged("nobody knows what comes here")),
        };
        let length = u32::from_le_bytes(head[1..5].try_into().expect("four bytes")) as usize;
        if length > PART_BYTES_MAX {
            return Err(self.damaged("a part is longer than any"));
        }
        let mut bytes = vec![0; length];
        self.read(&mut bytes)?;
        let digest = digest_of(kind, self.number, &self.before, &bytes);
        if digest != head[5..] {
            return Err(self.damaged("it is damaged: a digest does not match"));
        }
        self.before = digest;
        self.number += 1;
        self.at += (head.len() + length) as u64;
        Ok((kind, bytes))
    }

    fn read(&mut self, into: &mut [u8]) -> Result<(), Error> {
        self.file.read_exact(into).map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof => self.damaged("it is cut short"),
            _ => Error::File { path: self.path.clone(), error },
        })
    }

    /// An error about this place.
    pub(crate) fn damaged(&self, what: &str) -> Error {
        let damage = Damage { what: what.to_owned(), at: self.at, part: self.number, after: self.last.clone() };
        Error::Damaged { path: self.path.clone(), damage }
    }
}

/// The rows of a block.
fn rows_of(mut bytes: &[u8]) -> Option<Vec<Row>> {
    let mut rows = Vec::new();
    while !bytes.is_empty() {
        let key = Key::new(take_bytes(&mut bytes)?.to_vec())?;
        let (has_value, rest) = bytes.split_first()?;
        bytes = rest;
        let value = match has_value {
            0 => None,
            1 => Some(Value::new(take_bytes(&mut bytes)?.to_vec())?),
            _ => return None,
        };
        rows.push((key, value));
    }
    Some(rows)
}

fn take_bytes<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (length, rest) = bytes.split_first_chunk()?;
    let (taken, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
    *bytes = rest;
    Some(taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        Header { cluster: "c".to_owned(), as_of: 7, since: None }
    }

    fn written(rows: &[Row]) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("one.backup");
        let mut writer = Writer::new(&path, &header()).expect("a file");
        for (key, value) in rows {
            writer.add(key, value.as_ref()).expect("room");
        }
        writer.end(rows.len() as u64, "content".to_owned()).expect("room");
        (folder, path)
    }

    fn read(path: &Path) -> Result<Vec<Row>, Error> {
        let mut reader = FileReader::open(path)?;
        let mut rows = Vec::new();
        while let Some(row) = reader.next_row()? {
            rows.push(row);
        }
        assert_eq!(reader.end().expect("all is read").rows, rows.len() as u64);
        Ok(rows)
    }

    fn some_rows() -> Vec<Row> {
        let large = |number: u8| Some(Value::new(vec![number; 700_000]).expect("short enough"));
        vec![("a".into(), Some("1".into())), ("b".into(), None), ("c".into(), large(3)), ("d".into(), large(4)), ("e".into(), large(5))]
    }

    #[test]
    fn what_was_written_is_read() {
        for rows in [Vec::new(), some_rows()] {
            let (folder, path) = written(&rows);
            assert_eq!(read(&path).expect("it is whole"), rows);
            assert_eq!(FileReader::open(&path).expect("it is whole").header(), &header());
            assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 1, "nothing unfinished is left");
        }
    }

    #[test]
    fn every_changed_byte_is_found() {
        let rows = [("a".into(), Some(Value::from("1"))), ("b".into(), None)];
        let (_folder, path) = written(&rows);
        let whole = std::fs::read(&path).expect("it is there");
        for at in 0..whole.len() {
            let mut changed = whole.clone();
            changed[at] ^= 0x10;
            std::fs::write(&path, &changed).expect("room");
            assert!(matches!(read(&path), Err(Error::Damaged { .. })), "byte {at}");
        }
        for length in 0..whole.len() {
            std::fs::write(&path, &whole[..length]).expect("room");
            assert!(matches!(read(&path), Err(Error::Damaged { .. })), "cut to {length}");
        }
        std::fs::write(&path, [&whole[..], b"x"].concat()).expect("room");
        assert!(matches!(read(&path), Err(Error::Damaged { .. })), "something follows");
    }

    #[test]
    fn damage_is_named_by_its_place() {
        let (_folder, path) = written(&some_rows());
        let mut bytes = std::fs::read(&path).expect("it is there");
        let last = bytes.len() - 1_000;
        bytes[last] ^= 1;
        std::fs::write(&path, &bytes).expect("room");
        let said = read(&path).expect_err("it is damaged").to_string();
        assert!(said.contains("a digest does not match (part 2, which begins at byte 1400") && said.contains("after the key d"), "{said}");
    }

    #[test]
    fn a_file_that_is_there_is_not_written_over_and_none_is_left_half() {
        let (folder, path) = written(&[]);
        assert!(matches!(Writer::new(&path, &header()), Err(Error::File { .. })));
        drop(Writer::new(&folder.path().join("two.backup"), &header()).expect("a file"));
        assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 1);
    }
}
