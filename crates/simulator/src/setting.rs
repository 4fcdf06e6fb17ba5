//! A scenario with everything decided that is decided before the first event.
//!
//! What chance decides here it decides from a stream for each thing, so that one more thing to decide moves none of the
//! others. What is set by hand takes the place of what was drawn, and moves nothing else either.

use std::collections::{BTreeMap, BTreeSet};

use basil::{CoordinatorOptions, ReadQuorum, ReplicaOptions};
use random::Named;
use types::{ReplicaId, ShardId};

use crate::adversary::{ClientStrategy, ReplicaStrategy};
use crate::foe::Ploy;
use crate::network::Weather;
use crate::scenario::{Scenario, Trouble};
use crate::trouble::Mishap;
use crate::words;
use crate::workload::PlanKind;
use random::Random;

/// How a replica may be at fault. Up to `f` of a shard are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It lies in these ways.
    Lies(Vec<ReplicaStrategy>),
    /// Bits flip on its disk.
    Rots,
}

/// How many runs of a thousand have shards that survive two faults: eleven replicas, and three times the work.
const LARGE_PER_MILLE: u64 = 63;
/// Windows short enough to be over while there is trouble.
const SHORT_WINDOWS_MS: [u64; 3] = [4_000, 6_000, 8_000];

/// A scenario with everything decided that is decided before the first event.
#[derive(Clone, Debug)]
pub(crate) struct Setting {
    pub trouble_ms: u64,
    pub shards: usize,
    pub faults: usize,
    /// How many honest clients there are.
    pub clients: usize,
    /// What they do.
    pub plans: BTreeSet<PlanKind>,
    /// Each client that cheats, with its ways.
    pub rogues: Vec<Vec<ClientStrategy>>,
    pub faulty: BTreeMap<ReplicaId, Fault>,
    /// What goes wrong now and then.
    pub mishaps: BTreeSet<Mishap>,
    pub weather: Weather,
    /// How the network is late where it hurts.
    pub ploys: BTreeSet<Ploy>,
    /// In how many regions, far from one another, everybody lives.
    pub regions: u64,
    pub clocks: Clocks,
    pub replica: ReplicaOptions,
    pub coordinator: CoordinatorOptions,
    pub segment_bytes_max: u64,
    pub verifiers: Verifiers,
}

random::named! {
    /// How right clocks are.
    pub(crate) enum Clocks {
        /// They all show the same.
        Exact,
        /// They are off, and jump, but no two differ by more than the protocol allows for.
        Skewed,
        /// Now and then one is off by seconds, which is more than the protocol allows for: nothing may break, though little gets done.
        Wild,
    }
}

random::named! {
    /// Who remembers which signatures are good.
    pub(crate) enum Verifiers {
        /// All together, so that each is checked once in the world.
        Shared,
        /// Everybody for themselves.
        Each,
    }
}

impl Setting {
    /// What `seed` makes of `scenario`.
    ///
    /// # Panics
    /// When the scenario's words make no sense, which [`Setting::check`] tells before.
    pub fn draw(scenario: &Scenario, seed: u64) -> Self {
        let mut setting = Self::drawn(scenario, seed);
        for word in scenario.words() {
            words::apply(&mut setting, word).expect("a scenario's words were checked when they were given");
        }
        setting.spare_some();
        setting
    }

    /// Leaves no more replicas at fault than there are and a shard survives, where there are fewer than were drawn.
    pub fn spare_some(&mut self) {
        let (shards, per_shard, faults) = (self.shards, self.replicas_per_shard(), self.faults);
        let mut left = vec![faults; shards];
        self.faulty.retain(|replica, _| {
            let room = left.get_mut(usize::from(replica.shard.0)).filter(|_| usize::from(replica.index) < per_shard);
            room.is_some_and(|left| std::mem::replace(left, left.saturating_sub(1)) > 0)
        });
    }

    /// Whether the scenario's words make sense, whatever the seed.
    pub fn check(scenario: &Scenario) -> Result<(), String> {
        let mut setting = Self::drawn(scenario, 0);
        // As few as a seed may draw: what is within this bound is within any.
        setting.faults = 1;
        setting.faulty.clear();
        scenario.words().iter().try_for_each(|word| words::apply(&mut setting, word))?;
        for shard in setting.faulty.keys().map(|replica| replica.shard) {
            let count = setting.faulty.keys().filter(|replica| replica.shard == shard).count();
            if count > setting.faults {
                let faults = setting.faults;
                return Err(format!(
                    "{shard} would have {count} faulty replicas and survives {faults}; leave some out, or say faults={count}"
                ));
            }
        }
        Ok(())
    }

