//! A cluster of Augustus as its user meets it: four processes, the same commands.

use std::fs;

use rustix::process::Signal;

use crate::exposition;
use crate::place::{Place, Running, eventually};

/// Of a cluster of two shards.
const REPLICAS: [&str; 8] = ["s0-r0", "s0-r1", "s0-r2", "s0-r3", "s1-r0", "s1-r1", "s1-r2", "s1-r3"];

#[test]
fn four_replicas_run_transactions_and_scans() {
    let place = Place::new();
    place.init(&["--engine", "augustus"]);
    place.run(&["up"]).expect(0);
    place.run(&["put", "a", "1"]).expect(0).says("committed");
    place.run(&["txn", "put b 2; put c 3; delete a"]).expect(0).says("committed");
    place.run(&["get", "b"]).expect(0).prints("2\n");
    place.run(&["scan", "a", "z"]).expect(0).prints("b = 2\nc = 3\n");
    place.run(&["scan", "a", "z", "--limit", "1"]).expect(0).prints("b = 2\n");
    place.run(&["scan", "a", "z", "--limit", "1", "--reverse"]).expect(0).prints("c = 3\n");
    let status = place.run(&["status", "--json"]).expect(0).json();
    assert_eq!(status["replicas"].as_array().map(Vec::len), Some(4), "{status}");
    let text = place.ask("s0-r0", "/metrics").expect("it answers");
    let families = exposition::read(&text).unwrap_or_else(|wrong| panic!("{wrong}\n{text}"));
    assert!(families.contains_key("bezant_store_journal_bytes"), "{text}");
    let view = || place.count_of("s0-r1", "order", "view");
    assert_eq!(view(), 0);
    place.signal("s0-r0", Signal::TERM);
    eventually("its leader that is stopped hands over, though nobody asks for anything", || view() >= 1);
    place.run(&["put", "b", "4"]).expect(0).says("committed");
}

#[test]
fn a_certificate_of_all_its_shards_has_to_fit_into_a_request() {
    let place = Place::new();
    place.run(&["init", "bezant-data", "--engine", "augustus", "--shards", "65"]).expect(2).says("no more shards than 64").says("--engine");
}

#[test]
fn two_shards_run_transactions_and_scans() {
    for placement in ["hash", "ranges:m"] {
        let place = Place::new();
        place.init(&["--engine", "augustus", "--shards", "2", "--placement", placement]);
        place.run(&["up"]).expect(0);
        place.run(&["txn", "put a 1; put c 2; put n 3; put p 4; put z 26"]).expect(0).says("committed");
        place.run(&["scan", "a", "z"]).expect(0).prints("a = 1\nc = 2\nn = 3\np = 4\n");
        place.run(&["scan", "b", "zz", "--limit", "2"]).expect(0).prints("c = 2\nn = 3\n");
        place.run(&["scan", "b", "p", "--limit", "2", "--reverse"]).expect(0).prints("n = 3\nc = 2\n");
        let across = place.run(&["txn", "get a; get z; delete z", "--json"]).expect(0).json();
        assert_eq!((&across["reads"][0]["value"], &across["reads"][1]["value"]), (&"1".into(), &"26".into()));
        eventually("no lock is left", || REPLICAS.iter().all(|replica| place.count(replica, "undecided") == 0));
    }
}

/// Transfers between few accounts on two shards, with audits, without an end of its own.
fn start_bank(place: &Place, journal: &str) -> Running {
    let arguments = "bench bank --keys 40 --clients 4 --seconds 3600 --warmup 0 --check-interval 0.2 --json --journal";
    place.spawn(&arguments.split(' ').chain([journal]).collect::<Vec<_>>())
}

/// Waits until so many more transfers were acknowledged.
#[track_caller]
fn goes_on(place: &Place, journal: &str, transfers: usize) {
    let lines = || std::fs::read(place.path(journal)).unwrap_or_default().iter().filter(|byte| **byte == b'\n').count();
    let before = lines();
    eventually("transfers go on", || lines() >= before + transfers);
}

/// Every transfer that was acknowledged is there, and no money was made or lost.
#[track_caller]
fn verify(place: &Place, journal: &str) {
    let check = place.run(&["bench", "bank", "--verify-journal", journal, "--json"]).expect(0).json();
    assert_eq!((&check["acknowledged"], &check["invariant"]["held"]), (&check["found"], &true.into()), "{check}");
}

