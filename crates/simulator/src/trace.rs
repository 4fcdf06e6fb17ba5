//! What happened, as people can read it; and a fingerprint of it that costs next to nothing.

use std::fmt::Write as _;

use crate::clock::EPOCH_NS;

/// Whether a run writes down what happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tracing {
    /// Every event as a line.
    On,
    /// Only the fingerprint.
    Off,
}

/// The trace of one run.
#[derive(Debug)]
pub struct Trace {
    lines: Option<String>,
    fingerprint: u64,
    events: u64,
}

impl Trace {
    pub(crate) fn new(tracing: Tracing) -> Self {
        Self { lines: (tracing == Tracing::On).then(String::new), fingerprint: 0xcbf2_9ce4_8422_2325, events: 0 }
    }

    /// Notes that something of `kind` happened at the true time `now`: two runs that are alike have noted the same.
    pub(crate) fn mark(&mut self, now: u64, kind: u64) {
        self.events += 1;
        for word in [now, kind] {
            self.fingerprint = (self.fingerprint ^ word).wrapping_mul(0x100_0000_01b3).rotate_left(29);
        }
    }

    /// Writes a line, if anybody wants to read it.
    pub(crate) fn line(&mut self, now: u64, what: impl FnOnce() -> String) {
        if let Some(lines) = &mut self.lines {
            let microseconds = (now - EPOCH_NS) / 1_000;
            let (seconds, rest) = (microseconds / 1_000_000, microseconds % 1_000_000);
            writeln!(lines, "{seconds:>4}.{rest:06} {}", what()).expect("writing to a string does not fail");
        }
    }

    pub(crate) fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    pub(crate) fn events(&self) -> u64 {
        self.events
    }

    pub(crate) fn into_lines(self) -> Option<String> {
        self.lines
    }
}
