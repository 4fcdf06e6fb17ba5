//! Which layers may depend on one another.
//!
//! The workspace has pure protocol machines in the middle, one thin shell around them, and a simulator
//! that is a second shell. Cargo allows any dependency; these rules do not. A breach is a sentence that
//! says what is wrong and what to do.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::LazyLock;

use anyhow::{Context, Result, bail};

use crate::circles;
use crate::workspace::{Kind, Member, Workspace};

/// What kind of layer a crate is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Nature {
    /// State and rules only: no I/O, no clock, no threads, no randomness, so that the simulator can replay it.
    Pure,
    /// Not pure, but run by the simulator all the same, so that it must not reach the real shell.
    Simulated,
    /// Anything else.
    Shell,
}

struct Layer {
    name: &'static str,
    nature: Nature,
    may_depend_on: Vec<&'static str>,
}

/// Every layer, inner ones first: its nature, its name, and the layers that it may depend on. A crate that is not here has none
/// yet: give it one, and say in `ARCHITECTURE.md` what it is.
const TABLE: &str = "
pure      mutants:
pure      types:
pure      crypto: mutants types machine
pure      machine: mutants types
pure      engine: types machine
pure      random:
pure      jute:
simulated store: mutants types
pure      basil: mutants types crypto machine engine store
pure      cataphract: types machine engine basil
pure      augustus: mutants types crypto machine engine store
pure      sentinel: mutants types crypto machine engine store jute
pure      adversary: types crypto machine engine random basil
pure      toy: types crypto machine engine store
shell     runtime: mutants types crypto machine
shell     config: types crypto machine engine runtime
shell     client: types crypto machine engine runtime config
shell     bezant-client: types random engine basil cataphract augustus sentinel adversary client config
shell     monitoring: runtime
shell     buzzer-model: types client
shell     workload: types client buzzer-model
shell     backup: types client
simulated simulator: types crypto machine random store
simulated capacity: types crypto machine engine random store simulator
simulated conformance: mutants types crypto machine engine random store jute simulator capacity basil augustus sentinel adversary
shell     sql: types client
shell     zookeeper: types crypto machine engine store jute sentinel runtime monitoring
shell     console: types client
shell     bench: jute client bezant-client config workload monitoring
shell     figures:
shell     bezant: mutants types crypto machine store basil augustus sentinel runtime monitoring engine \
              client bezant-client config backup sql zookeeper console bench
shell     bezant-lab: types crypto basil runtime bezant-client config random simulator conformance capacity figures bezant
shell     fuzz: types crypto machine store jute basil augustus sentinel runtime monitoring engine client bezant-client \
              config workload
shell     examples: bezant-client
shell     buzzer: bezant-client buzzer-model
shell     xtask: mutants
";

static LAYERS: LazyLock<Vec<Layer>> = LazyLock::new(|| {
    let layer = |line: &'static str| {
        let (head, others) = line.split_once(':').expect("a colon follows a layer's name");
        let (nature, name) = head.split_once(' ').expect("a layer's nature stands before its name");
        let nature = match nature {
            "pure" => Nature::Pure,
            "simulated" => Nature::Simulated,
            "shell" => Nature::Shell,
            other => panic!("`{other}` is no nature of a layer"),
        };
        Layer { name: name.trim(), nature, may_depend_on: others.split_whitespace().collect() }
    };
    TABLE.lines().filter(|line| !line.is_empty()).map(layer).collect()
});

/// What no pure layer may be linked with, however indirectly, and why.
const BANNED_FROM_REACH: &[(&str, &str)] = &[
    ("tokio", "a machine is stepped; it never waits"),
    ("mio", "a machine does no I/O"),
    ("async-std", "a machine is stepped; it never waits"),
    ("smol", "a machine is stepped; it never waits"),
    ("rustls", "channels are the shell's business"),
    ("rayon", "a machine has no threads"),
];

/// What no pure layer may name itself, and why. Crates below it may have a use for these.
const BANNED_BY_NAME: &[(&str, &str)] = &[
    ("rand", "a machine has no randomness of its own: let it be handed in"),
    ("fastrand", "a machine has no randomness of its own: let it be handed in"),
    ("getrandom", "a machine has no randomness of its own: let it be handed in"),
    ("chrono", "a machine has no clock: its time is an argument"),
    ("futures", "a machine is stepped; it never waits"),
    ("crossbeam-channel", "a machine has no threads"),
];

