//! What a leader does.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use machine::Time;
use mutants::{Mutant, broken};

use super::election::Candidate;
use super::message::{Body, EPOCH_MAX, Entry, History, Leadership, Message, PAGE_BYTES_MAX, PAYLOAD_BYTES_MAX, Promise, Zxid};
use super::record::Record;
use super::replica::{Event, Output, Refused, Replica, Role, Status};
use super::servers::{Servers, Standing};

/// How many messages with entries are under way to one follower.
const UNDER_WAY_MAX: usize = 8;
/// What was sent and is not acknowledged for this part of the timeout is sent again.
const OVERDUE_PART: u64 = 2;
/// How often the timeout an epoch may take to be established while nothing moves.
const STALLED_TIMEOUTS: u64 = 4;

/// A server leads, or is about to.
#[derive(Debug)]
pub(super) struct Leading {
    /// Its epoch, once a majority has said what it has promised.
    epoch: Option<u32>,
    /// Its history when a majority had promised.
    beginning: Option<History>,
    pub is_established: bool,
    since: Time,
    /// When it last came nearer to being established.
    moved_at: Time,
    peers: BTreeMap<u16, Peer>,
    /// What is proposed and not delivered, with how many bytes.
    proposed: VecDeque<(Zxid, usize)>,
    proposed_bytes: usize,
    offer: Option<Offer>,
    is_offer_wanted: bool,
    delivered_at_tick: Zxid,
}

/// A snapshot that others may take over.
#[derive(Debug)]
struct Offer {
    zxid: Zxid,
    bytes: Bytes,
    servers: Servers,
}

/// What a leader knows of another server.
#[derive(Debug)]
struct Peer {
    standing: Standing,
    promised: u32,
    history: History,
    has_promised: bool,
    has_accepted: bool,
    /// The last entry that it said it has.
    reported: Zxid,
    /// The last that it has on its disk, of those that the leader has.
    acked: Zxid,
    /// When that last changed, or nothing was under way.
    moved: Time,
    /// What was sent last, since it is known where its log ends.
    sent: Option<Zxid>,
    under_way: usize,
    /// What it was last told to be delivered.
    told: Option<Zxid>,
    heard: Time,
}

/// Where the log of a follower ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LogEnd {
    /// At an entry that the leader has.
    Known(Zxid),
    /// At one that it has not; what they have in common ends here at the latest.
    Diverged(Zxid),
    /// Before what the leader keeps.
    Behind,
}

impl Leading {
    /// The entry after which the snapshot was taken that is on offer.
    pub fn offered(&self) -> Option<Zxid> {
        self.offer.as_ref().map(|offer| offer.zxid)
    }

    /// Who follows, or has.
    pub fn followers(&self) -> impl Iterator<Item = u16> {
        self.peers.keys().copied()
    }
}

impl Replica {
    pub(super) fn lead(&mut self, now: Time, output: &mut Output) {
        self.role = Role::Leading(Leading {
            epoch: None,
            beginning: None,
            is_established: false,
            since: now,
            moved_at: now,
            peers: BTreeMap::new(),
            proposed: VecDeque::new(),
            proposed_bytes: 0,
            offer: None,
            is_offer_wanted: false,
            delivered_at_tick: self.delivered,
        });
        self.discover(now, output);
    }

    fn leading(&mut self) -> Option<&mut Leading> {
        if let Role::Leading(leading) = &mut self.role { Some(leading) } else { None }
    }

    /// Whether the very first epoch is about to begin, which takes all servers.
    fn is_founding(&self) -> bool {
        self.log.servers().is_empty()
    }

    /// Whether so many servers are enough, this one among them, whose words count.
    fn is_enough(&self, count: usize) -> bool {
        if self.is_founding() && !broken(Mutant::FoundedByMajority) { count == usize::from(self.count) } else { count >= self.majority() }
    }

    /// How many servers count, this one among them, that are as `is` says.
    fn counted(&self, leading: &Leading, is: impl Fn(&Peer) -> bool) -> usize {
        let peers = leading.peers.iter().filter(|(id, peer)| self.counts(**id, peer.standing) && is(peer)).count();
        peers + usize::from(self.counts(self.me, self.standing()))
    }

