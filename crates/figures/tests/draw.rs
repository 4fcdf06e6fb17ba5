//! Drawing, and writing the page, from results that were kept: of a small run on real processes (`tests/kept`), and those that
//! the book shows.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use clap::Parser;
use figures::{FiguresArgs, FiguresError};
use resvg::tiny_skia::Pixmap;
use tempfile::TempDir;

#[derive(Parser)]
struct Program {
    #[command(flatten)]
    args: FiguresArgs,
}

/// Draws into `out`; nothing there is that could measure.
fn draw(out: &Path, more: &[&str]) -> Result<Vec<PathBuf>, FiguresError> {
    let out = out.display().to_string();
    let line = ["figures", "--draw", "--out", &out];
    let args = Program::try_parse_from(line.iter().chain(more)).expect("arguments").args;
    let mut written = Vec::new();
    figures::run(&args, Path::new("/nowhere/bezant"), &AtomicBool::new(false), |path| written.push(path.to_path_buf()))?;
    Ok(written)
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A copy of the results in `from`.
fn copy(from: &Path) -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for entry in fs::read_dir(from).into_iter().flatten() {
        let path = entry.expect("it can be listed").path();
        if path.extension().is_some_and(|ending| ending == "json") {
            fs::copy(&path, folder.path().join(path.file_name().expect("a file"))).expect("copied");
        }
    }
    folder
}

fn text(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn what_was_kept_becomes_pictures_and_a_page_always_the_same() {
    let folder = copy(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kept"));
    let at = |name: &str| folder.path().join(name);
    let written = draw(folder.path(), &[]).expect("drawn");
    assert_eq!(written.len(), 3 * 2 + 1, "three figures as SVG and PNG, and the page: {written:?}");

    let svg = text(&at("basil-6a.svg"));
    for part in [
        "What the fast path brings",
        "fast path off",
        "RW-Z",
        "committed transactions a second",
        "2 runs of each point",
        "tables of 20,000 keys",
    ] {
        assert!(svg.contains(part), "{part} is missing in\n{svg}");
    }
    let svg = text(&at("basil-7b.svg"));
    for part in [
        "stall-early",
        "equiv-real",
        "faulty transactions, % of all processed",
        "tx/s of an honest client",
        "part of the clients that cheats",
    ] {
        assert!(svg.contains(part), "{part} is missing in\n{svg}");
    }
    let svg = text(&at("sentinel-5.2.svg"));
    for part in ["5.3: realtime detection", "requests that read, %", "requests a second", "ZooKeeper, CRC-32"] {
        assert!(svg.contains(part), "{part} is missing in\n{svg}");
    }
    for part in ["ZooKeeper, no digest", "tables of"] {
        assert!(!svg.contains(part), "{part} is neither measured nor used\n{svg}");
    }
    let picture = Pixmap::load_png(at("basil-6a.png")).expect("a PNG");
    let dark = picture.pixels().iter().filter(|pixel| pixel.red() < 128).count();
    assert!(picture.width() > 1_000 && dark > 5_000, "{} wide, {dark} dark", picture.width());

    let page = text(&at("reproduction.md"));
    for part in [
        "![What the fast path brings](basil-6a.svg)",
        "| throughput with the fast path, RW-U | +19 % | ",
        "`rw-u --keys 20000 --clients 128 --seconds ",
        "`fast_path = \"off\"`",
        "2 runs of each point, in turns",
        "Not measured yet: `bezant-lab figures --only cataphract-7`.",
        "| 0 % reads | 20 / -15 | 15 / – |",
        "`--reads 100 --bytes 1024 --clients 30 --outstanding 100 --nodes 1 --seconds 1` | `bezant.digest=off` `dataDir on ",
    ] {
        assert!(page.contains(part), "{part} is missing in\n{page}");
    }
    let before: Vec<Vec<u8>> = written.iter().map(|path| fs::read(path).expect("written")).collect();
    draw(folder.path(), &[]).expect("drawn");
    let after: Vec<Vec<u8>> = written.iter().map(|path| fs::read(path).expect("written")).collect();
    assert_eq!(before, after);
}

#[test]
fn results_that_are_none_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("basil-5a.json"), "{\"format\": 1}").expect("written");
    let said = draw(folder.path(), &[]).expect_err("refused").to_string();
    assert!(said.contains("basil-5a.json") && said.contains("measure them again"), "{said}");
    assert!(matches!(draw(folder.path(), &["--only", "12"]), Err(FiguresError::Unknown { .. })));
}

#[test]
fn the_book_shows_what_was_measured() {
    let book = root().join("docs/figures");
    let folder = copy(&book);
    let pictures = folder.path().join("figures");
    fs::create_dir(&pictures).expect("made");
    for entry in fs::read_dir(folder.path()).expect("listed") {
        let path = entry.expect("listed").path();
        if path.is_file() {
            fs::rename(&path, pictures.join(path.file_name().expect("a file"))).expect("moved");
        }
    }
    let page = folder.path().join("reproduction.md");
    // Runs that failed are on the page, and no fault of drawing.
    let written = match draw(&pictures, &["--page", &page.display().to_string()]) {
        Err(FiguresError::Failed { .. }) => fs::read_dir(&pictures).expect("listed").map(|entry| entry.expect("listed").path()).collect(),
        drawn => drawn.expect("drawn"),
    };
    let stale = "differs from what the results in docs/figures give: run `bezant-lab figures --draw --out docs/figures --page docs/reproduction.md`";
    assert!(text(&page) == text(&root().join("docs/reproduction.md")), "docs/reproduction.md {stale}");
    for path in written.iter().filter(|path| path.extension().is_some_and(|ending| ending == "svg")) {
        let name = path.file_name().expect("a file");
        assert!(text(path) == text(&book.join(name)), "docs/figures/{} {stale}", name.display());
    }
}
