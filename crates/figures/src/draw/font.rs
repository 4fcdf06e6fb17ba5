//! The one font: it comes with the program, since a machine that measures need not have any.

use std::sync::LazyLock;

use ttf_parser::{Face, OutlineBuilder};

static FACE: LazyLock<Face<'static>> =
    LazyLock::new(|| Face::parse(ttf_noto_sans::REGULAR, 0).expect("the font that comes with the program is one"));

/// How wide a text of this size is.
pub fn width(text: &str, size: f64) -> f64 {
    text.chars().map(advance).sum::<f64>() * size
}

/// Draws a text's outlines, letter by letter: `begin` is handed how far right each begins, for a size of 1.
pub fn outlines<B: OutlineBuilder>(text: &str, mut begin: impl FnMut(f64) -> B, mut end: impl FnMut(B)) {
    let mut right = 0.0;
    for letter in text.chars() {
        if let Some(glyph) = FACE.glyph_index(letter) {
            let mut builder = begin(right);
            let _ = FACE.outline_glyph(glyph, &mut builder);
            end(builder);
        }
        right += advance(letter);
    }
}

/// How many of the font's own units a size of 1 is.
pub fn units() -> f64 {
    f64::from(FACE.units_per_em())
}

fn advance(letter: char) -> f64 {
    let glyph = FACE.glyph_index(letter).unwrap_or_default();
    f64::from(FACE.glyph_hor_advance(glyph).unwrap_or_default()) / units()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_letter_that_figures_use_is_in_the_font() {
        for letter in "aZ09 µ×·±–—…‰%()/+-,:;≤≥".chars() {
            assert!(FACE.glyph_index(letter).is_some(), "{letter:?} is missing");
        }
        assert!(width("iiii", 10.0) < width("mmmm", 10.0));
    }
}
