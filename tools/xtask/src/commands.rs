//! The table of commands. `tidy` reads it too: a page may only name commands that stand here.

use std::fmt::Write as _;

use anyhow::{Result, bail};

use crate::{
    bench, ci, cross, cuda, deny, dist, docgen, fuzz, gpu, sanitize, sim, synth, templates, tidy,
    web, windows,
};

pub(crate) struct Command {
    pub(crate) name: &'static str,
    arguments: &'static str,
    about: &'static str,
    run: fn(&[String]) -> Result<()>,
}

pub(crate) static COMMANDS: &[Command] = &[
    Command {
        name: "ci",
        arguments: "[--from STEP] [--only STEP]",
        about: "every check, cheapest first, stopping at the first failure",
        run: ci::run,
    },
    Command {
        name: "tidy",
        arguments: "",
        about: "dependency arrows, file length, left-overs, unsafe, names that are participles, commands named in pages",
        run: |_| tidy::run(),
    },
    Command {
        name: "deny",
        arguments: "",
        about: "licences, bans and duplicates of the dependency tree, as deny.toml says",
        run: |_| deny::run(),
    },
    Command {
        name: "test",
        arguments: "[ARGUMENTS FOR THE RUNNER]",
        about: "build the program and run all tests against it",
        run: ci::test,
    },
    Command {
        name: "gold",
        arguments: "[DIR] [--only PART]",
        about: "run every golden of a folder (tests/gold) on the processor and on a simulated device",
        run: ci::gold,
    },
    Command {
        name: "templates",
        arguments: "[DIR] [--run [PART]]",
        about: "convert and check the ecosystem's own workflows, from DIR or the installed Python package of them, or run those whose names contain PART with reduced models",
        run: templates::run,
    },
    Command {
        name: "packs",
        arguments: "DIR [--python PATH] [--only NAME] [--together] [--json FILE] [--logs DIR]",
        about: "real packs of a folder, each alone and then all together, with the workflows of tests/real-packs",
        run: ci::packs,
    },
    Command {
        name: "crash",
        arguments: "[COUNT]",
        about: "kill the program COUNT times (200) under load and look for losses",
        run: ci::crash,
    },
    Command {
        name: "cluster",
        arguments: "[JOBS [KILLS [WORKERS [SEED]]]]",
        about: "two fronts, workers (4) and a NATS server as processes: JOBS (10000) under KILLS (200) of all of them, looking for losses",
        run: ci::cluster,
    },
    Command {
        name: "memory-limits",
        arguments: "[MEBIBYTES [INPUTS [CLASS]]]",
        about: "every node without a model in memory groups (2048 and 3072), with inputs of half of that: the server must live",
        run: ci::memory_limits,
    },
    Command {
        name: "clients",
        arguments: "[NAME]",
        about: "third-party clients, unmodified, against the built program",
        run: ci::clients,
    },
    Command {
        name: "frontends",
        arguments: "[VERSION]",
        about: "the official front-ends in a headless browser against the built program",
        run: ci::frontends,
    },
    Command {
        name: "web",
        arguments: "[--check]",
        about: "build the page into web/dist (needs npm), or check that it is what its sources make",
        run: web::web,
    },
    Command {
        name: "page",
        arguments: "[--tour | PART...]",
        about: "walk through our page in a headless browser against the built program, or take the pictures of docs/tour.md",
        run: web::page,
    },
    Command {
        name: "bench",
        arguments: "server [MEASUREMENT]",
        about: "measure the release build; the figures of docs/measurements.md",
        run: bench::run,
    },
    Command {
        name: "fuzz",
        arguments: "[--minutes N] [--keep] [TARGET...]",
        about: "run fuzz targets (all of them) with a sanitizer, each for N minutes (1), and keep what they found",
        run: fuzz::run,
    },
    Command {
        name: "sanitize",
        arguments: "[ARGUMENTS FOR THE TESTS]",
        about: "run the tests of the room that may use unsafe under the address sanitizer",
        run: sanitize::run,
    },
    Command {
        name: "soak",
        arguments: "[MINUTES]",
        about: "all kinds of clients at once for a while (2), failing if memory, descriptors or threads grow",
        run: ci::soak,
    },
    Command {
        name: "sim",
        arguments: "cluster",
        about: "thousands of workers and a million jobs in virtual time, over the code that decides who takes which; the table of docs/cluster.md",
        run: sim::run,
    },
    Command {
        name: "synth",
        arguments: "LIST OUT [FORMAT]",
        about: "write a full-size checkpoint with made-up weights (LIST: sd15, sdxl, ..)",
        run: synth::run,
    },
    Command {
        name: "cuda",
        arguments: "[--check] [--verbose] [--no-cache]",
        about: "compile the CUDA kernels into crates/tensor/src/cuda/built (no GPU needed), or check that they are what their sources make",
        run: cuda::run,
    },
    Command {
        name: "gpu",
        arguments: "[--all]",
        about: "the tests of GPUs on emulated cards, with the kernels compiled for the processor (no GPU needed; g++, on Linux on x86-64)",
        run: gpu::run,
    },
    Command {
        name: "cross",
        arguments: "[windows] [arm] [mac]",
        about: "check the program for Windows and macOS, and run the kernels' tests on an emulated ARM processor (on Debian)",
        run: cross::cross,
    },
    Command {
        name: "windows",
        arguments: "[CASE...]",
        about: "build the program for Windows and try it under wine: a picture, a crash, names, locks (on Debian)",
        run: windows::run,
    },
    Command {
        name: "dist",
        arguments: "[linux] [arm] [windows] [mac] [mac-intel] [--check] [--program PATH]",
        about: "archives and Python wheels of a release with their checksums, into target/dist (recipe: docs/releasing.md); --check builds twice and compares, --program packs one that is built already",
        run: dist::run,
    },
    Command {
        name: "docgen",
        arguments: "[--check]",
        about: "write the generated pages, or check that they are current",
        run: docgen::run,
    },
];

pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let Some(name) = arguments.first() else {
        println!("{}", usage());
        return Ok(());
    };
    match COMMANDS.iter().find(|command| command.name == name) {
        Some(command) => (command.run)(&arguments[1..]),
        None if matches!(name.as_str(), "help" | "--help" | "-h") => {
            println!("{}", usage());
            Ok(())
        }
        None => bail!("unknown command {name}\n{}", usage()),
    }
}

fn usage() -> String {
    let mut text = String::from("usage: cargo xtask COMMAND\n");
    for command in COMMANDS {
        let call = format!("{} {}", command.name, command.arguments);
        write!(text, "\n  {call:<34} {}", command.about).expect("a String takes all text");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_commands_are_refused_by_name() {
        let error = run(&["frobnicate".to_owned()]).unwrap_err();
        assert!(error.to_string().contains("frobnicate"));
    }
}
