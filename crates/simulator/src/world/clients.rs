//! What clients do, and what they are told.

use basil::{Command, Decision, Event, Failure, Path, Transaction};
use machine::Voters;

use super::{Actor, Happening, World};
use crate::adversary::ByzantineEvent;
use crate::checker::{History, Told};
use crate::client::{Heard, Next};
use crate::trouble::{COMMITS_AFTER_HEAL, Phase};
use crate::workload::Plan;

impl World {
    /// Has a client begin its next transaction after a while.
    pub fn begin_after(&mut self, client: usize, least_ns: u64, most_ns: u64) {
        let wait = self.clients[client].random.between(least_ns, most_ns);
        let life = self.clients[client].lives;
        self.after(wait, Happening::Begin { client, life });
    }

    pub fn begin(&mut self, at: usize) {
        let Some(plan) = self.next_plan(at) else { return };
        let client = &mut self.clients[at];
        let party = client.party();
        self.trace.line(self.now, || format!("{party} begins: {plan:?}"));
        let next = client.begin(self.now, plan);
        let (id, is_rogue) = (client.id, !client.is_honest());
        let job = client.job.as_ref().map_or(0, |job| job.number);
        if is_rogue {
            let patience = client.random.between(60, 500) * 1_000_000;
            self.after(patience, Happening::Abandon { client: at, job });
        } else {
            self.checker.began(id);
        }
        self.go_on(at, next);
    }

    fn go_on(&mut self, at: usize, next: Next) {
        match next {
            Next::Command(command) => self.step_client(at, Heard::Command(command)),
            Next::Commit(transaction, dependencies, validated) => self.commit(at, transaction, dependencies, validated),
        }
    }

    fn commit(&mut self, at: usize, transaction: Transaction, dependencies: Vec<Transaction>, validated: Option<Vec<Voters>>) {
        let client = &mut self.clients[at];
        let Some(job) = &client.job else { return };
        let (party, operation) = (client.party(), job.operation);
        self.trace.line(self.now, || format!("{party} commits {:?} at {:?}", transaction.id(), transaction.timestamp()));
        if client.is_honest() {
            let (plan, reads) = (job.plan.clone(), job.reads.clone());
            self.checker.issued(History { plan, reads, transaction: transaction.clone(), told: Told::Nothing });
        }
        let command = match validated {
            Some(validated) => Command::CommitReads { operation, transaction, validated },
            None => Command::Commit { operation, transaction, dependencies },
        };
        self.step_client(at, Heard::Command(command));
    }

    pub fn step_client(&mut self, at: usize, heard: Heard) {
        let client = &mut self.clients[at];
        let local = client.clock.read(self.now);
        let said = client.step(local, heard);
        let party = client.party();
        for (to, message) in said.sends {
            self.send(Actor::Client(at), party, self.now, to, &message);
        }
        self.arm(Actor::Client(at));
        for event in said.events {
            match event {
                ByzantineEvent::Honest(event) => self.on_event(at, event),
                ByzantineEvent::Abandoned { operation, .. } => self.on_left(at, operation),
            }
        }
    }

    /// A client that cheats has left what it was at, and goes on to the next.
    fn on_left(&mut self, at: usize, operation: u64) {
        if self.clients[at].job.as_ref().is_some_and(|job| job.operation == operation) {
            self.clients[at].job = None;
            self.begin_after(at, 10_000, 40_000_000);
        }
    }

