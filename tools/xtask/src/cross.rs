//! `cargo xtask cross`: what other systems make of the source, from a Debian machine on x86-64.
//!
//! A toolchain of rustup has the standard library of one system, and others cannot be fetched everywhere. Debian has a
//! compiler with the source of its standard library, which is then built like any dependency (`-Zbuild-std`), and C compilers
//! for Windows and for Linux on ARM. Whatever such a compiler makes goes into a folder of its own below the build folder.

use std::{path::PathBuf, process::Command};

use anyhow::{Context, Result};

use crate::{
    install,
    steps::{command, run},
    tree,
};

pub(crate) const WINDOWS: &str = "x86_64-pc-windows-gnu";
pub(crate) const ARM_LINUX: &str = "aarch64-unknown-linux-gnu";
const MAC: &str = "aarch64-apple-darwin";

/// A compiler with the source of its standard library.
const RUST: &[&str] = &["rustc-web", "cargo-web", "rust-web-src"];
const WINDOWS_C: &[&str] = &["gcc-mingw-w64-x86-64"];
pub(crate) const WINDOWS_CC: &str = "x86_64-w64-mingw32-gcc";
/// A C compiler, what the program links with, and a processor to run it on.
const ARM_LINUX_C: &[&str] = &[
    "gcc-aarch64-linux-gnu",
    "libc6-dev-arm64-cross",
    "qemu-user",
];
const ARM_LIBRARIES: &str = "/usr/aarch64-linux-gnu";

struct System {
    name: &'static str,
    check: fn() -> Result<()>,
}

const SYSTEMS: &[System] = &[
    System {
        name: "windows",
        check: check_windows,
    },
    System {
        name: "arm",
        check: test_arm,
    },
    System {
        name: "mac",
        check: check_mac,
    },
];

pub(crate) fn cross(arguments: &[String]) -> Result<()> {
    for system in select(arguments)? {
        (system.check)().with_context(|| format!("system {}", system.name))?;
        println!("cross: {} is well", system.name);
    }
    Ok(())
}

fn select(names: &[String]) -> Result<Vec<&'static System>> {
    if names.is_empty() {
        return Ok(SYSTEMS.iter().collect());
    }
    let find = |name: &String| {
        let system = SYSTEMS.iter().find(|system| system.name == name);
        system.with_context(|| {
            let known: Vec<&str> = SYSTEMS.iter().map(|system| system.name).collect();
            format!("no system {name:?}; there are {}", known.join(", "))
        })
    };
    names.iter().map(find).collect()
}

/// The whole program, its parts in C compiled.
pub(crate) fn check_windows() -> Result<()> {
    windows_tools()?;
    run(&mut windows_check())
}

/// What [`check_windows`] runs.
pub(crate) fn windows_check() -> Command {
    cargo(CHECK, WINDOWS, STD)
}

pub(crate) fn windows_tools() -> Result<()> {
    install::debian_packages(RUST)?;
    install::debian_packages(WINDOWS_C)
}

/// The parts whose tests run on an emulated processor, which is slow: kernels, the layers that use them, conversions of
/// numbers and what is asked of the system. Readers of files are the same everywhere.
const ARM_TESTS: &[&str] = &[
    "cpu::",
    "nn::",
    "convert::",
    "dtype::",
    "machine::",
    "pages::",
    "room::",
    "layers::",
    "products::",
];

pub(crate) fn arm_tools() -> Result<()> {
    install::debian_packages(RUST)?;
    install::debian_packages(ARM_LINUX_C)
}

/// For Linux on ARM, with the linker that [`arm_tools`] installs.
pub(crate) fn arm_cargo(arguments: &[&str], library: &str) -> Command {
    let mut cargo = cargo(arguments, ARM_LINUX, library);
    cargo.env(
        "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER",
        "aarch64-linux-gnu-gcc",
    );
    cargo
}

/// The room with kernels for this processor: their tests run.
fn test_arm() -> Result<()> {
    arm_tools()?;
    let what = ["test", "--package", "fresco-tensor", "--lib", "--tests"];
    let runner = format!("qemu-aarch64 -L {ARM_LIBRARIES}");
    run(arm_cargo(&what, "std,panic_abort,test")
        .arg("--")
        .args(ARM_TESTS)
        .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", runner))
}

/// All Rust code is checked. The parts in C need Apple's headers, which cannot be had here, so in place of a compiler stands
/// a script that makes empty files: a check links nothing.
fn check_mac() -> Result<()> {
    install::debian_packages(RUST)?;
    let idle = tree::root().join("tools/xtask/cross/idle-compiler.sh");
    run(cargo(CHECK, MAC, STD)
        .env("CC_aarch64_apple_darwin", &idle)
        .env("AR_aarch64_apple_darwin", &idle)
        .env("RANLIB_aarch64_apple_darwin", &idle)
        // Otherwise Apple's tools are asked for it.
        .env("SDKROOT", "/")
        .env("MACOSX_DEPLOYMENT_TARGET", "11.0"))
}

/// Nothing that is made here runs, so none of it need be fast.
const CHECK: &[&str] = &[
    "check",
    "--package",
    "fresco",
    "--config",
    "profile.dev.package.\"*\".opt-level=0",
    "--config",
    "profile.dev.debug=false",
];

/// What of the standard library is built.
pub(crate) const STD: &str = "std,panic_abort";

/// Debian's cargo with Debian's compiler, for another system.
pub(crate) fn cargo(arguments: &[&str], triple: &str, library: &str) -> Command {
    let mut cargo = command("/usr/bin/cargo", arguments);
    cargo
        .args(["--locked", "--target", triple])
        .arg(format!("-Zbuild-std={library}"))
        .env("RUSTC", "/usr/bin/rustc")
        .env("CARGO_TARGET_DIR", target_dir())
        // Unlocks building the standard library on a stable toolchain.
        .env("RUSTC_BOOTSTRAP", "1");
    cargo
}

pub(crate) fn target_dir() -> PathBuf {
    tree::target_dir().join("cross")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn systems_can_be_picked() {
        let names = |text: &str| -> Result<Vec<&str>> {
            let words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
            Ok(select(&words)?.iter().map(|system| system.name).collect())
        };
        assert_eq!(names("").unwrap(), ["windows", "arm", "mac"]);
        assert_eq!(names("mac windows").unwrap(), ["mac", "windows"]);
        assert!(names("amiga").is_err());
    }
}
