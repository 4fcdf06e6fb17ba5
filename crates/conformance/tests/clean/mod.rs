//! Runs in which nobody may break a promise.

use simulator::{Report, Scenario, System, Tracing, run};

/// Runs the first `seeds` seeds of `scenario`: each must be clean, and something must commit in it.
pub fn clean<S: System>(scenario: &Scenario<S>, seeds: u64) -> Vec<Report<S::Counts>> {
    let reports: Vec<_> = (1..=seeds).map(|seed| run(scenario, seed, Tracing::Off)).collect();
    for report in &reports {
        assert!(report.is_clean(), "{report}");
        assert!(report.counts.committed > 0, "nothing was tried: {report}");
    }
    reports
}
