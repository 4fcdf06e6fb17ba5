//! The site in a real browser: Chromium, driven by the protocol of WebDriver. Where there is none, this is left out, with a word.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpStream;

use super::{PATIENCE, Place, site};

/// Where pictures of the pages go, if anywhere.
const PICTURES: &str = "BUZZER_PICTURES";
/// How WebDriver calls an element.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

/// What no page may show but as text.
const HOSTILE: [&str; 4] = [
    "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">",
    "\" onmouseover=\"document.title='owned'\" x=\"</p></article></li><h1>owned</h1>",
    "\u{202e}gnp.exe \u{5e9}\u{5dc}\u{5d5}\u{5dd} \u{627}\u{644}\u{633}\u{644}\u{627}\u{645}",
    "wwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwww",
];

pub async fn all(place: &Place) {
    let Some(driver) = Driver::start() else {
        eprintln!("left out: the site in a browser, as there is no `chromium` with its `chromedriver` here");
        return;
    };
    let [one, other] = [place.site().await, place.site().await];
    what_is_posted_is_seen_at_once(&driver, one.address, other.address).await;
    what_is_hostile_stays_text(&driver, one.address).await;
    pages_work_without_scripts(&driver, one.address).await;
    what_is_refused_at_first_is_asked_for_again(&driver, one.address).await;
    a_page_behind_another_has_no_stream(&driver, one.address).await;
    a_second_press_sends_nothing(&driver, one.address).await;
    a_password_is_changed(&driver, one.address).await;
    who_is_signed_out_is_told_so_and_loses_no_text(&driver, one.address).await;
    // A stream tells of the timeline as it begins, and ends with its server.
    let cookie = site::sign_up(other.address, "listens").await;
    let mut stream = site::stream(other.address, &cookie).await;
    assert!(site::event(&mut stream).await.is_some_and(|event| event.contains("timeline")));
    tokio::join!(one.stop(), other.stop());
    assert_eq!(site::event(&mut stream).await, None);
}

/// Ann and Bob, each in a browser of their own, and at servers of their own.
async fn what_is_posted_is_seen_at_once(driver: &Driver, first: SocketAddr, second: SocketAddr) {
    let (ann, bob) = (driver.browser(true).await, driver.browser(true).await);
    ann.go(first, "/").await;
    ann.picture("welcome").await;
    ann.sign_up("ann_b").await;
    ann.picture("nothing-yet").await;
    bob.go(first, "/").await;
    bob.sign_up("bob_b").await;
    // Bob finds Ann by her name, and follows her.
    bob.fill("#find", "@Ann_B").await;
    bob.press_enter("#find").await;
    bob.wait_for("h1", "@ann_b").await;
    bob.click("form[action='/follow'] button").await;
    bob.wait_for("form[action='/unfollow'] button", "Unfollow").await;
    bob.wait_for(".counts", "1 follower").await;
    bob.picture("profile").await;
    bob.go(first, "/").await;
    bob.wait_until("the stream is open", "return document.querySelector('#timeline').dataset.live === 'open'").await;
    // Ann posts, and Bob, who touches nothing, sees it.
    ann.fill("#text", "Hello, Bob!\nA second line.").await;
    ann.click(".composer button").await;
    ann.wait_for(".post-text", "Hello, Bob!\nA second line.").await;
    bob.wait_for(".post-text", "Hello, Bob!\nA second line.").await;
    bob.wait_for("#news", "One new post").await;
    bob.picture("live").await;
    // By way of another server it takes a look.
    let away = driver.browser(true).await;
    away.go(second, "/").await;
    away.sign_in("ann_b").await;
    away.fill("#text", "From elsewhere").await;
    away.click(".composer button").await;
    bob.wait_for(".post-text", "From elsewhere").await;
    // Ann deletes the first, and Bob, who touches nothing, sees it no longer.
    ann.go(first, "/u/ann_b").await;
    ann.click(".post:last-of-type summary").await;
    ann.picture("delete").await;
    ann.click(".post:last-of-type form[action='/delete'] button").await;
    ann.wait_until("one is left", "return document.querySelectorAll('.post').length === 1 && location.pathname === '/u/ann_b'").await;
    bob.wait_until("one is left", "return document.querySelectorAll('.post').length === 1").await;
    bob.wait_for(".post-text", "From elsewhere").await;
    // What Bob has begun to write is still there, and what is too long cannot be sent.
    bob.fill("#text", &"x".repeat(281)).await;
    bob.wait_for("#left", "1 too many").await;
    bob.wait_until("the button is off", "return document.querySelector('.composer button').disabled").await;
    // Unfollowed, she is gone, and signed out he is.
    bob.go(first, "/u/ann_b").await;
    bob.click("form[action='/unfollow'] button").await;
    bob.wait_for("form[action='/follow'] button", "Follow").await;
    bob.go(first, "/").await;
    bob.wait_for(".empty h2", "Nothing here yet").await;
    bob.click("form[action='/sign-out'] button").await;
    bob.wait_for("#title-new-password", "Create an account").await;
    for browser in [ann, bob, away] {
        browser.close().await;
    }
}

