//! A bank whose money must stay the same in sum, and whose every acknowledged transfer must be found again.
//!
//! Accounts hold whole coins. A transfer reads two balances, moves what it can, and writes one record under a key
//! of its own, `bank/ack/<run>/<loop_client>/<number>`, which says what it moved. Three things follow that can be checked:
//!
//! * *Nothing is lost or made while it runs*: an audit reads all accounts in one read-only transaction; the sum is
//!   what it was at the start.
//! * *The balances are what the records say*: replaying the records of all runs from the initial balances gives
//!   each account's balance. A transfer that was applied twice, or in part, shows here.
//! * *What was acknowledged is there*: when a transfer's commit is known to its client, a line goes into the run's
//!   journal, a file beside the cluster, not in it. After `kill -9` of every node, [`verify_journal`] reads each
//!   record back.
//!
//! A loop client numbers its transfers from 0 and goes on to the next number only when the last is acknowledged; one whose
//! fate is unknown (the connection was lost while it committed) is tried again under the same number, and reads its
//! own record first: if that is there, the transfer is done already. So a loop client's records have no gaps, whatever
//! happened, and they can be found without the journal.

mod journal;
mod ledger;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use client::{Client, Committed, Transaction};
use serde_json::{Value as Json, json};
use types::{Key, Value};

use crate::findings::Findings;
use crate::{
    Done, Error, KEYS_A_REQUEST_MAX, LoopClient, Progress, READS_A_TRANSACTION_MAX, Readiness, Verdict, Work, Workload, mix, persist, sweep,
};
use journal::{Acknowledged, Journal, JournalReader};
use ledger::{Ledger, Meta, Run, Runs, Transfer, parse_balance};

/// The fewest accounts between which money can move.
pub const ACCOUNTS_MIN: u64 = 2;
/// The most accounts: an audit must fit one transaction.
pub const ACCOUNTS_MAX: u64 = READS_A_TRANSACTION_MAX;
/// What each account holds at first.
const INITIAL_BALANCE: u64 = 1_000;
/// The most a transfer tries to move.
const AMOUNT_MAX: u64 = 100;
/// How many records of a loop client are asked for at once when they are counted.
const RECORDS_A_REQUEST: u64 = 256;
/// How often the books are read anew when they do not agree: somebody's last transfer may just be committing.
const BOOKS_READ_MAX: u32 = 3;
/// The pause before they are.
const BOOKS_PAUSE_MS: u64 = 500;

/// The bank workload.
#[derive(Debug)]
pub struct Bank {
    accounts: u64,
    /// This run's name, drawn by the caller: transfers of different runs must not share records.
    run: u64,
    journal_path: PathBuf,
    /// Opened by [`Workload::start`].
    journal: OnceLock<Journal>,
}

/// What reading a journal's transfers back found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalCheck {
    /// How many transfers the journal says were acknowledged.
    pub acknowledged: u64,
    /// How many of them are in the store exactly as they were acknowledged.
    pub found: u64,
    /// How many transfers the store's own records hold, over all runs since the bank was loaded.
    pub recorded: u64,
    /// Whether all is well, or what is not.
    pub verdict: Verdict,
}

/// How a transfer's attempt ended.
enum Settled {
    Now(Value),
    Before(Value),
    Broken(String),
}

impl Bank {
    /// A bank of `accounts` accounts; `run` names this run, and its acknowledgements go to the file `journal_path`.
    ///
    /// # Errors
    /// [`Error::Settings`] when there are too few or too many accounts.
    pub fn new(accounts: u64, run: u64, journal_path: PathBuf) -> Result<Self, Error> {
        if !(ACCOUNTS_MIN..=ACCOUNTS_MAX).contains(&accounts) {
            return Err(Error::Settings(format!("a bank has from {ACCOUNTS_MIN} to {ACCOUNTS_MAX} accounts, not {accounts}")));
        }
        Ok(Self { accounts, run, journal_path, journal: OnceLock::new() })
    }

