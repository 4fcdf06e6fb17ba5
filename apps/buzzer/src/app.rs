//! Which page an address has, who is asking, and what is done for them.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::rejection::{FormRejection, QueryRejection};
use axum::extract::{ConnectInfo, DefaultBodyLimit, Form, Path, Query, Request, State};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue, LOCATION, SET_COOKIE};
use axum::http::{HeaderMap, HeaderName, StatusCode};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use buzzer_model::{Created, FOLLOWING_MAX, Followed, Name, Network, PostId, PostText, Session, TIMELINE_MAX};
use maud::Markup;
use serde::Deserialize;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::failure::Failure;
use crate::guard::{RateLimit, harden, is_ours};
use crate::live::Live;
use crate::pages::{self, Welcome};
use crate::passwords::Passwords;
use crate::sessions::{SESSION_SECONDS, Ticket, forget_cookie, now};

/// The most bytes of a form: a post of the longest letters takes a quarter of it, written as forms are.
const FORM_BYTES_MAX: usize = 16 << 10;
/// How long the answer to a request may take, its form included.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(40);
/// How often an address may try to sign in or up, and a name be tried, in a minute.
const SIGN_INS_OF_ADDRESS: u32 = 30;
const SIGN_INS_OF_NAME: u32 = 10;
/// How many posts, follows and unfollows a user may ask for in a minute.
const CHANGES_OF_USER: u32 = 60;

/// What stands between this server and browsers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behind {
    /// Nothing: browsers speak HTTP with it.
    Nothing,
    /// A proxy that speaks HTTPS with them, and says whence a request comes.
    HttpsProxy,
}

/// The application.
#[derive(Debug)]
pub struct App {
    network: Network,
    passwords: Passwords,
    behind: Behind,
}

impl App {
    /// An application over `network`.
    ///
    /// # Errors
    /// When the system gives no randomness.
    pub fn new(network: Network, behind: Behind) -> std::io::Result<Self> {
        let passwords = Passwords::new().map_err(std::io::Error::other)?;
        Ok(Self { network, passwords, behind })
    }

    /// All its pages. What never ends by itself ends when `stopped` turns true.
    pub(crate) fn router(self, stopped: watch::Receiver<bool>) -> Router {
        let shared = Arc::new(Shared {
            live: Live::new(self.network.clone(), stopped),
            network: self.network,
            passwords: self.passwords,
            behind: self.behind,
            sign_ins_of_address: RateLimit::new(SIGN_INS_OF_ADDRESS),
            sign_ins_of_name: RateLimit::new(SIGN_INS_OF_NAME),
            changes_of_user: RateLimit::new(CHANGES_OF_USER),
        });
        Router::new()
            .route("/", get(home))
            .route("/timeline", get(timeline))
            .route("/live", get(live))
            .route("/find", get(find))
            .route("/u/{name}", get(profile))
            .route("/u/{name}/followers", get(followers))
            .route("/u/{name}/following", get(following))
            .route("/sign-up", post(sign_up))
            .route("/sign-in", post(sign_in))
            .route("/sign-out", post(sign_out))
            .route("/post", post(write))
            .route("/follow", post(follow))
            .route("/unfollow", post(unfollow))
            .route("/health", get(|| async { "ok\n" }))
            .route("/style.css", get(|| asset("text/css; charset=utf-8", include_str!("../assets/style.css"))))
            .route("/buzzer.js", get(|| asset("text/javascript; charset=utf-8", include_str!("../assets/buzzer.js"))))
            .route("/favicon.svg", get(|| asset("image/svg+xml", include_str!("../assets/favicon.svg"))))
            .fallback(|| async { Failure::not_found("There is no such page.") })
            .method_not_allowed_fallback(|| async { Failure::unreadable(StatusCode::METHOD_NOT_ALLOWED) })
            .layer(DefaultBodyLimit::max(FORM_BYTES_MAX))
            .layer(middleware::from_fn_with_state(Arc::clone(&shared), admit))
            .with_state(shared)
    }
}

/// What all requests share.
#[derive(Debug)]
struct Shared {
    network: Network,
    passwords: Passwords,
    behind: Behind,
    live: Live,
    sign_ins_of_address: RateLimit<IpAddr>,
    sign_ins_of_name: RateLimit<Name>,
    changes_of_user: RateLimit<Name>,
}

