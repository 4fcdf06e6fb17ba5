//! What cargo knows of this workspace: where it is, where it builds, what depends on what.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// The workspace as `cargo metadata` describes it.
pub struct Workspace {
    /// The folder with the root `Cargo.toml`.
    pub root: PathBuf,
    /// Where cargo builds.
    pub target: PathBuf,
    /// The members, by name.
    pub members: BTreeMap<String, Member>,
}

/// One package of ours.
#[derive(Clone, Debug, Default)]
pub struct Member {
    /// The folder with its `Cargo.toml`.
    pub folder: PathBuf,
    /// What it names in its `Cargo.toml`.
    pub dependencies: Vec<Dependency>,
    /// Every package it is linked with outside of tests, however indirectly.
    pub reach: BTreeSet<String>,
}

/// One line of a package's dependencies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dependency {
    /// The package depended on.
    pub name: String,
    /// What for.
    pub kind: Kind,
}

/// What a dependency is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The package itself, or its build script.
    Normal,
    /// Its tests, examples and benches only.
    Development,
}

impl Workspace {
    /// Asks cargo.
    pub fn load() -> Result<Self> {
        let output = Command::new(cargo())
            .args(["metadata", "--format-version", "1", "--manifest-path"])
            .arg(here().join("../Cargo.toml"))
            .output()
            .context("cannot run `cargo metadata`")?;
        ensure!(output.status.success(), "`cargo metadata` failed:\n{}", String::from_utf8_lossy(&output.stderr));
        let metadata = serde_json::from_slice(&output.stdout).context("`cargo metadata` printed no JSON")?;
        Self::from_metadata(&metadata)
    }

    fn from_metadata(metadata: &Value) -> Result<Self> {
        let ids: BTreeSet<&str> = list(metadata, "workspace_members")?.iter().filter_map(Value::as_str).collect();
        let graph = Resolved::new(metadata)?;
        let mut members = BTreeMap::new();
        for package in list(metadata, "packages")? {
            let id = text(package, "id")?;
            if !ids.contains(id) {
                continue;
            }
            let manifest = PathBuf::from(text(package, "manifest_path")?);
            let member = Member {
                folder: manifest.parent().context("a manifest lies in a folder")?.to_path_buf(),
                dependencies: list(package, "dependencies")?.iter().map(dependency).collect::<Result<_>>()?,
                reach: graph.reach(id),
            };
            members.insert(text(package, "name")?.to_owned(), member);
        }
        Ok(Self { root: text(metadata, "workspace_root")?.into(), target: text(metadata, "target_directory")?.into(), members })
    }
}

/// The cargo that runs this program, so that the toolchain stays the same.
pub fn cargo() -> String {
    std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned())
}

fn dependency(value: &Value) -> Result<Dependency> {
    let kind = if value["kind"].as_str() == Some("dev") { Kind::Development } else { Kind::Normal };
    Ok(Dependency { name: text(value, "name")?.to_owned(), kind })
}

/// The resolved graph of packages, by their ids.
struct Resolved<'a> {
    names: BTreeMap<&'a str, &'a str>,
    edges: BTreeMap<&'a str, Vec<&'a str>>,
}

impl<'a> Resolved<'a> {
    fn new(metadata: &'a Value) -> Result<Self> {
        let mut names = BTreeMap::new();
        for package in list(metadata, "packages")? {
            names.insert(text(package, "id")?, text(package, "name")?);
        }
        let mut edges = BTreeMap::new();
        for node in list(&metadata["resolve"], "nodes")? {
            let mut to = Vec::new();
            for edge in list(node, "deps")? {
                if list(edge, "dep_kinds")?.iter().any(|kind| kind["kind"].is_null()) {
                    to.push(text(edge, "pkg")?);
                }
            }
            edges.insert(text(node, "id")?, to);
        }
        Ok(Self { names, edges })
    }

    /// The names of all packages that `id` is linked with.
    fn reach(&self, id: &str) -> BTreeSet<String> {
        let mut seen = BTreeSet::new();
        let mut open = vec![id];
        while let Some(at) = open.pop() {
            for next in self.edges.get(at).into_iter().flatten() {
                if seen.insert(*next) {
                    open.push(next);
                }
            }
        }
        seen.iter().filter_map(|id| self.names.get(id)).map(|name| (*name).to_owned()).collect()
    }
}

fn text<'a>(value: &'a Value, field: &str) -> Result<&'a str> {
    value[field].as_str().with_context(|| format!("`cargo metadata` says nothing of `{field}`"))
}

fn list<'a>(value: &'a Value, field: &str) -> Result<&'a Vec<Value>> {
    value[field].as_array().with_context(|| format!("`cargo metadata` has no list `{field}`"))
}

/// The folder of this crate. Asked when it runs, since a build folder may be shared by copies of the workspace; `cargo run`
/// and `cargo test` both tell.
fn here() -> PathBuf {
    std::env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_reached_includes_the_indirect_but_not_what_only_tests_use() {
        let metadata = serde_json::json!({
            "workspace_root": "/r", "target_directory": "/r/target", "workspace_members": ["a 1"],
            "packages": [
                {"id": "a 1", "name": "a", "manifest_path": "/r/a/Cargo.toml", "dependencies": [
                    {"name": "b", "kind": null}, {"name": "d", "kind": "dev"}]},
                {"id": "b 1", "name": "b"}, {"id": "c 1", "name": "c"}, {"id": "d 1", "name": "d"},
            ],
            "resolve": {"nodes": [
                {"id": "a 1", "deps": [
                    {"pkg": "b 1", "dep_kinds": [{"kind": null}]}, {"pkg": "d 1", "dep_kinds": [{"kind": "dev"}]}]},
                {"id": "b 1", "deps": [{"pkg": "c 1", "dep_kinds": [{"kind": null}]}]},
                {"id": "c 1", "deps": []}, {"id": "d 1", "deps": []},
            ]},
        });
        let workspace = Workspace::from_metadata(&metadata).expect("the metadata is complete");
        let member = &workspace.members["a"];
        assert_eq!(member.reach, BTreeSet::from(["b".to_owned(), "c".to_owned()]));
        assert_eq!(member.dependencies[1], Dependency { name: "d".into(), kind: Kind::Development });
    }
}
