//! Recovery's divergent case (Basil §5): replicas of the logging shard have logged different decisions on one transaction.
//!
//! It happens when a Byzantine client had both decisions justified and logged each at some replicas, or when two honest
//! finishers came to different decisions at the same time. Then a replica of the logging shard, the *fallback leader*, is
//! elected for this one transaction and reconciles them. It cannot choose: it must repeat what most of those who
//! elected it have logged, and it shows their signed statements.
//!
//! ```text
//!   finisher                  logging shard                          leader of view v
//!   ────────                  ─────────────                          ────────────────
//!   (1) InvokeFallback ─────▶ (2) enters view v, on disk
//!       with signed views         ElectFallback(decision, v) ──────▶ (3) 4f+1 of one view: elected
//!                             (4) adopts, on disk ◀───────────────── DecideFallback(majority, v, the 4f+1)
//!   (5) 4f+1 equal: a     ◀────── Logged(decision, v, v)
//!       certificate; else (1) again, with the views just heard
//! ```
//!
//! Here are the rules that need no replica's state, the statements that are signed, and the counts of both. A replica's part is in
//! `replica/recovery.rs`, a finisher's in `coordinator/recovery.rs`. `docs/protocols/basil.md` argues why this is safe and why it
//! ends, and where it goes beyond the paper.

use std::collections::{BTreeMap, VecDeque};

use crypto::{BatchSignature, Claim, Rejection, SignatureClaims, Statement, leaf};
use mutants::{Mutant, broken};
use types::codec::{Decode, DecodeError, Encode, Reader};
use types::{Cluster, ReplicaId, TransactionId};

use crate::certificate::{Decision, LoggedSet, SignedLogged, VOTERS_MAX, distinct};
use crate::quorum::Quorums;

/// How long the first view with a leader lasts at least, in milliseconds; doubled with each view.
const VIEW_MS: u64 = 50;
/// So often at most.
const VIEW_DOUBLED_MAX: u32 = 5;
/// Of how many transactions a leader keeps one replica's election messages. Whoever sends more only pushes out its own.
const BALLOTS_EACH_MAX: usize = 4_096;

// The rules, which need nobody's state.

/// Whether a replica may go on to a view in which nobody is yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// The present view has had its time.
    Advance,
    /// It has not: catching up is all that is allowed.
    CatchUp,
}

/// §5 (2): the view in which a replica of view `own` is to be, after it was shown the `views` in which distinct replicas
/// of its shard signed to be.
///
/// A view counts for every lower one too (*vote subsumption*), so the largest view that appears `k` times is the
/// `k`-th largest shown. If `3f + 1` are at `v`, then `2f + 1` correct ones are, and the next view is `v + 1`. If `f + 1`
/// are at `v`, then one correct replica is, and whoever is behind follows.
///
/// The paper applies the second rule only where the first does not apply. With subsumption the first always applies to
/// some `v`, be it 0, and would keep those who are behind there. So the higher of both counts. Neither lets `f` liars
/// bring a correct replica to a view that no correct replica is in, nor to the next one before `2f + 1` correct ones
/// are in this.
///
/// Views draw level: let `m` be the highest view of a correct replica. Somebody correct came there by the first rule, so
/// `2f + 1` correct ones are at `m - 1` or above, and of those any `4f + 1` answers hold `f + 1`. Shown to all, they bring
/// everybody to `m - 1` at least; shown the answers after that, everybody comes to one same view.
#[must_use]
pub fn next_view(own: u32, pace: Pace, views: &[u32], quorums: Quorums) -> u32 {
    let mut descending = views.to_vec();
    descending.sort_unstable_by(|one, other| other.cmp(one));
    let reached_by = |count: usize| descending.get(count - 1).copied();
    let weak_quorum = if broken(Mutant::ViewFollowedOfOne) { 1 } else { quorums.weak() };
    let level = reached_by(weak_quorum).map_or(own, |view| own.max(view));
    match (pace, reached_by(quorums.view_passed())) {
        (Pace::Advance, Some(view)) => level.max(view.saturating_add(1)),
        (Pace::Advance, None) | (Pace::CatchUp, _) => level,
    }
}

