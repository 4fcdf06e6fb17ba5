//! What each replica is told now and then, however often it asks: for what takes far more to say than to ask for.

use std::collections::BTreeMap;

use machine::Time;

use super::replica::TICK_MS;

/// When each replica was told last.
#[derive(Debug, Default)]
pub(super) struct Paced(BTreeMap<u16, Time>);

impl Paced {
    /// Whether `index` may be told now: once a tick. Takes it that it is.
    pub fn may(&mut self, now: Time, index: u16) -> bool {
        let may = self.0.get(&index).is_none_or(|last| last.after_ms(TICK_MS) <= now);
        if may {
            self.0.insert(index, now);
        }
        may
    }
}
