//! Weights in the memory of a GPU: as in their file, and in the forms that kernels ask for.

use std::sync::{Arc, Mutex};

use super::device::CudaDevice;
use super::memory::{Block, CopyEnd};
use super::{Args, CudaBuffer, Format, Kernel, steps};
use crate::buffer::Buffer;
use crate::dtype::Dtype;
use crate::error::Result;
use crate::lock::lock;
use crate::stored::Stored;

/// Sizes of a matrix, or of kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MatrixShape {
    pub(crate) out: usize,
    pub(crate) channels: usize,
    /// Positions of a kernel; one for a matrix.
    pub(crate) taps: usize,
}

/// A value of a layer on a device. Its memory belongs to the layer's slot.
#[derive(Debug)]
pub(crate) struct CudaValue {
    device: Arc<CudaDevice>,
    address: u64,
    dtype: Dtype,
    shape: Vec<usize>,
    matrix: Option<MatrixShape>,
    /// Whether channels are next to each other, position by position, and not positions channel by channel.
    taps_first: bool,
    /// Other forms, made when a kernel first asked for them.
    forms: Mutex<Vec<(Form, Arc<CudaBuffer>)>>,
}

/// A form of a weight: what an operation calls its layout, and the format of its elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Form {
    pub(crate) layout: &'static str,
    pub(crate) format: Format,
}

/// Where a value may begin.
const ALIGNMENT: u64 = 256;

/// Bytes that the memory of a slot has beyond those of its values, so that each of them begins where kernels want it.
pub(crate) const SLACK: u64 = 3 * ALIGNMENT;

impl CudaValue {
    /// Copies a value to a place in the memory of a slot, and moves the place behind it. What is copied ahead is copied
    /// beside the work, which has to wait for it.
    pub(crate) fn upload(
        stored: &Stored,
        matrix: Option<MatrixShape>,
        (block, ahead): (&Block, bool),
        place: &mut u64,
    ) -> Result<Self> {
        let device = Arc::clone(block.device());
        let address = (block.address() + *place).next_multiple_of(ALIGNMENT);
        let bytes = stored.bytes();
        *place = address + bytes.len() as u64 - block.address();
        let element = match stored.dtype() {
            Dtype::F32 | Dtype::F16 | Dtype::Bf16 | Dtype::F8E4M3 | Dtype::F8E5M2 => {
                stored.dtype().block().1
            }
            _ => 0,
        };
        let taps_first = matrix.is_some_and(|m| m.taps > 1 && m.channels > 1) && element > 0;
        let shape = matrix.map_or([0; 3], |m| [m.out, m.channels, m.taps]);
        if ahead {
            stored.pin();
        }
        steps::aside(|| match (ahead, taps_first && !bytes.is_empty()) {
            (false, false) => device.upload(address, bytes),
            (true, false) => device.upload_ahead(address, bytes),
            (false, true) => {
                let read = device.scratch(bytes.len())?;
                device.upload(read.address(), bytes)?;
                let (kernel, grid, args) = exchange((read.address(), address), shape, element);
                device.launch(kernel, grid, 256, 0, &args)
            }
            (true, true) => {
                let read = device.block_ahead(bytes.len() as u64)?;
                device.upload_ahead(read.address(), bytes)?;
                let (kernel, grid, args) = exchange((read.address(), address), shape, element);
                device.launch_ahead(kernel, grid, &args)?;
                CopyEnd::new(&device)?.wait()
            }
        })?;
        Ok(Self {
            device,
            address,
            dtype: stored.dtype(),
            shape: stored.shape().to_vec(),
            matrix,
            taps_first,
            forms: Mutex::default(),
        })
    }

    pub(crate) fn device(&self) -> &Arc<CudaDevice> {
        &self.device
    }

    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    pub(crate) fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Number of elements.
    pub(crate) fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// By the size in a file.
    pub(crate) fn bytes(&self) -> u64 {
        self.dtype.bytes_for(self.len()).map_or(0, |n| n as u64)
    }

    pub(crate) fn matrix(&self) -> Option<MatrixShape> {
        self.matrix
    }

    /// Whether the elements are in the order (out, position, channel).
    pub(crate) fn taps_first(&self) -> bool {
        self.taps_first
    }

    /// Another form of it, made at the first time and kept.
    pub(crate) fn form(
        &self,
        form: Form,
        make: impl FnOnce() -> Result<CudaBuffer>,
    ) -> Result<Arc<CudaBuffer>> {
        let mut forms = lock(&self.forms);
        if let Some((_, found)) = forms.iter().find(|(other, _)| *other == form) {
            return Ok(Arc::clone(found));
        }
        let made = Arc::new(steps::aside(make)?);
        forms.push((form, Arc::clone(&made)));
        Ok(made)
    }

    /// The values as floats of 32 bits, for what is added or multiplied channel by channel.
    pub(crate) fn floats(&self) -> Result<u64> {
        if self.dtype == Dtype::F32 {
            return Ok(self.address);
        }
        let form = Form {
            layout: "floats",
            format: Format::F32,
        };
        let made = self.form(form, || {
            let stored = self.stored()?;
            let mut values = Buffer::filled(self.len(), 0.0)?;
            self.dtype.to_f32_into(stored.bytes(), &mut values);
            let buffer = self.device.lasting(values.len(), Format::F32)?;
            self.device
                .upload(buffer.address(), super::launch::bytes_of(&values))?;
            Ok(buffer)
        })?;
        Ok(made.address())
    }

    /// The value in main memory, as it was given.
    pub(crate) fn stored(&self) -> Result<Stored> {
        let bytes = self.bytes() as usize;
        let mut read = Buffer::filled(bytes, 0_u8)?;
        steps::aside(|| self.device.download(&mut read, self.address))?;
        let read = match self.matrix.filter(|_| self.taps_first) {
            Some(m) => channels_first(&read, m, self.dtype.block().1)?,
            None => read,
        };
        Stored::new(self.dtype, &*self.shape, read.into_vec())
    }

    /// Some bytes of it.
    pub(crate) fn part(&self, from: usize, out: &mut [u8]) -> Result<()> {
        steps::aside(|| self.device.download(out, self.address + from as u64))
    }
}

/// (out, channels, positions) to (out, positions, channels).
fn exchange(
    (from, to): (u64, u64),
    [out, channels, taps]: [usize; 3],
    element: usize,
) -> (Kernel, [u32; 3], Args) {
    let kernel = Kernel {
        module: "relayout",
        format: Format::F32,
        name: match element {
            1 => "taps_first_8",
            2 => "taps_first_16",
            _ => "taps_first_32",
        },
    };
    let args = Args::new()
        .pointer(from)
        .pointer(to)
        .int(channels as i32)
        .int(taps as i32)
        .long((out * channels * taps) as i64);
    let blocks = (out * channels * taps).div_ceil(256).min(1 << 16) as u32;
    (kernel, [blocks, 1, 1], args)
}

/// The same back, in main memory.
fn channels_first(read: &[u8], m: MatrixShape, element: usize) -> Result<Buffer<u8>> {
    let mut out = Buffer::filled(read.len(), 0_u8)?;
    for o in 0..m.out {
        for tap in 0..m.taps {
            for channel in 0..m.channels {
                let from = ((o * m.taps + tap) * m.channels + channel) * element;
                let to = ((o * m.channels + channel) * m.taps + tap) * element;
                out[to..to + element].copy_from_slice(&read[from..from + element]);
            }
        }
    }
    Ok(out)
}
