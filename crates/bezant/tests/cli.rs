//! The program as its users meet it: real processes, real TLS, real disks, ports of their own.

use std::fs;
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::place::{Place, Said, eventually};

#[test]
fn dev_runs_statements_and_keeps_what_they_wrote() {
    let place = Place::finding_ports();
    let said = place.run(&["dev", "--base-port", "auto", "--exec", "put a 1; get a; get b"]).expect(0);
    assert!(said.out.starts_with("put a = 1\na = 1\nb has no value\ncommitted "), "{said:#?}");
    assert!(said.out.trim_end().ends_with(" ms"), "{said:#?}");
    // A second process finds what the first one wrote.
    let said = place.run(&["dev", "--exec", "get a; put 'two words' 0x00ff; get 'two words'", "--json"]).expect(0);
    let json = said.json();
    assert_eq!(json["reads"][0]["value"], "1");
    assert_eq!(json["reads"][1]["value"], "0x00ff");
    assert_eq!(json["id"].as_str().map(str::len), Some(64));
}

#[test]
fn the_program_allocates_with_mimalloc() {
    // It is linked for its `malloc` alone, so it is there only if the linker took that.
    let said = Command::new(env!("CARGO_BIN_EXE_bezant")).arg("--version").env("MIMALLOC_VERBOSE", "1").output().expect("it runs");
    assert!(String::from_utf8_lossy(&said.stderr).contains("mimalloc"), "{said:?}");
}

#[test]
fn a_cluster_of_processes_comes_up_serves_loses_a_replica_and_goes_down() {
    let place = Place::new();
    place.init(&["--clients", "2"]);
    let nodes = place.run(&["up", "--json"]).expect(0).json();
    assert_eq!(nodes["nodes"].as_array().map(Vec::len), Some(6));

    place.run(&["put", "a", "1"]).expect(0).says("committed ").prints("");
    place.run(&["get", "a"]).expect(0).prints("1\n");
    place.run(&["get", "a", "--raw"]).expect(0).prints("1");
    place.run(&["get", "b"]).expect(1).prints("").says("b has no value");
    place.run(&["txn", "get a; put b 2; get b; delete a"]).expect(0).prints("a = 1\nb = 2\n");
    let put = place.run(&["put", "0x00", "@bezant-data/cluster.toml", "--json"]).expect(0).json();
    assert_eq!(put["attempts"], 1);
    place.run(&["delete", "b"]).expect(0);
    let bench =
        ["bench", "rw-u", "--keys", "100", "--load", "--clients", "4", "--seconds", "3", "--warmup", "0", "--cooldown", "0", "--json"];
    let report = place.run(&bench).expect(0).json();
    assert!(report["committed"].as_u64() > Some(0) && report["cpu_seconds"]["replicas"].is_number(), "{report}");
    place.run(&["get", "b"]).expect(1);

    // What was asked is wrong, and not the cluster.
    place.run(&["bench", "retwis", "--seconds", "0.5"]).expect(2).says("--load");
    place.run(&["bench", "bank", "--verify-journal", "nofile"]).expect(2).says("nofile");
    place.run(&["txn", "put row/1 one; put row/2 two; put row/3 three; delete row/2"]).expect(0);
    place.run(&["scan", "row/", "row0"]).expect(0).prints("row/1 = one\nrow/3 = three\n");
    place.run(&["scan", "row/", "row0", "--limit", "1"]).expect(0).prints("row/1 = one\n");
    place.run(&["scan", "row/", "row0", "--reverse"]).expect(0).prints("row/3 = three\nrow/1 = one\n");
    place.run(&["scan", "row/", "row0", "--reverse", "--limit", "1"]).expect(0).prints("row/3 = three\n");
    place.run(&["scan", "row/2", "row/3"]).expect(1).prints("").says("no key from row/2 to row/3 has a value");
    place.run(&["scan", "row/", "row0", "--limit", "0"]).expect(2).says("a limit is 1 or more");
    place.run(&["scan", "row0", "row/"]).expect(2).says("no key lies from row0 to row/");
    let found = place.run(&["scan", "row/", "row0", "--json"]).expect(0).json();
    assert_eq!((&found["reads"][0]["found"][1]["key"], &found["reads"][0]["limit"]), (&"row/3".into(), &100.into()));
    // Its own writes are laid over what it finds.
    let script = "put row/2 2; delete row/1; scan row/ row0; scan row/ row0 limit 1; scan x y";
    place.run(&["txn", script]).expect(0).prints("row/2 = 2\nrow/3 = three\nrow/2 = 2\nno key from x to y has a value\n");
    // The same from the end: what it deleted is passed over, and of what it wrote behind the last key found nothing is said.
    let script = "put row/0 0; put row/22 22; delete row/3; put row/4 4; scan row/ row0 reverse limit 2; scan row/ row0 limit 3 reverse; delete row/22; \
                  delete row/2; scan row/ row0 reverse limit 9; put row/2 2; put row/3 three; delete row/0; delete row/4";
    let found = "row/4 = 4\nrow/22 = 22\n".to_owned() + "row/4 = 4\nrow/22 = 22\nrow/2 = 2\n" + "row/4 = 4\nrow/0 = 0\n";
    place.run(&["txn", script]).expect(0).prints(&found);
    place.run(&["scan", "row/", "row0"]).expect(0).prints("row/2 = 2\nrow/3 = three\n");
    place.run(&["txn", "get nope"]).expect(0).prints("nope has no value\n");

    // A client's folder works wherever it is copied to, and another client sees what the first one wrote.
    fs::rename(place.path("bezant-data/client-2"), place.path("elsewhere")).expect("moved");
    let copied = place.run(&["get", "0x00", "--raw", "--cluster", "elsewhere"]).expect(0);
    assert_eq!(copied.out, fs::read_to_string(place.path("bezant-data/cluster.toml")).expect("read"));

    // One replica of six may be lost: everything goes on, and status says who is down.
    place.run(&["status"]).expect(0);
    place.kill("s0-r3");
    place.run(&["put", "c", "3"]).expect(0);
    let status = place.run(&["status", "--json"]).expect(1).json();
    let shard = &status["shards"][0];
    assert_eq!((&shard["serving"], &shard["needed"], &shard["can_commit"]), (&5.into(), &5.into(), &true.into()), "{status}");
    let down: Vec<&Value> = status["replicas"].as_array().expect("a list").iter().filter(|replica| replica["up"] == false).collect();
    assert_eq!(down.len(), 1);
    assert_eq!(down[0]["replica"], "s0-r3");
    place.run(&["up"]).expect(0);
    place.run(&["status"]).expect(0);
    place.run(&["get", "c"]).expect(0).prints("3\n");

    let down = place.run(&["down"]).expect(0).says("6 replicas are down");
    assert!(!down.err.contains("killed"), "{down:#?}");
    place.run(&["status"]).expect(1).says("shard s0 cannot commit");
    place.run(&["get", "c"]).expect(3).says("only 0 of the 5").says("refused");
    place.run(&["down"]).expect(0).says("nothing ran");
    // All of them lost power at once, as it were; nothing acknowledged is lost.
    place.run(&["up"]).expect(0);
    place.run(&["get", "c"]).expect(0).prints("3\n");
}

