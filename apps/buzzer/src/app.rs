//! Which page an address has, who is asking, and what is done for them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::rejection::{FormRejection, QueryRejection};
use axum::extract::{ConnectInfo, DefaultBodyLimit, Form, Path, Query, Request, State};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue, LOCATION, SET_COOKIE};
use axum::http::{HeaderMap, HeaderName, Method, StatusCode};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use buzzer_model::{
    Account, Changed, Created, FOLLOWING_MAX, Followed, Name, Network, Opened, PostId, PostText, Session, TIMELINE_MAX, Timeline,
};
use maud::Markup;
use serde::Deserialize;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::failure::Failure;
use crate::guard::{harden, is_ours};
use crate::limits::Limits;
use crate::live::Live;
use crate::pages::{self, Draft, Welcome};
use crate::passwords::Passwords;
use crate::sessions::{SESSION_SECONDS, Ticket, forget_cookie, now};
use crate::source::{Proxies, Source};

/// The most bytes of a form: a post of the longest letters takes a quarter of it, written as forms are.
const FORM_BYTES_MAX: usize = 16 << 10;
/// How long the answer to a request may take, its form included.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(40);
/// How long posting may take, so that there is time left to give back what was written.
const POST_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a page that gives it back waits for the timeline. It comes without where that takes longer.
const TIMELINE_TIMEOUT: Duration = Duration::from_secs(5);

tokio::task_local! {
    /// Whom the request's cookie names, for the bar of the pages that say what failed. Nobody has looked whether that session lasts: it may be just
    /// that which fails.
    static ASKING: Option<Ticket>;
}

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
    proxies: Arc<Proxies>,
}

impl App {
    /// An application over `network`. Behind a proxy it believes those on this machine.
    ///
    /// # Errors
    /// When the system gives no randomness.
    pub fn new(network: Network, behind: Behind) -> std::io::Result<Self> {
        let passwords = Passwords::new().map_err(std::io::Error::other)?;
        let proxies = match behind {
            Behind::Nothing => Proxies::new(Vec::new()),
            Behind::HttpsProxy => Proxies::default(),
        };
        Ok(Self { network, passwords, behind, proxies: Arc::new(proxies) })
    }

    /// The same, believing these proxies and no others.
    #[must_use]
    pub fn believing(self, proxies: Proxies) -> Self {
        Self { proxies: Arc::new(proxies), ..self }
    }

    /// The proxies that it believes.
    pub(crate) fn proxies(&self) -> Arc<Proxies> {
        Arc::clone(&self.proxies)
    }

