//! Who is served at low priority: whoever takes far more of this node's time than others do.
//!
//! Reading, decoding, checking signatures and writing happen on tokio's workers. A flood keeps these busy, and then everybody's messages
//! wait for a core several times on their way, however little of the flood the node loop takes in a turn. So the connections of a member
//! that takes [far more](UsageMonitor) than any other client does are served by one thread that lets all other threads of the machine
//! go first. With cores to spare it loses little by that; without, it gets what others leave. Strangers together count as one member.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::thread;
use std::time::{Duration, Instant};

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

/// How nice the thread is to others: with all cores busy it gets a tenth of what each of these does.
#[cfg(target_os = "linux")]
const LOW_PRIORITY_NICE: i32 = 10;
/// How often it is looked at who takes how much.
pub(crate) const USAGE_INTERVAL_MS: u64 = 100;
/// Whoever takes less than this part of a core never takes too much.
const USAGE_PERCENT_MIN: u64 = 5;
/// Whoever takes more than so many times what any other client does takes too much.
const USAGE_TIMES_MAX: u64 = 2;
/// For how long whoever takes too much is served at low priority, before it is tried again.
const LOW_PRIORITY_MS: u64 = 10_000;

/// What one member takes of the workers' time.
#[derive(Debug, Default)]
pub(crate) struct Usage {
    /// Since it was last looked at, in nanoseconds.
    spent_ns: AtomicU64,
    is_low: AtomicBool,
}

/// The thread on which whoever takes too much is served. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct LowPriority {
    thread: Option<(Handle, oneshot::Sender<()>)>,
}

impl LowPriority {
    /// No such thread: everybody is served alike.
    pub fn none() -> Self {
        Self { thread: None }
    }

    /// Starts the thread.
    ///
    /// # Errors
    /// When the system gives none.
    pub fn start() -> std::io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel();
        thread::Builder::new().name("low priority".to_owned()).spawn(move || {
            // Elsewhere it would be the whole process that waits. That it cannot be had is no reason to stop.
            #[cfg(target_os = "linux")]
            let _ = rustix::process::nice(LOW_PRIORITY_NICE);
            // An error says that the other side is gone, which is what is waited for.
            let _ = runtime.block_on(stopped);
        })?;
        Ok(Self { thread: Some((handle, stop)) })
    }

    /// Does `work` for whoever's usage this is, on this task's thread or on the other one, as the priority is at the moment. `None` when
    /// the other thread has ended, or the work has panicked there.
    pub async fn run<R: Send + 'static>(&self, usage: &Arc<Usage>, work: impl Future<Output = R> + Send + 'static) -> Option<R> {
        let Some((handle, _)) = &self.thread else { return Some(work.await) };
        let mut work: Work<R> = Box::pin(work);
        loop {
            let is_low = usage.is_low();
            let part = Part { work: Some(work), usage: Arc::clone(usage), is_low };
            let done = if is_low {
                // Whoever drops this future drops the task as well.
                let mut task = JoinSet::new();
                task.spawn_on(part, handle);
                task.join_next().await?.ok()?
            } else {
                part.await
            };
            match done {
                Done::All(result) => return Some(result),
                Done::Part(rest) => work = rest,
            }
        }
    }
}

type Work<R> = Pin<Box<dyn Future<Output = R> + Send>>;

/// Work until its priority changes.
struct Part<R> {
    work: Option<Work<R>>,
    usage: Arc<Usage>,
    is_low: bool,
}

/// How far a [`Part`] came.
enum Done<R> {
    All(R),
    Part(Work<R>),
}

impl<R> Future for Part<R> {
    type Output = Done<R>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Done<R>> {
        let Some(mut work) = self.work.take() else { return Poll::Pending };
        let begun = Instant::now();
        let polled = work.as_mut().poll(context);
        self.usage.note(begun.elapsed());
        match polled {
            Poll::Ready(result) => Poll::Ready(Done::All(result)),
            Poll::Pending if self.usage.is_low() != self.is_low => Poll::Ready(Done::Part(work)),
            Poll::Pending => {
                self.work = Some(work);
                Poll::Pending
            }
        }
    }
}

