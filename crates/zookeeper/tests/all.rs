//! Servers of ZooKeeper's protocol, with their sockets and disks. One program for all of them: it is linked once, and they run side by side.

mod differential;
mod ensemble;
mod java;
mod kazoo;
mod operators;
mod standalone;
