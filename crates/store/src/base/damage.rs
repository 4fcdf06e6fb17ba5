//! Rows that cannot be read: where that is found it is noted, and they are given up when the base table is opened for who makes up for them.
//!
//! ```text
//! damaged      something could not be read
//! rows-lost    rows are being given up, or were, and nobody has made up for them
//! *.given-up   runs of which something was given up, as they were, until somebody has
//! ```

use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use super::run::{self, Run, RunWriter};
use super::{read_list, write_list};
use crate::StoreError;
use crate::disk::{exists, failed, file_names, replace_file, sync_directory};

const DAMAGED: &str = "damaged";
const ROWS_LOST: &str = "rows-lost";
const GIVEN_UP: &str = ".given-up";

/// Notes that something could not be read, if `error` says so.
pub(crate) fn note(directory: &Path, error: &StoreError) {
    if error.is_of_damaged_rows() {
        // Where even that fails, whoever comes to the place the next time tries again.
        drop(replace_file(directory, DAMAGED, &[]));
    }
}

/// Whether something could not be read, and nobody has given it up.
///
/// # Errors
/// When the disk fails.
pub(crate) fn is_noted(directory: &Path) -> Result<bool, StoreError> {
    exists(&directory.join(DAMAGED))
}

/// Whether rows were given up, or are being so, and nobody has made up for them.
///
/// # Errors
/// When the disk fails.
pub(crate) fn has_lost_rows(directory: &Path) -> Result<bool, StoreError> {
    exists(&directory.join(ROWS_LOST))
}

/// Somebody has made up for what was given up, durably.
///
/// # Errors
/// When the disk fails.
pub(crate) fn forget_lost_rows(directory: &Path) -> Result<(), StoreError> {
    remove(directory, ROWS_LOST)?;
    sync_directory(directory)
}

/// Gives up what cannot be read of the base table in `directory`, which nobody has open. A process that dies in the middle has said so before, and the next one
/// goes on. What turns out to be readable after all stays as it is.
///
/// # Errors
/// When a run is missing or of a newer format, the list of runs is damaged, or the disk fails.
pub(crate) fn give_up(directory: &Path) -> Result<(), StoreError> {
    let (mut next_number, numbers) = read_list(directory)?;
    let (mut opened, mut is_damaged) = (Vec::with_capacity(numbers.len()), false);
    for number in numbers {
        let run = match Run::open(directory, number) {
            Ok(run) => Some((run.is_sound()?, run)),
            // All of it is lost, which a disk that only answers badly does not bring about.
            Err(StoreError::RowsDamaged { .. }) => None,
            Err(error) => return Err(error),
        };
        is_damaged |= run.as_ref().is_none_or(|(is_sound, _)| !is_sound);
        opened.push((number, run));
    }
    if is_damaged {
        replace_file(directory, ROWS_LOST, &[])?;
        let mut runs = Vec::with_capacity(opened.len());
        for (number, run) in opened {
            let left = match run {
                Some((true, run)) => Some(run),
                Some((false, run)) => {
                    next_number += 1;
                    keep(directory, number);
                    Some(salvage(directory, &run, next_number - 1)?)
                }
                None => {
                    keep(directory, number);
                    None
                }
            };
            runs.extend(left.map(Arc::new));
        }
        // Their names are durable before the list has them. Whoever opens the base table removes what is not in it.
        sync_directory(directory)?;
        write_list(directory, next_number, &runs)?;
    }
    remove(directory, DAMAGED)?;
    sync_directory(directory)
}

/// Keeps the file of a run under another name as well, where the file system can do that: for people, who may know how to read more of it.
fn keep(directory: &Path, number: u64) {
    let path = directory.join(run::file_name(number));
    drop(fs::hard_link(&path, path.with_extension(&GIVEN_UP[1..])));
}

/// Writes what can be read of `run` as run `number`. Nothing is left of one that did not come to its end.
fn salvage(directory: &Path, run: &Run, number: u64) -> Result<Run, StoreError> {
    let write = || {
        let mut writer = RunWriter::create(directory, number, run.rows)?;
        run.salvage(&mut writer)?;
        writer.finish()
    };
    let written = write();
    if written.is_err() {
        drop(fs::remove_file(directory.join(run::file_name(number))));
    }
    written
}

/// Removes the runs that were given up, once somebody has made up for them.
///
/// # Errors
/// When the disk fails.
pub(crate) fn remove_given_up(directory: &Path) -> Result<(), StoreError> {
    if !has_lost_rows(directory)? {
        for name in file_names(directory)?.into_iter().filter(|name| name.ends_with(GIVEN_UP)) {
            remove(directory, &name)?;
        }
    }
    Ok(())
}

fn remove(directory: &Path, name: &str) -> Result<(), StoreError> {
    let path = directory.join(name);
    match fs::remove_file(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        removed => removed.map_err(failed("remove", &path)),
    }
}
