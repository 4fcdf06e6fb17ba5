//! A server among several ([`sentinel::ensemble`]) with its disk, for the two machines that it is part of ([`machine::turn`]): that of ZooKeeper's clients
//! (`member.rs`), and the engine's (`replica.rs`).
//!
//! A turn [ends](DurableMember::end_turn) with what it wrote in the log; it is [made durable](DurableMember::persist) before anybody hears of it. A server that has to
//! [begin anew](sentinel::ensemble::TurnOutput::reopen) reads its disk again, as after a crash. One that is found wrong repairs itself (`repair.rs`).

use std::time::Instant;

use bytes::Bytes;
use sentinel::ensemble::{Member, MemberOptions, Remedy, Snapshot, TurnOutput, time};
use sentinel::order::{JournalOp, Options, Zxid};
use sentinel::{Corruption, Latency, Now, State};
use tokio::sync::mpsc;

use crate::config::Config;
use crate::core::{StartError, drawn, ms_since, server, wall_ms};
use crate::member_storage::{MemberStorage, Opened, ServerIdentity};
use crate::repair::Repairs;
use crate::storage::OpenError;

/// How often the order says again what was not answered, in parts of its timeout.
const TICKS_A_TIMEOUT: u64 = 10;

/// Which of the servers it is.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub(crate) me: u16,
    pub(crate) voters: u16,
    /// What sessions' numbers begin with that are begun here.
    pub(crate) id: u8,
    pub(crate) timeout_ms: u64,
    /// What operators call the servers.
    pub(crate) names: Vec<String>,
}

/// A snapshot for other servers, and the entry after which it is.
pub(crate) type Offer = (Zxid, Result<Bytes, Corruption>);

/// Why a server goes on from its disk.
pub(crate) enum End {
    Reopen(&'static str),
    Repair(Remedy),
}

/// The machine and its disk.
pub(crate) struct DurableMember {
    config: Config,
    part: Part,
    pub(crate) member: Member,
    /// Nothing while it is opened anew, as a disk is open once at a time, and where what is on the disk makes no sense.
    storage: Option<MemberStorage>,
    pub(crate) repairs: Repairs,
    /// What was found to be wrong is in a record, and what is done about it is decided.
    is_noticed: bool,
    pub(crate) syncs: Latency,
    pub(crate) snapshots: Latency,
    snapshot_began: Instant,
    /// Snapshots for other servers, as they are finished.
    offers: (mpsc::Sender<Offer>, mpsc::Receiver<Offer>),
    /// What is to be done for turns that were written, once they are durable.
    pub(crate) written: Vec<TurnOutput>,
    /// Why it goes on from its disk, where that was found before it could be done.
    ended: Option<End>,
    /// The disk failed when something was to be written.
    failure: Option<StartError>,
}

impl DurableMember {
    pub(crate) fn open(config: Config, part: Part, now: Now) -> Result<Self, StartError> {
        let mut repairs = Repairs::open(&config).map_err(StartError::Evidence)?;
        let (member, storage) = begin(&config, &part, &mut repairs, now)?;
        Ok(Self {
            config,
            part,
            member,
            storage,
            repairs,
            is_noticed: false,
            syncs: Latency::default(),
            snapshots: Latency::default(),
            snapshot_began: Instant::now(),
            offers: mpsc::channel(1),
            written: Vec::new(),
            ended: None,
            failure: None,
        })
    }

    /// How large its log is.
    pub(crate) fn log_bytes(&self) -> u64 {
        self.storage.as_ref().map_or(0, MemberStorage::log_bytes)
    }

    /// Waits for a snapshot for other servers that is finished: to be given to [`DurableMember::offer`].
    pub(crate) async fn offered(&mut self) -> Option<Offer> {
        self.offers.1.recv().await
    }

    /// The same where one is finished by now.
    pub(crate) fn offered_by_now(&mut self) -> Option<Offer> {
        self.offers.1.try_recv().ok()
    }

    /// Lets others take over what was written for them.
    pub(crate) fn offer(&mut self, now: Now, (zxid, written): Offer) {
        match written {
            Ok(bytes) => self.member.offer(now, zxid, Some(bytes)),
            Err(corruption) => self.member.stop(now, corruption),
        }
    }

    /// The same of what is finished by now.
    pub(crate) fn offer_finished(&mut self, now: Now) {
        if let Some(offer) = self.offered_by_now() {
            self.offer(now, offer);
        }
    }

    /// Whether a turn is written after which the member goes on from its disk, or with which that failed: what it did meanwhile would be lost, or
    /// worse, kept in part.
    pub(crate) fn is_ending(&self) -> bool {
        self.failure.is_some() || self.ended.is_some() || self.written.iter().any(|turn| turn.reopen.is_some() || turn.repair.is_some())
    }

