//! Requests of clients: those that write become transactions, the others are answered from the state.

use std::cmp::Ordering;
use std::sync::Arc;

use jute::{
    Answer, ClientInfo, ErrorCode, EventKind, Id, Malformed, NotARequest, Numbered, Operation, OperationResult, Request, SetWatches, Stat,
    WatchMode,
};
use mutants::{Mutant, broken};

use crate::acl::{Checks, digest_id, superuser};
use crate::ensemble::message::Source;
use crate::limits::{CREDENTIALS_BYTES_MAX, IDENTITIES_MAX};
use crate::prepare::{Origin, Proposal};
use crate::server::{Committed, ConnectionId, Now, Outbox, Role, Server};
use crate::state::{Applied, Corruption};
use crate::transaction::{Body, Change, Transaction};
use crate::watches::TooMany;

/// An event of the past, which has no transaction here.
const NO_ZXID: i64 = -1;

/// A session that begins, or is resumed.
#[derive(Clone, Debug)]
pub(crate) struct Opening {
    pub(crate) session: i64,
    /// What the client shows in order to resume it; nothing where it begins.
    pub(crate) password: Option<Vec<u8>>,
    pub(crate) last_zxid_seen: i64,
    pub(crate) read_only: Option<bool>,
}

/// What is to be answered when a request is ordered.
#[derive(Clone, Debug)]
pub(crate) enum Awaited {
    One {
        wants_stat: bool,
    },
    /// A multi, with what each of its operations wants.
    All {
        wanted: Vec<bool>,
    },
    SetAcl,
    Close,
    Sync {
        path: String,
    },
    Session(Opening),
}

/// What a connection at a follower has not been answered yet.
#[derive(Clone, Debug)]
pub(crate) enum Queued {
    /// It is at the leader.
    Awaits { xid: i32, awaited: Awaited },
    /// It waits for what is before it.
    Request { request: Result<Numbered, NotARequest>, bytes: usize },
}

/// Whether what is to be ordered waits behind it: it changes who the client is, or is to be ordered itself.
pub(crate) fn must_not_be_overtaken(request: &Request) -> bool {
    matches!(
        request,
        Request::Auth { .. }
            | Request::Create(_)
            | Request::Delete { .. }
            | Request::SetData { .. }
            | Request::SetAcl { .. }
            | Request::Multi(_)
            | Request::CloseSession
            | Request::Sync { .. }
    )
}

/// What a request proposes that has to be ordered, and what is answered then; or the request, if it is none.
pub(crate) fn proposal_of(request: Request) -> Result<(Proposal, Awaited), Box<Request>> {
    let one = |operation: Operation| {
        let wants_stat = wants_stat(&operation);
        (Proposal::One(operation), Awaited::One { wants_stat })
    };
    Ok(match request {
        Request::Create(create) => one(Operation::Create(create)),
        Request::Delete { path, version } => one(Operation::Delete { path, version }),
        Request::SetData { path, data, version } => one(Operation::SetData { path, data, version }),
        Request::SetAcl { path, acl, version } => (Proposal::SetAcl { path, acl, version }, Awaited::SetAcl),
        Request::Multi(operations) => {
            let wanted = operations.iter().map(wants_stat).collect();
            (Proposal::Multi(operations), Awaited::All { wanted })
        }
        Request::CloseSession => (Proposal::CloseSession, Awaited::Close),
        Request::Sync { path } => (Proposal::Refused(ErrorCode::Unimplemented), Awaited::Sync { path }),
        other => return Err(Box::new(other)),
    })
}

impl Awaited {
    /// The answer, once the transaction was applied.
    pub(crate) fn answer(self, transaction: &Transaction, applied: Applied) -> Result<Answer, ErrorCode> {
        let code = match &transaction.body {
            Body::Failed { code, .. } => Some(*code),
            _ => None,
        };
        let stat = applied.stats.first().copied().flatten();
        match (self, code) {
            (Self::All { wanted }, _) => all_answer(&wanted, transaction, applied),
            (_, Some(code)) => Err(code),
            (Self::One { wants_stat }, None) => {
                let change = match &transaction.body {
                    Body::Changes(changes) => changes.first(),
                    _ => None,
                };
                Ok(match (change, stat) {
                    (Some(Change::Create { path, .. }), Some(stat)) if wants_stat => Answer::PathAndStat { path: path.clone(), stat },
                    (Some(Change::Create { path, .. }), _) => Answer::Path(path.clone()),
                    (_, Some(stat)) => Answer::Stat(stat),
                    (_, None) => Answer::Empty,
                })
            }
            (Self::SetAcl, None) => Ok(stat.map_or(Answer::Empty, Answer::Stat)),
            (Self::Close | Self::Session(_), None) => Ok(Answer::Empty),
            (Self::Sync { path }, None) => Ok(Answer::Path(path)),
        }
    }
}

