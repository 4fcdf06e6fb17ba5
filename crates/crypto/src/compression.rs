//! Compresses the batch signatures of one frame.
//!
//! The votes of one batch share one signed root, and neighbours share most of their paths. So a frame of certificates repeats the
//! same few roots and paths. The first signature under a root is written whole; of each later one, only the siblings that the
//! previous signature under that root does not have. Sender and receiver process the frame in the same order, so both keep the same
//! state. Votes and certificates are compressed; rare messages (logged decisions, elections) are written whole.

use std::sync::Arc;

use types::Digest;
use types::codec::{Decode, DecodeError, Encode, Reader, SEQUENCE_AT_ONCE_MAX, encode_count};
use types::limits::{FRAME_BYTES_MAX, MERKLE_PATH_MAX};

use crate::merkle;
use crate::{BatchSignature, SignedRoot};

/// How many roots are remembered: of six replicas, twenty batches each. Their slots fit into a byte.
const ROOTS_MAX: usize = 128;
/// Precedes a batch signature that is written whole. A compressed one is preceded by its root's slot plus one.
const WHOLE: u8 = 0;

/// A message that can be compressed against the earlier ones of its frame.
pub trait Compress: Encode + Decode {
    /// Appends the message, compressed with the state of its frame.
    fn compress(&self, _packing: &mut SignatureCompression, out: &mut Vec<u8>) {
        self.encode(out);
    }

    /// Reads what [`Compress::compress`] has written after the same messages.
    ///
    /// # Errors
    /// When the bytes are not what that would write.
    fn decompress(reader: &mut Reader, _packing: &mut SignatureCompression) -> Result<Self, DecodeError> {
        Self::decode(reader)
    }
}

/// Encodes types by what [`Compress`] writes of them as the first of their frame.
#[macro_export]
macro_rules! encode_as_first {
    ($($type:ty),+) => {$(
        impl ::types::codec::Encode for $type {
            fn encode(&self, out: &mut Vec<u8>) {
                $crate::Compress::compress(self, &mut $crate::SignatureCompression::default(), out);
            }
        }
        impl ::types::codec::Decode for $type {
            fn decode(reader: &mut ::types::codec::Reader) -> Result<Self, ::types::codec::DecodeError> {
                <Self as $crate::Compress>::decompress(reader, &mut $crate::SignatureCompression::default())
            }
        }
    )+};
}

/// The state of one frame's compression.
#[derive(Debug)]
pub struct SignatureCompression {
    /// The last signature under each root.
    last: Vec<BatchSignature>,
    /// The slot that the next new root takes when all are in use.
    oldest: usize,
    omitted: usize,
    omitted_max: usize,
}

impl Default for SignatureCompression {
    fn default() -> Self {
        Self::allowing(FRAME_BYTES_MAX)
    }
}

impl SignatureCompression {
    /// For a frame that may omit at most `omitted_max` bytes.
    #[must_use]
    pub fn allowing(omitted_max: usize) -> Self {
        Self { last: Vec::new(), oldest: 0, omitted: 0, omitted_max }
    }

    /// How many bytes were omitted so far. Together with them a frame must not exceed the limit for frames. Otherwise a short
    /// frame could fill the receiver's memory.
    #[must_use]
    pub fn omitted(&self) -> usize {
        self.omitted
    }

    /// Appends `signature`.
    pub fn compress_signature(&mut self, signature: &BatchSignature, out: &mut Vec<u8>) {
        let known = self.find(&signature.signed);
        let Some((slot, own)) = known.and_then(|slot| Some((slot, self.own_siblings_of(slot, signature)?))) else {
            out.push(WHOLE);
            signature.encode(out);
            self.remember(known, signature.clone());
            return;
        };
        out.push(slot as u8 + 1);
        signature.index.encode(out);
        for sibling in &signature.path[..own] {
            out.extend_from_slice(sibling);
        }
        self.replace(slot, own, signature.clone());
    }

