//! The way of weights from their file to a GPU: through a few pieces of pinned memory, which are filled from the file or from
//! main memory by all threads while those before are on their way.

use std::sync::{Arc, Mutex};

use rayon::prelude::*;

use super::device::CudaDevice;
use super::driver::Shared;
use super::steps::Pinned;
use crate::error::Result;
use crate::lock::lock;
use crate::positioned::FilePart;
use crate::traffic;

/// Bytes of a piece, and how many there are.
const PIECE: usize = 32 << 20;
const PIECES: usize = 3;
/// What each thread copies at a time.
const PART: usize = 512 << 10;

/// Where bytes come from.
#[derive(Clone, Copy)]
pub(crate) enum Origin<'a> {
    Memory(&'a [u8]),
    File(&'a FilePart),
}

impl Origin<'_> {
    fn len(self) -> usize {
        match self {
            Self::Memory(bytes) => bytes.len(),
            Self::File(part) => part.len(),
        }
    }

    /// Fills `out` with what begins at a place.
    fn read(self, from: usize, out: &mut [u8]) -> Result<()> {
        match self {
            Self::File(part) => part.read_into(from, out),
            Self::Memory(bytes) => {
                let bytes = &bytes[from..from + out.len()];
                traffic::copied(bytes.len());
                let parts = out.par_chunks_mut(PART).zip(bytes.par_chunks(PART));
                parts.for_each(|(out, from)| out.copy_from_slice(from));
                Ok(())
            }
        }
    }
}

/// When bytes are copied.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Moment {
    /// After the work before, and before the work behind.
    InTurn,
    /// Beside the work: whoever uses them waits for the end of the copies.
    Ahead,
}

/// Pinned memory in pieces, taken in turn.
#[derive(Default)]
pub(super) struct Staging(Mutex<Pieces>);

#[derive(Default)]
struct Pieces {
    all: Vec<Piece>,
    next: usize,
}

struct Piece {
    memory: Pinned,
    /// What tells that its last copy was made.
    copied: Option<Shared>,
}

impl Pieces {
    /// A piece that nobody reads any more.
    fn take(&mut self, device: &Arc<CudaDevice>) -> Result<&mut Piece> {
        if self.all.len() < PIECES {
            self.all.push(Piece {
                memory: Pinned::new(device, PIECE)?,
                copied: None,
            });
            self.next = 0;
            let last = self.all.len() - 1;
            return Ok(&mut self.all[last]);
        }
        let piece = &mut self.all[self.next];
        self.next = (self.next + 1) % PIECES;
        if let Some(event) = piece.copied.take() {
            let waited = device.checked(device.driver.wait_here(event));
            device.driver.destroy_event(event);
            waited?;
        }
        Ok(piece)
    }
}

impl Staging {
    /// Gives the memory back.
    pub(super) fn clear(&self, device: &CudaDevice) {
        let pieces = std::mem::take(&mut *lock(&self.0));
        for piece in &pieces.all {
            if let Some(event) = piece.copied {
                device.driver.destroy_event(event);
            }
        }
    }
}

impl CudaDevice {
    /// Copies bytes to memory of the device. Nobody waits but for a free piece.
    pub(crate) fn bring(self: &Arc<Self>, to: u64, from: Origin<'_>, moment: Moment) -> Result<()> {
        self.enter()?;
        if moment == Moment::InTurn {
            // The memory may have been taken, and used for something else, on the other stream.
            let before = self.marked(self.compute)?;
            self.after(self.copies, before)?;
        }
        let mut pieces = lock(&self.staging.0);
        let mut at = 0;
        while at < from.len() {
            crate::cancel::check()?;
            let len = PIECE.min(from.len() - at);
            let piece = pieces.take(self)?;
            let bytes = &mut piece.memory.bytes_mut()[..len];
            from.read(at, bytes)?;
            self.upload_ahead(to + at as u64, bytes)?;
            piece.copied = Some(self.marked(self.copies)?);
            at += len;
        }
        drop(pieces);
        if moment == Moment::Ahead {
            return Ok(());
        }
        let end = self.marked(self.copies)?;
        self.after(self.compute, end)
    }
}
