//! Why the store cannot do what it was asked.

use std::io;

use types::Timestamp;

use crate::SegmentNumber;

/// Why the store cannot do what it was asked, and what to do about it.
///
/// Apart from [`StoreError::BelowWatermark`], every case is final for this store: drop it, and open it again
/// when its cause is gone.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The disk failed. Mend it (space, permissions, hardware), then start again.
    #[error("cannot {doing}: {source}; the store is closed, start again when the cause is mended")]
    Io {
        /// What was being done, with the file's name.
        doing: String,
        /// What the system said.
        source: io::Error,
    },
    /// An earlier failure closed the store. Start again when its cause is mended.
    #[error("the store is closed since an earlier failure: {0}")]
    Closed(String),
    /// What is stored is damaged. Starting again does not help: rebuild the replica from its peers.
    #[error(
        "{location} is damaged at byte {offset}: {reason}; keep the files, and rebuild this replica from its peers: \
         it can no longer tell what it has promised"
    )]
    Corrupt {
        /// The damaged file.
        location: String,
        /// Where in it.
        offset: u64,
        /// What is wrong there.
        reason: String,
    },
    /// A part of the journal is gone. Restore it, or rebuild the replica from its peers.
    #[error("{location} is missing; put it back, or rebuild this replica from its peers: without it, it cannot tell what it has promised")]
    Missing {
        /// What should be there.
        location: String,
    },
    /// The data belong to somebody else. Point the replica to its own data.
    #[error("{location} belongs to \"{found}\", not to \"{expected}\"; give each replica its own data directory")]
    Foreign {
        /// The data's place.
        location: String,
        /// Whose they are.
        found: String,
        /// Who wanted to open them.
        expected: String,
    },
    /// The data were written by a newer program. Run that one.
    #[error("{location} has format {found}, and this program knows formats up to {known}; run the newer program that wrote it")]
    NewerFormat {
        /// The data's place.
        location: String,
        /// Its format.
        found: u32,
        /// The newest format this program knows.
        known: u32,
    },
    /// Another process uses the data. Stop it first.
    #[error("{location} is in use by {holder}; stop that process before starting another")]
    Locked {
        /// The data's place.
        location: String,
        /// Who seems to hold it.
        holder: String,
    },
    /// The read asks for what checkpointing has already forgotten; the store stays usable. Ask above the watermark.
    #[error("cannot read before {before}: versions up to {watermark} are checkpointed into their newest")]
    BelowWatermark {
        /// The read's bound.
        before: Timestamp,
        /// What is checkpointed.
        watermark: Timestamp,
    },
}

impl StoreError {
    /// Whether the store is closed by this error.
    #[must_use]
    pub fn is_final(&self) -> bool {
        !matches!(self, Self::BelowWatermark { .. })
    }

    /// The error of a system call while `doing` something to a named file.
    pub(crate) fn io(doing: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let doing = doing.into();
        move |source| Self::Io { doing, source }
    }

    /// Damage in a segment of the journal.
    pub(crate) fn corrupt_segment(segment: SegmentNumber, offset: u64, reason: impl Into<String>) -> Self {
        Self::Corrupt { location: segment.file_name(), offset, reason: reason.into() }
    }
}
