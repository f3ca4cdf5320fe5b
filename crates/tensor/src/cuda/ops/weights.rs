//! Weights in the elements that products read, and inputs made ready for them.

use std::sync::Arc;

use super::product::Window;
use super::whole;
use crate::cuda::launch::FormattedLaunch;
use crate::cuda::launches::weights::{
    Enlarge, FromApart, FromApartKernel, FromPlain, FromPlainKernel, FromRows, FromRowsKernel,
    Gather, HalveKernels, Levels as LevelsLaunch, LevelsKernel, Prepare, Rotate, RoundRows,
};
use crate::cuda::launches::{RowLayout, WeightSizes};
use crate::cuda::tuned::SPARE_MEMORY;
use crate::cuda::{
    Address, CudaDevice, CudaValue, Form, Format, GpuBuffer, MatrixShape, OnCard, Pointer, Scratch,
    Shape, cuda_value,
};
use crate::dtype::Dtype;
use crate::error::{Result, TensorError};
use crate::formats::{Levels, RowFormat, RowKind, ScaleNumber};
use crate::gpu::{GpuSlice, GpuWeight};

const OP: &str = "weight";

/// A weight as (out, position, channel): in the slot of its layer where it is so there, or made for one use.
pub(super) enum Elements<'a> {
    Kept(&'a CudaValue, Format),
    Made(GpuBuffer),
    /// Another form of one, kept beside it.
    Form(Arc<GpuBuffer>),
    /// Somewhere else, two bytes being one element of this format.
    Pairs(u64, Format),
}

impl Elements<'_> {
    pub(super) fn address(&self) -> u64 {
        match self {
            Self::Kept(value, _) => value.address(),
            Self::Made(buffer) => buffer.address(),
            Self::Form(buffer) => buffer.address(),
            Self::Pairs(address, _) => *address,
        }
    }

    pub(super) fn format(&self) -> Format {
        match self {
            Self::Kept(_, format) | Self::Pairs(_, format) => *format,
            Self::Made(buffer) => buffer.format(),
            Self::Form(buffer) => buffer.format(),
        }
    }
}

/// The sizes of a layer's matrix.
pub(super) fn shape(weight: &CudaValue) -> Result<MatrixShape> {
    let none = || TensorError::invalid(OP, "the value is not a matrix");
    weight.matrix().ok_or_else(none)
}

/// Columns that were rotated together; 0 for none. Inputs of such a weight are to be rotated.
pub(super) fn rotation(weight: &CudaValue) -> usize {
    match weight.dtype() {
        Dtype::Rows(format) => format.rotation(),
        _ => 0,
    }
}

/// The largest number that inputs are rounded to, of formats that have them rounded: see `cpu/integer.rs`.
pub(super) fn input_levels(weight: &CudaValue) -> Option<f32> {
    match weight.dtype() {
        Dtype::Rows(format) if format.is_integer() && weight.matrix()?.taps == 1 => {
            Some(format.input_levels())
        }
        _ => None,
    }
}

/// The elements where they are, if they have a format of elements and the order of the kernels.
pub(super) fn in_place(weight: &CudaValue) -> Result<Option<Format>> {
    let MatrixShape { channels, taps, .. } = shape(weight)?;
    let format = match weight.dtype() {
        Dtype::F32 => Format::F32,
        Dtype::F16 => Format::F16,
        Dtype::Bf16 => Format::Bf16,
        _ => return Ok(None),
    };
    let ordered = taps == 1 || channels == 1 || weight.taps_first();
    Ok(ordered.then_some(format))
}

/// The elements in a format, with channels padded by zeros.
pub(super) fn elements(weight: &CudaValue, format: Format, padded: usize) -> Result<Elements<'_>> {
    let shape = shape(weight)?;
    if padded == shape.channels && in_place(weight)? == Some(format) {
        return Ok(Elements::Kept(weight, format));
    }
    let count = shape.out * shape.taps * padded;
    let to = weight.device().buffer(count, format)?;
    decode(weight, &to, padded, (shape.taps, 0))?;
    Ok(Elements::Made(to))
}

