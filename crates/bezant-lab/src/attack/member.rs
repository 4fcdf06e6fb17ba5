//! Attacks by a member: a client with a key and with rights to everything.

use std::sync::Arc;
use std::time::Duration;

use basil::certificate::{LoggedStatement, Proof, ShardProof, SignedLogged, VoteSet, VoteStatement};
use basil::message::Justified;
use basil::{Certificate, Decision, Message, Transaction, Vote, Write};
use crypto::{BatchSignature, SecretKey, SignedRoot, Statement, leaf};
use tokio::io::AsyncWriteExt as _;
use types::limits::{READ_KEYS_MAX, TRANSACTION_WRITES_MAX};
use types::{Key, ReplicaId, ShardId, Timestamp, TransactionId, Value};

use bezant::failure::Failure;

use super::wire::{Apart, Pace, Speaker, Target, flood, frames, now_ns};

/// The attacker's folder in the cluster's.
pub const FOLDER: &str = "client-2";
/// How many large values there are, and how large each is: all fit one answer.
const LARGE_VALUES: u64 = 40;
const LARGE_VALUE_BYTES: usize = 190 << 10;
/// How many of them one transaction writes.
const LARGE_VALUES_WRITTEN: u64 = 16;
/// How far ahead of time requests are that come early: a little less than replicas accept.
const AHEAD_NS: u64 = 400_000_000;
/// How many keys one such read names.
const KEYS_AHEAD: usize = 32;
/// How often a connection is opened to each of six replicas: a hundred times a second in all.
const LOG_INTERVAL: Duration = Duration::from_millis(60);

fn attack(target: &Arc<Target>, connections: usize, pace: Pace, make: fn(&Target, u64) -> Vec<u8>) -> Result<(), Failure> {
    flood(target, &target.speaker(Some(FOLDER))?, &target.replicas, connections, pace, make);
    Ok(())
}

/// Reads of one key, each in a frame of its own, as fast as they are taken.
pub fn tiny_frames(target: &Arc<Target>) -> Result<(), Failure> {
    attack(target, 2, Pace::Full, |target, number| {
        let read = |at| Message::Read { request: at, timestamp: own(target, now_ns()), keys: vec![table_key(target, at)] };
        frames((number * 512..(number + 1) * 512).map(read), Apart::Each)
    })
}

/// Reads whose answers have 7 MiB, four at a time on each connection.
pub fn large_reads(target: &Arc<Target>) -> Result<(), Failure> {
    attack(target, 2, Pace::Answered(4), read_large)
}

/// The same, and answers are never read.
pub fn slow_readers(target: &Arc<Target>) -> Result<(), Failure> {
    attack(target, 8, Pace::Unread, read_large)
}

/// Reads that name one key as often as a read may name keys, which no correct client sends.
pub fn repeated_keys(target: &Arc<Target>) -> Result<(), Failure> {
    attack(target, 2, Pace::Full, |target, number| {
        let keys = vec![table_key(target, number); READ_KEYS_MAX];
        frames([Message::Read { request: number, timestamp: own(target, now_ns()), keys }], Apart::Full)
    })
}

/// Ten transactions a second of as many of the table's keys as a transaction may write, none of which is ever finished.
pub fn prepares(target: &Arc<Target>) -> Result<(), Failure> {
    attack(target, 1, Pace::Every(Duration::from_millis(100)), |target, time| {
        let first = time / 100_000_000 * TRANSACTION_WRITES_MAX as u64;
        let keys = (0..target.keys.min(TRANSACTION_WRITES_MAX as u64)).map(|at| key_of((first + at) % target.keys));
        frames(prepare(target, own(target, time), keys), Apart::Full)
    })
}

/// Ten thousand transactions a second of a key of the attacker's own, none of which is ever finished.
pub fn hoarding(target: &Arc<Target>) -> Result<(), Failure> {
    attack(target, 1, Pace::Every(Duration::from_millis(10)), |target, time| {
        let one = |at| prepare(target, own(target, at), [Key::from(format!("hoard/{at}").as_str())]);
        frames((time..time + 100).flat_map(one), Apart::Full)
    })
}

