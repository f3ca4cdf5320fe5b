//! The network and what goes into it.

use std::sync::Arc;

use fresco_tensor::nn::{Embedding, LayerNorm, Linear, modulate, silu};
use fresco_tensor::{Crop, Device, ResizeMethod, Tensor, common_upscale};

use super::blocks::{DoubleBlock, EPS, SingleBlock};
use super::config::{AuraFlowConfig, PATCH};
use crate::conds;
use crate::denoise::hook_points::{BLOCKS, CONTROL, HookPoints, OWN};
use crate::denoise::hooks::BlockKind;
use crate::denoise::{
    CondValue, DiffusionNetwork, EncodeArgs, ModelConds, ModelFacts, NetworkInput, PassMemory,
    names,
};
use crate::error::Result;
use crate::latent_format;
use crate::model_sampling::ModelSampling;
use crate::store::{Bias, Walk};
use crate::transformer::{AdaLn, Blocks, PatchOrder, PictureTokens, TimeEmbed, TokenGrid};

/// Width of the waves that a noise level becomes.
const WAVES: usize = 256;

/// Values of a token that a pass holds at its fullest, in widths of the network.
const HELD: usize = 16;

/// Tokens of a prompt that memory is counted with.
const PROMPT: usize = 264;

/// See the [module](super).
pub struct AuraFlowNetwork {
    device: Device,
    config: AuraFlowConfig,
    time: TimeEmbed,
    prompt: Arc<Linear>,
    cells: PictureTokens,
    places: Arc<Embedding>,
    registers: Arc<Embedding>,
    double: Vec<DoubleBlock>,
    single: Vec<SingleBlock>,
    norm: LayerNorm,
    last_modulation: AdaLn<2>,
}

conds! {
    /// What the network is told besides the latent.
    struct AuraFlowConds<'a> {
        prompt: &'a Tensor = names::PROMPT,
    }
}

impl DiffusionNetwork for AuraFlowNetwork {
    type Config = AuraFlowConfig;

    const HOOKS: HookPoints = HookPoints(&[
        (BlockKind::DOUBLE, &[BLOCKS, CONTROL, OWN]),
        (BlockKind::SINGLE, &[BLOCKS, CONTROL, OWN]),
    ]);

    fn facts(config: &AuraFlowConfig) -> ModelFacts {
        ModelFacts {
            latent: latent_format::SDXL,
            latent_channels: config.out_channels,
            in_channels: config.channels,
            context: Some(config.context),
            model_channels: None,
            architecture: None,
            pass: PassMemory::of_cells(PATCH * PATCH, config.dim, HELD).with_prompt(PROMPT),
            sampling: ModelSampling::flow(1.73, 1.0),
        }
    }

    fn new(weights: &Walk<'_>, config: &AuraFlowConfig) -> Result<Self> {
        let dim = config.dim;
        let (double, single) = (weights.at("double_layers"), weights.at("single_layers"));
        let values = PATCH * PATCH;
        let places = [1, config.side * config.side, dim];
        let layers = ["mlp.0", "mlp.2"];
        Ok(Self {
            device: weights.device(),
            config: config.clone(),
            time: TimeEmbed::new(&weights.at("t_embedder"), layers, WAVES, dim)?,
            prompt: weights.matrix("cond_seq_linear", dim, config.context)?,
            cells: PictureTokens::new(
                weights.linear("init_x_linear", dim, values * config.channels)?,
                weights.matrix("final_linear", values * config.out_channels, dim)?,
                PATCH,
                [PatchOrder::ChannelFirst, PatchOrder::ChannelLast],
            ),
            places: weights.rows("positional_encoding", &places)?,
            registers: weights.rows("register_tokens", &[1, config.registers, dim])?,
            double: double.each(config.double, |weights| DoubleBlock::new(weights, config))?,
            single: single.each(config.single, |weights| SingleBlock::new(weights, config))?,
            norm: LayerNorm::new(None, None, EPS)?,
            last_modulation: AdaLn::new(weights, "modF.1", dim, dim, Bias::Without)?,
        })
    }

    fn forward(&self, input: &NetworkInput<'_>) -> Result<Tensor> {
        let conds = AuraFlowConds::read(input.conds)?;
        let (config, device) = (&self.config, &self.device);
        let [items, ..] = input.x.dims4()?;
        let prompt = conds.prompt;
        let (tokens, places) = self.cells.enter(input.x, device)?;
        let picture = tokens.add(&self.places(places.grid)?)?;
        let signal = silu(&self.time.forward(input.timesteps, 1000.0, device)?);
        let first: Vec<u32> = (0..config.registers as u32).collect();
        let first = self.registers.lookup_on(&first, device)?.unsqueeze(0)?;
        let first = first.repeat(&[items, 1, 1])?;
        let words = self.prompt.forward(&prompt.to(device)?)?;
        let words = Tensor::cat(&[&first, &words], 1)?;
        let blocks =
            |kind, count: usize| Blocks::new(kind, count, config.heads, places.grid, input);
        let double = blocks(BlockKind::DOUBLE, self.double.len());
        let (picture, words) = double.run_pair((picture, words), |number, picture, words| {
            self.double[number].forward(&self.norm, (picture, words), &signal)
        })?;
        let count = words.dim(1)?;
        let x = Tensor::cat(&[&words, &picture], 1)?;
        drop((words, picture));
        let single =
            blocks(BlockKind::SINGLE, self.single.len()).with_control(input.control, count);
        let x = single.run(x, |number, x| {
            self.single[number].forward(&self.norm, x, &signal)
        })?;
        let x = x.narrow(1, count, x.dim(1)? - count)?;
        let [shift, scale] = self.last_modulation.forward(&signal)?;
        let x = modulate(x, &scale, Some(&shift))?;
        self.cells.leave(&x, &places)
    }

    fn encode(config: &AuraFlowConfig, file: &str, args: &EncodeArgs<'_>) -> Result<ModelConds> {
        let mut conds = ModelConds::new();
        let tokens = args.prompt_of_width(config.context, file)?;
        conds.insert(names::PROMPT, CondValue::Regular(tokens.clone()));
        Ok(conds)
    }
}

impl AuraFlowNetwork {
    /// The positions of a picture: the middle of the table, which is stretched for those that are larger.
    fn places(&self, [_, rows, columns]: TokenGrid) -> Result<Tensor> {
        let (side, dim) = (self.config.side, self.config.dim);
        let all: Vec<u32> = (0..(side * side) as u32).collect();
        let table = self.places.lookup_on(&all, &self.device)?;
        let mut table = table.reshape([1, side, side, dim])?;
        let wanted = rows.max(columns).max(side);
        if wanted > side {
            let planes = table.nhwc_to_nchw()?;
            let method = ResizeMethod::Bilinear;
            let larger = common_upscale(&planes, wanted, wanted, method, Crop::Disabled)?;
            table = larger.nchw_to_nhwc()?;
        }
        let (top, left) = ((wanted - rows) / 2, (wanted - columns) / 2);
        let window = table.narrow(1, top, rows)?.narrow(2, left, columns)?;
        Ok(window.reshape([1, rows * columns, dim])?)
    }
}
