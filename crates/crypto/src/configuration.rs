//! The configuration of a running cluster, as its operators change it.
//!
//! A *configuration* says who holds each place of each shard, by which key; which clients there are, and what each may do; and who the
//! operators are. It has a version, and names the one before it by digest. The first, version 0, is what `cluster.toml` says. Each later
//! one is signed by as many operators as the one before it asks for ([`Operators::needed`]). So they are a [`Chain`], and whoever has
//! the first can check all others by itself, in whatever way it got them.
//!
//! ```text
//!   cluster.toml = version 0 ◀── version 1 ◀── version 2        ◀── names the digest of
//!                      │             ▲ │           ▲
//!                      └ operators ──┘ └ operators ┘             whose signatures it takes
//! ```
//!
//! Invariants, all checked by [`Chain::check`]:
//!
//! - **One after another.** A configuration is taken over only by who has the one that it names. So nobody goes back.
//! - **More than half.** It takes more than half of the operators to sign. So two different configurations of one version have an operator
//!   in common, and no correct operator signs two.
//! - **The shape stays.** Shards, places, faults, and which shard holds a key are those of the first.
//! - **At most `f` places** of a shard get another key at a time.
//! - **A key that has gone never comes back**, no key has two owners, and none ever gets another owner. So whose a signature is does not depend on when it is looked at.
//!
//! Why statements that name no configuration stay safe when it changes is argued in `docs/protocols/basil.md`.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use ed25519_zebra::{Signature, VerificationKey};
use mutants::{Mutant, broken};
use types::codec::{Decode, DecodeError, Encode, Reader, encode_count, encode_sequence};
use types::limits::{SHARD_REPLICAS_MAX, SHARDS_MAX};
use types::{ClientId, ClientLimits, Cluster, ClusterError, ClusterId, Digest, Key, Permission, Placement};

use crate::{Fork, KeyError, SecretKey, Signatures, check_public_key, digest};

/// The most operators.
pub const OPERATORS_MAX: usize = 64;
/// The most clients of a configuration.
pub const CLIENTS_MAX: usize = 65_536;
/// The most prefixes in one list of a client's.
pub const PREFIXES_MAX: usize = 1_024;
/// The longest address, in bytes.
pub const ADDRESS_BYTES_MAX: usize = 300;
/// The longest configuration with its signatures, in bytes.
pub const CONFIGURATION_BYTES_MAX: usize = 4 << 20;
/// The most versions after the first.
pub const VERSIONS_MAX: usize = 65_536;
/// The most bytes of all configurations after the first, with their signatures: what a member keeps, and reads back when it starts.
pub const CHAIN_BYTES_MAX: usize = 512 << 20;

/// What a configuration's encoding begins with.
const FORMAT: u8 = 1;
/// What an operator signs begins with this, then the cluster's name, then the configuration's digest.
const SIGNED_DOMAIN: &[u8] = b"bezant: an operator signs the configuration\0";

/// Who holds a place in a shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Its public key.
    pub public_key: [u8; 32],
    /// Where peers and clients reach it, as `host:port`.
    pub address: String,
    /// Where it answers HTTP.
    pub http: String,
}

/// Who may change the configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Operators {
    /// How many of them must sign the next one: more than half.
    pub needed: u16,
    /// Their public keys, in ascending order. Where there are none, nothing can be changed.
    pub keys: Vec<[u8; 32]>,
}

/// One version of who is who in the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Configuration {
    /// 0 for the first.
    pub version: u64,
    /// The digest of the one before; of the cluster's shape in the first.
    pub previous: Digest,
    /// Who signs the next one.
    pub operators: Operators,
    /// The holder of each place, by shard and index.
    pub replicas: Vec<Vec<Holder>>,
    /// The clients and their rights, by number.
    pub clients: Vec<(ClientId, Permission)>,
}

/// A configuration, and who signed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignedConfiguration {
    /// The configuration.
    pub configuration: Configuration,
    /// Signatures by operators of the one before: each one's place among these, in ascending order, and its signature.
    pub signatures: Vec<(u16, [u8; 64])>,
}

/// What takes time to find out of a long configuration, and needs nothing else.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Measure {
    /// The digest of the configuration.
    digest: Digest,
    /// How long it is with its signatures.
    bytes: usize,
}

