//! What a client sees, held against what the tree was.

use std::collections::BTreeMap;

use jute::{Answer, ErrorCode, EventKind, OperationResult, ReadOperation, Request, SetWatches, Stat};

use super::checker::EnsembleChecker;
use super::client::{Answered, Seen, WatchOn, watched};
use super::model::{Model, Node};

/// By how much a session may end early by its client's own clock, in milliseconds: what a follower heard of travels to the leader now and then.
const SAID_LATE_MS: u64 = 700;

/// What one client has seen so far.
#[derive(Debug, Default)]
pub struct AnswerChecker {
    zxid: i64,
    /// What it waits for, and since which transaction.
    watches: BTreeMap<(WatchOn, String), i64>,
    /// It has come back, and its watches are not set again yet; what it was told that it missed.
    missed: Option<Vec<(EventKind, String)>>,
    /// The server that it is connected with was damaged.
    is_doubtful: bool,
}

impl AnswerChecker {
    /// Takes in what its client has seen next.
    pub fn see(&mut self, client: types::ClientId, seen: Seen, is_healed: bool, checker: &mut EnsembleChecker) {
        match seen {
            Seen::Began(session) => {
                *self = Self { is_doubtful: self.is_doubtful, ..Self::default() };
                checker.began(client, session);
            }
            Seen::Resumed => {
                checker.count_moved();
                self.missed = (!self.watches.is_empty()).then(Vec::new);
            }
            Seen::Expired { session, timeout_ms, unheard_ms } => {
                checker.ended(client, session, self.is_doubtful);
                if is_healed && !self.is_doubtful && unheard_ms + SAID_LATE_MS < timeout_ms {
                    let what = format!("{client} was answered {unheard_ms} ms before its session of {timeout_ms} ms was gone");
                    checker.broken("sessions", what);
                }
            }
            Seen::Ended(session) => checker.ended(client, session, self.is_doubtful),
            Seen::Intruded { session, was_let_in } => {
                if was_let_in {
                    checker.broken("passwords", format!("{client} came into session {session:#x} with a wrong password"));
                }
            }
            Seen::Lost => (self.is_doubtful, self.missed) = (false, None),
            Seen::Doubt => self.is_doubtful = true,
            Seen::Event { event, zxid } => self.on_event(event.kind, &event.path, zxid, checker),
            Seen::Answered(answered) => self.on_answer(client, &answered, checker),
            Seen::Broken(what) => {
                if !self.is_doubtful {
                    checker.broken("sessions", format!("{client}: {what}"));
                }
            }
        }
    }

    fn on_event(&mut self, kind: EventKind, path: &str, zxid: i64, checker: &mut EnsembleChecker) {
        checker.count_event();
        let mut waited = Vec::new();
        for on in [WatchOn::Data, WatchOn::Children] {
            if on.kinds().contains(&kind)
                && let Some(since) = self.watches.remove(&(on, path.to_owned()))
            {
                waited.push((on, since));
            }
        }
        if self.is_doubtful {
            return;
        }
        if let Some(missed) = &mut self.missed {
            missed.push((kind, path.to_owned()));
            return;
        }
        if waited.is_empty() {
            checker.broken("watches", format!("{kind:?} of {path} at {zxid:#x} is told to who does not wait for it"));
        }
        checker.told(zxid);
        for (on, since) in waited {
            let first = checker.model.first_event(path, on.kinds(), (since, zxid));
            if first != Some((zxid, kind)) {
                checker.broken(
                    "watches",
                    format!("a watch on {path} since {since:#x} is told {kind:?} at {zxid:#x}, and first came {first:x?}"),
                );
            }
        }
    }

    fn on_answer(&mut self, client: types::ClientId, answered: &Answered, checker: &mut EnsembleChecker) {
        let zxid = answered.zxid;
        if let Request::SetWatches(watches) = &answered.request {
            self.on_watches_set(watches, zxid, checker);
        }
        if !self.is_doubtful {
            checker.told(zxid);
            if zxid < self.zxid {
                checker.broken("sessions", format!("{client} has seen {:#x}, and is answered as of {zxid:#x}", self.zxid));
            }
            self.check_watches(zxid, checker);
            if let Some(what) = wrong(&checker.model, answered) {
                checker.broken(what.0, format!("{client} in session {:#x}: {}", answered.session, what.1));
            }
            checker.acknowledge(answered);
        }
        self.zxid = self.zxid.max(zxid);
        if let Some((key, _)) = watched(&answered.request, &answered.answer) {
            self.watches.entry(key).or_insert(zxid);
        }
        if matches!(answered.request, Request::CloseSession) && answered.answer.is_ok() {
            checker.ended(client, answered.session, self.is_doubtful);
            *self = Self::default();
        }
    }

