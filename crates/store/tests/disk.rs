//! The directory: whose it is, who uses it, what it says when something is wrong, and that it keeps what it should.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use store::{Disk, DiskOptions, Options, SegmentNumber, Store, StoreError, Version};
use tempfile::TempDir;
use types::{ClientId, Key, Timestamp, Value};
use xxhash_rust::xxh3::xxh3_64;

const OWNER: &str = "cluster 07 replica s0-r3";

fn at(time: u64) -> Timestamp {
    Timestamp::new(time, ClientId(1))
}

fn version(time: u64, value: &str) -> Version {
    Version { timestamp: at(time), value: Some(Value::from(value)) }
}

/// An empty store.
fn new_directory() -> TempDir {
    let directory = tempfile::tempdir().expect("a temporary directory");
    Disk::create(directory.path(), OWNER).expect("the directory is empty");
    directory
}

fn try_open(directory: &Path, owner: &str) -> Result<(Store<Disk>, Vec<String>), StoreError> {
    let disk = Disk::open(directory, owner, DiskOptions::default())?;
    let mut store = Store::open(disk, Options { segment_bytes_max: 20_000, ..Options::default() })?;
    let mut records = Vec::new();
    while let Some(batch) = store.replay()? {
        records.extend(batch.records.iter().map(|record| String::from_utf8_lossy(record).into_owned()));
    }
    Ok((store, records))
}

fn open(directory: &Path) -> (Store<Disk>, Vec<String>) {
    try_open(directory, OWNER).expect("the directory is whole")
}

fn refusal(directory: &Path, owner: &str) -> String {
    try_open(directory, owner).err().expect("it should be refused").to_string()
}

/// A directory with three batches in its journal.
fn three_batches() -> TempDir {
    let directory = new_directory();
    let (mut store, records) = open(directory.path());
    assert!(records.is_empty());
    for record in ["one", "two", "three"] {
        store.append(record.as_bytes());
        store.sync().expect("the disk is whole");
    }
    directory
}

/// How many bytes of its only segment the journal uses.
fn end_of_journal(directory: &Path) -> usize {
    usize::try_from(open(directory).0.journal_bytes()).expect("a short journal")
}

fn remove(path: &Path) {
    if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }.expect("it is there");
}

/// All files below a directory, with what they hold.
fn files(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(directory).expect("readable") {
        let path = entry.expect("readable").path();
        if path.is_dir() {
            found.append(&mut files(&path));
        } else {
            found.insert(path.clone(), fs::read(&path).expect("readable"));
        }
    }
    found
}

fn checkpoint(store: &mut Store<Disk>, watermark: Timestamp) {
    assert!(store.begin_checkpoint(watermark).expect("the disk is whole"));
    while store.checkpoint_finished().expect("the disk is whole").is_none() {
        std::thread::yield_now();
    }
}

#[test]
fn records_and_checkpointed_versions_are_there_after_reopening() {
    let directory = three_batches();
    let (mut store, records) = open(directory.path());
    assert_eq!(records, ["one", "two", "three"]);
    let (a, b, empty) = (Key::from("a"), Key::from("b"), Key::from(""));
    store.commit(&a, version(10, "old"));
    store.commit(&a, version(20, "new"));
    store.commit(&b, Version { timestamp: at(15), value: None });
    store.commit(&empty, version(16, "even the empty key"));
    store.commit(&a, version(30, "not checkpointed"));
    checkpoint(&mut store, at(25));
    assert_eq!(store.latest_before(&a, at(99)).expect("readable"), Some(version(30, "not checkpointed")));
    drop(store);

    let (mut store, _) = open(directory.path());
    assert_eq!(store.watermark(), at(25));
    assert_eq!(store.latest_before(&a, at(99)).expect("readable"), Some(version(20, "new")));
    assert_eq!(store.latest_before(&b, at(99)).expect("readable"), Some(Version { timestamp: at(15), value: None }));
    assert_eq!(store.latest_timestamp_before(&empty, at(99)).expect("readable"), Some(at(16)));
    assert_eq!(store.latest_before(&Key::from("c"), at(99)).expect("readable"), None);
    let error = store.latest_before(&a, at(15)).expect_err("what was before is forgotten");
    assert!(matches!(error, StoreError::BelowWatermark { .. }) && !error.is_final(), "{error}");
    // A version that comes late and is older than the row stays unseen; a newer one is seen.
    store.commit(&a, version(12, "late"));
    assert_eq!(store.latest_before(&a, at(99)).expect("readable"), Some(version(20, "new")));
    store.commit(&a, version(24, "late too"));
    assert_eq!(store.latest_before(&a, at(99)).expect("readable"), Some(version(24, "late too")));
    checkpoint(&mut store, at(26));
    assert_eq!(store.statistics().memtable_versions, 0);
    assert_eq!(store.latest_before(&a, at(99)).expect("readable"), Some(version(24, "late too")));
}

