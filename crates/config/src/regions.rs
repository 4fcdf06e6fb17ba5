//! A made-up map: who is where, and how far apart places are. For measuring and testing on one machine what a cluster
//! spread over the world would do; [`runtime::injected_latency`] keeps the distances.
//!
//! ```toml
//! regions = ["tokyo", "virginia"]
//! # Between processes, both ways together: a row for each region, up to itself.
//! round_trip_ms = [
//!     [0.25],
//!     [152.7, 0.25],
//! ]
//! jitter_ms = 1.0                    # each way takes up to so much longer; optional
//! replicas = ["tokyo", "virginia"]   # by index, the same in each shard, over and over
//! clients = "tokyo"
//! [placed]                           # exceptions, by name; optional
//! s1-r0 = "virginia"
//! c2 = "virginia"
//! ```

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use runtime::{Delay, Delays};
use serde::Deserialize;
use types::{ClientId, Party, ReplicaId};

use crate::file::{ConfigError, read_text, read_toml_text};
use crate::text::replica_from_name;

/// The most regions of one map.
const REGIONS_MAX: usize = 64;
/// The most one way, or jitter, may take: no two places are further apart.
const MS_MAX: f64 = 10_000.0;
/// The maps that come with the program, by name.
const BUILT_IN: [(&str, &str); 3] = [
    ("zone", include_str!("../regions/zone.toml")),
    ("region", include_str!("../regions/region.toml")),
    ("planet", include_str!("../regions/planet.toml")),
];

/// Who is where, and how far apart.
#[derive(Clone, Debug, PartialEq)]
pub struct Regions {
    name: String,
    text: String,
    regions: Vec<String>,
    /// From a row to a column, in microseconds.
    one_way_us: Vec<Vec<u64>>,
    jitter_us: u64,
    replicas: Vec<usize>,
    clients: usize,
    placed_replicas: BTreeMap<ReplicaId, usize>,
    placed_clients: BTreeMap<ClientId, usize>,
}

impl Regions {
    /// The map of that name, or else in that file.
    ///
    /// # Errors
    /// [`ConfigError`] when there is none, or its parts do not fit.
    pub fn load(name_or_file: &str) -> Result<Self, ConfigError> {
        match BUILT_IN.iter().find(|(name, _)| *name == name_or_file) {
            Some((name, text)) => Self::from_text(text, Path::new(name)),
            None => {
                let file = Path::new(name_or_file);
                let text = read_text(file).map_err(|error| {
                    let built_in: Vec<&str> = BUILT_IN.iter().map(|(name, _)| *name).collect();
                    ConfigError { help: format!("name a file of regions, or one of {}", built_in.join(", ")), ..error }
                })?;
                Self::from_text(&text, file)
            }
        }
    }

    /// The map that `bezant-lab up --regions` left for the cluster in `folder`, if it did.
    ///
    /// # Errors
    /// [`ConfigError`] when it cannot be read.
    pub fn of_cluster(folder: &Path) -> Result<Option<Self>, ConfigError> {
        let file = Self::file_of_cluster(folder);
        if file.exists() { Ok(Some(Self::from_text(&read_text(&file)?, &file)?)) } else { Ok(None) }
    }

    /// Where `bezant-lab up --regions` leaves the map, for the clients of the cluster in `folder`.
    #[must_use]
    pub fn file_of_cluster(folder: &Path) -> PathBuf {
        folder.join("run").join("regions.toml")
    }

    /// What it is called.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What a file holds that says the same.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Where `party` is.
    #[must_use]
    pub fn region_of(&self, party: Party) -> &str {
        &self.regions[self.place_of(party)]
    }

    /// How far everybody is from `party`, for its node.
    #[must_use]
    pub fn delays_from(&self, party: Party) -> Delays {
        let (map, from) = (self.clone(), self.place_of(party));
        Delays::new(move |to| Delay {
            least: Duration::from_micros(map.one_way_us[from][map.place_of(to)]),
            jitter: Duration::from_micros(map.jitter_us),
        })
    }

    fn place_of(&self, party: Party) -> usize {
        match party {
            Party::Replica(replica) => {
                let by_index = || self.replicas[usize::from(replica.index) % self.replicas.len()];
                self.placed_replicas.get(&replica).copied().unwrap_or_else(by_index)
            }
            Party::Client(client, _) => self.placed_clients.get(&client).copied().unwrap_or(self.clients),
        }
    }

