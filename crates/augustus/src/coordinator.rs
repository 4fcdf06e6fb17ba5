//! The client's side: brings a transaction to its shards, collects their votes, and ends it (§3.3, first and fourth step).
//!
//! ```text
//!   run ──▶ Run to each shard ──▶ f+1 equal verdicts of each ──▶ the application knows ──▶ Decide or Release where it is pending
//!                                   └─ somebody is in the way
//!   finish ──▶ Finish where it is pending, then everywhere else ──▶ Decide
//! ```
//!
//! It knows the multicast by two words: an [`Order`] goes to all replicas of one shard, again and again until enough have answered, and each
//! [`Answered`] is what one of them says came of it. Whatever `f+1` replicas of a shard say alike, a correct one says; no other answer counts.
//! There is no clock here: what is slow is the multicast's business.

use std::collections::BTreeMap;
use std::sync::Arc;

use crypto::{BatchSignature, Claim, Rejection, SignatureClaims, Verified};
use mutants::{Mutant, broken};
use types::{ClientId, Cluster, ReplicaId, ShardId, TransactionId};

use crate::certificate::{Certificate, EndedStatement, SettledStatement, Signers, Vote};
use crate::limits::{ENDED_CHECKS_MAX, FINISHING_MAX, SETTLE_EVERY, SETTLE_WITHOUT, UNDER_WAY_MAX};
use crate::operation::{Found, Operation};
use crate::request::{AbortReason, Answer, Refusal, Request, Verdict};
use crate::transaction::{Name, Transaction, TransactionError};

/// A request that is to be ordered by a shard.
#[derive(Clone, Debug, PartialEq)]
pub struct Order {
    /// The coordinator's number for it, which comes back with the answers.
    pub number: u64,
    /// The shard.
    pub shard: ShardId,
    /// The request.
    pub request: Request,
}

/// What one replica says came of an order.
#[derive(Clone, Debug, PartialEq)]
pub struct Answered {
    /// Who says so: the channel proved it.
    pub replica: ReplicaId,
    /// The order's number.
    pub number: u64,
    /// What came of it.
    pub answer: Answer,
    /// The signature of its vote, where it signs.
    pub signature: Option<BatchSignature>,
}

impl SignatureClaims for Answered {
    fn claims<'a>(&'a self, cluster: &Cluster, out: &mut Vec<Claim<'a>>) -> Result<(), Rejection> {
        let Some(signature) = &self.signature else { return Ok(()) };
        let statement = self.answer.statement().ok_or(Rejection::Structure("an answer that nobody signs is signed"))?;
        let leaf = statement.leaf(cluster.id(), self.replica);
        out.push(Claim { signer: self.replica, leaf, signature });
        Ok(())
    }
}

/// What the coordinator wants done.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// This is to be ordered.
    Order(Order),
    /// `f+1` replicas have answered this order alike: nobody needs to be asked again.
    Answered(u64),
    /// This transaction of another process is pending at this shard and was in the way. Whoever wants it out of the way has it
    /// [finished](Coordinator::finish).
    Met(Box<Transaction>, ShardId),
    /// This transaction has ended, and lasts.
    Ended(TransactionId, Outcome),
}

/// How a transaction ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// It has committed. Of each query what was found, in their order and with its place among the operations: the rows of a range are those
    /// of all shards, in its direction. Nothing where the shards did not keep it, as when it was asked for twice.
    Committed(Option<Vec<(usize, Found)>>),
    /// It has not taken place, because a shard voted so.
    Aborted(AbortReason),
    /// Too few have answered, or it was asked for again after its shard had forgotten it: it may have taken place.
    Unknown,
    /// It was not voted on.
    Refused(Refusal),
}

/// Why a transaction is not begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CannotBegin {
    /// It is over a limit.
    #[error(transparent)]
    Transaction(#[from] TransactionError),
    /// Too many are under way; try again when one has ended.
    #[error("at most {UNDER_WAY_MAX} transactions are under way at once")]
    TooMany,
}

