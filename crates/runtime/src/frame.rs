//! The wire format: frames, and the greeting that opens a connection.
//!
//! ```text
//! frame     length: u32   version: u8   body: `length` bytes, at least one
//! body      omitted: u32    count: u32    that many messages, end to end; none is a heartbeat
//!           or   0: u32   2^32 - 1: u32   what members tell one another of configurations ([`crate::changes`])
//! greeting  the body of the first frame each way: Hello from the dialler, Welcome or Refused from the listener
//! ```
//!
//! A message omits the parts of its batch signatures that earlier messages of its frame have ([`crypto::SignatureCompression`]). The body
//! begins with the number of omitted bytes, so the receiver can reserve memory for the whole. Together they must not exceed the limit.
//!
//! The five bytes of the header mean the same in every version, so a node can refuse a newer version with a message.

use bytes::Bytes;
use crypto::{Compress, SignatureCompression};
use types::codec::{Decode, DecodeError, Encode, Reader};
use types::limits::{FRAME_BYTES_MAX, FRAME_MESSAGES_MAX};
use types::{ClusterId, Session};

use crate::configuration::Configuration;

/// The version of the protocol between nodes.
pub const FRAME_VERSION: u8 = 7;
/// The length and the version.
pub const HEADER_BYTES: usize = 5;
/// The two counts before a body's messages.
const COUNTS_BYTES: usize = 8;
/// In the place of a count: no messages follow, but something of configurations.
const CONTROL: u32 = u32::MAX;
/// The memory of a decoded message besides its own bytes, roughly.
pub(crate) const MESSAGE_OVERHEAD_BYTES: usize = 256;
/// The longest reason of a refusal, in bytes.
pub const REASON_BYTES_MAX: usize = 512;
/// The longest greeting, its header not counted.
pub const GREETING_BYTES_MAX: usize = 1_024;

/// Why a frame was refused. The rest of the stream cannot be parsed, so the connection is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The frame is empty.
    #[error("a frame is empty")]
    Empty,
    /// The frame is longer than allowed.
    #[error("a frame of {length} bytes is over the limit of {max}")]
    TooLong {
        /// How long it claims to be.
        length: usize,
        /// How long it may be.
        max: usize,
    },
    /// The frame has another version.
    #[error("the frame has format version {0}; this program speaks version {FRAME_VERSION}")]
    Version(u8),
    /// The body is not what it should be.
    #[error("a frame's body is malformed: {0}")]
    Body(#[from] DecodeError),
}

impl FrameError {
    /// A short name for metrics.
    #[must_use]
    pub fn label(&self) -> &'static str {
        match self {
            Self::Empty => "frame_empty",
            Self::TooLong { .. } => "frame_too_long",
            Self::Version(_) => "frame_version",
            Self::Body(DecodeError::Truncated) => "body_truncated",
            Self::Body(DecodeError::Trailing) => "body_trailing",
            Self::Body(DecodeError::UnknownTag(_)) => "body_unknown_tag",
            Self::Body(DecodeError::OverLimit(_)) => "body_over_limit",
            Self::Body(DecodeError::NotCanonical(_)) => "body_not_canonical",
        }
    }
}

/// The length of the body of the frame that begins `buffer`; `None` when its header is not complete.
///
/// # Errors
/// [`FrameError`] as soon as the header shows that the frame cannot be accepted: nothing is buffered for it.
pub fn body_length(buffer: &[u8], max: usize) -> Result<Option<usize>, FrameError> {
    let Some((length, rest)) = buffer.split_first_chunk::<4>() else { return Ok(None) };
    let length = u32::from_le_bytes(*length) as usize;
    if length == 0 {
        return Err(FrameError::Empty);
    }
    if length > max {
        return Err(FrameError::TooLong { length, max });
    }
    match rest.first() {
        None => Ok(None),
        Some(&FRAME_VERSION) => Ok(Some(length)),
        Some(&version) => Err(FrameError::Version(version)),
    }
}

