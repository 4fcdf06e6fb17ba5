//! The program `bezant`: the product, and nothing but the product. Everything is in the library.

use std::process::ExitCode;

use bezant::{Command, EXIT_CODES, conduct};
use clap::Parser;

/// A transactional database that keeps its promises when some of its servers and clients lie.
#[derive(Parser)]
#[command(name = "bezant", version, after_help = format!("Begin with:\n  bezant dev --exec 'put a 1; get a'\n\n{EXIT_CODES}"))]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

fn main() -> ExitCode {
    let Cli { command } = Cli::parse();
    conduct(command.cores(), command.run())
}
