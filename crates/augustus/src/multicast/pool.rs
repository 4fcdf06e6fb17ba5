//! Requests that are not delivered yet, and who vouches for them.
//!
//! A channel proves who speaks, to whoever hears it and to nobody else. So each replica tells all others which requests its clients gave it:
//! it *vouches* for them. It also vouches for what `f+1` others vouch for, as one of them is honest, once it has it from one of them. Hence
//!
//! * no honest replica vouches for what no client sent to an honest one, or for what it does not hold; and
//! * once `2f+1` vouch as one honest replica sees it, `f+1` honest ones do, so that every honest one will. Such a request is *due*: an honest
//!   leader can have it ordered, and a replica may count on that.
//!
//! A replica vouches to its leader at once, and to all others with what it says again, if the request is pending by then, or once its client says
//! it again.
//!
//! A replica that restarts forgets what it vouched for, so vouches are said again and again while a request is pending, and before a replica blames
//! its leader, `2f+1` must have done so since the request became due.
//!
//! What is kept is bounded, and charged to whoever brought it: a client has room for [`CLIENT_REQUESTS_MAX`] requests that it gave this replica
//! itself, and each other replica for twice as many that it vouches for in that client's name. Where that comes to very many of all clients, those in whose
//! name it vouches for most lose what never became due.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use machine::{Time, Voters};
use mutants::{Mutant, broken};
use types::{ClientId, Digest, Session};

use super::quorum::Quorum;
use super::request::{Request, RequestId, RequestKey};

/// How many requests of one client are kept that it gave this replica itself.
pub const CLIENT_REQUESTS_MAX: usize = 4_096;
/// How many bytes their payloads may have together.
pub const CLIENT_BYTES_MAX: usize = 16 << 20;
/// For how many requests each other replica may vouch, whoever they are of; more take the place of others.
pub const PEER_REQUESTS_MAX: usize = 1 << 17;
/// So many are dropped at once for those that come, as looking for them takes long.
const DROPPED_AT_ONCE: usize = 64;

/// The least speed at which a leader has to work off what is due, in nanoseconds a request and nanoseconds a byte.
const NS_PER_REQUEST: u64 = 1_000_000;
const NS_PER_BYTE: u64 = 100;

/// The requests.
#[derive(Debug)]
pub struct Pool {
    me: u16,
    quorum: Quorum,
    pending: BTreeMap<RequestKey, Vec<Candidate>>,
    /// Of each client, what it gave this replica itself.
    clients: BTreeMap<ClientId, Usage>,
    /// In how many candidates each replica vouches in each client's name.
    vouched: BTreeMap<ClientId, Vec<usize>>,
    /// And in anybody's.
    peers: Vec<usize>,
    /// What is due, in the order in which it became so.
    due: BTreeMap<u64, RequestId>,
    /// By when each of these has to be delivered.
    deadlines: BTreeSet<(Time, u64)>,
    /// Of these, what this replica has not proposed in this view.
    ready: BTreeMap<u64, RequestId>,
    /// What this replica vouches for.
    own: BTreeSet<RequestId>,
    /// What `f+1` vouch for, and this replica lacks.
    wanted: BTreeSet<RequestId>,
    due_bytes: usize,
    next_ticket: u64,
    leader_timeout: LeaderTimeout,
}

/// What becomes of a request that a client says itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// It has no room, or another one has its name.
    Refused,
    /// This replica vouches for it now.
    First,
    /// The client had given it already.
    Again,
}

/// How long a leader may take.
#[derive(Clone, Copy, Debug)]
pub struct LeaderTimeout {
    /// For a request that is due when nothing else is, in milliseconds.
    pub timeout_ms: u64,
    /// By how much all times are multiplied.
    pub factor: u64,
}

