//! What clients asked that waits until the core takes it.
//!
//! Turns go round the connections, a batch each: whoever asks for much waits for that alone, and others wait for one batch of each connection
//! at most. Each connection has only so many batches here ([`crate::limits::BATCHES_MAX`]).

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;

use jute::Request;
use sentinel::{ConnectionId, Input};

use crate::connection::{Batch, Event};

/// Events of connections, and commands of operators.
#[derive(Default)]
pub(crate) struct Waiting {
    /// Of each connection, in the order in which they came. None is empty.
    connections: BTreeMap<ConnectionId, VecDeque<Event>>,
    /// Whose turn it was last.
    last: Option<ConnectionId>,
    /// These go first: whoever asks for one waits for its answer before the next.
    commands: VecDeque<Event>,
    count: usize,
}

impl Waiting {
    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// How many events there are.
    pub(crate) fn len(&self) -> usize {
        self.count
    }

    /// Puts an event behind the others of its connection.
    pub(crate) fn push(&mut self, event: Event) {
        let connection = match &event {
            Event::Command { .. } => {
                self.commands.push_back(event);
                self.count += 1;
                return;
            }
            Event::Closed(connection) => {
                if !self.leave_writes(*connection) {
                    return;
                }
                *connection
            }
            Event::Opened { connection, .. } | Event::Drill { connection, .. } => *connection,
            Event::Inputs(batch) => batch.connection,
        };
        self.connections.entry(connection).or_default().push_back(event);
        self.count += 1;
    }

    /// A connection is no more, and nobody hears what it would be answered: of what it asked only what writes is carried out, and what that needs.
    /// False when the core has not heard of the connection, and need not.
    fn leave_writes(&mut self, connection: ConnectionId) -> bool {
        let Some(events) = self.connections.get_mut(&connection) else { return true };
        let before = events.len();
        let is_unknown = matches!(events.front(), Some(Event::Opened { .. }));
        let is_write = |input: &Input| matches!(input, Input::Request { request: Ok(numbered), .. } if writes(&numbered.request));
        let inputs = |event: &Event| if let Event::Inputs(batch) = event { batch.inputs.iter().any(is_write) } else { false };
        let any_writes = events.iter().any(inputs);
        let is_needed = |input: &Input| match input {
            Input::Connect { .. } => true,
            Input::Request { request: Ok(numbered), .. } => writes(&numbered.request) || matches!(numbered.request, Request::Auth { .. }),
            _ => false,
        };
        events.retain_mut(|event| match event {
            _ if is_unknown => false,
            Event::Inputs(batch) => {
                batch.inputs.retain(is_needed);
                any_writes && !batch.inputs.is_empty()
            }
            _ => true,
        });
        self.count -= before - events.len();
        if events.is_empty() {
            self.connections.remove(&connection);
        }
        !is_unknown
    }

    /// Puts back what is left of a batch, before what else its connection has asked; the turn is the next connection's.
    pub(crate) fn push_rest(&mut self, batch: Batch) {
        self.connections.entry(batch.connection).or_default().push_front(Event::Inputs(batch));
        self.count += 1;
    }

    /// The next event, of the connection whose turn it is.
    pub(crate) fn pop(&mut self) -> Option<Event> {
        if let Some(command) = self.commands.pop_front() {
            self.count -= 1;
            return Some(command);
        }
        let after = self.last.map_or(Bound::Unbounded, Bound::Excluded);
        let later = self.connections.range((after, Bound::Unbounded)).next();
        let connection = later.or_else(|| self.connections.iter().next()).map(|(connection, _)| *connection)?;
        self.last = Some(connection);
        let events = self.connections.get_mut(&connection)?;
        let event = events.pop_front();
        if events.is_empty() {
            self.connections.remove(&connection);
        }
        self.count -= usize::from(event.is_some());
        event
    }
}

