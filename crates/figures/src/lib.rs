//! The figures of the papers that Bezant is built from, and some that no paper has, measured with the program itself.
//!
//! ```text
//! catalogue            runner                    results              page, draw
//! what each figure     makes clusters, starts    OUT/NAME.json:       OUT/NAME.svg, NAME.png,
//! runs, shows, and ──▶ them, runs `bezant   ───▶ every report as ───▶ a page with the numbers and
//! its paper says       bench` against them       it came              the paper's beside them
//! ```
//!
//! A figure is an entry of the [`catalogue`](Figure): clusters to make, workloads to run on them, how the numbers are shown,
//! and what the paper's text claims. Everything is run as a user would run it, by commands of the same program, and
//! each stands in the results; nothing here knows how the rest of Bezant is made. Runs of a figure's points alternate, so that
//! whatever else the machine does meets all of them alike, and each value has the spread of its runs beside it.
//!
//! Drawing and writing the page need the stored results only, and give the same from the same.

mod args;
mod catalogue;
pub mod draw;
mod machine;
mod page;
mod plan;
mod results;
mod runner;
mod show;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

pub use args::FiguresArgs;
pub use plan::Figure;
pub use runner::RunError;

use results::Results;
use runner::Runner;

/// Why figures could not be made.
#[derive(Debug, thiserror::Error)]
pub enum FiguresError {
    /// There is no such figure.
    #[error("there is no figure {name:?}; there are {known}")]
    Unknown {
        /// What was asked for.
        name: String,
        /// What there is.
        known: String,
    },
    /// Something could not be measured.
    #[error(transparent)]
    Run(#[from] RunError),
    /// A file cannot be read or written.
    #[error("{file}: {source}")]
    File {
        /// Which.
        file: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file of results is not one.
    #[error("{file} does not hold results that can be read here: {what}; measure them again")]
    Results {
        /// Which.
        file: String,
        /// What is wrong.
        what: String,
    },
    /// What was measured before was measured otherwise.
    #[error("{file} holds a {effort} run of {seconds} s and {keys} keys by {machine}: runs that differ cannot stand beside those")]
    Otherwise {
        /// Which.
        file: String,
        /// With how much effort.
        effort: String,
        /// How long each run was.
        seconds: f64,
        /// How many keys a table had.
        keys: u64,
        /// On which machine.
        machine: String,
    },
    /// All that could be done is done, but some runs failed.
    #[error("{runs} runs failed: the page says which and why; --again measures them anew")]
    Failed {
        /// How many.
        runs: usize,
    },
    /// A picture cannot be drawn.
    #[error(transparent)]
    Picture(#[from] draw::PictureError),
}

/// Does what `args` ask, with `program` for everything that is measured; tells `written` of each file. When `stop` turns true,
/// it ends as soon as it can, and what was measured by then is kept.
///
/// # Errors
/// [`FiguresError`] when a figure is not known, cannot be measured, or cannot be written, and when a run failed.
pub fn run(args: &FiguresArgs, program: &Path, stop: &AtomicBool, mut written: impl FnMut(&Path)) -> Result<(), FiguresError> {
    let all = catalogue::all(args.effort());
    let wanted = choose(&all, &args.only)?;
    fs::create_dir_all(&args.out).map_err(|source| FiguresError::File { file: args.out.display().to_string(), source })?;
    if !args.draw {
        measure(args, &wanted, program, stop)?;
    }
    let mut failed = 0;
    let mut measured = Vec::new();
    for figure in &all {
        // What was measured with less or more effort is drawn as what it was.
        let results = read(&results_file(&args.out, figure))?;
        if let Some(results) = &results
            && wanted.iter().any(|wanted| wanted.name == figure.name)
        {
            failed += results.failures();
            let svg = show::sheet(figure, results).svg()?;
            for (ending, bytes) in [("png", draw::png(&svg)?), ("svg", svg.into_bytes())] {
                let path = args.out.join(format!("{}.{ending}", figure.name));
                write(&path, &bytes)?;
                written(&path);
            }
        }
        measured.push((figure, results));
    }
    let path = args.page.clone().unwrap_or_else(|| args.out.join("reproduction.md"));
    write(&path, page::page(&measured, &pictures_from(&path, &args.out)).as_bytes())?;
    written(&path);
    if failed > 0 { Err(FiguresError::Failed { runs: failed }) } else { Ok(()) }
}

fn measure(args: &FiguresArgs, wanted: &[&Figure], program: &Path, stop: &AtomicBool) -> Result<(), FiguresError> {
    let mut runner = Runner::new(program, args, stop)?;
    // All are looked at first, so that nothing is measured in vain.
    let mut begun = Vec::new();
    for figure in wanted {
        let (path, fresh) = (results_file(&args.out, figure), runner.begin(figure));
        let before = if args.again { None } else { read(&path)? };
        if let Some(before) = before.as_ref().filter(|before| !before.is_like(&fresh)) {
            let (effort, machine) = (before.effort.clone(), before.machine.line());
            return Err(FiguresError::Otherwise {
                file: path.display().to_string(),
                effort,
                seconds: before.seconds,
                keys: before.keys,
                machine,
            });
        }
        begun.push((path, before.unwrap_or(fresh)));
    }
    for (at, (path, results)) in begun.into_iter().enumerate() {
        runner.measure(wanted[at], &wanted[at + 1..], results, |results| write(&path, results.to_json().as_bytes()))?;
    }
    Ok(())
}

/// All figures: their names, their titles, and about how many seconds measuring them takes with what `args` ask.
#[must_use]
pub fn list(args: &FiguresArgs) -> Vec<(&'static str, &'static str, f64)> {
    let effort = args.effort();
    catalogue::all(effort).iter().map(|figure| (figure.name, figure.title, figure.seconds(effort))).collect()
}

/// The figures asked for.
fn choose<'a>(all: &'a [Figure], asked: &[String]) -> Result<Vec<&'a Figure>, FiguresError> {
    let mut chosen = BTreeSet::new();
    for name in asked.iter().map(|name| name.trim()) {
        let ranks: Vec<Option<u8>> = all.iter().map(|figure| rank(figure.name, name)).collect();
        let Some(best) = ranks.iter().flatten().min() else {
            let known: Vec<&str> = all.iter().map(|figure| figure.name).collect();
            return Err(FiguresError::Unknown { name: name.to_owned(), known: known.join(", ") });
        };
        chosen.extend((0..all.len()).filter(|at| ranks[*at] == Some(*best)));
    }
    let is_chosen = |at: usize| asked.is_empty() || chosen.contains(&at);
    Ok(all.iter().enumerate().filter(|(at, _)| is_chosen(*at)).map(|(_, figure)| figure).collect())
}

/// How well a figure fits what was asked for, best first: it has this name or number; it is of this paper; it is a part
/// (`8` asks for 8a too); it has it as a part (`4b` is in 4).
fn rank(figure: &str, asked: &str) -> Option<u8> {
    let (paper, number) = figure.split_once('-')?;
    let is_other = |asked: &str| catalogue::others(figure).contains(&asked);
    let fits = [
        asked == number
            || asked == figure
            || is_other(asked)
            || asked.split_once('-').is_some_and(|(of, number)| of == paper && is_other(number)),
        asked == paper,
        !asked.is_empty() && number.starts_with(asked),
        asked.strip_prefix(number).is_some_and(|part| ["a", "b", "c"].contains(&part)),
    ];
    fits.iter().position(|fits| *fits).and_then(|at| u8::try_from(at).ok())
}

fn results_file(out: &Path, figure: &Figure) -> PathBuf {
    out.join(format!("{}.json", figure.name))
}

fn read(path: &Path) -> Result<Option<Results>, FiguresError> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(FiguresError::File { file: path.display().to_string(), source }),
    };
    let refused = |what: String| FiguresError::Results { file: path.display().to_string(), what };
    Results::from_json(&text).map(Some).map_err(refused)
}

