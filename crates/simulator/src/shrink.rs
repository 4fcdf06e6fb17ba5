//! Making a run that fails smaller: settings are taken away or weakened one at a time, as long as the same checker still complains.
//!
//! A smaller world runs another course, so that one seed says little about it: a few are tried.

use std::collections::BTreeSet;

use types::ReplicaId;

use crate::dictionary::describe;
use crate::network::LinkProfile;
use crate::report::Report;
use crate::scenario::Scenario;
use crate::setting::{Clocks, Placing, ReplicaFault, Rights, Setting, Verifiers};
use crate::system::{EngineSetting as _, System};
use crate::{Tracing, run};

/// A run that fails and of which nothing more could be taken away, or there was no patience left to try.
#[derive(Clone, Debug)]
pub struct Smallest<C> {
    /// The run, as small as it was found.
    pub report: Report<C>,
    /// How many runs were tried for it.
    pub runs: u64,
}

/// How many seeds are tried of a smaller world, the one in hand first.
const SEEDS_TRIED: u64 = 4;
/// The phase of faults is not made shorter than this, in milliseconds.
const FAULT_PHASE_MS_MIN: u64 = 100;

/// Makes the run of `scenario` with `seed` smaller, in up to `runs_max` runs. Every step is told as it is found. Nothing, if that run
/// breaks no promise.
pub fn shrink<S: System>(
    scenario: &Scenario<S>,
    seed: u64,
    runs_max: u64,
    tell: impl FnMut(&Report<S::Counts>, u64),
) -> Option<Smallest<S::Counts>> {
    shrink_with(scenario, seed, runs_max, tell, |scenario, seed| run(scenario, seed, Tracing::Off))
}

