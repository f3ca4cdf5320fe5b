//! The one place where a name from outside (request, workflow, archive) becomes a path on disk.
//!
//! Every caller joins user text to a directory through [`contain`] or one of its siblings, so the rules for hostile
//! names exist once. Names are judged by the strictest platform: a workflow written on Linux must not produce a file
//! that cannot be opened on Windows, and a device name must never be opened anywhere.

use std::io;
use std::path::{Component, Path, PathBuf};

/// Longest single name most file systems accept, in bytes.
pub const MAX_NAME: usize = 255;
/// Longest whole user path accepted, in bytes.
pub const MAX_PATH: usize = 4096;

/// Wildcards and redirections, and the colon that opens an alternate data stream of another file.
const NOT_ON_WINDOWS: &str = "<>:\"|?*";

/// Why a user path was refused.
#[derive(Debug, thiserror::Error)]
pub enum PathError {
    #[error("the path is empty")]
    Empty,
    #[error("{path:?} is absolute")]
    Absolute { path: String },
    #[error("{path:?} leads outside its directory")]
    Escape { path: String },
    #[error("{path:?} contains a control character")]
    Control { path: String },
    #[error("{path:?} contains the reserved device name {name:?}")]
    Device { path: String, name: String },
    #[error("{path:?} has a name ending in a dot or a space")]
    Trailing { path: String },
    #[error("{path:?} contains {character:?}, which no name has on Windows")]
    Character { path: String, character: char },
    #[error("path is too long: {bytes} bytes (limit {limit})")]
    TooLong { bytes: usize, limit: usize },
    #[error("{path} does not exist")]
    Missing { path: PathBuf },
    #[error("{path} is not a regular file")]
    NotAFile { path: PathBuf },
    #[error("cannot resolve {path}")]
    Io { path: PathBuf, source: io::Error },
}

/// Joins `user` to `root`; the result lies inside `root` even when symbolic links are followed.
///
/// The path need not exist. `""` and `"."` give the root itself. Both `/` and `\` separate. The result is `root` as
/// given plus the cleaned components, so messages and results show the directory the user configured.
pub fn contain(root: &Path, user: &str) -> Result<PathBuf, PathError> {
    let parts = components(user)?;
    let mut path = root.to_path_buf();
    if parts.is_empty() {
        // The root is inside itself wherever it leads; following its links would cost a dozen calls for nothing.
        return Ok(path);
    }
    path.extend(&parts);
    check_links(root, &path, user)?;
    Ok(path)
}

/// As [`contain`], and the result must be an existing regular file (links are followed, but must stay inside).
pub fn contain_file(root: &Path, user: &str) -> Result<PathBuf, PathError> {
    let path = contain(root, user)?;
    match path.metadata() {
        Ok(m) if m.is_file() => Ok(path),
        Ok(_) => Err(PathError::NotAFile { path }),
        Err(e) if is_missing(&e) => Err(PathError::Missing { path }),
        Err(source) => Err(PathError::Io { path, source }),
    }
}

/// As [`contain`] for a file about to be written: it must have a name, and its parent directories are created.
pub fn contain_new(root: &Path, user: &str) -> Result<PathBuf, PathError> {
    if components(user)?.is_empty() {
        return Err(PathError::Empty);
    }
    let path = contain(root, user)?;
    let parent = path.parent().unwrap_or(root);
    std::fs::create_dir_all(parent).map_err(|source| PathError::Io {
        path: parent.to_path_buf(),
        source,
    })?;
    // Someone may have swapped a component for a link meanwhile; look again now that the parent exists.
    check_links(root, &path, user)?;
    Ok(path)
}

/// Checks one file name (no separators): the rules of [`contain`] for a single component.
pub fn check_name(name: &str) -> Result<(), PathError> {
    if name.contains(['/', '\\']) || name == ".." {
        return Err(PathError::Escape { path: shown(name) });
    }
    if name.is_empty() || name == "." {
        return Err(PathError::Empty);
    }
    components(name).map(|_| ())
}

