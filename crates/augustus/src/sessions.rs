//! What a shard remembers of its clients: how each of their transactions was voted on, so that none is executed twice and no vote
//! changes (§3.3), and how much they have pending.
//!
//! A client's processes are its sessions, and each numbers its transactions upwards. A shard remembers the last `REPLIES_MAX`
//! transactions of a session, the `SESSIONS_MAX` sessions of a client that were used last, and beyond that the highest number that it has forgotten. What
//! bears a forgotten number counts as aborted. So an outcome may be forgotten only when that contradicts nobody:
//!
//! - A pending transaction stays.
//! - One that has committed and that other shards may still hold pending stays, until these have stated that they do not
//!   ([`Request::Forget`](crate::Request::Forget)). How many a client leaves so is limited.
//! - One that was aborted goes: it stays aborted.
//! - One that ran on this shard alone goes. No other shard asks for it, and its client, asking again, is told that it was forgotten.

use std::collections::BTreeMap;

use mutants::{Mutant, broken};
use types::codec::{Decode, DecodeError, Encode, Reader, encode_count};
use types::limits::SHARDS_MAX;
use types::{ClientId, ShardId, TransactionId};

use crate::certificate::{EndedStatement, Vote};
use crate::limits::{PENDING_MAX, PENDING_PARTS, REPLIES_MAX, SESSIONS_MAX};
use crate::pages::{Directory, Owner, PageNumber};
use crate::request::Verdict;
use crate::transaction::Name;

/// One transaction, as its session's page has it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Entry {
    pub id: TransactionId,
    pub state: State,
}

/// What became of a transaction.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum State {
    /// It has ended here when it was executed: it was voted down, or no other shard takes part.
    Done(Verdict),
    /// It was voted to commit, and waits for its certificate.
    Pending(PageNumber),
    /// It has committed, and these shards may hold it pending.
    Unsettled(Vec<ShardId>),
    /// It was pending and has ended, and nobody needs to be told.
    Ended(Vote),
}

impl State {
    fn may_be_forgotten(&self) -> bool {
        match self {
            Self::Done(_) | Self::Ended(_) => true,
            Self::Unsettled(_) => broken(Mutant::UnsettledForgotten),
            Self::Pending(_) => false,
        }
    }

