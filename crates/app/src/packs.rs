//! Python packs in this program: what their process is told, and `fresco packs`.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use anyhow::Context as _;
use fresco_engine::{Engine, Event, EventKind, EventSink, FreeRequest, LiveRegistry};
use fresco_files::{Dirs, Folders};
use fresco_graph::{
    Args, Cx, Listings, Map, NodeClass, NodeError, NodeRegistry, Resources, Value, json, lock, map,
    object_info,
};
use fresco_nodes::for_packs::listed::{Listed, with_listed};
use fresco_python::{Hosts, Outside, Search, Settings, State, Wanted, candidates};
use fresco_server::Packs;

use crate::assembly::Assembly;
use crate::cli::{PacksArgs, PacksTask};
use crate::env_vars;
use crate::pack_list::{list, rows_of, table};
use crate::pack_tools::PackFolder;
use crate::settings::{ExecSettings, FolderSettings, PackLimits};
use crate::value_codec::value_codec;

/// How long the first load may hold up requests that depend on it.
const FIRST_LOAD: Duration = Duration::from_mins(2);
/// How long a call that ignores an interrupt may go on.
const INTERRUPT_GRACE: Duration = Duration::from_secs(5);
/// Endings and beginnings of names whose values packs do not see.
const SECRET_ENDS: [&str; 3] = ["_TOKEN", "_KEY", "_SECRET"];
const SECRET_STARTS: [&str; 2] = ["AWS_", "FRESCO_"];

/// The settings of the process of packs, besides its folders.
#[derive(Default)]
pub(crate) struct HostSettings {
    pub(crate) flags: Map,
    pub(crate) on_cpu: bool,
    pub(crate) address: String,
    pub(crate) port: u16,
}

/// The packs of this program; nothing is started yet.
/// What packs read of the command line.
pub(crate) fn flags(exec: &ExecSettings) -> Map {
    map! {
        "cpu" => exec.memory.on_cpu(),
        "disable_metadata" => exec.disable_metadata,
        "preview_method" => exec.preview_method,
        "whitelist_custom_nodes" => exec.packs.except.clone(),
        "disable_all_custom_nodes" => exec.packs.none,
    }
}

pub(crate) fn host(
    assembly: &Assembly,
    python: Option<&Path>,
    wanted: &Wanted,
    limits: &PackLimits,
    told: HostSettings,
) -> Arc<Hosts> {
    let dirs = &assembly.dirs;
    let roots = assembly.folders.roots("custom_nodes").unwrap_or_default();
    let found = candidates(&roots, wanted);
    if wanted.none && wanted.except.is_empty() && !candidates(&roots, &Wanted::default()).is_empty()
    {
        tracing::info!("Skipping loading of custom nodes");
    }
    let settings = Settings {
        packs: found,
        alone: None,
        search: search(dirs, python),
        unpack_to: dirs.user.join("__fresco").join("python"),
        folder: dirs.base.clone(),
        environment: environment(&limits.environment, &fence(dirs, &assembly.folders, limits)),
        import_limit: limits.import,
        hello: hello(dirs, &assembly.folders, limits, told),
        builtin: builtin(&assembly.registry.snapshot()),
        codec: value_codec().0,
        interrupt_grace: INTERRUPT_GRACE,
    };
    Hosts::new(settings, &limits.apart)
}

/// Whether there are packs at all, whatever runs.
pub(crate) fn has_packs(assembly: &Assembly) -> bool {
    let roots = assembly.folders.roots("custom_nodes").unwrap_or_default();
    !candidates(&roots, &Wanted::default()).is_empty()
}

/// Where packs are meant to write, as their process is told before anything of theirs runs.
fn fence(dirs: &Dirs, folders: &Folders, limits: &PackLimits) -> String {
    let own = [
        &dirs.output,
        &dirs.temp,
        &dirs.input,
        &dirs.user,
        &dirs.models,
    ];
    let mut places: Vec<PathBuf> = own.into_iter().cloned().collect();
    let table = folders.table();
    places.extend(table.into_iter().flat_map(|(_, roots, _)| roots));
    let mut texts: Vec<String> = places
        .iter()
        .map(|place| place.to_string_lossy().into_owned())
        .collect();
    texts.sort_unstable();
    texts.dedup();
    let texts: Vec<Value> = texts.into_iter().map(Value::from).collect();
    json::to_string(&map! {"strict" => limits.fenced, "folders" => texts}.into())
}

