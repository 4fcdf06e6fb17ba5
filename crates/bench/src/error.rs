//! Why nothing could be measured.

/// Why nothing could be measured, or not to the end.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The settings make no sense together: change them.
    #[error("{0}")]
    Settings(String),
    /// It was stopped before there was anything to report: run it again.
    #[error("interrupted {0}; run it again")]
    Interrupted(&'static str),
    /// The cluster's folder is not one, or is damaged; the error says which file.
    #[error(transparent)]
    Config(#[from] config::ConfigError),
    /// The cluster cannot be reached; the error says of every replica why.
    #[error(transparent)]
    Connect(#[from] client::ConnectError),
    /// The cluster has not what the run needs.
    #[error(transparent)]
    Client(#[from] client::Error),
    /// The workload cannot go on.
    #[error(transparent)]
    Workload(#[from] workload::Error),
}
