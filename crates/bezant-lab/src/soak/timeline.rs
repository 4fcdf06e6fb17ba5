//! What the run was like, second by second: a file of lines, a figure, and whether memory, disk and latency level off.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::time::{Duration, Instant};

use figures::draw::{Axis, Chart, Kind, Line, Mark, Sheet, png};
use serde_json::{Value as Json, json};

use bezant::failure::{Attempt as _, Failure};

use super::Shared;

/// A line is written so often.
const LINE: Duration = Duration::from_secs(1);
/// A second that took so long was one in which everything was paused; it and so many after it count for nothing.
const PAUSED_FROM: Duration = Duration::from_secs(3);
const AFTER_PAUSE: usize = 10;
/// Shorter runs are not judged by whether anything levels off: a replica takes minutes to have what it will have.
const JUDGED_SECONDS_MIN: usize = 600;
/// By how much the last quarter may exceed the one before: of memory and disk, and of latencies, which differ more from one minute to the next.
const GROWTH_MAX: f64 = 1.25;
const LATENCY_GROWTH_MAX: f64 = 2.0;
/// And so much is let pass whatever its part is: MiB, and milliseconds.
const SLACK_MIB: f64 = 24.0;
const SLACK_MS: f64 = 10.0;
/// Into so many parts a run is divided to be drawn.
const MARKS: usize = 48;
/// So many seconds are asked about when it is asked how much takes the fast path.
pub const FAST_SECONDS: usize = 5;

/// One second.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Second {
    /// Since the beginning, those not counted in which everything was paused.
    pub at: u64,
    pub is_paused: bool,
    pub committed: Option<f64>,
    pub fast: Option<f64>,
    pub p50_ms: Option<f64>,
    pub p99_ms: Option<f64>,
    /// Of the replica that has most.
    pub memory_mib: Option<f64>,
    /// Of the same kind, of the folders with data.
    pub disk_mib: f64,
    /// Who is not whole.
    pub weak: Option<String>,
}

impl Second {
    fn to_json(&self, events: &[String]) -> Json {
        json!({
            "seconds": self.at,
            "paused": self.is_paused,
            "committed_per_second": self.committed,
            "fast_path_rate": self.fast,
            "p50_ms": self.p50_ms,
            "p99_ms": self.p99_ms,
            "largest_replica_mib": self.memory_mib,
            "largest_disk_mib": self.disk_mib,
            "weak": self.weak,
            "events": events,
        })
    }

    /// From a line of `bench --timeline`.
    fn of(line: &Json) -> Self {
        let ms = |name: &str| line["latency_us"][name].as_f64().map(|us| us / 1e3);
        Self {
            committed: line["committed_per_second"].as_f64(),
            fast: line["fast_path_rate"].as_f64(),
            p50_ms: ms("p50"),
            p99_ms: ms("p99"),
            memory_mib: line["memory_mib"]["largest"].as_f64(),
            ..Self::default()
        }
    }
}

/// Writes a line each second until the run ends.
pub fn run(shared: &Shared, load: &Path, out: &Path) -> Result<(), Failure> {
    let mut file = File::create(out).attempt("write the file", out.display())?;
    let mut lines: Option<BufReader<File>> = None;
    let mut rest = String::new();
    let (mut last, mut paused_for) = (Instant::now(), 0);
    while !shared.is_closed() {
        std::thread::sleep(LINE);
        let passed = std::mem::replace(&mut last, Instant::now()).elapsed();
        paused_for = if passed > PAUSED_FROM { AFTER_PAUSE } else { paused_for - paused_for.min(1) };
        if lines.is_none() {
            lines = File::open(load).ok().map(BufReader::new);
        }
        let mut newest = None;
        // What is not a whole line yet is read with the next.
        while let Some(reader) = &mut lines
            && reader.read_line(&mut rest).is_ok_and(|read| read > 0)
            && rest.ends_with('\n')
        {
            newest = serde_json::from_str::<Json>(&rest).ok().or(newest);
            rest.clear();
        }
        let mut second = newest.as_ref().map(Second::of).unwrap_or_default();
        second.at = shared.tick();
        second.is_paused = paused_for > 0;
        second.disk_mib = disk_mib(&shared.cluster.member(""));
        let (weak, events) = shared.take_events();
        second.weak = weak;
        writeln!(file, "{}", second.to_json(&events)).attempt("write the file", out.display())?;
        shared.note(second);
    }
    Ok(())
}

