//! What goes wrong, when it ends, and what is demanded then.

use std::collections::BTreeSet;

use random::Named as _;

use crate::clock::Clock;
use crate::disk::{PendingCrash, Rot};
use crate::network::LinkProfile;
use crate::scenario::FaultClass;
use crate::self_test::BrokenRule;
use crate::setting::ReplicaFault;
use crate::system::{Liar as _, System};
use crate::world::{Actor, Event, World};

/// How far a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Things go wrong.
    Faults,
    /// They no longer do, but for those who lie: everybody gets something done.
    Healed { at: u64 },
    /// Nobody wants anything any more: nothing may stay undecided.
    Quiet { since: u64 },
    /// The power went everywhere at once; somebody looks at what is left.
    Audit { since: u64 },
    /// It is over.
    Done,
}

impl Phase {
    /// Whether the faults were over by `time`.
    pub fn healed_before(self, time: u64) -> bool {
        match self {
            Self::Faults => false,
            Self::Healed { at } => at <= time,
            Self::Quiet { .. } | Self::Audit { .. } | Self::Done => true,
        }
    }
}

/// How many transactions each honest client must commit once the faults are over.
pub(crate) const COMMITS_AFTER_HEAL: u64 = 3;
/// How long they may take for it, in milliseconds of virtual time.
const PROGRESS_MS_MAX: u64 = 60_000;
/// How long anything may stay undecided once nobody wants anything, in milliseconds of virtual time.
const UNDECIDED_MS_MAX: u64 = 60_000;
/// How long the last look may take, in milliseconds of virtual time.
const AUDIT_MS_MAX: u64 = 20_000;
/// How much longer what a client says takes, in milliseconds: also by more than replicas grant timestamps.
const SLOW_MS: [u64; 6] = [0, 0, 100, 200, 400, 800];
/// How often somebody looks whether all is done, in milliseconds.
const LOOK_MS: u64 = 20;

random::named! {
    /// Something that goes wrong now and then, during the first phase.
    pub enum FaultKind {
        /// Nothing gets from one to another any more.
        CutOneWay,
        /// Some are cut off from the others.
        Isolate,
        /// What one says to another takes much longer.
        SlowLinks,
        /// All links are as good as they were at first.
        Repair,
        /// Much is lost and late.
        HeavyLoss,
        /// A clock jumps: within what the protocol allows for, or, where clocks are wild, beyond it.
        ClockJump,
        /// A replica's process dies.
        CrashReplica,
        /// Most of them die at once.
        CrashMany,
        /// The power goes at all of them at once, in the runs that draw it.
        CutPower,
        /// A client's process dies.
        CrashClient,
        /// A liar that forgets comes back from an empty disk.
        LoseDisk,
        /// Bits flip on a disk while its replica is down.
        FlipBits,
        /// A replica loses its disk, or some rows on it, while no more than `f` of its shard are at fault, and rebuilds itself from the others.
        Rebuild,
        /// A shard's replicas are stopped in good order, one after the other, and come back with other options.
        Upgrade,
        /// The operators make another configuration.
        Reconfigure,
        /// A bit flips in a value that a replica holds and that nobody is at: in its memory, and where it will be written from there.
        FlipAtRest,
        /// All replicas' wall clocks are set, as far as one another's. Processes that run do not follow, and those that start begin there.
        SetClocks,
        /// What one client says takes much longer, to whomever, or no longer than at first: so it takes replicas' clocks to show more than they do.
        SlowClient,
    }
}

impl FaultKind {
    /// Those that belong to the classes `faults`.
    pub(crate) fn of(faults: &[FaultClass]) -> BTreeSet<Self> {
        Self::ALL.iter().copied().filter(|kind| faults.contains(&kind.class())).collect()
    }

