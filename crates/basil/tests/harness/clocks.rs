//! Clients that follow the replicas' clocks, as those of applications do. All others take their timestamps from the script, and no clock matters to them.

use basil::Coordinator;
use machine::turn::{Bounds, Turns};
use types::ClientId;

use super::world::{World, party};

impl World {
    /// A new process of `client` begins, which takes its timestamps from what replicas say of their clocks.
    pub fn follow_clocks(&mut self, client: ClientId) {
        let coordinator = Coordinator::for_client(self.members.cluster.clone(), self.coordinator_options());
        self.clients.insert(client, Turns::new(coordinator, party(client), Bounds::default()));
    }

    /// What time it is for `client`, by all that it has heard.
    pub fn time_of(&self, client: ClientId) -> u64 {
        let clock = self.clients.get(&client).and_then(|turns| turns.machine().clock());
        clock.expect("it follows clocks, and has heard of enough").read(self.now)
    }
}
