//! Weights that are only counted, devices of their own for every test, and a look at everything at its end.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use fresco_memory::{
    BoxError, ContentKey, EjectOthers, Event, FileStamp, Handle, HandleOptions, HostMemory, Lease,
    ModelRegistry, ModelReport, Need, Placement, Policy, PolicySource, Probes, Settings, Unit,
    Weights, Who,
};
use fresco_tensor::device::Allocation;
use fresco_tensor::{Device, TensorError};

pub(crate) const GIB: u64 = 1 << 30;
pub(crate) const MIB: u64 = 1 << 20;

/// Weights without numbers: every unit is an allocation where it is.
pub(crate) struct Fake {
    units: Arc<[Unit]>,
    homes: Mutex<Vec<Option<Allocation>>>,
    /// Bytes in main memory of all fakes of a test.
    host: Arc<AtomicU64>,
    pub(crate) loads: AtomicU64,
    pub(crate) read: AtomicU64,
    pub(crate) moves: AtomicU64,
    pub(crate) ahead: AtomicU64,
    pub(crate) fail_load: AtomicBool,
    pub(crate) fail_release: AtomicBool,
    pub(crate) panic_load: AtomicBool,
    pub(crate) fail_move: AtomicBool,
    /// Called while the copies of moves are made.
    pub(crate) while_copying: Mutex<Option<WhileCopying>>,
    /// Bytes of each unit in main memory that are still in their file.
    pub(crate) unread: AtomicU64,
    /// Something of another model that it holds while it is in memory.
    pub(crate) holds: Mutex<Option<Handle>>,
}

/// What a test does while units are copied.
pub(crate) type WhileCopying = Box<dyn FnOnce() -> Result<(), TensorError> + Send>;

#[derive(Debug, thiserror::Error)]
#[error("injected")]
pub(crate) struct Injected;

impl Fake {
    pub(crate) fn new(units: Vec<Unit>, host: &Arc<AtomicU64>) -> Arc<Self> {
        Arc::new(Self {
            homes: Mutex::new(units.iter().map(|_| None).collect()),
            units: units.into(),
            host: Arc::clone(host),
            loads: AtomicU64::new(0),
            read: AtomicU64::new(0),
            moves: AtomicU64::new(0),
            ahead: AtomicU64::new(0),
            fail_load: AtomicBool::new(false),
            fail_release: AtomicBool::new(false),
            panic_load: AtomicBool::new(false),
            fail_move: AtomicBool::new(false),
            while_copying: Mutex::default(),
            unread: AtomicU64::new(0),
            holds: Mutex::default(),
        })
    }

    fn mine(&self) -> Vec<usize> {
        let variant = self.units.iter().any(|unit| unit.own);
        (0..self.units.len())
            .filter(|i| !variant || self.units[*i].own)
            .collect()
    }

    fn count(&self, allocation: Option<&Allocation>, add: bool) {
        if let Some(memory) = allocation.filter(|memory| memory.device().is_cpu()) {
            if add {
                self.host.fetch_add(memory.bytes(), Ordering::SeqCst);
            } else {
                self.host.fetch_sub(memory.bytes(), Ordering::SeqCst);
            }
        }
    }
}

impl Weights for Fake {
    fn units(&self) -> Arc<[Unit]> {
        Arc::clone(&self.units)
    }

    fn home(&self, unit: usize) -> Option<Device> {
        let homes = self.homes.lock().unwrap();
        homes[unit].as_ref().map(|memory| memory.device().clone())
    }

    fn unread_bytes(&self, _: usize) -> u64 {
        self.unread.load(Ordering::SeqCst)
    }

    fn load(&self, _: &Device) -> Result<u64, BoxError> {
        self.loads.fetch_add(1, Ordering::SeqCst);
        let mut homes = self.homes.lock().unwrap();
        let mut read = 0;
        let mine = self.mine();
        for (place, unit) in mine.iter().enumerate() {
            // Half of it is there when it goes wrong.
            if place * 2 >= mine.len() && self.fail_load.load(Ordering::SeqCst) {
                return Err(Box::new(Injected));
            }
            if homes[*unit].is_none() {
                homes[*unit] = Some(Device::cpu().allocate(self.units[*unit].bytes)?);
                self.count(homes[*unit].as_ref(), true);
                read += self.units[*unit].bytes;
            }
        }
        drop(homes);
        assert!(!self.panic_load.load(Ordering::SeqCst), "injected");
        self.read.fetch_add(read, Ordering::SeqCst);
        Ok(read)
    }