    /// How it ended here, unless it is pending.
    pub fn end(&self) -> Option<Vote> {
        match self {
            Self::Done(verdict) => Some(verdict.vote()),
            Self::Unsettled(_) => Some(Vote::Commit),
            Self::Ended(decision) => Some(*decision),
            Self::Pending(_) => None,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Session {
    pub page: PageNumber,
    /// The last batch that had something of it.
    used: u64,
    /// Numbers up to here that have no entry are forgotten.
    floor: u64,
    entries: BTreeMap<u64, Entry>,
    /// How many entries may be forgotten.
    forgettable: usize,
}

impl Session {
    /// Forgets the oldest of what may be forgotten, when it is too much.
    fn trim(&mut self) {
        while self.forgettable > REPLIES_MAX {
            let oldest = self.entries.iter().find(|(_, entry)| entry.state.may_be_forgotten()).map(|(number, _)| *number);
            let oldest = oldest.expect("there are more than none");
            self.entries.remove(&oldest);
            self.forgettable -= 1;
            self.floor = self.floor.max(oldest);
        }
    }
}

#[derive(Debug)]
pub(crate) struct Client {
    page: PageNumber,
    /// Sessions up to here that are not among them are forgotten.
    floor: u64,
    sessions: BTreeMap<u64, Session>,
    /// How many transactions it may have pending.
    room: usize,
    /// What it has pending.
    pub pending: Load,
    /// How many of its transactions are unsettled.
    pub unsettled: usize,
}

impl Client {
    /// Whether it may have one more transaction pending.
    pub fn has_room(&self) -> bool {
        self.pending.transactions < self.room
    }
}

/// How much is pending.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Load {
    pub transactions: usize,
    pub locks: usize,
    pub bytes: usize,
}

/// What is known of a name.
pub(crate) enum Known<'a> {
    /// It has not been used.
    New,
    Entry(&'a Entry),
    Forgotten,
}

#[derive(Debug, Default)]
pub(crate) struct Clients {
    clients: BTreeMap<ClientId, Client>,
    /// The batch that is executed.
    pub sequence: u64,
}

impl Clients {
    pub fn client(&self, id: ClientId) -> Option<&Client> {
        self.clients.get(&id)
    }

    pub fn client_mut(&mut self, id: ClientId) -> Option<&mut Client> {
        self.clients.get_mut(&id)
    }

    pub fn find(&self, name: Name) -> Known<'_> {
        let Some(client) = self.clients.get(&name.client) else { return Known::New };
        let Some(session) = client.sessions.get(&name.session) else {
            return if name.session <= client.floor { Known::Forgotten } else { Known::New };
        };
        match session.entries.get(&name.number) {
            Some(entry) => Known::Entry(entry),
            None if name.number <= session.floor => Known::Forgotten,
            None => Known::New,
        }
    }

    /// One of a client's pending transactions was ended: by itself, or by others, to whom it had left it.
    pub fn note_end(&mut self, id: ClientId, by_itself: bool, pending_min: usize, directory: &mut Directory) {
        let client = self.clients.get_mut(&id).expect("it had something pending");
        let room = match by_itself {
            true => (client.room + 1).min(PENDING_MAX),
            false if broken(Mutant::RoomKept) => client.room,
            false => (client.room - client.room / PENDING_PARTS).max(pending_min.min(PENDING_MAX)),
        };
        if std::mem::replace(&mut client.room, room) != room {
            directory.change(client.page);
        }
    }

    /// Makes room for a session that is new, if there is any; if not, it is forgotten from now on. Gives whether there is room. There is none for one
    /// that was forgotten.
    pub fn make_room(&mut self, id: ClientId, number: u64, directory: &mut Directory) -> bool {
        let is_first = !self.clients.contains_key(&id);
        let client = self.clients.entry(id).or_insert_with(|| Client {
            page: directory.make(Owner::Client(id)),
            floor: 0,
            sessions: BTreeMap::new(),
            room: PENDING_MAX,
            pending: Load::default(),
            unsettled: 0,
        });
        if client.sessions.contains_key(&number) {
            return true;
        }
        // Its transactions were voted down as forgotten: no vote changes.
        if number <= client.floor && !is_first && !broken(Mutant::ForgottenRevived) {
            return false;
        }
        if client.sessions.len() >= SESSIONS_MAX {
            directory.change(client.page);
            let idle = |session: &Session| session.forgettable == session.entries.len();
            // One that is in use stays, however many others come and go.
            let oldest = client.sessions.iter().filter(|(_, session)| idle(session)).min_by_key(|(_, session)| session.used);
            let Some(oldest) = oldest.map(|(oldest, _)| *oldest) else {
                client.floor = client.floor.max(number);
                return false;
            };
            client.floor = client.floor.max(oldest);
            let session = client.sessions.remove(&oldest).expect("it was just found");
            directory.free(session.page);
            if number <= client.floor {
                return false;
            }
        }
        let page = directory.make(Owner::Session(id, number));
        client.sessions.insert(number, Session { page, used: self.sequence, floor: 0, entries: BTreeMap::new(), forgettable: 0 });
        true
    }

    /// Notes what became of a transaction. Its session has been made.
    pub fn set(&mut self, name: Name, entry: Entry, directory: &mut Directory) {
        let session = self.clients.get_mut(&name.client).and_then(|client| client.sessions.get_mut(&name.session));
        let session = session.expect("a session is made before its first entry");
        directory.change(session.page);
        session.used = self.sequence;
        session.forgettable += usize::from(entry.state.may_be_forgotten());
        if let Some(before) = session.entries.insert(name.number, entry) {
            session.forgettable -= usize::from(before.state.may_be_forgotten());
        }
        session.trim();
    }

    /// Forgets all numbers below `below` that have not been used, as far as no transaction is pending; and gives how far that is.
    pub fn settle(&mut self, id: ClientId, session: u64, below: u64, directory: &mut Directory) -> Option<u64> {
        let session = self.clients.get_mut(&id)?.sessions.get_mut(&session)?;
        let pending = session.entries.iter().find(|(_, entry)| matches!(entry.state, State::Pending(_)));
        let reached = pending.map_or(below, |(number, _)| below.min(*number));
        if reached > 0 && reached - 1 > session.floor {
            session.floor = reached - 1;
            directory.change(session.page);
        }
        Some(reached)
    }

    /// Up to which number, and `below` at most, nothing of a session is pending or will be.
    pub fn settled(&self, id: ClientId, number: u64, below: u64) -> u64 {
        if broken(Mutant::SettledUnordered) {
            return below;
        }
        let Some(client) = self.clients.get(&id) else { return 0 };
        let Some(session) = client.sessions.get(&number) else { return if number <= client.floor { below } else { 0 } };
        let pending = session.entries.iter().find(|(_, entry)| matches!(entry.state, State::Pending(_)));
        below.min(session.floor + 1).min(pending.map_or(u64::MAX, |(number, _)| *number))
    }

    /// Of a session's unsettled transactions below `below`, lets go those that no shard but `settled` may hold pending.
    pub fn forget(&mut self, id: ClientId, session: u64, below: u64, settled: &[ShardId], directory: &mut Directory) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        let Some(session) = client.sessions.get_mut(&session) else { return };
        for (_, entry) in session.entries.range_mut(..below) {
            if let State::Unsettled(others) = &entry.state
                && (others.iter().all(|other| settled.contains(other)) || broken(Mutant::SettledByFew))
            {
                entry.state = State::Ended(Vote::Commit);
                session.forgettable += 1;
                client.unsettled -= 1;
            }
        }
        session.trim();
        directory.change(session.page);
    }

