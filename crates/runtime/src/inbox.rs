//! What has arrived for the loop, and whose turn it is.
//!
//! Each member has a queue of its own, all connections of a client together. Turns go round the queues (deficit round robin): in each
//! round a member gets [`QUANTUM_BYTES`] of credit, and pays for what its messages brought and for what their answers carry; a client, where that is more, for the
//! time that they took, and a replica for what of that is [long](REPLICA_STEP_US). So who sends much, or asks for what takes long, waits for itself, and
//! everybody else for one round. A turn ends when what it did for all members together has cost, or taken, [so much](TURN_BYTES_MAX).
//!
//! What a member asked ahead of time and the machine kept ([`Machine::take_due`]) comes into that member's queue when it is due, and is paid for as
//! messages are: nobody has more done by asking early.
//!
//! Who sends more than there is time for, for some time, finds what it begins anew refused ([`Machine::refuse`]), and is told when to come
//! again. What has begun goes on.
//!
//! A client that does not read its answers is asked for no more of them: what came over its connection is held back until it has.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crypto::Verified;
use machine::turn::Turn;
use machine::{Input, Machine, Time};
use mutants::{Mutant, broken};
use tokio::sync::Semaphore;
use types::{ClientId, Party};

use crate::clock::Clock;
use crate::frame::MESSAGE_OVERHEAD_BYTES;
use crate::limits::{
    BYTES_FOR_A_MICROSECOND, COME_AGAIN_MS_MAX, COMMANDS_A_ROUND_MAX, OVERDUE_MS, OVERLOADED_AFTER_MS, QUANTUM_BYTES, REPLICA_STEP_US,
    TURN_BYTES_MAX,
};
use crate::link::Link;
use crate::mailbox::{Inbound, Mailbox, Taken};
use crate::member::Member;
use crate::metrics::Metrics;
use crate::priority::Usage;
use crate::quota::Permit;
use crate::worked::{Took, Worked};

/// So many messages are shown to the machine before it takes the first of them: what they need stays in the CPU's caches until each is taken.
const SHOWN_AHEAD: usize = 32;

/// What has arrived for the loop.
pub(crate) struct Inbox<C, W> {
    mailbox: Arc<Mailbox<Inbound<C, W>>>,
    command_permits: Arc<Semaphore>,
    metrics: Metrics,
    /// What was taken from the mailbox and is to be put into queues; empty between turns.
    taken: VecDeque<Inbound<C, W>>,
    /// What the node's own side asks.
    commands: VecDeque<C>,
    queues: BTreeMap<Member, Queue<W>>,
    /// Whoever has something in its queue, in the order in which their turns come.
    ring: VecDeque<Member>,
    /// Whoever has something held back.
    held_back: BTreeSet<Member>,
    /// How many arrivals are in queues, what is held back not counted.
    arrivals: usize,
    /// The mailbox may bring more.
    is_open: bool,
}

/// What one member has sent.
struct Queue<W> {
    arrivals: VecDeque<Arrival<W>>,
    /// Those whose answers would wait for a client that does not read.
    held_back: VecDeque<Arrival<W>>,
    /// How many bytes it may still cost in this round; below zero when it took more.
    credit: i64,
    /// Since when all that was taken in had waited too long, and when that was last seen.
    overdue: Option<(Instant, Instant)>,
    /// What it takes of this node's time; nothing counts what the node says to itself.
    usage: Option<Arc<Usage>>,
}

/// The messages that one read from a connection brought; or requests that the machine kept and that are due now.
struct Arrival<W> {
    from: Party,
    at: Instant,
    /// Where the answers go.
    link: Option<Arc<Link>>,
    messages: std::vec::IntoIter<Verified<W>>,
    /// How many of them the machine was shown ahead.
    shown: usize,
    /// How many requests that were kept are still to be served.
    kept: usize,
    /// What each message, or each of these requests, costs.
    bytes: i64,
    /// Given back with the last message.
    permit: Option<Permit>,
}

impl<W> Arrival<W> {
    /// Whether it is not worth an answer any more, or came under a key that is no member's any more.
    fn is_dropped(&self) -> bool {
        self.link.as_ref().is_some_and(|link| link.is_discarded())
            || (self.permit.as_ref().is_some_and(Permit::is_revoked) && !broken(Mutant::RevokedHeard))
    }

