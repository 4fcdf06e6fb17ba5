//! When sessions end that are not heard of.
//!
//! Every request of a client renews its session, so that must cost nearly nothing: it only notes the time. A session is looked at when it
//! would end if it had not been heard of since it was last looked at, and then ends or is put off.

use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug)]
struct Heard {
    at_ms: i64,
    timeout_ms: i64,
    /// When it is looked at.
    due_ms: i64,
}

/// The sessions' ends.
#[derive(Debug, Default)]
pub(crate) struct Expiry {
    sessions: BTreeMap<i64, Heard>,
    due: BTreeSet<(i64, i64)>,
}

impl Expiry {
    /// A session begins, or is there after a restart.
    pub(crate) fn begin(&mut self, session: i64, timeout_ms: i32, now_ms: i64) {
        self.end(session);
        let timeout_ms = i64::from(timeout_ms);
        let due_ms = now_ms + timeout_ms;
        self.sessions.insert(session, Heard { at_ms: now_ms, timeout_ms, due_ms });
        self.due.insert((due_ms, session));
    }

    /// The session's client was heard of.
    pub(crate) fn renew(&mut self, session: i64, now_ms: i64) {
        if let Some(heard) = self.sessions.get_mut(&session) {
            heard.at_ms = now_ms;
        }
    }

    /// The session is no more.
    pub(crate) fn end(&mut self, session: i64) {
        if let Some(heard) = self.sessions.remove(&session) {
            self.due.remove(&(heard.due_ms, session));
        }
    }

    /// A session that was unheard of for too long, if there is one. It is put off by its timeout, in case it does not end.
    pub(crate) fn next_expired(&mut self, now_ms: i64) -> Option<i64> {
        while let Some((due_ms, session)) = self.due.first().copied().filter(|(due_ms, _)| *due_ms <= now_ms) {
            self.due.remove(&(due_ms, session));
            let Some(heard) = self.sessions.get_mut(&session) else { continue };
            let end_ms = heard.at_ms + heard.timeout_ms;
            let is_over = end_ms <= now_ms;
            heard.due_ms = if is_over { now_ms + heard.timeout_ms } else { end_ms };
            self.due.insert((heard.due_ms, session));
            if is_over {
                return Some(session);
            }
        }
        None
    }

    /// When each session is looked at, in steady time.
    pub(crate) fn ends(&self) -> impl Iterator<Item = (i64, i64)> + '_ {
        self.due.iter().map(|(due_ms, session)| (*session, *due_ms))
    }

    /// When one may end next.
    pub(crate) fn deadline_ms(&self) -> Option<i64> {
        self.due.first().map(|(due_ms, _)| *due_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_ends_when_it_was_unheard_of_for_its_timeout() {
        let mut expiry = Expiry::default();
        expiry.begin(1, 100, 0);
        expiry.begin(2, 100, 0);
        expiry.renew(2, 60);
        assert_eq!(expiry.next_expired(99), None);
        assert_eq!((expiry.next_expired(100), expiry.next_expired(100)), (Some(1), None));
        expiry.end(1);
        assert_eq!(expiry.deadline_ms(), Some(160));
        assert_eq!(expiry.next_expired(160), Some(2));
        expiry.end(2);
        assert_eq!(expiry.deadline_ms(), None);
    }
}
