//! Replicas and clients, stepped by tests. One program for all of them: it is linked once, and they run side by side.

mod connections;
mod evidence;
mod harness;
mod older_copy;
mod proofs;
mod rebuild;
mod reconfiguration;
mod room;
mod rules;
mod scripts;
mod session;
