//! A process: its loop with the machine in it, and its connections.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use basil::message::Draft;
use basil::{Coordinator, Event, Message, Node};
use crypto::Signable as _;
use machine::{Durable as _, Input, InputOf, Machine, Outbox, OutboxOf, Time};
use store::Memory;
use types::Party;

use crate::closed_loop_clients::ClosedLoopClients;
use crate::encoded_message::{EncodedMessage, Known, MessageEncoder, Root};
use crate::host::Job;
use crate::{ClusterSpec, Costs, Step};

/// The most inputs of one turn, as in the real shell.
const TURN_INPUTS_MAX: usize = 1_024;
/// How long what nobody heard of may wait to be made durable, as in the real shell.
const SYNC_WAIT_NS: u64 = 20_000_000;
/// When virtual time begins, by everybody's clock.
pub(crate) const EPOCH: Time = Time(1_800_000_000_000_000_000);
/// What is read at a time, as in the real shell: so many bytes,
const READ_BYTES: usize = 64 << 10;
/// and so many messages.
const READ_MESSAGES: usize = 512;
/// The most roots checked together, as in the real verifier.
const CHECK_ROOTS_MAX: usize = 64;

/// What everybody shares: prices, and what is counted.
pub(crate) struct CostAccounting<'a> {
    pub spec: ClusterSpec,
    pub costs: Costs,
    pub encoder: MessageEncoder,
    /// Steps of machines so far.
    pub steps: u64,
    /// Statements signed, and signatures made for them, since counting began.
    pub signed: (u64, u64),
    /// How long steps really took, and how many there were, by kind.
    pub timings: [(u64, u64); Step::ALL.len()],
    pub watch: Option<&'a mut dyn FnMut() -> u64>,
}

impl CostAccounting<'_> {
    /// The place of a party among all processes: replicas first, then clients.
    pub fn place(&self, party: Party) -> usize {
        match party {
            Party::Replica(replica) => usize::from(replica.shard.0) * self.spec.replicas_a_shard() + usize::from(replica.index),
            Party::Client(client, _) => self.spec.replicas() + usize::try_from(client.0 - 1).expect("clients are numbered from 1"),
        }
    }

    /// Steps a machine; gives the price.
    fn step<M: Machine>(&mut self, kind: Step, machine: &mut M, now: u64, input: InputOf<M>, outbox: &mut OutboxOf<M>) -> f64 {
        self.steps += 1;
        let before = self.watch.as_mut().map(|watch| watch());
        machine.step(local(now), input, outbox);
        if let Some((before, watch)) = before.zip(self.watch.as_mut()) {
            let (ns, count) = &mut self.timings[kind as usize];
            (*ns, *count) = (*ns + (watch() - before), *count + 1);
        }
        self.costs.steps[kind as usize]
    }
}

fn local(now: u64) -> Time {
    Time(EPOCH.0 + now)
}

/// What a process is.
pub(crate) enum Kind {
    Replica(Box<Node<Memory>>),
    Client(Box<Coordinator>, Box<ClosedLoopClients>),
}

/// What waits for the loop.
pub(crate) enum Heard {
    Command(basil::Command),
    Message(Party, Rc<EncodedMessage>),
}

/// Where a loop is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// It sleeps.
    Idle,
    /// It waits for a core, has one, or waits for the disk.
    Busy,
}

/// What is on its way through one connection, one way.
#[derive(Default)]
pub(crate) struct Pipe {
    pub parcels: VecDeque<Rc<EncodedMessage>>,
    /// Whether somebody is at it, or waits for a core to be.
    pub busy: bool,
}

