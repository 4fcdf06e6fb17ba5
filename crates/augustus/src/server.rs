//! A replica behind the neutral seam ([`engine`]).

use bytes::Bytes;
use engine::{Misbehavior, Statistics};
use store::StorageBackend;

use crate::multicast::{Application, Node};

impl<A: Application<Answer = Bytes>, B: StorageBackend> engine::Replica for Node<A, B> {
    fn statistics(&self, out: &mut Statistics) {
        let status = self.replica().status();
        out.counter("lists_delivered", "Lists of requests that were delivered", status.delivered).in_status("order.delivered");
        out.gauge("stable_checkpoint", "The last list that a stable checkpoint covers", status.stable).in_status("order.stable");
        out.gauge("view", "The view that it is in, of which each has another leader", status.entered).in_status("order.view");
        out.gauge("journal_bytes", "Size of the journal", self.journal_bytes()).in_status("storage.journal_bytes");
    }

    fn misbehavior(event: &Self::Event) -> Option<Misbehavior> {
        match *event {}
    }

    fn close(&mut self) -> Result<(), Self::Failure> {
        Self::close(self)
    }
}
