//! A setting in words, as people write it on a command line: `clients=3 faulty=s0-r2:garble+silent mishaps=isolate+mend`.
//! What is written is read back as the same, so that a run can be told by its words, and made smaller word by word.

use std::collections::BTreeSet;

use basil::ReadQuorum;
use random::Named;
use types::{ReplicaId, ShardId};

use crate::adversary::{ClientStrategy, ReplicaStrategy};
use crate::foe::Ploy;
use crate::setting::{Clocks, Fault, Setting, Verifiers};
use crate::trouble::Mishap;

/// What stands for an empty list.
const NOTHING: &str = "none";
/// How a disk that flips bits is written among the ways to lie.
const ROTS: &str = "rots";

/// All of a setting in words.
pub(crate) fn describe(setting: &Setting) -> Vec<String> {
    let Setting { weather, replica, coordinator, .. } = setting;
    let faulty = setting.faulty.iter().map(|(replica, fault)| match fault {
        Fault::Lies(strategies) => format!("{replica}:{}", join(strategies.iter().copied())),
        Fault::Rots => format!("{replica}:{ROTS}"),
    });
    vec![
        format!("trouble-ms={}", setting.trouble_ms),
        format!("shards={}", setting.shards),
        format!("faults={}", setting.faults),
        format!("clients={}", setting.clients),
        format!("plans={}", join(setting.plans.iter().copied())),
        format!("rogues={}", list(setting.rogues.iter().map(|strategies| join(strategies.iter().copied())).collect())),
        format!("faulty={}", list(faulty.collect())),
        format!("mishaps={}", join(setting.mishaps.iter().copied())),
        format!("delay-us={}..{}", weather.delay_us.0, weather.delay_us.1),
        format!("late={}/{}", weather.late_per_mille, weather.late_us_max),
        format!("lost={}", weather.lost_per_mille),
        format!("doubled={}", weather.doubled_per_mille),
        format!("ploys={}", join(setting.ploys.iter().copied())),
        format!("regions={}", setting.regions),
        format!("clocks={}", setting.clocks.name()),
        format!("window-ms={}", replica.window_ms),
        format!("stall-ms={}", replica.stall_ms),
        format!("authorship-wait-ms={}", replica.authorship_wait_ms),
        format!("checkpoint-ms={}", replica.checkpoint_ms),
        format!("memtable-bytes={}", replica.memtable_bytes_max),
        format!("journal-bytes={}", replica.journal_bytes_max),
        format!("read-timestamps={}", replica.read_timestamps),
        format!("segment-bytes={}", setting.segment_bytes_max),
        format!("read-quorum={}", READ_QUORUMS.iter().find(|(_, quorum)| *quorum == coordinator.read_quorum).map_or("", |(name, _)| name)),
        format!("timeout-ms={}", coordinator.timeout_ms),
        format!("verifiers={}", setting.verifiers.name()),
    ]
}

/// Sets what `word` says; or says what is wrong with it.
pub(crate) fn apply(setting: &mut Setting, word: &str) -> Result<(), String> {
    let (key, value) = word.split_once('=').ok_or_else(|| format!("`{word}` sets nothing: write a name, `=` and a value, as clients=3"))?;
    let wrong = |why: String| format!("`{word}`: {why}");
    match key {
        "trouble-ms" => setting.trouble_ms = number(value, 1, 10_000_000).map_err(wrong)?,
        "shards" => setting.shards = number(value, 1, 8).map_err(wrong)?,
        "faults" => setting.faults = number(value, 1, 4).map_err(wrong)?,
        "clients" => setting.clients = number(value, 1, 64).map_err(wrong)?,
        "plans" => setting.plans = some(set(value).map_err(wrong)?).map_err(wrong)?,
        "rogues" => setting.rogues = items(value).map(strategies::<ClientStrategy>).collect::<Result<_, _>>().map_err(wrong)?,
        "faulty" => setting.faulty = items(value).map(faulty).collect::<Result<_, _>>().map_err(wrong)?,
        "mishaps" => setting.mishaps = set::<Mishap>(value).map_err(wrong)?,
        "delay-us" => setting.weather.delay_us = pair(value, "..", 1_000_000).and_then(ascending).map_err(wrong)?,
        "late" => (setting.weather.late_per_mille, setting.weather.late_us_max) = pair(value, "/", 10_000_000).map_err(wrong)?,
        "lost" => setting.weather.lost_per_mille = number(value, 0, 1_000).map_err(wrong)?,
        "doubled" => setting.weather.doubled_per_mille = number(value, 0, 1_000).map_err(wrong)?,
        "ploys" => setting.ploys = set::<Ploy>(value).map_err(wrong)?,
        "regions" => setting.regions = number(value, 1, 16).map_err(wrong)?,
        "clocks" => setting.clocks = one::<Clocks>(value).map_err(wrong)?,
        "window-ms" => setting.replica.window_ms = number(value, 1_000, 3_600_000).map_err(wrong)?,
        "stall-ms" => setting.replica.stall_ms = number(value, 1, 600_000).map_err(wrong)?,
        "authorship-wait-ms" => setting.replica.authorship_wait_ms = number(value, 1, 600_000).map_err(wrong)?,
        "checkpoint-ms" => setting.replica.checkpoint_ms = number(value, 1, 600_000).map_err(wrong)?,
        "memtable-bytes" => setting.replica.memtable_bytes_max = number(value, 1, 1 << 30).map_err(wrong)?,
        "journal-bytes" => setting.replica.journal_bytes_max = number(value, 1, 1 << 40).map_err(wrong)?,
        "read-timestamps" => setting.replica.read_timestamps = number(value, 1, 1 << 20).map_err(wrong)?,
        "segment-bytes" => setting.segment_bytes_max = number(value, 1_024, 1 << 30).map_err(wrong)?,
        "read-quorum" => setting.coordinator.read_quorum = read_quorum(value).map_err(wrong)?,
        "timeout-ms" => setting.coordinator.timeout_ms = number(value, 1, 600_000).map_err(wrong)?,
        "verifiers" => setting.verifiers = one::<Verifiers>(value).map_err(wrong)?,
        _ => {
            let known: Vec<String> =
                describe(setting).iter().filter_map(|word| word.split_once('=').map(|(key, _)| key.to_owned())).collect();
            return Err(format!("there is no `{key}` to set; there are {}", known.join(", ")));
        }
    }
    Ok(())
}

