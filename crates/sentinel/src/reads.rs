//! Requests that change nothing.

use std::collections::BTreeSet;

use jute::permissions::{ADMIN, READ};
use jute::{Acl, Answer, ErrorCode, Id, Operation, OperationResult, ReadOperation, Request};

use crate::acl::{self, Checks};
use crate::limits::{DESCENDANTS_MAX, MULTI_READ_BYTES_MAX, NAMES_BYTES_MAX};
use crate::node::{Data, Node, Part};
use crate::path::{ROOT, split};
use crate::prepare::Proposal;
use crate::state::{Corruption, State};

type Read = Result<Answer, ErrorCode>;

/// What says how long a name is.
const NAME_HEAD_BYTES: usize = 4;
/// The least that a child takes of an answer: its name, and how long that is.
const CHILD_BYTES_MIN: usize = 1 + NAME_HEAD_BYTES;

impl State {
    /// Whether what a request reads is as transactions made it.
    ///
    /// # Errors
    /// When it is not: nothing may be said of it.
    pub(crate) fn look_at_read(&self, request: &Request) -> Result<(), Corruption> {
        match request {
            Request::Exists { path, .. } | Request::GetAcl { path } => self.look_at(path, Part::Head),
            Request::GetData { path, .. } => self.look_at(path, Part::Data),
            Request::GetChildren { path, .. } | Request::GetChildren2 { path, .. } => self.look_at(path, Part::Children),
            // Of all nodes nobody looks for names.
            Request::GetAllChildrenNumber { path } if path != ROOT => self.look_at(path, Part::Children),
            Request::MultiRead(operations) => self.look_at_all(operations),
            Request::SetWatches(watches) => {
                // Each once: a long ACL takes long to look at, and a path that is named again takes hardly anything.
                let paths: BTreeSet<&String> = watches.data.iter().chain(&watches.exist).chain(&watches.child).collect();
                paths.into_iter().try_for_each(|path| self.look_at(path, Part::Head))
            }
            _ => Ok(()),
        }
    }

    /// About how many nodes, names and lines of ACLs a request looks at, as far as that is known before they are counted.
    pub(crate) fn nodes_read(&self, session: i64, request: &Request) -> usize {
        let names = |path: &str| self.nodes.get(path).map_or(0, |node| node.children.len());
        let more = match request {
            Request::Exists { path, .. } | Request::GetData { path, .. } | Request::GetAcl { path } => self.lines(path),
            Request::GetChildren { path, .. } | Request::GetChildren2 { path, .. } => names(path) + self.lines(path),
            Request::MultiRead(operations) => {
                let of = |operation: &ReadOperation| match operation {
                    ReadOperation::GetData { .. } => 1,
                    ReadOperation::GetChildren { path } => 1 + names(path),
                };
                operations.iter().map(of).fold(0, usize::saturating_add)
            }
            Request::GetEphemerals { .. } => self.ephemerals.get(&session).map_or(0, |ephemerals| ephemerals.paths.len()),
            Request::SetWatches(watches) => {
                let lists = [&watches.data, &watches.exist, &watches.child, &watches.persistent, &watches.persistent_recursive];
                lists.iter().map(|list| list.len()).sum()
            }
            _ => 0,
        };
        more.saturating_add(1)
    }

    /// As far as they are read: whoever asks for more than an answer may hold has nobody look at all of that.
    fn look_at_all(&self, operations: &[ReadOperation]) -> Result<(), Corruption> {
        let mut bytes_min = 0;
        for operation in operations.iter() {
            let (ReadOperation::GetData { path } | ReadOperation::GetChildren { path }) = operation;
            let Some(node) = self.nodes.get(path) else { continue };
            let (part, bytes) = match operation {
                ReadOperation::GetData { .. } => (Part::Data, node.data.as_ref().map_or(0, |data| data.len())),
                ReadOperation::GetChildren { .. } => (Part::Children, node.children.len() * CHILD_BYTES_MIN),
            };
            self.look_at(path, part)?;
            bytes_min += bytes;
            if bytes_min > MULTI_READ_BYTES_MAX {
                break;
            }
        }
        Ok(())
    }

    /// Whether the nodes that a request met are as transactions made them that is about to be refused for what they are: nothing of it is applied,
    /// which would show it.
    ///
    /// # Errors
    /// When they are not.
    pub(crate) fn look_at_met(&self, paths: &[String]) -> Result<(), Corruption> {
        let met = paths.iter().flat_map(|path| [Some(path.as_str()), split(path).map(|(parent, _)| parent)]);
        met.flatten().try_for_each(|path| self.look_at(path, Part::Head))
    }

    fn node(&self, path: &str) -> Result<&Node, ErrorCode> {
        // An impossible path is that of no node: only writes are told that it is impossible.
        self.nodes.get(path).ok_or(ErrorCode::NoNode)
    }

    fn readable(&self, path: &str, who: &[Id]) -> Result<&Node, ErrorCode> {
        self.readable_by(path, &mut Checks::new(who))
    }

    fn readable_by(&self, path: &str, checks: &mut Checks<'_>) -> Result<&Node, ErrorCode> {
        let node = self.node(path)?;
        checks.check(&node.acl, READ)?;
        Ok(node)
    }

    /// How many lines of a node's ACL are looked at for who reads it, beside one.
    fn lines(&self, path: &str) -> usize {
        self.nodes.get(path).map_or(0, |node| acl::lines_beside_one(&node.acl))
    }

