//! Writers that readers hold off (beyond the paper).
//!
//! An answer to a read is a promise: the replica votes for no write that would come between what it shows and the reader's timestamp
//! (Algorithm 1 L12, and [`crate::read_only`]). Who reads the same keys all the time would thus keep everybody from writing them. So when a
//! write of a key was voted down for what another client read, that key is promised to nobody for a while: its writer comes again, and nobody
//! holds it off by reading alone. An answer without a promise validates nothing: the reader's transaction is prepared, and the replicas vote on
//! what it read. Without a promise for one of its keys a read has none for any, and so has a page of a range.
//!
//! A while is short where that happens once, so that keys that are written now and then are hardly ever read without a promise, and grows where
//! it happens again soon, so that of a key's writes few are held off.
//!
//! What lies a second back is promised always: who writes there is late by its own fault. So is what was promised before, to whomever: that
//! holds nobody off who is not held off already.
//!
//! Readers are not to be held off for ever in turn. Whoever writes such a key a little late all the time, below those who read it, has each of them
//! voted down, and they read without a promise again, whether they write too or not. So a client has its *turn* when a transaction that it brought
//! itself has read such a key and aborted: its next one is promised as many keys, whatever they are. All replicas hear of the end, so that whoever has
//! some vote it down now and others the next time keeps none of them from promising. A turn costs a transaction that was prepared, and for that price
//! whoever reads may hold writers off anyway (L10). What somebody else brought in a client's name gives it no turn, or made-up clients had them, and
//! others' had their turns spent on transactions that they know nothing of.

use std::collections::BTreeMap;

use machine::Time;
use mutants::{Mutant, broken};
use store::StorageBackend;
use types::{ClientId, Key, KeyRange, Party, Timestamp};

use super::Replica;
use crate::transaction::Transaction;

/// For how long a key is promised to nobody when a writer of it was held off, in nanoseconds, so that there is time for another attempt where all are
/// busy; and for how long at most where it happens again and again.
const FIRST_NS: u64 = 2_000_000_000;
const MOST_NS: u64 = 60_000_000_000;
/// So many times as long each time, where it happens again within so many times as long.
const GROWTH: u64 = 8;
const SOON: u64 = 2;
/// What lies so far back is the past, in nanoseconds.
const RECENT_NS: u64 = 1_000_000_000;
/// The most bytes of what is remembered, and what a key takes beside its own.
const BYTES_MAX: usize = 4 << 20;
const NOTE_BYTES: usize = 240;
/// The most keys of one transaction that are remembered at once, for what that takes: whoever writes more comes again, and has the others
/// remembered then, before the first ones are promised again.
const KEYS_OF_ONE_MAX: usize = 512;
/// The most turns that one client has to come, and how many keys a range counts for in one.
const TURNS_MAX: usize = 16;
const KEYS_OF_RANGE: usize = 16;

/// A key whose writer was held off.
#[derive(Clone, Copy, Debug)]
struct Note {
    /// Until when it is promised to nobody, and for how long that is, in nanoseconds.
    until: u64,
    length: u64,
    /// Whose share of the room it takes.
    writer: ClientId,
}

impl Note {
    fn is_live(self, now: Time) -> bool {
        // What lies further ahead is from a clock that was wrong.
        self.until > now.0 && self.until - now.0 <= self.length
    }

    fn is_recent(self, now: Time) -> bool {
        let end = self.until.saturating_add(SOON * self.length);
        end > now.0 && self.until.saturating_sub(now.0) <= self.length
    }
}

/// What a reader whose transaction aborted is promised in spite of all notes.
#[derive(Clone, Copy, Debug)]
struct Exemption {
    until: u64,
    /// Whose it is, once a transaction has read by it.
    at: Option<Timestamp>,
    keys_left: usize,
}

/// The keys whose writers were held off of late.
#[derive(Debug, Default)]
pub(super) struct HeldOff {
    notes: BTreeMap<Key, Note>,
    /// The bytes of each writer's notes, and of all.
    shares: BTreeMap<ClientId, usize>,
    bytes: usize,
    /// Until when the last of them is promised to nobody.
    last: u64,
    turns: BTreeMap<ClientId, Vec<Exemption>>,
}

