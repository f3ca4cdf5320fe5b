//! Starting kernels.
//!
//! What a kernel takes stands in `launches`, which is made from the kernels' own signatures: a number of another type, too many of them, or one that was
//! forgotten do not compile. The driver cannot check addresses and sizes: what stands in `ops` answers for them. Nothing outside of this module can start a
//! kernel.

#![expect(
    unsafe_code,
    reason = "kernels are started with addresses of what they read and write"
)]

use std::ffi::c_void;
use std::marker::PhantomData;

use super::device::CudaDevice;
use super::driver::{Shape, Shared, TensorMap};
use super::staging::Moment;
use super::{Address, Format, GpuBuffer, GpuMemory, profile, steps};
use crate::error::{Result, TensorError};
use crate::gpu::GpuSlice;

/// A kernel by its module, without the suffix for the format of elements, and its name.
#[derive(Debug, Clone, Copy)]
pub(super) struct Kernel {
    pub(super) module: &'static str,
    pub(super) format: Format,
    pub(super) name: &'static str,
}

impl Kernel {
    fn of(launch: &impl Launch, format: Format) -> Self {
        let (module, name) = launch.names();
        Self {
            module,
            format,
            name,
        }
    }
}

/// An element in the format of the kernel's module.
#[derive(Clone, Copy)]
pub(crate) struct Element;

/// Bytes in a format that the kernel's name says.
#[derive(Clone, Copy)]
pub(crate) struct Unit;

/// What kernels point to: whether a buffer of a format may be meant.
pub(crate) trait Pointee {
    fn holds(format: Format) -> bool;
}

/// Integers on a device lie in buffers of as many floats.
macro_rules! pointees {
    ($($kind:ty: $format:pat),*) => {
        $(impl Pointee for $kind {
            fn holds(format: Format) -> bool {
                matches!(format, $format)
            }
        })*
    };
}
pointees! {
    Element: _,
    Unit: _,
    f32: Format::F32,
    u32: Format::F32,
    [u32; 4]: _
}

/// An address of the device as a parameter, or none.
pub(crate) struct Pointer<T> {
    address: u64,
    to: PhantomData<T>,
}

impl<T> Pointer<T> {
    pub(crate) const NONE: Self = Self::at(0);

    pub(crate) const fn at(address: u64) -> Self {
        Self {
            address,
            to: PhantomData,
        }
    }
}

impl<T> Clone for Pointer<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Pointer<T> {}

impl<T: Pointee> From<&GpuBuffer> for Pointer<T> {
    fn from(buffer: &GpuBuffer) -> Self {
        debug_assert!(T::holds(buffer.format()), "a buffer of another format");
        Self::at(buffer.address())
    }
}

impl<T> From<&GpuMemory> for Pointer<T> {
    fn from(memory: &GpuMemory) -> Self {
        Self::at(memory.address())
    }
}

impl<T> From<GpuSlice<'_>> for Pointer<T> {
    fn from(slice: GpuSlice<'_>) -> Self {
        Self::at(slice.address())
    }
}

impl<T, P: Into<Self>> From<Option<P>> for Pointer<T> {
    fn from(pointer: Option<P>) -> Self {
        pointer.map_or(Self::NONE, Into::into)
    }
}

/// A parameter of a kernel, or several in their order.
pub(crate) trait Parameters {
    /// How many there are, and words that they take.
    const COUNT: usize;
    const WORDS: usize;

    fn write(self, to: &mut Args);
}

macro_rules! numbers {
    ($($kind:ty, $value:ident => $word:expr;)*) => {
        $(impl Parameters for $kind {
            const COUNT: usize = 1;
            const WORDS: usize = 1;

            fn write(self, to: &mut Args) {
                let $value = self;
                to.push(&[$word]);
            }
        })*
    };
}
numbers! {
    i32, value => u64::from(value.cast_unsigned());
    u32, value => u64::from(value);
    i64, value => value.cast_unsigned();
    u64, value => value;
    f32, value => u64::from(value.to_bits());
}

impl<T> Parameters for Pointer<T> {
    const COUNT: usize = 1;
    const WORDS: usize = 1;

    fn write(self, to: &mut Args) {
        to.push(&[self.address]);
    }
}

/// A structure that a kernel takes by value.
impl<const N: usize> Parameters for [u64; N] {
    const COUNT: usize = 1;
    const WORDS: usize = N;

    fn write(self, to: &mut Args) {
        to.push(&self);
    }
}

impl Parameters for TensorMap {
    const COUNT: usize = 1;
    const WORDS: usize = 16;

    fn write(self, to: &mut Args) {
        to.push(&self.0);
    }
}

/// All parameters of a kernel, and which kernel it is.
pub(crate) trait Launch: Parameters {
    /// The module, without the suffix for the format of elements, and the kernel.
    fn names(&self) -> (&'static str, &'static str);
}

/// A kernel of a module for each format of elements.
pub(crate) trait FormattedLaunch: Launch {}

/// A kernel that knows nothing of formats.
pub(crate) trait PlainLaunch: Launch {}