/// Where a Python for packs is looked for.
fn search(dirs: &Dirs, python: Option<&Path>) -> Search {
    let active = [env_vars::VIRTUAL_ENV, env_vars::CONDA_PREFIX].map(env_vars::path);
    Search {
        given: python.map(Path::to_path_buf),
        active: active.into_iter().flatten().collect(),
        base: dirs.base.clone(),
    }
}

fn builtin(registry: &NodeRegistry) -> Vec<String> {
    let own = registry.iter().filter(|class| class.owner().is_none());
    own.map(|class| class.schema().id.to_string()).collect()
}

/// What packs see of the environment: all but what looks like a secret.
fn environment(wanted: &[String], fence: &str) -> Vec<(String, String)> {
    let secret = |name: &str| {
        let name = name.to_uppercase();
        SECRET_ENDS.iter().any(|end| name.ends_with(end))
            || SECRET_STARTS.iter().any(|start| name.starts_with(start))
    };
    let mut seen: Vec<(String, String)> = env_vars::all()
        .into_iter()
        .filter(|(name, _)| wanted.contains(name) || !secret(name))
        .filter(|(name, _)| name != "PYTHONPATH" && name != "PYTHONHOME")
        .collect();
    for (name, value) in [
        ("PYTHONUNBUFFERED", "1"),
        ("PYTHONFAULTHANDLER", "1"),
        ("PYTHONSAFEPATH", "1"),
        ("HF_HUB_DISABLE_TELEMETRY", "1"),
        ("DO_NOT_TRACK", "1"),
        ("FRESCO", env!("CARGO_PKG_VERSION")),
        ("FRESCO_FENCE", fence),
    ] {
        seen.push((name.to_owned(), value.to_owned()));
    }
    seen
}

fn hello(dirs: &Dirs, folders: &Folders, limits: &PackLimits, told: HostSettings) -> Map {
    let text = |path: &Path| Value::from(path.to_string_lossy().as_ref());
    let table: Vec<Value> = folders
        .table()
        .into_iter()
        .map(|(name, roots, extensions)| {
            let roots: Vec<Value> = roots.iter().map(|root| text(root)).collect();
            let extensions: Vec<Value> = extensions.iter().map(|e| Value::from(*e)).collect();
            vec![Value::from(name), roots.into(), extensions.into()].into()
        })
        .collect();
    map! {
        "version" => env!("CARGO_PKG_VERSION"),
        "base" => text(&dirs.base),
        "models" => text(&dirs.models),
        "output" => text(&dirs.output),
        "temp" => text(&dirs.temp),
        "input" => text(&dirs.input),
        "user" => text(&dirs.user),
        "folders" => table,
        "args" => told.flags,
        "address" => told.address,
        "port" => told.port,
        // Where torch can use it; the process falls back to the processor.
        "device" => if told.on_cpu { "cpu" } else { "cuda:0" },
        "memory_limit" => limits.memory,
        "total_ram" => fresco_tensor::total_memory().unwrap_or(0),
    }
}

/// The engine and its surroundings, as packs reach them.
pub(crate) struct Surroundings {
    pub(crate) registry: Arc<LiveRegistry>,
    pub(crate) listings: Arc<dyn Listings>,
    pub(crate) folders: Folders,
    pub(crate) resources: Arc<Resources>,
    pub(crate) sink: Arc<dyn EventSink>,
    pub(crate) engine: Arc<OnceLock<Engine>>,
    /// The models in memory; none where nothing is run.
    pub(crate) models: Option<fresco_memory::Registries>,
    /// What packs added to the lists of samplers and schedules, by process.
    pub(crate) listed: Mutex<Vec<(Arc<str>, Listed)>>,
}

