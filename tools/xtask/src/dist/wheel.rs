//! A Python wheel that holds the program, so that `pip install` or `uvx` put it on the path: no Python of ours is in it.
//!
//! Scripts of a wheel go to the folder of programs, data to the prefix above it, where the program looks for its starter model
//! (`share/fresco/starter`).

use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use sha2::{Digest, Sha256};

use super::{copy, files_below, zip};
use crate::{
    cross::{ARM_LINUX, WINDOWS},
    licences, tree,
};

/// The texts that the licences ask to pass on, below the folder of a wheel's licences.
const LICENCES: &[(&str, &str)] = &[
    ("LICENSE-MIT", "LICENSE-MIT"),
    ("LICENSE-APACHE", "LICENSE-APACHE"),
    ("NOTICE", "NOTICE"),
    ("web/dist/licenses.md", "licenses-of-the-page.md"),
];
const LICENCES_OF_PROGRAM: &str = "licenses-of-the-program.md";

const DESCRIPTION: &str = "\
# Fresco

One program that runs ComfyUI workflows: the page, the graph engine, the HTTP and WebSocket interface, the diffusion runtime and the
memory manager, written in Rust. It needs no Python to run; this package puts the program `fresco` onto the path, with a small
model for the first picture.

```sh
fresco           # then open http://127.0.0.1:8188
fresco doctor    # what was found here: devices, folders, models
```
";

/// Puts the wheel of a system together below `folder`.
pub(super) fn make(
    target: &str,
    version: &str,
    program: &Path,
    folder: &Path,
    time: &str,
) -> Result<PathBuf> {
    let tag = format!("py3-none-{}", platform(target, program)?);
    let name = format!("fresco-{version}-{tag}.whl");
    let root = folder.join("wheel");
    if root.exists() {
        fs::remove_dir_all(&root)?;
    }
    let data = root.join(format!("fresco-{version}.data"));
    let info = root.join(format!("fresco-{version}.dist-info"));
    let texts = info.join("licenses");
    let scripts = data.join("scripts");
    for dir in [&texts, &scripts] {
        fs::create_dir_all(dir)?;
    }
    let shown = program.file_name().context("a program has a name")?;
    copy(program, &scripts.join(shown))?;
    copy(
        &tree::root().join("starter"),
        &data.join("data/share/fresco/starter"),
    )?;
    for (from, to) in LICENCES {
        copy(&tree::root().join(from), &texts.join(to))?;
    }
    fs::write(
        texts.join(LICENCES_OF_PROGRAM),
        licences::of_program(target)?,
    )?;
    fs::write(info.join("METADATA"), metadata(version))?;
    fs::write(info.join("WHEEL"), wheel(&tag))?;
    let record = record(&root, &info.join("RECORD"))?;
    fs::write(info.join("RECORD"), record)?;
    set_modes(&root, &scripts.join(shown))?;
    let archive = folder.join(name);
    zip(&root, &root, &archive, time)?;
    fs::remove_dir_all(&root)?;
    Ok(archive)
}

/// For which systems pip installs the program.
fn platform(target: &str, program: &Path) -> Result<String> {
    let linux = |processor: &str| -> Result<String> {
        let bytes =
            fs::read(program).with_context(|| format!("cannot read {}", program.display()))?;
        let minor = glibc_minor(&bytes)
            .with_context(|| format!("{} needs no glibc that can be seen", program.display()))?;
        Ok(format!("manylinux_2_{minor}_{processor}"))
    };
    match target {
        super::LINUX => linux("x86_64"),
        ARM_LINUX => linux("aarch64"),
        WINDOWS => Ok("win_amd64".to_owned()),
        // The oldest systems that Rust's standard library runs on.
        super::MAC_ARM => Ok("macosx_11_0_arm64".to_owned()),
        super::MAC_INTEL => Ok("macosx_10_12_x86_64".to_owned()),
        other => bail!("unknown platform of wheels for {other}"),
    }
}