/// Names of kernels with the same parameters, or of their modules.
macro_rules! kernel_names {
    ($kind:ident { $($variant:ident: $name:literal),* }) => {
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum $kind {
            $($variant),*
        }

        impl $kind {
            pub(crate) const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name),*
                }
            }
        }
    };
}
pub(super) use kernel_names;

/// A structure of parameters in their order; what stands in brackets is told to no kernel.
macro_rules! shared_parameters {
    ($name:ident; $($fields:tt)*) => {
        shared_parameters! { @ $name [] $($fields)* }
    };
    (@ $name:ident [$($choice:ident: $choices:ident),*] $($field:ident: $kind:ty),*) => {
        #[derive(Clone, Copy)]
        pub(crate) struct $name {
            $(pub(crate) $choice: $choices,)*
            $(pub(crate) $field: $kind),*
        }

        impl $crate::cuda::launch::Parameters for $name {
            const COUNT: usize = 0 $(+ <$kind as $crate::cuda::launch::Parameters>::COUNT)*;
            const WORDS: usize = 0 $(+ <$kind as $crate::cuda::launch::Parameters>::WORDS)*;

            fn write(self, to: &mut $crate::cuda::launch::Args) {
                $($crate::cuda::launch::Parameters::write(self.$field, to);)*
            }
        }
    };
}
pub(super) use shared_parameters;

/// The same of a kernel, which may be one of several, in one of several modules: fields that are no parameters say which.
macro_rules! kernel_parameters {
    ($format:ident $name:ident, module $module:literal, kernel $kernel:literal; $($fields:tt)*) => {
        kernel_parameters! { @ $format $name [] |_: &$name| ($module, $kernel); $($fields)* }
    };
    ($format:ident $name:ident, module $module:literal, kernel $kernel:ident; $($fields:tt)*) => {
        kernel_parameters! { @ $format $name [kernel: $kernel] |this: &$name| ($module, this.kernel.name()); $($fields)* }
    };
    ($format:ident $name:ident, module $module:ident, kernel $kernel:ident; $($fields:tt)*) => {
        kernel_parameters! {
            @ $format $name [module: $module, kernel: $kernel] |this: &$name| (this.module.name(), this.kernel.name()); $($fields)*
        }
    };
    (@ $format:ident $name:ident $choices:tt $names:expr; $($fields:tt)*) => {
        shared_parameters! { @ $name $choices $($fields)* }

        impl $crate::cuda::launch::Launch for $name {
            fn names(&self) -> (&'static str, &'static str) {
                ($names)(self)
            }
        }

        kernel_parameters! { @ $format $name }
    };
    (@ formatted $name:ident) => {
        impl $crate::cuda::launch::FormattedLaunch for $name {}
    };
    (@ plain $name:ident) => {
        impl $crate::cuda::launch::PlainLaunch for $name {}
    };
}
pub(super) use kernel_parameters;

/// Parameters of a kernel in their order, as the driver takes them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Args {
    words: Vec<u64>,
    /// Where in `words` each parameter begins.
    starts: Vec<u8>,
}

impl Args {
    fn of<L: Parameters>(launch: L) -> Self {
        let mut args = Self {
            words: Vec::with_capacity(L::WORDS),
            starts: Vec::with_capacity(L::COUNT),
        };
        launch.write(&mut args);
        args
    }

    fn push(&mut self, words: &[u64]) {
        self.starts.push(self.words.len() as u8);
        self.words.extend(words);
    }

    /// Addresses of the parameters, as the driver wants them. They hold while the arguments are not changed.
    fn list(&self) -> Vec<*mut c_void> {
        let address = |&start: &u8| {
            (&raw const self.words[usize::from(start)])
                .cast_mut()
                .cast()
        };
        self.starts.iter().map(address).collect()
    }
}

/// A tensor as bulk copies see it. Sizes and box are in elements, from the innermost dimension outwards; strides are in
/// bytes, of all but the innermost.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TensorMapSpec<'a> {
    pub(crate) address: u64,
    pub(crate) format: Format,
    pub(crate) sizes: &'a [u64],
    pub(crate) strides: &'a [u64],
    /// Rows of 32, 64 or 128 bytes, with their 16-byte pieces in the order of the swizzle of that width.
    pub(crate) part: &'a [u32],
}

impl CudaDevice {
    /// Starts a kernel behind what was started before.
    pub(crate) fn launch<L: FormattedLaunch>(
        &self,
        format: Format,
        shape: Shape,
        launch: L,
    ) -> Result<()> {
        let kernel = Kernel::of(&launch, format);
        self.start_kernel(kernel, self.prepare(kernel, shape)?, &Args::of(launch))
    }

    /// The same with all blocks at once, so that they can wait for each other.
    pub(crate) fn launch_cooperative<L: FormattedLaunch>(
        &self,
        format: Format,
        shape: Shape,
        launch: L,
    ) -> Result<()> {
        let kernel = Kernel::of(&launch, format);
        let start = KernelStart {
            cooperative: true,
            ..self.prepare(kernel, shape)?
        };
        self.start_kernel(kernel, start, &Args::of(launch))
    }

