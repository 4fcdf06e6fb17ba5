//! Making a run that fails smaller: settings are taken away or weakened one at a time, as long as the same checker still complains.
//!
//! A smaller world runs another course, so that one seed says little about it: a few are tried.

use std::collections::BTreeSet;

use basil::{CoordinatorOptions, ReplicaOptions};
use types::ReplicaId;

use crate::network::Weather;
use crate::report::Report;
use crate::scenario::Scenario;
use crate::setting::{Clocks, Fault, Setting, Verifiers};
use crate::words::describe;
use crate::{Tracing, run};

/// A run that fails and of which nothing more could be taken away, or there was no patience left to try.
#[derive(Clone, Debug)]
pub struct Smallest {
    /// The run, as small as it was found.
    pub report: Report,
    /// How many runs were tried for it.
    pub runs: u64,
}

/// How many seeds are tried of a smaller world, the one in hand first.
const SEEDS_TRIED: u64 = 4;
/// Trouble is not made shorter than this, in milliseconds.
const TROUBLE_MS_MIN: u64 = 100;

/// Makes the run of `scenario` with `seed` smaller, in up to `runs_max` runs. Every step is told as it is found. Nothing, if that run
/// breaks no promise.
pub fn shrink(scenario: &Scenario, seed: u64, runs_max: u64, tell: impl FnMut(&Report, u64)) -> Option<Smallest> {
    shrink_with(scenario, seed, runs_max, tell, |scenario, seed| run(scenario, seed, Tracing::Off))
}

/// The same with another way to run a scenario.
pub(crate) fn shrink_with(
    scenario: &Scenario,
    seed: u64,
    runs_max: u64,
    mut tell: impl FnMut(&Report, u64),
    run: impl Fn(&Scenario, u64) -> Report,
) -> Option<Smallest> {
    let report = run(scenario, seed);
    let checker = report.violations.first()?.checker;
    let mut smallest = Smallest { report, runs: 1 };
    let mut setting = Setting::draw(scenario, seed);
    loop {
        let mut found = false;
        for aspect in ASPECTS {
            // Taken up again after each success, with what can be taken from what is left.
            while let Some((smaller, report)) = try_each(&aspect(&setting), scenario, checker, runs_max, &mut smallest, &run) {
                (setting, smallest.report, found) = (smaller, report, true);
                tell(&smallest.report, smallest.runs);
            }
        }
        if !found || smallest.runs >= runs_max {
            return Some(smallest);
        }
    }
}

fn try_each(
    candidates: &[Setting],
    scenario: &Scenario,
    checker: &str,
    runs_max: u64,
    smallest: &mut Smallest,
    run: impl Fn(&Scenario, u64) -> Report,
) -> Option<(Setting, Report)> {
    let first = smallest.report.seed;
    for candidate in candidates {
        for seed in (0..SEEDS_TRIED).map(|more| first.wrapping_add(more)) {
            if smallest.runs >= runs_max {
                return None;
            }
            let Some(smaller) = told_by_words(scenario, candidate, seed) else { continue };
            smallest.runs += 1;
            let report = run(&smaller, seed);
            if report.violations.first().is_some_and(|violation| violation.checker == checker) {
                return Some((candidate.clone(), report));
            }
        }
    }
    None
}

/// The scenario with those words that make `setting` of what `seed` draws, and no others.
fn told_by_words(scenario: &Scenario, setting: &Setting, seed: u64) -> Option<Scenario> {
    let wanted = describe(setting);
    let bare = scenario.bare();
    let drawn = describe(&Setting::draw(&bare, seed));
    // How many faults a shard survives is always told where it is not one: who may be at fault depends on it.
    let is_told = |word: &str| !drawn.iter().any(|other| other == word) || (word.starts_with("faults=") && setting.faults != 1);
    let differing: Vec<String> = wanted.iter().filter(|word| is_told(word)).cloned().collect();
    let told = bare.clone().with(&differing.join(" ")).ok()?;
    if describe(&Setting::draw(&told, seed)) == wanted { Some(told) } else { bare.with(&wanted.join(" ")).ok() }
}

/// Each gives what can be taken away from a setting in one respect, the most first.
const ASPECTS: [fn(&Setting) -> Vec<Setting>; 11] = [
    shorter,
    fewer_shards,
    fewer_faulty,
    fewer_rogues,
    fewer_mishaps,
    fewer_ploys,
    fewer_clients,
    fewer_plans,
    calmer,
    plainer,
    fewer_faults,
];

fn with(setting: &Setting, change: impl FnOnce(&mut Setting)) -> Setting {
    let mut other = setting.clone();
    change(&mut other);
    other
}

fn shorter(setting: &Setting) -> Vec<Setting> {
    let of = |ms: u64| with(setting, |other| other.trouble_ms = ms.max(TROUBLE_MS_MIN));
    let ms = setting.trouble_ms;
    if ms <= TROUBLE_MS_MIN { Vec::new() } else { vec![of(ms / 4), of(ms / 2), of(ms - ms / 4), of(ms - ms.div_ceil(10))] }
}

fn fewer_shards(setting: &Setting) -> Vec<Setting> {
    let of = |shards: usize| {
        with(setting, |other| {
            other.shards = shards;
            other.spare_some();
        })
    };
    (1..setting.shards).map(of).collect()
}

fn fewer_faults(setting: &Setting) -> Vec<Setting> {
    let of = |faults: usize| {
        with(setting, |other| {
            other.faults = faults;
            other.spare_some();
        })
    };
    (1..setting.faults).map(of).collect()
}

