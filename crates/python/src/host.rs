//! Keeps the Python process of the packs running, and knows how they are.

mod listen;

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use fresco_graph::{Args, Codec, Cx, Map, NodeClass, NodeError, Resources, Value, lock, map};
use fresco_tensor::Tensor;

use crate::channel::{Fault, NextMessage};
use crate::class::PackClass;
use crate::discover::Candidate;
use crate::interpreter::{Interpreter, Search};
use crate::output::Logs;
use crate::report::{PackReport, Phase, State, import_times};
use crate::shim;
use crate::wire::Decoder;
use crate::worker::{Launch, Live, thread};

/// Between two looks whether an import takes too long.
const LOOK: Duration = Duration::from_millis(100);
/// How long a process may take to come up.
const HELLO: Duration = Duration::from_secs(30);
/// How long it may take to import torch and its like, before its first answer and before the first pack: minutes from a slow disk.
const LIBRARIES: Duration = Duration::from_mins(5);
/// Pauses before a process is started again after it ended.
const PAUSES: [Duration; 4] = [
    Duration::ZERO,
    Duration::from_secs(1),
    Duration::from_secs(5),
    Duration::from_secs(30),
];
/// More ends than this in ten minutes are too many.
const MAX_ENDS: usize = 5;
const ENDS_WITHIN: Duration = Duration::from_mins(10);
/// Why a process ended that somebody asked to start anew.
const RESTARTED: &str = "it was restarted";
/// How long a call waits for a process that comes back.
const COMES_BACK: Duration = Duration::from_mins(1);

/// What the rest of the program does for packs.
pub trait Outside: Send + Sync {
    /// These are the classes of one process from now on; `owner` is whose they are.
    fn classes(&self, owner: &Arc<str>, classes: Vec<Arc<dyn NodeClass>>);
    /// Samplers and schedules that packs of a process added to the lists of the host, by name.
    fn listed(
        &self,
        owner: &Arc<str>,
        samplers: Vec<(Arc<str>, Value)>,
        schedulers: Vec<(Arc<str>, Value)>,
    );
    /// Values of this owner are gone.
    fn lost(&self, owner: &Arc<str>);
    /// A message of a pack that belongs to no running call.
    fn send(&self, event: &str, data: Value, client: Option<&str>);
    /// The same in bytes, of a kind that is a number.
    fn send_bytes(&self, event: u32, bytes: Arc<[u8]>, client: Option<&str>);
    /// Folder types with their roots and extensions, as packs have changed them.
    fn folders(&self, table: Vec<(String, Vec<PathBuf>)>);
    /// A pack asks to interrupt a prompt, or what runs.
    fn interrupt(&self, prompt: Option<&str>);
    /// A built-in class.
    fn node(&self, name: &str) -> Option<Arc<dyn NodeClass>>;
    /// A built-in class as `/object_info` has it, in JSON.
    fn node_info(&self, name: &str) -> Option<String>;
    fn resources(&self) -> Arc<Resources>;
    /// A method of a model; none if there is none of this name.
    fn method(&self, name: &str, args: Args, cx: &Cx) -> Option<Result<Value, NodeError>>;
    /// What a pack asks of the queue: `what` says which question.
    fn queue(&self, asked: &Value) -> Result<Value, String>;
    /// Makes room for so many bytes on a device, as far as nobody uses what is there; gives what is free then.
    fn make_room(&self, bytes: u64, device: &str, prompt: &str) -> u64;
    /// A flag of the queue (`unload_models`, `free_memory`) outside of any prompt.
    fn set_flag(&self, name: &str, value: bool);
}

/// What a host is made of.
#[derive(Clone)]
pub struct Settings {
    pub packs: Vec<Candidate>,
    /// The pack that has this process alone; none where packs share it.
    pub alone: Option<String>,
    pub search: Search,
    /// Where our Python package is written.
    pub unpack_to: PathBuf,
    pub folder: PathBuf,
    /// Variables of the environment that packs see.
    pub environment: Vec<(String, String)>,
    /// What the process is told at its start: folders, flags, devices.
    pub hello: Map,
    /// Names of built-in nodes, which packs cannot replace.
    pub builtin: Vec<String>,
    pub codec: Arc<dyn Codec<Tensor>>,
    /// How long a call that was interrupted may go on before its process is ended.
    pub interrupt_grace: Duration,
    /// How long one pack may take to be imported.
    pub import_limit: Duration,
}

