//! Where tensors live: main memory, a simulated accelerator, or a GPU.
//!
//! A simulated device has a memory of its own that nothing but its operations can read. It has a set size, counted to the
//! byte, and what moves in and out is copied and counted. Its operations run the kernels of the processor, so that what is
//! to be learned about accelerators can be tested on it anywhere.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, OnceLock};

use crate::buffer::raise;
use crate::dtype::Dtype;
use crate::error::{Result, TensorError};
use crate::gpu::{
    self, Format, FormatChoices, GpuId, GpuMemory, GpuOps, GpuState, KernelTime, MemoryUse,
    NetworkPart, WhenFull,
};
use crate::lock::lock;

/// Why a device cannot be had.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    #[error(
        "{text:?} is not a device: it should be \"cpu\", or \"{}:\" or \"sim:\" and a number",
        gpu::NAMES.join(":\", \"")
    )]
    Name { text: String },
    #[error("unknown device {name}: {reason}")]
    NoGpu { name: String, reason: String },
    #[error("unknown device {name}; there are {}", known.join(", "))]
    Unknown { name: String, known: Vec<String> },
    #[error("the device {name} exists already")]
    Taken { name: String },
    #[error("{text:?} does not describe a device: it should be like \"sim:0=4GiB\"")]
    Description { text: String },
    #[error("{text:?} is not a size of memory: {reason}")]
    Size { text: String, reason: &'static str },
}

/// How often and how much was copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Copies {
    pub count: u64,
    pub bytes: u64,
}

/// All copies of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Traffic {
    pub into: Copies,
    pub out: Copies,
}

/// A place with memory that can compute. Cheap to clone; two handles of one device are equal.
///
/// Operations match on it without a wildcard, so that a new kind of device is asked for at each of them.
#[derive(Clone, Default)]
pub enum Device {
    /// Main memory, and the processor.
    #[default]
    Cpu,
    /// A simulated accelerator.
    Sim(Arc<SimDevice>),
    /// A GPU.
    Gpu(GpuHandle),
}

/// A GPU, and the format in which it keeps what comes to it by this handle.
#[derive(Debug, Clone)]
pub struct GpuHandle {
    pub(crate) device: Arc<dyn GpuOps>,
    pub(crate) format: Format,
    /// The format for all networks, whatever their weights are in.
    pub(crate) forced: Option<Format>,
}

impl GpuHandle {
    fn in_format(&self, format: Format) -> Device {
        Device::Gpu(Self {
            format,
            ..self.clone()
        })
    }
}

/// What tells one device from another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DeviceId {
    Cpu,
    /// The `N` of `sim:N`.
    Sim(u32),
    Gpu(GpuId),
}

/// The memory of a simulated accelerator.
#[derive(Debug)]
pub struct SimDevice {
    number: u32,
    capacity: u64,
    used: AtomicU64,
    peak: AtomicU64,
    /// Whether memory of other devices can be copied from and to without a stop in the main memory.
    peer: AtomicBool,
    spare: Mutex<Vec<Spare>>,
    /// Why it cannot be used any more.
    failed: OnceLock<String>,
}

/// A copy that will probably be wanted soon. It is given up when anything else needs the room.
#[derive(Debug)]
pub(crate) struct Spare {
    /// What it is a copy of, and which set that belongs to.
    pub(crate) slot: u64,
    pub(crate) group: u64,
    /// Whether it stays for the next use, until the set is at rest or the room is needed.
    pub(crate) lasting: bool,
    /// The copy, with its memory.
    pub(crate) copy: Arc<dyn Any + Send + Sync>,
}

/// The same in the main memory, where it costs nothing.
static SPARE_HERE: Mutex<Vec<Spare>> = Mutex::new(Vec::new());

/// Simulated devices of this process, by number.
static SIMS: LazyLock<Mutex<BTreeMap<u32, Device>>> = LazyLock::new(Mutex::default);

