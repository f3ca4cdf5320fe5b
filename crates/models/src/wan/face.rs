//! Videos in which a character moves as another does: poses are added to tokens, and tokens look at how a face moves.

use std::sync::Arc;

use fresco_tensor::nn::{
    Act, Conv2d, LayerNorm, Linear, Mask, Padding, RmsNorm, Value, activate, attention, matmul,
};
use fresco_tensor::{Device, Tensor};

use super::causal_heads::{CausalHeads, HeadsConfig};
use super::config::{CELLS, WanConfig};
use crate::error::{ModelError, Result};
use crate::store::{Kernel, Walk};
use crate::transformer::{Shapes, part};

const EPS: f32 = 1e-6;
/// Every how many blocks tokens look at the face.
pub(super) const EVERY: usize = 5;
/// Pictures of a face that are worked on at once.
const AT_ONCE: usize = 8;
/// Cells along a side of what is left of a picture.
const LAST: usize = 4;
/// Added to the directions of motion, so that none is lost.
const STABLE: f64 = 1e-8;
/// More levels than any of these has.
const MOST: usize = 16;

/// What a network that follows poses and a face has more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaceConfig {
    /// Channels of poses.
    pub pose: usize,
    /// Channels in and out of each level of the network that looks at a face, from the first layer on.
    pub levels: Vec<(usize, usize)>,
    /// Sizes of the layers after it.
    pub last: Vec<(usize, usize)>,
    /// Width of a motion, and of how many directions it is made.
    pub motion: (usize, usize),
    pub heads: HeadsConfig,
    /// Places where tokens look at it.
    pub looks: usize,
}

impl FaceConfig {
    pub(super) fn detect(shapes: Shapes<'_>) -> Result<Self> {
        let place = "motion_encoder.enc.net_app.convs";
        let pair = |key: &str| match shapes.0.shape(key) {
            Some(&[out, input, ..]) => Some((input, out)),
            _ => None,
        };
        let mut levels = Vec::new();
        levels.extend(pair(&format!("{place}.0.0.weight")));
        for number in 1..MOST {
            let found = pair(&format!("{place}.{number}.conv2.1.weight"));
            let Some(sizes) = found else {
                levels.extend(
                    pair(&format!("{place}.{number}.weight"))
                        .map(|(values, out)| (values / (LAST * LAST), out)),
                );
                break;
            };
            levels.push(sizes);
        }
        let mut last = Vec::new();
        while let Some(sizes) = pair(&format!("motion_encoder.enc.fc.{}.weight", last.len())) {
            last.push(sizes);
            if last.len() > MOST {
                break;
            }
        }
        if levels.len() < 3 || last.is_empty() {
            let reason = "the network that looks at a face is not complete";
            return Err(shapes.unsupported(reason));
        }
        Ok(Self {
            pose: shapes.matrix("pose_patch_embedding.weight")?.1 / CELLS,
            levels,
            last,
            motion: shapes.matrix("motion_encoder.dec.direction.weight")?,
            heads: HeadsConfig::detect(shapes, "face_encoder")?,
            looks: shapes.count("face_adapter.fuser_blocks"),
        })
    }
}

/// A convolution whose weights are all about one in the file; the network knows how large they should be.
struct EqualConv {
    conv: Arc<Conv2d>,
    scale: f32,
}