    fn drawn(scenario: &Scenario, seed: u64) -> Self {
        let has = |trouble| scenario.troubles.contains(&trouble);
        let knob = |name: &str| Random::stream(seed, &format!("setting {name}"));
        let faults = if knob("faults").chance(LARGE_PER_MILLE) { 2 } else { 1 };
        let shards = knob("shards").pick(&[1, 1, 2, 3]).min(4 - faults);
        let (mut rogues, mut random) = (Vec::new(), knob("rogues"));
        if has(Trouble::Rogues) {
            rogues = (0..random.between(1, 3)).map(|_| ClientStrategy::draw(&mut random)).collect();
            if has(Trouble::Elections) {
                rogues.iter_mut().for_each(|strategies| strategies.extend([ClientStrategy::EquivocateSplit; 3]));
            }
        }
        let ploys = if has(Trouble::Ploys) { Ploy::draw(&mut knob("ploys")) } else { BTreeSet::new() };
        if ploys.contains(&Ploy::LeadersLast) && !has(Trouble::Rogues) {
            // Few leaders are needed where nobody logs both ends.
            rogues.push(vec![ClientStrategy::EquivocateSplit]);
        }
        Self {
            trouble_ms: scenario.trouble_ms,
            shards,
            faults,
            clients: knob("clients").index(5) + 3,
            plans: PlanKind::ALL.iter().copied().filter(|plan| *plan != PlanKind::Everything).collect(),
            rogues,
            faulty: draw_faulty(scenario, &mut knob("faulty"), shards, faults),
            mishaps: Mishap::ALL.iter().copied().filter(|mishap| mishap.causes().iter().any(|cause| has(*cause))).collect(),
            weather: draw_weather(scenario, &mut knob("weather")),
            ploys,
            regions: if has(Trouble::Distance) { knob("regions").between(2, 6) } else { 1 },
            clocks: match has(Trouble::Clocks) {
                true if knob("clocks").chance(200) => Clocks::Wild,
                true => Clocks::Skewed,
                false if scenario.name == "calm" => Clocks::Exact,
                false => Clocks::Skewed,
            },
            replica: match draw_replica_options(&mut knob("replica")) {
                // Half of it is over while there is trouble, and before most clients lose patience.
                options if has(Trouble::Ploys) => ReplicaOptions { window_ms: knob("short window").pick(&SHORT_WINDOWS_MS), ..options },
                options => options,
            },
            coordinator: CoordinatorOptions {
                read_quorum: knob("read-quorum").pick(&[
                    ReadQuorum::Majority,
                    ReadQuorum::Majority,
                    ReadQuorum::WeakQuorum,
                    ReadQuorum::Commit,
                ]),
                timeout_ms: knob("timeout").pick(&[3_000, 10_000]),
                ..CoordinatorOptions::default()
            },
            segment_bytes_max: knob("segments").pick(&[4 << 10, 64 << 10, 16 << 20]),
            verifiers: if knob("verifiers").chance(125) { Verifiers::Each } else { Verifiers::Shared },
        }
    }

    /// Whether nothing goes wrong that could keep an honest client waiting: up to `f` replicas of a shard lie or are away, clocks are
    /// off within what is allowed, and that is all.
    pub fn is_steady(&self) -> bool {
        let Weather { late_us_max, lost_per_mille, .. } = self.weather;
        self.mishaps.iter().all(|mishap| matches!(mishap, Mishap::Upgrade | Mishap::ClockJump))
            && (self.clocks != Clocks::Wild && self.rogues.is_empty() && self.ploys.is_empty())
            && (self.regions == 1 && lost_per_mille == 0 && late_us_max <= Weather::FINE.late_us_max)
    }

    /// How many replicas a shard has.
    pub fn replicas_per_shard(&self) -> usize {
        5 * self.faults + 1
    }
}

/// In each shard `f` replicas that lie or rot, where there is such trouble; where disks only rot, not in every shard.
fn draw_faulty(scenario: &Scenario, random: &mut Random, shards: usize, faults: usize) -> BTreeMap<ReplicaId, Fault> {
    if scenario.troubles.contains(&Trouble::Upgrades) {
        return draw_faulty_beside_upgrades(random, shards, faults);
    }
    let (lie, rot) = (scenario.troubles.contains(&Trouble::Liars), scenario.troubles.contains(&Trouble::Rot));
    let mut faulty = BTreeMap::new();
    for shard in 0..shards {
        let mut indices: Vec<usize> = (0..5 * faults + 1).collect();
        random.shuffle(&mut indices);
        for index in &indices[..faults] {
            let index = u16::try_from(*index).expect("shards are small");
            let replica = ReplicaId { shard: ShardId(u16::try_from(shard).expect("few shards")), index };
            let mut strategies = ReplicaStrategy::draw(random);
            if scenario.troubles.contains(&Trouble::Elections) {
                strategies = vec![random.pick(&ReplicaStrategy::IN_ELECTIONS), ReplicaStrategy::EquivocateVotes];
            }
            let rots = random.chance(if lie { 200 } else { 600 });
            match (lie, rot && rots) {
                (_, true) => faulty.insert(replica, Fault::Rots),
                (true, false) => faulty.insert(replica, Fault::Lies(strategies)),
                (false, false) => None,
            };
        }
    }
    faulty
}