    fn on_event(&mut self, at: usize, event: Event) {
        let is_honest = self.clients[at].is_honest();
        let id = self.clients[at].id;
        let Some(job) = &mut self.clients[at].job else { return };
        match event {
            Event::Read { operation, result } if operation == job.operation => match result {
                Ok(found) => {
                    job.reads.extend(found.iter().map(|one| (one.key.clone(), one.version, one.value.clone())));
                    if is_honest {
                        self.checker.read(id, &found);
                    }
                    if let Some(buffer) = &mut job.buffer {
                        found.into_iter().for_each(|one| buffer.found(one));
                    }
                    if let Some(next) = self.clients[at].advance() {
                        self.go_on(at, next);
                    }
                }
                Err(failure) => self.on_failure(at, failure),
            },
            Event::Ended { operation, result } if operation == job.operation => match result {
                Ok((certificate, path)) => {
                    self.trace.line(self.now, || format!("{id} is told {:?} of {:?} ({path:?})", certificate.decision, certificate.id));
                    if is_honest {
                        self.checker.told(&self.cluster, certificate.id, &certificate);
                        self.counts.fast += u64::from(path == Path::Fast && certificate.decision == Decision::Commit);
                    } else {
                        self.counts.rogue_ended += 1;
                    }
                    let committed = certificate.decision == Decision::Commit;
                    self.clients[at].job = None;
                    self.clients[at].committed_since_heal += u64::from(committed && self.phase != Phase::Trouble);
                    self.begin_after(at, 10_000, if committed { 5_000_000 } else { 40_000_000 });
                }
                Err(failure) => self.on_failure(at, failure),
            },
            Event::Validated { operation } if operation == job.operation => {
                let transaction = job.transaction.as_ref().map(Transaction::id);
                self.trace.line(self.now, || format!("{id} is told that {transaction:?}, which only read, has committed"));
                if let (true, Some(transaction)) = (is_honest, transaction) {
                    self.checker.validated(&self.cluster, transaction);
                    self.counts.validated += 1;
                }
                self.clients[at].job = None;
                self.clients[at].committed_since_heal += u64::from(self.phase != Phase::Trouble);
                self.begin_after(at, 10_000, 5_000_000);
            }
            _ => {}
        }
    }

    fn on_failure(&mut self, at: usize, failure: Failure) {
        let client = &mut self.clients[at];
        let Some(job) = client.job.take() else { return };
        let (id, plan) = (client.id, job.plan.name());
        self.trace.line(self.now, || format!("{id} fails: {failure:?} of {plan}"));
        if client.is_honest() {
            if let Failure::Refused(refusal) = failure {
                self.checker.told_refused(id, refusal);
            }
            if let (Failure::Refused(_), Some(transaction)) = (failure, &job.transaction) {
                self.checker.told_never(transaction.id());
            }
            let is_healed = self.phase.healed_before(job.began);
            if failure == Failure::TimedOut && (is_healed || self.setting.is_steady()) {
                let name = job.transaction.map_or_else(|| "its reads".to_owned(), |transaction| format!("{:?}", transaction.id()));
                let when = if is_healed { "after the trouble was over" } else { "while there was no reason to wait" };
                self.checker.violation("progress", format!("{id} began a {plan} {when}, and {name} timed out"));
            }
        }
        self.begin_after(at, 1_000_000, 40_000_000);
    }

    pub fn abandon(&mut self, at: usize, job: u64) {
        if self.clients[at].job.as_ref().is_some_and(|running| running.number == job) {
            self.clients[at].forget();
            self.begin_after(at, 10_000, 20_000_000);
        }
    }

    /// What a client is to do next; nothing when it is to rest.
    fn next_plan(&mut self, at: usize) -> Option<Plan> {
        let is_auditor = at == self.auditor();
        let client = &mut self.clients[at];
        match self.phase {
            Phase::Trouble => Some(Plan::draw_of(&mut client.random, &self.setting.plans)),
            Phase::Healed { .. } if client.is_honest() && !is_auditor => {
                let has_done_enough = client.committed_since_heal >= COMMITS_AFTER_HEAL;
                (!has_done_enough).then(|| Plan::draw_contended(&mut client.random, &self.setting.plans))
            }
            Phase::Audit { .. } if is_auditor => (client.committed_since_heal == 0).then_some(Plan::Everything),
            _ => None,
        }
    }
}
