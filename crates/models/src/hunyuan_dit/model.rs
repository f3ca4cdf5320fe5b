//! The network and what goes into it.

use std::cell::RefCell;
use std::sync::Arc;

use fresco_tensor::nn::{Act, Embedding, LayerNorm, silu};
use fresco_tensor::{Device, Tensor};

use super::blocks::{Block, BlockPass, EPS};
use super::config::{HunyuanDitConfig, PATCH, SIZES, WAVES};
use super::text::{Pooler, Words};
use crate::conds;
use crate::denoise::hook_points::{BLOCKS, CONTROL, HookPoints, OWN, PROMPT};
use crate::denoise::hooks::BlockKind;
use crate::denoise::{
    CondValue, DiffusionNetwork, EncodeArgs, ModelConds, ModelFacts, NetworkInput, PassMemory,
    names,
};
use crate::error::{ModelError, Result};
use crate::latent_format;
use crate::model_sampling::{ModelSampling, Prediction};
use crate::store::{Bias, Walk};
use crate::transformer::{
    AdaLn, Blocks, Mlp, MlpLayers, PatchOrder, PictureTokens, Rope, TimeEmbed, TokenGrid,
    patch_conv, sinusoid,
};

/// What a conditioning calls T5's vectors and which of them count.
const SECOND: &str = "conditioning_mt5xl";
const SECOND_MASK: &str = "attention_mask_mt5xl";

/// The size of a picture that nobody says.
const USUAL_SIZE: f64 = 768.0;

/// Tokens along a side of the grid that positions are counted on, whatever the size of the picture.
const BASE: f64 = 32.0;

/// Values of a token that a pass holds at its fullest, in widths of the network, without what is kept for later blocks.
const HELD: usize = 12;

/// See the [module](super).
pub struct HunyuanDitNetwork {
    device: Device,
    config: HunyuanDitConfig,
    words: Words,
    pooler: Pooler,
    style: Option<Arc<Embedding>>,
    cells: PictureTokens,
    time: TimeEmbed,
    extra: Mlp,
    blocks: Vec<Block>,
    norm: LayerNorm,
    last_modulation: AdaLn<2>,
}

conds! {
    /// What the network is told besides the latent.
    struct HunyuanDitConds<'a> {
        first: &'a Tensor = names::PROMPT,
        second: &'a Tensor = SECOND,
        first_mask: Option<&'a Tensor> = names::MASK,
        second_mask: Option<&'a Tensor> = SECOND_MASK,
        sizes: Option<&'a Tensor> = "image_meta_size",
    }
}

impl DiffusionNetwork for HunyuanDitNetwork {
    type Config = HunyuanDitConfig;

    const HOOKS: HookPoints = HookPoints(&[(BlockKind::DOUBLE, &[BLOCKS, CONTROL, OWN, PROMPT])]);

    fn facts(config: &HunyuanDitConfig) -> ModelFacts {
        let last = if config.size { 0.03 } else { 0.018 };
        ModelFacts {
            latent: latent_format::SDXL,
            latent_channels: config.channels,
            in_channels: config.channels,
            context: Some(config.context),
            model_channels: None,
            architecture: None,
            pass: PassMemory::of_cells(PATCH * PATCH, config.dim, HELD + config.blocks / 2),
            sampling: ModelSampling::discrete_until(Prediction::V, last),
        }
    }

    fn new(weights: &Walk<'_>, config: &HunyuanDitConfig) -> Result<Self> {
        let dim = config.dim;
        let told = config.pooled
            + if config.size { SIZES * WAVES } else { 0 }
            + if config.style { dim } else { 0 };
        let blocks = weights.at("blocks");
        let end = weights.at("final_layer");
        let time = weights.at("t_embedder");
        let block = |number: usize| {
            let skip = number >= config.skips_from();
            Block::new(&blocks.at(number), config, skip)
        };
        Ok(Self {
            device: weights.device(),
            config: config.clone(),
            words: Words::new(weights, config)?,
            pooler: Pooler::new(&weights.at("pooler"), config)?,
            style: config
                .style
                .then(|| weights.embedding("style_embedder", 1, dim))
                .transpose()?,
            cells: PictureTokens::convolved(
                patch_conv(weights, "x_embedder.proj", dim, config.channels, PATCH)?,
                end.linear("linear", config.out_channels * PATCH * PATCH, dim)?,
                PATCH,
                PatchOrder::ChannelLast,
            ),
            time: TimeEmbed::new(&time, ["mlp.0", "mlp.2"], WAVES, dim)?,
            extra: Mlp::between(
                &weights.at("extra_embedder"),
                MlpLayers::Plain(["0", "2"], Act::Silu),
                [told, config.extra, dim],
                Bias::With,
            )?,
            blocks: (0..config.blocks).map(block).collect::<Result<_>>()?,
            norm: LayerNorm::new(None, None, EPS)?,
            last_modulation: AdaLn::new(&end, "adaLN_modulation.1", dim, dim, Bias::With)?,
        })
    }

