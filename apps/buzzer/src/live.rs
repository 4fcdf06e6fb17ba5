//! New posts, as they come: a stream of events, each of which says no more than that the reader's timeline has changed. The page's script
//! then asks for the timeline as anybody does.
//!
//! What is posted by way of this server is told at once. What is posted by way of another is seen within [`LOOK_EVERY`].

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::http::{HeaderName, HeaderValue};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use buzzer_model::{Name, Network, PostId};
use futures_util::stream::unfold;
use tokio::sync::broadcast::error::{RecvError, TryRecvError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, broadcast, watch};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};

use crate::failure::Failure;
use crate::guard::{Share, Shares, SourceShare, SourceShares};
use crate::server::has_stopped;
use crate::sessions::{Ticket, now};
use crate::source::Source;

/// The most streams at a time, of one user, and of all users of one subnet (of a site four times as many): anybody has as many accounts as they like. A user
/// has fewer than the six connections that a browser makes to one server by HTTP/1.1, so that some are left for pages.
const STREAMS_MAX: usize = 512;
const STREAMS_OF_USER_MAX: usize = 4;
const STREAMS_OF_SUBNET_MAX: usize = 24;
/// How often the cluster is asked for what other servers have accepted.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// How often it is looked at most because of news. What comes meanwhile is seen by the next look, all together.
const NEWS_LOOK_EVERY: Duration = Duration::from_secs(1);
/// How often something is sent, so that a connection that is gone is noticed.
const ALIVE_EVERY: Duration = Duration::from_secs(15);
/// How many posts are compared: one whose author's clock is behind is not the first.
const POSTS_COMPARED: usize = 10;
/// How many pieces of news a stream may be behind before it looks without knowing which.
const NEWS_MAX: usize = 256;

/// Tells readers' streams of what is new.
#[derive(Debug)]
pub(crate) struct Live {
    network: Network,
    /// Who has posted, has deleted a post, or follows others than before.
    news: broadcast::Sender<Name>,
    streams: Arc<Semaphore>,
    of_users: Shares<Name>,
    of_sources: SourceShares,
    stopped: watch::Receiver<bool>,
}

/// One of the streams there may be. It is free again when this goes.
type Permit = (OwnedSemaphorePermit, Share<Name>, SourceShare);

impl Live {
    pub(crate) fn new(network: Network, stopped: watch::Receiver<bool>) -> Self {
        let (of_users, of_sources) = (Shares::new(STREAMS_OF_USER_MAX), SourceShares::new(STREAMS_OF_SUBNET_MAX));
        let streams = Arc::new(Semaphore::new(STREAMS_MAX));
        Self { network, news: broadcast::Sender::new(NEWS_MAX), streams, of_users, of_sources, stopped }
    }

    /// `user` has posted, has deleted a post, or follows others than before.
    pub(crate) fn tell(&self, user: &Name) {
        // It fails when nobody listens.
        let _ = self.news.send(user.clone());
    }

    /// A stream for this reader, until they sign out, go away, or the server stops.
    pub(crate) fn follow(&self, reader: Ticket, from: Source) -> Result<Response, Failure> {
        let permit = self.take_permit(&reader.name, from).ok_or_else(Failure::busy)?;
        let mut look = interval(LOOK_EVERY);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (network, news, stopped) = (self.network.clone(), self.news.subscribe(), self.stopped.clone());
        let stream = Stream { network, reader, news, stopped, look, looked: None, following: Vec::new(), seen: None, _permit: permit };
        let events = unfold(stream, |mut stream| async move { stream.next().await.map(|event| (Ok::<_, Infallible>(event), stream)) });
        let mut response = Sse::new(events).keep_alive(KeepAlive::new().interval(ALIVE_EVERY)).into_response();
        // Else nginx, for one, keeps events until it has many.
        response.headers_mut().insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
        Ok(response)
    }

    fn take_permit(&self, reader: &Name, from: Source) -> Option<Permit> {
        let stream = Arc::clone(&self.streams).try_acquire_owned().ok()?;
        Some((stream, self.of_users.take(reader.clone())?, self.of_sources.take(from)?))
    }
}

