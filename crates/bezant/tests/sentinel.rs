//! A cluster of Sentinel as its user meets it: three processes, the same commands.

use rustix::process::Signal;

use crate::exposition;
use crate::place::{Place, Running, eventually};

const REPLICAS: [&str; 3] = ["s0-r0", "s0-r1", "s0-r2"];

fn started() -> Place {
    let place = Place::new();
    place.init(&["--engine", "sentinel"]);
    place.run(&["up"]).expect(0);
    place
}

#[test]
fn three_replicas_run_transactions_and_scans() {
    let place = started();
    place.run(&["put", "a", "1"]).expect(0).says("committed");
    place.run(&["txn", "put b 2; put c/\u{fc} 3; put . 4; delete a"]).expect(0).says("committed");
    place.run(&["get", "b"]).expect(0).prints("2\n");
    place.run(&["get", "c/\u{fc}"]).expect(0).prints("3\n");
    place.run(&["scan", "a", "z"]).expect(0).prints("b = 2\nc/\u{fc} = 3\n");
    place.run(&["scan", "", "z", "--limit", "1"]).expect(0).prints(". = 4\n");
    place.run(&["scan", "", "c", "--reverse"]).expect(0).prints("b = 2\n. = 4\n");
    place.run(&["delete", "b"]).expect(0).says("committed");
    place.run(&["scan", "a", "c"]).expect(1).says("no key from a to c has a value");
    let status = place.run(&["status", "--json"]).expect(0).json();
    assert_eq!(status["replicas"].as_array().map(Vec::len), Some(3), "{status}");
    for replica in REPLICAS {
        eventually("all have applied them", || place.count(replica, "committed") == 3);
        let text = place.ask(replica, "/metrics").expect("it answers");
        let families = exposition::read(&text).unwrap_or_else(|wrong| panic!("{wrong}\n{text}"));
        assert!(families.contains_key("bezant_delivered") && families.contains_key("bezant_store_journal_bytes"), "{replica}: {text}");
    }
}

#[test]
fn a_cluster_that_never_ran_says_for_whom_it_waits() {
    let place = Place::new();
    place.init(&["--engine", "sentinel"]);
    std::fs::rename(place.path("bezant-data/s0-r2"), place.path("s0-r2")).expect("it is there");
    place.run(&["up"]).expect(0).says("s0-r0 waits for a leader");
    let waits = "waits for a leader: for the first one all replicas have to be up";
    eventually("they say that they wait", || place.ask("s0-r0", "/health").is_some_and(|health| health == format!("waiting\n{waits}\n")));
    place.run(&["status"]).expect(1).says(waits).says("cannot commit");
    std::fs::rename(place.path("s0-r2"), place.path("bezant-data/s0-r2")).expect("it is there");
    place.run(&["up"]).expect(0);
    place.run(&["status"]).expect(0);
    place.run(&["put", "a", "1"]).expect(0);
    place.kill("s0-r0");
    place.kill("s0-r1");
    let waits = "waits for a leader: more than half of the replicas have to be up";
    eventually("it is alone", || place.ask("s0-r2", "/health").is_some_and(|health| health == format!("waiting\n{waits}\n")));
}

#[test]
fn a_cluster_has_one_shard_of_two_f_and_one() {
    let place = Place::new();
    place.run(&["init", "bezant-data", "--engine", "sentinel", "--shards", "2"]).expect(2).says("no more shards than 1").says("--engine");
    place.init(&["--engine", "sentinel", "--faults", "2"]);
    place.run(&["up"]).expect(0);
    place.run(&["put", "a", "1"]).expect(0);
    // Two of five are gone.
    let leader =
        (0..5).map(|index| format!("s0-r{index}")).find(|replica| place.count_of(replica, "order", "leads") == 1).expect("one leads");
    place.kill(&leader);
    place.kill(if leader == "s0-r4" { "s0-r3" } else { "s0-r4" });
    place.run(&["get", "a"]).expect(0).prints("1\n");
    place.run(&["put", "a", "2"]).expect(0);
}

/// Transfers between few accounts, with audits, without an end of its own.
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

/// Ends it: no audit found money made or lost, and every transfer that was acknowledged is there.
#[track_caller]
fn end_bank(place: &Place, bank: Running, journal: &str) {
    bank.signal(Signal::INT);
    let report = bank.wait().expect(0).json();
    assert_eq!(report["invariant"]["held"], true, "{report}");
    let check = place.run(&["bench", "bank", "--verify-journal", journal, "--json"]).expect(0).json();
    assert_eq!((&check["acknowledged"], &check["invariant"]["held"]), (&check["found"], &true.into()), "{check}");
}

