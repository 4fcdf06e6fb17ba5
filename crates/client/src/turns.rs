//! Transactions of one process take turns at keys that they read in order to write them.
//!
//! Of two transactions that read one version of a key and then write the key, one has to begin again: all that it cost was in vain. Where
//! both are of one process, the second had better wait until the first has asked for its commit. What it asks for goes the same ways
//! as the first one's request, behind it; so it reads what the first is about to write, and both can commit. But if the first
//! does not commit after all, neither can who has read that. So at each key few are ahead whose outcome is not known.
//!
//! A transaction waits for all the keys that it is about to read at once, behind all who came before it at any of them. So nobody waits in a
//! circle, and each comes to its turn. Who reads one by one waits anew with a later read, as one that has come now
//! ([`crate::Transaction`]).
//!
//! Nobody waits at a key that transactions only read, nor for long for one that takes its time. It is advice between neighbours: what
//! replicas check does not rest on it.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;
use types::Key;

/// So many that write a key may be asking for their commit while the next one reads it.
const COMMITTING_MAX: usize = 1;
/// Nobody waits any longer for one that has had its turn for so many times as long as is usual, within these bounds.
const PATIENCE: u32 = 4;
const PATIENCE_MIN: Duration = Duration::from_millis(20);
const PATIENCE_MAX: Duration = Duration::from_millis(500);
/// Nobody waits for longer before a read.
const WAIT_MAX: Duration = Duration::from_secs(1);
/// A key counts as written by its readers when so many more of them wrote it than did not, of those that met others there.
const WRITTEN_MIN: u8 = 2;
/// No more is counted than that, so that a key at which the habits change is noticed soon.
const WRITTEN_MAX: u8 = 4;
/// Who reads more keys at once takes no turn, and who has read so many takes none at others.
const KEYS_AT_ONCE_MAX: usize = 64;
/// So many keys are remembered at which somebody met another.
const KEYS_MAX: usize = 4_096;
/// So many wait at one key.
const WAITING_MAX: usize = 1_024;

/// Who is between its reads and its commit, by the keys that it read.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    all: Mutex<All>,
}

#[derive(Debug, Default)]
struct All {
    queues: HashMap<Key, Queue>,
    /// Those in the queues.
    transactions: HashMap<Number, State>,
    last: Number,
    /// With so many keys, those are forgotten that nobody is at.
    forget_at: usize,
    /// How long those that met others took of late from their turn to their commit.
    usual: Duration,
}

/// Transactions are numbered as they come.
type Number = u64;

/// Those at a key.
#[derive(Debug, Default)]
struct Queue {
    /// Who reads it or waits to, in the order in which they came.
    readers: VecDeque<Reader>,
    /// How many that write it are asking for their commit.
    committing: usize,
    /// How many more of its readers wrote it than did not.
    written: u8,
}

#[derive(Debug)]
struct Reader {
    number: Number,
    /// It waits until it is the first, and few are asking for their commit.
    waits: bool,
}

/// Whether a transaction has its turn.
#[derive(Debug, Default)]
struct State {
    /// At how many keys it waits.
    waits_at: usize,
    /// Told of its turn, if it waits.
    grant: Option<oneshot::Sender<()>>,
    /// Since when it has its turn.
    since: Option<Instant>,
}

impl Queue {
    /// Whether whoever comes now should wait.
    fn is_taken(&self) -> bool {
        let is_busy = !self.readers.is_empty() || self.committing > COMMITTING_MAX;
        is_busy && self.written >= WRITTEN_MIN && self.readers.len() < WAITING_MAX
    }

    fn is_idle(&self) -> bool {
        self.readers.is_empty() && self.committing == 0
    }

    /// Counts a reader that wrote the key, or one that did not. Having waited in vain counts as the latter.
    fn note(&mut self, is_written: bool) {
        self.written = if is_written { (self.written + 1).min(WRITTEN_MAX) } else { self.written.saturating_sub(1) };
    }
}

