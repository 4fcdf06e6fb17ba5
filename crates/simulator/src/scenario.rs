//! What a run is made of. A scenario says what kinds of trouble there are; how much of each, and when, comes from the seed
//! (see [`crate::setting`]), and any of that can be put in words and set by hand.

use random::named;

use crate::setting::Setting;

named! {
    /// A kind of trouble.
    pub enum Trouble {
        /// Messages are lost, late and doubled; links are cut one way or both, or slow; there are storms.
        Network,
        /// Replicas and clients are far from one another.
        Distance,
        /// Clocks jump, mostly within what the protocol allows for.
        Clocks,
        /// Processes of replicas and clients die, and disks forget what was not synced.
        Crashes,
        /// Bits flip on the disks of up to `f` replicas of a shard.
        Rot,
        /// Up to `f` replicas of each shard lie.
        Liars,
        /// Some clients cheat.
        Rogues,
        /// The network looks at what is under way, and is late where it hurts.
        Ploys,
        /// Replicas are stopped in good order, one after the other, and started again with other options.
        Upgrades,
        /// Those who cheat see to it that leaders must be elected, and elect and lead badly.
        Elections,
    }
}

/// What kinds of trouble a run has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scenario {
    /// What it is called.
    pub name: &'static str,
    /// What it is for.
    pub about: &'static str,
    /// What kinds of trouble it always has.
    pub troubles: &'static [Trouble],
    /// How long the trouble lasts, in milliseconds of virtual time.
    pub trouble_ms: u64,
    /// What is set by hand, in place of what the seed would draw.
    words: Vec<String>,
}

const fn scenario(name: &'static str, trouble_ms: u64, troubles: &'static [Trouble], about: &'static str) -> Scenario {
    Scenario { name, about, troubles, trouble_ms, words: Vec::new() }
}

/// Every scenario.
const SCENARIOS: [Scenario; 10] = [
    scenario("calm", 4_000, &[], "nothing goes wrong: what the others are measured against"),
    scenario("faults", 12_000, &[Trouble::Network, Trouble::Clocks], "messages are lost, late and doubled, links are cut, clocks jump"),
    scenario(
        "crashes",
        12_000,
        &[Trouble::Crashes, Trouble::Rot, Trouble::Clocks],
        "replicas and clients crash in the middle of what they do, disks forget what was not synced, and some flip bits",
    ),
    scenario(
        "upgrade",
        7_000,
        &[Trouble::Upgrades, Trouble::Clocks],
        "replicas are stopped in good order, one after the other, and come back with other options, while clients go on",
    ),
    scenario("liars", 8_000, &[Trouble::Liars], "f replicas of each shard lie, each in up to three ways"),
    scenario("clients", 8_000, &[Trouble::Rogues], "clients stall, equivocate, reuse timestamps and speak in others' names"),
    scenario(
        "elections",
        8_000,
        &[Trouble::Network, Trouble::Liars, Trouble::Rogues, Trouble::Elections],
        "clients log both ends of what they do, and replicas that lie elect and lead badly",
    ),
    scenario(
        "planet",
        60_000,
        &[Trouble::Distance, Trouble::Network, Trouble::Clocks, Trouble::Liars],
        "replicas and clients live in regions far from one another, links fail, and f replicas of each shard lie",
    ),
    scenario(
        "network",
        12_000,
        &[Trouble::Ploys, Trouble::Liars],
        "the network sees what is under way and is late where it hurts, and f replicas of each shard lie",
    ),
    scenario(
        "everything",
        12_000,
        &[Trouble::Network, Trouble::Clocks, Trouble::Crashes, Trouble::Rot, Trouble::Liars, Trouble::Rogues],
        "all of it at once, replicas and clients that lie knowing each other",
    ),
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
        self.words.push(format!("trouble-ms={trouble_ms}"));
        self
    }

    /// The same with some of it set by hand: words as `clients=3 mishaps=isolate+mend`, each in place of what the seed draws.
    ///
    /// # Errors
    /// A sentence that says which word is wrong, and what could stand there.
    ///
    /// ```
    /// use simulator::Scenario;
    ///
    /// let calm = Scenario::named("calm").expect("it is one of ours");
    /// assert!(calm.clone().with("clients=2 shards=1").is_ok());
    /// assert!(calm.with("clients=many").is_err());
    /// ```
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
