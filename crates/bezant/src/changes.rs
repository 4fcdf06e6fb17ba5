//! `bezant config`: changes of the cluster while it runs. Operators propose, sign and apply the next configuration; members take it over.

mod description;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bezant_client::{Client, ENGINES};
use clap::{Args, Subcommand};
use config::{NodeConfig, ReadQuorum, Settings, Topology, chain_file, write_chain};
use crypto::configuration::CONFIGURATION_BYTES_MAX;
use crypto::{Chain, ChainError, Configuration, SignedConfiguration};
use monitoring::http_client;
use runtime::IdentityError;
use serde_json::{Value, json};
use types::codec::Encode as _;
use types::{ClientId, ReplicaId, ShardId};

use crate::failure::{Attempt as _, Done, Failure};
use crate::output::tame;
use crate::tell;
use crate::{init, node, out, status};
use description::{difference, name_of_key};

/// So much is shown of one change.
const LINE_LETTERS_MAX: usize = 1_000;
/// How long `apply` waits for replicas to take a configuration over, by default.
const WAIT_SECONDS: u64 = 10;

/// What is done with the cluster's configuration.
#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Prints the newest configuration known here, or what a proposed one would change
    #[command(after_help = "Examples:\n\
        \x20 bezant config show > next.toml\n\
        \x20 bezant config show next.proposal\n\n\
        A running cluster may be ahead of what is known here; any client command brings this folder up to date.")]
    Show(ShowArgs),
    /// Makes the next configuration out of an edited one, for operators to sign
    #[command(after_help = "Examples:\n\
        \x20 bezant config show > next.toml && $EDITOR next.toml && bezant config propose next.toml --out next.proposal\n\
        \x20 bezant config propose --revoke-client 7 --out next.proposal")]
    Propose(ProposeArgs),
    /// Adds an operator's signature to a proposed configuration, on the operator's own machine
    #[command(after_help = "Example:\n\
        \x20 bezant config sign next.proposal --key bezant-data/operator\n\n\
        It first prints what would change. Of two different configurations of one version, a key signs only the first.")]
    Sign(SignArgs),
    /// Hands a signed configuration to all replicas, and waits until they go by it
    #[command(after_help = "Examples:\n\
        \x20 bezant config apply next.proposal\n\
        \x20 bezant config apply next.proposal --offline --cluster bezant-data/s0-r3")]
    Apply(ApplyArgs),
    /// Lists all configurations known here, who signed each, and what it changed
    #[command(after_help = "Example:\n  bezant config history --cluster bezant-data")]
    History(HistoryArgs),
    /// Makes the folder of a member whose key the newest configuration names
    #[command(after_help = "Examples:\n\
        \x20 bezant config join my-key shared/client-7 --cluster shared\n\
        \x20 bezant config join my-key new/s0-r3 --cluster shared --listen 0.0.0.0:7400\n\n\
        A replica that takes an earlier one's place begins with an empty store, and takes its data over from the others, as after `bezant rebuild`.")]
    Join(JoinArgs),
}

/// Where the cluster's configuration is looked for.
#[derive(Args, Debug)]
pub struct ClusterFolder {
    /// The cluster's folder, or a member's folder of it
    #[arg(long, value_name = "DIR", default_value = DEFAULT_CLUSTER)]
    cluster: PathBuf,
}

/// The cluster's folder where none is named.
const DEFAULT_CLUSTER: &str = "./bezant-data";

impl ClusterFolder {
    /// What another command needs to find the same cluster.
    fn option(&self) -> String {
        if self.cluster == Path::new(DEFAULT_CLUSTER) { String::new() } else { format!(" --cluster {}", self.cluster.display()) }
    }
}

