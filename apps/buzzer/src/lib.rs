//! Buzzer: a social network on a Bezant cluster.
//!
//! The pages are made here and work without JavaScript; with it, a timeline shows a new post at once. All data is in the cluster, so
//! that several of these servers can serve one network: what is kept and why that is right says [`buzzer_model`].
//!
//! ```text
//! browser ──HTTP──▶ server.rs     connections, and how many and how long       write_timeout.rs   readers who do not read
//!                   app.rs        which page an address has, who is asking, what is asked for
//!                   guard.rs      origins, headers, rates, shares      passwords.rs, sessions.rs   who somebody is
//!                   source.rs     whence a request comes
//!                   limits.rs     how often anybody may do what
//!                   pages.rs      HTML                         live.rs                     new posts, as they come
//!                      │
//!                   buzzer-model ──▶ bezant-client ──▶ cluster
//! ```

mod app;
mod failure;
mod guard;
mod limits;
mod live;
mod pages;
mod passwords;
mod server;
mod sessions;
mod source;
mod write_timeout;

pub use app::{App, Behind};
pub use server::{CONNECTIONS_MAX, CONNECTIONS_OF_SUBNET_MAX, serve};
pub use source::{Block, Proxies, WrongBlock};
