//! A run: rows in the order of keys, in one file that is written once and then only read.
//!
//! ```text
//! blocks   rows end to end, about 4 KiB, each block with a checksum of its own: two lengths, the key, the row
//! index    of each block its length and its first key
//! filter   tells of most keys that the run does not have that it does not
//! footer   how long these are, and their checksum
//! ```
//!
//! The index and the filter are in memory while the run is open: some three bytes for each row. Checksums start from the run's number and the
//! block's place, so no block passes for another.

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::{Buf as _, Bytes};
use mutants::{Mutant, broken};
use rustix::fs::{Advice, fadvise};
use types::Direction;
use types::codec::Encode as _;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use super::filter::Filter;
use crate::backend::beginning;
use crate::disk::failed;
use crate::{Row, StoreError};

const MAGIC: &[u8; 8] = b"bezntrun";
/// One with another footer is another format of the whole directory: what does not end so is taken for damaged.
const RUN_FORMAT: u32 = 1;
const FOOTER_BYTES: usize = 68;
/// A block is full at this size.
const BLOCK_BYTES: usize = 4_096;
const CHECKSUM_BYTES: usize = 8;
/// The lengths before each key and row: two bytes and four.
const LENGTHS_BYTES: usize = 6;
/// So much is read at once to see whether it can be.
const LOOKED_AT_BYTES: u64 = 1 << 20;
/// So much is gathered before it is written.
const WRITE_BYTES: usize = 256 << 10;
/// So much is written before it is synced. Were a long run synced at its end only, the journal's next sync would wait behind all of it.
const SYNC_BYTES: u64 = 4 << 20;

/// A run that is whole and open.
pub(crate) struct Run {
    file: File,
    path: PathBuf,
    pub number: u64,
    /// How many rows it has.
    pub rows: u64,
    /// How long its file is.
    pub bytes: u64,
    index: Index,
    filter: Filter,
}

/// Where each block begins, and with which key.
#[derive(Default)]
struct Index {
    /// The first keys, end to end.
    keys: Vec<u8>,
    /// Where each block's first key ends there, and where the block ends in the file.
    ends: Vec<(u64, u64)>,
}

impl Index {
    fn push(&mut self, key: &[u8], block_end: u64) {
        self.keys.extend_from_slice(key);
        self.ends.push((self.keys.len() as u64, block_end));
    }

    fn len(&self) -> usize {
        self.ends.len()
    }

    fn first_key(&self, block: usize) -> &[u8] {
        let start = block.checked_sub(1).map_or(0, |before| self.ends[before].0);
        &self.keys[start as usize..self.ends[block].0 as usize]
    }

    /// Where a block begins in the file.
    fn start(&self, block: usize) -> u64 {
        block.checked_sub(1).map_or(0, |before| self.ends[before].1)
    }

    /// The first block behind `block` that ends behind this place in the file, or the end.
    fn after(&self, block: usize, place: u64) -> usize {
        self.ends.partition_point(|(_, end)| *end <= place).max(block + 1).min(self.len())
    }

    /// The only block that may have `key`: the last that begins at or before it.
    fn block_of(&self, key: &[u8]) -> Option<usize> {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = low.midpoint(high);
            if self.first_key(middle) <= key { low = middle + 1 } else { high = middle }
        }
        low.checked_sub(1)
    }

    fn encode(&self, out: &mut Vec<u8>) {
        for block in 0..self.len() {
            let length = self.ends[block].1 - self.start(block);
            (length as u32).encode(out);
            (self.first_key(block).len() as u16).encode(out);
            out.extend_from_slice(self.first_key(block));
        }
    }

    fn decode(mut bytes: &[u8]) -> Option<Self> {
        let (mut index, mut end) = (Self::default(), 0);
        while !bytes.is_empty() {
            let (length, key) = (bytes.try_get_u32_le().ok()?, bytes.try_get_u16_le().ok()?);
            let (key, rest) = bytes.split_at_checked(usize::from(key))?;
            end += u64::from(length);
            index.push(key, end);
            bytes = rest;
        }
        Some(index)
    }
}

