//! `bezant shell`: statements typed one after another, with history and completion.

use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use client::{Client, Transaction};
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
use crate::statements::{self, Reach};
use crate::words::{self, Statement};

/// How many lines the history keeps.
const HISTORY_LINES_MAX: usize = 10_000;
/// What a line may begin with.
const VERBS: [&str; 9] = ["abort", "begin", "commit", "delete ", "exit", "get ", "help", "put ", "quit"];
const HELP: &str = "\
get KEY             read a key
put KEY VALUE       write a key
delete KEY          delete a key
begin               begin a transaction of several lines, which ends with commit or abort
commit, abort
help, exit

Statements on one line, separated by `;`, are one transaction. Keys and values are text, 0x… in hexadecimal, or
@FILE; put quotes around what has spaces.";

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
    let lines = tokio::task::spawn_blocking(move || read_lines(&handle, client));
    lines.await.attempt("run the shell", "this terminal")?
}

fn read_lines(handle: &Handle, client: Client) -> Result<Done, Failure> {
    let mut editor: Editor<Verbs, FileHistory> = Editor::new().attempt("read lines", "this terminal")?;
    editor.set_helper(Some(Verbs));
    editor.set_max_history_size(HISTORY_LINES_MAX).attempt("keep a history", "this terminal")?;
    let history = std::env::home_dir().map(|home| home.join(".bezant_history"));
    if let Some(path) = &history {
        // There is none yet at the first start.
        let _ = editor.load_history(path);
    }
    let mut session = Session { client, open: None };
    let mut last = Ok(Done::Well);
    loop {
        let prompt = if session.open.is_some() { "bezant (in transaction)> " } else { "bezant> " };
        let line = match editor.readline(prompt) {
            Ok(line) => line,
            Err(ReadlineError::Interrupted) => continue,
            Err(ReadlineError::Eof) => break,
            Err(error) => return Err(error).attempt("read a line", "this terminal"),
        };
        match line.trim() {
            "" => continue,
            "exit" | "quit" => break,
            "help" => out!("{HELP}"),
            text => {
                editor.add_history_entry(text).attempt("keep the line", "the history")?;
                last = handle.block_on(session.line(text)).map(|()| Done::Well);
                if let Err(failure) = &last {
                    eprintln!("{failure}");
                }
            }
        }
    }
    handle.block_on(session.client.close());
    if session.open.is_some() {
        eprintln!("the open transaction is thrown away");
    }
    if let Some(path) = &history
        && let Err(error) = editor.save_history(path)
    {
        eprintln!("the history could not be kept in {}: {error}", path.display());
    }
    // Said already; the exit code tells a script how its last line went.
    Ok(if last.is_ok() { Done::Well } else { Done::Missing })
}

struct Session {
    client: Client,
    open: Option<(Transaction, Instant)>,
}

impl Session {
    /// Runs one line. Outside `begin`, neighbouring statements are one transaction.
    async fn line(&mut self, text: &str) -> Result<(), Failure> {
        let mut together = Vec::new();
        for statement in words::statements(text)? {
            match statement {
                Statement::Begin | Statement::Commit | Statement::Abort => {
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
            Some((transaction, _)) => {
                for statement in &batch {
                    match statement {
                        Statement::Get(key) => statements::print_get(key, transaction.get(key.clone()).await?.as_ref()),
                        Statement::Put(key, value) => transaction.put(key.clone(), value.clone()),
                        Statement::Delete(key) => transaction.delete(key.clone()),
                        Statement::Begin | Statement::Commit | Statement::Abort => unreachable!("`line` hands these to `control`"),
                    }
                }
            }
            None => {
                let outcome = statements::execute(&self.client, batch).await?;
                outcome.print_gets();
                eprintln!("{}", outcome.summary());
            }
        }
        Ok(())
    }

    async fn control(&mut self, statement: &Statement) -> Result<(), Failure> {
        match (statement, self.open.take()) {
            (Statement::Begin, None) => self.open = Some((self.client.begin(), Instant::now())),
            (Statement::Begin, open) => {
                self.open = open;
                return Err(Failure::wrong("a transaction is open already").help("end it with commit or abort"));
            }
            (_, None) => return Err(Failure::wrong("no transaction is open").help("begin opens one")),
            (Statement::Commit, Some((transaction, begun))) => {
                let commit = transaction.commit().await?;
                eprintln!("{}", statements::summary(&commit, 1, begun.elapsed()));
            }
            (_, Some(_)) => eprintln!("aborted; nothing was written"),
        }
        Ok(())
    }
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
