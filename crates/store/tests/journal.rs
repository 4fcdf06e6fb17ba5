//! The journal's promise: what was synced comes back, in order; what was not may be lost; damage is never taken
//! for either. All on the backend in memory, which can be crashed and damaged at every byte.

use bytes::Bytes;
use store::{BATCH_BYTES_MAX, Crash, Memory, Options, SegmentNumber, StorageBackend, Store, StoreError, Version};
use types::{ClientId, Key, Timestamp, Value};

const OWNER: &str = "cluster 07 replica s0-r3";

fn open(backend: &Memory) -> (Store<Memory>, Vec<Vec<Bytes>>) {
    let mut store = Store::open(backend.clone(), Options::default()).expect("the backend works");
    let mut batches = Vec::new();
    while let Some(batch) = store.replay().expect("the journal is whole") {
        batches.push(batch.records);
    }
    (store, batches)
}

fn replay_error(backend: &Memory) -> StoreError {
    let mut store = match Store::open(backend.clone(), Options::default()) {
        Ok(store) => store,
        Err(error) => return error,
    };
    loop {
        match store.replay() {
            Ok(Some(_)) => {}
            Ok(None) => panic!("the damage was not noticed"),
            Err(error) => {
                assert!(matches!(store.replay(), Err(StoreError::Closed(_))), "after an error the store is closed");
                return error;
            }
        }
    }
}

/// A journal of three batches, the second of two records.
fn three_batches() -> Memory {
    let backend = Memory::new(OWNER);
    let (mut store, _) = open(&backend);
    for records in [&["one"][..], &["two", ""], &["three"]] {
        for record in records {
            store.append(record.as_bytes());
        }
        store.sync().expect("the backend works");
    }
    backend
}

#[test]
fn what_was_synced_comes_back_in_order_and_what_was_not_is_lost() {
    let backend = three_batches();
    let (mut store, batches) = open(&backend);
    assert_eq!(batches, [vec![Bytes::from("one")], vec![Bytes::from("two"), Bytes::new()], vec![Bytes::from("three")]]);
    store.append(b"four");
    assert!(store.is_pending());
    drop(store);
    backend.crash(Crash::default());
    let (_, again) = open(&backend);
    assert_eq!(again, batches);
}

#[test]
fn a_turn_costs_one_sync_and_an_idle_one_none() {
    let backend = Memory::new(OWNER);
    let (mut store, _) = open(&backend);
    let before = backend.syncs();
    store.append(b"one");
    store.append_with(|out| out.extend_from_slice(b"two"));
    store.sync().expect("the backend works");
    store.sync().expect("the backend works");
    assert_eq!(backend.syncs() - before, 1);
    assert_eq!((store.statistics().batches, store.statistics().records), (1, 2));
}

#[test]
fn a_batch_torn_at_any_byte_is_ignored_by_replay() {
    let torn = b"a record that the crash tears, long enough to look like something";
    for kept in 0..=200 {
        let backend = three_batches();
        let (mut store, before) = open(&backend);
        store.append(torn);
        backend.fail_next_sync();
        assert!(matches!(store.sync(), Err(StoreError::Io { .. })));
        assert!(matches!(store.sync(), Err(StoreError::Closed(_))), "after a failed sync nobody may go on");
        drop(store);
        backend.crash(Crash { journal_bytes_kept: kept, ..Crash::default() });

        let (mut store, after) = open(&backend);
        let whole = after.len() > before.len();
        assert_eq!(whole, kept >= 28 + 4 + torn.len(), "{kept} bytes kept");
        assert_eq!(after[..before.len()], before);
        // The next batch overwrites what was torn, be it longer or shorter.
        store.append(b"next");
        store.sync().expect("the backend works");
        drop(store);
        let (_, batches) = open(&backend);
        assert_eq!((batches.len(), &batches[batches.len() - 1][0][..]), (after.len() + 1, &b"next"[..]));
    }
}

