//! Checkpoints on the disk: their pages as rows of the store's base table.
//!
//! What was executed since the last durable checkpoint is in the multicast's journal, and executed again after a crash. So the disk
//! must have the pages of *one* checkpoint, but the store writes rows in any order, and a crash may leave some of them. Therefore
//! each page has two places. A checkpoint writes the pages that have changed into the places that the durable checkpoint does not
//! need; once all of them are durable, the journal's owner notes its head, and only then may the next one overwrite the others. After a
//! crash the newest of the two counts that is not newer than that head:
//!
//! ```text
//!   page     place 0        place 1
//!   7        batch 100 ◀    batch 200        head: batch 150. What a checkpoint of batch 200 has
//!   8        batch 150 ◀    batch 100        left when it was cut off is overwritten by the next.
//! ```
//!
//! That is right for any checkpoint to come: a page that was changed between two batches is among the pages of the first checkpoint
//! after them, as execution is deterministic.

use std::collections::BTreeMap;

use bytes::Bytes;
use mutants::{Mutant, broken};
use store::{PageLimits, StorageBackend, Store, StoreError, Version};
use types::limits::VALUE_BYTES_MAX;
use types::{Direction, Key, Timestamp, Value};

use crate::limits::ENCODED_PAGE_BYTES_MAX;
use crate::pages::{PageNumber, index};
use crate::state_transfer::{Checkpoint, Head};

/// Each part of a page begins with the batch it was written for and with the length of the whole page.
const PART_HEAD_BYTES: usize = 12;
const PART_BYTES_MAX: usize = VALUE_BYTES_MAX - PART_HEAD_BYTES;
const PARTS_MAX: usize = ENCODED_PAGE_BYTES_MAX.div_ceil(PART_BYTES_MAX);
/// How far apart the store's timestamps of two checkpoints lie: further than what the store keeps together.
const STEP: u64 = 1 << 27;
/// How much one step of reading back takes.
const READ_LIMITS: PageLimits = PageLimits { keys: 4_096, bytes: 8 << 20 };

/// Writes checkpoints to the disk, one after the other. Nothing else is in the store's base table.
#[derive(Debug, Default)]
pub struct Keeper {
    /// Of each page, which place the durable checkpoint has it in.
    places: Vec<u8>,
    /// What is to be written next: of each page the last state.
    waiting: Option<(Head, BTreeMap<PageNumber, Bytes>)>,
    running: Option<(Head, Vec<PageNumber>)>,
}

impl Keeper {
    /// Takes a checkpoint, to be written when the one before has been.
    pub fn keep(&mut self, checkpoint: &Checkpoint) {
        let (head, pages) = self.waiting.get_or_insert_with(|| (checkpoint.head, BTreeMap::new()));
        *head = checkpoint.head;
        pages.extend(checkpoint.pages.iter().cloned());
    }

    /// Goes on writing. Gives the head of a checkpoint that is on the disk now. The caller appends that to its journal at once, before it
    /// calls this again; from then on, the journal up to that checkpoint's batch can be released.
    ///
    /// # Errors
    /// When the store fails.
    pub fn step<B: StorageBackend>(&mut self, store: &mut Store<B>) -> Result<Option<Head>, StoreError> {
        if self.running.is_some() {
            if store.checkpoint_finished()?.is_none() {
                return Ok(None);
            }
            // More than it took in one go is left.
            if store.memtable_bytes() > 0 {
                store.begin_checkpoint(next(store))?;
                return Ok(None);
            }
            let (head, pages) = self.running.take().expect("checked above");
            for number in pages {
                self.places[index(number)] ^= 1;
            }
            return Ok(Some(head));
        }
        if let Some((head, pages)) = self.waiting.take() {
            let timestamp = next(store);
            for (number, bytes) in &pages {
                self.write(store, timestamp, head.sequence, *number, bytes);
            }
            store.begin_checkpoint(timestamp)?;
            self.running = Some((head, pages.into_keys().collect()));
        }
        Ok(None)
    }