/// The one exception: `crypto` draws secret keys, and the weights by which it checks many signatures at once; never in a step.
const DRAWS_KEYS: (&str, &str) = ("crypto", "getrandom");

/// The crates of engines. Everybody else uses the engine interface, `engine`.
const ENGINES: &[&str] = &["basil", "cataphract", "augustus", "sentinel"];

/// Who may name an engine: engines, the wiring, and what tries and measures engines. Of a crate with a list of files, only those may.
const MAY_NAME_ENGINES: &[(&str, &[&str])] = &[
    ("basil", &[]),
    ("cataphract", &[]),
    ("augustus", &[]),
    ("sentinel", &[]),
    ("bezant-client", &[]),
    // The test tells real replicas lies, in the words of their engine.
    ("bezant", &["src/node/wiring.rs", "tests/evidence.rs"]),
    ("adversary", &[]),
    ("conformance", &[]),
    ("bezant-lab", &[]),
    ("figures", &[]),
    ("fuzz", &[]),
    // A rule that can be broken is an engine's, and is named by its paper.
    ("mutants", &["src/lib.rs"]),
    // The server of Sentinel's own protocol: there is no other engine behind it.
    ("zookeeper", &[]),
    ("xtask", &["src/mutants.rs", "src/rules.rs", "src/smoke.rs"]),
];

/// The crate of clients that cheat.
const CHEATS: &str = "adversary";

/// What must not even be linked with an engine, or with clients that cheat, however indirectly.
const WITHOUT_ENGINES: &[&str] =
    &["engine", "runtime", "config", "client", "workload", "backup", "monitoring", "simulator", "capacity", "toy"];

/// The crates in which no modules use one another in a circle.
const WITHOUT_CIRCLES: &[&str] = &["basil", "cataphract", "augustus", "toy"];

/// The most lines that a Rust file may have: more cannot be read in one sitting.
const LINES_MAX: usize = 1_000;

/// The file whose copies hold every pure layer to the same bans of methods and types.
const PURE_LINTS: &str = "clippy.toml";

/// The program that has all of a crate's tests outside `src`, each file as a module.
const ALL_TESTS: &str = "tests/all.rs";

/// Checks the workspace; fails with every breach there is.
pub fn run(workspace: &Workspace) -> Result<()> {
    let page = read_reasons(workspace)?;
    let reasons = reasons(&page);
    let breaches = check_all(workspace, &page);
    if breaches.is_empty() {
        println!("rules: {} crates keep to their layers, {} dependencies have their reasons", workspace.members.len(), reasons.len());
        return Ok(());
    }
    for breach in &breaches {
        eprintln!("rules: {breach}");
    }
    bail!("{} breaches of the rules", breaches.len())
}

fn check_all(workspace: &Workspace, page: &str) -> Vec<String> {
    let mut breaches = check(workspace, &reasons(page));
    breaches.extend(check_users(workspace, page));
    breaches.extend(check_allowances(workspace));
    breaches.extend(check_pure_lints(workspace));
    breaches.extend(check_engine_names(workspace, &|folder| sources(folder)));
    breaches.extend(check_lengths(workspace, &|folder| sources(folder)));
    breaches.extend(check_tests_run(workspace, &|folder| sources(folder)));
    breaches.extend(check_circles(workspace, &|folder| sources(folder)));
    let manifest = fs::read_to_string(workspace.root.join("Cargo.toml")).unwrap_or_default();
    breaches.extend(check_offers(workspace, &manifest));
    breaches.extend(check_drawing(workspace, &fs::read_to_string(workspace.root.join("ARCHITECTURE.md")).unwrap_or_default()));
    breaches
}

fn read_reasons(workspace: &Workspace) -> Result<String> {
    let page = workspace.root.join("docs/dependencies.md");
    fs::read_to_string(&page).with_context(|| format!("cannot read {}", page.display()))
}

/// The dependencies that have a reason.
fn reasons(page: &str) -> BTreeSet<String> {
    rows(page).map(|(name, _)| name.to_owned()).collect()
}

/// The first cell, in backquotes, of each row of a table, and the second.
fn rows(page: &str) -> impl Iterator<Item = (&str, &str)> {
    page.lines().filter_map(|line| {
        let (name, rest) = line.trim().strip_prefix("| `")?.split_once("` |")?;
        Some((name, rest.split('|').next()?.trim()))
    })
}

