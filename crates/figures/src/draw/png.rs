//! A drawing as PNG, with the font's outlines, so that no font is needed where it is made or seen.

use tiny_skia::{FillRule, LineJoin, Paint, Path, PathBuilder, Pixmap, Stroke, Transform};
use ttf_parser::OutlineBuilder;

use super::font;
use super::shapes::{Anchor, Colour, Drawing, Shape, Turn};

/// Pixels a unit: sharp on a dense screen and in print.
const PIXELS_A_UNIT: f32 = 2.0;

/// Why a drawing cannot be made into pixels.
#[derive(Debug, thiserror::Error)]
pub enum PngError {
    /// It is empty, or far too large.
    #[error("a picture of {width} by {height} cannot be drawn")]
    Size {
        /// How wide it is.
        width: f64,
        /// How high it is.
        height: f64,
    },
    /// The pixels cannot be packed.
    #[error("the picture cannot be packed: {0}")]
    Packing(String),
}

/// The drawing, as the bytes of a PNG file.
///
/// # Errors
/// [`PngError`] when it has no size that can be drawn.
pub fn png(drawing: &Drawing) -> Result<Vec<u8>, PngError> {
    let (width, height) = (drawing.width, drawing.height);
    let pixels = |units: f64| (units as f32 * PIXELS_A_UNIT).ceil() as u32;
    let mut map = Pixmap::new(pixels(width), pixels(height)).ok_or(PngError::Size { width, height })?;
    let scale = Transform::from_scale(PIXELS_A_UNIT, PIXELS_A_UNIT);
    for shape in &drawing.shapes {
        paint(&mut map, shape, scale);
    }
    map.encode_png().map_err(|error| PngError::Packing(error.to_string()))
}

fn paint(map: &mut Pixmap, shape: &Shape, scale: Transform) {
    match shape {
        Shape::Line { points, colour, width } => {
            let stroke = Stroke { width: *width as f32, line_join: LineJoin::Round, ..Stroke::default() };
            if let Some(path) = through(points, false) {
                map.stroke_path(&path, &ink(*colour), &stroke, scale, None);
            }
        }
        Shape::Fill { points, colour } => {
            if let Some(path) = through(points, true) {
                map.fill_path(&path, &ink(*colour), FillRule::Winding, scale, None);
            }
        }
        Shape::Text { at: (x, y), text, size, anchor, colour, turn } => {
            let width = font::width(text, *size);
            let left = match anchor {
                Anchor::Start => 0.0,
                Anchor::Middle => -width / 2.0,
                Anchor::End => -width,
            };
            let place = Transform::from_translate(*x as f32, *y as f32);
            let place = if *turn == Turn::Up { place.pre_rotate(-90.0) } else { place };
            let unit = (size / font::units()) as f32;
            font::outlines(
                text,
                |right| Glyph { path: PathBuilder::new(), unit, right: (left + right * size) as f32 },
                |glyph| {
                    if let Some(path) = glyph.path.finish() {
                        map.fill_path(&path, &ink(*colour), FillRule::Winding, scale.pre_concat(place), None);
                    }
                },
            );
        }
    }
}

fn through(points: &[(f64, f64)], close: bool) -> Option<Path> {
    let mut path = PathBuilder::new();
    for (at, (x, y)) in points.iter().enumerate() {
        if at == 0 { path.move_to(*x as f32, *y as f32) } else { path.line_to(*x as f32, *y as f32) }
    }
    if close {
        path.close();
    }
    path.finish()
}

fn ink(Colour(red, green, blue): Colour) -> Paint<'static> {
    let mut paint = Paint { anti_alias: true, ..Paint::default() };
    paint.set_color_rgba8(red, green, blue, 255);
    paint
}

/// One letter's outline; the font's own units go up, the drawing's down.
struct Glyph {
    path: PathBuilder,
    unit: f32,
    right: f32,
}

impl Glyph {
    fn at(&self, x: f32, y: f32) -> (f32, f32) {
        (self.right + x * self.unit, -y * self.unit)
    }
}

impl OutlineBuilder for Glyph {
    fn move_to(&mut self, x: f32, y: f32) {
        let (x, y) = self.at(x, y);
        self.path.move_to(x, y);
    }

    fn line_to(&mut self, x: f32, y: f32) {
        let (x, y) = self.at(x, y);
        self.path.line_to(x, y);
    }

    fn quad_to(&mut self, x1: f32, y1: f32, x: f32, y: f32) {
        let ((x1, y1), (x, y)) = (self.at(x1, y1), self.at(x, y));
        self.path.quad_to(x1, y1, x, y);
    }

    fn curve_to(&mut self, x1: f32, y1: f32, x2: f32, y2: f32, x: f32, y: f32) {
        let ((x1, y1), (x2, y2), (x, y)) = (self.at(x1, y1), self.at(x2, y2), self.at(x, y));
        self.path.cubic_to(x1, y1, x2, y2, x, y);
    }

    fn close(&mut self) {
        self.path.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_leaves_ink_where_it_stands_and_nowhere_else() {
        let mut drawing = Drawing::new(60.0, 20.0);
        drawing.text((5.0, 15.0), "ink", 12.0, Anchor::Start, Colour::INK);
        let map = Pixmap::decode_png(&png(&drawing).expect("it can be drawn")).expect("it is a PNG");
        assert_eq!((map.width(), map.height()), (120, 40));
        let dark = |from: usize, to: usize| {
            let pixels = map.pixels().iter().enumerate();
            pixels.filter(|(at, pixel)| (from..to).contains(&(at % 120)) && pixel.red() < 128).count()
        };
        assert!(dark(10, 60) > 50, "there are letters");
        assert_eq!(dark(70, 120), 0, "right of them is nothing");
    }

    #[test]
    fn what_has_no_size_is_refused() {
        assert!(matches!(png(&Drawing::new(0.0, 10.0)), Err(PngError::Size { .. })));
    }
}
