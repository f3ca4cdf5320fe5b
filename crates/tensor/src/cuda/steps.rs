//! Repeats a step of a network as one graph.
//!
//! The first time a step runs, only its memory is measured. The second time its kernels are started one by one and noted.
//! From the third time on nothing is started at first: the step's own code runs, and each kernel that it asks for is compared with the note. If all of them are the same, one graph does the work
//! of hundreds of starts. What a kernel is told may differ (a LoRA's weight is elsewhere): then that node of the graph is
//! told so. Where other kernels are asked for, those noted before are started one by one, and the note is written anew from
//! there on. So nothing has to be known of the step but that it usually does the same.
//!
//! For addresses to be the same, memory comes from an arena of the step, which gives the same answers to the same questions.
//! Numbers from main memory are left in pinned places, where the graph's first kernels read them; whoever wants numbers back
//! ends a part of the step, and waits.

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use super::Args;
use super::device::CudaDevice;
use super::driver::Shared;
use super::launch::{Launch, write_pinned};
use super::memory::{Block, Purpose};
use crate::error::Result;
use crate::lock::lock;

/// Steps that are kept for another time.
const MOST: usize = 6;

/// Least bytes that an arena takes from the device at once, beyond what was measured.
const CHUNK: u64 = 8 << 20;

/// Kernels of a graph, by its number. A step has several, so that the first ones run while the code of the step goes on; they grow, so
/// that the device begins soon and seldom waits between two: the first kernels of a network are short, and there are enough of them in the first graph to last until the next one comes.
fn most_kernels(segment: usize) -> usize {
    8 << segment.min(5)
}

/// Steps that need more memory than this are not noted: they take seconds, of which starting kernels one by one is no part, and their
/// memory would wait for the next prompt.
const MOST_BYTES: u64 = 1 << 30;

/// Steps whose memory is known before they are noted.
const MOST_MEASURED: usize = 32;

/// Bytes of results that have a place in pinned memory.
const MOST_LANDING: usize = 8 << 20;

/// Addresses of blocks, for the copy engine.
const ALIGNMENT: u64 = 256;

/// Steps that can be repeated, the last used first, and the memory of steps that ran once.
#[derive(Default)]
pub(super) struct Kept {
    steps: Mutex<Vec<Recorded>>,
    measured: Mutex<Vec<Measured>>,
    /// How many steps ran as graphs.
    repeats: AtomicU64,
}

impl Kept {
    pub(super) fn clear(&self) {
        let all = std::mem::take(&mut *lock(&self.steps));
        drop(all);
    }

    pub(super) fn repeats(&self) -> u64 {
        self.repeats.load(Ordering::Relaxed)
    }

    fn keep(&self, step: Recorded) {
        let mut steps = lock(&self.steps);
        steps.insert(0, step);
        let most = steps.len().min(MOST);
        let gone = steps.split_off(most);
        drop(steps);
        drop(gone);
    }
}

/// What a step took that ran without being noted.
struct Measured {
    key: u64,
    /// At most, with what was copied.
    bytes: u64,
    /// Whether weights were copied while it ran.
    copied: bool,
}

/// What one step did.
struct Recorded {
    key: u64,
    arena: Arc<Mutex<Arena>>,
    uploads: Vec<Pinned>,
    /// Where results come to.
    landing: Option<Pinned>,
    segments: Vec<Segment>,
}

/// Kernels between two points at which the main memory wants to know something.
#[derive(Default)]
struct Segment {
    launches: Vec<(Launch, Args)>,
    graph: Option<Graph>,
    /// Kernels that are told something else than the graph knows.
    changed: Vec<usize>,
    /// Whether the next segment follows because this one is long, and not because somebody waits.
    full: bool,
}

struct Graph {
    device: Arc<CudaDevice>,
    made_of: Shared,
    exec: Shared,
    nodes: Vec<Shared>,
}

impl Drop for Graph {
    fn drop(&mut self) {
        if self.device.synchronize().is_ok() {
            self.device.driver.destroy_exec(self.exec);
            self.device.driver.destroy_graph(self.made_of);
        }
    }
}

/// Main memory that a device reads.
pub(super) struct Pinned {
    device: Arc<CudaDevice>,
    address: usize,
    bytes: usize,
}

impl Pinned {
    pub(super) fn new(device: &Arc<CudaDevice>, bytes: usize) -> Result<Self> {
        let address = device.checked(device.driver.pinned(bytes))?;
        Ok(Self {
            device: Arc::clone(device),
            address: address as usize,
            bytes,
        })
    }
}