/// Copies by source and target.
type Routes = BTreeMap<(DeviceId, DeviceId), Copies>;
static ROUTES: LazyLock<Mutex<Routes>> = LazyLock::new(Mutex::default);

impl Device {
    /// Main memory.
    pub fn cpu() -> Self {
        Self::Cpu
    }

    /// Equal for handles of one device.
    pub fn id(&self) -> DeviceId {
        match self {
            Self::Cpu => DeviceId::Cpu,
            Self::Sim(sim) => DeviceId::Sim(sim.number),
            Self::Gpu(handle) => DeviceId::Gpu(handle.device.id()),
        }
    }

    /// A GPU by its name, opened at the first time; other devices as [`Self::parse`] finds them. Numbers are kept in 32 bits on a
    /// GPU unless [`Self::computing_in`] says otherwise.
    pub fn open(name: &str) -> Result<Self, DeviceError> {
        let Some((backend, number)) = gpu::number_of(name) else {
            return Self::parse(name);
        };
        match (backend.open)(number) {
            Ok(device) => Ok(Self::of_gpu(device)),
            Err(reason) => Err(DeviceError::NoGpu {
                name: name.to_owned(),
                reason,
            }),
        }
    }

    fn of_gpu(device: Arc<dyn GpuOps>) -> Self {
        Self::Gpu(GpuHandle {
            device,
            format: Format::F32,
            forced: None,
        })
    }

    /// The same device for a network whose weights are in a format: a GPU computes in 16 bits where they have no more, or in
    /// what was asked for. Nothing changes for other devices.
    #[must_use]
    pub fn computing_in(&self, weights: Dtype, part: NetworkPart) -> Self {
        let Self::Gpu(handle) = self else {
            return self.clone();
        };
        let short = if handle.device.has_bf16() {
            Format::Bf16
        } else {
            Format::F16
        };
        let chosen = lock(&handle.device.settings().choices).of(part);
        if let Some(format) = handle.forced.or(chosen) {
            return handle.in_format(format);
        }
        let found = handle.in_format(match weights {
            Dtype::F32 | Dtype::F64 => Format::F32,
            Dtype::F16 => Format::F16,
            _ => short,
        });
        match part {
            NetworkPart::Diffusion | NetworkPart::Text => found,
            // Autoencoders have numbers that are too large for f16.
            NetworkPart::Autoencoder => found.wide(),
        }
    }

    /// A number as the device keeps it: rounded where that is in 16 bits.
    pub fn rounded(&self, value: f32) -> f32 {
        match self {
            Self::Gpu(handle) => match handle.format {
                Format::F32 => value,
                // As elements are kept: what is too large becomes the largest.
                Format::F16 => half::f16::from_f32(value.clamp(-65_504.0, 65_504.0)).to_f32(),
                Format::Bf16 => half::bf16::from_f32(value).to_f32(),
            },
            Self::Cpu | Self::Sim(_) => value,
        }
    }

    /// Formats in which a GPU computes, whatever weights are in. Nothing changes for other devices.
    pub fn choose_formats(&self, choices: FormatChoices) {
        if let Self::Gpu(handle) = self {
            *lock(&handle.device.settings().choices) = choices;
        }
    }

    /// The same device with one format for all networks. Nothing changes for devices that are no GPUs.
    #[must_use]
    pub fn computing_only_in(&self, format: Format) -> Self {
        match self {
            Self::Cpu | Self::Sim(_) => self.clone(),
            Self::Gpu(handle) => Self::Gpu(GpuHandle {
                device: Arc::clone(&handle.device),
                format,
                forced: Some(format),
            }),
        }
    }

    /// The same device for numbers that are too large for f16.
    #[must_use]
    pub fn wide(&self) -> Self {
        match self {
            Self::Gpu(handle) if handle.format == Format::F16 => {
                let bf16 = handle.device.has_bf16();
                handle.in_format(if bf16 { Format::Bf16 } else { Format::F32 })
            }
            Self::Cpu | Self::Sim(_) | Self::Gpu(_) => self.clone(),
        }
    }

