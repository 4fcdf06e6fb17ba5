//! A queue that several producers fill and several consumers empty: each job is taken exactly once, whoever crashes.
//!
//! Two counters say which items there are: those from `head` up to, but not with, `tail`. Whoever takes or puts changes a counter
//! and an item in one transaction, so that two consumers that want the same item conflict, and one of them tries again.

use std::collections::BTreeSet;
use std::error::Error;

use bezant_client::Key;
use bezant_client::{Client, Transaction};
use examples::{connect, number, parse};

const PRODUCERS: u64 = 3;
const CONSUMERS: u64 = 4;
const JOBS_PER_PRODUCER: u64 = 10;
const HEAD: &str = "examples/queue/head";
const TAIL: &str = "examples/queue/tail";

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let client = connect().await?;
    let mut producers = Vec::new();
    for producer in 0..PRODUCERS {
        let client = client.clone();
        producers.push(tokio::spawn(async move {
            for job in 0..JOBS_PER_PRODUCER {
                put(&client, producer * JOBS_PER_PRODUCER + job).await?;
            }
            Ok::<_, bezant_client::Error>(())
        }));
    }
    for producer in producers {
        producer.await??;
    }
    let mut consumers = Vec::new();
    for _ in 0..CONSUMERS {
        let client = client.clone();
        consumers.push(tokio::spawn(async move {
            let mut taken = Vec::new();
            while let Some(job) = take(&client).await? {
                taken.push(job);
            }
            Ok::<_, bezant_client::Error>(taken)
        }));
    }
    let mut taken = Vec::new();
    for consumer in consumers {
        taken.extend(consumer.await??);
    }
    let distinct: BTreeSet<u64> = taken.iter().copied().collect();
    println!("{} jobs taken, {} of them distinct", taken.len(), distinct.len());
    client.close().await;
    Ok(())
}

/// Adds a job at the end.
async fn put(client: &Client, job: u64) -> Result<(), bezant_client::Error> {
    let run = client.transact(|txn| async move {
        let tail = counter(&txn, TAIL).await?;
        txn.put(item(tail), number(job));
        txn.put(TAIL, number(tail + 1));
        Ok(())
    });
    run.await.map(drop)
}

/// Takes the first job; `None` when there is none.
async fn take(client: &Client) -> Result<Option<u64>, bezant_client::Error> {
    let run = client.transact(|txn| async move {
        let (head, tail) = (counter(&txn, HEAD).await?, counter(&txn, TAIL).await?);
        if head == tail {
            return Ok(None);
        }
        // Until the commit, reads may be of different moments: then another consumer has just taken the item. Begin again.
        let job = txn.get(item(head)).await?.ok_or(bezant_client::Error::Conflict)?;
        txn.delete(item(head));
        txn.put(HEAD, number(head + 1));
        parse(&job).map(Some)
    });
    Ok(run.await?.value)
}

/// A counter that begins with 0.
async fn counter(txn: &Transaction, name: &str) -> Result<u64, bezant_client::Error> {
    txn.get(name).await?.as_ref().map_or(Ok(0), parse)
}

fn item(place: u64) -> Key {
    Key::from(format!("examples/queue/item/{place:012}").as_str())
}
