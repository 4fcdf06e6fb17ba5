//! What the leader does for the engine's clients.

use bytes::Bytes;
use jute::{Acl, Create, CreateMode, Operation, PASSWORD_BYTES};
use mutants::{Mutant, broken};
use types::{ClientId, Direction, Key, KeyRange, Permission, Session, Value};

use super::keys::{COMMITS, KEYS, ROOT, is_slot, key_of, name_of, path_of, slot_path};
use super::message::{Answer, Question, Reason, Row, Seen, SeenRange, Version, Write};
use crate::limits::{ANSWER_BYTES_MAX, COMMIT_BYTES_MAX, ENGINE_SESSION_MS, ENGINE_SLOTS_MAX};
use crate::node::{Data, Part};
use crate::prepare::{Origin, Proposal};
use crate::server::{Now, Outbox, Server};
use crate::state::{Corruption, State};
use crate::transaction::{Body, Change, Transaction};

/// What is noted in a slot of a commit's end.
const TURNED_DOWN: u8 = 0;
const COMMITTED: u8 = 1;
const REFUSED: u8 = 2;

/// What was counted of commits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Commits {
    /// That took place.
    pub committed: u64,
    /// That met another one, and were turned down.
    pub conflicts: u64,
}

impl Commits {
    /// Counts what was applied, if it is a commit.
    pub(crate) fn count(&mut self, transaction: &Transaction) {
        let Body::Changes(changes) = &transaction.body else { return };
        // The first commits make the nodes above first.
        let noted = changes.iter().take(NODES.len() + 1).find_map(|change| match change {
            Change::Create { path, data, .. } | Change::SetData { path, data, .. } if is_slot(path) => data.as_ref(),
            _ => None,
        });
        match noted.and_then(|data| Noted::read(data)) {
            Some(Noted { end: COMMITTED, .. }) => self.committed += 1,
            Some(Noted { end: TURNED_DOWN, .. }) => self.conflicts += 1,
            _ => {}
        }
    }
}

/// The nodes that hold all others of the engine's.
const NODES: [&str; 3] = [ROOT, KEYS, COMMITS];

/// What a slot's node says: which commit was the last in it, and how it ended.
#[derive(Clone, Copy)]
struct Noted {
    sequence: u64,
    end: u8,
}

impl Noted {
    fn read(data: &[u8]) -> Option<Self> {
        let [sequence @ .., end] = data else { return None };
        Some(Self { sequence: u64::from_be_bytes(sequence.try_into().ok()?), end: *end })
    }

    fn to_bytes(self) -> Bytes {
        self.sequence.to_be_bytes().into_iter().chain([self.end]).collect()
    }
}

/// A commit, as a client asks for it.
pub(crate) struct Commit {
    pub(crate) session: i64,
    pub(crate) slot: u16,
    pub(crate) sequence: u64,
    pub(crate) seen: Seen,
    pub(crate) writes: Vec<Write>,
}

/// Why nothing that was asked for is found.
pub(crate) enum NotFound {
    /// It may not be answered.
    Refused(Reason),
    /// Something that was to be read is not as transactions made it.
    Corrupt(Corruption),
}

impl From<Corruption> for NotFound {
    fn from(corruption: Corruption) -> Self {
        Self::Corrupt(corruption)
    }
}

impl From<Reason> for NotFound {
    fn from(reason: Reason) -> Self {
        Self::Refused(reason)
    }
}

/// The versions and values of keys. All that is read of a node is looked at first ([`State::look_at`]), as it is for the tree's clients. Whether the
/// set of all keys' names is whole is not: that would take as long as there are keys.
impl State {
    /// The version of a key: 0 where it has no value. No two values that a key ever had share one, whatever was deleted between them, as the
    /// order gives each number once. (`version` in a node's stat begins anew when the node does.)
    fn key_version(&self, path: &str) -> Result<i64, Corruption> {
        self.look_at(path, Part::Head)?;
        Ok(self.nodes.get(path).map_or(0, |node| node.stat.mzxid))
    }

    fn row(&self, key: Key) -> Result<Row, NotFound> {
        let path = path_of(&key);
        self.look_at(&path, Part::Data)?;
        let Some(node) = self.nodes.get(&path) else { return Ok(Row { key, version: 0, value: None }) };
        // Only a client of the tree can have written more than a value takes.
        let value = Value::new(node.data.as_ref().map(Data::to_bytes).unwrap_or_default()).ok_or(Reason::TooLarge)?;
        Ok(Row { key, version: node.stat.mzxid, value: Some(value) })
    }

