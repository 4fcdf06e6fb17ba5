//! What a server has on its disk: the order's log, and snapshots, as `zookeeper`'s `member_storage.rs` keeps them in files.
//!
//! Here both are records of one journal, so that what the world does to journals is done to snapshots too: they are torn, lost when they were not
//! synced, and damaged. A snapshot counts once it is whole, and a wrong one is passed over for the one before it.

use std::collections::BTreeMap;

use ::sentinel::order::{JournalOp, Options, Output, Replica, Zxid};
use ::sentinel::{Profile, State};
use bytes::Bytes;
use machine::Time;
use store::{Memory, SegmentNumber, Store, StoreError};

/// What a record is.
const ORDER: u8 = 1;
const PIECE: u8 = 2;
const LAST_PIECE: u8 = 3;
/// The state was damaged on purpose: for whoever watches.
const DAMAGED: u8 = 4;
const PIECE_BYTES_MAX: usize = 16 << 10;
/// The entry that a snapshot was taken after, and the segment that goes on from there.
const NAME_BYTES: usize = 16;

/// Which snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Name {
    zxid: Zxid,
    segment: u64,
}

/// What is to be written before what a turn said leaves.
#[derive(Debug)]
enum Write {
    Order(JournalOp),
    Snapshot(Name, Bytes),
    Damaged,
}

/// A server's disk.
pub struct Disk {
    store: Store<Memory>,
    waiting: Vec<Write>,
    /// The part of the log that was begun last, and the entry that it begins after.
    part: Name,
    snapshots: Vec<Name>,
    kept: usize,
    records_since: u64,
}

/// A server as it comes back.
pub struct Opened {
    pub disk: Disk,
    pub replica: Replica,
    pub state: State,
    pub applied: Zxid,
    pub output: Output,
    /// Whether its state was ever damaged on purpose.
    pub is_damaged: bool,
}

/// Which server it is.
#[derive(Clone, Copy, Debug)]
pub struct ServerIdentity {
    pub me: u16,
    pub voters: u16,
    pub options: Options,
    pub kept: usize,
    pub seed: u64,
}

impl Disk {
    /// Opens, or begins, what is on a disk.
    pub fn open(medium: &Memory, options: store::Options, identity: ServerIdentity, now: Time) -> Result<Opened, String> {
        let text = |error: StoreError| error.to_string();
        let mut store = Store::open(medium.clone(), options).map_err(text)?;
        let (mut records, mut pieces, mut whole) = (Vec::new(), BTreeMap::<Name, Vec<u8>>::new(), BTreeMap::<Name, Bytes>::new());
        let mut is_damaged = false;
        while let Some(batch) = store.replay().map_err(text)? {
            for record in batch.records {
                match record.first().copied() {
                    Some(ORDER) => records.push(record.slice(1..)),
                    Some(kind @ (PIECE | LAST_PIECE)) => {
                        let name = Name::read(&record);
                        pieces.entry(name).or_default().extend_from_slice(&record[1 + NAME_BYTES..]);
                        if kind == LAST_PIECE {
                            whole.insert(name, pieces.remove(&name).unwrap_or_default().into());
                        }
                    }
                    Some(DAMAGED) => is_damaged = true,
                    _ => return Err("a record is of no known kind".to_owned()),
                }
            }
        }
        // A snapshot that a crash cut short may be written again under the same name.
        let read = |(name, bytes): (&Name, &Bytes)| Some((*name, State::read_snapshot(bytes, identity.seed).ok()?));
        let (applied, state) = match whole.iter().rev().find_map(read) {
            Some((name, state)) => (name.zxid, state),
            None => (Zxid::default(), State::new(Profile::Sha256Wide, identity.seed)),
        };
        let mut replica = Replica::new(identity.me, identity.voters, identity.options, applied).map_err(|error| error.to_string())?;
        for record in records {
            replica.replay(record).map_err(|error| error.to_string())?;
        }
        let mut output = Output::default();
        replica.begin(now, identity.seed, &mut output).map_err(|error| error.to_string())?;
        let part = Name { zxid: Zxid::default(), segment: store.current_segment().0 };
        let snapshots = whole.into_keys().collect();
        let disk = Self { store, waiting: Vec::new(), part, snapshots, kept: identity.kept, records_since: 0 };
        Ok(Opened { disk, replica, state, applied, output, is_damaged })
    }

    /// Has something written that the order says.
    pub fn write(&mut self, op: JournalOp) {
        self.waiting.push(Write::Order(op));
    }

    /// Has a snapshot written that was made beside the turns, from the state after `zxid`.
    pub fn write_snapshot(&mut self, (zxid, segment): (Zxid, u64), bytes: Bytes) {
        self.waiting.push(Write::Snapshot(Name { zxid, segment }, bytes));
    }

    /// Notes that the state was damaged on purpose.
    pub fn note_damage(&mut self) {
        self.waiting.push(Write::Damaged);
    }

    /// Whether there is something that is not durable.
    pub fn is_pending(&self) -> bool {
        !self.waiting.is_empty() || self.store.is_pending()
    }

    /// How many records the log has grown by since its last part began.
    pub fn records_since(&self) -> u64 {
        self.records_since
    }

    /// The part that was begun last: the entry that it begins after, and its number.
    pub fn part(&self) -> (Zxid, u64) {
        (self.part.zxid, self.part.segment)
    }

    /// Makes everything durable that is to be written.
    pub fn persist(&mut self) -> Result<(), StoreError> {
        for write in std::mem::take(&mut self.waiting) {
            match write {
                Write::Order(JournalOp::Append(record)) => {
                    self.store.append(&[&[ORDER], record.as_slice()].concat());
                    self.records_since += 1;
                }
                Write::Order(JournalOp::Rotate(zxid)) => {
                    self.store.sync()?;
                    self.part = Name { zxid, segment: self.store.rotate()?.0 };
                    self.records_since = 0;
                }
                Write::Order(JournalOp::Snapshot { zxid, bytes }) => {
                    assert_eq!(self.part.zxid, zxid, "the log goes on after the snapshot");
                    self.keep(self.part, &bytes)?;
                }
                Write::Snapshot(name, bytes) => self.keep(name, &bytes)?,
                Write::Damaged => self.store.append(&[DAMAGED]),
            }
        }
        self.store.sync()
    }

    /// Writes a snapshot, and removes what is old.
    fn keep(&mut self, name: Name, bytes: &Bytes) -> Result<(), StoreError> {
        self.store.sync()?;
        let mut rest = bytes.clone();
        loop {
            let piece = rest.split_to(rest.len().min(PIECE_BYTES_MAX));
            let kind = if rest.is_empty() { LAST_PIECE } else { PIECE };
            self.store.append(&[&[kind], name.zxid.0.to_be_bytes().as_slice(), &name.segment.to_be_bytes(), &piece].concat());
            if rest.is_empty() {
                break;
            }
        }
        self.store.sync()?;
        self.snapshots.push(name);
        self.snapshots.sort_unstable();
        let old = self.snapshots.len().saturating_sub(self.kept);
        self.snapshots.drain(..old);
        let oldest = self.snapshots.first().map_or(1, |name| name.segment);
        self.store.release(SegmentNumber(oldest.saturating_sub(1)))
    }

    /// Stops in good order.
    pub fn close(&mut self) -> Result<(), StoreError> {
        self.persist()?;
        self.store.close()
    }
}

impl Name {
    fn read(record: &Bytes) -> Self {
        let number = |at: usize| u64::from_be_bytes(*record[at..].first_chunk().expect("records of snapshots begin with a name"));
        Self { zxid: Zxid(number(1)), segment: number(9) }
    }
}
