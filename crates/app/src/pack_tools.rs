//! `fresco packs install`, `update`, `enable`, `disable`: what changes the folder of packs, and only when somebody asks.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail};
use fresco_python::Search;

/// The ending that switches a pack off.
pub(crate) const OFF: &str = ".disabled";
/// Unpacks archives without leaving their folder.
const UNPACK: &str = include_str!("unpack_pack.py");

/// Where packs are, and what runs.
pub(crate) struct PackFolder {
    pub(crate) roots: Vec<PathBuf>,
    pub(crate) base: PathBuf,
    pub(crate) search: Search,
}

/// Words in the source of a pack that mean the inside of networks.
const WORDS: [(&str, &str); 10] = [
    ("set_model_attn1_patch", "patches of attention"),
    ("set_model_attn2_patch", "patches of attention"),
    ("set_model_attn1_replace", "patches of attention"),
    ("set_model_attn2_replace", "patches of attention"),
    ("set_model_patch_replace", "patches of blocks"),
    ("set_model_unet_function_wrapper", "wrappers of networks"),
    ("add_wrapper_with_key", "wrappers of networks"),
    ("set_injections", "injections into networks"),
    (".diffusion_model", "the network itself"),
    (".first_stage_model", "the network itself"),
];

/// What in a source is called for every step, and what holds models of the program.
const PER_STEP: [&str; 7] = [
    "set_model_sampler_cfg_function",
    "set_model_sampler_post_cfg_function",
    "set_model_sampler_pre_cfg_function",
    "KSAMPLER(",
    "CFGGuider",
    "generate_noise",
    "SCHEDULER_HANDLERS",
];
const MODELS: [&str; 12] = [
    "\"MODEL\"",
    "\"CLIP\"",
    "\"VAE\"",
    "\"CONDITIONING\"",
    "\"CONTROL_NET\"",
    "'MODEL'",
    "'CLIP'",
    "'VAE'",
    "io.Model",
    "common_ksampler",
    "comfy.sd",
    "load_checkpoint",
];

/// How deep a pack reaches, as its source looks; the levels of `docs/packs.md`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Reach {
    pub(crate) level: &'static str,
    /// What needs the inside of networks, which is not there.
    pub(crate) inside: Vec<&'static str>,
}

impl PackFolder {
    fn find(&self, name: &str) -> Option<PathBuf> {
        let places = self.roots.iter().map(|root| root.join(name));
        places.into_iter().find(|place| place.exists())
    }

    /// Switches a pack on or off by its name.
    pub(crate) fn switch(&self, name: &str, on: bool) -> anyhow::Result<String> {
        let name = check_name(name.strip_suffix(OFF).unwrap_or(name))?;
        let plain = name.to_owned();
        let off = format!("{name}{OFF}");
        let (from, to) = if on { (&off, &plain) } else { (&plain, &off) };
        let Some(path) = self.find(from) else {
            if self.find(to).is_some() {
                let state = if on { "on" } else { "off" };
                return Ok(format!("{name} is switched {state} already"));
            }
            bail!("unknown pack {name} in {}", self.places());
        };
        let target = path.with_file_name(to);
        if target.exists() {
            bail!(
                "{} is there as well as {}: remove one of them",
                target.display(),
                path.display()
            );
        }
        std::fs::rename(&path, &target)
            .with_context(|| format!("cannot rename {}", path.display()))?;
        let state = if on { "on" } else { "off" };
        Ok(format!(
            "{name} is switched {state}; restart the server for it"
        ))
    }

    fn places(&self) -> String {
        let places: Vec<String> = self.roots.iter().map(|r| r.display().to_string()).collect();
        places.join(", ")
    }

    /// Puts a pack into the folder: from a folder, an archive, a wheel, or a repository.
    pub(crate) fn install(&self, source: &str) -> anyhow::Result<String> {
        let root = self
            .roots
            .first()
            .context("there is no folder for packs; make custom_nodes in the base folder")?;
        std::fs::create_dir_all(root).with_context(|| format!("cannot make {}", root.display()))?;
        let name = name_of(source)?;
        let target = root.join(&name);
        if target.exists() || root.join(format!("{name}{OFF}")).exists() {
            bail!(
                "{name} is installed already in {}; `fresco packs update {name}` brings it up to date",
                root.display()
            );
        }
        // Nothing half done is left under the pack's name.
        let part = root.join(format!(".{name}.part"));
        if part.exists() {
            remove(&part)?;
        }
        let path = Path::new(source);
        let made = if is_repository(source) {
            run(
                Command::new("git")
                    .args(["clone", "--depth", "1", "--", source])
                    .arg(&part),
                "git",
            )
        } else if path.is_dir() {
            copy(path, &part)
        } else if path.extension().is_some_and(|e| e == "py") && path.is_file() {
            std::fs::copy(path, &part)
                .map(drop)
                .with_context(|| format!("cannot copy {}", path.display()))
        } else if path.is_file() {
            let python = self.search.find()?;
            std::fs::create_dir(&part)
                .with_context(|| format!("cannot make {}", part.display()))?;
            run(
                Command::new(python.path)
                    .args(["-I", "-c", UNPACK])
                    .arg(path)
                    .arg(&part),
                "the archive",
            )
        } else {
            bail!("{source} is neither a folder, nor a file, nor the address of a repository");
        };
        let placed = made.and_then(|()| {
            std::fs::rename(&part, &target)
                .with_context(|| format!("cannot name {}", target.display()))
        });
        if let Err(error) = placed {
            let _ = remove(&part);
            return Err(error);
        }
        Ok(format!("{name} is installed in {}", target.display()))
    }

