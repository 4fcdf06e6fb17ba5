//! ZooKeeper's admin commands over HTTP: `/commands`, and `/commands/<name>` with an answer in JSON; and `/health`, as every node here has it.
//!
//! They are served on a thread of their own that lets all others go first, so that whoever asks waits for the core, and the core for nobody.

use std::sync::mpsc::sync_channel;

use monitoring::server::{Page, Pages, Site, StatusCode, start};
use runtime::LowPriority;
use sentinel::{Fields, Server, Value};
use serde_json::{Map, Value as Json};
use tokio::net::TcpListener;
use tokio::sync::mpsc::Sender;

use crate::config::AdminConfig;
use crate::connection::Event;
use crate::limits::COMMAND_TIMEOUT;

/// A command that a server answers with an error unless it serves clients.
const SERVES: &str = "is_read_only";

/// Serves the commands until what it returns is dropped.
pub(crate) fn serve(listener: TcpListener, config: AdminConfig, core: Sender<Event>) -> std::io::Result<LowPriority> {
    let root = config.path;
    let pages: Pages = Box::new(move |path| {
        if path == "/health" {
            return Some(health(&core));
        }
        let name = path.strip_prefix(&root)?;
        match name.strip_prefix('/') {
            None if name.is_empty() => Some(index(&root)),
            Some("") => Some(index(&root)),
            Some(name) => Some(answer(name, &core)),
            None => None,
        }
    });
    start(listener, Site { metrics: None, pages, names: config.names })
}

fn index(root: &str) -> Page {
    let links = Server::commands().map(|name| format!("<a href=\"{root}/{name}\">{name}</a>\n<br/>\n"));
    Page { status: StatusCode::OK, content_type: "text/html; charset=utf-8", body: links.collect::<String>().into_bytes() }
}

/// Whether it serves clients, and if not, why.
fn health(core: &Sender<Event>) -> Page {
    let unwell = |why: &str| Page::text(StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n"));
    match ask(SERVES, core) {
        Ok(fields) => match fields.into_iter().flatten().find(|(name, _)| name == "error") {
            Some((_, Value::Text(why))) => unwell(&why),
            _ => Page::text(StatusCode::OK, "serving\n"),
        },
        Err(why) => unwell(why),
    }
}

fn answer(name: &str, core: &Sender<Event>) -> Page {
    let failed = |status, error: String| {
        let json = serde_json::json!({ "command": name, "error": error });
        Page { status, content_type: "application/json", body: format!("{json:#}\n").into_bytes() }
    };
    match ask(name, core) {
        Ok(Some(fields)) => Page::json(format!("{:#}\n", json(Value::Map(fields)))),
        // ZooKeeper says so with 200.
        Ok(None) => failed(StatusCode::OK, format!("Unknown command: {name}")),
        Err(why) => failed(StatusCode::SERVICE_UNAVAILABLE, why.to_owned()),
    }
}

/// What the server answers to a command; nothing when it knows none of this name.
fn ask(name: &str, core: &Sender<Event>) -> Result<Option<Fields>, &'static str> {
    let (answer, answered) = sync_channel(1);
    let is_taken = core.try_send(Event::Command { name: name.to_owned(), answer }).is_ok();
    if !is_taken {
        return Err("the server has too much to do, or has stopped");
    }
    answered.recv_timeout(COMMAND_TIMEOUT).map_err(|_| "the server does not answer in time")
}

fn json(value: Value) -> Json {
    let map = |fields: Fields| fields.into_iter().map(|(name, value)| (name, json(value))).collect::<Map<_, _>>();
    match value {
        Value::Nothing => Json::Null,
        Value::Text(text) => text.into(),
        Value::Integer(number) => number.into(),
        Value::Decimal(number) => number.into(),
        Value::Flag(flag) => flag.into(),
        Value::List(list) => list.into_iter().map(json).collect(),
        Value::Map(fields) => Json::Object(map(fields)),
    }
}
