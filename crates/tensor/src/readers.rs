//! Threads that read files for others.
//!
//! A disk or a network share that does not answer holds a thread in the kernel, where nothing can end its wait. So the thread of a
//! prompt does not read: it waits for a reader, looks at its flag meanwhile, and leaves when the flag is raised. The abandoned read
//! owns the memory that it fills, which is freed when the read returns. A reader that hangs keeps no other thread from reading: another
//! thread is started where none is idle.

#![expect(
    unsafe_code,
    reason = "several threads fill parts of one memory, each part once"
)]

use std::io;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SendError, Sender};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use crate::cancel::Cancel;
use crate::cpu::lines::SharedPointer;
use crate::error::TensorError;
use crate::lock::lock;
use crate::positioned::PositionedFile;

/// Threads that are kept for the next read.
pub(crate) const MOST_IDLE: usize = 16;

/// Threads in all. Only reads that hang bring so many about.
const MOST: usize = 256;

/// How long a waiting thread does not look at its flag.
const LOOK: Duration = Duration::from_millis(20);

/// What each thread reads at a time.
const PART: usize = 512 << 10;

type Job = Box<dyn FnOnce() + Send>;

struct Threads {
    idle: Vec<Sender<Job>>,
    all: usize,
}

static THREADS: Mutex<Threads> = Mutex::new(Threads {
    idle: Vec::new(),
    all: 0,
});

/// Has a reader do something.
pub(crate) fn start(mut job: Job) -> io::Result<()> {
    let mut threads = lock(&THREADS);
    while let Some(reader) = threads.idle.pop() {
        match reader.send(job) {
            Ok(()) => return Ok(()),
            Err(SendError(unsent)) => job = unsent,
        }
    }
    if threads.all >= MOST {
        return Err(io::Error::other(format!(
            "{MOST} reads of files wait for disks or network shares that do not answer; see that they answer again, or start the program again without them"
        )));
    }
    let (sender, jobs) = mpsc::channel();
    let thread = thread::Builder::new().name(format!("read-{}", threads.all));
    thread.spawn(move || {
        job();
        while let Some(job) = next_job(&sender, &jobs) {
            job();
        }
    })?;
    threads.all += 1;
    Ok(())
}

/// What an idle reader is asked to do next; none where there are enough idle ones.
fn next_job(own: &Sender<Job>, jobs: &Receiver<Job>) -> Option<Job> {
    {
        let mut threads = lock(&THREADS);
        if threads.idle.len() >= MOST_IDLE {
            threads.all -= 1;
            return None;
        }
        threads.idle.push(own.clone());
    }
    jobs.recv().ok()
}

/// Runs something that asks a file system, on a thread of its own, so that a prompt whose disk or network share does not answer can
/// still be interrupted. The work is then abandoned: what it gives is dropped when it returns. Threads that cannot be interrupted do it
/// themselves.
pub fn on_reader_thread<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<T> {
    let cancel = Cancel::current();
    if cancel.is_never() {
        return Ok(work());
    }
    cancel.check().map_err(io::Error::other)?;
    let answer = ask(work)?;
    loop {
        match answer.recv_timeout(LOOK) {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(panic)) => resume_unwind(panic),
            Err(RecvTimeoutError::Timeout) => cancel.check().map_err(io::Error::other)?,
            Err(RecvTimeoutError::Disconnected) => {
                return Err(io::Error::other("the thread that reads files has ended"));
            }
        }
    }
}

/// Asks a file system something that can be done without. None where the answer does not come in time.
pub fn answer_within<T: Send + 'static>(
    time: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    match ask(work).ok()?.recv_timeout(time).ok()? {
        Ok(value) => Some(value),
        Err(panic) => resume_unwind(panic),
    }
}

/// Has a reader do something and send what it gives.
fn ask<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<Receiver<thread::Result<T>>> {
    let (sender, answer) = mpsc::channel();
    start(Box::new(move || {
        // The one who waits may have left.
        let _ = sender.send(catch_unwind(AssertUnwindSafe(work)));
    }))?;
    Ok(answer)
}

/// Whether reading ended because its work is not wanted any more.
pub(crate) fn is_cancelled(error: &io::Error) -> bool {
    let cause = error.get_ref().and_then(|cause| cause.downcast_ref());
    matches!(cause, Some(TensorError::Cancelled))
}

/// Work in numbered parts.
pub(crate) trait Parts: Send + Sync + 'static {
    /// Does one of them.
    fn part(&self, number: usize) -> io::Result<()>;

    /// Called when all were done, by the thread that did the last of them: it may ask a file system, too.
    fn end(&self) -> io::Result<()>;
}

