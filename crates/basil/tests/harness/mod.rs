//! Plays scripts against real replicas and coordinators, and compares what happens with what stands in them.

pub mod chance;
mod clocks;
mod language;
mod lies;
pub mod members;
mod settings;
mod words;
mod world;

use std::path::PathBuf;

use language::Script;

/// Plays `tests/scripts/NAME.script` and compares. With `UPDATE_GOLDEN=1` it writes down what happened instead.
///
/// Lines that begin with `>` are commands; behind each stands what it led to. Lines that begin with `#`, and
/// empty ones, are for the reader.
#[allow(clippy::disallowed_methods, reason = "scripts are files, and only this reads them; the machines under test do no I/O")]
pub fn play(name: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/scripts").join(format!("{name}.script"));
    let expected = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("cannot read {}: {error}", path.display()));
    let actual = perform(&expected);
    if std::env::var("UPDATE_GOLDEN").is_ok_and(|value| value == "1") {
        std::fs::write(&path, actual).unwrap_or_else(|error| panic!("cannot write {}: {error}", path.display()));
        return;
    }
    if actual != expected {
        let mut report = String::new();
        for (at, line) in expected.lines().enumerate() {
            let other = actual.lines().nth(at).unwrap_or_default();
            if line != other {
                report = format!("line {}\n  expected: {line}\n  happened: {other}", at + 1);
                break;
            }
        }
        panic!("{name}.script tells another story, first in {report}\n\nall that happened:\n{actual}");
    }
}

/// Every script there is, by name.
#[allow(clippy::disallowed_methods, reason = "scripts are files, and only this reads them; the machines under test do no I/O")]
pub fn names() -> Vec<String> {
    let directory = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/scripts");
    let files = std::fs::read_dir(&directory).expect("the scripts lie there");
    let mut names: Vec<String> =
        files.filter_map(|file| file.ok()?.path().file_stem().and_then(|stem| Some(stem.to_str()?.to_owned()))).collect();
    names.sort();
    names
}

fn perform(text: &str) -> String {
    let mut script = Script::default();
    let mut out = String::new();
    for line in text.lines() {
        if let Some(command) = line.strip_prefix("> ") {
            out.push_str(line);
            out.push('\n');
            for result in script.obey(command) {
                out.push_str(&result);
                out.push('\n');
            }
        } else if line.is_empty() || line.starts_with('#') {
            out.push_str(line);
            out.push('\n');
        }
    }
    script.check_serial_order();
    out
}
