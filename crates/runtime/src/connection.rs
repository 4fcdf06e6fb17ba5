//! The reader and the writer of one open connection.
//!
//! The reader splits large reads into frames, decodes them, checks signatures (on its own worker thread, in parallel with the
//! node loop), and passes the messages of one read to the loop in one push. The writer writes what is queued, all of it together unless it is much.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use crypto::{Compress, Rejection, SignatureClaims, Verified, Verifier};
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_rustls::TlsStream;
use types::Party;
use types::limits::FRAME_MESSAGES_MAX;

use crate::changes::{Changes, Control, read_control};
use crate::frame::{self, Frames, HEADER_BYTES, MESSAGE_OVERHEAD_BYTES};
use crate::halves::{ReadHalf, WriteHalf, split};
use crate::limits::{CHECKED_ROOTS_MAX, Limits};
use crate::link::{CloseReason, Link, Next};
use crate::log_limit::{LeftOut, LogLimit};
use crate::mailbox::{Inbound, Mailbox};
use crate::member::{Member, Share};
use crate::metrics::Shell;
use crate::priority::LowPriorities;
use crate::quota::Permit;
use crate::read_buffer::ReadBuffer;

/// How many messages are checked together before they are passed on.
const CHECK_MESSAGES_MAX: usize = 512;
/// The fewest bytes a message takes on the wire, roughly.
const MESSAGE_BYTES_MIN: usize = 32;
/// How much a peer must take within the time of a write. One that takes less does not read.
const WRITE_BYTES: usize = 1 << 20;
/// So much is encrypted and written at a time, before others of the same thread have their turn.
const CHUNK_BYTES: usize = 128 << 10;
/// This part of the time that a graceful stop has is for clients to read what was written.
const READING_PART: u64 = 3;

/// A message on the wire: it has one encoding and lists its signature claims.
pub trait Wire: Compress + SignatureClaims + Send + 'static {}

impl<T: Compress + SignatureClaims + Send + 'static> Wire for T {}

/// The connection: TLS over a buffer, so that one system call reads many TLS records.
pub(crate) type Stream = TlsStream<BufReader<TcpStream>>;

/// What all connections of a node share.
#[derive(Debug)]
pub(crate) struct Intake<C, W> {
    pub mailbox: Arc<Mailbox<Inbound<C, W>>>,
    pub verifier: Arc<Verifier>,
    pub limits: Limits,
    /// Lines in the log about all others.
    pub log: LogLimit,
    pub shell: Arc<Shell>,
    /// Where members are served that take too much.
    pub low_priority: Arc<LowPriorities>,
}

impl<C, W> Intake<C, W> {
    /// Whether one more line may go to the log about somebody whose limit is `own`: then how many lines about it or anybody were left out
    /// since the last one.
    pub fn may_log(&self, own: &LogLimit) -> Option<LeftOut> {
        let now = Instant::now();
        let own_left_out = own.admit(now);
        let left_out = own_left_out.and_then(|own| Some(own.and(self.log.admit(now)?)));
        if left_out.is_none() {
            own.leave_out(own_left_out.unwrap_or_default());
            self.shell.log_lines_left_out.inc();
        }
        left_out
    }

    /// Has the node loop look again at what it holds back of `link`, if its peer has read enough.
    fn release(&self, link: &Link) {
        if link.release() {
            self.mailbox.wake();
        }
    }
}

/// Runs an open connection until it ends, and says why it did. `share` is what its member may take of this node.
pub(crate) async fn run<C, W>(
    stream: Stream,
    link: Arc<Link>,
    share: Arc<Share>,
    intake: Arc<Intake<C, W>>,
    changes: Arc<Changes>,
) -> CloseReason
where
    C: Send + 'static,
    W: Wire,
{
    let (read, write) = split(stream);
    let (usage, low_priority) = (Arc::clone(&share.usage), Arc::clone(&intake.low_priority));
    let member = Member::from(link.party());
    let writing = tokio::spawn({
        let (link, intake, share) = (Arc::clone(&link), Arc::clone(&intake), Arc::clone(&share));
        let (usage, low_priority) = (Arc::clone(&usage), Arc::clone(&low_priority));
        let writing = async move {
            let close_reason = tokio::select! {
                close_reason = write_all(write, &link, &intake, &share) => close_reason,
                close_reason = link.closed() => close_reason,
            };
            link.close(close_reason);
        };
        async move { low_priority.of(member).run(&usage, writing).await }
    });
    let (own_link, own_intake) = (Arc::clone(&link), Arc::clone(&intake));
    let mut reader = Reader { link: own_link, share, intake: own_intake, changes, held: None, waited: Duration::ZERO };
    let reading = {
        let link = Arc::clone(&link);
        async move {
            tokio::select! {
                close_reason = reader.run(read) => close_reason,
                close_reason = link.closed() => close_reason,
            }
        }
    };
    link.close(low_priority.of(member).run(&usage, reading).await.unwrap_or(CloseReason::Stopping));
    // The writer ends as soon as the link is closed, or by a panic.
    let _ = writing.await;
    intake.release(&link);
    link.closed().await
}