/// The newest `GLIBC_2.N` that a program asks its system for.
fn glibc_minor(program: &[u8]) -> Option<u32> {
    const PREFIX: &[u8] = b"GLIBC_2.";
    program
        .windows(PREFIX.len() + 4)
        .filter(|window| window.starts_with(PREFIX))
        .filter_map(|window| {
            let digits: String = window[PREFIX.len()..]
                .iter()
                .map(|byte| char::from(*byte))
                .take_while(char::is_ascii_digit)
                .collect();
            digits.parse().ok()
        })
        .max()
}

fn metadata(version: &str) -> String {
    let mut text = format!(
        "Metadata-Version: 2.4\nName: fresco\nVersion: {version}\n\
         Summary: Runs ComfyUI workflows: one program, no Python needed\n\
         License-Expression: MIT OR Apache-2.0\n"
    );
    let names = LICENCES.iter().map(|(_, name)| *name);
    for name in names.chain([LICENCES_OF_PROGRAM]) {
        writeln!(text, "License-File: {name}").expect("a String takes all text");
    }
    text + "Requires-Python: >=3.8\nDescription-Content-Type: text/markdown\n\n" + DESCRIPTION
}

fn wheel(tag: &str) -> String {
    format!(
        "Wheel-Version: 1.0\nGenerator: fresco xtask dist\nRoot-Is-Purelib: false\nTag: {tag}\n"
    )
}

/// Digest and size of each file, and a line without them for the record itself.
fn record(root: &Path, record: &Path) -> Result<String> {
    let mut files = files_below(root)?;
    files.retain(|file| file != record);
    let mut text = String::new();
    for file in &files {
        let bytes = fs::read(file)?;
        let digest = URL_SAFE_NO_PAD.encode(Sha256::digest(&bytes));
        writeln!(
            text,
            "{},sha256={digest},{}",
            inside(root, file)?,
            bytes.len()
        )?;
    }
    Ok(text + &inside(root, record)? + ",,\n")
}

/// A path within the wheel, with forward slashes.
fn inside(root: &Path, file: &Path) -> Result<String> {
    let path = file.strip_prefix(root)?.to_string_lossy();
    Ok(path.replace('\\', "/"))
}

/// Equal modes on every machine; the program can be started.
#[cfg(unix)]
fn set_modes(root: &Path, program: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    for file in files_below(root)? {
        let mode = if file == program { 0o755 } else { 0o644 };
        fs::set_permissions(&file, fs::Permissions::from_mode(mode))?;
    }
    Ok(())
}

#[cfg(not(unix))]
fn set_modes(_: &Path, _: &Path) -> Result<()> {
    bail!("wheels are made on Linux and macOS, whose files have modes");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_glibc_counts() {
        let program = b"..GLIBC_2.4\0..GLIBC_2.34\0GLIBC_2.2.5\0GLIBC_PRIVATE\0....";
        assert_eq!(glibc_minor(program), Some(34));
        assert_eq!(glibc_minor(b"GLIBC_2."), None);
    }

    #[test]
    fn a_record_has_every_file_and_itself() {
        let dir = tempfile::tempdir().unwrap();
        let info = dir.path().join("a.dist-info");
        fs::create_dir_all(&info).unwrap();
        fs::write(info.join("WHEEL"), "abc").unwrap();
        fs::write(info.join("RECORD"), "of before").unwrap();
        let text = record(dir.path(), &info.join("RECORD")).unwrap();
        // The digest of "abc" in the standard that defines SHA-256, in the alphabet of URLs.
        assert_eq!(
            text,
            "a.dist-info/WHEEL,sha256=ungWv48Bz-pBQUDeXa4iI7ADYaOWF3qctBD_YfIAFa0,3\na.dist-info/RECORD,,\n"
        );
    }

    #[test]
    fn systems_without_versions_have_fixed_tags() {
        let program = Path::new("not/read");
        assert_eq!(platform(WINDOWS, program).unwrap(), "win_amd64");
        assert_eq!(
            platform(super::super::MAC_ARM, program).unwrap(),
            "macosx_11_0_arm64"
        );
        assert!(platform("sparc-sun-solaris", program).is_err());
    }
}
