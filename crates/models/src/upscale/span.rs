//! SPAN (Wan et al. 2024): blocks that weigh what they found by how much of it there is.

use std::sync::Arc;

use fresco_tensor::Tensor;
use fresco_tensor::nn::{Act, Conv2d, Linear, concat_channels, sigmoid};

use super::keys::{UpscaleKeys, spread};
use super::made::merged;
use super::shuffle::pixel_shuffle;
use super::tail::COLOURS;
use super::{FoundKind, UpscaleFacts, UpscaleNetwork};
use crate::epilogue::then;
use crate::error::Result;
use crate::store::Walk;

const BLOCKS: usize = 6;
/// What colours are multiplied with.
const RANGE: f32 = 255.0;

#[derive(Clone, Copy)]
struct Config {
    input: usize,
    width: usize,
    total: usize,
    scale: usize,
    /// Whether colours are centred and spread first.
    norm: bool,
}

pub(super) fn find(keys: &UpscaleKeys) -> Result<Option<FoundKind>> {
    let signs = [
        "conv_1.sk.weight",
        "block_1.c1_r.sk.weight",
        "conv_cat.weight",
        "upsampler.0.weight",
    ];
    if !signs.iter().all(|name| keys.has(name)) {
        return Ok(None);
    }
    let first = keys.shape("conv_1.sk.weight", 4)?;
    let (width, input) = (first[0], first[1]);
    let total = keys.shape("upsampler.0.weight", 4)?[0];
    let (scale, out) = spread(keys, total, input)?;
    let config = Config {
        input,
        width,
        total,
        scale,
        norm: !keys.has("no_norm") && input == COLOURS.len(),
    };
    // The layers of a file are trained as four and used as one.
    let mut recipes = Vec::new();
    recipes.extend(merged(keys, "conv_1", width, input));
    recipes.extend(merged(keys, "conv_2", width, width));
    for block in 1..=BLOCKS {
        for conv in 1..=3 {
            recipes.extend(merged(
                keys,
                &format!("block_{block}.c{conv}_r"),
                width,
                width,
            ));
        }
    }
    let kept = |name: &str| {
        let own = name.starts_with("conv_cat.") || name.starts_with("upsampler.");
        own.then(|| name.to_owned())
    };
    let store = keys.made(kept, recipes);
    let facts = UpscaleFacts::plain("SPAN", scale, input, out);
    let build = move |weights: &Walk<'_>| Span::new(weights, &config);
    Ok(Some(FoundKind::new(facts, store, build)))
}

struct Block([Arc<Conv2d>; 3]);

impl Block {
    fn new(weights: &Walk<'_>, width: usize) -> Result<Self> {
        let conv = |name: &str| weights.conv(name, width, width, 3, 1);
        Ok(Self([conv("c1_r")?, conv("c2_r")?, conv("c3_r")?]))
    }

    /// The result, and what the first convolution found, activated.
    fn forward(&self, x: &Tensor) -> Result<(Tensor, Tensor)> {
        let [first, second, third] = &self.0;
        let found = first.forward_with(x, then(Act::Silu))?;
        let inner = second.forward_with(&found, then(Act::Silu))?;
        let inner = third.forward(&inner)?;
        let weight = sigmoid(&inner).sub_scalar(0.5);
        Ok((inner.add(x)?.mul(&weight)?, found))
    }
}

struct Span {
    config: Config,
    first: Arc<Conv2d>,
    blocks: Vec<Block>,
    second: Arc<Conv2d>,
    join: Arc<Linear>,
    up: Arc<Conv2d>,
}

impl Span {
    fn new(weights: &Walk<'_>, config: &Config) -> Result<Self> {
        let width = config.width;
        let block = |i: usize| Block::new(&weights.at(format!("block_{i}")), width);
        Ok(Self {
            config: *config,
            first: weights.conv("conv_1", width, config.input, 3, 1)?,
            blocks: (1..=BLOCKS).map(block).collect::<Result<_>>()?,
            second: weights.conv("conv_2", width, width, 3, 1)?,
            join: weights.linear("conv_cat", width, 4 * width)?,
            up: weights.conv("upsampler.0", config.total, width, 3, 1)?,
        })
    }
}

impl UpscaleNetwork for Span {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let mut x = x.clone();
        if self.config.norm {
            let mean = Tensor::from_slice(&COLOURS).to(&x.device())?;
            x = x.sub(&mean)?.mul_scalar(RANGE);
        }
        let first = self.first.forward(&x)?;
        let (mut h, mut found) = (first.clone(), None);
        let mut early = None;
        for block in &self.blocks {
            fresco_tensor::cancel::check()?;
            let (out, inner) = block.forward(&h)?;
            h = out;
            early.get_or_insert_with(|| h.clone());
            found = Some(inner);
        }
        let h = self.second.forward(&h)?;
        let (early, found) = (
            early.unwrap_or_else(|| first.clone()),
            found.unwrap_or_else(|| first.clone()),
        );
        let all = concat_channels(&[&first, &h, &early, &found])?;
        let out = self.up.forward(&self.join.forward(&all)?)?;
        pixel_shuffle(&out, self.config.scale)
    }
}
