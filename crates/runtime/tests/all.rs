//! The shell, over loopback. One program for all of them: it is linked once, and they run side by side.

mod changes;
mod fixture;
#[cfg(feature = "lab")]
mod injected_latency;
mod loopback;