pub(crate) struct Process {
    pub party: Party,
    pub host: usize,
    pub kind: Kind,
    pub phase: Phase,
    pub mailbox: VecDeque<Heard>,
    unsynced_since: Option<u64>,
    /// When it will next be woken for a timer.
    pub armed: Option<u64>,
    /// What is to be written, by receiver.
    pub outgoing: BTreeMap<usize, Pipe>,
    /// What has come and is not read, by sender.
    pub incoming: BTreeMap<usize, Pipe>,
    /// Each signer's roots,
    known: Vec<Known>,
    /// and how many of them are remembered.
    remembered: u64,
    roots_signed: u64,
    /// What its workers have to do,
    pub jobs: VecDeque<Job>,
    /// and how many of them are at it, or wait for a core.
    pub workers: usize,
    /// For how long it has kept cores since counting began, all its threads together.
    pub busy_ns: u64,
    /// For how long its loop has worked or waited for the disk since then.
    pub loop_ns: u64,
}

/// What a turn came to.
pub(crate) struct Said {
    /// What is to be sent, by receiver.
    pub sends: BTreeMap<usize, Vec<Rc<EncodedMessage>>>,
    pub events: Vec<Event>,
    /// Whether it must be durable first.
    pub syncs: bool,
    /// What it took of a core.
    pub cost_ns: f64,
}

impl Process {
    /// A process that remembers `roots_max` checked roots in all.
    pub fn new(party: Party, host: usize, kind: Kind, replicas: usize, roots_max: usize) -> Self {
        Self {
            party,
            host,
            kind,
            phase: Phase::Idle,
            mailbox: VecDeque::new(),
            unsynced_since: None,
            armed: None,
            outgoing: BTreeMap::new(),
            incoming: BTreeMap::new(),
            known: vec![Known::default(); replicas],
            remembered: (roots_max / replicas) as u64,
            roots_signed: 0,
            jobs: VecDeque::new(),
            workers: 0,
            busy_ns: 0,
            loop_ns: 0,
        }
    }

    /// When it wants to be woken, if nothing else happens.
    pub fn wakes_at(&self) -> Option<u64> {
        let deadline = match &self.kind {
            Kind::Replica(node) => node.deadline(),
            Kind::Client(coordinator, _) => coordinator.deadline(),
        };
        let tick = deadline.map(|deadline| deadline.since(EPOCH));
        let sync = self.unsynced_since.map(|since| since + SYNC_WAIT_NS);
        [tick, sync].into_iter().flatten().min()
    }

    /// One turn of the loop: all that has arrived, one write to disk, signatures.
    pub fn turn(&mut self, now: u64, accounting: &mut CostAccounting<'_>) -> Said {
        let me = accounting.place(self.party);
        let heard: Vec<Heard> = self.mailbox.drain(..self.mailbox.len().min(TURN_INPUTS_MAX)).collect();
        let (mut messages, mut cost_ns) = (Vec::new(), accounting.costs.turn_ns);
        let mut said = Said { sends: BTreeMap::new(), events: Vec::new(), syncs: false, cost_ns: 0.0 };
        match &mut self.kind {
            Kind::Client(coordinator, _) => {
                let mut outbox = Outbox::default();
                cost_ns += tick(coordinator.as_mut(), now, &mut outbox, accounting);
                for heard in heard {
                    let (kind, input) = match heard {
                        Heard::Command(command) => (Step::of_command(&command), Input::Command(command)),
                        Heard::Message(from, encoded_message) => {
                            (Step::of_message(&encoded_message.message), Input::Message { from, message: encoded_message.message.clone() })
                        }
                    };
                    cost_ns += accounting.step(kind, coordinator.as_mut(), now, input, &mut outbox);
                }
                messages.append(&mut outbox.sends);
                said.events = outbox.events;
            }
            Kind::Replica(node) => {
                let mut outbox = Outbox::default();
                cost_ns += tick(node.as_mut(), now, &mut outbox, accounting);
                for heard in heard {
                    let Heard::Message(from, encoded_message) = heard else { unreachable!("nobody commands a replica") };
                    let input = Input::Message { from, message: encoded_message.message.clone() };
                    cost_ns += accounting.step(Step::of_message(&encoded_message.message), node.as_mut(), now, input, &mut outbox);
                }
                let (speaks, is_pending) = (!outbox.is_empty(), node.replica().store().is_pending());
                let since = self.unsynced_since.take().unwrap_or(now);
                if speaks || since + SYNC_WAIT_NS <= now {
                    said.syncs = is_pending;
                    node.persist().expect("memory does not fail");
                } else if is_pending {
                    // What nobody hears of may wait a little, and share the next turn's write.
                    self.unsynced_since = Some(since);
                }
                messages.append(&mut outbox.sends);
                cost_ns += sign(me, &mut self.roots_signed, outbox.drafts, &mut messages, accounting);
            }
        }
        if said.syncs {
            cost_ns += accounting.costs.sync_cpu_ns;
        }
        for (to, message) in messages {
            let (to, encoded_message) = (accounting.place(to), accounting.encoder.pack(message));
            if to == me {
                // What a replica says to itself is heard in its next turn.
                self.mailbox.push_back(Heard::Message(self.party, encoded_message));
            } else {
                cost_ns += accounting.costs.encode_ns;
                said.sends.entry(to).or_default().push(encoded_message);
            }
        }
        said.cost_ns = cost_ns;
        said
    }

