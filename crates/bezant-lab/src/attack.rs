//! `bezant-lab attack`: what floods and liars take from honest clients.
//!
//! Each attack has a cluster of its own, of real processes with real TLS and real disks, that this program makes and starts. Honest
//! clients are `bezant bench rw-u`. The attacker is another process, with another member's key, that speaks to replicas as it likes. It
//! takes CPU time for itself, which on one machine the others then lack. So each attack has a *control*: nobody attacks, and a process
//! burns as many cores as the attacker did. What honest clients keep of that is what the machine's other cores allow. Attack and control
//! take turns on one cluster, as two clusters differ by more than most attacks take.

mod cluster;
mod liar;
mod member;
mod stranger;
pub mod wire;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use clap::builder::PossibleValuesParser;
use rustix::process::{Resource, getrlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value as Json, json};

use bezant::failure::{Attempt as _, Done, Failure};
use bezant::out;

use cluster::{Cluster, Length, Load};
use wire::Target;

/// The shortest and the longest that a phase is measured, in seconds.
const SECONDS: std::ops::RangeInclusive<f64> = 0.1..=3_600.0;
/// How long a cluster is left alone between an attack and a control after it: whom replicas serve at low priority, they do for ten seconds.
const REST: Duration = Duration::from_secs(11);
/// How often a process that burns CPU time looks whether it has burnt enough.
const BURN_STEP: Duration = Duration::from_millis(1);
/// The most connections of an attacker, as far as the system allows them.
const DESCRIPTORS: u64 = 8_192;

/// What an attacker says when it has begun.
const BEGUN: &str = "begun";

/// What begins a party's attack, and returns while it goes on.
type Part = fn(&Arc<Target>) -> Result<(), Failure>;

/// A way to attack.
struct Attack {
    name: &'static str,
    /// What it does, for `--list`.
    what: &'static str,
    /// What goes on together.
    parts: &'static [Part],
    /// Whether one replica lies meanwhile.
    is_with_liar: bool,
    /// Whether it reads large values, which are written first.
    reads_large_values: bool,
}

impl Attack {
    const fn of_large_values(self) -> Self {
        Self { reads_large_values: true, ..self }
    }
}

const fn attack(name: &'static str, what: &'static str, parts: &'static [Part]) -> Attack {
    Attack { name, what, parts, is_with_liar: false, reads_large_values: false }
}

const fn with_liar(name: &'static str, what: &'static str, parts: &'static [Part]) -> Attack {
    Attack { name, what, parts, is_with_liar: true, reads_large_values: false }
}

/// All attacks.
const ATTACKS: &[Attack] = &[
    attack("tiny-frames", "a member floods with reads of one key, each in a frame of its own", &[member::tiny_frames]),
    attack("large-reads", "a member asks for 7 MiB at a time, again and again", &[member::large_reads]).of_large_values(),
    attack(
        "repeated-keys",
        "a member floods with reads that name one key 1,024 times, which no correct client sends",
        &[member::repeated_keys],
    ),
    attack("prepares", "a member prepares ten transactions a second of 4,096 keys each and finishes none", &[member::prepares]),
    attack("hoarding", "a member prepares 10,000 small transactions a second and finishes none", &[member::hoarding]),
    attack(
        "bad-signatures",
        "a member floods with proofs whose signatures are bad, and comes back when it is thrown out",
        &[member::bad_signatures],
    ),
    attack("proofs", "the same, with as many signatures in a message as there may be", &[member::proofs]),
    attack("recoveries", "a member asks to finish 5,000 transactions a second that another member never began", &[member::recoveries]),
    attack("slow-readers", "a member asks for 7 MiB at a time over eight connections, and reads nothing", &[member::slow_readers])
        .of_large_values(),
    attack("reads-ahead", "a member reads 40,000 keys a second of the table 0.4 s ahead of time", &[member::reads_ahead]),
    attack("early-requests", "a member sends 30,000 small requests a second 0.4 s ahead of time", &[member::early_requests]),
    attack("logs", "a member connects a hundred times a second, and sends garbage", &[member::logs]),
    attack("silent-strangers", "a stranger keeps 300 connections to each replica open and says nothing", &[stranger::silent_strangers]),
    attack("handshakes", "a stranger makes TLS handshakes endlessly", &[stranger::handshakes]),
    attack("http", "a stranger asks for /status endlessly", &[stranger::http]),
    with_liar("liar", "a replica gives wrong answers, and floods its peers with votes that nobody asked for", &[liar::lie]),
    with_liar("liar-tiny-frames", "the same, beside tiny-frames", &[liar::lie, member::tiny_frames]),
    with_liar("liar-large-reads", "the same, beside large-reads", &[liar::lie, member::large_reads]).of_large_values(),
    with_liar("liar-prepares", "the same, beside prepares", &[liar::lie, member::prepares]),
    with_liar("liar-bad-signatures", "the same, beside bad-signatures", &[liar::lie, member::bad_signatures]),
    with_liar("liar-recoveries", "the same, beside recoveries", &[liar::lie, member::recoveries]),
    with_liar("liar-slow-readers", "the same, beside slow-readers", &[liar::lie, member::slow_readers]).of_large_values(),
    with_liar("liar-reads-ahead", "the same, beside reads-ahead", &[liar::lie, member::reads_ahead]),
    with_liar("liar-silent-strangers", "the same, beside silent-strangers", &[liar::lie, stranger::silent_strangers]),
];

