//! The real backend: a directory.
//!
//! ```text
//! bezant.lock      held while a process uses the directory; says which
//! identity.toml    whose data these are, in text, and whether they were used yet: from then on anything missing is a loss
//! clean-end        after a graceful stop: how many batches the journal holds
//! first-segment    once segments were released: the first that was not. It is there, or something is lost
//! watermark        that of the newest checkpoint begun
//! journal/         00000001.log …; next.log while one is being made; spare.* are old segments, to be recycled
//! base/            the rows, in runs; `damaged` and `rows-lost` say that some cannot be read, or were given up
//! ```
//!
//! A segment overwrites a spare one: it needs no new blocks, so that syncing it writes no metadata and takes about
//! two thirds of the time. Spares are released segments, or files of zeros made ahead in the background.
//!
//! A checkpoint's rows become a run of the base table. What that holds rests on the runs' checksums alone, since a checkpointed version's
//! record leaves the journal.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes};
use mutants::{Mutant, broken};
use types::codec::Encode;
use types::{ClientId, Key, Timestamp};
use xxhash_rust::xxh3::xxh3_64;

use crate::base::{Base, Mergers, damage};
use crate::pace::{Pace, PaceOptions};
use crate::{BaseTable, Checkpoint, OWNER_BYTES_MAX, SegmentNumber, StorageBackend, StoreError, row};

const LOCK: &str = "bezant.lock";
const IDENTITY: &str = "identity.toml";
/// What the checksum's line of [`IDENTITY`], its last, begins with.
const CHECKSUM: &str = "checksum = \"";
const WATERMARK: &str = "watermark";
const CLEAN_END: &str = "clean-end";
const FIRST_SEGMENT: &str = "first-segment";
const JOURNAL: &str = "journal";
const BASE: &str = "base";
/// What a store in use consists of.
const PARTS: [&str; 4] = [JOURNAL, WATERMARK, BASE, "base/runs"];
/// A segment in the making.
const NEXT: &str = "next.log";
/// A spare segment in the making, and when it is made.
const SPARE_IN_THE_MAKING: &str = "zeros.next";
const SPARE_OF_ZEROS: &str = "spare.zeros";
/// The directory's format, in [`IDENTITY`].
const DIRECTORY_FORMAT: u32 = 3;
const WATERMARK_FORMAT: u32 = 1;
const WATERMARK_BYTES: usize = 28;
/// How nice checkpointing and merging are to the rest: with all cores busy they still get a third of what others do, so that they keep up.
#[cfg(target_os = "linux")]
const BACKGROUND_NICE: i32 = 5;
/// How many files a [`Disk`] may keep, and what may be overdue on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskOptions {
    /// Released segments kept to be recycled.
    pub spare_segments_max: usize,
    /// When whoever writes is slowed since checkpoints are late.
    pub pace: PaceOptions,
    /// Whether what cannot be read of the base table is given up ([`Disk::has_damaged_rows`]). Only for who asks
    /// [`Store::has_lost_rows`](crate::Store::has_lost_rows), and takes them over from others.
    pub gives_up_rows: bool,
}

impl Default for DiskOptions {
    fn default() -> Self {
        Self { spare_segments_max: 8, pace: PaceOptions::default(), gives_up_rows: false }
    }
}

/// A directory that holds one replica's data. It is locked as long as this lives.
pub struct Disk {
    directory: PathBuf,
    owner: String,
    state: State,
    options: DiskOptions,
    /// The segment written last, open.
    current: Option<(SegmentNumber, File)>,
    /// Files to be overwritten by new segments.
    spares: VecDeque<PathBuf>,
    /// The thread that makes another spare.
    making: Option<JoinHandle<Result<PathBuf, StoreError>>>,
    base: Arc<Base>,
    has_lost_rows: bool,
    _mergers: Mergers,
    /// The thread that writes the checkpoint that has begun.
    checkpoint: Option<JoinHandle<Result<(), StoreError>>>,
    pace: Pace,
    /// Dropped last: until then, nobody else may use the directory.
    _lock: File,
}

