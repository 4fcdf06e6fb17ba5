//! What a server among several does to its folders when it repairs itself, how often, and what it keeps of that.
//!
//! ```text
//! dataDir/sentinel-snapshots/corruption-…     what was wrong, how far its repair is, and its steps: `evidence.rs`
//! dataDir/sentinel-damaged/<time>/            snapshots that were put aside
//! dataLogDir/sentinel-damaged/<time>/         and logs
//! ```
//!
//! Each step is in the record before it is taken, so that a repair that a crash cuts short goes on where it was. When to repair, and how, is the
//! machine's to say ([`sentinel::ensemble::Remedy`]).

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use sentinel::ensemble::{Remedy, Repaired, describe_node};
use sentinel::{Corruption, Fields, State};

use crate::Config;
use crate::evidence::{Evidence, Field, HOUR_MS, Stage, Step, is_record, make_room, readable_evidence};
use crate::limits::{DAMAGED_KEPT, DAMAGED_MAX, REPAIR_STEPS_MAX};
use crate::storage::{LOG, SNAPSHOTS};

/// Where damaged files are put aside.
const DAMAGED: &str = "sentinel-damaged";

/// The repairs of a server.
pub(crate) struct Repairs {
    data: PathBuf,
    log: PathBuf,
    profile: &'static str,
    an_hour_max: usize,
    /// Of the repair that is not finished.
    record: Option<Evidence>,
    begun: u64,
    finished: u64,
    refused: u64,
}

/// How many repairs there were.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RepairCounts {
    pub(crate) begun: u64,
    pub(crate) finished: u64,
}

