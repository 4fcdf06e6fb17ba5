//! Configuration files, right and wrong: what is taken, and what a refusal says.

use std::fs;
use std::path::Path;

use config::{Config, ConfigError, FastPath, ReadOnly, ReadQuorum};
use crypto::SecretKey;
use engine::{Capabilities, Profile};
use tempfile::TempDir;
use types::{ClientId, ClusterId, Key, ReplicaId, ShardId};

static FIVE: Profile = Profile {
    name: "five",
    shape: "5f+1",
    shard_size: |faults| 5 * faults + 1,
    quorum: |faults| 4 * faults + 1,
    while_incomplete: "nothing changes",
    shards_max: usize::MAX,
    capabilities: Capabilities { interactive: true, one_shot: false, ranges: false, as_of: false, pool: false, receipts: false },
    tells_time: false,
    settings: &["time_bound_ms", "window_ms", "janitor_timeout_ms", "abandoned_per_second", "cache_bytes"],
    pending_room: Some(engine::PendingRoom { most: 1_024, least: 16, least_min: 8 }),
};

fn load(folder: &Path) -> Result<Config, ConfigError> {
    Config::load(folder, &[&FIVE])
}

fn secret(seed: u8) -> SecretKey {
    SecretKey::from_bytes([seed; 32])
}

fn cluster_toml(placement: &str, shards: u16) -> String {
    let mut text = format!("format = 1\nid = \"{}\"\nengine = \"five\"\nfaults = 1\n{placement}\n", "ab".repeat(16));
    for shard in 0..shards {
        for index in 0..6u16 {
            let seed = u8::try_from(10 + shard * 6 + index).expect("small");
            text += &format!(
                "[[replica]]\nname = \"s{shard}-r{index}\"\naddress = \"127.0.0.1:{}\"\nhttp = \"127.0.0.1:{}\"\npublic_key = \"{}\"\n",
                7400 + shard * 6 + index,
                7500 + shard * 6 + index,
                hex::encode(secret(seed).public())
            );
        }
    }
    text + &format!("[[client]]\nnumber = 1\npublic_key = \"{}\"\nread = [\"\"]\nwrite = [\"app/\"]\n", hex::encode(secret(1).public()))
}

fn write_folder(client_toml: &str, cluster_toml: &str) -> TempDir {
    let folder = TempDir::new().expect("a temporary folder");
    fs::write(folder.path().join("client.toml"), client_toml).expect("written");
    fs::write(folder.path().join("cluster.toml"), cluster_toml).expect("written");
    let certificate = runtime::make_certificate(&secret(1), "c1", ClusterId::new([0xab; 16])).expect("made");
    runtime::tls::write_certificate(&folder.path().join("certificate.pem"), &certificate).expect("written");
    write_key(folder.path(), &secret(1));
    folder
}

fn write_key(folder: &Path, secret: &SecretKey) {
    let path = folder.join("key");
    let _ = fs::remove_file(&path);
    runtime::tls::write_private_key(&path, secret).expect("written");
}

fn refusal(client_toml: &str, cluster_toml: &str) -> ConfigError {
    load(write_folder(client_toml, cluster_toml).path()).expect_err("refused")
}

#[test]
fn a_folder_as_init_makes_it_is_taken() {
    let folder = write_folder(
        "client = 1\nread_quorum = \"3f+1\"\nfast_path = \"on\"\nread_only = \"validated\"\n",
        &cluster_toml("placement = \"ranges\"\nbounds = [\"m\"]", 2),
    );
    let config = load(folder.path()).expect("taken");
    assert_eq!(
        (config.client, config.options.read_quorum, config.options.fast_path),
        (ClientId(1), ReadQuorum::ThreeFaultsPlusOne, FastPath::On)
    );
    assert_eq!((config.options.read_only, config.options.read_quorum.count(1)), (ReadOnly::Validated, 4));
    assert_eq!(config.topology.endpoints.len(), 12);
    assert_eq!(config.cluster().shard_of(&Key::from("m")), ShardId(1));
    assert_eq!(config.cluster().shard_of(&Key::from("l")), ShardId(0));
    let permission = config.cluster().permission(ClientId(1)).expect("listed");
    assert!(permission.may_read(&Key::from("x")) && permission.may_write(&Key::from("app/x")) && !permission.may_write(&Key::from("x")));
    assert!(!format!("{config:?}").contains(&hex::encode([1; 32])), "a secret key must not be shown");
}