    fn meta(&self) -> Meta {
        Meta { accounts: self.accounts, initial: INITIAL_BALANCE }
    }

    async fn open(&self, client: &Client, loop_clients: u32) -> Result<Readiness, Error> {
        let (meta, run) = (self.meta(), Run { name: self.run, loop_clients });
        let enrolled = persist(client, move |txn| enrol(txn, meta, run)).await?;
        enrolled.map_err(Error::NotLoaded)?;
        let journal = Journal::create(&self.journal_path, run)?;
        assert!(self.journal.set(journal).is_ok(), "a run is started once");
        Ok(Readiness::Filled)
    }

    async fn transfer(&self, client: &Client, loop_client: &mut LoopClient) -> Result<Done, Error> {
        let number = loop_client.next;
        let wanted = wanted(self.accounts, self.run, loop_client.index, number);
        let record = record_key(self.run, loop_client.index, number);
        let committed: Committed<Settled> = client.transact(|txn| settle(txn, record.clone(), wanted)).await?;
        let mut done = Done::committed(&committed);
        let (value, transaction) = match committed.value {
            Settled::Now(value) => (value, committed.commit.id.to_string()),
            // The name of the transaction that made it was lost with its acknowledgement.
            Settled::Before(value) => (value, "-".to_owned()),
            Settled::Broken(what) => {
                done.broken = Some(what);
                return Ok(done);
            }
        };
        let journal = self.journal.get().expect("a run is started before its first transaction");
        journal.append(&Acknowledged { key: record, value, transaction, timestamp: committed.commit.timestamp.to_string() })?;
        // Only now: an earlier step that fails is tried again under the same number.
        loop_client.next += 1;
        Ok(done)
    }

    async fn audit(&self, client: &Client) -> Result<Verdict, Error> {
        let balances = client.transact(|txn| read_balances(txn, self.accounts)).await?.value;
        Ok(Verdict::of(ledger::check_sum(self.meta(), &balances).err().into_iter().collect()))
    }
}

impl Workload for Bank {
    fn name(&self) -> &'static str {
        "bank"
    }

    fn settings(&self) -> BTreeMap<&'static str, Json> {
        BTreeMap::from([
            ("keys", json!(self.accounts)),
            ("run", json!(format!("{:016x}", self.run))),
            ("journal", json!(self.journal_path.display().to_string())),
        ])
    }

    fn load<'a>(&'a self, client: &'a Arc<Client>, progress: Progress<'a>) -> Work<'a, u64> {
        let meta = self.meta();
        Box::pin(async move {
            let founding = move |txn: Transaction| async move {
                found(&txn, meta);
                Ok(())
            };
            persist(client, founding).await?;
            progress(meta.accounts, meta.accounts);
            Ok(meta.accounts)
        })
    }

    fn start<'a>(&'a self, client: &'a Client, loop_clients: u32) -> Work<'a, Readiness> {
        Box::pin(self.open(client, loop_clients))
    }

    fn transact<'a>(&'a self, client: &'a Client, loop_client: &'a mut LoopClient) -> Work<'a, Done> {
        Box::pin(self.transfer(client, loop_client))
    }

    fn check_running<'a>(&'a self, client: &'a Client) -> Option<Work<'a, Verdict>> {
        Some(Box::pin(self.audit(client)))
    }

    fn check_end<'a>(&'a self, client: &'a Client, progress: Progress<'a>) -> Option<Work<'a, Verdict>> {
        Some(Box::pin(async move { Ok(verify_journal(client, &self.journal_path, progress).await?.verdict) }))
    }
}

