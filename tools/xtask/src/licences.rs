//! The licences of the packages that are in the program, for the archives of a release: whoever passes the program on passes them on too.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
    fs,
    path::Path,
};

use anyhow::{Context, Result};

use crate::metadata::{Metadata, Package};

/// How names of such files begin, in capitals.
const NAMES: [&str; 5] = ["LICENSE", "LICENCE", "COPYING", "NOTICE", "UNLICENSE"];
/// Sources in C lie some folders below their package.
const DEPTH: usize = 3;
/// Longer files are no licences.
const LONGEST: u64 = 100_000;

/// A list of the packages and the texts that come with them, each text once.
pub(crate) fn of_program(target: &str) -> Result<String> {
    let metadata = Metadata::read(&[target.to_owned()])?;
    let shipped = metadata.shipped().into_iter();
    let mut packages: Vec<&Package> = shipped.filter(|package| !package.member).collect();
    packages.sort_by_key(|package| (&package.name, &package.version));
    listed(&packages)
}

fn listed(packages: &[&Package]) -> Result<String> {
    let mut out = String::from(
        "# Licences of what is in the program\n\nFresco itself is under MIT or Apache-2.0 (LICENSE-MIT, LICENSE-APACHE). It is built with the following packages:\n\n\
         | package | licence |\n|---|---|\n",
    );
    let mut texts: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for package in packages {
        let name = format!("{} {}", package.name, package.version);
        let licence = package.license.as_deref().unwrap_or("see below");
        writeln!(out, "| {name} | {licence} |")?;
        let mut found = Vec::new();
        gather(&package.folder, DEPTH, &mut found)
            .with_context(|| format!("cannot look for the licences of {name}"))?;
        for text in found {
            texts.entry(text).or_default().insert(name.clone());
        }
    }
    for (text, names) in &texts {
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        write!(out, "\n## {}\n\n```text\n{text}\n```\n", names.join(", "))?;
    }
    Ok(out)
}

/// The texts in a folder and below.
fn gather(folder: &Path, depth: usize, found: &mut Vec<String>) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() && depth > 0 {
            gather(&entry.path(), depth - 1, found)?;
        }
        let path = entry.path();
        let name = entry.file_name().to_string_lossy().to_uppercase();
        let is_code = path.extension().is_some_and(|end| end == "rs");
        let is_text = NAMES.iter().any(|start| name.starts_with(start)) && !is_code;
        if !kind.is_file() || !is_text || entry.metadata()?.len() > LONGEST {
            continue;
        }
        let text = String::from_utf8_lossy(&fs::read(path)?).into_owned();
        // Line ends and spaces behind them differ where nothing else does.
        let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
        let text = lines.join("\n");
        found.push(text.trim_matches('\n').to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_stands_once_with_all_who_have_it() {
        let base = tempfile::tempdir().unwrap();
        let package = |name: &str, files: &[(&str, &str)]| {
            let folder = base.path().join(name);
            for (file, text) in files {
                let path = folder.join(file);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            Package {
                id: name.to_owned(),
                name: name.to_owned(),
                version: "1.0.0".to_owned(),
                license: Some("MIT".to_owned()),
                license_file: false,
                member: false,
                folder,
            }
        };
        let own = package("own", &[("LICENSE-MIT", "same\n"), ("src/lib.rs", "code")]);
        let other = package("other", &[("c/COPYING", "same \r\n"), ("license.rs", "no")]);
        let text = listed(&[&other, &own]).unwrap();
        assert_eq!(text.matches("```text\nsame\n```").count(), 1, "{text}");
        assert!(text.contains("## other 1.0.0, own 1.0.0\n"), "{text}");
        assert!(text.contains("| own 1.0.0 | MIT |"), "{text}");
        assert!(!text.contains("code") && !text.contains("no\n"), "{text}");
    }
}