/// How large the data of the replica with most of them are.
fn disk_mib(cluster: &Path) -> f64 {
    let folders = fs::read_dir(cluster).into_iter().flatten().flatten().map(|entry| entry.path().join("data"));
    folders.map(|data| bytes_in(&data)).max().unwrap_or(0) as f64 / f64::from(1 << 20)
}

fn bytes_in(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    // A file may go while it is looked at.
    let bytes = entries.map(|entry| match entry.metadata() {
        Ok(found) if found.is_dir() => bytes_in(&entry.path()),
        Ok(found) => found.len(),
        Err(_) => 0,
    });
    bytes.sum()
}

/// What took the fast path of the last seconds, if so many are known since then.
pub fn fast_path_rate_since(seconds: &[Second], since: u64) -> Option<f64> {
    let known: Vec<(f64, f64)> = seconds
        .iter()
        .rev()
        .take_while(|second| second.at > since)
        .filter_map(|second| Some((second.fast?, second.committed?)))
        .take(FAST_SECONDS)
        .collect();
    let all: f64 = known.iter().map(|(_, committed)| committed).sum();
    (known.len() == FAST_SECONDS && all > 0.0).then(|| known.iter().map(|(fast, committed)| fast * committed).sum::<f64>() / all)
}

/// Something that should level off: its name, where a second has it, how much it may grow from quarter to quarter, and how much more.
type Level = (&'static str, fn(&Second) -> Option<f64>, f64, f64);

/// What is looked at when it is asked whether a run levels off.
const LEVELS: [Level; 4] = [
    ("largest_replica_mib", |second| second.memory_mib, GROWTH_MAX, SLACK_MIB),
    ("largest_disk_mib", |second| Some(second.disk_mib), GROWTH_MAX, SLACK_MIB),
    ("p50_ms", |second| second.p50_ms, LATENCY_GROWTH_MAX, SLACK_MS),
    ("p99_ms", |second| second.p99_ms, LATENCY_GROWTH_MAX, SLACK_MS * 10.0),
];

/// The medians of each quarter of a run; and what has not levelled off, if it was long enough to tell.
pub fn levels(seconds: &[Second]) -> (Json, Vec<String>) {
    let counted: Vec<&Second> = seconds.iter().filter(|second| !second.is_paused).collect();
    let (mut found, mut grown) = (serde_json::Map::new(), Vec::new());
    for (name, value, growth_max, slack) in LEVELS {
        let quarters: Vec<Option<f64>> = counted
            .chunks(counted.len().div_ceil(4).max(1))
            .map(|quarter| median(quarter.iter().filter_map(|second| value(second)).collect()))
            .collect();
        if let [.., Some(before), Some(last)] = quarters[..]
            && counted.len() >= JUDGED_SECONDS_MIN
            && last > before * growth_max + slack
        {
            grown.push(format!("{name} does not level off: {before:.1} in the third quarter, {last:.1} in the last"));
        }
        let rounded = quarters.iter().map(|median| median.map(|median| (median * 100.0).round() / 100.0)).collect::<Vec<_>>();
        found.insert(name.to_owned(), json!(rounded));
    }
    (Json::Object(found), grown)
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

/// Draws what the seconds were like, as `name.svg` and `name.png`.
pub fn draw(seconds: &[Second], title: &str, foot: &str, folder: &Path, name: &str) -> Result<(), Failure> {
    let counted: Vec<&Second> = seconds.iter().filter(|second| !second.is_paused).collect();
    let line = |name: &str, value: &dyn Fn(&Second) -> Option<f64>| {
        let marks = counted.chunks(counted.len().div_ceil(MARKS).max(1)).filter_map(|part| {
            let mut values: Vec<f64> = part.iter().filter_map(|second| value(second)).collect();
            values.sort_by(f64::total_cmp);
            let (x, y) = (part[part.len() / 2].at as f64 / 60.0, *values.get(values.len() / 2)?);
            Some(Mark { x, y, spread: (values[values.len() / 10], values[values.len() - 1 - values.len() / 10]) })
        });
        Line { name: name.to_owned(), marks: marks.collect() }
    };
    let chart = |title: &str, y: &str, up: Axis, lines: Vec<Line>| Chart {
        title: title.to_owned(),
        x: "minutes".to_owned(),
        y: y.to_owned(),
        kind: Kind::Lines { lines, along: Axis::Steps, up },
    };
    let sheet = Sheet {
        title: title.to_owned(),
        charts: vec![
            chart("Committed", "transactions a second", Axis::Steps, vec![line("all clients", &|second| second.committed)]),
            chart("Latency", "ms", Axis::Factors, vec![line("p50", &|second| second.p50_ms), line("p99", &|second| second.p99_ms)]),
            chart("Fast path", "part of the transactions", Axis::Steps, vec![line("of those decided", &|second| second.fast)]),
            chart("Memory", "MiB", Axis::Steps, vec![line("the largest replica", &|second| second.memory_mib)]),
            chart("Disk", "MiB", Axis::Steps, vec![line("the largest folder of data", &|second| Some(second.disk_mib))]),
            chart(
                "Replicas that are not whole",
                "of six",
                Axis::Steps,
                vec![line("killed, away, or rebuilt", &|second| Some(if second.weak.is_some() { 1.0 } else { 0.0 }))],
            ),
        ],
        foot: foot.to_owned(),
    };
    let svg = sheet.svg().attempt("draw", name)?;
    let pixels = png(&svg).attempt("draw", name)?;
    for (ending, bytes) in [("svg", svg.into_bytes()), ("png", pixels)] {
        let path = folder.join(format!("{name}.{ending}"));
        fs::write(&path, bytes).attempt("write the file", path.display())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(count: u64, of: impl Fn(u64) -> Second) -> Vec<Second> {
        (1..=count).map(|at| Second { at, ..of(at) }).collect()
    }

    #[test]
    fn growth_is_told_of_long_runs_and_pauses_count_for_nothing() {
        let steady = |at: u64| Second { memory_mib: Some(200.0 + (at % 7) as f64), p50_ms: Some(5.0), ..Second::default() };
        assert_eq!(levels(&seconds(900, steady)).1, [""; 0]);
        let growing = |at: u64| Second { memory_mib: Some(at as f64), ..Second::default() };
        let (found, grown) = levels(&seconds(900, growing));
        assert!(grown.len() == 1 && grown[0].starts_with("largest_replica_mib does not level off"), "{grown:?}");
        assert_eq!(found["largest_replica_mib"].as_array().map(Vec::len), Some(4));
        assert_eq!(levels(&seconds(90, growing)).1, [""; 0], "it is too short to tell");
        let paused = |at: u64| Second { p50_ms: Some(if at > 700 { 9_000.0 } else { 5.0 }), is_paused: at > 700, ..Second::default() };
        assert_eq!(levels(&seconds(900, paused)).1, [""; 0]);
    }

    #[test]
    fn the_fast_path_is_known_after_some_seconds() {
        let run = seconds(20, |at| Second { fast: Some(if at > 10 { 1.0 } else { 0.0 }), committed: Some(10.0), ..Second::default() });
        assert_eq!(fast_path_rate_since(&run, 17), None);
        assert_eq!(fast_path_rate_since(&run, 10), Some(1.0));
        assert_eq!(fast_path_rate_since(&run[..12], 5), Some(0.4));
    }

    #[test]
    fn a_run_is_drawn() {
        let folder = tempfile::tempdir().expect("a folder");
        let run = seconds(200, |at| Second { committed: Some(at as f64), p50_ms: Some(1.0), p99_ms: Some(9.0), ..Second::default() });
        draw(&run, "A run", "What it was", folder.path(), "soak").expect("drawn");
        assert!(fs::read_to_string(folder.path().join("soak.svg")).expect("there").contains("transactions a second"));
        assert!(fs::metadata(folder.path().join("soak.png")).expect("there").len() > 1_000);
        draw(&[], "None", "", folder.path(), "none").expect("nothing is drawn, too");
    }
}
