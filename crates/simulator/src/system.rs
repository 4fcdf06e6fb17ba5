//! What an engine brings to be simulated.
//!
//! The kernel owns the world: time, the queue of events, network, disks, clocks, crashes, upgrades, phases, traces, shrinking.
//! An engine is one implementation of [`System`]: which machines run, how some of them lie, who checks what they do, and how a
//! scenario is filled with the engine's own settings. Whatever an implementation draws, it draws from the [`Random`] it is given
//! or from a stream of the seed under a name of its own, so that a seed stays one run.

use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;

use crypto::{Signable, SignatureClaims, Verified};
use machine::{Durable, Machine, Time};
use random::{Named, Random};
use store::{Memory, Options};
use types::codec::{Decode, Encode};
use types::{ClientId, Cluster, Party, ReplicaId};

use crate::report::{Counts, Violations};
use crate::scenario::{Scenario, ScenarioKind};
use crate::setting::Setting;
use crate::trace::Trace;

/// An engine under simulation.
pub trait System: Sized + Clone + fmt::Debug + 'static {
    /// What participants say to one another.
    type Message: SignatureClaims + Clone + Decode + Encode;
    /// What a replica says under its signature.
    type Unsigned: Clone + Signable<Message = Self::Message>;
    /// One replica's process.
    type Replica: Durable + Machine<Received = Verified<Self::Message>, Message = Self::Message, Unsigned = Self::Unsigned>;
    /// One client's process, honest or not, with what it does all day.
    type Client: Client<Self>;
    /// What stands between a lying replica's machine and the world.
    type Liar: Liar<Self>;
    /// What reads messages under way and delays some of them; `()` when there is no such thing.
    type NetworkAdversary: NetworkAdversary<Self::Message>;
    /// Who watches everything.
    type Checker: Checker<Self>;
    /// What the engine decides before the first event, beside what the kernel does.
    type Setting: EngineSetting;
    /// What a replica's process is started with, and what may differ after an upgrade.
    type Options: Copy + fmt::Debug;
    /// A way for a replica to lie.
    type ReplicaStrategy: Named + Ord;
    /// A way for a client to cheat.
    type ClientStrategy: Named + Ord;
    /// What the engine counts in a run, beside [`Counts`].
    type Counts: EngineCounts;

    /// Every scenario, the quietest first.
    const SCENARIOS: &'static [ScenarioKind];
    /// Whether the engine's promises hold though a replica forgets the last batch of its journal, as it does when bits flip in it and that looks
    /// like a torn write. It counts as one that lies then. Otherwise no such bits flip.
    const MAY_FORGET: bool = true;
    /// Whether a replica that gives up rows of its base table takes them over from the others.
    const MAKES_UP_FOR_ROWS: bool = false;

    /// What keys of its clients begin with, each kind with others: of these rights are made, where clients do not have all. Honest clients can always get something
    /// done with the first. Where there are none all may do everything.
    const KINDS_OF_KEYS: &'static [&'static str] = &[];

    /// Keys with which another shard may begin: of these, where keys are placed by ranges, the first as many as there are shards beside the
    /// first. Where there are too few, keys are placed by hash.
    const BOUNDS: &'static [&'static str] = &[];

    // Settings.

    /// How many replicas a shard needs to survive so many faults.
    fn replicas_per_shard(faults: usize) -> usize;

    /// What `seed` makes of the engine's own settings.
    fn draw(scenario: &Scenario<Self>, seed: u64) -> Self::Setting;

    /// Changes what the kernel drew where the engine's own settings ask for it.
    fn adjust(_scenario: &Scenario<Self>, _setting: &mut Setting<Self>) {}

    /// The ways in which one replica lies.
    fn draw_replica_strategies(scenario: &Scenario<Self>, random: &mut Random) -> Vec<Self::ReplicaStrategy>;

    /// The ways in which one client cheats.
    fn draw_client_strategies(scenario: &Scenario<Self>, random: &mut Random) -> Vec<Self::ClientStrategy>;

    /// What a replica's first process is started with.
    fn options(setting: &Setting<Self>, replica: ReplicaId) -> Self::Options;

    /// What another version of the program may be started with. What a whole cluster must agree on stays.
    fn upgraded(options: Self::Options, _random: &mut Random) -> Self::Options {
        options
    }

    /// What a replica that ran with `own` is started with as another version. A process draws `seed` when it starts.
    fn restarted(_own: Self::Options, version: Self::Options, _seed: u64) -> Self::Options {
        version
    }

    /// How long after its start a replica takes its full part again, in milliseconds: so long a careful operator waits.
    fn ready_after_ms(_setting: &Setting<Self>) -> u64 {
        0
    }

    // Who is there.

    /// Starts a replica's process from what its disk holds, at `now` by its own clock.
    ///
    /// # Errors
    /// A sentence, when the disk cannot be used.
    fn open(
        cluster: &Arc<Cluster>,
        replica: ReplicaId,
        options: &Self::Options,
        disk: (&Memory, Options),
        now: Time,
    ) -> Result<Self::Replica, String>;

    /// A replica's lying half.
    fn liar(
        cluster: &Arc<Cluster>,
        replica: ReplicaId,
        strategies: Vec<Self::ReplicaStrategy>,
        random: Random,
        others: &Clients,
    ) -> Self::Liar;

    /// A client; one that cheats when there are strategies.
    fn client(
        cluster: &Arc<Cluster>,
        id: ClientId,
        setting: &Setting<Self>,
        cheat: Option<(Vec<Self::ClientStrategy>, Random)>,
        others: &Clients,
    ) -> Self::Client;

    /// The network's adversary. Nothing that it delays may arrive after `ends_at`.
    fn network_adversary(cluster: &Cluster, setting: &Setting<Self>, seed: u64, ends_at: u64) -> Self::NetworkAdversary;

    /// The checkers.
    fn checker(cluster: &Arc<Cluster>, others: &Clients) -> Self::Checker;

    /// Stops a replica in good order, after its last turn.
    ///
    /// # Errors
    /// Why what it wrote cannot be made durable.
    fn close(replica: Self::Replica) -> Result<(), String>;

    // What can be seen of a replica, and of a message.

    /// Whether a replica has written something that is not durable yet: there a crash hurts most.
    fn is_pending(replica: &Self::Replica) -> bool;

    /// What a replica has begun and not ended, by name. Once all is quiet there must be nothing.
    fn undecided(replica: &Self::Replica) -> Vec<String>;

    /// The same with what each of it waits for: the last lines of a run that fails.
    fn explain_undecided(replica: &Self::Replica) -> Vec<String> {
        Self::undecided(replica)
    }

    /// In what honest replicas of a shard differ that must come to hold the same. Once all is quiet there must be nothing.
    fn differences(_replicas: &[(ReplicaId, &Self::Replica)]) -> Vec<String> {
        Vec::new()
    }

    /// Notes on an empty disk that its replica lost what it said before.
    ///
    /// # Errors
    /// A sentence, when that cannot be, as where an engine rebuilds nobody.
    fn mark_lost(_disk: (&Memory, Options)) -> Result<(), String> {
        Err("this engine rebuilds no replica".to_owned())
    }

    /// Whether a replica that lost its disk is not done with being rebuilt.
    fn is_rebuilding(_replica: &Self::Replica) -> bool {
        false
    }

    /// Flips a bit in a value that a replica holds, behind its back. Says in which; nothing where there is none, or the engine keeps nothing.
    fn flip_at_rest(_replica: &mut Self::Replica, _random: &mut Random) -> Option<String> {
        None
    }

    /// Whether a replica still goes by the value in which a bit flipped, as [`System::flip_at_rest`] named it: a newer one that it lacked
    /// then may have come since.
    fn goes_by(_replica: &Self::Replica, _what: &str) -> bool {
        true
    }

    /// How often a replica's process has named a part of its own state that was wrong.
    fn noticed(_replica: &Self::Replica) -> u64 {
        0
    }

    /// What tells a replica that the operators have changed the cluster; nothing where an engine does not mind.
    fn replica_reconfigured(_cluster: Arc<Cluster>) -> Option<<Self::Replica as Machine>::Command> {
        None
    }

    /// The same for a client.
    fn client_reconfigured(_cluster: Arc<Cluster>) -> Option<<Self::Client as Machine>::Command> {
        None
    }

    /// A message in a line.
    fn describe(message: &Self::Message) -> String;
}