type Answer = Result<Response, Failure>;
type App_ = State<Arc<Shared>>;

/// Every request passes here, and every answer.
async fn admit(State(app): App_, request: Request, next: Next) -> Response {
    let answer = async {
        if !is_ours(&request) {
            return Failure::foreign().into_response();
        }
        next.run(request).await
    };
    let mut response = timeout(ANSWER_TIMEOUT, answer).await.unwrap_or_else(|_| Failure::busy().into_response());
    harden(&mut response, app.behind);
    response
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        html(self.status, pages::failure(&self))
    }
}

impl Shared {
    /// Whose session the request's cookie names, if it lasts.
    async fn viewer(&self, headers: &HeaderMap) -> Result<Option<Ticket>, Failure> {
        let Some(ticket) = Ticket::read(headers, self.behind) else { return Ok(None) };
        let session = self.network.session(&ticket.name, &ticket.digest(), now()).await?;
        Ok(session.map(|_| ticket))
    }

    /// The same for what changes something: the form must come from a page of that session.
    async fn author(&self, headers: &HeaderMap, token: &str) -> Result<Ticket, Failure> {
        let ticket = self.viewer(headers).await?.ok_or_else(Failure::foreign)?;
        if ticket.form_token() != token {
            return Err(Failure::foreign());
        }
        Ok(ticket)
    }

    /// The address that a request comes from.
    fn address(&self, headers: &HeaderMap, from: SocketAddr) -> IpAddr {
        let forwarded = || headers.get_all("x-forwarded-for").iter().next_back()?.to_str().ok()?.rsplit(',').next()?.trim().parse().ok();
        match self.behind {
            Behind::Nothing => from.ip(),
            Behind::HttpsProxy => forwarded().unwrap_or(from.ip()),
        }
    }

    /// Counts a try to sign in or up.
    fn admit_sign_in(&self, headers: &HeaderMap, from: SocketAddr, name: Option<&Name>) -> Result<(), Failure> {
        let too_often = |seconds| Failure::too_often("attempts to sign in", seconds);
        self.sign_ins_of_address.admit(self.address(headers, from)).map_err(too_often)?;
        name.map_or(Ok(()), |name| self.sign_ins_of_name.admit(name.clone()).map_err(too_often))
    }

    fn admit_change(&self, user: &Name) -> Result<(), Failure> {
        self.changes_of_user.admit(user.clone()).map_err(|seconds| Failure::too_often("posts and changes", seconds))
    }

    /// Begins a session, and sends the browser to its timeline.
    async fn welcome(&self, name: Name) -> Answer {
        let ticket = Ticket::draw(name);
        let session = Session { expires: now() + SESSION_SECONDS };
        self.network.open_session(&ticket.name, &ticket.digest(), now(), session).await?;
        with_cookie(see("/"), &ticket.set_cookie(self.behind))
    }
}

/// Which part of a list is asked for.
#[derive(Deserialize)]
struct From {
    before: Option<String>,
    after: Option<String>,
}

type Part = Result<Query<From>, QueryRejection>;

impl From {
    fn read(part: Part) -> Result<Self, Failure> {
        part.map(|Query(part)| part).map_err(|rejection| Failure::unreadable(rejection.status()))
    }

    fn before(&self) -> Result<Option<PostId>, Failure> {
        self.before.as_deref().map(|id| id.parse().map_err(|()| Failure::not_found("There is no such page of posts."))).transpose()
    }

    fn after(&self) -> Result<Option<Name>, Failure> {
        self.after.as_deref().map(name).transpose()
    }
}

async fn home(State(app): App_, headers: HeaderMap, part: Part) -> Answer {
    let before = From::read(part)?.before()?;
    let Some(viewer) = app.viewer(&headers).await? else {
        return Ok(html(StatusCode::OK, pages::welcome(&Welcome::default())));
    };
    let timeline = app.network.timeline(&viewer.name, before, TIMELINE_MAX).await?.value;
    Ok(html(StatusCode::OK, pages::home(&viewer, &timeline, before.is_none(), None)))
}

/// The posts alone, for the script that shows new ones.
async fn timeline(State(app): App_, headers: HeaderMap) -> Answer {
    let viewer = app.viewer(&headers).await?.ok_or_else(|| Failure::not_found("You are not signed in."))?;
    let timeline = app.network.timeline(&viewer.name, None, TIMELINE_MAX).await?.value;
    Ok(html(StatusCode::OK, pages::timeline(&timeline)))
}

