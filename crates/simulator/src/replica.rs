//! A replica's process in the world: the machine, its disk, its clock, and the turn that keeps the law.

use std::sync::Arc;

use crypto::{BatchSigner, Signable as _, Verified};
use machine::{Durable as _, Input, Machine as _, Outbox, OutboxOf};
use random::Random;
use store::{Memory, Options};
use types::{Cluster, Digest, Party, ReplicaId};

use crate::clock::Clock;
use crate::disk::{self, Doom, Rot};
use crate::system::{Heard, Liar as _, Lies, System};
use crate::upgrade::{Leaving, Version};

/// The most statements under one signature, as in the real shell when nobody sets it.
const BATCH_MAX: usize = 64;

/// A replica, up or down.
pub(crate) struct ReplicaActor<S: System> {
    pub id: ReplicaId,
    pub liar: Option<S::Liar>,
    pub clock: Clock,
    /// Nothing when the process is down.
    pub node: Option<S::Replica>,
    medium: Memory,
    batch_signer: BatchSigner,
    cluster: Arc<Cluster>,
    pub inbox: Vec<(Party, Verified<S::Message>)>,
    /// When its next turn is, if it has one.
    pub turn_at: Option<u64>,
    /// Until when the last turn takes.
    pub busy_until: u64,
    /// When it will next be woken for a timer.
    pub armed: Option<u64>,
    /// How it dies in its next turn.
    pub doom: Option<Doom>,
    /// How it ends in its next turn, in good order.
    pub leaving: Option<Leaving>,
    /// How many processes it has been.
    pub lives: u64,
    /// When the last of them was started.
    pub started_at: u64,
    /// Why it stays away for good: its disk is damaged, and nothing can rebuild it yet.
    pub away: Option<String>,
    /// Whether bits flipped on its disk.
    rotten: bool,
    /// Whether it may have forgotten a promise, through no fault of its own that it could notice.
    pub forgot: bool,
    /// Breaks the law, in a test that wants to see it noticed.
    pub sends_before_writing: bool,
    /// What its next process is started as.
    pub version: Version<S::Options>,
}

/// What a replica is made of.
pub(crate) struct Parts<S: System> {
    pub id: ReplicaId,
    pub liar: Option<S::Liar>,
    pub clock: Clock,
    pub batch_signer: BatchSigner,
    pub cluster: Arc<Cluster>,
    pub options: S::Options,
    pub segment_bytes_max: u64,
}

/// What a turn came to.
pub(crate) struct Turn<S: System> {
    /// What is to be sent.
    pub sends: Vec<(Party, S::Message)>,
    /// What was signed, and is in the world even if nobody hears it.
    pub signed: Vec<S::Draft>,
    /// Whether the process died in it.
    pub died: bool,
    /// Why its disk failed, when nobody meant it to.
    pub failure: Option<String>,
}

impl<S: System> ReplicaActor<S> {
    pub fn new(parts: Parts<S>) -> Self {
        let Parts { id, liar, clock, batch_signer, cluster, options, segment_bytes_max } = parts;
        let medium = Memory::new(&format!("simulated {id}"));
        Self {
            id,
            liar,
            clock,
            node: None,
            medium,
            batch_signer,
            cluster,
            inbox: Vec::new(),
            turn_at: None,
            busy_until: 0,
            armed: None,
            doom: None,
            leaving: None,
            lives: 0,
            started_at: 0,
            away: None,
            rotten: false,
            forgot: false,
            sends_before_writing: false,
            version: Version {
                options,
                store: Options { segment_bytes_max, cache_bytes_max: 1 << 20, ..Options::default() },
                batch_max: BATCH_MAX,
            },
        }
    }

    pub fn is_honest(&self) -> bool {
        self.liar.is_none() && !self.forgot
    }

    /// Whether it is at fault in any way.
    pub fn is_faulty(&self) -> bool {
        !self.is_honest() || self.rotten || self.away.is_some()
    }

    /// Starts the process from what its disk holds.
    pub fn start(&mut self, now: u64) -> Result<(), String> {
        self.clock.forget();
        let Version { options, store, .. } = &self.version;
        self.node = Some(S::open(&self.cluster, self.id, options, (&self.medium, *store), self.clock.read(now))?);
        (self.lives, self.started_at) = (self.lives + 1, now);
        Ok(())
    }

    /// The process is gone, and the power with it.
    pub fn crash(&mut self, random: &mut Random) {
        self.stop();
        disk::cut_power(&self.medium, random);
    }

