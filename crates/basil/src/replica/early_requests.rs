//! Requests that came before their time.
//!
//! A replica answers no read and casts no vote before its own clock has reached the timestamp. So whatever is acknowledged lies in the
//! past of `2f + 1` correct replicas' clocks ([`crate::replica_clocks`] builds on that), and nobody can read, or prepare, in the
//! future to stop those who keep to the time. A request that comes early waits here, for the time bound at most. After the clock was
//! set, all wait, until no client relies on what it showed before; and after a start for a time bound more (`restart`).
//!
//! What is due is taken out and served later, when it is the turn of whoever sent it ([`Machine::take_due`](machine::Machine::take_due)).

use std::collections::{BTreeMap, VecDeque};

use machine::Time;
use types::Party;

use crate::message::Message;
use crate::transaction_state::QuotaOwner;

/// The most that waits, of all parties together, in bytes and in requests.
const BYTES_MAX: usize = 32 << 20;
const REQUESTS_MAX: usize = 16_384;
/// What a request takes beside its bytes.
const REQUEST_BYTES: usize = 256;

/// A request that waits.
#[derive(Debug)]
pub(super) struct EarlyRequest {
    pub from: Party,
    pub message: Message,
    /// When it came.
    pub since: Time,
    place: Place,
    bytes: usize,
}

/// When a request is due, and its number in the order in which all came.
type Place = (u64, u64);

/// What was kept for one party.
#[derive(Debug, Default)]
struct Queue {
    waiting: BTreeMap<Place, EarlyRequest>,
    /// What was taken out as due, in that order, and is not served yet.
    due: VecDeque<EarlyRequest>,
    bytes: usize,
}

impl Queue {
    fn requests(&self) -> usize {
        self.waiting.len() + self.due.len()
    }
}

/// All that was kept.
#[derive(Debug, Default)]
pub(super) struct EarlyRequests {
    queues: BTreeMap<QuotaOwner, Queue>,
    /// Whose each request is that waits.
    waiting: BTreeMap<Place, QuotaOwner>,
    /// How many ever came.
    numbered: u64,
    requests: usize,
    bytes: usize,
    /// Until then all wait.
    all_until: Time,
}

impl EarlyRequests {
    /// All wait until `time`, those too that were taken out as due.
    pub fn keep_all_until(&mut self, time: Time) {
        self.all_until = time;
        for (owner, queue) in &mut self.queues {
            for request in queue.due.drain(..) {
                self.waiting.insert(request.place, *owner);
                queue.waiting.insert(request.place, request);
            }
        }
    }

    /// Whether a request at `time` is early.
    pub fn is_early(&self, now: Time, time: u64) -> bool {
        now.0 < time || now < self.all_until
    }

    /// Keeps `message`, of so many bytes, until `due`. Gives the request for which there is no room then: the last one of whoever has most.
    pub fn keep(&mut self, now: Time, from: Party, message: Message, due: u64, bytes: usize) -> Option<EarlyRequest> {
        self.numbered += 1;
        let (owner, place, bytes) = (from.into(), (due, self.numbered), bytes + REQUEST_BYTES);
        let queue = self.queues.entry(owner).or_default();
        queue.waiting.insert(place, EarlyRequest { from, message, since: now, place, bytes });
        queue.bytes += bytes;
        self.waiting.insert(place, owner);
        self.bytes += bytes;
        self.requests += 1;
        if self.bytes <= BYTES_MAX && self.requests <= REQUESTS_MAX {
            return None;
        }
        let are_too_many = self.requests > REQUESTS_MAX;
        let size = |queue: &Queue| if are_too_many { queue.requests() } else { queue.bytes };
        let most = self.queues.iter().max_by_key(|(_, queue)| size(queue)).map(|(owner, _)| *owner)?;
        let queue = self.queues.get_mut(&most)?;
        let last = queue.waiting.pop_last().map(|(_, request)| request).or_else(|| queue.due.pop_back())?;
        self.waiting.remove(&last.place);
        self.count_out(most, last.bytes);
        Some(last)
    }

    /// When the first of those is due that were not taken out as due.
    pub fn deadline(&self) -> Option<Time> {
        self.waiting.first_key_value().map(|((due, _), _)| Time(*due).max(self.all_until))
    }

    /// Takes out the first whose time has come, by its timestamp: in this order fewer are in one another's way. Gives who is to be served.
    pub fn take_due(&mut self, now: Time) -> Option<Party> {
        let (place, owner) = self.waiting.first_key_value().map(|(place, owner)| (*place, *owner))?;
        if self.is_early(now, place.0) {
            return None;
        }
        self.waiting.remove(&place);
        let queue = self.queues.get_mut(&owner)?;
        let request = queue.waiting.remove(&place)?;
        let from = request.from;
        queue.due.push_back(request);
        Some(from)
    }