    /// The same device, keeping all bits.
    #[must_use]
    pub fn exact(&self) -> Self {
        match self {
            Self::Cpu | Self::Sim(_) => self.clone(),
            Self::Gpu(handle) => handle.in_format(Format::F32),
        }
    }

    /// Whether it keeps all bits of numbers.
    pub fn is_exact(&self) -> bool {
        match self {
            Self::Cpu | Self::Sim(_) => true,
            Self::Gpu(handle) => handle.format == Format::F32,
        }
    }

    /// What is known of a GPU; none for other devices.
    pub fn gpu(&self) -> Option<GpuState> {
        match self {
            Self::Cpu | Self::Sim(_) => None,
            Self::Gpu(handle) => Some(handle.device.state()),
        }
    }

    /// Why a device cannot be used any more; none while it can.
    pub fn failure(&self) -> Option<String> {
        match self {
            Self::Cpu => None,
            Self::Sim(sim) => sim.failed.get().cloned(),
            Self::Gpu(handle) => handle.device.failure(),
        }
    }

    /// Lets a simulated device fail, as GPUs do: nothing can be had there or read from it until the process ends. Nothing
    /// happens to other devices.
    pub fn fail(&self, reason: &str) {
        if let Self::Sim(sim) = self {
            let _ = sim.failed.set(reason.to_owned());
        }
    }

    /// An error where the device has failed.
    pub fn check_usable(&self) -> Result<()> {
        match self.failure() {
            None => Ok(()),
            Some(reason) => Err(TensorError::DeviceFailed {
                device: self.name(),
                reason,
            }),
        }
    }

    /// What a GPU's driver says that does not fit what was asked of it, while nothing is computed; none if all does, and for
    /// other devices.
    pub fn discrepancy(&self) -> Option<String> {
        match self {
            Self::Cpu | Self::Sim(_) => None,
            Self::Gpu(handle) => handle.device.discrepancy(),
        }
    }

    /// Leaves so many bytes of a GPU's memory to other programs. Nothing changes for other devices.
    pub fn leave_to_others(&self, bytes: u64) {
        if let Self::Gpu(handle) = self {
            handle.device.reserve(bytes);
        }
    }

    /// Runs a step that usually does the same as the last one of that key: a GPU repeats it with one call.
    pub fn repeated<R>(&self, key: u64, step: impl FnOnce() -> R) -> R {
        match self {
            Self::Cpu | Self::Sim(_) => step(),
            Self::Gpu(handle) => run_once(step, |step| handle.device.record(key, step)),
        }
    }

    /// For a step that does more than those after it, before it has done anything: it is not taken for what they repeat.
    pub fn step_apart(&self) {
        match self {
            Self::Cpu | Self::Sim(_) => {}
            Self::Gpu(handle) => handle.device.step_apart(),
        }
    }

    /// Runs, within a step that is repeated, what it needs once and keeps for others: before all that the step does, and as if there was none.
    pub fn outside_of_step<R>(&self, body: impl FnOnce() -> R) -> R {
        match self {
            Self::Cpu | Self::Sim(_) => body(),
            Self::Gpu(handle) => run_once(body, |body| handle.device.outside_of_step(body)),
        }
    }

    /// Runs something and says how long each kernel of a GPU took, the longest first; nothing for other devices.
    pub fn profiled<R>(&self, body: impl FnOnce() -> R) -> Result<(R, Vec<KernelTime>)> {
        match self {
            Self::Cpu | Self::Sim(_) => Ok((body(), Vec::new())),
            Self::Gpu(handle) => {
                let mut times = Ok(Vec::new());
                let result = run_once(body, |body| times = handle.device.profile(body));
                Ok((result, times?))
            }
        }
    }

    /// Waits until everything that was asked of a device is done.
    pub fn synchronize(&self) -> Result<()> {
        match self {
            Self::Cpu | Self::Sim(_) => Ok(()),
            Self::Gpu(handle) => handle.device.synchronize(),
        }
    }