impl Disk {
    /// Makes an empty store in `directory`, which is made too, for an owner who has never had one. `owner` says in a line whose data it
    /// holds, as in `cluster 1f… replica s0-r3`.
    ///
    /// # Errors
    /// When the directory holds anything, or the disk fails.
    ///
    /// # Panics
    /// When `owner` is longer than [`OWNER_BYTES_MAX`] or holds control characters, quotes or backslashes.
    pub fn create(directory: impl Into<PathBuf>, owner: &str) -> Result<(), StoreError> {
        let plain = owner.chars().all(|character| !character.is_control() && character != '"' && character != '\\');
        assert!(plain && owner.len() <= OWNER_BYTES_MAX, "an owner is named in one short line without quotes");
        let directory = directory.into();
        make_directory(&directory)?;
        if !file_names(&directory)?.is_empty() {
            return Err(failed("make a store in", &directory)(io::Error::other("it is not empty")));
        }
        write_identity(&directory, owner, State::Empty)
    }

    /// Opens what [`Disk::create`] made in `directory` for `owner`.
    ///
    /// # Errors
    /// When the directory is another owner's, in use, of a newer format or incomplete, or when the disk fails. A directory without
    /// its identity is a loss, and never a beginning: the disk that belongs there may not be mounted.
    pub fn open(directory: impl Into<PathBuf>, owner: &str, options: DiskOptions) -> Result<Self, StoreError> {
        let directory = directory.into();
        if !exists(&directory.join(IDENTITY))? {
            return Err(StoreError::Missing { location: directory.join(IDENTITY).display().to_string() });
        }
        let lock = lock(&directory, owner)?;
        let state = read_identity(&directory, owner)?;
        let (journal, base) = (directory.join(JOURNAL), directory.join(BASE));
        match state {
            State::Empty => {
                make_directory(&journal)?;
                if !exists(&directory.join(WATERMARK))? {
                    write_watermark(&directory, Timestamp::ZERO)?;
                }
                // Nothing was ever written to it.
                make_directory(&base)?;
                Base::create(&base)?;
            }
            State::InUse => {
                for part in PARTS.map(|part| directory.join(part)) {
                    if !exists(&part)? {
                        return Err(StoreError::Missing { location: part.display().to_string() });
                    }
                }
            }
        }
        // Names made by a process that died before it could sync them are made durable here.
        sync_directory(&journal)?;
        sync_directory(&directory)?;
        // What was begun is done, whoever opens it.
        if damage::has_lost_rows(&base)? || (options.gives_up_rows && damage::is_noted(&base)?) {
            damage::give_up(&base)?;
        }
        let has_lost_rows = damage::has_lost_rows(&base)?;
        let base = Base::open(&base)?;
        let mergers = Mergers::start(&base)?;
        let spares = find_spares(&journal)?;
        Ok(Self {
            directory,
            owner: owner.to_owned(),
            state,
            options,
            current: None,
            spares,
            making: None,
            base,
            has_lost_rows,
            _mergers: mergers,
            checkpoint: None,
            pace: Pace::new(options.pace),
            _lock: lock,
        })
    }

    /// Whether the store in `directory` is as [`Disk::create`] made it for `owner`: nobody ever opened it to the end.
    ///
    /// # Errors
    /// As [`Disk::open`], where there is no identity, or another's or a damaged one.
    pub fn is_unused(directory: &Path, owner: &str) -> Result<bool, StoreError> {
        Ok(read_identity(directory, owner)? == State::Empty)
    }

    /// Whether an earlier process found that rows of the store in `directory` cannot be read.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn has_damaged_rows(directory: &Path) -> Result<bool, StoreError> {
        damage::is_noted(&directory.join(BASE))
    }

    fn path(&self, segment: SegmentNumber) -> PathBuf {
        self.directory.join(segment.file_name())
    }

    /// The segment's file, opened for writing.
    fn file(&mut self, segment: SegmentNumber) -> Result<&File, StoreError> {
        if self.current.as_ref().is_none_or(|(number, _)| *number != segment) {
            let path = self.path(segment);
            let file = OpenOptions::new().read(true).write(true).open(&path).map_err(failed("open", &path))?;
            self.current = Some((segment, file));
        }
        let (_, file) = self.current.as_ref().expect("it was opened just now");
        Ok(file)
    }

    /// A file to make a segment from, if there is one.
    fn take_spare(&mut self, segment: SegmentNumber, bytes_max: u64) -> Result<Option<PathBuf>, StoreError> {
        if let Some(making) = self.making.take_if(|making| making.is_finished()) {
            // Without it a segment grows as it is written: slower, and if the disk is full, that will tell.
            self.spares.extend(join(making));
        }
        match self.spares.pop_front() {
            // Only a process's first segment is waited for.
            None if self.current.is_none() && self.making.is_none() => {
                make_spare(&self.directory.join(JOURNAL), segment, bytes_max).map(Some)
            }
            spare => Ok(spare),
        }
    }

    /// Sees to it that there is a spare when the segment after `segment` is begun.
    fn prepare_spare(&mut self, segment: SegmentNumber, bytes_max: u64) -> Result<(), StoreError> {
        if self.spares.is_empty() && self.making.is_none() {
            let journal = self.directory.join(JOURNAL);
            self.making = Some(in_background("store-spare", move || make_spare(&journal, segment, bytes_max))?);
        }
        Ok(())
    }

    fn finish_checkpoint(&mut self) -> Result<(), StoreError> {
        self.checkpoint.take().map_or(Ok(()), join)
    }
}