    fn move_to(&self, unit: usize, device: &Device) -> Result<(), TensorError> {
        if self.fail_move.load(Ordering::SeqCst) {
            let reason = "injected".to_owned();
            return Err(TensorError::Invalid { op: "move", reason });
        }
        let mut homes = self.homes.lock().unwrap();
        if let Some(memory) = &homes[unit] {
            memory.device().check_usable()?;
        }
        let memory = device.allocate(self.units[unit].bytes)?;
        self.count(homes[unit].as_ref(), false);
        homes[unit] = Some(memory);
        self.count(homes[unit].as_ref(), true);
        self.moves.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    fn finish_moves(&self) -> Result<(), TensorError> {
        let act = self.while_copying.lock().unwrap().take();
        act.map_or(Ok(()), |act| act())
    }

    fn release(&self) -> Result<(), BoxError> {
        if self.fail_release.load(Ordering::SeqCst) {
            return Err(Box::new(Injected));
        }
        self.holds.lock().unwrap().take();
        let mut homes = self.homes.lock().unwrap();
        for unit in self.mine() {
            self.count(homes[unit].as_ref(), false);
            homes[unit] = None;
        }
        Ok(())
    }

    fn set_ahead(&self, count: usize) {
        self.ahead.store(count as u64, Ordering::SeqCst);
    }

    fn drop_ahead(&self) {}
}

impl Drop for Fake {
    fn drop(&mut self) {
        for home in self.homes.lock().unwrap().iter() {
            self.count(home.as_ref(), false);
        }
    }
}

pub(crate) fn unit(name: &str, bytes: u64) -> Unit {
    Unit {
        name: name.into(),
        bytes,
        cost: bytes,
        embedding: false,
        biased: true,
        castable: true,
        own: false,
        block: None,
    }
}

/// So many units of one size, `b00`, `b01`, ...
pub(crate) fn even(count: usize, bytes: u64) -> Vec<Unit> {
    (0..count)
        .map(|i| unit(&format!("b{i:02}"), bytes))
        .collect()
}

/// A loader's answer.
pub(crate) struct Model {
    pub(crate) handle: Handle,
    pub(crate) fake: Arc<Fake>,
    pub(crate) attached: bool,
}

impl Model {
    /// How often its file was read.
    pub(crate) fn reads(&self) -> u64 {
        self.fake.loads.load(Ordering::SeqCst)
    }

    pub(crate) fn id(&self) -> String {
        self.handle.id().to_string()
    }
}

/// The settings of a loader node that tests care about.
#[derive(Clone, Default)]
pub(crate) struct LoaderSettings {
    pub(crate) policy: Option<Policy>,
    pub(crate) eject: EjectOthers,
    pub(crate) placement: Option<Placement>,
    /// Place in the list of accelerators; the main memory if there is none.
    pub(crate) device: Option<usize>,
    pub(crate) cpu: bool,
    pub(crate) offload: Option<usize>,
    pub(crate) text_encoder: bool,
    /// Another content of the same file.
    pub(crate) edition: u64,
}

pub(crate) fn with_policy(policy: Policy) -> LoaderSettings {
    LoaderSettings {
        policy: Some(policy),
        ..LoaderSettings::default()
    }
}

static SIMS: AtomicU32 = AtomicU32::new(5000);

/// Held by the test that has the GPU.
static GPU: Mutex<()> = Mutex::new(());

/// The first device of a test: with `FRESCO_TEST_DEVICE=cuda:0` that GPU, as if it had only so much memory. One test has it at
/// a time; a second registry within one test, and sizes that the GPU does not have, get a simulated device.
#[expect(
    clippy::disallowed_methods,
    reason = "which device tests are about is said from outside"
)]
fn first_device(size: u64) -> (Device, Option<MutexGuard<'static, ()>>) {
    let wanted = std::env::var("FRESCO_TEST_DEVICE").unwrap_or_default();
    let held = HAS_GPU.get();
    if wanted.is_empty() || held {
        return (simulated(size), None);
    }
    let gpu = GPU.lock().unwrap_or_else(PoisonError::into_inner);
    let device = Device::open(&wanted).unwrap();
    let state = device.gpu().unwrap();
    // What the test before left behind for the next step.
    device.trim();
    if size + 2 * GIB > state.total {
        return (simulated(size), None);
    }
    device.leave_to_others(state.total - size);
    device.reset_peak();
    assert_eq!((device.capacity(), device.used()), (Some(size), 0));
    HAS_GPU.set(true);
    (device, Some(gpu))
}

