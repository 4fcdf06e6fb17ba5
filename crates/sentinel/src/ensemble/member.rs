//! The machine.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use machine::Time;
use mutants::{Mutant, broken};
use types::Party;

use super::message::{Forward, Message, Ordered, OrderedBody, Source};
use super::repair::{Comparison, Remedy, Repaired};
use crate::commands::Value;
use crate::limits::{FORWARDS_WAITING_MAX, HEARD_SESSIONS_MAX, HELD_BYTES_MAX};
use crate::order::{self, Body, Event, JournalOp, Output, Replica, Status, Zxid};
use crate::server::{ConnectionId, Input, Now, Outbox, Role, Server};
use crate::state::{Corruption, State};
use crate::transaction::Transaction;
use crate::transactions::Answer;

/// How often a follower tells the leader which sessions were heard of, in milliseconds.
pub(super) const HEARD_EVERY_MS: i64 = 300;

/// How a server takes part.
#[derive(Clone, Copy, Debug)]
pub struct MemberOptions {
    /// Its place among the servers.
    pub me: u16,
    /// After so long without a word of the leader, or without an answer, it gives up on either.
    pub timeout_ms: u64,
    /// What its streams of requests count from: greater than in any run before, as far as clocks go.
    pub first_stream: u64,
}

/// A snapshot that is to be taken.
#[derive(Debug)]
pub struct Snapshot {
    /// The entry after which it is: delivered.
    pub zxid: Zxid,
    /// The state then.
    pub state: State,
}

/// What a turn came to. Everything but `journal` waits until that is durable.
#[derive(Debug, Default)]
pub struct TurnOutput {
    /// To be written, in this order.
    pub journal: Vec<JournalOp>,
    /// To be sent to other servers.
    pub sends: Vec<(u16, Message)>,
    /// To be sent to clients.
    pub bytes: BTreeMap<ConnectionId, Vec<u8>>,
    /// To be closed after that.
    pub close: BTreeSet<ConnectionId>,
    /// Answers to clients of the engine, under their numbers for what they asked.
    pub answers: Vec<(Party, u64, Answer)>,
    /// To be kept on the disk, beside the part of the journal that this turn begins.
    pub snapshot: Option<Snapshot>,
    /// For others who lack what the log does not hold any more: to be given to [`Member::offer`].
    pub offer: Option<Snapshot>,
    /// What operators should read.
    pub notes: Vec<String>,
    /// Why the server has to begin anew from its disk.
    pub reopen: Option<&'static str>,
    /// The server was found wrong, was told to [repair](Member::repair) itself, and is to be replaced so by one [to be compared](Member::to_be_compared).
    pub repair: Option<Remedy>,
    /// It was compared after a repair, and serves.
    pub repaired: Option<Repaired>,
}

impl TurnOutput {
    /// Whether there is anything to do beside writing and sending.
    #[must_use]
    pub fn has_more(&self) -> bool {
        let has_ended = self.reopen.is_some() || self.repair.is_some() || self.repaired.is_some();
        has_ended || self.snapshot.is_some() || self.offer.is_some() || !self.notes.is_empty()
    }
}

/// What was said to clients and depends on an entry that is not delivered yet.
#[derive(Debug)]
struct Held {
    until: Zxid,
    bytes: BTreeMap<ConnectionId, Vec<u8>>,
    close: BTreeSet<ConnectionId>,
    answers: Vec<(Party, u64, Answer)>,
}

/// Answers that wait until something is delivered that is proposed after the last of them was asked for.
#[derive(Debug, Default)]
struct Settling {
    after: Zxid,
    answers: Vec<(Party, u64, Answer)>,
}

/// About how much an answer to a client of the engine takes.
fn answer_bytes((_, _, answer): &(Party, u64, Answer)) -> usize {
    64 + answer.bytes()
}

/// What a follower asks of this leader.
#[derive(Debug, Default)]
struct Stream {
    stream: u64,
    next: u64,
    waiting: VecDeque<(u64, Forward)>,
}

/// This server and its leader come to different digests.
#[derive(Debug)]
struct Disagreement {
    leader: u16,
    epoch: u32,
    zxid: Zxid,
    corruption: Corruption,
    heard: Time,
}

impl Disagreement {
    /// What the leader is told of it.
    fn say(&self) -> (u16, Message) {
        let found = self.corruption.digests.as_ref().map_or_else(Default::default, |digests| digests.1);
        (self.leader, Message::Disagree { epoch: self.epoch, zxid: self.zxid, found })
    }
}

