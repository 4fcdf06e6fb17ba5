//! What is kept of damage that was noticed: a file for each time, beside the snapshots, which nothing removes but people.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use sentinel::Corruption;
use serde_json::{Value, json};

use crate::limits::EVIDENCE_MAX;
use crate::storage::SNAPSHOTS;

const PREFIX: &str = "corruption-";

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
}

impl Evidence {
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
        })
    }

    fn from_json(file: PathBuf, json: &Value) -> Option<Self> {
        let text = |name: &str| json[name].as_str().map(str::to_owned);
        Some(Self {
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
    let folder = data.join(SNAPSHOTS);
    if files(&folder)?.len() >= EVIDENCE_MAX {
        return Ok(None);
    }
    let file = folder.join(format!("{PREFIX}{:016x}-{time_ms}.json", corruption.zxid));
    let evidence = Evidence {
        file: file.clone(),
        time_ms,
        noticed_by: noticed_by.to_owned(),
        zxid: corruption.zxid,
        path: corruption.path.clone(),
        what: corruption.what.clone(),
        profile: profile.to_owned(),
        digests: corruption.digests.as_ref().map(|digests| (digests.0.to_string(), digests.1.to_string())),
    };
    let mut written = File::create(&file)?;
    written.write_all(format!("{:#}\n", evidence.to_json()).as_bytes())?;
    written.sync_all()?;
    File::open(&folder)?.sync_all()?;
    Ok(Some(file))
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
    let mut found = Vec::new();
    for file in files(&data.join(SNAPSHOTS))? {
        let none = || io::Error::other(format!("{} is no record of damage", file.display()));
        let json: Value = serde_json::from_slice(&fs::read(&file)?).map_err(|_| none())?;
        found.push(Evidence::from_json(file.clone(), &json).ok_or_else(none)?);
    }
    found.sort_by_key(|evidence| evidence.time_ms);
    Ok(found)
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
    }
}
