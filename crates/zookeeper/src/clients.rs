//! The clients of a server: where what it says to them goes, once it may be said.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use sentinel::{ConnectionId, Fields};

use crate::connection::{Event, Outgoing};

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
#[derive(Default)]
pub(crate) struct Clients(BTreeMap<ConnectionId, Arc<Outgoing>>);

impl Clients {
    /// Notes who comes and goes.
    pub(crate) fn note(&mut self, event: &Event) {
        match event {
            Event::Opened { connection, outgoing, .. } => drop(self.0.insert(*connection, outgoing.clone())),
            Event::Closed(connection) => drop(self.0.remove(connection)),
            Event::Inputs(..) | Event::Command { .. } | Event::Drill { .. } => {}
        }
    }

    /// Hands on what may be said. Whoever it is for may be gone.
    pub(crate) fn tell(&self, told: Told) {
        match told {
            Told::Bytes(connection, bytes) => {
                if let Some(client) = self.0.get(&connection) {
                    client.put(bytes);
                }
            }
            Told::Close(connection) => {
                if let Some(client) = self.0.get(&connection) {
                    client.close();
                }
            }
            Told::CloseAll => self.0.values().for_each(|client| client.close()),
            Told::Command(asked, answer) => drop(asked.try_send(answer)),
        }
    }
}