/// Why a configuration is not taken over. None of these is worth another try with the same one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChainError {
    /// The first one names no operators.
    #[error("the cluster has no operators, so its configuration cannot change; only `bezant init` names the first ones")]
    NoOperators,
    /// The version is not newer than what is known.
    #[error("version {found} is old: {known} is known")]
    Old {
        /// The version offered.
        found: u64,
        /// The newest known.
        known: u64,
    },
    /// Versions before it are missing.
    #[error("version {found} comes too early: after {known}, version {} is missing", known + 1)]
    Early {
        /// The version offered.
        found: u64,
        /// The newest known.
        known: u64,
    },
    /// It is longer than a configuration may be, or all of them would be.
    #[error(
        "it is too long: a configuration has at most {CONFIGURATION_BYTES_MAX} bytes with its signatures, and all together {CHAIN_BYTES_MAX}, in {VERSIONS_MAX} versions"
    )]
    TooLong,
    /// It follows another one than the one known. Whoever signed it may go by other operators, so nothing shows who is wrong.
    #[error("version {version} does not follow the version {} that is known here, but another one", version - 1)]
    OtherBefore {
        /// The version offered.
        version: u64,
    },
    /// Another configuration of this version is known, and enough operators signed this one, too.
    #[error("another version {version} is known here, and operators are to blame: {0}", version = .0.version())]
    Fork(Box<Fork>),
    /// Too few operators signed.
    #[error("{signed} of the operators have signed, and {needed} must")]
    TooFew {
        /// How many have.
        signed: usize,
        /// How many must.
        needed: u16,
    },
    /// A signature is not that of the operator it is said to be.
    #[error("the signature of operator {operator} is bad")]
    BadSignature {
        /// Its place among the operators.
        operator: u16,
    },
    /// Shards or places differ.
    #[error("the number of shards, or of replicas in a shard, cannot change")]
    Shape,
    /// More than `f` places of a shard would change.
    #[error("shard {shard} would get {changed} new keys, and it survives {faults}: replace one after the other")]
    TooManyPlaces {
        /// The shard.
        shard: usize,
        /// How many of its places change.
        changed: usize,
        /// How many may.
        faults: usize,
    },
    /// A key was a member's before, and is none's now.
    #[error("the key {0} was in an earlier version, and a key that has gone never comes back; draw another")]
    KeyReturns(String),
    /// A key was another member's in the version before.
    #[error("the key {0} is another member's in the version before, and a key never gets another owner; draw another")]
    KeyMoves(String),
    /// Two have the same key.
    #[error("the key {0} has two owners")]
    SharedKey(String),
    /// A key is no good.
    #[error("the key {key} is refused: {reason}")]
    BadKey {
        /// The key.
        key: String,
        /// Why.
        reason: KeyError,
    },
    /// Too few operators would have to sign the next one, or more than there are.
    #[error("of {of} operators, {needed} would have to sign; it must be more than half, and no more than there are")]
    Operators {
        /// How many would have to sign.
        needed: u16,
        /// How many there are.
        of: usize,
    },
    /// The parts make no cluster.
    #[error("{0}")]
    Cluster(#[from] ClusterError),
}

impl Configuration {
    /// Version 0 of `cluster`, whose replicas are `holders`.
    #[must_use]
    pub fn first(cluster: &Cluster, engine: &str, signatures: Signatures, holders: Vec<Vec<Holder>>, operators: Operators) -> Self {
        let mut shape = Vec::new();
        for count in [cluster.faults(), cluster.shards().count(), cluster.replicas_per_shard()] {
            (count as u64).encode(&mut shape);
        }
        (signatures == Signatures::Ed25519).encode(&mut shape);
        match cluster.placement() {
            Placement::Hash => shape.push(1),
            Placement::Ranges(bounds) => {
                shape.push(2);
                encode_sequence(bounds, &mut shape);
            }
        }
        let previous = digest("shape of a cluster", cluster.id(), &[engine.as_bytes(), &shape]);
        Self { version: 0, previous, operators, replicas: holders, clients: cluster.clients().to_vec() }
    }

    /// What names it. Of the first, addresses do not count: a host may be known by several names, and `cluster.toml` may say either.
    #[must_use]
    pub fn digest(&self, cluster: ClusterId) -> Digest {
        self.digest_and_bytes(cluster).0
    }

    /// Its digest, and how long it is.
    fn digest_and_bytes(&self, cluster: ClusterId) -> (Digest, usize) {
        #[cfg(test)]
        tests::DIGESTS.with(|digests| digests.set(digests.get() + 1));
        if self.version > 0 {
            let bytes = self.to_bytes();
            return (digest("configuration of a running cluster", cluster, &[&bytes]), bytes.len());
        }
        let mut nowhere = self.clone();
        for holder in nowhere.replicas.iter_mut().flatten() {
            (holder.address, holder.http) = (String::new(), String::new());
        }
        (digest("configuration of a running cluster", cluster, &[&nowhere.to_bytes()]), self.to_bytes().len())
    }

    /// The cluster that it describes, of the shape of `cluster`.
    ///
    /// # Errors
    /// [`ChainError`] when the parts do not fit.
    pub fn cluster(&self, cluster: &Cluster) -> Result<Cluster, ChainError> {
        let keys = self.replicas.iter().map(|shard| shard.iter().map(|holder| holder.public_key).collect()).collect();
        let next = Cluster::new(cluster.id(), cluster.faults(), cluster.placement().clone(), keys, self.clients.clone())?;
        Ok(next.with_pending_min(cluster.pending_min()))
    }

    /// Every key in it.
    pub fn keys(&self) -> impl Iterator<Item = [u8; 32]> + '_ {
        self.owners().map(|(key, _)| key)
    }

    /// The same, each with its owner.
    fn owners(&self) -> impl Iterator<Item = ([u8; 32], Owner)> + '_ {
        let replicas = self.replicas.iter().enumerate().flat_map(|(shard, holders)| {
            holders.iter().enumerate().map(move |(index, holder)| (holder.public_key, Owner::Place(shard, index)))
        });
        let clients = self.clients.iter().map(|(client, permission)| (permission.public_key, Owner::Client(*client)));
        replicas.chain(clients).chain(self.operators.keys.iter().map(|key| (*key, Owner::Operator)))
    }

    /// Signs it with the key of one of `operators`, those of the version before; `None` when it is none of theirs.
    #[must_use]
    pub fn sign(&self, cluster: ClusterId, operators: &Operators, secret: &SecretKey) -> Option<(u16, [u8; 64])> {
        let operator = operators.keys.iter().position(|key| *key == secret.public())?;
        Some((u16::try_from(operator).ok()?, secret.sign(&statement(cluster, &self.digest(cluster)))))
    }
}

