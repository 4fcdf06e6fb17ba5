//! The journal on a disk that gives back other bytes than it was given.
//!
//! A store writes batches on a shelf; the bytes on the shelf are damaged; another store reads them. What it reads must be
//! what was written, from the beginning. It may end early only where nothing of what follows is left whole: then nobody
//! can tell the damage from a write that never happened. Everything else it must notice, but for segments that are gone
//! whole at either end, like released ones and ones never begun.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;
use store::{BaseRows, BaseTable, Checkpoint, Options, Row, SegmentNumber, StorageBackend, Store, StoreError};
use types::{Direction, Key, Timestamp};

use crate::Target;
use crate::choices::Choices;

pub(super) const TARGET: Target = Target {
    name: "journal",
    what: "damages a journal's segments; replay gives back what was written, or says what is wrong",
    bytes_max: 512,
    runs: 10_000,
    run,
    seeds,
};

/// A medium of plain bytes, which whoever holds a copy may change.
#[derive(Clone, Default)]
struct Shelf(Arc<Mutex<BTreeMap<SegmentNumber, Vec<u8>>>>);

impl Shelf {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<SegmentNumber, Vec<u8>>> {
        self.0.lock().expect("nobody panics while holding this lock")
    }
}

impl StorageBackend for Shelf {
    fn owner(&self) -> &str {
        "fuzz"
    }

    fn location(&self) -> String {
        "shelf".to_owned()
    }

