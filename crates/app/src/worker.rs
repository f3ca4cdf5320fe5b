//! `fresco worker`: runs prompts for servers on other machines, through a NATS server. The same rooms as `serve`, without HTTP and without a
//! queue of its own.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::Context as _;
use fresco_cluster::content::sync::ModelServer;
use fresco_cluster::content::{Catalogue, Transfer};
use fresco_cluster::protocol::memory::MemoryReply;
use fresco_cluster::{Broker, MemoryRequests, WorkerParts, WorkerProcess, WorkerSink};
use fresco_engine::{Engine, EngineConfig, EventSink, JobPasser, WorkerConfig};
use fresco_graph::PromptLimits;
use fresco_memory::{MemoryCommand, Refusal, Registries};

use crate::assembly::Assembly;
use crate::cli::{DirArgs, WorkerTaskArgs};
use crate::serve::{HANG_GRACE, STOP_GRACE};
use crate::settings::{self, ExecSettings, FolderSettings, UsageError};
use crate::signals::StopSignals;

/// How long the running prompt may go on when the worker is told to stop.
const DRAIN: Duration = Duration::from_mins(1);
/// How long packs may take before jobs are taken.
const PACKS_PATIENCE: Duration = Duration::from_mins(2);

pub(crate) fn worker(args: WorkerTaskArgs) -> anyhow::Result<ExitCode> {
    let name = args.name.trim().to_owned();
    let broker = settings::broker(&args.nats, &format!("fresco worker {name}"))?;
    let broker = broker.ok_or_else(|| {
        UsageError(
            "name the NATS server to take jobs from with --nats, like nats://host:4222".into(),
        )
    })?;
    let exec = ExecSettings::resolve(&args.exec)?;
    exec.memory.register_devices()?;
    let own_state = own_folders(&args.dirs, &name);
    let folders = FolderSettings::resolve(with_own_folders(args.dirs, &own_state));
    tracing::info!("Fresco {}: worker {name}", env!("CARGO_PKG_VERSION"));
    let broker = Broker::connect(&broker).map_err(|e| UsageError(e.to_string()))?;
    for folder in ["input", "output"] {
        let path = own_state.join(folder);
        std::fs::create_dir_all(&path)
            .with_context(|| format!("cannot create the folder {}", path.display()))?;
    }
    let assembly = Assembly::open(&folders)?;
    assembly.dirs.create_input();
    assembly.dirs.create_output()?;
    assembly.dirs.create_user()?;
    if let Err(error) = assembly.dirs.clear_temp() {
        tracing::warn!("the temp folder is not emptied: {error}");
    }
    assembly.dirs.create_temp()?;

    let (sink, events) = WorkerSink::new();
    let passer = JobPasser::default();
    let registry = exec.memory.registry();
    let models: Registries = registry.clone().into();
    let executor = assembly.executor(&exec, registry, sink.clone())?;
    let resources = executor.resources.clone();
    let engine = Engine::start(EngineConfig {
        executor,
        workers: vec![WorkerConfig::local()],
        listings: assembly.listings.clone(),
        jobs: Arc::new(passer.clone()),
        limits: PromptLimits::default(),
        hang_grace: HANG_GRACE,
    })
    .context("cannot start the worker")?;
    let packs = start_packs(
        &assembly,
        &exec,
        args.python.as_deref(),
        (resources, models.clone()),
        sink,
        &engine,
    );
    let catalogue = Catalogue::start(assembly.folders.clone(), own_state.join("models.txt"));
    // Before there is a job that would have to be given back.
    let stop = Stop::listen()?;
    let process = WorkerProcess::start(WorkerParts {
        name: name.as_str().into(),
        version: env!("CARGO_PKG_VERSION").into(),
        broker: broker.clone(),
        engine: engine.clone(),
        passer,
        events,
        transfer: Arc::new(Transfer::new(broker.clone(), assembly.dirs.clone())),
        catalogue: catalogue.clone(),
        folders: assembly.folders.clone(),
        swept: ["input", "output", "temp"]
            .map(|name| own_state.join(name))
            .into(),
        models: ModelServer::new(
            assembly.folders.clone(),
            catalogue.clone(),
            broker.clone(),
            broker.clone(),
        ),
        memory: Arc::new(Memory {
            models,
            engine: engine.clone(),
        }),
    })
    .map_err(|e| UsageError(e.to_string()))?;
    let counted = engine.clone();
    stop.wait(move || counted.running().len())?;
    tracing::info!("told to stop: no more jobs are taken");
    process.drain(args.drain.unwrap_or(DRAIN));
    engine.stop(STOP_GRACE);
    packs.stop();
    catalogue.stop();
    if let Err(error) = assembly.dirs.clear_temp() {
        tracing::warn!("the temp folder is not emptied: {error}");
    }
    tracing::info!("Stopped worker");
    Ok(ExitCode::SUCCESS)
}

