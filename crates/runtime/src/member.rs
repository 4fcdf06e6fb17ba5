//! Who shares what a node has: replicas and clients, each client with all its connections.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use types::{ClientId, Party, ReplicaId};

use crate::limits::{LOGGED_A_MINUTE_MAX, Limits};
use crate::log_limit::LogLimit;
use crate::priority::Usage;
use crate::quota::{Quota, Total};

/// The owner of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Member {
    Replica(ReplicaId),
    Client(ClientId),
}

impl fmt::Display for Member {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Replica(replica) => write!(formatter, "replica {replica}"),
            Self::Client(client) => write!(formatter, "client {client}"),
        }
    }
}

impl From<Party> for Member {
    fn from(party: Party) -> Self {
        match party {
            Party::Replica(replica) => Self::Replica(replica),
            Party::Client(client, _) => Self::Client(client),
        }
    }
}

/// What one member may take of a node, over all its connections.
#[derive(Debug)]
pub(crate) struct Share {
    /// Room for what was received and not stepped through.
    pub incoming: Arc<Quota>,
    /// Held while signatures are checked: a member's connections take turns, so that many of them get no more of the cores than one.
    pub checking: tokio::sync::Mutex<()>,
    /// What it takes of this node's time.
    pub usage: Arc<Usage>,
    /// Until when it is refused, after it sent what no correct member sends.
    expelled_until: Mutex<Option<Instant>>,
    /// Lines in the log about it.
    pub log: LogLimit,
}

impl Share {
    pub fn new(limits: &Limits, total: &Arc<Total>) -> Self {
        let usage = Arc::default();
        let incoming = Arc::new(Quota::new(limits.incoming_bytes_max, Arc::clone(total), Arc::clone(&usage)));
        let log = LogLimit::new(LOGGED_A_MINUTE_MAX);
        Self { incoming, checking: tokio::sync::Mutex::default(), usage, expelled_until: Mutex::default(), log }
    }

    /// Refuses it for a while.
    pub fn expel(&self, now: Instant, duration: Duration) {
        *self.expelled_until.lock().unwrap_or_else(PoisonError::into_inner) = now.checked_add(duration);
    }

    /// For how long it is still refused, if it is.
    pub fn expelled_for(&self, now: Instant) -> Option<Duration> {
        let until = *self.expelled_until.lock().unwrap_or_else(PoisonError::into_inner);
        until?.checked_duration_since(now).filter(|left| !left.is_zero())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share() -> Share {
        Share::new(&Limits::default(), &Arc::new(Total::new(1, 1, Default::default())))
    }

    #[test]
    fn who_is_expelled_is_refused_for_that_long() {
        let share = share();
        let now = Instant::now();
        assert_eq!(share.expelled_for(now), None);
        share.expel(now, Duration::from_secs(10));
        assert_eq!(share.expelled_for(now + Duration::from_secs(4)), Some(Duration::from_secs(6)));
        assert_eq!(share.expelled_for(now + Duration::from_secs(10)), None);
    }
}
