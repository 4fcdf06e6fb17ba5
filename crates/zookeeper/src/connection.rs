//! A client's connection: frames come in, bytes go out.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use jute::{ConnectRequest, Numbered};
use runtime::Place;
use sentinel::{ConnectionId, Fields, Input, Peer, Server};
use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use crate::drill::NOT_ALLOWED;
use crate::limits::{
    ANSWER_TIMEOUT, BATCH_MAX, BATCHES_MAX, CONNECT_BYTES_MAX, DRILL_BYTES_MAX, ELEMENT_BYTES, FRAME_TIMEOUT, GOODBYE_TIMEOUT,
    HANDSHAKE_TIMEOUT, LONG_BYTES, LONG_FRAME_TIMEOUT, READ_BYTES, UNSENT_BYTES_MAX, UNSENT_BYTES_SOFT_MAX, WAITING_BYTES_MAX,
};

/// What an order for a drill begins with.
pub(crate) const DRILL: [u8; 4] = *b"dril";

/// What a connection says to the core.
pub(crate) enum Event {
    /// A client is there. What is for it goes to its [`Outgoing`].
    Opened { connection: ConnectionId, peer: Peer, outgoing: Arc<Outgoing> },
    /// What a client asks.
    Inputs(Batch),
    /// An operator's command. Whoever asks may not wait for the answer any more.
    Command { name: String, answer: SyncSender<Option<Fields>> },
    /// What is to be damaged, for a drill, where drills are allowed.
    Drill { connection: ConnectionId, order: String },
    /// The connection is no more.
    Closed(ConnectionId),
}

/// Inputs of one connection, in the order in which they came.
pub(crate) struct Batch {
    pub(crate) connection: ConnectionId,
    pub(crate) inputs: Vec<Input>,
    pub(crate) arrived: Instant,
    /// As long as it waits, its bytes count, and it is one of so many batches of its connection.
    pub(crate) counted: Vec<OwnedSemaphorePermit>,
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
        if self.is_dead.load(Ordering::Acquire) {
            return;
        }
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

    /// Closes the connection without sending the rest, which is dropped at once.
    pub(crate) fn give_up(&self) {
        self.is_dead.store(true, Ordering::Release);
        let dropped = self.take();
        self.unsent.fetch_sub(dropped.len(), Ordering::AcqRel);
        self.close();
    }

    /// Whether the client is sent nothing more, as it does not read.
    pub(crate) fn is_given_up(&self) -> bool {
        self.is_dead.load(Ordering::Acquire)
    }

    /// How many bytes wait for the client to read; none that it will not be sent any more.
    pub(crate) fn unsent(&self) -> usize {
        if self.is_given_up() { 0 } else { self.unsent.load(Ordering::Acquire) }
    }

