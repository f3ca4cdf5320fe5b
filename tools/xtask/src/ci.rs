//! `cargo xtask ci`: the same checks at home and on the machine that decides, cheapest first.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};

use crate::{
    background::BackgroundCommand,
    cross, cuda, deny, docgen, gpu, install,
    steps::{Clock, cargo, command, present, run as run_command, run_keeping},
    tidy, tree, web,
};

struct Step {
    name: &'static str,
    work: fn(&mut Vec<String>) -> Result<()>,
}

/// A check that only compiles, into a folder of its own: it begins with the first step that mostly waits.
const BACKGROUND: &str = "windows";

const STEPS: &[Step] = &[
    Step {
        name: "fmt",
        work: |_| run_command(&mut cargo(&["fmt", "--all", "--check"])),
    },
    Step {
        name: "tidy",
        work: |_| tidy::run(),
    },
    Step {
        name: "deny",
        work: |_| deny::run(),
    },
    Step {
        name: "clippy",
        work: |_| {
            run_command(&mut cargo(&[
                "clippy",
                "--workspace",
                "--all-targets",
                "--locked",
                "--",
                "-D",
                "warnings",
            ]))
        },
    },
    Step {
        name: "web",
        work: |_| web::web(&["--check".to_owned()]),
    },
    Step {
        name: "build",
        work: |_| build(),
    },
    Step {
        name: "test",
        work: |counts| {
            install::ffprobe()?;
            install::nats_server()?;
            counts.extend(run_tests(&[])?);
            Ok(())
        },
    },
    Step {
        name: "gold",
        work: |_| run_command(&mut command(&built("fresco-gold").to_string_lossy(), &[])),
    },
    Step {
        name: "doctest",
        work: |counts| {
            let lines = run_keeping(
                &mut cargo(&["test", "--workspace", "--doc", "--locked", "--quiet"]),
                is_count,
            )?;
            counts.extend(lines);
            Ok(())
        },
    },
    Step {
        name: "doc",
        work: |_| {
            run_command(
                cargo(&["doc", "--workspace", "--no-deps", "--locked"])
                    .env("RUSTDOCFLAGS", "-D warnings"),
            )
        },
    },
    Step {
        name: "docgen",
        work: |_| docgen::run(&["--check".to_owned()]),
    },
    Step {
        name: "cuda",
        work: |_| cuda::run(&["--check".to_owned()]),
    },
    Step {
        name: "gpu",
        work: |counts| {
            counts.extend(gpu::quick()?);
            Ok(())
        },
    },
    Step {
        name: "soak",
        work: |_| soak(&["1".to_owned()]),
    },
    Step {
        name: "cluster",
        work: |_| cluster(&["300", "20", "3"].map(str::to_owned)),
    },
    Step {
        name: "page",
        work: |_| web::page(&[]),
    },
    Step {
        name: "clients",
        work: |_| clients(&[]),
    },
    Step {
        name: "frontends",
        work: |_| frontends(&[]),
    },
    Step {
        name: BACKGROUND,
        work: |_| cross::check_windows(),
    },
];

pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let steps = select(arguments)?;
    if steps.len() > 1 {
        install::ahead();
    }
    let mut clock = Clock::default();
    let mut counts = Vec::new();
    let mut outcome = Ok(());
    let mut background = None;
    for step in steps {
        if step.name == "soak" && steps.len() > 1 {
            background = Some(BackgroundCommand::begin(|| {
                cross::windows_tools()?;
                Ok(cross::windows_check())
            }));
        }
        outcome = match background.take_if(|_| step.name == BACKGROUND) {
            Some(begun) => clock.step(BACKGROUND, || begun.end()),
            None => clock.step(step.name, || (step.work)(&mut counts)),
        };
        if outcome.is_err() {
            break;
        }
    }
    clock.print();
    for line in &counts {
        println!("tests: {line}");
    }
    if outcome.is_ok() {
        println!("ci: all green");
    }
    outcome
}