/// The same with another way to run a scenario.
pub fn shrink_with<S: System>(
    scenario: &Scenario<S>,
    seed: u64,
    runs_max: u64,
    mut tell: impl FnMut(&Report<S::Counts>, u64),
    run: impl Fn(&Scenario<S>, u64) -> Report<S::Counts>,
) -> Option<Smallest<S::Counts>> {
    let report = run(scenario, seed);
    let checker = report.violations.first()?.checker;
    let mut smallest = Smallest { report, runs: 1 };
    let mut setting = Setting::new(scenario, seed);
    loop {
        let mut found = false;
        for aspect in aspects() {
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

fn try_each<S: System>(
    candidates: &[Setting<S>],
    scenario: &Scenario<S>,
    checker: &str,
    runs_max: u64,
    smallest: &mut Smallest<S::Counts>,
    run: impl Fn(&Scenario<S>, u64) -> Report<S::Counts>,
) -> Option<(Setting<S>, Report<S::Counts>)> {
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
fn told_by_words<S: System>(scenario: &Scenario<S>, setting: &Setting<S>, seed: u64) -> Option<Scenario<S>> {
    let wanted = describe(setting);
    let bare = scenario.bare();
    let drawn = describe(&Setting::new(&bare, seed));
    // How many faults a shard survives is always told where it is not one: who may be at fault depends on it.
    let is_told = |word: &str| !drawn.iter().any(|other| other == word) || (word.starts_with("faults=") && setting.faults != 1);
    let differing: Vec<String> = wanted.iter().filter(|word| is_told(word)).cloned().collect();
    let told = bare.clone().with(&differing.join(" ")).ok()?;
    if describe(&Setting::new(&told, seed)) == wanted { Some(told) } else { bare.with(&wanted.join(" ")).ok() }
}

/// What can be taken away from a setting in one respect, the most first.
type Aspect<S> = fn(&Setting<S>) -> Vec<Setting<S>>;

fn aspects<S: System>() -> [Aspect<S>; 10] {
    [
        shorter,
        fewer_shards,
        fewer_faulty,
        fewer_byzantine_clients,
        fewer_fault_kinds,
        fewer_clients,
        simpler_engine,
        better_links,
        plainer,
        fewer_faults,
    ]
}

fn with<S: System>(setting: &Setting<S>, change: impl FnOnce(&mut Setting<S>)) -> Setting<S> {
    let mut other = setting.clone();
    change(&mut other);
    other
}

fn shorter<S: System>(setting: &Setting<S>) -> Vec<Setting<S>> {
    let of = |ms: u64| with(setting, |other| other.fault_phase_ms = ms.max(FAULT_PHASE_MS_MIN));
    let ms = setting.fault_phase_ms;
    if ms <= FAULT_PHASE_MS_MIN { Vec::new() } else { vec![of(ms / 4), of(ms / 2), of(ms - ms / 4), of(ms - ms.div_ceil(10))] }
}

fn fewer_shards<S: System>(setting: &Setting<S>) -> Vec<Setting<S>> {
    let of = |shards: usize| {
        with(setting, |other| {
            other.shards = shards;
            other.spare_some();
        })
    };
    (1..setting.shards).map(of).collect()
}

fn fewer_faults<S: System>(setting: &Setting<S>) -> Vec<Setting<S>> {
    let of = |faults: usize| {
        with(setting, |other| {
            other.faults = faults;
            other.spare_some();
        })
    };
    (1..setting.faults).map(of).collect()
}

fn fewer_faulty<S: System>(setting: &Setting<S>) -> Vec<Setting<S>> {
    let mut all = Vec::new();
    if setting.faulty.len() > 1 {
        all.push(with(setting, |other| other.faulty.clear()));
    }
    let replicas: Vec<ReplicaId> = setting.faulty.keys().copied().collect();
    all.extend(replicas.iter().map(|replica| with(setting, |other| drop(other.faulty.remove(replica)))));
    for replica in replicas {
        let Some(ReplicaFault::Lies(ways)) = setting.faulty.get(&replica) else { continue };
        let fewer = without_one(ways).into_iter().filter(|ways| !ways.is_empty());
        all.extend(fewer.map(|ways| with(setting, |other| drop(other.faulty.insert(replica, ReplicaFault::Lies(ways))))));
    }
    all
}

fn fewer_byzantine_clients<S: System>(setting: &Setting<S>) -> Vec<Setting<S>> {
    let mut all = Vec::new();
    if setting.byzantine_clients.len() > 1 {
        all.push(with(setting, |other| other.byzantine_clients.clear()));
    }
    all.extend(
        without_one(&setting.byzantine_clients)
            .into_iter()
            .map(|byzantine_clients| with(setting, |other| other.byzantine_clients = byzantine_clients)),
    );
    for (at, ways) in setting.byzantine_clients.iter().enumerate() {
        let fewer = without_one(ways).into_iter().filter(|ways| !ways.is_empty());
        all.extend(fewer.map(|ways| with(setting, |other| other.byzantine_clients[at] = ways)));
    }
    all
}

fn fewer_fault_kinds<S: System>(setting: &Setting<S>) -> Vec<Setting<S>> {
    subsets(&setting.fault_kinds).into_iter().map(|kinds| with(setting, |other| other.fault_kinds = kinds)).collect()
}

fn simpler_engine<S: System>(setting: &Setting<S>) -> Vec<Setting<S>> {
    setting.engine.simpler().into_iter().map(|engine| with(setting, |other| other.engine = engine)).collect()
}

fn fewer_clients<S: System>(setting: &Setting<S>) -> Vec<Setting<S>> {
    let mut counts = vec![1, setting.clients / 2, setting.clients - 1];
    counts.dedup();
    counts.retain(|clients| (1..setting.clients).contains(clients));
    counts.into_iter().map(|clients| with(setting, |other| other.clients = clients)).collect()
}

/// Better links and clocks, one thing at a time.
fn better_links<S: System>(setting: &Setting<S>) -> Vec<Setting<S>> {
    let changes: [fn(&mut Setting<S>); 7] = [
        |other| other.links = LinkProfile { late_per_mille: 0, late_us_max: 0, ..LinkProfile::GOOD },
        |other| other.links.lost_per_mille = 0,
        |other| other.links.doubled_per_mille = 0,
        |other| (other.links.late_per_mille, other.links.late_us_max) = (0, 0),
        |other| other.links.delay_us = LinkProfile::GOOD.delay_us,
        |other| other.regions = 1,
        |other| other.clocks = Clocks::Exact,
    ];
    differing(setting, &changes)
}

/// Options as they are when nobody sets them, one at a time.
fn plainer<S: System>(setting: &Setting<S>) -> Vec<Setting<S>> {
    let changes: [fn(&mut Setting<S>); 4] = [
        |other| other.segment_bytes_max = 16 << 20,
        |other| other.verifiers = Verifiers::Shared,
        |other| other.rights = Rights::All,
        |other| other.placement = Placing::Hash,
    ];
    differing(setting, &changes)
}

/// The changes that change anything.
fn differing<S: System>(setting: &Setting<S>, changes: &[fn(&mut Setting<S>)]) -> Vec<Setting<S>> {
    let now = describe(setting);
    changes.iter().map(|change| with(setting, change)).filter(|other| describe(other) != now).collect()
}

fn without_one<T: Clone>(all: &[T]) -> Vec<Vec<T>> {
    let without = |at: usize| all.iter().enumerate().filter(|(other, _)| *other != at).map(|(_, one)| one.clone()).collect();
    (0..all.len()).map(without).collect()
}

/// None of them, each half, and all but one: what can be taken from a set.
#[must_use]
pub fn subsets<T: Ord + Copy>(all: &BTreeSet<T>) -> Vec<BTreeSet<T>> {
    let list: Vec<T> = all.iter().copied().collect();
    let (first, second) = list.split_at(list.len() / 2);
    let mut subsets = vec![BTreeSet::new(), first.iter().copied().collect(), second.iter().copied().collect()];
    subsets.extend(without_one(&list).into_iter().map(|some| some.into_iter().collect()));
    subsets.retain(|some: &BTreeSet<T>| some.len() < all.len());
    subsets.dedup();
    subsets
}