async fn live(State(app): App_, headers: HeaderMap) -> Answer {
    let viewer = app.viewer(&headers).await?.ok_or_else(|| Failure::not_found("You are not signed in."))?;
    app.live.follow(viewer)
}

#[derive(Deserialize)]
struct Sought {
    name: String,
}

/// Goes to the user whose name was typed.
async fn find(sought: Result<Query<Sought>, QueryRejection>) -> Answer {
    let Query(sought) = sought.map_err(|rejection| Failure::unreadable(rejection.status()))?;
    Ok(see(&format!("/u/{}", name(&sought.name)?)))
}

async fn profile(State(app): App_, headers: HeaderMap, Path(user): Path<String>, part: Part) -> Answer {
    let (user, before) = (name(&user)?, From::read(part)?.before()?);
    let viewer = app.viewer(&headers).await?;
    let profile = app.network.profile(&user, viewer.as_ref().map(|viewer| &viewer.name), before).await?;
    let profile = profile.ok_or_else(|| nobody(&user))?;
    Ok(html(StatusCode::OK, pages::profile(viewer.as_ref(), &user, &profile, before.is_none())))
}

async fn followers(State(app): App_, headers: HeaderMap, Path(user): Path<String>, part: Part) -> Answer {
    let (user, after) = (name(&user)?, From::read(part)?.after()?);
    let (viewer, _) = (app.viewer(&headers).await?, app.network.account(&user).await?.ok_or_else(|| nobody(&user))?);
    let found = app.network.followers(&user, after.as_ref()).await?;
    Ok(html(StatusCode::OK, pages::list(viewer.as_ref(), &user, "followers", &found)))
}

async fn following(State(app): App_, headers: HeaderMap, Path(user): Path<String>, part: Part) -> Answer {
    let (user, after) = (name(&user)?, From::read(part)?.after()?);
    let (viewer, _) = (app.viewer(&headers).await?, app.network.account(&user).await?.ok_or_else(|| nobody(&user))?);
    let found = app.network.following(&user, after.as_ref()).await?;
    Ok(html(StatusCode::OK, pages::list(viewer.as_ref(), &user, "following", &found)))
}

#[derive(Deserialize)]
struct Credentials {
    name: String,
    password: String,
}

type Filled<T> = Result<Form<T>, FormRejection>;

async fn sign_up(State(app): App_, ConnectInfo(from): ConnectInfo<SocketAddr>, headers: HeaderMap, form: Filled<Credentials>) -> Answer {
    let Credentials { name: written, password } = filled(form)?;
    let made = async {
        app.admit_sign_in(&headers, from, None)?;
        let name = name(&written)?;
        let hash = app.passwords.hash(password).await?;
        match app.network.create_account(&name, now(), &hash).await? {
            Created::Now => app.welcome(name).await,
            Created::Taken => Err(Failure::refused(format!("The name {name} is taken. Choose another."))),
        }
    };
    let again = |failure: Failure| {
        html(failure.status, pages::welcome(&Welcome { new_name: &written, wrong_new: Some(&failure), ..Welcome::default() }))
    };
    Ok(made.await.unwrap_or_else(again))
}

async fn sign_in(State(app): App_, ConnectInfo(from): ConnectInfo<SocketAddr>, headers: HeaderMap, form: Filled<Credentials>) -> Answer {
    let Credentials { name: written, password } = filled(form)?;
    let entered = async {
        // What cannot be a name is nobody's.
        let name: Option<Name> = written.parse().ok();
        app.admit_sign_in(&headers, from, name.as_ref())?;
        let account = match &name {
            Some(name) => app.network.account(name).await?,
            None => None,
        };
        let is_right = app.passwords.is_right(password, account.map(|account| account.password_hash)).await?;
        match name.filter(|_| is_right) {
            Some(name) => app.welcome(name).await,
            None => Err(Failure::wrong_password()),
        }
    };
    let again =
        |failure: Failure| html(failure.status, pages::welcome(&Welcome { name: &written, wrong: Some(&failure), ..Welcome::default() }));
    Ok(entered.await.unwrap_or_else(again))
}