/// What experiments ask for: the file's line, and whether it stands in `client.toml` or in `cluster.toml`.
const FOR_EXPERIMENTS: [(&str, &str); 4] = [
    ("client", "read_quorum = \"1\""),
    ("client", "fast_path = \"off\""),
    ("client", "read_only = \"voted\""),
    ("cluster", "signatures = \"off\""),
];

fn folder_for_experiments(file: &str, line: &str) -> TempDir {
    let [client, cluster] = ["client", "cluster"].map(|name| if name == file { format!("{line}\n") } else { String::new() });
    write_folder(&format!("client = 1\n{client}"), &cluster_toml(&format!("{cluster}placement = \"hash\""), 1))
}

#[cfg(feature = "lab")]
#[test]
fn the_laboratory_takes_what_experiments_ask_for() {
    for (file, line) in FOR_EXPERIMENTS {
        load(folder_for_experiments(file, line).path()).expect(line);
    }
}

#[cfg(not(feature = "lab"))]
#[test]
fn what_experiments_ask_for_is_refused_by_name() {
    for (file, line) in FOR_EXPERIMENTS {
        let error = load(folder_for_experiments(file, line).path()).expect_err(line);
        assert!(error.what.contains(line) && error.what.contains("only `bezant-lab` takes it"), "{error}");
    }
    let folder = write_folder("client = 1", &cluster_toml("placement = \"hash\"", 1));
    let cluster = TempDir::new().expect("a temporary folder");
    fs::rename(folder.path(), cluster.path().join("client")).expect("moved");
    fs::create_dir(cluster.path().join("run")).expect("made");
    fs::write(cluster.path().join("run/regions.toml"), "").expect("written");
    let error = load(cluster.path()).expect_err("its latency is injected");
    assert!(error.what.contains("injected latency") && error.help.contains("bezant-lab down"), "{error}");
}

#[test]
fn a_clusters_folder_stands_for_the_client_in_it() {
    let folder = write_folder("client = 1", &cluster_toml("placement = \"hash\"", 1));
    let cluster = TempDir::new().expect("a temporary folder");
    fs::rename(folder.path(), cluster.path().join("client")).expect("moved");
    assert_eq!(load(cluster.path()).expect("taken").folder, cluster.path().join("client"));
    let nowhere = load(&cluster.path().join("nowhere")).expect_err("refused");
    assert!(nowhere.what.contains("no cluster here") && nowhere.help.contains("--cluster"), "{nowhere}");
}

#[test]
fn an_unknown_key_is_refused_by_name_and_line() {
    let error = refusal("client = 1\n\nfastpath = \"on\"\n", &cluster_toml("placement = \"hash\"", 1));
    assert_eq!((error.what.as_str(), error.line), ("unknown key `fastpath`", Some(3)));
    assert!(error.help.starts_with("did you mean `fast_path`?"), "{}", error.help);
    assert!(error.place().ends_with("client.toml:3"), "{}", error.place());
}

#[test]
fn a_wrong_client_file_is_refused_with_its_reason() {
    let good = cluster_toml("placement = \"hash\"", 1);
    for (client_toml, line, what) in [
        ("", None, "`client` is missing"),
        ("client = -1", Some(1), ""),
        ("client = 1\nread_quorum = \"f\"", Some(2), "2f+1"),
        ("client = 1\nretry_timeout_ms = 0", Some(2), "milliseconds"),
        ("client = 1\nfast_path = true", Some(2), ""),
        ("client = 2", None, "knows no client 2"),
        ("client = ", Some(1), ""),
    ] {
        let error = refusal(client_toml, &good);
        assert!(error.what.contains(what) && !error.what.contains('\n') && !error.help.is_empty(), "{client_toml:?}: {error}");
        assert!(line.is_none() || error.line == line, "{client_toml:?}: {error}");
    }
}