    fn from_text(text: &str, file: &Path) -> Result<Self, ConfigError> {
        let toml: RegionsToml = read_toml_text(text, file)?;
        let refuse = |what: String| {
            let help = "mend the file; docs/running.md shows one".to_owned();
            ConfigError { what, file: file.to_path_buf(), line: None, help }
        };
        let named = toml.name.clone();
        let name = named.unwrap_or_else(|| file.file_stem().unwrap_or_default().to_string_lossy().into_owned());
        // A copy under another file's name keeps what it was called.
        let text = if toml.name.is_some() { text.to_owned() } else { format!("name = {}\n{text}", toml::Value::from(name.as_str())) };
        toml.check(name, text).map_err(refuse)
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RegionsToml {
    name: Option<String>,
    regions: Vec<String>,
    round_trip_ms: Option<Vec<Vec<f64>>>,
    one_way_ms: Option<Vec<Vec<f64>>>,
    #[serde(default)]
    jitter_ms: f64,
    replicas: Vec<String>,
    clients: String,
    #[serde(default)]
    placed: BTreeMap<String, String>,
}

impl RegionsToml {
    fn check(self, name: String, text: String) -> Result<Regions, String> {
        if self.regions.is_empty() || self.regions.len() > REGIONS_MAX {
            return Err(format!("there are from 1 to {REGIONS_MAX} regions, not {}", self.regions.len()));
        }
        if let Some((at, region)) = self.regions.iter().enumerate().find(|(at, region)| self.regions[..*at].contains(region)) {
            return Err(format!("region {at} is called {region:?}, as another before it"));
        }
        let place = |region: &String| {
            let at = self.regions.iter().position(|known| known == region);
            at.ok_or_else(|| format!("{region:?} is not among the regions {:?}", self.regions))
        };
        let replicas = self.replicas.iter().map(place).collect::<Result<Vec<_>, _>>()?;
        if replicas.is_empty() {
            return Err("no replica is placed: `replicas` is empty".to_owned());
        }
        let (mut placed_replicas, mut placed_clients) = (BTreeMap::new(), BTreeMap::new());
        for (who, region) in &self.placed {
            let client = who.strip_prefix('c').and_then(|number| number.parse().ok());
            match client {
                Some(client) => drop(placed_clients.insert(ClientId(client), place(region)?)),
                None => drop(placed_replicas.insert(replica_from_name(who)?, place(region)?)),
            }
        }
        let one_way_us = match (&self.round_trip_ms, &self.one_way_ms) {
            (Some(rows), None) => self.halves(rows)?,
            (None, Some(rows)) => self.square(rows)?,
            _ => return Err("distances are given as `round_trip_ms` or as `one_way_ms`, one of them".to_owned()),
        };
        let clients = place(&self.clients)?;
        let jitter_us = microseconds(self.jitter_ms)?;
        let regions = self.regions;
        Ok(Regions { name, text, regions, one_way_us, jitter_us, replicas, clients, placed_replicas, placed_clients })
    }

    /// A triangle of round trips, half of each either way.
    fn halves(&self, rows: &[Vec<f64>]) -> Result<Vec<Vec<u64>>, String> {
        let count = self.regions.len();
        if rows.len() != count || rows.iter().enumerate().any(|(at, row)| row.len() != at + 1) {
            return Err(format!("`round_trip_ms` has a row for each of the {count} regions: one number in the first, two in the second …"));
        }
        let at = |row: usize, column: usize| microseconds(rows[row.max(column)][row.min(column)] / 2.0);
        (0..count).map(|row| (0..count).map(|column| at(row, column)).collect()).collect()
    }

    fn square(&self, rows: &[Vec<f64>]) -> Result<Vec<Vec<u64>>, String> {
        let count = self.regions.len();
        if rows.len() != count || rows.iter().any(|row| row.len() != count) {
            return Err(format!("`one_way_ms` has {count} rows, from each region, of {count} numbers, to each"));
        }
        rows.iter().map(|row| row.iter().map(|number| microseconds(*number)).collect()).collect()
    }
}

fn microseconds(milliseconds: f64) -> Result<u64, String> {
    if (0.0..=MS_MAX).contains(&milliseconds) {
        // Within a hundred million: no fraction of a microsecond matters.
        Ok((milliseconds * 1e3).round() as u64)
    } else {
        Err(format!("a way takes from 0 to {MS_MAX} ms, not {milliseconds}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::{Session, ShardId};

    fn replica(shard: u16, index: u16) -> Party {
        Party::Replica(ReplicaId { shard: ShardId(shard), index })
    }

    fn client(number: u64) -> Party {
        Party::Client(ClientId(number), Session(1))
    }

    fn least_us(regions: &Regions, from: Party, to: Party) -> u128 {
        regions.delays_from(from).to(to).least.as_micros()
    }

    #[test]
    fn the_maps_that_come_along_are_maps() {
        for (name, _) in BUILT_IN {
            assert_eq!(Regions::load(name).expect("it is one of ours").name(), name);
        }
        let planet = Regions::load("planet").expect("it is one of ours");
        assert_eq!((planet.region_of(client(1)), planet.region_of(replica(3, 1))), ("ap-northeast-1", "us-east-1"));
        let (there, back) = (least_us(&planet, client(1), replica(0, 5)), least_us(&planet, replica(0, 5), client(1)));
        assert_eq!((there, back), (136_591, 136_591));
        // Thirteen replicas of a larger shard begin again with the first region.
        assert_eq!(planet.region_of(replica(0, 6)), "ap-northeast-1");
    }

    #[test]
    fn exceptions_and_ways_of_different_length_are_kept() {
        let text = "regions = ['a', 'b']\none_way_ms = [[0, 3], [5.5, 0]]\njitter_ms = 0.5\nreplicas = ['a']\nclients = 'a'\n\
                    [placed]\ns1-r0 = 'b'\nc2 = 'b'\n";
        let regions = Regions::from_text(text, Path::new("there/mine.toml")).expect("a map");
        assert_eq!(regions.name(), "mine");
        assert_eq!(Regions::from_text(regions.text(), Path::new("copied.toml")), Ok(regions.clone()));
        assert_eq!((least_us(&regions, client(1), replica(1, 0)), least_us(&regions, replica(1, 0), client(1))), (3_000, 5_500));
        assert_eq!(least_us(&regions, client(2), replica(1, 0)), 0);
        assert_eq!(regions.delays_from(client(2)).to(client(1)).jitter, Duration::from_micros(500));
    }

    #[test]
    fn what_does_not_fit_is_refused_in_words() {
        let refused = |text: &str| Regions::from_text(text, Path::new("a.toml")).expect_err("it does not fit").what;
        let tail = "replicas = ['a']\nclients = 'a'\n";
        assert!(refused(&format!("regions = []\n{tail}")).contains("from 1 to 64 regions"));
        assert!(refused(&format!("regions = ['a', 'a']\n{tail}")).contains("as another before it"));
        assert!(refused(&format!("regions = ['b']\n{tail}")).contains("not among the regions"));
        assert!(refused(&format!("regions = ['a']\n{tail}")).contains("one of them"));
        assert!(refused(&format!("regions = ['a', 'b']\nround_trip_ms = [[1, 2], [2, 1]]\n{tail}")).contains("a row for each"));
        assert!(refused(&format!("regions = ['a']\none_way_ms = [[1, 2]]\n{tail}")).contains("1 rows"));
        assert!(refused(&format!("regions = ['a']\none_way_ms = [[-1]]\n{tail}")).contains("from 0 to 10000 ms"));
        assert!(refused(&format!("regions = ['a']\none_way_ms = [[nan]]\n{tail}")).contains("from 0 to 10000 ms"));
        assert!(refused(&format!("regions = ['a']\none_way_ms = [[0]]\n{tail}[placed]\nnobody = 'a'\n")).contains("nobody"));
        assert!(refused("regions = ['a']\none_way_ms = [[0]]\nreplicas = []\nclients = 'a'\n").contains("`replicas` is empty"));
        let unknown = Regions::from_text(&format!("region = ['a']\n{tail}"), Path::new("a.toml")).expect_err("no such key");
        assert_eq!((unknown.what.as_str(), unknown.line), ("unknown key `region`", Some(1)));
        assert!(Regions::load("nowhere").expect_err("no such file").help.contains("zone, region, planet"));
    }
}
