//! `bezant`: makes clusters, runs their replicas, and speaks to them.
//!
//! The program is a library with two binaries: `bezant`, the product, is this crate's own, and `bezant-lab` adds commands for
//! experiments to the same ones. Results go to standard output, everything else to standard error. Exit codes: 0 done; 1 done, and the
//! answer is no (a key has no value, a replica is down, evidence was found); 2 what was asked or configured is wrong; 3 it could not be
//! done; 4 it may have taken place, or has.

mod as_of;
mod audit;
mod backup;
mod bench;
mod changes;
mod confine;
mod dev;
mod drill;
mod evidence;
pub mod failure;
mod given;
mod init;
mod key;
mod logs;
mod mutant;
mod node;
pub mod output;
mod process;
mod rebuild;
mod receipt;
mod regions;
pub mod script;
mod shell;
mod standalone;
mod statements;
mod status;
mod up;

use std::num::NonZero;
use std::process::ExitCode;
use std::sync::LazyLock;

use clap::{ArgMatches, Subcommand};
use runtime::frame::FRAME_VERSION;

use failure::{Done, Failure};

// A replica makes and drops some hundred small objects a transaction; the system's allocator took a fifth of its time. Linked, mimalloc takes the place of
// the system's `malloc`. As `#[global_allocator]` it is told of each block's alignment, and then takes longer and gives the next larger size.
use mimalloc as _;

/// What every command line of ours says at the end of its help.
pub const EXIT_CODES: &str = "Exit codes: 0 done; 1 done, and the answer is no (nothing there, a replica does not serve, evidence found);\n\
    2 what was asked or configured is wrong; 3 it could not be done; 4 it may have taken place, or has: look before you ask again.";

/// What `--version` says: which build it is, and which others it understands.
pub static VERSION: LazyLock<String> = LazyLock::new(|| format!("{} (frame version {FRAME_VERSION})", env!("CARGO_PKG_VERSION")));

