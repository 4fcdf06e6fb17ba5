//! Moves money between accounts from many tasks at once. `transact` runs a transfer again when it conflicts with another one. A
//! transfer from an account that holds too little is refused by this program. The refusal commits too, as a transaction that only
//! read: until the commit has confirmed what was read, nobody knows that the account really held too little.
//!
//! Each payment has a number, which its transaction writes as a key. Where nobody knows whether a payment took place, it is run
//! again: it reads that key first, and does nothing when it is there.

use std::error::Error;

use bezant_client::{Advice, Client, Committed, Key};
use examples::{ACCOUNTS, OPENING_BALANCE, account, connect, number, parse};

const TASKS: u64 = 8;
const TRANSFERS_PER_TASK: u64 = 25;
/// How often a payment is run of which nobody knows whether it took place.
const RUNS_MAX: usize = 5;
/// Counts the runs of this program, so that each has payments of its own.
const RUNS: &str = "examples/runs";

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let client = connect().await?;
    let run = open_accounts(&client).await?;
    let mut tasks = Vec::new();
    for task in 0..TASKS {
        tasks.push(tokio::spawn(transfers(client.clone(), (run * TASKS + task) * TRANSFERS_PER_TASK)));
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

/// Gives each account that does not exist yet its opening balance, and this run its number, all in one transaction.
async fn open_accounts(client: &Client) -> Result<u64, bezant_client::Error> {
    let open = client.transact(|txn| async move {
        for holder in 0..ACCOUNTS {
            if txn.get(account(holder)).await?.is_none() {
                txn.put(account(holder), number(OPENING_BALANCE));
            }
        }
        let run = txn.get(RUNS).await?.as_ref().map_or(Ok(0), parse)?;
        txn.put(RUNS, number(run + 1));
        Ok(run)
    });
    Ok(open.await?.value)
}

/// What became of a transfer.
enum Transfer {
    Done,
    /// The account holds too little; nothing changed.
    TooLittle,
    /// An account does not exist; nothing changed.
    NotOpen,
}

/// One task's transfers, numbered from `first` on: how many were done, how many were refused, and how many attempts they took.
async fn transfers(client: Client, first: u64) -> Result<(u64, u64, u64), bezant_client::Error> {
    let (mut done, mut refused, mut attempts) = (0, 0, 0);
    for payment in first..first + TRANSFERS_PER_TASK {
        let from = payment * 3 % ACCOUNTS;
        let to = (from + 1 + payment % (ACCOUNTS - 1)) % ACCOUNTS;
        match pay(&client, payment, from, to, 1 + payment % 40).await {
            Ok(committed) => {
                match committed.value {
                    Transfer::Done => done += 1,
                    Transfer::TooLittle => refused += 1,
                    Transfer::NotOpen => eprintln!("payment {payment}: an account is not open"),
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

/// Makes a payment, and runs it again while nobody knows whether it took place.
async fn pay(client: &Client, payment: u64, from: u64, to: u64, amount: u64) -> Result<Committed<Transfer>, bezant_client::Error> {
    for _ in 1..RUNS_MAX {
        match transfer(client, payment, from, to, amount).await {
            Err(error @ bezant_client::Error::OutcomeUnknown { .. }) => eprintln!("payment {payment} is run again: {error}"),
            ended => return ended,
        }
    }
    transfer(client, payment, from, to, amount).await
}

/// Moves `amount`, or nothing at all. Where the payment took place before, nothing is left to do.
async fn transfer(client: &Client, payment: u64, from: u64, to: u64, amount: u64) -> Result<Committed<Transfer>, bezant_client::Error> {
    let run = client.transact(|txn| async move {
        let found = txn.get_many(&[payment_key(payment), account(from), account(to)]).await?;
        let [None, payer, payee] = found.as_slice() else { return Ok(Transfer::Done) };
        let (Some(payer), Some(payee)) = (payer, payee) else { return Ok(Transfer::NotOpen) };
        let Some(left) = parse(payer)?.checked_sub(amount) else { return Ok(Transfer::TooLittle) };
        txn.put(payment_key(payment), number(amount));
        txn.put(account(from), number(left));
        txn.put(account(to), number(parse(payee)? + amount));
        Ok(Transfer::Done)
    });
    run.await
}

fn payment_key(payment: u64) -> Key {
    Key::from(format!("examples/payment/{payment}").as_str())
}
