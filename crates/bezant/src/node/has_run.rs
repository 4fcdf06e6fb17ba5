//! A file beside `node.toml` that says that this replica has run. Its data can be lost in a way that they cannot tell themselves: where an
//! old image is put back, or another disk is mounted, with the empty store on it that `init` made. Who began anew on that would not know what it
//! has promised, and would lie.
//!
//! The file is written when the store is in use, and before anything is said. Where it is missing, as in folders of programs before
//! it, nothing more is known than the data say.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write as _};
use std::path::{Path, PathBuf};

use config::NodeConfig;
use store::StoreError;

use super::owner;
use super::wiring::is_unused;

/// Its name in the replica's folder.
const NAME: &str = "has-run";

/// What is known of a replica beside its data.
pub struct HasRun {
    file: PathBuf,
    data: PathBuf,
    owner: String,
    engine: &'static str,
}

impl HasRun {
    /// Of the replica of this folder.
    pub fn of(config: &NodeConfig) -> Self {
        let (file, data) = (config.folder.join(NAME), config.data.clone());
        Self { file, data, owner: owner(&config.topology.cluster, config.replica), engine: config.topology.engine.name }
    }

    /// Refuses an empty store of a replica that has run.
    ///
    /// # Errors
    /// [`StoreError::Unused`] then, and [`StoreError::Io`] when nobody can tell.
    pub fn refuse_unused(&self) -> Result<(), StoreError> {
        // What is missing, damaged or another's is said by whoever opens it.
        if !matches!(is_unused(self.engine, &self.data, &self.owner), Ok(true)) || !self.is_there()? {
            return Ok(());
        }
        Err(StoreError::Unused { location: self.data.display().to_string(), used: self.file.display().to_string() })
    }

    /// Whether it is known that this replica has run.
    pub fn is_noted(&self) -> bool {
        self.is_there().unwrap_or(true)
    }

    /// Writes the file, durably, where it is not there. A folder that cannot be written to does without.
    pub fn keep(&self) {
        let written = self.is_there().map_err(|error| error.to_string()).and_then(|is_there| match is_there {
            true => Ok(()),
            false => write(&self.file, &self.text()).map_err(|error| error.to_string()),
        });
        if let Err(error) = written {
            let file = self.file.display();
            tracing::warn!(%file, error, "it cannot be kept that this replica has run: an empty store in the place of its data would not be noticed");
        }
    }

    fn text(&self) -> String {
        format!(
            "# This replica has run, and so has data: where its store is as empty as `bezant init` made it, it has lost them, and does not start.\n\
             # Leave this file as it is.\n{}\n",
            self.line()
        )
    }

    fn line(&self) -> String {
        format!("owner = \"{}\"", self.owner)
    }

    /// Whether the file is there and not another replica's, with whose folder it was copied. One that is damaged says that somebody has run.
    fn is_there(&self) -> Result<bool, StoreError> {
        let text = match fs::read(&self.file) {
            Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
            Err(source) => return Err(StoreError::Io { doing: format!("read {}", self.file.display()), source }),
        };
        let is_others = |line: &str| line.starts_with("owner = ") && line != self.line();
        Ok(!text.lines().any(is_others))
    }
}

/// Puts a text in the place of a file, durably: after a crash there is what was there, or all of it.
pub(super) fn write(path: &Path, text: &str) -> io::Result<()> {
    let next = path.with_extension("next");
    let mut file = File::create(&next)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&next, path)?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use store::Disk;

    const OWNER: &str = "cluster 07 replica s0-r3";

    #[test]
    fn an_empty_store_is_refused_once_its_replica_has_run() {
        let folder = tempfile::tempdir().expect("a folder");
        let of = |owner: &str| HasRun {
            file: folder.path().join(NAME),
            data: folder.path().join("data"),
            owner: owner.to_owned(),
            engine: "one that keeps its data in a store",
        };
        let own = of(OWNER);
        own.refuse_unused().expect("what is missing is said when it is opened");
        Disk::create(&own.data, OWNER).expect("made");
        own.refuse_unused().expect("it has not run");
        // With whose folder it was copied.
        of("cluster 07 replica s0-r4").keep();
        own.refuse_unused().expect("another has run");
        own.keep();
        let refused = own.refuse_unused().expect_err("it has run").to_string();
        assert!(refused.contains("data is empty") && refused.contains("has-run says"), "{refused}");
        own.keep();
        assert_eq!(fs::read_dir(folder.path()).expect("there").count(), 2, "nothing else is left");
        fs::write(&own.file, [0; 7]).expect("written");
        own.refuse_unused().expect_err("what is damaged says that somebody has run");
    }
}