/// Proofs of commits, whose signatures are of somebody else's key.
pub fn bad_signatures(target: &Arc<Target>) -> Result<(), Failure> {
    attack(target, 2, Pace::Full, |target, number| {
        let writeback = |at| {
            let id = made_up_id(at);
            let proof = Proof::Fast(vec![ShardProof::Votes(forged_votes(target, id, ShardId(0)))]);
            let certificate = Arc::new(Certificate { id, decision: Decision::Commit, proof });
            Message::Writeback { transaction: None, certificate, relay: false }
        };
        frames((number * 32..(number + 1) * 32).map(writeback), Apart::Full)
    })
}

/// Messages with as many votes and views as one may carry, and proofs of as many shards as a certificate may name.
pub fn proofs(target: &Arc<Target>) -> Result<(), Failure> {
    attack(target, 2, Pace::Full, |target, number| {
        let elect = |at| {
            let transaction = transaction(target, own(target, now_ns() + at), [table_key(target, at)])?;
            let id = transaction.id();
            let tallies = vec![forged_votes(target, id, ShardId(0))];
            let justified = Some(Justified { decision: Decision::Commit, tallies });
            let statement = LoggedStatement { id, decision: Decision::Commit, view_decision: 0, view_current: 1 };
            let view = |replica| SignedLogged { replica, statement, signature: forged(target, replica, &statement) };
            let views = target.cluster.replicas_of(ShardId(0)).map(view).collect();
            Some(Message::InvokeFallback { transaction, justified, views })
        };
        let many_shards = |at| {
            let id = made_up_id(at);
            let proofs = (0..64).map(|shard| ShardProof::Votes(forged_votes(target, id, ShardId(shard)))).collect();
            let certificate = Arc::new(Certificate { id, decision: Decision::Commit, proof: Proof::Fast(proofs) });
            Message::Writeback { transaction: None, certificate, relay: false }
        };
        let elects = (number * 8..(number + 1) * 8).filter_map(elect);
        frames(elects.chain([many_shards(number)]), Apart::Full)
    })
}

/// Five thousand requests a second to finish transactions of the honest client that it never began.
pub fn recoveries(target: &Arc<Target>) -> Result<(), Failure> {
    attack(target, 1, Pace::Every(Duration::from_millis(10)), |target, time| {
        let recover = |at| {
            let transaction = transaction(target, Timestamp::new(at, target.honest), [table_key(target, at)])?;
            Some(Message::Recover { transaction, evidence: Vec::new() })
        };
        frames((time..time + 50).filter_map(recover), Apart::Full)
    })
}

/// Forty times a second reads of as many of the table's keys as one read may name, ahead of time, a few in each.
pub fn reads_ahead(target: &Arc<Target>) -> Result<(), Failure> {
    attack(target, 1, Pace::Every(Duration::from_millis(25)), |target, time| {
        let first = time / 25_000_000 * READ_KEYS_MAX as u64;
        let mut keys: Vec<Key> = (0..target.keys.min(READ_KEYS_MAX as u64)).map(|at| key_of((first + at) % target.keys)).collect();
        keys.sort();
        let read = |(at, keys): (u64, &[Key])| {
            let timestamp = own(target, time + AHEAD_NS + at);
            Message::Read { request: time + at, timestamp, keys: keys.to_vec() }
        };
        frames((0..).zip(keys.chunks(KEYS_AHEAD)).map(read), Apart::Full)
    })
}

/// Thirty thousand reads and prepares a second ahead of time, which wait at the replica.
pub fn early_requests(target: &Arc<Target>) -> Result<(), Failure> {
    attack(target, 1, Pace::Every(Duration::from_millis(10)), |target, time| {
        let early = |at| own(target, at + AHEAD_NS);
        let read = |at| Message::Read { request: at, timestamp: early(at), keys: vec![table_key(target, at)] };
        let prepares = (time..time + 100).flat_map(|at| prepare(target, early(at), [Key::from(format!("early/{at}").as_str())]));
        frames((time..time + 200).map(read).chain(prepares), Apart::Full)
    })
}

/// A hundred connections a second, each closed for what it says.
pub fn logs(target: &Arc<Target>) -> Result<(), Failure> {
    let speaker = target.speaker(Some(FOLDER))?;
    for (_, address) in target.replicas.clone() {
        let (target, speaker): (Arc<Target>, Speaker) = (Arc::clone(target), speaker.clone());
        tokio::spawn(async move {
            let mut interval = tokio::time::interval(LOG_INTERVAL);
            loop {
                interval.tick().await;
                if let Ok(mut stream) = target.connect(&speaker, address).await {
                    let garbage = [9; 64];
                    if stream.write_all(&garbage).await.is_ok() && stream.flush().await.is_ok() {
                        target.note_write(garbage.len());
                    }
                }
            }
        });
    }
    Ok(())
}

