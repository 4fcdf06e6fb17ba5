//! Quotas: how much a subtree may hold, and how much it holds.
//!
//! As in ZooKeeper, a client creates two nodes for the quota of `/a/b`: `/zookeeper/quota/a/b/zookeeper_limits` with the limits, and
//! `zookeeper_stats` beside it, whose data the service keeps up to date with every change in the subtree, without a new version. Soft limits
//! are for clients to compare; hard ones are kept where the server is told to (`enforceQuota`).

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::limits::QUOTA_RECORD_BYTES_MAX;
use crate::path::{QUOTA, ROOT, upwards};

const LIMITS: &str = "/zookeeper_limits";
const STATS: &str = "/zookeeper_stats";
const COUNT: &str = "count";
const COUNT_HARD: &str = "countHardLimit";
const BYTES: &str = "bytes";
const BYTES_HARD: &str = "byteHardLimit";
/// No limit, or nothing counted.
const NONE: i64 = -1;

/// Nodes, and bytes of their data; or how many more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) count: i64,
    pub(crate) bytes: i64,
}

impl Usage {
    /// What one node more with these data uses.
    pub(crate) fn of(data: Option<&[u8]>) -> Self {
        Self { count: 1, bytes: length(data) }
    }

    /// What it uses more that other data are in place of some.
    pub(crate) fn of_change(before: Option<&[u8]>, after: Option<&[u8]>) -> Self {
        Self { count: 0, bytes: length(after) - length(before) }
    }

    pub(crate) fn plus(self, other: Self) -> Self {
        Self { count: self.count + other.count, bytes: self.bytes + other.bytes }
    }

    pub(crate) fn minus(self, other: Self) -> Self {
        Self { count: self.count - other.count, bytes: self.bytes - other.bytes }
    }
}

fn length(data: Option<&[u8]>) -> i64 {
    data.map_or(0, |data| i64::try_from(data.len()).unwrap_or(i64::MAX))
}

/// The path that a node of limits limits; the root's is empty.
pub(crate) fn limited_by(path: &str) -> Option<&str> {
    path.strip_prefix(QUOTA)?.strip_suffix(LIMITS)
}

/// The path whose usage a node of statistics says; the root's is empty.
pub(crate) fn counted_by(path: &str) -> Option<&str> {
    path.strip_prefix(QUOTA)?.strip_suffix(STATS)
}

pub(crate) fn limits_path(limited: &str) -> String {
    format!("{QUOTA}{limited}{LIMITS}")
}

pub(crate) fn stats_path(limited: &str) -> String {
    format!("{QUOTA}{limited}{STATS}")
}

/// The paths whose quota a node at `path` would count for, the nearest first. The root has none.
pub(crate) fn candidates(path: &str) -> impl Iterator<Item = &str> {
    upwards(path).filter(|above| *above != ROOT)
}

/// What a node of limits or statistics holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Record(BTreeMap<String, i64>);

impl Record {
    /// Reads a record. What makes no sense counts as not there.
    pub(crate) fn read(data: Option<&[u8]>) -> Self {
        let bytes = data.unwrap_or_default();
        let text = if bytes.len() > QUOTA_RECORD_BYTES_MAX { "" } else { std::str::from_utf8(bytes).unwrap_or_default() };
        let field = |pair: &str| {
            let mut parts = pair.split('=');
            let name = parts.next().filter(|name| !name.is_empty())?;
            Some((name.to_owned(), parts.next().and_then(|value| value.parse().ok()).unwrap_or(NONE)))
        };
        Self(text.split([',', ';']).filter_map(field).collect())
    }

    fn get(&self, name: &str) -> i64 {
        self.0.get(name).copied().unwrap_or(NONE)
    }

    /// A record of statistics.
    pub(crate) fn of(usage: Usage) -> Self {
        Self(BTreeMap::from([(COUNT.to_owned(), usage.count), (BYTES.to_owned(), usage.bytes)]))
    }

    /// The same record when so much more is used.
    pub(crate) fn plus(mut self, more: Usage) -> Self {
        for (name, more) in [(COUNT, more.count), (BYTES, more.bytes)] {
            let now = self.get(name).saturating_add(more);
            self.0.insert(name.to_owned(), now);
        }
        self
    }

    /// The data of a node. What ZooKeeper before 3.7 did not know stands behind a second sign of equality, where it does not look.
    pub(crate) fn write(&self) -> Bytes {
        let mut text = format!("{COUNT}={},{BYTES}={}", self.get(COUNT), self.get(BYTES));
        let others = self.0.iter().filter(|(name, _)| ![COUNT, BYTES].contains(&name.as_str()));
        let others: Vec<String> = others.map(|(name, value)| format!(";{name}={value}")).collect();
        if !others.is_empty() {
            text = text + "=" + &others.concat();
        }
        text.into()
    }

    /// Whether these limits forbid that so much `more` is used, when `stats` says what is used now.
    pub(crate) fn forbids(&self, stats: &Self, more: Usage) -> bool {
        let over =
            |hard: &str, name: &str, more: i64| more != 0 && self.get(hard) > NONE && stats.get(name).saturating_add(more) > self.get(hard);
        over(COUNT_HARD, COUNT, more.count) || over(BYTES_HARD, BYTES, more.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &'static str) -> Record {
        Record::read(Some(text.as_bytes()))
    }

    #[test]
    fn a_record_is_written_as_zookeeper_writes_it() {
        assert_eq!(Record::of(Usage { count: 3, bytes: 10 }).write(), "count=3,bytes=10");
        let hard = read("count=5,bytes=-1=;byteHardLimit=7;countHardLimit=9");
        assert_eq!(hard.write(), "count=5,bytes=-1=;byteHardLimit=7;countHardLimit=9");
        assert_eq!(read("countHardLimit=2").write(), "count=-1,bytes=-1=;countHardLimit=2");
        assert_eq!(read("count=1,bytes=4").plus(Usage { count: -1, bytes: 2 }).write(), "count=0,bytes=6");
        for nonsense in ["", ",;,", "=", "=1", "count", "count=", "count=x"] {
            assert_eq!(read(nonsense).write(), "count=-1,bytes=-1", "{nonsense:?}");
        }
        assert_eq!(Record::read(Some(&[b'1'; 5_000])), Record::default());
    }

    #[test]
    fn only_hard_limits_forbid_and_only_what_grows_in_them() {
        let stats = read("count=3,bytes=10");
        let (node, data) = (Usage { count: 1, bytes: 5 }, Usage { count: 0, bytes: 5 });
        assert!(!read("count=1,bytes=1").forbids(&stats, node));
        assert!(read("countHardLimit=3").forbids(&stats, node) && !read("countHardLimit=3").forbids(&stats, data));
        assert!(!read("countHardLimit=4").forbids(&stats, node));
        assert!(read("byteHardLimit=14").forbids(&stats, data) && !read("byteHardLimit=15").forbids(&stats, data));
    }

    #[test]
    fn the_nodes_of_a_quota_are_known_by_their_paths() {
        assert_eq!(limited_by("/zookeeper/quota/a/b/zookeeper_limits"), Some("/a/b"));
        assert_eq!(counted_by(&stats_path("/a")), Some("/a"));
        assert_eq!((limited_by("/zookeeper/quota/zookeeper_limits"), limited_by("/a/zookeeper_limits")), (Some(""), None));
        assert_eq!(candidates("/a/b").collect::<Vec<_>>(), ["/a/b", "/a"]);
    }
}
