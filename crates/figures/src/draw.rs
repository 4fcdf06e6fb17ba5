//! Pictures: sheets of charts, as SVG by `plotters`, and from that as PNG by `resvg`. One style for all: what is measured
//! goes up from nothing, spreads are whiskers, and each series has its own colour and sign.

use std::ops::Range;
use std::sync::LazyLock;

use plotters::coord::Shift;
use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint, Ranged};
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::register_font;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use resvg::{tiny_skia, usvg};

/// How large a chart is; so many stand side by side.
const CHART: (u32, u32) = (420, 320);
const CHARTS_A_ROW: usize = 3;
const LEFT: i32 = 66;
const RIGHT: i32 = 16;
const BELOW: i32 = 54;
const MARGIN: i32 = 8;
const HEAD: i32 = 34;
const LINE: i32 = 17;
const TITLE_SIZE: f64 = 20.0;
const CAPTION_SIZE: f64 = 17.5;
const TEXT_SIZE: f64 = 14.5;
const SMALL_SIZE: f64 = 13.0;
/// About so many numbers stand at an axis.
const TICKS: usize = 6;
/// Pixels of a PNG a unit: sharp on a dense screen and in print.
const PIXELS_A_UNIT: f32 = 2.0;

const INK: RGBColor = RGBColor(0x22, 0x22, 0x22);
const PALE: RGBColor = RGBColor(0x66, 0x66, 0x66);
const GRID: RGBColor = RGBColor(0xdd, 0xdd, 0xdd);
/// Told apart by everybody, colour-blind or not (Okabe and Ito).
const SERIES: [RGBColor; 7] = [
    RGBColor(0x00, 0x72, 0xb2),
    RGBColor(0xd5, 0x5e, 0x00),
    RGBColor(0x00, 0x9e, 0x73),
    RGBColor(0xcc, 0x79, 0xa7),
    RGBColor(0xe6, 0x9f, 0x00),
    RGBColor(0x56, 0xb4, 0xe9),
    RGBColor(0x55, 0x55, 0x55),
];

/// The one font comes with the program, since a machine that measures need not have any. Where an SVG is looked at, fonts like
/// it do as well.
static FONTS: LazyLock<&str> = LazyLock::new(|| {
    let names = "Noto Sans, Open Sans, DejaVu Sans, Verdana, sans-serif";
    let registered = register_font(names, FontStyle::Normal, ttf_noto_sans::REGULAR);
    assert!(registered.is_ok(), "the font that comes with the program is one");
    names
});

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
    pub foot: String,
}

