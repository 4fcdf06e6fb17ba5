//! The base table: runs of rows, of which newer ones hide older ones' rows, and threads that merge them.
//!
//! A checkpoint adds a run. When so many have come that they are worth it, some are merged into one: always neighbours in age, so that the
//! order stays. A list, replaced at once, says which runs there are; what is not in it was being made or removed when a process died.
//!
//! Nobody waits for a merge: who reads takes the list as it is, in memory, and the runs in it stay readable for as long as he does.
//! Merging takes its share of time by how many runs there are: the more, the larger, until nothing but merging is done in its threads. With
//! [`RUNS_MAX`] of them the next checkpoint waits, so that there are never more files, nor more places to look for a row.
//!
//! A deletion is a row like any other, and stays one. That nobody reads below it any more is not enough to drop it: a replica whose base table has
//! no row of a key has no objection to a transaction that has read the version before the deletion, which a liar or a replica that missed
//! the deletion may still show, nor to taking that version over from these.

pub(crate) mod damage;
mod filter;
mod merge;
mod run;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::{Buf as _, Bytes};
use mutants::{Mutant, broken};
use types::codec::Encode as _;
use types::{Direction, Key};
use xxhash_rust::xxh3::xxh3_64;

use crate::disk::{ends_with_its_checksum, failed, file_names, in_background, replace_file, sync_directory};
use crate::{BaseRows, BaseTable, Row, StoreError};
use merge::Merge;
use run::{Run, RunWriter};

/// The list of runs.
const LIST: &str = "runs";
const LIST_FORMAT: u32 = 1;
/// So many runs are merged at least.
const MERGED_MIN: usize = 16;
/// With so many runs in all, merging does not rest any more.
const RUNS_FULL: usize = 3 * MERGED_MIN;
/// With so many runs a checkpoint waits until some are merged.
const RUNS_MAX: usize = 256;
/// How many times as long as it has worked merging would rest if there were no runs; with the 16 that a merge needs, two thirds of that. All replicas of
/// a shard have the same rows, and so merge at the same time: they had better do so slowly.
const REST_MAX: f64 = 40.0;
/// The longest single rest.
const REST_AT_ONCE_MAX: Duration = Duration::from_millis(500);
/// How many bytes are merged between two rests. Whoever stops the store waits for as much.
const STEP_BYTES: usize = 512 << 10;
/// So much of the disk is given back between two rests. A file of hundreds of megabytes that goes at once has everybody who syncs wait for a tenth of
/// a second and more, where the disk is told of what it need not keep.
const FREED_BYTES: u64 = 8 << 20;
/// The longest rest between two of these steps: so 100 GiB take a quarter of an hour at most.
const FREE_REST_MAX: Duration = Duration::from_millis(50);
/// How soon is looked again for what could not be given back, as somebody read it.
const FREE_AGAIN: Duration = Duration::from_secs(1);
/// One merges what is new while the other may be at what is large.
const MERGERS: usize = 2;
/// How much of a run is read at once: when it is merged, and when rows are looked at.
const MERGE_AHEAD: usize = 256 << 10;
const SCAN_AHEAD: usize = 16 << 10;

/// The base table. Its threads are [`Mergers`].
pub(crate) struct Base {
    directory: PathBuf,
    state: Mutex<State>,
    changed: Condvar,
    /// Held while the list is replaced.
    replacing: Mutex<()>,
    is_stopped: AtomicBool,
}

struct State {
    /// Newest first.
    runs: Arc<[Arc<Run>]>,
    next_number: u64,
    /// The numbers of the runs that are being merged.
    busy: BTreeSet<u64>,
    /// Why a merge failed.
    failure: Option<String>,
}

