//! Products and convolutions on a GPU: which kernel, in which tiles.
//!
//! Three kinds of kernels mean the same: `product_hopper` (wgmma and the copy engine), `product_mma` (mma.sync, from 8.0 on) and
//! `product_plain` (no tensor cores: f32, 7.5, odd sizes). A matrix is a picture of one row for all of them.

use std::ops::Deref;

use super::norm::row_norm;
use super::weights::{self, Elements, InputChange, Operand};
use crate::cuda::launches::product_plain::Matmul;
use crate::cuda::tuned;
use crate::cuda::{Address, CudaDevice, CudaValue, Format, GpuBuffer, OnCard, Shape, cuda_value};
use crate::error::{Result, TensorError};
use crate::gpu::{Finish, GpuSlice, GpuWeight, RowNorm};
pub(crate) use crate::gpu::{SkipLayer, TrailingColumns, Treatment, Window};

mod bytes;
mod few;
mod hopper;
mod start;

use bytes::Input;
pub(crate) use few::few_rows;
pub(crate) use hopper::{ChannelSums, UNIT, conv_with_skip, each};

const OP: &str = "product";

impl Window {
    /// Rows of a matrix.
    fn rows(rows: usize, channels: usize) -> Self {
        Self {
            frames: 1,
            size: (1, rows),
            enlarged: (1, rows),
            channels,
            out: [1, 1, rows],
            kernel: [1, 1, 1],
            time_stride: 1,
            stride: 1,
            time_before: 0,
            above: 0,
            left: 0,
        }
    }

    fn is_plain(&self) -> bool {
        self.kernel == [1, 1, 1]
            && (self.stride, self.time_stride) == (1, 1)
            && (self.above, self.left, self.time_before) == (0, 0, 0)
            && self.enlarged == self.size
            && self.out == [self.frames, self.size.0, self.size.1]
    }

    /// Whether 3x3 kernels see pairs of equal pixels of a picture of twice the size, and the picture is so large that it is worth adding weights of
    /// equal pixels for each use: less than half of the work then.
    fn is_doubled(&self) -> bool {
        self.enlarged == (2 * self.size.0, 2 * self.size.1)
            && self.kernel == [1, 3, 3]
            && (self.stride, self.time_stride) == (1, 1)
            && (self.above, self.left, self.time_before) == (1, 1, 0)
            && self.out == [self.frames, self.enlarged.0, self.enlarged.1]
            && self.out_rows() >= tuned::DOUBLED_PIXELS
    }

    /// Whether kernels of several positions see so few channels that products of each position alone would be of zeros mostly: what they see is put together then.
    fn is_small(&self, padded: usize) -> bool {
        padded <= 8
            && self.taps() > 1
            && (self.kernel[0], self.time_stride, self.time_before) == (1, 1, 0)
            && self.out[0] == self.frames
            && self.enlarged == self.size
            && self.out_rows() * self.taps() <= tuned::GATHERED_POSITIONS
    }

    fn taps(&self) -> usize {
        self.kernel.iter().product()
    }

    fn out_rows(&self) -> usize {
        self.out.iter().product()
    }
}

impl<'a> TrailingColumns<'a> {
    fn slice(self) -> GpuSlice<'a> {
        self.wide.slice_at(self.first)
    }
}

/// Where the numbers are that sums of bytes are multiplied with.
#[derive(Clone, Copy)]
struct Scales {
    operand: Operand,
    rows: u64,
    columns: u64,
}

/// A weight of the same size beside the first one of a product, and where its result goes.
struct OtherWeight<'a> {
    weight: Elements<'a>,
    bias: Option<GpuSlice<'a>>,
    out: GpuBuffer,
}

/// One product: everything that the kernels are told.
struct Product<'a> {
    device: &'a CudaDevice,
    format: Format,
    x: u64,
    weight: &'a Elements<'a>,
    window: Window,
    /// Rows of the weight.
    columns: usize,
    geglu: bool,
    /// Whether the weight has four kernels for the four pixels over each of the input.
    doubled: bool,
    finish: Finish<'a>,
    /// Whether both operands are bytes.
    bytes: Option<Scales>,
    /// Channels behind those of the input, the window having all of them.
    behind: Option<TrailingColumns<'a>>,
    others: &'a [OtherWeight<'a>],
    /// What is added to the sums, where there are no others.
    skip: Option<SkipLayer<'a>>,
}

