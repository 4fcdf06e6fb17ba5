//! The network: late, lossy, repeating, out of order, cut one way or both, slow on some links.
//!
//! Real channels are ordered and lose nothing but by breaking. This one is worse on purpose: what machines stand here,
//! they stand there.

use std::collections::{BTreeMap, BTreeSet};

use crate::world::Actor;
use random::Random;

/// What links are like just now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkProfile {
    /// How long most messages take, in microseconds, from and to.
    pub delay_us: (u64, u64),
    /// How many of a thousand take much longer.
    pub late_per_mille: u64,
    /// How long those take at most, in microseconds.
    pub late_us_max: u64,
    /// How many of a thousand are lost.
    pub lost_per_mille: u64,
    /// How many of a thousand come twice.
    pub doubled_per_mille: u64,
}

impl LinkProfile {
    /// Nothing is wrong with them.
    pub const GOOD: Self = Self { delay_us: (80, 250), late_per_mille: 2, late_us_max: 3_000, lost_per_mille: 0, doubled_per_mille: 0 };
}

/// How long a message to oneself takes, in microseconds.
const LOOPBACK_US: u64 = 10;

/// How far two regions are from one another, in microseconds one way: neighbouring countries, or the other side of the planet.
const DISTANCE_US: (u64, u64) = (5_000, 150_000);

/// Links, and what becomes of what is sent over them.
#[derive(Debug)]
pub(crate) struct Network {
    random: Random,
    pub profile: LinkProfile,
    cut: BTreeSet<(Actor, Actor)>,
    slow_us: BTreeMap<(Actor, Actor), u64>,
    map: Map,
}

/// Who lives where, and how far regions are from one another.
#[derive(Debug)]
struct Map {
    random: Random,
    regions: u64,
    homes: BTreeMap<Actor, u64>,
    /// From the first region to the second, in microseconds one way.
    distance_us: BTreeMap<(u64, u64), u64>,
}

impl Map {
    fn home(&mut self, actor: Actor) -> u64 {
        let Self { random, regions, .. } = self;
        *self.homes.entry(actor).or_insert_with(|| random.below(*regions))
    }

    /// How long a message takes for the distance alone, the same both ways.
    fn distance_ns(&mut self, from: Actor, to: Actor) -> u64 {
        let (from, to) = (self.home(from), self.home(to));
        if from == to {
            return 0;
        }
        let Self { random, .. } = self;
        let between = (from.min(to), from.max(to));
        *self.distance_us.entry(between).or_insert_with(|| random.between(DISTANCE_US.0, DISTANCE_US.1)) * 1_000
    }
}

impl Network {
    pub fn new(seed: u64, profile: LinkProfile, regions: u64) -> Self {
        let map = Map { random: Random::stream(seed, "map"), regions, homes: BTreeMap::new(), distance_us: BTreeMap::new() };
        Self { random: Random::stream(seed, "network"), profile, cut: BTreeSet::new(), slow_us: BTreeMap::new(), map }
    }

    /// After how many nanoseconds each copy of a message arrives: none when it is lost.
    pub fn fate(&mut self, from: Actor, to: Actor) -> Vec<u64> {
        if from == to {
            return vec![LOOPBACK_US * 1_000];
        }
        // Drawn in any case, so that a cut on one link does not move what happens on the others.
        let (lost, doubled) = (self.random.chance(self.profile.lost_per_mille), self.random.chance(self.profile.doubled_per_mille));
        let (first, second) = (self.delay_ns(), self.delay_ns());
        if lost || self.cut.contains(&(from, to)) {
            return Vec::new();
        }
        let more_ns = self.slow_us.get(&(from, to)).map_or(0, |us| us * 1_000) + self.map.distance_ns(from, to);
        if doubled { vec![first + more_ns, second + more_ns] } else { vec![first + more_ns] }
    }

    fn delay_ns(&mut self) -> u64 {
        let (least, most) = self.profile.delay_us;
        let late = self.random.chance(self.profile.late_per_mille);
        let delay = self.random.between(least * 1_000, most * 1_000);
        let more = self.random.below(self.profile.late_us_max * 1_000 + 1);
        if late { delay + more } else { delay }
    }

    /// Nothing gets from `from` to `to` any more.
    pub fn cut(&mut self, from: Actor, to: Actor) {
        self.cut.insert((from, to));
    }

    /// Whatever goes from `from` to `to` takes so much longer.
    pub fn slow(&mut self, from: Actor, to: Actor, by_us: u64) {
        self.slow_us.insert((from, to), by_us);
    }

    /// Every link is as good as any.
    pub fn repair(&mut self) {
        self.cut.clear();
        self.slow_us.clear();
    }
}