fn read_large(target: &Target, number: u64) -> Vec<u8> {
    let mut keys: Vec<Key> = (0..LARGE_VALUES).map(large_key).collect();
    keys.sort();
    frames([Message::Read { request: number, timestamp: own(target, now_ns()), keys }], Apart::Full)
}

/// Writes the large values that attacks read, as any client writes.
pub async fn write_large_values(target: &Target) -> Result<(), Failure> {
    let client = bezant_client::connect(bezant_client::load(target.folder.join(FOLDER))?).await?;
    for first in (0..LARGE_VALUES).step_by(LARGE_VALUES_WRITTEN as usize) {
        let written = client.transact(|transaction| async move {
            for at in first..LARGE_VALUES.min(first + LARGE_VALUES_WRITTEN) {
                transaction.put(large_key(at), Value::from("v".repeat(LARGE_VALUE_BYTES).as_str()));
            }
            Ok(())
        });
        written.await?;
    }
    client.close().await;
    Ok(())
}

fn large_key(at: u64) -> Key {
    Key::from(format!("large/{at:04}").as_str())
}

/// A key of the honest clients' table, as `bezant bench` names them.
fn key_of(index: u64) -> Key {
    Key::from(format!("user{index:08}").as_str())
}

/// Some key of that table.
fn table_key(target: &Target, number: u64) -> Key {
    key_of(scattered(number) % target.keys)
}

/// A number that looks drawn at random.
fn scattered(number: u64) -> u64 {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 16
}

fn own(target: &Target, time: u64) -> Timestamp {
    Timestamp::new(time, target.client)
}

fn transaction(target: &Target, timestamp: Timestamp, keys: impl IntoIterator<Item = Key>) -> Option<Transaction> {
    let value = Some(Value::from("attacked"));
    let writes = keys.into_iter().map(|key| Write { key, value: value.clone() }).collect();
    Transaction::new(target.cluster.id(), timestamp, Vec::new(), writes).ok()
}

fn prepare(target: &Target, timestamp: Timestamp, keys: impl IntoIterator<Item = Key>) -> Option<Message> {
    Some(Message::Prepare { transaction: transaction(target, timestamp, keys)? })
}

/// The name of no transaction.
pub fn made_up_id(number: u64) -> TransactionId {
    let mut id = [7; 32];
    id[..8].copy_from_slice(&scattered(number ^ now_ns()).to_le_bytes());
    id[8..16].copy_from_slice(&number.to_le_bytes());
    TransactionId(id)
}

/// Votes of all replicas of a shard for a transaction, none of which they made.
fn forged_votes(target: &Target, id: TransactionId, shard: ShardId) -> VoteSet {
    let statement = VoteStatement { id, vote: Vote::Commit };
    let count = u16::try_from(target.cluster.replicas_per_shard()).expect("a shard has few replicas");
    let voters = (0..count).map(|index| (index, forged(target, ReplicaId { shard, index }, &statement)));
    VoteSet { shard, vote: Vote::Commit, voters: voters.collect() }
}

/// A signature of another statement by another key, in a form that shows it only when it is checked.
fn forged<S: Statement>(target: &Target, replica: ReplicaId, statement: &S) -> BatchSignature {
    static SIGNATURE: std::sync::LazyLock<[u8; 64]> = std::sync::LazyLock::new(|| SecretKey::generate().sign(b"another statement"));
    let root = leaf(target.cluster.id(), replica, statement);
    BatchSignature { signed: Arc::new(SignedRoot { root, count: 1, signature: *SIGNATURE }), index: 0, path: Arc::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_values_fit_one_answer_and_one_transaction() {
        assert!(LARGE_VALUES * (LARGE_VALUE_BYTES as u64) < 8 << 20);
        assert!(LARGE_VALUES_WRITTEN * (LARGE_VALUE_BYTES as u64 + 100) < types::limits::TRANSACTION_BYTES_MAX as u64);
    }
}