/// What the program can be asked to do.
#[derive(Debug, Subcommand)]
#[expect(missing_docs, reason = "each says what it does beside its arguments")]
pub enum Command {
    #[command(after_help = "Examples:\n\
        \x20 bezant dev\n\
        \x20 bezant dev --exec 'put a 1; get a'\n\
        \x20 bezant dev ./two-shards --shards 2 --base-port auto")]
    Dev(dev::DevArgs),
    #[command(after_help = "Examples:\n\
        \x20 bezant init bezant-data\n\
        \x20 bezant init shared --shards 2 --clients 3 --hosts a.example,b.example,c.example,d.example,e.example,f.example\n\
        \x20 bezant init ranged --shards 3 --placement ranges:h,p --base-port 9000\n\
        \x20 bezant init three --engine sentinel\n\
        \x20 bezant init shared --members cards.txt")]
    Init(init::InitArgs),
    #[command(subcommand, about = "Draws keys where they belong")]
    Key(key::KeyCommand),
    #[command(subcommand, about = "Changes the cluster while it runs: clients, their rights and limits, replicas, operators")]
    Config(changes::ConfigCommand),
    #[command(after_help = "Example:\n  bezant node bezant-data/s0-r3")]
    Node(node::NodeArgs),
    #[command(after_help = "Example:\n  bezant init bezant-data && bezant up bezant-data")]
    Up(up::UpArgs),
    #[command(after_help = "Example:\n  bezant down bezant-data")]
    Down(up::DownArgs),
    #[command(after_help = "Example:\n\
        \x20 bezant rebuild bezant-data/s0-r3 && bezant up bezant-data\n\n\
        No more than f replicas of a shard may be rebuilt at a time. By the usual settings it takes 36 s at least, and until it is done the\n\
        shard has one fault less to give.")]
    Rebuild(rebuild::RebuildArgs),
    #[command(after_help = "Examples:\n\
        \x20 bezant get account/1\n\
        \x20 bezant get 0x00ff --json\n\
        \x20 bezant get account/1 --as-of '5s ago'\n\n\
        A key without a value prints nothing on standard output and ends with exit code 1. Text is printed as text and ends with one line's\n\
        end, its own or one more; other bytes are printed as 0x… in hexadecimal; --raw prints the bytes as they are.")]
    Get(statements::GetArgs),
    #[command(after_help = "Examples:\n\
        \x20 bezant scan account/ account0\n\
        \x20 bezant scan a b --limit 1000 --json\n\
        \x20 bezant scan account/ account0 --all > accounts.txt\n\
        \x20 bezant scan post/ post0 --reverse --limit 10\n\
        \x20 bezant scan a b --as-of 2026-11-23T18:05:00Z\n\n\
        The second key is not part of the range: account0 is the first key after all that begin with account/. A range without values prints\n\
        nothing on standard output and ends with exit code 1.")]
    Scan(statements::ScanArgs),
    #[command(after_help = "Examples:\n  bezant put account/1 100\n  bezant put picture @picture.png")]
    Put(statements::PutArgs),
    #[command(after_help = "Example:\n  bezant delete account/1")]
    Delete(statements::DeleteArgs),
    #[command(after_help = "Example:\n  bezant txn 'get a; put b \"two words\"; delete c'")]
    Txn(statements::TxnArgs),
    #[command(subcommand, about = "Takes, checks and restores copies of the whole database")]
    Backup(backup::BackupCommand),
    #[command(hide = true, about = "The same as `bezant backup restore`, for who looks for it here")]
    Restore(backup::RestoreArgs),
    #[command(subcommand, about = "Checks the proof of a commit")]
    Receipt(receipt::ReceiptCommand),
    #[command(after_help = "Example:\n\
        \x20 bezant shell\n\
        \x20 bezant> begin\n\
        \x20 bezant (in transaction)> get a\n\
        \x20 bezant (in transaction)> put a 2\n\
        \x20 bezant (in transaction)> commit")]
    Shell(shell::ShellArgs),
    #[command(after_help = "Example:\n\
        \x20 bezant status --cluster bezant-data\n\n\
        Ends with exit code 1 unless every replica serves.")]
    Status(status::StatusArgs),
    #[command(after_help = "Examples:\n\
        \x20 bezant bench rw-u --keys 100000 --load --clients 32 --seconds 10\n\
        \x20 bezant bench ycsb-a --keys 100000 --load --zipf 0.9 --json\n\n\
        The first run of a workload on a cluster needs --load, which fills its table, except bank's and ring's; later runs find the\n\
        table there.")]
    Bench(bench::BenchCommand),
    #[command(
        name = "bench-zookeeper",
        about = "Measures servers of ZooKeeper's protocol",
        after_help = "Example:\n\
        \x20 bezant bench-zookeeper --server 127.0.0.1:2181 --reads 50 --bytes 1024 --pid $(pidof bezant)\n\n\
        It makes nodes below /bezant-bench, and removes them again."
    )]
    BenchZookeeper(::bench::zookeeper::ZookeeperArgs),
    #[command(after_help = "Examples:\n\
        \x20 printf 'dataDir=/var/zk\\nclientPort=2181\\n' > zoo.cfg && bezant zookeeper --config zoo.cfg\n\
        \x20 bezant zookeeper --make-key /etc/bezant/server-1.pem\n\n\
        Servers know one another by their keys. Each has a file of its own, named by bezant.key in its zoo.cfg; the public keys of all stand\n\
        in every zoo.cfg as bezant.server.N, beside the server.N lines. --make-key writes such a file, and prints the public key.")]
    Zookeeper(standalone::ZookeeperArgs),
    #[command(subcommand, about = "Compares servers for ZooKeeper's clients, to find the one whose state is wrong")]
    Audit(audit::AuditCommand),
    #[command(subcommand, about = "Damages a server on purpose, to see that it is noticed")]
    Drill(drill::DrillCommand),
    #[command(
        about = "Shows what a replica saw others lie about, or what a server for ZooKeeper's clients noticed to be wrong with itself",
        after_help = "Examples:\n\
        \x20 bezant evidence bezant-data/s0-r2\n\
        \x20 bezant evidence lie-1760000000000-s0-r1-0.json --cluster bezant-data/cluster.toml\n\
        \x20 bezant evidence bezant-data/s0-r2 --lift c7\n\
        \x20 bezant evidence /var/zk\n\n\
        What is signed is checked with nothing but the cluster's public keys. Ends with exit code 1 when there is any\n\
        evidence, also of a replica's own wrong state, and 2 when a piece of it proves nothing, and says why."
    )]
    Evidence(evidence::EvidenceArgs),
}

/// How many cores a command can use, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cores {
    /// Replicas check signatures on all of them, and are not interrupted whenever something arrives for another.
    Replicas,
    /// A replica that has less than a core to itself does nearly everything on one thread.
    PartOfOne,
    /// Many clients at once use all of them.
    All,
    /// One client's few messages are best served by one thread.
    One,
}

