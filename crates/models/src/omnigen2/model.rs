//! The network and what goes into it.

use std::sync::Arc;

use fresco_tensor::nn::{LayerNorm, Linear, Mask, RmsNorm, Value, modulate, silu};
use fresco_tensor::{Device, Tensor};

use super::blocks::{self, EPS};
use super::config::{OmniGenConfig, PATCH};
use crate::conds;
use crate::denoise::hook_points::{BLOCKS, CONTROL, HookPoints, OWN_APART};
use crate::denoise::hooks::BlockKind;
use crate::denoise::{
    CondValue, DiffusionNetwork, EncodeArgs, ModelConds, ModelFacts, NetworkInput, PassMemory,
    names,
};
use crate::error::{ModelError, Result};
use crate::latent_format;
use crate::model_sampling::ModelSampling;
use crate::store::Walk;
use crate::transformer::{
    Blocks, PatchOrder, PictureTokens, Rope, SandwichBlock, TimeEmbed, TokenGrid, TokenMask,
    grid_positions, hides, video_to_tokens,
};

/// Width of the waves that stand for a noise level.
const WAVES: usize = 256;

/// Values of a token that a pass holds at its fullest, in widths of the network.
const HELD: usize = 16;

/// Tokens of a prompt that memory is counted with.
const PROMPT: usize = 512;

pub struct OmniGenNetwork {
    device: Device,
    config: OmniGenConfig,
    cells: PictureTokens,
    reference_cells: Arc<Linear>,
    /// One for each reference picture.
    reference_marks: Arc<Value>,
    time: TimeEmbed,
    caption_norm: Arc<RmsNorm>,
    caption: Arc<Linear>,
    noise_refiner: Vec<SandwichBlock>,
    reference_refiner: Vec<SandwichBlock>,
    context_refiner: Vec<SandwichBlock>,
    layers: Vec<SandwichBlock>,
    last_norm: LayerNorm,
    last_scale: Arc<Linear>,
}

/// Positions of a prompt and of pictures that follow each other on the first axis.
struct Positions {
    list: Vec<[f64; 3]>,
    next: f64,
}

impl Positions {
    fn new(prompt: usize) -> Self {
        Self {
            list: (0..prompt).map(|i| [i as f64; 3]).collect(),
            next: prompt as f64,
        }
    }

    fn picture(&mut self, [_, rows, columns]: TokenGrid) {
        self.list
            .extend(grid_positions(self.next, (rows, columns), (0.0, 0.0)));
        self.next += rows.max(columns) as f64;
    }
}

conds! {
    /// What the network is told besides the latent.
    struct OmniGenConds<'a> {
        prompt: &'a Tensor = names::PROMPT,
        mask: Option<&'a Tensor> = names::MASK,
        shown: Option<f64> = "num_tokens",
        references: &'a [Tensor] = names::REFERENCES,
    }
}

impl DiffusionNetwork for OmniGenNetwork {
    type Config = OmniGenConfig;

    const HOOKS: HookPoints = HookPoints(&[(BlockKind::DOUBLE, &[BLOCKS, CONTROL, OWN_APART])]);

    fn facts(config: &OmniGenConfig) -> ModelFacts {
        ModelFacts {
            latent: latent_format::FLUX,
            latent_channels: config.channels,
            in_channels: config.channels,
            context: Some(config.caption),
            model_channels: None,
            architecture: None,
            pass: PassMemory::of_cells(PATCH * PATCH, config.dim, HELD).with_prompt(PROMPT),
            sampling: ModelSampling::flow(2.6, 1.0),
        }
    }

    fn new(weights: &Walk<'_>, config: &OmniGenConfig) -> Result<Self> {
        let (dim, signal) = (config.dim, config.signal);
        let values = config.channels * PATCH * PATCH;
        let blocks = |name: &str, count: usize, modulated: bool| -> Result<Vec<SandwichBlock>> {
            let block = |weights: &Walk<'_>| blocks::block(weights, config, modulated);
            weights.at(name).each(count, block)
        };
        let embed = weights.at("time_caption_embed");
        let end = weights.at("norm_out");
        Ok(Self {
            device: weights.device().clone(),
            config: config.clone(),
            cells: PictureTokens::new(
                weights.linear("x_embedder", dim, values)?,
                end.linear("linear_2", values, dim)?,
                PATCH,
                [PatchOrder::ChannelLast; 2],
            ),
            reference_cells: weights.linear("ref_image_patch_embedder", dim, values)?,
            reference_marks: weights.value("image_index_embedding", &[config.references, dim])?,
            time: TimeEmbed::new(
                &embed.at("timestep_embedder"),
                ["linear_1", "linear_2"],
                WAVES,
                signal,
            )?,
            caption_norm: embed.rms_norm("caption_embedder.0.weight", config.caption, EPS)?,
            caption: embed.linear("caption_embedder.1", dim, config.caption)?,
            noise_refiner: blocks("noise_refiner", config.refiners, true)?,
            reference_refiner: blocks("ref_image_refiner", config.refiners, true)?,
            context_refiner: blocks("context_refiner", config.refiners, false)?,
            layers: blocks("layers", config.layers, true)?,
            last_norm: LayerNorm::new(None, None, 1e-6)?,
            last_scale: end.linear("linear_1", dim, signal)?,
        })
    }

