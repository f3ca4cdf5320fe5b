//! Names of saved files: prefix templates, sub-folders, and numbers that never collide.
//!
//! A [`Saver`] is shared by everything that saves. It remembers, per folder, the next number of each stem and the
//! modification time of the folder at which that was true, so saving into a folder of ten thousand pictures does not
//! list it each time. The memory is only a hint: a name is taken by linking a finished file to it, which fails if
//! the name exists, so two saves (threads or processes) never share a name and nothing is overwritten.

use std::collections::HashMap;
use std::fs::{self, File};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write};
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use jiff::civil::DateTime;

use crate::contain::{self, PathError, absolute};
use crate::write::TempFile;

/// Folders and stems remembered; beyond that the memory starts anew.
const MAX_FOLDERS: usize = 256;
const MAX_STEMS: usize = 1024;
/// A number above this is not a counter of ours (and must not make the next one overflow).
const MAX_NUMBER: u64 = 1 << 53;

/// A file could not be saved.
#[derive(Debug, thiserror::Error)]
pub enum SaveError {
    // The first line is what clients look for; the other three help the user.
    #[error(
        "**** ERROR: Saving image outside the output folder is not allowed.\n full_output_folder: {folder}\n         output_dir: {dir}\n         commonpath: {common}"
    )]
    Outside {
        folder: PathBuf,
        dir: PathBuf,
        common: PathBuf,
    },
    #[error("cannot save under this name")]
    Name { source: PathError },
    #[error("cannot write {path}")]
    Io { path: PathBuf, source: io::Error },
}

/// Where a batch of files goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SavePath {
    pub folder: PathBuf,
    /// File name without number; may still contain `%batch_num%`.
    pub stem: String,
    /// Number the first file will get if nobody else saves meanwhile.
    pub counter: u64,
    /// Folder relative to the base directory with the separators of this system; empty for none.
    pub subfolder: String,
    /// The prefix after templating.
    pub prefix: String,
}

/// A file that has been written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Saved {
    pub filename: String,
    pub subfolder: String,
    pub path: PathBuf,
    pub counter: u64,
}

/// Hands out file names; cheap to clone, one for the whole program.
#[derive(Debug, Clone, Default)]
pub struct Saver {
    folders: Arc<Mutex<HashMap<PathBuf, Arc<Mutex<Folder>>>>>,
}

/// What is remembered of one folder.
#[derive(Debug, Default)]
struct Folder {
    /// Modification time at which `next` was true.
    mtime: Option<SystemTime>,
    next: HashMap<String, u64>,
}

/// The files of one node execution: numbers go up, `%batch_num%` counts from 0.
#[derive(Debug)]
pub struct Batch {
    pub path: SavePath,
    saver: Saver,
    folder: Arc<Mutex<Folder>>,
    next: u64,
    index: usize,
}

impl Saver {
    pub fn new() -> Self {
        Self::default()
    }

    /// Resolves a prefix below `dir` at the present local time. The folder is created.
    pub fn begin(
        &self,
        prefix: &str,
        dir: &Path,
        width: usize,
        height: usize,
    ) -> Result<Batch, SaveError> {
        // The clock and the time zone are only worth asking for a template.
        let now = if prefix.contains('%') {
            jiff::Zoned::now().datetime()
        } else {
            DateTime::ZERO
        };
        self.begin_at(prefix, dir, width, height, now)
    }

    /// As [`Saver::begin`] at a given time.
    pub fn begin_at(
        &self,
        prefix: &str,
        dir: &Path,
        width: usize,
        height: usize,
        now: DateTime,
    ) -> Result<Batch, SaveError> {
        let prefix = expand(prefix, width, height, now);
        let (folder, subfolder, stem) = split(&prefix, dir)?;
        fs::create_dir_all(&folder).map_err(|source| SaveError::Io {
            path: folder.clone(),
            source,
        })?;
        let state = self.folder(&folder);
        let next = lock(&state).next(&folder, &stem);
        Ok(Batch {
            path: SavePath {
                folder,
                stem,
                counter: next,
                subfolder,
                prefix,
            },
            saver: self.clone(),
            folder: state,
            next,
            index: 0,
        })
    }

    fn folder(&self, path: &Path) -> Arc<Mutex<Folder>> {
        let mut folders = lock(&self.folders);
        if folders.len() >= MAX_FOLDERS && !folders.contains_key(path) {
            folders.clear();
        }
        folders.entry(path.to_path_buf()).or_default().clone()
    }
}

