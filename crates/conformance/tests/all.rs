//! Whole clusters in simulated worlds. One program for all of them: it is linked once, and they run side by side.

mod augustus;
mod basil;
mod checker_self_test;
mod clean;
mod detection;
mod ensemble;
mod order;
mod predictions;
mod real_time;
mod transactions;
mod zab;
