//! What only experiments ask of a new cluster: flags of `init` and `dev`, and lines of the files that these write. The product has
//! neither, and refuses such lines by name where it reads them.

use clap::Args;
#[cfg(feature = "lab")]
use clap::ValueEnum;
use crypto::Signatures;

/// What only experiments ask for: in a build without the feature `lab`, nothing.
#[derive(Args, Clone, Debug)]
pub struct Experiments {
    /// Whether replies are signed; off is for measurement only, and survives no lie
    #[cfg(feature = "lab")]
    #[arg(long, value_enum, default_value_t = Switch::On)]
    signatures: Switch,
    /// With an engine that locks keys: what an insertion and a range exclude each other in, the range, or as in its paper their shard
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
    /// Whether the replicas sign.
    pub fn signatures(&self) -> Signatures {
        match self.signatures {
            Switch::On => Signatures::Ed25519,
            Switch::Off => Signatures::Off,
        }
    }

    /// What an insertion and a range exclude each other in.
    pub fn structural_locks(&self) -> config::StructuralLocks {
        match self.structural_locks {
            StructuralLocks::Intervals => config::StructuralLocks::Intervals,
            StructuralLocks::WholeShard => config::StructuralLocks::WholeShard,
        }
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
    /// Whether the replicas sign: they do.
    pub fn signatures(&self) -> Signatures {
        Signatures::Ed25519
    }

    /// What an insertion and a range exclude each other in: the range.
    pub fn structural_locks(&self) -> config::StructuralLocks {
        config::StructuralLocks::Intervals
    }

    /// What a client's `client.toml` says of it: nothing.
    pub fn client_lines(&self) -> String {
        String::new()
    }
}
