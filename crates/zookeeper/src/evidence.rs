//! What is kept of damage that was noticed: a file for each time, beside the snapshots, with what became of it. Records are numbered, as clocks are
//! set back. Where there are too many, an old one gives way: one whose repair is over before one that was refused, and never the newest, whose repair
//! may go on.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use sentinel::Corruption;
use serde_json::{Value, json};

use crate::limits::EVIDENCE_MAX;
use crate::storage::SNAPSHOTS;

const PREFIX: &str = "corruption-";
/// Under which name a record is written that takes the place of one.
const PARTIAL: &str = "record-partial";
/// Within so long repairs are counted.
pub(crate) const HOUR_MS: i64 = 3_600_000;

/// How far a server among several is with its repair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// It was found wrong, and serves nobody.
    Quarantined,
    /// It reads its own disk again, or was compared with nobody since.
    Reread,
    /// Its files are being put aside.
    PutAside,
    /// They are, and it takes its state over from the others, or was compared with nobody since.
    Takeover,
    /// A majority has the same state.
    Repaired,
    /// It was found wrong again before that: the next record goes on.
    Failed,
    /// It stays quarantined, for a reason that its last step says.
    Refused,
}

impl Stage {
    const ALL: [Self; 7] = [Self::Quarantined, Self::Reread, Self::PutAside, Self::Takeover, Self::Repaired, Self::Failed, Self::Refused];

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Quarantined => "quarantined",
            Self::Reread => "reread",
            Self::PutAside => "put-aside",
            Self::Takeover => "takeover",
            Self::Repaired => "repaired",
            Self::Failed => "failed",
            Self::Refused => "refused",
        }
    }

    fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|stage| stage.name() == name)
    }

    /// Whether something was done to repair it.
    pub(crate) fn is_begun(self) -> bool {
        !matches!(self, Self::Quarantined | Self::Refused)
    }

    /// Whether nothing is left to be done.
    pub(crate) fn is_over(self) -> bool {
        matches!(self, Self::Repaired | Self::Failed)
    }
}

/// A field of the node that was found to be wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// Its name.
    pub name: String,
    /// As it was found.
    pub found: String,
    /// As it is after rereading, once it was.
    pub reread: Option<String>,
}

/// A step of a repair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// When, in milliseconds since 1970.
    pub time_ms: i64,
    /// What was done, or found.
    pub what: String,
}

/// What is known of one time that damage was noticed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evidence {
    /// The file.
    pub file: PathBuf,
    /// Which it is of those of this server, counted from 1; 0 where a build wrote it that did not count.
    pub number: u64,
    /// When, in milliseconds since 1970.
    pub time_ms: i64,
    /// By what: `serving` or `start`.
    pub noticed_by: String,
    /// At which transaction.
    pub zxid: i64,
    /// At which node, where that is known.
    pub path: Option<String>,
    /// What was wrong.
    pub what: String,
    /// How digests were computed.
    pub profile: String,
    /// The digest that was expected, and the one that was found, where it was one.
    pub digests: Option<(String, String)>,
    /// The node's fields, where it is known.
    pub fields: Vec<Field>,
    /// How far the repair is, of one of several servers.
    pub stage: Option<Stage>,
    /// What was done, the oldest first.
    pub steps: Vec<Step>,
    /// Where damaged files were put aside.
    pub aside: Option<String>,
    /// The state that the server had then, or has since, came from the others, and was compared with nobody's.
    pub took_over: bool,
}

impl Evidence {
    /// Of what was noticed just now.
    pub(crate) fn of(data: &Path, number: u64, corruption: &Corruption, profile: &str, noticed_by: &str, time_ms: i64) -> Self {
        Self {
            file: data.join(SNAPSHOTS).join(format!("{PREFIX}{number:08}-{:016x}-{time_ms}.json", corruption.zxid)),
            number,
            time_ms,
            noticed_by: noticed_by.to_owned(),
            zxid: corruption.zxid,
            path: corruption.path.clone(),
            what: corruption.what.clone(),
            profile: profile.to_owned(),
            digests: corruption.digests.as_ref().map(|digests| (digests.0.to_string(), digests.1.to_string())),
            fields: Vec::new(),
            stage: None,
            steps: Vec::new(),
            aside: None,
            took_over: false,
        }
    }

