//! A replica's process in the world: the machine, its disk, its clock, and the turn that keeps the law.

use std::collections::VecDeque;
use std::sync::Arc;

use crypto::{BatchSigner, SecretKey, Signatures, Verified, Verifier};
use machine::turn::{Bounds, Turns, Written};
use machine::{Input, Machine};
use random::Random;
use store::{Memory, Options};
use types::{Cluster, Party, ReplicaId};

use crate::clock::Clock;
use crate::disk::{self, PendingCrash, Rot};
use crate::system::{Heard, Liar as _, Lies, System};
use crate::upgrade::{Leaving, Version};

/// A replica, up or down.
pub(crate) struct ReplicaActor<S: System> {
    pub id: ReplicaId,
    pub liar: Option<S::Liar>,
    pub clock: Clock,
    /// Nothing when the process is down.
    pub node: Option<Turns<S::Replica>>,
    medium: Memory,
    batch_signer: BatchSigner,
    cluster: Arc<Cluster>,
    pub inbox: VecDeque<(Party, Verified<S::Message>)>,
    /// What its own side tells it.
    pub commands: VecDeque<<S::Replica as Machine>::Command>,
    /// When its next turn is, if it has one.
    pub turn_at: Option<u64>,
    /// Until when the last turn takes.
    pub busy_until: u64,
    /// When it will next be woken for a timer.
    pub armed: Option<u64>,
    /// Where it dies in its next turn that comes by there.
    pub pending_crash: Option<PendingCrash>,
    /// How many silent turns wrote something that is not durable yet.
    silent_turns: u64,
    /// How it ends in its next turn, in good order.
    pub leaving: Option<Leaving>,
    /// How many processes it has been.
    pub lives: u64,
    /// When the last of them was started.
    pub started_at: u64,
    /// Why it stays away for good: its disk is damaged.
    pub away: Option<String>,
    /// Whether bits flipped on its disk.
    rotten: bool,
    /// Whether it may have forgotten a promise, through no fault of its own that it could notice.
    pub forgot: bool,
    /// Whether its disk was lost once, and it was told so.
    has_lost_disk: bool,
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
    pub bounds: Bounds,
    pub segment_bytes_max: u64,
}

/// What a turn came to.
pub(crate) struct TurnOutput<S: System> {
    /// What is to be sent.
    pub sends: Vec<(Party, S::Message)>,
    /// What was signed, and is in the world even if nobody hears it.
    pub signed: Vec<S::Unsigned>,
    /// Whether it waited for the disk.
    pub writes: bool,
    /// Whether the process died in it.
    pub died: bool,
    /// Why its disk failed, when nobody meant it to.
    pub failure: Option<String>,
}

impl<S: System> TurnOutput<S> {
    /// Signs and takes in what a replica says, or what it says instead when it lies.
    fn say(&mut self, mut written: Written<'_, S::Replica>, lies: Lies<S>, liar: &mut Option<S::Liar>, batch_signer: &mut BatchSigner) {
        let outbox = written.outbox();
        outbox.unsigned.extend(lies.unsigned);
        outbox.sends.extend(lies.sends);
        if let Some(liar) = liar {
            liar.speak(&mut outbox.sends, &mut outbox.unsigned);
        }
        self.signed = outbox.unsigned.iter().map(|(_, unsigned)| unsigned.clone()).collect();
        let said = written.sign(batch_signer);
        if let Some(liar) = liar {
            liar.forge(said.sends);
        }
        self.sends.append(said.sends);
        self.sends.extend(said.own.drain(..).map(|message| (said.me, message)));
    }
}