/// Whether a request becomes a transaction.
pub(crate) fn writes(request: &Request) -> bool {
    matches!(
        request,
        Request::Create(_)
            | Request::Delete { .. }
            | Request::SetData { .. }
            | Request::SetAcl { .. }
            | Request::Multi(_)
            | Request::CloseSession
    )
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};
    use std::sync::Arc;
    use std::time::Instant;

    use jute::{ConnectRequest, Numbered};
    use sentinel::Peer;

    use super::*;

    const GREEDY: ConnectionId = ConnectionId(1);
    const MODEST: ConnectionId = ConnectionId(2);

    fn batch(connection: ConnectionId, inputs: Vec<Input>) -> Batch {
        Batch { connection, inputs, arrived: Instant::now(), counted: Vec::new() }
    }

    fn ask(connection: ConnectionId, xid: i32, request: Request) -> Input {
        Input::Request { connection, request: Ok(Numbered { xid, request }) }
    }

    fn pings(connection: ConnectionId, xids: std::ops::Range<i32>) -> Batch {
        batch(connection, xids.map(|xid| ask(connection, xid, Request::Ping)).collect())
    }

    fn opened(connection: ConnectionId) -> Event {
        let peer = Peer { address: IpAddr::V4(Ipv4Addr::LOCALHOST), port: 1, certificate: None };
        Event::Opened { connection, peer, outgoing: Arc::default() }
    }

    fn xids(event: &Event) -> Vec<i32> {
        let Event::Inputs(batch) = event else { return Vec::new() };
        let xid = |input: &Input| if let Input::Request { request: Ok(numbered), .. } = input { numbered.xid } else { 0 };
        batch.inputs.iter().map(xid).collect()
    }

    #[test]
    fn turns_go_round_the_connections_and_each_keeps_its_order() {
        let mut waiting = Waiting::default();
        for xid in 0..100 {
            waiting.push(Event::Inputs(pings(GREEDY, xid..xid + 1)));
        }
        waiting.push(Event::Inputs(pings(MODEST, 1_000..1_001)));
        assert_eq!(xids(&waiting.pop().expect("there are many")), [0]);
        // The turn has done enough within this batch: what is left of it waits for the other one.
        waiting.push_rest(pings(GREEDY, 0..1));
        assert_eq!(xids(&waiting.pop().expect("there are many")), [1_000], "it waits for one batch, and not for a hundred");
        let rest: Vec<i32> = std::iter::from_fn(|| waiting.pop()).flat_map(|event| xids(&event)).collect();
        assert_eq!((rest, waiting.is_empty()), ((0..100).collect(), true));
    }

    #[test]
    fn of_a_connection_that_is_gone_only_what_writes_is_carried_out() {
        let mut waiting = Waiting::default();
        let auth = Request::Auth { scheme: "digest".to_owned(), credentials: Vec::new().into() };
        let delete = Request::Delete { path: "/a".to_owned(), version: -1 };
        waiting.push(Event::Inputs(pings(GREEDY, 0..10)));
        let asked = vec![ask(GREEDY, 10, auth), ask(GREEDY, 11, Request::Ping), ask(GREEDY, 12, delete)];
        waiting.push(Event::Inputs(batch(GREEDY, asked)));
        waiting.push(Event::Closed(GREEDY));
        assert_eq!(waiting.len(), 2);
        assert_eq!(xids(&waiting.pop().expect("it writes")), [10, 12]);
        assert!(matches!(waiting.pop(), Some(Event::Closed(GREEDY))));
        // Nothing of this writes.
        let connect = Input::Connect { connection: MODEST, request: ConnectRequest::default() };
        waiting.push(Event::Inputs(batch(MODEST, vec![connect, ask(MODEST, 1, Request::Ping)])));
        waiting.push(Event::Closed(MODEST));
        assert!(matches!(waiting.pop(), Some(Event::Closed(MODEST))) && waiting.is_empty());
    }

    #[test]
    fn who_comes_and_goes_while_the_core_is_busy_leaves_nothing_behind() {
        let mut waiting = Waiting::default();
        for number in 0..1_000 {
            waiting.push(opened(ConnectionId(number)));
            waiting.push(Event::Closed(ConnectionId(number)));
        }
        assert!(waiting.is_empty() && waiting.connections.is_empty());
    }
}
