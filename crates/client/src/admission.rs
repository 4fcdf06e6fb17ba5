//! How much a connection asks of the cluster at once.
//!
//! Asking for more than the cluster can do at once makes everybody wait and nobody faster: queues grow at the replicas, and what waits in
//! them grows old. So a connection has so many requests under way at most, and whoever wants to begin a transaction beyond that waits here,
//! in turn, before it has a timestamp. What has begun goes on at once, and counts. A request counts until it is answered, also when nobody waits for the
//! answer any more: the cluster works on it all the same.
//!
//! How many are many the connection finds out ([`Window`]): requests that take far longer than the fastest of late have waited
//! somewhere, and then the window becomes smaller; while somebody waits here and nothing is late, it grows. Who would wait for too long is
//! refused at once, and told when to come again. Who then does has its place before those that still wait and came later than it did at first, so that
//! nobody is refused again and again for the sake of those. Who begins anew as it met another transaction has no such place: it would meet that again.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use engine::Refusal;
use tokio::sync::oneshot;

/// How many requests may be under way at first.
const WINDOW_FIRST: usize = 64;
/// The fewest that may be.
const WINDOW_MIN: usize = 2;
/// The most that may be, and the most that wait.
const WINDOW_MAX: usize = 65_536;
/// A read is late that took so much longer than the fastest of late.
const LATE: Duration = Duration::from_millis(50);
/// And a commit: replicas write many to disk at once, and order many at once where there is an order. Fewer at a time cost them more each.
const COMMIT_LATE: Duration = Duration::from_millis(100);
/// The window changes no more often than this.
const INTERVAL: Duration = Duration::from_millis(100);
/// And not before so many requests have ended that were asked since it changed last, or a full window of them.
const SAMPLES_MIN: usize = 16;
/// Commits count as well where there are so many for each read: then reads may never be enough.
const FEW_READS: usize = 4;
/// For how long at least the fastest request is remembered.
const FASTEST_REMEMBERED: Duration = Duration::from_secs(30);
/// Who would wait here for longer is refused.
const WAIT_MAX: Duration = Duration::from_secs(1);
/// What those are told at least and at most who are refused.
const COME_AGAIN_MIN: Duration = Duration::from_millis(100);
const COME_AGAIN_MAX: Duration = Duration::from_secs(5);

/// What one more key of a read weighs as much as, in bytes of values.
const KEY_BYTES: usize = 1 << 10;
/// A read is compared with reads that are less than four times as large, of which there are so many classes. What is larger than these tells
/// nothing: how long it takes depends on how large it is.
const READ_CLASSES: usize = 6;

/// What a request is, as far as it tells how busy the cluster is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A read of keys as of now: it waits for nothing but replicas.
    Read(ReadClass),
    /// A commit, which may wait for others' transactions, too: it counts where few read.
    Commit,
    /// How long it takes depends on what was asked.
    Other,
}

impl Kind {
    /// What a read of `keys` is that has found so many bytes of values.
    pub fn read(keys: usize, bytes: usize) -> Self {
        let size = keys.saturating_add(bytes / KEY_BYTES).max(1);
        let class = size.ilog2() as usize / 2;
        if class < READ_CLASSES { Self::Read(ReadClass(class)) } else { Self::Other }
    }
}

/// About how large a read is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReadClass(usize);

/// How many requests may be under way.
#[derive(Debug)]
struct Window {
    size: usize,
    under_way: usize,
    /// Nothing has been late yet: it grows fast.
    is_new: bool,
    changed_at: Instant,
    /// Of the requests that were asked since then and have ended: reads, by how large they are, and commits.
    reads: [Ended; READ_CLASSES],
    commits: Ended,
    /// Somebody has had to wait since then.
    was_full: bool,
    /// How many transactions began since then.
    begun: usize,
    /// How many began a second, of late; nothing while more might.
    begun_per_second: Option<f64>,
}

/// How long requests of one kind have taken.
#[derive(Clone, Copy, Debug)]
struct Ended {
    count: usize,
    late: usize,
    /// The fastest since the time, and the fastest in the time before.
    fastest: (Instant, Option<Duration>, Option<Duration>),
}

impl Ended {
    fn new(now: Instant) -> Self {
        Self { count: 0, late: 0, fastest: (now, None, None) }
    }

