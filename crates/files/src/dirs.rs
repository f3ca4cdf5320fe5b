//! The base directories and the three names under which clients know them.

use std::io;
use std::path::{Path, PathBuf};

use crate::contain::{absolute, is_missing};
use crate::write::TempFile;

/// What the command line says about directories; everything is optional except the program directory.
#[derive(Debug, Clone, Default)]
pub struct DirOptions {
    /// Where the program lives: default base, place of `extra_model_paths.yaml` and of custom front-ends.
    pub program: PathBuf,
    pub base: Option<PathBuf>,
    pub output: Option<PathBuf>,
    pub input: Option<PathBuf>,
    /// Parent of the temp directory: `D` means `D/temp`.
    pub temp: Option<PathBuf>,
    pub user: Option<PathBuf>,
}

/// The resolved, absolute base directories.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dirs {
    pub program: PathBuf,
    pub base: PathBuf,
    pub models: PathBuf,
    pub custom_nodes: Vec<PathBuf>,
    pub output: PathBuf,
    pub input: PathBuf,
    pub temp: PathBuf,
    pub user: PathBuf,
    /// Downloaded front-ends; not moved by the base directory.
    pub web_versions: PathBuf,
    /// Whether `input` is the default one, which is created at start.
    default_input: bool,
}

/// A directory could not be prepared or emptied.
#[derive(Debug, thiserror::Error)]
pub enum DirError {
    #[error("user directory {path} does not exist")]
    NoUserDir { path: PathBuf },
    #[error("refusing to delete the temp directory {path}: {why}")]
    UnsafeTemp { path: PathBuf, why: &'static str },
    #[error("{path} is not a folder")]
    NotAFolder { path: PathBuf },
    #[error("cannot write to the folder {path}")]
    NotWritable { path: PathBuf, source: io::Error },
    #[error("cannot {action} {path}")]
    Io {
        action: &'static str,
        path: PathBuf,
        source: io::Error,
    },
}

/// The directory types visible to clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DirType {
    Output,
    Temp,
    Input,
}

impl DirType {
    /// Exactly `output`, `temp` or `input`; anything else is no type.
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            "output" => Some(Self::Output),
            "temp" => Some(Self::Temp),
            "input" => Some(Self::Input),
            _ => None,
        }
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Output => "output",
            Self::Temp => "temp",
            Self::Input => "input",
        }
    }
}

impl Dirs {
    /// Applies the options: the base directory resets all defaults, specific directories win over it.
    pub fn resolve(options: &DirOptions) -> Result<Self, DirError> {
        let program = absolute(&options.program);
        let base = options
            .base
            .as_deref()
            .map_or_else(|| program.clone(), absolute);
        if base.metadata().is_ok_and(|found| !found.is_dir()) {
            return Err(DirError::NotAFolder { path: base });
        }
        let pick = |given: &Option<PathBuf>, name: &str| {
            given.as_deref().map_or_else(|| base.join(name), absolute)
        };
        let user = pick(&options.user, "user");
        if options.user.is_some() && !user.is_dir() {
            return Err(DirError::NoUserDir { path: user });
        }
        Ok(Self {
            models: base.join("models"),
            custom_nodes: vec![base.join("custom_nodes")],
            output: pick(&options.output, "output"),
            input: pick(&options.input, "input"),
            temp: options
                .temp
                .as_deref()
                .map_or_else(|| base.clone(), absolute)
                .join("temp"),
            user,
            web_versions: program.join("web_custom_versions"),
            default_input: options.input.is_none(),
            program,
            base,
        })
    }

    /// All defaults below one directory; for tests and tools.
    pub fn under(base: &Path) -> Self {
        let options = DirOptions {
            program: base.to_path_buf(),
            ..DirOptions::default()
        };
        Self::resolve(&options).expect("only a given user directory can fail")
    }

    pub fn get(&self, dir_type: DirType) -> &Path {
        match dir_type {
            DirType::Output => &self.output,
            DirType::Temp => &self.temp,
            DirType::Input => &self.input,
        }
    }

    /// The directory for a client-visible type name.
    pub fn by_type(&self, name: &str) -> Option<&Path> {
        DirType::parse(name).map(|t| self.get(t))
    }

