//! The bench's own memory of what was acknowledged: a text file, one line a transfer.
//!
//! ```text
//! bezant-bank-journal 1 <run> <loop clients>
//! <key> TAB <value> TAB <transaction> TAB <timestamp>
//! ```
//!
//! A line is written, in one write, after the commit was acknowledged and before the loop client goes on. It is not synced:
//! it must outlive the nodes and this process, not the machine it runs on. A last line without its end was being
//! written when this process was killed, and is passed over.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use types::{Key, Value};

use super::ledger::Run;
use crate::Error;

const FORMAT: &str = "bezant-bank-journal 1";
/// The longest line that is read.
const LINE_BYTES_MAX: u64 = 4_096;

/// A transfer that was acknowledged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Acknowledged {
    /// Its record's key.
    pub(super) key: Key,
    /// Its record.
    pub(super) value: Value,
    /// The transaction's name; `-` when a later attempt found the record already there.
    pub(super) transaction: String,
    /// The timestamp of the transaction that made or found it.
    pub(super) timestamp: String,
}

/// A journal being written.
#[derive(Debug)]
pub(super) struct Journal {
    path: PathBuf,
    file: Mutex<File>,
}

/// A journal being read.
pub(super) struct JournalReader {
    path: PathBuf,
    file: BufReader<File>,
    bytes: u64,
    position: u64,
    line: u64,
}

impl Journal {
    /// Begins a new journal; a file that is there already is somebody's evidence and is not overwritten.
    pub(super) fn create(path: &Path, run: Run) -> Result<Self, Error> {
        let begin = || {
            let mut file = File::options().append(true).create_new(true).open(path)?;
            file.write_all(format!("{FORMAT} {:016x} {}\n", run.name, run.loop_clients).as_bytes())?;
            Ok(file)
        };
        let file = begin().map_err(|source| Error::Journal { path: path.to_owned(), source })?;
        Ok(Self { path: path.to_owned(), file: Mutex::new(file) })
    }

    pub(super) fn append(&self, acknowledged: &Acknowledged) -> Result<(), Error> {
        let Acknowledged { key, value, transaction, timestamp } = acknowledged;
        let line = format!("{key}\t{value}\t{transaction}\t{timestamp}\n");
        let mut file = self.file.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        file.write_all(line.as_bytes()).map_err(|source| Error::Journal { path: self.path.clone(), source })
    }
}

impl JournalReader {
    pub(super) fn open(path: &Path) -> Result<Self, Error> {
        let failed = |source| Error::Journal { path: path.to_owned(), source };
        let file = File::open(path).map_err(failed)?;
        let bytes = file.metadata().map_err(failed)?.len();
        let mut reader = Self { path: path.to_owned(), file: BufReader::new(file), bytes, position: 0, line: 0 };
        match reader.next_line()? {
            Some(head) if head.starts_with(&format!("{FORMAT} ")) => Ok(reader),
            _ => Err(reader.wrong(format!("a bank's journal begins with '{FORMAT}'"))),
        }
    }

    /// The file's length when it was opened.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// How much of it was read.
    pub(super) fn position(&self) -> u64 {
        self.position
    }

    /// The next `count` lines, fewer at the end, none after it.
    pub(super) fn next_lines(&mut self, count: usize) -> Result<Vec<Acknowledged>, Error> {
        let mut lines = Vec::with_capacity(count);
        while lines.len() < count
            && let Some(line) = self.next_line()?
        {
            let parsed = parse(&line).ok_or_else(|| self.wrong("four fields separated by tabs were expected".to_owned()))?;
            lines.push(parsed);
        }
        Ok(lines)
    }

    /// The next whole line without its end.
    fn next_line(&mut self) -> Result<Option<String>, Error> {
        let mut line = Vec::new();
        let read = (&mut self.file).take(LINE_BYTES_MAX).read_until(b'\n', &mut line);
        let read = read.map_err(|source| Error::Journal { path: self.path.clone(), source })?;
        self.position += read as u64;
        self.line += 1;
        if line.pop_if(|end| *end == b'\n').is_none() {
            return if (line.len() as u64) < LINE_BYTES_MAX { Ok(None) } else { Err(self.wrong("the line is too long".to_owned())) };
        }
        String::from_utf8(line).map(Some).map_err(|_| self.wrong("the line is not text".to_owned()))
    }