impl Batch {
    /// Writes the next file of the batch: `{stem}_{number:05}_.{ext}`.
    pub fn save(&mut self, ext: &str, bytes: &[u8]) -> Result<Saved, SaveError> {
        self.save_with(ext, |file| file.write_all(bytes))
    }

    /// As [`Batch::save`] with the content written by `write`, for formats too large to hold in memory.
    pub fn save_with(
        &mut self,
        ext: &str,
        write: impl FnOnce(&mut File) -> io::Result<()>,
    ) -> Result<Saved, SaveError> {
        self.place(|stem, number| file_name(stem, number, ext), 0, write)
    }

    /// Writes the next file of the batch under a name that ends with the number: `{stem}_{number:05}.{ext}`.
    pub fn save_numbered(&mut self, ext: &str, bytes: &[u8]) -> Result<Saved, SaveError> {
        // Such names do not count for the other numbering, so they are looked for by themselves.
        let stem = self.stem();
        let found = fs::read_dir(&self.path.folder).into_iter().flatten();
        let highest = found
            .flatten()
            .filter_map(|e| {
                let name = e.file_name();
                let rest = name.to_str()?.strip_prefix(&*stem)?.strip_prefix('_')?;
                let (digits, found) = rest.split_once('.')?;
                let number: u64 = digits.parse().ok()?;
                (found == ext && number < MAX_NUMBER).then_some(number)
            })
            .max();
        let first = highest.map_or(1, |n| n + 1);
        let name = |stem: &str, number: u64| format!("{stem}_{number:05}.{ext}");
        self.place(name, first, |file| file.write_all(bytes))
    }

    fn stem(&self) -> String {
        let index = self.index.to_string();
        self.path.stem.replace("%batch_num%", &index)
    }

    /// Writes a file and gives it the first free name from a number on.
    fn place(
        &mut self,
        name: impl Fn(&str, u64) -> String,
        first: u64,
        write: impl FnOnce(&mut File) -> io::Result<()>,
    ) -> Result<Saved, SaveError> {
        let folder = self.path.folder.clone();
        let stem = self.stem();
        // The name is judged before anything is written.
        contain::check_name(&name(&stem, self.next))
            .map_err(|source| SaveError::Name { source })?;
        let at = |path: &Path| {
            let path = path.to_path_buf();
            move |source| SaveError::Io { path, source }
        };
        let mut temp = {
            let mut state = lock(&self.folder);
            let known = state.is_current(&folder);
            let temp = TempFile::create(&folder).map_err(at(&folder))?;
            state.touched(&folder, known);
            temp
        };
        write(temp.file().map_err(at(&folder))?).map_err(at(&folder))?;
        temp.close();

        let mut state = lock(&self.folder);
        let known = state.is_current(&folder);
        // Files saved meanwhile by others (or found by a new listing) push the number up, never down.
        let mut number = self.next.max(first).max(if known {
            state.peek(&self.path.stem)
        } else {
            0
        });
        let (filename, path) = loop {
            let filename = name(&stem, number);
            let path = folder.join(&filename);
            match temp.place_new(&path) {
                Ok(()) => break (filename, path),
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => number += 1,
                Err(source) => return Err(SaveError::Io { path, source }),
            }
        };
        state.added(&filename);
        state.touched(&folder, known);
        drop(state);
        self.next = number + 1;
        self.index += 1;
        Ok(Saved {
            filename,
            subfolder: self.path.subfolder.clone(),
            path,
            counter: number,
        })
    }

    /// The saver this batch belongs to.
    pub fn saver(&self) -> &Saver {
        &self.saver
    }
}

impl Folder {
    fn is_current(&self, path: &Path) -> bool {
        self.mtime.is_some() && self.mtime == mtime(path)
    }

    /// The next number for a stem, listing the folder only if it changed since we last knew it.
    fn next(&mut self, path: &Path, stem: &str) -> u64 {
        if !self.is_current(path) {
            self.next.clear();
            self.mtime = None;
        }
        if let Some(&n) = self.next.get(stem) {
            return n;
        }
        // Time first: a file that appears while we list makes the memory stale, not wrong.
        let before = mtime(path);
        let n = scan(path, stem);
        if self.mtime.is_none() {
            self.mtime = before;
        }
        if self.next.len() >= MAX_STEMS {
            self.next.clear();
        }
        self.next.insert(stem.to_owned(), n);
        n
    }

