//! The NVIDIA driver, loaded when it is first asked for. Nothing of CUDA is needed to build or start the program.
//!
//! Every call into the driver stands here. What is handed to it are handles and addresses that it gave, or memory that lives
//! through the call; whoever owns a handle gives it back once.

#![expect(unsafe_code, reason = "the driver is a library of C functions")]

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::ptr::{null, null_mut};
use std::sync::OnceLock;

/// What a call of the driver answered when it failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{call}: {name} ({code}): {text}")]
pub(crate) struct DriverError {
    pub(crate) call: &'static str,
    pub(crate) code: c_int,
    name: String,
    text: String,
}

impl DriverError {
    const OUT_OF_MEMORY: c_int = 2;

    pub(crate) fn is_out_of_memory(&self) -> bool {
        self.code == Self::OUT_OF_MEMORY
    }

    /// What can be done about a driver that does not start.
    fn advice(&self) -> &'static str {
        match self.code {
            // No device; insufficient driver; libraries and kernel module of different versions; not permitted.
            100 => "; it finds no GPU",
            35 | 36 | 222 => "; it is too old: install 525 or newer",
            803 | 804 => {
                "; its library and its kernel module do not fit together: restart the machine after an update"
            }
            800 | 801 | 304 => "; the system does not let this program use it",
            _ => "",
        }
    }

    /// Whether the context is lost: every further call fails until the process ends.
    pub(crate) fn is_fatal(&self) -> bool {
        // Illegal addresses and instructions, traps, launch failures and timeouts, uncorrectable memory errors, a lost device.
        matches!(
            self.code,
            4 | 46 | 214 | 220 | 226 | 700 | 702 | 709 | 710 | 714..=719 | 999
        )
    }
}

type Answer<T> = Result<T, DriverError>;

/// Opaque handles of the driver.
pub(crate) type Context = *mut c_void;
pub(crate) type Handle = *mut c_void;

/// A handle that threads may share: the driver's functions take it from any thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shared(pub(crate) Handle);

// SAFETY: the driver's handles are not bound to a thread; its functions lock what they change.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

/// A description of a tensor for bulk copies, made by the driver and given to kernels by value.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(C, align(64))]
pub(crate) struct TensorMap(pub(crate) [u64; 16]);

/// Parameters of a kernel node of a graph.
#[repr(C)]
struct KernelNode {
    function: Handle,
    grid: [c_uint; 3],
    block: [c_uint; 3],
    shared: c_uint,
    parameters: *mut *mut c_void,
    extra: *mut *mut c_void,
    kernel: Handle,
    context: Handle,
}

/// Where and how a kernel runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) grid: [u32; 3],
    pub(crate) block: u32,
    pub(crate) shared: u32,
}

impl Shape {
    /// A grid of blocks of so many threads, without shared memory that is asked for at the start.
    pub(crate) const fn new(grid: [u32; 3], block: u32) -> Self {
        Self {
            grid,
            block,
            shared: 0,
        }
    }

    /// Blocks in a row.
    pub(crate) const fn row(blocks: u32, block: u32) -> Self {
        Self::new([blocks, 1, 1], block)
    }

    pub(crate) const fn with_shared(self, shared: u32) -> Self {
        Self { shared, ..self }
    }
}

macro_rules! functions {
    ($($field:ident = $symbol:literal ($($argument:ty),*);)*) => {
        /// Addresses of the driver's functions.
        struct Functions {
            $($field: unsafe extern "C" fn($($argument),*) -> c_int,)*
        }

        impl Functions {
            fn find(library: &libloading::Library) -> Result<Self, String> {
                Ok(Self {
                    $($field: {
                        // SAFETY: the symbol is the driver's function of these parameters in every version that has it.
                        let found = unsafe { library.get::<unsafe extern "C" fn($($argument),*) -> c_int>($symbol) };
                        *found.map_err(|error| error.to_string())?
                    },)*
                })
            }

            /// Functions that succeed and do nothing.
            #[cfg(test)]
            fn idle() -> Self {
                $(
                    unsafe extern "C" fn $field($(_: $argument),*) -> c_int {
                        0
                    }
                )*
                Self { $($field,)* }
            }
        }
    };
}