    /// The class of faults that it belongs to.
    fn class(self) -> FaultClass {
        match self {
            Self::CutOneWay | Self::Isolate | Self::SlowLinks | Self::Repair | Self::HeavyLoss => FaultClass::Network,
            Self::ClockJump => FaultClass::Clocks,
            Self::CrashReplica | Self::CrashMany | Self::CutPower | Self::CrashClient => FaultClass::Crashes,
            Self::LoseDisk => FaultClass::ByzantineReplicas,
            Self::FlipBits => FaultClass::DiskDamage,
            Self::Rebuild => FaultClass::DiskLoss,
            Self::Upgrade => FaultClass::Upgrades,
            Self::Reconfigure => FaultClass::Changes,
            Self::FlipAtRest => FaultClass::SilentFlips,
            Self::SetClocks | Self::SlowClient => FaultClass::FalseTimes,
        }
    }

    /// How often it happens, beside the others.
    fn weight(self) -> usize {
        match self {
            Self::Repair => 2,
            Self::CrashReplica => 4,
            Self::Rebuild => 3,
            Self::Reconfigure => 8,
            _ => 1,
        }
    }
}

impl<S: System> World<S> {
    /// Something goes wrong, and something else will.
    pub fn fault(&mut self) {
        if self.phase != Phase::Faults {
            return;
        }
        let kinds: Vec<FaultKind> = self.setting.fault_kinds.iter().flat_map(|kind| std::iter::repeat_n(*kind, kind.weight())).collect();
        if kinds.is_empty() {
            return;
        }
        let kind = self.faults.pick(&kinds);
        self.trace.line(self.now, || format!("{kind:?}"));
        self.inject(kind);
        let gap_ms = self.faults.between(20, 600);
        self.after(gap_ms * 1_000_000, Event::Fault);
    }

    fn inject(&mut self, kind: FaultKind) {
        match kind {
            FaultKind::CutOneWay | FaultKind::SlowLinks => {
                let (from, to) = (self.anyone(), self.anyone());
                let by_us = self.faults.between(1_000, 400_000);
                if kind == FaultKind::CutOneWay { self.network.cut(from, to) } else { self.network.slow(from, to, by_us) }
            }
            FaultKind::Isolate => {
                let mut everybody = self.everybody();
                self.faults.shuffle(&mut everybody);
                let count = 1 + self.faults.index(everybody.len() / 2);
                for one in &everybody[..count] {
                    for other in &everybody[count..] {
                        self.network.cut(*one, *other);
                        self.network.cut(*other, *one);
                    }
                }
            }
            FaultKind::Repair => {
                self.network.repair();
                self.network.profile = self.setting.links;
            }
            FaultKind::HeavyLoss => {
                self.network.profile = LinkProfile {
                    lost_per_mille: self.faults.below(300),
                    late_per_mille: self.faults.below(300),
                    late_us_max: 300_000,
                    ..self.setting.links
                };
            }
            FaultKind::ClockJump => match self.anyone() {
                Actor::Replica(at) if self.may_be_paused(at) && self.faults.chance(500) => {
                    self.replicas[at].clock.stand_still(&mut self.faults);
                }
                Actor::Replica(at) => self.replicas[at].clock.jump(&mut self.faults, self.setting.clocks),
                Actor::Client(at) => self.clients[at].pause(self.now, &mut self.faults),
            },
            FaultKind::CrashReplica => {
                let at = self.faults.index(self.replicas.len());
                self.crash_soon(at);
            }
            FaultKind::CrashMany => {
                for at in 0..self.replicas.len() {
                    if self.faults.chance(700) {
                        self.crash_soon(at);
                    }
                }
            }
            FaultKind::CutPower => {
                let up = (0..self.replicas.len()).filter(|at| self.replicas[*at].node.is_some());
                up.collect::<Vec<_>>().into_iter().for_each(|at| self.crash(at));
            }
            FaultKind::CrashClient => {
                let at = self.faults.index(self.auditor());
                self.clients[at].restart();
                self.counts.crashes += 1;
                self.begin_after(at, 1_000_000, 300_000_000);
            }
            FaultKind::LoseDisk => self.lose_disk(),
            FaultKind::FlipBits => self.flip_bits(),
            FaultKind::Rebuild => self.rebuild_one(),
            FaultKind::Upgrade => self.begin_upgrade(),
            FaultKind::Reconfigure => self.reconfigure(),
            FaultKind::FlipAtRest => {
                let at = self.faults.index(self.replicas.len());
                self.flip_at_rest(at);
            }
            FaultKind::SetClocks => {
                let ahead_ns = Clock::error(&mut self.faults, self.setting.clocks);
                self.replicas.iter_mut().for_each(|replica| replica.clock.set(ahead_ns));
            }
            FaultKind::SlowClient => {
                let (at, by_ms) = (self.faults.index(self.auditor()), self.faults.pick(&SLOW_MS));
                (0..self.replicas.len()).for_each(|to| self.network.slow(Actor::Client(at), Actor::Replica(to), by_ms * 1_000));
            }
        }
        if matches!(kind.class(), FaultClass::Network | FaultClass::Clocks | FaultClass::FalseTimes) {
            self.counts.network_faults += 1;
        }
    }

