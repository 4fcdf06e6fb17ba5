//! `bezant status`: who is up, and how far. Asks every replica's HTTP window; those that do not answer are down.

use std::path::PathBuf;

use clap::Args;
use config::Config;
use monitoring::http_client;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use types::{Cluster, ReplicaId};

use crate::failure::{Attempt as _, Done, Failure};
use crate::out;

/// Says which replicas are up, and how far each is.
#[derive(Args, Debug)]
pub struct StatusArgs {
    /// The cluster's folder, or a client's folder of it
    #[arg(long, value_name = "DIR", default_value = "./bezant-data")]
    cluster: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

type Answer = (ReplicaId, String, Result<Value, String>);

/// Carries out `bezant status`.
pub async fn run(args: &StatusArgs) -> Result<Done, Failure> {
    let topology = Config::load(&args.cluster)?.topology;
    let mut asked = JoinSet::new();
    for (replica, endpoint) in topology.endpoints.clone() {
        asked.spawn(async move {
            let answer = http_client::get(&endpoint.http, "/status").await;
            let answer = answer.and_then(|body| serde_json::from_str::<Value>(&body).map_err(|_| "the answer is not a status".to_owned()));
            (replica, endpoint.http, answer)
        });
    }
    let mut answers = Vec::with_capacity(topology.endpoints.len());
    while let Some(answer) = asked.join_next().await {
        answers.push(answer.attempt("ask a replica", "this process")?);
    }
    answers.sort_by_key(|(replica, _, _)| *replica);
    // Another cluster's replica on a port of this one's is not a replica of this one.
    let cluster = topology.cluster.id().to_string();
    for (replica, _, answer) in &mut answers {
        if let Ok(status) = answer
            && (status["cluster"] != json!(cluster) || status["replica"] != json!(replica.to_string()))
        {
            *answer = Err("somebody else answers there".to_owned());
        }
    }
    if args.json {
        out!("{}", to_json(&answers));
    } else {
        print(&answers);
        warn_of_distances(&answers);
        shards(&topology.cluster, &answers);
    }
    Ok(if answers.iter().all(|(_, _, answer)| answer.as_ref().is_ok_and(serves)) { Done::Well } else { Done::Missing })
}

fn serves(status: &Value) -> bool {
    status["state"] == json!("serving")
}

fn to_json(answers: &[Answer]) -> Value {
    let replicas: Vec<Value> = answers
        .iter()
        .map(|(replica, http, answer)| match answer {
            Ok(status) => json!({"replica": replica.to_string(), "http": http, "up": true, "status": status}),
            Err(error) => json!({"replica": replica.to_string(), "http": http, "up": false, "error": error}),
        })
        .collect();
    json!({ "replicas": replicas })
}

fn print(answers: &[Answer]) {
    out!(
        "{:<9} {:<9} {:<8} {:>10} {:>9} {:>9} {:>10} {:>8}  HTTP",
        "REPLICA",
        "STATE",
        "VERSION",
        "COMMITTED",
        "ABORTED",
        "UNDECIDED",
        "JOURNAL",
        "UP"
    );
    for (replica, http, answer) in answers {
        let replica = replica.to_string();
        match answer {
            Ok(status) => {
                let number = |value: &Value| value.as_u64().unwrap_or(0);
                let counts = &status["transactions"];
                out!(
                    "{replica:<9} {:<9} {:<8} {:>10} {:>9} {:>9} {:>10} {:>8}  {http}",
                    word(&status["state"]),
                    word(&status["version"]),
                    number(&counts["committed"]),
                    number(&counts["aborted"]),
                    number(&counts["undecided"]),
                    bytes(number(&status["store"]["journal_bytes"])),
                    duration(number(&status["uptime_seconds"])),
                );
            }
            Err(error) => out!("{replica:<9} {:<9} {error}  {http}", "down"),
        }
    }
}

/// Says who runs under made-up distances.
fn warn_of_distances(answers: &[Answer]) {
    let apart = answers.iter().filter_map(|(replica, _, answer)| {
        let regions = &answer.as_ref().ok()?["regions"];
        regions.is_object().then(|| format!("{replica} in {} ({})", word(&regions["region"]), word(&regions["name"])))
    });
    let apart: Vec<String> = apart.collect();
    if !apart.is_empty() {
        eprintln!("warning: distances are made up: {}", apart.join(", "));
    }
}

/// Says of each shard that is not whole whether it can still commit.
fn shards(cluster: &Cluster, answers: &[Answer]) {
    // n - f replicas write a decision down (4f+1 of 5f+1).
    let needed = cluster.replicas_per_shard() - cluster.faults();
    for shard in cluster.shards() {
        let of_shard = answers.iter().filter(|(replica, _, _)| replica.shard == shard);
        let serving = of_shard.filter(|(_, _, answer)| answer.as_ref().is_ok_and(serves)).count();
        if serving < needed {
            eprintln!("shard {shard} cannot commit: {serving} replicas serve, and {needed} are needed");
        } else if serving < cluster.replicas_per_shard() {
            eprintln!(
                "shard {shard} serves without {} of its replicas; commits take two round trips until they are back",
                cluster.replicas_per_shard() - serving
            );
        }
    }
}

/// A word from a replica, which may hold anything.
fn word(value: &Value) -> String {
    value.as_str().unwrap_or("?").chars().filter(|letter| !letter.is_control()).take(20).collect()
}

fn bytes(count: u64) -> String {
    match count {
        0..1_024 => format!("{count} B"),
        1_024..1_048_576 => format!("{} KiB", count >> 10),
        1_048_576..1_073_741_824 => format!("{} MiB", count >> 20),
        _ => format!("{:.1} GiB", count as f64 / (1u64 << 30) as f64),
    }
}

fn duration(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3_600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3_600..86_400 => format!("{}h{:02}m", seconds / 3_600, seconds / 60 % 60),
        _ => format!("{}d{:02}h", seconds / 86_400, seconds / 3_600 % 24),
    }
}
