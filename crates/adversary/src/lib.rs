//! Byzantine clients: each runs a correct client's machine and controls what that sends and receives. The simulator tests every
//! rule against them; a benchmark measures what they cost the correct clients of a real cluster (Basil §6.4).
//!
//! ```text
//!              commands                  what a correct client would send
//!   own side ───────────▶  ByzantineClient  ◀────────────────────────  Coordinator
//!            ◀───────────     │                                          ▲
//!         events, Abandoned   │ forwards, holds back, makes up           │ receives everything
//!                             ▼                                          │
//!                          replicas  ────────────────────────────────────┘
//! ```
//!
//! Replicas treat invalid messages as ordinary input, so nothing here is secret or dangerous: a Byzantine client has only its
//! own key and the rights of that key.

mod attack_primitives;
mod byzantine_client;
mod driver;
mod multi_step_attack;
mod strategy;

pub use byzantine_client::{AttackConfig, ByzantineClient, ByzantineEvent, Misbehavior, MisbehaviorCounts};
pub use driver::Driver;
pub use random::Random;
pub use strategy::ClientStrategy;
