//! `bezant get`, `scan`, `put`, `delete` and `txn`: one transaction each, and what is printed of it.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{IsTerminal as _, Read, Write as _};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use client::{AsOf, Client, Commit, CommitPath};
use config::Config;
use serde_json::json;
use tokio::task::JoinSet;
use types::{Key, Value};

use crate::as_of::as_of;
use crate::failure::{Attempt as _, Done, Failure};
use crate::out;
use crate::output;
use crate::receipt::Keep;
use crate::regions::ClientRegions;
use crate::script::{self, Scan, Statement};
use crate::tell;

/// The longest script that is read: a transaction's keys and values take less, quotes and hexadecimal included.
pub const SCRIPT_BYTES_MAX: u64 = 64 << 20;

/// Where the cluster is, and how to print.
#[derive(Args, Debug)]
pub struct Reach {
    /// The cluster's folder, or a client's folder of it
    #[arg(long, value_name = "DIR", default_value = "./bezant-data")]
    pub cluster: PathBuf,
    #[command(flatten)]
    pub regions: ClientRegions,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// When what is read was there.
#[derive(Args, Debug)]
pub struct Past {
    /// Read what was there at this time, as in `2026-11-23T18:05:00Z` or `5s ago`, by the replicas' clocks
    #[arg(long, value_name = "TIME", value_parser = as_of, allow_hyphen_values = true)]
    as_of: Option<AsOf>,
}

/// Reads one key.
#[derive(Args, Debug)]
pub struct GetArgs {
    /// The key: text, 0x… in hexadecimal, or @FILE
    #[arg(allow_negative_numbers = true)]
    key: String,
    /// Print the value's bytes as they are, with no line's end
    #[arg(long, conflicts_with = "json")]
    raw: bool,
    #[command(flatten)]
    past: Past,
    #[command(flatten)]
    reach: Reach,
}

/// Reads the keys of a range that have values, in order or from the end.
#[derive(Args, Debug)]
pub struct ScanArgs {
    /// The first key of the range: text, 0x… in hexadecimal, or @FILE
    #[arg(allow_negative_numbers = true)]
    low: String,
    /// The first key after the range
    #[arg(allow_negative_numbers = true)]
    high: String,
    /// How many keys at most: 100 unless it is given
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
    /// From the end of the range: the highest key first
    #[arg(long)]
    reverse: bool,
    /// All of them, however many, as of one moment, printed as they come (with --json an object a line); unless the client may read every key, it has to end within the
    /// replicas' `window_ms`, 10 s unless it was changed. Only where the engine reads the past
    #[arg(long, conflicts_with = "limit")]
    all: bool,
    #[command(flatten)]
    past: Past,
    #[command(flatten)]
    reach: Reach,
}

/// Writes one key.
#[derive(Args, Debug)]
pub struct PutArgs {
    /// The key: text, 0x… in hexadecimal, or @FILE
    #[arg(allow_negative_numbers = true)]
    key: String,
    /// The value: text, 0x… in hexadecimal, or @FILE; put -- before one that begins with a hyphen and is no number
    #[arg(allow_negative_numbers = true)]
    value: String,
    #[command(flatten)]
    keep: Keep,
    #[command(flatten)]
    reach: Reach,
}

/// Deletes one key.
#[derive(Args, Debug)]
pub struct DeleteArgs {
    /// The key: text, 0x… in hexadecimal, or @FILE
    #[arg(allow_negative_numbers = true)]
    key: String,
    #[command(flatten)]
    keep: Keep,
    #[command(flatten)]
    reach: Reach,
}

/// Runs several statements as one transaction.
#[derive(Args, Debug)]
pub struct TxnArgs {
    /// Statements separated by `;`: get KEY, scan LOW HIGH [limit N] [reverse], put KEY VALUE, delete KEY. Or @FILE, which holds them, or - for standard input
    script: String,
    #[command(flatten)]
    keep: Keep,
    #[command(flatten)]
    reach: Reach,
}

/// Carries out `bezant get`.
pub async fn get(args: &GetArgs) -> Result<Done, Failure> {
    let key = script::key(&args.key)?;
    let outcome = once(&args.reach, args.past.as_of, vec![Statement::Get(key.clone())]).await?;
    let value = match outcome.found.first() {
        Some(Found::Key(value)) => value.clone(),
        _ => None,
    };
    if args.reach.json {
        out!("{}", outcome.to_json());
    }
    match value {
        Some(value) => {
            if args.raw {
                std::io::stdout().write_all(value.as_bytes()).attempt("print", "standard output")?;
            } else if !args.reach.json {
                print_value(&value);
            }
            Ok(Done::Well)
        }
        None => {
            tell!("{} has no value", script::shown(&key));
            Ok(Done::Negative)
        }
    }
}

/// Carries out `bezant scan`.
pub async fn scan(args: &ScanArgs) -> Result<Done, Failure> {
    let (low, high) = (script::key(&args.low)?, script::key(&args.high)?);
    if low >= high {
        return Err(Failure::wrong(script::no_key_between(&low, &high)));
    }
    let limit = args.limit.unwrap_or(script::SCAN_LIMIT);
    if limit == 0 {
        return Err(Failure::wrong(script::NO_LIMIT));
    }
    if args.all {
        let client = connect(&args.reach).await?;
        let rows = scan_all(&client, (&low, &high), args).await;
        client.close().await;
        if let Err(failure) = &rows
            && args.reach.json
            && output::has_result()
        {
            out!("{}", failure.to_json()); // Whoever reads the rows must not take them for all.
        }
        return if rows? == 0 { Ok(nothing_found(&low, &high)) } else { Ok(Done::Well) };
    }
    let scan = Scan { low: low.clone(), high: high.clone(), limit, reverse: args.reverse };
    let outcome = once(&args.reach, args.past.as_of, vec![Statement::Scan(scan)]).await?;
    if args.reach.json {
        out!("{}", outcome.to_json());
    }
    match outcome.found.first() {
        Some(Found::Range(found)) if !found.is_empty() => {
            if !args.reach.json {
                print_scan((&low, &high), found);
            }
            if found.len() == limit && args.limit.is_none() && (!args.reach.json || std::io::stderr().is_terminal()) {
                let end = if args.reverse { "last" } else { "first" };
                let all = if outcome.reads_past { ", --all for all" } else { "" };
                tell!("the {end} {limit} keys; --limit N for more{all}");
            }
            Ok(Done::Well)
        }
        _ => Ok(nothing_found(&low, &high)),
    }
}

fn nothing_found(low: &Key, high: &Key) -> Done {
    tell!("no key from {} to {} has a value", script::shown(low), script::shown(high));
    Done::Negative
}

/// Prints the rows of a range as they come; gives how many there were.
async fn scan_all(client: &Client, (low, high): (&Key, &Key), args: &ScanArgs) -> Result<u64, Failure> {
    let mut pages = client.pages(low.clone(), high.clone(), args.past.as_of.unwrap_or(AsOf::Ago(Duration::ZERO)));
    if args.reverse {
        pages = pages.reversed();
    }
    let mut rows = 0;
    while let Some(page) = pages.next().await? {
        rows += page.len() as u64;
        for (key, value) in &page {
            if args.reach.json {
                out!("{}", entry_json(key, Some(value)));
            } else {
                print_get(key, Some(value));
            }
        }
    }
    Ok(rows)
}

/// Carries out `bezant put`.
pub async fn put(args: &PutArgs) -> Result<Done, Failure> {
    let statement = Statement::Put(script::key(&args.key)?, script::value(&args.value)?);
    write(statement, &args.keep, &args.reach).await
}

/// Carries out `bezant delete`.
pub async fn delete(args: &DeleteArgs) -> Result<Done, Failure> {
    write(Statement::Delete(script::key(&args.key)?), &args.keep, &args.reach).await
}

async fn write(statement: Statement, keep: &Keep, reach: &Reach) -> Result<Done, Failure> {
    let outcome = kept_once(keep, reach, vec![statement]).await?;
    if reach.json {
        out!("{}", outcome.to_json());
    } else {
        tell!("{}", outcome.summary());
    }
    Ok(Done::Well)
}

/// Carries out `bezant txn`.
pub async fn txn(args: &TxnArgs) -> Result<Done, Failure> {
    let within = |place: &str, script: &str| plain_statements(script).map_err(|failure| failure.within(place));
    let statements = match args.script.as_str() {
        "-" => within("standard input", &read_script(std::io::stdin().lock(), "standard input")?)?,
        script => match script.strip_prefix('@') {
            Some(path) => within(path, &read_script(File::open(path).map_err(|error| unreadable(&error, path))?, path)?)?,
            None => plain_statements(script)?,
        },
    };
    let outcome = kept_once(&args.keep, &args.reach, statements).await?;
    if args.reach.json {
        out!("{}", outcome.to_json());
    } else {
        outcome.print_gets();
        tell!("{}", outcome.summary());
    }
    Ok(Done::Well)
}

/// The whole of a script.
fn read_script(source: impl Read, place: &str) -> Result<String, Failure> {
    let mut script = String::new();
    source.take(SCRIPT_BYTES_MAX + 1).read_to_string(&mut script).map_err(|error| unreadable(&error, place))?;
    if script.len() as u64 > SCRIPT_BYTES_MAX {
        return Err(Failure::wrong(format!("the statements of one transaction take at most {SCRIPT_BYTES_MAX} bytes")).at(place));
    }
    Ok(script)
}

fn unreadable(error: &std::io::Error, place: &str) -> Failure {
    Failure::wrong(format!("the statements cannot be read: {error}")).at(place)
}

/// The statements of a script that is one transaction by itself.
pub fn plain_statements(script: &str) -> Result<Vec<Statement>, Failure> {
    let statements = script::statements(script)?;
    if statements.is_empty() {
        return Err(Failure::wrong("there is no statement").help("as in: bezant txn 'get a; put b 2'"));
    }
    if statements.iter().any(|statement| matches!(statement, Statement::Begin(_) | Statement::Commit | Statement::Abort)) {
        return Err(Failure::wrong("begin, commit and abort are for `bezant shell`; here all statements are one transaction")
            .help("leave them out"));
    }
    Ok(statements)
}

/// Reads the client's configuration and connects.
pub async fn connect(reach: &Reach) -> Result<Client, Failure> {
    connect_as(reach.regions.config(&reach.cluster)?).await
}

/// Connects as the client of `config`.
pub async fn connect_as(config: Config) -> Result<Client, Failure> {
    let client = bezant_client::connect(config).await?;
    if let Some(warning) = client.clock_warning() {
        tell!("warning: {warning}");
    }
    Ok(client)
}

/// Connects, runs one transaction, and closes: the replicas are told how it ended before this process does.
async fn once(reach: &Reach, as_of: Option<AsOf>, statements: Vec<Statement>) -> Result<Outcome, Failure> {
    let client = connect(reach).await?;
    let outcome = execute(&client, as_of, statements).await;
    client.close().await;
    outcome
}

/// The same, and keeps the receipt where one is wanted.
async fn kept_once(keep: &Keep, reach: &Reach, statements: Vec<Statement>) -> Result<Outcome, Failure> {
    let file = keep.make_file()?;
    let client = connect(reach).await?;
    let outcome = match keep.check_engine(&client) {
        Ok(()) => execute(&client, None, statements).await,
        Err(failure) => Err(failure),
    };
    client.close().await;
    let outcome = outcome?;
    file.keep(&outcome.commit)?;
    Ok(outcome)
}

/// Runs the statements as one transaction, again when it conflicts with others. With a time, all of them read what was there then.
pub async fn execute(client: &Client, as_of: Option<AsOf>, statements: Vec<Statement>) -> Result<Outcome, Failure> {
    let started = Instant::now();
    let shared = &statements;
    let work = |txn: client::Transaction| async move {
        let mut found = Vec::new();
        for alike in shared.chunk_by(|one, next| reads(one) && reads(next)) {
            match &alike[0] {
                Statement::Get(_) | Statement::Scan(..) => found.extend(read_together(&txn, alike).await?),
                Statement::Put(key, value) => txn.put(key.clone(), value.clone()),
                Statement::Delete(key) => txn.delete(key.clone()),
                // Refused before: see plain_statements.
                Statement::Begin(_) | Statement::Commit | Statement::Abort => {}
            }
        }
        Ok(found)
    };
    let only_reads = shared.iter().all(reads);
    let committed = match as_of {
        Some(as_of) => client.read_as_of(as_of, work).await?,
        None if only_reads => client.read(work).await?,
        None => client.transact(work).await?,
    };
    let elapsed = started.elapsed();
    let reads_past = client.capabilities().as_of;
    Ok(Outcome { found: committed.value, commit: committed.commit, attempts: committed.attempts, statements, elapsed, reads_past })
}

/// Whether it changes nothing.
pub fn reads(statement: &Statement) -> bool {
    matches!(statement, Statement::Get(_) | Statement::Scan(..))
}

/// Reads that follow one another, all at once: none of them needs what another finds.
async fn read_together(txn: &client::Transaction, statements: &[Statement]) -> Result<Vec<Found>, client::Error> {
    let (mut keys, mut places, mut scans) = (Vec::new(), Vec::new(), JoinSet::new());
    for (place, statement) in statements.iter().enumerate() {
        match statement.clone() {
            Statement::Get(key) => {
                keys.push(key);
                places.push(place);
            }
            Statement::Scan(scan) => {
                let txn = txn.clone();
                scans.spawn(async move { scan.run(&txn).await.map(|found| (place, Found::Range(found))) });
            }
            Statement::Put(..) | Statement::Delete(_) | Statement::Begin(_) | Statement::Commit | Statement::Abort => {}
        }
    }
    let values = txn.get_many(&keys).await?;
    let mut found: BTreeMap<usize, Found> = places.into_iter().zip(values.into_iter().map(Found::Key)).collect();
    while let Some(scan) = scans.join_next().await {
        let (place, range) = scan.map_err(|_| client::Error::Closed)??;
        found.insert(place, range);
    }
    Ok(found.into_values().collect())
}

/// What one statement found.
#[derive(Clone)]
enum Found {
    /// The value of a key.
    Key(Option<Value>),
    /// The keys of a range that have values.
    Range(Vec<(Key, Value)>),
}

/// What a committed transaction gave.
pub struct Outcome {
    statements: Vec<Statement>,
    /// What each `get` and `scan` found, in order.
    found: Vec<Found>,
    commit: Commit,
    attempts: u32,
    elapsed: Duration,
    /// Whether the cluster can read what there was at a moment, as ranges are read that have no limit.
    reads_past: bool,
}

impl Outcome {
    /// Every statement with its result, a line each, and one for each key of a range.
    pub fn print_all(&self) {
        let mut found = self.found.iter();
        for statement in &self.statements {
            match statement {
                Statement::Get(_) | Statement::Scan(..) => print_found(statement, found.next()),
                Statement::Put(key, value) => out!("put {} = {value}", script::shown(key)),
                Statement::Delete(key) => out!("delete {}", script::shown(key)),
                Statement::Begin(_) | Statement::Commit | Statement::Abort => {}
            }
        }
    }

