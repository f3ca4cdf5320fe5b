//! A GPU: its context, streams and books.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use super::driver::{Attribute, Driver, DriverError, Shared};
use super::{kernels, ring, staging};
use crate::buffer::or_raise;
use crate::error::{Result, TensorError};
use crate::gpu::{Format, GpuSettings, GpuState, Recorder};
use crate::lock::lock;

/// One GPU of this machine.
pub(crate) struct CudaDevice {
    /// Itself, for what holds it longer than a call.
    me: Weak<Self>,
    pub(super) number: u32,
    name: String,
    target: kernels::Target,
    multiprocessors: u32,
    shared_limit: u32,
    total: u64,
    pub(super) driver: &'static Driver,
    pub(super) context: Shared,
    /// Where everything is computed, in the order in which it was asked for.
    pub(super) compute: Shared,
    /// Where weights are copied meanwhile.
    pub(super) copies: Shared,
    pool: Shared,
    /// Bytes in use by weights and results, by other forms of weights, and kept for steps that are repeated; the most
    /// there were of all, and the most there may be.
    pub(super) used: AtomicU64,
    pub(super) forms: AtomicU64,
    pub(super) arenas: AtomicU64,
    /// How many pieces of memory all that is.
    pub(super) pieces: AtomicU64,
    pub(super) peak: AtomicU64,
    limit: AtomicU64,
    /// The most of weights and results since somebody began to measure.
    pub(super) highest: AtomicU64,
    pub(super) settings: GpuSettings,
    /// Why it cannot be used any more.
    failed: OnceLock<String>,
    modules: Mutex<BTreeMap<String, Shared>>,
    functions: Mutex<Functions>,
    pub(super) steps: Recorder<Self>,
    /// Where weights that are kept elsewhere pass through.
    pub(super) ring: ring::DeviceRing,
    /// Pinned memory through which weights are brought to stay.
    pub(super) staging: staging::Staging,
}

/// Kernels that were used, by module, format and name.
type Functions = BTreeMap<(&'static str, Format, &'static str), Shared>;

thread_local! {
    /// The context that this thread has now.
    static CURRENT: Cell<Option<u32>> = const { Cell::new(None) };
}

/// Bytes that a context and its code take beside what the program asks for.
const OVERHEAD: u64 = 600 << 20;

/// Bytes that the driver may count for a piece of memory beyond what was asked for.
const PIECE_OVERHEAD: u64 = 64 << 10;

/// What is known of the driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DriverState {
    /// Why there is none.
    Missing(String),
    /// The newest CUDA it knows, as (12, 4), and GPUs.
    Present { cuda: (u32, u32), devices: u32 },
}

/// What the driver says of itself.
pub fn driver_state() -> DriverState {
    let driver = match Driver::get() {
        Ok(driver) => driver,
        Err(reason) => return DriverState::Missing(reason.to_owned()),
    };
    let version = driver.version().unwrap_or(0).unsigned_abs();
    DriverState::Present {
        cuda: (version / 1000, version % 1000 / 10),
        devices: driver.device_count().unwrap_or(0).unsigned_abs(),
    }
}

/// A capability to compute as, such as 8.9, so that the kernels of other cards can be tried on this one.
const COMPUTE_AS: &str = "FRESCO_CUDA_AS";

/// That capability; none where the machine cannot do that.
fn pretended(text: &str, machine: u32) -> Option<u32> {
    let (major, minor) = text.split_once('.')?;
    let (major, minor): (u32, u32) = (major.parse().ok()?, minor.parse().ok()?);
    let arch = major.checked_mul(10)?.checked_add(minor)?;
    (minor < 10 && (kernels::LEAST..=machine).contains(&arch)).then_some(arch)
}

/// Bytes of shared memory that a block of such a card can have.
fn shared_memory(arch: u32) -> u32 {
    match arch {
        ..80 => 64 << 10,
        80 | 87 => 163 << 10,
        90..120 => 227 << 10,
        _ => 99 << 10,
    }
}