    /// Nothing is shown to a client of a change that it waits for before it is told of that.
    fn check_watches(&self, zxid: i64, checker: &mut EnsembleChecker) {
        if self.missed.is_some() {
            return;
        }
        for ((on, path), since) in &self.watches {
            if let Some((at, kind)) = checker.model.first_event(path, on.kinds(), (*since, zxid)) {
                let what = format!("{kind:?} of {path} at {at:#x} was waited for since {since:#x}, and {zxid:#x} is shown before");
                checker.broken("watches", what);
            }
        }
    }

    /// Watches are set again: what has changed since was told.
    fn on_watches_set(&mut self, watches: &SetWatches, zxid: i64, checker: &mut EnsembleChecker) {
        let missed = self.missed.take().unwrap_or_default();
        let since = watches.relative_zxid;
        if !self.is_doubtful {
            checker.told(zxid);
            let lists = [
                (&watches.data, EventKind::DataChanged),
                (&watches.exist, EventKind::Created),
                (&watches.child, EventKind::ChildrenChanged),
            ];
            for (paths, kind) in lists {
                for path in paths {
                    let node = checker.model.at(path, zxid);
                    let expected = match (kind, node) {
                        (EventKind::Created, node) => node.map(|_| kind),
                        (_, None) => Some(EventKind::Deleted),
                        (EventKind::ChildrenChanged, Some(node)) => (node.pzxid > since).then_some(kind),
                        (_, Some(node)) => (node.mzxid > since).then_some(kind),
                    };
                    let is_told = expected.is_some_and(|kind| missed.contains(&(kind, path.clone())));
                    if expected.is_some() != is_told {
                        let what = format!("after {since:#x} {expected:?} of {path} was missed, and told as of {zxid:#x} is {missed:?}");
                        checker.broken("watches", what);
                    }
                }
            }
        }
        self.watches.values_mut().for_each(|from| *from = zxid);
    }
}

