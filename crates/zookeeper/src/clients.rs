//! The clients of a server: where what it says to them goes, once it may be said.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use sentinel::{ConnectionId, Fields};

use crate::connection::{Event, Outgoing};
use crate::limits::UNSENT_BYTES_OF_ALL_MAX;

/// What is unsent to all is added up when so large a part of what it may be was said since the last time.
const PARTS_ADDED_UP: usize = 16;

/// What a server says to a client, or to an operator.
pub(crate) enum Told {
    /// Bytes for a client.
    Bytes(ConnectionId, Vec<u8>),
    /// A client is to go, once it has what it was told.
    Close(ConnectionId),
    /// All are to go: the server goes on from its disk, and will know nobody.
    CloseAll,
    /// What an operator's command came to.
    Command(SyncSender<Option<Fields>>, Option<Fields>),
}

/// Those that are connected.
pub(crate) struct Clients {
    connected: BTreeMap<ConnectionId, Arc<Outgoing>>,
    /// How many bytes may be unsent to all of them.
    unsent_bytes_max: usize,
    /// How many were said since it was looked how many are unsent.
    said_bytes: usize,
}

impl Default for Clients {
    fn default() -> Self {
        Self { connected: BTreeMap::new(), unsent_bytes_max: UNSENT_BYTES_OF_ALL_MAX, said_bytes: 0 }
    }
}

impl Clients {
    /// Notes who comes and goes.
    pub(crate) fn note(&mut self, event: &Event) {
        match event {
            Event::Opened { connection, outgoing, .. } => drop(self.connected.insert(*connection, outgoing.clone())),
            Event::Closed(connection) => drop(self.connected.remove(connection)),
            Event::Inputs(_) | Event::Command { .. } | Event::Drill { .. } => {}
        }
    }

    /// Whether an event is of a client that was given up: it would hear no answer, and is about to be gone.
    pub(crate) fn has_given_up(&self, event: &Event) -> bool {
        let Event::Inputs(batch) = event else { return false };
        self.connected.get(&batch.connection).is_some_and(|client| client.is_given_up())
    }

    /// Hands on what may be said. Whoever it is for may be gone.
    pub(crate) fn tell(&mut self, told: Told) {
        match told {
            Told::Bytes(connection, bytes) => {
                let length = bytes.len();
                if let Some(client) = self.connected.get(&connection) {
                    client.put(bytes);
                    self.note_said(length);
                }
            }
            Told::Close(connection) => {
                if let Some(client) = self.connected.get(&connection) {
                    client.close();
                }
            }
            Told::CloseAll => self.connected.values().for_each(|client| client.close()),
            Told::Command(asked, answer) => drop(asked.try_send(answer)),
        }
    }

    /// Whether they have been sent all that they were told.
    pub(crate) fn have_all(&self) -> bool {
        self.connected.values().all(|client| client.unsent() == 0)
    }

    /// Gives up those that have most unread, when all together have too much.
    fn note_said(&mut self, bytes: usize) {
        self.said_bytes += bytes;
        if self.said_bytes < self.unsent_bytes_max / PARTS_ADDED_UP {
            return;
        }
        self.said_bytes = 0;
        let mut unsent: Vec<(usize, &Arc<Outgoing>)> = self.connected.values().map(|client| (client.unsent(), client)).collect();
        let mut all: usize = unsent.iter().map(|(bytes, _)| bytes).sum();
        if all <= self.unsent_bytes_max {
            return;
        }
        unsent.sort_by_key(|(bytes, _)| Reverse(*bytes));
        let mut given_up = 0;
        for (bytes, client) in unsent {
            if all <= self.unsent_bytes_max {
                break;
            }
            client.give_up();
            all -= bytes;
            given_up += 1;
        }
        tracing::warn!(given_up, "connections are closed that had most unread: all together had too much");
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use sentinel::Peer;

    use super::*;

    #[test]
    fn who_has_most_unread_is_given_up_when_all_together_have_too_much() {
        let mut clients = Clients { unsent_bytes_max: 1_600, ..Clients::default() };
        let outgoing: Vec<Arc<Outgoing>> = (0..3).map(|_| Arc::default()).collect();
        for (number, outgoing) in (0..).zip(&outgoing) {
            let peer = Peer { address: IpAddr::V4(Ipv4Addr::LOCALHOST), port: 1, certificate: None };
            clients.note(&Event::Opened { connection: ConnectionId(number), peer, outgoing: outgoing.clone() });
        }
        let unsent = || outgoing.iter().map(|outgoing| outgoing.unsent()).collect::<Vec<_>>();
        for (number, bytes) in [(0, 400), (1, 700), (2, 500)] {
            clients.tell(Told::Bytes(ConnectionId(number), vec![0; bytes]));
        }
        assert_eq!(unsent(), [400, 700, 500], "so much may be unread");
        clients.tell(Told::Bytes(ConnectionId(0), vec![0; 100]));
        assert_eq!(unsent(), [500, 0, 500], "the slowest is given up, and nobody else");
        clients.tell(Told::Bytes(ConnectionId(1), vec![0; 5_000]));
        assert_eq!(unsent(), [500, 0, 500], "it is told nothing more");
    }
}
