//! What Basil brings to be predicted.

use std::sync::Arc;

use ::basil::{Coordinator, CoordinatorOptions, FastPath, Message, ReplicaOptions, Session};
use capacity::{ClusterSpec, Engine, OTHER, Step};
use simulator::System as _;
use types::Cluster;

use super::{Basil, ProcessOptions};

/// Memory for read timestamps of all replicas together, in buckets: a quarter of a gibibyte.
const READ_TIMESTAMPS: usize = 1 << 24;

impl Engine for Basil {
    type Session = Session;

    const STEPS: &'static [(Step, f64)] = &[
        ("ask_read", 1_500.0),
        ("ask_commit", 850.0),
        ("read", 2_500.0),
        ("read_reply", 600.0),
        ("prepare", 5_200.0),
        ("voted", 500.0),
        ("log", 850.0),
        ("logged", 700.0),
        ("writeback", 3_300.0),
        ("committed", 850.0),
    ];

    fn step(message: &Message) -> Step {
        match message {
            Message::Read { .. } | Message::Scan { .. } => "read",
            Message::ReadReply { .. } | Message::ScanReply { .. } => "read_reply",
            Message::Prepare { .. } => "prepare",
            Message::Voted { .. } => "voted",
            Message::Log { .. } => "log",
            Message::Logged { .. } => "logged",
            Message::Writeback { .. } => "writeback",
            Message::CommitNotice { .. } => "committed",
            _ => OTHER,
        }
    }

    fn process_options(spec: &ClusterSpec, seed: u64) -> ProcessOptions {
        let replicas = spec.shards * Self::replicas_per_shard(spec.faults);
        let read_timestamps = (READ_TIMESTAMPS / replicas).next_power_of_two().clamp(1 << 12, 1 << 20);
        let replica = ReplicaOptions { read_timestamps, seed, ..ReplicaOptions::default() };
        ProcessOptions { replica, coordinator: coordinator(spec) }
    }

    fn session(cluster: &Arc<Cluster>, spec: &ClusterSpec) -> Session {
        Session::new(cluster.id(), Coordinator::for_client(cluster.clone(), coordinator(spec)))
    }
}

fn coordinator(spec: &ClusterSpec) -> CoordinatorOptions {
    CoordinatorOptions { fast_path: if spec.fast_path { FastPath::On } else { FastPath::Off }, ..CoordinatorOptions::default() }
}
