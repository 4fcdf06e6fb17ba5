//! What a connection has received and not decoded.
//!
//! Small frames share one buffer of fixed size, and need a permit only once all of one is here ([`ReadBuffer::is_coming`]): what its head claims to decode to may
//! be far more than its bytes. A large frame gets memory of its own: only when [`ReadBuffer::take_body`] is called for it,
//! which the reader does under a permit for the whole frame, and only as its bytes arrive. So a frame that is announced and does not come
//! costs nothing, and a connection that once received a large frame keeps none of its memory.

use bytes::{BufMut, Bytes};
use tokio::io::{AsyncRead, AsyncReadExt};

use crate::frame::{self, FrameError, HEADER_BYTES};

/// How much is read at a time, and how much a connection that is idle keeps.
pub(crate) const READ_BYTES: usize = 64 << 10;

/// What the first bytes of a frame say of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    /// The length of its body.
    pub length: usize,
    /// How many bytes its messages will have.
    pub needed: usize,
}

/// What was received and not decoded.
#[derive(Debug, Default)]
pub(crate) struct ReadBuffer {
    /// Whole and partial frames; never more than [`READ_BYTES`].
    small: Vec<u8>,
    /// How many of its bytes were taken.
    taken: usize,
    /// A frame that does not fit there.
    large: Option<(Head, Vec<u8>)>,
}

impl ReadBuffer {
    /// The head of the frame that comes next, once enough of it is here.
    pub fn head(&self) -> Result<Option<Head>, FrameError> {
        if let Some((head, _)) = &self.large {
            return Ok(Some(*head));
        }
        let Some(needed) = frame::room_needed(self.rest())? else { return Ok(None) };
        let length = frame::body_length(self.rest(), types::limits::FRAME_BYTES_MAX)?;
        Ok(length.map(|length| Head { length, needed }))
    }

    /// Whether the frame that comes next, which has this `head`, fits into the buffer that small frames share and is not all here.
    pub fn is_coming(&self, head: Head) -> bool {
        let whole = HEADER_BYTES + head.length;
        self.large.is_none() && whole <= READ_BYTES && self.rest().len() < whole
    }

    /// The body of the frame that comes next, which has this `head`, if all of it is here. From now on there may be memory for it.
    pub fn take_body(&mut self, head: Head) -> Option<Bytes> {
        if let Some((_, body)) = self.large.take_if(|(head, body)| body.len() == head.length) {
            return Some(Bytes::from(body));
        }
        if self.large.is_some() {
            return None;
        }
        if HEADER_BYTES + head.length > READ_BYTES {
            let mut body = Vec::with_capacity(2 * READ_BYTES.min(head.length));
            body.extend_from_slice(&self.rest()[HEADER_BYTES..]);
            self.taken = self.small.len();
            self.large = Some((head, body));
            return None;
        }
        // Copied, so that a key which the machine keeps references this frame and not the whole buffer.
        let body = Bytes::copy_from_slice(self.rest().get(HEADER_BYTES..HEADER_BYTES + head.length)?);
        self.taken += HEADER_BYTES + head.length;
        Some(body)
    }

    /// Reads once; 0 when there is nothing more.
    pub async fn fill(&mut self, stream: &mut (impl AsyncRead + Unpin)) -> std::io::Result<usize> {
        match &mut self.large {
            None => {
                self.small.drain(..std::mem::take(&mut self.taken));
                let room = READ_BYTES - self.small.len();
                self.small.reserve_exact(room);
                stream.read_buf(&mut (&mut self.small).limit(room)).await
            }
            Some((head, body)) => {
                let missing = head.length - body.len();
                if body.len() == body.capacity() {
                    body.reserve_exact(body.len().min(missing));
                }
                stream.read_buf(&mut body.limit(missing)).await
            }
        }
    }

    /// How much is here of what was not taken.
    pub fn bytes(&self) -> usize {
        self.large.as_ref().map_or(self.rest().len(), |(_, body)| body.len())
    }

    pub fn is_empty(&self) -> bool {
        self.bytes() == 0 && self.large.is_none()
    }

    /// What was received behind what was taken.
    fn rest(&self) -> &[u8] {
        &self.small[self.taken..]
    }
}

#[cfg(test)]
mod tests {
    use types::limits::FRAME_BYTES_MAX;

    use super::*;

    fn memory(buffer: &ReadBuffer) -> usize {
        buffer.small.capacity() + buffer.large.as_ref().map_or(0, |(_, body)| body.capacity())
    }

    /// A frame whose body has so many bytes, of which none are left out.
    fn frame(length: usize) -> Vec<u8> {
        let mut frame = u32::try_from(length).expect("below the limit").to_le_bytes().to_vec();
        frame.push(frame::FRAME_VERSION);
        frame.extend_from_slice(&[0; 4]);
        frame.resize(HEADER_BYTES + length, 7);
        frame
    }

    #[tokio::test]
    async fn memory_comes_with_the_bytes_and_goes_with_the_frame() {
        let lengths = [10, FRAME_BYTES_MAX, 8, READ_BYTES - HEADER_BYTES, READ_BYTES - HEADER_BYTES + 1, 3 * READ_BYTES, 20];
        let bytes = lengths.map(frame).concat();
        let (mut buffer, mut stream) = (ReadBuffer::default(), bytes.as_slice());
        let (mut bodies, mut arrived) = (Vec::new(), 0);
        loop {
            while let Some(head) = buffer.head().expect("the frames are good") {
                let before = memory(&buffer);
                assert!(before <= READ_BYTES + 2 * arrived.max(READ_BYTES), "{before} bytes for {arrived}");
                let Some(body) = buffer.take_body(head) else { break };
                arrived -= HEADER_BYTES + body.len();
                bodies.push(body.len());
            }
            assert!(buffer.large.is_some() || memory(&buffer) <= READ_BYTES);
            match buffer.fill(&mut stream).await.expect("a slice can be read") {
                0 => break,
                bytes => arrived += bytes,
            }
        }
        assert_eq!((bodies.as_slice(), arrived, buffer.is_empty()), (lengths.as_slice(), 0, true));
    }

    #[tokio::test]
    async fn a_small_frame_is_coming_until_all_of_it_is_here() {
        let bytes = frame(1_000);
        let mut buffer = ReadBuffer::default();
        for (part, is_coming) in [(&bytes[..20], true), (&bytes[20..HEADER_BYTES + 999], true), (&bytes[HEADER_BYTES + 999..], false)] {
            buffer.fill(&mut &*part).await.expect("a slice can be read");
            let head = buffer.head().expect("it is good").expect("it is all here");
            assert_eq!(buffer.is_coming(head), is_coming);
        }
        assert_eq!(buffer.bytes(), HEADER_BYTES + 1_000);
    }

    #[tokio::test]
    async fn a_frame_that_is_only_announced_costs_nothing() {
        let bytes = frame(FRAME_BYTES_MAX);
        let (mut buffer, mut stream) = (ReadBuffer::default(), &bytes[..20]);
        assert_eq!(buffer.fill(&mut stream).await.expect("a slice can be read"), 20);
        let head = buffer.head().expect("it is good").expect("it is all here");
        assert_eq!(head, Head { length: FRAME_BYTES_MAX, needed: FRAME_BYTES_MAX });
        assert_eq!(buffer.take_body(head), None);
        assert!(memory(&buffer) <= 3 * READ_BYTES, "{}", memory(&buffer));
        assert!(!buffer.is_empty());
    }
}
