//! File names with a directory mark: `a.png [output]`.

use std::path::PathBuf;

use crate::contain::{PathError, contain, contain_file};
use crate::dirs::{DirType, Dirs};

/// Splits the mark off a name: the directory it names and the name without the mark and the character before it.
pub fn split(name: &str) -> (&str, Option<DirType>) {
    for (mark, dir) in [
        ("[output]", DirType::Output),
        ("[input]", DirType::Input),
        ("[temp]", DirType::Temp),
    ] {
        if let Some(rest) = name.strip_suffix(mark) {
            let mut chars = rest.chars();
            chars.next_back();
            return (chars.as_str(), Some(dir));
        }
    }
    (name, None)
}

/// The path an annotated name stands for, inside the named directory or else `default`.
pub fn path(dirs: &Dirs, name: &str, default: DirType) -> Result<PathBuf, PathError> {
    let (name, dir) = split(name);
    if name.is_empty() {
        return Err(PathError::Empty);
    }
    contain(dirs.get(dir.unwrap_or(default)), name)
}

/// As [`path`], and it must be an existing regular file.
pub fn file(dirs: &Dirs, name: &str, default: DirType) -> Result<PathBuf, PathError> {
    let (name, dir) = split(name);
    if name.is_empty() {
        return Err(PathError::Empty);
    }
    contain_file(dirs.get(dir.unwrap_or(default)), name)
}

/// Whether the named file exists; names without a mark are looked up in the input directory.
pub fn exists(dirs: &Dirs, name: &str) -> bool {
    path(dirs, name, DirType::Input).is_ok_and(|p| p.exists())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks() {
        for (name, want) in [
            ("a.png [output]", ("a.png", Some(DirType::Output))),
            ("a.png [input]", ("a.png", Some(DirType::Input))),
            ("s/a.png [temp]", ("s/a.png", Some(DirType::Temp))),
            ("a.pngx[temp]", ("a.png", Some(DirType::Temp))),
            ("a.png", ("a.png", None)),
            ("[output]", ("", Some(DirType::Output))),
            ("é[output]", ("", Some(DirType::Output))),
            ("a.png [Output]", ("a.png [Output]", None)),
            ("a.png [output] ", ("a.png [output] ", None)),
        ] {
            assert_eq!(split(name), want);
        }
    }

    #[test]
    fn paths_stay_inside() {
        let dir = tempfile::tempdir().unwrap();
        let dirs = Dirs::under(dir.path());
        std::fs::create_dir_all(dirs.output.join("s")).unwrap();
        std::fs::write(dirs.output.join("s/a.png"), "x").unwrap();
        assert_eq!(
            file(&dirs, "s/a.png [output]", DirType::Input).unwrap(),
            dirs.output.join("s/a.png")
        );
        assert!(matches!(
            file(&dirs, "s/a.png", DirType::Input),
            Err(PathError::Missing { .. })
        ));
        assert_eq!(
            path(&dirs, "b.png", DirType::Input).unwrap(),
            dirs.input.join("b.png")
        );
        assert!(exists(&dirs, "s/a.png [output]"));
        assert!(!exists(&dirs, "s/a.png"));
        assert!(!exists(&dirs, ""));
        for bad in ["../x [output]", "/etc/passwd", "s/../../x [output]"] {
            assert!(path(&dirs, bad, DirType::Input).is_err(), "{bad}");
            assert!(!exists(&dirs, bad));
        }
    }
}
