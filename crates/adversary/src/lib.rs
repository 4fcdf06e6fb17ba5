//! Clients that cheat: each runs an honest client's machine for what it does not cheat about, and stands between it and the
//! network. The simulator tries them against every rule; a benchmark tries what they cost the honest clients of a real cluster
//! (basil.txt §6.4).
//!
//! ```text
//!              commands              what an honest client would say
//!   own side ───────────▶  Cheater  ◀───────────────────────────────  Coordinator
//!            ◀───────────     │                                          ▲
//!         events, Left        │ lets out, holds back, makes up           │ hears everything
//!                             ▼                                          │
//!                          replicas  ────────────────────────────────────┘
//! ```
//!
//! A client's lie is ordinary input to a replica, which is made for it, so nothing here is a secret or a danger: a cheat
//! holds its own key and nobody else's, and can do what its rights allow.

mod attack_primitives;
mod byzantine_client;
mod multi_step_attack;
mod strategy;

pub use byzantine_client::{AttackConfig, ByzantineClient, ByzantineEvent, Misbehavior, MisbehaviorCounts};
pub use random::Random;
pub use strategy::ClientStrategy;