impl CudaDevice {
    /// Opens a GPU. `Err` says why it cannot be used.
    pub(crate) fn open(number: u32) -> Result<Self, String> {
        #[expect(
            clippy::disallowed_methods,
            reason = "no setting of the program: for whoever tries kernels, in tests and tools too"
        )]
        let wanted = std::env::var(COMPUTE_AS).ok();
        Self::open_with(Driver::get()?, number, wanted.as_deref())
    }

    fn open_with(
        driver: &'static Driver,
        number: u32,
        compute_as: Option<&str>,
    ) -> Result<Self, String> {
        Self::opened(driver, number, compute_as).map_err(|error| match error {
            Failure::Driver(error) => format!("cuda:{number} does not start: {error}"),
            Failure::Other(reason) => reason,
        })
    }

    fn opened(
        driver: &'static Driver,
        number: u32,
        compute_as: Option<&str>,
    ) -> Result<Self, Failure> {
        let device = driver.device(number.try_into().unwrap_or(i32::MAX))?;
        let name = driver.device_name(device)?;
        let (major, minor) = (
            driver.attribute(device, Attribute::Major)?,
            driver.attribute(device, Attribute::Minor)?,
        );
        let machine = 10 * major + minor;
        if machine < kernels::LEAST {
            return Err(Failure::Other(format!(
                "cuda:{number} ({name}) has compute capability {major}.{minor}; at least 7.5 is needed"
            )));
        }
        let arch = match compute_as {
            None => machine,
            Some(text) => pretended(text, machine).ok_or_else(|| {
                Failure::Other(format!(
                    "{COMPUTE_AS} is {text}; cuda:{number} ({name}) can compute as 7.5 to {major}.{minor}"
                ))
            })?,
        };
        let shared_limit = driver.attribute(device, Attribute::SharedMemory)?;
        if driver.attribute(device, Attribute::Pools)? == 0 {
            return Err(Failure::Other(format!(
                "the driver has no memory pools for cuda:{number} ({name}): a newer one is needed"
            )));
        }
        let context = driver.primary_context(device)?;
        driver.set_current(context)?;
        CURRENT.set(Some(number));
        let total = driver.total_memory(device)?;
        Ok(Self {
            me: Weak::new(),
            number,
            name,
            target: kernels::Target { arch, machine },
            multiprocessors: driver.attribute(device, Attribute::Multiprocessors)?,
            shared_limit: if arch == machine {
                shared_limit
            } else {
                shared_limit.min(shared_memory(arch))
            },
            total,
            driver,
            context,
            compute: driver.stream()?,
            copies: driver.stream()?,
            pool: driver.pool(device)?,
            used: AtomicU64::new(0),
            forms: AtomicU64::new(0),
            arenas: AtomicU64::new(0),
            pieces: AtomicU64::new(0),
            peak: AtomicU64::new(0),
            highest: AtomicU64::new(0),
            limit: AtomicU64::new(total.saturating_sub(OVERHEAD)),
            settings: GpuSettings::default(),
            failed: OnceLock::new(),
            modules: Mutex::default(),
            functions: Mutex::default(),
            steps: Recorder::default(),
            ring: ring::DeviceRing::default(),
            staging: staging::Staging::default(),
        })
    }

    /// As everything else holds it.
    pub(super) fn held(mut self) -> Arc<Self> {
        Arc::new_cyclic(|me| {
            self.me.clone_from(me);
            self
        })
    }

    /// Itself, for what outlives a call.
    pub(super) fn shared(&self) -> Arc<Self> {
        let gone = || TensorError::invalid("cuda", "the device is being closed");
        or_raise(self.me.upgrade().ok_or_else(gone))
    }

    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// The compute capability, as 90 for 9.0.
    pub(crate) fn arch(&self) -> u32 {
        self.target.arch
    }

    /// Whether kernels for Hopper's own instructions run.
    pub(crate) fn hopper(&self) -> bool {
        self.arch() == 90
    }

    /// Whether bf16 can be multiplied with tensor cores.
    pub(crate) fn has_bf16(&self) -> bool {
        self.arch() >= 80
    }

    /// Whether fp8 can be: 10.x does that only with instructions that no kernel here has.
    pub(crate) fn has_fp8(&self) -> bool {
        matches!(self.arch(), 89 | 90 | 120..)
    }

    pub(crate) fn multiprocessors(&self) -> u32 {
        self.multiprocessors
    }

    /// Most bytes of shared memory that a block can have.
    pub(crate) fn shared_limit(&self) -> u32 {
        self.shared_limit
    }

    /// Bytes that the program may use.
    pub(crate) fn capacity(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    /// Leaves so many bytes of the device to others.
    pub(crate) fn reserve(&self, bytes: u64) {
        let limit = self.total.saturating_sub(bytes.max(OVERHEAD));
        self.limit.store(limit, Ordering::Relaxed);
    }

    pub(crate) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// All that is taken from the device.
    pub(super) fn taken(&self) -> u64 {
        let beside = [&self.forms, &self.arenas].map(|counter| counter.load(Ordering::Relaxed));
        self.used() + beside.iter().sum::<u64>()
    }

    pub(crate) fn peak(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }

    pub(crate) fn reset_peak(&self) {
        self.peak.store(self.taken(), Ordering::Relaxed);
    }

    /// Bytes that can be had: what is not used, or less where other programs have taken memory.
    pub(crate) fn free(&self) -> u64 {
        // What is kept for steps is given up for anything else.
        let arenas = self.arenas.load(Ordering::Relaxed);
        let ours = (self.capacity() + arenas).saturating_sub(self.taken());
        let Ok((free, kept)) = self.driver_memory() else {
            return ours;
        };
        ours.min(free + kept + arenas)
    }

    /// Bytes that can be had without anything being given up.
    pub(super) fn room(&self) -> u64 {
        self.free()
            .saturating_sub(self.arenas.load(Ordering::Relaxed))
    }

    /// Bytes that are free by the driver's count, and those that the program keeps unused.
    fn driver_memory(&self) -> Result<(u64, u64)> {
        self.enter()?;
        let (free, _) = self.checked(self.driver.memory_info())?;
        let (reserved, used) = self.checked(self.driver.pool_state(self.pool))?;
        Ok((free, reserved.saturating_sub(used)))
    }

    /// Why it cannot be used any more.
    pub(crate) fn failure(&self) -> Option<String> {
        self.failed.get().cloned()
    }

    /// What the driver's numbers and ours do not agree about, when nothing is computed; none if they do.
    pub(crate) fn discrepancy(&self) -> Option<String> {
        if let Some(reason) = self.failed.get() {
            return Some(format!("it has failed: {reason}"));
        }
        // What is freed behind work counts until the work is done.
        self.synchronize().ok()?;
        let ours = self.taken();
        let pieces = self.pieces.load(Ordering::Relaxed);
        let (_, theirs) = self.checked(self.driver.pool_state(self.pool)).ok()?;
        // Each piece has some bytes more than were asked for, and begins where the driver likes.
        let most = ours + pieces * PIECE_OVERHEAD;
        (theirs < ours || theirs > most).then(|| {
            format!(
                "the driver counts {theirs} bytes in use, {ours} in {pieces} pieces were asked for"
            )
        })
    }

    /// What is known of it.
    pub(super) fn state(&self) -> GpuState {
        let (free, kept) = self.driver_memory().unwrap_or_default();
        let generation = (self.arch() / 10, self.arch() % 10);
        GpuState {
            name: self.name.clone(),
            generation,
            units: self.multiprocessors,
            description: format!(
                "compute capability {}.{}, {} multiprocessors",
                generation.0, generation.1, self.multiprocessors
            ),
            total: self.total,
            free,
            used: self.used(),
            kept,
            kernels: kernels::modules(self.target),
            repeats: self.steps.repeats(),
            failed: self.failed.get().cloned(),
        }
    }

    /// Gives memory that nobody uses back to the driver, for other programs.
    pub(crate) fn trim(&self) {
        self.steps.clear();
        self.ring.clear();
        self.staging.clear(self);
        if self.enter().is_ok() {
            let _ = self.driver.synchronize(self.compute);
            let _ = self.driver.trim(self.pool);
        }
    }

    /// Makes this device the one that calls of this thread are for.
    pub(super) fn enter(&self) -> Result<()> {
        if let Some(reason) = self.failed.get() {
            return Err(TensorError::DeviceFailed {
                device: format!("cuda:{}", self.number),
                reason: reason.clone(),
            });
        }
        if CURRENT.get() != Some(self.number) {
            self.checked(self.driver.set_current(self.context))?;
            CURRENT.set(Some(self.number));
        }
        Ok(())
    }

    /// The answer of the driver. An error that has ended the context is remembered: nothing can be done there any more.
    pub(super) fn checked<T>(&self, answer: Result<T, DriverError>) -> Result<T> {
        answer.map_err(|error| {
            let device = format!("cuda:{}", self.number);
            let reason = error.to_string();
            if error.is_fatal() {
                let reason = format!("{reason}; start the program again to use it again");
                let _ = self.failed.set(reason.clone());
                return TensorError::DeviceFailed { device, reason };
            }
            if error.is_out_of_memory() {
                return TensorError::DeviceFull {
                    device,
                    wanted: 0,
                    free: 0,
                    capacity: self.capacity(),
                };
            }
            TensorError::DeviceFailed { device, reason }
        })
    }

    /// Waits until everything is computed.
    pub(crate) fn synchronize(&self) -> Result<()> {
        self.enter()?;
        self.checked(self.driver.synchronize(self.compute))
    }

    /// A kernel, loaded when it is first used.
    pub(super) fn function(
        &self,
        module: &'static str,
        format: Format,
        name: &'static str,
    ) -> Result<Shared> {
        let key = (module, format, name);
        if let Some(&found) = lock(&self.functions).get(&key) {
            return Ok(found);
        }
        let full = format!("{module}_{}", format.suffix());
        let loaded = self.module(&full)?;
        let function = self.driver.function(loaded, name, self.shared_limit);
        let function = self.checked(function)?;
        lock(&self.functions).insert(key, function);
        Ok(function)
    }

    fn module(&self, name: &str) -> Result<Shared> {
        let mut modules = lock(&self.modules);
        if let Some(&module) = modules.get(name) {
            return Ok(module);
        }
        let Some(image) = kernels::image(name, self.target) else {
            return Err(TensorError::invalid(
                "kernel",
                format!("there are no kernels {name} for {}", self.name),
            ));
        };
        let module = self.checked(self.driver.load_module(&image.bytes))?;
        modules.insert(name.to_owned(), module);
        Ok(module)
    }
}

enum Failure {
    Driver(DriverError),
    Other(String),
}

impl From<DriverError> for Failure {
    fn from(error: DriverError) -> Self {
        Self::Driver(error)
    }
}

impl std::fmt::Debug for CudaDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "cuda:{} ({})", self.number, self.name)
    }
}

/// GPUs that were opened, by number.
static OPEN: Mutex<BTreeMap<u32, Arc<CudaDevice>>> = Mutex::new(BTreeMap::new());

/// A GPU by its number, opened at the first use.
pub(crate) fn open(number: u32) -> Result<Arc<CudaDevice>, String> {
    let mut all = lock(&OPEN);
    if let Some(device) = all.get(&number) {
        return Ok(Arc::clone(device));
    }
    let device = CudaDevice::open(number)?.held();
    all.insert(number, Arc::clone(&device));
    Ok(device)
}

/// GPUs that were opened.
pub(crate) fn opened() -> Vec<Arc<CudaDevice>> {
    lock(&OPEN).values().cloned().collect()
}

#[cfg(test)]
#[path = "device_tests.rs"]
mod tests;
