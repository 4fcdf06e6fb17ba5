//! What a replica takes in, and whom it tells about it.
//!
//! It takes nothing too old or from the future (Basil Alg. 1 L1-2), and no more than there is room for. It tells a client only
//! about transactions that the client wrote or may read all of (beyond the paper).

use machine::Time;
use mutants::{Mutant, broken};
use store::StorageBackend;
use types::{ClientId, Key, KeyRange, Party, Permission};

use super::early_requests::EarlyRequest;
use super::{Out, Replica};
use crate::certificate::{Certificate, Decision};
use crate::message::{Message, Refusal, Subject};
use crate::transaction::Transaction;
use crate::transaction_state::{Purpose, Quota, QuotaOwner, TransactionState};
use crate::transaction_table::Load;

/// The most undecided transactions that one client may hold, and the keys that they read and write. Whoever fills these stands in the way of
/// few, until others finish them; whoever finishes its own needs far less.
const CLIENT_UNDECIDED_MAX: usize = 2_048;
const CLIENT_KEYS_MAX: usize = 65_000;
/// The most keys of all undecided transactions that were prepared.
const UNDECIDED_KEYS_MAX: usize = 1 << 20;

/// The most parties that may wait for one vote; those who come later ask again. The author always finds a place.
pub(super) const REQUESTERS_MAX: usize = 64;

impl<M: StorageBackend> Replica<M> {
    /// Nothing below is remembered or may be read, in nanoseconds. A clock set back does not lower it.
    pub(super) fn watermark(&self, now: Time) -> u64 {
        let by_clock = now.0.saturating_sub(self.options.window_ms * 1_000_000);
        let low_watermark = if broken(Mutant::LowWatermarkIgnored) { 0 } else { self.table.low_watermark() };
        // Of what was forgotten, no reader counts any more.
        let forgotten = self.table.store.meta_expired_below().time;
        by_clock.max(self.table.store.watermark().time.saturating_add(1)).max(low_watermark).max(forgotten)
    }

    /// No transaction below is voted on at its author's word alone, in nanoseconds.
    pub(super) fn youngest_watermark(&self, now: Time) -> u64 {
        self.watermark(now).max(now.0.saturating_sub(self.options.window_ms * 500_000))
    }

    /// Gives `message` back, unless it asks for a read or a vote and is early ([`EarlyRequests`](super::EarlyRequests)): then it is kept until the
    /// time has come.
    pub(super) fn keep_early(&mut self, now: Time, from: Party, message: Message, out: &mut Out<M>) -> Option<Message> {
        let is_early = |time: u64| self.early.is_early(now, time) && time <= now.after_ms(self.options.time_bound_ms).0;
        let (due, message, bytes) = match message {
            Message::Read { request, timestamp, keys } if is_early(timestamp.time) && !broken(Mutant::EarlyRead) => {
                if let Err(refusal) = self.may_read(now, from, timestamp, &keys) {
                    self.refuse(from, Subject::Request(request), refusal, out);
                    return None;
                }
                let bytes = keys.iter().map(|key| size_of::<Key>() + key.as_bytes().len()).sum();
                let keys = keys.iter().map(Key::detached).collect();
                (timestamp.time, Message::Read { request, timestamp, keys }, bytes)
            }
            Message::Scan { request, timestamp, range, direction, limit } if is_early(timestamp.time) && !broken(Mutant::EarlyRead) => {
                if let Err(refusal) = self.may_scan(now, from, timestamp, &range) {
                    self.refuse(from, Subject::Request(request), refusal, out);
                    return None;
                }
                let bytes = size_of::<KeyRange>() + range.key_bytes();
                (timestamp.time, Message::Scan { request, timestamp, range: range.detached(), direction, limit }, bytes)
            }
            Message::Prepare { transaction } if is_early(transaction.timestamp().time) && !broken(Mutant::EarlyVote) => {
                if !self.may_ask(from, &transaction) {
                    self.refuse(from, Subject::Transaction(transaction.id()), Refusal::NotPermitted, out);
                    return None;
                }
                let bytes = transaction.encoded_bytes();
                (transaction.timestamp().time, Message::Prepare { transaction: transaction.detached() }, bytes)
            }
            // Whoever finishes what has hardly begun asks again. What nobody votes for any more is no matter of time.
            Message::Recover { transaction, .. }
                if is_early(transaction.timestamp().time)
                    && (transaction.timestamp().time >= self.watermark(now) || broken(Mutant::OldRecoveryDropped))
                    && self.table.get(transaction.id()).is_none_or(TransactionState::is_unjudged)
                    && !broken(Mutant::EarlyVote) =>
            {
                return None;
            }
            message => return Some(message),
        };
        if let Some(EarlyRequest { from, message, .. }) = self.early.keep(now, from, message, due, bytes) {
            let subject = match message {
                Message::Read { request, .. } | Message::Scan { request, .. } => Subject::Request(request),
                Message::Prepare { transaction } => Subject::Transaction(transaction.id()),
                _ => return None,
            };
            self.refuse(from, subject, Refusal::NO_ROOM, out);
        }
        None
    }