/// Rows of the page that name other crates than use the dependency.
fn check_users(workspace: &Workspace, page: &str) -> Vec<String> {
    let mut breaches = Vec::new();
    for (name, users) in rows(page) {
        let uses = |member: &Member, kind| member.dependencies.iter().any(|to| to.name == name && to.kind == kind);
        let (code, rest): (Vec<_>, Vec<_>) = workspace.members.iter().partition(|(_, member)| uses(member, Kind::Normal));
        let list = |members: Vec<(&String, &Member)>| members.into_iter().map(|(who, _)| who.as_str()).collect::<Vec<_>>().join(", ");
        let tests = list(rest.into_iter().filter(|(_, member)| uses(member, Kind::Development)).collect());
        let tests = if tests.is_empty() { tests } else { format!("tests of {tests}") };
        let all: Vec<String> = [list(code), tests].into_iter().filter(|part| !part.is_empty()).collect();
        if users != all.join("; ") {
            breaches.push(format!("docs/dependencies.md says that `{name}` is used by \"{users}\": write \"{}\"", all.join("; ")));
        }
    }
    breaches
}

fn check(workspace: &Workspace, reasons: &BTreeSet<String>) -> Vec<String> {
    let mut breaches = Vec::new();
    let mut external = BTreeSet::new();
    for (name, member) in &workspace.members {
        for dependency in &member.dependencies {
            if !workspace.members.contains_key(&dependency.name) {
                external.insert(dependency.name.clone());
            }
        }
        match LAYERS.iter().find(|layer| layer.name == name) {
            Some(layer) => check_layer(workspace, layer, member, &mut breaches),
            None => breaches.push(format!("`{name}` has no layer: give it one in xtask/src/rules.rs and in ARCHITECTURE.md")),
        }
    }
    for name in external.difference(reasons) {
        breaches.push(format!("`{name}` has no reason in docs/dependencies.md: give it one, or do without it"));
    }
    for name in reasons.difference(&external) {
        breaches.push(format!("docs/dependencies.md has a reason for `{name}`, which nobody depends on: take the row out"));
    }
    breaches
}

fn check_layer(workspace: &Workspace, layer: &Layer, member: &Member, breaches: &mut Vec<String>) {
    let name = layer.name;
    for dependency in &member.dependencies {
        let to = dependency.name.as_str();
        let ours = workspace.members.contains_key(to);
        if ours && dependency.kind == Kind::Normal && !layer.may_depend_on.contains(&to) {
            let known = if layer.may_depend_on.is_empty() { "nobody".to_owned() } else { layer.may_depend_on.join(", ") };
            breaches.push(format!("`{name}` may not depend on `{to}`; it may depend on {known}"));
        }
        if ours && dependency.kind == Kind::Development && layer.nature != Nature::Shell && is_shell(to) {
            breaches.push(format!("`{name}` may not depend on `{to}`, not even in its tests: they must replay, and `{to}` cannot"));
        }
        if layer.nature == Nature::Pure
            && let Some((_, why)) = BANNED_BY_NAME.iter().chain(BANNED_FROM_REACH).find(|(banned, _)| *banned == to)
            && DRAWS_KEYS != (name, to)
        {
            breaches.push(format!("`{name}` is pure and may not depend on `{to}`: {why}"));
        }
    }
    if layer.nature != Nature::Shell {
        for (banned, why) in BANNED_FROM_REACH.iter().filter(|(banned, _)| member.reach.contains(*banned)) {
            breaches.push(format!("`{name}` reaches `{banned}` through what it depends on: {why}"));
        }
    }
}

/// What a layer may depend on and does not, though both are there: then the table says less of the code than it could.
fn check_allowances(workspace: &Workspace) -> Vec<String> {
    let mut breaches = Vec::new();
    for layer in LAYERS.iter() {
        let Some(member) = workspace.members.get(layer.name) else { continue };
        let takes = |to: &str| member.dependencies.iter().any(|dependency| dependency.name == to && dependency.kind == Kind::Normal);
        for idle in layer.may_depend_on.iter().filter(|to| workspace.members.contains_key(**to) && !takes(to)) {
            breaches.push(format!("`{}` may depend on `{idle}` and does not: take that out of xtask/src/rules.rs", layer.name));
        }
    }
    breaches
}

fn is_shell(name: &str) -> bool {
    LAYERS.iter().any(|layer| layer.name == name && layer.nature == Nature::Shell)
}

