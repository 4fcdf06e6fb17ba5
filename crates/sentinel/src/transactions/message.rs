//! What clients and servers of the engine say.

use crypto::{BatchSignature, Claim, Compress, Rejection, Signable, SignatureClaims};
use types::codec::{Decode, DecodeError, Encode, Reader, encode_sequence};
use types::limits::{TRANSACTION_RANGES_MAX, TRANSACTION_READS_MAX, TRANSACTION_WRITES_MAX};
use types::{Cluster, ClusterId, Digest, Direction, Key, KeyRange, ReplicaId, Value};

use crate::ensemble;

/// The version of the encoding, the first byte of each message.
const FORMAT: u8 = 1;

/// What is said.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the parts are named for what they are")]
pub enum Message {
    /// Between servers.
    Server(ensemble::Message),
    /// From a client, under its number for it.
    Question { number: u64, question: Question },
    /// From a server.
    Answer { number: u64, answer: Answer },
}

/// What a client asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the parts are named for what they are")]
pub enum Question {
    /// A session to commit in.
    Begin,
    /// The values of these keys.
    Read { keys: Vec<Key>, is_settled: bool },
    /// The keys of a range that have values, from one of its ends, so many at most.
    Scan { range: KeyRange, direction: Direction, rows_max: u32, is_settled: bool },
    /// Is all as it was seen?
    Check { seen: Seen },
    /// If it is, write this. It is the commit of that number in that slot of a session.
    Commit { session: i64, slot: u16, sequence: u64, seen: Seen, writes: Vec<Write> },
}

/// A key's value, or none, and the transaction that wrote it: 0 where there is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The key.
    pub key: Key,
    /// Its version.
    pub version: i64,
    /// Its value.
    pub value: Option<Value>,
}

impl Row {
    /// How many bytes of keys and values it has.
    pub(crate) fn bytes(&self) -> usize {
        self.key.as_bytes().len() + self.value.as_ref().map_or(0, |value| value.as_bytes().len())
    }
}

/// A key and its version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// The key.
    pub key: Key,
    /// The transaction that wrote it; 0 where it has no value.
    pub version: i64,
}

/// What a transaction has seen of a range: all of its keys that have values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenRange {
    /// The range.
    pub range: KeyRange,
    /// The keys, in order.
    pub rows: Vec<Version>,
}

/// What a transaction has seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Of single keys.
    pub keys: Vec<Version>,
    /// Of ranges.
    pub ranges: Vec<SeenRange>,
}

/// What a transaction writes: nothing deletes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// The key.
    pub key: Key,
    /// Its value then.
    pub value: Option<Value>,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the parts are named for what they are")]
pub enum Answer {
    /// Commit in this session.
    Begun { session: i64 },
    /// What was read, as of this transaction.
    Found { zxid: i64, rows: Vec<Row> },
    /// It is committed by, or all was as it was seen at, this transaction.
    Committed { zxid: i64 },
    /// Something was not as it was seen: nothing took place, or will.
    Conflict,
    /// There is no such session: nothing took place here, or will.
    Expired,
    /// Ask this server. Nothing took place here.
    NotLeading { leader: Option<u16> },
    /// There is too much to do. Nothing took place here.
    Busy { after_ms: u32 },
    /// Nothing took place, or will.
    Refused(Reason),
}

impl Question {
    /// About how many bytes it takes in memory: keys and values, and what holds each of them, as an empty key takes its room too.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let carried = match self {
            Self::Begin => 0,
            Self::Read { keys, .. } => keys.iter().map(|key| size_of::<Key>() + key.as_bytes().len()).sum(),
            Self::Scan { range, .. } => range.key_bytes(),
            Self::Check { seen } => seen.bytes(),
            Self::Commit { seen, writes, .. } => seen.bytes() + writes.iter().map(Write::bytes).sum::<usize>(),
        };
        size_of::<Self>() + carried
    }
}

impl Question {
    /// About how many nodes the leader looks at for it.
    #[must_use]
    pub fn nodes(&self) -> usize {
        match self {
            Self::Begin => 1,
            Self::Read { keys, .. } => 1 + keys.len(),
            Self::Scan { rows_max, .. } => 1 + usize::try_from(*rows_max).unwrap_or(usize::MAX).min(TRANSACTION_READS_MAX),
            Self::Check { seen } => 1 + seen.nodes(),
            Self::Commit { seen, writes, .. } => 1 + seen.nodes() + writes.len(),
        }
    }
}

