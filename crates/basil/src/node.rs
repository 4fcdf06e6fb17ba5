//! A replica and, beside it, a coordinator that finishes what others left: its janitor.

use crate::transaction::Transaction;
use crypto::Verified;
use engine::{ClockReport, Histogram, Instruction, Statistics};
use machine::{Durable, Input, InputOf, Machine, Outbox, OutboxOf, Time};
use mutants::{Mutant, broken};
use store::{StorageBackend, StoreError};
use types::{ClientId, Cluster, Party, ReplicaId};

use crate::check::AbortReason;
use crate::coordinator::{Command, Coordinator, FINISHES_MAX};
use crate::message::{Message, Refusal, Subject, Unsigned};
use crate::peer_clocks::{PeerClocks, Standing};
use crate::quorum::Quorums;
use crate::replica::catch_up::PassProgress;
use crate::replica::{Replica, ReplicaCounts, ReplicaEvent};
use crate::witness::{Contradiction, Witness};

/// What a node tells its own side.
#[derive(Clone, Debug)]
pub enum NodeEvent {
    /// A client claimed to have read from its own future: proof that it lies, kept with its name.
    Misbehavior {
        /// Whose transaction it is.
        client: ClientId,
        /// That client's key, by which this replica has judged it.
        public_key: Option<[u8; 32]>,
        /// The transaction, which proves it.
        transaction: Transaction,
    },
    /// A client has brought a transaction of its own to its end: it committed.
    Committed {
        /// The client.
        client: ClientId,
    },
    /// A replica has stated both that one transaction commits and that it aborts: proof that it lies, or has forgotten, for everybody.
    Contradiction(Contradiction),
    /// How it stands with its clock, now and then.
    Clock(ClockReport),
}

/// One replica's process as a machine.
pub struct Node<M: StorageBackend> {
    replica: Replica<M>,
    janitor: Coordinator,
    from_janitor: OutboxOf<Coordinator>,
    peers: Option<Peers>,
    witness: Witness,
}

/// The other replicas, and their clocks.
struct Peers {
    others: Vec<ReplicaId>,
    clocks: PeerClocks,
}

impl<M: StorageBackend> Node<M> {
    /// Puts a replica and its janitor together.
    #[must_use]
    pub fn new(replica: Replica<M>, janitor: Coordinator) -> Self {
        Self { replica, janitor, from_janitor: Outbox::default(), peers: None, witness: Witness::default() }
    }

    /// The same, with a clock that is held near those of the other replicas. Until enough of them have said what time it
    /// is, it does nothing.
    #[must_use]
    pub fn with_peers(replica: Replica<M>, janitor: Coordinator, cluster: &Cluster, now: Time) -> Self {
        let me = replica.id();
        let shards = cluster.shards().count();
        let clocks =
            PeerClocks::new(me, Quorums::new(cluster.faults()), shards, now, replica.options().clock_good_ms, replica.earlier_process());
        let others = cluster.replicas().filter(|other| *other != me).collect();
        Self { peers: Some(Peers { others, clocks }), ..Self::new(replica, janitor) }
    }

    /// How long after its start it votes for what is begun by then, in milliseconds: for a while others may go by what an earlier process of this
    /// replica said of its clock, and it has forgotten who read ahead of that.
    #[must_use]
    pub fn ready_after_ms(&self) -> u64 {
        let options = self.replica.options();
        let relied_on_ms = if self.replica.earlier_process().is_some() { options.clock_good_ms } else { 0 };
        relied_on_ms + options.time_bound_ms
    }

    /// The replica, for its counts.
    #[must_use]
    pub fn replica(&self) -> &Replica<M> {
        &self.replica
    }

    /// Flips a bit at rest ([`Replica::flip_bit_at_rest`]).
    ///
    /// # Errors
    /// When the store fails.
    pub fn flip_bit_at_rest(&mut self, key: &types::Key, bit: usize) -> Result<bool, StoreError> {
        self.replica.flip_bit_at_rest(key, bit)
    }

    /// Refuses what this client begins, as it was seen to lie before this process started, as long as it has that key.
    pub fn refuse_liar(&mut self, client: ClientId, public_key: [u8; 32]) {
        self.replica.refuse_liar(client, public_key);
    }