/// The coordinator of one process of a client.
#[derive(Debug)]
pub struct Coordinator {
    cluster: Arc<Cluster>,
    client: ClientId,
    session: u64,
    last_number: u64,
    last_order: u64,
    attempts: BTreeMap<TransactionId, Attempt>,
    orders: BTreeMap<u64, OpenOrder>,
    /// How many transactions the shards remember for others to ask for.
    unsettled: usize,
    settlement: Option<Settlement>,
    ended_checks: BTreeMap<CheckKey, EndedCheck>,
    /// How many transactions it has left pending, if that is what it does (attack a.2 of §3.4).
    #[cfg(feature = "lab")]
    pub(crate) left: Option<u64>,
}

/// A transaction that is on its way to its end.
#[derive(Debug)]
struct Attempt {
    transaction: Transaction,
    participants: Vec<ShardId>,
    /// Where it was found pending, if it is another's.
    found_at: Option<ShardId>,
    votes: BTreeMap<ShardId, (Verdict, Option<Signers>)>,
    /// Whether its end is known, and was told to whom it may concern.
    is_known: bool,
    /// How many orders are under way for it.
    orders: usize,
}

/// What an order is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    Vote(TransactionId),
    End(TransactionId),
    Settle,
    Forget,
    CheckEnded(CheckKey),
    ForgetEnded(CheckKey),
}

/// Which outcomes are to be forgotten: of which client's session, from which number on.
type CheckKey = (ClientId, u64, u64);

/// Lets the shards forget outcomes that none of them needs any more.
#[derive(Debug)]
struct Settlement {
    statement: SettledStatement,
    /// Who has stated it: once, though a shard that was slow may be asked twice.
    settled: BTreeMap<ShardId, Signers>,
    orders: usize,
}

/// Lets a shard forget outcomes of a session that is another's.
#[derive(Debug)]
struct EndedCheck {
    statement: EndedStatement,
    shard: ShardId,
    /// Who has to state it.
    others: Vec<ShardId>,
    stated: BTreeMap<ShardId, Signers>,
    orders: usize,
}

/// An order that too few have answered alike.
#[derive(Debug)]
struct OpenOrder {
    purpose: Purpose,
    shard: ShardId,
    /// The last answer of each replica.
    answers: BTreeMap<u16, (Answer, Option<BatchSignature>)>,
}

impl Coordinator {
    /// A coordinator for one process of `client`. `session` is above that of every earlier process: the time in nanoseconds does.
    #[must_use]
    pub fn new(cluster: Arc<Cluster>, client: ClientId, session: u64) -> Self {
        Self {
            cluster,
            client,
            session,
            last_number: 0,
            last_order: 0,
            attempts: BTreeMap::new(),
            orders: BTreeMap::new(),
            unsettled: 0,
            settlement: None,
            ended_checks: BTreeMap::new(),
            #[cfg(feature = "lab")]
            left: None,
        }
    }

    /// How many transactions are under way, others' that are finished among them.
    #[must_use]
    pub fn under_way(&self) -> usize {
        self.attempts.len()
    }

    /// Whether another transaction may begin.
    pub fn has_room(&self) -> bool {
        self.attempts.len() < UNDER_WAY_MAX
    }

    /// Runs a transaction, and gives its id.
    ///
    /// # Errors
    /// When it is over a limit.
    pub fn run(&mut self, operations: Vec<Operation>, out: &mut Vec<Output>) -> Result<TransactionId, CannotBegin> {
        if !self.has_room() {
            return Err(CannotBegin::TooMany);
        }
        let transaction = self.transaction(operations)?;
        let (id, attempt) = (transaction.id(), Attempt::new(&self.cluster, transaction.clone(), None));
        let shards = attempt.participants.clone();
        self.attempts.insert(id, attempt);
        for shard in shards {
            self.order(Purpose::Vote(id), shard, Request::Run(transaction.clone()), out);
        }
        Ok(id)
    }

    /// Gives a transaction of these operations the next number. One that is never run leaves its number unused.
    pub(crate) fn transaction(&mut self, operations: Vec<Operation>) -> Result<Transaction, TransactionError> {
        let name = Name { client: self.client, session: self.session, number: self.last_number + 1 };
        let transaction = Transaction::new(self.cluster.id(), name, operations)?;
        self.last_number += 1;
        Ok(transaction)
    }