impl Usage {
    fn note(&self, spent: Duration) {
        self.spent_ns.fetch_add(u64::try_from(spent.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Whether its work is done at low priority.
    pub fn is_low(&self) -> bool {
        self.is_low.load(Ordering::Relaxed)
    }

    /// Changes that.
    pub fn set_low(&self, is_low: bool) {
        self.is_low.store(is_low, Ordering::Relaxed);
    }
}

/// Looks now and then at who takes how much, and decides who takes too much: more than some part of a core, and more than twice what any
/// other client does that is served like anybody, while there is one. Who is alone takes all there is.
#[derive(Debug)]
pub(crate) struct UsageMonitor {
    members: Vec<Watched>,
}

#[derive(Debug)]
struct Watched {
    usage: Arc<Usage>,
    is_client: bool,
    /// What it took of late, in nanoseconds: of each interval half as much as of the next.
    recent_ns: u64,
    low_until: Option<Instant>,
}

impl UsageMonitor {
    /// Of the usages of all, each with whether it is a client's.
    pub fn new(usages: impl Iterator<Item = (Arc<Usage>, bool)>) -> Self {
        let watched = |(usage, is_client)| Watched { usage, is_client, recent_ns: 0, low_until: None };
        Self { members: usages.map(watched).collect() }
    }

    /// Decides. To be called every [`USAGE_INTERVAL_MS`].
    pub fn look(&mut self, now: Instant) {
        // The two clients that took most, of those who are served like anybody: one of them is another than whoever is judged. Whoever is
        // served at low priority takes little because of that, and is no measure for others.
        let mut most = [(0, usize::MAX); 2];
        for (at, member) in self.members.iter_mut().enumerate() {
            member.recent_ns = member.recent_ns / 2 + member.usage.spent_ns.swap(0, Ordering::Relaxed);
            if member.is_client && member.low_until.is_none() && member.recent_ns > most[1].0 {
                most[1] = (member.recent_ns, at);
                most.sort_unstable_by(|a, b| b.cmp(a));
            }
        }
        // What is remembered comes to twice an interval's.
        let least_ns = 2 * USAGE_INTERVAL_MS * 1_000_000 * USAGE_PERCENT_MIN / 100;
        for (at, member) in self.members.iter_mut().enumerate() {
            let (others_ns, _) = if most[0].1 == at { most[1] } else { most[0] };
            let is_too_much = others_ns > 0 && member.recent_ns > least_ns.max(others_ns.saturating_mul(USAGE_TIMES_MAX));
            if is_too_much {
                member.low_until = now.checked_add(Duration::from_millis(LOW_PRIORITY_MS));
            } else if others_ns == 0 || member.low_until.is_some_and(|until| until <= now) {
                member.low_until = None;
            }
            member.usage.set_low(member.low_until.is_some());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_millis(USAGE_INTERVAL_MS);

    /// A replica and three clients.
    fn monitor() -> (UsageMonitor, Vec<Arc<Usage>>) {
        let usages: Vec<Arc<Usage>> = (0..4).map(|_| Arc::default()).collect();
        (UsageMonitor::new(usages.iter().enumerate().map(|(at, usage)| (Arc::clone(usage), at > 0))), usages)
    }

    /// Who is served at low priority after an interval in which they took so many milliseconds each.
    fn low(monitor: &mut UsageMonitor, usages: &[Arc<Usage>], now: &mut Instant, spent_ms: [u64; 4]) -> Vec<usize> {
        for (usage, spent) in usages.iter().zip(spent_ms) {
            usage.note(Duration::from_millis(spent));
        }
        *now += INTERVAL;
        monitor.look(*now);
        (0..usages.len()).filter(|at| usages[*at].is_low()).collect()
    }

    #[test]
    fn who_takes_far_more_than_any_other_client_is_served_at_low_priority_for_a_while() {
        let ((mut monitor, usages), mut now) = (monitor(), Instant::now());
        let mut low = |spent_ms| low(&mut monitor, &usages, &mut now, spent_ms);
        assert_eq!(low([0, 90, 0, 0]), [], "it is alone");
        assert_eq!(low([0, 90, 80, 0]), [], "not twice as much");
        for _ in 0..10 {
            assert_eq!(low([0, 4, 3, 1]), [], "less than the least that counts");
        }
        assert_eq!(low([50, 4, 1, 1]), [0], "a replica");
        assert_eq!(low([50, 50, 1, 1]), [0, 1]);
        assert_eq!(low([0, 0, 40, 40]), [0, 1], "those who take little at low priority are no measure for others");
        assert_eq!(low([0, 0, 1, 1]), [0, 1]);
        let intervals = (0..1_000).take_while(|_| !low([1, 1, 1, 1]).is_empty()).count() as u64;
        assert!((90..110).contains(&intervals), "about ten seconds from when it took much: {intervals}");
    }

    #[test]
    fn who_is_alone_again_is_served_as_before() {
        let ((mut monitor, usages), mut now) = (monitor(), Instant::now());
        assert_eq!(low(&mut monitor, &usages, &mut now, [0, 90, 1, 0]), [1]);
        let alone = (0..40).map(|_| low(&mut monitor, &usages, &mut now, [0, 90, 0, 0])).position(|low| low.is_empty());
        assert!(alone > Some(5), "the other is forgotten after a while: {alone:?}");
    }

    #[tokio::test]
    async fn work_goes_on_wherever_it_is_done() {
        let low_priority = LowPriority::start().expect("the system gives a thread");
        let usage: Arc<Usage> = Arc::default();
        let work = {
            let usage = Arc::clone(&usage);
            async move {
                let mut names = Vec::new();
                for is_low in [true, true, false, true] {
                    usage.set_low(is_low);
                    tokio::task::yield_now().await;
                    names.push(thread::current().name() == Some("low priority"));
                }
                names
            }
        };
        assert_eq!(low_priority.run(&usage, work).await, Some(vec![true, true, false, true]));
        assert!(usage.spent_ns.load(Ordering::Relaxed) > 0);
        assert_eq!(LowPriority::none().run(&usage, async { 1 }).await, Some(1));
    }

    #[tokio::test]
    async fn work_that_nobody_waits_for_is_dropped() {
        let low_priority = LowPriority::start().expect("the system gives a thread");
        let usage: Arc<Usage> = Arc::default();
        usage.set_low(true);
        let (held, dropped) = oneshot::channel::<()>();
        let work = async move {
            let _held = held;
            std::future::pending::<()>().await;
        };
        tokio::select! {
            biased;
            _ = low_priority.run(&usage, work) => {}
            () = tokio::task::yield_now() => {}
        }
        assert!(dropped.await.is_err());
    }
}