/// Where a worker keeps what is its own: files of jobs replace others of the same name there.
fn own_folders(dirs: &DirArgs, name: &str) -> PathBuf {
    let base = dirs.base_directory.clone();
    let base = base.unwrap_or_else(crate::layers::default_base);
    base.join("cluster").join(name)
}

fn with_own_folders(dirs: DirArgs, own: &std::path::Path) -> DirArgs {
    DirArgs {
        input_directory: dirs.input_directory.or_else(|| Some(own.join("input"))),
        output_directory: dirs.output_directory.or_else(|| Some(own.join("output"))),
        temp_directory: dirs.temp_directory.or_else(|| Some(own.to_owned())),
        ..dirs
    }
}

fn start_packs(
    assembly: &Assembly,
    exec: &ExecSettings,
    python: Option<&std::path::Path>,
    (resources, models): (Arc<fresco_graph::Resources>, Registries),
    sink: Arc<dyn EventSink>,
    engine: &Engine,
) -> Arc<fresco_python::Hosts> {
    let told = crate::packs::HostSettings {
        flags: crate::packs::flags(exec),
        on_cpu: exec.memory.on_cpu(),
        ..crate::packs::HostSettings::default()
    };
    let packs = crate::packs::host(assembly, python, &exec.packs, &exec.pack_limits, told);
    let late = Arc::new(OnceLock::new());
    let _ = late.set(engine.clone());
    let surroundings: Arc<dyn fresco_python::Outside> = Arc::new(crate::packs::Surroundings {
        registry: assembly.registry.clone(),
        listings: assembly.listings.clone(),
        folders: assembly.folders.clone(),
        resources,
        sink,
        engine: late,
        models: Some(models),
        listed: std::sync::Mutex::default(),
    });
    packs.start(&surroundings);
    if packs.is_starting() {
        // Before it says which nodes it has.
        packs.wait_ready(PACKS_PATIENCE);
    }
    packs
}

/// Hears when the program is told to end.
struct Stop {
    runtime: tokio::runtime::Runtime,
    signals: StopSignals,
}

impl Stop {
    fn listen() -> anyhow::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("cannot listen for signals")?;
        let signals = {
            let _inside = runtime.enter();
            StopSignals::listen()
        };
        Ok(Self { runtime, signals })
    }

    /// Returns when it is, or was since it listens.
    fn wait(self, running: impl Fn() -> usize + Send + 'static) -> anyhow::Result<()> {
        let Self { runtime, signals } = self;
        runtime.block_on(signals.told_to_stop(running));
        // A second signal is heard on a thread that goes on.
        std::thread::Builder::new()
            .name("signals".to_owned())
            .spawn(move || runtime.block_on(std::future::pending::<()>()))
            .context("cannot listen for signals")?;
        Ok(())
    }
}

/// Requests about memory.
struct Memory {
    models: Registries,
    engine: Engine,
}

impl MemoryRequests for Memory {
    fn carry_out(&self, command: &MemoryCommand) -> Result<MemoryReply, Refusal> {
        let answer = self.models.carry_out(command);
        let answer = answer.map(|answer| fresco_server::memory_reply(&answer));
        if command.changes() {
            self.engine.memory_changed();
        }
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_has_folders_of_its_own_unless_it_is_given_some() {
        let own = own_folders(
            &DirArgs {
                base_directory: Some("b".into()),
                ..DirArgs::default()
            },
            "w",
        );
        assert_eq!(own, PathBuf::from("b").join("cluster").join("w"));
        let given = DirArgs {
            input_directory: Some("mine".into()),
            ..DirArgs::default()
        };
        let dirs = with_own_folders(given, &own);
        assert_eq!(dirs.input_directory, Some("mine".into()));
        assert_eq!(dirs.output_directory, Some(own.join("output")));
        assert_eq!(dirs.temp_directory, Some(own));
    }
}
