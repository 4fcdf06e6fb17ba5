//! What servers say unasked.

use engine::Notice;
use tokio::sync::broadcast;

/// How many notices are kept for whoever is slow to hear them.
pub const NOTICES_MAX: usize = 4_096;

/// One thing heard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Heard {
    /// A notice.
    Notice(Notice),
    /// So many notices came while nobody listened that the oldest are lost: look at what they may have been about.
    Missed(u64),
}

/// What servers say unasked, from the moment of [`Client::notices`](crate::Client::notices) on.
#[derive(Debug)]
pub struct Notices(pub(crate) broadcast::Receiver<Notice>);

impl Notices {
    /// Waits for the next one; `None` when the client has been closed.
    pub async fn next(&mut self) -> Option<Heard> {
        match self.0.recv().await {
            Ok(notice) => Some(Heard::Notice(notice)),
            Err(broadcast::error::RecvError::Lagged(missed)) => Some(Heard::Missed(missed)),
            Err(broadcast::error::RecvError::Closed) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::Key;

    #[tokio::test]
    async fn whoever_is_slow_is_told_how_much_was_missed() {
        let (tell, hear) = broadcast::channel(2);
        let mut notices = Notices(hear);
        let notice = |key: &str| Notice { kind: "changed", key: Key::from(key), detail: Default::default() };
        for key in ["a", "b", "c"] {
            tell.send(notice(key)).expect("somebody listens");
        }
        assert_eq!(notices.next().await, Some(Heard::Missed(1)));
        assert_eq!(notices.next().await, Some(Heard::Notice(notice("b"))));
        assert_eq!(notices.next().await, Some(Heard::Notice(notice("c"))));
        drop(tell);
        assert_eq!(notices.next().await, None);
    }
}