impl StorageBackend for Disk {
    fn owner(&self) -> &str {
        &self.owner
    }

    fn location(&self) -> String {
        self.directory.display().to_string()
    }

    fn salt(&mut self) -> Result<u64, StoreError> {
        getrandom::u64().map_err(|error| StoreError::io("draw a random number")(error.into()))
    }

    fn segments(&mut self) -> Result<Vec<SegmentNumber>, StoreError> {
        let mut numbers = Vec::new();
        for name in file_names(&self.directory.join(JOURNAL))? {
            let number = name.strip_suffix(".log").and_then(|stem| stem.parse().ok()).map(SegmentNumber);
            numbers.extend(number.filter(|number| number.file_name().ends_with(&name)));
        }
        numbers.sort_unstable();
        if numbers.is_empty() && self.state == State::InUse {
            return Err(StoreError::Missing { location: format!("every segment in {}", self.directory.join(JOURNAL).display()) });
        }
        if let (Some(first), Some(kept)) = (numbers.first(), read_number(&self.directory.join(FIRST_SEGMENT))?)
            && first.0 > kept
            && !broken(Mutant::OldestSegmentUnmissed)
        {
            return Err(StoreError::Missing { location: self.path(SegmentNumber(kept)).display().to_string() });
        }
        Ok(numbers)
    }

    fn read(&mut self, segment: SegmentNumber, offset: u64, length: usize) -> Result<Vec<u8>, StoreError> {
        let path = self.path(segment);
        let mut bytes = Vec::new();
        File::open(&path)
            .and_then(|mut file| {
                let left = file.metadata()?.len().saturating_sub(offset);
                bytes.reserve_exact(usize::try_from(left).unwrap_or(0).min(length));
                file.seek(SeekFrom::Start(offset))?;
                file.take(length as u64).read_to_end(&mut bytes)
            })
            .map_err(failed("read", &path))?;
        Ok(bytes)
    }

