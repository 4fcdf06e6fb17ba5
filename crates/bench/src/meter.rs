//! Progress for people: drawn on standard error where that is a terminal, silent anywhere else.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// How often what is shown is drawn anew.
const DRAW_MS: u64 = 200;

/// A bar or a line that shows how far something is.
pub struct Meter(ProgressBar);

impl Meter {
    /// A bar that counts keys.
    pub(crate) fn keys(what: &'static str) -> Self {
        Self::bar(what, "{msg} [{wide_bar}] {human_pos}/{human_len} keys, {per_sec}, {eta} left")
    }

    /// A bar that counts bytes.
    pub(crate) fn bytes(what: &'static str) -> Self {
        Self::bar(what, "{msg} [{wide_bar}] {bytes}/{total_bytes}, {eta} left")
    }

    /// A line of text that changes.
    #[must_use]
    pub fn line() -> Self {
        Self::bar("", "{spinner} {msg}")
    }

    fn bar(what: &'static str, template: &str) -> Self {
        let bar = ProgressBar::new(0).with_message(what);
        bar.set_style(ProgressStyle::with_template(template).expect("the templates above are well-formed"));
        bar.enable_steady_tick(Duration::from_millis(DRAW_MS));
        Self(bar)
    }

    /// `done` of `total` are done.
    pub(crate) fn at(&self, done: u64, total: u64) {
        self.0.set_length(total);
        self.0.set_position(done);
    }

    /// Changes the text.
    pub fn say(&self, text: String) {
        self.0.set_message(text);
    }

    /// Takes it off the terminal.
    pub fn finish(&self) {
        self.0.finish_and_clear();
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        self.finish();
    }
}