/// The kernels of several values one after the other for each output: (out, value, position, channel).
pub(super) fn join_taps(
    weights: &[&dyn GpuWeight],
    device: &CudaDevice,
    format: Format,
    padded: usize,
) -> Result<GpuBuffer> {
    let shapes = weights.iter().map(|weight| shape(cuda_value(*weight)?));
    let shapes: Vec<MatrixShape> = shapes.collect::<Result<_>>()?;
    let out = shapes.first().map_or(0, |shape| shape.out);
    let taps = shapes.iter().map(|shape| shape.taps).sum();
    let to = device.buffer(out * taps * padded, format)?;
    let mut first = 0;
    for (weight, shape) in weights.iter().zip(shapes) {
        decode(cuda_value(*weight)?, &to, padded, (taps, first))?;
        first += shape.taps;
    }
    Ok(to)
}

/// What products of bytes multiply.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Operand {
    /// Numbers of four bits of exponent and three of mantissa.
    E4m3,
    /// Such inputs with weights of five and two bits.
    E5m2,
    /// Whole numbers of up to so much.
    Whole(f32),
}

/// A weight as bytes: (out, columns), and a scale in f32 for each row.
pub(super) struct Bytes {
    pub(super) operand: Operand,
    pub(super) codes: u64,
    pub(super) scales: u64,
    /// Where they were made for one use.
    _made: Option<[Scratch; 2]>,
}

/// The bytes of a weight, of formats that are multiplied as such.
pub(super) fn bytes(weight: &CudaValue) -> Result<Option<Bytes>> {
    let Dtype::Rows(format) = weight.dtype() else {
        return Ok(None);
    };
    let MatrixShape { out, channels, .. } = shape(weight)?;
    let operand = match format.kind() {
        _ if format.is_integer() => Operand::Whole(format.input_levels()),
        RowKind::F8E4M3 if format.may_round() => Operand::E4m3,
        RowKind::F8E5M2 if format.may_round() => Operand::E5m2,
        _ => return Ok(None),
    };
    if weight.is_apart() {
        return Ok(Some(Bytes {
            operand,
            codes: weight.address(),
            scales: weight.address() + (out * channels) as u64,
            _made: None,
        }));
    }
    let kernel = match format.kind() {
        RowKind::Int4 { .. } => LevelsKernel::LevelsInt4,
        RowKind::Grid(_) => LevelsKernel::LevelsGrid,
        _ => return Ok(None),
    };
    let device = weight.device();
    let made = [
        device.scratch(out * channels)?,
        device.scratch(out * size_of::<f32>())?,
    ];
    let levels = LevelsLaunch {
        kernel,
        from: Pointer::at(weight.address()),
        to: (&made[0]).into(),
        scales: (&made[1]).into(),
        out: out as i32,
        columns: channels as i32,
        layout: layout(format),
    };
    start(device, Format::F32, out * channels / 4, levels)?;
    Ok(Some(Bytes {
        operand,
        codes: made[0].address(),
        scales: made[1].address(),
        _made: Some(made),
    }))
}

/// The kernel that reads a format; none for those that the processor has to read.
enum Reader {
    Plain(FromPlainKernel),
    Apart(FromApartKernel),
    Rows(FromRowsKernel, RowFormat),
}