    /// All its pages. What never ends by itself ends when `stopped` turns true.
    pub(crate) fn router(self, stopped: watch::Receiver<bool>) -> Router {
        let shared = Arc::new(Shared {
            live: Live::new(self.network.clone(), stopped),
            network: self.network,
            passwords: self.passwords,
            behind: self.behind,
            proxies: self.proxies,
            limits: Limits::new(),
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
            // Whoever writes on after signing in is at this address, and may load it again.
            .route("/sign-in", post(sign_in).get(|| async { see("/") }))
            .route("/sign-out", post(sign_out))
            .route("/sign-out-everywhere", post(sign_out_everywhere))
            .route("/settings", get(settings))
            .route("/password", post(change_password))
            .route("/post", post(write))
            .route("/delete", post(delete))
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
    proxies: Arc<Proxies>,
    live: Live,
    limits: Limits,
}

type Answer = Result<Response, Failure>;
type App_ = State<Arc<Shared>>;

/// Every request passes here, and every answer.
async fn admit(State(app): App_, request: Request, next: Next) -> Response {
    let (asking, method) = (Ticket::read(request.headers(), app.behind), request.method().clone());
    let answer = async {
        if !is_ours(&request) {
            return Failure::foreign().into_response();
        }
        next.run(request).await
    };
    let mut response = ASKING.scope(asking, within(ANSWER_TIMEOUT, &method, answer)).await;
    harden(&mut response, app.behind);
    response
}

/// The answer, or that it did not come in time.
async fn within(limit: Duration, method: &Method, answer: impl Future<Output = Response>) -> Response {
    timeout(limit, answer).await.unwrap_or_else(|_| Failure::late(method).into_response())
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let page = ASKING.try_with(|asking| self.page(asking.as_ref().filter(|_| !self.is_signed_out())));
        page.unwrap_or_else(|_| self.page(None))
    }
}

impl Failure {
    /// A page that says it, with the bar of those who are signed in, or without.
    fn page(&self, asking: Option<&Ticket>) -> Response {
        html(self.status, pages::failure(self, asking))
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
        let ticket = self.viewer(headers).await?.ok_or_else(Failure::signed_out)?;
        ticket.check(token)?;
        Ok(ticket)
    }

    /// Whence a request comes.
    fn source(&self, headers: &HeaderMap, from: SocketAddr) -> Source {
        self.proxies.source(headers, from.ip()).into()
    }

    /// The hash of this user's password, if `password` is that.
    async fn right_hash(&self, name: &Name, password: String) -> Result<Option<String>, Failure> {
        let hash = self.network.account(name).await?.map(|Account { password_hash, .. }| password_hash);
        let is_right = self.passwords.is_right(password, hash.clone()).await?;
        Ok(hash.filter(|_| is_right))
    }

    /// The same where somebody signs in, under the limits of that.
    async fn let_in(&self, name: &Name, password: String, from: Source) -> Result<Option<String>, Failure> {
        self.limits.password_of(name, from)?;
        let hash = self.right_hash(name, password).await?;
        if hash.is_some() {
            self.limits.password_was_right(name, from);
        }
        Ok(hash)
    }

    /// Begins a session of whoever showed the password with this hash, and sends the browser to its timeline; or shows that with what was to be posted.
    async fn welcome(&self, headers: &HeaderMap, name: Name, password_hash: &str, draft: &str) -> Answer {
        let ticket = Ticket::draw(name);
        let session = Session { expires: now() + SESSION_SECONDS };
        match self.network.open_session(&ticket.name, password_hash, &ticket.digest(), now(), session).await? {
            Opened::Now => {}
            Opened::OtherPassword => return Err(Failure::wrong_password()),
        }
        self.end_session_before(headers).await;
        let page =
            if draft.is_empty() { see("/") } else { self.write_on(&ticket, StatusCode::OK, Draft { text: draft, wrong: None }).await };
        with_cookie(page, &ticket.set_cookie(self.behind))
    }

    /// Ends the session in whose browser another one has begun: nobody would end it, as the browser forgets it.
    async fn end_session_before(&self, headers: &HeaderMap) {
        let end = async {
            // A made-up cookie leaves no deleted key behind.
            match self.viewer(headers).await? {
                Some(before) => self.network.close_session(&before.name, &before.digest()).await.map_err(Failure::from),
                None => Ok(()),
            }
        };
        if let Err(failure) = end.await {
            eprintln!("error: a session could not be ended: {}", failure.message);
        }
    }

    /// The timeline with what was written and is not posted. Where there is no timeline, that comes alone.
    async fn write_on(&self, viewer: &Ticket, status: StatusCode, draft: Draft<'_>) -> Response {
        let timeline = timeout(TIMELINE_TIMEOUT, self.network.timeline(&viewer.name, None, TIMELINE_MAX)).await;
        let timeline = match timeline {
            Ok(Ok(timeline)) => Some(timeline.value),
            Ok(Err(error)) => {
                eprintln!("error: {error}");
                None
            }
            Err(_) => None,
        };
        draft_page(viewer, status, draft, timeline.as_ref())
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
    Ok(html(StatusCode::OK, pages::home(&viewer, &timeline, before.is_none(), Draft::default())))
}

/// The posts alone, for the script that shows new ones.
async fn timeline(State(app): App_, headers: HeaderMap) -> Answer {
    let viewer = app.viewer(&headers).await?.ok_or_else(Failure::signed_out)?;
    let timeline = app.network.timeline(&viewer.name, None, TIMELINE_MAX).await?.value;
    Ok(html(StatusCode::OK, pages::timeline(&viewer, &timeline)))
}

async fn live(State(app): App_, ConnectInfo(from): ConnectInfo<SocketAddr>, headers: HeaderMap) -> Answer {
    let viewer = app.viewer(&headers).await?.ok_or_else(Failure::signed_out)?;
    app.live.follow(viewer, app.source(&headers, from))
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
    /// What somebody wrote who was not signed in any more.
    #[serde(default)]
    draft: String,
}

type Filled<T> = Result<Form<T>, FormRejection>;

async fn sign_up(State(app): App_, ConnectInfo(from): ConnectInfo<SocketAddr>, headers: HeaderMap, form: Filled<Credentials>) -> Answer {
    let Credentials { name: written, password, .. } = filled(form)?;
    let made = async {
        let name = name(&written)?;
        let source = app.source(&headers, from);
        app.limits.form_with_password(source)?;
        app.limits.sign_up(source)?;
        let hash = app.passwords.hash(password.clone(), &name).await.inspect_err(|_| app.limits.sign_up_failed(source))?;
        // Where it failed, the account may be there, and counts.
        match app.network.create_account(&name, now(), &hash).await? {
            Created::Now => Ok((name, hash)),
            Created::Taken => {
                app.limits.sign_up_failed(source);
                // By the same user, perhaps, who has pressed the button twice, or did not see the first answer.
                match app.let_in(&name, password, source).await {
                    Ok(Some(hash)) => Ok((name, hash)),
                    Ok(None) | Err(_) => Err(Failure::refused(format!("The name {name} is taken. Choose another."))),
                }
            }
        }
    };
    Ok(match made.await {
        // From here on the account is there, whatever fails.
        Ok((name, hash)) => {
            app.welcome(&headers, name, &hash, "").await.unwrap_or_else(|failure| sign_in_again(&written, &failure.only_made(), ""))
        }
        Err(failure) => {
            html(failure.status, pages::welcome(&Welcome { new_name: &written, wrong_new: Some(&failure), ..Welcome::default() }))
        }
    })
}

/// The form to sign in, as it was filled in, with what was wrong.
fn sign_in_again(written: &str, failure: &Failure, draft: &str) -> Response {
    html(failure.status, pages::welcome(&Welcome { name: written, wrong: Some(failure), draft, ..Welcome::default() }))
}

async fn sign_in(State(app): App_, ConnectInfo(from): ConnectInfo<SocketAddr>, headers: HeaderMap, form: Filled<Credentials>) -> Answer {
    let Credentials { name: written, password, draft } = filled(form)?;
    let entered = async {
        // What cannot be a name is nobody's, which is known without a look, and so is neither counted nor hashed.
        let name: Name = written.parse().map_err(|_| Failure::wrong_password())?;
        let source = app.source(&headers, from);
        app.limits.form_with_password(source)?;
        match app.let_in(&name, password, source).await? {
            Some(hash) => app.welcome(&headers, name, &hash, &draft).await,
            None => Err(Failure::wrong_password()),
        }
    };
    Ok(entered.await.unwrap_or_else(|failure| sign_in_again(&written, &failure, &draft)))
}

/// A form of a session: what it is about, and its token.
#[derive(Deserialize)]
struct OfSession {
    token: String,
    #[serde(default)]
    user: String,
    #[serde(default)]
    text: String,
    #[serde(default)]
    post: String,
}

async fn sign_out(State(app): App_, headers: HeaderMap, form: Filled<OfSession>) -> Answer {
    let token = filled(form)?.token;
    let Some(ticket) = Ticket::read(&headers, app.behind) else { return with_cookie(see("/"), &forget_cookie(app.behind)) };
    // Whether the form is ours says its token alone, so that the cluster need not answer for the browser to forget. Only of a session that has gone the form may be
    // any: nothing is lost with it.
    let is_ours = ticket.check(&token);
    let ended = match app.viewer(&headers).await {
        Ok(Some(viewer)) => {
            is_ours?;
            app.network.close_session(&viewer.name, &viewer.digest()).await.map_err(Failure::from)
        }
        Ok(None) => Ok(()),
        Err(failure) => {
            is_ours?;
            Err(failure)
        }
    };
    let page = ended.map_or_else(|failure| failure.only_forgotten().page(None), |()| see("/"));
    with_cookie(page, &forget_cookie(app.behind))
}

async fn sign_out_everywhere(State(app): App_, headers: HeaderMap, form: Filled<OfSession>) -> Answer {
    let viewer = app.author(&headers, &filled(form)?.token).await?;
    app.network.close_sessions(&viewer.name).await?;
    with_cookie(see("/"), &forget_cookie(app.behind))
}

async fn settings(State(app): App_, headers: HeaderMap) -> Answer {
    let viewer = app.viewer(&headers).await?;
    Ok(viewer.map_or_else(|| see("/"), |viewer| html(StatusCode::OK, pages::settings(&viewer, None))))
}

#[derive(Deserialize)]
struct NewPassword {
    token: String,
    old: String,
    new: String,
}

async fn change_password(State(app): App_, headers: HeaderMap, form: Filled<NewPassword>) -> Answer {
    let NewPassword { token, old, new } = filled(form)?;
    let viewer = app.author(&headers, &token).await?;
    let changed = async {
        app.limits.password_change(&viewer.name)?;
        let wrong = || Failure::refused("The old password is not right. Your password was not changed.");
        let old_hash = app.right_hash(&viewer.name, old).await?.ok_or_else(wrong)?;
        let new_hash = app.passwords.hash(new, &viewer.name).await?;
        let (ticket, session) = (Ticket::draw(viewer.name.clone()), Session { expires: now() + SESSION_SECONDS });
        match app.network.change_password(&viewer.name, &old_hash, &new_hash, &ticket.digest(), session).await? {
            Changed::Now => Ok(ticket),
            Changed::OtherPassword => Err(wrong()),
        }
    };
    match changed.await {
        Ok(ticket) => with_cookie(html(StatusCode::OK, pages::password_changed(&ticket)), &ticket.set_cookie(app.behind)),
        Err(failure) => Ok(html(failure.status, pages::settings(&viewer, Some(&failure)))),
    }
}

async fn write(State(app): App_, ConnectInfo(from): ConnectInfo<SocketAddr>, headers: HeaderMap, form: Filled<OfSession>) -> Answer {
    let OfSession { token, text, .. } = filled(form)?;
    let posted = timeout(POST_TIMEOUT, async {
        let viewer = app.author(&headers, &token).await?;
        let post: PostText = text.parse().map_err(|wrong| Failure::refused(sentence(&wrong)))?;
        app.limits.change(&viewer.name, app.source(&headers, from))?;
        app.network.post(&viewer.name, &post).await?;
        app.live.tell(&viewer.name);
        Ok(())
    });
    let Err(failure) = posted.await.unwrap_or_else(|_| Err(Failure::late(&Method::POST))) else { return Ok(see("/")) };
    // What was written is not lost, whatever failed. Where nobody could look whether the session lasts, whom the cookie names may try again.
    Ok(match Ticket::read(&headers, app.behind).filter(|_| !failure.is_signed_out()) {
        Some(viewer) => app.write_on(&viewer, failure.status, Draft { text: &text, wrong: Some(&failure) }).await,
        None => sign_in_again("", &Failure::signed_out_in_writing(), &text),
    })
}

/// A page with what was written and is not posted. Where there is no timeline, it says why the post failed, and not why the timeline did: what failed first is what
/// the user must know, as the post may be there all the same.
fn draft_page(viewer: &Ticket, status: StatusCode, draft: Draft<'_>, timeline: Option<&Timeline>) -> Response {
    let page = match timeline {
        Some(timeline) => pages::home(viewer, timeline, true, draft),
        None => pages::write_again(viewer, draft),
    };
    html(status, page)
}

async fn delete(State(app): App_, ConnectInfo(from): ConnectInfo<SocketAddr>, headers: HeaderMap, form: Filled<OfSession>) -> Answer {
    let OfSession { token, user, post, .. } = filled(form)?;
    let viewer = app.author(&headers, &token).await?;
    let id: PostId = post.parse().map_err(|()| Failure::not_found("There is no such post."))?;
    app.limits.change(&viewer.name, app.source(&headers, from))?;
    // It is sought among the viewer's own, so nobody deletes what another wrote.
    app.network.delete_post(&viewer.name, id).await?;
    app.live.tell(&viewer.name);
    // Back to where the form was.
    Ok(if user == viewer.name.as_str() { see(&format!("/u/{user}")) } else { see("/") })
}

async fn follow(State(app): App_, ConnectInfo(from): ConnectInfo<SocketAddr>, headers: HeaderMap, form: Filled<OfSession>) -> Answer {
    let OfSession { token, user, .. } = filled(form)?;
    let (viewer, user) = (app.author(&headers, &token).await?, name(&user)?);
    app.limits.change(&viewer.name, app.source(&headers, from))?;
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

async fn unfollow(State(app): App_, ConnectInfo(from): ConnectInfo<SocketAddr>, headers: HeaderMap, form: Filled<OfSession>) -> Answer {
    let OfSession { token, user, .. } = filled(form)?;
    let (viewer, user) = (app.author(&headers, &token).await?, name(&user)?);
    app.limits.change(&viewer.name, app.source(&headers, from))?;
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

#[cfg(test)]
mod tests {
    use std::future::pending;

    use bezant_client::Error;
    use http_body_util::BodyExt as _;

    use super::*;

    async fn said(response: Response) -> String {
        let body = response.into_body().collect().await.expect("it is all there").to_bytes();
        String::from_utf8(body.to_vec()).expect("text")
    }

    #[tokio::test]
    async fn what_may_have_been_done_is_said_to_be_so_also_where_the_timeline_fails() {
        let viewer = Ticket::draw("ann".parse().expect("a name"));
        let unknown = || Failure::from(Error::OutcomeUnknown { waited_ms: 1, detail: String::new() });
        let whole = Timeline { posts: Vec::new(), following: Vec::new(), has_more: false };
        for timeline in [None, Some(&whole)] {
            let draft = Draft { text: "hello", wrong: Some(&unknown()) };
            let page = said(draft_page(&viewer, StatusCode::SERVICE_UNAVAILABLE, draft, timeline)).await;
            assert!(page.contains("may have been done") && !page.contains("Nothing was done"), "{page}");
            assert!(page.contains("hello</textarea>") && page.contains(&viewer.form_token()), "what was written is there: {page}");
        }
    }

    #[tokio::test]
    async fn of_a_change_that_takes_too_long_nobody_says_that_nothing_was_done() {
        for (method, words) in [(Method::POST, "may have been done"), (Method::GET, "Nothing was done")] {
            let late = within(Duration::ZERO, &method, pending()).await;
            assert_eq!(late.status(), StatusCode::SERVICE_UNAVAILABLE);
            let page = said(late).await;
            assert!(page.contains(words), "{method}: {page}");
        }
    }
}
