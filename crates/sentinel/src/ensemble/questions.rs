//! What a server does for the engine's clients ([`crate::transactions`]): it answers where it leads.

use mutants::{Mutant, broken};
use types::limits::TRANSACTION_READS_MAX;
use types::{ClientId, Party, Permission, Session};

use super::Member;
use crate::order::Status;
use crate::server::{Now, Outbox};
use crate::state::Corruption;
use crate::transactions::serve::{Commit, NotFound, is_permitted};
use crate::transactions::{Answer, Question, Reason, Row};

impl Member {
    /// A client of the engine asks for something; `rights` are what it may do.
    pub fn ask(&mut self, now: Now, from: Party, rights: Option<&Permission>, number: u64, question: Question) {
        let leads = matches!(self.status, Status::Leading { .. }) && self.turn.reopen.is_none() && !self.server.serves_nobody();
        if !leads || self.server.corruption().is_some() {
            // Whoever is asked next does not send the client back here.
            let leader = if let Status::Following { leader, .. } = self.status { Some(leader) } else { None };
            self.turn.answers.push((from, number, Answer::NotLeading { leader }));
            return;
        }
        let (Party::Client(client, process), Some(rights)) = (from, rights) else { return };
        if !is_permitted(rights, &question) {
            self.turn.answers.push((from, number, Answer::Refused(Reason::NotPermitted)));
            return;
        }
        self.prepare_next();
        self.server.steady_ms = now.steady_ms;
        let mut outbox = Outbox::default();
        match self.answer(now, (client, process), question, &mut outbox) {
            Ok(Some((answer, Waits::ForWhatIsProposed))) => outbox.answers.push((from, number, answer)),
            Ok(Some((answer, Waits::UntilSettled))) => self.settle(from, number, answer),
            Ok(None) => {}
            Err(corruption) => self.server.stop(corruption, &mut outbox),
        }
        self.carry_out(now, outbox);
    }

    fn answer(
        &mut self,
        now: Now,
        from: (ClientId, Session),
        question: Question,
        outbox: &mut Outbox,
    ) -> Result<Option<(Answer, Waits)>, Corruption> {
        let (server, zxid) = (&mut self.server, self.replica.last().0.cast_signed());
        Ok(Some(match question {
            Question::Begin => (server.begin_for(now, from, outbox)?, Waits::ForWhatIsProposed),
            Question::Read { keys, is_settled } => (found(zxid, server.find(keys))?, Waits::of(is_settled)),
            Question::Scan { range, direction, rows_max, is_settled } => {
                let rows_max = usize::try_from(rows_max).unwrap_or(usize::MAX).min(TRANSACTION_READS_MAX);
                (found(zxid, server.scan(&range, direction, rows_max))?, Waits::of(is_settled))
            }
            Question::Check { seen } => {
                let answer = if server.state.is_as_seen(&seen)? { Answer::Committed { zxid } } else { Answer::Conflict };
                (answer, Waits::UntilSettled)
            }
            Question::Commit { session, slot, sequence, seen, writes } => {
                let commit = Commit { session, slot, sequence, seen, writes };
                let Some(answer) = server.commit_keys(now, from, commit, outbox)? else { return Ok(None) };
                (answer, Waits::ForWhatIsProposed)
            }
        }))
    }
}

/// What an answer waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waits {
    /// Until all is delivered that it was read from, or that it acknowledges.
    ForWhatIsProposed,
    /// And until something is delivered that was proposed after the question came.
    UntilSettled,
}

impl Waits {
    fn of(is_settled: bool) -> Self {
        if is_settled && !broken(Mutant::ReadUnsettled) { Self::UntilSettled } else { Self::ForWhatIsProposed }
    }
}

fn found(zxid: i64, rows: Result<Vec<Row>, NotFound>) -> Result<Answer, Corruption> {
    match rows {
        Ok(rows) => Ok(Answer::Found { zxid, rows }),
        Err(NotFound::Refused(reason)) => Ok(Answer::Refused(reason)),
        Err(NotFound::Corrupt(corruption)) => Err(corruption),
    }
}
