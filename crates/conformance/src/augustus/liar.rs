//! A replica that lies about the order.

use std::sync::Arc;

use ::augustus::multicast::message::{Claim, NewView, ViewChange};
use ::augustus::multicast::{Message, Request, RequestId, RequestKey, Unsigned};
use bytes::Bytes;
use random::{Named as _, Random, named};
use simulator::{Heard, Liar, Lies, System};
use types::{ClientId, Cluster, Digest, Party, ReplicaId, Session};

/// How long a leader waits that is slow by just less than the shortest timeout, in nanoseconds.
const SLOW_NS: u64 = 280_000_000;
/// How many digests of lists it remembers.
const DIGESTS_MAX: usize = 64;
/// Two that vote for all that they hear of answer each other without end.
const VOTES_MAX: usize = 50_000;

named! {
    /// A way for a replica to lie.
    pub enum ReplicaStrategy {
        /// Says nothing.
        Silent,
        /// Tells half of the others something else, as a leader and as a follower.
        Equivocate,
        /// Votes for every list that it hears of, in every view.
        VoteForAll,
        /// Keeps back what it proposes for just less than a leader may take.
        Slow,
        /// Neither proposes nor vouches for one client's requests.
        Censor,
        /// Vouches for what no client asked, and proposes it.
        Invent,
        /// Proposes again what was ordered.
        OrderTwice,
        /// Leaves things out of its view changes, and claims others.
        LieInViewChanges,
        /// Begins its views with different votes for different replicas.
        TwoNewViews,
        /// Leaves views all the time.
        Hurry,
        /// Signs digests of states that nobody has.
        ForgeCheckpoints,
        /// Gives wrong pages, heads, lists and requests to those who fetch them.
        LieInTransfer,
        /// Damages bytes on the way out.
        Garble,
        /// Comes back from an empty disk, and says so to nobody.
        Forget,
        /// Gives clients the answer that it gave to somebody before.
        WrongAnswers,
    }
}

impl ReplicaStrategy {
    /// Up to three ways.
    pub(super) fn draw(random: &mut Random) -> Vec<Self> {
        let count = random.between(1, 3);
        (0..count).map(|_| random.pick(Self::ALL)).collect()
    }
}

/// A replica that lies.
pub struct OrderLiar {
    cluster: Arc<Cluster>,
    me: ReplicaId,
    strategies: Vec<ReplicaStrategy>,
    random: Random,
    victims: Vec<ClientId>,
    digests: Vec<Digest>,
    ordered: Vec<RequestId>,
    view: u64,
    /// How often it has voted for what it heard of.
    votes: usize,
    last_answer: Bytes,
    /// The first answer to a question that it gave, which it gives again.
    last_read: Option<Bytes>,
}

impl OrderLiar {
    pub(super) fn new(
        cluster: Arc<Cluster>,
        me: ReplicaId,
        strategies: Vec<ReplicaStrategy>,
        random: Random,
        victims: Vec<ClientId>,
    ) -> Self {
        Self {
            cluster,
            me,
            strategies,
            random,
            victims,
            digests: Vec::new(),
            ordered: Vec::new(),
            view: 0,
            votes: 0,
            last_answer: Bytes::new(),
            last_read: None,
        }
    }

    fn does(&self, strategy: ReplicaStrategy) -> bool {
        self.strategies.contains(&strategy)
    }

    /// Half of the others, always the same.
    fn is_favoured(&self, to: Party) -> bool {
        matches!(to, Party::Replica(replica) if replica.index % 2 == self.me.index % 2)
    }

    fn invented(&mut self) -> Request {
        let client = self.victims.first().copied().unwrap_or(ClientId(1));
        let key = RequestKey { client, session: Session(1), number: 1 + self.random.below(8) };
        Request { key, payload: Bytes::from_static(b"invented") }
    }

    fn digest(&mut self) -> Digest {
        if self.digests.is_empty() || self.random.chance(300) {
            return [u8::try_from(self.random.below(256)).unwrap_or_default(); 32];
        }
        self.random.pick(&self.digests)
    }

    fn remember(&mut self, digest: Digest) {
        if !self.digests.contains(&digest) {
            self.digests.push(digest);
            let excess = self.digests.len().saturating_sub(DIGESTS_MAX);
            self.digests.drain(..excess);
        }
    }

    fn lie_in_view_change(&mut self, vote: &mut ViewChange) {
        match self.random.below(5) {
            0 => vote.prepared.clear(),
            1 => vote.accepted.clear(),
            2 => {
                vote.stable = None;
                (vote.prepared, vote.accepted) = (Vec::new(), Vec::new());
            }
            3 => {
                for claim in &mut vote.prepared {
                    (claim.digest, claim.view) = (self.digest(), vote.view.saturating_sub(1));
                }
            }
            _ => {
                let from = vote.stable.as_ref().map_or(0, |stable| stable.sequence);
                let claims: Vec<Claim> = (from + 1..from + 6)
                    .map(|sequence| Claim { sequence, view: self.random.below(vote.view.max(1)), digest: self.digest() })
                    .collect();
                (vote.prepared, vote.accepted) = (claims.clone(), claims);
            }
        }
    }

    fn lie_to_fetcher(&mut self, message: &mut Message) {
        let wrong = Bytes::from(vec![u8::try_from(self.random.below(256)).unwrap_or_default(); 40]);
        match message {
            Message::Page { bytes, .. } => *bytes = wrong,
            Message::Head { head, .. } => *head = wrong,
            Message::Requests(requests) | Message::List { requests, .. } => {
                requests.iter_mut().for_each(|request| request.payload = wrong.clone());
            }
            _ => {}
        }
    }

