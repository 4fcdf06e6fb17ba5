//! A replica behind the engine interface ([`engine`]), and its janitor beside it.

use std::sync::Arc;

use engine::{Instruction, Misbehavior, Statistics};
use machine::{Durable, Input, InputOf, Machine, OutboxOf, Time};
use store::{StorageBackend, Store, StoreError};
use types::{Cluster, Party, ReplicaId};

use crate::janitor::Janitor;
use crate::multicast::{Message, Node, NodeError, Options};
use crate::shard::Shard;

/// One replica's process as a machine.
pub struct Server<B: StorageBackend> {
    node: Node<Shard, B>,
    janitor: Janitor,
}

impl<B: StorageBackend> Server<B> {
    /// Goes on from what `store` holds, which was not replayed yet. `now` is later than the beginning of every earlier process.
    ///
    /// # Errors
    /// As [`Node::open`].
    pub fn open(
        cluster: Arc<Cluster>,
        me: ReplicaId,
        options: Options,
        shard: Shard,
        store: Store<B>,
        now: Time,
    ) -> Result<Self, NodeError> {
        let janitor = Janitor::new(cluster.clone(), me, now);
        Ok(Self { node: Node::open(cluster, me, options, shard, store)?, janitor })
    }

    /// Flips a bit of a value at rest ([`Executor::flip_bit_at_rest`](crate::Executor::flip_bit_at_rest)).
    pub fn flip_bit_at_rest(&mut self, key: &types::Key, bit: usize) -> bool {
        self.node.application_mut().flip_bit_at_rest(key, bit)
    }

    /// The replica and its journal.
    #[must_use]
    pub fn node(&self) -> &Node<Shard, B> {
        &self.node
    }
}

impl<B: StorageBackend> Machine for Server<B> {
    type Command = engine::Instruction;
    type Received = <Node<Shard, B> as Machine>::Received;
    type Message = Message;
    type Unsigned = <Node<Shard, B> as Machine>::Unsigned;
    type Event = std::convert::Infallible;

    fn step(&mut self, now: Time, input: InputOf<Self>, outbox: &mut OutboxOf<Self>) {
        match input {
            Input::Message { from: Party::Replica(from), message } if matches!(*message, Message::Reply { .. }) => {
                self.janitor.on_reply(now, from, message.into_inner(), outbox);
            }
            Input::Tick => {
                self.node.step(now, Input::Tick, outbox);
                self.node.application_mut().on_tick(now);
                self.janitor.on_tick(now, self.node.replica().application().executor(), outbox);
            }
            // Replicas that execute in one order would have to change at one place of it: operators are told that this engine cannot.
            Input::Command(Instruction::Reconfigure(_)) => {}
            Input::Command(Instruction::FlipBit { key, bit }) => _ = self.flip_bit_at_rest(&key, bit),
            Input::Message { from, message } => self.node.step(now, Input::Message { from, message }, outbox),
        }
    }

    fn end_turn(&mut self, now: Time, outbox: &mut OutboxOf<Self>) {
        self.node.end_turn(now, outbox);
    }

    fn leave(&mut self, now: Time, outbox: &mut OutboxOf<Self>) {
        self.node.leave(now, outbox);
    }

    fn deadline(&self) -> Option<Time> {
        let janitor = self.janitor.deadline();
        Some(self.node.deadline().map_or(janitor, |at| at.min(janitor)))
    }
}

impl<B: StorageBackend> Durable for Server<B> {
    type Failure = StoreError;

    fn persist(&mut self) -> Result<(), StoreError> {
        self.node.persist()
    }
}

impl<B: StorageBackend> engine::Replica for Server<B> {
    fn statistics(&self, out: &mut Statistics) {
        let replica = self.node.replica();
        let (status, shard) = (replica.status(), replica.application());
        let counts = shard.counts();
        out.counter("transactions_committed", "Transactions executed", counts.committed).in_status("transactions.committed");
        out.counter("transactions_aborted", "Transactions voted down", counts.aborted).in_status("transactions.aborted");
        let pending = shard.executor().pending().len() as u64;
        out.gauge("transactions_undecided", "Transactions that wait for other shards", pending).in_status("transactions.undecided");
        out.counter("transactions_finished", "Transactions that clients left and this replica began to finish", self.janitor.begun)
            .in_status("transactions.finished");
        let moments = shard.executor().moments() as u64;
        out.gauge("moments_held", "Moments of the whole database that it holds for backups", moments);
        out.counter("requests_refused", "Requests refused", counts.refused).in_status("transactions.refused");
        out.counter("lists_delivered", "Lists of requests that were delivered", status.delivered).in_status("order.delivered");
        out.gauge("stable_checkpoint", "The last list that a stable checkpoint covers", status.stable).in_status("order.stable");
        if let Some((sequence, digest)) = self.node.replica().last_checkpoint() {
            let begins = digest.first_chunk().copied().map_or(0, u64::from_be_bytes);
            out.state("order.checkpoint", "The list after which it last took a checkpoint", sequence);
            out.state("order.checkpoint_digest", "How the digest of its state begins after that list", begins);
        }
        let divergences = replica.divergences();
        out.counter("divergences", "Parts of its own state that were found to be wrong", divergences.noticed())
            .in_status("divergences.noticed");
        out.counter("divergences_mended", "Those of them that were put right", divergences.mended()).in_status("divergences.mended");
        let is_rebuilding = u64::from(self.node.replica().is_rebuilding());
        out.gauge("rebuilding", "Whether it lost its disk and does not take part again yet", is_rebuilding);
        out.gauge("view", "The view that it is in, of which each has another leader", status.entered).in_status("order.view");
        out.gauge("store_journal_bytes", "Size of the journal", self.node.journal_bytes()).in_status("store.journal_bytes");
    }

    fn misbehavior(event: &Self::Event) -> Option<Misbehavior> {
        match *event {}
    }

    fn divergences(&self) -> Option<&engine::Divergences> {
        Some(self.node.replica().divergences())
    }

    fn rebuilding(&self) -> Option<String> {
        self.node.replica().is_rebuilding().then(|| "takes part again a while after it has what the others have".to_owned())
    }

    fn close(&mut self) -> Result<(), StoreError> {
        self.node.close()
    }
}
