//! Drives the store alone as a replica does, for minutes of its life in less time, and says second by second what that costs.
//!
//! `cargo run --release -p store --example endurance -- [--workload uniform|skewed|insert|delete] [--keys N] [--rate TX] [--seconds S]
//! [--speed X] [--cache-mib M] [--turn TX] [--every S] [--directory DIR] [--load-only]`
//!
//! Each transaction reads two keys and writes two. It is judged, journaled, committed, and forgotten when it leaves the window of 30 s, and
//! checkpoints follow the rules of a replica of Basil, all by a simulated clock. That runs `--speed` times as fast as the real one,
//! or slower where the writer does not keep up, so that background work has its share of time. CPU seconds and bytes a simulated second are
//! what to compare: they depend little on what else the machine does. At the end the process is replaced, as if it had been killed, and
//! opens what it left.

use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use store::{Disk, DiskOptions, KeyMeta, Options, SegmentNumber, Store, Version};
use types::{ClientId, Direction, Key, Timestamp, Value};

type Failure = Box<dyn std::error::Error>;

// What a node allocates with: linked, it takes the place of the system's `malloc`.
use mimalloc as _;

const OWNER: &str = "endurance";
const SECOND: u64 = 1_000_000_000;
const WINDOW: u64 = 30 * SECOND;
/// As in a replica's options.
const CHECKPOINT_EVERY: u64 = 5 * SECOND;
const JOURNAL_BYTES_MAX: u64 = 512 << 20;
const POLL_EVERY: u64 = 3_000_000;
const FORGET_EVERY: u64 = 2_000_000;
/// What a replica journals of one transaction: it with its vote, and later how it ended.
const VOTED_BYTES: usize = 380;
const ENDED_BYTES: usize = 60;
const VALUE_BYTES: usize = 100;
/// The first transaction's time.
const BEGINNING: u64 = 1_000 * SECOND;

#[derive(Clone, Copy, PartialEq)]
enum Workload {
    Uniform,
    Skewed,
    Insert,
    Delete,
}

struct Settings {
    workload: Workload,
    keys: u64,
    rate: u64,
    seconds: u64,
    speed: f64,
    cache_bytes: u64,
    turn: u64,
    every: u64,
    memtable_bytes_max: usize,
    directory: PathBuf,
}

/// About as large as what a replica keeps with a key: whether somebody in the window has read it.
#[derive(Default)]
struct Readers {
    count: u64,
    _others: [u64; 1],
}

impl KeyMeta for Readers {
    fn is_empty(&self) -> bool {
        self.count == 0
    }
}

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().collect();
    let text = |name: &str| arguments.iter().position(|argument| argument == name).and_then(|at| arguments.get(at + 1)).cloned();
    let number = |name: &str, default: f64| text(name).map_or(Ok(default), |text| text.parse::<f64>());
    let workload = match text("--workload").as_deref() {
        None | Some("uniform") => Workload::Uniform,
        Some("skewed") => Workload::Skewed,
        Some("insert") => Workload::Insert,
        Some("delete") => Workload::Delete,
        Some(other) => return Err(format!("no workload is called {other}").into()),
    };
    let settings = Settings {
        workload,
        keys: number("--keys", 1e6)? as u64,
        rate: number("--rate", 12_000.0)? as u64,
        seconds: number("--seconds", 600.0)? as u64,
        speed: number("--speed", 6.0)?,
        cache_bytes: (number("--cache-mib", 512.0)? * f64::from(1 << 20)) as u64,
        turn: number("--turn", 50.0)? as u64,
        every: (number("--every", 10.0)? as u64).max(1),
        memtable_bytes_max: (number("--memtable-mib", 128.0)? * f64::from(1 << 20)) as usize,
        directory: text("--directory").map_or_else(|| std::env::temp_dir().join("bezant-endurance"), PathBuf::from),
    };
    if let Some(kept) = text("--reopen") {
        return reopen(&settings, Path::new(&kept));
    }
    fs::create_dir_all(&settings.directory)?;
    let directory = settings.directory.join(format!("store-{}", std::process::id()));
    Disk::create(&directory, OWNER)?;
    Life::open(&settings, &directory)?.run(&settings, &directory)?;
    // Replaced with all its threads, whatever they were at, without a word to any of them.
    Err(Command::new(std::env::current_exe()?).args(&arguments[1..]).arg("--reopen").arg(&directory).exec().into())
}

fn open(settings: &Settings, directory: &Path) -> Result<Store<Disk>, Failure> {
    let options = Options { cache_bytes_max: settings.cache_bytes as usize, ..Options::default() };
    Ok(Store::open(Disk::open(directory, OWNER, DiskOptions::default())?, options)?)
}

