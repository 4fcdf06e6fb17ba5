//! Pictures: charts become a few kinds of shapes, and shapes become SVG or PNG, which look the same.

mod chart;
mod font;
mod png;
mod scale;
mod shapes;
mod svg;

pub use chart::{Axis, Bar, Chart, Kind, Line, Mark, Sheet};
pub use png::{PngError, png};
pub use scale::number;
pub use svg::svg;