/// How many bytes the messages of the frame that begins `buffer` will have: the length of its body and the omitted bytes. `None` when
/// the buffer is too short to tell.
///
/// # Errors
/// As [`body_length`], and when it is too much.
pub fn room_needed(buffer: &[u8]) -> Result<Option<usize>, FrameError> {
    let Some(length) = body_length(buffer, FRAME_BYTES_MAX)? else { return Ok(None) };
    if length < COUNTS_BYTES {
        return Err(DecodeError::Truncated.into());
    }
    let Some(omitted) = buffer[HEADER_BYTES..].first_chunk::<4>() else { return Ok(None) };
    let needed = length + u32::from_le_bytes(*omitted) as usize;
    if needed > FRAME_BYTES_MAX {
        return Err(FrameError::TooLong { length: needed, max: FRAME_BYTES_MAX });
    }
    Ok(Some(needed))
}

/// What a frame's body held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decoded {
    /// How many messages; none for a heartbeat.
    pub messages: usize,
    /// How much memory they take besides the bytes that they had on the wire.
    pub bytes: usize,
}

/// What a frame's body tells of configurations, if it is such a frame: still to be read.
#[must_use]
pub fn control(body: &Bytes) -> Option<Bytes> {
    let counts = body.first_chunk::<COUNTS_BYTES>()?;
    (counts[..4] == [0; 4] && counts[4..] == CONTROL.to_le_bytes()).then(|| body.slice(COUNTS_BYTES..))
}

/// Decodes the messages in a frame's body.
///
/// # Errors
/// Any [`FrameError::Body`].
pub fn decode_messages<W: Compress>(body: Bytes, cluster: ClusterId, messages: &mut Vec<W>) -> Result<Decoded, FrameError> {
    let mut reader = Reader::new(body, cluster);
    let omitted = u32::decode(&mut reader)? as usize;
    let mut compression = SignatureCompression::allowing(omitted);
    let count = reader.count("the messages of a frame", FRAME_MESSAGES_MAX)?;
    for _ in 0..count {
        messages.push(W::decompress(&mut reader, &mut compression)?);
    }
    if compression.omitted() != omitted {
        return Err(DecodeError::NotCanonical("what a frame leaves out").into());
    }
    reader.finish()?;
    Ok(Decoded { messages: count, bytes: reader.sequences_bytes() + count * size_of::<W>().max(MESSAGE_OVERHEAD_BYTES) })
}

/// Frames ready to be written. A message joins the last frame while it fits, so all messages between two writes mostly leave as one
/// frame in one write.
#[derive(Debug, Default)]
pub struct Frames {
    bytes: Vec<u8>,
    last_at: usize,
    last_messages: u32,
    last_compression: SignatureCompression,
    /// Whether the last frame is closed for further messages.
    last_is_full: bool,
    frames: u64,
    messages: u64,
}

impl Frames {
    /// Adds `message`; `false` without any effect when it is too long for any frame.
    #[must_use]
    pub fn add(&mut self, message: &impl Compress) -> bool {
        if self.frames == 0 || self.last_is_full || self.last_messages as usize == FRAME_MESSAGES_MAX {
            self.open();
        }
        let start = self.bytes.len();
        message.compress(&mut self.last_compression, &mut self.bytes);
        if self.last_bytes() > FRAME_BYTES_MAX {
            // It begins another frame, if it fits into any. This frame's compression state no longer matches its reader's.
            self.bytes.truncate(start);
            self.last_compression = SignatureCompression::default();
            self.last_is_full = self.last_messages > 0;
            let mut alone = Vec::new();
            let mut compression = SignatureCompression::default();
            message.compress(&mut compression, &mut alone);
            if COUNTS_BYTES + alone.len() + compression.omitted() > FRAME_BYTES_MAX {
                return false;
            }
            if self.last_is_full {
                self.open();
            }
            self.bytes.extend_from_slice(&alone);
            self.last_compression = compression;
        }
        self.last_messages += 1;
        self.messages += 1;
        self.close_last();
        true
    }

    /// The length of the last frame's body, omitted bytes included.
    fn last_bytes(&self) -> usize {
        self.bytes.len() - self.last_at - HEADER_BYTES + self.last_compression.omitted()
    }

    /// Completes the frames before they are written.
    pub fn finish(&mut self) {
        (self.last_compression, self.last_is_full) = (SignatureCompression::default(), true);
    }

    /// Adds a frame without messages.
    pub fn add_heartbeat(&mut self) {
        self.open();
    }

