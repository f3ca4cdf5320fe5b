//! `cargo xtask web` and `cargo xtask page`: the page's bundle, and the page in a browser.
//!
//! The bundle in `web/dist` is committed, so building the program needs no node; changing the page and CI do.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

use anyhow::{Context, Result, bail, ensure};
use flate2::{Compression, write::GzEncoder};

use crate::{
    ci, install,
    steps::{command, run},
    tree,
};

/// Bytes of the whole bundle, packed.
const BUDGET: usize = 400_000;

/// File name, relative with `/`, to content.
type Bundle = BTreeMap<String, Vec<u8>>;

pub(crate) fn web(arguments: &[String]) -> Result<()> {
    match arguments {
        [] => build_here(),
        [flag] if flag == "--check" => check(),
        _ => bail!("usage: cargo xtask web [--check]"),
    }
}

fn folder() -> PathBuf {
    tree::root().join("web")
}

fn dist() -> PathBuf {
    folder().join("dist")
}

fn npm(arguments: &[&str]) -> Result<()> {
    run(command("npm", arguments).current_dir(folder()))
}

fn build_here() -> Result<()> {
    install::web_packages()?;
    npm(&["run", "--silent", "build"])?;
    let size = packed(&read(&dist())?)?;
    println!("web: {size} bytes packed, of {BUDGET}");
    Ok(())
}

/// The sources are in form and hold together, the bundle is the one they make, and it is small enough.
fn check() -> Result<()> {
    install::web_packages()?;
    npm(&["run", "--silent", "lint"])?;
    npm(&["run", "--silent", "typecheck"])?;
    npm(&["run", "--silent", "test"])?;
    let fresh = tree::cache_dir().join("web-dist");
    let out = fresh.to_string_lossy().into_owned();
    npm(&[
        "run",
        "--silent",
        "build",
        "--",
        "--outDir",
        &out,
        "--emptyOutDir",
    ])?;
    let built = read(&fresh)?;
    let differing = differing(&built, &read(&dist())?);
    if !differing.is_empty() {
        bail!(
            "web/dist is not what its sources make; run `cargo xtask web`. Different: {}",
            differing.join(", ")
        );
    }
    let size = packed(&built)?;
    ensure!(
        size <= BUDGET,
        "the bundle has {size} bytes packed, the budget is {BUDGET}"
    );
    println!("web: {size} bytes packed, of {BUDGET}");
    Ok(())
}

fn read(root: &Path) -> Result<Bundle> {
    let mut bundle = Bundle::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        let entries =
            fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))?;
        for entry in entries {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let name = path.strip_prefix(root).expect("the walk started at root");
            let name = name.to_string_lossy().replace('\\', "/");
            let content =
                fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
            bundle.insert(name, content);
        }
    }
    Ok(bundle)
}

/// Files that only one has, or that differ.
fn differing(a: &Bundle, b: &Bundle) -> Vec<String> {
    let mut names: Vec<String> = a.keys().chain(b.keys()).cloned().collect();
    names.sort_unstable();
    names.dedup();
    names.retain(|name| a.get(name) != b.get(name));
    names
}

/// Bytes of all files, each packed as the server sends it.
fn packed(bundle: &Bundle) -> Result<usize> {
    let mut sum = 0;
    for content in bundle.values() {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(content)?;
        sum += encoder.finish()?.len().min(content.len());
    }
    Ok(sum)
}

/// Walks through the page in a browser, all of it or the parts named; or takes the pictures of the tour. The scripts start
/// the program themselves; they get `FRESCO_BIN`, `CHROMIUM` and `OUT`, a folder for pictures of the walk.
pub(crate) fn page(arguments: &[String]) -> Result<()> {
    let (script, parts) = match arguments {
        [flag] if flag == "--tour" => ("tests/frontend/tour.mjs", &[][..]),
        parts => ("tests/frontend/page.mjs", parts),
    };
    if let Some(flag) = parts.iter().find(|part| part.starts_with('-')) {
        bail!("usage: cargo xtask page [--tour | PART...], not {flag}");
    }
    install::chromium()?;
    install::web_packages()?;
    ci::build()?;
    let out = tree::cache_dir().join("page");
    if out.exists() {
        fs::remove_dir_all(&out)?;
    }
    fs::create_dir_all(&out)?;
    let mut node = command("node", &[script]);
    node.args(parts)
        .env("FRESCO_BIN", ci::program())
        .env("OUT", &out);
    if env::var_os("CHROMIUM").is_none() {
        node.env("CHROMIUM", "/usr/bin/chromium");
    }
    run(&mut node)?;
    println!("page: pictures in {}", out.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bundle(files: &[(&str, &str)]) -> Bundle {
        let own = |(name, text): &(&str, &str)| ((*name).to_owned(), text.as_bytes().to_vec());
        files.iter().map(own).collect()
    }

    #[test]
    fn every_difference_is_named() {
        let a = bundle(&[("a.js", "1"), ("b.js", "2"), ("c.js", "3")]);
        let b = bundle(&[("a.js", "1"), ("b.js", "x"), ("d.js", "3")]);
        assert_eq!(differing(&a, &b), ["b.js", "c.js", "d.js"]);
        assert!(differing(&a, &a).is_empty());
    }

    #[test]
    fn a_bundle_is_weighed_packed() {
        let text = "same ".repeat(1000);
        let size = packed(&bundle(&[("a", &text), ("b", "\u{1}")])).unwrap();
        assert!((1..200).contains(&size), "{size}");
    }
}
