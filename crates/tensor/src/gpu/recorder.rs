//! Repeats a step of a network with a few calls to a device, for every back end that can note what it starts.
//!
//! The first time a step runs, only its memory is measured. The second time its launches are started one by one and noted.
//! From the third time on nothing is started at first: the step's own code runs, and each launch that it asks for is compared with the note. If all of them are
//! the same, one graph does the work of hundreds of starts. What a launch is told may differ (a LoRA's weight is elsewhere): then
//! that node of the graph is told so. Where other launches are asked for, those noted before are started one by one, and the note is
//! written anew from there on. So nothing has to be known of the step but that it usually does the same.
//!
//! For places to be the same, memory comes from an arena of the step, which gives the same answers to the same questions.
//! Numbers from main memory are left in pinned places, where the graph's first launches read them; a caller that wants numbers back
//! ends a part of the step, and waits.
//!
//! A back end brings what [`Recordable`] asks for, calls [`launch`] where it would start something, [`flush`] before it reads results, [`interrupt`]
//! before it does what a graph cannot repeat, and takes memory for results with [`step_memory`].

use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::LocalKey;

use super::{ALIGNMENT, Arena, CHUNK, Chunk, GpuMemory, GpuOps, StepMemory, WhenFull};
use crate::error::Result;
use crate::lock::lock;

/// A device whose steps can be recorded.
pub(crate) trait Recordable: GpuOps + Sized {
    /// What is started: a kernel and its shape.
    type Launch: Copy + PartialEq;
    /// What it is told.
    type Args: Clone + PartialEq;
    /// Several launches, one after another, that are started together.
    type Graph;
    /// Main memory that the device reads and writes.
    type Pinned: PinnedMemory;

    fn recorder(&self) -> &Recorder<Self>;

    /// The step that runs on the calling thread: a variable of the thread for each back end.
    fn current_step() -> &'static LocalKey<CurrentStep<Self>>;

    /// The device as steps hold it.
    fn held(&self) -> Arc<Self>;

    /// Makes the device the one that this thread speaks to.
    fn enter(&self) -> Result<()>;

    /// Starts something now.
    fn start(&self, launch: Self::Launch, args: &Self::Args) -> Result<()>;

    fn graph(&self, launches: &[(Self::Launch, Self::Args)]) -> Result<Self::Graph>;

    /// Tells one launch of a graph something else.
    fn change(
        &self,
        graph: &Self::Graph,
        at: usize,
        launch: (Self::Launch, &Self::Args),
    ) -> Result<()>;

    fn start_graph(&self, graph: &Self::Graph) -> Result<()>;

    fn pinned(&self, bytes: usize) -> Result<Self::Pinned>;

    /// Memory for a step, counted as what is given up for anything else.
    fn arena_memory(&self, bytes: u64, full: WhenFull) -> Result<GpuMemory>;

    /// Bytes that can be had without anything being given up.
    fn room(&self) -> u64;

    /// The most bytes of results that were in use since [`Self::watch_use`].
    fn highest_use(&self) -> u64;

    /// Begins to measure that, and says what is in use now.
    fn watch_use(&self) -> u64;
}

/// Main memory that a device reads and writes itself.
pub(crate) trait PinnedMemory {
    fn len(&self) -> usize;

    /// What launches know the first byte by.
    fn place(&self) -> u64;

    /// Writes as many bytes of floats as there are.
    fn write(&mut self, values: &[f32]);
}

/// The variable of a thread that has its step.
pub(crate) type CurrentStep<B> = RefCell<Option<StepRun<B>>>;

/// Steps that are kept for another time.
const MOST: usize = 6;

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

/// Steps that can be repeated, the last used first, and the memory of steps that ran once.
pub(crate) struct Recorder<B: Recordable> {
    steps: Mutex<Vec<StepRecord<B>>>,
    measured: Mutex<Vec<StepUse>>,
    /// How many steps ran as graphs.
    repeats: AtomicU64,
}

impl<B: Recordable> Default for Recorder<B> {
    fn default() -> Self {
        Self {
            steps: Mutex::default(),
            measured: Mutex::default(),
            repeats: AtomicU64::new(0),
        }
    }
}

impl<B: Recordable> Recorder<B> {
    /// Gives up all steps, with their memory.
    pub(crate) fn clear(&self) {
        let all = std::mem::take(&mut *lock(&self.steps));
        drop(all);
    }

    /// How many steps ran as graphs.
    pub(crate) fn repeats(&self) -> u64 {
        self.repeats.load(Ordering::Relaxed)
    }

    fn keep(&self, step: StepRecord<B>) {
        let mut steps = lock(&self.steps);
        steps.insert(0, step);
        let most = steps.len().min(MOST);
        let gone = steps.split_off(most);
        drop(steps);
        drop(gone);
    }
}

/// What a step took that ran without being noted.
struct StepUse {
    key: u64,
    /// At most, with what was copied.
    bytes: u64,
    /// Whether weights were copied while it ran.
    copied: bool,
}

