//! What a new view begins with: a pure rule over the view changes that its leader shows (Castro and Liskov, TOCS 2002, figure 4).
//!
//! For each number above the last stable checkpoint that any of them proves, in the words of the paper:
//!
//! * **A**: some of them claims to have prepared a list there in a view, and (A1) `2f+1` of them claim nothing that speaks against
//!   it, which is another list in that view, or any in a later one, and (A2) `f+1` of them have accepted that list in that view or a
//!   later one, so that an honest one has. Then it is that list.
//! * **B**: else, `2f+1` of them have prepared nothing there. Then nothing was decided, and the number is free.
//! * Otherwise these view changes do not suffice, and the leader waits for more.

use std::collections::BTreeMap;

use crypto::BatchSignature;
use mutants::{Mutant, broken};
use types::Digest;

use super::message::{Certificate, Claim, NewView, ViewChange};
use super::quorum::Quorum;

/// How a view began, by its leader's word and signature, and what follows from that.
pub(super) type Beginning = (NewView, BatchSignature, Choice);

/// What a view begins with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The stable checkpoint that it builds on; nothing at the very beginning.
    pub stable: Option<Certificate>,
    /// The lists of the numbers above that, one after the other. What lies higher is free.
    pub lists: Vec<Digest>,
}

impl Choice {
    /// The number of the stable checkpoint.
    #[must_use]
    pub fn base(&self) -> u64 {
        self.stable.as_ref().map_or(0, |stable| stable.sequence)
    }

    /// The last number that is not free.
    #[must_use]
    pub fn last(&self) -> u64 {
        self.base() + self.lists.len() as u64
    }

    /// The list that a number above the checkpoint has in this view from its beginning; nothing when the number is free.
    #[must_use]
    pub fn list(&self, sequence: u64) -> Option<Digest> {
        let index = usize::try_from(sequence.checked_sub(self.base() + 1)?).ok()?;
        self.lists.get(index).copied()
    }
}

/// What follows from `votes`, which are of distinct replicas and one view; nothing when they do not suffice. `empty` is the digest of the empty
/// list.
#[must_use]
pub fn choose(quorum: Quorum, empty: Digest, votes: &[&ViewChange]) -> Option<Choice> {
    let strong = if broken(Mutant::NewViewQuorum) { quorum.strong() - 1 } else { quorum.strong() };
    if votes.len() < strong {
        return None;
    }
    let stable = votes.iter().filter_map(|vote| vote.stable.as_ref()).max_by_key(|stable| stable.sequence).cloned();
    let mut choice = Choice { stable, lists: Vec::new() };
    let base = choice.base();
    // What each number is claimed to have been: by whom it was prepared, and by whom accepted.
    let mut prepared: BTreeMap<u64, Vec<&Claim>> = BTreeMap::new();
    let mut accepted: BTreeMap<u64, Vec<&Claim>> = BTreeMap::new();
    for vote in votes {
        vote.prepared
            .iter()
            .filter(|claim| claim.sequence > base)
            .for_each(|claim| prepared.entry(claim.sequence).or_default().push(claim));
        vote.accepted
            .iter()
            .filter(|claim| claim.sequence > base)
            .for_each(|claim| accepted.entry(claim.sequence).or_default().push(claim));
    }
    let mut last = 0;
    for (sequence, claims) in prepared {
        let none: &[&Claim] = &[];
        let accepted = accepted.get(&sequence).map_or(none, Vec::as_slice);
        // Of several that would do, the one of the highest view: any would, but all must choose the same.
        let mut candidates = claims.clone();
        candidates.sort_by_key(|claim| std::cmp::Reverse((claim.view, claim.digest)));
        let found = candidates.into_iter().find(|claim| is_safe(quorum, votes.len(), claim, &claims, accepted));
        let is_free = votes.len() - claims.len() >= if broken(Mutant::FreeQuorum) { quorum.weak() } else { strong };
        let index = usize::try_from(sequence - base - 1).expect("claims are bounded");
        match found {
            Some(claim) => {
                // B for all the numbers passed over: nobody claims them.
                choice.lists.resize(index, empty);
                choice.lists.push(claim.digest);
                last = index + 1;
            }
            None if is_free => choice.lists.resize(index + 1, empty),
            None => return None,
        }
    }
    choice.lists.truncate(last);
    Some(choice)
}