#[test]
fn every_flipped_bit_before_the_last_batch_is_noticed_and_named() {
    let backend = three_batches();
    let whole = backend.segment_bytes(SegmentNumber(1)).expect("the first segment");
    let last_batch = 28 + 4 + "three".len();
    for offset in 0..whole.len() - last_batch {
        let backend = three_batches();
        backend.flip_bit(SegmentNumber(1), offset, u8::try_from(offset % 8).expect("below 8"));
        let error = replay_error(&backend);
        let text = error.to_string();
        match error {
            StoreError::Corrupt { .. } => assert!(text.contains("journal/00000001.log"), "{text}"),
            // The format's own bits say something else when they flip.
            StoreError::NewerFormat { .. } => assert!((8..12).contains(&offset), "{text}"),
            other => panic!("byte {offset}: {other}"),
        }
    }
}

#[test]
fn a_flipped_bit_in_an_older_segment_is_damage_even_in_its_last_batch() {
    let backend = three_batches();
    let (mut store, _) = open(&backend);
    assert_eq!(store.rotate().expect("the backend works"), SegmentNumber(2));
    drop(store);
    let end = backend.segment_bytes(SegmentNumber(1)).expect("the first segment").len();
    backend.flip_bit(SegmentNumber(1), end - 1, 3);
    let text = replay_error(&backend).to_string();
    assert!(text.contains("journal/00000001.log is damaged at byte"), "{text}");
    assert!(text.contains("the checksum of batch 3 does not match"), "{text}");
    assert!(text.contains("leave this replica stopped"), "{text}");
}

#[test]
fn a_flipped_bit_in_a_row_of_the_base_is_noticed_when_the_row_is_read_or_checkpointed_upon() {
    let backend = Memory::new("owner");
    let (mut store, _) = open(&backend);
    let (key, at) = (Key::from("k"), |time| Timestamp::new(time, ClientId(1)));
    store.commit(&key, Version { timestamp: at(10), value: Some(Value::from("ten")) });
    assert!(store.begin_checkpoint(at(10)).expect("it is above the last watermark"));
    while store.checkpoint_finished().expect("memory checkpoints").is_none() {}
    drop(store);
    let before = backend.copied();
    let (_, length) = backend.rows()[0];
    for offset in 0..length {
        let backend = before.copied();
        backend.flip_row_bit(&key, offset, 5);
        let error = open(&backend).0.latest_before(&key, at(99)).expect_err("it is damaged");
        assert!(matches!(error, StoreError::Corrupt { .. }) && error.to_string().contains('k'), "{error}");
        // Nor does a checkpoint go by it, which has to know whether what came late is newer.
        let mut store = open(&backend).0;
        store.commit(&key, Version { timestamp: at(9), value: Some(Value::from("nine")) });
        let error = store.begin_checkpoint(at(20)).expect_err("it is damaged");
        assert!(matches!(error, StoreError::Corrupt { .. }) && error.to_string().contains('k'), "{error}");
    }
    let found = open(&before).0.latest_before(&key, at(99)).expect("the copy is whole");
    assert_eq!(found.map(|version| version.timestamp), Some(at(10)));
}

#[test]
fn a_torn_tail_is_ignored_when_the_next_segment_continues_before_it() {
    let backend = three_batches();
    let (mut store, before) = open(&backend);
    store.append(b"torn");
    backend.fail_next_sync();
    store.sync().expect_err("the test lets it fail");
    drop(store);
    backend.crash(Crash { journal_bytes_kept: 30, ..Crash::default() });
    let (mut store, _) = open(&backend);
    store.rotate().expect("the backend works");
    store.append(b"four");
    store.sync().expect("the backend works");
    drop(store);
    let (_, batches) = open(&backend);
    assert_eq!((batches.len(), &batches[3][0][..]), (before.len() + 1, &b"four"[..]));
}