fn reader(dtype: Dtype, apart: bool) -> Option<Reader> {
    use FromPlainKernel as Plain;
    let plain = match dtype {
        Dtype::F32 => Plain::FromF32,
        Dtype::F16 => Plain::FromF16,
        Dtype::Bf16 => Plain::FromBf16,
        Dtype::F8E4M3 => Plain::FromE4m3,
        Dtype::F8E5M2 => Plain::FromE5m2,
        Dtype::Q8_0 => Plain::FromQ8_0,
        Dtype::Q4_0 => Plain::FromQ4_0,
        Dtype::Q4_1 => Plain::FromQ4_1,
        Dtype::Q5_0 => Plain::FromQ5_0,
        Dtype::Q5_1 => Plain::FromQ5_1,
        Dtype::Q2K => Plain::FromQ2K,
        Dtype::Q3K => Plain::FromQ3K,
        Dtype::Q4K => Plain::FromQ4K,
        Dtype::Q5K => Plain::FromQ5K,
        Dtype::Q6K => Plain::FromQ6K,
        Dtype::Q8K => Plain::FromQ8K,
        Dtype::Tq1_0 => Plain::FromTq1_0,
        Dtype::Tq2_0 => Plain::FromTq2_0,
        Dtype::Iq4Nl => Plain::FromIq4Nl,
        Dtype::Iq4Xs => Plain::FromIq4Xs,
        Dtype::Mxfp4 => Plain::FromMxfp4,
        Dtype::GgmlNvfp4 => Plain::FromGgmlNvfp4,
        Dtype::Rows(format) if apart => {
            return Some(Reader::Apart(match format.kind() {
                RowKind::F8E4M3 => FromApartKernel::FromApartE4m3,
                RowKind::F8E5M2 => FromApartKernel::FromApartE5m2,
                RowKind::Int8 => FromApartKernel::FromApartInt8,
                _ => return None,
            }));
        }
        Dtype::Rows(format) => {
            let kernel = match format.kind() {
                RowKind::F8E4M3 => FromRowsKernel::FromRowsE4m3,
                RowKind::F8E5M2 => FromRowsKernel::FromRowsE5m2,
                RowKind::Int8 => FromRowsKernel::FromRowsInt8,
                RowKind::Int4 { .. } => FromRowsKernel::FromRowsInt4,
                RowKind::Nvfp4 => FromRowsKernel::FromRowsNvfp4,
                RowKind::Mxfp8 => FromRowsKernel::FromRowsMxfp8,
                RowKind::Grid(_) => FromRowsKernel::FromRowsGrid,
                RowKind::Affine(_) => FromRowsKernel::FromRowsAffine,
            };
            return Some(Reader::Rows(kernel, format));
        }
        _ => return None,
    };
    Some(Reader::Plain(plain))
}

/// Writes a weight to its place, the taps from `first` on of `all`, in a buffer.
fn decode(
    weight: &CudaValue,
    to: &GpuBuffer,
    padded: usize,
    (all, first): (usize, usize),
) -> Result<()> {
    let shape = shape(weight)?;
    let device = weight.device();
    let pairs = shape.out * shape.taps * padded.div_ceil(2);
    if u32::try_from(pairs).is_err() {
        return Err(TensorError::invalid(OP, "too many elements for a GPU"));
    }
    if pairs == 0 {
        return Ok(());
    }
    let weight_sizes = WeightSizes {
        out: shape.out as i32,
        channels: shape.channels as i32,
        taps: shape.taps as i32,
        padded: padded as i32,
        all_taps: all as i32,
        first: first as i32,
    };
    let (from, target, format) = (Pointer::at(weight.address()), to.into(), to.format());
    match reader(weight.dtype(), weight.is_apart()) {
        Some(Reader::Plain(kernel)) => {
            let read = FromPlain {
                kernel,
                from,
                to: target,
                sizes: weight_sizes,
                taps_first: i32::from(weight.taps_first()),
            };
            start(device, format, pairs, read)
        }
        Some(Reader::Apart(kernel)) => {
            let read = FromApart {
                kernel,
                from,
                to: target,
                sizes: weight_sizes,
            };
            start(device, format, pairs, read)
        }
        Some(Reader::Rows(kernel, rows)) => {
            let read = FromRows {
                kernel,
                from,
                to: target,
                sizes: weight_sizes,
                layout: layout(rows),
            };
            start(device, format, pairs, read)
        }
        // Formats that have no kernel: read by the processor, copied as f32.
        None => {
            let values = weight.stored()?.to_f32()?;
            let plain = device.upload_values(values.data(), Format::F32)?;
            let read = FromPlain {
                kernel: FromPlainKernel::FromF32,
                from: plain.slice().into(),
                to: target,
                sizes: weight_sizes,
                taps_first: 0,
            };
            start(device, format, pairs, read)
        }
    }
}