impl Cores {
    /// Those of one of so many servers on this host. Where these are more than its cores, each hand-over from one of a server's threads to another is
    /// one more wait for a core, and it does nearly all its work on one.
    #[must_use]
    pub fn of_one_among(servers: usize) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
        if servers > cores { Self::PartOfOne } else { Self::Replicas }
    }
}

impl Command {
    /// How many cores it can use.
    #[must_use]
    pub fn cores(&self) -> Cores {
        match self {
            Self::Node(args) => args.cores(),
            Self::Zookeeper(args) => args.cores(),
            Self::Dev(_) => Cores::Replicas,
            Self::Bench(_) | Self::BenchZookeeper(_) => Cores::All,
            _ => Cores::One,
        }
    }

    /// Carries it out.
    ///
    /// # Errors
    /// [`Failure`], in words for whoever asked.
    pub async fn run(self) -> Result<Done, Failure> {
        match self {
            Self::Dev(args) => dev::run(&args).await,
            Self::Init(args) => init::run(&args),
            Self::Key(command) => key::run(&command),
            Self::Config(command) => changes::run(&command).await,
            Self::Node(args) => node::run(&args).await,
            Self::Up(args) => up::up(&args).await,
            Self::Down(args) => up::down(&args).await,
            Self::Rebuild(args) => rebuild::run(&args).await,
            Self::Get(args) => statements::get(&args).await,
            Self::Scan(args) => statements::scan(&args).await,
            Self::Put(args) => statements::put(&args).await,
            Self::Delete(args) => statements::delete(&args).await,
            Self::Txn(args) => statements::txn(&args).await,
            Self::Backup(command) => backup::run(&command).await,
            Self::Restore(args) => backup::run(&backup::BackupCommand::Restore(args)).await,
            Self::Receipt(command) => receipt::run(&command),
            Self::Shell(args) => shell::run(&args).await,
            Self::Status(args) => status::run(&args).await,
            Self::Bench(args) => bench::run(&args).await,
            Self::BenchZookeeper(args) => bench::zookeeper(&args).await,
            Self::Zookeeper(args) => standalone::run(&args).await,
            Self::Audit(command) => audit::run(&command).await,
            Self::Drill(command) => drill::run(&command).await,
            Self::Evidence(args) => evidence::show(&args),
        }
    }
}

/// Whether these arguments ask for JSON.
#[must_use]
pub fn ask_for_json(matches: &ArgMatches) -> bool {
    let here = matches.try_get_one::<bool>("json").is_ok_and(|is_given| is_given == Some(&true));
    here || matches.subcommand().is_some_and(|(_, below)| ask_for_json(below))
}

/// Runs a command to its end, says on standard error why it failed if it did, and gives the exit code to leave with. Where JSON was asked for,
/// and nothing was printed yet, standard output has why it failed, too.
pub fn conduct(cores: Cores, is_json: bool, command: impl Future<Output = Result<Done, Failure>>) -> ExitCode {
    confine::keep_files_private();
    if matches!(cores, Cores::Replicas | Cores::PartOfOne) {
        confine::run_undisturbed();
    }
    let mut builder = match cores {
        Cores::Replicas | Cores::All => tokio::runtime::Builder::new_multi_thread(),
        Cores::PartOfOne | Cores::One => tokio::runtime::Builder::new_current_thread(),
    };
    let ended = match (check_environment(), builder.enable_all().build()) {
        (Ok(()), Ok(runtime)) => runtime.block_on(command),
        (Err(failure), _) => Err(failure),
        (_, Err(error)) => Err(Failure::failed(format!("the system gives no threads: {error}"))),
    };
    match ended {
        Ok(done) => done.into(),
        Err(failure) => {
            tell!("{failure}");
            // What was printed before says how far it came, and shall stay one object.
            if is_json && !output::has_result() {
                output::line_if_read(&failure.to_json());
            }
            failure.exit_code()
        }
    }
}

/// What the environment asks for makes sense.
#[cfg(feature = "lab")]
fn check_environment() -> Result<(), Failure> {
    use runtime::clock::{SET_OFF_VARIABLE, SetOff};
    let wrong = |words| Failure::wrong(format!("{SET_OFF_VARIABLE} is no number of milliseconds: {words:?}"));
    SetOff::from_environment().map(|_| ()).map_err(|words| wrong(words).help("as in 450, -3600000, or @FILE with such a number in it"))
}

/// It asks for nothing in this build.
#[cfg(not(feature = "lab"))]
#[expect(clippy::unnecessary_wraps, reason = "the laboratory's build refuses some")]
fn check_environment() -> Result<(), Failure> {
    Ok(())
}