thread_local! {
    static HAS_GPU: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

fn simulated(size: u64) -> Device {
    let number = SIMS.fetch_add(1, Ordering::SeqCst);
    Device::register_sim(number, size).unwrap()
}

/// A registry with devices of its own. What it says at the end of a test must fit together.
pub(crate) struct Bench {
    pub(crate) registry: ModelRegistry,
    pub(crate) devices: Vec<Device>,
    pub(crate) host: Arc<AtomicU64>,
    /// Moves only when told to.
    pub(crate) clock: Arc<Mutex<Instant>>,
    /// Main memory in all; available is what fakes leave of it.
    pub(crate) ram: Arc<AtomicU64>,
    /// While the test has a GPU. Models of the test go before it does.
    gpu: Option<MutexGuard<'static, ()>>,
}

impl Drop for Bench {
    fn drop(&mut self) {
        if self.gpu.is_some() {
            HAS_GPU.set(false);
        }
        if !std::thread::panicking() {
            self.check();
        }
    }
}

impl Bench {
    pub(crate) fn new(sizes: &[u64]) -> Self {
        Self::with(Settings::default(), sizes)
    }

    pub(crate) fn with(settings: Settings, sizes: &[u64]) -> Self {
        let (mut devices, mut gpu) = (Vec::new(), None);
        for (place, size) in sizes.iter().enumerate() {
            devices.push(if place == 0 {
                let (device, guard) = first_device(*size);
                gpu = guard;
                device
            } else {
                simulated(*size)
            });
        }
        let registry = ModelRegistry::new(settings, devices.clone());
        let mut bench = Self::over(registry, devices);
        bench.gpu = gpu;
        bench
    }

    /// Over devices that a test has made itself.
    pub(crate) fn over(registry: ModelRegistry, devices: Vec<Device>) -> Self {
        let host = Arc::new(AtomicU64::new(0));
        let clock = Arc::new(Mutex::new(Instant::now()));
        let ram = Arc::new(AtomicU64::new(1 << 50));
        let (time, bytes, total) = (Arc::clone(&clock), Arc::clone(&host), Arc::clone(&ram));
        registry.set_probes(Probes {
            now: Arc::new(move || *time.lock().unwrap()),
            host: Arc::new(move || {
                let total = total.load(Ordering::SeqCst);
                Some(HostMemory {
                    total,
                    available: total.saturating_sub(bytes.load(Ordering::SeqCst)),
                })
            }),
        });
        Self {
            registry,
            devices,
            host,
            clock,
            ram,
            gpu: None,
        }
    }

    pub(crate) fn pass(&self, time: Duration) {
        *self.clock.lock().unwrap() += time;
    }

    pub(crate) fn check(&self) {
        let problems = self.registry.check();
        assert!(problems.is_empty(), "{problems:#?}");
    }

    pub(crate) fn name(&self, device: usize) -> String {
        self.devices[device].name()
    }

    /// What a loader node does.
    pub(crate) fn load(
        &self,
        who: &Who,
        file: &str,
        units: &[Unit],
        told: &LoaderSettings,
    ) -> Model {
        let key = ContentKey {
            files: vec![FileStamp {
                path: PathBuf::from(format!("/models/{file}")),
                size: units.iter().map(|unit| unit.bytes).sum(),
                modified: Some(SystemTime::UNIX_EPOCH + Duration::from_secs(told.edition)),
            }],
            component: "diffusion".to_owned(),
            options: String::new(),
        };
        let opened = self
            .registry
            .open(who, &key, "test", || {
                let fake = Fake::new(units.to_vec(), &self.host);
                let weights: Arc<dyn Weights> = Arc::clone(&fake) as _;
                Ok::<_, Injected>((fake, weights))
            })
            .unwrap();
        let compute = if told.cpu || self.devices.is_empty() {
            Device::cpu()
        } else {
            self.devices[told.device.unwrap_or(0)].clone()
        };
        let options = HandleOptions {
            compute,
            offload: told
                .offload
                .map_or_else(Device::cpu, |place| self.devices[place].clone()),
            placement: told.placement.clone(),
            eject_others: told.eject,
            policy: told.policy.unwrap_or(Policy::Auto),
            source: told
                .policy
                .map_or(PolicySource::Default, |_| PolicySource::NodeInput),
            text_encoder: told.text_encoder,
            full: false,
        };
        Model {
            handle: self.registry.handle(who, &opened.id, options),
            fake: opened.shared,
            attached: opened.attached,
        }
    }

    /// A variant whose first units are its own.
    pub(crate) fn patch(&self, model: &Model, own: usize) -> Model {
        let mut units = model.fake.units().to_vec();
        for (index, unit) in units.iter_mut().enumerate() {
            unit.own = index < own;
        }
        let fake = Fake::new(units, &self.host);
        let weights: Arc<dyn Weights> = Arc::clone(&fake) as _;
        Model {
            handle: model.handle.derive(weights, own),
            fake,
            attached: true,
        }
    }

    /// A whole prompt.
    pub(crate) fn run<R>(&self, prompt: &str, body: impl FnOnce() -> R) -> R {
        self.registry.prompt_started(prompt);
        let result = body();
        self.registry.prompt_ended(prompt);
        self.check();
        result
    }

    pub(crate) fn lease(&self, prompt: &str, models: &[&Model]) -> Lease {
        let handles: Vec<&Handle> = models.iter().map(|model| &model.handle).collect();
        let lease = self
            .registry
            .lease(&who(prompt, "sampler"), &handles, Need::default());
        lease.unwrap()
    }

    /// A use that is over at once.
    pub(crate) fn touch(&self, prompt: &str, models: &[&Model]) {
        drop(self.lease(prompt, models));
    }

    pub(crate) fn report(&self, model: &Model) -> Option<ModelReport> {
        self.registry.model(&model.id()).map(|(report, _)| report)
    }

    /// Bytes on an accelerator.
    pub(crate) fn on(&self, model: &Model, device: usize) -> u64 {
        let name = self.name(device);
        let report = self.report(model);
        let places = report.map(|report| report.residency).unwrap_or_default();
        places
            .iter()
            .find(|(device, _)| *device == name)
            .map_or(0, |(_, bytes)| *bytes)
    }

    pub(crate) fn on_host(&self, model: &Model) -> u64 {
        self.report(model).map_or(0, |report| report.host_bytes)
    }

    /// Ids of all listed models.
    pub(crate) fn listed(&self) -> Vec<String> {
        let snapshot = self.registry.snapshot();
        snapshot
            .models
            .iter()
            .map(|model| model.weights.to_string())
            .collect()
    }

    pub(crate) fn events(&self, since: u64, kind: &str) -> Vec<Event> {
        self.registry.events(since, &[kind.to_owned()], usize::MAX)
    }

    /// Bytes and units by device, as the test of a placement wants them.
    pub(crate) fn homes(&self, model: &Model) -> Vec<Option<String>> {
        let (_, units) = self
            .registry
            .model(&model.handle.model().to_string())
            .unwrap();
        units.into_iter().map(|unit| unit.home).collect()
    }
}

pub(crate) fn who(prompt: &str, node: &str) -> Who {
    Who {
        client: "client".into(),
        prompt: prompt.into(),
        node: node.into(),
    }
}

/// The three models of the cases: diffusion, VAE, text encoder.
pub(crate) struct Trio {
    pub(crate) u: Model,
    pub(crate) v: Model,
    pub(crate) c: Model,
}

pub(crate) const U: u64 = 5 * GIB;
pub(crate) const V: u64 = GIB / 2;
pub(crate) const C: u64 = GIB;

impl Bench {
    pub(crate) fn trio(
        &self,
        prompt: &str,
        u: &LoaderSettings,
        v: &LoaderSettings,
        c: &LoaderSettings,
    ) -> Trio {
        Trio {
            u: self.load(&who(prompt, "u"), "u.safetensors", &even(20, GIB / 4), u),
            v: self.load(&who(prompt, "v"), "v.safetensors", &even(4, GIB / 8), v),
            c: self.load(&who(prompt, "c"), "c.safetensors", &even(10, C / 10), c),
        }
    }

    /// As a workflow does it: encode, sample, decode.
    pub(crate) fn compute(&self, prompt: &str, trio: &Trio) {
        self.touch(prompt, &[&trio.c]);
        self.touch(prompt, &[&trio.u]);
        self.touch(prompt, &[&trio.v]);
    }
}
