//! What stands before every page: where a form comes from, what a browser may do with a page, and how often something may be tried.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::extract::Request;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, HOST, HeaderName, HeaderValue, ORIGIN, REFERRER_POLICY, STRICT_TRANSPORT_SECURITY,
    X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use axum::http::{HeaderMap, Method};
use axum::response::Response;

use crate::app::Behind;

/// Nothing but what comes from here: no script within a page, no frame around it, no form to elsewhere.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; \
                      frame-ancestors 'none'";

/// Whether a request that changes something comes from a page of ours, by what browsers say of it. A program that says nothing has no
/// cookies that another's page could make it send.
pub(crate) fn is_ours(request: &Request) -> bool {
    if matches!(*request.method(), Method::GET | Method::HEAD) {
        return true;
    }
    let headers = request.headers();
    let said = |name: &HeaderName| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
    if let Some(site) = said(&HeaderName::from_static("sec-fetch-site")) {
        return site == "same-origin" || site == "none";
    }
    match (said(&ORIGIN), said(&HOST)) {
        (None, _) => true,
        (Some(origin), Some(host)) => origin.split_once("://").is_some_and(|(_, authority)| authority == host),
        (Some(_), None) => false,
    }
}

/// Tells the browser what it may do with an answer.
pub(crate) fn harden(response: &mut Response, behind: Behind) {
    let headers = response.headers_mut();
    let set = |headers: &mut HeaderMap, name, value| drop(headers.insert(name, HeaderValue::from_static(value)));
    set(headers, CONTENT_SECURITY_POLICY, POLICY);
    set(headers, X_CONTENT_TYPE_OPTIONS, "nosniff");
    set(headers, X_FRAME_OPTIONS, "DENY");
    set(headers, REFERRER_POLICY, "same-origin");
    set(headers, HeaderName::from_static("cross-origin-opener-policy"), "same-origin");
    set(headers, HeaderName::from_static("cross-origin-resource-policy"), "same-origin");
    if !headers.contains_key(CACHE_CONTROL) {
        set(headers, CACHE_CONTROL, "no-store");
    }
    if behind == Behind::HttpsProxy {
        set(headers, STRICT_TRANSPORT_SECURITY, "max-age=31536000");
    }
}

/// Lets each key do something so many times a minute.
#[derive(Debug)]
pub(crate) struct RateLimit<K> {
    a_minute: u32,
    windows: Mutex<HashMap<K, Window>>,
}

/// A minute of one key's, and how often it tried.
#[derive(Debug)]
struct Window {
    begun: Instant,
    tries: u32,
}

/// A minute.
const WINDOW: Duration = Duration::from_secs(60);
/// Of how many keys the last minute is remembered. When there are more, new ones wait.
const KEYS_MAX: usize = 100_000;

impl<K: Eq + Hash> RateLimit<K> {
    pub(crate) fn new(a_minute: u32) -> Self {
        Self { a_minute, windows: Mutex::new(HashMap::new()) }
    }

    /// Counts a try of `key`; or says in how many seconds it may try again.
    pub(crate) fn admit(&self, key: K) -> Result<(), u64> {
        self.admit_at(key, Instant::now(), KEYS_MAX)
    }

    fn admit_at(&self, key: K, now: Instant, keys_max: usize) -> Result<(), u64> {
        let mut windows = self.windows.lock().unwrap_or_else(PoisonError::into_inner);
        let is_over = |window: &Window| now.duration_since(window.begun) >= WINDOW;
        if windows.len() >= keys_max && !windows.contains_key(&key) {
            windows.retain(|_, window| !is_over(window));
            if windows.len() >= keys_max {
                return Err(WINDOW.as_secs());
            }
        }
        let window = windows.entry(key).or_insert(Window { begun: now, tries: 0 });
        if is_over(window) {
            *window = Window { begun: now, tries: 0 };
        }
        if window.tries >= self.a_minute {
            return Err((WINDOW - now.duration_since(window.begun)).as_secs().max(1));
        }
        window.tries += 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;

    #[test]
    fn a_form_on_anothers_page_is_not_ours() {
        let request = |method: &str, headers: &[(&str, &str)]| {
            let mut request = Request::builder().method(method).uri("/post").header("host", "buzzer.example");
            for (name, value) in headers {
                request = request.header(*name, *value);
            }
            is_ours(&request.body(Body::empty()).expect("a request"))
        };
        assert!(request("GET", &[("sec-fetch-site", "cross-site")]));
        assert!(request("POST", &[]) && request("POST", &[("origin", "https://buzzer.example")]));
        assert!(request("POST", &[("sec-fetch-site", "same-origin")]) && request("POST", &[("sec-fetch-site", "none")]));
        for foreign in
            [("sec-fetch-site", "cross-site"), ("sec-fetch-site", "same-site"), ("origin", "https://evil.example"), ("origin", "null")]
        {
            assert!(!request("POST", &[foreign]), "{foreign:?}");
        }
    }

    #[test]
    fn whoever_tries_too_often_waits_and_others_do_not() {
        let (limit, begin) = (RateLimit::new(2), Instant::now());
        let admit = |key: &'static str, seconds: u64| limit.admit_at(key, begin + Duration::from_secs(seconds), 2);
        assert_eq!([admit("a", 0), admit("a", 1), admit("a", 20), admit("b", 20)], [Ok(()), Ok(()), Err(40), Ok(())]);
        assert_eq!(admit("c", 30), Err(60), "there is no room for more keys");
        assert_eq!([admit("a", 60), admit("c", 90)], [Ok(()), Ok(())], "minutes end");
    }
}