struct Reader<C, W> {
    link: Arc<Link>,
    share: Arc<Share>,
    intake: Arc<Intake<C, W>>,
    changes: Arc<Changes>,
    /// The permit for the frame that is being received.
    held: Option<Permit>,
    /// For how long the frame that comes next has been waited for since its first bytes. What this node takes until it reads on does not count.
    waited: Duration,
}

impl<C: Send + 'static, W: Wire> Reader<C, W> {
    async fn run(&mut self, mut stream: ReadHalf<Stream>) -> CloseReason {
        let mut buffer = ReadBuffer::default();
        loop {
            match self.take_frames(&mut buffer).await {
                Ok(()) => {}
                Err(CloseReason::Stopping) => return discard_all(stream).await,
                Err(close_reason) => return close_reason,
            }
            if self.is_slow(&buffer) {
                return CloseReason::SlowFrame;
            }
            self.link.drained().await;
            let begun = (!buffer.is_empty()).then(Instant::now);
            let filled = buffer.fill(&mut stream).await;
            self.waited += begun.map(|begun| begun.elapsed()).unwrap_or_default();
            match filled {
                Ok(0) if buffer.is_empty() => return CloseReason::Ended,
                Ok(0) => return CloseReason::Cut,
                Ok(_) => self.link.heard(),
                // A peer that closes without TLS's close_notify between two frames has cut nothing off.
                Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof && buffer.is_empty() => return CloseReason::Ended,
                Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => return CloseReason::Cut,
                Err(error) => return CloseReason::Broken(error.kind()),
            }
        }
    }

    /// Whether the frame that comes next comes so slowly that it is only to hold a connection, and the room that it was given if it is large.
    fn is_slow(&self, buffer: &ReadBuffer) -> bool {
        let allowed_ms = self.intake.limits.write_timeout_ms.saturating_mul((buffer.bytes() / WRITE_BYTES) as u64 + 1);
        self.waited > Duration::from_millis(allowed_ms)
    }

    /// Takes all complete frames out of `buffer` and hands their messages on.
    async fn take_frames(&mut self, buffer: &mut ReadBuffer) -> Result<(), CloseReason> {
        loop {
            let (mut messages, mut permit) = (Vec::new(), None);
            while messages.len() < CHECK_MESSAGES_MAX {
                let Some(head) = buffer.head().map_err(CloseReason::Frame)? else { break };
                // What it claims to decode to is held only for what has come.
                if buffer.is_coming(head) {
                    break;
                }
                // Do not wait while holding messages: two connections of one member could wait for each other.
                if !self.hold_permit(head.needed, messages.is_empty() && permit.is_none()).await {
                    break;
                }
                let Some(body) = buffer.take_body(head) else { break };
                self.waited = Duration::ZERO;
                self.intake.shell.frames_received.inc();
                self.intake.shell.bytes_received.inc_by((HEADER_BYTES + head.length) as u64);
                if let Some(control) = frame::control(&body) {
                    self.hear(control)?;
                    self.held = None;
                    // Others of this thread come first.
                    tokio::task::yield_now().await;
                    continue;
                }
                let cluster = self.intake.verifier.cluster().id();
                let decoded = frame::decode_messages(body, cluster, &mut messages).map_err(CloseReason::Frame)?;
                self.intake.shell.messages_received.inc_by(decoded.messages as u64);
                if let Some(held) = &mut self.held {
                    held.resize(head.needed + decoded.bytes);
                }
                permit = match (permit, self.held.take()) {
                    (Some(permit), Some(more)) => Some(Permit::join(permit, more)),
                    (permit, more) => permit.or(more),
                };
            }
            if messages.is_empty() {
                // At most heartbeats were received; their permit is returned here. Continue if the next frame waited for it.
                if permit.is_some() && self.held.is_none() && buffer.head().is_ok_and(|head| head.is_some()) {
                    continue;
                }
                return Ok(());
            }
            self.hand_on(messages, permit).await?;
        }
    }

    /// The peer tells something of configurations.
    fn hear(&mut self, control: Bytes) -> Result<(), CloseReason> {
        // Replicas hand each other over what they know, and are few.
        let is_clients = matches!(self.link.party(), Party::Client(..)) && Control::is_configuration(&control);
        if is_clients && self.share.conduct().has_handed_enough(Instant::now()) {
            self.intake.shell.count_rejected("handed_in_vain");
            return Ok(());
        }
        let control = read_control(control, self.changes.id()).map_err(CloseReason::Frame)?;
        let before = self.changes.view().version;
        let heard = self.changes.hear(&self.link, control);
        if is_clients && self.changes.view().version == before {
            self.share.conduct().hand_in_vain(Instant::now());
        }
        heard
    }

    /// Makes sure that the frame being received has a permit; `false` when none is free and `wait` is not set.
    async fn hold_permit(&mut self, needed: usize, wait: bool) -> bool {
        if self.held.is_some() {
            return true;
        }
        let count = (needed / MESSAGE_BYTES_MIN).min(FRAME_MESSAGES_MAX);
        let bytes = (needed + count * MESSAGE_OVERHEAD_BYTES).min(self.intake.limits.incoming_bytes_max);
        self.held = self.share.incoming.try_take(bytes);
        if self.held.is_none() && wait {
            self.link.pause_silence();
            self.held = Some(self.share.incoming.take(bytes).await);
            self.link.heard();
        }
        self.held.is_some()
    }

    /// Counts a message that is dropped; too many, or one with a bad signature, end the connection.
    fn reject(&mut self, rejection: &Rejection) -> Result<(), CloseReason> {
        self.intake.shell.count_rejected(rejection.label());
        if let Some(left_out) = self.intake.may_log(&self.share.log) {
            tracing::warn!(party = %self.link.party(), %rejection, left_out = left_out.noted(), "a message was dropped");
        }
        // Every correct member checks what it passes on, and a bad signature costs more to find than to make.
        let is_blameless = matches!(rejection, Rejection::EarlierKey { signer }
            if self.changes.is_blameless(*signer) || self.changes.is_behind(&self.link));
        // By keys that this node has not heard of yet, it may be good. Its peer hands those over before it uses them, but for a few.
        let is_signed_badly = matches!(rejection, Rejection::BadSignature { .. }) && !self.changes.is_ahead(&self.link, &self.share);
        // Of its member, as it may begin again on another connection.
        let are_too_many = !is_blameless && self.share.conduct().reject(Instant::now()) >= self.intake.limits.rejections_max;
        let is_bad = is_signed_badly || are_too_many;
        if is_bad { Err(CloseReason::Rejections) } else { Ok(()) }
    }

    async fn hand_on(&mut self, messages: Vec<W>, permit: Option<Permit>) -> Result<(), CloseReason> {
        let total = messages.len();
        let mut verified: Vec<Verified<W>> = Vec::with_capacity(total);
        let mut messages = messages.into_iter();
        while messages.len() > 0 {
            let checking = self.share.checking.lock().await;
            let judged = self.intake.verifier.verify_next(&mut messages, CHECKED_ROOTS_MAX);
            drop(checking);
            for result in judged {
                match result {
                    Ok(message) => verified.push(message),
                    Err(rejection) => self.reject(&rejection)?,
                }
            }
            if messages.len() > 0 {
                tokio::task::yield_now().await;
            }
        }
        if verified.is_empty() {
            return Ok(());
        }
        let link = Some(Arc::clone(&self.link));
        let inbound = Inbound::Messages { from: self.link.party(), at: Instant::now(), messages: verified, link, permit };
        self.intake.mailbox.push(inbound).map_err(|_| CloseReason::Stopping)
    }
}

