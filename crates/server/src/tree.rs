//! Listing directories for answers.

use std::path::{Path, PathBuf};

/// Deeper than this nobody keeps files.
const MAX_DEPTH: usize = 64;

/// Something below a root; the name is relative to it, with `/`.
pub(crate) struct Item {
    pub(crate) name: String,
    pub(crate) path: PathBuf,
    pub(crate) is_dir: bool,
}

impl Item {
    /// The last part of the name.
    pub(crate) fn file_name(&self) -> &str {
        self.name.rsplit('/').next().unwrap_or(&self.name)
    }
}

/// Files and directories below `root`, sorted within each directory; directories that are links are not entered, so
/// nothing outside is shown. `hidden`: also names with a leading dot.
pub(crate) fn list(root: &Path, recurse: bool, hidden: bool) -> std::io::Result<Vec<Item>> {
    let mut out = Vec::new();
    visit(root, "", recurse, hidden, 0, &mut out)?;
    Ok(out)
}

fn visit(
    dir: &Path,
    prefix: &str,
    recurse: bool,
    hidden: bool,
    depth: usize,
    out: &mut Vec<Item>,
) -> std::io::Result<()> {
    let mut entries: Vec<(String, std::fs::FileType, PathBuf)> = std::fs::read_dir(dir)?
        .flatten()
        .filter_map(|e| {
            Some((
                e.file_name().into_string().ok()?,
                e.file_type().ok()?,
                e.path(),
            ))
        })
        .filter(|(name, ..)| hidden || !name.starts_with('.'))
        .collect();
    entries.sort_unstable_by(|a, b| a.0.cmp(&b.0));
    for (name, kind, path) in entries {
        let name = format!("{prefix}{name}");
        let enter = kind.is_dir() && recurse && depth < MAX_DEPTH;
        let below = enter.then(|| (format!("{name}/"), path.clone()));
        out.push(Item {
            name,
            path,
            is_dir: kind.is_dir(),
        });
        if let Some((prefix, path)) = below {
            // A directory that vanished or may not be read is listed, but empty.
            let _ = visit(&path, &prefix, recurse, hidden, depth + 1, out);
        }
    }
    Ok(())
}

/// Names of files below `root` with the given ending.
pub(crate) fn files_ending(root: &Path, suffix: &str) -> Vec<String> {
    let items = list(root, true, false).unwrap_or_default();
    items
        .into_iter()
        .filter(|i| !i.is_dir && i.name.ends_with(suffix))
        .map(|i| i.name)
        .collect()
}

/// Names of the directories directly below `root`.
pub(crate) fn folders(root: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(root)
        .into_iter()
        .flatten()
        .flatten()
        .filter(|e| e.path().is_dir())
        .filter_map(|e| e.file_name().into_string().ok())
        .collect();
    names.sort_unstable();
    names
}
