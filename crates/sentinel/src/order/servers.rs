//! Whose promises and acknowledgements count.
//!
//! A server that begins with an empty disk draws an *incarnation*. Without one known to the others it may be new, or its folder was deleted: it
//! does not remember what it promised and acknowledged, and its word must not count as if it did. So:
//!
//! - The first epoch of all takes the promises of *all* servers, each with an empty history. Its first entry names their incarnations: the
//!   founders. A server whose disk is empty because its log was damaged, and given up, does not promise that.
//! - Later a majority is enough, and a server counts under the incarnation that the log names, and no other.
//! - A server that comes with another incarnation is brought up to date and does not count, until an entry that names its new incarnation is
//!   delivered by a majority *without* it, and it has that entry on its disk. From then on no promise of the earlier incarnation counts with
//!   anybody who could lead, as whoever lacks the entry has an older history than a member of each majority.

use std::collections::BTreeMap;

use types::codec::{Decode, DecodeError, Encode, Reader, encode_count};

use super::message::{Body, Entry, SERVERS_MAX};

/// What a server says of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// What it drew when its disk was empty.
    pub incarnation: u64,
    /// Whether it knows that the entry is delivered that names this incarnation.
    pub is_member: bool,
    /// Whether its disk is empty because its log was given up: it is not new, and founds nothing.
    pub gave_up: bool,
}

impl Encode for Standing {
    fn encode(&self, out: &mut Vec<u8>) {
        self.incarnation.encode(out);
        self.is_member.encode(out);
        self.gave_up.encode(out);
    }
}

impl Decode for Standing {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Self { incarnation: u64::decode(reader)?, is_member: bool::decode(reader)?, gave_up: bool::decode(reader)? })
    }
}

/// A server as the log names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its incarnation.
    pub incarnation: u64,
    /// Whether it was there when the order began, so that it counts whatever it knows of that.
    pub is_founder: bool,
}

/// The servers as the log names them: none before its first entry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Servers(BTreeMap<u16, Member>);

impl Servers {
    /// Whether the order has not begun yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The incarnation of a server.
    #[must_use]
    pub fn incarnation(&self, server: u16) -> Option<u64> {
        self.0.get(&server).map(|member| member.incarnation)
    }

    /// Whether the word of a server counts.
    #[must_use]
    pub fn count(&self, server: u16, standing: Standing) -> bool {
        self.0.get(&server).is_some_and(|member| {
            (member.incarnation == standing.incarnation || mutants::broken(mutants::Mutant::IncarnationIgnored))
                && (member.is_founder || standing.is_member || mutants::broken(mutants::Mutant::JoinedAtOnce))
        })
    }

    /// Takes note of an entry. Gives whether it changed anything.
    pub(super) fn note(&mut self, entry: &Entry) -> bool {
        match &entry.body {
            Body::Payload(_) => return false,
            Body::Founders(incarnations) => {
                let founders = (0..).zip(incarnations).map(|(server, incarnation)| {
                    let member = Member { incarnation: *incarnation, is_founder: true };
                    (server, member)
                });
                self.0 = founders.collect();
            }
            Body::Joins { server, incarnation } => {
                self.0.insert(*server, Member { incarnation: *incarnation, is_founder: false });
            }
        }
        true
    }
}

impl Encode for Servers {
    fn encode(&self, out: &mut Vec<u8>) {
        encode_count(self.0.len(), out);
        for (server, member) in &self.0 {
            server.encode(out);
            member.incarnation.encode(out);
            member.is_founder.encode(out);
        }
    }
}

impl Decode for Servers {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        let count = reader.count("servers", usize::from(SERVERS_MAX))?;
        let mut servers = BTreeMap::new();
        for _ in 0..count {
            let server = u16::decode(reader)?;
            if servers.last_key_value().is_some_and(|(last, _)| *last >= server) {
                return Err(DecodeError::NotCanonical("servers"));
            }
            servers.insert(server, Member { incarnation: u64::decode(reader)?, is_founder: bool::decode(reader)? });
        }
        Ok(Self(servers))
    }
}