/// Why there is no picture.
#[derive(Debug, thiserror::Error)]
pub enum PictureError {
    /// The charts cannot be drawn.
    #[error("the charts cannot be drawn: {0}")]
    Drawing(#[from] DrawingAreaErrorKind<std::io::Error>),
    /// The drawing cannot be made into pixels.
    #[error("the drawing cannot be made into pixels: {0}")]
    Pixels(String),
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Plot<'a, 'p> = ChartContext<'p, SVGBackend<'a>, Cartesian2d<Scale, Scale>>;
type Drawn<T = ()> = Result<T, DrawingAreaErrorKind<std::io::Error>>;

impl Sheet {
    /// As the text of an SVG file.
    ///
    /// # Errors
    /// [`PictureError`] when it cannot be drawn.
    pub fn svg(&self) -> Result<String, PictureError> {
        let columns = self.charts.len().clamp(1, CHARTS_A_ROW);
        let rows = self.charts.len().div_ceil(columns).max(1);
        let width = (columns as u32 * CHART.0).max(width(&self.title, TITLE_SIZE) + 2 * RIGHT as u32);
        let foot = folded(&self.foot, width - 2 * RIGHT as u32);
        let foot_height = foot.len() as i32 * LINE + 8;
        let height = rows as u32 * CHART.1 + (HEAD + foot_height) as u32;
        let mut out = String::new();
        let root = SVGBackend::with_string(&mut out, (width, height)).into_drawing_area();
        root.fill(&WHITE)?;
        root.draw_text(&self.title, &text(TITLE_SIZE, &INK), (RIGHT, 8))?;
        for (chart, area) in self.charts.iter().zip(root.margin(HEAD, foot_height, 0, 0).split_evenly((rows, columns))) {
            chart.draw(&area)?;
        }
        for (at, line) in foot.iter().enumerate() {
            root.draw_text(line, &text(SMALL_SIZE, &PALE), (RIGHT, height as i32 - foot_height + at as i32 * LINE))?;
        }
        root.present()?;
        drop(root);
        Ok(out)
    }
}

/// The text of an SVG file as the bytes of a PNG file.
///
/// # Errors
/// [`PictureError`] when it cannot be read, or is empty or far too large.
pub fn png(svg: &str) -> Result<Vec<u8>, PictureError> {
    let wrong = |error: String| PictureError::Pixels(error);
    let mut options = usvg::Options::default();
    options.fontdb_mut().load_font_data(ttf_noto_sans::REGULAR.to_vec());
    let tree = usvg::Tree::from_str(svg, &options).map_err(|error| wrong(error.to_string()))?;
    let size = tree.size().to_int_size().scale_by(PIXELS_A_UNIT);
    let pixels = size.and_then(|size| tiny_skia::Pixmap::new(size.width(), size.height()));
    let mut pixels = pixels.ok_or_else(|| wrong(format!("{:?} is no size", tree.size())))?;
    resvg::render(&tree, tiny_skia::Transform::from_scale(PIXELS_A_UNIT, PIXELS_A_UNIT), &mut pixels.as_mut());
    pixels.encode_png().map_err(|error| wrong(error.to_string()))
}

/// How text of a size looks; its place is its upper left.
fn text(size: f64, colour: &RGBColor) -> TextStyle<'static> {
    (*FONTS, size).into_font().color(colour)
}

/// How wide a text of this size is. Letters are measured in another unit than they are drawn in, which is a tenth larger.
fn width(of: &str, size: f64) -> u32 {
    (*FONTS, size * 1.1).into_font().box_size(of).map_or(0, |(width, _)| width)
}

/// A text in lines of at most `most`.
fn folded(text: &str, most: u32) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let last = lines.last_mut().expect("there is one");
        let longer = if last.is_empty() { word.to_owned() } else { format!("{last} {word}") };
        if last.is_empty() || width(&longer, SMALL_SIZE) <= most { *last = longer } else { lines.push(word.to_owned()) }
    }
    lines
}

fn colour(series: usize) -> &'static RGBColor {
    &SERIES[series % SERIES.len()]
}

/// A small sign at a point: each series has its own, so that they are told apart without colours too.
fn sign(area: &Area<'_>, series: usize, (x, y): (i32, i32)) -> Drawn {
    let style = colour(series).filled();
    let corners: &[(i32, i32)] = match series % 5 {
        0 => return area.draw(&Circle::new((x, y), 4, style)),
        1 => &[(-4, -4), (4, -4), (4, 4), (-4, 4)],
        2 => &[(0, -5), (5, 4), (-5, 4)],
        3 => &[(0, -5), (5, 0), (0, 5), (-5, 0)],
        _ => &[(0, 5), (5, -4), (-5, -4)],
    };
    area.draw(&Polygon::new(corners.iter().map(|(right, down)| (x + right, y + down)).collect::<Vec<_>>(), style))
}

/// Values along an axis.
struct Scale {
    axis: Axis,
    range: Range<f64>,
    /// The values that are written beside it.
    named: Vec<f64>,
}

impl Scale {
    /// So that these values have their places on it; nothing has none among factors.
    fn new(axis: Axis, range: Range<f64>) -> Self {
        if axis == Axis::Factors && range.start > 0.0 {
            let range = range.start / 1.15..range.end * 1.15;
            Self { axis, named: round_factors(&range), range }
        } else {
            let named = RangedCoordf64::from(range.clone()).key_points(TICKS);
            Self { axis: Axis::Steps, named, range }
        }
    }

