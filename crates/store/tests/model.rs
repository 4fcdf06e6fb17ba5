//! Random commits, syncs, checkpoints, journal releases, reads and crashes, against a model that keeps everything in one map.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;

use bytes::Bytes;
use proptest::prelude::*;
use store::{Crash, Disk, DiskOptions, Memory, Options, PageLimits, SegmentNumber, StorageBackend, Store, Version};
use tempfile::TempDir;
use types::codec::{Decode, Encode, Reader};
use types::{ClientId, ClusterId, Direction, Key, KeyRange, Timestamp, Value};

const OWNER: &str = "cluster 07 replica s0-r3";

#[derive(Clone, Debug)]
enum Step {
    Commit {
        key: u8,
        time: u64,
        value: Option<u16>,
    },
    Sync,
    Read {
        key: u8,
        before: u64,
    },
    Pages {
        up_to: u64,
        keys: usize,
    },
    /// Of keys from one to another.
    Values {
        between: (u8, u8),
        is_reverse: bool,
        times: [u64; 2],
        keys: usize,
    },
    Checkpoint {
        watermark: u64,
    },
    FinishCheckpoint,
    ReleaseJournal,
    Crash {
        torn: Option<usize>,
        checkpoint_rows_kept: usize,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let commit = (0..8_u8, 1..200_u64, proptest::option::weighted(0.8, 0..2_000_u16));
    prop_oneof![
        12 => commit.prop_map(|(key, time, value)| Step::Commit { key, time, value }),
        4 => Just(Step::Sync),
        12 => (0..8_u8, 1..220_u64).prop_map(|(key, before)| Step::Read { key, before }),
        4 => (1..220_u64, 1..5_usize).prop_map(|(up_to, keys)| Step::Pages { up_to, keys }),
        6 => ((0..8_u8, 1..9_u8), any::<bool>(), [1..220_u64, 1..220_u64], 1..5_usize)
            .prop_map(|(between, is_reverse, times, keys)| Step::Values { between, is_reverse, times, keys }),
        3 => (1..200_u64).prop_map(|watermark| Step::Checkpoint { watermark }),
        3 => Just(Step::FinishCheckpoint),
        1 => Just(Step::ReleaseJournal),
        2 => (proptest::option::of(0..400_usize), 0..4_usize).prop_map(|(torn, checkpoint_rows_kept)| Step::Crash { torn, checkpoint_rows_kept }),
    ]
}

/// Something that outlives the process.
trait World {
    type StorageBackend: StorageBackend;
    fn backend(&self) -> Self::StorageBackend;
    /// Ends the process, perhaps in the middle of a sync.
    fn crash(&self, store: Store<Self::StorageBackend>, torn: Option<usize>, checkpoint_rows_kept: usize);
}

impl World for Memory {
    type StorageBackend = Memory;

    fn backend(&self) -> Memory {
        self.clone()
    }

    fn crash(&self, mut store: Store<Memory>, torn: Option<usize>, checkpoint_rows_kept: usize) {
        if torn.is_some() && store.is_pending() {
            self.fail_next_sync();
            store.sync().expect_err("the sync was made to fail");
        }
        drop(store);
        self.crash(Crash { journal_bytes_kept: torn.unwrap_or(0), checkpoint_rows_kept });
    }
}

impl World for TempDir {
    type StorageBackend = Disk;

    fn backend(&self) -> Disk {
        Disk::open(self.path(), OWNER, DiskOptions::default()).expect("the directory is whole")
    }

    fn crash(&self, store: Store<Disk>, torn: Option<usize>, _: usize) {
        let (segment, end) = store.segments().last().expect("a journal has a segment");
        drop(store);
        let path = self.path().join(format!("journal/{segment}.log"));
        let file = OpenOptions::new().write(true).open(path).expect("the current segment");
        file.write_all_at(&vec![0x5a; torn.unwrap_or(0)], end).expect("writable");
    }
}

type Commit = (Key, Version);

struct Harness<'a, W: World> {
    world: &'a W,
    room: Room,
    store: Option<Store<W::StorageBackend>>,
    /// Everything committed and not lost in a crash.
    versions: BTreeMap<Key, BTreeMap<Timestamp, Option<Value>>>,
    /// What the journal holds durably, and what it would hold after the next sync.
    journal: Vec<(SegmentNumber, Commit)>,
    pending: Vec<Commit>,
    /// What no finished checkpoint has taken, and what the running one takes.
    unflushed: BTreeSet<(Timestamp, Key)>,
    running: BTreeSet<(Timestamp, Key)>,
}