    /// It took so long, and is late if that is `late` more than the fastest took.
    fn note(&mut self, now: Instant, took: Duration, late: Duration, counts: bool) {
        let (since, fastest, before) = &mut self.fastest;
        if now.duration_since(*since) > FASTEST_REMEMBERED {
            (*since, *before) = (now, fastest.take());
        }
        let least = fastest.map_or(took, |fastest| fastest.min(took));
        *fastest = Some(least);
        if counts {
            self.count += 1;
            self.late += usize::from(took > before.map_or(least, |before| before.min(least)) + late);
        }
    }
}

impl Window {
    fn new(now: Instant) -> Self {
        Self {
            size: WINDOW_FIRST,
            under_way: 0,
            is_new: true,
            changed_at: now,
            reads: [Ended::new(now); READ_CLASSES],
            commits: Ended::new(now),
            was_full: false,
            begun: 0,
            begun_per_second: None,
        }
    }

    fn has_room(&self) -> bool {
        self.under_way < self.size
    }

    /// A request that was asked at `asked` has been answered.
    fn note(&mut self, now: Instant, kind: Kind, asked: Instant) {
        let (ended, late) = match kind {
            Kind::Read(ReadClass(class)) => (&mut self.reads[class], LATE),
            Kind::Commit => (&mut self.commits, COMMIT_LATE),
            Kind::Other => return,
        };
        ended.note(now, now.duration_since(asked), late, asked >= self.changed_at);
        // Each is late or not among its like.
        let sum = |of: fn(&Ended) -> usize| self.reads.iter().map(of).sum::<usize>();
        let reads = (sum(|ended| ended.count), sum(|ended| ended.late));
        let enough = SAMPLES_MIN.min(self.size);
        let reads_tell = reads.0 >= enough || FEW_READS * reads.0 >= self.commits.count;
        let (count, late) = if reads_tell { reads } else { (self.commits.count, self.commits.late) };
        let age = now.duration_since(self.changed_at);
        if age < INTERVAL || count < enough {
            return;
        }
        let begun_per_second = self.begun as f64 / age.as_secs_f64();
        let average = |before: f64| (before + begun_per_second) / 2.0;
        self.begun_per_second = (self.was_full && !self.is_new).then(|| self.begun_per_second.map_or(begun_per_second, average));
        if late * 2 > count {
            self.shrink();
        } else if self.was_full && late * 4 <= count {
            let more = if self.is_new { self.size } else { self.size / 16 + 1 };
            self.size = (self.size + more).min(WINDOW_MAX);
        }
        self.begin_interval(now);
    }

    /// The replicas have refused a request for having too much to do.
    fn note_refused(&mut self, now: Instant, asked: Instant) {
        // Once for all that were asked together.
        if asked >= self.changed_at {
            self.shrink();
            self.begin_interval(now);
        }
    }

    fn shrink(&mut self) {
        self.is_new = false;
        self.size = (self.size - self.size.div_ceil(4)).max(WINDOW_MIN);
    }

    fn begin_interval(&mut self, now: Instant) {
        self.changed_at = now;
        self.was_full = false;
        self.begun = 0;
        for ended in self.reads.iter_mut().chain([&mut self.commits]) {
            (ended.count, ended.late) = (0, 0);
        }
    }

    /// How long whoever comes now would wait behind `waiting` others; nothing while that is not known.
    fn wait(&self, waiting: usize) -> Option<Duration> {
        let begun_per_second = self.begun_per_second.filter(|begun| *begun > 0.0)?;
        Duration::try_from_secs_f64((waiting + 1) as f64 / begun_per_second).ok()
    }
}

/// Lets requests begin, as many at once as is good for all.
#[derive(Debug)]
pub(crate) struct Admission {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    window: Window,
    /// The earliest first.
    waiting: VecDeque<Waiting>,
    /// How many have waited so far.
    numbers: u64,
    /// How many of those that waited have been let in.
    granted: u64,
}

/// Who waits to begin.
#[derive(Debug)]
struct Waiting {
    /// Since when it wants to.
    since: Instant,
    number: u64,
    grant: oneshot::Sender<Slot>,
}

/// Takes who waits out of the queue when it goes away: nobody is to wait behind it.
struct Queued<'a> {
    admission: &'a Admission,
    since: Instant,
    number: u64,
    is_granted: bool,
}

impl Drop for Queued<'_> {
    fn drop(&mut self) {
        if self.is_granted {
            return;
        }
        let mut state = self.admission.lock();
        let first = state.waiting.partition_point(|waiting| waiting.since < self.since);
        let place = state.waiting.range(first..).position(|waiting| waiting.number == self.number);
        if let Some(place) = place {
            state.waiting.remove(first + place);
        }
    }
}

