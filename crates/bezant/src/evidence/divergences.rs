//! What a replica found of its own state to be wrong: a file for each time, beside what it saw others do. Nothing of it is signed, as the
//! replica compared what its channels brought, and only its operators have to know.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use engine::Divergence;
use serde_json::{Value, json};

use super::{Listed, list_of, now_ms, write};
use crate::out;

/// The most files of a folder: the first ones say more than one more would.
const DIVERGENCES_MAX: usize = 256;
const PREFIX: &str = "divergence-";
/// For what was found while the process came back from its journal.
static STARTED_MS: LazyLock<u64> = LazyLock::new(now_ms);

/// What is kept of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// When it was noticed, in milliseconds since 1970.
    pub time_ms: u64,
    /// How many this process had noticed by then.
    pub number: u64,
    /// Which part of the state was wrong.
    pub place: String,
    /// The digest of what was there, in hexadecimal digits.
    pub own: String,
    /// That of what others have.
    pub agreed: String,
    /// How many others said so; 0 where it was compared with what they had agreed on before.
    pub agreed_by: u64,
    /// When it was mended, in milliseconds since 1970.
    pub mended_ms: Option<u64>,
}

impl Kept {
    /// What to keep of `found`.
    pub fn of(found: &Divergence) -> Self {
        let ms = |time: machine::Time| if time.0 == 0 { *STARTED_MS } else { time.0 / 1_000_000 };
        Self {
            time_ms: ms(found.noticed),
            number: found.number,
            place: found.place.clone(),
            own: hex::encode(found.own),
            agreed: hex::encode(found.agreed),
            agreed_by: found.agreed_by as u64,
            mended_ms: found.mended.map(ms),
        }
    }

    /// The same in words.
    pub fn words(&self) -> String {
        let Self { place, own, agreed, agreed_by, .. } = self;
        let by = match agreed_by {
            0 => "it was agreed to be".to_owned(),
            count => format!("{count} others have"),
        };
        let after = |mended_ms: u64| format!("mended {} ms later", mended_ms.saturating_sub(self.time_ms));
        let mended = self.mended_ms.map_or_else(|| "not mended yet".to_owned(), after);
        let short = |digest: &str| digest.chars().take(16).collect::<String>();
        format!("digest {}, {by} {}, {mended}: {place}", short(own), short(agreed))
    }

    fn to_json(&self) -> Value {
        json!({
            "time_ms": self.time_ms,
            "number": self.number,
            "place": self.place,
            "own_digest": self.own,
            "agreed_digest": self.agreed,
            "agreed_by": self.agreed_by,
            "mended_ms": self.mended_ms,
        })
    }

    fn from_json(json: &Value) -> Option<Self> {
        let text = |name: &str| json[name].as_str().map(str::to_owned);
        Some(Self {
            time_ms: json["time_ms"].as_u64()?,
            number: json["number"].as_u64()?,
            place: text("place")?,
            own: text("own_digest")?,
            agreed: text("agreed_digest")?,
            agreed_by: json["agreed_by"].as_u64()?,
            mended_ms: json["mended_ms"].as_u64(),
        })
    }
}

/// Writes one to `folder`, in the place of what was written of it before it was mended.
pub fn keep(folder: &Path, found: &Kept) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    let path = folder.join(format!("{PREFIX}{}-{}.json", found.time_ms, found.number));
    if !path.exists() && list(folder)?.files() >= DIVERGENCES_MAX {
        return Ok(());
    }
    write(&path, &found.to_json())
}

/// All that is kept in `folder` of that.
pub(super) fn list(folder: &Path) -> io::Result<Listed<Kept>> {
    let mut listed = list_of(folder, PREFIX, Kept::from_json)?;
    listed.found.sort_by_key(|(_, kept)| (kept.time_ms, kept.number));
    Ok(listed)
}

/// Shows them, as JSON or in words.
pub fn to_json(found: &[(PathBuf, Kept)]) -> Vec<Value> {
    let one = |(path, kept): &(PathBuf, Kept)| {
        let mut shown = kept.to_json();
        shown["file"] = json!(path.display().to_string());
        shown
    };
    found.iter().map(one).collect()
}

/// The same in words.
pub fn print(found: &[(PathBuf, Kept)]) {
    for (path, kept) in found {
        out!("{}: this replica's own state was wrong: {}", path.display(), kept.words());
        out!("  digest      {}\n  theirs      {}", kept.own, kept.agreed);
        out!("  not signed: this replica alone knows it, from what it compared with the others of its shard");
    }
}

#[cfg(test)]
mod tests {
    use machine::Time;

    use super::*;

    #[test]
    fn what_is_kept_of_a_divergence_is_read_back_written_anew_when_mended_and_has_a_bound() {
        let folder = tempfile::tempdir().expect("a folder");
        let folder = folder.path().join("evidence");
        let list = |folder: &Path| list(folder).expect("it can be read").found;
        assert_eq!(list(&folder), []);
        let mut found = engine::Divergences::default();
        found.note(Time(5_000_000), "the value of k", [1; 32], [2; 32], 2);
        let kept = |found: &engine::Divergences| Kept::of(found.recent().next_back().expect("there is one"));
        keep(&folder, &kept(&found)).expect("it can be written");
        let open = list(&folder);
        assert!(open.len() == 1 && open[0].1.words().contains("not mended yet"), "{open:?}");
        found.mend_all(Time(9_000_000));
        keep(&folder, &kept(&found)).expect("it can be written");
        let mended = list(&folder);
        let words = mended[0].1.words();
        assert!(mended.len() == 1 && words.contains("mended 4 ms later"), "{words}");
        assert_eq!(words, "digest 0101010101010101, 2 others have 0202020202020202, mended 4 ms later: the value of k");
        for number in 2..DIVERGENCES_MAX as u64 + 9 {
            keep(&folder, &Kept { number, ..mended[0].1.clone() }).expect("it can be written");
        }
        assert_eq!(list(&folder).len(), DIVERGENCES_MAX);
    }
}