functions! {
    init = b"cuInit\0" (c_uint);
    driver_version = b"cuDriverGetVersion\0" (*mut c_int);
    device_count = b"cuDeviceGetCount\0" (*mut c_int);
    device_get = b"cuDeviceGet\0" (*mut c_int, c_int);
    device_name = b"cuDeviceGetName\0" (*mut c_char, c_int, c_int);
    device_attribute = b"cuDeviceGetAttribute\0" (*mut c_int, c_int, c_int);
    device_memory = b"cuDeviceTotalMem_v2\0" (*mut usize, c_int);
    primary_context = b"cuDevicePrimaryCtxRetain\0" (*mut Context, c_int);
    set_current = b"cuCtxSetCurrent\0" (Context);
    memory_info = b"cuMemGetInfo_v2\0" (*mut usize, *mut usize);
    stream_create = b"cuStreamCreate\0" (*mut Handle, c_uint);
    stream_synchronize = b"cuStreamSynchronize\0" (Handle);
    stream_wait = b"cuStreamWaitEvent\0" (Handle, Handle, c_uint);
    event_create = b"cuEventCreate\0" (*mut Handle, c_uint);
    event_record = b"cuEventRecord\0" (Handle, Handle);
    event_synchronize = b"cuEventSynchronize\0" (Handle);
    event_elapsed = b"cuEventElapsedTime\0" (*mut f32, Handle, Handle);
    event_destroy = b"cuEventDestroy_v2\0" (Handle);
    module_load = b"cuModuleLoadData\0" (*mut Handle, *const c_void);
    module_function = b"cuModuleGetFunction\0" (*mut Handle, Handle, *const c_char);
    function_attribute = b"cuFuncSetAttribute\0" (Handle, c_int, c_int);
    launch = b"cuLaunchKernel\0" (Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle, *mut *mut c_void, *mut *mut c_void);
    launch_cooperative = b"cuLaunchCooperativeKernel\0" (Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle, *mut *mut c_void);
    default_pool = b"cuDeviceGetDefaultMemPool\0" (*mut Handle, c_int);
    pool_set = b"cuMemPoolSetAttribute\0" (Handle, c_int, *mut c_void);
    pool_get = b"cuMemPoolGetAttribute\0" (Handle, c_int, *mut c_void);
    pool_trim = b"cuMemPoolTrimTo\0" (Handle, usize);
    allocate = b"cuMemAllocAsync\0" (*mut u64, usize, Handle);
    free = b"cuMemFreeAsync\0" (u64, Handle);
    host_allocate = b"cuMemHostAlloc\0" (*mut *mut c_void, usize, c_uint);
    host_free = b"cuMemFreeHost\0" (*mut c_void);
    host_register = b"cuMemHostRegister_v2\0" (*mut c_void, usize, c_uint);
    host_unregister = b"cuMemHostUnregister\0" (*mut c_void);
    copy_in = b"cuMemcpyHtoDAsync_v2\0" (u64, *const c_void, usize, Handle);
    copy_out = b"cuMemcpyDtoHAsync_v2\0" (*mut c_void, u64, usize, Handle);
    copy_peer = b"cuMemcpyPeerAsync\0" (u64, Context, u64, Context, usize, Handle);
    error_name = b"cuGetErrorName\0" (c_int, *mut *const c_char);
    error_text = b"cuGetErrorString\0" (c_int, *mut *const c_char);
    graph_create = b"cuGraphCreate\0" (*mut Handle, c_uint);
    graph_kernel = b"cuGraphAddKernelNode_v2\0" (*mut Handle, Handle, *const Handle, usize, *const KernelNode);
    graph_kernel_attribute = b"cuGraphKernelNodeSetAttribute\0" (Handle, c_int, *const c_void);
    graph_instantiate = b"cuGraphInstantiateWithFlags\0" (*mut Handle, Handle, u64);
    graph_launch = b"cuGraphLaunch\0" (Handle, Handle);
    graph_update = b"cuGraphExecKernelNodeSetParams_v2\0" (Handle, Handle, *const KernelNode);
    graph_exec_destroy = b"cuGraphExecDestroy\0" (Handle);
    graph_destroy = b"cuGraphDestroy\0" (Handle);
}

