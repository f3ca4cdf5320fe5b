//! Finds the official editor, workflow templates and node documentation among installed Python packages. Nothing is
//! imported: a package is a folder, its version the name of another.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use crate::env_vars;

/// An interpreter that takes longer is not asked again.
const PATIENCE: Duration = Duration::from_secs(5);

/// Prints where packages are, one folder a line.
const ASK: &str = "import sys\nprint('\\n'.join(p for p in sys.path if p))";

/// Folders that may hold packages, best first.
#[derive(Debug, Default)]
pub(crate) struct Sites(Vec<PathBuf>);

impl Sites {
    /// Looks where `given` says, or else in the active environment, beside the base directory, and where the `python3` of
    /// the search path looks.
    pub(crate) fn find(given: Option<&Path>, base: &Path) -> Self {
        let mut sites = Self::default();
        if let Some(given) = given {
            sites.add_any(given);
            return sites;
        }
        let active = [env_vars::VIRTUAL_ENV, env_vars::CONDA_PREFIX].map(env_vars::path);
        let beside = [base.join("venv"), base.join(".venv")];
        for environment in active.into_iter().flatten().chain(beside) {
            sites.add_environment(&environment);
        }
        for program in ["python3", "python"] {
            if sites.add_interpreter(Path::new(program)) {
                break;
            }
        }
        sites
    }

    fn add(&mut self, folder: PathBuf) {
        if folder.is_dir() && !self.0.contains(&folder) {
            self.0.push(folder);
        }
    }

    /// A `site-packages` folder, an environment, or an interpreter.
    fn add_any(&mut self, path: &Path) {
        if path.is_dir() {
            let before = self.0.len();
            self.add_environment(path);
            if self.0.len() == before {
                self.add(path.to_path_buf());
            }
        } else {
            self.add_interpreter(path);
        }
    }

    fn add_environment(&mut self, root: &Path) {
        self.add(root.join("Lib").join("site-packages"));
        let mut versions: Vec<_> = std::fs::read_dir(root.join("lib"))
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path().join("site-packages"))
            .collect();
        // The folder order of a disk is no order.
        versions.sort_unstable();
        versions.reverse();
        for folder in versions {
            self.add(folder);
        }
    }

    /// Asks an interpreter; false if there is none or it does not answer.
    fn add_interpreter(&mut self, program: &Path) -> bool {
        let Some(answer) = ask(program) else {
            return false;
        };
        for line in answer.lines() {
            self.add(PathBuf::from(line));
        }
        true
    }

    fn package(&self, name: &str) -> Option<PathBuf> {
        self.0
            .iter()
            .map(|site| site.join(name))
            .find(|folder| folder.is_dir())
    }

    /// The version of a distribution, from the name of its `dist-info` folder.
    fn version(&self, distribution: &str) -> Option<String> {
        self.0.iter().find_map(|site| {
            let entries = std::fs::read_dir(site).ok()?;
            entries.flatten().find_map(|entry| {
                let name = entry.file_name().into_string().ok()?;
                let rest = name
                    .strip_suffix(".dist-info")?
                    .strip_prefix(distribution)?;
                rest.strip_prefix('-').map(str::to_owned)
            })
        })
    }

    pub(crate) fn front_end(&self) -> Option<Package> {
        let folder = self.package("comfyui_frontend_package")?.join("static");
        let version = self.version("comfyui_frontend_package");
        folder
            .join("index.html")
            .is_file()
            .then_some(Package { folder, version })
    }

    pub(crate) fn docs(&self) -> Option<Package> {
        let folder = self.package("comfyui_embedded_docs")?.join("docs");
        let version = self.version("comfyui_embedded_docs");
        folder.is_dir().then_some(Package { folder, version })
    }

    pub(crate) fn templates(&self) -> Option<Templates> {
        let version = self.version("comfyui_workflow_templates");
        let main = self.package("comfyui_workflow_templates")?;
        let parts = version.as_deref().and_then(three_numbers);
        if parts.is_none_or(|v| v < [0, 3, 0]) {
            let folder = main.join("templates");
            return folder.is_dir().then_some(Templates {
                version,
                files: TemplateFiles::Folder(folder),
            });
        }
        // Since 0.3.0 the files are spread over packages, by kind of media.
        let mut folders: Vec<_> = self
            .0
            .iter()
            .flat_map(|site| std::fs::read_dir(site).into_iter().flatten().flatten())
            .filter(|entry| {
                entry
                    .file_name()
                    .to_string_lossy()
                    .starts_with("comfyui_workflow_templates")
            })
            .map(|entry| entry.path().join("templates"))
            .collect();
        folders.sort_unstable();
        let mut files: Vec<(String, PathBuf)> = folders
            .into_iter()
            .flat_map(|folder| std::fs::read_dir(folder).into_iter().flatten().flatten())
            .filter(|entry| entry.path().is_file())
            .filter_map(|entry| Some((entry.file_name().into_string().ok()?, entry.path())))
            .collect();
        files.sort_unstable();
        files.dedup_by(|a, b| a.0 == b.0);
        Some(Templates {
            version,
            files: TemplateFiles::Files(files),
        })
    }
}