/// Four at a time within one of the stretches by which checkpoints are cut.
fn at(time: u64) -> Timestamp {
    Timestamp::new(time << 24, ClientId(time % 3))
}

fn encode((key, version): &Commit) -> Vec<u8> {
    let mut out = Vec::new();
    key.encode(&mut out);
    version.timestamp.encode(&mut out);
    version.value.encode(&mut out);
    out
}

fn decode(record: Bytes) -> Commit {
    let mut reader = Reader::new(record, ClusterId::new([0; 16]));
    let key = Key::decode(&mut reader).expect("a record as written");
    let timestamp = Timestamp::decode(&mut reader).expect("a record as written");
    (key, Version { timestamp, value: Option::<Value>::decode(&mut reader).expect("a record as written") })
}

impl<'a, W: World> Harness<'a, W> {
    fn new(world: &'a W, room: Room) -> Self {
        let mut harness = Self {
            world,
            room,
            store: None,
            versions: BTreeMap::new(),
            journal: Vec::new(),
            pending: Vec::new(),
            unflushed: BTreeSet::new(),
            running: BTreeSet::new(),
        };
        harness.open();
        harness
    }

    fn store(&mut self) -> &mut Store<W::StorageBackend> {
        self.store.as_mut().expect("a store is open between steps")
    }

