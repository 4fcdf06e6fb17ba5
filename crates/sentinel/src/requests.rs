//! Requests of clients: those that write become transactions, the others are answered from the state.

use std::cmp::Ordering;
use std::sync::Arc;

use jute::{
    Answer, ClientInfo, ErrorCode, EventKind, Id, Malformed, NotARequest, Numbered, Operation, OperationResult, Request, SetWatches, Stat,
    WatchMode,
};

use crate::acl::{digest_id, superuser};
use crate::limits::{CREDENTIALS_BYTES_MAX, IDENTITIES_MAX};
use crate::prepare::{Origin, Proposal};
use crate::server::{Committed, ConnectionId, Now, Outbox, Server};
use crate::state::Corruption;
use crate::transaction::{Body, Change};
use crate::watches::TooMany;

/// An event of the past, which has no transaction here.
const NO_ZXID: i64 = -1;

impl Server {
    pub(crate) fn on_request(
        &mut self,
        now: Now,
        connection: ConnectionId,
        request: Result<Numbered, NotARequest>,
        outbox: &mut Outbox,
    ) -> Result<(), Corruption> {
        let Some(known) = self.connections.get_mut(&connection).filter(|known| !known.is_closing) else { return Ok(()) };
        known.received += 1;
        self.statistics.received += 1;
        let Some(session) = known.session else {
            self.close(connection, outbox);
            return Ok(());
        };
        let identities = known.identities.clone();
        self.expiry.renew(session, now.steady_ms);
        let Numbered { xid, request } = match request {
            Ok(request) => request,
            Err(reason) => {
                self.on_malformed(connection, reason, outbox);
                return Ok(());
            }
        };
        let origin = Origin { session, xid, identities: &identities, time_ms: now.wall_ms };
        let answer = match request {
            Request::Create(create) => self.write_one(Operation::Create(create), origin, outbox)?,
            Request::Delete { path, version } => self.write_one(Operation::Delete { path, version }, origin, outbox)?,
            Request::SetData { path, data, version } => self.write_one(Operation::SetData { path, data, version }, origin, outbox)?,
            Request::SetAcl { path, acl, version } => {
                let Committed { applied, .. } = self.commit(Proposal::SetAcl { path, acl, version }, origin, outbox)?;
                applied.map(|applied| applied.stats.first().copied().flatten().map_or(Answer::Empty, Answer::Stat))
            }
            Request::Multi(operations) => self.write_all(operations, origin, outbox)?,
            Request::CloseSession => {
                let Committed { applied: closed, .. } = self.commit(Proposal::CloseSession, origin, outbox)?;
                self.expiry.end(session);
                self.reply(connection, xid, closed.map(|_| Answer::Empty), outbox);
                self.close(connection, outbox);
                return Ok(());
            }
            Request::Auth { scheme, credentials } => {
                self.on_auth(connection, xid, &scheme, &credentials, outbox);
                return Ok(());
            }
            other => self.answer(connection, session, other, &identities, outbox),
        };
        self.reply(connection, xid, answer, outbox);
        Ok(())
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
            _ => {
                self.statistics.auth_failed += 1;
                self.reply(connection, xid, Err(ErrorCode::AuthFailed), outbox);
                self.close(connection, outbox);
                return;
            }
        };
        let Some(known) = self.connections.get_mut(&connection) else { return };
        let identities = Arc::make_mut(&mut known.identities);
        for id in shown {
            if self.settings.superuser.as_ref() == Some(&id.id) && !identities.contains(&superuser()) {
                identities.push(superuser());
            }
            if identities.len() < IDENTITIES_MAX && !identities.contains(&id) {
                identities.push(id);
            }
        }
        self.reply(connection, xid, Ok(Answer::Empty), outbox);
    }

    fn write_one(
        &mut self,
        operation: Operation,
        origin: Origin<'_>,
        outbox: &mut Outbox,
    ) -> Result<Result<Answer, ErrorCode>, Corruption> {
        let wants_stat = wants_stat(&operation);
        let Committed { transaction, applied } = self.commit(Proposal::One(operation), origin, outbox)?;
        let change = match &transaction.body {
            Body::Changes(changes) => changes.first(),
            _ => None,
        };
        Ok(applied.map(|applied| match (change, applied.stats.first().copied().flatten()) {
            (Some(Change::Create { path, .. }), Some(stat)) if wants_stat => Answer::PathAndStat { path: path.clone(), stat },
            (Some(Change::Create { path, .. }), _) => Answer::Path(path.clone()),
            (_, Some(stat)) => Answer::Stat(stat),
            (_, None) => Answer::Empty,
        }))
    }

    fn write_all(
        &mut self,
        operations: Vec<Operation>,
        origin: Origin<'_>,
        outbox: &mut Outbox,
    ) -> Result<Result<Answer, ErrorCode>, Corruption> {
        let wanted: Vec<bool> = operations.iter().map(wants_stat).collect();
        let Committed { transaction, applied } = self.commit(Proposal::Multi(operations), origin, outbox)?;
        let results = match (&transaction.body, applied) {
            (Body::Changes(changes), Ok(applied)) => {
                let each = wanted.iter().zip(changes).zip(applied.stats);
                each.map(|((wants_stat, change), stat)| result(*wants_stat, change, stat)).collect()
            }
            (Body::Failed { code, at }, _) => {
                let failed = *at as usize;
                let error = |place: usize| match place.cmp(&failed) {
                    Ordering::Less => 0,
                    Ordering::Equal => code.number(),
                    Ordering::Greater => ErrorCode::RuntimeInconsistency.number(),
                };
                (0..wanted.len()).map(|place| OperationResult::Error(error(place))).collect()
            }
            (_, applied) => return Ok(applied.map(|_| Answer::Empty)),
        };
        Ok(Ok(Answer::Results(results)))
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
            Request::Sync { path } => Ok(Answer::Path(path)),
            Request::MultiRead(operations) => self.state.multi_read(&operations, who),
            Request::GetEphemerals { prefix } => self.state.ephemerals(session, &prefix),
            Request::GetAllChildrenNumber { path } => self.state.descendants(&path, who),
            Request::AddWatch { path, mode } => {
                self.watches.watch_on(connection, &path, mode)?;
                Ok(Answer::Count(0))
            }
            Request::CheckWatches { path, kind } if self.watches.has(connection, &path, kind) => Ok(Answer::Empty),
            Request::RemoveWatches { path, kind } if self.watches.remove(connection, &path, kind) => Ok(Answer::Empty),
            Request::CheckWatches { .. } | Request::RemoveWatches { .. } => Err(ErrorCode::NoWatcher),
            Request::SetWatches(watches) => self.set_watches(connection, &watches, outbox),
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