struct Inner {
    phase: Phase,
    live: Option<Arc<Live>>,
    packs: Vec<PackReport>,
    routes: Vec<(String, String)>,
    on_prompt: bool,
    socket: Option<Arc<str>>,
    versions: Map,
    starts: u64,
    /// Packs that ended the process while they were imported.
    left_out: Vec<String>,
    ends: VecDeque<Instant>,
    stopping: bool,
    /// How long to wait before the process is started again; none if it is not.
    pause: Option<Duration>,
    /// Somebody wants it now.
    hurry: bool,
    supervised: bool,
    mounts: Vec<(String, PathBuf)>,
}

/// The packs of this program.
pub struct Host {
    settings: Settings,
    /// Whose classes these are.
    owner: Arc<str>,
    outside: OnceLock<Arc<dyn Outside>>,
    launch: OnceLock<Launch>,
    logs: Arc<Logs>,
    inner: Mutex<Inner>,
    changed: Condvar,
    me: Weak<Host>,
}

impl Host {
    /// Nothing is started yet.
    pub fn new(settings: Settings) -> Arc<Self> {
        let packs = settings
            .packs
            .iter()
            .map(|pack| PackReport {
                name: pack.name.clone(),
                path: pack.path.to_string_lossy().into_owned(),
                module: format!("custom_nodes.{}", pack.name),
                state: State::Waiting,
                error: None,
                trace: None,
                seconds: 0.0,
                classes: Vec::new(),
                ignored: Vec::new(),
                overridden: Vec::new(),
                web: Vec::new(),
                undescribed: Vec::new(),
                ends: 0,
                last_end: None,
                outside: Vec::new(),
            })
            .collect::<Vec<_>>();
        let owner: Arc<str> = match &settings.alone {
            Some(pack) => format!("python:{pack}").into(),
            None => "python".into(),
        };
        let phase = if packs.is_empty() {
            Phase::Idle
        } else {
            Phase::Starting
        };
        Arc::new_cyclic(|me| Self {
            settings,
            owner,
            outside: OnceLock::new(),
            launch: OnceLock::new(),
            logs: Arc::default(),
            inner: Mutex::new(Inner {
                phase,
                live: None,
                packs,
                routes: Vec::new(),
                on_prompt: false,
                socket: None,
                versions: Map::new(),
                starts: 0,
                left_out: Vec::new(),
                ends: VecDeque::new(),
                stopping: false,
                pause: None,
                hurry: false,
                supervised: false,
                mounts: Vec::new(),
            }),
            changed: Condvar::new(),
            me: me.clone(),
        })
    }

    /// Starts the process, if there are packs.
    pub fn start(&self, outside: Arc<dyn Outside>) {
        let _ = self.outside.set(outside);
        if self.settings.packs.is_empty() {
            return;
        }
        self.supervised();
    }

    /// One thread starts the process again and again.
    fn supervised(&self) {
        let already = std::mem::replace(&mut lock(&self.inner).supervised, true);
        if already {
            return;
        }
        let me = self.me.clone();
        let work = move || {
            while let Some(host) = me.upgrade() {
                host.bring_up();
                if !host.pause() {
                    break;
                }
            }
        };
        if let Err(error) = thread("packs", work) {
            self.unavailable(&format!("no thread for packs: {error}"));
        }
    }

