//! One server of the order: its state, its dispatch, its journal.

use bytes::Bytes;
use machine::Time;
use mutants::{Mutant, broken};
use types::ClusterId;
use types::codec::{Decode, DecodeError, Encode};

use super::election::{Candidate, Heard, Looking};
use super::follower::Following;
use super::leader::Leading;
use super::log::Log;
use super::message::{Body, Entry, History, Message, Promise, SERVERS_MAX, Zxid};
use super::record::{Head, Record};
use super::servers::{Servers, Standing};

/// What a server is started with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// How often it says again what was not answered, and that it is there, in milliseconds.
    pub tick_ms: u64,
    /// After so long without a word it looks for another leader, and a leader without a majority gives up, in milliseconds.
    pub timeout_ms: u64,
    /// How long a majority waits for a better candidate, in milliseconds.
    pub settle_ms: u64,
    /// How many entries may be proposed and not delivered.
    pub proposals_max: usize,
    /// And how many bytes of them.
    pub proposals_bytes_max: usize,
    /// How many delivered entries are kept in memory for servers that lag behind, and 64 MiB of them at most; others take over a snapshot, and their clients
    /// have to connect again. By default that is what a second of much load brings, after which a server that says nothing is given up anyway.
    pub kept_max: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { tick_ms: 100, timeout_ms: 600, settle_ms: 40, proposals_max: 8_192, proposals_bytes_max: 64 << 20, kept_max: 65_536 }
    }
}

/// What happened, for whoever is above the order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// An entry is delivered.
    Deliver {
        /// Its place: greater than that of all before.
        zxid: Zxid,
        /// What was proposed.
        payload: Bytes,
    },
    /// The state after this entry takes the place of the one there is.
    Install {
        /// The entry.
        zxid: Zxid,
        /// The state.
        bytes: Bytes,
    },
    /// Somebody needs the state, as it is after an entry that is delivered: see [`Replica::offer`].
    WantSnapshot,
}

/// What is to be done with the journal, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JournalOp {
    /// Append this record.
    Append(Vec<u8>),
    /// Begin a new part. With the snapshot after the same entry, what follows stands for everything before.
    Rotate(Zxid),
    /// Keep this snapshot, which somebody else made: what was appended before is durable first.
    Snapshot {
        /// The entry after which it was taken.
        zxid: Zxid,
        /// What it holds.
        bytes: Bytes,
    },
}

/// What came of a step. Messages leave after the journal is durable.
#[derive(Debug, Default)]
pub struct Output {
    /// To whom what is said.
    pub sends: Vec<(u16, Message)>,
    /// What happened.
    pub events: Vec<Event>,
    /// What is to be written.
    pub journal: Vec<JournalOp>,
}

impl Output {
    pub(super) fn write(&mut self, record: &Record) {
        self.journal.push(JournalOp::Append(record.to_bytes()));
    }
}

/// Why nothing is proposed here and now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Another server leads, or nobody.
    #[error("this server does not lead")]
    NotLeading,
    /// Too much is under way.
    #[error("too much is under way")]
    Busy,
    /// No server would take it.
    #[error("it is longer than an entry may be")]
    TooLong,
}

/// Why a journal cannot be read. Trying again does not help.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplayError {
    /// A record is none of this version's.
    #[error("a record of the journal cannot be read: {0}")]
    Record(#[from] DecodeError),
    /// Entries are missing.
    #[error("the journal has nothing between {0} and {1}")]
    Gap(Zxid, Zxid),
    /// What it was begun with is missing.
    #[error("the journal does not begin at its snapshot, or has no beginning")]
    NoHead,
    /// There cannot be so many servers.
    #[error("there cannot be {0} servers, or one with such a number; there are 1 to 63")]
    Servers(u16),
}

/// What a server is just now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// It looks for a leader, or is on its way to one.
    Looking,
    /// It follows, and what it has delivered may be read.
    Following {
        /// The leader.
        leader: u16,
        /// Its epoch.
        epoch: u32,
    },
    /// It leads, and may propose.
    Leading {
        /// Its epoch.
        epoch: u32,
    },
}

pub(super) enum Role {
    Looking(Looking),
    Following(Following),
    Leading(Leading),
}

/// One server of the order.
pub struct Replica {
    pub(super) me: u16,
    /// How many servers there are, observers not among them.
    pub(super) count: u16,
    pub(super) options: Options,

    // What is durable before anything is said that depends on it.
    pub(super) incarnation: u64,
    pub(super) is_member: bool,
    /// Its disk is empty because its log was given up, as whoever started it knows.
    pub(super) gave_up: bool,
    pub(super) promise: Promise,
    pub(super) accepted: u32,
    pub(super) log: Log,

