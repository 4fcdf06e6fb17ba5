//! All targets under libFuzzer. Which one is told by a variable of the environment, the rest by libFuzzer's own flags.

#![no_main]

use std::sync::OnceLock;

use fuzz::{TARGET_VARIABLE, Target, target};

static CHOSEN: OnceLock<&'static Target> = OnceLock::new();

fn chosen() -> &'static Target {
    CHOSEN.get_or_init(|| {
        let name = std::env::var(TARGET_VARIABLE).unwrap_or_default();
        target(&name).unwrap_or_else(|| panic!("set {TARGET_VARIABLE} to a target; `cargo xtask fuzz --list` knows them"))
    })
}

libfuzzer_sys::fuzz_target!(init: { chosen(); }, |bytes: &[u8]| (chosen().run)(bytes));
