//! What a server keeps on its disk.
//!
//! ```text
//! dataLogDir/sentinel-log/                         the journal of `store`: a record a transaction
//! dataDir/sentinel-snapshots/<zxid>-<segment>      the state after a transaction; the log goes on with that segment
//! dataDir/sentinel-snapshots/log-begun              a log was begun: from then on one that is not there is a loss
//! dataDir/sentinel-snapshots/corruption-…           what was found to be wrong, and when: `evidence.rs`
//! ```
//!
//! A server comes back from its newest snapshot that is whole, and the log behind it. Each transaction of the log is applied as it was
//! the first time, with the digest that it had then: a disk that changed any of it is noticed here.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::thread;

use sentinel::order::ReplayError;
use sentinel::{Corruption, NotWritten, Profile, SnapshotError, State, Transaction};
use store::{Disk, DiskOptions, Options, SegmentNumber, Store, StoreError};

use crate::limits::LOG_BYTES_MAX;

/// Why a server cannot come back.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each says what is wrong")]
pub enum OpenError {
    #[error("cannot {doing} {}: {source}", path.display())]
    Io { doing: &'static str, path: PathBuf, source: io::Error },
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("{} holds data of ZooKeeper's own, which are not read here; name another dataDir", .0.display())]
    OfZooKeeper(PathBuf),
    #[error("{} has no snapshot that is whole, and the log does not begin at the beginning; restore it from a backup", .0.display())]
    NoSnapshot(PathBuf),
    #[error(
        "{} is missing, and with it what this server acknowledged since its last snapshot; restore it, or delete {} as well to begin with nothing",
        log.display(), snapshots.display()
    )]
    LogMissing { log: PathBuf, snapshots: PathBuf },
    #[error("a record of the log cannot be read: {0}")]
    Record(jute::Malformed),
    #[error("the log does not make the state that it made before: {0}")]
    Corrupt(Corruption),
    #[error("a snapshot is damaged, in place of which the one before it would be read: {0}")]
    Snapshot(Corruption),
    #[error(
        "{} and {}: {source}; if the other servers have their data, delete these two folders of this server alone, and it takes over theirs",
        log.display(), snapshots.display()
    )]
    Order { log: PathBuf, snapshots: PathBuf, source: ReplayError },
    #[error("{} has digests of the profile {found}, and the file says {expected}: all servers of an ensemble keep the one that they began with", snapshots.display())]
    OtherProfile { snapshots: PathBuf, found: &'static str, expected: &'static str },
}

impl OpenError {
    /// What is damaged on the disk, where something is: not where the disk fails, or holds somebody else's.
    pub(crate) fn damage(&self) -> Option<Corruption> {
        let what = match self {
            Self::Corrupt(corruption) => return Some(corruption.clone()),
            Self::Store(StoreError::Corrupt { location, offset, reason }) => format!("{location} is damaged at byte {offset}: {reason}"),
            Self::LogMissing { log, .. } => format!("{} is missing", log.display()),
            // Of a log: a part of it.
            Self::Store(StoreError::Missing { location }) => format!("{location} is missing"),
            Self::Order { source: ReplayError::Servers(_), .. } => return None,
            Self::Order { source, .. } => source.to_string(),
            _ => return None,
        };
        Some(Corruption { zxid: 0, path: None, what, digests: None })
    }
}

/// The log's folder in the `dataLogDir`.
pub(crate) const LOG: &str = "sentinel-log";
/// The folder of snapshots in the `dataDir`.
pub(crate) const SNAPSHOTS: &str = "sentinel-snapshots";
pub(crate) const PARTIAL: &str = "partial";
/// In the folder of snapshots: says that a log was begun.
const LOG_BEGUN: &str = "log-begun";
/// In the `dataDir`, of one of several servers: which of them decide.
pub(crate) const VOTERS: &str = "sentinel-voters";
/// Where ZooKeeper keeps its own.
pub(crate) const ZOOKEEPER: &str = "version-2";

/// A snapshot's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Name {
    pub(crate) zxid: i64,
    /// Where the log goes on.
    pub(crate) segment: u64,
}