/// Who is who among the clients.
#[derive(Clone, Debug)]
pub struct Clients {
    /// Those that follow the protocol. The auditor, who only looks at the end, is not among them.
    pub honest: Vec<ClientId>,
    /// Those that cheat, and know who else does.
    pub byzantine: Vec<ClientId>,
    /// The honest one that only looks at the end.
    pub auditor: ClientId,
}

/// The engine's own settings.
pub trait EngineSetting: Clone + fmt::Debug {
    /// All of them, each as `name=value`.
    fn describe(&self) -> Vec<String>;

    /// Sets `key` to `value`. Gives nothing when there is no such key; a sentence when the value makes no sense.
    fn apply(&mut self, key: &str, value: &str) -> Option<Result<(), String>>;

    /// Settings with less in them, one thing at a time, the most first: what shrinking tries.
    fn simpler(&self) -> Vec<Self> {
        Vec::new()
    }

    /// Whether none of them could keep an honest client waiting.
    fn is_steady(&self) -> bool {
        true
    }
}

/// What an engine counts in a run.
pub trait EngineCounts: Clone + Copy + Default + fmt::Debug + PartialEq {
    /// Adds another run's.
    fn add(&mut self, other: &Self);

    /// All of them, each with its name.
    fn named(&self) -> Vec<(&'static str, u64)>;
}

impl EngineCounts for () {
    fn add(&mut self, (): &Self) {}