pub(crate) fn file_name(number: u64) -> String {
    format!("{number:08}.run")
}

/// The hash by which the filter knows a key.
pub(crate) fn hash(key: &[u8]) -> u64 {
    xxh3_64(key)
}

fn seed(number: u64, at: u64) -> u64 {
    number.rotate_left(40) ^ at
}

impl Run {
    /// Opens run `number` of `directory`.
    ///
    /// # Errors
    /// When it is missing, damaged or of a newer format, or the disk fails.
    pub fn open(directory: &Path, number: u64) -> Result<Self, StoreError> {
        let path = directory.join(file_name(number));
        let location = path.display().to_string();
        if !path.try_exists().map_err(failed("look for", &path))? {
            return Err(StoreError::Missing { location });
        }
        let corrupt = |reason: &str| StoreError::RowsDamaged { location: location.clone(), offset: 0, reason: reason.to_owned() };
        let file = File::open(&path).map_err(failed("open", &path))?;
        let bytes = file.metadata().map_err(failed("look at", &path))?.len();
        let footer_at = bytes.checked_sub(FOOTER_BYTES as u64).ok_or_else(|| corrupt("it is cut off"))?;
        let mut footer = [0; FOOTER_BYTES];
        file.read_exact_at(&mut footer, footer_at).map_err(failed("read", &path))?;
        let mut rest = &footer[..];
        if !footer.starts_with(MAGIC) {
            return Err(corrupt("it does not end as a run"));
        }
        rest.advance(MAGIC.len());
        let format = rest.get_u32_le();
        let sum = |footer: &[u8; FOOTER_BYTES]| xxh3_64_with_seed(&footer[..FOOTER_BYTES - CHECKSUM_BYTES], number);
        if format > RUN_FORMAT {
            // With this format in its place the checksum matches only where a bit of it flipped.
            let mut as_known = footer;
            as_known[MAGIC.len()..MAGIC.len() + 4].copy_from_slice(&RUN_FORMAT.to_le_bytes());
            return Err(match footer.last_chunk().map(|last| u64::from_le_bytes(*last)) == Some(sum(&as_known)) {
                true => corrupt("its footer's checksum does not match"),
                false => StoreError::NewerFormat { location, found: format, known: RUN_FORMAT },
            });
        }
        let [found, rows, blocks_bytes, index_bytes, filter_bytes, checksum] = [(); 6].map(|()| rest.get_u64_le());
        if format != RUN_FORMAT || rest.get_u64_le() != sum(&footer) {
            return Err(corrupt("its footer's checksum does not match"));
        }
        let ends = blocks_bytes.checked_add(index_bytes).and_then(|end| end.checked_add(filter_bytes));
        if found != number || ends != Some(footer_at) {
            return Err(corrupt("it is not as long as its footer says"));
        }
        let mut tail = vec![0; (index_bytes + filter_bytes) as usize];
        file.read_exact_at(&mut tail, blocks_bytes).map_err(failed("read", &path))?;
        if xxh3_64_with_seed(&tail, number) != checksum {
            return Err(corrupt("its index's checksum does not match"));
        }
        let (index, filter) = tail.split_at(index_bytes as usize);
        let index = Index::decode(index).filter(|index| index.start(index.len()) == blocks_bytes);
        let index = index.ok_or_else(|| corrupt("its index was written wrongly"))?;
        let filter = Filter::decode(filter).ok_or_else(|| corrupt("its filter was written wrongly"))?;
        Ok(Self { file, path, number, rows, bytes, index, filter })
    }

