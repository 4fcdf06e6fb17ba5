//! What a replica writes into its journal, and finds there when it comes back.

use crate::transaction::Transaction;
use types::codec::{Decode, DecodeError, Encode, Reader, encode_sequence};
use types::limits::TRANSACTION_WRITES_MAX;
use types::{Key, TransactionId};

use crate::certificate::{Decision, VOTERS_MAX, Vote};
use crate::message::{JournalEnd, KeyVersion};
use crate::tombstones::Tombstone;

/// Format version of a record, its first byte.
const FORMAT: u8 = 1;

/// One thing a replica must not forget.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Record {
    /// It voted: a vote is final across crashes too, so it is written before it is sent.
    Voted { transaction: Transaction, vote: Vote },
    /// Being of the logging shard, it logged a decision: a client's in view 0, a leader's in the view of that.
    Logged { transaction: Option<Transaction>, id: TransactionId, decision: Decision, view: u32 },
    /// It learned how a transaction ended. The transaction comes along when its vote may be in a part of the
    /// journal that is released before this one is. The proof does not: what it rests on, votes and logged decisions,
    /// is in the journals of those who gave it, and whoever needs it again asks them.
    Decided { transaction: Option<Transaction>, id: TransactionId, decision: Decision },
    /// It rose to a view, and will adopt nothing from a lower one.
    ViewEntered { id: TransactionId, view: u32 },
    /// It may let keys be read at timestamps up to this one, in nanoseconds. Which were is not logged: when it comes back
    /// it votes against every write below.
    ReadCeiling { up_to: u64 },
    /// It told others that it will vote on nothing below this any more that it has not voted on, in nanoseconds.
    LowWatermark { below: u64 },
    /// It took over these versions of an orphan's keys from others, and released it, unless these remember how it ended
    /// ([`crate::orphan_resolution`]).
    OrphanReleased { id: TransactionId, end: Option<Decision>, versions: Vec<(Key, KeyVersion)> },
    /// It took over a committed version of a key from others of its shard ([`crate::catch_up`]).
    VersionTakenOver { key: Key, version: KeyVersion },
    /// A version of its own was found to be wrong, and this takes its place ([`crate::catch_up`]).
    VersionMended { key: Key, version: KeyVersion },
    /// It lost its disk, and has forgotten what it said up to this time, in nanoseconds; 0 until that is known. Whether it is being rebuilt
    /// still ([`crate::rebuild`]).
    DiskLost { up_to: u64, is_rebuilding: bool },
    /// How far others of its shard have told that their journals have come (`older_copy.rs`).
    PeerJournals { journals: Vec<PeerJournal> },
    /// The tombstones it keeps ([`crate::tombstones`]), their ids hashed with this number. Whatever else it has forgotten is from before
    /// this time, in nanoseconds, or in the journal.
    Tombstones { salt: u64, complete_from: u64, tombstones: Vec<Tombstone> },
}

/// How far the journal of the replica in this place of the shard has come, as whoever had this key told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PeerJournal {
    pub index: u16,
    pub public_key: [u8; 32],
    pub end: JournalEnd,
}

impl Encode for PeerJournal {
    fn encode(&self, out: &mut Vec<u8>) {
        self.index.encode(out);
        self.public_key.encode(out);
        self.end.encode(out);
    }
}

impl Decode for PeerJournal {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Self { index: u16::decode(reader)?, public_key: reader.array()?, end: JournalEnd::decode(reader)? })
    }
}

/// The most forgotten transactions in one record.
pub(crate) const TOMBSTONES_MAX: usize = 4_096;

impl Encode for Record {
    fn encode(&self, out: &mut Vec<u8>) {
        out.push(FORMAT);
        match self {
            Self::Voted { transaction, vote } => {
                out.push(1);
                vote.encode(out);
                transaction.encode(out);
            }
            Self::Logged { transaction, id, decision, view } => {
                out.push(2);
                transaction.encode(out);
                id.encode(out);
                decision.encode(out);
                view.encode(out);
            }
            Self::Decided { transaction, id, decision } => {
                out.push(3);
                transaction.encode(out);
                id.encode(out);
                decision.encode(out);
            }
            Self::ViewEntered { id, view } => {
                out.push(4);
                id.encode(out);
                view.encode(out);
            }
            Self::ReadCeiling { up_to } => {
                out.push(5);
                up_to.encode(out);
            }
            Self::LowWatermark { below } => {
                out.push(6);
                below.encode(out);
            }
            Self::OrphanReleased { id, end, versions } => {
                out.push(7);
                id.encode(out);
                end.encode(out);
                encode_sequence(&versions.iter().map(|(key, _)| key.clone()).collect::<Vec<Key>>(), out);
                versions.iter().for_each(|(_, version)| version.encode(out));
            }
            Self::VersionTakenOver { key, version } => {
                out.push(10);
                key.encode(out);
                version.encode(out);
            }
            Self::VersionMended { key, version } => {
                out.push(12);
                key.encode(out);
                version.encode(out);
            }
            Self::DiskLost { up_to, is_rebuilding } => {
                out.push(11);
                up_to.encode(out);
                is_rebuilding.encode(out);
            }
            Self::PeerJournals { journals } => {
                out.push(14);
                encode_sequence(journals, out);
            }
            Self::Tombstones { salt, complete_from, tombstones } => {
                out.push(9);
                salt.encode(out);
                complete_from.encode(out);
                encode_sequence(tombstones, out);
            }
        }
    }
}