/// What is said of `text` in a file of this name.
fn refusal_of(file: &str, text: &str) -> ConfigError {
    let folder = TempDir::new().expect("a temporary folder");
    let path = folder.path().join(file);
    fs::write(&path, text).expect("written");
    match file {
        "client.toml" => load(folder.path()).expect_err("refused"),
        "cluster.toml" => config::Topology::read_first(&path, &[&FIVE]).expect_err("refused"),
        #[cfg(feature = "node")]
        "node.toml" => config::NodeConfig::load(folder.path(), &[&FIVE]).expect_err("refused"),
        other => panic!("no test has a file {other}"),
    }
}

/// Every table of every file, by the line that begins it.
const TABLES: &[(&str, &str)] = &[
    ("client.toml", ""),
    ("cluster.toml", ""),
    ("cluster.toml", "[[replica]]"),
    ("cluster.toml", "[[client]]"),
    ("cluster.toml", "[[operator]]"),
    #[cfg(feature = "node")]
    ("node.toml", ""),
    #[cfg(feature = "node")]
    ("node.toml", "[settings]"),
];

/// The keys are those that the refusal of an unknown one lists, so that none is left out here.
#[test]
fn a_value_of_the_wrong_kind_is_named_with_its_key_and_file_for_every_setting() {
    let mut tried = 0;
    for (file, table) in TABLES {
        let unknown = refusal_of(file, &format!("{table}\nnone_such = 1\n"));
        let (_, known) = unknown.help.split_once("Known here: ").expect("it lists them");
        for key in known.split(", ") {
            let error = refusal_of(file, &format!("{table}\n{key} = 1.5\n"));
            let table = table.trim_matches(['[', ']']);
            let full = if table.is_empty() { key.to_owned() } else { format!("{table}.{key}") };
            let allowed = error.what.strip_prefix(&format!("`{full}` cannot be 1.5: ")).unwrap_or_else(|| panic!("{full}: {error}"));
            assert!(!allowed.is_empty() && !allowed.contains(['`', '\n']) && !error.help.is_empty(), "{full}: {error}");
            assert!(!["struct", "u16", "u32", "u64", "usize", "expected"].iter().any(|word| allowed.contains(word)), "{full}: {error}");
            assert_eq!((error.line, error.file.file_name().and_then(|name| name.to_str())), (Some(2), Some(*file)), "{full}: {error}");
            tried += 1;
        }
    }
    assert!(tried >= 32, "{tried} settings");
}

