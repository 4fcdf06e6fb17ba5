//! `bezant drill`: damage on purpose.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use config::key_from_text;
use monitoring::http_client;
use zookeeper::order_drill;

use crate::failure::{Done, Failure};
use crate::node::FLIP_PATH;
use crate::out;
use crate::output::tame;
use crate::status::WORDS_LETTERS_MAX;

/// What to do to a server on purpose.
#[derive(Debug, Subcommand)]
pub enum DrillCommand {
    /// Damages a server for ZooKeeper's clients that runs and whose zoo.cfg says bezant.drills=true
    #[command(after_help = "Examples:\n\
        \x20 bezant drill corrupt --server 127.0.0.1:2181 stat --path /config\n\
        \x20 bezant drill corrupt --server 127.0.0.1:2181 log\n\n\
        In memory: data, stat, acl and children of the node at --path (one child too many; lost-child: one too few); how the next\n\
        transaction is applied: write (a bit of its data), drop, double, reorder. On the disk: log and snapshot. At the leader of several\n\
        servers: the next proposal. `bezant audit`, `bezant evidence` and the server's log show what was noticed.")]
    Corrupt(CorruptArgs),
    /// Flips a bit in a value that a running replica holds, silently, where the cluster was made with --drills
    #[command(after_help = "Examples:\n\
        \x20 bezant init ./trial --drills && bezant up ./trial\n\
        \x20 bezant drill flip --cluster ./trial s0-r1 account/7\n\n\
        The replica notices, says so in its log, `bezant status`, /health and the metric bezant_divergences_total, and takes over what the others\n\
        have. `bezant evidence ./trial/s0-r1` shows what it kept of that.")]
    Flip(FlipArgs),
}

/// Whose value to damage.
#[derive(Args, Debug)]
pub struct FlipArgs {
    /// The cluster's folder
    #[arg(long, value_name = "DIR", default_value = "./bezant-data")]
    cluster: PathBuf,
    /// The replica
    #[arg(value_name = "sN-rM")]
    replica: String,
    /// The key
    #[arg(value_name = "KEY")]
    key: String,
}

/// What to damage.
#[derive(Args, Debug)]
pub struct CorruptArgs {
    /// Where the server's clients connect
    #[arg(long, value_name = "HOST:PORT")]
    server: String,
    /// The node, where a node is to be damaged
    #[arg(long, default_value = "/")]
    path: String,
    /// What to damage
    #[arg(value_parser = ["data", "stat", "acl", "children", "lost-child", "write", "drop", "double", "reorder", "log", "snapshot", "proposal"])]
    what: String,
}

/// Carries out `bezant drill`.
pub async fn run(command: &DrillCommand) -> Result<Done, Failure> {
    match command {
        DrillCommand::Corrupt(args) => corrupt(args).await,
        DrillCommand::Flip(args) => flip(args).await,
    }
}

async fn flip(args: &FlipArgs) -> Result<Done, Failure> {
    let topology = bezant_client::load(&args.cluster)?.topology;
    let key = key_from_text(&args.key).map_err(|error| Failure::wrong(error).at(&args.key))?;
    let Some((replica, endpoint)) = topology.endpoints.iter().find(|(replica, _)| replica.to_string() == args.replica) else {
        return Err(Failure::wrong(format!("the cluster has no replica {}", args.replica)).help("take a name that bezant status shows"));
    };
    let path = format!("{FLIP_PATH}{}/{}", topology.cluster.id(), hex::encode(key.as_bytes()));
    let answer = http_client::get(&endpoint.http, &path).await.map_err(|error| Failure::wrong(error).at(replica))?;
    out!("{}", tame(answer.trim_end(), WORDS_LETTERS_MAX));
    Ok(Done::Well)
}

async fn corrupt(args: &CorruptArgs) -> Result<Done, Failure> {
    let answered = order_drill(&args.server, &args.what, &args.path).await;
    let answer = answered.map_err(|error| Failure::failed(error.to_string()).at(&args.server))?;
    match answer.strip_prefix("refused: ") {
        Some(why) => Err(Failure::wrong(why.to_owned()).at(&args.server)),
        None if answer.is_empty() => Err(Failure::failed("it closed the connection without an answer").at(&args.server)),
        None => {
            out!("{answer}");
            Ok(Done::Well)
        }
    }
}
