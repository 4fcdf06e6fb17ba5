//! What a server does for its clients while another leads, or while it leads others.
//!
//! A follower's clients are answered in the order in which they asked. Requests that write go to the leader at once, one behind the other; what
//! is asked behind them waits for them in the connection's queue. When the follower applies what came of a request, it answers.

use jute::{Answer, ErrorCode, NotARequest, Numbered, PASSWORD_BYTES};
use mutants::{Mutant, broken};

use super::message::{Forward, Forwarded, Ordered, OrderedBody, Source};
use crate::limits::{FORWARDED_BYTES_MAX, FORWARDED_MAX};
use crate::prepare::{Origin, Preparer, Proposal};
use crate::requests::{Awaited, Opening, Queued, must_not_be_overtaken, proposal_of};
use crate::server::{ConnectionId, Now, Outbox, Role, Server};
use crate::state::{Applied, Corruption, State};
use crate::transaction::{Body, Transaction};
use crate::watches::Watches;

/// What a request takes in a queue beside its bytes.
const QUEUED_BYTES: usize = 128;

impl Server {
    /// Closes all connections.
    pub(crate) fn close_all(&mut self, outbox: &mut Outbox) {
        outbox.close.extend(self.connections.keys());
        self.connections.clear();
        // All at once: to forget them one by one would take as long as they took to be set.
        self.watches = Watches::default();
        self.by_session.clear();
        self.forwarded.clear();
        (self.forwarded_bytes, self.queued_bytes) = (0, 0);
        self.heard.clear();
    }

    /// Plays another part from now on. Clients have to come back: what became of their requests is not known here.
    pub(crate) fn play(&mut self, role: Role, outbox: &mut Outbox) {
        self.role = role;
        self.close_all(outbox);
        self.owners.clear();
        self.processes.clear();
        if role == Role::Leading {
            self.preparer = Preparer::new(&self.state).with_quotas_enforced(self.enforces_quotas);
            // All have all their time from now on: what the leader before knew of them is not known here.
            self.expiry = Default::default();
            for (id, session) in &self.state.sessions {
                self.expiry.begin(*id, session.timeout_ms, self.steady_ms);
            }
        }
    }

    /// Takes over a state in place of its own.
    pub(crate) fn install(&mut self, state: State) {
        self.state = state;
        self.preparer = Preparer::new(&self.state).with_quotas_enforced(self.enforces_quotas);
    }

    // As a follower.

    /// Whether no more requests of clients are to be taken for now.
    pub(crate) fn is_forwarding_much(&self) -> bool {
        self.forwarded.len() >= FORWARDED_MAX || self.forwarded_bytes + self.queued_bytes >= FORWARDED_BYTES_MAX
    }

    fn forward(&mut self, connection: ConnectionId, forward: Forward, outbox: &mut Outbox) {
        let bytes = forward.bytes();
        self.forwarded.push_back((connection, bytes));
        self.forwarded_bytes += bytes;
        outbox.forwards.push(forward);
    }

    pub(crate) fn forward_session(&mut self, connection: ConnectionId, proposal: Proposal, opening: Opening, outbox: &mut Outbox) {
        let Proposal::CreateSession { timeout_ms, password } = proposal else { return };
        let session = opening.session;
        if let Some(known) = self.connections.get_mut(&connection) {
            known.queue.push_back(Queued::Awaits { xid: 0, awaited: Awaited::Session(opening) });
        }
        let what = Forwarded::CreateSession { timeout_ms, password };
        self.forward(connection, Forward { session, identities: Vec::new(), what }, outbox);
    }

    pub(crate) fn forward_claim(&mut self, connection: ConnectionId, opening: Opening, password: &[u8], outbox: &mut Outbox) {
        // A password of another length is nobody's.
        let claimed = password.try_into().ok().map(|password| (opening.session, password));
        let (session, password) = claimed.unwrap_or((0, [0; PASSWORD_BYTES]));
        if let Some(known) = self.connections.get_mut(&connection) {
            known.queue.push_back(Queued::Awaits { xid: 0, awaited: Awaited::Session(opening) });
        }
        self.forward(connection, Forward { session, identities: Vec::new(), what: Forwarded::Barrier { password } }, outbox);
    }

