//! Charts, and sheets of charts, as shapes. One style for all: what is measured goes up from nothing, spreads are
//! whiskers, and each series has its own colour and sign.

use super::font;
use super::scale::{Scale, number};
use super::shapes::{Anchor, At, Colour, Drawing};

const CHART_WIDTH: f64 = 420.0;
const CHART_HEIGHT: f64 = 320.0;
/// So many charts stand side by side.
const CHARTS_A_ROW: usize = 3;
const LEFT: f64 = 66.0;
const RIGHT: f64 = 16.0;
const BELOW: f64 = 50.0;
const TITLE_SIZE: f64 = 14.0;
const TEXT_SIZE: f64 = 11.5;
const LEGEND_LINE: f64 = 17.0;
const SIGN_RADIUS: f64 = 4.0;
const HEAD_HEIGHT: f64 = 34.0;
const FOOT_LINE: f64 = 16.0;

/// A measured value and how far its runs lay apart.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mark {
    /// Where along the chart; not used for bars.
    pub x: f64,
    /// The value.
    pub y: f64,
    /// The lowest and the highest run.
    pub spread: (f64, f64),
}

/// A series of points joined by a line.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// What it is.
    pub name: String,
    /// Its points, in the order in which they are joined.
    pub marks: Vec<Mark>,
}

/// A series of bars, one for each group.
#[derive(Clone, Debug, PartialEq)]
pub struct Bar {
    /// What it is.
    pub name: String,
    /// One for each group; none where nothing was measured.
    pub marks: Vec<Option<Mark>>,
}

/// How a chart shows its numbers.
#[derive(Clone, Debug, PartialEq)]
pub enum Kind {
    /// Bars side by side in named groups.
    Bars {
        /// The groups.
        groups: Vec<String>,
        /// The series.
        bars: Vec<Bar>,
    },
    /// Lines.
    Lines {
        /// The series.
        lines: Vec<Line>,
        /// The axis along.
        along: Axis,
        /// The axis that goes up.
        up: Axis,
    },
}

/// How numbers are spread along an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Axis {
    /// In even steps.
    Steps,
    /// In even factors.
    Factors,
}

/// One chart.
#[derive(Clone, Debug, PartialEq)]
pub struct Chart {
    /// What it shows.
    pub title: String,
    /// What is along it.
    pub x: String,
    /// What goes up.
    pub y: String,
    /// Its numbers.
    pub kind: Kind,
}

/// A figure: charts under one title, and small print below.
#[derive(Clone, Debug, PartialEq)]
pub struct Sheet {
    /// What it is.
    pub title: String,
    /// Its charts.
    pub charts: Vec<Chart>,
    /// What must be known to read it.
    pub foot: Vec<String>,
}

impl Sheet {
    /// As shapes.
    #[must_use]
    pub fn drawing(&self) -> Drawing {
        let columns = self.charts.len().clamp(1, CHARTS_A_ROW);
        let rows = self.charts.len().div_ceil(columns);
        let width = (columns as f64 * CHART_WIDTH).max(font::width(&self.title, TITLE_SIZE + 2.0) + 2.0 * RIGHT);
        let foot: Vec<String> = self.foot.iter().flat_map(|line| folded(line, width - 2.0 * RIGHT)).collect();
        let height = HEAD_HEIGHT + rows as f64 * CHART_HEIGHT + foot.len() as f64 * FOOT_LINE + 8.0;
        let mut drawing = Drawing::new(width, height);
        drawing.text((RIGHT, 23.0), &self.title, TITLE_SIZE + 2.0, Anchor::Start, Colour::INK);
        for (at, chart) in self.charts.iter().enumerate() {
            let corner = ((at % columns) as f64 * CHART_WIDTH, HEAD_HEIGHT + (at / columns) as f64 * CHART_HEIGHT);
            chart.draw(&mut drawing, corner);
        }
        for (at, line) in foot.iter().enumerate() {
            let y = HEAD_HEIGHT + rows as f64 * CHART_HEIGHT + (at as f64 + 0.7) * FOOT_LINE;
            drawing.text((RIGHT, y), line, TEXT_SIZE - 1.0, Anchor::Start, Colour::PALE);
        }
        drawing
    }
}

/// A text in lines of at most `width`.
fn folded(text: &str, width: f64) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let last = lines.last_mut().expect("there is one");
        let longer = if last.is_empty() { word.to_owned() } else { format!("{last} {word}") };
        if last.is_empty() || font::width(&longer, TEXT_SIZE - 1.0) <= width { *last = longer } else { lines.push(word.to_owned()) }
    }
    lines
}

/// Where a chart's numbers are drawn.
struct Field {
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
    y: Scale,
}

impl Field {
    fn up(&self, value: f64) -> f64 {
        self.bottom - self.y.part(value) * (self.bottom - self.top)
    }

    fn along(&self, part: f64) -> f64 {
        self.left + part * (self.right - self.left)
    }
}

