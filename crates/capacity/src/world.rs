//! Virtual time: what happens next, and to whom.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use engine::Ask;
use machine::Time;
use machine::turn::{Bounds, Turns};
use simulator::{EPOCH_NS, Queue};
use store::{Memory, Options};
use types::{ClientId, Cluster, Party, Session};

use crate::closed_loop_clients::{ClosedLoopClients, Next, Outcome};
use crate::encoded_message::{EncodedMessage, MessageEncoder};
use crate::engine::{Engine, Step};
use crate::host::{Host, Job, Running, Thread};
use crate::prediction::{Attempts, Prediction};
use crate::process::{CostAccounting, Heard, Kind, Phase, Process, Said};
use crate::{ClusterSpec, Costs, Hosting};

/// Loop clients begin after so much, and two round trips: replicas serve once they have told one another what time it is.
const READY_NS: u64 = 8_000_000;
/// Loop clients begin within this time, evenly.
const BEGIN_NS: u64 = 5_000_000;
/// How many roots a replica and a client remember, as in the real program.
const ROOTS_REMEMBERED: (usize, usize) = (65_536, 16_384);

type EncodedMessages<M> = Vec<Rc<EncodedMessage<M>>>;

/// Something that is going to happen.
enum Happening<M> {
    /// A job is done.
    Done { running: Running, done: Done<M> },
    /// What a turn wrote is durable.
    Synced { process: usize, said: Said<M> },
    /// What was written is there.
    Arrived { from: usize, to: usize, messages: EncodedMessages<M> },
    /// A loop client begins, or begins again.
    LoopClientBegins { client: usize, loop_client: usize },
    /// A timer may be due.
    Wake { process: usize },
}

/// What a job came to.
enum Done<M> {
    /// A loop's turn is over, but for the disk.
    Turn { process: usize, said: Said<M> },
    /// Something was written to a connection.
    Write { from: usize, to: usize, messages: EncodedMessages<M> },
    /// Something was read and checked.
    Read { from: usize, to: usize, messages: EncodedMessages<M> },
    /// A loop client has looked at its answer.
    LoopClient { client: usize, loop_client: usize },
}

/// When things are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Counting {
    NotYet,
    Since(u64),
    Over { since: u64, until: u64 },
}

pub(crate) struct World<'a, S: Engine> {
    accounting: CostAccounting<'a, S>,
    now: u64,
    queue: Queue<Happening<S::Message>>,
    hosts: Vec<Host>,
    processes: Vec<Process<S>>,
    counting: Counting,
    attempts: Attempts,
    /// Of those that committed while it was counted.
    latencies: Vec<u64>,
    /// Attempts that ended otherwise while it was counted.
    in_vain: u64,
}

impl<'a, S: Engine> World<'a, S> {
    pub fn new(spec: &ClusterSpec, costs: &Costs, seed: u64, watch: Option<&'a mut dyn FnMut() -> u64>) -> Self {
        assert!(spec.clients > 0 && spec.closed_loop_clients > 0, "there is somebody who asks for something");
        assert!(spec.measured_ms > 0 && spec.steps_max > 0, "there is time to count something");
        let a_shard = S::replicas_per_shard(spec.faults);
        let cluster = cluster(spec, a_shard);
        let (spec, costs, encoder) = (spec.clone(), costs.clone(), MessageEncoder::new(cluster.clone()));
        let accounting = CostAccounting { spec, cluster, costs, encoder, steps: 0, signed: (0, 0), timings: BTreeMap::new(), watch };
        let (spec, (machines, cores)) = (&accounting.spec, accounting.spec.machines(a_shard));
        let all_machines = (0..spec.clients).map(|client| spec.host_of_client(client, a_shard) + 1).max().unwrap_or(machines);
        Self {
            now: EPOCH_NS,
            queue: Queue::default(),
            hosts: (0..all_machines).map(|_| Host::new(cores)).collect(),
            processes: processes(&accounting, seed),
            accounting,
            counting: Counting::NotYet,
            attempts: Attempts::default(),
            latencies: Vec::new(),
            in_vain: 0,
        }
    }

