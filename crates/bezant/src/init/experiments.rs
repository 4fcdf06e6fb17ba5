//! What only experiments ask of a new cluster: flags of `init` and `dev`, and lines of the files that these write. The product has
//! neither, and refuses such lines by name where it reads them.

use clap::Args;
#[cfg(feature = "lab")]
use clap::ValueEnum;

/// What only experiments ask for: in a build without the feature `lab`, nothing.
#[derive(Args, Clone, Debug)]
pub struct Experiments {
    /// Whether replies are signed; off is for measurement only, and survives no lie
    #[cfg(feature = "lab")]
    #[arg(long, value_enum, default_value_t = Switch::On)]
    signatures: Switch,
    /// What an insertion and a range exclude each other in (augustus): the range, or as in its paper their shard
    #[cfg(feature = "lab")]
    #[arg(long, value_enum, default_value_t = StructuralLocks::Intervals)]
    structural_locks: StructuralLocks,
    /// Whether clients commit in one round trip where they can
    #[cfg(feature = "lab")]
    #[arg(long, value_enum, default_value_t = Switch::On)]
    fast_path: Switch,
}

#[cfg(feature = "lab")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Switch {
    On,
    Off,
}

#[cfg(feature = "lab")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum StructuralLocks {
    Intervals,
    WholeShard,
}

#[cfg(feature = "lab")]
impl Experiments {
    /// What `cluster.toml` says of it.
    pub fn cluster_lines(&self) -> String {
        let signatures = match self.signatures {
            Switch::On => "signatures = \"on\"\n",
            Switch::Off => "# For measurement only: without signatures the cluster survives no lie.\nsignatures = \"off\"\n",
        };
        let structural_locks = match self.structural_locks {
            StructuralLocks::Intervals => "",
            StructuralLocks::WholeShard => {
                "# For measurement only: an insertion anywhere in a shard and a range there exclude each other.\nstructural_locks = \"whole-shard\"\n"
            }
        };
        format!("{signatures}{structural_locks}")
    }

    /// What a client's `client.toml` says of it.
    pub fn client_lines(&self) -> String {
        let fast_path = if self.fast_path == Switch::On { "on" } else { "off" };
        format!(
            "# Whether commits take one round trip where all replicas agree: \"on\", or \"off\" for measurement.\n\
             fast_path = \"{fast_path}\"\n\
             # How a transaction that writes nothing commits: \"validated\", without votes, or \"voted\" for measurement.\n\
             read_only = \"validated\"\n"
        )
    }
}

#[cfg(not(feature = "lab"))]
impl Experiments {
    /// What `cluster.toml` says of it: nothing.
    pub fn cluster_lines(&self) -> String {
        String::new()
    }

    /// What a client's `client.toml` says of it: nothing.
    pub fn client_lines(&self) -> String {
        String::new()
    }
}