    /// Whether the word of a server counts: that of everybody but observers before the first entry, and later as that and others name them.
    fn counts(&self, server: u16, standing: Standing) -> bool {
        let may_found = || !standing.gave_up || broken(Mutant::GivenUpFounds);
        server < self.count && if self.is_founding() { may_found() } else { self.log.servers().count(server, standing) }
    }

    /// Whether it leads, and goes on without server `without`: a majority is there that does not need that one's word.
    #[must_use]
    pub fn leads_without(&self, now: Time, without: u16) -> bool {
        let Role::Leading(leading) = &self.role else { return false };
        let heard = |peer: &Peer| peer.has_accepted && peer.heard.after_ms(self.options.timeout_ms) > now;
        let is_other = |id: u16| id != without || broken(Mutant::AskerCounted);
        let peers = leading.peers.iter().filter(|(id, peer)| is_other(**id) && self.counts(**id, peer.standing) && heard(peer)).count();
        leading.is_established && peers + usize::from(self.is_member()) >= self.majority()
    }

    /// Which of its followers has most of its log, of those that may lead and were heard of late.
    pub(super) fn best_follower(&self, now: Time) -> Option<Candidate> {
        let Role::Leading(leading) = &self.role else { return None };
        let is_there = |peer: &Peer| peer.has_accepted && peer.heard.after_ms(self.options.timeout_ms) > now;
        let followers = leading.peers.iter().filter(|(id, peer)| self.counts(**id, peer.standing) && is_there(peer));
        followers.map(|(id, peer)| Candidate { history: History { accepted: self.accepted, last: peer.acked }, server: *id }).max()
    }

    /// A server says that it is quarantined: whatever was heard of it before is worth nothing now.
    pub fn note_quarantined(&mut self, server: u16) {
        if let Role::Leading(leading) = &mut self.role
            && let Some(peer) = leading.peers.get_mut(&server)
        {
            peer.heard = Time::default();
        }
    }

    /// Gives up leading, and takes back what it proposed from entry `first` on, as if it had crashed before that was on its disk: nobody but a
    /// leader counts its own acknowledgement. Gives whether it could: not where that is of an earlier epoch, to whose leader it may have
    /// acknowledged it, or is delivered.
    pub fn take_back(&mut self, first: Zxid, output: &mut Output) -> bool {
        let is_own = self.led_epoch() == Some(first.epoch()) && first.epoch() == self.accepted && first > self.delivered;
        let Some(kept) = self.log.at_or_before(Zxid(first.0.saturating_sub(1))).filter(|kept| is_own && *kept >= self.delivered) else {
            return false;
        };
        self.stop_leading();
        if !broken(Mutant::RefusedKept) {
            self.log.truncate(kept);
            output.write(&Record::Truncate(kept));
        }
        true
    }

    // Discovery.

    pub(super) fn on_follow(&mut self, now: Time, from: u16, promised: Promise, history: History, standing: Standing, output: &mut Output) {
        if let Role::Looking(looking) = &mut self.role {
            if looking.candidate.server == self.me && from < self.count {
                looking.followed_by(from);
                self.conclude_election(now, output);
            }
            if !matches!(self.role, Role::Leading(_)) {
                return;
            }
        }
        let (me, voters, own) = (self.me, self.count, self.history());
        let counts = self.counts(from, standing);
        let Some(leading) = self.leading() else { return };
        let is_newer = history > own && counts && !leading.is_established && !broken(Mutant::NewerFollowerLeft);
        // It obeys another one, in this epoch or a later: there must be one after that. An observer follows whoever leads.
        let may_depose = from < voters || broken(Mutant::DeposedByObserver);
        let obeys_other = |epoch| may_depose && (promised.epoch > epoch || (promised.epoch == epoch && promised.to != me));
        if is_newer {
            self.yield_to(now, from, history, output);
            return;
        }
        if leading.epoch.is_some_and(obeys_other) {
            self.look(now, output);
            return;
        }
        let acked = leading.peers.get(&from).filter(|peer| peer.standing.incarnation == standing.incarnation);
        let acked = acked.map_or((Zxid::default(), false), |peer| (peer.acked, peer.has_accepted));
        let peer = Peer { promised: promised.epoch, acked: acked.0, has_accepted: acked.1, ..Peer::new(now, standing, history) };
        leading.peers.insert(from, peer);
        match leading.epoch {
            Some(epoch) => output.sends.push((from, Message::NewEpoch { epoch })),
            None => self.discover(now, output),
        }
    }

