//! Who is served at low priority: whoever takes far more of this node's time than others do.
//!
//! Reading, decoding, checking signatures and writing happen on tokio's workers. A flood keeps these busy, and then everybody's messages
//! wait for a core several times on their way, however little of the flood the node loop takes in a turn. So the connections of a member
//! that takes [far more](UsageMonitor) than any other client does are served by one thread that lets all other threads of the machine
//! go first. With cores to spare it loses little by that; without, it gets what others leave. Strangers together count as one member.
//!
//! Others are whatever else runs on the machine, too; and whoever takes the most of a node may be its one honest client, beside somebody
//! whose requests cost little. So a small part of a core is everybody's: until it is used up, ten times a second, nobody goes last. Those at low
//! priority share it.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::thread;
use std::time::{Duration, Instant};

#[cfg(target_os = "linux")]
use preempt_rt::sched::{Pid, Scheduler, SchedulerParams, set_scheduler};
use tokio::runtime::{Builder, Handle};
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinSet;

use crate::member::Member;
use crate::worked::Worked;

/// How nice such a thread is to others, as nice as can be: with all cores busy it gets about a seventieth of what each of these does.
#[cfg(target_os = "linux")]
const LOW_PRIORITY_NICE: i32 = 19;
/// How often it is looked at who takes how much.
pub(crate) const USAGE_INTERVAL_MS: u64 = 100;
/// Whoever takes less than this part of a core never takes too much.
const USAGE_PERCENT_MIN: u64 = 5;
/// The same for an interval, in nanoseconds. So much of a whole core is everybody's.
const LEAST_NS: u64 = USAGE_INTERVAL_MS * 1_000_000 * USAGE_PERCENT_MIN / 100;
/// However little a node has of a core, and however many share that, so many nanoseconds of an interval are for each: what takes less is not
/// measured well.
const PART_NS_MIN: u64 = 500_000;
/// Who took more than its part has the less of the next ones, down to nothing, but no longer than for so many.
const OWED_PARTS_MAX: u64 = 2;
/// Whoever takes more than so many times what any other client does takes too much.
const USAGE_TIMES_MAX: u64 = 2;
/// Several that take much are compared with others only if as many of these take so much of a core each, in thousandths: who asks for
/// something now and then is not held up by anybody.
const WORKING_PER_MILLE_MIN: u64 = 5;
/// So many times in a row it must be found to do so: clients that begin at the same time differ much at first.
const LOOKS_MIN: u32 = 5;
/// For how long whoever takes too much is served at low priority, before it is tried again.
const LOW_PRIORITY_MS: u64 = 10_000;
/// A commit is taken to cost three halves of what one does at another client, at that for which it costs least,
const COMMIT_COST: (u64, u64) = (3, 2);
/// but so much at least, and so much at most, in nanoseconds.
const COMMIT_COST_NS_MIN: u64 = 50_000;
const COMMIT_COST_NS_MAX: u64 = 200_000;
/// So many commits of late tell what one costs.
const COMMITS_MIN: u64 = 8;

/// Nobody takes so much in an interval.
const NOT_LOW: u64 = u64::MAX;

/// What one member takes of a node's time: of its workers', and of the loop's for the steps that its messages cause.
#[derive(Debug)]
pub(crate) struct Usage {
    /// Since it was last looked at, in nanoseconds.
    spent_ns: AtomicU64,
    /// How many of its transactions it has brought to their end since then.
    commits: AtomicU64,
    /// At low priority: what it may take in an interval before it goes last, in nanoseconds. [`NOT_LOW`] if it is not.
    goes_last_from_ns: AtomicU64,
    /// Told when another interval begins: what goes last may go on.
    interval_begins: Notify,
}

/// A thread that lets all others of the machine go first: whoever takes too much is served there, and so is monitoring. It ends when this
/// is dropped.
#[derive(Debug)]
pub struct LowPriority {
    thread: Option<(Handle, oneshot::Sender<()>)>,
}

impl LowPriority {
    /// No such thread: everybody is served alike.
    pub(crate) fn none() -> Self {
        Self { thread: None }
    }

    /// Starts the thread.
    ///
    /// # Errors
    /// When the system gives none.
    pub fn start() -> std::io::Result<Self> {
        Self::start_with(|| {
            // Elsewhere it would be the whole process that waits. That it cannot be had is no reason to stop.
            #[cfg(target_os = "linux")]
            let _ = rustix::process::nice(LOW_PRIORITY_NICE);
        })
    }

    /// Starts one with the least weight there is, which leaves its core to any other thread of its session at once. A nice one keeps the core for
    /// some milliseconds more, also when a node's loop wakes up, which interrupts no other; and where it runs, others find no core that is free.
    ///
    /// # Errors
    /// When the system gives none.
    fn start_idle() -> std::io::Result<Self> {
        Self::start_with(|| {
            #[cfg(target_os = "linux")]
            if set_scheduler(Pid::current_thread(), Scheduler::SCHED_IDLE, SchedulerParams { priority: 0 }).is_err() {
                let _ = rustix::process::nice(LOW_PRIORITY_NICE);
            }
        })
    }

    fn start_with(make_low: impl FnOnce() + Send + 'static) -> std::io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel();
        thread::Builder::new().name("low priority".to_owned()).spawn(move || {
            make_low();
            // An error says that the other side is gone, which is what is waited for.
            let _ = runtime.block_on(stopped);
        })?;
        Ok(Self { thread: Some((handle, stop)) })
    }