/// Who leads.
fn leader(place: &Place) -> &'static str {
    let leads = |replica: &&&str| place.count_of(replica, "order", "leads") == 1;
    eventually("somebody leads", || REPLICAS.iter().any(|replica| leads(&replica)));
    REPLICAS.iter().find(leads).expect("there was one just now")
}

/// Waits until all three have the same tree.
#[track_caller]
fn are_same(place: &Place) {
    let tree = |replica: &&str| ["zxid", "digest", "nodes"].map(|name| place.count_of(replica, "tree", name));
    eventually("all have the same tree", || {
        let trees = REPLICAS.each_ref().map(&tree);
        trees[0][0] > 0 && trees.iter().all(|other| *other == trees[0])
    });
}

#[test]
fn transfers_survive_the_leader_and_a_power_cut() {
    let place = started();
    let bank = start_bank(&place, "journal");
    goes_on(&place, "journal", 50);
    for _ in 0..2 {
        let killed = leader(&place);
        place.kill(killed);
        goes_on(&place, "journal", 50);
        place.run(&["up"]).expect(0);
        goes_on(&place, "journal", 50);
    }
    REPLICAS.iter().for_each(|replica| place.kill(replica));
    place.run(&["up"]).expect(0);
    goes_on(&place, "journal", 50);
    end_bank(&place, bank, "journal");
    are_same(&place);
    place.run(&["down"]).expect(0);
    let data = REPLICAS.map(|replica| format!("bezant-data/{replica}/data"));
    place.run(&["audit", "offline", &data[0], &data[1], &data[2]]).expect(0);
    place.run(&["audit", "offline", "bezant-data/s0-r0"]).expect(2).says("bezant audit offline bezant-data/s0-r0/data");
    std::fs::remove_file(place.path("bezant-data/s0-r0/key")).expect("it has a key");
    place.run(&["audit", "offline", &data[0]]).expect(0);
}

#[test]
fn a_replica_that_lost_its_disk_is_whole_again_under_load() {
    let place = started();
    let bank = start_bank(&place, "journal");
    goes_on(&place, "journal", 50);
    let lost = leader(&place);
    let folder = format!("bezant-data/{lost}");
    place.kill(lost);
    eventually("its process is gone", || place.run(&["rebuild", &folder]).code != Some(3));
    place.run(&["rebuild", &folder]).expect(2).says("there is nothing to rebuild");
    std::fs::remove_dir_all(place.path(&folder).join("data")).expect("it was there");
    place.run(&["node", &folder]).expect(3).says("`bezant rebuild`");
    place.run(&["rebuild", &folder]).expect(0).says("begins with an empty store");
    place.run(&["up"]).expect(0);
    eventually("it counts again", || !place.path(&folder).join("data/lost").exists());
    // Now another may go.
    let killed = leader(&place);
    place.kill(killed);
    goes_on(&place, "journal", 50);
    place.run(&["up"]).expect(0);
    end_bank(&place, bank, "journal");
    are_same(&place);
}

#[test]
fn a_replica_that_lost_its_log_alone_is_noticed_and_is_whole_again_under_load() {
    let place = started();
    let bank = start_bank(&place, "journal");
    goes_on(&place, "journal", 50);
    let lost = leader(&place);
    let (folder, data) = (format!("bezant-data/{lost}"), format!("bezant-data/{lost}/data"));
    place.kill(lost);
    eventually("its process is gone", || place.run(&["rebuild", &folder]).code != Some(3));
    std::fs::remove_dir_all(place.path(&data).join("sentinel-log")).expect("it was there");
    place.run(&["up"]).expect(0);
    eventually("it is noticed", || place.run(&["evidence", &data]).out.contains("sentinel-log is missing"));
    eventually("it is repaired", || place.run(&["evidence", &data, "--json"]).json()["evidence"][0]["stage"] == "repaired");
    // Now another may go.
    let killed = leader(&place);
    place.kill(killed);
    goes_on(&place, "journal", 50);
    place.run(&["up"]).expect(0);
    end_bank(&place, bank, "journal");
    are_same(&place);
}

#[test]
fn workloads_run_and_their_conditions_hold() {
    let place = started();
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

#[test]
fn rights_change_while_it_runs() {
    let place = Place::new();
    place.init(&["--engine", "sentinel", "--clients", "2"]);
    place.run(&["up"]).expect(0);
    let put = |value| place.run(&["put", "a", value, "--cluster", "bezant-data/client-2"]);
    put("1").expect(0);
    place.run(&["config", "propose", "--revoke-client", "2", "--out", "next"]).expect(0);
    place.run(&["config", "sign", "next", "--key", "bezant-data/operator"]).expect(0);
    place.run(&["config", "apply", "next"]).expect(0).prints("configuration 1: 3 of 3 replicas go by it\n");
    assert_ne!(put("2").code, Some(0), "it was taken out");
    place.run(&["get", "a"]).expect(0).prints("1\n");
}