/// One server among several.
pub struct Member {
    pub(super) options: MemberOptions,
    /// What operators call the servers.
    names: Vec<String>,
    pub(super) replica: Replica,
    pub(super) server: Server,
    pub(super) status: Status,
    /// The last entry of the log that the state has.
    applied: Zxid,
    pub(super) turn: TurnOutput,
    held: VecDeque<Held>,
    held_bytes: usize,
    settling: Settling,
    /// As a follower: the stream to the leader, the number of the next request, and of the next that comes back.
    stream: u64,
    sent: u64,
    returned: u64,
    /// What `returned` was at the last tick that saw it change.
    returned_before: u64,
    /// When that was, or nothing was out last.
    moved_at: Time,
    pub(super) heard_at_ms: i64,
    /// As the leader.
    streams: BTreeMap<u16, Stream>,
    disagree: BTreeMap<u16, Zxid>,
    /// The epoch that these disagree with, as its leader or when about to be.
    disagree_epoch: u32,
    disagreement: Option<Disagreement>,
    /// Its state was found to be wrong, and what it held was dropped.
    is_stopped: bool,
    snapshot: Option<Snapshot>,
    offer: Option<Snapshot>,
    /// The state that it came back with, until there is a leader: what its log has beyond that may not be delivered.
    base: Option<Snapshot>,
    /// Since when an offer waits for its entry to be delivered, and for which.
    offer_waits: Option<(Zxid, Time)>,
    /// An offer is being made of the state after this entry.
    offering: Option<Zxid>,
    /// In a drill: the next entry that is proposed is another one than was applied.
    is_proposal_damaged: bool,
    /// It was repaired, and is compared before it serves.
    pub(super) comparison: Option<Comparison>,
    /// What is on its disk is wrong, as far as anybody knows.
    pub(super) is_log_wrong: bool,
    /// It is quarantined, and looks for somebody who leads without it.
    pub(super) seeks_leader: bool,
    /// As the leader: when each server was compared last.
    pub(super) compared_at: BTreeMap<u16, Time>,
}

/// Applies to a state what was ordered at `zxid`, where nobody is served.
///
/// # Errors
/// When it is nothing known, or does not make the state that was foreseen.
pub fn apply_payload(state: &mut State, zxid: Zxid, payload: &Bytes) -> Result<(), Corruption> {
    let ordered = read(zxid, payload)?;
    match ordered.body {
        OrderedBody::Transaction(transaction) => state.apply(&transaction).map(drop),
        OrderedBody::Barrier { .. } | OrderedBody::Comparison { .. } => Ok(()),
    }
}

/// The transaction that was ordered at `zxid`; nothing where it is an entry that changes nothing.
///
/// # Errors
/// When it is nothing known.
pub fn ordered_transaction(zxid: Zxid, payload: &Bytes) -> Result<Option<Transaction>, Corruption> {
    Ok(match read(zxid, payload)?.body {
        OrderedBody::Transaction(transaction) => Some(transaction),
        OrderedBody::Barrier { .. } | OrderedBody::Comparison { .. } => None,
    })
}

fn read(zxid: Zxid, payload: &Bytes) -> Result<Ordered, Corruption> {
    let corrupt = |what: String| Corruption { zxid: zxid.0.cast_signed(), path: None, what, digests: None };
    let ordered = Ordered::decode(payload).map_err(|why| corrupt(format!("what was ordered is nothing known: {why}")))?;
    match &ordered.body {
        OrderedBody::Transaction(transaction) if transaction.zxid != zxid.0.cast_signed() => {
            Err(corrupt(format!("a transaction for {:#x} was ordered here", transaction.zxid)))
        }
        _ => Ok(ordered),
    }
}

/// The time as the order has it.
#[must_use]
pub fn time(now: Now) -> Time {
    Time(now.steady_ms.unsigned_abs().saturating_mul(1_000_000))
}

impl Member {
    /// A server that goes on from its disk: `replica` has [begun](Replica::begin), with `output` to be carried out, and `server` has the state
    /// after the replica's entry `applied`. What the log has after that is applied here.
    ///
    /// # Errors
    /// When the log does not make the state that it made before.
    pub fn new(
        options: MemberOptions,
        replica: Replica,
        server: Server,
        applied: Zxid,
        output: Output,
        now: Now,
    ) -> Result<Self, Corruption> {
        let mut member = Self::with(options, replica, server, applied, now);
        let mut outbox = Outbox::default();
        member.server.play(Role::Looking, &mut outbox);
        if member.replica.last() > applied {
            member.base = Some(Snapshot { zxid: applied, state: member.server.state().frozen() });
        }
        // Whoever decides alone has delivered its log by now, and may not have all of that in memory any more.
        for event in &output.events {
            if let Event::Deliver { zxid, payload } = event
                && *zxid > member.applied
            {
                member.apply(*zxid, payload, &mut outbox)?;
            }
        }
        member.apply_log(&mut outbox)?;
        member.take(now, output);
        Ok(member)
    }