    /// The same without luck: nothing survives that was not synced.
    pub fn crash_hard(&mut self) {
        self.stop();
        self.medium.crash(store::Crash::default());
    }

    /// Its disk is replaced by an empty one.
    pub fn lose_disk(&mut self) {
        self.stop();
        self.medium = Memory::new(&format!("simulated {}", self.id));
    }

    /// Bits flip on its disk, while it is down. Says which, and what came of it.
    pub fn rot(&mut self, random: &mut Random) -> (String, Rot) {
        assert!(self.node.is_none(), "bits flip on disks that nobody uses");
        self.rotten = true;
        let (what, found) = disk::flip_bits(&mut self.medium, self.version.store, random);
        self.forgot |= found == Rot::TailLost;
        (what, found)
    }

    /// Whether its disk is damaged, so that it may say so and stay away.
    pub fn is_rotten(&self) -> bool {
        self.rotten
    }

    /// It will not be back.
    pub fn stay_away(&mut self, why: String) {
        self.stop();
        self.away = Some(why);
    }

    /// The process is gone. What was durable stays, and so does what was only written, unless the power goes too.
    pub fn stop(&mut self) {
        self.node = None;
        self.inbox.clear();
        self.turn_at = None;
        self.armed = None;
        self.doom = None;
        self.leaving = None;
    }

    /// One turn: steps through all that has arrived, makes it durable, seals it. Sending is the world's.
    pub fn turn(&mut self, now: u64, random: &mut Random) -> Turn<S> {
        let mut turn = Turn { sends: Vec::new(), signed: Vec::new(), died: false, failure: None };
        let Some(node) = &mut self.node else { return turn };
        let local = self.clock.read(now);
        let mut outbox: OutboxOf<S::Replica> = Outbox::default();
        let mut lies = Lies::<S>::default();
        for (from, message) in std::mem::take(&mut self.inbox) {
            let heard = self.liar.as_mut().map_or(Heard::Pass, |liar| liar.hear(from, &message, &mut lies));
            if heard == Heard::Pass {
                node.step(local, Input::Message { from, message }, &mut outbox);
            }
        }
        if node.deadline().is_some_and(|deadline| deadline <= local) {
            node.step(local, Input::Tick, &mut outbox);
        }
        // A process dies where it hurts: in a turn that has something to write.
        let doom = self.doom.filter(|_| S::is_pending(node));
        if doom == Some(Doom::Writing) {
            self.medium.fail_next_sync();
        }
        let persisted = node.persist();
        if persisted.is_err() || matches!(doom, Some(Doom::Writing | Doom::BeforeSending)) {
            turn.died = true;
            turn.failure = persisted.err().filter(|_| doom != Some(Doom::Writing)).map(|error| error.to_string());
            if !self.sends_before_writing {
                return turn;
            }
        }
        let Outbox { mut sends, mut drafts, .. } = outbox;
        drafts.append(&mut lies.drafts);
        sends.append(&mut lies.sends);
        if let Some(liar) = &mut self.liar {
            liar.speak(&mut sends, &mut drafts);
        }
        turn.signed = drafts.iter().map(|(_, draft)| draft.clone()).collect();
        self.sign_drafts(drafts, &mut sends);
        if let Some(liar) = &mut self.liar {
            liar.forge(&mut sends);
        }
        if doom == Some(Doom::Sending) {
            sends.retain(|_| random.chance(500));
            turn.died = true;
        }
        turn.sends = sends;
        turn
    }

    fn sign_drafts(&self, drafts: Vec<(Party, S::Draft)>, sends: &mut Vec<(Party, S::Message)>) {
        let mut rest = drafts.into_iter().peekable();
        while rest.peek().is_some() {
            let batch: Vec<(Party, S::Draft)> = rest.by_ref().take(self.version.batch_max).collect();
            let leaves: Vec<Digest> = batch.iter().map(|(_, draft)| draft.leaf(self.cluster.id(), self.id)).collect();
            let signatures = self.batch_signer.sign(&leaves);
            sends.extend(batch.into_iter().zip(signatures).map(|((to, draft), signature)| (to, draft.with_signature(signature))));
        }
    }

    /// When it wants to be woken, in true time.
    pub fn wakes_at(&self) -> Option<u64> {
        let deadline = self.node.as_ref()?.deadline()?;
        Some(self.clock.when(deadline))
    }
}