/// Whose a key is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    /// That of a place: of a shard, by index.
    Place(usize, usize),
    Client(ClientId),
    /// They have no names but their keys.
    Operator,
}

/// What an operator signs.
fn statement(cluster: ClusterId, configuration: &Digest) -> Vec<u8> {
    [SIGNED_DOMAIN, cluster.as_bytes(), configuration].concat()
}

/// All configurations from the first to the newest one known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    /// The cluster as the first one describes it: its shape is that of all.
    shape: Cluster,
    first: Configuration,
    later: Vec<SignedConfiguration>,
    /// How long these are together.
    bytes: usize,
    /// The digest of the newest one.
    digest: Digest,
    /// Every key that ever was in one.
    used: BTreeSet<[u8; 32]>,
}

impl Chain {
    /// The chain of a cluster that was never changed.
    #[must_use]
    pub fn new(cluster: Cluster, first: Configuration) -> Self {
        let (digest, used) = (first.digest(cluster.id()), first.keys().collect());
        Self { shape: cluster, first, later: Vec::new(), bytes: 0, digest, used }
    }

    /// The newest configuration.
    #[must_use]
    pub fn newest(&self) -> &Configuration {
        self.later.last().map_or(&self.first, |signed| &signed.configuration)
    }

    /// Its version.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.later.len() as u64
    }

    /// Its digest.
    #[must_use]
    pub fn digest(&self) -> Digest {
        self.digest
    }

    /// All configurations, from the first on.
    pub fn configurations(&self) -> impl DoubleEndedIterator<Item = &Configuration> {
        std::iter::once(&self.first).chain(self.later.iter().map(|signed| &signed.configuration))
    }

    /// The signed ones with a version above `version`, in order.
    #[must_use]
    pub fn after(&self, version: u64) -> &[SignedConfiguration] {
        &self.later[usize::try_from(version).map_or(self.later.len(), |version| version.min(self.later.len()))..]
    }

    /// The cluster's name.
    #[must_use]
    pub fn id(&self) -> ClusterId {
        self.shape.id()
    }

    /// The cluster as the newest configuration describes it.
    ///
    /// # Panics
    /// Never: what does not describe a cluster is not taken into a chain.
    #[must_use]
    pub fn cluster(&self) -> Cluster {
        self.newest().cluster(&self.shape).expect("it was checked when it was taken")
    }

    /// The same of each configuration, the newest first.
    ///
    /// # Panics
    /// Never, as [`Chain::cluster`].
    pub fn clusters(&self) -> impl Iterator<Item = (u64, Cluster)> + '_ {
        let cluster = |configuration: &Configuration| configuration.cluster(&self.shape).expect("it was checked when it was taken");
        self.configurations().rev().map(move |configuration| (configuration.version, cluster(configuration)))
    }

    /// Why `next` cannot be the next configuration, whoever signs it; the cluster that it describes if it can.
    ///
    /// # Errors
    /// The first rule that it breaks.
    pub fn check_unsigned(&self, next: &Configuration) -> Result<Cluster, ChainError> {
        self.check_follows(next)?;
        self.check_content(next)
    }

    /// Whether `next` is the one after the newest.
    fn check_follows(&self, next: &Configuration) -> Result<(), ChainError> {
        let (found, known) = (next.version, self.newest().version);
        if self.first.operators.keys.is_empty() {
            return Err(ChainError::NoOperators);
        }
        if found <= known && !broken(Mutant::OldConfigurationTaken) {
            return Err(ChainError::Old { found, known });
        }
        if found > known + 1 {
            return Err(ChainError::Early { found, known });
        }
        if self.later.len() >= VERSIONS_MAX {
            return Err(ChainError::TooLong);
        }
        if next.previous != self.digest && !broken(Mutant::OldConfigurationTaken) {
            return Err(ChainError::OtherBefore { version: found });
        }
        Ok(())
    }

    /// Whether the newest configuration may become `next`. This takes seconds where as many clients as there may be are new.
    fn check_content(&self, next: &Configuration) -> Result<Cluster, ChainError> {
        let before = self.newest();
        if next.replicas.len() != before.replicas.len() || next.replicas.iter().any(|shard| shard.len() != before.replicas[0].len()) {
            return Err(ChainError::Shape);
        }
        for (shard, (new, old)) in next.replicas.iter().zip(&before.replicas).enumerate() {
            let changed = new.iter().zip(old).filter(|(new, old)| new.public_key != old.public_key).count();
            let faults = self.shape.faults();
            if changed > faults && !broken(Mutant::PlacesChangeTogether) {
                return Err(ChainError::TooManyPlaces { shard, changed, faults });
            }
        }
        let Operators { needed, keys: operators } = &next.operators;
        if usize::from(*needed) * 2 <= operators.len() || usize::from(*needed) > operators.len() {
            return Err(ChainError::Operators { needed: *needed, of: operators.len() });
        }
        self.check_keys(before, next)?;
        next.cluster(&self.shape)
    }

    /// Each key is good, has one owner, and never went before or was another's.
    fn check_keys(&self, before: &Configuration, next: &Configuration) -> Result<(), ChainError> {
        let known: BTreeMap<[u8; 32], Owner> = before.owners().collect();
        let mut seen = BTreeSet::new();
        for (key, owner) in next.owners() {
            let name = || hex::encode(key);
            if !seen.insert(key) {
                return Err(ChainError::SharedKey(name()));
            }
            match known.get(&key) {
                Some(known) if *known == owner || broken(Mutant::MovedKeyTaken) => continue,
                Some(_) => return Err(ChainError::KeyMoves(name())),
                None => {}
            }
            check_public_key(&key).map_err(|reason| ChainError::BadKey { key: name(), reason })?;
            if self.used.contains(&key) && !broken(Mutant::GoneKeyReturns) {
                return Err(ChainError::KeyReturns(name()));
            }
        }
        Ok(())
    }

    /// Checks all of `next`, its signatures too; gives the cluster that it describes. Nothing that takes long is done for who has no signatures.
    ///
    /// # Errors
    /// The first rule that it breaks.
    pub fn check(&self, next: &SignedConfiguration) -> Result<Cluster, ChainError> {
        self.check_as(next, next.measure(self.id()))
    }

    /// The same of `next`, whose measure is known.
    pub(crate) fn check_as(&self, next: &SignedConfiguration, measure: Measure) -> Result<Cluster, ChainError> {
        self.check_follows(&next.configuration).map_err(|error| match error {
            ChainError::Old { .. } => self.why_not_again(next, measure, error),
            _ => error,
        })?;
        let is_too_long = measure.bytes > CONFIGURATION_BYTES_MAX || self.bytes + measure.bytes > CHAIN_BYTES_MAX;
        if is_too_long && !broken(Mutant::ConfigurationUnbounded) {
            return Err(ChainError::TooLong);
        }
        self.check_signatures(next, &measure.digest, &self.newest().operators)?;
        self.check_content(&next.configuration)
    }

    /// What is wrong with `next`, of whose version one is known: it is `old`, or another. Nobody but the operators of the version before can show that
    /// operators signed two. So without their signatures it says nothing of them.
    fn why_not_again(&self, next: &SignedConfiguration, measure: Measure, old: ChainError) -> ChainError {
        let version = next.configuration.version;
        // Nobody signs the first one.
        let Some(operators) = self.operators_before(version) else { return old };
        let Some(same) = self.after(version - 1).first() else { return old };
        // Each has the digest of the one before it.
        let digest = self.after(version).first().map_or(self.digest, |after| after.configuration.previous);
        if digest == measure.digest {
            return old;
        }
        if measure.bytes > CONFIGURATION_BYTES_MAX {
            return ChainError::TooLong;
        }
        match self.check_signatures(next, &measure.digest, operators) {
            // Whoever goes by another configuration before may know other operators.
            Err(_) if next.configuration.previous != same.configuration.previous && !broken(Mutant::ForkUnsigned) => {
                ChainError::OtherBefore { version }
            }
            Err(error) if !broken(Mutant::ForkUnsigned) => error,
            _ => ChainError::Fork(Box::new(Fork::of(operators, same.clone(), next.clone()))),
        }
    }

    /// The operators of whom enough must sign `version`, if the version before is known; nobody signs the first.
    pub(crate) fn operators_before(&self, version: u64) -> Option<&Operators> {
        let before = usize::try_from(version.checked_sub(1)?).ok()?;
        self.configurations().nth(before).map(|before| &before.operators)
    }

    /// Whether enough of `operators` signed `next`, which has this digest, and nobody's signature is bad.
    pub(crate) fn check_signatures(&self, next: &SignedConfiguration, digest: &Digest, operators: &Operators) -> Result<(), ChainError> {
        let statement = statement(self.id(), digest);
        let mut signers = BTreeSet::new();
        for (operator, signature) in &next.signatures {
            let bad = ChainError::BadSignature { operator: *operator };
            let key = operators.keys.get(usize::from(*operator)).ok_or(bad.clone())?;
            let key = VerificationKey::try_from(*key).map_err(|_| bad.clone())?;
            key.verify(&Signature::from_bytes(signature), &statement).map_err(|_| bad)?;
            signers.insert(*operator);
        }
        let signed = if broken(Mutant::ConfigurationOfFew) { signers.len() + 1 } else { signers.len() };
        if signed < usize::from(operators.needed) {
            return Err(ChainError::TooFew { signed: signers.len(), needed: operators.needed });
        }
        Ok(())
    }

    /// Takes over the next configuration; gives the cluster that it describes.
    ///
    /// # Errors
    /// The first rule that it breaks: then nothing has changed.
    pub fn extend(&mut self, next: SignedConfiguration) -> Result<Cluster, ChainError> {
        let measure = next.measure(self.id());
        self.extend_as(next, measure)
    }

    /// The same with `next`, whose measure is known.
    pub(crate) fn extend_as(&mut self, next: SignedConfiguration, measure: Measure) -> Result<Cluster, ChainError> {
        let cluster = self.check_as(&next, measure)?;
        self.digest = measure.digest;
        self.used.extend(next.configuration.keys());
        self.bytes += measure.bytes;
        self.later.push(next);
        Ok(cluster)
    }
}

