//! What stands in the place of clients that cheat where there are none: without the feature `lab` nobody can say how to cheat.

use std::sync::Arc;

use basil::Coordinator;
use basil::coordinator::CoordinatorCounts;
use machine::{InputOf, OutboxOf, Time};
use types::{ClientId, Cluster};

use crate::mind::{Kind, Mind};

/// How a client cheats.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Cheating {}

impl Cheating {
    pub fn around(self, _: Coordinator, _: &Arc<Cluster>, _: ClientId) -> Kind {
        match self {}
    }
}

/// What a client has done in other ways than an honest one: nothing.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MisbehaviorCounts(());

/// The machine of a client that cheats.
#[derive(Debug)]
pub(crate) enum Cheat {}

impl Cheat {
    pub fn step(&mut self, _: Time, _: InputOf<Mind>, _: &mut OutboxOf<Mind>) {
        match *self {}
    }

    pub fn deadline(&self) -> Option<Time> {
        match *self {}
    }

    pub fn counts(&self) -> (CoordinatorCounts, MisbehaviorCounts) {
        match *self {}
    }
}