    /// Bytes per second that a GPU gets from pinned main memory, measured now; none for other devices.
    pub fn measured_link(&self) -> Result<Option<f64>> {
        match self {
            Self::Cpu | Self::Sim(_) => Ok(None),
            Self::Gpu(handle) => handle.device.measured_link().map(Some),
        }
    }

    /// Gives memory that is kept for later back to the driver.
    pub fn trim(&self) {
        if let Self::Gpu(handle) = self {
            handle.device.trim();
        }
    }

    /// The simulated device that this is.
    fn simulated(&self) -> Option<&SimDevice> {
        match self {
            Self::Cpu | Self::Gpu(_) => None,
            Self::Sim(sim) => Some(sim),
        }
    }

    /// The GPU that this is.
    fn gpu_device(&self) -> Option<&dyn GpuOps> {
        match self {
            Self::Cpu | Self::Sim(_) => None,
            Self::Gpu(handle) => Some(&*handle.device),
        }
    }

    /// A simulated device that was registered.
    pub fn sim(number: u32) -> Result<Self, DeviceError> {
        let found = lock(&SIMS).get(&number).cloned();
        found.ok_or_else(|| Self::unknown(&format!("sim:{number}")))
    }

    fn unknown(name: &str) -> DeviceError {
        DeviceError::Unknown {
            name: name.to_owned(),
            known: Self::all().iter().map(Self::name).collect(),
        }
    }

    /// Makes a simulated device with so many bytes of memory. It stays until the process ends.
    pub fn register_sim(number: u32, capacity: u64) -> Result<Self, DeviceError> {
        let device = Self::Sim(Arc::new(SimDevice {
            number,
            capacity,
            used: AtomicU64::new(0),
            peak: AtomicU64::new(0),
            peer: AtomicBool::new(true),
            spare: Mutex::default(),
            failed: OnceLock::new(),
        }));
        let mut sims = lock(&SIMS);
        if sims.contains_key(&number) {
            let name = device.name();
            return Err(DeviceError::Taken { name });
        }
        sims.insert(number, device.clone());
        Ok(device)
    }

    /// `cpu`, the `sim:N` of a registered device, or the name of a GPU in use. A name in a request opens no GPU: which ones
    /// are used is said at the start.
    pub fn parse(text: &str) -> Result<Self, DeviceError> {
        if text == "cpu" {
            return Ok(Self::cpu());
        }
        if let Some((backend, number)) = gpu::number_of(text) {
            let wanted = DeviceId::Gpu(GpuId {
                backend: backend.name,
                number,
            });
            let mut all = Self::all().into_iter();
            let found = all.find(|device| device.id() == wanted);
            return found.ok_or_else(|| Self::unknown(text));
        }
        Self::sim(number(text, "sim:").ok_or_else(|| DeviceError::Name {
            text: text.to_owned(),
        })?)
    }

    /// The main memory, then the GPUs that are in use, then the simulated devices, by number.
    pub fn all() -> Vec<Self> {
        let gpus = gpu::opened().map(Self::of_gpu);
        let sims = lock(&SIMS);
        [Self::cpu()]
            .into_iter()
            .chain(gpus)
            .chain(sims.values().cloned())
            .collect()
    }

    /// `cpu`, or the kind of device and its number: `sim:0`.
    pub fn name(&self) -> String {
        self.to_string()
    }

    pub fn is_cpu(&self) -> bool {
        matches!(self, Self::Cpu)
    }

    pub fn is_gpu(&self) -> bool {
        matches!(self, Self::Gpu(_))
    }

    /// Bytes of memory; none for the main memory, which is not counted here.
    pub fn capacity(&self) -> Option<u64> {
        let gpu = self.gpu_device().map(crate::gpu::GpuDevice::capacity);
        gpu.or_else(|| self.simulated().map(|sim| sim.capacity))
    }

    /// Bytes in use now; 0 for the main memory.
    pub fn used(&self) -> u64 {
        if let Some(gpu) = self.gpu_device() {
            return gpu.used();
        }
        let sim = self.simulated();
        sim.map_or(0, |sim| sim.used.load(Ordering::Relaxed))
    }

