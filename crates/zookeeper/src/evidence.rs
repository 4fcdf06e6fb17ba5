//! What is kept of damage that was noticed: a file for each time, beside the snapshots, with what became of it. Nothing removes one but people; where
//! there are too many, the oldest of those that were repaired gives way.

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
}

impl Evidence {
    /// Of what was noticed just now.
    pub(crate) fn of(data: &Path, corruption: &Corruption, profile: &str, noticed_by: &str, time_ms: i64) -> Self {
        Self {
            file: data.join(SNAPSHOTS).join(format!("{PREFIX}{:016x}-{time_ms}.json", corruption.zxid)),
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
        }
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
        Some(Self {
            fields: list("fields").filter_map(field).collect(),
            stage: json["stage"].as_str().and_then(Stage::of_name),
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

/// Keeps a record of what was found to be wrong with the server whose `dataDir` is `data`. Once there are many, the first ones say more than one
/// more would: a server that is started again and again does not fill its disk.
///
/// # Errors
/// When the disk fails.
pub(crate) fn keep(data: &Path, corruption: &Corruption, profile: &str, noticed_by: &str, time_ms: i64) -> io::Result<Option<PathBuf>> {
    if !make_room(data)? {
        return Ok(None);
    }
    let evidence = Evidence::of(data, corruption, profile, noticed_by, time_ms);
    evidence.write()?;
    Ok(Some(evidence.file))
}

/// Whether there is room for another record, for which the oldest of a finished repair is removed.
pub(crate) fn make_room(data: &Path) -> io::Result<bool> {
    if files(&data.join(SNAPSHOTS))?.len() < EVIDENCE_MAX {
        return Ok(true);
    }
    match readable_evidence(data)?.into_iter().find(|evidence| evidence.stage.is_some_and(Stage::is_over)) {
        Some(oldest) => fs::remove_file(oldest.file).map(|()| true),
        None => Ok(false),
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
    found.sort_by_key(|evidence| evidence.time_ms);
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
    found.sort_by_key(|evidence| evidence.time_ms);
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

    #[test]
    fn what_is_kept_is_read_back_and_has_a_bound() {
        let folder = tempfile::tempdir().expect("a folder");
        fs::create_dir(folder.path().join(SNAPSHOTS)).expect("it is new");
        let corruption = Corruption { zxid: 7, path: Some("/a\u{1}\"".into()), what: "it is wrong".into(), digests: None };
        for time_ms in 0..i64::try_from(EVIDENCE_MAX).expect("it is small") + 5 {
            keep(folder.path(), &corruption, "sha256-wide", "serving", 1_000 - time_ms).expect("the disk works");
        }
        let found = evidence(folder.path()).expect("it can be read");
        assert_eq!(found.len(), EVIDENCE_MAX);
        assert_eq!((found[0].zxid, found[0].path.as_deref()), (7, Some("/a\u{1}\"")));
        assert!(found[0].time_ms < found[1].time_ms);
        assert!(evidence(&folder.path().join("nowhere")).is_err());
        let readable = found.len() - 1;
        fs::write(&found[0].file, b"{\"time").expect("the disk works");
        assert!(evidence(folder.path()).is_err());
        assert_eq!(readable_evidence(folder.path()).expect("the others are read").len(), readable);
    }
}
