//! ZooKeeper's admin commands over HTTP: `/commands`, and `/commands/<name>` with an answer in JSON.
//!
//! They are served on a thread of their own that lets all others go first, so that whoever asks waits for the core, and the core for nobody.

use std::sync::mpsc::sync_channel;

use monitoring::server::{Page, Pages, Site, StatusCode, start};
use runtime::{LowPriority, Metrics};
use sentinel::{Fields, Server, Value};
use serde_json::{Map, Value as Json};
use tokio::net::TcpListener;
use tokio::sync::mpsc::Sender;

use crate::config::AdminConfig;
use crate::connection::Event;
use crate::limits::COMMAND_TIMEOUT;

/// Serves the commands until what it returns is dropped.
pub(crate) fn serve(listener: TcpListener, config: AdminConfig, core: Sender<Event>) -> std::io::Result<LowPriority> {
    let root = config.path;
    let pages: Pages = Box::new(move |path| {
        let name = path.strip_prefix(&root)?;
        match name.strip_prefix('/') {
            None if name.is_empty() => Some(index(&root)),
            Some("") => Some(index(&root)),
            Some(name) => Some(answer(name, &core)),
            None => None,
        }
    });
    start(listener, Site { metrics: Metrics::default(), pages, names: config.names })
}

fn index(root: &str) -> Page {
    let links = Server::commands().map(|name| format!("<a href=\"{root}/{name}\">{name}</a>\n<br/>\n"));
    Page { status: StatusCode::OK, content_type: "text/html; charset=utf-8", body: links.collect::<String>().into_bytes() }
}

fn answer(name: &str, core: &Sender<Event>) -> Page {
    let failed = |status, error: String| {
        let json = serde_json::json!({ "command": name, "error": error });
        Page { status, content_type: "application/json", body: format!("{json:#}\n").into_bytes() }
    };
    let (answer, answered) = sync_channel(1);
    if core.try_send(Event::Command { name: name.to_owned(), answer }).is_err() {
        return failed(StatusCode::SERVICE_UNAVAILABLE, "the server has too much to do, or has stopped".to_owned());
    }
    match answered.recv_timeout(COMMAND_TIMEOUT) {
        Ok(Some(fields)) => Page::json(format!("{:#}\n", json(Value::Map(fields)))),
        // ZooKeeper says so with 200.
        Ok(None) => failed(StatusCode::OK, format!("Unknown command: {name}")),
        Err(_) => failed(StatusCode::SERVICE_UNAVAILABLE, "the server does not answer in time".to_owned()),
    }
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