/// Where the parts of quantised rows are.
fn layout(format: RowFormat) -> RowLayout {
    let plain = RowLayout {
        row_bytes: format.row_bytes() as i32,
        code_bytes: format.code_bytes() as i32,
        group_bytes: format.group_bytes() as i32,
        groups: format.groups() as i32,
        group: 1,
        bits: 0,
        levels: 0,
        corrected: 0,
        number: 0,
    };
    match format.kind() {
        RowKind::Grid(grid) => RowLayout {
            group: grid.group.into(),
            bits: grid.bits.into(),
            levels: match grid.levels {
                Levels::Even => 0,
                Levels::Usual => 1,
                Levels::Own => 2,
            },
            corrected: i32::from(grid.corrected),
            number: if grid.wide_scales { 4 } else { 1 },
            ..plain
        },
        RowKind::Affine(affine) => RowLayout {
            group: affine.group.into(),
            bits: 4,
            number: match affine.scale {
                ScaleNumber::F16 => 0,
                ScaleNumber::Bf16 => 1,
                ScaleNumber::F32 => 2,
            },
            ..plain
        },
        _ => plain,
    }
}

fn start(
    device: &CudaDevice,
    format: Format,
    threads: usize,
    launch: impl FormattedLaunch,
) -> Result<()> {
    let blocks = threads.div_ceil(256).min(1 << 15) as u32;
    device.launch(format, Shape::row(blocks, 256), launch)
}

/// How the input of a product differs from what the layer was given.
pub(super) struct InputChange<'a> {
    pub(super) pictures: usize,
    pub(super) from: (usize, usize),
    pub(super) to: (usize, usize),
    pub(super) channels: usize,
    pub(super) padded: usize,
    /// A factor for each channel.
    pub(super) scale: Option<GpuSlice<'a>>,
}

/// Pictures with more channels, larger, and scaled.
pub(super) fn prepare_input(x: &GpuBuffer, how: &InputChange<'_>) -> Result<GpuBuffer> {
    let device = x.card();
    let pixels = how.pictures * how.to.0 * how.to.1;
    let out = device.buffer(pixels * how.padded, x.format())?;
    if out.len() == 0 {
        return Ok(out);
    }
    let bytes = how.channels * x.format().size();
    let aligned = bytes.is_multiple_of(16) && how.padded == how.channels && how.scale.is_none();
    let [(in_height, in_width), (height, width)] =
        [how.from, how.to].map(|(height, width)| (height as i32, width as i32));
    if aligned {
        let count = pixels * bytes / 16;
        let enlarge = Enlarge {
            from: x.into(),
            to: (&out).into(),
            chunks: (bytes / 16) as i32,
            in_height,
            in_width,
            height,
            width,
            count: whole(count),
        };
        start(device, x.format(), count, enlarge)?;
    } else {
        let prepare = Prepare {
            from: x.into(),
            to: (&out).into(),
            scale: how.scale.into(),
            channels: how.channels as i32,
            padded: how.padded as i32,
            in_height,
            in_width,
            height,
            width,
            count: whole(out.len()),
        };
        start(device, x.format(), out.len(), prepare)?;
    }
    Ok(out)
}

