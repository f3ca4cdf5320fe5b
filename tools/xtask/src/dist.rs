//! `cargo xtask dist`: the archives of a release, into `target/dist`.
//!
//! Each has the program, the starter model, the licences and the first page to read. The same source makes the same bytes: paths of
//! the machine are taken out of the program, and files have one owner, one order and the time of the commit. `--check` builds twice,
//! in two folders, and compares.

use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail, ensure};

use crate::{
    cross::{self, ARM_LINUX, STD, WINDOWS},
    install, licences,
    steps::{cargo, command, present, run as run_command},
    tree,
};

const LINUX: &str = "x86_64-unknown-linux-gnu";

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
struct Wanted {
    targets: Vec<&'static str>,
    check: bool,
    /// A program that is built already, for the first of the targets.
    program: Option<PathBuf>,
}

pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let wanted = read(arguments)?;
    let dist = tree::target_dir().join("dist");
    fs::create_dir_all(&dist)?;
    let mut archives = Vec::new();
    for target in &wanted.targets {
        let make = |folder: &str| -> Result<PathBuf> {
            let program = match &wanted.program {
                Some(program) => program.clone(),
                None => build(target, &dist.join(folder))?,
            };
            pack(target, &program, &dist.join(folder))
        };
        let first = make("first")?;
        if wanted.check {
            let second = make("second")?;
            same(&first, &second)?;
            println!("dist: {target}: built twice, equal bytes");
        }
        let name = first.file_name().context("an archive has a name")?;
        let archive = dist.join(name);
        fs::rename(&first, &archive)?;
        archives.push(archive);
    }
    sums(&dist)?;
    for archive in &archives {
        println!("dist: {}", archive.display());
    }
    Ok(())
}

fn read(arguments: &[String]) -> Result<Wanted> {
    let mut wanted = Wanted {
        targets: Vec::new(),
        check: false,
        program: None,
    };
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        match argument.as_str() {
            "--check" => wanted.check = true,
            "--program" => {
                let path = rest.next().context("--program needs a path")?;
                wanted.program = Some(PathBuf::from(path));
            }
            "linux" => wanted.targets.push(LINUX),
            "arm" => wanted.targets.push(ARM_LINUX),
            "windows" => wanted.targets.push(WINDOWS),
            other => bail!("no system {other:?}; there are linux, arm, windows"),
        }
    }
    if wanted.targets.is_empty() {
        wanted.targets = match wanted.program {
            Some(_) => vec![LINUX],
            None => vec![LINUX, ARM_LINUX, WINDOWS],
        };
    }
    ensure!(
        wanted.program.is_none() || wanted.targets.len() == 1,
        "--program is one program, for one system"
    );
    Ok(wanted)
}

/// Builds the program for a system into a folder; gives its path.
fn build(target: &str, folder: &Path) -> Result<PathBuf> {
    let what = ["build", "--release", "--package", "fresco"];
    let mut command = match target {
        LINUX => cargo(&[&what[..], &["--locked", "--target", LINUX]].concat()),
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
fn pack(target: &str, program: &Path, folder: &Path) -> Result<PathBuf> {
    let name = format!("fresco-{}-{target}", version()?);
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
    let time = commit_time()?;
    let sorted = ["--sort=name", "--owner=0", "--group=0", "--numeric-owner"];
    let tar = folder.join(format!("{name}.tar"));
    run_command(
        command("tar", &sorted)
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
        zip(folder, &name, &archive, &time)?;
        fs::remove_file(&tar)?;
        return Ok(archive);
    }
    // Without the name and the time of the file.
    run_command(command("gzip", &["-9", "--no-name", "--force"]).arg(&tar))?;
    Ok(folder.join(format!("{name}.tar.gz")))
}

/// What Windows opens by itself.
fn zip(folder: &Path, name: &str, archive: &Path, time: &str) -> Result<()> {
    if !present("zip", "--version") {
        install::debian_packages(&["zip"])?;
    }
    if archive.exists() {
        fs::remove_file(archive)?;
    }
    let mut files = Vec::new();
    list(&folder.join(name), &mut files)?;
    files.sort();
    for file in &files {
        run_quietly(command("touch", &["--date", &format!("@{time}")]).arg(file))?;
    }
    let relative = files.iter().map(|file| file.strip_prefix(folder));
    let relative: Vec<_> = relative.collect::<Result<_, _>>()?;
    // No owners and no times of last use; the time zone is in the times.
    run_quietly(
        command("zip", &["-9", "-X", "-q"])
            .arg(archive)
            .args(relative)
            .current_dir(folder)
            .env("TZ", "UTC"),
    )
}

fn run_quietly(command: &mut Command) -> Result<()> {
    let status = command.status().context("cannot start a program")?;
    let program = command.get_program().to_string_lossy();
    ensure!(status.success(), "{program}: {status}");
    Ok(())
}

fn list(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            list(&path, files)?;
        } else {
            files.push(path);
        }
    }
    Ok(())
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

fn same(first: &Path, second: &Path) -> Result<()> {
    let (a, b) = (fs::read(first)?, fs::read(second)?);
    ensure!(
        a == b,
        "{} and {} differ: something of the machine or the moment is in them",
        first.display(),
        second.display()
    );
    Ok(())
}

/// Checksums of the archives that are there, also of those that were made before, as `sha256sum --check` reads them.
fn sums(dist: &Path) -> Result<()> {
    let begins = format!("fresco-{}-", version()?);
    let mut names = Vec::new();
    for entry in fs::read_dir(dist)? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            names.push(entry.file_name());
        }
    }
    names.retain(|name| name.to_string_lossy().starts_with(&begins));
    names.sort();
    let mut call = Command::new("sha256sum");
    call.current_dir(dist).args(names);
    let output = call.output().context("cannot start sha256sum")?;
    ensure!(output.status.success(), "sha256sum: {}", output.status);
    fs::write(dist.join("SHA256SUMS"), output.stdout)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(text: &str) -> Result<Wanted> {
        let arguments: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
        read(&arguments)
    }

    #[test]
    fn systems_are_chosen_by_name() {
        assert_eq!(wanted("").unwrap().targets, [LINUX, ARM_LINUX, WINDOWS]);
        let two = wanted("windows --check linux").unwrap();
        assert_eq!((two.targets, two.check), (vec![WINDOWS, LINUX], true));
        assert_eq!(wanted("--program a").unwrap().targets, [LINUX]);
        assert!(wanted("--program").is_err());
        assert!(wanted("--program a linux arm").is_err());
        assert!(wanted("amiga").unwrap_err().to_string().contains("amiga"));
    }
}
