//! Development tasks. `cargo xtask ci` is the whole truth: what it passes may land, and `.ci/run` calls it.
//!
//! | command | what it does |
//! |---|---|
//! | `ci [STEP...]` | every check, in order, or only the steps named |
//! | `rules` | which layers may depend on one another, and a reason for every dependency |
//! | `fuzz [TARGET...] [--seconds N]` | runs fuzz targets, or only those named |
//! | `product` | builds the product by itself, and checks that nothing of the laboratory is in it |
//! | `mutants` | hunts for whoever notices that a rule is broken, where the table of `docs/testing.md` no longer says |
//! | `book` | renders `docs/` into `target/book`, and checks every link |

mod book;
mod ci;
mod circles;
mod fuzz;
mod mutants;
mod process;
mod product;
mod readme;
mod rules;
mod smoke;
mod workspace;

use std::process::ExitCode;

use anyhow::{Result, bail};
use workspace::Workspace;

const USAGE: &str = "\
usage: cargo xtask COMMAND

  ci [STEP...]   every check, in order; or only the steps named
  fuzz [TARGET...] [--seconds N]
                 arbitrary bytes for everything that reads what others wrote; --list names the targets
  rules          which layers may depend on one another, and a reason for every dependency
  product        build the product by itself, and see that nothing of the laboratory is in it
  mutants        break every rule in turn, and write into docs/testing.md who noticed
  book           render docs/ into target/book and check every link

for example: cargo xtask ci rules book";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[String]) -> Result<()> {
    let Some((command, rest)) = arguments.split_first() else {
        bail!("no command\n\n{USAGE}");
    };
    if !["ci", "fuzz"].contains(&command.as_str()) && !rest.is_empty() {
        bail!("`{command}` takes nothing more, but was given `{}`\n\n{USAGE}", rest.join(" "));
    }
    match command.as_str() {
        "ci" => ci::run(&Workspace::load()?, rest),
        "fuzz" => fuzz::run(&Workspace::load()?, rest),
        "rules" => rules::run(&Workspace::load()?),
        "product" => product::run(&Workspace::load()?),
        "mutants" => mutants::hunt(&Workspace::load()?),
        "book" => book::run(&Workspace::load()?),
        "help" | "--help" | "-h" => {
            println!("{USAGE}");
            Ok(())
        }
        unknown => bail!("there is no command `{unknown}`\n\n{USAGE}"),
    }
}