impl Pinned {
    pub(super) fn bytes(&self) -> &[u8] {
        super::launch::pinned_bytes(self.address, self.bytes)
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        super::launch::pinned_bytes_mut(self.address, self.bytes)
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if self.device.synchronize().is_ok() && self.device.finish_copies().is_ok() {
            self.device.driver.free_pinned(self.address as *mut u8);
        }
    }
}

/// A step that runs on this thread.
struct Run {
    device: Arc<CudaDevice>,
    step: Recorded,
    /// The segment that is under way, and how many of its kernels were asked for.
    segment: usize,
    at: usize,
    /// Whether kernels are compared with the note and not started.
    replaying: bool,
    /// Numbers that came from main memory.
    uploads: usize,
    /// Whether it did what a graph cannot.
    unrepeatable: bool,
    /// Whether it was all as noted.
    repeated: bool,
}

thread_local! {
    static RUN: RefCell<Option<Run>> = const { RefCell::new(None) };
    /// Whether weights were copied since a step began that is measured.
    static COPIED: Cell<bool> = const { Cell::new(false) };
}

/// Tells that weights came from elsewhere while a step ran.
pub(super) fn copied() {
    COPIED.set(true);
}

/// Calls with the step of this thread, if it is one of this device.
fn with_run<R>(device: &CudaDevice, body: impl FnOnce(&mut Run) -> Result<R>) -> Result<Option<R>> {
    RUN.with(|run| {
        // What is freed while the step itself makes room is none of its own.
        let Ok(mut run) = run.try_borrow_mut() else {
            return Ok(None);
        };
        match &mut *run {
            Some(run) if run.device.number() == device.number() => body(run).map(Some),
            _ => Ok(None),
        }
    })
}

/// Runs what stays beyond the step, such as another form of a weight, as if there was no step. It comes before all that the
/// step has only asked for, and must not need it.
pub(crate) fn aside<R>(body: impl FnOnce() -> R) -> R {
    struct Restore(Option<Run>);
    impl Drop for Restore {
        fn drop(&mut self) {
            RUN.set(self.0.take());
        }
    }
    let _restore = Restore(RUN.take());
    body()
}

impl Run {
    fn current(&mut self) -> &mut Segment {
        &mut self.step.segments[self.segment]
    }

    /// Starts what was only compared until now, and goes on by noting.
    fn stop_replaying(&mut self) -> Result<()> {
        if !self.replaying {
            return Ok(());
        }
        self.replaying = false;
        self.repeated = false;
        let (at, segment) = (self.at, self.segment);
        self.step.segments.truncate(segment + 1);
        let current = self.current();
        current.graph = None;
        current.changed.clear();
        current.launches.truncate(at);
        current.full = false;
        for (launch, args) in &self.step.segments[segment].launches {
            self.device.start(*launch, args)?;
        }
        Ok(())
    }

    fn launch(&mut self, launch: Launch, args: &Args) -> Result<()> {
        if self.replaying {
            let at = self.at;
            let current = self.current();
            match current.launches.get_mut(at) {
                Some((noted, told)) if *noted == launch => {
                    if told != args {
                        told.clone_from(args);
                        current.changed.push(at);
                    }
                    let ended = current.full && at + 1 == current.launches.len();
                    self.at += 1;
                    return if ended { self.flush() } else { Ok(()) };
                }
                _ => self.stop_replaying()?,
            }
        }
        self.device.start(launch, args)?;
        let most = most_kernels(self.segment);
        let current = self.current();
        current.launches.push((launch, args.clone()));
        if current.launches.len() >= most {
            current.full = true;
            return self.flush();
        }
        self.at += 1;
        Ok(())
    }

    /// Whether nothing was done yet.
    fn is_fresh(&self) -> bool {
        self.segment == 0 && self.at == 0 && self.uploads == 0 && lock(&self.step.arena).live == 0
    }

    /// Starts all that was asked for, so that it can be waited for.
    fn flush(&mut self) -> Result<()> {
        if self.replaying {
            if self.at == self.current().launches.len() {
                let device = Arc::clone(&self.device);
                self.current().start(&device)?;
            } else {
                self.stop_replaying()?;
            }
        }
        self.segment += 1;
        self.at = 0;
        self.replaying = self.segment < self.step.segments.len();
        if !self.replaying {
            self.step.segments.push(Segment::default());
        }
        Ok(())
    }
}