    fn peek(&self, stem: &str) -> u64 {
        self.next.get(stem).copied().unwrap_or(0)
    }

    /// Takes note of a file of ours, for every stem it counts for.
    fn added(&mut self, filename: &str) {
        #[expect(
            clippy::iter_over_hash_type,
            reason = "each entry is updated on its own"
        )]
        for (stem, next) in &mut self.next {
            if let Some(n) = number_of(filename, stem) {
                *next = (*next).max(n + 1);
            }
        }
    }

    /// After a change of our own the folder has a new time; what we know stays true if it was true before.
    fn touched(&mut self, path: &Path, was_current: bool) {
        self.mtime = if was_current { mtime(path) } else { None };
    }
}

fn mtime(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).and_then(|m| m.modified()).ok()
}

/// A panic while the lock was held cannot leave anything worse than a stale hint.
fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// `{stem}_{number:05}_.{ext}`
pub fn file_name(stem: &str, number: u64, ext: &str) -> String {
    format!("{stem}_{number:05}_.{ext}")
}

/// Replaces the variables the server knows; any other `%...%` stays.
pub fn expand(prefix: &str, width: usize, height: usize, now: DateTime) -> String {
    if !prefix.contains('%') {
        return prefix.to_owned();
    }
    let two = |n: i8| format!("{n:02}");
    [
        ("%width%", width.to_string()),
        ("%height%", height.to_string()),
        ("%year%", format!("{:04}", now.year())),
        ("%month%", two(now.month())),
        ("%day%", two(now.day())),
        ("%hour%", two(now.hour())),
        ("%minute%", two(now.minute())),
        ("%second%", two(now.second())),
    ]
    .into_iter()
    .fold(prefix.to_owned(), |s, (name, value)| {
        s.replace(name, &value)
    })
}

/// Splits a resolved prefix into folder, sub-folder and stem, refusing what leaves `dir`.
fn split(prefix: &str, dir: &Path) -> Result<(PathBuf, String, String), SaveError> {
    let dir = absolute(dir);
    let text = prefix.replace('\\', "/");
    // An absolute prefix is fine if it points into the directory; what counts is the part below it.
    let target = absolute(&dir.join(&text));
    let name = match Path::new(&text).components().next_back() {
        Some(Component::Normal(n)) => n.to_str().unwrap_or(".").to_owned(),
        // Empty, `.` and `..` have no last name of their own.
        _ => ".".to_owned(),
    };
    let folder = if name == "." {
        target
    } else {
        target.parent().unwrap_or(&dir).to_path_buf()
    };
    let Ok(below) = folder.strip_prefix(&dir) else {
        return Err(outside(folder, dir));
    };
    let below = below.to_str().unwrap_or_default().to_owned();
    match contain::contain(&dir, &below) {
        Ok(path) => Ok((path, below, name)),
        // A link inside that leads out.
        Err(PathError::Escape { .. }) => Err(outside(folder, dir)),
        Err(source) => Err(SaveError::Name { source }),
    }
}

fn outside(folder: PathBuf, dir: PathBuf) -> SaveError {
    let common = folder
        .components()
        .zip(dir.components())
        .take_while(|(a, b)| a == b)
        .map(|(a, _)| a)
        .collect();
    SaveError::Outside {
        folder,
        dir,
        common,
    }
}

/// One more than the highest number of this stem in the folder; 1 if there is none.
fn scan(folder: &Path, stem: &str) -> u64 {
    let Ok(entries) = fs::read_dir(folder) else {
        return 1;
    };
    entries
        .flatten()
        .filter_map(|e| e.file_name().to_str().and_then(|n| number_of(n, stem)))
        .max()
        .map_or(1, |n| n + 1)
}

/// The number of `<stem>_<number>_...`: 0 where the text is no number, none where the name is of another stem.
fn number_of(name: &str, stem: &str) -> Option<u64> {
    let rest = if cfg!(windows) {
        let end = stem.len();
        let head = name.get(..end)?;
        (head.to_lowercase() == stem.to_lowercase()).then(|| &name[end..])?
    } else {
        name.strip_prefix(stem)?
    };
    let rest = rest.strip_prefix('_')?;
    let digits = rest.split('_').next().unwrap_or(rest).trim();
    Some(digits.parse().ok().filter(|&n| n < MAX_NUMBER).unwrap_or(0))
}

