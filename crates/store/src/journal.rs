//! The journal: batches of records, one after the other, in numbered segments.
//!
//! ```text
//! segment:  header (512 bytes): magic, format, number, first sequence, salt, owner, checksum
//!           batch, batch, …     then nothing, zeros, or stale bytes of the segment's earlier life
//! batch:    length u32, sequence u64, checksum of the body u64, checksum of these u64, body
//! body:     length u32, record, length u32, record, …
//! ```
//!
//! Batches are numbered through all segments. Checksums start from the segment's salt, which no client
//! knows, so neither stale bytes nor bytes inside a record pass for a batch.
//!
//! Each batch is synced before the next is written. So a crash can tear only the very last one, and replay
//! tells a torn tail from damage: at a torn tail nothing valid follows. A segment that is not the last is
//! whole when the next begins with the sequence it ended with; whatever lies behind that is no part of it.
//! After a graceful stop the medium knows how many batches there are, so that a flipped bit in the last is no torn tail.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use bytes::{Buf, Bytes};
use mutants::{Mutant, broken};
use types::codec::Encode;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use crate::{StorageBackend, StoreError};

/// A segment's number. Counted from 1, and never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SegmentNumber(pub u64);

impl SegmentNumber {
    /// The name of the segment's file.
    pub(crate) fn file_name(self) -> String {
        format!("journal/{self}.log")
    }

    pub(crate) fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl fmt::Display for SegmentNumber {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:08}", self.0)
    }
}

/// Records that were made durable together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// The segment they lie in: it must not be released while any of them is needed.
    pub segment: SegmentNumber,
    /// The records, as they were appended.
    pub records: Vec<Bytes>,
}

/// A batch is closed and another begun when it has grown to this size.
pub const BATCH_BYTES_MAX: usize = 64 << 20;
/// The longest record.
pub const RECORD_BYTES_MAX: usize = 256 << 20;
/// The longest name of an owner.
pub const OWNER_BYTES_MAX: usize = 256;

const MAGIC: &[u8; 8] = b"BEZANTJL";
const JOURNAL_FORMAT: u32 = 1;
const HEADER_BYTES: usize = 512;
const FRAME_BYTES: usize = 28;
/// A buffer that grew beyond this is given back after its sync.
const PENDING_BYTES_KEPT: usize = 4 << 20;

/// The journal's state above its backend.
pub(crate) struct Journal {
    segments: BTreeMap<SegmentNumber, Segment>,
    /// What is left to replay; nothing once the journal may be written.
    replay: Option<Replay>,
    next_sequence: u64,
    /// Records appended and not yet written, each batch with room for its frame.
    pending: Vec<u8>,
    /// Where in `pending` each batch begins.
    pending_starts: Vec<usize>,
    segment_bytes_max: u64,
}

struct Segment {
    first_sequence: u64,
    salt: u64,
    /// Where the next batch goes, and so how much of the segment is in use.
    end: u64,
}

struct Replay {
    segment: SegmentNumber,
    /// The segment's bytes, once they were read.
    bytes: Option<Bytes>,
    /// The last batch read from this segment.
    last: Option<Range<usize>>,
}

impl Journal {
    /// Opens the journal on `backend`, or begins it. It must then be replayed to its end.
    pub(crate) fn open<M: StorageBackend>(backend: &mut M, segment_bytes_max: u64) -> Result<Self, StoreError> {
        assert!(backend.owner().len() <= OWNER_BYTES_MAX, "the owner's name is our own, and short");
        let mut numbers = backend.segments()?;
        let mut journal = Self {
            segments: BTreeMap::new(),
            replay: None,
            next_sequence: 1,
            pending: Vec::new(),
            pending_starts: Vec::new(),
            segment_bytes_max,
        };
        if numbers.is_empty() {
            journal.create(backend, SegmentNumber(1))?;
            numbers = vec![SegmentNumber(1)];
        }
        for pair in numbers.windows(2) {
            if pair[1] != pair[0].next() {
                return Err(StoreError::Missing { location: format!("{}/{}", backend.location(), pair[0].next().file_name()) });
            }
        }
        for number in &numbers {
            let header = backend.read(*number, 0, HEADER_BYTES)?;
            let segment = decode_header(&header, *number, &backend.location(), backend.owner())?;
            journal.segments.insert(*number, segment);
        }
        let first = numbers[0];
        journal.next_sequence = journal.segments[&first].first_sequence;
        journal.replay = Some(Replay { segment: first, bytes: None, last: None });
        Ok(journal)
    }

