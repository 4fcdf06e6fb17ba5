//! Backups: a whole database as of one time, in a file.
//!
//! A backup is read through [`client::Client`] as any application reads, so that each row in it is what enough replicas agree on, and
//! all rows are of one moment ([`client::Client::read_as_of`]). It can be restored into any cluster, whatever its shards, faults and engine.
//!
//! ```text
//!   take ──▶ monday.backup          all rows
//!   take ──▶ tuesday.backup         what has changed since monday.backup
//!   verify monday.backup tuesday.backup        restore monday.backup tuesday.backup
//! ```
//!
//! A file is a header, blocks of rows in the order of their keys, and an end; each covered by a digest, so that damage is found and
//! its place named ([`mod@file`]). The *content digest* is that of all rows that the database held then: two clusters that hold the same have the
//! same one.

pub mod chain;
pub mod content;
pub mod file;
mod restore;
mod take;

use std::path::PathBuf;

pub use restore::{Restored, restore};
pub use take::take;

use file::Damage;

/// Told now and then how many rows are done.
pub type Progress<'a> = &'a (dyn Fn(u64) + Send + Sync);

/// What a backup holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Which time it is of, in nanoseconds since 1970 by the replicas' clocks.
    pub as_of: u64,
    /// The rows that the database held then.
    pub rows: u64,
    /// The rows in the last file: all, or those that had changed.
    pub rows_written: u64,
    /// The digest of all rows.
    pub content: String,
}

/// Why a backup could not be taken, checked or restored.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The cluster did not do it; ask the error for advice.
    #[error(transparent)]
    Client(#[from] client::Error),
    /// A file cannot be read or written.
    #[error("{}: {error}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// A file is damaged, or no backup.
    #[error("{}: {damage}", path.display())]
    Damaged {
        /// Which.
        path: PathBuf,
        /// What is wrong with it, and where.
        damage: Damage,
    },
    /// The files do not follow one another.
    #[error("{0}")]
    Chain(String),
    /// The cluster to restore into holds something already.
    #[error("the cluster is not empty: it holds {0}")]
    NotEmpty(String),
    /// All rows were written, and yet the cluster holds something else.
    #[error("the cluster holds other rows than the backup: content {found}, and not {expected}")]
    Differs {
        /// The digest of what it holds.
        found: String,
        /// The digest of the backup.
        expected: String,
    },
}