    /// Of each session that has unsettled transactions the first for which some other shards are to be asked, and with it those near it for which
    /// the same ones are.
    pub fn unsettled(&self) -> impl Iterator<Item = (EndedStatement, &[ShardId])> {
        let clients = self.clients.iter().filter(|(_, client)| client.unsettled > 0);
        let sessions = clients.flat_map(|(id, client)| client.sessions.iter().map(|(number, session)| (*id, *number, session)));
        sessions.flat_map(|(id, number, session)| {
            let mut statements: BTreeMap<&[ShardId], EndedStatement> = BTreeMap::new();
            for (first, entry) in &session.entries {
                if let State::Unsettled(others) = &entry.state {
                    statements.entry(others).or_insert_with(|| EndedStatement::none(id, number, *first)).add(*first);
                }
            }
            statements.into_iter().map(|(others, statement)| (statement, others))
        })
    }

    /// Lets those of these transactions go that no shard but `settled` may hold pending.
    pub fn forget_ended(&mut self, statement: &EndedStatement, settled: &[ShardId], directory: &mut Directory) {
        let Some(client) = self.clients.get_mut(&statement.client) else { return };
        let Some(session) = client.sessions.get_mut(&statement.session) else { return };
        for number in statement.numbers() {
            let Some(entry) = session.entries.get_mut(&number) else { continue };
            if let State::Unsettled(others) = &entry.state
                && (others.iter().all(|other| settled.contains(other)) || broken(Mutant::SettledByFew))
            {
                entry.state = State::Ended(Vote::Commit);
                session.forgettable += 1;
                client.unsettled -= 1;
            }
        }
        session.trim();
        directory.change(session.page);
    }

