//! Checkpoints: after every so many lists each replica signs the digest of its state. `2f+1` equal ones make it *stable*: then what lies before is
//! not needed to decide anything, and whoever lacks it can have the state instead.

use bytes::Bytes;
use crypto::BatchSignature;
use machine::{OutboxOf, Time};
use mutants::{Mutant, broken};
use types::codec::{Decode, DecodeError, Encode, Reader, encode_sequence};
use types::{ClusterId, Digest};

use super::application::Application;
use super::message::{Certificate, CheckpointVote, Claim, Unsigned};
use super::record::Record;
use super::replica::{OpenError, Replica};
use super::windows::Windows;

/// The most pages of a state.
pub(crate) const PAGES_MAX: usize = 1 << 17;
/// So many bytes are hashed once more a tick of what nobody changes: some 2.6 MB a second.
const SCRUBBED_BYTES: usize = 128 << 10;
/// Votes count for so many checkpoints past the last stable one.
const CHECKPOINTS_AHEAD_MAX: u64 = 4;

/// The state at a checkpoint.
#[derive(Clone, Debug)]
pub(super) struct OwnCheckpoint {
    pub digest: Digest,
    /// Everything but the pages.
    pub head: Bytes,
}

/// What a checkpoint's digest covers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Head {
    /// What was delivered of each client.
    pub windows: Windows,
    /// The digest of each page of the application's state.
    pub pages: Vec<Digest>,
}

impl Encode for Head {
    fn encode(&self, out: &mut Vec<u8>) {
        self.windows.encode(out);
        encode_sequence(&self.pages, out);
    }
}

impl Decode for Head {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        let windows = Windows::decode(reader)?;
        let count = reader.count("pages", PAGES_MAX)?;
        let pages = (0..count).map(|_| reader.array()).collect::<Result<_, _>>()?;
        Ok(Self { windows, pages })
    }
}

/// The digest of a state after list `sequence`.
pub(super) fn state_digest(cluster: ClusterId, sequence: u64, head: &[u8]) -> Digest {
    crypto::digest("augustus state", cluster, &[&sequence.to_le_bytes(), head])
}

impl<A: Application> Replica<A> {
    pub(super) fn take_checkpoint(&mut self, outbox: &mut OutboxOf<Self>) {
        let sequence = self.delivered;
        let pages = self.application.checkpoint(sequence);
        let head = Bytes::from(Head { windows: self.windows.clone(), pages }.to_bytes());
        let digest = state_digest(self.cluster.id(), sequence, &head);
        self.checkpoints.insert(sequence, OwnCheckpoint { digest, head });
        let vote = CheckpointVote { signer: self.me, sequence, digest };
        self.log(&Record::Checkpoint(vote));
        self.sign(&Unsigned::Checkpoint(vote), outbox);
    }

    /// Says again what its states were that are not stable yet.
    pub(super) fn sign_checkpoints(&self, outbox: &mut OutboxOf<Self>) {
        for (sequence, own) in self.checkpoints.range(self.stable_sequence() + 1..) {
            self.sign(&Unsigned::Checkpoint(CheckpointVote { signer: self.me, sequence: *sequence, digest: own.digest }), outbox);
        }
    }

    pub(super) fn on_checkpoint(&mut self, now: Time, vote: CheckpointVote, signature: BatchSignature, outbox: &mut OutboxOf<Self>) {
        let (interval, stable) = (self.options.checkpoint_interval, self.stable_sequence());
        let is_ahead = vote.sequence > stable && vote.sequence - stable <= CHECKPOINTS_AHEAD_MAX * interval;
        if vote.signer.shard != self.me.shard || !vote.sequence.is_multiple_of(interval) || !is_ahead {
            return;
        }
        let votes = self.checkpoint_votes.entry(vote.sequence).or_default();
        votes.entry(vote.signer.index).or_insert((vote.digest, signature));
        let equal = votes.iter().filter(|(_, (digest, _))| *digest == vote.digest);
        let votes: Vec<(u16, BatchSignature)> = equal.map(|(index, (_, signature))| (*index, signature.clone())).collect();
        if votes.len() >= self.quorum.strong() {
            let certificate = Certificate { shard: self.me.shard, sequence: vote.sequence, digest: vote.digest, votes };
            self.on_stable(now, certificate, outbox);
        }
    }