/// Groups of channels rotated as those of a rotated weight.
pub(super) fn rotate_groups(x: &GpuBuffer, group: usize) -> Result<GpuBuffer> {
    if group > 4096 {
        let reason = format!("groups of {group} columns are too large for a GPU");
        return Err(TensorError::invalid(OP, reason));
    }
    let out = x.card().buffer(x.len(), x.format())?;
    let groups = x.len() / group;
    if groups > 0 {
        let rotate = Rotate {
            from: x.into(),
            to: (&out).into(),
            group: group as i32,
            groups: whole(groups),
        };
        let threads = (group / 4).clamp(32, 1024) as u32;
        let blocks = groups.min(1 << 16) as u32;
        x.card()
            .launch(x.format(), Shape::row(blocks, threads), rotate)?;
    }
    Ok(out)
}

/// Rows of so many columns, each rounded to whole numbers of up to `levels` times a scale of its own.
pub(super) fn round_rows(x: &GpuBuffer, columns: usize, levels: f32) -> Result<GpuBuffer> {
    let out = x.card().buffer(x.len(), x.format())?;
    if x.len() > 0 {
        let rows = x.len() / columns;
        let round = RoundRows {
            from: x.into(),
            to: (&out).into(),
            columns: columns as i32,
            levels,
            rows: whole(rows),
        };
        let blocks = rows.min(1 << 20) as u32;
        x.card()
            .launch(x.format(), Shape::row(blocks, 256), round)?;
    }
    Ok(out)
}

/// What the kernels of a window see of at most 8 channels, position by position: (rows of the result, positions * 8).
pub(super) fn gather_windows(x: &GpuBuffer, window: &Window) -> Result<GpuBuffer> {
    let [count, height, width] = window.out;
    let [_, kernel_height, kernel_width] = window.kernel;
    let all = count * height * width * kernel_height * kernel_width;
    let to = x.card().buffer(8 * all, x.format())?;
    let gather = Gather {
        from: x.into(),
        to: (&to).into(),
        channels: window.channels as i32,
        in_height: window.size.0 as i32,
        in_width: window.size.1 as i32,
        height: height as i32,
        width: width as i32,
        kernel_height: kernel_height as i32,
        kernel_width: kernel_width as i32,
        stride: window.stride as i32,
        above: window.above as i32,
        left: window.left as i32,
        all: all as i32,
    };
    let shape = Shape::row(all.div_ceil(256) as u32, 256);
    x.card().launch(x.format(), shape, gather)?;
    Ok(to)
}

/// 3x3 kernels over a picture of twice the size as four 2x2 kernels over the picture: (4, out, 4, channels). Those of a weight that `stays` are kept beside it where
/// there is plenty of room.
pub(super) fn halve_kernels(
    kernels: &Elements<'_>,
    device: &CudaDevice,
    [out, channels]: [usize; 2],
    stays: bool,
) -> Result<Elements<'static>> {
    let len = 16 * out * channels;
    if let Elements::Kept(value, format) = kernels
        && stays
    {
        let form = Form {
            layout: "halved",
            format: *format,
        };
        let plenty = || device.room() / SPARE_MEMORY >= (len * format.size()) as u64;
        let made = value.form_if(form, plenty, || {
            let to = device.lasting(len, *format)?;
            halve(kernels, device, [out, channels], &to)?;
            Ok(to)
        })?;
        if let Some(made) = made {
            return Ok(Elements::Form(made));
        }
    }
    let to = device.buffer(len, kernels.format())?;
    halve(kernels, device, [out, channels], &to)?;
    Ok(Elements::Made(to))
}

fn halve(
    kernels: &Elements<'_>,
    device: &CudaDevice,
    [out, channels]: [usize; 2],
    to: &GpuBuffer,
) -> Result<()> {
    let halve = HalveKernels {
        from: Pointer::at(kernels.address()),
        to: to.into(),
        out: out as i32,
        channels: channels as i32,
    };
    // Channels are a multiple of 8 here, and a thread takes 16 bytes of them.
    let threads = out * channels * to.format().size() / 16;
    let shape = Shape::new([threads.div_ceil(256) as u32, 4, 1], 256);
    device.launch(to.format(), shape, halve)
}
