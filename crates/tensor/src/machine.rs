//! What the system says about the machine's memory and about what this program has of it.
//!
//! Every system has its own way to ask; where none is known here, nobody knows, and nothing is refused.

#![cfg_attr(
    any(windows, target_os = "macos"),
    expect(unsafe_code, reason = "these systems answer in calls, not in files")
)]

/// Bytes of a machine or of a part of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MemoryFigures {
    pub(crate) total: u64,
    /// What can be had without swapping.
    pub(crate) available: u64,
}

#[cfg(target_os = "linux")]
impl MemoryFigures {
    /// Both figures no larger than another's.
    pub(crate) fn at_most(self, other: Self) -> Self {
        Self {
            total: self.total.min(other.total),
            available: self.available.min(other.available),
        }
    }
}

/// The machine's figures now.
pub(crate) fn memory() -> Option<MemoryFigures> {
    system::memory()
}

/// Bytes of main memory this program has in use now.
pub fn resident() -> Option<u64> {
    system::resident()
}

#[cfg(target_os = "linux")]
mod system {
    use std::fs;

    use super::MemoryFigures;

    pub(super) fn memory() -> Option<MemoryFigures> {
        let text = fs::read_to_string("/proc/meminfo").ok()?;
        Some(MemoryFigures {
            total: field(&text, "MemTotal:")?,
            available: field(&text, "MemAvailable:")?,
        })
    }

    pub(super) fn resident() -> Option<u64> {
        field(&fs::read_to_string("/proc/self/status").ok()?, "VmRSS:")
    }

    fn field(text: &str, name: &str) -> Option<u64> {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
        Some(kib.saturating_mul(1024))
    }
}

#[cfg(windows)]
mod system {
    use windows_sys::Win32::System::ProcessStatus::{
        K32GetProcessMemoryInfo, PROCESS_MEMORY_COUNTERS,
    };
    use windows_sys::Win32::System::SystemInformation::{GlobalMemoryStatusEx, MEMORYSTATUSEX};
    use windows_sys::Win32::System::Threading::GetCurrentProcess;

    use super::MemoryFigures;

    pub(super) fn memory() -> Option<MemoryFigures> {
        let mut status = MEMORYSTATUSEX {
            dwLength: size_of::<MEMORYSTATUSEX>() as u32,
            ..MEMORYSTATUSEX::default()
        };
        // SAFETY: it writes to the structure, whose size it is told.
        let done = unsafe { GlobalMemoryStatusEx(&raw mut status) };
        (done != 0).then(|| MemoryFigures {
            total: status.ullTotalPhys,
            // Windows promises no more than main memory and page file hold together: beyond that it refuses, however much
            // of main memory is free.
            available: status.ullAvailPhys.min(status.ullAvailPageFile),
        })
    }

    pub(super) fn resident() -> Option<u64> {
        let size = size_of::<PROCESS_MEMORY_COUNTERS>() as u32;
        let mut counters = PROCESS_MEMORY_COUNTERS {
            cb: size,
            ..PROCESS_MEMORY_COUNTERS::default()
        };
        // SAFETY: the handle of the process itself is always good, and the size is that of the structure written to.
        let done = unsafe { K32GetProcessMemoryInfo(GetCurrentProcess(), &raw mut counters, size) };
        (done != 0).then_some(counters.WorkingSetSize as u64)
    }
}

#[cfg(target_os = "macos")]
mod system {
    use std::mem::MaybeUninit;
    use std::ptr;
    use std::sync::LazyLock;

    use super::MemoryFigures;

    /// The name of the machine in calls. Every question for it counts one more user, so it is asked for once.
    #[expect(
        deprecated,
        reason = "libc sends to another crate, which is not worth one function"
    )]
    static HOST: LazyLock<libc::mach_port_t> = LazyLock::new(|| {
        // SAFETY: it takes nothing and cannot fail.
        unsafe { libc::mach_host_self() }
    });

    pub(super) fn memory() -> Option<MemoryFigures> {
        let pages = pages()?;
        // SAFETY: set when the program starts and never changed.
        let size = unsafe { libc::vm_page_size } as u64;
        let available = u64::from(pages.free_count) + u64::from(pages.inactive_count);
        Some(MemoryFigures {
            total: total()?,
            available: available.saturating_mul(size),
        })
    }

    fn total() -> Option<u64> {
        let mut bytes = 0u64;
        let mut size = size_of::<u64>();
        // SAFETY: it writes at most `size` bytes to a number of that size; the name ends in a zero.
        let failed = unsafe {
            libc::sysctlbyname(
                c"hw.memsize".as_ptr(),
                (&raw mut bytes).cast(),
                &raw mut size,
                ptr::null_mut(),
                0,
            )
        };
        (failed == 0 && size == size_of::<u64>()).then_some(bytes)
    }

    fn pages() -> Option<libc::vm_statistics64> {
        let mut pages = MaybeUninit::<libc::vm_statistics64>::zeroed();
        let mut count = libc::HOST_VM_INFO64_COUNT;
        // SAFETY: it writes at most `count` numbers, which is the size of the structure; an older system writes fewer.
        let failed = unsafe {
            libc::host_statistics64(
                *HOST,
                libc::HOST_VM_INFO64,
                pages.as_mut_ptr().cast(),
                &raw mut count,
            )
        };
        // SAFETY: numbers alone, for which zeros are good too.
        (failed == libc::KERN_SUCCESS).then(|| unsafe { pages.assume_init() })
    }

    pub(super) fn resident() -> Option<u64> {
        let size = size_of::<libc::proc_taskinfo>() as i32;
        let mut task = MaybeUninit::<libc::proc_taskinfo>::zeroed();
        // SAFETY: it writes at most `size` bytes to a structure of that size.
        let written = unsafe {
            libc::proc_pidinfo(
                std::process::id() as i32,
                libc::PROC_PIDTASKINFO,
                0,
                task.as_mut_ptr().cast(),
                size,
            )
        };
        // SAFETY: numbers alone, for which zeros are good too.
        (written == size).then(|| unsafe { task.assume_init() }.pti_resident_size)
    }
}

#[cfg(not(any(target_os = "linux", windows, target_os = "macos")))]
mod system {
    use super::MemoryFigures;

    pub(super) fn memory() -> Option<MemoryFigures> {
        None
    }

    pub(super) fn resident() -> Option<u64> {
        None
    }
}

#[cfg(all(test, any(target_os = "linux", windows, target_os = "macos")))]
mod tests {
    use super::*;

    #[test]
    fn the_machine_has_memory_and_this_program_some_of_it() {
        const SIZE: usize = 64 << 20;
        let taken = vec![1u8; SIZE];
        let used = resident().unwrap();
        let machine = memory().unwrap();
        assert!(machine.available <= machine.total, "{machine:?}");
        assert!((SIZE as u64..machine.total).contains(&used), "{used}");
        assert_eq!(taken.len(), SIZE);
    }
}
