//! How much one turn does. What clients ask is far smaller than what it can make a server do: a turn that has done enough takes no more of it,
//! so that other servers, the disk and everybody's sessions wait for no more than that.

use crate::limits::{HELD_BYTES_MAX, TURN_ANSWER_BYTES_MAX, TURN_NODES_MAX, TURN_QUEUED_NODES_MAX};

/// What was done since the turn began.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Work {
    /// Bytes of answers and events.
    pub(crate) answer_bytes: usize,
    /// Nodes and names that were looked at or changed.
    pub(crate) nodes: usize,
}

impl Work {
    /// Whether what else is asked has to wait for the next turn.
    pub(crate) fn is_enough(&self) -> bool {
        self.answer_bytes >= TURN_ANSWER_BYTES_MAX || self.nodes >= TURN_NODES_MAX
    }

    /// Whether even what cannot wait is too much.
    pub(crate) fn is_too_much(&self) -> bool {
        self.answer_bytes >= HELD_BYTES_MAX || self.nodes >= TURN_QUEUED_NODES_MAX
    }
}
