//! Transactions over keys, on the tree: what makes Sentinel one of the engines behind [`engine`].
//!
//! ```text
//!   /bezant/keys/<name>                       a key's value; `keys.rs` says which name a key has
//!   /bezant/commits/<client>-<session>-<n>    the last commit in slot n of a client's process: gone with its session
//! ```
//!
//! **The promise.** Transactions are strictly serializable: what was acknowledged before a transaction began comes before it. What
//! is acknowledged is on the disks of a majority. Servers may crash, and do not lie.
//!
//! **How it goes.** A client's [`Session`] asks the leader, and finds it by asking. A *read* gives each key's value and its version:
//! the transaction that wrote its node last (`mzxid`). A *commit* hands back the versions of all that was read. The leader compares them
//! with its state, which is that after all that it has proposed, and in the same step makes one multi of the writes. So the multi's place
//! in the order is the transaction's. Followers need to know nothing of it: what is ordered is an ordinary transaction of the tree, with its
//! digest.
//!
//! **What only reads** need not be ordered where it was one request: the leader answers it from its state, and gives the answer out once an entry
//! is delivered that it proposed after the question came, which shows that nobody else led meanwhile.
//!
//! **No commit takes place twice**, and none whose end was told otherwise: a commit has a number in one of the session's slots, and the
//! entry that commits it, or turns it down, notes that number in the slot's node. Whoever asks again is told what is noted there.

pub(crate) mod keys;
pub(crate) mod message;
pub(crate) mod serve;
mod session;

pub use keys::{key_of, path_of};
pub use message::{Answer, Message, Question, Reason, Row, Seen, SeenRange, Unsigned, Version, Write};
pub use serve::Commits;
pub use session::{PROFILE, Session};
