//! The two halves of a stream, for whoever reads and whoever writes.
//!
//! They share the stream, and use it in turn. If one finds the other using it, its thread does not wait for that, unlike with
//! [`tokio::io::split`]: the other may be on the thread of [low priority](crate::priority), which the system may leave without a core for
//! long. Its task is woken instead when the other has done.

use std::io::Result;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::task::{Context, Poll, Waker};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Reads from the stream.
#[derive(Debug)]
pub(crate) struct ReadHalf<S>(Arc<Shared<S>>);

/// Writes to it.
#[derive(Debug)]
pub(crate) struct WriteHalf<S>(Arc<Shared<S>>);

#[derive(Debug)]
struct Shared<S> {
    stream: Mutex<S>,
    /// The half that found the other one using it.
    waiting: Mutex<Option<Waker>>,
}

/// Splits it: each half is for one task at a time.
pub(crate) fn split<S>(stream: S) -> (ReadHalf<S>, WriteHalf<S>) {
    let shared = Arc::new(Shared { stream: Mutex::new(stream), waiting: Mutex::default() });
    (ReadHalf(Arc::clone(&shared)), WriteHalf(shared))
}

impl<S: Unpin> Shared<S> {
    fn poll<T>(&self, context: &mut Context<'_>, use_it: impl FnOnce(Pin<&mut S>, &mut Context<'_>) -> Poll<T>) -> Poll<T> {
        let free = self.try_lock().or_else(|| {
            self.swap_waiting(Some(context.waker().clone()));
            // Whoever uses it lets go, and then looks who waits. So this finds it free, or is woken.
            self.try_lock()
        });
        let Some(mut stream) = free else { return Poll::Pending };
        let polled = use_it(Pin::new(&mut stream), context);
        drop(stream);
        if let Some(waiting) = self.swap_waiting(None) {
            waiting.wake();
        }
        polled
    }

    fn try_lock(&self) -> Option<MutexGuard<'_, S>> {
        match self.stream.try_lock() {
            Err(TryLockError::WouldBlock) => None,
            free => Some(free.expect("the other half has not panicked")),
        }
    }

    fn swap_waiting(&self, waker: Option<Waker>) -> Option<Waker> {
        std::mem::replace(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner), waker)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for ReadHalf<S> {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<Result<()>> {
        self.0.poll(context, |stream, context| stream.poll_read(context, buffer))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WriteHalf<S> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize>> {
        self.0.poll(context, |stream, context| stream.poll_write(context, bytes))
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        self.0.poll(context, |stream, context| stream.poll_flush(context))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        self.0.poll(context, |stream, context| stream.poll_shutdown(context))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::task::Wake;
    use std::thread;
    use std::time::Duration;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn what_one_end_writes_the_other_reads() {
        let (here, there) = tokio::io::duplex(64);
        let ((mut read, mut write), (mut read_there, mut write_there)) = (split(here), split(there));
        let sent: Vec<u8> = (0..=255).cycle().take(10_000).collect();
        let echo = async {
            tokio::io::copy(&mut read_there, &mut write_there).await.expect("it is read");
            write_there.shutdown().await.expect("it ends");
        };
        let send = async {
            write.write_all(&sent).await.expect("it is written");
            write.shutdown().await.expect("it ends");
        };
        let mut received = Vec::new();
        let (_, _, read) = tokio::join!(echo, send, read.read_to_end(&mut received));
        assert_eq!((read.expect("it is read"), received), (sent.len(), sent));
    }

    /// Whoever reads it uses it until told to let go.
    struct Slow {
        begun: mpsc::SyncSender<()>,
        let_go: mpsc::Receiver<()>,
    }

    impl AsyncRead for Slow {
        fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, _: &mut ReadBuf<'_>) -> Poll<Result<()>> {
            self.begun.send(()).expect("somebody waits for it");
            let _ = self.let_go.recv();
            Poll::Ready(Ok(()))
        }
    }

    impl AsyncWrite for Slow {
        fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize>> {
            Poll::Ready(Ok(bytes.len()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    struct Told(mpsc::SyncSender<()>);

    impl Wake for Told {
        fn wake(self: Arc<Self>) {
            self.0.send(()).expect("somebody waits for it");
        }
    }

    #[test]
    fn nobody_waits_on_a_thread_for_the_other_half() {
        let ((begun, has_begun), (go, let_go), (woken, is_woken)) = (mpsc::sync_channel(1), mpsc::sync_channel(1), mpsc::sync_channel(1));
        let (mut read, mut write) = split(Slow { begun, let_go });
        let reading = thread::spawn(move || {
            let mut context = Context::from_waker(Waker::noop());
            Pin::new(&mut read).poll_read(&mut context, &mut ReadBuf::new(&mut [])).is_ready()
        });
        has_begun.recv().expect("it begins");
        let waker = Waker::from(Arc::new(Told(woken)));
        let mut context = Context::from_waker(&waker);
        assert!(Pin::new(&mut write).poll_write(&mut context, b"bezant").is_pending());
        drop(go);
        is_woken.recv_timeout(Duration::from_secs(30)).expect("it is woken");
        assert!(matches!(Pin::new(&mut write).poll_write(&mut context, b"bezant"), Poll::Ready(Ok(6))));
        assert!(reading.join().expect("it reads"));
    }
}