impl Segment {
    /// A graph of all kernels, one after the other. With `early` each is started while the one before it still runs, so that nobody waits for
    /// its start: kernels of Hopper wait themselves (`after_others` in kernels/common.cuh). Those whose blocks wait for each other are started
    /// when there is room for all of them.
    fn made(&self, device: &Arc<CudaDevice>, early: bool) -> Result<Graph> {
        let driver = device.driver;
        let graph = device.checked(driver.graph())?;
        let mut made = Graph {
            device: Arc::clone(device),
            made_of: graph,
            exec: Shared(std::ptr::null_mut()),
            nodes: Vec::with_capacity(self.launches.len()),
        };
        for (launch, args) in &self.launches {
            let after = made.nodes.last().copied();
            let early = early && !launch.cooperative;
            let node = device.add_to_graph(graph, (after, early), *launch, args)?;
            made.nodes.push(node);
        }
        made.exec = device.checked(driver.instantiate(graph))?;
        Ok(made)
    }

    /// Starts the graph, made at the first time.
    fn start(&mut self, device: &Arc<CudaDevice>) -> Result<()> {
        let driver = device.driver;
        if self.launches.is_empty() {
            return Ok(());
        }
        if self.graph.is_none() {
            // A driver that knows no early starts may say so only now.
            let made = self.made(device, device.hopper());
            self.graph = Some(made.or_else(|_| self.made(device, false))?);
            self.changed.clear();
        }
        let Some(graph) = &self.graph else {
            return Ok(());
        };
        for at in self.changed.drain(..) {
            let (launch, args) = &self.launches[at];
            device.update_in_graph((graph.exec, graph.nodes[at]), *launch, args)?;
        }
        device.checked(driver.start_graph(graph.exec, device.compute))
    }
}

/// Starts a kernel, or compares it with what the step did before.
pub(super) fn launch(device: &CudaDevice, launch: Launch, args: &Args) -> Result<()> {
    match with_run(device, |run| run.launch(launch, args))? {
        Some(()) => Ok(()),
        None => device.start(launch, args),
    }
}

/// Starts all that a step has asked for. Whoever reads results does this first, and waits then.
pub(super) fn flush(device: &CudaDevice) -> Result<()> {
    with_run(device, Run::flush).map(|_| ())
}

/// For what is done beside kernels: a step that needs it is not repeated.
pub(super) fn interrupt(device: &CudaDevice) -> Result<()> {
    let stop = |run: &mut Run| {
        run.unrepeatable = true;
        run.stop_replaying()
    };
    with_run(device, stop).map(|_| ())
}

/// Leaves numbers where the device reads them when the step is repeated. None if no step runs.
pub(super) fn staged(device: &Arc<CudaDevice>, values: &[f32]) -> Result<Option<u64>> {
    with_run(device, |run| {
        let (at, bytes) = (run.uploads, size_of_val(values));
        run.uploads += 1;
        let fits = |pinned: &Pinned| pinned.bytes == bytes;
        if !run.step.uploads.get(at).is_some_and(fits) {
            run.step.uploads.truncate(at);
            run.step.uploads.push(Pinned::new(device, bytes)?);
        }
        let address = run.step.uploads[at].address;
        write_pinned(address as *mut u8, values);
        Ok(address as u64)
    })
}

/// Pinned memory for so many bytes of results of the step that runs on this thread. None if there is none, if they are many, or if the system refuses it.
pub(super) fn landing(device: &CudaDevice, bytes: usize) -> Result<Option<usize>> {
    if bytes > MOST_LANDING {
        return Ok(None);
    }
    let address = with_run(device, |run| {
        let landing = &mut run.step.landing;
        if landing.as_ref().is_none_or(|pinned| pinned.bytes < bytes) {
            *landing = Pinned::new(&run.device, bytes).ok();
        }
        Ok(landing.as_ref().map(|pinned| pinned.address))
    });
    Ok(address?.flatten())
}

/// Memory of the step that runs on this thread; none if there is none.
pub(super) fn arena_block(
    device: &Arc<CudaDevice>,
    bytes: u64,
) -> Result<Option<(u64, ArenaBlock)>> {
    with_run(device, |run| {
        let arena = Arc::clone(&run.step.arena);
        let address = lock(&arena).take(bytes, |bytes| device.block_for(Purpose::Arena, bytes))?;
        Ok((address, ArenaBlock { arena, address }))
    })
}

