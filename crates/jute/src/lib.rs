//! ZooKeeper's client protocol: what clients and servers say to one another, and its encoding, which ZooKeeper calls jute.
//!
//! Each message is a frame: its length in four bytes, then its body. A connection begins with a [`ConnectRequest`] and a
//! [`ConnectResponse`]. After that each request carries a number, the *xid*, and is answered under it in the order of requests; events
//! that a client watches for come in between under [`EVENT_XID`].
//!
//! ```text
//!   client ── ConnectRequest ──▶ server        frame:   length i32, body
//!          ◀─ ConnectResponse ──               request: xid i32, opcode i32, record
//!          ── xid 1, GetData ──▶               reply:   xid i32, zxid i64, error i32, record if there is no error
//!          ◀── xid −1, event ──
//!          ◀── xid 1, data ────
//! ```
//!
//! Integers are big-endian, a string or buffer follows its length in an `i32` (−1: there is none), a list follows its count.
//! A decoder reads what anybody may have sent: it allocates no more than a small multiple of what arrived, and refuses what trails.
//!
//! ```
//! use jute::{Numbered, Request};
//! let asked = Numbered { xid: 1, request: Request::Exists { path: "/a".into(), watch: true } };
//! let mut frame = Vec::new();
//! asked.encode(&mut frame);
//! assert_eq!(Numbered::decode(&frame), Ok(asked));
//! ```

mod codec;
mod connect;
mod error_code;
mod records;
mod reply;
mod request;

pub use codec::{Malformed, Reader, Writer};
pub use connect::{ConnectRequest, ConnectResponse, PASSWORD_BYTES};
pub use error_code::ErrorCode;
pub use records::{Acl, EventKind, Id, Stat, WatchedEvent, permissions, read_acls, write_acls};
pub use reply::{AUTH_XID, Answer, ClientInfo, EVENT_XID, OperationResult, PING_XID, Reply, SET_WATCHES_XID};
pub use request::{
    Create, CreateMode, MULTI_OPERATIONS_MAX, NotARequest, Numbered, Operation, ReadOperation, Request, SetWatches, WatchKind, WatchMode,
    opcode,
};