impl Name {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (zxid, segment) = text.split_once('-')?;
        Some(Self { zxid: i64::from_str_radix(zxid, 16).ok()?, segment: segment.parse().ok()? })
    }

    fn file(self) -> String {
        format!("{:016x}-{:08}", self.zxid, self.segment)
    }
}

/// What became of a snapshot that was being written.
pub(crate) type Written = Result<Name, NotWritten<io::Error>>;

/// The log and the snapshots of a server.
pub struct Storage {
    log: Store<Disk>,
    snapshots: PathBuf,
    kept: usize,
    writing: Option<Receiver<Written>>,
    transactions_since: u64,
    log_bytes_at: u64,
}

impl Storage {
    /// Opens, or begins, what is kept in these folders, and gives the state; up to transaction `until`, if that is said. `seed` is for the
    /// tree in memory, and `profile` is what the server goes on with.
    ///
    /// # Errors
    /// When the disk fails, or what is on it is damaged.
    pub fn open(data: &Path, log: &Path, profile: Profile, kept: usize, seed: u64, until: Option<i64>) -> Result<(Self, State), OpenError> {
        if data.join(ZOOKEEPER).exists() || log.join(ZOOKEEPER).exists() {
            return Err(OpenError::OfZooKeeper(data.to_owned()));
        }
        let (snapshots, log) = (data.join(SNAPSHOTS), log.join(LOG));
        let owner = "a server of Sentinel by itself";
        let is_new = is_empty(&snapshots)? && is_empty(&log)?;
        fs::create_dir_all(&snapshots).map_err(failed("make", &snapshots))?;
        if is_new {
            // Written first: from now on a log without snapshot is a loss.
            write_snapshot(State::new(profile, seed), &snapshots, Name { zxid: 0, segment: 1 }).map_err(|error| match error {
                NotWritten::Failed(source) => failed("write a snapshot in", &snapshots)(source),
                NotWritten::Corrupt(corruption) => OpenError::Corrupt(corruption),
            })?;
        }
        begin_log(&log, &snapshots, owner)?;
        let log_path = log;
        let mut log = Store::open(Disk::open(&log_path, owner, DiskOptions::default())?, Options::default())?;
        let (_, state) = newest(&snapshots, seed)?.ok_or_else(|| OpenError::NoSnapshot(snapshots.clone()))?;
        let state = replay(&mut log, state, until)?;
        note_log(&log_path, &snapshots)?;
        let log_bytes_at = log.statistics().journal_bytes_written;
        let mut storage = Self { log, snapshots, kept, writing: None, transactions_since: 0, log_bytes_at };
        if state.profile() == profile || until.is_some() {
            return Ok((storage, state));
        }
        let state = state.with_profile(profile);
        storage.begin_snapshot(&state)?;
        storage.finish()?;
        Ok((storage, state))
    }

    /// Whether a server has kept anything in this folder.
    #[must_use]
    pub fn is_there(data: &Path) -> bool {
        data.join(SNAPSHOTS).exists()
    }

    /// Appends to what the next [`Storage::sync`] makes durable.
    pub fn append(&mut self, transaction: &Transaction) {
        self.log.append_with(|out| transaction.encode(out));
        self.transactions_since += 1;
    }

    /// Makes durable what was appended.
    ///
    /// # Errors
    /// When the disk fails: nobody knows then what is on it.
    pub fn sync(&mut self) -> Result<(), StoreError> {
        self.log.sync()
    }

    /// Whether it is time for a snapshot.
    #[must_use]
    pub fn is_snapshot_due(&self, every: u64) -> bool {
        let grown = self.log.statistics().journal_bytes_written - self.log_bytes_at;
        self.writing.is_none() && (self.transactions_since >= every || grown >= LOG_BYTES_MAX)
    }

