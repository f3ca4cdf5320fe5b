//! Files that nobody needs any more.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Folders in folders, at most.
const DEEPEST: usize = 32;

/// What was removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Removed {
    pub(crate) files: u64,
    pub(crate) bytes: u64,
}

impl Removed {
    pub(crate) fn and(self, other: Self) -> Self {
        Self {
            files: self.files + other.files,
            bytes: self.bytes + other.bytes,
        }
    }
}

/// A file that may go.
struct Found {
    written: SystemTime,
    bytes: u64,
    path: PathBuf,
}

/// Removes the oldest files below some folders until no more than so many bytes are left. Of many, a quarter more goes at once, so that
/// this is not needed after each file. Folders stay, and links are not followed.
pub(crate) fn remove_oldest(folders: &[PathBuf], most: u64) -> Removed {
    let mut found = Vec::new();
    for folder in folders {
        find_below(folder, DEEPEST, &mut found);
    }
    let mut left: u64 = found.iter().map(|one| one.bytes).sum();
    let mut removed = Removed::default();
    if left <= most {
        return removed;
    }
    found.sort_by_key(|one| one.written);
    for one in found {
        if left <= most / 4 * 3 {
            break;
        }
        if fs::remove_file(&one.path).is_ok() {
            left -= one.bytes;
            removed = removed.and(Removed {
                files: 1,
                bytes: one.bytes,
            });
        }
    }
    removed
}

fn find_below(folder: &Path, depth: usize, found: &mut Vec<Found>) {
    let Ok(entries) = fs::read_dir(folder) else {
        return;
    };
    for entry in entries.flatten() {
        let Ok(about) = entry.metadata() else {
            continue;
        };
        if about.is_dir() {
            if depth > 0 {
                find_below(&entry.path(), depth - 1, found);
            }
        } else {
            found.push(Found {
                written: about.modified().unwrap_or(SystemTime::UNIX_EPOCH),
                bytes: about.len(),
                path: entry.path(),
            });
        }
    }
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
    fn the_oldest_go_until_few_enough_bytes_are_left() {
        let dir = tempfile::tempdir().unwrap();
        let folders = ["a", "b"].map(|name| dir.path().join(name));
        for (number, hours) in [(1, 5), (2, 4), (3, 3), (4, 2)] {
            let folder = folders[number % 2].join("inner");
            fs::create_dir_all(&folder).unwrap();
            let path = folder.join(number.to_string());
            fs::write(&path, [0; 100]).unwrap();
            let at = SystemTime::now() - Duration::from_hours(hours);
            let file = File::options().write(true).open(path).unwrap();
            file.set_modified(at).unwrap();
        }
        assert_eq!(remove_oldest(&folders, 400), Removed::default());
        let removed = remove_oldest(&folders, 399);
        assert_eq!(
            removed,
            Removed {
                files: 2,
                bytes: 200
            }
        );
        assert!(folders[1].join("inner/3").exists() && folders[0].join("inner/4").exists());
        assert_eq!(remove_oldest(&folders, 0).files, 2);
    }

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
