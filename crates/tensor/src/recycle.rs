//! Storage of dropped tensors, kept for the next ones of the same size.
//!
//! A network makes and drops tensors of a few sizes thousands of times. The allocator gives large ones back to the
//! kernel each time, and the first touch of fresh pages then takes longer than the arithmetic on them.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

use crate::lock::lock;

/// Smaller storage is left to the allocator, which keeps it itself.
const LEAST: usize = 1 << 20;
/// So much is worth giving back.
const LARGE: usize = 64 << 20;
/// Bytes that are kept at most.
const MOST: usize = 768 << 20;

/// Unused storage, the oldest first.
static SPARE: Mutex<Spare> = Mutex::new(Spare {
    storage: VecDeque::new(),
    bytes: 0,
});

#[derive(Default)]
struct Spare {
    storage: VecDeque<Vec<f32>>,
    bytes: usize,
}

fn spare() -> MutexGuard<'static, Spare> {
    lock(&SPARE)
}

fn bytes_of(storage: &Vec<f32>) -> usize {
    storage.capacity() * size_of::<f32>()
}

impl Spare {
    fn take(&mut self, count: usize) -> Option<Vec<f32>> {
        // Not much larger than asked for: a tensor may live long.
        let fits = |storage: &Vec<f32>| (count..=count + count / 8).contains(&storage.capacity());
        // The latest first, of which more is still in the caches.
        let at = self.storage.iter().rposition(fits)?;
        let storage = self.storage.remove(at)?;
        self.bytes -= bytes_of(&storage);
        Some(storage)
    }

    /// What is at most half as large as what is needed now.
    fn drop_smaller(&mut self, count: usize) -> Vec<Vec<f32>> {
        let (gone, kept): (VecDeque<_>, VecDeque<_>) = std::mem::take(&mut self.storage)
            .into_iter()
            .partition(|storage| storage.capacity() <= count / 2);
        self.storage = kept;
        self.bytes -= gone.iter().map(bytes_of).sum::<usize>();
        gone.into()
    }

    /// Keeps storage and answers with what has to go for it.
    fn give(&mut self, mut storage: Vec<f32>, most: usize) -> Vec<Vec<f32>> {
        storage.clear();
        self.bytes += bytes_of(&storage);
        self.storage.push_back(storage);
        let mut gone = Vec::new();
        while self.bytes > most
            && let Some(oldest) = self.storage.pop_front()
        {
            self.bytes -= bytes_of(&oldest);
            gone.push(oldest);
        }
        gone
    }
}

/// Empty storage with room for so many elements, if some is left over.
///
/// If not, and much is needed, what is far smaller goes: a decoder has come to its next level and will not need it again, and
/// it should not stand beside what is needed now. In a network that runs again and again this happens in the first pass only.
pub(crate) fn take(count: usize) -> Option<Vec<f32>> {
    if count * size_of::<f32>() < LEAST {
        return None;
    }
    let mut spare = spare();
    let found = spare.take(count);
    let gone = if found.is_none() && count * size_of::<f32>() >= LARGE {
        spare.drop_smaller(count)
    } else {
        Vec::new()
    };
    // Freed outside the lock.
    drop(spare);
    drop(gone);
    found
}

/// Gives left over storage back where it is much, and what files were read into: for when another network comes, which will
/// need other sizes.
pub fn trim_spare_memory() {
    crate::read_buffer::free();
    let gone = {
        let mut spare = spare();
        if spare.bytes < LARGE {
            return;
        }
        std::mem::take(&mut *spare)
    };
    drop(gone);
}

/// Storage that nobody needs any more.
pub(crate) fn give(storage: Vec<f32>) {
    if bytes_of(&storage) >= LEAST {
        let gone = spare().give(storage, MOST);
        // Freed outside the lock.
        drop(gone);
    }
}

/// Gives the storage of dropped tensors back to the system, and says how many bytes that were. For when a program has
/// nothing to do, or needs the memory for something else.
pub fn free_spare_memory() -> u64 {
    crate::read_buffer::free();
    let gone = std::mem::take(&mut *spare());
    let bytes = gone.bytes as u64;
    drop(gone);
    if worth_trimming(&DROPPED) {
        crate::pages::trim_heap();
    }
    bytes
}

/// As [`free_spare_memory`], with the free pages inside the heap, however few: for when memory is short.
pub(crate) fn free_all() {
    free_spare_memory();
    DROPPED.store(0, Ordering::Relaxed);
    crate::pages::trim_heap();
}

/// Bytes of weights that were dropped since the heap was trimmed.
static DROPPED: AtomicU64 = AtomicU64::new(0);

/// Trimming walks the whole heap; for less it is not worth it.
const TRIM: u64 = 16 << 20;

/// Whether enough was dropped; the count starts again then. What was too little stays counted: it adds up.
fn worth_trimming(dropped: &AtomicU64) -> bool {
    let enough = |bytes: u64| (bytes >= TRIM).then_some(0);
    dropped
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, enough)
        .is_ok()
}

/// Notes that a layer's weights are gone.
pub(crate) fn note_dropped(bytes: u64) {
    DROPPED.fetch_add(bytes, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_drops_add_up_to_a_trim() {
        let dropped = AtomicU64::new(TRIM - 1);
        assert!(!worth_trimming(&dropped));
        dropped.fetch_add(1, Ordering::Relaxed);
        assert!(worth_trimming(&dropped));
        assert!(!worth_trimming(&dropped));
    }

    #[test]
    fn storage_of_about_the_size_is_taken_again() {
        let mut spare = Spare::default();
        for size in [1000, 1100, 2000] {
            assert!(spare.give(Vec::with_capacity(size), 1 << 20).is_empty());
        }
        assert!(spare.take(1200).is_none());
        let taken = spare.take(1000).unwrap();
        assert!(taken.is_empty() && taken.capacity() == 1100);
        assert_eq!(spare.take(1000).unwrap().capacity(), 1000);
        assert!(spare.take(1000).is_none());
        assert_eq!(spare.bytes, 8000);
    }

    #[test]
    fn what_is_far_smaller_makes_room() {
        let mut spare = Spare::default();
        for size in [1000, 3000, 2000] {
            spare.give(Vec::with_capacity(size), 1 << 20);
        }
        let gone = spare.drop_smaller(4000);
        let sizes: Vec<usize> = gone.iter().map(Vec::capacity).collect();
        assert_eq!((sizes, spare.bytes), (vec![1000, 2000], 12_000));
        assert!(spare.drop_smaller(4000).is_empty());
        assert_eq!(spare.take(3000).unwrap().capacity(), 3000);
    }

    #[test]
    fn the_oldest_goes_first() {
        let mut spare = Spare::default();
        assert!(spare.give(vec![0.0; 1000], 8000).is_empty());
        assert!(spare.give(vec![0.0; 900], 8000).is_empty());
        let gone = spare.give(vec![0.0; 1000], 8000);
        assert_eq!(gone.iter().map(Vec::capacity).collect::<Vec<_>>(), [1000]);
        assert_eq!(spare.bytes, 7600);
        // More than may be kept.
        assert_eq!(spare.give(vec![0.0; 3000], 8000).len(), 3);
        assert_eq!(spare.bytes, 0);
    }
}