fn all_answer(wanted: &[bool], transaction: &Transaction, applied: Applied) -> Result<Answer, ErrorCode> {
    let results = match &transaction.body {
        Body::Changes(changes) => {
            let each = wanted.iter().zip(changes).zip(applied.stats);
            each.map(|((wants_stat, change), stat)| result(*wants_stat, change, stat)).collect()
        }
        Body::Failed { code, at } => {
            let failed = *at as usize;
            let error = |place: usize| match place.cmp(&failed) {
                Ordering::Less => 0,
                Ordering::Equal => code.number(),
                Ordering::Greater => ErrorCode::RuntimeInconsistency.number(),
            };
            (0..wanted.len()).map(|place| OperationResult::Error(error(place))).collect()
        }
        _ => return Ok(Answer::Empty),
    };
    Ok(Answer::Results(results))
}

impl Server {
    pub(crate) fn on_request(
        &mut self,
        now: Now,
        connection: ConnectionId,
        request: Result<Numbered, NotARequest>,
        outbox: &mut Outbox,
    ) -> Result<(), Corruption> {
        let role = self.role;
        let Some(known) = self.connections.get_mut(&connection).filter(|known| !known.is_closing) else { return Ok(()) };
        known.received += 1;
        self.statistics.received += 1;
        let is_opening = !known.queue.is_empty();
        if let Some(session) = known.session {
            self.hear_of(session);
        } else if !is_opening || role == Role::Looking {
            self.close(connection, outbox);
            return Ok(());
        }
        match (role, request) {
            (Role::Looking, _) => self.close(connection, outbox),
            (Role::Following { .. }, request) => self.on_request_following(connection, request, outbox),
            (Role::Alone | Role::Leading, Ok(Numbered { xid, request })) => match proposal_of(request) {
                Ok((proposal, awaited)) => return self.on_write(now, connection, xid, proposal, awaited, outbox),
                Err(request) => self.on_request_here(connection, Ok(Numbered { xid, request: *request }), outbox),
            },
            (Role::Alone | Role::Leading, Err(reason)) => self.on_request_here(connection, Err(reason), outbox),
        }
        Ok(())
    }

    /// Orders a request of a client of this server, which prepares itself, and answers.
    fn on_write(
        &mut self,
        now: Now,
        connection: ConnectionId,
        xid: i32,
        proposal: Proposal,
        awaited: Awaited,
        outbox: &mut Outbox,
    ) -> Result<(), Corruption> {
        let Some(known) = self.connections.get(&connection) else { return Ok(()) };
        let Some(session) = known.session else { return Ok(()) };
        let identities = known.identities.clone();
        if let Awaited::Sync { path } = awaited {
            let is_there = self.state.sessions.contains_key(&session);
            if self.role == Role::Leading && !broken(Mutant::SyncUnordered) {
                // Answered when a majority has it: until then another may lead.
                self.order_barrier(Source::default(), 0, outbox);
            }
            let answer = if is_there { Ok(Answer::Path(path)) } else { Err(ErrorCode::SessionExpired) };
            self.reply(connection, xid, answer, outbox);
            return Ok(());
        }
        let origin = Origin { session, xid, identities: &identities, time_ms: now.wall_ms };
        let Committed { transaction, applied } = self.commit(proposal, origin, outbox)?;
        let is_last = matches!(awaited, Awaited::Close);
        let answer = awaited.answer(&transaction, applied);
        self.reply(connection, xid, answer, outbox);
        if is_last {
            self.close(connection, outbox);
        }
        Ok(())
    }

