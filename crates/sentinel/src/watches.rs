//! Which connection watches what. It is no part of the replicated state: a client that comes back brings its watches again.
//!
//! There are two tables, one for data (and existence) and one for children. A one-shot watch is gone when it fires, the others stay;
//! recursive ones are in the table of data alone, and hear of no changes of sets of children.

use std::collections::{BTreeMap, BTreeSet};

use jute::{EventKind, WatchKind, WatchMode};

use crate::ConnectionId;
use crate::limits::{WATCH_BYTES, WATCHED_BYTES_MAX, WATCHED_BYTES_OF_ALL_MAX, WATCHES_MAX};
use crate::path::upwards;

/// How a connection watches a path: any of these at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Modes {
    one_shot: bool,
    persistent: bool,
    recursive: bool,
}

impl Modes {
    fn any(self) -> bool {
        self.one_shot || self.persistent || self.recursive
    }

    fn take(flag: &mut bool) -> bool {
        std::mem::take(flag)
    }
}

/// The paths that a connection watches.
#[derive(Debug, Default)]
struct Watched {
    paths: BTreeSet<String>,
    bytes: usize,
}

/// Watches of one kind.
#[derive(Debug, Default)]
struct Table {
    paths: BTreeMap<String, BTreeMap<ConnectionId, Modes>>,
    connections: BTreeMap<ConnectionId, Watched>,
    /// How many bytes the paths of all connections take.
    bytes: usize,
    /// How many watches are recursive: without any, only the path itself is looked up.
    recursive: usize,
}

impl Table {
    fn add(&mut self, connection: ConnectionId, path: &str, change: impl FnOnce(&mut Modes)) {
        let modes = self.paths.entry(path.to_owned()).or_default().entry(connection).or_default();
        let before = modes.recursive;
        change(modes);
        self.recursive += usize::from(modes.recursive && !before);
        let watched = self.connections.entry(connection).or_default();
        if watched.paths.insert(path.to_owned()) {
            watched.bytes += path.len();
            self.bytes += path.len() + WATCH_BYTES;
        }
    }

    /// Changes the modes of a watch, and removes it when none is left; false when there is no such watch.
    fn change(&mut self, connection: ConnectionId, path: &str, change: impl FnOnce(&mut Modes) -> bool) -> bool {
        let Some(watchers) = self.paths.get_mut(path) else { return false };
        let Some(modes) = watchers.get_mut(&connection) else { return false };
        let before = modes.recursive;
        let changed = change(modes);
        self.recursive -= usize::from(before && !modes.recursive);
        if !modes.any() {
            watchers.remove(&connection);
            if watchers.is_empty() {
                self.paths.remove(path);
            }
            if let Some(watched) = self.connections.get_mut(&connection)
                && watched.paths.remove(path)
            {
                watched.bytes -= path.len();
                self.bytes -= path.len() + WATCH_BYTES;
            }
        }
        changed
    }

    /// Who watches for an event at `path`. One-shot watches of the path are gone then.
    fn fire(&mut self, path: &str) -> BTreeSet<ConnectionId> {
        let mut watchers = BTreeSet::new();
        let depth = if self.recursive == 0 { 1 } else { usize::MAX };
        for above in upwards(path).skip(1).take(depth - 1) {
            let here = self.paths.get(above).into_iter().flatten();
            watchers.extend(here.filter(|(_, modes)| modes.recursive).map(|(connection, _)| *connection));
        }
        let here: Vec<ConnectionId> = self.paths.get(path).into_iter().flatten().map(|(connection, _)| *connection).collect();
        for connection in here {
            self.change(connection, path, |modes| Modes::take(&mut modes.one_shot));
            watchers.insert(connection);
        }
        watchers
    }

    fn modes(&self, connection: ConnectionId, path: &str) -> Modes {
        self.paths.get(path).and_then(|watchers| watchers.get(&connection)).copied().unwrap_or_default()
    }

    /// Gives how many watches there were.
    fn forget(&mut self, connection: ConnectionId) -> usize {
        let paths = self.connections.remove(&connection).unwrap_or_default().paths;
        let count = paths.len();
        for path in paths {
            self.bytes -= path.len() + WATCH_BYTES;
            self.change(connection, &path, |modes| {
                *modes = Modes::default();
                true
            });
        }
        count
    }

    /// How many paths the connection watches, and how many bytes they have.
    fn size(&self, connection: ConnectionId) -> (usize, usize) {
        self.connections.get(&connection).map_or((0, 0), |watched| (watched.paths.len(), watched.bytes))
    }
}

