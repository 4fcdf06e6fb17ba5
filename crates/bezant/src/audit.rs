//! `bezant audit`: compares replicas.

use std::path::{Path, PathBuf};

use bezant_client::ENGINES;
use clap::{Args, Subcommand};
use config::NodeConfig;
use serde_json::json;
use zookeeper::{Audit, Finding, OnlineAudit, Verdict, audit_offline, audit_online};

use crate::failure::{Done, Failure};
use crate::node;
use crate::out;

/// How replicas are compared.
#[derive(Debug, Subcommand)]
pub enum AuditCommand {
    /// Compares the folders of stopped servers for ZooKeeper's clients, at the newest transaction that all have
    #[command(after_help = "Example:\n\
        \x20 bezant audit offline /var/zk-1 /var/zk-2 /var/zk-3\n\n\
        Ends with exit code 1 when one of them differs, or does not make its own state again.")]
    Offline(OfflineArgs),
    /// Compares servers for ZooKeeper's clients that run, by the digests that they keep at every 128th transaction
    #[command(after_help = "Example:\n\
        \x20 bezant audit online 10.0.0.1:2181 10.0.0.2:2181 10.0.0.3:2181\n\n\
        Each server's 4lw.commands.whitelist has to have mntr and hash. What more than half of the servers have counts as right. Ends with exit\n\
        code 1 when one differs, has found damage itself, or does not answer.")]
    Online(OnlineArgs),
}

/// Whom to ask.
#[derive(Args, Debug)]
pub struct OnlineArgs {
    /// Where each server's clients connect
    #[arg(value_name = "HOST:PORT", required = true)]
    servers: Vec<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// What to compare.
#[derive(Args, Debug)]
pub struct OfflineArgs {
    /// The dataDir of each server; one alone is checked by itself
    #[arg(value_name = "DIR", required = true)]
    folders: Vec<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Carries out `bezant audit`.
pub async fn run(command: &AuditCommand) -> Result<Done, Failure> {
    let args = match command {
        AuditCommand::Offline(args) => args,
        AuditCommand::Online(args) => return Ok(online(args).await),
    };
    args.folders.iter().try_for_each(|folder| check_folder(folder))?;
    let audit = audit_offline(&args.folders);
    if args.json {
        print_json(&audit);
    } else {
        print(&audit);
    }
    Ok(if audit.is_clean() { Done::Well } else { Done::Negative })
}

/// Refuses what is no folder with data of a server for ZooKeeper's clients, where that can be told: it would be called broken.
fn check_folder(folder: &Path) -> Result<(), Failure> {
    let is_replica = folder.join("node.toml").exists();
    let replica = if is_replica { Some(folder) } else { folder.parent().filter(|parent| parent.join("node.toml").exists()) };
    let Some(replica) = replica else { return Ok(()) };
    // A copy may lack the key, or more: the audit itself says what can be read of it.
    let Ok(config) = NodeConfig::load(replica, ENGINES) else { return Ok(()) };
    let engine = config.topology.engine;
    if !node::serves_zookeepers_clients(engine) {
        return Err(Failure::wrong(format!("this is a replica of {}, whose folders are not compared", engine.name))
            .at(folder.display())
            .help("its replicas compare what they hold while they run: bezant status"));
    }
    if is_replica {
        return Err(Failure::wrong("this is a replica's folder, and its data are in one of their own")
            .at(folder.display())
            .help(format!("bezant audit offline {}", folder.join("data").display())));
    }
    Ok(())
}

fn print(audit: &Audit) {
    if let Some(zxid) = audit.zxid {
        out!("compared at zxid {zxid:#x}");
    }
    for (folder, finding) in &audit.findings {
        let folder = folder.display();
        match finding {
            Finding::Broken(error) => out!("{folder}: broken: {error}"),
            Finding::Agrees(checksum) => out!("{folder}: {checksum}"),
            Finding::Differs { checksum, first } => {
                out!(
                    "{folder}: {checksum}: differs{}",
                    first.as_ref().map_or_else(String::new, |(path, how)| format!(" at {path}: {how}"))
                );
            }
        }
    }
    if !audit.has_majority {
        out!("no state is that of more than half of them: nobody can say who is wrong");
    }
}

fn print_json(audit: &Audit) {
    let finding = |finding: &Finding| match finding {
        Finding::Broken(error) => json!({ "state": "broken", "error": error.to_string() }),
        Finding::Agrees(checksum) => json!({ "state": "agrees", "digest": checksum.to_string() }),
        Finding::Differs { checksum, first } => {
            json!({ "state": "differs", "digest": checksum.to_string(), "path": first.as_ref().map(|(path, _)| path), "field": first.as_ref().map(|(_, how)| how) })
        }
    };
    let each = audit.findings.iter().map(|(folder, found)| json!({ "folder": folder.display().to_string(), "found": finding(found) }));
    out!("{}", json!({ "zxid": audit.zxid, "majority": audit.has_majority, "folders": each.collect::<Vec<_>>() }));
}

async fn online(args: &OnlineArgs) -> Done {
    let audit = audit_online(&args.servers).await;
    if args.json {
        print_online_json(&audit);
    } else {
        print_online(&audit);
    }
    if audit.is_clean() { Done::Well } else { Done::Negative }
}

fn print_online(audit: &OnlineAudit) {
    match audit.zxid {
        Some(zxid) => out!("more than half agree up to zxid {zxid:#x}"),
        None => out!("at no transaction do more than half of the servers have one digest: they cannot be compared"),
    }
    for (server, role, verdict) in &audit.verdicts {
        let role = role.as_deref().unwrap_or("no role known");
        match verdict {
            Verdict::Agrees { zxid } => out!("{server} ({role}): agrees at {zxid:#x}"),
            Verdict::Differs { since, last_right, found, expected } => {
                let before = last_right.map_or_else(String::new, |zxid| format!(", and agreed at {zxid:#x}"));
                out!("{server} ({role}): differs at {since:#x}{before}: {found}, not {expected}");
            }
            Verdict::Quarantined(damage) => out!("{server} ({role}): found itself damaged, and serves nobody: {damage}"),
            Verdict::NotComparable(why) => out!("{server} ({role}): cannot be compared: {why}"),
            Verdict::Silent(error) => out!("{server}: no answer: {error}"),
        }
    }
}

fn print_online_json(audit: &OnlineAudit) {
    let verdict = |verdict: &Verdict| match verdict {
        Verdict::Agrees { zxid } => json!({ "state": "agrees", "zxid": zxid }),
        Verdict::Differs { since, last_right, found, expected } => {
            json!({ "state": "differs", "zxid": since, "last_right": last_right, "digest": found, "expected": expected })
        }
        Verdict::Quarantined(damage) => json!({ "state": "quarantined", "damage": damage }),
        Verdict::NotComparable(why) => json!({ "state": "not comparable", "why": why }),
        Verdict::Silent(error) => json!({ "state": "silent", "error": error }),
    };
    let each = audit.verdicts.iter().map(|(server, role, found)| json!({ "server": server, "role": role, "found": verdict(found) }));
    out!("{}", json!({ "zxid": audit.zxid, "clean": audit.is_clean(), "servers": each.collect::<Vec<_>>() }));
}
