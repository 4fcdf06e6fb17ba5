//! A cluster of real processes whose operators change it while it runs.

use std::fs;

use crate::place::{Place, eventually};

/// The cluster of `place`, as `config show` prints it, with `edit` made to it.
fn edit(place: &Place, edit: impl FnOnce(String) -> String) {
    let shown = place.run(&["config", "show"]).expect(0).out;
    fs::write(place.path("next.toml"), edit(shown)).expect("written");
}

/// Proposes `next.toml`, and signs it as the one operator.
fn sign(place: &Place) {
    // The last one is applied.
    let _ = fs::remove_file(place.path("next"));
    place.run(&["config", "propose", "next.toml", "--out", "next"]).expect(0);
    let signed = place.run(&["config", "sign", "next", "--key", "bezant-data/operator"]).expect(0).says("1 of 1 needed");
    assert!(!signed.out.contains("0 of 1"), "{signed:#?}");
}

/// Proposes `next.toml`, signs it as the one operator, and applies it.
fn change(place: &Place) {
    sign(place);
    place.run(&["config", "apply", "next"]).expect(0);
}

/// Gives client 2 other rights.
fn rights(text: &str, read: &str, write: &str) -> String {
    let (before, client) = text.split_once("number = 2\n").expect("it is listed");
    let (of_client, after) = client.split_once("\n\n").unwrap_or((client, ""));
    let key = of_client.lines().find(|line| line.starts_with("public_key")).expect("it has one");
    format!("{before}number = 2\n{key}\nread = [{read}]\nwrite = [{write}]\n\n{after}")
}

#[test]
fn rights_and_limits_change_in_a_running_cluster_and_a_refusal_names_the_rule() {
    let place = Place::new();
    place.init(&["--clients", "2"]);
    place.run(&["up"]).expect(0);
    let other = "bezant-data/client-2";
    place.run(&["put", "b/1", "1", "--cluster", other]).expect(0);
    edit(&place, |text| rights(&text, "\"a/\"", ""));
    change(&place);
    place.run(&["put", "a/1", "1"]).expect(0);
    place.run(&["get", "a/1", "--cluster", other]).expect(0).prints("1\n");
    place.run(&["get", "b/1", "--cluster", other]).expect(2).says("c2 has no right to read b/1: it may read keys that begin with a/");
    place
        .run(&["scan", "a/", "c", "--cluster", other])
        .expect(2)
        .says("no right to read all keys from a/ to c: it may read keys that begin with a/");
    let may_not = "a backup needs a client that may read every key; c2 may read keys that begin with a/";
    place.run(&["backup", "take", "all.backup", "--cluster", other]).expect(2).says(may_not).says("--cluster");
    assert!(!place.path("all.backup").exists() && !place.path("all.backup.unfinished").exists());
    place.run(&["put", "a/1", "2", "--cluster", other]).expect(2).says("c2 has no right to write a/1: it may write nothing");
    // Limits.
    edit(&place, |text| rights(&text, "\"\"", "\"\"").replacen("number = 2\n", "number = 2\nkeys_max = 2\n", 1));
    change(&place);
    place.run(&["txn", "put a 1; put b 2", "--cluster", other]).expect(0);
    place.run(&["txn", "put a 1; put b 2; put c 3", "--cluster", other]).expect(2).says("over its limit keys_max");
    // Keys that were read count, too.
    place.run(&["txn", "get d; put a 1; put b 2", "--cluster", other]).expect(2).says("over its limit keys_max");
    let history = place.run(&["config", "history"]).expect(0).out;
    assert!(history.contains("c2 may read a/ instead of everything") && history.contains("keys_max 2"), "{history}");
    // All of it is there again after a restart, and status tells the version.
    place.run(&["down"]).expect(0);
    place.run(&["up"]).expect(0);
    let status = place.run(&["status", "--json"]).expect(0).json();
    let versions: Vec<_> =
        status["replicas"].as_array().expect("a list").iter().map(|it| it["status"]["configuration_version"].clone()).collect();
    assert_eq!(versions, vec![2; 6]);
    place.run(&["txn", "put a 1; put b 2; put c 3", "--cluster", other]).expect(2).says("keys_max");
}

