//! What Sentinel notices: every kind of damage, done to one of three servers on purpose, in each mode of detection and under each hash.
//!
//! Each [`Row`] is damage to the leader or to a follower. Transactions go on meanwhile, one every 20 ms, as fast as the scrubber takes its steps: every
//! second one creates a child of the damaged node, the others write another node. Each run is made twice: once nobody reads, so that it is known who
//! notices it without that; and once clients read everything at the damaged server after each transaction, so that it is known whether they are told
//! anything wrong.
//!
//! [`table`] makes the table of `docs/protocols/sentinel.md`; a test compares the two.

mod disk;
mod servers;

use std::collections::BTreeMap;
use std::fmt::Write as _;

use ::sentinel::{Damage, Profile, State};
use jute::{Answer, ErrorCode, Request};

use disk::Disk;
use servers::{Client, Servers, create, write};

/// What servers have to notice damage with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    /// Nothing while they run; their folders are compared when they are stopped (§4.1).
    Offline,
    /// The scrubber, and digests of the past, which an auditor compares (§4.2).
    Online,
    /// The scrubber, and the digest of each transaction (§4.3).
    Realtime,
}

impl Mode {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Offline, Self::Online, Self::Realtime];
}

/// Who noticed damage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum By {
    /// The damaged server, when it prepared or applied a transaction.
    Itself,
    /// A majority of the servers, which came to another state than their leader.
    Majority,
    /// The damaged server's scrubber.
    Scrubber,
    /// The damaged server, when it wrote a snapshot.
    Snapshot,
    /// The damaged server, when it started again.
    Start,
    /// The damaged server, before it answered a read.
    Read,
    /// An audit of the servers while they ran.
    Auditor,
    /// An audit of the folders of stopped servers.
    Audit,
}

/// What is done to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Injection {
    /// In memory, before a node is written, or one is created.
    Memory {
        damages: &'static [(Damage, &'static str)],
        creates: bool,
    },
    Proposal,
    /// In the log: under its checksum, or before it had one.
    Log {
        is_checked: bool,
    },
    /// The same in a snapshot.
    Snapshot {
        is_checked: bool,
    },
}

/// A kind of damage.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// What is damaged.
    pub name: &'static str,
    /// Whether ZooKeeper's digests are blind to it, as was measured of 3.9.5.
    pub is_blind_spot: bool,
    injection: Injection,
    /// Whether it can be at a follower.
    at_follower: bool,
}

