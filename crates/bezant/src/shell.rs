//! `bezant shell`: statements typed one after another, with history and completion.

use std::io::{BufRead as _, IsTerminal as _, Read as _, stdin};
use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use client::{Advice, Client, Transaction};
use rustyline::completion::Completer;
use rustyline::config::Configurer as _;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::Validator;
use rustyline::{Context, Editor, Helper};
use tokio::runtime::Handle;

use crate::failure::{Attempt as _, Done, Failure};
use crate::out;
use crate::regions::ClientRegions;
use crate::script::{self, Statement};
use crate::statements::{self, Reach, SCRIPT_BYTES_MAX};
use crate::tell;

/// How many lines the history keeps.
const HISTORY_LINES_MAX: usize = 10_000;
/// What a line may begin with.
const VERBS: [&str; 10] = ["abort", "begin", "commit", "delete ", "exit", "get ", "help", "put ", "quit", "scan "];
const HELP: &str = "\
get KEY             read a key
scan LOW HIGH       read the keys from LOW up to HIGH that have values, the first 100; or another number: scan LOW HIGH limit N;
                    or from the end, the highest first: scan LOW HIGH reverse, or scan LOW HIGH limit N reverse
put KEY VALUE       write a key
delete KEY          delete a key
begin               begin a transaction of several lines, which ends with commit or abort
begin as of TIME    the same, which reads what was there at a time such as 2026-11-23T18:05:00Z, or 5s ago
commit, abort
help, exit

Statements on one line, separated by `;`, are one transaction. Once something fails between begin and commit, nothing
of that transaction is committed. Keys and values are text, 0x… in hexadecimal, or @FILE. Quotes go around what has
spaces, or is text that begins with 0x, @ or #: within '…' nothing is special, within \"…\" \\n, \\t, \\\\ and \\\" are.
A statement that begins with # is a comment, up to the end of its line.";

/// Reads statements and runs them, with history and completion on a terminal.
#[derive(Args, Debug)]
pub struct ShellArgs {
    /// The cluster's folder, or a client's folder of it
    #[arg(long, value_name = "DIR", default_value = "./bezant-data")]
    cluster: PathBuf,
    #[command(flatten)]
    regions: ClientRegions,
}

/// Carries out `bezant shell`.
pub async fn run(args: &ShellArgs) -> Result<Done, Failure> {
    let client = statements::connect(&Reach { cluster: args.cluster.clone(), regions: args.regions.clone(), json: false }).await?;
    let handle = Handle::current();
    // Reading a line blocks, so it has a thread of its own; what is read runs on the runtime.
    let lines = tokio::task::spawn_blocking(move || {
        let is_typed = stdin().is_terminal();
        let mut session = Session { client, open: None, is_typed, line: 0, failed: None, may_have_taken_place: None };
        let read = if is_typed { type_in(&handle, &mut session) } else { read_script(&handle, &mut session) };
        handle.block_on(session.client.close());
        read
    });
    lines.await.attempt("run the shell", "this terminal")?
}

/// Runs what is typed, with history and completion.
fn type_in(handle: &Handle, session: &mut Session) -> Result<Done, Failure> {
    let mut editor: Editor<Verbs, FileHistory> = Editor::new().attempt("read lines", "this terminal")?;
    editor.set_helper(Some(Verbs));
    editor.set_max_history_size(HISTORY_LINES_MAX).attempt("keep a history", "this terminal")?;
    let history = std::env::home_dir().map(|home| home.join(".bezant_history"));
    if let Some(path) = &history {
        // There is none yet at the first start.
        let _ = editor.load_history(path);
    }
    let mut last = Next::Well;
    'lines: loop {
        let typed = match editor.readline(session.prompt()) {
            Ok(typed) => typed,
            Err(ReadlineError::Interrupted) => {
                if session.open.is_some() {
                    tell!("the transaction is still open: abort ends it");
                }
                continue;
            }
            Err(ReadlineError::Eof) => break,
            Err(error) => return Err(error).attempt("read a line", "this terminal"),
        };
        // What was pasted may be several lines.
        for line in typed.lines() {
            editor.add_history_entry(line).attempt("keep the line", "the history")?;
            match handle.block_on(session.line(line)) {
                Next::Over => break 'lines,
                next => last = next,
            }
        }
    }
    if session.open.is_some() {
        tell!("the open transaction is thrown away");
    }
    if let Some(path) = &history
        && let Err(error) = editor.save_history(path)
    {
        tell!("the history could not be kept in {}: {error}", path.display());
    }
    // Said already; the exit code tells how the last line went.
    Ok(if last == Next::Failed { Done::Negative } else { Done::Well })
}

