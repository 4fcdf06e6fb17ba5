//! A scenario with everything decided that is decided before the first event.
//!
//! What chance decides here it decides from a stream for each thing, so that one more thing to decide moves none of the
//! others. What is set by hand takes the place of what was drawn, and moves nothing else either.

use std::collections::{BTreeMap, BTreeSet};

use random::Random;
use types::{Key, Placement, ReplicaId, ShardId};

use crate::dictionary;
use crate::faults::FaultKind;
use crate::network::LinkProfile;
use crate::scenario::{FaultClass, Scenario};
use crate::system::{EngineSetting as _, System};

/// How a replica may be at fault. Up to `f` of a shard are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplicaFault<L> {
    /// It lies in these ways.
    Lies(Vec<L>),
    /// Bits flip on its disk.
    DiskDamage,
}

/// How many runs of a thousand place keys by ranges, where there is more than one shard.
const RANGES_PER_MILLE: u64 = 400;
/// How many runs of a thousand have shards that survive two faults: many more replicas, and three times the work.
const LARGE_PER_MILLE: u64 = 63;

/// In how many runs of a thousand with crashes all replicas lose power at once, now and then.
const POWER_CUTS_PER_MILLE: u64 = 250;

/// A scenario with everything decided that is decided before the first event.
#[derive(Clone, Debug)]
pub struct Setting<S: System> {
    /// For how long things go wrong.
    pub fault_phase_ms: u64,
    /// How many shards there are.
    pub shards: usize,
    /// How many faulty replicas each survives.
    pub faults: usize,
    /// How many honest clients there are.
    pub clients: usize,
    /// Each client that cheats, with its ways.
    pub byzantine_clients: Vec<Vec<S::ClientStrategy>>,
    /// Each replica that is at fault, or may come to be.
    pub faulty: BTreeMap<ReplicaId, ReplicaFault<S::ReplicaStrategy>>,
    /// What goes wrong now and then.
    pub fault_kinds: BTreeSet<FaultKind>,
    /// What links are like, when nothing more is wrong with them.
    pub links: LinkProfile,
    /// In how many regions, far from one another, everybody lives.
    pub regions: u64,
    /// How right clocks are.
    pub clocks: Clocks,
    /// How large a segment of a journal may be.
    pub segment_bytes_max: u64,
    /// Who remembers which signatures are good.
    pub verifiers: Verifiers,
    /// What clients may read and write.
    pub rights: Rights,
    /// On which shard a key is.
    pub placement: Placing,
    /// What only the engine knows of.
    pub engine: S::Setting,
}