/// A place in the window; dropping it gives it back.
#[derive(Debug)]
pub(crate) struct Slot {
    admission: Arc<Admission>,
    asked: Instant,
}

impl Admission {
    pub fn new() -> Arc<Self> {
        let (window, waiting) = (Window::new(Instant::now()), VecDeque::new());
        Arc::new(Self { state: Mutex::new(State { window, waiting, numbers: 0, granted: 0 }) })
    }

    /// A place for a request that belongs to what has begun before.
    pub fn at_once(self: &Arc<Self>) -> Slot {
        self.lock().window.under_way += 1;
        Slot { admission: Arc::clone(self), asked: Instant::now() }
    }

    /// A place for the first request of a transaction that somebody wants to begin since `since`, as soon as there is room; for so long at most.
    ///
    /// # Errors
    /// [`Refusal::Overloaded`], at once, for who would wait too long, and when the time is over for who was overtaken by others for as long.
    /// [`Refusal::Unavailable`] when the time is over and nothing moves.
    pub async fn begin(self: &Arc<Self>, since: Instant, longest: Duration) -> Result<Slot, Refusal> {
        let (granted, granted_before, mut queued) = {
            let mut state = self.lock();
            if state.window.has_room() && state.waiting.is_empty() {
                state.window.under_way += 1;
                state.window.begun += 1;
                return Ok(Slot { admission: Arc::clone(self), asked: Instant::now() });
            }
            state.window.was_full = true;
            let ahead = state.waiting.partition_point(|waiting| waiting.since <= since);
            let wait = state.window.wait(ahead).unwrap_or_default();
            let is_full = state.waiting.len() >= WINDOW_MAX;
            if wait > WAIT_MAX || is_full {
                let wait = if is_full { state.window.wait(state.waiting.len()).unwrap_or_default() } else { wait };
                // Those who are refused together shall not come again together: each takes a part of this by chance.
                let after_ms = u32::try_from(wait.clamp(COME_AGAIN_MIN, COME_AGAIN_MAX).as_millis()).unwrap_or(u32::MAX);
                return Err(Refusal::Overloaded { after_ms });
            }
            let (grant, granted) = oneshot::channel();
            state.numbers += 1;
            let number = state.numbers;
            state.waiting.insert(ahead, Waiting { since, number, grant });
            (granted, state.granted, Queued { admission: self, since, number, is_granted: false })
        };
        match tokio::time::timeout(longest, granted).await {
            Ok(Ok(mut slot)) => {
                queued.is_granted = true;
                slot.asked = Instant::now();
                Ok(slot)
            }
            Err(_) if self.lock().granted != granted_before => {
                Err(Refusal::Overloaded { after_ms: u32::try_from(COME_AGAIN_MIN.as_millis()).unwrap_or(u32::MAX) })
            }
            Ok(Err(_)) | Err(_) => Err(Refusal::Unavailable),
        }
    }

