//! What operators want to know of the process and its folders.

use std::fs;
use std::path::Path;

use rustix::process::{Resource, getrlimit};

/// How many bytes the files in a folder have, and in those within.
pub(crate) fn folder_bytes(folder: &Path) -> u64 {
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
pub(crate) fn open_files() -> usize {
    fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}

/// How many it may have open.
pub(crate) fn open_files_max() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}