const fn memory(name: &'static str, is_blind_spot: bool, damages: &'static [(Damage, &'static str)]) -> Row {
    Row { name, is_blind_spot, injection: Injection::Memory { damages, creates: false }, at_follower: true }
}

const fn row(name: &'static str, injection: Injection, at_follower: bool) -> Row {
    Row { name, is_blind_spot: false, injection, at_follower }
}

/// The node that is damaged, and that gets children; one that nothing writes; and one that is written meanwhile.
const VICTIM: &str = "/victim";
const QUIET: &str = "/quiet";
const BUSY: &str = "/busy";

/// Every kind of damage.
pub const ROWS: [Row; 21] = [
    memory("data of a node that gets children", true, &[(Damage::Data, VICTIM)]),
    memory("its stat", true, &[(Damage::Stat, VICTIM)]),
    memory("its ACL", true, &[(Damage::Acl, VICTIM)]),
    memory("its set of children: one too many", false, &[(Damage::Children, VICTIM)]),
    memory("its set of children: one lost", true, &[(Damage::Lost, VICTIM)]),
    memory("data of a node that nothing writes", true, &[(Damage::Data, QUIET)]),
    memory("its stat", true, &[(Damage::Stat, QUIET)]),
    memory("its ACL", true, &[(Damage::Acl, QUIET)]),
    memory("its set of children", false, &[(Damage::Children, QUIET)]),
    memory("stat of `/zookeeper/quota`", true, &[(Damage::Stat, "/zookeeper/quota")]),
    memory("the same bit of the stats of two nodes", true, &[(Damage::Stat, VICTIM), (Damage::Stat, QUIET)]),
    memory("a bit of what a transaction writes, overwritten by the next", true, &[(Damage::Write, BUSY)]),
    row("a bit of what a transaction creates", Injection::Memory { damages: &[(Damage::Write, BUSY)], creates: true }, true),
    memory("a transaction dropped", false, &[(Damage::Drop, VICTIM)]),
    memory("a transaction doubled", false, &[(Damage::Double, VICTIM)]),
    memory("a transaction behind the next, of another node", false, &[(Damage::Reorder, VICTIM)]),
    row("a proposal that is not what its leader applied", Injection::Proposal, false),
    row("a record of the log", Injection::Log { is_checked: false }, true),
    row("a record of the log, before its checksum", Injection::Log { is_checked: true }, true),
    row("a snapshot", Injection::Snapshot { is_checked: false }, true),
    row("a snapshot, before its checksum", Injection::Snapshot { is_checked: true }, true),
];

/// The hashes of the thesis, and those of our own.
pub const HASHES: [Profile; 7] =
    [Profile::Crc32, Profile::Md5, Profile::Sha1, Profile::Sha256, Profile::Sha512, Profile::Sha256Wide, Profile::LtHash16];

/// What came of damage.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Outcome {
    /// By whom it was noticed, if it was, and after how many transactions.
    pub noticed: Option<(By, usize)>,
    /// Whether a client was told anything wrong before, where clients read everything at the damaged server after each transaction.
    pub answered_wrong: bool,
    /// After how many more transactions it served again, compared with the others.
    pub back_after: Option<usize>,
}

/// As long as the scrubber takes for all of the tree, and somewhat more.
const STEPS_MAX: usize = 4_096 + 200;
/// The transactions before the servers are stopped and audited, and after how many they take a snapshot.
const AUDITED_AFTER: usize = 300;
const SNAPSHOT_AFTER: usize = 200;
/// A server whose disk is damaged is started again after so many.
const STARTED_AFTER: usize = 20;
/// Digests of the past are kept of every so many zxids.
const DIGEST_EVERY: i64 = 128;
/// For so many transactions clients read everything.
const READ_FOR: usize = 150;
/// Somebody whose state differs from most is started again by people; a repair takes less than this.
const REPAIR_STEPS_MAX: usize = 1_000;

/// One run.
struct Run {
    servers: Servers,
    damaged: u16,
    /// Where the client is that writes, and a server to compare answers with.
    healthy: u16,
    writer: Option<Client>,
    /// How many transactions were asked for since the damage, and how many succeeded.
    asked: usize,
    done: usize,
    /// Clients at the damaged server and at the healthy one.
    readers: Option<[Client; 2]>,
    /// The nodes that were created first since the damage: what was wrong with one of them is never overwritten.
    created: Vec<String>,
    answered_wrong: bool,
    noticed: Option<(By, usize)>,
    audited: i64,
}

impl Run {
    fn new(profile: Profile, mode: Mode, at_leader: bool, reads: bool) -> Self {
        let mut servers = Servers::new(profile, mode);
        let leader = servers.leader().expect("one leads");
        let damaged = if at_leader { leader } else { (leader + 1) % 3 };
        let healthy = (leader + 2) % 3;
        let writer = servers.connect(healthy).expect("it serves");
        let paths = [VICTIM, "/victim/a", QUIET, "/quiet/a", BUSY];
        for path in paths {
            assert!(matches!(servers.ask(writer, By::Itself, &create(path)), Some(Ok(_))), "nothing is wrong yet");
        }
        let readers = reads.then(|| [damaged, healthy].map(|at| servers.connect(at).expect("it serves")));
        let mut run = Self {
            servers,
            damaged,
            healthy,
            writer: Some(writer),
            asked: 0,
            done: 0,
            readers,
            created: Vec::new(),
            answered_wrong: false,
            noticed: None,
            audited: 0,
        };
        (0..10).for_each(|_| run.advance());
        run
    }

    /// One step of time, and the next transaction where there is somebody to do it.
    fn advance(&mut self) {
        self.servers.pass();
        if self.writer.is_some_and(|writer| self.servers.is_closed(writer)) {
            self.writer = None;
        }
        if self.writer.is_none() {
            self.writer = self.servers.connect(self.healthy);
        }
        let Some(writer) = self.writer else { return };
        let number = self.servers.state(self.healthy).zxid();
        let created = (!self.done.is_multiple_of(2)).then(|| format!("{VICTIM}/{number}"));
        let request = created.as_deref().map_or_else(|| write(BUSY), create);
        self.asked += 1;
        match self.servers.ask(writer, By::Itself, &request) {
            Some(Ok(_)) => {
                self.done += 1;
                self.created.extend(created.filter(|_| self.created.len() < 2));
            }
            // A request that is refused, and should not be.
            Some(Err(error)) => {
                assert!(self.noticed.is_none(), "{error:?} after it was noticed");
                self.answered_wrong = true;
            }
            // It was lost with the leader: the client goes on elsewhere.
            None => self.writer = None,
        }
    }

    /// Reads everything at the damaged server and at a healthy one.
    fn read(&mut self) {
        let Some([damaged, healthy]) = self.readers else { return };
        let paths = [VICTIM, "/victim/a", QUIET, BUSY, "/zookeeper/quota", "/"].into_iter().chain(self.created.iter().map(String::as_str));
        for request in paths.flat_map(reads).collect::<Vec<_>>() {
            if self.servers.is_closed(damaged) || self.servers.is_closed(healthy) {
                return self.connect_readers();
            }
            let found = self.servers.ask(damaged, By::Read, &request);
            let expected = self.servers.ask(healthy, By::Read, &request);
            if let (Some(found), Some(expected)) = (found, expected) {
                self.answered_wrong |= !is_same(&found, &expected);
            }
        }
    }

    fn connect_readers(&mut self) {
        if let [Some(damaged), Some(healthy)] = [self.damaged, self.healthy].map(|at| self.servers.connect(at)) {
            self.readers = Some([damaged, healthy]);
        }
    }

    /// Whether somebody was found wrong, or is by an audit.
    fn look(&mut self, mode: Mode) {
        if self.noticed.is_none()
            && let Some((at, by, corruption)) = self.servers.found.first()
        {
            assert_eq!(*at, self.damaged, "server {at} is blamed, and {} is damaged: {corruption}", self.damaged);
            self.noticed = Some((*by, self.asked));
        }
        if mode == Mode::Online && self.noticed.is_none() {
            self.audit_online();
        }
    }

    fn audit_online(&mut self) {
        let logs: Vec<BTreeMap<i64, _>> = (0..3).map(|at| self.servers.state(at).digest_log().collect()).collect();
        let Some(zxid) = logs[0].keys().next_back().copied().filter(|zxid| *zxid > self.audited) else { return };
        assert_eq!(zxid % DIGEST_EVERY, 0, "digests are kept then");
        let at_zxid: Vec<_> = logs.iter().filter_map(|log| log.get(&zxid)).collect();
        if at_zxid.len() < 3 {
            return;
        }
        self.audited = zxid;
        let odd = (0..3).find(|at| (0..3).all(|other| other == *at || at_zxid[other] != at_zxid[*at]));
        if let Some(odd) = odd {
            assert_eq!(odd, usize::from(self.damaged), "another one is named than is damaged");
            self.noticed = Some((By::Auditor, self.asked));
            // Nobody but people acts upon an audit: they start it again with an empty folder.
            self.servers.stations[odd].disk = Disk::new(false);
            self.servers.restart(self.damaged);
        }
    }

    fn audit_offline(&mut self) {
        let states: Vec<Result<State, _>> = (0..3)
            .map(|at| {
                let setup = self.servers.setup(at);
                self.servers.stations[usize::from(at)].disk.audit(setup)
            })
            .collect();
        let right = |at: usize| {
            let same = |other: &usize| {
                *other != at && matches!((&states[at], &states[*other]), (Ok(one), Ok(other)) if one.checksum() == other.checksum())
            };
            (0..3).any(|other| same(&other))
        };
        let wrong: Vec<usize> = (0..3).filter(|at| !right(*at)).collect();
        if let [at] = wrong[..] {
            assert_eq!(at, usize::from(self.damaged), "another one is named than is damaged");
            self.noticed = Some((By::Audit, self.asked));
        } else {
            assert!(wrong.is_empty(), "nobody can say who is right");
        }
    }

    fn inject(&mut self, injection: Injection) {
        let damaged = usize::from(self.damaged);
        match injection {
            Injection::Memory { damages, creates } => {
                if creates {
                    self.advance();
                }
                for (damage, path) in damages {
                    self.servers.stations[damaged].member.server_mut().damage(*damage, path).expect("there is such a node");
                }
            }
            Injection::Proposal => {
                self.advance();
                self.servers.stations[damaged].member.damage_proposal();
            }
            Injection::Log { is_checked: false } => self.servers.stations[damaged].disk.flip_in_log(b"/victim/a"),
            Injection::Log { is_checked: true } => self.servers.stations[damaged].disk.damages = Some(b"\x07\x07\x07\x07"),
            Injection::Snapshot { is_checked } => {
                self.servers.step(self.damaged, By::Snapshot, |member, _| member.begin_snapshot());
                self.advance();
                self.servers.stations[damaged].disk.flip_in_snapshot(b"\x07\x07\x07\x07", is_checked);
            }
        }
    }

    fn go(mut self, row: &Row, mode: Mode) -> Outcome {
        self.inject(row.injection);
        let is_of_disk = matches!(row.injection, Injection::Log { .. } | Injection::Snapshot { .. });
        self.asked = 0;
        self.created.clear();
        let reads = self.readers.is_some();
        let steps = match mode {
            _ if reads => READ_FOR,
            Mode::Offline => AUDITED_AFTER,
            Mode::Online | Mode::Realtime => STEPS_MAX,
        };
        for step in 1..=steps {
            self.advance();
            self.look(mode);
            if self.noticed.is_some() {
                break;
            }
            self.read();
            self.look(mode);
            if self.noticed.is_some() || (reads && self.answered_wrong) {
                break;
            }
            if mode == Mode::Offline && step == SNAPSHOT_AFTER && !is_of_disk {
                self.servers.step(self.damaged, By::Snapshot, |member, _| member.begin_snapshot());
            }
            if mode != Mode::Offline && step == STARTED_AFTER && is_of_disk {
                self.servers.restart(self.damaged);
                self.look(mode);
            }
            if self.noticed.is_some() {
                break;
            }
        }
        if mode == Mode::Offline && self.noticed.is_none() && !reads {
            self.audit_offline();
        }
        let (noticed, before) = (self.noticed, self.done);
        // Where the folders are compared, all are stopped by then, and the one that is wrong gets an empty folder.
        let may_be_back = noticed.is_some() && mode != Mode::Offline && !reads;
        let back_after = may_be_back.then(|| self.wait_until_back()).flatten().map(|()| self.done - before);
        Outcome { noticed, answered_wrong: self.answered_wrong, back_after }
    }

    /// Until the damaged server serves clients again, and what it says is right.
    fn wait_until_back(&mut self) -> Option<()> {
        self.readers = None;
        for _ in 0..REPAIR_STEPS_MAX {
            self.advance();
            let station = &self.servers.stations[usize::from(self.damaged)];
            let is_of_people = self.noticed.is_some_and(|(by, _)| by == By::Auditor);
            let is_back = station.is_repaired || (is_of_people && station.member.replica().is_member());
            let is_level = self.servers.state(self.damaged).zxid() == self.servers.state(self.healthy).zxid();
            if !is_back || !is_level || !self.servers.is_whole(self.damaged) {
                continue;
            }
            self.connect_readers();
            if self.readers.is_none() {
                continue;
            }
            let before = std::mem::take(&mut self.answered_wrong);
            self.read();
            assert!(!self.answered_wrong, "what was repaired is right");
            self.answered_wrong = before;
            return Some(());
        }
        None
    }
}

/// Whether two answers say the same. Children come in no order.
fn is_same(one: &Result<Answer, ErrorCode>, other: &Result<Answer, ErrorCode>) -> bool {
    let sorted = |answer: &Result<Answer, ErrorCode>| match answer {
        Ok(Answer::NamesAndStat { names, stat }) => {
            let mut names = names.clone();
            names.sort();
            Ok(Answer::NamesAndStat { names, stat: *stat })
        }
        answer => answer.clone(),
    };
    sorted(one) == sorted(other)
}

/// Everything that clients can ask about a node.
fn reads(path: &str) -> [Request; 4] {
    let path = || path.to_owned();
    [
        Request::GetData { path: path(), watch: false },
        Request::GetChildren2 { path: path(), watch: false },
        Request::GetAcl { path: path() },
        Request::Exists { path: path(), watch: false },
    ]
}

/// What comes of damage of a kind, at the leader or at a follower.
#[must_use]
pub fn run(row: &Row, at_leader: bool, mode: Mode, profile: Profile) -> Outcome {
    let unread = Run::new(profile, mode, at_leader, false).go(row, mode);
    let read = Run::new(profile, mode, at_leader, true).go(row, mode);
    Outcome { answered_wrong: read.answered_wrong || unread.answered_wrong, ..unread }
}

/// What a cell of the table says.
fn cell(outcome: &Outcome) -> String {
    let Outcome { noticed, answered_wrong, back_after } = outcome;
    let mut text = match noticed {
        None => "no".to_owned(),
        Some((By::Itself, after)) => format!("itself, {after}"),
        Some((By::Majority, after)) => format!("a majority, {after}"),
        Some((By::Scrubber, after)) => format!("scrubber, {after}"),
        Some((By::Snapshot, after)) => format!("its next snapshot, {after}"),
        Some((By::Start, after)) => format!("its next start, {after}"),
        Some((By::Read, after)) => format!("a read, {after}"),
        Some((By::Auditor, after)) => format!("auditor, {after}"),
        Some((By::Audit, after)) => format!("audit, {after}"),
    };
    if let Some(after) = back_after {
        let _ = write!(text, "; back after {after}");
    }
    if *answered_wrong {
        text += "; answered wrong";
    }
    text
}

/// A line of the table: damage of a kind at one place, with what came of it in each mode, by hash.
#[derive(Clone, Debug)]
pub struct Line {
    /// The damage.
    pub row: Row,
    /// Where it was.
    pub at_leader: bool,
    /// What came of it.
    pub outcomes: Vec<(Mode, Vec<(Profile, Outcome)>)>,
}

/// Damages servers in every way, in each mode and under each hash.
#[must_use]
pub fn lines() -> Vec<Line> {
    let places = ROWS.iter().flat_map(|row| [false, true].map(|at_leader| (row, at_leader)));
    let line = |(row, at_leader): (&Row, bool)| {
        let by_hash = |mode| HASHES.into_iter().map(|profile| (profile, run(row, at_leader, mode, profile))).collect();
        Line { row: *row, at_leader, outcomes: Mode::ALL.map(|mode| (mode, by_hash(mode))).into() }
    };
    places.filter(|(row, at_leader)| row.at_follower || *at_leader).map(line).collect()
}

fn compressed(outcomes: &[(Profile, Outcome)]) -> String {
    let mut by_cell: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for (profile, outcome) in outcomes {
        by_cell.entry(cell(outcome)).or_default().push(profile.name());
    }
    if by_cell.len() == 1 {
        return by_cell.into_keys().collect();
    }
    let each: Vec<String> = by_cell.iter().map(|(cell, names)| format!("{}: {cell}", names.join(", "))).collect();
    each.join(" / ")
}

/// The table, as the book has it.
#[must_use]
pub fn table(lines: &[Line]) -> String {
    let mut table = String::from("| damage | at the | offline | online | realtime |\n|---|---|---|---|---|\n");
    for Line { row, at_leader, outcomes } in lines {
        let cells: Vec<String> = outcomes.iter().map(|(_, outcomes)| compressed(outcomes)).collect();
        let mark = if row.is_blind_spot { " †" } else { "" };
        let place = if *at_leader { "leader" } else { "follower" };
        let _ = writeln!(table, "| {}{mark} | {place} | {} |", row.name, cells.join(" | "));
    }
    table
}