impl Outside for Surroundings {
    fn classes(&self, owner: &Arc<str>, classes: Vec<Arc<dyn NodeClass>>) {
        self.registry.update(|registry| {
            registry.remove_owned(owner);
            for class in classes {
                // Of equal names in two processes the same one stays, whichever is loaded first.
                let id = class.schema().id.clone();
                let other = registry.get(&id).and_then(|known| known.owner());
                if other.is_none_or(|other| other <= owner) {
                    registry.add_class(class);
                }
            }
        });
    }

    fn listed(
        &self,
        owner: &Arc<str>,
        samplers: Vec<(Arc<str>, Value)>,
        schedulers: Vec<(Arc<str>, Value)>,
    ) {
        let mut all = lock(&self.listed);
        let before = all.len();
        all.retain(|(whose, _)| whose != owner);
        let new = Listed {
            samplers,
            schedulers,
        };
        if new.is_empty() && all.len() == before {
            return;
        }
        all.push((owner.clone(), new));
        let parts: Vec<&Listed> = all.iter().map(|(_, listed)| listed).collect();
        self.registry
            .update(|registry| with_listed(registry, &parts));
    }

    fn lost(&self, owner: &Arc<str>) {
        if let Some(engine) = self.engine.get() {
            engine.drop_owned(owner);
        }
    }

    fn send(&self, event: &str, data: Value, client: Option<&str>) {
        self.sink.emit(Event {
            prompt_id: None,
            client: None,
            worker: None,
            kind: EventKind::Custom {
                event: event.into(),
                data,
                client: client.map(Into::into),
            },
        });
    }

    fn send_bytes(&self, event: u32, bytes: Arc<[u8]>, client: Option<&str>) {
        self.sink.emit(Event {
            prompt_id: None,
            client: None,
            worker: None,
            kind: EventKind::Bytes {
                event,
                bytes,
                client: client.map(Into::into),
            },
        });
    }

    fn folders(&self, table: Vec<(String, Vec<PathBuf>)>) {
        for (name, roots) in table {
            for root in roots {
                self.folders.add(&name, &root, false);
            }
        }
    }

    fn interrupt(&self, prompt: Option<&str>) {
        if let Some(engine) = self.engine.get() {
            engine.interrupt(prompt);
        }
    }

    fn node(&self, name: &str) -> Option<Arc<dyn NodeClass>> {
        let class = self.registry.snapshot().get(name)?.clone();
        class.owner().is_none().then_some(class)
    }

    fn node_info(&self, name: &str) -> Option<String> {
        let schema = self.node(name)?.schema();
        Some(json::to_string(&object_info::node_info(
            &schema,
            &*self.listings,
        )))
    }

    fn resources(&self) -> Arc<Resources> {
        self.resources.clone()
    }

    fn method(&self, name: &str, args: Args, cx: &Cx) -> Option<Result<Value, NodeError>> {
        fresco_nodes::for_packs::call(name, args, cx)
    }

    fn queue(&self, asked: &Value) -> Result<Value, String> {
        let engine = self.engine.get();
        crate::pack_queue::ask(engine.ok_or("the queue is not there yet")?, asked)
    }

    fn make_room(&self, bytes: u64, device: &str, prompt: &str) -> u64 {
        let mut most = 0;
        for one in self.models.iter().flat_map(fresco_memory::Registries::iter) {
            let devices = one.registry.devices();
            let Some(place) = devices.iter().find(|place| place.name() == device) else {
                continue;
            };
            let free = || place.free().unwrap_or(0);
            if free() < bytes {
                let wanted = fresco_memory::FreeRequest {
                    unload_models: true,
                    respect: true,
                    devices: Some(vec![device.to_owned()]),
                    ..fresco_memory::FreeRequest::default()
                };
                let command = fresco_memory::MemoryCommand::Free {
                    request: wanted,
                    running: Some(prompt.into()),
                };
                if let Err(refusal) = one.registry.carry_out(&command) {
                    tracing::warn!("no room was made on {device}: {refusal}");
                }
            }
            most = free().max(most);
        }
        most
    }

    fn set_flag(&self, name: &str, value: bool) {
        let Some(engine) = self.engine.get().filter(|_| value) else {
            return;
        };
        engine.free(FreeRequest {
            unload_models: true,
            free_memory: name == "free_memory",
            respect: false,
            force: false,
            devices: None,
            models: None,
        });
    }
}

