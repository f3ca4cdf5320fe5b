//! Finds memory that is taken without asking. For tests: the program itself uses the system's allocator as it is.

#![expect(
    unsafe_code,
    reason = "an allocator is unsafe by nature; this one only looks on"
)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

thread_local! {
    /// Whether this thread is inside [`granted`].
    static GRANTED: Cell<bool> = const { Cell::new(false) };
}

/// The largest allocation that nobody asked for since [`WatchedAllocator::start`].
static LARGEST: AtomicUsize = AtomicUsize::new(0);

/// A size that is not noted.
static EXPECTED: AtomicUsize = AtomicUsize::new(0);

/// Runs what takes memory that was asked for.
pub(crate) fn granted<T>(take: impl FnOnce() -> T) -> T {
    let before = GRANTED.replace(true);
    let taken = take();
    GRANTED.set(before);
    taken
}

/// The system's allocator, with a note of the largest piece that was not asked for.
///
/// ```
/// use fresco_tensor::{Buffer, WatchedAllocator};
///
/// #[global_allocator]
/// static WATCHED: WatchedAllocator = WatchedAllocator;
///
/// WatchedAllocator::start(0);
/// let asked = Buffer::filled(1 << 20, 1.0f32)?;
/// assert!(WatchedAllocator::largest() < 1 << 20);
/// let unasked = asked.to_vec();
/// assert!(WatchedAllocator::largest() >= 1 << 20);
/// # Ok::<(), fresco_tensor::TensorError>(())
/// ```
pub struct WatchedAllocator;

impl WatchedAllocator {
    /// Begins to look anew. Pieces of exactly the expected size are not noted: copies of arguments, which the engine
    /// asks for before the call.
    pub fn start(expected: usize) {
        EXPECTED.store(expected, Ordering::Relaxed);
        LARGEST.store(0, Ordering::Relaxed);
    }

    /// Bytes of the largest allocation that was not asked for.
    pub fn largest() -> usize {
        LARGEST.load(Ordering::Relaxed)
    }

    fn note(size: usize) {
        // A thread that ends has no such value any more.
        let unexpected = size != EXPECTED.load(Ordering::Relaxed);
        if unexpected && !GRANTED.try_with(Cell::get).unwrap_or(false) {
            LARGEST.fetch_max(size, Ordering::Relaxed);
        }
    }
}

// SAFETY: all memory comes from the system's allocator and goes back to it, unchanged.
unsafe impl GlobalAlloc for WatchedAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::note(layout.size());
        // SAFETY: the caller's promise is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        Self::note(layout.size());
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        Self::note(size);
        // SAFETY: as above.
        unsafe { System.realloc(memory, layout, size) }
    }
}
