//! What is decided of Basil before the first event.

use std::collections::BTreeSet;

use basil::{CoordinatorOptions, ReadQuorum, ReplicaOptions};
use random::{Named as _, Random};
use simulator::dictionary::{join, number, set, subset};
use simulator::{EngineSetting, FaultClass};

use super::Scenario;
use super::network_adversary::DelayAttack;
use super::plan::PlanKind;

/// Windows short enough to be over while there are faults.
const SHORT_WINDOWS_MS: [u64; 3] = [4_000, 6_000, 8_000];
/// The same where replicas are rebuilt.
const REBUILD_WINDOWS_MS: [u64; 3] = [2_000, 3_000, 5_000];
/// How many read timestamps a replica keeps here when nobody sets it. A table as large as a real one takes more time to clear,
/// at each start of each replica, than all the rest.
const READ_TIMESTAMPS: usize = 1 << 12;

/// What is decided of Basil before the first event.
#[derive(Clone, Debug)]
pub struct BasilSetting {
    /// What honest clients do.
    pub(crate) plans: BTreeSet<PlanKind>,
    /// How the network delays what hurts most.
    pub delay_attacks: BTreeSet<DelayAttack>,
    /// What replicas are started with.
    pub replica: ReplicaOptions,
    /// What coordinators are started with.
    pub coordinator: CoordinatorOptions,
}

impl BasilSetting {
    /// What `seed` makes of `scenario`.
    pub(crate) fn draw(scenario: &Scenario, seed: u64) -> Self {
        let knob = |name: &str| Random::stream(seed, &format!("setting {name}"));
        let delays = scenario.has(FaultClass::DelayAttacks);
        // In half of the runs: the others show what single keys come to by themselves.
        let scans = seed.is_multiple_of(3) || seed.is_multiple_of(4);
        // In two runs of nine: those that tests name stay what they were.
        let reads_past = matches!(seed % 9, 0 | 5);
        // Where clients are wrong about the time, they also read what they write blindly: nothing else shows at once who is hidden by whom.
        let peeks = scenario.has(FaultClass::FalseTimes);
        // Where replicas start anew all the time, clients that relied on their clocks for seconds would leave little to see.
        let is_far = scenario.has(FaultClass::Distance);
        let clock_good_ms = knob("clock-good").pick(if is_far { &[1_000, 1_500, 2_000] } else { &[200, 500, 2_000] });
        Self {
            plans: PlanKind::ALL
                .iter()
                .copied()
                .filter(|plan| *plan != PlanKind::Everything && (scans || !plan.scans()))
                .filter(|plan| (reads_past || *plan != PlanKind::Past) && (peeks || *plan != PlanKind::Peek))
                .collect(),
            delay_attacks: if delays { DelayAttack::draw(&mut knob("ploys")) } else { BTreeSet::new() },
            replica: match (ReplicaOptions { clock_good_ms, ..draw_replica_options(&mut knob("replica")) }) {
                // Half of it is over while there are faults, and before most clients lose patience.
                options if delays => ReplicaOptions { window_ms: knob("short window").pick(&SHORT_WINDOWS_MS), ..options },
                // Whoever lost its disk is silent for longer than that.
                options if scenario.has(FaultClass::DiskLoss) || scenario.has(FaultClass::Changes) => {
                    ReplicaOptions { window_ms: knob("short window").pick(&REBUILD_WINDOWS_MS), ..options }
                }
                options => options,
            },
            coordinator: CoordinatorOptions {
                read_quorum: knob("read-quorum").pick(&[
                    ReadQuorum::Majority,
                    ReadQuorum::Majority,
                    ReadQuorum::WeakQuorum,
                    ReadQuorum::Commit,
                ]),
                relay_one_shard: knob("relays").pick(&[true, true, true, false]),
                timeout_ms: knob("timeout").pick(&[3_000, 10_000]),
                clock_good_ms,
                ..CoordinatorOptions::default()
            },
        }
    }
}