    pub(super) delivered: Zxid,
    pub(super) role: Role,
    round: u64,
    tick_at: Time,
    /// The snapshot that the journal is read on top of.
    loaded: Zxid,
    /// The last head that was read.
    head: Option<Head>,
    /// Whether the log is the one that the snapshot begins.
    is_anchored: bool,
    /// The base of the last head that was read, where the log does not go as far: a snapshot was taken over that is not there.
    unreached: Option<Zxid>,
    /// Entries after this one are kept while there is room: a snapshot of it is being made.
    held_from: Option<Zxid>,
}

impl Replica {
    /// Server `me` beside those numbered below `count`, of whom a majority decides. Who has a higher number *observes*: it delivers what the others
    /// order, and has no voice. It goes on as of a snapshot that was taken after entry `loaded`; [`Zxid::default`] when there is none. Its journal is to
    /// be [replayed](Self::replay), and then [begun](Self::begin).
    ///
    /// # Errors
    /// [`ReplayError::Servers`].
    pub fn new(me: u16, count: u16, options: Options, loaded: Zxid) -> Result<Self, ReplayError> {
        if me >= SERVERS_MAX || count == 0 || count > SERVERS_MAX {
            return Err(ReplayError::Servers(count));
        }
        let nobody = Candidate { history: History::default(), server: me };
        Ok(Self {
            me,
            count,
            options,
            incarnation: 0,
            is_member: false,
            gave_up: false,
            promise: Promise::default(),
            accepted: 0,
            log: Log::new(Zxid::default(), Servers::default()),
            delivered: Zxid::default(),
            role: Role::Looking(Looking::new(0, nobody)),
            round: 0,
            tick_at: Time(0),
            loaded,
            head: None,
            is_anchored: false,
            unreached: None,
            held_from: None,
        })
    }

    /// Says that its disk is empty because its log was damaged, and given up: it begins nothing anew with others whose disks are empty.
    #[must_use]
    pub fn having_given_up(mut self, gave_up: bool) -> Self {
        self.gave_up = gave_up;
        self
    }

    // Coming back.

    /// Takes in the next record of the journal.
    ///
    /// # Errors
    /// When the journal makes no sense.
    pub fn replay(&mut self, record: Bytes) -> Result<(), ReplayError> {
        let record = Record::from_bytes(record, ClusterId::new([0; 16]))?;
        self.take(record)
    }

    pub(super) fn take(&mut self, record: Record) -> Result<(), ReplayError> {
        match record {
            Record::Head(head) => {
                self.incarnation = head.incarnation;
                self.is_member |= head.is_member;
                (self.promise, self.accepted) = (head.promise, head.accepted);
                let base = head.base;
                self.head = Some(head);
                self.load(self.loaded);
                self.unreached = (self.is_anchored && !self.log.has(base)).then_some(base);
            }
            Record::Promise(promise) => self.promise = promise,
            Record::Accepted(epoch) => {
                self.check_reached()?;
                self.accepted = epoch;
            }
            Record::Member => self.is_member = true,
            Record::Entry(entry) if self.is_anchored && entry.zxid > self.log.last() => {
                // It may be an epoch's first, which could follow any entry.
                self.check_reached()?;
                if !self.log.last().is_followed_by(entry.zxid) {
                    return Err(ReplayError::Gap(self.log.last(), entry.zxid));
                }
                self.log.push(entry);
            }
            Record::Truncate(zxid) if self.is_anchored && zxid >= self.log.base() => self.log.truncate(zxid),
            Record::Entry(_) | Record::Truncate(_) | Record::Piece { .. } => {}
        }
        Ok(())
    }

    /// What was written on top of a snapshot makes no sense without it.
    fn check_reached(&self) -> Result<(), ReplayError> {
        self.unreached.map_or(Ok(()), |base| Err(ReplayError::Gap(self.log.last(), base)))
    }

    /// The snapshot after entry `zxid` is there as well: the last head that was read may go with it.
    pub(super) fn load(&mut self, zxid: Zxid) {
        self.loaded = zxid;
        let Some(head) = self.head.as_ref().filter(|head| head.base == zxid) else { return };
        // What comes after it in the part before may not be in this one yet.
        if !(self.is_anchored && self.log.has(zxid)) {
            self.log = Log::new(zxid, head.servers.clone());
        }
        (self.delivered, self.is_anchored, self.unreached) = (zxid, true, None);
    }

