//! The network and what goes into it.

use std::sync::Arc;

use fresco_tensor::nn::{Act, LayerNorm, Linear, Mask, silu};
use fresco_tensor::{Buffer, Device, Tensor};

use super::config::{BASE, PATCH, PixArtConfig};
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
    AdaLn, Attention, AttentionLayers, Blocks, HeadNorm, Heads, Looks, Mlp, MlpLayers, PatchOrder,
    PictureTokens, QkvLayers, Rotation, TimeEmbed, TokenRows, patch_conv,
};

const EPS: f32 = 1e-6;

/// Width of the waves that a number becomes.
const WAVES: usize = 256;

/// Values of a token that a pass holds at its fullest, in widths of the network.
const HELD: usize = 12;

struct Block {
    modulation: AdaLn<6>,
    attention: Attention,
    prompt_attention: Attention,
    mlp: Mlp,
}

impl Block {
    fn new(weights: &Walk<'_>, config: &PixArtConfig) -> Result<Self> {
        let dim = config.dim;
        let heads = Heads::new(config.heads, dim / config.heads, HeadNorm::None);
        let own = AttentionLayers::new(QkvLayers::Joined("qkv"), "proj", dim, heads);
        let prompt = AttentionLayers {
            qkv: QkvLayers::Paired(["q_linear", "kv_linear"]),
            looks: Looks::Prompt(dim),
            ..own
        };
        let layers = MlpLayers::Plain(["fc1", "fc2"], Act::GeluTanh);
        Ok(Self {
            modulation: AdaLn::table(weights, "scale_shift_table", &[6, dim])?,
            attention: Attention::new(&weights.at("attn"), &own)?,
            prompt_attention: Attention::new(&weights.at("cross_attn"), &prompt)?,
            mlp: Mlp::new(&weights.at("mlp"), layers, (dim, config.ffn), Bias::With)?,
        })
    }

    /// `time` is (b, 6 * dim).
    fn forward(
        &self,
        norm: &LayerNorm,
        x: Tensor,
        prompt: &Tensor,
        time: &Tensor,
    ) -> Result<Tensor> {
        let [shift, scale, gate, shift2, scale2, gate2] = self.modulation.forward(time)?;
        let qkv = self
            .attention
            .qkv(TokenRows::modulated(norm, &x, &shift, &scale))?;
        let seen = qkv.attend(Rotation::NONE, Mask::None)?;
        let x = self.attention.add_gated(&seen, x, &gate)?;
        // The prompt is looked at without a norm before and a gate behind.
        let qkv = self.prompt_attention.qkv_to(&x, prompt)?;
        let x = self
            .prompt_attention
            .add(&qkv.attend(Rotation::NONE, Mask::None)?, &x)?;
        let inner = self
            .mlp
            .inner(TokenRows::modulated(norm, &x, &shift2, &scale2))?;
        self.mlp.add_gated(&inner, x, &gate2)
    }
}

/// See the [module](super).
pub struct PixArtNetwork {
    device: Device,
    config: PixArtConfig,
    cells: PictureTokens,
    time: TimeEmbed,
    /// Of height and width, and of their ratio.
    sizes: Option<[TimeEmbed; 2]>,
    time_block: Arc<Linear>,
    prompt: Mlp,
    blocks: Vec<Block>,
    norm: LayerNorm,
    last_modulation: AdaLn<2>,
}

conds! {
    /// What the network is told besides the latent.
    struct PixArtConds<'a> {
        prompt: &'a Tensor = names::PROMPT,
        size: Option<&'a Tensor> = "c_size",
        ratio: Option<&'a Tensor> = "c_ar",
    }
}

impl DiffusionNetwork for PixArtNetwork {
    type Config = PixArtConfig;

    const HOOKS: HookPoints = HookPoints(&[(BlockKind::DOUBLE, &[BLOCKS, CONTROL, OWN, PROMPT])]);

    fn facts(config: &PixArtConfig) -> ModelFacts {
        ModelFacts {
            latent: match config.size {
                Some(_) => latent_format::SD15,
                None => latent_format::SDXL,
            },
            latent_channels: config.channels,
            in_channels: config.channels,
            context: Some(config.context),
            model_channels: None,
            architecture: None,
            pass: PassMemory::of_cells(PATCH * PATCH, config.dim, HELD),
            sampling: ModelSampling::even_betas(Prediction::Eps, 1e-4, 0.02),
        }
    }

    fn new(weights: &Walk<'_>, config: &PixArtConfig) -> Result<Self> {
        let dim = config.dim;
        let blocks = weights.at("blocks");
        let layers = ["mlp.0", "mlp.2"];
        let numbers =
            |name: &str, width: usize| TimeEmbed::new(&weights.at(name), layers, WAVES, width);
        let sizes = config.size.map(|width| {
            Ok::<_, ModelError>([
                numbers("csize_embedder", width)?,
                numbers("ar_embedder", width)?,
            ])
        });
        let out = config.out_channels * PATCH * PATCH;
        let end = weights.at("final_layer");
        let prompt = MlpLayers::Plain(["fc1", "fc2"], Act::GeluTanh);
        Ok(Self {
            device: weights.device(),
            config: config.clone(),
            cells: PictureTokens::convolved(
                patch_conv(weights, "x_embedder.proj", dim, config.channels, PATCH)?,
                end.linear("linear", out, dim)?,
                PATCH,
                PatchOrder::ChannelLast,
            ),
            time: numbers("t_embedder", dim)?,
            sizes: sizes.transpose()?,
            time_block: weights.linear("t_block.1", 6 * dim, dim)?,
            prompt: Mlp::between(
                &weights.at("y_embedder.y_proj"),
                prompt,
                [config.context, dim, dim],
                Bias::With,
            )?,
            blocks: blocks.each(config.blocks, |weights| Block::new(weights, config))?,
            norm: LayerNorm::new(None, None, EPS)?,
            last_modulation: AdaLn::table(&end, "scale_shift_table", &[2, dim])?,
        })
    }

