//! Products whose operands are bytes: inputs are rounded as the format of the weight wants, each row with a scale of its own.

use super::super::norm::row_norm_to_bytes;
use super::super::weights::{self, Bytes, Elements, Operand};
use super::{Product, Scales, TrailingColumns, Treatment, Window, has_tensor_cores};
use crate::cuda::launches::bytes::{ToBytes, ToBytesKernel};
use crate::cuda::{Address, CudaValue, GpuBuffer, OnCard, Scratch, Shape};
use crate::error::Result;
use crate::gpu::{Finish, RowNorm};

/// The input of a product.
#[derive(Clone, Copy)]
pub(super) enum Input<'a> {
    /// A matrix, whose last channels may be elsewhere.
    Matrix(&'a GpuBuffer, Option<TrailingColumns<'a>>),
    /// The norm of a matrix.
    Normed(&'a GpuBuffer, RowNorm<'a>),
}

/// The product of an input. None where the weight, the input or the card is not made for it.
pub(super) fn single(
    weight: &CudaValue,
    input: Input<'_>,
    window: &Window,
    treatment: Treatment<'_>,
    finish: Finish<'_>,
    geglu: bool,
) -> Result<Option<GpuBuffer>> {
    let (x, behind) = match input {
        Input::Matrix(x, behind) => (x, behind),
        Input::Normed(x, _) => (x, None),
    };
    let (device, format) = (x.card(), x.format());
    let shape = weights::shape(weight)?;
    let (rows, channels) = (window.out_rows(), window.channels);
    let out_columns = if geglu { shape.out / 2 } else { shape.out };
    let possible = has_tensor_cores(device, format) && !treatment.exact && window.is_plain();
    let whole = channels.is_multiple_of(16) && out_columns.is_multiple_of(8);
    let parts = behind.map_or(channels, |b| channels - b.columns.min(channels));
    let apart = behind.is_none_or(|b| {
        let sizes = [parts, b.row, b.first];
        b.wide.format() == format && sizes.iter().all(|n| n.is_multiple_of(8))
    });
    let rotation = weights::rotation(weight);
    let room = rotation == 0 || shared(rotation, channels) <= device.shared_limit();
    let early = matches!(input, Input::Normed(..));
    let plain = !early || (rotation == 0 && treatment.scale.is_none());
    let same = x.len() == rows * parts && shape.channels * shape.taps == channels;
    if !possible || !whole || !apart || !room || !same || !plain || rows == 0 || rows > 1 << 30 {
        return Ok(None);
    }
    let Some(bytes) = weights::bytes(weight)? else {
        return Ok(None);
    };
    let integer = matches!(bytes.operand, Operand::Whole(_));
    if !integer && (!device.has_fp8() || rotation > 0) {
        return Ok(None);
    }
    let made = [
        device.scratch(rows * channels)?,
        device.scratch(rows * size_of::<f32>())?,
    ];
    match input {
        Input::Matrix(..) => {
            let sizes = (rows, parts, channels);
            round(x, behind, sizes, treatment, &bytes, rotation, &made)?;
        }
        Input::Normed(x, norm) => {
            let levels = match bytes.operand {
                Operand::Whole(levels) => Some(levels),
                Operand::E4m3 | Operand::E5m2 => None,
            };
            if !row_norm_to_bytes(x, norm, levels, made.each_ref().map(Address::address))? {
                return Ok(None);
            }
        }
    }
    let [codes, scales] = made;
    let out = device.buffer(rows * out_columns, format)?;
    let weight = Elements::Pairs(bytes.codes, format);
    let window = Window::rows(rows, channels / 2);
    let product = Product {
        x: codes.address(),
        geglu,
        bytes: Some(Scales {
            operand: bytes.operand,
            rows: scales.address(),
            columns: bytes.scales,
        }),
        ..Product::of(x, (&weight, shape.out), window, finish)
    };
    if device.hopper() {
        product.start_hopper(&out)?;
    } else {
        product.start_mma(&out)?;
    }
    Ok(Some(out))
}

/// Bytes of shared memory: a word for each of eight warps, and a row of floats that is rotated.
fn shared(rotation: usize, channels: usize) -> u32 {
    let row = if rotation > 0 { channels } else { 0 };
    4 * (row as u32 + 8)
}

/// Writes rows as bytes, and their scales.
fn round(
    x: &GpuBuffer,
    behind: Option<TrailingColumns<'_>>,
    (rows, left, channels): (usize, usize, usize),
    treatment: Treatment<'_>,
    bytes: &Bytes,
    rotation: usize,
    made: &[Scratch; 2],
) -> Result<()> {
    let device = x.card();
    let (kernel, levels) = match (bytes.operand, rotation) {
        (Operand::Whole(levels), 0) => (ToBytesKernel::WholeNumbers, levels),
        (Operand::Whole(levels), _) => (ToBytesKernel::RotatedWholeNumbers, levels),
        (Operand::E4m3 | Operand::E5m2, _) => (ToBytesKernel::E4m3, 0.0),
    };
    let to_bytes = ToBytes {
        kernel,
        a: x.into(),
        b: behind.map(TrailingColumns::slice).into(),
        factors: treatment.scale.into(),
        to: (&made[0]).into(),
        scales: (&made[1]).into(),
        left: left as i32,
        right: (channels - left) as i32,
        step: behind.map_or(0, |behind| behind.row as i64),
        levels,
        group: rotation as i32,
    };
    let shape = Shape::row(rows as u32, 256).with_shared(shared(rotation, channels));
    device.launch(x.format(), shape, to_bytes)
}
