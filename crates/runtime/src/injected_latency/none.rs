//! What stands in the place of injected latency where there are none: without the feature `lab` nobody can make a [`Delays`],
//! and so nothing is ever held back. The compiler sees that from the empty types, and leaves nothing of it.

use std::convert::Infallible;
use std::io;
use std::task::Waker;
use std::time::Instant;

use types::Party;

use crate::frame::Frames;

/// How far away everybody is from one node: nobody can say so in this build.
#[derive(Clone, Debug)]
pub enum Delays {}

/// Injected latency and what keeps them.
#[derive(Debug)]
pub(crate) enum Distance {}

impl Distance {
    pub fn new(delays: Delays) -> io::Result<Self> {
        match delays {}
    }

    pub fn hold(&self, _: Party) -> Option<DelayLine> {
        match *self {}
    }
}

/// What one connection needs to hold back what it is given.
#[derive(Debug)]
pub(crate) enum DelayLine {}

impl DelayLine {
    pub fn due(&self, _: Instant) -> Infallible {
        match *self {}
    }

    pub fn wake_at(&self, _: Infallible, _: Waker) {
        match *self {}
    }
}

/// What is on its way over one connection and not due yet: nothing.
#[derive(Debug, Default)]
pub(crate) struct DelayedFrames(());

impl DelayedFrames {
    pub fn push(&mut self, due: Infallible) -> &mut Frames {
        match due {}
    }

    pub fn grown(&mut self, _: usize) {}

    pub fn take_due(&mut self, _: Instant, _: &mut Frames) {}

    pub fn due(&self) -> Option<Infallible> {
        None
    }

    pub fn bytes(&self) -> usize {
        0
    }

    pub fn messages(&self) -> u64 {
        0
    }
}
