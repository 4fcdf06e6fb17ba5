//! The normal case: what clients ask is vouched for, proposed, accepted, prepared, decided and delivered.

use std::sync::Arc;

use machine::{OutboxOf, Time};
use mutants::{Mutant, broken};
use types::{ClientId, Digest, Party};

use super::application::{Answer, Application};
use super::message::{Claim, Message, Status};
use super::pool::Heard;
use super::record::Record;
use super::replica::Replica;
use super::request::{BATCH_BYTES_MAX, BATCH_REQUESTS_MAX, PAYLOAD_BYTES_MAX, Request, RequestId, list_digest, replica_of};
use super::windows::{Standing, WINDOW};

/// With so many more requests waiting for each list under way a leader proposes another list.
const REQUESTS_PER_LIST: u64 = 16;
/// How many numbers' votes are said again to a replica that lacks them, each time it says so.
const RESEND_MAX: usize = 16;
/// How many lists are asked for at a time.
const FETCH_LISTS_MAX: usize = 8;

impl<A: Application> Replica<A> {
    /// A client says it itself, or a replica that asks as clients do: its channel proves whose it is.
    pub(super) fn on_request(&mut self, now: Time, from: Party, request: &Request, outbox: &mut OutboxOf<Self>) {
        if (from != request.key.origin() && !broken(Mutant::OriginUnchecked)) || request.payload.len() > PAYLOAD_BYTES_MAX {
            return;
        }
        match self.windows.standing(&request.key) {
            Standing::New => {
                let id = request.id(self.cluster.id());
                match self.pool.hear(now, request, &id) {
                    Heard::Refused => return,
                    Heard::First => self.vouches.push(id),
                    Heard::Again => self.vouches_again.push(id),
                }
                self.has_heard = true;
            }
            Standing::Delivered | Standing::TooOld => {
                if let Some(answer) = self.application.answered(request) {
                    outbox.emit(Answer { key: request.key, answer });
                }
            }
            Standing::TooEarly => {}
        }
    }

    pub(super) fn on_vouch(&mut self, now: Time, from: u16, ids: &[RequestId]) {
        for id in ids {
            if self.may_ask(id.key.client) && self.windows.standing(&id.key) == Standing::New {
                self.pool.vouch(now, from, id);
                self.has_heard = true;
            }
        }
    }

    /// Whether that is a client's name, or a replica's.
    fn may_ask(&self, name: ClientId) -> bool {
        match replica_of(name) {
            Some(replica) => self.cluster.replica_key(replica).is_some(),
            None => self.cluster.permission(name).is_some(),
        }
    }

    /// More is believed now, or due.
    pub(super) fn after_vouching(&mut self, now: Time, outbox: &mut OutboxOf<Self>) {
        for sequence in self.waiting.clone() {
            self.consider(now, sequence, outbox);
        }
        self.propose(now, outbox);
    }

    /// The leader proposes what is due: as much as has come together while earlier lists were under way.
    pub(super) fn propose(&mut self, now: Time, outbox: &mut OutboxOf<Self>) {
        let leads = self.quorum.leader(self.view) == self.me.index && self.is_in_view() && !self.is_replaying();
        // What the view began with is delivered first, so that nothing in it is ordered again.
        let first = self.new_view.as_ref().map_or(0, |(_, _, choice)| choice.last());
        let is_there = self.delivered >= first.max(self.stable_sequence()) && !self.has_diverged;
        while leads && is_there && self.next <= self.high_watermark() {
            let under_way = (self.next - 1).saturating_sub(self.delivered);
            let ready = self.pool.ready() as u64;
            if under_way >= self.options.pipeline || ready == 0 || ready < under_way * REQUESTS_PER_LIST {
                return;
            }
            let (mut ids, mut room) = (Vec::new(), BATCH_BYTES_MAX);
            while ids.len() < BATCH_REQUESTS_MAX
                && let Some((id, bytes)) = self.pool.next_ready(room)
            {
                if self.windows.standing(&id.key) != Standing::New {
                    self.pool.remove(&id.key);
                } else if !self.ordered.contains_key(&id.key) {
                    self.ordered.insert(id.key, self.next);
                    room -= bytes;
                    ids.push(id);
                }
            }
            if ids.is_empty() {
                continue;
            }
            self.propose_list(now, ids, outbox);
        }
    }