    fn step_replica(&mut self, now: Time, input: InputOf<Replica<M>>, outbox: &mut OutboxOf<Self>) {
        self.with_replica(now, outbox, |replica, outbox| replica.step(now, input, outbox));
    }

    /// Lets the replica speak, and does what it tells its own side.
    fn with_replica(&mut self, now: Time, outbox: &mut OutboxOf<Self>, speak: impl FnOnce(&mut Replica<M>, &mut OutboxOf<Replica<M>>)) {
        let events = outbox.lend(|outbox| speak(&mut self.replica, outbox));
        for event in events {
            match event {
                // Whatever waits, there is room for what it waits for.
                ReplicaEvent::Stalled { is_waiting: true, .. } if self.janitor.finishing() >= FINISHES_MAX / 2 => {}
                ReplicaEvent::Stalled { transaction, .. } => {
                    self.step_janitor(now, Input::Command(Command::Finish { transaction }), outbox);
                }
                ReplicaEvent::Misbehavior { client, public_key, transaction } => {
                    outbox.emit(NodeEvent::Misbehavior { client, public_key, transaction });
                }
                ReplicaEvent::Committed { client } => outbox.emit_silently(NodeEvent::Committed { client }),
            }
        }
    }

    /// What is about clocks is done here: `now` is the shell's. Gives the time by which the rest goes, if there is one yet, and the rest.
    fn step_clock(&mut self, now: Time, input: InputOf<Self>, outbox: &mut OutboxOf<Self>) -> Option<(Time, InputOf<Self>)> {
        let Some(Peers { others, clocks }) = &mut self.peers else { return Some((now, input)) };
        let mut is_asking = false;
        match &input {
            Input::Message { from: from @ Party::Replica(_), message } if let Message::ClockQuery { asked_at, journal } = **message => {
                let clock = clocks.read(now).0.max(self.replica.clock_floor());
                let is_set = clocks.is_set();
                // Ahead of the time, without which the other does nothing.
                if let Some(known) = journal.and_then(|end| self.replica.on_journal_end(now, clock, *from, end)) {
                    outbox.send(*from, Message::JournalKnown { known });
                }
                outbox
                    .send(*from, if is_set { Message::ClockReply { asked_at, clock } } else { Message::ClockProposal { asked_at, clock } });
                return None;
            }
            Input::Message { from: from @ Party::Replica(_), message } if let Message::JournalKnown { known } = **message => {
                self.replica.on_journal_known(now, *from, known);
                return None;
            }
            Input::Message { from: Party::Replica(from), message } if let Message::ClockReply { asked_at, clock } = **message => {
                clocks.note(now, *from, Time(asked_at), clock, Standing::Set);
            }
            Input::Message { from: Party::Replica(from), message } if let Message::ClockProposal { asked_at, clock } = **message => {
                clocks.note(now, *from, Time(asked_at), clock, Standing::Proposed);
            }
            Input::Tick if clocks.due() <= now => {
                is_asking = true;
                clocks.adjust(now);
                clocks.asked(now);
                let (own, journal) = (self.replica.id().shard, self.replica.journal_end());
                for other in others {
                    let journal = journal.filter(|_| other.shard == own);
                    outbox.send(Party::Replica(*other), Message::ClockQuery { asked_at: now.0, journal });
                }
            }
            _ => {}
        }
        let time = clocks.read(now);
        let newly_set = clocks.newly_set(now);
        if let Some(relied_on_ns) = newly_set {
            self.replica.set_clock(time, relied_on_ns);
        }
        if newly_set.is_some() || is_asking {
            outbox.emit(NodeEvent::Clock(clocks.report()));
        }
        clocks.is_set().then_some((time, input))
    }

    /// The time by which the replica goes when the shell's clock shows `now`, once it is known.
    fn time(&mut self, now: Time) -> Option<Time> {
        let Some(Peers { clocks, .. }) = &mut self.peers else { return Some(now) };
        clocks.is_set().then(|| clocks.read(now))
    }

    fn step_janitor(&mut self, now: Time, input: InputOf<Coordinator>, outbox: &mut OutboxOf<Self>) {
        self.janitor.step(now, input, &mut self.from_janitor);
        outbox.sends.append(&mut self.from_janitor.sends);
        self.from_janitor.events.clear();
    }
}