/// Small bounds as well as the real ones, so that checkpoints, segments released and forgotten transactions happen within seconds.
fn draw_replica_options(random: &mut Random) -> ReplicaOptions {
    let is_small = random.chance(500);
    ReplicaOptions {
        window_ms: if is_small { random.pick(&[8_000, 15_000]) } else { 10_000 },
        janitor_timeout_ms: random.pick(&[250, 1_000]),
        authorship_wait_ms: random.pick(&[400, 2_000]),
        checkpoint_ms: if is_small { random.pick(&[200, 1_000]) } else { 5_000 },
        memtable_bytes_max: if is_small { 2 << 10 } else { 64 << 20 },
        journal_bytes_max: if is_small { 16 << 10 } else { 512 << 20 },
        abandoned_per_second: if is_small { 2 } else { 50 },
        catch_up_ms: random.pick(&[200, 500]),
        seed: random.next(),
        read_timestamps: random.pick(&[64, READ_TIMESTAMPS, READ_TIMESTAMPS]),
        ..ReplicaOptions::default()
    }
}

/// Not one alone, which would have to be believed.
const READ_QUORUMS: [(&str, ReadQuorum); 3] =
    [("weak-quorum", ReadQuorum::WeakQuorum), ("majority", ReadQuorum::Majority), ("commit", ReadQuorum::Commit)];

fn read_quorum(text: &str) -> Result<ReadQuorum, String> {
    let found = READ_QUORUMS.iter().find(|(name, _)| *name == text).map(|(_, quorum)| *quorum);
    found.ok_or_else(|| format!("there are {}", READ_QUORUMS.map(|(name, _)| name).join(", ")))
}

fn some<T>(set: BTreeSet<T>) -> Result<BTreeSet<T>, String> {
    if set.is_empty() { Err("at least one is needed".to_owned()) } else { Ok(set) }
}

impl EngineSetting for BasilSetting {
    fn describe(&self) -> Vec<String> {
        let Self { replica, coordinator, .. } = self;
        let read_quorum = READ_QUORUMS.iter().find(|(_, quorum)| *quorum == coordinator.read_quorum).map_or("", |(name, _)| name);
        vec![
            format!("plans={}", join(self.plans.iter().copied())),
            format!("delay-attacks={}", join(self.delay_attacks.iter().copied())),
            format!("window-ms={}", replica.window_ms),
            format!("time-bound-ms={}", replica.time_bound_ms),
            format!("clock-good-ms={}", replica.clock_good_ms),
            format!("janitor-timeout-ms={}", replica.janitor_timeout_ms),
            format!("authorship-wait-ms={}", replica.authorship_wait_ms),
            format!("checkpoint-ms={}", replica.checkpoint_ms),
            format!("memtable-bytes={}", replica.memtable_bytes_max),
            format!("journal-bytes={}", replica.journal_bytes_max),
            format!("catch-up-ms={}", replica.catch_up_ms),
            format!("read-timestamps={}", replica.read_timestamps),
            format!("read-quorum={read_quorum}"),
            format!("timeout-ms={}", coordinator.timeout_ms),
        ]
    }

