//! The engine interface: what lies between engines and everything that uses them.
//!
//! An *engine* is a protocol that keeps a shard's replicas in agreement. It brings two machines: a [`Session`] runs on the
//! client's side and a [`Replica`] on each server. This crate says what both offer, in words that hold for every engine. The
//! client library, the workloads, the gateways, the server's shell and the checkers know this crate and no engine; the wiring
//! (`bezant-client`, and one file of the server) knows the engines and puts the two together.
//!
//! ```text
//!   application      client                                 the engine
//!   ───────────      ──────                                 ──────────
//!   get, put ──────▶ Ask { operation, request } ──────────▶ Session ──── its own messages ────▶ replicas
//!            ◀────── Tell::Response { operation, outcome } ◀ Session ◀───────────────────────── replicas
//!   notices  ◀────── Tell::Notice(notice) ◀──────────────── Session ◀── unasked, from a server
//! ```
//!
//! **Machines, not futures.** The interface lies between machines: a session takes an [`Ask`] as its command and gives a [`Tell`] as
//! its event. So whatever runs machines runs sessions, and adds no task to them: the tokio client, the simulator and the capacity model do.
//!
//! **Two ways to run a transaction, and no common denominator.** An engine offers *interactive* transactions, *one-shot*
//! transactions, or both ([`Capabilities`]):
//! * Interactive: the application reads, thinks, and commits ([`Request::Read`], [`Request::Scan`], [`Request::Commit`]). An
//!   engine that orders operations instead of transactions serves this too: the commit compares what was read.
//! * One-shot: all operations are known, and the engine runs them in one step of its order ([`Request::Submit`]). They may
//!   compare values first, so that reading, deciding and writing take one round trip.
//!
//! The past may be read apart from both ([`ReadMode::AsOf`]): what is found there is final when it is found.
//!
//! A session refuses a request of a capability that it lacks with [`Refusal::Unsupported`]; it never panics.
//!
//! **Evidence.** A read gives values and the engine's [`Evidence`] for them, which the commit hands back. What it holds is the
//! engine's business: the versions read and who vouched for them, the values to compare, or the version of a node. The
//! transaction's owner keeps it, so that a session holds nothing for a transaction that was abandoned.
//!
//! **Refusals.** Every [`Refusal`] carries one of four [`Advice`]s: begin again, begin again after a while, give up, or mend the request.
//!
//! **Receipts.** A [`Commit`] may have a [`Receipt`]: proof that anybody with the cluster's public keys can check. It is bytes
//! only when somebody asks for them, because most applications never do.
//!
//! **Time.** An engine that orders by timestamps has them from its servers' clocks: its session tells what they show
//! ([`Tell::Clock`]), so that nobody's own clock matters. An engine whose order does not come from timestamps tells nothing.
//!
//! **Notices.** A server may tell a client something unasked ([`Notice`]): that a key which it watches has changed, or that
//! its session ends. They are apart from transactions, and keep no order with them.
//!
//! **Pools.** A [`Pool`] joins transactions of one process into few. It stands beside the session and sends it requests of its
//! own, which only the two understand ([`Request::Private`]).
//!
//! # A session
//!
//! This one keeps its "database" in itself. A real one would send messages and answer when the replies are in.
//!
//! ```
//! use std::collections::BTreeMap;
//! use std::convert::Infallible;
//!
//! use engine::{Ask, Capabilities, Evidence, Found, Profile, ReadMode, Refusal, Request, Response, Session, Statistics, Tell};
//! use machine::{Durable, Input, InputOf, Machine, Outbox, OutboxOf, Time};
//! use types::{ClientId, Direction, Key, Timestamp, Value};
//!
//! static ALONE: Profile = Profile {
//!     name: "alone",
//!     shape: "f+1",
//!     shard_size: |faults| faults + 1,
//!     quorum: |_faults| 1,
//!     while_incomplete: "nothing changes",
//!     shards_max: 1,
//!     capabilities: Capabilities { interactive: true, one_shot: false, ranges: false, as_of: false, pool: false, receipts: false },
//!     tells_time: false,
//!     settings: &[],
//!     pending_room: None,
//! };
//!
//! #[derive(Default)]
//! struct Alone {
//!     values: BTreeMap<Key, Value>,
//!     reads: u64,
//! }
//!
//! impl Machine for Alone {
//!     type Command = Ask;
//!     type Received = Infallible;
//!     type Message = Infallible;
//!     type Unsigned = Infallible;
//!     type Event = Tell;
//!     fn step(&mut self, _now: Time, input: InputOf<Self>, outbox: &mut OutboxOf<Self>) {
//!         let Input::Command(Ask { operation, request }) = input else { return };
//!         let outcome = match request {
//!             Request::Read { keys, mode, .. } if !mode.is_as_of() => {
//!                 self.reads += 1;
//!                 let found = keys.into_iter().map(|key| (key.clone(), self.values.get(&key).cloned())).collect();
//!                 Ok(Response::Found(Found { found, evidence: Evidence::new(()) }))
//!             }
//!             other => Err(Refusal::Unsupported(other.capability())),
//!         };
//!         outbox.emit(Tell::Response { operation, outcome });
//!     }
//!     fn deadline(&self) -> Option<Time> {
//!         None
//!     }
//! }
//!
//! impl Durable for Alone {
//!     type Failure = Infallible;
//!     fn persist(&mut self) -> Result<(), Infallible> {
//!         Ok(())
//!     }
//! }
//!
//! impl Session for Alone {
//!     fn profile(&self) -> &'static Profile {
//!         &ALONE
//!     }
//!     fn statistics(&self, out: &mut Statistics) {
//!         out.counter("reads", "Reads answered", self.reads);
//!     }
//! }
//!
//! let mut alone = Alone::default();
//! let timestamp = Timestamp::new(1, ClientId(1));
//! let mut outbox = Outbox::default();
//! let read = Request::Read { timestamp, keys: vec![Key::from("a")], mode: ReadMode::ReadOnly };
//! alone.step(Time(1), Input::Command(Ask { operation: 7, request: read }), &mut outbox);
//! let (low, high, direction) = (Key::from("a"), Key::from("b"), Direction::Ascending);
//! let scan = Request::Scan { timestamp, low, high, direction, limit: 10, mode: ReadMode::ReadOnly };
//! alone.step(Time(2), Input::Command(Ask { operation: 8, request: scan }), &mut outbox);
//! assert!(matches!(&outbox.events[0], Tell::Response { operation: 7, outcome: Ok(Response::Found(_)) }));
//! let Tell::Response { outcome: Err(refusal), .. } = &outbox.events[1] else { panic!("it cannot scan") };
//! assert_eq!(refusal.advice(), engine::Advice::FixInput);
//! ```

mod clock;
mod divergence;
mod offer;
mod opaque;
mod outcome;
mod pool;
mod refusal;
mod request;

pub use clock::{ClockReport, ClusterClock, DRIFT_PPM, even_time_after, stretched};
pub use divergence::{DIVERGENCES_KEPT_MAX, Divergence, Divergences};
pub use offer::{
    Capabilities, Capability, Durations, Histogram, Instruction, Liar, Misbehavior, PendingRoom, Profile, Replica, Session, Statistic,
    StatisticKind, Statistics,
};
pub use opaque::{Evidence, Private};
pub use outcome::{Commit, CommitPath, Found, Notice, Proof, ProvenCommit, Receipt, Response, Tell};
pub use pool::{
    BATCH_MAX, BatchSize, Committed, ConflictRule, NotTaken, Order, Pool, PoolCounts, PoolMaker, PoolOptions, PoolOutput, PoolRequest, Work,
};
pub use refusal::{Advice, Refusal};
pub use request::{Ask, CommitRequest, Operation, ReadMode, Request};