/// Reads back every transfer that the journal at `path` says was acknowledged, then replays the records of all runs
/// and compares with the balances. Nobody may be transferring meanwhile.
///
/// # Errors
/// [`Error`] when the journal cannot be read or is none, when the store holds no bank, or the client gives up.
pub async fn verify_journal(client: &Client, path: &Path, progress: Progress<'_>) -> Result<JournalCheck, Error> {
    let mut reader = JournalReader::open(path)?;
    let total = reader.bytes();
    let mut findings = Findings::default();
    let (mut acknowledged, mut found) = (0, 0);
    loop {
        let lines = reader.next_lines(RECORDS_A_REQUEST as usize)?;
        if lines.is_empty() {
            break;
        }
        let keys: Arc<[Key]> = lines.iter().map(|line| line.key.clone()).collect();
        for (line, value) in lines.iter().zip(sweep::read(client, keys).await?) {
            acknowledged += 1;
            match value {
                Some(value) if value == line.value => found += 1,
                Some(value) => findings.add(format!("{} was acknowledged as '{}' and is now '{value}'", line.key, line.value)),
                None => findings.add(format!("{} was acknowledged and is not in the store", line.key)),
            }
        }
        progress(reader.position(), total);
    }
    let (recorded, books) = check_books(client).await?;
    books.into_iter().for_each(|finding| findings.add(finding));
    Ok(JournalCheck { acknowledged, found, recorded, verdict: Verdict::of(findings.told()) })
}

/// Replays all records and compares with the balances; gives how many records there are, and what does not agree.
async fn check_books(client: &Client) -> Result<(u64, Vec<String>), Error> {
    let mut reads = 1;
    loop {
        let (recorded, findings) = read_books(client).await?;
        if findings.is_empty() || reads == BOOKS_READ_MAX {
            return Ok((recorded, findings));
        }
        reads += 1;
        tokio::time::sleep(Duration::from_millis(BOOKS_PAUSE_MS)).await;
    }
}

async fn read_books(client: &Client) -> Result<(u64, Vec<String>), Error> {
    let head = persist(client, |txn| async move { read_head(&txn).await }).await?;
    let (meta, runs) = head.map_err(Error::NotLoaded)?;
    let balances = persist(client, move |txn| read_balances(txn, meta.accounts)).await?;
    let mut ledger = Ledger::new(meta);
    let mut findings = Findings::default();
    findings.note(ledger::check_sum(meta, &balances));
    for run in runs.0 {
        for loop_client in 0..run.loop_clients {
            replay_loop_client(client, run, loop_client, &mut ledger, &mut findings).await?;
        }
    }
    ledger.compare(&balances).into_iter().for_each(|finding| findings.add(finding));
    Ok((ledger.transfers(), findings.told()))
}

async fn replay_loop_client(
    client: &Client,
    run: Run,
    loop_client: u32,
    ledger: &mut Ledger,
    findings: &mut Findings,
) -> Result<(), Error> {
    let mut from = 0;
    loop {
        let keys: Arc<[Key]> = (from..from + RECORDS_A_REQUEST).map(|number| record_key(run.name, loop_client, number)).collect();
        let values = sweep::read(client, Arc::clone(&keys)).await?;
        let end = values.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
        for (key, value) in keys[..end].iter().zip(&values) {
            match value {
                Some(value) => findings.note(ledger.apply(value).map_err(|what| format!("{key}: {what}"))),
                None => findings.add(format!("{key} is missing, though its loop client went on to a later transfer")),
            }
        }
        if end < values.len() {
            return Ok(());
        }
        from += RECORDS_A_REQUEST;
    }
}

/// Writes a new bank: all accounts, no runs.
fn found(txn: &Transaction, meta: Meta) {
    txn.put(meta_key(), meta.to_value());
    txn.put(runs_key(), Runs::default().to_value());
    for account in 0..meta.accounts {
        txn.put(account_key(account), Value::from(meta.initial.to_string().as_str()));
    }
}

/// Adds `run` to the bank's runs, so that its records can be found later; founds the bank if there is none.
async fn enrol(txn: Transaction, meta: Meta, run: Run) -> Result<Result<(), String>, client::Error> {
    let mut runs = match read_head(&txn).await? {
        Ok((there, _)) if there != meta => {
            return Ok(Err(format!("the store's bank has {} accounts, not {}", there.accounts, meta.accounts)));
        }
        Ok((_, runs)) => runs,
        Err(_) if txn.get(meta_key()).await?.is_none() => {
            found(&txn, meta);
            Runs::default()
        }
        Err(what) => return Ok(Err(what)),
    };
    let added = runs.add(run);
    txn.put(runs_key(), runs.to_value());
    Ok(added)
}

