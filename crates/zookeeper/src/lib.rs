//! A server for ZooKeeper's clients, started from a `zoo.cfg`: sockets, a log and snapshots around [`sentinel::Server`].
//!
//! By itself, what it acknowledges is on the disk: the core takes what has arrived, steps through it,
//! makes one durable write, and only then gives out the answers ([`machine::turn`], which drives it as any other machine).
//!
//! ```text
//!   connection ──▶ frames, decoded ──▶ queue, bounded ──▶ core: step, step, … one sync ──▶ answers
//!   connection ──▶ frames, decoded ──▶        │             │  ├─▶ log: one record a transaction
//!                                             │             │  └─▶ every snapCount transactions: a snapshot, written beside it
//!                                                           └────▶ corruption: a record is kept, nobody is answered any more
//! ```
//!
//! With `server.N` lines it is one of several (`member.rs`, around [`sentinel::ensemble`]): what is acknowledged is on the disks of a majority.
//!
//! A replica of the engine `sentinel` (`replica.rs`) is the same server behind Bezant's own connections, for transactions over keys
//! ([`sentinel::transactions`]).
//!
//! Clients come in plain or over TLS (`tls.rs`), operators with commands of four letters or over HTTP (`admin.rs`).
//!
//! Read `config.rs` for what is understood of a `zoo.cfg`, `storage.rs` for what is on the disk, `alone.rs` for the machine, `core.rs` for its loop, `connection.rs`
//! for sockets, `member_storage.rs`, `durable.rs`, `member.rs`, `peers.rs` and `repair.rs` for the same among several servers, and `audit.rs` for how the folders of stopped servers are compared.

mod admin;
mod alone;
mod audit;
mod clients;
mod config;
mod connection;
mod core;
mod drill;
mod durable;
mod evidence;
mod limits;
mod measure;
mod member;
mod member_storage;
mod online;
mod peers;
mod repair;
mod replica;
mod storage;
mod tls;
mod waiting;

pub use audit::{Audit, Finding, audit_offline};
pub use config::{AdminConfig, Config, ConfigError, EnsembleConfig, ServerConfig};
pub use core::{Running, StartError};
pub use drill::order_drill;
pub use evidence::{Evidence, Field, Stage, Step, evidence};
pub use online::{OnlineAudit, Report, Verdict, audit_online, compare};
pub use peers::PeersError;
pub use replica::{Event as ReplicaEvent, Replica, ReplicaOptions};
pub use storage::{OpenError, Storage};
pub use tls::{ClientAuth, TlsConfig, TlsError};