    fn open(&mut self) {
        // Small enough that segments fill and checkpoints are cut short.
        let Room { cache_bytes_max, checkpoint_step } = self.room;
        let (checkpoint_versions_max, deleted_keys_min) = (4, 1);
        let options = Options { segment_bytes_max: 2_000, cache_bytes_max, checkpoint_versions_max, checkpoint_step, deleted_keys_min };
        let mut store = Store::open(self.world.backend(), options).expect("the backend works");
        let mut replayed = Vec::new();
        while let Some(batch) = store.replay().expect("the journal is whole") {
            let commits: Vec<Commit> = batch.records.into_iter().map(decode).collect();
            // As the journal is read, as replicas do.
            commits.iter().cloned().for_each(|(key, version)| store.commit(&key, version));
            replayed.extend(commits.into_iter().map(|commit| (batch.segment, commit)));
        }
        // The last batch is back as a whole or not at all.
        let durable = self.journal.len();
        if replayed.len() > durable {
            let last: Vec<Commit> = replayed[durable..].iter().map(|(_, commit)| commit.clone()).collect();
            assert_eq!(last, self.pending);
            self.journal.extend(replayed[durable..].iter().cloned());
        }
        assert_eq!(replayed, self.journal);
        let kept: BTreeSet<(Timestamp, Key)> = self.journal.iter().map(|(_, (key, version))| (version.timestamp, key.clone())).collect();
        for (_, (key, version)) in &self.journal {
            self.versions.entry(key.clone()).or_default().insert(version.timestamp, version.value.clone());
        }
        // What was only pending is lost, unless an earlier commit of the same version is kept.
        for (key, version) in std::mem::take(&mut self.pending) {
            if !kept.contains(&(version.timestamp, key.clone())) && self.unflushed.remove(&(version.timestamp, key.clone())) {
                self.versions.get_mut(&key).expect("it was committed").remove(&version.timestamp);
            }
        }
        self.unflushed.extend(kept);
        self.running.clear();
        self.store = Some(store);
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Commit { key, time, value } => self.commit(key, time, value),
            Step::Sync => self.sync(),
            Step::Read { key, before } => self.read(key, before),
            Step::Pages { up_to, keys } => self.pages(up_to, keys),
            Step::Values { between, is_reverse, times, keys } => self.values(between, is_reverse, times, keys),
            Step::Checkpoint { watermark } => self.begin_checkpoint(watermark),
            Step::FinishCheckpoint => self.poll_checkpoint(),
            Step::ReleaseJournal => self.release_journal(),
            Step::Crash { torn, checkpoint_rows_kept } => {
                let store = self.store.take().expect("a store is open between steps");
                self.world.crash(store, torn, checkpoint_rows_kept);
                self.open();
            }
        }
    }

    fn commit(&mut self, key: u8, time: u64, value: Option<u16>) {
        let key = Key::from(format!("key {key}").as_str());
        let timestamp = at(time);
        // A transaction writes one value: the same timestamp means the same value.
        let known = self.versions.get(&key).and_then(|versions| versions.get(&timestamp)).cloned();
        let fresh = value.map(|length| Value::new(vec![7; usize::from(length) / 10]).expect("a short value"));
        let known_already = known.is_some();
        let commit = (key.clone(), Version { timestamp, value: known.unwrap_or(fresh) });
        self.store().append(&encode(&commit));
        self.store().commit(&key, commit.1.clone());
        if !known_already {
            self.unflushed.insert((timestamp, key.clone()));
        }
        self.versions.entry(key).or_default().insert(timestamp, commit.1.value.clone());
        self.pending.push(commit);
    }

    fn synced(&mut self) {
        let segment = self.store().current_segment();
        let pending = std::mem::take(&mut self.pending);
        self.journal.extend(pending.into_iter().map(|commit| (segment, commit)));
    }

    fn sync(&mut self) {
        self.store().sync().expect("the backend works");
        self.synced();
    }

    fn read(&mut self, key: u8, before: u64) {
        let (key, before) = (Key::from(format!("key {key}").as_str()), at(before));
        if before <= self.store().watermark() {
            return;
        }
        let versions = self.versions.get(&key);
        let newest = versions.and_then(|versions| versions.range(..before).next_back());
        let expected = newest.map(|(timestamp, value)| Version { timestamp: *timestamp, value: value.clone() });
        assert_eq!(
            self.store().latest_timestamp_before(&key, before).expect("readable"),
            expected.as_ref().map(|version| version.timestamp)
        );
        assert_eq!(self.store().latest_before(&key, before).expect("readable"), expected);
    }

    /// Reads everything page by page.
    fn pages(&mut self, up_to: u64, keys: usize) {
        let up_to = at(up_to);
        if up_to < self.store().watermark() {
            self.store()
                .page((&Key::default(), None), Direction::Ascending, up_to, PageLimits { keys, bytes: 1_000 })
                .expect_err("only the newest are known there");
            return;
        }
        let newest = |versions: &BTreeMap<Timestamp, Option<Value>>| {
            let (timestamp, value) = versions.range(..=up_to).next_back()?;
            Some(Version { timestamp: *timestamp, value: value.clone() })
        };
        let expected: Vec<Commit> = self.versions.iter().filter_map(|(key, versions)| Some((key.clone(), newest(versions)?))).collect();
        let (limits, whole) = (PageLimits { keys, bytes: 1_000 }, PageLimits { keys: 100, bytes: 1 << 20 });
        let (mut found, mut next) = (Vec::new(), Some(Key::default()));
        while let Some(from) = next {
            let page = self.store().page((&from, None), Direction::Ascending, up_to, limits).expect("readable");
            assert!(page.versions.len() <= keys && page.next.as_ref().is_none_or(|next| *next > from));
            let again = self.store().page((&from, page.next.as_ref()), Direction::Ascending, up_to, whole).expect("readable");
            assert_eq!(again.versions, page.versions, "before {:?}", page.next);
            found.extend(page.versions);
            next = page.next;
        }
        assert_eq!(found, expected, "up to {up_to}");
        let (mut found, mut below, low) = (Vec::new(), None, Key::default());
        loop {
            let page = self.store().page((&low, below.as_ref()), Direction::Descending, up_to, limits).expect("readable");
            let is_further = |next: &Key| below.as_ref().is_none_or(|below| next < below);
            assert!(page.versions.len() <= keys && page.next.as_ref().is_none_or(is_further));
            let from = page.next.as_ref().unwrap_or(&low);
            let again = self.store().page((from, below.as_ref()), Direction::Ascending, up_to, whole).expect("readable");
            assert!(again.versions.iter().rev().eq(&page.versions), "from {from}");
            found.extend(page.versions);
            let Some(next) = page.next else { break };
            below = Some(next);
        }
        assert!(found.iter().rev().eq(&expected), "down from {up_to}");
    }

    /// Reads what has values page by page, where keys deleted for some time are left out.
    fn values(&mut self, (low, high): (u8, u8), is_reverse: bool, mut times: [u64; 2], keys: usize) {
        let key = |number: u8| Key::from(format!("key {number}").as_str());
        let Some(range) = KeyRange::new(key(low), key(high)) else { return };
        times.sort_unstable();
        let [by, up_to] = times.map(at);
        let up_to = up_to.max(self.store().watermark());
        let direction = if is_reverse { Direction::Descending } else { Direction::Ascending };
        let newest = |(key, versions): (&Key, &BTreeMap<Timestamp, Option<Value>>)| {
            let (timestamp, value) = versions.range(..=up_to).next_back()?;
            (value.is_some() || *timestamp > by).then(|| (key.clone(), Version { timestamp: *timestamp, value: value.clone() }))
        };
        let expected: Vec<Commit> = self.versions.range(range.low()..range.high()).filter_map(newest).collect();
        let (mut found, mut rest) = (Vec::new(), Some(range));
        while let Some(range) = rest {
            let page = self.store().page_of_values(&range, direction, (up_to, by), PageLimits { keys, bytes: 1_000 }).expect("readable");
            // A part of what was remembered is looked into for one key more.
            assert!(page.looked_at <= keys + 1 && page.versions.len() <= page.looked_at);
            found.extend(page.versions);
            rest = page.next.map(|next| direction.left(&range, &next).expect("a page that ends before its range leaves some"));
        }
        let expected: Vec<Commit> = direction.of(expected.into_iter()).collect();
        assert_eq!(found, expected, "up to {up_to}, without what was deleted by {by}");
    }

    fn begin_checkpoint(&mut self, watermark: u64) {
        let before = self.store().watermark();
        if self.store().begin_checkpoint(at(watermark)).expect("the backend works") {
            let reached = self.store().watermark();
            assert!(before <= reached && reached <= at(watermark));
            self.running = self.unflushed.iter().filter(|(timestamp, _)| *timestamp <= reached).cloned().collect();
            self.has_gone_on();
        }
    }

    /// What is pending is durable before the base table has anything of a checkpoint.
    fn has_gone_on(&mut self) {
        if !self.store().is_pending() {
            self.synced();
        }
    }

    fn poll_checkpoint(&mut self) {
        let has_finished = self.store().checkpoint_finished().expect("the backend works").is_some();
        self.has_gone_on();
        if has_finished {
            for checkpointed in std::mem::take(&mut self.running) {
                self.unflushed.remove(&checkpointed);
            }
        }
    }

    fn finish_checkpoint(&mut self) {
        while self.store().is_checkpointing() {
            self.poll_checkpoint();
        }
    }

    /// Writes what no checkpoint has taken into a new segment, and releases the older ones.
    fn release_journal(&mut self) {
        self.finish_checkpoint();
        self.sync();
        let current = self.store().rotate().expect("the backend works");
        for (timestamp, key) in self.unflushed.clone() {
            let value = self.versions[&key][&timestamp].clone();
            let commit = (key, Version { timestamp, value });
            self.store().append(&encode(&commit));
            self.pending.push(commit);
        }
        self.sync();
        self.store().release(SegmentNumber(current.0 - 1)).expect("the backend works");
        self.journal.retain(|(segment, _)| *segment >= current);
    }
}

