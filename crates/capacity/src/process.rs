//! A process: its loop with the machine in it, and its connections.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

use crypto::{BatchSignature, Signable, Verified};
use engine::{Ask, Tell};
use machine::turn::{NoSigner, Signer, Turns};
use machine::{Durable, Input, Time};
use types::{Cluster, Party};

use crate::closed_loop_clients::ClosedLoopClients;
use crate::encoded_message::{EncodedMessage, Known, MessageEncoder, Root};
use crate::engine::{Engine, OTHER, Step, step_of};
use crate::host::Job;
use crate::{ClusterSpec, Costs};

/// What is read at a time, as in the real shell: so many bytes,
const READ_BYTES: usize = 64 << 10;
/// and so many messages.
const READ_MESSAGES: usize = 512;
/// The most roots checked together, as in the real verifier.
const CHECK_ROOTS_MAX: usize = 64;

/// What everybody shares: prices, and what is counted.
pub(crate) struct CostAccounting<'a, S: Engine> {
    pub spec: ClusterSpec,
    pub cluster: Arc<Cluster>,
    pub costs: Costs,
    pub encoder: MessageEncoder<S::Message>,
    /// Steps of machines so far.
    pub steps: u64,
    /// Statements signed, and signatures made for them, since counting began.
    pub signed: (u64, u64),
    /// How long steps really took, and how many there were, by kind.
    pub timings: BTreeMap<Step, (u64, u64)>,
    pub watch: Option<&'a mut dyn FnMut() -> u64>,
}

impl<S: Engine> CostAccounting<'_, S> {
    /// The place of a party among all processes: replicas first, then clients.
    pub fn place(&self, party: Party) -> usize {
        match party {
            Party::Replica(replica) => usize::from(replica.shard.0) * self.cluster.replicas_per_shard() + usize::from(replica.index),
            Party::Client(client, _) => self.replicas() + usize::try_from(client.0 - 1).expect("clients are numbered from 1"),
        }
    }

    /// How many replicas there are, over all shards.
    pub fn replicas(&self) -> usize {
        self.spec.shards * self.cluster.replicas_per_shard()
    }

    /// Does a step and adds its price.
    fn step<T>(&mut self, cost_ns: &mut f64, kind: Step, step: impl FnOnce() -> T) -> T {
        self.steps += 1;
        *cost_ns += self.costs.steps.get(kind).copied().unwrap_or_default();
        let before = self.watch.as_mut().map(|watch| watch());
        let done = step();
        if let Some((before, watch)) = before.zip(self.watch.as_mut()) {
            let (ns, count) = self.timings.entry(kind).or_default();
            (*ns, *count) = (*ns + (watch() - before), *count + 1);
        }
        done
    }
}

/// What a process is.
pub(crate) enum Kind<S: Engine> {
    Replica(Box<Turns<S::Replica>>),
    Client(Box<Turns<S::Session>>, Box<ClosedLoopClients>),
}