impl Repairs {
    pub(crate) fn open(config: &Config) -> io::Result<Self> {
        let found = match readable_evidence(&config.data) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            found => found?,
        };
        // Those of a server by itself have no stage, and nothing to be finished.
        let record = found.into_iter().next_back().filter(|evidence| evidence.stage.is_some_and(|stage| !stage.is_over()));
        Ok(Self {
            data: config.data.clone(),
            log: config.log.clone(),
            profile: config.profile.name(),
            an_hour_max: config.ensemble.as_ref().map_or(0, |ensemble| ensemble.repairs_an_hour_max),
            record,
            begun: 0,
            finished: 0,
            refused: 0,
        })
    }

    /// How many were begun and finished since this process started.
    pub(crate) fn counts(&self) -> RepairCounts {
        RepairCounts { begun: self.begun, finished: self.finished }
    }

    fn stage(&self) -> Option<Stage> {
        self.record.as_ref().and_then(|record| record.stage)
    }

    /// How the state was repaired that the server goes on with, if it was, and was compared with nobody since.
    pub(crate) fn uncompared(&self) -> Option<Remedy> {
        self.record.as_ref().map(|record| if record.took_over { Remedy::Takeover } else { Remedy::Reread })
    }

    /// Whether its log was given up, and it may have nothing of the others' yet.
    pub(crate) fn has_given_up(&self) -> bool {
        self.record.as_ref().is_some_and(|record| record.took_over)
    }

    /// Notes that the state of another server is about to be taken over: from now on this one's is no second opinion beside that.
    pub(crate) fn take_over(&mut self, now_ms: i64) -> io::Result<()> {
        match &mut self.record {
            Some(record) if !record.took_over => {
                record.took_over = true;
                let stage = record.stage.unwrap_or(Stage::Takeover);
                self.step(stage, "it lags behind, and takes the leader's snapshot".to_owned(), now_ms)
            }
            _ => Ok(()),
        }
    }

    /// What operators are told, where something is to be told.
    pub(crate) fn text(&self) -> Option<String> {
        let record = self.record.as_ref()?;
        let last = record.steps.last().map_or("", |step| &step.what);
        Some(format!("{}: {last}", record.stage?.name()))
    }

    /// What monitoring reads.
    pub(crate) fn fields(&self) -> Fields {
        let stage = self.stage().map_or("none", Stage::name);
        let counts = [("repairs", self.begun), ("repairs_finished", self.finished), ("repairs_refused", self.refused)];
        let counts = counts.into_iter().map(|(name, count)| (name.to_owned(), count.into()));
        std::iter::once(("repair_stage".to_owned(), stage.into())).chain(counts).collect()
    }

    /// Keeps a record of what was found to be wrong, with the node as it is in `state`.
    pub(crate) fn notice(&mut self, corruption: &Corruption, noticed_by: &str, state: Option<&State>, now_ms: i64) -> io::Result<()> {
        let took_over = self.has_given_up();
        let number = make_room(&self.data, now_ms)?;
        let mut record = Evidence::of(&self.data, number, corruption, self.profile, noticed_by, now_ms);
        record.took_over = took_over;
        if let Some((path, state)) = corruption.path.as_ref().zip(state) {
            let field = |(name, found): (&str, String)| Field { name: name.to_owned(), found, reread: None };
            record.fields = describe_node(state, path).into_iter().map(field).collect();
        }
        tracing::error!(%corruption, record = %record.file.display(), "this server's state is wrong: it answers no client, and says nothing of the order");
        // Whatever a crash cuts short, one of the two says how far the server is.
        let before = self.record.replace(record);
        self.step(Stage::Quarantined, format!("found wrong, noticed by: {noticed_by}"), now_ms)?;
        if before.as_ref().is_some_and(|before| before.stage.is_some_and(Stage::is_begun)) {
            let current = std::mem::replace(&mut self.record, before);
            self.step(Stage::Failed, "it was found wrong again, of which there is another record".to_owned(), now_ms)?;
            self.record = current;
        }
        Ok(())
    }

    /// Whether a repair may begin now. Where it may not, the record says why.
    pub(crate) fn begin(&mut self, remedy: Remedy, now_ms: i64) -> io::Result<bool> {
        match self.why_not(remedy, now_ms)? {
            Some(why) => {
                self.refused += 1;
                self.step(Stage::Refused, format!("it stays quarantined until it is started again: {why}"), now_ms)?;
                Ok(false)
            }
            None => {
                self.begun += 1;
                let (stage, what) = match remedy {
                    Remedy::Reread => (Stage::Reread, "its memory is given up, and its disk read again"),
                    Remedy::Takeover => (Stage::Quarantined, "its disk is not to be trusted: it asks whether others go on without it"),
                };
                self.step(stage, what.to_owned(), now_ms)?;
                Ok(true)
            }
        }
    }

    fn why_not(&self, remedy: Remedy, now_ms: i64) -> io::Result<Option<String>> {
        let Some(current) = &self.record else { return Ok(Some("there is no record of it".to_owned())) };
        if self.an_hour_max == 0 {
            return Ok(Some("bezant.repairsPerHour is 0".to_owned()));
        }
        let is_begun = |found: &&Evidence| found.file != current.file && found.is_begun_within(HOUR_MS, now_ms);
        let begun = readable_evidence(&self.data)?.iter().filter(is_begun).count();
        if begun >= self.an_hour_max {
            return Ok(Some(format!(
                "it was repaired {begun} times within an hour, which is as often as bezant.repairsPerHour allows: look at its memory and its disk"
            )));
        }
        if remedy == Remedy::Takeover && self.asides()?.len() >= DAMAGED_MAX {
            return Ok(Some(format!("damaged files were put aside {DAMAGED_MAX} times, in {DAMAGED}, and no repair was finished since")));
        }
        Ok(None)
    }

    /// Puts all files aside that the log and the snapshots are made of: their server begins with nothing.
    pub(crate) fn put_aside(&mut self, now_ms: i64) -> io::Result<()> {
        let name = self.next_aside(now_ms)?;
        if let Some(record) = &mut self.record {
            record.aside.get_or_insert(name);
        }
        self.step(Stage::PutAside, format!("its files are put aside in {DAMAGED}"), now_ms)?;
        self.finish_putting_aside(now_ms)
    }

    /// Goes on where a crash cut a repair short.
    pub(crate) fn resume(&mut self, now_ms: i64) -> io::Result<()> {
        if self.stage() == Some(Stage::PutAside) { self.finish_putting_aside(now_ms) } else { Ok(()) }
    }

    fn finish_putting_aside(&mut self, now_ms: i64) -> io::Result<()> {
        let Some(name) = self.record.as_ref().and_then(|record| record.aside.clone()) else { return Ok(()) };
        let log = self.log.join(LOG);
        if log.exists() {
            rename(&log, &self.log.join(DAMAGED).join(&name), LOG)?;
        }
        let snapshots = self.data.join(SNAPSHOTS);
        for file in fs::read_dir(&snapshots)? {
            let file = file?;
            if !file.file_name().to_str().is_some_and(is_record) {
                rename(&file.path(), &self.data.join(DAMAGED).join(&name).join(SNAPSHOTS), file.file_name())?;
            }
        }
        sync(&self.log)?;
        sync(&snapshots)?;
        if let Some(record) = &mut self.record {
            record.took_over = true;
        }
        self.step(
            Stage::Takeover,
            "it begins with an empty disk, as another incarnation, and takes over what the others have".to_owned(),
            now_ms,
        )
    }

    /// Puts one snapshot aside, in place of which the one before it was read.
    pub(crate) fn put_snapshot_aside(&mut self, snapshot: &Path, now_ms: i64) -> io::Result<()> {
        let name = self.next_aside(now_ms)?;
        if let Some((folder, file)) = snapshot.parent().zip(snapshot.file_name()) {
            rename(snapshot, &self.data.join(DAMAGED).join(&name).join(SNAPSHOTS), file)?;
            sync(folder)?;
        }
        if let Some(record) = &mut self.record {
            record.aside.get_or_insert(name);
        }
        let stage = if self.has_given_up() { Stage::Takeover } else { Stage::Reread };
        self.step(stage, format!("{} is put aside; the snapshot before it was read, and the log since", snapshot.display()), now_ms)
    }

    /// The server came back with this state.
    pub(crate) fn came_back(&mut self, state: &State, now_ms: i64) -> io::Result<()> {
        let is_reread = self.stage() == Some(Stage::Reread);
        let Some(record) = self.record.as_mut().filter(|record| is_reread && record.fields.iter().all(|field| field.reread.is_none()))
        else {
            return Ok(());
        };
        let Some(path) = &record.path else { return Ok(()) };
        for (name, text) in describe_node(state, path) {
            match record.fields.iter_mut().find(|field| field.name == name) {
                Some(field) => field.reread = Some(text),
                None => record.fields.push(Field { name: name.to_owned(), found: "not there".to_owned(), reread: Some(text) }),
            }
        }
        self.step(Stage::Reread, format!("it came back from its disk with zxid {:#x}", state.zxid()), now_ms)
    }

    /// The server was compared, and serves.
    pub(crate) fn finish(&mut self, repaired: Repaired, now_ms: i64) -> io::Result<()> {
        let Repaired { zxid, digest, agreeing } = repaired;
        self.finished += 1;
        self.step(
            Stage::Repaired,
            format!("other servers with the same digest after {zxid}: {agreeing} ({digest}); it serves again"),
            now_ms,
        )?;
        self.record = None;
        let mut asides = self.asides()?;
        let old = asides.len().saturating_sub(DAMAGED_KEPT);
        for name in asides.drain(..old) {
            for folder in [&self.data, &self.log] {
                match fs::remove_dir_all(folder.join(DAMAGED).join(name.to_string())) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// Where files are put aside next: named for the time, and after all that is there, though the clock was set back.
    fn next_aside(&self, now_ms: i64) -> io::Result<String> {
        let last = self.asides()?.last().copied();
        Ok(last.map_or(now_ms.unsigned_abs(), |last| now_ms.unsigned_abs().max(last + 1)).to_string())
    }

    /// When files were put aside that are still there, the oldest first.
    fn asides(&self) -> io::Result<Vec<u64>> {
        let mut names = Vec::new();
        for folder in [&self.data, &self.log] {
            match fs::read_dir(folder.join(DAMAGED)) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
                Ok(files) => {
                    for file in files {
                        names.extend(file?.file_name().to_str().and_then(|name| name.parse::<u64>().ok()));
                    }
                }
            }
        }
        names.sort_unstable();
        names.dedup();
        Ok(names)
    }

    /// Notes a step, in the record and in the log of the process.
    fn step(&mut self, stage: Stage, what: String, now_ms: i64) -> io::Result<()> {
        let Some(record) = &mut self.record else { return Ok(()) };
        tracing::warn!(stage = stage.name(), what, zxid = record.zxid, "repair");
        if record.steps.len() > REPAIR_STEPS_MAX {
            record.steps.pop();
        }
        record.stage = Some(stage);
        record.steps.push(Step { time_ms: now_ms, what });
        record.write()
    }
}

/// Moves a file, or a folder, into a folder that may have to be made.
fn rename(from: &Path, folder: &Path, name: impl AsRef<Path>) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    fs::rename(from, folder.join(name))?;
    sync(folder)
}

