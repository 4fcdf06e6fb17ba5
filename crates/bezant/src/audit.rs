//! `bezant audit`: compares replicas.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde_json::json;
use zookeeper::{Audit, Finding, audit_offline};

use crate::failure::{Done, Failure};
use crate::out;

/// How replicas are compared.
#[derive(Debug, Subcommand)]
pub enum AuditCommand {
    /// Compares the folders of stopped servers for ZooKeeper's clients, at the newest transaction that all have
    #[command(after_help = "Example:\n\
        \x20 bezant audit offline /var/zk-1 /var/zk-2 /var/zk-3\n\n\
        Ends with exit code 1 when one of them differs, or does not make its own state again.")]
    Offline(OfflineArgs),
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
pub fn run(command: &AuditCommand) -> Result<Done, Failure> {
    let AuditCommand::Offline(args) = command;
    let audit = audit_offline(&args.folders);
    if args.json {
        print_json(&audit);
    } else {
        print(&audit);
    }
    Ok(if audit.is_clean() { Done::Well } else { Done::Missing })
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