    /// Creates the default input directory; failure is only logged, a read-only tree can still be used.
    pub fn create_input(&self) {
        if self.default_input
            && let Err(error) = std::fs::create_dir_all(&self.input)
        {
            tracing::warn!(path = %self.input.display(), %error, "cannot create the input directory");
        }
    }

    pub fn create_temp(&self) -> Result<(), DirError> {
        create("create", &self.temp)
    }

    pub fn create_output(&self) -> Result<(), DirError> {
        create("create", &self.output)
    }

    pub fn create_user(&self) -> Result<(), DirError> {
        create("create", &self.user)
    }

    /// Deletes the temp directory with its content, and nothing else: a link is unlinked, not followed, and a
    /// directory that holds (or is) something valuable is refused.
    pub fn clear_temp(&self) -> Result<(), DirError> {
        let refuse = |why| {
            Err(DirError::UnsafeTemp {
                path: self.temp.clone(),
                why,
            })
        };
        let meta = match self.temp.symlink_metadata() {
            Ok(m) => m,
            Err(e) if is_missing(&e) => return Ok(()),
            Err(source) => {
                return Err(DirError::Io {
                    action: "read",
                    path: self.temp.clone(),
                    source,
                });
            }
        };
        if meta.file_type().is_symlink() {
            return std::fs::remove_file(&self.temp).map_err(|source| DirError::Io {
                action: "remove link",
                path: self.temp.clone(),
                source,
            });
        }
        if !meta.is_dir() {
            return refuse("it is not a directory");
        }
        let real = self.temp.canonicalize().map_err(|source| DirError::Io {
            action: "resolve",
            path: self.temp.clone(),
            source,
        })?;
        if real.parent().is_none() {
            return refuse("it is the root of the file system");
        }
        let holds = |p: &Path| p.canonicalize().is_ok_and(|p| p.starts_with(&real));
        if home().is_some_and(|h| holds(&h)) {
            return refuse("it contains the home directory");
        }
        let valuable = [
            &self.program,
            &self.base,
            &self.models,
            &self.output,
            &self.input,
            &self.user,
        ];
        if valuable
            .into_iter()
            .chain(&self.custom_nodes)
            .any(|p| holds(p))
        {
            return refuse("it contains another directory of this program");
        }
        // remove_dir_all does not follow links inside the tree.
        std::fs::remove_dir_all(&self.temp).map_err(|source| DirError::Io {
            action: "delete",
            path: self.temp.clone(),
            source,
        })
    }
}

/// Whether files can be made in a folder, or, where it does not exist yet, in the folder that it would be made in. A file is
/// made and removed to find out: permissions alone do not tell of read-only disks and of file systems with rules of their
/// own.
pub fn check_writable(folder: &Path) -> Result<(), DirError> {
    let refused = |source| DirError::NotWritable {
        path: folder.to_path_buf(),
        source,
    };
    for place in folder.ancestors() {
        match place.metadata() {
            Ok(found) if found.is_dir() => {
                return TempFile::create(place).map(drop).map_err(refused);
            }
            Ok(_) => {
                return Err(DirError::NotAFolder {
                    path: place.to_path_buf(),
                });
            }
            // Below a file nothing is found either; the file itself is the next ancestor.
            Err(e) if is_missing(&e) => {}
            Err(e) => return Err(refused(e)),
        }
    }
    Err(refused(io::ErrorKind::NotFound.into()))
}

fn create(action: &'static str, path: &Path) -> Result<(), DirError> {
    std::fs::create_dir_all(path).map_err(|source| DirError::Io {
        action,
        path: path.to_path_buf(),
        source,
    })
}

