//! What addresses a name has, asked anew for each attempt to connect: a host may come back with another one.

use std::net::SocketAddr;
use std::pin::Pin;
use std::time::Duration;

use tokio::time::timeout;

/// What the system says of a name.
pub(crate) type Answer = std::io::Result<Vec<SocketAddr>>;
type Asked = Pin<Box<dyn Future<Output = Answer> + Send>>;

/// Asks for the addresses of one host at a time.
#[derive(Default)]
pub(crate) struct Lookup {
    /// What was asked for, and is not answered yet. A thread of the system's waits for it, so nothing is asked beside it.
    asked: Option<(String, Asked)>,
}

/// Why there are no addresses.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NoAddress {
    /// The system has said so.
    None(String),
    /// It has not answered in time.
    NoAnswer,
}

impl Lookup {
    /// The addresses of `place`, a host and a port.
    pub async fn addresses(&mut self, place: &str, limit: Duration) -> Result<Vec<SocketAddr>, NoAddress> {
        let ask = |place: String| -> Asked { Box::pin(async move { Ok(tokio::net::lookup_host(place).await?.collect()) }) };
        self.addresses_by(ask, place, limit).await
    }

    async fn addresses_by(
        &mut self,
        ask: impl FnOnce(String) -> Asked,
        place: &str,
        limit: Duration,
    ) -> Result<Vec<SocketAddr>, NoAddress> {
        let (asked_for, asked) = self.asked.get_or_insert_with(|| (place.to_owned(), ask(place.to_owned())));
        let is_meant = asked_for.as_str() == place;
        let Ok(answer) = timeout(limit, asked).await else { return Err(NoAddress::NoAnswer) };
        self.asked = None;
        match answer {
            // Of another place, where the host was before. The next attempt asks for this one.
            _ if !is_meant => Err(NoAddress::NoAnswer),
            Ok(found) if found.is_empty() => Err(NoAddress::None("the host has no address".to_owned())),
            Ok(found) => Ok(found),
            Err(error) => Err(NoAddress::None(error.to_string())),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(5);

    fn address(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    fn answers(answer: Answer) -> impl FnOnce(String) -> Asked {
        |_| Box::pin(async { answer })
    }

    #[tokio::test(start_paused = true)]
    async fn a_name_is_asked_for_anew_each_time() {
        let mut lookup = Lookup::default();
        for port in [1, 2] {
            let found = lookup.addresses_by(answers(Ok(vec![address(port)])), "host:1", LIMIT).await;
            assert_eq!(found, Ok(vec![address(port)]));
        }
        let none = lookup.addresses_by(answers(Ok(Vec::new())), "host:1", LIMIT).await;
        assert_eq!(none, Err(NoAddress::None("the host has no address".to_owned())));
        let error = lookup.addresses_by(answers(Err(std::io::Error::other("no such host"))), "host:1", LIMIT).await;
        assert_eq!(error, Err(NoAddress::None("no such host".to_owned())));
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_takes_long_is_given_up_and_asked_for_once() {
        let mut lookup = Lookup::default();
        let (tell, told) = oneshot::channel();
        let slow = |_: String| -> Asked { Box::pin(async { told.await.expect("the test tells it") }) };
        assert_eq!(lookup.addresses_by(slow, "host:1", LIMIT).await, Err(NoAddress::NoAnswer));
        let never = |_: String| -> Asked { panic!("it is asked for already") };
        assert_eq!(lookup.addresses_by(never, "host:1", LIMIT).await, Err(NoAddress::NoAnswer));
        tell.send(Ok(vec![address(1)])).expect("it is waited for");
        assert_eq!(lookup.addresses_by(never, "host:1", LIMIT).await, Ok(vec![address(1)]));
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_about_where_a_host_was_is_not_one_about_where_it_is() {
        let mut lookup = Lookup::default();
        let (tell, told) = oneshot::channel();
        let slow = |_: String| -> Asked { Box::pin(async { told.await.expect("the test tells it") }) };
        assert_eq!(lookup.addresses_by(slow, "before:1", LIMIT).await, Err(NoAddress::NoAnswer));
        tell.send(Ok(vec![address(1)])).expect("it is waited for");
        let now = || answers(Ok(vec![address(2)]));
        assert_eq!(lookup.addresses_by(now(), "now:1", LIMIT).await, Err(NoAddress::NoAnswer));
        assert_eq!(lookup.addresses_by(now(), "now:1", LIMIT).await, Ok(vec![address(2)]));
    }
}
