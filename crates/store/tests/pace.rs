//! A disk that is too slow for what is written: writing gets slower, and memory stays bounded.

use std::time::{Duration, Instant};

use bytes::Bytes;
use store::{BaseTable, Checkpoint, Disk, DiskOptions, Options, PaceOptions, SegmentNumber, StorageBackend, Store, StoreError, Version};
use types::{ClientId, Key, Timestamp, Value};

const OWNER: &str = "cluster 07 replica s0-r3";
const FREE_BYTES: usize = 2 << 20;
const FULL_BYTES: usize = 8 << 20;
/// What each checkpoint takes at least on a slow disk.
const CHECKPOINT: Duration = Duration::from_millis(40);

/// A disk whose checkpoints end late.
struct SlowDisk {
    disk: Disk,
    checkpoint_ends: Option<Instant>,
}

impl StorageBackend for SlowDisk {
    fn owner(&self) -> &str {
        self.disk.owner()
    }

    fn location(&self) -> String {
        self.disk.location()
    }

    fn salt(&mut self) -> Result<u64, StoreError> {
        self.disk.salt()
    }

    fn segments(&mut self) -> Result<Vec<SegmentNumber>, StoreError> {
        self.disk.segments()
    }

    fn read(&mut self, segment: SegmentNumber, offset: u64, length: usize) -> Result<Vec<u8>, StoreError> {
        self.disk.read(segment, offset, length)
    }

    fn create(&mut self, segment: SegmentNumber, header: &[u8], bytes_max: u64) -> Result<(), StoreError> {
        self.disk.create(segment, header, bytes_max)
    }

    fn opened(&mut self) -> Result<(), StoreError> {
        self.disk.opened()
    }

    fn write(&mut self, segment: SegmentNumber, offset: u64, bytes: &[u8]) -> Result<(), StoreError> {
        self.disk.write(segment, offset, bytes)
    }

    /// Not to the disk: how long that takes has no part in this.
    fn sync(&mut self, _segment: SegmentNumber) -> Result<(), StoreError> {
        Ok(())
    }

    fn remove(&mut self, segment: SegmentNumber) -> Result<(), StoreError> {
        self.disk.remove(segment)
    }

    fn get(&mut self, key: &Key) -> Result<Option<Bytes>, StoreError> {
        self.disk.get(key)
    }

    fn base_table(&self) -> Box<dyn BaseTable> {
        self.disk.base_table()
    }

    fn watermark(&mut self) -> Result<Option<Timestamp>, StoreError> {
        self.disk.watermark()
    }

    fn begin_checkpoint(&mut self, checkpoint: Checkpoint) -> Result<(), StoreError> {
        self.checkpoint_ends = Some(Instant::now() + CHECKPOINT);
        self.disk.begin_checkpoint(checkpoint)
    }

    fn checkpoint_done(&mut self) -> Result<bool, StoreError> {
        if self.checkpoint_ends.is_some_and(|ends| Instant::now() < ends) {
            return Ok(false);
        }
        self.disk.checkpoint_done()
    }

    fn pace(&mut self, added: usize, overdue: usize) -> Duration {
        self.disk.pace(added, overdue)
    }
}

#[test]
fn on_a_slow_disk_writing_slows_down_and_what_waits_in_memory_is_bounded() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    Disk::create(directory.path(), OWNER).expect("the directory is empty");
    let pace = PaceOptions { free_bytes: FREE_BYTES, full_bytes: FULL_BYTES };
    let disk = Disk::open(directory.path(), OWNER, DiskOptions { pace, ..DiskOptions::default() }).expect("it is new");
    // Checkpoints of half a megabyte, counted as memory, and so some 14 MB a second, or half of that on a busy machine.
    let options = Options { checkpoint_versions_max: 500, cache_bytes_max: 1 << 20, ..Options::default() };
    let mut store = Store::open(SlowDisk { disk, checkpoint_ends: None }, options).expect("it is new");
    assert!(store.replay().expect("it is new").is_none());
    let value = Value::new(vec![7; 1_000]).expect("it is short");
    let (began, mut number, mut most, mut longest) = (Instant::now(), 0_u64, 0, Duration::ZERO);
    let mut in_thirds = [0_u64; 3];
    while let Some(third) = in_thirds.get_mut((began.elapsed().as_millis() / 500) as usize) {
        // Half a millisecond of time for each: a stretch of time as the log has it holds a hundred, and everything older is overdue.
        for _ in 0..100 {
            number += 1;
            let version = Version { timestamp: Timestamp::new(number * 500_000, ClientId(1)), value: Some(value.clone()) };
            store.append(&[1; 100]);
            store.commit(&Key::from(format!("{:08}", number % 10_000).as_str()), version);
        }
        *third += 100;
        let due = Timestamp::new(number * 500_000, ClientId(0));
        store.expect_checkpointed(due);
        let syncing = Instant::now();
        store.sync().expect("the disk is whole");
        longest = longest.max(syncing.elapsed());
        if !store.is_checkpointing() {
            store.begin_checkpoint(due).expect("the disk is whole");
        }
        store.checkpoint_finished().expect("the disk is whole");
        most = most.max(store.statistics().overdue_bytes);
    }
    // Below the debt at which half as much comes as leaves, and what one turn may add.
    assert!(most < FULL_BYTES + (1 << 20), "{most} bytes were overdue");
    assert!(store.statistics().paced_us > 0);
    // Never a stop: each sync waits for a bounded time, and writing goes on at the pace of the disk.
    assert!(longest < Duration::from_secs(1), "a sync took {longest:?}");
    assert!(in_thirds[2] > 0 && in_thirds[2] < in_thirds[0], "{in_thirds:?}");
}