    /// Once enough follow: an epoch above all that they have promised.
    fn discover(&mut self, now: Time, output: &mut Output) {
        let Role::Leading(leading) = &self.role else { return };
        if leading.epoch.is_some() || !self.is_enough(self.counted(leading, |_| true)) {
            return;
        }
        let highest = leading.peers.values().map(|peer| peer.promised).fold(self.promise.epoch, u32::max);
        // Servers that have had so many leaders have a mistake; without one this takes centuries.
        let Some(epoch) = highest.checked_add(1).filter(|epoch| *epoch <= EPOCH_MAX) else { return };
        output.sends.extend(leading.peers.keys().map(|follower| (*follower, Message::NewEpoch { epoch })));
        self.promise(Promise { epoch, to: self.me }, output);
        if let Some(leading) = self.leading() {
            leading.epoch = Some(epoch);
        }
        self.synchronize(now, output);
    }

    pub(super) fn on_promise(&mut self, now: Time, from: u16, epoch: u32, history: History, standing: Standing, output: &mut Output) {
        let own = self.history();
        let counts = self.counts(from, standing);
        let Some(leading) = self.leading().filter(|leading| leading.epoch == Some(epoch)) else { return };
        if history > own && counts && !leading.is_established && !broken(Mutant::NewerFollowerLeft) {
            self.yield_to(now, from, history, output);
            return;
        }
        let peer = leading.peers.entry(from).or_insert_with(|| Peer::new(now, standing, history));
        peer.renew(now, standing);
        (peer.history, peer.has_promised, peer.promised) = (history, true, epoch);
        (peer.reported, peer.sent, peer.told, peer.under_way) = (history.last, None, None, 0);
        self.synchronize(now, output);
    }

    // Synchronization.

    /// Once enough have promised: the epoch begins with this server's history.
    fn synchronize(&mut self, now: Time, output: &mut Output) {
        let Role::Leading(leading) = &self.role else { return };
        let Some(epoch) = leading.epoch.filter(|_| leading.beginning.is_none()) else { return };
        if !self.is_enough(self.counted(leading, |peer| peer.has_promised)) {
            return;
        }
        if self.is_founding() {
            let incarnation = |server| match leading.peers.get(&server) {
                Some(peer) => peer.standing.incarnation,
                None => self.incarnation,
            };
            let founders = (0..self.count).map(incarnation).collect();
            self.append(Entry { zxid: Zxid::new(epoch, 1), body: Body::Founders(founders) }, output);
        }
        let beginning = self.history();
        self.accept(epoch, output);
        if let Some(leading) = self.leading() {
            leading.beginning = Some(beginning);
            leading.moved_at = now;
        }
        self.advance(now, output);
    }

    pub(super) fn on_ack(
        &mut self,
        now: Time,
        from: u16,
        epoch: u32,
        (last, has_accepted): (Zxid, bool),
        standing: Standing,
        output: &mut Output,
    ) {
        let is_known = self.log.has(last);
        let Some(leading) = self.leading().filter(|leading| leading.epoch == Some(epoch) && leading.beginning.is_some()) else { return };
        let Some(peer) = leading.peers.get_mut(&from) else { return };
        peer.renew(now, standing);
        // Who says this has promised, whatever became of its promise on the way.
        peer.has_promised = true;
        peer.has_accepted |= has_accepted;
        peer.under_way = peer.under_way.saturating_sub(1);
        if peer.sent.is_none() || !is_known {
            if peer.reported != last {
                peer.told = None;
            }
            (peer.reported, peer.sent) = (last, None);
        }
        if is_known && last > peer.acked {
            (peer.acked, peer.moved) = (last, now);
            leading.moved_at = now;
        }
        self.advance(now, output);
    }

