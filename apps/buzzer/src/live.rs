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
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, broadcast, watch};
use tokio::time::{MissedTickBehavior, interval};

use crate::failure::Failure;
use crate::guard::{Share, Shares, SourceShare, SourceShares};
use crate::server::has_stopped;
use crate::sessions::{Ticket, now};
use crate::source::Source;

/// The most streams at a time, of one user, and of all users of one subnet (of a site four times as many): anybody has as many accounts as they like.
const STREAMS_MAX: usize = 512;
const STREAMS_OF_USER_MAX: usize = 6;
const STREAMS_OF_SUBNET_MAX: usize = 24;
/// How often the cluster is asked for what other servers have accepted.
const LOOK_EVERY: Duration = Duration::from_secs(5);
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
        let stream = Stream { network, reader, news, stopped, look, following: Vec::new(), seen: None, _permit: permit };
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
                news = self.news.recv() => match news {
                    Ok(user) => user == self.reader.name || self.following.contains(&user),
                    Err(RecvError::Lagged(_)) => true,
                    Err(RecvError::Closed) => return None,
                },
            };
            if is_news && self.has_changed().await {
                return Some(Event::default().event("timeline").data("changed"));
            }
        }
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
