//! The site as programs meet it that are no browsers, or bad ones.

use std::net::SocketAddr;
use std::time::Duration;

use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::{PATIENCE, Place};

pub async fn all(place: &Place) {
    let site = place.site().await;
    let address = site.address;
    every_answer_tells_the_browser_what_it_may_do(address).await;
    a_session_begins_and_ends(address).await;
    forms_of_others_change_nothing(address).await;
    what_is_too_long_or_no_form_is_refused(address).await;
    guessing_passwords_is_slow(address).await;
    a_stream_of_news_ends_with_the_server(address, site).await;
}

/// What was answered.
pub struct Answer {
    pub status: u16,
    pub headers: hyper::HeaderMap,
    pub body: String,
}

impl Answer {
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().expect("text"))
    }
}

/// Asks for a page, or with a form sends it; with more headers.
pub async fn ask(address: SocketAddr, path: &str, form: Option<&str>, headers: &[(&str, &str)]) -> Answer {
    let answer = begin(address, path, form, headers).await;
    let (head, body) = answer.into_parts();
    let body = timeout(PATIENCE, body.collect()).await.expect("it answers").expect("it answers").to_bytes();
    Answer { status: head.status.as_u16(), headers: head.headers, body: String::from_utf8(body.to_vec()).expect("text") }
}

/// The same, without waiting for the end of the answer.
pub async fn begin(address: SocketAddr, path: &str, form: Option<&str>, headers: &[(&str, &str)]) -> Response<Incoming> {
    let stream = TcpStream::connect(address).await.expect("it listens");
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.expect("it speaks HTTP");
    tokio::spawn(connection);
    let mut request = Request::builder().uri(path).header("host", address.to_string());
    if form.is_some() {
        request = request.method("POST").header("content-type", "application/x-www-form-urlencoded");
    }
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let body = Full::new(Bytes::from(form.unwrap_or_default().to_owned()));
    timeout(PATIENCE, sender.send_request(request.body(body).expect("a request"))).await.expect("it answers").expect("it answers")
}

/// Makes an account; gives its cookie.
pub async fn sign_up(address: SocketAddr, name: &str) -> String {
    sign_up_from(address, name, &[]).await
}

/// The same, with more headers.
pub async fn sign_up_from(address: SocketAddr, name: &str, headers: &[(&str, &str)]) -> String {
    let made = ask(address, "/sign-up", Some(&format!("name={name}&password=correct+horse")), headers).await;
    assert_eq!((made.status, made.header("location")), (303, "/"), "{}", made.body);
    made.header("set-cookie").split(';').next().expect("a pair").to_owned()
}

/// Signs in with the password that [`sign_up`] has chosen; gives the cookie.
pub async fn sign_in(address: SocketAddr, name: &str) -> String {
    let entered = ask(address, "/sign-in", Some(&format!("name={name}&password=correct+horse")), &[]).await;
    assert_eq!(entered.status, 303, "{}", entered.body);
    entered.header("set-cookie").split(';').next().expect("a pair").to_owned()
}

/// What the forms of a page carry.
pub async fn token(address: SocketAddr, cookie: &str) -> String {
    let page = ask(address, "/", None, &[("cookie", cookie)]).await.body;
    let (_, after) = page.split_once("name=\"token\" value=\"").expect("a form");
    after.split('"').next().expect("a value").to_owned()
}

async fn every_answer_tells_the_browser_what_it_may_do(address: SocketAddr) {
    for (path, status) in [
        ("/", 200),
        ("/style.css", 200),
        ("/buzzer.js", 200),
        ("/u/nobody_here", 404),
        ("/u/<script>", 422),
        ("/none", 404),
        ("/post", 405),
        ("/?before=x", 404),
    ] {
        let answer = ask(address, &path.replace('<', "%3C").replace('>', "%3E"), None, &[]).await;
        assert_eq!(answer.status, status, "{path}");
        assert!(answer.header("content-security-policy").starts_with("default-src 'none'; script-src 'self';"), "{path}");
        assert_eq!((answer.header("x-content-type-options"), answer.header("x-frame-options")), ("nosniff", "DENY"), "{path}");
    }
    let found = ask(address, "/find?name=%40Ann", None, &[]).await;
    assert_eq!((found.status, found.header("location")), (303, "/u/ann"));
}

