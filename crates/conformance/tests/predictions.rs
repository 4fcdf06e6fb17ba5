//! What a prediction must be like, whatever the prices: more for more, and nothing lost.

use capacity::{ClusterSpec, Costs, Engine as _, Hosting, Prediction, time_steps};
use conformance::basil::Basil;

/// One machine for all, as where prices were measured.
fn on_one(cores: usize, closed_loop_clients: usize) -> ClusterSpec {
    ClusterSpec { hosting: Hosting::OneHost { cores }, closed_loop_clients, warmup_ms: 20, measured_ms: 40, ..ClusterSpec::default() }
}

fn apart(shards: usize, clients: usize, closed_loop_clients: usize) -> ClusterSpec {
    ClusterSpec {
        shards,
        clients,
        closed_loop_clients,
        hosting: Hosting::Apart { cores: 2, shards_a_host: 1 },
        warmup_ms: 20,
        measured_ms: 30,
        ..ClusterSpec::default()
    }
}

fn predict(spec: &ClusterSpec, costs: &Costs, seed: u64) -> Prediction {
    capacity::predict::<Basil>(spec, costs, seed)
}

fn rough() -> Costs {
    Costs::rough::<Basil>()
}

fn at_rough_prices(spec: &ClusterSpec) -> Prediction {
    predict(spec, &rough(), 1)
}

#[test]
fn the_same_seed_gives_the_same_prediction() {
    let spec = ClusterSpec { shards: 2, keys: 500, ..on_one(2, 32) };
    let first = at_rough_prices(&spec);
    assert_eq!(first, at_rough_prices(&spec));
    assert_ne!(first, predict(&spec, &rough(), 2));
}

#[test]
fn every_attempt_ends() {
    // So few keys that many meet.
    for fast_path in [true, false] {
        let prediction = at_rough_prices(&ClusterSpec { shards: 2, keys: 160, fast_path, ..on_one(4, 64) });
        let attempts = prediction.attempts;
        assert_eq!(attempts.begun, attempts.committed + attempts.aborted + attempts.failed, "{attempts:?}");
        assert_eq!(attempts.under_way, 0);
        assert!(attempts.committed > 100 && attempts.aborted > 10, "{attempts:?}");
        assert!(prediction.commit_rate < 1.0);
    }
}

#[test]
fn a_prediction_that_runs_out_of_steps_reports_transactions_in_flight() {
    let prediction = at_rough_prices(&ClusterSpec { steps_max: 6_000, ..on_one(2, 64) });
    let attempts = prediction.attempts;
    assert_eq!(attempts.begun, attempts.committed + attempts.aborted + attempts.failed + attempts.under_way, "{attempts:?}");
    assert!(attempts.under_way > 0 && prediction.measured_ms < 40.0);
    assert!(prediction.committed_per_second > 0.0, "what was counted until then counts");
}

#[test]
fn more_cores_never_bring_fewer_transactions() {
    let throughput: Vec<f64> = [1, 2, 4, 8].iter().map(|cores| at_rough_prices(&on_one(*cores, 64)).committed_per_second).collect();
    assert!(throughput.is_sorted(), "{throughput:?}");
    assert!(throughput[2] > 1.5 * throughput[0], "{throughput:?}");
}

#[test]
fn cores_work_no_more_than_all_of_the_time() {
    let prediction = at_rough_prices(&on_one(1, 64));
    assert!((0.9..=1.01).contains(&prediction.host_busy), "{prediction:?}");
    // One core works for a second in a second, so what a transaction costs says how many there are.
    let by_cost = 1e6 / prediction.cpu_us;
    assert!((prediction.committed_per_second / by_cost - 1.0).abs() < 0.1, "{prediction:?}");
}

