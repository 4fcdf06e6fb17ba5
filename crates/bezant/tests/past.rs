//! Reads of the past over real processes.

use std::time::{Duration, SystemTime};

use client::{AsOf, Client, Error, Refusal};
use types::{Key, Timestamp, Value};

use crate::place::Place;

/// What `a` was at `at`, and what the range of all keys was.
async fn as_of(client: &Client, at: Timestamp) -> Result<(Option<Value>, Vec<(Key, Value)>), Error> {
    let time = AsOf::Time(SystemTime::UNIX_EPOCH + Duration::from_nanos(at.time));
    let read = client.read_as_of(time, |txn| async move { Ok((txn.get("a").await?, txn.scan("a", "z", 10).await?)) });
    Ok(read.await?.value)
}

async fn put(client: &Client, entries: &[(&str, Option<&str>)]) -> Timestamp {
    let committed = client.transact(|txn| async move {
        for (key, value) in entries {
            match value {
                Some(value) => txn.put(*key, *value),
                None => txn.delete(*key),
            }
        }
        Ok(())
    });
    committed.await.expect("it commits").commit.timestamp
}

#[test]
fn the_past_is_read_by_everybody_alike_whatever_comes_later() {
    let place = Place::new();
    place.init(&[]);
    place.run(&["up"]).expect(0);
    let config = bezant_client::load(place.path("bezant-data")).expect("a client's folder");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let client = bezant_client::connect(config).await.expect("it connects");
        let first = put(&client, &[("a", Some("1")), ("b", Some("1"))]).await;
        let second = put(&client, &[("a", Some("2")), ("b", None), ("c", Some("2"))]).await;
        let entry = |key: &str, value: &str| (Key::from(key), Value::from(value));
        let before = Timestamp { time: first.time - 1, ..first };
        for is_whole in [true, false] {
            assert_eq!(as_of(&client, before).await.expect("it is kept"), (None, vec![]));
            assert_eq!(as_of(&client, first).await.expect("it is kept"), (Some(Value::from("1")), vec![entry("a", "1"), entry("b", "1")]));
            let now = (Some(Value::from("2")), vec![entry("a", "2"), entry("c", "2")]);
            assert_eq!(as_of(&client, second).await.expect("it is kept"), now);
            if is_whole {
                place.kill("s0-r2");
            }
        }
        // What needs nothing of one another goes out at once, in any transaction.
        let together = client.read(|txn| async move {
            let keys = ["a", "b"].map(Key::from);
            tokio::try_join!(txn.get_many(&keys), txn.scan("a", "b", 9), txn.scan("b", "z", 9))
        });
        let (values, low, high) = together.await.expect("it is read").value;
        assert_eq!((values, low, high), (vec![Some(Value::from("2")), None], vec![entry("a", "2")], vec![entry("c", "2")]));
        // A range of more than a page, as of one moment, whatever is written between the pages.
        let row = |number: usize| Key::from(format!("row/{number:04}").as_str());
        let write = |value: Option<&'static str>, numbers: std::ops::Range<usize>| {
            client.transact(move |txn| {
                let numbers = numbers.clone();
                async move {
                    numbers.map(row).for_each(|key| value.map_or_else(|| txn.delete(key.clone()), |value| txn.put(key.clone(), value)));
                    Ok(())
                }
            })
        };
        write(Some("1"), 0..500).await.expect("it commits");
        let mut pages = client.pages("row/", "row0", AsOf::Ago(Duration::ZERO));
        let mut rows = pages.next().await.expect("it is read").expect("there are rows");
        assert!(rows.len() < 500);
        write(None, 400..450).await.expect("it commits");
        write(Some("2"), 300..600).await.expect("it commits");
        while let Some(page) = pages.next().await.expect("it is read") {
            rows.extend(page);
        }
        assert_eq!(rows, (0..500).map(|number| (row(number), Value::from("1"))).collect::<Vec<_>>());
        let (mut pages, mut rows) = (client.pages("row/", "row0", AsOf::Ago(Duration::ZERO)).reversed(), Vec::new());
        while let Some(page) = pages.next().await.expect("it is read") {
            assert!(page.len() < 500);
            rows.extend(page);
        }
        let expected = (0..600).rev().map(|number| (row(number), Value::from(if number < 300 { "1" } else { "2" })));
        assert_eq!(rows, expected.collect::<Vec<_>>());
        // What was deleted of late is no obstacle: a queue that is emptied all the time can be read, and so backed up.
        for numbers in [1_000..4_000, 4_000..7_000] {
            write(Some("1"), numbers.clone()).await.expect("it commits");
            write(None, numbers).await.expect("it commits");
        }
        let scanned = client.read(|txn| async move { txn.scan("row/1", "row/7", 1).await }).await;
        assert!(matches!(scanned, Err(Error::Refused(Refusal::AnswerTooLarge))), "a transaction would have to carry too much");
        assert_eq!(client.pages("row/1", "row/7", AsOf::Ago(Duration::ZERO)).next().await.expect("it is read"), None);
        assert_eq!(client.pages("x", "y", AsOf::Ago(Duration::ZERO)).next().await.expect("it is read"), None);
        let old = client.begin_as_of(AsOf::Ago(Duration::from_secs(3_600))).expect("it has passed").get("a").await;
        assert!(matches!(old, Err(Error::Refused(Refusal::NotKept { kept_ms: 10_000 }))), "{old:?}");
        let future = client.begin_as_of(AsOf::Time(SystemTime::now() + Duration::from_secs(3_600)));
        assert!(matches!(future, Err(Error::Refused(Refusal::NotPast))), "{future:?}");
        let writer = client.begin_as_of(AsOf::Ago(Duration::ZERO)).expect("it has passed");
        writer.put("a", "3");
        assert!(matches!(writer.commit().await, Err(Error::Invalid(_))));
        client.close().await;
    });

    place.run(&["get", "a", "--as-of", "0s ago"]).expect(0).prints("2\n");
    place.run(&["scan", "a", "d", "--as-of", "-0ms"]).expect(0).prints("a = 2\nc = 2\n");
    place.run(&["scan", "a", "d", "--all"]).expect(0).prints("a = 2\nc = 2\n");
    place.run(&["scan", "a", "d", "--all", "--reverse"]).expect(0).prints("c = 2\na = 2\n");
    place
        .run(&["scan", "a", "d", "--all", "--json"])
        .expect(0)
        .prints("{\"key\":\"a\",\"value\":\"2\"}\n{\"key\":\"c\",\"value\":\"2\"}\n");
    place.run(&["scan", "x", "y", "--all"]).expect(1).prints("").says("no key from x to y has a value");
    let script = "get c; scan a b; put d 4; get d; scan a e; get a";
    place.run(&["txn", script]).expect(0).prints("c = 2\na = 2\nd = 4\na = 2\nc = 2\nd = 4\na = 2\n");
    place.run(&["get", "a", "--as-of", "1h ago"]).expect(2).says("older than what the replicas keep: 10 s");
    place.run(&["get", "a", "--as-of", "2500-01-01T00:00:00Z"]).expect(2).says("in the future");
    place.run(&["get", "a", "--as-of", "noon"]).expect(2).says("5s ago");
}

