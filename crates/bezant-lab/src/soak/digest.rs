//! Whether all replicas hold the same: each is asked, by a connection of its own, for everything as of one time, which nobody changes any more.

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;
use std::time::Duration;

use basil::Message;
use basil::message::PendingWrite;
use bytes::{Bytes, BytesMut};
use runtime::frame::{HEADER_BYTES, body_length, control, decode_messages};
use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use types::codec::Encode as _;
use types::limits::{FRAME_BYTES_MAX, SCAN_ROWS_MAX};
use types::{Direction, Key, KeyRange, ReplicaId, Timestamp};

use bezant::failure::{Attempt as _, Failure};

use super::Shared;
use crate::attack::wire::{Apart, Speaker, Target, frames, now_ns};

/// How far back the time is for which all are asked: what is acknowledged later is of a later time.
const BACK_MS: u64 = 1_000;
/// How often they are asked: what was prepared up to the time has to end first, and who missed a commit needs some seconds to learn of it.
const TRIES_MAX: usize = 60;
const PAUSE_MS: u64 = 500;
/// How long one replica may take to show everything.
const READ_MAX: Duration = Duration::from_secs(120);
/// The first key after all that is read.
const AFTER_ALL: [u8; 4] = [0xff; 4];
/// Who reads: a client of its own, so that it shares nobody's limits.
const READER: &str = "client-3";
/// Which file of a folder says how the cluster has changed.
const CONFIGURATIONS: &str = "configurations";

/// What a replica holds.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Held {
    /// So many rows, and their digest.
    Rows(u64, [u8; 32]),
    /// Something is undecided.
    Undecided,
    /// It keeps nothing of that time any more, or does not answer.
    Unknown(String),
}

/// Asks all replicas for everything as of one time, until all have the same.
///
/// # Errors
/// When they do not.
pub fn compare(shared: &Shared) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().attempt("make a runtime", "this process")?;
    // The reader does not run between two comparisons: its folder has not heard who has another address by now.
    let configurations = shared.cluster.member(CONFIGURATIONS);
    if configurations.exists() {
        let copy = shared.cluster.member(READER).join(CONFIGURATIONS);
        fs::copy(&configurations, &copy).attempt("copy the file", configurations.display())?;
    }
    let target = Arc::new(Target::of_member(&shared.cluster.member(""), READER)?);
    let speaker = target.speaker(Some(READER))?;
    let kept_ns = shared.window_ms() * 1_000_000 / 2;
    let mut time = now_ns() - BACK_MS * 1_000_000;
    let mut last = BTreeMap::new();
    for _ in 0..TRIES_MAX {
        // As of the same time as before, for as long as the replicas keep it.
        if now_ns() - time > kept_ns {
            time = now_ns() - BACK_MS * 1_000_000;
        }
        last = runtime.block_on(ask_all(&target, &speaker, Timestamp::above_all_before(time)));
        let mut held = last.values();
        if let Some(first @ Held::Rows(rows, digest)) = held.next()
            && held.all(|other| other == first)
        {
            shared.count("digests_compared", 1);
            shared.say(&format!("all replicas hold the same {rows} rows: {}", hex::encode(&digest[..8])));
            return Ok(());
        }
        shared.pause(PAUSE_MS)?;
    }
    let tell = |(replica, held): (&ReplicaId, &Held)| match held {
        Held::Rows(rows, digest) => format!("{replica} holds {rows} rows ({})", hex::encode(&digest[..8])),
        Held::Undecided => format!("{replica} has something undecided"),
        Held::Unknown(why) => format!("{replica}: {why}"),
    };
    Err(Failure::failed(format!("replicas do not hold the same as of {time}: {}", last.iter().map(tell).collect::<Vec<_>>().join(", "))))
}

async fn ask_all(target: &Arc<Target>, speaker: &Speaker, timestamp: Timestamp) -> BTreeMap<ReplicaId, Held> {
    let mut held = BTreeMap::new();
    // One after the other: whoever asks for everything at once takes what others need.
    for (replica, address) in &target.replicas {
        let read = tokio::time::timeout(READ_MAX, read_all(target, speaker, *address, timestamp)).await;
        let of_replica = read.unwrap_or_else(|_| Ok(Held::Unknown("it takes too long".to_owned())));
        held.insert(*replica, of_replica.unwrap_or_else(|error| Held::Unknown(error.to_string())));
    }
    held
}

async fn read_all(target: &Target, speaker: &Speaker, address: std::net::SocketAddr, timestamp: Timestamp) -> std::io::Result<Held> {
    let mut stream = target.connect(speaker, address).await?;
    let mut buffer = BytesMut::new();
    let (mut hash, mut rows_read) = (Sha256::new(), 0);
    let high = Key::new(AFTER_ALL.to_vec()).ok_or(std::io::ErrorKind::InvalidInput)?;
    let mut low = Key::from("");
    let mut request = 0;
    while let Some(range) = KeyRange::new(low.clone(), high.clone()) {
        request += 1;
        let (direction, limit) = (Direction::Ascending, SCAN_ROWS_MAX as u32);
        stream.write_all(&frames([Message::Scan { request, timestamp, range, direction, limit }], Apart::Full)).await?;
        stream.flush().await?;
        let (rows, end) = loop {
            match next_message(target, &mut buffer)? {
                Some(Message::ScanReply { request: of, rows, end, .. }) if of == request => break (rows, end),
                Some(Message::Refused { refusal, .. }) => return Ok(Held::Unknown(format!("it refuses: {refusal:?}"))),
                Some(_) => {}
                None if stream.read_buf(&mut buffer).await? == 0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
                None => {}
            }
        };
        for row in rows {
            if row.result.pending != PendingWrite::None {
                return Ok(Held::Undecided);
            }
            // What is deleted may be forgotten by some and not yet by others.
            if let Some(value) = &row.result.value {
                let mut bytes = Vec::new();
                row.key.encode(&mut bytes);
                row.result.version.encode(&mut bytes);
                value.encode(&mut bytes);
                hash.update(&bytes);
                rows_read += 1;
            }
        }
        low = end;
    }
    Ok(Held::Rows(rows_read, hash.finalize().into()))
}

/// The next message of what has come, if one is whole. What a replica tells of configurations is passed over.
fn next_message(target: &Target, buffer: &mut BytesMut) -> std::io::Result<Option<Message>> {
    loop {
        let length = match body_length(buffer, FRAME_BYTES_MAX).map_err(std::io::Error::other)? {
            Some(length) if buffer.len() >= HEADER_BYTES + length => length,
            _ => return Ok(None),
        };
        let frame = buffer.split_to(HEADER_BYTES + length);
        let body = Bytes::copy_from_slice(&frame[HEADER_BYTES..]);
        if control(&body).is_some() {
            continue;
        }
        let mut messages: Vec<Message> = Vec::new();
        decode_messages(body, target.cluster.id(), &mut messages).map_err(std::io::Error::other)?;
        // One request is under way at a time, so a frame answers nothing but that.
        if let Some(message) = messages.into_iter().find(|message| matches!(message, Message::ScanReply { .. } | Message::Refused { .. })) {
            return Ok(Some(message));
        }
    }
}