#[test]
fn later_checkpoints_win_after_any_number_of_reopenings() {
    let directory = new_directory();
    let key = Key::from("k");
    for round in 1..=12 {
        let (mut store, _) = open(directory.path());
        store.commit(&key, version(round * 10, &format!("round {round}")));
        checkpoint(&mut store, at(round * 10));
        drop(store);
        let (mut store, _) = open(directory.path());
        let found = store.latest_before(&key, at(9_999)).expect("readable");
        assert_eq!(found, Some(version(round * 10, &format!("round {round}"))));
    }
}

#[test]
fn a_journal_torn_at_any_byte_of_its_last_batch_comes_back_without_it() {
    let directory = three_batches();
    let segment = directory.path().join("journal/00000001.log");
    let whole = fs::read(&segment).expect("the first segment");
    let end = end_of_journal(directory.path());
    for cut in end - (28 + 4 + "three".len())..end {
        // What lies behind the cut may be missing, or never have been written over.
        fs::write(&segment, &whole[..cut]).expect("writable");
        assert_eq!(open(directory.path()).1, ["one", "two"], "ends at byte {cut}");
        let mut torn = whole.clone();
        torn[cut..].fill(0xa5);
        fs::write(&segment, torn).expect("writable");
        assert_eq!(open(directory.path()).1, ["one", "two"], "torn at byte {cut}");
    }
    fs::write(&segment, &whole).expect("writable");
    assert_eq!(open(directory.path()).1, ["one", "two", "three"]);
}

#[test]
fn a_flipped_bit_in_an_older_segment_is_named_with_what_to_do() {
    let directory = three_batches();
    let end = end_of_journal(directory.path());
    let (mut store, _) = open(directory.path());
    store.rotate().expect("the disk is whole");
    drop(store);
    let segment = directory.path().join("journal/00000001.log");
    let mut bytes = fs::read(&segment).expect("the first segment");
    bytes[end - 1] ^= 1;
    fs::write(&segment, bytes).expect("writable");
    let text = refusal(directory.path(), OWNER);
    assert!(text.contains("journal/00000001.log is damaged at byte"), "{text}");
    assert!(text.contains("leave this replica stopped"), "{text}");
}