fn sync(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn repairs(folder: &Path, an_hour_max: usize) -> Repairs {
        let text = format!("dataDir={}\nclientPort=1\n", folder.display());
        let mut repairs = Repairs::open(&Config::parse(&text).expect("it is a good file")).expect("the disk works");
        repairs.an_hour_max = an_hour_max;
        repairs
    }

    fn corruption() -> Corruption {
        Corruption { zxid: 7, path: None, what: "it is wrong".into(), digests: None }
    }

    fn repaired() -> Repaired {
        Repaired { zxid: sentinel::order::Zxid(9), digest: sentinel::Checksum([1; 32]), agreeing: 2 }
    }

    #[test]
    fn a_server_repairs_itself_so_often_an_hour_and_then_stays_quarantined() {
        let folder = tempfile::tempdir().expect("a folder");
        fs::create_dir(folder.path().join(SNAPSHOTS)).expect("it is new");
        let mut repairs = repairs(folder.path(), 3);
        for time in 0..3 {
            repairs.notice(&corruption(), "serving", None, 1_000 + time).expect("the disk works");
            assert!(repairs.begin(Remedy::Reread, 1_000).expect("the disk works"), "repair {time}");
            repairs.finish(repaired(), 1_000).expect("the disk works");
        }
        repairs.notice(&corruption(), "serving", None, 2_000).expect("the disk works");
        assert!(!repairs.begin(Remedy::Reread, 2_000).expect("the disk works"));
        assert!(repairs.text().is_some_and(|text| text.starts_with("refused: it stays quarantined")), "it says so");
        repairs.notice(&corruption(), "serving", None, HOUR_MS + 2_000).expect("the disk works");
        assert!(repairs.begin(Remedy::Reread, HOUR_MS + 2_000).expect("the disk works"), "an hour later it may");
        repairs.an_hour_max = 0;
        repairs.notice(&corruption(), "serving", None, 3 * HOUR_MS).expect("the disk works");
        assert!(!repairs.begin(Remedy::Reread, 3 * HOUR_MS).expect("the disk works"), "and never where that is switched off");
    }

    #[test]
    fn that_its_state_came_from_the_others_is_remembered_when_another_record_follows() {
        let folder = tempfile::tempdir().expect("a folder");
        fs::create_dir(folder.path().join(SNAPSHOTS)).expect("it is new");
        let mut taken = repairs(folder.path(), 9);
        taken.notice(&corruption(), "start", None, 1).expect("the disk works");
        assert!(taken.begin(Remedy::Takeover, 1).expect("the disk works"));
        assert_eq!(taken.uncompared(), Some(Remedy::Reread), "it has not given up anything yet");
        taken.put_aside(1).expect("the disk works");
        // Found wrong again, by whatever; and the process ends before anything is done about that.
        taken.notice(&corruption(), "serving", None, 2).expect("the disk works");
        for stage in [Stage::Quarantined, Stage::Refused] {
            let again = repairs(folder.path(), 0);
            assert_eq!(again.stage(), Some(stage));
            assert!(again.has_given_up() && again.uncompared() == Some(Remedy::Takeover), "{stage:?}");
            let mut refused = again;
            assert!(!refused.begin(Remedy::Reread, 3).expect("the disk works"));
        }
        let mut finished = repairs(folder.path(), 9);
        finished.finish(repaired(), 4).expect("the disk works");
        finished.notice(&corruption(), "serving", None, 5).expect("the disk works");
        assert!(!finished.has_given_up(), "it was compared since");
    }

    #[test]
    fn a_server_that_takes_a_snapshot_while_it_is_repaired_remembers_that_its_state_is_the_leaders() {
        let folder = tempfile::tempdir().expect("a folder");
        fs::create_dir(folder.path().join(SNAPSHOTS)).expect("it is new");
        let mut lagging = repairs(folder.path(), 9);
        lagging.take_over(1).expect("there is nothing to be noted where nothing is repaired");
        lagging.notice(&corruption(), "serving", None, 1).expect("the disk works");
        assert!(lagging.begin(Remedy::Reread, 1).expect("the disk works"));
        assert_eq!(repairs(folder.path(), 9).uncompared(), Some(Remedy::Reread));
        lagging.take_over(2).expect("the disk works");
        assert_eq!(repairs(folder.path(), 9).uncompared(), Some(Remedy::Takeover));
    }

    #[test]
    fn a_clock_that_is_set_back_hides_no_repair_and_keeps_what_was_put_aside_last() {
        let folder = tempfile::tempdir().expect("a folder");
        let snapshots = folder.path().join(SNAPSHOTS);
        fs::create_dir(&snapshots).expect("it is new");
        for time in [9_000, 5_000, 1_000] {
            let mut before = repairs(folder.path(), 9);
            before.notice(&corruption(), "start", None, time).expect("the disk works");
            assert!(before.begin(Remedy::Takeover, time).expect("the disk works"));
            fs::write(snapshots.join("0000000000000001-00000001"), time.to_string()).expect("it can be written");
            before.put_aside(time).expect("the disk works");
            let mut after = repairs(folder.path(), 9);
            assert!(after.has_given_up(), "the newest record is found, though its time is earlier");
            after.finish(repaired(), time).expect("the disk works");
            assert_eq!(repairs(folder.path(), 9).uncompared(), None);
        }
        let asides = repairs(folder.path(), 9).asides().expect("it can be read");
        let kept = |name: &u64| {
            fs::read_to_string(folder.path().join(DAMAGED).join(name.to_string()).join(SNAPSHOTS).join("0000000000000001-00000001"))
        };
        let kept: Vec<String> = asides.iter().map(|name| kept(name).expect("it is there")).collect();
        assert_eq!(kept, ["5000", "1000"]);
    }

    #[test]
    fn however_often_a_server_is_refused_each_time_is_recorded_and_it_repairs_itself_when_it_may() {
        let folder = tempfile::tempdir().expect("a folder");
        fs::create_dir(folder.path().join(SNAPSHOTS)).expect("it is new");
        let count = i64::try_from(crate::limits::EVIDENCE_MAX).expect("it is small") + 20;
        for time in 0..count {
            let mut refused = repairs(folder.path(), 0);
            refused.notice(&corruption(), "start", None, time).expect("the disk works");
            assert!(!refused.begin(Remedy::Takeover, time).expect("the disk works"));
            assert!(refused.text().is_some_and(|text| text.contains("bezant.repairsPerHour is 0")), "{time}");
        }
        let mut allowed = repairs(folder.path(), 3);
        allowed.notice(&corruption(), "start", None, count).expect("the disk works");
        assert!(allowed.begin(Remedy::Takeover, count).expect("the disk works"));
        assert_eq!(crate::evidence(folder.path()).expect("it can be read").len(), crate::limits::EVIDENCE_MAX);
    }

    #[test]
    fn putting_aside_goes_on_after_a_crash_and_few_are_kept() {
        let folder = tempfile::tempdir().expect("a folder");
        let (snapshots, log) = (folder.path().join(SNAPSHOTS), folder.path().join(LOG));
        let damaged = folder.path().join(DAMAGED);
        for time in 1..=4 {
            fs::create_dir_all(&snapshots).expect("a folder");
            fs::create_dir_all(&log).expect("a folder");
            fs::write(log.join("one"), "log").expect("it can be written");
            fs::write(snapshots.join("0000000000000001-00000001"), "snapshot").expect("it can be written");
            let mut before = repairs(folder.path(), 9);
            before.notice(&corruption(), "start", None, time).expect("the disk works");
            assert!(before.begin(Remedy::Takeover, time).expect("the disk works"));
            // The crash comes when the log was moved, and the snapshots were not.
            if let Some(record) = &mut before.record {
                record.aside = Some(time.to_string());
            }
            before.step(Stage::PutAside, "it begins".to_owned(), time).expect("the disk works");
            rename(&log, &damaged.join(time.to_string()), LOG).expect("the disk works");
            let mut after = repairs(folder.path(), 9);
            after.resume(time).expect("the disk works");
            assert!(after.has_given_up() && after.uncompared() == Some(Remedy::Takeover));
            assert!(!log.exists() && fs::read_dir(&snapshots).expect("it is there").count() == usize::try_from(time).expect("small"));
            let aside = damaged.join(time.to_string());
            assert!(aside.join(LOG).join("one").exists() && aside.join(SNAPSHOTS).join("0000000000000001-00000001").exists());
            let mut again = repairs(folder.path(), 9);
            assert!(again.has_given_up(), "it knows that after another start too");
            again.finish(repaired(), time).expect("the disk works");
            assert_eq!(repairs(folder.path(), 9).uncompared(), None);
        }
        assert_eq!(fs::read_dir(&damaged).expect("it is there").count(), DAMAGED_KEPT);
        for time in 5..7_i64 {
            fs::create_dir_all(damaged.join(time.to_string())).expect("a folder");
        }
        let mut full = repairs(folder.path(), 9);
        full.notice(&corruption(), "start", None, 9).expect("the disk works");
        assert!(!full.begin(Remedy::Takeover, 9).expect("the disk works"), "nothing was finished since they were put aside");
        assert!(full.text().is_some_and(|text| text.contains("put aside 4 times")));
    }
}
