//! Requests that came before their time.
//!
//! A replica answers no read and casts no vote before its own clock has reached the timestamp. So whatever is acknowledged lies in the
//! past of `2f + 1` correct replicas' clocks ([`crate::replica_clocks`] builds on that), and nobody can read, or prepare, in the
//! future to stop those who keep to the time. A request that comes early waits here, for the time bound at most. After the clock was
//! set, all wait, until no client relies on what it showed before.

use std::collections::BTreeMap;

use machine::Time;
use mutants::{Mutant, broken};
use types::Party;

use crate::message::Message;
use crate::transaction_state::QuotaOwner;

/// The most that waits, of all parties together, in bytes and in requests.
const BYTES_MAX: usize = 32 << 20;
const REQUESTS_MAX: usize = 16_384;
/// The most that is answered at once; more is due at the next turn.
pub(super) const DUE_MAX: usize = 512;
/// What a request takes beside its bytes.
const REQUEST_BYTES: usize = 256;

/// A request that waits.
#[derive(Debug)]
pub(super) struct EarlyRequest {
    pub from: Party,
    pub message: Message,
    /// When it came.
    pub since: Time,
    bytes: usize,
}

/// What waits for one party, by time, and then in the order of arrival.
#[derive(Debug, Default)]
struct Queue {
    requests: BTreeMap<(u64, u64), EarlyRequest>,
    bytes: usize,
    /// How many of them were taken out in this turn.
    taken: usize,
}

/// All that waits.
#[derive(Debug, Default)]
pub(super) struct EarlyRequests {
    queues: BTreeMap<QuotaOwner, Queue>,
    /// How many ever came.
    numbered: u64,
    requests: usize,
    bytes: usize,
    /// How many of one party's are taken out in this turn.
    each_max: usize,
    /// Until then all wait.
    all_until: Time,
}

impl EarlyRequests {
    /// All wait until `time`.
    pub fn keep_all_until(&mut self, time: Time) {
        self.all_until = time;
    }

    /// Whether a request at `time` is early.
    pub fn is_early(&self, now: Time, time: u64) -> bool {
        now.0 < time || now < self.all_until
    }

    /// Keeps `message`, of so many bytes, until `due`. Gives the request for which there is no room then: the last one of whoever has most.
    pub fn keep(&mut self, now: Time, from: Party, message: Message, due: u64, bytes: usize) -> Option<EarlyRequest> {
        self.numbered += 1;
        let bytes = bytes + REQUEST_BYTES;
        let queue = self.queues.entry(from.into()).or_default();
        queue.requests.insert((due, self.numbered), EarlyRequest { from, message, since: now, bytes });
        queue.bytes += bytes;
        self.bytes += bytes;
        self.requests += 1;
        if self.bytes <= BYTES_MAX && self.requests <= REQUESTS_MAX {
            return None;
        }
        let are_too_many = self.requests > REQUESTS_MAX;
        let size = |queue: &Queue| if are_too_many { queue.requests.len() } else { queue.bytes };
        let most = self.queues.iter().max_by_key(|(_, queue)| size(queue)).map(|(owner, _)| *owner)?;
        let last = *self.queues.get(&most)?.requests.last_key_value()?.0;
        self.take(most, last)
    }

    /// When the first of them is due.
    pub fn deadline(&self) -> Option<Time> {
        self.queues
            .values()
            .filter_map(|queue| queue.requests.first_key_value())
            .map(|((due, _), _)| Time(*due))
            .min()
            .map(|due| due.max(self.all_until))
    }

    /// A turn begins: what it takes out, [`DUE_MAX`], is shared evenly among those of whose requests some are due.
    pub fn begin_turn(&mut self, now: Time) {
        let is_due = |queue: &Queue| queue.requests.first_key_value().is_some_and(|((due, _), _)| !self.is_early(now, *due));
        let parties = self.queues.values().filter(|queue| is_due(queue)).count();
        self.each_max = DUE_MAX.div_ceil(parties.max(1));
        self.queues.values_mut().for_each(|queue| queue.taken = 0);
    }

    /// Takes out the first whose time has come, by its timestamp, of those who have not had their share of the turn. (In the order of
    /// timestamps fewer are in one another's way.)
    pub fn next_due(&mut self, now: Time) -> Option<EarlyRequest> {
        let has_share = |queue: &Queue| queue.taken < self.each_max || broken(Mutant::EarlyUnshared);
        let firsts = self.queues.iter().filter(|(_, queue)| has_share(queue));
        let firsts = firsts.filter_map(|(owner, queue)| Some((*queue.requests.first_key_value()?.0, *owner)));
        let (place, owner) = firsts.min().filter(|((due, _), _)| !self.is_early(now, *due))?;
        self.queues.get_mut(&owner)?.taken += 1;
        self.take(owner, place)
    }