fn select(arguments: &[String]) -> Result<&'static [Step]> {
    let position = |name: &str| {
        STEPS
            .iter()
            .position(|step| step.name == name)
            .with_context(|| {
                let names: Vec<&str> = STEPS.iter().map(|step| step.name).collect();
                format!("no step {name:?}; there are {}", names.join(", "))
            })
    };
    match arguments {
        [] => Ok(STEPS),
        [flag, name] if flag == "--from" => Ok(&STEPS[position(name)?..]),
        [flag, name] if flag == "--only" => {
            let at = position(name)?;
            Ok(&STEPS[at..=at])
        }
        _ => bail!("usage: cargo xtask ci [--from STEP | --only STEP]"),
    }
}

/// All programs at once: one of them alone would be built with other features of what it depends on, which takes minutes.
pub(crate) fn build() -> Result<()> {
    let what = ["build", "--workspace", "--bins", "--exclude", "xtask"];
    run_command(cargo(&what).arg("--locked"))
}

/// The program that tests and drivers start.
pub(crate) fn program() -> PathBuf {
    match env::var_os("FRESCO_BIN") {
        Some(path) => PathBuf::from(path),
        None => built("fresco"),
    }
}

/// A program of the debug build.
fn built(name: &str) -> PathBuf {
    let file = format!("{name}{}", env::consts::EXE_SUFFIX);
    tree::target_dir().join("debug").join(file)
}

/// Runs all tests and gives the runner's closing counts.
fn run_tests(more: &[String]) -> Result<Vec<String>> {
    run_keeping(test_command().args(more), is_count)
}

/// Runs some tests with the driver in a folder, and its first GPU where they let one choose.
pub(crate) fn tests_on_gpu(driver: &Path, filter: &str) -> Result<Vec<String>> {
    if !present("cargo-nextest", "--version") {
        println!("tests on emulated GPUs are skipped: cargo-nextest is needed to choose them");
        return Ok(Vec::new());
    }
    let mut command = test_command();
    let command = command
        .env("LD_LIBRARY_PATH", driver)
        .env("FRESCO_TEST_DEVICE", "cuda:0")
        .args(["-E", filter]);
    run_keeping(command, is_count)
}

/// The command for all tests, with what they need.
fn test_command() -> Command {
    let mut command = if present("cargo-nextest", "--version") {
        cargo(&[
            "nextest",
            "run",
            "--workspace",
            "--locked",
            "--no-fail-fast",
            "--status-level=slow",
            "--final-status-level=slow",
        ])
    } else {
        cargo(&[
            "test",
            "--workspace",
            "--locked",
            "--no-fail-fast",
            "--all-targets",
        ])
    };
    if env::var_os(PACK_PYTHON).is_none() {
        match install::pack_python() {
            Ok(python) => {
                command.env(PACK_PYTHON, python);
            }
            Err(error) => {
                println!("tests of packs with pictures and routes are skipped: {error:#}");
            }
        }
    }
    with_program(&mut command);
    command
}

/// Names the Python that runs packs in tests.
const PACK_PYTHON: &str = "FRESCO_TEST_PYTHON";

fn is_count(line: &str) -> bool {
    line.contains("tests run:") || line.contains("test result:")
}

/// A tool of the build that drives the program.
pub(crate) fn tool(name: &str) -> Command {
    let mut command = command(&built(name).to_string_lossy(), &[]);
    with_program(&mut command);
    command
}

fn with_program(command: &mut Command) -> &mut Command {
    command.env("FRESCO_BIN", program())
}

pub(crate) fn test(arguments: &[String]) -> Result<()> {
    build()?;
    let counts = run_tests(arguments)?;
    for line in counts {
        println!("tests: {line}");
    }
    Ok(())
}

/// Runs the goldens of a folder.
pub(crate) fn gold(arguments: &[String]) -> Result<()> {
    let mut command = cargo(&[
        "run",
        "--locked",
        "--quiet",
        "--package",
        "fresco-gold",
        "--",
    ]);
    run_command(command.args(arguments))
}

