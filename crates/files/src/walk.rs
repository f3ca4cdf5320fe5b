//! Walking a directory tree: links are followed, loops are not.

use std::fs::{self, Metadata};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Deeper trees than this are a mistake, not a model collection.
const MAX_DEPTH: usize = 64;

/// A file found below a root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Found {
    /// Relative to the root, with the separators of this system.
    pub(crate) name: String,
    pub(crate) path: PathBuf,
}

/// What a walk saw.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    pub(crate) files: Vec<Found>,
    /// Every directory entered, with its modification time before it was read.
    pub(crate) dirs: Vec<(PathBuf, Option<SystemTime>)>,
}

/// Lists all files below `root`; in each directory first its files, then its sub-directories, both by name.
/// `enter` says by name which sub-directories to visit. Names that are not Unicode cannot be sent to a client and are
/// left out.
pub(crate) fn walk(root: &Path, enter: &dyn Fn(&str) -> bool) -> Tree {
    let mut tree = Tree::default();
    if root.is_dir() {
        let mut above = Vec::new();
        visit(root, "", enter, &mut above, &mut tree);
    }
    tree
}

fn visit(
    dir: &Path,
    prefix: &str,
    enter: &dyn Fn(&str) -> bool,
    above: &mut Vec<PathBuf>,
    tree: &mut Tree,
) {
    // A link to a directory we are inside of would go round for ever.
    let Ok(real) = dir.canonicalize() else { return };
    if above.contains(&real) || above.len() >= MAX_DEPTH {
        return;
    }
    tree.dirs.push((dir.to_path_buf(), mtime(dir)));
    let entries = match fs::read_dir(dir) {
        Ok(e) => e,
        Err(error) => {
            tracing::warn!(path = %dir.display(), %error, "cannot list a directory");
            return;
        }
    };
    let mut dirs = Vec::new();
    let mut files = Vec::new();
    for entry in entries.flatten() {
        let Ok(name) = entry.file_name().into_string() else {
            tracing::warn!(path = %entry.path().display(), "left out: the name is not Unicode");
            continue;
        };
        let is_dir = match entry.file_type() {
            Ok(t) if t.is_symlink() => entry.path().is_dir(),
            Ok(t) => t.is_dir(),
            Err(_) => continue,
        };
        if is_dir {
            dirs.push(name);
        } else {
            files.push(name);
        }
    }
    files.sort_unstable();
    dirs.sort_unstable();
    let join = |name: &str| {
        if prefix.is_empty() {
            name.to_owned()
        } else {
            format!("{prefix}{}{name}", std::path::MAIN_SEPARATOR)
        }
    };
    tree.files.extend(files.iter().map(|n| Found {
        name: join(n),
        path: dir.join(n),
    }));
    above.push(real);
    for name in dirs.iter().filter(|n| enter(n)) {
        visit(&dir.join(name), &join(name), enter, above, tree);
    }
    above.pop();
}

pub(crate) fn mtime(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).and_then(|m| m.modified()).ok()
}

/// Modification and creation time in seconds, as clients get them. "Creation" is the time of the last change of the
/// entry on Unix, like in the reference, and the true one on Windows.
pub fn file_times(meta: &Metadata) -> (f64, f64) {
    let modified = meta.modified().map_or(0.0, seconds);
    (modified, created(meta).unwrap_or(modified))
}

#[cfg(unix)]
fn created(meta: &Metadata) -> Option<f64> {
    use std::os::unix::fs::MetadataExt;
    Some(meta.ctime() as f64 + meta.ctime_nsec() as f64 * 1e-9)
}

#[cfg(not(unix))]
fn created(meta: &Metadata) -> Option<f64> {
    meta.created().ok().map(seconds)
}

fn seconds(t: SystemTime) -> f64 {
    match t.duration_since(UNIX_EPOCH) {
        Ok(d) => d.as_secs_f64(),
        Err(e) => -e.duration().as_secs_f64(),
    }
}

/// All directories below `root`, relative, with `/`, sorted; the root itself is not among them.
pub fn subfolders(root: &Path) -> Vec<String> {
    let mut out: Vec<String> = walk(root, &|_| true)
        .dirs
        .into_iter()
        .filter_map(|(d, _)| {
            d.strip_prefix(root)
                .ok()?
                .to_str()
                .map(|s| s.replace('\\', "/"))
        })
        .filter(|s| !s.is_empty())
        .collect();
    out.sort_unstable();
    out
}

/// Names of the regular files directly in `dir`, sorted; none if it does not exist. Our unfinished files are left out.
pub fn top_files(dir: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(dir) else {
        return Vec::new();
    };
    let mut out: Vec<String> = entries
        .flatten()
        .filter(|e| !crate::write::is_temp_name(&e.file_name()) && e.path().is_file())
        .filter_map(|e| e.file_name().into_string().ok())
        .collect();
    out.sort_unstable();
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_and_subfolders() {
        let dir = tempfile::tempdir().unwrap();
        let r = dir.path();
        for d in ["b/c", "a", ".git/x"] {
            fs::create_dir_all(r.join(d)).unwrap();
        }
        for f in ["z", "a/1", "b/c/2", ".git/x/y", ".fresco-1-1.tmp"] {
            fs::write(r.join(f), "").unwrap();
        }
        let names: Vec<_> = walk(r, &|n| n != ".git")
            .files
            .into_iter()
            .map(|f| f.name)
            .collect();
        assert_eq!(names, [".fresco-1-1.tmp", "z", "a/1", "b/c/2"]);
        assert_eq!(subfolders(r), [".git", ".git/x", "a", "b", "b/c"]);
        assert!(subfolders(&r.join("none")).is_empty());
        assert_eq!(top_files(r), ["z"]);
        assert!(top_files(&r.join("none")).is_empty());
    }

    #[cfg(unix)]
    #[test]
    fn loops_end() {
        let dir = tempfile::tempdir().unwrap();
        let r = dir.path();
        fs::create_dir(r.join("a")).unwrap();
        fs::write(r.join("a/f"), "").unwrap();
        std::os::unix::fs::symlink(r, r.join("a/up")).unwrap();
        std::os::unix::fs::symlink("a", r.join("b")).unwrap();
        let names: Vec<_> = walk(r, &|_| true)
            .files
            .into_iter()
            .map(|f| f.name)
            .collect();
        assert_eq!(names, ["a/f", "b/f"]);
    }

    #[test]
    fn times_are_seconds() {
        let dir = tempfile::tempdir().unwrap();
        let p = dir.path().join("f");
        fs::write(&p, "").unwrap();
        let t = UNIX_EPOCH + std::time::Duration::from_millis(1_500);
        fs::File::options()
            .write(true)
            .open(&p)
            .unwrap()
            .set_modified(t)
            .unwrap();
        let (modified, created) = file_times(&p.metadata().unwrap());
        assert_eq!(modified, 1.5);
        assert!(created > 1.6e9);
    }
}
