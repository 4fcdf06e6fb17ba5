//! What honest replicas of a shard must not contradict, whatever application stands above the order.
//!
//! | checker | what it holds them to |
//! |---|---|
//! | votes | one accepts one list for a number in a view, and prepares only that one, in all its lives |
//! | states | all have the same state at each checkpoint |

use std::collections::BTreeMap;

use ::augustus::multicast::message::Claim;
use ::augustus::multicast::request::list_digest;
use ::augustus::multicast::{Message, Unsigned};
use simulator::Violations;
use types::{ClusterId, Digest, ReplicaId, ShardId};

/// What honest replicas have said.
#[derive(Debug, Default)]
pub(super) struct Statements {
    votes: BTreeMap<(ReplicaId, u64, u64), Digest>,
    states: BTreeMap<(ShardId, u64), Digest>,
}

impl Statements {
    /// An honest replica signs this.
    pub fn signs(&mut self, by: ReplicaId, unsigned: &Unsigned, violations: &mut Violations) {
        match unsigned {
            Unsigned::Checkpoint(vote) => {
                let before = *self.states.entry((by.shard, vote.sequence)).or_insert(vote.digest);
                if before != vote.digest {
                    violations.add("states", format!("{by} has another state after {} than others", vote.sequence));
                }
            }
            Unsigned::ViewChange(vote) => vote.prepared.iter().chain(&vote.accepted).for_each(|claim| self.votes(by, claim, violations)),
            // What is answered is held against what clients see.
            Unsigned::NewView(_) | Unsigned::Reply { .. } => {}
        }
    }

    /// An honest replica says this.
    pub fn says(&mut self, cluster: ClusterId, by: ReplicaId, message: &Message, violations: &mut Violations) {
        match message {
            Message::Prepare(claim) | Message::Commit(claim) => self.votes(by, claim, violations),
            Message::Propose { view, sequence, ids } => {
                self.votes(by, &Claim { view: *view, sequence: *sequence, digest: list_digest(cluster, ids) }, violations);
            }
            _ => {}
        }
    }

    fn votes(&mut self, by: ReplicaId, claim: &Claim, violations: &mut Violations) {
        let before = *self.votes.entry((by, claim.view, claim.sequence)).or_insert(claim.digest);
        if before != claim.digest {
            violations.add("votes", format!("{by} votes for two lists for {} in view {}", claim.sequence, claim.view));
        }
    }
}
