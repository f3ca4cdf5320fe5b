//! Placing uploaded files: an equal file is not stored twice, a different one of the same name is not lost.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use crate::contain::{PathError, contain, contain_new};
use crate::content::{Content, same_bytes};
use crate::folders::split_extension;
use crate::write::{store_atomic, store_new};

/// Names tried before giving up on a folder full of `name (n).ext`.
const MAX_TRIES: u32 = 100_000;

/// An upload could not be stored.
#[derive(Debug, thiserror::Error)]
pub enum UploadError {
    #[error("the name of the uploaded file is not acceptable")]
    Name { source: PathError },
    #[error("cannot store {path}")]
    Io { path: PathBuf, source: io::Error },
    #[error("no free name for {name}")]
    NoName { name: String },
}

/// Where an upload ended up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// The name it got below the subfolder; differs from the wish if that was taken.
    pub name: String,
    pub path: PathBuf,
    /// An equal file was there already; nothing was written.
    pub duplicate: bool,
}

/// Finds the name for an upload below `base/subfolder`: the wished one, or `name (n).ext` if it holds other bytes.
/// `content` are the bytes to write; `same_as` those compared with files already there (for masks they differ).
pub fn store_upload(
    base: &Path,
    subfolder: &str,
    filename: &str,
    overwrite: bool,
    same_as: &dyn Content,
    content: &dyn Content,
) -> Result<Stored, UploadError> {
    let named = |source| UploadError::Name { source };
    if filename.is_empty() {
        return Err(named(PathError::Empty));
    }
    // Judged apart first: `x/..` plus `y` would be fine together, and `/y` must not count as relative.
    let below = contain(base, subfolder).map_err(named)?;
    contain(base, filename).map_err(named)?;
    let together = format!("{subfolder}/{filename}");
    let wished = contain_new(base, together.trim_start_matches('/')).map_err(named)?;
    // Folders inside the file name stay part of the answered name, or nobody would find the file again.
    let name = wished
        .strip_prefix(&below)
        .unwrap_or(&wished)
        .iter()
        .map(|part| part.to_string_lossy())
        .collect::<Vec<_>>()
        .join("/");
    let failed = |path: &Path| {
        let path = path.to_path_buf();
        move |source| UploadError::Io { path, source }
    };
    if overwrite {
        store_atomic(&wished, content).map_err(failed(&wished))?;
        return Ok(Stored {
            name,
            path: wished,
            duplicate: false,
        });
    }
    let (stem, ext) = split_extension(&name);
    for i in 0..MAX_TRIES {
        let name = if i == 0 {
            name.clone()
        } else {
            format!("{stem} ({i}){ext}")
        };
        let path = below.join(&name);
        if holds(&path, same_as).map_err(failed(&path))? {
            let duplicate = true;
            return Ok(Stored {
                name,
                path,
                duplicate,
            });
        }
        if path.symlink_metadata().is_ok() {
            continue;
        }
        match store_new(&path, content) {
            Ok(()) => {
                let duplicate = false;
                return Ok(Stored {
                    name,
                    path,
                    duplicate,
                });
            }
            // Someone else took the name meanwhile; look at it again.
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                if holds(&path, same_as).map_err(failed(&path))? {
                    let duplicate = true;
                    return Ok(Stored {
                        name,
                        path,
                        duplicate,
                    });
                }
            }
            Err(source) => return Err(UploadError::Io { path, source }),
        }
    }
    Err(UploadError::NoName { name })
}

/// Whether the file exists with exactly these bytes. Comparing bytes answers the same question as comparing digests,
/// and stops at the first difference.
fn holds(path: &Path, content: &dyn Content) -> io::Result<bool> {
    // A link is no equal file: it may lead to one that uploads have no business with.
    match fs::symlink_metadata(path) {
        Ok(m) if m.is_file() && m.len() == content.size() => {
            same_bytes(File::open(path)?, content.open()?)
        }
        _ => Ok(false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store(
        base: &Path,
        sub: &str,
        name: &str,
        overwrite: bool,
        bytes: &[u8],
    ) -> Result<Stored, UploadError> {
        store_upload(base, sub, name, overwrite, &bytes, &bytes)
    }

    #[test]
    fn names_of_equal_and_different_files() {
        let dir = tempfile::tempdir().unwrap();
        let b = dir.path();
        let put = |bytes: &[u8]| {
            let s = store(b, "", "a.png", false, bytes).unwrap();
            (s.name, s.duplicate)
        };
        assert_eq!(put(b"one"), ("a.png".into(), false));
        assert_eq!(put(b"one"), ("a.png".into(), true));
        assert_eq!(put(b"two"), ("a (1).png".into(), false));
        assert_eq!(put(b"two"), ("a (1).png".into(), true));
        assert_eq!(put(b"six"), ("a (2).png".into(), false));
        assert_eq!(put(b""), ("a (3).png".into(), false));
        assert_eq!(put(b""), ("a (3).png".into(), true));
        let s = store(b, "", "a.png", true, b"new").unwrap();
        assert_eq!(
            (s.name.as_str(), fs::read(&s.path).unwrap()),
            ("a.png", b"new".to_vec())
        );
    }

    #[test]
    fn subfolders_are_made_and_left_only_downwards() {
        let dir = tempfile::tempdir().unwrap();
        let b = dir.path();
        let s = store(b, "x/y", "a.png", false, b"1").unwrap();
        assert_eq!(s.path, b.join("x/y/a.png"));
        for (sub, name) in [
            ("..", "a.png"),
            ("", "../q.png"),
            ("x", "../../q.png"),
            ("/etc", "q.png"),
            ("", "/q.png"),
            ("", ""),
            ("x", ".."),
            ("", "nul.png"),
        ] {
            assert!(
                matches!(
                    store(b, sub, name, true, b"1"),
                    Err(UploadError::Name { .. })
                ),
                "{sub:?} {name:?}"
            );
        }
        assert_eq!(fs::read_dir(b).unwrap().count(), 1);
    }

    #[test]
    fn folders_inside_the_name_are_answered() {
        let dir = tempfile::tempdir().unwrap();
        let b = dir.path();
        for (bytes, overwrite, expected) in [
            (b"1", false, "v1.0/a"),
            (b"2", false, "v1.0/a (1)"),
            (b"2", false, "v1.0/a (1)"),
            (b"3", true, "v1.0/a"),
        ] {
            let s = store(b, "x/./y", "v1.0/a", overwrite, bytes).unwrap();
            assert_eq!(s.name, expected);
            assert_eq!(fs::read(b.join("x/y").join(expected)).unwrap(), bytes);
        }
    }

    #[test]
    fn concurrent_uploads_keep_all_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let b = dir.path();
        let mut names: Vec<String> = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..8u8)
                .map(|i| scope.spawn(move || store(b, "", "n.bin", false, &[i]).unwrap().name))
                .collect();
            workers.into_iter().map(|w| w.join().unwrap()).collect()
        });
        names.sort();
        names.dedup();
        assert_eq!(names.len(), 8);
    }
}
