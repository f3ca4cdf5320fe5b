//! The way of weights from their file to a GPU: through pieces of pinned memory, each of which one thread fills while others are on
//! their way.
//!
//! The thread that asks for a copy hands out pieces and talks to the driver; readers only read. So readers never wait for each other,
//! and one that hangs in the system, on a network share that does not answer, holds up no other thread: an interrupted thread leaves the piece to it.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::device::CudaDevice;
use super::driver::Shared;
use super::steps::Pinned;
use crate::error::{Result, TensorError};
use crate::lock::lock;
use crate::positioned::{FilePart, FileSource, PAST_CACHE_SLACK};
use crate::{readers, traffic};

/// The most that a piece holds: all pieces together stay in the processor's own cache on their way.
const PIECE: usize = 1 << 20;
/// Smaller parts are not worth a thread.
const LEAST: usize = 256 << 10;
/// Pieces that are kept: one for each reader, and as many on their way to the GPU.
const PIECES: usize = 16;
/// Readers beyond those that keep main memory busy: they begin while the thread that asked for a copy sends what others have filled.
const QUEUED: usize = 2;
/// How long a reader may take to end after an interrupt before it is left alone.
const GRACE: Duration = Duration::from_millis(200);
/// How often a thread that waits for readers looks for an interrupt.
const LOOK: Duration = Duration::from_millis(20);

/// Where bytes come from.
#[derive(Clone, Copy)]
pub(crate) enum Origin<'a> {
    Memory(&'a [u8]),
    File(&'a FilePart),
}

/// When bytes are copied.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Moment {
    /// After the work before, and before the work behind.
    InTurn,
    /// Beside the work: whoever uses them waits for the end of the copies.
    Ahead,
}

/// Pinned memory in pieces.
#[derive(Default)]
pub(super) struct Staging(Mutex<Pieces>);

#[derive(Default)]
struct Pieces {
    /// Those that no reader has, in the order in which their copies end.
    idle: VecDeque<Piece>,
    /// Of them, and of those that readers have.
    made: usize,
}

struct Piece {
    memory: Pinned,
    /// What tells that its last copy was made.
    copied: Option<Shared>,
}

impl Staging {
    /// A piece whose bytes are no longer needed.
    fn take(&self, device: &CudaDevice) -> Result<Piece> {
        let mut pieces = lock(&self.0);
        let idle = if pieces.made < PIECES {
            None
        } else {
            pieces.idle.pop_front()
        };
        let Some(mut piece) = idle else {
            let memory = Pinned::new(device, PIECE + PAST_CACHE_SLACK)?;
            pieces.made += 1;
            return Ok(Piece {
                memory,
                copied: None,
            });
        };
        drop(pieces);
        if let Some(event) = piece.copied.take() {
            let waited = device.checked(device.driver.wait_here(event));
            device.driver.destroy_event(event);
            if waited.is_err() {
                lock(&self.0).made -= 1;
            }
            waited?;
        }
        Ok(piece)
    }

    fn give(&self, piece: Piece) {
        lock(&self.0).idle.push_back(piece);
    }

    /// A reader that hangs has a piece, and drops it when it goes on.
    fn give_up(&self, count: usize) {
        let mut pieces = lock(&self.0);
        pieces.made = pieces.made.saturating_sub(count);
    }

    /// Gives the memory back.
    pub(super) fn clear(&self, device: &CudaDevice) {
        let idle = {
            let mut pieces = lock(&self.0);
            pieces.made -= pieces.idle.len();
            std::mem::take(&mut pieces.idle)
        };
        for piece in &idle {
            if let Some(event) = piece.copied {
                device.driver.destroy_event(event);
            }
        }
    }
}

/// A piece that a reader has filled.
struct Filled {
    piece: Piece,
    /// Where its bytes belong.
    at: usize,
    /// Which part of the piece they are.
    bytes: Result<Range<usize>>,
}

/// Fills pieces with parts of what is copied: of a part's place and length, and of a piece, which part of the piece has it now.
type Fill<'a> = Arc<dyn Fn((usize, usize), &mut [u8]) -> Result<Range<usize>> + Send + Sync + 'a>;
type Task<'a> = Box<dyn FnOnce() + Send + 'a>;
/// Has a thread do something.
type Start<'s, 'f> = dyn Fn(Task<'f>) -> io::Result<()> + 's;

/// A copy that is under way.
struct Transfer<'a> {
    device: &'a CudaDevice,
    to: u64,
    len: usize,
    /// Bytes of a part.
    part: usize,
    /// Parts that readers may have at once.
    most: usize,
}