    fn apply(&mut self, key: &str, value: &str) -> Option<Result<(), String>> {
        let Self { replica, coordinator, .. } = self;
        Some(match key {
            "plans" => set(&mut self.plans, subset(value).and_then(some)),
            "delay-attacks" => set(&mut self.delay_attacks, subset(value)),
            "window-ms" => set(&mut replica.window_ms, number(value, 1_000, 3_600_000)),
            // Every window is at least twice as long.
            "time-bound-ms" => set(&mut replica.time_bound_ms, number(value, 1, 500)),
            "clock-good-ms" => {
                set(&mut replica.clock_good_ms, number(value, 10, 60_000)).map(|()| coordinator.clock_good_ms = replica.clock_good_ms)
            }
            "janitor-timeout-ms" => set(&mut replica.janitor_timeout_ms, number(value, 1, 600_000)),
            "authorship-wait-ms" => set(&mut replica.authorship_wait_ms, number(value, 1, 600_000)),
            "checkpoint-ms" => set(&mut replica.checkpoint_ms, number(value, 1, 600_000)),
            "memtable-bytes" => set(&mut replica.memtable_bytes_max, number(value, 1, 1 << 30)),
            "journal-bytes" => set(&mut replica.journal_bytes_max, number(value, 1, 1 << 40)),
            "catch-up-ms" => set(&mut replica.catch_up_ms, number(value, 0, 600_000)),
            "read-timestamps" => set(&mut replica.read_timestamps, number(value, 1, 1 << 20)),
            "read-quorum" => set(&mut coordinator.read_quorum, read_quorum(value)),
            "timeout-ms" => set(&mut coordinator.timeout_ms, number(value, 1, 600_000)),
            _ => return None,
        })
    }

    fn simpler(&self) -> Vec<Self> {
        let with = |change: &dyn Fn(&mut Self)| {
            let mut other = self.clone();
            change(&mut other);
            other
        };
        let mut all: Vec<Self> =
            simulator::subsets(&self.delay_attacks).into_iter().map(|some| with(&|other| other.delay_attacks.clone_from(&some))).collect();
        let plans = simulator::subsets(&self.plans).into_iter().filter(|plans| !plans.is_empty());
        all.extend(plans.map(|some| with(&|other| other.plans.clone_from(&some))));
        let (replica, coordinator) = (ReplicaOptions::default(), CoordinatorOptions::default());
        let plainer: [&dyn Fn(&mut Self); 12] = [
            &|other| (other.replica.clock_good_ms, other.coordinator.clock_good_ms) = (replica.clock_good_ms, coordinator.clock_good_ms),
            &|other| other.replica.time_bound_ms = replica.time_bound_ms,
            &|other| other.replica.window_ms = replica.window_ms,
            &|other| other.replica.janitor_timeout_ms = replica.janitor_timeout_ms,
            &|other| other.replica.authorship_wait_ms = replica.authorship_wait_ms,
            &|other| other.replica.checkpoint_ms = replica.checkpoint_ms,
            &|other| other.replica.memtable_bytes_max = replica.memtable_bytes_max,
            &|other| other.replica.journal_bytes_max = replica.journal_bytes_max,
            &|other| other.replica.catch_up_ms = replica.catch_up_ms,
            &|other| other.replica.read_timestamps = READ_TIMESTAMPS,
            &|other| other.coordinator.read_quorum = coordinator.read_quorum,
            &|other| other.coordinator.timeout_ms = coordinator.timeout_ms,
        ];
        all.extend(plainer.into_iter().map(with).filter(|other| other.describe() != self.describe()));
        all
    }

