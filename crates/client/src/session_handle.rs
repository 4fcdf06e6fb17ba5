//! A running session behind an object, so that no type of an engine shows in a client.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Mutex, PoisonError};

use crypto::SignedConfiguration;
use engine::Ask;
use machine::Machine;
use runtime::{Node, NodeHandle, NotTaken, NotTakenOver, PeerState, Stopped, Wire};
use types::ReplicaId;

pub(crate) type Later<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;
pub(crate) type Peers = BTreeMap<ReplicaId, PeerState>;

/// A handle on a running session. What happens for each request allocates nothing where there is room for it; the rest may.
pub(crate) trait SessionHandle: Send + Sync {
    fn try_ask(&self, ask: Ask) -> Result<(), Box<NotTaken<Ask>>>;
    fn ask(&self, ask: Ask) -> Later<'_, Result<(), Stopped<Ask>>>;
    fn peers(&self) -> Peers;
    fn take_over(&self, next: SignedConfiguration) -> Result<(), NotTakenOver>;
    fn versions(&self) -> BTreeMap<ReplicaId, u64>;
    fn close(&self) -> Later<'_, ()>;
}

/// A running session, and the node that it is in.
pub(crate) struct RunningSession<M: Machine<Command = Ask>, W> {
    handle: NodeHandle<Ask, W>,
    /// Until it is closed.
    node: Mutex<Option<Node<M, W>>>,
}

impl<M: Machine<Command = Ask>, W> RunningSession<M, W> {
    pub fn new(node: Node<M, W>) -> Self {
        Self { handle: node.handle(), node: Mutex::new(Some(node)) }
    }
}

impl<M: Machine<Command = Ask> + Send + 'static, W: Wire> SessionHandle for RunningSession<M, W> {
    fn try_ask(&self, ask: Ask) -> Result<(), Box<NotTaken<Ask>>> {
        self.handle.try_command(ask).map_err(Box::new)
    }

    fn ask(&self, ask: Ask) -> Later<'_, Result<(), Stopped<Ask>>> {
        Box::pin(self.handle.command(ask))
    }

    fn peers(&self) -> Peers {
        self.handle.peers()
    }

    fn take_over(&self, next: SignedConfiguration) -> Result<(), NotTakenOver> {
        self.handle.take_over(next)
    }

    fn versions(&self) -> BTreeMap<ReplicaId, u64> {
        self.handle.versions()
    }

    fn close(&self) -> Later<'_, ()> {
        let node = self.node.lock().unwrap_or_else(PoisonError::into_inner).take();
        Box::pin(async move {
            if let Some(node) = node {
                // A session has nothing to make durable, so stopping it cannot fail but by a bug, which is logged there.
                drop(node.stop().await);
            }
        })
    }
}
