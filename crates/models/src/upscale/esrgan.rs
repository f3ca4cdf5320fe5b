//! ESRGAN (Wang et al. 2018) and its descendants BSRGAN and Real-ESRGAN: residual blocks whose convolutions see all before
//! them.

use std::sync::Arc;

use fresco_tensor::Tensor;
use fresco_tensor::nn::{Act, Conv2d, Linear, activate, concat_channels};

use super::keys::UpscaleKeys;
use super::shuffle::pixel_unshuffle;
use super::{FoundKind, UpscaleFacts, UpscaleNetwork};
use crate::epilogue::{plus, then};
use crate::error::Result;
use crate::store::Walk;

const CONVS: usize = 5;
const RDBS: usize = 3;
/// How much of what a block found is added.
const SHARE: f32 = 0.2;

#[derive(Clone, Copy)]
struct Config {
    input: usize,
    out: usize,
    width: usize,
    /// Channels that each convolution of a block adds.
    growth: usize,
    blocks: usize,
    ups: usize,
    unshuffle: usize,
    plus: bool,
}

/// Our key for a name of any of the three layouts. `ups` is how often the size doubles.
fn key(name: &str, blocks: usize, ups: usize) -> Option<String> {
    let parts: Vec<&str> = name.split('.').collect();
    let small = |text: &str| text.to_lowercase();
    let last_block = blocks.to_string();
    Some(match parts.as_slice() {
        ["conv_first" | "first", end] | ["model", "0", end] => format!("first.{end}"),
        ["body" | "RRDB_trunk", i, rdb, conv, end]
        | ["model", "1", "sub", i, rdb, conv, "0", end] => {
            format!("blocks.{i}.{}.{conv}.{end}", small(rdb))
        }
        ["conv_body" | "trunk_conv", end] => format!("body.{end}"),
        ["conv_hr" | "HRconv", end] => format!("hr.{end}"),
        ["conv_last", end] => format!("last.{end}"),
        ["model", "1", "sub", i, end] if *i == last_block => format!("body.{end}"),
        ["model", "1", "sub", i, rdb, "conv1x1", end] => {
            format!("blocks.{i}.{}.conv1x1.{end}", small(rdb))
        }
        ["model", n, end] => {
            let n: usize = n.parse().ok()?;
            match n {
                n if n == 3 * ups + 2 => format!("hr.{end}"),
                n if n == 3 * ups + 4 => format!("last.{end}"),
                n if n % 3 == 0 && n > 0 && n <= 3 * ups => format!("up.{}.{end}", n / 3 - 1),
                _ => return None,
            }
        }
        [up, end] => {
            let number = up
                .strip_prefix("conv_up")
                .or_else(|| up.strip_prefix("upconv"));
            let number: usize = number?.parse().ok()?;
            format!("up.{}.{end}", number.checked_sub(1)?)
        }
        _ => return None,
    })
}

pub(super) fn find(keys: &UpscaleKeys) -> Result<Option<FoundKind>> {
    let old = keys.has("model.0.weight")
        && (keys.has("model.1.sub.0.RDB1.conv1.0.weight")
            || keys.has("model.1.sub.0.RDB1.conv1x1.weight"));
    let new = keys.has("conv_first.weight") && keys.has("body.0.rdb1.conv1.weight");
    let bsr = keys.has("conv_first.weight") && keys.has("RRDB_trunk.0.RDB1.conv1.weight");
    if !old && !new && !bsr {
        return Ok(None);
    }
    let (blocks, ups, first, block, last) = if old {
        let count = keys.count("model");
        let ups = count.saturating_sub(5) / 3;
        let last = format!("model.{}.weight", count.saturating_sub(1));
        let blocks = keys.count("model.1.sub").saturating_sub(1);
        let block = "model.1.sub.0.RDB1.conv1.0.weight";
        (blocks, ups, "model.0.weight", block, last)
    } else {
        let list = if new { "body" } else { "RRDB_trunk" };
        let block = if new {
            "body.0.rdb1.conv1.weight"
        } else {
            "RRDB_trunk.0.RDB1.conv1.weight"
        };
        let there = |n: &usize| {
            let names = [format!("conv_up{n}.weight"), format!("upconv{n}.weight")];
            names.iter().any(|name| keys.has(name))
        };
        let ups = (1..10).take_while(there).count();
        (
            keys.count(list),
            ups,
            "conv_first.weight",
            block,
            "conv_last.weight".to_owned(),
        )
    };
    let first = keys.shape(first, 4)?;
    let (width, input) = (first[0], first[1]);
    let out = keys.shape(&last, 4)?[0];
    let unshuffle = [2, 4]
        .into_iter()
        .find(|s| input == out * s * s)
        .unwrap_or(1);
    let config = Config {
        input,
        out,
        width,
        growth: keys.shape(block, 4)?[0],
        blocks,
        ups,
        unshuffle,
        plus: keys.names().any(|name| name.contains(".conv1x1.")),
    };
    let scale = (1 << ups) / unshuffle;
    if scale == 0 {
        return Err(keys.refused("it makes pictures smaller"));
    }
    let facts = UpscaleFacts {
        minimum: 2,
        multiple: if unshuffle > 1 { 4 } else { 1 },
        ..UpscaleFacts::plain("ESRGAN", scale, input / (unshuffle * unshuffle), out)
    };
    let store = keys.renamed(|name| key(name, blocks, ups));
    let build = move |weights: &Walk<'_>| Esrgan::new(weights, &config);
    Ok(Some(FoundKind::new(facts, store, build)))
}

