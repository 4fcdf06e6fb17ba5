//! How a leader is replaced.
//!
//! A replica leaves its view when something that is due is not delivered in time, or when `f+1` others have left it. It says then, under its
//! signature, what it prepared and accepted. From `2f+1` such statements follows how the next view begins ([`super::choice`]). Its leader shows
//! them to all, and everybody comes to the same.
//!
//! A view that has begun also shows what was *not* decided before it: every number has the list that it began with, or is free. So claims to
//! other lists are void from then on, and each replica keeps one claim a number. Who has not heard of that view, and still makes such a claim,
//! is shown how it began, also when later views have begun since.

use std::collections::BTreeSet;

use crypto::BatchSignature;
use machine::{OutboxOf, Time};
use mutants::{Mutant, broken};

use super::application::Application;
use super::choice::{Beginning, Choice, choose};
use super::message::{Claim, Message, NewView, Unsigned, ViewChange};
use super::paced::Paced;
use super::pool::{LeaderTimeout, PEER_REQUESTS_MAX};
use super::record::Record;
use super::replica::{DOUBLINGS_MAX, Replica};
use super::slot::Slot;
use super::windows::Standing;

/// After so many timeouts without a change of leaders the timeout is halved, down to where it began.
const CALM_TIMEOUTS: u64 = 8;

impl<A: Application> Replica<A> {
    /// The most urgent request was not delivered in time.
    pub(super) fn on_overdue(&mut self, now: Time, outbox: &mut OutboxOf<Self>) {
        while let Some(id) = self.pool.most_urgent()
            && self.pool.deadline().is_some_and(|deadline| deadline <= now)
        {
            if self.windows.standing(&id.key) != Standing::New {
                self.pool.remove(&id.key);
            } else if self.pool.is_still_due(&id) {
                if !self.is_in_view() || broken(Mutant::LeaderUnsuspected) {
                    return self.pool.begin_view(now, self.leader_timeout());
                }
                return self.give_up_view(now, outbox);
            }
        }
    }

    /// The view's leader has taken too long. The next may take twice as long: perhaps it was the network.
    pub(super) fn give_up_view(&mut self, now: Time, outbox: &mut OutboxOf<Self>) {
        self.failed_views = (self.failed_views + 1).min(DOUBLINGS_MAX);
        self.calm_since = now;
        self.leave_for(now, self.view + 1, outbox);
    }

    /// This replica stops. If it leads, the others would have to find that out by its silence: so it leaves its view, and they [follow](Self::join).
    pub(super) fn hand_over(&mut self, now: Time, outbox: &mut OutboxOf<Self>) {
        let leads = self.quorum.leader(self.view) == self.me.index;
        if leads && self.is_in_view() {
            self.leave_for(now, self.view + 1, outbox);
        }
    }

    /// Something was delivered. When that has gone on for long, leaders have to be quicker again.
    pub(super) fn note_progress(&mut self, now: Time) {
        let LeaderTimeout { timeout_ms, factor } = self.leader_timeout();
        let calm_ms = timeout_ms.saturating_mul(factor).saturating_mul(CALM_TIMEOUTS);
        if self.failed_views > 0 && now >= self.calm_since.after_ms(calm_ms) {
            self.failed_views -= 1;
            self.calm_since = now;
            self.pool.set_leader_timeout(self.leader_timeout());
        }
    }

    /// Leaves all views before `view`.
    pub(super) fn leave_for(&mut self, now: Time, view: u64, outbox: &mut OutboxOf<Self>) {
        self.view = view;
        self.view_deadline = None;
        if !broken(Mutant::LeftUnlogged) {
            self.log(&Record::Left(view));
        }
        self.sign_view_change(outbox);
        self.wait_for_view(now);
    }

    /// Says what it takes along from the views that it has left.
    pub(super) fn sign_view_change(&self, outbox: &mut OutboxOf<Self>) {
        if self.is_rebuilding() {
            return;
        }
        let from = self.stable_sequence();
        let claims = |view: fn(&Slot) -> Option<u64>| -> Vec<Claim> {
            self.slots.range(from + 1..).filter_map(|(sequence, slot)| slot.claim(*sequence, view(slot))).collect()
        };
        let statement = ViewChange {
            signer: self.me,
            view: self.view,
            stable: self.stable.clone(),
            prepared: if broken(Mutant::PreparedUnclaimed) { Vec::new() } else { claims(|slot| slot.prepared) },
            accepted: if broken(Mutant::AcceptedUnclaimed) { Vec::new() } else { claims(Slot::accepted) },
        };
        self.sign(&Unsigned::ViewChange(statement), outbox);
    }

