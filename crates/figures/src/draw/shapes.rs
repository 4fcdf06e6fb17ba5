//! What a picture is made of.

/// A place on a picture, in its own units: right and down from the upper left.
pub type At = (f64, f64);

/// Red, green, blue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Colour(pub u8, pub u8, pub u8);

impl Colour {
    pub const INK: Self = Self(0x22, 0x22, 0x22);
    pub const PALE: Self = Self(0x66, 0x66, 0x66);
    pub const GRID: Self = Self(0xdd, 0xdd, 0xdd);
    pub const PAPER: Self = Self(0xff, 0xff, 0xff);
    /// Told apart by everybody, colour-blind or not (Okabe and Ito).
    const SERIES: [Self; 7] = [
        Self(0x00, 0x72, 0xb2),
        Self(0xd5, 0x5e, 0x00),
        Self(0x00, 0x9e, 0x73),
        Self(0xcc, 0x79, 0xa7),
        Self(0xe6, 0x9f, 0x00),
        Self(0x56, 0xb4, 0xe9),
        Self(0x55, 0x55, 0x55),
    ];

    /// The colour of a chart's series.
    pub fn of_series(at: usize) -> Self {
        Self::SERIES[at % Self::SERIES.len()]
    }
}

/// Which part of a text its place is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Anchor {
    Start,
    Middle,
    End,
}

/// Which way a text runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    Across,
    /// From below to above.
    Up,
}

/// One thing to draw.
#[derive(Clone, Debug, PartialEq)]
pub enum Shape {
    /// A line through points.
    Line { points: Vec<At>, colour: Colour, width: f64 },
    /// A filled area.
    Fill { points: Vec<At>, colour: Colour },
    /// A text; its place is on its base line.
    Text { at: At, text: String, size: f64, anchor: Anchor, colour: Colour, turn: Turn },
}

/// Shapes on white paper, later ones over earlier ones.
#[derive(Clone, Debug, PartialEq)]
pub struct Drawing {
    /// How wide it is.
    pub width: f64,
    /// How high it is.
    pub height: f64,
    pub(super) shapes: Vec<Shape>,
}

impl Drawing {
    pub fn new(width: f64, height: f64) -> Self {
        let mut drawing = Self { width, height, shapes: Vec::new() };
        drawing.rectangle((0.0, 0.0), (width, height), Colour::PAPER);
        drawing
    }

    pub fn line(&mut self, points: &[At], colour: Colour, width: f64) {
        self.shapes.push(Shape::Line { points: points.to_vec(), colour, width });
    }

    pub fn fill(&mut self, points: &[At], colour: Colour) {
        self.shapes.push(Shape::Fill { points: points.to_vec(), colour });
    }

    pub fn rectangle(&mut self, from: At, to: At, colour: Colour) {
        self.fill(&[from, (to.0, from.1), to, (from.0, to.1)], colour);
    }

    pub fn text(&mut self, at: At, text: &str, size: f64, anchor: Anchor, colour: Colour) {
        self.shapes.push(Shape::Text { at, text: text.to_owned(), size, anchor, colour, turn: Turn::Across });
    }

    pub fn text_up(&mut self, at: At, text: &str, size: f64, colour: Colour) {
        self.shapes.push(Shape::Text { at, text: text.to_owned(), size, anchor: Anchor::Middle, colour, turn: Turn::Up });
    }

    /// A small sign at a point: each series has its own, so that they are told apart without colours too.
    pub fn sign(&mut self, at: usize, (x, y): At, radius: f64) {
        let points: Vec<At> = match at % 5 {
            0 => (0..24).map(|step| f64::from(step) * std::f64::consts::TAU / 24.0).map(|turn| around((x, y), radius, turn)).collect(),
            1 => [0.125, 0.375, 0.625, 0.875].map(|part| around((x, y), radius * 1.2, part * std::f64::consts::TAU)).to_vec(),
            2 => [0.75, 0.083, 0.417].map(|part| around((x, y), radius * 1.3, part * std::f64::consts::TAU)).to_vec(),
            3 => [0.0, 0.25, 0.5, 0.75].map(|part| around((x, y), radius * 1.3, part * std::f64::consts::TAU)).to_vec(),
            _ => [0.25, 0.583, 0.917].map(|part| around((x, y), radius * 1.3, part * std::f64::consts::TAU)).to_vec(),
        };
        self.fill(&points, Colour::of_series(at));
    }
}

fn around((x, y): At, radius: f64, turn: f64) -> At {
    (x + radius * turn.cos(), y + radius * turn.sin())
}
