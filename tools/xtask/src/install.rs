//! What the client and front-end jobs need from outside: a browser, Python and npm packages at pinned versions.
//!
//! Everything goes into the cache folder; a stamp file with the pins makes a second run free.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
};

use anyhow::{Context, Result, bail};

use crate::{
    cross,
    steps::{command, present, run},
    tree,
};

pub(crate) const FRONT_ENDS: &[&str] = &["1.35.9", "1.58.1"];
/// Exactly what the lock file says, and no script of any package.
const NPM_CI: &[&str] = &[
    "ci",
    "--ignore-scripts",
    "--no-audit",
    "--no-fund",
    "--loglevel=error",
];
pub(crate) const PYTHON_CLIENTS: &[&str] = &["comfy-cli", "comfy-api-simplified", "comfy-script"];

/// Held by whoever installs something, so that nobody finds it half there.
static INSTALLING: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    // Whoever panicked left a folder without its stamp, which is made anew.
    INSTALLING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Brings what the steps will need while they compile. What fails here is tried again, and told, by the step that needs it.
pub(crate) fn ahead() {
    let works: [fn() -> Result<()>; 10] = [
        web_packages,
        ffprobe,
        nats_server,
        || pack_python().map(drop),
        || kernel_compiler().map(drop),
        cross::windows_tools,
        chromium,
        python_clients,
        node_packages,
        front_ends,
    ];
    thread::spawn(move || {
        for work in works {
            if let Err(error) = work() {
                println!("not brought ahead: {error:#}");
            }
        }
    });
}

pub(crate) fn python_clients() -> Result<()> {
    for name in PYTHON_CLIENTS {
        python_environment(name, &format!("tests/clients/python/{name}.txt"))?;
    }
    Ok(())
}

/// A Python that has the compiler of the CUDA kernels.
pub(crate) fn kernel_compiler() -> Result<PathBuf> {
    let venv = python_environment("cuda", "tools/cuda/requirements.txt")?;
    Ok(venv.join("bin/python"))
}

/// A Python that has what the packs of the tests import.
pub(crate) fn pack_python() -> Result<PathBuf> {
    let venv = python_environment("packs", "tests/packs/requirements.txt")?;
    Ok(venv.join("bin/python"))
}

/// The folder of a Python environment with what a file of pins lists.
fn python_environment(name: &str, pins: &str) -> Result<PathBuf> {
    let pins = tree::root().join(pins);
    let venv = tree::cache_dir().join(format!("venv-{name}"));
    once(&venv, &read(&pins)?, || {
        run(command("python3", &["-m", "venv"]).arg(&venv))?;
        let pip = venv.join("bin/pip");
        run(command(
            &pip.to_string_lossy(),
            &[
                "install",
                "--quiet",
                "--disable-pip-version-check",
                "--no-input",
                "-r",
            ],
        )
        .arg(&pins))
    })?;
    Ok(venv)
}

/// Node resolves packages from where a script lies, so scripts and packages are brought together in the cache.
pub(crate) fn node_packages() -> Result<()> {
    let from = tree::root().join("tests/clients/node");
    let to = tree::cache_dir().join("node");
    fs::create_dir_all(&to)?;
    for name in ["package.json", "package-lock.json"] {
        fs::copy(from.join(name), to.join(name)).with_context(|| format!("cannot copy {name}"))?;
    }
    once(
        &to.join("node_modules"),
        &read(&from.join("package-lock.json"))?,
        || run(command("npm", NPM_CI).current_dir(&to)),
    )?;
    for folder in [from, tree::root().join("tests/frontend")] {
        for entry in fs::read_dir(&folder)? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "mjs") {
                let name = path.file_name().expect("a listed file has a name");
                fs::copy(&path, to.join(name))?;
            }
        }
    }
    Ok(())
}

/// What the page is built from and tried with, beside its sources.
pub(crate) fn web_packages() -> Result<()> {
    let web = tree::root().join("web");
    let modules = web.join("node_modules");
    // Inside the folder, so that nothing of ours lies beside the sources.
    let stamp = modules.join(".fresco-stamp");
    let _alone = alone();
    let pins = read(&web.join("package-lock.json"))?;
    if fs::read_to_string(&stamp).is_ok_and(|found| found == pins) {
        return Ok(());
    }
    if !present("npm", "--version") {
        bail!("npm is not here; building and checking the page needs node 20 or later with npm");
    }
    run(command("npm", NPM_CI).current_dir(&web))?;
    fs::write(&stamp, pins)?;
    Ok(())
}

