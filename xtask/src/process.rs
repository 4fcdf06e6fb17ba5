//! Running other programs, none of them for ever.

use std::io::Read as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

/// How often a running program is looked at.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Runs `command` with its output shown as it comes; fails if it fails.
pub fn show(command: &mut Command) -> Result<()> {
    println!("$ {}", line(command));
    let status = command.status().with_context(|| format!("cannot run `{}`", line(command)))?;
    ensure!(status.success(), "`{}` failed with {status}", line(command));
    Ok(())
}

/// Runs `command` and returns what it wrote to standard output, which is shown too; its standard error is shown as it comes.
///
/// It runs in a process group of its own, all of which ends when `limit` has passed.
pub fn capture(command: &mut Command, limit: Duration) -> Result<String> {
    let line = line(command);
    println!("$ {line}");
    let mut child =
        command.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped()).spawn().with_context(|| format!("cannot run `{line}`"))?;
    let mut pipe = child.stdout.take().expect("standard output was piped just above");
    let reader = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        pipe.read_to_end(&mut bytes).map(|_| bytes)
    });
    let waited = wait(&mut child, &reader, limit);
    if waited.is_err() {
        end_group(&mut child);
    }
    let status = waited.with_context(|| format!("`{line}`"))?;
    let bytes = reader.join().expect("the reader does not panic").context("cannot read the program's output")?;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    print!("{text}");
    ensure!(status.success(), "`{line}` failed with {status}");
    Ok(text)
}

/// Waits for the program to end and its output to close. A grandchild that keeps the output open counts as running:
/// a program that returns must let go of what it was given.
fn wait(child: &mut Child, reader: &JoinHandle<std::io::Result<Vec<u8>>>, limit: Duration) -> Result<std::process::ExitStatus> {
    let start = Instant::now();
    loop {
        let ended = child.try_wait()?;
        match ended {
            Some(status) if reader.is_finished() => return Ok(status),
            Some(_) if start.elapsed() > limit => bail!("ended, but left its output open for {} s", limit.as_secs()),
            None if start.elapsed() > limit => bail!("did not end within {} s", limit.as_secs()),
            _ => std::thread::sleep(POLL_INTERVAL),
        }
    }
}

fn end_group(child: &mut Child) {
    let group = format!("-{}", child.id());
    // Nothing more can be done if it fails: the failure that led here is the one to report.
    let _ = Command::new("kill").args(["-KILL", "--", &group]).status();
    let _ = child.wait();
}

/// The command as one would type it, without the folders that its program lies in.
fn line(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let words = std::iter::once(program.file_name().unwrap_or(program.as_os_str())).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, limit: Duration) -> Result<String> {
        capture(Command::new("sh").args(["-c", script]), limit)
    }

    #[test]
    fn what_a_program_says_comes_back() {
        assert_eq!(shell("echo hello", Duration::from_secs(60)).expect("echo does not fail"), "hello\n");
    }

    #[test]
    fn a_program_that_fails_is_a_failure() {
        let error = shell("echo half; exit 3", Duration::from_secs(60)).expect_err("it exits with 3");
        assert!(error.to_string().contains("exit status: 3"), "{error}");
    }

    #[test]
    fn a_program_that_does_not_end_is_ended_with_its_children() {
        let error = shell("sleep 600 & wait", Duration::ZERO).expect_err("its limit has passed");
        assert!(format!("{error:#}").contains("did not end within"), "{error:#}");
    }
}