    /// Brings a pack that came from a repository up to date.
    pub(crate) fn update(&self, name: &str) -> anyhow::Result<String> {
        let name = check_name(name)?;
        let path = self
            .find(name)
            .with_context(|| format!("unknown pack {name} in {}", self.places()))?;
        if !path.join(".git").exists() {
            bail!(
                "{name} did not come from a repository: install it again from where it came, after removing {}",
                path.display()
            );
        }
        run(
            Command::new("git")
                .arg("-C")
                .arg(&path)
                .args(["pull", "--ff-only"]),
            "git",
        )?;
        Ok(format!("{name} is up to date; restart the server for it"))
    }

    /// Installs what all packs require, resolved together, into the environment beside the base folder. Never anywhere else.
    pub(crate) fn requirements(&self, vcs: bool) -> anyhow::Result<String> {
        let files = self.requirement_files();
        if files.is_empty() {
            return Ok("no pack requires anything".to_owned());
        }
        if !vcs {
            for file in &files {
                let text = std::fs::read_to_string(file)
                    .with_context(|| format!("cannot read {}", file.display()))?;
                if let Some(line) = text.lines().find(|line| from_repository(line)) {
                    bail!(
                        "{} wants {:?}, which runs code of a repository while it is installed; --allow-vcs permits it",
                        file.display(),
                        line.trim()
                    );
                }
            }
        }
        let environment = self.base.join(".venv");
        let uv = Command::new("uv").arg("--version").output();
        let uv = uv.is_ok_and(|output| output.status.success());
        if !environment.is_dir() {
            if uv {
                run(Command::new("uv").arg("venv").arg(&environment), "uv")?;
            } else {
                let python = self.search.find()?;
                run(
                    Command::new(python.path)
                        .args(["-m", "venv"])
                        .arg(&environment),
                    "venv",
                )?;
            }
        }
        let python = Search {
            given: Some(environment.clone()),
            ..Search::default()
        }
        .find()?
        .path;
        let mut command = if uv {
            let mut command = Command::new("uv");
            command.args(["pip", "install", "--python"]).arg(&python);
            command
        } else {
            let mut command = Command::new(&python);
            command.args(["-m", "pip", "install"]);
            command
        };
        for file in &files {
            command.arg("-r").arg(file);
        }
        run(&mut command, "the installer of Python packages")?;
        Ok(format!(
            "what {} packs require is installed in {}",
            files.len(),
            environment.display()
        ))
    }

    fn requirement_files(&self) -> Vec<PathBuf> {
        let packs = fresco_python::candidates(&self.roots, &fresco_python::Wanted::default());
        packs
            .into_iter()
            .filter(|pack| !pack.file)
            .map(|pack| pack.path.join("requirements.txt"))
            .filter(|file| file.is_file())
            .collect()
    }
}

/// What a pack's source says that it needs of the program. Read, not run: a word in a comment counts as well.
pub(crate) fn reach(pack: &Path) -> Reach {
    let mut found: Vec<&'static str> = Vec::new();
    let (mut per_step, mut models) = (false, false);
    let mut left = 2000_usize;
    let mut folders = vec![pack.to_path_buf()];
    while let Some(place) = folders.pop() {
        if place.is_dir() {
            let entries = std::fs::read_dir(&place).into_iter().flatten().flatten();
            folders.extend(entries.map(|entry| entry.path()));
            continue;
        }
        if left == 0 || place.extension().is_none_or(|e| e != "py") {
            continue;
        }
        left -= 1;
        let Ok(text) = std::fs::read_to_string(&place) else {
            continue;
        };
        for (word, what) in WORDS {
            if text.contains(word) && !found.contains(&what) {
                found.push(what);
            }
        }
        per_step |= PER_STEP.iter().any(|word| text.contains(word));
        models |= MODELS.iter().any(|word| text.contains(word));
    }
    found.sort_unstable();
    let level = if !found.is_empty() {
        "L3b (inside of networks)"
    } else if per_step {
        "L3a (called for every step)"
    } else if models {
        "L2 (models of the program)"
    } else {
        "L1 (tensors, files, pages)"
    };
    Reach {
        level,
        inside: found,
    }
}

fn check_name(name: &str) -> anyhow::Result<&str> {
    let plain = !name.is_empty()
        && !name.starts_with('.')
        && !name.contains(['/', '\\'])
        && name != "__pycache__";
    if !plain {
        bail!("{name:?} is not a name of a pack");
    }
    Ok(name)
}

