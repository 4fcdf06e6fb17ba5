//! The disk of a server that is damaged on purpose: a log with the checksums of `store`, and snapshots.

use ::sentinel::ensemble::apply_payload;
use ::sentinel::order::{Body, JournalOp, Options, Output, Replica, Zxid};
use ::sentinel::{Corruption, Profile, State};
use bytes::Bytes;
use machine::Time;
use store::{Memory, SegmentNumber, Store};

/// How a server is set up.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    pub me: u16,
    pub profile: Profile,
    pub is_realtime: bool,
    pub options: Options,
}

/// A server as it comes back.
pub struct Opened {
    pub replica: Replica,
    pub state: State,
    pub applied: Zxid,
    pub output: Output,
    /// Whether the newest snapshot was passed over.
    pub passed_over: bool,
}

/// What is on a disk.
pub struct Disk {
    log: Memory,
    store: Option<Store<Memory>>,
    snapshots: Vec<(Zxid, Bytes)>,
    /// It is empty because what was on it was put aside.
    pub gave_up: bool,
    /// A letter of these words is changed in the records that are written from now on, before they have a checksum.
    pub damages: Option<&'static [u8]>,
}

/// What cannot be read.
fn broken(what: String) -> Corruption {
    Corruption { zxid: 0, path: None, what, digests: None }
}

fn place_of(bytes: &[u8], word: &[u8]) -> Option<usize> {
    bytes.windows(word.len()).position(|window| window == word)
}

impl Disk {
    pub fn new(gave_up: bool) -> Self {
        Self { log: Memory::new("a server"), store: None, snapshots: Vec::new(), gave_up, damages: None }
    }

    /// Reads the log and the newest snapshot that is whole, and goes on from there.
    pub fn open(&mut self, setup: Setup, seed: u64, now: Time) -> Result<Opened, Corruption> {
        self.store = None;
        let text = |error: store::StoreError| broken(error.to_string());
        let mut store = Store::open(self.log.clone(), store::Options::default()).map_err(text)?;
        let mut records = Vec::new();
        while let Some(batch) = store.replay().map_err(text)? {
            records.extend(batch.records);
        }
        let whole = self.snapshots.iter().rev().find_map(|(zxid, bytes)| Some((*zxid, State::read_snapshot(bytes, seed).ok()?)));
        let passed_over = whole.as_ref().map(|(zxid, _)| *zxid) != self.snapshots.last().map(|(zxid, _)| *zxid);
        let (applied, state) = whole.unwrap_or_else(|| (Zxid::default(), State::new(setup.profile, seed)));
        let refused = |error: &dyn std::fmt::Display| broken(error.to_string());
        let replica = Replica::new(setup.me, 3, setup.options, applied).map_err(|error| refused(&error))?;
        let mut replica = replica.having_given_up(self.gave_up);
        for record in records {
            replica.replay(record).map_err(|error| refused(&error))?;
        }
        let mut output = Output::default();
        replica.begin(now, seed, &mut output).map_err(|error| refused(&error))?;
        self.store = Some(store);
        Ok(Opened { replica, state: state.with_realtime(setup.is_realtime), applied, output, passed_over })
    }

    /// Makes durable what a turn is to write.
    pub fn write(&mut self, ops: Vec<JournalOp>) {
        let Some(store) = &mut self.store else { return };
        for op in ops {
            match op {
                JournalOp::Append(mut record) => {
                    if let Some(word) = self.damages
                        && let Some(place) = place_of(&record, word)
                    {
                        record[place] ^= 1;
                        self.damages = None;
                    }
                    store.append(&record);
                }
                JournalOp::Rotate(_) => {
                    store.sync().expect("memory does not fail");
                    store.rotate().expect("memory does not fail");
                }
                JournalOp::Snapshot { zxid, bytes } => self.snapshots.push((zxid, bytes)),
            }
        }
        store.sync().expect("memory does not fail");
    }

    pub fn keep_snapshot(&mut self, zxid: Zxid, bytes: Bytes) {
        self.snapshots.push((zxid, bytes));
    }

    /// Flips a bit where the log has this word.
    pub fn flip_in_log(&mut self, word: &[u8]) {
        for number in 1.. {
            let segment = SegmentNumber(number);
            let bytes = self.log.segment_bytes(segment).expect("the word is somewhere in the log");
            if let Some(place) = place_of(&bytes, word) {
                self.log.flip_bit(segment, place, 0);
                return;
            }
        }
    }

    /// Flips a bit where the newest snapshot has this word, and where `is_checked` the snapshot's checksum is made to fit that.
    pub fn flip_in_snapshot(&mut self, word: &[u8], is_checked: bool) {
        let (_, bytes) = self.snapshots.last_mut().expect("one was written");
        let mut damaged = bytes.to_vec();
        let place = place_of(&damaged, word).expect("the snapshot has the word");
        damaged[place] ^= 1;
        if is_checked {
            let end = damaged.len() - 4;
            let checksum = crc32(&damaged[..end]);
            damaged[end..].copy_from_slice(&checksum.to_be_bytes());
        }
        *bytes = damaged.into();
    }

    /// As the audit of stopped servers has it: the state that the disk makes, up to its end.
    pub fn audit(&mut self, setup: Setup) -> Result<State, Corruption> {
        let Opened { replica, mut state, applied, passed_over, .. } = self.open(setup, 1, Time(0))?;
        if passed_over {
            return Err(broken("a snapshot is not whole".to_owned()));
        }
        for entry in replica.entries_after(applied) {
            if let Body::Payload(payload) = &entry.body {
                apply_payload(&mut state, entry.zxid, payload)?;
            }
        }
        Ok(state.with_profile(Profile::Sha256Wide))
    }
}

/// CRC-32, as snapshots end with it.
fn crc32(bytes: &[u8]) -> u32 {
    let step =
        |crc: u32, byte: &u8| (0..8).fold(crc ^ u32::from(*byte), |crc, _| if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 });
    !bytes.iter().fold(u32::MAX, step)
}