    /// The name of the transaction that was given the last number.
    pub(crate) fn last_name(&self) -> Name {
        Name { client: self.client, session: self.session, number: self.last_number }
    }

    /// Finishes another's transaction, which is pending at a shard (§3.4, a.2). Gives whether it has begun to.
    pub fn finish(&mut self, transaction: Transaction, found_at: ShardId, out: &mut Vec<Output>) -> bool {
        let id = transaction.id();
        let finishing = self.attempts.values().filter(|attempt| attempt.found_at.is_some()).count();
        let attempt = Attempt::new(&self.cluster, transaction.clone(), Some(found_at));
        // More than a correct shard would show.
        if self.attempts.contains_key(&id) || finishing >= FINISHING_MAX || !attempt.participants.contains(&found_at) {
            return false;
        }
        self.attempts.insert(id, attempt);
        // The shard where it is pending first: its votes let the others execute it for us.
        self.order(Purpose::Vote(id), found_at, Request::Finish(transaction, None), out);
        true
    }

    /// Lets a shard forget outcomes of anybody's session, once the other shards have stated that they do not need them. Gives whether it has begun to.
    pub(crate) fn settle_for(&mut self, statement: EndedStatement, shard: ShardId, others: &[ShardId], out: &mut Vec<Output>) -> bool {
        let key = (statement.client, statement.session, statement.first);
        if self.ended_checks.contains_key(&key) || self.ended_checks.len() >= ENDED_CHECKS_MAX {
            return false;
        }
        let ended_check = EndedCheck { statement, shard, others: others.to_vec(), stated: BTreeMap::new(), orders: 0 };
        self.ended_checks.insert(key, ended_check);
        for other in others {
            self.order(Purpose::CheckEnded(key), *other, Request::CheckEnded(statement), out);
        }
        true
    }

    /// Once all have stated it, brings their statements to the shard that is to forget.
    fn on_gone(&mut self, key: CheckKey, shard: ShardId, said: EndedStatement, signers: Option<Signers>, out: &mut Vec<Output>) {
        let Some(ended_check) = self.ended_checks.get_mut(&key) else { return };
        if let Some(signers) = signers.filter(|_| said == ended_check.statement) {
            ended_check.stated.insert(shard, signers);
        }
        if ended_check.stated.keys().eq(ended_check.others.iter()) {
            let (statement, shard) = (ended_check.statement, ended_check.shard);
            let stated = ended_check.stated.values().cloned().collect();
            self.order(Purpose::ForgetEnded(key), shard, Request::ForgetEnded(statement, stated), out);
        }
        self.close_ended_check(key);
    }

    fn close_ended_check(&mut self, key: CheckKey) {
        if self.ended_checks.get(&key).is_some_and(|ended_check| ended_check.orders == 0) {
            self.ended_checks.remove(&key);
        }
    }

    fn order(&mut self, purpose: Purpose, shard: ShardId, request: Request, out: &mut Vec<Output>) {
        self.last_order += 1;
        self.orders.insert(self.last_order, OpenOrder { purpose, shard, answers: BTreeMap::new() });
        *self.orders_of(purpose) += 1;
        out.push(Output::Order(Order { number: self.last_order, shard, request }));
    }

    /// How many orders are under way for the same.
    fn orders_of(&mut self, purpose: Purpose) -> &mut usize {
        match purpose {
            Purpose::Vote(id) | Purpose::End(id) => &mut self.attempts.get_mut(&id).expect("orders are of transactions under way").orders,
            Purpose::Settle | Purpose::Forget => &mut self.settlement.as_mut().expect("orders are of the settlement under way").orders,
            Purpose::CheckEnded(key) | Purpose::ForgetEnded(key) => {
                &mut self.ended_checks.get_mut(&key).expect("orders are of checks under way").orders
            }
        }
    }

