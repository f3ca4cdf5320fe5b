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

/// Files and directories below `dir`, sorted within each directory. `hidden`: also names with a leading dot.
///
/// Links that lead out of `root` are left out: nobody could open them, and even their size and time would be those of a
/// file that is nobody's business. Directories that are links are not entered.
pub(crate) fn list(
    root: &Path,
    dir: &Path,
    recurse: bool,
    hidden: bool,
) -> std::io::Result<Vec<Item>> {
    let mut walk = Walk {
        root: root.canonicalize()?,
        recurse,
        hidden,
        found: Vec::new(),
    };
    walk.visit(dir, "", 0)?;
    Ok(walk.found)
}

struct Walk {
    root: PathBuf,
    recurse: bool,
    hidden: bool,
    found: Vec<Item>,
}

impl Walk {
    fn visit(&mut self, dir: &Path, prefix: &str, depth: usize) -> std::io::Result<()> {
        let mut entries: Vec<(String, std::fs::FileType, PathBuf)> = std::fs::read_dir(dir)?
            .flatten()
            .filter_map(|e| {
                Some((
                    e.file_name().into_string().ok()?,
                    e.file_type().ok()?,
                    e.path(),
                ))
            })
            .filter(|(name, ..)| self.hidden || !name.starts_with('.'))
            .collect();
        entries.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        for (name, kind, path) in entries {
            if kind.is_symlink() && !self.leads_inside(&path) {
                continue;
            }
            let name = format!("{prefix}{name}");
            let enter = kind.is_dir() && self.recurse && depth < MAX_DEPTH;
            let below = enter.then(|| (format!("{name}/"), path.clone()));
            let is_dir = kind.is_dir() || (kind.is_symlink() && path.is_dir());
            self.found.push(Item { name, path, is_dir });
            if let Some((prefix, path)) = below {
                // A directory that vanished or may not be read is listed, but empty.
                let _ = self.visit(&path, &prefix, depth + 1);
            }
        }
        Ok(())
    }

    fn leads_inside(&self, link: &Path) -> bool {
        link.canonicalize()
            .is_ok_and(|real| real.starts_with(&self.root))
    }
}

/// Names of files below `root` with the given ending.
pub(crate) fn files_ending(root: &Path, suffix: &str) -> Vec<String> {
    let items = list(root, root, true, false).unwrap_or_default();
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