/// Runs what comes through a pipe or from a file, to its end. It fails if any of it did, and leaves no history.
fn read_script(handle: &Handle, session: &mut Session) -> Result<Done, Failure> {
    let (mut input, mut line) = (stdin().lock(), Vec::new());
    while input.by_ref().take(SCRIPT_BYTES_MAX + 1).read_until(b'\n', &mut line).attempt("read a line", "standard input")? > 0 {
        if line.len() as u64 > SCRIPT_BYTES_MAX {
            let place = format!("standard input, line {}", session.line + 1);
            return Err(Failure::wrong(format!("a line has more than {} MiB", SCRIPT_BYTES_MAX >> 20)).at(place));
        }
        let next = match std::str::from_utf8(&line) {
            // Without the line's end, as `lines` gives it: it is no part of a value.
            Ok(text) => handle.block_on(session.line(text.lines().next().unwrap_or_default())),
            Err(_) => session.no_text(),
        };
        if next == Next::Over {
            break;
        }
        line.clear();
    }
    if session.open.is_some() {
        let failure = Failure::wrong("the script ended within a transaction, which is thrown away").help("end it with commit or abort");
        tell!("{failure}");
        session.failed.get_or_insert((session.line, failure));
    }
    match session.failed.take() {
        None => Ok(Done::Well),
        Some((line, first)) => Err(session
            .may_have_taken_place
            .take()
            .unwrap_or(first)
            .summed_up(format!("not all of the script was done; line {line} was the first that failed"))),
    }
}

/// What comes of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Well,
    Failed,
    Over,
}

struct Session {
    client: Client,
    open: Option<Open>,
    /// Somebody types the lines, and sees which one failed.
    is_typed: bool,
    /// The number of the line that was read last.
    line: u64,
    /// The first line that failed, and why.
    failed: Option<(u64, Failure)>,
    /// One of them may have taken place.
    may_have_taken_place: Option<Failure>,
}

/// A transaction of several lines.
struct Open {
    transaction: Transaction,
    begun: Instant,
    /// It is as of a time in the past.
    reads_only: bool,
    /// Something in it failed: nothing of it may be committed any more.
    has_failed: bool,
}

