//! Weights in the elements that products read, and inputs made ready for them.

use std::sync::Arc;

use super::product::Window;
use crate::cuda::{
    Address, Args, CudaDevice, CudaValue, Form, Format, GpuBuffer, Kernel, MatrixShape, OnCard,
    Scratch, cuda_value,
};
use crate::dtype::Dtype;
use crate::error::{Result, TensorError};
use crate::formats::{Levels, RowFormat, RowKind, ScaleNumber};
use crate::gpu::GpuWeight;

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
    let none = || TensorError::invalid(OP, "the value is no matrix");
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
pub(super) fn joined(
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
    let name = match format.kind() {
        RowKind::Int4 { .. } => "levels_int4",
        RowKind::Grid(_) => "levels_grid",
        _ => return Ok(None),
    };
    let device = weight.device();
    let made = [
        device.scratch(out * channels)?,
        device.scratch(out * size_of::<f32>())?,
    ];
    let args = Args::new()
        .pointer(weight.address())
        .pointer(made[0].address())
        .pointer(made[1].address())
        .int(out as i32)
        .int(channels as i32);
    let threads = out * channels / 4;
    start(device, Format::F32, name, threads, &rows(args, format))?;
    Ok(Some(Bytes {
        operand,
        codes: made[0].address(),
        scales: made[1].address(),
        _made: Some(made),
    }))
}

/// The kernel that reads a format; none for those that the processor has to read.
fn reader(dtype: Dtype, apart: bool) -> Option<&'static str> {
    Some(match dtype {
        Dtype::F32 => "from_f32",
        Dtype::F16 => "from_f16",
        Dtype::Bf16 => "from_bf16",
        Dtype::F8E4M3 => "from_e4m3",
        Dtype::F8E5M2 => "from_e5m2",
        Dtype::Q8_0 => "from_q8_0",
        Dtype::Q4_0 => "from_q4_0",
        Dtype::Q4_1 => "from_q4_1",
        Dtype::Q5_0 => "from_q5_0",
        Dtype::Q5_1 => "from_q5_1",
        Dtype::Q2K => "from_q2_k",
        Dtype::Q3K => "from_q3_k",
        Dtype::Q4K => "from_q4_k",
        Dtype::Q5K => "from_q5_k",
        Dtype::Q6K => "from_q6_k",
        Dtype::Q8K => "from_q8_k",
        Dtype::Tq1_0 => "from_tq1_0",
        Dtype::Tq2_0 => "from_tq2_0",
        Dtype::Iq4Nl => "from_iq4_nl",
        Dtype::Iq4Xs => "from_iq4_xs",
        Dtype::Mxfp4 => "from_mxfp4",
        Dtype::GgmlNvfp4 => "from_ggml_nvfp4",
        Dtype::Rows(format) if apart => match format.kind() {
            RowKind::F8E4M3 => "from_apart_e4m3",
            RowKind::F8E5M2 => "from_apart_e5m2",
            RowKind::Int8 => "from_apart_int8",
            _ => return None,
        },
        Dtype::Rows(format) => match format.kind() {
            RowKind::F8E4M3 => "from_rows_e4m3",
            RowKind::F8E5M2 => "from_rows_e5m2",
            RowKind::Int8 => "from_rows_int8",
            RowKind::Int4 { .. } => "from_rows_int4",
            RowKind::Nvfp4 => "from_rows_nvfp4",
            RowKind::Mxfp8 => "from_rows_mxfp8",
            RowKind::Grid(_) => "from_rows_grid",
            RowKind::Affine(_) => "from_rows_affine",
        },
        _ => return None,
    })
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
    let Some(name) = reader(weight.dtype(), weight.is_apart()) else {
        return decode_by_processor(weight, to, padded, (all, first));
    };
    let args = Args::new().pointer(weight.address()).pointer(to.address());
    let args = sizes(args, shape, padded, (all, first));
    let args = match weight.dtype() {
        Dtype::Rows(_) if weight.is_apart() => args,
        Dtype::Rows(format) => rows(args, format),
        _ => args.int(i32::from(weight.taps_first())),
    };
    start(device, to.format(), name, pairs, &args)
}

