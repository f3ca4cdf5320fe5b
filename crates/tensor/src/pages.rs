//! Pages of memory: large ones for large tensors, and free ones back to the system.
//!
//! A tensor of 100 MB is 25,000 small pages, and the kernel is asked for each of them at its first write: that takes as
//! long as the arithmetic of a normalisation. With pages of 2 MiB it is asked 50 times.

#![expect(
    unsafe_code,
    reason = "advice to the kernel is a call into C, and pages that hold nothing yet are written to by address"
)]

/// Says that unused storage may be backed by large pages. Without effect where there are none.
#[cfg(all(target_os = "linux", not(miri)))]
pub(crate) fn prefer_large<T>(storage: &mut Vec<T>) {
    use std::ffi::{c_int, c_void};

    const PAGE: usize = 2 << 20;
    /// Smaller storage is mostly recycled by the allocator.
    const LEAST: usize = 4 * PAGE;
    const MADV_HUGEPAGE: c_int = 14;

    unsafe extern "C" {
        fn madvise(address: *mut c_void, length: usize, advice: c_int) -> c_int;
    }

    let bytes = storage.capacity() * size_of::<T>();
    if bytes < LEAST {
        return;
    }
    let start = storage.as_mut_ptr() as usize;
    let first = start.next_multiple_of(PAGE);
    let length = (start + bytes - first) / PAGE * PAGE;
    // SAFETY: whole pages inside storage that we own; the advice changes how they are backed, not what they hold. A
    // refusal changes nothing.
    unsafe { madvise(first as *mut c_void, length, MADV_HUGEPAGE) };
}

/// Lets the kernel give whole pages for a part of unused storage at once, which would else come one by one at their first writes. Nothing
/// happens where the kernel cannot do that.
///
/// # Safety
/// The memory is the caller's. What it holds stays.
#[cfg(all(target_os = "linux", not(miri)))]
pub(crate) unsafe fn populate(start: *mut u8, bytes: usize) {
    use std::ffi::{c_int, c_void};

    const PAGE: usize = 4096;
    /// Less comes as fast by itself.
    const LEAST: usize = 4 * PAGE;
    const MADV_POPULATE_WRITE: c_int = 23;

    unsafe extern "C" {
        fn madvise(address: *mut c_void, length: usize, advice: c_int) -> c_int;
    }

    if bytes < LEAST {
        return;
    }
    let first = (start as usize).next_multiple_of(PAGE);
    let length = (start as usize + bytes - first) / PAGE * PAGE;
    // SAFETY: whole pages of memory that is the caller's; they become writable memory as a write of the same value would make them.
    unsafe { madvise(first as *mut c_void, length, MADV_POPULATE_WRITE) };
}

/// Other systems have no such advice.
#[cfg(not(all(target_os = "linux", not(miri))))]
pub(crate) unsafe fn populate(_start: *mut u8, _bytes: usize) {}

/// Writes to every page of unused storage, so that the kernel counts all of it as used from now on.
pub(crate) fn touch<T>(storage: &mut Vec<T>) {
    const PAGE: usize = 4096;
    if cfg!(miri) {
        return;
    }
    let spare = storage.spare_capacity_mut();
    let bytes = size_of_val(spare);
    let start = spare.as_mut_ptr().cast::<u8>();
    for offset in (0..bytes).step_by(PAGE) {
        // SAFETY: inside the storage, which is not initialised, so any byte may be written to it.
        unsafe { start.add(offset).write_volatile(0) };
    }
}

/// Gives free pages inside the heap back to the system. The C library keeps them otherwise: what a network of many
/// layers took stays with the process long after the layers are gone.
#[cfg(all(target_os = "linux", target_env = "gnu", not(miri)))]
pub fn trim_heap() {
    use std::ffi::c_int;

    unsafe extern "C" {
        fn malloc_trim(pad: usize) -> c_int;
    }

    // SAFETY: it takes the locks of the allocator itself and touches only what is free.
    unsafe { malloc_trim(0) };
}

/// From now on large storage goes back to the system as soon as it is dropped. The C library takes to keeping it otherwise,
/// up to 32 MB apiece once it has seen storage of that size come and go. What is needed again soon is kept by
/// `recycle.rs`, which knows when to let go of it. Call it once, before the first picture.
#[cfg(all(target_os = "linux", target_env = "gnu", not(miri)))]
pub fn return_large_storage() {
    use std::ffi::c_int;

    const M_MMAP_THRESHOLD: c_int = -3;
    const LEAST: c_int = 1 << 20;

    unsafe extern "C" {
        fn mallopt(parameter: c_int, value: c_int) -> c_int;
    }

    // SAFETY: it sets a number inside the allocator, under its lock. A refusal changes nothing.
    unsafe { mallopt(M_MMAP_THRESHOLD, LEAST) };
}

/// Other C libraries have no such setting.
#[cfg(not(all(target_os = "linux", target_env = "gnu", not(miri))))]
pub fn return_large_storage() {}

/// Other C libraries give pages back by themselves, or not at all.
#[cfg(not(all(target_os = "linux", target_env = "gnu", not(miri))))]
pub fn trim_heap() {}

/// Other systems have no such advice.
#[cfg(not(all(target_os = "linux", not(miri))))]
pub(crate) fn prefer_large<T>(_storage: &mut Vec<T>) {}

#[cfg(test)]
mod tests {
    #[test]
    fn storage_of_any_size_stays_usable() {
        for count in [0, 1, 1 << 20, (4 << 20) + 1, 6 << 20] {
            let mut storage = Vec::with_capacity(count);
            super::prefer_large(&mut storage);
            super::touch(&mut storage);
            storage.resize(count, 1.0f32);
            assert_eq!(storage.iter().filter(|v| **v == 1.0).count(), count);
        }
    }
}