/// What one step did.
struct StepRecord<B: Recordable> {
    key: u64,
    arena: Arc<Mutex<Arena>>,
    uploads: Vec<B::Pinned>,
    /// Where results come to.
    landing: Option<B::Pinned>,
    segments: Vec<Segment<B>>,
}

/// Kernels between two points at which the main memory wants to know something.
struct Segment<B: Recordable> {
    launches: Vec<(B::Launch, B::Args)>,
    graph: Option<B::Graph>,
    /// Kernels that are told something else than the graph knows.
    changed: Vec<usize>,
    /// Whether the next segment follows because this one is long, and not because a caller waits.
    full: bool,
}

impl<B: Recordable> Default for Segment<B> {
    fn default() -> Self {
        Self {
            launches: Vec::new(),
            graph: None,
            changed: Vec::new(),
            full: false,
        }
    }
}

/// A step that runs on a thread.
pub(crate) struct StepRun<B: Recordable> {
    device: Arc<B>,
    step: StepRecord<B>,
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
    /// Whether weights were copied since a step began that is measured.
    static COPIED: Cell<bool> = const { Cell::new(false) };
}

/// Tells that weights came from elsewhere while a step ran.
pub(crate) fn copied() {
    COPIED.set(true);
}

/// Calls with the step of this thread, if it is one of this device.
fn with_run<B: Recordable, R>(
    device: &B,
    body: impl FnOnce(&mut StepRun<B>) -> Result<R>,
) -> Result<Option<R>> {
    B::current_step().with(|run| {
        // What is freed while the step itself makes room is none of its own.
        let Ok(mut run) = run.try_borrow_mut() else {
            return Ok(None);
        };
        match &mut *run {
            Some(run) if std::ptr::eq(&raw const *run.device, device) => body(run).map(Some),
            _ => Ok(None),
        }
    })
}

/// Runs what stays beyond the step, such as another form of a weight, as if there was no step. It comes before all that the
/// step has only asked for, and must not need it.
pub(crate) fn aside<B: Recordable, R>(body: impl FnOnce() -> R) -> R {
    struct Restore<B: Recordable>(Option<StepRun<B>>);
    impl<B: Recordable> Drop for Restore<B> {
        fn drop(&mut self) {
            B::current_step().set(self.0.take());
        }
    }
    let _restore = Restore::<B>(B::current_step().take());
    body()
}

