//! `bezant evidence` of a server for ZooKeeper's clients: what it has noticed of damage.

use std::path::Path;

use serde_json::json;
use zookeeper::evidence;

use crate::failure::{Done, Failure};
use crate::out;

/// Carries out `bezant evidence` for the `dataDir` of a server for ZooKeeper's clients.
pub fn show(folder: &Path, is_json: bool) -> Result<Done, Failure> {
    let place = folder.display();
    let found = evidence(folder).map_err(|error| {
        Failure::wrong(format!("cannot read what was kept: {error}"))
            .at(place)
            .help("name a replica's folder, or the dataDir of a server started by bezant zookeeper")
    })?;
    if is_json {
        out!("{}", json!({ "evidence": found.iter().map(zookeeper::Evidence::to_json).collect::<Vec<_>>() }));
    } else {
        for one in &found {
            let node = one.path.as_ref().map_or_else(String::new, |path| format!(" at {path}"));
            out!("{}: zxid {:#x}{node}: {} (noticed by {}, {})", one.file.display(), one.zxid, one.what, one.noticed_by, one.profile);
            if let Some((expected, digest)) = &one.digests {
                out!("  expected {expected}\n  found    {digest}");
            }
            for field in one.fields.iter().filter(|field| field.reread.as_ref() != Some(&field.found)) {
                out!("  {}: {}", field.name, field.found);
                if let Some(reread) = &field.reread {
                    out!("    after rereading: {reread}");
                }
            }
            if let Some(stage) = one.stage {
                out!("  repair: {}", stage.name());
            }
            for step in &one.steps {
                out!("    {}: {}", step.time_ms, step.what);
            }
            if let Some(aside) = &one.aside {
                out!("  damaged files: sentinel-damaged/{aside}");
            }
        }
        if found.is_empty() {
            out!("nothing was ever noticed to be wrong here");
        }
    }
    Ok(if found.is_empty() { Done::Well } else { Done::Negative })
}