    fn is_steady(&self) -> bool {
        self.delay_attacks.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use simulator::dictionary::describe;
    use types::ShardId;

    use super::super::Setting;
    use super::*;

    fn scenario(name: &str) -> Scenario {
        Scenario::named(name).expect("it is one of ours")
    }

    #[test]
    fn some_seeds_have_larger_shards_and_more_of_them() {
        let settings: Vec<Setting> = (0..400).map(|seed| Setting::new(&scenario("calm"), seed)).collect();
        let large = settings.iter().filter(|setting| setting.faults == 2).count();
        assert!((10..50).contains(&large), "{large} of 400 survive two faults");
        assert!(settings.iter().all(|setting| setting.faults == 1 || setting.shards < 3), "no world is larger than can be borne");
        for shards in 1..=3 {
            assert!(settings.iter().any(|setting| setting.shards == shards), "nobody draws {shards} shards");
        }
    }

    #[test]
    fn where_shards_are_upgraded_there_is_room_for_it() {
        let settings: Vec<Setting> = (0..400).map(|seed| Setting::new(&scenario("upgrade"), seed)).collect();
        let in_first = |setting: &Setting| setting.faulty.keys().filter(|replica| replica.shard == ShardId(0)).count();
        assert!(settings.iter().all(|setting| in_first(setting) < setting.faults));
        assert!(settings.iter().any(|setting| in_first(setting) > 0), "somebody lies where there is room for one more");
        let steady = settings.iter().filter(|setting| setting.is_steady()).count();
        assert!((250..400).contains(&steady), "in {steady} of 400 nobody has a reason to wait");
    }

    #[test]
    fn where_disks_are_lost_beside_liars_there_is_room_for_a_lost_one() {
        let settings: Vec<Setting> = (0..200).map(|seed| Setting::new(&scenario("rebuild-liars"), seed)).collect();
        for setting in &settings {
            let of_each = (0..setting.shards).map(|shard| setting.faulty.keys().filter(|liar| usize::from(liar.shard.0) == shard).count());
            assert!(setting.faults == 2 && of_each.clone().all(|count| count == 1), "{:?}", setting.faulty);
        }
        let lies = |words: &str| settings.iter().filter(|setting| describe(setting).iter().any(|word| word.ends_with(words))).count();
        for words in [":forge-past", ":stale-reads+forge-past", ":withhold-reads+forge-past", ":stale-reads+withhold-reads", ":silent"] {
            assert!(lies(words) > 10, "{words}");
        }
    }

    #[test]
    fn whoever_sets_fewer_faults_or_shards_has_fewer_at_fault() {
        let everything = scenario("everything");
        let seed = (0..400).find(|seed| Setting::new(&everything, *seed).faults == 2).expect("some seed draws two");
        let fewer = everything.with("faults=1 shards=1").expect("the words are good");
        assert!(Setting::new(&fewer, seed).faulty.len() <= 1);
    }

    #[test]
    fn a_setting_never_has_more_faulty_replicas_in_a_shard_than_it_survives() {
        for scenario in Scenario::all() {
            for seed in 0..200 {
                let setting = Setting::new(&scenario, seed);
                for shard in 0..setting.shards {
                    let faulty = setting.faulty.keys().filter(|replica| usize::from(replica.shard.0) == shard).count();
                    assert!(faulty <= setting.faults, "{} seed {seed}", scenario.name);
                }
            }
        }
    }

    #[test]
    fn a_setting_is_read_back_as_it_was_written() {
        for scenario in Scenario::all() {
            for seed in 0..50 {
                let written = describe(&Setting::new(&scenario, seed));
                let calm = Scenario::named("calm").and_then(|calm| calm.with(&written.join(" ")).ok());
                let read = Setting::new(&calm.expect("what was written can be read"), seed + 1);
                assert_eq!(describe(&read), written);
            }
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_what_would() {
        for (words, hint) in [
            ("clients", "sets nothing"),
            ("clients=0", "from 1 to 64"),
            ("clients=many", "from 1 to 64"),
            ("friends=2", "there are fault-phase-ms, shards"),
            ("byzantine-clients=stall-never", "stall-early"),
            ("faulty=s0-r0:silent,s0-r1:disk-damage", "survives 1"),
            ("faulty=r0:silent", "as s0-r2"),
            ("faulty=s0-r0:quiet", "silent"),
            ("fault-kinds=rain", "heavy-loss"),
            ("delay-attacks=wait", "starve-quorums"),
            ("plans=none", "at least one"),
            ("plans=sing", "rotate"),
            ("delay-us=9..1", "above"),
            ("late=3", "two numbers"),
            ("read-quorum=all", "majority"),
            ("time-bound-ms=501", "from 1 to 500"),
        ] {
            let error = scenario("calm").with(words).expect_err(words);
            assert!(error.contains(hint), "{words}: {error}");
        }
        assert!(scenario("calm").with("faults=2 faulty=s0-r0:silent,s0-r1:disk-damage byzantine-clients=none fault-kinds=none").is_ok());
    }
}
