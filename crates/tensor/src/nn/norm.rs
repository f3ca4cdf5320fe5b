//! Normalisation layers and token embeddings.

use rayon::prelude::*;

use super::misc::{Act, last};
use crate::error::{Result, TensorError};
use crate::stored::Stored;
use crate::tensor::{Tensor, allocate};

/// Values of a layer, one per channel.
fn channels(stored: Option<&Stored>) -> Result<Option<Tensor>> {
    let Some(stored) = stored else {
        return Ok(None);
    };
    let values = stored.to_f32()?;
    if values.rank() == 1 {
        return Ok(Some(values));
    }
    Err(TensorError::rank("normalise", "1", values.shape()))
}

fn check_width(op: &'static str, x: &Tensor, width: usize, values: Option<&Tensor>) -> Result<()> {
    match values {
        Some(values) if values.len() != width => {
            Err(TensorError::mismatch(op, x.shape(), values.shape()))
        }
        _ => Ok(()),
    }
}

/// Normalises groups of channels over a whole picture.
#[derive(Debug, Clone)]
pub struct GroupNorm {
    weight: Tensor,
    bias: Tensor,
    groups: usize,
    eps: f32,
}

impl GroupNorm {
    pub fn new(weight: &Stored, bias: &Stored, groups: usize, eps: f32) -> Result<Self> {
        let (weight, bias) = (weight.to_f32()?, bias.to_f32()?);
        if weight.rank() != 1 || weight.shape() != bias.shape() {
            return Err(TensorError::mismatch(
                "group norm",
                weight.shape(),
                bias.shape(),
            ));
        }
        if groups == 0 || !weight.len().is_multiple_of(groups) {
            return Err(TensorError::invalid(
                "group norm",
                format!("{} channels do not make {groups} groups", weight.len()),
            ));
        }
        Ok(Self {
            weight,
            bias,
            groups,
            eps,
        })
    }

    /// (b, h, w, c) normalised, then activated.
    pub fn forward(&self, x: &Tensor, act: Act) -> Result<Tensor> {
        let [b, h, w, c] = x.dims4()?;
        check_width("group norm", x, c, Some(&self.weight))?;
        let mut out = allocate(x.shape(), 0.0)?;
        if out.is_empty() {
            return Tensor::from_vec(x.shape(), out);
        }
        let size = h * w * c;
        let width = c / self.groups;
        for item in 0..b {
            let input = &x.data()[item * size..][..size];
            // Scale and offset of each channel, so that one multiplication and one addition do the rest.
            let affine: Vec<(f32, f32)> = (0..c)
                .into_par_iter()
                .step_by(width)
                .flat_map_iter(|first| {
                    let group = || {
                        input
                            .chunks_exact(c)
                            .flat_map(|pixel| &pixel[first..first + width])
                    };
                    let count = (h * w * width) as f64;
                    let mean = group().map(|&v| f64::from(v)).sum::<f64>() / count;
                    let variance =
                        group().map(|&v| (f64::from(v) - mean).powi(2)).sum::<f64>() / count;
                    let inverse = 1.0 / (variance + f64::from(self.eps)).sqrt();
                    (first..first + width).map(move |i| {
                        let scale = inverse * f64::from(self.weight.data()[i]);
                        let offset = f64::from(self.bias.data()[i]) - mean * scale;
                        (scale as f32, offset as f32)
                    })
                })
                .collect();
            out[item * size..][..size]
                .par_chunks_mut(c)
                .zip(input.par_chunks(c))
                .for_each(|(out, pixel)| {
                    for ((o, v), (scale, offset)) in out.iter_mut().zip(pixel).zip(&affine) {
                        *o = act.of(v * scale + offset);
                    }
                });
        }
        Tensor::from_vec(x.shape(), out)
    }
}

/// Normalises the last dimension to mean 0 and variance 1.
#[derive(Debug, Clone)]
pub struct LayerNorm {
    weight: Option<Tensor>,
    bias: Option<Tensor>,
    eps: f32,
}

