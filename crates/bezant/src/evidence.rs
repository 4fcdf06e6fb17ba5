//! `bezant evidence`: what was noticed of lies and of damage. A replica keeps what it saw others do in `evidence`, beside its data: a file for each time, which
//! nothing removes but people. Where it is signed, anybody can check it with the cluster's public keys alone.

pub mod divergences;
mod zookeeper;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;
use std::time::SystemTime;

use bezant_client::{ENGINES, verify_lie};
use clap::Args;
use config::{NodeConfig, Topology};
use crypto::{Chain, Fork};
use serde_json::{Value, json};
use types::ClientId;

use crate::failure::{Attempt as _, Done, Failure};
use crate::out;
use crate::output::tame;
use crate::receipt::public_topology;
use crate::tell;

/// The most files in a folder of evidence, and the most about one member: the first ones say more than one more would.
const EVIDENCE_MAX: usize = 256;
const EVIDENCE_OF_ONE_MAX: usize = 4;
/// No record is longer: two configurations, in hexadecimal digits, take the most.
const FILE_BYTES_MAX: u64 = 32 << 20;
/// So much is shown of what a record says.
const WHO_LETTERS_MAX: usize = 64;
const WHAT_LETTERS_MAX: usize = 400;
/// So many records wait to be written, at most. What is beyond that is counted and logged, and not kept.
const WAITING_MAX: usize = 16;
const PREFIX: &str = "lie-";
/// Who has lied where operators have.
const OPERATORS: &str = "operators";

/// Whose evidence to show.
#[derive(Args, Debug)]
pub struct EvidenceArgs {
    /// A replica's folder, one file of its evidence, or the dataDir of a server for ZooKeeper's clients
    #[arg(value_name = "PATH")]
    path: PathBuf,
    /// The cluster.toml, or a folder with it, by which to check what is signed; without it, the replica's own
    #[arg(long, value_name = "PATH")]
    cluster: Option<PathBuf>,
    /// Take this client, which the replica refuses for a lie, in again when the replica is started the next time; as cN
    #[arg(long, value_name = "CLIENT")]
    lift: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// What a replica saw.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// When, in milliseconds since 1970.
    pub time_ms: u64,
    /// Who lied, as `s0-r1`, `c7` or `operators`.
    pub who: String,
    /// Its public key then, in hexadecimal digits, where it is a client: that is refused as long as it has this key.
    pub key: Option<String>,
    /// What it did.
    pub what: String,
    /// The transaction, if it is about one.
    pub transaction: Option<String>,
    /// What proves it to everybody, in hexadecimal digits, where it is signed.
    pub proof: Option<String>,
    /// Whether its operator has taken the client in again.
    pub is_lifted: bool,
}

impl Record {
    /// What is kept of operators who have signed two configurations of one version.
    pub fn of_fork(fork: &Fork) -> Self {
        Self {
            time_ms: now_ms(),
            who: OPERATORS.to_owned(),
            key: None,
            what: fork.to_string(),
            transaction: None,
            proof: Some(hex::encode(fork.to_bytes())),
            is_lifted: false,
        }
    }

    fn to_json(&self) -> Value {
        json!({
            "time_ms": self.time_ms,
            "who": self.who,
            "key": self.key,
            "what": self.what,
            "transaction": self.transaction,
            "proof": self.proof,
            "lifted": self.is_lifted,
        })
    }

    fn from_json(json: &Value) -> Option<Self> {
        let text = |name: &str| json[name].as_str().map(str::to_owned);
        Some(Self {
            time_ms: json["time_ms"].as_u64()?,
            who: text("who")?,
            key: text("key"),
            what: text("what")?,
            transaction: text("transaction"),
            proof: text("proof"),
            is_lifted: json["lifted"].as_bool()?,
        })
    }
}

/// Where a replica keeps its evidence.
#[must_use]
pub fn folder_of(data: &Path) -> PathBuf {
    data.with_file_name("evidence")
}