async fn a_session_begins_and_ends(address: SocketAddr) {
    let cookie = sign_up(address, "opens").await;
    let taken = ask(address, "/sign-up", Some("name=opens&password=battery+staple"), &[]).await;
    assert!(taken.status == 422 && taken.body.contains("is taken") && taken.body.contains("value=\"opens\""), "{}", taken.body);
    // By whoever has just taken it, with a second press.
    let twice = ask(address, "/sign-up", Some("name=opens&password=correct+horse"), &[]).await;
    assert!(twice.status == 303 && twice.header("set-cookie").starts_with("buzzer=opens."), "{}", twice.body);
    for form in ["name=opens&password=wrong+horse", "name=who&password=correct+horse", "name=%3Cb%3E&password=correct+horse"] {
        let wrong = ask(address, "/sign-in", Some(form), &[]).await;
        assert!(wrong.status == 401 && wrong.body.contains("no user of that name with that password"), "{form}: {}", wrong.body);
        assert!(wrong.header("set-cookie").is_empty());
    }
    let other = ask(address, "/sign-in", Some("name=%40Opens&password=correct+horse"), &[]).await;
    let other = other.header("set-cookie").split(';').next().expect("a pair").to_owned();
    assert_ne!(other, cookie);
    let of_cookie = token(address, &cookie).await;
    assert_ne!(of_cookie, token(address, &other).await);
    let out = ask(address, "/sign-out", Some(&format!("token={of_cookie}")), &[("cookie", &cookie)]).await;
    assert!(out.status == 303 && out.header("set-cookie").contains("Max-Age=0"));
    // The ticket that the browser was to forget is worth nothing, and the other one lasts.
    assert!(ask(address, "/", None, &[("cookie", &cookie)]).await.body.contains("Create an account"));
    assert!(ask(address, "/", None, &[("cookie", &other)]).await.body.contains("@opens"));
    assert_eq!(ask(address, "/timeline", None, &[("cookie", &cookie)]).await.status, 401);
    // Whoever signs out where the session has gone is signed out; but not by another's page where it lasts.
    let out = ask(address, "/sign-out", Some(&format!("token={of_cookie}")), &[("cookie", &cookie)]).await;
    assert!(out.status == 303 && out.header("set-cookie").contains("Max-Age=0"), "{}", out.status);
    let foreign = ask(address, "/sign-out", Some(&format!("token={of_cookie}")), &[("cookie", &other)]).await;
    assert!(foreign.status == 403 && foreign.header("set-cookie").is_empty());
    // What fails is said on a page with the bar of those who are signed in.
    for path in ["/u/nobody_here", "/none"] {
        let failed = ask(address, path, None, &[("cookie", &other)]).await;
        assert!(failed.status == 404 && failed.body.contains("@opens") && failed.body.contains("/sign-out"), "{path}: {}", failed.body);
        assert!(!ask(address, path, None, &[]).await.body.contains("/sign-out"), "{path}");
    }
}