type Wrong = Option<(&'static str, String)>;

/// What is wrong with an answer: which promise it breaks, and how.
fn wrong(model: &Model, answered: &Answered) -> Wrong {
    let Answered { session, request, zxid, answer, acknowledged, .. } = answered;
    let node = |path: &str| model.at(path, *zxid);
    match request {
        Request::Ping | Request::SetWatches(_) => None,
        Request::Sync { .. } => {
            (zxid < acknowledged).then(|| ("sync", format!("after {acknowledged:#x} was acknowledged a sync comes to {zxid:#x}")))
        }
        Request::GetData { .. }
        | Request::Exists { .. }
        | Request::GetChildren { .. }
        | Request::GetChildren2 { .. }
        | Request::MultiRead(_)
        | Request::GetAcl { .. } => match answer {
            // Its state has the end of the session, which may be known only here.
            Err(ErrorCode::SessionExpired) => None,
            _ if is_right(request, answer, &node) => None,
            _ => Some((
                "reads",
                format!("at {zxid:#x} {request:?} is answered {answer:?}, and there {} {:?}", session, read_nodes(request, &node)),
            )),
        },
        _ => wrong_write(model, answered),
    }
}

fn read_nodes(request: &Request, node: &impl Fn(&str) -> Option<std::sync::Arc<Node>>) -> Option<std::sync::Arc<Node>> {
    match request {
        Request::GetData { path, .. }
        | Request::Exists { path, .. }
        | Request::GetChildren { path, .. }
        | Request::GetChildren2 { path, .. } => node(path),
        _ => None,
    }
}

fn is_right(request: &Request, answer: &Result<Answer, ErrorCode>, node: &impl Fn(&str) -> Option<std::sync::Arc<Node>>) -> bool {
    let is_names = |names: &[String], node: &Node| {
        let mut sorted = names.to_vec();
        sorted.sort_unstable();
        sorted.iter().eq(node.children.iter())
    };
    let is_data = |data: &Option<bytes::Bytes>, stat: &Stat, node: &Node| *data == node.data && node.is_shown_by(stat);
    match (request, answer) {
        (Request::MultiRead(operations), Ok(Answer::Results(results))) => {
            let is_right = |(operation, result): (&ReadOperation, &OperationResult)| match (operation, result) {
                (ReadOperation::GetData { path }, OperationResult::GetData { data, stat }) => {
                    node(path).is_some_and(|node| is_data(data, stat, &node))
                }
                (ReadOperation::GetChildren { path }, OperationResult::GetChildren { children }) => {
                    node(path).is_some_and(|node| is_names(children, &node))
                }
                (ReadOperation::GetData { path } | ReadOperation::GetChildren { path }, OperationResult::Error(code)) => {
                    *code == ErrorCode::NoNode.number() && node(path).is_none()
                }
                _ => false,
            };
            operations.len() == results.len() && operations.iter().zip(results).all(is_right)
        }
        (Request::GetAcl { path }, Ok(Answer::Acl { stat, .. })) => node(path).is_some_and(|node| node.is_shown_by(stat)),
        (Request::GetData { path, .. }, Ok(Answer::Data { data, stat })) => node(path).is_some_and(|node| is_data(data, stat, &node)),
        (Request::Exists { path, .. }, Ok(Answer::Stat(stat))) => node(path).is_some_and(|node| node.is_shown_by(stat)),
        (Request::GetChildren { path, .. }, Ok(Answer::Names(names))) => node(path).is_some_and(|node| is_names(names, &node)),
        (Request::GetChildren2 { path, .. }, Ok(Answer::NamesAndStat { names, stat })) => {
            node(path).is_some_and(|node| is_names(names, &node) && node.is_shown_by(stat))
        }
        (Request::GetAcl { path }, Err(ErrorCode::NoNode)) => node(path).is_none(),
        (request, Err(ErrorCode::NoNode)) => read_nodes(request, node).is_none(),
        _ => false,
    }
}

/// A write is in the order where its answer says, after all that was acknowledged before it was asked, and its answer is what came of it.
fn wrong_write(model: &Model, answered: &Answered) -> Wrong {
    let Answered { session, xid, request, zxid, answer, acknowledged } = answered;
    if zxid <= acknowledged {
        return Some(("linearizable writes", format!("{request:?} is at {zxid:#x}, and began after {acknowledged:#x} was acknowledged")));
    }
    let Some(delivered) = model.transaction(*zxid) else {
        return Some(("durability", format!("{request:?} is answered {answer:?} at {zxid:#x}, where nothing was delivered")));
    };
    if (delivered.session, delivered.xid) != (*session, *xid) {
        return Some((
            "durability",
            format!("request {xid} of {session:#x} is answered as of {zxid:#x}, where {delivered:?} was delivered"),
        ));
    }
    let node = model.at(path_of(request), *zxid);
    let is_right = match (request, answer) {
        (Request::Multi(_), Ok(Answer::Results(results))) => {
            let has_failed = results.iter().any(|result| matches!(result, OperationResult::Error(_)));
            has_failed == delivered.failed.is_some()
        }
        (_, Err(code)) => delivered.failed == Some(*code) && is_due(*code, request, node.as_deref()),
        (Request::Create(_), Ok(Answer::Path(path))) => model.at(path, *zxid).is_some_and(|node| node.czxid == *zxid),
        (Request::Create(_), Ok(Answer::PathAndStat { path, stat })) => {
            model.at(path, *zxid).is_some_and(|node| node.czxid == *zxid && node.is_shown_by(stat))
        }
        (Request::SetData { data, .. }, Ok(Answer::Stat(stat))) => {
            node.is_some_and(|node| node.mzxid == *zxid && node.data == *data && node.is_shown_by(stat))
        }
        (Request::SetAcl { .. }, Ok(Answer::Stat(stat))) => node.is_some_and(|node| node.is_shown_by(stat)),
        (Request::Delete { .. }, Ok(Answer::Empty)) => node.is_none(),
        (Request::CloseSession, Ok(Answer::Empty)) => !model.is_alive(*session),
        _ => false,
    };
    let what = || format!("{request:?} is answered {answer:?} as of {zxid:#x}, where {delivered:?} was delivered");
    (!is_right || (answer.is_ok() && delivered.failed.is_some() && !matches!(request, Request::Multi(_)))).then(|| ("writes", what()))
}

fn path_of(request: &Request) -> &str {
    match request {
        Request::Create(create) => &create.path,
        Request::SetData { path, .. } | Request::SetAcl { path, .. } | Request::Delete { path, .. } => path,
        _ => "",
    }
}

/// Whether a request must fail for this reason where the node is so.
fn is_due(code: ErrorCode, request: &Request, node: Option<&Node>) -> bool {
    let asked = match request {
        Request::SetData { version, .. } | Request::Delete { version, .. } => *version,
        _ => -1,
    };
    match (code, request) {
        (ErrorCode::NodeExists, _) => node.is_some(),
        (ErrorCode::NoNode, _) => node.is_none(),
        (ErrorCode::BadVersion, _) => node.is_some_and(|node| asked != -1 && node.version != asked),
        (ErrorCode::NotEmpty, _) => node.is_some_and(|node| !node.children.is_empty()),
        (ErrorCode::NoChildrenForEphemerals | ErrorCode::SessionExpired | ErrorCode::SessionMoved, _) => true,
        _ => false,
    }
}
