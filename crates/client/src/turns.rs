//! Transactions of one process take turns at keys that they read in order to write them.
//!
//! Of two transactions that read one version of a key and then write the key, one has to begin again: all that it cost was in vain. Where
//! both are of one process, the second had better wait until the first has asked for its commit. What it asks for goes the same ways
//! as the first one's request, behind it; so it reads what the first is about to write, and both can commit.
//!
//! Nobody waits at a key that transactions only read, nor where none is between its reads and its commit. Only a transaction's first
//! read waits: it has no timestamp yet. And nobody waits for long, as the first may be one that takes its time. It is advice
//! between neighbours: what replicas check does not rest on it.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;
use types::Key;

/// Nobody waits for longer for all its turns together, nor for who has had its turn for so long.
const WAIT_MAX: Duration = Duration::from_millis(20);
/// A key counts as written by its readers when so many more of them wrote it than did not, of those that met others there.
const WRITTEN_MIN: u8 = 2;
/// No more is counted than that, so that a key at which the habits change is noticed soon.
const WRITTEN_MAX: u8 = 4;
/// A transaction that reads more keys at once takes no turns.
const KEYS_AT_ONCE_MAX: usize = 64;
/// So many keys are remembered at which somebody met another.
const KEYS_MAX: usize = 4_096;
/// So many wait at one key.
const WAITING_MAX: usize = 1_024;

/// Who is between its reads and its commit, by the keys that it read.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    keys: Mutex<Keys>,
}

#[derive(Debug, Default)]
struct Keys {
    readers: HashMap<Key, Readers>,
    /// The number of the last turn that was taken.
    taken: u64,
    /// With so many keys, those are forgotten that nobody is at.
    forget_at: usize,
}

#[derive(Debug, Default)]
struct Readers {
    /// How many are between reading it and their commit.
    count: usize,
    /// Who of these came last, and when. It alone is waited for: who was there before takes its time.
    last: Option<(u64, Instant)>,
    /// How many more of them wrote it than did not.
    written: u8,
    waiting: VecDeque<oneshot::Sender<Turn>>,
}

impl Readers {
    /// Whether whoever comes now should wait.
    fn is_taken(&self, now: Instant) -> bool {
        let is_read = self.last.is_some_and(|(_, since)| now < since + WAIT_MAX);
        self.written >= WRITTEN_MIN && (is_read || !self.waiting.is_empty()) && self.waiting.len() < WAITING_MAX
    }
}

impl Keys {
    fn enter(&mut self, turns: &Arc<Turns>, key: &Key, has_waited: bool) -> Turn {
        if self.readers.len() >= self.forget_at.max(KEYS_MAX) {
            self.readers.retain(|_, readers| readers.count > 0 || !readers.waiting.is_empty());
            self.forget_at = 2 * self.readers.len();
        }
        self.taken += 1;
        let readers = self.readers.entry(key.clone()).or_default();
        let has_met = has_waited || readers.count > 0;
        readers.count += 1;
        readers.last = Some((self.taken, Instant::now()));
        Turn { turns: Arc::clone(turns), key: key.clone(), number: self.taken, has_met }
    }
}

/// Somebody is between its read of a key and its commit; dropping it lets the next one read.
#[derive(Debug)]
pub(crate) struct Turn {
    turns: Arc<Turns>,
    key: Key,
    number: u64,
    /// Others read it meanwhile, or wait.
    has_met: bool,
}

impl Turns {
    /// Waits for the turns of a transaction that reads `keys` first of all: each key once, in order.
    pub async fn take(self: &Arc<Self>, keys: &[Key]) -> Vec<Turn> {
        if keys.len() > KEYS_AT_ONCE_MAX {
            return Vec::new();
        }
        let mut turns = Vec::with_capacity(keys.len());
        let mut until = None;
        for key in keys {
            let granted = match self.enter(key) {
                Ok(turn) => {
                    turns.push(turn);
                    continue;
                }
                Err(granted) => granted,
            };
            let until = *until.get_or_insert_with(|| Instant::now() + WAIT_MAX);
            let turn = tokio::time::timeout_at(until, granted).await.ok().and_then(Result::ok);
            turns.push(turn.unwrap_or_else(|| self.waited_in_vain(key)));
        }
        turns
    }

    /// The same for further reads, which do not wait.
    pub fn take_at_once(self: &Arc<Self>, keys: &[Key]) -> Vec<Turn> {
        if keys.len() > KEYS_AT_ONCE_MAX {
            return Vec::new();
        }
        let mut all = self.lock();
        keys.iter().map(|key| all.enter(self, key, false)).collect()
    }

    /// A turn, or where it will come.
    fn enter(self: &Arc<Self>, key: &Key) -> Result<Turn, oneshot::Receiver<Turn>> {
        let mut all = self.lock();
        let now = Instant::now();
        match all.readers.get_mut(key).filter(|readers| readers.is_taken(now)) {
            Some(readers) => {
                let (grant, granted) = oneshot::channel();
                readers.waiting.push_back(grant);
                Err(granted)
            }
            None => Ok(all.enter(self, key, false)),
        }
    }