/// Parts of work on some memory, by several threads, for one who waits.
struct PartWork<S, W> {
    work: W,
    count: usize,
    /// The part that is done next.
    next: AtomicUsize,
    abandoned: AtomicBool,
    progress: Mutex<Progress<S>>,
    changed: Condvar,
}

struct Progress<S> {
    /// Taken by the one who waits when the last reader is done; it goes with the last reader where no thread waits any more.
    space: Option<S>,
    /// Readers that are not done.
    readers: usize,
    end: Option<io::Result<()>>,
}

/// Has at most so many readers do `count` parts of work on some memory, each part once. They may write to `space` by address: it is not
/// moved or used before the last of them is done, also where the one who waits has left.
pub(crate) fn in_parts<S: Send + 'static>(
    space: S,
    (count, readers): (usize, usize),
    work: impl Parts,
) -> io::Result<S> {
    let cancel = Cancel::current();
    cancel.check().map_err(io::Error::other)?;
    let readers = readers.clamp(1, count.max(1));
    let all = Arc::new(PartWork {
        work,
        count,
        next: AtomicUsize::new(0),
        abandoned: AtomicBool::new(false),
        progress: Mutex::new(Progress {
            space: Some(space),
            readers,
            end: None,
        }),
        changed: Condvar::new(),
    });
    for number in 0..readers {
        let job = Arc::clone(&all);
        if let Err(error) = start(Box::new(move || job.work())) {
            if number == 0 {
                return Err(error);
            }
            // Those that were started do it.
            for _ in number..readers {
                all.finish(Ok(()));
            }
            break;
        }
    }
    all.wait(&cancel)
}

/// Fills a part of some memory from a place of a file, by at most so many readers, and looks whether the file is as it was opened.
pub(crate) fn fill<S: AsMut<[u8]> + Send + 'static>(
    (file, at): (&PositionedFile, u64),
    mut space: S,
    part: Range<usize>,
    readers: usize,
) -> io::Result<S> {
    let cancel = Cancel::current();
    cancel.check().map_err(io::Error::other)?;
    let out = &mut space.as_mut()[part];
    let len = out.len();
    let few = len <= PART;
    if few && (cancel.is_never() || file.read_cached(out, at)) {
        if cancel.is_never() {
            file.read_exact_at(out, at)?;
        }
        file.check_unchanged()?;
        return Ok(space);
    }
    let work = Fill {
        file: file.clone(),
        at,
        len,
        begin: SharedPointer::new(out.as_mut_ptr()),
    };
    in_parts(space, (len.div_ceil(PART), readers), work)
}

/// A part of some memory that is filled from a file.
struct Fill {
    file: PositionedFile,
    /// Where the bytes begin in the file, and how many there are.
    at: u64,
    len: usize,
    /// Where the first of them goes.
    begin: SharedPointer<u8>,
}

impl Parts for Fill {
    /// Each reader takes the next part that no reader has yet, so that the system sees one read after the other and reads ahead of all.
    fn part(&self, number: usize) -> io::Result<()> {
        let from = number * PART;
        let len = PART.min(self.len - from);
        // SAFETY: the bytes are inside the part of memory that `begin` was made from, each number is given out once, and the memory stays
        // where it is until the last reader is done.
        let out = unsafe { std::slice::from_raw_parts_mut(self.begin.get().add(from), len) };
        self.file.read_exact_at(out, self.at + from as u64)
    }

    /// Looks whether the file is still as it was: afterwards, which covers the time of the reading as well.
    fn end(&self) -> io::Result<()> {
        self.file.check_unchanged()
    }
}

impl<S, W: Parts> PartWork<S, W> {
    fn work(&self) {
        let done = catch_unwind(AssertUnwindSafe(|| self.do_parts()));
        self.finish(
            done.unwrap_or_else(|_| Err(io::Error::other("a reader of the file panicked"))),
        );
    }

    fn do_parts(&self) -> io::Result<()> {
        loop {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            if number >= self.count || self.abandoned.load(Ordering::Relaxed) {
                return Ok(());
            }
            self.work.part(number)?;
        }
    }

