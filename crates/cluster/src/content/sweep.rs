//! Files that nobody needs any more.

use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

/// Folders in folders, at most.
const DEEPEST: usize = 32;

/// What was removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Removed {
    pub(crate) files: u64,
    pub(crate) bytes: u64,
}

/// Removes files below a folder that were not written for so long. Folders stay, and links are not followed.
pub(crate) fn remove_old(folder: &Path, age: Duration) -> Removed {
    let mut removed = Removed::default();
    if let Some(before) = SystemTime::now().checked_sub(age) {
        remove_below(folder, before, DEEPEST, &mut removed);
    }
    removed
}

fn remove_below(folder: &Path, before: SystemTime, depth: usize, removed: &mut Removed) {
    let Ok(entries) = fs::read_dir(folder) else {
        return;
    };
    for entry in entries.flatten() {
        // Of the link itself, where it is one.
        let Ok(about) = entry.metadata() else {
            continue;
        };
        if about.is_dir() {
            if depth > 0 {
                remove_below(&entry.path(), before, depth - 1, removed);
            }
            continue;
        }
        let is_old = about.modified().is_ok_and(|at| at < before);
        if is_old && fs::remove_file(entry.path()).is_ok() {
            removed.files += 1;
            removed.bytes += about.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn only_old_files_go() {
        let dir = tempfile::tempdir().unwrap();
        let inner = dir.path().join("a/b");
        fs::create_dir_all(&inner).unwrap();
        let write = |path: &Path, hours: u64| {
            fs::write(path, "xyz").unwrap();
            let at = SystemTime::now() - Duration::from_hours(hours);
            let file = File::options().write(true).open(path).unwrap();
            file.set_modified(at).unwrap();
        };
        write(&inner.join("old.png"), 25);
        write(&inner.join("new.png"), 23);
        write(&dir.path().join("old.png"), 100);
        let removed = remove_old(dir.path(), Duration::from_hours(24));
        assert_eq!(removed, Removed { files: 2, bytes: 6 });
        assert!(inner.join("new.png").exists() && !inner.join("old.png").exists());
        let again = remove_old(dir.path(), Duration::from_hours(24));
        assert_eq!(again, Removed::default());
        assert_eq!(
            remove_old(&dir.path().join("none"), Duration::ZERO).files,
            0
        );
    }
}
