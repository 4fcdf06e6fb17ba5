//! A replica behind the neutral seam ([`engine`]).

use engine::{Misbehavior, Statistics};
use store::StorageBackend;

use crate::multicast::Node;
use crate::shard::Shard;

impl<B: StorageBackend> engine::Replica for Node<Shard, B> {
    fn statistics(&self, out: &mut Statistics) {
        let (status, shard) = (self.replica().status(), self.replica().application());
        let counts = shard.counts();
        out.counter("transactions_committed", "Transactions executed", counts.committed).in_status("transactions.committed");
        out.counter("transactions_aborted", "Transactions voted down", counts.aborted).in_status("transactions.aborted");
        let pending = shard.executor().pending().count() as u64;
        out.gauge("transactions_undecided", "Transactions that wait for other shards", pending).in_status("transactions.undecided");
        out.counter("requests_refused", "Requests refused", counts.refused).in_status("transactions.refused");
        out.counter("lists_delivered", "Lists of requests that were delivered", status.delivered).in_status("order.delivered");
        out.gauge("stable_checkpoint", "The last list that a stable checkpoint covers", status.stable).in_status("order.stable");
        if let Some((sequence, digest)) = self.replica().last_checkpoint() {
            let begins = digest.first_chunk().copied().map_or(0, u64::from_be_bytes);
            out.state("order.checkpoint", "The list after which it last took a checkpoint", sequence);
            out.state("order.checkpoint_digest", "How the digest of its state begins after that list", begins);
        }
        let is_rebuilding = u64::from(self.replica().is_rebuilding());
        out.gauge("rebuilding", "Whether it lost its disk and does not take part again yet", is_rebuilding)
            .in_status("rebuilding.under_way");
        out.gauge("view", "The view that it is in, of which each has another leader", status.entered).in_status("order.view");
        out.gauge("journal_bytes", "Size of the journal", self.journal_bytes()).in_status("store.journal_bytes");
    }

    fn misbehavior(event: &Self::Event) -> Option<Misbehavior> {
        match *event {}
    }

    fn close(&mut self) -> Result<(), Self::Failure> {
        Self::close(self)
    }
}