/// What one reader has been told.
struct Stream {
    network: Network,
    reader: Ticket,
    news: broadcast::Receiver<Name>,
    stopped: watch::Receiver<bool>,
    look: tokio::time::Interval,
    /// When it was looked last.
    looked: Option<Instant>,
    following: Vec<Name>,
    /// The newest posts when it was looked last; nothing before the first look, which always tells: who knows what came between the page and it.
    seen: Option<Vec<(Name, PostId)>>,
    _permit: Permit,
}

impl Stream {
    /// The next event; none at the end.
    async fn next(&mut self) -> Option<Event> {
        loop {
            let is_news = tokio::select! {
                () = has_stopped(&mut self.stopped) => return None,
                _ = self.look.tick() => {
                    let session = self.network.session(&self.reader.name, &self.reader.digest(), now()).await;
                    if matches!(session, Ok(None)) {
                        return None;
                    }
                    true
                }
                news = self.news.recv() => {
                    let is_mine = |user: &Name| *user == self.reader.name || self.following.contains(user);
                    match news {
                        Ok(user) if !is_mine(&user) => false,
                        Ok(_) | Err(RecvError::Lagged(_)) => true,
                        Err(RecvError::Closed) => return None,
                    }
                }
            };
            if is_news && !self.wait_to_look().await {
                return None;
            }
            if is_news && self.has_changed().await {
                return Some(Event::default().event("timeline").data("changed"));
            }
        }
    }

    /// Waits until it may be looked again, and takes all news that are there by then: one look is enough for them. Whether the server goes on.
    async fn wait_to_look(&mut self) -> bool {
        if !pause(self.looked, &mut self.stopped).await {
            return false;
        }
        drain(&mut self.news);
        self.looked = Some(Instant::now());
        true
    }

    /// Whether the timeline begins with other posts than at the last look. When the cluster does not answer, the next look will tell.
    async fn has_changed(&mut self) -> bool {
        let Ok(timeline) = self.network.timeline(&self.reader.name, None, POSTS_COMPARED).await else { return false };
        let newest: Vec<(Name, PostId)> = timeline.value.posts.into_iter().map(|post| (post.author, post.id)).collect();
        let is_new = self.seen.as_ref() != Some(&newest);
        (self.seen, self.following) = (Some(newest), timeline.value.following);
        is_new
    }
}

/// Waits until [`NEWS_LOOK_EVERY`] has passed since the last look. Whether the server goes on.
async fn pause(looked: Option<Instant>, stopped: &mut watch::Receiver<bool>) -> bool {
    let Some(looked) = looked else { return true };
    tokio::select! {
        () = has_stopped(stopped) => false,
        () = sleep_until(looked + NEWS_LOOK_EVERY) => true,
    }
}

/// Takes all news that are there.
fn drain(news: &mut broadcast::Receiver<Name>) {
    while matches!(news.try_recv(), Ok(_) | Err(TryRecvError::Lagged(_))) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_look_serves_all_news_that_are_there() {
        let sender = broadcast::Sender::new(NEWS_MAX);
        let mut news = sender.subscribe();
        for number in 0..2 * NEWS_MAX {
            sender.send(format!("user{number}").parse().expect("a name")).expect("somebody listens");
        }
        drain(&mut news);
        assert_eq!(news.try_recv(), Err(TryRecvError::Empty));
    }

    #[tokio::test]
    async fn it_is_looked_once_a_second_at_most_and_no_more_once_the_server_stops() {
        let (stopping, mut stopped) = watch::channel(false);
        let looked = Instant::now();
        assert!(pause(None, &mut stopped).await, "the first look is at once");
        assert!(pause(Some(looked), &mut stopped).await && looked.elapsed() >= NEWS_LOOK_EVERY);
        stopping.send_replace(true);
        assert!(!pause(Some(Instant::now() + Duration::from_secs(600)), &mut stopped).await);
    }
}