    /// The row of `key`, whose hash is given.
    ///
    /// # Errors
    /// When the block is damaged, or the disk fails.
    pub fn get(&self, key: &[u8], hash: u64) -> Result<Option<Bytes>, StoreError> {
        let Some(block) = Some(()).filter(|()| self.filter.may_have(hash)).and_then(|()| self.index.block_of(key)) else { return Ok(None) };
        let mut bytes = Vec::new();
        self.read_blocks(block, block + 1, &mut bytes)?;
        let mut at = 0;
        while let Some(entry) = self.entry(&bytes, at, bytes.len() - CHECKSUM_BYTES)? {
            if &bytes[entry.key_at..entry.row_at] == key {
                return Ok(Some(Bytes::copy_from_slice(&bytes[entry.row_at..entry.end])));
            }
            at = entry.end;
        }
        Ok(None)
    }

    /// Has the disk read the block in which the row of `key` is, if it may be here. Gives whether it may.
    pub fn read_ahead(&self, key: &[u8], hash: u64) -> bool {
        let Some(block) = Some(()).filter(|()| self.filter.may_have(hash)).and_then(|()| self.index.block_of(key)) else { return false };
        let (start, end) = (self.index.start(block), self.index.start(block + 1));
        // If it cannot, the read itself says why.
        let _ = fadvise(&self.file, start, NonZeroU64::new(end - start), Advice::WillNeed);
        true
    }

    /// Reads blocks with one call, and checks each of them.
    fn read_blocks(&self, from: usize, to: usize, out: &mut Vec<u8>) -> Result<(), StoreError> {
        let start = self.index.start(from);
        out.clear();
        out.resize((self.index.start(to) - start) as usize, 0);
        self.file.read_exact_at(out, start).map_err(failed("read", &self.path))?;
        for block in from..to {
            let (begin, end) = (self.index.start(block), self.index.start(block + 1));
            let bytes = &out[(begin - start) as usize..(end - start) as usize];
            let checked = bytes.split_last_chunk::<CHECKSUM_BYTES>();
            if checked.is_none_or(|(body, checksum)| xxh3_64_with_seed(body, seed(self.number, begin)) != u64::from_le_bytes(*checksum)) {
                return Err(self.corrupt(begin, "a block's checksum does not match"));
            }
        }
        Ok(())
    }

    /// The entry at `at`, in a block that ends at `end`; nothing when it ends there.
    fn entry(&self, bytes: &[u8], at: usize, end: usize) -> Result<Option<Entry>, StoreError> {
        if at == end {
            return Ok(None);
        }
        let read = || {
            let mut rest = bytes.get(at..end)?;
            let (key, row) = (usize::from(rest.try_get_u16_le().ok()?), rest.try_get_u32_le().ok()? as usize);
            let row_at = at + LENGTHS_BYTES + key;
            (key.checked_add(row)? <= rest.len()).then_some(Entry { key_at: at + LENGTHS_BYTES, row_at, end: row_at + row })
        };
        read().map(Some).ok_or_else(|| self.corrupt(0, "a block was written wrongly"))
    }