async fn forms_of_others_change_nothing(address: SocketAddr) {
    let (cookie, stranger) = (sign_up(address, "victim").await, sign_up(address, "stranger").await);
    let (own, foreign) = (token(address, &cookie).await, token(address, &stranger).await);
    let post = |token: &str| format!("token={token}&text=forged");
    for form in [post(""), post(&foreign), "text=forged".to_owned()] {
        let refused = ask(address, "/post", Some(&form), &[("cookie", &cookie)]).await;
        assert!(refused.status == 403 || form.starts_with("text") && refused.status == 422, "{form}: {}", refused.status);
    }
    for header in [("origin", "http://evil.example"), ("sec-fetch-site", "cross-site")] {
        let refused = ask(address, "/post", Some(&post(&own)), &[("cookie", &cookie), header]).await;
        assert!(refused.status == 403 && refused.body.contains("This form is not valid"), "{header:?}");
    }
    assert_eq!(ask(address, "/post", Some(&post(&own)), &[]).await.status, 401, "without a session");
    assert!(!ask(address, "/u/victim", None, &[]).await.body.contains("forged"));
    assert_eq!(ask(address, "/post", Some(&format!("token={own}&text=mine")), &[("cookie", &cookie)]).await.status, 303);
    assert!(ask(address, "/u/victim", None, &[]).await.body.contains("mine"));
    let follow = ask(address, "/follow", Some(&format!("token={own}&user=stranger")), &[("cookie", &cookie)]).await;
    assert_eq!((follow.status, follow.header("location")), (303, "/u/stranger"));
    assert!(ask(address, "/u/stranger/followers", None, &[]).await.body.contains("@victim"));
    assert!(ask(address, "/u/victim/following", None, &[]).await.body.contains("@stranger"));
    assert_eq!(ask(address, "/follow", Some(&format!("token={own}&user=nobody_here")), &[("cookie", &cookie)]).await.status, 404);
    assert_eq!(ask(address, "/follow", Some(&format!("token={own}&user=victim")), &[("cookie", &cookie)]).await.status, 422);
}

async fn what_is_too_long_or_no_form_is_refused(address: SocketAddr) {
    let cookie = sign_up(address, "verbose").await;
    let token = token(address, &cookie).await;
    let long = ask(address, "/post", Some(&format!("token={token}&text={}", "y".repeat(281))), &[("cookie", &cookie)]).await;
    assert!(
        long.status == 422 && long.body.contains("this one has 281") && long.body.contains(&"y".repeat(281)),
        "what was written is not lost"
    );
    assert_eq!(
        ask(address, "/post", Some(&format!("token={token}&text={}", "y".repeat(20_000))), &[("cookie", &cookie)]).await.status,
        413
    );
    assert_eq!(ask(address, "/post", Some(&format!("token={token}&text=%07")), &[("cookie", &cookie)]).await.status, 422);
    assert_eq!(ask(address, "/post", Some("nonsense"), &[("cookie", &cookie)]).await.status, 422);
    for form in ["name=short&password=1234567", "name=a%2Fb&password=correct+horse", "name=&password=correct+horse"] {
        assert_eq!(ask(address, "/sign-up", Some(form), &[]).await.status, 422, "{form}");
    }
}

async fn guessing_passwords_is_slow(address: SocketAddr) {
    let mut statuses = Vec::new();
    for guess in 0..12 {
        statuses.push(ask(address, "/sign-in", Some(&format!("name=guessed&password=guess+number+{guess}")), &[]).await.status);
    }
    assert!(statuses[..10].iter().all(|status| *status == 401) && statuses[10..] == [429, 429], "{statuses:?}");
}

async fn a_stream_of_news_ends_with_the_server(address: SocketAddr, site: super::Site) {
    let cookie = "buzzer=nobody.00";
    assert_eq!(begin(address, "/live", None, &[("cookie", cookie)]).await.status(), 401);
    // The address has signed in often enough by now; so a server of its own.
    site.stop().await;
    assert!(TcpStream::connect(address).await.is_err());
}

/// A reader's stream tells of a post of somebody whom they follow; it is used by servers of their own.
pub async fn stream(address: SocketAddr, cookie: &str) -> Incoming {
    let answer = begin(address, "/live", None, &[("cookie", cookie)]).await;
    assert_eq!(answer.status().as_u16(), 200);
    answer.into_body()
}

/// Waits for the next event of a stream; nothing when it has ended.
pub async fn event(stream: &mut Incoming) -> Option<String> {
    loop {
        let frame = timeout(PATIENCE, stream.frame()).await.expect("something comes")?.ok()?;
        let text = String::from_utf8(frame.into_data().ok()?.to_vec()).expect("text");
        if text.starts_with("event:") {
            return Some(text);
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