    fn wrong(&self, reason: String) -> Error {
        Error::JournalLine { path: self.path.clone(), line: self.line, reason }
    }
}

fn parse(line: &str) -> Option<Acknowledged> {
    let mut fields = line.split('\t');
    let mut field = || fields.next().filter(|field| !field.is_empty());
    let key = Key::new(field()?.as_bytes().to_vec())?;
    let value = Value::new(field()?.as_bytes().to_vec())?;
    let (transaction, timestamp) = (field()?.to_owned(), field()?.to_owned());
    fields.next().is_none().then_some(Acknowledged { key, value, transaction, timestamp })
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUN: Run = Run { name: 0xab, loop_clients: 2 };

    fn acknowledged(number: u64) -> Acknowledged {
        Acknowledged {
            key: Key::from(format!("bank/ack/{number}").as_str()),
            value: Value::from("1 2 30"),
            transaction: "0123456789abcdef".to_owned(),
            timestamp: "1700@c1".to_owned(),
        }
    }

    fn written(lines: u64) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("bank.journal");
        let journal = Journal::create(&path, RUN).expect("a journal");
        for number in 0..lines {
            journal.append(&acknowledged(number)).expect("a line");
        }
        (folder, path)
    }

    fn append(path: &Path, bytes: &[u8]) {
        File::options().append(true).open(path).expect("the journal").write_all(bytes).expect("more of it");
    }

    #[test]
    fn a_journal_is_read_as_it_was_written() {
        let (_folder, path) = written(5);
        let text = std::fs::read_to_string(&path).expect("text");
        assert!(text.starts_with("bezant-bank-journal 1 00000000000000ab 2\nbank/ack/0\t1 2 30\t0123456789abcdef\t1700@c1\n"), "{text}");
        let mut reader = JournalReader::open(&path).expect("a journal");
        assert_eq!(reader.next_lines(3).expect("lines"), [acknowledged(0), acknowledged(1), acknowledged(2)]);
        assert_eq!(reader.next_lines(3).expect("lines"), [acknowledged(3), acknowledged(4)]);
        assert_eq!(reader.next_lines(3).expect("lines"), []);
        assert_eq!(reader.position(), reader.bytes());
    }

    #[test]
    fn a_line_cut_short_by_a_kill_is_passed_over() {
        let (_folder, path) = written(1);
        append(&path, b"bank/ack/1\t1 2");
        let mut reader = JournalReader::open(&path).expect("a journal");
        assert_eq!(reader.next_lines(9).expect("lines"), [acknowledged(0)]);
    }

    #[test]
    fn a_damaged_line_is_told_with_its_place() {
        let whole_but_wrong: [&[u8]; 4] = [b"only\ttwo\n", b"a\tb\tc\td\te\n", b"\xff\xff\n", &[b'x'; 5_000]];
        for bytes in whole_but_wrong {
            let (_folder, path) = written(1);
            append(&path, bytes);
            let told = JournalReader::open(&path).expect("a journal").next_lines(9).expect_err("damage").to_string();
            assert!(told.contains("line 3:"), "{told}");
        }
    }

    #[test]
    fn another_file_is_no_journal_and_is_never_overwritten() {
        let (_folder, path) = written(0);
        let told = Journal::create(&path, RUN).expect_err("it is there already").to_string();
        assert!(told.contains("bank.journal"), "{told}");
        std::fs::write(&path, "bezant-bank-journal 2 0 0\n").expect("another file");
        assert!(JournalReader::open(&path).err().expect("not ours").to_string().contains("line 1: a bank's journal begins with"));
        std::fs::write(&path, "").expect("an empty file");
        assert!(JournalReader::open(&path).is_err());
    }
}
