//! The book: `docs/` rendered as HTML by mdBook, and every link of the project's pages checked, also of those that are not
//! in the book: mdBook itself checks none.
//!
//! The output mirrors the repository (`docs/x.md` becomes `book/docs/x.html`), so that a link that holds on the
//! one side holds on the other. A linked file that is no page is copied to where the link points.

mod page;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use page::Page;

use crate::process::show;
use crate::workspace::{Workspace, cargo};

/// The mdBook that renders the book. It is a tool, not a dependency: nothing else is built with what it needs.
const MDBOOK: &str = "0.5.4";

/// The book's table of contents.
const SUMMARY: &str = "docs/SUMMARY.md";
/// Pages outside the book whose links are checked too.
const ROOT_PAGES: &[&str] = &["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"];

/// Renders the book into `target/book`; fails with every broken link there is.
pub fn run(workspace: &Workspace) -> Result<()> {
    let output = workspace.target.join("book");
    let book = Book::read(&workspace.root)?;
    let faults = book.check();
    for fault in &faults {
        eprintln!("book: {fault}");
    }
    if !faults.is_empty() {
        bail!("{} faults in the book", faults.len());
    }
    if output.exists() {
        fs::remove_dir_all(&output).with_context(|| format!("cannot empty {}", output.display()))?;
    }
    render(workspace, &output.join("docs"))?;
    book.copy_linked(&output)?;
    println!("book: {} pages, {} links hold: {}", book.pages.len(), book.links(), output.join("docs/index.html").display());
    Ok(())
}

/// Renders with mdBook, which is built the first time.
fn render(workspace: &Workspace, output: &Path) -> Result<()> {
    let tools = workspace.target.join("tools");
    let version = format!("mdbook@{MDBOOK}");
    show(Command::new(cargo()).args(["install", "--locked", "--debug", "--no-default-features", &version, "--root"]).arg(&tools))?;
    show(Command::new(tools.join("bin/mdbook")).arg("build").arg("--dest-dir").arg(output).arg(&workspace.root))
}

/// Every page, by its path from the root.
struct Book {
    root: PathBuf,
    pages: BTreeMap<PathBuf, Page>,
}

impl Book {
    fn read(root: &Path) -> Result<Self> {
        let mut paths: Vec<PathBuf> = ROOT_PAGES.iter().map(PathBuf::from).collect();
        find_pages(root, Path::new("docs"), &mut paths)?;
        let mut pages = BTreeMap::new();
        for path in paths {
            let text = fs::read_to_string(root.join(&path)).with_context(|| format!("cannot read {}", path.display()))?;
            pages.insert(path, Page::parse(&text));
        }
        Ok(Self { root: root.to_path_buf(), pages })
    }

    fn links(&self) -> usize {
        self.pages.values().map(|page| page.links.len()).sum()
    }

    /// What is wrong, a sentence each.
    fn check(&self) -> Vec<String> {
        let mut faults = Vec::new();
        for (path, page) in &self.pages {
            for link in &page.links {
                if let Err(fault) = self.check_link(path, &link.target) {
                    faults.push(format!("{}:{}: {fault}", path.display(), link.line));
                }
            }
        }
        let listed: BTreeSet<PathBuf> = self.summary().into_iter().collect();
        for path in self.pages.keys().filter(|path| path.starts_with("docs") && *path != Path::new(SUMMARY)) {
            if !listed.contains(path) {
                faults.push(format!("{}: {SUMMARY} does not list it", path.display()));
            }
        }
        if listed.len() != self.summary().len() {
            faults.push(format!("{SUMMARY}: it lists a page twice"));
        }
        faults
    }

    fn check_link(&self, from: &Path, target: &str) -> Result<(), String> {
        if is_external(target) {
            return Ok(());
        }
        let (file, anchor) = split_anchor(target);
        let path = resolve(from, file).ok_or_else(|| format!("`{target}` leaves the repository"))?;
        let Some(page) = self.pages.get(&path) else {
            let is_page = path.extension().is_some_and(|extension| extension == "md");
            return match anchor {
                None if !is_page && self.root.join(&path).is_file() => Ok(()),
                None if self.root.join(&path).is_dir() => Err(format!("`{target}` is a folder: name it in backquotes, or link a page")),
                _ => Err(format!("`{target}` is not there")),
            };
        };
        if from.starts_with("docs") && !path.starts_with("docs") {
            return Err(format!("`{target}` is a page that the book does not have: name it in backquotes"));
        }
        match anchor {
            Some(anchor) if !page.anchors.contains(anchor) => Err(format!("`{target}`: {} has no heading `#{anchor}`", path.display())),
            _ => Ok(()),
        }
    }

    /// The pages that the table of contents lists, in reading order.
    fn summary(&self) -> Vec<PathBuf> {
        let links = self.pages.get(Path::new(SUMMARY)).map(|page| page.links.as_slice()).unwrap_or_default();
        links.iter().filter_map(|link| resolve(Path::new(SUMMARY), split_anchor(&link.target).0)).collect()
    }