/// How long a replica stays in `view` at least before it goes on to one in which nobody is yet, in milliseconds.
#[must_use]
pub fn view_lasts_ms(view: u32) -> u64 {
    match view.checked_sub(1) {
        None => 0, // View 0 has no leader to wait for.
        Some(doubled) => VIEW_MS << doubled.min(VIEW_DOUBLED_MAX),
    }
}

/// §5 (2): the index of the replica that leads `view` of a transaction, of `replicas` in the logging shard.
#[must_use]
pub fn leader_of(id: TransactionId, view: u32, replicas: usize) -> u16 {
    let replicas = replicas as u64;
    let index = (id.prefix() % replicas + u64::from(view) % replicas) % replicas;
    u16::try_from(index).expect("a shard has few replicas")
}

/// §5 (3): what most of an odd number of electors have logged.
#[must_use]
pub fn majority(decisions: impl IntoIterator<Item = Decision>) -> Decision {
    let (mut commits, mut aborts) = (0, 0);
    for decision in decisions {
        match decision {
            Decision::Commit => commits += 1,
            Decision::Abort => aborts += 1,
        }
    }
    if (commits > aborts) != broken(Mutant::MinorityDecides) { Decision::Commit } else { Decision::Abort }
}

// What is signed.

/// The statement behind an election message: "I am in this view, and this is what I have logged".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ElectStatement {
    /// The transaction.
    pub id: TransactionId,
    /// What the signer has logged, in a view below.
    pub decision: Decision,
    /// The signer's view, and so whom it elects; above 0. It will adopt nothing from a lower one.
    pub view: u32,
}

impl Statement for ElectStatement {
    const KIND: &'static str = "basil/elect/1";
    fn encode_body(&self, out: &mut Vec<u8>) {
        self.id.encode(out);
        self.decision.encode(out);
        self.view.encode(out);
    }
}

/// The statement behind a leader's decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecideStatement {
    /// The transaction.
    pub id: TransactionId,
    /// What the majority of the leader's electors have logged.
    pub decision: Decision,
    /// The view it leads.
    pub view: u32,
}

impl Statement for DecideStatement {
    const KIND: &'static str = "basil/decide/1";
    fn encode_body(&self, out: &mut Vec<u8>) {
        self.id.encode(out);
        self.decision.encode(out);
        self.view.encode(out);
    }
}

/// One replica's signed election message: ElectFB.
#[derive(Clone, Debug, PartialEq)]
pub struct SignedElect {
    /// Who elects.
    pub replica: ReplicaId,
    /// In which view, and with what.
    pub statement: ElectStatement,
    /// The proof that the replica said so.
    pub signature: BatchSignature,
}

/// A leader's signed decision.
#[derive(Clone, Debug, PartialEq)]
pub struct SignedDecide {
    /// Who leads.
    pub leader: ReplicaId,
    /// What it decides, and in which view.
    pub statement: DecideStatement,
    /// The proof that the leader said so.
    pub signature: BatchSignature,
}

/// Who elects a leader: index, what it has logged, its signature.
pub type Elector = (u16, Decision, BatchSignature);

impl SignatureClaims for SignedElect {
    fn claims<'a>(&'a self, cluster: &Cluster, out: &mut Vec<Claim<'a>>) -> Result<(), Rejection> {
        if self.statement.view == 0 {
            return Err(Rejection::Structure("nobody is elected in view 0"));
        }
        out.push(Claim { signer: self.replica, leaf: leaf(cluster.id(), self.replica, &self.statement), signature: &self.signature });
        Ok(())
    }
}