impl EqualConv {
    fn new(
        weights: &Walk<'_>,
        name: &str,
        (input, out): (usize, usize),
        side: usize,
        (stride, padding): (usize, usize),
    ) -> Result<Self> {
        let kernel = Kernel {
            out,
            input,
            side,
            bias: false,
        };
        let values = (input * side * side) as f32;
        Ok(Self {
            conv: weights.conv_with(name, kernel, stride, Padding::Same(padding))?,
            scale: 1.0 / values.sqrt(),
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        Ok(self.conv.forward(x)?.mul_scalar(self.scale))
    }
}

/// A bias, then a fifth of what is negative, all of it made larger.
struct Leak(Arc<Value>);

impl Leak {
    fn new(weights: &Walk<'_>, name: &str, channels: usize) -> Result<Self> {
        Ok(Self(weights.value(name, &[1, channels, 1, 1])?))
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let bias = self.0.at(&x.device())?;
        let x = x.add(&bias.reshape([bias.len()])?)?;
        Ok(activate(x, Act::Leaky).mul_scalar(std::f32::consts::SQRT_2))
    }
}

/// The mean of neighbours, by 1, 3, 3, 1 along both axes, with so many zeros around.
fn blurred(x: &Tensor, zeros: usize) -> Result<Tensor> {
    let mut x = x.clone();
    for dim in [1, 2] {
        let mut shape = x.shape().to_vec();
        shape[dim] = zeros;
        let nothing = Tensor::zeros_on(&x.device(), shape)?;
        let wide = Tensor::cat(&[&nothing, &x, &nothing], dim)?;
        let len = wide.dim(dim)?.saturating_sub(3);
        let at = |tap: usize| wide.narrow(dim, tap, len);
        let outer = at(0)?.add(&at(3)?)?;
        let inner = at(1)?.add(&at(2)?)?.mul_scalar(3.0);
        x = outer.add(&inner)?.mul_scalar(0.125);
    }
    Ok(x)
}

/// Half the size, around a shortcut.
struct Level {
    conv1: EqualConv,
    leak1: Leak,
    conv2: EqualConv,
    leak2: Leak,
    skip: EqualConv,
}

impl Level {
    fn new(weights: &Walk<'_>, (input, out): (usize, usize)) -> Result<Self> {
        let same = (input, input);
        Ok(Self {
            conv1: EqualConv::new(weights, "conv1.0", same, 3, (1, 1))?,
            leak1: Leak::new(weights, "conv1.1.bias", input)?,
            conv2: EqualConv::new(weights, "conv2.1", (input, out), 3, (2, 0))?,
            leak2: Leak::new(weights, "conv2.2.bias", out)?,
            skip: EqualConv::new(weights, "skip.1", (input, out), 1, (2, 0))?,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let h = self.leak1.forward(&self.conv1.forward(x)?)?;
        let h = self.conv2.forward(&blurred(&h, 2)?)?;
        let h = self.leak2.forward(&h)?;
        let skip = self.skip.forward(&blurred(x, 1)?)?;
        Ok(h.add(&skip)?.mul_scalar(std::f32::consts::FRAC_1_SQRT_2))
    }
}

/// How a face moves, from its pictures.
struct Motion {
    first: EqualConv,
    leak: Leak,
    levels: Vec<Level>,
    flat: Arc<Linear>,
    /// Channels of what is left.
    left: usize,
    last: Vec<Arc<Linear>>,
    directions: Arc<Value>,
}

impl Motion {
    fn new(weights: &Walk<'_>, config: &FaceConfig) -> Result<Self> {
        let net = weights.at("enc").at("net_app").at("convs");
        let [first, inner @ .., end] = config.levels.as_slice() else {
            return Err(weights.unsupported("it has no levels"));
        };
        let level = |(at, sizes): (usize, &(usize, usize))| Level::new(&net.at(at + 1), *sizes);
        let fc = weights.at("enc").at("fc");
        let layer = |(number, &(input, out)): (usize, &(usize, usize))| {
            fc.linear(&number.to_string(), out, input)
        };
        let (width, count) = config.motion;
        let name = (inner.len() + 1).to_string();
        Ok(Self {
            first: EqualConv::new(&net.at(0), "0", *first, 1, (1, 0))?,
            leak: Leak::new(&net.at(0), "1.bias", first.1)?,
            levels: inner.iter().enumerate().map(level).collect::<Result<_>>()?,
            flat: net.matrix(&name, end.1, end.0 * LAST * LAST)?,
            left: end.0,
            last: config
                .last
                .iter()
                .enumerate()
                .map(layer)
                .collect::<Result<_>>()?,
            directions: weights.value("dec.direction.weight", &[width, count])?,
        })
    }

    /// Pictures (n, h, w, 3) in -1..1 on the device to (n, width).
    fn forward(&self, pictures: &Tensor) -> Result<Tensor> {
        let mut x = self.leak.forward(&self.first.forward(pictures)?)?;
        for level in &self.levels {
            x = level.forward(&x)?;
        }
        let [n, h, w, c] = x.dims4()?;
        if (h, w) != (LAST, LAST) {
            let reason = format!("a face's pictures leave {w}x{h} cells, not {LAST}x{LAST}");
            return Err(ModelError::invalid("face_video_pixels", reason));
        }
        let flat = x.permute(&[0, 3, 1, 2])?.reshape([n, c * h * w])?;
        let scale = 1.0 / ((self.left * LAST * LAST) as f32).sqrt();
        let mut x = self.flat.forward(&flat)?.mul_scalar(scale);
        for layer in &self.last {
            let scale = 1.0 / (layer.in_features() as f32).sqrt();
            x = layer.forward(&x.mul_scalar(scale))?;
        }
        let directions = orthogonal(&self.directions.at(&Device::cpu())?)?;
        let directions = directions.permute(&[1, 0])?.unsqueeze(0)?;
        let made = matmul(&x.unsqueeze(0)?, &directions.to(&x.device())?)?;
        Ok(made.squeeze(0)?)
    }
}

/// The columns of a matrix made orthogonal, in the order and with the signs that reflections give them.
fn orthogonal(matrix: &Tensor) -> Result<Tensor> {
    let &[rows, columns] = matrix.shape() else {
        return Err(ModelError::invalid("directions", "they are no matrix"));
    };
    let mut a: Vec<f64> = matrix.data().iter().map(|v| f64::from(*v)).collect();
    for at in 0..rows.min(columns) {
        a[at * columns + at] += STABLE;
    }
    let mut mirrors: Vec<Vec<f64>> = Vec::new();
    for k in 0..columns.min(rows) {
        let alpha = a[k * columns + k];
        let below: f64 = (k + 1..rows).map(|i| a[i * columns + k].powi(2)).sum();
        let length = (alpha * alpha + below).sqrt();
        let mut v = vec![0.0; rows];
        if below > 0.0 && length > 0.0 {
            let beta = if alpha >= 0.0 { -length } else { length };
            for i in k..rows {
                v[i] = a[i * columns + k];
            }
            v[k] -= beta;
            let norm = v.iter().map(|x| x * x).sum::<f64>().sqrt();
            for x in &mut v {
                *x /= norm;
            }
            for column in k..columns {
                let dot: f64 = (k..rows).map(|i| v[i] * a[i * columns + column]).sum();
                for i in k..rows {
                    a[i * columns + column] -= 2.0 * dot * v[i];
                }
            }
        }
        mirrors.push(v);
    }
    let mut q = vec![0.0_f64; rows * columns];
    for at in 0..rows.min(columns) {
        q[at * columns + at] = 1.0;
    }
    for v in mirrors.iter().rev() {
        for column in 0..columns {
            let dot: f64 = (0..rows).map(|i| v[i] * q[i * columns + column]).sum();
            for i in 0..rows {
                q[i * columns + column] -= 2.0 * dot * v[i];
            }
        }
    }
    let values = q.into_iter().map(|v| v as f32).collect();
    Ok(Tensor::from_vec([rows, columns], values)?)
}

/// A place where tokens look at the face.
struct Look {
    keys: Arc<Linear>,
    queries: Arc<Linear>,
    out: Arc<Linear>,
    q_norm: Arc<RmsNorm>,
    k_norm: Arc<RmsNorm>,
}

impl Look {
    fn new(weights: &Walk<'_>, dim: usize, heads: usize) -> Result<Self> {
        let head = dim / heads;
        Ok(Self {
            keys: weights.linear("linear1_kv", 2 * dim, dim)?,
            queries: weights.linear("linear1_q", dim, dim)?,
            out: weights.linear("linear2", dim, dim)?,
            q_norm: weights.rms_norm("q_norm.weight", head, EPS)?,
            k_norm: weights.rms_norm("k_norm.weight", head, EPS)?,
        })
    }
}

pub(super) struct Face {
    pose: Arc<Linear>,
    motion: Motion,
    heads: CausalHeads,
    last: Arc<Linear>,
    looks: Vec<Look>,
    norm: LayerNorm,
    attention_heads: usize,
}

impl Face {
    pub(super) fn new(weights: &Walk<'_>, config: &WanConfig, face: &FaceConfig) -> Result<Self> {
        let dim = config.dim;
        let encoder = weights.at("face_encoder");
        let list = weights.at("face_adapter").at("fuser_blocks");
        Ok(Self {
            pose: weights.linear("pose_patch_embedding", dim, face.pose * CELLS)?,
            motion: Motion::new(&weights.at("motion_encoder"), face)?,
            heads: CausalHeads::new(&encoder, face.heads, dim)?,
            last: encoder.linear("out_proj", dim, face.heads.widths[2])?,
            looks: list.each(face.looks, |weights| Look::new(weights, dim, config.heads))?,
            norm: LayerNorm::new(None, None, EPS)?,
            attention_heads: config.heads,
        })
    }

    /// What poses add to tokens.
    pub(super) fn pose(&self, tokens: &Tensor) -> Result<Tensor> {
        Ok(self.pose.forward(tokens)?)
    }

    /// The motion (n, width) of pictures (n, 3, h, w).
    pub(super) fn motion(&self, pictures: &Tensor, device: &Device) -> Result<Tensor> {
        let n = pictures.dim(0)?;
        let mut all = Vec::new();
        for start in (0..n).step_by(AT_ONCE) {
            let part = pictures.narrow(0, start, AT_ONCE.min(n - start))?;
            let part = part.nchw_to_nhwc()?.to(device)?;
            all.push(self.motion.forward(&part)?);
        }
        Ok(Tensor::cat(&all.iter().collect::<Vec<_>>(), 0)?)
    }

    /// Motions (b, t, width) as tokens (b, t / 4, tokens, dim).
    pub(super) fn encoded(&self, motions: &Tensor) -> Result<Tensor> {
        let local = self.heads.local(motions)?;
        self.heads.padded(&self.last.forward(&local)?)
    }

    /// Tokens for so many latent frames of a face's pictures (b, 3, t, h, w). Nothing moves in the first.
    pub(super) fn tokens(&self, pixels: &Tensor, frames: usize, device: &Device) -> Result<Tensor> {
        let &[b, c, t, h, w] = pixels.shape() else {
            let reason = format!("{:?} is not the shape of a video", pixels.shape());
            return Err(ModelError::invalid("face_video_pixels", reason));
        };
        let pictures = pixels
            .permute(&[0, 2, 1, 3, 4])?
            .reshape([b * t, c, h, w])?;
        let motions = self.motion(&pictures, device)?;
        let width = motions.dim(1)?;
        let made = self.encoded(&motions.reshape([b, t, width])?)?;
        let &[_, known, tokens, dim] = made.shape() else {
            return Err(ModelError::invalid("face_video_pixels", "no motion"));
        };
        let first = Tensor::zeros_on(device, [b, 1, tokens, dim])?;
        let all = if known + 1 < frames {
            let rest = Tensor::zeros_on(device, [b, frames - known - 1, tokens, dim])?;
            Tensor::cat(&[&first, &made, &rest], 1)?
        } else {
            Tensor::cat(&[&first, &made.narrow(1, 0, frames - 1)?], 1)?
        };
        Ok(all.reshape([b * frames, tokens, dim])?)
    }

    /// Tokens of the video after a block, with what they see of the face; none where none look.
    pub(super) fn after(&self, number: usize, x: &Tensor, face: &Tensor) -> Result<Option<Tensor>> {
        if !number.is_multiple_of(EVERY) {
            return Ok(None);
        }
        let Some(look) = self.looks.get(number / EVERY) else {
            return Ok(None);
        };
        let (shape, dim) = (x.shape().to_vec(), face.dim(2)?);
        let (frames, heads) = (face.dim(0)?, self.attention_heads);
        let x = x.reshape([frames, x.len() / (frames * dim).max(1), dim])?;
        let normed = |x: &Tensor, norm: &RmsNorm| -> Result<Tensor> {
            let [b, n, dim] = x.dims3()?;
            let each = x.reshape([b, n, heads, dim / heads])?;
            Ok(norm.forward(&each)?.reshape([b, n, dim])?)
        };
        let both = look.keys.forward(&self.norm.forward(face)?)?;
        let q = look.queries.forward(&self.norm.forward(&x)?)?;
        let q = normed(&q, &look.q_norm)?;
        let k = normed(&part(&both, 0, dim)?, &look.k_norm)?;
        let v = part(&both, dim, dim)?;
        let seen = attention(&q, &k, &v, heads, Mask::None, None)?;
        let made = x.add(&look.out.forward(&seen)?)?;
        Ok(Some(made.reshape(shape)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_become_orthogonal_with_the_signs_of_reflections() {
        let a = Tensor::from_vec([3, 2], vec![3.0, 1.0, 4.0, 2.0, 0.0, -5.0]).unwrap();
        let q = orthogonal(&a).unwrap();
        // The first column is turned round: its first value was positive.
        assert!((q.data()[0] + 0.6).abs() < 1e-6 && (q.data()[2] + 0.8).abs() < 1e-6);
        let dot = |a: usize, b: usize| -> f32 {
            (0..3)
                .map(|i| q.data()[2 * i + a] * q.data()[2 * i + b])
                .sum()
        };
        assert!(dot(0, 1).abs() < 1e-6 && (dot(1, 1) - 1.0).abs() < 1e-6);
    }
}