#[test]
fn a_wrong_value_is_refused_with_what_is_allowed() {
    for (file, text, what) in [
        ("client.toml", "client = \"one\"", "`client` cannot be \"one\": it takes a client's number, from 1 to 18446744069414584319"),
        ("client.toml", "client = -1", "`client` cannot be -1: it takes a client's number, from 1 to 18446744069414584319"),
        // Timestamps that are no transaction's have it.
        ("client.toml", "client = 0", "`client` cannot be 0: it takes a client's number, from 1 to 18446744069414584319"),
        (
            "cluster.toml",
            "[[client]]\nnumber = 0",
            "`client.number` cannot be 0: it takes a client's number, from 1 to 18446744069414584319",
        ),
        ("client.toml", "key = 7", "`key` cannot be 7: it takes text, in quotes"),
        ("client.toml", "fast_path = true", "`fast_path` cannot be true: the fast path is \"on\", not \"true\""),
        (
            "client.toml",
            "retry_timeout_ms = 3_600_001",
            "`retry_timeout_ms` cannot be 3_600_001: it takes a number of milliseconds from 1 to 3600000",
        ),
        ("cluster.toml", "signatures = \"maybe\"", "`signatures` cannot be \"maybe\": it takes \"on\" or \"off\""),
        ("cluster.toml", "placement = 3", "`placement` cannot be 3: it takes \"hash\" or \"ranges\""),
        ("cluster.toml", "bounds = [\"a\", 5]", "`bounds` cannot be 5: it takes text, in quotes"),
        ("cluster.toml", "replica = \"s0-r0\"", "`replica` cannot be \"s0-r0\": it takes a list, in brackets"),
        (
            "cluster.toml",
            "[[client]]\nkeys_max = 4294967296",
            "`client.keys_max` cannot be 4294967296: it takes a number from 0 to 4294967295",
        ),
        ("cluster.toml", "[[replica]]\naddress = 7400", "`replica.address` cannot be 7400: an address is host:port, not \"7400\""),
        ("cluster.toml", "id = \"\"\"zz\nzz\"\"\"", "`id` cannot be \"\"\"zz…: this takes 32 hexadecimal digits"),
        #[cfg(feature = "node")]
        ("node.toml", "replica = 3", "`replica` cannot be 3: a replica is called like s0-r3 (shard 0, replica 3), not \"3\""),
        #[cfg(feature = "node")]
        (
            "node.toml",
            "http_listen = \"nonsense\"",
            "`http_listen` cannot be \"nonsense\": an address here is IP:PORT, as in 127.0.0.1:7400, not \"nonsense\"",
        ),
        #[cfg(feature = "node")]
        ("node.toml", "settings = 1", "`settings` cannot be 1: it takes a table"),
        #[cfg(feature = "node")]
        ("node.toml", "[settings]\ntime_bound_ms = -1", "`settings.time_bound_ms` cannot be -1: it takes a number from 1 to 60000"),
        #[cfg(feature = "node")]
        ("node.toml", "[settings]\nlog_format = \"loud\"", "`settings.log_format` cannot be \"loud\": it takes \"text\" or \"json\""),
        #[cfg(feature = "node")]
        ("node.toml", "settings.drills = \"yes\"", "`settings.drills` cannot be \"yes\": it takes true or false, without quotes"),
    ] {
        assert_eq!(refusal_of(file, text).what, what);
    }
    // A number that is a level to the library that reads levels is none here.
    #[cfg(feature = "node")]
    assert!(refusal_of("node.toml", "[settings]\nlog_level = 3").what.ends_with("cannot be 3: it takes text, in quotes"));
    // What is no TOML has no key, and a long value is cut.
    let no_toml = refusal_of("client.toml", "client = ");
    assert!(!no_toml.what.contains("cannot be") && no_toml.line == Some(1), "{no_toml}");
    let long = refusal_of("cluster.toml", &format!("faults = \"{}\"", "x".repeat(1_000)));
    assert!(long.what.len() < 120 && long.what.contains("x…: it takes"), "{long}");
}

