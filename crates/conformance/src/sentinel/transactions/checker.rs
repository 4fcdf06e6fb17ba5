//! Who watches transactions.
//!
//! | checker | what it holds everyone to |
//! |---|---|
//! | strict | what clients saw and were told has an order that explains it, and that keeps to real time (`application/history.rs`) |
//! | aborted | what a client was told did not take place is seen by nobody |
//! | invented | nothing is seen that no client wrote |
//! | ranges | what is found in a range lies in it, in order, and is no more than was wanted |
//! | sums, seats | money that is moved between accounts is neither lost nor made, and no more seats are taken than may be |
//! | refused | a client is told that others were in its way, or that nobody answered, and nothing else |
//! | durability | a commit is delivered at the place that its client was told |
//! | agreement, leaders, tree, corruption | see [`crate::sentinel::ensemble`] |
//!
//! All but the last two lines know only what clients did, what they were told, and when.

use engine::{Commit, Refusal};
use simulator::{Checker, Outcomes, Violations};
use types::{ClientId, Key, Party, ReplicaId, Value};

use super::{Transactions, TransactionsCounts};
use crate::application::history::{Record, Records, Told};
use crate::sentinel::ensemble::Ensemble;
use crate::sentinel::ensemble::checker::EnsembleChecker;
use crate::sentinel::ensemble::message::{Message, Report};

type Nothing = crate::sentinel::Nothing<Message>;

/// Who watches transactions.
#[derive(Debug)]
pub struct TransactionsChecker {
    servers: EnsembleChecker,
    records: Records,
    counts: TransactionsCounts,
}

impl TransactionsChecker {
    pub(super) fn new() -> Self {
        Self { servers: EnsembleChecker::new(), records: Records::default(), counts: TransactionsCounts::default() }
    }

    /// A client asks for a commit. Gives the number under which it is known here.
    pub(super) fn begins(&mut self, record: Record) -> usize {
        self.records.begins(record)
    }

    /// It is told what came of it, and what was found.
    pub(super) fn ends(&mut self, number: usize, now: u64, told: Told, found: Vec<(Key, Option<Value>)>) {
        self.records.ends(number, now, told, found);
        let reads_alone = told == Told::Committed && self.records.reads_alone(number);
        self.counts.read_alone += u64::from(reads_alone);
    }

    /// A client was told the place of a commit.
    pub(super) fn placed(&mut self, commit: &Commit) {
        let place = commit.id.0.first_chunk().copied().map_or(0, i64::from_be_bytes);
        self.servers.told(place);
    }

    pub(super) fn refused(&mut self, client: ClientId, refusal: &Refusal) {
        self.servers.broken("refused", format!("{client} is told: {refusal}"));
    }
}

impl Checker<Transactions> for TransactionsChecker {
    fn violations(&mut self) -> &mut Violations {
        Checker::<Ensemble>::violations(&mut self.servers)
    }

    fn signs(&mut self, _by: ReplicaId, unsigned: &Nothing, _is_honest: bool) {
        unsigned.never()
    }

    fn says(&mut self, by: ReplicaId, to: Party, message: &Message) {
        Checker::<Ensemble>::says(&mut self.servers, by, to, message);
    }

    fn believed(&mut self, message: &Message) {
        self.counts.reopened += u64::from(matches!(message, Message::Report(Report::Reopens(_))));
        Checker::<Ensemble>::believed(&mut self.servers, message);
    }

    fn finish(&mut self) {
        for (checker, what) in self.records.check() {
            self.servers.broken(checker, what);
        }
    }

    fn outcomes(&self) -> Outcomes {
        self.records.outcomes()
    }

    fn count(&self, counts: &mut TransactionsCounts) {
        *counts = TransactionsCounts { sessions_ended: self.servers.model.closed(), ..self.counts };
    }
}
