//! Which modules of a crate use one another in a circle. Where none do, a crate can be read from its leaves up.
//!
//! What counts is the modules at a crate's root, each with all that lies below it: parent and child may use one another.

use std::collections::{BTreeMap, BTreeSet};

/// For each module at the root, those that it uses.
type Uses = BTreeMap<String, BTreeSet<String>>;

/// A circle among the modules of a crate's files: the names of the modules, each of which uses the next, and the last the first.
pub fn circle(files: &[(String, String)]) -> Option<Vec<String>> {
    let mut uses = Uses::new();
    let shown = files.iter().find(|(file, _)| file == "src/lib.rs").map(|(_, text)| shown_at_root(text)).unwrap_or_default();
    for (file, text) in files {
        let Some(module) = module(file) else { continue };
        let is_at_root = file.matches('/').count() == 1;
        let used = used(text, is_at_root).into_iter().map(|name| shown.get(&name).cloned().unwrap_or(name)).filter(|other| other != module);
        uses.entry(module.to_owned()).or_default().extend(used);
    }
    // Whoever uses nobody is in no circle, nor is who only uses such: what is left at the end is in one, or leads to one.
    while let Some(leaf) = uses.iter().find(|(_, used)| used.iter().all(|other| !uses.contains_key(other))) {
        let leaf = leaf.0.clone();
        uses.remove(&leaf);
    }
    let mut way: Vec<&String> = vec![uses.keys().next()?];
    loop {
        let next = uses[*way.last()?].iter().find(|other| uses.contains_key(*other))?;
        if let Some(begin) = way.iter().position(|one| *one == next) {
            return Some(way[begin..].iter().map(|one| (*one).clone()).collect());
        }
        way.push(next);
    }
}

/// The module at the crate's root to which a file belongs: none where it is the root itself, or tests.
fn module(file: &str) -> Option<&str> {
    let path = file.strip_prefix("src/")?.strip_suffix(".rs")?;
    let is_tests = path.split('/').any(|part| part == "tests");
    let module = path.split('/').next()?;
    (!is_tests && !["lib", "main"].contains(&module)).then_some(module)
}

/// Whose is what the root shows of its modules, by name: `pub use module::Name;`.
fn shown_at_root(text: &str) -> BTreeMap<String, String> {
    let code = code_of(text);
    let uses = code.split(';').filter_map(|statement| statement.trim_start().strip_prefix("pub use ")?.split_once("::"));
    let words = |list: &str| list.split(|letter: char| !is_of_name(letter)).map(str::to_owned).collect::<Vec<_>>();
    uses.flat_map(|(module, list)| words(list).into_iter().map(move |name| (name, module.to_owned()))).collect()
}

/// What a file names at the crate's root: by `crate::`, and in a file at the root also by `super::`. Its tests may name anything.
fn used(text: &str, is_at_root: bool) -> BTreeSet<String> {
    let code = code_of(text);
    let name = |path: &str| path.trim_start().chars().take_while(|letter| is_of_name(*letter)).collect::<String>();
    let mut found = BTreeSet::new();
    for prefix in ["crate::", "super::"].iter().take(if is_at_root { 2 } else { 1 }) {
        for (at, prefix) in code.match_indices(prefix) {
            let rest = &code[at + prefix.len()..];
            match rest.strip_prefix('{') {
                Some(list) => found.extend(first_level(list).into_iter().map(name)),
                None => {
                    found.insert(name(rest));
                }
            }
        }
    }
    found
}

fn is_of_name(letter: char) -> bool {
    letter.is_alphanumeric() || letter == '_'
}

/// A file's text without its tests and comments.
fn code_of(text: &str) -> String {
    let code = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
    code.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

/// The parts of a list in braces, without those of lists inside it.
fn first_level(list: &str) -> Vec<&str> {
    let (mut depth, mut begin, mut parts) = (0, 0, Vec::new());
    for (at, letter) in list.char_indices() {
        match letter {
            '{' => depth += 1,
            '}' if depth == 0 => {
                parts.push(&list[begin..at]);
                break;
            }
            '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&list[begin..at]);
                begin = at + 1;
            }
            _ => {}
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Option<Vec<String>> {
        circle(&files.iter().map(|(file, text)| ((*file).to_owned(), (*text).to_owned())).collect::<Vec<_>>())
    }

    #[test]
    fn modules_that_use_one_another_are_found_however_they_are_named() {
        assert_eq!(found(&[("src/a.rs", "use crate::b::B;"), ("src/b.rs", "use crate::c::{C, D};"), ("src/c.rs", "")]), None);
        let circle = ["a", "b"].map(str::to_owned).to_vec();
        for back in ["use crate::a::A;", "use crate::{x::{a, b}, a::{A, C}};", "fn f() { crate::a::g() }", "pub(crate) use crate::a;"] {
            let files = [("src/a/inner.rs", "use crate::b::B;"), ("src/b.rs", back), ("src/lib.rs", "use crate::a::A;")];
            assert_eq!(found(&files), Some(circle.clone()), "{back}");
        }
        let shown =
            [("src/a.rs", "use crate::B;"), ("src/b.rs", "use super::a::A;"), ("src/lib.rs", "mod a;\nmod b;\npub use b::{B, C};\n")];
        assert_eq!(found(&shown), Some(circle));
        let longer = found(&[("src/a.rs", "use crate::b;"), ("src/b.rs", "use crate::c;"), ("src/c.rs", "use crate::b;")]);
        assert_eq!(longer, Some(["b", "c"].map(str::to_owned).to_vec()));
    }

    #[test]
    fn tests_and_comments_may_name_any_module_and_a_module_its_own_parts() {
        let tests = "fn a() {}\n#[cfg(test)]\nmod tests {\n use crate::a;\n}\n";
        let files = [("src/a.rs", "use crate::a::inner; use crate::b::B;"), ("src/b.rs", tests), ("src/b/tests.rs", "use crate::a;")];
        assert_eq!(found(&files), None);
        assert_eq!(found(&[("src/a.rs", "use crate::b;"), ("src/b.rs", "// As crate::a does.\n")]), None);
    }
}
