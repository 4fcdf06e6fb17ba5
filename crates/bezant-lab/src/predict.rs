//! `bezant-lab predict`: what a cluster would do on machines that are not here, from prices measured here.

mod measure;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use capacity::{ClusterSpec, Costs, Hosting, Prediction};
use clap::Args;
use conformance::basil::Basil;
use serde_json::{Value, json};

use bezant::failure::{Attempt as _, Done, Failure};
use bezant::out;

/// The largest cluster: each of its processes remembers signatures of each replica, so a larger one would take gigabytes.
const SHARDS_MAX: u64 = 64;
const FAULTS_MAX: u64 = 5;
/// How many times as many keys as a transaction has each shard holds at least, so that one can be drawn within a shard.
const KEYS_TIMES_MIN: u64 = 20;
/// How often a factor is halved in on,
const FIT_STEPS: usize = 12;
/// and how often both are, in turns.
const FIT_ROUNDS: usize = 3;

/// Predicts throughput and latency of a cluster on other machines, or measures this one's prices.
#[derive(Args, Debug)]
pub struct PredictArgs {
    /// How many shards
    #[arg(long, default_value_t = 1, value_parser = number(1, SHARDS_MAX))]
    shards: u64,
    /// How many replicas of each may lie
    #[arg(long, default_value_t = 1, value_parser = number(1, FAULTS_MAX))]
    faults: u64,
    /// Cores of each machine
    #[arg(long, default_value_t = 8, value_parser = number(1, 1_024))]
    cores: u64,
    /// Everybody on one machine, clients too, as in a measurement on one
    #[arg(long, conflicts_with = "shards_a_machine")]
    one_machine: bool,
    /// Of how many shards a machine runs a replica
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = number(1, SHARDS_MAX))]
    shards_a_machine: u64,
    /// One way between machines, in microseconds
    #[arg(long, value_name = "US", default_value_t = 75, value_parser = number(0, 1_000_000))]
    network_us: u64,
    /// Machines of clients, one process each
    #[arg(long, default_value_t = 1, value_parser = number(1, 1_000))]
    client_machines: u64,
    /// Transactions under way at each of them
    #[arg(long, default_value_t = 512, value_parser = number(1, 100_000))]
    clients: u64,
    /// Reads a transaction
    #[arg(long, default_value_t = 2, value_parser = number(1, 1_000))]
    reads: u64,
    /// Writes a transaction
    #[arg(long, default_value_t = 2, value_parser = number(0, 1_000))]
    writes: u64,
    /// Keys, all alike
    #[arg(long, default_value_t = 1_000_000, value_parser = number(100, u64::MAX / 2))]
    keys: u64,
    /// From how many shards the keys of one transaction come, at most
    #[arg(long, value_name = "N", default_value_t = SHARDS_MAX, value_parser = number(1, SHARDS_MAX))]
    spread: u64,
    /// The most replies under one signature
    #[arg(long, default_value_t = 64, value_parser = number(1, 64))]
    batch_max: u64,
    /// Log every decision
    #[arg(long)]
    no_fast_path: bool,
    /// Sign nothing
    #[arg(long)]
    no_signatures: bool,
    /// How long it is counted, in milliseconds of virtual time, after half as long
    #[arg(long, value_name = "MS", default_value_t = 600, value_parser = number(10, 60_000))]
    virtual_ms: u64,
    /// The most steps of machines that are taken: large clusters are counted for a shorter time when they are used up
    #[arg(long, value_name = "N", default_value_t = 8_000_000, value_parser = number(1_000, 1_000_000_000))]
    steps: u64,
    /// Where chance begins
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The prices: a file that --measure wrote; rough ones by default
    #[arg(long, value_name = "FILE")]
    costs: Option<PathBuf>,
    /// Measure this machine's prices for transactions of this size, and write them to this file
    #[arg(long, value_name = "FILE")]
    measure: Option<PathBuf>,
    /// With --measure: fit the two factors that it leaves open to what `bezant bench` has measured of the shape given: the CPU
    /// time of a transaction, in microseconds, with one client
    #[arg(long, value_name = "US", requires_all = ["measure", "fit_loaded_us"])]
    fit_alone_us: Option<f64>,
    /// The same with all clients of the shape
    #[arg(long, value_name = "US", requires = "fit_alone_us")]
    fit_loaded_us: Option<f64>,
    /// With --measure: take the prices of single things from --costs instead of measuring them
    #[arg(long, requires_all = ["measure", "costs"])]
    fit_only: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Carries out `bezant-lab predict`.
