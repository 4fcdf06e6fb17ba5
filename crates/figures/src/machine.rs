//! The machine that measured, as far as it says.

use std::fs;
use std::thread::available_parallelism;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

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
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        Self {
            day: day(seconds / 86_400),
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

/// The first field of that name in a file of `name : value`.
fn field(file: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// A day of the Gregorian calendar, counted from 1 January 1970.
fn day(since_1970: u64) -> String {
    // Counted from 1 March of year 0, so that a leap day ends its year; 146,097 days are 400 years.
    let days = since_1970 + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_those_of_the_calendar() {
        assert_eq!([0, 59, 11_016, 20_000, 47_540].map(day), ["1970-01-01", "1970-03-01", "2000-02-29", "2024-10-04", "2100-02-28"]);
        assert_eq!(day(47_541), "2100-03-01");
    }

    #[test]
    fn this_machine_says_something() {
        let here = Machine::here("bezant 0.1.0");
        assert!(here.is_like(&Machine { day: String::new(), ..here.clone() }) && !here.is_like(&Machine { cores: 0, ..here.clone() }));
        assert!(here.cores > 0 && here.line().starts_with("bezant 0.1.0"), "{}", here.line());
    }
}
