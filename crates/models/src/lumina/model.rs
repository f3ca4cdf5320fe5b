//! The network and what goes into it.

use std::sync::Arc;

use fresco_tensor::nn::{Act, LayerNorm, Linear, Mask, RmsNorm, Value, modulate, silu};
use fresco_tensor::{Device, Tensor};

use super::blocks;
use super::config::{LuminaConfig, Modulation, PATCH};
use super::control::{FunControl, Running};
use crate::conds;
use crate::denoise::hook_points::{BLOCKS, CONTROL, HookPoints, OWN_APART};
use crate::denoise::hooks::BlockKind;
use crate::denoise::{
    CondValue, DiffusionNetwork, EncodeArgs, ModelConds, ModelFacts, NetworkInput, PassMemory,
    names,
};
use crate::error::Result;
use crate::latent_format;
use crate::model_sampling::ModelSampling;
use crate::store::{Bias, Walk};
use crate::transformer::{
    Blocks, MlpLayers, PatchOrder, PictureTokens, Rope, RopeScale, SandwichBlock, TimeEmbed,
    TokenMask, TokenPlaces, grid_positions, hides,
};

/// Width of the waves that stand for a noise level.
const WAVES: usize = 256;

/// Values of a token that a pass holds at its fullest, in widths of the network.
const HELD: usize = 14;

/// Tokens of a prompt that memory is counted with.
const PROMPT: usize = 512;

/// Prompts by themselves are refined before they meet the picture.
const NOISE_REFINER: BlockKind = BlockKind("noise_refiner");

/// A pooled prompt as a part of the signal.
struct Pooled {
    norm: Arc<RmsNorm>,
    proj: Arc<Linear>,
    joined: Arc<Linear>,
    width: usize,
}

/// The tokens that fill up a prompt and a picture.
struct Pads {
    multiple: usize,
    caption: Arc<Value>,
    picture: Arc<Value>,
}

pub struct NextDit {
    device: Device,
    config: LuminaConfig,
    cells: PictureTokens,
    caption_norm: Arc<RmsNorm>,
    caption: Arc<Linear>,
    time: TimeEmbed,
    pooled: Option<Pooled>,
    pads: Option<Pads>,
    noise_refiner: Vec<SandwichBlock>,
    context_refiner: Vec<SandwichBlock>,
    layers: Vec<SandwichBlock>,
    last_norm: LayerNorm,
    last_scale: Arc<Linear>,
}

/// Where a pass has what.
struct Places {
    /// Tokens of the prompt, filled up.
    caption: usize,
    picture: TokenPlaces,
    /// Angles of all tokens.
    rope: Rope,
}

impl Places {
    fn cells(&self) -> usize {
        self.picture.grid.iter().product()
    }
}

conds! {
    /// What the network is told besides the latent.
    struct LuminaConds<'a> {
        prompt: &'a Tensor = names::PROMPT,
        mask: Option<&'a Tensor> = names::MASK,
        pooled: Option<&'a Tensor> = "clip_text_pooled",
    }
}

impl DiffusionNetwork for NextDit {
    type Config = LuminaConfig;

    const HOOKS: HookPoints = HookPoints(&[
        (NOISE_REFINER, &[BLOCKS, CONTROL, OWN_APART]),
        (BlockKind::DOUBLE, &[BLOCKS, CONTROL, OWN_APART]),
    ]);

    fn facts(config: &LuminaConfig) -> ModelFacts {
        let shift = match config.block.modulation {
            Modulation::Plain => 3.0,
            Modulation::Activated => 6.0,
        };
        ModelFacts {
            latent: latent_format::FLUX,
            latent_channels: config.channels,
            in_channels: config.channels,
            context: Some(config.caption),
            model_channels: None,
            architecture: None,
            pass: PassMemory::of_cells(PATCH * PATCH, config.block.dim, HELD).with_prompt(PROMPT),
            sampling: ModelSampling::flow(shift, 1.0),
        }
    }

