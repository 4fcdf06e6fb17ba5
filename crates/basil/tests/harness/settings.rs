//! What replicas and clients of a script begin with.

use basil::CoordinatorOptions;

use super::world::World;

impl World {
    /// What clients' coordinators begin with.
    pub fn coordinator_options(&self) -> CoordinatorOptions {
        CoordinatorOptions { relay_one_shard: self.is_relayed, ..CoordinatorOptions::default() }
    }

    /// Clients that come from now on send proofs of commits on one shard to relays.
    pub fn relay_one_shard(&mut self) {
        self.is_relayed = true;
    }

    /// All replicas come back with room for so many undecided transactions.
    pub fn limit(&mut self, undecided_max: usize) {
        self.options.undecided_max = undecided_max;
        self.restart_all();
    }

    /// All replicas come back, and ask one another so often for what they lack.
    pub fn catch_up(&mut self, every_ms: u64) {
        self.options.catch_up_ms = every_ms;
        self.restart_all();
    }
}
