//! Injected latency on the command line: the option, where its map is kept, and the warning that it is on. Only builds
//! with the feature `lab` have the flags; in others there are no [`Regions`] to be had.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use clap::Args;
use config::{Config, Regions};
use types::{Party, Session};

use crate::failure::{Attempt as _, Failure};
use crate::tell;

/// The flag of commands that start replicas.
#[derive(Args, Clone, Debug)]
pub struct NodeRegions {
    /// For measuring and testing: hold back what is said, as if replicas and clients were in the regions of this map, which is
    /// zone, region, planet or a file
    #[cfg(feature = "lab")]
    #[arg(long, value_name = "MAP")]
    regions: Option<String>,
}

/// The flag of commands that speak to a cluster.
#[derive(Args, Clone, Debug, Default)]
pub struct ClientRegions {
    /// Where a cluster runs under injected latency: its map. Found by itself where `bezant-lab up --regions` left it
    #[cfg(feature = "lab")]
    #[arg(long, value_name = "MAP")]
    pub regions: Option<String>,
}

impl NodeRegions {
    /// The map that was asked for.
    pub fn load(&self) -> Result<Option<Regions>, Failure> {
        #[cfg(feature = "lab")]
        let asked = self.regions.as_deref().map(Regions::load).transpose()?;
        #[cfg(not(feature = "lab"))]
        let asked = None;
        Ok(asked)
    }
}

impl ClientRegions {
    /// Reads a client's configuration, and warns when it comes with distances.
    pub fn config(&self, cluster: &Path) -> Result<Config, Failure> {
        let config = bezant_client::load(cluster)?;
        #[cfg(feature = "lab")]
        let config = match &self.regions {
            Some(map) => Config { regions: Some(Regions::load(map)?), ..config },
            None => config,
        };
        if let Some(regions) = &config.regions {
            let region = regions.region_of(Party::Client(config.client, Session(0)));
            tell!("warning: latency is injected (regions {}): this client is in {region}", regions.name());
        }
        Ok(config)
    }
}

/// Leaves the map where the cluster's clients find it, or takes it away.
pub fn leave(folder: &Path, regions: Option<&Regions>) -> Result<(), Failure> {
    let file = Regions::file_of_cluster(folder);
    let Some(regions) = regions else {
        return match fs::remove_file(&file) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error).attempt("remove the file", file.display()),
            _ => Ok(()),
        };
    };
    tell!("warning: latency is injected (regions {}): for measuring and testing only", regions.name());
    if let Some(run) = file.parent() {
        fs::create_dir_all(run).attempt("make the folder", run.display())?;
    }
    fs::write(&file, regions.text()).attempt("write the file", file.display())
}
