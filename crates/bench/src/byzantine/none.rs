//! What stands in the place of clients that cheat where there are none: without the feature `lab` nobody can plan for them, and
//! the compiler leaves nothing of what would follow from a plan.

use std::path::Path;
use std::sync::Arc;

use clap::Args;
use client::Client;
use config::Config;
use serde::Serialize;

use crate::BenchError;

/// Whether some of the clients cheat: they do not.
#[derive(Args, Clone, Debug, PartialEq)]
pub struct CheatArgs {}

impl CheatArgs {
    pub(crate) fn plan(&self, _: u32) -> Result<Option<Plan>, BenchError> {
        Ok(None)
    }
}

/// Who cheats, and how.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Plan {}

impl Plan {
    pub async fn connect(&self, _: &Path, _: &Config, _: u64) -> Result<Arc<Client>, BenchError> {
        match *self {}
    }

    pub fn honest(&self) -> u32 {
        match *self {}
    }

    pub fn hurries(&self) -> bool {
        match *self {}
    }

    pub async fn mark(&self, _: &Config, _: &[Arc<Client>], _: &Client) -> Mark {
        match *self {}
    }

    pub async fn report(&self, _: &Config, _: &Mark, _: &Mark, _: f64, _: u64) -> ByzantineReport {
        match *self {}
    }
}

/// What everybody has done up to one moment.
#[derive(Debug)]
pub(crate) enum Mark {}

/// What came of it.
#[derive(Clone, Debug, Serialize)]
pub enum ByzantineReport {}

impl ByzantineReport {
    pub(crate) fn rows(&self) -> Vec<(&'static str, String)> {
        match *self {}
    }
}