impl<M: StorageBackend> Machine for Node<M> {
    type Command = Instruction;
    type Received = Verified<Message>;
    type Message = Message;
    type Unsigned = Unsigned;
    type Event = NodeEvent;

    fn step(&mut self, now: Time, input: InputOf<Self>, outbox: &mut OutboxOf<Self>) {
        // Whether or not it knows the time: a client that is revoked is so at once.
        let input = match input {
            Input::Command(Instruction::FlipBit { key, bit }) => return self.replica.drill(&key, bit),
            Input::Command(Instruction::Reconfigure(cluster)) => {
                let before = self.replica.cluster();
                let has_changed = |replica: ReplicaId| cluster.replica_key(replica) != before.replica_key(replica);
                self.witness.forget(has_changed);
                if let Some(Peers { others, clocks }) = self.peers.as_mut().filter(|_| !broken(Mutant::WordsOfOldKey)) {
                    others.iter().copied().filter(|other| has_changed(*other)).for_each(|other| clocks.forget(other));
                }
                self.replica.reconfigure(cluster.clone());
                return self.step_janitor(now, Input::Command(Command::Reconfigure { cluster }), outbox);
            }
            input => input,
        };
        if let Input::Message { message, .. } = &input {
            self.witness.hear(message).into_iter().for_each(|contradiction| outbox.emit(NodeEvent::Contradiction(contradiction)));
        }
        let Some((now, input)) = self.step_clock(now, input, outbox) else { return };
        match input {
            Input::Command(_) => {}
            Input::Message { from, message } if message.is_reply() => self.step_janitor(now, Input::Message { from, message }, outbox),
            Input::Message { from, message } => self.step_replica(now, Input::Message { from, message }, outbox),
            Input::Tick => {
                self.step_replica(now, Input::Tick, outbox);
                self.step_janitor(now, Input::Tick, outbox);
            }
        }
    }

    fn prefetch(&self, now: Time, from: Party, next: &[Verified<Message>]) {
        self.replica.prefetch(now, from, next);
    }

    fn deadline(&self) -> Option<Time> {
        let own = [self.replica.deadline(), self.janitor.deadline()].into_iter().flatten().min();
        let Some(Peers { clocks, .. }) = &self.peers else { return own };
        let own = own.filter(|_| clocks.is_set()).map(|at| clocks.when(at));
        [own, Some(clocks.due())].into_iter().flatten().min()
    }

    /// Reads of clients: most transactions begin with one, and nothing has been done for them yet.
    fn refuse(&mut self, from: Party, message: &Verified<Message>, after_ms: u32) -> Option<Message> {
        let (Party::Client(..), Message::Read { request, .. } | Message::Scan { request, .. }) = (from, &**message) else { return None };
        self.replica.note_refused();
        Some(Message::Refused { subject: Subject::Request(*request), refusal: Refusal::Overloaded { after_ms } })
    }

    fn take_due(&mut self, now: Time) -> Option<Party> {
        let now = self.time(now)?;
        self.replica.take_due(now)
    }

    fn serve_kept(&mut self, now: Time, from: Party, outbox: &mut OutboxOf<Self>) {
        let Some(now) = self.time(now) else { return };
        self.with_replica(now, outbox, |replica, outbox| replica.serve_kept(now, from, outbox));
    }
}

impl<M: StorageBackend> Durable for Node<M> {
    type Failure = StoreError;

    fn persist(&mut self) -> Result<(), StoreError> {
        self.replica.persist()
    }
}