    /// Begins, once the journal is read. A server whose disk is empty is `incarnation` from now on: nobody may have drawn that before.
    ///
    /// # Errors
    /// [`ReplayError::NoHead`].
    pub fn begin(&mut self, now: Time, incarnation: u64, output: &mut Output) -> Result<(), ReplayError> {
        if self.head.is_none() && self.loaded == Zxid::default() {
            self.incarnation = incarnation;
            let head = self.head_at(Zxid::default());
            output.write(&Record::Head(head.clone()));
            self.head = Some(head);
            self.load(Zxid::default());
        }
        if !self.is_anchored {
            return Err(ReplayError::NoHead);
        }
        if self.unreached.take().is_some() {
            // A crash came between a head and its snapshot. What is written from now on goes on from the log that is there.
            let head = self.head_at(self.log.base());
            output.write(&Record::Head(head.clone()));
            self.head = Some(head);
        }
        self.tick_at = now.after_ms(self.options.tick_ms);
        self.look(now, output);
        Ok(())
    }

    // What others may know.

    /// What it is just now.
    #[must_use]
    pub fn status(&self) -> Status {
        match &self.role {
            Role::Following(following) if self.follows_whole(following) => {
                Status::Following { leader: following.leader, epoch: self.promise.epoch }
            }
            Role::Leading(leading) if leading.is_established => Status::Leading { epoch: self.promise.epoch },
            _ => Status::Looking,
        }
    }

    /// The last entry that was delivered.
    #[must_use]
    pub fn delivered(&self) -> Zxid {
        self.delivered
    }

    /// The last entry of its log.
    #[must_use]
    pub fn last(&self) -> Zxid {
        self.log.last()
    }

    /// The entries after `zxid`, as far as they are in memory; delivered or not.
    pub fn entries_after(&self, zxid: Zxid) -> impl Iterator<Item = &Entry> {
        self.log.between(zxid, Zxid(u64::MAX))
    }

    /// Keeps the entries after this one while there is room: a snapshot of it is being made. Nothing ends that.
    pub fn hold(&mut self, zxid: Option<Zxid>) {
        self.held_from = zxid;
    }

    /// The server that it follows, or is about to, and in which epoch; nothing where it follows nobody.
    #[must_use]
    pub fn leader(&self) -> Option<(u16, u32)> {
        if let Role::Following(following) = &self.role { Some((following.leader, self.promise.epoch)) } else { None }
    }

    /// Whether it follows a server that says that a majority has accepted its leadership.
    #[must_use]
    pub fn is_led(&self) -> bool {
        matches!(&self.role, Role::Following(following) if following.is_established)
    }

    /// How many servers there are that decide.
    #[must_use]
    pub fn voters(&self) -> u16 {
        self.count
    }

    /// Whether its word counts: not so after it began with an empty disk, until the others have taken note of that.
    #[must_use]
    pub fn is_member(&self) -> bool {
        self.log.servers().count(self.me, self.standing())
    }

    /// Whether the order has begun as far as this server knows: it begins when all have been up at once.
    #[must_use]
    pub fn has_begun(&self) -> bool {
        !self.log.servers().is_empty()
    }

    /// The place that the next entry has that is proposed here.
    #[must_use]
    pub fn next(&self) -> Zxid {
        let last = self.log.last();
        if last.epoch() == self.promise.epoch { Zxid(last.0 + 1) } else { Zxid::new(self.promise.epoch, 1) }
    }

    /// When [`Replica::tick`] is due.
    #[must_use]
    pub fn deadline(&self) -> Time {
        match &self.role {
            Role::Looking(looking) => looking.deadline().map_or(self.tick_at, |at| at.min(self.tick_at)),
            _ => self.tick_at,
        }
    }

    pub(super) fn standing(&self) -> Standing {
        Standing { incarnation: self.incarnation, is_member: self.is_member, gave_up: self.gave_up }
    }

    pub(super) fn history(&self) -> History {
        History { accepted: self.accepted, last: self.log.last() }
    }

    /// How many servers decide.
    #[must_use]
    pub fn majority(&self) -> usize {
        let majority = usize::from(self.count) / 2 + 1;
        if broken(Mutant::ZabQuorum) { majority - 1 } else { majority }
    }

    pub(super) fn others(&self) -> impl Iterator<Item = u16> + use<> {
        let me = self.me;
        (0..self.count).filter(move |other| *other != me)
    }

    // Steps.

