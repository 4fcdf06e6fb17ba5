//! From numbers to places, and which numbers to write at an axis.

/// About so many numbers stand at an axis.
const TICKS: f64 = 5.0;

/// How numbers are laid out along an axis.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scale {
    from: f64,
    to: f64,
    is_log: bool,
}

impl Scale {
    /// Even steps, from nothing to a round number at or above `most`.
    pub fn from_zero(most: f64) -> Self {
        let most = if most > 0.0 { most } else { 1.0 };
        let step = step(most);
        Self { from: 0.0, to: (most / step).ceil() * step, is_log: false }
    }

    /// Even steps between two numbers, with a little room on both sides.
    pub fn between(least: f64, most: f64) -> Self {
        let room = if most > least { (most - least) * 0.06 } else { 1.0 };
        Self { from: least - room, to: most + room, is_log: false }
    }

    /// Even factors between two positive numbers, with a little room on both sides.
    pub fn log(least: f64, most: f64) -> Self {
        Self { from: least / 1.15, to: most * 1.15, is_log: true }
    }

    /// How far along the axis a number is, from 0 to 1.
    pub fn part(self, number: f64) -> f64 {
        if self.is_log { (number / self.from).ln() / (self.to / self.from).ln() } else { (number - self.from) / (self.to - self.from) }
    }

    /// Round numbers to write at the axis.
    pub fn ticks(self) -> Vec<f64> {
        if self.is_log {
            return self.round_factors();
        }
        let step = step(self.to - self.from);
        let first = (self.from / step).ceil();
        let count = ((self.to - self.from) / step).floor() as u32 + 1;
        let all = (0..=count).map(|at| (first + f64::from(at)) * step);
        all.filter(|tick| *tick >= self.from - step * 1e-9 && *tick <= self.to + step * 1e-9).collect()
    }

    fn round_factors(self) -> Vec<f64> {
        let decades = (self.from.log10().floor() as i32)..=(self.to.log10().ceil() as i32);
        let all: Vec<f64> = decades.flat_map(|power| [1.0, 2.0, 5.0].map(|digit| digit * 10f64.powi(power))).collect();
        let within: Vec<f64> = all.into_iter().filter(|tick| (self.from..=self.to).contains(tick)).collect();
        if within.len() > 9 { within.into_iter().filter(|tick| tick.log10().fract().abs() < 1e-9).collect() } else { within }
    }
}

/// A round step that cuts a length into about [`TICKS`] parts.
fn step(length: f64) -> f64 {
    let rough = length / TICKS;
    let power = 10f64.powf(rough.log10().floor());
    [1.0, 2.0, 2.5, 5.0, 10.0].into_iter().map(|digit| digit * power).find(|step| *step >= rough * 0.999).unwrap_or(10.0 * power)
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

    #[test]
    fn ticks_are_round_and_within() {
        assert_eq!(Scale::from_zero(8_657.0).ticks(), [0.0, 2_000.0, 4_000.0, 6_000.0, 8_000.0, 10_000.0]);
        assert_eq!(Scale::from_zero(0.9).ticks().len(), 6);
        assert_eq!(Scale::log(1.0, 64.0).ticks(), [1.0, 2.0, 5.0, 10.0, 20.0, 50.0]);
        assert_eq!(Scale::from_zero(0.0).ticks().first(), Some(&0.0));
        let scale = Scale::log(1.0, 100.0);
        assert!((scale.part(10.0) - 0.5).abs() < 1e-9);
    }

    #[test]
    fn numbers_are_written_for_people() {
        let written = [0.0, 0.25, 1.5, 12.0, 99.96, 1_234.5, 1_234_567.0, -20.0].map(number);
        assert_eq!(written, ["0", "0.25", "1.5", "12", "100", "1,234", "1,234,567", "-20"]);
    }
}