    /// Whether `answer` can be an answer to that, and bears a signature where one is needed.
    fn is_answer(&self, purpose: Purpose, answer: &Answer, is_signed: bool) -> bool {
        match (purpose, answer) {
            (_, Answer::Refused(_)) => true,
            (Purpose::Vote(own), Answer::Voted(id, _)) => own == *id && (is_signed || !self.attempts[&own].needs_proof()),
            (Purpose::End(own), Answer::Ended(id, _)) => own == *id,
            (Purpose::Settle, Answer::Settled(_)) => is_signed,
            (Purpose::Forget, Answer::Settled(_)) => true,
            (Purpose::CheckEnded(..), Answer::Gone(_)) => is_signed,
            (Purpose::ForgetEnded(..), Answer::Gone(_)) => true,
            _ => false,
        }
    }

    /// Takes what a replica has said.
    pub fn on_answered(&mut self, answered: Verified<Answered>, out: &mut Vec<Output>) {
        self.on_checked(answered.into_inner(), out);
    }

    /// The same of an answer whose signature was checked with the message that brought it.
    pub(crate) fn on_checked(&mut self, answered: Answered, out: &mut Vec<Output>) {
        let Answered { replica, number, answer, signature } = answered;
        let Some(purpose) = self.orders.get(&number).filter(|order| order.shard == replica.shard).map(|order| order.purpose) else {
            return;
        };
        if !self.is_answer(purpose, &answer, signature.is_some()) {
            return;
        }
        let order = self.orders.get_mut(&number).expect("it was just found");
        order.answers.insert(replica.index, (answer.clone(), signature));
        let alike = order.answers.iter().filter(|(_, (other, _))| *other == answer);
        let signatures: Vec<(u16, Option<BatchSignature>)> = alike.map(|(index, (_, signature))| (*index, signature.clone())).collect();
        if signatures.len() <= self.cluster.faults() && !broken(Mutant::AnswerOfFew) {
            return;
        }
        let shard = order.shard;
        self.orders.remove(&number);
        *self.orders_of(purpose) -= 1;
        out.push(Output::Answered(number));
        let signatures: Option<Vec<_>> = signatures.into_iter().map(|(index, signature)| Some((index, signature?))).collect();
        let signers = signatures.map(|signatures| Signers { shard, signatures });
        match (purpose, answer) {
            (Purpose::Vote(id), Answer::Voted(_, verdict)) => self.on_verdict(id, shard, verdict, signers, out),
            (Purpose::Vote(id), Answer::Refused(refusal)) => self.on_refused(id, refusal, out),
            (Purpose::Vote(id) | Purpose::End(id), _) => self.remove_if_idle(id, out),
            (Purpose::Settle | Purpose::Forget, Answer::Settled(statement)) => self.on_settled(statement, signers, out),
            // The cluster has another opinion of who its clients are: nothing will come of it.
            (Purpose::Settle | Purpose::Forget, _) => {}
            (Purpose::CheckEnded(key), Answer::Gone(said)) => self.on_gone(key, shard, said, signers, out),
            (Purpose::CheckEnded(key) | Purpose::ForgetEnded(key), _) => self.close_ended_check(key),
        }
        self.settle(out);
    }

    /// Nobody waits for the answers to this order any more. What it was for may not have come to its end: others finish it.
    pub fn give_up(&mut self, number: u64, out: &mut Vec<Output>) {
        let Some(OpenOrder { purpose, .. }) = self.orders.remove(&number) else { return };
        *self.orders_of(purpose) -= 1;
        match purpose {
            Purpose::Vote(id) | Purpose::End(id) => self.remove_if_idle(id, out),
            Purpose::Settle | Purpose::Forget if self.settlement.as_ref().is_some_and(|settlement| settlement.orders == 0) => {
                self.forget_settled(out);
            }
            Purpose::Settle | Purpose::Forget => {}
            Purpose::CheckEnded(key) | Purpose::ForgetEnded(key) => self.close_ended_check(key),
        }
    }

