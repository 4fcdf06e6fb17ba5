//! What a cluster shows of itself: metrics by Prometheus' conventions, every peer in its status, and logs that programs can read.

use std::fs;

use serde_json::Value;

use crate::exposition::{self, Family};
use crate::place::{Place, eventually};

/// The sum of a family's samples that have this label.
fn sum(family: &Family, label: (&str, &str)) -> f64 {
    let such = family.samples.iter().filter(|(_, labels, _)| labels.iter().any(|(name, value)| (name.as_str(), value.as_str()) == label));
    such.map(|(_, _, value)| value).sum()
}

#[test]
fn a_cluster_shows_metrics_peers_and_logs_that_programs_can_read() {
    let place = Place::new();
    place.init(&["--log-format", "json"]);
    place.run(&["up"]).expect(0);
    place.run(&["put", "a", "1"]).expect(0);

    let committed = "bezant_transactions_committed_total 1\n";
    eventually("it has learned that the put committed", || place.ask("s0-r2", "/metrics").is_some_and(|text| text.contains(committed)));
    let text = place.ask("s0-r2", "/metrics").expect("it answers");
    let families = exposition::read(&text).unwrap_or_else(|wrong| panic!("{wrong}\n{text}"));
    for (name, kind) in [
        ("bezant_votes_commit", "counter"),
        ("bezant_votes_abort", "counter"),
        ("bezant_connections_closed", "counter"),
        ("bezant_persist_seconds", "histogram"),
        ("bezant_transaction_seconds", "histogram"),
        ("bezant_peer_connected", "gauge"),
        ("bezant_disk_free_bytes", "gauge"),
        ("bezant_build", "info"),
        ("process_cpu_seconds", "counter"),
        ("process_resident_memory_bytes", "gauge"),
        ("process_open_fds", "gauge"),
        ("process_max_fds", "gauge"),
        ("process_start_time_seconds", "gauge"),
    ] {
        assert_eq!(families.get(name).map(|family| family.kind.as_str()), Some(kind), "{name}\n{text}");
    }
    assert!(families["bezant_votes_abort"].samples.iter().all(|(_, labels, _)| labels[0].0 == "reason"), "{text}");

    let concluded = &families["bezant_transaction_seconds"].samples;
    let counted = |outcome: &str| {
        let such =
            concluded.iter().filter(|(name, labels, _)| name.ends_with("_count") && labels.iter().any(|(_, value)| value == outcome));
        such.map(|(_, _, count)| count).sum::<f64>()
    };
    assert_eq!((counted("committed"), counted("aborted")), (1.0, 0.0), "{text}");

    // Of two replicas the one with the greater name dials; both list the other.
    let peers = &families["bezant_peer_connected"];
    assert_eq!((sum(peers, ("direction", "dialed")), sum(peers, ("direction", "accepted"))), (2.0, 3.0), "{text}");
    for replica in ["s0-r0", "s0-r2", "s0-r5"] {
        let status: Value = serde_json::from_str(&place.ask(replica, "/status").expect("it answers")).expect("JSON");
        let peers = status["peers"].as_object().expect("an object");
        assert_eq!(peers.len(), 5, "{status}");
        assert!(peers.values().all(|peer| peer["state"] == "connected"), "{status}");
        assert_eq!(
            peers.values().filter(|peer| peer["direction"] == "dialed").count(),
            replica[4..].parse::<usize>().expect("a digit"),
            "{status}"
        );
    }

    let log = fs::read_to_string(place.path("bezant-data/s0-r2/node.log")).expect("kept");
    let lines: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).expect("each line is JSON")).collect();
    let serving = lines.iter().find(|line| line["fields"]["message"] == "serving").expect("it says so");
    assert!(serving["fields"]["seconds"].is_number(), "{serving}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_shows_how_long_commits_take_by_path() {
    let place = Place::new();
    place.init(&[]);
    place.run(&["up"]).expect(0);
    let config = bezant_client::load(place.path("bezant-data")).expect("just made");
    let client = bezant_client::connect(config).await.expect("all replicas serve");
    let write = async |value: &'static str| {
        client
            .transact(|transaction| async move {
                transaction.put("a", value);
                Ok(())
            })
            .await
            .expect("nobody is in its way")
    };
    write("1").await;
    write("2").await;
    client.read(|transaction| async move { transaction.get("a").await }).await.expect("nobody is in its way");
    let text = client.metrics();
    let families = exposition::read(&text).unwrap_or_else(|wrong| panic!("{wrong}\n{text}"));
    let commits: Vec<_> = families["bezant_commit_seconds"].samples.iter().filter(|(name, ..)| name.ends_with("_count")).collect();
    assert_eq!(commits.iter().map(|(_, _, count)| count).sum::<f64>(), 3.0, "{text}");
    assert!(commits.iter().any(|(_, labels, count)| labels[0].1 == "read_only" && *count == 1.0), "{text}");
    client.close().await;
}