    /// Lets those begin for whom there is room.
    fn grant(self: &Arc<Self>) {
        loop {
            let grant = {
                let mut state = self.lock();
                if !state.window.has_room() {
                    return;
                }
                let Some(Waiting { grant, .. }) = state.waiting.pop_front() else { return };
                if grant.is_closed() {
                    continue;
                }
                state.window.under_way += 1;
                state.window.begun += 1;
                state.granted += 1;
                grant
            };
            // Who has gone away in this moment gives its place back.
            drop(grant.send(Slot { admission: Arc::clone(self), asked: Instant::now() }));
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Slot {
    /// The request has been answered.
    pub fn answered(&self, kind: Kind) {
        self.admission.lock().window.note(Instant::now(), kind, self.asked);
    }

    /// The replicas have refused it for having too much to do.
    pub fn refused(&self) {
        self.admission.lock().window.note_refused(Instant::now(), self.asked);
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        {
            let mut state = self.admission.lock();
            state.window.under_way -= 1;
            if state.waiting.is_empty() {
                return;
            }
        }
        self.admission.grant();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAST: Duration = Duration::from_millis(5);
    const POINT: Kind = Kind::Read(ReadClass(0));

    /// A window, and the requests of a cluster that takes so long for each.
    struct Load {
        window: Window,
        now: Instant,
    }

    impl Load {
        fn new() -> Self {
            let now = Instant::now();
            Self { window: Window::new(now), now }
        }

        /// More want to begin than may, for as long as an interval lasts; each request takes so long.
        fn interval(&mut self, kind: Kind, took: Duration) -> usize {
            let asked = self.window.changed_at;
            self.now = self.now.max(asked + INTERVAL.max(took));
            self.window.was_full = true;
            for _ in 0..SAMPLES_MIN.min(self.window.size) {
                self.window.begun += 1;
                self.window.note(self.now, kind, self.now - took);
            }
            self.window.size
        }
    }

    #[test]
    fn the_window_grows_while_nothing_is_late_and_shrinks_when_much_is() {
        let mut load = Load::new();
        assert_eq!(load.interval(POINT, FAST), 2 * WINDOW_FIRST);
        assert_eq!(load.interval(POINT, FAST), 4 * WINDOW_FIRST);
        assert_eq!(load.interval(POINT, FAST + LATE), 8 * WINDOW_FIRST, "not late yet");
        assert_eq!(load.interval(POINT, FAST + 2 * LATE), 6 * WINDOW_FIRST);
        let size = load.window.size;
        assert_eq!(load.interval(POINT, FAST), size + size / 16 + 1, "slowly from now on");
        let least = (0..100).map(|_| load.interval(POINT, 10 * LATE)).last();
        assert_eq!(least, Some(WINDOW_MIN));
        let mut growing = (0..1_000).map(|_| load.interval(POINT, FAST));
        assert!(growing.any(|size| size == WINDOW_MAX), "it comes back");
    }

    #[test]
    fn large_reads_are_not_late_beside_small_ones() {
        let mut load = Load::new();
        let large = Kind::read(2_000, 200_000);
        // Of each four requests three are large, and take as long as large ones do.
        let note = |load: &mut Load, large_took: Duration, small_took: Duration| {
            load.now += 2 * INTERVAL;
            let asked = load.window.changed_at;
            load.window.was_full = true;
            for number in 0..2 * SAMPLES_MIN {
                let (kind, took) = if number % 4 == 0 { (POINT, small_took) } else { (large, large_took) };
                load.window.note(load.now, kind, (load.now - took).max(asked));
            }
            load.window.size
        };
        let slow = FAST + 2 * LATE;
        assert!(note(&mut load, slow, FAST) > WINDOW_FIRST, "nobody has waited");
        let size = load.window.size;
        assert!(note(&mut load, slow, FAST) > size);
        let size = load.window.size;
        assert!(note(&mut load, slow + 2 * LATE - FAST, FAST) < size, "they are late among their like");
    }

    #[test]
    fn a_read_is_as_large_as_what_it_asks_and_finds() {
        let class = |keys, bytes| if let Kind::Read(ReadClass(class)) = Kind::read(keys, bytes) { Some(class) } else { None };
        assert_eq!(
            [class(0, 0), class(1, 100), class(3, 0), class(4, 0), class(1, 3 * KEY_BYTES)],
            [Some(0), Some(0), Some(0), Some(1), Some(1)]
        );
        assert_eq!([class(4_095, 0), class(4_096, 0), class(usize::MAX, usize::MAX)], [Some(5), None, None]);
    }

    #[test]
    fn nothing_changes_for_what_was_asked_before_the_last_change() {
        let mut load = Load::new();
        let before = load.now;
        load.interval(POINT, FAST);
        let size = load.interval(POINT, FAST + 2 * LATE);
        load.now += 10 * INTERVAL;
        for _ in 0..100 {
            load.window.note(load.now, POINT, before);
            load.window.note_refused(load.now, before);
        }
        assert_eq!(load.window.size, size);
    }

    #[test]
    fn commits_count_where_nobody_reads() {
        let mut load = Load::new();
        let size = load.interval(Kind::Commit, FAST);
        for _ in 0..SAMPLES_MIN {
            load.window.note(load.now, Kind::Commit, load.now - FAST - 10 * LATE);
            load.window.note(load.now, Kind::Other, load.now - FAST - 10 * LATE);
        }
        assert!(load.interval(POINT, FAST) > size, "a commit that waits for another transaction says nothing of the cluster");
        let size = load.window.size;
        let grown = load.interval(Kind::Commit, FAST + COMMIT_LATE);
        assert!(grown > size, "commits may take longer than reads");
        assert!(load.interval(Kind::Commit, FAST + 2 * COMMIT_LATE) < grown);
    }

    #[test]
    fn a_few_reads_do_not_keep_commits_from_counting() {
        let mut load = Load::new();
        load.now += FAST;
        load.window.note(load.now, POINT, load.now - FAST);
        assert_eq!(load.window.reads[0].count, 1);
        assert_eq!(load.interval(Kind::Commit, FAST), 2 * WINDOW_FIRST, "one that has read once and then only writes");
        // Whoever reads half as much as it writes is judged by what it reads, as soon as that is enough.
        let note = |load: &mut Load, kind, count: usize, took| {
            for _ in 0..count {
                load.window.note(load.now, kind, load.now - took);
            }
            load.window.size
        };
        load.now += INTERVAL + 10 * LATE;
        load.window.was_full = true;
        assert_eq!(note(&mut load, POINT, SAMPLES_MIN - 1, FAST), 2 * WINDOW_FIRST);
        assert_eq!(note(&mut load, Kind::Commit, 2 * SAMPLES_MIN, 10 * LATE), 2 * WINDOW_FIRST, "not judged yet");
        assert!(note(&mut load, POINT, 1, FAST) > 2 * WINDOW_FIRST);
    }

    #[test]
    fn a_far_cluster_is_not_a_slow_one() {
        let mut load = Load::new();
        let far = Duration::from_millis(200);
        assert_eq!([load.interval(POINT, far), load.interval(POINT, far)], [2 * WINDOW_FIRST, 4 * WINDOW_FIRST]);
        // The fastest request is forgotten where the way has become longer.
        load.now += FASTEST_REMEMBERED;
        let sizes: Vec<usize> = (0..1_000).map(|_| load.interval(POINT, 2 * far)).collect();
        assert!(sizes.windows(2).any(|pair| pair[1] > pair[0]), "{sizes:?}");
    }

    #[test]
    fn how_long_one_would_wait_is_known_only_where_no_more_can_begin() {
        let mut load = Load::new();
        load.interval(POINT, FAST);
        assert_eq!(load.window.wait(0), None, "it still grows fast");
        load.interval(POINT, FAST + 2 * LATE);
        load.interval(POINT, FAST);
        let known = load.window.wait(0).expect("it was full");
        assert!(load.window.wait(99) > Some(99 * known));
        load.now += INTERVAL;
        for _ in 0..SAMPLES_MIN {
            load.window.note(load.now, POINT, load.now - FAST);
        }
        assert_eq!(load.window.wait(0), None, "nobody had to wait");
    }

    #[test]
    fn a_refusal_shrinks_it_once_for_all_that_were_asked_together() {
        let mut load = Load::new();
        let asked = load.now;
        load.now += INTERVAL;
        for _ in 0..10 {
            load.window.note_refused(load.now, asked);
        }
        assert_eq!(load.window.size, WINDOW_FIRST - WINDOW_FIRST / 4);
    }

    /// All places taken, by what has begun before.
    fn full() -> (Arc<Admission>, Vec<Slot>) {
        let admission = Admission::new();
        let slots = (0..WINDOW_FIRST).map(|_| admission.at_once()).collect();
        (admission, slots)
    }

    #[tokio::test]
    async fn who_comes_first_begins_first_and_who_goes_away_leaves_nothing_behind() {
        let (admission, mut slots) = full();
        let longest = Duration::from_secs(60);
        let mut waiting: Vec<_> = (0..3)
            .map(|_| {
                tokio::spawn({
                    let admission = Arc::clone(&admission);
                    async move { admission.begin(Instant::now(), longest).await.map(|_| ()) }
                })
            })
            .collect();
        while admission.lock().waiting.len() < 3 {
            tokio::task::yield_now().await;
        }
        waiting.remove(0).abort();
        tokio::task::yield_now().await;
        let goes_on = admission.at_once();
        slots.pop();
        tokio::task::yield_now().await;
        assert_eq!(admission.lock().waiting.len(), 2, "what has begun goes first");
        drop(goes_on);
        for waiting in waiting {
            assert_eq!(waiting.await.expect("it goes on"), Ok(()));
        }
        drop(slots);
        assert_eq!(admission.lock().window.under_way, 0);
    }

    #[tokio::test]
    async fn who_was_refused_and_comes_again_has_its_place_before_who_came_later() {
        let (admission, mut slots) = full();
        let (first, longest) = (Instant::now(), Duration::from_secs(60));
        let begun = Arc::new(Mutex::new(Vec::new()));
        let begin = |name: &'static str, since| {
            let (admission, begun) = (Arc::clone(&admission), Arc::clone(&begun));
            tokio::spawn(async move {
                let place = admission.begin(since, longest).await;
                begun.lock().expect("nobody panics").push(name);
                place.map(|_| ())
            })
        };
        let later: Vec<_> = ["second", "third"].map(|name| begin(name, Instant::now())).into();
        while admission.lock().waiting.len() < 2 {
            tokio::task::yield_now().await;
        }
        // Who comes now would have to wait for too long; who came first would not.
        admission.lock().window.begun_per_second = Some(2.0);
        assert!(matches!(admission.begin(Instant::now(), longest).await, Err(Refusal::Overloaded { after_ms: 1_500 })));
        let again = begin("first", first);
        while admission.lock().waiting.len() < 3 {
            assert!(!again.is_finished(), "it was refused");
            tokio::task::yield_now().await;
        }
        slots.pop();
        for waiting in later.into_iter().chain([again]) {
            assert_eq!(waiting.await.expect("it goes on"), Ok(()));
        }
        assert_eq!(*begun.lock().expect("nobody panics"), ["first", "second", "third"]);
    }

    #[tokio::test]
    async fn who_is_overtaken_for_as_long_as_it_may_wait_is_told_to_come_again() {
        let (admission, mut slots) = full();
        let (first, now) = (Instant::now(), Instant::now() + Duration::from_millis(1));
        let overtaken = tokio::spawn({
            let admission = Arc::clone(&admission);
            async move { admission.begin(now, Duration::from_millis(200)).await.map(|_| ()) }
        });
        while admission.lock().waiting.is_empty() {
            tokio::task::yield_now().await;
        }
        let earlier = tokio::spawn({
            let admission = Arc::clone(&admission);
            async move { admission.begin(first, Duration::from_secs(60)).await }
        });
        while admission.lock().waiting.len() < 2 {
            tokio::task::yield_now().await;
        }
        slots.pop();
        let _place = earlier.await.expect("it goes on").expect("there is room");
        assert_eq!(overtaken.await.expect("it goes on"), Err(Refusal::Overloaded { after_ms: 100 }));
    }

    #[tokio::test]
    async fn nobody_waits_behind_who_has_gone_away() {
        let (admission, _slots) = full();
        let (now, longest) = (Instant::now(), Duration::from_secs(60));
        let mut waiting: Vec<_> = (0..3).map(|_| Box::pin(admission.begin(now, longest))).collect();
        for begin in &mut waiting {
            assert!(std::future::poll_fn(|context| std::task::Poll::Ready(begin.as_mut().poll(context).is_pending())).await, "it waits");
        }
        let numbers = |admission: &Admission| admission.lock().waiting.iter().map(|waiting| waiting.number).collect::<Vec<_>>();
        assert_eq!(numbers(&admission), [1, 2, 3]);
        drop(waiting.remove(1));
        assert_eq!(numbers(&admission), [1, 3]);
        drop(waiting);
        assert_eq!(numbers(&admission), [0; 0]);
        // As long as nobody waits, one that comes now would wait half a second, and behind two others too long.
        admission.lock().window.begun_per_second = Some(2.0);
        assert!(matches!(admission.begin(now, Duration::ZERO).await, Err(Refusal::Unavailable)));
    }

    #[tokio::test]
    async fn who_would_wait_too_long_hears_at_once_when_to_come_again() {
        let (admission, _slots) = full();
        admission.lock().window.begun_per_second = Some(0.5);
        let refused = admission.begin(Instant::now(), Duration::from_secs(60)).await;
        assert!(matches!(refused, Err(Refusal::Overloaded { after_ms: 2_000 })), "{refused:?}");
        admission.lock().window.begun_per_second = Some(1e-3);
        let refused = admission.begin(Instant::now(), Duration::from_secs(60)).await;
        assert!(matches!(refused, Err(Refusal::Overloaded { after_ms: 5_000 })), "{refused:?}");
    }

    #[tokio::test]
    async fn where_nothing_moves_nobody_waits_for_ever() {
        let (admission, slots) = full();
        let refused = admission.begin(Instant::now(), Duration::from_millis(1)).await;
        assert!(matches!(refused, Err(Refusal::Unavailable)), "{refused:?}");
        drop(slots);
        assert_eq!(admission.lock().window.under_way, 0);
        assert!(admission.begin(Instant::now(), Duration::from_millis(1)).await.is_ok());
    }
}
