//! What is kept with each key: who means to write it, and who has read it.

use mutants::{Mutant, broken};
use store::KeyMeta;
use types::Timestamp;

use crate::timestamp_index::{OrderKey, TimestampIndex};

/// Who means to write a key, and who has read it.
#[derive(Debug, Default)]
pub(crate) struct KeyState {
    /// Prepared, undecided writers.
    pub(super) writers: TimestampIndex<()>,
    /// Prepared and committed readers, each with the version it read. Those that are so old that nothing below them is judged any more are let go
    /// when somebody reads the key next, or within a window ([`Store::expire_some`](store::Store::expire_some)), so that nobody has to look them up.
    pub(super) readers: TimestampIndex<Timestamp>,
}

impl KeyState {
    /// Adds a reader, with the version that it read, and lets those go that have expired.
    pub(super) fn add_reader(&mut self, at: OrderKey, version: Timestamp, expired_below: Timestamp) {
        let expired_below = if broken(Mutant::ReadersExpireEarly) { at.0 } else { expired_below };
        self.readers.add_and_remove_below(at, version, expired_below);
    }

    /// Takes out a writer. Gives whether it was the last.
    pub(super) fn remove_writer(&mut self, at: OrderKey) -> bool {
        let was_written = !self.writers.is_empty();
        self.writers.remove(at);
        was_written && self.writers.is_empty()
    }
}

impl KeyMeta for KeyState {
    fn is_empty(&self) -> bool {
        self.writers.is_empty() && self.readers.is_empty()
    }

    fn expire(&mut self, below: Timestamp) {
        self.readers.remove_below(below);
    }

    fn touch(&self) -> u64 {
        self.readers.oldest().map_or(0, |(timestamp, _)| timestamp.time)
    }
}

#[cfg(test)]
mod tests {
    use machine::Time;
    use store::Memory;
    use types::{ClientId, Key};

    use super::super::TransactionTable;
    use super::super::tests::empty_table;
    use super::*;
    use crate::certificate::{Decision, Vote};
    use crate::check::{Knowledge as _, ReaderPast};
    use crate::transaction::{Read, Transaction, Write};
    use crate::transaction_state::{Quota, QuotaOwner};

    const AUTHOR: ClientId = ClientId(1);

    fn at(time: u64) -> Timestamp {
        Timestamp::new(time, AUTHOR)
    }

    #[test]
    fn readers_are_let_go_when_they_are_forgotten_and_somebody_reads_their_key() {
        let mut table = empty_table();
        let key = Key::from("b");
        let read = |table: &mut TransactionTable<Memory>, time: u64| {
            let read = Read { key: key.clone(), version: at(0), dependency: None };
            let reader = Transaction::new(table.cluster.id(), at(time), vec![read], vec![]).expect("it is small");
            table.enter(&reader, Time(0), Quota::prepare(QuotaOwner::Client(AUTHOR)));
            table.restore_vote(reader.id(), Vote::Commit);
            table.conclude(reader.id(), Decision::Commit, None);
        };
        let readers = |table: &TransactionTable<Memory>| {
            let readers =
                table.store.meta(&key).map(|state| state.readers.above(Timestamp::ZERO).map(|(at, _)| at.0.time).collect::<Vec<_>>());
            readers.unwrap_or_default()
        };
        [200, 300].into_iter().for_each(|time| read(&mut table, time));
        table.forget_below(at(250));
        assert_eq!(readers(&table), [200, 300], "nobody looks for them");
        read(&mut table, 400);
        assert_eq!(readers(&table), [300, 400]);
        // Who writes above what is forgotten is judged by all that is left; and who votes below, as nobody does, finds no one there that is forgotten.
        let found = |table: &mut TransactionTable<Memory>, time: u64| {
            let write = Write { key: key.clone(), value: None };
            let writer = Transaction::new(table.cluster.id(), at(time), vec![], vec![write]).expect("it is small");
            matches!(table.knowledge(&writer).expect("memory does not fail").reader_past(&key, at(time)), ReaderPast::Is(_))
        };
        assert_eq!([100, 260, 350, 450].map(|time| found(&mut table, time)), [true, true, true, false]);
        table.forget_below(at(500));
        assert!(!found(&mut table, 100));
        read(&mut table, 600);
        assert_eq!(readers(&table), [600]);
    }
}
