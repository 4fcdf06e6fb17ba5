//! What a replica keeps, and how it comes back from a crash.
//!
//! One thread owns a [`Store`]. It gives its machine two things.
//!
//! **A journal.** The machine appends opaque records while it steps; [`Store::sync`] makes all of them durable
//! with one write and one sync. When the process starts again, [`Store::replay`] hands the same records back in
//! the same order. A sync that fails leaves nobody knowing what is on the disk, so the store refuses to be used
//! from then on: only a new process, which reads what is really there, may go on.
//!
//! **Versions.** What transactions committed, many versions a key. A version is in memory alone at first; it is durable
//! because its record is in the journal. From time to time the machine checkpoints: of every version at or below a *watermark*
//! the newest of each key goes to the *base*, which holds one version a key on the disk. Nobody may read at or below the
//! watermark any more, and the journal before it can be released. What was checkpointed stays in memory as long as there is room.
//!
//! ```text
//!   append ──▶ pending ──sync──▶ journal: segment 1 | segment 2 | …     ──release──▶ recycled
//!   commit ──▶ table  and  log ──checkpoint──▶ base: key → newest version ≤ watermark
//!   read   ◀── table, else base
//! ```
//!
//! In memory each key has one slot in one table: its versions, what of them the base table has, and the [`KeyMeta`] that the machine
//! keeps with it. Beside the table the versions that are to be checkpointed stand in a log in the order of time, so that a checkpoint
//! looks nothing up.
//!
//! The disk itself is a [`StorageBackend`]: [`Disk`] is the real one, [`Memory`] the one that tests and simulations
//! crash and damage. The medium only moves bytes; framing, checksums and replay are the same code above both.
//!
//! ```
//! use store::{Memory, Options, Store, Version};
//! use types::{ClientId, Key, Timestamp, Value};
//!
//! let backend = Memory::new("cluster 07 replica s0-r3");
//! let mut store = Store::open(backend.clone(), Options::default())?;
//! while store.replay()?.is_some() {}
//!
//! store.append(b"transaction 1 committed");
//! let first = Timestamp::new(1_000, ClientId(1));
//! store.commit(&Key::from("a"), Version { timestamp: first, value: Some(Value::from("1")) });
//! store.sync()?;
//!
//! // The process dies; the next one reads its journal.
//! drop(store);
//! backend.crash(store::Crash::default());
//! let mut store = Store::open(backend, Options::default())?;
//! let batch = store.replay()?.expect("one batch was synced");
//! assert_eq!(&batch.records[0][..], b"transaction 1 committed");
//! # Ok::<(), store::StoreError>(())
//! ```

mod backend;
mod disk;
mod error;
mod index;
mod journal;
mod memory;
mod row;
mod store;
mod table;
mod unflushed;
mod versions;

pub use backend::{Checkpoint, Row, StorageBackend};
pub use disk::{Disk, DiskOptions};
pub use error::StoreError;
pub use journal::{BATCH_BYTES_MAX, Batch, OWNER_BYTES_MAX, RECORD_BYTES_MAX, SegmentNumber};
pub use memory::{Crash, Memory};
pub use row::Version;
pub use store::{Options, Statistics, Store};
pub use table::KeyMeta;