/// Collects the claims of a leader's decision: that exactly `4f + 1` distinct replicas of its shard elected it in its view,
/// that it leads that view, and that it says what most of them say. Of an odd number there is always a majority.
pub(crate) fn decision_claims<'a>(
    cluster: &Cluster,
    decide: &'a SignedDecide,
    electors: &'a [Elector],
    out: &mut Vec<Claim<'a>>,
) -> Result<(), Rejection> {
    let SignedDecide { leader, statement: DecideStatement { id, decision, view }, .. } = *decide;
    let needed = Quorums::new(cluster.faults()).elected();
    distinct(leader.shard, electors.iter().map(|(index, _, _)| *index), needed)?;
    if electors.len() != needed {
        return Err(Rejection::Structure("a leader shows more electors than elect it"));
    }
    let leads = leader.index == leader_of(id, view, cluster.replicas_per_shard()) || broken(Mutant::AnyoneLeads);
    if view == 0 || !leads {
        return Err(Rejection::Structure("a decision comes from another than the leader of its view"));
    }
    if !broken(Mutant::MajorityUnasked) && decision != majority(electors.iter().map(|(_, decision, _)| *decision)) {
        return Err(Rejection::Structure("a leader decides otherwise than most of its electors"));
    }
    for (index, decision, signature) in electors {
        let signer = ReplicaId { shard: leader.shard, index: *index };
        let statement = ElectStatement { id, decision: *decision, view };
        out.push(Claim { signer, leaf: leaf(cluster.id(), signer, &statement), signature });
    }
    out.push(Claim { signer: leader, leaf: leaf(cluster.id(), leader, &decide.statement), signature: &decide.signature });
    Ok(())
}

// What is counted.

/// What the replicas of a logging shard last said that they have logged, for whoever finishes the transaction.
#[derive(Clone, Debug, Default)]
pub(crate) struct LoggedReplies(BTreeMap<u16, SignedLogged>);

impl LoggedReplies {
    /// Takes in a reply, in the place of an older one of the same replica; `false` when it is no news.
    pub fn note(&mut self, logged: SignedLogged) -> bool {
        let age = |logged: &SignedLogged| (logged.statement.view_current, logged.statement.view_decision);
        match self.0.get(&logged.replica.index) {
            Some(known) if age(&logged) <= age(known) => false,
            _ => {
                self.0.insert(logged.replica.index, logged);
                true
            }
        }
    }

    /// Forgets what replica `index` said; gives whether it had said anything.
    pub fn forget(&mut self, index: u16) -> bool {
        self.0.remove(&index).is_some()
    }

    /// Whether replica `index` has been heard.
    pub fn heard(&self, index: u16) -> bool {
        self.0.contains_key(&index)
    }

    /// How many replicas have been heard.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// How many have logged `decision`, in whichever view.
    pub fn count_of(&self, decision: Decision) -> usize {
        self.0.values().filter(|logged| logged.statement.decision == decision).count()
    }

    /// The replies of each group that agrees in decision and view.
    fn groups(&self) -> BTreeMap<(Decision, u32), usize> {
        let mut groups = BTreeMap::new();
        for logged in self.0.values() {
            let view = if broken(Mutant::LoggedViewsMixed) { 0 } else { logged.statement.view_decision };
            *groups.entry((logged.statement.decision, view)).or_insert(0) += 1;
        }
        groups
    }

    /// §5 (5), §4.2 (7): the decision that `4f + 1` replicas have logged in one view, with their word for it.
    pub fn agreed(&self, quorums: Quorums) -> Option<(Decision, LoggedSet)> {
        let ((decision, view_decision), _) = self.groups().into_iter().find(|(_, count)| *count >= quorums.logged())?;
        let said = self.0.values().filter(|logged| {
            let statement = logged.statement;
            (statement.decision, statement.view_decision) == (decision, view_decision)
                || (broken(Mutant::LoggedViewsMixed) && statement.decision == decision)
        });
        let shard = said.clone().next()?.replica.shard;
        let voters = said.map(|logged| (logged.replica.index, logged.statement.view_current, logged.signature.clone())).collect();
        Some((decision, LoggedSet { shard, view_decision, voters }))
    }

    /// Whether no group can come to `4f + 1` any more, whatever those say that were not heard yet.
    pub fn are_split(&self, quorums: Quorums) -> bool {
        let missing = quorums.replicas().saturating_sub(self.0.len());
        let largest = self.groups().into_values().max().unwrap_or(0);
        largest + missing < quorums.logged()
    }

    /// The signed views, for (1).
    pub fn all(&self) -> Vec<SignedLogged> {
        self.0.values().cloned().collect()
    }
}