    /// Adds a frame that tells of configurations, in bytes that are encoded already: they are the same for many.
    pub fn add_control(&mut self, control: &[u8]) {
        self.open();
        self.bytes.extend_from_slice(control);
        self.close_last();
        let counts = self.last_at + HEADER_BYTES;
        self.bytes[counts + 4..][..4].copy_from_slice(&CONTROL.to_le_bytes());
        self.last_is_full = true;
    }

    /// Adds all of `more` at the end.
    pub fn join(&mut self, more: Self) {
        if self.frames == 0 {
            *self = more;
        } else if more.frames > 0 {
            self.last_at = self.bytes.len() + more.last_at;
            self.last_messages = more.last_messages;
            self.last_compression = more.last_compression;
            self.last_is_full = more.last_is_full;
            self.bytes.extend_from_slice(&more.bytes);
            self.frames += more.frames;
            self.messages += more.messages;
        }
    }

    /// Everything, as it goes on the wire.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// How many frames there are.
    #[must_use]
    pub fn frames(&self) -> u64 {
        self.frames
    }

    /// How many messages there are.
    #[must_use]
    pub fn messages(&self) -> u64 {
        self.messages
    }

    /// Clears the frames and keeps their memory, unless it has grown past `keep` bytes.
    pub fn clear(&mut self, keep: usize) {
        self.bytes.clear();
        self.bytes.shrink_to(keep);
        (self.last_at, self.last_messages, self.frames, self.messages) = (0, 0, 0, 0);
        (self.last_compression, self.last_is_full) = (SignatureCompression::default(), false);
    }

    fn open(&mut self) {
        self.last_at = self.bytes.len();
        self.last_messages = 0;
        (self.last_compression, self.last_is_full) = (SignatureCompression::default(), false);
        self.frames += 1;
        self.bytes.extend_from_slice(&[0, 0, 0, 0, FRAME_VERSION]);
        self.bytes.extend_from_slice(&[0; COUNTS_BYTES]);
        self.close_last();
    }

    fn close_last(&mut self) {
        let length = self.bytes.len() - self.last_at - HEADER_BYTES;
        let length = u32::try_from(length).expect("FRAME_BYTES_MAX fits in u32");
        self.bytes[self.last_at..self.last_at + 4].copy_from_slice(&length.to_le_bytes());
        let omitted = u32::try_from(self.last_compression.omitted()).expect("FRAME_BYTES_MAX fits in u32");
        let counts = &mut self.bytes[self.last_at + HEADER_BYTES..][..COUNTS_BYTES];
        counts[..4].copy_from_slice(&omitted.to_le_bytes());
        counts[4..].copy_from_slice(&self.last_messages.to_le_bytes());
    }
}

/// The dialler's role. Its key identifies it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A replica.
    Replica,
    /// A client's process: replies go to this session.
    Client(Session),
}

/// The first frame each way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Greeting {
    /// From the dialler: the cluster it means, how it knows it, and what it is there.
    Hello {
        /// The cluster.
        cluster: ClusterId,
        /// How it knows the cluster.
        configuration: Configuration,
        /// What it is.
        role: Role,
    },
    /// From the listener: go on; and how it knows the cluster.
    Welcome(Configuration),
    /// From the listener: no, and why.
    Refused(String),
}

impl Greeting {
    /// The greeting as a whole frame.
    #[must_use]
    pub fn to_frame(&self) -> Vec<u8> {
        let mut body = Vec::new();
        self.encode(&mut body);
        let length = u32::try_from(body.len()).expect("GREETING_BYTES_MAX fits in u32");
        let mut frame = length.to_le_bytes().to_vec();
        frame.push(FRAME_VERSION);
        frame.append(&mut body);
        frame
    }
}

impl Encode for Greeting {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Hello { cluster, configuration, role } => {
                out.push(1);
                cluster.as_bytes().encode(out);
                configuration.encode(out);
                match role {
                    Role::Replica => out.push(1),
                    Role::Client(session) => {
                        out.push(2);
                        session.0.encode(out);
                    }
                }
            }
            Self::Welcome(configuration) => {
                out.push(2);
                configuration.encode(out);
            }
            Self::Refused(reason) => {
                out.push(3);
                let mut end = reason.len().min(REASON_BYTES_MAX);
                while !reason.is_char_boundary(end) {
                    end -= 1;
                }
                types::codec::encode_count(end, out);
                out.extend_from_slice(&reason.as_bytes()[..end]);
            }
        }
    }
}