    fn take(&self) -> Vec<u8> {
        std::mem::take(&mut *self.bytes.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// What connections count.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    /// Bytes of requests.
    pub(crate) received_bytes: AtomicU64,
    /// Connections refused, because there were too many.
    pub(crate) rejected: AtomicU64,
    /// TLS handshakes that failed.
    pub(crate) handshakes_failed: AtomicU64,
    /// TLS handshakes under way.
    pub(crate) handshakes: AtomicU64,
}

/// Where connections take their inputs to.
#[derive(Clone)]
pub(crate) struct Core {
    pub(crate) events: mpsc::Sender<Event>,
    /// A permit a byte of what short requests take, and of what long ones do: who asks for little does not wait behind those who ask for much.
    pub(crate) waiting: [Arc<Semaphore>; 2],
    /// A permit a byte of long requests, which wait for it before they are read: of this connection's network, and of all.
    pub(crate) long: [Arc<Semaphore>; 2],
    pub(crate) frame_bytes_max: usize,
    pub(crate) allows_drills: bool,
    pub(crate) counters: Arc<Counters>,
}

/// Serves a connection to its end, over TLS where there is an `acceptor`.
pub(crate) async fn accept(
    stream: TcpStream,
    acceptor: Option<TlsAcceptor>,
    connection: ConnectionId,
    mut peer: Peer,
    mut place: Place,
    core: Core,
) {
    // Without it answers wait for acknowledgements; a socket that refuses is slower, and works.
    let _ = stream.set_nodelay(true);
    let Some(acceptor) = acceptor else {
        let (reader, writer) = stream.into_split();
        return serve(reader, writer, connection, peer, place, core).await;
    };
    core.counters.handshakes.fetch_add(1, Ordering::Relaxed);
    let shaken = tokio::select! {
        shaken = timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)) => Some(shaken),
        () = place.taken() => None,
    };
    core.counters.handshakes.fetch_sub(1, Ordering::Relaxed);
    let Some(shaken) = shaken else { return made_way(&core) };
    match shaken {
        Ok(Ok(stream)) => {
            let shown = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
            peer.certificate = shown.and_then(|certificate| crate::tls::subject(certificate));
            let (reader, writer) = tokio::io::split(stream);
            serve(reader, writer, connection, peer, place, core).await;
        }
        failed => {
            core.counters.handshakes_failed.fetch_add(1, Ordering::Relaxed);
            let why = failed
                .map_or_else(|_| "it took too long".to_owned(), |failed| failed.err().map_or_else(String::new, |error| error.to_string()));
            tracing::debug!(address = %peer.address, why, "a TLS handshake failed");
        }
    }
}

/// Too many clients have not said yet who they are, and this one is closed.
fn made_way(core: &Core) {
    core.counters.rejected.fetch_add(1, Ordering::Relaxed);
}

async fn serve(
    reader: impl AsyncRead + Unpin,
    writer: impl AsyncWrite + Unpin,
    connection: ConnectionId,
    peer: Peer,
    place: Place,
    core: Core,
) {
    let outgoing = Arc::new(Outgoing::default());
    if core.events.send(Event::Opened { connection, peer, outgoing: outgoing.clone() }).await.is_err() {
        return;
    }
    let sending = write(writer, &outgoing);
    tokio::pin!(sending);
    tokio::select! {
        () = read(reader, connection, place, &core, &outgoing) => {
            // A client that has sent its last may still read.
            outgoing.close();
            let _ = timeout(GOODBYE_TIMEOUT, sending).await;
        }
        () = &mut sending => {}
    }
    // The core has stopped if it does not take this.
    let _ = core.events.send(Event::Closed(connection)).await;
}

/// What a connection begins with.
enum First {
    Word([u8; 4]),
    Drill,
    Connect(ConnectRequest, usize),
}

/// Nothing where it makes no sense, or does not come.
async fn first(reader: &mut BufReader<impl AsyncRead + Unpin>) -> Option<First> {
    let mut head = [0; 4];
    timeout(FRAME_TIMEOUT, reader.read_exact(&mut head)).await.ok()?.ok()?;
    if Server::is_word(head) {
        return Some(First::Word(head));
    }
    if head == DRILL {
        return Some(First::Drill);
    }
    let body = read_body(reader, head, CONNECT_BYTES_MAX).await.ok()?;
    Some(First::Connect(ConnectRequest::decode(&body).ok()?, body.len()))
}

