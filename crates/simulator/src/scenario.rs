//! What a run is made of. A scenario says what kinds of trouble there are; how much of each, and when, comes from the seed.

use basil::{CoordinatorOptions, ReadQuorum, ReplicaOptions};

use crate::adversary::{ClientStrategy, ReplicaStrategy};
use crate::network::Weather;
use crate::random::Random;

/// What kinds of trouble a run has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scenario {
    /// What it is called.
    pub name: &'static str,
    /// What it is for.
    pub about: &'static str,
    /// Whether messages are lost, late, doubled, and links cut or slow, and clocks jump.
    pub network_faults: bool,
    /// Whether processes crash and disks forget what was not synced.
    pub crashes: bool,
    /// Whether `f` replicas of each shard lie.
    pub liars: bool,
    /// Whether some clients cheat.
    pub rogues: bool,
    /// How long the trouble lasts, in milliseconds of virtual time.
    pub trouble_ms: u64,
}

/// Every scenario.
const SCENARIOS: [Scenario; 6] = [
    Scenario {
        name: "calm",
        about: "nothing goes wrong: what the others are measured against",
        network_faults: false,
        crashes: false,
        liars: false,
        rogues: false,
        trouble_ms: 4_000,
    },
    Scenario {
        name: "faults",
        about: "messages are lost, late and doubled, links are cut, clocks jump",
        network_faults: true,
        crashes: false,
        liars: false,
        rogues: false,
        trouble_ms: 12_000,
    },
    Scenario {
        name: "crashes",
        about: "replicas and clients crash in the middle of what they do, disks forget what was not synced",
        network_faults: false,
        crashes: true,
        liars: false,
        rogues: false,
        trouble_ms: 12_000,
    },
    Scenario {
        name: "liars",
        about: "f replicas of each shard lie, each in up to three ways",
        network_faults: false,
        crashes: false,
        liars: true,
        rogues: false,
        trouble_ms: 8_000,
    },
    Scenario {
        name: "clients",
        about: "clients stall, equivocate, reuse timestamps and speak in others' names",
        network_faults: false,
        crashes: false,
        liars: false,
        rogues: true,
        trouble_ms: 8_000,
    },
    Scenario {
        name: "everything",
        about: "all of it at once, replicas and clients that lie knowing each other",
        network_faults: true,
        crashes: true,
        liars: true,
        rogues: true,
        trouble_ms: 12_000,
    },
];

impl Scenario {
    /// The scenario of that name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        SCENARIOS.into_iter().find(|scenario| scenario.name == name)
    }

    /// Every scenario, the quietest first.
    #[must_use]
    pub fn all() -> Vec<Self> {
        SCENARIOS.to_vec()
    }

    /// The same trouble for so long.
    #[must_use]
    pub fn lasting_ms(mut self, trouble_ms: u64) -> Self {
        self.trouble_ms = trouble_ms;
        self
    }
}

/// A scenario with everything decided that is decided before the first event.
#[derive(Clone, Debug)]
pub(crate) struct Setting {
    pub shards: usize,
    pub faults: usize,
    pub clients: usize,
    pub rogues: Vec<Vec<ClientStrategy>>,
    /// For each liar: its shard, its place there, how it lies.
    pub liars: Vec<(u16, u16, Vec<ReplicaStrategy>)>,
    pub weather: Weather,
    pub exact_clocks: bool,
    pub replica: ReplicaOptions,
    pub coordinator: CoordinatorOptions,
    pub segment_bytes_max: u64,
    /// Whether each participant remembers for itself which roots are good, or all share that memory, which is quicker.
    pub verifier_each: bool,
}

impl Setting {
    pub fn draw(scenario: &Scenario, seed: u64) -> Self {
        let mut random = Random::stream(seed, "setting");
        let shards = random.pick(&[1, 1, 2, 3]);
        let faults = 1;
        let clients = random.index(5) + 3;
        let weather = Weather {
            delay_us: random.pick(&[(80, 250), (300, 900), (5_000, 12_000)]),
            late_per_mille: if scenario.network_faults { random.below(60) } else { 2 },
            late_us_max: if scenario.network_faults { random.pick(&[5_000, 60_000, 700_000]) } else { 3_000 },
            lost_per_mille: if scenario.network_faults { random.pick(&[0, 1, 10, 60]) } else { 0 },
            doubled_per_mille: if scenario.network_faults { random.pick(&[0, 5, 100]) } else { 0 },
        };
        let rogues = if scenario.rogues { (0..random.between(1, 3)).map(|_| ClientStrategy::draw(&mut random)).collect() } else { vec![] };
        let mut liars = Vec::new();
        if scenario.liars {
            for shard in 0..shards {
                let first = random.index(5 * faults + 1);
                for at in 0..faults {
                    let index = u16::try_from((first + at) % (5 * faults + 1)).expect("shards are small");
                    liars.push((u16::try_from(shard).expect("few shards"), index, ReplicaStrategy::draw(&mut random)));
                }
            }
        }
        Self {
            shards,
            faults,
            clients,
            rogues,
            liars,
            weather,
            exact_clocks: scenario.name == "calm",
            replica: draw_replica_options(&mut random),
            coordinator: CoordinatorOptions {
                read_quorum: random.pick(&[ReadQuorum::Majority, ReadQuorum::Majority, ReadQuorum::VouchedOnly, ReadQuorum::Commit]),
                timeout_ms: random.pick(&[3_000, 10_000]),
                ..CoordinatorOptions::default()
            },
            segment_bytes_max: random.pick(&[4 << 10, 64 << 10, 16 << 20]),
            verifier_each: random.chance(125),
        }
    }
}

/// Small bounds as well as the real ones, so that folds, segments let go and forgotten transactions happen within seconds.
fn draw_replica_options(random: &mut Random) -> ReplicaOptions {
    let is_small = random.chance(500);
    ReplicaOptions {
        window_ms: if is_small { random.pick(&[8_000, 15_000]) } else { 30_000 },
        stall_ms: random.pick(&[250, 1_000]),
        authorship_grace_ms: random.pick(&[400, 2_000]),
        checkpoint_ms: if is_small { random.pick(&[200, 1_000]) } else { 5_000 },
        overlay_bytes_max: if is_small { 2 << 10 } else { 64 << 20 },
        journal_bytes_max: if is_small { 16 << 10 } else { 512 << 20 },
        seed: random.next(),
        ..ReplicaOptions::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_never_has_more_liars_in_a_shard_than_it_survives() {
        let scenario = Scenario::named("everything").expect("it is one of ours");
        for seed in 0..200 {
            let setting = Setting::draw(&scenario, seed);
            for shard in 0..setting.shards {
                let liars = setting.liars.iter().filter(|(at, _, _)| usize::from(*at) == shard).count();
                assert!(liars <= setting.faults);
            }
        }
    }
}
