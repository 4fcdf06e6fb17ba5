//! A machine with so many cores, shared by threads. A thread that gets a core keeps it until it has nothing to do or its slice
//! is over; then the next takes it, in the order in which they became ready.

use std::collections::VecDeque;

/// Something to do. What it comes to is settled when it begins: a loop takes all that has arrived by then, a write all that
/// is queued.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Job {
    /// A turn of a process's loop.
    Turn { process: usize },
    /// A process writes to another what is queued for it.
    Write { from: usize, to: usize },
    /// A process reads, decodes and checks what has come from another.
    Read { to: usize, from: usize },
    /// A loop client of a client does what its application does.
    LoopClient { client: usize, loop_client: usize },
}

impl Job {
    /// Whose it is.
    pub fn process(self) -> usize {
        match self {
            Self::Turn { process } => process,
            Self::Write { from, .. } => from,
            Self::Read { to, .. } => to,
            Self::LoopClient { client, .. } => client,
        }
    }
}

/// A thread of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Thread {
    /// A replica's loop.
    Loop { process: usize },
    /// One of those that do everything else, each what is next.
    Worker { process: usize },
}

/// Work on a core, and until when it may go on there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Running {
    pub thread: Thread,
    pub slice_ends: u64,
}

#[derive(Debug)]
pub(crate) struct Host {
    pub cores: usize,
    free: usize,
    ready: VecDeque<Thread>,
}

impl Host {
    pub fn new(cores: usize) -> Self {
        assert!(cores > 0, "a machine has at least one core");
        Self { cores, free: cores, ready: VecDeque::new() }
    }

    /// A thread wants a core.
    pub fn ready(&mut self, thread: Thread) {
        self.ready.push_back(thread);
    }

    /// Whether somebody waits for a core.
    pub fn is_wanted(&self) -> bool {
        !self.ready.is_empty()
    }

    /// The next thread, if a core is free for it.
    pub fn take(&mut self) -> Option<Thread> {
        if self.free == 0 {
            return None;
        }
        let thread = self.ready.pop_front()?;
        self.free -= 1;
        Some(thread)
    }

    /// A core is free again.
    pub fn release(&mut self) {
        self.free += 1;
    }
}