pub(crate) fn crash(arguments: &[String]) -> Result<()> {
    let count = arguments.first().map_or("200", String::as_str);
    if count.parse::<u32>().is_err() {
        bail!("the count of kills must be a number, not {count:?}");
    }
    build()?;
    let mut command = cargo(&[
        "test",
        "--package",
        "fresco-tests",
        "--test",
        "crash",
        "--locked",
        "--",
        "--nocapture",
    ]);
    run_command(with_program(&mut command).env("FRESCO_CRASHES", count))
}

/// Of the debug build, or of the program that `FRESCO_BIN` names.
pub(crate) fn soak(arguments: &[String]) -> Result<()> {
    let minutes = arguments.first().map_or("2", String::as_str);
    if minutes.parse::<f64>().is_err() {
        bail!("the minutes must be a number, not {minutes:?}");
    }
    build()?;
    run_command(tool("soak").arg(minutes))
}

/// Kills workers, fronts and the broker at random: JOBS KILLS WORKERS SEED.
pub(crate) fn cluster(arguments: &[String]) -> Result<()> {
    const LONG: [&str; 3] = ["10000", "200", "4"];
    for number in arguments {
        if number.parse::<u64>().is_err() {
            bail!(
                "usage: cargo xtask cluster [JOBS [KILLS [WORKERS [SEED]]]], all numbers, not {number:?}"
            );
        }
    }
    install::nats_server()?;
    build()?;
    let rest = LONG.iter().skip(arguments.len()).map(ToString::to_string);
    let all: Vec<String> = arguments.iter().cloned().chain(rest).collect();
    run_command(tool("cluster").args(all))
}

/// Runs the workflows of a folder whose names contain a part to their end, with reduced models.
pub(crate) fn run_templates(folder: &Path, part: &str) -> Result<()> {
    build()?;
    run_command(tool("templates").arg(folder).arg(part))
}

/// Runs the packs of a folder, as a person brought them, and our workflows for them.
pub(crate) fn packs(arguments: &[String]) -> Result<()> {
    build()?;
    // Its arguments have paths, which are relative to where a person is.
    let here = env::current_dir()?;
    run_command(tool("packs").args(arguments).current_dir(here))
}

pub(crate) fn memory_limits(arguments: &[String]) -> Result<()> {
    build()?;
    let runs: Vec<Vec<String>> = if arguments.is_empty() {
        ["2048", "3072"].map(|size| vec![size.to_owned()]).to_vec()
    } else {
        vec![arguments.to_vec()]
    };
    for run in runs {
        run_command(tool("memory_limits").args(run))?;
    }
    Ok(())
}

pub(crate) fn clients(arguments: &[String]) -> Result<()> {
    install::python_clients()?;
    install::node_packages()?;
    drive("clients", arguments)
}

pub(crate) fn frontends(arguments: &[String]) -> Result<()> {
    install::chromium()?;
    install::node_packages()?;
    install::front_ends()?;
    let versions: Vec<String> = if arguments.is_empty() {
        install::FRONT_ENDS
            .iter()
            .map(|v| (*v).to_owned())
            .collect()
    } else {
        arguments.to_vec()
    };
    for version in versions {
        let root = install::static_root(&version)
            .to_string_lossy()
            .into_owned();
        drive("frontend", &[version, root])?;
    }
    Ok(())
}

/// Hands over to the driver program, which starts servers with the harness of the black-box tests.
fn drive(what: &str, arguments: &[String]) -> Result<()> {
    build()?;
    run_command(
        tool("drive")
            .arg(what)
            .args(arguments)
            .env("FRESCO_CI_CACHE", tree::cache_dir()),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_can_be_picked() {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(select(&[]).unwrap().len(), STEPS.len());
        assert_eq!(select(&words("--only tidy")).unwrap()[0].name, "tidy");
        assert_eq!(select(&words("--from doc")).unwrap()[0].name, "doc");
        assert!(select(&words("--only painting")).is_err());
        assert!(select(&words("--fast")).is_err());
    }

    #[test]
    fn closing_counts_are_recognised() {
        assert!(is_count(
            "     Summary [   0.010s] 2 tests run: 2 passed, 0 skipped"
        ));
        assert!(is_count("test result: ok. 3 passed; 0 failed; 0 ignored"));
        assert!(!is_count("running 3 tests"));
    }
}