    /// What was read, a line each.
    pub fn print_gets(&self) {
        for (statement, found) in self.reads() {
            print_found(statement, Some(found));
        }
    }

    fn reads(&self) -> impl Iterator<Item = (&Statement, &Found)> {
        self.statements.iter().filter(|statement| reads(statement)).zip(&self.found)
    }

    /// One line: `committed 3f… over the fast path by 6 of 6 replicas in 1.9 ms`.
    pub fn summary(&self) -> String {
        summary(&self.commit, self.attempts, self.elapsed)
    }

    /// All of it, for programs.
    pub fn to_json(&self) -> serde_json::Value {
        let text = |key: &Key| json_text(key.as_bytes());
        let reads = self.reads().filter_map(|(statement, found)| match (statement, found) {
            (Statement::Get(key), Found::Key(value)) => Some(entry_json(key, value.as_ref())),
            (Statement::Scan(Scan { low, high, limit, reverse }), Found::Range(found)) => {
                let found: Vec<_> = found.iter().map(|(key, value)| entry_json(key, Some(value))).collect();
                Some(json!({"low": text(low), "high": text(high), "limit": limit, "reverse": reverse, "found": found}))
            }
            _ => None,
        });
        let reads: Vec<_> = reads.collect();
        json!({
            "id": hex::encode(self.commit.id.0),
            "timestamp": self.commit.timestamp.to_string(),
            "path": path_name(self.commit.path),
            "attempts": self.attempts,
            "ms": self.elapsed.as_micros() as f64 / 1e3,
            "reads": reads,
        })
    }
}

fn entry_json(key: &Key, value: Option<&Value>) -> serde_json::Value {
    json!({"key": json_text(key.as_bytes()), "value": value.map(|value| json_text(value.as_bytes()))})
}

/// The text that `bytes` are, unless it could be taken for bytes in hexadecimal.
fn text_of(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes).ok().filter(|text| !text.starts_with("0x"))
}