    pub(super) fn with(options: MemberOptions, replica: Replica, server: Server, applied: Zxid, now: Now) -> Self {
        Self {
            options,
            names: Vec::new(),
            replica,
            server,
            status: Status::Looking,
            applied,
            turn: TurnOutput::default(),
            held: VecDeque::new(),
            held_bytes: 0,
            settling: Settling::default(),
            stream: options.first_stream,
            sent: 0,
            returned: 0,
            returned_before: 0,
            moved_at: time(now),
            heard_at_ms: now.steady_ms,
            streams: BTreeMap::new(),
            disagree: BTreeMap::new(),
            disagree_epoch: 0,
            disagreement: None,
            is_stopped: false,
            snapshot: None,
            offer: None,
            base: None,
            offer_waits: None,
            offering: None,
            is_proposal_damaged: false,
            comparison: None,
            is_log_wrong: false,
            seeks_leader: false,
            compared_at: BTreeMap::new(),
        }
    }

    /// What clients see.
    #[must_use]
    pub fn server(&self) -> &Server {
        &self.server
    }

    /// What clients see, to be told what the shell has measured, and to be asked by operators.
    pub fn server_mut(&mut self) -> &mut Server {
        &mut self.server
    }

    /// The order.
    #[must_use]
    pub fn replica(&self) -> &Replica {
        &self.replica
    }

    /// Whether inputs of clients have to wait: too much is under way already.
    #[must_use]
    pub fn is_congested(&self) -> bool {
        let is_busy = matches!(self.status, Status::Leading { .. }) && self.replica.may_propose() == Err(order::Refused::Busy);
        is_busy || self.held_bytes > HELD_BYTES_MAX || self.server.is_forwarding_much()
    }

    /// When [`Member::tick`] is due, in steady time.
    #[must_use]
    pub fn deadline_ms(&self) -> i64 {
        if self.server.corruption().is_some() {
            return if self.seeks_leader { self.heard_at_ms + HEARD_EVERY_MS } else { i64::MAX };
        }
        let order = i64::try_from(self.replica.deadline().0.div_ceil(1_000_000)).unwrap_or(i64::MAX);
        let said = self.heard_at_ms + HEARD_EVERY_MS;
        if self.disagreement.is_some() {
            return said;
        }
        let follows = matches!(self.status, Status::Following { .. });
        let order = if follows && !self.server.heard.is_empty() { order.min(said) } else { order };
        if self.has_forwards() && self.replica.may_propose().is_ok() {
            // They wait for the next turn alone.
            return 0;
        }
        // What is overdue waits until there is room for it.
        if self.replica.may_propose().is_ok() { order.min(self.server.deadline_ms()) } else { order }
    }

    // Inputs.

    /// Something of a client, or of an operator.
    pub fn client(&mut self, now: Now, input: Input) {
        let mut outbox = Outbox::default();
        self.prepare_next();
        self.server.step(now, input, &mut outbox);
        self.carry_out(now, outbox);
    }

    /// Another server says something.
    pub fn hear(&mut self, now: Now, from: u16, message: Message) {
        if self.server.corruption().is_some() || self.turn.reopen.is_some() {
            // It says nothing that others could rely on.
            self.hear_quarantined(from, &message);
            return;
        }
        match message {
            Message::Order(message) if self.disagreement.is_some() => self.hear_disagreeing(now, from, &message),
            Message::Order(message) => {
                self.forget_disagreement(from, &message);
                let mut output = Output::default();
                self.replica.hear(time(now), from, message, &mut output);
                self.take(now, output);
            }
            Message::Forward { stream, number, forward } => self.on_forward(now, from, stream, number, forward),
            Message::Refused { stream, known } if stream == self.stream => {
                self.stream = self.stream.max(known);
                self.begin_stream(now);
            }
            Message::Refused { .. } => {}
            Message::Heard { sessions } if matches!(self.status, Status::Leading { .. }) && !broken(Mutant::HeardIgnored) => {
                self.server.steady_ms = now.steady_ms;
                sessions.into_iter().for_each(|session| self.server.hear_of(session));
            }
            Message::Heard { .. } => {}
            Message::Disagree { epoch, zxid, .. } => self.on_disagree(now, from, epoch, zxid),
            Message::Compare => self.on_compare(now, from),
            Message::Digest { zxid, found } => self.on_digest(from, zxid, found),
            Message::WhoLeads => self.on_who_leads(now, from),
            Message::LeadsWithout => {}
        }
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Now) {
        if self.server.corruption().is_some() || self.turn.reopen.is_some() {
            self.tick_quarantined(now);
            return;
        }
        if let Some(disagreement) = &self.disagreement {
            self.heard_at_ms = now.steady_ms;
            if disagreement.heard.after_ms(self.options.timeout_ms) <= time(now) {
                self.turn.reopen = Some("the leader with which this server disagreed is gone");
                return;
            }
            self.turn.sends.push(disagreement.say());
            return;
        }
        let mut output = Output::default();
        self.replica.tick(time(now), &mut output);
        self.take(now, output);
        let mut outbox = Outbox::default();
        if now.steady_ms >= self.server.deadline_ms() && self.replica.may_propose().is_ok() {
            self.prepare_next();
            self.server.step(now, Input::Tick, &mut outbox);
        }
        self.carry_out(now, outbox);
        self.tick_following(now);
        self.tick_offer(now);
        self.ask_to_compare(now);
    }

