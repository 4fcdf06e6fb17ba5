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
    #[error("cannot {doing}: {source}; the store is closed, {}", remedy(.source))]
    Io {
        /// What was being done, with the file's name.
        doing: String,
        /// What the system said.
        source: io::Error,
    },
    /// An earlier failure closed the store. Start again when its cause is mended.
    #[error("the store is closed since an earlier failure: {0}")]
    Closed(String),
    /// What is stored is damaged. Starting again does not help.
    #[error("{location} is damaged{}: {reason}; keep the files, and leave this replica stopped, or rebuild it: {}", at_byte(.offset), FORGOTTEN)]
    Corrupt {
        /// The damaged file.
        location: String,
        /// Where in it; 0 for the whole of it.
        offset: u64,
        /// What is wrong there.
        reason: String,
    },
    /// Rows that were checkpointed are damaged, and nothing else. Who can take them over from others gives up what cannot be read when it is
    /// started again ([`crate::DiskOptions::gives_up_rows`]).
    #[error(
        "{location} is damaged{}: {reason}; is the disk sound? Start this replica again: where its engine can take over from the others what cannot be \
         read, it does so. If it stops again, leave it stopped, or rebuild it: {}",
        at_byte(.offset),
        FORGOTTEN
    )]
    RowsDamaged {
        /// The damaged file.
        location: String,
        /// Where in it; 0 for the whole of it.
        offset: u64,
        /// What is wrong there.
        reason: String,
    },
    /// The data are an older copy of this replica's. Put back the newest.
    #[error(
        "{location} is an older copy of this replica's data: others of its shard have heard of more batches of its journal than the {batches} there; put \
         back what it had last, or give this up with `bezant rebuild --force`: {}",
        FORGOTTEN
    )]
    OlderCopy {
        /// The data's place.
        location: String,
        /// How many batches its journal has.
        batches: u64,
    },
    /// A part is gone, or all of it. Put it back as it last was.
    #[error(
        "{location} is missing; put it back as it last was (is the disk that holds it mounted?), never an older copy nor the empty one that \
         `bezant init` made, which lack the votes given since; else leave this replica stopped, or rebuild it: {}",
        FORGOTTEN
    )]
    Missing {
        /// What should be there.
        location: String,
    },
    /// What is there was never used, though its owner had data before. Put them back as they last were.
    #[error(
        "{location} is empty, as `bezant init` made it, but {used} says that this replica has run, and so had data; put them back as they \
         last were (is the disk that holds them mounted?), never an older copy, which lacks the votes given since; else leave this replica \
         stopped, or rebuild it: {}",
        FORGOTTEN
    )]
    Unused {
        /// The empty store.
        location: String,
        /// What says that there were data.
        used: String,
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
    /// The data were written by an older program. Run that one.
    #[error("{location} has format {found}, and this program knows format {known} only; run the older program that wrote it")]
    OlderFormat {
        /// The data's place.
        location: String,
        /// Its format.
        found: u32,
        /// The format this program knows.
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

/// Why a replica whose data are not whole must not run, and what happens without it.
const FORGOTTEN: &str = "it can no longer tell what it has promised, and would lie. The cluster goes on without it while no more than f \
                         replicas of its shard are gone. `bezant rebuild` with the replica's folder begins anew and takes its data over \
                         from the others";

/// What to do when the disk failed.
fn remedy(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "make room on its disk and start again: nothing that was confirmed is lost"
        }
        _ => "start again when the cause is mended",
    }
}

/// Where damage is, in words.
fn at_byte(offset: &u64) -> String {
    if *offset == 0 { String::new() } else { format!(" at byte {offset}") }
}

impl StoreError {
    /// Whether it says that rows in the base table cannot be read, and not only now.
    pub(crate) fn is_of_damaged_rows(&self) -> bool {
        match self {
            Self::RowsDamaged { .. } => true,
            // What a disk says of a sector that it cannot read.
            Self::Io { source, .. } => source.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error()),
            _ => false,
        }
    }

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_a_full_disk_is_told_to_make_room() {
        let error = |kind: io::ErrorKind| StoreError::io("write journal/1.log")(kind.into()).to_string();
        assert!(error(io::ErrorKind::StorageFull).contains("make room"));
        assert!(error(io::ErrorKind::PermissionDenied).contains("start again when the cause is mended"));
    }
}