/// What is kept.
enum Kept {
    /// What others did.
    Lie(Record),
    /// What was wrong with the replica's own state.
    Divergence(divergences::Kept),
}

/// Writes records on a thread of its own: whoever hears of a lie must not wait for the disk.
#[derive(Clone)]
pub struct Keeper(SyncSender<Kept>);

impl Keeper {
    /// One that writes to `folder`.
    ///
    /// # Errors
    /// When there is no thread.
    pub fn start(folder: PathBuf) -> io::Result<Self> {
        let (queue, records) = sync_channel(WAITING_MAX);
        let write = move || {
            for record in records {
                let kept = match &record {
                    Kept::Lie(record) => keep(&folder, record),
                    Kept::Divergence(found) => divergences::keep(&folder, found),
                };
                if let Err(error) = kept {
                    tracing::error!(folder = %folder.display(), %error, "evidence cannot be kept");
                }
            }
        };
        drop(thread::Builder::new().name("evidence".to_owned()).spawn(write)?);
        Ok(Self(queue))
    }

    /// Has `record` written, unless too many wait.
    pub fn keep(&self, record: Record) {
        let _ = self.0.try_send(Kept::Lie(record));
    }

    /// The same for what was wrong with the replica's own state.
    pub fn keep_divergence(&self, found: divergences::Kept) {
        let _ = self.0.try_send(Kept::Divergence(found));
    }
}

/// Now, in milliseconds since 1970.
pub fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

fn keep(folder: &Path, record: &Record) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    let known = list(folder)?;
    let of_member = known.found.iter().filter(|(_, other)| other.who == record.who);
    // What is lifted keeps nobody away, and neither does what another key did.
    let of_one = of_member.clone().filter(|(_, other)| other.key == record.key && !other.is_lifted).count();
    // An earlier process may have kept the same proof.
    let is_kept = record.proof.is_some() && known.found.iter().any(|(_, other)| other.proof == record.proof);
    if known.files() >= EVIDENCE_MAX || of_one >= EVIDENCE_OF_ONE_MAX || is_kept {
        return Ok(());
    }
    write(&folder.join(format!("{PREFIX}{}-{}-{}.json", record.time_ms, record.who, of_member.count())), &record.to_json())
}

/// Writes a record so that whoever reads it finds all of it.
fn write(path: &Path, record: &Value) -> io::Result<()> {
    let new = path.with_extension("new");
    let mut file = File::create(&new)?;
    file.write_all(format!("{record:#}\n").as_bytes())?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()
}

/// What is kept in a folder.
struct Listed<T> {
    /// What could be read, the oldest first.
    found: Vec<(PathBuf, T)>,
    /// The files that could not be, and why. They say nothing, and keep nobody from what the others say.
    unreadable: Vec<(PathBuf, io::Error)>,
}

impl<T> Listed<T> {
    /// What a folder holds that is not there yet.
    fn nothing() -> Self {
        Self { found: Vec::new(), unreadable: Vec::new() }
    }

    /// How many files there are.
    fn files(&self) -> usize {
        self.found.len() + self.unreadable.len()
    }
}

fn read<T>(path: &Path, from_json: fn(&Value) -> Option<T>) -> io::Result<T> {
    let none = || io::Error::other("it is no evidence");
    let mut bytes = Vec::new();
    File::open(path)?.take(FILE_BYTES_MAX).read_to_end(&mut bytes)?;
    let json: Value = serde_json::from_slice(&bytes).map_err(|_| none())?;
    from_json(&json).ok_or_else(none)
}

