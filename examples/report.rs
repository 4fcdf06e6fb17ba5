//! Reads all accounts as of one moment, while transfers go on: the total is the same in every report. A transaction that only
//! reads commits without anybody's vote, mostly in one round trip, and never stands in a writer's way for long.

use std::error::Error;

use bezant_client::Key;
use examples::{ACCOUNTS, account, connect, parse};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let client = connect().await?;
    let accounts: Vec<Key> = (0..ACCOUNTS).map(account).collect();
    let report = client.read(|txn| {
        let accounts = accounts.clone();
        async move { txn.get_many(&accounts).await }
    });
    let report = report.await?;
    let mut total = 0;
    for (key, value) in accounts.iter().zip(&report.value) {
        let balance = value.as_ref().map(parse).transpose()?;
        println!("{key} {}", balance.map_or_else(|| "not open".to_owned(), |balance| balance.to_string()));
        total += balance.unwrap_or(0);
    }
    println!("total {total} as of {}", report.commit.timestamp);
    client.close().await;
    Ok(())
}
