//! Requests that change nothing.

use jute::permissions::{ADMIN, READ};
use jute::{Acl, Answer, ErrorCode, Id, OperationResult, ReadOperation};

use crate::acl;
use crate::limits::MULTI_READ_BYTES_MAX;
use crate::node::Node;
use crate::path::ROOT;
use crate::state::State;

type Read = Result<Answer, ErrorCode>;

impl State {
    fn node(&self, path: &str) -> Result<&Node, ErrorCode> {
        // An impossible path is that of no node: only writes are told that it is impossible.
        self.nodes.get(path).ok_or(ErrorCode::NoNode)
    }

    fn readable(&self, path: &str, who: &[Id]) -> Result<&Node, ErrorCode> {
        let node = self.node(path)?;
        acl::check(&node.acl, READ, who)?;
        Ok(node)
    }

    pub(crate) fn exists(&self, path: &str, who: &[Id]) -> Read {
        if path.contains('\0') {
            return Err(ErrorCode::BadArguments);
        }
        Ok(Answer::Stat(self.readable(path, who)?.stat()))
    }

    pub(crate) fn data(&self, path: &str, who: &[Id]) -> Read {
        let node = self.readable(path, who)?;
        Ok(Answer::Data { data: node.data.clone(), stat: node.stat() })
    }

    pub(crate) fn children(&self, path: &str, who: &[Id]) -> Read {
        Ok(Answer::Names(names(self.readable(path, who)?)))
    }

    pub(crate) fn children_and_stat(&self, path: &str, who: &[Id]) -> Read {
        let node = self.readable(path, who)?;
        Ok(Answer::NamesAndStat { names: names(node), stat: node.stat() })
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

    /// How many nodes there are below `path`.
    pub(crate) fn descendants(&self, path: &str, who: &[Id]) -> Read {
        self.readable(path, who)?;
        let mut count = 0_usize;
        if path == ROOT {
            count = self.nodes.len() - 1;
        } else {
            let mut unseen = vec![path.to_owned()];
            while let Some(next) = unseen.pop() {
                let Some(node) = self.nodes.get(&next) else { continue };
                count += node.children.len();
                unseen.extend(node.children.names().map(|name| format!("{next}/{name}")));
            }
        }
        Ok(Answer::Count(i32::try_from(count).unwrap_or(i32::MAX)))
    }

    pub(crate) fn ephemerals(&self, session: i64, prefix: &str) -> Read {
        let prefix = prefix.trim();
        let paths = self.ephemerals.get(&session).into_iter().flat_map(|ephemerals| &ephemerals.paths);
        let wanted = paths.filter(|path| prefix == ROOT || path.starts_with(prefix));
        Ok(Answer::Names(wanted.map(|path| path.to_string()).collect()))
    }

    pub(crate) fn multi_read(&self, operations: &[ReadOperation], who: &[Id]) -> Read {
        let mut bytes = 0;
        let mut results = Vec::with_capacity(operations.len());
        for operation in operations {
            let read = match operation {
                ReadOperation::GetData { path } => self.data(path, who),
                ReadOperation::GetChildren { path } => self.children(path, who),
            };
            results.push(match read {
                Ok(Answer::Data { data, stat }) => {
                    bytes += data.as_ref().map_or(0, bytes::Bytes::len);
                    OperationResult::GetData { data, stat }
                }
                Ok(Answer::Names(children)) => {
                    bytes += children.iter().map(|name| name.len() + 4).sum::<usize>();
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

fn names(node: &Node) -> Vec<String> {
    node.children.names().map(str::to_owned).collect()
}