impl<'a> Product<'a> {
    /// Of an input in memory of its own with one weight, and nothing else.
    fn of(
        x: &'a GpuBuffer,
        (weight, columns): (&'a Elements<'a>, usize),
        window: Window,
        finish: Finish<'a>,
    ) -> Self {
        Self {
            device: x.card(),
            format: x.format(),
            x: x.address(),
            weight,
            window,
            columns,
            geglu: false,
            doubled: false,
            finish,
            bytes: None,
            behind: None,
            others: &[],
            skip: None,
        }
    }
}

/// `rows` rows of the weight's channels, treated as the layer wants.
pub(crate) fn linear(
    weight: &CudaValue,
    x: &GpuBuffer,
    rows: usize,
    treatment: Treatment<'_>,
    finish: Finish<'_>,
) -> Result<GpuBuffer> {
    let shape = weights::shape(weight)?;
    let window = Window::rows(rows, shape.channels * shape.taps);
    single(weight, x, window, treatment, finish, false)
}

/// The same for the norm of rows.
pub(crate) fn linear_of_norm(
    weight: &CudaValue,
    x: &GpuBuffer,
    norm: RowNorm<'_>,
    treatment: Treatment<'_>,
    finish: Finish<'_>,
) -> Result<GpuBuffer> {
    let shape = weights::shape(weight)?;
    let rows = x.len() / norm.width;
    let window = Window::rows(rows, shape.channels * shape.taps);
    let input = Input::Normed(x, norm);
    if let Some(found) = bytes::single(weight, input, &window, treatment, finish, false)? {
        return Ok(found);
    }
    linear(weight, &row_norm(x, norm)?, rows, treatment, finish)
}

/// The same for rows whose last channels are elsewhere. None where no kernel reads two places.
pub(crate) fn linear_of_two(
    weight: &CudaValue,
    (x, behind): (&GpuBuffer, TrailingColumns<'_>),
    rows: usize,
    treatment: Treatment<'_>,
    finish: Finish<'_>,
) -> Result<Option<GpuBuffer>> {
    let shape = weights::shape(weight)?;
    let window = Window::rows(rows, shape.channels * shape.taps);
    let input = Input::Matrix(x, Some(behind));
    if let Some(found) = bytes::single(weight, input, &window, treatment, finish, false)? {
        return Ok(Some(found));
    }
    hopper::of_two(weight, (x, behind), window, treatment, finish)
}

/// `a * gelu(g)` of the halves of the outputs.
pub(crate) fn geglu(
    weight: &CudaValue,
    x: &GpuBuffer,
    rows: usize,
    treatment: Treatment<'_>,
    bias: Option<GpuSlice<'_>>,
) -> Result<GpuBuffer> {
    let shape = weights::shape(weight)?;
    let window = Window::rows(rows, shape.channels * shape.taps);
    let finish = Finish {
        bias,
        ..Finish::default()
    };
    single(weight, x, window, treatment, finish, true)
}

/// A convolution over pictures.
pub(crate) fn conv(
    weight: &CudaValue,
    x: &GpuBuffer,
    window: Window,
    treatment: Treatment<'_>,
    finish: Finish<'_>,
) -> Result<GpuBuffer> {
    let window = if window.is_plain() {
        Window::rows(window.out_rows(), window.channels)
    } else if weights::rotation(weight) > 0 {
        let reason = "a rotated weight of single pixels works on all of them only";
        return Err(TensorError::invalid("conv", reason));
    } else {
        window
    };
    single(weight, x, window, treatment, finish, false)
}

/// A convolution over frames with one weight for each tap of time. They are put together for the one use, so that sums are rounded once.
pub(crate) fn conv3d(
    taps: &[&dyn GpuWeight],
    x: &GpuBuffer,
    window: Window,
    treatment: Treatment<'_>,
    finish: Finish<'_>,
) -> Result<GpuBuffer> {
    if let [one] = taps {
        return conv(cuda_value(*one)?, x, window, treatment, finish);
    }
    let Some(first) = taps.first() else {
        return Err(TensorError::invalid("conv3d", "a kernel without taps"));
    };
    let columns = weights::shape(cuda_value(*first)?)?.out;
    let padded = padded(x, window.channels);
    let weight = weights::join_taps(taps, x.card(), x.format(), padded)?;
    run(
        &Elements::Made(weight),
        columns,
        x,
        (window, padded, treatment),
        finish,
        false,
    )
}

/// Channels as the kernels for this format want them.
fn padded(x: &GpuBuffer, channels: usize) -> usize {
    if has_tensor_cores(x.card(), x.format()) {
        channels.next_multiple_of(8)
    } else {
        channels
    }
}

pub(crate) fn has_tensor_cores(device: &CudaDevice, format: Format) -> bool {
    format != Format::F32 && device.arch() >= 80
}

fn single(
    weight: &CudaValue,
    x: &GpuBuffer,
    window: Window,
    treatment: Treatment<'_>,
    finish: Finish<'_>,
    geglu: bool,
) -> Result<GpuBuffer> {
    let input = Input::Matrix(x, None);
    if let Some(found) = bytes::single(weight, input, &window, treatment, finish, geglu)? {
        return Ok(found);
    }
    let shape = weights::shape(weight)?;
    let group = weights::rotation(weight);
    let levels = weights::input_levels(weight).filter(|_| !treatment.exact && window.is_plain());
    let channels = window.channels;
    // Scales come before rotations, and these before rounding.
    let early = group > 0 || levels.is_some();
    let mut x = LayerInput::Given(x);
    if let Some(scale) = treatment.scale.filter(|_| early) {
        let how = as_rows(&x, channels, channels, Some(scale));
        x = LayerInput::Made(weights::prepare_input(&x, &how)?);
    }
    if group > 0 {
        x = LayerInput::Made(weights::rotate_groups(&x, group)?);
    }
    if let Some(levels) = levels {
        x = LayerInput::Made(weights::round_rows(&x, channels, levels)?);
    }
    let scale = treatment.scale.filter(|_| !early);
    let channels = padded(&x, channels);
    // Without tensor cores a weight of another format is converted while it is read.
    let plain = !has_tensor_cores(x.card(), x.format());
    let elements = match weights::in_place(weight)? {
        Some(format) if plain => Elements::Kept(weight, format),
        _ => weights::elements(weight, x.format(), channels)?,
    };
    let how = (window, channels, Treatment { scale, ..treatment });
    run(&elements, shape.out, &x, how, finish, geglu)
}

/// An input as it was given, or changed.
enum LayerInput<'a> {
    Given(&'a GpuBuffer),
    Made(GpuBuffer),
}

impl Deref for LayerInput<'_> {
    type Target = GpuBuffer;

    fn deref(&self) -> &GpuBuffer {
        match self {
            Self::Given(buffer) => buffer,
            Self::Made(buffer) => buffer,
        }
    }
}

