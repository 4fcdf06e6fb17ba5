//! What stands in the place of a made-up map where there is none: without the feature `lab` nobody can make a [`Regions`], and a
//! cluster that runs under one is refused.

use std::path::{Path, PathBuf};

use runtime::Delays;
use types::Party;

use super::file::ConfigError;

/// Who is where, and how far apart: nobody can say so in this build.
#[derive(Clone, Debug, PartialEq)]
pub enum Regions {}

impl Regions {
    /// None; refuses a cluster that runs under a made-up map.
    ///
    /// # Errors
    /// [`ConfigError`] when there is such a map.
    pub fn of_cluster(folder: &Path) -> Result<Option<Self>, ConfigError> {
        let file = Self::file_of_cluster(folder);
        if !file.exists() {
            return Ok(None);
        }
        let what = super::laboratory_only("a cluster under injected latency");
        Err(ConfigError { what, file, line: None, help: "stop it with `bezant-lab down`".to_owned() })
    }

    /// Where the laboratory leaves the map of the cluster in `folder`.
    #[must_use]
    pub fn file_of_cluster(folder: &Path) -> PathBuf {
        folder.join("run").join("regions.toml")
    }

    /// What it is called.
    #[must_use]
    pub fn name(&self) -> &str {
        match *self {}
    }

    /// What a file holds that says the same.
    #[must_use]
    pub fn text(&self) -> &str {
        match *self {}
    }

    /// Where `party` is.
    #[must_use]
    pub fn region_of(&self, _: Party) -> &str {
        match *self {}
    }

    /// How far everybody is from `party`, for its node.
    #[must_use]
    pub fn delays_from(&self, _: Party) -> Delays {
        match *self {}
    }
}
