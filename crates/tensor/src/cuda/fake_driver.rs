//! A driver without a GPU behind it. Its memory is main memory, its kernels do nothing, and it fails when it is told to.
//!
//! Every test has its own, because it belongs to the thread.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::CStr;

use super::*;

/// What the GPU of a thread is like, and what was done with it.
pub(crate) struct FakeGpu {
    pub(crate) total: u64,
    /// Bytes that other programs have.
    pub(crate) others: u64,
    pub(crate) capability: (i32, i32),
    pub(crate) pools: bool,
    /// What calls of a name answer instead of success.
    pub(crate) failing: BTreeMap<&'static str, c_int>,
    /// Calls that were made.
    pub(crate) calls: Vec<&'static str>,
    /// Kernels that were looked for in modules.
    pub(crate) kernels: Vec<String>,
    memory: BTreeMap<u64, Vec<u8>>,
    pinned: BTreeMap<u64, Vec<u8>>,
    handles: usize,
}

impl Default for FakeGpu {
    fn default() -> Self {
        Self {
            total: 8 << 30,
            others: 0,
            capability: (9, 0),
            pools: true,
            failing: BTreeMap::new(),
            calls: Vec::new(),
            kernels: Vec::new(),
            memory: BTreeMap::new(),
            pinned: BTreeMap::new(),
            handles: 0,
        }
    }
}

impl FakeGpu {
    pub(crate) fn used(&self) -> u64 {
        self.memory.values().map(|bytes| bytes.len() as u64).sum()
    }

    fn free(&self) -> u64 {
        (self.total - self.others).saturating_sub(self.used())
    }

    pub(crate) fn count(&self, call: &str) -> usize {
        self.calls.iter().filter(|&&other| other == call).count()
    }
}

thread_local! {
    static GPU: RefCell<FakeGpu> = RefCell::default();
}

/// Looks at this thread's GPU, or changes it.
pub(crate) fn gpu<R>(look: impl FnOnce(&mut FakeGpu) -> R) -> R {
    GPU.with_borrow_mut(look)
}

/// A call that does `body` unless it was told to fail.
fn call(name: &'static str, body: impl FnOnce(&mut FakeGpu) -> c_int) -> c_int {
    gpu(|gpu| {
        gpu.calls.push(name);
        match gpu.failing.get(name) {
            Some(&code) => code,
            None => body(gpu),
        }
    })
}

/// Writes an answer where the caller wants it.
fn answer<T>(to: *mut T, value: T) -> c_int {
    // SAFETY: the driver's callers hand over a place for one answer.
    unsafe { to.write(value) };
    0
}

unsafe extern "C" fn init(_: c_uint) -> c_int {
    call("init", |_| 0)
}

unsafe extern "C" fn driver_version(to: *mut c_int) -> c_int {
    answer(to, 12080)
}

unsafe extern "C" fn device_count(to: *mut c_int) -> c_int {
    answer(to, 1)
}

unsafe extern "C" fn device_get(to: *mut c_int, number: c_int) -> c_int {
    if number != 0 {
        return 101;
    }
    answer(to, 0)
}

unsafe extern "C" fn device_name(to: *mut c_char, _: c_int, _: c_int) -> c_int {
    for (at, byte) in b"Fake\0".iter().enumerate() {
        // SAFETY: callers have room for a name.
        unsafe { to.add(at).write(*byte as c_char) };
    }
    0
}

unsafe extern "C" fn device_attribute(to: *mut c_int, attribute: c_int, _: c_int) -> c_int {
    let value = gpu(|gpu| match attribute {
        16 => 132,
        75 => gpu.capability.0,
        76 => gpu.capability.1,
        97 => 227 << 10,
        115 => c_int::from(gpu.pools),
        _ => 0,
    });
    answer(to, value)
}

unsafe extern "C" fn device_memory(to: *mut usize, _: c_int) -> c_int {
    answer(to, gpu(|gpu| gpu.total as usize))
}

fn handle(to: *mut Handle) -> c_int {
    let number = gpu(|gpu| {
        gpu.handles += 1;
        gpu.handles
    });
    answer(to, number as Handle)
}

unsafe extern "C" fn primary_context(to: *mut Context, _: c_int) -> c_int {
    let code = call("context", |_| 0);
    if code == 0 { handle(to) } else { code }
}

unsafe extern "C" fn stream_create(to: *mut Handle, _: c_uint) -> c_int {
    handle(to)
}

unsafe extern "C" fn event_create(to: *mut Handle, _: c_uint) -> c_int {
    handle(to)
}

unsafe extern "C" fn event_elapsed(to: *mut f32, _: Handle, _: Handle) -> c_int {
    answer(to, 1.0)
}

unsafe extern "C" fn module_load(to: *mut Handle, _: *const c_void) -> c_int {
    handle(to)
}

