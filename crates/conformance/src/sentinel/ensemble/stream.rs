//! A connection over a network that loses, doubles and reorders: what TCP makes of it.
//!
//! What arrives is handed on once and in order. What is not acknowledged is sent again, at growing intervals.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use machine::Time;
use types::codec::{Decode, DecodeError, Encode, Reader, encode_count};

/// After how long something is sent again, in milliseconds: at first, and at most.
const RESEND_MS: (u64, u64) = (40, 1_000);
/// How much is sent again at once.
const RESENT_MAX: usize = 8;
/// After so many tries without a word the other end is gone.
const TRIES_MAX: u32 = 9;
/// The longest piece.
const PIECE_BYTES_MAX: usize = 64 << 20;

/// What one end says to the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Segment {
    /// Some whole frames. Whether what said it was damaged by then is what whoever watches is told, and nobody else.
    Frames {
        /// Their bytes.
        bytes: Bytes,
        /// Whether that server's state had been damaged on purpose.
        is_damaged: bool,
    },
    /// There is nothing more.
    Last,
}

/// What travels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// The number of the segment that the sender wants next.
    ack: u64,
    /// A segment with its number; nothing where this only acknowledges.
    part: Option<(u64, Segment)>,
}

/// One end.
#[derive(Debug)]
pub struct OrderedStream {
    sent: u64,
    unacknowledged: VecDeque<(u64, Segment)>,
    heard: u64,
    ahead: BTreeMap<u64, Segment>,
    resend_at: Time,
    tries: u32,
}

impl OrderedStream {
    pub fn new() -> Self {
        Self { sent: 0, unacknowledged: VecDeque::new(), heard: 0, ahead: BTreeMap::new(), resend_at: Time(u64::MAX), tries: 0 }
    }

    /// Sends a segment.
    pub fn send(&mut self, now: Time, segment: Segment) -> Packet {
        let number = self.sent;
        self.sent += 1;
        if self.unacknowledged.is_empty() {
            self.put_off(now);
        }
        self.unacknowledged.push_back((number, segment.clone()));
        Packet { ack: self.heard, part: Some((number, segment)) }
    }

    /// Takes in a packet: gives what is to be handed on, in order, and whether this has to be acknowledged at once.
    pub fn hear(&mut self, now: Time, packet: Packet) -> (Vec<Segment>, Option<Packet>) {
        let before = self.unacknowledged.len();
        self.unacknowledged.retain(|(number, _)| *number >= packet.ack);
        if self.unacknowledged.len() < before {
            self.tries = 0;
            self.put_off(now);
        }
        let Some((number, segment)) = packet.part else { return (Vec::new(), None) };
        let is_known = number < self.heard;
        if !is_known {
            self.ahead.insert(number, segment);
        }
        let mut next = Vec::new();
        while let Some(segment) = self.ahead.remove(&self.heard) {
            self.heard += 1;
            next.push(segment);
        }
        (next, is_known.then(|| Packet { ack: self.heard, part: None }))
    }

    /// What is sent again by now; nothing any more once the other end is gone.
    pub fn resend(&mut self, now: Time) -> Vec<Packet> {
        if self.unacknowledged.is_empty() || now < self.resend_at {
            return Vec::new();
        }
        self.tries += 1;
        self.put_off(now);
        let again = self.unacknowledged.iter().take(RESENT_MAX);
        again.map(|(number, segment)| Packet { ack: self.heard, part: Some((*number, segment.clone())) }).collect()
    }

    /// Whether the other end has not answered for so long that it must be gone.
    pub fn is_dead(&self) -> bool {
        self.tries > TRIES_MAX
    }

    /// When something is sent again.
    pub fn deadline(&self) -> Option<Time> {
        (!self.unacknowledged.is_empty()).then_some(self.resend_at)
    }

    fn put_off(&mut self, now: Time) {
        let wait_ms = (RESEND_MS.0 << self.tries.min(8)).min(RESEND_MS.1);
        self.resend_at = now.after_ms(wait_ms);
    }
}

impl Encode for Packet {
    fn encode(&self, out: &mut Vec<u8>) {
        self.ack.encode(out);
        match &self.part {
            None => out.push(0),
            Some((number, Segment::Frames { bytes, is_damaged })) => {
                out.push(1);
                number.encode(out);
                is_damaged.encode(out);
                encode_count(bytes.len(), out);
                out.extend_from_slice(bytes);
            }
            Some((number, Segment::Last)) => {
                out.push(2);
                number.encode(out);
            }
        }
    }
}

impl Decode for Packet {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        let ack = u64::decode(reader)?;
        let part = match u8::decode(reader)? {
            0 => None,
            1 => {
                let (number, is_damaged) = (u64::decode(reader)?, bool::decode(reader)?);
                let count = reader.count("frames", PIECE_BYTES_MAX)?;
                Some((number, Segment::Frames { bytes: reader.take(count)?, is_damaged }))
            }
            2 => Some((u64::decode(reader)?, Segment::Last)),
            _ => return Err(DecodeError::UnknownTag("a segment")),
        };
        Ok(Self { ack, part })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lost_is_sent_again_and_what_is_doubled_or_late_is_handed_on_once_in_order() {
        let (mut one, mut other) = (OrderedStream::new(), OrderedStream::new());
        let frames = |byte: u8| Segment::Frames { bytes: vec![byte].into(), is_damaged: false };
        let (_lost, second) = (one.send(Time(0), frames(1)), one.send(Time(0), frames(2)));
        assert_eq!(other.hear(Time(0), second.clone()).0, []);
        let again = one.resend(one.deadline().expect("nothing is acknowledged"));
        assert_eq!(other.hear(Time(0), again[0].clone()).0, [frames(1), frames(2)]);
        let (handed_on, ack) = other.hear(Time(0), second);
        assert_eq!(handed_on, []);
        one.hear(Time(0), ack.expect("what is doubled is acknowledged"));
        assert_eq!(one.deadline(), None);
    }
}