    pub(super) fn on_view_change(
        &mut self,
        now: Time,
        from: u16,
        vote: ViewChange,
        signature: BatchSignature,
        outbox: &mut OutboxOf<Self>,
    ) {
        if vote.signer.shard != self.me.shard {
            return;
        }
        let signer = vote.signer.index;
        if let Some(stable) = vote.stable.clone() {
            self.on_stable(now, stable, outbox);
        }
        // Whoever says again what another said long ago has nothing sent there.
        let may_show = |shown: &mut Paced| (from == signer && shown.may(now, signer)) || broken(Mutant::ViewShownUnasked);
        let missed = self.missed_by(&vote).map(|(view, signature, _)| Message::NewView(view.clone(), signature.clone()));
        if let Some(missed) = missed
            && may_show(&mut self.shown_view)
            && !broken(Mutant::ViewUnshown)
        {
            outbox.send(self.party(signer), missed);
        }
        let is_old = self.view_changes.get(&signer).is_some_and(|(last, _)| last.view > vote.view);
        if vote.view <= self.entered || is_old {
            return;
        }
        self.view_changes.insert(signer, (vote, signature));
        self.join(now, outbox);
        self.wait_for_view(now);
        self.begin_view(outbox);
    }

    /// Follows when `f+1` have left this view: one of them is honest. And when its leader has, which leads nobody there any more, though nobody may ask for
    /// anything and so blame it.
    fn join(&mut self, now: Time, outbox: &mut OutboxOf<Self>) {
        let mut views: Vec<u64> = self.view_changes.values().map(|(vote, _)| vote.view).collect();
        views.sort_unstable_by(|one, other| other.cmp(one));
        let needed = if broken(Mutant::JoinedByOne) { 1 } else { self.quorum.weak() };
        if let Some(view) = views.get(needed - 1).filter(|view| **view > self.view && !self.is_rebuilding() && !broken(Mutant::Unjoined)) {
            self.leave_for(now, *view, outbox);
        }
        let has_left = self.view_changes.get(&self.quorum.leader(self.view)).is_some_and(|(vote, _)| vote.view > self.view);
        if has_left && self.is_in_view() && !broken(Mutant::LeaderGoneUnfollowed) {
            self.leave_for(now, self.view + 1, outbox);
        }
    }

    /// Once `2f+1` are on their way to a view, its leader can begin it, and has to.
    fn wait_for_view(&mut self, now: Time) {
        let arrived = self.view_changes.values().filter(|(vote, _)| vote.view >= self.view).count();
        if self.view != self.entered && self.view_deadline.is_none() && arrived >= self.quorum.strong() {
            let leader_timeout = self.leader_timeout();
            self.view_deadline = Some(now.after_ms(leader_timeout.timeout_ms.saturating_mul(leader_timeout.factor)));
        }
    }

    /// The leader of the view says how it begins, when it knows enough.
    fn begin_view(&mut self, outbox: &mut OutboxOf<Self>) {
        if self.view == self.entered || self.led == Some(self.view) || self.quorum.leader(self.view) != self.me.index {
            return;
        }
        let votes = self.view_changes.values().filter(|(vote, _)| vote.view == self.view);
        let statements: Vec<&ViewChange> = votes.clone().map(|(vote, _)| vote).collect();
        if choose(self.quorum, self.empty, &statements).is_some() {
            let view = NewView { signer: self.me, view: self.view, votes: votes.cloned().collect() };
            self.led = Some(self.view);
            self.sign(&Unsigned::NewView(view), outbox);
        }
    }

    /// A view begins, or has begun: what it begins with is worked out from what its leader shows.
    pub(super) fn on_new_view(&mut self, now: Time, view: NewView, signature: BatchSignature, outbox: &mut OutboxOf<Self>) {
        if view.signer.shard != self.me.shard {
            return;
        }
        let statements: Vec<&ViewChange> = view.votes.iter().map(|(vote, _)| vote).collect();
        let Some(choice) = choose(self.quorum, self.empty, &statements) else { return };
        if let Some(stable) = choice.stable.clone() {
            self.on_stable(now, stable, outbox);
        }
        let number = view.view;
        let dropped = self.drop_void(&choice, number);
        let is_known = |replica: &Self| replica.earlier_views.iter().chain(&replica.new_view).any(|(known, ..)| *known == view);
        if !is_known(self) {
            // Of those of one view that would do, the first that was known stays: a leader that lies can sign any number.
            self.earlier_views.insert(0, (view.clone(), signature.clone(), choice.clone()));
            self.let_go_of_views();
            if is_known(self) && !broken(Mutant::EnteredUnlogged) {
                self.log(&Record::Entered(view, signature));
            }
        }
        if number >= self.view && number > self.entered {
            self.enter(now, number, &choice, outbox);
        } else if dropped && !self.is_in_view() {
            self.sign_view_change(outbox);
        }
    }