    /// It stops, in good order, and no turn follows: what to say to the others.
    pub fn leave(&mut self, now: Now) -> Vec<(u16, Message)> {
        let mut output = Output::default();
        // Who is quarantined says nothing that others could go by.
        if self.server.corruption().is_none() {
            self.replica.leave(time(now), &mut output);
        }
        output.sends.into_iter().map(|(to, message)| (to, Message::Order(message))).collect()
    }

    /// Hashes some nodes anew.
    pub fn scrub(&mut self, now: Now) {
        if self.disagreement.is_some() || self.turn.reopen.is_some() {
            // What its leader proposed may be applied in part: that is no damage of its own.
            return;
        }
        let mut outbox = Outbox::default();
        self.server.scrub(&mut outbox);
        self.carry_out(now, outbox);
    }

    /// Something outside found the state to be wrong.
    pub fn stop(&mut self, now: Now, corruption: Corruption) {
        let mut outbox = Outbox::default();
        self.server.stop(corruption, &mut outbox);
        self.carry_out(now, outbox);
    }

    /// Has a snapshot taken soon, of the state as it is now.
    pub fn begin_snapshot(&mut self) {
        if self.snapshot.is_none() && self.server.corruption().is_none() && self.disagreement.is_none() {
            self.snapshot = Some(Snapshot { zxid: self.replica.last(), state: self.server.state().frozen() });
            self.hold();
        }
    }

    /// Lets others take over the state after entry `zxid`; nothing where that could not be written.
    pub fn offer(&mut self, now: Now, zxid: Zxid, bytes: Option<Bytes>) {
        self.offering = None;
        self.hold();
        let Some(bytes) = bytes else { return };
        if self.disagreement.is_none() && self.server.corruption().is_none() {
            let mut output = Output::default();
            self.replica.offer(zxid, bytes, &mut output);
            self.take(now, output);
        }
    }

    /// In a drill: the next entry that this server proposes is another one than it has applied.
    pub fn damage_proposal(&mut self) {
        self.is_proposal_damaged = true;
    }

    /// Ends a turn: what is to be written, and what is to be said after that.
    pub fn turn(&mut self, now: Now) -> TurnOutput {
        if self.server.corruption().is_none() && self.disagreement.is_none() && self.turn.reopen.is_none() {
            // They have as much time as what came in this turn.
            self.server.begin_turn();
            self.propose_forwards(now);
            self.propose_settling(now);
            let mut output = Output::default();
            self.replica.flush(&mut output);
            self.take(now, output);
            self.take_snapshots();
            if self.server.corruption().is_none() && self.disagreement.is_none() && self.turn.reopen.is_none() {
                self.conclude_comparison(now);
            }
        }
        if self.server.corruption().is_some() && !broken(Mutant::QuarantinedReopens) {
            // Whoever is quarantined comes back from its disk by a repair, or not at all.
            self.turn.reopen = None;
        }
        self.release();
        self.server.begin_turn();
        std::mem::take(&mut self.turn)
    }

    // What came of a step.

    /// The zxid that the next transaction has that is prepared here.
    pub(super) fn prepare_next(&mut self) {
        if let Status::Leading { .. } = self.status {
            self.server.preparer.go_on_before(self.replica.next().0.cast_signed());
        }
    }

    /// Proposes what the server prepared, forwards what it cannot, and holds what it said.
    pub(super) fn carry_out(&mut self, now: Now, outbox: Outbox) {
        let Outbox { bytes, close, ordered, forwards, mut answers, .. } = outbox;
        let is_wrong = self.server.corruption().is_some();
        if is_wrong && !self.is_stopped {
            // Nothing of what it said or prepared before is to be believed. What it says from now on is for operators.
            self.is_stopped = true;
            self.forget_held();
            self.turn.sends.retain(|(_, message)| !matches!(message, Message::Order(_)));
        } else if !is_wrong {
            for ordered in ordered {
                if self.turn.reopen.is_some() {
                    return;
                }
                self.propose(now, ordered);
            }
            let leader = match self.status {
                Status::Following { leader, .. } => Some(leader),
                _ => None,
            };
            for (leader, forward) in leader.into_iter().cycle().zip(forwards) {
                if self.sent == self.returned {
                    self.moved_at = time(now);
                }
                self.turn.sends.push((leader, Message::Forward { stream: self.stream, number: self.sent, forward }));
                self.sent += 1;
            }
        }
        if is_wrong || self.turn.reopen.is_some() {
            answers.clear();
        }
        if !bytes.is_empty() || !close.is_empty() || !answers.is_empty() {
            self.held_bytes += bytes.values().map(Vec::len).sum::<usize>() + answers.iter().map(answer_bytes).sum::<usize>();
            let until = if is_wrong || self.status == Status::Looking { Zxid::default() } else { self.replica.last() };
            self.held.push_back(Held { until, bytes, close, answers });
        }
    }

