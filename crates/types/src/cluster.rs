//! The configuration of the cluster that every participant has before the first message: its shards and replicas, its
//! members' keys, its clients and their rights. Addresses are not part of it.

use crate::limits::{FAULTS_MAX, SHARD_REPLICAS_MAX, SHARDS_MAX};
use crate::{ClientId, ClusterId, Key, KeyRange, ReplicaId, ShardId};

/// Which shard holds a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Placement {
    /// Keys are spread by a fixed hash.
    Hash,
    /// Shard `i` holds the keys from `bounds[i-1]` (included; shard 0 from the lowest) to `bounds[i]` (excluded).
    Ranges(Vec<Key>),
}

/// What a client may do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Permission {
    /// The client's Ed25519 public key, which is also its TLS identity.
    pub public_key: [u8; 32],
    /// It may read keys that begin with one of these; an empty prefix means every key.
    pub read_prefixes: Vec<Key>,
    /// It may write keys that begin with one of these.
    pub write_prefixes: Vec<Key>,
    /// How much it may take.
    pub limits: ClientLimits,
}

/// How much one client may take of each replica, where that is less than what any client may; nothing where it is not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientLimits {
    /// The most transactions that it may have under way.
    pub transactions: Option<u32>,
    /// The most keys that one transaction may read and write.
    pub keys: Option<u32>,
    /// The most bytes of one transaction.
    pub bytes: Option<u32>,
    /// The most keys and ranges that it may read a second.
    pub reads_per_second: Option<u32>,
}

/// Why a cluster's configuration is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClusterError {
    /// `faults` is 0 or over the limit.
    #[error("faults must be from 1 to {FAULTS_MAX}, not {0}")]
    Faults(usize),
    /// There is no shard, or more than the limit.
    #[error("there must be from 1 to {SHARDS_MAX} shards, not {0}")]
    Shards(usize),
    /// A shard has not as many replicas as the first, or too many for any engine. How many it takes is the engine's to say.
    #[error("shard {shard} has {found} replicas, and the first one {first}; all have as many, and at most {SHARD_REPLICAS_MAX}")]
    Replicas {
        /// The shard.
        shard: ShardId,
        /// How many it has.
        found: usize,
        /// How many the first shard has.
        first: usize,
    },
    /// The bounds of a placement by ranges do not cut the keys into as many ranges as there are shards.
    #[error(
        "placement by ranges needs {0} bounds in strict order, one fewer than there are shards: with two bounds, as in ranges:h,p, there are three"
    )]
    Bounds(usize),
    /// The first bound is the empty key, from which all keys begin.
    #[error("a bound of the placement is the empty key: the first shard would never hold a key")]
    EmptyShard,
    /// A client has a number that is no client's.
    #[error("a client's number is from {min} to {max}, and not {0}, which has another meaning", min = ClientId::MIN.0, max = ClientId::MAX.0)]
    ReservedClient(u64),
    /// Two members share a public key.
    #[error("two members have the same public key {0}")]
    SharedKey(String),
}

/// The cluster, as every honest participant knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cluster {
    id: ClusterId,
    faults: usize,
    placement: Placement,
    replicas: Vec<Vec<[u8; 32]>>,
    clients: Vec<(ClientId, Permission)>,
    pending_min: Option<u32>,
}