/// What the files in `folder` say whose names begin with `prefix`, in the order of their names.
fn list_of<T>(folder: &Path, prefix: &str, from_json: fn(&Value) -> Option<T>) -> io::Result<Listed<T>> {
    let mut listed = Listed::nothing();
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(listed),
        Err(error) => return Err(error),
    };
    for entry in entries {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if name.starts_with(prefix) && name.ends_with(".json") {
            match read(&path, from_json) {
                Ok(kept) => listed.found.push((path, kept)),
                Err(error) => listed.unreadable.push((path, error)),
            }
        }
    }
    listed.found.sort_by(|(one, _), (other, _)| one.cmp(other));
    listed.unreadable.sort_by(|(one, _), (other, _)| one.cmp(other));
    Ok(listed)
}

/// All that is kept in `folder` of what others did.
fn list(folder: &Path) -> io::Result<Listed<Record>> {
    let mut listed = list_of(folder, PREFIX, Record::from_json)?;
    listed.found.sort_by_key(|(_, record)| record.time_ms);
    Ok(listed)
}

/// The clients that a replica with this folder refuses, and their keys. A file that cannot be read refuses nobody, and is named in the log.
///
/// # Errors
/// When the folder cannot be read.
pub fn refused(folder: &Path) -> io::Result<BTreeMap<ClientId, [u8; 32]>> {
    let listed = list(folder)?;
    for (path, error) in &listed.unreadable {
        tracing::warn!(file = %path.display(), %error, "evidence cannot be read: if it speaks against a client, that is not refused for it");
    }
    let mut refused = BTreeMap::new();
    for (_, record) in listed.found.into_iter().filter(|(_, record)| !record.is_lifted) {
        let (Some(client), Some(key)) = (client(&record.who), record.key) else { continue };
        let mut bytes = [0; 32];
        if hex::decode_to_slice(key, &mut bytes).is_ok() {
            refused.insert(client, bytes);
        }
    }
    Ok(refused)
}

fn client(name: &str) -> Option<ClientId> {
    name.strip_prefix('c').and_then(|number| number.parse().ok()).map(ClientId)
}

/// Carries out `bezant evidence`.
pub fn show(args: &EvidenceArgs) -> Result<Done, Failure> {
    let is_replica = args.path.join("node.toml").exists();
    if !is_replica && !args.path.is_file() {
        return zookeeper::show(&args.path, args.json);
    }
    let own = if is_replica { Some(NodeConfig::load(&args.path, ENGINES)?) } else { None };
    let topology = match (&args.cluster, &own) {
        (Some(path), _) => Some(public_topology(path)?),
        (None, Some(own)) => Some(own.topology.clone()),
        (None, None) => None,
    };
    let place = args.path.display();
    let Listed { found, mut unreadable } = match &own {
        Some(own) => list(&folder_of(&own.data)).attempt("read what was kept", &place)?,
        None => {
            let record = read(&args.path, Record::from_json).attempt("read what was kept", &place)?;
            Listed { found: vec![(args.path.clone(), record)], unreadable: Vec::new() }
        }
    };
    let wrong = match &own {
        Some(own) => divergences::list(&folder_of(&own.data)).attempt("read what was kept", &place)?,
        None => Listed::nothing(),
    };
    unreadable.extend(wrong.unreadable);
    let wrong = wrong.found;
    if let Some(name) = &args.lift {
        return lift(name, &found);
    }
    let checked: Vec<Option<Result<u64, String>>> = found.iter().map(|(_, record)| check(record, topology.as_ref())).collect();
    if args.json {
        let one = |((path, record), checked): (&(PathBuf, Record), &Option<Result<u64, String>>)| {
            let mut shown = record.to_json();
            shown["file"] = json!(path.display().to_string());
            shown["proven_by_configuration"] = json!(checked.as_ref().and_then(|checked| checked.as_ref().ok()));
            shown["refuted"] = json!(checked.as_ref().and_then(|checked| checked.as_ref().err()));
            shown
        };
        let evidence: Vec<Value> = found.iter().zip(&checked).map(one).collect();
        let not_read = unreadable.iter().map(|(path, error)| json!({"file": path.display().to_string(), "why": error.to_string()}));
        let not_read: Vec<Value> = not_read.collect();
        out!("{}", json!({ "evidence": evidence, "divergences": divergences::to_json(&wrong), "unreadable": not_read }));
    } else {
        for ((path, record), checked) in found.iter().zip(&checked) {
            let about = record.transaction.as_ref().map(|transaction| format!(" (transaction {})", tame(transaction, WHO_LETTERS_MAX)));
            // Anybody may have written the file.
            let (who, what) = (tame(&record.who, WHO_LETTERS_MAX), tame(&record.what, WHAT_LETTERS_MAX));
            out!("{}: {who}: {what}{}", path.display(), about.unwrap_or_default());
            match checked {
                Some(Ok(version)) => out!("  proven by its signatures, by the keys of configuration {version}"),
                Some(Err(why)) => out!("  its signatures prove nothing: {why}"),
                None if record.proof.is_some() => out!("  signed; --cluster checks it"),
                None if client(&record.who).is_none() => {
                    out!("  not signed, and so it proves nothing: whatever is said of others than clients is signed")
                }
                None => out!("  not signed: this replica alone knows it, from the member's own connection"),
            }
            if record.key.is_some() {
                let state =
                    if record.is_lifted { "taken in again from the next start on" } else { "refused here as long as it has that key" };
                out!("  {who}: {state}");
            }
        }
        divergences::print(&wrong);
        for (path, error) in &unreadable {
            out!("{}: it cannot be read, and counts for nothing: {error}", path.display());
        }
        if found.is_empty() && unreadable.is_empty() && wrong.is_empty() {
            out!("nobody was ever seen to lie here");
        }
    }
    let refuted = checked.iter().flatten().filter(|checked| checked.is_err()).count();
    if refuted > 0 {
        return Err(Failure::wrong(format!("{refuted} of {} pieces of evidence prove nothing", found.len()))
            .at(args.path.display())
            .help("they were changed, or are of another cluster: check them with the cluster.toml of their own"));
    }
    Ok(if found.is_empty() && unreadable.is_empty() && wrong.is_empty() { Done::Well } else { Done::Negative })
}

