//! `cargo xtask sanitize`: the tests of the room with `unsafe` under the address sanitizer, on every instruction set that
//! this processor has and in plain code.
//!
//! Miri would also see reads of uninitialised memory and broken aliasing, but it is no part of a stable toolchain and does
//! not know the vector instructions; the sanitizer runs the very code that ships.

use anyhow::Result;

use crate::{
    fuzz::TRIPLE,
    steps::{cargo, run as run_command},
    tree,
};

pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let mut call = cargo(&["test", "--package", "fresco-tensor", "--target", TRIPLE]);
    call.args(["--locked", "--lib", "--tests", "--"])
        .args(arguments)
        .env("CARGO_TARGET_DIR", tree::target_dir().join("sanitize"))
        // Unlocks the sanitizer on a stable toolchain.
        .env("RUSTC_BOOTSTRAP", "1")
        .env("RUSTFLAGS", "-Zsanitizer=address -Cdebug-assertions");
    run_command(&mut call)
}