#[test]
fn what_is_put_in_the_place_of_a_deletion_is_found_where_nothing_was() {
    let mut store = opened(1 << 20);
    // Next to the longest key, behind which none lies but the next shorter one.
    let longest = Key::new(vec![b'k'; types::limits::KEY_BYTES_MAX]).expect("it is no longer");
    let keys: Vec<Key> = (0..40).map(numbered).chain([longest]).collect();
    keys.iter().for_each(|key| store.commit(key, Version { timestamp: at(1), value: None }));
    let range = KeyRange::new(Key::default(), Key::from("l")).expect("it has keys");
    for (put, is_reverse) in [(3, false), (40, true), (40, false), (7, true)] {
        let direction = if is_reverse { Direction::Descending } else { Direction::Ascending };
        let limits = PageLimits { keys: 100, bytes: 1 << 20 };
        let page = |store: &mut Store<Memory>| store.page_of_values(&range, direction, (at(9), at(9)), limits).expect("readable");
        page(&mut store);
        let again = page(&mut store);
        assert!(again.versions.is_empty() && again.looked_at < 5, "{again:?}");
        assert!(store.replace(&keys[put], &version(1)).expect("readable"));
        assert_eq!(page(&mut store).versions, [(keys[put].clone(), version(1))]);
        assert!(store.replace(&keys[put], &Version { timestamp: at(1), value: None }).expect("readable"));
        assert!(page(&mut store).versions.is_empty());
    }
}