impl<S: System> ReplicaActor<S> {
    pub fn new(parts: Parts<S>) -> Self {
        let Parts { id, liar, clock, batch_signer, cluster, options, bounds, segment_bytes_max } = parts;
        let medium = Memory::new(&format!("simulated {id}"));
        Self {
            id,
            liar,
            clock,
            node: None,
            medium,
            batch_signer,
            cluster,
            inbox: VecDeque::new(),
            commands: VecDeque::new(),
            turn_at: None,
            busy_until: 0,
            armed: None,
            pending_crash: None,
            silent_turns: 0,
            leaving: None,
            lives: 0,
            started_at: 0,
            away: None,
            rotten: false,
            forgot: false,
            has_lost_disk: false,
            sends_before_writing: false,
            version: Version {
                options,
                store: Options { segment_bytes_max, cache_bytes_max: 1 << 20, deleted_keys_min: 1, ..Options::default() },
                bounds,
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
        let Version { options, store, bounds } = &self.version;
        let machine = S::open(&self.cluster, self.id, options, (&self.medium, *store), self.clock.read(now))?;
        self.node = Some(Turns::new(machine, Party::Replica(self.id), *bounds));
        (self.lives, self.started_at) = (self.lives + 1, now);
        Ok(())
    }

    /// Its next process belongs to `cluster`, and signs by this key.
    pub fn belongs_to(&mut self, cluster: Arc<Cluster>, secret: SecretKey, verifier: Arc<Verifier>) {
        self.batch_signer = BatchSigner::new(secret, cluster.id(), self.id, Signatures::Ed25519).known_to(verifier);
        self.cluster = cluster;
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

    /// Its disk is replaced by an empty one, on which its operator has noted that.
    pub fn lose_disk_and_say_so(&mut self) -> Result<(), String> {
        self.lose_disk();
        self.has_lost_disk = true;
        S::mark_lost((&self.medium, self.version.store))
    }

    /// Some of its base table cannot be read any more, and is given up when it is opened next; its journal is whole. `false` where there is nothing to lose, or its
    /// engine would not make up for it.
    pub fn lose_rows(&mut self) -> bool {
        let rows = if S::MAKES_UP_FOR_ROWS { self.medium.rows() } else { Vec::new() };
        if rows.is_empty() {
            return false;
        }
        self.crash_hard();
        rows.iter().step_by(3).for_each(|(key, _)| self.medium.lose_row(key));
        self.has_lost_disk = true;
        true
    }

    /// Whether it lost its disk and is not rebuilt yet.
    pub fn is_being_rebuilt(&self) -> bool {
        self.has_lost_disk && self.node.as_ref().is_none_or(|node| S::is_rebuilding(node.machine()))
    }

    /// Bits flip on its disk, while it is down. Says which, and what came of it.
    pub fn rot(&mut self, random: &mut Random) -> (String, Rot) {
        assert!(self.node.is_none(), "bits flip on disks that nobody uses");
        let before = self.medium.copied();
        let (what, found) = disk::flip_bits(&mut self.medium, self.version.store, random);
        if found == Rot::TailLost && !S::MAY_FORGET {
            self.medium = before;
            return (what, Rot::Nothing);
        }
        self.rotten = true;
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

    /// The process ends in good order, and says so on its disk.
    pub fn close(&mut self) -> Result<(), String> {
        let closed = self.node.take().map_or(Ok(()), |node| S::close(node.into_machine()));
        self.stop();
        closed
    }

    /// The process is gone. What was durable stays, and so does what was only written, unless the power goes too.
    pub fn stop(&mut self) {
        self.node = None;
        self.inbox.clear();
        self.commands.clear();
        self.turn_at = None;
        self.armed = None;
        self.pending_crash = None;
        self.silent_turns = 0;
        self.leaving = None;
    }

    /// One turn, in any gap of which the process may die. `watch` sees what it hears. Sending is the world's.
    pub fn turn(&mut self, now: u64, random: &mut Random, watch: impl FnOnce(&[(Party, Verified<S::Message>)])) -> TurnOutput<S> {
        let mut done = TurnOutput { sends: Vec::new(), signed: Vec::new(), writes: false, died: false, failure: None };
        let Some(node) = &mut self.node else { return done };
        let local = self.clock.read(now);
        let mut lies = Lies::<S>::default();
        let mut turn = node.begin(local);
        while turn.room() > 0
            && let Some(command) = self.commands.pop_front()
        {
            turn.step(local, Input::Command(command));
        }
        let inbox = self.inbox.make_contiguous();
        watch(&inbox[..turn.room().min(inbox.len())]);
        while turn.room() > 0
            && let Some((from, message)) = self.inbox.pop_front()
        {
            let heard = self.liar.as_mut().map_or(Heard::Pass, |liar| liar.hear(from, &message, &mut lies));
            if heard == Heard::Pass {
                turn.step(local, Input::Message { from, message });
            }
        }
        let is_last = self.leaving.is_some() && self.inbox.is_empty();
        let stepped = if is_last { turn.stepped_last(local) } else { turn.stepped(local) };
        let (writes, is_pending) = (stepped.writes(), S::is_pending(stepped.machine()));
        self.silent_turns = if writes { 0 } else { self.silent_turns + u64::from(is_pending) };
        // A process dies where it hurts: when there is something to lose.
        let gap = self.pending_crash.filter(|crash| match crash {
            PendingCrash::Silent(turns) => self.silent_turns >= *turns,
            _ => writes && is_pending,
        });
        done.writes = writes;
        done.died = gap.is_some();
        let written = match gap {
            Some(PendingCrash::Silent(_) | PendingCrash::Stepped) => return done,
            Some(PendingCrash::Writing) if self.sends_before_writing => {
                // A rule is broken: all of this turn is heard, and then nothing of it is found on the disk.
                let before = self.medium.copied();
                let written = stepped.persist().expect("memory does not fail unless told to");
                done.say(written, lies, &mut self.liar, &mut self.batch_signer);
                self.medium = before;
                return done;
            }
            Some(PendingCrash::Writing) => {
                self.medium.fail_next_sync();
                drop(stepped.persist());
                return done;
            }
            _ => match stepped.persist() {
                Ok(written) => written,
                Err(failure) => {
                    (done.died, done.failure) = (true, Some(failure.to_string()));
                    return done;
                }
            },
        };
        if gap == Some(PendingCrash::Written) {
            return done;
        }
        done.say(written, lies, &mut self.liar, &mut self.batch_signer);
        match gap {
            Some(PendingCrash::Signed) => done.sends.clear(),
            Some(PendingCrash::Sending) => done.sends.retain(|_| random.chance(500)),
            _ => {}
        }
        done
    }

    /// When it wants to be woken, in true time.
    pub fn wakes_at(&self) -> Option<u64> {
        let at = self.node.as_ref()?.wakes_at()?;
        Some(self.clock.when(at))
    }
}