/// A key that two of `configuration` have, in hexadecimal digits.
#[must_use]
pub fn shared_key(configuration: &Configuration) -> Option<String> {
    let mut seen = BTreeSet::new();
    configuration.keys().find(|key| !seen.insert(*key)).map(hex::encode)
}

fn encode_text(text: &str, out: &mut Vec<u8>) {
    encode_count(text.len(), out);
    out.extend_from_slice(text.as_bytes());
}

fn decode_text(reader: &mut Reader) -> Result<String, DecodeError> {
    let length = reader.count("an address", ADDRESS_BYTES_MAX)?;
    String::from_utf8(reader.take(length)?.to_vec()).map_err(|_| DecodeError::NotCanonical("an address"))
}

impl Encode for Holder {
    fn encode(&self, out: &mut Vec<u8>) {
        self.public_key.encode(out);
        encode_text(&self.address, out);
        encode_text(&self.http, out);
    }
}

impl Decode for Holder {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Self { public_key: reader.array()?, address: decode_text(reader)?, http: decode_text(reader)? })
    }
}

fn encode_client((client, permission): &(ClientId, Permission), out: &mut Vec<u8>) {
    client.0.encode(out);
    permission.public_key.encode(out);
    encode_sequence(&permission.read_prefixes, out);
    encode_sequence(&permission.write_prefixes, out);
    let ClientLimits { transactions, keys, bytes, reads_per_second } = permission.limits;
    [transactions, keys, bytes, reads_per_second].iter().for_each(|limit| limit.encode(out));
}

