//! Clients that cheat beside honest ones (Basil §6.4): which part of the loop clients does, how, and what came of it.
//!
//! The cheats are real clients of the cluster, with a connection and, where the cluster has a second client, a key of
//! their own. They ask for the same transactions as the honest loop clients, and leave some of them unfinished, or worse. The
//! run's report is then about the honest loop clients alone, with this part beside it.
//!
//! A transaction is *faulty* when a cheat means to cheat with it. As in the paper, faulty transactions that abort are not
//! tried again, and their share is of all transactions processed, attempts of honest ones included.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bezant_client::cheating::{self, Cheating, ClientStrategy, MisbehaviorCounts};
use clap::{Args, ValueEnum};
use client::Client;
use config::Config;
use serde::Serialize;
use tokio::task::JoinSet;

use crate::BenchError;

/// The largest part of the clients that may cheat.
const PART_MAX: f64 = 0.9;
/// How long the replicas may take, after the last transaction, until nothing is undecided any more.
const SETTLE_MS_MAX: u64 = 20_000;
/// How often they are asked.
const SETTLE_LOOK_MS: u64 = 100;
/// The rule that replicas must break for a client to equivocate whenever it likes.
const GULLIBLE: &str = "DecisionUnjustified";

/// How a client cheats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum StrategyArg {
    /// Ask for votes and leave
    StallEarly,
    /// Decide, and tell no replica
    StallLate,
    /// Log both ends where the votes happen to justify both, and leave
    EquivReal,
    /// Log both ends whatever the votes are, and leave; only replicas that are built wrong on purpose let it
    EquivForced,
    /// See to it that the votes justify both ends, log both, and leave
    EquivSplit,
}

impl From<StrategyArg> for ClientStrategy {
    fn from(strategy: StrategyArg) -> Self {
        match strategy {
            StrategyArg::StallEarly => Self::StallEarly,
            StrategyArg::StallLate => Self::StallLate,
            StrategyArg::EquivReal => Self::EquivocateReal,
            StrategyArg::EquivForced => Self::EquivocateForced,
            StrategyArg::EquivSplit => Self::EquivocateSplit,
        }
    }
}

/// Whether some of the clients cheat.
#[derive(Args, Clone, Debug, PartialEq)]
#[command(next_help_heading = "Clients that cheat, to try what they cost the others")]
pub struct CheatArgs {
    /// Which part of the clients cheats; all that is reported is then about the others. They use the cluster's second client
    /// (`bezant init --clients 2`), if it has one
    #[arg(long, value_name = "PART", default_value_t = 0.0, value_parser = part_that_cheats)]
    pub byzantine_clients: f64,
    /// How they cheat
    #[arg(long, value_enum)]
    pub strategy: Option<StrategyArg>,
    /// With which part of their transactions they do
    #[arg(long, value_name = "PART", default_value_t = 1.0, value_parser = part)]
    pub faulty_share: f64,
    /// Begin the next transaction as soon as one is left. Otherwise they begin as many as honest clients do, who wait for the end
    /// of each: what is measured is then what their leaving costs, and not that they are more
    #[arg(long)]
    pub hurry: bool,
}

impl CheatArgs {
    /// How many of so many loop clients cheat, and how; nothing when nobody was asked to.
    ///
    /// # Errors
    /// [`BenchError::Settings`] when it is not said how, or nobody would be left.
    pub(crate) fn plan(&self, loop_clients: u32) -> Result<Option<Plan>, BenchError> {
        let Some(strategy) = self.strategy else {
            return if self.byzantine_clients > 0.0 {
                Err(BenchError::Settings("say how they are to cheat: --strategy stall-early, stall-late, equiv-real, …".to_owned()))
            } else {
                Ok(None)
            };
        };
        let wanted = (f64::from(loop_clients) * self.byzantine_clients).round() as u32;
        let cheats = if self.byzantine_clients > 0.0 { wanted.max(1) } else { 0 };
        if cheats >= loop_clients {
            return Err(BenchError::Settings(format!("{cheats} of {loop_clients} clients would cheat, and nobody be left to measure")));
        }
        Ok(Some(Plan {
            strategy: strategy.into(),
            cheats,
            honest: loop_clients - cheats,
            faulty_share: self.faulty_share,
            hurry: self.hurry,
        }))
    }
}