    fn forward(&self, input: &NetworkInput<'_>) -> Result<Tensor> {
        let conds = PixArtConds::read(input.conds)?;
        let device = &self.device;
        let [items, channels, height, width] = input.x.dims4()?;
        let prompt = conds.prompt;
        let (tokens, cells) = self.cells.enter(input.x, device)?;
        let [_, rows, columns] = cells.grid;
        let places = self.places((rows, columns), (height, width))?;
        let x = tokens.add(&places.to(device)?)?;
        let time = self.time(input.timesteps, &conds, (height, width), items)?;
        let parts = self.time_block.forward(&silu(&time))?;
        let prompt = self.prompt.forward(&prompt.to(device)?)?;
        let (kind, count) = (BlockKind::DOUBLE, self.blocks.len());
        let blocks = Blocks::new(kind, count, self.config.heads, cells.grid, input);
        let (x, _) = blocks.run_pair((x, prompt), |number, x, prompt| {
            let x = self.blocks[number].forward(&self.norm, x, &prompt, &parts)?;
            Ok((x, prompt))
        })?;
        let [shift, scale] = self.last_modulation.forward(&time.repeat(&[1, 2])?)?;
        let x = self.norm.modulated(&x, &shift, &scale)?;
        let out = self.cells.leave(&x, &cells)?;
        // The other channels are how sure it is, which no sampler asks for.
        Ok(out.narrow(1, 0, channels.min(out.dim(1)?))?)
    }

    fn encode(config: &PixArtConfig, file: &str, args: &EncodeArgs<'_>) -> Result<ModelConds> {
        let mut conds = ModelConds::new();
        let tokens = args.prompt_of_width(config.context, file)?;
        conds.insert(names::PROMPT, CondValue::CrossAttn(tokens.clone()));
        let number = |name: &str| args.cond.numbers.get(name).copied();
        if let (Some(_), Some(width), Some(height)) =
            (config.size, number("width"), number("height"))
        {
            let ratio = number("aspect_ratio").unwrap_or(height / width);
            let size = Tensor::from_vec([1, 2], vec![height as f32, width as f32])?;
            conds.insert("c_size", CondValue::Regular(size));
            let ratio = Tensor::from_vec([1, 1], vec![ratio as f32])?;
            conds.insert("c_ar", CondValue::Regular(ratio));
        }
        Ok(conds)
    }
}

impl PixArtNetwork {
    /// The noise level, and the size of the picture where the network is told.
    fn time(
        &self,
        timesteps: &[f32],
        conds: &PixArtConds<'_>,
        (height, width): (usize, usize),
        items: usize,
    ) -> Result<Tensor> {
        let time = self.time.forward(timesteps, 1.0, &self.device)?;
        let Some([size, ratio]) = &self.sizes else {
            return Ok(time);
        };
        let numbers =
            |layer: &TimeEmbed, given: Option<&Tensor>, usual: &[f32]| -> Result<Tensor> {
                let given = given.map(Tensor::data);
                let values =
                    given.filter(|values| !values.is_empty() && values.len() % usual.len() == 0);
                let values = values.unwrap_or(usual);
                // The same for all, if it was said for one.
                let all: Vec<f32> = values
                    .iter()
                    .copied()
                    .cycle()
                    .take(items * usual.len())
                    .collect();
                let made = layer.forward(&all, 1.0, &self.device)?;
                let wide = made.dim(1)? * usual.len();
                Ok(made.reshape([items, wide])?)
            };
        let (tall, wide) = (height as f32, width as f32);
        let size = numbers(size, conds.size, &[8.0 * tall, 8.0 * wide])?;
        let ratio = numbers(ratio, conds.ratio, &[tall / wide])?;
        Ok(time.add(&Tensor::cat(&[&size, &ratio], 1)?)?)
    }

    /// Sines and cosines of columns and rows, (1, n, dim). However large a picture is, its far end has the place that the
    /// end of a usual one has.
    fn places(
        &self,
        (rows, columns): (usize, usize),
        (height, width): (usize, usize),
    ) -> Result<Tensor> {
        let mean = (height + width) as f64 / 2.0 / BASE as f64;
        let rounded = mean.round_ties_even();
        let base = (rounded as usize * BASE) / PATCH;
        if base == 0 {
            let least = BASE / 2 * 8;
            let reason = format!("this model makes pictures larger than {least} by {least} pixels");
            return Err(ModelError::invalid("latent", reason));
        }
        let closer = self.config.interpolation.unwrap_or(rounded);
        let place = |at: usize, count: usize| {
            let place = at as f32 / (count as f64 / base as f64) as f32;
            f64::from(place / closer as f32)
        };
        let half = self.config.dim / 2;
        let count = half / 2;
        let frequency = |i: usize| 1.0 / 10000_f64.powf(i as f64 / count as f64);
        let mut values = Buffer::with_room(rows * columns * self.config.dim)?;
        for row in 0..rows {
            for column in 0..columns {
                for at in [place(column, columns), place(row, rows)] {
                    values.extend((0..count).map(|i| (at * frequency(i)).sin() as f32));
                    values.extend((0..count).map(|i| (at * frequency(i)).cos() as f32));
                }
            }
        }
        Ok(Tensor::from_buffer(
            [1, rows * columns, self.config.dim],
            values,
        )?)
    }
}