/// What the root manifest offers and nobody takes: cargo does not notice.
fn check_offers(workspace: &Workspace, manifest: &str) -> Vec<String> {
    let is_taken = |name: &str| {
        let dependencies = workspace.members.values().flat_map(|member| &member.dependencies);
        LAYERS.iter().any(|layer| layer.name == name) || dependencies.into_iter().any(|dependency| dependency.name == name)
    };
    let section = manifest.lines().skip_while(|line| *line != "[workspace.dependencies]").skip(1);
    let offers = section.take_while(|line| !line.starts_with('[')).filter_map(|line| line.split_once(" =")).map(|(name, _)| name);
    let idle = offers.filter(|name| !name.starts_with('#') && !is_taken(name));
    idle.map(|name| format!("the root Cargo.toml offers `{name}`, which nobody takes: take the line out")).collect()
}

/// What the drawing of the layers says otherwise: there a crate depends only on crates in the lines below its own.
fn check_drawing(workspace: &Workspace, page: &str) -> Vec<String> {
    let drawing = page.split("```").skip(1).step_by(2).find(|block| block.contains("the laboratory")).unwrap_or_default();
    let line_of = |name: &str| drawing.lines().position(|line| line.split([' ', ',']).any(|word| word == name));
    let mut breaches = Vec::new();
    for (name, member) in &workspace.members {
        let normal = member.dependencies.iter().filter(|dependency| dependency.kind == Kind::Normal);
        for to in normal.filter(|dependency| workspace.members.contains_key(&dependency.name)) {
            match (line_of(name), line_of(&to.name)) {
                (_, None) => breaches.push(format!("ARCHITECTURE.md does not draw `{}`, on which `{name}` depends", to.name)),
                (Some(line), Some(below)) if below <= line => {
                    breaches.push(format!("ARCHITECTURE.md does not draw `{}` below `{name}`, which depends on it", to.name));
                }
                _ => {}
            }
        }
    }
    breaches
}

/// Every pure layer carries the same `clippy.toml`, because clippy reads only the nearest one.
fn check_pure_lints(workspace: &Workspace) -> Vec<String> {
    let read = |folder: &Path| fs::read_to_string(folder.join(PURE_LINTS)).ok();
    let Some(model) = workspace.members.get("types").and_then(|types| read(&types.folder)) else {
        return vec![format!("crates/types/{PURE_LINTS}, the model of every pure layer's, is not there")];
    };
    let pure = LAYERS.iter().filter(|layer| layer.nature == Nature::Pure);
    let strays = pure.filter(|layer| workspace.members.get(layer.name).is_some_and(|member| read(&member.folder).as_ref() != Some(&model)));
    strays.map(|layer| format!("`{0}` is pure: copy crates/types/{PURE_LINTS} to crates/{0}/{PURE_LINTS}", layer.name)).collect()
}

/// Who names an engine and may not: in its `Cargo.toml`, in its sources, or by what it is linked with.
fn check_engine_names(workspace: &Workspace, sources: &dyn Fn(&Path) -> Vec<(String, String)>) -> Vec<String> {
    let mut breaches = Vec::new();
    for (name, member) in &workspace.members {
        let files = MAY_NAME_ENGINES.iter().find(|(who, _)| who == name).map(|(_, files)| *files);
        let depends = |engine: &&&str| member.dependencies.iter().any(|dependency| dependency.name == **engine);
        if let Some(engine) = ENGINES.iter().find(depends).filter(|_| files.is_none()) {
            breaches.push(format!("`{name}` depends on `{engine}`: only wiring may; use the engine interface, `engine`"));
        }
        if WITHOUT_ENGINES.contains(&name.as_str()) {
            // Their tests may not link clients that cheat, either; who depends on an engine has been named.
            let takes_cheats = member.dependencies.iter().any(|dependency| dependency.name == CHEATS);
            let reaches = |banned: &&&str| member.reach.contains(**banned) || (takes_cheats && **banned == CHEATS);
            let found = ENGINES.iter().chain(&[CHEATS]).find(reaches);
            breaches.extend(found.map(|banned| format!("`{name}` reaches `{banned}` through what it depends on")));
        }
        if files.is_some_and(<[_]>::is_empty) {
            continue;
        }
        for (file, text) in sources(&member.folder) {
            // Tests of the program choose engines by name, as users do; code may not, nor may what it says to users of any engine.
            let may_spell = !file.starts_with("src/");
            let names = |line| names_engine(line).or_else(|| spells_engine(line).filter(|_| !may_spell));
            let named = text.lines().enumerate().find_map(|(at, line)| Some((at + 1, names(line)?)));
            if let Some((line, engine)) = named.filter(|_| !files.unwrap_or_default().contains(&file.as_str())) {
                breaches.push(format!("`{name}` names `{engine}` in {file}:{line}: only wiring may; use the engine interface, `engine`"));
            }
        }
    }
    breaches
}