    fn place(&self, value: f64) -> f64 {
        let of = |value: f64| if self.axis == Axis::Factors { value.ln() } else { value };
        (of(value) - of(self.range.start)) / (of(self.range.end) - of(self.range.start))
    }
}

impl Ranged for Scale {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (from, to): (i32, i32)) -> i32 {
        from + (self.place(*value) * f64::from(to - from)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        self.named.clone()
    }

    fn range(&self) -> Range<f64> {
        self.range.clone()
    }
}

/// 1, 2, 5, 10, 20 and so on, as far as they are within; only 1, 10 and so on, if those are many.
fn round_factors(range: &Range<f64>) -> Vec<f64> {
    let decades = (range.start.log10().floor() as i32)..=(range.end.log10().ceil() as i32);
    let all = decades.flat_map(|power| [1.0, 2.0, 5.0].map(|digit| digit * 10f64.powi(power)));
    let within: Vec<f64> = all.filter(|value| range.contains(value)).collect();
    if within.len() > 9 { within.into_iter().filter(|value| value.log10().fract().abs() < 1e-9).collect() } else { within }
}

impl Chart {
    fn draw(&self, area: &Area<'_>) -> Drawn {
        area.draw_text(&self.title, &text(CAPTION_SIZE, &INK), (LEFT, 2))?;
        let top = self.legend(area)?;
        let mut builder = ChartBuilder::on(area);
        builder.margin_top(top).margin_right(RIGHT).margin_bottom(MARGIN).margin_left(MARGIN);
        builder.y_label_area_size(LEFT - MARGIN).x_label_area_size(BELOW - MARGIN);
        let most = self.marks().map(|mark| mark.spread.1.max(mark.y)).fold(0.0, f64::max);
        let most = if most > 0.0 { most * 1.06 } else { 1.0 };
        match &self.kind {
            Kind::Bars { groups, bars } => {
                let along = Scale { axis: Axis::Steps, range: 0.0..groups.len().max(1) as f64, named: middles(groups.len()).collect() };
                let mut plot = builder.build_cartesian_2d(along, Scale::new(Axis::Steps, 0.0..most))?;
                self.axes(&mut plot, &|middle| groups.get(*middle as usize).cloned().unwrap_or_default())?;
                draw_bars(&mut plot, bars)
            }
            Kind::Lines { lines, along, up } => {
                // Nothing has no place among factors.
                let least = self.marks().map(|mark| mark.spread.0.min(mark.y)).filter(|value| *value > 0.0).fold(f64::INFINITY, f64::min);
                let least = if *up == Axis::Factors && least.is_finite() { least } else { 0.0 };
                let mut plot = builder.build_cartesian_2d(scale_along(lines, *along), Scale::new(*up, least..most))?;
                self.axes(&mut plot, &|value| number(*value))?;
                draw_lines(area, &mut plot, lines)
            }
        }
    }

