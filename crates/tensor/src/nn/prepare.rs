//! Matrices that stream to a GPU from their file, brought into main memory beside the work: in fewer bits where that loses nothing, and
//! where the GPU reads them itself. Until then, and where main memory has no room for them, they come from the file every time.

use std::collections::VecDeque;
use std::sync::{Arc, LazyLock, Mutex, Weak};

use rayon::{ThreadPool, ThreadPoolBuilder};

use super::contents::Form;
use crate::error::Result;
use crate::lock::lock;
use crate::narrow::Narrow;
use crate::stored::Stored;

/// A matrix in the queue: its form, and the taps of its kernel.
type QueuedMatrix = (Weak<Mutex<Form>>, usize);

#[derive(Default)]
struct Queue {
    waiting: VecDeque<QueuedMatrix>,
    /// Whether somebody works on it.
    busy: bool,
}

static QUEUE: LazyLock<Mutex<Queue>> = LazyLock::new(Mutex::default);

/// A quarter of the processors: steps go on meanwhile, and read from the same memory.
static THREADS: LazyLock<Option<ThreadPool>> = LazyLock::new(|| {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = ThreadPoolBuilder::new().num_threads((processors / 4).max(1));
    threads.thread_name(|n| format!("prepare-{n}")).build().ok()
});

/// Has a matrix brought into main memory, after those that were asked for before.
pub(super) fn prepare(form: &Arc<Mutex<Form>>, taps: usize) {
    let mut queue = lock(&QUEUE);
    queue.waiting.push_back((Arc::downgrade(form), taps));
    if !queue.busy {
        let thread = std::thread::Builder::new().name("prepare".to_owned());
        // Without a thread it goes on coming from its file.
        queue.busy = thread.spawn(work_off).is_ok();
    }
}

fn next() -> Option<QueuedMatrix> {
    let mut queue = lock(&QUEUE);
    let next = queue.waiting.pop_front();
    queue.busy = next.is_some();
    next
}

fn work_off() {
    while let Some((form, taps)) = next() {
        let Some(form) = form.upgrade() else {
            continue;
        };
        let stored = match &*lock(&form) {
            Form::Read(stored) if stored.is_direct() => stored.clone(),
            _ => continue,
        };
        let make = || prepared(&stored, taps);
        let made = match &*THREADS {
            Some(threads) => threads.install(make),
            None => make(),
        };
        // What cannot be read is told when a step reads it.
        let Ok(made) = made else {
            continue;
        };
        let mut form = lock(&form);
        if matches!(&*form, Form::Read(stored) if stored.is_direct()) {
            *form = made;
        }
    }
}

fn prepared(stored: &Stored, taps: usize) -> Result<Form> {
    let whole = stored.read_apart()?;
    // Kernels of convolutions are put into another order by the GPU, which is done with whole elements.
    let narrow = match taps {
        1 => Narrow::new(&whole)?,
        _ => None,
    };
    Ok(if let Some(narrow) = narrow {
        narrow.pin();
        Form::Narrow(Arc::new(narrow))
    } else {
        whole.pin();
        Form::Read(whole)
    })
}
