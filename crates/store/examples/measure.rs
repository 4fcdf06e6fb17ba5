//! Measures the store on a real disk: batches a second and CPU a batch, checkpoints, and reads of what was checkpointed.
//!
//! `cargo run --release -p store --example measure -- [DIRECTORY [CHECKPOINT_VERSIONS]]`

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use store::{Disk, DiskOptions, Options, SegmentNumber, Store, Version};
use types::{ClientId, Key, Timestamp, Value};

const BATCHES: u64 = 20_000;
const RECORDS_PER_BATCH: usize = 64;
const RECORD_BYTES: usize = 300;
const KEYS: u64 = 1_000_000;
const READS: u64 = 200_000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let parent = std::env::args().nth(1).map_or_else(std::env::temp_dir, PathBuf::from);
    let directory = tempfile::tempdir_in(parent)?;
    let (mut options, disk_options) = (Options::default(), DiskOptions::default());
    if let Some(versions) = std::env::args().nth(2) {
        options.checkpoint_versions_max = versions.parse()?;
    } else {
        measure_journal(&directory.path().join("journal-only"))?;
    }
    println!("{options:?} {disk_options:?}");
    measure_checkpoints(&directory.path().join("checkpoints"), options, disk_options)?;
    Ok(())
}

/// What the directory says that it is.
const OWNER: &str = "measurement";

fn open(directory: &Path, options: Options, disk_options: DiskOptions) -> Result<Store<Disk>, store::StoreError> {
    if !directory.exists() {
        Disk::create(directory, OWNER)?;
    }
    let mut store = Store::open(Disk::open(directory, OWNER, disk_options)?, options)?;
    while store.replay()?.is_some() {}
    Ok(store)
}

/// The first pass overwrites files of zeros made ahead; later ones overwrite recycled segments.
fn measure_journal(directory: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let (options, disk_options) = (Options::default(), DiskOptions::default());
    let mut store = open(directory, options, disk_options)?;
    let record = vec![0x5a; RECORD_BYTES];
    for pass in ["files of zeros", "recycled", "recycled again"] {
        let mut latencies_us = Vec::new();
        let (start, cpu) = (Instant::now(), cpu_us()?);
        for _ in 0..BATCHES / 3 {
            let begun = Instant::now();
            for _ in 0..RECORDS_PER_BATCH {
                store.append(&record);
            }
            store.sync()?;
            latencies_us.push(begun.elapsed().as_micros());
            let current = store.current_segment();
            store.release(SegmentNumber(current.0 - 1))?;
        }
        let (batches, elapsed) = ((BATCHES / 3) as f64, start.elapsed().as_secs_f64());
        println!(
            "journal, {pass}: {:.0} batches/s, {:.0} us CPU a batch; {}",
            batches / elapsed,
            (cpu_us()? - cpu) / batches,
            percentiles(latencies_us)
        );
    }
    drop(store);
    let start = Instant::now();
    let store = open(directory, options, disk_options)?;
    println!("journal: {} MiB replayed in {:?}", store.journal_bytes() >> 20, start.elapsed());
    Ok(())
}

fn measure_checkpoints(directory: &Path, options: Options, disk_options: DiskOptions) -> Result<(), Box<dyn std::error::Error>> {
    let mut store = open(directory, options, disk_options)?;
    let value = Value::new(vec![7; 100]).ok_or("100 bytes are a short value")?;
    let mut random = Random(7);
    // First every key once, then as many again at random: what a running system does.
    for (what, commits) in [("load", KEYS), ("updates", KEYS)] {
        let (start, cpu) = (Instant::now(), cpu_us()?);
        let (mut begin_us, mut end_us) = (Vec::new(), Vec::new());
        for index in 0..commits {
            let number = if what == "load" { index * 7_919 % KEYS } else { random.below(KEYS) };
            let time = if what == "load" { index } else { KEYS + index } + 1;
            let version = Version { timestamp: Timestamp::new(time, ClientId(1)), value: Some(value.clone()) };
            store.commit(&key(number), version);
            if index as usize % options.checkpoint_versions_max == options.checkpoint_versions_max - 1 || index + 1 == commits {
                let begun = Instant::now();
                store.begin_checkpoint(Timestamp::new(time, ClientId(1)))?;
                begin_us.push(begun.elapsed().as_micros());
                loop {
                    let begun = Instant::now();
                    let finished = store.checkpoint_finished()?.is_some();
                    end_us.push(begun.elapsed().as_micros());
                    if finished {
                        break;
                    }
                    std::thread::sleep(std::time::Duration::from_micros(200));
                }
            }
        }
        let (elapsed, checkpoints) = (start.elapsed(), store.statistics().checkpoints);
        println!(
            "{what}: {commits} versions committed and checkpointed in {elapsed:?}, {:.1} us CPU each, {checkpoints} checkpoints so far; \
             pauses: beginning {}; a step of ending {}",
            (cpu_us()? - cpu) / commits as f64,
            percentiles(begin_us),
            percentiles(end_us)
        );
    }
    measure_reads(&mut store, "right after")?;
    drop(store);
    let start = Instant::now();
    let mut store = open(directory, options, disk_options)?;
    println!("reopened in {:?}", start.elapsed());
    measure_reads(&mut store, "uniform, after reopening")?;
    let (begun, reads) = (Instant::now(), READS);
    for _ in 0..reads {
        let number = random.below(10_000);
        store.latest_timestamp_before(&key(number), Timestamp::new(u64::MAX, ClientId(0)))?.ok_or("the key was written")?;
    }
    println!("reads of 10,000 hot keys: {:.2} us each", begun.elapsed().as_secs_f64() * 1e6 / reads as f64);
    println!("{:?}", store.statistics());
    Ok(())
}

fn measure_reads(store: &mut Store<Disk>, when: &str) -> Result<(), Box<dyn std::error::Error>> {
    let mut random = Random(11);
    for what in ["first", "second"] {
        let before = store.statistics();
        let begun = Instant::now();
        for _ in 0..READS {
            let number = random.below(KEYS);
            let found = store.latest_before(&key(number), Timestamp::new(u64::MAX, ClientId(0)))?;
            assert!(found.is_some(), "key {number} was written");
        }
        let now = store.statistics();
        println!(
            "reads, {when}, {what} pass: {:.2} us each, {:.0} % from the base table, cache {} MiB",
            begun.elapsed().as_secs_f64() * 1e6 / READS as f64,
            (now.base_table_reads - before.base_table_reads) as f64 * 100.0 / READS as f64,
            now.cache_bytes >> 20
        );
    }
    Ok(())
}

fn percentiles(mut microseconds: Vec<u128>) -> String {
    microseconds.sort_unstable();
    let at = |share: f64| microseconds[((microseconds.len() - 1) as f64 * share) as usize];
    format!("p50 {} us, p99 {} us, p99.9 {} us, max {} us", at(0.5), at(0.99), at(0.999), at(1.0))
}

fn key(number: u64) -> Key {
    Key::from(format!("user{number:016}").as_str())
}

/// User and system time of this process so far, from the kernel's hundredths of a second.
fn cpu_us() -> Result<f64, Box<dyn std::error::Error>> {
    let stat = fs::read_to_string("/proc/self/stat")?;
    let fields: Vec<&str> = stat.rsplit_once(')').ok_or("stat has a name")?.1.split_whitespace().collect();
    Ok((fields[11].parse::<f64>()? + fields[12].parse::<f64>()?) * 10_000.0)
}

/// A small fixed sequence, so that runs can be compared.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}