    fn propose_list(&mut self, now: Time, ids: Vec<RequestId>, outbox: &mut OutboxOf<Self>) {
        let sequence = self.next;
        self.next += 1;
        let slot = self.slots.entry(sequence).or_default();
        slot.turn_to(list_digest(self.cluster.id(), &ids));
        slot.proposed = Some(self.view);
        slot.ids = Some(ids.into());
        self.waiting.insert(sequence);
        self.consider(now, sequence, outbox);
    }

    /// At each tick: a leader that nobody asks anything proposes an empty list for whoever waits for a checkpoint, and replicas
    /// consider the empty lists that they did not accept at the last tick.
    pub(super) fn pad(&mut self, now: Time, outbox: &mut OutboxOf<Self>) {
        let is_asked = std::mem::take(&mut self.is_asked_to_pad);
        for sequence in self.waiting.clone() {
            self.consider(now, sequence, outbox);
            self.vouch_for_waiting(sequence, outbox);
        }
        let leads = self.quorum.leader(self.view) == self.me.index && self.is_in_view() && !self.has_diverged;
        let is_idle = self.next == self.delivered.max(self.stable_sequence()) + 1 && self.pool.ready() == 0;
        if is_asked && leads && is_idle && self.next <= self.high_watermark() {
            self.propose_list(now, Vec::new(), outbox);
        }
    }

    /// The leader of the view gives a list a number.
    pub(super) fn on_propose(
        &mut self,
        now: Time,
        from: u16,
        (view, sequence): (u64, u64),
        ids: Vec<RequestId>,
        outbox: &mut OutboxOf<Self>,
    ) {
        if !self.is_in_view() || view != self.entered || from != self.quorum.leader(view) || !self.in_log(sequence) {
            return;
        }
        // The first proposal counts: what the view began with, or what its leader said first.
        let digest = list_digest(self.cluster.id(), &ids);
        let slot = self.slots.get(&sequence);
        if slot.is_some_and(|slot| slot.proposed == Some(view)) && !broken(Mutant::AcceptedTwice) {
            // Said again, as to one that has accepted it before it was started anew: what is not in its journal is the leader's vote.
            if slot.is_some_and(|slot| slot.digest == Some(digest)) && !broken(Mutant::ProposedAgainIgnored) {
                self.on_prepare(now, from, Claim { sequence, view, digest }, outbox);
            }
            return;
        }
        let is_committed = slot.is_some_and(|slot| slot.is_committed);
        if is_committed && slot.is_some_and(|slot| slot.digest != Some(digest)) {
            return;
        }
        // An honest leader orders nothing that was delivered, or is under way in its view: it knows both.
        let is_again = |id: &RequestId| {
            self.windows.standing(&id.key) == Standing::Delivered || self.ordered.get(&id.key).is_some_and(|other| *other != sequence)
        };
        let mut keys: Vec<_> = ids.iter().map(|id| id.key).collect();
        keys.sort_unstable();
        let repeats = keys.windows(2).any(|pair| pair[0] == pair[1]);
        if !is_committed && (repeats || ids.iter().any(is_again)) && !broken(Mutant::OrderedAgain) {
            return;
        }
        if sequence > self.delivered {
            self.ordered.extend(keys.into_iter().map(|key| (key, sequence)));
        }
        let slot = self.slots.entry(sequence).or_default();
        slot.turn_to(digest);
        slot.proposed = Some(view);
        slot.ids.get_or_insert_with(|| ids.into());
        slot.prepares.add(from, view, digest);
        self.waiting.insert(sequence);
        self.consider(now, sequence, outbox);
    }