random::named! {
    /// How right clocks are.
    pub enum Clocks {
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
    pub enum Verifiers {
        /// All together, so that each is checked once in the world.
        Shared,
        /// Everybody for themselves.
        Each,
    }
}

random::named! {
    /// What clients may read and write.
    pub enum Rights {
        /// Everything.
        All,
        /// Some kinds of keys only, and operators change which. The auditor may do everything.
        Some,
    }
}

random::named! {
    /// On which shard a key is.
    pub enum Placing {
        /// As its hash says.
        Hash,
        /// Each shard has a range.
        Ranges,
    }
}

impl<S: System> Setting<S> {
    /// What `seed` makes of `scenario`.
    ///
    /// # Panics
    /// When the scenario's words make no sense, which [`Scenario::with`] tells before.
    #[must_use]
    pub fn new(scenario: &Scenario<S>, seed: u64) -> Self {
        let mut setting = Self::drawn(scenario, seed);
        for word in scenario.words() {
            dictionary::apply(&mut setting, word).expect("a scenario's words were checked when they were given");
        }
        setting.spare_some();
        setting
    }

    /// Leaves no more replicas at fault than there are and a shard survives, where there are fewer than were drawn.
    pub(crate) fn spare_some(&mut self) {
        let (shards, per_shard, faults) = (self.shards, self.replicas_per_shard(), self.faults);
        let mut left = vec![faults; shards];
        self.faulty.retain(|replica, _| {
            let room = left.get_mut(usize::from(replica.shard.0)).filter(|_| usize::from(replica.index) < per_shard);
            room.is_some_and(|left| std::mem::replace(left, left.saturating_sub(1)) > 0)
        });
    }

    /// Whether the scenario's words make sense, whatever the seed.
    pub(crate) fn check(scenario: &Scenario<S>) -> Result<(), String> {
        let mut setting = Self::drawn(scenario, 0);
        // As few as a seed may draw: what is within this bound is within any.
        setting.faults = 1;
        setting.faulty.clear();
        scenario.words().iter().try_for_each(|word| dictionary::apply(&mut setting, word))?;
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

    fn drawn(scenario: &Scenario<S>, seed: u64) -> Self {
        let has = |class| scenario.has(class);
        let knob = |name: &str| Random::stream(seed, &format!("setting {name}"));
        // A replica that loses its disk and one that lies are two.
        let is_large = knob("faults").chance(LARGE_PER_MILLE) || loses_disks_beside_liars(scenario);
        let faults = if is_large { 2 } else { 1 };
        let shards = knob("shards").pick(&[1, 1, 2, 3]).min(4 - faults);
        let (mut byzantine_clients, mut random) = (Vec::new(), knob("rogues"));
        if has(FaultClass::ByzantineClients) {
            byzantine_clients = (0..random.between(1, 3)).map(|_| S::draw_client_strategies(scenario, &mut random)).collect();
        }
        let mut fault_kinds = FaultKind::of(scenario.faults);
        if !knob("power").chance(POWER_CUTS_PER_MILLE) {
            fault_kinds.remove(&FaultKind::CutPower);
        }
        let mut setting = Self {
            fault_phase_ms: scenario.fault_phase_ms,
            shards,
            faults,
            clients: knob("clients").index(5) + 3,
            byzantine_clients,
            faulty: draw_faulty(scenario, &mut knob("faulty"), shards, faults),
            fault_kinds,
            links: draw_links(scenario.faults, &mut knob("weather")),
            regions: if has(FaultClass::Distance) { knob("regions").between(2, 6) } else { 1 },
            clocks: match has(FaultClass::Clocks) {
                true if has(FaultClass::FalseTimes) || knob("clocks").chance(200) => Clocks::Wild,
                false if scenario.faults.is_empty() => Clocks::Exact,
                _ => Clocks::Skewed,
            },
            segment_bytes_max: knob("segments").pick(&[4 << 10, 64 << 10, 16 << 20]),
            verifiers: if knob("verifiers").chance(125) || has(FaultClass::Changes) { Verifiers::Each } else { Verifiers::Shared },
            rights: if has(FaultClass::Rights) { Rights::Some } else { Rights::All },
            placement: if knob("placement").chance(RANGES_PER_MILLE) { Placing::Ranges } else { Placing::Hash },
            engine: S::draw(scenario, seed),
        };
        S::adjust(scenario, &mut setting);
        setting
    }

    /// Whether nothing goes wrong that could keep an honest client waiting: up to `f` replicas of a shard lie or are away, clocks are
    /// off within what is allowed, and that is all.
    #[must_use]
    pub fn is_steady(&self) -> bool {
        let LinkProfile { late_us_max, lost_per_mille, .. } = self.links;
        self.fault_kinds.iter().all(|kind| matches!(kind, FaultKind::Upgrade | FaultKind::ClockJump))
            && (self.clocks != Clocks::Wild && self.byzantine_clients.is_empty() && self.engine.is_steady())
            && (self.regions == 1 && lost_per_mille == 0 && late_us_max <= LinkProfile::GOOD.late_us_max)
    }

    /// How keys are placed, where there are as many shards as there are: one has them all, and for too many there are too few bounds.
    pub(crate) fn placement(&self) -> Placing {
        if (2..=S::BOUNDS.len() + 1).contains(&self.shards) { self.placement } else { Placing::Hash }
    }

    /// On which shard each key is.
    pub(crate) fn placement_of_keys(&self) -> Placement {
        if self.placement() == Placing::Hash {
            return Placement::Hash;
        }
        let mut bounds: Vec<Key> = S::BOUNDS[..self.shards - 1].iter().map(|bound| Key::from(*bound)).collect();
        bounds.sort_unstable();
        Placement::Ranges(bounds)
    }

    /// How many replicas a shard has.
    #[must_use]
    pub fn replicas_per_shard(&self) -> usize {
        S::replicas_per_shard(self.faults)
    }
}

type Faulty<S> = BTreeMap<ReplicaId, ReplicaFault<<S as System>::ReplicaStrategy>>;

/// Whether replicas lose their disks while others lie.
fn loses_disks_beside_liars<S: System>(scenario: &Scenario<S>) -> bool {
    scenario.has(FaultClass::DiskLoss) && scenario.has(FaultClass::ByzantineReplicas)
}

/// In each shard `f` replicas that lie or have damaged disks, where there are such faults; where disks are damaged and nobody
/// lies, not in every shard. Where disks are lost too, one fewer lies: whoever loses its disk next to those is the last of the `f`.
fn draw_faulty<S: System>(scenario: &Scenario<S>, random: &mut Random, shards: usize, faults: usize) -> Faulty<S> {
    if scenario.has(FaultClass::Upgrades) || scenario.has(FaultClass::Changes) {
        return draw_faulty_beside_upgrades(scenario, random, shards, faults);
    }
    let (lie, decay) = (scenario.has(FaultClass::ByzantineReplicas), scenario.has(FaultClass::DiskDamage));
    let mut faulty = BTreeMap::new();
    for shard in 0..shards {
        let mut indices: Vec<usize> = (0..S::replicas_per_shard(faults)).collect();
        random.shuffle(&mut indices);
        let count = if loses_disks_beside_liars(scenario) { faults - 1 } else { faults };
        for index in &indices[..count] {
            let strategies = S::draw_replica_strategies(scenario, random);
            let is_damaged = random.chance(if lie { 200 } else { 600 });
            match (lie, decay && is_damaged) {
                (_, true) => faulty.insert(replica(shard, *index), ReplicaFault::DiskDamage),
                (true, false) => faulty.insert(replica(shard, *index), ReplicaFault::Lies(strategies)),
                (false, false) => None,
            };
        }
    }
    faulty
}

/// Whoever is at fault counts as away: in the first shard at least there is always room for an upgrade of the others.
fn draw_faulty_beside_upgrades<S: System>(scenario: &Scenario<S>, random: &mut Random, shards: usize, faults: usize) -> Faulty<S> {
    let mut faulty = BTreeMap::new();
    for shard in 0..shards {
        let mut replicas: Vec<usize> = (0..S::replicas_per_shard(faults)).collect();
        random.shuffle(&mut replicas);
        let most = if shard == 0 { faults - 1 } else { faults };
        let count = random.index(most + 1);
        for index in &replicas[..count] {
            faulty.insert(replica(shard, *index), ReplicaFault::Lies(S::draw_replica_strategies(scenario, random)));
        }
    }
    faulty
}

fn replica(shard: usize, index: usize) -> ReplicaId {
    let shard = ShardId(u16::try_from(shard).expect("few shards"));
    ReplicaId { shard, index: u16::try_from(index).expect("shards are small") }
}

fn draw_links(faults: &[FaultClass], random: &mut Random) -> LinkProfile {
    let delay_us = random.pick(&[(80, 250), (300, 900), (5_000, 12_000)]);
    if !faults.contains(&FaultClass::Network) {
        return LinkProfile { delay_us, ..LinkProfile::GOOD };
    }
    LinkProfile {
        delay_us,
        late_per_mille: random.below(60),
        late_us_max: random.pick(&[5_000, 60_000, 700_000]),
        lost_per_mille: random.pick(&[0, 1, 10, 60]),
        doubled_per_mille: random.pick(&[0, 5, 100]),
    }
}