pub fn run(args: &PredictArgs) -> Result<Done, Failure> {
    let spec = args.spec();
    let keys_min = KEYS_TIMES_MIN * args.shards * (args.reads + args.writes);
    if args.keys < keys_min {
        let what = format!("{} keys are too few for {} shards: a transaction could not be drawn", args.keys, args.shards);
        return Err(Failure::wrong(what).help(format!("give at least {keys_min} --keys")));
    }
    if let Some(file) = &args.measure {
        let mut costs = match &args.costs {
            Some(known) if args.fit_only => read(known)?,
            _ => measure::costs(&spec, file)?,
        };
        if let Some((alone, loaded)) = args.fit_alone_us.zip(args.fit_loaded_us) {
            costs = fit(costs, &spec, alone, loaded)?;
        }
        let text = serde_json::to_string_pretty(&to_json(&costs)).attempt("write down prices", file.display())?;
        fs::write(file, format!("{text}\n")).attempt("write the file", file.display())?;
        out!("{text}");
        return Ok(Done::Well);
    }
    let costs = args.costs.as_deref().map_or_else(|| Ok(Costs::rough::<Basil>()), read)?;
    let prediction = capacity::predict::<Basil>(&spec, &costs, args.seed);
    if prediction.committed_per_second == 0.0 {
        let what = format!("nothing was committed in the {:.0} ms that were counted", prediction.measured_ms);
        return Err(Failure::wrong(what).help("give more --steps, or more --virtual-ms"));
    }
    if args.json {
        out!("{}", report(&prediction))
    } else {
        print(&prediction)
    }
    Ok(Done::Well)
}

impl PredictArgs {
    fn spec(&self) -> ClusterSpec {
        let size = |number: u64| usize::try_from(number).expect("clap bounds it");
        let cores = size(self.cores);
        let hosting = if self.one_machine {
            Hosting::OneHost { cores }
        } else {
            Hosting::Apart { cores, shards_a_host: size(self.shards_a_machine) }
        };
        ClusterSpec {
            shards: size(self.shards),
            faults: size(self.faults),
            hosting,
            network_us: self.network_us,
            clients: size(self.client_machines),
            closed_loop_clients: size(self.clients),
            reads: size(self.reads),
            writes: size(self.writes),
            keys: self.keys,
            spread: size(self.spread),
            batch_max: size(self.batch_max),
            fast_path: !self.no_fast_path,
            signatures: !self.no_signatures,
            warmup_ms: self.virtual_ms / 2,
            measured_ms: self.virtual_ms,
            steps_max: self.steps,
            ..ClusterSpec::default()
        }
    }
}

fn number(min: u64, max: u64) -> clap::builder::RangedU64ValueParser {
    clap::builder::RangedU64ValueParser::new().range(min..=max)
}

/// Halves in on the two factors that the prices of single things leave open, until `spec` with one transaction under way costs
/// `alone` microseconds of CPU a transaction, and with all of its own `loaded`: how dear it is to wake, read and write, which is
/// most of what one alone costs; and how much dearer work is where caches are cold, which is most of it under load.
fn fit(costs: Costs, spec: &ClusterSpec, alone: f64, loaded: f64) -> Result<Costs, Failure> {
    let one = ClusterSpec { clients: 1, closed_loop_clients: 1, ..spec.clone() };
    let mut factors = (1.0, 1.0);
    for _ in 0..FIT_ROUNDS {
        factors.0 = halve_in(|factor| capacity::predict::<Basil>(&one, &scaled(&costs, factor, factors.1), 1).cpu_us, alone)?;
        factors.1 = halve_in(|factor| capacity::predict::<Basil>(spec, &scaled(&costs, factors.0, factor), 1).cpu_us, loaded)?;
    }
    eprintln!("fitted: waking, reading and writing {:.2} times as first said, work {:.2} times as measured", factors.0, factors.1);
    Ok(scaled(&costs, factors.0, factors.1))
}

fn scaled(costs: &Costs, waking: f64, work: f64) -> Costs {
    Costs {
        wake_ns: costs.wake_ns * waking,
        turn_ns: costs.turn_ns * waking,
        write_ns: costs.write_ns * waking,
        read_ns: costs.read_ns * waking,
        leaf_ns: costs.leaf_ns * work,
        claim_ns: costs.claim_ns * work,
        encode_ns: costs.encode_ns * work,
        decode_ns: costs.decode_ns * work,
        byte_ns: costs.byte_ns * work,
        loop_client_ns: costs.loop_client_ns * work,
        steps: costs.steps.iter().map(|(step, ns)| (*step, ns * work)).collect(),
        ..*costs
    }
}

/// The factor at which `cpu_us` comes to `wanted`.
fn halve_in(cpu_us: impl Fn(f64) -> f64, wanted: f64) -> Result<f64, Failure> {
    let (mut low, mut high) = (0.05, 20.0);
    if !(cpu_us(low)..=cpu_us(high)).contains(&wanted) {
        return Err(Failure::wrong(format!("no price makes a transaction cost {wanted} µs of CPU"))
            .help("give the shape that was measured, and the cpu_us_per_transaction that `bezant bench --json` printed"));
    }
    for _ in 0..FIT_STEPS {
        let middle = f64::midpoint(low, high);
        if cpu_us(middle) < wanted { low = middle } else { high = middle }
    }
    Ok(high)
}

