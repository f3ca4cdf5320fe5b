//! The network and what goes into it.

use std::sync::Arc;

use fresco_tensor::nn::{LayerNorm, Linear, silu};
use fresco_tensor::{Crop, Device, ResizeMethod, Tensor, common_upscale, resize_to_batch};

use super::blocks::{DoubleBlock, SingleBlock};
use super::config::{HiDreamConfig, PATCH};
use crate::conds;
use crate::denoise::hook_points::{BLOCKS, CONTROL, HookPoints, OWN};
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
    AdaLn, Blocks, Embedder, PatchOrder, PictureTokens, Rope, TimeEmbed, grid_positions,
};

/// Width of the waves that stand for a noise level.
const WAVES: usize = 256;

/// Values of a token that a pass holds at its fullest, in widths of the network.
const HELD: usize = 20;

/// Tokens of a prompt that memory is counted with: T5's and twice Llama's.
const PROMPT: usize = 3 * 128;

/// What a conditioning calls the states of Llama.
const STATES: &str = "conditioning_llama3";

pub struct HiDreamNetwork {
    device: Device,
    config: HiDreamConfig,
    time: TimeEmbed,
    pooled: Embedder,
    cells: PictureTokens,
    /// One for each block, and one for T5.
    captions: Vec<Arc<Linear>>,
    double: Vec<DoubleBlock>,
    single: Vec<SingleBlock>,
    norm: LayerNorm,
    last_modulation: AdaLn<2>,
}

conds! {
    /// What the network is told besides the latent.
    struct HiDreamConds<'a> {
        words: &'a Tensor = names::PROMPT,
        states: &'a Tensor = STATES,
        pooled: &'a Tensor = names::POOLED,
        picture: Option<&'a Tensor> = "image_cond",
    }
}

impl DiffusionNetwork for HiDreamNetwork {
    type Config = HiDreamConfig;

    const HOOKS: HookPoints = HookPoints(&[
        (BlockKind::DOUBLE, &[BLOCKS, CONTROL, OWN]),
        (BlockKind::SINGLE, &[BLOCKS, CONTROL, OWN]),
    ]);

    fn facts(config: &HiDreamConfig) -> ModelFacts {
        ModelFacts {
            latent: latent_format::FLUX,
            latent_channels: config.channels,
            in_channels: config.channels,
            context: Some(config.context),
            model_channels: None,
            architecture: None,
            pass: PassMemory::of_cells(PATCH * PATCH, config.dim, HELD).with_prompt(PROMPT),
            sampling: ModelSampling::flow(1.0, 1000.0),
        }
    }

    fn new(weights: &Walk<'_>, config: &HiDreamConfig) -> Result<Self> {
        let dim = config.dim;
        let values = config.channels * PATCH * PATCH;
        let blocks = config.double + config.single;
        let caption = |number: usize| {
            let width = if number < blocks {
                config.states
            } else {
                config.context
            };
            let weights = weights.at("caption_projection").at(number);
            weights.matrix("linear", dim, width)
        };
        let names = ["linear_1", "linear_2"];
        let time = weights.at("t_embedder").at("timestep_embedder");
        let pooled = weights.at("p_embedder").at("pooled_embedder");
        let double = weights.at("double_stream_blocks");
        let single = weights.at("single_stream_blocks");
        let end = weights.at("final_layer");
        Ok(Self {
            device: weights.device().clone(),
            config: config.clone(),
            time: TimeEmbed::new(&time, names, WAVES, dim)?,
            pooled: Embedder::new(&pooled, names, config.pooled, dim, Bias::With)?,
            cells: PictureTokens::new(
                weights.linear("x_embedder.proj", dim, values)?,
                end.linear("linear", values, dim)?,
                PATCH,
                [PatchOrder::ChannelLast; 2],
            ),
            captions: (0..=blocks).map(caption).collect::<Result<_>>()?,
            double: double.each(config.double, |weights| DoubleBlock::new(weights, config))?,
            single: single.each(config.single, |weights| SingleBlock::new(weights, config))?,
            norm: LayerNorm::new(None, None, 1e-6)?,
            last_modulation: AdaLn::new(&end, "adaLN_modulation.1", dim, dim, Bias::With)?,
        })
    }