/// What to show.
#[derive(Args, Debug)]
pub struct ShowArgs {
    /// A proposed configuration
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
    #[command(flatten)]
    at: ClusterFolder,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What to propose.
#[derive(Args, Debug)]
pub struct ProposeArgs {
    /// The cluster as it is to be, in the form that `bezant config show` prints; with --revoke-client it may be left out, and all else stays
    /// as it is
    #[arg(value_name = "EDITED.toml", required_unless_present = "revoke_client")]
    edited: Option<PathBuf>,
    /// Take this client out of it
    #[arg(long, value_name = "N")]
    revoke_client: Vec<u64>,
    /// The file to write, which must not exist
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    #[command(flatten)]
    at: ClusterFolder,
}

/// What to sign.
#[derive(Args, Debug)]
pub struct SignArgs {
    /// The proposed configuration; the signature is added to it
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The folder with the operator's key: `bezant init` makes the first one in DIR/operator, `bezant key new --operator` others
    #[arg(long, value_name = "DIR")]
    key: PathBuf,
    #[command(flatten)]
    at: ClusterFolder,
}

/// What to apply.
#[derive(Args, Debug)]
pub struct ApplyArgs {
    /// The signed configuration
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Only write it to this folder, whose member does not run
    #[arg(long)]
    offline: bool,
    /// Also where it replaces a replica while others of its shard do not serve; more than f are out then, and the shard may stop
    #[arg(long)]
    force: bool,
    /// How long to wait for the replicas
    #[arg(long, value_name = "S", default_value_t = WAIT_SECONDS)]
    seconds: u64,
    #[command(flatten)]
    at: ClusterFolder,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What to list.
#[derive(Args, Debug)]
pub struct HistoryArgs {
    #[command(flatten)]
    at: ClusterFolder,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Whose folder to make.
#[derive(Args, Debug)]
pub struct JoinArgs {
    /// The folder that `bezant key new` made
    #[arg(value_name = "KEY-FOLDER")]
    key: PathBuf,
    /// The folder to make
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
    /// Where a replica listens, if that is not the port that others reach it by, on all addresses
    #[arg(long, value_name = "IP:PORT")]
    listen: Option<SocketAddr>,
    #[command(flatten)]
    at: ClusterFolder,
    /// A replica's settings: as those of the others
    #[command(flatten)]
    settings: Settings,
}

/// Carries out `bezant config`.
pub async fn run(command: &ConfigCommand) -> Result<Done, Failure> {
    match command {
        ConfigCommand::Show(args) => show(args),
        ConfigCommand::Propose(args) => propose(args),
        ConfigCommand::Sign(args) => sign(args),
        ConfigCommand::Apply(args) if args.offline => apply_offline(args),
        ConfigCommand::Apply(args) => apply(args).await,
        ConfigCommand::History(args) => history(args),
        ConfigCommand::Join(args) => join(args).await,
    }
}

impl ClusterFolder {
    /// The folder whose `cluster.toml` counts: the client's of a cluster, which learns of changes; else the folder itself.
    fn folder(&self) -> PathBuf {
        let client = self.cluster.join("client");
        if client.join("cluster.toml").exists() { client } else { self.cluster.clone() }
    }

    fn cluster_toml(&self) -> PathBuf {
        self.folder().join("cluster.toml")
    }