    /// Of the views of which it is known how they began, keeps the last, and for each number the last that began with something else there than that one. Of a
    /// claim that any of them shows to be void one of these does: the last, unless it began with that list; else the other, which began later than the one that
    /// shows it, or is it.
    pub(super) fn let_go_of_views(&mut self) {
        let mut views = std::mem::take(&mut self.earlier_views);
        views.extend(self.new_view.take());
        // Of several beginnings of one view, what was the last remains it.
        views.sort_by_key(|(view, ..)| view.view);
        let Some(last) = views.pop() else { return };
        let highest = views.iter().chain([&last]).map(|(.., choice)| choice.last()).max().unwrap_or(0);
        let numbers = last.2.base().max(self.stable_sequence()) + 1..=highest;
        let differs = |sequence: u64, choice: &Choice| sequence > choice.base() && choice.list(sequence) != last.2.list(sequence);
        let needed: BTreeSet<usize> =
            numbers.filter_map(|sequence| views.iter().rposition(|(.., choice)| differs(sequence, choice))).collect();
        let is_needed = |at: &usize| needed.contains(at) && !broken(Mutant::EarlierViewsForgotten);
        self.earlier_views = views.into_iter().enumerate().filter(|(at, _)| is_needed(at)).map(|(_, view)| view).collect();
        self.new_view = Some(last);
    }

    /// How a view began that whoever says this has not heard of: one that it has left, or is on its way to, or one that shows a claim of its to be void.
    fn missed_by(&self, vote: &ViewChange) -> Option<&Beginning> {
        let last = self.new_view.as_ref().filter(|_| vote.signer.index != self.me.index)?;
        let shows = |(view, _, choice): &&Beginning| vote.prepared.iter().any(|claim| is_void(choice, view.view, claim));
        if vote.view <= last.0.view { Some(last) } else { self.earlier_views.iter().chain([last]).rev().find(shows) }
    }

    /// Forgets claims to lists that this view shows not to be decided.
    fn drop_void(&mut self, choice: &Choice, view_number: u64) -> bool {
        let mut dropped = false;
        for (sequence, slot) in self.slots.range_mut(choice.base() + 1..).filter(|(_, slot)| !slot.is_committed) {
            let is_void = |view: Option<u64>| slot.claim(*sequence, view).is_some_and(|claim| is_void(choice, view_number, &claim));
            let (prepared, accepted) = (is_void(slot.prepared), is_void(slot.accepted()));
            slot.prepared = slot.prepared.filter(|_| !prepared);
            slot.voted = slot.voted.filter(|_| !accepted);
            dropped |= prepared || accepted;
        }
        dropped
    }

    fn enter(&mut self, now: Time, view: u64, choice: &Choice, outbox: &mut OutboxOf<Self>) {
        (self.view, self.entered, self.view_deadline) = (view, view, None);
        self.view_changes.retain(|_, (vote, _)| vote.view > view);
        self.waiting.clear();
        // What was only proposed in earlier views is nothing any more.
        for slot in self.slots.values_mut().filter(|slot| !slot.is_committed && slot.accepted().is_none() && slot.prepared.is_none()) {
            (slot.digest, slot.ids, slot.requests, slot.is_logged, slot.proposed) = (None, None, None, false, None);
        }
        let first = choice.base().max(self.stable_sequence()) + 1;
        for sequence in first..=choice.last() {
            let digest = choice.list(sequence).expect("it lies within the choice");
            let slot = self.slots.entry(sequence).or_default();
            if slot.is_committed && slot.digest != Some(digest) {
                // More than f lie. What was delivered stays delivered.
                continue;
            }
            slot.turn_to(digest);
            (slot.proposed, slot.is_chosen) = (Some(view), true);
            if digest == self.empty {
                (slot.ids, slot.requests) = (Some([].into()), Some([].into()));
            }
            self.waiting.insert(sequence);
        }
        self.next = choice.last().max(self.stable_sequence()) + 1;
        self.rebuild_ordered();
        self.pool.begin_view(now, self.leader_timeout());
        // Its leader need not know of what the last one was told.
        self.vouch_to_leader(&self.pool.own_vouches(None, PEER_REQUESTS_MAX), outbox);
        for sequence in self.waiting.clone() {
            self.consider(now, sequence, outbox);
        }
        self.propose(now, outbox);
    }
}

/// Whether the beginning of `view` shows that what is claimed was not decided.
fn is_void(choice: &Choice, view: u64, claim: &Claim) -> bool {
    claim.view < view && claim.sequence > choice.base() && choice.list(claim.sequence) != Some(claim.digest)
}