    /// By what records are in order: by their numbers, and where they have none, by the clock.
    fn age(&self) -> (u64, i64) {
        (self.number, self.time_ms)
    }

    /// Whether a repair was begun so shortly before or, where the clock was set back, after `now_ms`.
    pub(crate) fn is_begun_within(&self, ms: i64, now_ms: i64) -> bool {
        self.stage.is_some_and(Stage::is_begun) && (now_ms - self.time_ms).abs() < ms
    }

    /// Keeps it in place of what its file held: whole, or as that was.
    pub(crate) fn write(&self) -> io::Result<()> {
        let folder = self.file.parent().ok_or_else(|| io::Error::other("a record is in a folder"))?;
        fs::create_dir_all(folder)?;
        let partial = folder.join(PARTIAL);
        let mut written = File::create(&partial)?;
        written.write_all(format!("{:#}\n", self.to_json()).as_bytes())?;
        written.sync_all()?;
        fs::rename(&partial, &self.file)?;
        File::open(folder)?.sync_all()
    }

    /// As programs read it.
    #[must_use]
    pub fn to_json(&self) -> Value {
        json!({
            "file": self.file.display().to_string(),
            "number": self.number,
            "time_ms": self.time_ms,
            "noticed_by": self.noticed_by,
            "zxid": self.zxid,
            "path": self.path,
            "what": self.what,
            "profile": self.profile,
            "expected": self.digests.as_ref().map(|(expected, _)| expected),
            "found": self.digests.as_ref().map(|(_, found)| found),
            "fields": self.fields.iter().map(|field| json!({ "name": field.name, "found": field.found, "reread": field.reread })).collect::<Vec<_>>(),
            "stage": self.stage.map(Stage::name),
            "steps": self.steps.iter().map(|step| json!({ "time_ms": step.time_ms, "what": step.what })).collect::<Vec<_>>(),
            "aside": self.aside,
            "took_over": self.took_over,
        })
    }

    fn from_json(file: PathBuf, json: &Value) -> Option<Self> {
        let text = |name: &str| json[name].as_str().map(str::to_owned);
        // Records of earlier builds have none of these.
        let list = |name: &str| json[name].as_array().cloned().unwrap_or_default().into_iter();
        let field = |field: Value| {
            let text = |name: &str| field[name].as_str().map(str::to_owned);
            Some(Field { name: text("name")?, found: text("found")?, reread: text("reread") })
        };
        let step = |step: Value| Some(Step { time_ms: step["time_ms"].as_i64()?, what: step["what"].as_str()?.to_owned() });
        let stage = json["stage"].as_str().and_then(Stage::of_name);
        Some(Self {
            number: number_of(&file),
            took_over: json["took_over"].as_bool().unwrap_or(stage == Some(Stage::Takeover)),
            fields: list("fields").filter_map(field).collect(),
            stage,
            steps: list("steps").filter_map(step).collect(),
            aside: text("aside"),
            file,
            time_ms: json["time_ms"].as_i64()?,
            noticed_by: text("noticed_by")?,
            zxid: json["zxid"].as_i64()?,
            path: text("path"),
            what: text("what")?,
            profile: text("profile")?,
            digests: text("expected").zip(text("found")),
        })
    }
}

/// Keeps a record of what was found to be wrong with the server whose `dataDir` is `data`.
///
/// # Errors
/// When the disk fails.
pub(crate) fn keep(data: &Path, corruption: &Corruption, profile: &str, noticed_by: &str, time_ms: i64) -> io::Result<PathBuf> {
    let evidence = Evidence::of(data, make_room(data, time_ms)?, corruption, profile, noticed_by, time_ms);
    evidence.write()?;
    Ok(evidence.file)
}

