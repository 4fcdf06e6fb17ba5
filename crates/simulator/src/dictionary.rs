//! A setting in words, as people write it on a command line: `clients=3 faulty=s0-r2:garble+silent fault-kinds=isolate+mend`.
//! What is written is read back as the same, so that a run can be told by its words, and made smaller word by word.
//!
//! The functions that read and write values are for engines' own settings too.

use std::collections::BTreeSet;

use random::Named;
use types::{ReplicaId, ShardId};

use crate::faults::FaultKind;
use crate::setting::{Clocks, Placing, ReplicaFault, Rights, Setting, Verifiers};
use crate::system::{EngineSetting as _, System};

/// What stands for an empty list.
const NOTHING: &str = "none";
/// How a damaged disk is written among the ways to lie.
const DISK_DAMAGE: &str = "disk-damage";

/// All of a setting in words.
#[must_use]
pub fn describe<S: System>(setting: &Setting<S>) -> Vec<String> {
    let links = setting.links;
    let faulty = setting.faulty.iter().map(|(replica, fault)| match fault {
        ReplicaFault::Lies(strategies) => format!("{replica}:{}", join(strategies.iter().copied())),
        ReplicaFault::DiskDamage => format!("{replica}:{DISK_DAMAGE}"),
    });
    let byzantine = setting.byzantine_clients.iter().map(|strategies| join(strategies.iter().copied()));
    let mut words = vec![
        format!("fault-phase-ms={}", setting.fault_phase_ms),
        format!("shards={}", setting.shards),
        format!("faults={}", setting.faults),
        format!("clients={}", setting.clients),
        format!("byzantine-clients={}", list(byzantine.collect())),
        format!("faulty={}", list(faulty.collect())),
        format!("fault-kinds={}", join(setting.fault_kinds.iter().copied())),
        format!("delay-us={}..{}", links.delay_us.0, links.delay_us.1),
        format!("late={}/{}", links.late_per_mille, links.late_us_max),
        format!("lost={}", links.lost_per_mille),
        format!("doubled={}", links.doubled_per_mille),
        format!("regions={}", setting.regions),
        format!("clocks={}", setting.clocks.name()),
        format!("segment-bytes={}", setting.segment_bytes_max),
        format!("verifiers={}", setting.verifiers.name()),
        format!("rights={}", setting.rights.name()),
        format!("placement={}", setting.placement().name()),
    ];
    words.extend(setting.engine.describe());
    words
}

/// Sets what `word` says; or says what is wrong with it.
///
/// # Errors
/// A sentence that says what is wrong, and what could stand there.
pub(crate) fn apply<S: System>(setting: &mut Setting<S>, word: &str) -> Result<(), String> {
    let (key, value) = word.split_once('=').ok_or_else(|| format!("`{word}` sets nothing: write a name, `=` and a value, as clients=3"))?;
    let applied = match apply_kernel(setting, key, value) {
        None => setting.engine.apply(key, value),
        known => known,
    };
    applied.map(|result| result.map_err(|why| format!("`{word}`: {why}"))).unwrap_or_else(|| {
        let known: Vec<String> = describe(setting).iter().filter_map(|word| word.split_once('=').map(|(key, _)| key.to_owned())).collect();
        Err(format!("there is no `{key}` to set; there are {}", known.join(", ")))
    })
}