    /// What was said and depends on what may not be delivered.
    fn forget_held(&mut self) {
        self.held.clear();
        self.held_bytes = 0;
        self.settling = Settling::default();
        self.turn.answers.retain(|(_, _, answer)| matches!(answer, Answer::NotLeading { .. }));
    }

    /// Says this once something is delivered that is proposed from now on: nobody else led before it was asked, then.
    pub(super) fn settle(&mut self, to: Party, number: u64, answer: Answer) {
        self.settling.after = self.replica.last();
        let settling = (to, number, answer);
        self.held_bytes += answer_bytes(&settling);
        self.settling.answers.push(settling);
    }

    /// Proposes an entry that changes nothing, if there is none yet that shows that nobody else led.
    fn propose_settling(&mut self, now: Now) {
        let leads = matches!(self.status, Status::Leading { .. });
        if self.settling.answers.is_empty() || !leads || self.replica.may_propose().is_err() {
            return;
        }
        let mut outbox = Outbox::default();
        if self.replica.last() == self.settling.after {
            self.prepare_next();
            self.server.order_barrier(Source::default(), 0, &mut outbox);
        }
        outbox.answers = std::mem::take(&mut self.settling.answers);
        self.held_bytes -= outbox.answers.iter().map(answer_bytes).sum::<usize>();
        self.carry_out(now, outbox);
    }

    fn propose(&mut self, now: Now, mut ordered: Ordered) {
        if let OrderedBody::Transaction(transaction) = &mut ordered.body {
            assert_eq!(
                transaction.zxid,
                self.replica.next().0.cast_signed(),
                "a transaction is proposed for the place it was prepared for"
            );
            if self.is_proposal_damaged && transaction.writes() {
                self.is_proposal_damaged = false;
                transaction.time_ms ^= 1;
            }
        }
        let compared = if let OrderedBody::Comparison { server } = ordered.body { Some(server) } else { None };
        let mut output = Output::default();
        let proposed = self.replica.propose_prepared(time(now), ordered.encode(), &mut output);
        match proposed {
            Ok(zxid) => {
                self.applied = zxid;
                if let Some(server) = compared {
                    self.compare_at(zxid, server);
                }
                self.take(now, output);
            }
            // It was leading when it prepared: the numbers of its epoch are used up.
            Err(_) => {
                self.turn.reopen = Some("what was prepared has no place in the order");
                self.close_clients(now);
            }
        }
    }

    /// What came of a step of the order: first the state catches up with the log.
    fn take(&mut self, now: Now, output: Output) {
        let Output { sends, events, journal } = output;
        let mut outbox = Outbox::default();
        for event in &events {
            match event {
                // What is appended and delivered in one step may not be in memory any more: the log keeps only so much of what is delivered.
                Event::Deliver { zxid, payload } if *zxid > self.applied => {
                    if let Err(corruption) = self.apply(*zxid, payload, &mut outbox) {
                        self.disagree_at(now, corruption);
                        return;
                    }
                }
                // Mostly it was applied when it was appended.
                Event::Deliver { .. } => {}
                Event::Install { zxid, bytes } => match State::read_snapshot(bytes, self.server.seed(zxid.0)) {
                    Ok(state) => {
                        let is_realtime = self.server.state().is_realtime;
                        // Its clients saw another state. It serves again once it plays its part anew.
                        self.close_clients(now);
                        self.server.install(state.with_realtime(is_realtime));
                        self.applied = *zxid;
                        // What was kept to be offered is no part of this log any more.
                        self.base = None;
                        // A state that comes from one other server is no second opinion beside that one.
                        if !broken(Mutant::InstalledCountsItself) {
                            self.comparison = self.comparison.take().map(|_| Comparison::new(Remedy::Takeover));
                        }
                    }
                    Err(error) => {
                        let what = format!("the leader's snapshot cannot be taken over: {error}");
                        let corruption = Corruption { zxid: zxid.0.cast_signed(), path: None, what, digests: None };
                        self.server.stop(corruption, &mut outbox);
                        self.carry_out(now, outbox);
                        return;
                    }
                },
                Event::WantSnapshot => self.want_snapshot(),
            }
        }
        if self.replica.last() < self.applied && !broken(Mutant::TakenBackKept) {
            // What was taken back is in the state. Nothing is kept of this but what the disk is told.
            self.turn.journal.extend(journal);
            self.turn.reopen = Some("entries that no majority had were taken back");
            self.close_clients(now);
            return;
        }
        if let Err(corruption) = self.apply_log(&mut outbox) {
            self.disagree_at(now, corruption);
            return;
        }
        self.turn.journal.extend(journal);
        self.turn.sends.extend(sends.into_iter().map(|(to, message)| (to, Message::Order(message))));
        self.carry_out(now, outbox);
        self.follow_status(now);
    }