    /// The next batch of the journal, or nothing at its end. From then on it may be written.
    pub(crate) fn replay<M: StorageBackend>(&mut self, backend: &mut M) -> Result<Option<Batch>, StoreError> {
        while let Some(mut replay) = self.replay.take() {
            let number = replay.segment;
            let following = self.segments.get(&number.next()).map(|next| next.first_sequence);
            let segment = self.segments.get_mut(&number).expect("replay walks over the segments");
            if following == Some(self.next_sequence) {
                self.replay = Some(Replay { segment: number.next(), bytes: None, last: None });
                continue;
            }
            let bytes = match replay.bytes.take() {
                Some(bytes) => bytes,
                // What lies behind a segment's maximum is at most one batch, so this is bounded.
                None => Bytes::from(backend.read(number, 0, usize::MAX)?),
            };
            let offset = usize::try_from(segment.end).expect("the end lies within the bytes that were read");
            match read_batch(&bytes, offset, segment.salt, self.next_sequence) {
                Ok((records, end)) => {
                    segment.end = end as u64;
                    self.next_sequence += 1;
                    self.replay = Some(Replay { segment: number, bytes: Some(bytes), last: Some(offset..end) });
                    return Ok(Some(Batch { segment: number, records }));
                }
                Err(reason) if following.is_some() => return Err(StoreError::corrupt_segment(number, segment.end, reason)),
                Err(reason) => {
                    if let Some(later) = find_later_frame(&bytes, offset, segment.salt, self.next_sequence) {
                        let reason = format!("{reason}, but a later batch follows at byte {later}");
                        return Err(StoreError::corrupt_segment(number, segment.end, reason));
                    }
                    // If the process before this one died of a failed sync, the system may show bytes that are
                    // not on the disk and no longer count as unwritten. Written again, they are synced for sure.
                    if let Some(last) = replay.last {
                        backend.write(number, last.start as u64, &bytes[last])?;
                        backend.sync(number)?;
                    }
                    self.check_clean_end(backend, number)?;
                }
            }
        }
        Ok(None)
    }

    /// After a graceful stop nothing is torn: a batch that is not there was there.
    fn check_clean_end<M: StorageBackend>(&mut self, backend: &mut M, last: SegmentNumber) -> Result<(), StoreError> {
        let Some(written) = backend.clean_end()? else { return Ok(()) };
        if written > self.batches() {
            let reason = format!("batch {} is not there, and {written} were when this replica last stopped", self.next_sequence);
            return Err(StoreError::corrupt_segment(last, self.segments[&last].end, reason));
        }
        backend.set_clean_end(None)
    }

    /// Notes that nothing is written any more, so that the next process can tell a torn batch from a damaged one.
    pub(crate) fn close<M: StorageBackend>(&mut self, backend: &mut M) -> Result<(), StoreError> {
        assert!(!self.is_pending(), "what is pending is written before the end");
        match self.is_replayed() {
            true => backend.set_clean_end(Some(self.batches())),
            false => Ok(()),
        }
    }

    /// How many batches it has had.
    pub(crate) fn batches(&self) -> u64 {
        self.next_sequence - 1
    }

    /// Whether the journal has been replayed and may be written.
    pub(crate) fn is_replayed(&self) -> bool {
        self.replay.is_none()
    }

    /// Appends a record, written by `encode` to the end of the buffer it is given.
    pub(crate) fn append_with(&mut self, encode: impl FnOnce(&mut Vec<u8>)) {
        let start = self.pending_starts.last().copied().filter(|start| self.pending.len() - start < BATCH_BYTES_MAX);
        if start.is_none() {
            self.pending_starts.push(self.pending.len());
            self.pending.extend_from_slice(&[0; FRAME_BYTES]);
        }
        let length_at = self.pending.len();
        self.pending.extend_from_slice(&[0; 4]);
        encode(&mut self.pending);
        assert!(self.pending.len() >= length_at + 4, "a record is written behind what was there");
        let length = self.pending.len() - length_at - 4;
        assert!(length <= RECORD_BYTES_MAX, "a record is longer than {RECORD_BYTES_MAX} bytes");
        let length = u32::try_from(length).expect("the longest record is below u32::MAX");
        self.pending[length_at..length_at + 4].copy_from_slice(&length.to_le_bytes());
    }

    /// Whether records wait to be written.
    pub(crate) fn is_pending(&self) -> bool {
        !self.pending_starts.is_empty()
    }