/// A form of a session: what it is about, and its token.
#[derive(Deserialize)]
struct OfSession {
    token: String,
    #[serde(default)]
    user: String,
    #[serde(default)]
    text: String,
}

async fn sign_out(State(app): App_, headers: HeaderMap, form: Filled<OfSession>) -> Answer {
    let viewer = app.author(&headers, &filled(form)?.token).await?;
    app.network.close_session(&viewer.name, &viewer.digest()).await?;
    with_cookie(see("/"), &forget_cookie(app.behind))
}

async fn write(State(app): App_, headers: HeaderMap, form: Filled<OfSession>) -> Answer {
    let OfSession { token, text, .. } = filled(form)?;
    let viewer = app.author(&headers, &token).await?;
    let written = async {
        let post: PostText = text.parse().map_err(|wrong| Failure::refused(sentence(&wrong)))?;
        app.admit_change(&viewer.name)?;
        app.network.post(&viewer.name, &post).await?;
        app.live.tell(&viewer.name);
        Ok::<_, Failure>(see("/"))
    };
    match written.await {
        Ok(response) => Ok(response),
        // What was written is not lost.
        Err(failure) => {
            let timeline = app.network.timeline(&viewer.name, None, TIMELINE_MAX).await?.value;
            Ok(html(failure.status, pages::home(&viewer, &timeline, true, Some((&text, &failure)))))
        }
    }
}

async fn follow(State(app): App_, headers: HeaderMap, form: Filled<OfSession>) -> Answer {
    let OfSession { token, user, .. } = filled(form)?;
    let (viewer, user) = (app.author(&headers, &token).await?, name(&user)?);
    app.admit_change(&viewer.name)?;
    match app.network.follow(&viewer.name, &user, now()).await?.value {
        Followed::Now | Followed::Already => {
            app.live.tell(&viewer.name);
            Ok(see(&format!("/u/{user}")))
        }
        Followed::Nobody => Err(nobody(&user)),
        Followed::Oneself => Err(Failure::refused("Nobody follows themselves: your own posts are in your timeline anyway.")),
        Followed::TooMany => {
            Err(Failure::refused(format!("You follow {FOLLOWING_MAX} people, which is as many as there may be. Unfollow somebody first.")))
        }
    }
}

async fn unfollow(State(app): App_, headers: HeaderMap, form: Filled<OfSession>) -> Answer {
    let OfSession { token, user, .. } = filled(form)?;
    let (viewer, user) = (app.author(&headers, &token).await?, name(&user)?);
    app.admit_change(&viewer.name)?;
    app.network.unfollow(&viewer.name, &user).await?;
    app.live.tell(&viewer.name);
    Ok(see(&format!("/u/{user}")))
}

fn filled<T>(form: Filled<T>) -> Result<T, Failure> {
    form.map(|Form(form)| form).map_err(|rejection| Failure::unreadable(rejection.status()))
}

fn name(written: &str) -> Result<Name, Failure> {
    written.parse().map_err(|wrong| Failure::refused(sentence(&wrong)))
}

fn nobody(user: &Name) -> Failure {
    Failure::not_found(format!("There is no user called {user}."))
}

/// An error's text as a sentence.
fn sentence(error: &dyn std::error::Error) -> String {
    let text = error.to_string();
    let mut letters = text.chars();
    let first = letters.next().map(|first| first.to_uppercase().to_string()).unwrap_or_default();
    format!("{first}{}.", letters.as_str())
}

fn html(status: StatusCode, page: Markup) -> Response {
    (status, [(CONTENT_TYPE, "text/html; charset=utf-8")], page.into_string()).into_response()
}

/// Sends the browser elsewhere, so that reloading a page asks for nothing twice.
fn see(place: &str) -> Response {
    (StatusCode::SEE_OTHER, [(LOCATION, place)]).into_response()
}

fn with_cookie(mut response: Response, cookie: &str) -> Answer {
    let value = HeaderValue::from_str(cookie).map_err(|error| Failure::broken(&error.to_string()))?;
    response.headers_mut().append(SET_COOKIE, value);
    Ok(response)
}

async fn asset(content_type: &'static str, text: &'static str) -> ([(HeaderName, &'static str); 2], &'static str) {
    ([(CONTENT_TYPE, content_type), (CACHE_CONTROL, "public, max-age=300")], text)
}