    /// Applies what the log has and the state has not.
    fn apply_log(&mut self, outbox: &mut Outbox) -> Result<(), Corruption> {
        let entries: Vec<order::Entry> = self.replica.entries_after(self.applied).cloned().collect();
        for entry in entries {
            match entry.body {
                Body::Payload(payload) => self.apply(entry.zxid, &payload, outbox)?,
                Body::Founders(_) | Body::Joins { .. } => self.applied = entry.zxid,
            }
        }
        Ok(())
    }

    /// Applies the next entry.
    fn apply(&mut self, zxid: Zxid, payload: &Bytes, outbox: &mut Outbox) -> Result<(), Corruption> {
        let Ordered { source, body } = read(zxid, payload)?;
        let is_own = source.server == self.options.me && source.stream == self.stream && source.number == self.returned;
        self.returned += u64::from(is_own);
        if let OrderedBody::Comparison { server } = body {
            self.compare_at(zxid, server);
        }
        let applied = self.server.apply_ordered(is_own, body, outbox);
        if !broken(Mutant::OtherDigestAcknowledged) {
            applied?;
        }
        self.applied = zxid;
        Ok(())
    }

    /// The state does not come to what the leader foresaw: nothing of this step is kept, or acknowledged.
    fn disagree_at(&mut self, now: Now, corruption: Corruption) {
        let leader = match self.replica.status() {
            Status::Following { leader, epoch } => Some((leader, epoch)),
            // Entries come before the epoch is established, too.
            _ => self.replica.leader(),
        };
        self.turn.notes.push(format!("this server comes to another state than its leader, and does not acknowledge that: {corruption}"));
        self.close_clients(now);
        let Some((leader, epoch)) = leader else {
            self.stop(now, corruption);
            return;
        };
        let zxid = Zxid(corruption.zxid.cast_unsigned());
        let disagreement = Disagreement { leader, epoch, zxid, corruption, heard: time(now) };
        // At once: it may hear in the next moment that it is wrong, and the leader has to know who that was.
        self.turn.sends.push(disagreement.say());
        self.disagreement = Some(disagreement);
        self.heard_at_ms = now.steady_ms;
    }

    /// By these names operators are told of the servers, in the order of their places.
    pub fn name_servers(&mut self, names: &[String]) {
        self.names = names.to_vec();
    }

    pub(super) fn name(&self, server: u16) -> String {
        self.names.get(usize::from(server)).cloned().unwrap_or_else(|| format!("the server at place {server}"))
    }

    /// Serves nobody until there is a leader again.
    fn close_clients(&mut self, now: Now) {
        self.forget_held();
        let mut outbox = Outbox::default();
        self.server.play(Role::Looking, &mut outbox);
        self.turn.bytes.clear();
        self.turn.close.append(&mut outbox.close);
        self.status = Status::Looking;
        self.moved_at = time(now);
        self.streams.clear();
    }

    /// Plays the part that the order says.
    fn follow_status(&mut self, now: Now) {
        let status = self.replica.status();
        if status == self.status || self.server.corruption().is_some() {
            return;
        }
        self.close_clients(now);
        let role = match status {
            Status::Looking => Role::Looking,
            Status::Following { .. } => Role::Following { observes: self.options.me >= self.replica.voters() },
            Status::Leading { .. } => Role::Leading,
        };
        self.server.steady_ms = now.steady_ms;
        let mut outbox = Outbox::default();
        self.server.play(role, &mut outbox);
        self.status = status;
        self.base = self.base.take().filter(|_| status == Status::Looking);
        (self.stream, self.sent, self.returned) = (self.stream.saturating_add(1), 0, 0);
        let note = match status {
            Status::Looking => "looks for a leader".to_owned(),
            Status::Following { leader, epoch } => format!("follows {}, in epoch {epoch}", self.name(leader)),
            Status::Leading { epoch } => format!("leads, in epoch {epoch}"),
        };
        self.turn.notes.push(note);
    }

    // As a follower.

    /// What is at the leader is given up, and what clients do not know of it they have to find out.
    fn begin_stream(&mut self, now: Now) {
        let Status::Following { .. } = self.status else { return };
        if self.sent == self.returned {
            return;
        }
        let status = self.status;
        self.close_clients(now);
        let mut outbox = Outbox::default();
        self.server.play(Role::Following { observes: self.options.me >= self.replica.voters() }, &mut outbox);
        self.status = status;
        (self.stream, self.sent, self.returned) = (self.stream.saturating_add(1), 0, 0);
    }

