//! How transactions have ended, as they were proven: kept at hand for a few seconds, for those who come late.
//!
//! They stand in the order in which they came, apart from what is known of their transactions, and leave in that order, so that no transaction
//! has to be looked up among those of half a minute.

use std::collections::VecDeque;
use std::hint::black_box;
use std::num::NonZeroU64;
use std::sync::Arc;

use crypto::BatchSignature;
use machine::Time;
use smallvec::SmallVec;

use crate::certificate::{Certificate, Proof, ShardProof};

/// So many are let go together, as their memory is read together.
const TOGETHER: usize = 64;

/// Which of them belongs to a transaction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProofNumber(NonZeroU64);

/// The proofs at hand.
#[derive(Debug)]
pub(crate) struct Proofs {
    /// Since when each is there.
    kept: VecDeque<(Time, Arc<Certificate>)>,
    /// The number of the first; the others have those that follow.
    first: NonZeroU64,
}

impl Proofs {
    pub fn new() -> Self {
        Self { kept: VecDeque::new(), first: NonZeroU64::MIN }
    }

    /// Keeps `proof` as from now.
    pub fn keep(&mut self, now: Time, proof: Arc<Certificate>) -> ProofNumber {
        let number = self.first.saturating_add(self.kept.len() as u64);
        self.kept.push_back((now, proof));
        ProofNumber(number)
    }

    /// The proof of this number, unless it was let go.
    pub fn get(&self, number: ProofNumber) -> Option<&Arc<Certificate>> {
        let place = usize::try_from(number.0.get().checked_sub(self.first.get())?).ok()?;
        self.kept.get(place).map(|(_, proof)| proof)
    }

    /// Since when the first is there.
    pub fn oldest(&self) -> Option<Time> {
        self.kept.front().map(|(since, _)| *since)
    }

    /// Lets go those since `time` or before.
    pub fn drop_until(&mut self, time: Time) {
        let stale = self.kept.partition_point(|(since, _)| *since <= time);
        self.first = self.first.saturating_add(stale as u64);
        let mut stale = self.kept.drain(..stale).map(|(_, proof)| proof);
        loop {
            let together: SmallVec<[Arc<Certificate>; TOGETHER]> = stale.by_ref().take(TOGETHER).collect();
            if together.is_empty() {
                return;
            }
            // What letting go of them will need is read of all first, so that the waits for memory overlap. The sums do not matter.
            black_box(together.iter().fold(0, |sum, proof| sum ^ proof.id.0[0]));
            black_box(together.iter().fold(0, |sum, proof| sum ^ voters(proof).len()));
            black_box(together.iter().flat_map(|proof| voters(proof)).fold(0, |sum, (index, _)| sum ^ index));
        }
    }
}

/// Who voted in the first shard of the proof.
fn voters(proof: &Certificate) -> &[(u16, BatchSignature)] {
    match &proof.proof {
        Proof::Fast(proofs) => match proofs.as_slice() {
            [ShardProof::Votes(set), ..] => &set.voters,
            _ => &[],
        },
        Proof::Logged(_) => &[],
    }
}

#[cfg(test)]
mod tests {
    use types::TransactionId;

    use super::*;
    use crate::certificate::Decision;

    #[test]
    fn proofs_are_found_by_their_numbers_until_they_are_let_go_in_the_order_in_which_they_came() {
        let mut proofs = Proofs::new();
        let proof =
            |byte: u8| Arc::new(Certificate { id: TransactionId([byte; 32]), decision: Decision::Commit, proof: Proof::Fast(Vec::new()) });
        let numbers: Vec<ProofNumber> = (0..200).map(|number| proofs.keep(Time(u64::from(number) / 2), proof(number))).collect();
        let found = |proofs: &Proofs| numbers.iter().map(|number| proofs.get(*number).map(|proof| proof.id.0[0])).collect::<Vec<_>>();
        assert_eq!(found(&proofs), (0..200).map(Some).collect::<Vec<_>>());
        for (until, left) in [(0, 2), (79, 160), (50, 160), (98, 198), (500, 200)] {
            proofs.drop_until(Time(until));
            assert_eq!(found(&proofs), (0..200).map(|number| (number >= left).then_some(number)).collect::<Vec<_>>());
            assert_eq!(proofs.oldest(), (left < 200).then_some(Time(u64::from(left) / 2)));
        }
        let next = proofs.keep(Time(600), proof(7));
        assert_eq!(proofs.get(next).map(|proof| proof.id.0[0]), Some(7));
        assert!(found(&proofs).iter().all(Option::is_none), "no number is given twice");
    }
}