fn reopen(settings: &Settings, directory: &Path) -> Result<(), Failure> {
    let begun = Instant::now();
    let mut store = open(settings, directory)?;
    let opened = begun.elapsed();
    let (mut records, mut bytes) = (0, 0);
    while let Some(batch) = store.replay()? {
        records += batch.records.len();
        bytes += batch.records.iter().map(bytes::Bytes::len).sum::<usize>();
    }
    println!(
        "opened in {opened:?}, and its journal of {records} records, {} MiB, read in {:?} more",
        bytes >> 20,
        begun.elapsed() - opened
    );
    let (begun, mut random) = (Instant::now(), Random(5));
    for _ in 0..10_000 {
        store.latest_before(&key(random.below(settings.keys)), Timestamp::new(u64::MAX, ClientId(0)))?;
    }
    println!("10,000 reads of what is not in memory: {:.1} us each", begun.elapsed().as_secs_f64() * 100.0);
    let limits = store::PageLimits { keys: 100, bytes: 1 << 20 };
    let begun = Instant::now();
    for _ in 0..2_000 {
        let page =
            store.page((&key(random.below(settings.keys)), None), Direction::Ascending, Timestamp::new(u64::MAX, ClientId(0)), limits)?;
        assert!(!page.versions.is_empty() || page.next.is_none(), "there are keys");
    }
    println!("2,000 pages of 100 keys: {:.1} us each", begun.elapsed().as_secs_f64() * 500.0);
    drop(store);
    fs::remove_dir_all(directory)?;
    Ok(())
}

/// A transaction of the window: its time, and the keys that it read.
type Past = (u64, [u64; 2]);

/// A replica's life, as far as its store has part in it.
struct Life {
    store: Store<Disk, Readers>,
    now: u64,
    random: Random,
    value: Value,
    past: VecDeque<Past>,
    /// Keys that exist, for what grows.
    grown: u64,
    checkpoint_at: u64,
    poll_at: Option<u64>,
    forget_at: u64,
    wanted: u64,
    checkpointed: u64,
    segments: VecDeque<(SegmentNumber, u64)>,
    /// The longest that one call has taken since the last line, in microseconds.
    pause_us: u128,
    committed_bytes: u64,
    memtable_bytes_max: usize,
}

impl Life {
    fn open(settings: &Settings, directory: &Path) -> Result<Self, Failure> {
        let mut store = open(settings, directory)?.with_key_meta();
        while store.replay()?.is_some() {}
        let mut value = vec![0; VALUE_BYTES];
        let mut random = Random(7);
        value.iter_mut().for_each(|byte| *byte = random.below(256) as u8);
        Ok(Self {
            store,
            now: BEGINNING,
            random,
            value: Value::new(value).ok_or("it is short")?,
            past: VecDeque::new(),
            grown: settings.keys,
            checkpoint_at: BEGINNING + CHECKPOINT_EVERY,
            poll_at: None,
            forget_at: BEGINNING,
            wanted: 0,
            checkpointed: 0,
            segments: VecDeque::new(),
            pause_us: 0,
            committed_bytes: 0,
            memtable_bytes_max: settings.memtable_bytes_max,
        })
    }

    fn run(mut self, settings: &Settings, directory: &Path) -> Result<(), Failure> {
        let begun = Usage::take()?;
        let begun_at = Instant::now();
        self.load(settings.keys)?;
        let loaded = Usage::take()?;
        println!(
            "{} keys loaded: {:.1} s, {}",
            settings.keys,
            begun_at.elapsed().as_secs_f64(),
            loaded.since(&begun, 1.0, self.committed_bytes)
        );
        self.committed_bytes = 0;
        let (mut last, mut last_at, started, began) = (Usage::take()?, self.now, Instant::now(), self.now);
        let zipf = Zipf::new(settings.keys);
        for second in 1..=settings.seconds {
            for turn in 0..settings.rate / settings.turn {
                self.turn(settings, &zipf, settings.turn)?;
                self.now = began + (second - 1) * SECOND + turn * SECOND * settings.turn / settings.rate;
                self.housekeep()?;
                let due = started + Duration::from_secs_f64((self.now - began) as f64 / SECOND as f64 / settings.speed);
                std::thread::sleep(due.saturating_duration_since(Instant::now()));
            }
            if second % settings.every == 0 {
                let usage = Usage::take()?;
                let seconds = (self.now - last_at) as f64 / SECOND as f64;
                println!(
                    "{second:4} s: {}, slowest call {} us, base {} MiB, memtable {} MiB, journal {} MiB, {} base reads",
                    usage.since(&last, seconds, std::mem::take(&mut self.committed_bytes)),
                    std::mem::take(&mut self.pause_us),
                    size_of(&directory.join("base"))? >> 20,
                    self.store.memtable_bytes() >> 20,
                    self.store.journal_bytes() >> 20,
                    self.store.statistics().base_table_reads,
                );
                (last, last_at) = (usage, self.now);
            }
        }
        // Not dropped: it is killed.
        std::mem::forget(self);
        Ok(())
    }