impl<M: StorageBackend> engine::Replica for Node<M> {
    fn statistics(&self, out: &mut Statistics) {
        let ((known, undecided), counts, store) = (self.replica.load(), self.replica.counts(), self.replica.store().statistics());
        out.counter("keys_read", "Keys read for clients", counts.keys_read).in_status("keys_read");
        out.counter("reads_unpromised", "Reads answered without a promise, as a writer was held off of late", counts.reads_unpromised);
        out.counter("votes_commit", "Votes to commit", counts.votes_commit).in_status("transactions.votes_commit");
        for (reason, count) in AbortReason::LABELS.into_iter().zip(counts.votes_abort_by) {
            out.labelled("votes_abort", ("reason", reason), "Votes to abort, by reason", count).in_status("transactions.votes_abort_by");
        }
        out.state("transactions.votes_abort", "Votes to abort", counts.votes_abort);
        out.counter("votes_repeated", "Votes repeated for who asked again", counts.votes_repeated).in_status("transactions.votes_repeated");
        out.counter("decisions_logged", "Decisions written down on the slow path", counts.logged).in_status("transactions.logged");
        out.counter("elected", "Transactions it was elected to reconcile", counts.elected).in_status("transactions.elected");
        out.counter("transactions_committed", "Transactions learned to have committed", counts.committed)
            .in_status("transactions.committed");
        out.counter("transactions_aborted", "Transactions learned to have aborted", counts.aborted).in_status("transactions.aborted");
        for (path, durations) in ReplicaCounts::PATHS.into_iter().zip(counts.concluded_after) {
            for (outcome, durations) in ["committed", "aborted"].into_iter().zip(durations) {
                let help = "Time from when this replica met a transaction to when it knew how it ended, by what showed that";
                out.histogram(Histogram { name: "transaction_seconds", labels: [("path", path), ("outcome", outcome)], help, durations });
            }
        }
        out.counter("requests_refused", "Requests refused", counts.refused).in_status("transactions.refused");
        out.counter("transactions_abandoned", "Transactions that somebody other than their author ended here", counts.abandoned)
            .in_status("transactions.abandoned");
        out.counter("transactions_stalled", "Transactions left unfinished by their clients", counts.stalled)
            .in_status("transactions.stalled");
        out.counter("transactions_finished_for_others", "Transactions the janitor set out to finish", self.janitor.counts().finishes)
            .in_status("transactions.finished_for_others");
        out.counter("catch_up_commits", "Commits learned from what others of the shard remember", counts.commits_taken_over)
            .in_status("catch_up.commits_taken_over");
        out.counter("catch_up_versions", "Versions taken over from others of the shard", counts.versions_taken_over)
            .in_status("catch_up.versions_taken_over");
        out.counter(
            "divergences",
            "Parts of its own state that were found to differ from the others'",
            self.replica.divergences().noticed(),
        )
        .in_status("divergences.noticed");
        out.counter("divergences_mended", "Those of them that were put right", self.replica.divergences().mended())
            .in_status("divergences.mended");
        out.counter("catch_up_pages", "Pages of versions compared with others of the shard", counts.pages_compared)
            .in_status("catch_up.pages_compared");
        out.counter("catch_up_passes", "Times that all versions were compared with others of the shard", counts.passes)
            .in_status("catch_up.passes");
        let behind = u64::from(self.replica.is_behind());
        out.gauge("catch_up_behind", "1 while something was missing in the last comparison of all versions, or none has ended", behind)
            .in_status("catch_up.behind");
        let PassProgress { compared, keys, seconds_left } = self.replica.pass_progress();
        out.gauge("catch_up_keys_compared", "Keys compared since the first one", compared).in_status("catch_up.keys_compared");
        if let Some(keys) = keys {
            let help = "Keys compared when all were compared the last time; before that, about as many as the store has checkpointed";
            out.gauge("catch_up_keys", help, keys).in_status("catch_up.keys");
        }
        // Who lacks nothing compares slowly, and is done already.
        if let Some(seconds_left) = seconds_left.filter(|_| self.replica.is_behind()) {
            let help = "While something is missing: about how long the rest of the comparison takes, if it goes on as the last pages did";
            out.gauge("catch_up_left_seconds", help, seconds_left).in_status("catch_up.left_seconds");
        }
        let help = "1 while a replica that lost its disk is silent, until it cannot contradict what it said before";
        out.gauge("rebuilding", help, u64::from(self.replica.rebuild_progress().is_some()));
        out.counter("store_batches", "Durable writes", store.batches).in_status("store.batches");
        out.counter("store_records", "Records in durable writes", store.records);
        out.counter("store_journal_written_bytes", "Bytes written to the journal", store.journal_bytes_written);
        out.counter("store_checkpoints", "Checkpoints of old versions to the base table", store.checkpoints).in_status("store.checkpoints");
        out.counter("store_cache_hits", "Reads answered by the row cache", store.cache_hits);
        out.counter("store_base_table_reads", "Reads that went to the base table on disk", store.base_table_reads);
        out.gauge("transactions_known", "Transactions remembered", known as u64).in_status("transactions.known");
        out.gauge("transactions_undecided", "Transactions without an end yet", undecided as u64).in_status("transactions.undecided");
        out.gauge("transactions_decided_bytes", "Memory of decided transactions", self.replica.decided_bytes() as u64);
        out.gauge("store_memtable_versions", "Versions that are not in the base table yet", store.memtable_versions as u64)
            .in_status("store.memtable_versions");
        out.gauge("store_memtable_bytes", "Memory of the versions that are not in the base table yet", store.memtable_bytes as u64)
            .in_status("store.memtable_bytes");
        let overdue = "Memory of those of them that should be in the base table by now; from 128 MiB on syncs wait for checkpoints";
        out.gauge("store_overdue_bytes", overdue, store.overdue_bytes as u64).in_status("store.overdue_bytes");
        out.duration("store_paced_seconds", "How long syncs have waited for checkpoints that were late", store.paced_us)
            .in_status("store.paced_seconds");
        out.gauge("store_cache_bytes", "Memory of the row cache", store.cache_bytes).in_status("store.cache_bytes");
        out.gauge("store_journal_bytes", "Size of the journal", store.journal_bytes).in_status("store.journal_bytes");
        let help = "Moments of the past that are kept on disk, as somebody reads them page by page";
        out.gauge("store_kept_moments", help, store.kept_moments as u64).in_status("store.kept_moments");
        out.state("watermark", "What is older is decided and may be forgotten", self.replica.store().watermark().time);
    }