impl Seen {
    fn nodes(&self) -> usize {
        self.keys.len() + self.ranges.iter().map(|seen| 1 + seen.rows.len()).sum::<usize>()
    }

    fn bytes(&self) -> usize {
        let of = |versions: &[Version]| versions.iter().map(|version| size_of::<Version>() + version.key.as_bytes().len()).sum::<usize>();
        let range = |seen: &SeenRange| size_of::<SeenRange>() + seen.range.key_bytes() + of(&seen.rows);
        of(&self.keys) + self.ranges.iter().map(range).sum::<usize>()
    }
}

impl Write {
    fn bytes(&self) -> usize {
        size_of::<Self>() + self.key.as_bytes().len() + self.value.as_ref().map_or(0, |value| value.as_bytes().len())
    }
}

impl Answer {
    /// About how many bytes its rows take in memory.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let row = |row: &Row| size_of::<Row>() + row.bytes();
        if let Self::Found { rows, .. } = self { rows.iter().map(row).sum() } else { 0 }
    }
}

/// Why a question is refused for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The answer, or the transaction, is too large.
    TooLarge,
    /// The client has no right to a key.
    NotPermitted,
    /// The tree does not take it, as where a client of the tree made a node below a key's.
    Occupied,
}

/// What a server signs: nothing.
#[derive(Clone, Copy, Debug)]
pub enum Unsigned {}

impl Signable for Unsigned {
    type Message = Message;

    fn leaf(&self, _cluster: ClusterId, _signer: ReplicaId) -> Digest {
        match *self {}
    }

    fn with_signature(self, _signature: BatchSignature) -> Message {
        match self {}
    }
}

impl SignatureClaims for Message {
    fn claims<'a>(&'a self, _cluster: &Cluster, _out: &mut Vec<Claim<'a>>) -> Result<(), Rejection> {
        Ok(())
    }
}

impl Compress for Message {}

impl Encode for Row {
    fn encode(&self, out: &mut Vec<u8>) {
        self.key.encode(out);
        self.version.cast_unsigned().encode(out);
        put_value(self.value.as_ref(), out);
    }
}

impl Decode for Row {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Self { key: Key::decode(reader)?, version: u64::decode(reader)?.cast_signed(), value: value(reader)? })
    }
}

impl Encode for Version {
    fn encode(&self, out: &mut Vec<u8>) {
        self.key.encode(out);
        self.version.cast_unsigned().encode(out);
    }
}

impl Decode for Version {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Self { key: Key::decode(reader)?, version: u64::decode(reader)?.cast_signed() })
    }
}

impl Encode for SeenRange {
    fn encode(&self, out: &mut Vec<u8>) {
        self.range.encode(out);
        encode_sequence(&self.rows, out);
    }
}

impl Decode for SeenRange {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Self { range: KeyRange::decode(reader)?, rows: reader.sequence("rows", TRANSACTION_READS_MAX)? })
    }
}

impl Encode for Seen {
    fn encode(&self, out: &mut Vec<u8>) {
        encode_sequence(&self.keys, out);
        encode_sequence(&self.ranges, out);
    }
}

impl Decode for Seen {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        let keys = reader.sequence("keys", TRANSACTION_READS_MAX)?;
        Ok(Self { keys, ranges: reader.sequence("ranges", TRANSACTION_RANGES_MAX)? })
    }
}

impl Encode for Write {
    fn encode(&self, out: &mut Vec<u8>) {
        self.key.encode(out);
        put_value(self.value.as_ref(), out);
    }
}

impl Decode for Write {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Self { key: Key::decode(reader)?, value: value(reader)? })
    }
}

fn put_value(value: Option<&Value>, out: &mut Vec<u8>) {
    value.is_some().encode(out);
    if let Some(value) = value {
        value.encode(out);
    }
}

fn value(reader: &mut Reader) -> Result<Option<Value>, DecodeError> {
    bool::decode(reader)?.then(|| Value::decode(reader)).transpose()
}