impl HeldOff {
    /// `writer` was held off, who writes `key`.
    fn note(&mut self, now: Time, key: &Key, writer: ClientId) {
        let known = self.notes.get(key).copied();
        let earlier = known.filter(|note| note.is_recent(now));
        let length = earlier.map_or(FIRST_NS, |note| if note.is_live(now) { note.length } else { (GROWTH * note.length).min(MOST_NS) });
        let until = now.0.saturating_add(length);
        self.last = until.max(if self.last > now.0.saturating_add(MOST_NS) { 0 } else { self.last });
        // Nobody takes others' notes over, to lose them with its own.
        let share = |writer: &ClientId| self.shares.get(writer).copied().unwrap_or(0);
        let owner = known.map_or(writer, |note| if share(&note.writer) <= share(&writer) { note.writer } else { writer });
        self.drop_note(key);
        self.notes.insert(key.detached(), Note { until, length, writer: owner });
        *self.shares.entry(owner).or_default() += bytes_of(key);
        self.bytes += bytes_of(key);
        if self.bytes > BYTES_MAX {
            self.make_room(now);
        }
    }

    fn drop_note(&mut self, key: &Key) {
        let Some(note) = self.notes.remove(key) else { return };
        self.bytes -= bytes_of(key);
        if let Some(share) = self.shares.get_mut(&note.writer) {
            *share -= bytes_of(key);
            if *share == 0 {
                self.shares.remove(&note.writer);
            }
        }
    }

    /// Forgets what is over. If that is not enough, each writer has the same room, and loses what is over first of what does not fit.
    fn make_room(&mut self, now: Time) {
        let over: Vec<Key> = self.notes.iter().filter(|(_, note)| !note.is_recent(now)).map(|(key, _)| key.clone()).collect();
        over.iter().for_each(|key| self.drop_note(key));
        let room = BYTES_MAX / 4 * 3;
        if self.bytes <= room {
            return;
        }
        let each = if broken(Mutant::HeldOffUnshared) { 0 } else { fair_share(self.shares.values().copied().collect(), room) };
        let mut by_end: Vec<(u64, Key)> = self.notes.iter().map(|(key, note)| (note.until, key.clone())).collect();
        by_end.sort_unstable();
        for (_, key) in by_end {
            let share = self.notes.get(&key).and_then(|note| self.shares.get(&note.writer));
            if share.is_some_and(|share| *share > each) && (each > 0 || self.bytes > room) {
                self.drop_note(&key);
            }
        }
    }

    /// Whether a writer of `key` was held off so recently that the key is promised to nobody.
    fn holds(&self, now: Time, key: &Key) -> bool {
        self.has_any(now) && self.notes.get(key).is_some_and(|note| note.is_live(now))
    }

    /// The same of any key in `range`.
    fn holds_any_of(&self, now: Time, range: &KeyRange) -> bool {
        self.has_any(now) && self.notes.range(range.low()..range.high()).any(|(_, note)| note.is_live(now))
    }

    fn has_any(&self, now: Time) -> bool {
        self.last > now.0 && !broken(Mutant::HeldOffForgotten)
    }

    /// A transaction of `reader`, which read so many keys, and such a key among them, has aborted: its next one is promised as many.
    fn give_turn(&mut self, now: Time, reader: ClientId, keys: usize) {
        let turns = self.turns.entry(reader).or_default();
        turns.retain(|turn| turn.until > now.0);
        if turns.len() >= TURNS_MAX {
            // The largest are kept: they serve the small, too.
            let waiting = turns.iter().enumerate().filter(|(_, turn)| turn.at.is_none());
            let smallest = waiting.min_by_key(|(_, turn)| turn.keys_left).filter(|(_, turn)| turn.keys_left < keys).map(|(place, _)| place);
            let Some(place) = smallest else { return };
            turns.remove(place);
        }
        if !broken(Mutant::TurnWithheld) {
            turns.push(Exemption { until: now.0.saturating_add(FIRST_NS), at: None, keys_left: keys });
        }
    }

    /// Whether the transaction at `timestamp` has a turn, and may read so many keys more by it.
    fn take_turn(&mut self, now: Time, timestamp: Timestamp, keys: usize) -> bool {
        let Some(turns) = self.turns.get_mut(&timestamp.client) else { return false };
        // What lies further ahead is from a clock that was wrong.
        turns.retain(|turn| turn.until > now.0 && turn.until - now.0 <= FIRST_NS);
        let begun = turns.iter().position(|turn| turn.at == Some(timestamp));
        // The smallest that is large enough: whoever reads more needs the larger ones.
        let waiting = turns.iter().enumerate().filter(|(_, turn)| turn.at.is_none() && turn.keys_left >= keys);
        let fitting = waiting.min_by_key(|(_, turn)| turn.keys_left).map(|(place, _)| place);
        let Some(turn) = begun.or(fitting).and_then(|place| turns.get_mut(place)).filter(|turn| turn.keys_left >= keys) else {
            if turns.is_empty() {
                self.turns.remove(&timestamp.client);
            }
            return false;
        };
        (turn.at, turn.keys_left) = (Some(timestamp), turn.keys_left - keys);
        true
    }
}

/// What a note of `key` takes.
fn bytes_of(key: &Key) -> usize {
    NOTE_BYTES + key.as_bytes().len()
}