    /// Reads what has come from `from`, as much as one read takes. Gives it with its price.
    pub fn read(&mut self, from: usize, accounting: &CostAccounting<'_>) -> (Vec<Rc<EncodedMessage>>, f64) {
        let costs = &accounting.costs;
        let pipe = self.incoming.get_mut(&from).expect("something has come");
        let (mut parcels, mut bytes, mut claims, mut new_roots) = (Vec::new(), 0, 0, 0);
        while let Some(encoded_message) = pipe.parcels.pop_front() {
            bytes += encoded_message.bytes;
            claims += encoded_message.roots.len();
            for root in &encoded_message.roots {
                new_roots += usize::from(!self.known[root.signer].learn(root.serial, self.remembered));
            }
            parcels.push(encoded_message);
            if bytes >= READ_BYTES || parcels.len() >= READ_MESSAGES {
                break;
            }
        }
        let mut cost_ns = costs.read_ns + costs.byte_ns * bytes as f64 + costs.decode_ns * parcels.len() as f64;
        cost_ns += costs.claim_ns * claims as f64;
        if accounting.spec.signatures {
            cost_ns += costs.check_batch_ns * new_roots.div_ceil(CHECK_ROOTS_MAX) as f64 + costs.check_root_ns * new_roots as f64;
        }
        (parcels, cost_ns)
    }
}

/// Lets a machine look at its timers, when one is due; gives the price.
fn tick<M: Machine>(machine: &mut M, now: u64, outbox: &mut OutboxOf<M>, accounting: &mut CostAccounting<'_>) -> f64 {
    if machine.deadline().is_some_and(|deadline| deadline <= local(now)) {
        return accounting.step(Step::Other, machine, now, Input::Tick, outbox);
    }
    0.0
}

/// Makes messages of what is to be signed, as the real shell does; gives the price.
fn sign(
    me: usize,
    roots_signed: &mut u64,
    mut drafts: Vec<(Party, Draft)>,
    messages: &mut Vec<(Party, Message)>,
    accounting: &mut CostAccounting<'_>,
) -> f64 {
    let mut cost_ns = accounting.costs.leaf_ns * drafts.len() as f64;
    accounting.signed.0 += drafts.len() as u64;
    drafts.sort_by_key(|(to, _)| *to);
    let mut rest = drafts.into_iter().peekable();
    while rest.peek().is_some() {
        let batch: Vec<(Party, Draft)> = rest.by_ref().take(accounting.spec.batch_max).collect();
        let root = Root { signer: me, serial: *roots_signed };
        // Without signatures all share a batch signature without a path.
        let signatures =
            if accounting.spec.signatures { root.signatures(batch.len()) } else { vec![root.signatures(1).remove(0); batch.len()] };
        messages.extend(batch.into_iter().zip(signatures).map(|((to, draft), signature)| (to, draft.with_signature(signature))));
        *roots_signed += 1;
        accounting.signed.1 += 1;
        if accounting.spec.signatures {
            cost_ns += accounting.costs.sign_ns;
        }
    }
    cost_ns
}