    fn write<B: StorageBackend>(&mut self, store: &mut Store<B>, timestamp: Timestamp, sequence: u64, number: PageNumber, bytes: &Bytes) {
        if self.places.len() <= index(number) {
            self.places.resize(index(number) + 1, 0);
        }
        let place = if broken(Mutant::DurablePageOverwritten) { 0 } else { self.places[index(number)] ^ 1 };
        let length = u32::try_from(bytes.len()).expect("ENCODED_PAGE_BYTES_MAX fits in u32");
        // An empty page has one part, too.
        for part in 0..bytes.len().div_ceil(PART_BYTES_MAX).max(1) {
            let low = part * PART_BYTES_MAX;
            let mut value = Vec::with_capacity(PART_HEAD_BYTES + bytes.len().min(PART_BYTES_MAX));
            value.extend_from_slice(&sequence.to_le_bytes());
            value.extend_from_slice(&length.to_le_bytes());
            value.extend_from_slice(&bytes[low..bytes.len().min(low + PART_BYTES_MAX)]);
            let value = Value::new(value).expect("a part is no longer than a value");
            store.commit(&row_key(number, place, part), Version { timestamp, value: Some(value) });
        }
    }

    /// Reads back the checkpoint whose head was the last that the journal had; and goes on from there. The journal has been replayed.
    /// Gives all pages by number, or nothing where some is missing: then the state must come from other replicas.
    ///
    /// # Errors
    /// When the store fails.
    pub fn recover<B: StorageBackend>(store: &Store<B>, head: &Head) -> Result<Option<(Self, Vec<Bytes>)>, StoreError> {
        let mut best: BTreeMap<PageNumber, (u64, u8, Vec<Bytes>)> = BTreeMap::new();
        let mut from = Some(Key::default());
        while let Some(low) = from {
            let page = store.page(
                (&low, None),
                Direction::Ascending,
                store.watermark().max(Timestamp::above_all_before(u64::MAX)),
                READ_LIMITS,
            )?;
            from = page.next;
            for (key, version) in page.versions {
                let Some(part) = version.value.as_ref().and_then(|value| Part::of(&key, value)) else { continue };
                if part.sequence > head.sequence || index(part.number) >= head.pages as usize {
                    continue;
                }
                let (sequence, place, parts) = best.entry(part.number).or_insert((part.sequence, part.place, Vec::new()));
                if part.place != *place && part.sequence > *sequence {
                    (*sequence, *place) = (part.sequence, part.place);
                    parts.clear();
                }
                // Later parts of a longer page that was there before bear an older batch.
                if (part.sequence, part.place, part.part) == (*sequence, *place, parts.len()) {
                    parts.push(part.bytes);
                }
            }
        }
        let mut keeper = Self::default();
        let mut pages = Vec::new();
        for number in 0..head.pages {
            let Some((_, place, parts)) = best.remove(&PageNumber(number)) else { return Ok(None) };
            let length = parts.first().map_or(0, |first| u32::from_le_bytes([first[8], first[9], first[10], first[11]]) as usize);
            let bytes: Vec<u8> = parts.iter().flat_map(|part| &part[PART_HEAD_BYTES..]).copied().collect();
            if bytes.len() != length {
                return Ok(None);
            }
            keeper.places.push(place);
            pages.push(bytes.into());
        }
        Ok(Some((keeper, pages)))
    }
}

/// A timestamp for the next checkpoint. It orders rows in the store and means nothing else.
fn next<B: StorageBackend>(store: &Store<B>) -> Timestamp {
    Timestamp::above_all_before((store.watermark().time / STEP + 1) * STEP)
}

/// A part of a page, as the base table has it.
struct Part {
    number: PageNumber,
    place: u8,
    part: usize,
    sequence: u64,
    bytes: Bytes,
}

impl Part {
    fn of(key: &Key, value: &Value) -> Option<Self> {
        let [a, b, c, d, place, part] = *key.as_bytes() else { return None };
        let bytes = value.to_shared();
        let sequence = u64::from_le_bytes(*bytes.first_chunk()?);
        let is_part = bytes.len() >= PART_HEAD_BYTES && usize::from(part) < PARTS_MAX;
        let number = PageNumber(u32::from_be_bytes([a, b, c, d]));
        is_part.then_some(Self { number, place, part: usize::from(part), sequence, bytes })
    }
}

fn row_key(number: PageNumber, place: u8, part: usize) -> Key {
    let [a, b, c, d] = number.0.to_be_bytes();
    let part = u8::try_from(part).expect("PARTS_MAX fits in u8");
    Key::new(vec![a, b, c, d, place, part]).expect("it is short")
}
