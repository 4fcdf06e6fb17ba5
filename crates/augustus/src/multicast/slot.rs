//! What a replica knows of one number: which list it has, and who voted for it.

use std::collections::BTreeMap;
use std::sync::Arc;

use mutants::{Mutant, broken};
use types::Digest;

use super::message::Claim;
use super::pool::Pool;
use super::request::{BATCH_BYTES_MAX, Request, RequestId};

/// One number. It is about one list at a time: when a view begins with another one there, the claims to the former are void.
#[derive(Debug, Default)]
pub(super) struct Slot {
    /// The list that this is about.
    pub digest: Option<Digest>,
    /// The view in which it was last proposed.
    pub proposed: Option<u64>,
    /// The names in it, once they are known.
    pub ids: Option<Arc<[RequestId]>>,
    /// The requests in it, once all are here.
    pub requests: Option<Arc<[Request]>>,
    /// Whether the view began with it: then an honest replica has accepted it before.
    pub is_chosen: bool,
    /// The last view in which this replica accepted a list here, and which: another than this one, if that was decided all the same.
    pub voted: Option<(u64, Digest)>,
    /// The last view in which this replica prepared it. The paper's P.
    pub prepared: Option<u64>,
    /// The last view in which this replica told all others which requests of the list it vouches for, as it does not believe all of them.
    pub vouched: Option<u64>,
    /// Whether it is decided.
    pub is_committed: bool,
    /// Whether the journal has its requests.
    pub is_logged: bool,
    /// Who accepted what.
    pub prepares: Votes,
    /// Who prepared what.
    pub commits: Votes,
    /// Who knows what to be decided.
    pub decisions: BTreeMap<u16, Digest>,
}

impl Slot {
    /// Makes this about the list `digest` and no other.
    pub fn turn_to(&mut self, digest: Digest) {
        if self.digest != Some(digest) {
            let Self { voted, prepares, commits, decisions, .. } = std::mem::take(self);
            *self = Self { digest: Some(digest), voted, prepares, commits, decisions, ..Self::default() };
        }
    }

    /// Puts the list together once all requests in it are here. One that is longer than lists may be is never whole, so that nobody honest accepts it:
    /// its names do not tell how long it is, and nobody could read it back.
    pub fn gather(&mut self, pool: &Pool) {
        if let (None, Some(ids)) = (&self.requests, &self.ids) {
            let requests: Option<Vec<Request>> = ids.iter().map(|id| pool.request(id).cloned()).collect();
            let bytes = |requests: &[Request]| requests.iter().map(|request| request.payload.len()).sum::<usize>();
            let whole = requests.filter(|requests| bytes(requests) <= BATCH_BYTES_MAX || broken(Mutant::ListUnbounded));
            self.requests = whole.map(Into::into);
        }
    }

    /// The last view in which this replica accepted this list. The paper's Q.
    pub fn accepted(&self) -> Option<u64> {
        self.voted.filter(|(_, digest)| Some(*digest) == self.digest).map(|(view, _)| view)
    }

    /// The list that is decided: so many have prepared it in one view, or so few know that it is, of whom one is honest.
    pub fn decided(&self, prepared: usize, told: usize) -> Option<Digest> {
        let by_votes = self.commits.agreed(prepared);
        by_votes
            .or_else(|| self.decisions.values().copied().find(|one| self.decisions.values().filter(|other| *other == one).count() >= told))
    }

    /// The claim to this slot's list in `view`.
    pub fn claim(&self, sequence: u64, view: Option<u64>) -> Option<Claim> {
        Some(Claim { sequence, view: view?, digest: self.digest? })
    }
}

/// The last vote of each replica.
#[derive(Debug, Default)]
pub(super) struct Votes(BTreeMap<u16, (u64, Digest)>);

impl Votes {
    /// Counts `from`'s vote, unless it has voted in that view or a later one.
    pub fn add(&mut self, from: u16, view: u64, digest: Digest) {
        if self.0.get(&from).is_none_or(|(last, _)| *last < view) {
            self.0.insert(from, (view, digest));
        }
    }

    /// How many voted for this in that view.
    pub fn count(&self, view: u64, digest: Digest) -> usize {
        self.0.values().filter(|vote| **vote == (view, digest)).count()
    }

    /// What so many voted for in one view.
    pub fn agreed(&self, needed: usize) -> Option<Digest> {
        self.0.values().find(|(view, digest)| self.count(*view, *digest) >= needed).map(|(_, digest)| *digest)
    }
}
