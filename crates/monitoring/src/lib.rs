//! What a node shows of itself over HTTP, to people and to monitoring: `/health`, `/metrics`, and whatever pages the
//! program adds ([`server`]); and the client that asks for them ([`http_client`]).
//!
//! It changes nothing and knows no secret. It has no authentication, so it listens on a loopback address unless the
//! configuration says otherwise.

pub mod http_client;
pub mod server;