/// Files that are too long.
fn check_lengths(workspace: &Workspace, sources: &dyn Fn(&Path) -> Vec<(String, String)>) -> Vec<String> {
    let mut breaches = Vec::new();
    for (name, member) in &workspace.members {
        for (file, text) in sources(&member.folder) {
            let lines = text.lines().count();
            if lines > LINES_MAX {
                breaches
                    .push(format!("`{name}` has {lines} lines in {file}, and no more than {LINES_MAX} are read in one sitting: split it"));
            }
        }
    }
    breaches
}

/// Modules that use one another in a circle, where none should.
fn check_circles(workspace: &Workspace, sources: &dyn Fn(&Path) -> Vec<(String, String)>) -> Vec<String> {
    let members = WITHOUT_CIRCLES.iter().filter_map(|name| Some((name, workspace.members.get(*name)?)));
    let circles = members.filter_map(|(name, member)| Some((name, circles::circle(&sources(&member.folder))?)));
    let breach = |(name, circle): (&&str, Vec<String>)| {
        let way = circle.join("` uses `");
        format!("in `{name}`, `{way}` uses `{}`: move what they share to a module of its own", circle[0])
    };
    circles.map(breach).collect()
}

/// Files of tests that no program has, where one program has all of a crate's.
fn check_tests_run(workspace: &Workspace, sources: &dyn Fn(&Path) -> Vec<(String, String)>) -> Vec<String> {
    let mut breaches = Vec::new();
    for (name, member) in &workspace.members {
        let sources = sources(&member.folder);
        let Some((_, all)) = sources.iter().find(|(file, _)| file == ALL_TESTS) else { continue };
        for (file, _) in &sources {
            let Some(module) = file.strip_prefix("tests/").and_then(|file| file.strip_suffix(".rs")).filter(|name| !name.contains('/'))
            else {
                continue;
            };
            if file != ALL_TESTS && !all.lines().any(|line| line == format!("mod {module};")) {
                breaches.push(format!("`{name}` does not run {file}: write `mod {module};` in {ALL_TESTS}"));
            }
        }
    }
    breaches
}

/// The engine whose crate a line of code uses. Comments may speak of engines.
fn names_engine(line: &str) -> Option<&'static str> {
    let code = line.split("//").next().unwrap_or_default();
    let uses = |engine: &&&str| {
        code.match_indices(**engine).any(|(at, _)| {
            let is_name = |other: char| other.is_alphanumeric() || "_>".contains(other);
            // A path may begin with colons.
            let before = code[..at].strip_suffix("::").filter(|before| !before.ends_with(is_name)).unwrap_or(&code[..at]);
            let is_first = before.chars().next_back().is_none_or(|before| !before.is_alphanumeric() && !"_:\"\\/.".contains(before));
            let after = &code[at + engine.len()..];
            is_first && (after.starts_with("::") || (code.contains("use ") && after.starts_with(" as ")))
        })
    };
    ENGINES.iter().find(uses).copied()
}

/// The engine whose name is a word of its own in a line of code, which is in a string: something may depend on which engine runs, or speak of
/// one to users of all. Examples of command lines may choose one. A name with a hyphen is another's: of a workload, or a folder.
fn spells_engine(line: &str) -> Option<&'static str> {
    let code = if line.trim_start().starts_with("//") { "" } else { line.split(" // ").next().unwrap_or_default() };
    let code = code.to_lowercase().replace("--engine ", "--engine-");
    let is_part = |other: char| other.is_alphanumeric() || "_-(".contains(other);
    let spells = |engine: &&&str| {
        code.match_indices(**engine).any(|(at, _)| {
            let (before, after) = (code[..at].chars().next_back(), code[at + engine.len()..].chars().next());
            !before.is_some_and(|other| is_part(other) || other == ':') && !after.is_some_and(is_part)
        })
    };
    ENGINES.iter().find(spells).copied()
}