    /// Ends a turn: writes its journal. Gives what it says, which waits for [`DurableMember::persist`], as does the rest.
    pub(crate) fn end_turn(&mut self, now: Now) -> TurnOutput {
        // A snapshot belongs to the part of the log that was begun for it: before another can be begun, it is taken.
        if let Err(failure) = self.sync_written(now) {
            self.failure.get_or_insert(failure);
        }
        if self.is_ending() {
            return TurnOutput::default();
        }
        match self.write(now) {
            Ok(mut turn) => {
                let said = TurnOutput {
                    sends: std::mem::take(&mut turn.sends),
                    bytes: std::mem::take(&mut turn.bytes),
                    close: std::mem::take(&mut turn.close),
                    answers: std::mem::take(&mut turn.answers),
                    ..TurnOutput::default()
                };
                if turn.has_more() {
                    self.written.push(turn);
                }
                said
            }
            Err(failure) => {
                self.failure = Some(failure);
                TurnOutput::default()
            }
        }
    }

    /// Makes durable all that was written. Gives why the server is to [go on](DurableMember::go_on) from its disk, if it is.
    pub(crate) fn persist(&mut self, now: Now) -> Result<Option<End>, StartError> {
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        if self.written.is_empty() {
            self.written.push(TurnOutput::default());
        }
        self.sync_written(now)?;
        Ok(self.ended.take())
    }

    fn sync_written(&mut self, now: Now) -> Result<(), StartError> {
        for mut turn in std::mem::take(&mut self.written) {
            self.ended = self.sync(&mut turn, now)?.or(self.ended.take());
        }
        Ok(())
    }

    /// Ends a turn, and writes its journal. The rest of it waits for [`DurableMember::sync`].
    pub(crate) fn write(&mut self, now: Now) -> Result<TurnOutput, StartError> {
        match self.storage.as_mut().map_or(Ok(false), MemberStorage::check_snapshot) {
            Err(OpenError::Corrupt(corruption)) => self.member.stop(now, corruption),
            checked => {
                if checked? {
                    self.snapshots.add(ms_since(self.snapshot_began));
                }
            }
        }
        let every = self.config.snapshot_every;
        if self.storage.as_ref().is_some_and(|storage| storage.is_snapshot_due(every)) {
            self.member.begin_snapshot();
        }
        let mut turn = self.member.turn(now);
        // Without one the server is quarantined, and writes nothing.
        if let Some(storage) = &mut self.storage {
            for op in turn.journal.drain(..) {
                if let JournalOp::Snapshot { .. } = op {
                    self.repairs.take_over(wall_ms()).map_err(StartError::Evidence)?;
                }
                storage.write(op)?;
            }
        }
        Ok(turn)
    }

    /// Makes durable all that was written, and does what `turn` says beside that. Gives why the server goes on from its disk, if it has to.
    pub(crate) fn sync(&mut self, turn: &mut TurnOutput, now: Now) -> Result<Option<End>, StartError> {
        if let Some(storage) = &mut self.storage {
            let syncing = Instant::now();
            if storage.sync()? {
                self.syncs.add(ms_since(syncing));
            }
            if let Some(snapshot) = turn.snapshot.take() {
                self.snapshot_began = Instant::now();
                storage.begin_snapshot(snapshot)?;
            }
        }
        if let Some(offer) = turn.offer.take() {
            self.begin_offer(offer)?;
        }
        for note in turn.notes.drain(..) {
            tracing::info!("{note}");
        }
        if let Some(repaired) = turn.repaired.take() {
            self.repairs.finish(repaired, wall_ms()).map_err(StartError::Evidence)?;
            self.member.show_repair(self.repairs.text());
        }
        self.notice(now)?;
        // Whoever is quarantined by now comes back from its disk by a repair, or not at all.
        let reopen = turn.reopen.filter(|_| self.member.server().corruption().is_none());
        Ok(turn.repair.map(End::Repair).or(reopen.map(End::Reopen)))
    }

    /// Goes on from the disk.
    pub(crate) fn go_on(&mut self, end: End, now: Now) -> Result<(), StartError> {
        match end {
            End::Reopen(why) => {
                tracing::warn!(why, "this server begins anew from its disk");
                self.close()?;
            }
            End::Repair(remedy) => {
                if let Some(Err(error)) = self.storage.as_mut().map(MemberStorage::close) {
                    tracing::warn!(%error, "the log of a server that is repaired was not closed");
                }
                drop(self.storage.take());
                if remedy == Remedy::Takeover {
                    self.repairs.put_aside(wall_ms()).map_err(StartError::Evidence)?;
                }
            }
        }
        drop(self.storage.take());
        (self.member, self.storage) = begin(&self.config, &self.part, &mut self.repairs, now)?;
        self.offers = mpsc::channel(1);
        self.is_noticed = false;
        Ok(())
    }