    /// Accepts the list that a number has in this view, once all requests are here and believed to be their clients'.
    pub(super) fn consider(&mut self, now: Time, sequence: u64, outbox: &mut OutboxOf<Self>) {
        let (view, index) = (self.entered, self.me.index);
        let Some(slot) = self.slots.get(&sequence).filter(|slot| slot.proposed == Some(view)) else { return };
        let Some(digest) = slot.digest else { return };
        let has_voted = slot.voted.is_some_and(|(last, _)| last >= view) && !broken(Mutant::AcceptedTwice);
        if self.is_replaying() || !self.is_in_view() || has_voted {
            return;
        }
        let slot = self.slots.get_mut(&sequence).expect("it is there");
        slot.gather(&self.pool);
        let ids = slot.ids.clone();
        // An honest replica believes what it accepts: so f+1 that accepted the list are as good as f+1 that vouch for each request in it.
        let is_backed = slot.is_chosen || slot.is_committed || slot.prepares.count(view, digest) >= self.quorum.weak();
        let is_believed = is_backed || ids.as_deref().is_some_and(|ids| ids.iter().all(|id| self.pool.believes(id)));
        // A leader may fill numbers with nothing where somebody waits for a checkpoint, but not keep others busy with that.
        let is_padding = digest == self.empty && !slot.is_chosen && !slot.is_committed;
        let is_too_much = is_padding && self.padded_at == Some(self.ticks) && !broken(Mutant::PaddingUnlimited);
        if slot.requests.is_none() || !(is_believed || broken(Mutant::UnbelievedAccepted)) || is_too_much {
            return;
        }
        if is_padding {
            self.padded_at = Some(self.ticks);
        }
        // Many small lists cost more than their requests do: they are their leader's.
        let requests = slot.requests.as_ref().map_or(0, |requests| requests.len() as u64);
        outbox.is_for_all |= requests >= REQUESTS_PER_LIST;
        let claim = Claim { sequence, view, digest };
        self.log_list(sequence);
        if !broken(Mutant::AcceptedUnlogged) {
            self.log(&Record::Accepted(claim));
        }
        self.waiting.remove(&sequence);
        let began_with = self.new_view.as_ref().map_or(0, |(_, _, choice)| choice.last());
        let leads = self.quorum.leader(view) == index && sequence > began_with;
        let slot = self.slots.get_mut(&sequence).expect("it is there");
        slot.voted = Some((view, digest));
        slot.prepares.add(index, view, digest);
        let said = match ids {
            Some(ids) if leads => Message::Propose { view, sequence, ids: ids.to_vec() },
            _ => Message::Prepare(claim),
        };
        self.say(&said, outbox);
        self.check_prepared(now, sequence, outbox);
    }

    /// A list is waiting since the last tick, as not all of it is believed: perhaps each request is at another replica. So they tell each other
    /// which of them they vouch for, once a view, rather than when it is these requests' turn among all that is pending.
    fn vouch_for_waiting(&mut self, sequence: u64, outbox: &mut OutboxOf<Self>) {
        let view = self.entered;
        let Some(slot) = self.slots.get_mut(&sequence).filter(|slot| slot.proposed == Some(view)) else { return };
        if slot.is_chosen || slot.is_committed || slot.accepted() == Some(view) || slot.vouched == Some(view) {
            return;
        }
        slot.vouched = Some(view);
        let own: Vec<RequestId> = slot.ids.iter().flat_map(|ids| ids.iter()).filter(|id| self.pool.believes(id)).copied().collect();
        self.vouch_to_all(&own, outbox);
    }

    /// Writes down the requests of a list, once.
    fn log_list(&mut self, sequence: u64) {
        let slot = self.slots.get_mut(&sequence).expect("whoever writes a list has it");
        if let (false, Some(requests)) = (slot.is_logged, &slot.requests) {
            let record = Record::List { sequence, requests: requests.to_vec() };
            slot.is_logged = true;
            if !requests.is_empty() {
                self.log(&record);
            }
        }
    }

    pub(super) fn on_prepare(&mut self, now: Time, from: u16, claim: Claim, outbox: &mut OutboxOf<Self>) {
        if !self.in_log(claim.sequence) || claim.view < self.entered {
            return;
        }
        self.slots.entry(claim.sequence).or_default().prepares.add(from, claim.view, claim.digest);
        if self.waiting.contains(&claim.sequence) {
            self.consider(now, claim.sequence, outbox);
        }
        self.check_prepared(now, claim.sequence, outbox);
    }

    fn check_prepared(&mut self, now: Time, sequence: u64, outbox: &mut OutboxOf<Self>) {
        let needed = if broken(Mutant::PrepareQuorum) { self.quorum.weak() } else { self.quorum.strong() };
        let (view, index, is_in_view) = (self.entered, self.me.index, self.is_in_view());
        let Some(slot) = self.slots.get_mut(&sequence) else { return };
        let Some(claim) = slot.claim(sequence, slot.accepted()).filter(|claim| claim.view == view) else { return };
        if is_in_view && slot.prepared != Some(view) && slot.prepares.count(view, claim.digest) >= needed {
            slot.prepared = Some(view);
            slot.commits.add(index, view, claim.digest);
            if !broken(Mutant::PreparedUnlogged) {
                self.log(&Record::Prepared(claim));
            }
            self.say(&Message::Commit(claim), outbox);
        }
        self.check_committed(now, sequence, outbox);
    }

