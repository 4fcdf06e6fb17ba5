//! What a transaction brings to the pool.

use basil::Buffer;
use engine::Operation;
use machine::Time;
use types::{Key, Value};

/// A transaction that wants to be part of a batch.
#[derive(Clone, Debug)]
pub enum Work {
    /// All its operations are known, and none has run.
    Declared(Vec<Operation>),
    /// It ran on its own, and has only to commit.
    Interactive(Buffer),
}

impl Work {
    /// Whether it neither reads nor writes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        match self {
            Self::Declared(operations) => operations.is_empty(),
            Self::Interactive(buffer) => buffer.is_empty(),
        }
    }

    /// Every key it reads, as often as it does.
    pub(crate) fn reads(&self) -> impl Iterator<Item = &Key> {
        let (operations, buffer) = self.parts();
        let declared = operations.iter().filter_map(|operation| match operation {
            Operation::Get(key) => Some(key),
            Operation::Put(..) | Operation::Delete(_) | Operation::Compare(..) => None,
        });
        declared.chain(buffer.into_iter().flat_map(|buffer| buffer.read_set().map(|found| &found.key)))
    }

    /// Every key it writes, as often as it does.
    pub(crate) fn writes(&self) -> impl Iterator<Item = &Key> {
        let (operations, buffer) = self.parts();
        let declared = operations.iter().filter_map(|operation| operation.write().map(|(key, _)| key));
        declared.chain(buffer.into_iter().flat_map(|buffer| buffer.write_set().map(|(key, _)| key)))
    }

    pub(crate) fn footprint(&self) -> Footprint {
        let (operations, buffer) = self.parts();
        let mut sum = Footprint::default();
        for operation in operations {
            match operation.write() {
                None => sum.read(operation.key()),
                Some((key, value)) => sum.write(key, value),
            }
        }
        for found in buffer.into_iter().flat_map(Buffer::read_set) {
            sum.read(&found.key);
        }
        for (key, value) in buffer.into_iter().flat_map(Buffer::write_set) {
            sum.write(key, value.as_ref());
        }
        sum
    }

    fn parts(&self) -> (&[Operation], Option<&Buffer>) {
        match self {
            Self::Declared(operations) => (operations, None),
            Self::Interactive(buffer) => (&[], Some(buffer)),
        }
    }
}

/// What one read adds to a transaction's encoding at most, its key aside: lengths, a version, a dependency.
const READ_BYTES: usize = 64;
/// What one write adds, its key and value aside.
const WRITE_BYTES: usize = 16;

/// How much of a batch's bounds a transaction takes: never less than it really does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Footprint {
    pub reads: usize,
    pub writes: usize,
    pub bytes: usize,
}

impl Footprint {
    fn read(&mut self, key: &Key) {
        self.reads += 1;
        self.bytes += READ_BYTES + key.as_bytes().len();
    }

    fn write(&mut self, key: &Key, value: Option<&Value>) {
        self.writes += 1;
        self.bytes += WRITE_BYTES + key.as_bytes().len() + value.map_or(0, |value| value.as_bytes().len());
    }

    /// Both together.
    pub fn plus(self, other: Self) -> Self {
        Self { reads: self.reads + other.reads, writes: self.writes + other.writes, bytes: self.bytes + other.bytes }
    }
}

/// A transaction in the pool.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    /// Its owner's number for it.
    pub ticket: u64,
    pub work: Work,
    /// When it came.
    pub since: Time,
    /// How many batches it was part of.
    pub attempts: u32,
    /// Nobody waits for it any more.
    pub is_withdrawn: bool,
}
