//! `cargo xtask dist`: an archive and a Python wheel for each system, into `target/dist`, with their checksums.
//!
//! Both have the program, the starter model and the licences, archives also the pages. The same source makes the same bytes: paths
//! of the machine are taken out of the program, and files have one owner, one order and the time of the commit. `--check` builds
//! twice, in two folders, and compares. `docs/releasing.md` is the recipe of a release.

mod wheel;

use std::{
    ffi::OsString,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, UNIX_EPOCH},
};

use anyhow::{Context, Result, ensure};
use sha2::{Digest, Sha256};

use crate::{
    cross::{self, ARM_LINUX, STD, WINDOWS},
    install, licences,
    steps::{cargo, command, present, run as run_command},
    tree,
};

const LINUX: &str = "x86_64-unknown-linux-gnu";
const MAC_ARM: &str = "aarch64-apple-darwin";
const MAC_INTEL: &str = "x86_64-apple-darwin";

/// What a person says, and the target that is meant.
const SYSTEMS: &[(&str, &str)] = &[
    ("linux", LINUX),
    ("arm", ARM_LINUX),
    ("windows", WINDOWS),
    ("mac", MAC_ARM),
    ("mac-intel", MAC_INTEL),
];

/// What is in an archive beside the program, with its name there.
const BESIDE: &[(&str, &str)] = &[
    ("README.md", "README.md"),
    ("CHANGELOG.md", "CHANGELOG.md"),
    ("LICENSE-MIT", "LICENSE-MIT"),
    ("LICENSE-APACHE", "LICENSE-APACHE"),
    ("NOTICE", "NOTICE"),
    ("web/dist/licenses.md", "licenses-of-the-page.md"),
    ("starter", "starter"),
    ("docs", "docs"),
];

#[derive(Debug, PartialEq, Eq)]
struct Options {
    targets: Vec<&'static str>,
    check: bool,
    /// A program that is built already, for the only target.
    program: Option<PathBuf>,
}

pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let options = parse_options(arguments)?;
    let dist = tree::target_dir().join("dist");
    fs::create_dir_all(&dist)?;
    let mut releases = Vec::new();
    for target in &options.targets {
        let first = make(target, options.program.as_deref(), &dist.join("first"))?;
        if options.check {
            let second = make(target, options.program.as_deref(), &dist.join("second"))?;
            for (first, second) in first.iter().zip(&second) {
                require_equal(first, second)?;
            }
            println!("dist: {target}: built twice, equal bytes");
        }
        for file in first {
            let name = file.file_name().context("an archive has a name")?;
            let release = dist.join(name);
            fs::rename(&file, &release)?;
            releases.push(release);
        }
    }
    write_checksums(&dist)?;
    for release in &releases {
        println!("dist: {}", release.display());
    }
    Ok(())
}

/// The archive and the wheel of a system, below `folder`.
fn make(target: &str, program: Option<&Path>, folder: &Path) -> Result<[PathBuf; 2]> {
    fs::create_dir_all(folder)?;
    let program = match program {
        Some(program) => program.to_owned(),
        None => build(target, folder)?,
    };
    let (version, time) = (version()?, commit_time()?);
    Ok([
        pack(target, &version, &program, folder, &time)?,
        wheel::make(target, &version, &program, folder, &time)?,
    ])
}

fn parse_options(arguments: &[String]) -> Result<Options> {
    let mut options = Options {
        targets: Vec::new(),
        check: false,
        program: None,
    };
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        match argument.as_str() {
            "--check" => options.check = true,
            "--program" => {
                let path = rest.next().context("--program needs a path")?;
                options.program = Some(PathBuf::from(path));
            }
            name => {
                let system = SYSTEMS.iter().find(|(known, _)| *known == name);
                let (_, target) = system.with_context(|| {
                    let known: Vec<&str> = SYSTEMS.iter().map(|(known, _)| *known).collect();
                    format!("unknown system {name:?}; known are {}", known.join(", "))
                })?;
                options.targets.push(target);
            }
        }
    }
    if options.targets.is_empty() {
        options.targets = match options.program {
            Some(_) => vec![LINUX],
            None => buildable().to_vec(),
        };
    }
    ensure!(
        options.program.is_none() || options.targets.len() == 1,
        "--program is one program, for one system"
    );
    Ok(options)
}