/// The text that `value` is, if a terminal shows it and does nothing else for it.
fn harmless_text(value: &Value) -> Option<&str> {
    text_of(value.as_bytes()).filter(|text| text.chars().all(|letter| !letter.is_control() || matches!(letter, '\n' | '\t')))
}

/// Prints a value by itself, ended by one line's end: its own, or one more.
fn print_value(value: &Value) {
    match harmless_text(value) {
        Some(text) => out!("{}", text.strip_suffix('\n').unwrap_or(text)),
        None => out!("{value}"),
    }
}

fn print_found(statement: &Statement, found: Option<&Found>) {
    match (statement, found) {
        (Statement::Get(key), Some(Found::Key(value))) => print_get(key, value.as_ref()),
        (Statement::Scan(scan), Some(Found::Range(found))) => print_scan((&scan.low, &scan.high), found),
        _ => {}
    }
}

/// Prints what a `scan` found, a key on a line.
pub fn print_scan((low, high): (&Key, &Key), found: &[(Key, Value)]) {
    for (key, value) in found {
        print_get(key, Some(value));
    }
    if found.is_empty() {
        out!("no key from {} to {} has a value", script::shown(low), script::shown(high));
    }
}

/// Prints what a `get` found, on one line whatever it is.
pub fn print_get(key: &Key, value: Option<&Value>) {
    match value {
        Some(value) => match harmless_text(value) {
            Some(text) if text.contains(['\n', '\t']) => out!("{} = {}", script::shown(key), script::quoted_text(text)),
            _ => out!("{} = {value}", script::shown(key)),
        },
        None => out!("{} has no value", script::shown(key)),
    }
}

