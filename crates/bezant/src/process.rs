//! Processes that outlive the command that started them: noted in a file by number *and* start, so that a number
//! the system has since given to somebody else is never signalled.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use rustix::process::{Pid, Signal, kill_process};

use crate::failure::{Attempt as _, Failure};

/// A process, told apart from any other that ever had its number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// When it began, in whatever the system counts.
    started: String,
}

impl Process {
    /// The running process with this number.
    pub fn running(pid: u32) -> Option<Self> {
        Some(Self { pid, started: start_of(pid)? })
    }

    /// A process that has ended before it could be looked at.
    pub fn ended(pid: u32) -> Self {
        Self { pid, started: "ended".to_owned() }
    }

    /// What [`Process::note`] wrote; `None` when it wrote nothing there. Of a note that is not whole no process can be told either: a
    /// loss of power leaves such notes, and ends what they are about. A replica that runs nevertheless has the lock on its data.
    pub fn noted(path: &Path) -> Result<Option<Self>, Failure> {
        let pid = match fs::read(path) {
            Ok(pid) => String::from_utf8_lossy(&pid).trim().parse::<u32>(),
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).attempt("read the file", path.display()),
        };
        let started = fs::read_to_string(start_file(path)).unwrap_or_default().trim().to_owned();
        let pid = pid.ok().filter(|pid| i32::try_from(*pid).is_ok_and(|pid| pid > 1) && !started.is_empty());
        Ok(pid.map(|pid| Self { pid, started }))
    }

    /// Writes it down: the number alone in `path`, as monitoring expects it, and its start in a file beside it.
    pub fn note(&self, path: &Path) -> Result<(), Failure> {
        replace(&start_file(path), &format!("{}\n", self.started))?;
        replace(path, &format!("{}\n", self.pid))
    }

    /// Forgets what was written down.
    pub fn forget(path: &Path) -> Result<(), Failure> {
        fs::remove_file(path).attempt("remove the file", path.display())?;
        let start = start_file(path);
        fs::remove_file(&start).attempt("remove the file", start.display())
    }

    /// Whether it still runs.
    pub fn is_running(&self) -> bool {
        start_of(self.pid).is_some_and(|started| started == self.started)
    }

    /// Asks it to stop.
    pub fn ask_to_stop(&self) {
        self.signal(Signal::TERM);
    }

    /// Ends it at once.
    pub fn kill(&self) {
        self.signal(Signal::KILL);
    }

    fn signal(&self, signal: Signal) {
        if self.is_running()
            && let Some(pid) = i32::try_from(self.pid).ok().and_then(Pid::from_raw)
        {
            // It may have ended in between, which is what was wanted.
            let _ = kill_process(pid, signal);
        }
    }
}

/// Puts `text` in place of a file, so that whoever reads it finds the old text or the new one.
fn replace(path: &Path, text: &str) -> Result<(), Failure> {
    let mut next = path.as_os_str().to_owned();
    next.push(".next");
    fs::write(&next, text).and_then(|()| fs::rename(&next, path)).attempt("write the file", path.display())
}

fn start_file(path: &Path) -> PathBuf {
    path.with_extension("started")
}

/// When the process began; `None` when it does not run, or has ended and only waits to be collected.
#[cfg(target_os = "linux")]
fn start_of(pid: u32) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may hold anything; what follows the last one is plain: state is field 3, start field 22.
    let mut fields = stat[stat.rfind(')')? + 1..].split_whitespace();
    let state = fields.next()?;
    if matches!(state, "Z" | "X") {
        return None;
    }
    // Counted from the boot, so the boot belongs to it.
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    Some(format!("{} {}", fields.nth(18)?, boot.trim()))
}

/// When the process began; `None` when it does not run, or has ended and only waits to be collected.
#[cfg(not(target_os = "linux"))]
fn start_of(pid: u32) -> Option<String> {
    let listed = std::process::Command::new("ps").args(["-o", "stat=,lstart=", "-p", &pid.to_string()]).output().ok()?;
    let text = String::from_utf8_lossy(&listed.stdout).trim().to_owned();
    let (state, started) = text.split_once(char::is_whitespace)?;
    (!state.starts_with('Z')).then(|| started.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_told_apart_from_one_with_its_number() {
        let this = Process::running(std::process::id()).expect("this process runs");
        assert!(this.is_running());
        let other = Process { started: "before".to_owned(), ..this.clone() };
        assert!(!other.is_running());
        // Not this process: nothing happens.
        other.kill();
        let folder = tempfile::TempDir::new().expect("a temporary folder");
        let path = folder.path().join("pid");
        assert_eq!(Process::noted(&path).expect("no file is no process"), None);
        this.note(&path).expect("written");
        assert_eq!(Process::noted(&path).expect("read"), Some(this.clone()));
        for wrong in [b"".as_slice(), b"x", b"-1", b"0", b"1", b"12 13", b"\xff\x00"] {
            fs::write(&path, wrong).expect("written");
            assert_eq!(Process::noted(&path).expect("a damaged note is no process"), None, "{wrong:?}");
        }
        this.note(&path).expect("written over a damaged one");
        fs::write(start_file(&path), "").expect("written");
        assert_eq!(Process::noted(&path).expect("half a note is no process"), None);
        this.note(&path).expect("written over a damaged one");
        assert_eq!(Process::noted(&path).expect("read"), Some(this));
        Process::forget(&path).expect("removed");
        assert_eq!(Process::noted(&path).expect("no file is no process"), None);
    }
}
