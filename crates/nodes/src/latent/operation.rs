//! Operations on latents that other nodes apply, to samples or to the guidance of every step.

use fresco_graph::{Cx, FromValue, Node, NodeOutput, NodeResult, Opaque, Value, wrong_kind};
use fresco_tensor::{Axes, Buffer, Tensor, TensorError};

use super::channel_norm;
use crate::types::Latent;

/// Why an operation does not fit a latent.
#[derive(Debug, thiserror::Error)]
pub enum OperationError {
    #[error(transparent)]
    Tensor(#[from] TensorError),
    #[error("a sharpen radius of {radius} needs a latent larger than that, got {width}x{height}")]
    Radius {
        radius: usize,
        width: usize,
        height: usize,
    },
}

/// LATENT_OPERATION.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LatentOperation {
    TonemapReinhard {
        multiplier: f64,
    },
    Sharpen {
        radius: usize,
        sigma: f64,
        alpha: f64,
    },
}

impl LatentOperation {
    /// The operation on `(b, c, h, w)`.
    pub fn on(&self, latent: &Tensor) -> Result<Tensor, OperationError> {
        match *self {
            Self::TonemapReinhard { multiplier } => tonemap(latent, multiplier),
            Self::Sharpen {
                radius,
                sigma,
                alpha,
            } => sharpen(latent, radius, sigma, alpha),
        }
    }
}

impl Opaque for LatentOperation {
    fn describe(&self) -> String {
        "latent operation".into()
    }
}

impl FromValue for LatentOperation {
    const IO: &'static str = "LATENT_OPERATION";
    fn from_value(value: Value) -> Result<Self, String> {
        value
            .downcast::<Self>()
            .copied()
            .ok_or_else(|| wrong_kind(Self::IO, &value))
    }
}

impl From<LatentOperation> for Value {
    fn from(v: LatentOperation) -> Self {
        Self::object(v)
    }
}

/// Compresses vector lengths towards five deviations above their mean, so that strong guidance does not burn.
fn tonemap(latent: &Tensor, multiplier: f64) -> Result<Tensor, OperationError> {
    let length = channel_norm(latent)?.add_scalar(1e-10);
    let direction = latent.div(&length)?;
    let dims: Vec<usize> = (1..length.rank()).collect();
    let top = length
        .std(&dims, Axes::Keep)?
        .mul_scalar(5.0)
        .add(&length.mean(&dims, Axes::Keep)?)?
        .mul_scalar(multiplier as f32);
    let share = length.mul(&top.map(|v| 1.0 / v))?;
    let compressed = share.div(&share.add_scalar(1.0))?.mul(&top)?;
    Ok(direction.mul(&compressed)?)
}

/// A square kernel on `[-1, 1]`, normalised, row by row.
fn gaussian(size: usize, sigma: f64) -> Vec<f32> {
    let line = crate::python_rules::linspace(-1.0, 1.0, size);
    let scale = (2.0 * sigma * sigma) as f32;
    let mut kernel = Vec::with_capacity(size * size);
    for y in &line {
        for x in &line {
            let d = (x * x + y * y).sqrt();
            kernel.push((-(d * d) / scale).exp());
        }
    }
    let sum: f32 = kernel.iter().map(|v| f64::from(*v)).sum::<f64>() as f32;
    for v in &mut kernel {
        *v /= sum;
    }
    kernel
}

/// Sharpens directions and keeps lengths.
fn sharpen(
    latent: &Tensor,
    radius: usize,
    sigma: f64,
    alpha: f64,
) -> Result<Tensor, OperationError> {
    let [b, c, h, w] = latent.dims4()?;
    if radius >= h || radius >= w {
        return Err(OperationError::Radius {
            radius,
            width: w,
            height: h,
        });
    }
    let length = channel_norm(latent)?.add_scalar(1e-6);
    let direction = latent.div(&length)?;
    let size = radius * 2 + 1;
    let mut kernel = gaussian(size, sigma);
    let factor = (alpha * -10.0) as f32;
    for v in &mut kernel {
        *v *= factor;
    }
    let sum: f32 = kernel.iter().map(|v| f64::from(*v)).sum::<f64>() as f32;
    kernel[radius * size + radius] = kernel[radius * size + radius] - sum + 1.0;
    // Mirrors at the borders without repeating the edge cell.
    let mirror = |at: isize, len: usize| -> usize {
        let last = len as isize - 1;
        let at = at.abs();
        (if at > last { 2 * last - at } else { at }) as usize
    };
    let mut out = Buffer::filled(latent.len(), 0.0f32)?;
    for plane in 0..b * c {
        let source = &direction.data()[plane * h * w..][..h * w];
        let target = &mut out[plane * h * w..][..h * w];
        for y in 0..h {
            for x in 0..w {
                let mut sum = 0.0f32;
                for ky in 0..size {
                    let row = mirror((y + ky) as isize - radius as isize, h) * w;
                    for kx in 0..size {
                        let column = mirror((x + kx) as isize - radius as isize, w);
                        sum += kernel[ky * size + kx] * source[row + column];
                    }
                }
                target[y * w + x] = sum;
            }
        }
    }
    Ok(Tensor::from_buffer(latent.shape(), out)?.mul(&length)?)
}

/// Applies an operation to a latent.
#[derive(Node)]
#[node(
    id = "LatentApplyOperation",
    v3,
    module = "comfy_extras.nodes_latent",
    category = "latent/advanced/operations",
    outputs("LATENT"),
    experimental
)]
pub struct LatentApplyOperation {
    samples: Latent,
    operation: LatentOperation,
}

impl Node for LatentApplyOperation {
    fn run(self, _: &Cx) -> NodeResult {
        let out = self.operation.on(self.samples.samples()?)?;
        Ok(NodeOutput::one(self.samples.with_tensor("samples", out)))
    }
}

/// An operation that tames extreme values.
#[derive(Node)]
#[node(
    id = "LatentOperationTonemapReinhard",
    v3,
    module = "comfy_extras.nodes_latent",
    category = "latent/advanced/operations",
    outputs("LATENT_OPERATION"),
    experimental
)]
pub struct LatentOperationTonemapReinhard {
    /// How much the operation leaves; lower flattens more.
    #[input(default = 1.0, min = 0.0, max = 100.0, step = 0.01)]
    multiplier: f64,
}

impl Node for LatentOperationTonemapReinhard {
    fn run(self, _: &Cx) -> NodeResult {
        Ok(NodeOutput::one(LatentOperation::TonemapReinhard {
            multiplier: self.multiplier,
        }))
    }
}

/// An operation that sharpens.
#[derive(Node)]
#[node(
    id = "LatentOperationSharpen",
    v3,
    module = "comfy_extras.nodes_latent",
    category = "latent/advanced/operations",
    outputs("LATENT_OPERATION"),
    experimental
)]
pub struct LatentOperationSharpen {
    /// How far the blur that is subtracted reaches, in latent places.
    #[input(default = 9, min = 1, max = 31, step = 1)]
    sharpen_radius: i64,
    #[input(default = 1.0, min = 0.1, max = 10.0, step = 0.1)]
    sigma: f64,
    /// How strongly to sharpen; 0 changes nothing.
    #[input(default = 0.1, min = 0.0, max = 5.0, step = 0.01)]
    alpha: f64,
}

impl Node for LatentOperationSharpen {
    fn run(self, _: &Cx) -> NodeResult {
        Ok(NodeOutput::one(LatentOperation::Sharpen {
            radius: super::size("sharpen_radius", self.sharpen_radius)?,
            sigma: self.sigma,
            alpha: self.alpha,
        }))
    }
}
