//! What was measured, as it is stored beside the pictures: every report as `bezant bench` gave it.

use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use crate::machine::Machine;
use crate::plan::{Effort, Figure, Point, Value};

/// The format of the files that are written and read here.
const FORMAT: u32 = 1;

/// All that was measured for one figure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Results {
    format: u32,
    /// Which figure.
    pub figure: String,
    /// With how much effort.
    pub effort: String,
    /// How long each run was measured, in seconds.
    pub seconds: f64,
    /// Keys of a table.
    pub keys: u64,
    /// Where and with what.
    pub machine: Machine,
    /// Each point, with every run.
    pub points: Vec<Measured>,
}

/// What was measured for one point.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Its name within the figure.
    pub id: String,
    /// How many replicas its cluster had.
    pub replicas: u64,
    /// How its cluster was made and started.
    pub cluster: Vec<String>,
    /// What was run on it.
    pub command: String,
    /// What each run reported.
    pub reports: Vec<Json>,
    /// What was said when a run failed: nothing committed, or a promise was broken.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<String>,
}

/// A value over some runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// The middle one, or the mean of the middle two.
    pub median: f64,
    /// The lowest.
    pub low: f64,
    /// The highest.
    pub high: f64,
}

impl Results {
    /// Nothing measured yet.
    pub fn new(figure: &Figure, effort: Effort, machine: Machine) -> Self {
        let (figure, effort_name) = (figure.name.to_owned(), effort.name.to_owned());
        Self { format: FORMAT, figure, effort: effort_name, seconds: effort.seconds, keys: effort.keys, machine, points: Vec::new() }
    }

    pub fn to_json(&self) -> String {
        let mut text = serde_json::to_string_pretty(self).expect("results are plain data with keys that are text");
        text.push('\n');
        text
    }

    pub fn from_json(text: &str) -> Result<Self, String> {
        let results: Self = serde_json::from_str(text).map_err(|error| error.to_string())?;
        if results.format == FORMAT { Ok(results) } else { Err(format!("format {} is not {FORMAT}", results.format)) }
    }

    /// Whether more runs like those of `other` may be added.
    pub fn is_like(&self, other: &Self) -> bool {
        let settings = |results: &Self| (results.effort.clone(), results.seconds, results.keys);
        settings(self) == settings(other) && self.machine.is_like(&other.machine)
    }

    /// How often a point was tried.
    pub fn tries_of(&self, id: &str) -> usize {
        self.point(id).map_or(0, |point| point.reports.len() + point.failures.len())
    }

    /// Adds a run of `point`: what it reported, or what was said when it failed.
    pub fn note(&mut self, point: &Point, cluster: &[String], command: &str, outcome: Result<Json, String>) {
        let at = self.points.iter().position(|known| known.id == point.id).unwrap_or_else(|| {
            let (id, replicas, cluster) = (point.id.clone(), point.cluster.replicas(), cluster.to_vec());
            let command = command.to_owned();
            self.points.push(Measured { id, replicas, cluster, command, reports: Vec::new(), failures: Vec::new() });
            self.points.len() - 1
        });
        match outcome {
            Ok(report) => self.points[at].reports.push(report),
            Err(said) => self.points[at].failures.push(said),
        }
    }

    /// How many runs failed.
    pub fn failures(&self) -> usize {
        self.points.iter().map(|point| point.failures.len()).sum()
    }

    /// A point, if it was measured.
    pub fn point(&self, id: &str) -> Option<&Measured> {
        self.points.iter().find(|point| point.id == id)
    }

    /// A value of a point.
    pub fn value(&self, id: &str, value: Value) -> Option<Spread> {
        let point = self.point(id)?;
        let mut all: Vec<f64> = point.reports.iter().filter_map(|report| value.of(report, point.replicas)).collect();
        all.sort_by(f64::total_cmp);
        let (low, high) = (*all.first()?, *all.last()?);
        let middle = all.len() / 2;
        let median = if all.len().is_multiple_of(2) { (all[middle - 1] + all[middle]) / 2.0 } else { all[middle] };
        Some(Spread { median, low, high })
    }

    /// The most runs that any point has.
    pub fn runs(&self) -> usize {
        self.points.iter().map(|point| point.reports.len()).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Cluster;
    use serde_json::json;

    #[test]
    fn runs_gather_and_come_back_from_their_file() {
        let figure = Figure { name: "f", title: "", source: "", about: "", panels: Vec::new(), claims: Vec::new() };
        let mut results = Results::new(&figure, Effort::QUICK, Machine::default());
        let point = Point { id: "a".to_owned(), label: String::new(), x: 0.0, cluster: Cluster::default(), bench: Vec::new(), stretch: 1 };
        for rate in [30.0, 10.0, 20.0] {
            results.note(&point, &[], "bezant bench a", Ok(json!({"committed_per_second": rate})));
        }
        assert_eq!(results.value("a", Value::Throughput), Some(Spread { median: 20.0, low: 10.0, high: 30.0 }));
        results.note(&point, &[], "bezant bench a", Ok(json!({"committed_per_second": 40.0})));
        results.note(&point, &[], "bezant bench a", Err("nothing committed".to_owned()));
        assert_eq!(results.value("a", Value::Throughput).map(|spread| spread.median), Some(25.0));
        assert_eq!((results.value("a", Value::CpuUs), results.value("b", Value::Throughput)), (None, None));
        assert_eq!((results.tries_of("a"), results.tries_of("b"), results.runs(), results.failures()), (5, 0, 4, 1));
        assert_eq!(Results::from_json(&results.to_json()), Ok(results.clone()));
        let slower = Results { seconds: 99.0, ..results.clone() };
        assert!(results.is_like(&results.clone()) && !results.is_like(&slower));
        results.format = 9;
        assert!(Results::from_json(&results.to_json()).is_err());
    }
}