impl Cluster {
    /// A cluster that survives `faults` faults in each shard; `replicas[s][i]` is the public key of replica `i` of shard `s`.
    ///
    /// # Errors
    /// [`ClusterError`] when the parts do not fit.
    pub fn new(
        id: ClusterId,
        faults: usize,
        placement: Placement,
        replicas: Vec<Vec<[u8; 32]>>,
        mut clients: Vec<(ClientId, Permission)>,
    ) -> Result<Self, ClusterError> {
        if faults == 0 || faults > FAULTS_MAX {
            return Err(ClusterError::Faults(faults));
        }
        if replicas.is_empty() || replicas.len() > SHARDS_MAX {
            return Err(ClusterError::Shards(replicas.len()));
        }
        let first = replicas[0].len();
        for (at, shard) in replicas.iter().enumerate() {
            if shard.len() != first || shard.is_empty() || shard.len() > SHARD_REPLICAS_MAX {
                return Err(ClusterError::Replicas { shard: shard_at(at), found: shard.len(), first });
            }
        }
        if let Placement::Ranges(bounds) = &placement
            && (bounds.len() + 1 != replicas.len() || !bounds.windows(2).all(|pair| pair[0] < pair[1]))
        {
            return Err(ClusterError::Bounds(replicas.len() - 1));
        }
        if matches!(&placement, Placement::Ranges(bounds) if bounds.first().is_some_and(|bound| bound.as_bytes().is_empty())) {
            return Err(ClusterError::EmptyShard);
        }
        if let Some((reserved, _)) = clients.iter().find(|(client, _)| !client.is_of_client()) {
            return Err(ClusterError::ReservedClient(reserved.0));
        }
        let mut keys: Vec<[u8; 32]> = replicas.iter().flatten().copied().collect();
        keys.extend(clients.iter().map(|(_, permission)| permission.public_key));
        keys.sort_unstable();
        if let Some(pair) = keys.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(ClusterError::SharedKey(hex::encode(pair[0])));
        }
        clients.sort_by_key(|(client, _)| *client);
        Ok(Self { id, faults, placement, replicas, clients, pending_min: None })
    }

    /// The same cluster, in which a client always has room for so many pending transactions on a shard, however many others had to end for it.
    #[must_use]
    pub fn with_pending_min(mut self, pending_min: Option<u32>) -> Self {
        self.pending_min = pending_min;
        self
    }

    /// For how many pending transactions on a shard a client always has room; nothing where it keeps all its room, whoever ends them.
    #[must_use]
    pub fn pending_min(&self) -> Option<u32> {
        self.pending_min
    }

    /// Its name.
    #[must_use]
    pub fn id(&self) -> ClusterId {
        self.id
    }

    /// `f`: how many replicas of a shard may lie.
    #[must_use]
    pub fn faults(&self) -> usize {
        self.faults
    }

    /// `n`: how many replicas a shard has.
    #[must_use]
    pub fn replicas_per_shard(&self) -> usize {
        self.replicas[0].len()
    }

    /// The shard, where there is one alone.
    #[must_use]
    pub fn only_shard(&self) -> Option<ShardId> {
        (self.replicas.len() == 1).then_some(ShardId(0))
    }

    /// Every shard.
    pub fn shards(&self) -> impl Iterator<Item = ShardId> + use<> {
        (0..self.replicas.len()).map(shard_at)
    }

    /// Every replica of `shard`; none when there is no such shard.
    pub fn replicas_of(&self, shard: ShardId) -> impl Iterator<Item = ReplicaId> + use<> {
        let count = self.replicas.get(usize::from(shard.0)).map_or(0, Vec::len);
        (0..count).map(move |index| ReplicaId { shard, index: u16::try_from(index).unwrap_or(u16::MAX) })
    }

    /// Every replica of every shard.
    pub fn replicas(&self) -> impl Iterator<Item = ReplicaId> + '_ {
        self.shards().flat_map(|shard| self.replicas_of(shard))
    }

    /// A replica's public key; `None` when there is no such replica.
    #[must_use]
    pub fn replica_key(&self, replica: ReplicaId) -> Option<&[u8; 32]> {
        self.replicas.get(usize::from(replica.shard.0))?.get(usize::from(replica.index))
    }

    /// The clients and their rights, by number.
    #[must_use]
    pub fn clients(&self) -> &[(ClientId, Permission)] {
        &self.clients
    }

    /// A client's rights; `None` when the cluster does not know it.
    #[must_use]
    pub fn permission(&self, client: ClientId) -> Option<&Permission> {
        self.clients.binary_search_by_key(&client, |(client, _)| *client).ok().map(|at| &self.clients[at].1)
    }

    /// Where keys live.
    #[must_use]
    pub fn placement(&self) -> &Placement {
        &self.placement
    }

    /// The shard that holds `key`.
    #[must_use]
    pub fn shard_of(&self, key: &Key) -> ShardId {
        if self.replicas.len() == 1 {
            return ShardId(0);
        }
        match &self.placement {
            Placement::Hash => shard_at((spread(key.as_bytes()) % self.replicas.len() as u64) as usize),
            Placement::Ranges(bounds) => shard_at(bounds.partition_point(|bound| bound <= key)),
        }
    }

    /// The shards that hold `keys`, in order, each once.
    #[must_use]
    pub fn shards_of<'a>(&self, keys: impl IntoIterator<Item = &'a Key>) -> Vec<ShardId> {
        if let Some(only) = self.only_shard() {
            return vec![only];
        }
        let mut shards: Vec<ShardId> = keys.into_iter().map(|key| self.shard_of(key)).collect();
        shards.sort_unstable();
        shards.dedup();
        shards
    }
}

impl Cluster {
    /// The part of `range` whose keys `shard` may hold: all of it where keys are placed by hash.
    #[must_use]
    pub fn part_of(&self, shard: ShardId, range: &KeyRange) -> Option<KeyRange> {
        let Placement::Ranges(bounds) = &self.placement else { return Some(range.clone()) };
        let at = usize::from(shard.0);
        let low = at.checked_sub(1).and_then(|before| bounds.get(before)).filter(|low| *low > range.low()).unwrap_or(range.low());
        let high = bounds.get(at).filter(|high| *high < range.high()).unwrap_or(range.high());
        KeyRange::new(low.clone(), high.clone())
    }
}

