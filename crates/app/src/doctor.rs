//! `fresco doctor`: what was found and what stands in the way; of a workflow, how it would run. Changes nothing.

use std::io::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context as _;
use fresco_engine::store::{JobStore, StoreError};
use fresco_files::Dirs;
use fresco_files::dirs::check_writable;
use fresco_memory::amount::readable;
use fresco_server::FrontEnd as Shown;

use crate::assembly::Assembly;
use crate::front_end::Pages;
use fresco_tensor::cuda::{DriverState, driver_state};
use fresco_tensor::gpu::KernelCode;

use crate::logging::chain;
use crate::python::{Sites, TemplateFiles};
use crate::report::Report;
use crate::serve::{bind, database, database_path};
use crate::settings::ServeSettings;
use crate::workflow_plan;

pub(crate) fn doctor(
    settings: &ServeSettings,
    workflow: Option<&Path>,
) -> anyhow::Result<ExitCode> {
    settings.exec.memory.register_devices()?;
    let report = examine(settings, workflow);
    std::io::stdout()
        .lock()
        .write_all(report.text().as_bytes())
        .context("cannot write to standard output")?;
    Ok(if report.problems() == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn examine(settings: &ServeSettings, workflow: Option<&Path>) -> Report {
    let mut report = Report::default();
    report.heading("program");
    report.line(
        "version",
        format!(
            "{} (ComfyUI {})",
            env!("CARGO_PKG_VERSION"),
            fresco_server::REFERENCE_VERSION
        ),
    );
    match Assembly::open(&settings.folders) {
        Ok(assembly) => {
            report.line("nodes", assembly.registry.snapshot().len().to_string());
            devices(&mut report, settings);
            folders(&mut report, &assembly);
            queue(&mut report, settings, &assembly.dirs);
            pages(&mut report, settings, &assembly.dirs);
            if let Some(file) = workflow {
                workflow_plan::show(&mut report, &assembly, &settings.exec, file);
            }
        }
        Err(error) => {
            report.heading("folders");
            report.problem("folders", chain(error.as_ref()));
        }
    }
    ports(&mut report, settings);
    report
}

fn devices(report: &mut Report, settings: &ServeSettings) {
    report.heading("devices");
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let memory = |bytes: Option<u64>| {
        bytes.map_or("unknown".into(), |b| {
            format!("{:.1} GiB", b as f64 / f64::from(1 << 30))
        })
    };
    let total = memory(fresco_tensor::total_memory());
    report.line(
        "cpu",
        format!(
            "{threads} threads, {total} of memory, {} free",
            memory(fresco_tensor::available_memory())
        ),
    );
    for &(number, bytes) in &settings.exec.memory.sim_devices {
        // As everywhere else, or two lines about one device would seem to disagree.
        report.line(
            &format!("sim:{number}"),
            format!("{}, simulated", readable(bytes)),
        );
    }
    gpus(report, settings);
}

/// GPUs, their driver, and the kernels that run there.
fn gpus(report: &mut Report, settings: &ServeSettings) {
    let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
    match driver_state() {
        DriverState::Missing(reason) => report.line("gpu", format!("none: {reason}")),
        DriverState::Present { cuda, devices } => report.line(
            "gpu driver",
            format!("CUDA {}.{}, {devices} GPUs", cuda.0, cuda.1),
        ),
    }
    let (found, reasons) = settings.exec.memory.gpus();
    for device in found {
        let Some(state) = device.gpu() else { continue };
        report.line(
            &device.name(),
            format!(
                "{}, {}, {:.1} GiB, {:.1} GiB free",
                state.name,
                state.description,
                gib(state.total),
                gib(state.free)
            ),
        );
        for (code, label) in [
            (KernelCode::Machine, "  machine code"),
            (
                KernelCode::Portable,
                "  compiled by the driver at first use",
            ),
        ] {
            let modules = state.kernels.iter().filter(|module| module.code == code);
            let names: Vec<&str> = modules.map(|module| module.name).collect();
            if !names.is_empty() {
                report.line(label, names.join(", "));
            }
        }
        if let Some(reason) = state.failed {
            report.problem(&device.name(), reason);
        }
    }
    for reason in reasons {
        report.problem("gpu", reason);
    }
}

fn folders(report: &mut Report, assembly: &Assembly) {
    let dirs = &*assembly.dirs;
    report.heading("folders");
    let base = check_writable(&dirs.base);
    match &base {
        Ok(()) => report.line("base", dirs.base.display().to_string()),
        Err(error) => report.problem("base", chain(error)),
    }
    for (name, path, written) in [
        ("models", &dirs.models, false),
        ("input", &dirs.input, true),
        ("output", &dirs.output, true),
        ("temp", &dirs.temp, true),
        ("user", &dirs.user, true),
    ] {
        // What is wrong with the base is said once.
        if base.is_err() && path.starts_with(&dirs.base) {
            report.line(name, path.display().to_string());
            continue;
        }
        match state(path, written) {
            Ok(state) => report.line(name, format!("{}{state}", path.display())),
            Err(why) => report.problem(name, format!("{}: {why}", path.display())),
        }
    }
    report.line(
        "starter model",
        assembly
            .starter
            .as_ref()
            .map_or("none".into(), |folder| folder.display().to_string()),
    );
    let mut empty = 0;
    report.heading("model files");
    for (folder, roots) in assembly.folders.all_roots() {
        let count = assembly
            .folders
            .list(&folder)
            .map_or(0, |names| names.len());
        if count == 0 {
            empty += 1;
            continue;
        }
        let places: Vec<String> = roots
            .iter()
            .filter(|r| r.is_dir())
            .map(|r| r.display().to_string())
            .collect();
        report.line(&folder, format!("{count} in {}", places.join(", ")));
    }
    report.line("others", format!("{empty} folder types without files"));
}

/// How a folder stands: missing ones are made when needed, if their parent allows it.
fn state(path: &Path, written: bool) -> Result<&'static str, String> {
    let found = match path.metadata() {
        Ok(metadata) if !metadata.is_dir() => return Err("is not a folder".into()),
        Ok(_) => "",
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => " (not there yet)",
        Err(e) => return Err(e.to_string()),
    };
    if found.is_empty() {
        std::fs::read_dir(path).map_err(|e| format!("cannot be read: {e}"))?;
    }
    if written && let Err(error) = check_writable(path) {
        return Err(match std::error::Error::source(&error) {
            Some(why) => format!("cannot be written: {why}"),
            None => error.to_string(),
        });
    }
    Ok(found)
}

fn queue(report: &mut Report, settings: &ServeSettings, dirs: &Dirs) {
    report.heading("queue and history");
    let place = database(settings, dirs);
    let Some(path) = database_path(&place) else {
        report.line("database", "in memory; nothing survives the process");
        return;
    };
    match JobStore::inspect(path) {
        Ok(None) => {
            let folder = path.parent().unwrap_or(path);
            match check_writable(folder) {
                Ok(()) => report.line("database", format!("{} (not there yet)", path.display())),
                Err(error) => {
                    report.problem("database", format!("{}: {}", path.display(), chain(&error)));
                }
            }
        }
        Ok(Some(found)) => {
            report.line("database", path.display().to_string());
            report.line("prompts waiting", found.jobs.to_string());
            report.line("history", found.history.to_string());
        }
        Err(error @ StoreError::InUse { .. }) => report.problem("database", error.to_string()),
        Err(error) => report.problem("database", chain(&error)),
    }
}

fn pages(report: &mut Report, settings: &ServeSettings, dirs: &Dirs) {
    report.heading("front-end");
    let shown = Pages::find(&settings.front_end, settings.python.as_deref(), dirs).shown;
    let shown = match shown {
        Shown::Page => "Fresco's page".to_owned(),
        Shown::Folder(root) => root.display().to_string(),
        Shown::Status => "the status page".to_owned(),
    };
    report.line("/ shows", shown);
    let sites = Sites::find(settings.python.as_deref(), &dirs.base);
    let package = |found: Option<(Option<String>, String)>| match found {
        None => "not installed".to_owned(),
        Some((version, place)) => {
            format!("{} in {place}", version.unwrap_or("unknown version".into()))
        }
    };
    report.line(
        "editor",
        package(
            sites
                .front_end()
                .map(|p| (p.version, p.folder.display().to_string())),
        ),
    );
    let templates = sites.templates().map(|t| {
        let place = match t.files {
            TemplateFiles::Folder(folder) => folder.display().to_string(),
            TemplateFiles::Files(files) => format!("{} files", files.len()),
        };
        (t.version, place)
    });
    report.line("templates", package(templates));
    report.line(
        "node documentation",
        package(
            sites
                .docs()
                .map(|p| (p.version, p.folder.display().to_string())),
        ),
    );
}

fn ports(report: &mut Report, settings: &ServeSettings) {
    report.heading("network");
    for ip in &settings.listen {
        let address = SocketAddr::new(*ip, settings.port);
        match bind(&[*ip], settings.port) {
            Ok(_) => report.line("address", format!("{address} is free")),
            Err(error) => report.problem("address", chain(error.as_ref())),
        }
    }
    report.line(
        "token",
        if settings.token.is_some() {
            "set"
        } else {
            "none; this machine only"
        },
    );
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use clap::FromArgMatches as _;

    use super::*;
    use crate::cli::{Cli, command};

    fn examined(base: &Path, more: &[&str]) -> Report {
        let mut words = vec![
            OsStr::new("fresco"),
            OsStr::new("--base-directory"),
            base.as_os_str(),
        ];
        // A place without packages, so that the machine's Python does not matter.
        words.extend([
            OsStr::new("--python"),
            base.as_os_str(),
            OsStr::new("--port"),
            OsStr::new("0"),
        ]);
        words.extend(more.iter().map(OsStr::new));
        let matches = command().try_get_matches_from(words).unwrap();
        let serve = Cli::from_arg_matches(&matches).unwrap().serve;
        examine(&ServeSettings::resolve(serve).unwrap(), None)
    }

    #[test]
    fn a_fresh_folder_is_fine_and_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let report = examined(dir.path(), &[]);
        assert_eq!(report.problems(), 0, "{}", report.text());
        for part in [
            "output (not there yet)",
            "Fresco's page",
            "editor: not installed",
            "is free",
        ] {
            assert!(
                report.text().contains(part),
                "{part} is not in\n{}",
                report.text()
            );
        }
        assert_eq!(
            std::fs::read_dir(dir.path()).unwrap().count(),
            0,
            "doctor made something"
        );
    }

    #[test]
    fn problems_are_named_and_counted() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("user")).unwrap();
        std::fs::write(dir.path().join("user/fresco.db"), "no database").unwrap();
        std::fs::write(dir.path().join("output"), "no folder").unwrap();
        let report = examined(dir.path(), &[]);
        assert_eq!(report.problems(), 2, "{}", report.text());
        assert!(
            report.text().contains("is not a database"),
            "{}",
            report.text()
        );
        assert!(
            report.text().contains("is not a folder"),
            "{}",
            report.text()
        );
        let sim = ["--sim-device", "sim:7911=64MiB"];
        let report = examined(dir.path(), &sim);
        assert!(
            report.text().contains("sim:7911: 64 MiB, simulated"),
            "{}",
            report.text()
        );
        std::fs::write(dir.path().join("extra_model_paths.yaml"), "x: [").unwrap();
        assert_eq!(examined(dir.path(), &[]).problems(), 1);
    }
}