    /// Counts a reader as done. The last one ends the work.
    fn finish(&self, done: io::Result<()>) {
        let mut progress = lock(&self.progress);
        if let Err(error) = done
            && progress.end.is_none()
        {
            // The others need not go on, and no thread waits for them.
            self.abandoned.store(true, Ordering::Relaxed);
            progress.end = Some(Err(error));
        }
        progress.readers -= 1;
        if progress.readers == 0 && progress.end.is_none() {
            drop(progress);
            let end = self.work.end();
            progress = lock(&self.progress);
            progress.end = Some(end);
        }
        drop(progress);
        self.changed.notify_all();
    }

    /// The memory when all parts are done.
    fn wait(&self, cancel: &Cancel) -> io::Result<S> {
        let mut progress = lock(&self.progress);
        loop {
            if let Some(end) = progress.end.take() {
                end?;
                let space = progress.space.take();
                return space.ok_or_else(|| io::Error::other("the memory was taken already"));
            }
            if let Err(cancelled) = cancel.check() {
                self.abandoned.store(true, Ordering::Relaxed);
                return Err(io::Error::other(cancelled));
            }
            let waited = self.changed.wait_timeout(progress, LOOK);
            progress = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::cancel;

    #[test]
    fn a_thread_leaves_work_that_does_not_end() {
        let flag = Arc::new(AtomicBool::new(false));
        let (end, stalled) = mpsc::channel::<()>();
        let (dropped, drops) = mpsc::channel();
        let raise = Arc::clone(&flag);
        let raising = thread::spawn(move || {
            thread::park_timeout(Duration::from_millis(50));
            raise.store(true, Ordering::Relaxed);
        });
        let memory = DropNote(dropped);
        let left = cancel::with(&flag, || {
            on_reader_thread(move || {
                let _ = stalled.recv();
                memory
            })
        });
        assert!(is_cancelled(&left.map(drop).unwrap_err()));
        raising.join().unwrap();
        // What it works on is its own until it returns.
        assert!(drops.try_recv().is_err());
        end.send(()).unwrap();
        drops.recv_timeout(Duration::from_mins(1)).unwrap();
    }

    struct DropNote(Sender<()>);

    impl Drop for DropNote {
        fn drop(&mut self) {
            let _ = self.0.send(());
        }
    }

    #[test]
    fn work_that_hangs_keeps_nobody_else_from_reading() {
        let flag = Arc::new(AtomicBool::new(false));
        let (end, stalled) = mpsc::channel::<()>();
        let stalled = Arc::new(Mutex::new(stalled));
        for _ in 0..2 * MOST_IDLE {
            let stalled = Arc::clone(&stalled);
            start(Box::new(move || {
                let _ = lock(&stalled).recv();
            }))
            .unwrap();
        }
        let begun = Instant::now();
        let answer = cancel::with(&flag, || on_reader_thread(|| 7));
        assert_eq!(answer.unwrap(), 7);
        assert!(begun.elapsed() < Duration::from_secs(30));
        drop(end);
    }

    #[test]
    fn a_panic_reaches_the_one_who_waits() {
        let flag = Arc::new(AtomicBool::new(false));
        let panicked = catch_unwind(|| {
            cancel::with(&flag, || on_reader_thread(|| resume_unwind(Box::new(7))))
        });
        assert_eq!(panicked.unwrap_err().downcast_ref(), Some(&7));
    }

    #[test]
    fn parts_of_memory_are_filled_by_several_readers() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        let content: Vec<u8> = (0..5 * PART + 7).map(|i| (i / 3) as u8).collect();
        std::fs::write(&path, &content).unwrap();
        let file = PositionedFile::open(&path).unwrap();
        let flag = Arc::new(AtomicBool::new(false));
        for (at, part, readers) in [
            (0, 0..content.len(), 8),
            (3, 11..11 + 4 * PART, 3),
            (1, 0..100, 1),
            (9, 5..5, 4),
        ] {
            let len = part.len();
            let filled = cancel::with(&flag, || {
                let space = vec![1; content.len() + 20];
                fill((&file, at), space, part.clone(), readers).unwrap()
            });
            let from = at as usize;
            assert!(filled[part.clone()] == content[from..from + len]);
            assert!(filled[..part.start].iter().all(|&byte| byte == 1));
            assert!(filled[part.end..].iter().all(|&byte| byte == 1));
        }
        flag.store(true, Ordering::Relaxed);
        let error = cancel::with(&flag, || fill((&file, 0), vec![0; 9], 0..9, 1));
        assert!(is_cancelled(&error.unwrap_err()));
        // More than there is.
        let space = vec![0; 6 * PART];
        let error = fill((&file, 0), space, 0..6 * PART, 2).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }
}
