//! What members must agree on, as digests that their greetings carry, so that a `cluster.toml` that differs is told in words.
//!
//! Members whose clusters differ in their *shape* (how many faults, which shard holds a key, whether statements are signed, how much room clients keep) cannot
//! understand each other, and part: to the others, who differs is like a member that is down. A list of replicas or clients that
//! differs is told, and no more, where both go by the same version: only operators change it ([`crate::changes`]).

use crypto::{Signatures, digest};
use types::codec::{Decode, DecodeError, Encode, Reader};
use types::{Cluster, Placement};

/// How much of each digest is said.
const PART_BYTES: usize = 16;

/// A member's `cluster.toml`, part by part. Addresses are not in it: a host may be reached by several names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Configuration {
    shape: [u8; PART_BYTES],
    replicas: [u8; PART_BYTES],
    clients: [u8; PART_BYTES],
    /// How often the operators have changed it.
    version: u64,
}

impl Configuration {
    /// That of a member who knows `cluster` so.
    #[must_use]
    pub fn of(cluster: &Cluster, signatures: Signatures, version: u64) -> Self {
        let (mut shape, mut replicas, mut clients) = (Vec::new(), Vec::new(), Vec::new());
        for count in [cluster.faults(), cluster.shards().count(), usize::from(signatures == Signatures::Ed25519)] {
            (count as u64).encode(&mut shape);
        }
        match cluster.placement() {
            Placement::Hash => shape.push(1),
            Placement::Ranges(bounds) => {
                shape.push(2);
                bounds.iter().for_each(|bound| bound.encode(&mut shape));
            }
        }
        // Clusters without it are what they were before there was any.
        cluster.pending_min().iter().for_each(|pending_min| u64::from(*pending_min).encode(&mut shape));
        cluster.replicas().filter_map(|replica| cluster.replica_key(replica)).for_each(|key| replicas.extend_from_slice(key));
        for (client, permission) in cluster.clients() {
            client.0.encode(&mut clients);
            clients.extend_from_slice(&permission.public_key);
            for prefixes in [&permission.read_prefixes, &permission.write_prefixes] {
                (prefixes.len() as u64).encode(&mut clients);
                prefixes.iter().for_each(|prefix| prefix.encode(&mut clients));
            }
        }
        let part = |bytes: &[u8]| {
            let whole = digest("configuration", cluster.id(), &[bytes]);
            *whole.first_chunk().expect("a digest is longer than its part")
        };
        Self { shape: part(&shape), replicas: part(&replicas), clients: part(&clients), version }
    }

    /// Whether who knows the cluster so and who knows it as `other` can understand each other.
    #[must_use]
    pub fn fits(&self, other: &Self) -> bool {
        self.shape == other.shape
    }

    /// How often the operators have changed it.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Where `other` differs, in words; nothing when it does not. Lists of different versions are not compared: who has the earlier one is
    /// about to learn of the later one.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Option<String> {
        let parts = [
            (self.shape == other.shape, "faults, shards, placement, signatures or pending_min"),
            (self.replicas == other.replicas || self.version != other.version, "the replicas' keys"),
            (self.clients == other.clients || self.version != other.version, "the clients and their rights"),
        ];
        let differing: Vec<&str> = parts.into_iter().filter(|(same, _)| !same).map(|(_, name)| name).collect();
        (!differing.is_empty()).then(|| differing.join(", and in "))
    }

    /// As text, for whoever compares members from outside.
    #[must_use]
    pub fn to_text(&self) -> String {
        hex::encode(self.to_bytes())
    }

    /// What [`Configuration::to_text`] gave.
    #[must_use]
    pub fn from_text(text: &str) -> Option<Self> {
        let mut bytes = [0; 3 * PART_BYTES + 8];
        hex::decode_to_slice(text, &mut bytes).ok()?;
        let part = |at: usize| bytes[at * PART_BYTES..].first_chunk().copied();
        let version = u64::from_le_bytes(*bytes[3 * PART_BYTES..].first_chunk()?);
        Some(Self { shape: part(0)?, replicas: part(1)?, clients: part(2)?, version })
    }
}

impl Encode for Configuration {
    fn encode(&self, out: &mut Vec<u8>) {
        [self.shape, self.replicas, self.clients].iter().for_each(|part| out.extend_from_slice(part));
        self.version.encode(out);
    }
}

impl Decode for Configuration {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Self { shape: reader.array()?, replicas: reader.array()?, clients: reader.array()?, version: u64::decode(reader)? })
    }
}

#[cfg(test)]
mod tests {
    use types::{ClientId, ClusterId, Key, Permission};

    use super::*;

    fn cluster(bound: &str, first_key: u8, right: &str) -> Configuration {
        cluster_at(0, bound, first_key, right)
    }

    fn cluster_at(version: u64, bound: &str, first_key: u8, right: &str) -> Configuration {
        cluster_with(None, version, bound, first_key, right)
    }

    fn cluster_with(pending_min: Option<u32>, version: u64, bound: &str, first_key: u8, right: &str) -> Configuration {
        let keys = |shard: u8| (0..6).map(|index| [shard * 6 + index + first_key; 32]).collect();
        let rights = Permission {
            public_key: [99; 32],
            read_prefixes: vec![Key::from(right)],
            write_prefixes: vec![],
            limits: types::ClientLimits::default(),
        };
        let placement = Placement::Ranges(vec![Key::from(bound)]);
        let cluster = Cluster::new(ClusterId::new([7; 16]), 1, placement, vec![keys(0), keys(1)], vec![(ClientId(1), rights)]);
        Configuration::of(&cluster.expect("it fits").with_pending_min(pending_min), Signatures::Ed25519, version)
    }

    #[test]
    fn what_differs_is_named() {
        let mine = cluster("m", 0, "");
        assert_eq!((mine.difference(&mine), mine.fits(&mine)), (None, true));
        let shape = cluster("n", 0, "");
        assert_eq!(
            (mine.difference(&shape).as_deref(), mine.fits(&shape)),
            (Some("faults, shards, placement, signatures or pending_min"), false)
        );
        assert!([Some(16), Some(17)].iter().all(|least| !mine.fits(&cluster_with(*least, 0, "m", 0, ""))));
        assert!(!cluster_with(Some(16), 0, "m", 0, "").fits(&cluster_with(Some(17), 0, "m", 0, "")));
        let lists = cluster("m", 1, "a");
        assert_eq!(mine.difference(&lists).as_deref(), Some("the replicas' keys, and in the clients and their rights"));
        assert!(mine.fits(&lists));
        let later = cluster_at(1, "m", 1, "a");
        assert_eq!((mine.difference(&later), later.version()), (None, 1));
        assert_eq!(Configuration::from_text(&mine.to_text()), Some(mine));
        assert_eq!(Configuration::from_text("00"), None);
    }
}
