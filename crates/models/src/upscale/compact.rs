//! Real-ESRGAN Compact: convolutions with slopes for negative values, added to the picture enlarged by its nearest pixels.

use std::sync::Arc;

use fresco_tensor::Tensor;
use fresco_tensor::nn::{Conv2d, Embedding, negative_slopes, upsample_nearest};

use super::keys::{UpscaleKeys, spread};
use super::shuffle::pixel_shuffle;
use super::{FoundKind, UpscaleFacts, UpscaleNetwork};
use crate::error::Result;
use crate::store::Walk;

#[derive(Clone, Copy)]
struct Config {
    input: usize,
    width: usize,
    /// Convolutions, with the first and the last.
    convs: usize,
    total: usize,
    scale: usize,
}

pub(super) fn find(keys: &UpscaleKeys) -> Result<Option<FoundKind>> {
    if !keys.has("body.0.weight") || !keys.has("body.1.weight") {
        return Ok(None);
    }
    let first = keys.shape("body.0.weight", 4)?;
    let (width, input) = (first[0], first[1]);
    let count = keys.count("body");
    let total = keys.shape(&format!("body.{}.weight", count - 1), 4)?[0];
    let (scale, out) = spread(keys, total, input)?;
    let config = Config {
        input,
        width,
        convs: count.div_ceil(2),
        total,
        scale,
    };
    let facts = UpscaleFacts::plain("Compact", scale, input, out);
    let build = move |weights: &Walk<'_>| Compact::new(weights, &config);
    Ok(Some(FoundKind::new(facts, keys.store(), build)))
}

struct Compact {
    convs: Vec<Arc<Conv2d>>,
    slopes: Vec<Arc<Embedding>>,
    scale: usize,
}

impl Compact {
    fn new(weights: &Walk<'_>, config: &Config) -> Result<Self> {
        let body = weights.at("body");
        let conv = |i: usize| {
            let input = if i == 0 { config.input } else { config.width };
            let last = i + 1 == config.convs;
            let out = if last { config.total } else { config.width };
            body.conv(&(2 * i).to_string(), out, input, 3, 1)
        };
        let slopes = |i: usize| body.rows(&format!("{}.weight", 2 * i + 1), &[config.width]);
        Ok(Self {
            convs: (0..config.convs).map(conv).collect::<Result<_>>()?,
            slopes: (0..config.convs - 1).map(slopes).collect::<Result<_>>()?,
            scale: config.scale,
        })
    }
}

impl UpscaleNetwork for Compact {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let device = x.device();
        let mut h = x.clone();
        for (i, conv) in self.convs.iter().enumerate() {
            fresco_tensor::cancel::check()?;
            h = conv.forward(&h)?;
            if let Some(slopes) = self.slopes.get(i) {
                h = negative_slopes(h, &slopes.lookup_on(&[0], &device)?)?;
            }
        }
        let [_, rows, columns, _] = x.dims4()?;
        let plain = upsample_nearest(x, rows * self.scale, columns * self.scale)?;
        Ok(pixel_shuffle(&h, self.scale)?.add(&plain)?)
    }
}