/// Makes room for another record, and gives its number. A server that is started again and again does not fill its disk, and says of each time what
/// it found.
pub(crate) fn make_room(data: &Path, now_ms: i64) -> io::Result<u64> {
    let folder = data.join(SNAPSHOTS);
    let number = files(&folder)?.iter().map(|file| number_of(file)).max().unwrap_or(0) + 1;
    while files(&folder)?.len() >= EVIDENCE_MAX {
        let mut found = readable_evidence(data)?;
        // Its repair may go on in the record that there is to be room for.
        let newest = found.pop().map(|newest| newest.file);
        // What was begun within the hour is counted, so that nothing repairs itself for ever.
        let is_counted = |found: &Evidence| found.is_begun_within(HOUR_MS, now_ms);
        let rank = |found: &Evidence| (is_counted(found), !found.stage.is_none_or(Stage::is_over));
        let oldest = found.iter().min_by_key(|found| rank(found)).map(|found| found.file.clone());
        // Nobody can read the others.
        let oldest = oldest.or_else(|| files(&folder).ok()?.into_iter().find(|file| Some(file) != newest.as_ref()));
        let Some(oldest) = oldest else { break };
        fs::remove_file(oldest)?;
    }
    Ok(number)
}

/// The number of a record: its name begins with it, but for records of builds that did not number them.
fn number_of(file: &Path) -> u64 {
    let name = file.file_stem().and_then(|name| name.to_str()).and_then(|name| name.strip_prefix(PREFIX)).unwrap_or_default();
    match name.splitn(3, '-').collect::<Vec<_>>()[..] {
        [number, _, _] => number.parse().unwrap_or(0),
        _ => 0,
    }
}

/// Whether a file of this name is one of them, or about to be.
pub(crate) fn is_record(name: &str) -> bool {
    name.starts_with(PREFIX) || name == PARTIAL
}