    pub(super) fn on_commit(&mut self, now: Time, from: u16, claim: Claim, outbox: &mut OutboxOf<Self>) {
        if self.in_log(claim.sequence) {
            self.slots.entry(claim.sequence).or_default().commits.add(from, claim.view, claim.digest);
            self.check_committed(now, claim.sequence, outbox);
        }
    }

    /// A replica knows that a list is decided.
    pub(super) fn on_decided(&mut self, now: Time, from: u16, (sequence, digest): (u64, Digest), outbox: &mut OutboxOf<Self>) {
        if self.in_log(sequence) {
            self.slots.entry(sequence).or_default().decisions.insert(from, digest);
            self.check_committed(now, sequence, outbox);
        }
    }

    /// `2f+1` have prepared a list in one view: it is decided, whether this replica has accepted it or not.
    fn check_committed(&mut self, now: Time, sequence: u64, outbox: &mut OutboxOf<Self>) {
        let needed = if broken(Mutant::CommitQuorum) { self.quorum.weak() } else { self.quorum.strong() };
        let Some(slot) = self.slots.get_mut(&sequence).filter(|slot| !slot.is_committed) else { return };
        let told = if broken(Mutant::DecidedByOne) { 1 } else { self.quorum.weak() };
        let Some(digest) = slot.decided(needed, told) else { return };
        slot.turn_to(digest);
        if digest == self.empty {
            (slot.ids, slot.requests) = (Some([].into()), Some([].into()));
        }
        slot.gather(&self.pool);
        if slot.requests.is_some() {
            slot.is_committed = true;
            self.log_list(sequence);
            if !broken(Mutant::DecidedUnlogged) {
                self.log_with_next(Record::Committed { sequence, digest });
            }
            self.deliver(now, outbox);
        }
    }

    /// Delivers what is decided, in the order of the numbers.
    pub(super) fn deliver(&mut self, now: Time, outbox: &mut OutboxOf<Self>) {
        let before = self.delivered;
        while let Some(requests) = self.next_decided() {
            self.delivered += 1;
            let fresh: Vec<Request> = requests.iter().filter(|request| self.windows.deliver(&request.key)).cloned().collect();
            for request in requests.iter() {
                self.pool.remove(&request.key);
                self.ordered.remove(&request.key);
                // What lies a window back never will be delivered.
                if let Some(number) = request.key.number.checked_sub(WINDOW) {
                    self.pool.remove(&super::request::RequestKey { number, ..request.key });
                }
            }
            let mut answers = Vec::new();
            self.application.deliver(self.delivered, &fresh, &mut answers);
            if !self.is_replaying() {
                answers.into_iter().for_each(|answer| outbox.emit(answer));
            }
            if self.delivered.is_multiple_of(self.options.checkpoint_interval) {
                self.take_checkpoint(outbox);
            }
        }
        if self.delivered > before && !self.is_replaying() {
            outbox.is_for_all = true;
            self.behind_ticks = 0;
            self.note_progress(now);
            self.answer_queries(outbox);
            self.propose(now, outbox);
        }
    }

    fn next_decided(&self) -> Option<Arc<[Request]>> {
        let next = self.slots.get(&(self.delivered + 1)).filter(|slot| slot.is_committed && !self.has_diverged)?;
        next.requests.clone()
    }

    /// Which request has which number in this view, from what is accepted or proposed in it.
    pub(super) fn rebuild_ordered(&mut self) {
        let under_way = self.slots.range(self.delivered + 1..).filter(|(_, slot)| slot.proposed == Some(self.entered));
        let keys = under_way.flat_map(|(sequence, slot)| slot.ids.iter().flat_map(|ids| ids.iter()).map(|id| (id.key, *sequence)));
        self.ordered = keys.collect();
    }

    fn in_log(&self, sequence: u64) -> bool {
        sequence > self.stable_sequence() && sequence <= self.high_watermark()
    }

    pub(super) fn digest_of(&self, requests: &[Request]) -> (Digest, Arc<[RequestId]>) {
        let ids: Arc<[RequestId]> = requests.iter().map(|request| request.id(self.cluster.id())).collect();
        (list_digest(self.cluster.id(), &ids), ids)
    }

