//! What Bezant promises to survive, done to real processes: `kill -9`, clients that vanish, strangers, and garbage.

use std::fs;
use std::io::Write as _;
use std::net::{Shutdown, TcpStream};
use std::path::Path;

use runtime::frame::{FRAME_VERSION, Greeting, Role};
use rustix::process::Signal;
use types::limits::FRAME_BYTES_MAX;
use types::{ClusterId, Session};

use crate::place::{Place, Running, Said, eventually};
use crate::raw::{self, Raw, Shows};

const SHARD_0: [&str; 6] = ["s0-r0", "s0-r1", "s0-r2", "s0-r3", "s0-r4", "s0-r5"];
const SHARD_1: [&str; 6] = ["s1-r0", "s1-r1", "s1-r2", "s1-r3", "s1-r4", "s1-r5"];

/// Few accounts, so that transfers meet; no end of its own, so that no machine is too slow for it.
fn start_bank(place: &Place, journal: &str) -> Running {
    place.spawn(&[
        "bench",
        "bank",
        "--keys",
        "40",
        "--clients",
        "4",
        "--seconds",
        "3600",
        "--warmup",
        "0",
        "--check-interval",
        "0.2",
        "--journal",
        journal,
        "--json",
    ])
}

/// Lets the bank end as its user would, and checks its own verdict. Gives the part of transfers that took the fast path.
#[track_caller]
fn end_bank(bank: Running) -> f64 {
    bank.signal(Signal::INT);
    let report = bank.wait().expect(0).json();
    assert_eq!(report["invariant"]["held"], true, "{report}");
    assert!(report["invariant"]["checked"].as_u64() > Some(1), "it is checked while it runs, and at the end: {report}");
    report["fast_path_rate"].as_f64().expect("transfers were decided")
}

/// How many transfers the journal says were acknowledged. Its first line is its head.
fn acknowledged(place: &Place, journal: &str) -> usize {
    let text = fs::read(place.path(journal)).unwrap_or_default();
    text.iter().filter(|byte| **byte == b'\n').count().saturating_sub(1)
}

/// Waits until so many more transfers were acknowledged.
#[track_caller]
fn goes_on(place: &Place, journal: &str, transfers: usize) {
    let before = acknowledged(place, journal);
    eventually("transfers go on", || acknowledged(place, journal) >= before + transfers);
}

/// Every transfer the journal says was acknowledged is in the store, and the balances agree.
#[track_caller]
fn verify(place: &Place, journal: &str) {
    let check = place.run(&["bench", "bank", "--verify-journal", journal, "--json"]).expect(0).json();
    assert_eq!(check["acknowledged"].as_u64(), Some(acknowledged(place, journal) as u64), "{check}");
    assert_eq!(check["acknowledged"], check["found"], "{check}");
    assert_eq!(check["invariant"]["held"], true, "{check}");
}

#[test]
fn a_replica_killed_in_the_middle_comes_back_from_its_own_disk() {
    let place = Place::new();
    place.init(&[]);
    place.run(&["up"]).expect(0);
    let bank = start_bank(&place, "journal");
    goes_on(&place, "journal", 50);
    place.kill("s0-r3");
    let logged = place.count("s0-r0", "logged");
    goes_on(&place, "journal", 50);
    assert!(place.count("s0-r0", "logged") > logged, "without one of six, decisions are written down first");
    assert_eq!(place.count("s0-r3", "known"), 0, "it is down");

    place.run(&["up"]).expect(0);
    assert!(place.count("s0-r3", "known") >= 50, "it knows from its disk what it voted on");
    eventually("it votes and learns again", || place.count("s0-r3", "votes_commit") >= 20 && place.count("s0-r3", "committed") >= 20);
    place.run(&["status"]).expect(0);
    assert!(end_bank(bank) < 1.0, "some of it went over the slow path");
    verify(&place, "journal");
}

/// What a replica has done to catch up.
fn caught_up(place: &Place, replica: &str, name: &str) -> u64 {
    place.count_of(replica, "catch_up", name)
}

