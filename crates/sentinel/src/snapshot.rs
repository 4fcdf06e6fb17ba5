//! A state on disk.
//!
//! ```text
//! head:     magic (8 bytes), format, profile, zxid, checksum of the state, counts of sessions and nodes
//! records:  length u32, then a session or a node with its leaf
//! end:      CRC-32 of everything before
//! ```
//!
//! It is exactly the state after one transaction, never a mixture of several: a copy of the nodes costs nearly nothing (`tree.rs`).
//! Whoever writes it hashes every node anew, and whoever reads it too, so that a snapshot neither keeps nor brings damage unseen.

use std::collections::BTreeSet;
use std::convert::Infallible;

use bytes::Bytes;
use jute::{Malformed, Reader, Writer, read_acls, write_acls};
use mutants::{Mutant, broken};

use crate::digest::{Checksum, Leaf, Profile, StateDigest};
use crate::limits::SNAPSHOT_RECORD_BYTES_MAX;
use crate::node::{AclLines, Node, Persisted};
use crate::path::split;
use crate::state::{Corruption, State};
use crate::tree::Nodes;

const MAGIC: &[u8; 8] = b"BEZANTSN";
const FORMAT: u8 = 1;
const END_BYTES: usize = 4;
/// A record's length, before it.
const RECORD_HEAD_BYTES: usize = 4;

/// Why a snapshot cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotError {
    /// It is none, or of another format.
    #[error("this is no snapshot of a format that is known here")]
    Unknown,
    /// Bytes were damaged, or are missing.
    #[error("the snapshot is damaged: {0}")]
    Damaged(String),
    /// The state in it is wrong.
    #[error("the state is wrong {0}")]
    Corrupt(Corruption),
}

impl From<Malformed> for SnapshotError {
    fn from(reason: Malformed) -> Self {
        Self::Damaged(reason.to_string())
    }
}

/// Why a snapshot could not be written.
#[derive(Debug)]
pub enum NotWritten<E> {
    /// The state in memory is damaged.
    Corrupt(Corruption),
    /// The disk failed.
    Failed(E),
}

impl State {
    /// A snapshot of this state, in memory. A [frozen](Self::frozen) state lets go of what was written.
    ///
    /// # Errors
    /// When a node does not hash to its leaf.
    pub fn snapshot(self) -> Result<Bytes, Corruption> {
        let mut bytes = Vec::new();
        let written = self.write_snapshot(|piece| {
            bytes.extend_from_slice(piece);
            Ok::<(), Infallible>(())
        });
        match written {
            Ok(()) => Ok(bytes.into()),
            Err(NotWritten::Corrupt(corruption)) => Err(corruption),
            Err(NotWritten::Failed(never)) => match never {},
        }
    }

    /// Gives a snapshot of this state to `sink`, piece by piece. Each session and each node is hashed anew and compared with its leaf, and all leaves together
    /// with the digest: what is written is found right when it is read. A [frozen](Self::frozen) state lets go of what was written.
    ///
    /// # Errors
    /// When a session or a node does not hash to its leaf, or they do not add up to the digest, or one is larger than transactions make one, or `sink` fails.
    pub fn write_snapshot<E>(mut self, mut sink: impl FnMut(&[u8]) -> Result<(), E>) -> Result<(), NotWritten<E>> {
        let mut crc = crc32fast::Hasher::new();
        let mut give = |bytes: &[u8]| {
            crc.update(bytes);
            sink(bytes).map_err(NotWritten::Failed)
        };
        let mut out = Vec::new();
        let mut writer = Writer::new(&mut out);
        writer.raw(MAGIC);
        writer.byte(FORMAT);
        writer.byte(self.profile as u8);
        writer.long(self.zxid);
        writer.raw(&self.checksum().0);
        writer.raw(&(self.sessions.len() as u64).to_be_bytes());
        writer.raw(&(self.nodes.len() as u64).to_be_bytes());
        give(&out)?;
        let mut digest = StateDigest::new(self.profile);
        for (id, session) in &self.sessions {
            self.scrub_session(*id, session).map_err(NotWritten::Corrupt)?;
            digest.add(&session.leaf);
            give(record(&mut out, |writer| {
                writer.long(*id);
                writer.int(session.timeout_ms);
                writer.raw(&session.password);
            }))?;
        }
        // They are taken out, so that each shard goes as soon as it is written.
        for shard in std::mem::replace(&mut self.nodes, Nodes::new(0)).into_shards() {
            for (path, node) in shard.iter() {
                self.scrub_node(path, node).map_err(NotWritten::Corrupt)?;
                digest.add(&node.leaf);
                let record = record(&mut out, |writer| write_node(writer, path, node));
                if record.len() - RECORD_HEAD_BYTES > SNAPSHOT_RECORD_BYTES_MAX {
                    // Nobody could read it back.
                    let what = "a node is larger than any transactions make one".to_owned();
                    return Err(NotWritten::Corrupt(Corruption { zxid: self.zxid, path: Some(path.to_owned()), what, digests: None }));
                }
                give(record)?;
            }
        }
        let (kept, found) = (self.checksum(), digest.checksum());
        if kept != found && !broken(Mutant::SnapshotUnsummed) {
            let what = "the state does not have the digest that was kept of it".to_owned();
            let digests = Some(Box::new((kept, found)));
            return Err(NotWritten::Corrupt(Corruption { zxid: self.zxid, path: None, what, digests }));
        }
        let end = crc.finalize().to_be_bytes();
        sink(&end).map_err(NotWritten::Failed)
    }