#[test]
fn a_transaction_may_stay_open_for_longer_than_the_window() {
    let place = Place::new();
    place.init(&["--window-ms", "1000"]);
    place.run(&["up"]).expect(0);
    let config = bezant_client::load(place.path("bezant-data")).expect("a client's folder");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let client = bezant_client::connect(config).await.expect("it connects");
        put(&client, &[("a", Some("1")), ("b", Some("1"))]).await;
        // Longer than the window and the replicas' clocks apart.
        let think = || tokio::time::sleep(Duration::from_millis(2_000));
        let all = async |txn: &client::Transaction| txn.scan("a", "c", 10).await.expect("it is read").len();
        let (unchanged, read_only, changed) = (client.begin(), client.begin_read_only(), client.begin());
        for txn in [&unchanged, &read_only, &changed] {
            assert_eq!(all(txn).await, 2);
        }
        think().await;
        for txn in [&unchanged, &read_only, &changed] {
            assert_eq!(txn.get_many(&["a", "d"].map(Key::from)).await.expect("it is read"), [Some(Value::from("1")), None]);
        }
        unchanged.put("e", "1");
        think().await;
        unchanged.commit().await.expect("all that it has read is the newest");
        read_only.commit().await.expect("all that it has read is the newest");
        changed.put("f", "1");
        put(&client, &[("b", Some("2"))]).await;
        assert!(matches!(changed.commit().await, Err(Error::Conflict)), "it has read what has changed");
        assert_eq!(client.read(|txn| async move { txn.get("f").await }).await.expect("it is read").value, None);
    });
}

#[test]
fn what_is_read_page_by_page_stays_as_it_was_for_as_long_as_that_takes() {
    let place = Place::new();
    // The second shard is asked when the first has been read.
    place.init(&["--window-ms", "1000", "--shards", "2", "--placement", "ranges:row/0250"]);
    place.run(&["up"]).expect(0);
    let config = bezant_client::load(place.path("bezant-data")).expect("a client's folder");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let client = bezant_client::connect(config).await.expect("it connects");
        let row = |number: usize| Key::from(format!("row/{number:04}").as_str());
        let write = |value: &'static str| {
            client.transact(move |txn| async move {
                (0..500)
                    .for_each(|number| if number % 7 == 3 && value != "0" { txn.delete(row(number)) } else { txn.put(row(number), value) });
                Ok(())
            })
        };
        let written = write("0").await.expect("it commits").commit.timestamp;
        let moment = AsOf::Time(SystemTime::UNIX_EPOCH + Duration::from_nanos(written.time));
        let mut pages = client.pages("row/", "row0", moment);
        let first = pages.next().await.expect("it is read").expect("there are rows");
        // It has left the window, and what has come since was checkpointed again and again. Meanwhile it is read from its beginning again.
        let replicas: Vec<String> = (0..12).map(|index| format!("s{}-r{}", index / 6, index % 6)).collect();
        let is_kept = |replica: &String| place.count_of(replica, "store", "kept_moments") == 1;
        let is_passed = |replica: &String| place.count_of(replica, "store", "checkpoints") > 2;
        while !replicas.iter().all(|replica| is_kept(replica) && is_passed(replica)) {
            for _ in 0..20 {
                write("1").await.expect("it commits");
            }
            let again = client.pages("row/", "row0", moment).next().await.expect("it is read");
            assert_eq!(again.as_ref(), Some(&first));
        }
        place.kill("s0-r2");
        place.kill("s1-r5");
        let mut rows = first;
        while let Some(page) = pages.next().await.expect("it is read") {
            rows.extend(page);
        }
        assert_eq!(rows, (0..500).map(|number| (row(number), Value::from("0"))).collect::<Vec<_>>());
        let unknown =
            client.pages("row/", "row0", AsOf::Time(SystemTime::UNIX_EPOCH + Duration::from_nanos(written.time + 1_000))).next().await;
        assert!(matches!(unknown, Err(Error::Refused(Refusal::NotKept { .. }))), "{unknown:?}");
    });
}