impl Permission {
    /// Whether `key` may be read.
    #[must_use]
    pub fn may_read(&self, key: &Key) -> bool {
        covers(&self.read_prefixes, key)
    }

    /// Whether every key of `range` may be read: all of them begin with one of the prefixes.
    #[must_use]
    pub fn may_read_range(&self, range: &KeyRange) -> bool {
        self.read_prefixes.iter().any(|prefix| {
            range.low().as_bytes().starts_with(prefix.as_bytes()) && prefix.after_prefixed().is_none_or(|end| *range.high() <= end)
        })
    }

    /// Whether `key` may be written.
    #[must_use]
    pub fn may_write(&self, key: &Key) -> bool {
        covers(&self.write_prefixes, key)
    }
}

fn covers(prefixes: &[Key], key: &Key) -> bool {
    prefixes.iter().any(|prefix| key.as_bytes().starts_with(prefix.as_bytes()))
}

fn shard_at(index: usize) -> ShardId {
    ShardId(u16::try_from(index).expect("SHARDS_MAX fits in u16"))
}

/// FNV-1a with a final mix: short, fixed for ever, and good enough to spread keys. It is no security measure.
fn spread(bytes: &[u8]) -> u64 {
    let mut hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
    hash ^= hash >> 32;
    hash = hash.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    hash ^ (hash >> 29)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Timestamp;

    fn range(low: &str, high: &str) -> KeyRange {
        KeyRange::new(Key::from(low), Key::from(high)).expect("it has keys")
    }

    #[test]
    fn a_range_is_cut_where_shards_meet() {
        let replicas = |shard: u8| (0..6).map(|index| [shard * 6 + index; 32]).collect();
        let cluster = |placement| Cluster::new(ClusterId::new([1; 16]), 1, placement, (0..3).map(replicas).collect(), vec![]);
        let ranges = cluster(Placement::Ranges(vec![Key::from("h"), Key::from("p")])).expect("the parts fit");
        let parts = |cluster: &Cluster, range: &KeyRange| -> Vec<Option<KeyRange>> {
            cluster.shards().map(|shard| cluster.part_of(shard, range)).collect()
        };
        assert_eq!(parts(&ranges, &range("a", "z")), [Some(range("a", "h")), Some(range("h", "p")), Some(range("p", "z"))]);
        assert_eq!(parts(&ranges, &range("b", "h")), [Some(range("b", "h")), None, None]);
        assert_eq!(parts(&ranges, &range("i", "k")), [None, Some(range("i", "k")), None]);
        assert_eq!(parts(&cluster(Placement::Hash).expect("they fit"), &range("a", "b")), vec![Some(range("a", "b")); 3]);
    }

    #[test]
    fn no_client_has_a_number_with_another_meaning() {
        let with = |number: u64| {
            let replicas = vec![(10..16).map(|index| [index; 32]).collect()];
            let clients = vec![(ClientId(number), Permission { public_key: [1; 32], ..Permission::default() })];
            Cluster::new(ClusterId::new([1; 16]), 1, Placement::Hash, replicas, clients).err()
        };
        for number in [1, 2, u64::MAX - (1 << 32)] {
            assert_eq!((with(number), Timestamp::new(5, ClientId(number)).author()), (None, Some(ClientId(number))));
        }
        for number in [0, u64::MAX - (1 << 32) + 1, u64::MAX] {
            assert_eq!(with(number), Some(ClusterError::ReservedClient(number)));
        }
        let between = Timestamp::above_all_before(5);
        assert!(between.author().is_none() && between < Timestamp::new(5, ClientId::MIN) && between > Timestamp::new(4, ClientId::MAX));
    }

    #[test]
    fn a_range_may_be_read_when_all_its_keys_may() {
        let with = |prefixes: &[&str]| Permission {
            read_prefixes: prefixes.iter().map(|prefix| Key::from(*prefix)).collect(),
            ..Permission::default()
        };
        let app = with(&["app/"]);
        for (low, high, may) in
            [("app/", "app0", true), ("app/a", "app/b", true), ("app/", "app1", false), ("app", "app/b", false), ("b", "c", false)]
        {
            assert_eq!(app.may_read_range(&range(low, high)), may, "{low} to {high}");
        }
        assert!(with(&[""]).may_read_range(&range("", "z")) && !with(&[]).may_read_range(&range("a", "b")));
    }
}
