//! Replicas and clients, stepped by tests. One program for all of them: it is linked once, and they run side by side.

mod clusters;
mod coordinators;
mod durable;
mod encoding;
mod harness;
mod histories;
mod moments;
mod scripts;
