//! Writes a planned cluster to disk.

use std::fs::{self, File};
use std::io::{ErrorKind, Write as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use config::{ReadQuorum, Settings, Timeouts};
use crypto::SecretKey;
use engine::Profile;
use types::{ClientId, Cluster, ClusterId, ReplicaId};

use super::Plan;
use crate::failure::{Attempt as _, Failure};
use crate::node;

const CLUSTER: &str = "cluster.toml";
/// The name of [`CLUSTER`] at the top until all the rest is written.
const FIRST: &str = "cluster.toml.first";

/// Refuses a folder that holds anything: a cluster's keys must never be overwritten.
pub fn refuse_occupied(folder: &Path) -> Result<(), Failure> {
    match fs::read_dir(folder) {
        Ok(mut entries) => match entries.next() {
            None => Ok(()),
            Some(_) if folder.join(FIRST).exists() => Err(unfinished(folder)),
            Some(_) if folder.join(CLUSTER).exists() => Err(Failure::wrong("there is a cluster here already")
                .at(folder.display())
                .help("name another folder, or remove this one; its keys and data are lost then")),
            Some(_) => Err(Failure::wrong("the folder is not empty").at(folder.display()).help("name a folder that does not exist yet")),
        },
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(Failure::wrong(format!("the folder cannot be used: {error}")).at(folder.display()).help("name another folder")),
    }
}

/// Refuses a cluster that is not whole, so that no replica of it starts: some have no folder, or not all of it.
pub fn refuse_unfinished(folder: &Path) -> Result<(), Failure> {
    if folder.join(FIRST).exists() {
        return Err(unfinished(folder));
    }
    let file = folder.join(CLUSTER);
    if file.exists() {
        return Ok(());
    }
    Err(Failure::wrong("the cluster's own cluster.toml is missing")
        .at(file.display())
        .help("put it back: each replica's folder holds the same file"))
}

fn unfinished(folder: &Path) -> Failure {
    Failure::wrong("`bezant init` was interrupted here, and the cluster is half made")
        .at(folder.display())
        .help("delete this folder, in which nothing was ever stored, and run `bezant init` again")
}

/// The most bytes that copies of `cluster.toml` may take, where the file system cannot share one file among folders.
const COPIES_BYTES_MAX: u64 = 1 << 30;

/// Writes everything, durably; `cluster.toml` at the top comes last, so that a folder that has it is whole, also after a loss of power.
///
/// Every folder holds `cluster.toml`, so that it can be copied to its host as it is; but all of them are one file with many names (hard
/// links), since it lists every client and would else be as many times as long.
pub fn folder(folder: &Path, plan: &Plan) -> Result<(), Failure> {
    let head = cluster_head(plan.topology.engine);
    let cluster = Shared::write(folder, &format!("{head}{}", plan.topology.to_toml()), plan.members.len() + plan.clients.len())?;
    let cluster_id = plan.topology.cluster.id();
    for member in &plan.members {
        let own = folder.join(member.name.to_string());
        create(&own)?;
        if let Some(secret) = &member.secret {
            empty_data(&own, &plan.topology.cluster, member.name)?;
            identity(&own, secret, &member.name.to_string(), cluster_id)?;
        }
        cluster.name(&own.join(CLUSTER))?;
        text(&own.join("node.toml"), &node_toml(member.name, member.listen, member.http, plan.topology.engine, &plan.settings))?;
        sync(&own)?;
    }
    for (number, secret) in &plan.clients {
        let own = folder.join(client_folder(*number));
        create(&own)?;
        if let Some(secret) = secret {
            identity(&own, secret, &number.to_string(), cluster_id)?;
        }
        cluster.name(&own.join(CLUSTER))?;
        text(&own.join("client.toml"), &client_toml(*number, plan.topology.engine, plan.read_quorum, &plan.experiments.client_lines()))?;
        sync(&own)?;
    }
    for (at, secret) in plan.operators.iter().enumerate() {
        let own = folder.join(if at == 0 { "operator".to_owned() } else { format!("operator-{}", at + 1) });
        create(&own)?;
        let key = own.join("key");
        runtime::tls::write_private_key(&key, secret).attempt("write the key", key.display())?;
        sync(&own)?;
    }
    sync(folder)?;
    fs::rename(&cluster.first, folder.join(CLUSTER)).attempt("write the file", folder.join(CLUSTER).display())?;
    sync(folder)
}

/// A file that is the same in many folders.
struct Shared {
    /// Its first name.
    first: PathBuf,
    /// Whether other names of it can be made; otherwise it is copied.
    is_linked: bool,
}

impl Shared {
    /// Writes the file under its first name, in `folder`, which is made. Refuses more bytes than [`COPIES_BYTES_MAX`].
    fn write(folder: &Path, content: &str, copies: usize) -> Result<Self, Failure> {
        create_all(folder)?;
        let [first, probe] = [FIRST, "cluster.toml.link"].map(|name| folder.join(name));
        text(&first, content)?;
        let is_linked = fs::hard_link(&first, &probe).is_ok();
        if is_linked {
            fs::remove_file(&probe).attempt("remove the file", probe.display())?;
        } else if content.len() as u64 * copies as u64 > COPIES_BYTES_MAX {
            fs::remove_file(&first).attempt("remove the file", first.display())?;
            return Err(Failure::wrong(format!(
                "this file system knows no hard links, and {copies} copies of cluster.toml would take more than {} MiB",
                COPIES_BYTES_MAX >> 20
            ))
            .at(folder.display())
            .help("make the cluster on another file system, or with fewer --clients"));
        }
        // From now on the folder can be told from a whole one.
        sync(folder)?;
        Ok(Self { first, is_linked })
    }

    /// Makes it appear as `path` too.
    fn name(&self, path: &Path) -> Result<(), Failure> {
        // A file may have fewer names than there are folders: then the rest are copies.
        if self.is_linked && fs::hard_link(&self.first, path).is_ok() {
            return Ok(());
        }
        fs::copy(&self.first, path).and_then(|_| File::open(path)?.sync_all()).attempt("write the file", path.display())
    }
}

fn client_folder(client: ClientId) -> String {
    match client.0 {
        1 => "client".to_owned(),
        number => format!("client-{number}"),
    }
}

fn create(folder: &Path) -> Result<(), Failure> {
    fs::create_dir_all(folder).attempt("make the folder", folder.display())
}

/// Makes a folder and those above it, durably.
fn create_all(folder: &Path) -> Result<(), Failure> {
    if folder.is_dir() {
        return Ok(());
    }
    let above = folder.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
    create_all(above)?;
    create(folder)?;
    sync(above)
}

/// Makes the names in a folder durable.
pub fn sync(folder: &Path) -> Result<(), Failure> {
    File::open(folder).and_then(|folder| folder.sync_all()).attempt("sync the folder", folder.display())
}

pub fn text(path: &Path, content: &str) -> Result<(), Failure> {
    let written = File::create(path).and_then(|mut file| {
        file.write_all(content.as_bytes())?;
        file.sync_all()
    });
    written.attempt("write the file", path.display())
}

/// A replica's empty store. Only where a member is made: a replica that finds no data must never take that for a beginning.
pub fn empty_data(folder: &Path, cluster: &Cluster, replica: ReplicaId) -> Result<(), Failure> {
    let data = folder.join("data");
    store::Disk::create(&data, &node::owner(cluster, replica)).attempt("make the store", data.display())
}

/// The secret key, readable by its owner alone from its first moment, and its certificate.
pub fn identity(folder: &Path, secret: &SecretKey, name: &str, cluster: ClusterId) -> Result<(), Failure> {
    let written = runtime::make_certificate(secret, name, cluster).and_then(|certificate| {
        runtime::tls::write_private_key(&folder.join("key"), secret)?;
        runtime::tls::write_certificate(&folder.join("certificate.pem"), &certificate)
    });
    written.attempt("write the key and its certificate", folder.display())
}

/// What stands above all in `cluster.toml`.
fn cluster_head(engine: &Profile) -> String {
    let change = if node::changes_while_running(engine) {
        "Operators change a running cluster with `bezant config`;\n# this file stays as it is."
    } else {
        "To change a client's rights, stop all replicas\n# and clients, change them in every copy of this file, and start them again."
    };
    format!(
        "# The cluster, as everybody in it knew it when it was made: replicas and clients hold the same file. Nothing in it is secret,\n\
         # but whoever can change it on a host decides whom that host believes. {change}\n"
    )
}

/// A replica's `node.toml`, with the settings by which its engine goes.
pub fn node_toml(name: ReplicaId, listen: SocketAddr, http: SocketAddr, engine: &Profile, settings: &Settings) -> String {
    let of_some = [
        (
            "time_bound_ms",
            settings.time_bound_ms,
            "# How far ahead of this replica's clock a transaction's timestamp may be. Keep clocks closer than that.\n",
        ),
        (
            "window_ms",
            settings.window_ms,
            "# How far back the past may be read, and how long after its timestamp a transaction is remembered and may be finished; it must be\n\
             # prepared within half of that. Memory grows with it.\n",
        ),
        (
            "janitor_timeout_ms",
            settings.janitor_timeout_ms,
            "# After how long this replica finishes a transaction that its client left unfinished.\n",
        ),
        (
            "abandoned_per_second",
            settings.abandoned_per_second,
            "# How many transactions a second one client may leave for others to end, before its next ones are refused for a while.\n",
        ),
        (
            "cache_bytes",
            settings.cache_bytes,
            "# Memory for caching what lies on disk, in bytes. The versions of the last window are held in memory beside it.\n",
        ),
    ];
    let of_engine = of_some.iter().filter(|(name, ..)| engine.settings.contains(name));
    let of_engine: String = of_engine.map(|(name, value, comment)| format!("{comment}{name} = {value}\n")).collect();
    format!(
        "# Replica {name} of the cluster in cluster.toml. Run it with: bezant node {name}\n\
         replica = \"{name}\"\n\
         # Files of this folder. `key` is secret: whoever has it can lie as this replica.\n\
         cluster = \"cluster.toml\"\n\
         key = \"key\"\n\
         certificate = \"certificate.pem\"\n\
         # Where everything is kept that must survive a restart. Losing it is a fault, not a restart.\n\
         data = \"data\"\n\
         # Where peers and clients connect, over mutual TLS.\n\
         listen = \"{listen}\"\n\
         # Where /health, /status and /metrics are answered, without encryption or passwords: keep it on\n\
         # loopback, or on a private network on which the other replicas' hosts reach it.\n\
         http_listen = \"{http}\"\n\
         \n\
         [settings]\n\
         # The most replies signed at once, 1 to 64. There is no waiting: a batch is what load makes it.\n\
         batch_max = {batch_max}\n\
         {of_engine}\
         # Whether `bezant drill flip` may damage what this replica holds, on purpose. Never where data matter.\n\
         drills = {drills}\n\
         # error, warn, info, debug, trace or off; or by module, as in \"warn,runtime=debug\".\n\
         log_level = {log_level}\n\
         # \"text\" for people, \"json\" for programs.\n\
         log_format = \"{log_format}\"\n",
        batch_max = settings.batch_max,
        drills = settings.drills,
        log_level = config::quoted(&settings.log_level.to_string()),
        log_format = settings.log_format.name(),
    )
}

/// A client's `client.toml`; `experiments` are lines of it.
pub fn client_toml(number: ClientId, engine: &Profile, read_quorum: ReadQuorum, experiments: &str) -> String {
    let timeouts = Timeouts::default();
    let read_quorum = match engine.settings.contains(&"read_quorum") {
        true => format!(
            "# How many replicas of a shard a read asks: \"f+1\", \"2f+1\" or \"3f+1\".\nread_quorum = \"{}\"\n",
            read_quorum.name()
        ),
        false => String::new(),
    };
    format!(
        "# Client {number} of the cluster in cluster.toml. Use it with: bezant get KEY --cluster {folder}\n\
         client = {number}\n\
         # Files of this folder. `key` is secret: whoever has it can do what this client may.\n\
         cluster = \"cluster.toml\"\n\
         key = \"key\"\n\
         certificate = \"certificate.pem\"\n\
         {read_quorum}\
         {experiments}\
         # How long to wait for the cluster at the start, for one read or commit, and for a transaction with its retries.\n\
         connect_timeout_ms = {connect_ms}\n\
         operation_timeout_ms = {operation_ms}\n\
         retry_timeout_ms = {retry_ms}\n",
        number = number.0,
        folder = client_folder(number),
        connect_ms = timeouts.connect_ms,
        operation_ms = timeouts.operation_ms,
        retry_ms = timeouts.retry_ms,
    )
}
