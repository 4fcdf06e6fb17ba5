//! What one network may take, however many addresses and accounts it has.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use buzzer::{Behind, CONNECTIONS_OF_SUBNET_MAX, Proxies};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::site::{ask, begin, sign_up_from};
use super::{PATIENCE, Place};

pub async fn all(place: &Place) {
    // What the proxy says decides, so a test can come from anywhere.
    let site = place.site_behind(Behind::HttpsProxy).await;
    all_addresses_of_a_network_sign_in_as_one(site.address).await;
    a_network_makes_few_accounts_in_an_hour(site.address).await;
    a_network_has_a_share_of_the_streams(site.address).await;
    site.stop().await;
    // Nobody here is the proxy that this site believes.
    let elsewhere = Proxies::new(vec!["192.0.2.1".parse().expect("an address")]);
    let site = place.site_with(|app| app.believing(elsewhere), Behind::HttpsProxy).await;
    who_is_no_proxy_is_not_believed(site.address).await;
    a_network_has_a_share_of_the_connections(site.address).await;
    site.stop().await;
    let site = place.site().await;
    a_network_has_a_share_of_the_connections(site.address).await;
    site.stop().await;
}

async fn all_addresses_of_a_network_sign_in_as_one(address: SocketAddr) {
    // Too short a password is refused without work, once it is counted.
    let short = async |from: &str| {
        let form = "name=limited&password=short";
        ask(address, "/sign-up", Some(form), &[("x-forwarded-for", from)]).await.status
    };
    // What cannot be a name is not counted.
    for number in 0..40 {
        let from = format!("2001:db8:1:1::{number}");
        let path = if number % 2 == 0 { "/sign-in" } else { "/sign-up" };
        let refused = ask(address, path, Some("name=%3Cb%3E&password=short"), &[("x-forwarded-for", &from)]).await;
        assert_eq!(refused.status, if number % 2 == 0 { 401 } else { 422 });
    }
    for number in 0..30 {
        assert_eq!(short(&format!("2001:db8:1:1::{number}")).await, 422, "{number}");
    }
    assert_eq!(short("2001:db8:1:1:ffff:ffff:ffff:ffff").await, 429);
    // What four subnets may all others of their first 48 bits may not.
    for subnet in 3..=5 {
        for _ in 0..30 {
            assert_eq!(short(&format!("2001:db8:1:{subnet}::1")).await, 422, "{subnet}");
        }
    }
    assert_eq!(short("2001:db8:1:6::1").await, 429);
    assert_eq!([short("2001:db8:3:2::1").await, short("192.0.2.1").await], [422, 422], "others are others");
}

async fn who_is_no_proxy_is_not_believed(address: SocketAddr) {
    let mut statuses = Vec::new();
    for number in 0..32 {
        let from = format!("198.51.100.{number}");
        let refused = ask(address, "/sign-up", Some("name=believed&password=short"), &[("x-forwarded-for", &from)]).await;
        statuses.push(refused.status);
    }
    assert!(statuses[..30].iter().all(|status| *status == 422) && statuses[30..] == [429, 429], "{statuses:?}");
}

async fn a_network_makes_few_accounts_in_an_hour(address: SocketAddr) {
    let make = async |number: u32, from: &str| {
        let form = format!("name=farmed{number}&password=correct+horse");
        ask(address, "/sign-up", Some(&form), &[("x-forwarded-for", from)]).await
    };
    assert_eq!(make(0, "192.0.2.2").await.status, 303);
    // That the name is taken, or the password too short, takes no account from the network.
    let taken = ask(address, "/sign-up", Some("name=farmed0&password=battery+staple"), &[("x-forwarded-for", "192.0.2.2")]).await;
    assert_eq!(taken.status, 422);
    for number in 1..20 {
        assert_eq!(make(number, "192.0.2.2").await.status, 303, "{number}");
    }
    let refused = make(20, "192.0.2.2").await;
    assert!(refused.status == 429 && refused.body.contains("new accounts from your network"), "{}", refused.body);
    assert_eq!(make(21, "192.0.2.3").await.status, 303, "others are others");
}

async fn a_network_has_a_share_of_the_streams(address: SocketAddr) {
    let mut cookies = Vec::new();
    for number in 0..7 {
        let from = format!("2001:db8:2:1::{number}");
        cookies.push(sign_up_from(address, &format!("streams{number}"), &[("x-forwarded-for", &from)]).await);
    }
    let listen = async |cookie: &str, from: &str| begin(address, "/live", None, &[("cookie", cookie), ("x-forwarded-for", from)]).await;
    let mut streams = Vec::new();
    for (number, cookie) in cookies[..6].iter().flat_map(|cookie| [cookie; 4]).enumerate() {
        let stream = listen(cookie, &format!("2001:db8:2:1::{number}")).await;
        assert_eq!(stream.status(), 200, "{number}");
        streams.push(stream);
    }
    assert_eq!(listen(&cookies[6], "2001:db8:2:1::f").await.status(), 503, "its network has its share");
    let elsewhere = listen(&cookies[6], "2001:db8:2:2::f").await;
    assert_eq!(elsewhere.status(), 200);
    assert_eq!(elsewhere.headers().get("x-accel-buffering").map(|value| value.as_bytes()), Some(b"no".as_slice()));
    assert_eq!(listen(&cookies[0], "2001:db8:2:2::f").await.status(), 503, "and each user has theirs");
}

async fn a_network_has_a_share_of_the_connections(address: SocketAddr) {
    let mut connections = Vec::new();
    for _ in 0..CONNECTIONS_OF_SUBNET_MAX {
        connections.push(TcpStream::connect(address).await.expect("it listens"));
    }
    let mut one_more = TcpStream::connect(address).await.expect("it listens");
    let ended = timeout(PATIENCE, one_more.read(&mut [0])).await.expect("it is closed");
    assert!(matches!(ended, Ok(0) | Err(_)), "{ended:?}");
    assert!(is_served(&mut connections[0]).await, "those that were there stay");
    // Its place is free once the server has seen its end.
    connections.truncate(CONNECTIONS_OF_SUBNET_MAX - 1);
    let begun = Instant::now();
    while !is_served(&mut TcpStream::connect(address).await.expect("it listens")).await {
        assert!(begun.elapsed() < PATIENCE, "no place becomes free");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn is_served(connection: &mut TcpStream) -> bool {
    let mut answer = [0; 12];
    let asked = connection.write_all(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n").await;
    let answered = timeout(PATIENCE, connection.read_exact(&mut answer)).await.expect("it is answered or closed");
    asked.is_ok() && answered.is_ok() && answer == *b"HTTP/1.1 200"
}
