//! Weights in the memory of a GPU: as in their file, and in the forms that kernels ask for.

use std::any::Any;
use std::sync::{Arc, Mutex};

use super::assemble::bring_rows;
use super::device::CudaDevice;
use super::launches::relayout::{RowsApart, TapsFirst, TapsFirstKernel, Widen};
use super::rounded::{LARGE_ROUNDED, bring_codes};
use super::staging::{Moment, Origin};
use super::{
    Address, CopyEnd, Format, GpuBuffer, GpuMemory, LARGE, MatrixShape, OnCard, Pointer, Shape,
    Transfer, steps,
};
use crate::buffer::Buffer;
use crate::dtype::Dtype;
use crate::error::{Result, TensorError};
use crate::formats::{RowFormat, RowKind};
use crate::gpu::{GpuSlice, GpuWeight};
use crate::lock::lock;
use crate::narrow::{GROUP, Narrow};
use crate::positioned::FilePart;
use crate::read_buffer;
use crate::stored::Stored;
use crate::unread::Unread;

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
    /// The rows of bytes whose scales stand behind all of them, and not each behind its row: kernels read both as they are then.
    apart: Option<RowFormat>,
    /// Other forms, made when a kernel first asked for them.
    forms: Mutex<Vec<(Form, Arc<GpuBuffer>)>>,
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

impl Transfer {
    /// Has them copied beside the work.
    fn send(&self, device: &CudaDevice, to: u64) -> Result<()> {
        // The driver keeps what is small itself until it is copied.
        let pins = self.len() >= LARGE;
        let bytes = match self {
            Self::File(stored) => match stored.in_file() {
                Some(unread) if unread.is_direct() => {
                    return bring_unread(device, to, unread, Moment::Ahead);
                }
                _ => stored.bytes(),
            },
            Self::Whole(stored) => {
                if pins {
                    stored.pin();
                }
                stored.bytes()
            }
            Self::Narrow(narrow) => {
                if pins {
                    narrow.pin();
                }
                narrow.bytes()
            }
        };
        device.upload_ahead(to, bytes)
    }
}

/// A value that has come to a GPU in another form than kernels read, which is made when it is used: so the copies that come
/// next need not wait for a kernel.
#[derive(Debug)]
pub(crate) struct Folded {
    device: Arc<CudaDevice>,
    address: u64,
    from: Transfer,
    matrix: MatrixShape,
}

/// Bytes of an element of a format that can be put into another order element by element.
fn plain_element(dtype: Dtype) -> usize {
    match dtype {
        Dtype::F32 | Dtype::F16 | Dtype::Bf16 | Dtype::F8E4M3 | Dtype::F8E5M2 => dtype.block().1,
        _ => 0,
    }
}

fn is_taps_first(dtype: Dtype, matrix: Option<MatrixShape>) -> bool {
    matrix.is_some_and(|m| m.taps > 1 && m.channels > 1) && plain_element(dtype) > 0
}

/// Rows of bytes that kernels read apart from their scales, if it is such a matrix.
fn apart_of(dtype: Dtype, matrix: Option<MatrixShape>) -> Option<RowFormat> {
    matrix.and_then(|matrix| rows_of_bytes(dtype, matrix))
}

/// Whether kernels read the bytes of a value in another order than its file has them.
fn is_reordered(dtype: Dtype, matrix: Option<MatrixShape>) -> bool {
    is_taps_first(dtype, matrix) || apart_of(dtype, matrix).is_some()
}

/// Brings such a value into the order in which kernels read it.
fn reorder(
    (device, moment): (&CudaDevice, Moment),
    places: (u64, u64),
    dtype: Dtype,
    matrix: MatrixShape,
) -> Result<()> {
    match apart_of(dtype, Some(matrix)) {
        Some(format) => set_apart((device, moment), places, matrix.out, format),
        None => exchange((device, moment), places, matrix, plain_element(dtype)),
    }
}

impl Folded {
    /// Bytes that it takes as kernels read it.
    pub(crate) fn bytes(&self) -> u64 {
        match &self.from {
            Transfer::Whole(stored) | Transfer::File(stored) => stored.byte_len() as u64,
            Transfer::Narrow(narrow) => 2 * narrow.len() as u64,
        }
    }