fn fewer_faulty(setting: &Setting) -> Vec<Setting> {
    let mut all = Vec::new();
    if setting.faulty.len() > 1 {
        all.push(with(setting, |other| other.faulty.clear()));
    }
    let replicas: Vec<ReplicaId> = setting.faulty.keys().copied().collect();
    all.extend(replicas.iter().map(|replica| with(setting, |other| drop(other.faulty.remove(replica)))));
    for replica in replicas {
        let Some(Fault::Lies(ways)) = setting.faulty.get(&replica) else { continue };
        let fewer = without_one(ways).into_iter().filter(|ways| !ways.is_empty());
        all.extend(fewer.map(|ways| with(setting, |other| drop(other.faulty.insert(replica, Fault::Lies(ways))))));
    }
    all
}

fn fewer_rogues(setting: &Setting) -> Vec<Setting> {
    let mut all = Vec::new();
    if setting.rogues.len() > 1 {
        all.push(with(setting, |other| other.rogues.clear()));
    }
    all.extend(without_one(&setting.rogues).into_iter().map(|rogues| with(setting, |other| other.rogues = rogues)));
    for (at, ways) in setting.rogues.iter().enumerate() {
        let fewer = without_one(ways).into_iter().filter(|ways| !ways.is_empty());
        all.extend(fewer.map(|ways| with(setting, |other| other.rogues[at] = ways)));
    }
    all
}

fn fewer_mishaps(setting: &Setting) -> Vec<Setting> {
    subsets(&setting.mishaps).into_iter().map(|mishaps| with(setting, |other| other.mishaps = mishaps)).collect()
}

fn fewer_ploys(setting: &Setting) -> Vec<Setting> {
    subsets(&setting.ploys).into_iter().map(|ploys| with(setting, |other| other.ploys = ploys)).collect()
}

fn fewer_plans(setting: &Setting) -> Vec<Setting> {
    let some = subsets(&setting.plans).into_iter().filter(|plans| !plans.is_empty());
    some.map(|plans| with(setting, |other| other.plans = plans)).collect()
}

fn fewer_clients(setting: &Setting) -> Vec<Setting> {
    let mut counts = vec![1, setting.clients / 2, setting.clients - 1];
    counts.dedup();
    counts.retain(|clients| (1..setting.clients).contains(clients));
    counts.into_iter().map(|clients| with(setting, |other| other.clients = clients)).collect()
}

/// Better weather, one thing at a time.
fn calmer(setting: &Setting) -> Vec<Setting> {
    let changes: [fn(&mut Setting); 7] = [
        |other| other.weather = Weather { late_per_mille: 0, late_us_max: 0, ..Weather::FINE },
        |other| other.weather.lost_per_mille = 0,
        |other| other.weather.doubled_per_mille = 0,
        |other| (other.weather.late_per_mille, other.weather.late_us_max) = (0, 0),
        |other| other.weather.delay_us = Weather::FINE.delay_us,
        |other| other.regions = 1,
        |other| other.clocks = Clocks::Exact,
    ];
    differing(setting, &changes)
}

/// Options as they are when nobody sets them, one at a time.
fn plainer(setting: &Setting) -> Vec<Setting> {
    let changes: [fn(&mut Setting); 11] = [
        |other| other.replica.window_ms = ReplicaOptions::default().window_ms,
        |other| other.replica.stall_ms = ReplicaOptions::default().stall_ms,
        |other| other.replica.authorship_wait_ms = ReplicaOptions::default().authorship_wait_ms,
        |other| other.replica.checkpoint_ms = ReplicaOptions::default().checkpoint_ms,
        |other| other.replica.memtable_bytes_max = ReplicaOptions::default().memtable_bytes_max,
        |other| other.replica.journal_bytes_max = ReplicaOptions::default().journal_bytes_max,
        |other| other.replica.read_timestamps = 1 << 12,
        |other| other.segment_bytes_max = 16 << 20,
        |other| other.coordinator.read_quorum = CoordinatorOptions::default().read_quorum,
        |other| other.coordinator.timeout_ms = CoordinatorOptions::default().timeout_ms,
        |other| other.verifiers = Verifiers::Shared,
    ];
    differing(setting, &changes)
}

/// The changes that change anything.
fn differing(setting: &Setting, changes: &[fn(&mut Setting)]) -> Vec<Setting> {
    let now = describe(setting);
    changes.iter().map(|change| with(setting, change)).filter(|other| describe(other) != now).collect()
}

fn without_one<T: Clone>(all: &[T]) -> Vec<Vec<T>> {
    let without = |at: usize| all.iter().enumerate().filter(|(other, _)| *other != at).map(|(_, one)| one.clone()).collect();
    (0..all.len()).map(without).collect()
}

/// None of them, each half, and all but one.
fn subsets<T: Ord + Copy>(all: &BTreeSet<T>) -> Vec<BTreeSet<T>> {
    let list: Vec<T> = all.iter().copied().collect();
    let (first, second) = list.split_at(list.len() / 2);
    let mut subsets = vec![BTreeSet::new(), first.iter().copied().collect(), second.iter().copied().collect()];
    subsets.extend(without_one(&list).into_iter().map(|some| some.into_iter().collect()));
    subsets.retain(|some: &BTreeSet<T>| some.len() < all.len());
    subsets.dedup();
    subsets
}