/// Reads frames until there are no more, or one makes no sense.
async fn read(reader: impl AsyncRead + Unpin, connection: ConnectionId, mut place: Place, core: &Core, outgoing: &Outgoing) {
    let mut reader = BufReader::with_capacity(READ_BYTES, reader);
    let batches = Arc::new(Semaphore::new(BATCHES_MAX));
    let give = async |inputs, bytes, counted| give(core, connection, &batches, inputs, bytes, counted).await;
    let first = tokio::select! {
        first = first(&mut reader) => first,
        () = place.taken() => return made_way(core),
    };
    drop(place);
    match first {
        None => return,
        Some(First::Word(word)) => {
            give(vec![Input::Word { connection, word }], 4, Vec::new()).await;
            return answered().await;
        }
        // What it was to be is not read: anybody can say anything here.
        Some(First::Drill) if !core.allows_drills => return outgoing.put(NOT_ALLOWED.as_bytes().to_vec()),
        Some(First::Drill) => return drill(&mut reader, connection, core).await,
        Some(First::Connect(request, bytes)) => give(vec![Input::Connect { connection, request }], bytes, Vec::new()).await,
    }
    let mut head = [0; 4];
    loop {
        while outgoing.unsent.load(Ordering::Acquire) > UNSENT_BYTES_SOFT_MAX {
            outgoing.drained.notified().await;
        }
        // Between frames a client may be silent: the core knows when its session ends.
        if reader.read_exact(&mut head).await.is_err() {
            return;
        }
        let mut counted = Vec::new();
        let Ok(body) = read_request(&mut reader, head, core, &mut counted).await else { return };
        let mut bytes = body.len();
        let mut inputs = vec![Input::Request { connection, request: Numbered::decode(&body) }];
        drop(body);
        // What has arrived with it goes along: a client with many requests under way costs the core one look, and not one for each.
        while inputs.len() < BATCH_MAX
            && let Some(frame) = whole_frame(reader.buffer())
            && frame.len() <= core.frame_bytes_max
        {
            inputs.push(Input::Request { connection, request: Numbered::decode(frame) });
            let length = frame.len();
            reader.consume(4 + length);
            bytes += length;
        }
        give(inputs, bytes, counted).await;
    }
}

/// The body of the frame that the bytes begin with, if all of it is there.
fn whole_frame(bytes: &[u8]) -> Option<&[u8]> {
    let (head, rest) = bytes.split_first_chunk::<4>()?;
    rest.get(..u32::from_be_bytes(*head) as usize)
}

/// Waits for the one answer of a connection, which closes it. A server that goes on from its disk may have lost the question.
async fn answered() {
    tokio::time::sleep(ANSWER_TIMEOUT).await;
}

/// Takes one order for a drill.
async fn drill(reader: &mut BufReader<impl AsyncRead + Unpin>, connection: ConnectionId, core: &Core) {
    let mut head = [0; 4];
    if !matches!(timeout(FRAME_TIMEOUT, reader.read_exact(&mut head)).await, Ok(Ok(_))) {
        return;
    }
    let Ok(body) = read_body(reader, head, DRILL_BYTES_MAX).await else { return };
    let Ok(order) = String::from_utf8(body) else { return };
    if core.events.send(Event::Drill { connection, order }).await.is_ok() {
        answered().await;
    }
}

/// A request's body. A long one stays in its socket until there is room for it, which is `counted` then.
async fn read_request(
    reader: &mut BufReader<impl AsyncRead + Unpin>,
    head: [u8; 4],
    core: &Core,
    counted: &mut Vec<OwnedSemaphorePermit>,
) -> io::Result<Vec<u8>> {
    let length = u32::from_be_bytes(head) as usize;
    if length <= LONG_BYTES || length > core.frame_bytes_max {
        return read_body(reader, head, core.frame_bytes_max).await;
    }
    for room in &core.long {
        counted.push(room.clone().acquire_many_owned(permits_of(length)).await.map_err(io::Error::other)?);
    }
    let read = timeout(LONG_FRAME_TIMEOUT, read_body(reader, head, core.frame_bytes_max)).await;
    read.unwrap_or_else(|_| Err(io::Error::other("a long frame takes too long")))
}

