//! Which requests were delivered: each at most once, in memory that is bounded.
//!
//! Of each process of a client the highest delivered number is known, and which of the [`WINDOW`] numbers up to it were
//! delivered. What lies lower is too old: it was delivered, or never will be. Of each client at most [`SESSIONS_MAX`]
//! processes are known: when another comes, the one that has delivered nothing for longest is forgotten, so that one that
//! is in use stays, however many come and go. Whoever is unknown and not later than any forgotten one is too old altogether. All this
//! changes with deliveries alone, so that it is the same at every replica, and it is a part of each checkpoint.

use std::collections::BTreeMap;

use mutants::{Mutant, broken};
use types::codec::{Decode, DecodeError, Encode, Reader, encode_count};
use types::{ClientId, Session};

use super::request::RequestKey;

/// How far a process may run ahead of its oldest request that is not delivered.
pub const WINDOW: u64 = 1_024;
/// How many processes of one client are known.
pub const SESSIONS_MAX: usize = 64;
const WORDS: usize = WINDOW as usize / 64;
const CLIENTS_MAX: usize = 1 << 20;

/// What is to be done with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It may be delivered.
    New,
    /// It was delivered.
    Delivered,
    /// It is too old, or its process is.
    TooOld,
    /// Its process has run too far ahead; it is to say this again later.
    TooEarly,
}

/// The windows of all clients.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Windows(BTreeMap<ClientId, Sessions>);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Sessions {
    /// Processes up to this one that are not known are too old.
    forgotten: Option<Session>,
    /// How many requests were delivered.
    delivered: u64,
    windows: BTreeMap<Session, Window>,
}

/// Bit `i` says whether `highest - i` was delivered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Window {
    /// The last delivery, by the client's count.
    used: u64,
    highest: u64,
    delivered: [u64; WORDS],
}

impl Window {
    fn has(&self, back: u64) -> bool {
        self.delivered[(back / 64) as usize] >> (back % 64) & 1 == 1
    }

    fn mark(&mut self, number: u64) {
        if number > self.highest {
            self.shift(number - self.highest);
            self.highest = number;
        }
        let back = self.highest - number;
        self.delivered[(back / 64) as usize] |= 1 << (back % 64);
    }

    fn shift(&mut self, by: u64) {
        let old = std::mem::replace(&mut self.delivered, [0; WORDS]);
        let (words, bits) = ((by / 64) as usize, by % 64);
        for (word, from) in (words..WORDS).zip(0..WORDS) {
            self.delivered[word] |= old[from] << bits;
            if bits > 0 && word + 1 < WORDS {
                self.delivered[word + 1] |= old[from] >> (64 - bits);
            }
        }
    }
}

impl Windows {
    /// What is to be done with the request of this name.
    #[must_use]
    pub fn standing(&self, key: &RequestKey) -> Standing {
        let sessions = self.0.get(&key.client);
        let window = sessions.and_then(|sessions| sessions.windows.get(&key.session));
        let is_forgotten = window.is_none() && sessions.is_some_and(|sessions| Some(key.session) <= sessions.forgotten);
        if key.number == 0 || is_forgotten {
            return Standing::TooOld;
        }
        let highest = window.map_or(0, |window| window.highest);
        if key.number > highest {
            return if key.number - highest > WINDOW { Standing::TooEarly } else { Standing::New };
        }
        let back = highest - key.number;
        match window {
            _ if back >= WINDOW => Standing::TooOld,
            Some(window) if window.has(back) => Standing::Delivered,
            _ => Standing::New,
        }
    }

    /// Notes that the request of this name is delivered now; `false` when it must not be.
    pub fn deliver(&mut self, key: &RequestKey) -> bool {
        if broken(Mutant::DeliveredTwice) {
            return true;
        }
        if self.standing(key) != Standing::New {
            return false;
        }
        let sessions = self.0.entry(key.client).or_default();
        sessions.delivered += 1;
        let window = sessions.windows.entry(key.session).or_default();
        window.used = sessions.delivered;
        window.mark(key.number);
        if sessions.windows.len() > SESSIONS_MAX {
            let used = |window: &Window| if broken(Mutant::ProcessInUseForgotten) { 0 } else { window.used };
            let oldest = sessions.windows.iter().min_by_key(|(_, window)| used(window)).map(|(session, _)| *session);
            sessions.windows.remove(&oldest.expect("there are more than none"));
            sessions.forgotten = sessions.forgotten.max(oldest);
        }
        true
    }
}