impl CudaDevice {
    /// Memory for a step whose need is known. None for one that was not seen, or for which there is no room.
    fn first_chunk(self: &Arc<Self>, key: u64) -> Option<Chunk> {
        let measured = lock(&self.steps.measured);
        let &Measured { bytes, copied, .. } = measured.iter().find(|other| other.key == key)?;
        drop(measured);
        if bytes > MOST_BYTES {
            return None;
        }
        // Parts that are in use leave gaps of odd sizes.
        let arena = (bytes + bytes / 16 + CHUNK).next_multiple_of(ALIGNMENT);
        // Weights that come while it runs have their place beside the arena: they must find as much room as without it.
        if copied && self.room() < arena + bytes {
            return None;
        }
        let block = self.take_arena(arena).ok()?;
        Some(Chunk::new(block.address(), arena, Some(block)))
    }

    /// Runs a step and remembers how much memory it took at most.
    fn measured<R>(&self, key: u64, body: impl FnOnce() -> R) -> R {
        let before = self.used();
        self.highest.store(before, Ordering::Relaxed);
        COPIED.set(false);
        let result = body();
        let bytes = self.highest.load(Ordering::Relaxed).saturating_sub(before);
        let copied = COPIED.get();
        let mut measured = lock(&self.steps.measured);
        measured.retain(|other| other.key != key);
        measured.insert(0, Measured { key, bytes, copied });
        measured.truncate(MOST_MEASURED);
        result
    }

    /// Lets a step that has not begun run without being noted or compared, because it is a special one: what was noted before
    /// stays for those that follow.
    pub(crate) fn apart(&self) {
        let run = RUN.with_borrow_mut(|run| run.take_if(|run| run.is_fresh()));
        if let Some(run) = run.filter(|run| run.replaying) {
            self.steps.keep(run.step);
        }
    }

    /// Runs a step that usually does the same as the last one of that key.
    pub(crate) fn repeated<R>(self: &Arc<Self>, key: u64, body: impl FnOnce() -> R) -> R {
        let busy = RUN.with_borrow(Option::is_some);
        if busy || self.enter().is_err() {
            return body();
        }
        let found = {
            let mut kept = lock(&self.steps.steps);
            let at = kept.iter().position(|step| step.key == key);
            at.map(|at| kept.remove(at))
        };
        // What the last time left in pinned memory has been read then.
        let found = found.filter(|_| self.synchronize().is_ok());
        let replaying = found.is_some();
        let mut step = match found {
            Some(step) => step,
            None => match self.first_chunk(key) {
                Some(chunk) => Recorded {
                    key,
                    arena: Arc::new(Mutex::new(Arena::with(chunk))),
                    uploads: Vec::new(),
                    landing: None,
                    segments: Vec::new(),
                },
                None => return self.measured(key, body),
            },
        };
        if step.segments.is_empty() {
            step.segments.push(Segment::default());
        }
        let run = Run {
            device: Arc::clone(self),
            step,
            segment: 0,
            at: 0,
            replaying,
            uploads: 0,
            unrepeatable: false,
            repeated: replaying,
        };
        RUN.set(Some(run));
        let guard = EndOfRun;
        let result = body();
        drop(guard);
        result
    }
}

/// Ends the step of this thread, also where it ends with a panic.
struct EndOfRun;

impl Drop for EndOfRun {
    fn drop(&mut self) {
        let flushed = RUN.with_borrow_mut(|run| match run {
            Some(run) => run.flush().is_ok(),
            None => true,
        });
        let Some(mut run) = RUN.take() else {
            return;
        };
        let escaped = lock(&run.step.arena).live > 0;
        if !flushed || escaped || run.unrepeatable || std::thread::panicking() {
            return;
        }
        if run.repeated {
            run.device.steps.repeats.fetch_add(1, Ordering::Relaxed);
        }
        // The one that the last flush has begun.
        run.step.segments.truncate(run.segment);
        run.device.steps.keep(run.step);
    }
}

/// Memory that gives the same addresses to the same questions.
#[derive(Debug, Default)]
pub(super) struct Arena {
    chunks: Vec<Chunk>,
    live: usize,
}

#[derive(Debug)]
struct Chunk {
    start: u64,
    /// Free parts by their place, each with its size; none touches the next.
    free: Vec<(u64, u64)>,
    /// Parts in use.
    used: Vec<(u64, u64)>,
    _block: Option<Block>,
}

impl Chunk {
    fn new(start: u64, bytes: u64, block: Option<Block>) -> Self {
        Self {
            start,
            free: vec![(start, bytes)],
            used: Vec::new(),
            _block: block,
        }
    }

