//! A drawing as SVG. Its text stays text: sharp at any size, and found by a search.

use std::fmt::Write as _;

use super::shapes::{Anchor, Colour, Drawing, Shape, Turn};

/// Fonts like the one that widths were taken from, likely ones first.
const FONTS: &str = "Noto Sans, Open Sans, DejaVu Sans, Verdana, sans-serif";

/// The drawing, as the text of an SVG file.
#[must_use]
pub fn svg(drawing: &Drawing) -> String {
    let Drawing { width, height, shapes } = drawing;
    let mut out = String::new();
    let head = format!("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\"");
    put(&mut out, &format!("{head} font-family=\"{FONTS}\">"));
    for shape in shapes {
        put(&mut out, &element(shape));
    }
    put(&mut out, "</svg>");
    out
}

fn put(out: &mut String, line: &str) {
    writeln!(out, "{line}").expect("writing to a string succeeds");
}

fn element(shape: &Shape) -> String {
    match shape {
        Shape::Line { points, colour, width } => {
            let stroke = format!("stroke=\"{}\" stroke-width=\"{width}\"", hex(*colour));
            format!("<polyline points=\"{}\" fill=\"none\" {stroke} stroke-linejoin=\"round\"/>", list(points))
        }
        Shape::Fill { points, colour } => format!("<polygon points=\"{}\" fill=\"{}\"/>", list(points), hex(*colour)),
        Shape::Text { at: (x, y), text, size, anchor, colour, turn } => {
            let anchor = match anchor {
                Anchor::Start => "start",
                Anchor::Middle => "middle",
                Anchor::End => "end",
            };
            let (x, y) = (round(*x), round(*y));
            let turned = if *turn == Turn::Up { format!(" transform=\"rotate(-90 {x} {y})\"") } else { String::new() };
            let place = format!("x=\"{x}\" y=\"{y}\" font-size=\"{size}\" text-anchor=\"{anchor}\"{turned}");
            format!("<text {place} fill=\"{}\">{}</text>", hex(*colour), escaped(text))
        }
    }
}

fn list(points: &[(f64, f64)]) -> String {
    points.iter().map(|(x, y)| format!("{},{}", round(*x), round(*y))).collect::<Vec<_>>().join(" ")
}

fn round(number: f64) -> f64 {
    (number * 100.0).round() / 100.0
}

fn hex(Colour(red, green, blue): Colour) -> String {
    format!("#{red:02x}{green:02x}{blue:02x}")
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_become_elements_and_text_cannot_break_out() {
        let mut drawing = Drawing::new(100.0, 50.0);
        drawing.line(&[(0.0, 1.0), (2.345_6, 3.0)], Colour::INK, 1.5);
        drawing.text((5.0, 6.0), "a < b & c", 12.0, Anchor::End, Colour::INK);
        drawing.text_up((7.0, 8.0), "up", 12.0, Colour::INK);
        let text = svg(&drawing);
        assert!(text.starts_with("<svg xmlns=") && text.trim_end().ends_with("</svg>"));
        assert!(text.contains("points=\"0,1 2.35,3\""), "{text}");
        assert!(text.contains("text-anchor=\"end\" fill=\"#222222\">a &lt; b &amp; c</text>"), "{text}");
        assert!(text.contains("rotate(-90 7 8)"), "{text}");
    }
}
