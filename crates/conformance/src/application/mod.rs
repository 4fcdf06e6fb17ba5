//! What applications keep in any engine, and what they must have seen of it.
//!
//! Clients of whole clusters use the same keys, whatever the engine: [`keys`] has them, [`history`] judges what was seen.

pub(crate) mod history;
pub(crate) mod keys;