    /// Answers what is not ordered.
    pub(crate) fn on_request_here(&mut self, connection: ConnectionId, request: Result<Numbered, NotARequest>, outbox: &mut Outbox) {
        let Some(known) = self.connections.get(&connection) else { return };
        let Some(session) = known.session else { return };
        let identities = known.identities.clone();
        match request {
            Err(reason) => self.on_malformed(connection, reason, outbox),
            Ok(Numbered { xid, request: Request::Auth { scheme, credentials } }) => {
                self.on_auth(connection, xid, &scheme, &credentials, outbox);
            }
            Ok(Numbered { xid, request }) => {
                if let Err(corruption) = self.state.look_at_read(&request) {
                    self.stop(corruption, outbox);
                    return;
                }
                self.work.nodes = self.work.nodes.saturating_add(self.state.nodes_read(session, &request));
                let answer = self.answer(connection, session, request, &identities, outbox);
                self.reply(connection, xid, answer, outbox);
            }
        }
    }

    fn on_malformed(&mut self, connection: ConnectionId, reason: NotARequest, outbox: &mut Outbox) {
        self.statistics.malformed += 1;
        match reason {
            NotARequest::Head => self.close(connection, outbox),
            NotARequest::Unknown { xid, .. } => {
                self.reply(connection, xid, Err(ErrorCode::Unimplemented), outbox);
                self.close(connection, outbox);
            }
            NotARequest::Record { xid, reason: Malformed::Unknown(_), .. } => {
                self.reply(connection, xid, Err(ErrorCode::BadArguments), outbox);
            }
            NotARequest::Record { xid, .. } => self.reply(connection, xid, Err(ErrorCode::MarshallingError), outbox),
        }
    }

    fn on_auth(&mut self, connection: ConnectionId, xid: i32, scheme: &str, credentials: &[u8], outbox: &mut Outbox) {
        let shown = match (scheme, std::str::from_utf8(credentials)) {
            ("digest", Ok(text)) if text.len() <= CREDENTIALS_BYTES_MAX => vec![digest_id(text)],
            // Its address is known already.
            ("ip", _) => Vec::new(),
            _ => return self.fail_auth(connection, xid, outbox),
        };
        let Some(known) = self.connections.get_mut(&connection) else { return };
        let identities = Arc::make_mut(&mut known.identities);
        if identities.len() >= IDENTITIES_MAX && shown.iter().any(|id| !identities.contains(id)) {
            // It would be told that it is somebody whom it is not taken for.
            self.fail_auth(connection, xid, outbox);
            return;
        }
        for id in shown {
            if self.settings.superuser.as_ref() == Some(&id.id) && !identities.contains(&superuser()) {
                identities.push(superuser());
            }
            if !identities.contains(&id) {
                identities.push(id);
            }
        }
        self.reply(connection, xid, Ok(Answer::Empty), outbox);
    }

    fn fail_auth(&mut self, connection: ConnectionId, xid: i32, outbox: &mut Outbox) {
        self.statistics.auth_failed += 1;
        self.reply(connection, xid, Err(ErrorCode::AuthFailed), outbox);
        self.close(connection, outbox);
    }