    /// What a majority has is delivered; first of all that the epoch has begun.
    fn advance(&mut self, now: Time, output: &mut Output) {
        let Role::Leading(leading) = &self.role else { return };
        if leading.beginning.is_none() {
            return;
        }
        let servers = self.log.servers();
        let accepting = leading.peers.iter().filter(|(id, peer)| servers.count(**id, peer.standing) && peer.has_accepted);
        let own = self.is_member().then(|| self.log.last());
        let mut acked: Vec<Zxid> = accepting.map(|(_, peer)| peer.acked).chain(own).collect();
        acked.sort_unstable_by(|one, other| other.cmp(one));
        let Some(committed) = acked.get(self.majority().saturating_sub(1)).copied() else { return };
        if let Some(leading) = self.leading()
            && !leading.is_established
        {
            leading.is_established = true;
            leading.moved_at = now;
            leading.peers.values_mut().for_each(|peer| peer.told = None);
        }
        self.deliver(committed, output);
        let delivered = self.delivered;
        if let Some(leading) = self.leading() {
            let done = leading.proposed.partition_point(|(zxid, _)| *zxid <= delivered);
            leading.proposed_bytes -= leading.proposed.drain(..done).map(|(_, bytes)| bytes).sum::<usize>();
        }
    }

    fn log_end(&self, peer: &Peer) -> LogEnd {
        match self.log.at_or_before(peer.reported) {
            Some(known) if known == peer.reported => LogEnd::Known(known),
            Some(common) => LogEnd::Diverged(common),
            None => LogEnd::Behind,
        }
    }

    // Broadcast.

    /// The epoch that it leads, or is about to.
    #[must_use]
    pub fn led_epoch(&self) -> Option<u32> {
        if let Role::Leading(leading) = &self.role { leading.epoch } else { None }
    }

    /// Whether the epoch has no numbers left.
    fn is_used_up(&self) -> bool {
        let last = self.log.last();
        last.epoch() == self.promise.epoch && last.counter() == u32::MAX
    }

    /// Whether an entry may be proposed here and now.
    ///
    /// # Errors
    /// When this server does not lead, or too much is under way.
    pub fn may_propose(&self) -> Result<(), Refused> {
        let Role::Leading(leading) = &self.role else { return Err(Refused::NotLeading) };
        if !leading.is_established || self.is_used_up() {
            return Err(Refused::NotLeading);
        }
        let is_full = leading.proposed.len() >= self.options.proposals_max || leading.proposed_bytes >= self.options.proposals_bytes_max;
        if is_full { Err(Refused::Busy) } else { Ok(()) }
    }

    /// Proposes an entry: its place.
    ///
    /// # Errors
    /// As [`Replica::may_propose`] and [`Replica::propose_prepared`].
    pub fn propose(&mut self, now: Time, payload: Bytes, output: &mut Output) -> Result<Zxid, Refused> {
        self.may_propose()?;
        self.propose_prepared(now, payload, output)
    }

    /// The same, however much is under way: for what was prepared together. Whoever prepares asks [`Replica::may_propose`] first.
    ///
    /// # Errors
    /// [`Refused::NotLeading`], or [`Refused::TooLong`].
    pub fn propose_prepared(&mut self, now: Time, payload: Bytes, output: &mut Output) -> Result<Zxid, Refused> {
        if self.may_propose() == Err(Refused::NotLeading) {
            return Err(Refused::NotLeading);
        }
        if payload.len() > PAYLOAD_BYTES_MAX {
            return Err(Refused::TooLong);
        }
        let zxid = self.next();
        if let Some(leading) = self.leading() {
            leading.proposed.push_back((zxid, payload.len()));
            leading.proposed_bytes += payload.len();
        }
        self.append(Entry { zxid, body: Body::Payload(payload) }, output);
        if self.count == 1 {
            self.advance(now, output);
        }
        Ok(zxid)
    }

    /// Says what there is to say to followers: to be called after the steps of a turn, so that what was proposed together goes together.
    pub fn flush(&mut self, output: &mut Output) {
        self.send(None, output);
    }