    /// Hears a message.
    pub fn hear(&mut self, now: Time, from: u16, message: Message, output: &mut Output) {
        if from == self.me || from >= SERVERS_MAX {
            return;
        }
        match message {
            Message::Vote { round, candidate, history, is_leader } => {
                self.on_vote(now, from, round, Candidate { history, server: candidate }, is_leader, output);
            }
            Message::Follow { promised, history, standing } => self.on_follow(now, from, promised, history, standing, output),
            Message::Promise { epoch, history, standing } => self.on_promise(now, from, epoch, history, standing, output),
            Message::Ack { epoch, last, has_accepted, standing } => self.on_ack(now, from, epoch, (last, has_accepted), standing, output),
            Message::FetchPage { epoch, zxid, offset } => self.on_fetch_page(now, from, epoch, zxid, offset, output),
            Message::NewEpoch { epoch } => self.on_new_epoch(now, from, epoch, output),
            Message::Entries { leadership, previous, entries, committed } => {
                self.on_entries(now, from, leadership, previous, entries, committed, output);
            }
            Message::Truncate { leadership, from: last, to } => self.on_truncate(now, from, leadership, last, to, output),
            Message::Snapshot { leadership, zxid, bytes, servers } => {
                self.on_snapshot(now, from, leadership, (zxid, bytes), servers, output);
            }
            Message::Page { epoch, zxid, offset, bytes } => self.on_page(now, from, (epoch, zxid), offset, &bytes, output),
        }
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Time, output: &mut Output) {
        self.conclude_election(now, output);
        if now < self.tick_at {
            return;
        }
        self.tick_at = now.after_ms(self.options.tick_ms);
        match &self.role {
            Role::Looking(_) => self.say_vote(output),
            Role::Following(_) => self.tick_following(now, output),
            Role::Leading(_) => self.tick_leading(now, output),
        }
    }

    /// Appends to the log.
    pub(super) fn append(&mut self, entry: Entry, output: &mut Output) {
        if !broken(Mutant::EntryUnlogged) {
            output.write(&Record::Entry(entry.clone()));
        }
        self.log.push(entry);
    }

    pub(super) fn promise(&mut self, promise: Promise, output: &mut Output) {
        self.promise = promise;
        if !broken(Mutant::PromiseUnlogged) {
            output.write(&Record::Promise(promise));
        }
    }

    pub(super) fn accept(&mut self, epoch: u32, output: &mut Output) {
        self.accepted = epoch;
        if !broken(Mutant::EpochUnlogged) {
            output.write(&Record::Accepted(epoch));
        }
    }

    /// Delivers up to `to`, as far as the log goes.
    pub(super) fn deliver(&mut self, to: Zxid, output: &mut Output) {
        let to = to.min(self.log.last());
        if to <= self.delivered {
            return;
        }
        let mut names_me = false;
        for entry in self.log.between(self.delivered, to) {
            match &entry.body {
                Body::Payload(payload) => output.events.push(Event::Deliver { zxid: entry.zxid, payload: payload.clone() }),
                Body::Founders(_) | Body::Joins { .. } => names_me = true,
            }
        }
        self.delivered = to;
        if names_me {
            self.find_own_name(output);
        }
        let held = match &self.role {
            Role::Leading(leading) => leading.offered().unwrap_or(to),
            _ => to,
        };
        let held = self.held_from.map_or(held, |from| from.min(held));
        self.log.trim(self.options.kept_max, to, held);
    }

    /// Whether what is delivered names this server's incarnation: it knows then, for good.
    pub(super) fn find_own_name(&mut self, output: &mut Output) {
        if !self.is_member && self.log.servers_at(self.delivered).incarnation(self.me) == Some(self.incarnation) {
            self.is_member = true;
            output.write(&Record::Member);
        }
    }

    // The journal.

    fn head_at(&self, base: Zxid) -> Head {
        Head {
            incarnation: self.incarnation,
            is_member: self.is_member,
            promise: self.promise,
            accepted: self.accepted,
            base,
            servers: self.log.servers_at(base).clone(),
        }
    }

    /// Begins a new part of the journal, beside a snapshot of the state after entry `base`, which is delivered. Gives whether it did: not where
    /// that entry is not in memory any more.
    pub fn compact(&mut self, base: Zxid, output: &mut Output) -> bool {
        if base > self.delivered || !self.log.has(base) {
            return false;
        }
        output.journal.push(JournalOp::Rotate(base));
        output.write(&Record::Head(self.head_at(base)));
        for entry in self.log.between(base, Zxid(u64::MAX)) {
            output.write(&Record::Entry(entry.clone()));
        }
        true
    }

    /// Takes over the state after entry `zxid`, in place of the log up to there.
    pub(super) fn install(&mut self, zxid: Zxid, servers: Servers, bytes: Bytes, output: &mut Output) {
        self.log = Log::new(zxid, servers);
        self.delivered = zxid;
        output.journal.push(JournalOp::Rotate(zxid));
        output.write(&Record::Head(self.head_at(zxid)));
        output.journal.push(JournalOp::Snapshot { zxid, bytes: bytes.clone() });
        output.events.push(Event::Install { zxid, bytes });
        self.find_own_name(output);
    }