    /// Whether all of it can be read.
    ///
    /// # Errors
    /// When the disk fails in another way.
    pub fn is_sound(&self) -> Result<bool, StoreError> {
        let (mut block, mut bytes, mut entries) = (0, Vec::new(), Vec::new());
        while block < self.index.len() {
            entries.clear();
            let next = self.index.after(block, self.index.start(block) + LOOKED_AT_BYTES);
            let read = self.read_blocks(block, next, &mut bytes);
            match read.and_then(|()| (block..next).try_for_each(|looked_at| self.entries(&bytes, block, looked_at, &mut entries))) {
                Ok(()) => block = next,
                Err(error) if error.is_of_damaged_rows() => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Adds the entries of `block`, of which there is one at least, in bytes that were read from the block `from` on.
    fn entries(&self, bytes: &[u8], from: usize, block: usize, entries: &mut Vec<Entry>) -> Result<(), StoreError> {
        let place = |block: usize| (self.index.start(block) - self.index.start(from)) as usize;
        let (mut at, end) = (place(block), place(block + 1) - CHECKSUM_BYTES);
        if at == end {
            return Err(self.corrupt(self.index.start(block), "a block is empty"));
        }
        while let Some(entry) = self.entry(bytes, at, end)? {
            at = entry.end;
            entries.push(entry);
        }
        Ok(())
    }

    /// Writes all that can be read of it.
    ///
    /// # Errors
    /// When the disk fails in another way.
    pub fn salvage(&self, writer: &mut RunWriter) -> Result<(), StoreError> {
        let (mut bytes, mut entries) = (Vec::new(), Vec::new());
        for block in 0..self.index.len() {
            entries.clear();
            let read = self.read_blocks(block, block + 1, &mut bytes);
            match read.and_then(|()| self.entries(&bytes, block, block, &mut entries)) {
                Ok(()) => {}
                Err(error) if error.is_of_damaged_rows() => continue,
                Err(error) => return Err(error),
            }
            for Entry { key_at, row_at, end } in &entries {
                writer.push(Row { key: &bytes[*key_at..*row_at], row: &bytes[*row_at..*end] })?;
            }
        }
        Ok(())
    }

    fn corrupt(&self, offset: u64, reason: &str) -> StoreError {
        StoreError::RowsDamaged { location: self.path.display().to_string(), offset, reason: reason.to_owned() }
    }

    /// Removes its file's name. Whoever still reads the run, can. If it is longer than `short`, gives the file, to be shortened once nobody reads it: not if that
    /// cannot be had, or the file has another name.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn unlink(&self, short: u64) -> Result<Option<File>, StoreError> {
        let file = (self.bytes > short).then(|| OpenOptions::new().write(true).open(&self.path));
        fs::remove_file(&self.path).map_err(failed("remove", &self.path))?;
        let is_ours = |file: &File| file.metadata().is_ok_and(|file| file.nlink() == 0);
        Ok(file.and_then(Result::ok).filter(is_ours))
    }
}

/// Where the parts of an entry are in its bytes.
#[derive(Clone, Copy, Default)]
struct Entry {
    key_at: usize,
    row_at: usize,
    end: usize,
}

/// Goes through a run's rows, in one direction or the other.
pub(crate) struct Cursor {
    run: Arc<Run>,
    direction: Direction,
    /// The blocks that are still to be loaded.
    unloaded: Range<usize>,
    /// What is loaded, which blocks these are, and those of them that are still to come.
    bytes: Vec<u8>,
    in_bytes: Range<usize>,
    loaded: Range<usize>,
    /// The present block, its entries, and those of them that are still to come.
    block: Option<usize>,
    entries: Vec<Entry>,
    rest: Range<usize>,
    entry: Entry,
    /// The beginning of the present key, unless it is at its end.
    pub place: Option<u128>,
    /// About how many bytes are read at once.
    ahead: usize,
    /// How many bytes were read.
    pub read_bytes: usize,
}

impl Cursor {
    /// At its end, until it [goes elsewhere](Self::seek). Where it reads on, it reads about `ahead` bytes at once.
    pub fn new(run: Arc<Run>, direction: Direction, ahead: usize) -> Self {
        let (unloaded, in_bytes, loaded, rest) = (0..0, 0..0, 0..0, 0..0);
        let (bytes, block, entries, entry) = (Vec::new(), None, Vec::new(), Entry::default());
        Self { run, direction, unloaded, bytes, in_bytes, loaded, block, entries, rest, entry, place: None, ahead, read_bytes: 0 }
    }

    /// Goes to the first row, in its direction, that is not before `begin`: where it descends, the first below that. Without a `begin`, to the
    /// first of all. It reads one block at most that is not loaded, since many may be passed before the next is wanted, and one more only where
    /// that has no such row.
    ///
    /// # Errors
    /// When the run is damaged, or the disk fails.
    pub fn seek(&mut self, begin: Option<&[u8]>) -> Result<(), StoreError> {
        let index = &self.run.index;
        let wanted = match (self.direction, begin) {
            (Direction::Ascending, begin) => begin.and_then(|begin| index.block_of(begin)).unwrap_or(0)..index.len(),
            (Direction::Descending, None) => 0..index.len(),
            (Direction::Descending, Some(begin)) => {
                0..index.block_of(begin).map_or(0, |block| if broken(Mutant::DescentBeginsTooLow) { block } else { block + 1 })
            }
        };
        (self.unloaded, self.loaded, self.rest, self.place) = (wanted.clone(), 0..0, 0..0, None);
        let Some(first) = take(&mut wanted.clone(), self.direction) else { return Ok(()) };
        if self.in_bytes.contains(&first) {
            (self.loaded, self.unloaded) = match self.direction {
                Direction::Ascending => (first..self.in_bytes.end, self.in_bytes.end..wanted.end),
                Direction::Descending => (self.in_bytes.start..first + 1, wanted.start..self.in_bytes.start),
            };
        } else {
            self.load(0)?;
        }
        self.begin_block()?;
        if let Some(begin) = begin {
            let at = self.entries.partition_point(|entry| &self.bytes[entry.key_at..entry.row_at] < begin);
            self.rest = match self.direction {
                Direction::Ascending => at..self.entries.len(),
                Direction::Descending => 0..at,
            };
        }
        self.advance()
    }

    pub fn key(&self) -> &[u8] {
        &self.bytes[self.entry.key_at..self.entry.row_at]
    }

    pub fn row(&self) -> &[u8] {
        &self.bytes[self.entry.row_at..self.entry.end]
    }

    /// Goes to the next row, or to the end.
    ///
    /// # Errors
    /// As [`Cursor::seek`].
    pub fn advance(&mut self) -> Result<(), StoreError> {
        self.place = None;
        if self.rest.is_empty() {
            if self.loaded.is_empty() && !self.unloaded.is_empty() {
                self.load(self.ahead)?;
            }
            self.begin_block()?;
        }
        if let Some(next) = take(&mut self.rest, self.direction) {
            self.entry = self.entries[next];
            self.place = Some(beginning(self.key()));
        }
        Ok(())
    }

    /// Makes the next block that is loaded the present one, if there is one.
    fn begin_block(&mut self) -> Result<(), StoreError> {
        let Some(block) = take(&mut self.loaded, self.direction) else { return Ok(()) };
        if self.block.take() != Some(block) {
            self.entries.clear();
            self.run.entries(&self.bytes, self.in_bytes.start, block, &mut self.entries)?;
        }
        self.block = Some(block);
        self.rest = 0..self.entries.len();
        Ok(())
    }

    /// Loads the next blocks, of which there is one at least: about `ahead` bytes.
    fn load(&mut self, ahead: usize) -> Result<(), StoreError> {
        let (index, Range { start, end }) = (&self.run.index, self.unloaded.clone());
        self.loaded = match self.direction {
            Direction::Ascending => {
                let to = index.start(start) + ahead as u64;
                start..start + 1 + (start + 1..end).take_while(|block| index.start(block + 1) <= to).count()
            }
            Direction::Descending => {
                let from = index.start(end).saturating_sub(ahead as u64);
                end - 1 - (0..end - 1).rev().take_while(|block| index.start(*block) >= from).count()..end
            }
        };
        self.unloaded = match self.direction {
            Direction::Ascending => self.loaded.end..end,
            Direction::Descending => start..self.loaded.start,
        };
        (self.in_bytes, self.block) = (0..0, None);
        self.run.read_blocks(self.loaded.start, self.loaded.end, &mut self.bytes)?;
        self.in_bytes = self.loaded.clone();
        self.read_bytes += self.bytes.len();
        Ok(())
    }
}

/// The next of these, in this direction.
fn take(left: &mut Range<usize>, direction: Direction) -> Option<usize> {
    match direction {
        Direction::Ascending => left.next(),
        Direction::Descending => left.next_back(),
    }
}

/// Writes a run, row by row, in the order of keys.
pub(crate) struct RunWriter {
    file: File,
    path: PathBuf,
    number: u64,
    rows: u64,
    index: Index,
    filter: Filter,
    /// What is not written yet. The present block begins at `block_at` in it.
    pending: Vec<u8>,
    block_at: usize,
    block_key: Vec<u8>,
    /// What is written, and of that what is synced.
    written: u64,
    synced: u64,
}

impl RunWriter {
    /// Begins run `number` of `directory`, of at most `rows_max` rows.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn create(directory: &Path, number: u64, rows_max: u64) -> Result<Self, StoreError> {
        let path = directory.join(file_name(number));
        let file = OpenOptions::new().write(true).create(true).truncate(true).open(&path).map_err(failed("create", &path))?;
        let (index, filter, pending) = (Index::default(), Filter::for_rows(rows_max), Vec::with_capacity(WRITE_BYTES + 2 * BLOCK_BYTES));
        Ok(Self { file, path, number, rows: 0, index, filter, pending, block_at: 0, block_key: Vec::new(), written: 0, synced: 0 })
    }

    /// Adds a row, whose key must be above the last one's.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn push(&mut self, Row { key, row }: Row<'_>) -> Result<(), StoreError> {
        if self.pending.len() == self.block_at {
            self.block_key.clear();
            self.block_key.extend_from_slice(key);
        }
        let (key_bytes, row_bytes) = (u16::try_from(key.len()), u32::try_from(row.len()));
        key_bytes.expect("KEY_BYTES_MAX fits in u16").encode(&mut self.pending);
        row_bytes.expect("VALUE_BYTES_MAX fits in u32").encode(&mut self.pending);
        self.pending.extend_from_slice(key);
        self.pending.extend_from_slice(row);
        self.filter.add(hash(key));
        self.rows += 1;
        if self.pending.len() - self.block_at >= BLOCK_BYTES { self.end_block() } else { Ok(()) }
    }

