//! Starting kernels.
//!
//! A kernel is told addresses and sizes, and the driver cannot check them: what stands in `ops` answers for them. Nothing
//! outside of this module can start one.

#![expect(
    unsafe_code,
    reason = "kernels are started with addresses of what they read and write"
)]

use std::ffi::c_void;

use super::device::CudaDevice;
use super::driver::{Shape, Shared, TensorMap};
use super::{Format, profile, steps};
use crate::error::{Result, TensorError};

/// A kernel by its module, without the suffix for the format of elements, and its name.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kernel {
    pub(crate) module: &'static str,
    pub(crate) format: Format,
    pub(crate) name: &'static str,
}

/// What a kernel is told, in the order of its parameters.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Args {
    words: Vec<u64>,
    /// Where in `words` each parameter begins.
    starts: Vec<u8>,
}

impl Args {
    pub(crate) fn new() -> Self {
        Self {
            words: Vec::with_capacity(24),
            starts: Vec::with_capacity(24),
        }
    }

    fn word(mut self, word: u64) -> Self {
        self.starts.push(self.words.len() as u8);
        self.words.push(word);
        self
    }

    /// An address of the device; 0 for none.
    #[must_use]
    pub(crate) fn pointer(self, address: u64) -> Self {
        self.word(address)
    }

    #[must_use]
    pub(crate) fn int(self, value: i32) -> Self {
        self.word(u64::from(value.cast_unsigned()))
    }

    #[must_use]
    pub(crate) fn long(self, value: i64) -> Self {
        self.word(value.cast_unsigned())
    }

    #[must_use]
    pub(crate) fn float(self, value: f32) -> Self {
        self.word(u64::from(value.to_bits()))
    }

    #[must_use]
    pub(crate) fn map(mut self, map: &TensorMap) -> Self {
        self.starts.push(self.words.len() as u8);
        self.words.extend(map.0);
        self
    }

    /// A structure of numbers that a kernel takes by value.
    #[must_use]
    pub(crate) fn words(mut self, words: &[u64]) -> Self {
        self.starts.push(self.words.len() as u8);
        self.words.extend(words);
        self
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
    pub(crate) fn launch(
        &self,
        kernel: Kernel,
        grid: [u32; 3],
        block: u32,
        shared: u32,
        args: &Args,
    ) -> Result<()> {
        let shape = Shape {
            grid,
            block,
            shared,
        };
        self.start_kernel(kernel, shape, false, args)
    }

    /// The same with all blocks at once, so that they can wait for each other.
    pub(crate) fn launch_cooperative(
        &self,
        kernel: Kernel,
        shape: Shape,
        args: &Args,
    ) -> Result<()> {
        self.start_kernel(kernel, shape, true, args)
    }

    fn start_kernel(
        &self,
        kernel: Kernel,
        shape: Shape,
        cooperative: bool,
        args: &Args,
    ) -> Result<()> {
        self.enter()?;
        let function = self.function(kernel.module, kernel.format, kernel.name)?;
        let launch = Launch {
            function,
            shape,
            cooperative,
        };
        profile::timed(self, kernel, || steps::launch(self, launch, args))
    }

    /// Starts a kernel behind the copies that were asked for, beside the work.
    pub(super) fn launch_ahead(&self, kernel: Kernel, grid: [u32; 3], args: &Args) -> Result<()> {
        self.enter()?;
        let launch = Launch {
            function: self.function(kernel.module, kernel.format, kernel.name)?,
            shape: Shape {
                grid,
                block: 256,
                shared: 0,
            },
            cooperative: false,
        };
        self.start_on(self.copies, launch, args)
    }

    /// Starts it now.
    pub(super) fn start(&self, launch: Launch, args: &Args) -> Result<()> {
        self.start_on(self.compute, launch, args)
    }

    fn start_on(&self, stream: Shared, launch: Launch, args: &Args) -> Result<()> {
        // SAFETY: operations tell kernels addresses of buffers that they hold, and sizes that they have checked.
        let answer = unsafe {
            self.driver.launch(
                launch.function,
                launch.shape,
                launch.cooperative,
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
        launch: Launch,
        args: &Args,
    ) -> Result<Shared> {
        // SAFETY: as in `start`; the memory that the graph works in is kept as long as it.
        let answer = unsafe {
            self.driver.add_kernel(
                graph,
                after,
                (launch.function, launch.cooperative),
                launch.shape,
                &mut args.list(),
            )
        };
        self.checked(answer)
    }

    /// Tells a kernel of a graph something else.
    pub(super) fn update_in_graph(
        &self,
        (exec, node): (Shared, Shared),
        launch: Launch,
        args: &Args,
    ) -> Result<()> {
        // SAFETY: as in `add_to_graph`.
        let answer = unsafe {
            self.driver
                .update_kernel(exec, node, launch.function, launch.shape, &mut args.list())
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
pub(crate) struct Launch {
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