    /// Copies what pages of the book link to and mdBook leaves out: it lies outside `docs`.
    fn copy_linked(&self, output: &Path) -> Result<()> {
        for (path, page) in self.pages.iter().filter(|(path, _)| path.starts_with("docs")) {
            for link in page.links.iter().filter(|link| !is_external(&link.target)) {
                let linked = resolve(path, split_anchor(&link.target).0).context("a checked link stays in the repository")?;
                if !linked.starts_with("docs") {
                    write_file(&output.join(&linked), &fs::read(self.root.join(&linked))?)?;
                }
            }
        }
        Ok(())
    }
}

fn find_pages(root: &Path, folder: &Path, pages: &mut Vec<PathBuf>) -> Result<()> {
    let entries = fs::read_dir(root.join(folder)).with_context(|| format!("cannot list {}", folder.display()))?;
    for entry in entries {
        let entry = entry?;
        let path = folder.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            find_pages(root, &path, pages)?;
        } else if path.extension().is_some_and(|extension| extension == "md") {
            pages.push(path);
        }
    }
    Ok(())
}

fn write_file(path: &Path, bytes: &[u8]) -> Result<()> {
    let folder = path.parent().context("a file lies in a folder")?;
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    fs::write(path, bytes).with_context(|| format!("cannot write {}", path.display()))
}

fn is_external(target: &str) -> bool {
    ["https://", "http://", "mailto:"].iter().any(|scheme| target.starts_with(scheme))
}

fn split_anchor(target: &str) -> (&str, Option<&str>) {
    target.split_once('#').map_or((target, None), |(file, anchor)| (file, Some(anchor)))
}

/// The path from the root that `target`, written on the page `from`, names; `None` when it leaves the root.
fn resolve(from: &Path, target: &str) -> Option<PathBuf> {
    if target.is_empty() {
        return Some(from.to_path_buf());
    }
    let mut path = from.parent()?.to_path_buf();
    for component in Path::new(target).components() {
        match component {
            Component::Normal(part) => path.push(part),
            Component::CurDir => {}
            Component::ParentDir if path.pop() => {}
            _ => return None,
        }
    }
    Some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The faults of a book with these files besides the root pages, which are empty.
    fn faults(files: &[(&str, &str)]) -> Vec<String> {
        let root = tempfile::tempdir().expect("a temporary folder can be made");
        for page in ROOT_PAGES {
            write_file(&root.path().join(page), b"").expect("the folder is ours");
        }
        for (path, text) in files {
            write_file(&root.path().join(path), text.as_bytes()).expect("the folder is ours");
        }
        let book = Book::read(root.path()).expect("every page is there");
        let faults = book.check();
        if faults.is_empty() {
            book.copy_linked(&root.path().join("book")).expect("what a book without faults links to can be copied");
        }
        faults
    }

    #[test]
    fn a_whole_book_has_no_fault() {
        let found = faults(&[
            (SUMMARY, "- [One](one.md)\n- [Two](deep/two.md)\n"),
            ("docs/one.md", "# One\n\n[there](deep/two.md#the-end-of-it), [out](https://example.org/x.md)\n"),
            ("docs/deep/two.md", "# Two\n\n## The end, *of* it\n\n[back](../one.md) [up](#two) ![figure](figure.svg) [code](../../x.rs)\n"),
            ("docs/deep/figure.svg", "<svg/>"),
            ("x.rs", "fn main() {}"),
        ]);
        assert_eq!(found, Vec::<String>::new());
    }

    #[test]
    fn a_link_to_nowhere_is_a_fault() {
        let found = faults(&[(SUMMARY, "- [One](one.md)\n"), ("docs/one.md", "# One\n\n[gone](two.md)\n")]);
        assert_eq!(found, ["docs/one.md:3: `two.md` is not there"]);
    }

    #[test]
    fn a_page_of_the_book_links_no_page_outside() {
        let found = faults(&[(SUMMARY, "- [One](one.md)\n"), ("docs/one.md", "# One\n\n[home](../README.md)\n")]);
        assert_eq!(found, ["docs/one.md:3: `../README.md` is a page that the book does not have: name it in backquotes"]);
    }

    #[test]
    fn an_anchor_that_no_heading_makes_is_a_fault() {
        let found = faults(&[(SUMMARY, "- [One](one.md)\n"), ("docs/one.md", "# One\n\n[gone](#two)\n")]);
        assert_eq!(found, ["docs/one.md:3: `#two`: docs/one.md has no heading `#two`"]);
    }

    #[test]
    fn a_page_that_the_summary_leaves_out_is_a_fault() {
        let found = faults(&[(SUMMARY, "- [One](one.md)\n"), ("docs/one.md", "# One\n"), ("docs/two.md", "# Two\n")]);
        assert_eq!(found, ["docs/two.md: docs/SUMMARY.md does not list it"]);
    }

    #[test]
    fn root_pages_are_checked_too_and_may_not_lead_out() {
        let files = [(SUMMARY, "- [One](one.md)\n"), ("docs/one.md", "# One\n"), ("README.md", "[a](docs/nine.md) [b](../x) [c](docs)\n")];
        let found = faults(&files);
        assert_eq!(found.len(), 3, "{found:?}");
        assert!(found.iter().all(|fault| fault.starts_with("README.md:1: ")), "{found:?}");
    }

    #[test]
    fn this_book_holds() {
        let workspace = Workspace::load().expect("cargo describes this workspace");
        let book = Book::read(&workspace.root).expect("every page can be read");
        assert_eq!(book.check(), Vec::<String>::new());
    }
}