    /// Bytes that can be had; none for the main memory.
    pub fn free(&self) -> Option<u64> {
        if let Some(gpu) = self.gpu_device() {
            return Some(gpu.free());
        }
        Some(self.capacity()? - self.used())
    }

    /// Most bytes that were in use at once.
    pub fn peak(&self) -> u64 {
        if let Some(gpu) = self.gpu_device() {
            return gpu.peak();
        }
        let sim = self.simulated();
        sim.map_or(0, |sim| sim.peak.load(Ordering::Relaxed))
    }

    /// Starts measuring the peak anew, from what is in use now.
    pub fn reset_peak(&self) {
        if let Some(gpu) = self.gpu_device() {
            gpu.reset_peak();
        }
        if let Some(sim) = self.simulated() {
            sim.peak.store(self.used(), Ordering::Relaxed);
        }
    }

    /// Takes memory until the answer is dropped. Costs nothing in main memory, which is not counted here. Where there is
    /// no room, copies that were made ahead of their use go first.
    pub fn allocate(&self, bytes: u64) -> Result<Allocation> {
        if let Self::Gpu(handle) = self {
            let block = handle
                .device
                .allocate(bytes, MemoryUse::Work, WhenFull::MakeRoom)?;
            return Ok(Allocation {
                device: self.clone(),
                bytes,
                block: Some(block),
            });
        }
        self.take(bytes).or_else(|full| {
            let spare = std::mem::take(&mut *lock(self.spare()));
            if spare.is_empty() {
                return Err(full);
            }
            drop(spare);
            self.take(bytes)
        })
    }

    /// As [`Self::allocate`], without taking from what is there already.
    pub(crate) fn take(&self, bytes: u64) -> Result<Allocation> {
        if let Self::Gpu(handle) = self {
            let block = handle
                .device
                .allocate(bytes, MemoryUse::Work, WhenFull::Refuse)?;
            return Ok(Allocation {
                device: self.clone(),
                bytes,
                block: Some(block),
            });
        }
        if let Some(sim) = self.simulated() {
            self.check_usable()?;
            let take = |used: u64| {
                used.checked_add(bytes)
                    .filter(|&wanted| wanted <= sim.capacity)
            };
            let taken = sim
                .used
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
            match taken {
                Ok(before) => sim.peak.fetch_max(before + bytes, Ordering::Relaxed),
                Err(used) => {
                    return Err(TensorError::DeviceFull {
                        device: self.name(),
                        wanted: bytes,
                        free: sim.capacity - used,
                        capacity: sim.capacity,
                    });
                }
            };
        }
        Ok(Allocation {
            device: self.clone(),
            bytes,
            block: None,
        })
    }

    /// As [`Self::allocate`], for a copy from another device. A GPU copies from main memory beside its work.
    pub(crate) fn allocate_for_copy(&self, from: &Self, bytes: u64) -> Result<Allocation> {
        match (self, from) {
            (Self::Gpu(handle), Self::Cpu) => {
                let (by, full) = (MemoryUse::Copies, WhenFull::MakeRoom);
                Ok(Allocation {
                    device: self.clone(),
                    bytes,
                    block: Some(handle.device.allocate(bytes, by, full)?),
                })
            }
            _ => self.allocate(bytes),
        }
    }

    /// As [`Self::take`], for a copy from another device.
    pub(crate) fn take_for_copy(&self, from: &Self, bytes: u64) -> Result<Allocation> {
        match (self, from) {
            (Self::Gpu(handle), Self::Cpu) => {
                let (by, full) = (MemoryUse::Copies, WhenFull::Refuse);
                Ok(Allocation {
                    device: self.clone(),
                    bytes,
                    block: Some(handle.device.allocate(bytes, by, full)?),
                })
            }
            _ => self.take(bytes),
        }
    }