/// An installed package that is a folder of files to serve.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Package {
    pub(crate) folder: PathBuf,
    pub(crate) version: Option<String>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Templates {
    pub(crate) version: Option<String>,
    pub(crate) files: TemplateFiles,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum TemplateFiles {
    Folder(PathBuf),
    /// Name to file, sorted.
    Files(Vec<(String, PathBuf)>),
}

fn three_numbers(version: &str) -> Option<[u32; 3]> {
    let mut parts = version.split('.').map(|p| p.parse().ok());
    let numbers = [parts.next()??, parts.next()??, parts.next()??];
    Some(numbers)
}

fn ask(program: &Path) -> Option<String> {
    let child = Command::new(program)
        .args(["-c", ASK])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let (sender, receiver) = mpsc::channel();
    let id = child.id();
    // A thread of its own, because a pipe has no deadline. If the interpreter hangs, both stay behind and end with us.
    std::thread::Builder::new()
        .name("python".into())
        .spawn(move || {
            let _ = sender.send(child.wait_with_output());
        })
        .ok()?;
    match receiver.recv_timeout(PATIENCE) {
        Ok(Ok(output)) if output.status.success() => String::from_utf8(output.stdout).ok(),
        Ok(_) => None,
        Err(_) => {
            tracing::warn!(program = %program.display(), process = id, "Python does not answer; its packages are not used");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn install(root: &Path, files: &[&str]) -> PathBuf {
        let site = root.join("lib/python3.12/site-packages");
        for file in files {
            let path = site.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "x").unwrap();
        }
        site
    }

    #[test]
    fn finds_packages_in_an_environment_or_a_folder() {
        let dir = tempfile::tempdir().unwrap();
        let site = install(
            dir.path(),
            &[
                "comfyui_frontend_package/static/index.html",
                "comfyui_frontend_package-1.35.9.dist-info/METADATA",
                "comfyui_embedded_docs/docs/KSampler/en.md",
                "comfyui_embedded_docs-0.3.1.dist-info/METADATA",
                "comfyui_workflow_templates/__init__.py",
                "comfyui_workflow_templates-0.7.64.dist-info/METADATA",
                "comfyui_workflow_templates_core-0.3.5.dist-info/METADATA",
                "comfyui_workflow_templates_core/templates/index.json",
                "comfyui_workflow_templates_media_image/templates/a.json",
                "comfyui_workflow_templates_media_image/templates/a-1.webp",
            ],
        );
        for given in [dir.path(), &site] {
            let sites = Sites::find(Some(given), Path::new("/nowhere"));
            let front_end = sites.front_end().unwrap();
            assert_eq!(front_end.version.as_deref(), Some("1.35.9"));
            assert_eq!(
                front_end.folder,
                site.join("comfyui_frontend_package/static")
            );
            assert_eq!(sites.docs().unwrap().version.as_deref(), Some("0.3.1"));
            let templates = sites.templates().unwrap();
            assert_eq!(templates.version.as_deref(), Some("0.7.64"));
            let TemplateFiles::Files(files) = templates.files else {
                panic!("not files")
            };
            let names: Vec<_> = files.iter().map(|(name, _)| name.as_str()).collect();
            assert_eq!(names, ["a-1.webp", "a.json", "index.json"]);
        }
    }

    #[test]
    fn old_templates_are_one_folder_and_absent_packages_are_absent() {
        let dir = tempfile::tempdir().unwrap();
        let site = install(
            dir.path(),
            &[
                "comfyui_workflow_templates/templates/index.json",
                "comfyui_workflow_templates-0.2.11.dist-info/METADATA",
                "comfyui_frontend_package/empty",
            ],
        );
        let sites = Sites::find(Some(dir.path()), Path::new("/nowhere"));
        let folder = TemplateFiles::Folder(site.join("comfyui_workflow_templates/templates"));
        assert_eq!(sites.templates().unwrap().files, folder);
        assert_eq!(sites.front_end(), None);
        assert_eq!(sites.docs(), None);
        let none = Sites::find(Some(Path::new("/does/not/exist")), Path::new("/nowhere"));
        assert_eq!(none.templates(), None);
    }

    #[test]
    fn an_interpreter_is_asked_where_it_looks() {
        let dir = tempfile::tempdir().unwrap();
        let site = install(dir.path(), &["comfyui_frontend_package/static/index.html"]);
        let fake = dir.path().join("python");
        fs::write(
            &fake,
            format!("#!/bin/sh\necho /does/not/exist\necho {}\n", site.display()),
        )
        .unwrap();
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt as _;
            fs::set_permissions(&fake, fs::Permissions::from_mode(0o755)).unwrap();
            let sites = Sites::find(Some(&fake), Path::new("/nowhere"));
            assert!(sites.front_end().is_some());
        }
    }
}
