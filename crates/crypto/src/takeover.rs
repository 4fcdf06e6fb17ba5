//! How a member takes configurations over and hands them on, without the disk and the connections: a shell brings those.
//!
//! ```text
//!   a configuration comes ──▶ Takeover::check ──▶ Pending ──▶ the shell writes Pending::chain down ──▶ Takeover::go_by
//! ```
//!
//! There is no other way to go by one: what was not checked is no [`Pending`], and what could not be written is not gone by. So a member that comes
//! back never goes by an earlier one again.

use std::sync::Arc;

use mutants::{Mutant, broken};
use types::codec::{Decode, DecodeError, Encode, Reader};
use types::{Cluster, ClusterId};

use crate::configuration::Measure;
use crate::{Chain, ChainError, SignedConfiguration};

/// So many configurations are on their way to one peer at most, before it says that it has the first.
pub const AHEAD_MAX: u64 = 4;

/// A configuration of which is known what takes time to find out: whoever hands over a long one that is refused holds up nobody who waits for the chain.
#[derive(Debug)]
pub struct Measured {
    signed: SignedConfiguration,
    measure: Measure,
}

impl Measured {
    /// Measures `signed`, of the cluster of that name.
    #[must_use]
    pub fn new(signed: SignedConfiguration, cluster: ClusterId) -> Self {
        Self { measure: signed.measure(cluster), signed }
    }
}

/// The configurations that a member goes by, and has kept.
#[derive(Clone, Debug)]
pub struct Takeover {
    chain: Chain,
}

/// The chain with one more configuration, which is checked and not kept yet.
#[derive(Debug)]
pub struct Pending {
    chain: Chain,
    cluster: Arc<Cluster>,
}

impl Pending {
    /// What is to be kept.
    #[must_use]
    pub fn chain(&self) -> &Chain {
        &self.chain
    }
}

/// What handing over a configuration that is not taken over says of who did it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing: it is known already, or others are missing before it.
    None,
    /// The two members go by different earlier configurations, or it lies: nothing shows why.
    Apart,
    /// Nothing of it, and something of operators: they signed two of one version, as their signatures show.
    Operators,
    /// It lies: every correct member checks what it hands over.
    Lie,
}

impl Fault {
    /// Of whom hands over what is refused for `error`.
    #[must_use]
    pub fn of(error: &ChainError) -> Self {
        match error {
            ChainError::Old { .. } | ChainError::Early { .. } => Self::None,
            ChainError::OtherBefore { .. } | ChainError::NoOperators => Self::Apart,
            ChainError::Fork(_) => Self::Operators,
            _ => Self::Lie,
        }
    }
}

impl Takeover {
    /// A member that goes by the newest of `chain`, which it has kept.
    #[must_use]
    pub fn new(chain: Chain) -> Self {
        Self { chain }
    }

    /// All that it goes by.
    #[must_use]
    pub fn chain(&self) -> &Chain {
        &self.chain
    }

    /// Checks the next configuration.
    ///
    /// # Errors
    /// The first rule that it breaks.
    pub fn check(&self, next: SignedConfiguration) -> Result<Pending, ChainError> {
        self.check_measured(Measured::new(next, self.chain.id()))
    }

    /// The same of one that is measured already.
    ///
    /// # Errors
    /// The first rule that it breaks.
    pub fn check_measured(&self, next: Measured) -> Result<Pending, ChainError> {
        let Measured { signed, measure } = next;
        // Before all of it is copied.
        self.chain.check_as(&signed, measure)?;
        let mut chain = self.chain.clone();
        let cluster = Arc::new(chain.extend_as(signed, measure)?);
        Ok(Pending { chain, cluster })
    }

    /// Goes by `pending`, which is `kept` where it outlives the process.
    ///
    /// # Errors
    /// Why it is not: then nothing changes.
    pub fn go_by<E>(&mut self, pending: Pending, kept: Result<(), E>) -> Result<Arc<Cluster>, E> {
        if !broken(Mutant::ConfigurationUnkept) {
            kept?;
        }
        self.chain = pending.chain;
        Ok(pending.cluster)
    }
}

/// What is known of the peer at the other end of one connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeerVersions {
    /// Up to which version it has said to know.
    known: u64,
    /// Up to which it was handed configurations.
    handed: u64,
    /// The newest that it has handed over itself.
    handed_by_it: u64,
}

impl PeerVersions {
    /// It has all configurations up to `version`.
    pub fn knows(&mut self, version: u64) {
        self.known = self.known.max(version);
    }

    /// Up to which version it has them.
    #[must_use]
    pub fn known(&self) -> u64 {
        self.known
    }

    /// It hands over `version`. Gives whether that is newer than all that it has handed over: a correct one hands over each once, in their order.
    pub fn hands_over(&mut self, version: u64) -> bool {
        let is_newer = version > self.handed_by_it;
        self.handed_by_it = self.handed_by_it.max(version);
        is_newer
    }

    /// The next that it is to be handed, of which those up to `newest` may be; nothing while as many are on their way as may be.
    #[must_use]
    pub fn next_of(&self, newest: u64) -> Option<u64> {
        let next = self.handed.max(self.known).checked_add(1)?;
        (next <= newest.min(self.known.saturating_add(AHEAD_MAX))).then_some(next)
    }

    /// It is handed `version`.
    pub fn is_handed(&mut self, version: u64) {
        self.handed = self.handed.max(version);
    }

    /// Up to which version it was handed them.
    #[must_use]
    pub fn handed(&self) -> u64 {
        self.handed
    }
}

/// The tag of a configuration.
const CONFIGURATION: u8 = 2;

/// What members tell one another of configurations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Control {
    /// The sender knows all up to this version.
    Version(u64),
    /// The next one that the receiver may lack.
    Configuration(Box<SignedConfiguration>),
}

impl Control {
    /// Whether encoded bytes tell a whole configuration: nothing but that is long.
    #[must_use]
    pub fn is_configuration(bytes: &[u8]) -> bool {
        bytes.first() == Some(&CONFIGURATION)
    }
}

impl Encode for Control {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Version(version) => {
                out.push(1);
                version.encode(out);
            }
            Self::Configuration(signed) => {
                out.push(CONFIGURATION);
                signed.encode(out);
            }
        }
    }
}

impl Decode for Control {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        match u8::decode(reader)? {
            1 => Ok(Self::Version(u64::decode(reader)?)),
            CONFIGURATION => Ok(Self::Configuration(Box::new(SignedConfiguration::decode(reader)?))),
            _ => Err(DecodeError::UnknownTag("what is told of a configuration")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_is_handed_each_configuration_once_and_a_few_at_a_time() {
        let mut peer = PeerVersions::default();
        peer.knows(1);
        let hand = |peer: &mut PeerVersions| {
            let mut handed = Vec::new();
            while let Some(next) = peer.next_of(9) {
                peer.is_handed(next);
                handed.push(next);
            }
            handed
        };
        assert_eq!(hand(&mut peer), [2, 3, 4, 5]);
        peer.knows(3);
        assert_eq!(hand(&mut peer), [6, 7]);
        peer.knows(9);
        assert_eq!(hand(&mut peer), [0; 0]);
        assert!(peer.hands_over(2) && !peer.hands_over(2) && !peer.hands_over(1) && peer.hands_over(3));
        peer.knows(u64::MAX);
        assert_eq!(peer.next_of(u64::MAX), None, "whoever says that it knows everything is handed nothing");
    }
}