/// All watches.
#[derive(Debug)]
pub(crate) struct Watches {
    data: Table,
    children: Table,
    /// How many bytes all watched paths may take.
    bytes_max: usize,
}

impl Default for Watches {
    fn default() -> Self {
        Self { data: Table::default(), children: Table::default(), bytes_max: WATCHED_BYTES_OF_ALL_MAX }
    }
}

/// The connection watches as much as it may, or all of them do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooMany;

impl Watches {
    /// Watches the data of `path`, or for a node there, once.
    pub(crate) fn watch_data(&mut self, connection: ConnectionId, path: &str) -> Result<(), TooMany> {
        self.has_room(connection)?;
        self.data.add(connection, path, |modes| modes.one_shot = true);
        Ok(())
    }

    /// Watches the children of `path` once.
    pub(crate) fn watch_children(&mut self, connection: ConnectionId, path: &str) -> Result<(), TooMany> {
        self.has_room(connection)?;
        self.children.add(connection, path, |modes| modes.one_shot = true);
        Ok(())
    }

    /// Watches `path` until that is taken back.
    pub(crate) fn watch_on(&mut self, connection: ConnectionId, path: &str, mode: WatchMode) -> Result<(), TooMany> {
        self.has_room(connection)?;
        match mode {
            WatchMode::Persistent => {
                self.data.add(connection, path, |modes| modes.persistent = true);
                self.children.add(connection, path, |modes| modes.persistent = true);
            }
            WatchMode::PersistentRecursive => self.data.add(connection, path, |modes| modes.recursive = true),
        }
        Ok(())
    }

    fn has_room(&self, connection: ConnectionId) -> Result<(), TooMany> {
        let (data, children) = (self.data.size(connection), self.children.size(connection));
        let has_room_here = data.0 + children.0 < WATCHES_MAX && data.1 + children.1 < WATCHED_BYTES_MAX;
        let has_room = has_room_here && self.data.bytes + self.children.bytes < self.bytes_max;
        if has_room { Ok(()) } else { Err(TooMany) }
    }

    /// Who is to be told of an event, in the order of connections.
    pub(crate) fn fire(&mut self, kind: EventKind, path: &str) -> BTreeSet<ConnectionId> {
        match kind {
            EventKind::Created | EventKind::DataChanged => self.data.fire(path),
            EventKind::ChildrenChanged => self.children.fire(path),
            EventKind::Deleted => {
                let mut watchers = self.data.fire(path);
                watchers.append(&mut self.children.fire(path));
                watchers
            }
        }
    }

    /// Whether the connection watches `path` so.
    pub(crate) fn has(&self, connection: ConnectionId, path: &str, kind: WatchKind) -> bool {
        let (data, children) = (self.data.modes(connection, path), self.children.modes(connection, path));
        match kind {
            WatchKind::Children => children.one_shot,
            WatchKind::Data => data.one_shot,
            WatchKind::Any => data.any() || children.any(),
            WatchKind::Persistent => data.persistent,
            WatchKind::PersistentRecursive => data.recursive,
        }
    }

    /// Takes watches back; false when there was none.
    pub(crate) fn remove(&mut self, connection: ConnectionId, path: &str, kind: WatchKind) -> bool {
        let all = |modes: &mut Modes| {
            *modes = Modes::default();
            true
        };
        match kind {
            WatchKind::Children => self.children.change(connection, path, |modes| Modes::take(&mut modes.one_shot)),
            WatchKind::Data => self.data.change(connection, path, |modes| Modes::take(&mut modes.one_shot)),
            WatchKind::Any => self.data.change(connection, path, all) | self.children.change(connection, path, all),
            WatchKind::Persistent => {
                let take = |modes: &mut Modes| Modes::take(&mut modes.persistent);
                self.data.change(connection, path, take) | self.children.change(connection, path, take)
            }
            WatchKind::PersistentRecursive => self.data.change(connection, path, |modes| Modes::take(&mut modes.recursive)),
        }
    }

    /// The connection is no more. Gives how many watches it had.
    pub(crate) fn forget(&mut self, connection: ConnectionId) -> usize {
        self.data.forget(connection) + self.children.forget(connection)
    }

    /// The paths that each connection watches.
    pub(crate) fn by_connection(&self) -> impl Iterator<Item = (ConnectionId, BTreeSet<&str>)> {
        let mut by_connection: BTreeMap<ConnectionId, BTreeSet<&str>> = BTreeMap::new();
        for (connection, watched) in [&self.data, &self.children].into_iter().flat_map(|table| &table.connections) {
            by_connection.entry(*connection).or_default().extend(watched.paths.iter().map(String::as_str));
        }
        by_connection.into_iter().filter(|(_, paths)| !paths.is_empty())
    }

