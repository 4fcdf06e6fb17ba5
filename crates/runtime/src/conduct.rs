//! What is held against a member, and what it is believed, over all its connections: one that begins again on another is still the same.

use std::time::{Duration, Instant};

/// One bad message, or one configuration that brought nothing, is forgotten in so long: no slower than a member that sent a bad signature is heard again.
const FORGOTTEN: Duration = Duration::from_secs(10);
/// So many configurations that bring nothing are looked at of a client, but for those that are forgotten. A client hands over what its own side brings, which
/// others may have handed over before; and looking at one of the longest takes milliseconds.
const HANDED_IN_VAIN_MAX: u32 = 8;
/// For so long a member is believed that it goes by a configuration that this node does not know yet. It hands that over first of all, so it
/// arrives within seconds, and with it this node goes by a later version.
const BELIEVED_AHEAD: Duration = Duration::from_secs(10);
/// After so long it is believed again: its connection may have broken before all of the configuration came.
const BELIEVED_AGAIN: Duration = Duration::from_secs(60);

/// What is known of one member.
#[derive(Debug, Default)]
pub(crate) struct Conduct {
    rejections: Tally,
    /// The configurations that it handed over and that brought nothing.
    in_vain: Tally,
    /// By which version this node went when the member was believed to be ahead of it, and since when it was.
    ahead: Option<(u64, Instant)>,
}

/// How often something happened, of which one time is forgotten each [`FORGOTTEN`].
#[derive(Debug, Default)]
struct Tally {
    times: u32,
    /// Since when the next one is being forgotten.
    since: Option<Instant>,
}

impl Tally {
    /// How often it happened, without what is forgotten by `now`.
    fn times(&mut self, now: Instant) -> u32 {
        let since = *self.since.get_or_insert(now);
        let forgotten = now.saturating_duration_since(since).as_secs() / FORGOTTEN.as_secs();
        let forgotten = u32::try_from(forgotten).unwrap_or(u32::MAX);
        self.since = if forgotten >= self.times { Some(now) } else { Some(since + FORGOTTEN * forgotten) };
        self.times = self.times.saturating_sub(forgotten);
        self.times
    }

    /// It happened once more.
    fn add(&mut self, now: Instant) -> u32 {
        self.times = self.times(now).saturating_add(1);
        self.times
    }
}

impl Conduct {
    /// A message of it was bad. Gives how many were that are not forgotten.
    pub fn reject(&mut self, now: Instant) -> u32 {
        self.rejections.add(now)
    }

    /// Whether no more configurations of it are looked at for now, as too many brought nothing.
    pub fn has_handed_enough(&mut self, now: Instant) -> bool {
        self.in_vain.times(now) >= HANDED_IN_VAIN_MAX
    }

    /// It handed over a configuration that brought nothing.
    pub fn hand_in_vain(&mut self, now: Instant) {
        self.in_vain.add(now);
    }

    /// Whether to believe it that it knows a later version than this node's, which is `own`.
    pub fn is_believed_ahead(&mut self, own: u64, now: Instant) -> bool {
        let age = self.ahead.filter(|(version, _)| *version == own).map(|(_, since)| now.saturating_duration_since(since));
        match age {
            Some(age) if age < BELIEVED_AGAIN => age < BELIEVED_AHEAD,
            _ => {
                self.ahead = Some((own, now));
                true
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(start: Instant, seconds: u64) -> Instant {
        start + Duration::from_secs(seconds)
    }

    #[test]
    fn bad_messages_are_forgotten_one_after_the_other() {
        let (mut conduct, start) = (Conduct::default(), Instant::now());
        assert_eq!([0, 0, 0].map(|after| conduct.reject(seconds(start, after))), [1, 2, 3]);
        assert_eq!([9, 10, 25].map(|after| conduct.reject(seconds(start, after))), [4, 4, 4]);
        assert_eq!(conduct.reject(seconds(start, 1_000)), 1, "all are forgotten");
        assert_eq!([1_009, 1_010].map(|after| conduct.reject(seconds(start, after))), [2, 2], "no time is saved up");
    }

    #[test]
    fn whoever_says_that_it_is_ahead_has_seconds_to_show_it() {
        let (mut conduct, start) = (Conduct::default(), Instant::now());
        let mut is_believed = |own, after| conduct.is_believed_ahead(own, seconds(start, after));
        assert!(is_believed(1, 0) && is_believed(1, 9));
        assert!(!is_believed(1, 10) && !is_believed(1, 59));
        assert!(is_believed(2, 59), "this node has learned something meanwhile");
        assert!(!is_believed(2, 69) && is_believed(2, 119), "its connection may have broken");
    }
}