    /// Has a request ordered, if it is one that is.
    fn forward_request(&mut self, connection: ConnectionId, numbered: &Numbered, outbox: &mut Outbox) -> Option<Queued> {
        let (_, awaited) = proposal_of(numbered.request.clone()).ok()?;
        let known = self.connections.get(&connection)?;
        let (session, identities) = (known.session?, known.identities.to_vec());
        let forward = match &awaited {
            Awaited::Sync { .. } => {
                Forward { session: 0, identities: Vec::new(), what: Forwarded::Barrier { password: [0; PASSWORD_BYTES] } }
            }
            _ => Forward { session, identities, what: Forwarded::Request(numbered.clone()) },
        };
        self.forward(connection, forward, outbox);
        Some(Queued::Awaits { xid: numbered.xid, awaited })
    }

    /// A follower's client asks for something.
    pub(crate) fn on_request_following(&mut self, connection: ConnectionId, request: Result<Numbered, NotARequest>, outbox: &mut Outbox) {
        let Some(known) = self.connections.get(&connection) else { return };
        let may_go_ahead = known.session.is_some() && known.blocking_queued == 0;
        if may_go_ahead
            && let Ok(numbered) = &request
            && let Some(awaits) = self.forward_request(connection, numbered, outbox)
        {
            if let Some(known) = self.connections.get_mut(&connection) {
                known.queue.push_back(awaits);
            }
            return;
        }
        if !is_blocking(&request) && broken(Mutant::ReadsOvertake) {
            return self.on_request_here(connection, request, outbox);
        }
        let Some(known) = self.connections.get_mut(&connection) else { return };
        known.blocking_queued += usize::from(is_blocking(&request));
        let bytes = QUEUED_BYTES + request.as_ref().map_or(0, length);
        self.queued_bytes += bytes;
        known.queue.push_back(Queued::Request { request, bytes });
        self.answer_queued(connection, outbox);
    }

    /// Answers what waits for nothing any more.
    fn answer_queued(&mut self, connection: ConnectionId, outbox: &mut Outbox) {
        loop {
            let Some(known) = self.connections.get_mut(&connection).filter(|known| !known.is_closing) else { return };
            let Some(Queued::Request { .. }) = known.queue.front() else { return };
            if self.work.is_too_much() {
                // What comes back next is applied before the next turn: these would be answered as of a later time than they were asked for.
                self.close(connection, outbox);
                return;
            }
            let Some(Queued::Request { request, bytes }) = known.queue.pop_front() else { return };
            self.queued_bytes -= bytes;
            known.blocking_queued -= usize::from(is_blocking(&request));
            if let Ok(numbered) = &request
                && let Some(awaits) = self.forward_request(connection, numbered, outbox)
            {
                if let Some(known) = self.connections.get_mut(&connection) {
                    known.queue.push_front(awaits);
                }
                return;
            }
            self.on_request_here(connection, request, outbox);
        }
    }

    /// Applies what was ordered. `is_own` says whether a client of this server asked for it.
    ///
    /// # Errors
    /// When this state is not the one that was foreseen.
    pub(crate) fn apply_ordered(&mut self, is_own: bool, body: OrderedBody, outbox: &mut Outbox) -> Result<(), Corruption> {
        let done = match body {
            OrderedBody::Barrier { session } => {
                if !is_own && session != 0 {
                    self.leave(session, outbox);
                }
                None
            }
            OrderedBody::Comparison { .. } => None,
            OrderedBody::Transaction(transaction) => {
                let mut applied = self.state.apply(&transaction)?;
                self.state.check_applied(&transaction, &applied)?;
                self.statistics.transactions += 1;
                self.commits.count(&transaction);
                for event in std::mem::take(&mut applied.events) {
                    self.fire(event, transaction.zxid, outbox);
                }
                let ended = matches!(transaction.body, Body::CloseSession { .. }).then_some(transaction.session);
                if let Some(session) = ended.filter(|_| !is_own) {
                    self.leave(session, outbox);
                }
                Some((transaction, applied))
            }
        };
        if is_own {
            self.answer_forwarded(done, outbox);
        }
        Ok(())
    }

    /// The session is somewhere else, or nowhere.
    fn leave(&mut self, session: i64, outbox: &mut Outbox) {
        if let Some(connection) = self.by_session.remove(&session) {
            self.forget_watches(connection);
            self.close(connection, outbox);
        }
    }