/// What comes of checking what is signed of `record`, if anything is and there is something to check it by.
fn check(record: &Record, topology: Option<&Topology>) -> Option<Result<u64, String>> {
    let (proof, topology) = (record.proof.as_ref()?, topology?);
    let bytes = match hex::decode(proof) {
        Ok(bytes) => bytes,
        Err(error) => return Some(Err(error.to_string())),
    };
    let checked = if record.who == OPERATORS { check_fork(record, bytes, &topology.chain) } else { check_lie(record, bytes, topology) };
    Some(checked.and_then(
        |(configuration, is_same)| {
            if is_same { Ok(configuration) } else { Err("they are about something else than the file says".to_owned()) }
        },
    ))
}

/// By the keys of which configuration a replica's lie is proven, and whether that is what the file says.
fn check_lie(record: &Record, bytes: Vec<u8>, topology: &Topology) -> Result<(u64, bool), String> {
    let lie = verify_lie(&bytes.into(), topology)?;
    let is_same =
        lie.who.to_string() == record.who && lie.what == record.what && Some(hex::encode(lie.transaction.0)) == record.transaction;
    Ok((lie.configuration, is_same))
}

/// The same of operators who have signed two configurations: the version before names them.
fn check_fork(record: &Record, bytes: Vec<u8>, chain: &Chain) -> Result<(u64, bool), String> {
    let fork = Fork::verify(&bytes.into(), chain).map_err(|error| error.to_string())?;
    Ok((fork.version() - 1, fork.to_string() == record.what))
}