#[test]
fn a_missing_segment_is_a_loss() {
    let mut backend = three_batches();
    let (mut store, _) = open(&backend);
    store.rotate().expect("the backend works");
    store.rotate().expect("the backend works");
    drop(store);
    backend.remove(SegmentNumber(2)).expect("it is there");
    let text = replay_error(&backend).to_string();
    assert!(text.contains("journal/00000002.log is missing"), "{text}");
}

#[test]
fn stale_batches_of_a_recycled_segment_are_never_taken_for_new() {
    let backend = Memory::new(OWNER);
    let (mut store, _) = open(&backend);
    for _ in 0..5 {
        // The same sizes again and again, so that old batches lie exactly where new ones would begin.
        for _ in 0..4 {
            store.append(b"record");
            store.sync().expect("the backend works");
        }
        let current = store.rotate().expect("the backend works");
        store.release(SegmentNumber(current.0 - 1)).expect("the backend works");
        assert_eq!(store.segments().map(|(number, _)| number).collect::<Vec<_>>(), [current]);
    }
    store.append(b"last");
    store.sync().expect("the backend works");
    drop(store);
    let (_, batches) = open(&backend);
    assert_eq!(batches, [vec![Bytes::from("last")]]);
}

#[test]
fn a_record_that_looks_like_a_batch_does_not_pass_for_one() {
    // A client writes the whole of an earlier batch into a value; then the batch that holds it is torn.
    let backend = three_batches();
    let segment = backend.segment_bytes(SegmentNumber(1)).expect("the first segment");
    let mut forged = segment[512..].to_vec();
    forged[4] = 5;
    let (mut store, before) = open(&backend);
    store.append(&forged);
    backend.fail_next_sync();
    store.sync().expect_err("the test lets it fail");
    drop(store);
    backend.crash(Crash { journal_bytes_kept: 28 + 4 + forged.len() - 1, ..Crash::default() });
    let (_, batches) = open(&backend);
    assert_eq!(batches, before);
}

#[test]
fn a_full_segment_is_followed_by_the_next() {
    let backend = Memory::new(OWNER);
    let options = Options { segment_bytes_max: 1_000, ..Options::default() };
    let mut store = Store::open(backend.clone(), options).expect("the backend works");
    assert_eq!(store.replay().expect("the journal is new"), None);
    for _ in 0..6 {
        store.append(&[7; 200]);
        store.sync().expect("the backend works");
    }
    // A batch larger than a whole segment has one to itself.
    store.append(&[7; 5_000]);
    store.sync().expect("the backend works");
    assert_eq!(store.current_segment(), SegmentNumber(4));
    assert!(store.segments().take(3).all(|(_, bytes)| bytes <= 1_000));
    drop(store);
    let (store, batches) = open(&backend);
    assert_eq!((batches.len(), store.current_segment()), (7, SegmentNumber(4)));
}

#[test]
fn a_huge_turn_is_cut_into_batches_with_a_sync_each() {
    let backend = Memory::new(OWNER);
    let (mut store, _) = open(&backend);
    let record = vec![1; BATCH_BYTES_MAX / 2];
    for _ in 0..5 {
        store.append(&record);
    }
    store.sync().expect("the backend works");
    assert_eq!(store.statistics().batches, 3);
    drop(store);
    let (_, batches) = open(&backend);
    assert_eq!(batches.iter().map(Vec::len).collect::<Vec<_>>(), [2, 2, 1]);
}

#[test]
fn another_owners_journal_is_refused_by_name() {
    let backend = three_batches();
    let bytes = backend.segment_bytes(SegmentNumber(1)).expect("the first segment");
    let mut other = Memory::new("cluster 07 replica s0-r4");
    other.create(SegmentNumber(1), &bytes, 0).expect("memory takes anything");
    let text = replay_error(&other).to_string();
    assert!(text.contains("belongs to \"cluster 07 replica s0-r3\", not to \"cluster 07 replica s0-r4\""), "{text}");
}