fn names() -> PossibleValuesParser {
    PossibleValuesParser::new(ATTACKS.iter().map(|attack| attack.name))
}

/// Attacks clusters that it makes for that, and prints what honest clients keep, as a Markdown table.
#[derive(Args, Clone, Debug)]
pub struct AttackArgs {
    /// Which attacks; all by default
    #[arg(value_name = "NAME", value_parser = names())]
    names: Vec<String>,
    /// How long honest clients are measured in each phase
    #[arg(long, value_name = "S", default_value_t = 5.0, value_parser = seconds)]
    seconds: f64,
    /// How often each attack and its control take turns
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=100))]
    rounds: u16,
    /// Measure so many transactions of honest clients in each phase instead, however long they take
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    transactions: Option<u64>,
    /// How many keys the honest clients' table has
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(100..=10_000_000))]
    keys: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Only say what attacks there are
    #[arg(long)]
    list: bool,
}

/// The attacker's own process, which `attack` starts; it ends with its standard input.
#[derive(Args, Debug)]
pub struct AttackerArgs {
    #[arg(value_parser = names())]
    name: String,
    #[arg(long)]
    cluster: PathBuf,
    #[arg(long)]
    keys: u64,
    /// Only burn so many cores
    #[arg(long)]
    burn: Option<f64>,
}

fn seconds(text: &str) -> Result<f64, String> {
    let wrong = || format!("seconds from {} to {} were expected", SECONDS.start(), SECONDS.end());
    text.parse().ok().filter(|number| SECONDS.contains(number)).ok_or_else(wrong)
}

/// What became of one attack.
struct Row {
    name: &'static str,
    before: Load,
    rounds: Vec<Round>,
    after: Load,
}

/// An attack and its control, one right after the other.
struct Round {
    during: Load,
    control: Load,
    /// What the attacker says that it did.
    attacker: Json,
}

/// Carries out `bezant-lab attack`.
pub async fn run(args: &AttackArgs) -> Result<Done, Failure> {
    if args.list {
        for attack in ATTACKS {
            out!("{:<23}{}", attack.name, attack.what);
        }
        return Ok(Done::Well);
    }
    let program = std::env::current_exe().attempt("find this program", "this process")?;
    let stop = crate::stop_on_signal();
    let args = args.clone();
    tokio::task::spawn_blocking(move || measure_all(&args, &program, &stop)).await.attempt("measure", "this process")?
}