#[test]
fn a_revoked_client_is_cut_off_at_every_replica_while_it_writes() {
    let place = Place::new();
    place.init(&["--clients", "2"]);
    place.run(&["up"]).expect(0);
    let writer = place.spawn(&[
        "bench",
        "rw-u",
        "--keys",
        "100",
        "--load",
        "--clients",
        "4",
        "--seconds",
        "3600",
        "--warmup",
        "0",
        "--cluster",
        "bezant-data/client-2",
    ]);
    // Each replica has five others connected.
    let clients = |index: usize| -> u64 {
        let metrics = place.ask(&format!("s0-r{index}"), "/metrics").unwrap_or_default();
        let open = metrics.lines().find_map(|line| line.strip_prefix("bezant_connections ")).and_then(|count| count.parse().ok());
        open.unwrap_or(0u64).saturating_sub(5)
    };
    eventually("it writes everywhere", || (0..6).all(|index| clients(index) == 1));
    let proposed = place.run(&["config", "propose", "--revoke-client", "2", "--out", "next", "--cluster", "bezant-data"]).expect(0);
    proposed.says("bezant config sign next --key bezant-data/operator --cluster bezant-data");
    place.run(&["config", "apply", "next"]).expect(2).says("0 of the operators have signed, and 1 must");
    place.run(&["config", "sign", "next", "--key", "bezant-data/operator"]).expect(0);
    place.run(&["config", "apply", "next"]).expect(0).prints("configuration 1: 6 of 6 replicas go by it\n");
    // It has half a second to read why.
    eventually("it is cut off everywhere", || (0..6).all(|index| clients(index) == 0));
    drop(writer);
    place.run(&["get", "a", "--cluster", "bezant-data/client-2"]).expect(2).says("client 2 was taken out of the cluster");
    place.run(&["put", "a", "1"]).expect(0);
}

#[test]
fn a_client_that_takes_itself_out_is_told_that_the_replicas_know() {
    let place = Place::new();
    place.init(&["--clients", "2"]);
    place.run(&["up"]).expect(0);
    place.run(&["config", "propose", "--revoke-client", "1", "--out", "next"]).expect(0);
    place.run(&["config", "sign", "next", "--key", "bezant-data/operator"]).expect(0);
    let applied = place.run(&["config", "apply", "next"]).expect(0);
    applied.prints("configuration 1: 6 of 6 replicas go by it\n").says("from now on name another client's folder");
    place.run(&["put", "a", "1", "--cluster", "bezant-data/client-2"]).expect(0);
}

#[test]
fn a_replica_that_slept_comes_up_to_date_and_an_operator_signs_one_configuration_a_version() {
    let place = Place::new();
    place.init(&["--clients", "5", "--operators", "3"]);
    place.run(&["up"]).expect(0);
    place.kill("s0-r5");
    for client in ["3", "4", "5"] {
        place.run(&["config", "propose", "--revoke-client", client, "--out", client]).expect(0);
        place.run(&["config", "sign", client, "--key", "bezant-data/operator-2"]).expect(0).says("1 of 2 needed");
        place.run(&["config", "apply", client]).expect(2).says("1 of the operators have signed, and 2 must");
        place.run(&["config", "sign", client, "--key", "bezant-data/operator-3"]).expect(0);
        let other = format!("other-{client}");
        place.run(&["config", "propose", "--revoke-client", "2", "--out", &other]).expect(0);
        place.run(&["config", "sign", &other, "--key", "bezant-data/operator-3"]).expect(2).says("has signed another configuration");
        place.run(&["config", "apply", client, "--seconds", "1"]).expect(0).says("s0-r5 have not said");
    }
    place.run(&["config", "apply", "3", "--seconds", "1"]).expect(0);
    place.run(&["config", "sign", "3", "--key", "bezant-data/operator"]).expect(2).says("version 1 is old");
    place.run(&["up"]).expect(0);
    let version = || -> Option<u64> {
        let status: serde_json::Value = serde_json::from_str(&place.ask("s0-r5", "/status")?).ok()?;
        status["configuration_version"].as_u64()
    };
    eventually("it has taken over all three", || version() == Some(3));
    assert_eq!(place.run(&["config", "show", "--cluster", "bezant-data/s0-r5"]).expect(0).out.matches("[[client]]").count(), 2);
}