    /// The oldest request at the leader came back.
    fn answer_forwarded(&mut self, done: Option<(Transaction, Applied)>, outbox: &mut Outbox) {
        let Some((connection, bytes)) = self.forwarded.pop_front() else { return };
        self.forwarded_bytes -= bytes;
        let Some(known) = self.connections.get_mut(&connection).filter(|known| !known.is_closing) else { return };
        let Some(Queued::Awaits { xid, awaited }) = known.queue.pop_front() else { return };
        match (awaited, done) {
            (Awaited::Session(opening), Some((Transaction { body: Body::Failed { .. }, .. }, _))) => {
                // Its number was taken: the client draws another one with its next connection.
                drop(opening);
                self.close(connection, outbox);
            }
            (Awaited::Session(opening), _) => self.open_session(connection, opening, outbox),
            (Awaited::Sync { path }, _) => self.reply(connection, xid, Ok(Answer::Path(path)), outbox),
            (awaited, Some((transaction, applied))) => {
                let is_last = matches!(awaited, Awaited::Close);
                let answer = awaited.answer(&transaction, applied);
                self.reply(connection, xid, answer, outbox);
                if is_last {
                    self.close(connection, outbox);
                }
            }
            (_, None) => self.close(connection, outbox),
        }
        self.answer_queued(connection, outbox);
    }

    // As the leader.

    /// Whether a session was heard of at another server than the one that asks.
    fn has_moved(&mut self, session: i64, server: u16) -> bool {
        let is_elsewhere = self.state.sessions.contains_key(&session) && *self.owners.entry(session).or_insert(server) != server;
        is_elsewhere && !broken(Mutant::MovedSessionObeyed)
    }

    /// Whether this is the password of a session that is there.
    pub(crate) fn is_password(&self, session: i64, password: &[u8]) -> bool {
        // In constant time.
        let differs = |known: &[u8; PASSWORD_BYTES]| known.iter().zip(password).fold(0, |differs, (one, other)| differs | (one ^ other));
        let is_same =
            |known: &[u8; PASSWORD_BYTES]| (password.len() == known.len() && differs(known) == 0) || broken(Mutant::PasswordUnchecked);
        self.state.sessions.get(&session).is_some_and(|known| is_same(&known.password))
    }

    /// As the leader: a client comes back to a session at server `source`. Without its password it moves nothing.
    pub(crate) fn claim(&mut self, source: Source, session: i64, password: &[u8], outbox: &mut Outbox) {
        let is_allowed = self.is_password(session, password);
        if is_allowed {
            self.owners.insert(session, source.server);
            self.expiry.renew(session, self.steady_ms);
            if source != Source::default() {
                self.leave(session, outbox);
            }
        }
        self.order_barrier(source, if is_allowed { session } else { 0 }, outbox);
    }

    /// As the leader: makes a place in the order that changes nothing.
    pub(crate) fn order_barrier(&mut self, source: Source, session: i64, outbox: &mut Outbox) {
        self.order_nothing(source, OrderedBody::Barrier { session }, outbox);
    }

    /// As the leader: makes a place in the order where all compare their states with that of `server`.
    pub(crate) fn order_comparison(&mut self, server: u16, outbox: &mut Outbox) {
        self.order_nothing(Source::default(), OrderedBody::Comparison { server }, outbox);
    }

    fn order_nothing(&mut self, source: Source, body: OrderedBody, outbox: &mut Outbox) {
        let next = self.preparer.next_zxid();
        self.preparer.go_on_before(next + 1);
        outbox.ordered.push(Ordered { source, body });
    }

    /// As the leader: what a follower's client asks for.
    pub(crate) fn on_forwarded(&mut self, now: Now, source: Source, forward: Forward, outbox: &mut Outbox) -> Result<(), Corruption> {
        let Forward { session, identities, what } = forward;
        self.steady_ms = now.steady_ms;
        let (proposal, xid) = match what {
            Forwarded::Barrier { password } => {
                self.claim(source, session, &password, outbox);
                return Ok(());
            }
            Forwarded::CreateSession { timeout_ms, password } => (Proposal::CreateSession { timeout_ms, password }, 0),
            Forwarded::Request(Numbered { xid, request }) => {
                self.expiry.renew(session, now.steady_ms);
                let proposal = match proposal_of(request) {
                    _ if self.has_moved(session, source.server) => Proposal::Refused(ErrorCode::SessionMoved),
                    Ok((proposal, _)) => proposal,
                    // Nobody forwards this.
                    Err(_) => Proposal::Refused(ErrorCode::Unimplemented),
                };
                (proposal, xid)
            }
        };
        self.source = source;
        let origin = Origin { session, xid, identities: &identities, time_ms: now.wall_ms };
        let committed = self.commit(proposal, origin, outbox);
        self.source = Source::default();
        let committed = committed?;
        match committed.transaction.body {
            Body::CreateSession { .. } => drop(self.owners.insert(session, source.server)),
            Body::CloseSession { .. } => self.leave(session, outbox),
            Body::Changes(_) | Body::Failed { .. } => {}
        }
        Ok(())
    }
}