    fn create(&mut self, segment: SegmentNumber, header: &[u8], bytes_max: u64) -> Result<(), StoreError> {
        let journal = self.directory.join(JOURNAL);
        let next = journal.join(NEXT);
        if let Some(spare) = self.take_spare(segment, bytes_max)? {
            fs::rename(&spare, &next).map_err(failed("rename", &spare))?;
        }
        // Not truncated: it is a spare's bytes, which are there to be overwritten.
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&next);
        let file = file.map_err(failed("create", &next))?;
        file.write_all_at(header, 0).and_then(|()| file.sync_all()).map_err(failed("write", &next))?;
        let path = self.path(segment);
        fs::rename(&next, &path).map_err(failed("rename", &next))?;
        sync_directory(&journal)?;
        self.current = Some((segment, file));
        // Only now: the spare just used may bear the name that the one being made will get.
        self.prepare_spare(segment, bytes_max)
    }

    fn opened(&mut self) -> Result<(), StoreError> {
        if self.state == State::Empty {
            write_identity(&self.directory, &self.owner, State::InUse)?;
            self.state = State::InUse;
        }
        Ok(())
    }

    fn clean_end(&mut self) -> Result<Option<u64>, StoreError> {
        read_number(&self.directory.join(CLEAN_END))
    }

    fn set_clean_end(&mut self, end: Option<u64>) -> Result<(), StoreError> {
        let Some(end) = end else {
            let path = self.directory.join(CLEAN_END);
            fs::remove_file(&path).map_err(failed("remove", &path))?;
            return sync_directory(&self.directory);
        };
        write_number(&self.directory, CLEAN_END, end)
    }

    fn write(&mut self, segment: SegmentNumber, offset: u64, bytes: &[u8]) -> Result<(), StoreError> {
        let written = self.file(segment)?.write_all_at(bytes, offset);
        written.map_err(|error| failed("write", &self.path(segment))(error))
    }

    fn sync(&mut self, segment: SegmentNumber) -> Result<(), StoreError> {
        let synced = self.file(segment)?.sync_data();
        synced.map_err(|error| failed("sync", &self.path(segment))(error))
    }

    fn remove(&mut self, segment: SegmentNumber) -> Result<(), StoreError> {
        if self.current.as_ref().is_some_and(|(number, _)| *number == segment) {
            self.current = None;
        }
        // Before it goes: if the next one goes too, that shows.
        write_number(&self.directory, FIRST_SEGMENT, segment.next().0)?;
        let journal = self.directory.join(JOURNAL);
        let path = self.path(segment);
        if self.spares.len() < self.options.spare_segments_max {
            let spare = journal.join(format!("spare.{segment}"));
            fs::rename(&path, &spare).map_err(failed("rename", &path))?;
            self.spares.push_back(spare);
        } else {
            fs::remove_file(&path).map_err(failed("remove", &path))?;
        }
        // One by one, so that after a crash no gap shows in what is left.
        sync_directory(&journal)
    }

    fn has_lost_rows(&self) -> bool {
        self.has_lost_rows
    }

    fn forget_lost_rows(&mut self) -> Result<(), StoreError> {
        damage::forget_lost_rows(&self.directory.join(BASE))?;
        self.has_lost_rows = false;
        Ok(())
    }

    fn rows_about(&self) -> u64 {
        self.base.rows_about()
    }

    fn get(&mut self, key: &Key) -> Result<Option<Bytes>, StoreError> {
        self.base.get(key.as_bytes())
    }

    fn read_ahead(&self, keys: &[&Key]) {
        self.base.read_ahead(keys.iter().map(|key| key.as_bytes()));
    }

    fn base_table(&self) -> Box<dyn BaseTable> {
        Box::new(self.base.now())
    }

    fn watermark(&mut self) -> Result<Option<Timestamp>, StoreError> {
        read_watermark(&self.directory).map(Some)
    }

    fn begin_checkpoint(&mut self, checkpoint: Checkpoint) -> Result<(), StoreError> {
        assert!(self.checkpoint.is_none(), "the store checkpoints one thing at a time");
        let (directory, base) = (self.directory.clone(), self.base.clone());
        self.pace.begin(Instant::now(), checkpoint.memory());
        self.checkpoint = Some(in_background("store-checkpoint", move || {
            write_watermark(&directory, checkpoint.watermark)?;
            let written_at = |key: &[u8]| base.get(key)?.map(|row| row::written_at(key, &row)).transpose();
            base.add(&checkpoint.rows(written_at)?)
        })?);
        Ok(())
    }

    fn checkpoint_done(&mut self) -> Result<bool, StoreError> {
        if self.checkpoint.as_ref().is_some_and(|checkpoint| !checkpoint.is_finished()) {
            return Ok(false);
        }
        self.finish_checkpoint()?;
        self.pace.end(Instant::now());
        Ok(true)
    }

    fn pace(&mut self, added: usize, overdue: usize) -> Duration {
        let wait = self.pace.wait(Instant::now(), added, overdue);
        if !wait.is_zero() {
            std::thread::sleep(wait);
        }
        wait
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Whether it succeeded no longer matters: without it, the journal still has everything.
        self.base.stop();
        let _ = self.finish_checkpoint();
        let _ = self.making.take().map(join);
    }
}

/// What a thread of ours came to.
fn join<T>(thread: JoinHandle<Result<T, StoreError>>) -> Result<T, StoreError> {
    let panicked = |_| Err(StoreError::io("work in the background")(io::Error::other("a thread of the store panicked")));
    thread.join().unwrap_or_else(panicked)
}

/// Takes the directory's lock, or says who has it.
fn lock(directory: &Path, owner: &str) -> Result<File, StoreError> {
    let path = directory.join(LOCK);
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
    let mut file = file.map_err(failed("open", &path))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(fs::TryLockError::WouldBlock) => {
            let mut holder = String::new();
            let read = (&file).take(512).read_to_string(&mut holder);
            let known = read.is_ok() && !holder.trim().is_empty();
            let holder = if known { holder.trim().to_owned() } else { "another process".to_owned() };
            return Err(StoreError::Locked { location: directory.display().to_string(), holder });
        }
        Err(fs::TryLockError::Error(error)) => return Err(failed("lock", &path)(error)),
    }
    let holder = format!("process {} ({owner})\n", std::process::id());
    file.set_len(0).and_then(|()| file.write_all(holder.as_bytes())).map_err(failed("write", &path))?;
    Ok(file)
}