    fn tick_following(&mut self, now: Now) {
        let Status::Following { leader, .. } = self.status else { return };
        if self.sent == self.returned || self.returned != self.returned_before {
            (self.returned_before, self.moved_at) = (self.returned, time(now));
        } else if self.moved_at.after_ms(self.options.timeout_ms * 4) <= time(now) {
            self.turn.notes.push("requests are lost on their way to the leader: their clients have to ask again".to_owned());
            self.begin_stream(now);
        }
        if now.steady_ms >= self.heard_at_ms + HEARD_EVERY_MS && !self.server.heard.is_empty() {
            self.heard_at_ms = now.steady_ms;
            let sessions = std::mem::take(&mut self.server.heard).into_iter().take(HEARD_SESSIONS_MAX).collect();
            self.turn.sends.push((leader, Message::Heard { sessions }));
        }
    }

    /// While it disagrees, a server listens only for who is right.
    fn hear_disagreeing(&mut self, now: Now, from: u16, message: &order::Message) {
        let Some(disagreement) = self.disagreement.as_mut().filter(|disagreement| disagreement.leader == from) else { return };
        match message {
            order::Message::Entries { leadership, committed, .. } if leadership.epoch == disagreement.epoch => {
                disagreement.heard = time(now);
                if *committed >= disagreement.zxid {
                    let corruption = disagreement.corruption.clone();
                    self.turn.notes.push("a majority agrees with the leader: this server is wrong".to_owned());
                    self.stop(now, corruption);
                }
            }
            order::Message::Entries { .. } | order::Message::Vote { .. } => {
                self.turn.reopen = Some("the leader with which this server disagreed leads no more");
            }
            _ => {}
        }
    }

    // As the leader.

    fn on_forward(&mut self, now: Now, from: u16, stream: u64, number: u64, forward: Forward) {
        let leads = matches!(self.status, Status::Leading { .. });
        let known = self.streams.entry(from).or_default();
        if leads && stream > known.stream && number == 0 {
            // What is left of the stream before was given up by whoever sent it.
            *known = Stream { stream, ..Stream::default() };
        }
        let is_next = number == known.next || (number > known.next && broken(Mutant::ForwardsWithGaps));
        let is_taken = leads && stream == known.stream && is_next && known.waiting.len() < FORWARDS_WAITING_MAX;
        if !is_taken {
            // What was sent before it heard of this is refused with it.
            self.turn.sends.push((from, Message::Refused { stream, known: known.stream }));
            return;
        }
        known.next = number.saturating_add(1);
        known.waiting.push_back((number, forward));
        self.propose_forwards(now);
    }

    /// Whether followers ask for something that was not prepared yet.
    fn has_forwards(&self) -> bool {
        matches!(self.status, Status::Leading { .. }) && self.streams.values().any(|stream| !stream.waiting.is_empty())
    }

    /// Prepares what followers ask for, as far as there is room: of each its share.
    fn propose_forwards(&mut self, now: Now) {
        let from: Vec<u16> = self.streams.iter().filter(|(_, stream)| !stream.waiting.is_empty()).map(|(from, _)| *from).collect();
        for server in from {
            while self.replica.may_propose().is_ok()
                && self.server.may_do_more()
                && let Status::Leading { .. } = self.status
                && let Some(known) = self.streams.get_mut(&server)
                && let Some((number, forward)) = known.waiting.pop_front()
            {
                let source = Source { server, stream: known.stream, number };
                let mut outbox = Outbox::default();
                self.prepare_next();
                if let Err(corruption) = self.server.on_forwarded(now, source, forward, &mut outbox) {
                    self.server.stop(corruption, &mut outbox);
                }
                self.carry_out(now, outbox);
                if self.server.corruption().is_some() {
                    return;
                }
            }
        }
    }

    /// A follower has by now what it disagreed with: it was brought back.
    fn forget_disagreement(&mut self, from: u16, message: &order::Message) {
        if let order::Message::Ack { epoch, last, .. } = message
            && *epoch == self.disagree_epoch
            && self.disagree.get(&from).is_some_and(|at| at <= last)
        {
            self.disagree.remove(&from);
        }
    }

