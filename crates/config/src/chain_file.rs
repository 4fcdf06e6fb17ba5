//! The file `configurations`, beside `cluster.toml`: what the operators have changed since the cluster was made.
//!
//! It holds every configuration after the first, signed, each after its length (`u32`). `cluster.toml` stays as it was made: it is the
//! first one, and all others rest on it. A file that is not there holds none.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::path::{Path, PathBuf};

use crypto::configuration::{CHAIN_BYTES_MAX, CONFIGURATION_BYTES_MAX, VERSIONS_MAX};
use crypto::{Chain, SignedConfiguration};
use types::codec::Encode as _;

use crate::ConfigError;

/// The longest file that is read, in bytes.
const FILE_BYTES_MAX: u64 = (CHAIN_BYTES_MAX + 4 * VERSIONS_MAX + 1) as u64;

/// Where the configurations stand that follow `cluster_toml`.
#[must_use]
pub fn chain_file(cluster_toml: &Path) -> PathBuf {
    cluster_toml.with_file_name("configurations")
}

/// Takes into `chain` what stands in `path`, all of it checked.
pub(crate) fn read_chain(path: &Path, chain: &mut Chain) -> Result<(), ConfigError> {
    let refuse = |what: String| ConfigError {
        what,
        file: path.to_path_buf(),
        line: None,
        help: "take this file and cluster.toml from the same folder of another member; neither is secret".to_owned(),
    };
    let mut file = match File::open(path) {
        Ok(file) => file.take(FILE_BYTES_MAX),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(refuse(format!("the file cannot be read: {error}"))),
    };
    for _ in 0..=VERSIONS_MAX {
        let mut length = [0; 4];
        match file.read_exact(&mut length) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::UnexpectedEof && file.limit() > 0 => return Ok(()),
            Err(error) => return Err(refuse(format!("the file cannot be read: {error}"))),
        }
        let length = u32::from_le_bytes(length) as usize;
        if length > CONFIGURATION_BYTES_MAX {
            return Err(refuse(format!("no configuration has {length} bytes: the file is damaged")));
        }
        let mut bytes = vec![0; length];
        file.read_exact(&mut bytes).map_err(|error| refuse(format!("the file ends inside a configuration: {error}")))?;
        let version = chain.version() + 1;
        let next = SignedConfiguration::read(bytes.into(), chain.id())
            .map_err(|error| refuse(format!("configuration {version} cannot be read: {error}")))?;
        chain.extend(next).map_err(|error| refuse(format!("configuration {version} is refused: {error}")))?;
    }
    Err(refuse(format!("there are more than {VERSIONS_MAX} configurations")))
}

/// Writes `chain` to `path`, durably: whoever reads it finds either what was there or all of this.
///
/// # Errors
/// When the system does.
pub fn write_chain(path: &Path, chain: &Chain) -> io::Result<()> {
    let new = path.with_extension("new");
    let mut file = File::create(&new)?;
    for signed in chain.after(0) {
        let bytes = signed.to_bytes();
        let length = u32::try_from(bytes.len()).map_err(|_| io::Error::from(ErrorKind::InvalidData))?;
        file.write_all(&length.to_le_bytes())?;
        file.write_all(&bytes)?;
    }
    file.sync_all()?;
    fs::rename(&new, path)?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder)?.sync_all()
}