    fn new(weights: &Walk<'_>, config: &LuminaConfig) -> Result<Self> {
        let (block, dim) = (&config.block, config.block.dim);
        let blocks = |name: &str, count: usize, modulated: bool| -> Result<Vec<SandwichBlock>> {
            let block = |weights: &Walk<'_>| blocks::block(weights, block, modulated);
            weights.at(name).each(count, block)
        };
        let pads = config.pad.map(|multiple| -> Result<Pads> {
            Ok(Pads {
                multiple,
                caption: weights.value("cap_pad_token", &[1, dim])?,
                picture: weights.value("x_pad_token", &[1, dim])?,
            })
        });
        let pooled = config.pooled.map(|width| -> Result<Pooled> {
            let own = weights.at("clip_text_pooled_proj");
            Ok(Pooled {
                norm: own.rms_norm("0.weight", width, 1e-5)?,
                proj: own.linear("1", width, width)?,
                joined: weights.linear("time_text_embed.1", block.signal, block.signal + width)?,
                width,
            })
        });
        let values = config.channels * PATCH * PATCH;
        Ok(Self {
            device: weights.device().clone(),
            config: config.clone(),
            cells: PictureTokens::new(
                weights.linear("x_embedder", dim, values)?,
                weights.linear("final_layer.linear", values, dim)?,
                PATCH,
                [PatchOrder::ChannelLast; 2],
            ),
            caption_norm: weights.rms_norm("cap_embedder.0.weight", config.caption, 1e-5)?,
            caption: weights.linear("cap_embedder.1", dim, config.caption)?,
            time: TimeEmbed::between(
                &weights.at("t_embedder"),
                MlpLayers::Plain(["mlp.0", "mlp.2"], Act::Silu),
                [WAVES, config.time, block.signal],
                Bias::With,
            )?,
            pooled: pooled.transpose()?,
            pads: pads.transpose()?,
            noise_refiner: blocks("noise_refiner", config.noise_refiners, true)?,
            context_refiner: blocks("context_refiner", config.context_refiners, false)?,
            layers: blocks("layers", config.layers, true)?,
            last_norm: LayerNorm::new(None, None, 1e-6)?,
            last_scale: weights.linear("final_layer.adaLN_modulation.1", dim, block.signal)?,
        })
    }

    fn forward(&self, input: &NetworkInput<'_>) -> Result<Tensor> {
        let (hooks, conds) = (input.hooks, LuminaConds::read(input.conds)?);
        let shape = input.x.dims4()?;
        let prompt = conds.prompt;
        let time = self.time(input.timesteps, conds.pooled)?;
        let signal = match self.config.block.modulation {
            Modulation::Plain => time.clone(),
            Modulation::Activated => silu(&time),
        };
        let mut caption = self.caption(prompt)?;
        let (cells, picture) = self.cells.enter(input.x, &self.device)?;
        let cells = self.filled(cells, |pads| &pads.picture)?;
        let moved = hooks.beside().last();
        let places = self.places(&caption, &cells, picture, moved)?;
        let mut controls = hooks
            .beside::<FunControl>()
            .map(|control| self.control(control, shape, &places, &signal))
            .collect::<Result<Vec<_>>>()?;
        let (prompt_rope, rope) = (
            places.rope.narrow(0, places.caption)?,
            places.rope.narrow(places.caption, cells.dim(1)?)?,
        );
        // Tokens that fill up are seen.
        let filled = places.caption.saturating_sub(prompt.dim(1)?);
        let mask = TokenMask::new(conds.mask, filled, &self.device)?;
        for block in &self.context_refiner {
            hooks.check()?;
            caption = block.forward(caption, mask.mask(), &prompt_rope, &signal)?;
        }
        for control in &mut controls {
            control.enters(&cells)?;
        }
        let (heads, grid) = (self.config.block.heads, places.picture.grid);
        let refiners = &self.noise_refiner;
        let blocks = Blocks::new(NOISE_REFINER, refiners.len(), heads, grid, input);
        let (cells, caption) = blocks.run_pair_then(
            (cells, caption),
            |number, x, caption| {
                let x = refiners[number].forward(x, Mask::None, &rope, &signal)?;
                Ok((x, caption))
            },
            |number, x| {
                let mut each = controls.iter_mut();
                each.try_fold(x, |x, control| control.after_refiner(number, x, hooks))
            },
        )?;
        for control in &mut controls {
            control.enters(&cells)?;
        }
        let x = Tensor::cat(&[&caption, &cells], 1)?;
        drop((caption, cells));
        let blocks = Blocks::new(BlockKind::DOUBLE, self.layers.len(), heads, grid, input);
        let blocks = blocks.with_text(places.caption);
        let x = blocks.run_then(
            x,
            |number, x| self.layers[number].forward(x, Mask::None, &places.rope, &signal),
            |number, x| {
                let mut each = controls.iter_mut();
                each.try_fold(x, |x, control| {
                    control.after_layer(number, x, places.caption, hooks)
                })
            },
        )?;
        drop(controls);
        let x = x.narrow(1, places.caption, places.cells())?;
        let scale = self.last_scale.forward(&silu(&time))?;
        let x = modulate(self.last_norm.forward(&x)?, &scale, None)?;
        // The network looks from the picture to the noise.
        Ok(self.cells.leave(&x, &places.picture)?.mul_scalar(-1.0))
    }