/// The driver's function that describes tensors, which older ones lack.
type EncodeTiled = unsafe extern "C" fn(
    *mut TensorMap,
    c_int,
    c_uint,
    *mut c_void,
    *const u64,
    *const u64,
    *const c_uint,
    *const c_uint,
    c_int,
    c_int,
    c_int,
    c_int,
) -> c_int;

/// The driver's function that says how a kernel of a graph follows another, which older ones lack: from, to, how, and the number of
/// each.
type AddEdges =
    unsafe extern "C" fn(Handle, *const Handle, *const Handle, *const [u8; 8], usize) -> c_int;

/// A kernel that is started when all blocks of the one before it have let it, and waits for the rest itself; and one that is started
/// when that has ended.
const EARLY: [u8; 8] = [1, 0, 1, 0, 0, 0, 0, 0];
const AFTER: [u8; 8] = [0; 8];

/// The loaded driver.
pub(crate) struct Driver {
    functions: Functions,
    encode_tiled: Option<EncodeTiled>,
    add_edges: Option<AddEdges>,
    /// Held for as long as its functions are.
    _library: Option<libloading::Library>,
}

/// Names of the driver on Linux and on Windows.
const NAMES: &[&str] = if cfg!(windows) {
    &["nvcuda.dll"]
} else {
    &["libcuda.so.1", "libcuda.so"]
};

/// Attributes of devices.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Attribute {
    Multiprocessors = 16,
    Major = 75,
    Minor = 76,
    SharedMemory = 97,
    Pools = 115,
}

/// Attributes of pools of memory.
const POOL_RELEASE_THRESHOLD: c_int = 4;
const POOL_RESERVED: c_int = 5;
const POOL_USED: c_int = 7;
/// A kernel may have more shared memory than 48 KiB.
const FUNCTION_SHARED_MEMORY: c_int = 8;
/// Streams do not wait for the default one; events need no time unless asked.
const STREAM_NON_BLOCKING: c_uint = 1;
const EVENT_WITHOUT_TIME: c_uint = 2;
/// Pinned memory that all contexts see.
const HOST_PORTABLE: c_uint = 1;
/// All blocks of a kernel run at once.
const NODE_COOPERATIVE: c_int = 2;

impl Driver {
    /// The driver of this machine, or why there is none.
    pub(crate) fn get() -> Result<&'static Self, &'static str> {
        static DRIVER: OnceLock<Result<Driver, String>> = OnceLock::new();
        DRIVER
            .get_or_init(Self::load)
            .as_ref()
            .map_err(String::as_str)
    }

    fn load() -> Result<Self, String> {
        let mut reason = String::new();
        for name in NAMES {
            // SAFETY: this is the vendor's library, whose initialisation has no conditions.
            match unsafe { libloading::Library::new(*name) } {
                Ok(library) => return Self::from_library(library),
                Err(error) => reason = error.to_string(),
            }
        }
        Err(format!("there is no NVIDIA driver: {reason}"))
    }

    fn from_library(library: libloading::Library) -> Result<Self, String> {
        let functions = Functions::find(&library).map_err(|error| {
            format!(
                "the NVIDIA driver is too old, one for CUDA 12.0 (525 or newer) is needed: {error}"
            )
        })?;
        // SAFETY: the symbol is the driver's function of these parameters in every version that has it.
        let encode_tiled = unsafe { library.get::<EncodeTiled>(b"cuTensorMapEncodeTiled\0") };
        let encode_tiled = encode_tiled.ok().map(|function| *function);
        // SAFETY: as above.
        let add_edges = unsafe { library.get::<AddEdges>(b"cuGraphAddDependencies_v2\0") };
        let add_edges = add_edges.ok().map(|function| *function);
        Self::started(Self {
            functions,
            encode_tiled,
            add_edges,
            _library: Some(library),
        })
    }

    fn started(driver: Self) -> Result<Self, String> {
        // SAFETY: the first call, with the only flags there are.
        let code = unsafe { (driver.functions.init)(0) };
        match driver.checked("cuInit", code) {
            Ok(()) => Ok(driver),
            Err(error) => Err(format!(
                "the NVIDIA driver does not start: {error}{}",
                error.advice()
            )),
        }
    }