#[test]
fn a_replica_that_missed_commits_learns_of_them_within_the_window() {
    let place = Place::new();
    place.init(&[]);
    place.run(&["up"]).expect(0);
    place.run(&["put", "a", "1"]).expect(0).says("by 6 of 6 replicas");
    place.kill("s0-r5");
    place.run(&["txn", "put a 2; put b 2"]).expect(0);
    place.run(&["up"]).expect(0);
    eventually("it learns of the commit that it missed", || caught_up(&place, "s0-r5", "commits_taken_over") == 1);
    // Who lacks what was read votes it down; and who has just started does not vote for two seconds.
    let is_fast = |said: &Said| said.err.contains("over the fast path by 6 of 6 replicas");
    eventually("it votes for what reads that", || is_fast(&place.run(&["txn", "get a; get b; put a 3; put b 3"]).expect(0)));
}

#[test]
fn a_replica_that_was_down_for_longer_than_the_window_takes_over_what_it_missed() {
    let place = Place::new();
    place.init(&["--window-ms", "4000"]);
    place.run(&["up"]).expect(0);
    place.run(&["txn", "put a 1; put b 1"]).expect(0).says("by 6 of 6 replicas");
    // With its vote on this one, the outcome of that one is on its disk.
    place.run(&["put", "d", "1"]).expect(0).says("by 6 of 6 replicas");
    place.kill("s0-r5");
    place.run(&["txn", "put a 2; delete b; put c 2"]).expect(0);
    eventually("the others have forgotten the transaction", || place.count("s0-r0", "known") == 0);
    place.run(&["up"]).expect(0);
    eventually("it takes over what it missed", || caught_up(&place, "s0-r5", "versions_taken_over") == 3);
    eventually("and knows that nothing more is missing", || caught_up(&place, "s0-r5", "behind") == 0);
    let is_fast = |said: &Said| said.err.contains("over the fast path by 6 of 6 replicas");
    let write = ["txn", "get a; get b; get c; put a 3; put b 3; put c 3"];
    eventually("it votes for what reads that", || is_fast(&place.run(&write).expect(0)));
    assert!(SHARD_0[..5].iter().all(|replica| caught_up(&place, replica, "versions_taken_over") == 0), "nobody else lacked anything");
}

/// Whether a replica does all it is for.
fn serves(place: &Place, replica: &str) -> bool {
    let status: serde_json::Value = serde_json::from_str(&place.ask(replica, "/status").unwrap_or_default()).unwrap_or_default();
    status["state"] == "serving"
}

/// Flips a bit early in the journal, with much behind it that is whole.
fn damage_journal(place: &Place, replica: &str) {
    let journal = place.path(&format!("bezant-data/{replica}/data/journal"));
    let names = fs::read_dir(&journal).expect("the journal").map(|entry| entry.expect("an entry").path());
    let first = names.filter(|path| path.extension().is_some_and(|extension| extension == "log")).min().expect("a segment");
    let mut bytes = fs::read(&first).expect("read");
    bytes[600] ^= 1;
    fs::write(&first, bytes).expect("written");
}

