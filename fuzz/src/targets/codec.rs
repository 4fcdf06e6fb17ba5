//! Every type with an encoding: what is taken has that one encoding, and nothing shorter or longer means the same.

use std::fmt::Debug;

use basil::certificate::{Certificate, LoggedSet, SignedLogged, SignedVote, VoteSet};
use basil::message::{Conflict, Justified, KeyVersion, ReadResult, Subject};
use basil::recovery::{SignedDecide, SignedElect};
use basil::{Decision, Read, Refusal, Transaction, Vote, Write};
use bytes::Bytes;
use crypto::{BatchSignature, SignedRoot};
use types::codec::{Decode, Encode, Reader};
use types::{ClusterId, Key, ReplicaId, ShardId, Timestamp, TransactionId, Value};

use crate::Target;
use crate::choices::Choices;
use crate::fixture::{CLUSTER, fixture};
use crate::generators;

pub(super) const TARGET: Target =
    Target { name: "codec", what: "decodes a value of any type; the first byte says which", bytes_max: 2_048, runs: 40_000, run, seeds };

fn run(bytes: &[u8]) {
    let Some((which, bytes)) = bytes.split_first() else { return };
    let checks: [fn(&[u8]); KINDS] = [
        transaction,
        check::<Certificate>,
        check::<VoteSet>,
        check::<LoggedSet>,
        check::<SignedVote>,
        check::<SignedLogged>,
        check::<SignedElect>,
        check::<SignedDecide>,
        check::<Justified>,
        check::<Conflict>,
        check::<ReadResult>,
        check::<BatchSignature>,
        check::<SignedRoot>,
        check::<Read>,
        check::<Write>,
        check::<Key>,
        check::<Value>,
        check::<Timestamp>,
        check::<ReplicaId>,
        check::<ShardId>,
        check::<TransactionId>,
        check::<Subject>,
        check::<Refusal>,
        check::<Vote>,
        check::<Decision>,
        check::<Option<u32>>,
        check::<[u8; 5]>,
        check::<u64>,
        check::<KeyVersion>,
    ];
    checks[usize::from(*which) % KINDS](bytes);
}

const KINDS: usize = 29;

/// What is decoded from the front of `bytes` has those bytes for its encoding, and no fewer and no more.
pub(super) fn check<T: Decode + Encode + PartialEq + Debug>(bytes: &[u8]) {
    let all = Bytes::copy_from_slice(bytes);
    let mut reader = Reader::new(all.clone(), CLUSTER);
    let Ok(value) = T::decode(&mut reader) else { return };
    let used = bytes.len() - reader.remaining();
    let encoded = value.to_bytes();
    assert_eq!(encoded, bytes[..used], "a value has one encoding");
    let mut behind = b"what was there".to_vec();
    value.encode(&mut behind);
    assert_eq!(behind.split_off(14), encoded, "an encoding is appended");
    assert_eq!(T::from_bytes(all.slice(..used), CLUSTER).as_ref(), Ok(&value));
    assert_eq!(T::from_bytes(all.clone(), CLUSTER).is_ok(), used == bytes.len(), "nothing may trail");
    if used > 0 {
        assert!(T::from_bytes(all.slice(..used - 1), CLUSTER).is_err(), "nothing may be missing");
    }
}

/// Also: whoever makes the same transaction of its parts makes the same bytes and the same name.
fn transaction(bytes: &[u8]) {
    check::<Transaction>(bytes);
    let Ok(transaction) = Transaction::from_bytes(Bytes::copy_from_slice(bytes), CLUSTER) else { return };
    let (mut reads, mut writes) = (transaction.reads().to_vec(), transaction.writes().to_vec());
    reads.reverse();
    writes.reverse();
    let mut ranges = transaction.ranges().to_vec();
    ranges.reverse();
    let again =
        Transaction::with_ranges(CLUSTER, transaction.timestamp(), reads, ranges, writes).expect("its parts made a transaction before");
    assert_eq!((again.id(), again.to_bytes()), (transaction.id(), bytes.to_vec()));
    let detached = transaction.detached();
    assert_eq!((detached.id(), detached.to_bytes(), detached.timestamp()), (again.id(), again.to_bytes(), again.timestamp()));
    let elsewhere = Transaction::from_bytes(Bytes::copy_from_slice(bytes), ClusterId::new([1; 16])).expect("another cluster decodes alike");
    assert_ne!(elsewhere.id(), transaction.id(), "a name is one cluster's");
    for read in transaction.reads() {
        assert_eq!(transaction.read_of(&read.key), Some(read));
    }
    for write in transaction.writes() {
        assert_eq!(transaction.write_of(&write.key), Some(write));
        assert!(!write.key.to_string().is_empty() || write.key.as_bytes().is_empty());
    }
    assert_eq!(transaction.encoded_bytes(), bytes.len());
    assert!(transaction.keys().count() == transaction.reads().len() + transaction.writes().len());
}

fn seeds() -> Vec<Vec<u8>> {
    let seed = |kind: u8, value: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = vec![kind];
        value(&mut bytes);
        bytes
    };
    let transactions = [0, 2, 4, 18, 19].map(|number: usize| seed(0, &|out| fixture().transactions[number].encode(out)));
    let certificates = [&[0][..], &[1], &[2], &[3]].map(|way| {
        let certificate = generators::certificate(&mut Choices::new(way), 1);
        seed(1, &|out| certificate.encode(out))
    });
    let read = &fixture().transactions[2].reads()[0];
    let write = &fixture().transactions[0].writes()[0];
    let mut seeds = vec![
        seed(13, &|out| read.encode(out)),
        seed(14, &|out| write.encode(out)),
        seed(15, &|out| Key::from("account/1").encode(out)),
        seed(17, &|out| Timestamp::new(7, types::ClientId(9)).encode(out)),
        seed(25, &|out| Some(7_u32).encode(out)),
    ];
    seeds.extend(transactions);
    seeds.extend(certificates);
    seeds
}