    /// The smallest free part that is large enough, the first of them.
    fn take(&mut self, bytes: u64) -> Option<u64> {
        let fitting = self
            .free
            .iter()
            .enumerate()
            .filter(|(_, part)| part.1 >= bytes);
        let (at, _) = fitting.min_by_key(|(_, part)| part.1)?;
        let (start, size) = self.free[at];
        if size == bytes {
            self.free.remove(at);
        } else {
            self.free[at] = (start + bytes, size - bytes);
        }
        self.used.push((start, bytes));
        Some(start)
    }

    fn give(&mut self, address: u64) -> bool {
        let Some(at) = self.used.iter().position(|part| part.0 == address) else {
            return false;
        };
        let (start, bytes) = self.used.swap_remove(at);
        let next = self.free.partition_point(|part| part.0 < start);
        self.free.insert(next, (start, bytes));
        for left in [next, next.wrapping_sub(1)] {
            if let Some(&(after, more)) = self.free.get(left.wrapping_add(1))
                && let Some(part) = self.free.get_mut(left)
                && part.0 + part.1 == after
            {
                part.1 += more;
                self.free.remove(left + 1);
            }
        }
        true
    }
}

impl Arena {
    fn with(chunk: Chunk) -> Self {
        Self {
            chunks: vec![chunk],
            live: 0,
        }
    }

    fn take(&mut self, bytes: u64, more: impl FnOnce(u64) -> Result<Block>) -> Result<u64> {
        let bytes = bytes.max(1).next_multiple_of(ALIGNMENT);
        let found = self.chunks.iter_mut().find_map(|chunk| chunk.take(bytes));
        let address = if let Some(address) = found {
            address
        } else {
            let size = bytes.max(CHUNK);
            let block = more(size)?;
            let mut chunk = Chunk::new(block.address(), size, Some(block));
            let address = chunk.take(bytes).unwrap_or(chunk.start);
            self.chunks.push(chunk);
            address
        };
        self.live += 1;
        Ok(address)
    }

    fn give(&mut self, address: u64) {
        if self.chunks.iter_mut().any(|chunk| chunk.give(address)) {
            self.live -= 1;
        }
    }
}

/// Memory of an arena, given back when dropped.
#[derive(Debug)]
pub(super) struct ArenaBlock {
    arena: Arc<Mutex<Arena>>,
    address: u64,
}

impl Drop for ArenaBlock {
    fn drop(&mut self) {
        lock(&self.arena).give(self.address);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An arena of one chunk that is there already.
    fn arena() -> Arena {
        Arena {
            chunks: vec![Chunk::new(0x1000, 1 << 20, None)],
            live: 0,
        }
    }

    fn take(arena: &mut Arena, bytes: u64) -> u64 {
        arena.take(bytes, |_| panic!("there is room")).unwrap()
    }

    #[test]
    fn the_same_questions_get_the_same_addresses() {
        let mut arena = arena();
        let mut runs = Vec::new();
        for _ in 0..3 {
            let a = take(&mut arena, 1000);
            let b = take(&mut arena, 5000);
            arena.give(a);
            let c = take(&mut arena, 200);
            let d = take(&mut arena, 3000);
            runs.push([a, b, c, d]);
            for address in [c, b, d] {
                arena.give(address);
            }
            assert_eq!(arena.live, 0);
            assert_eq!(arena.chunks[0].free, [(0x1000, 1 << 20)]);
        }
        assert_eq!(runs[0], runs[1]);
        assert_eq!(runs[1], runs[2]);
        // What was given back is used again.
        assert_eq!(runs[0][0], runs[0][2]);
    }

    #[test]
    fn parts_never_overlap() {
        let mut arena = arena();
        let mut held: Vec<(u64, u64)> = Vec::new();
        let mut state = 7_u64;
        for _ in 0..2000 {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let random = state >> 33;
            if held.len() > 20 || (random.is_multiple_of(3) && !held.is_empty()) {
                let (address, _) = held.swap_remove(random as usize % held.len());
                arena.give(address);
                continue;
            }
            let bytes = 1 + random % 9000;
            let address = take(&mut arena, bytes);
            assert_eq!(address % ALIGNMENT, 0);
            let end = address + bytes;
            assert!(held.iter().all(|&(a, n)| end <= a || address >= a + n));
            held.push((address, bytes));
        }
        for (address, _) in held {
            arena.give(address);
        }
        assert_eq!(arena.chunks[0].free.len(), 1);
    }
}
