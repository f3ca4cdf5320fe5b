//! Licences, banned packages and duplicates of the dependency tree.
//!
//! The rules stand in `deny.toml` in the form that `cargo deny` reads. That program is not used itself: building it
//! costs more than the rest of CI on two cores, and its advisory half needs a host that CI cannot reach.

use std::{collections::BTreeMap, fs};

use anyhow::{Context, Result, bail};

use crate::{metadata::Metadata, spdx, tree};

#[derive(Debug, Default, PartialEq)]
struct Rules {
    targets: Vec<String>,
    allow: Vec<String>,
    deny: Vec<String>,
    skip: Vec<String>,
}

pub(crate) fn run() -> Result<()> {
    let path = tree::root().join("deny.toml");
    let text =
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let rules = Rules::parse(&text)?;
    let metadata = Metadata::read(&rules.targets)?;
    let problems = rules.check(&metadata)?;
    for problem in &problems {
        eprintln!("deny: {problem}");
    }
    if !problems.is_empty() {
        bail!("{} problems in the dependency tree", problems.len());
    }
    println!("deny: {} packages, no problem", metadata.packages.len());
    Ok(())
}

impl Rules {
    /// Reads the subset of TOML that `deny.toml` uses: sections, and lists of strings one per line.
    fn parse(text: &str) -> Result<Self> {
        let mut rules = Self::default();
        let mut section = String::new();
        let mut list: Option<String> = None;
        for (index, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default().trim();
            if line.is_empty() {
                continue;
            }
            if let Some(key) = &list {
                if line == "]" {
                    list = None;
                    continue;
                }
                let value = line.trim_end_matches(',').trim_matches('"').to_owned();
                match (section.as_str(), key.as_str()) {
                    ("graph", "targets") => rules.targets.push(value),
                    ("licenses", "allow") => rules.allow.push(value),
                    ("bans", "deny") => rules.deny.push(value),
                    ("bans", "skip") => rules.skip.push(value),
                    _ => bail!("deny.toml:{}: unknown list {section}.{key}", index + 1),
                }
            } else if let Some(name) = line.strip_prefix('[').and_then(|l| l.strip_suffix(']')) {
                name.clone_into(&mut section);
            } else if let Some(key) = line.strip_suffix("= [") {
                list = Some(key.trim().to_owned());
            } else if !line.contains('=') {
                bail!("deny.toml:{}: cannot read this line", index + 1);
            }
        }
        Ok(rules)
    }

    fn check(&self, metadata: &Metadata) -> Result<Vec<String>> {
        let mut problems = Vec::new();
        for package in metadata.packages.iter().filter(|package| !package.member) {
            let shown = format!("{} {}", package.name, package.version);
            match &package.license {
                Some(expression) => {
                    let allowed = |name: &str| self.allow.iter().any(|known| known == name);
                    let good =
                        spdx::satisfied(expression, &allowed).with_context(|| shown.clone())?;
                    if !good {
                        problems.push(format!("{shown}: licence {expression} is not allowed"));
                    }
                }
                None if package.license_file => {
                    problems.push(format!("{shown}: licence only as a file, look at it"));
                }
                None => problems.push(format!("{shown}: no licence")),
            }
            if self.deny.contains(&package.name) {
                problems.push(format!("{shown}: banned in deny.toml"));
            }
        }
        let mut versions: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for package in metadata.shipped() {
            versions
                .entry(&package.name)
                .or_default()
                .push(&package.version);
        }
        for (name, versions) in versions {
            let skipped = self.skip.iter().any(|skipped| skipped == name);
            if versions.len() > 1 && !skipped {
                problems.push(format!("{name}: versions {} at once", versions.join(", ")));
            }
        }
        Ok(problems)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::{Edge, Kind, Package};

    fn package(name: &str, version: &str, license: Option<&str>, member: bool) -> Package {
        Package {
            id: format!("{name}@{version}"),
            name: name.to_owned(),
            version: version.to_owned(),
            license: license.map(str::to_owned),
            license_file: false,
            member,
            folder: std::path::PathBuf::new(),
        }
    }

    fn rules() -> Rules {
        Rules::parse(
            "[licenses]\nallow = [\n  \"MIT\", # why\n]\n[bans]\ndeny = [\n  \"openssl\",\n]\nskip = [\n]\n",
        )
        .unwrap()
    }

    #[test]
    fn the_file_form_is_read() {
        let rules = rules();
        assert_eq!(rules.allow, ["MIT"]);
        assert_eq!(rules.deny, ["openssl"]);
        assert!(Rules::parse("[x]\nwhat is this\n").is_err());
    }

    #[test]
    fn every_kind_of_problem_is_found() {
        let packages = vec![
            package("fresco", "0.1.0", None, true),
            package("good", "1.0.0", Some("MIT"), false),
            package("viral", "1.0.0", Some("GPL-3.0-only"), false),
            package("none", "1.0.0", None, false),
            package("openssl", "1.0.0", Some("MIT"), false),
            package("twice", "1.0.0", Some("MIT"), false),
            package("twice", "2.0.0", Some("MIT"), false),
            package("tests", "1.0.0", Some("MIT"), false),
            package("tests", "2.0.0", Some("MIT"), false),
            package("tool", "0.1.0", None, true),
        ];
        let edges = packages[1..]
            .iter()
            .filter(|package| !package.member)
            .map(|package| Edge {
                from: "fresco@0.1.0".to_owned(),
                to: package.id.clone(),
                kinds: vec![if package.name == "tests" {
                    Kind::Dev
                } else {
                    Kind::Normal
                }],
            })
            .collect();
        let problems = rules().check(&Metadata { packages, edges }).unwrap();
        assert_eq!(
            problems,
            [
                "viral 1.0.0: licence GPL-3.0-only is not allowed",
                "none 1.0.0: no licence",
                "openssl 1.0.0: banned in deny.toml",
                "twice: versions 1.0.0, 2.0.0 at once",
            ]
        );
    }
}