/// The most that each may have where `all` are to have no more than `room` together.
fn fair_share(mut all: Vec<usize>, room: usize) -> usize {
    all.sort_unstable();
    let (mut left, mut others) = (room, all.len());
    for one in all {
        if one > left / others {
            return left / others;
        }
        (left, others) = (left - one, others - 1);
    }
    room
}

impl<M: StorageBackend> Replica<M> {
    /// Whether `from`, which reads `keys` at `timestamp`, is promised that nothing comes between what it is shown and that timestamp.
    pub(super) fn may_promise(&mut self, now: Time, from: Party, timestamp: Timestamp, keys: &[Key]) -> bool {
        if is_past(now, timestamp) {
            return true;
        }
        let is_new = |key: &Key| self.table.readers_of(key).0 < timestamp;
        let is_refused = keys.iter().any(|key| self.held_off.holds(now, key) && is_new(key));
        is_own(from, timestamp) && (!is_refused || self.held_off.take_turn(now, timestamp, keys.len()))
    }

    /// The same of a range, a page of which has so many rows.
    pub(super) fn may_promise_range(&mut self, now: Time, from: Party, timestamp: Timestamp, (range, rows): (&KeyRange, usize)) -> bool {
        if is_past(now, timestamp) {
            return true;
        }
        let is_refused = self.held_off.holds_any_of(now, range) && !self.table.is_range_read(range, timestamp);
        is_own(from, timestamp) && (!is_refused || self.held_off.take_turn(now, timestamp, rows.max(1)))
    }

    /// `transaction`, which its author has brought, has aborted: perhaps since it was promised nothing for what it read.
    pub(super) fn note_aborted_reader(&mut self, now: Time, transaction: &Transaction) {
        let is_held = |held_off: &HeldOff| {
            transaction.reads().iter().any(|read| held_off.holds(now, &read.key))
                || transaction.ranges().iter().any(|range| held_off.holds_any_of(now, range))
        };
        let may_have_turn = transaction.writes().is_empty() || !broken(Mutant::TurnOfReadersAlone);
        if may_have_turn && is_held(&self.held_off) {
            let keys = transaction.reads().len() + KEYS_OF_RANGE * transaction.ranges().len();
            self.held_off.give_turn(now, transaction.timestamp().client, keys);
        }
    }

    /// `transaction` was voted down, since what it writes may have been read above its timestamp.
    pub(super) fn note_held_off(&mut self, now: Time, transaction: &Transaction) {
        let timestamp = transaction.timestamp();
        if is_past(now, timestamp) {
            return;
        }
        let is_held_off = |key: &Key| {
            let (by_key, by_range) = self.table.readers_of(key);
            [by_key, by_range].iter().any(|reader| *reader > timestamp && reader.client != timestamp.client)
        };
        let keys = transaction.writes().iter().map(|write| &write.key).filter(|key| self.table.holds(key) && is_held_off(key));
        for key in keys.take(KEYS_OF_ONE_MAX) {
            self.held_off.note(now, key, timestamp.client);
        }
    }
}

/// Whether the timestamp names the reader, or nobody, as those of the past do. Else one could hold a client off in that client's own name, which
/// counts for nothing.
fn is_own(from: Party, timestamp: Timestamp) -> bool {
    let is_reader = |author| matches!(from, Party::Client(client, _) if client == author);
    timestamp.author().is_none_or(is_reader) || broken(Mutant::OthersNamePromised)
}