    /// Whether a transaction not known yet may be judged at all. Whatever is refused here gets no vote, now or later.
    pub(super) fn may_enter(&self, now: Time, oldest: u64, quota: Quota, transaction: &Transaction) -> Result<(), Refusal> {
        let timestamp = transaction.timestamp();
        if timestamp.time < oldest && !broken(Mutant::PastEntered) {
            return Err(Refusal::TooOld);
        }
        if timestamp.time > now.after_ms(self.options.time_bound_ms).0 && !broken(Mutant::FutureEntered) {
            // Alg. 1 L1-2, but without a vote: the journal keeps no record from the future, whose segment could be let
            // go while the record still matters.
            return Err(Refusal::TooNew);
        }
        if !transaction.touches(&self.cluster, self.me.shard) {
            return Err(Refusal::WrongShard);
        }
        if !self.has_room(quota, transaction) && !broken(Mutant::LoadUnlimited) && self.table.get(transaction.id()).is_none() {
            return Err(Refusal::NO_ROOM);
        }
        Ok(())
    }

    /// Whether there is room for one more undecided transaction. What is brought to be finished has room of its own, a quarter as much as
    /// what is prepared: it is never refused for what others have prepared.
    fn has_room(&self, quota: Quota, transaction: &Transaction) -> bool {
        let options = &self.options;
        let is_finished = quota.purpose == Purpose::Finish && !broken(Mutant::FinishingUnreserved);
        let purpose = if is_finished { Purpose::Finish } else { Purpose::Prepare };
        let part = |max: usize| if is_finished { (max / 4).max(1) } else { max };
        let tracked_max = options.tracked_max - if is_finished { 0 } else { options.tracked_max / 16 };
        let (all, own, new) =
            (self.table.undecided_for(purpose), self.table.undecided_of(Quota { purpose, ..quota }), Load::of(transaction));
        // A replica finishes what others brought, and brings nothing itself.
        let is_client = matches!(quota.owner, QuotaOwner::Client(_)) && !broken(Mutant::ShareUnlimited);
        let (own_max, own_keys_max) = if is_client { (CLIENT_UNDECIDED_MAX, CLIENT_KEYS_MAX) } else { (usize::MAX, usize::MAX) };
        let keys = share(all.keys, part(UNDECIDED_KEYS_MAX)).min(own_keys_max);
        let is_crowded = !is_finished && self.table.decided_bytes() > options.decided_bytes_max.saturating_mul(2);
        !is_crowded
            && self.table.tracked() < tracked_max
            && own.transactions < share(all.transactions, part(options.undecided_max)).min(own_max)
            && (own.keys == 0 && keys > 0 || own.keys + new.keys <= keys)
            && own.bytes < share(all.bytes, part(options.undecided_bytes_max))
    }

    /// The same of one that comes with the proof that it aborted. Anybody can make up any number of transactions that conflict with
    /// a committed one, and so the proofs. They may take half the room at most.
    fn may_enter_aborted(&self, now: Time, quota: Quota, transaction: &Transaction) -> Result<(), Refusal> {
        if self.table.tracked() >= self.options.tracked_max / 2 && !broken(Mutant::LoadUnlimited) {
            return Err(Refusal::NO_ROOM);
        }
        self.may_enter(now, self.watermark(now), quota, transaction)
    }

