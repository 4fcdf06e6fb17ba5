//! `bezant-lab figures`: hands over to the crate `figures`, which runs this program.

pub use ::figures::FiguresArgs;
use ::figures::{FiguresError, RunError};

use bezant::failure::{Attempt as _, Done, Failure};
use bezant::out;

/// Carries out `bezant-lab figures`.
pub async fn run(args: &FiguresArgs) -> Result<Done, Failure> {
    if args.list {
        for (name, title, seconds) in ::figures::list(args) {
            out!("{name:<14} about {:>4.1} min  {title}", seconds / 60.0);
        }
        return Ok(Done::Well);
    }
    let program = std::env::current_exe().attempt("find this program", "this process")?;
    let stop = crate::stop_on_signal();
    let args = args.clone();
    let working = tokio::task::spawn_blocking(move || ::figures::run(&args, &program, &stop, |path| out!("{}", path.display())));
    working.await.attempt("measure", "this process")?.map_err(failure)?;
    Ok(Done::Well)
}

fn failure(error: FiguresError) -> Failure {
    let text = error.to_string();
    match error {
        FiguresError::Unknown { .. } => Failure::wrong(text).help("see `bezant-lab figures --list`"),
        FiguresError::Otherwise { .. } => {
            Failure::wrong(text).help("measure into another folder (--out), or forget what is there (--again), or only --draw it")
        }
        FiguresError::Results { .. } | FiguresError::Run(RunError::NoZooKeeper { .. }) => Failure::wrong(text),
        FiguresError::Run(_) | FiguresError::File { .. } | FiguresError::Picture(_) | FiguresError::Failed { .. } => Failure::failed(text),
    }
}
