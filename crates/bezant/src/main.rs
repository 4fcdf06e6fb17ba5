//! `bezant`: makes clusters, runs their replicas, and speaks to them.
//!
//! Results go to standard output, everything else to standard error. Exit codes: 0 done; 1 nothing there (a key has no
//! value, a replica is down); 2 what was asked or configured is wrong; 3 it could not be done.

mod bench;
mod dev;
mod failure;
mod figures;
mod init;
mod logs;
mod mutant;
mod node;
mod output;
mod predict;
mod process;
mod regions;
mod shell;
mod sim;
mod statements;
mod status;
mod up;
mod words;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use failure::{Done, Failure};

/// A replica makes and drops some hundred small objects a transaction; the system's allocator took a fifth of its time.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// A transactional database that keeps its promises when some of its servers and clients lie.
#[derive(Parser)]
#[command(
    name = "bezant",
    version,
    after_help = "Begin with:\n\
        \x20 bezant dev --exec 'put a 1; get a'\n\n\
        Exit codes: 0 done; 1 nothing there; 2 what was asked or configured is wrong; 3 it could not be done."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    #[command(after_help = "Examples:\n\
        \x20 bezant dev\n\
        \x20 bezant dev --exec 'put a 1; get a'\n\
        \x20 bezant dev ./two-shards --shards 2 --base-port auto")]
    Dev(dev::DevArgs),
    #[command(after_help = "Examples:\n\
        \x20 bezant init bezant-data\n\
        \x20 bezant init shared --shards 2 --hosts bank1.example,bank2.example,bank3.example --clients 3\n\
        \x20 bezant init ranged --shards 3 --placement ranges:h,p --base-port 9000")]
    Init(init::InitArgs),
    #[command(after_help = "Example:\n  bezant node bezant-data/s0-r3")]
    Node(node::NodeArgs),
    #[command(after_help = "Example:\n  bezant init bezant-data && bezant up bezant-data")]
    Up(up::UpArgs),
    #[command(after_help = "Example:\n  bezant down bezant-data")]
    Down(up::DownArgs),
    #[command(after_help = "Examples:\n\
        \x20 bezant get account/1\n\
        \x20 bezant get 0x00ff --json\n\n\
        A key without a value prints nothing on standard output and ends with exit code 1.")]
    Get(statements::GetArgs),
    #[command(after_help = "Examples:\n  bezant put account/1 100\n  bezant put picture @picture.png")]
    Put(statements::PutArgs),
    #[command(after_help = "Example:\n  bezant delete account/1")]
    Delete(statements::DeleteArgs),
    #[command(after_help = "Example:\n  bezant txn 'get a; put b \"two words\"; delete c'")]
    Txn(statements::TxnArgs),
    #[command(after_help = "Example:\n\
        \x20 bezant shell\n\
        \x20 bezant> begin\n\
        \x20 bezant (in transaction)> get a\n\
        \x20 bezant (in transaction)> put a 2\n\
        \x20 bezant (in transaction)> commit")]
    Shell(shell::ShellArgs),
    #[command(after_help = "Example:\n\
        \x20 bezant status --cluster bezant-data\n\n\
        Ends with exit code 1 when a replica is down.")]
    Status(status::StatusArgs),
    #[command(after_help = "Examples:\n\
        \x20 bezant bench rw-u --keys 100000 --load --clients 32 --seconds 10\n\
        \x20 bezant bench ycsb-a --zipf 0.9 --json")]
    Bench(bench::BenchCommand),
    #[command(after_help = "Examples:\n\
        \x20 bezant figures --quick --only 5a,6b\n\
        \x20 bezant figures --out docs/figures --page docs/reproduction.md")]
    Figures(figures::FiguresArgs),
    #[command(after_help = "Examples:\n\
        \x20 bezant sim everything --seeds 1..100\n\
        \x20 bezant sim crashes --seeds 7 --trace\n\n\
        Ends with exit code 3 when a promise was broken, and says how to replay it.")]
    Sim(sim::SimArgs),
    #[command(after_help = "Examples:\n\
        \x20 bezant predict --measure costs.json\n\
        \x20 bezant predict --shards 16 --faults 2 --cores 8 --client-machines 16 --costs costs.json\n\
        \x20 bezant predict --shards 2 --one-machine --cores 2 --clients 128 --json\n\n\
        Steps the real protocol in virtual time and charges what it does at prices measured on a real machine. What that leaves out,\n\
        and how far it was from real runs, stands in docs/capacity.md.")]
    Predict(predict::PredictArgs),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    // Replicas and many clients at once check signatures on all cores; one client's few messages are best served by one thread.
    let mut builder = match cli.command {
        Command::Dev(_) | Command::Node(_) | Command::Bench(_) => tokio::runtime::Builder::new_multi_thread(),
        _ => tokio::runtime::Builder::new_current_thread(),
    };
    let ended = match builder.enable_all().build() {
        Ok(runtime) => runtime.block_on(run(cli.command)),
        Err(error) => Err(Failure::failed(format!("the system gives no threads: {error}"))),
    };
    match ended {
        Ok(done) => done.into(),
        Err(failure) => {
            eprintln!("{failure}");
            failure.exit_code()
        }
    }
}

async fn run(command: Command) -> Result<Done, Failure> {
    match command {
        Command::Dev(args) => dev::run(&args).await,
        Command::Init(args) => init::run(&args),
        Command::Node(args) => node::run(&args).await,
        Command::Up(args) => up::up(&args).await,
        Command::Down(args) => up::down(&args).await,
        Command::Get(args) => statements::get(&args).await,
        Command::Put(args) => statements::put(&args).await,
        Command::Delete(args) => statements::delete(&args).await,
        Command::Txn(args) => statements::txn(&args).await,
        Command::Shell(args) => shell::run(&args).await,
        Command::Status(args) => status::run(&args).await,
        Command::Bench(args) => bench::run(&args).await,
        Command::Figures(args) => figures::run(&args).await,
        Command::Sim(args) => sim::run(&args),
        Command::Predict(args) => predict::run(&args),
    }
}