fn decode_client(reader: &mut Reader) -> Result<(ClientId, Permission), DecodeError> {
    let client = ClientId(u64::decode(reader)?);
    let public_key = reader.array()?;
    let read_prefixes: Vec<Key> = reader.sequence("a client's prefixes", PREFIXES_MAX)?;
    let write_prefixes: Vec<Key> = reader.sequence("a client's prefixes", PREFIXES_MAX)?;
    let mut limit = || Option::<u32>::decode(reader);
    let limits = ClientLimits { transactions: limit()?, keys: limit()?, bytes: limit()?, reads_per_second: limit()? };
    Ok((client, Permission { public_key, read_prefixes, write_prefixes, limits }))
}

impl Encode for Configuration {
    fn encode(&self, out: &mut Vec<u8>) {
        out.push(FORMAT);
        self.version.encode(out);
        self.previous.encode(out);
        self.operators.needed.encode(out);
        encode_sequence(&self.operators.keys, out);
        encode_count(self.replicas.len(), out);
        self.replicas.iter().for_each(|shard| encode_sequence(shard, out));
        encode_count(self.clients.len(), out);
        self.clients.iter().for_each(|client| encode_client(client, out));
    }
}

impl Decode for Configuration {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        if u8::decode(reader)? != FORMAT {
            return Err(DecodeError::UnknownTag("a configuration's format"));
        }
        let (version, previous) = (u64::decode(reader)?, reader.array()?);
        let needed = u16::decode(reader)?;
        let keys: Vec<[u8; 32]> = reader.sequence("the operators", OPERATORS_MAX)?;
        let shards = reader.count("the shards", SHARDS_MAX)?;
        let mut replicas = Vec::with_capacity(shards);
        for _ in 0..shards {
            replicas.push(reader.sequence("a shard's replicas", SHARD_REPLICAS_MAX)?);
        }
        let count = reader.count("the clients", CLIENTS_MAX)?;
        reader.note_sequence::<(ClientId, Permission)>(count);
        let mut clients = Vec::new();
        for _ in 0..count {
            clients.push(decode_client(reader)?);
        }
        let in_order = keys.windows(2).all(|pair| pair[0] < pair[1]) && clients.windows(2).all(|pair| pair[0].0 < pair[1].0);
        if !in_order {
            return Err(DecodeError::NotCanonical("the order of operators or clients"));
        }
        Ok(Self { version, previous, operators: Operators { needed, keys }, replicas, clients })
    }
}

impl Encode for SignedConfiguration {
    fn encode(&self, out: &mut Vec<u8>) {
        self.configuration.encode(out);
        self.encode_signatures(out);
    }
}

impl Decode for SignedConfiguration {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        let configuration = Configuration::decode(reader)?;
        let count = reader.count("the signatures of a configuration", OPERATORS_MAX)?;
        let mut signatures: Vec<(u16, [u8; 64])> = Vec::with_capacity(count);
        for _ in 0..count {
            let operator = u16::decode(reader)?;
            if signatures.last().is_some_and(|(last, _)| *last >= operator) {
                return Err(DecodeError::NotCanonical("the order of signatures"));
            }
            signatures.push((operator, reader.array()?));
        }
        Ok(Self { configuration, signatures })
    }
}

impl SignedConfiguration {
    fn encode_signatures(&self, out: &mut Vec<u8>) {
        encode_count(self.signatures.len(), out);
        for (operator, signature) in &self.signatures {
            operator.encode(out);
            signature.encode(out);
        }
    }

    /// What a long one takes time to find out. It is encoded and hashed for this, and no more afterwards.
    pub(crate) fn measure(&self, cluster: ClusterId) -> Measure {
        let mut signatures = Vec::new();
        self.encode_signatures(&mut signatures);
        let (digest, bytes) = self.configuration.digest_and_bytes(cluster);
        Measure { digest, bytes: bytes + signatures.len() }
    }