fn sizes(args: Args, shape: MatrixShape, padded: usize, (all, first): (usize, usize)) -> Args {
    args.int(shape.out as i32)
        .int(shape.channels as i32)
        .int(shape.taps as i32)
        .int(padded as i32)
        .int(all as i32)
        .int(first as i32)
}

/// Where the parts of quantised rows are.
fn rows(args: Args, format: RowFormat) -> Args {
    let [group, bits, levels, corrected, number] = match format.kind() {
        RowKind::Grid(grid) => {
            let levels = match grid.levels {
                Levels::Even => 0,
                Levels::Usual => 1,
                Levels::Own => 2,
            };
            let number = if grid.wide_scales { 4 } else { 1 };
            let corrected = i32::from(grid.corrected);
            [
                grid.group.into(),
                grid.bits.into(),
                levels,
                corrected,
                number,
            ]
        }
        RowKind::Affine(affine) => {
            let number = match affine.scale {
                ScaleNumber::F16 => 0,
                ScaleNumber::Bf16 => 1,
                ScaleNumber::F32 => 2,
            };
            [affine.group.into(), 4, 0, 0, number]
        }
        _ => [1, 0, 0, 0, 0],
    };
    args.int(format.row_bytes() as i32)
        .int(format.code_bytes() as i32)
        .int(format.group_bytes() as i32)
        .int(format.groups() as i32)
        .int(group)
        .int(bits)
        .int(levels)
        .int(corrected)
        .int(number)
}

/// Formats that have no kernel: read by the processor, copied as f32.
fn decode_by_processor(
    weight: &CudaValue,
    to: &GpuBuffer,
    padded: usize,
    (all, first): (usize, usize),
) -> Result<()> {
    let device = weight.device();
    let values = weight.stored()?.to_f32()?;
    let plain = device.upload_values(values.data(), Format::F32)?;
    let shape = shape(weight)?;
    let args = Args::new().pointer(plain.address()).pointer(to.address());
    let args = sizes(args, shape, padded, (all, first)).int(0);
    let pairs = shape.out * shape.taps * padded.div_ceil(2);
    start(device, to.format(), "from_f32", pairs, &args)
}

fn start(
    device: &CudaDevice,
    format: Format,
    name: &'static str,
    threads: usize,
    args: &Args,
) -> Result<()> {
    let kernel = Kernel {
        module: "weights",
        format,
        name,
    };
    let blocks = threads.div_ceil(256).min(1 << 15) as u32;
    device.launch(kernel, [blocks, 1, 1], 256, 0, args)
}

/// How the input of a product differs from what the layer was given.
pub(super) struct Prepared {
    pub(super) pictures: usize,
    pub(super) from: (usize, usize),
    pub(super) to: (usize, usize),
    pub(super) channels: usize,
    pub(super) padded: usize,
    /// Address of a factor for each channel.
    pub(super) scale: Option<u64>,
}

/// Pictures with more channels, larger, and scaled.
pub(super) fn prepared(x: &GpuBuffer, how: &Prepared) -> Result<GpuBuffer> {
    let device = x.card();
    let pixels = how.pictures * how.to.0 * how.to.1;
    let out = device.buffer(pixels * how.padded, x.format())?;
    if out.len() == 0 {
        return Ok(out);
    }
    let bytes = how.channels * x.format().size();
    let aligned = bytes.is_multiple_of(16) && how.padded == how.channels && how.scale.is_none();
    let places = |args: Args| {
        args.int(how.from.0 as i32)
            .int(how.from.1 as i32)
            .int(how.to.0 as i32)
            .int(how.to.1 as i32)
    };
    let args = Args::new().pointer(x.address()).pointer(out.address());
    if aligned {
        let count = pixels * bytes / 16;
        let args = places(args.int((bytes / 16) as i32)).long(count as i64);
        start(device, x.format(), "enlarge", count, &args)?;
    } else {
        let args = args
            .pointer(how.scale.unwrap_or(0))
            .int(how.channels as i32)
            .int(how.padded as i32);
        let args = places(args).long(out.len() as i64);
        start(device, x.format(), "prepare", out.len(), &args)?;
    }
    Ok(out)
}

