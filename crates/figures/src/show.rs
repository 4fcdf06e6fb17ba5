//! From results to charts.

use crate::draw::{Axis, Bar, Chart, Kind, Line, Mark, Sheet, number};
use crate::plan::{Figure, Layout, Panel, Point, Value};
use crate::results::{Results, Spread};

/// The figure as it is drawn.
pub fn sheet(figure: &Figure, results: &Results) -> Sheet {
    let tables = if figure.is_of_servers() { String::new() } else { format!(", tables of {} keys", number(results.keys as f64)) };
    let foot = format!(
        "{}. {}; {} s a run, {} runs of each point (whiskers: lowest and highest){tables} ({}).",
        figure.source,
        results.machine.line(),
        results.seconds,
        results.runs(),
        results.effort
    );
    Sheet { title: figure.title.to_owned(), charts: figure.panels.iter().map(|panel| chart(panel, results)).collect(), foot }
}

fn chart(panel: &Panel, results: &Results) -> Chart {
    let of_lines = |lines, along, up| Kind::Lines { lines, along, up };
    let own = || lines(panel, results, |point| Some(point.x));
    let measured = |value: Value| lines(panel, results, |point| Some(results.value(&point.id, value)?.median));
    let (kind, x) = match panel.layout {
        Layout::Bars => (bars(panel, results), panel.x),
        Layout::Lines => (of_lines(own(), Axis::Steps, Axis::Steps), panel.x),
        Layout::LinesOverLog => (of_lines(own(), Axis::Factors, Axis::Steps), panel.x),
        Layout::Over(value) => (of_lines(measured(value), Axis::Steps, Axis::Steps), value.title()),
        Layout::OverLog(value) => (of_lines(measured(value), Axis::Factors, Axis::Factors), value.title()),
    };
    Chart { title: panel.title.to_owned(), x: x.to_owned(), y: panel.y.title().to_owned(), kind }
}

fn bars(panel: &Panel, results: &Results) -> Kind {
    let mut groups: Vec<String> = Vec::new();
    for point in panel.series.iter().flat_map(|(_, points)| points) {
        if !groups.contains(&point.label) {
            groups.push(point.label.clone());
        }
    }
    let bar = |(name, points): &(String, Vec<Point>)| {
        let of_group = |group: &String| {
            let point = points.iter().find(|point| point.label == *group)?;
            results.value(&point.id, panel.y).map(|spread| mark(0.0, spread))
        };
        Bar { name: name.clone(), marks: groups.iter().map(of_group).collect() }
    };
    let bars = panel.series.iter().map(bar).collect();
    Kind::Bars { groups, bars }
}

fn lines(panel: &Panel, results: &Results, x: impl Fn(&Point) -> Option<f64>) -> Vec<Line> {
    let line = |(name, points): &(String, Vec<Point>)| {
        let marks = points.iter().filter_map(|point| Some(mark(x(point)?, results.value(&point.id, panel.y)?)));
        Line { name: name.clone(), marks: marks.collect() }
    };
    panel.series.iter().map(line).filter(|line| !line.marks.is_empty()).collect()
}

fn mark(x: f64, Spread { median, low, high }: Spread) -> Mark {
    Mark { x, y: median, spread: (low, high) }
}