    /// Writes and syncs what is pending: one batch, unless it is huge. Gives the batches and bytes written.
    pub(crate) fn sync<M: StorageBackend>(&mut self, backend: &mut M) -> Result<(u64, u64), StoreError> {
        assert!(self.is_replayed(), "a journal is replayed to its end before it is written");
        let mut pending = std::mem::take(&mut self.pending);
        let starts = std::mem::take(&mut self.pending_starts);
        for (index, start) in starts.iter().enumerate() {
            let end = starts.get(index + 1).copied().unwrap_or(pending.len());
            self.write_batch(backend, &mut pending[*start..end])?;
        }
        let written = (starts.len() as u64, pending.len() as u64);
        if pending.capacity() <= PENDING_BYTES_KEPT {
            pending.clear();
            self.pending = pending;
        }
        Ok(written)
    }

    fn write_batch<M: StorageBackend>(&mut self, backend: &mut M, batch: &mut [u8]) -> Result<(), StoreError> {
        let (_, segment) = self.segments.last_key_value().expect("a journal has a segment");
        if segment.end + batch.len() as u64 > self.segment_bytes_max && segment.end > HEADER_BYTES as u64 {
            self.rotate(backend)?;
        }
        let sequence = self.next_sequence;
        let (number, segment) = self.segments.iter_mut().next_back().expect("a journal has a segment");
        write_frame(batch, segment.salt, sequence);
        backend.write(*number, segment.end, batch)?;
        if !broken(Mutant::SyncSkipped) {
            backend.sync(*number)?;
        }
        segment.end += batch.len() as u64;
        self.next_sequence += 1;
        Ok(())
    }

    /// Begins a new segment; what is pending goes there.
    pub(crate) fn rotate<M: StorageBackend>(&mut self, backend: &mut M) -> Result<SegmentNumber, StoreError> {
        assert!(self.is_replayed(), "a journal is replayed to its end before it is written");
        let number = self.current().next();
        self.create(backend, number)?;
        Ok(number)
    }

    fn create<M: StorageBackend>(&mut self, backend: &mut M, number: SegmentNumber) -> Result<(), StoreError> {
        let segment = Segment { first_sequence: self.next_sequence, salt: backend.salt()?, end: HEADER_BYTES as u64 };
        let header = encode_header(&segment, number, backend.owner());
        backend.create(number, &header, self.segment_bytes_max)?;
        self.segments.insert(number, segment);
        Ok(())
    }

    /// Gives up the segments up to `through`, but never the one being written.
    pub(crate) fn release<M: StorageBackend>(&mut self, backend: &mut M, through: SegmentNumber) -> Result<(), StoreError> {
        assert!(self.is_replayed(), "nothing is released before it was replayed");
        let current = self.current();
        while let Some(entry) = self.segments.first_entry().filter(|entry| *entry.key() <= through && *entry.key() < current) {
            let (number, _) = entry.remove_entry();
            backend.remove(number)?;
        }
        Ok(())
    }

    /// The segment being written.
    pub(crate) fn current(&self) -> SegmentNumber {
        *self.segments.last_key_value().expect("a journal has a segment").0
    }

    /// The segments and how many bytes of each are in use.
    pub(crate) fn segments(&self) -> impl Iterator<Item = (SegmentNumber, u64)> + '_ {
        self.segments.iter().map(|(number, segment)| (*number, segment.end))
    }
}

fn encode_header(segment: &Segment, number: SegmentNumber, owner: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEADER_BYTES);
    out.extend_from_slice(MAGIC);
    JOURNAL_FORMAT.encode(&mut out);
    number.0.encode(&mut out);
    segment.first_sequence.encode(&mut out);
    segment.salt.encode(&mut out);
    u32::try_from(owner.len()).expect("an owner's name is short").encode(&mut out);
    out.extend_from_slice(owner.as_bytes());
    out.resize(HEADER_BYTES - 8, 0);
    xxh3_64(&out).encode(&mut out);
    out
}