async fn read_head(txn: &Transaction) -> Result<Result<(Meta, Runs), String>, client::Error> {
    let head = txn.get_many(&[meta_key(), runs_key()]).await?;
    Ok(match head.as_slice() {
        [Some(meta), Some(runs)] => Meta::parse(meta).and_then(|meta| Ok((meta, Runs::parse(runs)?))),
        _ => Err("the store holds no bank".to_owned()),
    })
}

/// One attempt of a transfer.
async fn settle(txn: Transaction, record: Key, wanted: Transfer) -> Result<Settled, client::Error> {
    let seen = txn.get_many(&[record.clone(), account_key(wanted.from), account_key(wanted.to)]).await?;
    let [before, from, to] = seen.as_slice() else { return Ok(Settled::Broken("three keys were read, not three answered".to_owned())) };
    if let Some(before) = before {
        return Ok(Settled::Before(before.clone()));
    }
    let (Some(from), Some(to)) = (from.as_ref().and_then(parse_balance), to.as_ref().and_then(parse_balance)) else {
        return Ok(Settled::Broken(format!("account {} or {} holds no balance", wanted.from, wanted.to)));
    };
    let moved = wanted.moved.min(from);
    let Some(to) = to.checked_add(moved) else {
        return Ok(Settled::Broken(format!("account {} holds more than all the bank's money", wanted.to)));
    };
    let value = Transfer { moved, ..wanted }.to_value();
    txn.put(account_key(wanted.from), Value::from((from - moved).to_string().as_str()));
    txn.put(account_key(wanted.to), Value::from(to.to_string().as_str()));
    txn.put(record, value.clone());
    Ok(Settled::Now(value))
}

async fn read_balances(txn: Transaction, accounts: u64) -> Result<Vec<Option<u64>>, client::Error> {
    let keys: Vec<Key> = (0..accounts).map(account_key).collect();
    let mut balances = Vec::with_capacity(keys.len());
    for keys in keys.chunks(KEYS_A_REQUEST_MAX) {
        balances.extend(txn.get_many(keys).await?.iter().map(|value| value.as_ref().and_then(parse_balance)));
    }
    Ok(balances)
}

/// What transfer `number` of a loop client is to do: a function of its name, so that each try of it is the same.
fn wanted(accounts: u64, run: u64, loop_client: u32, number: u64) -> Transfer {
    let draw = |what: u64| mix(&[run, u64::from(loop_client), number, what]);
    let from = draw(0) % accounts;
    let to = (from + 1 + draw(1) % (accounts - 1)) % accounts;
    Transfer { from, to, moved: 1 + draw(2) % AMOUNT_MAX }
}

fn meta_key() -> Key {
    Key::from("bank/meta")
}

fn runs_key() -> Key {
    Key::from("bank/runs")
}

fn account_key(account: u64) -> Key {
    Key::from(format!("bank/account/{account:06}").as_str())
}

fn record_key(run: u64, loop_client: u32, number: u64) -> Key {
    Key::from(format!("bank/ack/{run:016x}/{loop_client:05}/{number:010}").as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transfer_is_the_same_however_often_it_is_tried_and_never_to_itself() {
        for number in 0..1_000 {
            let transfer = wanted(2 + number % 5, 7, 3, number);
            assert_eq!(transfer, wanted(2 + number % 5, 7, 3, number));
            assert_ne!(transfer.from, transfer.to);
            assert!((1..=AMOUNT_MAX).contains(&transfer.moved));
        }
        assert_ne!(wanted(1_000, 7, 3, 0), wanted(1_000, 7, 4, 0));
    }

    #[test]
    fn records_of_different_runs_loop_clients_and_numbers_have_different_keys() {
        assert_eq!(record_key(0xab, 3, 12), Key::from("bank/ack/00000000000000ab/00003/0000000012"));
    }
}