impl Session {
    fn prompt(&self) -> &'static str {
        match &self.open {
            None => "bezant> ",
            Some(open) if open.has_failed => "bezant (transaction failed)> ",
            Some(_) => "bezant (in transaction)> ",
        }
    }

    /// Runs one line, and says on standard error what went wrong.
    async fn line(&mut self, text: &str) -> Next {
        self.line += 1;
        match text.trim() {
            "exit" | "quit" => return Next::Over,
            "help" => {
                out!("{HELP}");
                return Next::Well;
            }
            _ => {}
        }
        match self.statements(text).await {
            Ok(()) => Next::Well,
            Err(failure) => self.fail(failure),
        }
    }

    /// A line that is no text.
    fn no_text(&mut self) -> Next {
        self.line += 1;
        self.fail(Failure::wrong("this line is not UTF-8").help("write bytes that are no text as 0x…, or take them from a file: @FILE"))
    }

    fn fail(&mut self, failure: Failure) -> Next {
        let failure = if self.is_typed { failure } else { failure.within(format!("standard input, line {}", self.line)) };
        tell!("{failure}");
        if failure.is_to_be_looked_at() {
            self.may_have_taken_place.get_or_insert_with(|| failure.clone());
        }
        if let Some(open) = &mut self.open {
            open.has_failed = true;
        }
        self.failed.get_or_insert((self.line, failure));
        Next::Failed
    }

    /// Runs one line's statements. Outside `begin`, neighbouring ones are one transaction.
    async fn statements(&mut self, text: &str) -> Result<(), Failure> {
        let done = self.in_order(text).await;
        if done.is_err() && self.open.is_none() && script::leaves_open(text) {
            // The lines after it are still meant for the transaction that it was to begin.
            self.open = Some(Open { transaction: self.client.begin(), begun: Instant::now(), reads_only: false, has_failed: true });
        }
        done
    }

    async fn in_order(&mut self, text: &str) -> Result<(), Failure> {
        let statements = script::statements(text)?;
        let mut together = Vec::new();
        for statement in statements {
            match statement {
                Statement::Begin(_) | Statement::Commit | Statement::Abort => {
                    self.flush(&mut together).await?;
                    self.control(&statement).await?;
                }
                other => together.push(other),
            }
        }
        self.flush(&mut together).await
    }

    async fn flush(&mut self, together: &mut Vec<Statement>) -> Result<(), Failure> {
        let batch = std::mem::take(together);
        if batch.is_empty() {
            return Ok(());
        }
        match &mut self.open {
            Some(Open { has_failed: true, .. }) => {
                return Err(Failure::wrong("this transaction has failed, and nothing more is done in it").help("end it with abort"));
            }
            Some(Open { transaction, reads_only, .. }) => {
                for statement in &batch {
                    match statement {
                        Statement::Put(..) | Statement::Delete(_) if *reads_only => {
                            return Err(
                                Failure::wrong("a transaction as of a time in the past reads only").help("write in one that `begin` opens")
                            );
                        }
                        Statement::Get(key) => {
                            statements::print_get(key, transaction.get(key.clone()).await.map_err(begin_again)?.as_ref());
                        }
                        Statement::Scan(scan) => {
                            let found = scan.run(transaction).await.map_err(begin_again)?;
                            statements::print_scan((&scan.low, &scan.high), &found);
                        }
                        Statement::Put(key, value) => transaction.put(key.clone(), value.clone()),
                        Statement::Delete(key) => transaction.delete(key.clone()),
                        Statement::Begin(_) | Statement::Commit | Statement::Abort => unreachable!("`statements` hands these to `control`"),
                    }
                }
            }
            None => {
                let outcome = statements::execute(&self.client, None, batch).await?;
                outcome.print_gets();
                tell!("{}", outcome.summary());
            }
        }
        Ok(())
    }

    async fn control(&mut self, statement: &Statement) -> Result<(), Failure> {
        match (statement, self.open.take()) {
            (Statement::Begin(as_of), None) => {
                let transaction = as_of.map_or_else(|| Ok(self.client.begin()), |as_of| self.client.begin_as_of(as_of))?;
                self.open = Some(Open { transaction, begun: Instant::now(), reads_only: as_of.is_some(), has_failed: false });
            }
            (Statement::Begin(_), open) => {
                self.open = open;
                return Err(Failure::wrong("a transaction is open already").help("end it with commit or abort"));
            }
            (_, None) => return Err(Failure::wrong("no transaction is open").help("begin opens one")),
            (Statement::Commit, Some(Open { has_failed: true, .. })) => {
                return Err(Failure::wrong("nothing was committed: something in this transaction failed").help("begin it again"));
            }
            (Statement::Commit, Some(Open { transaction, begun, .. })) => {
                let commit = transaction.commit().await.map_err(begin_again)?;
                tell!("{}", statements::summary(&commit, 1, begun.elapsed()));
            }
            (_, Some(_)) => tell!("aborted; nothing was written"),
        }
        Ok(())
    }
}

/// Why a transaction that somebody opened has failed: nobody else can try it again.
fn begin_again(error: client::Error) -> Failure {
    let may_help = matches!(error.advice(), Advice::Retry | Advice::RetryAfter { .. });
    let failure = Failure::from(error);
    if may_help { failure.help("nothing of it took place: begin it again, and read again what it depends on") } else { failure }
}

/// Completes the first word of a line.
struct Verbs;

impl Completer for Verbs {
    type Candidate = String;

    fn complete(&self, line: &str, position: usize, _: &Context<'_>) -> rustyline::Result<(usize, Vec<String>)> {
        let before = line.get(..position).unwrap_or_default();
        let start = before.rfind(';').map_or(0, |at| at + 1);
        let word = before[start..].trim_start();
        let candidates = VERBS.iter().filter(|verb| verb.starts_with(word)).map(|verb| (*verb).to_owned()).collect();
        Ok((position - word.len(), candidates))
    }
}

impl Hinter for Verbs {
    type Hint = String;
}

impl Highlighter for Verbs {}
impl Validator for Verbs {}
impl Helper for Verbs {}
