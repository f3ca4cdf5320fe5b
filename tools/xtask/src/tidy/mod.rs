//! House rules that no compiler checks. Each rule is a function from the tree to a list of complaints.

mod arrows;
mod backends;
mod code;
mod families;
mod files;
mod launches;
mod layers;
mod names;
mod pages;

use std::fs;

use anyhow::{Result, bail};

use crate::{
    metadata::Metadata,
    tree::{self, Source},
};

pub(crate) fn run() -> Result<()> {
    let root = tree::root();
    let sources = tree::sources(&root)?;
    let mut complaints = arrows::check(&Metadata::read(&[])?);
    complaints.extend(backends::check(&sources));
    complaints.extend(files::check(&sources));
    complaints.extend(families::check(&sources));
    complaints.extend(names::check(&sources));
    complaints.extend(pages::check(&sources));
    complaints.extend(launches::check()?);
    complaints.extend(layers::check(&sources));
    complaints.extend(licence_texts());
    for complaint in &complaints {
        eprintln!("tidy: {complaint}");
    }
    if !complaints.is_empty() {
        bail!("{} complaints", complaints.len());
    }
    println!("tidy: {} files, no complaint", sources.len());
    Ok(())
}

/// Cargo.toml promises both licences; the texts must be there.
fn licence_texts() -> Vec<String> {
    ["LICENSE-MIT", "LICENSE-APACHE"]
        .into_iter()
        .filter(|name| fs::metadata(tree::root().join(name)).is_err())
        .map(|name| format!("{name} is missing"))
        .collect()
}

fn complain(source: &Source, line: usize, text: &str) -> String {
    format!("{}:{line}: {text}", source.path)
}