/// How many bytes a request has.
fn length(numbered: &Numbered) -> usize {
    let mut body = Vec::new();
    numbered.encode(&mut body);
    body.len()
}

fn is_blocking(request: &Result<Numbered, NotARequest>) -> bool {
    request.as_ref().is_ok_and(|numbered| must_not_be_overtaken(&numbered.request))
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use bytes::Bytes;
    use jute::{Operation, Request};

    use super::*;
    use crate::digest::Profile;
    use crate::limits::HELD_BYTES_MAX;
    use crate::server::{Input, Peer, Settings};

    const ANN: ConnectionId = ConnectionId(1);
    const BOB: ConnectionId = ConnectionId(2);

    fn follower(now: Now) -> Server {
        let mut state = State::new(Profile::Off, 1);
        (1..=2).for_each(|session| state.put_session(session, 10_000, [1; PASSWORD_BYTES]));
        let settings = Settings {
            server_id: 1,
            timeout_ms_min: 1_000,
            timeout_ms_max: 20_000,
            reap_every_ms: 60_000,
            words: None,
            superuser: None,
            secret: [1; 32],
            configuration: Vec::new(),
        };
        let mut server = Server::new(state, settings, now);
        let mut outbox = Outbox::default();
        server.play(Role::Following { observes: false }, &mut outbox);
        for (connection, session) in [(ANN, 1), (BOB, 2)] {
            let peer = Peer { address: IpAddr::V4(Ipv4Addr::LOCALHOST), port: 1, certificate: None };
            server.step(now, Input::Opened { connection, peer }, &mut outbox);
            server.connections.get_mut(&connection).expect("it was just opened").session = Some(session);
        }
        server
    }

    #[test]
    fn what_waits_behind_a_write_is_answered_up_to_so_much() {
        let now = Now { wall_ms: 1, steady_ms: 1 };
        let mut server = follower(now);
        let mut outbox = Outbox::default();
        let data = Some(Bytes::from(vec![1; 4 << 20]));
        let path = || "/zookeeper".to_owned();
        let ask = |server: &mut Server, connection, request, outbox: &mut Outbox| {
            server.step(now, Input::Request { connection, request: Ok(Numbered { xid: 1, request }) }, outbox);
        };
        ask(&mut server, ANN, Request::SetData { path: path(), data: data.clone(), version: -1 }, &mut outbox);
        for _ in 0..30 {
            ask(&mut server, ANN, Request::GetData { path: path(), watch: false }, &mut outbox);
        }
        assert_eq!((outbox.forwards.len(), outbox.bytes.len()), (1, 0), "all waits for the write");
        let write = Proposal::One(Operation::SetData { path: path(), data, version: -1 });
        let origin = Origin { session: 1, xid: 1, identities: &[], time_ms: 1 };
        let transaction = Preparer::new(&server.state).prepare(&server.state, write, origin);
        server.begin_turn();
        server.apply_ordered(true, OrderedBody::Transaction(transaction), &mut outbox).expect("it is what was asked for");
        let said = outbox.bytes.get(&ANN).map_or(0, Vec::len);
        assert!((HELD_BYTES_MAX..HELD_BYTES_MAX + (5 << 20)).contains(&said), "{said} bytes are said");
        assert!(outbox.close.contains(&ANN), "its client has to ask again");
        server.begin_turn();
        ask(&mut server, BOB, Request::GetData { path: path(), watch: false }, &mut outbox);
        assert!(outbox.bytes.contains_key(&BOB) && !outbox.close.contains(&BOB), "others are served");
    }
}