/// Groups of channels rotated as those of a rotated weight.
pub(super) fn rotated(x: &GpuBuffer, group: usize) -> Result<GpuBuffer> {
    if group > 4096 {
        let reason = format!("groups of {group} columns are too large for a GPU");
        return Err(TensorError::invalid(OP, reason));
    }
    let out = x.card().buffer(x.len(), x.format())?;
    let groups = x.len() / group;
    if groups > 0 {
        let kernel = Kernel {
            module: "weights",
            format: x.format(),
            name: "rotate",
        };
        let args = Args::new()
            .pointer(x.address())
            .pointer(out.address())
            .int(group as i32)
            .long(groups as i64);
        let threads = (group / 4).clamp(32, 1024) as u32;
        let blocks = groups.min(1 << 16) as u32;
        x.card().launch(kernel, [blocks, 1, 1], threads, 0, &args)?;
    }
    Ok(out)
}

/// Rows of so many columns, each rounded to whole numbers of up to `levels` times a scale of its own.
pub(super) fn rounded(x: &GpuBuffer, columns: usize, levels: f32) -> Result<GpuBuffer> {
    let out = x.card().buffer(x.len(), x.format())?;
    if x.len() > 0 {
        let rows = x.len() / columns;
        let kernel = Kernel {
            module: "weights",
            format: x.format(),
            name: "round_rows",
        };
        let args = Args::new()
            .pointer(x.address())
            .pointer(out.address())
            .int(columns as i32)
            .float(levels)
            .long(rows as i64);
        let blocks = rows.min(1 << 20) as u32;
        x.card().launch(kernel, [blocks, 1, 1], 256, 0, &args)?;
    }
    Ok(out)
}

/// What the kernels of a window see of at most 8 channels, position by position: (rows of the result, positions * 8).
pub(super) fn gathered(x: &GpuBuffer, window: &Window) -> Result<GpuBuffer> {
    let [count, height, width] = window.out;
    let [_, kernel_height, kernel_width] = window.kernel;
    let all = count * height * width * kernel_height * kernel_width;
    let to = x.card().buffer(8 * all, x.format())?;
    let args = Args::new().pointer(x.address()).pointer(to.address());
    let args = [
        window.channels,
        window.size.0,
        window.size.1,
        height,
        width,
        kernel_height,
        kernel_width,
        window.stride,
        window.above,
        window.left,
        all,
    ]
    .iter()
    .fold(args, |args, &n| args.int(n as i32));
    let kernel = Kernel {
        module: "weights",
        format: x.format(),
        name: "gather",
    };
    let grid = [all.div_ceil(256) as u32, 1, 1];
    x.card().launch(kernel, grid, 256, 0, &args)?;
    Ok(to)
}

/// The share of free memory that a form of kernels may take, which is only there to save time.
const SPARE: u64 = 16;

/// 3x3 kernels over a picture of twice the size as four 2x2 kernels over the picture: (4, out, 4, channels). Those of a weight that `stays` are kept beside it where
/// there is plenty of room.
pub(super) fn halved(
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
        let plenty = || device.room() / SPARE >= (len * format.size()) as u64;
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
    let args = Args::new()
        .pointer(kernels.address())
        .pointer(to.address())
        .int(out as i32)
        .int(channels as i32);
    let kernel = Kernel {
        module: "weights",
        format: to.format(),
        name: "halve_kernels",
    };
    // Channels are a multiple of 8 here, and a thread takes 16 bytes of them.
    let threads = out * channels * to.format().size() / 16;
    let grid = [threads.div_ceil(256) as u32, 4, 1];
    device.launch(kernel, grid, 256, 0, &args)
}
