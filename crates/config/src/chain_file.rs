//! The file `configurations`, beside `cluster.toml`: what the operators have changed since the cluster was made.
//!
//! It holds every configuration after the first, signed, each after its length (`u32`). `cluster.toml` stays as it was made: it is the
//! first one, and all others rest on it. A file that is not there holds none.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Write as _};
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

/// Writes `chain` to `path`, durably: whoever reads it finds either what was there or all of this. What is there stays where it is longer and
/// contains this: another process was faster. Processes that share the folder write one after the other.
///
/// # Errors
/// When the system does, and when another configuration of one of these versions is there.
pub fn write_chain(path: &Path, chain: &Chain) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let folder = File::open(folder)?;
    // Held until the end; a process that dies lets go of it. A few file systems have no locks: there two that write in one moment both write all of
    // theirs, and the later one stays.
    let _ = folder.lock();
    if contains(path, chain)? {
        return Ok(());
    }
    // Nobody else's, also where there are no locks.
    let new = path.with_extension(format!("new-{}", std::process::id()));
    let mut file = File::create(&new)?;
    for signed in chain.after(0) {
        let bytes = signed.to_bytes();
        let length = u32::try_from(bytes.len()).map_err(|_| io::Error::from(ErrorKind::InvalidData))?;
        file.write_all(&length.to_le_bytes())?;
        file.write_all(&bytes)?;
    }
    file.sync_all()?;
    fs::rename(&new, path)?;
    folder.sync_all()
}

/// Whether `chain` stands in `path` already, as a whole or as the beginning of a longer one. What is damaged contains nothing, and is written anew.
fn contains(path: &Path, chain: &Chain) -> io::Result<bool> {
    let mut file = match File::open(path) {
        Ok(file) => file.take(FILE_BYTES_MAX),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    for signed in chain.after(0) {
        let Some(bytes) = next_in(&mut file)? else { return Ok(false) };
        let Ok(there) = SignedConfiguration::read(bytes.into(), chain.id()) else { return Ok(false) };
        // Others may have signed it, but it is the same.
        if there.configuration != signed.configuration {
            let version = signed.configuration.version;
            let what =
                format!("another configuration {version} stands in {}: operators signed two of them, or it is damaged", path.display());
            return Err(io::Error::new(ErrorKind::AlreadyExists, what));
        }
    }
    Ok(true)
}

/// The bytes of the next configuration in `file`; nothing where the file ends, or is damaged.
fn next_in(file: &mut impl Read) -> io::Result<Option<Vec<u8>>> {
    let mut length = [0; 4];
    let cut = |error: io::Error| if error.kind() == ErrorKind::UnexpectedEof { Ok(None) } else { Err(error) };
    if let Err(error) = file.read_exact(&mut length) {
        return cut(error);
    }
    let length = u32::from_le_bytes(length) as usize;
    if length > CONFIGURATION_BYTES_MAX {
        return Ok(None);
    }
    let mut bytes = vec![0; length];
    file.read_exact(&mut bytes).map_or_else(cut, |()| Ok(Some(bytes)))
}