/// Runs the shell over a script.
#[test]
fn a_receipt_is_checked_without_the_cluster_and_a_changed_byte_is_noticed() {
    let place = Place::new();
    place.init(&[]);
    place.run(&["up"]).expect(0);
    place.run(&["put", "seen", "1"]).expect(0);
    place.run(&["txn", "get a; scan s t; put a one-hundred; delete b", "--receipt", "paid.receipt"]).expect(0);
    place.run(&["put", "a", "2", "--receipt", "paid.receipt"]).expect(2).says("exists already");
    place.run(&["get", "a"]).expect(0).prints("one-hundred\n");
    place.run(&["txn", "get a", "--receipt", "read.receipt"]).expect(0).says("leaves no receipt");
    assert!(!place.path("read.receipt").exists());
    let said = place.run(&["put", "a", "3", "--json", "--receipt", "nowhere/paid.receipt"]).expect(2).says("nothing was done");
    let error = &said.json()["error"];
    assert_eq!((&error["exit_code"], &error["at"]), (&2.into(), &"nowhere/paid.receipt".into()));
    place.run(&["get", "a"]).expect(0).prints("one-hundred\n");
    place.run(&["down"]).expect(0);

    let said = place.run(&["receipt", "verify", "paid.receipt", "--cluster", "bezant-data/cluster.toml"]).expect(0);
    let json = place.run(&["receipt", "verify", "paid.receipt", "--json"]).expect(0).json();
    assert_eq!((&json["reads"][0], &json["reads"][1]["key"]), (&serde_json::json!({"key": "a", "version": null}), &"seen".into()));
    assert_eq!((&json["ranges"], &json["writes"][0]["value"]), (&serde_json::json!([{"low": "s", "high": "t"}]), &"one-hundred".into()));
    let version = json["reads"][1]["version"].as_str().expect("it was written").to_owned();
    let read = format!("read a, which nobody had written\nread seen, version {version}\nread the range from s to t\n");
    assert!(said.out.starts_with("committed ") && said.out.contains(&format!(" replicas\n{read}")), "{said:#?}");
    assert!(version.ends_with("@c1") && said.out.ends_with("put a = one-hundred\ndelete b\n"), "{said:#?}");
    // Nothing but cluster.toml is needed; where there is none, that is what is asked for.
    let lacks = place.run(&["receipt", "verify", "paid.receipt", "--cluster", "nowhere"]).expect(2);
    lacks.says("there is no cluster.toml here").says("It is all that is needed");

    let whole = fs::read(place.path("paid.receipt")).expect("read");
    let value = whole.windows(11).position(|window| window == b"one-hundred").expect("what was written stands in it");
    // The last byte says that this is no message to pass on; the last signature stands before it, with its number among those of its batch.
    let last = whole.len() - 1;
    for (at, why) in [
        (0, "this is no receipt of basil's"),
        (value, "the receipt proves nothing: a certificate is about another transaction"),
        (last - 12, "the receipt proves nothing: no good signature of s0-r"),
        (last, "the receipt is not about a commit"),
    ] {
        let mut changed = whole.clone();
        changed[at] ^= 1;
        fs::write(place.path("changed.receipt"), changed).expect("written");
        place.run(&["receipt", "verify", "changed.receipt"]).expect(2).says(&format!("error: {why}"));
    }
    fs::write(place.path("changed.receipt"), &whole[..last]).expect("written");
    place.run(&["receipt", "verify", "changed.receipt"]).expect(2).says("error: the receipt is damaged: ");
    place.run(&["init", "another"]).expect(0);
    place.run(&["receipt", "verify", "paid.receipt", "--cluster", "another"]).expect(2).says("its own cluster");
}

#[test]
fn members_draw_their_own_keys_and_the_cluster_is_made_of_their_cards() {
    let place = Place::new();
    place.run(&["init", "ports", "--base-port", &place.base_port()]).expect(0);
    let text = fs::read_to_string(place.path("ports/cluster.toml")).expect("read");
    let all = |name: &str| -> Vec<String> {
        text.lines().filter_map(|line| line.strip_prefix(name)?.strip_suffix('"')).map(str::to_owned).collect()
    };
    let mut cards = String::from("# the members\n");
    for (at, (address, http)) in all("address = \"").iter().zip(all("http = \"")).enumerate() {
        cards += &place.run(&["key", "new", &format!("key-{at}"), "--replica", address, "--http", &http]).expect(0).out;
    }
    cards += &place.run(&["key", "new", "key-c", "--client"]).expect(0).out;
    assert_private(&place.path("key-c/key"));
    place.run(&["key", "new", "key-c", "--client"]).expect(2).says("a key here already");
    fs::write(place.path("few"), &cards[..cards.len() / 2]).expect("written");
    place.run(&["init", "shared", "--members", "few"]).expect(2).says("few, line ");
    fs::write(place.path("cards"), &cards).expect("written");
    place.run(&["init", "shared", "--members", "cards", "--shards", "2"]).expect(2).says("take 12");
    place.run(&["init", "shared", "--members", "cards"]).expect(0).says("key use");
    assert!(!place.path("shared/s0-r0/key").exists() && !place.path("shared/s0-r0/data").exists());

    place.run(&["key", "use", "key-1", "shared/s0-r0"]).expect(2).says("s0-r0");
    assert!(!place.path("shared/s0-r0/key").exists() && !place.path("shared/s0-r0/data").exists());
    place.run(&["key", "use", "key-c", "shared/s0-r0"]).expect(2).says("for nobody of this kind");
    for at in 0..6 {
        place.run(&["key", "use", &format!("key-{at}"), &format!("shared/s0-r{at}")]).expect(0);
    }
    place.run(&["key", "use", "key-c", "shared/client"]).expect(0);
    place.run(&["key", "use", "key-c", "shared/client"]).expect(2).says("its key already");
    place.run(&["up", "shared"]).expect(0);
    place.run(&["put", "a", "1", "--cluster", "shared"]).expect(0);
    place.run(&["get", "a", "--cluster", "shared/client"]).expect(0).prints("1\n");
    place.run(&["down", "shared"]).expect(0);
}

