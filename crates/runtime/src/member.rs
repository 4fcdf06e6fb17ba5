//! Who shares what a node has: replicas and clients, each client with all its connections.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use types::{ClientId, Party, ReplicaId};

use crate::conduct::Conduct;
use crate::limits::{LOGGED_A_MINUTE_MAX, LOW_PRIORITY_BYTES_PER_SECOND, Limits};
use crate::log_limit::LogLimit;
use crate::priority::Usage;
use crate::quota::{Quota, Totals};

/// At low priority, what is written in less time than this is not waited for: only large answers are worth a pause.
const PACED_FROM_MS: u64 = 5;

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
    /// When, at low priority, more may be written to it.
    write_at: Mutex<Option<Instant>>,
    /// Until when it is refused, after it sent what no correct member sends.
    expelled_until: Mutex<Option<Instant>>,
    /// What is held against it.
    conduct: Mutex<Conduct>,
    /// Lines in the log about it.
    pub log: LogLimit,
}

impl Share {
    pub fn new(member: Member, limits: &Limits, totals: &Totals) -> Self {
        let usage = Arc::default();
        let incoming = Arc::new(Quota::new(limits.incoming_bytes_max, Arc::clone(totals.of(member)), Arc::clone(&usage)));
        let log = LogLimit::new(LOGGED_A_MINUTE_MAX);
        let (checking, write_at, expelled_until, conduct) = Default::default();
        Self { incoming, checking, usage, write_at, expelled_until, conduct, log }
    }

    /// So many bytes have been written to it: at low priority, waits until they would have been at [`LOW_PRIORITY_BYTES_PER_SECOND`].
    pub async fn pace(&self, bytes: usize) {
        if !self.usage.is_low() {
            return;
        }
        let now = Instant::now();
        let until = self.reserve(now, bytes);
        if until > now + Duration::from_millis(PACED_FROM_MS) {
            tokio::time::sleep_until(until.into()).await;
        }
    }

    /// When so many bytes are written that are begun now, or when those before them are.
    fn reserve(&self, now: Instant, bytes: usize) -> Instant {
        let takes = Duration::from_nanos(bytes as u64 * 1_000_000_000 / LOW_PRIORITY_BYTES_PER_SECOND);
        let mut write_at = self.write_at.lock().unwrap_or_else(PoisonError::into_inner);
        let done = write_at.map_or(now, |at| at.max(now)) + takes;
        *write_at = Some(done);
        done
    }

    /// What is held against it.
    pub fn conduct(&self) -> MutexGuard<'_, Conduct> {
        self.conduct.lock().unwrap_or_else(PoisonError::into_inner)
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

    fn totals(max: usize) -> Totals {
        Totals::new(&Limits { incoming_total_bytes_max: max, ..Limits::default() }, &Default::default())
    }

    fn share_of(member: Member, totals: &Totals) -> Share {
        Share::new(member, &Limits::default(), totals)
    }

    #[test]
    fn clients_take_no_room_from_replicas() {
        let totals = totals(1 << 20);
        let clients = [1, 2].map(|client| share_of(Member::Client(ClientId(client)), &totals));
        let held = clients.each_ref().map(|share| share.incoming.try_take(1 << 20).expect("nothing of its own waits"));
        assert!(clients[0].incoming.try_take(1).is_none(), "clients have more than they may");
        let replica = share_of(Member::Replica(ReplicaId { shard: types::ShardId(0), index: 0 }), &totals);
        let _small = replica.incoming.try_take(1).expect("there is room");
        assert!(replica.incoming.try_take(1 << 20).is_some(), "what clients hold does not count");
        drop(held);
    }

    fn share() -> Share {
        share_of(Member::Client(ClientId(1)), &totals(Limits::default().incoming_total_bytes_max))
    }

    #[test]
    fn all_connections_of_a_member_at_low_priority_are_written_to_at_one_pace() {
        let (share, now) = (share(), Instant::now());
        let half = LOW_PRIORITY_BYTES_PER_SECOND as usize / 2;
        assert_eq!(share.reserve(now, half), now + Duration::from_millis(500));
        assert_eq!(share.reserve(now, half), now + Duration::from_secs(1), "after what is on its way");
        let later = now + Duration::from_secs(5);
        assert_eq!(share.reserve(later, half), later + Duration::from_millis(500), "what was not used is not saved up");
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
