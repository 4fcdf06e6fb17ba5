//! Whether a broken rule is noticed: runs with one of the rules of [`Mutant`] broken for everybody.

use mutants::{Mutant, breaking};
use simulator::{Scenario, System, Tracing, Violation};

use crate::augustus::Order;
use crate::augustus::whole::Augustus;
use crate::basil::Basil;
use crate::sentinel::Zab;
use crate::sentinel::ensemble::Ensemble;
use crate::sentinel::transactions::Transactions;

/// Where a mutant is looked for: a scenario of any engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ground {
    /// Of Basil.
    Basil(Scenario<Basil>),
    /// Of Augustus' order.
    Order(Scenario<Order>),
    /// Of whole clusters of Augustus.
    Augustus(Scenario<Augustus>),
    /// Of Sentinel's order.
    Zab(Scenario<Zab>),
    /// Of whole servers of Sentinel.
    Ensemble(Scenario<Ensemble>),
    /// Of transactions on Sentinel.
    Transactions(Scenario<Transactions>),
}

/// What a run broke: nothing when it is clean.
#[derive(Clone, Debug)]
pub struct Broken {
    /// The promises, the first of them first.
    pub violations: Vec<Violation>,
    /// The same for people.
    pub text: String,
}

impl Ground {
    /// The scenario of that name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        let of_basil = Scenario::named(name).map(Self::Basil);
        let others = || Scenario::named(name).map(Self::Order).or_else(|| Scenario::named(name).map(Self::Augustus));
        let of_sentinel = || Scenario::named(name).map(Self::Zab).or_else(|| Scenario::named(name).map(Self::Ensemble));
        let of_transactions = || Scenario::named(name).map(Self::Transactions);
        of_basil.or_else(others).or_else(of_sentinel).or_else(of_transactions)
    }

    /// The same with some of it set by hand.
    ///
    /// # Errors
    /// A sentence that says which word is wrong.
    pub fn with(self, words: &str) -> Result<Self, String> {
        Ok(match self {
            Self::Basil(scenario) => Self::Basil(scenario.with(words)?),
            Self::Order(scenario) => Self::Order(scenario.with(words)?),
            Self::Augustus(scenario) => Self::Augustus(scenario.with(words)?),
            Self::Zab(scenario) => Self::Zab(scenario.with(words)?),
            Self::Ensemble(scenario) => Self::Ensemble(scenario.with(words)?),
            Self::Transactions(scenario) => Self::Transactions(scenario.with(words)?),
        })
    }

    /// What the scenario is called.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Basil(scenario) => scenario.name,
            Self::Order(scenario) => scenario.name,
            Self::Augustus(scenario) => scenario.name,
            Self::Zab(scenario) => scenario.name,
            Self::Ensemble(scenario) => scenario.name,
            Self::Transactions(scenario) => scenario.name,
        }
    }

    /// What is set by hand.
    #[must_use]
    pub fn words(&self) -> &[String] {
        match self {
            Self::Basil(scenario) => scenario.words(),
            Self::Order(scenario) => scenario.words(),
            Self::Augustus(scenario) => scenario.words(),
            Self::Zab(scenario) => scenario.words(),
            Self::Ensemble(scenario) => scenario.words(),
            Self::Transactions(scenario) => scenario.words(),
        }
    }

    /// Runs it with `seed`.
    #[must_use]
    pub fn run(&self, seed: u64) -> Broken {
        fn run<S: System>(scenario: &Scenario<S>, seed: u64) -> Broken {
            let report = simulator::run(scenario, seed, Tracing::Off);
            Broken { text: report.to_string(), violations: report.violations }
        }
        match self {
            Self::Basil(scenario) => run(scenario, seed),
            Self::Order(scenario) => run(scenario, seed),
            Self::Augustus(scenario) => run(scenario, seed),
            Self::Zab(scenario) => run(scenario, seed),
            Self::Ensemble(scenario) => run(scenario, seed),
            Self::Transactions(scenario) => run(scenario, seed),
        }
    }

    /// Runs it with one rule broken: the first promise that the run breaks, if it breaks any. A machine's own assertion may stop it, so
    /// that whoever calls this does it in a process of its own.
    #[must_use]
    pub fn hunt(&self, mutant: Mutant, seed: u64) -> Option<Violation> {
        breaking(mutant, || self.run(seed)).violations.into_iter().next()
    }
}

/// Where mutants are looked for beside the scenarios themselves: with cheats and liars of one kind, each of which tries one
/// rule again and again. Short, as nothing else is to be seen there.
const GROUNDS: [(&str, &str); 12] = [
    ("clients", "fault-phase-ms=3000 byzantine-clients=forge-proofs+log-freely"),
    ("clients", "fault-phase-ms=3000 shards=2 byzantine-clients=forge-proofs+log-freely"),
    ("liars", "fault-phase-ms=3000 shards=1 byzantine-clients=decide-twice+forge-proofs faulty=s0-r3:equivocate-votes+equivocate-logs"),
    ("liars", "fault-phase-ms=3000 shards=1 byzantine-clients=vouch-for-lies faulty=s0-r1:commit-always"),
    ("liars", "fault-phase-ms=3000 shards=1 faulty=s0-r1:refuse-all"),
    ("liars", "fault-phase-ms=3000 shards=1 faulty=s0-r1:false-conflicts"),
    ("liars", "fault-phase-ms=3000 shards=1 byzantine-clients=hurry-leaders+decide-twice faulty=s0-r1:equivocate-votes+claim-views"),
    ("liars", "fault-phase-ms=3000 shards=1 byzantine-clients=equiv-split faulty=s0-r1:equivocate-votes+wrong-electors"),
    ("liars", "fault-phase-ms=3000 shards=1 verifiers=each faulty=s0-r1:impersonate+garble"),
    ("clients", "fault-phase-ms=3000 byzantine-clients=far-future+read-and-leave+invent-dependencies"),
    ("liars", "fault-phase-ms=6000 shards=1 plans=blind+look window-ms=2000 catch-up-ms=200 fault-kinds=none faulty=s0-r0:forge-past"),
    ("rebuild-liars", "fault-phase-ms=12000 shards=1 clients=4"),
];

/// Everywhere that mutants are looked for.
///
/// # Panics
/// When the words of a ground make no sense.
#[must_use]
pub fn grounds() -> Vec<Ground> {
    let named = |name| Ground::named(name).expect("grounds are our own scenarios");
    let narrow = GROUNDS.iter().map(|(name, words)| named(name).with(words).expect("the words of a ground make sense"));
    let of_basil = Scenario::all().into_iter().map(Ground::Basil);
    let of_augustus = Scenario::all().into_iter().map(Ground::Augustus);
    let of_zab = Scenario::all().into_iter().map(Ground::Zab);
    let of_ensemble = Scenario::all().into_iter().map(Ground::Ensemble);
    let of_transactions = Scenario::all().into_iter().map(Ground::Transactions);
    narrow.chain(of_basil).chain(of_augustus).chain(of_zab).chain(of_ensemble).chain(of_transactions).collect()
}
