//! The network and what goes into it.

use std::sync::Arc;

use fresco_tensor::nn::{Act, Linear, Mask, Value, gelu_tanh, modulate};
use fresco_tensor::{Device, Tensor};

use super::blocks::{Block, Modulation, Norm};
use super::config::{KreaConfig, PATCH};
use crate::denoise::hooks::BlockKind;
use crate::denoise::{
    CondValue, DiffusionNetwork, EncodeArgs, ModelConds, ModelFacts, NetworkInput,
};
use crate::epilogue::then;
use crate::error::{ModelError, Result};
use crate::latent_format;
use crate::model_sampling::ModelSampling;
use crate::store::Walk;
use crate::transformer::{
    PatchOrder, Rope, TokenGrid, chunks, grid_positions, hide, hides, sinusoid, video_from_tokens,
    video_to_tokens,
};

/// Values of a token that a pass holds at its fullest, in widths of the network.
const HELD: u64 = 14;

/// Tokens of a prompt that memory is counted with.
const PROMPT: u64 = 512;

/// A prompt's states become one vector for each token.
struct TextFusion {
    layerwise: Vec<Block>,
    projector: Arc<Linear>,
    refiners: Vec<Block>,
    norm: Norm,
    into: [Arc<Linear>; 2],
}

impl TextFusion {
    fn new(weights: &Walk<'_>, config: &KreaConfig) -> Result<Self> {
        let (text, dim, eps) = (&config.text, config.block.dim, config.eps);
        let fusion = weights.at("txtfusion");
        let blocks = |name: &str, count: usize| -> Result<Vec<Block>> {
            let list = fusion.at(name);
            (0..count)
                .map(|number| Block::new(&list.at(number), text, eps))
                .collect()
        };
        let mlp = weights.at("txtmlp");
        Ok(Self {
            layerwise: blocks("layerwise_blocks", config.layerwise)?,
            projector: fusion.matrix("projector", 1, config.text_states)?,
            refiners: blocks("refiner_blocks", config.refiners)?,
            norm: Norm::new(&mlp, "0.scale", text.dim, eps)?,
            into: [mlp.linear("1", dim, text.dim)?, mlp.linear("3", dim, dim)?],
        })
    }

    /// (b, n, states, c) to (b, n, dim).
    fn forward(&self, states: &Tensor, mask: Mask<'_>) -> Result<Tensor> {
        let [b, n, count, width] = states.dims4()?;
        let mut x = states.reshape([b * n, count, width])?;
        for block in &self.layerwise {
            x = block.plain(&x, Mask::None)?;
        }
        let x = x.reshape([b, n, count, width])?.permute(&[0, 1, 3, 2])?;
        let mut x = self.projector.forward(&x)?.reshape([b, n, width])?;
        for block in &self.refiners {
            x = block.plain(&x, mask)?;
        }
        let x = self.norm.forward(&x)?;
        let inner = self.into[0].forward_with(&x, then(Act::GeluTanh))?;
        Ok(self.into[1].forward(&inner)?)
    }
}

pub struct KreaNetwork {
    device: Device,
    config: KreaConfig,
    first: Arc<Linear>,
    time: [Arc<Linear>; 2],
    modulation: Arc<Linear>,
    text: TextFusion,
    blocks: Vec<(Arc<Value>, Block)>,
    last_table: Arc<Value>,
    last_norm: Norm,
    last: Arc<Linear>,
}

impl DiffusionNetwork for KreaNetwork {
    type Config = KreaConfig;

    const WHAT: &'static str = "the transformer";

    fn facts(config: &KreaConfig) -> ModelFacts {
        ModelFacts {
            latent: latent_format::WAN21,
            latent_channels: config.channels,
            in_channels: config.channels,
            context: Some(config.context()),
            model_channels: None,
            architecture: None,
            memory_factor: (22, 10),
            sampling: ModelSampling::exponential_flow(1.15),
        }
    }

    fn new(weights: &Walk<'_>, config: &KreaConfig) -> Result<Self> {
        let dim = config.block.dim;
        let values = config.channels * PATCH * PATCH;
        let block = |number: usize| -> Result<(Arc<Value>, Block)> {
            let weights = weights.at("blocks").at(number);
            let table = weights.value("mod.lin", &[6 * dim])?;
            Ok((table, Block::new(&weights, &config.block, config.eps)?))
        };
        Ok(Self {
            device: weights.device().clone(),
            config: config.clone(),
            first: weights.linear("first", dim, values)?,
            time: [
                weights.linear("tmlp.0", dim, config.waves)?,
                weights.linear("tmlp.2", dim, dim)?,
            ],
            modulation: weights.linear("tproj.1", 6 * dim, dim)?,
            text: TextFusion::new(weights, config)?,
            blocks: (0..config.layers).map(block).collect::<Result<_>>()?,
            last_table: weights.value("last.modulation.lin", &[2, dim])?,
            last_norm: Norm::new(weights, "last.norm.scale", dim, config.eps)?,
            last: weights.linear("last.linear", values, dim)?,
        })
    }