impl Chart {
    fn draw(&self, drawing: &mut Drawing, (left, top): At) {
        drawing.text((left + LEFT, top + 16.0), &self.title, TITLE_SIZE, Anchor::Start, Colour::INK);
        let legend_bottom = self.legend(drawing, (left + LEFT, top + 34.0));
        let field = Field {
            left: left + LEFT,
            right: left + CHART_WIDTH - RIGHT,
            top: legend_bottom + 6.0,
            bottom: top + CHART_HEIGHT - BELOW,
            y: self.scale_up(),
        };
        for tick in field.y.ticks() {
            let y = field.up(tick);
            drawing.line(&[(field.left, y), (field.right, y)], Colour::GRID, 1.0);
            drawing.text((field.left - 7.0, y + 4.0), &number(tick), TEXT_SIZE, Anchor::End, Colour::INK);
        }
        match &self.kind {
            Kind::Bars { groups, bars } => draw_bars(drawing, &field, groups, bars),
            Kind::Lines { lines, along, .. } => draw_lines(drawing, &field, lines, *along),
        }
        drawing.line(&[(field.left, field.bottom), (field.right, field.bottom)], Colour::INK, 1.2);
        let middle = (field.top + field.bottom) / 2.0;
        drawing.text_up((left + 15.0, middle), &self.y, TEXT_SIZE, Colour::INK);
        drawing.text((field.along(0.5), field.bottom + 38.0), &self.x, TEXT_SIZE, Anchor::Middle, Colour::INK);
    }

    fn scale_up(&self) -> Scale {
        let most = self.marks().map(|mark| mark.spread.1.max(mark.y)).fold(0.0, f64::max);
        // Nothing has no place among factors.
        let least = self.marks().map(|mark| mark.spread.0.min(mark.y)).filter(|value| *value > 0.0).fold(f64::INFINITY, f64::min);
        match self.kind {
            Kind::Lines { up: Axis::Factors, .. } if least.is_finite() => Scale::log(least, most),
            _ => Scale::from_zero(most * 1.04),
        }
    }

    fn marks(&self) -> impl Iterator<Item = Mark> + '_ {
        let (bars, lines): (&[Bar], &[Line]) = match &self.kind {
            Kind::Bars { bars, .. } => (bars, &[]),
            Kind::Lines { lines, .. } => (&[], lines),
        };
        let of_bars = bars.iter().flat_map(|bar| bar.marks.iter().flatten().copied());
        of_bars.chain(lines.iter().flat_map(|line| line.marks.iter().copied()))
    }

    /// Names the series, in as many lines as that takes; says where it ends.
    fn legend(&self, drawing: &mut Drawing, (left, top): At) -> f64 {
        let (names, is_bars): (Vec<&str>, bool) = match &self.kind {
            Kind::Bars { bars, .. } => (bars.iter().map(|bar| bar.name.as_str()).collect(), true),
            Kind::Lines { lines, .. } => (lines.iter().map(|line| line.name.as_str()).collect(), false),
        };
        let (mut x, mut y) = (left, top);
        let right = left + CHART_WIDTH - LEFT - RIGHT;
        for (at, name) in names.iter().enumerate() {
            let wide = 20.0 + font::width(name, TEXT_SIZE);
            if x > left && x + wide > right {
                (x, y) = (left, y + LEGEND_LINE);
            }
            if is_bars {
                drawing.rectangle((x, y - 9.0), (x + 10.0, y + 1.0), Colour::of_series(at));
            } else {
                drawing.sign(at, (x + 5.0, y - 4.0), SIGN_RADIUS);
            }
            drawing.text((x + 15.0, y), name, TEXT_SIZE, Anchor::Start, Colour::INK);
            x += wide + 12.0;
        }
        y
    }
}

fn draw_bars(drawing: &mut Drawing, field: &Field, groups: &[String], bars: &[Bar]) {
    let slot = 1.0 / groups.len().max(1) as f64;
    // A gap of a fifth of a group on either side.
    let wide = slot * 0.72 / bars.len().max(1) as f64;
    for (group, name) in groups.iter().enumerate() {
        let middle = (group as f64 + 0.5) * slot;
        for (at, bar) in bars.iter().enumerate() {
            let Some(mark) = bar.marks.get(group).copied().flatten() else { continue };
            let from = middle + (at as f64 - bars.len() as f64 / 2.0) * wide;
            let (x0, x1) = (field.along(from + wide * 0.05), field.along(from + wide * 0.95));
            drawing.rectangle((x0, field.up(mark.y)), (x1, field.bottom), Colour::of_series(at));
            whisker(drawing, field, (x0 + x1) / 2.0, mark);
            let label = number(if mark.y >= 100.0 { mark.y.round() } else { mark.y });
            if font::width(&label, TEXT_SIZE - 2.0) <= (x1 - x0) * 1.25 {
                let above = field.up(mark.spread.1.max(mark.y)) - 4.0;
                drawing.text(((x0 + x1) / 2.0, above), &label, TEXT_SIZE - 2.0, Anchor::Middle, Colour::INK);
            }
        }
        drawing.text((field.along(middle), field.bottom + 17.0), name, TEXT_SIZE, Anchor::Middle, Colour::INK);
    }
}

