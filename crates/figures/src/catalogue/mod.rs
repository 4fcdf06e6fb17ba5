//! All figures there are.

mod augustus;
mod basil;
mod beyond;
mod buzzer;
mod cataphract;
mod sentinel;

use crate::plan::{Cluster, Data, Effort, Figure, Point, Setting};

/// Every figure, in the order of the page, measured with this much effort.
pub fn all(effort: Effort) -> Vec<Figure> {
    [
        basil::figures(effort),
        cataphract::figures(effort),
        augustus::figures(effort),
        buzzer::figures(effort),
        sentinel::figures(),
        beyond::figures(effort),
    ]
    .concat()
}

/// By which other numbers of its paper a figure is known, as it has their runs too.
pub fn others(figure: &str) -> &'static [&'static str] {
    sentinel::others(figure)
}

/// Words of a command line.
fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

/// A cluster made with the flags `init`, with tables filled, and nobody far away.
fn cluster(init: &str, tables: &[&str]) -> Cluster {
    Cluster { data: Data { init: words(init), tables: tables.iter().map(|table| words(table)).collect() }, ..Cluster::default() }
}

/// The same with a setting changed.
fn set(mut cluster: Cluster, file: &'static str, name: &'static str, value: String) -> Cluster {
    cluster.settings.push(Setting { file, name, value });
    cluster
}

/// A point at a number along the chart.
fn point(id: String, x: f64, cluster: Cluster, bench: &str) -> Point {
    Point { id, label: x.to_string(), x, cluster, bench: words(bench), stretch: 1 }
}

/// A point of bars: its place has a name and no number.
fn bar(id: String, label: &str, cluster: Cluster, bench: &str) -> Point {
    Point { label: label.to_owned(), ..point(id, 0.0, cluster, bench) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_is_whole() {
        for effort in [Effort::QUICK, Effort::FULL] {
            let figures = all(effort);
            for (at, figure) in figures.iter().enumerate() {
                assert!(figures[..at].iter().all(|other| other.name != figure.name), "{} is there twice", figure.name);
                assert!(figure.seconds(effort) > 0.0 && !figure.panels.is_empty(), "{}", figure.name);
                let points = figure.points();
                for claim in &figure.claims {
                    for id in std::iter::once(&claim.of).chain(&claim.over) {
                        let is_there = points.iter().any(|point| point.id == *id);
                        assert!(is_there, "{}: the claim {:?} is about {id:?}, which is no point", figure.name, claim.what);
                    }
                }
                // Two places of one name must mean the same run.
                for point in figure.panels.iter().flat_map(|panel| panel.series.iter().flat_map(|(_, points)| points)) {
                    let known = points.iter().find(|known| known.id == point.id).expect("points() has every one");
                    assert_eq!((&known.cluster, &known.bench), (&point.cluster, &point.bench), "{} of {}", point.id, figure.name);
                }
            }
        }
    }
}
