//! What `cargo metadata` says about the workspace and its dependencies.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    process::Command,
};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::tree;

/// The member that is shipped; the others are its parts, its tests and its tools.
const PROGRAM: &str = "fresco";

#[derive(Clone, Debug)]
pub(crate) struct Package {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) license: Option<String>,
    pub(crate) license_file: bool,
    pub(crate) member: bool,
    /// Where its sources are.
    pub(crate) folder: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Normal,
    Build,
    Dev,
}

#[derive(Clone, Debug)]
pub(crate) struct Edge {
    pub(crate) from: String,
    pub(crate) to: String,
    pub(crate) kinds: Vec<Kind>,
}

pub(crate) struct Metadata {
    pub(crate) packages: Vec<Package>,
    pub(crate) edges: Vec<Edge>,
}

impl Metadata {
    /// Reads the workspace, refusing a lock file that is not current.
    pub(crate) fn read(platforms: &[String]) -> Result<Self> {
        let mut command = Command::new("cargo");
        command
            .args(["metadata", "--format-version", "1", "--locked"])
            .current_dir(tree::root());
        for platform in platforms {
            command.args(["--filter-platform", platform]);
        }
        let output = command.output().context("cannot run cargo metadata")?;
        if !output.status.success() {
            bail!(
                "cargo metadata failed: {}",
                String::from_utf8_lossy(&output.stderr).trim()
            );
        }
        Self::parse(&serde_json::from_slice(&output.stdout)?)
    }

    fn parse(value: &Value) -> Result<Self> {
        let members: BTreeSet<&str> = array(value, "workspace_members")
            .filter_map(Value::as_str)
            .collect();
        let packages = array(value, "packages")
            .map(|package| {
                let id = text(package, "id").context("a package has no id")?;
                Ok(Package {
                    member: members.contains(id.as_str()),
                    name: text(package, "name").context("a package has no name")?,
                    version: text(package, "version").unwrap_or_default(),
                    license: text(package, "license"),
                    license_file: text(package, "license_file").is_some(),
                    folder: text(package, "manifest_path")
                        .map(PathBuf::from)
                        .and_then(|manifest| Some(manifest.parent()?.to_owned()))
                        .unwrap_or_default(),
                    id,
                })
            })
            .collect::<Result<Vec<_>>>()?;
        let mut edges = Vec::new();
        for node in array(&value["resolve"], "nodes") {
            let from = text(node, "id").context("a resolved node has no id")?;
            for dependency in array(node, "deps") {
                let kinds = array(dependency, "dep_kinds")
                    .map(|kind| match kind["kind"].as_str() {
                        Some("dev") => Kind::Dev,
                        Some("build") => Kind::Build,
                        _ => Kind::Normal,
                    })
                    .collect();
                edges.push(Edge {
                    from: from.clone(),
                    to: text(dependency, "pkg").context("a dependency has no package")?,
                    kinds,
                });
            }
        }
        Ok(Self { packages, edges })
    }

    /// Arrows between our own packages, by name, without those that only tests use.
    pub(crate) fn own_arrows(&self) -> Vec<(String, String)> {
        let own: BTreeMap<&str, &str> = self
            .packages
            .iter()
            .filter(|package| package.member)
            .map(|package| (package.id.as_str(), package.name.as_str()))
            .collect();
        self.edges
            .iter()
            .filter(|edge| edge.kinds.iter().any(|kind| *kind != Kind::Dev))
            .filter_map(|edge| {
                let from = own.get(edge.from.as_str())?;
                let to = own.get(edge.to.as_str())?;
                Some(((*from).to_owned(), (*to).to_owned()))
            })
            .collect()
    }

    /// Packages that end up in the program people get or in its build: reached from it without test-only arrows.
    /// Tests and tools of the workspace are left out; what they want is never shipped.
    pub(crate) fn shipped(&self) -> Vec<&Package> {
        let mut seen: BTreeSet<&str> = self
            .packages
            .iter()
            .filter(|package| package.member && package.name == PROGRAM)
            .map(|package| package.id.as_str())
            .collect();
        let mut waiting: Vec<&str> = seen.iter().copied().collect();
        while let Some(id) = waiting.pop() {
            for edge in self.edges.iter().filter(|edge| edge.from == id) {
                let ships = edge.kinds.iter().any(|kind| *kind != Kind::Dev);
                if ships && seen.insert(edge.to.as_str()) {
                    waiting.push(edge.to.as_str());
                }
            }
        }
        self.packages
            .iter()
            .filter(|package| seen.contains(package.id.as_str()))
            .collect()
    }
}

fn array<'a>(value: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
    value[key].as_array().into_iter().flatten()
}

fn text(value: &Value, key: &str) -> Option<String> {
    value[key].as_str().map(str::to_owned)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use serde_json::json;

    /// A workspace of `members` (name) with `arrows` (from, to, kind).
    pub(crate) fn fake(members: &[&str], arrows: &[(&str, &str, Option<&str>)]) -> Metadata {
        let nodes: Vec<Value> = members
            .iter()
            .map(|name| {
                let deps: Vec<Value> = arrows
                    .iter()
                    .filter(|(from, ..)| from == name)
                    .map(|(_, to, kind)| json!({"pkg": to, "dep_kinds": [{"kind": kind}]}))
                    .collect();
                json!({"id": name, "deps": deps})
            })
            .collect();
        let packages: Vec<Value> = members
            .iter()
            .map(|name| json!({"id": name, "name": name, "version": "1.0.0"}))
            .collect();
        Metadata::parse(&json!({
            "workspace_members": members, "packages": packages, "resolve": {"nodes": nodes},
        }))
        .unwrap()
    }

    #[test]
    fn test_only_arrows_are_not_counted() {
        let metadata = fake(
            &["a", "b", "c"],
            &[("a", "b", Some("dev")), ("a", "c", None)],
        );
        assert_eq!(metadata.own_arrows(), [("a".to_owned(), "c".to_owned())]);
    }
}