    /// Who has waited too long goes on beside the others; waiting is of little use at this key.
    fn waited_in_vain(self: &Arc<Self>, key: &Key) -> Turn {
        let mut all = self.lock();
        let turn = all.enter(self, key, true);
        if let Some(readers) = all.readers.get_mut(key) {
            readers.written = readers.written.saturating_sub(1);
        }
        turn
    }

    fn lock(&self) -> MutexGuard<'_, Keys> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Turn {
    /// The key.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// The transaction is about to commit, and `writes` the key, or not.
    pub fn commits(&mut self, writes: bool) {
        let mut all = self.turns.lock();
        let Some(readers) = all.readers.get_mut(&self.key) else { return };
        self.has_met |= readers.count > 1 || !readers.waiting.is_empty();
        if self.has_met {
            readers.written = if writes { (readers.written + 1).min(WRITTEN_MAX) } else { readers.written.saturating_sub(1) };
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut all = self.turns.lock();
        let Some(readers) = all.readers.get_mut(&self.key) else { return };
        readers.count -= 1;
        let is_last = readers.last.is_some_and(|(number, _)| number == self.number);
        if is_last {
            readers.last = None;
            while let Some(grant) = readers.waiting.pop_front() {
                if !grant.is_closed() {
                    let turn = all.enter(&self.turns, &self.key, true);
                    drop(all);
                    // Who went away in this moment gives it to the next.
                    drop(grant.send(turn));
                    return;
                }
            }
        }
        if readers.count == 0 && readers.written == 0 {
            all.readers.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(names: &[&str]) -> Vec<Key> {
        names.iter().map(|name| Key::from(*name)).collect()
    }

    /// Two that read `a` at the same time, and commit, writing it or not.
    fn meet(turns: &Arc<Turns>, writes: bool) {
        meet_at(turns, &keys(&["a"]), writes);
    }

    fn meet_at(turns: &Arc<Turns>, keys: &[Key], writes: bool) {
        let mut both = turns.take_at_once(keys);
        both.extend(turns.take_at_once(keys));
        both.iter_mut().for_each(|turn| turn.commits(writes));
    }

    /// Whether who reads `a` now would wait.
    fn is_taken(turns: &Turns) -> bool {
        turns.lock().readers[&Key::from("a")].is_taken(Instant::now())
    }

    fn waiting(turns: &Turns) -> usize {
        turns.lock().readers.values().map(|readers| readers.waiting.len()).sum()
    }

    #[tokio::test]
    async fn who_reads_to_write_waits_until_who_came_before_commits() {
        let turns = Arc::new(Turns::default());
        meet(&turns, true);
        let first = turns.take(&keys(&["a", "b"])).await;
        let order = Arc::new(Mutex::new(Vec::new()));
        let later: Vec<_> = (0..3)
            .map(|number| {
                let (turns, order) = (Arc::clone(&turns), Arc::clone(&order));
                tokio::spawn(async move {
                    let _mine = turns.take(&keys(&["a"])).await;
                    order.lock().expect("nobody panics").push(number);
                })
            })
            .collect();
        while waiting(&turns) < 3 {
            tokio::task::yield_now().await;
        }
        later[0].abort();
        assert_eq!(turns.take(&keys(&["b"])).await.len(), 1, "at another key nobody waits");
        drop(first);
        for later in later.into_iter().skip(1) {
            later.await.expect("it goes on");
        }
        assert_eq!(*order.lock().expect("nobody panics"), [1, 2]);
    }

    #[tokio::test]
    async fn nobody_waits_for_long_nor_again_and_again_for_who_takes_its_time() {
        let turns = Arc::new(Turns::default());
        meet(&turns, true);
        let _slow = turns.take(&keys(&["a"])).await;
        let begun = Instant::now();
        let second = turns.take(&keys(&["a"])).await;
        assert!(begun.elapsed() >= WAIT_MAX);
        assert!(!is_taken(&turns), "waiting was in vain");
        meet(&turns, true);
        drop(second);
        assert!(!is_taken(&turns), "whoever takes its time is waited for once");
    }

    #[tokio::test]
    async fn at_a_key_that_is_only_read_nobody_waits() {
        let turns = Arc::new(Turns::default());
        meet(&turns, true);
        meet(&turns, false);
        let _first = turns.take(&keys(&["a"])).await;
        assert!(!is_taken(&turns));
    }

    #[test]
    fn only_keys_at_which_somebody_met_another_are_remembered() {
        let turns = Arc::new(Turns::default());
        for number in 0..10 {
            let mut alone = turns.take_at_once(&keys(&[&number.to_string()]));
            alone[0].commits(true);
        }
        assert_eq!(turns.lock().readers.len(), 0);
        for number in 0..2 * KEYS_MAX {
            meet_at(&turns, &keys(&[&number.to_string()]), true);
        }
        assert!(turns.lock().readers.len() <= KEYS_MAX);
    }
}