    pub fn encode_client(&self, id: ClientId, out: &mut Vec<u8>) {
        let client = self.clients.get(&id).expect("the directory knows which clients there are");
        id.0.encode(out);
        client.floor.encode(out);
        // Most have all the room there is.
        if client.room < PENDING_MAX {
            (client.room as u64).encode(out);
        }
    }

    pub fn decode_client(&mut self, page: PageNumber, reader: &mut Reader) -> Result<ClientId, DecodeError> {
        let (id, floor) = (ClientId(u64::decode(reader)?), u64::decode(reader)?);
        let room = match reader.remaining() {
            0 => PENDING_MAX,
            _ => match usize::try_from(u64::decode(reader)?) {
                Ok(room) if (1..PENDING_MAX).contains(&room) => room,
                _ => return Err(DecodeError::NotCanonical("the room of a client")),
            },
        };
        let client = Client { page, floor, sessions: BTreeMap::new(), room, pending: Load::default(), unsettled: 0 };
        if self.clients.insert(id, client).is_some() {
            return Err(DecodeError::NotCanonical("the page of a client"));
        }
        Ok(id)
    }

    pub fn encode_session(&self, id: ClientId, number: u64, out: &mut Vec<u8>) {
        let session =
            self.clients.get(&id).and_then(|client| client.sessions.get(&number)).expect("the directory knows which sessions there are");
        id.0.encode(out);
        number.encode(out);
        session.used.encode(out);
        session.floor.encode(out);
        encode_count(session.entries.len(), out);
        for (number, entry) in &session.entries {
            number.encode(out);
            entry.encode(out);
        }
    }

    /// Adds a session that another replica encoded, after its client.
    pub fn decode_session(&mut self, page: PageNumber, reader: &mut Reader) -> Result<(ClientId, u64), DecodeError> {
        let (id, number) = (ClientId(u64::decode(reader)?), u64::decode(reader)?);
        let (used, floor) = (u64::decode(reader)?, u64::decode(reader)?);
        let client = self.clients.get_mut(&id).ok_or(DecodeError::NotCanonical("the page of a session"))?;
        let mut session = Session { page, used, floor, entries: BTreeMap::new(), forgettable: 0 };
        for _ in 0..reader.count("the transactions of a session", usize::MAX)? {
            let (number, entry) = (u64::decode(reader)?, Entry::decode(reader)?);
            session.forgettable += usize::from(entry.state.may_be_forgotten());
            client.unsettled += usize::from(matches!(entry.state, State::Unsettled(_)));
            if session.entries.last_key_value().is_some_and(|(last, _)| *last >= number) {
                return Err(DecodeError::NotCanonical("the page of a session"));
            }
            session.entries.insert(number, entry);
        }
        if client.sessions.insert(number, session).is_some() {
            return Err(DecodeError::NotCanonical("the page of a session"));
        }
        Ok((id, number))
    }
}

impl Encode for Entry {
    fn encode(&self, out: &mut Vec<u8>) {
        self.id.encode(out);
        match &self.state {
            State::Done(verdict) => {
                out.push(1);
                verdict.encode(out);
            }
            State::Pending(page) => {
                out.push(2);
                page.encode(out);
            }
            State::Unsettled(others) => {
                out.push(3);
                types::codec::encode_sequence(others, out);
            }
            State::Ended(decision) => {
                out.push(4);
                decision.encode(out);
            }
        }
    }
}

impl Decode for Entry {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        let id = TransactionId::decode(reader)?;
        let state = match u8::decode(reader)? {
            1 => State::Done(Verdict::decode(reader)?.detached()),
            2 => State::Pending(PageNumber::decode(reader)?),
            3 => State::Unsettled(reader.sequence("shards", SHARDS_MAX)?),
            4 => State::Ended(Vote::decode(reader)?),
            _ => return Err(DecodeError::UnknownTag("what became of a transaction")),
        };
        Ok(Self { id, state })
    }
}
