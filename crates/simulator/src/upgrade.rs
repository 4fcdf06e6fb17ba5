//! Upgrades of shards that go on working: one replica after the other is stopped in good order, and started again as another
//! version, whose bounds are other ones.
//!
//! Whoever does that counts: with those that are at fault, or down for another reason, never more than `f` of a shard are away.
//! So nothing may come to a stop meanwhile, and that is demanded where an upgrade is all that happens. An upgrade in a hurry does not
//! wait until who has been started again votes on all writes: while more than `f` are silent by that, nothing is demanded.

use machine::turn::Bounds;
use random::Random;
use store::Options;
use types::ShardId;

use crate::faults::Phase;
use crate::system::System;
use crate::world::{Event, World};

const MS: u64 = 1_000_000;
/// How often somebody looks whether the next replica may be stopped, in milliseconds, from and to.
const STEP_MS: (u64, u64) = (5, 60);
/// How long a replica is away, in milliseconds.
const DOWN_MS: [u64; 5] = [1, 20, 200, 500, 1_500];

/// What may differ from one version of the program to the next, or be set otherwise at each replica.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Version<O> {
    pub options: O,
    pub store: Options,
    /// How large a turn may be.
    pub bounds: Bounds,
}

/// Another version.
fn next_version<S: System>(version: Version<S::Options>, random: &mut Random) -> Version<S::Options> {
    let options = S::upgraded(version.options, random);
    let (segment_bytes_max, cache_bytes_max) = (random.pick(&[4 << 10, 64 << 10, 16 << 20]), random.pick(&[4 << 10, 1 << 20]));
    let checkpoint_versions_max = random.pick(&[16, 1_024, 16_384]);
    // So that checkpoints take several steps.
    let checkpoint_step = checkpoint_versions_max / 8;
    Version {
        options,
        store: Options { segment_bytes_max, cache_bytes_max, checkpoint_versions_max, checkpoint_step, deleted_keys_min: 1 },
        bounds: Bounds { batch_max: random.pick(&[1, 4, 64]), ..version.bounds },
    }
}

/// A replica is to end its process in good order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Leaving {
    /// For how long it will be away.
    down_ns: u64,
    /// Whether its machine is switched off as well.
    is_switched_off: bool,
}

/// An upgrade that is under way.
#[derive(Debug)]
pub(crate) struct Rollout<O> {
    version: Version<O>,
    /// Who still runs the old version, in the order in which they are to be stopped.
    left: Vec<usize>,
    /// How many are stopped at once, at most.
    at_once: usize,
    /// Whether a replica counts as away until it votes for all writes again.
    is_patient: bool,
}

impl<S: System> World<S> {
    /// A shard's upgrade begins, unless that shard has one already.
    pub fn begin_upgrade(&mut self) {
        let shard = self.upgrades.index(self.setting.shards);
        if self.rollouts.contains_key(&shard) {
            return;
        }
        let all: Vec<usize> = (0..self.replicas.len()).filter(|at| usize::from(self.replicas[*at].id.shard.0) == shard).collect();
        let version = next_version::<S>(self.replicas[all[0]].version, &mut self.upgrades);
        let mut left = all.clone();
        // Where as many are at fault as may be, nobody else may be stopped.
        if all.iter().filter(|at| self.is_at_fault(**at)).count() >= self.setting.faults {
            left.retain(|at| self.is_at_fault(*at));
        }
        self.upgrades.shuffle(&mut left);
        let at_once = self.upgrades.index(self.setting.faults) + 1;
        let is_patient = self.upgrades.chance(700);
        self.trace.line(self.now, || {
            let manner = if is_patient { "patiently" } else { "in a hurry" };
            format!("{} is upgraded {manner}, up to {at_once} at once, to {version:?}", shard_name(shard))
        });
        self.rollouts.insert(shard, Rollout { version, left, at_once, is_patient });
        self.upgrade(shard);
    }

    pub(crate) fn is_at_fault(&self, at: usize) -> bool {
        let replica = &self.replicas[at];
        replica.is_faulty() || self.setting.faulty.contains_key(&replica.id)
    }

    /// Goes on with a shard's upgrade: stops whoever is next, if they may be stopped now.
    pub fn upgrade(&mut self, shard: usize) {
        let Some(mut rollout) = self.rollouts.remove(&shard) else { return };
        if self.phase != Phase::Faults {
            return; // It stays half done, which must be all right too.
        }
        let of_shard: Vec<usize> = (0..self.replicas.len()).filter(|at| usize::from(self.replicas[*at].id.shard.0) == shard).collect();
        let ready_ns = S::ready_after_ms(&self.setting) * MS;
        let is_away = |world: &Self, at: usize| world.replicas[at].node.is_none() || world.replicas[at].leaving.is_some();
        let is_silent = |world: &Self, at: usize| {
            let replica = &world.replicas[at];
            is_away(world, at) || (replica.lives >= 2 && world.now < replica.started_at + ready_ns)
        };
        let is_out = |world: &Self, at: usize| if rollout.is_patient { is_silent(world, at) } else { is_away(world, at) };
        let out = of_shard.iter().filter(|at| is_out(self, **at)).count();
        let may_leave = |at: usize| {
            let with_it = of_shard.iter().filter(|other| **other == at || is_out(self, **other) || self.is_at_fault(**other)).count();
            !is_out(self, at) && with_it <= self.setting.faults
        };
        let next = rollout.left.iter().position(|at| out < rollout.at_once && may_leave(*at));
        if let Some(position) = next {
            let at = rollout.left.remove(position);
            let silent = of_shard.iter().filter(|other| **other == at || is_silent(self, **other) || self.is_at_fault(**other)).count();
            let down_ns = self.ask_to_leave(at, rollout.version);
            if silent > self.setting.faults {
                self.too_few_until = self.too_few_until.max(self.now + down_ns + ready_ns);
            }
        }
        rollout.left.retain(|at| self.replicas[*at].away.is_none());
        if rollout.left.is_empty() {
            self.trace.line(self.now, || format!("nobody of {} is left to be upgraded", shard_name(shard)));
            return;
        }
        self.rollouts.insert(shard, rollout);
        let wait_ms = self.upgrades.between(STEP_MS.0, STEP_MS.1);
        self.after(wait_ms * MS, Event::Upgrade(shard));
    }

    /// A replica is asked to end in good order; it will come back as `version`. Says for how long it will be away.
    fn ask_to_leave(&mut self, at: usize, version: Version<S::Options>) -> u64 {
        let down_ns = self.upgrades.pick(&DOWN_MS) * MS;
        let is_switched_off = self.upgrades.chance(300);
        let replica = &mut self.replicas[at];
        let options = S::restarted(replica.version.options, version.options, self.upgrades.next());
        replica.version = Version { options, ..version };
        replica.leaving = Some(Leaving { down_ns, is_switched_off });
        self.want_turn(at);
        down_ns
    }

    /// A replica has finished what had arrived, made it durable and said so: its process ends.
    pub fn leave(&mut self, at: usize, leaving: Leaving) {
        let id = self.replicas[at].id;
        self.trace.mark(self.now, 0x1eaf ^ at as u64);
        self.trace.line(self.now, || format!("{id} stops in good order"));
        self.counts.upgraded += 1;
        if let Err(error) = self.replicas[at].close() {
            self.violation("disk", format!("{id} cannot stop in good order: {error}"));
        }
        if leaving.is_switched_off {
            self.replicas[at].crash_hard();
        }
        self.after(leaving.down_ns, Event::Restart(at));
    }
}

fn shard_name(shard: usize) -> ShardId {
    ShardId(u16::try_from(shard).expect("few shards"))
}
