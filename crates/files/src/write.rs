//! Putting files in place whole: a reader, or a crash, never sees half a file under its final name.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, SystemTime};

use crate::content::Content;

/// Our unfinished files carry this at the front, so that a later start can recognise and remove them.
const TEMP_PREFIX: &str = ".fresco-";
const TEMP_SUFFIX: &str = ".tmp";

static SERIAL: AtomicU64 = AtomicU64::new(0);

/// An unfinished file next to its destination; removed when dropped unless it was put in place.
#[derive(Debug)]
pub struct TempFile {
    path: PathBuf,
    file: Option<File>,
    /// It has its final name; there is nothing left to remove.
    placed: bool,
}

impl TempFile {
    /// Creates an empty hidden file in `folder`.
    pub fn create(folder: &Path) -> io::Result<Self> {
        loop {
            let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
            let path = folder.join(format!(
                "{TEMP_PREFIX}{}-{serial}{TEMP_SUFFIX}",
                std::process::id()
            ));
            match File::create_new(&path) {
                Ok(file) => {
                    return Ok(Self {
                        path,
                        file: Some(file),
                        placed: false,
                    });
                }
                // Left over from a process that had our id.
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(e),
            }
        }
    }

    pub fn file(&mut self) -> io::Result<&mut File> {
        self.file
            .as_mut()
            .ok_or_else(|| io::Error::other("the file is closed"))
    }

    /// Ends writing; the file stays hidden.
    pub fn close(&mut self) {
        self.file = None;
    }

    /// Gives the file its name only if no file has that name; `AlreadyExists` otherwise, and it can be tried again
    /// under another name.
    pub fn place_new(&mut self, path: &Path) -> io::Result<()> {
        self.close();
        match rename_new(&self.path, path) {
            Some(Ok(())) => {
                self.placed = true;
                return Ok(());
            }
            Some(Err(e)) => return Err(e),
            None => {}
        }
        match fs::hard_link(&self.path, path) {
            Ok(()) => {
                self.remove();
                self.placed = true;
                Ok(())
            }
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Err(e),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Err(e),
            // No hard links here (FAT, some network file systems): claim the name with an empty file, then replace
            // that file, which is ours, by the finished one.
            Err(_) => {
                File::create_new(path)?;
                fs::rename(&self.path, path).inspect_err(|_| {
                    let _ = fs::remove_file(path);
                })
            }
        }
    }

    /// Gives the file its name, replacing what was there.
    pub fn replace(&mut self, path: &Path) -> io::Result<()> {
        self.close();
        patiently(|| fs::rename(&self.path, path))
    }

    fn remove(&mut self) {
        let _ = patiently(|| fs::remove_file(&self.path));
    }
}

/// Renames in one step where nothing has the new name; none where the system or the file system cannot.
#[cfg(target_os = "linux")]
fn rename_new(from: &Path, to: &Path) -> Option<io::Result<()>> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    let renamed = renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE);
    match renamed.map_err(io::Error::from) {
        Ok(()) => Some(Ok(())),
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Some(Err(e)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Some(Err(e)),
        Err(_) => None,
    }
}

#[cfg(not(target_os = "linux"))]
fn rename_new(_: &Path, _: &Path) -> Option<io::Result<()>> {
    None
}

/// Milliseconds between tries while somebody else holds a file.
const PATIENCE: [u64; 5] = [1, 3, 10, 30, 100];

/// On Windows a file that anybody has open can be neither renamed nor removed, and virus scanners and indexers open every
/// new file for a moment: then it is tried again.
#[expect(
    clippy::disallowed_methods,
    reason = "nobody tells when another program lets go of a file"
)]
fn patiently(work: impl Fn() -> io::Result<()>) -> io::Result<()> {
    /// Access denied, and a sharing violation.
    const HELD: [i32; 2] = [5, 32];
    for wait in PATIENCE {
        match work() {
            Err(e)
                if cfg!(windows) && e.raw_os_error().is_some_and(|code| HELD.contains(&code)) =>
            {
                thread::sleep(Duration::from_millis(wait));
            }
            done => return done,
        }
    }
    work()
}

impl Drop for TempFile {
    fn drop(&mut self) {
        self.close();
        // After a rename nothing is there any more, and that is fine.
        if !self.placed {
            self.remove();
        }
    }
}

/// Replaces the content of `path`: readers see the old bytes or the new ones, never a mixture. Parents are created.
pub fn write_atomic(path: &Path, bytes: &[u8]) -> io::Result<()> {
    store_atomic(path, &bytes)
}