/// Not one alone, which would have to be believed.
const READ_QUORUMS: [(&str, ReadQuorum); 3] =
    [("weak", ReadQuorum::WeakQuorum), ("majority", ReadQuorum::Majority), ("commit", ReadQuorum::Commit)];

fn read_quorum(text: &str) -> Result<ReadQuorum, String> {
    let found = READ_QUORUMS.iter().find(|(name, _)| *name == text).map(|(_, quorum)| *quorum);
    found.ok_or_else(|| format!("there are {}", READ_QUORUMS.map(|(name, _)| name).join(", ")))
}

fn number<T: TryFrom<u64>>(text: &str, least: u64, most: u64) -> Result<T, String> {
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

fn one<T: Named>(text: &str) -> Result<T, String> {
    T::named(text).ok_or_else(|| format!("there is no `{text}`; there are {}", join(T::ALL.iter().copied()).replace('+', ", ")))
}

fn strategies<T: Named>(text: &str) -> Result<Vec<T>, String> {
    text.split('+').map(one).collect()
}

fn set<T: Named + Ord>(text: &str) -> Result<BTreeSet<T>, String> {
    if text == NOTHING { Ok(BTreeSet::new()) } else { text.split('+').map(one).collect() }
}

fn some<T>(set: BTreeSet<T>) -> Result<BTreeSet<T>, String> {
    if set.is_empty() { Err("at least one is needed".to_owned()) } else { Ok(set) }
}

fn items(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').filter(move |_| text != NOTHING)
}

fn faulty(text: &str) -> Result<(ReplicaId, Fault), String> {
    let (replica, fault) = text.split_once(':').ok_or("write a replica, `:` and what is wrong with it, as s0-r2:silent")?;
    let parts = replica.strip_prefix('s').and_then(|rest| rest.split_once("-r"));
    let (shard, index) = parts.ok_or_else(|| format!("`{replica}` is no replica: write one as s0-r2"))?;
    let replica = ReplicaId { shard: ShardId(number(shard, 0, 7)?), index: number(index, 0, 20)? };
    Ok((replica, if fault == ROTS { Fault::Rots } else { Fault::Lies(strategies::<ReplicaStrategy>(fault)?) }))
}

fn join<T: Named>(all: impl Iterator<Item = T>) -> String {
    let names: Vec<String> = all.map(Named::name).collect();
    if names.is_empty() { NOTHING.to_owned() } else { names.join("+") }
}

fn list(items: Vec<String>) -> String {
    if items.is_empty() { NOTHING.to_owned() } else { items.join(",") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::Scenario;

    #[test]
    fn a_setting_is_read_back_as_it_was_written() {
        for scenario in Scenario::all() {
            for seed in 0..50 {
                let drawn = Setting::draw(&scenario, seed);
                let mut other = Setting::draw(&Scenario::named("calm").expect("it is one of ours"), seed + 1);
                for word in describe(&drawn) {
                    apply(&mut other, &word).expect("what was written can be read");
                }
                assert_eq!(describe(&other), describe(&drawn));
            }
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_what_would() {
        let calm = || Scenario::named("calm").expect("it is one of ours");
        for (words, hint) in [
            ("clients", "sets nothing"),
            ("clients=0", "from 1 to 64"),
            ("clients=many", "from 1 to 64"),
            ("friends=2", "there are trouble-ms, shards"),
            ("rogues=stall-never", "stall-early"),
            ("faulty=s0-r0:silent,s0-r1:rots", "survives 1"),
            ("faulty=r0:silent", "as s0-r2"),
            ("faulty=s0-r0:quiet", "silent"),
            ("mishaps=rain", "storm"),
            ("ploys=wait", "starve-quorums"),
            ("plans=none", "at least one"),
            ("plans=sing", "rotate"),
            ("delay-us=9..1", "above"),
            ("late=3", "two numbers"),
            ("read-quorum=all", "majority"),
        ] {
            let error = calm().with(words).expect_err(words);
            assert!(error.contains(hint), "{words}: {error}");
        }
        assert!(calm().with("faults=2 faulty=s0-r0:silent,s0-r1:rots rogues=none mishaps=none").is_ok());
    }
}
