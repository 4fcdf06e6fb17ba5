//! Which keys have undecided writers, in order.

use std::collections::BTreeSet;

use types::Key;

use crate::timestamp_index::OrderKey;

/// The prepared, undecided transactions that write, and their keys. The keys are kept in order while ranges are read or the keys
/// are very many, as only those who read ranges ask for it: otherwise, entering each key and taking it out again would be for nothing.
#[derive(Debug, Default)]
pub(super) struct Writing {
    transactions: BTreeSet<OrderKey>,
    /// All keys of this shard that these write. Undecided transactions are bounded, and so are these.
    keys: Option<BTreeSet<Key>>,
    /// Whether the keys were asked for since [`Writing::forget_unasked`].
    is_asked: bool,
}

impl Writing {
    /// This transaction writes from now on.
    pub fn begin(&mut self, at: OrderKey) {
        self.transactions.insert(at);
    }

    /// It has ended, or will not write.
    pub fn end(&mut self, at: OrderKey) {
        self.transactions.remove(&at);
    }

    /// `key` has a writer.
    pub fn enter(&mut self, key: &Key) {
        if let Some(keys) = self.keys.as_mut().filter(|keys| !keys.contains(key)) {
            keys.insert(key.detached());
        }
    }

    /// `key` has none any more.
    pub fn leave(&mut self, key: &Key) {
        if let Some(keys) = &mut self.keys {
            keys.remove(key);
        }
    }

    pub fn transactions(&self) -> impl Iterator<Item = OrderKey> {
        self.transactions.iter().copied()
    }

    /// The keys of all, in order, if they are kept.
    pub fn keys(&self) -> Option<&BTreeSet<Key>> {
        self.keys.as_ref()
    }

    /// From now on these are the keys of all, and kept up to date.
    pub fn keep(&mut self, keys: BTreeSet<Key>) {
        self.keys = Some(keys);
    }

    /// The keys are asked for.
    pub fn note_asked(&mut self) {
        self.is_asked = true;
    }

    /// To be called now and then: the keys are no longer kept if nobody has asked for them since.
    pub fn forget_unasked(&mut self) {
        if !std::mem::take(&mut self.is_asked) {
            self.keys = None;
        }
    }
}
