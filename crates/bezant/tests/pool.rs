//! The pool before real replicas: many transactions as one, each with its own result.

use std::collections::BTreeSet;
use std::future::Future;
use std::sync::Arc;

use client::{BatchSize, Committed, ConflictRule, Error, Operation, Order, Pool, PoolOptions};
use config::Config;
use tokio::task::JoinSet;
use types::{Key, Value};

use crate::place::Place;

fn key(name: &str) -> Key {
    Key::from(name)
}

fn get(name: &str) -> Operation {
    Operation::Get(key(name))
}

fn put(name: &str, value: &str) -> Operation {
    Operation::Put(key(name), Value::from(value))
}

fn text(value: Option<&Value>) -> String {
    value.map_or(String::new(), |value| String::from_utf8(value.as_bytes().to_vec()).expect("tests write text"))
}

/// A cluster that runs, and what a test does with it.
fn with_cluster<F: Future<Output = ()>>(init: &[&str], test: impl FnOnce(Config) -> F) {
    let place = Place::new();
    place.init(init);
    place.run(&["up"]).expect(0);
    let config = bezant_client::load(place.path("bezant-data")).expect("a client's folder");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    runtime.block_on(test(config));
}

/// Two connections with a pool each.
async fn two_pools(config: &Config, options: PoolOptions) -> [Pool; 2] {
    let connect = || async { bezant_client::connect(config.clone()).await.expect("connects").pool(options).expect("it has pools") };
    [connect().await, connect().await]
}

/// Runs `count` transactions that each read and write `name`, over both pools at once, and checks from what they saw alone that
/// they ran one after the other.
async fn chain(pools: &[Pool; 2], name: &'static str, count: usize) {
    let mut tasks = JoinSet::new();
    for number in 0..count {
        let pool = pools[number % 2].clone();
        tasks.spawn(async move { (number, pool.run(vec![get(name), put(name, &format!("value {number}"))]).await.expect("commits")) });
    }
    let done: Vec<(usize, Committed<Vec<Option<Value>>>)> = tasks.join_all().await;
    let mut placed: Vec<(_, u32, usize, String)> =
        done.iter().map(|(number, done)| (done.commit.timestamp, done.commit.place, *number, text(done.value[0].as_ref()))).collect();
    placed.sort_unstable();
    let mut before = String::new();
    for (_, _, number, saw) in placed {
        assert_eq!(saw, before, "transaction {number} sees what the one before it in the order wrote");
        before = format!("value {number}");
    }
}

#[test]
fn a_hot_key_is_read_and_written_by_one_after_another_whatever_the_pool_is_set_to() {
    with_cluster(&["--shards", "2"], |config| async move {
        let sets = [
            PoolOptions::default(),
            PoolOptions { size: BatchSize::Fixed(7), in_flight: 1, order: Order::WriteAfterRead, ..PoolOptions::default() },
            PoolOptions { size: BatchSize::Fixed(12), in_flight: 2, conflicts: ConflictRule::EndBatch, ..PoolOptions::default() },
            PoolOptions { conflicts: ConflictRule::LeaveOut, ..PoolOptions::default() },
        ];
        for (options, name) in sets.into_iter().zip(["a", "b", "c", "d"]) {
            let pools = two_pools(&config, options).await;
            chain(&pools, name, if options.conflicts == ConflictRule::Chain { 200 } else { 30 }).await;
            let counts = pools.each_ref().map(Pool::counts);
            let chained: u64 = counts.iter().map(|counts| counts.chained_reads).sum();
            assert_eq!(chained > 0, options.conflicts == ConflictRule::Chain, "{counts:?}");
        }
    });
}