    /// Writes each key once, in no order, and lets it be checkpointed.
    fn load(&mut self, keys: u64) -> Result<(), Failure> {
        for index in 0..keys {
            let number = index * 7_919 % keys;
            self.store.commit(
                &key(number),
                Version { timestamp: Timestamp::new(self.now + index, ClientId(1)), value: Some(self.value.clone()) },
            );
            self.committed_bytes += (key_bytes() + VALUE_BYTES) as u64;
            if index % 65_536 == 65_535 {
                self.store.begin_checkpoint(Timestamp::new(self.now + index, ClientId(0)))?;
                while self.store.is_checkpointing() && self.store.checkpoint_finished()?.is_none() {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        }
        self.now += WINDOW + SECOND;
        self.checkpoint_at = self.now;
        self.forget_at = self.now;
        Ok(())
    }

    fn turn(&mut self, settings: &Settings, zipf: &Zipf, transactions: u64) -> Result<(), Failure> {
        let begun = Instant::now();
        for number in 0..transactions {
            let time = self.now + number * (SECOND / settings.rate);
            let [r1, r2, w1, w2] = self.choose(settings, zipf);
            self.store.prefetch([r1, r2, w1, w2].map(key).iter());
            for read in [r1, r2] {
                let key = key(read);
                self.store.latest_timestamp_before(&key, Timestamp::new(time, ClientId(0)))?;
                self.store.update_meta(&key, |readers| readers.count += 1);
            }
            for write in [w1, w2] {
                let key = key(write);
                self.store.latest_timestamp_before(&key, Timestamp::new(time, ClientId(0)))?;
                let is_deleted = settings.workload == Workload::Delete && self.random.below(2) == 0;
                let value = (!is_deleted).then(|| self.value.clone());
                self.committed_bytes += (key_bytes() + if is_deleted { 0 } else { VALUE_BYTES }) as u64;
                self.store.commit(&key, Version { timestamp: Timestamp::new(time, ClientId(1 + number)), value });
            }
            self.store.append_with(|out| out.resize(out.len() + VOTED_BYTES, 0x5a));
            self.store.append_with(|out| out.resize(out.len() + ENDED_BYTES, 0xa5));
            self.past.push_back((time, [r1, r2]));
        }
        self.store.sync()?;
        self.note(begun);
        Ok(())
    }

    fn choose(&mut self, settings: &Settings, zipf: &Zipf) -> [u64; 4] {
        let mut choose = |_| match settings.workload {
            Workload::Uniform | Workload::Delete => self.random.below(settings.keys),
            Workload::Skewed => zipf.draw(&mut self.random),
            // Reads of what came lately.
            Workload::Insert => self.grown - 1 - self.random.below(settings.keys.min(1_000_000)),
        };
        let mut chosen = [0; 4].map(&mut choose);
        if settings.workload == Workload::Insert {
            (chosen[2], chosen[3]) = (self.grown, self.grown + 1);
            self.grown += 2;
        }
        chosen
    }

    /// What a replica does by the clock.
    fn housekeep(&mut self) -> Result<(), Failure> {
        let begun = Instant::now();
        let watermark = self.now.saturating_sub(WINDOW);
        if self.forget_at <= self.now {
            self.forget_at = self.now + FORGET_EVERY;
            while self.past.front().is_some_and(|(time, _)| *time < watermark) {
                let Some((_, reads)) = self.past.pop_front() else { break };
                reads.iter().for_each(|read| self.store.update_meta_if_present(&key(*read), |readers| readers.count -= 1));
            }
        }
        if self.poll_at.is_some_and(|at| at <= self.now) {
            self.poll_at = Some(self.now + POLL_EVERY);
            if let Some(reached) = self.store.checkpoint_finished()? {
                self.checkpointed = reached.time;
                self.poll_at = None;
                if reached.time < self.wanted {
                    self.begin_checkpoint()?;
                }
            }
        }
        if self.checkpoint_at <= self.now {
            self.checkpoint_at += CHECKPOINT_EVERY;
            while self.segments.front().is_some_and(|(_, highest)| *highest < self.checkpointed) {
                let Some((segment, _)) = self.segments.pop_front() else { break };
                self.store.release(segment)?;
            }
            let is_grown = self.store.memtable_bytes() > self.memtable_bytes_max || self.store.journal_bytes() > JOURNAL_BYTES_MAX;
            if is_grown && self.poll_at.is_none() {
                let current = self.store.rotate()?;
                self.segments.push_back((SegmentNumber(current.0 - 1), self.now));
                self.wanted = watermark;
                self.begin_checkpoint()?;
            }
        }
        self.note(begun);
        Ok(())
    }

    fn begin_checkpoint(&mut self) -> Result<(), Failure> {
        if self.store.begin_checkpoint(Timestamp::new(self.wanted, ClientId(0)))? {
            self.poll_at = Some(self.now + POLL_EVERY);
        }
        Ok(())
    }

    fn note(&mut self, begun: Instant) {
        self.pause_us = self.pause_us.max(begun.elapsed().as_micros());
    }
}

/// What the process has used so far.
struct Usage {
    /// CPU seconds, of threads that live and of all together.
    threads: BTreeMap<String, f64>,
    all: f64,
    written: u64,
    memory: u64,
}

impl Usage {
    fn take() -> Result<Self, Failure> {
        let mut threads = BTreeMap::<String, f64>::new();
        for task in fs::read_dir("/proc/self/task")? {
            let path = task?.path();
            let (Ok(name), Ok(used)) = (fs::read_to_string(path.join("comm")), fs::read_to_string(path.join("schedstat"))) else {
                continue;
            };
            let used = used.split_whitespace().next().and_then(|used| used.parse::<f64>().ok()).unwrap_or(0.0);
            *threads.entry(name.trim().to_owned()).or_default() += used / SECOND as f64;
        }
        let stat = fs::read_to_string("/proc/self/stat")?;
        let fields: Vec<&str> = stat.rsplit_once(')').ok_or("stat has a name")?.1.split_whitespace().collect();
        let field = |file: &str, name: &str| -> Result<u64, Failure> {
            let text = fs::read_to_string(file)?;
            let line = text.lines().find_map(|line| line.strip_prefix(name)).ok_or("the field is there")?;
            Ok(line.split_whitespace().next().ok_or("it has a number")?.parse()?)
        };
        Ok(Self {
            threads,
            all: (fields[11].parse::<f64>()? + fields[12].parse::<f64>()?) / 100.0,
            // What was given to the system. What it says that it wrote counts a whole large page for a few bytes.
            written: field("/proc/self/io", "wchar:")?,
            memory: field("/proc/self/status", "VmRSS:")? << 10,
        })
    }

    fn since(&self, before: &Self, seconds: f64, committed_bytes: u64) -> String {
        let used = |name: &str| {
            let at = |usage: &Self| usage.threads.iter().filter(|(thread, _)| thread.starts_with(name)).map(|(_, used)| used).sum::<f64>();
            (at(self) - at(before)) / seconds * 1e3
        };
        let (writer, merging, all) = (used("endurance"), used("store-merge"), (self.all - before.all) / seconds * 1e3);
        let written = self.written - before.written;
        format!(
            "CPU ms/s: {all:.0} (writer {writer:.0}, merging {merging:.0}, checkpoints and others {:.0}), \
             written {:.1} MiB/s, {:.1} for each committed, RSS {} MiB",
            all - writer - merging,
            written as f64 / seconds / f64::from(1 << 20),
            written as f64 / committed_bytes as f64,
            self.memory >> 20,
        )
    }
}

fn size_of(directory: &Path) -> Result<u64, Failure> {
    let mut bytes = 0;
    for entry in fs::read_dir(directory)? {
        // What is merged away may vanish while it is looked at.
        let Ok(entry) = entry else { continue };
        let Ok(metadata) = entry.metadata() else { continue };
        bytes += if metadata.is_dir() { size_of(&entry.path()).unwrap_or(0) } else { metadata.len() };
    }
    Ok(bytes)
}

fn key(number: u64) -> Key {
    // As a bench's keys are: neighbours in number are no neighbours in order.
    Key::from(format!("{:016x}", number.wrapping_mul(0x9e37_79b9_7f4a_7c15)).as_str())
}

const fn key_bytes() -> usize {
    16
}

/// Zipf's distribution with exponent 0.9, after Gray and others.
struct Zipf {
    keys: f64,
    alpha: f64,
    zeta: f64,
    eta: f64,
}

impl Zipf {
    fn new(keys: u64) -> Self {
        const THETA: f64 = 0.9;
        let zeta = |count: u64| (1..=count).map(|rank| (rank as f64).powf(-THETA)).sum::<f64>();
        let (all, two) = (zeta(keys), zeta(2));
        let eta = (1.0 - (2.0 / keys as f64).powf(1.0 - THETA)) / (1.0 - two / all);
        Self { keys: keys as f64, alpha: 1.0 / (1.0 - THETA), zeta: all, eta }
    }

    fn draw(&self, random: &mut Random) -> u64 {
        let drawn = random.below(1 << 30) as f64 / f64::from(1 << 30);
        let scaled = drawn * self.zeta;
        if scaled < 1.0 {
            return 0;
        }
        (self.keys * (self.eta * drawn - self.eta + 1.0).powf(self.alpha)).min(self.keys - 1.0) as u64
    }
}

/// A small fixed sequence, so that runs can be compared.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}