/// Reads on, for a node that takes in nothing more, until the peer ends the connection.
async fn discard_all(mut stream: ReadHalf<Stream>) -> CloseReason {
    let mut bytes = [0; 4_096];
    while let Ok(1..) = stream.read(&mut bytes).await {
        tokio::task::yield_now().await;
    }
    CloseReason::Stopping
}

/// How long a peer may still take to read: so long for each megabyte of all that waits, however that is cut.
struct Allowance {
    per_megabyte: Duration,
    left: Duration,
}

impl Allowance {
    fn new(per_megabyte: Duration) -> Self {
        Self { per_megabyte, left: per_megabyte }
    }

    /// Has so many bytes written, far less than a megabyte.
    async fn spend(&mut self, bytes: usize, write: impl Future<Output = std::io::Result<()>>) -> Result<(), CloseReason> {
        let started = Instant::now();
        match timeout(self.time(), write).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return Err(CloseReason::Broken(error.kind())),
            Err(_) => return Err(CloseReason::NotReading),
        }
        self.note(bytes, started.elapsed());
        Ok(())
    }

    /// How long the next part may take. However little is left, that is what a whole part may.
    fn time(&self) -> Duration {
        self.left.max(self.earned(CHUNK_BYTES))
    }

    fn earned(&self, bytes: usize) -> Duration {
        self.per_megabyte.mul_f64(bytes as f64 / WRITE_BYTES as f64)
    }

    /// What the bytes took is taken off, and what they may take is added.
    fn note(&mut self, bytes: usize, took: Duration) {
        self.left = (self.left.saturating_sub(took) + self.earned(bytes)).min(self.per_megabyte);
    }
}