#[test]
fn where_keys_were_deleted_and_put_again_nothing_is_left_of_that() {
    let mut store = opened(1 << 20);
    let range = KeyRange::new(Key::default(), Key::from("l")).expect("it has keys");
    let looked_at = |store: &mut Store<Memory>, time| {
        let limits = PageLimits { keys: 100_000, bytes: 1 << 20 };
        let page = store.page_of_values(&range, Direction::Ascending, (at(time), at(time)), limits).expect("readable");
        (page.looked_at, page.versions.len())
    };
    (0..1_000).for_each(|number| store.commit(&numbered(number), Version { timestamp: at(1), value: None }));
    assert_eq!([looked_at(&mut store, 2), looked_at(&mut store, 2)], [(1_000, 0), (1, 0)]);
    (0..1_000).for_each(|number| store.commit(&numbered(number), version(3)));
    assert_eq!(looked_at(&mut store, 2), (2_001, 0), "each part is looked into, at both ends, too");
    assert_eq!(looked_at(&mut store, 4), (1_000, 1_000));
}

#[test]
fn a_newer_version_than_a_reader_may_see_keeps_its_key_from_being_passed_over() {
    let mut store = opened(1 << 20);
    let range = KeyRange::new(Key::default(), Key::from("l")).expect("it has keys");
    (0..100).for_each(|number| store.commit(&numbered(number), Version { timestamp: at(1), value: None }));
    store.commit(&numbered(50), version(3));
    for direction in [Direction::Ascending, Direction::Descending] {
        let limits = PageLimits { keys: 1_000, bytes: 1 << 20 };
        let mut found = |time| store.page_of_values(&range, direction, (at(time), at(time)), limits).expect("readable").versions;
        assert!(found(2).is_empty());
        assert_eq!(found(4), [(numbered(50), version(3))]);
    }
}

fn version(time: u64) -> Version {
    Version { timestamp: at(time), value: Some(Value::from("v")) }
}

fn opened(cache_bytes_max: usize) -> Store<Memory> {
    let mut store = Store::open(Memory::new("s0-r3"), Options { cache_bytes_max, ..Options::default() }).expect("the backend works");
    while store.replay().expect("nothing is there").is_some() {}
    store
}

fn numbered(number: u64) -> Key {
    Key::from(format!("key {number}").as_str())
}

/// While a checkpoint ends piece by piece, a version that was committed late, and is not of that checkpoint, must not stand for the newer one
/// that has just been checkpointed.
#[test]
fn a_late_version_does_not_hide_a_newer_one_that_has_just_been_checkpointed() {
    let (mut store, hot) = (opened(32 << 20), Key::from("hot"));
    store.commit(&hot, version(10));
    (0..3_000).for_each(|number| store.commit(&numbered(number), version(11 + number)));
    assert!(store.begin_checkpoint(at(5_000)).expect("the backend works"));
    store.commit(&hot, version(5));
    loop {
        assert_eq!(store.latest_before(&hot, at(6_000)).expect("readable"), Some(version(10)));
        if store.checkpoint_finished().expect("the backend works").is_some() {
            break;
        }
    }
}