fn draw_lines(drawing: &mut Drawing, field: &Field, lines: &[Line], along: Axis) {
    let xs = || lines.iter().flat_map(|line| line.marks.iter().map(|mark| mark.x));
    let (least, most) = (xs().fold(f64::INFINITY, f64::min), xs().fold(f64::NEG_INFINITY, f64::max));
    if !least.is_finite() {
        return;
    }
    // Nothing has no place among factors.
    let is_log = along == Axis::Factors && least > 0.0;
    let x_scale = if is_log { Scale::log(least, most) } else { Scale::between(least, most) };
    // Few places that several series share get their own numbers; else there are round ones.
    let mut own: Vec<f64> = xs().collect();
    own.sort_by(f64::total_cmp);
    own.dedup();
    let is_shared = own.len() <= 8 && lines.iter().all(|line| line.marks.len() == own.len());
    let ticks = if is_log && is_shared { own } else { x_scale.ticks() };
    for tick in ticks {
        let x = field.along(x_scale.part(tick));
        drawing.line(&[(x, field.bottom), (x, field.bottom + 4.0)], Colour::INK, 1.0);
        drawing.text((x, field.bottom + 17.0), &number(tick), TEXT_SIZE, Anchor::Middle, Colour::INK);
    }
    for (at, line) in lines.iter().enumerate() {
        let points: Vec<At> = line.marks.iter().map(|mark| (field.along(x_scale.part(mark.x)), field.up(mark.y))).collect();
        if points.len() > 1 {
            drawing.line(&points, Colour::of_series(at), 2.0);
        }
        for (point, mark) in points.iter().zip(&line.marks) {
            whisker(drawing, field, point.0, *mark);
            drawing.sign(at, *point, SIGN_RADIUS);
        }
    }
}

fn whisker(drawing: &mut Drawing, field: &Field, x: f64, mark: Mark) {
    let (low, high) = (field.up(mark.spread.0), field.up(mark.spread.1));
    if low - high > 1.0 {
        drawing.line(&[(x, low), (x, high)], Colour::INK, 1.0);
        for y in [low, high] {
            drawing.line(&[(x - 3.0, y), (x + 3.0, y)], Colour::INK, 1.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{png, svg};
    use super::*;

    fn mark(x: f64, y: f64) -> Mark {
        Mark { x, y, spread: (y * 0.9, y * 1.1) }
    }

    fn sheet() -> Sheet {
        let bars = Kind::Bars {
            groups: vec!["RW-U".to_owned(), "RW-Z".to_owned()],
            bars: vec![
                Bar { name: "signatures on".to_owned(), marks: vec![Some(mark(0.0, 6_981.0)), Some(mark(0.0, 1_900.0))] },
                Bar { name: "signatures off".to_owned(), marks: vec![Some(mark(0.0, 8_111.0)), None] },
            ],
        };
        let line = Line { name: "RW-U".to_owned(), marks: [1.0, 4.0, 16.0].map(|x| mark(x, 100.0 * x)).to_vec() };
        let lines = |lines, up| Kind::Lines { lines, along: Axis::Factors, up };
        let chart = |title: &str, kind| Chart { title: title.to_owned(), x: "along".to_owned(), y: "tx/s".to_owned(), kind };
        Sheet {
            title: "A figure".to_owned(),
            charts: vec![
                chart("Bars", bars),
                chart("Lines", lines(vec![line.clone()], Axis::Steps)),
                chart("Factors", lines(vec![line], Axis::Factors)),
                chart("Nothing", lines(Vec::new(), Axis::Factors)),
            ],
            foot: vec!["What must be known. ".repeat(30)],
        }
    }

    #[test]
    fn a_sheet_shows_every_series_value_and_name() {
        let drawing = sheet().drawing();
        let text = svg(&drawing);
        for part in ["A figure", "signatures off", "RW-Z", ">6,981<", ">16<", "along", "tx/s"] {
            assert!(text.contains(part), "{part} is missing");
        }
        assert!(png(&drawing).is_ok());
    }

    #[test]
    fn what_is_greater_stands_higher() {
        let factors = Field { left: 0.0, right: 100.0, top: 0.0, bottom: 50.0, y: Scale::log(1.0, 10_000.0) };
        assert!((factors.up(100.0) - 25.0).abs() < 1e-9 && factors.up(10.0) > factors.up(1_000.0));
        let field = Field { left: 0.0, right: 100.0, top: 0.0, bottom: 50.0, y: Scale::from_zero(10.0) };
        assert_eq!((field.up(0.0), field.up(10.0)), (50.0, 0.0));
        assert!(field.up(3.0) > field.up(7.0));
    }
}
