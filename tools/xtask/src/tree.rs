//! Where things are: the repository root, the build folder, and the source files tidy looks at.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

/// Folders that hold no source of ours.
const SKIPPED: &[&str] = &[
    ".git",
    ".cache",
    "target",
    "node_modules",
    "__pycache__",
    "corpus",
    "artifacts",
];

/// Data of another program, and the page's bundle, which is made from its sources.
const GENERATED: &[&str] = &["tests/gold", "web/dist", "web/dist-local"];

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .expect("xtask lives two folders below the root")
        .to_owned()
}

pub(crate) fn target_dir() -> PathBuf {
    match env::var_os("CARGO_TARGET_DIR") {
        Some(dir) => root().join(dir),
        None => root().join("target"),
    }
}

/// Everything CI fetches or leaves behind goes here, so that a clean is one `rm`.
pub(crate) fn cache_dir() -> PathBuf {
    target_dir().join("ci-cache")
}

pub(crate) struct Source {
    /// Relative to the root, with forward slashes.
    pub(crate) path: String,
    pub(crate) text: String,
}

impl Source {
    pub(crate) fn has_extension(&self, extension: &str) -> bool {
        Path::new(&self.path)
            .extension()
            .is_some_and(|found| found == extension)
    }
}

/// All text files below `root`, in path order, but for what programs made.
pub(crate) fn sources(root: &Path) -> Result<Vec<Source>> {
    let mut found = Vec::new();
    walk(root, root, &mut found)?;
    found.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(found)
}

fn walk(root: &Path, dir: &Path, found: &mut Vec<Source>) -> Result<()> {
    let entries = fs::read_dir(dir).with_context(|| format!("cannot list {}", dir.display()))?;
    for entry in entries {
        let entry = entry?;
        let path = entry.path();
        let name = entry.file_name();
        let kind = entry.file_type()?;
        if kind.is_dir() {
            let made = GENERATED.iter().any(|made| path == root.join(made));
            if !made && !SKIPPED.iter().any(|skipped| name == *skipped) {
                walk(root, &path, found)?;
            }
        } else if kind.is_file()
            && let Ok(text) = fs::read_to_string(&path)
        {
            let relative = path.strip_prefix(root).expect("the walk started at root");
            found.push(Source {
                path: relative.to_string_lossy().replace('\\', "/"),
                text,
            });
        }
    }
    Ok(())
}
