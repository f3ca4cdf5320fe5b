//! Convolutions that make pieces smaller. Frames are (t, h, w, c); none sees a later one.

use std::sync::Arc;

use fresco_tensor::Tensor;
use fresco_tensor::nn::{Act, Conv3d, GroupNorm};

use super::config::PieceConfig;
use crate::error::Result;
use crate::store::Walk;
use crate::vae::kl::Check;

const EPS: f32 = 1e-6;
const KERNEL: [usize; 3] = [3, 3, 3];

/// Lines beyond the borders, as in a mirror that lies on the outermost one.
fn mirrored(x: &Tensor, dim: usize, (before, after): (usize, usize)) -> Result<Tensor> {
    let len = x.dim(dim)?;
    let inner = 1.min(len - 1);
    let mut places = vec![inner; before];
    places.extend(0..len);
    places.extend(std::iter::repeat_n(len - 1 - inner, after));
    Ok(x.index_select(dim, &places)?)
}

/// What a convolution makes of pictures with so many lines around them, those around left out again.
fn inside(conv: &Conv3d, x: &Tensor, stride: usize) -> Result<Tensor> {
    let mut shape = x.shape().to_vec();
    shape[0] = 2;
    let nothing = Tensor::zeros_on(&x.device(), shape)?;
    let all = Tensor::cat(&[&nothing, x], 0)?;
    Ok(conv.strided(&all, stride)?)
}

struct Convolution(Arc<Conv3d>);

impl Convolution {
    fn new(weights: &Walk<'_>, name: &str, out: usize, input: usize) -> Result<Self> {
        Ok(Self(weights.conv3d(name, out, input, KERNEL)?))
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let [_, h, w, _] = x.dims4()?;
        let around = mirrored(&mirrored(x, 1, (1, 1))?, 2, (1, 1))?;
        let out = inside(&self.0, &around, 1)?;
        Ok(out.narrow(1, 1, h)?.narrow(2, 1, w)?)
    }

    /// Every so-manyth frame, row and column.
    fn thinned(&self, x: &Tensor, (time, space): (usize, usize)) -> Result<Tensor> {
        let around = mirrored(&mirrored(x, 1, (0, 1))?, 2, (0, 1))?;
        let mut out = inside(&self.0, &around, time)?;
        for dim in [1, 2] {
            // Of results in the middle of their kernels, which begin with the first line.
            let places: Vec<usize> = (1..out.dim(dim)? - 1).step_by(space).collect();
            out = out.index_select(dim, &places)?;
        }
        Ok(out)
    }
}

struct Residual {
    norms: [Arc<GroupNorm>; 2],
    convs: [Convolution; 2],
    shortcut: Option<Arc<Conv3d>>,
}

impl Residual {
    fn new(weights: &Walk<'_>, from: usize, to: usize, groups: usize) -> Result<Self> {
        let shortcut = || weights.conv3d("nin_shortcut", to, from, [1, 1, 1]);
        Ok(Self {
            norms: [
                weights.group_norm("norm1", from, groups, EPS)?,
                weights.group_norm("norm2", to, groups, EPS)?,
            ],
            convs: [
                Convolution::new(weights, "conv1", to, from)?,
                Convolution::new(weights, "conv2", to, to)?,
            ],
            shortcut: (from != to).then(shortcut).transpose()?,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let mut h = x.clone();
        for (norm, conv) in self.norms.iter().zip(&self.convs) {
            h = conv.forward(&norm.forward(&h, Act::Silu)?)?;
        }
        match &self.shortcut {
            Some(shortcut) => Ok(shortcut.forward(x, &[], None)?.add(&h)?),
            None => Ok(x.add(&h)?),
        }
    }
}

struct Level {
    layers: Vec<Residual>,
    down: Option<(Convolution, (usize, usize))>,
}

pub(super) struct Encoder {
    first: Convolution,
    levels: Vec<Level>,
    norm: Arc<GroupNorm>,
    last: Convolution,
    quant: Arc<Conv3d>,
    latent: usize,
}

impl Encoder {
    pub(super) fn new(weights: &Walk<'_>, config: &PieceConfig) -> Result<Self> {
        let inner = weights.at("encoder");
        let list = inner.at("down");
        let mut width = config.first;
        let mut levels = Vec::new();
        for (number, level) in config.levels.iter().enumerate() {
            let place = list.at(number);
            let mut layers = Vec::new();
            for layer in 0..level.layers {
                let place = place.at("block").at(layer);
                layers.push(Residual::new(&place, width, level.width, config.groups)?);
                width = level.width;
            }
            let down = level.steps.map(|steps| {
                let conv = Convolution::new(&place, "downsample.conv", width, width)?;
                Ok::<_, crate::error::ModelError>((conv, steps))
            });
            levels.push(Level {
                layers,
                down: down.transpose()?,
            });
        }
        let values = 2 * config.latent;
        Ok(Self {
            first: Convolution::new(&inner, "conv_in", config.first, 3)?,
            levels,
            norm: inner.group_norm("norm_out", width, config.groups, EPS)?,
            last: Convolution::new(&inner, "conv_out", values, width)?,
            quant: weights.conv3d("quant_conv", values, values, [1, 1, 1])?,
            latent: config.latent,
        })
    }

    /// The mean latent of one piece.
    pub(super) fn forward(&self, piece: &Tensor, check: Check<'_>) -> Result<Tensor> {
        let mut x = self.first.forward(piece)?;
        for level in &self.levels {
            for layer in &level.layers {
                check()?;
                x = layer.forward(&x)?;
            }
            if let Some((conv, steps)) = &level.down {
                x = conv.thinned(&x, *steps)?;
            }
        }
        let x = self.last.forward(&self.norm.forward(&x, Act::Silu)?)?;
        let x = self.quant.forward(&x, &[], None)?;
        Ok(x.narrow(3, 0, self.latent)?)
    }
}