    fn forward(&self, input: &NetworkInput<'_>) -> Result<Tensor> {
        let conds = HiDreamConds::read(input.conds)?;
        let device = &self.device;
        let [batch, _, height, width] = input.x.dims4()?;
        let (words, states, pooled) = (conds.words, conds.states, conds.pooled);
        let time = self.time.forward(input.timesteps, 1.0, device)?;
        let signal = silu(&time.add(&self.pooled.forward(&pooled.to(device)?)?)?);
        // The picture that is edited stands to the right of the one that is made.
        let x = match conds.picture {
            Some(picture) => Tensor::cat(&[input.x, picture], 3)?,
            None => input.x.clone(),
        };
        let (x, places) = self.cells.enter(&x, device)?;
        let cells = x.dim(1)?;
        let lines = self.lines(states, batch)?;
        let words = self.captions[lines.len()].forward(&words.to(device)?)?;
        let last = lines
            .last()
            .ok_or_else(|| ModelError::invalid("prompt", "it has no states"))?;
        let text = Tensor::cat(&[&words, last], 1)?;
        let kept = text.dim(1)?;
        let [_, rows, columns] = places.grid;
        let rope = self.rope((rows, columns), kept + last.dim(1)?)?;
        let (early, late) = lines.split_at(self.double.len());
        let blocks = |kind: BlockKind, count: usize| {
            Blocks::new(kind, count, self.config.heads, places.grid, input)
        };
        let double = blocks(BlockKind::DOUBLE, self.double.len());
        let (x, text) = double.run_pair((x, text), |number, x, text| {
            let all = Tensor::cat(&[&text, &early[number]], 1)?;
            let block = &self.double[number];
            let (x, all) = block.forward(&self.norm, (x, all), &rope, &signal)?;
            Ok((x, all.narrow(1, 0, kept)?))
        })?;
        let x = Tensor::cat(&[&x, &text], 1)?;
        let single = blocks(BlockKind::SINGLE, self.single.len());
        let x = single.run(x, |number, x| {
            let all = Tensor::cat(&[&x, &late[number]], 1)?;
            let all = self.single[number].forward(&self.norm, all, &rope, &signal)?;
            Ok(all.narrow(1, 0, cells + kept)?)
        })?;
        let x = x.narrow(1, 0, cells)?;
        let [shift, scale] = self.last_modulation.forward(&signal)?;
        let x = self.norm.modulated(&x, &shift, &scale)?;
        let out = self.cells.leave(&x, &places)?;
        // The network looks from the picture to the noise.
        Ok(out
            .narrow(2, 0, height)?
            .narrow(3, 0, width)?
            .mul_scalar(-1.0))
    }

    fn encode(config: &HiDreamConfig, file: &str, args: &EncodeArgs<'_>) -> Result<ModelConds> {
        let mut conds = ModelConds::new();
        let words = args.prompt_of_width(config.context, file)?;
        conds.insert(names::PROMPT, CondValue::Regular(words.clone()));
        let states = args.cond.tensors.get(STATES);
        let Some(states) = states.filter(|s| s.rank() == 4 && s.shape()[3] == config.states) else {
            let reason = format!(
                "the {} conditioning has no states of a Llama text encoder, which this model needs",
                args.prompt_type
            );
            return Err(ModelError::unsupported(file, reason));
        };
        conds.insert(STATES, CondValue::Regular(states.clone()));
        let pooled = args.pooled_of_width(config.pooled, file)?;
        conds.insert(names::POOLED, CondValue::Regular(pooled.clone()));
        if let Some(picture) = args.cond.tensors.get("concat_latent_image") {
            let [count, channels, h, w] = args.noise.dims4()?;
            if picture.rank() != 4 || picture.dim(1)? != channels {
                let reason = format!(
                    "the picture in the conditioning has a latent of shape {:?}, but this model works on {channels} \
                     channels: it was encoded with the VAE of another family of models. Load the one that belongs to this model",
                    picture.shape()
                );
                return Err(ModelError::unsupported(file, reason));
            }
            let mut picture = latent_format::FLUX.process_in(picture)?;
            if picture.shape()[2..] != [h, w] {
                picture = common_upscale(&picture, w, h, ResizeMethod::Bilinear, Crop::Center)?;
            }
            let picture = resize_to_batch(&picture, count)?;
            conds.insert("image_cond", CondValue::NoiseShape(picture));
        }
        Ok(conds)
    }
}

impl HiDreamNetwork {
    /// What each block sees of Llama (b, states, n, c): those after the last state see that again.
    fn lines(&self, states: &Tensor, batch: usize) -> Result<Vec<Tensor>> {
        let [b, count, n, width] = states.dims4()?;
        if count == 0 || b != batch {
            let reason = format!("states of shape {:?} for {batch} pictures", states.shape());
            return Err(ModelError::invalid("prompt", reason));
        }
        let blocks = self.double.len() + self.single.len();
        let line = |number: usize| -> Result<Tensor> {
            let state = states.narrow(1, number.min(count - 1), 1)?;
            let state = state.reshape([b, n, width])?.to(&self.device)?;
            Ok(self.captions[number].forward(&state)?)
        };
        (0..blocks).map(line).collect()
    }

    fn rope(&self, grid: (usize, usize), text: usize) -> Result<Rope> {
        let mut positions: Vec<[f64; 3]> = grid_positions(0.0, grid, (0.0, 0.0)).collect();
        positions.resize(positions.len() + text, [0.0; 3]);
        let config = &self.config;
        Rope::new(positions.as_flattened(), &config.axes, config.theta)?.to(&self.device)
    }
}