    fn forward(&self, input: &NetworkInput<'_>) -> Result<Tensor> {
        let conds = OmniGenConds::read(input.conds)?;
        let hooks = input.hooks;
        let prompt = conds.prompt;
        let normed = self.caption_norm.forward(&prompt.to(&self.device)?)?;
        let mut caption = self.caption.forward(&normed)?;
        let count = caption.dim(1)?;
        let shown = conds.shown.unwrap_or(count as f64);
        let mut positions = Positions::new(count);
        positions.next = shown;
        let mut references = self.references(conds.references, &mut positions)?;
        let beside = references.as_ref().map_or(Ok(0), |tokens| tokens.dim(1))?;
        let (mut picture, places) = self.cells.enter(input.x, &self.device)?;
        positions.picture(places.grid);
        let config = &self.config;
        let rope = Rope::new(positions.list.as_flattened(), &config.axes, config.theta)?;
        let rope = rope.to(&self.device)?;

        let levels: Vec<f32> = input.timesteps.iter().map(|t| 1.0 - t).collect();
        let signal = silu(&self.time.forward(&levels, 1000.0, &self.device)?);
        let mask = TokenMask::new(conds.mask, 0, &self.device)?;
        let own = rope.narrow(0, count)?;
        for block in &self.context_refiner {
            hooks.check()?;
            caption = block.forward(caption, mask.mask(), &own, &signal)?;
        }
        let own = rope.narrow(count + beside, picture.dim(1)?)?;
        for block in &self.noise_refiner {
            hooks.check()?;
            picture = block.forward(picture, Mask::None, &own, &signal)?;
        }
        if let Some(tokens) = references.take() {
            let own = rope.narrow(count, beside)?;
            let mut tokens = tokens;
            for block in &self.reference_refiner {
                hooks.check()?;
                tokens = block.forward(tokens, Mask::None, &own, &signal)?;
            }
            references = Some(tokens);
        }
        let parts: Vec<&Tensor> = [Some(&caption), references.as_ref(), Some(&picture)]
            .into_iter()
            .flatten()
            .collect();
        let x = Tensor::cat(&parts, 1)?;
        let cells = picture.dim(1)?;
        drop((caption, references, picture));
        let (kind, blocks) = (BlockKind::DOUBLE, self.layers.len());
        let blocks = Blocks::new(kind, blocks, config.heads, places.grid, input);
        let blocks = blocks.with_text(count + beside);
        let x = blocks.run(x, |number, x| {
            self.layers[number].forward(x, Mask::None, &rope, &signal)
        })?;
        let x = x.narrow(1, count + beside, cells)?;
        let scale = self.last_scale.forward(&signal)?;
        let x = modulate(self.last_norm.forward(&x)?, &scale, None)?;
        // The network looks from the picture to the noise.
        Ok(self.cells.leave(&x, &places)?.mul_scalar(-1.0))
    }

    fn encode(config: &OmniGenConfig, file: &str, args: &EncodeArgs<'_>) -> Result<ModelConds> {
        let mut conds = ModelConds::new();
        let tokens = args.prompt_of_width(config.caption, file)?;
        conds.insert(names::PROMPT, CondValue::Regular(tokens.clone()));
        if let Some(mask) = args.cond.tensors.get("attention_mask") {
            let shown = mask.data().iter().filter(|v| **v != 0.0).count();
            let shown = shown / mask.dim(0)?.max(1);
            conds.insert("num_tokens", CondValue::Constant(shown.max(1) as f64));
            if hides(mask) {
                conds.insert(names::MASK, CondValue::Regular(mask.clone()));
            }
        }
        if let Some(list) = args.cond.lists.get("reference_latents") {
            let mut latents = Vec::with_capacity(list.len());
            if list.len() > config.references {
                let most = config.references;
                let reason = format!("this model tells at most {most} reference pictures apart");
                return Err(ModelError::unsupported(file, reason));
            }
            for latent in list {
                if latent.rank() != 4 || latent.dim(1)? != config.channels {
                    let reason = format!(
                        "a reference picture has a latent of shape {:?}, but this model takes {} channels: it was encoded \
                         with the VAE of another family of models. Load the one that belongs to this model",
                        latent.shape(),
                        config.channels
                    );
                    return Err(ModelError::unsupported(file, reason));
                }
                latents.push(latent_format::FLUX.process_in(latent)?);
            }
            conds.insert(names::REFERENCES, CondValue::List(latents));
        }
        Ok(conds)
    }
}

impl OmniGenNetwork {
    /// The tokens of all reference pictures, each with its mark.
    fn references(&self, list: &[Tensor], positions: &mut Positions) -> Result<Option<Tensor>> {
        let marks = self.reference_marks.at(&self.device)?;
        let mut all = Vec::with_capacity(list.len());
        for (number, latent) in list.iter().enumerate() {
            let film = latent.unsqueeze(2)?;
            let (tokens, grid) = video_to_tokens(&film, PATCH, PatchOrder::ChannelLast)?;
            positions.picture(grid);
            let tokens = self.reference_cells.forward(&tokens.to(&self.device)?)?;
            all.push(tokens.add(&marks.narrow(0, number, 1)?)?);
        }
        if all.is_empty() {
            return Ok(None);
        }
        Ok(Some(Tensor::cat(&all.iter().collect::<Vec<_>>(), 1)?))
    }
}