    /// Whether all of it was taken in.
    fn is_done(&self) -> bool {
        self.messages.len() == 0 && self.kept == 0
    }

    /// Has the machine take in the next of it: refuse it, if it can, where its member is to come again. Something of it is left, as otherwise it would
    /// be in no queue.
    fn step<M: Machine<Received = Verified<W>>>(&mut self, turn: &mut Turn<'_, M>, now: Time, come_again_ms: Option<u32>) {
        let next = self.messages.as_slice();
        // What is refused takes next to nothing.
        if self.shown == 0 && !next.is_empty() && come_again_ms.is_none() {
            self.shown = next.len().min(SHOWN_AHEAD);
            turn.machine().prefetch(now, self.from, &next[..self.shown]);
        }
        self.shown = self.shown.saturating_sub(1);
        match (self.messages.next(), come_again_ms) {
            (Some(message), Some(after_ms)) => turn.refuse_or_step(now, self.from, message, after_ms),
            (Some(message), None) => turn.step(now, Input::Message { from: self.from, message }),
            (None, _) => {
                self.kept -= 1;
                turn.serve_kept(now, self.from);
            }
        }
    }
}

/// What taking in one message, or one request that was kept, has cost, in bytes.
#[derive(Debug, PartialEq, Eq)]
struct Cost {
    /// Of its member's credit.
    member: i64,
    /// Of what the turn may take.
    turn: i64,
}

impl Cost {
    /// That of what has carried so many bytes, its answers included, and has taken so long.
    fn new(member: Member, carried: i64, took: Took, was_for_all: bool) -> Self {
        // What is short and asks for little may still take long.
        let charged = match member {
            Member::Client(_) if !broken(Mutant::WorkUncharged) => took.worked,
            // What is due to all counts for nobody, and a correct replica that catches up sends much that takes little.
            Member::Replica(_) if !was_for_all => took.worked.saturating_sub(Duration::from_micros(REPLICA_STEP_US)),
            _ => Duration::ZERO,
        };
        // What waits, as for a disk, is no work of anybody's; but everybody else waits for it.
        let held_up = if broken(Mutant::WaitUncounted) { took.worked } else { took.lasted };
        Self { member: carried.max(bytes_for(charged)), turn: carried.max(bytes_for(held_up)) }
    }
}

impl<W> Queue<W> {
    /// When its member is to come again with what it begins anew, if there has been more to do for it than time.
    fn come_again_ms(&mut self, now: Instant) -> Option<u32> {
        let (arrived, too_long) = (self.arrivals.front()?.at, Duration::from_millis(OVERDUE_MS));
        let waited = now.saturating_duration_since(arrived);
        if waited < too_long {
            self.overdue = None;
            return None;
        }
        // What came long after the last that had waited too long found nothing waiting: the time between was no overload.
        let before = self.overdue.filter(|(_, last)| arrived.saturating_duration_since(*last) < too_long);
        let since = before.map_or(now, |(since, _)| since);
        self.overdue = Some((since, now));
        let is_overloaded = now.saturating_duration_since(since) >= Duration::from_millis(OVERLOADED_AFTER_MS);
        is_overloaded.then(|| u32::try_from(waited.as_millis().min(COME_AGAIN_MS_MAX.into())).unwrap_or(u32::MAX))
    }
}

impl<C, W> Inbox<C, W> {
    pub fn new(mailbox: Arc<Mailbox<Inbound<C, W>>>, command_permits: Arc<Semaphore>, metrics: Metrics) -> Self {
        let (taken, commands, ring) = (VecDeque::new(), VecDeque::new(), VecDeque::new());
        let (queues, held_back) = (BTreeMap::new(), BTreeSet::new());
        Self { mailbox, command_permits, metrics, taken, commands, queues, ring, held_back, arrivals: 0, is_open: true }
    }