impl Decode for Record {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        if u8::decode(reader)? != FORMAT {
            return Err(DecodeError::UnknownTag("a journal record's format"));
        }
        match u8::decode(reader)? {
            1 => {
                let vote = Vote::decode(reader)?;
                Ok(Self::Voted { vote, transaction: Transaction::decode(reader)? })
            }
            2 => Ok(Self::Logged {
                transaction: Option::decode(reader)?,
                id: TransactionId::decode(reader)?,
                decision: Decision::decode(reader)?,
                view: u32::decode(reader)?,
            }),
            3 => Ok(Self::Decided {
                transaction: Option::decode(reader)?,
                id: TransactionId::decode(reader)?,
                decision: Decision::decode(reader)?,
            }),
            4 => Ok(Self::ViewEntered { id: TransactionId::decode(reader)?, view: u32::decode(reader)? }),
            5 => Ok(Self::ReadCeiling { up_to: u64::decode(reader)? }),
            6 => Ok(Self::LowWatermark { below: u64::decode(reader)? }),
            7 => {
                let id = TransactionId::decode(reader)?;
                let end = Option::decode(reader)?;
                let keys: Vec<Key> = reader.sequence("keys", TRANSACTION_WRITES_MAX)?;
                let versions = keys.into_iter().map(|key| Ok((key, KeyVersion::decode(reader)?)));
                Ok(Self::OrphanReleased { id, end, versions: versions.collect::<Result<_, DecodeError>>()? })
            }
            9 => Ok(Self::Tombstones {
                salt: u64::decode(reader)?,
                complete_from: u64::decode(reader)?,
                tombstones: reader.sequence("forgotten transactions", TOMBSTONES_MAX)?,
            }),
            10 => Ok(Self::VersionTakenOver { key: Key::decode(reader)?, version: KeyVersion::decode(reader)? }),
            11 => Ok(Self::DiskLost { up_to: u64::decode(reader)?, is_rebuilding: bool::decode(reader)? }),
            12 => Ok(Self::VersionMended { key: Key::decode(reader)?, version: KeyVersion::decode(reader)? }),
            13 => {
                // Of a build that did not note by which keys it was told: nobody is held to that.
                for _ in 0..reader.count("journals of others", VOTERS_MAX)? {
                    let (_, _) = (u16::decode(reader)?, JournalEnd::decode(reader)?);
                }
                Ok(Self::PeerJournals { journals: Vec::new() })
            }
            14 => Ok(Self::PeerJournals { journals: reader.sequence("journals of others", VOTERS_MAX)? }),
            _ => Err(DecodeError::UnknownTag("a journal record")),
        }
    }
}

#[cfg(test)]
mod tests {
    use types::codec::encode_count;
    use types::{ClientId, ClusterId, Timestamp, Value};

    use super::*;

    #[test]
    fn what_was_taken_over_or_lost_reads_back_as_it_was_written() {
        let taken = |value: Option<&str>| {
            let version = KeyVersion { version: Timestamp::new(5, ClientId(1)), value: value.map(Value::from) };
            Record::VersionTakenOver { key: Key::from("a"), version }
        };
        let mended = || match taken(Some("2")) {
            Record::VersionTakenOver { key, version } => Record::VersionMended { key, version },
            other => other,
        };
        let lost = |up_to, is_rebuilding| Record::DiskLost { up_to, is_rebuilding };
        let end = JournalEnd { lost_up_to: 7, batches: u64::MAX };
        let journals = Record::PeerJournals { journals: vec![PeerJournal { index: 3, public_key: [5; 32], end }] };
        for record in [taken(Some("1")), taken(Some("")), taken(None), mended(), lost(0, true), lost(u64::MAX, false), journals] {
            let mut bytes = Vec::new();
            record.encode(&mut bytes);
            let whole = bytes::Bytes::from(bytes);
            for length in 0..whole.len() {
                assert!(Record::from_bytes(whole.slice(..length), ClusterId::new([1; 16])).is_err(), "{record:?} cut to {length}");
            }
            assert_eq!(Record::from_bytes(whole, ClusterId::new([1; 16])), Ok(record));
        }
    }

    #[test]
    fn how_far_journals_had_come_is_dropped_where_no_key_stands_beside_it() {
        let mut bytes = vec![FORMAT, 13];
        encode_count(2, &mut bytes);
        for index in [1_u16, 4] {
            index.encode(&mut bytes);
            JournalEnd { lost_up_to: 7, batches: u64::MAX }.encode(&mut bytes);
        }
        let read = |bytes: &[u8]| Record::from_bytes(bytes::Bytes::copy_from_slice(bytes), ClusterId::new([1; 16]));
        assert_eq!(read(&bytes), Ok(Record::PeerJournals { journals: Vec::new() }));
        assert!(read(&bytes[..bytes.len() - 1]).is_err());
    }
}