    /// Makes everything durable, and closes the log.
    pub(crate) fn close(&mut self) -> Result<(), OpenError> {
        self.storage.as_mut().map_or(Ok(()), MemberStorage::close)
    }

    /// Keeps a record of what was found to be wrong, and has it repaired, where that may be.
    fn notice(&mut self, now: Now) -> Result<(), StartError> {
        let Some(corruption) = self.member.server().corruption().filter(|_| !self.is_noticed) else { return Ok(()) };
        self.is_noticed = true;
        // What was found at the start is in a record already.
        if self.storage.is_some() {
            let state = self.member.server().state();
            self.repairs.notice(corruption, "serving", Some(state), wall_ms()).map_err(StartError::Evidence)?;
        }
        let remedy = self.member.remedy();
        if self.repairs.begin(remedy, wall_ms()).map_err(StartError::Evidence)? {
            self.member.repair(now);
        }
        self.member.show_repair(self.repairs.text());
        Ok(())
    }

    /// Writes a snapshot for other servers, beside the turns.
    fn begin_offer(&self, offer: Snapshot) -> Result<(), StartError> {
        let finished = self.offers.0.clone();
        let writing = std::thread::Builder::new().name("offer".to_owned()).spawn(move || {
            let bytes = offer.state.snapshot();
            // Nobody wants it any more once the server has begun anew.
            let _ = finished.blocking_send((offer.zxid, bytes));
        });
        writing.map(drop).map_err(StartError::Threads)
    }
}

/// Comes back from the disk, or is quarantined where what is on it makes no sense.
fn begin(config: &Config, part: &Part, repairs: &mut Repairs, now: Now) -> Result<(Member, Option<MemberStorage>), StartError> {
    repairs.resume(wall_ms()).map_err(StartError::Evidence)?;
    let (mut member, storage) = match come_back(config, part, repairs, now) {
        Ok((member, storage)) => (member, Some(storage)),
        Err(StartError::Open(error)) => {
            let corruption = error.damage().ok_or(error)?;
            repairs.notice(&corruption, "start", None, wall_ms()).map_err(StartError::Evidence)?;
            let (secret, seed) = drawn()?;
            let server = server(config, State::new(config.profile, seed), part.id, secret, now);
            let order = |source| OpenError::Order { log: config.log.clone(), snapshots: config.data.clone(), source };
            (Member::quarantined(member_options(part), part.voters, server, corruption, now).map_err(order)?, None)
        }
        Err(error) => return Err(error),
    };
    member.show_repair(repairs.text());
    member.name_servers(&part.names);
    Ok((member, storage))
}

fn member_options(part: &Part) -> MemberOptions {
    MemberOptions { me: part.me, timeout_ms: part.timeout_ms, first_stream: wall_ms().unsigned_abs() << 20 }
}

fn come_back(config: &Config, part: &Part, repairs: &mut Repairs, now: Now) -> Result<(Member, MemberStorage), StartError> {
    let (secret, seed) = drawn()?;
    let tick_ms = part.timeout_ms / TICKS_A_TIMEOUT;
    let options = Options { tick_ms, timeout_ms: part.timeout_ms, ..Options::default() };
    let identity =
        ServerIdentity { me: part.me, voters: part.voters, options, profile: config.profile, seed, has_given_up: repairs.has_given_up() };
    let opened = MemberStorage::open(&config.data, &config.log, config.snapshots_kept, identity, time(now))?;
    let Opened { storage, replica, state, applied, output, damaged } = opened;
    let server = server(config, state, part.id, secret, now);
    let member = Member::new(member_options(part), replica, server, applied, output, now).map_err(OpenError::Corrupt)?;
    for (snapshot, corruption) in damaged {
        repairs.notice(&corruption, "start", None, wall_ms()).map_err(StartError::Evidence)?;
        repairs.put_snapshot_aside(&snapshot, wall_ms()).map_err(StartError::Evidence)?;
    }
    repairs.came_back(member.server().state(), wall_ms()).map_err(StartError::Evidence)?;
    let member = match repairs.uncompared() {
        Some(remedy) => member.to_be_compared(remedy),
        None => member,
    };
    let (state, order) = (member.server().state(), member.replica());
    tracing::info!(last = %order.last(), nodes = state.node_count(), digest = %state.checksum(), "came back from the disk");
    Ok((member, storage))
}