    /// Asks for what is missing: another replica each time.
    pub(super) fn fetch_missing(&mut self, outbox: &mut OutboxOf<Self>) {
        let lacks = self.slots.range(self.delivered + 1..).filter(|(_, slot)| slot.requests.is_none());
        let lists: Vec<_> = lacks.filter_map(|(sequence, slot)| Some((*sequence, slot.digest?))).take(FETCH_LISTS_MAX).collect();
        let peer = self.party(self.peer(self.ticks));
        for (sequence, digest) in lists {
            outbox.send(peer, Message::FetchList { sequence, digest });
        }
        let missing = self.pool.wanted(self.wanted_to.take(), BATCH_REQUESTS_MAX);
        self.wanted_to = missing.get(BATCH_REQUESTS_MAX - 1).copied();
        if !missing.is_empty() {
            outbox.send(peer, Message::FetchRequests(missing));
        }
    }

    pub(super) fn on_fetch_requests(&mut self, from: Party, ids: &[RequestId], outbox: &mut OutboxOf<Self>) {
        let mut bytes = 0;
        let found = ids.iter().filter_map(|id| self.pool.request(id));
        let found = found.take_while(|request| {
            bytes += request.payload.len();
            bytes <= BATCH_BYTES_MAX
        });
        let requests: Vec<Request> = found.cloned().collect();
        if !requests.is_empty() {
            outbox.send_large(from, Message::Requests(requests), bytes);
        }
    }

    pub(super) fn on_requests(&mut self, now: Time, requests: &[Request]) {
        for request in requests {
            let id = request.id(self.cluster.id());
            if self.pool.wants(&id) {
                self.pool.hold(now, request, &id);
                self.vouches.push(id);
            }
        }
        self.has_heard = true;
    }

    pub(super) fn on_fetch_list(&mut self, from: Party, sequence: u64, digest: Digest, outbox: &mut OutboxOf<Self>) {
        let slot = self.slots.get(&sequence).filter(|slot| slot.digest == Some(digest));
        if let Some(requests) = slot.and_then(|slot| slot.requests.as_deref()) {
            let bytes = requests.iter().map(|request| request.payload.len()).sum();
            outbox.send_large(from, Message::List { sequence, requests: requests.to_vec() }, bytes);
        }
    }

    pub(super) fn on_list(&mut self, now: Time, sequence: u64, requests: Vec<Request>, outbox: &mut OutboxOf<Self>) {
        let Some(wanted) = self.slots.get(&sequence).filter(|slot| slot.requests.is_none()).and_then(|slot| slot.digest) else { return };
        let (digest, ids) = self.digest_of(&requests);
        if digest != wanted && !broken(Mutant::ListUnchecked) {
            return;
        }
        let slot = self.slots.get_mut(&sequence).expect("it is there");
        if sequence > self.delivered && slot.proposed == Some(self.entered) {
            self.ordered.extend(ids.iter().map(|id| (id.key, sequence)));
        }
        (slot.ids, slot.requests) = (Some(ids), Some(requests.into()));
        self.consider(now, sequence, outbox);
        self.check_committed(now, sequence, outbox);
    }

    /// Says again what a replica lacks that is not as far as this one: once a tick, as that may be much, and says it once in two itself.
    pub(super) fn on_status(&mut self, now: Time, index: u16, status: Status, outbox: &mut OutboxOf<Self>) {
        if !self.told_of_status.may(now, index) && !broken(Mutant::StatusUnlimited) {
            return;
        }
        let from = self.party(index);
        if let Some((view, signature, _)) = self.new_view.as_ref().filter(|(view, ..)| view.view > status.entered) {
            outbox.send(from, Message::NewView(view.clone(), signature.clone()));
        }
        if let Some(stable) = self.stable.as_ref().filter(|stable| stable.sequence > status.stable) {
            outbox.send(from, Message::Stable(stable.clone()));
        }
        let began_with = self.new_view.as_ref().map_or(0, |(_, _, choice)| choice.last());
        let leads = self.quorum.leader(self.entered) == self.me.index;
        let missing = self.slots.range(status.delivered.saturating_add(1)..).take(RESEND_MAX);
        for (sequence, slot) in missing {
            let accepted = slot.claim(*sequence, slot.accepted());
            match (accepted, &slot.ids) {
                (Some(claim), Some(ids)) if leads && *sequence > began_with && claim.view == self.entered => {
                    outbox.send(from, Message::Propose { view: claim.view, sequence: *sequence, ids: ids.to_vec() });
                }
                (Some(claim), _) => outbox.send(from, Message::Prepare(claim)),
                (None, _) => {}
            }
            if let Some(claim) = slot.claim(*sequence, slot.prepared) {
                outbox.send(from, Message::Commit(claim));
            }
            if let (true, Some(digest)) = (slot.is_committed, slot.digest) {
                outbox.send(from, Message::Decided { sequence: *sequence, digest });
            }
        }
    }
}