    fn named(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
}

/// What is said beside what a machine says: statements to be signed, and messages.
#[derive(Debug)]
pub struct Lies<S: System> {
    /// Statements that the liar signs.
    pub unsigned: Vec<(Party, S::Unsigned)>,
    /// Messages.
    pub sends: Vec<(Party, S::Message)>,
}

impl<S: System> Default for Lies<S> {
    fn default() -> Self {
        Self { unsigned: Vec::new(), sends: Vec::new() }
    }
}

/// Whether the honest machine behind a liar hears a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// It does.
    Pass,
    /// It does not.
    Swallow,
}

/// A replica that lies: an honest machine behind, and this between the machine and the world. It holds its own key and nobody
/// else's, so what it signs is signed and checked like everybody's.
pub trait Liar<S: System> {
    /// Before the machine hears a message: what to say at once, and whether the machine hears it.
    fn hear(&mut self, _from: Party, _message: &S::Message, _lies: &mut Lies<S>) -> Heard {
        Heard::Pass
    }

    /// Before anything is signed: turns what the machine says into what the liar says.
    fn speak(&mut self, _sends: &mut Vec<(Party, S::Message)>, _unsigned: &mut Vec<(Party, S::Unsigned)>) {}

    /// After everything is signed: changes messages.
    fn forge(&mut self, _sends: &mut [(Party, S::Message)]) {}

    /// After how many nanoseconds a message leaves that is not to leave at once.
    fn holds_back(&mut self, _message: &S::Message) -> u64 {
        0
    }

    /// On the way out: damages bytes.
    fn garble(&mut self, _bytes: &mut [u8]) {}

    /// Whether it comes back from an empty disk now and then, and says so to nobody.
    fn forgets(&self) -> bool {
        false
    }
}

/// A network that reads what is under way and delays some of it. It loses nothing.
pub trait NetworkAdversary<M> {
    /// Whether it matters to it who is next to take a turn.
    fn watches_turns(&self) -> bool {
        false
    }

    /// Before when a message that departs at `now` must not arrive; 0 when it may go its way. `is_next` says that it is for a
    /// replica that is next to take a turn.
    fn not_before(&mut self, _now: u64, _from: Party, _to: Party, _message: &M, _is_next: bool) -> u64 {
        0
    }
}

impl<M> NetworkAdversary<M> for () {}

/// What a client is to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// Whatever it likes.
    Anything,
    /// Something that others want too: what progress is measured by.
    Contended,
    /// The auditor's only task: look at everything there is.
    Audit,
}

