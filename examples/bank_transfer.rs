//! Moves money between accounts from many tasks at once. `transact` runs a transfer again when it conflicts with another one. A
//! transfer from an account that holds too little is refused by this program. The refusal commits too, as a transaction that only
//! read: until the commit has confirmed what was read, nobody knows that the account really held too little.

use std::error::Error;

use bezant_client::{Advice, Client, Committed};
use examples::{ACCOUNTS, OPENING_BALANCE, account, connect, number, parse};

const TASKS: u64 = 8;
const TRANSFERS_PER_TASK: u64 = 25;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let client = connect().await?;
    open_accounts(&client).await?;
    let mut tasks = Vec::new();
    for task in 0..TASKS {
        tasks.push(tokio::spawn(transfers(client.clone(), task)));
    }
    let (mut done, mut refused, mut attempts) = (0, 0, 0);
    for task in tasks {
        let (task_done, task_refused, task_attempts) = task.await??;
        done += task_done;
        refused += task_refused;
        attempts += task_attempts;
    }
    println!("{done} transfers committed and {refused} were refused for want of money, in {attempts} attempts");
    client.close().await;
    Ok(())
}

/// Gives each account that does not exist yet its opening balance, all in one transaction.
async fn open_accounts(client: &Client) -> Result<(), bezant_client::Error> {
    let open = client.transact(|txn| async move {
        for holder in 0..ACCOUNTS {
            if txn.get(account(holder)).await?.is_none() {
                txn.put(account(holder), number(OPENING_BALANCE));
            }
        }
        Ok(())
    });
    open.await.map(drop)
}

/// What became of a transfer.
enum Transfer {
    Done,
    /// The account holds too little; nothing changed.
    TooLittle,
}

/// One task's transfers: how many were done, how many were refused, and how many attempts they took.
async fn transfers(client: Client, task: u64) -> Result<(u64, u64, u64), bezant_client::Error> {
    let (mut done, mut refused, mut attempts) = (0, 0, 0);
    for round in 0..TRANSFERS_PER_TASK {
        let from = (task * 7 + round * 3) % ACCOUNTS;
        let to = (from + 1 + round % (ACCOUNTS - 1)) % ACCOUNTS;
        match transfer(&client, from, to, 1 + round % 40).await {
            Ok(committed) => {
                match committed.value {
                    Transfer::Done => done += 1,
                    Transfer::TooLittle => refused += 1,
                }
                attempts += u64::from(committed.attempts);
            }
            // Conflicts have been retried for as long as client.toml allows; a program that can wait may go on trying.
            Err(error) if matches!(error.advice(), Advice::Retry | Advice::RetryAfter { .. }) => eprintln!("gave up a transfer: {error}"),
            Err(error) => return Err(error),
        }
    }
    Ok((done, refused, attempts))
}

/// Moves `amount`, or nothing at all.
async fn transfer(client: &Client, from: u64, to: u64, amount: u64) -> Result<Committed<Transfer>, bezant_client::Error> {
    let run = client.transact(|txn| async move {
        let held = txn.get_many(&[account(from), account(to)]).await?;
        let [Some(payer), Some(payee)] = held.as_slice() else {
            return Err(bezant_client::Error::application("an account is not open"));
        };
        let Some(left) = parse(payer)?.checked_sub(amount) else { return Ok(Transfer::TooLittle) };
        txn.put(account(from), number(left));
        txn.put(account(to), number(parse(payee)? + amount));
        Ok(Transfer::Done)
    });
    run.await
}