    /// Gives `turn` what has arrived, as much of it as it takes.
    pub fn fill<M: Machine<Command = C, Received = Verified<W>>>(&mut self, turn: &mut Turn<'_, M>, clock: &mut Clock) {
        self.take_due(turn, clock.now());
        self.take();
        let mut left = TURN_BYTES_MAX;
        while turn.room() > 0 && left > 0 && !self.is_idle() {
            // All of it has arrived by now.
            let now = clock.now();
            self.step_commands(turn, now);
            let Some(member) = self.ring.pop_front() else { continue };
            let Some(queue) = self.queues.get_mut(&member) else { continue };
            queue.credit = (queue.credit + QUANTUM_BYTES).min(QUANTUM_BYTES);
            let (begun, mut working, mut worked) = (Instant::now(), Worked::begin(), Duration::ZERO);
            let mut come_again_ms = queue.come_again_ms(begun);
            while turn.room() > 0 && left > 0 && queue.credit > 0 {
                let Some(arrival) = queue.arrivals.front_mut() else { break };
                if arrival.is_dropped() {
                    queue.arrivals.pop_front();
                    self.arrivals -= 1;
                    continue;
                }
                if arrival.link.as_ref().is_some_and(|link| link.holds_back()) {
                    queue.held_back.extend(queue.arrivals.pop_front());
                    self.held_back.insert(member);
                    self.arrivals -= 1;
                    continue;
                }
                let before = turn.answer_bytes();
                arrival.step(turn, now, come_again_ms);
                let carried = arrival.bytes + i64::try_from(turn.answer_bytes() - before).unwrap_or(i64::MAX / 2);
                let took = working.lap();
                let cost = Cost::new(member, carried, took, turn.was_for_all());
                queue.credit -= cost.member;
                left -= cost.turn;
                // A replica is charged for none that made this one do what is due to all.
                if matches!(member, Member::Client(_)) || !turn.was_for_all() || broken(Mutant::ChargedForAll) {
                    worked += took.worked;
                }
                if arrival.is_done() {
                    queue.arrivals.pop_front();
                    self.arrivals -= 1;
                    come_again_ms = queue.come_again_ms(begun);
                }
            }
            if let Some(usage) = &queue.usage {
                usage.note(worked + working.elapsed());
            }
            if !queue.arrivals.is_empty() {
                self.ring.push_back(member);
            }
        }
    }

    /// A client has brought a transaction of its own to its end.
    pub fn note_commit(&self, client: ClientId) {
        if let Some(usage) = self.queues.get(&Member::Client(client)).and_then(|queue| queue.usage.as_ref()) {
            usage.note_commit();
        }
    }

    /// What the machine has said to itself.
    pub fn push_own(&mut self, me: Party, messages: Vec<Verified<W>>) {
        self.enter((me, Instant::now()), messages, None, None);
    }

    /// Whether the last turn took all there was.
    pub fn is_idle(&self) -> bool {
        self.commands.is_empty() && self.ring.is_empty()
    }

    /// Whether nothing will come any more either.
    pub fn is_done(&self) -> bool {
        !self.is_open && self.is_idle()
    }

    /// Where things arrive.
    pub fn mailbox(&self) -> Arc<Mailbox<Inbound<C, W>>> {
        Arc::clone(&self.mailbox)
    }

    /// Takes in nothing more.
    pub fn close(&self) {
        self.mailbox.close();
        self.command_permits.close();
    }

    /// Puts what is in the mailbox into the queues.
    fn take(&mut self) {
        if self.is_open {
            let Taken { is_open, was_woken } = self.mailbox.take(&mut self.taken);
            self.is_open = is_open;
            if was_woken {
                self.release();
            }
        }
        let mut taken = std::mem::take(&mut self.taken);
        for inbound in taken.drain(..) {
            match inbound {
                Inbound::Command(command) => self.commands.push_back(command),
                Inbound::Messages { from, at, messages, link, permit } => self.enter((from, at), messages, link, permit),
            }
        }
        self.taken = taken;
        self.metrics.shell.arrivals_waiting.set(i64::try_from(self.arrivals).unwrap_or(i64::MAX));
    }

    /// Puts what was held back before what came later: some of it can be answered now.
    fn release(&mut self) {
        for member in std::mem::take(&mut self.held_back) {
            let Some(queue) = self.queues.get_mut(&member) else { continue };
            if queue.arrivals.is_empty() {
                self.ring.push_back(member);
            }
            self.arrivals += queue.held_back.len();
            queue.held_back.append(&mut queue.arrivals);
            std::mem::swap(&mut queue.held_back, &mut queue.arrivals);
        }
    }