fn is_past(now: Time, timestamp: Timestamp) -> bool {
    timestamp.time.saturating_add(RECENT_NS) < now.0 && !broken(Mutant::PastUnpromised)
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: u64 = 1_000_000_000_000;

    fn key(number: usize) -> Key {
        Key::from(format!("{number:05}").as_str())
    }

    const WRITER: ClientId = ClientId(1);

    #[test]
    fn a_key_is_promised_to_nobody_for_a_while_and_longer_where_it_happens_again_soon() {
        let (mut held_off, one, other) = (HeldOff::default(), key(1), key(2));
        let range = |low, high| KeyRange::new(key(low), key(high)).expect("it has keys");
        held_off.note(Time(START), &one, WRITER);
        let end = START + FIRST_NS;
        let holds = |held_off: &HeldOff, at| held_off.holds(Time(at), &one);
        assert!(holds(&held_off, START) && holds(&held_off, end - 1) && !holds(&held_off, end));
        assert!(!holds(&held_off, 1), "the clock was set back");
        assert!(!held_off.holds(Time(START), &other));
        assert!(held_off.holds_any_of(Time(START), &range(0, 2)) && !held_off.holds_any_of(Time(START), &range(2, 9)));
        // While it is promised to nobody, it is for others than readers that a write is voted down.
        held_off.note(Time(start_after(START, 1)), &one, WRITER);
        assert!(!holds(&held_off, start_after(START, 1) + FIRST_NS));
        // It happens again soon, and then no more for long.
        let mut at = start_after(START, 1) + FIRST_NS + 1;
        for length in [GROWTH * FIRST_NS, MOST_NS, MOST_NS] {
            held_off.note(Time(at), &one, WRITER);
            assert!(holds(&held_off, at + length - 1) && !holds(&held_off, at + length));
            at += length + SOON * length - 1;
        }
        held_off.note(Time(at + 2), &one, WRITER);
        assert!(!holds(&held_off, at + 2 + FIRST_NS));
    }

    fn start_after(start: u64, ms: u64) -> u64 {
        start + ms * 1_000_000
    }

    fn check_sums(held_off: &HeldOff) {
        let mut shares: BTreeMap<ClientId, usize> = BTreeMap::new();
        held_off.notes.iter().for_each(|(key, note)| *shares.entry(note.writer).or_default() += bytes_of(key));
        assert_eq!((held_off.bytes, &held_off.shares), (shares.values().sum(), &shares));
        assert!(held_off.bytes <= BYTES_MAX);
    }

    #[test]
    fn what_lasts_longest_is_kept_where_there_is_no_room() {
        let mut held_off = HeldOff::default();
        held_off.note(Time(START), &key(0), WRITER);
        let again = START + FIRST_NS + 1;
        held_off.note(Time(again), &key(0), WRITER);
        (1..60_000).for_each(|number| held_off.note(Time(again + 1), &key(number), WRITER));
        check_sums(&held_off);
        assert!(held_off.notes.len() > 10_000 && held_off.holds(Time(again + 1), &key(0)));
        let long = |number: usize| Key::from(format!("{number:05}{}", "x".repeat(1_000)).as_str());
        (0..10_000).for_each(|number| held_off.note(Time(again + 2), &long(number), WRITER));
        check_sums(&held_off);
        assert!(held_off.holds(Time(again + 2), &key(0)), "long keys push out nothing that lasts longer, either");
    }

    #[test]
    fn whose_writers_are_held_off_for_many_keys_pushes_out_no_others() {
        let mut held_off = HeldOff::default();
        let (liars, honest) = ([ClientId(2), ClientId(3)], 60_001..60_101);
        honest.clone().for_each(|number| held_off.note(Time(START), &key(number), WRITER));
        // Theirs last longer, and they come again and again, for others' keys too.
        let mut now = START;
        for _ in 0..6 {
            now += 1_000_000;
            let keys = (0..60_000).chain(honest.clone());
            keys.for_each(|number| held_off.note(Time(now), &key(number), liars[number % 2]));
            check_sums(&held_off);
        }
        assert!(honest.clone().all(|number| held_off.holds(Time(now), &key(number))));
        // Nor do all of them keep a new one out.
        held_off.note(Time(now), &key(70_000), WRITER);
        (0..60_000).for_each(|number| held_off.note(Time(now + 1), &key(number), ClientId(4)));
        assert!(held_off.holds(Time(now), &key(70_000)));
    }

    #[test]
    fn a_share_is_what_each_may_have_where_some_need_less() {
        let share = |all: &[usize], room| fair_share(all.to_vec(), room);
        assert_eq!((share(&[5, 100, 1], 100), share(&[60, 60], 100), share(&[90, 2, 90], 100)), (94, 50, 49));
        assert_eq!((share(&[1, 2], 100), share(&[], 7)), (100, 7));
    }

    #[test]
    fn a_reader_whose_transaction_aborted_is_promised_as_much_once() {
        let (mut held_off, now) = (HeldOff::default(), Time(START));
        let at = |time: u64| Timestamp::new(time, ClientId(5));
        assert!(!held_off.take_turn(now, at(1), 1));
        held_off.give_turn(now, ClientId(5), 3);
        assert!(!held_off.take_turn(now, Timestamp::new(1, ClientId(6)), 1) && !held_off.take_turn(now, at(1), 4));
        assert!(held_off.take_turn(now, at(1), 2) && !held_off.take_turn(now, at(2), 1), "it is one transaction's");
        assert!(held_off.take_turn(now, at(1), 1) && !held_off.take_turn(now, at(1), 1));
        held_off.give_turn(now, ClientId(5), 3);
        assert!(!held_off.take_turn(Time(START + FIRST_NS), at(2), 1) && held_off.turns.is_empty());
        (0..2 * TURNS_MAX).for_each(|_| held_off.give_turn(now, ClientId(5), 1));
        assert_eq!((1..100).filter(|time| held_off.take_turn(now, at(*time), 1)).count(), TURNS_MAX);
    }
}