    /// A checkpoint is stable: what lies before it goes.
    pub(super) fn on_stable(&mut self, now: Time, certificate: Certificate, outbox: &mut OutboxOf<Self>) {
        let sequence = certificate.sequence;
        if certificate.shard != self.me.shard || sequence <= self.stable_sequence() {
            return;
        }
        self.log(&Record::Stable(certificate.clone()));
        let own = self.checkpoints.get(&sequence).map(|own| own.digest);
        let is_own = own == Some(certificate.digest);
        if own.is_some() && !is_own {
            // 2f+1 came to another state: this one is wrong, and so is what was made of it. It takes over theirs.
            self.has_diverged = true;
            let place = format!("the state after list {sequence}");
            self.name_wrong(now, &place, own.unwrap_or_default(), certificate.digest, certificate.votes.len());
        }
        self.stable = Some(certificate);
        if broken(Mutant::BehindForgotten) {
            self.behind_ticks = 0;
        }
        self.checkpoint_votes = self.checkpoint_votes.split_off(&(sequence + 1));
        if is_own {
            self.checkpoints = self.checkpoints.split_off(&sequence);
            self.application.release(sequence);
        }
        self.release_slots();
        self.next = self.next.max(sequence + 1);
        if is_own {
            self.renew_journal();
        }
        if !self.is_replaying() {
            self.propose(now, outbox);
        }
    }

    /// Hashes what nobody changes once more, so many ticks' worth of it. What is not as it was at the last checkpoint was changed by no
    /// transaction: the state is wrong, and is taken over from the others.
    pub(super) fn scrub(&mut self, now: Time, ticks: u64) {
        if self.has_diverged || self.is_replaying() || broken(Mutant::ScrubSkipped) {
            return;
        }
        let bytes_max = usize::try_from(ticks).unwrap_or(1).saturating_mul(SCRUBBED_BYTES);
        let Some(wrong) = self.application.scrub(bytes_max) else { return };
        self.name_wrong(now, &wrong.place, wrong.own, wrong.agreed, 0);
        if self.stable.is_some() {
            self.has_diverged = !broken(Mutant::WrongPageKept);
        } else {
            // There is nothing yet that the others have agreed on. At the first checkpoint they will.
            self.application.hash_again(wrong.part);
        }
    }

    fn name_wrong(&mut self, now: Time, place: &str, own: Digest, agreed: Digest, agreed_by: usize) {
        if !broken(Mutant::WrongStateUnnamed) {
            self.divergences.note(now, place, own, agreed, agreed_by);
        }
    }

    /// Names the parts in which a state of its own differs from the one that it takes over, where it has one after the same list.
    pub(super) fn name_differing(&mut self, now: Time, certificate: &Certificate, pages: &[Bytes]) {
        if self.checkpoints.get(&certificate.sequence).is_none_or(|own| own.digest == certificate.digest) {
            return;
        }
        for wrong in self.application.differing(certificate.sequence, pages) {
            self.name_wrong(now, &wrong.place, wrong.own, wrong.agreed, certificate.votes.len());
        }
    }

    /// Drops the lists that are both delivered and covered by a stable checkpoint.
    pub(super) fn release_slots(&mut self) {
        // What a wrong state was made of may be needed once more.
        let covered = if self.has_diverged { return } else { self.stable_sequence().min(self.delivered) };
        self.slots = self.slots.split_off(&(covered + 1));
        self.waiting = self.waiting.split_off(&(covered + 1));
    }

    /// Writes the journal anew when it has grown: the state at the last stable checkpoint, and what came after.
    fn renew_journal(&mut self) {
        let limit = self.options.journal_bytes_max.max(2 * self.snapshot_bytes);
        if !self.is_replaying() && self.journal_bytes > limit {
            let stable = self.stable.clone().expect("it was just made stable, and is this replica's own state");
            self.write_snapshot(stable);
        }
    }