/// What waits for the loop.
pub(crate) enum Heard<M> {
    Ask(Ask),
    Message(Party, Rc<EncodedMessage<M>>),
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
pub(crate) struct Pipe<M> {
    pub messages: VecDeque<Rc<EncodedMessage<M>>>,
    /// Whether somebody is at it, or waits for a core to be.
    pub busy: bool,
}

impl<M> Default for Pipe<M> {
    fn default() -> Self {
        Self { messages: VecDeque::new(), busy: false }
    }
}

pub(crate) struct Process<S: Engine> {
    pub party: Party,
    pub host: usize,
    pub kind: Kind<S>,
    pub phase: Phase,
    pub mailbox: VecDeque<Heard<S::Message>>,
    /// When it will next be woken for a timer.
    pub armed: Option<u64>,
    /// What is to be written, by receiver.
    pub outgoing: BTreeMap<usize, Pipe<S::Message>>,
    /// What has come and is not read, by sender.
    pub incoming: BTreeMap<usize, Pipe<S::Message>>,
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
pub(crate) struct Said<M> {
    /// What is to be sent, by receiver.
    pub sends: BTreeMap<usize, Vec<Rc<EncodedMessage<M>>>>,
    /// What a client's session tells.
    pub told: Vec<Tell>,
    /// Whether it must be durable first.
    pub syncs: bool,
    /// What it took of a core.
    pub cost_ns: f64,
}

impl<S: Engine> Process<S> {
    /// A process that remembers `roots_max` checked roots in all.
    pub fn new(party: Party, host: usize, kind: Kind<S>, replicas: usize, roots_max: usize) -> Self {
        Self {
            party,
            host,
            kind,
            phase: Phase::Idle,
            mailbox: VecDeque::new(),
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
        let wakes_at = match &self.kind {
            Kind::Replica(turns) => turns.wakes_at(),
            Kind::Client(turns, _) => turns.wakes_at(),
        };
        wakes_at.map(|at| at.0)
    }

    /// One turn of the loop: all that has arrived, one write to disk, signatures.
    pub fn turn(&mut self, now: u64, accounting: &mut CostAccounting<'_, S>) -> Said<S::Message> {
        let Self { party, kind, mailbox, roots_signed, .. } = self;
        match kind {
            Kind::Client(turns, _) => {
                let (said, told) = turn(turns, mailbox, Time(now), |ask| ask, |_| false, &mut NoSigner, accounting);
                Said { told, ..said }
            }
            Kind::Replica(turns) => {
                let mut signer = Roots { signer: accounting.place(*party), signed: roots_signed, signatures: accounting.spec.signatures };
                let asked = |_| unreachable!("nobody asks a replica but by messages");
                turn(turns, mailbox, Time(now), asked, S::is_pending, &mut signer, accounting).0
            }
        }
    }

    /// Reads what has come from `from`, as much as one read takes. Gives it with its price.
    pub fn read(&mut self, from: usize, accounting: &CostAccounting<'_, S>) -> (Vec<Rc<EncodedMessage<S::Message>>>, f64) {
        let costs = &accounting.costs;
        let pipe = self.incoming.get_mut(&from).expect("something has come");
        let (mut messages, mut bytes, mut claims, mut new_roots) = (Vec::new(), 0, 0, 0);
        while let Some(encoded_message) = pipe.messages.pop_front() {
            bytes += encoded_message.bytes;
            claims += encoded_message.roots.len();
            for root in &encoded_message.roots {
                new_roots += usize::from(!self.known[root.signer].learn(root.serial, self.remembered));
            }
            messages.push(encoded_message);
            if bytes >= READ_BYTES || messages.len() >= READ_MESSAGES {
                break;
            }
        }
        let mut cost_ns = costs.read_ns + costs.byte_ns * bytes as f64 + costs.decode_ns * messages.len() as f64;
        cost_ns += costs.claim_ns * claims as f64;
        if accounting.spec.signatures {
            cost_ns += costs.check_batch_ns * new_roots.div_ceil(CHECK_ROOTS_MAX) as f64 + costs.check_root_ns * new_roots as f64;
        }
        (messages, cost_ns)
    }
}

/// A turn as the real loop takes it, with its price. Gives what it came to, and apart from that what the machine's own side is told.
fn turn<S: Engine, M: Durable<Received = Verified<S::Message>, Message = S::Message>>(
    turns: &mut Turns<M>,
    mailbox: &mut VecDeque<Heard<S::Message>>,
    now: Time,
    command: impl Fn(Ask) -> M::Command,
    is_pending: impl Fn(&M) -> bool,
    signer: &mut impl Signer<M::Unsigned, S::Message>,
    accounting: &mut CostAccounting<'_, S>,
) -> (Said<S::Message>, Vec<M::Event>) {
    let mut cost_ns = accounting.costs.turn_ns;
    let ticks = turns.machine().deadline().is_some_and(|deadline| deadline <= now);
    let mut turn = if ticks { accounting.step(&mut cost_ns, OTHER, || turns.begin(now)) } else { turns.begin(now) };
    while turn.room() > 0
        && let Some(heard) = mailbox.pop_front()
    {
        let (kind, input) = match heard {
            Heard::Ask(ask) => (step_of(&ask.request), Input::Command(command(ask))),
            Heard::Message(from, encoded) => (S::step(&encoded.message), Input::Message { from, message: encoded.message.clone() }),
        };
        accounting.step(&mut cost_ns, kind, || turn.step(now, input));
    }
    let stepped = turn.stepped(now);
    let syncs = stepped.writes() && is_pending(stepped.machine());
    if syncs {
        cost_ns += accounting.costs.sync_cpu_ns;
    }
    let said = stepped.persist().expect("memory does not fail").sign(signer);
    cost_ns += accounting.costs.leaf_ns * said.statements as f64;
    if accounting.spec.signatures {
        cost_ns += accounting.costs.sign_ns * said.signatures as f64;
    }
    accounting.signed.0 += said.statements as u64;
    accounting.signed.1 += said.signatures as u64;
    let mut sends: BTreeMap<usize, Vec<Rc<EncodedMessage<S::Message>>>> = BTreeMap::new();
    for (to, message) in said.sends.drain(..) {
        cost_ns += accounting.costs.encode_ns;
        sends.entry(accounting.place(to)).or_default().push(accounting.encoder.pack(message));
    }
    mailbox.extend(said.own.drain(..).map(|message| Heard::Message(said.me, accounting.encoder.pack(message))));
    (Said { sends, told: Vec::new(), syncs, cost_ns }, std::mem::take(said.events))
}

/// Signs nothing, and says what roots there would be.
struct Roots<'a> {
    signer: usize,
    signed: &'a mut u64,
    signatures: bool,
}

impl<D: Signable> Signer<D, D::Message> for Roots<'_> {
    type Signature = BatchSignature;

    fn sign_batch(&mut self, batch: &[(Party, D)]) -> Vec<BatchSignature> {
        let root = Root { signer: self.signer, serial: *self.signed };
        *self.signed += 1;
        // Without signatures all share a batch signature without a path.
        if self.signatures { root.signatures(batch.len()) } else { vec![root.signatures(1).remove(0); batch.len()] }
    }

    fn with_signature(&mut self, unsigned: D, signature: BatchSignature) -> D::Message {
        unsigned.with_signature(signature)
    }
}