    /// Sends each follower what it lacks; at a tick also to those who lack nothing.
    fn send(&mut self, tick: Option<Time>, output: &mut Output) {
        let Role::Leading(leading) = &self.role else { return };
        let Some((epoch, beginning)) = leading.epoch.zip(leading.beginning) else { return };
        let leadership = Leadership { epoch, beginning, is_established: leading.is_established };
        let ids: Vec<u16> = leading.peers.iter().filter(|(_, peer)| peer.has_promised).map(|(id, _)| *id).collect();
        for id in ids {
            self.send_to(id, leadership, tick, output);
        }
    }

    fn send_to(&mut self, id: u16, leadership: Leadership, tick: Option<Time>, output: &mut Output) {
        let (delivered, base) = (self.delivered, self.log.base());
        let Role::Leading(leading) = &mut self.role else { return };
        let Some(peer) = leading.peers.get_mut(&id) else { return };
        if peer.sent.is_some_and(|sent| sent < base) {
            // What it lacks is not kept any more.
            (peer.sent, peer.told, peer.reported) = (None, None, peer.acked);
        }
        let Role::Leading(leading) = &self.role else { return };
        let Some(peer) = leading.peers.get(&id) else { return };
        let (mut sent, mut told, mut under_way) = (peer.sent, peer.told, peer.under_way);
        if sent.is_none() {
            if told.is_some() && tick.is_none() {
                return;
            }
            told = Some(Zxid::default());
            match self.log_end(peer) {
                LogEnd::Known(last) => (sent, told) = (Some(last), None),
                LogEnd::Diverged(to) => output.sends.push((id, Message::Truncate { leadership, from: peer.reported, to })),
                LogEnd::Behind => match &leading.offer {
                    Some(Offer { zxid, bytes, servers }) if *zxid >= self.log.base() => {
                        let (zxid, bytes, servers) = (*zxid, bytes.len() as u64, servers.clone());
                        output.sends.push((id, Message::Snapshot { leadership, zxid, bytes, servers }));
                    }
                    _ if !leading.is_offer_wanted => {
                        output.events.push(Event::WantSnapshot);
                        told = None;
                    }
                    _ => told = None,
                },
            }
        }
        let is_wanted = leading.is_offer_wanted || matches!(output.events.last(), Some(Event::WantSnapshot));
        while let Some(previous) = sent
            && (told.is_none() || told < Some(delivered) || (under_way < UNDER_WAY_MAX && previous < self.log.last()))
        {
            let entries = if under_way < UNDER_WAY_MAX { self.log.page(previous) } else { Vec::new() };
            if let Some(last) = entries.last() {
                sent = Some(last.zxid);
                under_way += 1;
            }
            told = Some(delivered);
            output.sends.push((id, Message::Entries { leadership, previous, entries, committed: delivered }));
        }
        let Some(leading) = self.leading() else { return };
        leading.is_offer_wanted = is_wanted;
        if let Some(peer) = leading.peers.get_mut(&id) {
            (peer.sent, peer.told, peer.under_way) = (sent, told, under_way);
        }
    }

    pub(super) fn tick_leading(&mut self, now: Time, output: &mut Output) {
        let timeout_ms = self.options.timeout_ms;
        let Role::Leading(leading) = &self.role else { return };
        let heard = self.counted(leading, |peer| peer.heard.after_ms(timeout_ms) > now);
        let is_new = leading.since.after_ms(timeout_ms) > now;
        let is_stalled = !leading.is_established && leading.moved_at.after_ms(timeout_ms * STALLED_TIMEOUTS) <= now;
        // When the numbers of its epoch are used up, another one begins.
        if is_stalled || self.is_used_up() || (heard < self.majority() && !is_new && !broken(Mutant::LonelyLeader)) {
            self.look(now, output);
            return;
        }
        self.let_join(output);
        let delivered = self.delivered;
        let (base, log_last) = (self.log.base(), self.log.last());
        let Some(leading) = self.leading() else { return };
        leading.delivered_at_tick = delivered;
        for (id, peer) in &mut leading.peers {
            if let (false, Some(epoch)) = (peer.has_promised, leading.epoch) {
                output.sends.push((*id, Message::NewEpoch { epoch }));
            }
            // What is overdue is sent again, and not what is merely under way.
            if peer.sent.is_none_or(|sent| sent <= peer.acked) {
                peer.moved = now;
            } else if peer.moved.after_ms(timeout_ms / OVERDUE_PART) <= now {
                if peer.acked >= base && peer.acked <= log_last {
                    peer.sent = Some(peer.acked);
                }
                (peer.under_way, peer.moved) = (0, now);
            }
            // A heartbeat in any case.
            peer.told = None;
        }
        leading.is_offer_wanted = false;
        if !leading.peers.values().any(|peer| peer.sent.is_none() && peer.reported < base) {
            leading.offer = None;
        }
        self.send(Some(now), output);
    }

