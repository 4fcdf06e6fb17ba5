//! Augustus (Padilha and Pedone, EuroSys 2013): shards of `3f+1` replicas, each of which orders short transactions and runs
//! them one after the other.

pub mod multicast;