    /// Begins to write a snapshot of `state`, whose transactions are durable, in the background.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn begin_snapshot(&mut self, state: &State) -> Result<(), OpenError> {
        self.log.sync()?;
        let name = Name { zxid: state.zxid(), segment: self.log.rotate()?.0 };
        (self.transactions_since, self.log_bytes_at) = (0, self.log.statistics().journal_bytes_written);
        let (sender, receiver) = sync_channel(1);
        let (frozen, folder) = (state.frozen(), self.snapshots.clone());
        let writing = thread::Builder::new().name("snapshot".to_owned()).spawn(move || {
            // Whoever asked may have stopped.
            let _ = sender.send(write_snapshot(frozen, &folder, name).map(|()| name));
        });
        writing.map_err(failed("begin a thread to write to", &self.snapshots))?;
        self.writing = Some(receiver);
        Ok(())
    }

    /// Whether a snapshot was finished. Then the oldest ones are removed, and what the log has before those that are left.
    ///
    /// # Errors
    /// When the disk fails, or the snapshot found the state in memory to be damaged.
    pub fn check_snapshot(&mut self) -> Result<bool, OpenError> {
        let Some(writing) = &self.writing else { return Ok(false) };
        let written = match writing.try_recv() {
            Ok(written) => written,
            Err(TryRecvError::Empty) => return Ok(false),
            Err(TryRecvError::Disconnected) => Err(NotWritten::Failed(io::Error::other("its thread ended"))),
        };
        self.writing = None;
        self.conclude(written)?;
        Ok(true)
    }

    /// Waits for the snapshot that is being written, if one is.
    ///
    /// # Errors
    /// As [`Storage::check_snapshot`].
    pub fn finish(&mut self) -> Result<(), OpenError> {
        let Some(writing) = self.writing.take() else { return Ok(()) };
        let written = writing.recv().unwrap_or_else(|_| Err(NotWritten::Failed(io::Error::other("its thread ended"))));
        self.conclude(written)
    }

    fn conclude(&mut self, written: Written) -> Result<(), OpenError> {
        written.map_err(|error| match error {
            NotWritten::Failed(source) => failed("write a snapshot in", &self.snapshots)(source),
            NotWritten::Corrupt(corruption) => OpenError::Corrupt(corruption),
        })?;
        purge(&mut self.log, &self.snapshots, self.kept)
    }

    /// Makes everything durable, and notes that the server stopped gracefully.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn close(&mut self) -> Result<(), OpenError> {
        self.finish()?;
        Ok(self.log.close()?)
    }
}

