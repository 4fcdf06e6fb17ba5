//! Who is asking: a session's cookie, what the cluster keeps of it, and what proves that a form came from our own page.

use std::time::{SystemTime, UNIX_EPOCH};

use axum::http::HeaderMap;
use axum::http::header::COOKIE;
use buzzer_model::Name;
use sha2::{Digest as _, Sha256};

use crate::app::Behind;
use crate::failure::Failure;

/// How long a session lasts: thirty days.
pub(crate) const SESSION_SECONDS: u64 = 30 * 86_400;
/// The bytes of a session's secret.
const SECRET_BYTES: usize = 32;

/// A session's secret, and whose it is. The browser has it in a cookie. The cluster has its digest, so that a replica that shows its
/// data to a thief lets nobody in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ticket {
    pub(crate) name: Name,
    secret: [u8; SECRET_BYTES],
}

impl Ticket {
    /// A new one.
    pub(crate) fn draw(name: Name) -> Self {
        Self { name, secret: rand::random() }
    }

    /// The one that a request's cookie holds, if any.
    pub(crate) fn read(headers: &HeaderMap, behind: Behind) -> Option<Self> {
        let cookies = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
        let mut pairs = cookies.flat_map(|cookies| cookies.split(';')).filter_map(|pair| pair.trim().split_once('='));
        let (_, value) = pairs.find(|(name, _)| *name == cookie_name(behind))?;
        let (name, secret) = value.split_once('.')?;
        let mut bytes = [0; SECRET_BYTES];
        hex::decode_to_slice(secret, &mut bytes).ok()?;
        Some(Self { name: name.parse().ok()?, secret: bytes })
    }

    /// What the cluster keeps.
    pub(crate) fn digest(&self) -> String {
        self.derived("session")
    }

    /// What our forms carry, and a form on another's page cannot know.
    pub(crate) fn form_token(&self) -> String {
        self.derived("form")
    }

    /// Whether a form is ours, by what it carries.
    pub(crate) fn check(&self, token: &str) -> Result<(), Failure> {
        if self.form_token() == token { Ok(()) } else { Err(Failure::foreign()) }
    }

    /// The header that gives it to the browser.
    pub(crate) fn set_cookie(&self, behind: Behind) -> String {
        let value = format!("{}.{}", self.name, hex::encode(self.secret));
        cookie(&value, SESSION_SECONDS, behind)
    }

    fn derived(&self, purpose: &str) -> String {
        let digest = Sha256::new().chain_update(purpose).chain_update([0]).chain_update(self.secret).finalize();
        hex::encode(digest)
    }
}

/// The header that takes the cookie away.
pub(crate) fn forget_cookie(behind: Behind) -> String {
    cookie("", 0, behind)
}

fn cookie(value: &str, seconds: u64, behind: Behind) -> String {
    let secure = match behind {
        Behind::Nothing => "",
        Behind::HttpsProxy => "; Secure",
    };
    format!("{}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Lax{secure}", cookie_name(behind))
}

/// A browser takes a cookie of such a name from this host over HTTPS alone.
fn cookie_name(behind: Behind) -> &'static str {
    match behind {
        Behind::Nothing => "buzzer",
        Behind::HttpsProxy => "__Host-buzzer",
    }
}

/// The time, in seconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn read(cookie: &str) -> Option<Ticket> {
        let mut headers = HeaderMap::new();
        headers.insert(COOKIE, HeaderValue::from_str(cookie).expect("a header"));
        Ticket::read(&headers, Behind::Nothing)
    }

    #[test]
    fn a_browser_gives_back_what_it_got() {
        let ticket = Ticket::draw("ann".parse().expect("a name"));
        let set = ticket.set_cookie(Behind::Nothing);
        assert!(set.contains("; HttpOnly; SameSite=Lax") && !set.contains("Secure"), "{set}");
        assert!(ticket.set_cookie(Behind::HttpsProxy).starts_with("__Host-buzzer=ann."));
        assert!(ticket.set_cookie(Behind::HttpsProxy).ends_with("; Secure"));
        let pair = set.split(';').next().expect("a pair");
        assert_eq!(read(&format!("other=1; {pair}; more=2")), Some(ticket.clone()));
        assert_ne!(Ticket::draw(ticket.name.clone()), ticket);
        let secret = hex::encode(ticket.secret);
        assert!(![ticket.digest(), ticket.form_token()].contains(&secret) && ticket.digest() != ticket.form_token());
    }

    #[test]
    fn what_is_no_ticket_is_nobodys() {
        for wrong in [
            "",
            "buzzer=",
            "buzzer=ann",
            "buzzer=ann.00",
            "buzzer=A/b.0000000000000000000000000000000000000000000000000000000000000000",
            "x=y",
        ] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }
}