    /// Memory of a GPU for a copy that is made beside its work and used once. None where there is no room for such, and for
    /// other devices.
    pub(crate) fn take_in_ring(&self, bytes: u64) -> Result<Option<Allocation>> {
        let Self::Gpu(handle) = self else {
            return Ok(None);
        };
        let block = handle.device.offer_passing_memory(bytes)?;
        Ok(block.map(|block| Allocation {
            device: self.clone(),
            bytes,
            block: Some(block),
        }))
    }

    fn spare(&self) -> &Mutex<Vec<Spare>> {
        match self {
            Self::Cpu => &SPARE_HERE,
            Self::Sim(sim) => &sim.spare,
            Self::Gpu(handle) => &handle.device.settings().spare,
        }
    }

    /// Memory that is given up when there is no room for something else.
    pub(crate) fn with_spare<R>(&self, body: impl FnOnce(&mut Vec<Spare>) -> R) -> R {
        body(&mut lock(self.spare()))
    }

    /// Whether other devices' memory can be copied from and to directly; otherwise copies go over the main memory.
    pub fn peer_access(&self) -> bool {
        if let Some(gpu) = self.gpu_device() {
            return gpu.settings().peer();
        }
        let sim = self.simulated();
        sim.is_none_or(|sim| sim.peer.load(Ordering::Relaxed))
    }

    /// Devices have it unless it is taken from them. Nothing changes for the main memory.
    pub fn set_peer_access(&self, on: bool) {
        if let Some(gpu) = self.gpu_device() {
            gpu.settings().set_peer(on);
        }
        if let Some(sim) = self.simulated() {
            sim.peer.store(on, Ordering::Relaxed);
        }
    }

    /// What was copied to and from this device since the process started.
    pub fn copies(&self) -> Traffic {
        let me = self.id();
        let mut traffic = Traffic::default();
        for (&(from, to), copies) in lock(&ROUTES).iter() {
            for (end, sum) in [(to, &mut traffic.into), (from, &mut traffic.out)] {
                if end == me {
                    sum.count += copies.count;
                    sum.bytes += copies.bytes;
                }
            }
        }
        traffic
    }

    /// What was copied from this device to another.
    pub fn copies_to(&self, other: &Self) -> Copies {
        let route = (self.id(), other.id());
        lock(&ROUTES).get(&route).copied().unwrap_or_default()
    }
}

/// Notes a copy. Within a device nothing moves; between two without peer access it moves twice.
pub(crate) fn count_copy(from: &Device, to: &Device, bytes: u64) {
    if from == to {
        return;
    }
    let direct = from.peer_access() && to.peer_access();
    let (from, to) = (from.id(), to.id());
    let mut routes = lock(&ROUTES);
    let mut count = |from, to| {
        let copies = routes.entry((from, to)).or_default();
        copies.count += 1;
        copies.bytes += bytes;
    };
    if direct || from == DeviceId::Cpu || to == DeviceId::Cpu {
        count(from, to);
    } else {
        count(from, DeviceId::Cpu);
        count(DeviceId::Cpu, to);
    }
}

/// Runs something with who wants to call it, once, and gives what it answered.
fn run_once<R>(body: impl FnOnce() -> R, with: impl FnOnce(&mut dyn FnMut())) -> R {
    let (mut body, mut result) = (Some(body), None);
    with(&mut || {
        if let Some(body) = body.take() {
            result = Some(body());
        }
    });
    match (result, body) {
        (Some(result), _) => result,
        // The caller had a reason not to call it: it is run as if there was no caller.
        (None, Some(body)) => body(),
        (None, None) => raise(TensorError::invalid("step", "it ended without a result")),
    }
}

/// The number of a device of a kind.
fn number(name: &str, kind: &str) -> Option<u32> {
    let digits = name.strip_prefix(kind)?;
    let plain = digits.bytes().all(|b| b.is_ascii_digit());
    plain.then(|| digits.parse().ok()).flatten()
}

impl PartialEq for Device {
    fn eq(&self, other: &Self) -> bool {
        self.id() == other.id()
    }
}

