//! What later messages of a frame need not say again.
//!
//! The votes of one batch stand under one signed root, and neighbours share most of their way up. A frame of certificates says
//! the same few roots and paths over and over. So the first seal of a root is written whole, and each later one as what it does not
//! share with the one before it under that root. Both sides remember the same: who packs and who unpacks go through the frame in
//! one order. Votes and what is made of them pack; what is said seldom (logged decisions, elections) is written whole.

use std::sync::Arc;

use types::Digest;
use types::codec::{Decode, DecodeError, Encode, Reader, SEQUENCE_AT_ONCE_MAX, encode_count};
use types::limits::{FRAME_BYTES_MAX, SEAL_PATH_MAX};

use crate::merkle;
use crate::{Seal, SignedRoot};

/// So many roots are remembered at once: of six replicas, the votes of twenty batches each. Fewer than a byte can name.
const ROOTS_MAX: usize = 128;
/// What is written before a seal whose root is not remembered; before another, one more than the root's place.
const WHOLE: u8 = 0;

/// What travels in frames.
pub trait Pack: Encode + Decode {
    /// Appends the message as it stands after what `packing` remembers of the frame.
    fn pack(&self, _packing: &mut Packing, out: &mut Vec<u8>) {
        self.encode(out);
    }

    /// Reads what [`Pack::pack`] has written, after the same messages.
    ///
    /// # Errors
    /// When it is not what that would write.
    fn unpack(reader: &mut Reader, _packing: &mut Packing) -> Result<Self, DecodeError> {
        Self::decode(reader)
    }
}

/// What is remembered of a frame, from its first message on.
#[derive(Debug)]
pub struct Packing {
    /// The last seal under each root.
    last: Vec<Seal>,
    /// Which is forgotten for the next root, when there are too many.
    oldest: usize,
    left_out: usize,
    left_out_max: usize,
}

impl Default for Packing {
    fn default() -> Self {
        Self::allowing(FRAME_BYTES_MAX)
    }
}

impl Packing {
    /// For a frame that may leave out so many bytes: there is room for them.
    #[must_use]
    pub fn allowing(left_out_max: usize) -> Self {
        Self { last: Vec::new(), oldest: 0, left_out: 0, left_out_max }
    }

    /// How many bytes were left out so far. A frame with them must not be longer than any frame may be, or a short one
    /// could fill the memory of whoever unpacks it.
    #[must_use]
    pub fn left_out(&self) -> usize {
        self.left_out
    }

    /// Appends `seal`.
    pub fn pack_seal(&mut self, seal: &Seal, out: &mut Vec<u8>) {
        let known = self.find(&seal.signed);
        let Some((place, own)) = known.and_then(|place| Some((place, self.own_of(place, seal)?))) else {
            out.push(WHOLE);
            seal.encode(out);
            self.remember(known, seal.clone());
            return;
        };
        out.push(place as u8 + 1);
        seal.index.encode(out);
        for sibling in &seal.path[..own] {
            out.extend_from_slice(sibling);
        }
        self.replace(place, own, seal.clone());
    }

    /// Reads a seal.
    ///
    /// # Errors
    /// When it is malformed, says what could have been left out, or too much was left out.
    pub fn unpack_seal(&mut self, reader: &mut Reader) -> Result<Seal, DecodeError> {
        let tag = u8::decode(reader)?;
        if tag == WHOLE {
            let seal = Seal::decode(reader)?;
            let known = self.find(&seal.signed);
            if known.is_some_and(|place| self.own_of(place, &seal).is_some()) {
                return Err(DecodeError::NotCanonical("a seal written whole"));
            }
            self.remember(known, seal.clone());
            return Ok(seal);
        }
        let place = usize::from(tag) - 1;
        let last = self.last.get(place).ok_or(DecodeError::OverLimit("a seal's root"))?;
        let index = u16::decode(reader)?;
        let length = path_length(usize::from(index), last).ok_or(DecodeError::OverLimit("a seal's index"))?;
        let own = own_siblings(usize::from(index), last).ok_or(DecodeError::OverLimit("a seal's index"))?;
        if self.left_out + spared(length, own) > self.left_out_max {
            return Err(DecodeError::OverLimit("what a frame leaves out"));
        }
        let path = if own == 0 {
            Arc::clone(&last.path)
        } else {
            let mut path = [[0; 32]; SEAL_PATH_MAX];
            for sibling in &mut path[..own] {
                *sibling = reader.array()?;
            }
            path[own..length].copy_from_slice(&last.path[last.path.len() - (length - own)..]);
            Arc::from(&path[..length])
        };
        let seal = Seal { signed: Arc::clone(&last.signed), index, path };
        self.replace(place, own, seal.clone());
        Ok(seal)
    }

