//! What each engine brings to the simulator and to the capacity model: its machines, attacks on them, checkers and scenarios.
//!
//! The kernel (`simulator`) knows no engine. Here each engine is one module with one implementation of
//! [`System`](simulator::System). Basil's also implements [`capacity::Engine`]: no other engine's clusters can be predicted yet.
//!
//! | module | machines | attacks | checkers |
//! |---|---|---|---|
//! | [`augustus`] | `augustus::multicast::Node` above a history | lying replicas, lying clients | seven, of the order |
//! | [`augustus::whole`] | the same above `augustus::Shard`, `augustus::Session` | the same | up to strict serializability |
//! | [`sentinel`] | `sentinel::order::Node` above a history | none: its servers do not lie | five, of the order |
//! | [`sentinel::ensemble`] | `sentinel::ensemble::Member` | damage in servers' memory | twelve, against the tree's past |
//! | [`sentinel::transactions`] | the same, with `sentinel::transactions::Session` | none | up to strict serializability |
//! | [`basil`] | `basil::Node`, `basil::Session` | lying replicas, `adversary`'s clients, delays that read messages | up to strict serializability |
//!
//! ```
//! use conformance::basil::Scenario;
//! use simulator::Tracing;
//!
//! let scenario = Scenario::named("calm").expect("it is one of ours").lasting_ms(200);
//! let report = simulator::run(&scenario, 1, Tracing::Off);
//! assert!(report.is_clean(), "{report}");
//! assert_eq!(simulator::run(&scenario, 1, Tracing::Off).fingerprint, report.fingerprint);
//! ```

mod application;
pub mod augustus;
pub mod basil;
mod cycle;
pub mod mutants;
pub mod sentinel;