    /// Reads one that must fill `bytes`.
    ///
    /// # Errors
    /// Any [`DecodeError`].
    pub fn read(bytes: Bytes, cluster: ClusterId) -> Result<Self, DecodeError> {
        if bytes.len() > CONFIGURATION_BYTES_MAX {
            return Err(DecodeError::OverLimit("a configuration"));
        }
        Self::from_bytes(bytes, cluster)
    }

    /// Adds a signature, unless that operator has signed already.
    pub fn add(&mut self, signature: (u16, [u8; 64])) {
        if let Err(at) = self.signatures.binary_search_by_key(&signature.0, |(operator, _)| *operator) {
            self.signatures.insert(at, signature);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ForkError;

    thread_local! {
        /// How many digests of configurations this thread has computed.
        pub(super) static DIGESTS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
    }

    #[test]
    fn a_configuration_is_hashed_once_whatever_is_wrong_with_it() {
        let mut chain = chain();
        let known = next(&chain, &[100, 101], |_| {});
        chain.extend(known.clone()).expect("two of three signed");
        let mut garbage = known.clone();
        garbage.configuration.previous = [7; 32];
        garbage.configuration.clients.clear();
        let mut fork = known.clone();
        fork.configuration.clients.clear();
        for (signed, is_old) in [(known, true), (garbage, false), (fork, false)] {
            DIGESTS.set(0);
            let measure = signed.measure(chain.id());
            assert_eq!(measure.bytes, signed.to_bytes().len());
            assert_eq!(matches!(chain.check_as(&signed, measure), Err(ChainError::Old { .. })), is_old);
            assert_eq!(DIGESTS.get(), 1);
        }
    }
    fn secret(number: u8) -> SecretKey {
        SecretKey::from_bytes([number; 32])
    }

    fn holder(number: u8) -> Holder {
        Holder { public_key: secret(number).public(), address: format!("db{number}:7400"), http: "127.0.0.1:7401".to_owned() }
    }

    fn operators(needed: u16, numbers: &[u8]) -> Operators {
        let mut keys: Vec<[u8; 32]> = numbers.iter().map(|number| secret(*number).public()).collect();
        keys.sort_unstable();
        Operators { needed, keys }
    }

    /// A shard of six, a client, and three operators of whom two must sign.
    fn chain() -> Chain {
        let client = Permission { public_key: secret(50).public(), read_prefixes: vec![Key::from("a/")], ..Permission::default() };
        let keys = (0..6).map(|number| secret(number).public()).collect();
        let cluster = Cluster::new(ClusterId::new([7; 16]), 1, Placement::Hash, vec![keys], vec![(ClientId(1), client)]).expect("it fits");
        let holders = vec![(0..6).map(holder).collect()];
        let first = Configuration::first(&cluster, "any", Signatures::Ed25519, holders, operators(2, &[100, 101, 102]));
        Chain::new(cluster, first)
    }

    /// The next version, changed by `change` and signed by those operators.
    fn next(chain: &Chain, by: &[u8], change: impl FnOnce(&mut Configuration)) -> SignedConfiguration {
        let before = chain.newest();
        let mut configuration = Configuration { version: before.version + 1, previous: chain.digest(), ..before.clone() };
        change(&mut configuration);
        let mut signed = SignedConfiguration { configuration, signatures: Vec::new() };
        for number in by {
            let signature = signed.configuration.sign(chain.id(), &before.operators, &secret(*number)).expect("an operator");
            signed.add(signature);
        }
        signed
    }

    #[test]
    fn a_chain_grows_by_what_enough_operators_signed() {
        let mut chain = chain();
        let revoked = next(&chain, &[100, 102], |next| next.clients.clear());
        let bytes: Bytes = revoked.to_bytes().into();
        assert_eq!(SignedConfiguration::read(bytes, chain.id()), Ok(revoked.clone()));
        let cluster = chain.extend(revoked.clone()).expect("two of three signed");
        assert_eq!((cluster.clients().len(), chain.version(), chain.after(0).len(), chain.after(1).len()), (0, 1, 1, 0));
        assert_eq!(chain.check(&revoked), Err(ChainError::Old { found: 1, known: 1 }));
        // The next one is signed by whom this one names.
        let handed_over = next(&chain, &[101, 102], |next| next.operators = operators(1, &[103]));
        chain.extend(handed_over).expect("two of three signed");
        let by_the_old = next(&chain, &[103], |_| {});
        let mut by_the_old_only = by_the_old.clone();
        by_the_old_only.signatures = vec![(0, secret(100).sign(b"anything"))];
        assert_eq!(chain.check(&by_the_old_only), Err(ChainError::BadSignature { operator: 0 }));
        assert!(chain.check(&by_the_old).is_ok());
    }

    #[test]
    fn a_configuration_signed_by_too_few_is_refused() {
        let chain = chain();
        assert_eq!(chain.check(&next(&chain, &[100], |_| {})), Err(ChainError::TooFew { signed: 1, needed: 2 }));
        let mut changed = next(&chain, &[100, 101], |_| {});
        changed.configuration.clients.clear();
        assert!(matches!(chain.check(&changed), Err(ChainError::BadSignature { .. })));
        let mut elsewhere = next(&chain, &[100, 101], |_| {});
        let other = ClusterId::new([8; 16]);
        let operators = &chain.newest().operators;
        elsewhere.signatures =
            [100, 101].map(|number| elsewhere.configuration.sign(other, operators, &secret(number)).expect("one")).into();
        elsewhere.signatures.sort_unstable();
        assert!(matches!(chain.check(&elsewhere), Err(ChainError::BadSignature { .. })), "a signature is for one cluster");
    }

    #[test]
    fn a_configuration_that_does_not_follow_the_newest_is_refused() {
        let mut chain = chain();
        let [one, other] = [true, false].map(|one| {
            next(&chain, &[100, 101], |next| {
                if one {
                    next.clients.clear()
                }
            })
        });
        let early = next(&chain, &[100, 101], |next| next.version = 2);
        assert_eq!(chain.check(&early), Err(ChainError::Early { found: 2, known: 0 }));
        chain.extend(one).expect("it follows");
        assert!(matches!(chain.check(&other), Err(ChainError::Fork(fork)) if fork.version() == 1));
        // It says so of operators only by their signatures, and by those of the version before.
        let unsigned = SignedConfiguration { signatures: Vec::new(), ..other.clone() };
        assert_eq!(chain.check_unsigned(&other.configuration), Err(ChainError::Old { found: 1, known: 1 }));
        assert_eq!(chain.check(&unsigned), Err(ChainError::TooFew { signed: 0, needed: 2 }));
        let mut forged = other.clone();
        forged.signatures[0].1 = secret(100).sign(b"something else");
        assert_eq!(chain.check(&forged), Err(ChainError::BadSignature { operator: forged.signatures[0].0 }));
        let mut of_others = unsigned;
        of_others.configuration.previous = [9; 32];
        assert_eq!(chain.check(&of_others), Err(ChainError::OtherBefore { version: 1 }), "nothing shows who is wrong");
        let first =
            SignedConfiguration { configuration: Configuration { version: 0, ..other.configuration.clone() }, signatures: Vec::new() };
        assert_eq!(chain.check(&first), Err(ChainError::Old { found: 0, known: 1 }), "nobody signs the first");
        let after_other = next(&chain, &[100, 101], |next| next.previous = other.configuration.digest(chain.id()));
        assert_eq!(chain.check(&after_other), Err(ChainError::OtherBefore { version: 2 }));
    }

    #[test]
    fn two_configurations_of_one_version_prove_to_everybody_who_signed_both() {
        let at_first = chain();
        let revoked = |next: &mut Configuration| next.clients.clear();
        let (mut chain, one, other) = (at_first.clone(), next(&at_first, &[100, 101], revoked), next(&at_first, &[101, 102], |_| {}));
        chain.extend(one.clone()).expect("two of three signed");
        let Err(ChainError::Fork(fork)) = chain.check(&other) else { panic!("operators signed two") };
        assert_eq!((fork.version(), fork.signers()), (1, &[secret(101).public()][..]), "the others signed one");
        // By whoever has the version before, on either side or on none.
        let bytes = fork.to_bytes();
        let mut on_the_other_side = at_first.clone();
        on_the_other_side.extend(other.clone()).expect("two of three signed");
        for chain in [&at_first, &chain, &on_the_other_side] {
            assert_eq!(Fork::verify(&bytes, chain).as_ref(), Ok(&*fork));
        }
        // Not with one byte changed, wherever it is.
        for at in 0..bytes.len() {
            let mut changed = bytes.to_vec();
            changed[at] ^= 1;
            assert!(Fork::verify(&changed.into(), &chain).is_err(), "byte {at}");
        }
        let proof = |one: &SignedConfiguration, other: &SignedConfiguration| {
            Fork::of(&chain.first.operators, one.clone(), other.clone()).to_bytes()
        };
        assert_eq!(Fork::verify(&proof(&one, &one), &chain), Err(ForkError::NotTwo));
        // The same one, signed by others.
        let again = next(&at_first, &[101, 102], revoked);
        assert_eq!(Fork::verify(&proof(&one, &again), &chain), Err(ForkError::NotTwo));
        let later = next(&chain, &[101, 102], |_| {});
        assert_eq!(Fork::verify(&proof(&one, &later), &chain), Err(ForkError::NotTwo));
        let of_one = next(&at_first, &[101], |_| {});
        let too_few = ForkError::Refused(ChainError::TooFew { signed: 1, needed: 2 });
        assert_eq!(Fork::verify(&proof(&one, &of_one), &chain), Err(too_few));
        let after = next(&chain, &[101, 102], |next| {
            next.clients.push((ClientId(3), Permission { public_key: secret(51).public(), ..Permission::default() }))
        });
        assert_eq!(Fork::verify(&proof(&later, &after), &at_first), Err(ForkError::Unknown { version: 2 }));
        assert!(Fork::verify(&proof(&later, &after), &chain).is_ok());
        // Where there is no operator, nobody is to blame.
        let mut nobody = at_first;
        nobody.first.operators = Operators::default();
        let unsigned = [&one, &other].map(|signed| SignedConfiguration { signatures: Vec::new(), ..signed.clone() });
        assert_eq!(Fork::verify(&proof(&unsigned[0], &unsigned[1]), &nobody), Err(ForkError::Nobody));
    }

    #[test]
    fn no_more_than_f_places_of_a_shard_change_at_a_time() {
        let mut chain = chain();
        let two = next(&chain, &[100, 101], |next| {
            next.replicas[0][1] = holder(11);
            next.replicas[0][2] = holder(12);
        });
        assert_eq!(chain.check(&two), Err(ChainError::TooManyPlaces { shard: 0, changed: 2, faults: 1 }));
        let fewer = next(&chain, &[100, 101], |next| drop(next.replicas[0].pop()));
        assert_eq!(chain.check(&fewer), Err(ChainError::Shape));
        let one = next(&chain, &[100, 101], |next| next.replicas[0][1] = holder(11));
        chain.extend(one).expect("it is one");
        assert_eq!(chain.clusters().map(|(version, _)| version).collect::<Vec<_>>(), [1, 0]);
    }

    #[test]
    fn a_key_that_has_gone_never_comes_back() {
        let mut chain = chain();
        let replaced = next(&chain, &[100, 101], |next| next.replicas[0][1] = holder(11));
        chain.extend(replaced).expect("it is one");
        for back in [
            next(&chain, &[100, 101], |next| next.replicas[0][1] = holder(1)),
            next(&chain, &[100, 101], |next| next.clients[0].1.public_key = secret(1).public()),
            next(&chain, &[100, 101], |next| next.operators = operators(1, &[1])),
        ] {
            assert!(matches!(chain.check(&back), Err(ChainError::KeyReturns(_))));
        }
        let shared = next(&chain, &[100, 101], |next| next.operators = operators(1, &[50]));
        assert!(matches!(chain.check(&shared), Err(ChainError::SharedKey(_))));
        let weak = next(&chain, &[100, 101], |next| next.clients[0].1.public_key = [0; 32]);
        assert!(matches!(chain.check(&weak), Err(ChainError::BadKey { .. })));
        // Keys cost time: nobody is owed it without signatures.
        let unsigned = SignedConfiguration { signatures: Vec::new(), ..weak };
        assert_eq!(chain.check(&unsigned), Err(ChainError::TooFew { signed: 0, needed: 2 }));
    }

    #[test]
    fn a_key_never_gets_another_owner() {
        let chain = chain();
        let changes: [fn(&mut Configuration); 4] = [
            |next| (next.replicas[0][1], next.clients[0].1.public_key) = (holder(11), secret(1).public()),
            |next| (next.replicas[0][1], next.clients[0].1.public_key) = (holder(50), secret(51).public()),
            |next| next.clients[0].0 = ClientId(2),
            |next| (next.operators, next.clients[0].1.public_key) = (operators(2, &[101, 102]), secret(100).public()),
        ];
        for change in changes {
            assert!(matches!(chain.check(&next(&chain, &[100, 101], change)), Err(ChainError::KeyMoves(_))));
        }
        // Operators have no other names, and so no places.
        let fewer = next(&chain, &[100, 101], |next| next.operators = operators(2, &[102, 103, 101]));
        assert!(chain.check(&fewer).is_ok());
    }

    #[test]
    fn half_of_the_operators_are_not_enough() {
        let chain = chain();
        for (needed, numbers) in [(1, &[100, 101][..]), (0, &[]), (3, &[100, 101]), (0, &[100])] {
            let next = next(&chain, &[100, 101], |next| next.operators = operators(needed, numbers));
            assert!(matches!(chain.check(&next), Err(ChainError::Operators { .. })), "{needed} of {}", numbers.len());
        }
    }

    #[test]
    fn a_configuration_longer_than_its_bound_is_refused_whoever_signs_it() {
        let mut chain = chain();
        let prefix = |number: usize| Key::from(format!("{number:01000}").as_str());
        let long = |prefixes: usize| {
            next(&chain, &[100, 101], |next| {
                for number in 0..5 {
                    let read_prefixes = (0..prefixes).map(prefix).collect();
                    let public_key = secret(110 + number).public();
                    next.clients
                        .push((ClientId(10 + u64::from(number)), Permission { public_key, read_prefixes, ..Permission::default() }));
                }
            })
        };
        let (fits, too_long) = (long(800), long(900));
        assert!(fits.to_bytes().len() <= CONFIGURATION_BYTES_MAX && CONFIGURATION_BYTES_MAX < too_long.to_bytes().len());
        assert_eq!(chain.check(&too_long), Err(ChainError::TooLong));
        chain.extend(fits).expect("it is not longer than it may be");
        assert_eq!(chain.check(&too_long), Err(ChainError::TooLong), "nor is it kept as another of a known version");
        // All of them together have a bound of their own.
        chain.bytes = CHAIN_BYTES_MAX;
        let next = next(&chain, &[100, 101], |next| next.clients.clear());
        assert_eq!(chain.check(&next), Err(ChainError::TooLong));
    }

    #[test]
    fn what_is_not_in_its_one_form_is_not_read() {
        let chain = chain();
        let signed = next(&chain, &[100, 101], |_| {});
        let read = |bytes: Vec<u8>| SignedConfiguration::read(bytes.into(), chain.id());
        let mut twice = signed.clone();
        twice.signatures[1] = twice.signatures[0];
        assert!(read(twice.to_bytes()).is_err(), "an operator signs once");
        let mut disordered = signed.clone();
        disordered.configuration.operators.keys.reverse();
        assert!(read(disordered.to_bytes()).is_err());
        for end in 0..signed.to_bytes().len() {
            assert!(read(signed.to_bytes()[..end].to_vec()).is_err(), "cut at {end}");
        }
    }
}