async fn what_is_hostile_stays_text(driver: &Driver, address: SocketAddr) {
    let browser = driver.browser(true).await;
    browser.go(address, "/").await;
    browser.sign_up("mallory").await;
    for text in HOSTILE {
        browser.fill("#text", text).await;
        browser.click(".composer button").await;
        browser.wait_for(".post-text", text).await;
    }
    for path in ["/", "/u/mallory", "/u/%3Cscript%3Edocument.title='owned'%3C%2Fscript%3E"] {
        browser.go(address, path).await;
        let script = "return [document.title.includes('owned'), document.querySelectorAll('.post-text *').length, document.querySelectorAll('script').length,
                              [...document.querySelectorAll('h1')].some((title) => title.textContent === 'owned'),
                              document.documentElement.scrollWidth > document.documentElement.clientWidth]";
        assert_eq!(browser.run(script).await, json!([false, 0, 1, false, false]), "{path}");
    }
    browser.go(address, "/u/mallory").await;
    browser.picture("hostile").await;
    // On a telephone nothing sticks out either.
    browser.resize(360, 740).await;
    browser.go(address, "/").await;
    assert_eq!(browser.run("return document.documentElement.scrollWidth <= document.documentElement.clientWidth").await, json!(true));
    browser.picture("narrow").await;
    browser.close().await;
}

async fn pages_work_without_scripts(driver: &Driver, address: SocketAddr) {
    let browser = driver.browser(false).await;
    browser.go(address, "/").await;
    browser.sign_up("plain").await;
    browser.fill("#text", "Without a script").await;
    browser.click(".composer button").await;
    browser.wait_for(".post-text", "Without a script").await;
    browser.fill("#text", &"y".repeat(281)).await;
    browser.click(".composer button").await;
    browser.wait_for(".wrong", "A post has at most 280 characters, and this one has 281.").await;
    assert_eq!(browser.text("#left").await.as_deref(), Some("Up to 280 characters"), "no script has run");
    browser.close().await;
}

/// A reader who has as many streams as there may be is told of new posts when one has ended.
async fn what_is_refused_at_first_is_asked_for_again(driver: &Driver, address: SocketAddr) {
    let cookie = site::sign_up(address, "waits").await;
    let mut streams = Vec::new();
    for _ in 0..4 {
        streams.push(site::stream(address, &cookie).await);
    }
    let browser = driver.browser(true).await;
    browser.go(address, "/").await;
    browser.sign_in("waits").await;
    browser.wait_until("there is no stream", "return document.querySelector('#timeline').dataset.live === 'closed'").await;
    drop(streams);
    browser.wait_until("the stream is open", "return document.querySelector('#timeline').dataset.live === 'open'").await;
    browser.close().await;
}