    fn on_verdict(&mut self, id: TransactionId, shard: ShardId, verdict: Verdict, signers: Option<Signers>, out: &mut Vec<Output>) {
        if let Verdict::Abort(AbortReason::Conflict(_, other, Some(transaction))) = &verdict
            && transaction.id() == *other
            && !self.attempts.contains_key(other)
        {
            out.push(Output::Met(transaction.clone(), shard));
        }
        let attempt = self.attempts.get_mut(&id).expect("orders are of transactions under way");
        attempt.votes.insert(shard, (verdict, signers.clone()));
        if attempt.found_at == Some(shard) && attempt.votes.len() == 1 {
            // Evidence that its author wants it, where this shard has voted to commit it.
            let evidence = signers.filter(|_| attempt.votes[&shard].0.vote() == Vote::Commit);
            let (transaction, others) = (attempt.transaction.clone(), attempt.others(shard));
            if evidence.is_some() {
                for other in others {
                    self.order(Purpose::Vote(id), other, Request::Finish(transaction.clone(), evidence.clone()), out);
                }
            }
        }
        self.conclude(id, out);
    }

    /// Tells how a transaction ends as soon as that is known, and ends it at every shard that holds it pending.
    fn conclude(&mut self, id: TransactionId, out: &mut Vec<Output>) {
        let attempt = self.attempts.get_mut(&id).expect("orders are of transactions under way");
        let aborted = attempt.votes.values().find_map(|(verdict, _)| match verdict {
            Verdict::Abort(reason) => Some(reason.clone()),
            Verdict::Commit(_) => None,
        });
        let is_complete = attempt.votes.len() == attempt.participants.len();
        if aborted.is_none() && !is_complete {
            return;
        }
        let decision = if aborted.is_some() { Vote::Abort } else { Vote::Commit };
        if !std::mem::replace(&mut attempt.is_known, true) && attempt.found_at.is_none() {
            let outcome = match aborted {
                Some(AbortReason::Forgotten) if attempt.participants.len() == 1 => Outcome::Unknown,
                Some(reason) => Outcome::Aborted(reason),
                None => Outcome::Committed(attempt.results(&self.cluster)),
            };
            out.push(Output::Ended(id, outcome));
        }
        // Where it is not pending yet it cannot be ended.
        let is_to_end = is_complete && attempt.participants.len() > 1;
        #[cfg(feature = "lab")]
        let is_to_end = is_to_end && !leave(&mut self.left);
        if is_to_end {
            let request = attempt.ending(decision);
            let pending = attempt.votes.iter().filter(|(_, (verdict, _))| verdict.vote() == Vote::Commit);
            let shards: Vec<ShardId> = pending.map(|(shard, _)| *shard).collect();
            for shard in shards {
                self.order(Purpose::End(id), shard, request.clone(), out);
            }
        }
        self.remove_if_idle(id, out);
    }

    fn on_refused(&mut self, id: TransactionId, refusal: Refusal, out: &mut Vec<Output>) {
        let attempt = self.attempts.get_mut(&id).expect("orders are of transactions under way");
        if attempt.found_at.is_none() && !std::mem::replace(&mut attempt.is_known, true) {
            out.push(Output::Ended(id, Outcome::Refused(refusal)));
        }
        self.remove_if_idle(id, out);
    }

    /// Forgets a transaction for which nothing is under way any more.
    fn remove_if_idle(&mut self, id: TransactionId, out: &mut Vec<Output>) {
        if let Some(attempt) = self.attempts.get(&id).filter(|attempt| attempt.orders == 0) {
            if attempt.found_at.is_none() && !attempt.is_known {
                out.push(Output::Ended(id, Outcome::Unknown));
            }
            self.unsettled += usize::from(attempt.found_at.is_none() && attempt.needs_proof());
            self.attempts.remove(&id);
        }
    }

    /// Once many transactions have ended everywhere, asks all shards to state so.
    fn settle(&mut self, out: &mut Vec<Output>) {
        let is_under_way = self.settlement.as_ref().is_some_and(|settlement| settlement.orders > 0);
        if self.unsettled < if is_under_way { SETTLE_WITHOUT } else { SETTLE_EVERY } {
            return;
        }
        // A shard that does not answer keeps only what it takes part in.
        self.forget_settled(out);
        self.unsettled = 0;
        let own = self.attempts.values().filter(|attempt| attempt.found_at.is_none()).map(|attempt| attempt.transaction.name().number);
        let below = own.min().unwrap_or(self.last_number + 1);
        let statement = SettledStatement { client: self.client, session: self.session, below };
        let orders = self.settlement.as_ref().map_or(0, |settlement| settlement.orders);
        self.settlement = Some(Settlement { statement, settled: BTreeMap::new(), orders });
        for shard in Arc::clone(&self.cluster).shards() {
            self.order(Purpose::Settle, shard, Request::Settle { session: self.session, below }, out);
        }
    }

