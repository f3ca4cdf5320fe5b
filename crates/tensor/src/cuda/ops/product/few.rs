//! A few rows through many layers at once: what a noise level becomes in each block of a network.

use super::super::weights;
use crate::cuda::launches::few_rows::FewRows;
use crate::cuda::{Address, GpuBuffer, OnCard, Shape, cuda_value};
use crate::error::{Result, TensorError};
use crate::gpu::WeightWithBias;

/// Most layers of one kernel: as in few_rows.cu.
const MOST_LAYERS: usize = 32;

/// `rows` rows times each weight, all of which have the format of the input and as many channels.
pub(crate) fn few_rows(
    layers: &[WeightWithBias<'_>],
    x: &GpuBuffer,
    rows: usize,
) -> Result<Vec<GpuBuffer>> {
    let mut all = Vec::with_capacity(layers.len());
    for layers in layers.chunks(MOST_LAYERS) {
        all.extend(start(layers, x, rows)?);
    }
    Ok(all)
}

fn start(layers: &[WeightWithBias<'_>], x: &GpuBuffer, rows: usize) -> Result<Vec<GpuBuffer>> {
    let (device, format) = (x.card(), x.format());
    let columns = x.len() / rows.max(1);
    let mut list = [0; 4 * MOST_LAYERS];
    let mut found = Vec::with_capacity(layers.len());
    let mut end = 0;
    for ((weight, bias), to) in layers.iter().zip(list.chunks_exact_mut(4)) {
        let weight = cuda_value(*weight)?;
        let shape = weights::shape(weight)?;
        if shape.channels != columns || weights::in_place(weight)? != Some(format) {
            return Err(TensorError::invalid(
                super::OP,
                "layers differ in their inputs",
            ));
        }
        let out = device.buffer(rows * shape.out, format)?;
        end += shape.out;
        let sizes = shape.out as u64 | (end as u64) << 32;
        to.copy_from_slice(&[
            weight.address(),
            bias.map_or(0, |bias| bias.address()),
            out.address(),
            sizes,
        ]);
        found.push(out);
    }
    let few = FewRows {
        x: x.into(),
        rows: rows as i32,
        columns: columns as i32,
        count: layers.len() as i32,
        layers: list,
    };
    let bytes = (end * columns * format.size()) as f64;
    crate::cuda::work(2.0 * (rows * end * columns) as f64, bytes);
    device.launch(format, Shape::row(end.div_ceil(8) as u32, 256), few)?;
    Ok(found)
}
