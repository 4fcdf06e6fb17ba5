//! What a run is made of. A scenario says which classes of faults there are; how much of each, and when, comes from the seed
//! (see [`crate::setting`]), and any of that can be written in words and set by hand.

use random::named;

use crate::setting::Setting;
use crate::system::System;

named! {
    /// A class of faults.
    pub enum FaultClass {
        /// Messages are lost, late and doubled; links are cut one way or both, or slow.
        Network,
        /// Replicas and clients are far from one another.
        Distance,
        /// Clocks jump, mostly within what the protocol allows for.
        Clocks,
        /// Processes of replicas and clients die, and disks forget what was not synced.
        Crashes,
        /// Bits flip on the disks of up to `f` replicas of a shard.
        DiskDamage,
        /// Disks are lost, of up to `f` replicas of a shard at a time, and these are rebuilt.
        DiskLoss,
        /// Up to `f` replicas of each shard lie.
        ByzantineReplicas,
        /// Some clients cheat.
        ByzantineClients,
        /// The network reads what is under way, and delays what hurts most.
        DelayAttacks,
        /// Replicas are stopped in good order, one after the other, and started again with other options.
        Upgrades,
        /// Those who cheat see to it that leaders must be elected, and elect and lead badly.
        Elections,
        /// Operators change the cluster while it runs.
        Changes,
        /// Clients may read and write some keys only, and operators change which.
        Rights,
        /// Bits flip in what up to `f` replicas of a shard hold, and nothing tells them.
        SilentFlips,
        /// All wall clocks are set at once, and clients take the time to be later than it is.
        FalseTimes,
    }
}

/// A scenario as an engine defines it.
#[derive(Debug)]
pub struct ScenarioKind {
    /// What it is called.
    pub name: &'static str,
    /// For how long things go wrong, in milliseconds of virtual time.
    pub fault_phase_ms: u64,
    /// Which classes of faults it always has.
    pub faults: &'static [FaultClass],
    /// What it is for.
    pub about: &'static str,
}

/// A scenario, as a line of an engine's table of them.
#[must_use]
pub const fn scenario(name: &'static str, fault_phase_ms: u64, faults: &'static [FaultClass], about: &'static str) -> ScenarioKind {
    ScenarioKind { name, fault_phase_ms, faults, about }
}

/// The classes of faults of a scenario in which all goes wrong at once: processes, disks, network, clocks, replicas and clients.
pub const EVERYTHING: &[FaultClass] = &[
    FaultClass::Network,
    FaultClass::Clocks,
    FaultClass::Crashes,
    FaultClass::DiskDamage,
    FaultClass::ByzantineReplicas,
    FaultClass::ByzantineClients,
];

/// A scenario of the engine `S`, with what was set by hand.
#[derive(Clone, Debug)]
pub struct Scenario<S: System> {
    /// What it is called.
    pub name: &'static str,
    /// What it is for.
    pub about: &'static str,
    /// Which classes of faults it always has.
    pub faults: &'static [FaultClass],
    /// For how long things go wrong, in milliseconds of virtual time.
    pub fault_phase_ms: u64,
    /// What is set by hand, in place of what the seed would draw.
    words: Vec<String>,
    system: std::marker::PhantomData<S>,
}

impl<S: System> PartialEq for Scenario<S> {
    fn eq(&self, other: &Self) -> bool {
        (self.name, &self.words) == (other.name, &other.words)
    }
}

impl<S: System> Eq for Scenario<S> {}

impl<S: System> Scenario<S> {
    fn new(kind: &ScenarioKind) -> Self {
        let ScenarioKind { name, fault_phase_ms, faults, about } = *kind;
        Self { name, about, faults, fault_phase_ms, words: Vec::new(), system: std::marker::PhantomData }
    }

    /// The scenario of that name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        S::SCENARIOS.iter().find(|kind| kind.name == name).map(Self::new)
    }

    /// Every scenario, the quietest first.
    #[must_use]
    pub fn all() -> Vec<Self> {
        S::SCENARIOS.iter().map(Self::new).collect()
    }

    /// Whether it has faults of a class.
    #[must_use]
    pub fn has(&self, class: FaultClass) -> bool {
        self.faults.contains(&class)
    }

    /// The same with faults for so long.
    #[must_use]
    pub fn lasting_ms(mut self, fault_phase_ms: u64) -> Self {
        self.words.push(format!("fault-phase-ms={fault_phase_ms}"));
        self
    }

    /// The same with some of it set by hand: words as `clients=3 fault-kinds=isolate+mend`, each in place of what the seed draws.
    ///
    /// # Errors
    /// A sentence that says which word is wrong, and what could stand there.
    pub fn with(mut self, words: &str) -> Result<Self, String> {
        self.words.extend(words.split_whitespace().map(str::to_owned));
        Setting::check(&self).map(|()| self)
    }

    /// The same with nothing set by hand.
    pub(crate) fn bare(&self) -> Self {
        Self { words: Vec::new(), ..self.clone() }
    }

    /// What is set by hand.
    #[must_use]
    pub fn words(&self) -> &[String] {
        &self.words
    }
}