impl<B: Recordable> StepRun<B> {
    fn current(&mut self) -> &mut Segment<B> {
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

    fn launch(&mut self, launch: B::Launch, args: &B::Args) -> Result<()> {
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
        self.segment == 0
            && self.at == 0
            && self.uploads == 0
            && !lock(&self.step.arena).is_in_use()
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

impl<B: Recordable> Segment<B> {
    /// Starts the graph, made at the first time.
    fn start(&mut self, device: &B) -> Result<()> {
        if self.launches.is_empty() {
            return Ok(());
        }
        if self.graph.is_none() {
            self.graph = Some(device.graph(&self.launches)?);
            self.changed.clear();
        }
        let Some(graph) = &self.graph else {
            return Ok(());
        };
        for at in self.changed.drain(..) {
            let (launch, args) = &self.launches[at];
            device.change(graph, at, (*launch, args))?;
        }
        device.start_graph(graph)
    }
}

/// Starts something, or compares it with what the step did before.
pub(crate) fn launch<B: Recordable>(device: &B, launch: B::Launch, args: &B::Args) -> Result<()> {
    match with_run(device, |run| run.launch(launch, args))? {
        Some(()) => Ok(()),
        None => device.start(launch, args),
    }
}

/// Starts all that a step has asked for. Whoever reads results does this first, and waits then.
pub(crate) fn flush<B: Recordable>(device: &B) -> Result<()> {
    with_run(device, StepRun::flush).map(|_| ())
}

/// For what is done beside kernels: a step that needs it is not repeated.
pub(crate) fn interrupt<B: Recordable>(device: &B) -> Result<()> {
    let stop = |run: &mut StepRun<B>| {
        run.unrepeatable = true;
        run.stop_replaying()
    };
    with_run(device, stop).map(|_| ())
}

/// Leaves numbers where the device reads them when the step is repeated. None if no step runs.
pub(crate) fn staged<B: Recordable>(device: &B, values: &[f32]) -> Result<Option<u64>> {
    with_run(device, |run| {
        let (at, bytes) = (run.uploads, size_of_val(values));
        run.uploads += 1;
        let fits = |pinned: &B::Pinned| pinned.len() == bytes;
        if !run.step.uploads.get(at).is_some_and(fits) {
            run.step.uploads.truncate(at);
            run.step.uploads.push(device.pinned(bytes)?);
        }
        let pinned = &mut run.step.uploads[at];
        pinned.write(values);
        Ok(pinned.place())
    })
}

/// Pinned memory for so many bytes of results of the step that runs on this thread. None if there is none, if they are many, or if the system refuses it.
pub(crate) fn landing<B: Recordable>(device: &B, bytes: usize) -> Result<Option<u64>> {
    if bytes > MOST_LANDING {
        return Ok(None);
    }
    let place = with_run(device, |run| {
        let landing = &mut run.step.landing;
        if landing.as_ref().is_none_or(|pinned| pinned.len() < bytes) {
            *landing = run.device.pinned(bytes).ok();
        }
        Ok(landing.as_ref().map(PinnedMemory::place))
    });
    Ok(place?.flatten())
}

/// Memory of the step that runs on this thread; none if there is none.
pub(crate) fn step_memory<B: Recordable>(device: &B, bytes: u64) -> Result<Option<StepMemory>> {
    with_run(device, |run| {
        StepMemory::take(&run.step.arena, bytes, |bytes| {
            device.arena_memory(bytes, WhenFull::MakeRoom)
        })
    })
}

/// Memory for a step whose need is known. None for one that was not seen, or for which there is no room.
fn first_chunk<B: Recordable>(device: &B, key: u64) -> Option<Chunk> {
    let measured = lock(&device.recorder().measured);
    let &StepUse { bytes, copied, .. } = measured.iter().find(|other| other.key == key)?;
    drop(measured);
    if bytes > MOST_BYTES {
        return None;
    }
    // Parts that are in use leave gaps of odd sizes.
    let arena = (bytes + bytes / 16 + CHUNK).next_multiple_of(ALIGNMENT);
    // Weights that come while it runs have their place beside the arena: they must find as much room as without it.
    if copied && device.room() < arena + bytes {
        return None;
    }
    let memory = device.arena_memory(arena, WhenFull::Refuse).ok()?;
    Some(Chunk::new(memory, arena))
}

/// Runs a step and remembers how much memory it took at most.
fn measured<B: Recordable, R>(device: &B, key: u64, body: impl FnOnce() -> R) -> R {
    let before = device.watch_use();
    COPIED.set(false);
    let result = body();
    let bytes = device.highest_use().saturating_sub(before);
    let copied = COPIED.get();
    let mut measured = lock(&device.recorder().measured);
    measured.retain(|other| other.key != key);
    measured.insert(0, StepUse { key, bytes, copied });
    measured.truncate(MOST_MEASURED);
    result
}

/// Lets a step that has not begun run without being noted or compared, because it is a special one: what was noted before
/// stays for those that follow.
pub(crate) fn apart<B: Recordable>(device: &B) {
    let run = B::current_step().with_borrow_mut(|run| run.take_if(|run| run.is_fresh()));
    if let Some(run) = run.filter(|run| run.replaying) {
        device.recorder().keep(run.step);
    }
}

/// Runs a step that usually does the same as the last one of that key.
pub(crate) fn repeated<B: Recordable, R>(device: &B, key: u64, body: impl FnOnce() -> R) -> R {
    let busy = B::current_step().with_borrow(Option::is_some);
    if busy || device.enter().is_err() {
        return body();
    }
    let found = {
        let mut kept = lock(&device.recorder().steps);
        let at = kept.iter().position(|step| step.key == key);
        at.map(|at| kept.remove(at))
    };
    // What the last time left in pinned memory has been read then.
    let found = found.filter(|_| device.synchronize().is_ok());
    let replaying = found.is_some();
    let mut step = match found {
        Some(step) => step,
        None => match first_chunk(device, key) {
            Some(chunk) => StepRecord {
                key,
                arena: Arc::new(Mutex::new(Arena::with(chunk))),
                uploads: Vec::new(),
                landing: None,
                segments: Vec::new(),
            },
            None => return measured(device, key, body),
        },
    };
    if step.segments.is_empty() {
        step.segments.push(Segment::default());
    }
    let run = StepRun {
        device: device.held(),
        step,
        segment: 0,
        at: 0,
        replaying,
        uploads: 0,
        unrepeatable: false,
        repeated: replaying,
    };
    B::current_step().set(Some(run));
    let guard = EndOfRun::<B>(PhantomData);
    let result = body();
    drop(guard);
    result
}

/// Ends the step of this thread, also where it ends with a panic.
struct EndOfRun<B: Recordable>(PhantomData<B>);

impl<B: Recordable> Drop for EndOfRun<B> {
    fn drop(&mut self) {
        let flushed = B::current_step().with_borrow_mut(|run| match run {
            Some(run) => run.flush().is_ok(),
            None => true,
        });
        let Some(mut run) = B::current_step().take() else {
            return;
        };
        let escaped = lock(&run.step.arena).is_in_use();
        if !flushed || escaped || run.unrepeatable || std::thread::panicking() {
            return;
        }
        if run.repeated {
            run.device
                .recorder()
                .repeats
                .fetch_add(1, Ordering::Relaxed);
        }
        // The one that the last flush has begun.
        run.step.segments.truncate(run.segment);
        run.device.recorder().keep(run.step);
    }
}
