//! Everything that must hold before a change lands, in order, with no step that only CI runs.

use std::fs;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::process::show;
use crate::workspace::{Workspace, cargo};
use crate::{book, fuzz, mutants, product, readme, rules, smoke};

struct Step {
    name: &'static str,
    run: fn(&Workspace) -> Result<()>,
}

const STEPS: &[Step] = &[
    Step { name: "format", run: |workspace| show(in_root(workspace).args(["fmt", "--all", "--check"])) },
    Step {
        name: "clippy",
        run: |workspace| show(in_root(workspace).args(["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"])),
    },
    Step { name: "tests", run: tests },
    Step { name: "fuzz", run: fuzz::ci },
    Step { name: "docs", run: docs },
    Step { name: "rules", run: rules::run },
    Step { name: "book", run: book::run },
    Step { name: "first-command", run: smoke::first_command },
    Step { name: "examples", run: smoke::examples },
    Step { name: "product", run: product::run },
    Step { name: "simulator", run: simulator },
    Step { name: "mutants", run: mutants::check },
    Step { name: "bench", run: smoke::bench },
];

/// Runs the steps named, or all; stops at the first that fails.
pub fn run(workspace: &Workspace, names: &[String]) -> Result<()> {
    let every = || STEPS.iter().map(|step| step.name).collect::<Vec<_>>().join(", ");
    if let Some(unknown) = names.iter().find(|name| STEPS.iter().all(|step| step.name != *name)) {
        bail!("there is no step `{unknown}`; there are {}", every());
    }
    let steps: Vec<&Step> = STEPS.iter().filter(|step| names.is_empty() || names.iter().any(|name| name == step.name)).collect();
    let is_asked = |name: &str| steps.iter().any(|step| step.name == name);
    let start = Instant::now();
    let mut ahead = None;
    for step in &steps {
        let step_start = Instant::now();
        println!("== {}", step.name);
        match step.name {
            "tests" if is_asked("first-command") => ahead = Some(BuildAhead::begin(workspace)?),
            "first-command" => ahead.take().into_iter().for_each(BuildAhead::wait),
            _ => {}
        }
        (step.run)(workspace).with_context(|| format!("step `{0}` failed; `cargo xtask ci {0}` runs it alone", step.name))?;
        println!("== {} passed in {:.0} s", step.name, step_start.elapsed().as_secs_f64());
    }
    println!("== all passed in {:.0} s", start.elapsed().as_secs_f64());
    Ok(())
}

/// The build of the README's first command, beside that of the tests, which takes longer and leaves a core idle now and then. The step itself shows
/// what goes wrong in it, as it builds again what is lacking.
struct BuildAhead(Child);

impl BuildAhead {
    fn begin(workspace: &Workspace) -> Result<Self> {
        let mut build = in_root(workspace);
        build.args(["build", "--release", "--quiet"]);
        build.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Ok(Self(build.spawn().context("cannot run cargo")?))
    }

    fn wait(mut self) {
        // Whether it succeeded shows when the step builds again.
        drop(self.0.wait());
    }
}

impl Drop for BuildAhead {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// The README's own words, so that they stay true.
fn tests(workspace: &Workspace) -> Result<()> {
    let text = fs::read_to_string(workspace.root.join("README.md")).context("cannot read README.md")?;
    let command = readme::command(&text, readme::TEST_COMMAND)?;
    show(Command::new("bash").current_dir(&workspace.root).args(["-c", command]))
}

/// How many seeds of each of the simulator's scenarios are run: as many as fit in five minutes.
const SIMULATOR_SEEDS: &str = "1..7";

/// Every scenario of the simulator.
fn simulator(workspace: &Workspace) -> Result<()> {
    build_programs(workspace)?;
    show(in_root_run(workspace, "debug/bezant-lab").args(["sim", "all", "--seeds", SIMULATOR_SEEDS]))
}

/// Builds the programs that the steps run, as the tests have built them: what they use is compiled once.
pub fn build_programs(workspace: &Workspace) -> Result<()> {
    let mut build = in_root(workspace);
    build.args(["build", "--workspace", "--example", "mutants"]);
    build.args(["bezant-lab", "bank-transfer", "fuzz", "queue", "report"].iter().flat_map(|name| ["--bin", name]));
    show(&mut build)
}

/// Runs what was built, in the repository's folder.
pub fn in_root_run(workspace: &Workspace, program: &str) -> Command {
    let mut command = Command::new(workspace.target.join(program));
    command.current_dir(&workspace.root);
    command
}

fn docs(workspace: &Workspace) -> Result<()> {
    show(in_root(workspace).env("RUSTDOCFLAGS", "-D warnings").args(["doc", "--workspace", "--no-deps"]))
}

pub fn in_root(workspace: &Workspace) -> Command {
    let mut command = Command::new(cargo());
    command.current_dir(&workspace.root);
    command
}