    /// Waits as long as the last end asks for; false if the process stays away.
    fn pause(&self) -> bool {
        let mut inner = lock(&self.inner);
        let Some(pause) = inner.pause.take().filter(|_| !inner.stopping) else {
            inner.supervised = false;
            return false;
        };
        let until = Instant::now() + pause;
        while !inner.hurry && !inner.stopping {
            let Some(left) = until.checked_duration_since(Instant::now()) else {
                break;
            };
            inner = self
                .changed
                .wait_timeout(inner, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        inner.hurry = false;
        true
    }

    /// Whose classes these are: the same for every process that is started for them.
    pub(crate) fn owner(&self) -> &Arc<str> {
        &self.owner
    }

    /// What the process is called where there are several.
    fn label(&self) -> &str {
        self.settings.alone.as_deref().unwrap_or("shared")
    }

    /// Notes at a pack that one of its classes could not say what it declares.
    pub(crate) fn left_out_class(&self, module: &str, class: &str, why: &str) {
        let mut inner = lock(&self.inner);
        if let Some(pack) = inner.packs.iter_mut().find(|pack| pack.module == module) {
            pack.undescribed.push((class.to_owned(), why.to_owned()));
        }
    }

    /// The class has said what it declares, now if not before.
    pub(crate) fn described_class(&self, module: &str, class: &str) {
        let mut inner = lock(&self.inner);
        if let Some(pack) = inner.packs.iter_mut().find(|pack| pack.module == module) {
            pack.undescribed.retain(|(name, _)| name != class);
        }
    }

    /// Notes at a pack that the process ended while it ran one of its nodes.
    pub(crate) fn blame(&self, module: &str, why: &str) {
        blame(&mut lock(&self.inner), module, why);
    }

    fn outside(&self) -> Option<&Arc<dyn Outside>> {
        self.outside.get()
    }

    pub(crate) fn interrupt_grace(&self) -> Duration {
        self.settings.interrupt_grace
    }

    fn set_phase(&self, phase: Phase) {
        lock(&self.inner).phase = phase;
        self.changed.notify_all();
    }

    fn unavailable(&self, why: &str) {
        tracing::warn!("packs do not run: {why}");
        {
            let mut inner = lock(&self.inner);
            for pack in &mut inner.packs {
                if pack.state != State::Failed {
                    pack.state = State::Failed;
                    pack.error = Some(why.to_owned());
                }
            }
        }
        self.set_phase(Phase::Unavailable(why.into()));
    }

    /// One process from its start until its packs are loaded. Its end is heard of in [`Listener::ended`].
    fn bring_up(&self) {
        if lock(&self.inner).stopping {
            return;
        }
        let launch = match self.launch() {
            Ok(launch) => launch,
            Err(why) => return self.unavailable(&why),
        };
        let owner: Arc<str> = {
            let mut inner = lock(&self.inner);
            inner.starts += 1;
            for pack in &mut inner.packs {
                if pack.state != State::Failed {
                    pack.state = State::Waiting;
                }
            }
            format!("{}#{}", self.owner, inner.starts).into()
        };
        let Some(me) = self.me.upgrade() else { return };
        let codec = self.settings.codec.clone();
        let live = match Live::start(&launch, owner, codec, me) {
            Ok(live) => live,
            Err(error) => {
                let why = format!("cannot start {}: {error}", launch.python.display());
                return self.unavailable(&why);
            }
        };
        lock(&self.inner).live = Some(live.clone());
        // An end on the way is the listener's business.
        if let Err(fault) = self.load(&live)
            && !matches!(fault, Fault::Died(_))
        {
            let why = match fault {
                Fault::Raised(error) => crate::class::error_text(&error),
                _ => "it does not answer".to_owned(),
            };
            tracing::warn!("the process of the packs is ended: {why}");
            live.kill("it took too long");
        }
        // The kernel ends the process with the thread that started it, so that none is left when the program is killed.
        live.channel.wait_closed();
    }

    /// How the process is started; looked for once, so that a restart loses no time.
    fn launch(&self) -> Result<Launch, String> {
        if let Some(known) = self.launch.get() {
            return Ok(known.clone());
        }
        let Interpreter { path, version } =
            self.settings.search.find().map_err(|e| e.to_string())?;
        let unpacked = shim::unpack(&self.settings.unpack_to).map_err(|error| {
            let place = self.settings.unpack_to.display();
            format!("cannot write the Python part of Fresco to {place}: {error}")
        })?;
        tracing::info!("packs run in Python {version}, {}", path.display());
        let launch = Launch {
            logs: self.logs.clone(),
            python: path,
            path: vec![unpacked.host, unpacked.package],
            folder: self.settings.folder.clone(),
            environment: self.settings.environment.clone(),
        };
        Ok(self.launch.get_or_init(|| launch).clone())
    }

    fn load(&self, live: &Arc<Live>) -> Result<(), Fault> {
        let mut hello = self.settings.hello.clone();
        let names: Vec<Value> = self.settings.builtin.iter().map(Value::from).collect();
        hello.insert("builtin".into(), names.clone().into());
        let versions = live.channel.ask_and_wait("hello", hello, LIBRARIES)?;
        let left_out = lock(&self.inner).left_out.clone();
        let wanted: Vec<&Candidate> = self
            .settings
            .packs
            .iter()
            .filter(|pack| !left_out.contains(&pack.name))
            .collect();
        let packs: Vec<Value> = wanted
            .iter()
            .map(|pack| {
                map! {
                    "name" => &pack.name,
                    "path" => pack.path.to_string_lossy().as_ref(),
                    "file" => pack.file,
                    "module" => format!("custom_nodes.{}", pack.name),
                }
                .into()
            })
            .collect();
        let question = map! {"packs" => packs, "protected" => names};
        let loaded = self.imported(live, question)?;
        *lock(&live.importing) = None;
        *lock(&live.speaker) = "packs".into();
        if let Value::Map(versions) = &versions {
            self.say_what_is_missing(versions);
            lock(&self.inner).versions.clone_from(versions);
        }
        self.take_over(live, &loaded);
        Ok(())
    }

    /// Waits while packs are imported; each may take so long.
    fn imported(&self, live: &Arc<Live>, question: Map) -> Result<Value, Fault> {
        let slot = live.channel.ask(
            live.channel.number(),
            "load",
            question,
            crate::segment::Outgoing::default(),
        );
        let mut seen = (None, Instant::now());
        loop {
            if let NextMessage::Answer(answer) = slot.next(LOOK) {
                return answer.map(|(value, _)| value);
            }
            let importing = lock(&live.importing).clone();
            if importing != seen.0 {
                seen = (importing, Instant::now());
            }
            let limit = match seen.0 {
                Some(_) => self.settings.import_limit,
                None => LIBRARIES,
            };
            if seen.1.elapsed() > limit {
                return Err(Fault::Late);
            }
        }
    }

    fn say_what_is_missing(&self, versions: &Map) {
        let has = |name: &str| versions.get(name).is_some_and(Value::truthy);
        let failed = lock(&self.inner)
            .packs
            .iter()
            .filter(|pack| {
                let error = pack.error.as_deref().unwrap_or_default();
                error.contains("No module named")
            })
            .count();
        for name in ["torch", "numpy", "aiohttp"] {
            if !has(name) {
                tracing::warn!(
                    "{name} is not installed in the Python of the packs ({failed} packs could not be imported for want of a \
                     module); install it there, or name another Python with --python"
                );
            }
        }
    }

    fn take_over(&self, live: &Arc<Live>, loaded: &Value) {
        let Some(me) = self.me.upgrade() else { return };
        let names: Vec<Arc<str>> = loaded
            .get("classes")
            .and_then(Value::as_list)
            .unwrap_or_default()
            .iter()
            .filter_map(Value::as_str)
            .map(Into::into)
            .collect();
        let module_of = |name: &str| {
            let inner = lock(&self.inner);
            let pack = inner
                .packs
                .iter()
                .rev()
                .find(|p| p.classes.iter().any(|c| c == name));
            pack.map_or_else(|| "custom_nodes".to_owned(), |pack| pack.module.clone())
        };
        let classes: Vec<Arc<dyn NodeClass>> = names
            .into_iter()
            .map(|name| {
                let module = module_of(&name);
                Arc::new(PackClass::new(me.clone(), live, name, &module)) as Arc<dyn NodeClass>
            })
            .collect();
        let routes = pairs(loaded.get("routes"));
        let socket = if routes.is_empty() {
            None
        } else {
            Self::open_socket(live)
        };
        if let Some(outside) = self.outside() {
            outside.folders(folder_table(loaded.get("folders")));
            outside.classes(&self.owner, classes);
            let decoder = Decoder {
                live,
                numbers: None,
                sent: &[],
                pack: self.label(),
            };
            let named = |key: &str| named(loaded.get(key), &decoder);
            outside.listed(&self.owner, named("samplers"), named("schedulers"));
        }
        let table = {
            let mut inner = lock(&self.inner);
            inner.routes = routes;
            inner.socket = socket;
            inner.on_prompt = loaded.get("on_prompt").is_some_and(Value::truthy);
            inner.mounts = pairs(loaded.get("web"))
                .into_iter()
                .map(|(name, folder)| (name, PathBuf::from(folder)))
                .collect();
            import_times(&inner.packs)
        };
        tracing::info!("{table}");
        self.set_phase(Phase::Ready);
    }

    /// Lets the process listen for requests to routes of packs.
    #[expect(
        clippy::disallowed_methods,
        reason = "the path of a socket has room for 108 bytes, which a base directory may take alone"
    )]
    fn open_socket(live: &Arc<Live>) -> Option<Arc<str>> {
        let name = format!("fresco-{}-{}.sock", std::process::id(), live.process());
        let path = std::env::temp_dir().join(name);
        let question = map! {"path" => path.to_string_lossy().as_ref()};
        match live.channel.ask_and_wait("http", question, HELLO) {
            Ok(Value::Str(path)) => Some(path),
            Ok(Value::Int(port)) => Some(port.to_string().into()),
            _ => {
                tracing::warn!("routes of packs are not served");
                None
            }
        }
    }