impl Encode for Question {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Begin => out.push(1),
            Self::Read { keys, is_settled } => {
                out.push(2);
                encode_sequence(keys, out);
                is_settled.encode(out);
            }
            Self::Scan { range, direction, rows_max, is_settled } => {
                out.push(3);
                range.encode(out);
                direction.encode(out);
                rows_max.encode(out);
                is_settled.encode(out);
            }
            Self::Check { seen } => {
                out.push(4);
                seen.encode(out);
            }
            Self::Commit { session, slot, sequence, seen, writes } => {
                out.push(5);
                session.cast_unsigned().encode(out);
                slot.encode(out);
                sequence.encode(out);
                seen.encode(out);
                encode_sequence(writes, out);
            }
        }
    }
}

impl Decode for Question {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(match u8::decode(reader)? {
            1 => Self::Begin,
            2 => Self::Read { keys: reader.sequence("keys", TRANSACTION_READS_MAX)?, is_settled: bool::decode(reader)? },
            3 => Self::Scan {
                range: KeyRange::decode(reader)?,
                direction: Direction::decode(reader)?,
                rows_max: u32::decode(reader)?,
                is_settled: bool::decode(reader)?,
            },
            4 => Self::Check { seen: Seen::decode(reader)? },
            5 => Self::Commit {
                session: u64::decode(reader)?.cast_signed(),
                slot: u16::decode(reader)?,
                sequence: u64::decode(reader)?,
                seen: Seen::decode(reader)?,
                writes: reader.sequence("writes", TRANSACTION_WRITES_MAX)?,
            },
            _ => return Err(DecodeError::UnknownTag("a question")),
        })
    }
}

impl Encode for Answer {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Begun { session } => {
                out.push(1);
                session.cast_unsigned().encode(out);
            }
            Self::Found { zxid, rows } => {
                out.push(2);
                zxid.cast_unsigned().encode(out);
                encode_sequence(rows, out);
            }
            Self::Committed { zxid } => {
                out.push(3);
                zxid.cast_unsigned().encode(out);
            }
            Self::Conflict => out.push(4),
            Self::Expired => out.push(5),
            Self::NotLeading { leader } => {
                out.push(6);
                leader.is_some().encode(out);
                leader.iter().for_each(|leader| leader.encode(out));
            }
            Self::Busy { after_ms } => {
                out.push(7);
                after_ms.encode(out);
            }
            Self::Refused(reason) => {
                out.push(8);
                out.push(match reason {
                    Reason::TooLarge => 1,
                    Reason::NotPermitted => 2,
                    Reason::Occupied => 3,
                });
            }
        }
    }
}

impl Decode for Answer {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(match u8::decode(reader)? {
            1 => Self::Begun { session: u64::decode(reader)?.cast_signed() },
            2 => Self::Found { zxid: u64::decode(reader)?.cast_signed(), rows: reader.sequence("rows", TRANSACTION_READS_MAX)? },
            3 => Self::Committed { zxid: u64::decode(reader)?.cast_signed() },
            4 => Self::Conflict,
            5 => Self::Expired,
            6 => Self::NotLeading { leader: bool::decode(reader)?.then(|| u16::decode(reader)).transpose()? },
            7 => Self::Busy { after_ms: u32::decode(reader)? },
            8 => Self::Refused(match u8::decode(reader)? {
                1 => Reason::TooLarge,
                2 => Reason::NotPermitted,
                3 => Reason::Occupied,
                _ => return Err(DecodeError::UnknownTag("a reason")),
            }),
            _ => return Err(DecodeError::UnknownTag("an answer")),
        })
    }
}

impl Encode for Message {
    fn encode(&self, out: &mut Vec<u8>) {
        out.push(FORMAT);
        match self {
            Self::Server(message) => {
                out.push(1);
                message.encode(out);
            }
            Self::Question { number, question } => {
                out.push(2);
                number.encode(out);
                question.encode(out);
            }
            Self::Answer { number, answer } => {
                out.push(3);
                number.encode(out);
                answer.encode(out);
            }
        }
    }
}