    /// The value as kernels read it, at a place that moves behind it.
    pub(crate) fn unfolded(&self, block: &GpuMemory, place: &mut u64) -> Result<CudaValue> {
        let address = (block.address() + *place).next_multiple_of(ALIGNMENT);
        *place = address + self.bytes() - block.address();
        let (dtype, shape) = match &self.from {
            Transfer::Whole(stored) | Transfer::File(stored) => (stored.dtype(), stored.shape()),
            Transfer::Narrow(narrow) => (Dtype::Bf16, narrow.shape()),
        };
        steps::aside(|| match &self.from {
            Transfer::Whole(_) | Transfer::File(_) => {
                let places = (self.address, address);
                reorder((&self.device, Moment::InTurn), places, dtype, self.matrix)
            }
            Transfer::Narrow(narrow) => self.widen(narrow, address),
        })?;
        Ok(CudaValue {
            device: Arc::clone(&self.device),
            address,
            dtype,
            shape: shape.to_vec(),
            matrix: Some(self.matrix),
            taps_first: is_taps_first(dtype, Some(self.matrix)),
            apart: apart_of(dtype, Some(self.matrix)),
            forms: Mutex::default(),
        })
    }

    fn widen(&self, narrow: &Narrow, to: u64) -> Result<()> {
        let places = narrow.places();
        let groups = narrow.len() / GROUP;
        let widen = Widen {
            low: Pointer::at(self.address),
            codes: Pointer::at(self.address + places.codes as u64),
            index: Pointer::at(self.address + places.index as u64),
            list: Pointer::at(self.address + places.list as u64),
            to: Pointer::at(to),
            exponents: narrow.exponents(),
            groups: groups as i64,
        };
        let blocks = groups.div_ceil(256).min(1 << 14) as u32;
        let shape = Shape::row(blocks, 256);
        self.device.launch_plain(Moment::InTurn, shape, widen)
    }
}

/// What has come to a GPU.
pub(crate) enum Arrived {
    Value(CudaValue),
    Folded(Folded),
}

impl CudaValue {
    /// A value that is written next, at a place that moves behind it.
    pub(crate) fn place(
        dtype: Dtype,
        shape: Vec<usize>,
        matrix: Option<MatrixShape>,
        block: &GpuMemory,
        place: &mut u64,
    ) -> Self {
        let address = (block.address() + *place).next_multiple_of(ALIGNMENT);
        let bytes = dtype.bytes_for(shape.iter().product()).unwrap_or(0);
        *place = address + bytes as u64 - block.address();
        Self {
            device: block.card().shared(),
            address,
            dtype,
            shape,
            matrix,
            taps_first: false,
            apart: None,
            forms: Mutex::default(),
        }
    }

    /// Copies a value beside the work to a place in memory that was taken for it, which moves behind it.
    pub(crate) fn stream(
        from: Transfer,
        matrix: Option<MatrixShape>,
        block: &GpuMemory,
        place: &mut u64,
    ) -> Result<Arrived> {
        let device = block.card().shared();
        let address = (block.address() + *place).next_multiple_of(ALIGNMENT);
        *place = address + from.len() as u64 - block.address();
        from.send(&device, address)?;
        let whole = match (&from, matrix) {
            (Transfer::Whole(stored) | Transfer::File(stored), _)
                if !is_reordered(stored.dtype(), matrix) =>
            {
                stored
            }
            (_, Some(matrix)) => {
                return Ok(Arrived::Folded(Folded {
                    device,
                    address,
                    from,
                    matrix,
                }));
            }
            // Only matrices are ever in another form.
            (Transfer::Whole(stored) | Transfer::File(stored), None) => stored,
            (Transfer::Narrow(_), None) => {
                return Err(TensorError::invalid("weight", "expected a matrix"));
            }
        };
        Ok(Arrived::Value(Self {
            device,
            address,
            dtype: whole.dtype(),
            shape: whole.shape().to_vec(),
            matrix,
            taps_first: false,
            apart: None,
            forms: Mutex::default(),
        }))
    }

    /// The same from another GPU.
    pub(crate) fn stream_from(&self, block: &GpuMemory, place: &mut u64) -> Result<Self> {
        let device = block.card().shared();
        let address = (block.address() + *place).next_multiple_of(ALIGNMENT);
        *place = address + self.bytes() - block.address();
        device.fetch_ahead(
            address,
            (&*self.device, self.address),
            self.bytes() as usize,
        )?;
        Ok(Self {
            device,
            address,
            shape: self.shape.clone(),
            forms: Mutex::default(),
            ..*self
        })
    }

    /// The same value, without other forms, for as long as somebody holds its memory.
    pub(crate) fn again(&self) -> Self {
        Self {
            device: Arc::clone(&self.device),
            shape: self.shape.clone(),
            forms: Mutex::default(),
            ..*self
        }
    }