/// Who leads a shard.
fn leader(place: &Place, shard: usize) -> &'static str {
    let view = place.count_of(REPLICAS[shard * 4], "order", "view");
    REPLICAS[shard * 4 + usize::try_from(view % 4).expect("one of four")]
}

/// Half of the accounts on each shard.
fn two_shards() -> Place {
    let place = Place::new();
    place.init(&["--engine", "augustus", "--shards", "2", "--placement", "ranges:bank/account/000020"]);
    place.run(&["up"]).expect(0);
    place
}

#[test]
fn transfers_between_shards_survive_the_leaders_of_both_and_a_power_cut() {
    let place = two_shards();
    let bank = start_bank(&place, "journal");
    goes_on(&place, "journal", 30);
    let leaders = [leader(&place, 0), leader(&place, 1)];
    leaders.iter().for_each(|leader| place.kill(leader));
    goes_on(&place, "journal", 60);
    place.run(&["up"]).expect(0);
    goes_on(&place, "journal", 30);
    REPLICAS.iter().for_each(|replica| place.kill(replica));
    place.run(&["up"]).expect(0);
    goes_on(&place, "journal", 30);
    bank.signal(Signal::INT);
    let report = bank.wait().expect(0).json();
    assert_eq!(report["invariant"]["held"], true, "{report}");
    verify(&place, "journal");
}

#[test]
fn what_a_killed_client_left_is_finished_without_any_client() {
    let place = two_shards();
    let undecided = || REPLICAS.iter().any(|replica| place.count(replica, "undecided") > 0);
    let finished = || REPLICAS.iter().map(|replica| place.count(replica, "finished")).sum::<u64>();
    let bank = start_bank(&place, "journal");
    goes_on(&place, "journal", 20);
    // Half of the second shard stands still, so that what the first has voted for waits.
    let standing = &REPLICAS[6..];
    standing.iter().for_each(|replica| place.signal(replica, Signal::STOP));
    eventually("transactions wait", || REPLICAS[..4].iter().all(|replica| place.count(replica, "undecided") > 0));
    drop(bank);
    standing.iter().for_each(|replica| place.signal(replica, Signal::CONT));
    eventually("everything is decided", || !undecided());
    assert!(finished() > 0, "it was the replicas that did it");
    verify(&place, "journal");
}

#[test]
fn workloads_run_and_their_conditions_hold() {
    workloads_run_on("1");
}

#[test]
fn workloads_run_over_two_shards_and_their_conditions_hold() {
    workloads_run_on("2");
}

#[track_caller]
fn workloads_run_on(shards: &str) {
    let place = Place::new();
    place.init(&["--engine", "augustus", "--shards", shards]);
    place.run(&["up"]).expect(0);
    for workload in ["bank", "ring", "smallbank", "rw-u", "rw-z", "ycsb-e", "retwis", "buzzer", "tpcc"] {
        let keys: &[&str] = if workload == "tpcc" { &["--scale", "0.01"] } else { &["--keys", "100"] };
        let arguments: Vec<&str> = ["bench", workload, "--load", "--clients", "4", "--transactions", "40", "--warmup", "0", "--json"]
            .iter()
            .chain(keys)
            .copied()
            .collect();
        let report = place.run(&arguments).expect(0).json();
        assert!(report["committed"].as_u64() >= Some(20), "{report}");
        assert_ne!(report["invariant"]["held"], false, "{report}");
    }
}

/// Which state a replica says that it is in.
fn state_of(place: &Place, replica: &str) -> String {
    let status: serde_json::Value = serde_json::from_str(&place.ask(replica, "/status").unwrap_or_default()).unwrap_or_default();
    status["state"].as_str().unwrap_or_default().to_owned()
}