/// The Rust files of a crate: their paths in it, and what they hold.
fn sources(folder: &Path) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(&next).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let name = path.strip_prefix(folder).unwrap_or(&path).display().to_string();
                found.extend(fs::read_to_string(&path).ok().map(|text| (name, text)));
            }
        }
    }
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::Dependency;

    /// What is wrong with a workspace of these crates, each `name -> dependency dependency*`, where a star marks
    /// what only tests use; everything external has a reason.
    fn breaches(crates: &[&str]) -> Vec<String> {
        let workspace = workspace(crates);
        let external: BTreeSet<String> =
            workspace.members.values().flat_map(|member| &member.dependencies).map(|to| to.name.clone()).collect();
        let reasons = external.into_iter().filter(|name| !workspace.members.contains_key(name)).collect();
        check(&workspace, &reasons)
    }

    fn workspace(crates: &[&str]) -> Workspace {
        let members = crates.iter().map(|line| {
            let (name, dependencies) = line.split_once("->").expect("written with an arrow");
            let dependencies = dependencies.split_whitespace().map(|word| match word.strip_suffix('*') {
                Some(name) => Dependency { name: name.to_owned(), kind: Kind::Development },
                None => Dependency { name: word.to_owned(), kind: Kind::Normal },
            });
            (name.trim().to_owned(), Member { dependencies: dependencies.collect(), ..Member::default() })
        });
        Workspace { root: "/".into(), target: "/target".into(), members: members.collect() }
    }

    #[test]
    fn a_valid_workspace_has_no_breach() {
        let house =
            ["types -> bytes", "crypto -> types getrandom", "machine -> types", "store -> types rustix", "basil -> types store proptest*"];
        assert_eq!(breaches(&house), Vec::<String>::new());
    }

    #[test]
    fn a_pure_layer_that_waits_is_a_breach() {
        let found = breaches(&["basil -> tokio"]);
        assert_eq!(found, ["`basil` is pure and may not depend on `tokio`: a machine is stepped; it never waits"]);
        assert_eq!(breaches(&["basil -> rand*"]).len(), 1, "nor may its tests: they must replay");
    }

    #[test]
    fn a_pure_layer_that_reaches_tokio_indirectly_is_a_breach() {
        let mut workspace = workspace(&["basil -> helper"]);
        workspace.members.get_mut("basil").expect("it was just made").reach.insert("tokio".into());
        let found = check(&workspace, &BTreeSet::from(["helper".to_owned()]));
        assert_eq!(found, ["`basil` reaches `tokio` through what it depends on: a machine is stepped; it never waits"]);
    }

    #[test]
    fn an_inner_layer_that_depends_on_an_outer_one_is_a_breach() {
        assert_eq!(breaches(&["bezant-client -> basil", "basil ->"]), Vec::<String>::new());
        let found = breaches(&["client ->", "basil -> client"]);
        assert_eq!(found, ["`basil` may not depend on `client`; it may depend on mutants, types, crypto, machine, engine, store"]);
    }

    #[test]
    fn an_allowance_that_nobody_uses_is_a_breach() {
        let idle = |crates: &[&str]| check_allowances(&workspace(crates));
        assert_eq!(idle(&["toy -> types", "types ->"]), Vec::<String>::new(), "what is not there yet cannot be used");
        let found = idle(&["toy -> types*", "types ->"]);
        assert_eq!(found, ["`toy` may depend on `types` and does not: take that out of xtask/src/rules.rs"]);
    }

    #[test]
    fn engines_do_not_depend_on_one_another_except_the_pool() {
        assert_eq!(breaches(&["basil ->", "augustus -> basil"]).len(), 1);
        assert_eq!(breaches(&["basil ->", "cataphract -> basil"]), Vec::<String>::new());
    }

    /// What the rule about engines' names says of a crate with these dependencies and one file.
    fn naming(line: &str, file: &str, text: &str) -> Vec<String> {
        check_engine_names(&workspace(&[line]), &|_| vec![(file.to_owned(), text.to_owned())])
    }

    #[test]
    fn who_names_an_engine_outside_the_wiring_is_a_breach() {
        let found = naming("client -> engine basil", "src/lib.rs", "");
        assert_eq!(found, ["`client` depends on `basil`: only wiring may; use the engine interface, `engine`"]);
        assert_eq!(naming("client -> basil*", "src/lib.rs", "").len(), 1, "nor in its tests");
        let found = naming("client -> engine", "src/pool.rs", "use engine::Pool;\nuse cataphract::Pool as Other;\n");
        assert_eq!(found, ["`client` names `cataphract` in src/pool.rs:2: only wiring may; use the engine interface, `engine`"]);
        assert_eq!(naming("client ->", "src/lib.rs", "// As basil::Session does.\nlet x = conformance::basil::X;\n"), Vec::<String>::new());
        assert_eq!(naming("bezant-client -> basil", "src/lib.rs", "use basil::Session;"), Vec::<String>::new());
    }

    #[test]
    fn code_that_depends_on_an_engines_name_is_a_breach() {
        let found = naming("bench -> client", "src/lib.rs", "\nif engine.name == \"augustus\" {");
        assert_eq!(found, ["`bench` names `augustus` in src/lib.rs:2: only wiring may; use the engine interface, `engine`"]);
        assert_eq!(naming("bench -> client", "src/lib.rs", "run(\"augustus-a\"); // not \"basil\""), Vec::<String>::new());
        assert_eq!(naming("bezant -> basil", "tests/cli.rs", "[\"--engine\", \"augustus\"]"), Vec::<String>::new());
        let found = naming("store -> types", "src/error.rs", "    \"A replica of Basil that is started again\",");
        assert_eq!(found, ["`store` names `basil` in src/error.rs:1: only wiring may; use the engine interface, `engine`"]);
        assert_eq!(naming("bezant -> basil", "src/lib.rs", "bezant init three --engine sentinel\\n\\"), Vec::<String>::new());
    }

    #[test]
    fn a_wiring_crate_names_engines_in_its_wiring_files_alone() {
        assert_eq!(naming("bezant -> basil", "src/node/wiring.rs", "use basil::Node;"), Vec::<String>::new());
        for way in ["basil::Node::new()", "::basil::Node::new()", "use ::basil::Node;", "use basil as engine;", "(::basil::Node)"] {
            assert_eq!(naming("bezant -> basil", "src/status.rs", way).len(), 1, "{way}");
        }
    }

    #[test]
    fn a_client_that_is_linked_with_an_engine_or_with_cheats_is_a_breach() {
        for banned in ["basil", "adversary"] {
            let mut workspace = workspace(&["client -> helper"]);
            workspace.members.get_mut("client").expect("it was just made").reach.insert(banned.into());
            let found = check_engine_names(&workspace, &|_| Vec::new());
            assert_eq!(found, [format!("`client` reaches `{banned}` through what it depends on")]);
        }
    }

    #[test]
    fn a_file_that_is_too_long_is_a_breach() {
        let lengths = |lines: usize| check_lengths(&workspace(&["types ->"]), &|_| vec![("src/lib.rs".to_owned(), "\n".repeat(lines))]);
        assert_eq!(lengths(LINES_MAX), Vec::<String>::new());
        assert_eq!(lengths(LINES_MAX + 1).len(), 1);
    }

    #[test]
    fn a_file_of_tests_that_no_program_has_is_a_breach() {
        let files = |files: &[(&str, &str)]| {
            let files: Vec<_> = files.iter().map(|(file, text)| ((*file).to_owned(), (*text).to_owned())).collect();
            check_tests_run(&workspace(&["types ->"]), &|_| files.clone())
        };
        assert_eq!(files(&[("tests/all.rs", "mod cli;\n"), ("tests/cli.rs", ""), ("tests/place/mod.rs", "")]), Vec::<String>::new());
        assert_eq!(files(&[("tests/cli.rs", "")]), Vec::<String>::new(), "cargo finds it by itself");
        let found = files(&[("tests/all.rs", "mod cli;\n"), ("tests/cli.rs", ""), ("tests/pool.rs", "")]);
        assert_eq!(found, ["`types` does not run tests/pool.rs: write `mod pool;` in tests/all.rs"]);
    }

    #[test]
    fn modules_in_a_circle_are_a_breach() {
        let files =
            [("src/a.rs", "use crate::b::B;"), ("src/b.rs", "use crate::a::A;")].map(|(file, text)| (file.to_owned(), text.to_owned()));
        let found = |name: &str| check_circles(&workspace(&[&format!("{name} ->")]), &|_| files.to_vec());
        assert_eq!(found("basil"), ["in `basil`, `a` uses `b` uses `a`: move what they share to a module of its own"]);
        assert_eq!(found("client"), Vec::<String>::new());
    }

    #[test]
    fn cheating_clients_are_not_even_in_the_tests_of_the_client() {
        let found = |line| check_engine_names(&workspace(&[line, "adversary ->"]), &|_| Vec::new());
        assert_eq!(found("client -> adversary*"), ["`client` reaches `adversary` through what it depends on"]);
        assert_eq!(found("client ->"), Vec::<String>::new());
    }

    #[test]
    fn a_gateway_that_depends_on_an_engine_is_a_breach() {
        assert_eq!(breaches(&["sql -> client basil", "client ->", "basil ->"]).len(), 1);
    }

    #[test]
    fn the_simulator_and_the_pure_layers_never_see_the_runtime() {
        for line in ["simulator -> runtime", "capacity -> runtime", "simulator -> runtime*", "basil -> runtime*", "store -> runtime*"] {
            assert_eq!(breaches(&["runtime ->", line]).len(), 1, "{line}");
        }
        assert_eq!(breaches(&["runtime ->", "workload -> runtime*"]), Vec::<String>::new());
    }

    #[test]
    fn a_crate_without_a_layer_is_a_breach() {
        let found = breaches(&["attic ->"]);
        assert_eq!(found, ["`attic` has no layer: give it one in xtask/src/rules.rs and in ARCHITECTURE.md"]);
    }

    #[test]
    fn every_dependency_has_its_reason_and_every_reason_its_dependency() {
        let workspace = workspace(&["types -> bytes hex"]);
        let page = "| dependency | why |\n|---|---|\n| `bytes` | shared buffers |\n| `left-pad` | no longer |\n";
        let found = check(&workspace, &reasons(page));
        assert_eq!(found.len(), 2);
        assert!(found[0].starts_with("`hex` has no reason"), "{}", found[0]);
        assert!(found[1].contains("a reason for `left-pad`"), "{}", found[1]);
    }

    #[test]
    fn a_row_that_names_other_users_than_there_are_is_a_breach() {
        let workspace = workspace(&["types -> bytes", "store -> bytes hex*", "client -> bytes*"]);
        let page = "| dependency | used by | why |\n|---|---|---|\n| `bytes` | store, types; tests of client | x |\n| `hex` | tests of store | x |\n";
        assert_eq!(check_users(&workspace, page), Vec::<String>::new());
        let found = check_users(&workspace, "| `hex` | store, types | x |");
        assert_eq!(found, ["docs/dependencies.md says that `hex` is used by \"store, types\": write \"tests of store\""]);
    }

    #[test]
    fn a_workspace_dependency_without_user_is_a_breach() {
        let manifest = "[workspace]\n[workspace.dependencies]\n# Ours.\nbasil = { path = \"basil\" }\nhex = \"0.4\"\nleft-pad = \"1\"\n\n[profile.dev]\nx = 1\n";
        let found = check_offers(&workspace(&["types -> hex"]), manifest);
        assert_eq!(found, ["the root Cargo.toml offers `left-pad`, which nobody takes: take the line out"]);
    }

    #[test]
    fn a_drawing_that_has_a_dependency_above_its_user_is_a_breach() {
        let drawn = |lines: &str| {
            check_drawing(&workspace(&["basil -> types", "types ->", "xtask ->"]), &format!("```\n the laboratory\n{lines}```"))
        };
        assert_eq!(drawn(" basil, an engine\n types  toy\n"), Vec::<String>::new());
        assert_eq!(drawn(" basil  types\n"), ["ARCHITECTURE.md does not draw `types` below `basil`, which depends on it"]);
        assert_eq!(drawn(" basil\n"), ["ARCHITECTURE.md does not draw `types`, on which `basil` depends"]);
    }

    #[test]
    fn layers_depend_only_on_layers() {
        for layer in LAYERS.iter() {
            for known in &layer.may_depend_on {
                assert!(LAYERS.iter().any(|other| other.name == *known), "{} may depend on {known}, which is no layer", layer.name);
            }
        }
    }

    #[test]
    fn this_workspace_keeps_the_rules() {
        let workspace = Workspace::load().expect("cargo describes this workspace");
        let page = read_reasons(&workspace).expect("the page of reasons is there");
        assert_eq!(check_all(&workspace, &page), Vec::<String>::new());
    }
}