    /// Copies a value to a place in the memory of a slot, and moves the place behind it. What is copied ahead is copied
    /// beside the work, which has to wait for it.
    pub(crate) fn upload(
        stored: &Stored,
        matrix: Option<MatrixShape>,
        (block, ahead): (&GpuMemory, bool),
        place: &mut u64,
    ) -> Result<Self> {
        let device = block.card().shared();
        let address = (block.address() + *place).next_multiple_of(ALIGNMENT);
        let bytes = stored.byte_len();
        *place = address + bytes as u64 - block.address();
        let dtype = stored.dtype();
        let reordered = matrix.filter(|_| is_reordered(dtype, matrix) && bytes > 0);
        let ahead_from = |to: u64| match stored.in_file() {
            Some(unread) if bytes >= LARGE && unread.is_direct() => {
                bring_unread(&device, to, unread, Moment::Ahead)
            }
            _ => {
                stored.pin();
                device.upload_ahead(to, stored.bytes())
            }
        };
        steps::aside(|| match (ahead, reordered) {
            (false, None) => bring(&device, address, stored),
            (true, None) => ahead_from(address),
            (false, Some(matrix)) => {
                if bring_apart(&device, address, stored, matrix)? {
                    return Ok(());
                }
                let read = device.scratch(bytes)?;
                bring(&device, read.address(), stored)?;
                let places = (read.address(), address);
                reorder((&device, Moment::InTurn), places, dtype, matrix)
            }
            (true, Some(matrix)) => {
                let read = device.block_ahead(bytes as u64)?;
                ahead_from(read.address())?;
                let places = (read.address(), address);
                reorder((&device, Moment::Ahead), places, dtype, matrix)?;
                CopyEnd::new(device.shared())?.wait()
            }
        })?;
        Ok(Self {
            device,
            address,
            dtype,
            shape: stored.shape().to_vec(),
            matrix,
            taps_first: is_taps_first(dtype, matrix),
            apart: apart_of(dtype, matrix),
            forms: Mutex::default(),
        })
    }