    // Election.

    /// Looks for a leader.
    pub(super) fn look(&mut self, now: Time, output: &mut Output) {
        self.round = self.round.saturating_add(1);
        self.role = Role::Looking(Looking::new(self.round, self.own_candidacy()));
        self.say_vote(output);
        self.conclude_election(now, output);
    }

    /// Leads nobody any more, and says nothing of that yet.
    pub(super) fn stop_leading(&mut self) {
        self.role = Role::Looking(Looking::new(self.round, self.own_candidacy()));
    }

    /// Gives up leading for a server with a newer history, and votes for that. Whoever follows this one already would elect it again.
    pub(super) fn yield_to(&mut self, now: Time, server: u16, history: History, output: &mut Output) {
        self.vote_for(self.own_candidacy(), Candidate { history, server }, output);
        self.conclude_election(now, output);
    }

    /// It stops, in good order. Whoever leads votes for the follower that has most of its log, so that all look for another leader at once, and need
    /// not find out that it is silent. Any of them may be elected: this server's vote is one of a majority's at most.
    pub fn leave(&mut self, now: Time, output: &mut Output) {
        let Role::Leading(leading) = &self.role else { return };
        let observers: Vec<u16> = leading.followers().filter(|follower| *follower >= self.count).collect();
        if let Some(follower) = self.best_follower(now) {
            // It must not vote for itself, though nobody's history is newer.
            let own = Candidate { history: History::default(), server: self.me };
            self.vote_for(own, follower, output);
            output.sends.extend(self.vote().into_iter().flat_map(|vote| observers.iter().map(move |observer| (*observer, vote.clone()))));
        }
    }

    fn vote_for(&mut self, own: Candidate, candidate: Candidate, output: &mut Output) {
        self.round = self.round.saturating_add(1);
        let mut looking = Looking::new(self.round, own);
        looking.hear(candidate.server, self.round, candidate);
        self.role = Role::Looking(looking);
        self.say_vote(output);
    }

    /// Who could not lead offers no history.
    fn own_candidacy(&self) -> Candidate {
        let may_lead = self.log.servers().is_empty() || self.is_member();
        Candidate { history: if may_lead { self.history() } else { History::default() }, server: self.me }
    }

    fn vote(&self) -> Option<Message> {
        let Role::Looking(looking) = &self.role else { return None };
        let Candidate { history, server } = looking.candidate;
        Some(Message::Vote { round: looking.round, candidate: server, history, is_leader: false })
    }

    fn say_vote(&self, output: &mut Output) {
        if let Some(vote) = self.vote() {
            output.sends.extend(self.others().map(|other| (other, vote.clone())));
        }
    }

    fn on_vote(&mut self, now: Time, from: u16, round: u64, candidate: Candidate, is_leader: bool, output: &mut Output) {
        if let Role::Following(following) = &self.role
            && following.leader == from
            && !is_leader
            && round > self.round
        {
            // The leader has given up.
            self.round = round - 1;
            self.look(now, output);
        }
        match &mut self.role {
            // Nobody without a voice leads, or is voted for.
            Role::Looking(_) if from >= self.count || candidate.server >= self.count => {}
            Role::Looking(_) if is_leader => self.follow(now, from, output),
            Role::Looking(looking) => {
                let heard = looking.hear(from, round, candidate);
                self.round = looking.round;
                match heard {
                    Heard::Late => output.sends.extend(self.vote().map(|vote| (from, vote))),
                    Heard::Changed => self.say_vote(output),
                    Heard::Counted => {}
                }
                self.conclude_election(now, output);
            }
            Role::Leading(_) if !is_leader => {
                // Should this leader give up, its vote is news to whoever will have followed it.
                self.round = self.round.max(round);
                let vote = Message::Vote { round: self.round, candidate: self.me, history: self.history(), is_leader: true };
                output.sends.push((from, vote));
            }
            Role::Leading(_) | Role::Following(_) => {}
        }
    }

    pub(super) fn conclude_election(&mut self, now: Time, output: &mut Output) {
        // An observer follows whoever says that it leads.
        let Role::Looking(looking) = &mut self.role else { return };
        if self.me >= self.count {
            return;
        }
        match looking.elected(now, self.count, self.options.settle_ms) {
            Some(elected) if elected == self.me => self.lead(now, output),
            Some(elected) => self.follow(now, elected, output),
            None => {}
        }
    }
}