    fn checked(&self, call: &'static str, code: c_int) -> Answer<()> {
        if code == 0 {
            return Ok(());
        }
        let words = |function: unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int| {
            let mut text: *const c_char = null();
            // SAFETY: the driver writes the address of a constant text, or leaves null.
            unsafe { function(code, &raw mut text) };
            if text.is_null() {
                return String::from("unknown");
            }
            // SAFETY: a text of the driver ends with zero and lives as long as it.
            unsafe { CStr::from_ptr(text) }
                .to_string_lossy()
                .into_owned()
        };
        Err(DriverError {
            call,
            code,
            name: words(self.functions.error_name),
            text: words(self.functions.error_text),
        })
    }

    /// The newest CUDA that the driver knows, as 12040 for 12.4.
    pub(crate) fn version(&self) -> Answer<i32> {
        let mut version = 0;
        // SAFETY: the driver writes one number.
        let code = unsafe { (self.functions.driver_version)(&raw mut version) };
        self.checked("cuDriverGetVersion", code)?;
        Ok(version)
    }

    pub(crate) fn device_count(&self) -> Answer<i32> {
        let mut count = 0;
        // SAFETY: the driver writes one number.
        let code = unsafe { (self.functions.device_count)(&raw mut count) };
        self.checked("cuDeviceGetCount", code)?;
        Ok(count)
    }

    pub(crate) fn device(&self, number: i32) -> Answer<c_int> {
        let mut device = 0;
        // SAFETY: the driver writes one number.
        let code = unsafe { (self.functions.device_get)(&raw mut device, number) };
        self.checked("cuDeviceGet", code)?;
        Ok(device)
    }

    pub(crate) fn device_name(&self, device: c_int) -> Answer<String> {
        let mut name = [0 as c_char; 256];
        // SAFETY: the driver writes at most as much as it is told, with a zero at the end.
        let code = unsafe { (self.functions.device_name)(name.as_mut_ptr(), 255, device) };
        self.checked("cuDeviceGetName", code)?;
        // SAFETY: the last byte is zero in any case.
        Ok(unsafe { CStr::from_ptr(name.as_ptr()) }
            .to_string_lossy()
            .into_owned())
    }

    pub(crate) fn attribute(&self, device: c_int, attribute: Attribute) -> Answer<u32> {
        let mut value = 0;
        // SAFETY: the driver writes one number.
        let code = unsafe {
            (self.functions.device_attribute)(&raw mut value, attribute as c_int, device)
        };
        self.checked("cuDeviceGetAttribute", code)?;
        Ok(value.try_into().unwrap_or(0))
    }

    pub(crate) fn total_memory(&self, device: c_int) -> Answer<u64> {
        let mut bytes = 0;
        // SAFETY: the driver writes one number.
        let code = unsafe { (self.functions.device_memory)(&raw mut bytes, device) };
        self.checked("cuDeviceTotalMem", code)?;
        Ok(bytes as u64)
    }

    /// The context that all users of a device in this process share.
    pub(crate) fn primary_context(&self, device: c_int) -> Answer<Shared> {
        let mut context = null_mut();
        // SAFETY: the driver writes one handle. It is never released: devices live as long as the process.
        let code = unsafe { (self.functions.primary_context)(&raw mut context, device) };
        self.checked("cuDevicePrimaryCtxRetain", code)?;
        Ok(Shared(context))
    }

    /// Makes a context that of this thread.
    pub(crate) fn set_current(&self, context: Shared) -> Answer<()> {
        // SAFETY: the context was given by the driver and lives as long as the process.
        let code = unsafe { (self.functions.set_current)(context.0) };
        self.checked("cuCtxSetCurrent", code)
    }

