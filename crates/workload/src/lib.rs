//! What Bezant is measured and tried with.
//!
//! A [`Workload`] says what a table looks like at first, what one transaction does, and, where it can, what must
//! be true of the data whatever happens: a bank loses no money ([`Bank`]), a ring stays a ring ([`Ring`]). It
//! goes through [`client::Client`] as any application does and sees nothing of the engine below. How many
//! clients run it at once, for how long, and what is measured is the business of the crate `bench`.
//!
//! The papers' workloads are here ([`Point`] for YCSB and YCSB-T, [`Smallbank`], [`Retwis`],
//! [`Tpcc`], [`Buzzer`]), and two that exist for their invariant alone
//! (the bank and the ring).
//!
//! ```text
//!   load ──▶ start ──▶ transact, transact, …   (many loop clients at once)
//!                      check_running, …        (now and then, beside them)  ──▶ check_end
//! ```
//!
//! The load and every choice of keys and values come from a seed, so that two runs ask the same of the store in
//! each loop client; how the loop clients interleave is up to the machine.

mod attempt;
mod bank;
mod buzzer;
mod findings;
mod growth;
mod keys;
mod load;
mod marker;
mod no_op;
mod point;
mod retwis;
mod ring;
mod row;
mod shards;
mod smallbank;
mod sweep;
mod tpcc;
mod zipf;

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use client::{Advice, Client, Committed, Transaction};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use types::{Key, Value};

pub use bank::{ACCOUNTS_MAX, ACCOUNTS_MIN, Bank, JournalCheck, verify_journal};
pub use buzzer::{BUZZERS_MAX, BUZZERS_MIN, Buzzer, BuzzerMix, followed, post_text};
pub use keys::{Distribution, KEYS_MAX, Table, VALUE_BYTES_MAX, mix, random_value};
pub use load::{LOAD_IN_FLIGHT, LOAD_PUTS_MAX};
pub use no_op::NoOp;
pub use point::{Mix, OPERATIONS_MAX, Plan, Point, Reading, WriteKeys};
pub use retwis::{Retwis, USERS_MAX, USERS_MIN};
pub use ring::{NODES_MAX, NODES_MIN, Ring, check_cycle};
pub use smallbank::{CUSTOMERS_MAX, Smallbank, SmallbankMix};
pub use tpcc::{TPCC_SCALES, Tpcc, WAREHOUSES_MAX};
pub use zipf::Zipf;

/// The most keys a workload asks for in one request.
pub(crate) const KEYS_A_REQUEST_MAX: usize = 512;
/// The most reads a workload puts into one transaction, a little below the store's own limit.
pub(crate) const READS_A_TRANSACTION_MAX: u64 = 4_000;

/// How long something that is done once is tried again, the client's own retries aside.
const PERSIST_MS_MAX: u64 = 30_000;
/// The pause before it is.
const PERSIST_PAUSE_MS: u64 = 250;

/// A step of a workload that takes a while.
pub type Work<'a, T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send + 'a>>;

/// Told now and then how much of how much is done.
pub type Progress<'a> = &'a (dyn Fn(u64, u64) + Send + Sync);

/// One of the workloads.
pub trait Workload: Send + Sync {
    /// Its name on the command line and in reports.
    fn name(&self) -> &'static str;

    /// What was chosen, for the report.
    fn settings(&self) -> BTreeMap<&'static str, serde_json::Value>;

    /// Puts the table into the state a run starts from; gives how many keys were written.
    fn load<'a>(&'a self, client: &'a Arc<Client>, progress: Progress<'a>) -> Work<'a, u64>;

    /// Looks whether the table is there, and prepares a run of `loop_clients` loop clients. Called once, before [`Workload::transact`].
    fn start<'a>(&'a self, client: &'a Client, loop_clients: u32) -> Work<'a, Readiness>;

    /// The kinds of transactions it is mixed of, by name; none when all are of one kind.
    fn kinds(&self) -> &'static [&'static str] {
        &[]
    }

    /// The kind of transaction whose commits a minute are its result, and the name of that number.
    fn per_minute(&self) -> Option<(&'static str, usize)> {
        None
    }

    /// Runs one transaction to its end, retries included. Says in [`LoopClient::kind`] of which kind it is, before anything
    /// else, so that one that fails has its kind too.
    fn transact<'a>(&'a self, client: &'a Client, loop_client: &'a mut LoopClient) -> Work<'a, Done>;

    /// Checks the invariant while the loop clients run; `None` where there is nothing to check.
    fn check_running<'a>(&'a self, _client: &'a Client) -> Option<Work<'a, Verdict>> {
        None
    }

    /// Checks the invariant after the last loop client has ended; `None` where there is nothing to check.
    fn check_end<'a>(&'a self, _client: &'a Client, _progress: Progress<'a>) -> Option<Work<'a, Verdict>> {
        None
    }
}

/// Whether the table was found filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// It is there.
    Filled,
    /// Some or all of it is missing, and nothing reads it.
    NotFilled,
}