/// The systems that this machine can build for.
fn buildable() -> &'static [&'static str] {
    if cfg!(target_os = "macos") {
        &[MAC_ARM, MAC_INTEL]
    } else {
        &[LINUX, ARM_LINUX, WINDOWS]
    }
}

/// Builds the program for a system into a folder; gives its path.
fn build(target: &str, folder: &Path) -> Result<PathBuf> {
    ensure!(
        buildable().contains(&target),
        "the program for {target} is built on another system: see docs/releasing.md"
    );
    let what = ["build", "--release", "--package", "fresco"];
    let mut command = match target {
        LINUX | MAC_ARM | MAC_INTEL => {
            cargo(&[&what[..], &["--locked", "--target", target]].concat())
        }
        WINDOWS => {
            cross::windows_tools()?;
            cross::cargo(&what, WINDOWS, STD)
        }
        _ => {
            cross::arm_tools()?;
            cross::arm_cargo(&what, STD)
        }
    };
    command
        .env("CARGO_TARGET_DIR", folder)
        .env("RUSTFLAGS", without_paths(folder))
        // SQLite and other parts in C name their files in messages.
        .env(
            "CFLAGS",
            format!("-ffile-prefix-map={}=.", folder.display()),
        )
        .env("SOURCE_DATE_EPOCH", commit_time()?)
        // Names that the compiler makes up for parts of a module have the folder it was built in, as a number.
        .env("CARGO_PROFILE_RELEASE_STRIP", "symbols");
    run_command(&mut command)?;
    let name = if target == WINDOWS {
        "fresco.exe"
    } else {
        "fresco"
    };
    let program = folder.join(target).join("release").join(name);
    ensure!(program.is_file(), "{} was not built", program.display());
    Ok(program)
}

/// Names of folders on this machine become the same names everywhere.
fn without_paths(folder: &Path) -> OsString {
    let mut flags = OsString::new();
    let mut rename = |from: &Path, to: &str| {
        flags.push("--remap-path-prefix=");
        flags.push(from);
        flags.push(format!("={to} "));
    };
    rename(folder, "/target");
    rename(&tree::root(), "/fresco");
    for (variable, to) in [("CARGO_HOME", "/cargo"), ("RUSTUP_HOME", "/rustup")] {
        if let Some(path) = std::env::var_os(variable) {
            rename(Path::new(&path), to);
        }
    }
    if let Some(home) = std::env::home_dir() {
        rename(&home.join(".cargo"), "/cargo");
        rename(&home.join(".rustup"), "/rustup");
    }
    flags
}

/// Seconds since 1970 of the commit that is checked out.
fn commit_time() -> Result<String> {
    let asked = command("git", &["log", "-1", "--format=%ct"]).output();
    let output = asked.context("cannot ask git for the time of the commit")?;
    ensure!(output.status.success(), "git does not know this tree");
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn version() -> Result<String> {
    let text = fs::read_to_string(tree::root().join("Cargo.toml"))?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("version = "));
    let version = line.context("the workspace has no version")?;
    Ok(version.trim_matches('"').to_owned())
}

/// Puts an archive together below `folder`.
fn pack(target: &str, version: &str, program: &Path, folder: &Path, time: &str) -> Result<PathBuf> {
    let name = format!("fresco-{version}-{target}");
    let root = folder.join(&name);
    if root.exists() {
        fs::remove_dir_all(&root)?;
    }
    fs::create_dir_all(&root)?;
    let shown = program.file_name().context("a program has a name")?;
    fs::copy(program, root.join(shown))
        .with_context(|| format!("cannot copy {}", program.display()))?;
    for (from, to) in BESIDE {
        copy(&tree::root().join(from), &root.join(to))?;
    }
    let licences = licences::of_program(target)?;
    fs::write(root.join("licenses-of-the-program.md"), licences)?;
    let sorted = ["--sort=name", "--owner=0", "--group=0", "--numeric-owner"];
    let tar = folder.join(format!("{name}.tar"));
    // The tar of macOS cannot sort.
    let gnu_tar = if present("gtar", "--version") {
        "gtar"
    } else {
        "tar"
    };
    run_command(
        command(gnu_tar, &sorted)
            .arg(format!("--mtime=@{time}"))
            .arg("--mode=u=rwX,go=rX")
            .args(["--format=ustar", "--directory"])
            .arg(folder)
            .arg("--create")
            .arg("--file")
            .arg(&tar)
            .arg(&name),
    )?;
    if target == WINDOWS {
        let archive = folder.join(format!("{name}.zip"));
        zip(folder, &root, &archive, time)?;
        fs::remove_file(&tar)?;
        return Ok(archive);
    }
    // Without the name and the time of the file.
    run_command(command("gzip", &["-9", "--no-name", "--force"]).arg(&tar))?;
    Ok(folder.join(format!("{name}.tar.gz")))
}

