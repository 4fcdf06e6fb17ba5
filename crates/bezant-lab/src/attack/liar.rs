//! A replica that lies: it runs in the place of one that was stopped, with its key and at its address.

use std::io;
use std::sync::Arc;

use basil::certificate::{SignedVote, VoteStatement};
use basil::message::{PendingWrite, ReadResult};
use basil::{Message, Vote};
use bytes::{Bytes, BytesMut};
use crypto::{BatchSigner, Signatures, leaf};
use runtime::frame::{Greeting, HEADER_BYTES, body_length, decode_messages};
use rustls::ServerConfig;
use rustls::crypto::ring;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use types::limits::FRAME_BYTES_MAX;
use types::{Key, ReplicaId, ShardId, Timestamp, Value};

use bezant::failure::{Attempt as _, Failure};

use super::member::made_up_id;
use super::wire::{Apart, Pace, Target, flood, frames, now_ns};

/// Who is stopped, and lies. It has the greatest name, so that it dials all others and none dials it.
pub const LIAR: ReplicaId = ReplicaId { shard: ShardId(0), index: 5 };
/// How far ahead its clock is, in nanoseconds.
const AHEAD_NS: u64 = 10_000_000_000;

/// Floods its peers with votes and notices on transactions that nobody made, and gives clients wrong answers, each a different lie that
/// an honest replica could have told: wrong values from the future, votes to abort, a clock that is ahead.
pub fn lie(target: &Arc<Target>) -> Result<(), Failure> {
    let name = LIAR.to_string();
    let others: Vec<_> = target.replicas.iter().copied().filter(|(replica, _)| *replica != LIAR).collect();
    flood(target, &target.speaker(Some(&name))?, &others, 1, Pace::Full, |target, number| {
        let notice = |at| Message::CommitNotice { id: made_up_id(at) };
        let query = |at| Message::StatusQuery {
            id: made_up_id(at),
            timestamp: Timestamp::new(now_ns(), target.honest),
            keys: vec![Key::from(format!("user{:08}", at % target.keys).as_str())],
        };
        let first = number * 128;
        frames((first..first + 128).map(notice).chain((first..first + 64).map(query)).chain(vote_flood(target, first)), Apart::Full)
    });
    let (certificate, key) = target.credentials(&name)?;
    let tls = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(vec![certificate], key))
        .attempt("use the key", &name)?;
    let address = target.replicas.iter().find(|(replica, _)| *replica == LIAR).map(|(_, address)| *address);
    let address = address.ok_or_else(|| Failure::wrong(format!("there is no replica {LIAR}")))?;
    let (target, acceptor) = (Arc::clone(target), TlsAcceptor::from(Arc::new(tls)));
    tokio::spawn(async move {
        let listener = match TcpListener::bind(address).await {
            Ok(listener) => listener,
            Err(error) => return eprintln!("{LIAR} still listens at {address}: {error}"),
        };
        while let Ok((stream, _)) = listener.accept().await {
            let (target, acceptor) = (Arc::clone(&target), acceptor.clone());
            tokio::spawn(async move {
                // Whoever leaves it comes again.
                let _ = answer(&target, &acceptor, stream).await;
            });
        }
    });
    Ok(())
}

/// Votes that it never was asked for, on transactions that nobody made.
fn vote_flood(target: &Target, first: u64) -> Vec<Message> {
    let statements: Vec<VoteStatement> = (first..first + 64).map(|at| VoteStatement { id: made_up_id(at), vote: Vote::Abort }).collect();
    signed(target, statements)
}

/// These votes, under one signature.
fn signed(target: &Target, statements: Vec<VoteStatement>) -> Vec<Message> {
    let leaves: Vec<_> = statements.iter().map(|statement| leaf(target.cluster.id(), LIAR, statement)).collect();
    let signer = BatchSigner::new(target.liar.clone(), target.cluster.id(), LIAR, Signatures::Ed25519);
    let votes = statements.into_iter().zip(signer.sign(&leaves));
    let message = |(statement, signature)| Message::Voted { vote: SignedVote { replica: LIAR, statement, signature }, conflict: None };
    votes.map(message).collect()
}

/// Serves one connection, as untruthfully as it can.
async fn answer(target: &Target, acceptor: &TlsAcceptor, stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut stream = acceptor.accept(stream).await?;
    let mut buffer = BytesMut::new();
    let mut is_greeted = false;
    loop {
        while let Some(body) = next_body(&mut buffer)? {
            let answers = if is_greeted {
                let mut messages = Vec::new();
                decode_messages(body, target.cluster.id(), &mut messages).map_err(io::Error::other)?;
                frames(messages.into_iter().filter_map(|message| lie_about(target, message)), Apart::Full)
            } else {
                is_greeted = true;
                Greeting::Welcome(target.configuration).to_frame()
            };
            stream.write_all(&answers).await?;
            target.note_write(answers.len());
        }
        stream.flush().await?;
        if stream.read_buf(&mut buffer).await? == 0 {
            return Ok(());
        }
    }
}

/// Takes a whole frame's body out of what has come.
fn next_body(buffer: &mut BytesMut) -> io::Result<Option<Bytes>> {
    match body_length(buffer, FRAME_BYTES_MAX).map_err(io::Error::other)? {
        Some(length) if buffer.len() >= HEADER_BYTES + length => {
            let frame = buffer.split_to(HEADER_BYTES + length);
            Ok(Some(Bytes::copy_from_slice(&frame[HEADER_BYTES..])))
        }
        _ => Ok(None),
    }
}

/// The wrong answer to a request.
fn lie_about(target: &Target, message: Message) -> Option<Message> {
    let clock = now_ns() + AHEAD_NS;
    match message {
        Message::Read { request, timestamp, keys } => {
            let version = Timestamp::new(timestamp.time.saturating_sub(1), target.client);
            let result = ReadResult { version, value: Some(Value::from("a lie")), pending: PendingWrite::None };
            Some(Message::ReadReply { request, clock, results: vec![result; keys.len()], prepared: Vec::new(), is_promised: true })
        }
        Message::ClockQuery { asked_at, .. } => Some(Message::ClockReply { asked_at, clock }),
        Message::Prepare { transaction } | Message::Recover { transaction, .. } | Message::Log { transaction, .. } => {
            signed(target, vec![VoteStatement { id: transaction.id(), vote: Vote::Abort }]).pop()
        }
        _ => None,
    }
}