impl Transfer<'_> {
    /// Hands parts to readers, in order, and sends what they have filled to the device.
    fn run<'f>(&self, fill: &Fill<'f>, start: &Start<'_, 'f>) -> Result<()> {
        let (filled, all) = mpsc::channel();
        let over = Arc::new(AtomicBool::new(false));
        let (mut next, mut reading) = (0, 0);
        let mut step = || -> Result<bool> {
            while next < self.len && reading < self.most {
                crate::cancel::check()?;
                let piece = self.device.staging.take(self.device)?;
                let part = (next, self.part.min(self.len - next));
                let done = filled.clone();
                let (fill, over) = (Arc::clone(fill), Arc::clone(&over));
                let task = Box::new(move || fill_piece(piece, part, &fill, &over, &done));
                if let Err(error) = start(task) {
                    self.device.staging.give_up(1);
                    return Err(TensorError::invalid("read", error.to_string()));
                }
                next += part.1;
                reading += 1;
            }
            if reading == 0 {
                return Ok(false);
            }
            let filled = receive(&all)?;
            reading -= 1;
            self.send(filled)?;
            Ok(true)
        };
        let error = loop {
            match step() {
                Ok(true) => {}
                Ok(false) => return Ok(()),
                Err(error) => break error,
            }
        };
        over.store(true, Ordering::Relaxed);
        while reading > 0 {
            let Ok(filled) = all.recv_timeout(GRACE) else {
                self.device.staging.give_up(reading);
                break;
            };
            self.device.staging.give(filled.piece);
            reading -= 1;
        }
        Err(error)
    }

    fn send(&self, filled: Filled) -> Result<()> {
        let Filled {
            mut piece,
            at,
            bytes,
        } = filled;
        let sent = bytes.and_then(|range| {
            let bytes = &piece.memory.bytes()[range];
            self.device.upload_ahead(self.to + at as u64, bytes)?;
            piece.copied = Some(self.device.marked(self.device.copies)?);
            Ok(())
        });
        self.device.staging.give(piece);
        sent
    }
}

/// On a reader's thread.
fn fill_piece(
    mut piece: Piece,
    part: (usize, usize),
    fill: &Fill<'_>,
    over: &AtomicBool,
    done: &Sender<Filled>,
) {
    let bytes = if over.load(Ordering::Relaxed) {
        Err(TensorError::Cancelled)
    } else {
        let filled = catch_unwind(AssertUnwindSafe(|| fill(part, piece.memory.bytes_mut())));
        filled.unwrap_or_else(|_| Err(TensorError::invalid("read", "a thread that reads panicked")))
    };
    // The piece is dropped where no thread waits for it any more.
    let _ = done.send(Filled {
        piece,
        at: part.0,
        bytes,
    });
}

/// The next piece that was filled, unless an interrupt comes first.
fn receive(all: &Receiver<Filled>) -> Result<Filled> {
    loop {
        match all.recv_timeout(LOOK) {
            Ok(filled) => return Ok(filled),
            Err(RecvTimeoutError::Timeout) => crate::cancel::check()?,
            Err(RecvTimeoutError::Disconnected) => {
                return Err(TensorError::invalid(
                    "read",
                    "a thread that reads has ended",
                ));
            }
        }
    }
}

impl CudaDevice {
    /// Copies bytes to memory of the device. Nobody waits but for a free piece.
    pub(crate) fn bring(&self, to: u64, from: Origin<'_>, moment: Moment) -> Result<()> {
        self.enter()?;
        if moment == Moment::InTurn {
            // The memory may have been taken, and used for something else, on the other stream.
            let before = self.marked(self.compute)?;
            self.after(self.copies, before)?;
        }
        match from {
            Origin::Memory(bytes) => self.bring_from_memory(to, bytes)?,
            Origin::File(part) => self.bring_from_file(to, part)?,
        }
        if moment == Moment::Ahead {
            return Ok(());
        }
        let end = self.marked(self.copies)?;
        self.after(self.compute, end)
    }

    fn transfer(&self, to: u64, len: usize, threads: usize) -> Transfer<'_> {
        let even = len.div_ceil(threads).next_multiple_of(LEAST);
        Transfer {
            device: self,
            to,
            len,
            part: even.min(PIECE),
            most: threads + QUEUED,
        }
    }

    /// Copies what threads of a test fill in.
    #[cfg(test)]
    pub(super) fn bring_by(
        &self,
        to: u64,
        len: usize,
        fill: Fill<'static>,
        start: &Start<'_, 'static>,
    ) -> Result<()> {
        self.transfer(to, len, 2).run(&fill, start)
    }

    fn bring_from_memory(&self, to: u64, bytes: &[u8]) -> Result<()> {
        let fill: Fill<'_> = Arc::new(|(from, len), out| {
            out[..len].copy_from_slice(&bytes[from..from + len]);
            traffic::copied(len);
            Ok(0..len)
        });
        let transfer = self.transfer(to, bytes.len(), FileSource::Cache.readers());
        rayon::in_place_scope_fifo(|scope| {
            transfer.run(&fill, &|task| {
                scope.spawn_fifo(|_| task());
                Ok(())
            })
        })
    }

    fn bring_from_file(&self, to: u64, part: &FilePart) -> Result<()> {
        let (file, source) = (part.clone(), part.source());
        let fill: Fill<'static> = Arc::new(move |part, out| file.read_some(source, part, out));
        let transfer = self.transfer(to, part.len(), source.readers());
        transfer.run(&fill, &readers::start)
    }
}