    /// What it proposes in place of what it should.
    fn lie_in_proposal(&mut self, to: Party, sequence: u64, ids: &mut Vec<RequestId>) {
        if self.does(ReplicaStrategy::Censor) {
            let victim = self.victims.first().copied();
            ids.retain(|id| Some(id.key.client) != victim);
        }
        if self.does(ReplicaStrategy::OrderTwice)
            && let Some(again) = self.ordered.first()
        {
            ids.insert(0, *again);
        }
        if self.does(ReplicaStrategy::Invent) && sequence.is_multiple_of(2) {
            ids.push(self.invented().id(self.cluster.id()));
        }
        if self.does(ReplicaStrategy::Equivocate) && self.is_favoured(to) {
            if ids.len() > 1 {
                ids.reverse();
            } else {
                ids.extend(self.ordered.last().copied());
            }
        }
    }
}

impl<S: System<Message = Message, Unsigned = Unsigned>> Liar<S> for OrderLiar {
    fn hear(&mut self, _from: Party, message: &Message, lies: &mut Lies<S>) -> Heard {
        let others = self.cluster.replicas_of(self.me.shard).filter(|replica| *replica != self.me);
        let others: Vec<Party> = others.map(Party::Replica).collect();
        match message {
            Message::Prepare(claim) | Message::Commit(claim) => {
                self.remember(claim.digest);
                self.view = self.view.max(claim.view);
                if self.does(ReplicaStrategy::VoteForAll) && self.votes < VOTES_MAX {
                    self.votes += 1;
                    for to in others {
                        lies.sends.extend([(to, Message::Prepare(*claim)), (to, Message::Commit(*claim))]);
                    }
                }
            }
            Message::Propose { ids, .. } => {
                self.ordered.splice(.., ids.iter().take(4).copied());
            }
            Message::Request(_) if self.does(ReplicaStrategy::Invent) && self.random.chance(200) => {
                let request = self.invented();
                for to in others {
                    lies.sends.push((to, Message::Vouch(vec![request.id(self.cluster.id())])));
                    lies.sends.push((to, Message::Requests(vec![request.clone()])));
                }
            }
            Message::Request(_) if self.does(ReplicaStrategy::Hurry) && self.random.chance(50) => {
                let view = self.view + 1 + self.random.below(3);
                let vote = ViewChange { signer: self.me, view, stable: None, prepared: Vec::new(), accepted: Vec::new() };
                lies.unsigned.extend(others.into_iter().map(|to| (to, Unsigned::ViewChange(vote.clone()))));
            }
            Message::FetchList { sequence, .. } if self.does(ReplicaStrategy::LieInTransfer) => {
                let request = self.invented();
                lies.sends.push((_from, Message::List { sequence: *sequence, requests: vec![request] }));
            }
            _ => {}
        }
        Heard::Pass
    }

    fn speak(&mut self, sends: &mut Vec<(Party, Message)>, unsigned: &mut Vec<(Party, Unsigned)>) {
        if self.does(ReplicaStrategy::Silent) {
            sends.clear();
            unsigned.clear();
            return;
        }
        let censored = self.victims.first().copied().filter(|_| self.does(ReplicaStrategy::Censor));
        for (to, message) in sends.iter_mut() {
            match message {
                Message::Propose { sequence, ids, .. } => {
                    self.lie_in_proposal(*to, *sequence, ids);
                    self.ordered.splice(.., ids.iter().take(4).copied());
                }
                Message::Prepare(claim) | Message::Commit(claim) if self.does(ReplicaStrategy::Equivocate) && self.is_favoured(*to) => {
                    claim.digest = self.digest();
                }
                Message::Decided { digest, .. } if self.does(ReplicaStrategy::Equivocate) => *digest = self.digest(),
                Message::Vouch(ids) => ids.retain(|id| Some(id.key.client) != censored),
                Message::Reply { answer, .. } if self.does(ReplicaStrategy::WrongAnswers) => std::mem::swap(answer, &mut self.last_answer),
                // What its state said before, which those that are behind may say, too.
                Message::QueryReply { answer, .. } if self.does(ReplicaStrategy::WrongAnswers) => {
                    *answer = self.last_read.get_or_insert_with(|| answer.clone().unwrap_or_default()).clone().into()
                }
                message if self.does(ReplicaStrategy::LieInTransfer) => self.lie_to_fetcher(message),
                _ => {}
            }
        }
        for (to, statement) in unsigned.iter_mut() {
            match statement {
                Unsigned::ViewChange(vote) if self.does(ReplicaStrategy::LieInViewChanges) => self.lie_in_view_change(vote),
                Unsigned::Checkpoint(vote) if self.does(ReplicaStrategy::ForgeCheckpoints) => vote.digest = self.digest(),
                Unsigned::NewView(NewView { votes, .. })
                    if self.does(ReplicaStrategy::TwoNewViews) && self.is_favoured(*to) && votes.len() > 2 * self.cluster.faults() + 1 =>
                {
                    votes.remove(0);
                }
                _ => {}
            }
        }
    }

    fn holds_back(&mut self, message: &Message) -> u64 {
        if self.does(ReplicaStrategy::Slow) && matches!(message, Message::Propose { .. }) { SLOW_NS } else { 0 }
    }

    fn garble(&mut self, bytes: &mut [u8]) {
        if self.does(ReplicaStrategy::Garble) && self.random.chance(300) && !bytes.is_empty() {
            let at = usize::try_from(self.random.below(bytes.len() as u64)).unwrap_or_default();
            bytes[at] ^= 1 << self.random.below(8);
        }
    }

    fn forgets(&self) -> bool {
        self.does(ReplicaStrategy::Forget)
    }
}