    /// Does `work` on the thread, until that ends.
    pub fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        if let Some((handle, _)) = &self.thread {
            handle.spawn(work);
        }
    }

    /// Does `work` for whoever's usage this is, on this task's thread or on the other one, as the priority is at the moment. `None` when
    /// the other thread has ended, or the work has panicked there.
    pub(crate) async fn run<R: Send + 'static>(&self, usage: &Arc<Usage>, work: impl Future<Output = R> + Send + 'static) -> Option<R> {
        let Some((thread, _)) = &self.thread else { return Some(work.await) };
        let mut work: Work<R> = Box::pin(work);
        loop {
            if let Some(result) = poll_fn(|context| usage.poll(&mut work, false, context)).await {
                return Some(result);
            }
            match Lent::to(thread, usage, work).end(usage).await? {
                Ended::All(result) => return Some(result),
                Ended::Part(rest) => work = rest,
            }
        }
    }
}

/// One such thread for each kind of taker: replicas that lie do not hold up what clients sent, on which others may depend, nor strangers
/// either of them.
#[derive(Debug)]
pub(crate) struct LowPriorities {
    pub clients: LowPriority,
    pub replicas: LowPriority,
    pub strangers: LowPriority,
}

impl LowPriorities {
    /// No threads: everybody is served alike.
    pub fn none() -> Self {
        Self { clients: LowPriority::none(), replicas: LowPriority::none(), strangers: LowPriority::none() }
    }

    /// Starts the threads. With all cores busy, an idle one may wait for a second. A client at low priority may be an honest one, and whoever
    /// comes anew is a stranger at first; few replicas take so much without lying.
    ///
    /// # Errors
    /// When the system gives none.
    pub fn start() -> std::io::Result<Self> {
        Ok(Self { clients: LowPriority::start()?, replicas: LowPriority::start_idle()?, strangers: LowPriority::start()? })
    }

    /// Where `member` is served.
    pub fn of(&self, member: Member) -> &LowPriority {
        match member {
            Member::Client(_) => &self.clients,
            Member::Replica(_) => &self.replicas,
        }
    }
}

type Work<R> = Pin<Box<dyn Future<Output = R> + Send>>;

/// Work lent to the thread at low priority, which may get no core for long. It is taken back when it need not go last any more, unless the
/// thread is in the middle of it. It is dropped with this.
struct Lent<R> {
    /// Empty while the thread is at it.
    work: Arc<Mutex<Option<Work<R>>>>,
    /// Ends with the work's result, or with nothing when the work need not go last.
    task: JoinSet<Option<R>>,
}

/// How far [`Lent`] work came.
enum Ended<R> {
    All(R),
    Part(Work<R>),
}

impl<R: Send + 'static> Lent<R> {
    fn to(thread: &Handle, usage: &Arc<Usage>, work: Work<R>) -> Self {
        let work = Arc::new(Mutex::new(Some(work)));
        let (held, usage) = (Arc::clone(&work), Arc::clone(usage));
        let mut task = JoinSet::new();
        let doing = poll_fn(move |context| {
            let Some(mut work) = take(&held) else { return Poll::Pending };
            let polled = usage.poll(&mut work, true, context);
            if !matches!(polled, Poll::Ready(Some(_))) {
                *lock(&held) = Some(work);
                // If an interval began while this thread had the work, `end` looked and found none. So it is looked at here, too.
                if !usage.goes_last() {
                    return Poll::Ready(None);
                }
            }
            polled
        });
        task.spawn_on(doing, thread);
        Self { work, task }
    }

    /// `None` when the thread has ended, or the work has panicked.
    async fn end(mut self, usage: &Usage) -> Option<Ended<R>> {
        loop {
            let mut interval_begins = pin!(usage.interval_begins.notified());
            interval_begins.as_mut().enable();
            if !usage.goes_last()
                && let Some(work) = take(&self.work)
            {
                return Some(Ended::Part(work));
            }
            tokio::select! {
                biased;
                result = self.task.join_next() => match result?.ok()? {
                    Some(result) => return Some(Ended::All(result)),
                    None => return take(&self.work).map(Ended::Part),
                },
                () = interval_begins => {}
            }
        }
    }
}