fn measure_all(args: &AttackArgs, program: &Path, stop: &AtomicBool) -> Result<Done, Failure> {
    if cfg!(debug_assertions) {
        eprintln!("warning: this program is a development build: for numbers, build it with `cargo build --release`");
    }
    let wanted = |attack: &&Attack| args.names.is_empty() || args.names.iter().any(|name| name == attack.name);
    if !args.json {
        out!("{}", Row::HEAD);
    }
    let mut rows = Vec::new();
    for attack in ATTACKS.iter().filter(wanted) {
        let row = measure(args, attack, program, stop)?;
        if args.json {
            rows.push(row.to_json());
        } else {
            out!("{}", row.to_markdown());
        }
    }
    if args.json {
        out!("{}", json!({ "attacks": rows }));
    }
    Ok(Done::Well)
}

fn measure(args: &AttackArgs, attack: &Attack, program: &Path, stop: &AtomicBool) -> Result<Row, Failure> {
    let length = args.transactions.map_or(Length::Seconds(args.seconds), Length::Transactions);
    let cluster = Cluster::start(program, args.keys, stop)?;
    let before = cluster.honest(length, None)?;
    if attack.is_with_liar {
        cluster.stop_liar()?;
    }
    let beside = |burn: Option<f64>| -> Result<(Load, Json), Failure> {
        let attacker = cluster.attacker(attack.name, burn)?;
        let load = cluster.honest(length, Some(&attacker))?;
        Ok((load, attacker.end()))
    };
    let attacked = || -> Result<(Load, Json), Failure> {
        let (during, attacker) = beside(None)?;
        eprintln!("{}: the attacker {attacker}", attack.name);
        Ok((during, attacker))
    };
    let mut rounds: Vec<Round> = Vec::new();
    for number in 0..args.rounds {
        // In turns who is first, since a cluster that has run for longer is slower: as many cores are burnt then as in the round before.
        let first = rounds.last().filter(|_| number % 2 == 1).map(|before| beside(Some(before.during.attacker_cores))).transpose()?;
        let (during, attacker) = attacked()?;
        let control = match first {
            Some((control, _)) => control,
            None => {
                cluster.rest(REST)?;
                beside(Some(during.attacker_cores))?.0
            }
        };
        rounds.push(Round { during, control, attacker });
    }
    if attack.is_with_liar {
        cluster.up()?;
    }
    let after = cluster.honest(length, None)?;
    Ok(Row { name: attack.name, before, rounds, after })
}

impl Round {
    /// What part of its control is left during the attack.
    fn kept(&self) -> Option<f64> {
        part(self.during.rate, self.control.rate)
    }

    fn to_json(&self) -> Json {
        json!({
            "during": self.during.to_json(),
            "control": self.control.to_json(),
            "kept_of_control": self.kept(),
            "attacker": self.attacker,
        })
    }
}

impl Row {
    const HEAD: &'static str = "\
        | attack | tx/s before, during, after | kept | control tx/s | kept of it | p99 ms before, during, after, control \
        | cores of replicas, attacker, clients | largest replica, MiB before, during, after | honest errors |\n\
        |---|---|---|---|---|---|---|---|---|";

    /// The middle one of the rounds' numbers, or the lesser of two; what there is none of is the greatest.
    fn middle(&self, number: impl Fn(&Round) -> Option<f64>) -> Option<f64> {
        let mut numbers: Vec<f64> = self.rounds.iter().map(|round| number(round).unwrap_or(f64::INFINITY)).collect();
        numbers.sort_by(f64::total_cmp);
        numbers.get(numbers.len().saturating_sub(1) / 2).copied().filter(|number| number.is_finite())
    }

    /// What part of what was committed before is left during the attack.
    fn kept(&self) -> Option<f64> {
        part(self.middle(|round| Some(round.during.rate))?, self.before.rate)
    }

