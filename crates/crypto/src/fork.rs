//! What proves to everybody that operators cheat: two configurations of one version, both signed by enough operators of the version before.
//!
//! No correct operator signs two of one version, and more than half of them sign each. So at least one has signed both, and is to blame; whoever has signed one
//! alone is not. Both configurations are in the proof, since an operator signs the digest of all of one: without them nothing shows of which version it is.

use std::fmt;

use bytes::Bytes;
use types::codec::{Decode as _, DecodeError, Encode as _, Reader};
use types::{ClusterId, Digest};

use crate::{Chain, ChainError, Operators, SignedConfiguration};

/// What the bytes of a proof begin with: a format version, and what it is.
const HEADER: &[u8] = b"\x01two configurations\0";

/// Two configurations of one version, each signed by enough operators. [`Chain::check`] and [`Fork::verify`] alone make one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fork {
    one: SignedConfiguration,
    other: SignedConfiguration,
    /// The public keys of those who signed both.
    signers: Vec<[u8; 32]>,
}

/// Why bytes prove nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ForkError {
    /// They do not begin as such a proof does.
    #[error("these are no two configurations, or in a newer format")]
    Header,
    /// They cannot be read.
    #[error("it is damaged: {0}")]
    Damaged(#[from] DecodeError),
    /// They are one configuration, or of two versions.
    #[error("these are not two configurations of one version")]
    NotTwo,
    /// Whose signatures they take cannot be told.
    #[error("who had to sign version {version} is not known here: the version before it is missing")]
    Unknown {
        /// The version.
        version: u64,
    },
    /// Nobody has signed both.
    #[error("no operator has signed both")]
    Nobody,
    /// One of them is not signed by enough operators, or a signature is bad.
    #[error(transparent)]
    Refused(#[from] ChainError),
}

impl Fork {
    /// Two configurations that `operators` have signed, as was checked.
    pub(crate) fn of(operators: &Operators, one: SignedConfiguration, other: SignedConfiguration) -> Self {
        let has_signed_other = |operator: &u16| other.signatures.iter().any(|(also, _)| also == operator);
        let both = one.signatures.iter().map(|(operator, _)| operator).filter(|operator| has_signed_other(operator));
        let signers = both.filter_map(|operator| operators.keys.get(usize::from(*operator)).copied()).collect();
        Self { one, other, signers }
    }

    /// The version of both.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.one.configuration.version
    }

    /// The public keys of the operators who signed both.
    #[must_use]
    pub fn signers(&self) -> &[[u8; 32]] {
        &self.signers
    }

    /// The digest of the one that came second.
    #[must_use]
    pub fn other_digest(&self, cluster: ClusterId) -> Digest {
        self.other.configuration.digest(cluster)
    }

    /// As it is kept.
    #[must_use]
    pub fn to_bytes(&self) -> Bytes {
        let mut bytes = HEADER.to_vec();
        self.one.encode(&mut bytes);
        self.other.encode(&mut bytes);
        bytes.into()
    }

    /// Reads one, and checks it with nothing but `chain`, which has the version before: all signatures are good, and by enough of the operators that this names.
    /// It does not matter which of the two `chain` has, if any.
    ///
    /// # Errors
    /// [`ForkError`], when it proves nothing.
    pub fn verify(bytes: &Bytes, chain: &Chain) -> Result<Self, ForkError> {
        if !bytes.starts_with(HEADER) {
            return Err(ForkError::Header);
        }
        let mut reader = Reader::new(bytes.slice(HEADER.len()..), chain.id());
        let (one, other) = (SignedConfiguration::decode(&mut reader)?, SignedConfiguration::decode(&mut reader)?);
        reader.finish()?;
        let version = one.configuration.version;
        if other.configuration.version != version || one.configuration == other.configuration {
            return Err(ForkError::NotTwo);
        }
        let operators = chain.operators_before(version).ok_or(ForkError::Unknown { version })?;
        for signed in [&one, &other] {
            chain.check_signatures(signed, &signed.configuration.digest(chain.id()), operators)?;
        }
        let fork = Self::of(operators, one, other);
        // Where there are no operators, nobody's signatures are enough.
        if fork.signers.is_empty() { Err(ForkError::Nobody) } else { Ok(fork) }
    }
}

impl fmt::Display for Fork {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys: Vec<String> = self.signers.iter().map(hex::encode).collect();
        write!(formatter, "these signed two configurations of version {}: {}", self.version(), keys.join(", "))
    }
}