#[test]
fn a_wrong_cluster_file_is_refused_with_its_reason() {
    let good = cluster_toml("placement = \"hash\"", 2);
    let replace = |from: &str, to: &str| good.replacen(from, to, 1);
    for (cluster_toml, what) in [
        (replace("format = 1", "format = 2"), "format 2"),
        (replace("faults = 1", "faults = 2"), "needs 11 (5f+1)"),
        (replace("faults = 1", "faults = 0"), "faults must be"),
        (replace("s0-r3", "s0-r2"), "s0-r2 is listed twice"),
        (replace("s0-r3", "s0-r7"), "s0-r3 is not listed"),
        (replace("s1-r5", "s2-r0"), "5 replicas"),
        (replace("s0-r3", "third"), "called like s0-r3"),
        (replace(&hex::encode(secret(10).public()), &hex::encode(secret(11).public())), "same public key"),
        (replace(&hex::encode(secret(10).public()), &"00".repeat(32)), ""),
        (replace("127.0.0.1:7400", "127.0.0.1"), "host:port"),
        (replace("127.0.0.1:7401", "127.0.0.1:7400"), "s0-r0 and s0-r1 have the same address 127.0.0.1:7400"),
        (replace("127.0.0.1:7501", "127.0.0.1:7500"), "s0-r0 and s0-r1 have the same http 127.0.0.1:7500"),
        (replace("127.0.0.1:7501", "127.0.0.1:7402"), "s0-r1 is to answer HTTP at 127.0.0.1:7402, which is the address of s0-r2"),
        (good.replace("127.0.0.1:7500", "db:1").replace("127.0.0.1:7501", "DB:1"), "s0-r0 and s0-r1 have the same http DB:1"),
        (replace("placement = \"hash\"", "placement = \"ranges\"\nbounds = [\"\"]"), "would never hold a key"),
        (replace(&"ab".repeat(16), "ab"), "32 hexadecimal digits"),
        (replace("\"five\"", "\"tapir\""), "tapir"),
        (replace("placement = \"hash\"", "placement = \"hash\"\nbounds = [\"m\"]"), "placed by hash"),
        (replace("placement = \"hash\"", "placement = \"ranges\"\nbounds = [\"0xz\"]"), "hexadecimal"),
        (replace("placement = \"hash\"", "placement = \"ranges\""), "bounds"),
    ] {
        let error = refusal("client = 1", &cluster_toml);
        assert!(error.what.contains(what) && !error.help.is_empty(), "expected {what:?}: {error}");
        assert!(error.file.ends_with("cluster.toml"), "{error}");
    }
}

#[test]
fn replicas_of_several_hosts_may_answer_http_at_the_same_port_of_each() {
    let good = cluster_toml("placement = \"hash\"", 1);
    let on_two_hosts = good.replace("\"127.0.0.1:7401\"", "\"db1:7400\"").replace("127.0.0.1:7501", "127.0.0.1:7500");
    load(write_folder("client = 1", &on_two_hosts).path()).expect("each host has an address 127.0.0.1 of its own");
}

#[test]
fn replicas_of_one_host_are_counted_however_its_name_is_written() {
    let six = cluster_toml("placement = \"hash\"", 1);
    let count = |text: &str| {
        let topology = load(write_folder("client = 1", text).path()).expect("it is good").topology;
        topology.replicas_on_host_of(ReplicaId { shard: ShardId(0), index: 0 })
    };
    assert_eq!(count(&six), 6);
    let two_on_another = six.replace("\"127.0.0.1:7400\"", "\"db1:7400\"").replace("\"127.0.0.1:7401\"", "\"DB1:7401\"");
    assert_eq!(count(&two_on_another), 2);
}

#[test]
fn a_key_must_be_the_listed_one_and_secret() {
    let good = cluster_toml("placement = \"hash\"", 1);
    let folder = write_folder("client = 1", &good);
    write_key(folder.path(), &secret(2));
    assert!(load(folder.path()).expect_err("refused").what.contains("is not the key"));
    fs::write(folder.path().join("key"), "zz").expect("written");
    assert!(load(folder.path()).expect_err("refused").what.contains("not a private key"));
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        write_key(folder.path(), &secret(1));
        fs::set_permissions(folder.path().join("key"), fs::Permissions::from_mode(0o644)).expect("set");
        assert!(load(folder.path()).expect_err("refused").help.contains("chmod 600"));
    }
}

#[test]
fn the_room_that_clients_always_have_is_one_that_the_engine_can_give() {
    for bad in [0, 7, 1_025] {
        let folder = write_folder("client = 1\n", &cluster_toml(&format!("placement = \"hash\"\npending_min = {bad}"), 1));
        let refused = load(folder.path()).expect_err("refused");
        assert_eq!(refused.what, format!("pending_min cannot be {bad}: it takes a number from 8 to 1024"));
    }
    let folder = write_folder("client = 1\n", &cluster_toml("placement = \"hash\"\npending_min = 8", 1));
    load(folder.path()).expect("it can");
    static OTHER: Profile = Profile { pending_room: None, ..FIVE };
    let refused = Config::load(folder.path(), &[&OTHER]).expect_err("refused");
    assert_eq!((refused.what.as_str(), refused.help.as_str()), ("five has no use for pending_min", "take the line out"));
}