/// The home directory, where the environment names one.
pub(crate) fn home() -> Option<PathBuf> {
    std::env::home_dir().filter(|p| p.is_absolute())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_and_overrides() {
        let d = Dirs::under(Path::new("/opt/fresco"));
        assert_eq!(d.models, Path::new("/opt/fresco/models"));
        assert_eq!(d.temp, Path::new("/opt/fresco/temp"));
        assert_eq!(d.custom_nodes, [PathBuf::from("/opt/fresco/custom_nodes")]);
        let o = DirOptions {
            program: "/opt/fresco".into(),
            base: Some("/data".into()),
            output: Some("/out".into()),
            temp: Some("/scratch".into()),
            ..DirOptions::default()
        };
        let d = Dirs::resolve(&o).unwrap();
        assert_eq!(d.input, Path::new("/data/input"));
        assert_eq!(d.output, Path::new("/out"));
        assert_eq!(d.temp, Path::new("/scratch/temp"));
        assert_eq!(d.user, Path::new("/data/user"));
        assert_eq!(d.web_versions, Path::new("/opt/fresco/web_custom_versions"));
    }

    #[test]
    fn a_given_user_directory_must_exist() {
        let o = DirOptions {
            program: "/p".into(),
            user: Some("/does/not/exist".into()),
            ..DirOptions::default()
        };
        assert!(matches!(Dirs::resolve(&o), Err(DirError::NoUserDir { .. })));
    }

    #[test]
    fn a_base_must_not_be_a_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let o = DirOptions {
            base: Some(file.path().into()),
            ..DirOptions::default()
        };
        assert!(
            matches!(Dirs::resolve(&o), Err(DirError::NotAFolder { path }) if path == file.path())
        );
    }

    #[test]
    fn folders_that_cannot_be_written_are_found_before_they_are_needed() {
        let dir = tempfile::tempdir().unwrap();
        let later = dir.path().join("a/b");
        check_writable(&later).unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        let file = dir.path().join("file");
        std::fs::write(&file, "x").unwrap();
        for place in [file.clone(), file.join("output")] {
            let error = check_writable(&place).unwrap_err();
            assert!(matches!(&error, DirError::NotAFolder { path } if *path == file));
        }
        // Nobody makes files there, whoever it is.
        #[cfg(target_os = "linux")]
        {
            let place = Path::new("/sys/fresco/output");
            let error = check_writable(place).unwrap_err();
            assert!(matches!(&error, DirError::NotWritable { path, .. } if path == place));
        }
    }

    #[test]
    fn type_names_are_exact() {
        let d = Dirs::under(Path::new("/b"));
        assert_eq!(d.by_type("output"), Some(Path::new("/b/output")));
        assert_eq!(d.by_type("temp"), Some(Path::new("/b/temp")));
        assert_eq!(d.by_type("input"), Some(Path::new("/b/input")));
        for bad in ["", "Output", "models", "output ", "../input"] {
            assert_eq!(d.by_type(bad), None);
        }
    }

    #[test]
    fn temp_is_cleared_and_made_again() {
        let dir = tempfile::tempdir().unwrap();
        let d = Dirs::under(dir.path());
        d.clear_temp().unwrap();
        d.create_temp().unwrap();
        d.create_input();
        assert!(d.input.is_dir());
        std::fs::write(d.temp.join("x"), "x").unwrap();
        d.clear_temp().unwrap();
        assert!(!d.temp.exists() && d.input.exists());
    }

    #[test]
    fn temp_that_holds_the_base_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().join("temp/base");
        std::fs::create_dir_all(base.join("output")).unwrap();
        let o = DirOptions {
            program: base.clone(),
            temp: Some(dir.path().into()),
            ..DirOptions::default()
        };
        let d = Dirs::resolve(&o).unwrap();
        assert!(matches!(d.clear_temp(), Err(DirError::UnsafeTemp { .. })));
        assert!(base.join("output").exists());
    }

    #[cfg(unix)]
    #[test]
    fn a_linked_temp_is_unlinked_only() {
        let dir = tempfile::tempdir().unwrap();
        let precious = dir.path().join("precious");
        std::fs::create_dir(&precious).unwrap();
        std::fs::write(precious.join("x"), "x").unwrap();
        let base = dir.path().join("base");
        std::fs::create_dir(&base).unwrap();
        let d = Dirs::under(&base);
        std::os::unix::fs::symlink(&precious, &d.temp).unwrap();
        d.clear_temp().unwrap();
        assert!(precious.join("x").exists() && !d.temp.exists());
    }

    #[test]
    fn a_file_in_place_of_temp_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let d = Dirs::under(dir.path());
        std::fs::write(&d.temp, "x").unwrap();
        assert!(matches!(d.clear_temp(), Err(DirError::UnsafeTemp { .. })));
    }
}