    fn end_block(&mut self) -> Result<(), StoreError> {
        if self.pending.len() == self.block_at {
            return Ok(());
        }
        let begin = self.written + self.block_at as u64;
        xxh3_64_with_seed(&self.pending[self.block_at..], seed(self.number, begin)).encode(&mut self.pending);
        self.block_at = self.pending.len();
        self.index.push(&self.block_key, self.written + self.block_at as u64);
        if self.pending.len() >= WRITE_BYTES { self.write() } else { Ok(()) }
    }

    fn write(&mut self) -> Result<(), StoreError> {
        self.file.write_all(&self.pending).map_err(failed("write", &self.path))?;
        self.written += self.pending.len() as u64;
        self.pending.clear();
        self.block_at = 0;
        if self.written - self.synced >= SYNC_BYTES {
            self.synced = self.written;
            self.file.sync_data().map_err(failed("sync", &self.path))?;
        }
        Ok(())
    }

    /// Makes the run durable, but for its name.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn finish(mut self) -> Result<Run, StoreError> {
        self.end_block()?;
        self.filter.shrink_to(self.rows);
        let mut tail = Vec::new();
        self.index.encode(&mut tail);
        let index_bytes = tail.len() as u64;
        self.filter.encode(&mut tail);
        let (checksum, filter_bytes) = (xxh3_64_with_seed(&tail, self.number), tail.len() as u64 - index_bytes);
        let blocks_bytes = self.written + self.pending.len() as u64;
        self.pending.extend_from_slice(&tail);
        let mut footer = MAGIC.to_vec();
        RUN_FORMAT.encode(&mut footer);
        [self.number, self.rows, blocks_bytes, index_bytes, filter_bytes, checksum].iter().for_each(|number| number.encode(&mut footer));
        xxh3_64_with_seed(&footer, self.number).encode(&mut footer);
        self.pending.extend_from_slice(&footer);
        self.write()?;
        self.file.sync_all().map_err(failed("sync", &self.path))?;
        let Self { path, number, rows, index, filter, written, .. } = self;
        let file = File::open(&path).map_err(failed("open", &path))?;
        Ok(Run { file, path, number, rows, bytes: written, index, filter })
    }
}