    /// Appends what may be there.
    pub fn pack_option<T: Pack>(&mut self, value: Option<&T>, out: &mut Vec<u8>) {
        value.is_some().encode(out);
        if let Some(value) = value {
            value.pack(self, out);
        }
    }

    /// Reads what may be there.
    ///
    /// # Errors
    /// When it is malformed.
    pub fn unpack_option<T: Pack>(&mut self, reader: &mut Reader) -> Result<Option<T>, DecodeError> {
        if bool::decode(reader)? { T::unpack(reader, self).map(Some) } else { Ok(None) }
    }

    /// Appends a counted sequence, each after those before it.
    ///
    /// # Panics
    /// When `values` has more than `u32::MAX` items, which every named limit excludes.
    pub fn pack_sequence<T: Pack>(&mut self, values: &[T], out: &mut Vec<u8>) {
        encode_count(values.len(), out);
        values.iter().for_each(|value| value.pack(self, out));
    }

    /// Reads a counted sequence of at most `max`; `what` names it in the error.
    ///
    /// # Errors
    /// When there are more, or one is malformed.
    pub fn unpack_sequence<T: Pack>(&mut self, reader: &mut Reader, what: &'static str, max: usize) -> Result<Vec<T>, DecodeError> {
        let count = reader.count(what, max)?;
        let mut values = Vec::with_capacity(count.min(SEQUENCE_AT_ONCE_MAX));
        for _ in 0..count {
            values.push(T::unpack(reader, self)?);
        }
        Ok(values)
    }

    /// How many siblings of the seal's path must be written after the last under the root at `place`; `None` when the rest is not as it is
    /// there.
    fn own_of(&self, place: usize, seal: &Seal) -> Option<usize> {
        let last = &self.last[place];
        let own = own_siblings(usize::from(seal.index), last)?;
        let rest = seal.path.get(own..)?;
        last.path.ends_with(rest).then_some(own)
    }

    fn find(&self, signed: &Arc<SignedRoot>) -> Option<usize> {
        self.last.iter().position(|last| Arc::ptr_eq(&last.signed, signed) || last.signed == *signed)
    }

    fn remember(&mut self, known: Option<usize>, seal: Seal) {
        if let Some(place) = known {
            self.last[place] = seal;
        } else if self.last.len() < ROOTS_MAX {
            self.last.push(seal);
        } else {
            self.last[self.oldest] = seal;
            self.oldest = (self.oldest + 1) % ROOTS_MAX;
        }
    }

    fn replace(&mut self, place: usize, own: usize, seal: Seal) {
        self.left_out += spared(seal.path.len(), own);
        self.last[place] = seal;
    }
}

/// How many bytes a seal is shorter when only `own` of the `length` siblings of its path are written, and not its root.
fn spared(length: usize, own: usize) -> usize {
    size_of::<SignedRoot>() + (length - own) * size_of::<Digest>()
}

fn path_length(index: usize, last: &Seal) -> Option<usize> {
    merkle::path_length(index, usize::from(last.signed.count))
}