/// The election messages that a leader, or who may become one, has received: each replica's latest on each transaction.
#[derive(Debug, Default)]
pub(crate) struct Ballots {
    by_sender: BTreeMap<u16, Sender>,
}

#[derive(Debug, Default)]
struct Sender {
    elects: BTreeMap<TransactionId, SignedElect>,
    /// In the order in which they came; some may be gone already.
    order: VecDeque<TransactionId>,
}

impl Ballots {
    /// Takes in an election message, in the place of one of a lower view.
    pub fn note(&mut self, elect: SignedElect) {
        let id = elect.statement.id;
        let sender = self.by_sender.entry(elect.replica.index).or_default();
        match sender.elects.get(&id) {
            Some(known) if elect.statement.view <= known.statement.view => {}
            Some(_) => {
                sender.elects.insert(id, elect);
            }
            None => {
                sender.elects.insert(id, elect);
                sender.order.push_back(id);
                if sender.order.len() > BALLOTS_EACH_MAX
                    && let Some(oldest) = sender.order.pop_front()
                {
                    sender.elects.remove(&oldest);
                }
            }
        }
    }

    /// The `4f + 1` that elect the leader of `view`, if there are as many, in the order of their indices.
    pub fn electors(&self, id: TransactionId, view: u32, quorums: Quorums) -> Option<Vec<Elector>> {
        let elects = self.by_sender.values().filter_map(|sender| sender.elects.get(&id));
        let matching = elects.filter(|elect| elect.statement.view == view);
        let electors: Vec<Elector> = matching
            .take(quorums.elected())
            .map(|elect| (elect.replica.index, elect.statement.decision, elect.signature.clone()))
            .collect();
        (electors.len() == quorums.elected()).then_some(electors)
    }

    /// Forgets all of replica `index`, whose place has another key: it elects again, when it is asked again.
    pub fn forget_sender(&mut self, index: u16) {
        self.by_sender.remove(&index);
    }

    /// The transaction has ended.
    pub fn forget(&mut self, id: TransactionId) {
        for sender in self.by_sender.values_mut() {
            sender.elects.remove(&id);
        }
    }
}

impl Encode for SignedElect {
    fn encode(&self, out: &mut Vec<u8>) {
        self.replica.encode(out);
        self.statement.encode_body(out);
        self.signature.encode(out);
    }
}

impl Decode for SignedElect {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        let replica = ReplicaId::decode(reader)?;
        let (id, decision, view) = (TransactionId::decode(reader)?, Decision::decode(reader)?, u32::decode(reader)?);
        Ok(Self { replica, statement: ElectStatement { id, decision, view }, signature: BatchSignature::decode(reader)? })
    }
}

impl Encode for SignedDecide {
    fn encode(&self, out: &mut Vec<u8>) {
        self.leader.encode(out);
        self.statement.encode_body(out);
        self.signature.encode(out);
    }
}

impl Decode for SignedDecide {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        let leader = ReplicaId::decode(reader)?;
        let (id, decision, view) = (TransactionId::decode(reader)?, Decision::decode(reader)?, u32::decode(reader)?);
        Ok(Self { leader, statement: DecideStatement { id, decision, view }, signature: BatchSignature::decode(reader)? })
    }
}

pub(crate) fn encode_electors(electors: &[Elector], out: &mut Vec<u8>) {
    types::codec::encode_count(electors.len(), out);
    for (index, decision, signature) in electors {
        index.encode(out);
        decision.encode(out);
        signature.encode(out);
    }
}

