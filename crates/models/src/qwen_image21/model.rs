//! The network.

use std::sync::Arc;

use fresco_tensor::nn::{LayerNorm, Linear, modulate};
use fresco_tensor::{Device, Tensor};

use super::blocks::{Block, EPS, Level, Levels, TextIn};
use super::cache::{PrefixCache, PrefixKey, PrefixRows};
use super::config::{Qwen21Config, THETA};
use super::encode;
use super::sequence::{Places, Segment, segments};
use crate::conds;
use crate::denoise::hook_points::{BLOCKS, HookPoints, OWN};
use crate::denoise::hooks::{BlockKind, Hooks};
use crate::denoise::{
    DiffusionNetwork, EncodeArgs, ModelConds, ModelFacts, NetworkInput, PassMemory, names,
};
use crate::error::{ModelError, Result};
use crate::latent_format;
use crate::model_sampling::ModelSampling;
use crate::store::Walk;
use crate::transformer::{Blocks, PatchOrder, Rope, from_tokens, to_tokens};

/// What one pass looks at. Everything is in main memory.
pub struct Inputs<'a> {
    /// (b, c, h, w).
    pub x: &'a Tensor,
    pub timesteps: &'a [f32],
    /// The prompt's rows (b, n, width), without those of reference pictures.
    pub context: &'a Tensor,
    /// Latents (b, c, h, w) of any size.
    pub references: &'a [Tensor],
    /// How many rows of the prompt stand before each of them.
    pub slots: &'a [usize],
    pub hooks: &'a Hooks,
}

/// Values per channel of a token that a pass holds at its fullest.
const HELD: usize = 14;

/// The transformer of Qwen-Image 2.1.
pub struct Qwen21Network {
    config: Qwen21Config,
    /// Where it computes.
    device: Device,
    img_in: Arc<Linear>,
    txt_in: TextIn,
    levels: Levels,
    blocks: Vec<Block>,
    norm: LayerNorm,
    norm_out: Arc<Linear>,
    proj_out: Arc<Linear>,
}

/// The picture as tokens of one cell each.
fn cells(x: &Tensor) -> Result<Tensor> {
    to_tokens(x, 1, PatchOrder::ChannelFirst)
}

impl Qwen21Network {
    pub fn config(&self) -> &Qwen21Config {
        &self.config
    }

    fn check(&self, input: &Inputs<'_>) -> Result<[usize; 4]> {
        let wrong = |reason: String| Err(ModelError::invalid("transformer", reason));
        let shape = input.x.dims4()?;
        let [b, c, h, w] = shape;
        if input.x.is_empty() || c != self.config.input || input.timesteps.len() != b {
            return wrong(format!(
                "a latent of shape {shape:?} with {} noise levels; it takes {} channels",
                input.timesteps.len(),
                self.config.input
            ));
        }
        let _ = (h, w);
        match *input.context.shape() {
            [items, n, width] if items == b && n > 0 && width == self.config.context => Ok(shape),
            ref found => wrong(format!(
                "a prompt of shape {found:?} for {b} items of width {}",
                self.config.context
            )),
        }
    }

    /// One pass, in the shape of the latent.
    pub fn predict(&self, input: &Inputs<'_>) -> Result<Tensor> {
        let [_, _, h, w] = self.check(input)?;
        let sizes = input.references.iter().map(fresco_tensor::Tensor::dims4);
        let sizes = sizes.map(|size| size.map(|[_, _, h, w]| (h, w)));
        let sizes = sizes.collect::<fresco_tensor::Result<Vec<_>>>()?;
        let segments = segments(input.context.dim(1)?, input.slots, &sizes)?;
        let mut places = Places::default();
        for segment in &segments {
            places.segment(*segment);
        }
        let before = places.positions.len();
        places.picture(h, w);
        let rope = |positions: &[f64]| -> Result<Rope> {
            Rope::new(positions, &self.config.axes, THETA)?.to(&self.device)
        };
        let level = self.levels.at(input.timesteps, &self.device)?;
        let prefix = self.prefix(input, &segments, &rope(&places.positions[..before])?)?;
        let rope = rope(&places.positions[before..])?;
        let x = self.img_in.forward(&cells(input.x)?.to(&self.device)?)?;
        let (count, heads) = (self.blocks.len(), self.config.width / self.config.head);
        let at = (input.hooks, input.x.shape());
        let blocks = Blocks::of(BlockKind::SINGLE, count, heads, [1, h, w], at);
        let x = blocks.run(x, |number, x| {
            let block = &self.blocks[number];
            let own = block.project(&x, &level, &rope)?;
            block.target(x, own, prefix.get(number), &level)
        })?;
        let scale = self.norm_out.forward(&level.emb)?;
        let x = modulate(self.norm.forward(&x)?, &scale, None)?;
        let out = self.proj_out.forward(&x)?.to(&Device::cpu())?;
        from_tokens(&out, (h, w), 1, PatchOrder::ChannelFirst)
    }