/// The cleaned components of a user path: no `.`; `..` removes the component before it and may not go above the start.
pub fn components(user: &str) -> Result<Vec<&str>, PathError> {
    if user.len() > MAX_PATH {
        return Err(PathError::TooLong {
            bytes: user.len(),
            limit: MAX_PATH,
        });
    }
    if user.chars().any(char::is_control) {
        return Err(PathError::Control { path: shown(user) });
    }
    let bytes = user.as_bytes();
    let drive = bytes.len() >= 2 && bytes[0].is_ascii_alphabetic() && bytes[1] == b':';
    if user.starts_with(['/', '\\']) || drive {
        return Err(PathError::Absolute { path: shown(user) });
    }
    let mut parts = Vec::new();
    for part in user.split(['/', '\\']) {
        match part {
            "" | "." => {}
            ".." => {
                if parts.pop().is_none() {
                    return Err(PathError::Escape { path: shown(user) });
                }
            }
            _ => {
                component(part, user)?;
                parts.push(part);
            }
        }
    }
    Ok(parts)
}

fn component(part: &str, user: &str) -> Result<(), PathError> {
    if part.len() > MAX_NAME {
        return Err(PathError::TooLong {
            bytes: part.len(),
            limit: MAX_NAME,
        });
    }
    if part.ends_with(['.', ' ']) {
        return Err(PathError::Trailing { path: shown(user) });
    }
    if cfg!(windows)
        && let Some(character) = part.chars().find(|c| NOT_ON_WINDOWS.contains(*c))
    {
        return Err(PathError::Character {
            path: shown(user),
            character,
        });
    }
    if is_device(part) {
        return Err(PathError::Device {
            path: shown(user),
            name: part.to_owned(),
        });
    }
    Ok(())
}

/// Whether Windows would open a device under this name; an extension does not change that (`nul.png` is still NUL).
fn is_device(part: &str) -> bool {
    let stem = part
        .split(['.', ':'])
        .next()
        .unwrap_or(part)
        .trim_end_matches(' ')
        .to_ascii_uppercase();
    match stem.as_str() {
        "CON" | "PRN" | "AUX" | "NUL" | "CONIN$" | "CONOUT$" => true,
        _ => {
            let Some(rest) = stem
                .strip_prefix("COM")
                .or_else(|| stem.strip_prefix("LPT"))
            else {
                return false;
            };
            matches!(
                rest,
                "0" | "1" | "2" | "3" | "4" | "5" | "6" | "7" | "8" | "9" | "¹" | "²" | "³"
            )
        }
    }
}

/// Checks that `path`, which is `root` and more, is still inside `root` when links are followed.
fn check_links(root: &Path, path: &Path, user: &str) -> Result<(), PathError> {
    if !may_have_links(root, path) {
        return Ok(());
    }
    let real_root = match root.canonicalize() {
        Ok(r) => r,
        // Nothing below a missing root can be a link.
        Err(e) if is_missing(&e) => return Ok(()),
        Err(source) => {
            return Err(PathError::Io {
                path: root.to_path_buf(),
                source,
            });
        }
    };
    let mut at = path;
    loop {
        match at.canonicalize() {
            Ok(real) if real.starts_with(&real_root) => return Ok(()),
            Ok(_) => return Err(PathError::Escape { path: shown(user) }),
            Err(e) if is_missing(&e) => {
                // A dangling link would be followed when the file is created, to a place nobody has looked at.
                if at
                    .symlink_metadata()
                    .is_ok_and(|m| m.file_type().is_symlink())
                {
                    return Err(PathError::Escape { path: shown(user) });
                }
            }
            Err(source) => {
                return Err(PathError::Io {
                    path: at.to_path_buf(),
                    source,
                });
            }
        }
        match at.parent() {
            Some(parent) if at != root => at = parent,
            _ => return Ok(()),
        }
    }
}

