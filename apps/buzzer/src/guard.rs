//! What stands before every page: where a form comes from, what a browser may do with a page, how often something may be tried, and how much
//! of something one may have.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::extract::Request;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, HOST, HeaderName, HeaderValue, ORIGIN, REFERRER_POLICY, STRICT_TRANSPORT_SECURITY,
    X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use axum::http::{HeaderMap, Method};
use axum::response::Response;

use crate::app::Behind;
use crate::source::{Site, Source, Subnet};

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

/// How many times what a subnet may its whole site may: enough for a house or an office with several subnets.
const SITE_TIMES: u32 = 4;

/// Lets each key do something so many times within a time.
#[derive(Debug)]
pub(crate) struct RateLimit<K> {
    tries_max: u32,
    window: Duration,
    windows: Mutex<Windows<K>>,
}

/// What each key has tried of late.
#[derive(Debug)]
struct Windows<K> {
    of: HashMap<K, Window>,
    /// All these keys, that whose window began first before the others.
    oldest_first: VecDeque<K>,
}

/// When a key tried first, and how often since.
#[derive(Debug)]
struct Window {
    begun: Instant,
    tries: u32,
}

/// The usual window.
pub(crate) const MINUTE: Duration = Duration::from_secs(60);
/// The window of what is done once and lasts.
pub(crate) const HOUR: Duration = Duration::from_secs(3_600);
/// Of how many keys it is remembered what they tried. When there are more, the oldest is forgotten: whoever has so many keys may try more often than others,
/// but keeps nobody out.
const KEYS_MAX: usize = 100_000;

impl<K: Clone + Eq + Hash> RateLimit<K> {
    pub(crate) fn new(tries_max: u32, window: Duration) -> Self {
        Self { tries_max, window, windows: Mutex::new(Windows { of: HashMap::new(), oldest_first: VecDeque::new() }) }
    }

    /// Counts a try of `key`; or says in how many seconds it may try again.
    pub(crate) fn admit(&self, key: K) -> Result<(), u64> {
        self.admit_at(key, Instant::now(), KEYS_MAX)
    }

    /// A try of `key` that was counted counts no longer.
    pub(crate) fn give_back(&self, key: &K) {
        let mut windows = self.windows.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(window) = windows.of.get_mut(key) {
            window.tries = window.tries.saturating_sub(1);
        }
    }

    fn admit_at(&self, key: K, now: Instant, keys_max: usize) -> Result<(), u64> {
        let mut windows = self.windows.lock().unwrap_or_else(PoisonError::into_inner);
        while windows.first_begun().is_some_and(|begun| now.duration_since(begun) >= self.window) {
            windows.forget_first();
        }
        if !windows.of.contains_key(&key) {
            if windows.of.len() >= keys_max {
                windows.forget_first();
            }
            windows.oldest_first.push_back(key.clone());
        }
        let window = windows.of.entry(key).or_insert(Window { begun: now, tries: 0 });
        if window.tries >= self.tries_max {
            return Err(self.window.saturating_sub(now.duration_since(window.begun)).as_secs().max(1));
        }
        window.tries += 1;
        Ok(())
    }
}

impl<K: Eq + Hash> Windows<K> {
    fn first_begun(&self) -> Option<Instant> {
        self.oldest_first.front().and_then(|key| self.of.get(key)).map(|window| window.begun)
    }

    fn forget_first(&mut self) {
        if let Some(key) = self.oldest_first.pop_front() {
            self.of.remove(&key);
        }
    }
}

/// Lets each key do something so many times from one subnet, and [`SITE_TIMES`] as often from one site.
#[derive(Debug)]
pub(crate) struct SourceLimit<K> {
    of_subnets: RateLimit<(K, Subnet)>,
    of_sites: RateLimit<(K, Site)>,
}

impl<K: Clone + Eq + Hash> SourceLimit<K> {
    pub(crate) fn new(tries_max: u32, window: Duration) -> Self {
        Self { of_subnets: RateLimit::new(tries_max, window), of_sites: RateLimit::new(tries_max * SITE_TIMES, window) }
    }

    /// Counts a try of `key` from there; or says in how many seconds it may try again.
    pub(crate) fn admit(&self, key: K, from: Source) -> Result<(), u64> {
        // The subnet first: one that tries too often takes nothing from the others of its site.
        self.of_subnets.admit((key.clone(), from.subnet))?;
        from.site.map_or(Ok(()), |site| self.of_sites.admit((key, site)))
    }

    /// A try of `key` from there that was counted counts no longer.
    pub(crate) fn give_back(&self, key: K, from: Source) {
        self.of_subnets.give_back(&(key.clone(), from.subnet));
        if let Some(site) = from.site {
            self.of_sites.give_back(&(key, site));
        }
    }
}

/// Lets each key have so many of something at a time.
#[derive(Debug)]
pub(crate) struct Shares<K> {
    a_key: usize,
    taken: Arc<Mutex<HashMap<K, usize>>>,
}

/// One of them. It is free again when this goes.
#[derive(Debug)]
pub(crate) struct Share<K: Eq + Hash> {
    key: K,
    taken: Arc<Mutex<HashMap<K, usize>>>,
}