    /// Runs to the end. Gives what it came to, and what each kind of step really took.
    pub fn run(mut self) -> (Prediction, Vec<(Step, f64)>) {
        let (clients, closed_loop_clients) = (self.accounting.spec.clients, self.accounting.spec.closed_loop_clients);
        for process in 0..self.processes.len() {
            self.arm(process);
        }
        let ready = READY_NS + 4_000 * self.accounting.spec.network_us;
        for number in 0..clients * closed_loop_clients {
            let after = ready + BEGIN_NS * number as u64 / (clients * closed_loop_clients) as u64;
            // One loop client of each client after another.
            let (client, loop_client) = (self.accounting.replicas() + number % clients, number / clients);
            self.queue.add(EPOCH_NS + after, Happening::LoopClientBegins { client, loop_client });
        }
        while let Some((at, happening)) = self.queue.pop() {
            self.now = at;
            self.count();
            if self.accounting.steps >= self.accounting.spec.steps_max || self.is_over() && self.attempts.under_way == 0 {
                break;
            }
            self.happen(happening);
        }
        let timings = self.accounting.timings.iter().map(|(step, (ns, count))| (*step, *ns as f64 / *count as f64)).collect();
        (self.prediction(), timings)
    }

    fn is_over(&self) -> bool {
        matches!(self.counting, Counting::Over { .. })
    }

    /// Begins to count, or ends it, when it is time.
    fn count(&mut self) {
        let ClusterSpec { warmup_ms, measured_ms, steps_max, .. } = self.accounting.spec;
        let (now, steps) = (self.now, self.accounting.steps);
        match self.counting {
            Counting::NotYet if now >= EPOCH_NS + warmup_ms * 1_000_000 || steps >= steps_max / 3 => {
                self.counting = Counting::Since(now);
                self.accounting.signed = (0, 0);
            }
            Counting::Since(since) if now >= since + measured_ms * 1_000_000 || steps >= steps_max => {
                self.counting = Counting::Over { since, until: now.max(since + 1) };
            }
            Counting::NotYet | Counting::Since(_) | Counting::Over { .. } => {}
        }
    }

    fn happen(&mut self, happening: Happening<S::Message>) {
        match happening {
            Happening::Done { running, done } => {
                self.done(done);
                self.go_on(running);
            }
            Happening::Synced { process, said } => self.speak(process, said),
            Happening::Arrived { from, to, messages } => {
                let pipe = self.processes[to].incoming.entry(from).or_default();
                pipe.messages.extend(messages);
                if !std::mem::replace(&mut pipe.busy, true) {
                    self.offer(Job::Read { to, from });
                }
            }
            Happening::LoopClientBegins { client, loop_client } => self.loop_client_begins(client, loop_client),
            Happening::Wake { process } => {
                if self.processes[process].armed == Some(self.now) {
                    self.processes[process].armed = None;
                    if self.processes[process].wakes_at().is_some_and(|at| at <= self.now) {
                        self.wake(process);
                    } else {
                        self.arm(process);
                    }
                }
            }
        }
    }

    fn done(&mut self, done: Done<S::Message>) {
        match done {
            Done::Turn { process, said } if said.syncs => {
                let sync_ns = whole(self.accounting.costs.sync_ns);
                if self.counts() {
                    self.processes[process].loop_ns += sync_ns;
                }
                self.queue.add(self.now + sync_ns, Happening::Synced { process, said });
            }
            Done::Turn { process, said } => self.speak(process, said),
            Done::Write { from, to, messages } => {
                let is_near = self.processes[from].host == self.processes[to].host;
                let delay_ns = if is_near { 0 } else { self.accounting.spec.network_us * 1_000 };
                self.queue.add(self.now + delay_ns, Happening::Arrived { from, to, messages });
                let pipe = self.processes[from].outgoing.get_mut(&to).expect("something was written");
                pipe.busy = !pipe.messages.is_empty();
                if pipe.busy {
                    self.offer(Job::Write { from, to });
                }
            }
            Done::Read { from, to, messages } => {
                let party = self.processes[from].party;
                let process = &mut self.processes[to];
                process.mailbox.extend(messages.into_iter().map(|encoded_message| Heard::Message(party, encoded_message)));
                let pipe = process.incoming.get_mut(&from).expect("something was read");
                pipe.busy = !pipe.messages.is_empty();
                if pipe.busy {
                    self.offer(Job::Read { to, from });
                }
                self.wake(to);
            }
            Done::LoopClient { client, loop_client } => self.loop_client_goes_on(client, loop_client),
        }
    }

