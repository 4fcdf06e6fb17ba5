//! A link between a server and a client of the engine: what a connection of TLS makes of a network that doubles messages.
//!
//! Nothing is heard twice. What is late is heard when it comes, as from a connection whose end nobody has noticed yet.

use std::collections::BTreeSet;

/// One end.
#[derive(Debug, Default)]
pub(in crate::sentinel) struct Link {
    sent: u64,
    /// What was heard: of which process, under which number.
    heard: BTreeSet<(u64, u64)>,
}

impl Link {
    /// The number of what is said next.
    pub fn next(&mut self) -> u64 {
        self.sent += 1;
        self.sent
    }

    /// Whether what the other end says is heard.
    pub fn takes(&mut self, at: (u64, u64)) -> bool {
        self.heard.insert(at)
    }
}