impl Decode for Message {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        if u8::decode(reader)? != FORMAT {
            return Err(DecodeError::UnknownTag("a format"));
        }
        Ok(match u8::decode(reader)? {
            1 => Self::Server(ensemble::Message::decode(reader)?),
            2 => Self::Question { number: u64::decode(reader)?, question: Question::decode(reader)? },
            3 => Self::Answer { number: u64::decode(reader)?, answer: Answer::decode(reader)? },
            _ => return Err(DecodeError::UnknownTag("a message")),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn cluster() -> ClusterId {
        ClusterId::new([0; 16])
    }

    fn messages() -> Vec<Message> {
        let (key, value) = (|| Key::from("k"), || Some(Value::from("v")));
        let version = || Version { key: key(), version: i64::MIN };
        let range = || KeyRange::new(key(), Key::from("l")).expect("it has keys");
        let seen = || Seen { keys: vec![version()], ranges: vec![SeenRange { range: range(), rows: vec![version(), version()] }] };
        let writes = vec![Write { key: key(), value: value() }, Write { key: key(), value: None }];
        let questions = [
            Question::Begin,
            Question::Read { keys: vec![key(), key()], is_settled: true },
            Question::Scan { range: range(), direction: Direction::Descending, rows_max: 7, is_settled: false },
            Question::Check { seen: seen() },
            Question::Commit { session: -1, slot: 3, sequence: u64::MAX, seen: seen(), writes },
        ];
        let rows = vec![Row { key: key(), version: 1, value: value() }, Row { key: key(), version: 0, value: None }];
        let answers = [
            Answer::Begun { session: 9 },
            Answer::Found { zxid: 8, rows },
            Answer::Committed { zxid: 7 },
            Answer::Conflict,
            Answer::Expired,
            Answer::NotLeading { leader: None },
            Answer::NotLeading { leader: Some(2) },
            Answer::Busy { after_ms: 100 },
            Answer::Refused(Reason::TooLarge),
            Answer::Refused(Reason::NotPermitted),
            Answer::Refused(Reason::Occupied),
        ];
        let questions = questions.into_iter().map(|question| Message::Question { number: 5, question });
        let answers = answers.into_iter().map(|answer| Message::Answer { number: 6, answer });
        questions.chain(answers).chain([Message::Server(ensemble::Message::Compare)]).collect()
    }

    #[test]
    fn messages_come_back_as_they_were_and_nothing_less_is_one() {
        for message in messages() {
            let bytes = message.to_bytes();
            assert_eq!(Message::from_bytes(bytes.clone().into(), cluster()), Ok(message.clone()));
            for length in 0..bytes.len() {
                assert!(Message::from_bytes(bytes[..length].to_vec().into(), cluster()).is_err(), "{length} bytes of {message:?}");
            }
        }
    }

    #[test]
    fn what_is_empty_takes_its_room_too() {
        let empty = || Key::from("");
        let version = || Version { key: empty(), version: 0 };
        let key = size_of::<Key>();
        let range = || KeyRange::new(empty(), Key::from("a")).expect("it has keys");
        let seen = |keys: usize, ranges: usize| Seen {
            keys: vec![version(); keys],
            ranges: vec![SeenRange { range: range(), rows: vec![version()] }; ranges],
        };
        let writes = vec![Write { key: empty(), value: None }; 10];
        for (question, parts) in [
            (Question::Begin, 1),
            (Question::Read { keys: vec![empty(); 100], is_settled: true }, 100),
            (Question::Scan { range: range(), direction: Direction::Ascending, rows_max: 1, is_settled: true }, 2),
            (Question::Check { seen: seen(10, 10) }, 40),
            (Question::Commit { session: 1, slot: 0, sequence: 1, seen: seen(10, 10), writes }, 50),
        ] {
            assert!(question.bytes() >= parts * key, "{} for {parts} keys of {question:?}", question.bytes());
        }
        let rows = vec![Row { key: empty(), version: 0, value: None }; 100];
        assert!(Answer::Found { zxid: 1, rows }.bytes() >= 100 * key);
    }

    proptest! {
        #[test]
        fn whatever_can_be_read_has_one_encoding(which in 0_usize..17, at: usize, byte: u8) {
            let mut bytes = messages()[which].to_bytes();
            let at = at % bytes.len();
            bytes[at] = byte;
            if let Ok(message) = Message::from_bytes(bytes.clone().into(), cluster()) {
                prop_assert_eq!(message.to_bytes(), bytes);
            }
        }
    }
}