/// Whoever is at fault counts as away: in the first shard at least there is always room for an upgrade of the others.
fn draw_faulty_beside_upgrades(random: &mut Random, shards: usize, faults: usize) -> BTreeMap<ReplicaId, Fault> {
    let mut faulty = BTreeMap::new();
    for shard in 0..shards {
        let mut replicas: Vec<usize> = (0..5 * faults + 1).collect();
        random.shuffle(&mut replicas);
        let most = if shard == 0 { faults - 1 } else { faults };
        let count = random.index(most + 1);
        for index in &replicas[..count] {
            let index = u16::try_from(*index).expect("shards are small");
            let replica = ReplicaId { shard: ShardId(u16::try_from(shard).expect("few shards")), index };
            faulty.insert(replica, Fault::Lies(ReplicaStrategy::draw(random)));
        }
    }
    faulty
}

fn draw_weather(scenario: &Scenario, random: &mut Random) -> Weather {
    let delay_us = random.pick(&[(80, 250), (300, 900), (5_000, 12_000)]);
    if !scenario.troubles.contains(&Trouble::Network) {
        return Weather { delay_us, ..Weather::FINE };
    }
    Weather {
        delay_us,
        late_per_mille: random.below(60),
        late_us_max: random.pick(&[5_000, 60_000, 700_000]),
        lost_per_mille: random.pick(&[0, 1, 10, 60]),
        doubled_per_mille: random.pick(&[0, 5, 100]),
    }
}

/// Small bounds as well as the real ones, so that folds, segments let go and forgotten transactions happen within seconds.
fn draw_replica_options(random: &mut Random) -> ReplicaOptions {
    let is_small = random.chance(500);
    ReplicaOptions {
        window_ms: if is_small { random.pick(&[8_000, 15_000]) } else { 30_000 },
        stall_ms: random.pick(&[250, 1_000]),
        authorship_wait_ms: random.pick(&[400, 2_000]),
        checkpoint_ms: if is_small { random.pick(&[200, 1_000]) } else { 5_000 },
        memtable_bytes_max: if is_small { 2 << 10 } else { 64 << 20 },
        journal_bytes_max: if is_small { 16 << 10 } else { 512 << 20 },
        abandoned_per_second: if is_small { 2 } else { 50 },
        seed: random.next(),
        // A table as large as a real one takes more time to clear, at each start of each replica, than all the rest.
        read_timestamps: random.pick(&[64, 1 << 12, 1 << 12]),
        ..ReplicaOptions::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_seeds_have_larger_shards_and_more_of_them() {
        let calm = Scenario::named("calm").expect("it is one of ours");
        let settings: Vec<Setting> = (0..400).map(|seed| Setting::draw(&calm, seed)).collect();
        let large = settings.iter().filter(|setting| setting.faults == 2).count();
        assert!((10..50).contains(&large), "{large} of 400 survive two faults");
        assert!(settings.iter().all(|setting| setting.faults == 1 || setting.shards < 3), "no world is larger than can be borne");
        for shards in 1..=3 {
            assert!(settings.iter().any(|setting| setting.shards == shards), "nobody draws {shards} shards");
        }
    }

    #[test]
    fn where_shards_are_upgraded_there_is_room_for_it() {
        let upgrade = Scenario::named("upgrade").expect("it is one of ours");
        let settings: Vec<Setting> = (0..400).map(|seed| Setting::draw(&upgrade, seed)).collect();
        let in_first = |setting: &Setting| setting.faulty.keys().filter(|replica| replica.shard == ShardId(0)).count();
        assert!(settings.iter().all(|setting| in_first(setting) < setting.faults));
        assert!(settings.iter().any(|setting| in_first(setting) > 0), "somebody lies where there is room for one more");
        let steady = settings.iter().filter(|setting| setting.is_steady()).count();
        assert!((250..400).contains(&steady), "in {steady} of 400 nobody has a reason to wait");
    }

    #[test]
    fn whoever_sets_fewer_faults_or_shards_has_fewer_at_fault() {
        let everything = Scenario::named("everything").expect("it is one of ours");
        let seed = (0..400).find(|seed| Setting::draw(&everything, *seed).faults == 2).expect("some seed draws two");
        let fewer = everything.with("faults=1 shards=1").expect("the words are good");
        assert!(Setting::draw(&fewer, seed).faulty.len() <= 1);
    }

    #[test]
    fn a_setting_never_has_more_faulty_replicas_in_a_shard_than_it_survives() {
        for scenario in Scenario::all() {
            for seed in 0..200 {
                let setting = Setting::draw(&scenario, seed);
                for shard in 0..setting.shards {
                    let faulty = setting.faulty.keys().filter(|replica| usize::from(replica.shard.0) == shard).count();
                    assert!(faulty <= setting.faults, "{} seed {seed}", scenario.name);
                }
            }
        }
    }
}