    /// Draws the axes, and lines across at round values.
    fn axes(&self, plot: &mut Plot<'_, '_>, along: &dyn Fn(&f64) -> String) -> Drawn {
        let style = text(TEXT_SIZE, &INK);
        let mut mesh = plot.configure_mesh();
        mesh.disable_x_mesh().bold_line_style(GRID).light_line_style(TRANSPARENT).axis_style(INK);
        mesh.x_desc(&self.x).x_label_formatter(along).y_desc(&self.y).y_label_formatter(&|value| number(*value));
        mesh.label_style(style.clone()).axis_desc_style(style).draw()
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
    fn legend(&self, area: &Area<'_>) -> Drawn<i32> {
        let (names, is_bars): (Vec<&str>, bool) = match &self.kind {
            Kind::Bars { bars, .. } => (bars.iter().map(|bar| bar.name.as_str()).collect(), true),
            Kind::Lines { lines, .. } => (lines.iter().map(|line| line.name.as_str()).collect(), false),
        };
        let (mut x, mut y) = (LEFT, 28);
        for (at, name) in names.iter().enumerate() {
            let wide = 20 + width(name, TEXT_SIZE) as i32;
            if x > LEFT && x + wide > CHART.0 as i32 - RIGHT {
                (x, y) = (LEFT, y + LINE);
            }
            if is_bars {
                area.draw(&Rectangle::new([(x, y), (x + 10, y + 10)], colour(at).filled()))?;
            } else {
                sign(area, at, (x + 5, y + 5))?;
            }
            area.draw_text(name, &text(TEXT_SIZE, &INK), (x + 15, y))?;
            x += wide + 12;
        }
        Ok(y + LINE + 6)
    }
}

/// The axis along which lines go. Few places that all series share get their own numbers; else there are round ones.
fn scale_along(lines: &[Line], axis: Axis) -> Scale {
    let mut own: Vec<f64> = lines.iter().flat_map(|line| line.marks.iter().map(|mark| mark.x)).collect();
    own.sort_by(f64::total_cmp);
    own.dedup();
    let (least, most) = own.first().copied().zip(own.last().copied()).unwrap_or((0.0, 1.0));
    if axis == Axis::Steps || least <= 0.0 {
        let room = if most > least { (most - least) * 0.06 } else { 1.0 };
        return Scale::new(Axis::Steps, least - room..most + room);
    }
    let scale = Scale::new(axis, least..most);
    let is_shared = own.len() <= 8 && lines.iter().all(|line| line.marks.len() == own.len());
    if is_shared { Scale { named: own, ..scale } } else { scale }
}

/// Where the middles of so many groups of bars are.
fn middles(groups: usize) -> impl Iterator<Item = f64> {
    (0..groups).map(|group| group as f64 + 0.5)
}

fn draw_bars(plot: &mut Plot<'_, '_>, bars: &[Bar]) -> Drawn {
    // A gap of a seventh of a group on either side.
    let wide = 0.72 / bars.len().max(1) as f64;
    for (at, bar) in bars.iter().enumerate() {
        let from_middle = (at as f64 + 0.5 - bars.len() as f64 / 2.0) * wide;
        for (middle, mark) in middles(bar.marks.len()).zip(&bar.marks).filter_map(|(middle, mark)| Some((middle + from_middle, (*mark)?))) {
            let (left, right) = (middle - wide * 0.45, middle + wide * 0.45);
            plot.draw_series([Rectangle::new([(left, 0.0), (right, mark.y)], colour(at).filled())])?;
            whisker(plot, middle, mark)?;
            let label = number(if mark.y >= 100.0 { mark.y.round() } else { mark.y });
            let [left, right] = [left, right].map(|x| f64::from(plot.backend_coord(&(x, 0.0)).0));
            if f64::from(width(&label, SMALL_SIZE)) <= (right - left) * 1.25 {
                let style = text(SMALL_SIZE, &INK).pos(Pos::new(HPos::Center, VPos::Bottom));
                plot.draw_series([Text::new(label, (middle, mark.spread.1.max(mark.y)), style)])?;
            }
        }
    }
    Ok(())
}

fn draw_lines(area: &Area<'_>, plot: &mut Plot<'_, '_>, lines: &[Line]) -> Drawn {
    for (at, line) in lines.iter().enumerate() {
        plot.draw_series(LineSeries::new(line.marks.iter().map(|mark| (mark.x, mark.y)), colour(at).stroke_width(2)))?;
        for mark in &line.marks {
            whisker(plot, mark.x, *mark)?;
            let ((left, top), (x, y)) = (area.get_base_pixel(), plot.backend_coord(&(mark.x, mark.y)));
            sign(area, at, (x - left, y - top))?;
        }
    }
    Ok(())
}

/// A whisker from the lowest run to the highest, where they lie apart.
fn whisker(plot: &mut Plot<'_, '_>, x: f64, Mark { spread: (low, high), .. }: Mark) -> Drawn {
    let [low, high] = [(x, low), (x, high)];
    if plot.backend_coord(&low).1 - plot.backend_coord(&high).1 > 1 {
        plot.draw_series([PathElement::new([low, high], INK)])?;
        plot.draw_series([low, high].map(|end| EmptyElement::at(end) + PathElement::new([(-3, 0), (3, 0)], INK)))?;
    }
    Ok(())
}

/// A number as people read it: `12,500`, `0.25`.
pub fn number(value: f64) -> String {
    let digits = match value.abs() {
        0.0 => return "0".to_owned(),
        100.0.. => 0,
        10.0.. => 1,
        1.0.. => 2,
        _ => 3,
    };
    let text = format!("{value:.digits$}");
    let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    let (whole, rest) = text.split_once('.').map_or((text, None), |(whole, rest)| (whole, Some(rest)));
    let (sign, whole) = whole.strip_prefix('-').map_or(("", whole), |whole| ("-", whole));
    let mut grouped = String::new();
    for (at, digit) in whole.chars().enumerate() {
        if at > 0 && (whole.len() - at).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    rest.map_or_else(|| format!("{sign}{grouped}"), |rest| format!("{sign}{grouped}.{rest}"))
}

#[cfg(test)]
mod tests {
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
            foot: "What must be known. ".repeat(30),
        }
    }

