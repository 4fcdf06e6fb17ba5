//! A client's connection: frames come in, bytes go out.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use jute::{ConnectRequest, Numbered};
use sentinel::{ConnectionId, Input, Peer, Server};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::timeout;

use crate::limits::{FRAME_TIMEOUT, GOODBYE_TIMEOUT, UNSENT_BYTES_MAX, UNSENT_BYTES_SOFT_MAX};

/// What a connection says to the core.
pub(crate) enum Event {
    /// A client is there. What is for it goes to its [`Outgoing`].
    Opened { connection: ConnectionId, peer: Peer, outgoing: Arc<Outgoing> },
    /// An input; its bytes count as waiting until the core has taken it.
    Input(Input, OwnedSemaphorePermit),
    /// The connection is no more.
    Closed(ConnectionId),
}

/// What is to be sent to a client. The core puts bytes there and never waits.
#[derive(Default)]
pub(crate) struct Outgoing {
    bytes: Mutex<Vec<u8>>,
    /// Bytes put and not yet sent.
    unsent: AtomicUsize,
    is_closing: AtomicBool,
    /// The client does not read: whatever is unsent is dropped.
    is_dead: AtomicBool,
    changed: Notify,
    drained: Notify,
}

impl Outgoing {
    /// Puts bytes behind what is there. A client that has left too much unread is given up.
    pub(crate) fn put(&self, bytes: Vec<u8>) {
        let length = bytes.len();
        if self.unsent.fetch_add(length, Ordering::AcqRel) > UNSENT_BYTES_MAX {
            self.give_up();
            return;
        }
        let mut waiting = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.is_empty() {
            *waiting = bytes
        } else {
            waiting.extend_from_slice(&bytes)
        }
        drop(waiting);
        self.changed.notify_one();
    }

    /// Closes the connection once everything is sent.
    pub(crate) fn close(&self) {
        self.is_closing.store(true, Ordering::Release);
        self.changed.notify_one();
    }

    fn give_up(&self) {
        self.is_dead.store(true, Ordering::Release);
        self.close();
    }

    fn take(&self) -> Vec<u8> {
        std::mem::take(&mut *self.bytes.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Where connections take their inputs to.
#[derive(Clone)]
pub(crate) struct Core {
    pub(crate) events: mpsc::Sender<Event>,
    /// A permit a byte.
    pub(crate) waiting: Arc<Semaphore>,
    pub(crate) frame_bytes_max: usize,
}

/// Serves a connection to its end.
pub(crate) async fn serve(stream: TcpStream, connection: ConnectionId, peer: Peer, core: Core) {
    // Without it answers wait for acknowledgements; a socket that refuses is slower, and works.
    let _ = stream.set_nodelay(true);
    let outgoing = Arc::new(Outgoing::default());
    if core.events.send(Event::Opened { connection, peer, outgoing: outgoing.clone() }).await.is_err() {
        return;
    }
    let (reader, writer) = stream.into_split();
    let sending = write(writer, &outgoing);
    tokio::pin!(sending);
    tokio::select! {
        () = read(reader, connection, &core, &outgoing) => {
            // A client that has sent its last may still read.
            outgoing.close();
            let _ = timeout(GOODBYE_TIMEOUT, sending).await;
        }
        () = &mut sending => {}
    }
    // The core has stopped if it does not take this.
    let _ = core.events.send(Event::Closed(connection)).await;
}

/// Reads frames until there are no more, or one makes no sense.
async fn read(reader: OwnedReadHalf, connection: ConnectionId, core: &Core, outgoing: &Outgoing) {
    let mut reader = BufReader::with_capacity(16 << 10, reader);
    let mut head = [0; 4];
    if !matches!(timeout(FRAME_TIMEOUT, reader.read_exact(&mut head)).await, Ok(Ok(_))) {
        return;
    }
    if Server::is_word(head) {
        give(core, Input::Word { connection, word: head }, 4).await;
        // The answer closes the connection.
        return std::future::pending().await;
    }
    let Ok(body) = read_body(&mut reader, head, core.frame_bytes_max).await else { return };
    let Ok(request) = ConnectRequest::decode(&body) else { return };
    give(core, Input::Connect { connection, request }, body.len()).await;
    loop {
        while outgoing.unsent.load(Ordering::Acquire) > UNSENT_BYTES_SOFT_MAX {
            outgoing.drained.notified().await;
        }
        // Between frames a client may be silent: the core knows when its session ends.
        if reader.read_exact(&mut head).await.is_err() {
            return;
        }
        let Ok(body) = read_body(&mut reader, head, core.frame_bytes_max).await else { return };
        give(core, Input::Request { connection, request: Numbered::decode(&body) }, body.len()).await;
    }
}

/// A frame's body. Memory is taken as bytes arrive, not as the head promises.
async fn read_body(reader: &mut BufReader<OwnedReadHalf>, head: [u8; 4], bytes_max: usize) -> io::Result<Vec<u8>> {
    let length = u32::from_be_bytes(head) as usize;
    if length > bytes_max {
        return Err(io::Error::other("a frame is too long"));
    }
    let mut body = Vec::with_capacity(length.min(4 << 10));
    let read = timeout(FRAME_TIMEOUT, reader.take(length as u64).read_to_end(&mut body)).await;
    match read {
        Ok(Ok(read)) if read == length => Ok(body),
        Ok(Err(error)) => Err(error),
        Ok(Ok(_)) | Err(_) => Err(io::Error::other("a frame is not whole")),
    }
}

/// Gives the core an input, once there is room for it.
async fn give(core: &Core, input: Input, bytes: usize) {
    let permits = u32::try_from(bytes.max(1)).unwrap_or(u32::MAX);
    let Ok(permit) = core.waiting.clone().acquire_many_owned(permits).await else { return };
    // The core has stopped if it does not take this.
    let _ = core.events.send(Event::Input(input, permit)).await;
}

/// Sends what there is, until the connection is to be closed.
async fn write(mut writer: OwnedWriteHalf, outgoing: &Outgoing) {
    loop {
        if outgoing.is_dead.load(Ordering::Acquire) {
            return;
        }
        // Looked at before the bytes: what was put before the end is sent.
        let is_closing = outgoing.is_closing.load(Ordering::Acquire);
        let bytes = outgoing.take();
        if !bytes.is_empty() {
            let sent = tokio::select! {
                sent = writer.write_all(&bytes) => sent,
                () = dead(outgoing) => return,
            };
            if sent.is_err() {
                return;
            }
            outgoing.unsent.fetch_sub(bytes.len(), Ordering::AcqRel);
            outgoing.drained.notify_one();
        } else if is_closing {
            let _ = writer.shutdown().await;
            return;
        } else {
            outgoing.changed.notified().await;
        }
    }
}

/// Ends when the client is given up while bytes to it are stuck, or has had its time to read the last ones.
async fn dead(outgoing: &Outgoing) {
    let mut is_last = false;
    while !outgoing.is_dead.load(Ordering::Acquire) && !is_last {
        is_last = outgoing.is_closing.load(Ordering::Acquire);
        tokio::time::sleep(GOODBYE_TIMEOUT).await;
    }
}