impl Base {
    /// Makes an empty base table in `directory`, durably.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn create(directory: &Path) -> Result<(), StoreError> {
        write_list(directory, 1, &[])
    }

    /// Opens the base table in `directory`, and removes what is not in its list.
    ///
    /// # Errors
    /// When a part is missing, damaged or of a newer format, or the disk fails.
    pub fn open(directory: &Path) -> Result<Arc<Self>, StoreError> {
        let (next_number, numbers) = read_list(directory)?;
        let runs = numbers.iter().map(|number| Run::open(directory, *number).map(Arc::new)).collect::<Result<Vec<_>, _>>();
        let runs = runs.inspect_err(|error| damage::note(directory, error))?;
        damage::remove_given_up(directory)?;
        let known: BTreeSet<String> = numbers.iter().map(|number| run::file_name(*number)).collect();
        for name in file_names(directory)?.into_iter().filter(|name| name.ends_with(".run") && !known.contains(name)) {
            let path = directory.join(name);
            fs::remove_file(&path).map_err(failed("remove", &path))?;
        }
        let state = State { runs: runs.into(), next_number, busy: BTreeSet::new(), failure: None };
        Ok(Arc::new(Self {
            directory: directory.to_owned(),
            state: Mutex::new(state),
            changed: Condvar::new(),
            replacing: Mutex::new(()),
            is_stopped: AtomicBool::new(false),
        }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Each change is one assignment, so a thread that panicked left nothing half done.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many rows its runs have together: newer ones may hide some.
    pub fn rows_about(&self) -> u64 {
        self.state().runs.iter().map(|run| run.rows).sum()
    }

    /// The row of `key`.
    ///
    /// # Errors
    /// When the base table is damaged, or the disk fails.
    pub fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StoreError> {
        let runs = self.state().runs.clone();
        self.get_in(&runs, key)
    }

    fn get_in(&self, runs: &[Arc<Run>], key: &[u8]) -> Result<Option<Bytes>, StoreError> {
        let hash = run::hash(key);
        for run in runs {
            if let Some(row) = self.noted(run.get(key, hash))? {
                return Ok(Some(row));
            }
        }
        Ok(None)
    }

    /// Has the disk read the blocks in which these keys' rows are, if they are anywhere, without waiting for it.
    pub fn read_ahead<'a>(&self, keys: impl Iterator<Item = &'a [u8]>) {
        let runs = self.state().runs.clone();
        for key in keys {
            let hash = run::hash(key);
            // The newest run that may have it mostly does.
            let _ = runs.iter().any(|run| run.read_ahead(key, hash));
        }
    }

    /// What was read; if it could not be, that is noted for the next process.
    fn noted<T>(&self, read: Result<T, StoreError>) -> Result<T, StoreError> {
        read.inspect_err(|error| damage::note(&self.directory, error))
    }

    /// It as it is now.
    pub fn now(self: &Arc<Self>) -> Kept {
        Kept { base: self.clone(), runs: self.state().runs.clone() }
    }

    /// Adds rows, ascending, durably. They are newer than all that is there. It waits while there are too many runs.
    ///
    /// # Errors
    /// When the disk fails, a merge has failed before, or the base table is stopped while this waits.
    pub fn add(&self, rows: &[Row<'_>]) -> Result<(), StoreError> {
        self.wait_for_room()?;
        if rows.is_empty() {
            return Ok(());
        }
        let whole = self.write_run(rows.len() as u64, |writer| {
            rows.iter().try_for_each(|row| writer.push(*row))?;
            Ok(true)
        });
        let Some(run) = whole? else { return Ok(()) };
        self.replace(|runs| std::iter::once(run).chain(runs.iter().cloned()).collect())?;
        self.changed.notify_all();
        Ok(())
    }

    fn wait_for_room(&self) -> Result<(), StoreError> {
        let mut state = self.state();
        loop {
            if let Some(failure) = state.failure.clone() {
                return Err(StoreError::io("merge runs of the base table")(std::io::Error::other(failure)));
            }
            if state.runs.len() < RUNS_MAX || broken(Mutant::RunsUnbounded) {
                return Ok(());
            }
            if self.is_stopped.load(Ordering::Acquire) {
                return Err(StoreError::Closed("it was stopped".to_owned()));
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Nothing is merged any more, and nobody waits for that.
    pub fn stop(&self) {
        self.is_stopped.store(true, Ordering::Release);
        drop(self.state()); // Whoever has looked at that before is waiting by now.
        self.changed.notify_all();
    }

    fn take_number(&self) -> u64 {
        let mut state = self.state();
        state.next_number += 1;
        state.next_number - 1
    }

    /// Replaces the list of runs, durably.
    fn replace(&self, change: impl FnOnce(&[Arc<Run>]) -> Vec<Arc<Run>>) -> Result<(), StoreError> {
        let _replacing = self.replacing.lock().unwrap_or_else(PoisonError::into_inner);
        let (runs, next_number) = {
            let state = self.state();
            (change(&state.runs), state.next_number)
        };
        // Their names are durable before the list has them.
        sync_directory(&self.directory)?;
        write_list(&self.directory, next_number, &runs)?;
        self.state().runs = runs.into();
        Ok(())
    }

    /// Merges for as long as the base table is open. Should that panic, the next checkpoint tells.
    fn merge_on(&self) {
        let _told = TellsOfPanic(self);
        let mut replaced = Vec::new();
        let mut state = self.state();
        while !self.is_stopped.load(Ordering::Acquire) {
            let sizes: Vec<(u64, bool)> = state.runs.iter().map(|run| (run.bytes, state.busy.contains(&run.number))).collect();
            let Some(window) = choose(&sizes) else {
                if replaced.is_empty() {
                    state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                } else {
                    drop(self.changed.wait_timeout(state, FREE_AGAIN).unwrap_or_else(PoisonError::into_inner));
                    self.free(&mut replaced);
                    state = self.state();
                }
                continue;
            };
            let merged: Vec<Arc<Run>> = state.runs[window].to_vec();
            state.busy.extend(merged.iter().map(|run| run.number));
            drop(state);
            let numbers: Vec<u64> = merged.iter().map(|run| run.number).collect();
            let result = self.noted(self.merge(merged, &mut replaced));
            let mut told = self.state();
            numbers.iter().for_each(|number| _ = told.busy.remove(number));
            self.changed.notify_all(); // There may be room now, or there never will be.
            if let Err(error) = result {
                told.failure = Some(error.to_string());
                return;
            }
            drop(told);
            self.free(&mut replaced);
            state = self.state();
        }
    }

    /// Gives back what runs take of the disk that are in the list no more, step by step. Those that somebody still reads are left to the next time.
    fn free(&self, replaced: &mut Vec<(Arc<Run>, Option<File>)>) {
        let (read, unread) = replaced.drain(..).partition(|(run, _)| Arc::strong_count(run) > 1 && !broken(Mutant::ReadRunFreed));
        *replaced = read;
        let mut begun = Instant::now();
        for (run, file) in unread {
            let mut left = run.bytes;
            // What cannot be shortened goes at once with its last handle.
            while self.rest(&mut begun, FREE_REST_MAX) && left > FREED_BYTES {
                left -= FREED_BYTES;
                if file.as_ref().is_none_or(|file| file.set_len(left).is_err()) {
                    break;
                }
            }
        }
    }

    /// Writes a run of at most `rows_max` rows, unless `fill` gives `false`. Nothing is left of one that did not come to its end: a disk that
    /// is full would stay so.
    fn write_run(
        &self,
        rows_max: u64,
        fill: impl FnOnce(&mut RunWriter) -> Result<bool, StoreError>,
    ) -> Result<Option<Arc<Run>>, StoreError> {
        let number = self.take_number();
        let write = || {
            let mut writer = RunWriter::create(&self.directory, number, rows_max)?;
            if fill(&mut writer)? { writer.finish().map(|run| Some(Arc::new(run))) } else { Ok(None) }
        };
        let written = write();
        if !matches!(written, Ok(Some(_))) {
            // Should this fail, too, the next process removes it.
            drop(fs::remove_file(self.directory.join(run::file_name(number))));
        }
        written
    }

    /// Makes one run of several, newest first, which are neighbours in the list. They are `replaced` then.
    fn merge(&self, merged: Vec<Arc<Run>>, replaced: &mut Vec<(Arc<Run>, Option<File>)>) -> Result<(), StoreError> {
        let rows_max = merged.iter().map(|run| run.rows).sum();
        let whole = self.write_run(rows_max, |writer| {
            let mut merge = Merge::new(&merged, Direction::Ascending, MERGE_AHEAD);
            merge.seek(None)?;
            let (mut bytes, mut begun) = (0, Instant::now());
            while let Some(row) = merge.row() {
                bytes += row.key.len() + row.row.len();
                writer.push(row)?;
                merge.advance()?;
                if bytes >= STEP_BYTES {
                    bytes = 0;
                    if !self.rest(&mut begun, REST_AT_ONCE_MAX) {
                        return Ok(false);
                    }
                }
            }
            Ok(true)
        });
        let Some(run) = whole? else { return Ok(()) };
        let newest = merged[0].number;
        self.replace(|runs| {
            let at = runs.iter().position(|run| run.number == newest).expect("nobody else takes out what is being merged");
            let mut runs = runs.to_vec();
            runs.splice(at..at + merged.len(), [run]);
            runs
        })?;
        // Should the process die here, the next one removes them.
        for run in merged {
            let file = run.unlink(2 * FREED_BYTES)?;
            replaced.push((run, file));
        }
        Ok(())
    }

    /// Rests after work that has begun at `begun`, by how many runs there are, and for so long at most. Gives whether to go on.
    fn rest(&self, begun: &mut Instant, at_most: Duration) -> bool {
        let state = self.state();
        let debt = (state.runs.len() as f64 / RUNS_FULL as f64).min(1.0);
        let rest = begun.elapsed().mul_f64(REST_MAX * (1.0 - debt)).min(at_most);
        let goes_on = |_: &mut State| !self.is_stopped.load(Ordering::Acquire);
        drop(self.changed.wait_timeout_while(state, rest, goes_on).unwrap_or_else(PoisonError::into_inner));
        *begun = Instant::now();
        !self.is_stopped.load(Ordering::Acquire)
    }
}

/// What a base table had at one moment. Its runs are not given back to the disk while this lives.
pub(crate) struct Kept {
    base: Arc<Base>,
    runs: Arc<[Arc<Run>]>,
}

impl Kept {
    fn scan(&self, direction: Direction) -> Scan {
        Scan { base: self.base.clone(), merge: Merge::new(&self.runs, direction, SCAN_AHEAD) }
    }
}

impl BaseTable for Kept {
    fn rows(&self, direction: Direction) -> Box<dyn BaseRows> {
        Box::new(self.scan(direction))
    }

    fn get(&self, key: &Key) -> Result<Option<Bytes>, StoreError> {
        self.base.get_in(&self.runs, key.as_bytes())
    }
}

/// The rows that a base table had when this began.
pub(crate) struct Scan {
    base: Arc<Base>,
    merge: Merge,
}

impl BaseRows for Scan {
    fn seek(&mut self, begin: Option<&Key>) -> Result<(), StoreError> {
        self.base.noted(self.merge.seek(begin.map(Key::as_bytes)))
    }

    fn row(&self) -> Option<Row<'_>> {
        self.merge.row()
    }

    fn advance(&mut self) -> Result<(), StoreError> {
        self.base.noted(self.merge.advance())
    }

    fn read_bytes(&self) -> usize {
        self.merge.read_bytes()
    }
}

/// Which runs to merge, by their sizes, newest first, and whether they are being merged: the newest, as long as none is larger than all newer
/// ones together, if these are enough. So a row is merged again only when its run is no larger than what it is merged with: about as
/// often as the table is twice as large as a few checkpoints. Where there are so many runs that checkpoints wait, and none of this holds, the smallest
/// neighbours are merged.
fn choose(sizes: &[(u64, bool)]) -> Option<Range<usize>> {
    let (mut taken, mut sum) = (0, 0);
    for (bytes, is_busy) in sizes {
        if *is_busy || (taken > 0 && *bytes > sum) {
            break;
        }
        (taken, sum) = (taken + 1, sum + bytes);
    }
    if taken >= MERGED_MIN {
        return Some(0..taken);
    }
    let windows =
        sizes.windows(MERGED_MIN).enumerate().filter(|(_, runs)| sizes.len() >= RUNS_MAX && runs.iter().all(|(_, is_busy)| !is_busy));
    let smallest = windows.min_by_key(|(_, runs)| runs.iter().map(|(bytes, _)| bytes).sum::<u64>());
    smallest.map(|(at, _)| at..at + MERGED_MIN)
}

/// Says of a base table that a thread which merged it has panicked, if it has when this is dropped.
struct TellsOfPanic<'a>(&'a Base);

impl Drop for TellsOfPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() && !broken(Mutant::MergePanicUntold) {
            self.0.state().failure = Some("the thread that merges them panicked".to_owned());
            self.0.changed.notify_all();
        }
    }
}

/// The threads that merge. They end with this.
pub(crate) struct Mergers {
    base: Arc<Base>,
    threads: Vec<JoinHandle<()>>,
}

impl Mergers {
    /// Begins to merge.
    ///
    /// # Errors
    /// When there are no threads.
    pub fn start(base: &Arc<Base>) -> Result<Self, StoreError> {
        let mut mergers = Self { base: base.clone(), threads: Vec::new() };
        for _ in 0..MERGERS {
            let base = base.clone();
            mergers.threads.push(in_background("store-merge", move || base.merge_on())?);
        }
        Ok(mergers)
    }
}

impl Drop for Mergers {
    fn drop(&mut self) {
        self.base.stop();
        // What they were at is done again, or not needed.
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

/// Writes the list: the next run's number, and the numbers of the runs, newest first.
fn write_list(directory: &Path, next_number: u64, runs: &[Arc<Run>]) -> Result<(), StoreError> {
    let mut out = Vec::new();
    LIST_FORMAT.encode(&mut out);
    next_number.encode(&mut out);
    runs.iter().for_each(|run| run.number.encode(&mut out));
    xxh3_64(&out).encode(&mut out);
    replace_file(directory, LIST, &out)
}

fn read_list(directory: &Path) -> Result<(u64, Vec<u64>), StoreError> {
    let path = directory.join(LIST);
    let location = path.display().to_string();
    let bytes = fs::read(&path).map_err(failed("read", &path))?;
    let corrupt = |reason: &str| StoreError::Corrupt { location: location.clone(), offset: 0, reason: reason.to_owned() };
    if !ends_with_its_checksum(&bytes) {
        return Err(corrupt("its checksum does not match"));
    }
    let mut rest = &bytes[..];
    match rest.try_get_u32_le() {
        Ok(LIST_FORMAT) if bytes.len() % 8 == 4 => {}
        Ok(found) if found > LIST_FORMAT => return Err(StoreError::NewerFormat { location, found, known: LIST_FORMAT }),
        _ => return Err(corrupt("it was not written as a list of runs")),
    }
    let next_number = rest.get_u64_le();
    let mut numbers = Vec::new();
    while rest.len() > 8 {
        numbers.push(rest.get_u64_le());
    }
    Ok((next_number, numbers))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// What a base table should have.
    type Model = BTreeMap<Vec<u8>, Vec<u8>>;

    fn all(base: &Arc<Base>, from: &[u8]) -> Vec<(Vec<u8>, Vec<u8>)> {
        between(base, (from, None), Direction::Ascending)
    }

    fn between(base: &Arc<Base>, keys: (&[u8], Option<&[u8]>), direction: Direction) -> Vec<(Vec<u8>, Vec<u8>)> {
        from_there_on(&mut base.now().scan(direction), keys, direction)
    }

    /// The rows that a scan, wherever it is, finds between these keys.
    fn from_there_on(scan: &mut Scan, (low, high): (&[u8], Option<&[u8]>), direction: Direction) -> Vec<(Vec<u8>, Vec<u8>)> {
        let begin = if direction == Direction::Ascending { Some(low) } else { high };
        let key = |bytes: &[u8]| Key::new(bytes.to_vec()).expect("it is short");
        scan.seek(begin.map(key).as_ref()).expect("the disk is whole");
        let mut rows = Vec::new();
        while let Some(Row { key, row }) = scan.row().filter(|row| row.key >= low && high.is_none_or(|high| row.key < high)) {
            rows.push((key.to_vec(), row.to_vec()));
            scan.advance().expect("the disk is whole");
        }
        rows
    }

    fn add(base: &Base, model: &mut Model, rows: impl IntoIterator<Item = (Vec<u8>, Vec<u8>)>) {
        let rows: Model = rows.into_iter().collect();
        let added: Vec<Row<'_>> = rows.iter().map(|(key, row)| Row { key, row }).collect();
        base.add(&added).expect("the disk is whole");
        model.extend(rows);
    }

    /// A small fixed sequence.
    fn random(state: &mut u64, below: u64) -> u64 {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*state >> 33) % below
    }

    fn drawn(state: &mut u64, number: u64) -> (Vec<u8>, Vec<u8>) {
        // Keys of all lengths, many of which begin alike, and now and then a row longer than a block.
        let drawn = random(state, 300);
        let key = [&[7; 20][..drawn as usize % 20], &drawn.to_be_bytes()[6..]].concat();
        let mut row = vec![drawn as u8; if random(state, 40) == 0 { 9_000 } else { drawn as usize }];
        number.encode(&mut row);
        (key, row)
    }

    #[test]
    fn is_as_a_sorted_map_is_whatever_is_merged_and_reopened() {
        for seed in 0..6 {
            let directory = tempfile::tempdir().expect("a temporary directory");
            Base::create(directory.path()).expect("the disk is whole");
            let (mut base, mut model, mut state) = (Base::open(directory.path()).expect("it is new"), Model::new(), seed);
            let mut replaced = Vec::new();
            for step in 0..40 {
                let count = [0, 1, 3, 200][random(&mut state, 4) as usize];
                let rows: Vec<_> = (0..count).map(|_| drawn(&mut state, step)).collect();
                add(&base, &mut model, rows);
                match random(&mut state, 6) {
                    0 => base = Base::open(directory.path()).expect("it is whole"),
                    1 => {
                        let runs = base.state().runs.clone();
                        let from = random(&mut state, runs.len() as u64 + 1) as usize;
                        let to = from + random(&mut state, (runs.len() - from) as u64 + 1) as usize;
                        if from < to {
                            base.merge(runs[from..to].to_vec(), &mut replaced).expect("the disk is whole");
                            assert_eq!(base.state().runs.len(), runs.len() - (to - from) + 1);
                        }
                    }
                    _ => {}
                }
                let (from, _) = drawn(&mut state, 0);
                let expected = model.range(from.clone()..).map(|(key, row)| (key.clone(), row.clone()));
                assert!(all(&base, &from).into_iter().eq(expected), "seed {seed}, step {step}");
                let (one, other) = (from, drawn(&mut state, 0).0);
                let (low, high) = (one.clone().min(other.clone()), one.max(other));
                for direction in [Direction::Ascending, Direction::Descending] {
                    // One that goes elsewhere, further on or back again, finds the same.
                    let mut scan = base.now().scan(direction);
                    for _ in 0..6 {
                        let (one, other) = (drawn(&mut state, 0).0, drawn(&mut state, 0).0);
                        let (low, high) = (one.clone().min(other.clone()), one.max(other));
                        let found = from_there_on(&mut scan, (&low, Some(&high)), direction);
                        let expected = direction.of(model.range(low..high)).map(|(key, row)| (key.clone(), row.clone()));
                        assert!(found.into_iter().eq(expected), "seed {seed}, step {step}");
                    }
                    let expected = direction.of(model.range(low.clone()..high.clone())).map(|(key, row)| (key.clone(), row.clone()));
                    assert!(between(&base, (&low, Some(&high)), direction).into_iter().eq(expected), "seed {seed}, step {step}");
                    let expected = direction.of(model.range(low.clone()..)).map(|(key, row)| (key.clone(), row.clone()));
                    assert!(between(&base, (&low, None), direction).into_iter().eq(expected), "seed {seed}, step {step}");
                }
                for key in (0..5).map(|_| drawn(&mut state, 0).0) {
                    let found = base.get(&key).expect("the disk is whole").map(|row| row.to_vec());
                    assert_eq!(found, model.get(&key).cloned(), "seed {seed}, step {step}");
                }
            }
            let files = file_names(directory.path()).expect("it is there").len();
            assert_eq!(files, base.state().runs.len() + 1, "merged runs are removed");
        }
    }

    #[test]
    fn is_merged_in_the_background_until_there_is_little_left_to_merge() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        Base::create(directory.path()).expect("the disk is whole");
        let (base, mut model) = (Base::open(directory.path()).expect("it is new"), Model::new());
        let mergers = Mergers::start(&base).expect("there are threads");
        for step in 0..200_u64 {
            add(&base, &mut model, (0..50).map(|number| ((number * 7 + step % 7_u64).to_be_bytes().to_vec(), vec![step as u8; 100])));
        }
        while base.state().runs.len() >= 2 * MERGED_MIN {
            assert!(base.state().failure.is_none());
            std::thread::yield_now();
        }
        assert!(all(&base, &[]).into_iter().eq(model.clone()));
        drop(mergers);
        assert!(all(&Base::open(directory.path()).expect("it is whole"), &[]).into_iter().eq(model));
    }

    #[test]
    fn a_failed_merge_is_told_by_the_next_checkpoint() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        Base::create(directory.path()).expect("the disk is whole");
        let base = Base::open(directory.path()).expect("it is new");
        for number in 1..=MERGED_MIN as u64 {
            base.add(&[Row { key: b"k", row: &[7; 100] }]).expect("the disk is whole");
            let path = directory.path().join(run::file_name(number));
            let mut bytes = fs::read(&path).expect("a run");
            bytes[50] ^= 1;
            fs::write(&path, bytes).expect("writable");
        }
        base.merge_on();
        let error = base.add(&[Row { key: b"k", row: b"r" }]).expect_err("a merge has failed").to_string();
        assert!(error.contains(".run is damaged"), "{error}");
    }

    /// A base table of so many runs, each of so many rows of so many bytes.
    fn many(directory: &Path, runs: usize, rows: usize, row_bytes: usize) -> Arc<Base> {
        Base::create(directory).expect("the disk is whole");
        let base = Base::open(directory).expect("it is new");
        for _ in 0..runs {
            add(&base, &mut Model::new(), (0..rows).map(|row| (row.to_be_bytes().to_vec(), vec![7; row_bytes])));
        }
        base
    }

    #[test]
    fn who_stops_it_waits_for_little_however_long_the_rows_are() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let base = many(directory.path(), 2, 3, STEP_BYTES);
        let runs = base.state().runs.clone();
        base.stop();
        base.merge(runs.to_vec(), &mut Vec::new()).expect("the disk is whole");
        assert_eq!(base.state().runs.len(), 2, "it has not gone on to the end");
        assert_eq!(file_names(directory.path()).expect("it is there").len(), 3, "nothing is left of what it began");
    }

    #[test]
    fn a_row_that_was_written_anew_may_count_for_each_time() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let base = many(directory.path(), 2, 3, 10);
        assert_eq!(base.rows_about(), 6);
        let runs = base.state().runs.clone();
        base.merge(runs.to_vec(), &mut Vec::new()).expect("the disk is whole");
        assert_eq!(base.rows_about(), 3);
    }

    #[test]
    fn what_was_merged_is_given_back_once_nobody_reads_it_any_more() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let base = many(directory.path(), 3, 20, 1 << 20);
        let mut scan = base.now().scan(Direction::Ascending);
        let (runs, mut replaced) = (base.state().runs.to_vec(), Vec::new());
        base.merge(runs, &mut replaced).expect("the disk is whole");
        assert_eq!(file_names(directory.path()).expect("it is there").len(), 2, "the list and one run");
        base.free(&mut replaced);
        assert_eq!(from_there_on(&mut scan, (&[], None), Direction::Ascending).len(), 20);
        let files: Vec<File> = replaced.iter().filter_map(|(_, file)| file.as_ref()?.try_clone().ok()).collect();
        let lengths = || files.iter().map(|file| file.metadata().expect("it is open").len()).collect::<Vec<_>>();
        assert!(files.len() == 3 && lengths().iter().all(|length| *length > 20 << 20), "{:?}", lengths());
        drop(scan);
        base.free(&mut replaced);
        assert!(replaced.is_empty() && lengths().iter().all(|length| *length <= FREED_BYTES), "{:?}", lengths());
    }

    #[test]
    fn what_has_another_name_is_left_as_it_is() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let base = many(directory.path(), 2, 20, 1 << 20);
        let kept = directory.path().join("kept");
        fs::hard_link(directory.path().join(run::file_name(1)), &kept).expect("links can be made");
        let bytes = fs::metadata(&kept).expect("it is there").len();
        let (runs, mut replaced) = (base.state().runs.to_vec(), Vec::new());
        base.merge(runs, &mut replaced).expect("the disk is whole");
        base.free(&mut replaced);
        assert!(replaced.is_empty() && fs::metadata(&kept).expect("it is there").len() == bytes);
    }

    #[test]
    fn with_too_many_runs_a_checkpoint_waits_until_some_are_merged() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let base = many(directory.path(), RUNS_MAX, 1, 10);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| base.add(&[Row { key: b"k", row: b"r" }]));
            let mergers = Mergers::start(&base).expect("there are threads");
            waiting.join().expect("it does not panic").expect("the disk is whole");
            drop(mergers);
        });
        assert!(base.state().runs.len() < RUNS_MAX && base.get(b"k").expect("the disk is whole").is_some());
    }

    #[test]
    fn who_waits_for_merging_is_told_when_it_stops() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let base = many(directory.path(), RUNS_MAX, 1, 10);
        base.stop();
        let error = base.add(&[Row { key: b"k", row: b"r" }]).expect_err("nothing is merged any more").to_string();
        assert!(error.contains("stopped"), "{error}");
    }

    #[test]
    fn a_merge_that_panics_is_told_by_the_next_checkpoint() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let base = many(directory.path(), 1, 1, 10);
        let panicked = std::thread::scope(|scope| {
            let merging = scope.spawn(|| {
                let _told = TellsOfPanic(&base);
                panic!("on purpose");
            });
            merging.join().is_err()
        });
        assert!(panicked);
        let error = base.add(&[Row { key: b"k", row: b"r" }]).expect_err("a merge has panicked").to_string();
        assert!(error.contains("panicked"), "{error}");
    }

    #[test]
    fn with_too_many_runs_some_are_merged_whatever_their_sizes() {
        let growing = |busy: usize| (0..RUNS_MAX).map(|age| (1_000 + age as u64, age < busy)).collect::<Vec<_>>();
        assert_eq!(choose(&growing(0)[1..]), None);
        assert_eq!(choose(&growing(0)), Some(0..MERGED_MIN));
        assert_eq!(choose(&growing(5)), Some(5..5 + MERGED_MIN));
        assert_eq!(choose(&growing(RUNS_MAX)), None);
    }

    #[test]
    fn each_row_is_merged_seldom_and_there_are_few_runs() {
        // Checkpoints of one size, none of whose keys is written twice: the most that can grow.
        let (mut sizes, mut written, mut most) = (Vec::new(), 0, 0);
        for _ in 0..5_000 {
            sizes.insert(0, (10_u64, false));
            written += 10;
            while let Some(window) = choose(&sizes) {
                let sum: u64 = sizes[window.clone()].iter().map(|(bytes, _)| bytes).sum();
                written += sum;
                sizes.splice(window, [(sum, false)]);
            }
            most = most.max(sizes.len());
        }
        assert!(written <= 10 * 50_000 && most <= 32, "{written} bytes written for 50,000, {most} runs");
        assert_eq!(choose(&[(1, false); 40]), Some(0..40));
        assert_eq!(choose(&[[(1, false); 10], [(1, true); 10]].concat()), None);
        assert_eq!(choose(&[[(1, false); 20], [(1, true); 20]].concat()), Some(0..20));
    }
}
