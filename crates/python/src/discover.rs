//! Which packs there are, without starting anything.

use std::path::{Path, PathBuf};

/// One entry of a folder for packs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// What it is called: the folder's name, or the file's without `.py`.
    pub name: String,
    /// The entry's name, which flags go by.
    pub entry: String,
    pub path: PathBuf,
    /// One Python file instead of a folder.
    pub file: bool,
}

/// Which packs are wanted.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    pub none: bool,
    /// With `none`: except these.
    pub except: Vec<String>,
}

impl Wanted {
    fn takes(&self, entry: &str) -> bool {
        !self.none || self.except.iter().any(|name| name == entry)
    }
}

/// Packs of all roots, each root sorted by name.
pub fn candidates(roots: &[PathBuf], wanted: &Wanted) -> Vec<Candidate> {
    let mut seen: Vec<PathBuf> = Vec::new();
    let mut found = Vec::new();
    for root in roots {
        let real = root.canonicalize().unwrap_or_else(|_| root.clone());
        if seen.contains(&real) {
            continue;
        }
        seen.push(real);
        found.extend(
            in_root(root)
                .into_iter()
                .filter(|candidate| wanted.takes(&candidate.entry)),
        );
    }
    found
}

fn in_root(root: &Path) -> Vec<Candidate> {
    let Ok(entries) = std::fs::read_dir(root) else {
        return Vec::new();
    };
    let mut names: Vec<String> = entries
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    names.sort_unstable();
    names
        .into_iter()
        .filter(|name| {
            !name.ends_with(".disabled") && !name.starts_with('.') && name != "__pycache__"
        })
        .filter_map(|entry| {
            let path = root.join(&entry);
            if path.is_dir() {
                // Scripts and examples alone need no Python.
                return path.join("__init__.py").is_file().then_some(Candidate {
                    name: entry.clone(),
                    entry,
                    path,
                    file: false,
                });
            }
            let name = entry.strip_suffix(".py")?.to_owned();
            path.is_file().then_some(Candidate {
                name,
                entry,
                path,
                file: true,
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_counts_as_a_pack() {
        let dir = tempfile::tempdir().unwrap();
        for file in [
            "b/__init__.py",
            "a-1.2/__init__.py",
            "old.disabled/__init__.py",
            ".git/__init__.py",
            "__pycache__/__init__.py",
            "only_web/js/x.js",
            "one.py",
            "two.py.disabled",
            "three.py.example",
            "four.txt",
        ] {
            let path = dir.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        }
        let roots = [dir.path().to_path_buf(), dir.path().join("b/..")];
        let names = |wanted: &Wanted| -> Vec<String> {
            candidates(&roots, wanted)
                .into_iter()
                .map(|c| c.name)
                .collect()
        };
        assert_eq!(names(&Wanted::default()), ["a-1.2", "b", "one"]);
        let only = |entries: &[&str]| Wanted {
            none: true,
            except: entries.iter().map(|e| (*e).to_owned()).collect(),
        };
        assert!(names(&only(&[])).is_empty());
        assert_eq!(names(&only(&["b", "one"])), ["b"]);
        assert_eq!(names(&only(&["one.py"])), ["one"]);
    }
}