    /// The state at a stable checkpoint, which is here, takes the place of everything written before. By now a later one may be stable.
    pub(super) fn write_snapshot(&mut self, certificate: Certificate) {
        let sequence = certificate.sequence;
        let own = self.checkpoints.get(&sequence).expect("it is this replica's own state").clone();
        let head = Head::from_bytes(own.head.clone(), self.cluster.id()).expect("it was encoded here");
        self.rotate_journal();
        self.log(&Record::SnapshotBegin);
        self.log(&Record::State { certificate: Some(certificate), head: own.head });
        for index in 0..head.pages.len() {
            let page = self.application.page(sequence, index).expect("an application keeps the states that it was not told to release");
            self.log(&Record::Page(page));
        }
        self.let_go_of_views();
        // The last first, so that it is the one that is entered again.
        for (view, signature, _) in self.new_view.iter().chain(&self.earlier_views).cloned().collect::<Vec<_>>() {
            self.log(&Record::Entered(view, signature));
        }
        if self.view != self.entered {
            self.log(&Record::Left(self.view));
        }
        if self.is_rebuilding() && !broken(Mutant::LostForgotten) {
            self.log(&Record::Lost);
        }
        for record in self.slot_records(sequence) {
            self.log(&record);
        }
        if let Some(later) = self.stable.clone().filter(|stable| stable.sequence > sequence) {
            self.log(&Record::Stable(later));
        }
        self.log(&Record::SnapshotEnd);
        self.snapshot_bytes = self.journal_bytes;
    }

    /// What the journal says of the lists above `sequence`.
    fn slot_records(&self, sequence: u64) -> Vec<Record> {
        let mut records = Vec::new();
        for (sequence, slot) in self.slots.range(sequence + 1..) {
            // Its last vote, even for another list than the one that was decided: it must not vote again in that view.
            let other = slot.voted.filter(|(_, digest)| Some(*digest) != slot.digest);
            records.extend(other.map(|(view, digest)| Record::Accepted(Claim { sequence: *sequence, view, digest })));
            let list = slot.requests.as_deref().filter(|requests| slot.is_logged && !requests.is_empty());
            records.extend(list.map(|requests| Record::List { sequence: *sequence, requests: requests.to_vec() }));
            records.extend(slot.claim(*sequence, slot.accepted()).map(Record::Accepted));
            records.extend(slot.claim(*sequence, slot.prepared).map(Record::Prepared));
            if let (true, Some(digest)) = (slot.is_committed, slot.digest) {
                records.push(Record::Committed { sequence: *sequence, digest });
            }
        }
        records
    }

    /// Begins anew from a snapshot. Gives what is to be redone after it.
    pub(super) fn install_snapshot(&mut self, records: Vec<Record>) -> Result<Vec<Record>, OpenError> {
        let (mut pages, mut rest) = (Vec::new(), Vec::new());
        let mut state = None;
        for record in records {
            match record {
                Record::State { certificate, head } => state = certificate.map(|certificate| (certificate, head)),
                Record::Page(page) => pages.push(page),
                other => rest.push(other),
            }
        }
        let Some((certificate, head)) = state else { return Err(OpenError::Setup("a snapshot has no state")) };
        (self.view, self.entered, self.new_view, self.rebuild) = (0, 0, None, None);
        self.earlier_views.clear();
        self.slots.clear();
        self.waiting.clear();
        self.checkpoints.clear();
        self.take_over(certificate.sequence, certificate.digest, head, &pages)?;
        self.stable = Some(certificate);
        // What it had before this state is gone.
        self.differs_at = None;
        Ok(rest)
    }

    /// Puts a state in the place of this replica's own.
    pub(super) fn take_over(&mut self, sequence: u64, digest: Digest, head: Bytes, pages: &[Bytes]) -> Result<(), DecodeError> {
        let parts = Head::from_bytes(head.clone(), self.cluster.id())?;
        self.application.install(sequence, pages);
        self.windows = parts.windows;
        (self.delivered, self.has_diverged) = (sequence, false);
        self.checkpoints.clear();
        self.checkpoints.insert(sequence, OwnCheckpoint { digest, head });
        self.release_slots();
        self.rebuild_ordered();
        Ok(())
    }
}
