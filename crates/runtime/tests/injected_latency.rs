//! Injected latency over the loopback: what is far away answers late, in order, and nothing is lost of what waits.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use runtime::{Delay, Delays, Limits};
use types::Session;

use crate::fixture::*;

/// Everybody is `least_ms` away, and up to `jitter_ms` more.
fn everybody_at(least_ms: u64, jitter_ms: u64) -> Option<Delays> {
    let delay = Delay { least: Duration::from_millis(least_ms), jitter: Duration::from_millis(jitter_ms) };
    Some(Delays::new(move |_| delay))
}

async fn far_server(least_ms: u64, jitter_ms: u64) -> Server {
    let any = "127.0.0.1:0".parse().expect("an address");
    let delays = everybody_at(least_ms, jitter_ms);
    Server::start_apart(any, Doubler::new(replica(0)), BTreeMap::new(), Limits::default(), delays).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn injected_latency_delays_answers_and_keeps_their_order_and_throughput() {
    let server = far_server(300, 50).await;
    let known = cluster(CLUSTER, 3);
    let mut client = Client::start_apart(1, Session(1), &known, server.address(), Limits::default(), everybody_at(200, 50));
    client.connected().await;
    let begun = Instant::now();
    // One after the other, each a push of its own: were one held until the one before it has left, all would take minutes.
    for number in 0..1_000 {
        client.ask(number).await;
    }
    for number in 0..1_000 {
        let told = within(client.events.recv()).await.expect("the client runs");
        assert!(is_double_of(number, &told), "{told:?}");
        assert!(begun.elapsed() >= Duration::from_millis(500), "both ways take their time");
    }
    let waits_for_nothing = |metrics: &runtime::Metrics| metrics.to_text().contains("bezant_outgoing_bytes 0\n");
    // What was heard may be counted as written a moment later.
    eventually("nothing waits any more", || waits_for_nothing(&server.metrics) && waits_for_nothing(&client.metrics)).await;
}

#[tokio::test]
async fn a_graceful_stop_delivers_messages_in_flight() {
    let server = far_server(100, 0).await;
    let mut client = Client::start(server.address());
    client.connected().await;
    for number in 0..10 {
        client.ask(number).await;
    }
    eventually("all are answered, and no answer has left", || server.metrics.to_text().contains("bezant_statements_signed_total 10\n"))
        .await;
    within(server.node.stop()).await.expect("its disk is well");
    for number in 0..10 {
        let told = within(client.events.recv()).await.expect("it arrives");
        assert!(is_double_of(number, &told), "{told:?}");
    }
}

#[tokio::test]
async fn messages_to_a_lost_party_are_dropped() {
    let server = far_server(60_000, 0).await;
    let client = Client::start(server.address());
    client.connected().await;
    for number in 0..10 {
        client.ask(number).await;
    }
    eventually("all are answered", || server.metrics.to_text().contains("bezant_statements_signed_total 10\n")).await;
    assert!(!server.metrics.to_text().contains("bezant_outgoing_bytes 0\n"), "the answers wait");
    drop(client);
    eventually("they are gone", || server.metrics.to_text().contains("bezant_outgoing_bytes 0\n")).await;
    assert_eq!(server.metrics.unsent("closed"), 10);
}
