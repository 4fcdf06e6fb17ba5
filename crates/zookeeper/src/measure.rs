//! What operators want to know of the process and its folders.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::process::{Resource, getrlimit};

use crate::limits::MEASURE_EVERY;

/// What takes walks through folders to find out, and is found out [now and then](MEASURE_EVERY).
pub(crate) struct Walks {
    /// Where snapshots are kept, and the log.
    pub(crate) folders: [PathBuf; 2],
    /// When it was found out last, in steady time, and what was found.
    pub(crate) last: Option<(i64, Walked)>,
}

/// What was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Walked {
    /// How large the folders are.
    pub(crate) folder_bytes: [u64; 2],
    /// How many files are open.
    pub(crate) open_files: usize,
}

impl Walks {
    pub(crate) fn new(folders: [PathBuf; 2]) -> Self {
        Self { folders, last: None }
    }

    /// What was found lately, or is found now.
    pub(crate) fn walked(&mut self, steady_ms: i64) -> Walked {
        let every_ms = i64::try_from(MEASURE_EVERY.as_millis()).unwrap_or(i64::MAX);
        match self.last {
            Some((at_ms, walked)) if steady_ms < at_ms.saturating_add(every_ms) => walked,
            _ => {
                let [data, log] = &self.folders;
                let walked = Walked { folder_bytes: [folder_bytes(data), folder_bytes(log)], open_files: open_files() };
                self.last = Some((steady_ms, walked));
                walked
            }
        }
    }
}

/// How many bytes the files in a folder have, and in those within.
fn folder_bytes(folder: &Path) -> u64 {
    let mut bytes = 0;
    let mut unseen = vec![folder.to_owned()];
    while let Some(next) = unseen.pop() {
        // What is removed meanwhile counts no more.
        for entry in fs::read_dir(next).into_iter().flatten().flatten() {
            match entry.metadata() {
                Ok(metadata) if metadata.is_dir() => unseen.push(entry.path()),
                Ok(metadata) => bytes += metadata.len(),
                Err(_) => {}
            }
        }
    }
    bytes
}

/// How many files this process has open; 0 where the system does not say.
fn open_files() -> usize {
    fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}

/// How many it may have open.
pub(crate) fn open_files_max() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_are_walked_once_a_second_at_most() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut walks = Walks::new([folder.path().to_owned(), folder.path().to_owned()]);
        assert_eq!(walks.walked(5_000).folder_bytes, [0, 0]);
        fs::write(folder.path().join("file"), b"1234").expect("the disk works");
        assert_eq!(walks.walked(5_999).folder_bytes, [0, 0]);
        assert_eq!(walks.walked(6_000).folder_bytes, [4, 4]);
    }
}
