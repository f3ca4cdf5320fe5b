//! Which Python runs packs.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The oldest Python that will do.
const OLDEST: (u32, u32) = (3, 10);
/// An interpreter that takes longer to say its version is not used.
const PATIENCE: Duration = Duration::from_secs(10);

/// Where to look.
#[derive(Clone, Debug, Default)]
pub struct Search {
    /// An interpreter or an environment that was asked for.
    pub given: Option<PathBuf>,
    /// Environments that are active, best first.
    pub active: Vec<PathBuf>,
    /// The base folder: environments in or beside it.
    pub base: PathBuf,
}

/// Why packs cannot run.
#[derive(Debug, Clone, thiserror::Error, PartialEq, Eq)]
pub enum NoPython {
    #[error(
        "no Python was found for packs; install Python {}.{} or newer, or name one with --python", OLDEST.0, OLDEST.1
    )]
    None,
    #[error("--python {path}: there is no interpreter there")]
    NotThere { path: PathBuf },
    #[error("{path} is Python {found}, and packs need {}.{} or newer; name another with --python", OLDEST.0, OLDEST.1)]
    TooOld { path: PathBuf, found: String },
}

/// An interpreter that answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interpreter {
    pub path: PathBuf,
    pub version: String,
}

impl Search {
    pub fn find(&self) -> Result<Interpreter, NoPython> {
        if let Some(given) = &self.given {
            let path =
                in_environment(given)
                    .map(from_anywhere)
                    .ok_or_else(|| NoPython::NotThere {
                        path: given.clone(),
                    })?;
            return check(&path).unwrap_or(Err(NoPython::NotThere { path }));
        }
        let beside = [".venv", "venv", "python_embeded", "../python_embeded"]
            .iter()
            .map(|name| self.base.join(name));
        let environments = self.active.iter().cloned().chain(beside);
        let on_path = ["python3", "python"].iter().map(PathBuf::from);
        let mut refused = None;
        for path in environments
            .filter(|e| e.is_dir())
            .filter_map(|e| in_environment(&e))
            .map(from_anywhere)
            .chain(on_path)
        {
            match check(&path) {
                Some(Ok(found)) => return Ok(found),
                Some(Err(error)) => refused = refused.or(Some(error)),
                None => {}
            }
        }
        Err(refused.unwrap_or(NoPython::None))
    }
}

/// The interpreter of an environment, of its `site-packages`, or the file itself.
fn in_environment(path: &Path) -> Option<PathBuf> {
    // A bare name is one of the search path.
    let bare = path.components().count() == 1 && !path.is_dir();
    if path.is_file() || bare {
        return Some(path.to_path_buf());
    }
    if !path.is_dir() {
        return None;
    }
    // `lib/python3.12/site-packages` stands three levels below its environment, `Lib/site-packages` two.
    let roots = path.ancestors().take(4);
    roots
        .flat_map(|root| {
            [
                "bin/python3",
                "bin/python",
                "Scripts/python.exe",
                "python.exe",
            ]
            .iter()
            .map(move |name| root.join(name))
        })
        .find(|program| program.is_file())
}

/// The same program in any folder: the process of the packs starts in the base folder, not in this one. Links stay what they
/// are, because an environment's interpreter is one.
fn from_anywhere(path: PathBuf) -> PathBuf {
    if path.components().count() == 1 && !path.is_file() {
        return path;
    }
    std::path::absolute(&path).unwrap_or(path)
}

/// The version of an interpreter; nothing if it does not answer.
fn check(path: &Path) -> Option<Result<Interpreter, NoPython>> {
    let version = ask_version(path)?;
    let mut parts = version.split('.').map(|part| part.parse().unwrap_or(0));
    let numbers = (parts.next()?, parts.next()?);
    if numbers < OLDEST {
        return Some(Err(NoPython::TooOld {
            path: path.to_path_buf(),
            found: version,
        }));
    }
    Some(Ok(Interpreter {
        path: path.to_path_buf(),
        version,
    }))
}

fn ask_version(path: &Path) -> Option<String> {
    let mut child = Command::new(path)
        .args([
            "-I",
            "-S",
            "-c",
            "import sys; print('%d.%d.%d' % sys.version_info[:3])",
        ])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let began = Instant::now();
    while child.try_wait().ok()?.is_none() {
        if began.elapsed() > PATIENCE {
            let _ = child.kill();
            let _ = child.wait();
            return None;
        }
        crate::worker::nap(Duration::from_millis(2));
    }
    let output = child.wait_with_output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (output.status.success() && text.contains('.')).then_some(text)
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[expect(
        clippy::unwrap_used,
        reason = "a test without its files is a failed test"
    )]
    fn fake(root: &Path, says: &str) -> PathBuf {
        let path = root.join("bin/python3");
        std::fs::create_dir_all(root.join("bin")).unwrap();
        std::fs::write(&path, format!("#!/bin/sh\necho {says}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    #[test]
    fn environments_and_what_is_too_old() {
        let dir = tempfile::tempdir().unwrap();
        let program = fake(dir.path(), "3.12.1");
        let search = |given: &Path| Search {
            given: Some(given.to_path_buf()),
            ..Search::default()
        };
        for given in [dir.path(), &program] {
            let found = search(given).find().unwrap();
            assert_eq!((&found.path, &*found.version), (&program, "3.12.1"));
        }
        let site = dir.path().join("lib/python3.12/site-packages");
        std::fs::create_dir_all(&site).unwrap();
        assert_eq!(search(&site).find().unwrap().path, program);
        let old = tempfile::tempdir().unwrap();
        fake(old.path(), "3.9.7");
        let error = search(old.path()).find().unwrap_err();
        assert!(error.to_string().contains("3.10 or newer"), "{error}");
        let nowhere = search(Path::new("/does/not/exist")).find().unwrap_err();
        assert!(matches!(nowhere, NoPython::NotThere { .. }));
    }
}