impl Eq for Device {}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.id() {
            DeviceId::Cpu => f.write_str("cpu"),
            DeviceId::Sim(number) => write!(f, "sim:{number}"),
            DeviceId::Gpu(gpu) => gpu.fmt(f),
        }
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Memory of a device, given back when dropped.
#[derive(Debug)]
pub struct Allocation {
    device: Device,
    bytes: u64,
    /// The memory itself, where that of a GPU is taken.
    block: Option<GpuMemory>,
}

impl Allocation {
    pub fn device(&self) -> &Device {
        &self.device
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The memory of a GPU.
    pub(crate) fn block(&self) -> Option<&GpuMemory> {
        self.block.as_ref()
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        if let Some(sim) = self.device.simulated() {
            sim.used.fetch_sub(self.bytes, Ordering::Relaxed);
        }
    }
}

/// Reads `sim:0=4GiB` as a number and bytes.
pub fn parse_sim(text: &str) -> Result<(u32, u64), DeviceError> {
    let wrong = || DeviceError::Description {
        text: text.to_owned(),
    };
    let (name, size) = text.split_once('=').ok_or_else(wrong)?;
    let number = number(name, "sim:").ok_or_else(wrong)?;
    Ok((number, parse_size(size)?))
}

/// Factors by the unit's name in lower case.
const UNITS: &[(&str, u64)] = &[
    ("", 1),
    ("b", 1),
    ("kb", 1000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
    ("tb", 1_000_000_000_000),
    ("k", 1 << 10),
    ("m", 1 << 20),
    ("g", 1 << 30),
    ("t", 1 << 40),
    ("kib", 1 << 10),
    ("mib", 1 << 20),
    ("gib", 1 << 30),
    ("tib", 1 << 40),
];

/// Reads a size of memory: `4GiB`, `512 MiB`, `1.5GB`, `4G` (as GiB), or bytes.
pub fn parse_size(text: &str) -> Result<u64, DeviceError> {
    let wrong = |reason| DeviceError::Size {
        text: text.to_owned(),
        reason,
    };
    let trimmed = text.trim();
    let end = trimmed
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(trimmed.len());
    let (value, unit) = trimmed.split_at(end);
    let unit = unit.trim().to_lowercase();
    let &(_, factor) = UNITS
        .iter()
        .find(|(name, _)| *name == unit)
        .ok_or_else(|| wrong("the unit should be B, KB, MB, GB, TB, KiB, MiB, GiB or TiB"))?;
    let (whole, fraction) = value.split_once('.').unwrap_or((value, ""));
    if whole.is_empty() && fraction.is_empty() {
        return Err(wrong("it should start with a number"));
    }
    // Digits are added up exactly; of a fraction more than 12 digits are less than a byte.
    let digits = |text: &str| match text {
        "" => Ok(0),
        _ => text
            .parse::<u128>()
            .map_err(|_| wrong("it is not a number")),
    };
    let fraction = &fraction[..fraction.len().min(12)];
    let parts = digits(fraction)? * u128::from(factor) / 10u128.pow(fraction.len() as u32);
    let bytes = digits(whole)?
        .checked_mul(u128::from(factor))
        .and_then(|bytes| u64::try_from(bytes + parts).ok())
        .ok_or_else(|| wrong("it is too large"))?;
    if bytes == 0 {
        return Err(wrong("it should be at least one byte"));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (text, bytes) in [
            ("4GiB", 4 << 30),
            ("512 MiB", 512 << 20),
            ("1.5GB", 1_500_000_000),
            ("0.5KiB", 512),
            ("4g", 4 << 30),
            ("123", 123),
            (" 7 B ", 7),
            ("2TiB", 2 << 40),
            (".5mb", 500_000),
            ("1.KB", 1000),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for text in [
            "",
            "GiB",
            "-1",
            "1.2.3",
            "4XB",
            "1e9",
            "0",
            "0.0001",
            ".",
            "NaN",
            "18446744073709551616",
            "99999999999999999999999999999999999999999",
            "1,5GB",
            "٤GB",
            "4GiB!",
        ] {
            assert!(parse_size(text).is_err(), "{text}");
        }
        let message = parse_size("4XB").unwrap_err().to_string();
        assert!(
            message.contains("\"4XB\"") && message.contains("GiB"),
            "{message}"
        );
    }

    #[test]
    fn names() {
        assert_eq!(parse_sim("sim:0=4GiB"), Ok((0, 4 << 30)));
        for text in [
            "sim:0",
            "cuda:0=4GiB",
            "sim:=4GiB",
            "sim:-1=1",
            "sim:+1=1",
            "=1",
            "sim:0=x",
        ] {
            assert!(parse_sim(text).is_err(), "{text}");
        }
        let device = Device::register_sim(9000, 100).unwrap();
        assert_eq!(device.name(), "sim:9000");
        assert_eq!(Device::parse("sim:9000"), Ok(device.clone()));
        assert_eq!(Device::parse("cpu"), Ok(Device::cpu()));
        assert!(matches!(
            Device::register_sim(9000, 5),
            Err(DeviceError::Taken { .. })
        ));
        let all = Device::all();
        assert_eq!(all[0], Device::cpu());
        assert!(all.contains(&device));
        let message = Device::parse("sim:9999").unwrap_err().to_string();
        assert!(message.contains("sim:9999; there are cpu, "), "{message}");
        for text in ["cuda", "cuda:", "cuda:x", "cuda:-1", "gpu:0", "SIM:0"] {
            let parsed = Device::parse(text);
            assert!(matches!(parsed, Err(DeviceError::Name { .. })), "{text}");
        }
    }

    #[test]
    fn a_gpu_that_is_not_there_is_said_so() {
        let error = Device::open("cuda:4000").unwrap_err().to_string();
        assert!(error.starts_with("unknown device cuda:4000: "), "{error}");
        // A name alone opens none, whether it is there or not.
        for name in ["cuda:0", "cuda:4000"] {
            let error = Device::parse(name).unwrap_err();
            assert!(matches!(error, DeviceError::Unknown { .. }), "{error}");
        }
    }

    #[test]
    fn memory_is_refused_when_it_is_full() {
        let device = Device::register_sim(9001, 100).unwrap();
        let first = device.allocate(60).unwrap();
        assert_eq!((device.used(), device.free()), (60, Some(40)));
        assert_eq!(
            device.allocate(41).unwrap_err(),
            TensorError::DeviceFull {
                device: "sim:9001".to_owned(),
                wanted: 41,
                free: 40,
                capacity: 100
            }
        );
        assert!(device.allocate(u64::MAX).is_err());
        let second = device.allocate(40).unwrap();
        drop(first);
        assert_eq!((device.used(), device.peak()), (40, 100));
        drop(second);
        assert_eq!(device.used(), 0);
        device.reset_peak();
        assert_eq!(device.peak(), 0);
        assert_eq!(Device::cpu().allocate(u64::MAX).unwrap().bytes(), u64::MAX);
        assert_eq!(Device::cpu().used(), 0);
    }

    #[test]
    fn a_device_that_fails_gives_nothing_any_more() {
        let device = Device::register_sim(9003, 1000).unwrap();
        let held = device.allocate(100).unwrap();
        assert_eq!(device.failure(), None);
        device.fail("it was unplugged");
        device.fail("again");
        let error = device.allocate(1).unwrap_err().to_string();
        assert_eq!(error, "sim:9003 has failed: it was unplugged");
        drop(held);
        assert_eq!(device.used(), 0);
        Device::cpu().fail("never");
        assert_eq!(Device::cpu().failure(), None);
    }

    #[test]
    fn many_threads_share_a_device() {
        let device = Device::register_sim(9002, 1000).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for i in 0..2000 {
                        if let Ok(memory) = device.allocate(i % 700) {
                            assert!(device.used() <= 1000);
                            drop(memory);
                        }
                    }
                });
            }
        });
        assert_eq!(device.used(), 0);
        assert!(device.peak() <= 1000);
    }
}