/// The official front-ends, unpacked from their wheels. They are not ours to ship, only to test against.
pub(crate) fn front_ends() -> Result<()> {
    for version in FRONT_ENDS {
        let folder = front_end(version);
        once(&folder, version, || {
            let wheels = tree::cache_dir().join("wheels");
            let package = format!("comfyui-frontend-package=={version}");
            run(command(
                "python3",
                &[
                    "-m",
                    "pip",
                    "download",
                    "--quiet",
                    "--no-deps",
                    &package,
                    "-d",
                ],
            )
            .arg(&wheels))?;
            let wheel = wheels.join(format!(
                "comfyui_frontend_package-{version}-py3-none-any.whl"
            ));
            run(command("python3", &["-m", "zipfile", "-e"])
                .arg(&wheel)
                .arg(&folder))
        })?;
        if !static_root(version).join("index.html").is_file() {
            bail!("front-end {version}: no index.html in its wheel");
        }
    }
    Ok(())
}

fn front_end(version: &str) -> PathBuf {
    tree::cache_dir().join(format!("frontend-{version}"))
}

pub(crate) fn static_root(version: &str) -> PathBuf {
    front_end(version).join("comfyui_frontend_package/static")
}

pub(crate) fn chromium() -> Result<()> {
    if present("chromium", "--version") {
        return Ok(());
    }
    debian_packages(&["chromium", "fonts-dejavu-core"])
}

/// What others say of films and sound that the program wrote. Tests that ask it are skipped where it cannot be had.
pub(crate) fn ffprobe() -> Result<()> {
    if present("ffprobe", "-version") || !present("apt-get", "--version") {
        return Ok(());
    }
    debian_packages(&["ffmpeg"])
}

/// The broker of workers on other machines. Tests that need it are skipped where it cannot be had.
pub(crate) fn nats_server() -> Result<()> {
    let here = |path: &&str| present(path, "--version");
    if ["nats-server", "/usr/sbin/nats-server"].iter().any(here) || !present("apt-get", "--version")
    {
        return Ok(());
    }
    debian_packages(&["nats-server"])
}

/// What compiles the kernels of GPUs for the processor.
pub(crate) fn cpp_compiler() -> Result<()> {
    if present("g++", "--version") {
        return Ok(());
    }
    debian_packages(&["g++"])
}

/// Installs those of Debian's packages that are not here yet.
pub(crate) fn debian_packages(names: &[&str]) -> Result<()> {
    let _alone = alone();
    let missing: Vec<&str> = names
        .iter()
        .copied()
        .filter(|name| !present_package(name))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    if !present("apt-get", "--version") {
        bail!(
            "not here: {}; this command installs Debian's packages and runs on Debian and its relatives only",
            missing.join(", ")
        );
    }
    run(&mut command("apt-get", &["update", "-qq"]))?;
    let options = ["install", "-y", "-qq", "--no-install-recommends"];
    run(command("apt-get", &options)
        .args(missing)
        .env("DEBIAN_FRONTEND", "noninteractive"))
}

fn present_package(name: &str) -> bool {
    Command::new("dpkg-query")
        .args(["--show", "--showformat=${db:Status-Status}", name])
        .output()
        .is_ok_and(|answer| answer.status.success() && answer.stdout == b"installed")
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

/// Runs `work` unless `folder` was already made from the same pins.
fn once(folder: &Path, pins: &str, work: impl FnOnce() -> Result<()>) -> Result<()> {
    let mut stamp = folder.as_os_str().to_owned();
    stamp.push(".stamp");
    let stamp = PathBuf::from(stamp);
    let _alone = alone();
    if folder.is_dir() && fs::read_to_string(&stamp).is_ok_and(|found| found == pins) {
        return Ok(());
    }
    if folder.is_dir() {
        fs::remove_dir_all(folder)?;
    }
    fs::create_dir_all(tree::cache_dir())?;
    work()?;
    fs::write(&stamp, pins)?;
    Ok(())
}