#[test]
fn a_flipped_bit_in_a_run_of_the_base_is_named_and_never_read_as_data() {
    let directory = new_directory();
    let keys: Vec<Key> = (0..200).map(|number| Key::from(format!("key {number}").as_str())).collect();
    let of = |number: u64| version(number + 1, &format!("a value that is not short, and is the value of key {number}"));
    let (mut store, _) = open(directory.path());
    for (number, key) in (0..).zip(&keys) {
        store.commit(key, of(number));
    }
    checkpoint(&mut store, at(1_000));
    drop(store);
    let run = directory.path().join("base/00000001.run");
    let whole = fs::read(&run).expect("the checkpoint made one run");
    assert!(whole.len() > 200 * 20, "{} bytes are too few for all rows", whole.len());
    let mut noticed = 0;
    for at_byte in (0..whole.len()).step_by(whole.len() / 60) {
        let mut bytes = whole.clone();
        bytes[at_byte] ^= 1 << (at_byte % 8);
        fs::write(&run, bytes).expect("writable");
        let read = || {
            let (mut store, _) = try_open(directory.path(), OWNER)?;
            keys.iter().map(|key| store.latest_before(key, at(9_999))).collect::<Result<Vec<_>, _>>()
        };
        match read() {
            Ok(versions) => {
                assert!((0..).zip(versions).all(|(number, found)| found == Some(of(number))), "byte {at_byte} was read as data")
            }
            Err(error) => {
                assert!(
                    matches!(error, StoreError::RowsDamaged { .. }) && error.to_string().contains("base/00000001.run is damaged"),
                    "byte {at_byte}: {error}"
                );
                noticed += 1;
            }
        }
    }
    assert!(noticed >= 60, "of 60 flipped bits {noticed} were noticed");
}

/// A directory whose base table is one run of two hundred rows, each of its own key.
fn one_run() -> (TempDir, Vec<Key>) {
    let directory = new_directory();
    let keys: Vec<Key> = (0..200).map(|number| Key::from(format!("key {number:03}").as_str())).collect();
    let (mut store, _) = open(directory.path());
    for (number, key) in (1..).zip(&keys) {
        store.commit(key, version(number, "a value that is not short, so that the rows take some blocks of four kilobytes each"));
    }
    checkpoint(&mut store, at(1_000));
    (directory, keys)
}

fn flip(file: &Path, at_byte: impl FnOnce(usize) -> usize) {
    let mut bytes = fs::read(file).expect("it is there");
    let at_byte = at_byte(bytes.len());
    bytes[at_byte] ^= 1;
    fs::write(file, bytes).expect("writable");
}

/// The store of somebody who makes up for rows that cannot be read.
fn open_giving_up(directory: &Path) -> Store<Disk> {
    let disk = Disk::open(directory, OWNER, DiskOptions { gives_up_rows: true, ..DiskOptions::default() }).expect("it is opened");
    let mut store = Store::open(disk, Options::default()).expect("the journal is whole");
    while store.replay().expect("the journal is whole").is_some() {}
    store
}

/// Of which keys it has a version.
fn held(store: &mut Store<Disk>, keys: &[Key]) -> Vec<bool> {
    keys.iter().map(|key| store.latest_before(key, at(9_999)).expect("what is left is whole").is_some()).collect()
}

fn files_of_base(directory: &Path) -> Vec<String> {
    let names = fs::read_dir(directory.join("base")).expect("it is there").map(|file| file.expect("it is there").file_name());
    let mut names: Vec<String> = names.map(|name| name.into_string().expect("plain names")).collect();
    names.sort();
    names
}

#[test]
fn rows_that_cannot_be_read_are_given_up_for_who_makes_up_for_them() {
    let (directory, keys) = one_run();
    flip(&directory.path().join("base/00000001.run"), |_| 50);
    // Nobody has come to it yet, and so nobody knows.
    assert!(!open_giving_up(directory.path()).has_lost_rows());
    for _ in 0..2 {
        let (mut store, _) = open(directory.path());
        let error = store.latest_before(&keys[0], at(9_999)).expect_err("the row is damaged");
        assert!(matches!(error, StoreError::RowsDamaged { .. }), "{error}");
        assert!(Disk::has_damaged_rows(directory.path()).expect("readable"));
    }
    let mut store = open_giving_up(directory.path());
    let left = held(&mut store, &keys);
    let lost = left.iter().position(|is_held| *is_held).expect("one block is lost, of some");
    assert!(store.has_lost_rows() && lost > 0 && left[lost..].iter().all(|is_held| *is_held), "{left:?}");
    drop(store);
    assert_eq!(files_of_base(directory.path()), ["00000001.given-up", "00000002.run", "rows-lost", "runs"]);
    // It stays so until somebody has made up for it, whoever opens it.
    let (store, _) = open(directory.path());
    assert!(store.has_lost_rows() && !Disk::has_damaged_rows(directory.path()).expect("readable"));
    drop(store);
    let mut store = open_giving_up(directory.path());
    store.append(b"taken over");
    store.forget_lost_rows().expect("the disk is whole");
    assert!(!store.has_lost_rows());
    drop(store);
    let (mut store, records) = open(directory.path());
    assert!(!store.has_lost_rows() && records == ["taken over"] && held(&mut store, &keys) == left);
    assert_eq!(files_of_base(directory.path()), ["00000002.run", "runs"]);
}