/// While a checkpoint ends piece by piece, the newer of two versions may be forgotten, since the base table has it, before the older one is known
/// to have come late for the last time.
#[test]
fn a_late_version_does_not_hide_a_newer_one_that_was_evicted() {
    let (mut store, hot) = (opened(0), Key::from("a hot key"));
    assert!(store.begin_checkpoint(at(10)).expect("the backend works"));
    assert_eq!(store.checkpoint_finished().expect("the backend works"), Some(at(10)));
    store.commit(&hot, version(6));
    (0..3_000).for_each(|number| store.commit(&numbered(number), version(5)));
    store.commit(&hot, version(12));
    assert!(store.begin_checkpoint(at(20)).expect("the backend works"));
    let mut filled = 0;
    while store.checkpoint_finished().expect("the backend works").is_none() {
        // There is no room for anything: what these bring in pushes out all that the base table has.
        (0..2_000).for_each(|number| store.commit(&numbered(10_000 + filled + number), version(30)));
        filled += 2_000;
    }
    assert!(filled > 2_000, "it ended at once");
    assert_eq!(store.latest_timestamp_before(&hot, at(100)).expect("readable"), Some(at(12)));
    // One that comes late again is older still, and must not take its place in the base table.
    store.commit(&hot, version(8));
    assert!(store.begin_checkpoint(at(25)).expect("the backend works"));
    while store.checkpoint_finished().expect("the backend works").is_none() {}
    assert_eq!(store.latest_timestamp_before(&hot, at(100)).expect("readable"), Some(at(12)));
}

#[test]
fn large_rows_are_cached_among_many_small_ones() {
    let mut store = opened(4 << 20);
    let large = |time| Version { timestamp: at(time), value: Value::new(vec![7; 100_000]) };
    (0..100).for_each(|number| store.commit(&numbered(number), large(1)));
    assert!(store.begin_checkpoint(at(10)).expect("the backend works"));
    while store.checkpoint_finished().expect("the backend works").is_none() {}
    // Keys that have no row are remembered too.
    for number in 1_000..40_000 {
        assert_eq!(store.latest_before(&numbered(number), at(20)).expect("readable"), None);
        assert!(store.statistics().cache_bytes < 14 << 20);
    }
    assert!(store.statistics().cache_bytes < 5 << 20, "{} bytes", store.statistics().cache_bytes);
    for number in 0..100 {
        assert_eq!(store.latest_before(&numbered(number), at(20)).expect("readable"), Some(large(1)));
        assert!(store.statistics().cache_bytes < 5 << 20, "{} bytes", store.statistics().cache_bytes);
    }
}

/// How much of the base table may stay in memory (nothing, some rows, all), and how much of a checkpoint one call does.
#[derive(Clone, Copy, Debug)]
struct Room {
    cache_bytes_max: usize,
    checkpoint_step: usize,
}

fn room() -> impl Strategy<Value = Room> {
    let steps = prop_oneof![Just(1), Just(2), Just(8_192)];
    let room = (prop_oneof![Just(0), Just(1_000), Just(1 << 20)], steps);
    room.prop_map(|(cache_bytes_max, checkpoint_step)| Room { cache_bytes_max, checkpoint_step })
}

fn run<W: World>(world: &W, room: Room, steps: Vec<Step>) {
    let mut harness = Harness::new(world, room);
    for step in steps {
        harness.step(step);
    }
    harness.finish_checkpoint();
    for key in 0..8 {
        harness.read(key, 10_000);
    }
    harness.pages(10_000, 3);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn memory_holds_what_the_model_holds(room in room(), steps in proptest::collection::vec(step(), 1..150)) {
        let memory = Memory::new(OWNER);
        run(&memory, room, steps);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, max_shrink_iters: 64, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn a_disk_holds_what_the_model_holds(room in room(), steps in proptest::collection::vec(step(), 1..80)) {
        let directory = tempfile::tempdir().expect("a temporary directory");
        Disk::create(directory.path(), OWNER).expect("the directory is empty");
        run(&directory, room, steps);
    }
}
