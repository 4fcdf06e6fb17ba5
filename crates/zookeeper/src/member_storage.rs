//! What a server among several keeps on its disk.
//!
//! The folders are those of a server by itself (`storage.rs`), and so are the snapshots. The log holds the records of the order: what was
//! promised and accepted, and entries, which are delivered or may still be taken back. A snapshot is of an entry that is delivered, and the part of
//! the log that it names begins with a record that names the entry.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::thread;

use bytes::Bytes;
use machine::Time;
use sentinel::ensemble::Snapshot;
use sentinel::order::{Body, JournalOp, Options, Output, Replica, Zxid};
use sentinel::{Corruption, NotWritten, Profile, State};
use store::{Disk, DiskOptions, Store, StoreError};

use crate::limits::MEMBER_LOG_BYTES_MAX;
use crate::storage::{
    LOG, Name, Newest, OpenError, PARTIAL, SNAPSHOTS, Written, ZOOKEEPER, begin_log, failed, keep_as, newest, note_log, purge, read_newest,
    write_snapshot,
};

/// Whose log it is: a server by itself has another.
const OWNER: &str = "a server of a Sentinel ensemble";
/// A place among the servers that no server that decides has.
const OBSERVER: u16 = sentinel::order::message::SERVERS_MAX - 1;
/// Under which name a snapshot of another server is written, beside the server's own.
const TAKEN: &str = "taken";

/// Which server opens its folders.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServerIdentity {
    pub(crate) me: u16,
    pub(crate) voters: u16,
    pub(crate) options: Options,
    pub(crate) profile: Profile,
    /// Drawn for this start.
    pub(crate) seed: u64,
    /// Its log was damaged, and given up.
    pub(crate) has_given_up: bool,
}

/// A server as it comes back.
pub(crate) struct Opened {
    pub(crate) storage: MemberStorage,
    pub(crate) replica: Replica,
    /// The state after the entry `applied`, and what the order has to be carried out first.
    pub(crate) state: State,
    pub(crate) applied: Zxid,
    pub(crate) output: Output,
    /// Snapshots that were passed over, with what is wrong with each.
    pub(crate) damaged: Vec<(PathBuf, Corruption)>,
}

/// The log and the snapshots.
pub(crate) struct MemberStorage {
    log: Store<Disk>,
    snapshots: PathBuf,
    kept: usize,
    /// The part of the log that was begun last, and the entry that it begins after.
    part: (Zxid, u64),
    writing: Option<Receiver<Written>>,
    records_since: u64,
    log_bytes_at: u64,
    is_dirty: bool,
}

impl MemberStorage {
    /// Opens, or begins, what is kept in these folders.
    pub(crate) fn open(data: &Path, log: &Path, kept: usize, identity: ServerIdentity, now: Time) -> Result<Opened, OpenError> {
        if data.join(ZOOKEEPER).exists() || log.join(ZOOKEEPER).exists() {
            return Err(OpenError::OfZooKeeper(data.to_owned()));
        }
        let (snapshots, log_path) = (data.join(SNAPSHOTS), log.join(LOG));
        fs::create_dir_all(&snapshots).map_err(failed("make", &snapshots))?;
        begin_log(&log_path, &snapshots, OWNER)?;
        let mut log = Store::open(Disk::open(&log_path, OWNER, DiskOptions::default())?, store::Options::default())?;
        let Newest { found, damaged } = read_newest(&snapshots, identity.seed)?;
        let (applied, state) = match found {
            Some((name, state)) => (Zxid(name.zxid.cast_unsigned()), state),
            None => (Zxid::default(), State::new(identity.profile, identity.seed)),
        };
        if state.profile() != identity.profile {
            return Err(OpenError::OtherProfile { snapshots, found: state.profile().name(), expected: identity.profile.name() });
        }
        let order = |source| OpenError::Order { log: log_path.clone(), snapshots: snapshots.clone(), source };
        let replica = Replica::new(identity.me, identity.voters, identity.options, applied).map_err(order)?;
        let mut replica = replica.having_given_up(identity.has_given_up);
        while let Some(batch) = log.replay()? {
            for record in batch.records {
                replica.replay(record).map_err(order)?;
            }
        }
        let mut output = Output::default();
        replica.begin(now, identity.seed, &mut output).map_err(order)?;
        note_log(&log_path, &snapshots)?;
        let log_bytes_at = log.statistics().journal_bytes_written;
        let part = (Zxid::default(), log.current_segment().0);
        let storage = Self { log, snapshots, kept, part, writing: None, records_since: 0, log_bytes_at, is_dirty: false };
        Ok(Opened { storage, replica, state, applied, output, damaged })
    }