#[test]
fn replicas_that_lost_their_disks_are_rebuilt_one_after_the_other_under_load() {
    let place = Place::new();
    place.init(&["--window-ms", "4000"]);
    place.run(&["up"]).expect(0);
    place.run(&["txn", "put a 1; put b 1; put c 1"]).expect(0).says("by 6 of 6 replicas");
    place.run(&["rebuild", "bezant-data/s0-r3"]).expect(3).says("in use");
    let bank = start_bank(&place, "journal");
    goes_on(&place, "journal", 20);
    for replica in ["s0-r3", "s0-r1"] {
        let folder = format!("bezant-data/{replica}");
        place.kill(replica);
        fs::remove_dir_all(place.path(&folder).join("data")).expect("it was there");
        place.run(&["node", &folder]).expect(3).says("`bezant rebuild`");
        place.run(&["rebuild", &folder]).expect(0).says("begins with an empty store");
        place.run(&["up"]).expect(0);
        goes_on(&place, "journal", 20);
        eventually("it is rebuilt", || serves(&place, replica));
        assert!(caught_up(&place, replica, "versions_taken_over") > 0, "it had nothing");
        let votes = place.count(replica, "votes_commit");
        eventually("it votes again", || place.count(replica, "votes_commit") > votes + 5);
    }
    end_bank(bank);
    verify(&place, "journal");
    let is_fast = |said: &Said| said.err.contains("over the fast path by 6 of 6 replicas");
    let write = ["txn", "get a; get b; put a 2; put b 2"];
    eventually("all six agree at once", || is_fast(&place.run(&write).expect(0)));
    for replica in ["s0-r3", "s0-r1"] {
        eventually("nothing is missing", || caught_up(&place, replica, "behind") == 0);
    }
    // One whose journal is damaged begins anew by itself, once, and keeps what was there.
    place.kill("s0-r4");
    damage_journal(&place, "s0-r4");
    place.run(&["up"]).expect(0);
    eventually("it is rebuilt", || serves(&place, "s0-r4"));
    assert!(place.path("bezant-data/s0-r4/data.lost-1/identity.toml").exists());
    place.kill("s0-r4");
    damage_journal(&place, "s0-r4");
    place.run(&["node", "bezant-data/s0-r4"]).expect(3).says("is damaged").says("see to the disk");
    fs::remove_dir_all(place.path("bezant-data/s0-r4/data.lost-1")).expect("removed");
    place.run(&["up"]).expect(0);
    eventually("it is rebuilt", || serves(&place, "s0-r4"));
    place.run(&["get", "a"]).expect(0).prints("2\n");
    // What can be read is not given up by a slip, and what is given up is kept.
    place.run(&["down"]).expect(0);
    place.run(&["rebuild", "bezant-data/s0-r2"]).expect(2).says("there is nothing to rebuild");
    place.run(&["rebuild", "bezant-data/s0-r2", "--force"]).expect(0).says("data.lost-1").says("cannot be asked");
    assert!(place.path("bezant-data/s0-r2/data.lost-1/identity.toml").exists());
    place.run(&["up"]).expect(0);
    eventually("it is rebuilt", || serves(&place, "s0-r2"));
    place.run(&["get", "a"]).expect(0).prints("2\n");
}

/// How many lists a replica of Augustus has delivered, and how its state digests.
fn reached(place: &Place, replica: &str) -> [u64; 3] {
    ["delivered", "checkpoint", "checkpoint_digest"].map(|name| place.count_of(replica, "order", name))
}

#[test]
fn a_replica_of_augustus_that_lost_its_disk_is_rebuilt_under_load() {
    let all = ["s0-r0", "s0-r1", "s0-r2", "s0-r3"];
    let place = Place::new();
    place.init(&["--engine", "augustus"]);
    place.run(&["up"]).expect(0);
    place.run(&["put", "a", "1"]).expect(0);
    let bank = start_bank(&place, "journal");
    goes_on(&place, "journal", 20);
    // A follower, and then the leader.
    for replica in ["s0-r3", "s0-r0"] {
        let folder = format!("bezant-data/{replica}");
        place.kill(replica);
        fs::remove_dir_all(place.path(&folder).join("data")).expect("it was there");
        place.run(&["node", &folder]).expect(3).says("`bezant rebuild`");
        place.run(&["rebuild", &folder]).expect(0).says("begins with an empty store");
        place.run(&["up"]).expect(0);
        goes_on(&place, "journal", 20);
        eventually("it is rebuilt", || serves(&place, replica));
    }
    bank.signal(Signal::INT);
    let report = bank.wait().expect(0).json();
    assert_eq!(report["invariant"]["held"], true, "{report}");
    verify(&place, "journal");
    eventually("all have the same state", || all.iter().all(|replica| reached(&place, replica) == reached(&place, all[0])));
    assert!(reached(&place, "s0-r0")[1] > 0, "there was a checkpoint");
    // Both count like any other: without a third the shard goes on.
    place.kill("s0-r1");
    place.run(&["put", "a", "2"]).expect(0).says("committed");
    place.run(&["get", "a"]).expect(0).prints("2\n");
}