async fn write_all<C, W>(mut stream: WriteHalf<Stream>, link: &Link, intake: &Intake<C, W>, share: &Share) -> CloseReason {
    let (limits, shell) = (&intake.limits, &intake.shell);
    let mut beat = interval(Duration::from_millis(limits.heartbeat_ms));
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    beat.reset();
    let write_timeout = Duration::from_millis(limits.write_timeout_ms);
    let mut allowance = Allowance::new(write_timeout);
    let mut frames = Frames::default();
    let mut spoken = false;
    loop {
        let next = tokio::select! {
            biased;
            next = std::future::poll_fn(|context| link.poll_next(context, &mut frames)) => next,
            _ = beat.tick() => {
                if link.silent_for_ms() > limits.silence_timeout_ms {
                    return CloseReason::Silent;
                }
                if !spoken {
                    link.send_heartbeat();
                }
                spoken = false;
                continue;
            }
        };
        let is_last = match next {
            Next::Write { is_last } => is_last,
            Next::Finish(reason) => {
                // Whether the peer hears the goodbye does not matter: every frame before it is complete.
                let _ = timeout(write_timeout, stream.shutdown()).await;
                // A client may still be asking. Whoever closes before having read that has the system drop what the client has not read. So it
                // is the client that ends the connection, and the reader that hears it.
                if matches!(link.party(), Party::Client(..)) {
                    let _ = timeout(Duration::from_millis(limits.flush_timeout_ms / READING_PART), link.closed()).await;
                }
                return reason;
            }
        };
        spoken |= frames.messages() > 0;
        let mut unpaced = 0;
        for (at, chunk) in frames.bytes().chunks(CHUNK_BYTES).enumerate() {
            if at > 0 {
                link.wrote(CHUNK_BYTES);
                intake.release(link);
                // Others of this thread do not wait for all of it.
                tokio::task::yield_now().await;
                if unpaced >= WRITE_BYTES {
                    share.pace(std::mem::take(&mut unpaced)).await;
                }
            }
            unpaced += chunk.len();
            if let Err(reason) = allowance.spend(chunk.len(), stream.write_all(chunk)).await {
                return reason;
            }
        }
        if is_last {
            if let Err(reason) = allowance.spend(0, stream.flush()).await {
                return reason;
            }
            allowance = Allowance::new(write_timeout);
        }
        link.wrote(frames.bytes().len());
        intake.release(link);
        shell.frames_sent.inc_by(frames.frames());
        shell.messages_sent.inc_by(frames.messages());
        shell.bytes_sent.inc_by(frames.bytes().len() as u64);
        // Last, so that nothing that is flushed waits for this.
        share.pace(unpaced).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_has_so_long_for_each_megabyte_however_it_is_cut() {
        let seconds = Duration::from_secs_f64;
        let lasts = |bytes, took| {
            let mut allowance = Allowance::new(seconds(10.0));
            let mut parts = 0;
            while took <= allowance.time() && parts < 1_000 {
                allowance.note(bytes, took);
                parts += 1;
            }
            parts
        };
        let all = [(CHUNK_BYTES, 1.25), (CHUNK_BYTES / 2, 0.6), (WRITE_BYTES, 9.9)];
        assert_eq!(all.map(|(bytes, took)| lasts(bytes, seconds(took))), [1_000; 3]);
        assert_eq!(lasts(CHUNK_BYTES, seconds(2.5)), 7, "half as fast as it has to be, it is given up after 17.5 s");
    }
}