    /// Starts a kernel that knows nothing of formats: in turn, or behind the copies that were asked for, beside the work.
    pub(crate) fn launch_plain<L: PlainLaunch>(
        &self,
        moment: Moment,
        shape: Shape,
        launch: L,
    ) -> Result<()> {
        self.start_at(moment, Format::F32, shape, launch)
    }

    /// The same for one that knows a format.
    pub(crate) fn launch_at<L: FormattedLaunch>(
        &self,
        moment: Moment,
        format: Format,
        shape: Shape,
        launch: L,
    ) -> Result<()> {
        self.start_at(moment, format, shape, launch)
    }

    fn start_at<L: Launch>(
        &self,
        moment: Moment,
        format: Format,
        shape: Shape,
        launch: L,
    ) -> Result<()> {
        let kernel = Kernel::of(&launch, format);
        let (start, args) = (self.prepare(kernel, shape)?, Args::of(launch));
        match moment {
            Moment::InTurn => self.start_kernel(kernel, start, &args),
            Moment::Ahead => self.start_on(self.copies, start, &args),
        }
    }

    fn prepare(&self, kernel: Kernel, shape: Shape) -> Result<KernelStart> {
        self.enter()?;
        Ok(KernelStart {
            function: self.function(kernel.module, kernel.format, kernel.name)?,
            shape,
            cooperative: false,
        })
    }

    fn start_kernel(&self, kernel: Kernel, start: KernelStart, args: &Args) -> Result<()> {
        profile::timed(self, kernel, || steps::launch(self, start, args))
    }

    /// Starts it now.
    pub(super) fn start(&self, start: KernelStart, args: &Args) -> Result<()> {
        self.start_on(self.compute, start, args)
    }

    fn start_on(&self, stream: Shared, start: KernelStart, args: &Args) -> Result<()> {
        // SAFETY: operations tell kernels addresses of buffers that they hold, and sizes that they have checked.
        let answer = unsafe {
            self.driver.launch(
                start.function,
                start.shape,
                start.cooperative,
                stream,
                &mut args.list(),
            )
        };
        self.checked(answer)
    }

    /// Adds it to a graph, to be started early or when what comes before has ended.
    pub(super) fn add_to_graph(
        &self,
        graph: Shared,
        after: (Option<Shared>, bool),
        start: KernelStart,
        args: &Args,
    ) -> Result<Shared> {
        // SAFETY: as in `start`; the memory that the graph works in is kept as long as it.
        let answer = unsafe {
            self.driver.add_kernel(
                graph,
                after,
                (start.function, start.cooperative),
                start.shape,
                &mut args.list(),
            )
        };
        self.checked(answer)
    }

    /// Tells a kernel of a graph something else.
    pub(super) fn update_in_graph(
        &self,
        (exec, node): (Shared, Shared),
        start: KernelStart,
        args: &Args,
    ) -> Result<()> {
        // SAFETY: as in `add_to_graph`.
        let answer = unsafe {
            self.driver
                .update_kernel(exec, node, start.function, start.shape, &mut args.list())
        };
        self.checked(answer)
    }

    /// A description for bulk copies. For kernels of Hopper.
    pub(crate) fn tensor_map(&self, of: &TensorMapSpec<'_>) -> Result<TensorMap> {
        let kind = match of.format {
            Format::F32 => 7,
            Format::F16 => 6,
            Format::Bf16 => 9,
        };
        let lists = (of.sizes, of.strides, of.part);
        match self.driver.tensor_map(kind, of.address, lists) {
            Some(answer) => self.checked(answer),
            None => Err(TensorError::invalid(
                "tensor map",
                "the driver is too old for this GPU",
            )),
        }
    }
}

/// A kernel and its shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct KernelStart {
    pub(super) function: Shared,
    pub(super) shape: Shape,
    pub(super) cooperative: bool,
}

pub(super) fn bytes_of(values: &[f32]) -> &[u8] {
    // SAFETY: every float is four bytes, and bytes have no alignment.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

pub(super) fn bytes_of_mut(values: &mut [f32]) -> &mut [u8] {
    // SAFETY: as above; any four bytes are a float.
    unsafe { std::slice::from_raw_parts_mut(values.as_mut_ptr().cast(), size_of_val(values)) }
}

/// Writes floats to memory that does not move.
pub(super) fn write_pinned(to: *mut u8, values: &[f32]) {
    // SAFETY: the owner of the pinned memory has as much of it, and no device reads it now.
    unsafe { std::ptr::copy_nonoverlapping(values.as_ptr(), to.cast(), values.len()) };
}

/// Memory of the driver that does not move. Zeros until somebody writes there.
pub(super) fn pinned_bytes<'a>(address: usize, len: usize) -> &'a [u8] {
    // SAFETY: the owner of the pinned memory has as much of it, and lends it for as long as it lives itself.
    unsafe { std::slice::from_raw_parts(address as *const u8, len) }
}

/// The same to write there.
pub(super) fn pinned_bytes_mut<'a>(address: usize, len: usize) -> &'a mut [u8] {
    // SAFETY: as above; the owner is borrowed mutably, and no device reads it now.
    unsafe { std::slice::from_raw_parts_mut(address as *mut u8, len) }
}