/// Packs for the server.
pub(crate) struct ServedPacks(pub(crate) Arc<Hosts>);

impl Packs for ServedPacks {
    fn report(&self) -> Value {
        self.0.to_value()
    }

    fn mounts(&self) -> Vec<(String, PathBuf)> {
        self.0.mounts()
    }

    fn is_starting(&self) -> bool {
        self.0.is_starting()
    }

    fn wait_ready(&self) {
        self.0.wait_ready(FIRST_LOAD);
    }

    fn socket_for(&self, method: &str, path: &str) -> Option<Arc<str>> {
        self.0.socket_for(method, path)
    }

    fn sees_prompts(&self) -> bool {
        self.0.sees_prompts()
    }

    fn on_prompt(&self, body: &Map) -> Option<Map> {
        self.0.on_prompt(body)
    }

    fn problem(&self) -> Option<String> {
        self.0.problem()
    }

    fn shrink(&self) {
        self.0.shrink();
    }

    fn restart(&self) {
        self.0.restart();
    }
}

/// `fresco packs`.
pub(crate) fn packs(args: PacksArgs) -> anyhow::Result<ExitCode> {
    let assembly = Assembly::open(&FolderSettings::resolve(args.dirs))?;
    if !matches!(args.what, PacksTask::List | PacksTask::Check) {
        let folder = PackFolder {
            roots: assembly.folders.roots("custom_nodes").unwrap_or_default(),
            base: assembly.dirs.base.clone(),
            search: search(&assembly.dirs, args.python.as_deref()),
        };
        return change(
            &folder,
            args.what,
            &args.names,
            args.requirements,
            args.allow_vcs,
        );
    }
    if matches!(args.what, PacksTask::List) {
        let roots = assembly.folders.roots("custom_nodes").unwrap_or_default();
        print(&table(&list(&roots, &args.server)?))?;
        return Ok(ExitCode::SUCCESS);
    }
    let limits = PackLimits::default();
    let host = host(
        &assembly,
        args.python.as_deref(),
        &Wanted::default(),
        &limits,
        HostSettings::default(),
    );
    let surroundings: Arc<dyn Outside> = Arc::new(Surroundings {
        registry: assembly.registry.clone(),
        listings: assembly.listings.clone(),
        folders: assembly.folders.clone(),
        resources: Arc::new(Resources::default()),
        sink: Arc::new(fresco_engine::NoSink),
        engine: Arc::default(),
        models: None,
        listed: Mutex::default(),
    });
    host.start(&surroundings);
    // Nobody waits for anything else here: each pack may take as long as its import may.
    let packs = u32::try_from(host.packs().len()).unwrap_or(u32::MAX);
    host.wait_ready(FIRST_LOAD + limits.import.saturating_mul(packs));
    let rows = rows_of(&host.packs());
    host.stop();
    print(&table(&rows))?;
    let failed = host.packs().iter().any(|pack| pack.state == State::Failed);
    Ok(if failed {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

/// Does what was asked for each name, and says what became of it.
fn change(
    folder: &PackFolder,
    what: PacksTask,
    names: &[String],
    requirements: bool,
    vcs: bool,
) -> anyhow::Result<ExitCode> {
    if names.is_empty() && !requirements {
        anyhow::bail!("name the packs");
    }
    let mut said = Vec::new();
    for name in names {
        said.push(match what {
            PacksTask::Install => folder.install(name)?,
            PacksTask::Update => folder.update(name)?,
            PacksTask::Enable => folder.switch(name, true)?,
            PacksTask::Disable => folder.switch(name, false)?,
            PacksTask::List | PacksTask::Check => continue,
        });
    }
    if requirements {
        said.push(folder.requirements(vcs)?);
    }
    said.push(String::new());
    print(&said.join("\n"))?;
    Ok(ExitCode::SUCCESS)
}

fn print(text: &str) -> anyhow::Result<()> {
    let written = std::io::stdout().lock().write_all(text.as_bytes());
    written.context("cannot write to standard output")
}