fn apply_kernel<S: System>(setting: &mut Setting<S>, key: &str, value: &str) -> Option<Result<(), String>> {
    let links = &mut setting.links;
    Some(match key {
        "fault-phase-ms" => set(&mut setting.fault_phase_ms, number(value, 1, 10_000_000)),
        "shards" => set(&mut setting.shards, number(value, 1, 8)),
        "faults" => set(&mut setting.faults, number(value, 1, 4)),
        "clients" => set(&mut setting.clients, number(value, 1, 64)),
        "byzantine-clients" => set(&mut setting.byzantine_clients, items(value).map(several).collect()),
        "faulty" => set(&mut setting.faulty, items(value).map(faulty::<S>).collect()),
        "fault-kinds" => set(&mut setting.fault_kinds, subset::<FaultKind>(value)),
        "delay-us" => set(&mut links.delay_us, pair(value, "..", 1_000_000).and_then(ascending)),
        "late" => pair(value, "/", 10_000_000).map(|late| (links.late_per_mille, links.late_us_max) = late),
        "lost" => set(&mut links.lost_per_mille, number(value, 0, 1_000)),
        "doubled" => set(&mut links.doubled_per_mille, number(value, 0, 1_000)),
        "regions" => set(&mut setting.regions, number(value, 1, 16)),
        "clocks" => set(&mut setting.clocks, one::<Clocks>(value)),
        "segment-bytes" => set(&mut setting.segment_bytes_max, number(value, 1_024, 1 << 30)),
        "verifiers" => set(&mut setting.verifiers, one::<Verifiers>(value)),
        "rights" => set(&mut setting.rights, one::<Rights>(value)),
        "placement" => set(&mut setting.placement, one::<Placing>(value)),
        _ => return None,
    })
}

/// Puts what was read in its place.
///
/// # Errors
/// When nothing could be read.
pub fn set<T>(place: &mut T, value: Result<T, String>) -> Result<(), String> {
    *place = value?;
    Ok(())
}

/// A number from `least` to `most`.
///
/// # Errors
/// A sentence that names the bounds.
pub fn number<T: TryFrom<u64>>(text: &str, least: u64, most: u64) -> Result<T, String> {
    let number = text.parse::<u64>().ok().filter(|number| (least..=most).contains(number));
    number.and_then(|number| T::try_from(number).ok()).ok_or_else(|| format!("write a number from {least} to {most}"))
}

fn pair(text: &str, between: &str, most: u64) -> Result<(u64, u64), String> {
    let (first, second) = text.split_once(between).ok_or_else(|| format!("write two numbers with {between} between them"))?;
    Ok((number(first, 0, most)?, number(second, 0, most)?))
}

fn ascending((low, high): (u64, u64)) -> Result<(u64, u64), String> {
    if low <= high { Ok((low, high)) } else { Err(format!("{low} is above {high}")) }
}

/// One of a list, by its name.
///
/// # Errors
/// A sentence that names all there are.
pub fn one<T: Named>(text: &str) -> Result<T, String> {
    T::named(text).ok_or_else(|| format!("there is no `{text}`; there are {}", join(T::ALL.iter().copied()).replace('+', ", ")))
}

/// One or more of a list, by their names.
fn several<T: Named>(text: &str) -> Result<Vec<T>, String> {
    text.split('+').map(one).collect()
}

/// Any of a list, by their names; `none` for none.
///
/// # Errors
/// A sentence that names all there are.
pub fn subset<T: Named + Ord>(text: &str) -> Result<BTreeSet<T>, String> {
    if text == NOTHING { Ok(BTreeSet::new()) } else { text.split('+').map(one).collect() }
}

fn items(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').filter(move |_| text != NOTHING)
}

fn faulty<S: System>(text: &str) -> Result<(ReplicaId, ReplicaFault<S::ReplicaStrategy>), String> {
    let (replica, fault) = text.split_once(':').ok_or("write a replica, `:` and what is wrong with it, as s0-r2:silent")?;
    let parts = replica.strip_prefix('s').and_then(|rest| rest.split_once("-r"));
    let (shard, index) = parts.ok_or_else(|| format!("`{replica}` is no replica: write one as s0-r2"))?;
    let replica = ReplicaId { shard: ShardId(number(shard, 0, 7)?), index: number(index, 0, 20)? };
    Ok((replica, if fault == DISK_DAMAGE { ReplicaFault::DiskDamage } else { ReplicaFault::Lies(several(fault)?) }))
}

/// Names with `+` between them; `none` when there is none.
pub fn join<T: Named>(all: impl Iterator<Item = T>) -> String {
    let names: Vec<String> = all.map(Named::name).collect();
    if names.is_empty() { NOTHING.to_owned() } else { names.join("+") }
}

fn list(items: Vec<String>) -> String {
    if items.is_empty() { NOTHING.to_owned() } else { items.join(",") }
}