/// Text as text, other bytes as `0x…`. JSON can hold any text.
pub fn json_text(bytes: &[u8]) -> String {
    text_of(bytes).map_or_else(|| format!("0x{}", hex::encode(bytes)), str::to_owned)
}

/// How a commit went, in one line.
pub fn summary(commit: &Commit, attempts: u32, elapsed: Duration) -> String {
    let id = hex::encode(&commit.id.0[..8]);
    let way = match commit.path {
        CommitPath::Fast => " over the fast path",
        CommitPath::Slow => " over the slow path",
        CommitPath::Recovered => ", finished by another",
        CommitPath::ReadOnly => " without a vote, having only read",
        CommitPath::Empty => return "nothing to commit".to_owned(),
    };
    let by = commit.receipt.as_ref().map_or_else(String::new, |receipt| format!(" by {}", receipt.summary()));
    let again = if attempts > 1 { format!(" at attempt {attempts}") } else { String::new() };
    format!("committed {id}{way}{by}{again} in {:.1} ms", elapsed.as_secs_f64() * 1e3)
}

fn path_name(path: CommitPath) -> &'static str {
    match path {
        CommitPath::Fast => "fast",
        CommitPath::Slow => "slow",
        CommitPath::Recovered => "recovered",
        CommitPath::ReadOnly => "read-only",
        CommitPath::Empty => "empty",
    }
}