impl Decode for Greeting {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        match u8::decode(reader)? {
            1 => {
                let cluster = ClusterId::new(reader.array()?);
                let configuration = Configuration::decode(reader)?;
                let role = match u8::decode(reader)? {
                    1 => Role::Replica,
                    2 => Role::Client(Session(u64::decode(reader)?)),
                    _ => return Err(DecodeError::UnknownTag("a role")),
                };
                Ok(Self::Hello { cluster, configuration, role })
            }
            2 => Ok(Self::Welcome(Configuration::decode(reader)?)),
            3 => {
                let length = reader.count("the reason of a refusal", REASON_BYTES_MAX)?;
                let bytes = reader.take(length)?;
                let reason = std::str::from_utf8(&bytes).map_err(|_| DecodeError::NotCanonical("the reason of a refusal"))?;
                // It will be printed: a peer's text must not control the reader's terminal.
                Ok(Self::Refused(reason.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect()))
            }
            _ => Err(DecodeError::UnknownTag("a greeting")),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use crypto::{BatchSignature, BatchSigner, SecretKey, Signatures};
    use types::{ReplicaId, ShardId};

    use super::*;

    const CLUSTER: ClusterId = ClusterId::new([7; 16]);

    /// A message that is a number, and may be followed by zeros.
    #[derive(Clone, Copy)]
    pub(crate) struct Number(pub u64, pub usize);

    impl Encode for Number {
        fn encode(&self, out: &mut Vec<u8>) {
            self.0.encode(out);
            (self.1 as u64).encode(out);
            out.resize(out.len() + self.1, 0);
        }
    }

    impl Decode for Number {
        fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
            let (number, zeros) = (u64::decode(reader)?, u64::decode(reader)? as usize);
            reader.take(zeros)?;
            Ok(Self(number, zeros))
        }
    }

    impl Compress for Number {}

    /// The messages of each frame in `bytes`.
    pub(crate) fn cut(mut bytes: &[u8]) -> Vec<Vec<u64>> {
        let mut frames = Vec::new();
        while let Some(length) = body_length(bytes, FRAME_BYTES_MAX).expect("our own frames are well-formed") {
            let mut messages = Vec::new();
            let body = Bytes::copy_from_slice(&bytes[HEADER_BYTES..HEADER_BYTES + length]);
            decode_messages(body, CLUSTER, &mut messages).expect("our own frames are well-formed");
            frames.push(messages.into_iter().map(|Number(number, _)| number).collect());
            bytes = &bytes[HEADER_BYTES + length..];
        }
        frames
    }

    #[test]
    fn messages_between_two_writes_share_one_frame() {
        let mut frames = Frames::default();
        for number in 0..100u64 {
            assert!(frames.add(&Number(number, 0)));
        }
        assert_eq!((frames.frames(), frames.messages()), (1, 100));
        assert_eq!(cut(frames.bytes()), vec![(0..100).collect::<Vec<_>>()]);
        frames.clear(0);
        assert!(frames.bytes().is_empty());
        assert!(frames.add(&Number(7, 0)));
        assert_eq!(cut(frames.bytes()), vec![vec![7]]);
    }

    #[test]
    fn a_frame_that_is_full_is_followed_by_another() {
        let mut frames = Frames::default();
        for number in 0..FRAME_MESSAGES_MAX as u64 + 1 {
            assert!(frames.add(&Number(number, 0)));
        }
        assert_eq!(cut(frames.bytes()).iter().map(Vec::len).collect::<Vec<_>>(), vec![FRAME_MESSAGES_MAX, 1]);
        frames.clear(0);
        for _ in 0..3 {
            assert!(frames.add(&Number(1, 6 << 20)));
        }
        assert_eq!((frames.frames(), frames.messages()), (2, 3));
        assert!(!frames.add(&Number(1, FRAME_BYTES_MAX)));
        assert_eq!((frames.frames(), frames.messages()), (2, 3));
        // What was tried and not sent is in nobody's memory.
        assert!(frames.add(&Number(2, 0)));
        assert_eq!(cut(frames.bytes()), vec![vec![1, 1], vec![1], vec![2]]);
    }

