//! Messages on their way: as machines hear them, and what sending, reading and checking them is charged for.

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use crypto::{BatchSignature, SignatureClaims, Signatures, SignedRoot, Verified, Verifier};
use types::codec::Encode;
use types::{Cluster, Digest};

/// A message, ready to be sent. Receivers share it.
#[derive(Debug)]
pub(crate) struct EncodedMessage<M> {
    pub message: Verified<M>,
    /// Its length on the wire.
    pub bytes: usize,
    /// The root of each claim in it.
    pub roots: Vec<Root>,
}

/// A signed root: the process that signed it, and how many it had signed before.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Root {
    pub signer: usize,
    pub serial: u64,
}

impl Root {
    /// Signatures for `count` statements under this root. They are as long as real ones.
    pub fn signatures(self, count: usize) -> Vec<BatchSignature> {
        let leaves = count.next_power_of_two();
        let path: Arc<[Digest]> = vec![[0; 32]; leaves.trailing_zeros() as usize].into();
        let mut root = [0; 32];
        root[..8].copy_from_slice(&(self.signer as u64).to_le_bytes());
        root[8..16].copy_from_slice(&self.serial.to_le_bytes());
        let size = u16::try_from(leaves).expect("batches are small");
        let signed = Arc::new(SignedRoot { root, count: size, signature: [0; 64] });
        (0..count)
            .map(|index| BatchSignature {
                signed: Arc::clone(&signed),
                index: u16::try_from(index).expect("batches are small"),
                path: Arc::clone(&path),
            })
            .collect()
    }

    fn under(signature: &BatchSignature) -> Self {
        let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes are a number"));
        let root = &signature.signed.root;
        Self { signer: usize::try_from(number(&root[..8])).expect("there are few processes"), serial: number(&root[8..16]) }
    }
}

/// How many encoded messages are searched for one with the same content.
const RECENT_MAX: usize = 16;

/// Encodes messages.
pub(crate) struct MessageEncoder<M> {
    cluster: Arc<Cluster>,
    /// It checks form, and no signatures: there are none.
    verifier: Verifier,
    buffer: Vec<u8>,
    /// The last messages: one that is sent to all of a shard is encoded once.
    recent: VecDeque<Rc<EncodedMessage<M>>>,
}

impl<M: SignatureClaims + Encode + PartialEq> MessageEncoder<M> {
    pub fn new(cluster: Arc<Cluster>) -> Self {
        let verifier = Verifier::new(Arc::clone(&cluster), Signatures::Off, 0).expect("no key is looked at");
        Self { cluster, verifier, buffer: Vec::new(), recent: VecDeque::new() }
    }

    pub fn pack(&mut self, message: M) -> Rc<EncodedMessage<M>> {
        if let Some(same) = self.recent.iter().find(|recent| *recent.message == message) {
            return Rc::clone(same);
        }
        self.buffer.clear();
        message.encode(&mut self.buffer);
        let mut claims = Vec::new();
        message.claims(&self.cluster, &mut claims).expect("honest participants say nothing malformed");
        let roots = claims.iter().map(|claim| Root::under(claim.signature)).collect();
        drop(claims);
        let message = self.verifier.verify(message).expect("honest participants say nothing malformed");
        let encoded_message = Rc::new(EncodedMessage { message, bytes: self.buffer.len(), roots });
        self.recent.push_front(Rc::clone(&encoded_message));
        self.recent.truncate(RECENT_MAX);
        encoded_message
    }
}

/// How many of the last roots of one signer are told apart at most.
const REMEMBERED_MAX: u64 = 512;

/// Which of one signer's roots a process has checked, as far as it remembers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Known {
    newest: u64,
    bits: [u64; (REMEMBERED_MAX / 64) as usize],
}

impl Known {
    /// Whether `serial` is known, to somebody who remembers so many; it is, from now on.
    pub fn learn(&mut self, serial: u64, remembered: u64) -> bool {
        let remembered = remembered.clamp(1, REMEMBERED_MAX);
        if serial >= self.newest + REMEMBERED_MAX {
            self.bits = Default::default();
        } else {
            (self.newest + 1..=serial).for_each(|passed| self.bits[place(passed)] &= !bit(passed));
        }
        self.newest = self.newest.max(serial);
        if serial + remembered <= self.newest {
            return false;
        }
        let known = self.bits[place(serial)] & bit(serial) != 0;
        self.bits[place(serial)] |= bit(serial);
        known
    }
}

fn place(serial: u64) -> usize {
    (serial % REMEMBERED_MAX / 64) as usize
}

fn bit(serial: u64) -> u64 {
    1 << (serial % 64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roots_are_cached_until_they_are_evicted() {
        let mut known = Known::default();
        assert!(!known.learn(0, 4));
        assert!(known.learn(0, 4));
        assert!(!known.learn(2, 4));
        assert!(!known.learn(1, 4), "a root passed over is not known");
        assert!(known.learn(1, 4) && known.learn(2, 4));
        assert!(!known.learn(4, 4));
        assert!(!known.learn(0, 4), "the fifth last is forgotten");
        assert!(!known.learn(4 + REMEMBERED_MAX, 4));
        assert!(!known.learn(3 + REMEMBERED_MAX, 4), "nothing is left of what stood in its place");
    }

    #[test]
    fn signatures_say_under_which_root_they_stand_and_are_well_formed() {
        for count in [1, 2, 3, 63, 64] {
            let signatures = Root { signer: 7, serial: 300 }.signatures(count);
            assert_eq!(signatures.len(), count);
            assert!(signatures.iter().all(BatchSignature::is_well_formed), "{count}");
            let root = Root::under(&signatures[count - 1]);
            assert_eq!((root.signer, root.serial), (7, 300));
        }
    }
}
