//! The state above the order: what one of several servers does with what is ordered.
//!
//! The leader prepares each request against the state as it will be, with the digest that it foresees, and proposes the transaction. Every
//! server applies what is delivered, the leader too, and compares: whoever comes to another digest has [`Corruption`], and says nothing of that
//! transaction or of any after it.

use bytes::Bytes;

use crate::order::Zxid;
use crate::prepare::{Origin, Preparer, Proposal};
use crate::snapshot::SnapshotError;
use crate::state::{Applied, Corruption, State};
use crate::transaction::Transaction;

/// A state that several servers keep.
#[derive(Debug)]
pub struct Replicated {
    state: State,
    preparer: Preparer,
    /// The epoch in which this server prepares.
    leads: Option<u32>,
}

impl Replicated {
    /// Goes on from `state`.
    #[must_use]
    pub fn new(state: State) -> Self {
        Self { preparer: Preparer::new(&state), state, leads: None }
    }

    /// The state.
    #[must_use]
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Whether a session is there, or begins in what was prepared.
    #[must_use]
    pub fn has_session(&self, session: i64) -> bool {
        self.state.sessions.contains_key(&session) || self.preparer.has_opening(session)
    }

    /// As the leader: the transaction of a request, for the place `next`. It must be proposed for that place.
    pub fn prepare(&mut self, next: Zxid, proposal: Proposal, origin: Origin<'_>) -> Transaction {
        if self.leads != Some(next.epoch()) {
            // What another leader, or this one in an earlier epoch, had under way is in the state by now, or will never be.
            self.preparer = Preparer::new(&self.state);
            self.leads = Some(next.epoch());
        }
        self.preparer.go_on_before(signed(next));
        self.preparer.prepare(&self.state, proposal, origin)
    }

    /// Applies what was delivered at `zxid`.
    ///
    /// # Errors
    /// When it is no transaction, or does not make the state that was foreseen: this server's state is not to be used any more.
    pub fn deliver(&mut self, zxid: Zxid, payload: &[u8]) -> Result<(Transaction, Applied), Corruption> {
        let corrupt = |what: String| Corruption { zxid: signed(zxid), path: None, what, digests: None };
        let transaction = Transaction::decode(payload).map_err(|error| corrupt(format!("what was ordered is no transaction: {error}")))?;
        if transaction.zxid != signed(zxid) {
            return Err(corrupt(format!("a transaction for {:#x} was ordered at {zxid}", transaction.zxid)));
        }
        let applied = self.state.apply(&transaction)?;
        self.state.check_applied(&transaction, &applied)?;
        if self.leads == Some(zxid.epoch()) {
            self.preparer.applied(&transaction);
        }
        Ok((transaction, applied))
    }

    /// The state for a server that lacks it, or for the disk.
    ///
    /// # Errors
    /// When the state in memory is damaged.
    pub fn snapshot(&self) -> Result<Bytes, Corruption> {
        self.state.frozen().snapshot()
    }

    /// Takes over a state in place of its own. `seed` is for the tree in memory.
    ///
    /// # Errors
    /// When the snapshot is not whole, or wrong.
    pub fn install(&mut self, snapshot: &[u8], seed: u64) -> Result<(), SnapshotError> {
        *self = Self::new(State::read_snapshot(snapshot, seed)?);
        Ok(())
    }
}

/// The place as transactions have it.
fn signed(zxid: Zxid) -> i64 {
    zxid.0.cast_signed()
}