impl All {
    /// Puts a transaction behind the others at `key`. Gives whether there are any.
    fn enter(&mut self, key: &Key, number: Number, may_wait: bool) -> bool {
        if self.queues.len() >= self.forget_at.max(KEYS_MAX) {
            self.queues.retain(|_, queue| !queue.is_idle());
            self.forget_at = 2 * self.queues.len();
        }
        let queue = self.queues.entry(key.clone()).or_default();
        let (waits, has_met) = (may_wait && queue.is_taken(), !queue.is_idle());
        queue.readers.push_back(Reader { number, waits });
        if waits && let Some(state) = self.transactions.get_mut(&number) {
            state.waits_at += 1;
        }
        has_met
    }

    fn leave(&mut self, key: &Key, number: Number) {
        let Some(queue) = self.queues.get_mut(key) else { return };
        let Some(place) = queue.readers.iter().position(|reader| reader.number == number) else { return };
        queue.readers.remove(place);
        self.go_on_at(key);
    }

    /// Whoever is first at `key` now need not wait there any more, unless too many are asking for their commit.
    fn go_on_at(&mut self, key: &Key) {
        let Some(queue) = self.queues.get_mut(key) else { return };
        let is_free = queue.committing <= COMMITTING_MAX;
        let next = queue.readers.front().filter(|first| first.waits && is_free).map(|first| first.number);
        if queue.is_idle() && queue.written == 0 {
            self.queues.remove(key);
        }
        if let Some(next) = next {
            self.stop_waiting(key, next);
        }
    }

    /// `number` need not wait at `key`, if it does.
    fn stop_waiting(&mut self, key: &Key, number: Number) {
        let readers = self.queues.get_mut(key).map(|queue| &mut queue.readers);
        let reader = readers.and_then(|readers| readers.iter_mut().find(|reader| reader.number == number && reader.waits));
        let (Some(reader), Some(state)) = (reader, self.transactions.get_mut(&number)) else { return };
        reader.waits = false;
        state.waits_at -= 1;
        if state.waits_at == 0 {
            state.since = Some(Instant::now());
            // Whoever goes away in this moment leaves the queues by itself.
            state.grant.take().map(|grant| grant.send(()));
        }
    }

    /// How long others wait for one that has its turn.
    fn patience(&self) -> Duration {
        (self.usual * PATIENCE).clamp(PATIENCE_MIN, PATIENCE_MAX)
    }

    /// `number` has waited for a while. It goes past those that have had their turns for too long, and, once it has waited `enough`, past all.
    fn pass(&mut self, number: Number, keys: &[ReadKey], enough: bool) {
        let now = Instant::now();
        for ReadKey { key, .. } in keys {
            let Some(first) = self.queues.get(key).and_then(|queue| queue.readers.front()).map(|first| first.number) else { continue };
            // It waits for none but those that are asking for their commit.
            if first == number {
                self.stop_waiting(key, number);
                continue;
            }
            let since = self.transactions.get(&first).and_then(|state| state.since);
            let is_slow = since.is_some_and(|since| now >= since + self.patience());
            let Some(queue) = self.queues.get_mut(key).filter(|_| is_slow || enough) else { continue };
            if !queue.readers.iter().any(|reader| reader.number == number && reader.waits) {
                continue;
            }
            queue.note(false);
            if enough {
                self.stop_waiting(key, number);
            } else {
                self.leave(key, first);
            }
        }
    }
}

/// A transaction is between its reads and its commit; dropping this lets others read.
#[derive(Debug)]
pub(crate) struct KeyTurn {
    turns: Arc<Turns>,
    number: Number,
    keys: Vec<ReadKey>,
    /// It has asked for its commit.
    is_committing: bool,
}

#[derive(Debug)]
struct ReadKey {
    key: Key,
    /// Others were there.
    has_met: bool,
    /// The transaction writes it.
    is_written: bool,
}

impl Turns {
    /// Waits for the turn of a transaction that is about to read `keys`, if these are not too many.
    pub async fn take(self: &Arc<Self>, keys: &[Key]) -> KeyTurn {
        if keys.len() > KEYS_AT_ONCE_MAX {
            return self.none();
        }
        let (turn, granted) = self.enter(keys);
        if let Some(mut granted) = granted {
            let until = Instant::now() + WAIT_MAX;
            loop {
                let patience = self.lock().patience();
                if tokio::time::timeout_at(until.min(Instant::now() + patience), &mut granted).await.is_ok() {
                    break;
                }
                self.lock().pass(turn.number, &turn.keys, Instant::now() >= until);
            }
        }
        turn
    }