    /// How many others follow, those without a voice among them, and how many of them have all that is delivered.
    #[must_use]
    pub fn followers(&self) -> (usize, usize) {
        let Role::Leading(leading) = &self.role else { return (0, 0) };
        let following = leading.peers.values().filter(|peer| peer.has_accepted);
        let whole = leading.peers.values().filter(|peer| peer.has_accepted && peer.acked >= leading.delivered_at_tick);
        (following.count(), whole.count())
    }

    /// Has those take part that began with an empty disk, and are nearly up to date.
    fn let_join(&mut self, output: &mut Output) {
        let Status::Leading { .. } = self.status() else { return };
        let Role::Leading(leading) = &self.role else { return };
        let servers = self.log.servers();
        let joins = |(id, peer): (&u16, &Peer)| {
            let is_other = servers.incarnation(*id) != Some(peer.standing.incarnation);
            let is_near = peer.sent.is_some() && peer.acked >= leading.delivered_at_tick;
            (*id < self.count && is_other && is_near).then_some((*id, peer.standing.incarnation))
        };
        let joining: Vec<(u16, u64)> = leading.peers.iter().filter_map(joins).collect();
        for (server, incarnation) in joining {
            if self.is_used_up() {
                break;
            }
            let zxid = self.next();
            self.append(Entry { zxid, body: Body::Joins { server, incarnation } }, output);
        }
    }

    // Snapshots.

    /// Lets others take over `bytes`, the state as it is after entry `zxid`. One that is not delivered, or not in memory any more, is no use to
    /// anybody: the snapshot will be wanted again.
    pub fn offer(&mut self, zxid: Zxid, bytes: Bytes, output: &mut Output) {
        if zxid > self.delivered || !self.log.has(zxid) {
            return;
        }
        let servers = self.log.servers_at(zxid).clone();
        if let Some(leading) = self.leading() {
            leading.offer = Some(Offer { zxid, bytes, servers });
            leading.is_offer_wanted = false;
        }
        self.send(None, output);
    }

    pub(super) fn on_fetch_page(&mut self, now: Time, from: u16, epoch: u32, zxid: Zxid, offset: u64, output: &mut Output) {
        let Some(leading) = self.leading().filter(|leading| leading.epoch == Some(epoch)) else { return };
        let Some(peer) = leading.peers.get_mut(&from) else { return };
        peer.heard = now;
        leading.moved_at = now;
        let Some(offer) = leading.offer.as_ref().filter(|offer| offer.zxid == zxid) else { return };
        let Ok(start) = usize::try_from(offset) else { return };
        if start <= offer.bytes.len() {
            let end = offer.bytes.len().min(start + PAGE_BYTES_MAX);
            output.sends.push((from, Message::Page { epoch, zxid, offset, bytes: offer.bytes.slice(start..end) }));
        }
    }
}

impl Peer {
    fn new(now: Time, standing: Standing, history: History) -> Self {
        Self {
            standing,
            promised: 0,
            history,
            has_promised: false,
            has_accepted: false,
            reported: history.last,
            acked: Zxid::default(),
            moved: now,
            sent: None,
            under_way: 0,
            told: None,
            heard: now,
        }
    }

    /// It is heard of. Another incarnation has none of what the one before had.
    fn renew(&mut self, now: Time, standing: Standing) {
        if self.standing.incarnation != standing.incarnation {
            *self = Self::new(now, standing, History::default());
        }
        (self.standing, self.heard) = (standing, now);
    }
}