#[test]
fn transactions_that_run_on_their_own_join_and_none_is_lost() {
    with_cluster(&[], |config| async move {
        let pools = two_pools(&config, PoolOptions::default()).await;
        let mut tasks = JoinSet::new();
        for number in 0..60 {
            let pool = pools[number % 2].clone();
            tasks.spawn(async move {
                let (own, shared) = (format!("own/{number}"), format!("shared/{}", number % 6));
                for _ in 0..3 {
                    let (own, shared) = (own.as_str(), shared.as_str());
                    let add = |txn: client::Transaction| async move {
                        for name in [own, shared] {
                            let seen = txn.get(name).await?.map_or(0, |value| value.as_bytes().len());
                            txn.put(name, Value::from("x".repeat(seen + 1).as_str()));
                        }
                        Ok(())
                    };
                    pool.transact(add).await.expect("commits");
                }
            });
        }
        tasks.join_all().await;
        let names = (0..60).map(|number| format!("own/{number}")).chain((0..6).map(|number| format!("shared/{number}")));
        let keys: Vec<Key> = names.map(|name| key(&name)).collect();
        let read = pools[0].client();
        let seen = read.read(|txn| {
            let keys = keys.clone();
            async move { txn.get_many(&keys).await }
        });
        let lengths: Vec<usize> = seen.await.expect("reads").value.iter().map(|value| text(value.as_ref()).len()).collect();
        assert_eq!(lengths, [[3; 60].as_slice(), &[30; 6]].concat());
        let batches: u64 = pools.iter().map(|pool| pool.counts().batches()).sum();
        assert!(batches < 180, "some shared a batch: {batches}");
        let metrics = read.metrics();
        assert!(metrics.contains("bezant_pool_batch_transactions_count"), "{metrics}");
    });
}

#[test]
fn each_gets_its_own_error_and_the_others_commit() {
    with_cluster(&[], |config| async move {
        let client = bezant_client::connect(config).await.expect("connects");
        let pool = client.pool(PoolOptions { members_max: 8, ..PoolOptions::default() }).expect("it has pools");
        let mut tasks = JoinSet::new();
        for number in 0..40 {
            let pool = pool.clone();
            tasks.spawn(async move {
                let too_many = || (0..5_000).map(|at| put(&format!("k{at}"), "1")).collect();
                let operations = if number % 10 == 5 { too_many() } else { vec![put(&format!("own/{number}"), "1")] };
                (number, pool.run(operations).await)
            });
        }
        for (number, result) in tasks.join_all().await {
            match result {
                Ok(_) => assert_ne!(number % 10, 5),
                Err(Error::Invalid(what)) => assert!(number % 10 == 5 && what.contains("at most"), "{number}: {what}"),
                Err(other) => panic!("{number}: {other}"),
            }
        }
        assert_eq!(pool.run(Vec::new()).await.expect("nothing to do").commit.path, client::CommitPath::Empty);
        let application = pool.transact(|_| async { Err::<(), _>(Error::application("mine")) }).await;
        assert!(matches!(application, Err(Error::Application(_))));
    });
}

#[test]
fn whoever_stops_waiting_holds_up_nobody_and_closing_ends_all() {
    with_cluster(&[], |config| async move {
        let client = bezant_client::connect(config).await.expect("connects");
        let pool = Arc::new(client.pool(PoolOptions { members_max: 16, in_flight: 1, ..PoolOptions::default() }).expect("it has pools"));
        for round in 0..20 {
            let mut tasks = JoinSet::new();
            for number in 0..32 {
                let pool = Arc::clone(&pool);
                tasks.spawn(async move { pool.run(vec![get("a"), put(&format!("{round}/{number}"), "1")]).await.map(drop) });
            }
            for _ in 0..round {
                tokio::task::yield_now().await;
            }
            tasks.shutdown().await;
        }
        pool.run(vec![get("a"), put("a", "1")]).await.expect("there is room, and it commits");
        let (waiting, closing) = tokio::join!(pool.run(vec![get("a"), put("a", "2")]), client.close());
        let () = closing;
        // It came before the end, or heard of it.
        assert!(matches!(waiting, Ok(_) | Err(Error::Closed | Error::OutcomeUnknown { .. })), "{waiting:?}");
        assert!(matches!(pool.run(vec![get("a")]).await, Err(Error::Closed)));
    });
}

#[test]
fn promises_hold_when_workloads_run_over_pools() {
    let place = Place::new();
    place.init(&["--shards", "2"]);
    place.run(&["up"]).expect(0);
    let mut sizes = BTreeSet::new();
    for workload in ["bank", "ring"] {
        let line = [
            "bench",
            workload,
            "--load",
            "--keys",
            "200",
            "--clients",
            "40",
            "--connections",
            "2",
            "--pool",
            "--warmup",
            "0",
            "--seconds",
            "3",
            "--cooldown",
            "0",
            "--check-interval",
            "0.2",
            "--json",
        ];
        let report = place.run(&line).expect(0).json();
        assert_eq!(report["invariant"]["held"], true, "{report}");
        assert!(report["invariant"]["checked"].as_u64() > Some(1), "{report}");
        sizes.insert(report["pool"]["batch_size"]["max"].as_u64());
    }
    assert!(sizes.iter().any(|size| *size > Some(1)), "some shared a batch: {sizes:?}");
}
