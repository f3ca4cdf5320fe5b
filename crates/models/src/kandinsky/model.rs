//! The network and what goes into it.

use std::sync::Arc;

use fresco_tensor::nn::{Act, LayerNorm, Linear, Mask, silu};
use fresco_tensor::{Crop, Device, ResizeMethod, Tensor, common_upscale, resize_to_batch};

use super::config::{KandinskyConfig, PATCH};
use crate::conds;
use crate::denoise::hook_points::{BLOCKS, CONTROL, HookPoints, OWN, PROMPT};
use crate::denoise::hooks::BlockKind;
use crate::denoise::{
    CondValue, DiffusionNetwork, EncodeArgs, ModelConds, ModelFacts, NetworkInput, PassMemory,
    names,
};
use crate::error::{ModelError, Result};
use crate::latent_format;
use crate::model_sampling::ModelSampling;
use crate::store::{Bias, Walk};
use crate::transformer::{
    AdaLn, Attention, AttentionLayers, Blocks, HeadNorm, Heads, Looks, Mlp, MlpLayers, PatchOrder,
    PictureTokens, QkvLayers, Rope, RopeScale, Rotation, TimeEmbed, TokenRows, chunks,
    grid_positions,
};

const EPS: f32 = 1e-5;

/// Values of a token that a pass holds at its fullest, in widths of the network.
const HELD: usize = 14;

fn attention(weights: &Walk<'_>, config: &KandinskyConfig, looks: Looks) -> Result<Attention> {
    // The reference leaves it at the smallest difference that its numbers have.
    let norm = HeadNorm::Rms(["query_norm.weight", "key_norm.weight"], f32::EPSILON);
    let heads = Heads::new(config.heads, config.head(), norm);
    let qkv = QkvLayers::Apart(["to_query", "to_key", "to_value"]);
    let layers = AttentionLayers {
        looks,
        ..AttentionLayers::new(qkv, "out_layer", config.dim, heads)
    };
    Attention::new(weights, &layers)
}

/// A block; those of a picture look at the prompt too.
struct Block {
    modulation: Arc<Linear>,
    self_attention: Attention,
    prompt_attention: Option<Attention>,
    feed_forward: Mlp,
}

impl Block {
    fn text(weights: &Walk<'_>, config: &KandinskyConfig) -> Result<Self> {
        Self::new(weights, config, ("text_modulation.out_layer", 6), None)
    }

    fn picture(weights: &Walk<'_>, config: &KandinskyConfig) -> Result<Self> {
        let looks = Looks::Prompt(config.dim);
        let cross = attention(&weights.at("cross_attention"), config, looks)?;
        Self::new(
            weights,
            config,
            ("visual_modulation.out_layer", 9),
            Some(cross),
        )
    }

    fn new(
        weights: &Walk<'_>,
        config: &KandinskyConfig,
        (modulation, numbers): (&str, usize),
        prompt_attention: Option<Attention>,
    ) -> Result<Self> {
        let (dim, ffn) = (config.dim, config.ffn);
        let layers = MlpLayers::Plain(["in_layer", "out_layer"], Act::Gelu);
        Ok(Self {
            modulation: weights.linear(modulation, numbers * dim, config.time)?,
            self_attention: attention(&weights.at("self_attention"), config, Looks::Own)?,
            prompt_attention,
            feed_forward: Mlp::new(
                &weights.at("feed_forward"),
                layers,
                (dim, ffn),
                Bias::Without,
            )?,
        })
    }

    /// `signal` is (b, c), activated.
    fn forward(
        &self,
        norm: &LayerNorm,
        x: Tensor,
        prompt: Option<&Tensor>,
        rope: &Rope,
        signal: &Tensor,
    ) -> Result<Tensor> {
        let all = self.modulation.forward(signal)?;
        let dim = x.dims3()?[2];
        let part = |number: usize| -> Result<[Tensor; 3]> {
            chunks(&all.narrow(1, 3 * number * dim, 3 * dim)?)
        };
        let [shift, scale, gate] = part(0)?;
        let input = TokenRows::modulated(norm, &x, &shift, &scale);
        let seen = self.self_attention.qkv(input)?.attend(rope, Mask::None)?;
        let mut x = self.self_attention.add_gated(&seen, x, &gate)?;
        let mut last = 1;
        if let (Some(attention), Some(prompt)) = (&self.prompt_attention, prompt) {
            let [shift, scale, gate] = part(1)?;
            let qkv = attention.qkv_to(&norm.modulated(&x, &shift, &scale)?, prompt)?;
            let seen = qkv.attend(Rotation::NONE, Mask::None)?;
            x = attention.add_gated(&seen, x, &gate)?;
            last = 2;
        }
        let [shift, scale, gate] = part(last)?;
        let input = TokenRows::modulated(norm, &x, &shift, &scale);
        let inner = self.feed_forward.inner(input)?;
        self.feed_forward.add_gated(&inner, x, &gate)
    }
}