    /// That of a transaction that has read no key yet.
    pub fn none(self: &Arc<Self>) -> KeyTurn {
        self.enter(&[]).0
    }

    /// A transaction at its keys, and what tells of its turn, if it waits.
    fn enter(self: &Arc<Self>, keys: &[Key]) -> (KeyTurn, Option<oneshot::Receiver<()>>) {
        let mut guard = self.lock();
        let all = &mut *guard;
        all.last += 1;
        let number = all.last;
        all.transactions.insert(number, State::default());
        let read = |key: &Key| ReadKey { key: key.clone(), has_met: all.enter(key, number, true), is_written: false };
        let keys = keys.iter().map(read).collect();
        let mut granted = None;
        if let Some(state) = all.transactions.get_mut(&number) {
            if state.waits_at > 0 {
                let (grant, told) = oneshot::channel();
                (state.grant, granted) = (Some(grant), Some(told));
            } else {
                state.since = Some(Instant::now());
            }
        }
        drop(guard);
        (KeyTurn { turns: Arc::clone(self), number, keys, is_committing: false }, granted)
    }

    fn lock(&self) -> MutexGuard<'_, All> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl KeyTurn {
    /// Whether it should wait before it reads `keys`, too: not while others wait for it, as these would change what it has read.
    pub fn should_wait(&self, keys: &[Key]) -> bool {
        let all = self.turns.lock();
        let queue = |key: &Key| all.queues.get(key);
        let holds_up = |read: &ReadKey| queue(&read.key).is_some_and(|queue| queue.readers.iter().any(|reader| reader.waits));
        let is_new = |key: &&Key| self.keys.iter().all(|read| read.key != **key);
        let is_room = self.keys.len() + keys.len() <= KEYS_AT_ONCE_MAX;
        is_room && keys.iter().filter(is_new).any(|key| queue(key).is_some_and(Queue::is_taken)) && !self.keys.iter().any(holds_up)
    }

    /// It reads `keys`, too, without waiting.
    pub fn add(&mut self, keys: &[Key]) {
        let mut all = self.turns.lock();
        for key in keys.iter().take(KEYS_AT_ONCE_MAX.saturating_sub(self.keys.len())) {
            if self.keys.iter().all(|read| read.key != *key) {
                let has_met = all.enter(key, self.number, false);
                self.keys.push(ReadKey { key: key.clone(), has_met, is_written: false });
            }
        }
    }

    /// The transaction writes some of the keys.
    pub fn writes(&mut self, writes: impl Fn(&Key) -> bool) {
        self.keys.iter_mut().for_each(|read| read.is_written = writes(&read.key));
    }

    /// The transaction has asked for its commit.
    pub fn asked(&mut self) {
        let mut all = self.turns.lock();
        let since = all.transactions.remove(&self.number).and_then(|state| state.since);
        for ReadKey { key, has_met, is_written } in &mut self.keys {
            // Others may have gone past it, and nobody be there any more.
            let Some(queue) = all.queues.get_mut(key) else {
                *is_written = false;
                continue;
            };
            *has_met |= queue.readers.len() > 1;
            if *has_met {
                queue.note(*is_written);
            }
            queue.committing += usize::from(*is_written);
            all.leave(key, self.number);
        }
        if let Some(since) = since.filter(|_| self.keys.iter().any(|read| read.has_met)) {
            all.usual = (all.usual * 7 + since.elapsed().min(PATIENCE_MAX)) / 8;
        }
        self.keys.retain(|read| read.is_written);
        self.is_committing = true;
    }
}

