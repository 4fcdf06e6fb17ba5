//! How a replica that lost its disk comes back: it takes part only where it cannot have taken part before.
//!
//! Such a replica has forgotten which lists it accepted and which views it left. It bears the mark of the loss in its journal, asks the others how far
//! they are, and is in no view: it accepts nothing, prepares nothing and changes no view. It delivers what the others decide, and takes over their
//! states. Meanwhile it is one of the `f` that may be at fault. From what the others answered two bounds follow:
//!
//! * *Numbers.* It accepted nothing above the last stable checkpoint that it knew and two intervals. `f+1` honest others have delivered all up to that
//!   checkpoint: of the `2f+1` that signed it, one is itself and at most `f-1` lie.
//! * *Views.* It was in no view, and left none, beyond the one after the highest to which `f+1` honest others have gone: before the first honest replica
//!   leaves a view, `2f+1` have left those before.
//!
//! When `k` of the `3f` others have answered, `2f` or more, at least `k-2f+1` of those `f+1` are among them, so the `k-2f+1`-th highest answer is high enough; and it is no
//! higher than some honest one's when all honest ones have answered. Once a checkpoint that this replica has is stable beyond the bound of numbers, nobody needs
//! to know of it what it accepted. Then it leaves all views up to the other bound, and is a replica like any other that left its view.
//!
//! Where no client asks anything, no checkpoint comes. So a leader that is asked proposes an empty list now and then.

use std::collections::BTreeMap;

use machine::{OutboxOf, Time};
use mutants::{Mutant, broken};
use store::{StorageBackend, Store, StoreError};
use types::Party;
use types::codec::Encode as _;

use super::application::Application;
use super::message::Message;
use super::quorum::Quorum;
use super::record::Record;
use super::replica::Replica;

/// Writes into an empty store that what its replica said before is lost. Whoever opens it then rebuilds itself.
///
/// # Errors
/// When the store fails, or is not empty.
pub fn mark<B: StorageBackend>(store: &mut Store<B>) -> Result<(), StoreError> {
    if store.replay()?.is_some() {
        return Err(StoreError::Closed("it is not empty".to_owned()));
    }
    store.append(&Record::Lost.to_bytes());
    store.close()
}

/// How far another replica is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Reached {
    /// The view that it is in, or on its way to.
    view: u64,
    /// How many lists it has delivered.
    delivered: u64,
}

/// What a replica that lost its disk knows of the others.
#[derive(Debug, Default)]
pub(super) struct Rebuild {
    /// What its question is called: when it was first asked. Answers to an earlier process do not count.
    question: Option<u64>,
    answers: BTreeMap<u16, Reached>,
}

impl Rebuild {
    /// The highest number in which this replica may have accepted a list, and the first view that it cannot have left.
    fn bounds(&self, quorum: Quorum, interval: u64) -> Option<(u64, u64)> {
        // 2f: of the f+1 that count, one is among any 2f of the 3f others.
        let needed = quorum.strong() - if broken(Mutant::LostAskedFew) { 2 } else { 1 };
        if self.answers.len() < needed {
            return None;
        }
        // Counted from the highest, from 0: that of 2f answers is the highest.
        let place = self.answers.len().saturating_sub(quorum.strong() - 1);
        let reached = |of: fn(&Reached) -> u64| {
            let mut all: Vec<u64> = self.answers.values().map(of).collect();
            all.sort_unstable_by(|one, other| other.cmp(one));
            all[place]
        };
        let (delivered, view) = (reached(|reached| reached.delivered), reached(|reached| reached.view));
        let ahead = if broken(Mutant::LostNumbersShort) { 0 } else { 2 * interval };
        Some((delivered.saturating_add(ahead), if broken(Mutant::LostViewsShort) { view } else { view.saturating_add(1) }))
    }
}

impl<A: Application> Replica<A> {
    /// Whether it has lost its disk and does not take part again yet.
    #[must_use]
    pub fn is_rebuilding(&self) -> bool {
        self.rebuild.is_some()
    }

    /// At each tick of a replica that lost its disk: it asks, or takes part again.
    pub(super) fn go_on_rebuilding(&mut self, now: Time, outbox: &mut OutboxOf<Self>) {
        let stable = self.stable_sequence();
        let Some(rebuild) = &mut self.rebuild else { return };
        let bounds = rebuild.bounds(self.quorum, self.options.checkpoint_interval);
        match bounds.filter(|(numbers, _)| stable >= *numbers && self.delivered >= stable && !self.has_diverged) {
            None => {
                let question = *rebuild.question.get_or_insert(now.0);
                self.say(&Message::FetchReached(question), outbox);
            }
            Some((_, view)) => {
                self.rebuild = None;
                self.log(&Record::Rebuilt(view));
                if view > self.entered {
                    self.leave_for(now, view, outbox);
                }
            }
        }
    }

    pub(super) fn on_fetch_reached(&mut self, from: Party, question: u64, outbox: &mut OutboxOf<Self>) {
        if self.rebuild.is_none() {
            let (view, delivered) = (self.view, self.delivered.max(self.stable_sequence()));
            outbox.send(from, Message::Reached { question, view, delivered });
            self.is_asked_to_pad = true;
        }
    }

    pub(super) fn on_reached(&mut self, from: u16, question: u64, (view, delivered): (u64, u64)) {
        if let Some(rebuild) = &mut self.rebuild
            && (rebuild.question == Some(question) || broken(Mutant::LostAnswerOld))
        {
            rebuild.answers.entry(from).or_insert(Reached { view, delivered });
        }
    }
}