/// Latent frames that a film begins with.
const BEGINNING: &str = "time_dim_replace";

/// What goes in beside the noise: nothing for now, and a mask of what is known.
fn beside(args: &EncodeArgs<'_>) -> Result<Tensor> {
    let &[count, channels, frames, h, w] = args.noise.shape() else {
        let reason = format!("{:?} is not the shape of a film", args.noise.shape());
        return Err(ModelError::invalid("latent", reason));
    };
    let picture = Tensor::zeros([count, channels, frames, h, w])?;
    let found = args.cond.tensors.get("concat_mask").or(args.denoise_mask);
    let mask = match found {
        Some(mask) if mask.rank() == 5 => {
            let mask = mask.narrow(1, 0, 1)?.rsub_scalar(1.0);
            let mask = common_upscale(&mask, w, h, ResizeMethod::Bilinear, Crop::Center)?;
            let known = mask.dim(2)?.min(frames);
            let mut all = Tensor::zeros([mask.dim(0)?, 1, frames, h, w])?;
            all.paste(&[0; 5], &mask.narrow(2, 0, known)?)?;
            resize_to_batch(&all, count)?
        }
        _ => Tensor::zeros([count, 1, frames, h, w])?,
    };
    Ok(Tensor::cat(&[&picture, &mask], 1)?)
}

pub struct KandinskyNetwork {
    device: Device,
    config: KandinskyConfig,
    time: TimeEmbed,
    pooled: Arc<Linear>,
    pooled_norm: Arc<LayerNorm>,
    text: Arc<Linear>,
    text_norm: Arc<LayerNorm>,
    cells: PictureTokens,
    text_blocks: Vec<Block>,
    blocks: Vec<Block>,
    norm: LayerNorm,
    last_modulation: AdaLn<2>,
}

conds! {
    /// What the network is told besides the latent.
    struct KandinskyConds<'a> {
        prompt: &'a Tensor = names::PROMPT,
        pooled: &'a Tensor = names::POOLED,
        beginning: Option<&'a Tensor> = BEGINNING,
    }
}

impl DiffusionNetwork for KandinskyNetwork {
    type Config = KandinskyConfig;

    const HOOKS: HookPoints = HookPoints(&[(BlockKind::DOUBLE, &[BLOCKS, CONTROL, OWN, PROMPT])]);

    fn facts(config: &KandinskyConfig) -> ModelFacts {
        let moves = config.moves();
        ModelFacts {
            latent: if moves {
                latent_format::HUNYUAN_VIDEO
            } else {
                latent_format::FLUX
            },
            latent_channels: config.channels,
            in_channels: config.in_channels,
            context: Some(config.context),
            model_channels: None,
            architecture: None,
            pass: PassMemory::of_cells(PATCH * PATCH, config.dim, HELD),
            sampling: ModelSampling::flow(if moves { 10.0 } else { 3.0 }, 1000.0),
        }
    }

    fn new(weights: &Walk<'_>, config: &KandinskyConfig) -> Result<Self> {
        let (dim, time) = (config.dim, config.time);
        let cells = PATCH * PATCH;
        let text = weights.at("text_transformer_blocks");
        let picture = weights.at("visual_transformer_blocks");
        let pooled = weights.at("pooled_text_embeddings");
        let end = weights.at("out_layer");
        Ok(Self {
            device: weights.device().clone(),
            config: config.clone(),
            time: TimeEmbed::new(
                &weights.at("time_embeddings"),
                ["in_layer", "out_layer"],
                dim,
                time,
            )?,
            pooled: pooled.linear("in_layer", time, config.pooled)?,
            pooled_norm: pooled.layer_norm("norm", time, EPS)?,
            text: weights.linear("text_embeddings.in_layer", dim, config.context)?,
            text_norm: weights.layer_norm("text_embeddings.norm", dim, EPS)?,
            cells: PictureTokens::new(
                weights.linear(
                    "visual_embeddings.in_layer",
                    dim,
                    config.in_channels * cells,
                )?,
                end.linear("out_layer", config.channels * cells, dim)?,
                PATCH,
                [PatchOrder::ChannelLast, PatchOrder::ChannelFirst],
            ),
            text_blocks: text.each(config.text_blocks, |weights| Block::text(weights, config))?,
            blocks: picture.each(config.blocks, |weights| Block::picture(weights, config))?,
            norm: LayerNorm::new(None, None, EPS)?,
            last_modulation: AdaLn::new(&end, "modulation.out_layer", dim, time, Bias::With)?,
        })
    }