    /// The state that a stopped server's folders make, up to transaction `until`.
    pub(crate) fn read(data: &Path, log: &Path, until: i64) -> Result<State, OpenError> {
        let snapshots = data.join(SNAPSHOTS);
        let profile = newest(&snapshots, 0)?.map_or_else(Profile::default, |(_, state)| state.profile());
        // Whoever only reads decides nothing: a server that does, and is alone, delivers its log to its end and forgets what is old of it.
        let identity = ServerIdentity { me: OBSERVER, voters: 1, options: Options::default(), profile, seed: 1, has_given_up: false };
        let Opened { mut storage, replica, mut state, applied, .. } = Self::open(data, log, usize::MAX, identity, Time(0))?;
        for entry in replica.entries_after(applied) {
            let Body::Payload(payload) = &entry.body else { continue };
            if entry.zxid.0.cast_signed() > until {
                break;
            }
            sentinel::ensemble::apply_payload(&mut state, entry.zxid, payload).map_err(OpenError::Corrupt)?;
        }
        storage.log.close()?;
        Ok(state)
    }

    /// Writes what the order says. What was written is durable after [`MemberStorage::sync`].
    pub(crate) fn write(&mut self, op: JournalOp) -> Result<(), OpenError> {
        self.is_dirty = true;
        match op {
            JournalOp::Append(record) => {
                self.log.append(&record);
                self.records_since += 1;
            }
            JournalOp::Rotate(zxid) => {
                self.log.sync()?;
                self.part = (zxid, self.log.rotate()?.0);
                (self.records_since, self.log_bytes_at) = (0, self.log.statistics().journal_bytes_written);
            }
            JournalOp::Snapshot { zxid, bytes } => {
                self.log.sync()?;
                // The member itself puts a rotation to the same zxid before each snapshot, whatever others sent.
                assert_eq!(self.part.0, zxid, "the log goes on after the snapshot");
                self.take_over(&bytes).map_err(failed("write a snapshot in", &self.snapshots))?;
                purge(&mut self.log, &self.snapshots, self.kept)?;
            }
        }
        Ok(())
    }

    fn take_over(&self, bytes: &Bytes) -> io::Result<()> {
        let partial = self.snapshots.join(format!("{PARTIAL}-{TAKEN}"));
        let mut file = File::create(&partial)?;
        file.write_all(bytes)?;
        keep_as(file, &partial, &self.snapshots, self.name())
    }

    fn name(&self) -> Name {
        Name { zxid: self.part.0.0.cast_signed(), segment: self.part.1 }
    }

    /// How large the log is.
    pub(crate) fn log_bytes(&self) -> u64 {
        self.log.journal_bytes()
    }

    /// Makes durable what was written. Gives whether there was anything.
    pub(crate) fn sync(&mut self) -> Result<bool, StoreError> {
        let was_dirty = std::mem::take(&mut self.is_dirty);
        if was_dirty {
            self.log.sync()?;
        }
        Ok(was_dirty)
    }

    /// Whether it is time for a snapshot.
    pub(crate) fn is_snapshot_due(&self, every: u64) -> bool {
        let grown = self.log.statistics().journal_bytes_written - self.log_bytes_at;
        self.writing.is_none() && (self.records_since >= every || grown >= MEMBER_LOG_BYTES_MAX)
    }

    /// Begins to write a snapshot in the background: the log has begun a part for it.
    pub(crate) fn begin_snapshot(&mut self, snapshot: Snapshot) -> Result<(), OpenError> {
        self.finish()?;
        // A turn that asks for a snapshot has asked for a rotation to the same zxid before.
        assert_eq!(self.part.0, snapshot.zxid, "the log goes on after the snapshot");
        let (sender, receiver) = sync_channel(1);
        let (name, folder) = (self.name(), self.snapshots.clone());
        let writing = thread::Builder::new().name("snapshot".to_owned()).spawn(move || {
            // Whoever asked may have stopped.
            let _ = sender.send(write_snapshot(snapshot.state, &folder, name).map(|()| name));
        });
        writing.map_err(failed("begin a thread to write to", &self.snapshots))?;
        self.writing = Some(receiver);
        Ok(())
    }

    /// Whether a snapshot was finished; what is old is removed then.
    pub(crate) fn check_snapshot(&mut self) -> Result<bool, OpenError> {
        let Some(writing) = &self.writing else { return Ok(false) };
        let written = match writing.try_recv() {
            Err(TryRecvError::Empty) => return Ok(false),
            Ok(written) => written,
            Err(TryRecvError::Disconnected) => Err(NotWritten::Failed(io::Error::other("its thread ended"))),
        };
        self.writing = None;
        self.conclude(written)?;
        Ok(true)
    }

    fn conclude(&mut self, written: Written) -> Result<(), OpenError> {
        written.map_err(|error| match error {
            NotWritten::Failed(source) => failed("write a snapshot in", &self.snapshots)(source),
            NotWritten::Corrupt(corruption) => OpenError::Corrupt(corruption),
        })?;
        purge(&mut self.log, &self.snapshots, self.kept)
    }