    /// The same for a transaction that is first heard of along with the proof of its outcome.
    pub(super) fn may_enter_concluded(
        &self,
        now: Time,
        quota: Quota,
        transaction: &Transaction,
        decision: Decision,
    ) -> Result<(), Refusal> {
        if !transaction.touches(&self.cluster, self.me.shard) {
            return Err(Refusal::WrongShard);
        }
        if transaction.timestamp().time > now.after_ms(self.options.time_bound_ms).0 {
            // Correct replicas whose clocks agree with this one's have not voted on it yet.
            return Err(Refusal::TooNew);
        }
        match decision {
            Decision::Abort if !broken(Mutant::FabricatedAbortKept) => self.may_enter_aborted(now, quota, transaction),
            Decision::Abort | Decision::Commit => Ok(()),
        }
    }

    /// Enters what `from` has brought, and asks about. Gives it as it is in the table.
    pub(super) fn enter(&mut self, now: Time, from: Party, purpose: Purpose, transaction: Transaction) -> Transaction {
        if self.table.get(transaction.id()).is_none() {
            self.stall_timers.met(now, transaction.id());
        }
        let owner = if broken(Mutant::AuthorCharged) { author(&transaction) } else { from.into() };
        let state = self.table.take_in(transaction, now, Quota { purpose, owner });
        note_requester(state, from);
        state.transaction.clone()
    }

    /// Whether the author may read and write what `transaction` does.
    pub(super) fn permitted(&self, transaction: &Transaction) -> bool {
        self.cluster.permission(transaction.timestamp().client).is_some_and(|permission| {
            transaction.reads().iter().all(|read| permission.may_read(&read.key))
                && transaction.ranges().iter().all(|range| permission.may_read_range(range))
                && transaction.writes().iter().all(|write| permission.may_write(&write.key))
        })
    }

    /// Whether `party` may be shown the whole of `transaction`: it may read all that the transaction touches.
    pub(super) fn may_see(&self, party: Party, transaction: &Transaction) -> bool {
        match party {
            Party::Replica(_) => true,
            Party::Client(client, _) => self.may_client_see(client, transaction),
        }
    }

    /// The same of a client.
    pub(super) fn may_client_see(&self, client: ClientId, transaction: &Transaction) -> bool {
        let permission = self.cluster.permission(client);
        let may_read_all = |permission: &Permission| {
            transaction.examine(|parts| {
                parts.keys().all(|key| permission.may_read(key)) && parts.ranges.iter().all(|range| permission.may_read_range(range))
            })
        };
        permission.is_some_and(may_read_all) || broken(Mutant::SecretShown)
    }

    /// Whether `party` may hear of `transaction` at all. Else whoever may not read its keys could guess at it until an answer
    /// tells that the guess was right.
    pub(super) fn may_ask(&self, party: Party, transaction: &Transaction) -> bool {
        is_author(party, transaction) || self.may_see(party, transaction) || broken(Mutant::GuessAnswered)
    }

    /// Whether `party` may be shown a proof: that of a conflict shows the other transaction, too. Who may not comes to the same
    /// end by votes and logged decisions, as whoever comes when the proof is no longer at hand.
    pub(super) fn may_see_proof(&self, party: Party, certificate: &Certificate) -> bool {
        certificate.shows().is_none_or(|transaction| self.may_see(party, transaction)) || broken(Mutant::ProofShown)
    }
}

/// How much a party may hold where all hold `all` and there is room for `max`: a quarter, and half of what is free. So shares shrink as the table
/// fills, and however many hoard, whoever comes next finds room.
fn share(all: usize, max: usize) -> usize {
    let free = max.saturating_sub(all);
    if broken(Mutant::ShareUnlimited) { free.saturating_add(max) } else { (max / 4).max(1).min(free.div_ceil(2)) }
}

pub(super) fn note_requester(state: &mut TransactionState, from: Party) {
    let authored = is_author(from, &state.transaction);
    if !state.requesters().contains(&from)
        && (state.requesters().len() < REQUESTERS_MAX || (authored && state.requesters().len() < 2 * REQUESTERS_MAX))
    {
        state.add_requester(from);
    }
}

pub(super) fn author(transaction: &Transaction) -> QuotaOwner {
    QuotaOwner::Client(transaction.timestamp().client)
}