/// A1 and A2.
fn is_safe(quorum: Quorum, votes: usize, claim: &Claim, prepared: &[&Claim], accepted: &[&Claim]) -> bool {
    let speaks_against = |other: &&&Claim| other.view > claim.view || (other.view == claim.view && other.digest != claim.digest);
    let against = prepared.iter().filter(speaks_against).count();
    let backing = accepted.iter().filter(|other| other.view >= claim.view && other.digest == claim.digest).count();
    (votes - against >= quorum.strong() || broken(Mutant::ContradictionIgnored))
        && (backing >= quorum.weak() || broken(Mutant::AcceptedUnasked))
}

#[cfg(test)]
mod tests {
    use types::{ReplicaId, ShardId};

    use super::super::tests::world;
    use super::*;

    const EMPTY: Digest = [0; 32];

    fn claim(sequence: u64, view: u64, list: u8) -> Claim {
        Claim { sequence, view, digest: [list; 32] }
    }

    /// The view change of a replica that makes these claims.
    fn vote(index: u16, prepared: &[Claim], accepted: &[Claim]) -> ViewChange {
        let signer = ReplicaId { shard: ShardId(0), index };
        ViewChange { signer, view: 9, stable: None, prepared: prepared.to_vec(), accepted: accepted.to_vec() }
    }

    /// The lists that follow.
    fn lists(votes: &[ViewChange]) -> Option<Vec<u8>> {
        let quorum = Quorum::of(&world::cluster(1)).expect("it has 3f+1 replicas");
        let votes: Vec<&ViewChange> = votes.iter().collect();
        choose(quorum, EMPTY, &votes).map(|choice| choice.lists.iter().map(|digest| digest[0]).collect())
    }

    #[test]
    fn two_view_changes_are_too_few() {
        assert_eq!(lists(&[vote(0, &[], &[]), vote(1, &[], &[])]), None);
        assert_eq!(lists(&[vote(0, &[], &[]), vote(1, &[], &[]), vote(2, &[], &[])]), Some(vec![]));
    }

    #[test]
    fn what_one_prepared_and_another_accepted_stays() {
        let one = claim(2, 3, 7);
        assert_eq!(lists(&[vote(0, &[one], &[one]), vote(1, &[], &[one]), vote(2, &[], &[])]), Some(vec![0, 7]));
        // Accepted again later is as good.
        assert_eq!(lists(&[vote(0, &[one], &[one]), vote(1, &[], &[claim(2, 5, 7)]), vote(2, &[], &[])]), Some(vec![0, 7]));
    }

    #[test]
    fn what_only_its_claimant_accepted_is_not_believed_and_not_denied() {
        let one = claim(1, 3, 7);
        let votes = [vote(0, &[one], &[one]), vote(1, &[], &[claim(1, 2, 7)]), vote(2, &[], &[claim(1, 4, 8)])];
        assert_eq!(lists(&votes), None);
        let more = [votes[0].clone(), votes[1].clone(), votes[2].clone(), vote(3, &[], &[])];
        assert_eq!(lists(&more), Some(vec![]), "three have prepared nothing there");
    }

    #[test]
    fn a_later_claim_speaks_against_an_earlier_one() {
        let (old, new) = (claim(1, 3, 7), claim(1, 5, 8));
        let votes = [vote(0, &[old], &[old]), vote(1, &[new], &[new]), vote(2, &[], &[old])];
        assert_eq!(lists(&votes), None, "the old one is spoken against, and the new one nobody else accepted");
        assert_eq!(lists(&[vote(0, &[old], &[new]), vote(1, &[new], &[new]), vote(2, &[], &[old])]), Some(vec![8]));
    }

    #[test]
    fn two_claims_in_one_view_speak_against_each_other() {
        let (one, other) = (claim(1, 3, 7), claim(1, 3, 8));
        let votes = [vote(0, &[one], &[one]), vote(1, &[other], &[other]), vote(2, &[], &[one]), vote(3, &[], &[])];
        assert_eq!(lists(&votes[..3]), None);
        assert_eq!(lists(&votes), Some(vec![7]), "three do not speak against the one, and two have accepted it");
    }

    #[test]
    fn numbers_above_the_last_list_are_free() {
        let one = claim(2, 3, 7);
        let lie = claim(6, 3, 9);
        let votes = [vote(0, &[one], &[one]), vote(1, &[one], &[one]), vote(2, &[], &[]), vote(3, &[lie], &[lie])];
        assert_eq!(lists(&votes), Some(vec![0, 7]));
    }
}