/// Whether something below `root` on the way to `path` is a link, or cannot be looked at. Where nothing is, there is nothing to follow,
/// which is so for nearly every path and costs a fraction of following it.
fn may_have_links(root: &Path, path: &Path) -> bool {
    let Ok(below) = path.strip_prefix(root) else {
        return true;
    };
    let mut at = root.to_path_buf();
    for part in below {
        at.push(part);
        match at.symlink_metadata() {
            Ok(data) if data.file_type().is_symlink() => return true,
            Ok(_) => {}
            // Nor is there anything below it.
            Err(e) if is_missing(&e) => return false,
            Err(_) => return true,
        }
    }
    false
}

/// Turns a path absolute and removes `.` and `..` by text alone (links are not followed).
pub fn absolute(path: &Path) -> PathBuf {
    let full = if path.is_absolute() {
        path.to_path_buf()
    } else {
        std::env::current_dir()
            .unwrap_or_else(|_| PathBuf::from("/"))
            .join(path)
    };
    let mut out = PathBuf::new();
    for c in full.components() {
        match c {
            Component::CurDir => {}
            Component::ParentDir => {
                out.pop();
            }
            c => out.push(c),
        }
    }
    out
}

pub(crate) fn is_missing(e: &io::Error) -> bool {
    matches!(
        e.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

/// User text for a message: bounded, since it may be megabytes.
fn shown(user: &str) -> String {
    user.chars().take(200).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn kind(user: &str) -> &'static str {
        let dir = tempfile::tempdir().unwrap();
        match contain(dir.path(), user) {
            Ok(p) => {
                assert!(p.starts_with(dir.path()), "{p:?}");
                "ok"
            }
            Err(PathError::Empty) => "empty",
            Err(PathError::Absolute { .. }) => "absolute",
            Err(PathError::Escape { .. }) => "escape",
            Err(PathError::Control { .. }) => "control",
            Err(PathError::Device { .. }) => "device",
            Err(PathError::Trailing { .. }) => "trailing",
            Err(PathError::TooLong { .. }) => "long",
            Err(PathError::Character { .. }) => "character",
            Err(e) => panic!("{e}"),
        }
    }

    #[test]
    fn rules() {
        for (user, want) in [
            ("a.png", "ok"),
            ("a/b/c.png", "ok"),
            ("a\\b\\c.png", "ok"),
            ("", "ok"),
            (".", "ok"),
            ("a/../b", "ok"),
            ("a b (1).png", "ok"),
            (".hidden", "ok"),
            ("ünï/漢字.png", "ok"),
            ("console.png", "ok"),
            ("com10.txt", "ok"),
            ("/etc/passwd", "absolute"),
            ("\\\\server\\share", "absolute"),
            ("C:\\x", "absolute"),
            ("c:x", "absolute"),
            ("..", "escape"),
            ("../x", "escape"),
            ("a/../../x", "escape"),
            ("a\\..\\..\\x", "escape"),
            ("a\0b", "control"),
            ("a\nb", "control"),
            ("a\u{7f}b", "control"),
            ("nul", "device"),
            ("NUL.png", "device"),
            ("a/con.tar.gz", "device"),
            ("com1", "device"),
            ("LPT9.txt", "device"),
            ("aux .txt", "device"),
            ("com¹", "device"),
            ("x.", "trailing"),
            ("x /y", "trailing"),
            ("...", "trailing"),
        ] {
            assert_eq!(kind(user), want, "{user:?}");
        }
        let elsewhere = if cfg!(windows) { "character" } else { "ok" };
        for user in ["a?.png", "a*b", "x/a\"b", "<a>", "a|b", "a/file.png:stream"] {
            assert_eq!(kind(user), elsewhere, "{user:?}");
        }
        assert_eq!(kind(&"x".repeat(255)), "ok");
        assert_eq!(kind(&"x".repeat(256)), "long");
        assert_eq!(kind(&"x/".repeat(2049)), "long");
    }

    #[test]
    fn single_names() {
        assert!(check_name("a.png").is_ok());
        for bad in ["", ".", "..", "a/b", "a\\b", "/", "nul", "a\0"] {
            assert!(check_name(bad).is_err(), "{bad:?}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn links_must_stay_inside() {
        let dir = tempfile::tempdir().unwrap();
        let outside = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        std::fs::create_dir_all(root.join("real")).unwrap();
        std::fs::write(root.join("real/x"), "x").unwrap();
        std::fs::write(outside.path().join("secret"), "s").unwrap();
        std::os::unix::fs::symlink(outside.path(), root.join("out")).unwrap();
        std::os::unix::fs::symlink("real", root.join("in")).unwrap();
        std::os::unix::fs::symlink(dir.path().join("later"), root.join("dangling")).unwrap();
        std::os::unix::fs::symlink("loop", root.join("loop")).unwrap();
        assert!(matches!(
            contain(&root, "out/secret"),
            Err(PathError::Escape { .. })
        ));
        assert!(matches!(
            contain(&root, "out/new/file"),
            Err(PathError::Escape { .. })
        ));
        assert!(matches!(
            contain(&root, "dangling"),
            Err(PathError::Escape { .. })
        ));
        assert!(contain(&root, "loop").is_err());
        assert_eq!(contain_file(&root, "in/x").unwrap(), root.join("in/x"));
        assert!(matches!(
            contain_file(&root, "in"),
            Err(PathError::NotAFile { .. })
        ));
        assert!(matches!(
            contain_file(&root, "in/y"),
            Err(PathError::Missing { .. })
        ));
        assert!(matches!(
            contain_file(&root, "real/x/y"),
            Err(PathError::Missing { .. })
        ));
    }

    #[test]
    fn a_root_that_is_a_link_is_fine() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("real")).unwrap();
        #[cfg(unix)]
        {
            let link = dir.path().join("link");
            std::os::unix::fs::symlink("real", &link).unwrap();
            assert_eq!(contain(&link, "a/b").unwrap(), link.join("a/b"));
        }
    }

    #[test]
    fn new_files_get_their_parents() {
        let dir = tempfile::tempdir().unwrap();
        let p = contain_new(dir.path(), "a/b/c.txt").unwrap();
        assert!(p.parent().unwrap().is_dir());
        assert!(matches!(
            contain_new(dir.path(), "a/.."),
            Err(PathError::Empty)
        ));
        assert!(contain_new(dir.path(), "../x").is_err());
    }

    #[test]
    fn absolute_cleans_text() {
        assert_eq!(absolute(Path::new("/a/./b/../c")), PathBuf::from("/a/c"));
        assert_eq!(absolute(Path::new("/../a")), PathBuf::from("/a"));
        assert!(absolute(Path::new("x")).is_absolute());
    }

    proptest! {
        #[test]
        fn no_accepted_path_leaves_the_root(user in r"([a-c.]{0,4}[/\\]){0,6}[a-zA-Z.:\x00 ]{0,5}") {
            let root = Path::new("/nowhere/at/all/root");
            if let Ok(p) = contain(root, &user) {
                prop_assert!(absolute(&p).starts_with(root));
                prop_assert!(p.components().all(|c| !matches!(c, Component::ParentDir)));
                for part in p.strip_prefix(root).unwrap().components() {
                    let part = part.as_os_str().to_str().unwrap();
                    prop_assert!(!part.ends_with(['.', ' ']) && !is_device(part));
                }
            }
        }

        #[test]
        fn any_text_at_all(user in "\\PC*") {
            let root = Path::new("/nowhere/at/all/root");
            if let Ok(p) = contain(root, &user) {
                prop_assert!(absolute(&p).starts_with(root));
            }
        }
    }
}