    /// Puts what the machine kept, and is due now, into the queues of those who sent it.
    fn take_due<M: Machine<Received = Verified<W>>>(&mut self, turn: &mut Turn<'_, M>, now: Time) {
        let at = Instant::now();
        while let Some(from) = turn.take_due(now) {
            if broken(Mutant::EarlyUnshared) {
                turn.serve_kept(now, from);
            } else {
                self.enter_kept(from, at);
            }
        }
    }

    fn enter_kept(&mut self, from: Party, at: Instant) {
        let last = self.queues.get_mut(&Member::from(from)).and_then(|queue| queue.arrivals.back_mut());
        if let Some(last) = last.filter(|last| last.kept > 0 && last.from == from && last.at == at) {
            last.kept += 1;
            return;
        }
        // It has paid for its bytes when it came; nothing is free, though.
        let bytes = i64::try_from(MESSAGE_OVERHEAD_BYTES).unwrap_or(i64::MAX / 2);
        self.push(Arrival { from, at, link: None, messages: Vec::new().into_iter(), shown: 0, kept: 1, bytes, permit: None });
    }

    fn enter(&mut self, (from, at): (Party, Instant), messages: Vec<Verified<W>>, link: Option<Arc<Link>>, permit: Option<Permit>) {
        if messages.is_empty() {
            return;
        }
        let bytes = permit.as_ref().map_or(0, Permit::bytes).max(messages.len() * MESSAGE_OVERHEAD_BYTES) / messages.len();
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX / 2);
        self.push(Arrival { from, at, link, messages: messages.into_iter(), shown: 0, kept: 0, bytes, permit });
    }

    fn push(&mut self, arrival: Arrival<W>) {
        let member = Member::from(arrival.from);
        let queue = self.queues.entry(member).or_insert_with(|| Queue {
            arrivals: VecDeque::new(),
            held_back: VecDeque::new(),
            credit: 0,
            overdue: None,
            usage: None,
        });
        if let Some(permit) = &arrival.permit {
            queue.usage = Some(permit.usage()); // Another one, once its key has changed.
        }
        if queue.arrivals.is_empty() {
            self.ring.push_back(member);
        }
        queue.arrivals.push_back(arrival);
        self.arrivals += 1;
    }

    fn step_commands<M: Machine<Command = C, Received = Verified<W>>>(&mut self, turn: &mut Turn<'_, M>, now: Time) {
        let count = self.commands.len().min(turn.room()).min(COMMANDS_A_ROUND_MAX);
        if count == 0 {
            return;
        }
        for command in self.commands.drain(..count) {
            turn.step(now, Input::Command(command));
        }
        self.command_permits.add_permits(count);
        self.metrics.shell.commands_waiting.dec_by(i64::try_from(count).unwrap_or(i64::MAX));
    }
}

/// A loop that has ended takes nothing more: also one that its runtime has dropped, or whose machine has panicked.
impl<C, W> Drop for Inbox<C, W> {
    fn drop(&mut self) {
        self.close();
    }
}