fn shell(place: &Place, script: impl AsRef<[u8]>) -> Said {
    let input = place.path("script");
    fs::write(&input, script).expect("written");
    let mut command = Command::new(env!("CARGO_BIN_EXE_bezant"));
    command.arg("shell").current_dir(place.path("")).env("HOME", place.path(""));
    let output = command.stdin(fs::File::open(&input).expect("opened")).output().expect("the program starts");
    Said::new(&["shell"], &output)
}

/// What is typed, or pasted, before the shell asks for it.
#[test]
fn lines_typed_ahead_on_a_terminal_are_all_run() {
    let place = Place::new();
    place.init(&[]);
    place.run(&["up"]).expect(0);
    let terminal = nix::pty::openpty(None, None).expect("a terminal");
    let side = || Stdio::from(terminal.slave.try_clone().expect("a descriptor"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_bezant"));
    command.arg("shell").current_dir(place.path("")).env("HOME", place.path("")).env("TERM", "xterm");
    let mut shell = command.stdin(side()).stdout(side()).stderr(side()).spawn().expect("the program starts");
    drop((command, terminal.slave));
    let mut keyboard = fs::File::from(terminal.master);
    let lines = "put a 1\rbegin\rput b 2\rput c 3\rcommit\rget c\rput d 4\rexit\r";
    keyboard.write_all(lines.as_bytes()).expect("typed");
    // Its end is an error: nobody holds the other side any more.
    let mut shown = Vec::new();
    let _ = keyboard.read_to_end(&mut shown);
    let ended = shell.wait().expect("it ends");
    let shown = String::from_utf8_lossy(&shown);
    assert!(ended.success() && shown.contains("c = 3"), "{shown}");
    for (key, value) in [("a", "1\n"), ("b", "2\n"), ("c", "3\n"), ("d", "4\n")] {
        place.run(&["get", key]).expect(0).prints(value);
    }
    let history = fs::read_to_string(place.path(".bezant_history")).expect("what is typed is kept");
    assert!(history.contains("put d 4"), "{history}");
}

#[test]
fn the_shell_runs_transactions_of_several_lines() {
    let place = Place::new();
    place.init(&["--shards", "2", "--placement", "ranges:m"]);
    place.run(&["up"]).expect(0);
    let script = "# first\nput a 1; put z 26\nbegin\nget a\nput a 2\nget a\nget z\ncommit\nbegin\nput a 9\nabort\nget a\n";
    let said = shell(&place, script).expect(0).says("aborted");
    assert_eq!(said.out, "a = 1\na = 2\nz = 26\na = 2\n", "{said:#?}");

    // What fails within a transaction fails all of it, and the script.
    let said = shell(&place, "begin\nput pa 1\nputt pb 1\nput pc 1\ncommit\nget pa\nget a\n").expect(2);
    let said =
        said.says("no statement `putt`").says("this transaction has failed").says("nothing was committed").says("line 3 was the first");
    let said = said.says("at: standard input, line 3, statement 1 of 1").says("at: standard input, line 5");
    assert_eq!(said.out, "pa has no value\na = 2\n", "{said:#?}");
    let said = shell(&place, "put pd 1; begin; puut pe 1\nput pf 1\ncommit\nget pd\nget pf\n").expect(2);
    assert_eq!(said.out, "pd has no value\npf has no value\n", "also where it is the line that begins it: {said:#?}");
    // It can be given up and begun again.
    shell(&place, "begin\nputt\nabort\nbegin\nput pa 1\ncommit\n").expect(2);
    place.run(&["get", "pa"]).expect(0).prints("1\n");
    // Outside a transaction each line stands for itself; but the script failed.
    let said = shell(&place, "nonsense\nget a\n").expect(2).says("no statement `nonsense`").says("line 1 was the first");
    assert_eq!(said.out, "a = 2\n");
    shell(&place, "begin\nput a 9\n").expect(2).says("ended within a transaction");
    // A line that is no text fails as any other, and a line's end is no part of it.
    let said = shell(&place, b"put le 1\r\n\xff\xfe\nget le").expect(2).says("not UTF-8").says("line 2 was the first");
    assert_eq!(said.out, "le = 1\n");
    // Nor is anything done of a transaction that could not be begun.
    let said = shell(&place, "begin as of 2500-01-01T00:00:00Z\nput pg 1\ncommit\nget pg\n").expect(2).says("in the future");
    assert_eq!(said.out, "pg has no value\n", "{said:#?}");
    shell(&place, "begin as of 0s ago\nput pg 1\nabort\n").expect(2).says("reads only");
    place.run(&["get", "a"]).expect(0).prints("2\n");
    assert!(!place.path(".bezant_history").exists(), "a script is no history");

    // One transaction from a file, or from standard input.
    fs::write(place.path("statements"), "# both\nput x '@x'\nput y \"0x1\"\n").expect("written");
    place.run(&["txn", "statements"]).expect(2).says("write @statements");
    place.run(&["txn", "@statements"]).expect(0);
    place.run(&["get", "x"]).expect(0).prints("@x\n");
    let mut command = Command::new(env!("CARGO_BIN_EXE_bezant"));
    command.args(["txn", "-"]).current_dir(place.path("")).stdin(fs::File::open(place.path("statements")).expect("opened"));
    Said::new(&["txn", "-"], &command.output().expect("the program starts")).expect(0);
    place.run(&["txn", "@nowhere"]).expect(2).says("nowhere");
    place.run(&["put", "k", "@x"]).expect(2).says("bezant txn 'put KEY \"@…\"'");
}

#[test]
fn what_one_command_runs_another_does_not_touch() {
    let place = Place::new();
    place.init(&[]);
    let dev = place.spawn(&["dev"]);
    eventually("dev serves", || place.ask("s0-r0", "/health").is_some_and(|health| health.contains("serving")));
    place.run(&["down"]).expect(3).says("`bezant dev` runs this cluster").says("Ctrl-C");
    place.run(&["up"]).expect(3).says("`bezant dev` runs this cluster");
    dev.signal(rustix::process::Signal::INT);
    dev.wait().expect(0);
    // No descriptor of its caller outlives `up`: a lock that the caller holds is free when the caller is gone.
    let lock = place.path("lock");
    let script = format!("exec 9>{}; flock 9; {} up >/dev/null", lock.display(), env!("CARGO_BIN_EXE_bezant"));
    let status = Command::new("sh").args(["-c", &script]).current_dir(place.path("")).status().expect("a shell");
    assert!(status.success());
    fs::File::open(&lock).expect("made").try_lock().expect("the nodes do not hold it");
    // Nobody else on this computer may read what a replica keeps.
    for path in ["", "s0-r0", "s0-r0/data", "s0-r0/node.log", "s0-r0/data/identity.toml", "s0-r0/data/journal/00000001.log"] {
        let path = place.path(&format!("bezant-data/{path}"));
        let mode = std::os::unix::fs::PermissionsExt::mode(&fs::metadata(&path).expect("made").permissions());
        assert_eq!(mode & 0o077, 0, "{} has mode {mode:o}", path.display());
    }
    // Nor may its memory, which holds keys, be written down; and it may have files enough.
    let note = fs::read_to_string(place.path("bezant-data/run/s0-r0.pid")).expect("noted");
    let limits = fs::read_to_string(format!("/proc/{}/limits", note.trim())).expect("it runs");
    let of = |name: &str| limits.lines().find(|line| line.starts_with(name)).expect("listed").split_whitespace().collect::<Vec<_>>();
    assert_eq!(of("Max core file size")[4], "1", "{limits}");
    let files = of("Max open files");
    assert!(files[3].parse::<u64>().is_ok_and(|files| files >= 1_024), "{limits}");
    place.run(&["down"]).expect(0);
    let few = format!("ulimit -n 200; exec {} node bezant-data/s0-r0", env!("CARGO_BIN_EXE_bezant"));
    let output = Command::new("sh").args(["-c", &few]).current_dir(place.path("")).output().expect("a shell");
    Said::new(&["node"], &output).expect(3).says("may have 200 files open").says("ulimit -Hn");
}

#[test]
fn init_never_overwrites_and_says_what_is_wrong() {
    let place = Place::new();
    place.init(&["--shards", "2", "--faults", "1", "--hosts", "one.example,two.example", "--allow-crowded-hosts"]);
    place.run(&["init", "bezant-data"]).expect(2).says("a cluster here already").says("help: ");
    let cluster = fs::read_to_string(place.path("bezant-data/cluster.toml")).expect("read");
    assert!(cluster.contains("one.example:") && cluster.contains("two.example:"), "{cluster}");
    assert_eq!(cluster, fs::read_to_string(place.path("bezant-data/s1-r5/cluster.toml")).expect("read"));
    assert_private(&place.path("bezant-data/s0-r0/key"));
    assert_private(&place.path("bezant-data/client/key"));
    fs::create_dir(place.path("other")).expect("made");
    fs::write(place.path("other/file"), "").expect("written");
    place.run(&["init", "other"]).expect(2).says("not empty");
    place.run(&["init", "x", "--shards", "3", "--placement", "ranges:b"]).expect(2).says("2 bounds");
    place.run(&["init", "x", "--shards", "2", "--placement", "ranges:"]).expect(2).says("the first shard would never hold a key");
    place.run(&["init", "x", "--hosts", "a b", "--allow-crowded-hosts"]).expect(2).says("not a host");
    place.run(&["init", "x", "--base-port", "65530"]).expect(2).says("past 65535");
    place.run(&["init", "x", "--faults", "11"]).expect(2);
    place.run(&["init", "x", "--window-ms", "1000", "--time-bound-ms", "900"]).expect(2).says("help: ");
    place.run(&["init", "x", "--engine", "sentinel", "--window-ms", "1000"]).expect(2).says("the engine sentinel do not go by window_ms");
    place
        .run(&["init", "x", "--engine", "augustus", "--read-quorum", "f+1"])
        .expect(2)
        .says("the engine augustus do not go by read_quorum");
    assert!(!place.path("x").exists(), "a refused command leaves nothing behind");
}

#[test]
fn a_failure_keeps_its_exit_code_where_nobody_reads_what_is_said() {
    let place = Place::new();
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let mut command = Command::new(env!("CARGO_BIN_EXE_bezant"));
    let ended = command.args(["up", "nosuch"]).current_dir(place.path("")).stderr(writer).status().expect("the program starts");
    assert_eq!(ended.code(), Some(2));
}

#[test]
fn no_host_may_hold_more_replicas_of_a_shard_than_may_be_lost_unless_that_is_accepted() {
    let place = Place::new();
    let three = ["init", "x", "--shards", "2", "--hosts", "a.example,b.example,c.example"];
    let refused = place.run(&three).expect(2).says("would hold 2 replicas of each shard").says("survives the loss of 1");
    refused.says("name 6 different hosts").says("--allow-crowded-hosts");
    place.run(&["init", "x", "--hosts", "a.example,b.example,c.example,d.example,e.example,A.EXAMPLE"]).expect(2).says("a.example");
    assert!(!place.path("x").exists(), "a refused command leaves nothing behind");
    place.run(&[three.as_slice(), &["--allow-crowded-hosts"]].concat()).expect(0);
    // With f = 2 a host may hold two of a shard's eleven replicas.
    place.run(&["init", "y", "--faults", "2", "--hosts", "a.example,b.example,c.example,d.example,e.example,f.example"]).expect(0);
    // What help shows can be done.
    let help = place.run(&["init", "--help"]).expect(0).out;
    let example = help.split("  bezant ").find(|example| example.starts_with("init shared")).expect("an example with hosts");
    place.run(&example.split_whitespace().collect::<Vec<_>>()).expect(0);
}

#[test]
fn many_clients_share_one_list_of_clients() {
    let place = Place::new();
    place.run(&["init", "many", "--clients", "1000"]).expect(0);
    // As many bytes as the disk holds: a file with several names is there once.
    let mut files = std::collections::BTreeMap::new();
    for folder in fs::read_dir(place.path("many")).expect("made").map(|entry| entry.expect("listed").path()).filter(|path| path.is_dir()) {
        // An operator is no member.
        let can_be_copied = folder.ends_with("operator") || folder.join("cluster.toml").exists();
        assert!(can_be_copied, "{} can be copied to another host as it is", folder.display());
        for file in fs::read_dir(folder).expect("made") {
            let data = file.expect("listed").metadata().expect("readable");
            files.insert(std::os::unix::fs::MetadataExt::ino(&data), data.len());
        }
    }
    let bytes: u64 = files.values().sum();
    assert!(bytes < 4_000_000, "{bytes} bytes for a thousand clients");
    // Copied away, a folder is still whole.
    fs::create_dir(place.path("copied")).expect("made");
    for name in ["client.toml", "cluster.toml", "key", "certificate.pem"] {
        fs::copy(place.path("many/client-7").join(name), place.path("copied").join(name)).expect("copied");
    }
    fs::remove_dir_all(place.path("many")).expect("removed");
    place.run(&["status", "--cluster", "copied"]).expect(1).says("cannot commit");
}

#[test]
fn dev_refuses_what_the_cluster_that_is_there_is_not() {
    let place = Place::new();
    let base_port = place.base_port();
    place.run(&["dev", "--base-port", &base_port, "--exec", "put a 1"]).expect(0);
    place.run(&["dev", "--shards", "2", "--exec", "get a"]).expect(2).says("--shards says otherwise than").says("bezant-data/cluster.toml");
    place.run(&["dev", "--faults", "2", "--exec", "get a"]).expect(2).says("--faults says otherwise than");
    let again = place.run(&["dev", "--shards", "1", "--base-port", &base_port, "--window-ms", "20000", "--exec", "get a"]).expect(0);
    again.says("--base-port, --window-ms had no effect: the cluster in ./bezant-data is made already");
}

#[test]
fn a_folder_that_cannot_be_used_keeps_no_other_replica_down() {
    let place = Place::new();
    place.init(&[]);
    let settings = place.path("bezant-data/s0-r2/node.toml");
    let right = fs::read_to_string(&settings).expect("it is there");
    fs::write(&settings, format!("{right}\nlog_level = \"loud\"\n")).expect("written");
    let up = place.run(&["up"]).expect(2).says("s0-r2/node.toml").says("1 of the replicas here cannot be started; the others run");
    assert_eq!(up.out.lines().count(), 5, "{up:#?}");
    place.run(&["put", "a", "1"]).expect(0);
    fs::remove_file(&settings).expect("removed");
    place.run(&["up"]).expect(2).says("this replica's folder has no node.toml").says("s0-r2");
    place.run(&["up", "bezant-data/s0-r1"]).expect(2).says("no replica's folder is here").says("name the cluster's folder");
    fs::write(&settings, right).expect("written");
    place.run(&["up"]).expect(0);
    // The folder's name may be given as other commands take it, but not twice.
    for command in [&["down", "--cluster", "nowhere"] as &[&str], &["up", "--cluster", "nowhere"], &["status", "nowhere"]] {
        place.run(command).expect(2).says("nowhere");
    }
    for command in [&["up", "bezant-data", "--cluster", "other"] as &[&str], &["status", "bezant-data", "--cluster", "other"]] {
        place.run(command).expect(2).says("cannot be used with");
    }
    place.run(&["status", "bezant-data"]).expect(0);
    place.run(&["down", "--cluster", "bezant-data"]).expect(0).says("6 replicas are down");
}

#[test]
fn a_cluster_on_the_ports_of_another_does_not_come_up_and_is_not_taken_for_it() {
    let place = Place::new();
    place.init(&[]);
    place.run(&["up"]).expect(0);
    place.run(&["init", "other", "--base-port", &place.base_port()]).expect(0);
    take_addresses(&place.path("bezant-data/cluster.toml"), &place.path("other"));
    for index in 0..6 {
        fs::write(place.path(&format!("other/s0-r{index}/node.log")), "error: of another day\n").expect("written");
    }
    // None can listen. Which of them is seen to end first, nobody knows.
    let said = place.run(&["up", "other"]).expect(3);
    let named = |index| said.err.contains(&format!("s0-r{index} ended at its start: s0-r{index} cannot listen"));
    assert_eq!((0..6).filter(|index| named(*index)).count(), 1, "{said:#?}");
    assert!(said.err.matches("error:").count() == 1 && !said.err.contains("another day"), "{said:#?}");
    place.run(&["put", "a", "1", "--cluster", "other"]).expect(2).says("are not its replicas").says("another cluster runs on these ports");
    let status = place.run(&["status", "--cluster", "other"]).expect(1).says("cannot commit");
    assert!(status.out.contains("somebody else answers there"), "{status:#?}");
    place.run(&["down", "other"]).expect(0);
    // Nor is a cluster made to run there.
    let port = place.address("s0-r0", "address").port().to_string();
    place.run(&["init", "beside", "--base-port", &port]).expect(0).says("warning: another program has").says("--base-port auto");
    let dev = place.run(&["dev", "third", "--base-port", &port, "--exec", "put a 1"]).expect(3);
    dev.says("another program has one of the ports").says("--base-port auto");
    assert!(!place.path("third").exists(), "a refused command leaves nothing behind");
    // Nor does one process run what others do.
    place.run(&["dev", "--exec", "get a"]).expect(3).says("`bezant up` runs this cluster").says("bezant down ./bezant-data");
    place.run(&["status"]).expect(0);
    assert!(!place.path("bezant-data/run/dev.pid").exists(), "it did not run");
}

/// Gives the six replicas in `folder` the addresses that `cluster` lists.
fn take_addresses(cluster: &Path, folder: &Path) {
    let read = |path: &Path| fs::read_to_string(path).expect("made");
    let addresses = |text: &str| text.split('"').filter(|word| word.starts_with("127.0.0.1:")).map(str::to_owned).collect::<Vec<_>>();
    let (taken, own) = (addresses(&read(cluster)), addresses(&read(&folder.join("cluster.toml"))));
    let nodes = (0..6).map(|index| folder.join(format!("s0-r{index}/node.toml")));
    // All names of cluster.toml are one file.
    for file in nodes.chain([folder.join("cluster.toml")]) {
        let words = read(&file)
            .split('"')
            .map(|word| own.iter().position(|own| own == word).map_or(word.to_owned(), |at| taken[at].clone()))
            .collect::<Vec<_>>();
        fs::write(&file, words.join("\"")).expect("written");
    }
}

#[test]
fn down_stops_what_runs_whatever_became_of_its_folder() {
    let place = Place::new();
    place.init(&[]);
    place.run(&["up"]).expect(0);
    for replica in ["s0-r1", "s0-r2"] {
        fs::write(place.path(&format!("bezant-data/{replica}/node.toml")), "x = 1\n").expect("written");
    }
    let pid = fs::read_to_string(place.path("bezant-data/run/s0-r4.pid")).expect("noted");
    place.kill("s0-r4");
    let stat = format!("/proc/{}/stat", pid.trim());
    eventually("it is gone", || fs::read_to_string(&stat).is_ok_and(|stat| stat.contains(") Z ")) || !Path::new(&stat).exists());
    place.run(&["down"]).expect(0).says("5 replicas are down");
    assert_eq!(fs::read_dir(place.path("bezant-data/run")).expect("there").count(), 0, "nothing is noted any more");
    place.run(&["down"]).expect(0).says("nothing ran");
    place.run(&["down", "nowhere"]).expect(2).says("there is no cluster here");
}

#[test]
fn copies_of_cluster_toml_that_differ_are_told() {
    let place = Place::new();
    place.init(&[]);
    let whole = place.path("bezant-data/cluster.toml");
    let quiet = |said: Said| assert!(!said.err.contains("cluster.toml"), "{said:#?}");
    quiet(place.run(&["status"]).expect(1));
    // As an editor does that writes another file and renames it.
    let text = fs::read_to_string(&whole).expect("read");
    fs::write(place.path("next"), format!("{text}# edited\n")).expect("written");
    fs::rename(place.path("next"), &whole).expect("renamed");
    let warning = "bezant-data/cluster.toml is not that of s0-r0, s0-r1, s0-r2, s0-r3, s0-r4, s0-r5, client, of which each reads its own";
    place.run(&["status"]).expect(1).says(warning);
    place.run(&["up"]).expect(0).says(warning);
}

#[test]
fn a_replica_whose_folder_cannot_be_audited_is_not_called_broken() {
    let place = Place::new();
    place.init(&[]);
    for folder in ["bezant-data/s0-r1", "bezant-data/s0-r1/data"] {
        place.run(&["audit", "offline", folder]).expect(2).says("this is a replica of basil").says("bezant status");
    }
}

#[test]
fn values_are_printed_as_they_are_read() {
    let place = Place::new();
    place.init(&[]);
    place.run(&["up"]).expect(0);
    fs::write(place.path("text"), "two\nlines\n").expect("written");
    place.run(&["put", "text", "@text"]).expect(0);
    place.run(&["get", "text"]).expect(0).prints("two\nlines\n");
    place.run(&["get", "text", "--raw"]).expect(0).prints("two\nlines\n");
    assert_eq!(place.run(&["get", "text", "--json"]).expect(0).json()["reads"][0]["value"], "two\nlines\n");
    // Of several values each has its line, in the quotes in which it could be put again.
    place.run(&["txn", "get text; put again \"two\\nlines\\n\""]).expect(0).prints("text = \"two\\nlines\\n\"\n");
    place.run(&["get", "again"]).expect(0).prints("two\nlines\n");
    // Whoever has not said how many hears that there may be more.
    let puts: Vec<String> = (0..100).map(|number| format!("put many/{number:02} 1")).collect();
    place.run(&["txn", &puts.join("; ")]).expect(0);
    let more = "the first 100 keys; --limit N for more, --all for all";
    place.run(&["scan", "many/", "many0"]).expect(0).says(more);
    for enough in [&["--limit", "100"] as &[&str], &["--json"], &["--all"]] {
        let said = place.run(&[&["scan", "many/", "many0"], enough].concat()).expect(0);
        assert!(!said.err.contains(more), "{said:#?}");
    }
    // What would steer a terminal is shown as bytes.
    place.run(&["put", "steers", "0x1b5b324a"]).expect(0);
    place.run(&["get", "steers"]).expect(0).prints("0x1b5b324a\n");
    place.run(&["put", "looks", "0x30783132"]).expect(0);
    place.run(&["get", "looks"]).expect(0).prints("0x30783132\n");

    place.run(&["put", "x", "-1", "--json"]).expect(0);
    place.run(&["get", "x"]).expect(0).prints("-1\n");
    place.run(&["put", "-2.5", "--", "--json"]).expect(0);
    place.run(&["get", "-2.5"]).expect(0).prints("--json\n");
}

#[test]
fn status_fits_the_terminal() {
    let place = Place::new();
    place.init(&[]);
    place.run(&["up"]).expect(0);
    place.kill("s0-r3");
    for columns in ["40", "80"] {
        let said = place.run_with(&["status"], "COLUMNS", columns).expect(1);
        let letters = columns.parse().expect("a number");
        assert!(said.out.lines().chain(said.err.lines()).all(|line| line.chars().count() <= letters), "{said:?}");
        assert!(said.out.contains("s0-r3") && said.out.contains("down") && said.out.contains("serving"), "{said:?}");
    }
}

#[cfg(unix)]
fn assert_private(path: &Path) {
    use std::os::unix::fs::PermissionsExt as _;
    assert_eq!(fs::metadata(path).expect("made").permissions().mode() & 0o777, 0o600);
}

#[cfg(not(unix))]
fn assert_private(path: &Path) {
    assert!(path.exists());
}

#[test]
fn a_wrong_setting_is_named_with_its_file_line_and_remedy() {
    let place = Place::new();
    place.init(&[]);
    let path = place.path("bezant-data/s0-r0/node.toml");
    let good = fs::read_to_string(&path).expect("read");
    let line = good.lines().position(|line| line.starts_with("batch_max")).expect("there") + 1;
    for (from, to, says) in [
        ("batch_max", "batchmax", "unknown key `batchmax`"),
        ("batch_max = 64", "batch_max = 0", "from 1 to 64"),
        ("batch_max = 64", "batch_max = \"many\"", "`settings.batch_max` cannot be \"many\": it takes a number from 1 to 64"),
    ] {
        fs::write(&path, good.replace(from, to)).expect("written");
        place.run(&["node", "bezant-data/s0-r0"]).expect(2).says(says).says(&format!("node.toml:{line}")).says("help: ");
    }
    fs::write(&path, good.replace("log_level = \"info\"", "log_level = \"loud\"")).expect("written");
    place.run(&["node", "bezant-data/s0-r0"]).expect(2).says("`settings.log_level` cannot be \"loud\"").says("node.toml:");
    fs::write(&path, good.replace("s0-r0", "s0-r1")).expect("written");
    place.run(&["node", "bezant-data/s0-r0"]).expect(2).says("not the key that cluster.toml lists for s0-r1");
    place.run(&["up", "nowhere"]).expect(2).says("nowhere");
    place.run(&["node", "nowhere"]).expect(2).says("node.toml is missing");
    // There is something, and nobody can say what: not the same as nothing.
    fs::create_dir(place.path("unreadable")).expect("made");
    for file in ["node.toml", "client.toml"] {
        std::os::unix::fs::symlink(file, place.path(&format!("unreadable/{file}"))).expect("linked to itself");
    }
    place.run(&["node", "unreadable"]).expect(2).says("cannot be looked for").says("unreadable/node.toml");
    place.run(&["get", "a", "--cluster", "unreadable"]).expect(2).says("cannot be looked for").says("unreadable/client.toml");
    place.run(&["get", "a", "--cluster", "nowhere"]).expect(2).says("no cluster here").says("--cluster");
    place.run(&["txn", "get a; gte b"]).expect(2).says("statement 2 of 2: `gte b`");
    place.run(&["txn", "@nofile"]).expect(2).says("cannot be read").says("nofile");
    place.run(&["put", "k", "@nofile"]).expect(2).says("cannot be read");
    place.run(&["txn", " ; "]).expect(2).says("no statement");
    place.run(&["get", "0xz"]).expect(2).says("hexadecimal");
}

#[test]
fn a_replica_refuses_the_data_of_another_and_of_a_newer_program() {
    let place = Place::new();
    place.init(&[]);
    place.run(&["up"]).expect(0);
    place.run(&["down"]).expect(0);
    let identity = place.path("bezant-data/s0-r2/data/identity.toml");
    let newer = fs::read_to_string(&identity).expect("read").replace("format = 3", "format = 7");
    fs::write(&identity, newer).expect("written");
    place.run(&["node", "bezant-data/s0-r2"]).expect(3).says("has format 7").says("run the newer program");
    fs::remove_dir_all(place.path("bezant-data/s0-r1/data")).expect("removed");
    fs::rename(place.path("bezant-data/s0-r0/data"), place.path("bezant-data/s0-r1/data")).expect("moved");
    place.run(&["node", "bezant-data/s0-r1"]).expect(3).says("replica s0-r0").says("belongs to");
}

#[test]
fn a_lost_disk_is_noticed_and_never_a_fresh_start() {
    let place = Place::new();
    place.init(&[]);
    place.run(&["up"]).expect(0);
    place.run(&["put", "a", "1"]).expect(0);
    place.run(&["down"]).expect(0);
    let data = |replica: u8| place.path(&format!("bezant-data/s0-r{replica}/data"));
    let says = |what: &str| place.run(&["node", "bezant-data/s0-r0"]).expect(3).says(what).says("leave this replica stopped");
    // As if its disk were not mounted; then as if it were another, empty one.
    let kept = place.path("kept");
    fs::rename(data(0), &kept).expect("moved");
    says("s0-r0/data/identity.toml is missing").says("mounted?").says("never an older copy");
    fs::create_dir(data(0)).expect("made");
    says("s0-r0/data/identity.toml is missing");
    fs::remove_dir_all(data(0)).expect("removed");
    fs::rename(&kept, data(0)).expect("moved back");
    // A damaged identity is nobody else's.
    let identity = data(0).join("identity.toml");
    let whole = fs::read_to_string(&identity).expect("text");
    fs::write(&identity, whole.replacen("replica", "rePlica", 1)).expect("written");
    says("identity.toml is damaged");
    fs::write(&identity, whole).expect("written");
    // After `down`, what is not whole at the journal's end was not torn by a crash.
    let segment = data(0).join("journal/00000001.log");
    let journal = fs::read(&segment).expect("the journal");
    let last = journal.iter().rposition(|byte| *byte != 0).expect("it is not empty");
    let mut flipped = journal.clone();
    flipped[last] ^= 1;
    fs::write(&segment, flipped).expect("written");
    says("when this replica last stopped");
    fs::write(&segment, journal).expect("written");
    place.run(&["up"]).expect(0);
    place.run(&["get", "a"]).expect(0).prints("1\n");
    place.run(&["down"]).expect(0);
    // All of them at once: nobody serves, and nobody says that all is well.
    (0..6).for_each(|replica| fs::remove_dir_all(data(replica)).expect("removed"));
    place.run(&["up"]).expect(3).says("is missing");
}

/// A process that was killed is there for a moment yet, and serves no more.
#[cfg(target_os = "linux")]
#[test]
fn a_replica_that_was_about_to_end_is_started_again() {
    let place = Place::new();
    place.init(&["--engine", "augustus"]);
    let mut ending = std::process::Command::new("sleep").arg("1").spawn().expect("it starts");
    let stat = fs::read_to_string(format!("/proc/{}/stat", ending.id())).expect("it runs");
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("text");
    let begun = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(19)).expect("when it began");
    let run = place.path("bezant-data/run");
    fs::create_dir(&run).expect("made");
    fs::write(run.join("s0-r1.pid"), format!("{}\n", ending.id())).expect("written");
    fs::write(run.join("s0-r1.started"), format!("{begun} {}\n", boot.trim())).expect("written");
    place.run(&["up"]).expect(0);
    ending.wait().expect("it has ended");
    assert!(place.ask("s0-r1", "/health").is_some_and(|health| health.starts_with("serving")));
    place.run(&["down"]).expect(0).says("4 replicas are down");
}

/// The store of a replica's folder as `init` made it is in its place again: what was there is beside it, in `data.kept`.
fn put_back_as_made(place: &Place, replica: &str, as_made: &str) {
    let data = place.path(&format!("bezant-data/{replica}/data"));
    fs::rename(&data, data.with_extension("kept")).expect("moved");
    fs::create_dir(&data).expect("made");
    fs::write(data.join("identity.toml"), as_made).expect("written");
}

fn identity(place: &Place, replica: &str) -> String {
    fs::read_to_string(place.path(&format!("bezant-data/{replica}/data/identity.toml"))).expect("text")
}

#[test]
fn an_empty_store_in_the_place_of_data_is_noticed() {
    for (engine, last) in [("basil", 5), ("augustus", 3), ("sentinel", 2)] {
        let place = Place::new();
        let settings: &[&str] = if engine == "basil" { &["--window-ms", "4000"] } else { &[] };
        place.init(&[&["--engine", engine], settings].concat());
        let as_made = identity(&place, "s0-r1");
        place.run(&["up"]).expect(0);
        place.run(&["put", "a", "1"]).expect(0);
        place.run(&["down"]).expect(0);
        assert_ne!(identity(&place, "s0-r1"), as_made, "{engine}: it is in use");
        put_back_as_made(&place, "s0-r1", &as_made);
        // However often it is tried, and whoever starts it.
        for command in [&["node", "bezant-data/s0-r1"] as &[&str], &["up"], &["dev", "--exec", "get a"], &["node", "bezant-data/s0-r1"]] {
            let said = place.run(command).expect(3);
            said.says("s0-r1/data is empty, as `bezant init` made it")
                .says("s0-r1/has-run says that this replica has run")
                .says("mounted?")
                .says("leave this replica stopped, or rebuild it")
                .says("`bezant rebuild`");
            assert_eq!(identity(&place, "s0-r1"), as_made, "{engine}: it was not begun");
            place.run(&["down"]).expect(0);
        }
        // Rebuilt, or with its data where they were, it starts.
        place.run(&["rebuild", "bezant-data/s0-r1"]).expect(0).says("begins with an empty store").says("data.lost-1");
        place.run(&["up"]).expect(0);
        let serves = || place.ask("s0-r1", "/health").is_some_and(|health| health.starts_with("serving"));
        eventually("it is rebuilt", serves);
        place.run(&["get", "a"]).expect(0).prints("1\n");
        place.run(&["down"]).expect(0);
        let other = format!("s0-r{last}");
        put_back_as_made(&place, &other, &as_made.replace("s0-r1", &other));
        let data = place.path(&format!("bezant-data/{other}/data"));
        fs::remove_dir_all(&data).expect("removed");
        fs::rename(data.with_extension("kept"), &data).expect("moved back");
        place.run(&["up"]).expect(0);
        place.run(&["get", "a"]).expect(0).prints("1\n");
    }
}

#[test]
fn folders_of_earlier_programs_and_such_as_cannot_be_written_start() {
    let place = Place::new();
    place.init(&[]);
    let own = |replica: &str, file: &str| place.path(&format!("bezant-data/{replica}/{file}"));
    assert!(!own("s0-r0", "has-run").exists(), "it has not run yet");
    place.run(&["up"]).expect(0);
    place.run(&["put", "a", "1"]).expect(0);
    place.run(&["down"]).expect(0);
    // An earlier program left no such file.
    fs::remove_file(own("s0-r0", "has-run")).expect("it was there");
    // As if the folder of this one were mounted read-only.
    fs::remove_file(own("s0-r1", "has-run")).expect("it was there");
    fs::create_dir(own("s0-r1", "has-run.next")).expect("made");
    place.run(&["up"]).expect(0);
    place.run(&["get", "a"]).expect(0).prints("1\n");
    assert!(own("s0-r0", "has-run").exists() && !own("s0-r1", "has-run").exists());
    let log = fs::read_to_string(own("s0-r1", "node.log")).expect("kept");
    assert_eq!(log.matches("it cannot be kept that this replica has run").count(), 1, "{log}");
    let log = fs::read_to_string(own("s0-r0", "node.log")).expect("kept");
    assert!(!log.contains("it cannot be kept"), "{log}");
}

#[test]
fn a_half_made_cluster_does_not_start() {
    let place = Place::new();
    place.init(&[]);
    let (whole, first) = (place.path("bezant-data/cluster.toml"), place.path("bezant-data/cluster.toml.first"));
    // As `init` leaves it when it is killed.
    fs::rename(&whole, &first).expect("moved");
    for command in [&["up"] as &[&str], &["dev", "--exec", "get a"], &["init", "bezant-data"]] {
        place.run(command).expect(2).says("the cluster is half made").says("delete this folder").says("run `bezant init` again");
    }
    assert!(!place.path("bezant-data/run").exists(), "nothing was started");
    // Without it nobody can say whether all is there; but what is there may be in use.
    fs::remove_file(&first).expect("removed");
    let said = place.run(&["up"]).expect(2).says("cluster.toml is missing").says("put it back");
    assert!(!said.err.contains("delete"), "{said:#?}");
}

#[test]
fn every_command_explains_itself_with_an_example() {
    let place = Place::new();
    let bench = place.run(&["bench", "--help"]).expect(0).out;
    assert!(bench.lines().filter(|line| line.contains("  bezant bench")).all(|line| line.contains("--load")), "{bench}");
    let help = place.run(&["--help"]).expect(0).out;
    let commands = [
        "dev",
        "init",
        "node",
        "up",
        "down",
        "get",
        "put",
        "delete",
        "txn",
        "shell",
        "status",
        "bench",
        "bench-zookeeper",
        "zookeeper",
        "evidence",
    ];
    for command in commands {
        assert!(help.contains(&format!("\n  {command} ")), "{command} is not in the list:\n{help}");
        let said = place.run(&[command, "--help"]).expect(0);
        assert!(said.out.contains("Example") && said.out.contains(&format!("bezant {command}")), "{said:#?}");
    }
    let of_groups = ["key new", "key use", "backup take", "backup verify", "backup restore", "receipt verify", "audit offline"];
    for command in ["rebuild", "scan"].iter().chain(&of_groups) {
        let words: Vec<&str> = command.split(' ').chain(["--help"]).collect();
        let said = place.run(&words).expect(0);
        assert!(said.out.contains("Example") && said.out.contains(&format!("bezant {command}")), "{said:#?}");
    }
    place.run(&[]).expect(2);
    place.run(&["nonsense"]).expect(2);
}