fn part(text: &str) -> Result<f64, String> {
    text.parse().ok().filter(|part| (0.0..=1.0).contains(part)).ok_or_else(|| "a part from 0 to 1 was expected".to_owned())
}

fn part_that_cheats(text: &str) -> Result<f64, String> {
    part(text).ok().filter(|part| *part <= PART_MAX).ok_or_else(|| format!("a part from 0 to {PART_MAX} was expected"))
}

/// Who cheats, and how.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Plan {
    strategy: ClientStrategy,
    cheats: u32,
    honest: u32,
    faulty_share: f64,
    hurry: bool,
}

impl Plan {
    /// Connects the cheats: as the cluster's second client if it has one, so that they share no limit with the honest ones.
    ///
    /// # Errors
    /// When the second client's folder is damaged, or the cluster does not answer.
    pub async fn connect(&self, cluster_dir: &Path, honest: &Config, seed: u64) -> Result<Arc<Client>, BenchError> {
        if self.strategy == ClientStrategy::EquivocateForced && self.cheats > 0 && !all_break(honest, GULLIBLE).await {
            return Err(BenchError::Settings(format!(
                "equiv-forced needs replicas that log a decision whatever the votes are, and these do not: \
                 start the cluster by `bezant-lab up` with BEZANT_MUTANT={GULLIBLE}, for this experiment only"
            )));
        }
        let cheating = Cheating { strategy: self.strategy, share: self.faulty_share, seed };
        if let Some(refusal) = cheating.refusal(honest) {
            return Err(BenchError::Settings(refusal.to_owned()));
        }
        let second = cluster_dir.join("client-2");
        let mut config = if second.join("client.toml").exists() { bezant_client::load(&second)? } else { honest.clone() };
        // Faulty transactions are not tried again.
        config.timeouts.retry_ms = 0;
        Ok(Arc::new(cheating::connect(config, cheating).await?))
    }

    /// How many loop clients do not cheat.
    pub fn honest(&self) -> u32 {
        self.honest
    }

    /// Whether cheats begin the next transaction as soon as they have left one.
    pub fn hurries(&self) -> bool {
        self.hurry
    }

    /// What everybody has done by now.
    pub async fn mark(&self, config: &Config, honest: &[Arc<Client>], cheat: &Client) -> Mark {
        Mark::take(config, honest, cheat).await
    }

    /// Waits until nothing is undecided any more, and says what came of it between two marks.
    pub async fn report(&self, config: &Config, before: &Mark, after: &Mark, committed_per_second: f64, attempted: u64) -> ByzantineReport {
        let settled = settle(config).await;
        ByzantineReport::new(self, before, after, settled, committed_per_second, attempted)
    }
}

/// What everybody has done up to one moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Mark {
    deeds: MisbehaviorCounts,
    honest: HonestCounts,
    replicas: Option<ReplicaMark>,
}

