//! The tree, its requests and its digests. One program for all of them: it is linked once, and they run side by side.

mod digests;
mod requests;
mod server;