    /// Free and total bytes of the device of this thread's context, with what other processes have taken.
    pub(crate) fn memory_info(&self) -> Answer<(u64, u64)> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: the driver writes two numbers.
        let code = unsafe { (self.functions.memory_info)(&raw mut free, &raw mut total) };
        self.checked("cuMemGetInfo", code)?;
        Ok((free as u64, total as u64))
    }

    pub(crate) fn stream(&self) -> Answer<Shared> {
        let mut stream = null_mut();
        // SAFETY: the driver writes one handle.
        let code = unsafe { (self.functions.stream_create)(&raw mut stream, STREAM_NON_BLOCKING) };
        self.checked("cuStreamCreate", code)?;
        Ok(Shared(stream))
    }

    pub(crate) fn synchronize(&self, stream: Shared) -> Answer<()> {
        // SAFETY: the stream lives as long as its device.
        let code = unsafe { (self.functions.stream_synchronize)(stream.0) };
        self.checked("cuStreamSynchronize", code)
    }

    /// Lets what comes next on a stream wait for an event.
    pub(crate) fn wait_for(&self, stream: Shared, event: Shared) -> Answer<()> {
        // SAFETY: both were given by the driver; the event may go before the wait is over.
        let code = unsafe { (self.functions.stream_wait)(stream.0, event.0, 0) };
        self.checked("cuStreamWaitEvent", code)
    }

    pub(crate) fn event(&self) -> Answer<Shared> {
        let mut event = null_mut();
        // SAFETY: the driver writes one handle.
        let code = unsafe { (self.functions.event_create)(&raw mut event, 0) };
        self.checked("cuEventCreate", code)?;
        Ok(Shared(event))
    }

    /// An event that only tells whether it has passed.
    pub(crate) fn mark(&self) -> Answer<Shared> {
        let mut event = null_mut();
        // SAFETY: the driver writes one handle.
        let code = unsafe { (self.functions.event_create)(&raw mut event, EVENT_WITHOUT_TIME) };
        self.checked("cuEventCreate", code)?;
        Ok(Shared(event))
    }

    pub(crate) fn record(&self, event: Shared, stream: Shared) -> Answer<()> {
        // SAFETY: both were given by the driver.
        let code = unsafe { (self.functions.event_record)(event.0, stream.0) };
        self.checked("cuEventRecord", code)
    }

    /// Waits, here, until an event has passed.
    pub(crate) fn wait_here(&self, event: Shared) -> Answer<()> {
        // SAFETY: the event was given by the driver.
        let code = unsafe { (self.functions.event_synchronize)(event.0) };
        self.checked("cuEventSynchronize", code)
    }

    /// Milliseconds between two events that have passed.
    pub(crate) fn elapsed(&self, from: Shared, to: Shared) -> Answer<f32> {
        let mut time = 0.0;
        // SAFETY: the driver writes one number; both events were given by it.
        let code = unsafe { (self.functions.event_elapsed)(&raw mut time, from.0, to.0) };
        self.checked("cuEventElapsedTime", code)?;
        Ok(time)
    }

    pub(crate) fn destroy_event(&self, event: Shared) {
        // SAFETY: the owner of the event drops it once.
        unsafe { (self.functions.event_destroy)(event.0) };
    }

    /// Loads machine code, or PTX that ends with a zero, into this thread's context.
    pub(crate) fn load_module(&self, image: &[u8]) -> Answer<Shared> {
        let mut module = null_mut();
        // SAFETY: images are those of our own build, which say their length themselves (PTX by its last byte, zero).
        let code = unsafe { (self.functions.module_load)(&raw mut module, image.as_ptr().cast()) };
        self.checked("cuModuleLoadData", code)?;
        Ok(Shared(module))
    }

    /// A kernel of a module, which may use all the shared memory that the device has for one block.
    pub(crate) fn function(&self, module: Shared, name: &str, shared: u32) -> Answer<Shared> {
        let name = CString::new(name).unwrap_or_default();
        let mut function = null_mut();
        // SAFETY: the module is loaded; the name ends with zero; the driver writes one handle.
        let code =
            unsafe { (self.functions.module_function)(&raw mut function, module.0, name.as_ptr()) };
        self.checked("cuModuleGetFunction", code)?;
        // Kernels with shared memory of a fixed size refuse more than is left beside it, which does not matter.
        // SAFETY: the function was just given.
        unsafe {
            (self.functions.function_attribute)(function, FUNCTION_SHARED_MEMORY, shared as c_int)
        };
        Ok(Shared(function))
    }

    /// Starts a kernel on a stream.
    ///
    /// # Safety
    /// The parameters are those of the kernel, and their addresses lead to memory of the device with as much room as the
    /// kernel reads and writes.
    pub(crate) unsafe fn launch(
        &self,
        function: Shared,
        shape: Shape,
        cooperative: bool,
        stream: Shared,
        parameters: &mut [*mut c_void],
    ) -> Answer<()> {
        let ([x, y, z], shared) = (shape.grid, shape.shared);
        let list = parameters.as_mut_ptr();
        if cooperative {
            // SAFETY: the caller answers for the parameters; the driver copies them before it returns.
            let code = unsafe {
                (self.functions.launch_cooperative)(
                    function.0,
                    x,
                    y,
                    z,
                    shape.block,
                    1,
                    1,
                    shared,
                    stream.0,
                    list,
                )
            };
            return self.checked("cuLaunchCooperativeKernel", code);
        }
        // SAFETY: as above.
        let code = unsafe {
            (self.functions.launch)(
                function.0,
                x,
                y,
                z,
                shape.block,
                1,
                1,
                shared,
                stream.0,
                list,
                null_mut(),
            )
        };
        self.checked("cuLaunchKernel", code)
    }

    /// The pool from which a device gives memory, which keeps what is freed until it is told to let go.
    pub(crate) fn pool(&self, device: c_int) -> Answer<Shared> {
        let mut pool = null_mut();
        // SAFETY: the driver writes one handle.
        let code = unsafe { (self.functions.default_pool)(&raw mut pool, device) };
        self.checked("cuDeviceGetDefaultMemPool", code)?;
        let mut keep = u64::MAX;
        // SAFETY: this attribute is a number of 64 bits.
        let code = unsafe {
            (self.functions.pool_set)(pool, POOL_RELEASE_THRESHOLD, (&raw mut keep).cast())
        };
        self.checked("cuMemPoolSetAttribute", code)?;
        Ok(Shared(pool))
    }

    fn pool_number(&self, pool: Shared, attribute: c_int) -> Answer<u64> {
        let mut value = 0_u64;
        // SAFETY: these attributes are numbers of 64 bits.
        let code = unsafe { (self.functions.pool_get)(pool.0, attribute, (&raw mut value).cast()) };
        self.checked("cuMemPoolGetAttribute", code)?;
        Ok(value)
    }

    /// Bytes that a pool has taken from the device, and those of them in use.
    pub(crate) fn pool_state(&self, pool: Shared) -> Answer<(u64, u64)> {
        let reserved = self.pool_number(pool, POOL_RESERVED)?;
        Ok((reserved, self.pool_number(pool, POOL_USED)?))
    }

    /// Gives memory of a pool that nobody uses back to the device.
    pub(crate) fn trim(&self, pool: Shared) -> Answer<()> {
        // SAFETY: the pool is that of a device, which lives as long as the process.
        let code = unsafe { (self.functions.pool_trim)(pool.0, 0) };
        self.checked("cuMemPoolTrimTo", code)
    }

    /// Memory that can be used by what comes next on the stream.
    pub(crate) fn allocate(&self, bytes: usize, stream: Shared) -> Answer<u64> {
        let mut address = 0;
        // SAFETY: the driver writes one address.
        let code = unsafe { (self.functions.allocate)(&raw mut address, bytes, stream.0) };
        self.checked("cuMemAllocAsync", code)?;
        Ok(address)
    }

    /// Frees memory after what is on the stream now.
    pub(crate) fn free(&self, address: u64, stream: Shared) -> Answer<()> {
        // SAFETY: the owner of the memory frees it once, on the stream where it was used.
        let code = unsafe { (self.functions.free)(address, stream.0) };
        self.checked("cuMemFreeAsync", code)
    }

    /// Main memory that does not move, which devices read and write themselves.
    pub(crate) fn pinned(&self, bytes: usize) -> Answer<*mut u8> {
        let mut address = null_mut();
        // SAFETY: the driver writes one address.
        let code =
            unsafe { (self.functions.host_allocate)(&raw mut address, bytes, HOST_PORTABLE) };
        self.checked("cuMemHostAlloc", code)?;
        Ok(address.cast())
    }

    pub(crate) fn free_pinned(&self, address: *mut u8) {
        // SAFETY: the owner of the memory frees it once, when no device reads it.
        unsafe { (self.functions.host_free)(address.cast()) };
    }

    /// Keeps main memory that is there already from moving, so that devices read it themselves. It must be unregistered
    /// before it is freed.
    pub(crate) fn register(&self, bytes: &[u8]) -> Answer<()> {
        let address = bytes.as_ptr().cast_mut().cast();
        // SAFETY: nothing is written; the owner of the memory unregisters it before it goes.
        let code = unsafe { (self.functions.host_register)(address, bytes.len(), HOST_PORTABLE) };
        self.checked("cuMemHostRegister", code)
    }

    pub(crate) fn unregister(&self, address: usize) {
        // SAFETY: it was registered once, and is unregistered once.
        unsafe { (self.functions.host_unregister)(address as *mut c_void) };
    }

    /// Copies from main memory. Ordinary memory was read when this returns; pinned memory must stay until the stream has
    /// come by.
    pub(crate) fn copy_in(&self, to: u64, from: &[u8], stream: Shared) -> Answer<()> {
        // SAFETY: the caller owns as much memory of the device at `to`.
        let code =
            unsafe { (self.functions.copy_in)(to, from.as_ptr().cast(), from.len(), stream.0) };
        self.checked("cuMemcpyHtoDAsync", code)
    }

    /// Copies to main memory, which is complete when the stream has come by.
    pub(crate) fn copy_out(&self, to: &mut [u8], from: u64, stream: Shared) -> Answer<()> {
        // SAFETY: the caller owns as much memory of the device at `from`, and waits before it reads `to`.
        let code =
            unsafe { (self.functions.copy_out)(to.as_mut_ptr().cast(), from, to.len(), stream.0) };
        self.checked("cuMemcpyDtoHAsync", code)
    }

    pub(crate) fn copy_peer(
        &self,
        (to, to_context): (u64, Shared),
        (from, from_context): (u64, Shared),
        bytes: usize,
        stream: Shared,
    ) -> Answer<()> {
        // SAFETY: the caller owns as much memory at both addresses, each of its context.
        let code = unsafe {
            (self.functions.copy_peer)(to, to_context.0, from, from_context.0, bytes, stream.0)
        };
        self.checked("cuMemcpyPeerAsync", code)
    }

    /// Describes a tensor of 16-bit elements for bulk copies of boxes, whose rows are swizzled by their own width: 32, 64 or 128 bytes.
    pub(crate) fn tensor_map(
        &self,
        kind: c_int,
        address: u64,
        (sizes, strides, part): (&[u64], &[u64], &[u32]),
    ) -> Option<Answer<TensorMap>> {
        let encode = self.encode_tiled?;
        let mut map = TensorMap([0; 16]);
        let ones = [1; 5];
        let swizzle = match part.first() {
            Some(16) => 1,
            Some(32) => 2,
            _ => 3,
        };
        debug_assert!(sizes.len() == part.len() && strides.len() + 1 == sizes.len());
        // SAFETY: the lists are as long as the rank says; the driver writes one description.
        let code = unsafe {
            encode(
                &raw mut map,
                kind,
                sizes.len() as c_uint,
                address as *mut c_void,
                sizes.as_ptr(),
                strides.as_ptr(),
                part.as_ptr(),
                ones.as_ptr(),
                0,
                swizzle,
                2,
                0,
            )
        };
        Some(self.checked("cuTensorMapEncodeTiled", code).map(|()| map))
    }

    pub(crate) fn graph(&self) -> Answer<Shared> {
        let mut graph = null_mut();
        // SAFETY: the driver writes one handle.
        let code = unsafe { (self.functions.graph_create)(&raw mut graph, 0) };
        self.checked("cuGraphCreate", code)?;
        Ok(Shared(graph))
    }

    fn node(function: Shared, shape: Shape, parameters: &mut [*mut c_void]) -> KernelNode {
        KernelNode {
            function: function.0,
            grid: shape.grid,
            block: [shape.block, 1, 1],
            shared: shape.shared,
            parameters: parameters.as_mut_ptr(),
            extra: null_mut(),
            kernel: null_mut(),
            context: null_mut(),
        }
    }

    /// Adds a kernel to a graph that runs after another one. One that may be started early, before that has ended, waits for it itself.
    ///
    /// # Safety
    /// As [`Self::launch`], for every time that the graph is started.
    pub(crate) unsafe fn add_kernel(
        &self,
        graph: Shared,
        (after, early): (Option<Shared>, bool),
        (function, cooperative): (Shared, bool),
        shape: Shape,
        parameters: &mut [*mut c_void],
    ) -> Answer<Shared> {
        let node = Self::node(function, shape, parameters);
        let edge = after.zip(self.add_edges.filter(|_| early));
        let before = after.filter(|_| edge.is_none());
        let before: Vec<Handle> = before.iter().map(|node| node.0).collect();
        let mut made = null_mut();
        // SAFETY: the driver copies the parameters; the list of nodes lives through the call.
        let code = unsafe {
            (self.functions.graph_kernel)(
                &raw mut made,
                graph.0,
                before.as_ptr(),
                before.len(),
                &raw const node,
            )
        };
        self.checked("cuGraphAddKernelNode", code)?;
        if let Some((after, add)) = edge {
            let edge = |how: &[u8; 8]| {
                // SAFETY: both nodes are of this graph, and the lists have one element each.
                unsafe { add(graph.0, &raw const after.0, &raw const made, how, 1) }
            };
            if edge(&EARLY) != 0 {
                self.checked("cuGraphAddDependencies", edge(&AFTER))?;
            }
        }
        if cooperative {
            // A value of an attribute has 64 bytes, of which this one uses the first number.
            let mut value = [0_u64; 8];
            value[0] = 1;
            // SAFETY: the node was just made; the value is as large as any.
            let code = unsafe {
                (self.functions.graph_kernel_attribute)(
                    made,
                    NODE_COOPERATIVE,
                    value.as_ptr().cast(),
                )
            };
            self.checked("cuGraphKernelNodeSetAttribute", code)?;
        }
        Ok(Shared(made))
    }

    /// Changes what a kernel of a graph that can be started is told.
    ///
    /// # Safety
    /// As [`Self::add_kernel`].
    pub(crate) unsafe fn update_kernel(
        &self,
        exec: Shared,
        node: Shared,
        function: Shared,
        shape: Shape,
        parameters: &mut [*mut c_void],
    ) -> Answer<()> {
        let kernel = Self::node(function, shape, parameters);
        // SAFETY: the node is one of the graph of which this was made; the driver copies the parameters.
        let code = unsafe { (self.functions.graph_update)(exec.0, node.0, &raw const kernel) };
        self.checked("cuGraphExecKernelNodeSetParams", code)
    }

    /// A graph that can be started.
    pub(crate) fn instantiate(&self, graph: Shared) -> Answer<Shared> {
        let mut exec = null_mut();
        // SAFETY: the driver writes one handle.
        let code = unsafe { (self.functions.graph_instantiate)(&raw mut exec, graph.0, 0) };
        self.checked("cuGraphInstantiateWithFlags", code)?;
        Ok(Shared(exec))
    }

    pub(crate) fn start_graph(&self, exec: Shared, stream: Shared) -> Answer<()> {
        // SAFETY: whoever added the kernels answers for what they do.
        let code = unsafe { (self.functions.graph_launch)(exec.0, stream.0) };
        self.checked("cuGraphLaunch", code)
    }

    pub(crate) fn destroy_exec(&self, exec: Shared) {
        // SAFETY: the owner drops it once.
        unsafe { (self.functions.graph_exec_destroy)(exec.0) };
    }

    pub(crate) fn destroy_graph(&self, graph: Shared) {
        // SAFETY: the owner drops it once.
        unsafe { (self.functions.graph_destroy)(graph.0) };
    }
}

/// A driver without a GPU behind it, for tests of what happens when one misbehaves.
#[cfg(test)]
#[path = "fake_driver.rs"]
pub(crate) mod fake;