#[test]
fn a_proposal_of_another_cluster_is_named_as_such_and_no_proposal_is_overwritten() {
    let place = Place::new();
    place.init(&["--clients", "3"]);
    place.run(&["init", "other", "--base-port", &place.base_port(), "--clients", "2"]).expect(0);
    place.run(&["config", "propose", "--revoke-client", "2", "--out", "foreign", "--cluster", "other"]).expect(0);
    for command in [
        &["config", "show", "foreign"] as &[&str],
        &["config", "sign", "foreign", "--key", "bezant-data/operator"],
        &["config", "apply", "foreign", "--offline", "--cluster", "bezant-data/client"],
    ] {
        place.run(command).expect(2).says("this proposal is for another cluster");
    }
    let propose = |client: &str| place.run(&["config", "propose", "--revoke-client", client, "--out", "next"]);
    propose("2").expect(0).says("--key ./bezant-data/operator");
    // The same again, and another.
    propose("2").expect(0);
    propose("3").expect(2).says("this file exists already").says("next");
    // Whoever has the wrong folder is told where the key may be.
    place.run(&["config", "sign", "next", "--key", "nowhere"]).expect(2).says("no operator's key here").says("DIR/operator");
    place.run(&["config", "sign", "next", "--key", "bezant-data/operator"]).expect(0);
    propose("2").expect(2).says("this file exists already");
}

/// Writes until all six have voted for it, and keeps the receipt of that; gives its file.
fn receipt_of_all(place: &Place, name: &str) -> String {
    let mut file = String::new();
    let mut tried = 0;
    eventually("all six vote", || {
        tried += 1;
        file = format!("{name}-{tried}.receipt");
        place.run(&["put", "r", "1", "--receipt", &file]).expect(0).err.contains("by 6 of 6 replicas")
    });
    file
}

/// Copies of these files of the cluster, with nothing beside them; gives the first one's name.
fn alone(place: &Place, files: &[&str]) -> String {
    let folder = format!("public-{}", files.len());
    fs::create_dir_all(place.path(&folder)).expect("made");
    for file in files {
        fs::copy(place.path("bezant-data").join(file), place.path(&folder).join(file)).expect("copied");
    }
    format!("{folder}/{}", files[0])
}