    /// Sends what a turn said, tells the loop clients, and sees whether there is more to do.
    fn speak(&mut self, process: usize, said: Said<S::Message>) {
        for (to, messages) in said.sends {
            let pipe = self.processes[process].outgoing.entry(to).or_default();
            pipe.messages.extend(messages);
            if !std::mem::replace(&mut pipe.busy, true) {
                self.offer(Job::Write { from: process, to });
            }
        }
        for told in said.told {
            if let Some(loop_client) = self.loop_clients(process).hear(told) {
                self.offer(Job::LoopClient { client: process, loop_client });
            }
        }
        self.processes[process].phase = Phase::Idle;
        if self.processes[process].mailbox.is_empty() {
            self.arm(process);
        } else {
            self.wake(process);
        }
    }

    /// Has a loop take a turn, unless it is at one.
    fn wake(&mut self, process: usize) {
        if std::mem::replace(&mut self.processes[process].phase, Phase::Busy) == Phase::Idle {
            self.offer(Job::Turn { process });
        }
    }

    /// Has a sleeping loop woken for its next timer.
    fn arm(&mut self, process: usize) {
        let Some(at) = self.processes[process].wakes_at() else { return };
        let at = at.max(self.now + 1);
        if self.processes[process].armed.is_none_or(|armed| at < armed || armed < self.now) {
            self.processes[process].armed = Some(at);
            self.queue.add(at, Happening::Wake { process });
        }
    }

    /// There is something to do. A replica's loop has a thread of its own; a client's is a task among others.
    fn offer(&mut self, job: Job) {
        let at = job.process();
        let process = &mut self.processes[at];
        let host = &mut self.hosts[process.host];
        match (job, &process.kind) {
            (Job::Turn { .. }, Kind::Replica(_)) => host.ready(Thread::Loop { process: at }),
            _ => {
                process.jobs.push_back(job);
                if process.workers < host.cores {
                    process.workers += 1;
                    host.ready(Thread::Worker { process: at });
                }
            }
        }
        let host = process.host;
        self.share_out(host);
    }

    /// Gives free cores to threads that are ready.
    fn share_out(&mut self, host: usize) {
        while let Some(thread) = self.hosts[host].take() {
            let running = Running { thread, slice_ends: self.now + whole(self.accounting.costs.slice_ns) };
            self.run_next(running, self.accounting.costs.wake_ns);
        }
    }

    /// A thread has done something. It goes on while it has its core.
    fn go_on(&mut self, running: Running) {
        let (Thread::Loop { process } | Thread::Worker { process }) = running.thread;
        let host = self.processes[process].host;
        if running.thread == (Thread::Worker { process }) && !self.processes[process].jobs.is_empty() {
            if self.now >= running.slice_ends && self.hosts[host].is_wanted() {
                self.hosts[host].ready(running.thread);
            } else {
                self.run_next(running, 0.0);
                return;
            }
        } else if running.thread == (Thread::Worker { process }) {
            self.processes[process].workers -= 1;
        }
        self.hosts[host].release();
        self.share_out(host);
    }

    /// Has a thread that has a core do what is next for it.
    fn run_next(&mut self, running: Running, wake_ns: f64) {
        let job = match running.thread {
            Thread::Loop { process } => Some(Job::Turn { process }),
            Thread::Worker { process } => self.processes[process].jobs.pop_front(),
        };
        let Some(job) = job else {
            // Another worker was quicker.
            self.go_on(running);
            return;
        };
        let (done, cost_ns) = self.work(job);
        let cost_ns = whole(cost_ns + wake_ns);
        if self.counts() {
            let process = &mut self.processes[job.process()];
            process.busy_ns += cost_ns;
            if matches!(job, Job::Turn { .. }) {
                process.loop_ns += cost_ns;
            }
        }
        self.queue.add(self.now + cost_ns, Happening::Done { running, done });
    }