    /// Keys and values of what stands before the picture, for each block: from the run's cache where there is one.
    fn prefix(&self, input: &Inputs<'_>, segments: &[Segment], rope: &Rope) -> Result<PrefixRows> {
        let Some(cache) = input.hooks.beside::<PrefixCache>().next() else {
            return Ok(Arc::new(self.prefix_rows(input, segments, rope)?));
        };
        let key = PrefixKey {
            context: input.context.clone(),
            references: input.references.to_vec(),
            slots: input.slots.to_vec(),
        };
        if let Some(rows) = cache.find(&key) {
            return Ok(rows);
        }
        let rows = self.prefix_rows(input, segments, rope)?;
        cache.keep(key.clone(), rows)?;
        let kept = cache.find(&key);
        kept.ok_or_else(|| ModelError::invalid("transformer", "the prefix was not kept"))
    }

    fn prefix_rows(
        &self,
        input: &Inputs<'_>,
        segments: &[Segment],
        rope: &Rope,
    ) -> Result<Vec<(Tensor, Tensor)>> {
        let text = self.txt_in.forward(&input.context.to(&self.device)?)?;
        let mut parts = Vec::with_capacity(segments.len());
        for segment in segments {
            parts.push(match *segment {
                Segment::Text { start, len } => text.narrow(1, start, len)?,
                Segment::Picture { number, .. } => {
                    let tokens = cells(&input.references[number])?;
                    self.img_in.forward(&tokens.to(&self.device)?)?
                }
            });
        }
        let mut x = Tensor::cat(&parts.iter().collect::<Vec<_>>(), 1)?;
        drop((parts, text));
        let level: Level = self.levels.at(&[0.0], &self.device)?;
        let mut rows = Vec::with_capacity(self.blocks.len());
        for (number, block) in self.blocks.iter().enumerate() {
            input.hooks.check()?;
            let own = block.project(&x, &level, rope)?;
            // Nobody looks at the prefix after the last block.
            let skipped = input.hooks.skips(BlockKind::SINGLE, number);
            if number + 1 < self.blocks.len() && !skipped {
                x = block.prefix(x, &own, segments, &level)?;
            }
            rows.push((own.k, own.v));
        }
        Ok(rows)
    }
}

conds! {
    /// What the network is told besides the latent.
    struct Qwen21Conds<'a> {
        prompt: &'a Tensor = names::PROMPT,
        references: &'a [Tensor] = names::REFERENCES,
        slots: Option<&'a str> = "ref_slots",
    }
}

impl DiffusionNetwork for Qwen21Network {
    type Config = Qwen21Config;

    const HOOKS: HookPoints = HookPoints(&[(BlockKind::SINGLE, &[BLOCKS, OWN])]);

    fn facts(config: &Qwen21Config) -> ModelFacts {
        ModelFacts {
            latent: latent_format::QWEN_IMAGE_21,
            latent_channels: config.output,
            in_channels: config.input,
            context: Some(config.context),
            model_channels: None,
            architecture: None,
            pass: PassMemory::of_cells(1, config.width, HELD),
            sampling: ModelSampling::exponential_flow(0.69),
        }
    }

    fn new(weights: &Walk<'_>, config: &Qwen21Config) -> Result<Self> {
        let width = config.width;
        let blocks = weights.at("transformer_blocks");
        let blocks = blocks.each(config.layers, |weights| Block::new(weights, config))?;
        Ok(Self {
            img_in: weights.matrix("img_in", width, config.input)?,
            txt_in: TextIn::new(&weights.at("txt_in"), config)?,
            levels: Levels::new(weights, width)?,
            blocks,
            norm: LayerNorm::new(None, None, EPS)?,
            norm_out: weights.matrix("norm_out.linear", width, width)?,
            proj_out: weights.matrix("proj_out", config.output, width)?,
            device: weights.device().clone(),
            config: config.clone(),
        })
    }

    fn forward(&self, input: &NetworkInput<'_>) -> Result<Tensor> {
        let conds = Qwen21Conds::read(input.conds)?;
        self.predict(&Inputs {
            x: input.x,
            timesteps: input.timesteps,
            context: conds.prompt,
            references: conds.references,
            slots: &encode::slots(conds.slots)?,
            hooks: input.hooks,
        })
    }

    fn encode(config: &Qwen21Config, file: &str, args: &EncodeArgs<'_>) -> Result<ModelConds> {
        encode::conds(config, file, args)
    }
}