/// How a client's task goes on.
#[derive(Debug)]
pub enum Next<C> {
    /// Give this to its machine.
    Command(C),
    /// It waits for what its machine tells it.
    Wait,
    /// What it wanted has come about.
    Done,
    /// The task has ended, and nothing came of it that was wanted.
    NotDone,
    /// Nobody knows what came of the task, or it was refused.
    Failed,
    /// The same, because no answer came in time: of what, in a few words. An honest client must not be kept waiting without reason.
    TimedOut(String),
}

/// A client: its machine, and the application above it that has one task after the other.
pub trait Client<S: System>:
    Machine<Received = Verified<S::Message>, Message = S::Message, Unsigned = Infallible> + Durable<Failure = Infallible>
{
    /// Whether it follows the protocol.
    fn is_honest(&self) -> bool;

    /// Begins a task.
    fn begin(&mut self, goal: Goal, scene: &mut Scene<'_, S>) -> Next<Self::Command>;

    /// Hears from its own machine about the task it is at.
    fn told(&mut self, event: Self::Event, scene: &mut Scene<'_, S>) -> Next<Self::Command>;

    /// Its process ends, or it leaves what it is at: it knows nothing afterwards.
    fn forget(&mut self);
}

/// What a client sees and may write to while it goes on with its task.
pub struct Scene<'a, S: System> {
    /// Who it is.
    pub id: ClientId,
    /// Its session.
    pub party: Party,
    /// What its clock shows.
    pub local: Time,
    /// Until when its clock stood still, or will, in true time, as that of a machine that was paused, and nothing that its process could see
    /// shows that.
    pub paused_until: u64,
    /// What it draws from.
    pub random: &'a mut Random,
    /// The run's settings.
    pub setting: &'a Setting<S>,
    /// Who watches it.
    pub checker: &'a mut S::Checker,
    /// What happened, as people can read it.
    pub trace: &'a mut Trace,
    /// True time, for the trace.
    pub now: u64,
    /// What is counted of any engine.
    pub counts: &'a mut Counts,
    /// What is counted of this one.
    pub engine_counts: &'a mut S::Counts,
}

impl<S: System> Scene<'_, S> {
    /// Writes a line into the trace, if anybody wants to read it.
    pub fn line(&mut self, what: impl FnOnce() -> String) {
        self.trace.line(self.now, what);
    }
}

/// How many transactions of honest clients ended, and how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcomes {
    /// They committed, whether their clients know or not.
    pub committed: u64,
    /// They aborted.
    pub aborted: u64,
    /// Their clients were never told.
    pub unknown: u64,
}

/// Who watches everything: every message, every statement of a replica, what honest clients are told. No machine knows of it.
pub trait Checker<S: System> {
    /// Every promise seen broken so far.
    fn violations(&mut self) -> &mut Violations;

    /// A replica takes a turn in which it hears this.
    fn hears(&mut self, _by: ReplicaId, _inbox: &[(Party, Verified<S::Message>)]) {}

    /// A replica signs a statement: `is_honest` tells whether it lies, or has lost its disk.
    fn signs(&mut self, by: ReplicaId, unsigned: &S::Unsigned, is_honest: bool);

    /// An honest replica says something to `to`.
    fn says(&mut self, _by: ReplicaId, _to: Party, _message: &S::Message) {}

    /// Something that an honest participant says departs.
    fn departs(&mut self, _message: &S::Message) {}

    /// A message has arrived, and has passed the check of signatures.
    fn believed(&mut self, message: &S::Message);

    /// A replica goes by `cluster` from now on: as its process begins, and when the operators have changed something. Its machine is told in its next
    /// turn, which begins with what was due before.
    fn goes_by(&mut self, _by: ReplicaId, _cluster: &Arc<Cluster>) {}

    /// A replica's machine has been told of the last configuration by which it goes; it says nothing by an earlier one any more.
    fn has_taken_over(&mut self, _by: ReplicaId) {}

    /// What a replica that came back is asked, as if by the auditor: mostly about what it said before.
    fn questions(&self, _replica: ReplicaId) -> Vec<S::Message> {
        Vec::new()
    }

    /// Looks at the whole run once more.
    fn finish(&mut self) {}

    /// How honest clients' transactions ended.
    fn outcomes(&self) -> Outcomes;

    /// What the engine counts of all that was seen.
    fn count(&self, _counts: &mut S::Counts) {}
}