/// As [`write_atomic`], for what need not be in memory.
pub fn store_atomic(path: &Path, content: &dyn Content) -> io::Result<()> {
    unfinished(path, content)?.replace(path)
}

/// Writes `path` only if it does not exist (`AlreadyExists` otherwise), whole or not at all. Parents are created.
pub fn write_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    store_new(path, &bytes)
}

/// As [`write_new`], for what need not be in memory.
pub fn store_new(path: &Path, content: &dyn Content) -> io::Result<()> {
    unfinished(path, content)?.place_new(path)
}

/// The content in a file that still lacks its name.
fn unfinished(path: &Path, content: &dyn Content) -> io::Result<TempFile> {
    let folder = path
        .parent()
        .filter(|p| !p.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    let mut temp = TempFile::create(folder)?;
    let copied = io::copy(&mut content.open()?, temp.file()?)?;
    if copied != content.size() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(temp)
}

/// Removes unfinished files of dead processes below `root` (links are not followed); returns how many.
///
/// Files younger than `older_than` are kept: another Fresco may be writing into the same folder right now.
pub fn clean_stale(root: &Path, older_than: Duration) -> usize {
    let now = SystemTime::now();
    let mut removed = 0;
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        let Ok(entries) = fs::read_dir(&folder) else {
            continue;
        };
        for entry in entries.flatten() {
            let Ok(kind) = entry.file_type() else {
                continue;
            };
            if kind.is_dir() {
                folders.push(entry.path());
            } else if kind.is_file() && is_temp_name(&entry.file_name()) {
                let age = entry
                    .metadata()
                    .and_then(|m| m.modified())
                    .map(|m| now.duration_since(m));
                let old = matches!(age, Ok(Ok(age)) if age >= older_than);
                if old && fs::remove_file(entry.path()).is_ok() {
                    tracing::debug!(path = %entry.path().display(), "removed an unfinished file");
                    removed += 1;
                }
            }
        }
    }
    removed
}

/// Whether a directory entry is one of our unfinished files, which no listing should show.
pub fn is_temp_name(name: &OsStr) -> bool {
    name.to_str()
        .is_some_and(|n| n.starts_with(TEMP_PREFIX) && n.ends_with(TEMP_SUFFIX))
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn names(dir: &Path) -> Vec<String> {
        let mut n: Vec<_> = fs::read_dir(dir)
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        n.sort();
        n
    }

    #[test]
    fn atomic_replaces_and_leaves_nothing_behind() {
        let dir = tempfile::tempdir().unwrap();
        let p = dir.path().join("a/b.json");
        write_atomic(&p, b"one").unwrap();
        write_atomic(&p, b"two").unwrap();
        assert_eq!(fs::read(&p).unwrap(), b"two");
        assert_eq!(names(p.parent().unwrap()), ["b.json"]);
    }

    #[test]
    fn new_never_overwrites() {
        let dir = tempfile::tempdir().unwrap();
        let p = dir.path().join("x");
        write_new(&p, b"one").unwrap();
        let e = write_new(&p, b"two").unwrap_err();
        assert_eq!(e.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read(&p).unwrap(), b"one");
        assert_eq!(names(dir.path()), ["x"]);
    }

    #[test]
    fn a_dropped_file_disappears() {
        let dir = tempfile::tempdir().unwrap();
        let mut t = TempFile::create(dir.path()).unwrap();
        t.file().unwrap().write_all(b"half").unwrap();
        assert_eq!(names(dir.path()).len(), 1);
        drop(t);
        assert!(names(dir.path()).is_empty());
    }

    #[test]
    fn stale_files_are_cleaned_and_others_kept() {
        let dir = tempfile::tempdir().unwrap();
        let sub = dir.path().join("sub");
        fs::create_dir(&sub).unwrap();
        for p in [
            dir.path().join(".fresco-1-2.tmp"),
            sub.join(".fresco-9-0.tmp"),
            sub.join("keep.tmp"),
            sub.join(".fresco-x"),
        ] {
            fs::write(p, "x").unwrap();
        }
        assert_eq!(clean_stale(dir.path(), Duration::from_hours(1)), 0);
        assert_eq!(clean_stale(dir.path(), Duration::ZERO), 2);
        assert_eq!(names(&sub), [".fresco-x", "keep.tmp"]);
    }
}