    /// Does a job. Gives what it comes to when it is done, and how long that takes.
    fn work(&mut self, job: Job) -> (Done<S::Message>, f64) {
        let costs = &self.accounting.costs;
        match job {
            Job::Turn { process } => {
                let said = self.processes[process].turn(self.now, &mut self.accounting);
                let cost_ns = said.cost_ns;
                (Done::Turn { process, said }, cost_ns)
            }
            Job::Write { from, to } => {
                let pipe = self.processes[from].outgoing.get_mut(&to).expect("something is to be written");
                let messages: EncodedMessages<_> = pipe.messages.drain(..).collect();
                let bytes: usize = messages.iter().map(|encoded_message| encoded_message.bytes).sum();
                (Done::Write { from, to, messages }, costs.write_ns + costs.byte_ns * bytes as f64)
            }
            Job::Read { to, from } => {
                let (messages, cost_ns) = self.processes[to].read(from, &self.accounting);
                (Done::Read { from, to, messages }, cost_ns)
            }
            Job::LoopClient { client, loop_client } => (Done::LoopClient { client, loop_client }, costs.loop_client_ns),
        }
    }

    fn counts(&self) -> bool {
        matches!(self.counting, Counting::Since(_))
    }

    fn loop_clients(&mut self, client: usize) -> &mut ClosedLoopClients {
        match &mut self.processes[client].kind {
            Kind::Client(_, closed_loop_clients) => closed_loop_clients,
            Kind::Replica(_) => unreachable!("only clients have loop clients"),
        }
    }

    fn loop_client_begins(&mut self, client: usize, loop_client: usize) {
        // When all is counted, nobody begins.
        if self.is_over() {
            return;
        }
        self.attempts.begun += 1;
        self.attempts.under_way += 1;
        let now = self.now;
        let ask = self.loop_clients(client).begin(loop_client, now);
        self.ask(client, ask);
    }

    fn ask(&mut self, client: usize, ask: Ask) {
        self.processes[client].mailbox.push_back(Heard::Ask(ask));
        self.wake(client);
    }

    fn loop_client_goes_on(&mut self, client: usize, loop_client: usize) {
        let now = self.now;
        let outcome = match self.loop_clients(client).look(loop_client, now) {
            Next::Ask(ask) => return self.ask(client, ask),
            Next::Over(outcome) => outcome,
        };
        self.note(outcome);
        if self.is_over() {
            return;
        }
        match outcome {
            Outcome::Committed(_) => self.loop_client_begins(client, loop_client),
            Outcome::Aborted | Outcome::Failed => {
                let after = self.loop_clients(client).backoff(loop_client);
                self.queue.add(now + after, Happening::LoopClientBegins { client, loop_client });
            }
        }
    }

    fn note(&mut self, outcome: Outcome) {
        self.attempts.under_way -= 1;
        let counts = self.counts();
        match outcome {
            Outcome::Committed(latency_ns) => {
                self.attempts.committed += 1;
                if counts {
                    self.latencies.push(latency_ns);
                }
                return;
            }
            Outcome::Aborted => self.attempts.aborted += 1,
            Outcome::Failed => self.attempts.failed += 1,
        }
        self.in_vain += u64::from(counts);
    }