    /// The connections that watch each path.
    pub(crate) fn by_path(&self) -> BTreeMap<&str, BTreeSet<ConnectionId>> {
        let mut by_path: BTreeMap<&str, BTreeSet<ConnectionId>> = BTreeMap::new();
        for (path, watchers) in [&self.data, &self.children].into_iter().flat_map(|table| &table.paths) {
            by_path.entry(path).or_default().extend(watchers.keys());
        }
        by_path
    }

    /// How many connections watch, how many paths, and how many watches there are.
    pub(crate) fn counts(&self) -> (usize, usize, usize) {
        let tables = [&self.data, &self.children];
        let watching = tables.iter().flat_map(|table| &table.connections).filter(|(_, watched)| !watched.paths.is_empty());
        let connections: BTreeSet<ConnectionId> = watching.map(|(connection, _)| *connection).collect();
        let paths: BTreeSet<&String> = tables.iter().flat_map(|table| table.paths.keys()).collect();
        let watches = tables.iter().flat_map(|table| table.connections.values()).map(|watched| watched.paths.len()).sum();
        (connections.len(), paths.len(), watches)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANN: ConnectionId = ConnectionId(1);
    const BOB: ConnectionId = ConnectionId(2);

    #[test]
    fn a_one_shot_watch_fires_once_and_a_lasting_one_until_it_is_removed() {
        let mut watches = Watches::default();
        watches.watch_data(ANN, "/a").expect("there is room");
        watches.watch_on(BOB, "/a", WatchMode::Persistent).expect("there is room");
        assert_eq!(watches.fire(EventKind::DataChanged, "/a"), BTreeSet::from([ANN, BOB]));
        assert_eq!(watches.fire(EventKind::DataChanged, "/a"), BTreeSet::from([BOB]));
        assert_eq!(watches.fire(EventKind::ChildrenChanged, "/a"), BTreeSet::from([BOB]));
        assert!(watches.has(BOB, "/a", WatchKind::Persistent) && !watches.has(BOB, "/a", WatchKind::Data));
        assert!(watches.remove(BOB, "/a", WatchKind::Persistent) && !watches.remove(BOB, "/a", WatchKind::Any));
        assert_eq!(watches.counts(), (0, 0, 0));
    }

    #[test]
    fn a_recursive_watch_hears_of_nodes_below_but_not_of_sets_of_children() {
        let mut watches = Watches::default();
        watches.watch_on(ANN, "/a", WatchMode::PersistentRecursive).expect("there is room");
        for kind in [EventKind::Created, EventKind::DataChanged, EventKind::Deleted] {
            assert_eq!(watches.fire(kind, "/a/b/c"), BTreeSet::from([ANN]));
        }
        assert_eq!(watches.fire(EventKind::ChildrenChanged, "/a"), BTreeSet::new());
        assert_eq!(watches.fire(EventKind::Created, "/ab"), BTreeSet::new());
        watches.forget(ANN);
        assert_eq!(watches.data.recursive, 0);
    }

    #[test]
    fn a_deletion_takes_both_one_shot_watches_and_is_told_once() {
        let mut watches = Watches::default();
        watches.watch_data(ANN, "/a").expect("there is room");
        watches.watch_children(ANN, "/a").expect("there is room");
        assert_eq!(watches.fire(EventKind::Deleted, "/a"), BTreeSet::from([ANN]));
        assert_eq!(watches.counts(), (0, 0, 0));
    }

    #[test]
    fn all_connections_together_watch_so_much_and_there_is_room_again_when_one_is_gone() {
        let mut watches = Watches { bytes_max: 3 * (2 + WATCH_BYTES), ..Watches::default() };
        watches.watch_on(ANN, "/a", WatchMode::Persistent).expect("it takes two places of three");
        watches.watch_data(BOB, "/b").expect("there is room for one");
        assert_eq!(watches.watch_data(BOB, "/c"), Err(TooMany), "nobody of the two has much");
        assert_eq!(watches.fire(EventKind::DataChanged, "/b"), BTreeSet::from([BOB]));
        watches.watch_children(BOB, "/c").expect("the one before has fired");
        assert_eq!(watches.watch_data(BOB, "/d"), Err(TooMany));
        watches.forget(ANN);
        watches.watch_data(BOB, "/d").expect("another one is gone");
        watches.forget(BOB);
        assert_eq!((watches.data.bytes, watches.children.bytes), (0, 0));
    }
}