/// One closed-loop client of a run: it starts a transaction when its last one is done.
#[derive(Debug)]
pub struct LoopClient {
    /// Which of the loop clients, from 0.
    pub index: u32,
    /// Its own source of choices.
    pub rng: SmallRng,
    /// The number of its next transaction, for workloads that number them and count it up themselves.
    pub next: u64,
    /// Which of [`Workload::kinds`] its last transaction is.
    pub kind: usize,
    /// Whether it cheats. Such a one has its transactions on two shards, where a workload chooses shards and there are several: what is on
    /// one has no end that could be left out.
    pub is_cheat: bool,
}

impl LoopClient {
    /// Loop client `index` of a run seeded by `seed`.
    #[must_use]
    pub fn new(seed: u64, index: u32) -> Self {
        Self { index, rng: SmallRng::seed_from_u64(mix(&[seed, u64::from(index)])), next: 0, kind: 0, is_cheat: false }
    }
}

/// How a transaction ended that ended well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Done {
    /// The path it took to its commit; none when it was to roll back, and did.
    pub path: Option<client::CommitPath>,
    /// How often it was tried, the last time included.
    pub attempts: u32,
    /// What it found, and committed to having found, that cannot be.
    pub broken: Option<String>,
}

impl Done {
    /// A transaction that committed.
    pub(crate) fn committed<T>(committed: &Committed<T>) -> Self {
        Self { path: Some(committed.commit.path), attempts: committed.attempts, broken: None }
    }
}

/// What a check of the invariant found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// All is well.
    Held,
    /// It is not, and this is what was found, in words.
    Broken(Vec<String>),
}

impl Verdict {
    /// [`Verdict::Held`] if nothing was found.
    pub(crate) fn of(found: Vec<String>) -> Self {
        if found.is_empty() { Self::Held } else { Self::Broken(found) }
    }
}

/// Whether `error` may pass by itself: a conflict, or too few replicas for a while, as when nodes are killed under a
/// workload on purpose. Whoever asks tries again whatever it was doing, which must be fit for being done twice.
#[must_use]
pub fn passes(error: &client::Error) -> bool {
    use client::Error as E;
    let is_told_when = matches!(error.advice(), client::Advice::RetryAfter { .. });
    is_told_when || matches!(error, E::Conflict | E::TooOld | E::Unavailable { .. } | E::OutcomeUnknown { .. })
}

/// Runs `work` in a transaction, and again for a while when that fails in a way that may pass: for what is done once and
/// not measured. `work` must be fit for being done twice.
pub(crate) async fn persist<T, F, W>(client: &Client, work: W) -> Result<T, Error>
where
    W: Fn(Transaction) -> F,
    F: Future<Output = Result<T, client::Error>>,
{
    let begin = Instant::now();
    loop {
        match client.transact(&work).await {
            Ok(committed) => return Ok(committed.value),
            Err(error) if passes(&error) && begin.elapsed() < Duration::from_millis(PERSIST_MS_MAX) => {
                tokio::time::sleep(Duration::from_millis(PERSIST_PAUSE_MS)).await;
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Writes one key, in the same way.
pub(crate) async fn persist_put(client: &Client, key: Key, value: &Value) -> Result<(), Error> {
    let put = |txn: Transaction| {
        txn.put(key.clone(), value.clone());
        async { Ok(()) }
    };
    persist(client, put).await
}

/// Why a workload could not go on. A broken invariant is no error but a [`Verdict`].
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The client says so; ask it whether to retry.
    #[error(transparent)]
    Client(#[from] client::Error),
    /// The settings make no workload: change them.
    #[error("{0}")]
    Settings(String),
    /// What the store holds is not this workload's, or of another shape: load it anew.
    #[error("{0}; run with --load to make it anew")]
    NotLoaded(String),
    /// The store holds this workload's table, loaded with other settings.
    #[error("the table {table} was loaded with {loaded}, and this run asks for {asked}: say {loaded}, or --load to make it anew")]
    LoadedOtherwise {
        /// The table.
        table: &'static str,
        /// The options it was loaded with.
        loaded: String,
        /// Those that were asked for.
        asked: String,
    },
    /// The store holds this workload's tables, and a load over them would mix old with new.
    #[error("the tables of {table} were loaded with {loaded}: measure them with these options and without --load, or make a new cluster")]
    LoadedAlready {
        /// The table.
        table: &'static str,
        /// The options it was loaded with.
        loaded: String,
    },
    /// A load with other settings was cut short.
    #[error("a load of {table} with {begun} did not come to its end: load with these options, or make a new cluster")]
    LoadedInPart {
        /// The table.
        table: &'static str,
        /// The options it was begun with.
        begun: String,
    },
    /// A journal file cannot be written or read: free the disk or name another file.
    #[error("journal {path}: {source}")]
    Journal {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A journal file is not one.
    #[error("journal {path}, line {line}: {reason}")]
    JournalLine {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: u64,
        /// What is wrong with it.
        reason: String,
    },
}

impl Error {
    /// What to do about it.
    #[must_use]
    pub fn advice(&self) -> Advice {
        match self {
            Self::Client(error) => error.advice(),
            Self::Journal { source, .. } if source.kind() != ErrorKind::NotFound => Advice::GiveUp,
            _ => Advice::FixInput,
        }
    }
}