#[test]
fn a_run_that_cannot_be_opened_is_given_up_likewise() {
    // The last byte of its footer; its format, which is no newer one for that; its filter, and its index.
    let places: [fn(usize) -> usize; 4] = [|length| length - 1, |length| length - 59, |length| length - 200, |length| length - 1_100];
    for place in places {
        let (directory, keys) = one_run();
        flip(&directory.path().join("base/00000001.run"), place);
        let error = try_open(directory.path(), OWNER).err().expect("it cannot be opened");
        assert!(matches!(error, StoreError::RowsDamaged { .. }), "{error}");
        let mut store = open_giving_up(directory.path());
        assert!(store.has_lost_rows() && !held(&mut store, &keys).contains(&true));
    }
}

#[test]
fn an_older_row_comes_to_light_where_a_newer_one_was_given_up() {
    let (directory, keys) = one_run();
    let (mut store, _) = open(directory.path());
    store.commit(&keys[0], version(2_000, "newer"));
    checkpoint(&mut store, at(3_000));
    drop(store);
    flip(&directory.path().join("base/00000002.run"), |_| 9);
    let (mut store, _) = open(directory.path());
    store.latest_before(&keys[0], at(9_999)).expect_err("the row is damaged");
    drop(store);
    let mut store = open_giving_up(directory.path());
    let older = store.latest_before(&keys[0], at(9_999)).expect("the older run is whole").expect("it has the key");
    assert!(store.has_lost_rows() && older.timestamp == at(1));
}

#[test]
fn what_can_be_read_after_all_is_not_given_up() {
    let (directory, keys) = one_run();
    let run = directory.path().join("base/00000001.run");
    let whole = fs::read(&run).expect("it is there");
    flip(&run, |_| 50);
    let (mut store, _) = open(directory.path());
    store.latest_before(&keys[0], at(9_999)).expect_err("the row is damaged");
    drop(store);
    // It was a cable.
    fs::write(&run, whole).expect("writable");
    let mut store = open_giving_up(directory.path());
    assert!(!store.has_lost_rows() && !held(&mut store, &keys).contains(&false));
    assert_eq!(files_of_base(directory.path()), ["00000001.run", "runs"]);
}

#[test]
fn who_dies_while_it_gives_up_rows_has_lost_them_for_whoever_comes_next() {
    let (directory, keys) = one_run();
    flip(&directory.path().join("base/00000001.run"), |_| 50);
    let (mut store, _) = open(directory.path());
    store.latest_before(&keys[0], at(9_999)).expect_err("the row is damaged");
    drop(store);
    // It has said so, and nothing was given up yet.
    fs::write(directory.path().join("base/rows-lost"), []).expect("writable");
    let (mut store, _) = open(directory.path());
    assert!(store.has_lost_rows() && held(&mut store, &keys).contains(&true));
    drop(store);
    // It has done all, and nobody took note.
    assert!(open(directory.path()).0.has_lost_rows());
}

#[test]
fn released_segments_are_recycled_and_their_old_batches_are_not_replayed() {
    let directory = new_directory();
    let (mut store, _) = open(directory.path());
    for _ in 0..6 {
        for _ in 0..4 {
            store.append(b"record");
            store.sync().expect("the disk is whole");
        }
        let current = store.rotate().expect("the disk is whole");
        store.release(SegmentNumber(current.0 - 1)).expect("the disk is whole");
    }
    store.append(b"last");
    store.sync().expect("the disk is whole");
    drop(store);
    let files = fs::read_dir(directory.path().join("journal")).expect("readable").count();
    assert!(files <= 1 + DiskOptions::default().spare_segments_max, "{files} files");
    assert_eq!(open(directory.path()).1, ["last"]);
}