impl<K: Clone + Eq + Hash> Shares<K> {
    pub(crate) fn new(a_key: usize) -> Self {
        Self { a_key, taken: Arc::default() }
    }

    /// One more for `key`, unless it has as many as it may.
    pub(crate) fn take(&self, key: K) -> Option<Share<K>> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if taken.get(&key).is_some_and(|own| *own >= self.a_key) {
            return None;
        }
        *taken.entry(key.clone()).or_default() += 1;
        Some(Share { key, taken: Arc::clone(&self.taken) })
    }
}

impl<K: Eq + Hash> Drop for Share<K> {
    fn drop(&mut self) {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = taken.get_mut(&self.key) {
            *own -= 1;
            if *own == 0 {
                taken.remove(&self.key);
            }
        }
    }
}

/// Lets each subnet have so many of something at a time, and each site [`SITE_TIMES`] as many.
#[derive(Debug)]
pub(crate) struct SourceShares {
    of_subnets: Shares<Subnet>,
    of_sites: Shares<Site>,
}

/// One of them, as a subnet's and as its site's.
pub(crate) type SourceShare = (Share<Subnet>, Option<Share<Site>>);

impl SourceShares {
    pub(crate) fn new(a_subnet: usize) -> Self {
        Self { of_subnets: Shares::new(a_subnet), of_sites: Shares::new(a_subnet * SITE_TIMES as usize) }
    }

    /// One more for whoever is there, unless they have as many as they may.
    pub(crate) fn take(&self, from: Source) -> Option<SourceShare> {
        let of_subnet = self.of_subnets.take(from.subnet)?;
        match from.site {
            None => Some((of_subnet, None)),
            Some(site) => Some((of_subnet, Some(self.of_sites.take(site)?))),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

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
        let (limit, begin) = (RateLimit::new(2, MINUTE), Instant::now());
        let admit = |key: &'static str, seconds: u64| limit.admit_at(key, begin + Duration::from_secs(seconds), 2);
        assert_eq!([admit("a", 0), admit("a", 1), admit("a", 20), admit("b", 20)], [Ok(()), Ok(()), Err(40), Ok(())]);
        assert_eq!([admit("a", 60), admit("a", 61), admit("a", 62)], [Ok(()), Ok(()), Err(58)], "minutes end");
    }

    #[test]
    fn strangers_who_fill_the_table_keep_nobody_out() {
        let (limit, now) = (RateLimit::new(1, MINUTE), Instant::now());
        for stranger in 0..1_000 {
            assert_eq!(limit.admit_at(stranger, now, 10), Ok(()));
        }
        assert_eq!(limit.admit_at(1_000, now, 10), Ok(()), "there is room for one more");
        assert_eq!(limit.admit_at(1_000, now, 10), Err(60), "who is counted as all others are");
        assert_eq!(limit.admit_at(992, now, 10), Err(60), "and only the oldest were forgotten");
        let windows = limit.windows.lock().expect("nobody panicked");
        assert_eq!((windows.of.len(), windows.oldest_first.len()), (10, 10));
    }

    /// An address of a subnet of a site.
    fn within(site: u16, subnet: u16) -> Source {
        Source::from(IpAddr::from([0x2001, 0xdb8, site, subnet, 0, 0, 0, 1]))
    }

    #[test]
    fn all_subnets_of_a_site_may_try_as_often_as_four_together() {
        let limit = SourceLimit::new(2, MINUTE);
        for subnet in 0..4 {
            assert_eq!([(); 3].map(|()| limit.admit((), within(1, subnet)).is_ok()), [true, true, false]);
        }
        assert!(limit.admit((), within(1, 4)).is_err(), "a fifth subnet finds the site's tries used up");
        assert_eq!(limit.admit((), within(2, 4)), Ok(()), "another site does not");
        for last in 0..=255 {
            assert_eq!(limit.admit((), IpAddr::from([192, 0, 2, last]).into()), Ok(()), "IPv4 addresses are counted by themselves");
        }
    }

    #[test]
    fn all_subnets_of_a_site_have_as_much_as_four_together() {
        let shares = SourceShares::new(1);
        let mut taken: Vec<_> = (0..4).map(|subnet| shares.take(within(1, subnet))).collect();
        assert!(taken.iter().all(Option::is_some) && shares.take(within(1, 0)).is_none() && shares.take(within(1, 4)).is_none());
        assert!(shares.take(within(2, 4)).is_some());
        taken.clear();
        assert!(shares.take(within(1, 4)).is_some(), "all were given back");
    }

    #[test]
    fn each_has_a_share_and_gives_it_back() {
        let shares = Shares::new(2);
        let one = shares.take("a");
        let other = shares.take("a");
        assert!(one.is_some() && other.is_some() && shares.take("a").is_none() && shares.take("b").is_some());
        drop(one);
        assert!(shares.take("a").is_some());
        drop(other);
        assert!(shares.taken.lock().expect("nobody panicked").is_empty(), "of those who have none nothing is kept");
    }
}