#[test]
fn a_replica_gets_another_key_and_another_is_replaced_while_the_cluster_runs() {
    let place = Place::new();
    place.init(&["--window-ms", "1000", "--time-bound-ms", "100"]);
    place.run(&["up"]).expect(0);
    place.run(&["put", "a", "1"]).expect(0);
    let early = receipt_of_all(&place, "early");
    // Another key, on the same disk.
    let card = place.run(&["key", "new", "new-key", "--replica", "127.0.0.1:1"]).expect(0).out;
    let new_key = card.split_whitespace().last().expect("its key").to_owned();
    edit(&place, |text| {
        let (before, entry) = text.split_once("name = \"s0-r1\"").expect("listed");
        let (entry, after) = entry.split_once("public_key = \"").expect("it has one");
        format!("{before}name = \"s0-r1\"{entry}public_key = \"{new_key}{}", &after[64..])
    });
    change(&place);
    eventually("it stops", || place.ask("s0-r1", "/status").is_none());
    place.run(&["put", "a", "2"]).expect(0);
    place.run(&["key", "use", "new-key", "bezant-data/s0-r1", "--rotate"]).expect(0);
    place.run(&["up"]).expect(0);
    eventually("all six serve", || place.run(&["status"]).code == Some(0));
    eventually("all six vote, and are believed", || place.run(&["put", "a", "3"]).err.contains("by 6 of 6 replicas"));
    // What was proven by the earlier key still is, and says by which configuration.
    let late = receipt_of_all(&place, "late");
    for (receipt, version) in [(&early, 0), (&late, 1)] {
        let proven = place.run(&["receipt", "verify", receipt]).expect(0).out;
        assert!(proven.contains(&format!("by the keys of configuration {version}, of 1 that are known here")), "{proven}");
        // With nothing but what is public.
        let public = alone(&place, &["cluster.toml", "configurations"]);
        let proven = place.run(&["receipt", "verify", receipt, "--cluster", &public]).expect(0).out;
        assert!(proven.contains(&format!("by the keys of configuration {version}, of 1")), "{proven}");
        // No configuration's keys prove what was changed.
        let mut changed = fs::read(place.path(receipt)).expect("kept");
        let in_the_last_signature = changed.len() - 13;
        changed[in_the_last_signature] ^= 1;
        fs::write(place.path("changed"), changed).expect("written");
        place.run(&["receipt", "verify", "changed"]).expect(2).says("error: the receipt proves nothing: no good signature of s0-r");
    }
    // Whoever lacks the configurations knows the earlier key alone.
    let first_alone = alone(&place, &["cluster.toml"]);
    place.run(&["receipt", "verify", &early, "--cluster", &first_alone]).expect(0);
    let refused = place.run(&["receipt", "verify", &late, "--cluster", &first_alone]).expect(2);
    refused.says("error: the receipt proves nothing: no good signature of s0-r1 covers");
    // Another holder of a place, with nothing of what the earlier one had.
    let address = format!("127.0.0.1:{}", place.port());
    let card = place.run(&["key", "new", "other-key", "--replica", &address]).expect(0).out;
    let new_key = card.split_whitespace().last().expect("its key").to_owned();
    edit(&place, |text| {
        let (before, entry) = text.split_once("name = \"s0-r2\"").expect("listed");
        let (_, entry) = entry.split_once('\n').expect("lines");
        let (_, entry) = entry.split_once('\n').expect("lines");
        let (http, after) = entry.split_once("public_key = \"").expect("it has one");
        format!("{before}name = \"s0-r2\"\naddress = \"{address}\"\n{http}public_key = \"{new_key}{}", &after[64..])
    });
    // As long as another is out as well, it has to wait.
    sign(&place);
    place.kill("s0-r4");
    place.run(&["config", "apply", "next"]).expect(2).says("of shard s0, s0-r2, s0-r4 would be out at once, and it survives 1");
    place.run(&["up"]).expect(0);
    eventually("the other serves again", || place.ask("s0-r4", "/health").is_some_and(|answer| answer.starts_with("serving")));
    eventually("it is applied", || place.run(&["config", "apply", "next"]).code == Some(0));
    place.run(&["config", "join", "other-key", "new-r2", "--window-ms", "1000", "--time-bound-ms", "100"]).expect(0);
    eventually("the earlier holder stops by itself", || place.ask("s0-r2", "/status").is_none());
    let joined = place.spawn(&["node", "new-r2"]);
    place.run(&["put", "a", "4"]).expect(0);
    eventually("it is rebuilt", || place.ask("s0-r2", "/health").is_some_and(|answer| answer.starts_with("serving")));
    eventually("all six vote again, and are believed", || place.run(&["put", "b", "1"]).err.contains("by 6 of 6 replicas"));
    place.run(&["get", "a"]).expect(0).prints("4\n");
    // A third key waits for its configuration: the replica goes on with it in the same process.
    let card = place.run(&["key", "new", "third-key", "--replica", "127.0.0.1:1"]).expect(0).out;
    let third_key = card.split_whitespace().last().expect("its key").to_owned();
    place.run(&["key", "use", "third-key", "bezant-data/s0-r3", "--rotate"]).expect(0).says("no configuration names this key yet");
    place.run(&["key", "use", "new-key", "bezant-data/s0-r3", "--rotate"]).expect(2).says("the last one in the place of s0-r1");
    place.run(&["key", "use", "third-key", "bezant-data/s0-r3", "--rotate"]).expect(0).says("no configuration names this key yet");
    for key in ["bezant-data/client", "bezant-data/operator", "bezant-data/s0-r4"] {
        place.run(&["key", "use", key, "bezant-data/s0-r3", "--rotate"]).expect(2);
    }
    let process = || place.ask("s0-r3", "/status").and_then(|it| Some(serde_json::from_str::<serde_json::Value>(&it).ok()?["pid"].clone()));
    let before = process();
    edit(&place, |text| {
        let (before, entry) = text.split_once("name = \"s0-r3\"").expect("listed");
        let (entry, after) = entry.split_once("public_key = \"").expect("it has one");
        format!("{before}name = \"s0-r3\"{entry}public_key = \"{third_key}{}", &after[64..])
    });
    change(&place);
    eventually("it serves with the new key", || {
        let log = fs::read_to_string(place.path("bezant-data/s0-r3/node.log")).expect("it logs");
        log.contains("goes on with its new key") && place.run(&["put", "b", "2"]).err.contains("by 6 of 6 replicas")
    });
    assert!(!place.path("bezant-data/s0-r3/key.next").exists() && before.is_some() && process() == before);
    // The folder of the earlier holder keeps nobody from starting the others.
    place.run(&["up"]).expect(0).says("has another key by now");
    drop(joined);
}