    /// Whether a replica is one of those whose machines are paused: such a replica's clock is set forward afterwards, and counts as faulty for
    /// so long.
    fn may_be_paused(&self, at: usize) -> bool {
        let id = self.replicas[at].id;
        let is_with_faulty = self.setting.faulty.keys().any(|faulty| faulty.shard == id.shard);
        let is_first = usize::from(id.index) < self.setting.faults && !is_with_faulty;
        self.setting.faulty.contains_key(&id) || (is_first && !self.setting.fault_kinds.contains(&FaultKind::Upgrade))
    }

    fn everybody(&self) -> Vec<Actor> {
        let replicas = (0..self.replicas.len()).map(Actor::Replica);
        replicas.chain((0..self.clients.len()).map(Actor::Client)).collect()
    }

    fn anyone(&mut self) -> Actor {
        let everybody = self.everybody();
        self.faults.pick(&everybody)
    }

    fn crash_soon(&mut self, at: usize) {
        if self.replicas[at].node.is_none() {
            return;
        }
        match PendingCrash::draw(&mut self.faults) {
            PendingCrash::Between => self.crash(at),
            crash => self.replicas[at].pending_crash = Some(crash),
        }
    }

    /// A liar that forgets comes back from an empty disk.
    fn lose_disk(&mut self) {
        for at in 0..self.replicas.len() {
            let forgets = self.replicas[at].liar.as_ref().is_some_and(S::Liar::forgets);
            if forgets && self.faults.chance(700) {
                self.replicas[at].lose_disk();
                self.restart(at);
            }
        }
    }

    /// A replica's disk is lost. Until it is rebuilt it is one of the `f` that may be at fault; it may be lost again meanwhile.
    fn rebuild_one(&mut self) {
        let at = self.faults.index(self.replicas.len());
        let shard = self.replicas[at].id.shard;
        let of_shard = (0..self.replicas.len()).filter(|other| self.replicas[*other].id.shard == shard && *other != at);
        let at_fault = |at: &usize| self.is_at_fault(*at) || self.replicas[*at].is_being_rebuilt();
        if self.is_at_fault(at) || of_shard.filter(at_fault).count() >= self.setting.faults {
            return;
        }
        let id = self.replicas[at].id;
        // Now and then some of it only.
        let loses_rows = self.counts.disks_lost % 3 == 2 && self.replicas[at].lose_rows();
        self.trace.line(self.now, || format!("{id} loses {}", if loses_rows { "rows on its disk" } else { "its disk" }));
        self.trace.mark(self.now, 0x1057 ^ at as u64);
        self.counts.disks_lost += 1;
        if !loses_rows && let Err(error) = self.replicas[at].lose_disk_and_say_so() {
            self.violation("disk", format!("{id} cannot begin with an empty disk: {error}"));
        }
        let down_ms = self.faults.pick(&[1, 200, 1_500]);
        self.after(down_ms * 1_000_000, Event::Restart(at));
    }

    /// Bits flip on the disk of a replica that is one of those that may be at fault, while it is down.
    fn flip_bits(&mut self) {
        let may_rot: Vec<usize> = (0..self.replicas.len()).filter(|at| self.may_rot(*at)).collect();
        if may_rot.is_empty() {
            return;
        }
        let at = self.faults.pick(&may_rot);
        let id = self.replicas[at].id;
        if !self.budget.blame(id) {
            self.trace.line(self.now, || format!("{id} is spared: its shard would not survive it"));
            return;
        }
        if self.replicas[at].node.is_some() {
            self.crash(at);
        }
        let (what, found) = self.replicas[at].rot(&mut self.disk);
        self.counts.bit_flips += 1;
        self.trace.line(self.now, || format!("on the disk of {id} {what}: {found:?}"));
        if let Rot::Unnoticed(why) = found {
            self.violation("disk", format!("on the disk of {id} {what}, and {why}"));
        }
    }