    pub(crate) fn exists(&self, path: &str, who: &[Id]) -> Read {
        if path.contains('\0') {
            return Err(ErrorCode::BadArguments);
        }
        Ok(Answer::Stat(self.readable(path, who)?.stat()))
    }

    pub(crate) fn data(&self, path: &str, who: &[Id]) -> Read {
        Ok(data(self.readable(path, who)?))
    }

    pub(crate) fn children(&self, path: &str, who: &[Id]) -> Read {
        Ok(Answer::Names(names(self.readable(path, who)?)?))
    }

    pub(crate) fn children_and_stat(&self, path: &str, who: &[Id]) -> Read {
        let node = self.readable(path, who)?;
        Ok(Answer::NamesAndStat { names: names(node)?, stat: node.stat() })
    }

    /// The ACL. Who may not change it is not shown the hashes of passwords.
    pub(crate) fn acl(&self, path: &str, who: &[Id]) -> Read {
        let node = self.node(path)?;
        acl::check(&node.acl, READ | ADMIN, who)?;
        let may_change = acl::check(&node.acl, ADMIN, who).is_ok();
        let shown = |line: &Acl| match line.id.id.split_once(':') {
            Some((user, _)) if line.id.scheme == "digest" && !may_change => {
                Acl { permissions: line.permissions, id: Id::new("digest", &format!("{user}:x")) }
            }
            _ => line.clone(),
        };
        Ok(Answer::Acl { acl: node.acl.iter().map(shown).collect(), stat: node.stat() })
    }

    /// How many nodes there are below `path`, unless they are too many to be counted in one step, and how many were looked at for that.
    pub(crate) fn descendants(&self, path: &str, who: &[Id]) -> (Read, usize) {
        if let Err(code) = self.readable(path, who) {
            return (Err(code), 1);
        }
        let (mut count, mut looked_at) = (0, 0);
        if path == ROOT {
            count = self.nodes.len() - 1;
        } else {
            let mut unseen = vec![path.to_owned()];
            while let Some(next) = unseen.pop() {
                let Some(node) = self.nodes.get(&next) else { continue };
                count += node.children.len();
                looked_at += 1;
                if count > DESCENDANTS_MAX {
                    return (Err(ErrorCode::MarshallingError), looked_at);
                }
                unseen.extend(node.children.names().map(|name| format!("{next}/{name}")));
            }
        }
        (Ok(Answer::Count(i32::try_from(count).unwrap_or(i32::MAX))), looked_at)
    }

    pub(crate) fn ephemerals(&self, session: i64, prefix: &str) -> Read {
        let prefix = prefix.trim();
        let paths = self.ephemerals.get(&session).into_iter().flat_map(|ephemerals| &ephemerals.paths);
        let wanted = paths.filter(|path| prefix == ROOT || path.starts_with(prefix));
        Ok(Answer::Names(wanted.map(|path| path.to_string()).collect()))
    }

    pub(crate) fn multi_read(&self, operations: &[ReadOperation], checks: &mut Checks<'_>) -> Read {
        let mut bytes = 0;
        let mut results = Vec::with_capacity(operations.len());
        for operation in operations {
            let read = match operation {
                ReadOperation::GetData { path } => self.readable_by(path, checks).map(data),
                ReadOperation::GetChildren { path } => self.readable_by(path, checks).and_then(names).map(Answer::Names),
            };
            results.push(match read {
                Ok(Answer::Data { data, stat }) => {
                    bytes += data.as_ref().map_or(0, bytes::Bytes::len);
                    OperationResult::GetData { data, stat }
                }
                Ok(Answer::Names(children)) => {
                    bytes += children.iter().map(|name| name.len() + NAME_HEAD_BYTES).sum::<usize>();
                    OperationResult::GetChildren { children }
                }
                Ok(_) => OperationResult::Error(ErrorCode::SystemError.number()),
                Err(code) => OperationResult::Error(code.number()),
            });
            if bytes > MULTI_READ_BYTES_MAX {
                return Err(ErrorCode::MarshallingError);
            }
        }
        Ok(Answer::Results(results))
    }
}

impl Proposal {
    /// The paths that it names.
    pub(crate) fn paths(&self) -> Vec<String> {
        let of = |operation: &Operation| match operation {
            Operation::Create(create) => create.path.clone(),
            Operation::Delete { path, .. } | Operation::SetData { path, .. } | Operation::Check { path, .. } => path.clone(),
        };
        match self {
            Self::One(operation) => vec![of(operation)],
            Self::Multi(operations) => operations.iter().map(of).collect(),
            Self::SetAcl { path, .. } | Self::Reap { path } => vec![path.clone()],
            Self::CreateSession { .. } | Self::CloseSession | Self::Refused(_) => Vec::new(),
        }
    }
}

fn data(node: &Node) -> Answer {
    Answer::Data { data: node.data.as_ref().map(Data::to_bytes), stat: node.stat() }
}

/// The names of a node's children, unless they are more than an answer may hold.
fn names(node: &Node) -> Result<Vec<String>, ErrorCode> {
    let bytes: usize = node.children.names().map(|name| name.len() + NAME_HEAD_BYTES).sum();
    if bytes > NAMES_BYTES_MAX {
        return Err(ErrorCode::MarshallingError);
    }
    Ok(node.children.names().map(str::to_owned).collect())
}