    pub(crate) fn device(&self) -> &CudaDevice {
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

    /// Whether the elements are rows of bytes, and behind all of them their scales in f32.
    pub(crate) fn is_apart(&self) -> bool {
        self.apart.is_some()
    }

    /// Another form of it, made at the first time and kept.
    fn form(&self, form: Form, make: impl FnOnce() -> Result<GpuBuffer>) -> Result<Arc<GpuBuffer>> {
        let made = self.form_if(form, || true, make)?;
        made.ok_or_else(|| TensorError::invalid("weight", "unknown form of a weight"))
    }

    /// The same where it is there, or may be made.
    pub(crate) fn form_if(
        &self,
        form: Form,
        may: impl FnOnce() -> bool,
        make: impl FnOnce() -> Result<GpuBuffer>,
    ) -> Result<Option<Arc<GpuBuffer>>> {
        let mut forms = lock(&self.forms);
        if let Some((_, found)) = forms.iter().find(|(other, _)| *other == form) {
            return Ok(Some(Arc::clone(found)));
        }
        if !may() {
            return Ok(None);
        }
        let made = Arc::new(steps::aside(make)?);
        forms.push((form, Arc::clone(&made)));
        Ok(Some(made))
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
            let short = match self.dtype {
                Dtype::F16 => Some(Format::F16),
                Dtype::Bf16 => Some(Format::Bf16),
                _ => None,
            };
            if let Some(format) = short {
                let buffer = self.device.lasting(self.len(), Format::F32)?;
                buffer.fill_from(GpuSlice::new(self.address, 0), format)?;
                return Ok(buffer);
            }
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
        let read = match (self.matrix.filter(|_| self.taps_first), self.apart) {
            (_, Some(format)) => together(&read, format)?,
            (Some(m), None) => channels_first(&read, m, self.dtype.block().1)?,
            (None, None) => read,
        };
        Stored::new(self.dtype, &*self.shape, read.into_vec())
    }

    /// Some bytes of it, as in the file.
    pub(crate) fn part(&self, from: usize, out: &mut [u8]) -> Result<()> {
        if self.apart.is_some() || self.taps_first {
            out.copy_from_slice(&self.stored()?.bytes()[from..from + out.len()]);
            return Ok(());
        }
        steps::aside(|| self.device.download(out, self.address + from as u64))
    }
}

/// Rows of bytes with a scale each, of sizes that the copy engine takes.
fn rows_of_bytes(dtype: Dtype, matrix: MatrixShape) -> Option<RowFormat> {
    let Dtype::Rows(format) = dtype else {
        return None;
    };
    let bytes = matches!(
        format.kind(),
        RowKind::F8E4M3 | RowKind::F8E5M2 | RowKind::Int8
    );
    let whole = format.columns().is_multiple_of(16) && format.columns() == matrix.channels;
    (bytes && whole && matrix.taps == 1).then_some(format)
}

/// Rows with a scale behind each to all rows, and then all scales.
fn set_apart(
    (device, moment): (&CudaDevice, Moment),
    (from, to): (u64, u64),
    rows: usize,
    format: RowFormat,
) -> Result<()> {
    let columns = format.columns();
    let apart = RowsApart {
        from: Pointer::at(from),
        to: Pointer::at(to),
        columns: columns as i32,
        rows: rows as i64,
    };
    let blocks = (rows * columns / 16).div_ceil(256).clamp(1, 1 << 16) as u32;
    device.launch_plain(moment, Shape::row(blocks, 256), apart)
}

/// The same back, in main memory.
fn together(read: &[u8], format: RowFormat) -> Result<Buffer<u8>> {
    let (codes, row) = (format.code_bytes(), format.row_bytes());
    let mut out = Buffer::filled(read.len(), 0_u8)?;
    let rows = read.len() / row;
    let (all, scales) = read.split_at(rows * codes);
    let parts = all
        .chunks_exact(codes)
        .zip(scales.chunks_exact(row - codes));
    for (to, (code, scale)) in out.chunks_exact_mut(row).zip(parts) {
        to[..codes].copy_from_slice(code);
        to[codes..].copy_from_slice(scale);
    }
    Ok(out)
}

/// Copies a value to an address, from its file if it was not read yet.
fn bring(device: &CudaDevice, to: u64, stored: &Stored) -> Result<()> {
    steps::copied();
    let rounded = |unread: &Unread| unread.rounding().is_some();
    let least = if stored.in_file().is_some_and(rounded) {
        LARGE_ROUNDED
    } else {
        LARGE
    };
    if stored.byte_len() < least || stored.is_pinned() {
        return device.upload(to, stored.bytes());
    }
    let Some(unread) = stored.in_file() else {
        return device.bring(to, Origin::Memory(stored.bytes()), Moment::InTurn);
    };
    if unread.is_direct() {
        return bring_unread(device, to, unread, Moment::InTurn);
    }
    // Planes of kernels are cut in main memory.
    let bytes = unread.read()?;
    device.bring(to, Origin::Memory(&bytes), Moment::InTurn)?;
    read_buffer::give(bytes);
    Ok(())
}

/// Copies what comes straight from a file to an address, where the parts of rows that are apart there are put together.
fn bring_unread(device: &CudaDevice, to: u64, unread: &Unread, moment: Moment) -> Result<()> {
    match unread.row_ends() {
        Some(ends) => bring_rows(device, to, (unread, ends), moment),
        None => bring_codes(device, to, (unread.codes(), unread.rounding()), moment),
    }
}

/// Copies what a file has of a value to an address.
pub(super) fn bring_pieces(
    device: &CudaDevice,
    to: u64,
    pieces: &[FilePart],
    moment: Moment,
) -> Result<()> {
    let mut at = to;
    for piece in pieces {
        device.bring(at, Origin::File(piece), moment)?;
        at += piece.len() as u64;
    }
    Ok(())
}

/// Copies rows whose codes and scales stand apart in their file, as they do for kernels: nothing is put together on the way. False
/// where they are not so.
fn bring_apart(device: &CudaDevice, to: u64, stored: &Stored, matrix: MatrixShape) -> Result<bool> {
    let (Some(format), Some(unread)) = (apart_of(stored.dtype(), Some(matrix)), stored.in_file())
    else {
        return Ok(false);
    };
    let codes = format.code_bytes();
    let sizes = (codes, format.row_bytes() - codes);
    let ends = unread.row_ends();
    let Some(ends) = ends.filter(|ends| (ends.codes, ends.end) == sizes) else {
        return Ok(false);
    };
    steps::copied();
    let codes = (unread.codes(), unread.rounding());
    bring_codes(device, to, codes, Moment::InTurn)?;
    let ends = ends.bytes()?;
    let behind = to + (unread.len() - ends.len()) as u64;
    device.upload(behind, &ends)?;
    Ok(true)
}

/// (out, channels, positions) to (out, positions, channels).
fn exchange(
    (device, moment): (&CudaDevice, Moment),
    (from, to): (u64, u64),
    m: MatrixShape,
    element: usize,
) -> Result<()> {
    let count = m.out * m.channels * m.taps;
    let exchange = TapsFirst {
        kernel: match element {
            1 => TapsFirstKernel::TapsFirst8,
            2 => TapsFirstKernel::TapsFirst16,
            _ => TapsFirstKernel::TapsFirst32,
        },
        from: Pointer::at(from),
        to: Pointer::at(to),
        channels: m.channels as i32,
        taps: m.taps as i32,
        count: count as i64,
    };
    let blocks = count.div_ceil(256).min(1 << 16) as u32;
    device.launch_plain(moment, Shape::row(blocks, 256), exchange)
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

/// A weight of the seam as this back end keeps it.
pub(crate) fn cuda_value(weight: &dyn GpuWeight) -> Result<&CudaValue> {
    let any: &dyn Any = weight;
    let other = || TensorError::invalid("weight", "it is on a GPU of another kind");
    any.downcast_ref().ok_or_else(other)
}