fn decode_header(bytes: &[u8], number: SegmentNumber, location: &str, owner: &str) -> Result<Segment, StoreError> {
    let location = format!("{location}/{}", number.file_name());
    let corrupt = |reason: &str| StoreError::Corrupt { location: location.clone(), offset: 0, reason: reason.to_owned() };
    if bytes.len() < HEADER_BYTES || !bytes.starts_with(MAGIC) {
        return Err(corrupt("it does not begin as a segment of a journal"));
    }
    let mut rest = &bytes[MAGIC.len()..];
    let format = rest.get_u32_le();
    if format > JOURNAL_FORMAT {
        return Err(StoreError::NewerFormat { location, found: format, known: JOURNAL_FORMAT });
    }
    let checksum = (&bytes[HEADER_BYTES - 8..]).get_u64_le();
    if format != JOURNAL_FORMAT || xxh3_64(&bytes[..HEADER_BYTES - 8]) != checksum {
        return Err(corrupt("its header's checksum does not match"));
    }
    if rest.get_u64_le() != number.0 {
        return Err(corrupt("its header bears another segment's number"));
    }
    let (first_sequence, salt) = (rest.get_u64_le(), rest.get_u64_le());
    let owner_bytes = rest.get_u32_le() as usize;
    let found = String::from_utf8_lossy(rest.get(..owner_bytes).unwrap_or_default());
    if found != owner {
        return Err(StoreError::Foreign { location, found: found.into_owned(), expected: owner.to_owned() });
    }
    Ok(Segment { first_sequence, salt, end: HEADER_BYTES as u64 })
}

/// Fills in the frame of a batch, whose body is there already.
fn write_frame(batch: &mut [u8], salt: u64, sequence: u64) {
    let (frame, body) = batch.split_at_mut(FRAME_BYTES);
    let length = u32::try_from(body.len()).expect("the largest batch is below u32::MAX");
    frame[0..4].copy_from_slice(&length.to_le_bytes());
    frame[4..12].copy_from_slice(&sequence.to_le_bytes());
    frame[12..20].copy_from_slice(&xxh3_64_with_seed(body, salt).to_le_bytes());
    let checksum = xxh3_64_with_seed(&frame[..20], salt);
    frame[20..28].copy_from_slice(&checksum.to_le_bytes());
}

struct Frame {
    length: usize,
    sequence: u64,
    checksum: u64,
}

/// The frame at `offset`, if its own checksum holds.
fn read_frame(bytes: &[u8], offset: usize, salt: u64) -> Option<Frame> {
    let bytes = bytes.get(offset..)?.get(..FRAME_BYTES)?;
    let mut rest = bytes;
    let frame = Frame { length: rest.get_u32_le() as usize, sequence: rest.get_u64_le(), checksum: rest.get_u64_le() };
    (rest.get_u64_le() == xxh3_64_with_seed(&bytes[..20], salt)).then_some(frame)
}

/// The batch at `offset`, which must be number `sequence`, and where it ends; or why there is none.
fn read_batch(bytes: &Bytes, offset: usize, salt: u64, sequence: u64) -> Result<(Vec<Bytes>, usize), String> {
    let frame = read_frame(bytes, offset, salt).ok_or_else(|| format!("no batch {sequence} begins there"))?;
    if frame.sequence != sequence {
        return Err(format!("batch {} stands where batch {sequence} should", frame.sequence));
    }
    let start = offset + FRAME_BYTES;
    let end = start.checked_add(frame.length).filter(|end| *end <= bytes.len());
    let end = end.ok_or_else(|| format!("batch {sequence} is cut off"))?;
    let mut body = bytes.slice(start..end);
    if xxh3_64_with_seed(&body, salt) != frame.checksum {
        return Err(format!("the checksum of batch {sequence} does not match"));
    }
    let mut records = Vec::new();
    while !body.is_empty() {
        let length = body.try_get_u32_le().map_or(usize::MAX, |length| length as usize);
        if length > body.len() {
            return Err(format!("batch {sequence} was written wrongly: a record ends outside it"));
        }
        records.push(body.split_to(length));
    }
    Ok((records, end))
}

/// Where, behind `offset`, a frame of a later batch begins: a sign that the batch at `offset` is not torn but
/// damaged. Only frames are checked, whose size is fixed, so this takes time linear in the segment.
fn find_later_frame(bytes: &[u8], offset: usize, salt: u64, sequence: u64) -> Option<usize> {
    // So many batches could follow at most; nearly all other bytes are passed over by this alone.
    let sequence_max = sequence.saturating_add((bytes.len() / FRAME_BYTES) as u64);
    (offset + 1..bytes.len().saturating_sub(FRAME_BYTES - 1)).find(|later| {
        let found = (&bytes[later + 4..]).get_u64_le();
        found > sequence && found <= sequence_max && read_frame(bytes, *later, salt).is_some()
    })
}