    fn encode(config: &LuminaConfig, file: &str, args: &EncodeArgs<'_>) -> Result<ModelConds> {
        let mut conds = ModelConds::new();
        let tokens = args.prompt_of_width(config.caption, file)?;
        conds.insert(names::PROMPT, CondValue::Regular(tokens.clone()));
        let mask = args.cond.tensors.get("attention_mask");
        if let Some(mask) = mask.filter(|mask| hides(mask)) {
            conds.insert(names::MASK, CondValue::Regular(mask.clone()));
        }
        if let (Some(width), Some(pooled)) = (config.pooled, &args.cond.pooled)
            && pooled.shape().last() == Some(&width)
        {
            conds.insert("clip_text_pooled", CondValue::Regular(pooled.clone()));
        }
        Ok(conds)
    }
}

impl NextDit {
    /// What says the noise level: (b, c).
    fn time(&self, timesteps: &[f32], pooled: Option<&Tensor>) -> Result<Tensor> {
        let levels: Vec<f32> = timesteps.iter().map(|t| 1.0 - t).collect();
        let scale = self.config.time_scale as f32;
        let time = self.time.forward(&levels, scale, &self.device)?;
        let Some(own) = &self.pooled else {
            return Ok(time);
        };
        let pooled = match pooled {
            Some(pooled) => {
                let pooled = pooled.to(&self.device)?;
                own.proj.forward(&own.norm.forward(&pooled)?)?
            }
            None => Tensor::zeros_on(&self.device, [timesteps.len(), own.width])?,
        };
        let both = Tensor::cat(&[&time, &pooled], 1)?;
        Ok(own.joined.forward(&silu(&both))?)
    }

    /// Tokens filled up with a learnt one.
    fn filled(&self, x: Tensor, with: fn(&Pads) -> &Arc<Value>) -> Result<Tensor> {
        let Some(pads) = &self.pads else {
            return Ok(x);
        };
        let [b, n, dim] = x.dims3()?;
        let missing = n.next_multiple_of(pads.multiple) - n;
        if missing == 0 {
            return Ok(x);
        }
        let pad = with(pads).at(&self.device)?.reshape([1, 1, dim])?;
        Ok(Tensor::cat(&[&x, &pad.repeat(&[b, missing, 1])?], 1)?)
    }

    fn caption(&self, prompt: &Tensor) -> Result<Tensor> {
        let normed = self.caption_norm.forward(&prompt.to(&self.device)?)?;
        self.filled(self.caption.forward(&normed)?, |pads| &pads.caption)
    }

    fn places(
        &self,
        caption: &Tensor,
        cells: &Tensor,
        picture: TokenPlaces,
        moved: Option<&RopeScale>,
    ) -> Result<Places> {
        let (prompt, filled) = (caption.dim(1)?, cells.dim(1)?);
        let [_, rows, columns] = picture.grid;
        let mut positions: Vec<[f64; 3]> =
            (0..prompt).map(|i| [i as f64 + 1.0, 0.0, 0.0]).collect();
        let from = prompt as f64 + 1.0;
        positions.extend(grid_positions(from, (rows, columns), (0.0, 0.0)));
        if let Some(scale) = moved {
            scale.move_picture(&mut positions[prompt..]);
        }
        positions.resize(prompt + filled, [0.0; 3]);
        let rope = Rope::new(
            positions.as_flattened(),
            &self.config.axes,
            self.config.theta,
        )?;
        Ok(Places {
            caption: prompt,
            picture,
            rope: rope.to(&self.device)?,
        })
    }

    fn control<'a>(
        &self,
        control: &'a FunControl,
        shape: [usize; 4],
        places: &Places,
        signal: &Tensor,
    ) -> Result<Running<'a>> {
        let rope = places.rope.narrow(places.caption, places.cells())?;
        let sizes = (&self.config.block, shape);
        Running::new(control, &self.device, sizes, &rope, signal)
    }
}
