//! Who watches whole clusters of Augustus.
//!
//! | checker | what it holds everyone to |
//! |---|---|
//! | strict | what honest clients saw and were told has an order that explains it, and that keeps to real time (`application/history.rs`) |
//! | aborted | what a client was told did not take place is seen by nobody |
//! | invented | where only honest clients write, nothing is seen that none of them wrote |
//! | ranges | what is found in a range lies in it, in order, and is no more than was wanted |
//! | sums | money that is moved between accounts is neither lost nor made |
//! | refused | an honest client is told that others were in its way, or that nobody answered, and nothing else |
//! | votes, states | see [`crate::augustus::statements`] |

use std::sync::Arc;

use ::augustus::multicast::{Message, Unsigned};
use engine::Refusal;
use simulator::{Outcomes, Violations};
use types::{ClientId, Cluster, ClusterId, Key, Party, ReplicaId, Value};

use super::Augustus;
use crate::application::history::{Record, Records, Told};
use crate::augustus::statements::Statements;

/// Who watches whole clusters.
#[derive(Debug)]
pub struct Checker {
    violations: Violations,
    cluster: ClusterId,
    statements: Statements,
    records: Records,
}

impl Checker {
    pub(super) fn new(cluster: &Arc<Cluster>) -> Self {
        Self { violations: Violations::default(), cluster: cluster.id(), statements: Statements::default(), records: Records::default() }
    }

    /// An honest client begins a transaction. Gives the number under which it is known here.
    pub(super) fn begins(&mut self, record: Record) -> usize {
        self.records.begins(record)
    }

    /// It is told what came of it, and what was found.
    pub(super) fn ends(&mut self, number: usize, now: u64, told: Told, found: Vec<(Key, Option<Value>)>) {
        self.records.ends(number, now, told, found);
    }

    pub(super) fn refused(&mut self, client: ClientId, refusal: &Refusal) {
        self.violations.add("refused", format!("{client} is told: {refusal}"));
    }
}

impl simulator::Checker<Augustus> for Checker {
    fn violations(&mut self) -> &mut Violations {
        &mut self.violations
    }

    fn signs(&mut self, by: ReplicaId, unsigned: &Unsigned, is_honest: bool) {
        if is_honest {
            self.statements.signs(by, unsigned, &mut self.violations);
        }
    }

    fn says(&mut self, by: ReplicaId, _to: Party, message: &Message) {
        self.statements.says(self.cluster, by, message, &mut self.violations);
    }

    fn believed(&mut self, _message: &Message) {}

    fn finish(&mut self) {
        for (checker, what) in self.records.check() {
            self.violations.add(checker, what);
        }
    }

    fn outcomes(&self) -> Outcomes {
        self.records.outcomes()
    }
}