    #[test]
    fn joined_frames_go_on_where_the_second_ended() {
        let mut joined = Frames::default();
        for numbers in [[1u64, 2], [3, 4]] {
            let mut frames = Frames::default();
            assert!(numbers.iter().all(|number| frames.add(&Number(*number, 0))));
            joined.join(frames);
        }
        joined.join(Frames::default());
        assert!(joined.add(&Number(5, 0)));
        assert_eq!(cut(joined.bytes()), vec![vec![1, 2], vec![3, 4, 5]]);
        assert_eq!((joined.frames(), joined.messages()), (2, 5));
    }

    /// A message of signatures.
    #[derive(Clone, Debug, PartialEq)]
    struct Vouched(Vec<BatchSignature>);

    impl Compress for Vouched {
        fn compress(&self, compression: &mut SignatureCompression, out: &mut Vec<u8>) {
            (self.0.len() as u64).encode(out);
            self.0.iter().for_each(|signature| compression.compress_signature(signature, out));
        }

        fn decompress(reader: &mut Reader, compression: &mut SignatureCompression) -> Result<Self, DecodeError> {
            let count = u64::decode(reader)?;
            Ok(Self((0..count).map(|_| compression.decompress_signature(reader)).collect::<Result<_, _>>()?))
        }
    }

    impl Encode for Vouched {
        fn encode(&self, out: &mut Vec<u8>) {
            self.compress(&mut SignatureCompression::default(), out);
        }
    }