impl LeaderTimeout {
    /// By when what becomes due at `now` has to be delivered, with so much due before it.
    fn deadline(self, now: Time, requests: u64, bytes: u64) -> Time {
        let queue_ns = requests.saturating_mul(NS_PER_REQUEST).saturating_add(bytes.saturating_mul(NS_PER_BYTE));
        now.after_us((queue_ns / 1_000).saturating_add(self.timeout_ms.saturating_mul(1_000)).saturating_mul(self.factor))
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Usage {
    requests: usize,
    bytes: usize,
}

/// One of the requests that bear a name. Only a client that lies gives a name to several.
#[derive(Debug)]
struct Candidate {
    digest: Digest,
    request: Option<Request>,
    is_from_client: bool,
    vouchers: Voters,
    /// Who has said so again since it is due.
    again: Voters,
    /// Its place among what is due, and by when it has to be delivered.
    due: Option<(u64, Time)>,
}

impl Candidate {
    fn bytes(&self) -> usize {
        self.request.as_ref().map_or(0, |request| request.payload.len())
    }
}

impl Pool {
    /// An empty pool of the replica `me`.
    #[must_use]
    pub fn new(me: u16, quorum: Quorum, leader_timeout: LeaderTimeout) -> Self {
        Self {
            me,
            quorum,
            pending: BTreeMap::new(),
            clients: BTreeMap::new(),
            vouched: BTreeMap::new(),
            peers: vec![0; quorum.all()],
            due: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            ready: BTreeMap::new(),
            own: BTreeSet::new(),
            wanted: BTreeSet::new(),
            due_bytes: 0,
            next_ticket: 0,
            leader_timeout,
        }
    }

    /// The client itself says `request`.
    pub fn hear(&mut self, now: Time, request: &Request, id: &RequestId) -> Heard {
        let known = self.pending.get(&id.key).map_or(&[][..], Vec::as_slice);
        if let Some(first) = known.iter().find(|candidate| candidate.is_from_client) {
            return if first.digest == id.digest { Heard::Again } else { Heard::Refused };
        }
        let bytes = request.payload.len();
        if !self.make_room(id.key.client, bytes) {
            return Heard::Refused;
        }
        let usage = self.clients.entry(id.key.client).or_default();
        usage.requests += 1;
        usage.bytes += bytes;
        self.candidate(id).is_from_client = true;
        self.hold(now, request, id);
        Heard::First
    }

    /// The replica `from` vouches for a request.
    pub fn vouch(&mut self, now: Time, from: u16, id: &RequestId) {
        if let Some(candidate) = self.find_mut(id).filter(|candidate| candidate.vouchers.contains(from)) {
            candidate.again.insert(from);
            return;
        }
        // An honest replica vouches for what the client gave it, and for what others were given.
        let candidates = self.pending.get(&id.key).map_or(&[][..], Vec::as_slice);
        let same_name = candidates.iter().filter(|candidate| candidate.vouchers.contains(from)).count();
        let place = usize::from(from);
        let used = self.vouched.get(&id.key.client).map_or(0, |vouched| vouched[place]);
        if same_name >= self.quorum.all() || used >= 2 * CLIENT_REQUESTS_MAX {
            return;
        }
        if self.peers[place] >= PEER_REQUESTS_MAX && (broken(Mutant::VouchesFilled) || !self.make_room_of(from, used)) {
            return;
        }
        self.back(now, id, from);
        let needed = if broken(Mutant::VouchedByFew) { 1 } else { self.quorum.weak() };
        let candidate = self.candidate(id);
        if candidate.request.is_none() && candidate.vouchers.count() >= needed {
            self.wanted.insert(*id);
        }
    }

    /// Whether this replica waits for a request that others vouch for.
    #[must_use]
    pub fn wants(&self, id: &RequestId) -> bool {
        self.wanted.contains(id)
    }

    /// What it waits for, by names, from behind `after`: what nobody gives it is in no other's way.
    #[must_use]
    pub fn wanted(&self, after: Option<RequestId>, max: usize) -> Vec<RequestId> {
        let from = after.filter(|_| !broken(Mutant::SameWantedFirst)).map_or(Bound::Unbounded, Bound::Excluded);
        self.wanted.range((from, Bound::Unbounded)).take(max).copied().collect()
    }

    /// Keeps a request that this replica vouches for from now on.
    pub fn hold(&mut self, now: Time, request: &Request, id: &RequestId) {
        self.wanted.remove(id);
        self.candidate(id).request.get_or_insert_with(|| request.clone());
        self.back(now, id, self.me);
    }

    /// Whether this replica vouches for it: then an honest one had it from the client.
    #[must_use]
    pub fn believes(&self, id: &RequestId) -> bool {
        self.find(id).is_some_and(|candidate| candidate.vouchers.contains(self.me))
    }

    /// The request.
    #[must_use]
    pub fn request(&self, id: &RequestId) -> Option<&Request> {
        self.find(id)?.request.as_ref()
    }

    /// By when the next request has to be delivered.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }

    /// The request that has to be delivered first.
    #[must_use]
    pub fn most_urgent(&self) -> Option<RequestId> {
        self.deadlines.first().map(|(_, ticket)| self.due[ticket])
    }

    /// Whether `2f+1` have vouched for it since it is due. Else some that did before have forgotten it, and it is not due any more.
    pub fn is_still_due(&mut self, id: &RequestId) -> bool {
        let (me, strong) = (self.me, self.quorum.strong());
        let Some(candidate) = self.find_mut(id) else { return false };
        candidate.again.insert(me);
        if candidate.again.count() >= strong {
            return true;
        }
        let mut forgotten = candidate.vouchers;
        (0..64).filter(|index| candidate.again.contains(*index)).for_each(|index| forgotten.remove(index));
        candidate.vouchers = candidate.again;
        let (due, bytes) = (candidate.due.take(), candidate.bytes());
        self.release(id.key.client, forgotten);
        self.cancel(due, bytes);
        false
    }

    /// What is due.
    pub fn due(&self) -> impl Iterator<Item = &RequestId> {
        self.due.values()
    }

    /// Whether anything is pending.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// The names of what is pending, for people.
    pub fn keys(&self) -> impl Iterator<Item = &RequestKey> {
        self.pending.keys()
    }

    /// How many requests this replica can propose.
    #[must_use]
    pub fn ready(&self) -> usize {
        self.ready.len()
    }

    /// Takes the next request to be proposed, if its payload has at most `room` bytes.
    pub fn next_ready(&mut self, room: usize) -> Option<(RequestId, usize)> {
        let (ticket, id) = self.ready.first_key_value().map(|(ticket, id)| (*ticket, *id))?;
        let bytes = self.request(&id).expect("what is due is here").payload.len();
        if bytes > room {
            return None;
        }
        self.ready.remove(&ticket);
        Some((id, bytes))
    }

    /// A view begins in which nothing is proposed yet: its leader has time anew.
    pub fn begin_view(&mut self, now: Time, leader_timeout: LeaderTimeout) {
        self.leader_timeout = leader_timeout;
        self.deadlines.clear();
        self.ready = self.due.clone();
        let (mut requests, mut bytes) = (0, 0);
        for (ticket, id) in self.ready.clone() {
            let deadline = leader_timeout.deadline(now, requests, bytes);
            let candidate = self.find_mut(&id).expect("what is due is pending");
            (candidate.due, candidate.again) = (Some((ticket, deadline)), Voters::default());
            requests += 1;
            bytes += candidate.bytes() as u64;
            self.deadlines.insert((deadline, ticket));
        }
    }

    /// Changes how long the leader may take with what becomes due from now on.
    pub fn set_leader_timeout(&mut self, leader_timeout: LeaderTimeout) {
        self.leader_timeout = leader_timeout;
    }

    /// What this replica vouches for, by names, from behind `after`: however much others vouch for, it is not in the way.
    #[must_use]
    pub fn own_vouches(&self, after: Option<RequestId>, max: usize) -> Vec<RequestId> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.own.range((from, Bound::Unbounded)).take(max).copied().collect()
    }

    /// Forgets all requests of this name: one was delivered, or none ever will be.
    pub fn remove(&mut self, key: &RequestKey) {
        for candidate in self.pending.remove(key).unwrap_or_default() {
            self.forget(key, &candidate);
        }
    }

    fn forget(&mut self, key: &RequestKey, candidate: &Candidate) {
        let id = RequestId { key: *key, digest: candidate.digest };
        self.wanted.remove(&id);
        self.own.remove(&id);
        self.release(key.client, candidate.vouchers);
        if candidate.is_from_client
            && let Some(usage) = self.clients.get_mut(&key.client)
        {
            usage.requests -= 1;
            usage.bytes -= candidate.bytes();
            if usage.requests == 0 {
                self.clients.remove(&key.client);
            }
        }
        self.cancel(candidate.due, candidate.bytes());
    }

    /// These vouch for one request less of a client.
    fn release(&mut self, client: ClientId, vouchers: Voters) {
        let Some(vouched) = self.vouched.get_mut(&client) else { return };
        let counts = vouched.iter_mut().zip(&mut self.peers).zip(0..);
        for ((of_client, of_all), _) in counts.filter(|(_, index)| vouchers.contains(*index)) {
            (*of_client, *of_all) = (*of_client - 1, *of_all - 1);
        }
        if vouched.iter().all(|count| *count == 0) {
            self.vouched.remove(&client);
        }
    }

    /// What was due is not any more.
    fn cancel(&mut self, due: Option<(u64, Time)>, bytes: usize) {
        if let Some((ticket, deadline)) = due {
            self.due.remove(&ticket);
            self.ready.remove(&ticket);
            self.deadlines.remove(&(deadline, ticket));
            self.due_bytes -= bytes;
        }
    }

    /// Notes that `from` vouches for it.
    fn back(&mut self, now: Time, id: &RequestId, from: u16) {
        let (me, strong, ticket) = (self.me, self.quorum.strong(), self.next_ticket);
        let deadline = self.leader_timeout.deadline(now, self.due.len() as u64, self.due_bytes as u64);
        let candidate = self.candidate(id);
        if !candidate.vouchers.insert(from) {
            return;
        }
        if candidate.due.is_none() && candidate.vouchers.contains(me) && candidate.vouchers.count() >= strong {
            (candidate.due, candidate.again) = (Some((ticket, deadline)), Voters::default());
            let bytes = candidate.bytes();
            self.due_bytes += bytes;
            self.next_ticket += 1;
            self.due.insert(ticket, *id);
            self.ready.insert(ticket, *id);
            self.deadlines.insert((deadline, ticket));
        }
        if from == me {
            self.own.insert(*id);
        }
        let (all, place) = (self.quorum.all(), usize::from(from));
        self.vouched.entry(id.key.client).or_insert_with(|| vec![0; all])[place] += 1;
        self.peers[place] += 1;
    }

    /// Whether a replica that vouches for very much may vouch for one more request of a client in whose name it vouches for `used`. Some are dropped for
    /// it that never became due, of the client in whose name it vouches for most: who leaves much behind takes no room from others.
    fn make_room_of(&mut self, from: u16, used: usize) -> bool {
        let place = usize::from(from);
        let most = self.vouched.iter().map(|(client, vouched)| (vouched[place], *client)).max();
        let Some((most, client)) = most.filter(|(most, _)| *most > used) else { return false };
        let low = RequestKey { client, session: Session(0), number: 0 };
        let of_client = self.pending.range((Bound::Included(low), Bound::Unbounded)).take_while(|(key, _)| key.client == client);
        let candidates = of_client.flat_map(|(key, candidates)| candidates.iter().map(|candidate| (*key, candidate)));
        let left = candidates.filter(|(_, candidate)| candidate.due.is_none() && candidate.vouchers.contains(from));
        let ids = left.map(|(key, candidate)| RequestId { key, digest: candidate.digest });
        let ids: Vec<RequestId> = ids.take(DROPPED_AT_ONCE.min(most - used)).collect();
        ids.iter().for_each(|id| self.drop_vouch(from, id));
        !ids.is_empty()
    }

    /// `from` counts no longer among those who vouch for a request that is not due.
    fn drop_vouch(&mut self, from: u16, id: &RequestId) {
        let weak = self.quorum.weak();
        let Some(candidate) = self.find_mut(id) else { return };
        candidate.vouchers.remove(from);
        candidate.again.remove(from);
        let count = candidate.vouchers.count();
        self.release(id.key.client, Voters::of(from));
        if count < weak {
            self.wanted.remove(id);
        }
        // This replica vouches for whatever it holds.
        if count == 0
            && let Some(candidates) = self.pending.get_mut(&id.key)
        {
            candidates.retain(|candidate| candidate.digest != id.digest);
            if candidates.is_empty() {
                self.pending.remove(&id.key);
            }
        }
    }

    /// Whether the client may give this replica one more request. What it left behind long ago makes room, if it never became due.
    fn make_room(&mut self, client: ClientId, bytes: usize) -> bool {
        let usage = self.clients.get(&client).copied().unwrap_or_default();
        if usage.requests < CLIENT_REQUESTS_MAX && usage.bytes + bytes <= CLIENT_BYTES_MAX {
            return true;
        }
        let from = RequestKey { client, session: Session(0), number: 0 };
        let mut own = self.pending.range((Bound::Included(from), Bound::Unbounded)).take_while(|(key, _)| key.client == client);
        let left = own.find(|(_, candidates)| {
            candidates.iter().any(|candidate| candidate.is_from_client) && candidates.iter().all(|candidate| candidate.due.is_none())
        });
        let Some(key) = left.map(|(key, _)| *key) else { return false };
        self.remove(&key);
        let usage = self.clients.get(&client).copied().unwrap_or_default();
        usage.requests < CLIENT_REQUESTS_MAX && usage.bytes + bytes <= CLIENT_BYTES_MAX
    }

    fn find(&self, id: &RequestId) -> Option<&Candidate> {
        self.pending.get(&id.key)?.iter().find(|candidate| candidate.digest == id.digest)
    }

    fn find_mut(&mut self, id: &RequestId) -> Option<&mut Candidate> {
        self.pending.get_mut(&id.key)?.iter_mut().find(|candidate| candidate.digest == id.digest)
    }

    fn candidate(&mut self, id: &RequestId) -> &mut Candidate {
        let candidates = self.pending.entry(id.key).or_default();
        let found = candidates.iter().position(|candidate| candidate.digest == id.digest);
        let index = found.unwrap_or_else(|| {
            candidates.push(Candidate {
                digest: id.digest,
                request: None,
                is_from_client: false,
                vouchers: Voters::default(),
                again: Voters::default(),
                due: None,
            });
            candidates.len() - 1
        });
        &mut candidates[index]
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::world::{CLUSTER, cluster, request};
    use super::*;

    const LEADER_TIMEOUT: LeaderTimeout = LeaderTimeout { timeout_ms: 500, factor: 1 };

    fn pool() -> Pool {
        Pool::new(0, Quorum::of(&cluster(1)).expect("it has 3f+1 replicas"), LEADER_TIMEOUT)
    }

    /// The client gives this replica its request `number` at `ms`, and two others vouch for it.
    fn due(pool: &mut Pool, ms: u64, number: u64) -> RequestId {
        let request = request(1, number, "payload");
        let id = request.id(CLUSTER);
        assert_eq!(pool.hear(Time::default().after_ms(ms), &request, &id), Heard::First);
        for voucher in [1, 2] {
            pool.vouch(Time::default().after_ms(ms), voucher, &id);
        }
        id
    }

    #[test]
    fn a_leader_that_delivers_one_request_has_no_more_time_for_the_next() {
        let mut pool = pool();
        let first = due(&mut pool, 0, 1);
        due(&mut pool, 0, 2);
        assert_eq!(pool.deadline(), Some(Time::default().after_ms(500)));
        pool.remove(&first.key);
        let deadline = pool.deadline().expect("one is due");
        assert!(deadline > Time::default().after_ms(500) && deadline < Time::default().after_ms(502), "{deadline:?}");
    }

    #[test]
    fn what_others_have_forgotten_is_not_due_any_more() {
        let mut pool = pool();
        let id = due(&mut pool, 0, 1);
        pool.vouch(Time::default().after_ms(100), 1, &id);
        assert!(!pool.is_still_due(&id), "one other has said so again");
        assert_eq!((pool.deadline(), pool.due().count(), pool.ready()), (None, 0, 0));
        pool.vouch(Time::default().after_ms(600), 3, &id);
        assert_eq!(pool.due().count(), 1);
        for voucher in [1, 3] {
            pool.vouch(Time::default().after_ms(700), voucher, &id);
        }
        assert!(pool.is_still_due(&id));
    }

    #[test]
    fn a_request_is_not_vouched_for_before_it_is_here() {
        let mut pool = pool();
        let request = request(1, 1, "payload");
        let id = request.id(CLUSTER);
        pool.vouch(Time(0), 1, &id);
        assert!(!pool.wants(&id));
        pool.vouch(Time(0), 2, &id);
        assert!(pool.wants(&id) && !pool.believes(&id) && pool.due().count() == 0);
        pool.hold(Time(0), &request, &id);
        assert!(!pool.wants(&id) && pool.believes(&id) && pool.due().count() == 1);
    }

    #[test]
    fn who_vouches_for_very_much_is_not_heard() {
        let mut pool = pool();
        for number in 1..=3 * CLIENT_REQUESTS_MAX as u64 {
            pool.vouch(Time(0), 1, &request(1, number, "").id(CLUSTER));
        }
        assert_eq!(pool.keys().count(), 2 * CLIENT_REQUESTS_MAX);
        // Nor does a client get more room than it has.
        let mut pool = self::pool();
        for number in 1..=CLIENT_REQUESTS_MAX as u64 + 10 {
            let request = request(1, number, "");
            let heard = pool.hear(Time(0), &request, &request.id(CLUSTER));
            assert_eq!(heard, Heard::First, "what never became due makes room");
        }
        assert_eq!(pool.keys().count(), CLIENT_REQUESTS_MAX);
    }

    #[test]
    fn clients_that_leave_much_behind_take_no_room_from_others() {
        let mut pool = pool();
        let left =
            |client, number| RequestId { key: RequestKey { client: ClientId(client), session: Session(1), number }, digest: [0; 32] };
        for client in 10..=10 + (PEER_REQUESTS_MAX / CLIENT_REQUESTS_MAX) as u64 {
            for voucher in [1, 2] {
                (1..=CLIENT_REQUESTS_MAX as u64).for_each(|number| pool.vouch(Time(0), voucher, &left(client, number)));
            }
        }
        let full =
            |pool: &Pool| pool.peers[1..3].iter().all(|count| (PEER_REQUESTS_MAX - DROPPED_AT_ONCE..=PEER_REQUESTS_MAX).contains(count));
        assert!(full(&pool), "{:?}", pool.peers);
        for number in 1..=10 {
            due(&mut pool, 0, number);
        }
        assert!(pool.due().count() == 10 && full(&pool), "{:?}", pool.peers);
        assert!(pool.pending.len() <= PEER_REQUESTS_MAX + 10, "what nobody vouches for any more is gone");
    }

    #[test]
    fn what_nobody_gives_is_in_no_others_way() {
        let mut pool = pool();
        let ids: Vec<RequestId> = (1..=5).map(|number| request(1, number, "").id(CLUSTER)).collect();
        for voucher in [1, 2] {
            ids.iter().for_each(|id| pool.vouch(Time(0), voucher, id));
        }
        assert_eq!(pool.wanted(None, 3), ids[..3]);
        assert_eq!(pool.wanted(Some(ids[2]), 3), ids[3..]);
    }

    #[test]
    fn what_others_vouch_for_hides_nothing_of_its_own() {
        let mut pool = pool();
        (0..2_000).for_each(|number| pool.vouch(Time(0), 3, &request(1, number, "made up").id(CLUSTER)));
        let own: Vec<RequestId> = (0..3).map(|number| due(&mut pool, 0, 2_000 + number)).collect();
        assert_eq!(pool.own_vouches(None, 2), own[..2]);
        assert_eq!(pool.own_vouches(Some(own[1]), 2), own[2..]);
    }

    #[test]
    fn nothing_is_left_of_what_was_delivered() {
        let mut pool = pool();
        for number in 1..=5 {
            let id = due(&mut pool, 0, number);
            pool.remove(&id.key);
        }
        assert!(pool.is_empty() && pool.clients.is_empty() && pool.own.is_empty() && pool.vouched.is_empty() && pool.peers == [0; 4]);
        assert_eq!((pool.deadline(), pool.due_bytes, pool.ready()), (None, 0, 0));
    }
}