    /// Reads a batch signature.
    ///
    /// # Errors
    /// When it is malformed, contains bytes that should have been omitted, or omits too many.
    pub fn decompress_signature(&mut self, reader: &mut Reader) -> Result<BatchSignature, DecodeError> {
        let tag = u8::decode(reader)?;
        if tag == WHOLE {
            let signature = BatchSignature::decode(reader)?;
            let known = self.find(&signature.signed);
            if known.is_some_and(|slot| self.own_siblings_of(slot, &signature).is_some()) {
                return Err(DecodeError::NotCanonical("a batch signature written whole"));
            }
            self.remember(known, signature.clone());
            return Ok(signature);
        }
        let slot = usize::from(tag) - 1;
        let last = self.last.get(slot).ok_or(DecodeError::OverLimit("a batch signature's root"))?;
        let index = u16::decode(reader)?;
        let length = path_length(usize::from(index), last).ok_or(DecodeError::OverLimit("a batch signature's index"))?;
        let own = own_siblings(usize::from(index), last).ok_or(DecodeError::OverLimit("a batch signature's index"))?;
        if self.omitted + omitted_bytes(length, own) > self.omitted_max {
            return Err(DecodeError::OverLimit("what a frame leaves out"));
        }
        let path = if own == 0 {
            Arc::clone(&last.path)
        } else {
            let mut path = [[0; 32]; MERKLE_PATH_MAX];
            for sibling in &mut path[..own] {
                *sibling = reader.array()?;
            }
            path[own..length].copy_from_slice(&last.path[last.path.len() - (length - own)..]);
            Arc::from(&path[..length])
        };
        let signature = BatchSignature { signed: Arc::clone(&last.signed), index, path };
        self.replace(slot, own, signature.clone());
        Ok(signature)
    }

    /// Appends an optional value.
    pub fn compress_option<T: Compress>(&mut self, value: Option<&T>, out: &mut Vec<u8>) {
        value.is_some().encode(out);
        if let Some(value) = value {
            value.compress(self, out);
        }
    }

    /// Reads an optional value.
    ///
    /// # Errors
    /// When it is malformed.
    pub fn decompress_option<T: Compress>(&mut self, reader: &mut Reader) -> Result<Option<T>, DecodeError> {
        if bool::decode(reader)? { T::decompress(reader, self).map(Some) } else { Ok(None) }
    }

    /// Appends a counted sequence.
    ///
    /// # Panics
    /// When `values` has more than `u32::MAX` items, which every named limit excludes.
    pub fn compress_sequence<T: Compress>(&mut self, values: &[T], out: &mut Vec<u8>) {
        encode_count(values.len(), out);
        values.iter().for_each(|value| value.compress(self, out));
    }

    /// Reads a counted sequence of at most `max`; `what` names it in the error.
    ///
    /// # Errors
    /// When there are more, or one is malformed.
    pub fn decompress_sequence<T: Compress>(&mut self, reader: &mut Reader, what: &'static str, max: usize) -> Result<Vec<T>, DecodeError> {
        let count = reader.count(what, max)?;
        reader.note_sequence::<T>(count);
        let mut values = Vec::with_capacity(count.min(SEQUENCE_AT_ONCE_MAX));
        for _ in 0..count {
            values.push(T::decompress(reader, self)?);
        }
        Ok(values)
    }

    /// How many siblings of the signature's path must be written after the last signature under the root in `slot`; `None` when the rest of the
    /// path differs from that one's.
    fn own_siblings_of(&self, slot: usize, signature: &BatchSignature) -> Option<usize> {
        let last = &self.last[slot];
        let own = own_siblings(usize::from(signature.index), last)?;
        let rest = signature.path.get(own..)?;
        last.path.ends_with(rest).then_some(own)
    }

    fn find(&self, signed: &Arc<SignedRoot>) -> Option<usize> {
        self.last.iter().position(|last| Arc::ptr_eq(&last.signed, signed) || last.signed == *signed)
    }

    fn remember(&mut self, known: Option<usize>, signature: BatchSignature) {
        if let Some(slot) = known {
            self.last[slot] = signature;
        } else if self.last.len() < ROOTS_MAX {
            self.last.push(signature);
        } else {
            self.last[self.oldest] = signature;
            self.oldest = (self.oldest + 1) % ROOTS_MAX;
        }
    }

    fn replace(&mut self, slot: usize, own: usize, signature: BatchSignature) {
        self.omitted += omitted_bytes(signature.path.len(), own);
        self.last[slot] = signature;
    }
}

/// How many bytes are omitted when the root and all but `own` of the `length` siblings of a path are not written.
fn omitted_bytes(length: usize, own: usize) -> usize {
    size_of::<SignedRoot>() + (length - own) * size_of::<Digest>()
}

fn path_length(index: usize, last: &BatchSignature) -> Option<usize> {
    merkle::path_length(index, usize::from(last.signed.count))
}

