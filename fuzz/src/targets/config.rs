//! The files that people edit: `cluster.toml`, `client.toml`, `node.toml`.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use bezant_client::ENGINES;
use config::{Config, ConfigError, NodeConfig, Topology};
use crypto::{SecretKey, check_members};
use runtime::make_certificate;
use runtime::tls::{write_certificate, write_private_key};
use tempfile::TempDir;

use crate::Target;
use crate::fixture::CLUSTER as NAME;

pub(super) const CLUSTER: Target = Target {
    name: "cluster-toml",
    what: "reads a cluster.toml; what is taken is a cluster whose every key is good",
    bytes_max: 4_096,
    runs: 4_000,
    run: cluster,
    seeds: cluster_seeds,
};

pub(super) const CLIENT: Target = Target {
    name: "client-toml",
    what: "reads a client.toml beside a cluster that is in order",
    bytes_max: 1_024,
    runs: 2_000,
    run: client,
    seeds: client_seeds,
};

pub(super) const NODE: Target = Target {
    name: "node-toml",
    what: "reads a node.toml beside a cluster that is in order",
    bytes_max: 1_024,
    runs: 2_000,
    run: node,
    seeds: node_seeds,
};

/// A folder of this process's own: in memory where that is to be had, since each input is written once and read once.
static FOLDER: LazyLock<TempDir> =
    LazyLock::new(|| tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a folder can be made"));

/// Calls `read` with a file that holds `bytes`.
pub(super) fn in_file(name: &str, bytes: &[u8], mode: u32, read: impl FnOnce(&Path)) {
    let path = FOLDER.path().join(name);
    let file = OpenOptions::new().write(true).create(true).truncate(true).mode(mode).open(&path);
    file.and_then(|mut file| file.write_all(bytes)).expect("the folder can be written");
    read(&path);
}

/// An error names its file, a line that the file has, and what to do.
fn check_error(error: &ConfigError, bytes: &[u8]) {
    let lines = 1 + bytes.iter().filter(|byte| **byte == b'\n').count();
    assert!(!error.what.is_empty() && !error.help.is_empty(), "{error}");
    assert!(error.line.is_none_or(|line| line >= 1 && line <= lines), "{error}");
}

fn cluster(bytes: &[u8]) {
    in_file("cluster.toml", bytes, 0o600, |path| match Topology::load(path, ENGINES) {
        Ok(topology) => {
            let cluster = &topology.cluster;
            assert_eq!(check_members(cluster), Ok(()));
            assert_eq!(cluster.replicas_per_shard(), (topology.engine.shard_size)(cluster.faults()));
            assert!(cluster.replicas().eq(topology.endpoints.keys().copied()), "every replica is somewhere, and nobody else");
        }
        Err(error) => check_error(&error, bytes),
    });
}

fn cluster_toml() -> String {
    let mut text =
        format!("format = 1\nid = \"{NAME}\"\nengine = \"basil\"\nfaults = 1\nsignatures = \"on\"\nplacement = \"hash\"\nbounds = []\n");
    for index in 0..6_u8 {
        let key = public(index);
        text += &format!(
            "\n[[replica]]\nname = \"s0-r{index}\"\naddress = \"127.0.0.1:{}\"\nhttp = \"localhost:{}\"\npublic_key = \"{key}\"\n",
            8_000 + u16::from(index),
            9_000 + u16::from(index),
        );
    }
    text + &format!("\n[[client]]\nnumber = 1\npublic_key = \"{}\"\nread = [\"\"]\nwrite = [\"a\", \"0x00ff\"]\n", public(CLIENT_KEY))
}

/// The client's key has this number, those of the replicas their indices.
const CLIENT_KEY: u8 = 100;

fn secret(number: u8) -> SecretKey {
    SecretKey::from_bytes([number; 32])
}

fn public(number: u8) -> String {
    hex::encode(secret(number).public())
}

fn cluster_seeds() -> Vec<Vec<u8>> {
    let whole = cluster_toml();
    let short = whole.split_once("\n[[replica]]").map_or(String::new(), |(head, _)| head.to_owned());
    let ranges = whole.replace("\"hash\"", "\"ranges\"").replace("bounds = []", "bounds = [\"m\", 'x']");
    [whole, short, ranges].map(String::into_bytes).to_vec()
}

/// A member's folder with everything in it but the file under trial.
fn member(name: &str, number: u8) -> PathBuf {
    let folder = FOLDER.path().join(name);
    fs::create_dir(&folder).expect("the folder is new");
    fs::write(folder.join("cluster.toml"), cluster_toml()).expect("the folder can be written");
    write_private_key(&folder.join("key"), &secret(number)).expect("the folder is new");
    let certificate = make_certificate(&secret(number), name, NAME).expect("the name is plain");
    write_certificate(&folder.join("certificate.pem"), &certificate).expect("the folder is new");
    folder
}

static CLIENT_FOLDER: LazyLock<PathBuf> = LazyLock::new(|| member("client", CLIENT_KEY));
static NODE_FOLDER: LazyLock<PathBuf> = LazyLock::new(|| member("node", 0));

/// Whether the bytes name no other file than those that are there: what else lies on this computer is nobody's business.
fn stays_here(bytes: &[u8]) -> bool {
    !bytes.windows(2).any(|pair| pair == b"..") && !bytes.iter().any(|byte| b"/\\".contains(byte))
}

fn client(bytes: &[u8]) {
    if !stays_here(bytes) {
        return;
    }
    let folder = CLIENT_FOLDER.as_path();
    fs::write(folder.join("client.toml"), bytes).expect("the folder can be written");
    match Config::load(folder, ENGINES) {
        Ok(config) => {
            let known = config.cluster().permission(config.client).expect("a client is one of the cluster's");
            assert_eq!(known.public_key, config.secret.public());
            let waits = [config.timeouts.connect_ms, config.timeouts.operation_ms, config.timeouts.retry_ms];
            assert!(waits.iter().all(|wait| (1..=config::TIMEOUT_MS_MAX).contains(wait)));
        }
        Err(error) => check_error(&error, bytes),
    }
}

fn client_seeds() -> Vec<Vec<u8>> {
    let whole = "# Who this is.\nclient = 1\ncluster = \"cluster.toml\"\nkey = \"key\"\ncertificate = \"certificate.pem\"\n\
        read_quorum = \"2f+1\"\nfast_path = \"on\"\nconnect_timeout_ms = 5000\noperation_timeout_ms = 10_000\nretry_timeout_ms = 30000\n";
    [whole, "client = 1\n", "client = 1\nread_qorum = \"f+1\"\n"].map(|text| text.as_bytes().to_vec()).to_vec()
}

fn node(bytes: &[u8]) {
    if !stays_here(bytes) {
        return;
    }
    let folder = NODE_FOLDER.as_path();
    fs::write(folder.join("node.toml"), bytes).expect("the folder can be written");
    match NodeConfig::load(folder, ENGINES) {
        Ok(config) => {
            let known = config.topology.cluster.replica_key(config.replica).expect("a node is one of the cluster's");
            assert_eq!(*known, config.secret.public());
            assert_eq!(config.settings.check(config.topology.engine), Ok(()));
        }
        Err(error) => check_error(&error, bytes),
    }
}

fn node_seeds() -> Vec<Vec<u8>> {
    let whole = "replica = \"s0-r0\"\ncluster = \"cluster.toml\"\nkey = \"key\"\ncertificate = \"certificate.pem\"\ndata = \"data\"\n\
        listen = \"127.0.0.1:8000\"\nhttp_listen = \"[::1]:9000\"\n\n[settings]\nbatch_max = 64\ntime_bound_ms = 500\nwindow_ms = 30000\n\
        janitor_timeout_ms = 1000\ncache_bytes = 402653184\nlog_level = \"warn,runtime=debug\"\nlog_format = \"text\"\n";
    let short = "replica = 's0-r0'\nlisten = \"0.0.0.0:1\"\nhttp_listen = \"0.0.0.0:2\"\n";
    [whole, short].map(|text| text.as_bytes().to_vec()).to_vec()
}