/// How many siblings leaf `index` has below where its way up joins that of `last`, under the same root; `None` when there is no such leaf.
fn own_siblings(index: usize, last: &Seal) -> Option<usize> {
    let length = path_length(index, last)?;
    let (mut at, mut other, mut width) = (index, usize::from(last.index), usize::from(last.signed.count));
    while at != other {
        (at, other, width) = (at / 2, other / 2, width.div_ceil(2));
    }
    Some(length - merkle::path_length(at, width)?)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use proptest::prelude::*;
    use types::{ClusterId, ReplicaId, ShardId};

    use super::*;
    use crate::{Sealer, SecretKey, Signatures};

    const CLUSTER: ClusterId = ClusterId::new([7; 16]);

    fn seals(seed: u8, count: usize) -> Vec<Seal> {
        let signer = ReplicaId { shard: ShardId(0), index: 0 };
        let sealer = Sealer::new(SecretKey::from_bytes([seed; 32]), CLUSTER, signer, Signatures::Ed25519);
        sealer.seal(&(0..count).map(|at| [at as u8; 32]).collect::<Vec<_>>())
    }

    fn pack(seals: &[Seal]) -> (Vec<u8>, usize) {
        let (mut packing, mut out) = (Packing::default(), Vec::new());
        seals.iter().for_each(|seal| packing.pack_seal(seal, &mut out));
        (out, packing.left_out())
    }

    fn unpack(bytes: &[u8], count: usize) -> Result<Vec<Seal>, DecodeError> {
        let (mut reader, mut packing) = (Reader::new(Bytes::copy_from_slice(bytes), CLUSTER), Packing::default());
        let seals = (0..count).map(|_| packing.unpack_seal(&mut reader)).collect::<Result<_, _>>()?;
        reader.finish()?;
        Ok(seals)
    }

    #[test]
    fn neighbours_share_their_root_and_most_of_their_way_up() {
        let seals = seals(1, 64);
        let whole: usize = seals.iter().map(|seal| seal.to_bytes().len() + 1).sum();
        let (packed, left_out) = pack(&seals);
        assert_eq!(unpack(&packed, 64), Ok(seals));
        assert!(packed.len() < 64 * 70, "{} of {whole} bytes", packed.len());
        assert!(packed.len() + left_out >= whole - 64 * 3, "what is left out is counted: {left_out}");
    }

    #[test]
    fn what_does_not_fit_what_was_said_is_written_whole_and_nothing_else_is() {
        let seals = seals(1, 6);
        let mut lie = seals[3].clone();
        lie.path = lie.path.iter().map(|_| [9; 32]).collect();
        let said = [seals[2].clone(), lie, seals[3].clone(), seals[2].clone()];
        let (packed, _) = pack(&said);
        assert_eq!(unpack(&packed, 4), Ok(said.to_vec()));
        // The same seal twice, both times whole.
        let mut twice = vec![WHOLE];
        seals[0].encode(&mut twice);
        let twice = twice.repeat(2);
        assert_eq!(unpack(&twice, 2), Err(DecodeError::NotCanonical("a seal written whole")));
    }

    #[test]
    fn a_short_frame_cannot_stand_for_more_than_the_longest() {
        let seals = seals(1, 64);
        let (mut packing, mut out) = (Packing::default(), Vec::new());
        packing.pack_seal(&seals[0], &mut out);
        let first = out.len();
        packing.pack_seal(&seals[0], &mut out);
        let again = out[first..].to_vec();
        let count = FRAME_BYTES_MAX / packing.left_out() + 3;
        out.extend(again.repeat(count - 2));
        assert_eq!(unpack(&out, count), Err(DecodeError::OverLimit("what a frame leaves out")));
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn seals_come_back_as_they_were(picks in proptest::collection::vec((0..80_u8, 0..9_usize, 0..64_usize, any::<bool>()), 1..120)) {
            let sizes = [1, 2, 3, 5, 8, 13, 33, 63, 64];
            let mut batches = std::collections::HashMap::new();
            let said: Vec<Seal> = picks
                .into_iter()
                .map(|(seed, size, at, is_bent)| {
                    // More than are remembered.
                    let batch = batches.entry((seed, size)).or_insert_with(|| seals(seed, sizes[size]));
                    let mut seal = batch[at % sizes[size]].clone();
                    if is_bent && at % 7 == 0 {
                        seal.path = seal.path.iter().rev().copied().collect();
                    }
                    seal
                })
                .collect();
            let (packed, _) = pack(&said);
            prop_assert_eq!(unpack(&packed, said.len()), Ok(said));
        }

        #[test]
        fn what_is_unpacked_packs_to_the_same_bytes(mut packed in Just(pack(&seals(3, 9)).0), changes in proptest::collection::vec((any::<u16>(), any::<u8>()), 1..4)) {
            for (at, byte) in changes {
                let at = usize::from(at) % packed.len();
                packed[at] = byte;
            }
            if let Ok(said) = unpack(&packed, 9) {
                prop_assert_eq!(pack(&said).0, packed);
            }
        }
    }
}