    fn forward(&self, input: &NetworkInput<'_>) -> Result<Tensor> {
        let conds = HunyuanDitConds::read(input.conds)?;
        let (config, device) = (&self.config, &self.device);
        let [_, channels, ..] = input.x.dims4()?;
        let (x, places) = self.cells.enter(input.x, device)?;
        let (first, second) = (conds.first.to(device)?, conds.second.to(device)?);
        let masks = [conds.first_mask, conds.second_mask];
        let text = self.words.forward([&first, &second], masks)?;
        let signal = silu(&self.signal(input.timesteps, &second, conds.sizes)?);
        let rope = rope(places.grid, config.dim / config.heads)?.to(device)?;
        let pass = BlockPass {
            signal: &signal,
            rope: &rope,
        };
        let (kind, count) = (BlockKind::DOUBLE, self.blocks.len());
        let blocks = Blocks::new(kind, count, config.heads, places.grid, input);
        // What comes back to the last blocks from the first ones: the last kept first.
        let (half, from) = (count / 2, config.skips_from());
        let kept: RefCell<Vec<Option<Tensor>>> = RefCell::new(vec![None; half]);
        let (x, _) = blocks.run_pair_then(
            (x, text),
            |number, x, text| {
                let back = (half + from).checked_sub(number + 2);
                let back = back.filter(|_| number >= from);
                let skip = back.and_then(|back| kept.borrow_mut()[back].take());
                let x = self.blocks[number].forward(x, &text, skip.as_ref(), &pass)?;
                Ok((x, text))
            },
            |number, x| {
                if number + 1 < half {
                    kept.borrow_mut()[number] = Some(x.clone());
                }
                Ok(x)
            },
        )?;
        let [shift, scale] = self.last_modulation.forward(&signal)?;
        let x = self.norm.modulated(&x, &shift, &scale)?;
        let out = self.cells.leave(&x, &places)?;
        // The other channels are how sure it is, which no sampler asks for.
        Ok(out.narrow(1, 0, channels.min(out.dim(1)?))?)
    }

    fn encode(config: &HunyuanDitConfig, file: &str, args: &EncodeArgs<'_>) -> Result<ModelConds> {
        let mut conds = ModelConds::new();
        let tensors = &args.cond.tensors;
        let tokens = args.prompt_of_width(config.context, file)?;
        conds.insert(names::PROMPT, CondValue::Regular(tokens.clone()));
        let wide = |t: &&Tensor| t.rank() == 3 && t.shape()[2] == config.second_context;
        let Some(second) = tensors.get(SECOND).filter(wide) else {
            let reason = format!(
                "the {} conditioning has no text of a multilingual T5 of width {}, which this model needs beside that of \
                 BERT",
                args.prompt_type, config.second_context
            );
            return Err(ModelError::unsupported(file, reason));
        };
        conds.insert(SECOND, CondValue::Regular(second.clone()));
        for name in ["attention_mask", SECOND_MASK] {
            let rows = if name == SECOND_MASK { second } else { tokens }.dim(1)?;
            if let Some(mask) = tensors.get(name).filter(|mask| mask.len() % rows == 0) {
                let mask = mask.reshape([mask.len() / rows, rows])?;
                conds.insert(name, CondValue::Regular(mask));
            }
        }
        if config.size {
            let number = |name: &str, or: f64| args.cond.numbers.get(name).copied().unwrap_or(or);
            let (width, height) = (number("width", USUAL_SIZE), number("height", USUAL_SIZE));
            let target = (
                number("target_width", width),
                number("target_height", height),
            );
            let sizes = [height, width, target.1, target.0, 0.0, 0.0].map(|v| v as f32);
            let sizes = Tensor::from_vec([1, SIZES], sizes.to_vec())?;
            conds.insert("image_meta_size", CondValue::Regular(sizes));
        }
        Ok(conds)
    }
}

impl HunyuanDitNetwork {
    /// The noise level, the prompt in one vector, and the size and the style of the picture where it is told them.
    fn signal(&self, timesteps: &[f32], second: &Tensor, sizes: Option<&Tensor>) -> Result<Tensor> {
        let (device, items) = (&self.device, timesteps.len());
        let time = self.time.forward(timesteps, 1.0, device)?;
        let mut told = vec![self.pooler.forward(second)?];
        if self.config.size {
            let usual = [USUAL_SIZE as f32; 4].into_iter().chain([0.0; 2]);
            let sizes = match sizes {
                Some(sizes) if sizes.len().is_multiple_of(SIZES) && !sizes.is_empty() => {
                    sizes.data().to_vec()
                }
                _ => usual.collect(),
            };
            let all: Vec<f32> = sizes.into_iter().cycle().take(items * SIZES).collect();
            let waves = sinusoid(&all, WAVES)?.to(device)?;
            told.push(waves.reshape([items, SIZES * WAVES])?);
        }
        if let Some(style) = &self.style {
            told.push(style.lookup_on(&vec![0; items], device)?);
        }
        let told = Tensor::cat(&told.iter().collect::<Vec<_>>(), 1)?;
        Ok(time.add(&self.extra.forward(&told)?)?)
    }
}

/// Columns for the first half of a head, rows for the second. The longer side of a picture fills a grid of always the same
/// size, the other lies in its middle.
fn rope([_, rows, columns]: TokenGrid, head: usize) -> Result<Rope> {
    let (tall, wide) = (rows as f64, columns as f64);
    let (down, across) = if tall > wide {
        (BASE, (BASE / tall * wide).round_ties_even())
    } else {
        ((BASE / wide * tall).round_ties_even(), BASE)
    };
    let axis = |length: f64, count: usize| -> Vec<f64> {
        let start = ((BASE - length) / 2.0).round_ties_even();
        let place = |at: usize| f64::from((start + at as f64 * length / count as f64) as f32);
        (0..count).map(place).collect()
    };
    let (down, across) = (axis(down, rows), axis(across, columns));
    let positions: Vec<[f64; 2]> = down
        .iter()
        .flat_map(|row| across.iter().map(|column| [*column, *row]))
        .collect();
    Rope::new(positions.as_flattened(), &[head / 2, head / 2], 10000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_grid_has_positions() {
        for grid in [[1, 1, 1], [1, 3, 5], [1, 64, 2], [1, 128, 128]] {
            assert!(rope(grid, 88).is_ok(), "{grid:?}");
        }
    }
}