    impl Decode for Vouched {
        fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
            Self::decompress(reader, &mut SignatureCompression::default())
        }
    }

    /// The same two signatures over and over.
    fn vouched(signatures: usize) -> Vouched {
        let signer = ReplicaId { shard: ShardId(0), index: 0 };
        let batch_signer = BatchSigner::new(SecretKey::from_bytes([1; 32]), CLUSTER, signer, Signatures::Ed25519);
        Vouched(batch_signer.sign(&[[1; 32], [2; 32]]).into_iter().cycle().take(signatures).collect())
    }

    /// How many bytes each frame in `bytes` needs room for, and the signatures of its messages.
    fn unpacked(mut bytes: &[u8]) -> Vec<(usize, Vec<Vouched>)> {
        let mut frames = Vec::new();
        while let Some(length) = body_length(bytes, FRAME_BYTES_MAX).expect("our own frames are well-formed") {
            let mut messages = Vec::new();
            let body = Bytes::copy_from_slice(&bytes[HEADER_BYTES..HEADER_BYTES + length]);
            decode_messages(body, CLUSTER, &mut messages).expect("our own frames are well-formed");
            let needed = room_needed(bytes).expect("our own frames are well-formed").expect("it is complete");
            frames.push((needed, messages));
            bytes = &bytes[HEADER_BYTES + length..];
        }
        frames
    }

    #[test]
    fn omitted_bytes_count_toward_the_frame_limit() {
        let (small, large) = (vouched(2), vouched(FRAME_BYTES_MAX / 240));
        let mut frames = Frames::default();
        assert!([&small, &large, &small, &large, &small].into_iter().all(|message| frames.add(message)));
        assert!(frames.bytes().len() < FRAME_BYTES_MAX / 2, "{} bytes", frames.bytes().len());
        let unpacked = unpacked(frames.bytes());
        let all: Vec<Vec<Vouched>> = unpacked.iter().map(|(_, messages)| messages.clone()).collect();
        assert_eq!(all, [vec![small.clone(), large.clone(), small.clone()], vec![large.clone(), small.clone()]]);
        let alone = |message: &Vouched| message.0.iter().map(|signature| signature.to_bytes().len()).sum::<usize>();
        for (needed, messages) in unpacked {
            assert!(needed <= FRAME_BYTES_MAX && needed >= messages.iter().map(alone).sum(), "{needed}");
        }
        // What fits into no frame, because of what it leaves out, is not sent, and nothing refers to it.
        let mut frames = Frames::default();
        assert!(frames.add(&small) && !frames.add(&vouched(FRAME_BYTES_MAX / 100)) && frames.add(&small));
        assert_eq!(unpacked_messages(frames.bytes()), [vec![small.clone()], vec![small]]);
    }

    fn unpacked_messages(bytes: &[u8]) -> Vec<Vec<Vouched>> {
        unpacked(bytes).into_iter().map(|(_, messages)| messages).collect()
    }

    #[test]
    fn messages_are_compressed_against_their_own_frame() {
        let (mut joined, message) = (Frames::default(), vouched(2));
        for _ in 0..2 {
            let mut frames = Frames::default();
            assert!(frames.add(&message));
            joined.join(frames);
        }
        let before = joined.bytes().len();
        assert!(joined.add(&message));
        assert!(joined.bytes().len() < before + 100, "it refers to the last frame's");
        assert_eq!(unpacked_messages(joined.bytes()), [vec![message.clone()], vec![message.clone(), message.clone()]]);
        joined.finish();
        assert!(joined.add(&message));
        assert_eq!(unpacked_messages(joined.bytes())[2], [message]);
    }

    #[test]
    fn a_frame_omits_exactly_the_declared_bytes_within_the_limit() {
        let mut frames = Frames::default();
        assert!(frames.add(&vouched(4)));
        let declared = u32::from_le_bytes(frames.bytes()[5..9].try_into().expect("four bytes"));
        assert!(declared > 0);
        for other in [0, declared - 1, declared + 1, u32::MAX] {
            let mut body = frames.bytes()[HEADER_BYTES..].to_vec();
            body[..4].copy_from_slice(&other.to_le_bytes());
            assert!(decode_messages::<Vouched>(body.into(), CLUSTER, &mut Vec::new()).is_err(), "{other}");
        }
        let mut header = frames.bytes()[..9].to_vec();
        let length = frames.bytes().len() - HEADER_BYTES;
        for (omitted, fits) in [(FRAME_BYTES_MAX - length, true), (FRAME_BYTES_MAX - length + 1, false)] {
            header[5..].copy_from_slice(&(omitted as u32).to_le_bytes());
            assert_eq!(room_needed(&header).is_ok(), fits);
        }
        assert_eq!(room_needed(&header[..8]), Ok(None));
    }

    #[test]
    fn a_heartbeat_is_a_frame_without_messages() {
        let mut frames = Frames::default();
        frames.add_heartbeat();
        assert_eq!(cut(frames.bytes()), vec![Vec::<u64>::new()]);
    }

    #[test]
    fn a_bad_header_is_refused_before_its_body_arrives() {
        let max = FRAME_BYTES_MAX;
        assert_eq!(body_length(&[1, 0, 0], max), Ok(None));
        assert_eq!(body_length(&[0, 0, 0, 0], max), Err(FrameError::Empty));
        assert_eq!(body_length(&[255; 4], max), Err(FrameError::TooLong { length: u32::MAX as usize, max }));
        assert_eq!(body_length(&[1, 0, 0, 0], max), Ok(None));
        assert_eq!(body_length(&[1, 0, 0, 0, 9], max), Err(FrameError::Version(9)));
        assert_eq!(body_length(&[1, 0, 0, 0, FRAME_VERSION], max), Ok(Some(1)));
    }

    #[test]
    fn greetings_come_back_and_reasons_cannot_drive_a_terminal() {
        let configuration = Configuration::from_text(&"07".repeat(56)).expect("three parts of 16 bytes, and a version");
        for greeting in [
            Greeting::Hello { cluster: CLUSTER, configuration, role: Role::Replica },
            Greeting::Hello { cluster: CLUSTER, configuration, role: Role::Client(Session(9)) },
            Greeting::Welcome(configuration),
            Greeting::Refused("no".to_owned()),
        ] {
            assert_eq!(Greeting::from_bytes(greeting.to_bytes().into(), CLUSTER), Ok(greeting));
        }
        let nasty = Greeting::Refused("a\x1b[2Jb".to_owned());
        assert_eq!(Greeting::from_bytes(nasty.to_bytes().into(), CLUSTER), Ok(Greeting::Refused("a [2Jb".to_owned())));
        let long = Greeting::Refused("ä".repeat(REASON_BYTES_MAX));
        assert!(long.to_frame().len() <= GREETING_BYTES_MAX);
        assert!(Greeting::from_bytes(long.to_bytes().into(), CLUSTER).is_ok());
    }
}
