//! How the coordinator commits a transaction that has only read. The rule, which is beyond the paper, and why it is safe, are in
//! [`crate::read_only`].

use crate::transaction::Transaction;
use machine::{Time, Voters};
use types::{Party, ReplicaId, Timestamp};

use super::{Coordinator, Event, Out, Timer};
use crate::message::{Message, ReadResult};
use crate::read_only::{ReadValidation, Verdict};
use crate::reading::last_version;

impl Coordinator {
    pub(super) fn on_commit_reads_command(
        &mut self,
        now: Time,
        operation: u64,
        transaction: Transaction,
        validated: Vec<Voters>,
        out: &mut Out,
    ) {
        let read_validation = ReadValidation::new(&self.cluster, self.quorums, operation, transaction, validated);
        match read_validation.verdict(self.quorums) {
            Verdict::Validated => self.validated(operation, out),
            Verdict::NotValidated => self.on_commit_command(now, Some(operation), read_validation.transaction, Vec::new(), out),
            Verdict::Open => {
                self.counts.validation_rounds += 1;
                self.requests_made += 1;
                let (request, timestamp) = (self.requests_made, read_validation.transaction.timestamp());
                let mut longest_us = 0;
                for (replica, keys) in read_validation.questions(&self.cluster) {
                    longest_us = longest_us.max(self.read_wait_us(replica.shard, 0));
                    out.send(Party::Replica(replica), Message::Read { request, timestamp, keys });
                }
                self.read_validations.insert(request, read_validation);
                let wait_us = longest_us.max(self.options.retry_ms * 1_000);
                self.timers.set(Timer::ReadValidation(request), now.after_us(wait_us));
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
        let Some(read_validation) = self.read_validations.get_mut(&number) else { return };
        let last_versions = |(results, prepared): (&[ReadResult], &[Transaction])| -> Vec<Option<Timestamp>> {
            results.iter().map(|result| last_version(result, result.pending.writer(prepared))).collect()
        };
        read_validation.answer(from, answer.map(last_versions).as_deref());
        match read_validation.verdict(self.quorums) {
            Verdict::Open => {}
            Verdict::NotValidated => self.on_confirmation_over(now, number, out),
            Verdict::Validated => {
                let operation = read_validation.operation;
                self.read_validations.remove(&number);
                self.timers.cancel(&Timer::ReadValidation(number));
                self.validated(operation, out);
            }
        }
    }

    /// It cannot be settled, or not soon: it is prepared like any other.
    pub(super) fn on_confirmation_over(&mut self, now: Time, number: u64, out: &mut Out) {
        let Some(read_validation) = self.read_validations.remove(&number) else { return };
        self.timers.cancel(&Timer::ReadValidation(number));
        self.on_commit_command(now, Some(read_validation.operation), read_validation.transaction, Vec::new(), out);
    }

    fn validated(&mut self, operation: u64, out: &mut Out) {
        self.counts.validated += 1;
        out.emit(Event::Validated { operation });
    }
}