fn lift(name: &str, found: &[(PathBuf, Record)]) -> Result<Done, Failure> {
    let refused: Vec<_> = found.iter().filter(|(_, record)| record.who == name && record.key.is_some() && !record.is_lifted).collect();
    if refused.is_empty() {
        return Err(Failure::wrong(format!("no client {name:?} is refused here")).help("bezant evidence without --lift lists who is"));
    }
    for (path, record) in refused {
        write(path, &Record { is_lifted: true, ..record.clone() }.to_json()).attempt("note that it is lifted", path.display())?;
    }
    tell!("{name} is taken in again when this replica is started the next time");
    Ok(Done::Well)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(who: &str, time_ms: u64) -> Record {
        let key = client(who).map(|_| "07".repeat(32));
        Record {
            time_ms,
            who: who.to_owned(),
            key,
            what: "it lies".to_owned(),
            transaction: Some("00".to_owned()),
            proof: None,
            is_lifted: false,
        }
    }

    #[test]
    fn what_is_kept_is_read_back_has_a_bound_and_can_be_lifted() {
        let folder = tempfile::tempdir().expect("a folder");
        let folder = folder.path().join("evidence");
        let found = |folder: &Path| list(folder).expect("it can be read").found;
        assert_eq!(found(&folder), []);
        for time in 0..2 * EVIDENCE_OF_ONE_MAX as u64 {
            keep(&folder, &record("c7", time)).expect("it can be written");
        }
        assert_eq!(found(&folder).len(), EVIDENCE_OF_ONE_MAX);
        // What does not speak against its present key takes no room from what does.
        let (present, at) = (tempfile::tempdir().expect("a folder"), 2 * EVIDENCE_OF_ONE_MAX as u64);
        for time in 0..at {
            let earlier = Some("08".repeat(32));
            let (key, is_lifted) = if time % 2 == 0 { (earlier, false) } else { (record("c7", time).key, true) };
            let name = present.path().join(format!("{PREFIX}{time}-c7-0.json"));
            write(&name, &Record { key, is_lifted, ..record("c7", time) }.to_json()).expect("it can be written");
        }
        keep(present.path(), &record("c7", at)).expect("it can be written");
        assert_eq!(refused(present.path()).expect("it can be read").get(&ClientId(7)), Some(&[7; 32]));
        let other = tempfile::tempdir().expect("a folder");
        for time in 0..2 {
            keep(other.path(), &Record { proof: Some("01".to_owned()), ..record("s0-r1", time) }).expect("it can be written");
        }
        assert_eq!(found(other.path()).len(), 1, "it is the same proof");
        for number in 0..EVIDENCE_MAX as u64 {
            keep(&folder, &record(&format!("s0-r{number}"), 100 + number)).expect("it can be written");
        }
        let found = found(&folder);
        assert_eq!((found.len(), &found[0].1), (EVIDENCE_MAX, &record("c7", 0)));
        assert_eq!(refused(&folder).expect("it can be read"), BTreeMap::from([(ClientId(7), [7; 32])]));
        assert!(lift("c8", &found).is_err());
        lift("c7", &found).expect("it was refused");
        assert_eq!(refused(&folder).expect("it can be read"), BTreeMap::new());
    }

    #[test]
    fn a_file_that_cannot_be_read_keeps_nobody_from_the_others() {
        let folder = tempfile::tempdir().expect("a folder");
        let folder = folder.path();
        for client in ["c7", "c8"] {
            keep(folder, &record(client, 1)).expect("it can be written");
        }
        let damaged = list(folder).expect("it can be read").found[0].0.clone();
        fs::write(&damaged, "{").expect("written");
        fs::write(folder.join("divergence-1-1.json"), "").expect("written");
        let listed = list(folder).expect("it can be read");
        assert_eq!((listed.found.len(), listed.files()), (1, 2));
        assert_eq!(listed.unreadable[0].0, damaged);
        assert_eq!(refused(folder).expect("it can be read"), BTreeMap::from([(ClientId(8), [7; 32])]));
        keep(folder, &record("c9", 2)).expect("it can be written");
        assert_eq!(list(folder).expect("it can be read").found.len(), 2);
        assert_eq!(divergences::list(folder).expect("it can be read").unreadable.len(), 1);
    }
}