impl Drop for KeyTurn {
    fn drop(&mut self) {
        let mut all = self.turns.lock();
        all.transactions.remove(&self.number);
        for ReadKey { key, .. } in &self.keys {
            if self.is_committing {
                if let Some(queue) = all.queues.get_mut(key) {
                    queue.committing -= 1;
                }
                all.go_on_at(key);
            } else {
                all.leave(key, self.number);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use rand::rngs::SmallRng;
    use rand::{Rng as _, SeedableRng as _};

    use super::*;

    fn keys(names: &str) -> Vec<Key> {
        names.chars().map(|name| Key::from(name.to_string().as_str())).collect()
    }

    /// Two that read `names` at the same time, and write them or not.
    fn meet(turns: &Arc<Turns>, names: &str, writes: bool) {
        let both = [turns.enter(&keys(names)).0, turns.enter(&keys(names)).0];
        both.into_iter().for_each(|turn| commit(turn, writes));
    }

    fn commit(mut turn: KeyTurn, writes: bool) {
        turn.writes(|_| writes);
        turn.asked();
    }

    /// Whether whoever reads `name` now would wait.
    fn is_taken(turns: &Turns, name: &str) -> bool {
        turns.lock().queues.get(&Key::from(name)).is_some_and(Queue::is_taken)
    }

    fn waiting(turns: &Turns) -> usize {
        turns.lock().transactions.values().filter(|state| state.waits_at > 0).count()
    }

    #[tokio::test(start_paused = true)]
    async fn who_reads_to_write_waits_until_who_came_before_commits() {
        let turns = Arc::new(Turns::default());
        meet(&turns, "a", true);
        let first = turns.take(&keys("ab")).await;
        let order = Arc::new(Mutex::new(Vec::new()));
        let spawn = |number: usize| {
            let (turns, order) = (Arc::clone(&turns), Arc::clone(&order));
            tokio::spawn(async move {
                let turn = turns.take(&keys("a")).await;
                order.lock().expect("nobody panics").push(number);
                tokio::time::sleep(PATIENCE_MIN / 2).await;
                commit(turn, true);
            })
        };
        let later: Vec<_> = (0..4).map(spawn).collect();
        while waiting(&turns) < 4 {
            tokio::task::yield_now().await;
        }
        later[0].abort();
        assert!(turns.enter(&keys("b")).1.is_none(), "at another key nobody waits");
        assert_eq!(order.lock().expect("nobody panics").len(), 0);
        commit(first, true);
        for later in later.into_iter().skip(1) {
            later.await.expect("it goes on");
        }
        assert_eq!(*order.lock().expect("nobody panics"), [1, 2, 3]);
    }

    #[tokio::test(start_paused = true)]
    async fn few_are_asking_for_their_commit_when_the_next_one_reads() {
        let turns = Arc::new(Turns::default());
        meet(&turns, "a", true);
        let mut committing = Vec::new();
        for _ in 0..=COMMITTING_MAX {
            let (mut turn, granted) = turns.enter(&keys("a"));
            assert!(granted.is_none());
            turn.writes(|_| true);
            turn.asked();
            committing.push(turn);
        }
        let (_next, granted) = turns.enter(&keys("a"));
        let mut granted = granted.expect("it waits");
        assert!(granted.try_recv().is_err());
        committing.pop();
        assert!(granted.try_recv().is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_for_long_nor_again_and_again_for_who_takes_its_time() {
        let turns = Arc::new(Turns::default());
        meet(&turns, "a", true);
        let _slow = turns.take(&keys("a")).await;
        let begun = Instant::now();
        let second = turns.take(&keys("a")).await;
        let waited = begun.elapsed();
        assert!(waited >= PATIENCE_MIN && waited < 2 * PATIENCE_MIN, "{waited:?}");
        assert!(!is_taken(&turns, "a"), "waiting was in vain");
        meet(&turns, "a", true);
        drop(second);
        assert!(!is_taken(&turns, "a"), "whoever takes its time is waited for once");
    }

    #[tokio::test(start_paused = true)]
    async fn who_was_passed_and_forgotten_commits_as_if_alone() {
        let turns = Arc::new(Turns::default());
        meet(&turns, "a", true);
        let mut slow = turns.take(&keys("a")).await;
        // Past the slow one, and does not write.
        commit(turns.take(&keys("a")).await, false);
        assert!(turns.lock().queues.is_empty());
        slow.writes(|_| true);
        slow.asked();
        let third = turns.take(&keys("a")).await;
        drop(slow);
        assert_eq!(turns.lock().queues[&Key::from("a")].committing, 0);
        drop(third);
        assert!(turns.lock().queues.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_for_longer_than_that_where_each_takes_its_turn_in_time() {
        let turns = Arc::new(Turns::default());
        meet(&turns, "a", true);
        let begun = Instant::now();
        let all: Vec<_> = (0..200)
            .map(|_| {
                let turns = Arc::clone(&turns);
                tokio::spawn(async move {
                    let turn = turns.take(&keys("a")).await;
                    let waited = begun.elapsed();
                    tokio::time::sleep(PATIENCE_MIN / 2).await;
                    commit(turn, true);
                    waited
                })
            })
            .collect();
        for one in all {
            assert!(one.await.expect("it ends") <= WAIT_MAX + PATIENCE_MIN);
        }
        assert_eq!((waiting(&turns), turns.lock().transactions.len()), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn at_a_key_that_is_only_read_nobody_waits() {
        let turns = Arc::new(Turns::default());
        meet(&turns, "a", true);
        meet(&turns, "a", false);
        let _first = turns.take(&keys("a")).await;
        assert!(!is_taken(&turns, "a"));
    }

    #[tokio::test(start_paused = true)]
    async fn at_each_key_one_reads_at_a_time_and_nobody_waits_in_a_circle() {
        let turns = Arc::new(Turns::default());
        meet(&turns, "abcdef", true);
        let (reading, mut rng) = (Arc::new(Mutex::new(BTreeMap::<Key, usize>::new())), SmallRng::seed_from_u64(1));
        let begun = Instant::now();
        let all: Vec<_> = (0..60)
            .map(|_| {
                let mut names: Vec<char> = "abcdef".chars().filter(|_| rng.random_bool(0.4)).collect();
                // In any order.
                names.sort_by_key(|_| rng.random::<u32>());
                let names = keys(&names.into_iter().collect::<String>());
                let (turns, reading, first) = (Arc::clone(&turns), Arc::clone(&reading), rng.random_range(0..20));
                tokio::spawn(async move {
                    tokio::time::sleep(Duration::from_millis(first)).await;
                    let turn = turns.take(&names).await;
                    for name in &names {
                        let mut reading = reading.lock().expect("nobody panics");
                        let readers = reading.entry(name.clone()).or_default();
                        assert_eq!(*readers, 0, "another reads {name}");
                        *readers += 1;
                    }
                    tokio::time::sleep(Duration::from_millis(3)).await;
                    names.iter().for_each(|name| *reading.lock().expect("nobody panics").get_mut(name).expect("it reads") -= 1);
                    commit(turn, true);
                })
            })
            .collect();
        for one in all {
            one.await.expect("it ends");
        }
        assert!(begun.elapsed() < WAIT_MAX, "somebody waited in vain");
    }

    #[tokio::test(start_paused = true)]
    async fn who_reads_one_by_one_is_told_where_it_should_wait() {
        let turns = Arc::new(Turns::default());
        meet(&turns, "b", true);
        let mut one = turns.take(&keys("a")).await;
        assert!(!one.should_wait(&keys("b")));
        let other = turns.take(&keys("b")).await;
        assert!(one.should_wait(&keys("cb")));
        one.add(&keys("b"));
        drop(other);
        assert!(is_taken(&turns, "b"), "it is there now");
        assert!(!one.should_wait(&keys("b")), "not for itself");
        meet(&turns, "c", true);
        let other = turns.take(&keys("c")).await;
        assert!(one.should_wait(&keys("c")));
        let waiting = turns.enter(&keys("b"));
        assert!(!one.should_wait(&keys("c")), "somebody waits for it");
        drop((waiting, other));
        drop(one);
        assert!(!is_taken(&turns, "b"));
    }

    #[test]
    fn only_keys_at_which_somebody_met_another_are_remembered() {
        let turns = Arc::new(Turns::default());
        for number in 0..10 {
            commit(turns.enter(&[Key::from(number.to_string().as_str())]).0, true);
        }
        assert_eq!(turns.lock().queues.len(), 0);
        for number in 0..2 * KEYS_MAX as u32 {
            let name = char::from_u32(0x1_0000 + number).expect("there are so many characters").to_string();
            meet(&turns, &name, true);
        }
        assert!(turns.lock().queues.len() <= KEYS_MAX && turns.lock().transactions.is_empty());
    }
}