/// `{base}_temp_` and five random letters: the prefix of preview files.
pub fn temp_prefix(base: &str) -> String {
    // RandomState is seeded by the system; previews need unlikely repetition, not secrecy.
    let mut bits = RandomState::new().hash_one(SystemTime::now());
    let mut out = format!("{base}_temp_");
    for _ in 0..5 {
        out.push(char::from(b'a' + (bits % 26) as u8));
        bits /= 26;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::civil::date;

    fn now() -> DateTime {
        date(2026, 1, 2).at(3, 4, 5, 0)
    }

    fn begin(saver: &Saver, prefix: &str, dir: &Path) -> Batch {
        saver.begin_at(prefix, dir, 16, 8, now()).unwrap()
    }

    #[test]
    fn examples_of_the_format() {
        let dir = tempfile::tempdir().unwrap();
        let s = Saver::new();
        for (prefix, sub, name) in [
            ("ComfyUI", "", "ComfyUI_00001_.png"),
            ("t/x_%width%_%year%", "t", "x_16_2026_00001_.png"),
            ("m%batch_num%_%foo%", "", "m0_%foo%_00001_.png"),
            ("a//b/../c/d", "a/c", "d_00001_.png"),
            ("w\\x", "w", "x_00001_.png"),
            (
                "%month%%day%-%hour%%minute%%second%-%height%",
                "",
                "0102-030405-8_00001_.png",
            ),
            ("%date:yyyy%", "", "%date:yyyy%_00001_.png"),
            ("con", "", "con_00001_.png"),
            ("a/", "", "a_00001_.png"),
            ("", "", "._00001_.png"),
        ] {
            let saved = begin(&s, prefix, dir.path()).save("png", b"x").unwrap();
            assert_eq!(
                (saved.subfolder.as_str(), saved.filename.as_str()),
                (sub, name),
                "{prefix}"
            );
            assert_eq!(fs::read(&saved.path).unwrap(), b"x");
            assert_eq!(
                saved.path,
                dir.path().canonicalize().unwrap().join(sub).join(name)
            );
        }
    }

    #[test]
    fn an_absolute_prefix_inside_is_made_relative() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let prefix = root.join("s/x").to_str().unwrap().to_owned();
        let saved = begin(&Saver::new(), &prefix, &root)
            .save("png", b"x")
            .unwrap();
        assert_eq!(
            (saved.subfolder.as_str(), saved.filename.as_str()),
            ("s", "x_00001_.png")
        );
    }

    #[test]
    fn leaving_the_folder_is_an_error_with_three_paths() {
        let s = Saver::new();
        let e = s
            .begin_at("../escape", Path::new("/base/output"), 1, 1, now())
            .unwrap_err();
        assert_eq!(
            e.to_string(),
            "**** ERROR: Saving image outside the output folder is not allowed.\n full_output_folder: /base\n         \
             output_dir: /base/output\n         commonpath: /base"
        );
        for bad in ["../../x", "/etc/x", "a/../../x", "..\\x", ".."] {
            let e = s
                .begin_at(bad, Path::new("/base/output"), 1, 1, now())
                .unwrap_err();
            assert!(matches!(e, SaveError::Outside { .. }), "{bad}: {e}");
        }
        let dir = tempfile::tempdir().unwrap();
        for bad in ["nul/x", "a /x", "a\0/x"] {
            let e = s.begin_at(bad, dir.path(), 1, 1, now()).unwrap_err();
            assert!(matches!(e, SaveError::Name { .. }), "{bad}: {e}");
        }
        let long = "x".repeat(300);
        assert!(begin(&s, &long, dir.path()).save("png", b"").is_err());
        assert!(begin(&s, "a\nb", dir.path()).save("png", b"").is_err());
        assert!(fs::read_dir(dir.path()).unwrap().next().is_none());
    }

    #[test]
    fn numbers_follow_the_highest() {
        let dir = tempfile::tempdir().unwrap();
        for n in [
            "x_00007_.png",
            "x_3_foo",
            "x_abc_.png",
            "xy_00099_.png",
            "x_00012",
            "x00050_",
        ] {
            fs::write(dir.path().join(n), "").unwrap();
        }
        assert_eq!(scan(dir.path(), "x"), 13);
        assert_eq!(scan(dir.path(), "xy"), 100);
        assert_eq!(scan(dir.path(), "z"), 1);
        assert_eq!(number_of("x_5.png", "x"), Some(0));
        assert_eq!(number_of("x_99999999999999999999_.png", "x"), Some(0));
        assert_eq!(number_of("x", "x"), None);
        let mut b = begin(&Saver::new(), "x", dir.path());
        assert_eq!(b.path.counter, 13);
        assert_eq!(b.save("png", b"1").unwrap().filename, "x_00013_.png");
        assert_eq!(b.save("png", b"2").unwrap().filename, "x_00014_.png");
    }

    #[test]
    fn files_of_others_are_seen() {
        let dir = tempfile::tempdir().unwrap();
        let s = Saver::new();
        begin(&s, "x", dir.path()).save("png", b"1").unwrap();
        fs::write(dir.path().join("x_00041_.png"), "").unwrap();
        // The clock of the file system may not have moved since our own write; make the change visible.
        File::open(dir.path())
            .unwrap()
            .set_modified(SystemTime::UNIX_EPOCH)
            .unwrap();
        assert_eq!(
            begin(&s, "x", dir.path())
                .save("png", b"2")
                .unwrap()
                .counter,
            42
        );
    }

    #[test]
    fn a_taken_name_is_skipped_even_when_the_memory_is_stale() {
        let dir = tempfile::tempdir().unwrap();
        let s = Saver::new();
        let mut b = begin(&s, "x", dir.path());
        fs::write(dir.path().join("x_00001_.png"), "theirs").unwrap();
        assert_eq!(b.save("png", b"ours").unwrap().filename, "x_00002_.png");
        assert_eq!(
            fs::read(dir.path().join("x_00001_.png")).unwrap(),
            b"theirs"
        );
        // The reference would overwrite here, since it counts on the stem before `%batch_num%` is replaced.
        let one = begin(&s, "m%batch_num%", dir.path())
            .save("png", b"1")
            .unwrap();
        let two = begin(&s, "m%batch_num%", dir.path())
            .save("png", b"2")
            .unwrap();
        assert_eq!(
            (one.filename.as_str(), two.filename.as_str()),
            ("m0_00001_.png", "m0_00002_.png")
        );
    }

    #[test]
    fn other_stems_do_not_force_a_listing() {
        let dir = tempfile::tempdir().unwrap();
        let s = Saver::new();
        begin(&s, "a", dir.path()).save("png", b"").unwrap();
        begin(&s, "b", dir.path()).save("png", b"").unwrap();
        let state = s.folder(&absolute(dir.path()));
        let state = lock(&state);
        assert!(state.is_current(dir.path()));
        assert_eq!(state.next.get("a"), Some(&2));
        assert_eq!(state.next.get("b"), Some(&2));
    }

    #[test]
    fn concurrent_saves_never_share_a_name() {
        let dir = tempfile::tempdir().unwrap();
        let shared = Saver::new();
        let names: Vec<String> = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..8)
                .map(|i| {
                    // Half of them pretend to be other processes with a memory of their own.
                    let saver = if i % 2 == 0 {
                        shared.clone()
                    } else {
                        Saver::new()
                    };
                    let dir = dir.path();
                    scope.spawn(move || {
                        let mut out = Vec::new();
                        for _ in 0..5 {
                            let mut b = begin(&saver, "c", dir);
                            out.push(b.save("png", &[i]).unwrap().filename);
                            out.push(b.save("png", &[i]).unwrap().filename);
                        }
                        out
                    })
                })
                .collect();
            workers
                .into_iter()
                .flat_map(|w| w.join().unwrap())
                .collect()
        });
        let distinct: std::collections::BTreeSet<_> = names.iter().collect();
        assert_eq!(distinct.len(), 80);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 80);
    }

    #[test]
    fn a_failed_write_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let mut b = begin(&Saver::new(), "x", dir.path());
        let e = b.save_with("png", |f| {
            f.write_all(b"half")?;
            Err(io::Error::other("disk full"))
        });
        assert!(matches!(e, Err(SaveError::Io { .. })));
        assert!(fs::read_dir(dir.path()).unwrap().next().is_none());
        assert_eq!(b.save("png", b"x").unwrap().filename, "x_00001_.png");
    }

    #[test]
    fn preview_prefixes_differ() {
        let (a, b) = (temp_prefix("ComfyUI"), temp_prefix("ComfyUI"));
        assert!(a.starts_with("ComfyUI_temp_") && a.len() == "ComfyUI_temp_".len() + 5);
        assert!(a[13..].bytes().all(|b| b.is_ascii_lowercase()));
        assert_ne!(a, b);
    }
}