/// With `f = 1` one replica after the other: the first was away until the others had dropped the lists that it lacks, the second has lost its data.
#[test]
fn replicas_that_were_away_and_that_lost_their_disks_are_whole_again_under_load() {
    let place = Place::new();
    place.init(&["--engine", "augustus"]);
    place.run(&["up"]).expect(0);
    let stable = |replica: &str| place.count_of(replica, "order", "stable");
    let bank = start_bank(&place, "journal");
    goes_on(&place, "journal", 20);
    let away = REPLICAS[3];
    let before = stable(away);
    place.kill(away);
    eventually("what it lacks is dropped", || stable(REPLICAS[0]) > before + 512);
    let target = stable(REPLICAS[0]);
    place.run(&["up"]).expect(0);
    eventually("it takes over a state", || stable(away) >= target);
    // The leader, as it happens.
    let lost = REPLICAS[0];
    let folder = format!("bezant-data/{lost}");
    place.kill(lost);
    std::fs::remove_dir_all(place.path(&folder).join("data")).expect("it was there");
    place.run(&["node", &folder]).expect(3).says("`bezant rebuild`");
    place.run(&["rebuild", &folder]).expect(0).says("begins with an empty store");
    place.run(&["up"]).expect(0);
    eventually("it is rebuilt", || state_of(&place, lost) == "serving");
    goes_on(&place, "journal", 20);
    bank.signal(Signal::INT);
    let report = bank.wait().expect(0).json();
    assert_eq!(report["invariant"]["held"], true, "{report}");
    verify(&place, "journal");
    let state = |replica: &&str| ["delivered", "checkpoint", "checkpoint_digest"].map(|name| place.count_of(replica, "order", name));
    eventually("all four have the same state", || {
        let states: Vec<_> = REPLICAS[..4].iter().map(state).collect();
        states[0][1] > 0 && states.iter().all(|other| *other == states[0])
    });
}

/// Replicas execute their journals again when they start, so that one that went by another `pending_min` would come to another state.
#[test]
fn the_room_that_clients_always_have_stays_as_it_was() {
    let place = Place::new();
    place.init(&["--engine", "augustus"]);
    place.run(&["up"]).expect(0);
    place.run(&["put", "a", "1"]).expect(0);
    place.run(&["down"]).expect(0);
    let change = |from: &str, to: &str| {
        for folder in ["", "s0-r0/", "s0-r1/", "s0-r2/", "s0-r3/", "client/"] {
            let path = place.path(&format!("bezant-data/{folder}cluster.toml"));
            let text = fs::read_to_string(&path).expect("made");
            // They may be one file.
            if !text.contains(to) || to.is_empty() {
                fs::write(&path, text.replace(from, to)).expect("written");
            }
        }
    };
    for other in ["pending_min = 64\n", ""] {
        change("pending_min = 16\n", other);
        place.run(&["node", "bezant-data/s0-r0"]).expect(3).says("with pending_min 16");
        if other.is_empty() {
            change("placement = \"hash\"\n", "pending_min = 16\nplacement = \"hash\"\n");
        } else {
            change(other, "pending_min = 16\n");
        }
    }
    place.run(&["up"]).expect(0);
    place.run(&["get", "a"]).expect(0).prints("1\n");
}

#[test]
fn what_a_client_may_do_never_changes_but_clients_come_and_go() {
    let place = Place::new();
    place.init(&["--engine", "augustus"]);
    place.run(&["up"]).expect(0);
    place.run(&["put", "a", "1"]).expect(0);
    place.run(&["down"]).expect(0);
    let files =
        || ["", "s0-r0/", "s0-r1/", "s0-r2/", "s0-r3/", "client/"].map(|folder| place.path(&format!("bezant-data/{folder}cluster.toml")));
    let first = fs::read_to_string(&files()[0]).expect("made");
    let change = |text: &str| files().iter().for_each(|path| fs::write(path, text).expect("written"));
    change(&first.replace("write = [\"\"]", "write = [\"b\"]"));
    place.run(&["node", "bezant-data/s0-r0"]).expect(2).says("client 1 has other rights").says("under numbers that were never used");
    // One more, and then it is gone again.
    let client = first.find("[[client]]").expect("there is one");
    let key = first[client..].lines().find(|line| line.starts_with("public_key")).expect("it has one");
    let second = first[client..]
        .replace("number = 1", "number = 2")
        .replace(key, &format!("public_key = \"{}\"", hex::encode(crypto::SecretKey::from_bytes([9; 32]).public())));
    change(&format!("{first}\n{second}"));
    place.run(&["up"]).expect(0);
    place.run(&["put", "b", "1"]).expect(0);
    place.run(&["down"]).expect(0);
    change(&first);
    place.run(&["up"]).expect(0);
    place.run(&["get", "b"]).expect(0).prints("1\n");
    let kept = fs::read_to_string(place.path("bezant-data/s0-r3/data/executes-with.toml")).expect("kept");
    assert!(kept.contains("number = 2"), "{kept}");
}