unsafe extern "C" fn module_function(to: *mut Handle, _: Handle, name: *const c_char) -> c_int {
    // SAFETY: callers hand over the name of a kernel.
    let name = unsafe { CStr::from_ptr(name) };
    gpu(|gpu| gpu.kernels.push(name.to_string_lossy().into_owned()));
    handle(to)
}

unsafe extern "C" fn default_pool(to: *mut Handle, _: c_int) -> c_int {
    handle(to)
}

unsafe extern "C" fn memory_info(free: *mut usize, total: *mut usize) -> c_int {
    let (left, all) = gpu(|gpu| (gpu.free(), gpu.total));
    answer(free, left as usize);
    answer(total, all as usize)
}

unsafe extern "C" fn pool_get(_: Handle, _: c_int, to: *mut c_void) -> c_int {
    answer(to.cast::<u64>(), gpu(|gpu| gpu.used()))
}

unsafe extern "C" fn allocate(to: *mut u64, bytes: usize, _: Handle) -> c_int {
    let mut address = 0;
    let code = call("allocate", |gpu| {
        if bytes as u64 > gpu.free() {
            return DriverError::OUT_OF_MEMORY;
        }
        let memory = vec![0; bytes];
        address = memory.as_ptr() as u64;
        gpu.memory.insert(address, memory);
        0
    });
    if code == 0 { answer(to, address) } else { code }
}

unsafe extern "C" fn free(address: u64, _: Handle) -> c_int {
    call("free", |gpu| {
        assert!(gpu.memory.remove(&address).is_some(), "freed twice");
        0
    })
}

unsafe extern "C" fn host_allocate(to: *mut *mut c_void, bytes: usize, _: c_uint) -> c_int {
    let mut address = 0;
    let code = call("pinned", |gpu| {
        let memory = vec![0; bytes];
        address = memory.as_ptr() as u64;
        gpu.pinned.insert(address, memory);
        0
    });
    if code == 0 {
        answer(to, address as *mut c_void)
    } else {
        code
    }
}

unsafe extern "C" fn host_free(address: *mut c_void) -> c_int {
    gpu(|gpu| gpu.pinned.remove(&(address as u64)));
    0
}

fn copy(to: *mut u8, from: *const u8, bytes: usize) -> c_int {
    call("copy", |_| {
        // SAFETY: callers own as much memory on both sides, and this driver's memory is main memory.
        unsafe { std::ptr::copy_nonoverlapping(from, to, bytes) };
        0
    })
}

unsafe extern "C" fn copy_in(to: u64, from: *const c_void, bytes: usize, _: Handle) -> c_int {
    copy(to as *mut u8, from.cast(), bytes)
}

unsafe extern "C" fn copy_out(to: *mut c_void, from: u64, bytes: usize, _: Handle) -> c_int {
    copy(to.cast(), from as *const u8, bytes)
}

unsafe extern "C" fn stream_synchronize(_: Handle) -> c_int {
    call("synchronize", |_| 0)
}

unsafe extern "C" fn stream_wait(_: Handle, _: Handle, _: c_uint) -> c_int {
    call("wait", |_| 0)
}

unsafe extern "C" fn launch(
    _: Handle,
    _: c_uint,
    _: c_uint,
    _: c_uint,
    _: c_uint,
    _: c_uint,
    _: c_uint,
    _: c_uint,
    _: Handle,
    _: *mut *mut c_void,
    _: *mut *mut c_void,
) -> c_int {
    call("launch", |_| 0)
}

unsafe extern "C" fn error_name(code: c_int, to: *mut *const c_char) -> c_int {
    let name = match code {
        2 => c"CUDA_ERROR_OUT_OF_MEMORY",
        35 => c"CUDA_ERROR_INSUFFICIENT_DRIVER",
        46 => c"CUDA_ERROR_DEVICE_UNAVAILABLE",
        100 => c"CUDA_ERROR_NO_DEVICE",
        700 => c"CUDA_ERROR_ILLEGAL_ADDRESS",
        803 => c"CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
        _ => c"CUDA_ERROR",
    };
    answer(to, name.as_ptr())
}

/// The driver, or why it does not start on this thread's GPU.
pub(crate) fn driver() -> Result<&'static Driver, String> {
    let functions = Functions {
        init,
        driver_version,
        device_count,
        device_get,
        device_name,
        device_attribute,
        device_memory,
        primary_context,
        memory_info,
        stream_create,
        stream_synchronize,
        stream_wait,
        event_create,
        event_elapsed,
        module_load,
        module_function,
        launch,
        default_pool,
        pool_get,
        allocate,
        free,
        host_allocate,
        host_free,
        copy_in,
        copy_out,
        error_name,
        ..Functions::idle()
    };
    let driver = Driver::started(Driver {
        functions,
        encode_tiled: None,
        add_edges: None,
        _library: None,
    })?;
    Ok(Box::leak(Box::new(driver)))
}