#[test]
fn the_oldest_segments_are_missed_as_any_are() {
    let directory = new_directory();
    let (mut store, _) = open(directory.path());
    for number in 1..=4 {
        store.append(format!("batch {number}").as_bytes());
        store.sync().expect("the disk is whole");
        store.rotate().expect("the disk is whole");
    }
    store.release(SegmentNumber(2)).expect("the disk is whole");
    drop(store);
    assert_eq!(open(directory.path()).1, ["batch 3", "batch 4"]);
    let segment = |number: u64| directory.path().join(format!("journal/{number:08}.log"));
    fs::remove_file(segment(3)).expect("removable");
    let text = refusal(directory.path(), OWNER);
    assert!(text.contains("journal/00000003.log") && text.contains("missing"), "{text}");
}

#[test]
fn another_replicas_directory_is_refused_by_name() {
    let directory = three_batches();
    let text = refusal(directory.path(), "cluster 07 replica s0-r4");
    assert!(text.contains("belongs to \"cluster 07 replica s0-r3\", not to \"cluster 07 replica s0-r4\""), "{text}");
}

#[test]
fn a_store_is_unused_until_it_was_opened_to_the_end() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    Disk::create(directory.path(), OWNER).expect("it is empty");
    drop(Disk::open(directory.path(), OWNER, DiskOptions::default()).expect("made"));
    assert!(Disk::is_unused(directory.path(), OWNER).expect("it is there"), "only its directory was opened");
    open(directory.path());
    assert!(!Disk::is_unused(directory.path(), OWNER).expect("it is there"));
    Disk::is_unused(directory.path(), "cluster 07 replica s0-r4").expect_err("it is another's");
    Disk::is_unused(&directory.path().join("nowhere"), OWNER).expect_err("nothing is there");
}

#[test]
fn another_format_is_refused_with_both_formats() {
    let directory = three_batches();
    let path = directory.path().join("identity.toml");
    let text = fs::read_to_string(&path).expect("text").replace("format = 3", "format = 7");
    fs::write(&path, text).expect("writable");
    let text = refusal(directory.path(), OWNER);
    assert!(text.contains("has format 7, and this program knows formats up to 3"), "{text}");
    // The first format had neither a state nor a checksum.
    fs::write(&path, format!("# Whose data this directory holds.\nformat = 1\nowner = \"{OWNER}\"\n")).expect("writable");
    let text = refusal(directory.path(), OWNER);
    assert!(text.contains("has format 1, and this program knows format 3 only; run the older program"), "{text}");
}

#[test]
fn opening_a_locked_directory_names_the_process_that_holds_it() {
    let directory = three_batches();
    let (store, _) = open(directory.path());
    let text = refusal(directory.path(), OWNER);
    assert!(text.contains(&format!("in use by process {} ({OWNER})", std::process::id())), "{text}");
    drop(store);
    open(directory.path());
}

#[test]
fn a_missing_part_of_the_directory_is_an_error() {
    for part in ["journal/00000001.log", "journal", "base", "watermark", "identity.toml"] {
        let directory = three_batches();
        remove(&directory.path().join(part));
        let text = refusal(directory.path(), OWNER);
        assert!(text.contains("missing") && text.contains("leave this replica stopped"), "{part}: {text}");
        assert!(text.contains("never an older copy nor the empty one that `bezant init` made"), "{part}: {text}");
    }
    // The directory itself, or all that is in it, as when its disk is not mounted; and a base that is there and empty.
    let directory = three_batches();
    assert!(refusal(&directory.path().join("nowhere"), OWNER).contains("missing"));
    assert!(!directory.path().join("nowhere").exists(), "nothing is made by opening");
    let empty = tempfile::tempdir().expect("a temporary directory");
    assert!(refusal(empty.path(), OWNER).contains("identity.toml is missing"));
    fs::remove_dir_all(directory.path().join("base")).expect("removable");
    fs::create_dir(directory.path().join("base")).expect("made");
    for _ in 0..2 {
        let text = refusal(directory.path(), OWNER);
        assert!(text.contains("base/runs is missing"), "{text}");
    }
}