    fn take(&mut self, owner: QuotaOwner, place: (u64, u64)) -> Option<EarlyRequest> {
        let queue = self.queues.get_mut(&owner)?;
        let request = queue.requests.remove(&place)?;
        queue.bytes -= request.bytes;
        self.bytes -= request.bytes;
        self.requests -= 1;
        if queue.requests.is_empty() {
            self.queues.remove(&owner);
        }
        Some(request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::{ClientId, Session, Timestamp};

    fn party(number: u64) -> Party {
        Party::Client(ClientId(number), Session(number))
    }

    fn keep(early: &mut EarlyRequests, client: u64, due: u64, bytes: usize) -> Option<Party> {
        let message = Message::Read { request: due, timestamp: Timestamp::new(due, ClientId(client)), keys: Vec::new() };
        early.keep(Time(1), party(client), message, due, bytes).map(|request| request.from)
    }

    #[test]
    fn what_is_due_comes_in_the_order_of_its_time() {
        let mut early = EarlyRequests::default();
        for (client, due) in [(1, 30), (2, 10), (1, 20), (2, 40)] {
            assert_eq!(keep(&mut early, client, due, 1), None);
        }
        assert_eq!(early.deadline(), Some(Time(10)));
        let mut due = |now| {
            early.begin_turn(Time(now));
            std::iter::from_fn(|| early.next_due(Time(now))).map(|request| request.from).collect::<Vec<_>>()
        };
        assert_eq!(due(9), []);
        assert_eq!(due(30), [party(2), party(1), party(1)]);
        assert_eq!(due(40), [party(2)]);
        assert_eq!((early.deadline(), early.bytes, early.queues.len()), (None, 0, 0));
    }

    #[test]
    fn after_the_clock_was_set_all_wait() {
        let mut early = EarlyRequests::default();
        for due in [5, 10, 30] {
            keep(&mut early, 1, due, 1);
        }
        early.keep_all_until(Time(20));
        assert_eq!((early.deadline(), early.is_early(Time(19), 3), early.is_early(Time(20), 3)), (Some(Time(20)), true, false));
        let mut due = |now| {
            early.begin_turn(Time(now));
            std::iter::from_fn(|| early.next_due(Time(now))).count()
        };
        assert_eq!((due(19), due(20), due(30)), (0, 2, 1));
    }

    #[test]
    fn a_turn_is_shared_by_those_whose_requests_are_due() {
        let mut early = EarlyRequests::default();
        for due in 0..2 * DUE_MAX as u64 {
            keep(&mut early, 1, due, 1);
        }
        keep(&mut early, 2, 5_000, 1);
        keep(&mut early, 3, 5_001, 1);
        early.begin_turn(Time(5_000));
        let taken: Vec<Party> = std::iter::from_fn(|| early.next_due(Time(5_000))).map(|request| request.from).collect();
        assert_eq!((taken.len(), taken.last()), (DUE_MAX / 2 + 1, Some(&party(2))));
        early.begin_turn(Time(5_001));
        let taken: Vec<Party> = std::iter::from_fn(|| early.next_due(Time(5_001))).map(|request| request.from).collect();
        assert_eq!((taken.len(), taken.last()), (DUE_MAX / 2 + 1, Some(&party(3))));
    }

    #[test]
    fn whoever_fills_the_room_loses_what_it_brought() {
        let mut early = EarlyRequests::default();
        assert_eq!(keep(&mut early, 1, 5, 1_000), None);
        let lost: Vec<Party> = (0..100).filter_map(|due| keep(&mut early, 2, due, BYTES_MAX / 50)).collect();
        assert!(lost.len() > 50 && lost.iter().all(|lost| *lost == party(2)));
        assert_eq!(keep(&mut early, 3, 5, BYTES_MAX / 50), Some(party(2)), "others find room");
        assert!(early.bytes <= BYTES_MAX);
        let few = (0..2 * REQUESTS_MAX as u64).filter_map(|due| keep(&mut early, 4, due, 0)).count();
        assert!(few > 0 && early.requests <= REQUESTS_MAX);
    }
}