    fn to_markdown(&self) -> String {
        let Self { name, before, rounds, after } = self;
        let percent = |part: Option<f64>| part.map_or_else(|| "–".to_owned(), |part| format!("{:.0} %", part * 100.0));
        let whole = |number: Option<f64>| number.map_or_else(|| "–".to_owned(), |number| format!("{number:.0}"));
        let cores = |number: Option<f64>| number.map_or_else(|| "–".to_owned(), |cores| format!("{cores:.2}"));
        let kept = rounds.iter().map(|round| percent(round.kept())).collect::<Vec<_>>().join(", ");
        let loads = rounds.iter().flat_map(|round| [&round.during, &round.control]);
        let failed = [before].into_iter().chain(loads).chain([after]).find_map(|load| load.failed.as_ref());
        let failed = failed.map(|why| format!(": {why}")).unwrap_or_default();
        // Of the first, which is as long as what came before it: memory is not given back.
        let memory = rounds.first().map_or(0.0, |round| round.during.memory_mib);
        let errors: u64 = rounds.iter().map(|round| round.during.errors).sum();
        format!(
            "| {name} | {:.0}, {}, {:.0} | {} | {} | {kept} | {}, {}, {}, {} | {}, {}, {} | {:.0}, {memory:.0}, {:.0} | {errors}{failed} |",
            before.rate,
            whole(self.middle(|round| Some(round.during.rate))),
            after.rate,
            percent(self.kept()),
            whole(self.middle(|round| Some(round.control.rate))),
            whole(before.p99_ms),
            whole(self.middle(|round| round.during.p99_ms)),
            whole(after.p99_ms),
            whole(self.middle(|round| round.control.p99_ms)),
            cores(self.middle(|round| round.during.replicas_cores)),
            cores(self.middle(|round| Some(round.during.attacker_cores))),
            cores(self.middle(|round| Some(round.during.clients_cores))),
            before.memory_mib,
            after.memory_mib,
        )
    }

    fn to_json(&self) -> Json {
        json!({
            "attack": self.name,
            "before": self.before.to_json(),
            "rounds": self.rounds.iter().map(Round::to_json).collect::<Vec<_>>(),
            "after": self.after.to_json(),
            "kept": self.kept(),
            "kept_of_control": self.middle(Round::kept),
        })
    }
}

fn part(some: f64, whole: f64) -> Option<f64> {
    (whole > 0.0).then(|| some / whole)
}

/// Carries out `bezant-lab attacker`, until its standard input ends.
pub async fn run_attacker(args: &AttackerArgs) -> Result<Done, Failure> {
    let limits = getrlimit(Resource::Nofile);
    let wanted = limits.maximum.map_or(DESCRIPTORS, |most| most.min(DESCRIPTORS));
    // With fewer there are fewer connections.
    let _ = setrlimit(Resource::Nofile, rustix::process::Rlimit { current: Some(wanted), ..limits });
    let target = Arc::new(Target::load(&args.cluster, args.keys)?);
    match args.burn {
        Some(cores) => (0..burners()).for_each(|_| drop(thread::spawn(move || burn(cores)))),
        None => {
            let attack = ATTACKS.iter().find(|attack| attack.name == args.name).ok_or_else(|| Failure::wrong("there is no such attack"))?;
            if attack.reads_large_values {
                // Before anybody lies, which would make it slow: only the attack is to be measured.
                member::write_large_values(&target).await?;
            }
            attack.parts.iter().try_for_each(|part| part(&target))?;
        }
    }
    out!("{BEGUN}");
    let ended = tokio::task::spawn_blocking(|| std::io::copy(&mut std::io::stdin(), &mut std::io::sink()));
    ended.await.attempt("wait", "standard input")?.attempt("read", "standard input")?;
    out!("{}", target.counts.to_json());
    // Nothing waits for what the attack has under way.
    std::process::exit(0)
}

/// On how many threads it burns: as many as the attacker has, since threads that want a core keep others waiting.
fn burners() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// Keeps so many cores busy, over all threads that do so.
fn burn(cores: f64) {
    let begun = Instant::now();
    loop {
        let used = clock_gettime(ClockId::ProcessCPUTime);
        if used.tv_sec as f64 + used.tv_nsec as f64 / 1e9 >= cores * begun.elapsed().as_secs_f64() {
            thread::sleep(BURN_STEP);
        } else {
            let step = Instant::now();
            while step.elapsed() < BURN_STEP {
                std::hint::spin_loop();
            }
        }
    }
}