/// A frame's body. Memory is taken as bytes arrive, not as the head promises.
async fn read_body(reader: &mut BufReader<impl AsyncRead + Unpin>, head: [u8; 4], bytes_max: usize) -> io::Result<Vec<u8>> {
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

/// Gives the core inputs, once there is room for them, of this connection and of all. `counted` is the room that was taken before they were read.
async fn give(
    core: &Core,
    connection: ConnectionId,
    batches: &Arc<Semaphore>,
    inputs: Vec<Input>,
    bytes: usize,
    mut counted: Vec<OwnedSemaphorePermit>,
) {
    let elements = |input: &Input| if let Input::Request { request: Ok(numbered), .. } = input { numbered.request.elements() } else { 0 };
    let elements: usize = inputs.iter().map(elements).sum();
    // There is never room for more than this: what takes more has all of it.
    let permits = (bytes.max(1) + elements * ELEMENT_BYTES).min(WAITING_BYTES_MAX);
    let Ok(batch) = batches.clone().acquire_owned().await else { return };
    let room = core.waiting[usize::from(!counted.is_empty())].clone();
    let Ok(permit) = room.acquire_many_owned(permits_of(permits)).await else { return };
    counted.extend([batch, permit]);
    core.counters.received_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    let batch = Batch { connection, inputs, arrived: Instant::now(), counted };
    // The core has stopped if it does not take this.
    let _ = core.events.send(Event::Inputs(batch)).await;
}

fn permits_of(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

/// Sends what there is, until the connection is to be closed.
async fn write(mut writer: impl AsyncWrite + Unpin, outgoing: &Outgoing) {
    loop {
        if outgoing.is_dead.load(Ordering::Acquire) {
            return;
        }
        // Looked at before the bytes: what was put before the end is sent.
        let is_closing = outgoing.is_closing.load(Ordering::Acquire);
        let bytes = outgoing.take();
        if !bytes.is_empty() {
            let sent = tokio::select! {
                sent = send(&mut writer, &bytes) => sent,
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

/// Sends bytes, and what TLS has buffered of them.
async fn send(writer: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> io::Result<()> {
    writer.write_all(bytes).await?;
    writer.flush().await
}

/// Ends when the client is given up while bytes to it are stuck, or has had its time to read the last ones.
async fn dead(outgoing: &Outgoing) {
    let mut is_last = false;
    while !outgoing.is_dead.load(Ordering::Acquire) && !is_last {
        is_last = outgoing.is_closing.load(Ordering::Acquire);
        tokio::time::sleep(GOODBYE_TIMEOUT).await;
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::pin::Pin;
    use std::task::Poll;

    use jute::{Request, SetWatches};
    use runtime::HalfOpen;

    use super::*;

    fn core(events: mpsc::Sender<Event>) -> Core {
        Core {
            events,
            waiting: [(); 2].map(|()| Arc::new(Semaphore::new(WAITING_BYTES_MAX))),
            long: [(); 2].map(|()| Arc::new(Semaphore::new(0))),
            frame_bytes_max: 1 << 20,
            allows_drills: false,
            counters: Arc::default(),
        }
    }

    fn place() -> Place {
        Arc::new(HalfOpen::unseen(1)).enter(Ipv4Addr::LOCALHOST.into())
    }

    fn frame(encode: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        let mut body = Vec::new();
        encode(&mut body);
        let length = u32::try_from(body.len()).expect("it is short");
        [&length.to_be_bytes()[..], &body].concat()
    }

    fn connect() -> Vec<u8> {
        let request = ConnectRequest { timeout_ms: 10_000, password: vec![0; 16], ..ConnectRequest::default() };
        frame(|out| request.encode(out))
    }

    #[tokio::test]
    async fn who_has_not_said_who_it_is_makes_way_and_says_little() {
        let (events, mut taken) = mpsc::channel(1);
        let (core, outgoing) = (core(events), Outgoing::default());
        let all = Arc::new(HalfOpen::unseen(1));
        let enter = || all.enter(Ipv4Addr::LOCALHOST.into());
        let (silent, _other) = tokio::io::duplex(1);
        let reading = read(silent, ConnectionId(1), enter(), &core, &outgoing);
        let _newer = enter();
        reading.await;
        assert_eq!(core.counters.rejected.load(Ordering::Relaxed), 1);
        // The longest frame that is read has all that a client says.
        for (more, is_read) in [(0, true), (CONNECT_BYTES_MAX, false)] {
            let length = u32::try_from(connect().len() - 4 + more).expect("it is short");
            let sent = [&length.to_be_bytes()[..], &connect()[4..], &vec![0; more]].concat();
            read(&sent[..], ConnectionId(1), enter(), &core, &outgoing).await;
            assert_eq!(taken.try_recv().is_ok(), is_read, "with {more} bytes more");
        }
    }

    #[tokio::test]
    async fn orders_for_drills_are_not_read_where_there_are_none() {
        let (events, mut taken) = mpsc::channel(1);
        let (core, outgoing) = (core(events), Outgoing::default());
        read(&DRILL[..], ConnectionId(1), place(), &core, &outgoing).await;
        assert_eq!(outgoing.take(), NOT_ALLOWED.as_bytes());
        assert!(taken.try_recv().is_err(), "the core hears nothing of it");
    }

    /// Whatever it waits for then, nothing comes of waiting longer.
    async fn go_as_far_as_it_can(mut reading: Pin<&mut impl Future<Output = ()>>) {
        for _ in 0..1_000 {
            assert!(std::future::poll_fn(|context| Poll::Ready(reading.as_mut().poll(context).is_pending())).await);
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn a_long_request_is_not_read_before_there_is_room_for_it_and_counts_as_what_it_takes() {
        let watches = SetWatches { data: vec![String::new(); LONG_BYTES / 4], ..SetWatches::default() };
        let long = frame(|out| Numbered { xid: -8, request: Request::SetWatches(watches) }.encode(out));
        let sent = [connect(), long.clone()].concat();
        let (events, mut taken) = mpsc::channel(1_000);
        let (core, outgoing) = (core(events), Outgoing::default());
        let mut reading = Box::pin(read(&sent[..], ConnectionId(1), place(), &core, &outgoing));
        for room in &core.long {
            go_as_far_as_it_can(reading.as_mut()).await;
            assert_eq!(taken.len(), 1, "the session is begun, and no more");
            room.add_permits(long.len() - 4);
        }
        reading.await;
        drop(taken.recv().await);
        let batch = taken.recv().await;
        let bytes = long.len() - 4;
        assert_eq!(core.long.each_ref().map(|room| room.available_permits()), [0, 0]);
        assert_eq!(core.waiting[1].available_permits(), WAITING_BYTES_MAX - bytes - LONG_BYTES / 4 * ELEMENT_BYTES);
        drop(batch);
        assert_eq!(core.long.each_ref().map(|room| room.available_permits()), [bytes, bytes], "the core has taken it");
        assert_eq!(core.waiting[1].available_permits(), WAITING_BYTES_MAX);
    }

    #[tokio::test]
    async fn so_many_batches_of_a_connection_wait_for_the_core_and_the_rest_in_its_socket() {
        let ping = frame(|out| Numbered { xid: -2, request: Request::Ping }.encode(out));
        let sent = [connect(), ping.repeat(BATCH_MAX * 100)].concat();
        let (events, mut taken) = mpsc::channel(1_000);
        let (core, outgoing) = (core(events), Outgoing::default());
        let mut reading = Box::pin(read(&sent[..], ConnectionId(1), place(), &core, &outgoing));
        go_as_far_as_it_can(reading.as_mut()).await;
        assert_eq!(taken.len(), BATCHES_MAX);
        // Each that the core has taken makes room for another one.
        let counted = |event: Event| if let Event::Inputs(batch) = event { batch.inputs.len() } else { 0 };
        let mut inputs = 0;
        loop {
            tokio::select! {
                biased;
                Some(event) = taken.recv() => inputs += counted(event),
                () = &mut reading => break,
            }
        }
        inputs += std::iter::from_fn(|| taken.try_recv().ok()).map(counted).sum::<usize>();
        assert_eq!(inputs, 1 + BATCH_MAX * 100, "all is asked in the end");
    }
}