#[test]
fn a_slower_disk_and_a_longer_way_raise_latency_by_as_much() {
    let alone = ClusterSpec { closed_loop_clients: 1, ..apart(1, 1, 1) };
    let near = at_rough_prices(&alone);
    // A vote is durable before it is said, and a read is said at once.
    let slow_disk = predict(&alone, &Costs { sync_ns: rough().sync_ns + 1e6, ..rough() }, 1);
    let more_ms = slow_disk.latency_ms - near.latency_ms;
    assert!((0.8..2.2).contains(&more_ms), "one more millisecond of sync makes {more_ms} ms");
    // Two round trips: to read, and to prepare.
    let far = at_rough_prices(&ClusterSpec { network_us: alone.network_us + 1_000, ..alone });
    let more_ms = far.latency_ms - near.latency_ms;
    assert!((3.9..4.6).contains(&more_ms), "one more millisecond each way makes {more_ms} ms");
}

#[test]
fn logging_every_decision_takes_a_round_trip_more() {
    let alone = ClusterSpec { closed_loop_clients: 1, network_us: 1_000, ..apart(1, 1, 1) };
    let more_ms = at_rough_prices(&ClusterSpec { fast_path: false, ..alone.clone() }).latency_ms - at_rough_prices(&alone).latency_ms;
    assert!((1.9..3.0).contains(&more_ms), "{more_ms} ms more");
}

#[test]
fn two_shards_on_twice_the_machines_do_twice_as_much_if_each_transaction_stays_in_one() {
    let one = at_rough_prices(&apart(1, 4, 96));
    let local = at_rough_prices(&ClusterSpec { spread: 1, ..apart(2, 8, 96) });
    let factor = local.committed_per_second / one.committed_per_second;
    assert!((1.6..2.2).contains(&factor), "{one:?}\n{local:?}");
    // One that is at both costs both, and proves itself to each by the votes of both.
    let spread = at_rough_prices(&apart(2, 8, 96));
    assert!(spread.cpu_us > 1.5 * local.cpu_us && spread.committed_per_second < local.committed_per_second, "{local:?}\n{spread:?}");
}

#[test]
fn larger_batches_and_no_signatures_cost_less() {
    let cpu_us = |spec: ClusterSpec| at_rough_prices(&spec).cpu_us;
    let alone = cpu_us(ClusterSpec { batch_max: 1, ..on_one(2, 64) });
    let together = cpu_us(on_one(2, 64));
    let unsigned = cpu_us(ClusterSpec { signatures: false, ..on_one(2, 64) });
    assert!(alone > 1.5 * together && together > 1.05 * unsigned, "{alone} {together} {unsigned}");
}

#[test]
fn a_batch_is_as_large_as_the_load_makes_it() {
    let (few, many) = (at_rough_prices(&on_one(2, 4)), at_rough_prices(&on_one(2, 128)));
    assert!(many.statements_a_root > 2.0 * few.statements_a_root, "{few:?}\n{many:?}");
    assert!(many.cpu_us < few.cpu_us);
}

#[test]
fn read_only_transactions_need_no_votes() {
    let prediction = at_rough_prices(&ClusterSpec { writes: 0, ..on_one(2, 16) });
    assert_eq!(prediction.statements_a_root, 0.0);
    assert!(prediction.committed_per_second > 0.0 && prediction.commit_rate > 0.99, "{prediction:?}");
}

#[test]
fn each_kind_of_step_is_timed_by_the_watch_it_is_given() {
    let mut now = 0;
    // A watch that goes on by one each time it is looked at.
    let mut watch = || {
        now += 1;
        now
    };
    let mut timed = time_steps::<Basil>(&ClusterSpec { shards: 2, ..on_one(2, 8) }, &rough(), 1, &mut watch);
    timed.extend(time_steps::<Basil>(&ClusterSpec { fast_path: false, ..on_one(2, 8) }, &rough(), 1, &mut watch));
    for (step, _) in Basil::STEPS {
        assert!(timed.iter().any(|(taken, _)| taken == step), "{step} was never taken");
    }
    assert!(timed.iter().all(|(_, ns)| (*ns - 1.0).abs() < 1e-9), "{timed:?}");
}
