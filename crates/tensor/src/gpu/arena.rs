//! Memory of a step that is repeated: the same questions get the same answers, so that what was noted of the step holds.

use std::sync::{Arc, Mutex};

use super::GpuMemory;
use crate::error::Result;
use crate::lock::lock;

/// Least bytes that an arena takes from the device at once, beyond what was measured.
pub(crate) const CHUNK: u64 = 8 << 20;

/// Bytes between places: what kernels rely on.
pub(crate) const ALIGNMENT: u64 = 256;

/// Memory that gives the same places to the same questions.
#[derive(Debug, Default)]
pub(crate) struct Arena {
    chunks: Vec<Chunk>,
    live: usize,
}

/// A piece of memory of the device, whose parts an arena gives out.
#[derive(Debug)]
pub(crate) struct Chunk {
    /// What the back end knows the memory by, and where the chunk begins there.
    buffer: u64,
    start: u64,
    /// Free parts by their place, each with its size; none touches the next.
    free: Vec<(u64, u64)>,
    /// Parts in use.
    used: Vec<(u64, u64)>,
    memory: Option<GpuMemory>,
}

impl Chunk {
    /// All of some memory.
    pub(crate) fn new(memory: GpuMemory, bytes: u64) -> Self {
        let place = memory.slice();
        let mut chunk = Self::at(place.buffer(), place.offset(), bytes);
        chunk.memory = Some(memory);
        chunk
    }

    fn at(buffer: u64, start: u64, bytes: u64) -> Self {
        Self {
            buffer,
            start,
            free: vec![(start, bytes)],
            used: Vec::new(),
            memory: None,
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

    fn give(&mut self, (buffer, start): (u64, u64)) -> bool {
        if buffer != self.buffer {
            return false;
        }
        let Some(at) = self.used.iter().position(|part| part.0 == start) else {
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
    pub(crate) fn with(chunk: Chunk) -> Self {
        Self {
            chunks: vec![chunk],
            live: 0,
        }
    }

    /// Whether some of it is in use.
    pub(crate) fn is_in_use(&self) -> bool {
        self.live > 0
    }

    /// A place for so many bytes; `more` takes memory of the device where there is none.
    fn take(
        &mut self,
        bytes: u64,
        more: impl FnOnce(u64) -> Result<GpuMemory>,
    ) -> Result<(u64, u64)> {
        let bytes = bytes.max(1).next_multiple_of(ALIGNMENT);
        let mut chunks = self.chunks.iter_mut();
        let found = chunks.find_map(|chunk| Some((chunk.buffer, chunk.take(bytes)?)));
        let place = if let Some(place) = found {
            place
        } else {
            let size = bytes.max(CHUNK);
            let mut chunk = Chunk::new(more(size)?, size);
            let start = chunk.take(bytes).unwrap_or(chunk.start);
            let place = (chunk.buffer, start);
            self.chunks.push(chunk);
            place
        };
        self.live += 1;
        Ok(place)
    }

    fn give(&mut self, place: (u64, u64)) {
        if self.chunks.iter_mut().any(|chunk| chunk.give(place)) {
            self.live -= 1;
        }
    }
}

/// Memory of an arena, given back when dropped.
#[derive(Debug)]
pub(crate) struct StepMemory {
    arena: Arc<Mutex<Arena>>,
    place: (u64, u64),
}

impl StepMemory {
    /// So many bytes of an arena; `more` takes memory of the device where there is none.
    pub(crate) fn take(
        arena: &Arc<Mutex<Arena>>,
        bytes: u64,
        more: impl FnOnce(u64) -> Result<GpuMemory>,
    ) -> Result<Self> {
        let place = lock(arena).take(bytes, more)?;
        Ok(Self {
            arena: Arc::clone(arena),
            place,
        })
    }

    /// What the back end knows the memory by, and where the part begins there.
    pub(crate) fn place(&self) -> (u64, u64) {
        self.place
    }
}

impl Drop for StepMemory {
    fn drop(&mut self) {
        lock(&self.arena).give(self.place);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An arena of one chunk that is there already.
    fn arena() -> Arena {
        Arena {
            chunks: vec![Chunk::at(1, 0x1000, 1 << 20)],
            live: 0,
        }
    }

    fn take(arena: &mut Arena, bytes: u64) -> (u64, u64) {
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
        let mut held: Vec<((u64, u64), u64)> = Vec::new();
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
            let (buffer, start) = take(&mut arena, bytes);
            assert_eq!((buffer, start % ALIGNMENT), (1, 0));
            let end = start + bytes;
            let apart = |&((_, other), n): &((u64, u64), u64)| end <= other || start >= other + n;
            assert!(held.iter().all(apart));
            held.push(((buffer, start), bytes));
        }
        for (address, _) in held {
            arena.give(address);
        }
        assert_eq!(arena.chunks[0].free.len(), 1);
    }
}