/// What a message costs that takes so long.
fn bytes_for(worked: Duration) -> i64 {
    let microseconds = u64::try_from(worked.as_micros()).unwrap_or(u64::MAX);
    i64::try_from(microseconds.saturating_mul(BYTES_FOR_A_MICROSECOND)).unwrap_or(i64::MAX / 2)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use crypto::{Signatures, Verifier};
    use machine::turn::{Bounds, Turns};
    use toy::Doubler;
    use toy::fixture::{CLUSTER, cluster, replica};
    use types::Session;

    use super::*;
    use crate::limits::Limits;
    use crate::member::Share;
    use crate::quota::Totals;
    use crate::worked::pretended::{self, Pretence};

    type ToyInbox = Inbox<<Doubler as Machine>::Command, toy::Message>;

    fn inbox() -> ToyInbox {
        Inbox::new(Arc::default(), Arc::new(Semaphore::new(1)), Metrics::default())
    }

    fn share() -> Share {
        let limits = Limits::default();
        Share::new(Member::Client(ClientId(1)), &limits, &Totals::new(&limits, &Default::default()))
    }

    fn verified() -> Verified<toy::Message> {
        let verifier = Verifier::new(cluster(CLUSTER, 1), Signatures::Ed25519, 16).expect("the toy cluster's keys are good");
        verifier.verify(toy::Message::Ask(1)).expect("nothing of it is signed")
    }

    /// A client asks.
    fn ask(inbox: &ToyInbox, client: u64, share: &Share) {
        let question = verified();
        let (from, permit) = (Party::Client(ClientId(client), Session(1)), share.incoming.try_take(100));
        assert!(inbox.mailbox.push(Inbound::Messages { from, at: Instant::now(), messages: vec![question], link: None, permit }).is_ok());
    }

    /// How many inputs a turn takes, if none takes any time.
    fn turn(inbox: &mut ToyInbox) -> usize {
        let _pretence = Pretence::begin();
        real_turn(inbox)
    }

    fn real_turn(inbox: &mut ToyInbox) -> usize {
        let mut turns = Turns::new(Doubler::new(replica(0)), Party::Replica(replica(0)), Bounds { inputs_max: 8, batch_max: 8 });
        let mut clock = Clock::even();
        let mut turn = turns.begin(clock.now());
        inbox.fill(&mut turn, &mut clock);
        turn.inputs()
    }

    #[test]
    fn who_has_waited_too_long_for_some_time_is_to_come_again() {
        let mut inbox = inbox();
        let (begun, ms) = (Instant::now(), Duration::from_millis);
        inbox.enter((Party::Replica(replica(1)), begun), vec![verified()], None, None);
        let queue = inbox.queues.values_mut().next().expect("something has come");
        let mut come_again_ms = |after: u64| queue.come_again_ms(begun + ms(after));
        assert_eq!(come_again_ms(OVERDUE_MS - 1), None);
        assert_eq!(come_again_ms(OVERDUE_MS), None, "a disk may have stood still");
        assert_eq!(come_again_ms(OVERDUE_MS + OVERLOADED_AFTER_MS - 1), None);
        assert_eq!(come_again_ms(OVERDUE_MS + OVERLOADED_AFTER_MS), Some(750));
        assert_eq!(come_again_ms(1_000_000), Some(5_000));
        assert_eq!(come_again_ms(OVERDUE_MS - 1), None, "it has not waited long");
        assert_eq!(come_again_ms(OVERDUE_MS), None);
    }

    #[test]
    fn one_that_waits_too_long_after_a_time_without_any_is_not_told_to_come_again() {
        let mut inbox = inbox();
        let (begun, ms, from) = (Instant::now(), Duration::from_millis, Party::Replica(replica(1)));
        // Each has waited as long as this when its turn comes, and then the queue is empty.
        let mut wait_from = |arrived: u64, waited: u64| {
            inbox.enter((from, begun + ms(arrived)), vec![verified()], None, None);
            let queue = inbox.queues.values_mut().next().expect("something has come");
            let come_again_ms = queue.come_again_ms(begun + ms(arrived + waited));
            queue.arrivals.clear();
            come_again_ms
        };
        assert_eq!(wait_from(0, OVERDUE_MS), None);
        assert_eq!(wait_from(100_000, OVERDUE_MS), None, "a disk has stood still, and once before, long ago");
        // Where one comes soon after the other, and all wait too long, that the queue is empty between them says nothing.
        let all: Vec<_> = (0..4).map(|number| wait_from(200_000 + number * OVERDUE_MS, OVERDUE_MS)).collect();
        assert_eq!(all, [None, None, Some(250), Some(250)]);
    }

    #[test]
    fn what_the_loop_does_for_a_member_counts_as_its_usage() {
        let (mut inbox, share) = (inbox(), share());
        ask(&inbox, 1, &share);
        assert_eq!(real_turn(&mut inbox), 1);
        assert!(share.usage.take_ns() > 0);
    }

    #[test]
    fn what_came_under_a_key_that_was_changed_is_dropped() {
        let (mut inbox, share, again) = (inbox(), share(), share());
        ask(&inbox, 1, &share);
        share.incoming.revoke();
        ask(&inbox, 1, &share);
        ask(&inbox, 1, &again);
        assert_eq!(turn(&mut inbox), 1, "what came under the next key");
        assert!(inbox.is_idle() && share.incoming.try_take(1 << 20).is_some(), "and gives back its room");
    }

    #[test]
    fn what_a_client_has_brought_to_its_end_counts_for_it_and_nobody_else() {
        let (mut inbox, one, other) = (inbox(), share(), share());
        ask(&inbox, 1, &one);
        ask(&inbox, 2, &other);
        assert_eq!(turn(&mut inbox), 2);
        for client in [1, 1, 2, 3] {
            inbox.note_commit(ClientId(client));
        }
        assert_eq!([&one, &other, &one].map(|share| share.usage.take_commits()), [2, 1, 0]);
        // Once its key has changed, it counts anew.
        let again = share();
        ask(&inbox, 1, &again);
        assert_eq!(turn(&mut inbox), 1);
        inbox.note_commit(ClientId(1));
        assert_eq!([&one, &again].map(|share| share.usage.take_commits()), [0, 1]);
    }

    /// Works for a while at each message that asks for a small number, and for all where that is odd; and waits as long for one number. It only says
    /// that it does.
    #[derive(Default)]
    struct Worker {
        /// How many others it has taken.
        light: usize,
        /// How many messages it was shown that it has not taken, and how often it was shown some.
        shown: Cell<usize>,
        times_shown: Cell<usize>,
    }

    const WORKS: Duration = Duration::from_millis(5);
    const LIGHT: u64 = 100;
    const WAITS: u64 = 101;

    impl Machine for Worker {
        type Command = <Doubler as Machine>::Command;
        type Received = Verified<toy::Message>;
        type Message = toy::Message;
        type Unsigned = std::convert::Infallible;
        type Event = ();

        fn step(&mut self, _now: Time, input: machine::InputOf<Self>, outbox: &mut machine::OutboxOf<Self>) {
            let Input::Message { message, .. } = input else { return };
            self.shown.set(self.shown.get().checked_sub(1).expect("each is shown before it is taken"));
            if matches!(*message, toy::Message::Ask(LIGHT)) {
                self.light += 1;
                return;
            }
            if matches!(*message, toy::Message::Ask(WAITS)) {
                return pretended::take(Took { worked: Duration::ZERO, lasted: WORKS });
            }
            pretended::take(Took { worked: WORKS, lasted: WORKS });
            outbox.is_for_all = matches!(*message, toy::Message::Ask(number) if number % 2 == 1);
        }

        fn prefetch(&self, _: Time, _: Party, next: &[Verified<toy::Message>]) {
            assert!(self.shown.get() == 0 && (1..=SHOWN_AHEAD).contains(&next.len()), "{} and {}", self.shown.get(), next.len());
            self.shown.set(next.len());
            self.times_shown.set(self.times_shown.get() + 1);
        }

        fn deadline(&self) -> Option<Time> {
            None
        }
    }

    #[test]
    fn messages_are_shown_ahead_some_at_a_time_and_each_once() {
        let verifier = Verifier::new(cluster(CLUSTER, 1), Signatures::Ed25519, 16).expect("the toy cluster's keys are good");
        let (mut inbox, _pretence) = (inbox(), Pretence::begin());
        let messages = (0..2 * SHOWN_AHEAD + 1).map(|_| verifier.verify(toy::Message::Ask(LIGHT)).expect("nothing of it is signed"));
        inbox.enter((Party::Replica(replica(1)), Instant::now()), messages.collect(), None, None);
        let mut turns = Turns::new(Worker::default(), Party::Replica(replica(0)), Bounds::default());
        let mut clock = Clock::even();
        let mut turn = turns.begin(clock.now());
        inbox.fill(&mut turn, &mut clock);
        let Worker { light, shown, times_shown } = turn.machine();
        assert_eq!((*light, shown.get(), times_shown.get()), (2 * SHOWN_AHEAD + 1, 0, 3));
    }

    #[test]
    fn a_replica_is_not_charged_for_what_is_due_to_all() {
        let verifier = Verifier::new(cluster(CLUSTER, 1), Signatures::Ed25519, 16).expect("the toy cluster's keys are good");
        let (mut inbox, _pretence) = (inbox(), Pretence::begin());
        let mut spent = |numbers: &[u64]| {
            let (from, share) = (Party::Replica(replica(1)), share());
            for number in numbers {
                let messages = vec![verifier.verify(toy::Message::Ask(*number)).expect("nothing of it is signed")];
                inbox.enter((from, Instant::now()), messages, None, share.incoming.try_take(100));
            }
            let mut turns = Turns::new(Worker::default(), Party::Replica(replica(0)), Bounds::default());
            let mut clock = Clock::even();
            let mut turn = turns.begin(clock.now());
            inbox.fill(&mut turn, &mut clock);
            assert_eq!(turn.inputs(), numbers.len());
            Duration::from_nanos(share.usage.take_ns())
        };
        assert!(spent(&[1, 3]) < WORKS, "all of it was due to all");
        assert!(spent(&[2]) >= WORKS / 2);
        let both = spent(&[1, 2, 3, 4]);
        assert!(both >= WORKS && both < 3 * WORKS, "{both:?}");
    }

    /// Each of these sends so many messages that ask for its number.
    fn enter_each(inbox: &mut ToyInbox, senders: &[(Party, u64)], count: usize) {
        let verifier = Verifier::new(cluster(CLUSTER, 1), Signatures::Ed25519, 16).expect("the toy cluster's keys are good");
        let share = share();
        for (from, number) in senders {
            for _ in 0..count {
                let messages = vec![verifier.verify(toy::Message::Ask(*number)).expect("nothing of it is signed")];
                inbox.enter((*from, Instant::now()), messages, None, share.incoming.try_take(100));
            }
        }
    }

    /// How many light messages are among the first nine that are taken, where each of two sends eight.
    fn light_of_nine(senders: [(Party, u64); 2]) -> usize {
        let (mut inbox, _pretence) = (inbox(), Pretence::begin());
        enter_each(&mut inbox, &senders, 8);
        let mut turns = Turns::new(Worker::default(), Party::Replica(replica(0)), Bounds { inputs_max: 9, batch_max: 8 });
        let mut clock = Clock::even();
        let mut turn = turns.begin(clock.now());
        inbox.fill(&mut turn, &mut clock);
        assert_eq!(turn.inputs(), 9);
        turn.machine().light
    }

    #[test]
    fn a_client_whose_messages_take_long_waits_for_itself() {
        let client = |number| Party::Client(ClientId(number), Session(1));
        let light = light_of_nine([(client(1), 2), (client(2), LIGHT)]);
        assert!(light > 2, "{light}");
    }

    #[test]
    fn a_replica_whose_messages_take_long_waits_for_itself_unless_that_is_due_to_all() {
        let from = |index| Party::Replica(replica(index));
        let light = light_of_nine([(from(1), 2), (from(2), LIGHT)]);
        assert!(light > 2, "{light}");
        assert_eq!(light_of_nine([(from(1), 3), (from(2), LIGHT)]), 1);
    }

    #[test]
    fn a_turn_does_not_take_long_whoever_its_messages_are_from() {
        const COUNT: usize = 60;
        let (one, client) = (Party::Replica(replica(1)), Party::Client(ClientId(1), Session(1)));
        // Those of an odd number are due to all.
        for (from, number) in [(one, 2), (one, 3), (one, WAITS), (client, 2), (client, 3), (client, WAITS)] {
            let (mut inbox, _pretence) = (inbox(), Pretence::begin());
            enter_each(&mut inbox, &[(from, number)], COUNT);
            let mut turns = Turns::new(Worker::default(), Party::Replica(replica(0)), Bounds::default());
            let (mut clock, mut taken) = (Clock::even(), 0);
            while taken < COUNT {
                let mut turn = turns.begin(clock.now());
                inbox.fill(&mut turn, &mut clock);
                let inputs = turn.inputs();
                assert!((1..=COUNT / 2).contains(&inputs), "{inputs} of {from}");
                taken += inputs;
            }
        }
    }

    #[test]
    fn what_waits_for_the_disk_counts_for_the_turn_and_is_charged_to_nobody() {
        let (client, from) = (Member::Client(ClientId(1)), Member::Replica(replica(1)));
        let us = Duration::from_micros;
        let took = Took { worked: us(1_000), lasted: us(9_000) };
        assert_eq!(Cost::new(client, 256, took, false), Cost { member: 32_000, turn: 288_000 });
        assert_eq!(Cost::new(from, 256, took, false), Cost { member: 24_000, turn: 288_000 });
        assert_eq!(Cost::new(from, 256, took, true), Cost { member: 256, turn: 288_000 });
        assert_eq!(Cost::new(client, 1 << 20, took, false), Cost { member: 1 << 20, turn: 1 << 20 });
    }

    /// Keeps requests until they are due. To serve one takes a millisecond, and its answer carries a quantum.
    #[derive(Default)]
    struct Keeper {
        /// Whose requests are due, in their order.
        due: VecDeque<Party>,
        /// Whose requests and messages it has taken in.
        taken: Vec<Party>,
    }

    const SERVES: Duration = Duration::from_millis(1);

    impl Machine for Keeper {
        type Command = <Doubler as Machine>::Command;
        type Received = Verified<toy::Message>;
        type Message = toy::Message;
        type Unsigned = std::convert::Infallible;
        type Event = ();

        fn step(&mut self, _now: Time, input: machine::InputOf<Self>, _outbox: &mut machine::OutboxOf<Self>) {
            if let Input::Message { from, .. } = input {
                self.taken.push(from);
            }
        }

        fn deadline(&self) -> Option<Time> {
            None
        }

        fn take_due(&mut self, _now: Time) -> Option<Party> {
            self.due.pop_front()
        }

        fn serve_kept(&mut self, _now: Time, from: Party, outbox: &mut machine::OutboxOf<Self>) {
            self.taken.push(from);
            pretended::take(Took { worked: SERVES, lasted: SERVES });
            outbox.bytes += usize::try_from(QUANTUM_BYTES).expect("it is positive");
        }
    }

    /// A turn of at most so many inputs, before which these parties' requests have become due. Whose were taken in?
    fn turn_with_due(inbox: &mut ToyInbox, inputs_max: usize, due: impl IntoIterator<Item = Party>) -> Vec<Party> {
        let _pretence = Pretence::begin();
        let keeper = Keeper { due: due.into_iter().collect(), taken: Vec::new() };
        let mut turns = Turns::new(keeper, Party::Replica(replica(0)), Bounds { inputs_max, batch_max: 8 });
        let mut clock = Clock::even();
        let mut turn = turns.begin_unserved(clock.now());
        inbox.fill(&mut turn, &mut clock);
        turn.machine().taken.clone()
    }

    #[test]
    fn what_was_kept_for_a_client_is_served_in_its_turn_and_at_its_cost() {
        let [one, two, three] = [1, 2, 3].map(|number| Party::Client(ClientId(number), Session(1)));
        let (mut inbox, share, others) = (inbox(), share(), share());
        ask(&inbox, 1, &share);
        assert_eq!((turn_with_due(&mut inbox, 8, []), share.usage.take_ns()), (vec![one], 0));
        for _ in 0..4 {
            ask(&inbox, 2, &others);
        }
        // Each of the first client's costs it a round, in which the others come, too.
        let due = [one, one, one, one, three];
        assert_eq!(turn_with_due(&mut inbox, 8, due), [one, three, two, two, two, two, one, one]);
        assert_eq!(Duration::from_nanos(share.usage.take_ns()), 3 * SERVES, "it counts as what it takes");
        ask(&inbox, 1, &share);
        assert_eq!(turn_with_due(&mut inbox, 8, [one]), [one; 3], "what came later is taken in later");
        assert!(inbox.is_idle());
    }

    #[test]
    fn a_turn_ends_however_much_was_kept_until_now() {
        let (mut inbox, one) = (inbox(), Party::Client(ClientId(1), Session(1)));
        let in_a_turn = usize::try_from(TURN_BYTES_MAX / QUANTUM_BYTES).expect("it is positive");
        let taken = turn_with_due(&mut inbox, 1_024, (0..2 * in_a_turn).map(|_| one)).len();
        assert!(taken <= in_a_turn && !inbox.is_idle(), "{taken}");
        let rest: usize = (0..3).map(|_| turn_with_due(&mut inbox, 1_024, []).len()).sum();
        assert!(taken + rest == 2 * in_a_turn && inbox.is_idle());
    }
}
