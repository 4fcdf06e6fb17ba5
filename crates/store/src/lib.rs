//! What a replica keeps, and how it comes back from a crash.
//!
//! One thread owns a [`Store`]. It gives its machine two things.
//!
//! **A journal.** The machine appends opaque records while it steps; [`Store::sync`] makes all of them durable
//! with one write and one sync. When the process starts again, [`Store::replay`] hands the same records back in
//! the same order. After a failed sync nobody knows what is on the disk, so the store refuses all further calls: only a
//! new process, which reads what is really there, may continue.
//!
//! **Versions.** The committed versions of each key. At first a version is in memory only (the *memtable*); it is durable
//! because the journal has its record. A *checkpoint* writes the newest version of each key at or below a *watermark* to the
//! *base table*, which has one version of each key on the disk. From then on nobody may read at or below the watermark, and
//! the journal before it can be released. Checkpointed versions stay in memory as a cache, as long as it has room. What the base table has at one
//! watermark can be [kept](Store::keep), and read there for as long as that takes.
//!
//! ```text
//!   append ──▶ pending ──sync──▶ journal: segment 1 | segment 2 | …     ──release──▶ recycled
//!   commit ──▶ table  and  log ──checkpoint──▶ base table: key → newest version ≤ watermark
//!   read   ◀── table, else base table
//! ```
//!
//! In memory each key has one entry in one table: its versions, which of them are in the base table, and the [`KeyMeta`] that the
//! machine keeps with it. A log beside the table says which versions are not checkpointed yet, by their time.
//!
//! The disk is a [`StorageBackend`]: [`Disk`] is the real one; tests and simulations crash and damage a [`Memory`]. A backend
//! only moves bytes; framing, checksums and replay are the same code for both.
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
mod base;
mod deleted;
mod disk;
mod encoded_rows;
mod error;
mod index;
mod journal;
mod memory;
mod pace;
mod pages;
mod row;
mod store;
mod table;
mod unflushed;
mod versions;

pub use backend::{BaseRows, BaseTable, Checkpoint, Row, StorageBackend};
pub use disk::{Disk, DiskOptions};
pub use error::StoreError;
pub use index::Index;
pub use journal::{BATCH_BYTES_MAX, Batch, OWNER_BYTES_MAX, RECORD_BYTES_MAX, SegmentNumber};
pub use memory::{Crash, Memory};
pub use pace::PaceOptions;
pub use pages::{Page, PageEnd, PageLimits};
pub use row::{Version, VersionRef};
pub use store::{Options, Statistics, Store};
pub use table::KeyMeta;
