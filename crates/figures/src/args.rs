//! The command line of `bezant-lab figures`.

use std::path::PathBuf;

use clap::Args;

use crate::plan::Effort;

/// The most runs of one point.
const RUNS_MAX: u64 = 100;
/// The longest that one run is measured: an hour.
const SECONDS_MAX: f64 = 3_600.0;

/// Measure the papers' figures on this machine, and draw them.
///
/// Each cluster is made for it in a temporary folder, by commands of this program, and is gone afterwards. What was measured
/// is kept as it comes: the same command again goes on where it was stopped.
///
/// Example: `bezant-lab figures --quick --only 5a,6b`
#[derive(Clone, Debug, Args)]
pub struct FiguresArgs {
    /// Which, by name or number, as in basil-5a, 7a,7b, cataphract or sentinel-5.2; all when not said
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    pub only: Vec<String>,
    /// Name the figures there are, and how long they take; do nothing
    #[arg(long)]
    pub list: bool,
    /// Small tables, short and few runs: an hour instead of six for all, for a first look
    #[arg(long)]
    pub quick: bool,
    /// How often each point is measured; by default 2 with --quick, else 3
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=RUNS_MAX))]
    pub runs: Option<u64>,
    /// How long each run is measured; by default 0.8 with --quick, else 3
    #[arg(long, value_name = "S", value_parser = seconds)]
    pub seconds: Option<f64>,
    /// How many keys a table has; by default 20,000 with --quick, else 1,000,000
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1_000..=100_000_000))]
    pub keys: Option<u64>,
    /// Where results and pictures go
    #[arg(long, value_name = "DIR", default_value = "./figures")]
    pub out: PathBuf,
    /// Where the page with all numbers goes; by default reproduction.md among the pictures
    #[arg(long, value_name = "FILE")]
    pub page: Option<PathBuf>,
    /// Measure nothing: draw and write what was measured before
    #[arg(long)]
    pub draw: bool,
    /// Forget what was measured before of these figures, and measure all of it
    #[arg(long, conflicts_with = "draw")]
    pub again: bool,
    /// Where the clusters live while they are measured: a disk like the one to be judged, with some 10 GB free without --quick; the
    /// system's temporary folder when not said
    #[arg(long, value_name = "DIR")]
    pub work: Option<PathBuf>,
    /// An installation of ZooKeeper, whose servers are measured beside ours in the figures sentinel-…; it needs `java`
    #[arg(long, value_name = "DIR", conflicts_with = "draw")]
    pub zookeeper: Option<PathBuf>,
}

impl FiguresArgs {
    pub(crate) fn effort(&self) -> Effort {
        let effort = if self.quick { Effort::QUICK } else { Effort::FULL };
        Effort {
            runs: self.runs.map_or(effort.runs, |runs| usize::try_from(runs).expect("clap bounds it")),
            seconds: self.seconds.unwrap_or(effort.seconds),
            keys: self.keys.unwrap_or(effort.keys),
            ..effort
        }
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    let wrong = || format!("seconds from 0.1 to {SECONDS_MAX} were expected");
    text.parse().ok().filter(|number| (0.1..=SECONDS_MAX).contains(number)).ok_or_else(wrong)
}
