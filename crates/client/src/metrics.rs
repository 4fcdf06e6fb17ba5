//! How long commits take, for Prometheus.

use std::time::Duration;

use engine::CommitPath;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use runtime::Metrics;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Way {
    path: &'static str,
}

/// The time from the call of `commit` to its success, by the path that the commit took.
#[derive(Clone, Debug)]
pub(crate) struct CommitMetrics(Family<Way, Histogram, fn() -> Histogram>);

impl CommitMetrics {
    /// New ones, shown among `metrics`.
    pub fn new(metrics: &Metrics) -> Self {
        // From 100 microseconds to 26 seconds.
        let family = Family::new_with_constructor((|| Histogram::new(exponential_buckets(100e-6, 2.0, 19))) as fn() -> Histogram);
        metrics.register(|registry| registry.register("commit_seconds", "How long commits took, by path", family.clone()));
        Self(family)
    }

    /// One commit succeeded.
    pub fn observe(&self, path: CommitPath, elapsed: Duration) {
        let path = match path {
            CommitPath::Fast => "fast",
            CommitPath::Slow => "slow",
            CommitPath::Recovered => "recovered",
            CommitPath::ReadOnly => "read_only",
            // Nothing was asked of anybody.
            CommitPath::Empty => return,
        };
        self.0.get_or_create(&Way { path }).observe(elapsed.as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commits_are_counted_by_their_path() {
        let metrics = Metrics::default();
        let commits = CommitMetrics::new(&metrics);
        commits.observe(CommitPath::Fast, Duration::from_millis(1));
        commits.observe(CommitPath::Fast, Duration::from_millis(3));
        commits.observe(CommitPath::Empty, Duration::ZERO);
        let text = metrics.to_text();
        assert!(text.contains("bezant_commit_seconds_sum{path=\"fast\"} 0.004"), "{text}");
        assert!(text.contains("bezant_commit_seconds_bucket{le=\"0.0016\",path=\"fast\"} 1"), "{text}");
        assert!(!text.contains("empty"), "{text}");
    }
}