    /// A bit flips in what a replica holds, if it is one of those to which that may happen: the first `f` of a shard in which nobody else is at fault.
    fn flip_at_rest(&mut self, at: usize) {
        let id = self.replicas[at].id;
        let is_first = usize::from(id.index) < self.setting.faults && !self.setting.faulty.keys().any(|faulty| faulty.shard == id.shard);
        if !is_first || self.replicas[at].away.is_some() {
            return;
        }
        let Some(node) = &mut self.replicas[at].node else { return };
        let noticed = S::noticed(node.machine());
        let Some(what) = S::flip_at_rest(node.machine_mut(), &mut self.faults) else { return };
        self.trace.line(self.now, || format!("at {id} a bit flips in {what}"));
        self.trace.mark(self.now, 0xf11b ^ at as u64);
        self.counts.silent_flips += 1;
        if matches!(self.phase, Phase::Quiet { .. }) {
            self.unnoticed.insert(at, (noticed, what));
        }
    }

    /// Once nobody writes any more, a bit flips at each of those to which that may happen: nothing but a comparison finds that.
    fn flip_last_bits(&mut self) {
        if self.setting.fault_kinds.contains(&FaultKind::FlipAtRest) {
            (0..self.replicas.len()).for_each(|at| self.flip_at_rest(at));
        }
    }

    /// Bits that have flipped since all is quiet, and that their replicas have not noticed and named though they go by them.
    fn unnoticed(&self) -> Vec<String> {
        let noticed = |at: usize| self.replicas[at].node.as_ref().map_or(0, |node| S::noticed(node.machine()));
        let goes_by = |at: usize, what: &str| self.replicas[at].node.as_ref().is_none_or(|node| S::goes_by(node.machine(), what));
        let unnoticed = self.unnoticed.iter().filter(|(at, (before, what))| noticed(**at) <= *before && goes_by(**at, what));
        unnoticed.map(|(at, (_, what))| format!("{} has not noticed a bit that flipped in {what}", self.replicas[*at].id)).collect()
    }

    fn may_rot(&self, at: usize) -> bool {
        if matches!(self.broken, Some(BrokenRule::DamageAnyDisk)) {
            return self.replicas[at].away.is_none();
        }
        let replica = &self.replicas[at];
        // Where replicas may not forget, they first come to know one another, which takes all of them.
        let is_settled = S::MAY_FORGET || replica.node.as_ref().is_some_and(|node| !S::is_rebuilding(node.machine()));
        is_settled && replica.away.is_none() && self.setting.faulty.get(&replica.id) == Some(&ReplicaFault::DiskDamage)
    }

    /// A replica's process ends; it is started again some time later.
    pub fn crash(&mut self, at: usize) {
        let id = self.replicas[at].id;
        self.trace.line(self.now, || format!("{id} crashes"));
        self.trace.mark(self.now, 0xdead ^ at as u64);
        self.counts.crashes += 1;
        self.replicas[at].crash(&mut self.disk);
        if matches!(self.broken, Some(BrokenRule::ForgetOnCrash)) {
            self.replicas[at].lose_disk();
        }
        if self.phase == Phase::Faults {
            let down_ms = self.faults.pick(&[1, 20, 200, 200, 1_500]);
            self.after(down_ms * 1_000_000, Event::Restart(at));
        } else {
            self.after(1_000_000, Event::Restart(at));
        }
    }