    #[test]
    fn a_sheet_shows_every_series_value_and_name() {
        let text = sheet().svg().expect("drawn");
        for part in ["A figure", "signatures off", "RW-Z", "\n6,981\n", "\n16\n", "along", "tx/s"] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
    }

    #[test]
    fn text_leaves_ink_in_pixels_and_cannot_break_out() {
        let sheet = |title: &str| Sheet { title: title.to_owned(), charts: Vec::new(), foot: String::new() };
        let dark = |title: &str| {
            let svg = sheet(title).svg().expect("drawn");
            let map = tiny_skia::Pixmap::decode_png(&png(&svg).expect("it can be drawn")).expect("it is a PNG");
            assert_eq!(map.width(), 2 * CHART.0);
            map.pixels().iter().filter(|pixel| pixel.red() < 128).count()
        };
        assert_eq!(dark(""), 0);
        assert!(dark("ink") > 50, "there are letters");
        assert!(dark("<ink & more>") > 100);
        assert!(matches!(png("<svg"), Err(PictureError::Pixels(_))));
    }

    #[test]
    fn what_is_greater_stands_higher_and_round_values_are_named() {
        let scale = Scale::new(Axis::Factors, 1.0..64.0);
        assert_eq!(scale.named, [1.0, 2.0, 5.0, 10.0, 20.0, 50.0]);
        assert!((scale.place(8.0) - 0.5).abs() < 1e-9);
        assert_eq!(round_factors(&(1.0..2e6)).len(), 7, "of many only the powers of ten");
        assert_eq!(Scale::new(Axis::Factors, 0.0..8_657.0).named, [0.0, 2_000.0, 4_000.0, 6_000.0, 8_000.0]);
        let svg = sheet().svg().expect("drawn");
        let heights = svg.lines().filter(|line| line.contains("<polyline") && line.contains("#0072B2"));
        for points in heights.map(|line| line.split('"').find(|part| part.contains(',')).expect("points").to_owned()) {
            let ys: Vec<i32> = points.split(' ').filter_map(|point| point.split_once(',')?.1.parse().ok()).collect();
            assert!(ys.len() == 3 && ys.is_sorted_by(|one, next| one > next), "{points}");
        }
    }

    #[test]
    fn numbers_are_written_for_people() {
        let written = [0.0, 0.25, 1.5, 12.0, 99.96, 1_234.5, 1_234_567.0, -20.0].map(number);
        assert_eq!(written, ["0", "0.25", "1.5", "12", "100", "1,234", "1,234,567", "-20"]);
    }
}