    /// Once all shards have stated it, brings their statements to all.
    fn on_settled(&mut self, said: SettledStatement, signers: Option<Signers>, out: &mut Vec<Output>) {
        let settlement = self.settlement.as_mut().expect("orders are of the settlement under way");
        let (Some(signers), true) = (signers, said == settlement.statement) else { return };
        settlement.settled.insert(signers.shard, signers);
        if settlement.settled.len() == self.cluster.shards().count() {
            self.forget_settled(out);
        }
    }

    /// Brings the statements that there are to those who have made them: each forgets what no other shard needs.
    fn forget_settled(&mut self, out: &mut Vec<Output>) {
        let Some(settlement) = &mut self.settlement else { return };
        let settled: Vec<Signers> = std::mem::take(&mut settlement.settled).into_values().collect();
        let (statement, is_of_all) = (settlement.statement, settled.len() == self.cluster.shards().count());
        if settled.len() < 2 || (!is_of_all && broken(Mutant::SettledByAllOnly)) {
            return;
        }
        for shard in settled.iter().map(|signers| signers.shard) {
            self.order(Purpose::Forget, shard, Request::Forget(statement, settled.clone()), out);
        }
    }
}

/// Whether one is to be left that could be ended; counts it.
#[cfg(feature = "lab")]
fn leave(left: &mut Option<u64>) -> bool {
    left.as_mut().map(|left| *left += 1).is_some()
}

impl Attempt {
    fn new(cluster: &Cluster, transaction: Transaction, found_at: Option<ShardId>) -> Self {
        let participants = transaction.participants(cluster);
        Self { transaction, participants, found_at, votes: BTreeMap::new(), is_known: false, orders: 0 }
    }

    /// Whether votes on it count with their signatures only: the other shards will want to see them.
    fn needs_proof(&self) -> bool {
        self.participants.len() > 1 && (self.transaction.is_update() || self.found_at.is_some())
    }

    fn others(&self, shard: ShardId) -> Vec<ShardId> {
        self.participants.iter().copied().filter(|other| *other != shard).collect()
    }

    /// What ends it at a shard.
    fn ending(&self, decision: Vote) -> Request {
        let name = self.transaction.name();
        if !self.needs_proof() {
            return Request::Release(name, self.transaction.id());
        }
        let said = self.votes.values().filter(|(verdict, _)| verdict.vote() == decision);
        let votes: Vec<Signers> =
            said.filter_map(|(_, signers)| signers.clone()).take(if decision == Vote::Abort { 1 } else { usize::MAX }).collect();
        Request::Decide(name, Certificate { id: self.transaction.id(), decision, votes })
    }

    /// What all its shards have found, put together; nothing when one of them has not kept it.
    fn results(&self, cluster: &Cluster) -> Option<Vec<(usize, Found)>> {
        let mut results: BTreeMap<usize, Found> = BTreeMap::new();
        for (shard, (verdict, _)) in &self.votes {
            let Verdict::Commit(Some(found)) = verdict else { return None };
            let is_query = |operation: &Operation| matches!(operation, Operation::Read(_) | Operation::ReadRange(..));
            let queries = self.transaction.operations_at(cluster, *shard).filter(|(_, operation)| is_query(operation));
            for ((place, _), found) in queries.zip(found) {
                match (results.get_mut(&place), found) {
                    (Some(Found::Rows(all)), Found::Rows(more)) => all.extend(more.iter().cloned()),
                    _ => {
                        results.insert(place, found.clone());
                    }
                }
            }
        }
        for (place, found) in &mut results {
            if let (Found::Rows(rows), Operation::ReadRange(_, direction, rows_max)) = (found, &self.transaction.operations()[*place]) {
                rows.sort_unstable_by(|(one, _), (other, _)| direction.order(one, other));
                rows.truncate(*rows_max as usize);
            }
        }
        Some(results.into_iter().collect())
    }
}