    /// Reads a snapshot. Its profile is the one that the state goes on with.
    ///
    /// # Errors
    /// When it is none, or damaged, or the state in it is wrong.
    pub fn read_snapshot(bytes: &[u8], seed: u64) -> Result<Self, SnapshotError> {
        let (body, end) = bytes.split_last_chunk::<END_BYTES>().ok_or(SnapshotError::Unknown)?;
        if !body.starts_with(MAGIC) {
            return Err(SnapshotError::Unknown);
        }
        if crc32fast::hash(body) != u32::from_be_bytes(*end) {
            return Err(SnapshotError::Damaged("its bytes do not have their checksum".to_owned()));
        }
        let mut reader = Reader::new(&body[MAGIC.len()..]);
        if reader.byte()? != FORMAT {
            return Err(SnapshotError::Unknown);
        }
        let profile = Profile::from_number(reader.byte()?).ok_or(SnapshotError::Unknown)?;
        let mut state = Self::empty(profile, seed);
        state.zxid = reader.long()?;
        let checksum = Checksum(reader.array()?);
        let (sessions, nodes) = (u64::from_be_bytes(reader.array()?), u64::from_be_bytes(reader.array()?));
        for _ in 0..sessions {
            let mut record = next_record(&mut reader)?;
            state.put_session(record.long()?, record.int()?, record.array()?);
            record.finish()?;
        }
        let (mut leaves, mut acls) = (Vec::new(), BTreeSet::new());
        for _ in 0..nodes {
            let mut record = next_record(&mut reader)?;
            let (path, node, leaf) = read_node(&mut record, profile, &mut acls)?;
            if state.nodes.get(&path).is_some() {
                return Err(SnapshotError::Damaged(format!("{path:?} is in it twice")));
            }
            state.put(&path, node);
            leaves.push((path, leaf));
        }
        reader.finish()?;
        state.join_children(&leaves)?;
        for (path, leaf) in &leaves {
            state.refresh(path, None, None);
            let found = state.nodes.get(path).map(|node| node.leaf);
            if found != Some(*leaf) {
                let digests = found.map(|found| Box::new((Checksum(leaf.0), Checksum(found.0))));
                let what = "a node does not hash to the leaf that was written with it".to_owned();
                return Err(SnapshotError::Corrupt(Corruption { zxid: state.zxid, path: Some(path.clone()), what, digests }));
            }
        }
        let found = state.checksum();
        if found != checksum {
            let what = "the state does not have the digest that was written with it".to_owned();
            return Err(SnapshotError::Corrupt(Corruption {
                zxid: state.zxid,
                path: None,
                what,
                digests: Some(Box::new((checksum, found))),
            }));
        }
        Ok(state)
    }

    /// Enters each node into its parent's set of children, which a snapshot does not hold.
    fn join_children(&mut self, nodes: &[(String, Leaf)]) -> Result<(), SnapshotError> {
        let profile = self.profile;
        for (path, _) in nodes {
            let Some((parent, name)) = split(path) else { continue };
            let Some(parent) = self.nodes.get_mut(parent) else {
                return Err(SnapshotError::Damaged(format!("the parent of {path:?} is not in it")));
            };
            parent.children.insert(name, profile);
        }
        Ok(())
    }
}

/// A record behind its length.
fn record(out: &mut Vec<u8>, write: impl FnOnce(&mut Writer<'_>)) -> &[u8] {
    out.clear();
    out.extend_from_slice(&[0; RECORD_HEAD_BYTES]);
    write(&mut Writer::new(out));
    let length =
        u32::try_from(out.len() - RECORD_HEAD_BYTES).expect("a node came in one request, and has at most as many children as there are");
    out[..RECORD_HEAD_BYTES].copy_from_slice(&length.to_be_bytes());
    out
}

fn next_record<'a>(reader: &mut Reader<'a>) -> Result<Reader<'a>, SnapshotError> {
    let length = u32::from_be_bytes(reader.array()?) as usize;
    if length > SNAPSHOT_RECORD_BYTES_MAX {
        return Err(SnapshotError::Damaged("a record is too long".to_owned()));
    }
    Ok(Reader::new(reader.take(length)?))
}

fn write_node(writer: &mut Writer<'_>, path: &str, node: &Node) {
    writer.string(path);
    writer.raw(&node.leaf.0);
    writer.buffer(node.data.as_deref());
    write_acls(writer, &node.acl);
    let stat = &node.stat;
    for long in [stat.czxid, stat.mzxid, stat.ctime, stat.mtime, stat.owner, stat.pzxid] {
        writer.long(long);
    }
    for int in [stat.version, stat.cversion, stat.aversion] {
        writer.int(int);
    }
}

/// ACLs that were read before are shared.
fn read_node(reader: &mut Reader<'_>, profile: Profile, acls: &mut BTreeSet<AclLines>) -> Result<(String, Node, Leaf), SnapshotError> {
    let path = reader.string()?;
    let leaf = Leaf(reader.array()?);
    let (data, acl) = (reader.buffer()?, read_acls(reader)?);
    let stat = Persisted {
        czxid: reader.long()?,
        mzxid: reader.long()?,
        ctime: reader.long()?,
        mtime: reader.long()?,
        owner: reader.long()?,
        pzxid: reader.long()?,
        version: reader.int()?,
        cversion: reader.int()?,
        aversion: reader.int()?,
    };
    reader.finish()?;
    let acl = acls.get(&acl).cloned().unwrap_or_else(|| {
        let acl = AclLines::new(acl);
        acls.insert(acl.clone());
        acl
    });
    Ok((path, Node::new(profile, data.as_deref(), acl, stat, None), leaf))
}