fn as_rows<'a>(
    x: &GpuBuffer,
    channels: usize,
    padded: usize,
    scale: Option<GpuSlice<'a>>,
) -> InputChange<'a> {
    let rows = x.len() / channels.max(1);
    InputChange {
        pictures: rows,
        from: (1, 1),
        to: (1, 1),
        channels,
        padded,
        scale,
    }
}

/// The product of an input with elements of `columns` rows, whose channels are padded.
fn run(
    weight: &Elements<'_>,
    columns: usize,
    x: &GpuBuffer,
    (mut window, padded, Treatment { scale, stays, .. }): (Window, usize, Treatment<'_>),
    finish: Finish<'_>,
    geglu: bool,
) -> Result<GpuBuffer> {
    let (device, format) = (x.card(), x.format());
    let rows = window.out_rows();
    let out_columns = if geglu { columns / 2 } else { columns };
    check(&window, x, columns, padded)?;
    let out = device.buffer(rows * out_columns, format)?;
    if out.len() == 0 {
        return Ok(out);
    }
    if window.is_small(padded) && scale.is_none() && has_tensor_cores(device, format) {
        let gathered = weights::gather_windows(x, &window)?;
        let depth = window.taps() * padded;
        let product = Product {
            geglu,
            ..Product::of(
                &gathered,
                (weight, columns),
                Window::rows(rows, depth),
                finish,
            )
        };
        if device.hopper() && (!geglu || out_columns % 8 == 0) {
            product.start_hopper(&out)?;
        } else {
            product.start_mma(&out)?;
        }
        return Ok(out);
    }
    let wide = (padded != window.channels || scale.is_some())
        .then(|| weights::prepare_input(x, &as_rows(x, window.channels, padded, scale)));
    let wide = wide.transpose()?;
    let x = wide.as_ref().unwrap_or(x);
    window.channels = padded;
    let product = |x, window| Product {
        geglu,
        ..Product::of(x, (weight, columns), window, finish)
    };
    if !has_tensor_cores(device, format) {
        product(x, window).start_plain(&out)?;
        return Ok(out);
    }
    if device.hopper() && window.is_doubled() {
        let halved = weights::halve_kernels(weight, device, [columns, padded], stays)?;
        let phase = Window {
            enlarged: window.size,
            out: [window.frames, window.size.0, window.size.1],
            kernel: [1, 2, 2],
            ..window
        };
        let product = Product {
            weight: &halved,
            doubled: true,
            ..product(x, phase)
        };
        product.start_hopper(&out)?;
        return Ok(out);
    }
    // Its kernels write whole pieces of 16 bytes of gated outputs.
    if device.hopper() && (!geglu || out_columns % 8 == 0) {
        // The copy engine cannot repeat pixels. Without room for a larger picture the other kernel does.
        let larger =
            (window.enlarged != window.size).then(|| weights::prepare_input(x, &enlarged(&window)));
        match larger {
            None if fits_hopper(&window) => {
                product(x, window).start_hopper(&out)?;
                return Ok(out);
            }
            Some(Ok(larger)) if fits_hopper(&window.of_enlarged()) => {
                product(&larger, window.of_enlarged()).start_hopper(&out)?;
                return Ok(out);
            }
            _ => {}
        }
    }
    product(x, window).start_mma(&out)?;
    Ok(out)
}

fn enlarged(window: &Window) -> InputChange<'static> {
    InputChange {
        pictures: window.frames,
        from: window.size,
        to: window.enlarged,
        channels: window.channels,
        padded: window.channels,
        scale: None,
    }
}

