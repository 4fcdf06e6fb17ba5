//! What a node shows of itself over HTTP, to people and to monitoring: `/health`, `/metrics`, and whatever pages the
//! program adds ([`server`]); and the client that asks for them ([`http_client`]). Also what is known of
//! the process and its disk ([`show_process`], [`show_disk`]).
//!
//! Its own pages change nothing, and know no secret; the program's drill changes something, where `node.toml` allows it. It has no authentication, so it listens on a loopback address unless the
//! configuration says otherwise.

pub mod http_client;
mod process;
pub mod server;

pub use process::{DiskRoom, show_disk, show_process};