/// How many siblings the path of leaf `index` has below the point where it joins that of `last`; `None` when there is no such leaf.
fn own_siblings(index: usize, last: &BatchSignature) -> Option<usize> {
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
    use crate::{BatchSigner, SecretKey, Signatures};

    const CLUSTER: ClusterId = ClusterId::new([7; 16]);

    fn signatures(seed: u8, count: usize) -> Vec<BatchSignature> {
        let signer = ReplicaId { shard: ShardId(0), index: 0 };
        let batch_signer = BatchSigner::new(SecretKey::from_bytes([seed; 32]), CLUSTER, signer, Signatures::Ed25519);
        batch_signer.sign(&(0..count).map(|at| [at as u8; 32]).collect::<Vec<_>>())
    }

    fn compress(signatures: &[BatchSignature]) -> (Vec<u8>, usize) {
        let (mut compression, mut out) = (SignatureCompression::default(), Vec::new());
        signatures.iter().for_each(|signature| compression.compress_signature(signature, &mut out));
        (out, compression.omitted())
    }

    fn decompress(bytes: &[u8], count: usize) -> Result<Vec<BatchSignature>, DecodeError> {
        let (mut reader, mut compression) = (Reader::new(Bytes::copy_from_slice(bytes), CLUSTER), SignatureCompression::default());
        let signatures = (0..count).map(|_| compression.decompress_signature(&mut reader)).collect::<Result<_, _>>()?;
        reader.finish()?;
        Ok(signatures)
    }

    #[test]
    fn neighbours_share_their_root_and_most_of_their_path() {
        let signatures = signatures(1, 64);
        let whole: usize = signatures.iter().map(|signature| signature.to_bytes().len() + 1).sum();
        let (compressed, omitted) = compress(&signatures);
        assert_eq!(decompress(&compressed, 64), Ok(signatures));
        assert!(compressed.len() < 64 * 70, "{} of {whole} bytes", compressed.len());
        assert!(compressed.len() + omitted >= whole - 64 * 3, "what is left out is counted: {omitted}");
    }

    #[test]
    fn a_signature_is_written_whole_exactly_if_it_cannot_be_compressed() {
        let signatures = signatures(1, 6);
        let mut lie = signatures[3].clone();
        lie.path = lie.path.iter().map(|_| [9; 32]).collect();
        let said = [signatures[2].clone(), lie, signatures[3].clone(), signatures[2].clone()];
        let (compressed, _) = compress(&said);
        assert_eq!(decompress(&compressed, 4), Ok(said.to_vec()));
        // The same signature twice, both times whole.
        let mut twice = vec![WHOLE];
        signatures[0].encode(&mut twice);
        let twice = twice.repeat(2);
        assert_eq!(decompress(&twice, 2), Err(DecodeError::NotCanonical("a batch signature written whole")));
    }

    #[test]
    fn a_short_frame_cannot_decompress_beyond_the_limit() {
        let signatures = signatures(1, 64);
        let (mut compression, mut out) = (SignatureCompression::default(), Vec::new());
        compression.compress_signature(&signatures[0], &mut out);
        let first = out.len();
        compression.compress_signature(&signatures[0], &mut out);
        let again = out[first..].to_vec();
        let count = FRAME_BYTES_MAX / compression.omitted() + 3;
        out.extend(again.repeat(count - 2));
        assert_eq!(decompress(&out, count), Err(DecodeError::OverLimit("what a frame leaves out")));
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn compressed_signatures_decompress_to_the_originals(picks in proptest::collection::vec((0..80_u8, 0..9_usize, 0..64_usize, any::<bool>()), 1..120)) {
            let sizes = [1, 2, 3, 5, 8, 13, 33, 63, 64];
            let mut batches = std::collections::HashMap::new();
            let said: Vec<BatchSignature> = picks
                .into_iter()
                .map(|(seed, size, at, is_bent)| {
                    // More than are remembered.
                    let batch = batches.entry((seed, size)).or_insert_with(|| signatures(seed, sizes[size]));
                    let mut signature = batch[at % sizes[size]].clone();
                    if is_bent && at % 7 == 0 {
                        signature.path = signature.path.iter().rev().copied().collect();
                    }
                    signature
                })
                .collect();
            let (compressed, _) = compress(&said);
            prop_assert_eq!(decompress(&compressed, said.len()), Ok(said));
        }

        #[test]
        fn decompressed_signatures_compress_to_the_same_bytes(mut compressed in Just(compress(&signatures(3, 9)).0), changes in proptest::collection::vec((any::<u16>(), any::<u8>()), 1..4)) {
            for (at, byte) in changes {
                let at = usize::from(at) % compressed.len();
                compressed[at] = byte;
            }
            if let Ok(said) = decompress(&compressed, 9) {
                prop_assert_eq!(compress(&said).0, compressed);
            }
        }
    }
}
