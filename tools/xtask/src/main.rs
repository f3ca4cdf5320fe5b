//! `cargo xtask`: everything a person or CI does to the tree besides building it.
//!
//! Deliberately depends on none of our crates, so that it still runs when they do not compile.

#![expect(
    clippy::print_stdout,
    reason = "this program's output is what it prints"
)]

mod background;
mod bench;
mod ci;
mod commands;
mod cross;
mod cuda;
mod deny;
mod dist;
mod docgen;
mod fuzz;
mod gpu;
mod install;
mod licences;
mod metadata;
mod sanitize;
mod sim;
mod spdx;
mod steps;
mod synth;
mod templates;
mod tidy;
mod tree;
mod web;
mod windows;

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match commands::run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}