    fn salt(&mut self) -> Result<u64, StoreError> {
        let count = self.lock().len() as u64;
        Ok((count + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    fn segments(&mut self) -> Result<Vec<SegmentNumber>, StoreError> {
        Ok(self.lock().keys().copied().collect())
    }

    fn read(&mut self, segment: SegmentNumber, offset: u64, length: usize) -> Result<Vec<u8>, StoreError> {
        let segments = self.lock();
        let bytes = segments.get(&segment).expect("only what was listed is read");
        let start = usize::try_from(offset).map_or(bytes.len(), |offset| offset.min(bytes.len()));
        Ok(bytes[start..start.saturating_add(length).min(bytes.len())].to_vec())
    }

    fn create(&mut self, segment: SegmentNumber, header: &[u8], _bytes_max: u64) -> Result<(), StoreError> {
        self.lock().insert(segment, header.to_vec());
        Ok(())
    }

    fn opened(&mut self) -> Result<(), StoreError> {
        Ok(())
    }

    fn write(&mut self, segment: SegmentNumber, offset: u64, bytes: &[u8]) -> Result<(), StoreError> {
        let mut segments = self.lock();
        let segment = segments.get_mut(&segment).expect("only what was made is written");
        let offset = usize::try_from(offset).expect("segments are small");
        segment.resize(segment.len().max(offset + bytes.len()), 0);
        segment[offset..offset + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn sync(&mut self, _segment: SegmentNumber) -> Result<(), StoreError> {
        Ok(())
    }

    fn remove(&mut self, segment: SegmentNumber) -> Result<(), StoreError> {
        self.lock().remove(&segment);
        Ok(())
    }

    fn get(&mut self, _key: &Key) -> Result<Option<Bytes>, StoreError> {
        Ok(None)
    }

    fn base_table(&self) -> Box<dyn BaseTable> {
        Box::new(NoRows)
    }

    fn watermark(&mut self) -> Result<Option<Timestamp>, StoreError> {
        Ok(None)
    }

    fn begin_checkpoint(&mut self, _checkpoint: Checkpoint) -> Result<(), StoreError> {
        Ok(())
    }

    fn checkpoint_done(&mut self) -> Result<bool, StoreError> {
        Ok(true)
    }
}

/// A base table that has none.
struct NoRows;

impl BaseTable for NoRows {
    fn rows(&self, _direction: Direction) -> Box<dyn BaseRows> {
        Box::new(Self)
    }

    fn get(&self, _key: &Key) -> Result<Option<Bytes>, StoreError> {
        Ok(None)
    }
}

impl BaseRows for NoRows {
    fn seek(&mut self, _begin: Option<&Key>) -> Result<(), StoreError> {
        Ok(())
    }

    fn row(&self) -> Option<Row<'_>> {
        None
    }

    fn advance(&mut self) -> Result<(), StoreError> {
        Ok(())
    }

    fn read_bytes(&self) -> usize {
        0
    }
}

/// A batch that was written, and the bytes it left on the shelf.
struct Written {
    records: Vec<Vec<u8>>,
    segment: SegmentNumber,
    offset: usize,
    bytes: Vec<u8>,
}

impl Written {
    fn is_whole(&self, shelf: &Shelf) -> bool {
        let segments = shelf.lock();
        let Some(bytes) = segments.get(&self.segment) else { return false };
        bytes.get(self.offset..self.offset + self.bytes.len()) == Some(&self.bytes[..])
    }
}

fn options() -> Options {
    Options { segment_bytes_max: 1_024, cache_bytes_max: 4_096, ..Options::default() }
}

fn run(bytes: &[u8]) {
    let mut choices = Choices::new(bytes);
    let shelf = Shelf::default();
    let written = write(&mut choices, &shelf);
    let before = shelf.lock().clone();
    for _ in 0..choices.below(4) {
        damage(&mut choices, &mut shelf.lock(), &written);
    }
    let is_damaged = *shelf.lock() != before;
    // Segments at the beginning may be released, so nobody misses those.
    let oldest = shelf.lock().keys().next().copied();
    let written = &written[written.partition_point(|batch| Some(batch.segment) < oldest)..];
    let found = replay(&shelf);
    let Ok(found) = found else {
        assert!(is_damaged, "what was not damaged can be read: {:?}", found.err());
        return;
    };
    assert!(found.len() <= written.len(), "more was read than was written");
    for (found, written) in found.iter().zip(written) {
        assert_eq!(*found, written.records, "something else was read than was written");
    }
    assert!(is_damaged || found.len() == written.len());
    // Where it ends, nothing that follows is whole.
    let survivor = written[found.len()..].iter().position(|batch| batch.is_whole(&shelf));
    assert_eq!(survivor, None, "a batch is still there behind those lost, and nobody noticed");
}

/// Writes a few batches.
fn write(choices: &mut Choices<'_>, shelf: &Shelf) -> Vec<Written> {
    let mut store = Store::open(shelf.clone(), options()).expect("an empty shelf is in order");
    assert!(store.replay().expect("an empty shelf is in order").is_none());
    let mut written = Vec::new();
    for _ in 0..1 + choices.below(6) {
        if choices.rarely(4) {
            store.rotate().expect("a shelf does not fail");
        }
        let records: Vec<Vec<u8>> = (0..1 + choices.below(3)).map(|_| record(choices)).collect();
        records.iter().for_each(|record| store.append(record));
        let end = |store: &Store<Shelf>| store.segments().last().expect("a journal has a segment");
        let (segment_before, end_before) = end(&store);
        store.sync().expect("a shelf does not fail");
        let (segment, end) = end(&store);
        let offset = usize::try_from(if segment == segment_before { end_before } else { 512 }).expect("segments are small");
        let bytes = shelf.lock()[&segment][offset..usize::try_from(end).expect("segments are small")].to_vec();
        written.push(Written { records, segment, offset, bytes });
    }
    written
}

fn record(choices: &mut Choices<'_>) -> Vec<u8> {
    let length = choices.below(64);
    match choices.below(3) {
        0 => vec![choices.byte(); length],
        1 => choices.take(length).to_vec(),
        // Some are as long as a segment.
        _ => vec![choices.byte(); 16 * length],
    }
}

/// Damages the shelf once.
fn damage(choices: &mut Choices<'_>, segments: &mut BTreeMap<SegmentNumber, Vec<u8>>, written: &[Written]) {
    let numbers: Vec<SegmentNumber> = segments.keys().copied().collect();
    if numbers.is_empty() {
        return;
    }
    let number = choices.one_of(&numbers);
    let other = segments[&choices.one_of(&numbers)].clone();
    let batch = &written[choices.below(written.len())];
    let kind = choices.below(11);
    let bytes = segments.get_mut(&number).expect("it was just listed");
    // Most often near a batch's frame, where it matters.
    let at =
        if choices.rarely(3) { choices.below(bytes.len()) } else { (batch.offset + choices.below(40)).min(bytes.len().saturating_sub(1)) };
    match kind {
        0 => bytes.truncate(at),
        1 => bytes.resize(bytes.len() + choices.below(100), 0),
        2 => bytes.extend_from_slice(&batch.bytes),
        3 => bytes.extend_from_slice(choices.take(40)),
        4 => {
            let end = (at + choices.below(64)).min(bytes.len());
            bytes[at.min(end)..end].fill(0);
        }
        5 => {
            let end = (at + batch.bytes.len()).min(bytes.len());
            bytes[at..end].copy_from_slice(&batch.bytes[..end - at]);
        }
        6 => drop(bytes.drain(at..(at + choices.below(64)).min(bytes.len()))),
        7 => *bytes = other,
        8 => drop(segments.remove(&number)),
        9 => {
            let next = SegmentNumber(numbers.last().expect("there is one").0 + 1);
            segments.insert(next, other);
        }
        _ => {
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= 1 << choices.below(8);
            }
        }
    }
}

/// Everything a new store reads from the shelf.
fn replay(shelf: &Shelf) -> Result<Vec<Vec<Vec<u8>>>, StoreError> {
    let mut store = Store::open(shelf.clone(), options())?;
    let mut found = Vec::new();
    loop {
        match store.replay() {
            Ok(Some(batch)) => found.push(batch.records.iter().map(|record| record.to_vec()).collect()),
            Ok(None) => break,
            Err(error) => {
                assert!(matches!(store.replay(), Err(StoreError::Closed(_))), "after an error the store is closed");
                return Err(error);
            }
        }
    }
    // Whoever reads it can go on writing it.
    store.append(b"one more");
    store.sync()?;
    drop(store);
    let mut store = Store::open(shelf.clone(), options())?;
    let mut count = 0;
    while let Some(batch) = store.replay()? {
        count += 1;
        assert!(count <= found.len() || batch.records == [&b"one more"[..]]);
    }
    assert_eq!(count, found.len() + 1, "what was read, and one more");
    Ok(found)
}

fn seeds() -> Vec<Vec<u8>> {
    let batch: &[u8] = &[0, 1, 5, 0, 7, 9, 1, 1, 2, 3, 4, 5, 6, 7, 8, 9];
    let journal = |batches: usize| [&[4][..], &batch.repeat(batches)].concat();
    let damaged = |damage: &[u8]| [&journal(5)[..], damage].concat();
    vec![
        journal(5),
        damaged(&[1, 0, 0, 1, 10, 0, 7, 3]),
        damaged(&[1, 0, 0, 4, 0, 0, 0]),
        damaged(&[1, 0, 0, 2, 4, 0, 0, 60]),
        [&[5, 3, 0, 9, 2, 3, 1, 8, 2, 4][..], &batch.repeat(4), &[2, 1, 0, 0, 8, 0, 0, 7]].concat(),
    ]
}