    /// The faults are over: from now on progress is demanded.
    pub fn heal(&mut self) {
        self.trace.line(self.now, || "the faults are over".to_owned());
        // Clocks that were far off are put right, which takes its time where one was ahead: what is begun meanwhile may fail.
        let clocks = self.replicas.iter_mut().map(|replica| &mut replica.clock);
        let wait = clocks.map(|clock| clock.put_right(&mut self.faults, self.setting.clocks)).max().unwrap_or(0);
        self.phase = Phase::Healed { at: self.now + wait };
        self.network.repair();
        self.network.profile = LinkProfile::GOOD;
        for at in 0..self.replicas.len() {
            self.replicas[at].pending_crash = None;
            self.replicas[at].leaving = None;
            self.restart(at);
        }
        self.settle();
        self.after(LOOK_MS * 1_000_000, Event::Look);
    }

    /// Whether what is demanded has come about, and in time.
    pub fn look(&mut self) {
        match self.phase {
            Phase::Faults | Phase::Done => return,
            Phase::Healed { at } => self.look_at_progress(at),
            Phase::Quiet { since } => self.look_at_undecided(since),
            Phase::Audit { since } => {
                if self.clients[self.auditor()].done_since_heal > 0 {
                    self.phase = Phase::Done;
                } else if self.now > since + AUDIT_MS_MAX * 1_000_000 {
                    let what = format!("after all power was lost, nobody could read everything within {AUDIT_MS_MAX} ms");
                    self.violation("durability", what);
                }
            }
        }
        self.after(LOOK_MS * 1_000_000, Event::Look);
    }

    fn look_at_progress(&mut self, healed_at: u64) {
        let honest = self.clients[..self.clients.len() - 1].iter().filter(|client| client.is_honest());
        let behind: Vec<String> =
            honest.filter(|client| client.done_since_heal < COMMITS_AFTER_HEAL).map(|client| client.id.to_string()).collect();
        if behind.is_empty() {
            self.trace.line(self.now, || "everybody got something done".to_owned());
            self.phase = Phase::Quiet { since: self.now };
            self.flip_last_bits();
        } else if self.now > healed_at + PROGRESS_MS_MAX * 1_000_000 {
            let who = behind.join(", ");
            self.violation("progress", format!("{PROGRESS_MS_MAX} ms after the faults, {who} had not committed {COMMITS_AFTER_HEAL}"));
        }
    }

    fn look_at_undecided(&mut self, since: u64) {
        let mut left = Vec::new();
        for replica in self.replicas.iter().filter(|replica| replica.is_honest()) {
            let undecided = replica.node.as_ref().map(|node| S::undecided(node.machine())).unwrap_or_default();
            if !undecided.is_empty() {
                left.push(format!("{} has {}: {}", replica.id, undecided.len(), undecided[..undecided.len().min(4)].join(", ")));
            }
        }
        let rebuilding = self.replicas.iter().filter(|replica| replica.is_being_rebuilt());
        left.extend(rebuilding.map(|replica| format!("{} is not rebuilt", replica.id)));
        left.extend(self.behind());
        left.extend(self.differences());
        left.extend(self.unnoticed());
        if left.is_empty() {
            self.lose_power();
        } else if self.now > since + UNDECIDED_MS_MAX * 1_000_000 {
            let what =
                format!("{UNDECIDED_MS_MAX} ms after all was quiet, transactions are undecided, or versions differ: {}", left.join(", "));
            self.violation("progress", what);
        }
    }

    /// In what the honest replicas of each shard differ.
    fn differences(&self) -> Vec<String> {
        let mut differences = Vec::new();
        for shard in self.cluster.shards() {
            let honest = self.replicas.iter().filter(|replica| replica.id.shard == shard && replica.is_honest());
            let nodes: Vec<_> = honest.filter_map(|replica| Some((replica.id, replica.node.as_ref()?.machine()))).collect();
            differences.extend(S::differences(&nodes));
        }
        differences
    }

    /// The power goes everywhere at once. What anybody was told is there all the same.
    fn lose_power(&mut self) {
        self.trace.line(self.now, || "the power goes everywhere".to_owned());
        for at in (0..self.replicas.len()).filter(|at| self.replicas[*at].away.is_none()).collect::<Vec<_>>() {
            self.replicas[at].crash_hard();
            self.restart(at);
        }
        self.phase = Phase::Audit { since: self.now };
        self.begin_after(self.auditor(), 1_000_000, 2_000_000);
    }
}
