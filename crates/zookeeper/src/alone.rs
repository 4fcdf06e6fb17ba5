//! A server by itself as a machine, with its disk ([`machine::turn`]): what a turn's requests came to is in the log before anybody hears of it.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Instant;

use machine::{Durable, Input, InputOf, Machine, OutboxOf, Time};
use runtime::LogLimit;
use sentinel::{Fields, Input as Asked, Latency, Now, Outbox, Server};

use crate::Config;
use crate::clients::Told;
use crate::connection::{Batch, Counters, Event};
use crate::core::{StartError, drawn, measured, ms_since, now_of, server, time_of, wall_ms};
use crate::limits::{SCRUB_EVERY, STRANGERS_LOGGED_A_MINUTE_MAX, TURN_MAX};
use crate::measure::Walks;
use crate::storage::{OpenError, Storage};
use crate::waiting::writes;
use crate::{drill, evidence};

/// The server and all that it owns.
pub(crate) struct Alone {
    server: Server,
    storage: Storage,
    /// What this turn came to.
    outbox: Outbox,
    snapshot_every: u64,
    scrubs_at: Time,
    is_evidence_kept: bool,
    drills: LogLimit,
    counters: Arc<Counters>,
    walks: Walks,
    /// What is left of a batch: the turn has done enough.
    rest: Option<Batch>,
    /// Whether clients have sent more than this turn takes.
    is_behind: bool,
    /// Since when no turn took all that clients had sent.
    behind_since: Option<Time>,
    /// For so long no session ends for that.
    behind_ms_max: u64,
    /// When the requests arrived that are answered once all is durable, and whether each writes.
    arrivals: Vec<(bool, Instant)>,
    /// Whether anything was written that is not durable yet.
    is_dirty: bool,
    syncs: Latency,
    snapshots: Latency,
    snapshot_began: Instant,
    failure: Option<StartError>,
}

impl Alone {
    /// Comes back from the disk.
    pub(crate) fn open(config: &Config, counters: Arc<Counters>, now: Time) -> Result<Self, StartError> {
        let (secret, seed) = drawn()?;
        let opened = Storage::open(&config.data, &config.log, config.profile, config.snapshots_kept, seed, None);
        if let Err(OpenError::Corrupt(corruption)) = &opened {
            evidence::keep(&config.data, corruption, config.profile.name(), "start", wall_ms()).map_err(StartError::Evidence)?;
        }
        let (storage, state) = opened?;
        tracing::info!(zxid = state.zxid(), nodes = state.node_count(), digest = %state.checksum(), "came back from the disk");
        Ok(Self {
            server: server(config, state, 0, secret, now_of(now)),
            storage,
            outbox: Outbox::default(),
            snapshot_every: config.snapshot_every,
            scrubs_at: now,
            is_evidence_kept: false,
            drills: LogLimit::new(STRANGERS_LOGGED_A_MINUTE_MAX),
            counters,
            walks: Walks::new([config.data.clone(), config.log.clone()]),
            rest: None,
            is_behind: false,
            behind_since: None,
            behind_ms_max: u64::from(config.timeout_ms_max.unsigned_abs()),
            arrivals: Vec::with_capacity(TURN_MAX),
            is_dirty: false,
            syncs: Latency::default(),
            snapshots: Latency::default(),
            snapshot_began: Instant::now(),
            failure: None,
        })
    }

    /// Makes everything durable, and closes the log.
    pub(crate) fn close(mut self) -> Result<(), OpenError> {
        self.storage.close()
    }

    /// What operators are shown beside what the server itself counts.
    fn measured(&mut self, now: Now) -> Fields {
        measured(&mut self.walks, now, &self.counters, &self.syncs, &self.snapshots)
    }

    /// Whether this turn takes more of what clients ask.
    pub(crate) fn may_take(&self) -> bool {
        self.rest.is_none() && self.server.may_do_more()
    }

    /// What is left of a batch, for a later turn.
    pub(crate) fn take_rest(&mut self) -> Option<Batch> {
        self.rest.take()
    }

    /// Notes whether clients have sent more than the next turn is given.
    pub(crate) fn note_behind(&mut self, is_behind: bool) {
        self.is_behind = is_behind;
    }

    /// Whether sessions may end that were not heard of: not while there is more to hear, as after a long write to the disk, for a client that has
    /// sent its word in time is not silent. But neither forever, however much is sent.
    fn may_expire(&mut self, now: Time) -> bool {
        if !self.is_behind && self.may_take() {
            self.behind_since = None;
            return true;
        }
        self.behind_since.get_or_insert(now).after_ms(self.behind_ms_max) <= now
    }