/// Replaces a file as a whole: whoever is killed meanwhile leaves the old one.
fn write(path: &Path, bytes: &[u8]) -> Result<(), FiguresError> {
    let beside = path.with_extension("new");
    let written = fs::write(&beside, bytes).and_then(|()| fs::rename(&beside, path));
    written.map_err(|source| FiguresError::File { file: path.display().to_string(), source })
}

/// Where the pictures in `out` are, seen from the page.
fn pictures_from(page: &Path, out: &Path) -> String {
    let folder = page.parent().unwrap_or(Path::new(""));
    let way = out.strip_prefix(folder).unwrap_or(out).display().to_string();
    if way.is_empty() { String::new() } else { format!("{way}/") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_chosen_by_name_number_or_paper() {
        let all = catalogue::all(plan::Effort::QUICK);
        let names = |asked: &[&str]| {
            let asked: Vec<String> = asked.iter().map(|name| (*name).to_owned()).collect();
            choose(&all, &asked).map(|chosen| chosen.iter().map(|figure| figure.name).collect::<Vec<_>>())
        };
        assert_eq!(names(&["basil-5a"]).expect("it is there"), ["basil-5a"]);
        assert_eq!(names(&["7b", "5a", "7a", "5a"]).expect("they are there"), ["basil-5a", "basil-7a", "basil-7b"]);
        assert_eq!(
            names(&["4b", "5", "8"]).expect("they are there"),
            ["basil-4", "cataphract-5", "cataphract-8a", "cataphract-8b", "cataphract-8c", "augustus-5"]
        );
        assert_eq!(names(&["basil", "cataphract", "augustus", "bezant", "sentinel"]).expect("they are there").len(), all.len());
        assert_eq!(names(&["sentinel-5.4", "5.10"]).expect("they are parts of others"), ["sentinel-5.2", "sentinel-5.7"]);
        assert_eq!(names(&[]).expect("all").len(), all.len());
        for unknown in ["nonsense", "9", ""] {
            assert!(names(&[unknown]).is_err(), "{unknown:?}");
        }
        assert!(names(&["nonsense"]).expect_err("it is not there").to_string().contains("basil-5a"));
    }

    #[test]
    fn a_page_finds_its_pictures() {
        assert_eq!(pictures_from(Path::new("docs/reproduction.md"), Path::new("docs/figures")), "figures/");
        assert_eq!(pictures_from(Path::new("figures/reproduction.md"), Path::new("figures")), "");
    }
}