    /// Answers what changes nothing but watches.
    fn answer(
        &mut self,
        connection: ConnectionId,
        session: i64,
        request: Request,
        who: &[Id],
        outbox: &mut Outbox,
    ) -> Result<Answer, ErrorCode> {
        if !self.state.sessions.contains_key(&session) {
            return Err(ErrorCode::SessionExpired);
        }
        match request {
            Request::Exists { path, watch } => {
                let found = self.state.exists(&path, who);
                if watch && matches!(found, Ok(_) | Err(ErrorCode::NoNode)) {
                    self.watches.watch_data(connection, &path)?;
                }
                found
            }
            Request::GetData { path, watch } => {
                let found = self.state.data(&path, who)?;
                if watch {
                    self.watches.watch_data(connection, &path)?;
                }
                Ok(found)
            }
            Request::GetChildren { path, watch } => {
                let found = self.state.children(&path, who)?;
                if watch {
                    self.watches.watch_children(connection, &path)?;
                }
                Ok(found)
            }
            Request::GetChildren2 { path, watch } => {
                let found = self.state.children_and_stat(&path, who)?;
                if watch {
                    self.watches.watch_children(connection, &path)?;
                }
                Ok(found)
            }
            Request::GetAcl { path } => self.state.acl(&path, who),
            Request::MultiRead(operations) => {
                let mut checks = Checks::new(who);
                let read = self.state.multi_read(&operations, &mut checks);
                self.work.nodes = self.work.nodes.saturating_add(checks.lines());
                read
            }
            Request::GetEphemerals { prefix } => self.state.ephemerals(session, &prefix),
            Request::GetAllChildrenNumber { path } => {
                let (count, looked_at) = self.state.descendants(&path, who);
                self.work.nodes = self.work.nodes.saturating_add(looked_at);
                count
            }
            Request::AddWatch { path, mode } => {
                self.watches.watch_on(connection, &path, mode)?;
                Ok(Answer::Count(0))
            }
            Request::CheckWatches { path, kind } if self.watches.has(connection, &path, kind) => Ok(Answer::Empty),
            Request::RemoveWatches { path, kind } if self.watches.remove(connection, &path, kind) => Ok(Answer::Empty),
            Request::CheckWatches { .. } | Request::RemoveWatches { .. } => Err(ErrorCode::NoWatcher),
            Request::SetWatches(watches) => {
                // Clients do not look at what comes of this: one that cannot have all its watches is sent to another server.
                self.set_watches(connection, &watches, outbox).inspect_err(|_| self.close(connection, outbox))
            }
            Request::WhoAmI => Ok(Answer::Clients(who.iter().map(client_info).collect())),
            Request::Ping => Ok(Answer::Empty),
            Request::Reconfig => Err(ErrorCode::ReconfigDisabled),
            _ => Err(ErrorCode::Unimplemented),
        }
    }

    /// A client has come back: it hears of what it missed, and watches on.
    fn set_watches(&mut self, connection: ConnectionId, watches: &SetWatches, outbox: &mut Outbox) -> Result<Answer, ErrorCode> {
        let since = watches.relative_zxid;
        let lists =
            [(&watches.data, EventKind::DataChanged), (&watches.exist, EventKind::Created), (&watches.child, EventKind::ChildrenChanged)];
        for (paths, kind) in lists {
            for path in paths {
                let stat = self.state.nodes.get(path).map(|node| node.stat);
                let missed = match (kind, stat) {
                    (EventKind::Created, found) => found.map(|_| kind),
                    (_, None) => Some(EventKind::Deleted),
                    (EventKind::ChildrenChanged, Some(stat)) => (stat.pzxid > since).then_some(kind),
                    (_, Some(stat)) => (stat.mzxid > since).then_some(kind),
                };
                match missed {
                    Some(_) if broken(Mutant::MissedUntold) => {}
                    Some(kind) => self.tell(connection, kind, path, NO_ZXID, outbox),
                    None if kind == EventKind::ChildrenChanged => self.watches.watch_children(connection, path)?,
                    None => self.watches.watch_data(connection, path)?,
                }
            }
        }
        for path in &watches.persistent {
            self.watches.watch_on(connection, path, WatchMode::Persistent)?;
        }
        for path in &watches.persistent_recursive {
            self.watches.watch_on(connection, path, WatchMode::PersistentRecursive)?;
        }
        Ok(Answer::Empty)
    }
}

impl From<TooMany> for ErrorCode {
    fn from(_: TooMany) -> Self {
        Self::QuotaExceeded
    }
}

fn wants_stat(operation: &Operation) -> bool {
    matches!(operation, Operation::Create(create) if create.wants_stat)
}

/// What the client is told of one change of a multi.
fn result(wants_stat: bool, change: &Change, stat: Option<Stat>) -> OperationResult {
    match (change, stat) {
        (Change::Create { path, .. }, Some(stat)) if wants_stat => OperationResult::CreateWithStat { path: path.clone(), stat },
        (Change::Create { path, .. }, _) => OperationResult::Create { path: path.clone() },
        (Change::SetData { .. }, Some(stat)) => OperationResult::SetData { stat },
        (Change::Check { .. }, _) => OperationResult::Check,
        _ => OperationResult::Delete,
    }
}

/// Who somebody is, without any password.
fn client_info(id: &Id) -> ClientInfo {
    let user = if id.scheme == "digest" { id.id.split(':').next().unwrap_or_default() } else { &id.id };
    ClientInfo { scheme: id.scheme.clone(), user: user.to_owned() }
}