/// A page that nobody looks at takes none of the streams and connections that there may be, and shows what was missed when somebody does.
async fn a_page_behind_another_has_no_stream(driver: &Driver, address: SocketAddr) {
    let browser = driver.browser(true).await;
    browser.go(address, "/").await;
    browser.sign_up("tabs").await;
    // As the browser says it where another page is before this one.
    let look = async |is_hidden: bool| {
        let script = "Object.defineProperty(document, 'hidden', {configurable: true, value: IS_HIDDEN});
                      document.dispatchEvent(new Event('visibilitychange'))";
        browser.run(&script.replace("IS_HIDDEN", &is_hidden.to_string())).await;
    };
    let is_open = "return document.querySelector('#timeline').dataset.live === 'open'";
    browser.wait_until("the stream is open", is_open).await;
    look(true).await;
    assert_eq!(browser.run("return document.querySelector('#timeline').dataset.live").await, json!("closed"));
    // All streams that a user may have are free, once the server has seen the end of this one.
    let cookie = site::sign_in(address, "tabs").await;
    let begun = Instant::now();
    loop {
        let mut streams = Vec::new();
        for _ in 0..4 {
            streams.push(site::begin(address, "/live", None, &[("cookie", &cookie)]).await);
        }
        if streams.iter().all(|stream| stream.status() == 200) {
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "the page keeps its stream");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let token = site::token(address, &cookie).await;
    let posted = site::ask(address, "/post", Some(&format!("token={token}&text=missed")), &[("cookie", &cookie)]).await;
    assert_eq!(posted.status, 303);
    look(false).await;
    browser.wait_for(".post-text", "missed").await;
    browser.wait_until("the stream is open", is_open).await;
    browser.close().await;
}

async fn a_second_press_sends_nothing(driver: &Driver, address: SocketAddr) {
    let browser = driver.browser(true).await;
    browser.go(address, "/").await;
    browser.sign_up("hasty").await;
    browser.fill("#text", "Once").await;
    // What would be sent is counted, and not sent.
    let script = "const form = document.querySelector('.composer form'); let sent = 0;
                  form.addEventListener('submit', (event) => { event.preventDefault(); sent += 1; });
                  form.querySelector('button').click(); form.querySelector('button').click(); return sent";
    assert_eq!(browser.run(script).await, json!(1));
    // Whoever goes on writing may send it.
    browser.fill("#text", "Twice").await;
    assert_eq!(browser.run("return document.querySelector('.composer button').disabled").await, json!(false));
    browser.close().await;
}

async fn a_password_is_changed(driver: &Driver, address: SocketAddr) {
    let browser = driver.browser(true).await;
    browser.go(address, "/").await;
    browser.sign_up("renews").await;
    browser.go(address, "/u/renews").await;
    browser.click("a[href='/settings']").await;
    browser.wait_for("h1", "Change your password").await;
    browser.picture("settings").await;
    browser.fill("#old", "correct horse").await;
    browser.fill("#new", "battery staple").await;
    browser.press_enter("#new").await;
    browser.wait_for("h1", "Your password is changed").await;
    browser.close().await;
}

async fn who_is_signed_out_is_told_so_and_loses_no_text(driver: &Driver, address: SocketAddr) {
    let browser = driver.browser(true).await;
    browser.go(address, "/").await;
    browser.sign_up("forgets").await;
    browser.wait_until("the stream is open", "return document.querySelector('#timeline').dataset.live === 'open'").await;
    browser.fill("#text", "A long thought").await;
    let cookie = site::sign_in(address, "forgets").await;
    let token = site::token(address, &cookie).await;
    let out = site::ask(address, "/sign-out-everywhere", Some(&format!("token={token}")), &[("cookie", &cookie)]).await;
    assert_eq!(out.status, 303);
    browser.wait_for("#news", "You are signed out.").await;
    assert_eq!(browser.run("return document.querySelector('#timeline').dataset.live").await, json!("signed-out"));
    browser.picture("signed-out").await;
    browser.click(".composer button").await;
    browser.wait_for(".wrong", "What you wrote is kept here").await;
    browser.fill("#name-current-password", "forgets").await;
    browser.fill("#password-current-password", "correct horse").await;
    browser.press_enter("#password-current-password").await;
    browser.wait_until("it is there", "return document.querySelector('#text')?.value === 'A long thought'").await;
    browser.click(".composer button").await;
    browser.wait_for(".post-text", "A long thought").await;
    browser.close().await;
}

/// `chromedriver`, at a port of its own choice.
struct Driver {
    process: Child,
    address: SocketAddr,
    _home: TempDir,
}

impl Driver {
    /// Starts it, where it and its browser are.
    fn start() -> Option<Self> {
        let on_path =
            |name: &str| std::env::split_paths(&std::env::var_os("PATH")?).map(|folder| folder.join(name)).find(|path| path.is_file());
        let (driver, _): (PathBuf, PathBuf) = (on_path("chromedriver")?, on_path("chromium")?);
        // The browser leaves things in its home and in the temporary folder: these are gone with the test.
        let home = TempDir::new().expect("a temporary folder");
        let mut command = Command::new(driver);
        command.arg("--port=0").env("HOME", home.path()).env("TMPDIR", home.path()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = command.spawn().expect("chromedriver starts");
        let said = BufReader::new(process.stdout.take().expect("it is piped"));
        let port = said
            .lines()
            .map_while(Result::ok)
            .find_map(|line| line.split_once("successfully on port ")?.1.trim_end_matches('.').parse().ok());
        Some(Self { process, address: SocketAddr::from(([127, 0, 0, 1], port.expect("it says its port"))), _home: home })
    }

    /// A browser with nothing in its memory, with scripts or without.
    async fn browser(&self, has_scripts: bool) -> Browser {
        let preferences = if has_scripts { json!({}) } else { json!({"profile.managed_default_content_settings.javascript": 2}) };
        // Tests may run as root, or in a container with little shared memory.
        let options = json!({
            "args": ["--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--window-size=1000,900", "--lang=en"], "prefs": preferences,
        });
        let wanted = json!({"capabilities": {"alwaysMatch": {"browserName": "chrome", "goog:chromeOptions": options}}});
        let made = command(self.address, Method::POST, "/session", Some(&wanted)).await.expect("a browser starts");
        let id = made["sessionId"].as_str().expect("it has a name");
        Browser { driver: self.address, session: format!("/session/{id}") }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        // Its browsers are closed by then, or end when their pipe to it does.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

struct Browser {
    driver: SocketAddr,
    session: String,
}

impl Browser {
    async fn ask(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Value, String> {
        command(self.driver, method, &format!("{}{path}", self.session), body).await
    }

    async fn go(&self, address: SocketAddr, path: &str) {
        self.ask(Method::POST, "/url", Some(&json!({"url": format!("http://{address}{path}")}))).await.expect("it goes there");
    }

    async fn sign_up(&self, name: &str) {
        self.enter("new-password", name).await;
    }

    async fn sign_in(&self, name: &str) {
        self.enter("current-password", name).await;
    }

    async fn enter(&self, kind: &str, name: &str) {
        self.fill(&format!("#name-{kind}"), name).await;
        self.fill(&format!("#password-{kind}"), "correct horse").await;
        self.press_enter(&format!("#password-{kind}")).await;
        self.wait_for(".self-name", &format!("@{name}")).await;
    }

    async fn find(&self, selector: &str) -> Result<String, String> {
        let found = self.ask(Method::POST, "/element", Some(&json!({"using": "css selector", "value": selector}))).await?;
        found[ELEMENT].as_str().map(str::to_owned).ok_or_else(|| format!("no element: {found}"))
    }

    async fn text(&self, selector: &str) -> Option<String> {
        let element = self.find(selector).await.ok()?;
        // What it holds, hidden or not.
        let text = self.ask(Method::GET, &format!("/element/{element}/property/textContent"), None).await.ok()?;
        text.as_str().map(str::to_owned)
    }

    /// Writes into a field, in the place of what is there. The keyboard's protocol has no letters beyond the basic plane, so this is by the
    /// protocol's own way of typing.
    async fn fill(&self, selector: &str, text: &str) {
        let element = self.find(selector).await.expect(selector);
        self.ask(Method::POST, &format!("/element/{element}/clear"), Some(&json!({}))).await.expect(selector);
        self.ask(Method::POST, &format!("/element/{element}/value"), Some(&json!({"text": text}))).await.expect(selector);
    }

    async fn press_enter(&self, selector: &str) {
        let element = self.find(selector).await.expect(selector);
        self.ask(Method::POST, &format!("/element/{element}/value"), Some(&json!({"text": "\u{e007}"}))).await.expect(selector);
    }

    async fn click(&self, selector: &str) {
        let element = self.find(selector).await.expect(selector);
        self.ask(Method::POST, &format!("/element/{element}/click"), Some(&json!({}))).await.expect(selector);
    }

    async fn run(&self, script: &str) -> Value {
        self.ask(Method::POST, "/execute/sync", Some(&json!({"script": script, "args": []}))).await.expect(script)
    }

    /// Waits until an element has this text within it.
    async fn wait_for(&self, selector: &str, text: &str) {
        let begun = Instant::now();
        loop {
            let found = self.text(selector).await;
            if found.as_deref().is_some_and(|found| found.contains(text)) {
                return;
            }
            assert!(begun.elapsed() < PATIENCE, "{selector} has {found:?}, not {text:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn wait_until(&self, what: &str, script: &str) {
        let begun = Instant::now();
        while self.run(script).await != json!(true) {
            assert!(begun.elapsed() < PATIENCE, "not: {what}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn resize(&self, width: u32, height: u32) {
        self.ask(Method::POST, "/window/rect", Some(&json!({"width": width, "height": height}))).await.expect("it can be made smaller");
    }

    /// Keeps a picture of the page, for whoever wants to look.
    async fn picture(&self, name: &str) {
        let Some(folder) = std::env::var_os(PICTURES) else { return };
        let picture = self.ask(Method::GET, "/screenshot", None).await.expect("a picture");
        std::fs::write(PathBuf::from(folder).join(format!("{name}.base64")), picture.as_str().expect("text")).expect("written");
    }

    async fn close(self) {
        self.ask(Method::DELETE, "", None).await.expect("it closes");
    }
}

/// Sends the driver a command; gives its value, or what went wrong.
async fn command(driver: SocketAddr, method: Method, path: &str, body: Option<&Value>) -> Result<Value, String> {
    let ask = async {
        let stream = TcpStream::connect(driver).await.map_err(|error| error.to_string())?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
        tokio::spawn(connection);
        let body = Full::new(Bytes::from(body.map_or_else(String::new, Value::to_string)));
        let request =
            Request::builder().method(method).uri(path).header("host", driver.to_string()).header("content-type", "application/json");
        let answer =
            sender.send_request(request.body(body).map_err(|error| error.to_string())?).await.map_err(|error| error.to_string())?;
        let is_well = answer.status().is_success();
        let body = answer.into_body().collect().await.map_err(|error| error.to_string())?.to_bytes();
        let said: Value = serde_json::from_slice(&body).map_err(|error| error.to_string())?;
        if is_well { Ok(said["value"].clone()) } else { Err(said["value"]["message"].to_string()) }
    };
    tokio::time::timeout(PATIENCE, ask).await.map_err(|_| "no answer".to_owned())?
}