#[test]
fn all_six_killed_at_once_keep_every_acknowledged_transaction() {
    let place = Place::new();
    place.init(&[]);
    place.run(&["up"]).expect(0);
    for journal in ["first", "second"] {
        let bank = start_bank(&place, journal);
        goes_on(&place, journal, 100);
        SHARD_0.iter().for_each(|replica| place.kill(replica));
        // The client is gone as well, in the middle of whatever it was doing.
        drop(bank);
        place.run(&["up"]).expect(0);
        verify(&place, journal);
    }
    verify(&place, "first");
}

/// What was killed runs for a moment more. Where `up` finds it running, and only then it ends, it is started again, even if all that come before it
/// in order wait for it.
#[test]
fn up_starts_again_what_ends_while_the_others_wait_for_it() {
    let place = Place::new();
    place.init(&[]);
    place.run(&["up"]).expect(0);
    let (gone, ending) = SHARD_0.split_at(3);
    // They run, and say nothing.
    ending.iter().for_each(|replica| place.signal(replica, Signal::STOP));
    gone.iter().for_each(|replica| place.kill(replica));
    let up = place.spawn(&["up"]);
    eventually("the first waits for others", || {
        place.ask("s0-r0", "/status").is_some_and(|status| status.contains(r#""state":"waiting""#))
    });
    ending.iter().for_each(|replica| place.kill(replica));
    up.wait().expect(0);
    assert!(SHARD_0.iter().all(|replica| serves(&place, replica)));
}

#[test]
fn two_shards_commit_across_both_and_survive_a_crash_in_each() {
    let place = Place::new();
    // Half of the accounts in each shard, and all records of transfers in the second.
    place.init(&["--shards", "2", "--placement", "ranges:bank/account/000020"]);
    place.run(&["up"]).expect(0);
    place.run(&["txn", "put a 1; put z 26"]).expect(0);
    let across = place.run(&["txn", "get a; get z; delete z", "--json"]).expect(0).json();
    assert_eq!((&across["reads"][0]["value"], &across["reads"][1]["value"]), (&"1".into(), &"26".into()));
    eventually("all twelve know it", || SHARD_0.iter().chain(&SHARD_1).all(|replica| place.count(replica, "committed") >= 2));

    let bank = start_bank(&place, "journal");
    goes_on(&place, "journal", 30);
    place.kill("s0-r1");
    place.kill("s1-r4");
    goes_on(&place, "journal", 30);
    let of_0 = place.count("s0-r0", "committed");
    eventually("the first shard takes part", || place.count("s0-r0", "committed") > of_0);
    place.run(&["status"]).expect(1).says("shard s0 serves without 1").says("shard s1 serves without 1");
    place.run(&["up"]).expect(0);
    goes_on(&place, "journal", 30);
    end_bank(bank);
    verify(&place, "journal");
}

#[test]
fn what_a_vanished_client_left_is_finished_without_any_client() {
    let place = Place::new();
    place.init(&[]);
    place.run(&["up"]).expect(0);
    let hangs = |replica: &&str| place.count(replica, "undecided") > 0;
    let finished = || SHARD_0.iter().map(|replica| place.count(replica, "finished_for_others")).sum::<u64>();
    // Now and then the last votes were already on their way, and the killed client left nothing: then another is killed.
    let left = (0..10).map(|attempt| format!("journal-{attempt}")).find(|journal| {
        let bank = start_bank(&place, journal);
        goes_on(&place, journal, 20);
        // Half of the shard stands still, so that what is prepared now cannot be decided.
        let (running, standing) = SHARD_0.split_at(3);
        standing.iter().for_each(|replica| place.signal(replica, Signal::STOP));
        eventually("transactions hang, prepared", || running.iter().all(hangs));
        // The client is killed between prepare and writeback.
        drop(bank);
        standing.iter().for_each(|replica| place.signal(replica, Signal::CONT));
        eventually("everything is decided", || !SHARD_0.iter().any(hangs));
        verify(&place, journal);
        finished() > 0
    });
    assert!(left.is_some(), "the replicas finished nothing themselves");
}

#[test]
fn a_cluster_file_that_differs_is_told_on_all_sides() {
    let place = Place::new();
    place.init(&["--shards", "2", "--placement", "ranges:m", "--clients", "2"]);
    let change = |folder: &str, from: &str, to: &str| {
        // Not in place: all folders share one file.
        let path = place.path(&format!("bezant-data/{folder}/cluster.toml"));
        let text = fs::read_to_string(&path).expect("made");
        assert!(text.contains(from));
        fs::remove_file(&path).expect("it is there");
        fs::write(&path, text.replace(from, to)).expect("written");
    };
    change("s0-r2", "bounds = [\"m\"]", "bounds = [\"n\"]");
    change("s0-r4", "write = [\"\"]", "write = []");
    change("client-2", "bounds = [\"m\"]", "bounds = [\"n\"]");
    place.run(&["up"]).expect(0);
    // The cluster goes on with those that agree.
    place.run(&["put", "a", "1"]).expect(0);
    let log = |replica: &str| fs::read_to_string(place.path(&format!("bezant-data/{replica}/node.log"))).expect("kept");
    let shape = "differs from this one's in faults, shards, placement, signatures or pending_min";
    eventually("the others have said it", || log("s0-r0").contains(shape));
    eventually("it has been told itself", || log("s0-r2").contains("your cluster.toml differs from this replica's in faults"));
    eventually("rights that differ are told too", || log("s0-r4").contains("differs from this one's in the clients and their rights"));
    // Whom all others refuse cannot serve, and says so.
    let status = place.run(&["status"]).expect(1);
    status
        .says("the cluster.toml of s0-r2 differs from the one here in faults, shards, placement, signatures or pending_min")
        .says("the cluster.toml of s0-r4 differs from the one here in the clients and their rights");
    // A client that has it wrong is told by every replica that has it right.
    place.run(&["get", "a", "--cluster", "bezant-data/client-2"]).expect(3).says("your cluster.toml differs from this replica's in faults");
}

#[test]
fn a_client_that_is_no_member_is_told_so_in_words() {
    let place = Place::new();
    place.init(&[]);
    place.run(&["up"]).expect(0);
    place.run(&["init", "other", "--base-port", &place.base_port()]).expect(0);

    copy(&place.path("bezant-data/client"), &place.path("bare"));
    fs::remove_file(place.path("bare/certificate.pem")).expect("removed");
    place
        .run(&["get", "a", "--cluster", "bare"])
        .expect(2)
        .says("error: the file is missing\n  at: bare/certificate.pem\n  help: copy the whole folder that `bezant init` made; where members drew their keys themselves: bezant key use KEY-FOLDER FOLDER\n");

    // The other cluster's client, given this cluster's file.
    copy(&place.path("other/client"), &place.path("mixed"));
    fs::copy(place.path("bezant-data/cluster.toml"), place.path("mixed/cluster.toml")).expect("copied");
    place.run(&["get", "a", "--cluster", "mixed"]).expect(2).says("is not the key that cluster.toml lists for client 1");

    // It insists, and lists itself: now only the replicas can refuse.
    let [ours, theirs] = ["bezant-data", "other"].map(|folder| client_key(&place.path(folder)));
    let forged = fs::read_to_string(place.path("mixed/cluster.toml")).expect("read").replace(&ours, &theirs);
    fs::write(place.path("mixed/cluster.toml"), forged).expect("written");
    let refused = place.run(&["get", "a", "--cluster", "mixed"]).expect(2);
    let sentence = format!(
        "s0-r0 refuses: the key {theirs} is not a member of cluster {}: the certificate belongs to another cluster or was removed",
        cluster_id(&place)
    );
    refused.says(&sentence).says("every replica that answers refuses this client's key");
    eventually("it is counted", || closed(&place, "s0-r0", "unknown_key") > 0);

    // Who shows no certificate at all hears it over TLS.
    let mut raw = Raw::connect(place.address("s0-r0", "address"), Shows::Nothing);
    let words = "no client certificate was presented; use the client folder that `bezant init` made".to_owned();
    assert_eq!(raw.greeting(), Some(Greeting::Refused(words)));
    eventually("it is counted", || closed(&place, "s0-r0", "no_certificate") == 1);
    place.run(&["put", "a", "1"]).expect(0).says("by 6 of 6 replicas");
}

#[test]
fn garbage_costs_one_connection_and_one_count_each() {
    let place = Place::new();
    place.init(&["--clients", "5"]);
    place.run(&["up"]).expect(0);
    let address = place.address("s0-r0", "address");
    let member = || Raw::connect(address, Shows::member(&place.path("bezant-data/client")));
    let plain = |bytes: &[u8]| {
        let mut stream = TcpStream::connect(address).expect("it listens");
        stream.write_all(bytes).expect("it is read");
        stream.shutdown(Shutdown::Write).expect("it is open");
        raw::wait_for_end(&mut stream);
    };
    let topology = bezant_client::load(place.path("bezant-data")).expect("made").topology;
    let configuration = runtime::Configuration::of(&topology.cluster, topology.signatures, topology.chain.version());
    let greet = |client: &str| {
        let mut raw = Raw::connect(address, Shows::member(&place.path("bezant-data").join(client)));
        raw.send(
            &Greeting::Hello { cluster: ClusterId::new(cluster_bytes(&place)), configuration, role: Role::Client(Session(7)) }.to_frame(),
        );
        let answer = raw.greeting();
        (raw, answer)
    };
    let greeted = |client: &str, bytes: &[u8]| {
        let (mut raw, answer) = greet(client);
        assert_eq!(answer, Some(Greeting::Welcome(configuration)));
        raw.send_last(bytes);
    };
    let too_long = u32::try_from(FRAME_BYTES_MAX + 1).expect("the limit fits").to_le_bytes();

    costs_one(&place, "handshake", || plain(b"GET / HTTP/1.1\r\n\r\n"));
    costs_one(&place, "handshake", || plain(&[0xff; 4_096]));
    // A handshake that ends in its middle: half of a TLS greeting.
    costs_one(&place, "handshake", || plain(&[0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3]));
    let cut = || Raw::connect(address, Shows::member(&place.path("bezant-data/client")).cut_to(100)).send_last(b"");
    costs_one(&place, "handshake", cut);
    costs_one(&place, "greeting", || member().send_last(&[0xff; 64]));
    costs_one(&place, "greeting", || member().send_last(&[too_long.as_slice(), &[FRAME_VERSION]].concat()));
    costs_one(&place, "frame_too_long", || greeted("client-2", &too_long));
    costs_one(&place, "frame_too_long", || greeted("client-3", &[0xff; 100]));
    costs_one(&place, "body_over_limit", || greeted("client-4", &[12, 0, 0, 0, FRAME_VERSION, 0, 0, 0, 0, 254, 255, 255, 255, 1, 2, 3, 4]));
    costs_one(&place, "body_unknown_tag", || greeted("client-5", &[9, 0, 0, 0, FRAME_VERSION, 0, 0, 0, 0, 1, 0, 0, 0, 251]));

    // Who sent a frame that cannot be read is refused for a while, in words.
    costs_one(&place, "expelled", || {
        let (_, answer) = greet("client-2");
        assert!(matches!(&answer, Some(Greeting::Refused(words)) if words.contains("no correct member sends")), "{answer:?}");
    });

    // Nothing else happened: the cluster is whole, and its log has not grown by a complaint.
    place.run(&["put", "a", "1"]).expect(0).says("over the fast path by 6 of 6 replicas");
    let log = fs::read_to_string(place.path("bezant-data/s0-r0/node.log")).expect("kept");
    assert!(!log.contains("WARN") && !log.contains("ERROR"), "{log}");
}

/// Does `deed`, and checks that it costs one closed connection, counted under `cause` and nowhere else.
#[track_caller]
fn costs_one(place: &Place, cause: &str, deed: impl FnOnce()) {
    let (all, such) = (closed(place, "s0-r0", ""), closed(place, "s0-r0", cause));
    deed();
    eventually(cause, || closed(place, "s0-r0", cause) > such);
    assert_eq!(closed(place, "s0-r0", cause), such + 1, "{cause} counts once");
    assert_eq!(closed(place, "s0-r0", ""), all + 1, "{cause} and nothing else");
}

/// How many connections a replica has closed for `cause`; for any, when it is empty.
fn closed(place: &Place, replica: &str, cause: &str) -> u64 {
    let metrics = place.ask(replica, "/metrics").expect("it answers");
    let lines = metrics.lines().filter_map(|line| line.strip_prefix("bezant_connections_closed_total{reason=\""));
    let counts = lines.filter_map(|line| line.split_once("\"} ")).filter(|(label, _)| cause.is_empty() || *label == cause);
    counts.map(|(_, count)| count.parse::<u64>().expect("a number")).sum()
}

/// The public key of the only client of the cluster in `folder`.
fn client_key(folder: &Path) -> String {
    let cluster = fs::read_to_string(folder.join("cluster.toml")).expect("made");
    let client = cluster.split("[[client]]").nth(1).expect("one client");
    let line = client.lines().find_map(|line| line.strip_prefix("public_key = ")).expect("it has a key");
    line.trim_matches('"').to_owned()
}

fn cluster_id(place: &Place) -> String {
    let cluster = fs::read_to_string(place.path("bezant-data/cluster.toml")).expect("made");
    let line = cluster.lines().find_map(|line| line.strip_prefix("id = ")).expect("it has a name");
    line.trim_matches('"').to_owned()
}

fn cluster_bytes(place: &Place) -> [u8; 16] {
    let mut bytes = [0; 16];
    hex::decode_to_slice(cluster_id(place), &mut bytes).expect("16 bytes in hexadecimal");
    bytes
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).expect("made");
    for entry in fs::read_dir(from).expect("it is there") {
        let entry = entry.expect("listed");
        fs::copy(entry.path(), to.join(entry.file_name())).expect("copied");
    }
}

const AUGUSTUS: [&str; 4] = ["s0-r0", "s0-r1", "s0-r2", "s0-r3"];

/// How many lists of requests a replica has delivered.
fn delivered(place: &Place, replica: &str) -> u64 {
    place.count_of(replica, "order", "delivered")
}

#[test]
fn augustus_goes_on_without_its_leader_which_takes_over_what_it_missed() {
    let place = Place::new();
    place.init(&["--engine", "augustus"]);
    place.run(&["up"]).expect(0);
    let bank = start_bank(&place, "journal");
    goes_on(&place, "journal", 20);
    let view = place.count_of("s0-r1", "order", "view");
    let leader = AUGUSTUS[usize::try_from(view % 4).expect("one of four")];
    let other = if leader == "s0-r3" { "s0-r2" } else { "s0-r3" };
    place.kill(leader);
    goes_on(&place, "journal", 300);
    assert!(place.count_of(other, "order", "view") > view, "another leads");
    place.run(&["up"]).expect(0);
    let there = delivered(&place, other);
    eventually("it has what it missed", || delivered(&place, leader) >= there);
    // It counts again: with another one down, three are left that must agree.
    place.kill(other);
    goes_on(&place, "journal", 50);
    end_bank(bank);
    verify(&place, "journal");
}

#[test]
fn nothing_that_augustus_acknowledged_is_lost_when_all_four_are_killed_at_once() {
    let place = Place::new();
    place.init(&["--engine", "augustus"]);
    place.run(&["up"]).expect(0);
    let bank = start_bank(&place, "journal");
    for _ in 0..2 {
        goes_on(&place, "journal", 50);
        AUGUSTUS.iter().for_each(|replica| place.kill(replica));
        place.run(&["up"]).expect(0);
    }
    goes_on(&place, "journal", 50);
    end_bank(bank);
    verify(&place, "journal");
}
