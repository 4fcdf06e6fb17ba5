//! What it takes to read ranges of keys from a disk, most of which are deleted.

use std::fs;

use store::{Disk, DiskOptions, Options, PageLimits, Store, Version};
use tempfile::TempDir;
use types::{ClientId, Direction, Key, KeyRange, Timestamp, Value};

const OWNER: &str = "cluster 07 replica s0-r3";
/// As many as never become one run.
const RUNS: usize = 15;
const BLOCK_BYTES: usize = 4 << 10;
const ALL: PageLimits = PageLimits { keys: 1 << 20, bytes: 1 << 30 };

fn at(time: u64) -> Timestamp {
    Timestamp::new(time, ClientId(1))
}

fn key(number: usize) -> Key {
    Key::from(format!("{number:08}").as_str())
}

/// A store whose keys lie in many runs, scattered, and have a value where `is_live`.
fn scattered(keys: usize, is_live: impl Fn(usize) -> bool) -> (TempDir, Store<Disk>) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    Disk::create(directory.path(), OWNER).expect("the directory is empty");
    let disk = Disk::open(directory.path(), OWNER, DiskOptions::default()).expect("it is whole");
    let mut store = Store::open(disk, Options::default()).expect("it is whole");
    while store.replay().expect("the disk is whole").is_some() {}
    for run in 0..RUNS {
        let timestamp = at(run as u64 + 1);
        for number in (run..keys).step_by(RUNS) {
            store.commit(&key(number), Version { timestamp, value: is_live(number).then(|| Value::from("v")) });
        }
        assert!(store.begin_checkpoint(timestamp).expect("the disk is whole"));
        while store.checkpoint_finished().expect("the disk is whole").is_none() {
            std::thread::yield_now();
        }
    }
    (directory, store)
}

/// What this gives, and how many bytes it has read from files.
fn reading<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let read = || {
        let text = fs::read_to_string("/proc/thread-self/io").ok()?;
        text.lines().find_map(|line| line.strip_prefix("rchar: ")?.parse::<usize>().ok())
    };
    let before = read();
    let given = work();
    // Where the system does not tell, nothing seems to be read.
    (given, read().zip(before).map_or(0, |(after, before)| after - before))
}

#[test]
fn short_stretches_of_deleted_keys_are_passed_over_for_no_more_than_all_keys_take() {
    let (live, beside) = (512, 16);
    let keys = live * (1 + beside);
    let (_directory, mut store) = scattered(keys, |number| number % (1 + beside) == 0);
    let range = KeyRange::new(key(0), key(keys)).expect("it has keys");
    for direction in [Direction::Ascending, Direction::Descending] {
        let (all, all_bytes) = reading(|| store.page((range.low(), Some(range.high())), direction, at(99), ALL).expect("readable"));
        assert_eq!(all.looked_at, keys);
        for is_known in [false, true] {
            let (page, read) = reading(|| store.page_of_values(&range, direction, (at(99), at(99)), ALL).expect("readable"));
            assert!(all.versions.iter().filter(|(_, version)| version.value.is_some()).eq(&page.versions));
            assert!(read <= 2 * all_bytes, "{read} bytes were read, and {all_bytes} for all keys");
            assert!(page.looked_at <= 2 * live + 1 || (direction == Direction::Ascending && !is_known), "{}", page.looked_at);
        }
    }
}

#[test]
fn of_long_stretches_of_deleted_keys_next_to_nothing_is_read() {
    let (live, beside) = (4, 20_000);
    let keys = live * (1 + beside);
    let (_directory, mut store) = scattered(keys, |number| number % (1 + beside) == 0);
    let range = KeyRange::new(key(0), key(keys)).expect("it has keys");
    for direction in [Direction::Ascending, Direction::Descending] {
        store.page_of_values(&range, direction, (at(99), at(99)), ALL).expect("readable");
        let (page, read) = reading(|| store.page_of_values(&range, direction, (at(99), at(99)), ALL).expect("readable"));
        assert_eq!((page.versions.len(), page.looked_at), (live, 2 * live));
        // Of each run two blocks where each stretch ends.
        let few = RUNS * 2 * (live + 1) * (BLOCK_BYTES + 100);
        assert!(read.max(page.read_bytes) <= few, "{read} bytes were read, {} are told of", page.read_bytes);
        assert!(page.read_bytes >= read / 2, "{read} bytes were read, {} are told of", page.read_bytes);
    }
}