#[test]
fn a_crash_during_the_first_start_is_no_loss() {
    // What was not there yet, from the first that is made to the last.
    let absents: [&[&str]; 4] = [&["base", "watermark", "journal"], &["base", "watermark"], &["base"], &["base/runs"]];
    for absent in absents {
        let directory = new_directory();
        drop(Disk::open(directory.path(), OWNER, DiskOptions::default()).expect("it is empty"));
        for part in absent {
            remove(&directory.path().join(part));
        }
        fs::write(directory.path().join("watermark.next"), "torn").expect("writable");
        let (mut store, records) = open(directory.path());
        assert!(records.is_empty(), "{absent:?}");
        store.append(b"one");
        store.sync().expect("the disk is whole");
        drop(store);
        assert_eq!(open(directory.path()).1, ["one"], "{absent:?}");
    }
}

#[test]
fn a_base_that_lacks_a_part_is_left_as_it_is() {
    for part in ["base/runs", "base/00000001.run", "base"] {
        let directory = new_directory();
        let (mut store, _) = open(directory.path());
        store.commit(&Key::from("k"), version(1, "v"));
        checkpoint(&mut store, at(10));
        drop(store);
        let (lost, elsewhere) = (directory.path().join(part), tempfile::tempdir().expect("a temporary directory"));
        fs::rename(&lost, elsewhere.path().join("part")).expect("it is there");
        let before = files(directory.path());
        for _ in 0..2 {
            let text = refusal(directory.path(), OWNER);
            assert!(text.contains(part) && text.contains("is missing"), "{part}: {text}");
            assert!(files(directory.path()) == before, "{part}: the refusal changed what is left");
        }
        fs::rename(elsewhere.path().join("part"), &lost).expect("nothing was put in its place");
        let (mut store, _) = open(directory.path());
        assert_eq!(store.latest_before(&Key::from("k"), at(99)).expect("readable"), Some(version(1, "v")), "{part}");
    }
}

#[test]
fn a_damaged_list_of_runs_is_noticed() {
    let directory = new_directory();
    let (mut store, _) = open(directory.path());
    store.commit(&Key::from("k"), version(1, "v"));
    checkpoint(&mut store, at(10));
    drop(store);
    let path = directory.path().join("base/runs");
    let whole = fs::read(&path).expect("the list");
    for at_byte in 0..whole.len() {
        let mut bytes = whole.clone();
        bytes[at_byte] ^= 1 << (at_byte % 8);
        fs::write(&path, &bytes).expect("writable");
        let text = refusal(directory.path(), OWNER);
        assert!(text.contains("base/runs is damaged"), "byte {at_byte}: {text}");
        fs::write(&path, &whole[..at_byte]).expect("writable");
        let text = refusal(directory.path(), OWNER);
        assert!(text.contains("base/runs is damaged"), "{at_byte} bytes: {text}");
    }
    // One of a newer format is whole.
    let mut newer = 9_u32.to_le_bytes().to_vec();
    newer.extend(xxh3_64(&newer).to_le_bytes());
    fs::write(&path, &newer).expect("writable");
    let text = refusal(directory.path(), OWNER);
    assert!(text.contains("has format 9"), "{text}");
    fs::write(&path, &whole).expect("writable");
    assert!(open(directory.path()).0.latest_before(&Key::from("k"), at(99)).expect("readable").is_some());
}

