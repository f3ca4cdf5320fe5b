//! RealPLKSR (after Lee et al. 2024): large kernels over a part of the channels.

use std::sync::Arc;

use fresco_tensor::Tensor;
use fresco_tensor::nn::{
    Act, Conv2d, GroupNorm, LayerNorm, Linear, concat_channels, mish, sigmoid,
};

use super::dysample::{DySample, DySampleConfig};
use super::keys::UpscaleKeys;
use super::shuffle::pixel_shuffle;
use super::{FoundKind, UpscaleFacts, UpscaleNetwork};
use crate::epilogue::plus;
use crate::error::Result;
use crate::store::Walk;

const COLOURS: usize = 3;
/// Of the norm at the end of a block.
const GROUPS: usize = 4;

#[derive(Clone, Copy)]
struct Config {
    width: usize,
    blocks: usize,
    scale: usize,
    /// Side and channels of the large kernels.
    kernel: usize,
    part: usize,
    attention: bool,
    layer_norm: bool,
    sample: Option<DySampleConfig>,
}

pub(super) fn find(keys: &UpscaleKeys) -> Result<Option<FoundKind>> {
    if keys.has("feats.0.weight") && keys.has("feats.1.channe_mixer.0.weight") {
        return Err(keys.refused(
            "this is a PLKSR upscale model of the first form; this version runs RealPLKSR",
        ));
    }
    let signs = [
        "feats.0.weight",
        "feats.1.lk.conv.weight",
        "feats.1.channel_mixer.0.weight",
    ];
    if !signs.iter().all(|name| keys.has(name)) {
        return Ok(None);
    }
    let width = keys.shape("feats.0.weight", 4)?[0];
    let count = keys.count("feats");
    let total = keys.shape(&format!("feats.{}.weight", count - 1), 4)?[0];
    let scale = ((total / COLOURS) as f64).sqrt().round() as usize;
    if scale == 0 || scale * scale * COLOURS != total || count < 3 {
        return Err(keys.refused(format!("{total} channels make no enlarged picture")));
    }
    let large = keys.shape("feats.1.lk.conv.weight", 4)?;
    let sample = (keys.has("to_img.init_pos") || keys.has("to_img.offset.weight"))
        .then(|| DySampleConfig::new(total, COLOURS, scale));
    let config = Config {
        width,
        blocks: count - 3,
        scale,
        kernel: large[2],
        part: large[0],
        attention: keys.has("feats.1.attn.f.0.weight"),
        layer_norm: keys.has("feats.1.layer_norm.bias"),
        sample,
    };
    let facts = UpscaleFacts::plain("RealPLKSR", scale, COLOURS, COLOURS);
    let build = move |weights: &Walk<'_>| Plksr::new(weights, &config);
    Ok(Some(FoundKind::new(facts, keys.store(), build)))
}

struct Block {
    before: Option<Arc<LayerNorm>>,
    mixer: [Arc<Conv2d>; 2],
    large: Arc<Conv2d>,
    part: usize,
    attention: Option<Arc<Conv2d>>,
    refine: Arc<Linear>,
    after: Option<Arc<GroupNorm>>,
}

impl Block {
    fn new(weights: &Walk<'_>, config: &Config) -> Result<Self> {
        let width = config.width;
        let normed = config.layer_norm;
        Ok(Self {
            before: normed
                .then(|| weights.layer_norm("layer_norm", width, 1e-6))
                .transpose()?,
            mixer: [
                weights.conv("channel_mixer.0", 2 * width, width, 3, 1)?,
                weights.conv("channel_mixer.2", width, 2 * width, 3, 1)?,
            ],
            large: weights.conv("lk.conv", config.part, config.part, config.kernel, 1)?,
            part: config.part,
            attention: config
                .attention
                .then(|| weights.conv("attn.f.0", width, width, 3, 1))
                .transpose()?,
            refine: weights.linear("refine", width, width)?,
            after: (!normed)
                .then(|| weights.group_norm("norm", width, GROUPS, 1e-5))
                .transpose()?,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let h = match &self.before {
            Some(norm) => norm.forward(x)?,
            None => x.clone(),
        };
        let h = mish(&self.mixer[0].forward(&h)?);
        let mut h = self.mixer[1].forward(&h)?;
        let width = h.dim(3)?;
        let large = self.large.forward(&h.narrow(3, 0, self.part)?)?;
        let rest = h.narrow(3, self.part, width - self.part)?;
        h = concat_channels(&[&large, &rest])?;
        if let Some(attention) = &self.attention {
            h = h.mul(&sigmoid(&attention.forward(&h)?))?;
        }
        match &self.after {
            Some(norm) => {
                let h = self.refine.forward(&h)?;
                Ok(norm.forward_owned(h, Act::None)?.add(x)?)
            }
            None => Ok(self.refine.forward_with(&h, plus(x))?),
        }
    }
}

struct Plksr {
    first: Arc<Conv2d>,
    blocks: Vec<Block>,
    last: Arc<Conv2d>,
    scale: usize,
    sample: Option<DySample>,
}

impl Plksr {
    fn new(weights: &Walk<'_>, config: &Config) -> Result<Self> {
        let feats = weights.at("feats");
        let (width, blocks) = (config.width, config.blocks);
        let total = COLOURS * config.scale * config.scale;
        let block = |i: usize| Block::new(&feats.at(i), config);
        Ok(Self {
            first: feats.conv("0", width, COLOURS, 3, 1)?,
            blocks: (1..=blocks).map(block).collect::<Result<_>>()?,
            last: feats.conv(&(blocks + 2).to_string(), total, width, 3, 1)?,
            scale: config.scale,
            sample: config
                .sample
                .map(|sample| DySample::new(&weights.at("to_img"), sample))
                .transpose()?,
        })
    }
}

impl UpscaleNetwork for Plksr {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let mut h = self.first.forward(x)?;
        for block in &self.blocks {
            fresco_tensor::cancel::check()?;
            h = block.forward(&h)?;
        }
        let plain = x.repeat_interleave(3, self.scale * self.scale)?;
        let h = self.last.forward_with(&h, plus(&plain))?;
        match &self.sample {
            Some(sample) => sample.forward(&h),
            None => pixel_shuffle(&h, self.scale),
        }
    }
}
