//! `bezant-lab timeline`: draws what `bezant bench --timeline` wrote, over minutes: what a cluster does in its tenth minute is not what it did in its
//! first.

use std::fs;
use std::path::PathBuf;

use ::figures::draw::{Axis, Chart, Kind, Line, Mark, Sheet};
use clap::Args;
use serde_json::Value;

use bezant::failure::{Attempt as _, Done, Failure};
use bezant::out;

/// Draws runs of `bezant bench --timeline` in the same charts, each as some means over time.
#[derive(Args)]
pub struct TimelineArgs {
    /// What each run is called, and the file that it has written.
    #[arg(required = true, value_name = "NAME=FILE", value_parser = named)]
    runs: Vec<(String, PathBuf)>,
    /// Where the picture goes, as SVG.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// What stands above it.
    #[arg(long, default_value = "Over time")]
    title: String,
}

fn named(text: &str) -> Result<(String, PathBuf), String> {
    let named = text.split_once('=').filter(|(name, file)| !name.is_empty() && !file.is_empty());
    named.map(|(name, file)| (name.to_owned(), file.into())).ok_or_else(|| "it is NAME=FILE".to_owned())
}

/// So many points are drawn of a run at most, each of as many seconds.
const POINTS_MAX: usize = 60;
/// Nothing that is measured is as much.
const VALUE_MAX: f64 = 1e15;

/// Carries out `bezant-lab timeline`.
pub fn run(args: &TimelineArgs) -> Result<Done, Failure> {
    let mut runs = Vec::new();
    for (name, file) in &args.runs {
        let text = fs::read_to_string(file).attempt("read a timeline", file.display())?;
        runs.push((name.clone(), seconds_of(&text).map_err(|error| Failure::wrong(error).at(file.display()))?));
    }
    let foot = "Each point is the mean of some seconds, and its whisker goes from the lowest of them to the highest.";
    let sheet = Sheet { title: args.title.clone(), charts: charts(&runs), foot: foot.to_owned() };
    let svg = sheet.svg().map_err(|error| Failure::failed(error.to_string()))?;
    fs::write(&args.out, svg).attempt("write the picture", args.out.display())?;
    out!("{}", args.out.display());
    Ok(Done::Well)
}

/// The lines of a timeline. One that goes on, or was cut short, may end within a line, which is left out.
fn seconds_of(text: &str) -> Result<Vec<Value>, String> {
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    let mut seconds = Vec::new();
    for (at, line) in (1..).zip(whole.lines()).filter(|(_, line)| !line.trim().is_empty()) {
        let second: Option<Value> = serde_json::from_str(line).ok();
        let second = second.filter(|second| second["seconds"].is_number() && second["cores"].is_object());
        seconds.push(second.ok_or_else(|| format!("line {at} is none that `bezant bench --timeline` writes"))?);
    }
    if seconds.is_empty() { Err("there is no second in it".to_owned()) } else { Ok(seconds) }
}

/// What is read from a second, if it has it.
type Read = fn(&Value) -> Option<f64>;

fn charts(runs: &[(String, Vec<Value>)]) -> Vec<Chart> {
    let shown: [(&str, &str, Read); 6] = [
        ("Committed", "transactions a second", |second| second["committed_per_second"].as_f64()),
        ("CPU", "µs a transaction", |second| {
            let cores = second["cores"]["clients"].as_f64()? + second["cores"]["replicas"].as_f64()?;
            second["committed_per_second"].as_f64().filter(|committed| *committed > 0.0).map(|committed| cores / committed * 1e6)
        }),
        ("Slowest hundredth", "ms", |second| Some(second["latency_us"]["p99"].as_f64()? / 1e3)),
        ("Decided in one round trip", "share of transactions", |second| second["fast_path_rate"].as_f64()),
        ("Memory of the largest replica", "MiB", |second| second["memory_mib"]["largest"].as_f64()),
        ("Checkpoints and merging", "cores", |second| {
            let threads = second["cores"]["by_thread"].as_object()?;
            Some(threads.iter().filter(|(name, _)| name.starts_with("store-")).filter_map(|(_, cores)| cores.as_f64()).sum())
        }),
    ];
    let chart = |(title, y, read): (&str, &str, Read)| {
        let lines = runs.iter().map(|(name, seconds)| Line { name: name.clone(), marks: marks(seconds, read) }).collect();
        let kind = Kind::Lines { lines, along: Axis::Steps, up: Axis::Steps };
        Chart { title: title.to_owned(), x: "seconds".to_owned(), y: y.to_owned(), kind }
    };
    shown.map(chart).into()
}

fn marks(seconds: &[Value], read: Read) -> Vec<Mark> {
    let together = seconds.chunks(seconds.len().div_ceil(POINTS_MAX).max(1));
    together.filter_map(|some| mark(some, read)).collect()
}

fn mark(seconds: &[Value], read: Read) -> Option<Mark> {
    let values: Vec<f64> = seconds.iter().filter_map(read).filter(|value| value.abs() < VALUE_MAX).collect();
    let (low, high) = values.iter().fold((f64::MAX, f64::MIN), |(low, high), value| (low.min(*value), high.max(*value)));
    let mean = |all: &[f64]| all.iter().sum::<f64>() / all.len() as f64;
    let times: Vec<f64> = seconds.iter().filter_map(|second| second["seconds"].as_f64()).filter(|time| time.abs() < VALUE_MAX).collect();
    (!values.is_empty() && !times.is_empty()).then(|| Mark { x: mean(&times), y: mean(&values), spread: (low, high) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_becomes_a_bounded_number_of_points_with_what_lay_between() {
        let line = |second: usize| {
            format!(
                "{{\"seconds\":{second},\"committed_per_second\":{},\"cores\":{{\"clients\":0.5,\"replicas\":0.5}}}}",
                1_000 + second % 2
            )
        };
        let seconds = seconds_of(&(1..=600).map(line).map(|line| line + "\n").collect::<String>()).expect("a timeline");
        let charts = charts(&[("now".to_owned(), seconds)]);
        let marks = |chart: &Chart| match &chart.kind {
            Kind::Lines { lines, .. } => lines[0].marks.clone(),
            Kind::Bars { .. } => unreachable!("these are lines"),
        };
        let committed = marks(&charts[0]);
        assert_eq!(committed.len(), POINTS_MAX);
        assert_eq!(committed[0], Mark { x: 5.5, y: 1_000.5, spread: (1_000.0, 1_001.0) });
        assert!(marks(&charts[1]).iter().all(|mark| (mark.y - 999.5).abs() < 1.0), "one core");
        assert!(marks(&charts[4]).is_empty(), "nothing was written of memory");
        assert_eq!(seconds_of(&format!("{}\n\n{}\n{{\"sec", line(1), line(2))).expect("cut short").len(), 2);
        for wrong in ["", "{}\n", "seconds: 1\n", "{\"seconds\":1}\n"] {
            assert!(seconds_of(wrong).is_err(), "{wrong:?}");
        }
    }
}
