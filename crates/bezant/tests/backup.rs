//! Backups of real clusters: taken while others write, checked, restored into clusters of another shape.

use std::fs;

use crate::place::{Place, eventually};

/// A new cluster under the name of the last, which is put away.
fn start_anew(place: &Place, more: &[&str]) {
    place.run(&["down"]).expect(0);
    let away = (0..).map(|number| place.path(&format!("away-{number}"))).find(|path| !path.exists()).expect("a free name");
    fs::rename(place.path("bezant-data"), away).expect("it may be moved");
    place.init(more);
    place.run(&["up"]).expect(0);
}

#[test]
fn what_is_restored_is_one_moment_of_what_was_there() {
    take_and_restore(&[], &["--shards", "2"]);
}

#[test]
fn what_is_restored_from_shards_that_order_transactions_is_one_moment_of_them_all() {
    take_and_restore(&["--engine", "augustus", "--shards", "2"], &[]);
}

/// Takes backups of one cluster, while others write, and restores them into another.
fn take_and_restore(from: &[&str], to: &[&str]) {
    let place = Place::new();
    place.init(from);
    place.run(&["up"]).expect(0);
    place.run(&["txn", "put a 1; put b 2; put c 3"]).expect(0);
    let transfers = ["bench", "bank", "--keys", "50", "--clients", "4", "--seconds", "300", "--warmup", "0"];
    let bank = place.spawn(&transfers);
    eventually("transfers commit", || place.count("s0-r0", "committed") > 100);
    let first = place.run(&["backup", "take", "first.backup", "--json"]).expect(0).json();
    assert!(first["rows"].as_u64() > Some(53) && first["rows"] == first["rows_in_file"], "{first}");
    place.run(&["txn", "put a 4; delete b; put d 5"]).expect(0);
    drop(bank);
    let second = place.run(&["backup", "take", "second.backup", "--since", "first.backup", "--json"]).expect(0).json();
    let third = ["backup", "take", "third.backup", "--since", "first.backup", "--since", "second.backup", "--json"];
    let third = place.run(&third).expect(0).json();
    // Whoever had finished a transfer may have told the replicas only now.
    assert!(third["rows_in_file"].as_u64() < Some(30), "nothing has changed since: {third}");
    if from.contains(&"augustus") {
        let holds_none = || place.ask("s1-r2", "/metrics").is_some_and(|metrics| metrics.contains("bezant_moments_held 0\n"));
        eventually("who has read a moment says so", holds_none);
    }

    let verified = place.run(&["backup", "verify", "first.backup", "second.backup", "--json"]).expect(0).json();
    assert_eq!((&verified["content"], &verified["rows"]), (&second["content"], &second["rows"]));
    place.run(&["backup", "verify", "second.backup"]).expect(2).says("name the backups before it");
    place.run(&["backup", "verify", "second.backup", "first.backup"]).expect(2).says("is named first").says("the oldest first");
    place.run(&["backup", "verify", "first.backup", "third.backup"]).expect(2).says("does not go on from");
    let again = place.run(&["backup", "take", "first.backup"]).expect(2).says("this file exists already");
    again.says("first.backup").says("name another file");
    place.run(&["backup", "restore", "first.backup"]).expect(2).says("not empty").says("--over");

    start_anew(&place, to);
    let restored = place.run(&["backup", "restore", "first.backup", "second.backup", "--json"]).expect(0).json();
    assert_eq!(restored["content"], second["content"]);
    place.run(&["scan", "a", "ba"]).expect(0).prints("a = 4\n");
    place.run(&["txn", "get c; get d"]).expect(0);
    // As much money as there was.
    let report =
        place.run(&["bench", "bank", "--keys", "50", "--clients", "2", "--transactions", "20", "--warmup", "0", "--json"]).expect(0).json();
    assert_eq!(report["invariant"]["held"], true, "{report}");

    let mut bytes = fs::read(place.path("first.backup")).expect("it is there");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(place.path("first.backup"), bytes).expect("room");
    place.run(&["backup", "verify", "first.backup"]).expect(2).says("first.backup").says("a digest does not match").says("at byte");
}

#[test]
fn a_backup_goes_into_another_engine_with_more_faults_and_over_what_was_restored_in_part() {
    let place = Place::new();
    place.init(&[]);
    place.run(&["up"]).expect(0);
    place.run(&["bench", "rw-u", "--keys", "5000", "--load", "--seconds", "0"]).expect(0);
    let taken = place.run(&["backup", "take", "all.backup", "--json"]).expect(0).json();
    start_anew(&place, &["--engine", "augustus", "--faults", "2"]);
    // Damage in the last bytes is found before the first row is written.
    let mut bytes = fs::read(place.path("all.backup")).expect("it is there");
    let late = bytes.len() - 10;
    bytes[late] ^= 1;
    fs::write(place.path("damaged.backup"), bytes).expect("room");
    place.run(&["restore", "damaged.backup"]).expect(2).says("damaged.backup").says("a digest does not match");
    place.run(&["get", "user00000000"]).expect(1);
    place.run(&["put", "user00000000", "half"]).expect(0);
    place.run(&["backup", "restore", "all.backup"]).expect(2).says("not empty: it holds user00000000");
    let restored = place.run(&["backup", "restore", "all.backup", "--over", "--json"]).expect(0).json();
    assert_eq!((&restored["content"], &restored["rows"]), (&taken["content"], &taken["rows"]));
    // Never a part for the whole.
    place.run(&["scan", "user", "user:", "--limit", "6000"]).expect(2).prints("").says("bezant scan --all");
    let again = place.run(&["backup", "take", "again.backup", "--json"]).expect(0).json();
    assert_eq!((&again["content"], &again["rows"]), (&taken["content"], &taken["rows"]));
    let all = place.run(&["scan", "--all", "user", "user:"]).expect(0);
    assert_eq!(Some(all.out.lines().count() as u64), again["rows"].as_u64(), "each row of the database, on a line");
    place.run(&["get", "user00000000", "--as-of", "1h ago"]).expect(2).says("keeps no past but moments");
    place.run(&["put", "zzz", "1"]).expect(0);
    place.run(&["backup", "restore", "all.backup", "--over"]).expect(3).says("other rows than the backup");
}