/// How far a store has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It was made, and never opened to the end.
    Empty,
    /// It has all its parts: what is missing is a loss.
    InUse,
}

impl State {
    /// As it stands in [`IDENTITY`].
    const fn name(self) -> &'static str {
        match self {
            Self::Empty => "empty",
            Self::InUse => "in use",
        }
    }
}

fn write_identity(directory: &Path, owner: &str, state: State) -> Result<(), StoreError> {
    let mut text = format!(
        "# Whose data this directory holds. Leave it as it is.\nformat = {DIRECTORY_FORMAT}\nowner = \"{owner}\"\nstate = \"{}\"\n",
        state.name()
    );
    let checksum = xxh3_64(text.as_bytes());
    text += &format!("{CHECKSUM}{checksum:016x}\"\n");
    replace_file(directory, IDENTITY, text.as_bytes())
}

/// How far the store in the directory has come; an error when it is not `owner`'s.
fn read_identity(directory: &Path, owner: &str) -> Result<State, StoreError> {
    let path = directory.join(IDENTITY);
    // A damaged file need not be text any more.
    let text = String::from_utf8_lossy(&fs::read(&path).map_err(failed("read", &path))?).into_owned();
    let field = |name: &str| {
        let mut lines = text.lines().filter_map(|line| line.split_once('='));
        lines.find(|(field, _)| field.trim() == name).map(|(_, value)| value.trim().trim_matches('"'))
    };
    let location = path.display().to_string();
    match field("format").and_then(|format| format.parse::<u32>().ok()) {
        Some(found) if found > DIRECTORY_FORMAT => return Err(StoreError::NewerFormat { location, found, known: DIRECTORY_FORMAT }),
        Some(found) if found < DIRECTORY_FORMAT => return Err(StoreError::OlderFormat { location, found, known: DIRECTORY_FORMAT }),
        _ => {}
    }
    // Looked at before the owner: a damaged name is damage, and nobody else's.
    let is_whole = text.split_once(CHECKSUM).is_some_and(|(body, checksum)| checksum == format!("{:016x}\"\n", xxh3_64(body.as_bytes())));
    let state = [State::Empty, State::InUse].into_iter().find(|state| field("state") == Some(state.name()));
    match (field("owner"), state) {
        (Some(found), Some(state)) if is_whole && found == owner => Ok(state),
        (Some(found), Some(_)) if is_whole => {
            Err(StoreError::Foreign { location: directory.display().to_string(), found: found.to_owned(), expected: owner.to_owned() })
        }
        _ => Err(StoreError::Corrupt { location, offset: 0, reason: "its checksum does not match".to_owned() }),
    }
}

/// Runs `work` in a thread that lets the replica's own threads go first where cores are few: without that, merging makes each message
/// wait for some milliseconds, and a transaction is many.
pub(crate) fn in_background<T: Send + 'static>(name: &str, work: impl FnOnce() -> T + Send + 'static) -> Result<JoinHandle<T>, StoreError> {
    let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
        // Elsewhere it would be the whole process that waits. That it cannot be had is no reason to stop.
        #[cfg(target_os = "linux")]
        let _ = rustix::process::nice(BACKGROUND_NICE);
        work()
    });
    thread.map_err(StoreError::io("start a thread"))
}

fn write_watermark(directory: &Path, watermark: Timestamp) -> Result<(), StoreError> {
    let mut out = Vec::with_capacity(WATERMARK_BYTES);
    WATERMARK_FORMAT.encode(&mut out);
    watermark.encode(&mut out);
    xxh3_64(&out).encode(&mut out);
    replace_file(directory, WATERMARK, &out)
}

/// Whether the last eight bytes of a file are a checksum of the others. They are in whatever format it is, so that one that is damaged is not
/// taken for one of a newer format.
pub(crate) fn ends_with_its_checksum(bytes: &[u8]) -> bool {
    bytes.split_last_chunk::<8>().is_some_and(|(body, checksum)| xxh3_64(body) == u64::from_le_bytes(*checksum))
}