    /// The process, if it runs; waits for one that comes back.
    pub(crate) fn live(&self) -> Result<Arc<Live>, Arc<str>> {
        let began = Instant::now();
        let mut inner = lock(&self.inner);
        loop {
            match (&inner.phase, &inner.live) {
                (Phase::Ready, Some(live)) if live.channel.is_open() => return Ok(live.clone()),
                (Phase::Unavailable(why), _) => return Err(why.clone()),
                (Phase::Idle, _) => return Err("there are no packs".into()),
                _ => {}
            }
            let Some(left) = COMES_BACK.checked_sub(began.elapsed()) else {
                return Err("the process of the packs does not come back".into());
            };
            inner = self
                .changed
                .wait_timeout(inner, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    /// The process, if it answers now.
    pub(crate) fn live_now(&self) -> Option<Arc<Live>> {
        let inner = lock(&self.inner);
        let live = inner.live.as_ref().filter(|live| live.channel.is_open());
        live.filter(|_| inner.phase == Phase::Ready).cloned()
    }

    /// Waits until packs are loaded or have failed.
    pub fn wait_ready(&self, limit: Duration) {
        let began = Instant::now();
        let mut inner = lock(&self.inner);
        while inner.phase == Phase::Starting {
            let Some(left) = limit.checked_sub(began.elapsed()) else {
                return;
            };
            inner = self
                .changed
                .wait_timeout(inner, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    pub fn is_starting(&self) -> bool {
        lock(&self.inner).phase == Phase::Starting
    }

    pub fn phase(&self) -> Phase {
        lock(&self.inner).phase.clone()
    }

    pub fn packs(&self) -> Vec<PackReport> {
        lock(&self.inner).packs.clone()
    }

    /// Folders with scripts for the front-end, by mount name.
    pub fn mounts(&self) -> Vec<(String, PathBuf)> {
        lock(&self.inner).mounts.clone()
    }

    /// The private socket of the packs, if one of their routes takes this request.
    pub fn socket_for(&self, method: &str, path: &str) -> Option<Arc<str>> {
        let inner = lock(&self.inner);
        let takes = |(verb, pattern): &(String, String)| {
            (verb == "*" || verb == method || (verb == "GET" && method == "HEAD"))
                && crate::routes::matches(pattern, path)
        };
        if !inner.routes.iter().any(takes) {
            return None;
        }
        inner.socket.clone()
    }

    /// Whether a pack wants to see prompts before they are checked.
    pub fn sees_prompts(&self) -> bool {
        lock(&self.inner).on_prompt
    }

    /// Lets packs change a prompt before it is checked.
    pub fn on_prompt(&self, body: &Map) -> Option<Map> {
        let live = self.live().ok()?;
        let question = map! {"json" => body.clone()};
        match live
            .channel
            .ask_and_wait("on_prompt", question, Duration::from_secs(10))
        {
            Ok(Value::Map(changed)) => Some(Arc::unwrap_or_clone(changed)),
            Ok(_) => None,
            Err(_) => {
                tracing::warn!(
                    "packs that change prompts did not answer; the prompt is taken as it came"
                );
                None
            }
        }
    }

    /// Everything about packs, for `/api/packs`.
    pub fn to_value(&self) -> Value {
        let inner = lock(&self.inner);
        let why = match &inner.phase {
            Phase::Unavailable(why) => Some(Value::from(why)),
            _ => None,
        };
        map! {
            "state" => inner.phase.name(),
            "problem" => why,
            "python" => inner.versions.clone(),
            "name" => self.label(),
            "process" => inner.live.as_ref().map(|live| live.process()),
            "starts" => inner.starts,
            "memory" => inner.live.as_ref().map(|live| {
                map! {"resident" => live.resident(), "gpu" => live.on_gpu.load(Ordering::Relaxed)}
            }),
            "memory_files" => inner.live.as_ref().map(|live| {
                let (bytes, written) = live.segments.usage();
                map! {"bytes" => bytes, "written" => written}
            }),
            "packs" => inner
                .packs
                .iter()
                .map(|pack| pack.to_value(&self.logs.of(&pack.name), self.label()))
                .collect::<Vec<_>>(),
        }
        .into()
    }

    /// Lets packs give memory back that they keep for later.
    pub fn shrink(&self) {
        if let Some(live) = self.live_now() {
            live.channel.event("shrink", Map::new());
        }
    }

    /// Starts a process that was given up, or a fresh one.
    pub fn restart(&self) {
        let live = {
            let mut inner = lock(&self.inner);
            inner.ends.clear();
            inner.left_out.clear();
            for pack in &mut inner.packs {
                pack.state = State::Waiting;
                pack.error = None;
                pack.trace = None;
            }
            if self.settings.packs.is_empty() {
                return;
            }
            inner.phase = Phase::Restarting;
            inner.hurry = true;
            inner.live.take()
        };
        self.changed.notify_all();
        if let Some(live) = live {
            live.kill(RESTARTED);
        }
        self.supervised();
    }

    pub fn stop(&self) {
        let live = {
            let mut inner = lock(&self.inner);
            inner.stopping = true;
            inner.live.take()
        };
        self.changed.notify_all();
        if let Some(live) = live {
            live.stop();
        }
    }
}

/// Notes at a pack that the process ended while it ran one of its nodes.
fn blame(inner: &mut Inner, module: &str, why: &str) {
    if let Some(pack) = inner.packs.iter_mut().find(|pack| pack.module == module) {
        pack.ends += 1;
        pack.last_end = Some(why.to_owned());
    }
}

/// Objects of the process by name.
fn named(value: Option<&Value>, decoder: &Decoder<'_>) -> Vec<(Arc<str>, Value)> {
    let list = value.and_then(Value::as_list).unwrap_or_default();
    list.iter()
        .filter_map(|pair| match pair.as_list()? {
            [Value::Str(name), object] => Some((name.clone(), decoder.value(object).ok()?)),
            _ => None,
        })
        .collect()
}

fn pairs(value: Option<&Value>) -> Vec<(String, String)> {
    let list = value.and_then(Value::as_list).unwrap_or_default();
    let pair = |value: &Value| match value.as_list()? {
        [Value::Str(a), Value::Str(b)] => Some((a.to_string(), b.to_string())),
        _ => None,
    };
    list.iter().filter_map(pair).collect()
}

fn folder_table(value: Option<&Value>) -> Vec<(String, Vec<PathBuf>)> {
    let list = value.and_then(Value::as_list).unwrap_or_default();
    list.iter()
        .filter_map(|row| {
            let row = row.as_list()?;
            let paths = row.get(1)?.as_list()?;
            let paths = paths
                .iter()
                .filter_map(Value::as_str)
                .map(PathBuf::from)
                .collect();
            Some((row.first()?.as_str()?.to_owned(), paths))
        })
        .collect()
}