fn is_repository(source: &str) -> bool {
    ["https://", "http://", "ssh://", "git://", "file://"]
        .iter()
        .any(|scheme| source.starts_with(scheme))
        || source.starts_with("git@")
}

/// What the pack is called: the last part of where it comes from.
fn name_of(source: &str) -> anyhow::Result<String> {
    let path = source.trim_end_matches(['/', '\\']);
    let name = path.rsplit(['/', '\\', ':']).next().unwrap_or(path);
    let mut name = name.to_owned();
    if is_repository(source) {
        name = name.trim_end_matches(".git").to_owned();
    } else if Path::new(source).is_file() {
        for ending in [".zip", ".tar.gz", ".tgz", ".tar.xz", ".tar"] {
            if let Some(stem) = name.strip_suffix(ending) {
                name = stem.to_owned();
            }
        }
        if let Some(stem) = name.strip_suffix(".whl") {
            name = stem.split('-').next().unwrap_or(stem).to_owned();
        }
    }
    Ok(check_name(&name)?.to_owned())
}

fn from_repository(line: &str) -> bool {
    let line = line.trim();
    !line.starts_with('#')
        && (line.contains("git+") || line.contains("hg+") || line.starts_with("-e "))
}

fn run(command: &mut Command, what: &str) -> anyhow::Result<()> {
    let status = command
        .status()
        .with_context(|| format!("cannot start {what}"))?;
    if !status.success() {
        bail!("{what} failed ({status}); its words are above");
    }
    Ok(())
}

fn remove(path: &Path) -> anyhow::Result<()> {
    let removed = if path.is_dir() {
        std::fs::remove_dir_all(path)
    } else {
        std::fs::remove_file(path)
    };
    removed.with_context(|| format!("cannot remove {}", path.display()))
}

fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    let failed = || format!("cannot copy {}", from.display());
    let kind = from.symlink_metadata().with_context(failed)?.file_type();
    if kind.is_symlink() {
        bail!(
            "{} is a link; packs are copied without links",
            from.display()
        );
    }
    if !kind.is_dir() {
        std::fs::copy(from, to).with_context(failed)?;
        return Ok(());
    }
    std::fs::create_dir(to).with_context(|| format!("cannot make {}", to.display()))?;
    for entry in std::fs::read_dir(from).with_context(failed)? {
        let entry = entry.with_context(failed)?;
        if entry.file_name() != "__pycache__" {
            copy(&entry.path(), &to.join(entry.file_name()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_packs() {
        for (source, want) in [
            ("https://example.org/a/Some-Pack.git", "Some-Pack"),
            ("git@example.org:a/b.git", "b"),
            ("/tmp/not-there/pack/", "pack"),
        ] {
            assert_eq!(name_of(source).unwrap(), want);
        }
        for bad in ["..", "/", "x/.hidden"] {
            assert!(name_of(bad).is_err(), "{bad}");
        }
        assert!(from_repository("git+https://x/y") && from_repository("-e ."));
        assert!(!from_repository("# git+https://x") && !from_repository("numpy>=1"));
    }

    #[test]
    fn packs_are_put_there_whole_and_switched() {
        let dir = tempfile::tempdir().unwrap();
        let source = dir.path().join("source/mine");
        std::fs::create_dir_all(source.join("deep")).unwrap();
        std::fs::write(source.join("__init__.py"), "m.set_model_attn2_patch(1)").unwrap();
        std::fs::write(source.join("deep/x.txt"), "x").unwrap();
        let folder = PackFolder {
            roots: vec![dir.path().join("custom_nodes")],
            base: dir.path().to_path_buf(),
            search: Search::default(),
        };
        folder.install(source.to_str().unwrap()).unwrap();
        let target = dir.path().join("custom_nodes/mine");
        assert!(target.join("deep/x.txt").is_file());
        let found = reach(&target);
        assert_eq!(found.inside, ["patches of attention"]);
        assert!(found.level.starts_with("L3b"));
        let again = folder.install(source.to_str().unwrap()).unwrap_err();
        assert!(again.to_string().contains("installed already"));
        folder.switch("mine", false).unwrap();
        assert!(dir.path().join("custom_nodes/mine.disabled").is_dir() && !target.exists());
        assert!(folder.switch("mine", false).unwrap().contains("already"));
        folder.switch("mine", true).unwrap();
        assert!(target.is_dir());
        assert!(folder.switch("other", true).is_err() && folder.switch("../x", true).is_err());
        let update = folder.update("mine").unwrap_err();
        assert!(update.to_string().contains("repository"));
        assert!(folder.install("/does/not/exist").is_err());
        std::fs::write(target.join("requirements.txt"), "git+https://x/y\n").unwrap();
        let refused = folder.requirements(false).unwrap_err();
        assert!(refused.to_string().contains("--allow-vcs"));
    }
}
