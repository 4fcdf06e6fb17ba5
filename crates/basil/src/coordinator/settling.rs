//! How the coordinator commits a transaction that has only read. The rule, which is beyond the paper, and why it is safe, are in
//! [`crate::read_only`].

use machine::{Time, Voters};
use types::{Party, ReplicaId, Timestamp, Transaction};

use super::{Coordinator, Event, Out, Timer};
use crate::message::{Message, ReadResult};
use crate::read_only::{Confirmation, Verdict};
use crate::reading::last_version;

impl Coordinator {
    pub(super) fn on_commit_reads_command(
        &mut self,
        now: Time,
        operation: u64,
        transaction: Transaction,
        settled: Vec<Voters>,
        out: &mut Out,
    ) {
        let confirmation = Confirmation::new(&self.cluster, self.quorums, operation, transaction, settled);
        match confirmation.verdict(self.quorums) {
            Verdict::Settled => self.settled(operation, out),
            Verdict::Unsettled => self.on_commit_command(now, Some(operation), confirmation.transaction, Vec::new(), out),
            Verdict::Open => {
                self.counts.confirmed += 1;
                self.requests_made += 1;
                let (request, timestamp) = (self.requests_made, confirmation.transaction.timestamp());
                let mut longest_us = 0;
                for (replica, keys) in confirmation.questions(&self.cluster) {
                    longest_us = longest_us.max(self.read_wait_us(replica.shard, 0));
                    out.send(Party::Replica(replica), Message::Read { request, timestamp, keys });
                }
                self.confirmations.insert(request, confirmation);
                let wait_us = longest_us.max(self.options.retry_ms * 1_000);
                self.timers.set(Timer::Confirmation(request), now.after_us(wait_us));
            }
        }
    }

    /// An answer, and the prepared transactions that it names; nothing when it is refused.
    pub(super) fn on_confirmed(
        &mut self,
        now: Time,
        from: ReplicaId,
        number: u64,
        answer: Option<(&[ReadResult], &[Transaction])>,
        out: &mut Out,
    ) {
        let Some(confirmation) = self.confirmations.get_mut(&number) else { return };
        let last_versions = |(results, prepared): (&[ReadResult], &[Transaction])| -> Vec<Option<Timestamp>> {
            results.iter().map(|result| last_version(result, result.newer.writer(prepared))).collect()
        };
        confirmation.answer(from, answer.map(last_versions).as_deref());
        match confirmation.verdict(self.quorums) {
            Verdict::Open => {}
            Verdict::Unsettled => self.on_confirmation_over(now, number, out),
            Verdict::Settled => {
                let operation = confirmation.operation;
                self.confirmations.remove(&number);
                self.timers.cancel(&Timer::Confirmation(number));
                self.settled(operation, out);
            }
        }
    }

    /// It cannot be settled, or not soon: it is prepared like any other.
    pub(super) fn on_confirmation_over(&mut self, now: Time, number: u64, out: &mut Out) {
        let Some(confirmation) = self.confirmations.remove(&number) else { return };
        self.timers.cancel(&Timer::Confirmation(number));
        self.on_commit_command(now, Some(confirmation.operation), confirmation.transaction, Vec::new(), out);
    }

    fn settled(&mut self, operation: u64, out: &mut Out) {
        self.counts.settled += 1;
        out.emit(Event::Settled { operation });
    }
}