impl<R> Drop for Lent<R> {
    fn drop(&mut self) {
        drop(take(&self.work));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn take<T>(held: &Mutex<Option<T>>) -> Option<T> {
    lock(held).take()
}

impl Default for Usage {
    fn default() -> Self {
        Self {
            spent_ns: AtomicU64::new(0),
            commits: AtomicU64::new(0),
            goes_last_from_ns: AtomicU64::new(NOT_LOW),
            interval_begins: Notify::new(),
        }
    }
}

impl Usage {
    /// Notes that so long was worked for it.
    pub fn note(&self, spent: Duration) {
        self.spent_ns.fetch_add(u64::try_from(spent.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// For how long that was since this was last asked, in nanoseconds.
    pub fn take_ns(&self) -> u64 {
        self.spent_ns.swap(0, Ordering::Relaxed)
    }

    /// A transaction of its own was brought to its end, by itself.
    pub fn note_commit(&self) {
        self.commits.fetch_add(1, Ordering::Relaxed);
    }

    /// How many there were since this was asked last.
    pub fn take_commits(&self) -> u64 {
        self.commits.swap(0, Ordering::Relaxed)
    }

    /// Whether it is at low priority.
    pub fn is_low(&self) -> bool {
        self.goes_last_from_ns.load(Ordering::Relaxed) < NOT_LOW
    }

    /// Whether its work goes last at the moment: it is at low priority, and has had what is everybody's.
    pub fn goes_last(&self) -> bool {
        let goes_last_from_ns = self.goes_last_from_ns.load(Ordering::Relaxed);
        goes_last_from_ns < NOT_LOW && self.spent_ns.load(Ordering::Relaxed) >= goes_last_from_ns
    }

    /// Polls `work`, which is at this priority. `Ready(None)`: it is at the other one now, and is to be done by the other thread.
    fn poll<R>(&self, work: &mut Work<R>, is_low: bool, context: &mut Context<'_>) -> Poll<Option<R>> {
        if self.goes_last() != is_low {
            return Poll::Ready(None);
        }
        let worked = Worked::begin();
        let polled = work.as_mut().poll(context);
        self.note(worked.elapsed());
        match polled {
            Poll::Ready(result) => Poll::Ready(Some(result)),
            Poll::Pending if self.goes_last() != is_low => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    }

    /// It is at low priority, where it may take so many nanoseconds in this interval before it goes last; or no longer.
    pub fn set_low(&self, part_ns: Option<u64>) {
        self.goes_last_from_ns.store(part_ns.map_or(NOT_LOW, |part_ns| part_ns.min(NOT_LOW - 1)), Ordering::Relaxed);
    }
}

/// Looks now and then at who takes how much, and decides who takes too much: for some time more than some part of a core, and more than
/// twice what any other client does. Who is alone takes all there is.
///
/// Several may do so together, as an attacker has several keys, and each would excuse the others. So those that take the most are judged
/// together, if each of them takes more than twice what any client does that is not among them, and at least as many of these work as there
/// are among them. Fewer never speak against more: many clients that work alike are not to blame for one that wants little.
///
/// At low priority one takes less than one would. So what it took when that began is remembered, and counts instead: clients that take no
/// more than this are not to blame, and when one does take more, it is no longer the one who takes too much.
///
/// Transactions that clients bring to their end, as commits, are what a node is there for. So what they cost is not held against their
/// client. Nobody can tell how much of its time that is, but what a commit costs at another client is known, and no commit is taken to cost
/// much more than at that for which it costs least: a few of them excuse no flood. Other clients are compared with by all that they take.
///
/// A replica is not excused by a flood of clients, which may be its own. But clients give all correct replicas much to do alike: it takes
/// too much only if it takes more than twice what half of the replicas do, too. And while one is at low priority that took more than twice
/// what a client does, that client is not to blame: it may be busy ending what others left.
#[derive(Debug)]
pub(crate) struct UsageMonitor {
    members: Vec<Watched>,
    /// So much of what those at low priority take in an interval, in nanoseconds, is served like all else.
    everybodys_ns: u64,
}

#[derive(Debug)]
struct Watched {
    usage: Arc<Usage>,
    /// Whose it is; nothing for all whose keys are not known yet.
    member: Option<Member>,
    /// What it took of late, in nanoseconds: of each interval half as much as of the next.
    recent_ns: u64,
    /// How many transactions it has brought to their end of late, likewise.
    recent_commits: u64,
    /// What it took in the last interval, in nanoseconds.
    taken_ns: u64,
    /// How many times in a row it has taken too much; one fewer for each look at which commits excused it.
    looks: u32,
    low: Option<Low>,
}

impl Watched {
    /// What it takes, or took when it began to be served at low priority.
    fn wanted_ns(&self) -> u64 {
        self.low.map_or(self.recent_ns, |low| low.took_ns)
    }
}

/// The clients that take the most, each more than twice what any other client does.
#[derive(Clone, Copy, Debug)]
struct Group {
    /// What each of them wants at least, and no other client does.
    least_ns: u64,
    /// What any other client wants at most.
    besides_ns: u64,
}

/// Since somebody is served at low priority.
#[derive(Clone, Copy, Debug)]
struct Low {
    until: Instant,
    /// What it took of late when that began.
    took_ns: u64,
    /// What it took beyond its parts of the intervals.
    owed_ns: u64,
}

impl Low {
    /// It took so much in an interval, of which so much is for each at low priority: gives its part of the next. What it asks for is known to cost
    /// much only when that is done.
    fn part_of_next(&mut self, taken_ns: u64, part_ns: u64) -> u64 {
        self.owed_ns = self.owed_ns.saturating_add(taken_ns).saturating_sub(part_ns).min(OWED_PARTS_MAX * part_ns);
        part_ns.saturating_sub(self.owed_ns)
    }
}

/// The two clients of which something is greatest: one of them is another than whoever is judged.
#[derive(Clone, Copy, Default)]
struct Greatest([Option<(u64, usize)>; 2]);

impl Greatest {
    fn note(&mut self, number: u64, at: usize) {
        let Self([first, second]) = self;
        if first.is_none_or(|(most, _)| number > most) {
            *second = first.replace((number, at));
        } else if second.is_none_or(|(most, _)| number > most) {
            *second = Some((number, at));
        }
    }

    /// Of all but this one; nothing when there is no other.
    fn besides(&self, at: usize) -> u64 {
        self.0.iter().flatten().find(|(_, other)| *other != at).map_or(0, |(number, _)| *number)
    }
}

impl UsageMonitor {
    /// Nobody of these goes last any more: what is under way for them is to end.
    pub fn stop(&self) {
        for member in &self.members {
            member.usage.set_low(None);
            member.usage.interval_begins.notify_waiters();
        }
    }

    /// Of the usages of all, each with whose it is, at a node that has so much of a core.
    pub fn new(usages: impl Iterator<Item = (Arc<Usage>, Option<Member>)>, core_percent: u8) -> Self {
        let watched = |(usage, member)| Watched { usage, member, recent_ns: 0, recent_commits: 0, taken_ns: 0, looks: 0, low: None };
        let everybodys_ns = LEAST_NS * u64::from(core_percent) / 100;
        Self { members: usages.map(watched).collect(), everybodys_ns }
    }

    /// Decides, and gives the numbers of those whose priority has changed, in the order in which they were listed. To be called every
    /// [`USAGE_INTERVAL_MS`].
    pub fn look(&mut self, now: Instant) -> Vec<usize> {
        let mut changed = Vec::new();
        let (mut recent, mut recent_normal, mut wanted) = (Greatest::default(), Greatest::default(), Greatest::default());
        // How many commits a second of this node's time brings to each client: what one costs, turned round.
        let mut commits_a_second = Greatest::default();
        for (at, member) in self.members.iter_mut().enumerate() {
            member.taken_ns = member.usage.take_ns();
            member.recent_ns = member.recent_ns / 2 + member.taken_ns;
            member.recent_commits = member.recent_commits / 2 + member.usage.take_commits();
            if matches!(member.member, Some(Member::Client(_))) {
                recent.note(member.recent_ns, at);
                wanted.note(member.wanted_ns(), at);
                if member.recent_commits >= COMMITS_MIN {
                    commits_a_second.note(member.recent_commits.saturating_mul(1_000_000_000) / member.recent_ns.max(1), at);
                }
                if member.low.is_none() {
                    recent_normal.note(member.recent_ns, at);
                }
            }
        }
        // What is remembered comes to twice an interval's.
        let least_ns = 2 * LEAST_NS;
        let group = self.group(least_ns);
        let usual_ns = self.usual_of_replicas_ns();
        let liar_ns = self.most_of_a_liar_ns();
        for (at, member) in self.members.iter_mut().enumerate() {
            let is_alone = recent.besides(at) == 0;
            let others_ns = match member.member {
                Some(Member::Client(_)) => {
                    let besides_ns = group.filter(|group| member.wanted_ns() >= group.least_ns).map(|group| group.besides_ns);
                    let others_ns = wanted.besides(at).min(besides_ns.unwrap_or(u64::MAX));
                    others_ns.max(liar_ns / USAGE_TIMES_MAX / USAGE_TIMES_MAX)
                }
                Some(Member::Replica(_)) => recent_normal.besides(at).max(usual_ns),
                None => recent_normal.besides(at),
            };
            let most_ns = least_ns.max(others_ns.saturating_mul(USAGE_TIMES_MAX));
            let (times, parts) = COMMIT_COST;
            let commit_ns = (1_000_000_000 * times / parts).checked_div(commits_a_second.besides(at)).unwrap_or(COMMIT_COST_NS_MAX);
            let for_commits_ns = member.recent_commits.saturating_mul(commit_ns.clamp(COMMIT_COST_NS_MIN, COMMIT_COST_NS_MAX));
            member.looks = match member.recent_ns {
                recent_ns if is_alone || recent_ns <= most_ns => 0,
                // Many commits at once excuse it for a look or two, and not for those before.
                recent_ns if recent_ns.saturating_sub(for_commits_ns) <= most_ns => member.looks.saturating_sub(1),
                _ => (member.looks + 1).min(LOOKS_MIN),
            };
            let others_take_more = |low: Low| recent_normal.besides(at) > low.took_ns && member.looks < LOOKS_MIN;
            member.low = match member.low {
                Some(low) if is_alone || low.until <= now || others_take_more(low) => None,
                None if member.looks >= LOOKS_MIN => {
                    Some(Low { until: now + Duration::from_millis(LOW_PRIORITY_MS), took_ns: member.recent_ns, owed_ns: 0 })
                }
                low => low,
            };
            if member.usage.is_low() != member.low.is_some() {
                changed.push(at);
            }
        }
        self.share_everybodys();
        changed
    }

    /// An interval begins: whoever is at low priority has a part of what is everybody's.
    fn share_everybodys(&mut self) {
        // Who has wanted nothing for a moment has a part all the same: several could otherwise take turns in having all of it.
        let sharing = self.members.iter().filter(|member| member.low.is_some() && member.recent_ns > 0).count();
        let part_ns = (self.everybodys_ns / sharing.max(1) as u64).max(PART_NS_MIN);
        for member in &mut self.members {
            let was_low = member.usage.is_low();
            member.usage.set_low(member.low.as_mut().map(|low| low.part_of_next(member.taken_ns, part_ns)));
            if was_low {
                member.usage.interval_begins.notify_waiters();
            }
        }
    }

    /// As many clients as take far more than any other does, if so many others work.
    fn group(&self, least_ns: u64) -> Option<Group> {
        let clients = self.members.iter().filter(|member| matches!(member.member, Some(Member::Client(_))));
        // What is remembered comes to twice an interval's.
        let works_ns = 2 * USAGE_INTERVAL_MS * 1_000_000 * WORKING_PER_MILLE_MIN / 1_000;
        let wanted = clients.map(|member| (member.wanted_ns(), member.taken_ns > 0));
        let mut wanted: Vec<(u64, bool)> = wanted.filter(|(wanted_ns, _)| *wanted_ns >= works_ns).collect();
        wanted.sort_unstable_by(|one, other| other.cmp(one));
        let of = |size: usize| {
            let (group, others) = wanted.split_at_checked(size)?;
            let group = Group { least_ns: group.last()?.0, besides_ns: others.first()?.0 };
            let takes_too_much = group.least_ns > least_ns.max(group.besides_ns.saturating_mul(USAGE_TIMES_MAX));
            (takes_too_much && others.iter().filter(|(_, is_active)| *is_active).count() >= size).then_some(group)
        };
        (1..=wanted.len() / 2).rev().find_map(of)
    }

    /// What the replica took that took the most of those at low priority.
    fn most_of_a_liar_ns(&self) -> u64 {
        let replicas = self.members.iter().filter(|member| matches!(member.member, Some(Member::Replica(_))));
        replicas.filter_map(|member| Some(member.low?.took_ns)).max().unwrap_or(0)
    }

    /// What half of the replicas took of late, or less.
    fn usual_of_replicas_ns(&self) -> u64 {
        let replicas = self.members.iter().filter(|member| matches!(member.member, Some(Member::Replica(_))));
        let mut recent: Vec<u64> = replicas.map(|member| member.recent_ns).collect();
        recent.sort_unstable();
        recent.get(recent.len().saturating_sub(1) / 2).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;
    use types::{ClientId, ReplicaId, ShardId};

    use super::*;

    const INTERVAL: Duration = Duration::from_millis(USAGE_INTERVAL_MS);

    /// A replica and three clients, and then two more replicas.
    fn monitor() -> (UsageMonitor, Vec<Arc<Usage>>) {
        let replica = |index| Some(Member::Replica(ReplicaId { shard: ShardId(0), index }));
        let client = |client| Some(Member::Client(ClientId(client)));
        let takers = [replica(0), client(1), client(2), client(3), replica(1), replica(2)];
        let usages = takers.map(|_| Arc::default()).to_vec();
        (UsageMonitor::new(usages.iter().cloned().zip(takers), 100), usages)
    }

    /// Who is served at low priority after an interval in which they took so many milliseconds each.
    fn low<const N: usize>(monitor: &mut UsageMonitor, usages: &[Arc<Usage>], now: &mut Instant, spent_ms: [u64; N]) -> Vec<usize> {
        for (usage, spent) in usages.iter().zip(spent_ms) {
            usage.note(Duration::from_millis(spent));
        }
        *now += INTERVAL;
        let before: Vec<bool> = usages.iter().map(|usage| usage.is_low()).collect();
        let changed = monitor.look(*now);
        let differ: Vec<usize> = (0..usages.len()).filter(|at| usages[*at].is_low() != before[*at]).collect();
        assert_eq!(changed, differ, "it says whose priority has changed");
        (0..usages.len()).filter(|at| usages[*at].is_low()).collect()
    }

    /// The same after many such intervals.
    fn low_at_last<const N: usize>(monitor: &mut UsageMonitor, usages: &[Arc<Usage>], now: &mut Instant, spent_ms: [u64; N]) -> Vec<usize> {
        (0..10).map(|_| low(monitor, usages, now, spent_ms)).last().unwrap_or_default()
    }

    #[test]
    fn who_takes_far_more_than_any_other_client_is_served_at_low_priority_for_a_while() {
        let ((mut monitor, usages), mut now) = (monitor(), Instant::now());
        let mut at_last = |spent_ms| low_at_last(&mut monitor, &usages, &mut now, spent_ms);
        assert_eq!(at_last([0, 90, 0, 0]), [], "it is alone");
        assert_eq!(at_last([0, 90, 60, 0]), [], "not twice as much");
        assert_eq!(at_last([0, 4, 1, 1]), [], "less than the least that counts");
        assert_eq!(at_last([50, 4, 1, 1]), [0], "a replica");
        assert_eq!(at_last([50, 40, 1, 1]), [0, 1]);
        assert_eq!(at_last([1, 1, 30, 1]), [0, 1], "who takes less now than they did is not to blame");
        let intervals = (0..1_000).take_while(|_| !low(&mut monitor, &usages, &mut now, [1, 1, 30, 1]).is_empty()).count() as u64;
        assert!(intervals < LOW_PRIORITY_MS / USAGE_INTERVAL_MS, "their time is over: {intervals}");
    }

    #[test]
    fn what_commits_take_is_not_held_against_who_brings_them_to_their_end() {
        let all = |spent_ms: [u64; 4], commits: [u64; 4]| {
            let ((mut monitor, usages), mut now) = (monitor(), Instant::now());
            let intervals = (0..30).map(|_| {
                commits.iter().zip(&usages).for_each(|(commits, usage)| (0..*commits).for_each(|_| usage.note_commit()));
                low(&mut monitor, &usages, &mut now, spent_ms)
            });
            intervals.last().unwrap_or_default()
        };
        assert_eq!(all([0, 60, 1, 1], [0, 0, 0, 0]), [1]);
        assert_eq!(all([0, 60, 1, 1], [0, 500, 0, 0]), [], "120 us each");
        assert_eq!(all([0, 60, 1, 1], [0, 100, 0, 0]), [1], "600 us each are more than any takes");
        assert_eq!(all([0, 60, 10, 1], [0, 500, 100, 0]), [], "100 us at the other, 120 at this one");
        assert_eq!(all([0, 60, 10, 1], [0, 200, 100, 0]), [1], "300 us at this one: it does something else beside");
        assert_eq!(all([0, 60, 1, 1], [0, 1_400, 100, 0]), [], "10 us at the other, which may do nothing else, and 43 at this one");
        assert_eq!(all([0, 60, 1, 1], [0, 500, 100, 0]), [1], "10 us at the other, and 120 at this one");
        assert_eq!(all([0, 60, 60, 200], [0, 500, 500, 0]), [3], "who commits nothing has no excuse");
    }

    /// A thousand at once, every half second, excuse it for two looks each time, and that is not enough.
    #[test]
    fn commits_by_the_thousand_at_once_excuse_no_flood() {
        let ((mut monitor, usages), mut now) = (monitor(), Instant::now());
        let mut is_found = false;
        for interval in 0..40 {
            let commits = if interval % LOOKS_MIN == 0 { 1_000 } else { 0 };
            (0..commits).for_each(|_| usages[1].note_commit());
            is_found |= low(&mut monitor, &usages, &mut now, [0, 60, 1, 1]).contains(&1);
        }
        assert!(is_found);
    }

    #[test]
    fn who_took_too_much_and_then_commits_is_tried_again_as_ever() {
        let ((mut monitor, usages), mut now) = (monitor(), Instant::now());
        assert_eq!((0..600).map(|_| low(&mut monitor, &usages, &mut now, [0, 60, 1, 1])).last(), Some(vec![1]));
        let commits = (0..200).map(|_| {
            (0..500).for_each(|_| usages[1].note_commit());
            low(&mut monitor, &usages, &mut now, [0, 60, 1, 1])
        });
        assert_eq!(commits.last(), Some(vec![]));
    }

    #[test]
    fn who_was_there_before_a_flood_is_not_taken_for_it() {
        let ((mut monitor, usages), mut now) = (monitor(), Instant::now());
        let mut low = |spent_ms| low(&mut monitor, &usages, &mut now, spent_ms);
        for spent_ms in [1, 5, 20, 40, 60, 60, 60] {
            assert_eq!(low([0, 20, spent_ms, 0]), [], "it begins, and the other suffers later");
        }
        let found = (0..20).map(|_| low([0, 2, 60, 0])).find(|low| !low.is_empty());
        assert_eq!(found, Some(vec![2]));
        assert_eq!((0..50).map(|_| low([0, 20, 2, 0])).last(), Some(vec![2]), "although it takes less now");
    }

    #[test]
    fn who_lets_another_be_blamed_first_is_found_nevertheless() {
        let ((mut monitor, usages), mut now) = (monitor(), Instant::now());
        let mut at_last = |spent_ms| low_at_last(&mut monitor, &usages, &mut now, spent_ms);
        assert_eq!(at_last([0, 20, 1, 0]), [1]);
        assert_eq!(at_last([0, 2, 60, 0]), [2], "the other takes more than the first did, and it is exchanged");
    }

    /// A replica and so many clients, and then two more replicas.
    fn monitor_of(clients: u64) -> (UsageMonitor, Vec<Arc<Usage>>) {
        let replicas = |indices: std::ops::Range<u16>| indices.map(|index| Member::Replica(ReplicaId { shard: ShardId(0), index }));
        let takers = replicas(0..1).chain((1..=clients).map(|client| Member::Client(ClientId(client)))).chain(replicas(1..3));
        let takers: Vec<(Arc<Usage>, Option<Member>)> = takers.map(|member| (Arc::default(), Some(member))).collect();
        let usages = takers.iter().map(|(usage, _)| Arc::clone(usage)).collect();
        (UsageMonitor::new(takers.into_iter(), 100), usages)
    }

    #[test]
    fn two_keys_of_one_attacker_do_not_excuse_one_another() {
        let ((mut monitor, usages), mut now) = (monitor_of(4), Instant::now());
        let mut at_last = |spent_ms| low_at_last(&mut monitor, &usages, &mut now, spent_ms);
        assert_eq!(at_last([0, 40, 40, 25, 5]), [], "not twice as much as one of two that work");
        assert_eq!(at_last([0, 40, 45, 4, 3]), [1, 2]);
        assert_eq!(at_last([0, 5, 5, 15, 12]), [1, 2], "although they take less now");
        assert_eq!(at_last([60, 5, 5, 15, 12]), [0, 1, 2], "nor do they excuse a replica");
    }

    #[test]
    fn many_that_work_alike_are_not_to_blame_for_one_that_wants_little() {
        let ((mut monitor, usages), mut now) = (monitor_of(5), Instant::now());
        for spent_ms in [[0, 40, 40, 40, 40, 3], [0, 40, 50, 60, 3, 3], [0, 30, 0, 0, 40, 4]] {
            assert_eq!(low_at_last(&mut monitor, &usages, &mut now, spent_ms), [], "{spent_ms:?}");
        }
        for second in 0..3 {
            for interval in 0..10 {
                let little = if interval == 0 { 2 } else { 0 };
                assert_eq!(
                    low(&mut monitor, &usages, &mut now, [0, 40, 50, little, little, little]),
                    [],
                    "{second} s: who asks once a second"
                );
            }
        }
    }

    #[test]
    fn those_are_judged_together_that_take_far_more_than_as_many_others() {
        let ((mut monitor, usages), mut now) = (monitor_of(6), Instant::now());
        let mut at_last = |spent_ms| low_at_last(&mut monitor, &usages, &mut now, spent_ms);
        assert_eq!(at_last([0, 90, 20, 20, 3, 3, 3]), [1, 2, 3], "one that takes the most by far hides nobody");
    }

    #[test]
    fn a_flood_of_a_client_does_not_excuse_a_replica() {
        let ((mut monitor, usages), mut now) = (monitor(), Instant::now());
        let mut at_last = |spent_ms| low_at_last(&mut monitor, &usages, &mut now, spent_ms);
        assert_eq!(at_last([0, 90, 5, 0]), [1]);
        assert_eq!(at_last([40, 9, 5, 0]), [0, 1]);
    }

    #[test]
    fn who_takes_far_less_than_a_liar_did_is_not_to_blame() {
        let ((mut monitor, usages), mut now) = (monitor(), Instant::now());
        let mut at_last = |spent_ms| low_at_last(&mut monitor, &usages, &mut now, spent_ms);
        assert_eq!(at_last([90, 5, 2, 0]), [0]);
        assert_eq!(at_last([9, 40, 2, 0]), [0]);
        assert_eq!(at_last([9, 60, 2, 0]), [0, 1], "more than half of it");
    }

    #[test]
    fn replicas_that_have_much_to_do_alike_are_not_taken_for_liars() {
        let ((mut monitor, usages), mut now) = (monitor(), Instant::now());
        for _ in 0..20 {
            usages[4].note(Duration::from_millis(30));
            usages[5].note(Duration::from_millis(50));
            assert_eq!(low(&mut monitor, &usages, &mut now, [40, 1, 1, 1]), []);
        }
        let found = (0..20).map(|_| {
            usages[4].note(Duration::from_millis(30));
            usages[5].note(Duration::from_millis(30));
            low(&mut monitor, &usages, &mut now, [90, 1, 1, 1])
        });
        assert_eq!(found.last(), Some(vec![0]));
    }

    #[test]
    fn who_is_alone_again_is_served_as_before() {
        let ((mut monitor, usages), mut now) = (monitor(), Instant::now());
        assert_eq!(low_at_last(&mut monitor, &usages, &mut now, [0, 90, 1, 0]), [1]);
        let alone = (0..40).map(|_| low(&mut monitor, &usages, &mut now, [0, 90, 0, 0])).position(|low| low.is_empty());
        assert!(alone > Some(5), "the other is forgotten after a while: {alone:?}");
    }

    #[tokio::test]
    async fn work_goes_on_wherever_it_is_done() {
        let low_priority = LowPriority::start().expect("the system gives a thread");
        let usage: Arc<Usage> = Arc::default();
        let work = {
            let usage = Arc::clone(&usage);
            usage.note(Duration::from_nanos(LEAST_NS));
            async move {
                let mut names = Vec::new();
                for is_low in [true, true, false, true] {
                    usage.set_low(is_low.then_some(LEAST_NS));
                    tokio::task::yield_now().await;
                    names.push(thread::current().name() == Some("low priority"));
                }
                names
            }
        };
        assert_eq!(low_priority.run(&usage, work).await, Some(vec![true, true, false, true]));
        assert!(usage.take_ns() > 0);
        assert_eq!(LowPriority::none().run(&usage, async { 1 }).await, Some(1));
    }

    #[test]
    fn a_small_part_of_a_core_is_everybodys() {
        let usage = Usage::default();
        usage.note(Duration::from_nanos(LEAST_NS));
        assert!(!usage.goes_last(), "it is not at low priority");
        usage.set_low(Some(LEAST_NS));
        assert!(usage.goes_last());
        usage.take_ns();
        assert!(!usage.goes_last(), "another interval begins");
        usage.note(Duration::from_nanos(LEAST_NS - 1));
        assert!(!usage.goes_last());
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn replicas_at_low_priority_have_the_least_weight() {
        let policy = || preempt_rt::sched::get_scheduler(Pid::current_thread()).expect("a thread has a policy");
        let policy_on = async |thread: &LowPriority| {
            let (say, said) = oneshot::channel();
            thread.spawn(async move { say.send(policy()).expect("somebody waits for it") });
            said.await.expect("it answers")
        };
        let threads = LowPriorities::start().expect("the system gives threads");
        let others = (policy_on(&threads.clients).await, policy_on(&threads.strangers).await);
        assert_eq!((policy_on(&threads.replicas).await, others), (Scheduler::SCHED_IDLE, (policy(), policy())));
    }

    #[test]
    fn of_less_than_a_core_less_is_everybodys() {
        // Six replicas on two cores: a third of a core each, of which a twentieth is for everybody.
        for (core_percent, part_ns) in [(100, LEAST_NS), (33, 1_650_000), (1, PART_NS_MIN)] {
            let (_, usages) = monitor();
            let takers = [1, 2].map(|client| Some(Member::Client(ClientId(client))));
            let mut monitor = UsageMonitor::new(usages.iter().cloned().zip(takers), core_percent);
            let mut now = Instant::now();
            assert_eq!(low_at_last(&mut monitor, &usages, &mut now, [90, 1]), [0]);
            (0..OWED_PARTS_MAX).for_each(|_| drop(low(&mut monitor, &usages, &mut now, [0, 1])));
            assert_eq!(part_of(&usages[0]), part_ns, "{core_percent}");
        }
    }

    /// What it may take in this interval before it goes last, which it then has taken.
    fn part_of(usage: &Usage) -> u64 {
        let part_ns = usage.goes_last_from_ns.load(Ordering::Relaxed);
        usage.note(Duration::from_nanos(part_ns - 1));
        assert!(!usage.goes_last());
        usage.note(Duration::from_nanos(1));
        assert!(usage.goes_last());
        part_ns
    }

    #[test]
    fn those_at_low_priority_share_what_is_everybodys() {
        let ((mut monitor, usages), mut now) = (monitor(), Instant::now());
        assert_eq!(low_at_last(&mut monitor, &usages, &mut now, [90, 60, 1, 1]), [0, 1]);
        (0..OWED_PARTS_MAX).for_each(|_| drop(low(&mut monitor, &usages, &mut now, [0, 0, 1, 1])));
        assert_eq!(low(&mut monitor, &usages, &mut now, [1, 1, 1, 1]), [0, 1]);
        assert_eq!((part_of(&usages[0]), part_of(&usages[1])), (LEAST_NS / 2, LEAST_NS / 2));
        (0..OWED_PARTS_MAX).for_each(|_| assert_eq!(low(&mut monitor, &usages, &mut now, [1, 0, 1, 1]), [0, 1]));
        assert_eq!(part_of(&usages[0]), LEAST_NS / 2, "the other may want something in a moment");
        (0..40).for_each(|_| assert_eq!(low(&mut monitor, &usages, &mut now, [1, 0, 1, 1]), [0, 1]));
        assert_eq!(part_of(&usages[0]), LEAST_NS, "the other wants nothing");
    }

    #[test]
    fn who_took_more_than_its_part_has_the_less_of_the_next() {
        let mut low = Low { until: Instant::now(), took_ns: 0, owed_ns: 0 };
        assert_eq!(low.part_of_next(100, 100), 100);
        assert_eq!(low.part_of_next(130, 100), 70);
        assert_eq!(low.part_of_next(70, 100), 100, "it has given it back");
        assert_eq!(low.part_of_next(900, 100), 0);
        assert_eq!((low.part_of_next(0, 100), low.part_of_next(0, 100)), (0, 100), "what is idle does not make it wait for long");
    }

    #[tokio::test]
    async fn what_the_thread_was_given_ends_with_it() {
        let low_priority = LowPriority::start().expect("the system gives a thread");
        let ((say, said), (held, dropped)) = (oneshot::channel(), oneshot::channel::<()>());
        low_priority.spawn(async move {
            let _held = held;
            let _ = say.send(thread::current().name().map(str::to_owned));
            std::future::pending::<()>().await;
        });
        assert_eq!(said.await, Ok(Some("low priority".to_owned())));
        drop(low_priority);
        assert!(dropped.await.is_err());
    }

    /// Keeps the thread busy until what this returns is dropped.
    fn keep_busy(low_priority: &LowPriority) -> std::sync::mpsc::SyncSender<()> {
        let (free, busy) = std::sync::mpsc::sync_channel::<()>(1);
        low_priority.spawn(async move {
            let _ = busy.recv();
        });
        free
    }

    async fn is_pending<R>(mut work: Pin<&mut impl Future<Output = R>>) -> bool {
        poll_fn(|context| Poll::Ready(work.as_mut().poll(context).is_pending())).await
    }

    #[test]
    fn nobody_goes_last_once_the_node_stops() {
        let ((mut monitor, usages), mut now) = (monitor(), Instant::now());
        assert_eq!(low_at_last(&mut monitor, &usages, &mut now, [0, 90, 1, 0]), [1]);
        usages[1].note(Duration::from_nanos(LEAST_NS));
        assert!(usages[1].goes_last());
        monitor.stop();
        assert!(!usages[1].goes_last());
    }

    #[tokio::test]
    async fn what_need_not_go_last_any_more_does_not_wait_for_a_thread_without_a_core() {
        let low_priority = LowPriority::start().expect("the system gives a thread");
        let _busy = keep_busy(&low_priority);
        let ((mut monitor, usages), mut now) = (monitor(), Instant::now());
        assert_eq!(low_at_last(&mut monitor, &usages, &mut now, [0, 90, 1, 0]), [1]);
        usages[1].note(Duration::from_nanos(LEAST_NS));
        let mut work = pin!(low_priority.run(&usages[1], async { thread::current().name().map(str::to_owned) }));
        assert!(is_pending(work.as_mut()).await, "it is the other thread's");
        // It took more than its part, and has nothing of the next ones.
        (0..=OWED_PARTS_MAX).for_each(|_| assert_eq!(low(&mut monitor, &usages, &mut now, [0, 0, 1, 0]), [1]));
        let done_by = timeout(Duration::from_secs(30), work).await.expect("it is taken back");
        assert_eq!(done_by, Some(thread::current().name().map(str::to_owned)));
    }

    #[tokio::test]
    async fn work_that_nobody_waits_for_is_dropped() {
        let low_priority = LowPriority::start().expect("the system gives a thread");
        let _busy = keep_busy(&low_priority);
        let usage: Arc<Usage> = Arc::default();
        usage.set_low(Some(LEAST_NS));
        usage.note(Duration::from_nanos(LEAST_NS));
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