    fn misbehavior(event: &NodeEvent) -> Option<engine::Misbehavior> {
        match event {
            NodeEvent::Misbehavior { client, public_key, transaction } => Some(engine::Misbehavior {
                who: engine::Liar::Client(*client),
                public_key: *public_key,
                what: "this client claims to have read from its own future: it lies",
                evidence: hex::encode(transaction.id().0),
            }),
            NodeEvent::Contradiction(contradiction) => Some(engine::Misbehavior {
                who: engine::Liar::Replica(contradiction.replica),
                public_key: None,
                what: contradiction.stated.words(),
                evidence: hex::encode(contradiction.id.0),
            }),
            NodeEvent::Clock(_) | NodeEvent::Committed { .. } => None,
        }
    }

    fn signed_proof(event: &NodeEvent) -> Option<bytes::Bytes> {
        if let NodeEvent::Contradiction(contradiction) = event { Some(contradiction.to_bytes()) } else { None }
    }

    fn committed_by(event: &NodeEvent) -> Option<ClientId> {
        if let NodeEvent::Committed { client } = event { Some(*client) } else { None }
    }

    fn clock(&self) -> Option<ClockReport> {
        self.peers.as_ref().map(|peers| peers.clocks.report())
    }

    fn clock_of(event: &NodeEvent) -> Option<ClockReport> {
        if let NodeEvent::Clock(report) = event { Some(*report) } else { None }
    }

    fn divergences(&self) -> Option<&engine::Divergences> {
        Some(self.replica.divergences())
    }

    fn rebuilding(&self) -> Option<String> {
        let progress = self.replica.rebuild_progress()?;
        let PassProgress { compared, keys, seconds_left } = self.replica.pass_progress();
        let left = seconds_left.map_or_else(String::new, |seconds| format!(" (about {seconds} s for the rest)"));
        let compared = match keys {
            Some(all) => format!("{compared} of about {all} keys{left}"),
            None => format!("{compared} keys"),
        };
        let wait = match progress.seconds_left {
            0 if progress.shown < progress.needed => {
                format!("{} of {} others have shown what they hold undecided", progress.shown, progress.needed)
            }
            0 if progress.undecided > 0 => format!("which is the last time; transactions whose end it waits for: {}", progress.undecided),
            0 => "which is the last time".to_owned(),
            left => format!("silent for {left} s more at least"),
        };
        Some(format!("has compared {compared}, {wait}"))
    }

    fn close(&mut self) -> Result<(), StoreError> {
        self.replica.close()
    }
}