impl LayerNorm {
    pub fn new(weight: Option<&Stored>, bias: Option<&Stored>, eps: f32) -> Result<Self> {
        Ok(Self {
            weight: channels(weight)?,
            bias: channels(bias)?,
            eps,
        })
    }

    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.run(x, None)
    }

    /// The normalised values times `1 + scale` plus `shift`, both (b, c) or (b, 1, c) for `x` of (b, .., c).
    pub fn modulated(&self, x: &Tensor, shift: &Tensor, scale: &Tensor) -> Result<Tensor> {
        let width = last(x, "layer norm")?;
        let items = x.shape()[0];
        for t in [shift, scale] {
            let fits = t.len() == items * width
                && t.shape().first() == Some(&items)
                && t.shape().last() == Some(&width);
            if x.rank() < 2 || !fits {
                return Err(TensorError::mismatch("layer norm", x.shape(), t.shape()));
            }
        }
        self.run(x, Some((shift, scale)))
    }

    fn run(&self, x: &Tensor, modulation: Option<(&Tensor, &Tensor)>) -> Result<Tensor> {
        let width = last(x, "layer norm")?;
        check_width("layer norm", x, width, self.weight.as_ref())?;
        check_width("layer norm", x, width, self.bias.as_ref())?;
        let mut out = allocate(x.shape(), 0.0)?;
        if out.is_empty() {
            return Tensor::from_vec(x.shape(), out);
        }
        let per_item = x.len() / x.shape()[0] / width;
        out.par_chunks_mut(width)
            .zip(x.data().par_chunks(width))
            .enumerate()
            .for_each(|(row, (out, input))| {
                let count = width as f64;
                let mean = input.iter().map(|&v| f64::from(v)).sum::<f64>() / count;
                let variance = input
                    .iter()
                    .map(|&v| (f64::from(v) - mean).powi(2))
                    .sum::<f64>()
                    / count;
                let inverse = (1.0 / (variance + f64::from(self.eps)).sqrt()) as f32;
                let mean = mean as f32;
                for (i, (o, v)) in out.iter_mut().zip(input).enumerate() {
                    let mut y = (v - mean) * inverse;
                    if let Some(weight) = &self.weight {
                        y *= weight.data()[i];
                    }
                    if let Some(bias) = &self.bias {
                        y += bias.data()[i];
                    }
                    if let Some((shift, scale)) = modulation {
                        let at = row / per_item * width + i;
                        y = y * (1.0 + scale.data()[at]) + shift.data()[at];
                    }
                    *o = y;
                }
            });
        Tensor::from_vec(x.shape(), out)
    }
}

/// Divides the last dimension by its root mean square.
#[derive(Debug, Clone)]
pub struct RmsNorm {
    weight: Option<Tensor>,
    eps: f32,
}

impl RmsNorm {
    pub fn new(weight: Option<&Stored>, eps: f32) -> Result<Self> {
        Ok(Self {
            weight: channels(weight)?,
            eps,
        })
    }

    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let width = last(x, "rms norm")?;
        check_width("rms norm", x, width, self.weight.as_ref())?;
        let mut out = allocate(x.shape(), 0.0)?;
        if out.is_empty() {
            return Tensor::from_vec(x.shape(), out);
        }
        out.par_chunks_mut(width)
            .zip(x.data().par_chunks(width))
            .for_each(|(out, input)| {
                let squares = input.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>();
                let mean = squares / width as f64 + f64::from(self.eps);
                let inverse = (1.0 / mean.sqrt()) as f32;
                for (i, (o, v)) in out.iter_mut().zip(input).enumerate() {
                    let weight = self.weight.as_ref().map_or(1.0, |w| w.data()[i]);
                    *o = v * inverse * weight;
                }
            });
        Tensor::from_vec(x.shape(), out)
    }
}

/// A table of vectors, kept in the format of its file; rows become f32 when they are looked up.
#[derive(Debug, Clone)]
pub struct Embedding {
    table: Stored,
}

impl Embedding {
    /// `table` is (entries, c).
    pub fn new(table: &Stored) -> Result<Self> {
        if table.shape().len() != 2 {
            return Err(TensorError::rank("embedding", "2", table.shape()));
        }
        Ok(Self {
            table: table.clone(),
        })
    }

    /// Number of vectors.
    pub fn entries(&self) -> usize {
        self.table.shape()[0]
    }

    /// Channels of one vector.
    pub fn width(&self) -> usize {
        self.table.shape()[1]
    }

    pub fn table(&self) -> &Stored {
        &self.table
    }

    /// The vectors of the given numbers, (n, c).
    pub fn lookup(&self, ids: &[u32]) -> Result<Tensor> {
        let bytes = self.table.bytes().len() / self.entries().max(1);
        let mut out = Vec::new();
        for &id in ids {
            let index = id as usize;
            if index >= self.entries() {
                return Err(TensorError::IndexOutOfRange {
                    op: "embedding",
                    index,
                    size: self.entries(),
                });
            }
            let row = &self.table.bytes()[index * bytes..][..bytes];
            out.extend(self.table.dtype().to_f32(row));
        }
        Tensor::from_vec([ids.len(), self.width()], out)
    }
}