/// What operators changed is read with `cluster.toml`, and only where it follows that very file.
#[test]
fn configurations_that_followed_are_read_and_rest_on_cluster_toml() {
    let operator = SecretKey::from_bytes([77; 32]);
    let listed = format!("operators_needed = 1\n[[operator]]\npublic_key = \"{}\"\n", hex::encode(operator.public()));
    let text = cluster_toml(&format!("placement = \"hash\"\npending_min = 16\n{listed}"), 1);
    let folder = write_folder("client = 1\n", &text);
    let topology = load(folder.path()).expect("all is well").topology;
    assert_eq!(topology.cluster.pending_min(), Some(16));
    // As it is written it is read.
    fs::write(folder.path().join("again.toml"), topology.to_toml()).expect("written");
    let again = config::Topology::read_first(&folder.path().join("again.toml"), &[&FIVE]).expect("as written");
    assert_eq!(again, *topology);
    let whole = config::Topology { structural_locks: config::StructuralLocks::WholeShard, ..again };
    assert!(whole.to_toml().contains("\nstructural_locks = \"whole-shard\"\n"));
    let mut chain = topology.chain.clone();
    let mut next = crypto::Configuration { version: 1, previous: chain.digest(), ..chain.newest().clone() };
    next.clients[0].1.write_prefixes = vec![];
    next.clients[0].1.limits.keys = Some(3);
    let signature = next.sign(chain.id(), &chain.newest().operators, &operator).expect("an operator");
    chain.extend(crypto::SignedConfiguration { configuration: next, signatures: vec![signature] }).expect("it is signed");
    let file = config::chain_file(&folder.path().join("cluster.toml"));
    config::write_chain(&file, &chain).expect("written");
    let loaded = load(folder.path()).expect("it follows");
    let permission = loaded.cluster().permission(ClientId(1)).expect("listed");
    assert_eq!((permission.write_prefixes.len(), permission.limits.keys, loaded.topology.chain.version()), (0, Some(3), 1));
    // A process that knows less does not take away what another has written, and one that knows another of the same version is told.
    config::write_chain(&file, &topology.chain).expect("nothing to write");
    let mut fork = topology.chain.clone();
    let other = crypto::Configuration { version: 1, previous: fork.digest(), ..fork.newest().clone() };
    let signature = other.sign(fork.id(), &fork.newest().operators, &operator).expect("an operator");
    fork.extend(crypto::SignedConfiguration { configuration: other, signatures: vec![signature] }).expect("it is signed");
    let refused = config::write_chain(&file, &fork).expect_err("another one is there");
    assert!(refused.to_string().contains("another configuration 1 stands in"), "{refused}");
    assert_eq!(load(folder.path()).expect("as it was").topology.chain, chain);
    let left = fs::read_dir(folder.path())
        .expect("a folder")
        .filter(|entry| entry.as_ref().is_ok_and(|it| it.path().to_string_lossy().contains(".new")));
    assert_eq!(left.count(), 0);
    // Where hosts are called otherwise does not matter; who may do what does.
    fs::write(folder.path().join("cluster.toml"), text.replace("127.0.0.1", "localhost")).expect("written");
    load(folder.path()).expect("addresses do not count");
    fs::write(folder.path().join("cluster.toml"), text.replace("write = [\"app/\"]", "write = [\"\"]")).expect("written");
    let refused = load(folder.path()).expect_err("it follows another file");
    assert!(refused.what.contains("configuration 1 is refused: version 1 does not follow the version 0"), "{refused}");
    fs::write(folder.path().join("cluster.toml"), text).expect("written");
    let bytes = fs::read(&file).expect("it is there");
    fs::write(&file, &bytes[..bytes.len() - 1]).expect("written");
    assert!(load(folder.path()).expect_err("it is cut").what.contains("ends inside a configuration"));
    config::write_chain(&file, &chain).expect("what is damaged is written anew");
    assert_eq!(load(folder.path()).expect("it is whole").topology.chain, chain);
}