pub(crate) fn failed(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> OpenError + use<> {
    let path = path.to_owned();
    move |source| OpenError::Io { doing, path, source }
}

pub(crate) fn is_empty(folder: &Path) -> Result<bool, OpenError> {
    match fs::read_dir(folder) {
        Ok(mut files) => Ok(files.next().is_none()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
        Err(error) => Err(failed("read", folder)(error)),
    }
}

/// Begins a log, unless there is one. One that was begun before and is not there any more is a loss: what was promised and acknowledged is
/// forgotten, and a log that begins anew in its place would say that nothing was.
pub(crate) fn begin_log(log: &Path, snapshots: &Path, owner: &str) -> Result<(), OpenError> {
    if !is_empty(log)? {
        return Ok(());
    }
    let note = snapshots.join(LOG_BEGUN);
    // Those who began their log before there was such a note have snapshots by now, or not much to lose.
    let was_begun = note.try_exists().map_err(failed("look for", &note))? || names(snapshots)?.iter().any(|name| name.zxid > 0);
    if was_begun {
        return Err(OpenError::LogMissing { log: log.to_owned(), snapshots: snapshots.to_owned() });
    }
    let parent = log.parent().expect("the log has a name within its folder");
    fs::create_dir_all(parent).map_err(failed("make", parent))?;
    Ok(Disk::create(log, owner)?)
}

/// Notes that there is a log, which was opened: before anything in it is relied on.
pub(crate) fn note_log(log: &Path, snapshots: &Path) -> Result<(), OpenError> {
    let note = snapshots.join(LOG_BEGUN);
    if note.try_exists().map_err(failed("look for", &note))? {
        return Ok(());
    }
    // First: a note without a log would be taken for a loss.
    let parent = log.parent().expect("the log has a name within its folder");
    File::open(parent).and_then(|folder| folder.sync_all()).map_err(failed("make durable", parent))?;
    note_begun(snapshots)
}

/// Notes that a log was begun, by whoever knows that.
pub(crate) fn note_begun(snapshots: &Path) -> Result<(), OpenError> {
    let note = snapshots.join(LOG_BEGUN);
    let write = || File::create(&note)?.sync_all().and_then(|()| File::open(snapshots)?.sync_all());
    write().map_err(failed("write", &note))
}

/// The snapshots there are, the oldest first.
fn names(folder: &Path) -> Result<Vec<Name>, OpenError> {
    let mut names = Vec::new();
    for file in fs::read_dir(folder).map_err(failed("read", folder))? {
        let file = file.map_err(failed("read", folder))?;
        names.extend(file.file_name().to_str().and_then(Name::parse));
    }
    names.sort_unstable();
    Ok(names)
}

/// The state of the newest snapshot that is whole, if one is.
pub(crate) fn newest(folder: &Path, seed: u64) -> Result<Option<(Name, State)>, OpenError> {
    read_newest(folder, seed).map(|newest| newest.found)
}

/// The newest snapshot that is whole, and those after it, which are not.
pub(crate) struct Newest {
    pub(crate) found: Option<(Name, State)>,
    /// With what is wrong with each.
    pub(crate) damaged: Vec<(PathBuf, Corruption)>,
}

/// Reads snapshots, the newest first, up to one that is whole.
pub(crate) fn read_newest(folder: &Path, seed: u64) -> Result<Newest, OpenError> {
    let mut damaged = Vec::new();
    for name in names(folder)?.into_iter().rev() {
        let path = folder.join(name.file());
        let bytes = fs::read(&path).map_err(failed("read", &path))?;
        match State::read_snapshot(&bytes, seed) {
            Ok(state) => return Ok(Newest { found: Some((name, state)), damaged }),
            Err(SnapshotError::Corrupt(corruption)) => {
                tracing::error!(path = %path.display(), %corruption, "a snapshot is wrong; the one before it is taken");
                damaged.push((path, corruption));
            }
            Err(error) => {
                tracing::error!(path = %path.display(), %error, "a snapshot is not whole; the one before it is taken");
                let what = format!("the snapshot {}: {error}", path.display());
                damaged.push((path, Corruption { zxid: name.zxid, path: None, what, digests: None }));
            }
        }
    }
    Ok(Newest { found: None, damaged })
}

/// Applies what the log has after `state`.
fn replay(log: &mut Store<Disk>, mut state: State, until: Option<i64>) -> Result<State, OpenError> {
    while let Some(batch) = log.replay()? {
        for record in &batch.records {
            let transaction = Transaction::decode(record).map_err(OpenError::Record)?;
            if transaction.zxid <= state.zxid() || until.is_some_and(|until| transaction.zxid > until) {
                continue;
            }
            if transaction.zxid != state.zxid() + 1 {
                let what = format!("the log has nothing between {:#x} and this transaction", state.zxid());
                return Err(OpenError::Corrupt(Corruption { zxid: transaction.zxid, path: None, what, digests: None }));
            }
            state.apply(&transaction).map_err(OpenError::Corrupt)?;
        }
    }
    Ok(state)
}

/// Writes a snapshot: whole under its name, or not at all.
pub(crate) fn write_snapshot(state: State, folder: &Path, name: Name) -> Result<(), NotWritten<io::Error>> {
    let partial = folder.join(PARTIAL);
    let mut file = BufWriter::with_capacity(1 << 20, File::create(&partial).map_err(NotWritten::Failed)?);
    state.write_snapshot(|bytes| file.write_all(bytes))?;
    let keep = || keep_as(file.into_inner().map_err(io::IntoInnerError::into_error)?, &partial, folder, name);
    keep().map_err(NotWritten::Failed)
}

/// Gives what was written to `partial` its name, once it is durable.
pub(crate) fn keep_as(file: File, partial: &Path, folder: &Path, name: Name) -> io::Result<()> {
    file.sync_all()?;
    fs::rename(partial, folder.join(name.file()))?;
    File::open(folder)?.sync_all()
}

/// Removes the oldest snapshots but for `kept`, and what the log has before those that are left.
pub(crate) fn purge(log: &mut Store<Disk>, snapshots: &Path, kept: usize) -> Result<(), OpenError> {
    let mut names = names(snapshots)?;
    let old = names.len().saturating_sub(kept);
    for name in names.drain(..old) {
        let path = snapshots.join(name.file());
        fs::remove_file(&path).map_err(failed("remove", &path))?;
    }
    let oldest = names.first().map_or(1, |name| name.segment);
    log.release(SegmentNumber(oldest.saturating_sub(1)))?;
    Ok(())
}
