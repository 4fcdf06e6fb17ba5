//! Who reads the past page by page, so that it stays readable for as long as that takes (beyond the paper).
//!
//! What has left the window is checkpointed, and then the base table has the newest version of each key alone. So before a checkpoint passes a
//! moment that is being read, one ends right there, and the store keeps the base table as it is then ([`Store::keep`](store::Store::keep)). A backup of
//! a table of any size is as of one moment that way, and nobody remembers transactions for longer.
//!
//! What is kept takes room on the disk. So this is for clients that may read every key and say that they read on ([`KEEPS`]), for few at a time, and not for ever.

use machine::Time;
use mutants::{Mutant, broken};
use store::StorageBackend;
use types::{ClientId, Party, Timestamp};

use super::Replica;
use crate::message::KEEPS;

/// The most moments that are kept: each may cost as much of the disk as the table. Each is another client's.
const MOMENTS_MAX: usize = 2;
/// Who has not read for so long does not read on. Until then nobody takes its place but the same client, which may have begun anew.
const IDLE_MS_MAX: u64 = 30_000;
const OWN_IDLE_MS_MAX: u64 = 10_000;
/// No moment is kept for longer.
const READ_MS_MAX: u64 = 6 * 3_600_000;

/// Clients that read the past page by page, each with its moment.
#[derive(Debug, Default)]
pub(super) struct PastReaders(Vec<PastReader>);

#[derive(Debug)]
struct PastReader {
    client: ClientId,
    /// It sees what is below.
    before: Timestamp,
    begun: Time,
    last: Time,
}

impl PastReader {
    fn reads_on(&self, now: Time) -> bool {
        now < self.last.after_ms(IDLE_MS_MAX) && now < self.begun.after_ms(READ_MS_MAX)
    }

    fn is(&self, client: ClientId, before: Timestamp) -> bool {
        self.before == before && (self.client == client || broken(Mutant::MomentForAnybody))
    }
}

impl PastReaders {
    /// `client` reads a page as of `before`. Gives whether that is noted.
    fn renew(&mut self, now: Time, client: ClientId, before: Timestamp) -> bool {
        let known = self.0.iter_mut().find(|reader| reader.is(client, before));
        known.map(|known| known.last = now).is_some()
    }

    /// It will read on. That is not noted where there is no room.
    fn note(&mut self, now: Time, client: ClientId, before: Timestamp) {
        if self.renew(now, client, before) {
            return;
        }
        self.0.retain(|reader| reader.reads_on(now) && (reader.client != client || now < reader.last.after_ms(OWN_IDLE_MS_MAX)));
        let has_one = self.0.iter().any(|reader| reader.client == client);
        if !has_one && self.0.len() < MOMENTS_MAX || broken(Mutant::MomentsUnbounded) {
            self.0.push(PastReader { client, before, begun: now, last: now });
        }
    }

    /// The newest timestamps of the moments that are being read.
    fn moments(&self, now: Time) -> impl Iterator<Item = Timestamp> {
        self.0.iter().filter(move |reader| reader.reads_on(now)).map(|reader| reader.before.predecessor())
    }
}

impl<M: StorageBackend> Replica<M> {
    /// A client reads a page, or says that it will read on. Gives whether it wants an answer.
    pub(super) fn note_past_reader(&mut self, now: Time, from: Party, before: Timestamp, rows: u32) -> bool {
        let Party::Client(client, _) = from else { return true };
        self.past_readers.renew(now, client, before);
        if rows == KEEPS && before.author().is_none() {
            let permission = self.cluster.permission(client);
            if permission.is_some_and(|permission| permission.read_prefixes.iter().any(|prefix| prefix.as_bytes().is_empty())) {
                self.past_readers.note(now, client, before);
            }
        }
        rows != KEEPS
    }

    /// Whether `client` goes on reading a moment that has left the window, and all of it is still here.
    pub(super) fn has_kept(&self, now: Time, client: ClientId, before: Timestamp) -> bool {
        let is_known = self.past_readers.0.iter().any(|reader| reader.is(client, before) && reader.reads_on(now));
        let store = &self.table.store;
        // Below the low watermark this replica votes for nothing more, which changes nothing of what there was.
        is_known && (before > store.watermark() || store.keeps(before.predecessor()))
    }

    /// A transaction was let go of whose end nobody knows, and newer versions were taken over, the newest of that time: what was below it may have been otherwise.
    pub(super) fn forget_moments_below(&mut self, time: u64) {
        self.past_readers.0.retain(|reader| reader.before.time > time);
        self.table.store.keep_only(|kept| kept.time >= time);
    }

    /// How far a checkpoint may go that is to reach `wanted`: it ends at the next moment that is being read.
    pub(super) fn checkpoint_end(&self, now: Time, wanted: Timestamp) -> Timestamp {
        let watermark = self.table.store.watermark();
        let next = self.past_readers.moments(now).filter(|moment| *moment > watermark).min();
        next.filter(|_| !broken(Mutant::MomentPassed)).map_or(wanted, |next| next.min(wanted))
    }

