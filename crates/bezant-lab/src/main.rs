//! `bezant-lab`: everything that `bezant` does, and what experiments need beside it.
//!
//! Seven commands of its own: `sim` runs the simulator, `detection` damages servers of Sentinel and says what was noticed,
//! `figures` measures the papers' figures, `timeline` draws runs over minutes, `predict` says what other machines would do, `attack` what floods and
//! liars take from honest clients, `soak` lets a cluster live through faults and changes. And `bezant`'s commands, built with the feature `lab`: with clients
//! that cheat, replicas that break a rule, clusters without signatures, and injected latency, none of which the product has.

mod attack;
mod detection;
mod figures;
mod predict;
mod sim;
mod soak;
mod timeline;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bezant::failure::{Done, Failure};
use bezant::{Cores, EXIT_CODES, VERSION, ask_for_json, conduct};
use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

/// The laboratory of Bezant: its simulator, the papers' figures, predictions, and clusters to experiment on. Never for data that
/// matters: here signatures can be turned off, clients cheat when told to, and replicas break rules.
#[derive(Parser)]
#[command(name = "bezant-lab", version = VERSION.as_str(), after_help = format!("Begin with:\n  bezant-lab sim everything --seeds 1..5\n\n{EXIT_CODES}"))]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    #[command(after_help = "Examples:\n\
        \x20 bezant-lab sim everything --seeds 1..100\n\
        \x20 bezant-lab sim crashes --seeds 7 --trace\n\n\
        Ends with exit code 3 when a promise was broken, and says how to replay it.")]
    Sim(sim::SimArgs),
    #[command(after_help = "Examples:\n\
        \x20 bezant-lab detection > table.md\n\n\
        Damages one of three servers of Sentinel in every way, in each mode of detection and under each hash, in one process and in virtual\n\
        time. It takes half a minute. What the columns mean stands in docs/protocols/sentinel.md.")]
    Detection(detection::DetectionArgs),
    #[command(after_help = "Examples:\n\
        \x20 bezant-lab figures --quick --only 5a,6b\n\
        \x20 bezant-lab figures --out docs/figures --page docs/reproduction.md")]
    Figures(figures::FiguresArgs),
    #[command(after_help = "Example:\n\
        \x20 bezant-lab bench rw-u --clients 512 --seconds 600 --timeline now.jsonl\n\
        \x20 bezant-lab timeline now=now.jsonl --out timeline.svg")]
    Timeline(timeline::TimelineArgs),
    #[command(after_help = "Examples:\n\
        \x20 bezant-lab predict --measure costs.json\n\
        \x20 bezant-lab predict --shards 16 --faults 2 --cores 8 --client-machines 16 --costs costs.json\n\
        \x20 bezant-lab predict --shards 2 --one-machine --cores 2 --clients 128 --json\n\n\
        Steps the real protocol in virtual time and charges what it does at prices measured on a real machine. What that leaves out,\n\
        and how far it was from real runs, stands in docs/capacity.md.")]
    Predict(predict::PredictArgs),
    #[command(after_help = "Examples:\n\
        \x20 bezant-lab attack --list\n\
        \x20 bezant-lab attack tiny-frames prepares --seconds 5\n\
        \x20 bezant-lab attack > table.md\n\n\
        Makes its own clusters, on this computer's loopback, and attacks nothing else. All attacks take thirty-five minutes. What the\n\
        columns mean stands in docs/security.md.")]
    Attack(attack::AttackArgs),
    #[command(after_help = "Examples:\n\
        \x20 bezant-lab soak /tmp/soak --minutes 60\n\
        \x20 bezant-lab soak /tmp/rounds --rounds 10 --away-seconds 300 --json\n\n\
        Makes its own cluster, on this computer's loopback. Ends with exit code 3 when something did not hold, and says what. What is checked,\n\
        and what came of it, stands in docs/testing.md.")]
    Soak(soak::SoakArgs),
    #[command(hide = true)]
    Attacker(attack::AttackerArgs),
    #[command(flatten)]
    Bezant(Box<bezant::Command>),
}

fn main() -> ExitCode {
    let matches = Cli::command().get_matches();
    let Cli { command } = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    let cores = match &command {
        Command::Bezant(command) => command.cores(),
        Command::Attacker(_) => Cores::All,
        _ => Cores::One,
    };
    conduct(cores, ask_for_json(&matches), run(command))
}

async fn run(command: Command) -> Result<Done, Failure> {
    match command {
        Command::Sim(args) => sim::run(&args),
        Command::Detection(args) => Ok(detection::run(&args)),
        Command::Figures(args) => figures::run(&args).await,
        Command::Timeline(args) => timeline::run(&args),
        Command::Predict(args) => predict::run(&args),
        Command::Attack(args) => attack::run(&args).await,
        Command::Soak(args) => soak::run(&args).await,
        Command::Attacker(args) => attack::run_attacker(&args).await,
        Command::Bezant(command) => command.run().await,
    }
}

/// What turns true when this process is told to end, for work that then takes down its clusters.
fn stop_on_signal() -> Arc<AtomicBool> {
    let stop = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&stop);
    tokio::spawn(async move {
        if runtime::shutdown::signal().await.is_ok() {
            eprintln!("stopping; the clusters are taken down");
            told.store(true, Ordering::Relaxed);
        }
    });
    stop
}
