//! Compares the folders of stopped servers (§4.1 of the thesis).
//!
//! Each folder is brought, from its snapshot and its log, to the newest transaction that all of them have. What does not make the state
//! that it made before is found on the way; then states are compared, and what most of them have counts as right.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use sentinel::{Checksum, Profile, State};

use crate::member_storage::MemberStorage;
use crate::storage::{OpenError, SNAPSHOTS, Storage, read_newest};

/// What was found of one folder.
#[derive(Debug)]
pub enum Finding {
    /// It does not even make its own state again.
    Broken(OpenError),
    /// It has the state that most have.
    Agrees(Checksum),
    /// It has another state than most: this one, and the first difference.
    Differs {
        /// Its digest.
        checksum: Checksum,
        /// The first node that differs, and how.
        first: Option<(String, &'static str)>,
    },
}

/// What an audit found.
#[derive(Debug)]
pub struct Audit {
    /// The transaction at which states were compared, if there were any.
    pub zxid: Option<i64>,
    /// Whether one state is that of more than half of the folders. Without one nobody can say who is wrong.
    pub has_majority: bool,
    /// Of each folder, what was found.
    pub findings: Vec<(PathBuf, Finding)>,
}

impl Audit {
    /// Whether all folders were read and have the same state.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.findings.iter().all(|(_, finding)| matches!(finding, Finding::Agrees(_)))
    }
}

/// Compares the `dataDir`s of stopped servers.
#[must_use]
pub fn audit_offline(folders: &[PathBuf]) -> Audit {
    let open = |folder: &Path, until: Option<i64>| -> Result<State, OpenError> {
        // Opening what is not there would begin it.
        if !Storage::is_there(folder) {
            return Err(OpenError::NoSnapshot(folder.to_owned()));
        }
        match Storage::open(folder, folder, Profile::default(), usize::MAX, 0, until) {
            Ok((mut storage, state)) => {
                storage.close()?;
                Ok(state)
            }
            // It may be one of several.
            Err(OpenError::Store(alone)) => match MemberStorage::read(folder, folder, until.unwrap_or(i64::MAX)) {
                Err(OpenError::Store(_)) => Err(OpenError::Store(alone)),
                read => read,
            },
            Err(error) => Err(error),
        }
    };
    // Each to its end first: damage behind the common transaction is found too, and a snapshot that a server would pass over.
    let end = |folder: &PathBuf| {
        let state = open(folder, Some(i64::MAX))?;
        let damaged = read_newest(&folder.join(SNAPSHOTS), 0)?.damaged;
        damaged.into_iter().next().map_or(Ok(state), |(_, corruption)| Err(OpenError::Snapshot(corruption)))
    };
    let ends: Vec<Result<State, OpenError>> = folders.iter().map(end).collect();
    let zxid = ends.iter().flatten().map(State::zxid).min();
    let mut states: Vec<Result<State, OpenError>> = Vec::new();
    for (folder, end) in folders.iter().zip(ends) {
        states.push(
            match (end, zxid) {
                (Ok(end), Some(zxid)) if end.zxid() > zxid => open(folder, Some(zxid)),
                (end, _) => end,
            }
            .map(|state| state.with_profile(Profile::Sha256Wide)),
        );
    }
    let mut votes: BTreeMap<[u8; 32], usize> = BTreeMap::new();
    for state in states.iter().flatten() {
        *votes.entry(state.checksum().0).or_default() += 1;
    }
    let winner = votes.iter().max_by_key(|(_, count)| **count).map(|(checksum, count)| (Checksum(*checksum), *count));
    let right = winner.and_then(|(checksum, _)| states.iter().flatten().find(|state| state.checksum() == checksum)).cloned();
    let finding = |state: Result<State, OpenError>| match state {
        Err(error) => Finding::Broken(error),
        Ok(state) if right.as_ref().is_some_and(|right| right.checksum() == state.checksum() && right.zxid() == state.zxid()) => {
            Finding::Agrees(state.checksum())
        }
        Ok(state) => Finding::Differs { checksum: state.checksum(), first: right.as_ref().and_then(|right| state.first_difference(right)) },
    };
    let findings = folders.iter().cloned().zip(states.into_iter().map(finding)).collect();
    Audit { zxid, has_majority: winner.is_some_and(|(_, count)| count * 2 > folders.len()), findings }
}