    /// Waits for the snapshot that is being written, if one is.
    fn finish(&mut self) -> Result<(), OpenError> {
        let Some(writing) = self.writing.take() else { return Ok(()) };
        let written = writing.recv().unwrap_or_else(|_| Err(NotWritten::Failed(io::Error::other("its thread ended"))));
        self.conclude(written)
    }

    /// Makes everything durable, and closes the log.
    pub(crate) fn close(&mut self) -> Result<(), OpenError> {
        match self.finish() {
            // It was found once already, or is found at the next start.
            Err(OpenError::Corrupt(corruption)) => tracing::error!(%corruption, "the last snapshot is not kept"),
            finished => finished?,
        }
        Ok(self.log.close()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Opens the folders of the first of three servers.
    fn open(folder: &Path) -> Result<Opened, OpenError> {
        let identity =
            ServerIdentity { me: 0, voters: 3, options: Options::default(), profile: Profile::default(), seed: 1, has_given_up: false };
        MemberStorage::open(folder, folder, 3, identity, Time(0))
    }

    /// What is damaged, as whoever opens the folders of a server learns.
    fn damage_of(folder: &Path) -> Option<String> {
        open(folder).err().and_then(|error| error.damage()).map(|damage| damage.what)
    }

    #[test]
    fn a_log_that_is_gone_is_damage_until_the_snapshots_are_gone_too() {
        let folder = tempfile::tempdir().expect("a folder");
        let (log, snapshots) = (folder.path().join(LOG), folder.path().join(SNAPSHOTS));
        // It was opened once, and has neither a snapshot nor anything in its log that was made durable.
        drop(open(folder.path()).expect("it is new"));
        for _ in 0..2 {
            fs::remove_dir_all(&log).expect("it was there");
            assert!(damage_of(folder.path()).is_some_and(|what| what.ends_with("sentinel-log is missing")), "it is no beginning");
            // An empty folder in its place, as where a disk is not mounted, is no log either.
            fs::create_dir(&log).expect("it is gone");
            assert!(damage_of(folder.path()).is_some_and(|what| what.ends_with("sentinel-log is missing")));
            assert!(MemberStorage::read(folder.path(), folder.path(), i64::MAX).is_err(), "an audit says so too");
        }
        fs::remove_dir_all(&snapshots).expect("it was there");
        drop(open(folder.path()).expect("it is a server whose folder was deleted"));
        // The snapshots alone are no loss while the log goes back to the beginning: it is noted anew that there is one.
        fs::remove_dir_all(&snapshots).expect("it was there");
        drop(open(folder.path()).expect("the log is there"));
        fs::remove_dir_all(&log).expect("it was there");
        assert!(damage_of(folder.path()).is_some());
    }

    #[test]
    fn a_start_that_was_cut_short_goes_on() {
        let folder = tempfile::tempdir().expect("a folder");
        let (log, snapshots) = (folder.path().join(LOG), folder.path().join(SNAPSHOTS));
        fs::create_dir(&snapshots).expect("it is new");
        drop(open(folder.path()).expect("the folder of snapshots was made, and no log"));
        fs::remove_dir_all(&snapshots).expect("it was there");
        fs::remove_dir_all(&log).expect("it was there");
        Disk::create(&log, OWNER).expect("it is new");
        drop(open(folder.path()).expect("the log was made, and it was not noted"));
    }

    #[test]
    fn a_part_of_the_log_that_is_missing_is_damage_and_a_log_of_somebody_else_is_not() {
        for part in ["identity.toml", "journal/00000002.log", "journal", ""] {
            let folder = tempfile::tempdir().expect("a folder");
            let Opened { mut storage, output, .. } = open(folder.path()).expect("it is new");
            output.journal.into_iter().for_each(|op| storage.write(op).expect("the disk works"));
            for zxid in 1..=3 {
                storage.write(JournalOp::Rotate(Zxid(zxid))).expect("the disk works");
            }
            storage.close().expect("the disk works");
            drop(storage);
            let part = folder.path().join(LOG).join(part);
            if part.is_dir() { fs::remove_dir_all(&part) } else { fs::remove_file(&part) }
                .unwrap_or_else(|error| panic!("{}: {error}", part.display()));
            let damage = open(folder.path()).err().expect("something is missing").damage();
            assert!(damage.is_some_and(|damage| damage.what.ends_with("is missing")), "{}", part.display());
        }
        let folder = tempfile::tempdir().expect("a folder");
        Disk::create(folder.path().join(LOG), "somebody else").expect("it is new");
        let other = open(folder.path()).err().expect("it is not this server's");
        assert!(other.damage().is_none(), "{other}");
    }
}