pub(crate) fn decode_electors(reader: &mut Reader) -> Result<Vec<Elector>, DecodeError> {
    let count = reader.count("a leader's electors", VOTERS_MAX)?;
    let mut electors = Vec::with_capacity(count);
    for _ in 0..count {
        electors.push((u16::decode(reader)?, Decision::decode(reader)?, BatchSignature::decode(reader)?));
    }
    Ok(electors)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crypto::SignedRoot;
    use types::ShardId;

    use super::*;
    use crate::certificate::LoggedStatement;

    /// One fault, six replicas: two vouch, four pass a view, five elect.
    const ONE: Quorums = Quorums::new(1);

    fn next(own: u32, views: &[u32]) -> u32 {
        next_view(own, Pace::Advance, views, ONE)
    }

    #[test]
    fn four_of_six_in_a_view_bring_the_next() {
        assert_eq!(next(0, &[0, 0, 0, 0]), 1);
        assert_eq!(next(0, &[0, 0, 0]), 0);
        assert_eq!(next(2, &[1, 1, 1, 1, 1]), 2);
        assert_eq!(next(2, &[2, 2, 2, 2]), 3);
    }

    #[test]
    fn a_view_counts_for_every_lower_one() {
        assert_eq!(next(0, &[3, 2, 1, 1]), 2);
        assert_eq!(next(1, &[7, 4, 3, 3, 2, 0]), 4);
    }

    #[test]
    fn who_is_behind_follows_two_of_six() {
        assert_eq!(next(0, &[5, 5, 0, 0, 0]), 5);
        assert_eq!(next(0, &[5, 4]), 4);
        assert_eq!(next(6, &[5, 5, 0, 0, 0]), 6);
    }

    #[test]
    fn one_liar_moves_nobody() {
        assert_eq!(next(0, &[u32::MAX]), 0);
        assert_eq!(next(1, &[u32::MAX, 1, 1]), 1);
        assert_eq!(next(1, &[u32::MAX, 1, 1, 1, 1]), 2);
        assert_eq!(next(0, &[u32::MAX, 0, 0, 0, 0]), 1);
        assert_eq!(next(0, &[]), 0);
    }

    #[test]
    fn views_have_an_end_that_nobody_passes() {
        assert_eq!(next(u32::MAX, &[u32::MAX; 6]), u32::MAX);
    }

    #[test]
    fn a_view_that_has_not_had_its_time_is_left_only_for_one_where_somebody_correct_is() {
        let next = |own, views: &[u32]| next_view(own, Pace::CatchUp, views, ONE);
        assert_eq!(next(1, &[1; 6]), 1);
        assert_eq!(next(1, &[3, 3, 1, 1, 1]), 3);
        assert_eq!(view_lasts_ms(0), 0);
        assert!(view_lasts_ms(2) > view_lasts_ms(1));
        assert_eq!(view_lasts_ms(6), view_lasts_ms(u32::MAX));
    }

    /// Whatever views correct replicas can be in, and whatever a liar claims, two invocations bring all to one view.
    #[test]
    fn two_invocations_bring_all_correct_replicas_to_one_view() {
        for highest in 1..4_u32 {
            for others in 0..9 {
                for lie in [0, highest, u32::MAX] {
                    // Three are at `highest - 1` or above, as the rules bring it about; two lag behind as they may.
                    let mut correct = [highest, highest - 1, highest - 1, (others % 3).min(highest), (others / 3).min(highest)];
                    for _ in 0..2 {
                        // The client hears all but one of the correct ones, and the liar.
                        let mut shown = correct[1..].to_vec();
                        shown.push(lie);
                        correct = correct.map(|own| next(own, &shown));
                        assert!(correct.iter().all(|view| *view <= highest + 2));
                        if correct.iter().all(|view| *view == correct[0]) {
                            break;
                        }
                    }
                    assert!(correct.iter().all(|view| *view == correct[0]), "{correct:?} after a lie of {lie}");
                }
            }
        }
    }

    #[test]
    fn leaders_take_turns() {
        let id = TransactionId([0xff; 32]);
        let mut leaders: Vec<u16> = (0..6).map(|view| leader_of(id, view, 6)).collect();
        assert_eq!(leader_of(id, 6, 6), leaders[0]);
        assert!(usize::from(leader_of(id, u32::MAX, 6)) < 6);
        leaders.sort_unstable();
        assert_eq!(leaders, [0, 1, 2, 3, 4, 5]);
    }

    #[test]
    fn a_decision_logged_by_a_quorum_is_the_majority_of_any_electors() {
        for faults in 1..=10 {
            let quorums = Quorums::new(faults);
            // The worst case: as few as possible of those who logged it elect, and every liar says otherwise.
            let repeat = quorums.logged() - faults + quorums.elected() - quorums.replicas();
            for (logged, other) in [(Decision::Commit, Decision::Abort), (Decision::Abort, Decision::Commit)] {
                let said = std::iter::repeat_n(logged, repeat).chain(std::iter::repeat_n(other, quorums.elected() - repeat));
                assert_eq!(majority(said), logged);
            }
        }
    }

    fn signature() -> BatchSignature {
        BatchSignature { signed: Arc::new(SignedRoot { root: [0; 32], count: 1, signature: [0; 64] }), index: 0, path: Default::default() }
    }

    fn replica(index: u16) -> ReplicaId {
        ReplicaId { shard: ShardId(0), index }
    }

    fn logged(index: u16, decision: Decision, view_decision: u32, view_current: u32) -> SignedLogged {
        let statement = LoggedStatement { id: TransactionId([1; 32]), decision, view_decision, view_current };
        SignedLogged { replica: replica(index), statement, signature: signature() }
    }

    #[test]
    fn replies_agree_only_in_decision_and_view() {
        let mut replies = LoggedReplies::default();
        for index in 0..4 {
            assert!(replies.note(logged(index, Decision::Commit, 0, 0)));
        }
        assert!(!replies.note(logged(0, Decision::Abort, 0, 0)), "of two things said in one view, the first counts");
        assert!(replies.note(logged(4, Decision::Commit, 1, 1)));
        assert_eq!(replies.agreed(ONE), None);
        assert!(!replies.are_split(ONE), "the sixth may still be the fifth of view 0");
        assert!(replies.note(logged(5, Decision::Abort, 0, 0)));
        assert!(replies.are_split(ONE));
        for index in 0..4 {
            assert!(replies.note(logged(index, Decision::Commit, 1, 1)));
        }
        let (decision, set) = replies.agreed(ONE).expect("five agree now");
        assert_eq!((decision, set.view_decision, set.voters.len()), (Decision::Commit, 1, 5));
    }

    #[test]
    fn one_liar_cannot_split_those_who_agree() {
        let mut replies = LoggedReplies::default();
        assert!(replies.note(logged(5, Decision::Abort, 9, 9)));
        for index in 0..4 {
            assert!(replies.note(logged(index, Decision::Commit, 0, 0)));
            assert!(!replies.are_split(ONE));
        }
    }

    fn elect(index: u16, id: TransactionId, view: u32) -> SignedElect {
        SignedElect { replica: replica(index), statement: ElectStatement { id, decision: Decision::Commit, view }, signature: signature() }
    }

    #[test]
    fn five_of_six_in_one_view_elect() {
        let id = TransactionId([1; 32]);
        let mut ballots = Ballots::default();
        for index in 0..4 {
            ballots.note(elect(index, id, 1));
        }
        ballots.note(elect(4, id, 2));
        assert_eq!(ballots.electors(id, 1, ONE), None);
        ballots.note(elect(4, id, 1));
        assert_eq!(ballots.electors(id, 1, ONE), None, "who has gone on does not come back");
        ballots.note(elect(5, id, 1));
        assert_eq!(ballots.electors(id, 1, ONE).map(|electors| electors.len()), Some(5));
        ballots.forget(id);
        assert_eq!(ballots.electors(id, 1, ONE), None);
    }

    #[test]
    fn who_elects_in_too_many_transactions_pushes_out_its_own() {
        let number = |at: usize| {
            let mut id = [0; 32];
            id[..8].copy_from_slice(&(at as u64).to_le_bytes());
            TransactionId(id)
        };
        let mut ballots = Ballots::default();
        ballots.note(elect(0, number(0), 1));
        for at in 0..3 * BALLOTS_EACH_MAX {
            ballots.note(elect(1, number(at), 1));
            ballots.forget(number(at / 2));
            ballots.note(elect(0, number(0), 1));
        }
        assert!(ballots.by_sender.values().all(|sender| sender.elects.len() <= BALLOTS_EACH_MAX && sender.order.len() <= BALLOTS_EACH_MAX));
        assert!(ballots.by_sender[&0].elects.contains_key(&number(0)));
    }
}
