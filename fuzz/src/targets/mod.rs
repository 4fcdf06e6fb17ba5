//! Every target, one file each, or one a family.

mod certificate;
mod claims;
mod cluster;
mod codec;
mod config;
mod coordinator;
mod ensemble;
mod frames;
mod http;
mod journal;
mod message;
mod order;
mod promises;
mod records;
mod replica;
mod rows;
mod signatures;
mod statements;
mod tls;
mod transactions;
mod verdicts;

use crate::Target;

/// Every target, those that read bytes as they are first.
pub(crate) const ALL: &[Target] = &[
    codec::TARGET,
    message::TARGET,
    frames::TARGET,
    frames::GREETING,
    http::TARGET,
    tls::TARGET,
    config::CLUSTER,
    config::CLIENT,
    config::NODE,
    statements::TARGET,
    rows::TARGET,
    records::TARGET,
    cluster::TARGET,
    journal::TARGET,
    claims::TARGET,
    signatures::TARGET,
    certificate::TARGET,
    verdicts::TARGET,
    replica::TARGET,
    coordinator::TARGET,
    order::MESSAGE,
    order::REPLICA,
    transactions::MESSAGE,
    transactions::SERVER,
    ensemble::TARGET,
];