/// What the honest clients' sessions have counted.
#[derive(Clone, Copy, Debug, Default)]
struct HonestCounts {
    recovered: u64,
    finished_for_others: u64,
    read_escalations: u64,
    retries: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct ReplicaMark {
    finished: u64,
    elected: u64,
    undecided: u64,
}

impl Mark {
    async fn take(config: &Config, honest: &[Arc<Client>], cheat: &Client) -> Self {
        let mut sum = HonestCounts::default();
        for statistics in honest.iter().map(|client| client.statistics()) {
            sum.recovered += statistics.get("recovered");
            // As one engine and the other call it.
            sum.finished_for_others += statistics.get("finished_for_others") + statistics.get("finished");
            sum.read_escalations += statistics.get("read_escalations");
            sum.retries += statistics.get("retries");
        }
        Self { deeds: cheating::deeds(cheat), honest: sum, replicas: replicas(config).await }
    }
}

/// What every replica says of itself; `None` when one does not answer.
async fn statuses(config: &Config) -> Option<Vec<serde_json::Value>> {
    let mut asked = JoinSet::new();
    for endpoint in config.topology.endpoints.values().cloned() {
        asked.spawn(async move { monitoring::http_client::get(&endpoint.http, "/status").await });
    }
    asked.join_all().await.into_iter().map(|answer| serde_json::from_str(&answer.ok()?).ok()).collect()
}

/// Whether every replica breaks `rule` on purpose.
async fn all_break(config: &Config, rule: &str) -> bool {
    statuses(config).await.is_some_and(|all| all.iter().all(|status| status["broken_rule"] == rule))
}

/// How many transactions all replicas set out to finish and were elected for, and how many they hold undecided.
async fn replicas(config: &Config) -> Option<ReplicaMark> {
    let mut sum = ReplicaMark::default();
    for status in statuses(config).await? {
        let count = |name: &str| status["transactions"][name].as_u64();
        sum.finished += count("finished_for_others").or_else(|| count("finished"))?;
        // Not every engine elects leaders for single transactions.
        sum.elected += count("elected").unwrap_or(0);
        sum.undecided += count("undecided")?;
    }
    Some(sum)
}

/// Waits until no replica holds anything undecided, and says how long that took, in seconds. `None` when it took too long
/// or nobody says.
async fn settle(config: &Config) -> Option<f64> {
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_millis(SETTLE_MS_MAX) {
        if replicas(config).await?.undecided == 0 {
            return Some(begin.elapsed().as_secs_f64());
        }
        tokio::time::sleep(Duration::from_millis(SETTLE_LOOK_MS)).await;
    }
    None
}

/// What came of it.
#[derive(Clone, Debug, Serialize)]
pub struct ByzantineReport {
    /// How they cheated.
    pub strategy: &'static str,
    /// How many loop clients did.
    pub clients: u32,
    /// How many did not: all other numbers of the run are theirs.
    pub honest_clients: u32,
    /// Commits a second of each honest loop client: the y axis of the paper's figure 7.
    pub committed_per_second_per_honest_client: f64,
    /// Transactions that cheats meant to cheat with, in the window.
    pub faulty: u64,
    /// The same as a part of all transactions processed, attempts included.
    pub faulty_fraction: f64,
    /// Of the faulty: left with votes asked for.
    pub left_prepared: u64,
    /// Left decided, and no replica told.
    pub left_decided: u64,
    /// Left with both ends logged.
    pub equivocated: u64,
    /// Ended as by an honest client, because the votes did not allow otherwise.
    pub spared: u64,
    /// Transactions of others that the honest clients set out to finish.
    pub finished_by_clients: u64,
    /// Of those and of the honest clients' own: how many somebody else had ended first.
    pub recovered: u64,
    /// Reads of honest clients that had to ask more replicas than usual.
    pub read_escalations: u64,
    /// Requests that honest clients sent again.
    pub retries: u64,
    /// Transactions for which a replica was elected to reconcile what others had logged; none when a replica did not answer.
    pub elections: Option<u64>,
    /// Transactions that replicas set out to finish by themselves, each replica counted; none when one did not answer.
    pub finished_by_replicas: Option<u64>,
    /// How long after the run's end nothing was undecided any more at any replica; none when something still was.
    pub settled_seconds: Option<f64>,
}

impl ByzantineReport {
    /// What `plan` came to between two marks, in which the honest loop clients committed and attempted so much.
    pub(crate) fn new(
        plan: &Plan,
        before: &Mark,
        after: &Mark,
        settled_seconds: Option<f64>,
        committed_per_second: f64,
        attempted: u64,
    ) -> Self {
        let (old, new) = (&before.deeds, &after.deeds);
        let faulty = new.faulty() - old.faulty();
        let processed = attempted + new.honest - old.honest + faulty;
        let round = |number: f64| (number * 10_000.0).round() / 10_000.0;
        let replicas = before.replicas.zip(after.replicas);
        Self {
            strategy: plan.strategy.name(),
            clients: plan.cheats,
            honest_clients: plan.honest,
            committed_per_second_per_honest_client: round(committed_per_second / f64::from(plan.honest)),
            faulty,
            faulty_fraction: if processed == 0 { 0.0 } else { round(faulty as f64 / processed as f64) },
            left_prepared: new.stalled - old.stalled,
            left_decided: new.hidden_commits + new.hidden_aborts - old.hidden_commits - old.hidden_aborts,
            equivocated: new.equivocated - old.equivocated,
            spared: new.spared - old.spared,
            finished_by_clients: after.honest.finished_for_others - before.honest.finished_for_others,
            recovered: after.honest.recovered - before.honest.recovered,
            read_escalations: after.honest.read_escalations - before.honest.read_escalations,
            retries: after.honest.retries - before.honest.retries,
            finished_by_replicas: replicas.map(|(before, after)| after.finished.saturating_sub(before.finished)),
            elections: replicas.map(|(before, after)| after.elected.saturating_sub(before.elected)),
            settled_seconds: settled_seconds.map(|seconds| (seconds * 1_000.0).round() / 1_000.0),
        }
    }