/// The report, with the names that `bezant bench --json` has for what both have.
fn report(prediction: &Prediction) -> Value {
    let round = |number: f64| (number * 100.0).round() / 100.0;
    let us = |ms: f64| (ms * 1e3).round();
    json!({
        "committed_per_second": round(prediction.committed_per_second),
        "latency_us": {"mean": us(prediction.latency_ms), "p50": us(prediction.p50_ms), "p99": us(prediction.p99_ms)},
        "cpu_us_per_transaction": round(prediction.cpu_us),
        "replicas_cpu_us": round(prediction.replicas_cpu_us),
        "commit_rate": round(prediction.commit_rate),
        "statements_a_root": round(prediction.statements_a_root),
        "busy": {"replicas": round(prediction.host_busy), "loop": round(prediction.loop_busy), "client": round(prediction.client_busy)},
        "attempts": {
            "begun": prediction.attempts.begun,
            "committed": prediction.attempts.committed,
            "aborted": prediction.attempts.aborted,
            "failed": prediction.attempts.failed,
            "under_way": prediction.attempts.under_way,
        },
        "bottleneck": prediction.bottleneck().name(),
        "virtual_ms": round(prediction.measured_ms),
    })
}

fn print(prediction: &Prediction) {
    let percent = |part: f64| format!("{:.0} %", part * 100.0);
    out!("throughput     {:.0} tx/s", prediction.committed_per_second);
    out!("latency        mean {:.2} ms   p50 {:.2}   p99 {:.2}", prediction.latency_ms, prediction.p50_ms, prediction.p99_ms);
    out!("CPU            {:.0} µs a transaction, {:.0} of them the replicas'", prediction.cpu_us, prediction.replicas_cpu_us);
    out!("batches        {:.1} statements under one signature", prediction.statements_a_root);
    out!(
        "busy           replicas' machines {}, their loops {}, clients' loops {}",
        percent(prediction.host_busy),
        percent(prediction.loop_busy),
        percent(prediction.client_busy)
    );
    out!("bottleneck     {}", prediction.bottleneck().name());
    out!("counted in     {:.0} ms of virtual time", prediction.measured_ms);
}

/// Every price but the steps', by name.
fn prices(costs: &mut Costs) -> [(&'static str, &mut f64); 16] {
    [
        ("wake_ns", &mut costs.wake_ns),
        ("slice_ns", &mut costs.slice_ns),
        ("turn_ns", &mut costs.turn_ns),
        ("sign_ns", &mut costs.sign_ns),
        ("leaf_ns", &mut costs.leaf_ns),
        ("check_batch_ns", &mut costs.check_batch_ns),
        ("check_root_ns", &mut costs.check_root_ns),
        ("claim_ns", &mut costs.claim_ns),
        ("encode_ns", &mut costs.encode_ns),
        ("decode_ns", &mut costs.decode_ns),
        ("write_ns", &mut costs.write_ns),
        ("read_ns", &mut costs.read_ns),
        ("byte_ns", &mut costs.byte_ns),
        ("sync_cpu_ns", &mut costs.sync_cpu_ns),
        ("sync_ns", &mut costs.sync_ns),
        ("loop_client_ns", &mut costs.loop_client_ns),
    ]
}

fn to_json(costs: &Costs) -> Value {
    let mut copy = costs.clone();
    let round = |number: f64| (number * 10.0).round() / 10.0;
    let mut all: BTreeMap<&str, Value> = prices(&mut copy).into_iter().map(|(name, price)| (name, json!(round(*price)))).collect();
    let steps: BTreeMap<&str, f64> = costs.steps.iter().map(|(step, price)| (*step, round(*price))).collect();
    all.insert("steps_ns", json!(steps));
    json!(all)
}

fn read(file: &Path) -> Result<Costs, Failure> {
    let wrong = |what: String| Failure::wrong(what).at(file.display()).help("write it with `bezant-lab predict --measure FILE`");
    let text = fs::read_to_string(file).map_err(|error| wrong(format!("the file cannot be read: {error}")))?;
    let json: Value = serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
    let price = |value: &Value, name: &str| {
        let number = value[name].as_f64().filter(|number| number.is_finite() && *number >= 0.0);
        number.ok_or_else(|| wrong(format!("there is no price {name:?}")))
    };
    let mut costs = Costs::rough::<Basil>();
    for (name, place) in prices(&mut costs) {
        *place = price(&json, name)?;
    }
    for (step, place) in &mut costs.steps {
        *place = price(&json["steps_ns"], step)?;
    }
    Ok(costs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prices_come_back_from_their_file() {
        let folder = tempfile::TempDir::new().expect("a temporary folder");
        let file = folder.path().join("costs.json");
        let costs = Costs { sign_ns: 12_345.5, ..Costs::rough::<Basil>() };
        fs::write(&file, to_json(&costs).to_string()).expect("written");
        assert_eq!(read(&file).expect("read"), costs);
        fs::write(&file, "{}").expect("written");
        assert!(read(&file).expect_err("nothing is there").to_string().contains("wake_ns"));
    }
}