    /// Keeps the moment that the last checkpoint has reached, if it is being read, and lets go those that nobody reads any more.
    pub(super) fn keep_moments(&mut self, now: Time) {
        let watermark = self.table.store.watermark();
        if self.past_readers.moments(now).any(|moment| moment == watermark) {
            self.table.store.keep();
        }
        let readers = &self.past_readers;
        self.table.store.keep_only(|kept| readers.moments(now).any(|moment| moment == kept));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use machine::Outbox;
    use store::{Memory, Options, Store, Version};
    use types::limits::SCAN_ROWS_MAX;
    use types::{Cluster, ClusterId, Direction, Key, KeyRange, Permission, Placement, ReplicaId, Session, ShardId, Value};

    use super::*;
    use crate::message::{Message, Refusal};
    use crate::replica::ReplicaOptions;

    const START: Time = Time(1_000_000_000_000_000);
    /// These may read every key; the last client may not.
    const CLIENTS: u64 = 5;

    fn replica() -> Replica<Memory> {
        let permission = |number: u64| {
            let prefix = if number <= CLIENTS { "" } else { "k" };
            let permission = Permission { public_key: [number as u8; 32], read_prefixes: vec![Key::from(prefix)], ..Permission::default() };
            (ClientId(number), permission)
        };
        let keys = (0..6).map(|index| [100 + index; 32]).collect();
        let clients = (1..=CLIENTS + 1).map(permission).collect();
        let cluster = Cluster::new(ClusterId::new([1; 16]), 1, Placement::Hash, vec![keys], clients).expect("the parts fit");
        let store = Store::open(Memory::new("past"), Options::default()).expect("a new store opens");
        let me = ReplicaId { shard: ShardId(0), index: 0 };
        Replica::open(Arc::new(cluster), me, ReplicaOptions::default(), store, START).expect("it is new")
    }

    fn write(replica: &mut Replica<Memory>, at: Time, value: Option<&str>) {
        for key in ["k1", "k2"] {
            replica
                .table
                .store
                .commit(&Key::from(key), Version { timestamp: Timestamp::new(at.0, ClientId(1)), value: value.map(Value::from) });
        }
    }

    /// Cleans up, and has every checkpoint end, until nothing is left to be done at `now`.
    fn rest(replica: &mut Replica<Memory>, now: Time) {
        let mut out = Outbox::default();
        for round in 0..50 {
            replica.checkpoint_at = now;
            replica.on_tick(now.after_ms(round * 10), &mut out).expect("memory does not fail");
        }
    }

    /// A client says that it will read on.
    fn keep(replica: &mut Replica<Memory>, now: Time, client: u64, before: Time) {
        let mut out = Outbox::default();
        let range = KeyRange::new(Key::from("k"), Key::from("k9")).expect("it has keys");
        let (from, before) = (Party::Client(ClientId(client), Session(1)), Timestamp::above_all_before(before.0));
        replica.on_scan(now, now, from, (1, before), (&range, Direction::Ascending, KEEPS), &mut out).expect("memory does not fail");
        assert!(out.sends.is_empty());
    }

    /// What a client finds of the two keys at `before`: their values, or that they are not kept.
    fn read(replica: &mut Replica<Memory>, now: Time, client: u64, before: Time) -> Result<Vec<Option<Value>>, Refusal> {
        let mut out = Outbox::default();
        let range = KeyRange::new(Key::from("k"), Key::from("k9")).expect("it has keys");
        let (from, before) = (Party::Client(ClientId(client), Session(1)), Timestamp::above_all_before(before.0));
        let what = (&range, Direction::Ascending, SCAN_ROWS_MAX as u32);
        replica.on_scan(now, now, from, (1, before), what, &mut out).expect("memory does not fail");
        match out.sends.pop() {
            Some((_, Message::ScanReply { rows, is_promised, .. })) => {
                assert!(is_promised, "nothing is written there any more");
                Ok(rows.into_iter().map(|row| row.result.value).collect())
            }
            Some((_, Message::Refused { refusal, .. })) => Err(refusal),
            other => panic!("{other:?}"),
        }
    }

    fn values(value: &str) -> Result<Vec<Option<Value>>, Refusal> {
        Ok(vec![Some(Value::from(value)); 2])
    }

    #[test]
    fn a_moment_is_read_on_after_it_has_left_the_window() {
        let mut replica = replica();
        let kept = Refusal::NotKept { kept_ms: replica.options.window_ms };
        let moment = START.after_ms(1_000);
        write(&mut replica, START, Some("old"));
        write(&mut replica, START.after_ms(2_000), Some("new"));
        let mut now = START.after_ms(3_000);
        keep(&mut replica, now, 1, moment);
        for _ in 0..20 {
            now = now.after_ms(IDLE_MS_MAX - 1_000);
            write(&mut replica, now, Some("newer"));
            rest(&mut replica, now);
            assert_eq!(read(&mut replica, now, 1, moment), values("old"));
            assert_eq!(read(&mut replica, now, 2, moment), Err(kept), "it has not begun in time");
        }
        assert!(replica.table.store.watermark() > Timestamp::above_all_before(START.after_ms(60_000).0), "others go on");
        now = now.after_ms(IDLE_MS_MAX);
        assert_eq!(read(&mut replica, now, 1, moment), Err(kept), "it has not read for long");
        rest(&mut replica, now);
        assert_eq!(replica.table.store.statistics().kept_moments, 0);
    }

    #[test]
    fn what_was_deleted_at_a_moment_that_is_kept_is_not_there() {
        let mut replica = replica();
        let (deleted, moment) = (START.after_ms(10), START.after_ms(5_000));
        write(&mut replica, START, Some("old"));
        write(&mut replica, deleted, None);
        let now = START.after_ms(6_000);
        keep(&mut replica, now, 1, moment);
        assert_eq!(read(&mut replica, now, 1, moment), Ok(vec![]));
        write(&mut replica, now, Some("new"));
        rest(&mut replica, now.after_ms(25_000));
        assert_eq!(read(&mut replica, now.after_ms(25_000), 1, moment), Ok(vec![]));
        assert_eq!(replica.table.store.statistics().kept_moments, 1);
    }

    #[test]
    fn few_moments_are_kept_for_those_who_may_read_everything_and_read_on() {
        let mut replica = replica();
        write(&mut replica, START, Some("1"));
        let now = START.after_ms(5_000);
        let moment = |number: u64| START.after_ms(1_000 + number);
        for (client, number) in [(6, 0), (1, 1), (1, 2), (2, 4), (3, 5)] {
            keep(&mut replica, now, client, moment(number));
        }
        // Who reads no further takes no place.
        assert_eq!(read(&mut replica, now, 4, moment(6)), values("1"));
        let later = now.after_ms(25_000);
        write(&mut replica, now, Some("2"));
        rest(&mut replica, later);
        assert_eq!(replica.table.store.statistics().kept_moments, MOMENTS_MAX);
        let mut is_read = |client, number| read(&mut replica, later, client, moment(number)).is_ok();
        assert!(!is_read(6, 0) && !is_read(1, 2) && !is_read(3, 5) && !is_read(4, 6) && !is_read(5, 1));
        assert!(is_read(1, 1) && is_read(2, 4));
        // A client that begins anew lets go what it has not read for a while.
        let anew = later.after_ms(OWN_IDLE_MS_MAX);
        keep(&mut replica, anew, 1, anew);
        assert!(read(&mut replica, anew, 1, moment(1)).is_err() && read(&mut replica, anew, 2, moment(4)).is_ok());
        // Nor is any kept for ever.
        let mut now = anew;
        while now < START.after_ms(READ_MS_MAX + 10_000) {
            now = now.after_ms(IDLE_MS_MAX - 1_000);
            let _ = read(&mut replica, now, 2, moment(4));
        }
        rest(&mut replica, now);
        assert_eq!(replica.table.store.statistics().kept_moments, 0);
    }

    /// A replica that keeps a moment for the first client; the moment; and a time at which it has left the window.
    fn keeping() -> (Replica<Memory>, Time, Time) {
        let (mut replica, moment, now) = (replica(), START.after_ms(1_000), START.after_ms(3_000));
        write(&mut replica, START, Some("old"));
        keep(&mut replica, now, 1, moment);
        write(&mut replica, now, Some("new"));
        let later = now.after_ms(20_000);
        rest(&mut replica, later);
        (replica, moment, later)
    }

    #[test]
    fn what_commits_late_ends_a_moment_and_what_others_ask_does_not() {
        let (mut replica, moment, later) = keeping();
        replica.table.raise_low_watermark(moment.0 + 1);
        let late = |replica: &mut Replica<Memory>, time: u64, value: &str| {
            let version = Version { timestamp: Timestamp::new(time, ClientId(1)), value: Some(Value::from(value)) };
            replica.table.store.commit(&Key::from("k1"), version);
        };
        late(&mut replica, START.0, "old");
        late(&mut replica, START.0 - 5, "older");
        assert_eq!(read(&mut replica, later, 1, moment), values("old"));
        late(&mut replica, START.0 + 5, "late");
        let refused = read(&mut replica, later, 1, moment);
        assert!(matches!(refused, Err(Refusal::NotKept { .. })), "{refused:?}");
    }

    #[test]
    fn what_is_released_ends_the_moments_above_it() {
        let (mut replica, moment, later) = keeping();
        replica.forget_moments_below(moment.0 - 1);
        assert_eq!(read(&mut replica, later, 1, moment), values("old"));
        replica.forget_moments_below(moment.0);
        assert!(read(&mut replica, later, 1, moment).is_err());
        assert_eq!(replica.table.store.statistics().kept_moments, 0);
    }
}