    /// For people.
    pub(crate) fn rows(&self) -> Vec<(&'static str, String)> {
        let known = |count: Option<u64>| count.map_or("unknown".to_owned(), |count| count.to_string());
        vec![
            ("cheats", format!("{} of {} clients, {}", self.clients, self.clients + self.honest_clients, self.strategy)),
            ("an honest client", format!("{:.2} a second", self.committed_per_second_per_honest_client)),
            ("faulty", format!("{} transactions, {:.1} % of all processed", self.faulty, self.faulty_fraction * 100.0)),
            (
                "of these",
                format!(
                    "{} left prepared, {} left decided, {} equivocated, {} spared",
                    self.left_prepared, self.left_decided, self.equivocated, self.spared
                ),
            ),
            (
                "finished",
                format!(
                    "{} by honest clients, {} by replicas (each counted), {} elections",
                    self.finished_by_clients,
                    known(self.finished_by_replicas),
                    known(self.elections)
                ),
            ),
            (
                "beside that",
                format!(
                    "{} found ended by others, {} reads asked more replicas, {} requests sent again",
                    self.recovered, self.read_escalations, self.retries
                ),
            ),
            (
                "settled",
                self.settled_seconds.map_or("NOT: something was still undecided".to_owned(), |seconds| format!("after {seconds:.1} s")),
            ),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        cheats: CheatArgs,
    }

    fn plan(line: &str, loop_clients: u32) -> Result<Option<Plan>, BenchError> {
        let words = std::iter::once("bench").chain(line.split_whitespace());
        Program::try_parse_from(words).expect("arguments").cheats.plan(loop_clients)
    }

    #[test]
    fn a_part_of_the_loop_clients_cheats_and_some_are_left() {
        assert_eq!(plan("", 32).expect("nobody cheats"), None);
        let of = |line: &str, loop_clients| plan(line, loop_clients).expect("a plan").map(|plan| (plan.cheats, plan.honest));
        assert_eq!(of("--byzantine-clients 0.3 --strategy stall-early", 32), Some((10, 22)));
        assert_eq!(of("--byzantine-clients 0.01 --strategy stall-late", 4), Some((1, 3)), "at least one, if any");
        assert_eq!(of("--strategy stall-late", 4), Some((0, 4)), "what the others are compared with");
        assert!(plan("--byzantine-clients 0.3", 32).is_err(), "how?");
        assert!(plan("--byzantine-clients 0.9 --strategy stall-late", 1).is_err(), "nobody is left");
        for line in ["--byzantine-clients 1", "--byzantine-clients -1", "--faulty-share 1.1", "--strategy sulk"] {
            assert!(Program::try_parse_from(["bench"].into_iter().chain(line.split(' '))).is_err(), "{line}");
        }
    }

    #[test]
    fn what_happened_before_the_window_does_not_count() {
        let plan = Plan { strategy: ClientStrategy::EquivocateReal, cheats: 3, honest: 7, faulty_share: 0.5, hurry: false };
        let mark = |times: u64| Mark {
            deeds: MisbehaviorCounts { honest: 4 * times, equivocated: times, spared: 3 * times, ..MisbehaviorCounts::default() },
            honest: HonestCounts { finished_for_others: 2 * times, recovered: times, ..HonestCounts::default() },
            replicas: Some(ReplicaMark { finished: 6 * times, elected: times, undecided: 9 }),
        };
        let report = ByzantineReport::new(&plan, &mark(10), &mark(20), Some(1.2345), 70.0, 920);
        assert_eq!((report.faulty, report.equivocated, report.spared), (40, 10, 30));
        assert_eq!(report.faulty_fraction, 0.04, "of 920 attempts, 40 honest and 40 faulty ones of the cheats");
        assert_eq!(report.committed_per_second_per_honest_client, 10.0);
        assert_eq!((report.finished_by_clients, report.recovered), (20, 10));
        assert_eq!((report.finished_by_replicas, report.elections, report.settled_seconds), (Some(60), Some(10), Some(1.235)));
    }
}