    /// The keys of a range that have values, in this direction.
    fn keys_in(&self, range: &KeyRange, direction: Direction) -> impl Iterator<Item = Key> {
        let children = self.nodes.get(KEYS).map(|node| &node.children);
        let (low, high) = (name_of(range.low()), name_of(range.high()));
        let names = children.map(|children| children.between(&low, &high, direction)).into_iter().flatten();
        names.filter_map(key_of)
    }

    /// Whether all is as it was seen.
    pub(crate) fn is_as_seen(&self, seen: &Seen) -> Result<bool, Corruption> {
        self.look_at(KEYS, Part::Head)?;
        if broken(Mutant::SeenUnchecked) {
            return Ok(true);
        }
        if !self.are_as_seen(&seen.keys)? {
            return Ok(false);
        }
        for SeenRange { range, rows } in &seen.ranges {
            let is_same = self.are_as_seen(rows)?;
            if !is_same
                || !(broken(Mutant::RangeUnchecked) || self.keys_in(range, Direction::Ascending).eq(rows.iter().map(|row| row.key.clone())))
            {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn are_as_seen(&self, versions: &[Version]) -> Result<bool, Corruption> {
        for Version { key, version } in versions {
            if self.key_version(&path_of(key))? != *version {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Whether a client may ask this.
pub(crate) fn is_permitted(rights: &Permission, question: &Question) -> bool {
    let may_see = |seen: &Seen| {
        seen.keys.iter().all(|seen| rights.may_read(&seen.key))
            && seen.ranges.iter().all(|seen| rights.may_read_range(&seen.range) && seen.rows.iter().all(|row| rights.may_read(&row.key)))
    };
    match question {
        Question::Begin => true,
        Question::Read { keys, .. } => keys.iter().all(|key| rights.may_read(key)),
        Question::Scan { range, .. } => rights.may_read_range(range),
        Question::Check { seen } => may_see(seen),
        // A slot is a node: who may write nothing makes none, and nobody more than a session has.
        Question::Commit { slot, seen, writes, .. } => {
            let has_place = *slot < ENGINE_SLOTS_MAX && !writes.is_empty();
            has_place && may_see(seen) && writes.iter().all(|write| rights.may_write(&write.key))
        }
    }
}

/// Whose a session is: what its password says, as far as it was begun for one of the engine's clients.
fn owner(client: ClientId, process: Session) -> [u8; PASSWORD_BYTES] {
    let mut password = [0; PASSWORD_BYTES];
    let (first, second) = password.split_at_mut(size_of::<u64>());
    first.copy_from_slice(&client.0.to_be_bytes());
    second.copy_from_slice(&process.0.to_be_bytes());
    password
}

fn create(path: String, data: Bytes, mode: CreateMode) -> Operation {
    Operation::Create(Create { path, data: Some(data), acl: vec![Acl::open()], mode, sequential: false, wants_stat: false })
}

impl Server {
    pub(crate) fn find(&self, keys: Vec<Key>) -> Result<Vec<Row>, NotFound> {
        self.state.look_at(KEYS, Part::Head)?;
        let mut bytes = 0;
        keys.into_iter().map(|key| Ok(within(self.state.row(key)?, &mut bytes)?)).collect()
    }

    pub(crate) fn scan(&self, range: &KeyRange, direction: Direction, rows_max: usize) -> Result<Vec<Row>, NotFound> {
        self.find(self.state.keys_in(range, direction).take(rows_max).collect())
    }

    /// A session for the process `from`: the one it has, or a new one.
    pub(crate) fn begin_for(&mut self, now: Now, from: (ClientId, Session), outbox: &mut Outbox) -> Result<Answer, Corruption> {
        if let Some(session) = self.processes.get(&from).copied().filter(|session| self.state.sessions.contains_key(session)) {
            self.expiry.renew(session, now.steady_ms);
            return Ok(Answer::Begun { session });
        }
        if self.processes.len() > 2 * self.state.sessions.len() {
            let sessions = &self.state.sessions;
            self.processes.retain(|_, session| sessions.contains_key(session));
        }
        let (session, proposal) = self.new_session_of(ENGINE_SESSION_MS, owner(from.0, from.1));
        self.commit(proposal, Origin { session, xid: 0, identities: &[], time_ms: now.wall_ms }, outbox)?;
        self.processes.insert(from, session);
        Ok(Answer::Begun { session })
    }

    /// The operations that note in a slot how a commit ended.
    fn note(&self, path: String, noted: Noted) -> Vec<Operation> {
        let missing = NODES.iter().filter(|node| self.state.nodes.get(node).is_none());
        let mut operations: Vec<Operation> = missing.map(|node| create((*node).to_owned(), Bytes::new(), CreateMode::Persistent)).collect();
        let data = noted.to_bytes();
        operations.push(match self.state.nodes.get(&path) {
            Some(_) => Operation::SetData { path, data: Some(data), version: -1 },
            None => create(path, data, CreateMode::Ephemeral),
        });
        operations
    }

    fn write(&self, writes: Vec<Write>) -> impl Iterator<Item = Operation> {
        writes.into_iter().filter_map(|Write { key, value }| {
            let path = path_of(&key);
            let is_there = self.state.nodes.get(&path).is_some();
            match value {
                Some(value) if is_there => Some(Operation::SetData { path, data: Some(value.to_shared()), version: -1 }),
                Some(value) => Some(create(path, value.to_shared(), CreateMode::Persistent)),
                None => is_there.then_some(Operation::Delete { path, version: -1 }),
            }
        })
    }

    /// Notes how a commit ended that changes nothing else, and gives that end. Nothing where it cannot be noted, as where a client of the tree is in the
    /// way: the next leader, asked the same, could carry it out.
    fn end_noted(
        &mut self,
        path: String,
        noted: Noted,
        origin: Origin<'_>,
        answer: Answer,
        outbox: &mut Outbox,
    ) -> Result<Option<Answer>, Corruption> {
        let operations = self.note(path, noted);
        let committed = self.commit(Proposal::Multi(operations), origin, outbox)?.transaction;
        Ok(matches!(committed.body, Body::Changes(_)).then_some(answer))
    }

    /// Commits, or turns down. Nothing where the commit's slot has gone on, as nobody waits for this one any more, and where its end cannot be noted.
    pub(crate) fn commit_keys(
        &mut self,
        now: Now,
        (client, process): (ClientId, Session),
        commit: Commit,
        outbox: &mut Outbox,
    ) -> Result<Option<Answer>, Corruption> {
        let Commit { session, slot, sequence, seen, writes } = commit;
        if self.state.sessions.get(&session).is_none_or(|known| known.password != owner(client, process)) {
            return Ok(Some(Answer::Expired));
        }
        self.expiry.renew(session, now.steady_ms);
        let path = slot_path(client, session, slot);
        self.state.look_at(&path, Part::Data)?;
        let slot_node = self.state.nodes.get(&path);
        let noted = slot_node.and_then(|node| Some((Noted::read(node.data.as_ref()?)?, node.stat.mzxid)));
        match noted.filter(|(noted, _)| sequence <= noted.sequence && !broken(Mutant::CommittedAgain)) {
            Some((noted, _)) if sequence < noted.sequence => return Ok(None),
            Some((Noted { end: COMMITTED, .. }, zxid)) => return Ok(Some(Answer::Committed { zxid })),
            Some((Noted { end: REFUSED, .. }, _)) => return Ok(Some(Answer::Refused(Reason::Occupied))),
            Some(_) => return Ok(Some(Answer::Conflict)),
            None => {}
        }
        let bytes = |write: &Write| 3 * write.key.as_bytes().len() + write.value.as_ref().map_or(0, |value| value.as_bytes().len());
        if writes.iter().map(bytes).sum::<usize>() > COMMIT_BYTES_MAX {
            return Ok(Some(Answer::Refused(Reason::TooLarge)));
        }
        let origin = Origin { session, xid: 0, identities: &[], time_ms: now.wall_ms };
        if !self.state.is_as_seen(&seen)? {
            if broken(Mutant::ConflictUnnoted) {
                return Ok(Some(Answer::Conflict));
            }
            return self.end_noted(path, Noted { sequence, end: TURNED_DOWN }, origin, Answer::Conflict, outbox);
        }
        let mut operations = self.note(path.clone(), Noted { sequence, end: COMMITTED });
        operations.extend(self.write(writes));
        let committed = self.commit(Proposal::Multi(operations), origin, outbox)?.transaction;
        if let Body::Changes(_) = committed.body {
            return Ok(Some(Answer::Committed { zxid: committed.zxid }));
        }
        self.end_noted(path, Noted { sequence, end: REFUSED }, origin, Answer::Refused(Reason::Occupied), outbox)
    }
}

/// The row, where all so far fit into an answer.
fn within(row: Row, bytes: &mut usize) -> Result<Row, Reason> {
    *bytes += row.bytes();
    if *bytes > ANSWER_BYTES_MAX { Err(Reason::TooLarge) } else { Ok(row) }
}
