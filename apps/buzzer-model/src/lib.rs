//! Buzzer's data: accounts, who follows whom, posts, sessions; where they are kept, and the transactions on them.
//!
//! It is the social network of Augustus' paper (§4.4), over [`client::Client`] alone, so that it runs on every engine. The web
//! server (`apps/buzzer`) and the benchmark (`bezant bench buzzer`) run the same transactions: those in [`Network`].
//!
//! # Where things are
//!
//! All that belongs to a user is one range of keys, so that a cluster whose keys are placed by ranges keeps each user on one shard:
//!
//! ```text
//! buzzer/ann/account             when Ann joined, and the hash of her password
//! buzzer/ann/count               how many users she follows
//! buzzer/ann/follower/<name>     somebody who follows her
//! buzzer/ann/following/<name>    somebody whom she follows
//! buzzer/ann/post/<id>           a post of hers: the newest has the first key
//! buzzer/ann/session/<digest>    a browser in which she is signed in
//! ```
//!
//! | transaction | reads | writes | shards |
//! |---|---|---|---|
//! | create an account | that the name is free | account, count | one |
//! | post | that the key is free | one post | one |
//! | delete a post | that it is there | one post | one |
//! | follow, unfollow | count, edge, the other's account | count, and the edge at both users | one or two |
//! | begin a session | account, sessions | one session, and those that are over | one |
//! | change a password | account, sessions | account, and all sessions: they end, and one begins | one |
//! | timeline | the range of those followed, then the first rows of the posts of each | nothing | those of all of them |
//!
//! Posts stay with their author, and a timeline is put together when somebody looks: a post is one insertion, whoever follows, and a
//! post that is deleted is gone from all timelines at once.
//!
//! # Why it is right, whoever does what at the same time
//!
//! Transactions are serializable, so each rule needs to hold only for every transaction by itself.
//!
//! 1. *Symmetry.* `a/following/b` is there if and only if `b/follower/a` is: only *follow* and *unfollow* write either, and always both.
//!    Two at once read the same edge and the same count, so one of them begins again and finds what the other did.
//! 2. *Count.* `a/count` is the number of keys `a/following/…`, and at most [`FOLLOWING_MAX`]: whoever adds or removes an edge has read in the same
//!    transaction that it was not, or was, there, and changes the count by one.
//! 3. *No edge to nobody.* *Follow* reads the other's account, and accounts are never removed.
//! 4. *Timelines are of one moment.* A timeline is one transaction that only reads: it shows exactly the newest posts, as of one state of the database,
//!    of those followed in that same state. So an unfollow beside a post leaves either the post shown to a follower, or the follower gone; and
//!    whoever sees an answer to a post, and follows both authors, sees the post as well, unless its author has deleted it: it was there when the
//!    answer was written.
//! 5. *No post is lost or replaced.* A post's key has its time and 32 random bits, and is compared with *absent*: a second post of the same key would be
//!    refused. Its author alone deletes it.
//! 6. *No session outlasts its password.* Whoever begins a session has read in the same transaction that the account has the hash against which the
//!    password was checked; whoever changes that hash ends in the same transaction all sessions, and begins their own anew.

mod clock;
mod name;
mod network;
mod post;
mod records;

pub use clock::{AHEAD_US_MAX, Clock};
pub use name::{NAME_CHARS_MAX, Name, WrongName};
pub use network::{
    Account, Changed, Created, Deleted, FOLLOWING_MAX, Followed, Keys, LIST_MAX, Network, Opened, Part, Profile, SESSIONS_MAX, Shown,
    TIMELINE_MAX, Timeline, Unfollowed,
};
pub use post::{POST_CHARS_MAX, PostId, PostText, WrongPost};
pub use records::{Broken, Session};