    fn forward(&self, input: &NetworkInput<'_>) -> Result<Tensor> {
        let conds = KandinskyConds::read(input.conds)?;
        let (hooks, device) = (input.hooks, &self.device);
        // A picture is a film of one frame.
        let still = input.x.rank() == 4;
        let mut film = if still {
            input.x.unsqueeze(2)?
        } else {
            input.x.clone()
        };
        if let Some(given) = conds.beginning {
            let fits = given.rank() == 5
                && given.shape()[3..] == film.shape()[3..]
                && given.dim(0)? == film.dim(0)?;
            if !fits || given.dim(1)? > film.dim(1)? || given.dim(2)? > film.dim(2)? {
                let reason = format!(
                    "a latent of shape {:?} does not fit a film of shape {:?}",
                    given.shape(),
                    film.shape()
                );
                return Err(ModelError::invalid(BEGINNING, reason));
            }
            film.paste(&[0; 5], given)?;
        }
        let &[_, _, _, height, width] = film.shape() else {
            let reason = format!("{:?} is not the shape of a film", film.shape());
            return Err(ModelError::invalid("latent", reason));
        };
        let signal = silu(&self.time(input.timesteps, conds.pooled)?);
        let text = self.text.forward(&conds.prompt.to(device)?)?;
        let mut text = self.text_norm.forward(&text)?;
        let count: Vec<f64> = (0..text.dim(1)?).map(|i| i as f64).collect();
        let config = &self.config;
        let line = Rope::new(&count, &[config.head()], config.theta)?.to(device)?;
        for block in &self.text_blocks {
            hooks.check()?;
            text = block.forward(&self.norm, text, None, &line, &signal)?;
        }
        let (x, places) = self.cells.enter(&film, device)?;
        drop(film);
        let grid = places.grid;
        let apart = config.closeness(height * width);
        let mut positions: Vec<[f64; 3]> = Vec::with_capacity(grid.iter().product());
        for frame in 0..grid[0] {
            let rows = grid_positions(frame as f64, (grid[1], grid[2]), (0.0, 0.0));
            positions.extend(rows.map(|[frame, row, column]| [frame, row / apart, column / apart]));
        }
        if let Some(scale) = hooks.beside::<RopeScale>().last() {
            scale.move_picture(&mut positions);
        }
        let rope = Rope::new(positions.as_flattened(), &config.axes, config.theta)?;
        let rope = rope.to(device)?;
        let (kind, count) = (BlockKind::DOUBLE, self.blocks.len());
        let blocks = Blocks::new(kind, count, config.heads, grid, input);
        let (x, _) = blocks.run_pair((x, text), |number, x, text| {
            let block = &self.blocks[number];
            let x = block.forward(&self.norm, x, Some(&text), &rope, &signal)?;
            Ok((x, text))
        })?;
        let [shift, scale] = self.last_modulation.forward(&signal)?;
        let x = self.norm.modulated(&x, &shift, &scale)?;
        let out = self.cells.leave(&x, &places)?;
        Ok(if still { out.squeeze(2)? } else { out })
    }

    fn encode(config: &KandinskyConfig, file: &str, args: &EncodeArgs<'_>) -> Result<ModelConds> {
        let mut conds = ModelConds::new();
        let tokens = args.prompt_of_width(config.context, file)?;
        conds.insert(names::PROMPT, CondValue::Regular(tokens.clone()));
        let pooled = args.pooled_of_width(config.pooled, file)?;
        conds.insert(names::POOLED, CondValue::Regular(pooled.clone()));
        if !config.moves() {
            return Ok(conds);
        }
        if config.in_channels != 2 * config.channels + 1 {
            let reason = format!(
                "a network from {} to {} channels is of no known kind",
                config.in_channels, config.channels
            );
            return Err(ModelError::unsupported(file, reason));
        }
        conds.insert(names::BESIDE, CondValue::NoiseShape(beside(args)?));
        if let Some(given) = args.cond.tensors.get(BEGINNING) {
            let format = Self::facts(config).latent;
            if given.rank() != 5 || given.dim(1)? != config.channels {
                let reason = format!(
                    "a film's beginning has a latent of shape {:?}, this model works on {} channels: it was encoded with \
                     the VAE of another family of models. Load the one that belongs to this model",
                    given.shape(),
                    config.channels
                );
                return Err(ModelError::unsupported(file, reason));
            }
            conds.insert(BEGINNING, CondValue::Regular(format.process_in(given)?));
        }
        Ok(conds)
    }
}

impl KandinskyNetwork {
    /// What says the noise level, and the pooled prompt with it.
    fn time(&self, timesteps: &[f32], pooled: &Tensor) -> Result<Tensor> {
        let time = self.time.forward(timesteps, 1.0, &self.device)?;
        let pooled = self.pooled.forward(&pooled.to(&self.device)?)?;
        Ok(time.add(&self.pooled_norm.forward(&pooled)?)?)
    }
}