impl Window {
    fn of_enlarged(self) -> Self {
        let large = Self {
            size: self.enlarged,
            ..self
        };
        if large.is_plain() {
            return Self::rows(large.out_rows(), large.channels);
        }
        large
    }
}

/// Stride 2 is pairs of pixels for the copy engine, whose channels must not mix in a step.
fn fits_hopper(window: &Window) -> bool {
    match window.stride {
        1 => true,
        2 => {
            window.channels.is_multiple_of(64)
                && window.size.0.is_multiple_of(2)
                && window.size.1.is_multiple_of(2)
        }
        _ => false,
    }
}

/// Kernels count rows, pixels and columns in 32 bits.
fn check(window: &Window, x: &GpuBuffer, columns: usize, padded: usize) -> Result<()> {
    let pixels = window.frames * window.size.0 * window.size.1;
    let large = window.frames * window.enlarged.0 * window.enlarged.1;
    let most = i32::MAX as usize;
    let depth = window.taps() * padded;
    if [pixels, large, window.out_rows(), columns, depth]
        .iter()
        .any(|&n| n > most - 4096)
    {
        return Err(TensorError::invalid(OP, "too large for a GPU"));
    }
    if x.len() != pixels * window.channels {
        let reason = format!(
            "{} elements for {pixels} pixels of {}",
            x.len(),
            window.channels
        );
        return Err(TensorError::invalid(OP, reason));
    }
    Ok(())
}

/// (items, rows, inner) times (items, inner, columns), item by item.
pub(crate) fn matmul(
    a: &GpuBuffer,
    b: &GpuBuffer,
    [items, rows, inner, columns]: [usize; 4],
) -> Result<GpuBuffer> {
    let device = a.card();
    let most = i32::MAX as usize - 4096;
    if [items, rows, inner, columns].iter().any(|&n| n > most) {
        return Err(TensorError::invalid("matmul", "too large for a GPU"));
    }
    let out = device.buffer(items * rows * columns, a.format())?;
    if out.len() > 0 {
        let matmul = Matmul {
            a: a.into(),
            b: b.into(),
            out: (&out).into(),
            items: items as i32,
            m: rows as i32,
            n: columns as i32,
            k: inner as i32,
        };
        let tiles = rows.div_ceil(64) * columns.div_ceil(64);
        let shape = Shape::new([tiles as u32, items.min(65535) as u32, 1], 256);
        device.launch(a.format(), shape, matmul)?;
    }
    Ok(out)
}

#[cfg(test)]
#[path = "product_tuning.rs"]
mod tuning;
