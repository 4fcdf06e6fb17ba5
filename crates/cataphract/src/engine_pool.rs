//! The pool behind the engine interface: what a client asks of any engine's pool, in terms of this one.

use basil::session::buffer;
use basil::{Command, Event, Failure, Receipt};
use engine::{Commit, CommitPath, Committed, NotTaken, PoolCounts, PoolOutput, PoolRequest, Private, ReadMode, Refusal, Request, Response};
use machine::Time;
use types::Timestamp;

use crate::pool::{Ask, BatchedCommit, Failed, Output, Pool};
use crate::work::Work;

impl engine::Pool for Pool {
    fn submit(&mut self, now: Time, ticket: u64, work: engine::Work) -> Result<(), NotTaken> {
        let work = match work {
            engine::Work::Declared(operations) => Work::Declared(operations),
            engine::Work::Interactive { timestamp, reads, writes } => {
                Work::Interactive(buffer(timestamp, reads, writes).map_err(|_foreign| NotTaken::Unfit)?)
            }
        };
        Self::submit(self, now, ticket, work)
    }

    fn withdraw(&mut self, ticket: u64) -> bool {
        Self::withdraw(self, ticket)
    }

    fn advance(&mut self, now: Time, timestamp: &mut dyn FnMut() -> Timestamp, out: &mut PoolOutput) {
        neutral(out, |inner| Self::advance(self, now, timestamp, inner));
    }

    fn on_outcome(&mut self, now: Time, batch: u64, outcome: Result<Response, Refusal>, out: &mut PoolOutput) {
        let event = match outcome {
            Ok(Response::Private(private)) => private.take::<Event>().ok(),
            Err(Refusal::Unavailable) => return neutral(out, |inner| self.on_unasked(now, batch, inner)),
            _ => None,
        };
        neutral(out, |inner| match event {
            Some(Event::Read { result, .. }) => self.on_read(now, batch, result, inner),
            Some(Event::Ended { result, .. }) => self.on_ended(now, batch, result, inner),
            Some(Event::Validated { .. }) => self.on_validated(now, batch, inner),
            // Nobody answered, or not to what was asked, as a pool reads no ranges: the batch ends wherever it is.
            Some(Event::Scanned { .. }) | None if self.is_committing(batch) => {
                self.on_ended(now, batch, Err(Failure::TimedOut(None)), inner)
            }
            Some(Event::Scanned { .. }) | None => self.on_read(now, batch, Err(Failure::TimedOut(None)), inner),
        });
    }

    fn can_advance(&self, now: Time) -> bool {
        Self::can_advance(self, now)
    }

    fn deadline(&self) -> Option<Time> {
        Self::deadline(self)
    }

    fn waiting(&self) -> usize {
        Self::waiting(self)
    }

    fn under_way(&self) -> usize {
        Self::under_way(self)
    }

    fn batch_limit(&self) -> usize {
        Self::batch_limit(self)
    }

    fn has_full_batch(&self) -> bool {
        Self::has_full_batch(self)
    }

    fn counts(&self) -> &PoolCounts {
        Self::counts(self)
    }
}

/// Lets the pool do something, and says in neutral terms what came of it.
fn neutral(out: &mut PoolOutput, act: impl FnOnce(&mut Output)) {
    let mut inner = Output::default();
    act(&mut inner);
    out.requests.extend(inner.asks.into_iter().map(request));
    out.outcomes.extend(inner.outcomes.into_iter().map(|(ticket, outcome)| (ticket, outcome.map(committed).map_err(refusal))));
}

/// The session sets the number of the command.
fn request(ask: Ask) -> PoolRequest {
    let operation = 0;
    let (batch, commits, command) = match ask {
        Ask::Read { batch, timestamp, keys, mode } => (batch, false, Command::Read { operation, timestamp, keys, mode }),
        Ask::Commit { batch, transaction, dependencies } => (batch, true, Command::Commit { operation, transaction, dependencies }),
        Ask::CommitReads { batch, transaction, validated } => (batch, true, Command::CommitReads { operation, transaction, validated }),
    };
    PoolRequest { batch, commits, request: Request::Private(Private::new(command)) }
}

fn committed(committed: BatchedCommit) -> Committed {
    let BatchedCommit { values, transaction, place, proof, attempts, .. } = committed;
    let (id, timestamp) = (transaction.id(), transaction.timestamp());
    let (path, receipt) = match proof {
        Some((certificate, path)) => (path.into(), Some(Receipt { transaction, certificate }.into())),
        None => (CommitPath::ReadOnly, None),
    };
    Committed { values, commit: Commit { id, timestamp, place, path, receipt }, attempts }
}

fn refusal(failed: Failed) -> Refusal {
    match failed {
        Failed::Conflict => Refusal::Conflict,
        Failed::TooLarge(error) => Refusal::Invalid(error.to_string()),
        Failed::NotCommitted(failure) => failure.refusal_of_read(ReadMode::Interactive),
        Failed::Unknown => Refusal::OutcomeUnknown,
    }
}