    fn topology(&self) -> Result<Topology, Failure> {
        Ok(Topology::load(&self.cluster_toml(), ENGINES)?)
    }
}

fn show(args: &ShowArgs) -> Result<Done, Failure> {
    let topology = args.at.topology()?;
    let chain = &topology.chain;
    let Some(file) = &args.file else {
        if args.json {
            out!("{}", description::to_json(chain.newest(), chain));
        } else {
            out!("# Configuration {} ({}).\n{}", chain.version(), hex::encode(chain.digest()), topology.to_toml().trim_end());
        }
        return Ok(Done::Well);
    };
    let proposed = read(file, chain)?;
    let verdict = chain.check(&proposed).or_else(|error| match error {
        // What is wrong with it is wrong however many sign it.
        ChainError::TooFew { .. } => chain.check_unsigned(&proposed.configuration).and(Err(error)),
        _ => Err(error),
    });
    if args.json {
        let mut shown = description::to_json(&proposed.configuration, chain);
        shown["signed_by"] = json!(signers(chain, &proposed));
        shown["changes"] = json!(difference(chain.newest(), &proposed.configuration));
        shown["refused"] = json!(verdict.as_ref().err().map(ToString::to_string));
        out!("{shown}");
        return Ok(Done::Well);
    }
    describe(chain, &proposed);
    match &verdict {
        Ok(_) => out!("it can be applied"),
        Err(error) => out!("it cannot be applied: {error}"),
    }
    // What only lacks signatures is as it should be.
    Ok(if matches!(verdict, Err(ChainError::BadSignature { .. })) { Done::Negative } else { Done::Well })
}

/// Says what a proposed configuration changes, and who signed it.
fn describe(chain: &Chain, proposed: &SignedConfiguration) {
    describe_changes(chain, &proposed.configuration);
    let signers = signers(chain, &with_good_signatures(chain, proposed));
    let needed = chain.newest().operators.needed;
    out!(
        "signed by {} of {needed} operators needed{}",
        signers.len(),
        signers.iter().map(|name| format!("\n  {name}")).collect::<String>()
    );
}

fn describe_changes(chain: &Chain, next: &Configuration) {
    out!("configuration {} ({}), after {}", next.version, hex::encode(next.digest(chain.id())), chain.version());
    for line in difference(chain.newest(), next) {
        out!("  {}", tame(&line, LINE_LETTERS_MAX));
    }
}

/// The same without signatures that are bad; says how many are.
fn with_good_signatures(chain: &Chain, proposed: &SignedConfiguration) -> SignedConfiguration {
    // A signature counts by itself or not at all.
    let is_bad = |signature: &(u16, [u8; 64])| {
        let one = SignedConfiguration { configuration: proposed.configuration.clone(), signatures: vec![*signature] };
        matches!(chain.check(&one), Err(ChainError::BadSignature { .. }))
    };
    let mut good = proposed.clone();
    good.signatures.retain(|signature| !is_bad(signature));
    let bad = proposed.signatures.len() - good.signatures.len();
    if bad > 0 {
        out!("signatures that are bad, and count for nothing: {bad}");
    }
    good
}

fn signers(chain: &Chain, signed: &SignedConfiguration) -> Vec<String> {
    let before = signed.configuration.version.checked_sub(1).and_then(|version| usize::try_from(version).ok());
    let operators =
        before.and_then(|version| chain.configurations().nth(version)).map(|before| before.operators.keys.clone()).unwrap_or_default();
    let name = |(operator, _): &(u16, [u8; 64])| operators.get(usize::from(*operator)).map_or_else(|| "nobody".to_owned(), name_of_key);
    signed.signatures.iter().map(name).collect()
}

fn read(file: &Path, chain: &Chain) -> Result<SignedConfiguration, Failure> {
    let mut bytes = Vec::new();
    let opened =
        File::open(file).map_err(|error| Failure::wrong(format!("the configuration cannot be read: {error}")).at(file.display()))?;
    opened.take(CONFIGURATION_BYTES_MAX as u64 + 1).read_to_end(&mut bytes).attempt("read the configuration", file.display())?;
    let proposed = SignedConfiguration::read(bytes.into(), chain.id()).map_err(|error| {
        Failure::wrong(format!("this is no proposed configuration of this cluster: {error}"))
            .at(file.display())
            .help("name a file that `bezant config propose` wrote")
    })?;
    if is_of_another_cluster(chain, &proposed.configuration) {
        return Err(Failure::wrong("this proposal is for another cluster: it lists no replica, client or operator of this one")
            .at(file.display())
            .help("name the folder of the cluster that it is for: --cluster DIR"));
    }
    refuse_other_text(chain.newest(), &proposed.configuration, file)?;
    Ok(proposed)
}

/// Whether `next` has no key of any configuration that is known here. It does not say which cluster it is for, but keys are drawn at random.
fn is_of_another_cluster(chain: &Chain, next: &Configuration) -> bool {
    let listed: BTreeSet<[u8; 32]> = next.keys().collect();
    !chain.configurations().rev().any(|known| known.keys().any(|key| listed.contains(&key)))
}

/// Refuses new addresses that are none: whatever stands there is shown to the operators who are to sign it.
fn refuse_other_text(before: &Configuration, next: &Configuration, file: &Path) -> Result<(), Failure> {
    let known: BTreeSet<&String> = before.replicas.iter().flatten().flat_map(|holder| [&holder.address, &holder.http]).collect();
    for address in next.replicas.iter().flatten().flat_map(|holder| [&holder.address, &holder.http]) {
        if !known.contains(address) {
            init::address_from_text(address).map_err(|what| Failure::wrong(what).at(file.display()))?;
        }
    }
    Ok(())
}

/// Writes a file so that a reader finds all of it, or what was there before.
fn write(file: &Path, signed: &SignedConfiguration) -> Result<(), Failure> {
    let new = file.with_extension("new");
    let written = File::create(&new).and_then(|mut opened| {
        opened.write_all(&signed.to_bytes())?;
        opened.sync_all()
    });
    written.and_then(|()| fs::rename(&new, file)).attempt("write the configuration", file.display())
}

/// Whether there is such a file, and it holds something else than `bytes`.
fn holds_other(file: &Path, bytes: &[u8]) -> bool {
    let is_as_long = fs::metadata(file).is_ok_and(|found| found.len() == bytes.len() as u64);
    file.exists() && !(is_as_long && fs::read(file).is_ok_and(|found| found == bytes))
}

fn propose(args: &ProposeArgs) -> Result<Done, Failure> {
    let topology = args.at.topology()?;
    if !node::changes_while_running(topology.engine) {
        return Err(Failure::wrong(format!("a cluster of {} cannot be changed while it runs", topology.engine.name))
            .at(args.at.cluster.display())
            .help("stop all of it, change cluster.toml in every folder, and start it again"));
    }
    let chain = &topology.chain;
    let before = chain.newest();
    let mut next = match &args.edited {
        None => before.clone(),
        Some(edited) => {
            let edited_topology = Topology::read_first(edited, ENGINES)?;
            let first = edited_topology.chain.newest();
            let shape = chain.configurations().next().map(|first| first.previous);
            if edited_topology.cluster.id() != topology.cluster.id() || Some(first.previous) != shape {
                return Err(Failure::wrong(
                    "only replicas, clients and operators can change: the id, the engine, faults, shards and the placement stay",
                )
                .at(edited.display())
                .help("begin with what `bezant config show` prints"));
            }
            first.clone()
        }
    };
    (next.version, next.previous) = (before.version + 1, chain.digest());
    for number in &args.revoke_client {
        let count = next.clients.len();
        next.clients.retain(|(client, _)| *client != ClientId(*number));
        if next.clients.len() == count {
            return Err(Failure::wrong(format!("there is no client {number}")).at("--revoke-client").help("bezant config show lists them"));
        }
    }
    let changes = difference(before, &next);
    if changes.is_empty() {
        return Err(Failure::wrong("it would change nothing").at(args.out.display()));
    }
    refuse_other_text(before, &next, args.edited.as_deref().unwrap_or(&args.out))?;
    chain.check_unsigned(&next).map_err(|error| refused(&error, args.edited.as_deref().unwrap_or(&args.out)))?;
    let proposed = SignedConfiguration { configuration: next, signatures: Vec::new() };
    if proposed.to_bytes().len() > CONFIGURATION_BYTES_MAX {
        return Err(Failure::wrong(format!("a configuration may take {CONFIGURATION_BYTES_MAX} bytes"))
            .help("list fewer clients, or shorter prefixes"));
    }
    if holds_other(&args.out, &proposed.to_bytes()) {
        return Err(Failure::wrong("this file exists already, and may be a proposal that operators have signed")
            .at(args.out.display())
            .help("name another file, or remove this one if it is of no use any more"));
    }
    write(&args.out, &proposed)?;
    describe(chain, &proposed);
    let (out, first) = (args.out.display(), args.at.cluster.join("operator"));
    let key = if first.join("key").exists() { first.display().to_string() } else { "KEY-FOLDER".to_owned() };
    let cluster = args.at.option();
    tell!("{out} is proposed. Next: each operator signs it, with its own key: bezant config sign {out} --key {key}{cluster}");
    Ok(Done::Well)
}

fn refused(error: &ChainError, place: &Path) -> Failure {
    let failure = Failure::wrong(error.to_string()).at(place.display());
    match error {
        // What comes before it is what cluster.toml says.
        ChainError::OtherBefore { version: 1 } => {
            failure.help("it is for another cluster, or cluster.toml is not the same here as where it was proposed")
        }
        ChainError::Old { .. } | ChainError::OtherBefore { .. } | ChainError::Fork(_) => {
            failure.help("propose it anew, after the newest one: bezant config propose")
        }
        ChainError::Early { .. } => failure.help(
            "bring this folder up to date first: run any client command with it. If the cluster itself knows no more, the proposal is for another",
        ),
        ChainError::TooFew { .. } => failure.help("let more operators sign it: bezant config sign"),
        _ => failure,
    }
}

fn sign(args: &SignArgs) -> Result<Done, Failure> {
    let topology = args.at.topology()?;
    let chain = &topology.chain;
    let proposed = read(&args.file, chain)?;
    chain.check_unsigned(&proposed.configuration).map_err(|error| refused(&error, &args.file))?;
    let key = args.key.join("key");
    let secret = runtime::tls::read_private_key(&key).map_err(|error| no_key(&error, &key))?;
    let Some(signature) = proposed.configuration.sign(chain.id(), &chain.newest().operators, &secret) else {
        return Err(Failure::wrong(format!("this key is none of an operator of configuration {}", chain.version())).at(key.display()));
    };
    describe_changes(chain, &proposed.configuration);
    let mut proposed = with_good_signatures(chain, &proposed);
    remember_signing(&args.key, chain, &proposed.configuration)?;
    proposed.add(signature);
    write(&args.file, &proposed)?;
    let (signed, needed) = (proposed.signatures.len(), chain.newest().operators.needed);
    let file = args.file.display();
    if signed >= usize::from(needed) {
        tell!("signed; {signed} of {needed} needed have. Next: bezant config apply {file}{}", args.at.option());
    } else {
        tell!("signed; {signed} of {needed} needed have. Next: give {file} to another operator");
    }
    Ok(Done::Well)
}

fn no_key(error: &IdentityError, place: &Path) -> Failure {
    match error {
        IdentityError::File { source, .. } if source.kind() == ErrorKind::NotFound => {
            Failure::wrong("there is no operator's key here").at(place.display()).help(
                "name the folder that holds one: `bezant init` made the first in DIR/operator, unless it was moved; `bezant key new --operator` makes others",
            )
        }
        _ => Failure::wrong(error.to_string()).at(place.display()),
    }
}

/// Writes down, beside the key, what it is about to sign; refuses a second configuration of the same version. That two configurations of one version
/// are never both signed by enough rests on this.
fn remember_signing(folder: &Path, chain: &Chain, next: &Configuration) -> Result<(), Failure> {
    let path = folder.join("signed");
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
        Err(error) => return Err(Failure::failed(format!("what this key has signed cannot be read: {error}")).at(path.display())),
    };
    let (begin, digest) = (format!("{} {} ", chain.id(), next.version), hex::encode(next.digest(chain.id())));
    match text.lines().find_map(|line| line.strip_prefix(&begin)) {
        Some(earlier) if earlier == digest => return Ok(()),
        Some(earlier) => {
            return Err(Failure::wrong(format!("this key has signed another configuration {}: {earlier}", next.version))
                .at(path.display())
                .help(
                    "have that one applied, and propose this as the next; an operator that signs two of one version splits the cluster",
                ));
        }
        None => {}
    }
    let appended = fs::OpenOptions::new().create(true).append(true).open(&path).and_then(|mut file| {
        file.write_all(format!("{begin}{digest}\n").as_bytes())?;
        file.sync_all()
    });
    appended.attempt("write down what is signed", path.display())?;
    init::sync(folder)
}

fn apply_offline(args: &ApplyArgs) -> Result<Done, Failure> {
    let file = args.at.cluster.join("cluster.toml");
    let mut topology = Topology::load(&file, ENGINES)?;
    let next = read(&args.file, &topology.chain)?;
    topology.chain.extend(next).map_err(|error| refused(&error, &args.file))?;
    let path = chain_file(&file);
    write_chain(&path, &topology.chain).attempt("write the configurations", path.display())?;
    tell!("{} knows configuration {}", args.at.cluster.display(), topology.chain.version());
    Ok(Done::Well)
}

async fn apply(args: &ApplyArgs) -> Result<Done, Failure> {
    let config = bezant_client::load(&args.at.cluster)?;
    let (topology, own_key) = (config.topology.clone(), config.secret.public());
    let client = bezant_client::connect(config).await.map_err(Failure::from)?;
    let outcome = hand_over(args, &topology, &own_key, &client).await;
    let chain = client.chain();
    client.close().await;
    // The cluster's own folder learns of it too, for whoever starts replicas there.
    let own = args.at.cluster.join("cluster.toml");
    if own.exists() && chain.version() > 0 {
        let path = chain_file(&own);
        write_chain(&path, &chain).attempt("write the configurations", path.display())?;
    }
    outcome
}

async fn hand_over(args: &ApplyArgs, topology: &Topology, own_key: &[u8; 32], client: &Client) -> Result<Done, Failure> {
    let chain = client.chain();
    let next = read(&args.file, &chain)?;
    let (version, digest) = (next.configuration.version, next.configuration.digest(chain.id()));
    let is_known = |configuration: &Configuration| configuration.version == version && configuration.digest(chain.id()) == digest;
    if !chain.configurations().any(is_known) {
        chain.check(&next).map_err(|error| refused(&error, &args.file))?;
        if !args.force {
            refuse_while_others_are_out(topology, chain.newest(), &next.configuration).await?;
        }
    }
    // Applied again, it is handed to those that had not heard of it.
    client.take_over(next.clone()).map_err(|error| Failure::wrong(error.to_string()).at(args.file.display()))?;
    let changed = changed_places(chain.newest(), &next.configuration);
    let give_up = Instant::now() + Duration::from_secs(args.seconds);
    let expected: Vec<ReplicaId> = topology.cluster.replicas().filter(|replica| !changed.contains(replica)).collect();
    let lacks = |versions: &BTreeMap<ReplicaId, u64>| -> Vec<String> {
        let lacks = |replica: &&ReplicaId| versions.get(replica).is_none_or(|known| *known < version);
        expected.iter().filter(lacks).map(ToString::to_string).collect()
    };
    // A client that it takes out is cut off before replicas can say that they know it. Their HTTP addresses still do.
    let takes_itself_out = next.configuration.clients.iter().all(|(_, permission)| permission.public_key != *own_key);
    let missing = loop {
        let mut versions = client.versions();
        if takes_itself_out {
            for replica in &expected {
                let version = status_of(topology, *replica).await["configuration_version"].as_u64();
                versions.extend(version.map(|version| (*replica, version)));
            }
        }
        let missing = lacks(&versions);
        if missing.is_empty() || Instant::now() >= give_up {
            break missing;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    if args.json {
        out!("{}", json!({"version": version, "digest": hex::encode(digest), "not_heard_of_yet": missing}));
    } else {
        out!("configuration {version}: {} of {} replicas go by it", expected.len() - missing.len(), expected.len());
    }
    let faults = topology.cluster.faults();
    let too_many =
        topology.cluster.shards().any(|shard| missing.iter().filter(|name| name.starts_with(&format!("{shard}-"))).count() > faults);
    if !missing.is_empty() {
        tell!("{} have not said that they know it; each takes it over from any other once it is connected", missing.join(", "));
    }
    if takes_itself_out {
        tell!(
            "the key in {} is good no more: from now on name another client's folder, or give this one its new key (bezant key use)",
            args.at.cluster.display()
        );
    }
    if too_many {
        return Err(
            Failure::failed("more replicas of a shard than it survives do not go by it yet").help("see bezant status, and apply it again")
        );
    }
    Ok(Done::Well)
}

fn changed_places(before: &Configuration, next: &Configuration) -> Vec<ReplicaId> {
    let mut changed = Vec::new();
    for (shard, (old, new)) in (0..).zip(before.replicas.iter().zip(&next.replicas)) {
        for (index, (old, new)) in (0..).zip(old.iter().zip(new)) {
            if old.public_key != new.public_key {
                changed.push(ReplicaId { shard: ShardId(shard), index });
            }
        }
    }
    changed
}

/// A place that gets another key is out until its new holder takes part again. So before one does, all others of its shard must, but as many as
/// the shard can spare.
async fn refuse_while_others_are_out(topology: &Topology, before: &Configuration, next: &Configuration) -> Result<(), Failure> {
    let changed = changed_places(before, next);
    let faults = topology.cluster.faults();
    for shard in topology.cluster.shards().filter(|shard| changed.iter().any(|replica| replica.shard == *shard)) {
        let mut out_of_it: Vec<String> = Vec::new();
        for replica in topology.cluster.replicas_of(shard) {
            let found = status_of(topology, replica).await;
            let serves = status::serves(&found);
            let is_behind = found["configuration_version"] != json!(before.version);
            if changed.contains(&replica) || !serves || is_behind {
                out_of_it.push(replica.to_string());
            }
        }
        if out_of_it.len() > faults {
            return Err(Failure::wrong(format!(
                "of shard {shard}, {} would be out at once, and it survives {faults}",
                out_of_it.join(", ")
            ))
            .help("wait until `bezant status` shows that all others serve and go by the newest configuration; --force does without (also where replicas answer HTTP to their own hosts alone)"));
        }
    }
    Ok(())
}

/// What a replica says of itself over HTTP; nothing, where it does not answer there.
async fn status_of(topology: &Topology, replica: ReplicaId) -> Value {
    let Some(endpoint) = topology.endpoints.get(&replica) else { return Value::Null };
    let answer = http_client::get(&endpoint.http, "/status").await;
    let found: Option<Value> = answer.ok().and_then(|body| serde_json::from_str(&body).ok());
    found.filter(|found| status::is_from(found, topology.cluster.id(), replica)).unwrap_or_default()
}

fn history(args: &HistoryArgs) -> Result<Done, Failure> {
    let topology = args.at.topology()?;
    let chain = &topology.chain;
    let all: Vec<&Configuration> = chain.configurations().collect();
    let mut listed = vec![json!({"version": 0, "digest": hex::encode(all[0].digest(chain.id()))})];
    if !args.json {
        out!("0 ({}) as cluster.toml says", hex::encode(all[0].digest(chain.id())));
    }
    for (before, signed) in all.iter().zip(chain.after(0)) {
        let next = &signed.configuration;
        let (digest, changes, by) = (hex::encode(next.digest(chain.id())), difference(before, next), signers(chain, signed));
        if args.json {
            listed.push(json!({"version": next.version, "digest": digest, "changes": changes, "signed_by": by}));
            continue;
        }
        out!("{} ({digest}) signed by {}", next.version, by.join(", "));
        changes.iter().for_each(|line| out!("  {}", tame(line, LINE_LETTERS_MAX)));
    }
    if args.json {
        out!("{}", json!({ "configurations": listed }));
    }
    Ok(Done::Well)
}

/// Refuses settings that must be the same at all replicas, and are not those of one that runs.
async fn refuse_other_settings(topology: &Topology, replica: ReplicaId, settings: &Settings) -> Result<(), Failure> {
    for other in topology.cluster.replicas().filter(|other| *other != replica) {
        let said = status_of(topology, other).await;
        for (name, option, own) in
            [("window_ms", "--window-ms", settings.window_ms), ("time_bound_ms", "--time-bound-ms", settings.time_bound_ms)]
        {
            if let Some(value) = said["settings"][name].as_u64().filter(|value| *value != own) {
                let what = format!("{name} would be {own} at {replica}, and is {value} at {other}: it must be the same at every replica");
                return Err(Failure::wrong(what).help(format!("say {option} {value}")));
            }
        }
        if !said["settings"].is_null() {
            break;
        }
    }
    Ok(())
}

async fn join(args: &JoinArgs) -> Result<Done, Failure> {
    let topology = args.at.topology()?;
    let (cluster, chain) = (&topology.cluster, &topology.chain);
    let key = args.key.join("key");
    let secret = runtime::tls::read_private_key(&key).map_err(|error| Failure::wrong(error.to_string()).at(key.display()))?;
    let replica = cluster.replicas().find(|replica| cluster.replica_key(*replica) == Some(&secret.public()));
    let client = cluster.clients().iter().find(|(_, permission)| permission.public_key == secret.public()).map(|(client, _)| *client);
    let folder = &args.folder;
    if let Some(replica) = replica {
        refuse_other_settings(&topology, replica, &args.settings).await?;
    }
    init::refuse_occupied(folder)?;
    let first = fs::read_to_string(args.at.cluster_toml()).attempt("read the file", args.at.cluster_toml().display())?;
    fs::create_dir_all(folder).attempt("make the folder", folder.display())?;
    let name = match (replica, client) {
        (Some(replica), _) => {
            let endpoint = topology.endpoints.get(&replica).expect("each replica is somewhere");
            let http = endpoint
                .http
                .parse()
                .map_err(|_| Failure::wrong(format!("HTTP is answered at IP:PORT, not at {:?}", endpoint.http)).at(replica))?;
            let listen = args.listen.map_or_else(|| init::listen_at(&endpoint.address), Ok)?;
            args.settings.check(topology.engine).map_err(Failure::wrong)?;
            init::text(&folder.join("node.toml"), &init::node_toml(replica, listen, http, topology.engine, &args.settings))?;
            replica.to_string()
        }
        (None, Some(client)) => {
            init::text(&folder.join("client.toml"), &init::client_toml(client, topology.engine, ReadQuorum::default(), ""))?;
            client.to_string()
        }
        (None, None) => {
            return Err(Failure::wrong(format!("configuration {} names this key nowhere", chain.version()))
                .at(key.display())
                .help("have a configuration applied that does; any client command brings the folder named by --cluster up to date"));
        }
    };
    init::text(&folder.join("cluster.toml"), &first)?;
    let path = chain_file(&folder.join("cluster.toml"));
    write_chain(&path, chain).attempt("write the configurations", path.display())?;
    init::identity(folder, &secret, &name, cluster.id())?;
    if replica.is_some() {
        let loaded = NodeConfig::load(folder, ENGINES)?;
        node::create_marked_data(&loaded, &loaded.data).attempt("make the store", loaded.data.display())?;
        init::sync(folder)?;
        tell!("{name} has its folder. Once the earlier holder of its place is stopped: bezant node {}", folder.display());
    } else {
        init::sync(folder)?;
        tell!("{name} has its folder. Next: bezant get KEY --cluster {}", folder.display());
    }
    out!("{}", folder.display());
    Ok(Done::Well)
}