/// Packs what is in the folder `inside`, with names relative to `base`.
fn zip(base: &Path, inside: &Path, archive: &Path, time: &str) -> Result<()> {
    if !present("zip", "--version") {
        install::debian_packages(&["zip"])?;
    }
    if archive.exists() {
        fs::remove_file(archive)?;
    }
    let files = files_below(inside)?;
    // The touch of macOS reads no seconds since 1970.
    let moment = UNIX_EPOCH + Duration::from_secs(time.parse().context("a time is a number")?);
    for file in &files {
        fs::File::options()
            .append(true)
            .open(file)?
            .set_modified(moment)?;
    }
    let relative = files.iter().map(|file| file.strip_prefix(base));
    let relative: Vec<_> = relative.collect::<Result<_, _>>()?;
    // No owners and no times of last use; the time zone is in the times.
    run_quietly(
        command("zip", &["-9", "-X", "-q"])
            .arg(archive)
            .args(relative)
            .current_dir(base)
            .env("TZ", "UTC"),
    )
}

fn run_quietly(command: &mut Command) -> Result<()> {
    let status = command.status().context("cannot start a program")?;
    let program = command.get_program().to_string_lossy();
    ensure!(status.success(), "{program}: {status}");
    Ok(())
}

/// All files of a folder and those below it, in the order of their paths.
fn files_below(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            files.extend(files_below(&path)?);
        } else {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    if from.is_dir() {
        fs::create_dir_all(to)?;
        for entry in fs::read_dir(from)? {
            let entry = entry?;
            copy(&entry.path(), &to.join(entry.file_name()))?;
        }
        return Ok(());
    }
    fs::copy(from, to).with_context(|| format!("cannot copy {}", from.display()))?;
    Ok(())
}

fn require_equal(first: &Path, second: &Path) -> Result<()> {
    let (a, b) = (fs::read(first)?, fs::read(second)?);
    ensure!(
        a == b,
        "{} and {} differ: something of the machine or the moment is in them",
        first.display(),
        second.display()
    );
    Ok(())
}

/// Checksums of the files of this release that are there, also of those that were made before, as `sha256sum --check` reads them.
fn write_checksums(dist: &Path) -> Result<()> {
    let prefix = format!("fresco-{}-", version()?);
    let mut names = Vec::new();
    for entry in fs::read_dir(dist)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if entry.file_type()?.is_file() && name.starts_with(&prefix) {
            names.push(name);
        }
    }
    names.sort();
    let mut text = String::new();
    for name in names {
        let digest = Sha256::digest(fs::read(dist.join(&name))?);
        writeln!(text, "{digest:x}  {name}")?;
    }
    fs::write(dist.join("SHA256SUMS"), text)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(text: &str) -> Result<Options> {
        let arguments: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
        parse_options(&arguments)
    }

    #[test]
    fn systems_are_chosen_by_name() {
        assert_eq!(options("").unwrap().targets, buildable());
        let two = options("windows --check linux").unwrap();
        assert_eq!((two.targets, two.check), (vec![WINDOWS, LINUX], true));
        assert_eq!(options("--program a").unwrap().targets, [LINUX]);
        assert_eq!(options("--program a mac").unwrap().targets, [MAC_ARM]);
        assert!(options("--program").is_err());
        assert!(options("--program a linux arm").is_err());
        assert!(options("amiga").unwrap_err().to_string().contains("amiga"));
    }

    #[test]
    fn checksums_are_of_this_version_alone() {
        let dir = tempfile::tempdir().unwrap();
        let name = format!("fresco-{}-x.tar.gz", version().unwrap());
        fs::write(dir.path().join(&name), "abc").unwrap();
        fs::write(dir.path().join("fresco-0.0.0-x.tar.gz"), "old").unwrap();
        write_checksums(dir.path()).unwrap();
        let sums = fs::read_to_string(dir.path().join("SHA256SUMS")).unwrap();
        let digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(sums, format!("{digest}  {name}\n"));
    }
}
