//! The program, as real processes. One program for all of them: it is linked once, and they run side by side.

mod augustus;
mod backup;
mod cli;
mod configuration;
mod divergence;
mod evidence;
mod exposition;
mod faults;
mod metrics;
mod past;
mod place;
mod pool;
mod raw;
mod sentinel;
mod workloads;
mod zookeeper;