    fn prediction(mut self) -> Prediction {
        let (since, until) = match self.counting {
            Counting::NotYet => (self.now, self.now + 1),
            Counting::Since(since) => (since, self.now.max(since + 1)),
            Counting::Over { since, until } => (since, until),
        };
        let spec = &self.accounting.spec;
        let window_ns = (until - since) as f64;
        self.latencies.sort_unstable();
        let committed = self.latencies.len();
        let at = |part: f64| self.latencies.get((committed as f64 * part) as usize).map_or(0.0, |ns| *ns as f64 / 1e6);
        let each = |total: f64| if committed == 0 { 0.0 } else { total / committed as f64 };
        let (machines, cores) = spec.machines(self.accounting.cluster.replicas_per_shard());
        let (replicas, clients) = self.processes.split_at(self.accounting.replicas());
        let busy = |processes: &[Process<S>]| processes.iter().map(|process| process.busy_ns as f64).sum::<f64>();
        let (of_replicas, of_clients) = (busy(replicas), busy(clients));
        // Where clients are on the same machines, these work for them as well.
        let on_machines = if matches!(spec.hosting, Hosting::OneHost { .. }) { of_replicas + of_clients } else { of_replicas };
        let loops: f64 = replicas.iter().map(|replica| replica.loop_ns as f64).sum();
        let (statements, roots) = self.accounting.signed;
        let attempts = committed as u64 + self.in_vain;
        Prediction {
            committed_per_second: committed as f64 * 1e9 / window_ns,
            latency_ms: each(self.latencies.iter().map(|ns| *ns as f64 / 1e6).sum()),
            p50_ms: at(0.5),
            p99_ms: at(0.99),
            cpu_us: each((of_replicas + of_clients) / 1e3),
            replicas_cpu_us: each(of_replicas / 1e3),
            commit_rate: if attempts == 0 { 0.0 } else { committed as f64 / attempts as f64 },
            statements_a_root: if roots == 0 { 0.0 } else { statements as f64 / roots as f64 },
            host_busy: on_machines / (window_ns * (machines * cores) as f64),
            loop_busy: loops / (window_ns * replicas.len() as f64),
            client_busy: clients.iter().map(|client| client.loop_ns as f64 / window_ns).fold(0.0, f64::max),
            measured_ms: window_ns / 1e6,
            attempts: self.attempts,
        }
    }
}

/// A price as time passes.
fn whole(ns: f64) -> u64 {
    ns.max(0.0).round() as u64
}

fn client_id(client: usize) -> ClientId {
    ClientId(client as u64 + 1)
}

/// A cluster of this shape. Its keys are numbers: nobody signs with them.
fn cluster(spec: &ClusterSpec, a_shard: usize) -> Arc<Cluster> {
    let mut keys = (1u64..).map(|number| {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&number.to_le_bytes());
        key
    });
    let replicas = (0..spec.shards).map(|_| keys.by_ref().take(a_shard).collect()).collect();
    simulator::cluster(spec.faults, replicas, (0..spec.clients).map(client_id).zip(keys))
}

/// Everybody: the replicas, then the clients.
fn processes<S: Engine>(accounting: &CostAccounting<'_, S>, seed: u64) -> Vec<Process<S>> {
    let CostAccounting { spec, cluster, .. } = accounting;
    let (replicas, a_shard) = (accounting.replicas(), cluster.replicas_per_shard());
    let bounds = Bounds { batch_max: spec.batch_max, ..Bounds::default() };
    let store = Options { cache_bytes_max: 1 << 20, ..Options::default() };
    let replica = |(place, id)| {
        let options = S::process_options(spec, seed ^ place as u64);
        let machine = S::open(cluster, id, &options, (&Memory::new(&format!("predicted {id}")), store), Time(EPOCH_NS));
        let party = Party::Replica(id);
        let kind = Kind::Replica(Box::new(Turns::new(machine.expect("an empty store opens"), party, bounds)));
        Process::new(party, spec.host_of_replica(place, a_shard), kind, replicas, ROOTS_REMEMBERED.0)
    };
    let client = |client| {
        let id = client_id(client);
        let loop_clients = ClosedLoopClients::new(id, cluster.clone(), spec, seed);
        let party = Party::Client(id, Session(1));
        let kind = Kind::Client(Box::new(Turns::new(S::session(cluster, spec), party, bounds)), Box::new(loop_clients));
        Process::new(party, spec.host_of_client(client, a_shard), kind, replicas, ROOTS_REMEMBERED.1)
    };
    cluster.replicas().enumerate().map(replica).chain((0..spec.clients).map(client)).collect()
}