#[test]
fn what_a_crash_left_of_a_checkpoint_or_a_merge_is_removed_and_nothing_else() {
    let directory = new_directory();
    let (mut store, _) = open(directory.path());
    store.commit(&Key::from("k"), version(1, "v"));
    checkpoint(&mut store, at(10));
    drop(store);
    let before = files(directory.path());
    // A run that was being written, and one that was merged into another and not yet removed.
    let whole = fs::read(directory.path().join("base/00000001.run")).expect("a run");
    fs::write(directory.path().join("base/00000002.run"), &whole[..whole.len() / 2]).expect("writable");
    fs::write(directory.path().join("base/00000007.run"), &whole).expect("writable");
    let (mut store, _) = open(directory.path());
    assert_eq!(store.latest_before(&Key::from("k"), at(99)).expect("readable"), Some(version(1, "v")));
    let left = files(directory.path());
    assert!(
        before
            .keys()
            .filter(|path| path.extension().is_some_and(|end| end == "run"))
            .eq(left.keys().filter(|path| path.extension().is_some_and(|end| end == "run")))
    );
    // And the number of the first is given out again.
    store.commit(&Key::from("l"), version(11, "w"));
    checkpoint(&mut store, at(20));
    drop(store);
    let (mut store, _) = open(directory.path());
    assert_eq!(store.latest_before(&Key::from("l"), at(99)).expect("readable"), Some(version(11, "w")));
}

#[test]
fn a_store_is_made_once_and_only_where_nothing_is() {
    let directory = three_batches();
    let text = Disk::create(directory.path(), OWNER).expect_err("it holds a store").to_string();
    assert!(text.contains("it is not empty"), "{text}");
    assert_eq!(open(directory.path()).1, ["one", "two", "three"]);
}

#[test]
fn a_damaged_identity_is_damage_and_not_another_replicas() {
    let directory = three_batches();
    let path = directory.path().join("identity.toml");
    let whole = fs::read(&path).expect("there is one");
    for at_byte in 0..whole.len() {
        let mut bytes = whole.clone();
        bytes[at_byte] ^= 1 << (at_byte % 7);
        fs::write(&path, &bytes).expect("writable");
        let text = refusal(directory.path(), OWNER);
        assert!(text.contains("identity.toml is damaged") || text.contains("has format"), "byte {at_byte}: {text}");
    }
}

#[test]
fn after_a_graceful_stop_a_flipped_bit_in_the_last_batch_is_no_torn_write() {
    let flip = |directory: &Path, end: usize| {
        let segment = directory.join("journal/00000001.log");
        let mut bytes = fs::read(&segment).expect("the segment");
        bytes[end - 1] ^= 1;
        fs::write(&segment, bytes).expect("writable");
    };
    // A crash may have torn it.
    let directory = three_batches();
    flip(directory.path(), end_of_journal(directory.path()));
    assert_eq!(open(directory.path()).1, ["one", "two"]);

    let directory = three_batches();
    let end = end_of_journal(directory.path());
    let (mut store, _) = open(directory.path());
    store.close().expect("the disk is whole");
    drop(store);
    flip(directory.path(), end);
    for _ in 0..2 {
        let text = refusal(directory.path(), OWNER);
        assert!(text.contains("batch 3 is not there, and 3 were when this replica last stopped"), "{text}");
    }
    // Put right again, it opens; and what is written from then on may be torn again.
    flip(directory.path(), end);
    let (mut store, records) = open(directory.path());
    assert_eq!(records, ["one", "two", "three"]);
    store.append(b"four");
    store.sync().expect("the disk is whole");
    drop(store);
    flip(directory.path(), end_of_journal(directory.path()));
    assert_eq!(open(directory.path()).1, ["one", "two", "three"]);
}

#[test]
fn a_damaged_watermark_is_noticed() {
    let directory = three_batches();
    let path = directory.path().join("watermark");
    let whole = fs::read(&path).expect("the watermark");
    for at_byte in 0..whole.len() {
        let mut bytes = whole.clone();
        bytes[at_byte] ^= 1 << (at_byte % 8);
        fs::write(&path, bytes).expect("writable");
        let text = refusal(directory.path(), OWNER);
        assert!(text.contains("watermark is damaged"), "byte {at_byte}: {text}");
    }
}