    /// A follower comes to another digest.
    fn on_disagree(&mut self, now: Now, from: u16, epoch: u32, zxid: Zxid) {
        // Before the epoch is established, too: what is wrong may be part of its beginning, which nobody accepts then.
        if self.replica.led_epoch() != Some(epoch) || from >= self.replica.voters() {
            return;
        }
        if self.disagree_epoch != epoch {
            self.disagree.clear();
            self.disagree_epoch = epoch;
        }
        if self.disagree.insert(from, zxid).is_none() {
            self.turn.notes.push(format!("{} comes to another state than this leader at {zxid}", self.name(from)));
        }
        let against: Vec<Zxid> = self.disagree.values().copied().filter(|at| *at > self.replica.delivered()).collect();
        if against.len() >= self.replica.majority() || broken(Mutant::MinorityDeposes) {
            let first = against.into_iter().min().unwrap_or(zxid);
            let what = "a majority of the servers comes to another state than this leader foresaw".to_owned();
            let mut output = Output::default();
            self.is_log_wrong = !self.replica.take_back(first, &mut output);
            self.turn.journal.extend(output.journal);
            self.stop(now, Corruption { zxid: first.0.cast_signed(), path: None, what, digests: None });
        }
    }

    // Snapshots, and what is held.

    fn hold(&mut self) {
        let wanted = [self.snapshot.as_ref().map(|taken| taken.zxid), self.offer.as_ref().map(|taken| taken.zxid), self.offering];
        self.replica.hold(wanted.into_iter().flatten().min());
    }

    /// Others lack what the log does not have any more. The state as it is will do where all in it is delivered, or will be. A leader that
    /// needs those others to establish its epoch has that only on its disk: nothing of its log's end is delivered before.
    fn want_snapshot(&mut self) {
        if self.offering.is_some() {
            return;
        }
        let is_delivered = self.replica.last() == self.replica.delivered() || matches!(self.replica.status(), Status::Leading { .. });
        match &self.base {
            _ if is_delivered && self.offer.is_some() => {}
            _ if is_delivered => self.offer = Some(Snapshot { zxid: self.replica.last(), state: self.server.state().frozen() }),
            Some(base) => self.offer = Some(Snapshot { zxid: base.zxid, state: base.state.frozen() }),
            None => self.turn.reopen = Some("others lack what only the snapshot on the disk has"),
        }
        self.hold();
    }

    /// An offer whose entry is not delivered for long waits for those who wait for the offer.
    fn tick_offer(&mut self, now: Now) {
        let delivered = self.replica.delivered();
        let waits = self.offer.as_ref().map(|offer| offer.zxid).filter(|zxid| *zxid > delivered);
        self.offer_waits = match (waits, self.offer_waits) {
            (Some(zxid), Some((before, since))) if zxid == before => Some((zxid, since)),
            (waits, _) => waits.map(|zxid| (zxid, time(now))),
        };
        if self.offer_waits.is_some_and(|(_, since)| since.after_ms(self.options.timeout_ms * 2) <= time(now)) && self.turn.reopen.is_none()
        {
            self.turn.reopen = Some("others lack what only the snapshot on the disk has");
            self.close_clients(now);
        }
    }

    /// Takes the snapshots whose entry is delivered.
    fn take_snapshots(&mut self) {
        let delivered = self.replica.delivered();
        if let Some(offer) = self.offer.take_if(|offer| offer.zxid <= delivered) {
            self.offering = Some(offer.zxid);
            self.turn.offer = Some(offer);
        }
        if let Some(snapshot) = self.snapshot.take_if(|snapshot| snapshot.zxid <= delivered) {
            let mut output = Output::default();
            if self.replica.compact(snapshot.zxid, &mut output) {
                self.turn.journal.extend(output.journal);
                self.turn.snapshot = Some(snapshot);
            }
            self.hold();
        }
    }

    /// Says what does not depend on anything any more that is not delivered.
    fn release(&mut self) {
        let delivered = self.replica.delivered();
        while self.held.front().is_some_and(|held| held.until <= delivered || broken(Mutant::SaidBeforeMajority)) {
            let Some(Held { bytes, mut close, answers, .. }) = self.held.pop_front() else { break };
            self.held_bytes -= answers.iter().map(answer_bytes).sum::<usize>();
            self.turn.answers.extend(answers);
            for (connection, bytes) in bytes {
                self.held_bytes -= bytes.len();
                self.turn.bytes.entry(connection).or_default().extend_from_slice(&bytes);
            }
            self.turn.close.append(&mut close);
        }
    }

    /// Has operators shown what is known of the others now.
    pub fn show_others(&mut self) {
        let (followers, synced) = self.replica.followers();
        let mut others = vec![("quorum_size".to_owned(), Value::from(usize::from(self.replica.voters())))];
        if let Status::Leading { .. } = self.status {
            let is_present = self.replica.led_epoch() == Some(self.disagree_epoch);
            let wrong: Vec<Value> = self.disagree.keys().filter(|_| is_present).map(|server| Value::from(i64::from(*server))).collect();
            others.push(("followers".to_owned(), followers.into()));
            others.push(("synced_followers".to_owned(), synced.into()));
            others.push(("disagreeing_followers".to_owned(), wrong.len().into()));
            others.push(("disagreeing_servers".to_owned(), Value::List(wrong)));
        }
        self.server.others = others;
    }
}