fn files(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with(PREFIX)) {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// The evidence in a server's `dataDir`, the oldest first.
///
/// # Errors
/// When the folder cannot be read, or a file in it is no evidence.
pub fn evidence(data: &Path) -> io::Result<Vec<Evidence>> {
    let mut found = files(&data.join(SNAPSHOTS))?.into_iter().map(read).collect::<io::Result<Vec<Evidence>>>()?;
    found.sort_by_key(Evidence::age);
    Ok(found)
}

/// What of it can be read: a damaged record is no reason to leave a server down that looks after its repair.
pub(crate) fn readable_evidence(data: &Path) -> io::Result<Vec<Evidence>> {
    let mut found = Vec::new();
    for file in files(&data.join(SNAPSHOTS))? {
        match read(file) {
            Ok(evidence) => found.push(evidence),
            Err(error) => tracing::warn!(%error, "a record of damage is left out"),
        }
    }
    found.sort_by_key(Evidence::age);
    Ok(found)
}

fn read(file: PathBuf) -> io::Result<Evidence> {
    let none = || io::Error::other(format!("{} is no record of damage", file.display()));
    let json: Value = serde_json::from_slice(&fs::read(&file)?).map_err(|_| none())?;
    Evidence::from_json(file.clone(), &json).ok_or_else(none)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn corruption() -> Corruption {
        Corruption { zxid: 7, path: Some("/a\u{1}\"".into()), what: "it is wrong".into(), digests: None }
    }

    fn folder() -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("a folder");
        fs::create_dir(folder.path().join(SNAPSHOTS)).expect("it is new");
        folder
    }

    #[test]
    fn what_is_kept_is_read_back_and_has_a_bound() {
        let folder = folder();
        let count = i64::try_from(EVIDENCE_MAX).expect("it is small") + 5;
        for time_ms in 0..count {
            keep(folder.path(), &corruption(), "sha256-wide", "serving", 1_000 - time_ms).expect("the disk works");
        }
        let found = evidence(folder.path()).expect("it can be read");
        assert_eq!(found.len(), EVIDENCE_MAX);
        assert_eq!((found[0].zxid, found[0].path.as_deref()), (7, Some("/a\u{1}\"")));
        assert_eq!(found.last().map(|newest| (newest.number, newest.time_ms)), Some((count.unsigned_abs(), 1_001 - count)));
        assert!(found.is_sorted_by_key(|evidence| evidence.number), "whatever the clock said");
        assert!(evidence(&folder.path().join("nowhere")).is_err());
        let readable = found.len() - 1;
        fs::write(&found[0].file, b"{\"time").expect("the disk works");
        assert!(evidence(folder.path()).is_err());
        assert_eq!(readable_evidence(folder.path()).expect("the others are read").len(), readable);
    }

    #[test]
    fn of_too_many_records_the_one_to_be_finished_stays_and_those_that_are_over_go_first() {
        let folder = folder();
        let write = |stage: Stage, time_ms: i64| {
            let number = make_room(folder.path(), time_ms).expect("the disk works");
            let mut record = Evidence::of(folder.path(), number, &corruption(), "sha256-wide", "start", time_ms);
            record.stage = Some(stage);
            record.write().expect("the disk works");
        };
        let stages = || readable_evidence(folder.path()).expect("it can be read").into_iter().map(|found| (found.stage, found.time_ms));
        write(Stage::Refused, 0);
        write(Stage::Repaired, 1);
        write(Stage::Repaired, 3 * HOUR_MS);
        (3..EVIDENCE_MAX).for_each(|_| write(Stage::Refused, 3 * HOUR_MS));
        write(Stage::Refused, 3 * HOUR_MS);
        assert_eq!(stages().next(), Some((Some(Stage::Refused), 0)), "the one whose repair was over long ago gave way");
        assert!(!stages().any(|found| found == (Some(Stage::Repaired), 1)));
        write(Stage::Takeover, 3 * HOUR_MS);
        assert_eq!(stages().next(), Some((Some(Stage::Repaired), 3 * HOUR_MS)), "one of this hour is counted, and stays");
        // Files that nobody can read, and the one whose repair goes on.
        for found in readable_evidence(folder.path()).expect("it can be read").iter().rev().skip(1) {
            fs::write(&found.file, b"{").expect("the disk works");
        }
        write(Stage::Refused, 3 * HOUR_MS);
        assert_eq!(stages().map(|(stage, _)| stage).collect::<Vec<_>>(), [Some(Stage::Takeover), Some(Stage::Refused)]);
        assert_eq!(files(&folder.path().join(SNAPSHOTS)).expect("it can be read").len(), EVIDENCE_MAX);
    }

    #[test]
    fn records_of_builds_that_did_not_number_them_come_first_and_are_read() {
        let folder = folder();
        let mut old = Evidence::of(folder.path(), 0, &corruption(), "sha256-wide", "start", 9_000);
        old.file = folder.path().join(SNAPSHOTS).join("corruption-0000000000000007-9000.json");
        old.stage = Some(Stage::Takeover);
        let mut json = old.to_json();
        for name in ["number", "took_over"] {
            json.as_object_mut().and_then(|fields| fields.remove(name)).expect("it was there");
        }
        fs::write(&old.file, json.to_string()).expect("the disk works");
        keep(folder.path(), &corruption(), "sha256-wide", "serving", 1).expect("the disk works");
        let found = evidence(folder.path()).expect("it can be read");
        assert_eq!(
            found.iter().map(|found| (found.number, found.time_ms, found.took_over)).collect::<Vec<_>>(),
            [(0, 9_000, true), (1, 1, false)]
        );
    }
}