    fn take(&mut self, now: Now, event: Event, outbox: &mut OutboxOf<Self>) {
        match event {
            Event::Opened { connection, peer, .. } => self.server.step(now, Asked::Opened { connection, peer }, &mut self.outbox),
            Event::Inputs(Batch { connection, inputs, arrived, counted }) => {
                let mut inputs = inputs.into_iter();
                while self.server.may_do_more()
                    && let Some(input) = inputs.next()
                {
                    match &input {
                        Asked::Request { request: Ok(numbered), .. } => self.arrivals.push((writes(&numbered.request), arrived)),
                        Asked::Word { word, .. } if self.server.shows_measured(*word) => {
                            let measured = self.measured(now);
                            self.server.on_measured(measured);
                        }
                        _ => {}
                    }
                    self.server.step(now, input, &mut self.outbox);
                }
                let inputs: Vec<Asked> = inputs.collect();
                if !inputs.is_empty() {
                    self.rest = Some(Batch { connection, inputs, arrived, counted });
                }
            }
            Event::Command { name, answer } => {
                let measured = self.measured(now);
                self.server.on_measured(measured);
                outbox.emit(Told::Command(answer, self.server.command(now, &name)));
            }
            Event::Drill { connection, order } => {
                let done = drill::carry_out(&mut self.server, &self.walks.folders, &order);
                drill::log(&self.drills, &order, &done);
                outbox.emit(Told::Bytes(connection, drill::answer(done)));
                outbox.emit(Told::Close(connection));
            }
            Event::Closed(connection) => self.server.step(now, Asked::Closed { connection }, &mut self.outbox),
        }
    }

    /// Writes the turn's transactions, and says what is to be said once they are durable.
    fn write(&mut self, outbox: &mut OutboxOf<Self>) -> Result<(), StartError> {
        for transaction in self.outbox.transactions.drain(..) {
            self.storage.append(&transaction);
            self.is_dirty = true;
        }
        match self.storage.check_snapshot() {
            Err(OpenError::Corrupt(corruption)) => self.server.stop(corruption, &mut self.outbox),
            checked => {
                if checked? {
                    self.snapshots.add(ms_since(self.snapshot_began));
                }
            }
        }
        if let Some(corruption) = self.server.corruption().filter(|_| !self.is_evidence_kept) {
            self.is_evidence_kept = true;
            let kept = evidence::keep(&self.walks.folders[0], corruption, self.server.state().profile().name(), "serving", wall_ms());
            let record = kept.map_err(StartError::Evidence)?;
            tracing::error!(%corruption, record = %record.display(), "this server's state is wrong: it answers no client any more");
        }
        let Outbox { bytes, close, .. } = std::mem::take(&mut self.outbox);
        bytes.into_iter().for_each(|(connection, bytes)| outbox.emit(Told::Bytes(connection, bytes)));
        close.into_iter().for_each(|connection| outbox.emit(Told::Close(connection)));
        Ok(())
    }
}

impl Machine for Alone {
    type Command = Event;
    type Received = Infallible;
    type Message = Infallible;
    type Unsigned = Infallible;
    type Event = Told;

    fn step(&mut self, now: Time, input: InputOf<Self>, outbox: &mut OutboxOf<Self>) {
        match input {
            Input::Command(event) => self.take(now_of(now), event, outbox),
            Input::Message { message, .. } => match message {},
            // What is due is done at the end of the turn, when all is heard that came before.
            Input::Tick => {}
        }
    }

    fn end_turn(&mut self, now: Time, outbox: &mut OutboxOf<Self>) {
        if self.failure.is_some() {
            return;
        }
        let at = now_of(now);
        if self.scrubs_at <= now {
            self.scrubs_at = now.after_ms(u64::try_from(SCRUB_EVERY.as_millis()).unwrap_or(u64::MAX));
            self.server.scrub(&mut self.outbox);
        }
        if self.may_expire(now) && at.steady_ms >= self.server.deadline_ms() {
            self.server.step(at, Asked::Tick, &mut self.outbox);
        }
        self.server.begin_turn();
        if let Err(failure) = self.write(outbox) {
            self.failure = Some(failure);
        }
    }

    fn deadline(&self) -> Option<Time> {
        Some(self.scrubs_at.min(time_of(self.server.deadline_ms())))
    }
}

impl Durable for Alone {
    type Failure = StartError;

    fn persist(&mut self) -> Result<(), StartError> {
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        let syncing = Instant::now();
        self.storage.sync()?;
        if std::mem::take(&mut self.is_dirty) {
            self.syncs.add(ms_since(syncing));
        }
        for (is_write, arrived) in self.arrivals.drain(..) {
            self.server.on_answered(is_write, ms_since(arrived));
        }
        if self.server.corruption().is_none() && self.storage.is_snapshot_due(self.snapshot_every) {
            self.snapshot_began = Instant::now();
            self.storage.begin_snapshot(self.server.state())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