    fn forward(&self, input: &NetworkInput<'_>) -> Result<Tensor> {
        let (hooks, device) = (input.hooks, &self.device);
        let Some(prompt) = input.conds.tensor("c_crossattn") else {
            return Err(ModelError::invalid("prompt", "this model needs one"));
        };
        let states = self.states(prompt)?;
        let (tokens, grid) = video_to_tokens(input.x, PATCH, PatchOrder::ChannelFirst)?;
        let (count, cells) = (states.dim(1)?, tokens.dim(1)?);
        let mask = input.conds.tensor("attention_mask");
        let seen = |beside: usize| -> Result<Option<Tensor>> {
            let mask = mask.map(|mask| hide(mask, beside)?.to(device).map_err(ModelError::from));
            mask.transpose()
        };
        let (text_mask, mask) = (seen(0)?, seen(cells)?);
        let text_mask = text_mask.as_ref().map_or(Mask::None, Mask::Add);
        let mask = mask.as_ref().map_or(Mask::None, Mask::Add);
        let text = self.text.forward(&states.to(device)?, text_mask)?;
        let cells_in = self.first.forward(&tokens.to(device)?)?;
        let mut x = Tensor::cat(&[&text, &cells_in], 1)?;
        drop((text, cells_in));
        let time = self.time(input.timesteps)?;
        let shared = self.modulation.forward(&gelu_tanh(&time))?;
        let rope = self.rope(count, grid)?;
        for (number, (table, block)) in self.blocks.iter().enumerate() {
            hooks.check()?;
            if hooks.skips(BlockKind::SINGLE, number) {
                continue;
            }
            let own = shared.add(&table.at(device)?)?;
            let modulation: Modulation = chunks(&own)?;
            x = block.forward(x, mask, &rope, &modulation)?;
        }
        let x = x.narrow(1, count, cells)?;
        let table = self.last_table.at(device)?;
        let row = |number: usize| -> Result<Tensor> { Ok(time.add(&table.narrow(0, number, 1)?)?) };
        let x = modulate(self.last_norm.forward(&x)?, &row(0)?, Some(&row(1)?))?;
        let out = self.last.forward(&x)?.to(&Device::cpu())?;
        let shape = input.x.shape();
        let size = (shape[3], shape[4]);
        video_from_tokens(&out, grid, PATCH, PatchOrder::ChannelFirst, size)
    }

    fn encode(config: &KreaConfig, file: &str, args: &EncodeArgs<'_>) -> Result<ModelConds> {
        let mut conds = ModelConds::new();
        let tokens = match &args.cond.tokens {
            // The states of a token by themselves.
            Some(tokens)
                if tokens.shape().get(2..) == Some(&[config.text_states, config.text.dim]) =>
            {
                let (b, n) = (tokens.dim(0)?, tokens.dim(1)?);
                tokens.reshape([b, n, config.context()])?
            }
            _ => args.prompt_of_width(config.context(), file)?.clone(),
        };
        conds.insert("c_crossattn", CondValue::Regular(tokens));
        let mask = args.cond.tensors.get("attention_mask");
        if let Some(mask) = mask.filter(|mask| hides(mask)) {
            conds.insert("attention_mask", CondValue::Regular(mask.clone()));
        }
        Ok(conds)
    }

    fn memory_required(config: &KreaConfig, shape: &[usize]) -> u64 {
        let batch = shape.first().copied().unwrap_or(0) as u64;
        let cells: u64 = shape.iter().skip(2).map(|n| *n as u64).product();
        let tokens = batch.saturating_mul(cells / (PATCH * PATCH) as u64 + PROMPT);
        let each = config.block.dim as u64 * HELD * size_of::<f32>() as u64;
        tokens.saturating_mul(each)
    }
}

impl KreaNetwork {
    /// What says the noise level: (b, dim).
    fn time(&self, timesteps: &[f32]) -> Result<Tensor> {
        let levels: Vec<f32> = timesteps.iter().map(|t| t * 1000.0).collect();
        let waves = sinusoid(&levels, self.config.waves)?.to(&self.device)?;
        let inner = self.time[0].forward_with(&waves, then(Act::GeluTanh))?;
        Ok(self.time[1].forward(&inner)?)
    }

    /// A prompt (b, n, states * c) as (b, n, states, c).
    fn states(&self, prompt: &Tensor) -> Result<Tensor> {
        let (b, n) = (prompt.dim(0)?, prompt.dim(1)?);
        let (states, width) = (self.config.text_states, self.config.text.dim);
        Ok(prompt.reshape([b, n, states, width])?)
    }

    fn rope(&self, prompt: usize, [frames, rows, columns]: TokenGrid) -> Result<Rope> {
        let mut positions = vec![[0.0; 3]; prompt];
        for frame in 0..frames {
            positions.extend(grid_positions(frame as f64, (rows, columns), (0.0, 0.0)));
        }
        let config = &self.config;
        Rope::new(positions.as_flattened(), &config.axes, config.theta)?.to(&self.device)
    }
}