    /// The first of this party's that was taken out as due, to be served now.
    pub fn next_due_of(&mut self, owner: QuotaOwner) -> Option<EarlyRequest> {
        let request = self.queues.get_mut(&owner)?.due.pop_front()?;
        self.count_out(owner, request.bytes);
        Some(request)
    }

    /// Drops what was kept for those who have another key by now, or none: whoever has it did not ask for it.
    pub fn drop_of(&mut self, has_changed: impl Fn(QuotaOwner) -> bool) {
        let (waiting, requests, bytes) = (&mut self.waiting, &mut self.requests, &mut self.bytes);
        self.queues.retain(|owner, queue| {
            let is_kept = !has_changed(*owner);
            if !is_kept {
                queue.waiting.keys().for_each(|place| _ = waiting.remove(place));
                *requests -= queue.requests();
                *bytes -= queue.bytes;
            }
            is_kept
        });
    }

    /// A request of so many bytes is kept no more.
    fn count_out(&mut self, owner: QuotaOwner, bytes: usize) {
        self.bytes -= bytes;
        self.requests -= 1;
        if let Some(queue) = self.queues.get_mut(&owner) {
            queue.bytes -= bytes;
            if queue.requests() == 0 {
                self.queues.remove(&owner);
            }
        }
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

    /// Whose requests are taken out at that time, in their order.
    fn due(early: &mut EarlyRequests, now: u64) -> Vec<Party> {
        std::iter::from_fn(|| early.take_due(Time(now))).collect()
    }

    /// Serves all of this client's that were taken out; gives when they were due.
    fn served(early: &mut EarlyRequests, client: u64) -> Vec<u64> {
        std::iter::from_fn(|| early.next_due_of(party(client).into())).map(|request| request.place.0).collect()
    }

    fn is_empty(early: &EarlyRequests) -> bool {
        early.queues.is_empty() && early.waiting.is_empty() && (early.bytes, early.requests) == (0, 0)
    }

    #[test]
    fn what_is_due_comes_in_the_order_of_its_time() {
        let mut early = EarlyRequests::default();
        for (client, due) in [(1, 30), (2, 10), (1, 20), (2, 40)] {
            assert_eq!(keep(&mut early, client, due, 1), None);
        }
        assert_eq!(early.deadline(), Some(Time(10)));
        assert_eq!(due(&mut early, 9), []);
        assert_eq!(due(&mut early, 30), [party(2), party(1), party(1)]);
        assert_eq!(early.deadline(), Some(Time(40)), "what was taken out is waited for no more");
        assert_eq!(due(&mut early, 40), [party(2)]);
        assert_eq!(served(&mut early, 1), [20, 30]);
        assert_eq!(served(&mut early, 2), [10, 40]);
        assert_eq!(early.deadline(), None);
        assert!(is_empty(&early));
    }

    #[test]
    fn after_the_clock_was_set_all_wait() {
        let mut early = EarlyRequests::default();
        for due in [5, 10, 30] {
            keep(&mut early, 1, due, 1);
        }
        early.keep_all_until(Time(20));
        assert_eq!((early.deadline(), early.is_early(Time(19), 3), early.is_early(Time(20), 3)), (Some(Time(20)), true, false));
        assert_eq!([19, 20, 30].map(|now| due(&mut early, now).len()), [0, 2, 1]);
    }

    #[test]
    fn what_was_taken_out_waits_again_when_the_clock_is_set() {
        let mut early = EarlyRequests::default();
        for due in [5, 10, 30] {
            keep(&mut early, 1, due, 1);
        }
        assert_eq!(due(&mut early, 10).len(), 2);
        early.keep_all_until(Time(20));
        assert_eq!(keep(&mut early, 1, 7, 1), None, "it came meanwhile");
        assert_eq!((served(&mut early, 1), early.deadline()), (vec![], Some(Time(20))));
        assert_eq!(due(&mut early, 20).len(), 3);
        assert_eq!(served(&mut early, 1), [5, 7, 10]);
    }

    #[test]
    fn of_whoever_has_another_key_nothing_is_kept() {
        let mut early = EarlyRequests::default();
        for (client, due) in [(1, 10), (2, 10), (1, 20), (2, 20)] {
            keep(&mut early, client, due, 1);
        }
        assert_eq!(due(&mut early, 10), [party(1), party(2)]);
        early.drop_of(|owner| owner == party(1).into());
        assert_eq!(due(&mut early, 20), [party(2)]);
        assert_eq!((served(&mut early, 1), served(&mut early, 2)), (vec![], vec![10, 20]));
        assert!(is_empty(&early));
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
        // What was taken out and is not served takes room, too.
        while early.take_due(Time(u64::MAX)).is_some() {}
        assert_eq!(keep(&mut early, 5, 5, 0), Some(party(4)));
        for client in [1, 2, 3, 4] {
            served(&mut early, client);
        }
        assert_eq!(early.requests, 1, "the last that was kept");
        due(&mut early, 5);
        assert_eq!(served(&mut early, 5), [5]);
        assert!(is_empty(&early));
    }
}