fn read_watermark(directory: &Path) -> Result<Timestamp, StoreError> {
    let path = directory.join(WATERMARK);
    let bytes = fs::read(&path).map_err(failed("read", &path))?;
    let location = path.display().to_string();
    let corrupt = |reason: &str| StoreError::Corrupt { location: location.clone(), offset: 0, reason: reason.to_owned() };
    if !ends_with_its_checksum(&bytes) {
        return Err(corrupt("its checksum does not match"));
    }
    let mut rest = &bytes[..];
    match rest.try_get_u32_le() {
        Ok(WATERMARK_FORMAT) if bytes.len() == WATERMARK_BYTES => {}
        Ok(found) if found > WATERMARK_FORMAT => {
            return Err(StoreError::NewerFormat { location, found, known: WATERMARK_FORMAT });
        }
        _ => return Err(corrupt("it was not written as a watermark")),
    }
    Ok(Timestamp::new(rest.get_u64_le(), ClientId(rest.get_u64_le())))
}

/// The number that a file holds, if it is there.
fn read_number(path: &Path) -> Result<Option<u64>, StoreError> {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed("read", path)(error)),
    };
    match <[u8; 16]>::try_from(bytes) {
        Ok(bytes) if xxh3_64(&bytes[..8]) == (&bytes[8..]).get_u64_le() => Ok(Some((&bytes[..8]).get_u64_le())),
        _ => {
            let reason = "its checksum does not match".to_owned();
            Err(StoreError::Corrupt { location: path.display().to_string(), offset: 0, reason })
        }
    }
}

/// Puts a number in place of what a file holds, durably.
fn write_number(directory: &Path, name: &str, number: u64) -> Result<(), StoreError> {
    let mut out = number.to_bytes();
    xxh3_64(&out).encode(&mut out);
    replace_file(directory, name, &out)
}

/// Puts `bytes` in place of a file, durably: after a crash it is the old one or the new one.
pub(crate) fn replace_file(directory: &Path, name: &str, bytes: &[u8]) -> Result<(), StoreError> {
    let path = directory.join(name);
    let next = directory.join(format!("{name}.next"));
    let written = File::create(&next).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()
    });
    written.and_then(|()| fs::rename(&next, &path)).map_err(failed("write", &path))?;
    sync_directory(directory)
}

/// Makes a file of zeros while `segment` is written, durably. Until it is whole it bears another name, and is overwritten the next time.
fn make_spare(journal: &Path, segment: SegmentNumber, bytes: u64) -> Result<PathBuf, StoreError> {
    let (making, spare) = (journal.join(SPARE_IN_THE_MAKING), journal.join(format!("{SPARE_OF_ZEROS}.{segment}")));
    let zeros = vec![0; 1 << 20];
    let made = File::create(&making).and_then(|mut file| {
        let mut rest = bytes;
        while rest > 0 {
            let step = rest.min(zeros.len() as u64);
            // The step is at most the buffer's length.
            file.write_all(&zeros[..step as usize])?;
            rest -= step;
        }
        file.sync_all()
    });
    made.and_then(|()| fs::rename(&making, &spare)).map_err(failed("make", &making))?;
    Ok(spare)
}

fn find_spares(journal: &Path) -> Result<VecDeque<PathBuf>, StoreError> {
    let mut names: Vec<String> = file_names(journal)?.into_iter().filter(|name| name.starts_with("spare.")).collect();
    names.sort_unstable();
    Ok(names.into_iter().map(|name| journal.join(name)).collect())
}

/// The names of a directory's files, those that are text: ours are.
pub(crate) fn file_names(directory: &Path) -> Result<Vec<String>, StoreError> {
    let entries = fs::read_dir(directory).map_err(failed("list", directory))?;
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.map_err(failed("list", directory))?;
        names.extend(entry.file_name().into_string().ok());
    }
    Ok(names)
}

pub(crate) fn exists(path: &Path) -> Result<bool, StoreError> {
    path.try_exists().map_err(failed("look for", path))
}

/// Makes a directory and those above it, durably as far as its own name goes.
fn make_directory(path: &Path) -> Result<(), StoreError> {
    fs::create_dir_all(path).map_err(failed("make", path))?;
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => sync_directory(parent),
        _ => sync_directory(Path::new(".")),
    }
}

pub(crate) fn sync_directory(path: &Path) -> Result<(), StoreError> {
    File::open(path).and_then(|directory| directory.sync_all()).map_err(failed("sync", path))
}

pub(crate) fn failed(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StoreError {
    StoreError::io(format!("{doing} {}", path.display()))
}