impl Encode for Windows {
    fn encode(&self, out: &mut Vec<u8>) {
        encode_count(self.0.len(), out);
        for (client, sessions) in &self.0 {
            client.0.encode(out);
            sessions.forgotten.map(|session| session.0).encode(out);
            sessions.delivered.encode(out);
            encode_count(sessions.windows.len(), out);
            for (session, window) in &sessions.windows {
                session.0.encode(out);
                window.used.encode(out);
                window.highest.encode(out);
                window.delivered.iter().for_each(|word| word.encode(out));
            }
        }
    }
}

impl Decode for Windows {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        let mut clients = BTreeMap::new();
        for _ in 0..reader.count("the clients of a state", CLIENTS_MAX)? {
            let client = ClientId(u64::decode(reader)?);
            let forgotten = Option::<u64>::decode(reader)?.map(Session);
            let mut sessions = Sessions { forgotten, delivered: u64::decode(reader)?, windows: BTreeMap::new() };
            for _ in 0..reader.count("the sessions of a client", SESSIONS_MAX)? {
                let session = Session(u64::decode(reader)?);
                let mut window = Window { used: u64::decode(reader)?, highest: u64::decode(reader)?, delivered: [0; WORDS] };
                for word in &mut window.delivered {
                    *word = u64::decode(reader)?;
                }
                if sessions.windows.last_key_value().is_some_and(|(last, _)| *last >= session) {
                    return Err(DecodeError::NotCanonical("the sessions of a client"));
                }
                sessions.windows.insert(session, window);
            }
            if clients.last_key_value().is_some_and(|(last, _)| *last >= client) {
                return Err(DecodeError::NotCanonical("the clients of a state"));
            }
            clients.insert(client, sessions);
        }
        Ok(Self(clients))
    }
}

#[cfg(test)]
mod tests {
    use types::ClusterId;

    use super::*;

    fn key(session: u64, number: u64) -> RequestKey {
        RequestKey { client: ClientId(1), session: Session(session), number }
    }

    #[test]
    fn each_number_is_delivered_once_in_any_order() {
        let mut windows = Windows::default();
        let numbers = [3, 1, 2, 700, 64, 65, 1_000, 63, 1_600, 1_599];
        for number in numbers {
            assert!(windows.deliver(&key(1, number)), "{number}");
        }
        for number in numbers {
            assert!(!windows.deliver(&key(1, number)), "{number}");
        }
        assert_eq!(windows.standing(&key(1, 1_000)), Standing::Delivered);
        assert_eq!(windows.standing(&key(1, 999)), Standing::New);
        assert_eq!(windows.standing(&key(1, 576)), Standing::TooOld);
        assert_eq!(windows.standing(&key(1, 577)), Standing::New);
        assert_eq!(windows.standing(&key(1, 1_600 + WINDOW)), Standing::New);
        assert_eq!(windows.standing(&key(1, 1_601 + WINDOW)), Standing::TooEarly);
        assert_eq!(Windows::from_bytes(windows.to_bytes().into(), ClusterId::new([0; 16])), Ok(windows));
    }

    #[test]
    fn a_process_in_use_is_not_forgotten_for_others_that_come_and_go() {
        let mut windows = Windows::default();
        let last = 3 * SESSIONS_MAX as u64;
        for session in 2..=last {
            assert!(windows.deliver(&key(session, 1)) && windows.deliver(&key(1, session)), "{session}");
        }
        assert_eq!(windows.standing(&key(1, last + 1)), Standing::New);
        assert_eq!(windows.standing(&key(2, 2)), Standing::TooOld);
        assert_eq!(windows.standing(&key(last, 2)), Standing::New);
    }

    #[test]
    fn a_forgotten_session_delivers_nothing_again() {
        let mut windows = Windows::default();
        for session in 1..=SESSIONS_MAX as u64 + 1 {
            assert!(windows.deliver(&key(session, 1)));
        }
        assert_eq!(windows.standing(&key(1, 2)), Standing::TooOld);
        assert_eq!(windows.standing(&key(2, 1)), Standing::Delivered);
        assert_eq!(Windows::from_bytes(windows.to_bytes().into(), ClusterId::new([0; 16])), Ok(windows));
    }
}