pub(super) fn is_author(party: Party, transaction: &Transaction) -> bool {
    matches!(party, Party::Client(client, _) if client == transaction.timestamp().client)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use machine::Outbox;
    use store::{Memory, Options, Store};
    use types::{Key, ReplicaId, Session, ShardId, Timestamp, Value};

    use super::*;
    use crate::certificate::{Proof, ShardProof, Vote, VoteSet};
    use crate::commit_relay::Relays;
    use crate::message::Unsigned;
    use crate::replica::ReplicaOptions;
    use crate::testing::one_shard;
    use crate::transaction::Write;

    /// For some time after a start, everything that could be voted for waits. What nobody votes for any more does not.
    #[test]
    fn what_is_too_old_to_be_voted_for_is_answered_at_once() {
        let cluster = one_shard();
        let store = Store::open(Memory::new("admission"), Options::default()).expect("a new store opens");
        let replica = |index| ReplicaId { shard: ShardId(0), index };
        let (options, now) = (ReplicaOptions::default(), Time(0).after_ms(1_000_000));
        let mut replica_0 = Replica::open(cluster.clone(), replica(0), options, store, now).expect("it is new");
        replica_0.set_clock(now, 10_000_000_000);
        let mut votes = |ago_ms: u64| {
            let write = Write { key: Key::from("a"), value: None };
            let timestamp = Timestamp::new(now.0 - ago_ms * 1_000_000, ClientId(1));
            let transaction = Transaction::new(cluster.id(), timestamp, vec![], vec![write]).expect("it is small");
            let (mut out, recover) = (Outbox::default(), Message::Recover { transaction, evidence: vec![] });
            replica_0.receive(now, Party::Replica(replica(1)), recover, &mut out).expect("memory does not fail");
            let vote = |(_, unsigned): &(Party, Unsigned)| {
                if let Unsigned::Vote { statement, .. } = unsigned { Some(statement.vote) } else { None }
            };
            out.unsigned.iter().filter_map(vote).collect::<Vec<Vote>>()
        };
        assert_eq!(votes(options.window_ms + 1), [Vote::Abort]);
        assert_eq!(votes(options.window_ms - 1), [], "it may still be voted for");
    }

    #[test]
    fn of_what_has_ended_a_replica_keeps_the_bytes_alone_told_by_a_proof_or_by_notices() {
        let (cluster, author) = (one_shard(), Party::Client(ClientId(1), Session(0)));
        let store = Store::open(Memory::new("ended"), Options::default()).expect("a new store opens");
        let now = Time(0).after_ms(1_000_000);
        let mut replica = Replica::open(cluster.clone(), ReplicaId { shard: ShardId(0), index: 0 }, ReplicaOptions::default(), store, now)
            .expect("it is new");
        let mut out = Outbox::default();
        for (number, is_shown) in [(0, true), (1, false)] {
            let write = Write { key: Key::from("a"), value: Some(Value::from("a value that is longer than what stands in place")) };
            let transaction = Transaction::new(cluster.id(), Timestamp::new(now.0 + number, ClientId(1)), vec![], vec![write]);
            let transaction = transaction.expect("it is small");
            let (id, relays) = (transaction.id(), Relays::of(&cluster, &transaction).expect("one shard takes part"));
            let mut told = |replica: &mut Replica<Memory>, from, message| {
                replica.dispatch(now, now, from, message, &mut out).expect("memory does not fail");
            };
            told(&mut replica, author, Message::Prepare { transaction });
            assert!(!replica.table.get(id).expect("it is there").transaction.is_packed(), "it need not be read again");
            if is_shown {
                let votes = VoteSet { shard: ShardId(0), vote: Vote::Commit, voters: Vec::new() };
                let proof = Proof::Fast(vec![ShardProof::Votes(votes)]);
                let certificate = Arc::new(Certificate { id, decision: Decision::Commit, proof });
                told(&mut replica, author, Message::Writeback { transaction: None, certificate, relay: false });
            } else {
                for relay in cluster.replicas().filter(|replica| relays.contains(*replica)) {
                    told(&mut replica, Party::Replica(relay), Message::CommitNotice { id });
                }
            }
            let state = replica.table.get(id).expect("it is there");
            assert_eq!(state.decision(), Some(Decision::Commit));
            assert!(state.transaction.is_packed());
        }
    }
}