/// A block of five convolutions.
struct DenseBlock {
    convs: Vec<Arc<Conv2d>>,
    /// Of the variant with noise, which has one more way.
    beside: Option<Arc<Linear>>,
}

impl DenseBlock {
    fn new(weights: &Walk<'_>, config: &Config) -> Result<Self> {
        let conv = |i: usize| {
            let out = if i + 1 == CONVS {
                config.width
            } else {
                config.growth
            };
            let input = config.width + i * config.growth;
            weights.conv(&format!("conv{}", i + 1), out, input, 3, 1)
        };
        let beside = || weights.matrix("conv1x1", config.growth, config.width);
        Ok(Self {
            convs: (0..CONVS).map(conv).collect::<Result<_>>()?,
            beside: config.plus.then(beside).transpose()?,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let mut seen = vec![x.clone()];
        for (i, conv) in self.convs.iter().enumerate() {
            let all = concat_channels(&seen.iter().collect::<Vec<_>>())?;
            if i + 1 == CONVS {
                let found = conv.forward(&all)?;
                return Ok(x.add(&found.mul_scalar(SHARE))?);
            }
            let mut found = conv.forward_with(&all, then(Act::Leaky))?;
            if let Some(beside) = &self.beside {
                if i == 1 {
                    found = beside.forward_with(x, plus(&found))?;
                } else if i == 3 {
                    found = found.add(&seen[2])?;
                }
            }
            seen.push(found);
        }
        Ok(x.clone())
    }
}

struct Esrgan {
    unshuffle: usize,
    first: Arc<Conv2d>,
    blocks: Vec<Vec<DenseBlock>>,
    body: Arc<Conv2d>,
    ups: Vec<Arc<Conv2d>>,
    hr: Arc<Conv2d>,
    last: Arc<Conv2d>,
}

impl Esrgan {
    fn new(weights: &Walk<'_>, config: &Config) -> Result<Self> {
        let width = config.width;
        let block = |i: usize| {
            let weights = weights.at("blocks").at(i);
            let parts = (1..=RDBS).map(|j| DenseBlock::new(&weights.at(format!("rdb{j}")), config));
            parts.collect::<Result<Vec<_>>>()
        };
        let same = |name: &str| weights.conv(name, width, width, 3, 1);
        Ok(Self {
            unshuffle: config.unshuffle,
            first: weights.conv("first", width, config.input, 3, 1)?,
            blocks: (0..config.blocks).map(block).collect::<Result<_>>()?,
            body: same("body")?,
            ups: (0..config.ups)
                .map(|i| same(&format!("up.{i}")))
                .collect::<Result<_>>()?,
            hr: same("hr")?,
            last: weights.conv("last", config.out, width, 3, 1)?,
        })
    }
}

impl UpscaleNetwork for Esrgan {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let x = match self.unshuffle {
            1 => x.clone(),
            s => pixel_unshuffle(x, s)?,
        };
        let first = self.first.forward(&x)?;
        let mut h = first.clone();
        for block in &self.blocks {
            fresco_tensor::cancel::check()?;
            let mut inner = h.clone();
            for part in block {
                inner = part.forward(&inner)?;
            }
            h = h.add(&inner.mul_scalar(SHARE))?;
        }
        let mut h = self.body.forward_with(&h, plus(&first))?;
        drop(first);
        for up in &self.ups {
            let [_, rows, columns, _] = h.dims4()?;
            h = up.upsampled(&h, (2 * rows, 2 * columns), then(Act::Leaky))?;
        }
        let h = activate(self.hr.forward(&h)?, Act::Leaky);
        Ok(self.last.forward(&h)?)
    }
}
