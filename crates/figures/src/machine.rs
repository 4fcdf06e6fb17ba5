//! The machine that measured, as far as it says.

use std::fs;
use std::path::Path;
use std::thread::available_parallelism;

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

/// What numbers depend on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// The day.
    pub day: String,
    /// The processor.
    pub processor: String,
    /// How many threads run at once.
    pub cores: usize,
    /// Memory in MiB.
    pub memory_mib: u64,
    /// The system.
    pub system: String,
    /// The program's version.
    pub program: String,
    /// Whether the program was built to be fast.
    pub is_optimised: bool,
}

impl Machine {
    /// This one.
    pub fn here(program: &str) -> Self {
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        Self {
            day: OffsetDateTime::now_utc().date().to_string(),
            processor: field("/proc/cpuinfo", "model name").unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
            cores: available_parallelism().map_or(0, usize::from),
            memory_mib: field("/proc/meminfo", "MemTotal").and_then(|text| text.split(' ').next()?.parse::<u64>().ok()).unwrap_or(0)
                / 1_024,
            // What follows the number is who built it.
            system: format!("{} {}", std::env::consts::OS, kernel.trim().split('-').next().unwrap_or_default()).trim().to_owned(),
            program: program.to_owned(),
            is_optimised: cfg!(not(debug_assertions)),
        }
    }

    /// In one line.
    pub fn line(&self) -> String {
        let Self { day, processor, cores, memory_mib, system, program, is_optimised } = self;
        let build = if *is_optimised { "" } else { " (a development build)" };
        format!("{program}{build} on {cores} cores of {processor}, {} GiB, {system}, {day}", memory_mib.div_ceil(1_024))
    }

    /// Whether numbers of both may stand side by side, as far as can be told.
    pub fn is_like(&self, other: &Self) -> bool {
        let of = |machine: &Self| (machine.processor.clone(), machine.cores, machine.program.clone(), machine.is_optimised);
        of(self) == of(other)
    }
}

/// The kind of file system that a folder lies on, as in `ext4`; whether a disk is in the way at all depends on it.
pub fn file_system(folder: &Path) -> Option<String> {
    let folder = folder.canonicalize().ok()?;
    let mounts = fs::read_to_string("/proc/mounts").ok()?;
    let mounted = mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(1);
        Some((fields.next()?, fields.next()?)).filter(|(at, _)| folder.starts_with(at))
    });
    // Of two mounts on one place the later one is seen.
    mounted.max_by_key(|(at, _)| at.len()).map(|(_, kind)| kind.to_owned())
}

/// The first field of that name in a file of `name : value`.
fn field(file: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_says_something() {
        let here = Machine::here("bezant 0.1.0");
        assert!(here.is_like(&Machine { day: String::new(), ..here.clone() }) && !here.is_like(&Machine { cores: 0, ..here.clone() }));
        assert!(here.cores > 0 && here.line().starts_with("bezant 0.1.0"), "{}", here.line());
        if cfg!(target_os = "linux") {
            assert_eq!(file_system(Path::new("/proc/self/fd")).as_deref(), Some("proc"));
        }
        assert_eq!(file_system(Path::new("/nowhere/at/all")), None);
    }
}
